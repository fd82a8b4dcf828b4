from __future__ import annotations

import pytest

from detect.builders import device
from gpuwatch.detect.coverage import coverage_ratio, coverage_stat
from gpuwatch.model.telemetry import Readings, Schema, Signal, Statistic, WindowStat

STAT = coverage_stat(Signal.BUSY_RATIO, 900)


def share(count: float | None, interval: float = 30.0) -> float | None:
    answers = {} if count is None else {STAT.key: {"gpu-0": count}}
    return coverage_ratio(Readings(answers), Schema(interval_seconds=interval), device(), Signal.BUSY_RATIO, 900)


def test_it_asks_for_the_count_of_the_same_window() -> None:
    assert WindowStat(Signal.BUSY_RATIO, Statistic.COUNT, 900) == STAT


@pytest.mark.parametrize(("count", "expected"), [(0.0, 0.0), (21.0, 0.7), (30.0, 1.0), (60.0, 1.0)])
def test_samples_against_expected_samples(count: float, expected: float) -> None:
    assert share(count) == pytest.approx(expected)


def test_no_answer_is_unknown_and_not_zero() -> None:
    assert share(None) is None


def test_without_a_known_interval_nothing_can_be_expected() -> None:
    assert share(30.0, interval=0.0) is None


def test_a_mig_instance_falls_back_on_its_gpu() -> None:
    readings = Readings({STAT.key: {"gpu-0": 15.0}})
    ratio = coverage_ratio(readings, Schema(interval_seconds=30), device(mig="7"), Signal.BUSY_RATIO, 900)
    assert ratio == pytest.approx(0.5)
