"""Where a run takes its facts and its bounds from."""

import threading
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path

import pytest

from gpuwatch.act.analysis import Policies
from gpuwatch.app.controller.controller import Controller
from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.controller.replica import Replica
from gpuwatch.app.settings import load_settings
from gpuwatch.app.sizing import Sized, size
from gpuwatch.app.sources import Opened, _policies, open_sources
from telemetry.timeline import Timeline, gpu, held


def test_every_bound_that_is_set_reaches_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one changed bound of each group of the rules."""
    changed = {
        "health": ("fleet_wide_ratio", 0.21),
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


@pytest.fixture
def options(tmp_path: Path) -> dict[str, object]:
    """Of a recording in which a GPU shows XID 79 for half an hour, which the catalog calls fatal."""
    timeline = Timeline()
    for metric, value in (("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.5), ("DCGM_FI_DEV_FB_USED", 1000.0)):
        timeline.add(metric, gpu(1) | held("a"), value, ago=7200)
    timeline.add("DCGM_FI_DEV_XID_ERRORS", gpu(1), lambda ago: 79 if 1800 <= ago < 3600 else 0, ago=7200)
    timeline.store(tmp_path)
    given: dict[str, object] = dict.fromkeys(("prometheus", "kubeconfig", "context", "at", "cluster"))
    return given | {
        "telemetry": (tmp_path / "timeline.parquet",),
        "no_cluster": True,
        "config": tmp_path / "gpuwatch.yaml",
    }


def sized(opened: Opened) -> Sized:
    return size(opened, None, timedelta(hours=2))


def lost_gpu_hours(found: Sized) -> float:
    return sum(profile.left_out_seconds.get("xid", 0.0) for profile in found.book.profiles.values()) / 3600


def test_an_edit_after_the_sources_were_opened_changes_nothing(options: dict[str, object], tmp_path: Path) -> None:
    config = tmp_path / "gpuwatch.yaml"
    config.write_text("{currency: EUR, plan: {min_pool_nodes_left: 3}}")
    opened = open_sources(options)
    config.write_text("{currency: CHF, plan: {min_pool_nodes_left: 4}}")
    assert sized(opened).currency == "EUR"
    controller = Controller(Replica(options, opened, None, None, Metrics(), threading.Event()))
    for each in (opened, controller.replica.own_sources()):
        assert (
            each.settings.currency,
            each.settings.plan.min_pool_nodes_left,
            each.policies.plan.min_pool_nodes_left,
        ) == (
            "EUR",
            3,
            3,
        )
    controller.replica.take()
    assert (controller.settings.currency, controller.replica.own_sources().policies.plan.min_pool_nodes_left) == (
        "CHF",
        4,
    )


def test_the_operators_xids_reach_the_profiles(options: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "gpuwatch.yaml").write_text("{}")
    assert lost_gpu_hours(sized(open_sources(options))) > 0.4
    (tmp_path / "xids.yaml").write_text("xids: {79: {class: ignore, reason: a riser that is known to be loose}}")
    (tmp_path / "gpuwatch.yaml").write_text(f"xid_overrides: {tmp_path / 'xids.yaml'}")
    assert lost_gpu_hours(sized(open_sources(options))) == 0
