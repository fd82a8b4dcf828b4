"""However a device's series is cut, the device is the same."""

import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.facts.model.telemetry import Signal, Statistic, WindowStat
from gpuwatch.sources.telemetry.discovery import discover
from gpuwatch.sources.telemetry.inventory import take_inventory
from gpuwatch.sources.telemetry.readings import read_stats
from telemetry.timeline import AT, EVERY, Timeline, gpu, held, uuid

METRIC, SIGNAL, WINDOW = "DCGM_FI_DEV_GPU_UTIL", Signal.GPU_UTIL_RATIO, 1800
STATISTICS = (
    WindowStat(SIGNAL, Statistic.AVG, WINDOW),
    WindowStat(SIGNAL, Statistic.MIN, WINDOW),
    WindowStat(SIGNAL, Statistic.MAX, WINDOW),
    WindowStat(SIGNAL, Statistic.COUNT, WINDOW),
    WindowStat(SIGNAL, Statistic.FRACTION_ABOVE, WINDOW, 0.3),
)


def answers(timeline: Timeline) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        store = timeline.store(Path(folder))
        schema, _ = discover(store, AT)
        readings, gaps = read_stats(store, STATISTICS, AT, schema, take_inventory(store, AT, schema, 3600))
        assert gaps == ()
        return [readings.values[stat.key][uuid(1)] for stat in STATISTICS]


@settings(max_examples=25)
@given(
    values=st.lists(st.integers(0, 100), min_size=60, max_size=60),
    cuts=st.sets(st.integers(1, 59), max_size=6),
    idle=st.sets(st.integers(0, 6)),
)
def test_pods_that_come_and_go_change_nothing(values: list[int], cuts: set[int], idle: set[int]) -> None:
    def value(ago: float) -> float:
        return float(values[60 - 1 - round(ago / EVERY)])

    whole = Timeline().add(METRIC, gpu(1), value, ago=WINDOW)
    cut = Timeline()
    edges = [0, *sorted(cuts), 60]
    holders = [{} if number in idle else held(f"pod-{number}") for number in range(len(edges))]
    for number, (begin, end) in enumerate(pairwise(edges)):
        ends = end < 60 and holders[number] != holders[number + 1]
        ago, until = WINDOW - begin * EVERY, WINDOW - end * EVERY
        cut.add(METRIC, gpu(1) | holders[number], value, ago=ago, until=until, ends=ends)
    assert answers(cut) == pytest.approx(answers(whole))


def test_without_an_interval_several_rows_count_as_being_there_at_once(tmp_path: Path) -> None:
    # One sample each: nothing tells a Pod after the other from two Pods that share.
    timeline = Timeline().add(METRIC, gpu(1) | held("a"), 50, ago=EVERY).add(METRIC, gpu(1) | held("b"), 50, ago=EVERY)
    store = timeline.store(tmp_path)
    schema, _ = discover(store, AT)
    assert schema.interval_seconds == 0
    count = WindowStat(SIGNAL, Statistic.COUNT, WINDOW)
    readings, _ = read_stats(store, [count], AT, schema, take_inventory(store, AT, schema, 3600))
    assert readings.values[count.key] == {uuid(1): 1}
