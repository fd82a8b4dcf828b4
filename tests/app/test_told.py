"""The log tells each turn of a Remediation once, and so do the metrics."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpuwatch.app.controller import Controller
from gpuwatch.app.metrics import Metrics
from gpuwatch.app.sources import Opened
from gpuwatch.cycle.analysis import Policies
from gpuwatch.model.remediation import Phase, Remediation, Turn
from gpuwatch.settings import load_settings
from store.remediation_stores import proposal, remediation


def turned(kept: Remediation, message: str, phase: Phase, at: datetime) -> Remediation:
    return replace(kept, phase=phase, history=(*kept.history, Turn(at, phase, message)))


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def controller(caplog: pytest.LogCaptureFixture, metrics: Metrics) -> Controller:
    caplog.set_level(logging.INFO, "gpuwatch.run")
    opened = Opened(load_settings(environment={}), Policies(), None, None, None, datetime.now(UTC), "nothing")
    return Controller({}, opened, None, None, metrics, threading.Event())


def counted(metrics: Metrics, name: str) -> dict[str, float]:
    """Phase → value, of those that are not 0."""
    return {
        sample.labels["phase"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == f"gpuwatch_remediation_{name}" and sample.value
    }


def test_each_turn_is_told_once(controller: Controller, caplog: pytest.LogCaptureFixture, metrics: Metrics) -> None:
    now = datetime.now(UTC)
    kept = remediation("taint", proposal=proposal(at=now - timedelta(hours=2)))
    old = turned(kept, "long ago", Phase.PROPOSED, now - timedelta(hours=1))
    waits = turned(old, "it waits", Phase.PROPOSED, now)
    for _ in range(3):  # runs in which nothing new comes to it
        controller._tell(None, waits)
    begun = turned(waits, "approved", Phase.NOTIFIED, now)
    controller._tell(waits, begun)
    controller._tell(begun, begun)
    done = turned(turned(begun, "acting", Phase.ACTING, now), "done", Phase.SUCCEEDED, now)
    controller._tell(None, done)
    said = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert said == ["it waits", "approved", "acting", "done"]
    assert counted(metrics, "transitions_total") == {str(each): 1 for each in (Phase.NOTIFIED, *_LAST)}
    left = {str(each): 1 for each in (Phase.PROPOSED, Phase.NOTIFIED, Phase.ACTING)}
    assert counted(metrics, "phase_seconds_count") == left
    assert counted(metrics, "phase_seconds_sum") == {str(Phase.PROPOSED): 7200}


_LAST = (Phase.ACTING, Phase.SUCCEEDED)


def test_what_was_said_long_ago_is_not_said_again(
    controller: Controller, caplog: pytest.LogCaptureFixture, metrics: Metrics
) -> None:
    old = turned(remediation("taint"), "long ago", Phase.IN_EFFECT, datetime.now(UTC) - timedelta(hours=1))
    controller._tell(None, old)
    assert caplog.records == []
    assert counted(metrics, "transitions_total") == {}
