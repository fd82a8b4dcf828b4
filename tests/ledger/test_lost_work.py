"""Work that a failure made worthless: which ends are failures, and from when on the work is lost."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import nan
from typing import Any

import numpy as np
import pytest

from gpuwatch.account.lost_work import Ending, LostSpan, Run, can_lose, endings_of, lost_spans, runs_of
from gpuwatch.facts.model.ledger import ENDINGS, Checkpoint, ContainerHistory, LossCause

STEP = 300
COUNT = 100
START = datetime(2026, 3, 2, tzinfo=UTC)
BEGIN = START.timestamp()
ERROR, DONE, KILLED = (float(ENDINGS.index(cause)) for cause in (LossCause.ERROR, None, LossCause.OUT_OF_MEMORY))


def at(step: float) -> datetime:
    return START + timedelta(seconds=STEP * step)


def life(
    *runs: tuple[int, int], ended: Sequence[tuple[int, float]] = (), first: int = 0, last: int = COUNT
) -> ContainerHistory:
    """runs: steps from, to; a run that begins with the life began long before it. ended: from a step on, so."""
    running, started, codes, deleting = (np.full(COUNT, value) for value in (0.0, 0.0, nan, 0.0))
    for begin, end in runs:
        running[begin:end] = 1.0
        started[begin:] = BEGIN + STEP * begin + 7 if begin > first else BEGIN - 86400
    for since, code in ended:
        codes[since:] = code
    # Between two runs nothing is told.
    codes[(running == 0) & (np.arange(COUNT) < max((begin for begin, _ in runs), default=0))] = nan
    return ContainerHistory(
        pod="ml/train-0",
        container="main",
        first=first,
        running=array("f", running[first:last]),
        init=array("f", np.zeros(last - first)),
        started=array("d", started[first:last]),
        deleting=array("f", deleting[first:last]),
        ended=array("f", codes[first:last]),
    )


def ends(told: ContainerHistory, **facts: Any) -> list[tuple[int, LossCause]]:
    """As of a Pod that is gone, on a Node that was well."""
    blank = np.zeros(COUNT, np.bool_)
    known: dict[str, Any] = {
        "reported": ~blank,
        "not_ready": blank,
        "degraded": blank,
        "successors": (),
        "scheduled": False,
        "lives": False,
    }
    return [(each.end, each.cause) for each in endings_of(told, runs_of(told, BEGIN, STEP), **{**known, **facts})]


def span(begin: int, end: int) -> np.ndarray[Any, Any]:
    found = np.zeros(COUNT, np.bool_)
    found[begin:end] = True
    return found


def test_what_never_ran_and_a_run_that_goes_on_have_lost_nothing() -> None:
    assert ends(life()) == []
    assert ends(life((0, COUNT))) == []
    assert ends(life((0, 60), last=60), lives=True) == []  # kube-state-metrics is away since


def test_a_restart_is_a_failure_for_the_reason_that_is_told_while_it_runs_again() -> None:
    assert ends(life((0, 40), (45, COUNT), ended=[(45, KILLED)])) == [(40, LossCause.OUT_OF_MEMORY)]
    # Within one step, so that it never seems to stop.
    assert ends(life((0, 40), (40, COUNT), ended=[(40, ERROR)])) == [(40, LossCause.ERROR)]
    twice = life((0, 40), (45, 70), (71, COUNT), ended=[(45, ERROR), (71, KILLED)])
    assert ends(twice) == [(40, LossCause.ERROR), (70, LossCause.OUT_OF_MEMORY)]


def test_how_it_ended_for_good_is_told_as_long_as_its_pod_is_there() -> None:
    assert ends(life((0, 40), ended=[(40, ERROR)], last=50)) == [(40, LossCause.ERROR)]
    assert ends(life((0, 40), ended=[(40, DONE)], last=50)) == []
    assert ends(life((0, 40), last=50)) == [(40, LossCause.UNKNOWN)]  # the reason is not exported
    assert ends(life((0, 40), (45, 70), ended=[(45, ERROR), (70, DONE)], last=80)) == [(40, LossCause.ERROR)]


def test_a_pod_that_was_deleted_was_stopped_unless_another_takes_its_place() -> None:
    gone = life((0, 40), last=40)
    assert ends(gone) == []
    assert ends(gone, successors=(44,)) == [(40, LossCause.DISRUPTED)]
    assert ends(gone, successors=(39 + 24,)) == [(40, LossCause.DISRUPTED)]
    assert ends(gone, successors=(39 + 25,)) == []
    assert ends(gone, successors=(12,)) == []  # it ran beside it
    # The next one of a CronJob may have begun by its schedule.
    assert ends(gone, successors=(44,), scheduled=True) == [(40, LossCause.UNKNOWN)]


def test_a_pod_that_was_gone_when_kube_state_metrics_was_back_may_have_failed() -> None:
    assert ends(life((0, 40), last=40), reported=~span(40, 42)) == [(40, LossCause.UNKNOWN)]


def test_a_pod_that_was_made_anew_under_its_name_was_disrupted() -> None:
    again = life((0, 40), (45, COUNT))
    assert ends(again) == [(40, LossCause.UNKNOWN)]  # its row never went away, so its reason is not exported
    running = array("f", [*again.running[:40], *[nan] * 5, *again.running[45:]])
    assert ends(replace(again, running=running)) == [(40, LossCause.DISRUPTED)]
    # The new one has a row from the next step on, and no start yet.
    started = array("d", [*again.started[:40], *[0.0] * 5, *again.started[45:]])
    assert ends(replace(again, started=started)) == [(40, LossCause.DISRUPTED)]
    waits = replace(life((0, 40)), started=array("d", [*again.started[:40], *[0.0] * 60]))
    assert ends(waits, lives=True) == [(40, LossCause.DISRUPTED)]


def test_a_lost_node_and_a_degraded_gpu_are_causes() -> None:
    gone = life((0, 40), last=40)
    assert ends(gone, not_ready=span(39, 60)) == [(40, LossCause.NODE)]
    assert ends(gone, not_ready=span(42, 60)) == []
    # A drain, and the restart of the Node in the same step; then an eviction from a Node that was lost.
    drained = replace(gone, deleting=array("f", [*[0.0] * 39, 1.0]))
    assert ends(drained, not_ready=span(39, 60)) == []
    assert ends(drained, not_ready=span(38, 60)) == [(40, LossCause.NODE)]
    failed = life((0, 40), ended=[(40, ERROR)], last=50)
    assert ends(failed, degraded=span(38, 41)) == [(40, LossCause.GPU)]
    assert ends(failed, degraded=span(20, 30)) == [(40, LossCause.ERROR)]
    killed = life((0, 40), ended=[(40, KILLED)], last=50)
    assert ends(killed, degraded=span(38, 41)) == [(40, LossCause.OUT_OF_MEMORY)]


def test_where_no_start_is_exported_it_may_have_restarted_at_any_time() -> None:
    blind = replace(life((0, COUNT)), started=array("d", [nan] * COUNT))
    assert ends(blind, lives=True) == [(COUNT, LossCause.UNKNOWN)]


def failed(end: int, cause: LossCause = LossCause.ERROR) -> Ending:
    return Ending(end=end, cause=cause)


def ran(begin: int, end: int | None, start: float | None) -> Run:
    return Run(begin=begin, end=end, start=None if start is None else BEGIN + STEP * start)


def looked(saved: float, seen: float) -> Checkpoint:
    return Checkpoint(seen=at(seen), at=at(saved))


def lost(endings: Sequence[Ending], own: Sequence[Run], *checkpoints: Checkpoint) -> list[tuple[int, int, bool]]:
    found = lost_spans(endings, own, checkpoints, BEGIN, STEP)
    assert all(each.since == at(each.begin) for each in found if each.since is not None)
    return [(each.begin, each.end, each.unknown) for each in found]


@pytest.mark.parametrize(
    ("checkpoints", "expected"),
    [
        ([], (10, 40, True)),  # nobody knows what it saved
        ([looked(35.5, seen=41)], (36, 40, False)),  # it was the newest one after the failure
        ([looked(35.5, seen=39)], (36, 40, False)),  # or in the last step before it
        ([looked(35.5, seen=38.9)], (36, 40, True)),  # there may have been a newer one
        ([looked(35.5, seen=38.9), looked(50, seen=60)], (36, 40, True)),
        ([looked(30, seen=31), looked(35.5, seen=40), looked(50, seen=60)], (36, 40, False)),
        ([looked(30, seen=31), looked(40.5, seen=60)], (40, 40, False)),  # while it ended
        ([looked(50, seen=60)], (10, 40, True)),  # after it
    ],
)
def test_work_is_lost_since_the_newest_checkpoint(
    checkpoints: list[Checkpoint], expected: tuple[int, int, bool]
) -> None:
    assert lost([failed(40)], [ran(10, 40, start=10.5)], *checkpoints) == [expected]


def test_an_end_of_which_nobody_knows_whether_it_failed_is_unknown_since_the_checkpoint() -> None:
    assert lost([failed(40, LossCause.UNKNOWN)], [ran(10, 40, 10)], looked(35, seen=41)) == [(35, 40, True)]


def test_a_start_that_is_not_known_is_before_what_was_read() -> None:
    (found,) = lost_spans([failed(40)], [ran(10, 40, start=None)], (), BEGIN, STEP)
    assert found == LostSpan(begin=-1, end=40, cause=LossCause.ERROR, unknown=True, since=None)
    (found,) = lost_spans([failed(40)], [ran(0, 40, start=-500)], (), BEGIN, STEP)
    assert (found.begin, found.since) == (-500, at(-500))


def test_two_failures_since_one_checkpoint_lose_each_step_once() -> None:
    runs = [ran(10, 40, 10), ran(42, 60, 42)]
    assert lost([failed(40), failed(60)], runs, looked(35, seen=61)) == [(35, 40, False), (40, 60, False)]


def test_a_checkpoint_after_the_next_start_is_of_the_next_run() -> None:
    runs = [ran(10, 40, 10), ran(40, None, 40.4)]
    assert lost([failed(40)], runs, looked(35, seen=40.3), looked(40.5, seen=41)) == [(35, 40, False)]
    assert lost([failed(40)], runs, looked(35, seen=38), looked(40.3, seen=41)) == [(40, 40, False)]


def test_a_crash_loop_is_one_failure_and_what_follows_it_has_its_cause() -> None:
    runs = [ran(10, 40, 10), ran(41, 43, 41), ran(44, 46, 44)]
    endings = [failed(40, LossCause.UNKNOWN), failed(43, LossCause.GPU), failed(46)]
    (found,) = lost_spans(endings, runs, (), BEGIN, STEP)
    assert (found.begin, found.end, found.cause) == (10, 46, LossCause.GPU)


def test_only_members_that_were_there_lose_their_work() -> None:
    assert lost([failed(40)], [ran(10, 30, 10)]) == []  # it had ended long before
    assert lost([failed(40)], [ran(50, None, 50)]) == []
    assert lost([failed(40)], [ran(10, 36, 10)]) == [(10, 40, True)]
    assert lost([failed(40)], [ran(10, None, 10)]) == [(10, 40, True)]  # its own container goes on


@pytest.mark.parametrize(
    ("workload", "loses"),
    [
        ("Job/ml/train", True),
        ("PyTorchJob/ml/train", True),
        ("Pod/ml/train", True),
        ("OwnKind/ml/train", True),
        ("Deployment/ml/chat", False),
        ("Notebook/ml/ann", False),
    ],
)
def test_work_towards_an_end_can_be_lost(workload: str, loses: bool) -> None:
    assert can_lose(workload) == loses
