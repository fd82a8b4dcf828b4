"""The policies refuse bounds that make no sense, each by its name."""

import re
from dataclasses import fields
from typing import Any

import pytest

from gpuwatch.judge.health.assess import HealthPolicy
from gpuwatch.judge.idle.assess import IdlePolicy


def test_every_bound_is_documented() -> None:
    text = HealthPolicy.__doc__ or ""
    assert [item.name for item in fields(HealthPolicy) if item.name not in text] == []


@pytest.mark.parametrize(
    ("policy", "change", "words"),
    [
        (HealthPolicy, {"fleet_wide_ratio": 0.0}, "health.fleet_wide_ratio is 0.0"),
        (HealthPolicy, {"fleet_wide_ratio": 1.01}, "ratio above 0 and up to 1"),
        (HealthPolicy, {"thermal_duty_ratio": float("nan")}, "health.thermal_duty_ratio is nan"),
        (HealthPolicy, {"window_seconds": 0}, "health.window_seconds is 0"),
        (HealthPolicy, {"window_seconds": 1801}, "at least twice window_seconds"),
        (HealthPolicy, {"missing_seconds": -1}, "health.missing_seconds is -1"),
        (HealthPolicy, {"telemetry_missing_exporters": float("inf")}, "health.telemetry_missing_exporters is inf"),
        (HealthPolicy, {"telemetry_missing_exporters": 0}, "number above 0"),
        (HealthPolicy, {"temperature_margin_celsius": 51.0}, "from -20 to 50"),
        (HealthPolicy, {"thermal_severe_ratio": 0.05}, "at least thermal_duty_ratio"),
        (HealthPolicy, {"min_peers": 1}, "health.min_peers is 1; it has to be 2 or more"),
        (HealthPolicy, {"common_cause_nodes": 1}, "2 or more"),
        (IdlePolicy, {"active_ratio": 0.0}, "idle.active_ratio is 0.0; it has to be a ratio between 0 and 1"),
        (IdlePolicy, {"active_ratio": 1.0}, "idle.active_ratio is 1.0; it has to be a ratio between 0 and 1"),
        (
            IdlePolicy,
            {"min_coverage_ratio": float("nan")},
            "idle.min_coverage_ratio is nan; it has to be a ratio",
        ),
        (IdlePolicy, {"min_age_seconds": 0}, "idle.min_age_seconds is 0; it has to be seconds, above 0"),
        (
            IdlePolicy,
            {"window_seconds": 367 * 86400},
            "idle.window_seconds is 31708800; it has to be seconds, above 0 and within",
        ),
        (IdlePolicy, {"model_bytes": 0}, "idle.model_bytes is 0; it has to be a number above 0"),
        (
            IdlePolicy,
            {"power_floor_watts": float("inf")},
            "idle.power_floor_watts is inf; it has to be a number above",
        ),
    ],
)
def test_nonsense_is_refused_by_name(policy: type, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        policy(**change)


@pytest.mark.parametrize(
    "change",
    [{"fleet_wide_ratio": 1.0}, {"window_seconds": 1800}, {"min_peers": 2}, {"temperature_margin_celsius": -3.0}],
)
def test_the_edges_are_allowed(change: dict[str, Any]) -> None:
    HealthPolicy(**change)


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
