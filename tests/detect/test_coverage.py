import pytest

from gpuwatch.facts.model.telemetry import Schema


@pytest.mark.parametrize(("count", "expected"), [(0.0, 0.0), (21.0, 0.7), (30.0, 1.0), (60.0, 1.0)])
def test_samples_against_expected_samples(count: float, expected: float) -> None:
    assert Schema(interval_seconds=30.0).share_of_samples(count, 900) == pytest.approx(expected)


def test_no_answer_is_unknown_and_not_zero() -> None:
    assert Schema(interval_seconds=30.0).share_of_samples(None, 900) is None


def test_without_a_known_interval_nothing_can_be_expected() -> None:
    assert Schema().share_of_samples(30.0, 900) is None
