"""Jobs as the process runs them, the metrics they leave, and the probes that tell about them."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gpuwatch.app.controller.http_server import serving
from gpuwatch.app.controller.jobs import Job, Jobs
from gpuwatch.app.controller.metrics import Metrics
from parts.gpuwatch_run import asked
from parts.processes import wait_until


@contextmanager
def started(*jobs: Job) -> Iterator[tuple[Jobs, Metrics]]:
    metrics = Metrics()
    run = Jobs(jobs, metrics, (ValueError,))
    run.start()
    try:
        yield run, metrics
    finally:
        assert run.stop(10) == []


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


def soon(condition: Callable[[], bool]) -> None:
    wait_until(condition, lambda: "it did not happen", 15)


def test_a_job_runs_at_once_and_again() -> None:
    runs: list[int] = []
    with started(Job("look", lambda: runs.append(1), 60, seconds=1)) as (_, metrics):
        soon(lambda: len(runs) >= 2)
        soon(lambda: value(metrics, "gpuwatch_task_duration_seconds_count", task="look") >= 2)
        assert value(metrics, "gpuwatch_task_last_success_timestamp_seconds", task="look") > 0
        assert value(metrics, "gpuwatch_task_errors_total", task="look") == 0


@pytest.mark.parametrize("error", [ValueError("no answer"), ZeroDivisionError()])
def test_a_run_that_fails_is_counted_and_the_next_one_comes(error: Exception) -> None:
    runs: list[int] = []

    def fail_once() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise error

    with started(Job("look", fail_once, 60, seconds=1)) as (_, metrics):
        soon(lambda: value(metrics, "gpuwatch_task_last_success_timestamp_seconds", task="look") > 0)
        assert value(metrics, "gpuwatch_task_errors_total", task="look") == 1


def test_a_job_never_runs_twice_at_once_and_what_is_left_out_is_counted() -> None:
    let_go = threading.Event()
    at_once: list[int] = []

    def hang() -> None:
        at_once.append(1)
        let_go.wait(20)
        at_once.pop()

    with started(Job("look", hang, 60, seconds=1)) as (_, metrics):
        soon(lambda: value(metrics, "gpuwatch_task_missed_total", task="look") >= 1)
        assert len(at_once) == 1
        let_go.set()


def test_a_job_that_hangs_is_complained_about_and_others_go_on() -> None:
    let_go = threading.Event()
    others: list[int] = []
    jobs = (
        Job("hang", lambda: [let_go.wait(20), None][1], 0.2, seconds=60),
        Job("other", lambda: others.append(1), 60, seconds=1),
    )
    with started(*jobs) as (run, _):
        assert run.complaints() == []
        soon(lambda: bool(run.complaints()))
        assert "task hang has been running" in run.complaints()[0]
        soon(lambda: len(others) >= 2)
        let_go.set()
        soon(lambda: not run.complaints())


def test_stopping_waits_for_the_run_in_hand_and_names_it_when_it_does_not_end() -> None:
    let_go, begun = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        let_go.wait(20)

    run = Jobs((Job("write", hang, 60, seconds=60),), Metrics(), ())
    run.start()
    assert begun.wait(10)
    assert run.stop(0.1) == ["write"]
    let_go.set()


def test_a_look_that_finds_nothing_to_do_is_no_run_and_one_that_falls_into_a_run_no_news() -> None:
    let_go = threading.Event()
    answers = iter([False, False, True])
    looks: list[int] = []

    def look() -> bool:
        looks.append(1)
        answer = next(answers, False)
        if answer:
            let_go.wait(20)
        return answer

    with started(Job("report", look, 60, seconds=1, looks=True)) as (_, metrics):
        soon(lambda: len(looks) == 3)
        assert value(metrics, "gpuwatch_task_last_success_timestamp_seconds", task="report") == 0
        time.sleep(2.1)  # two more looks are due, and are left out
        let_go.set()
        soon(lambda: len(looks) >= 5)
        assert value(metrics, "gpuwatch_task_missed_total", task="report") == 0
        assert value(metrics, "gpuwatch_task_duration_seconds_count", task="report") == 1
        assert value(metrics, "gpuwatch_task_last_success_timestamp_seconds", task="report") > 0


def test_new_times_are_taken() -> None:
    runs: list[str] = []
    with started(Job("look", lambda: runs.append("look"), 60, seconds=3600)) as (run, _):
        soon(lambda: runs == ["look"])
        run.change((Job("look", lambda: runs.append("faster"), 60, seconds=1),))
        soon(lambda: runs[1:3] == ["faster", "faster"])


def test_probes_say_what_is_wrong_and_metrics_are_exposed() -> None:
    metrics = Metrics()
    wrong = ["no cycle has ended yet"]
    with serving("127.0.0.1", 0, list, lambda: wrong, metrics.registry) as port:
        assert asked(port, "/healthz") == (200, "ok\n")
        assert asked(port, "/readyz") == (503, "no cycle has ended yet\n")
        wrong.clear()
        assert asked(port, "/readyz?verbose") == (200, "ok\n")
        status, text = asked(port, "/metrics")
        assert status == 200
        assert "gpuwatch_leader 0.0" in text
        assert "gpuwatch_build_info{version=" in text
        assert asked(port, "/other")[0] == 404


def test_all_addresses_are_listened_on_and_a_port_that_is_taken_is_an_error() -> None:
    registry = Metrics().registry
    with serving("", 0, list, list, registry) as port:
        assert asked(port, "/healthz")[0] == 200
        with pytest.raises(OSError, match="in use"), serving("", port, list, list, registry):
            pass
