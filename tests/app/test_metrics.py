"""/metrics: everything that alerts and dashboards need is there, and named as Prometheus' own linter wants it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from execute.living import ENFORCE, START, Fleet, drive, new_store, quick
from gpuwatch.app.counted_writer import CountedWriter
from gpuwatch.app.jobs import Job, Jobs
from gpuwatch.app.metrics import Metrics
from gpuwatch.execute.advance import Policies
from gpuwatch.kube.memory_cluster import MemoryCluster
from gpuwatch.kube.writer import WriteError
from gpuwatch.model.decision import Analysis, Coverage, Mode
from gpuwatch.model.remediation import ObjectRef, Pause, Phase
from gpuwatch.model.telemetry import Gap, GapKind, Schema
from gpuwatch.store.remediation_sqlite import SqliteRemediations
from parts.prometheus_server import ServerBuild


@pytest.fixture
def store() -> Iterator[SqliteRemediations]:
    with new_store() as opened:
        yield opened


def analysed(fleet: Fleet) -> Analysis:
    view = fleet.view()
    return Analysis(
        version=1,
        at=START,
        coverage=Coverage(devices=64, devices_present=63, devices_allocated=10, health_unknown=1, idle_unknown=2),
        devices=view.snapshot.devices,
        cluster=view.snapshot.cluster,
        findings=view.findings,
        plan=view.plan(ENFORCE, (), {}),
        telemetry_schema=Schema(),
        gaps=(Gap(kind=GapKind.REFUSED, what="rayclusters.ray.io", detail="403"),),
    )


def filled(store: SqliteRemediations) -> Metrics:
    """After a release that succeeded, one that a person had undone, and a report that could not be sent."""
    metrics = Metrics()
    metrics.settings(True, datetime.now(UTC))
    metrics.leads.set(1)
    Jobs((Job("analysis", lambda: None, 60, seconds=60),), metrics, ())
    metrics.job_seconds.labels("analysis").observe(1.5)
    metrics.job_success.labels("analysis").set_to_current_time()
    fleet = Fleet(idle={"chat"}, sick={"GPU-n0-0"})
    fleet.owner("Job", "chat", 2, node="n1")
    fleet.owner("Job", "train", 8)
    metrics.analysed(analysed(fleet))
    fleet = Fleet(idle={"chat"})
    fleet.owner("Job", "chat", 2)
    executor = fleet.executor(store, Policies(ENFORCE, quick()))
    fleet.propose(executor)
    drive(fleet, executor, 1.0)
    metrics.remembered(store.all(), Pause())
    writer = CountedWriter(fleet.cluster, metrics.requested(rehearsal=False))
    with pytest.raises(WriteError):
        writer.delete(ObjectRef("v1", "Pod", "none", "ml"))
    metrics.proposed.labels("taint_node").inc()
    metrics.turns.labels("taint_node", "InEffect").inc()
    metrics.delivered("report", sent=False)
    metrics.untold(1)
    return metrics


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


DOCS = (Path(__file__).parents[2] / "docs" / "controller.md").read_text(encoding="utf-8")

WANTED = (
    "gpuwatch_analysis_timestamp_seconds",
    "gpuwatch_notifications_undelivered",
    "gpuwatch_brake",
    "gpuwatch_budget_in_flight_gpus",
    "gpuwatch_budget_limit_gpus",
    "gpuwatch_build_info",
    "gpuwatch_cluster_request_failures_total",
    "gpuwatch_cluster_writes_total",
    "gpuwatch_deliveries_pending",
    "gpuwatch_deliveries_total",
    "gpuwatch_detector_outcomes",
    "gpuwatch_detector_precision_ratio",
    "gpuwatch_devices",
    "gpuwatch_findings",
    "gpuwatch_gaps",
    "gpuwatch_idle_gpu_seconds",
    "gpuwatch_job_duration_seconds",
    "gpuwatch_job_errors_total",
    "gpuwatch_job_last_success_timestamp_seconds",
    "gpuwatch_job_missed_total",
    "gpuwatch_leader",
    "gpuwatch_paused",
    "gpuwatch_plan_items",
    "gpuwatch_proposals_total",
    "gpuwatch_refusals",
    "gpuwatch_remediation_turns_total",
    "gpuwatch_remediations",
    "gpuwatch_report_done_timestamp_seconds",
    "gpuwatch_report_due_timestamp_seconds",
    "gpuwatch_settings_last_reload_success_timestamp_seconds",
    "gpuwatch_settings_last_reload_successful",
    "gpuwatch_unknown",
)


def test_everything_that_is_asked_for_is_there(store: SqliteRemediations) -> None:
    told = generate_latest(filled(store).registry).decode()
    assert [name for name in WANTED if f"\n# HELP {name} " not in told] == []
    assert [name for name in WANTED if f"`{name}`" not in DOCS] == []


def test_prometheus_own_linter_has_nothing_to_say(store: SqliteRemediations, newest_prometheus: ServerBuild) -> None:
    told = generate_latest(filled(store).registry)
    checked = subprocess.run(
        [newest_prometheus.promtool, "check", "metrics"], input=told, capture_output=True, check=False
    )
    assert (checked.stdout.decode() + checked.stderr.decode(), checked.returncode) == ("", 0)


def test_precision_counts_outcomes_and_nothing_else(store: SqliteRemediations) -> None:
    metrics = filled(store)
    assert value(metrics, "gpuwatch_detector_outcomes", detector="abandoned", right="true") is None  # still held
    held = next(
        each for each in store.all() if each.phase is Phase.IN_EFFECT and "abandoned" in each.proposal.detectors
    )
    right = [replace(held, name=f"right-{number}", phase=Phase.SUCCEEDED) for number in range(3)]
    wrong = replace(held, name="wrong", phase=Phase.UNDONE, undo_asked=True)
    metrics.remembered((*right, wrong), Pause())
    assert value(metrics, "gpuwatch_detector_outcomes", detector="abandoned", right="true") == 3
    assert value(metrics, "gpuwatch_detector_outcomes", detector="abandoned", right="false") == 1
    lower = value(metrics, "gpuwatch_detector_precision_ratio", detector="abandoned", bound="lower")
    upper = value(metrics, "gpuwatch_detector_precision_ratio", detector="abandoned", bound="upper")
    assert lower is not None
    assert upper is not None
    assert 0.30 < lower < 0.75 < upper < 0.96  # Wilson's interval of 3 in 4
    metrics.stood_down()
    assert value(metrics, "gpuwatch_detector_outcomes", detector="abandoned", right="true") is None


def test_requests_to_the_cluster_are_counted_by_what_became_of_them() -> None:
    metrics, cluster = Metrics(), MemoryCluster()
    plain = CountedWriter(cluster, metrics.requested(rehearsal=False))
    rehearsal = CountedWriter(cluster, metrics.requested(rehearsal=True))
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "ml", "labels": {"app": "a"}},
        "spec": {},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    plain.create(pod)
    with pytest.raises(WriteError):
        plain.create(pod)
    assert value(metrics, "gpuwatch_cluster_writes_total", verb="create", rehearsal="false") == 1
    conflict = {"verb": "create", "failure": "conflict", "rehearsal": "false"}
    assert value(metrics, "gpuwatch_cluster_request_failures_total", **conflict) == 1
    budget = {"verb": "evict", "failure": "budget", "rehearsal": "true"}
    assert value(metrics, "gpuwatch_cluster_request_failures_total", **budget) == 0  # there from the start
    cluster.put(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "a", "namespace": "ml"},
            "spec": {"selector": {"matchLabels": {"app": "a"}}},
            "status": {"disruptionsAllowed": 0},
        }
    )
    with pytest.raises(WriteError):
        rehearsal.evict(ObjectRef("v1", "Pod", "a", "ml"), dry_run=True)
    assert value(metrics, "gpuwatch_cluster_request_failures_total", **budget) == 1
    assert plain.get(ObjectRef("v1", "Pod", "a", "ml")) is not None
    assert value(metrics, "gpuwatch_cluster_writes_total", verb="get", rehearsal="false") is None


def test_modes_and_refusals_are_those_of_the_last_plan(store: SqliteRemediations) -> None:
    metrics = filled(store)
    counted = value(metrics, "gpuwatch_plan_items", action="taint_node", mode=str(Mode.ENFORCE), admitted="true")
    assert counted == 1
    assert value(metrics, "gpuwatch_gaps", kind="refused") == 1
