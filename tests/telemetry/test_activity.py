"""Activity histories: what a character stands for, whose it is, and how little is asked."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuwatch.facts.model.needs import TelemetryNeeds
from gpuwatch.facts.model.telemetry import ActivityHistory, Gap, GapKind
from gpuwatch.sources.telemetry.activity import histories
from gpuwatch.sources.telemetry.recording import open_recording
from gpuwatch.sources.telemetry.samples import SampleStore
from telemetry.timeline import AT, FIXTURES, NOW, Timeline, Witness, gpu, held, seen, uuid

UTIL, ENGINE, TEMPERATURE = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_TEMP"
A, B = uuid(1), uuid(2)


def activity(window_seconds: int = 3600, step_seconds: int = 600) -> TelemetryNeeds:
    return TelemetryNeeds(
        stats=(),
        state_signals=(),
        change_window_seconds=0,
        activity_window_seconds=window_seconds,
        activity_step_seconds=step_seconds,
        activity_bound_ratio=0.01,
    )


def ask(
    store: SampleStore, devices: Collection[str] | None = None, **window: int
) -> tuple[tuple[ActivityHistory, ...], tuple[Gap, ...]]:
    return histories(store, AT, *seen(store), activity(**window), devices)


def steps(store: SampleStore, **options: int) -> dict[tuple[str, str], str]:
    found, gaps = ask(store, **options)
    assert gaps == ()
    return {(history.device, history.pod): history.steps for history in found}


def test_a_step_is_open_on_the_left_and_closed_on_the_right(tmp_path: Path) -> None:
    # A lone active sample on the edge at −1200 s belongs to the step that ends there, (−1800, −1200].
    on_edge = Timeline().add(ENGINE, gpu(1), lambda ago: 0.9 if ago == 1200 else 0)
    assert steps(on_edge.store(tmp_path)) == {(A, ""): "...#.."}
    after_edge = Timeline().add(ENGINE, gpu(1), lambda ago: 0.9 if ago == 1170 else 0)
    assert steps(after_edge.store(tmp_path)) == {(A, ""): "....#."}


def test_the_history_says_when_it_starts(tmp_path: Path) -> None:
    found, _ = ask(Timeline().add(ENGINE, gpu(1), 0).store(tmp_path), window_seconds=3700, step_seconds=600)
    assert found == (
        ActivityHistory(device=A, pod="", start=AT - timedelta(seconds=3600), step_seconds=600, steps="......"),
    )


def test_a_step_without_sample_is_unknown(tmp_path: Path) -> None:
    timeline = Timeline().add(ENGINE, gpu(1), 0, ago=3600, until=2400).add(ENGINE, gpu(1), 0.5, ago=600)
    assert steps(timeline.store(tmp_path)) == {(A, ""): "..???#"}


@pytest.mark.parametrize(("metric", "at_bound", "above"), [(ENGINE, 0.01, 0.0101), (UTIL, 1, 2)])
def test_both_sides_of_the_bound_in_the_metrics_unit(
    tmp_path: Path, metric: str, at_bound: float, above: float
) -> None:
    timeline = Timeline().add(metric, gpu(1), at_bound).add(metric, gpu(2), above)
    assert steps(timeline.store(tmp_path)) == {(A, ""): "......", (B, ""): "######"}


def test_pods_that_follow_each_other_have_a_history_each(tmp_path: Path) -> None:
    timeline = Timeline().add(ENGINE, gpu(1), 0, ago=3600, until=3000, ends=True)
    timeline.add(ENGINE, gpu(1) | held("a"), 0.8, ago=3000, until=1200, ends=True)
    timeline.add(ENGINE, gpu(1) | held("b"), 0, ago=1200)
    assert steps(timeline.store(tmp_path)) == {
        (A, ""): ".?????",
        (A, "team/a"): "?###??",
        (A, "team/b"): "????..",
    }


def test_a_restart_of_the_exporter_cuts_no_history(tmp_path: Path) -> None:
    own = {"namespace": "mon", "container": "dcgm-exporter"}
    timeline = Timeline()
    timeline.add(ENGINE, gpu(1) | held("a") | own | {"pod": "dcgm-exporter-1"}, 0, ago=3600, until=1800, ends=True)
    timeline.add(ENGINE, gpu(1, instance="x") | held("a") | own | {"pod": "dcgm-exporter-2"}, 0.8, ago=1800)
    assert steps(timeline.store(tmp_path)) == {(A, "team/a"): "...###"}


def test_a_shared_device_gives_its_history_to_each_holder() -> None:
    store = open_recording([FIXTURES / "vgpu-replicated.prom"], AT)
    assert steps(store, window_seconds=600, step_seconds=300) == {
        (uuid(0x31), "team-d/notebook-ann-0"): "?#",
        (uuid(0x31), "team-e/notebook-bob-0"): "?#",
    }


def test_the_row_of_the_device_beside_rows_per_process_is_not_nobodys_time(tmp_path: Path) -> None:
    timeline = Timeline().add(UTIL, gpu(1), lambda ago: 90 if ago < 1800 else 0)
    timeline.add(UTIL, gpu(1) | held("a"), 70, ago=1800).add(UTIL, gpu(1) | held("b"), 0, ago=1800)
    assert steps(timeline.store(tmp_path)) == {
        (A, ""): "...???",
        (A, "team/a"): "???###",
        (A, "team/b"): "???...",
    }


def test_mig_instances_have_histories_of_their_own() -> None:
    store = open_recording([FIXTURES / "mig.prom"], AT)
    assert steps(store, window_seconds=300, step_seconds=300) == {
        (f"{uuid(0x51)}/2", ""): ".",
        (f"{uuid(0x51)}/7", "team-g/small-0"): "#",
        (uuid(0x52), ""): ".",
    }


def test_a_device_without_profiling_is_seen_by_the_coarser_signal(tmp_path: Path) -> None:
    timeline = Timeline().add(ENGINE, gpu(1), 0).add(UTIL, gpu(1), 99).add(UTIL, gpu(2), 99)
    witness = Witness(timeline.store(tmp_path))
    assert steps(witness) == {(A, ""): "......", (B, ""): "######"}
    coarse = [each for each in witness.asked if each.selector.metric == UTIL and each.window_seconds == 600]
    assert [matcher.value for each in coarse for matcher in each.selector.matchers] == [B]


def test_only_the_wanted_devices_are_asked_for(tmp_path: Path) -> None:
    timeline = Timeline().add(ENGINE, gpu(1), 0).add(ENGINE, gpu(2), 0).add(ENGINE, gpu(3), 0)
    witness = Witness(timeline.store(tmp_path))
    found, _ = ask(witness, devices={A, uuid(3)})
    assert [history.device for history in found] == [A, uuid(3)]
    assert [matcher.value for matcher in witness.asked[-1].selector.matchers] == [f"{A}|{uuid(3)}"]
    assert ask(witness, devices=())[0] == ()


def test_a_large_fleet_is_asked_in_blocks(tmp_path: Path) -> None:
    timeline = Timeline()
    for number in range(5):
        timeline.add(ENGINE, gpu(number), number / 10, ago=600)
    witness = Witness(timeline.store(tmp_path))
    # 500,000 points at once are two devices of 200,000 steps.
    found, gaps = ask(witness, window_seconds=200_000, step_seconds=1)
    grids = [each for each in witness.asked if each.window_seconds == 1]
    assert gaps == ()
    assert len(grids) == 3
    assert [history.steps.count("#") for history in found] == [0, 20, 20, 20, 20]
    assert all(history.steps.count("?") == 200_000 - 20 for history in found)


def test_blank_values_are_unknown_not_active(tmp_path: Path) -> None:
    timeline = Timeline().add(ENGINE, gpu(1), lambda ago: 2.0**63 if ago < 600 else 0)
    found, gaps = ask(timeline.store(tmp_path))
    assert [history.steps for history in found] == [".....?"]
    assert [gap.kind for gap in gaps] == [GapKind.IMPLAUSIBLE]


def test_a_refused_grid_is_a_gap(tmp_path: Path) -> None:
    witness = Witness(
        Timeline().add(ENGINE, gpu(1), 0).store(tmp_path),
        lambda expression: expression.window_seconds == 600,
    )
    found, gaps = ask(witness)
    assert found == ()
    assert [(gap.kind, gap.what) for gap in gaps] == [(GapKind.QUERY_FAILED, f"activity ({ENGINE})")]


def test_no_busy_signal_is_a_gap(tmp_path: Path) -> None:
    found, gaps = ask(Timeline().add(TEMPERATURE, gpu(1), 40).store(tmp_path))
    assert found == ()
    assert [(gap.kind, gap.what) for gap in gaps] == [(GapKind.SIGNAL_MISSING, "signal busy_ratio")]


def test_a_device_that_is_gone_keeps_its_past(tmp_path: Path) -> None:
    timeline = Timeline().add(ENGINE, gpu(1) | held("a"), 0.5, until=1800, ends=True)
    assert steps(timeline.store(tmp_path)) == {(A, "team/a"): "###???"}


def test_a_window_shorter_than_its_step_is_refused(tmp_path: Path) -> None:
    store = Timeline().add(ENGINE, gpu(1), 0).store(tmp_path)
    with pytest.raises(ValueError, match="no step of 600 s"):
        ask(store, window_seconds=599)
    assert datetime.fromtimestamp(NOW, UTC) == AT
