"""Where a run takes its facts and its bounds from."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from gpuwatch.app.sources import _policies
from gpuwatch.cycle.analysis import Policies
from gpuwatch.settings import load_settings


def test_every_bound_that_is_set_reaches_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one changed bound of each group of the rules."""
    changed = {
        "health": ("min_coverage_ratio", 0.71),
        "idle": ("min_coverage_ratio", 0.81),
        "misfit": ("min_coverage_ratio", 0.82),
        "plan": ("min_confidence_ratio", 0.83),
    }
    for group, (name, value) in changed.items():
        monkeypatch.setenv(f"GPUWATCH_{group}__{name}".upper(), str(value))
    policies, gaps = _policies(load_settings())
    assert not gaps
    assert {item.name for item in fields(Policies)} == {*changed, "xids"}
    for group, (name, value) in changed.items():
        assert getattr(policies, group) == replace(getattr(Policies(), group), **{name: value})
