"""/metrics of a leader with a simulated fleet, in which everything that can be told is told."""

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from advise.world import advised, answer, profile
from execute.living import ENFORCE, Fleet, drive, new_store, quick
from gpuwatch.account.fleet_cost import advice_counts, fleet_cost
from gpuwatch.account.money import PriceList
from gpuwatch.act.analysis import Policies, analyse, needs_of
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.fragmentation import fragmentation
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.slots import slots, waiting_gpus
from gpuwatch.app.controller.jobs import Job, Jobs
from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.facts.catalog.instances import instance_types
from gpuwatch.facts.model.decision import Analysis, Snapshot
from gpuwatch.facts.model.ledger import Group, LedgerEntry, LossCause, Restated, Row
from gpuwatch.facts.model.remediation import Pause, Remediation
from gpuwatch.sources.collect.collect import collect
from gpuwatch.sources.kube.reader import Followed
from gpuwatch.sources.kube.recorded import RecordedCluster
from gpuwatch.sources.telemetry.recording import open_recording
from lab.simulate.fault_kinds import FaultKind
from lab.simulate.fleet import build_fleet
from lab.simulate.plan import FleetPlan
from lab.simulate.writing import write_fleet

END = datetime(2026, 3, 2, 12, tzinfo=UTC)
FAULTS = (FaultKind.ROW_REMAP_FAILED, FaultKind.DOUBLE_BIT)
SILENT = "h100-node-02"


def simulated(folder: Path, at: datetime = END) -> Analysis:
    """64 GPUs after a day, with sick ones, a silent exporter and idle allocations. Telemetry ends at END."""
    fleet = build_fleet(FleetPlan(seed=7, end=END, days=1.0, interval_seconds=120, faults=FAULTS, idle_allocations=6))
    write_fleet(fleet, folder)
    source = open_recording([folder / "telemetry.parquet"])
    policies = Policies(plan=ENFORCE)
    snapshot = collect(source, RecordedCluster(folder / "cluster"), at, needs_of(policies))
    snapshot = replace(
        snapshot,
        devices=tuple(replace(item, present=item.present and item.node != SILENT) for item in snapshot.devices),
        exporters=tuple(replace(item, up=item.node != SILENT) for item in snapshot.exporters),
    )
    # Whether an alert fires that asks for the brake cannot be told here, which is a reason to brake.
    return analyse(PlanFacts(snapshot=snapshot, alerts=None), policies)


def remediations() -> tuple[Remediation, ...]:
    """What an executor did in small fleets: a Node tainted and its gang moved off; an idle gang released, and another
    that nobody has taken back since."""
    sick, idle, released = Fleet(sick={"GPU-n0-0"}), Fleet(idle={"chat"}), Fleet(idle={"chat"})
    sick.owner("Job", "train", 8)
    idle.owner("Job", "chat", 2)
    released.owner("Job", "chat", 2)
    done: tuple[Remediation, ...] = ()
    for fleet, hours in ((sick, 1.0), (idle, 1.0), (released, 4.0)):
        store = new_store()
        executor = fleet.executor(store, ExecutorPolicies(ENFORCE, quick()))
        fleet.propose(executor)
        drive(fleet, executor, hours)
        done += store.all()
    return done


LEDGER = tuple(
    LedgerEntry(
        hour=END,
        node="",
        pool="",
        gpu_model="A100-SXM4-80GB",
        namespace="" if row.group in (Group.FREE, Group.OUT_OF_SERVICE) else f"team-{index % 3}",
        workload="",
        row=row,
        unknown=unknown,
        gpu_hours=10.0 + index,
        cost=30.0 + index if not unknown else None,
    )
    for index, row in enumerate(Row)
    for unknown in (False, True)
)
"""Of each row some known and unknown hours."""

RESTATED = (
    Restated(
        namespace="team-0",
        gpu_model="A100-SXM4-80GB",
        row=Row.USEFUL,
        unknown=False,
        cause=LossCause.NODE,
        gpu_hours=0.5,
    ),
)


def told_metrics() -> Metrics:
    """Of a leader, without a fleet: its jobs, its settings and some Remediations."""
    metrics = Metrics()
    jobs = Jobs((Job("cycle", lambda: None, 60, seconds=60),), metrics, ())
    jobs.start()
    while "cycle" not in jobs.times or jobs.times["cycle"].succeeded_at is None:
        time.sleep(0.01)
    jobs.stop(10)
    metrics.settings(True, END)
    metrics.leads.set(1)
    metrics.inventory([Followed("pods", objects=4, age_seconds=3.0, lists=1, drifted=0)])
    done = remediations()
    for each in done:
        metrics.proposed(each)
        for index in range(len(each.history)):
            metrics.transitioned(each, index)
    metrics.remembered(done, Pause(), max(turn.at for each in done for turn in each.history))
    return metrics


def leading(analysis: Analysis) -> Metrics:
    """As the controller tells them after a cycle, an hour's profiles and some Remediations."""
    metrics = told_metrics()
    metrics.analysed(analysis)
    notebook = advised(answer(profile()))
    metrics.costs(fleet_cost(analysis, PriceList(instance_types()), [notebook]))
    # As if every other Pod had ended: in a full fleet there is nothing to count.
    cluster = replace(analysis.cluster, pods=analysis.cluster.pods[::2])
    state = Snapshot(at=analysis.at, devices=analysis.devices, cluster=cluster)
    facts = PlanFacts(snapshot=state, findings=analysis.findings)
    metrics.room(slots(facts, labels=facts.policy.slot_labels), waiting_gpus(facts), fragmentation(facts))
    metrics.accounted(END, LEDGER, "USD", RESTATED)
    metrics.advised(advice_counts([notebook], [], [], END))
    return metrics
