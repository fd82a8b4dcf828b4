"""Windows of devices and their holders: what each mean covers, whose it is, and what is said where there is none."""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gpuwatch.facts.model.telemetry import Gap, GapKind, Signal
from gpuwatch.facts.model.workload_profile import HeldWindows
from gpuwatch.sources.telemetry.discovery import discover
from gpuwatch.sources.telemetry.inventory import take_inventory
from gpuwatch.sources.telemetry.recording import open_recording
from gpuwatch.sources.telemetry.samples import SampleStore
from gpuwatch.sources.telemetry.windows import held_windows
from telemetry.timeline import AT, FIXTURES, Timeline, Witness, gpu, held, seen, uuid

UTIL, ENGINE, FB = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_FB_USED"
POWER, VIOLATION = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_THERMAL_VIOLATION"
BUSY, USED, WATTS = Signal.BUSY_RATIO, Signal.MEMORY_USED_BYTES, Signal.POWER_WATTS
MIB = 2**20
A, B = uuid(1), uuid(2)


def ask(
    store: SampleStore,
    signals: Sequence[Signal] = (BUSY,),
    *,
    ago: float = 3600,
    until: float = 0,
    step: int = 600,
) -> tuple[tuple[HeldWindows, ...], tuple[Gap, ...]]:
    schema, _ = discover(store, AT)
    start, end = (AT - timedelta(seconds=each) for each in (ago, until))
    inventory = take_inventory(store, end, schema, round(ago - until))
    found, gaps = held_windows(store, signals, start, end, step, schema, inventory)
    return found, (*inventory.gaps, *gaps)


def told(store: SampleStore, signal: Signal = BUSY, step: int = 600, ago: float = 3600) -> list[tuple[object, ...]]:
    """Device, Pod, where it begins (seconds before AT), and the values; rounded, NaN as None."""
    found, gaps = ask(store, (signal,), step=step, ago=ago)
    assert gaps == ()
    return [(each.device, each.pod, seconds_ago(each.start), known(each, signal)) for each in found]


def seconds_ago(moment: datetime) -> float:
    return (AT - moment).total_seconds()


def known(windows: HeldWindows, signal: Signal) -> list[float | None]:
    return [None if math.isnan(value) else round(value, 9) for value in windows.values[signal]]


def own_rows() -> Timeline:
    """Somebody holds another GPU, so that telemetry does say who holds what."""
    return Timeline().add(POWER, gpu(7) | held("other"), 100)


def test_a_window_is_open_on_the_left_and_closed_on_the_right(tmp_path: Path) -> None:
    timeline = own_rows().add(ENGINE, gpu(1) | held("a"), lambda ago: 0.8 if ago == 1200 else 0)
    # 20 samples of 30 s in (−1800, −1200], the one on its right edge is 0.8.
    assert told(timeline.store(tmp_path)) == [(A, "team/a", 3600, [0, 0, 0, 0.04, 0, 0])]


def test_start_and_end_are_rounded_down_to_the_step(tmp_path: Path) -> None:
    store = own_rows().add(ENGINE, gpu(1) | held("a"), lambda ago: ago / 10_000).store(tmp_path)
    whole = ask(store)[0]
    shifted = ask(store, ago=3600 - 599, until=-599)[0]
    assert shifted == whole
    assert ask(store, ago=600, until=1)[0] == ()


def test_the_same_window_asked_alone_has_the_same_numbers(tmp_path: Path) -> None:
    store = own_rows().add(ENGINE, gpu(1) | held("a"), lambda ago: (ago % 700) / 1000).store(tmp_path)
    whole = known(ask(store)[0][0], BUSY)
    parts = [known(ask(store, ago=ago, until=ago - 600)[0][0], BUSY)[0] for ago in range(3600, 0, -600)]
    assert parts == whole


@pytest.mark.parametrize(("metric", "value"), [(ENGINE, 0.35), (UTIL, 35)])
def test_values_are_ratios_of_both_kinds_of_metric(tmp_path: Path, metric: str, value: float) -> None:
    timeline = own_rows().add(metric, gpu(1) | held("a"), value)
    assert told(timeline.store(tmp_path)) == [(A, "team/a", 3600, [0.35] * 6)]


def test_the_new_vocabulary(tmp_path: Path) -> None:
    newer = gpu(1, Hostname="", hostname="node-a") | held("a")
    timeline = Timeline().add("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", newer, 0.25)
    timeline.add("DCGM_FI_DEV_FB_USED_BYTES", newer, 3 * MIB).add("DCGM_FI_DEV_BOARD_POWER_WATTS", newer, 300)
    (windows,), gaps = ask(timeline.store(tmp_path), (BUSY, USED, WATTS), step=1800)
    assert gaps == ()
    assert {signal: list(values) for signal, values in windows.values.items()} == {
        BUSY: [0.25, 0.25],
        USED: [3 * MIB, 3 * MIB],
        WATTS: [300, 300],
    }


def test_memory_is_the_peak_of_what_is_used_and_the_least_that_is_free(tmp_path: Path) -> None:
    timeline = Timeline().add(FB, gpu(1) | held("a"), lambda ago: 900 if ago == 300 else 100)
    timeline.add("DCGM_FI_DEV_FB_FREE", gpu(1) | held("a"), lambda ago: 100 if ago == 300 else 900)
    (windows,), _ = ask(timeline.store(tmp_path), (USED, Signal.MEMORY_FREE_BYTES), step=1800)
    assert [value / MIB for value in windows.values[USED]] == [100, 900]
    assert [value / MIB for value in windows.values[Signal.MEMORY_FREE_BYTES]] == [900, 100]


def test_a_counter_is_its_rate(tmp_path: Path) -> None:
    # The counter is in nanoseconds; it stands still, then runs for a quarter of the time.
    timeline = Timeline().add(
        VIOLATION, gpu(1) | held("a"), lambda ago: 1e12 + max(0, 1800 - ago) * 0.25e9, ago=3600 + 30
    )
    (windows,), gaps = ask(timeline.store(tmp_path), (Signal.THERMAL_THROTTLE_SECONDS_TOTAL,))
    assert gaps == ()
    assert windows.values[Signal.THERMAL_THROTTLE_SECONDS_TOTAL] == pytest.approx([0, 0, 0, 0.25, 0.25, 0.25], rel=0.02)


def test_a_code_has_no_mean(tmp_path: Path) -> None:
    store = own_rows().store(tmp_path)
    with pytest.raises(ValueError, match="xid_code is a state"):
        ask(store, (Signal.XID_CODE,))


def test_a_window_without_a_sample_is_unknown(tmp_path: Path) -> None:
    timeline = own_rows().add(ENGINE, gpu(1) | held("a"), 0.5, until=2400).add(ENGINE, gpu(1) | held("a"), 0.7, ago=600)
    assert told(timeline.store(tmp_path)) == [(A, "team/a", 3600, [0.5, 0.5, None, None, None, 0.7])]


def test_a_series_that_appears_and_one_that_ends(tmp_path: Path) -> None:
    timeline = own_rows().add(ENGINE, gpu(1) | held("a"), 0.5, until=1800, ends=True)
    timeline.add(ENGINE, gpu(2) | held("b"), 0.6, ago=900)
    assert told(timeline.store(tmp_path)) == [
        (A, "team/a", 3600, [0.5, 0.5, 0.5, None, None, None]),
        (B, "team/b", 3600, [None, None, None, None, 0.6, 0.6]),
    ]


def test_a_device_that_changes_its_holder(tmp_path: Path) -> None:
    timeline = Timeline().add(ENGINE, gpu(1), 0, until=3000, ends=True)
    timeline.add(ENGINE, gpu(1) | held("a"), 0.8, ago=3000, until=900, ends=True)
    timeline.add(ENGINE, gpu(1) | held("b"), 0.4, ago=900)
    # In the window of −1200 to −600 both had it, one after the other: each has the mean of its own samples.
    found, _ = ask(timeline.store(tmp_path))
    assert [(each.pod, seconds_ago(each.start), known(each, BUSY), each.shared) for each in found] == [
        ("", 3600, [0], False),
        ("team/a", 3600, [None, 0.8, 0.8, 0.8, 0.8], False),
        ("team/b", 1800, [None, 0.4, 0.4], False),
    ]


def test_a_pod_that_comes_back_has_two_stretches_if_somebody_else_was_there(tmp_path: Path) -> None:
    timeline = Timeline().add(ENGINE, gpu(1) | held("a"), 0.8, until=2400, ends=True)
    timeline.add(ENGINE, gpu(1), 0, ago=2400, until=1200, ends=True)
    timeline.add(ENGINE, gpu(1) | held("a"), 0.6, ago=1200)
    assert told(timeline.store(tmp_path)) == [
        (A, "team/a", 3600, [0.8, 0.8]),
        (A, "", 3000, [None, 0, 0]),
        (A, "team/a", 1200, [0.6, 0.6]),
    ]


def test_a_shared_device_is_apart_from_the_time_in_which_it_was_not(tmp_path: Path) -> None:
    timeline = Timeline().add(ENGINE, gpu(1, vgpu="0") | held("a"), 0.5)
    timeline.add(ENGINE, gpu(1, vgpu="1") | held("b"), 0.5, ago=1800, until=600, ends=True)
    found, _ = ask(timeline.store(tmp_path))
    assert [(each.pod, seconds_ago(each.start), known(each, BUSY), each.shared) for each in found] == [
        ("team/a", 3600, [0.5, 0.5, 0.5], False),
        ("team/b", 2400, [None, 0.5, 0.5], True),
        ("team/a", 1800, [0.5, 0.5], True),
        ("team/a", 600, [0.5], False),
    ]


def test_of_one_window_with_two_pods_it_is_not_to_be_said_who_followed_whom(tmp_path: Path) -> None:
    timeline = Timeline().add(ENGINE, gpu(1) | held("a"), 0.5, until=1800, ends=True)
    timeline.add(ENGINE, gpu(1) | held("b"), 0.5, ago=1800)
    found, _ = ask(timeline.store(tmp_path), step=3600)
    assert [(each.pod, each.shared) for each in found] == [("team/a", True), ("team/b", True)]


def test_rows_per_process_beside_that_of_the_device(tmp_path: Path) -> None:
    timeline = Timeline().add(FB, gpu(1), 1000).add(FB, gpu(1) | held("a"), 700, ago=2400)
    timeline.add(ENGINE, gpu(1) | held("a"), 0.5, ago=2400).add(ENGINE, gpu(1), 0, until=2400, ends=True)
    found, _ = ask(timeline.store(tmp_path), (BUSY, USED))
    # The device's own memory is the sole holder's: it has the contexts in it.
    assert [(each.pod, known(each, USED)) for each in found] == [
        ("", [1000 * MIB, 1000 * MIB]),
        ("team/a", [None, *[1000 * MIB] * 4]),
    ]


def test_a_shared_device_with_rows_per_process_keeps_them_apart(tmp_path: Path) -> None:
    timeline = Timeline().add(FB, gpu(1), 1000).add(FB, gpu(1) | held("a"), 700).add(FB, gpu(1) | held("b"), 200)
    found, _ = ask(timeline.store(tmp_path), (USED,))
    assert [(each.pod, each.shared, each.values[USED][0] / MIB) for each in found] == [
        ("team/a", True, 700),
        ("team/b", True, 200),
    ]


def test_mig_rows_and_what_is_measured_of_the_whole_board(tmp_path: Path) -> None:
    timeline = Timeline()
    for instance, pod in (("7", "a"), ("8", "")):
        labels = gpu(5, GPU_I_ID=instance, GPU_I_PROFILE="1g.10gb") | (held(pod) if pod else {})
        timeline.add(ENGINE, labels, 0.1 * int(instance))
        if pod:
            timeline.add(POWER, labels, 250)  # some exporters write it on one instance alone
    found, gaps = ask(timeline.store(tmp_path), (BUSY, WATTS), step=3600)
    assert gaps == ()
    assert [
        (each.device, each.uuid, each.mig_profile, each.pod, known(each, BUSY), known(each, WATTS)) for each in found
    ] == [
        (f"{uuid(5)}/7", uuid(5), "1g.10gb", "team/a", [0.7], [250]),
        (f"{uuid(5)}/8", uuid(5), "1g.10gb", "", [0.8], [250]),
    ]


def test_an_instance_of_another_layout_is_another_device(tmp_path: Path) -> None:
    timeline = own_rows().add(ENGINE, gpu(5, GPU_I_ID="1", GPU_I_PROFILE="3g.40gb"), 0.3, until=1800, ends=True)
    timeline.add(ENGINE, gpu(5, GPU_I_ID="1", GPU_I_PROFILE="1g.10gb"), 0.1, ago=1800)
    found, _ = ask(timeline.store(tmp_path))
    assert [(each.mig_profile, known(each, BUSY)) for each in found] == [
        ("1g.10gb", [None, None, None, 0.1, 0.1, 0.1]),
        ("3g.40gb", [0.3, 0.3, 0.3, None, None, None]),
    ]


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (
            "honor-labels-false.prom",
            [("team-a/train-0", "main", False), ("", "", False)],
        ),
        ("honor-labels-true.prom", [("team-b/llm-7d9f", "server", False), ("", "", False)]),
        ("old-namespace.prom", [("team-h/sim-3", "solver", False), ("", "", False)]),
        ("gaudi.prom", [("team-k/gaudi-train-0", "", False), ("", "", False)]),
        ("xpum1.prom", [("team-j/hpc-0", "solver", False)]),
        ("per-process.prom", [("team-f/serve-a", "s", True), ("team-f/serve-b", "s", True)]),
    ],
)
def test_holders_of_every_label_scheme(page: str, expected: list[tuple[str, str, bool]]) -> None:
    """An exporter's own Pod, in the labels of a GPU that nobody holds, holds nothing."""
    found, gaps = ask(open_recording([FIXTURES / page], AT), (BUSY, Signal.GPU_UTIL_RATIO), step=300, ago=300)
    assert [gap.kind for gap in gaps if gap.kind is not GapKind.SIGNAL_MISSING] == []
    assert [(each.pod, each.container, each.shared) for each in found] == expected


def test_duplicates_are_not_added_up(tmp_path: Path) -> None:
    timeline = Timeline().add(POWER, gpu(1) | held("a"), 200)
    timeline.add(POWER, gpu(1, instance="node-a:9401", job="again") | held("a"), 210)
    assert told(timeline.store(tmp_path), WATTS, step=3600) == [(A, "team/a", 3600, [210])]


def test_a_device_without_profiling_is_answered_by_the_coarser_metric_alone(tmp_path: Path) -> None:
    timeline = Timeline().add(ENGINE, gpu(1) | held("a"), 0.5).add(UTIL, gpu(1) | held("a"), 99)
    timeline.add(UTIL, gpu(2) | held("b"), 40)
    witness = Witness(timeline.store(tmp_path))
    found, _ = ask(witness, (BUSY, Signal.ENGINE_ACTIVE_RATIO), step=1800)
    assert [(each.device, known(each, BUSY), Signal.ENGINE_ACTIVE_RATIO in each.values) for each in found] == [
        (A, [0.5, 0.5], True),
        (B, [0.4, 0.4], False),
    ]
    grids = [each for each in witness.asked if each.window_seconds == 1800]
    # One question for both signals of the same metric, and one for the device that is left.
    assert [(each.selector.metric, [m.value for m in each.selector.matchers]) for each in grids] == [
        (ENGINE, []),
        (UTIL, [B]),
    ]


def test_blank_and_implausible_values_are_dropped_and_said(tmp_path: Path) -> None:
    timeline = Timeline().add(POWER, gpu(1) | held("a"), lambda ago: 2.0**63 if ago == 900 else 100)
    timeline.add(POWER, gpu(2) | held("b"), lambda ago: 6000 if ago < 600 else 100)
    found, gaps = ask(timeline.store(tmp_path), (WATTS,))
    assert [known(each, WATTS) for each in found] == [[100, 100, 100, 100, None, 100], [*[100] * 5, None]]
    assert [(gap.kind, gap.what) for gap in gaps] == [(GapKind.IMPLAUSIBLE, "signal power_watts")]
    assert "1 device and" in gaps[0].detail


def test_a_signal_that_fails_is_a_gap_and_the_rest_goes_on(tmp_path: Path) -> None:
    timeline = Timeline().add(POWER, gpu(1) | held("a"), 100).add(ENGINE, gpu(1) | held("a"), 0.5)
    witness = Witness(
        timeline.store(tmp_path), lambda asked: asked.selector.metric == POWER and asked.window_seconds == 600
    )
    (windows,), gaps = ask(witness, (BUSY, WATTS, Signal.SM_ACTIVE_RATIO))
    assert list(windows.values) == [BUSY]
    assert sorted((gap.kind, gap.what) for gap in gaps) == [
        (GapKind.QUERY_FAILED, "windows of power_watts"),
        (GapKind.SIGNAL_MISSING, "signal sm_active_ratio"),
    ]


def test_without_pods_in_telemetry_the_holder_is_unknown(tmp_path: Path) -> None:
    (windows,), gaps = ask(Timeline().add(ENGINE, gpu(1), 0.5).store(tmp_path))
    assert (windows.pod, windows.model) == ("", "NVIDIA H100 80GB HBM3")
    assert [(gap.kind, gap.what) for gap in gaps] == [(GapKind.SIGNAL_MISSING, "Pods of devices")]


def test_without_pods_in_telemetry_the_inventory_may_know_a_holder(tmp_path: Path) -> None:
    store = Timeline().add(ENGINE, gpu(1), 0.5).add(ENGINE, gpu(2), 0.1).store(tmp_path)
    schema, inventory = seen(store)
    first, second = inventory.devices
    known_holder = replace(first, pods=("team/a",), containers=("main",))
    given = replace(inventory, devices=(known_holder, second))
    found, gaps = held_windows(store, (BUSY,), AT - timedelta(hours=1), AT, 600, schema, given)
    assert [(each.device, each.pod, each.container) for each in found] == [(A, "team/a", "main"), (B, "", "")]
    assert "the windows of 1 devices are counted for the Pod that holds them now" in gaps[0].detail


def test_large_fleets_are_divided_by_node(tmp_path: Path) -> None:
    timeline = Timeline()
    for number in range(4):
        timeline.add(ENGINE, gpu(number, host=f"node-{number % 2}") | held(f"p{number}"), 0.5)
    witness = Witness(timeline.store(tmp_path))
    ask(witness, step=1800)
    grid = next(
        partition
        for asked, partition in zip(witness.asked, witness.partitions, strict=True)
        if asked.window_seconds == 1800
    )
    assert grid is not None
    assert (grid.label, grid.nodes) == ("Hostname", {"": 0, "node-0": 2, "node-1": 2})
