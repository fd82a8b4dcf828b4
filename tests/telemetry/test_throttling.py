"""Windows in which a GPU was slowed, and how little is asked to find them."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.telemetry.samples import SampleStore
from gpuwatch.sources.telemetry.throttling import throttled_shares
from telemetry.timeline import AT, Timeline, Witness, gpu, held, seen, uuid

THERMAL, REASONS = "DCGM_FI_DEV_THERMAL_VIOLATION", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
BRAKE = "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS"
ENGINE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
A, B = uuid(1), uuid(2)


def ask(store: SampleStore, step: int = 600) -> tuple[Mapping[str, list[float]], tuple[Gap, ...]]:
    schema, inventory = seen(store)
    found, gaps = throttled_shares(store, AT - timedelta(hours=1), AT, step, schema, inventory)
    return {device: list(shares) for device, shares in found.items()}, gaps


@pytest.mark.parametrize("metric", [THERMAL, BRAKE])
def test_a_counter_of_slowed_time(tmp_path: Path, metric: str) -> None:
    timeline = Timeline().add(metric, gpu(2), 5e12, ago=3630)
    # Half of the time from −1800 s on, in nanoseconds.
    timeline.add(metric, gpu(1) | held("a"), lambda ago: 1e12 + max(0, 1800 - ago) * 0.5e9, ago=3630)
    found, gaps = ask(timeline.store(tmp_path))
    assert gaps == ()
    assert list(found) == [A]
    assert found[A] == pytest.approx([0, 0, 0, 0.5, 0.5, 0.5], abs=0.03)


@pytest.mark.parametrize(("bits", "expected"), [(0x8, 1), (0x20, 1), (0x40, 1), (0x80, 1), (0x4, 0), (0x100, 0)])
def test_reasons_that_are_faults(tmp_path: Path, bits: int, expected: float) -> None:
    timeline = Timeline().add(REASONS, gpu(1), lambda ago: bits | 0x1 if ago < 600 else 0)
    found, gaps = ask(timeline.store(tmp_path))
    assert gaps == ()
    assert found.get(A, [0.0] * 6) == [0, 0, 0, 0, 0, expected]


def test_the_share_of_a_window(tmp_path: Path) -> None:
    timeline = Timeline().add(REASONS, gpu(1), lambda ago: 0x40 if ago < 150 else 0x4, every=30)
    found, _ = ask(timeline.store(tmp_path))
    assert found[A] == [0, 0, 0, 0, 0, 0.25]


def test_windows_are_asked_of_slowed_devices_alone(tmp_path: Path) -> None:
    timeline = Timeline()
    for number in range(1, 6):
        timeline.add(REASONS, gpu(number), 0x40 if number == 2 else 0x4)
    witness = Witness(timeline.store(tmp_path))
    found, _ = ask(witness)
    assert list(found) == [B]
    grids = [asked for asked in witness.asked if asked.function == "fraction_bits"]
    assert [matcher.value for asked in grids for matcher in asked.selector.matchers] == [B]


def test_the_greatest_of_all_signs(tmp_path: Path) -> None:
    timeline = Timeline().add(REASONS, gpu(1), lambda ago: 0x40 if ago < 300 else 0)
    timeline.add(BRAKE, gpu(1), lambda ago: max(0, 1200 - ago) * 1e9, ago=3630)
    found, _ = ask(timeline.store(tmp_path))
    assert found[A] == pytest.approx([0, 0, 0, 0, 1, 1], abs=0.03)


def test_nobody_tells(tmp_path: Path) -> None:
    found, gaps = ask(Timeline().add(ENGINE, gpu(1), 0.5).store(tmp_path))
    assert found == {}
    assert [(gap.kind, gap.what) for gap in gaps] == [(GapKind.SIGNAL_MISSING, "throttling")]


def test_a_refused_question_is_a_gap_and_the_others_answer(tmp_path: Path) -> None:
    timeline = Timeline().add(REASONS, gpu(1), 0x40).add(THERMAL, gpu(1), lambda ago: (3600 - ago) * 1e9, ago=3630)
    found, gaps = ask(Witness(timeline.store(tmp_path), lambda asked: asked.function == "fraction_bits"))
    assert found[A] == pytest.approx([1] * 6, abs=0.03)
    assert [(gap.kind, gap.what) for gap in gaps] == [(GapKind.QUERY_FAILED, f"throttling ({REASONS})")]


def test_blank_counters_are_no_throttling(tmp_path: Path) -> None:
    timeline = Timeline().add(THERMAL, gpu(1), lambda ago: 2.0**63 if ago < 900 else 0, ago=3630)
    timeline.add(REASONS, gpu(1), 2.0**63)
    assert ask(timeline.store(tmp_path))[0] == {}
