"""The log tells each turn of a Remediation once, and so do the metrics."""

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.controller.remediation_job import HistoryLog
from gpuwatch.facts.model.remediation import Phase, Remediation, Turn
from store.remediation_stores import proposal, remediation


def turned(kept: Remediation, message: str, phase: Phase, at: datetime) -> Remediation:
    return replace(kept, phase=phase, history=(*kept.history, Turn(at, phase, message)))


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def histories(caplog: pytest.LogCaptureFixture, metrics: Metrics) -> HistoryLog:
    caplog.set_level(logging.INFO, "gpuwatch.run")
    return HistoryLog(metrics)


def counted(metrics: Metrics, name: str) -> dict[str, float]:
    """Phase → value, of those that are not 0."""
    return {
        sample.labels["phase"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == f"gpuwatch_remediation_{name}" and sample.value
    }


def test_each_turn_is_told_once(histories: HistoryLog, caplog: pytest.LogCaptureFixture, metrics: Metrics) -> None:
    now = datetime.now(UTC)
    kept = remediation("taint", proposal=proposal(at=now - timedelta(hours=2)))
    old = turned(kept, "long ago", Phase.PROPOSED, now - timedelta(hours=1))
    waits = turned(old, "it waits", Phase.PROPOSED, now)
    for _ in range(3):  # runs in which nothing new comes to it
        histories.tell(None, waits, now)
    begun = turned(waits, "approved", Phase.NOTIFIED, now)
    histories.tell(waits, begun, now)
    histories.tell(begun, begun, now)
    done = turned(turned(begun, "acting", Phase.ACTING, now), "done", Phase.SUCCEEDED, now)
    histories.tell(None, done, now)
    said = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert said == ["it waits", "approved", "acting", "done"]
    assert counted(metrics, "transitions_total") == {str(each): 1 for each in (Phase.NOTIFIED, *_LAST)}
    left = {str(each): 1 for each in (Phase.PROPOSED, Phase.NOTIFIED, Phase.ACTING)}
    assert counted(metrics, "phase_seconds_count") == left
    assert counted(metrics, "phase_seconds_sum") == {str(Phase.PROPOSED): 7200}


_LAST = (Phase.ACTING, Phase.SUCCEEDED)


def test_what_was_said_long_ago_is_not_said_again(
    histories: HistoryLog, caplog: pytest.LogCaptureFixture, metrics: Metrics
) -> None:
    now = datetime.now(UTC)
    old = turned(remediation("taint"), "long ago", Phase.IN_EFFECT, now - timedelta(hours=1))
    histories.tell(None, old, now)
    assert caplog.records == []
    assert counted(metrics, "transitions_total") == {}
