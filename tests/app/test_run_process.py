"""`gpuwatch run` as a process of its own beside a real Prometheus, without a cluster: its life and its settings."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from deliver.receivers import webhook
from lab.simulate.fault_kinds import FaultKind
from lab.simulate.fleet import build_fleet
from lab.simulate.plan import FleetPlan
from parts.gpuwatch_run import GpuwatchRun, begun
from parts.processes import free_port, wait_until
from parts.prometheus_server import ServerBuild, running
from simulate.openmetrics import write_openmetrics

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def telemetry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a fleet whose last samples are half an hour ahead, so that it reports while the tests run."""
    end = datetime.now(UTC) + timedelta(minutes=30)
    plan = FleetPlan(seed=7, end=end, gpus=8, days=0.125, idle_allocations=0, faults=(FaultKind.ROW_REMAP_FAILED,))
    file = tmp_path_factory.mktemp("fleet") / "fleet.om"
    write_openmetrics(build_fleet(plan), file)
    return file


@pytest.fixture(scope="module")
def url(newest_prometheus: ServerBuild, telemetry: Path) -> Iterator[str]:
    with running(newest_prometheus, telemetry) as found:
        yield found


@dataclass(frozen=True)
class Run(GpuwatchRun):
    settings: Path

    def set(self, prometheus: str = "", delivery: object = None, **run: object) -> None:
        """The settings file anew, as a ConfigMap is swapped: whole, by a rename."""
        draft = self.settings.with_suffix(".new")
        common = {
            "cycle_interval_seconds": 1,
            "listen_address": "127.0.0.1",
            "listen_port": self.port,
        }
        folder = str(self.settings.parent / "work")
        source: dict[str, object] = {"prometheus": {"url": prometheus}} if prometheus else {}
        if delivery is not None:
            source["delivery"] = delivery
        draft.write_text(yaml.safe_dump({**source, "run": {**common, "folder": folder, **run}}))
        draft.replace(self.settings)

    def until(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        wait_until(condition, lambda: f"{self.asked('/readyz')} {self.said()[-3000:]}", seconds)


@contextmanager
def gpuwatch(folder: Path, url: str, *options: str, prometheus: str = "", **settings_of: Any) -> Iterator[Run]:
    """url: for the command line; prometheus, settings_of: for the settings."""
    port, log, settings = free_port(), folder / "log", folder / "settings.yaml"
    command = [sys.executable, "-m", "gpuwatch.app.cli.main", "run", "--no-cluster", *options]
    command += ["--prometheus", url] if url else []
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GPUWATCH_")}
    unstarted = Run(None, port, log, settings)  # type: ignore[arg-type]
    unstarted.set(prometheus, **settings_of)
    with begun([*command, "--config", str(settings)], log, environment, folder) as process:
        yield Run(process, port, log, settings)


def test_it_looks_tells_and_ends_in_order(url: str, tmp_path: Path) -> None:
    yearly = "0 0 1 1 *"  # a weekly report is made soon after it was due, so this test failed on Mondays
    with gpuwatch(tmp_path, url, "--log-format", "json", report_schedule=yearly) as run:
        run.until(lambda: run.asked("/readyz") == (200, "ok\n"))
        assert run.asked("/healthz") == (200, "ok\n")
        run.until(lambda: "cycle 2 in" in run.said())
        for task in ("profiles", "ledger"):
            done = f'gpuwatch_task_last_success_timestamp_seconds{{task="{task}"}}'
            run.until(lambda done=done: done in run.asked("/metrics")[1])  # type: ignore[misc]
        metrics = run.asked("/metrics")[1]
        assert 'gpuwatch_devices{state="reporting"} 8.0' in metrics
        assert "gpuwatch_leader 1.0" in metrics
        status, shown = run.asked("/")
        assert status == 200
        assert "This replica leads. 8 of 8 GPUs and MIG instances report" in shown
        assert "Refused (1)" in shown
        assert 'href="reports/"' in shown
        assert "There is no report yet." in run.asked("/reports/")[1]
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(30) == 0
        lines = [json.loads(line) for line in run.said().splitlines()]
    first, cycle = (next(line for line in lines if line.get("cycle") == number) for number in (1, 2))
    assert cycle["devices"] == 8
    assert cycle["proposed"] == []
    (item,) = cycle["plan"]
    assert item["mode"] == "observe"
    assert any(refusal.startswith("cluster_known: ") for refusal in item["refusals"])
    assert f"refused by cluster_known and {len(item['refusals']) - 1} more" in first["message"]
    assert "1 refused as before" in cycle["message"]
    messages = [line["message"] for line in lines]
    assert messages[-1] == "stopped"
    assert "stopping: no new work is begun" in messages[-3:]  # a cycle that had begun ends after it
    assert (tmp_path / "work" / "gpuwatch.state").exists()
    assert (tmp_path / "work" / "gpuwatch.state.ledger").exists()


def test_settings_are_taken_when_they_change_and_wrong_ones_are_not(url: str, tmp_path: Path) -> None:
    with gpuwatch(tmp_path, url) as run:
        run.until(lambda: run.asked("/readyz")[0] == 200)
        run.set(anlysis_seconds=2)
        run.until(lambda: "the new settings are not taken, the old ones go on: run.anlysis_seconds" in run.said())
        assert "gpuwatch_settings_last_reload_successful 0.0" in run.asked("/metrics")[1]
        cycles = run.said().count("cycle ")
        run.until(lambda: run.said().count("cycle ") > cycles + 1)
        run.set(lease_duration_seconds=30)
        run.until(lambda: "settings taken anew; changed: run" in run.said())
        run.until(lambda: "run.lease_duration_seconds: a change of it takes a restart" in run.said())
        assert "gpuwatch_settings_last_reload_successful 1.0" in run.asked("/metrics")[1]
        run.process.send_signal(signal.SIGHUP)
        run.until(lambda: "settings taken anew; changed: nothing" in run.said())
        assert run.process.poll() is None


def test_a_source_that_does_not_answer_is_told_and_new_settings_name_another(
    newest_prometheus: ServerBuild, telemetry: Path, tmp_path: Path
) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with gpuwatch(tmp_path, "", prometheus=nobody) as run:
        run.until(lambda: "cycle failed: " in run.said())
        status, why = run.asked("/readyz")
        assert status == 503
        assert nobody in why
        assert run.asked("/healthz") == (200, "ok\n")
        assert 'gpuwatch_task_errors_total{task="cycle"} 0.0' not in run.asked("/metrics")[1]
        with running(newest_prometheus, telemetry) as url:
            run.set(prometheus=url)
            run.until(lambda: run.asked("/readyz") == (200, "ok\n"))
            assert "settings taken anew; changed: prometheus" in run.said()


def test_a_folder_that_cannot_be_made_is_told_where_it_is_asked_whether_it_is_ready(url: str, tmp_path: Path) -> None:
    in_its_place = tmp_path / "work"
    in_its_place.touch()
    with gpuwatch(tmp_path, url) as run:
        run.until(lambda: "the last cycle failed: " in run.asked("/readyz")[1])
        status, why = run.asked("/readyz")
        assert status == 503
        assert str(in_its_place) in why
        in_its_place.unlink()
        run.until(lambda: run.asked("/readyz") == (200, "ok\n"))


def test_the_weekly_report_arrives_once_though_the_process_is_killed_while_it_is_sent(url: str, tmp_path: Path) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=65)  # the full minute before it is up to a minute ahead
    cron = f"{soon.minute} {soon.hour} * * {soon:%a}"
    inbox = tmp_path / "inbox"
    with webhook(0, hang_seconds=60) as receiver:
        delivery = {"folder": str(inbox), "urls": [f"json://{receiver.address}/"]}
        with gpuwatch(tmp_path, url, delivery=delivery, report_schedule=cron) as first:
            wait_until(lambda: bool(receiver.bodies), lambda: first.said()[-3000:], 120)
            first.process.kill()  # while the receiver has it, and has not answered
            first.process.wait(10)
        assert "was missed" not in first.said()
        (report,) = inbox.iterdir()
        assert receiver.taken == []
        with gpuwatch(tmp_path, url, delivery=delivery, report_schedule=cron) as second:
            second.until(lambda: bool(receiver.taken))
            second.until(
                lambda: 'gpuwatch_task_last_success_timestamp_seconds{task="report"}' in second.asked("/metrics")[1]
            )
            looks = second.said().count("cycle ")
            second.until(lambda: second.said().count("cycle ") > looks + 12)  # another look at the report came by
        with gpuwatch(tmp_path, url, delivery=delivery, report_schedule=cron) as third:
            third.until(lambda: bool(third.metric("gpuwatch_report_done_timestamp_seconds")))
            assert f'href="{report.name}/report.html"' in third.asked("/reports/")[1]
            assert "GPUs in the week of" in third.asked(f"/reports/{report.name}/report.html")[1]
    assert receiver.taken == [report.name]
    assert list(inbox.iterdir()) == [report]
    assert {"report.html", "report.md", "report.json", "teams.csv"} <= {path.name for path in report.iterdir()}
    week = json.loads((report / "report.json").read_text())
    due = soon.replace(second=0, microsecond=0)
    assert datetime.fromisoformat(week["end"]) == due
    assert datetime.fromisoformat(week["start"]) == due - timedelta(days=7)
    assert week["fleet"]["capacity_gpu_hours"] > 0


def test_a_report_that_was_missed_is_made_at_the_next_start_and_another_that_is_too_late_is_not(
    url: str, tmp_path: Path
) -> None:
    due = datetime.now(UTC) - timedelta(hours=2)
    cron = f"{due.minute} {due.hour} * * *"
    inbox = tmp_path / "inbox"
    options: dict[str, Any] = {"delivery": {"folder": str(inbox)}, "report_schedule": cron}
    with gpuwatch(tmp_path, url, **options, report_deadline_seconds=3600) as late:
        late.until(lambda: "cycle 3 in" in late.said())
        assert not inbox.exists()
    with gpuwatch(tmp_path, url, **options) as run:
        run.until(lambda: "was missed, and is made now" in run.said())
        run.until(lambda: bool(run.metric("gpuwatch_report_done_timestamp_seconds")))
    assert len(list(inbox.iterdir())) == 1


def test_a_report_waits_for_telemetry_that_does_not_answer(
    newest_prometheus: ServerBuild, telemetry: Path, tmp_path: Path
) -> None:
    due = datetime.now(UTC) - timedelta(hours=2)
    options: dict[str, Any] = {
        "delivery": {"folder": str(tmp_path / "inbox")},
        "report_schedule": f"{due.minute} {due.hour} * * *",
    }
    with gpuwatch(tmp_path, "", prometheus=f"http://127.0.0.1:{free_port()}", **options) as run:
        run.until(lambda: "report failed: " in run.said(), seconds=90)  # each source is asked four times: 20 s and more
        assert not (tmp_path / "inbox").exists()
        assert run.metric('gpuwatch_task_errors_total{task="report"}') == 1
    with running(newest_prometheus, telemetry) as url, gpuwatch(tmp_path, url, **options) as run:
        run.until(lambda: bool(run.metric("gpuwatch_report_done_timestamp_seconds")))
    assert len(list((tmp_path / "inbox").iterdir())) == 1


def test_without_telemetry_there_is_nothing_to_run_for(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpuwatch.app.cli.main", "run", "--no-cluster"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GPUWATCH_")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 1
    assert "set prometheus.url, or use --prometheus URL" in done.stderr
