"""Events behind an exporter's windowed count of XIDs: how many there were at least, and when they were first seen."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.facts.model.telemetry import Gap, Signal, StateChange
from gpuwatch.sources.telemetry.changes import fewest_events, state_changes
from gpuwatch.sources.telemetry.discovery import discover
from gpuwatch.sources.telemetry.inventory import take_inventory
from gpuwatch.sources.telemetry.samples import Function, SampleStore
from telemetry.timeline import AT, EVERY, NOW, Timeline, Witness, gpu, held, uuid

COUNT, TEMPERATURE = "DCGM_EXP_XID_ERRORS_COUNT", "DCGM_FI_DEV_GPU_TEMP"
WINDOW = 3600

Told = list[tuple[str, int, float | None, float]]
"""XID, seconds before NOW, before, after."""


def ask(store: SampleStore, window: int = WINDOW) -> tuple[tuple[StateChange, ...], tuple[Gap, ...]]:
    schema, _ = discover(store, AT)
    return state_changes(store, [Signal.XID_WINDOW_COUNT], AT, window, schema, take_inventory(store, AT, schema, 3600))


def told(timeline: Timeline, folder: Path, window: int = WINDOW) -> Told:
    changes, gaps = ask(timeline.store(folder), window)
    assert gaps == ()
    return [(each.variant, round(NOW - each.at.timestamp()), each.before, each.after) for each in changes]


def counts(events: Sequence[float], seconds: float) -> Callable[[float], float]:
    """The count at so many seconds before NOW, of events that were so many seconds before NOW."""
    return lambda now: sum(event - seconds < now <= event for event in events)


def page(events: Sequence[float], seconds: float = 300, *, labelled: bool = True, **labels: str) -> Timeline:
    """What dcgm-exporter shows of XID 119: a row while there is one in its window, else the row without an XID."""
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40, ago=9000)
    size = {"window_size_in_ms": str(round(seconds * 1000))} if labelled else {}
    count = counts(events, seconds)
    for now in range(9000 - EVERY, -1, -EVERY):
        row = {"xid": "119"} if count(now) else {}
        timeline.add(COUNT, gpu(1) | size | row | labels, count(now), ago=now + EVERY, until=now)
    return timeline


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], []),
        ([1800], [("119", 1800, 0, 1)]),
        ([3000, 2000, 1000], [("119", 3000, 0, 1), ("119", 1980, 1, 2), ("119", 990, 2, 3)]),
        # The second while the first is counted: 1, 2, 1.
        ([1800, 1650], [("119", 1800, 0, 1), ("119", 1650, 1, 2)]),
        ([1800, 1800, 1800], [("119", 1800, 0, 3)]),
        # As one ends the next begins: the count stays 1, for longer than one event can be counted.
        ([1800, 1500], [("119", 1800, 0, 1), ("119", 1440, 1, 2)]),
    ],
    ids=["none", "one", "three apart", "overlapping", "three at once", "one after the other"],
)
def test_events_are_told_apart(events: list[float], expected: Told, tmp_path: Path) -> None:
    assert told(page(events), tmp_path) == expected


@pytest.mark.parametrize(("until", "events"), [(330, 1), (360, 2)])
def test_both_sides_of_how_long_one_event_can_be_seen(until: int, events: int, tmp_path: Path) -> None:
    """Five minutes, and half a minute for a page that was gathered before it was scraped."""
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40)
    timeline.add(COUNT, gpu(1, xid="119", window_size_in_ms="300000"), 1, ago=1800 + EVERY, until=1800)
    timeline.add(COUNT, gpu(1, xid="119", window_size_in_ms="300000"), 1, ago=1800 - until + EVERY, until=1800 - until)
    assert len(told(timeline, tmp_path)) == events


@pytest.mark.parametrize(("seconds", "events"), [(60, 8), (300, 3), (900, 1)])
def test_the_exporters_own_window_is_respected(seconds: int, events: int, tmp_path: Path) -> None:
    """A 1 that stands for 14.5 minutes."""
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40)
    timeline.add(COUNT, gpu(1, xid="119", window_size_in_ms=str(seconds * 1000)), 1, ago=1800, until=900)
    assert len(told(timeline, tmp_path)) == events


@pytest.mark.parametrize("labelled", [True, False])
def test_without_its_label_the_window_is_the_usual_one(labelled: bool, tmp_path: Path) -> None:
    assert [after for *_, after in told(page([2400, 1200], labelled=labelled), tmp_path)] == [1, 2]


@pytest.mark.parametrize(("began", "news"), [(3600, []), (3570, [("119", 3570, 0.0, 1.0)])])
def test_what_was_counted_before_the_window_is_no_news(began: int, news: Told, tmp_path: Path) -> None:
    assert told(page([began]), tmp_path) == news


def test_an_old_event_that_a_long_window_still_counts_is_no_news(tmp_path: Path) -> None:
    assert told(page([5000], 7200), tmp_path) == []
    assert told(page([5000, 1000], 7200), tmp_path) == [("119", 990, 0, 1)]


def test_a_hole_in_the_samples_makes_no_second_event(tmp_path: Path) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40)
    for ago, until in ((1800, 1740), (1590, 1500)):
        timeline.add(COUNT, gpu(1, xid="79", window_size_in_ms="300000"), 1, ago=ago, until=until, ends=True)
    assert told(timeline, tmp_path) == [("79", 1770, 0, 1)]


def test_a_new_pod_makes_no_second_event(tmp_path: Path) -> None:
    timeline = Timeline()
    labels = gpu(1, xid="79", window_size_in_ms="300000")
    timeline.add(COUNT, labels | held("a"), 1, ago=1800, until=1650, ends=True)
    timeline.add(COUNT, labels | held("b"), 1, ago=1650, until=1500, ends=True)
    assert told(timeline, tmp_path) == [("79", 1770, 0, 1)]


def test_a_second_exporter_makes_no_second_event(tmp_path: Path) -> None:
    timeline = Timeline()
    for instance, shift in (("node-a:9400", 0), ("node-a:9500", 15)):
        labels = gpu(1, xid="79", window_size_in_ms="300000", instance=instance)
        timeline.add(COUNT, labels, 1, ago=1800 - shift, until=1500 - shift)
    assert told(timeline, tmp_path) == [("79", 1770, 0, 1)]


def test_each_xid_and_each_gpu_for_itself(tmp_path: Path) -> None:
    timeline = Timeline()
    for number, code, ago in ((1, "79", 1800), (1, "119", 1200), (2, "119", 600)):
        labels = gpu(number, xid=code, window_size_in_ms="300000")
        timeline.add(COUNT, labels, 1, ago=ago, until=ago - 300)
    changes, _ = ask(timeline.store(tmp_path))
    assert [(each.device, each.variant, each.after) for each in changes] == [
        (uuid(1), "79", 1),
        (uuid(1), "119", 1),
        (uuid(2), "119", 1),
    ]


def test_mig_instances_repeat_what_their_gpu_counts(tmp_path: Path) -> None:
    timeline = Timeline()
    for instance in ("7", "8"):
        labels = gpu(1, GPU_I_ID=instance, GPU_I_PROFILE="1g.10gb", xid="79", window_size_in_ms="300000")
        timeline.add(COUNT, labels, 1, ago=1800, until=1500)
    assert told(timeline, tmp_path) == [("79", 1770, 0, 1)]


def test_samples_are_read_of_the_few_that_counted_something(tmp_path: Path) -> None:
    timeline = page([1800])
    for number in (2, 3):
        timeline.add(COUNT, gpu(number, window_size_in_ms="300000"), 0).add(TEMPERATURE, gpu(number), 40)
    witness = Witness(timeline.store(tmp_path))
    assert len(ask(witness)[0]) == 1
    [selector] = [each for each in witness.raw_selectors if each.metric == COUNT]
    assert [matcher.value for matcher in selector.matchers] == [uuid(1)]
    quiet = Witness(page([]).store(tmp_path))
    assert ask(quiet)[0] == ()
    assert [each for each in quiet.raw_selectors if each.metric == COUNT] == []


def test_a_question_that_fails_is_a_gap(tmp_path: Path) -> None:
    store = page([1800]).store(tmp_path)
    refusing = Witness(store, lambda each: each.selector.metric == COUNT and each.function is Function.MAX)
    changes, gaps = ask(refusing)
    assert changes == ()
    assert [gap.what for gap in gaps] == [f"changes of xid_window_count ({COUNT})"]


@given(
    events=st.lists(st.integers(0, 3600), max_size=8),
    interval=st.sampled_from([15, 30, 60]),
    phase=st.integers(0, 59),
    seconds=st.sampled_from([60, 300, 900]),
    late=st.integers(0, 30),
    lost=st.sets(st.integers(0, 300), max_size=150),
)
def test_never_more_than_there_were(
    events: list[int], interval: int, phase: int, seconds: int, late: int, lost: set[int]
) -> None:
    """Whatever scrapes are lost, and however old the exporter's page is (up to half a minute)."""
    scrapes = [time for number, time in enumerate(range(phase, 5400, interval)) if number not in lost]
    samples = {
        float(time): sum(event <= time - late * (time % 7 > 3) < event + seconds for event in events)
        for time in scrapes
    }
    samples = {time: count for time, count in samples.items() if count}
    found = list(fewest_events(samples, seconds + 30))
    assert max(samples.values(), default=0) <= sum(count for _, count in found) <= len(events)
    alone = [one for one in events if all(abs(one - other) > seconds + 90 for other in events if other is not one)]
    if len(alone) == len(events) and not lost and not late:
        assert sum(count for _, count in found) == len(events)
