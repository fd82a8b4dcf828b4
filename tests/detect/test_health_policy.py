from dataclasses import fields
from typing import Any

import pytest

from gpuwatch.judge.health.assess import HealthPolicy


def test_every_bound_is_documented() -> None:
    text = HealthPolicy.__doc__ or ""
    assert [item.name for item in fields(HealthPolicy) if item.name not in text] == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fleet_wide_ratio": 0.0}, "health.fleet_wide_ratio is 0.0"),
        ({"fleet_wide_ratio": 1.01}, "ratio above 0 and up to 1"),
        ({"thermal_duty_ratio": float("nan")}, "health.thermal_duty_ratio is nan"),
        ({"window_seconds": 0}, "health.window_seconds is 0"),
        ({"window_seconds": 1801}, "at least twice window_seconds"),
        ({"missing_seconds": -1}, "health.missing_seconds is -1"),
        ({"telemetry_missing_exporters": float("inf")}, "health.telemetry_missing_exporters is inf"),
        ({"telemetry_missing_exporters": 0}, "number above 0"),
        ({"temperature_margin_celsius": 51.0}, "from -20 to 50"),
        ({"thermal_severe_ratio": 0.05}, "at least thermal_duty_ratio"),
        ({"min_peers": 1}, "health.min_peers is 1; it has to be 2 or more"),
        ({"common_cause_nodes": 1}, "2 or more"),
    ],
)
def test_nonsense_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace(".", r"\.")):
        HealthPolicy(**change)


@pytest.mark.parametrize(
    "change",
    [{"fleet_wide_ratio": 1.0}, {"window_seconds": 1800}, {"min_peers": 2}, {"temperature_margin_celsius": -3.0}],
)
def test_the_edges_are_allowed(change: dict[str, Any]) -> None:
    HealthPolicy(**change)
