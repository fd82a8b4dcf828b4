"""The idle policy refuses bounds that make no sense, each by its name."""

import pytest

from gpuwatch.judge.idle.assess import IdlePolicy


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("active_ratio", 0.0, "a ratio between 0 and 1"),
        ("active_ratio", 1.0, "a ratio between 0 and 1"),
        ("min_coverage_ratio", float("nan"), "a ratio between 0 and 1"),
        ("min_age_seconds", 0, "seconds, above 0"),
        ("window_seconds", 367 * 86400, "within a year"),
        ("model_bytes", 0, "a number above 0"),
        ("power_floor_watts", float("inf"), "a number above 0"),
    ],
)
def test_a_bound_out_of_range_is_refused(name: str, value: float, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"idle\.{name} is .*{reason}"):
        IdlePolicy(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("smaller", "larger", "at"),
    [
        ("step_seconds", "recent_seconds", 1800),
        ("recent_seconds", "min_silence_seconds", 7200),
        ("recent_window_seconds", "min_age_seconds", 5400),
        ("min_silence_seconds", "window_seconds", 14 * 86400),
        ("context_bytes", "model_bytes", 2**30),
    ],
)
def test_bounds_that_contradict_each_other_are_refused(smaller: str, larger: str, at: int) -> None:
    IdlePolicy(**{smaller: at})
    with pytest.raises(ValueError, match=rf"idle\.{smaller} is {at + 1} and idle\.{larger} is {at}"):
        IdlePolicy(**{smaller: at + 1})
