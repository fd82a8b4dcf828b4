"""Readings: units, preferences, Pods that come and go, shared GPUs, MIG, blanks, appearance."""

import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.facts.model.telemetry import Gap, GapKind, Readings, Signal, Statistic, WindowStat
from gpuwatch.sources.telemetry.discovery import discover
from gpuwatch.sources.telemetry.inventory import Inventory
from gpuwatch.sources.telemetry.readings import read_stats
from gpuwatch.sources.telemetry.recording import open_recording
from gpuwatch.sources.telemetry.samples import Function, SampleStore
from telemetry.timeline import AT, EVERY, FIXTURES, SAMPLES, Timeline, Witness, gpu, held, needs_samples, seen, uuid

UTIL, TEMPERATURE, USED = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_FB_USED"
ENGINE, XID_TOTAL = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_EXP_XID_ERRORS_TOTAL"
REPLAYS = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"
A = uuid(1)
HOUR = 3600


def stat(signal: Signal, statistic: Statistic, window_seconds: int = 0, parameter: float | None = None) -> WindowStat:
    return WindowStat(signal, statistic, window_seconds, parameter)


def read(store: SampleStore, *stats: WindowStat) -> tuple[Readings, tuple[Gap, ...], Inventory]:
    schema, inventory = seen(store)
    readings, gaps = read_stats(store, stats, AT, schema, inventory)
    return readings, gaps, inventory


def values(store: SampleStore, asked: WindowStat) -> dict[str, float]:
    readings, gaps, _ = read(store, asked)
    assert gaps == ()
    return dict(readings.values[asked.key])


def of_page(page: str, asked: WindowStat) -> dict[str, float]:
    return values(open_recording([FIXTURES / page], AT), asked)


# Units


@pytest.mark.parametrize(
    ("page", "signal", "expected"),
    [
        ("honor-labels-false.prom", Signal.MEMORY_USED_BYTES, {uuid(1): 61440 * 2**20, uuid(2): 4 * 2**20}),
        ("honor-labels-false.prom", Signal.GPU_UTIL_RATIO, {uuid(1): 0.97, uuid(2): 0}),
        ("dcgm49.prom", Signal.MEMORY_USED_BYTES, {uuid(0x21): 40 * 2**30, uuid(0x22): 4 * 2**20}),
        ("dcgm49.prom", Signal.GPU_UTIL_RATIO, {uuid(0x21): 0.62, uuid(0x22): 0}),
        ("ratio-as-percent.prom", Signal.GPU_UTIL_RATIO, {uuid(0x23): 0.62, uuid(0x24): 0.01}),
        ("mig.prom", Signal.ENERGY_JOULES_TOTAL, {uuid(0x51): 8123456.789, uuid(0x52): 0.123}),
        (
            "amd-mi300x.prom",
            Signal.MEMORY_USED_BYTES,
            {
                "mi-a:692409005408:0": 150000 * 2**20,
                "mi-a:692409005409/0": 100 * 2**20,
                "mi-a:692409005409/1": 9000 * 2**20,
            },
        ),
        ("xpum1.prom", Signal.MEMORY_USED_BYTES, {"01000000-0000-0000-0000-0000003a0000": 3 * 2**30}),  # both tiles
        ("xpum1.prom", Signal.BUSY_RATIO, {"01000000-0000-0000-0000-0000003a0000": 0.75}),  # the busier one
        ("xpum1.prom", Signal.MEMORY_TEMPERATURE_CELSIUS, {"01000000-0000-0000-0000-0000003a0000": 62}),
        (
            "gaudi.prom",
            Signal.POWER_WATTS,
            {"01P0-HL2080A0-15-TNPS34-00-07-00": 412, "01P0-HL2080A0-15-TNPS34-01-07-01": 98},
        ),
    ],
)
def test_last_in_si_units(page: str, signal: Signal, expected: dict[str, float]) -> None:
    assert of_page(page, stat(signal, Statistic.LAST)) == expected


def test_physical_signals_belong_to_the_gpu_and_the_others_to_its_instances() -> None:
    store = open_recording([FIXTURES / "mig.prom"], AT)
    power, busy = stat(Signal.POWER_WATTS, Statistic.LAST), stat(Signal.BUSY_RATIO, Statistic.LAST)
    readings, _, inventory = read(store, power, busy)
    assert readings.values[power.key] == {uuid(0x51): 210.4, uuid(0x52): 61}  # once, not once per instance
    assert readings.values[busy.key] == {f"{uuid(0x51)}/2": 0, f"{uuid(0x51)}/7": 0.9, uuid(0x52): 0}
    instance = inventory.devices[0]
    assert readings.get(power, instance) == 210.4


def test_power_of_an_amd_gpu_is_on_its_first_partition() -> None:
    expected = {"mi-a:692409005408:0": 612.0, "mi-a:692409005409": 180.0}
    # The zeros of the other partitions are no measurement.
    for statistic, window in ((Statistic.LAST, 0), (Statistic.MIN, 900), (Statistic.AVG, 900)):
        assert of_page("amd-mi300x.prom", stat(Signal.POWER_WATTS, statistic, window)) == expected


@needs_samples
def test_a_real_mig_page() -> None:
    store = open_recording([SAMPLES / "dcgm" / "runai-a100-mig-1g5gb-active.prom"], AT)
    gpu_uuid = "GPU-7099682b-a20d-2bcc-74ab-b9060454d81e"
    asked = {
        Signal.BUSY_RATIO: {f"{gpu_uuid}/9": 0.999892},
        Signal.MEMORY_USED_BYTES: {f"{gpu_uuid}/9": 4384 * 2**20},
        Signal.POWER_WATTS: {gpu_uuid: 115.294},
        Signal.SM_CLOCK_HERTZ: {gpu_uuid: 1.41e9},
        Signal.ENERGY_JOULES_TOTAL: {gpu_uuid: pytest.approx(27151.028)},
    }
    readings, gaps, _ = read(store, *(stat(signal, Statistic.LAST) for signal in asked))
    assert gaps == ()
    for signal, expected in asked.items():
        assert readings.values[stat(signal, Statistic.LAST).key] == expected


# Statistics


def ramp(folder: Path) -> SampleStore:
    """1, 2, … 120 over the hour, one each 30 s."""
    return Timeline().add(TEMPERATURE, gpu(1), lambda ago: (HOUR - ago) / 30).store(folder)


def relay(folder: Path) -> SampleStore:
    """15 min nobody at 0 %, 30 min Pod a at 80 %, 15 min Pod b at 40 %: one device, three series."""
    timeline = Timeline()
    timeline.add(UTIL, gpu(1), 0, ago=3600, until=2700, ends=True)
    timeline.add(UTIL, gpu(1) | held("a"), 80, ago=2700, until=900, ends=True)
    timeline.add(UTIL, gpu(1) | held("b"), 40, ago=900)
    timeline.add(TEMPERATURE, gpu(1) | held("b"), 40)
    return timeline.store(folder)


def shared(folder: Path) -> SampleStore:
    """Two Pods on one GPU, each with all of its values; the second Pod's neighbour before it was another one."""
    timeline = Timeline()
    for metric, value in ((UTIL, 60.0), (TEMPERATURE, 50.0)):
        timeline.add(metric, gpu(1, vgpu="0") | held("a"), value)
        timeline.add(metric, gpu(1, vgpu="1") | held("b"), value, ago=3600, until=1800, ends=True)
        timeline.add(metric, gpu(1, vgpu="1") | held("c"), value, ago=1800)
    timeline.add(REPLAYS, gpu(1, vgpu="0") | held("a"), lambda ago: (3600 - ago) / 30)
    timeline.add(REPLAYS, gpu(1, vgpu="1") | held("b"), lambda ago: (3600 - ago) / 30, ago=3600, until=1800, ends=True)
    timeline.add(REPLAYS, gpu(1, vgpu="1") | held("c"), lambda ago: (3600 - ago) / 30, ago=1800)
    return timeline.store(folder)


def per_process(folder: Path) -> SampleStore:
    """The device is at 90 % and two processes have 70 % and 20 % of it; the second one for half an hour only."""
    timeline = Timeline().add(TEMPERATURE, gpu(1), 50)
    timeline.add(UTIL, gpu(1), 90).add(UTIL, gpu(1) | held("a"), 70).add(UTIL, gpu(1) | held("b"), 20, ago=1800)
    return timeline.store(folder)


def handed_on(folder: Path) -> SampleStore:
    """A counter that two Pods saw one after the other."""
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40)
    timeline.add(REPLAYS, gpu(1) | held("a"), lambda ago: (3600 - ago) / 30, ago=3600, until=1800, ends=True)
    return timeline.add(REPLAYS, gpu(1) | held("b"), lambda ago: (3600 - ago) / 30, ago=1800).store(folder)


def burning(folder: Path) -> SampleStore:
    """100 W for an hour are 360 kJ; the metric counts millijoules."""
    energy = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    return Timeline().add(energy, gpu(1), lambda ago: 1e9 + (7200 - ago) * 1e5, ago=7200).store(folder)


def scraped_twice(folder: Path) -> SampleStore:
    """Two exporters on one host."""
    return Timeline().add(UTIL, gpu(1, instance="a:9400"), 60).add(UTIL, gpu(1, instance="b:9400"), 60).store(folder)


def upgraded(folder: Path) -> SampleStore:
    """An exporter of the new vocabulary took over in the middle of the hour."""
    timeline = Timeline().add(UTIL, gpu(1), 90, ago=3600, until=1800, ends=True)
    newer = gpu(1, Hostname="", hostname="node-a")
    return timeline.add("DCGM_FI_DEV_GPU_UTIL_RATIO", newer, 0.3, ago=1800).store(folder)


DEGREES, SHARE, COUNTER = Signal.GPU_TEMPERATURE_CELSIUS, Signal.GPU_UTIL_RATIO, Signal.PCIE_REPLAYS_TOTAL


@pytest.mark.parametrize(
    ("history", "signal", "statistic", "window", "parameter", "expected"),
    [
        (ramp, DEGREES, Statistic.LAST, 0, None, 120),
        (ramp, DEGREES, Statistic.MIN, HOUR, None, 1),
        (ramp, DEGREES, Statistic.MAX, HOUR, None, 120),
        (ramp, DEGREES, Statistic.AVG, HOUR, None, 60.5),
        (ramp, DEGREES, Statistic.COUNT, HOUR, None, 120),
        (ramp, DEGREES, Statistic.MIN, 600, None, 101),
        (ramp, DEGREES, Statistic.COUNT, 600, None, 20),
        (ramp, DEGREES, Statistic.QUANTILE, HOUR, 0.5, 60.5),
        (ramp, DEGREES, Statistic.FRACTION_ABOVE, HOUR, 90.0, 30 / 120),
        (ramp, DEGREES, Statistic.FRACTION_ABOVE, HOUR, 89.9, 31 / 120),
        (ramp, DEGREES, Statistic.CHANGES, HOUR, None, 119),
        (burning, Signal.ENERGY_JOULES_TOTAL, Statistic.INCREASE, HOUR, None, 360e3),
        (relay, SHARE, Statistic.AVG, HOUR, None, 0.5),  # (0·30 + 0.8·60 + 0.4·30) / 120, not the mean of the series
        (relay, SHARE, Statistic.COUNT, HOUR, None, 120),
        (relay, SHARE, Statistic.MIN, HOUR, None, 0),
        (relay, SHARE, Statistic.MAX, HOUR, None, 0.8),
        (relay, SHARE, Statistic.FRACTION_ABOVE, HOUR, 0.5, 0.5),
        (relay, SHARE, Statistic.QUANTILE, HOUR, 0.5, 0.8),  # the greatest of the three series' medians
        # Each piece is extrapolated to its own edges.
        (handed_on, COUNTER, Statistic.INCREASE, HOUR, None, pytest.approx(120, abs=2)),
        (handed_on, COUNTER, Statistic.CHANGES, HOUR, None, 118),  # 59 in each
        (upgraded, SHARE, Statistic.AVG, HOUR, None, 0.6),
        (upgraded, SHARE, Statistic.COUNT, HOUR, None, 120),
        (scraped_twice, SHARE, Statistic.COUNT, HOUR, None, 120),
        (shared, SHARE, Statistic.AVG, HOUR, None, 0.6),
        (shared, SHARE, Statistic.COUNT, HOUR, None, 120),
        (shared, COUNTER, Statistic.CHANGES, HOUR, None, 119),
        (shared, COUNTER, Statistic.INCREASE, HOUR, None, pytest.approx(120, abs=2)),
        # The row of the device answers where there are rows per process.
        (per_process, SHARE, Statistic.AVG, HOUR, None, 0.9),
        (per_process, SHARE, Statistic.MIN, HOUR, None, 0.9),
        (per_process, SHARE, Statistic.MAX, HOUR, None, 0.9),
        (per_process, SHARE, Statistic.LAST, 0, None, 0.9),
        (per_process, SHARE, Statistic.COUNT, HOUR, None, 120),
        (per_process, SHARE, Statistic.FRACTION_ABOVE, HOUR, 0.8, 1.0),
    ],
)
def test_statistics(
    tmp_path: Path,
    history: Callable[[Path], SampleStore],
    signal: Signal,
    statistic: Statistic,
    window: int,
    parameter: float | None,
    expected: Any,
) -> None:
    about = pytest.approx(expected) if isinstance(expected, int | float) else expected
    assert values(history(tmp_path), stat(signal, statistic, window, parameter)) == {A: about}


def test_a_bound_in_si_is_asked_in_the_metrics_unit(tmp_path: Path) -> None:
    # 0.29 / 0.01 is 28.999999999999996 in floating point; 29 % must not be above 0.29.
    timeline = Timeline().add(UTIL, gpu(1), 29).add(UTIL, gpu(2), 30)
    asked = stat(Signal.GPU_UTIL_RATIO, Statistic.FRACTION_ABOVE, HOUR, 0.29)
    assert values(timeline.store(tmp_path), asked) == {A: 0, uuid(2): 1}


def test_bits(tmp_path: Path) -> None:
    reasons = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
    timeline = Timeline().add(reasons, gpu(1), lambda ago: 0x44 if ago < HOUR / 4 else 0x4)
    timeline.add(reasons, gpu(2), 0x4)
    asked = stat(Signal.CLOCK_EVENT_REASONS_BITS, Statistic.FRACTION_BITS, HOUR, 0x8 | 0x40 | 0x80)
    assert values(timeline.store(tmp_path), asked) == {A: pytest.approx(0.25), uuid(2): 0}


# Pods that follow each other


def test_samples_are_counted_only_for_devices_whose_answer_depends_on_them(tmp_path: Path) -> None:
    timeline = Timeline().add(UTIL, gpu(2), 70)
    timeline.add(UTIL, gpu(1) | held("a"), 80, ago=3600, until=1800, ends=True)
    timeline.add(UTIL, gpu(1) | held("b"), 40, ago=1800)
    witness = Witness(timeline.store(tmp_path))
    asked = stat(Signal.GPU_UTIL_RATIO, Statistic.AVG, HOUR)
    readings, gaps, _ = read(witness, asked)
    assert gaps == ()
    assert readings.values[asked.key] == {A: pytest.approx(0.6), uuid(2): 0.7}
    counting = [each for each in witness.asked if each.function is Function.COUNT]
    assert len(counting) == 1
    assert [matcher.value for matcher in counting[0].selector.matchers] == [A]


def test_one_row_for_each_device_needs_one_question_for_each_statistic(tmp_path: Path) -> None:
    timeline = Timeline()
    for number in (1, 2, 3):
        timeline.add(UTIL, gpu(number) | held(f"pod-{number}"), 10.0 * number)
    witness = Witness(timeline.store(tmp_path))
    schema, inventory = seen(witness)
    witness.asked.clear()
    asked = [
        stat(Signal.GPU_UTIL_RATIO, statistic, HOUR)
        for statistic in (Statistic.AVG, Statistic.MAX, Statistic.CHANGES, Statistic.INCREASE)
    ]
    read_stats(witness, asked, AT, schema, inventory)
    assert [each.function for each in witness.asked] == ["avg", "max", "changes", "increase"]


def test_samples_that_are_counted_already_are_not_counted_again(tmp_path: Path) -> None:
    witness = Witness(relay(tmp_path))
    average, count = (stat(Signal.GPU_UTIL_RATIO, each, HOUR) for each in (Statistic.AVG, Statistic.COUNT))
    readings, _, _ = read(witness, average, stat(Signal.GPU_TEMPERATURE_CELSIUS, Statistic.LAST), count)
    assert (readings.values[average.key], readings.values[count.key]) == ({A: pytest.approx(0.5)}, {A: 120})
    assert sum(each.function is Function.COUNT for each in witness.asked) == 1


def test_an_average_whose_weights_are_refused_is_unknown(tmp_path: Path) -> None:
    witness = Witness(relay(tmp_path), lambda expression: expression.function is Function.COUNT)
    asked = stat(Signal.GPU_UTIL_RATIO, Statistic.AVG, HOUR)
    readings, gaps, _ = read(witness, asked)
    assert readings.values[asked.key] == {}
    assert [(gap.kind, gap.what) for gap in gaps] == [(GapKind.QUERY_FAILED, "signal gpu_util_ratio")]


# However a series is cut, the device is the same


STATISTICS = (
    stat(Signal.GPU_UTIL_RATIO, Statistic.AVG, 1800),
    stat(Signal.GPU_UTIL_RATIO, Statistic.MIN, 1800),
    stat(Signal.GPU_UTIL_RATIO, Statistic.MAX, 1800),
    stat(Signal.GPU_UTIL_RATIO, Statistic.COUNT, 1800),
    stat(Signal.GPU_UTIL_RATIO, Statistic.FRACTION_ABOVE, 1800, 0.3),
)


def answers(timeline: Timeline) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        readings, gaps, _ = read(timeline.store(Path(folder)), *STATISTICS)
        assert gaps == ()
        return [readings.values[each.key][A] for each in STATISTICS]


@settings(max_examples=25)
@given(
    values=st.lists(st.integers(0, 100), min_size=60, max_size=60),
    cuts=st.sets(st.integers(1, 59), max_size=6),
    idle=st.sets(st.integers(0, 6)),
)
def test_pods_that_come_and_go_change_nothing(values: list[int], cuts: set[int], idle: set[int]) -> None:
    def value(ago: float) -> float:
        return float(values[60 - 1 - round(ago / EVERY)])

    whole = Timeline().add(UTIL, gpu(1), value, ago=1800)
    cut = Timeline()
    edges = [0, *sorted(cuts), 60]
    holders = [{} if number in idle else held(f"pod-{number}") for number in range(len(edges))]
    for number, (begin, end) in enumerate(pairwise(edges)):
        ends = end < 60 and holders[number] != holders[number + 1]
        ago, until = 1800 - begin * EVERY, 1800 - end * EVERY
        cut.add(UTIL, gpu(1) | holders[number], value, ago=ago, until=until, ends=ends)
    assert answers(cut) == pytest.approx(answers(whole))


def test_without_an_interval_several_rows_count_as_being_there_at_once(tmp_path: Path) -> None:
    # One sample each: nothing tells a Pod after the other from two Pods that share.
    timeline = Timeline().add(UTIL, gpu(1) | held("a"), 50, ago=EVERY).add(UTIL, gpu(1) | held("b"), 50, ago=EVERY)
    store = timeline.store(tmp_path)
    assert discover(store, AT)[0].interval_seconds == 0
    assert values(store, stat(Signal.GPU_UTIL_RATIO, Statistic.COUNT, 1800)) == {A: 1}


# Preferences


def test_a_device_without_profiling_is_answered_by_the_coarser_signal(tmp_path: Path) -> None:
    timeline = Timeline().add(ENGINE, gpu(1), 0.4).add(UTIL, gpu(1), 90).add(UTIL, gpu(2), 30)
    for statistic, window in ((Statistic.LAST, 0), (Statistic.AVG, HOUR)):
        asked = stat(Signal.BUSY_RATIO, statistic, window)
        assert values(timeline.store(tmp_path), asked) == {A: pytest.approx(0.4), uuid(2): pytest.approx(0.3)}


def test_the_coarser_signal_is_not_asked_where_nobody_needs_it(tmp_path: Path) -> None:
    timeline = Timeline().add(ENGINE, gpu(1), 0.4).add(UTIL, gpu(1), 90).add(ENGINE, gpu(2), 0.4)
    witness = Witness(timeline.store(tmp_path))
    read(witness, stat(Signal.BUSY_RATIO, Statistic.AVG, HOUR))
    averages = {each.selector.metric for each in witness.asked if each.function is Function.AVG}
    assert averages == {ENGINE}


def test_a_refused_signal_is_a_gap_and_the_next_one_answers(tmp_path: Path) -> None:
    timeline = Timeline().add(ENGINE, gpu(1), 0.4).add(UTIL, gpu(1), 90)
    witness = Witness(timeline.store(tmp_path), lambda e: e.selector.metric == ENGINE and e.function is Function.AVG)
    busy, util = stat(Signal.BUSY_RATIO, Statistic.AVG, HOUR), stat(Signal.GPU_UTIL_RATIO, Statistic.AVG, HOUR)
    readings, gaps, _ = read(witness, busy, util)
    assert [(gap.kind, gap.what) for gap in gaps] == [(GapKind.QUERY_FAILED, "signal busy_ratio")]
    assert readings.values[busy.key] == {A: 0.9}
    assert readings.values[util.key] == {A: 0.9}


def test_a_fleet_with_both_vocabularies_is_one_fleet() -> None:
    store = open_recording([FIXTURES / "honor-labels-false.prom", FIXTURES / "dcgm49.prom"], AT)
    power = values(store, stat(Signal.POWER_WATTS, Statistic.LAST))
    assert power == {uuid(1): 512.5, uuid(2): 71.2, uuid(0x21): 300, uuid(0x22): 66}


# What is no measurement


BLANK = 9223372036854775794.0


def test_blank_values_are_dropped_and_counted() -> None:
    store = open_recording([FIXTURES / "old-namespace.prom"], AT)
    asked = [
        stat(Signal.MEMORY_TEMPERATURE_CELSIUS, Statistic.LAST),
        stat(Signal.MEMORY_TEMPERATURE_CELSIUS, Statistic.AVG, 900),
        # A blank is above every bound: the share of it says nothing.
        stat(Signal.MEMORY_TEMPERATURE_CELSIUS, Statistic.FRACTION_ABOVE, 900, 90),
        stat(Signal.GPU_TEMPERATURE_CELSIUS, Statistic.LAST),
    ]
    readings, gaps, _ = read(store, *asked)
    assert [readings.values[each.key] for each in asked[:3]] == [{}, {}, {}]
    assert readings.values[asked[3].key] == {uuid(0x61): 66, uuid(0x62): 35}
    assert [gap.kind for gap in gaps] == [GapKind.IMPLAUSIBLE]
    assert gaps[0].what == "signal memory_temperature_celsius"
    assert "2 devices" in gaps[0].detail


def test_values_outside_of_physics_are_dropped(tmp_path: Path) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1), 150).add(TEMPERATURE, gpu(2), 151).add(TEMPERATURE, gpu(3), -41)
    asked = stat(Signal.GPU_TEMPERATURE_CELSIUS, Statistic.MAX, HOUR)
    readings, gaps, _ = read(timeline.store(tmp_path), asked)
    assert readings.values[asked.key] == {A: 150}
    assert [gap.detail for gap in gaps] == ["dropped values outside -40 to 150 celsius of 2 devices"]


def test_nan_is_dropped(tmp_path: Path) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1), float("nan")).add(TEMPERATURE, gpu(2), 40)
    assert values(timeline.store(tmp_path), stat(Signal.GPU_TEMPERATURE_CELSIUS, Statistic.LAST)) == {uuid(2): 40}


def test_a_signal_that_nobody_exports_is_a_gap_with_the_line_that_enables_it(tmp_path: Path) -> None:
    asked = stat(Signal.SM_ACTIVE_RATIO, Statistic.AVG, HOUR)
    readings, gaps, _ = read(Timeline().add(TEMPERATURE, gpu(1), 40).store(tmp_path), asked)
    assert asked.key not in readings.values
    assert [(gap.kind, gap.what) for gap in gaps] == [(GapKind.SIGNAL_MISSING, "signal sm_active_ratio")]
    assert "DCGM_FI_PROF_SM_ACTIVE, gauge," in gaps[0].detail


def test_devices_beyond_the_inventory_are_left_out(tmp_path: Path) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40).add(TEMPERATURE, gpu(2), 40, ago=7200, until=4000, ends=True)
    assert values(timeline.store(tmp_path), stat(Signal.GPU_TEMPERATURE_CELSIUS, Statistic.MAX, 7200)) == {A: 40}


# Appearance


def variants(store: SampleStore, asked: WindowStat) -> dict[str, dict[str, float]]:
    readings, gaps, _ = read(store, asked)
    assert gaps == ()
    assert asked.key not in readings.values
    return {device: dict(found) for device, found in readings.variants[asked.key].items()}


def test_a_counter_born_at_one_appeared(tmp_path: Path) -> None:
    # `T{xid="79",c="born"}` of the semantics file: no increase, yet it is the first and fatal one.
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40)
    timeline.add(XID_TOTAL, gpu(1, xid="79"), 1, ago=300)
    timeline.add(XID_TOTAL, gpu(1, xid="13"), lambda ago: 1 if ago > 300 else 2)
    store = timeline.store(tmp_path)
    assert variants(store, stat(Signal.XID_EVENTS_TOTAL, Statistic.APPEARED, 600)) == {A: {"79": 1}}
    increase = variants(store, stat(Signal.XID_EVENTS_TOTAL, Statistic.INCREASE, 600))
    assert increase == {A: {"79": 0, "13": pytest.approx(1, rel=0.1)}}


def test_both_edges_of_the_window_before(tmp_path: Path) -> None:
    # In (−1200, −600] there is a sample of 2 and 3, but none of 1 and 4.
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40)
    timeline.add(XID_TOTAL, gpu(1, xid="1"), 1, ago=600)
    timeline.add(XID_TOTAL, gpu(1, xid="2"), 1, ago=630)
    timeline.add(XID_TOTAL, gpu(1, xid="3"), 1, ago=1800, until=1170).add(XID_TOTAL, gpu(1, xid="3"), 1, ago=300)
    timeline.add(XID_TOTAL, gpu(1, xid="4"), 1, ago=1800, until=1200).add(XID_TOTAL, gpu(1, xid="4"), 1, ago=300)
    appeared = variants(timeline.store(tmp_path), stat(Signal.XID_EVENTS_TOTAL, Statistic.APPEARED, 600))
    assert appeared == {A: {"1": 1, "4": 1}}


def test_a_new_pod_is_no_appearance(tmp_path: Path) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40)
    timeline.add(XID_TOTAL, gpu(1, xid="79") | held("a"), 1, until=300, ends=True)
    timeline.add(XID_TOTAL, gpu(1, xid="79") | held("b"), 1, ago=300)
    assert variants(timeline.store(tmp_path), stat(Signal.XID_EVENTS_TOTAL, Statistic.APPEARED, 600)) == {}


def test_a_new_mig_layout_is_no_appearance(tmp_path: Path) -> None:
    timeline = Timeline().add(XID_TOTAL, gpu(1, xid="79"), 1, until=300, ends=True)
    timeline.add(XID_TOTAL, gpu(1, xid="79", GPU_I_ID="7"), 1, ago=300)
    timeline.add(TEMPERATURE, gpu(1, GPU_I_ID="7"), 40)
    assert variants(timeline.store(tmp_path), stat(Signal.XID_EVENTS_TOTAL, Statistic.APPEARED, 600)) == {}


def test_disappeared_means_none_in_the_last_five_minutes(tmp_path: Path) -> None:
    timeline = Timeline().add(USED, gpu(1), 5).add(USED, gpu(2), 5).add(USED, gpu(3), 5)
    timeline.add(TEMPERATURE, gpu(1), 40)
    timeline.add(TEMPERATURE, gpu(2), 41, until=300, ends=True)
    timeline.add(TEMPERATURE, gpu(3), 42, until=270, ends=True)
    asked = stat(Signal.GPU_TEMPERATURE_CELSIUS, Statistic.DISAPPEARED, 1800)
    assert values(timeline.store(tmp_path), asked) == {uuid(2): 41}


def test_a_row_without_variant_is_an_answer_with_none(tmp_path: Path) -> None:
    # DCGM_EXP_XID_ERRORS_COUNT has a 0 row without `xid` where there are none.
    count = "DCGM_EXP_XID_ERRORS_COUNT"
    timeline = Timeline().add(count, gpu(1), 0).add(count, gpu(2, xid="31"), 3)
    for number in (1, 2, 3):
        timeline.add(TEMPERATURE, gpu(number), 40)
    store = timeline.store(tmp_path)
    asked = stat(Signal.XID_WINDOW_COUNT, Statistic.MAX, 900)
    assert variants(store, asked) == {A: {}, uuid(2): {"31": 3}}


# PromQL for people


def query(page: str, asked: WindowStat) -> str:
    """Of the page's first device."""
    readings, _, inventory = read(open_recording([FIXTURES / page], AT), asked)
    return readings.query(asked, inventory.devices[0])


def test_promql_has_a_place_for_the_device() -> None:
    matcher = f'UUID="{uuid(0x51)}",GPU_I_ID="2"'
    power = query("mig.prom", stat(Signal.POWER_WATTS, Statistic.AVG, 900))
    assert power == f"avg by (UUID, GPU_I_ID) (avg_over_time(DCGM_FI_DEV_POWER_USAGE{{{matcher}}}[15m]))"
    used = query("mig.prom", stat(Signal.MEMORY_USED_BYTES, Statistic.LAST))
    assert used == f"max by (UUID, GPU_I_ID) (DCGM_FI_DEV_FB_USED{{{matcher}}}) * 1048576"


def test_promql_of_two_choices_prefers_the_first() -> None:
    busy = query("honor-labels-false.prom", stat(Signal.BUSY_RATIO, Statistic.FRACTION_ABOVE, 900, 0.05))
    preferred, other = busy.split(" or ")
    for text, metric, bound in ((preferred, ENGINE, "0.05"), (other, UTIL, "5")):
        assert f'last_over_time({metric}{{UUID="{A}"}}[1m]) > bool {bound})' in text


AMD = 'hostname="mi-a",serial_number="692409005408",gpu_id="0",gpu_partition_id="0"'
XPU = 'location="gpu", uuid="01000000-0000-0000-0000-0000003a0000"'


@pytest.mark.parametrize(
    ("page", "signal", "metric", "matchers"),
    [
        ("amd-mi300x.prom", Signal.POWER_WATTS, "gpu_package_power", AMD),
        ("old-namespace.prom", Signal.GPU_TEMPERATURE_CELSIUS, TEMPERATURE, f'uuid="{uuid(0x61)}"'),
        ("xpum1.prom", Signal.GPU_TEMPERATURE_CELSIUS, "xpum_temperature_celsius", XPU),
    ],
)
def test_promql_has_the_labels_that_are_there(page: str, signal: Signal, metric: str, matchers: str) -> None:
    assert f" ({metric}{{{matchers}}})" in query(page, stat(signal, Statistic.LAST))


def test_matchers_that_everybody_knows_are_not_written_down() -> None:
    store = open_recording([FIXTURES / "mig.prom"], AT)
    readings, _, _ = read(store, stat(Signal.POWER_WATTS, Statistic.LAST))
    assert not [key for key in readings.promql if key.startswith("matcher:")]


def test_promql_of_an_appearance_has_both_windows(tmp_path: Path) -> None:
    timeline = Timeline().add(XID_TOTAL, gpu(1, xid="79"), 1, ago=300)
    asked = stat(Signal.XID_EVENTS_TOTAL, Statistic.APPEARED, 600)
    readings, _, inventory = read(timeline.store(tmp_path), asked)
    matcher = f'{XID_TOTAL}{{UUID="{A}"}}'
    assert readings.query(asked, inventory.devices[0]) == (
        f"(max by (UUID, GPU_I_ID, xid) (last_over_time({matcher}[10m]))"
        f" unless max by (UUID, GPU_I_ID, xid) (count_over_time({matcher}[10m] offset 10m)))"
    )


def test_equal_questions_are_asked_once(tmp_path: Path) -> None:
    witness = Witness(Timeline().add(ENGINE, gpu(1), 0.4).store(tmp_path))
    read(
        witness,
        stat(Signal.BUSY_RATIO, Statistic.AVG, HOUR),
        stat(Signal.ENGINE_ACTIVE_RATIO, Statistic.AVG, HOUR),
        stat(Signal.BUSY_RATIO, Statistic.AVG, HOUR),
    )
    assert sum(each.function is Function.AVG for each in witness.asked) == 1
    assert witness.partitions[-1] is not None
    assert witness.partitions[-1].interval_seconds == 30
