"""The cluster as `gpuwatch run` keeps it in sight: who follows, who lists, and what is told of its age."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from execute.living import Fleet, new_store
from gpuwatch.act.analysis import Policies, analyse
from gpuwatch.app.controller import look
from gpuwatch.app.controller.controller import Controller
from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.controller.replica import Replica
from gpuwatch.app.settings import load_settings
from gpuwatch.app.sources import Opened
from gpuwatch.facts.model.decision import Analysis
from gpuwatch.sources.kube.live import LiveCluster
from gpuwatch.sources.kube.reader import Followed
from gpuwatch.sources.kube.recorded import RecordedCluster
from kube.api_server import ApiServer, client_of, serving
from kube.cluster_json import pod

NOW = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with serving(ApiServer({"/api/v1/pods": [pod()]})) as started:
        yield started


@pytest.fixture
def opened(server: ApiServer) -> Iterator[Opened]:
    settings = load_settings(environment={})
    with client_of(server.url) as client:
        policies = Policies(health=settings.health, idle=settings.idle, plan=settings.plan)
        yield Opened(settings, policies, None, LiveCluster(client), None, NOW, "")


def watching() -> int:
    return sum(thread.name.startswith("watch ") for thread in threading.enumerate())


def listed(server: ApiServer) -> int:
    return sum("watch" not in request.query for request in server.asked("/api/v1/pods"))


def test_a_live_cluster_is_followed_until_it_rests(opened: Opened, server: ApiServer) -> None:
    mine = opened.followed()
    assert mine.cluster is not None
    assert mine.cluster.followed() == ()
    for _ in range(3):
        assert [item.name for item in mine.cluster.read(NOW).pods] == ["train-0"]
    assert (listed(server), watching()) == (1, 1)
    assert [(item.resource, item.objects, item.lists) for item in mine.cluster.followed()] == [("pods", 1, 1)]
    mine.rest()
    assert (mine.cluster.followed(), watching()) == ((), 0)
    mine.rest()
    mine.cluster.read(NOW)
    assert (listed(server), watching()) == (2, 1)
    mine.rest()


def test_other_sources_stay_as_they_are(opened: Opened, tmp_path: Path) -> None:
    for cluster in (None, RecordedCluster(tmp_path)):
        other = replace(opened, cluster=cluster)
        assert other.followed() == other
        assert cluster is None or cluster.followed() == ()
        other.rest()


def test_the_controller_follows_and_lets_go_when_it_ends(opened: Opened, server: ApiServer) -> None:
    controller = Controller(Replica({}, opened, None, None, Metrics(), threading.Event()))
    for _ in range(2):
        controller.replica.opened.cluster.read(NOW)  # type: ignore[union-attr]
    assert (listed(server), watching()) == (1, 1)
    controller.replica.opened.rest()
    assert watching() == 0


def test_a_storm_that_only_the_look_of_the_remediation_task_sees_is_remembered(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    def stormy(*arguments: Any) -> Analysis:
        found = analyse(*arguments)
        return replace(found, plan=replace(found.plan, last_storm=NOW))

    monkeypatch.setattr(look, "analyse", stormy)
    monkeypatch.setattr(look, "take_snapshot", lambda *_, **__: replace(Fleet().view().snapshot, at=NOW))
    controller = Controller(Replica({}, opened, None, None, Metrics(), threading.Event()))
    store = new_store()
    view = controller.look.fresh(store)
    controller.replica.opened.rest()
    assert (view.last_storm, controller.look._storm.at(term=0)) == (NOW, NOW)


def test_metrics_tell_the_age_and_count_lists_and_drift_across_new_settings() -> None:
    metrics = Metrics()
    pods = Followed(resource="pods", objects=5, age_seconds=3.0, lists=1, drifted=0)

    def value(name: str, resource: str = "pods") -> float | None:
        return metrics.registry.get_sample_value(f"gpuwatch_inventory_{name}", {"resource": resource})

    metrics.inventory([pods])
    assert (value("age_seconds"), value("lists_total"), value("drift_total")) == (3.0, 1.0, 0.0)
    # Two of one name are Pods, and Pods as owners of others.
    older = replace(pods, age_seconds=9.0, lists=4, drifted=2)
    metrics.inventory([older, replace(older, age_seconds=1.0)])
    assert (value("age_seconds"), value("lists_total"), value("drift_total")) == (9.0, 4.0, 2.0)
    metrics.inventory([replace(pods, age_seconds=0.5)])  # a new reader counts from the start
    assert (value("age_seconds"), value("lists_total"), value("drift_total")) == (0.5, 5.0, 2.0)
    metrics.inventory([])
    assert value("age_seconds") is None
    metrics.inventory([pods])
    metrics.stood_down()
    assert value("age_seconds") is None
