"""Each row with its boundary: one step on either side of what holds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuwatch.account.ledger import (
    IDLE_SECONDS,
    LOAD_SECONDS,
    PAUSE_SECONDS,
    Floats,
    GpuHistory,
    HoldHistory,
    shares_of,
)
from gpuwatch.facts.model.ledger import Row

STEP = 300
HOUR = 3600 // STEP
NEVER, LONG_AGO = np.inf, -1e6
GIB = 2.0**30
UNKNOWN = np.nan
FREE = (Row.WAITED_FOR, Row.UNREACHABLE, Row.USABLE)


def line(count: int, *pieces: tuple[float, float]) -> Floats:
    """(steps, value) one after the other; the last value goes on."""
    values = np.concatenate([np.full(int(steps), value) for steps, value in pieces])
    return np.concatenate((values, np.full(max(count - len(values), 0), pieces[-1][1])))[:count]


def held(count: int, engine: Floats | float, **facts: Any) -> dict[tuple[str, bool], float]:
    """Steps by row and twin of a GPU that a Pod has all the time."""
    return summed(replace(free_gpu(count), holds=(pod(count, engine, **facts),)))


def pod(count: int, engine: Floats | float, **facts: Any) -> HoldHistory:
    """By default it runs since long before, worked, and has 10 GiB in memory and half as many SMs as engine."""
    activity = np.full(count, engine) if isinstance(engine, float) else engine
    known: dict[str, Any] = {
        "part_ratio": 1.0,
        "engine_ratio": activity,
        "sm_ratio": activity / 2,
        "memory_bytes": 10 * GIB,
        "running": 1.0,
        "init": 0.0,
        "started_seconds": LONG_AGO,
        "deleting": 0.0,
        "gang_waits": 0.0,
        "worked_before": True,
    }
    values: dict[str, Any] = {
        name: np.full(count, value) if isinstance(value, float) else value for name, value in (known | facts).items()
    }
    values["worked_since_start"] = values["worked_before"]
    return HoldHistory(pod="ml/train-0", container="main", workload="Job/ml/train", **values)


def free_gpu(count: int, **facts: Any) -> GpuHistory:
    known: dict[str, float] = {
        "exists_ratio": 1.0,
        "uncovered_ratio": 0.0,
        "missing": 0.0,
        "ready": 1.0,
        "withheld_ratio": 0.0,
        "cordoned": 0.0,
        "degraded": 0.0,
        "engine_ratio": 0.0,
        "memory_bytes": 0.0,
        Row.WAITED_FOR: 0.0,
        Row.UNREACHABLE: 0.0,
        Row.USABLE: 1.0,
    }
    values: dict[str, Any] = {name: np.full(count, value) for name, value in (known | facts).items()}
    values["free_ratios"] = {row: values.pop(row) for row in FREE}
    return GpuHistory(uuid="GPU-1", node="gpu-1", pool="a100", gpu_model="A100", **values)


def summed(gpu: GpuHistory) -> dict[tuple[str, bool], float]:
    found: dict[tuple[str, bool], float] = {}
    for _, shares in shares_of(gpu, STEP):
        for (row, unknown), share in shares.items():
            if share.sum() > 0:
                found[str(row), unknown] = found.get((str(row), unknown), 0.0) + float(share.sum())
    return found


def test_work_is_divided_by_engine_and_sm_activity() -> None:
    assert held(10, 0.8) == pytest.approx(
        {(Row.NO_KERNEL, False): 2.0, (Row.FEW_SMS, False): 4.0, (Row.USEFUL, False): 4.0}
    )
    # Rounding may show more SMs than engine; no share is below 0.
    assert held(10, 0.8, sm_ratio=0.9) == pytest.approx({(Row.NO_KERNEL, False): 2.0, (Row.USEFUL, False): 8.0})
    # Without SM activity it is not known how much of it was useful.
    assert held(10, 0.8, sm_ratio=UNKNOWN) == pytest.approx({(Row.NO_KERNEL, False): 2.0, (Row.USEFUL, True): 8.0})
    assert held(10, UNKNOWN) == {(Row.UNMEASURED, True): 10}


@pytest.mark.parametrize(
    ("steps", "row"), [(PAUSE_SECONDS // STEP - 2, None), (PAUSE_SECONDS // STEP - 1, Row.RESTING)]
)
def test_a_pause_of_work_is_no_idleness(steps: int, row: Row | None) -> None:
    """Between two steps of work, in which a part of it lies: one step in all."""
    engine = line(40, (5, 1.0), (steps, 0.0), (1, 1.0))
    rows = held(40, engine)
    assert rows == pytest.approx(
        {(Row.NO_KERNEL if row is None else row, False): steps, (Row.USEFUL, False): (40 - steps) / 2}
        | {(Row.FEW_SMS, False): (40 - steps) / 2}
    )


@pytest.mark.parametrize(
    ("steps", "memory", "row"),
    [
        (IDLE_SECONDS // STEP - 2, 10 * GIB, Row.RESTING),
        (IDLE_SECONDS // STEP - 1, 10 * GIB, Row.MODEL_LOADED),
        (IDLE_SECONDS // STEP - 1, GIB, Row.MODEL_LOADED),
        (IDLE_SECONDS // STEP - 1, GIB - 1, Row.ABANDONED),
    ],
)
def test_a_long_silence_is_idle_though_work_returns(steps: int, memory: float, row: Row) -> None:
    engine = line(100, (5, 0.02), (steps, 0.01), (1, 0.02))  # at most 0.01 is silent
    assert held(100, engine, memory_bytes=memory)[row, False] == steps


@pytest.mark.parametrize(
    ("steps", "row"), [(IDLE_SECONDS // STEP - 1, Row.SUSPECTED), (IDLE_SECONDS // STEP, Row.MODEL_LOADED)]
)
def test_a_silence_that_is_not_over_is_suspected_and_after_five_hours_idle(steps: int, row: Row) -> None:
    assert held(5 + steps, line(5 + steps, (5, 1.0), (steps, 0.0)))[row, False] == steps


def test_what_has_never_worked_starts_for_two_hours_and_is_never_used_then() -> None:
    steps = LOAD_SECONDS // STEP
    for worked_before in (None, True, False):  # the span does not begin before the Pod
        facts = {"started_seconds": line(50, (2, NEVER), (1, 2.0 * STEP)), "worked_before": worked_before}
        rows = held(50, 0.0, running=line(50, (2, 0.0), (1, 1.0)), **facts)
        assert rows == {(Row.PULL, False): 2, (Row.LOAD, False): steps, (Row.NEVER_USED, False): 48 - steps}


def test_a_pod_made_anew_under_the_same_name_has_not_worked() -> None:
    facts = {
        "part_ratio": line(60, (6, 1.0), (2, 0.0), (1, 1.0)),
        "started_seconds": line(60, (8, -9.0), (1, 8.0 * STEP)),
    }
    rows = held(60, line(60, (6, 1.0), (1, 0.0)), **facts)
    assert (rows[Row.LOAD, False], rows[Row.NEVER_USED, False]) == (24, 28)


def test_a_load_ends_with_the_first_work() -> None:
    rows = held(12, line(12, (6, 0.0), (6, 1.0)), started_seconds=-10.0, worked_before=False)
    assert rows == {(Row.LOAD, False): 6, (Row.USEFUL, False): 3, (Row.FEW_SMS, False): 3}
    # A later silence is one of work.
    rows = held(40, line(40, (6, 0.0), (6, 1.0), (28, 0.0)), started_seconds=-10.0, worked_before=False)
    assert rows[Row.SUSPECTED, False] == 28


def test_the_start_of_a_pod_in_its_parts() -> None:
    rows = held(
        20,
        line(20, (15, 0.0), (5, 1.0)),
        init=line(20, (2, 0.0), (3, 1.0), (1, 0.0)),
        running=line(20, (8, 0.0), (1, 1.0)),
        started_seconds=line(20, (8, NEVER), (1, 8.0 * STEP)),
        gang_waits=line(20, (12, 1.0), (1, 0.0)),
    )
    assert rows == {
        (Row.PULL, False): 5,  # before the init containers, and between them and the container's start
        (Row.INIT, False): 3,
        (Row.GANG, False): 4,
        (Row.LOAD, False): 3,
        (Row.USEFUL, False): 2.5,
        (Row.FEW_SMS, False): 2.5,
    }


def test_two_hours_of_load_begin_once_the_gang_has_started() -> None:
    waits = line(60, (30, 1.0), (1, 0.0))
    rows = held(60, 0.0, started_seconds=-1.0, worked_before=False, gang_waits=waits)
    assert rows == {(Row.GANG, False): 30, (Row.LOAD, False): 24, (Row.NEVER_USED, False): 6}
    waits = line(60, (20, 1.0), (10, UNKNOWN), (1, 0.0))
    rows = held(60, 0.0, started_seconds=-1.0, worked_before=False, gang_waits=waits)
    assert rows == {
        (Row.GANG, False): 20,
        (Row.LOAD, False): 14,  # 24 since the last step in which it is known to have waited, less 10
        (Row.LOAD, True): 20,
        (Row.NEVER_USED, False): 6,
    }


def test_a_restart_and_an_end_are_named_only_while_nothing_runs() -> None:
    running = line(30, (10, 1.0), (6, 0.0), (1, 1.0))
    started = line(30, (16, LONG_AGO), (1, 16.0 * STEP))
    rows = held(30, line(30, (10, 1.0), (9, 0.0), (1, 1.0)), running=running, started_seconds=started)
    assert rows == {
        (Row.RESTART, False): 6,
        (Row.LOAD, False): 3,
        (Row.USEFUL, False): 10.5,
        (Row.FEW_SMS, False): 10.5,
    }
    rows = held(10, line(10, (5, 1.0), (5, 0.0)), deleting=line(10, (3, 0.0), (1, 1.0)))
    assert rows == {(Row.RESTART, False): 5, (Row.USEFUL, False): 2.5, (Row.FEW_SMS, False): 2.5}


def test_a_silence_with_an_unmeasured_step_is_known_where_that_does_not_matter() -> None:
    gap = (1, UNKNOWN)
    short = held(30, line(30, (9, 1.0), (2, 0.0), gap, (1, 0.0), (1, 1.0)))
    assert (short[Row.NO_KERNEL, False], short[Row.UNMEASURED, True]) == (3, 1)
    # With the step 35 min long, without it twice a pause.
    edge = held(30, line(30, (9, 1.0), (3, 0.0), gap, (2, 0.0), (1, 1.0)))
    assert (edge[Row.SUSPECTED, True], edge[Row.UNMEASURED, True]) == (5, 1)
    # With the step idle for six hours, without it two rests: where a step has one scrape, a lost one costs the silence.
    long = held(80, line(80, (5, 1.0), (36, 0.0), gap, (36, 0.0), (1, 1.0)))
    assert (long[Row.SUSPECTED, True], long[Row.UNMEASURED, True]) == (72, 1)
    # Nobody measured whether it worked before, and it may have waited for its gang until the span began.
    early = held(80, line(80, (70, 0.0), (10, 1.0)), worked_before=None)
    assert (early[Row.LOAD, True], early[Row.SUSPECTED, True]) == (24, 46)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, {(Row.USABLE, False): 4}),
        ({"ready": 0.0}, {(Row.ABSENT, False): 4}),
        ({"ready": 0.0, "missing": UNKNOWN, "engine_ratio": UNKNOWN, "cordoned": UNKNOWN}, {(Row.ABSENT, False): 4}),
        ({"missing": 1.0, "ready": UNKNOWN}, {(Row.ABSENT, False): 4}),
        ({"ready": UNKNOWN}, {(Row.USABLE, True): 4}),
        ({"withheld_ratio": 0.25}, {(Row.ABSENT, False): 1, (Row.USABLE, False): 3}),
        ({"cordoned": 1.0}, {(Row.MAINTENANCE, False): 4}),
        ({"cordoned": 1.0, "degraded": 1.0}, {(Row.DEGRADED, False): 4}),
        ({"cordoned": 1.0, "degraded": UNKNOWN}, {(Row.MAINTENANCE, True): 4}),
        ({"cordoned": UNKNOWN}, {(Row.USABLE, True): 4}),
        ({"degraded": 1.0}, {(Row.USABLE, False): 4}),
        ({"engine_ratio": 0.02}, {(Row.OUTSIDE, False): 4}),
        ({"engine_ratio": 0.01}, {(Row.USABLE, False): 4}),
        ({"engine_ratio": UNKNOWN, "memory_bytes": GIB}, {(Row.OUTSIDE, False): 4}),
        ({"engine_ratio": UNKNOWN, "memory_bytes": GIB - 1}, {(Row.USABLE, True): 4}),
        ({"uncovered_ratio": 0.125}, {(Row.UNREACHABLE, False): 0.5, (Row.USABLE, False): 3.5}),
        ({"waited_for": 1.0, "usable": 0.0}, {(Row.WAITED_FOR, False): 4}),
        (
            {"waited_for": 0.25, "unreachable": 0.5, "usable": 0.125},
            {
                (Row.WAITED_FOR, False): 1,
                (Row.UNREACHABLE, False): 2,
                (Row.USABLE, False): 0.5,
                (Row.UNREACHABLE, True): 0.5,
            },
        ),
        (dict.fromkeys(FREE, UNKNOWN), {(Row.UNREACHABLE, True): 4}),
        (dict.fromkeys(FREE, UNKNOWN) | {"cordoned": 1.0}, {(Row.MAINTENANCE, False): 4}),
        (
            {"uncovered_ratio": 0.125, "unreachable": 0.5, "usable": 0.5},
            {(Row.UNREACHABLE, False): 0.5 + 1.75, (Row.USABLE, False): 1.75},
        ),
    ],
)
def test_what_no_pod_has(facts: dict[str, float], expected: dict[tuple[str, bool], float]) -> None:
    assert summed(free_gpu(4, **facts)) == pytest.approx(expected)


def test_a_pod_keeps_its_gpu_on_a_node_that_is_out_of_service() -> None:
    gpu, one = free_gpu(4, cordoned=1.0), pod(4, 1.0, part_ratio=0.5, sm_ratio=1.0)
    assert summed(replace(gpu, holds=(one,))) == {(Row.USEFUL, False): 2, (Row.MAINTENANCE, False): 2}
    # Two that together claim more than there is have a part each.
    both = (replace(one, part_ratio=np.ones(4)), replace(one, part_ratio=np.full(4, 0.5)))
    assert summed(replace(gpu, holds=both)) == pytest.approx({(Row.USEFUL, False): 4})
