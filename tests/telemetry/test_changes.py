"""State changes: the semantics of XIDs as in reference rules for PromQL, and what is no change at all; the events
behind an exporter's windowed count of XIDs; and since when a state that is on has been on."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.facts.model.telemetry import Gap, GapKind, Signal, StateChange, Statistic, WindowStat
from gpuwatch.sources.telemetry.changes import fewest_events, standing, state_changes
from gpuwatch.sources.telemetry.readings import read_stats
from gpuwatch.sources.telemetry.samples import Function, SampleStore
from telemetry.timeline import AT, EVERY, NOW, Timeline, Witness, gpu, held, said, seen, uuid

XID, TEMPERATURE, COUNT = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_GPU_TEMP", "DCGM_EXP_XID_ERRORS_COUNT"
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
A = uuid(1)
WINDOW, HOUR = 1800, 3600

Told = list[tuple[str, int, float | None, float]]
"""Device, or XID of a counted event; seconds before NOW, before, after."""


def ask(store: SampleStore, signal: Signal = Signal.XID_CODE) -> tuple[tuple[StateChange, ...], tuple[Gap, ...]]:
    window = HOUR if signal is Signal.XID_WINDOW_COUNT else WINDOW
    return state_changes(store, [signal], AT, window, *seen(store))


def told(timeline: Timeline, folder: Path, signal: Signal = Signal.XID_CODE) -> Told:
    changes, gaps = ask(timeline.store(folder), signal)
    assert gaps == ()
    assert {each.signal for each in changes} <= {signal}
    return [
        (each.variant or each.device, round(NOW - each.at.timestamp()), each.before, each.after) for each in changes
    ]


def xid(value: float | Callable[[float], float], *, ago: float = 3600, until: float = 0) -> Timeline:
    return Timeline().add(TEMPERATURE, gpu(1), 40).add(XID, gpu(1), value, ago=ago, until=until)


# XID rows carry err_code and err_msg: each code is a series of its own, none of which ever changes.
FELL = gpu(1, err_code="13", err_msg="Graphics Exception"), gpu(1, err_code="79", err_msg="fallen off the bus")


@pytest.mark.parametrize(
    ("timeline", "expected"),
    [
        pytest.param(xid(79), [], id="a steady code"),
        pytest.param(xid(lambda ago: 13 if ago >= 600 else 79), [(570, 13, 79)], id="13 to 79 is not 66 errors"),
        pytest.param(xid(lambda ago: 79 if ago >= 600 else 13), [(570, 79, 13)], id="79 to 13"),
        pytest.param(xid(79, ago=600), [(570, None, 79)], id="a first appearance has no before"),
        pytest.param(xid(0, ago=600), [], id="a first zero is the state before anything happened"),
        pytest.param(xid(lambda ago: 31 if 300 <= ago < 900 else 0), [(870, 0, 31), (270, 31, 0)], id="back to zero"),
        pytest.param(
            xid(lambda ago: 13 if ago >= 1200 else 43 if ago >= 600 else 79), [(1170, 13, 43), (570, 43, 79)], id="two"
        ),
        # The window is open on the left: a sample exactly `window` ago is outside of it.
        pytest.param(xid(lambda ago: 79 if ago <= WINDOW else 13), [], id="at the window's edge"),
        pytest.param(xid(lambda ago: 79 if ago < WINDOW else 13), [(WINDOW - EVERY, 13, 79)], id="within the window"),
        pytest.param(xid(13, until=2700).add(XID, gpu(1), 79, ago=900), [(870, 13, 79)], id="behind a hole"),
        pytest.param(xid(79, until=2700).add(XID, gpu(1), 79, ago=900), [], id="the same code behind a hole"),
        pytest.param(
            Timeline().add(XID, gpu(1) | held("a"), 79, until=900, ends=True).add(XID, gpu(1) | held("b"), 79, 900),
            [],
            id="a new Pod",
        ),
        pytest.param(
            Timeline()
            .add(TEMPERATURE, gpu(1), 40)
            .add(XID, FELL[0], 13, until=900, ends=True)
            .add(XID, FELL[1], 79, 900),
            [(870, 13, 79)],
            id="labels that follow the code",
        ),
        pytest.param(
            Timeline()
            .add(XID, gpu(1, GPU_I_ID="7"), lambda ago: 94 if ago < 600 else 0)
            .add(XID, gpu(1, GPU_I_ID="8"), lambda ago: 94 if ago < 600 else 0),
            [(570, 0, 94)],
            id="MIG rows are one GPU",
        ),
    ],
)
def test_what_is_a_change_of_a_code(
    timeline: Timeline, expected: list[tuple[int, float | None, float]], tmp_path: Path
) -> None:
    assert told(timeline, tmp_path) == [(A, *each) for each in expected]


def test_both_vocabularies_are_asked(tmp_path: Path) -> None:
    timeline = Timeline().add(XID, gpu(1), lambda ago: 79 if ago < 600 else 0)
    timeline.add("DCGM_FI_DEV_XID_ERROR", gpu(2), lambda ago: 48 if ago < 300 else 0)
    timeline.add(TEMPERATURE, gpu(1), 40).add("DCGM_FI_DEV_GPU_TEMP_CELSIUS", gpu(2), 40)
    assert told(timeline, tmp_path) == [(A, 600 - EVERY, 0, 79), (uuid(2), 300 - EVERY, 0, 48)]


TOTAL = "DCGM_EXP_XID_ERRORS_TOTAL"


def total(*series: tuple[dict[str, str], Callable[[float], float] | float, float]) -> Timeline:
    """Series of one GPU's XID totals, each with more labels, its values, and since how many seconds ago it exists."""
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40)
    for labels, values, ago in series:
        timeline.add(TOTAL, gpu(1) | labels, values, ago=ago)
    return timeline


def steps(*ago: float, start: float = 1) -> Callable[[float], float]:
    """A counter that rises by one at each of these seconds ago."""
    return lambda now: start + sum(now < each for each in ago)


@pytest.mark.parametrize(
    ("timeline", "expected"),
    [
        pytest.param(total(({"xid": "94"}, 3, 3600)), [], id="a steady total"),
        pytest.param(total(({"xid": "94"}, 1, 600)), [], id="its first sample has no time"),
        pytest.param(total(({"xid": "94"}, steps(600), 3600)), [("94", 570, 0, 1)], id="a rise"),
        pytest.param(
            total(({"xid": "94"}, steps(1200, 600, 600), 3600)), [("94", 1170, 0, 1), ("94", 570, 1, 3)], id="a burst"
        ),
        pytest.param(
            total(({"xid": "94"}, steps(900), 3600), ({"xid": "31"}, steps(300), 3600)),
            [("94", 870, 0, 1), ("31", 270, 0, 1)],
            id="two XIDs",
        ),
        pytest.param(total(({"xid": "94"}, lambda ago: 9 if ago >= 600 else 1, 3600)), [], id="a restart is no event"),
        pytest.param(
            total(({"xid": "94"}, lambda ago: 9 if ago >= 900 else 1 if ago >= 600 else 2, 3600)),
            [("94", 570, 0, 1)],
            id="a rise after a restart",
        ),
        pytest.param(
            total(({"xid": "94"}, steps(600), 3600), ({"xid": "94", "instance": "b"}, steps(560, start=4), 3600)),
            [("94", 570, 0, 1)],
            id="two exporters show one event",
        ),
        pytest.param(
            total(({"xid": "94"} | held("a"), 3, 3600), ({"xid": "94"} | held("b"), 4, 600)), [], id="a new Pod"
        ),
        # The window is open on the left, and the sample before it tells whether the first one in it is a rise.
        pytest.param(total(({"xid": "94"}, steps(WINDOW + EVERY), 3600)), [], id="before the window"),
        pytest.param(total(({"xid": "94"}, steps(WINDOW), 3600)), [("94", WINDOW - EVERY, 0, 1)], id="within it"),
    ],
)
def test_what_is_an_event_of_a_total(
    timeline: Timeline, expected: list[tuple[str, int, float, float]], tmp_path: Path
) -> None:
    assert told(timeline, tmp_path, Signal.XID_EVENTS_TOTAL) == expected


def test_recovery_action(tmp_path: Path) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40)
    timeline.add("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", gpu(1), lambda ago: 2 if ago < 600 else 0)
    assert told(timeline, tmp_path, Signal.RECOVERY_ACTION_CODE) == [(A, 600 - EVERY, 0, 2)]


def test_raw_samples_are_read_of_suspects_alone(tmp_path: Path) -> None:
    timeline = Timeline()
    for number in range(1, 9):
        timeline.add(XID, gpu(number), lambda ago, number=number: 79 if number == 5 and ago < 600 else 31)
    witness = Witness(timeline.store(tmp_path))
    there = seen(witness)
    witness.raw_selectors.clear()
    changes, _ = state_changes(witness, [Signal.XID_CODE], AT, WINDOW, *there)
    assert [change.device for change in changes] == [uuid(5)]
    assert [matcher.value for each in witness.raw_selectors for matcher in each.matchers] == [uuid(5)]


def test_blank_values_are_no_change(tmp_path: Path) -> None:
    timeline = xid(lambda ago: 2.0**63 if 300 <= ago < 900 else 13)
    changes, gaps = ask(timeline.store(tmp_path))
    assert changes == ()
    assert [gap.kind for gap in gaps] == [GapKind.IMPLAUSIBLE]


def test_a_refused_question_is_a_gap(tmp_path: Path) -> None:
    witness = Witness(xid(79).store(tmp_path), lambda e: e.selector.metric == XID and e.offset_seconds > 0)
    changes, gaps = ask(witness)
    assert changes == ()
    assert said(gaps) == [(GapKind.QUERY_FAILED, f"changes of xid_code ({XID})")]


def test_no_xid_series_may_be_the_good_case(tmp_path: Path) -> None:
    changes, gaps = ask(Timeline().add(TEMPERATURE, gpu(1), 40).store(tmp_path))
    assert changes == ()
    assert said(gaps) == [(GapKind.SIGNAL_MISSING, "signal xid_code")]
    assert "no such series before the first XID" in gaps[0].detail


def test_times_are_in_utc(tmp_path: Path) -> None:
    changes, _ = ask(xid(79, ago=600).store(tmp_path))
    assert [change.at for change in changes] == [datetime.fromtimestamp(NOW - 600 + EVERY, UTC)]


def energy(value: Callable[[float], float]) -> Timeline:
    """In millijoules, as the exporter counts."""
    return Timeline().add(TEMPERATURE, gpu(1), 40).add(ENERGY, gpu(1), value)


def test_a_counter_changes_only_where_it_begins_anew(tmp_path: Path) -> None:
    reset = energy(lambda ago: 9e9 - ago if ago >= 600 else 1e6 - ago)
    changes, _ = ask(reset.store(tmp_path), Signal.ENERGY_JOULES_TOTAL)
    [change] = changes
    assert (change.device, round(NOW - change.at.timestamp())) == (A, 600 - EVERY)
    assert change.before is not None
    assert change.after < change.before / 2


@pytest.mark.parametrize(
    "value",
    [
        lambda ago: 9e9 - ago,  # it grows
        lambda ago: 9e9 - ago - (5000 if round(ago / EVERY) % 2 else 0),  # a second exporter that is behind
    ],
)
def test_a_counter_that_goes_on_does_not(tmp_path: Path, value: Callable[[float], float]) -> None:
    changes, _ = ask(energy(value).store(tmp_path), Signal.ENERGY_JOULES_TOTAL)
    assert changes == ()


# Events behind a windowed count


def events_of(timeline: Timeline, folder: Path) -> Told:
    return told(timeline, folder, Signal.XID_WINDOW_COUNT)


def counting(code: str, number: int = 1, seconds: int = 300) -> dict[str, str]:
    """Labels of a counted XID."""
    return gpu(number, xid=code, window_size_in_ms=str(seconds * 1000))


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
    assert events_of(page(events), tmp_path) == expected


@pytest.mark.parametrize(("until", "events"), [(330, 1), (360, 2)])
def test_both_sides_of_how_long_one_event_can_be_seen(until: int, events: int, tmp_path: Path) -> None:
    """Five minutes, and half a minute for a page that was gathered before it was scraped."""
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40)
    for ago in (1800, 1800 - until):
        timeline.add(COUNT, counting("119"), 1, ago=ago + EVERY, until=ago)
    assert len(events_of(timeline, tmp_path)) == events


@pytest.mark.parametrize(("seconds", "events"), [(60, 8), (300, 3), (900, 1)])
def test_the_exporters_own_window_is_respected(seconds: int, events: int, tmp_path: Path) -> None:
    """A 1 that stands for 14.5 minutes."""
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40)
    timeline.add(COUNT, counting("119", seconds=seconds), 1, ago=1800, until=900)
    assert len(events_of(timeline, tmp_path)) == events


@pytest.mark.parametrize("labelled", [True, False])
def test_without_its_label_the_window_is_the_usual_one(labelled: bool, tmp_path: Path) -> None:
    assert [after for *_, after in events_of(page([2400, 1200], labelled=labelled), tmp_path)] == [
        1,
        2,
    ]


@pytest.mark.parametrize(("began", "news"), [(3600, []), (3570, [("119", 3570, 0.0, 1.0)])])
def test_what_was_counted_before_the_window_is_no_news(began: int, news: Told, tmp_path: Path) -> None:
    assert events_of(page([began]), tmp_path) == news


def test_an_old_event_that_a_long_window_still_counts_is_no_news(tmp_path: Path) -> None:
    assert events_of(page([5000], 7200), tmp_path) == []
    assert events_of(page([5000, 1000], 7200), tmp_path) == [("119", 990, 0, 1)]


@pytest.mark.parametrize(
    "rows",
    [
        [({}, 1800, 1740, True), ({}, 1590, 1500, True)],
        [(held("a"), 1800, 1650, True), (held("b"), 1650, 1500, True)],
        [({"instance": "node-a:9400"}, 1800, 1500, False), ({"instance": "node-a:9500"}, 1785, 1485, False)],
        [({"GPU_I_ID": each, "GPU_I_PROFILE": "1g.10gb"}, 1800, 1500, False) for each in ("7", "8")],
    ],
    ids=["a hole in the samples", "a new Pod", "a second exporter", "MIG instances repeat what their GPU counts"],
)
def test_one_event_is_never_two(rows: list[tuple[dict[str, str], float, float, bool]], tmp_path: Path) -> None:
    timeline = Timeline()
    for labels, ago, until, ends in rows:
        timeline.add(COUNT, counting("79") | labels, 1, ago=ago, until=until, ends=ends)
    assert events_of(timeline, tmp_path) == [("79", 1770, 0, 1)]


def test_each_xid_and_each_gpu_for_itself(tmp_path: Path) -> None:
    timeline = Timeline()
    for number, code, ago in ((1, "79", 1800), (1, "119", 1200), (2, "119", 600)):
        timeline.add(COUNT, counting(code, number), 1, ago=ago, until=ago - 300)
    changes, _ = ask(timeline.store(tmp_path), Signal.XID_WINDOW_COUNT)
    assert [(each.device, each.variant, each.after) for each in changes] == [
        (uuid(1), "79", 1),
        (uuid(1), "119", 1),
        (uuid(2), "119", 1),
    ]


def test_samples_are_read_of_the_few_that_counted_something(tmp_path: Path) -> None:
    timeline = page([1800])
    for number in (2, 3):
        timeline.add(COUNT, gpu(number, window_size_in_ms="300000"), 0).add(TEMPERATURE, gpu(number), 40)
    witness = Witness(timeline.store(tmp_path))
    assert len(ask(witness, Signal.XID_WINDOW_COUNT)[0]) == 1
    [selector] = [each for each in witness.raw_selectors if each.metric == COUNT]
    assert [matcher.value for matcher in selector.matchers] == [uuid(1)]
    quiet = Witness(page([]).store(tmp_path))
    assert ask(quiet, Signal.XID_WINDOW_COUNT)[0] == ()
    assert [each for each in quiet.raw_selectors if each.metric == COUNT] == []


def test_a_count_that_fails_is_a_gap(tmp_path: Path) -> None:
    store = page([1800]).store(tmp_path)
    refusing = Witness(store, lambda each: each.selector.metric == COUNT and each.function is Function.MAX)
    changes, gaps = ask(refusing, Signal.XID_WINDOW_COUNT)
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


# Since when


CODE, FAILED = (XID, Signal.XID_CODE), ("DCGM_FI_DEV_ROW_REMAP_FAILURE", Signal.ROW_REMAP_FAILED_STATE)
ERRORS = ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", Signal.ECC_DBE_VOLATILE_TOTAL)


@pytest.mark.parametrize(
    ("metric", "values", "began"),
    [
        pytest.param(FAILED, lambda ago: float(ago < 5 * HOUR), (5 * HOUR - EVERY, 0.0), id="it began within the day"),
        pytest.param(FAILED, lambda ago: float(not 2 * HOUR <= ago < 3 * HOUR), (2 * HOUR - EVERY, 0.0), id="again"),
        pytest.param(FAILED, lambda ago: 1.0, (24 * HOUR + 300 - EVERY, None), id="older than the day"),
        pytest.param(FAILED, lambda ago: 0.0, None, id="it is off"),
        pytest.param(ERRORS, lambda ago: (ago < 9 * HOUR) + (ago < HOUR), (9 * HOUR - EVERY, 0.0), id="a count"),
        pytest.param(
            (XID, Signal.XID_CODE), lambda ago: 31.0 if ago >= HOUR else 79.0, (HOUR - EVERY, 31.0), id="another code"
        ),
    ],
)
def test_it_began_with_the_newest_run_of_samples(
    metric: tuple[str, Signal], values: object, began: tuple[int, float | None] | None, tmp_path: Path
) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40)
    store = timeline.add(metric[0], gpu(1), values, ago=30 * HOUR).store(tmp_path)  # type: ignore[arg-type]
    schema, inventory = seen(store)
    readings, _ = read_stats(store, (WindowStat(metric[1], Statistic.LAST),), AT, schema, inventory)
    found = [
        (each.device, each.signal, round(NOW - each.at.timestamp()), each.before)
        for each in standing(store, readings, AT, schema, inventory)
    ]
    assert found == ([] if began is None else [(uuid(1), metric[1], *began)])
