"""Everything concluded at one moment: Snapshot ▸ findings ▸ plan ▸ Analysis. Pure and deterministic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpuwatch.act.plan.demand import explained
from gpuwatch.act.plan.draw import draw_plan
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.catalog.metrics import metric_rows
from gpuwatch.facts.catalog.xids import Xid
from gpuwatch.facts.model.decision import (
    ActionKind,
    Analysis,
    Coverage,
    Family,
    Finding,
    FindingKind,
    Severity,
    Snapshot,
    Verdict,
)
from gpuwatch.facts.model.faults import FaultMemory
from gpuwatch.facts.model.needs import TelemetryNeeds, statistics
from gpuwatch.facts.model.remediation import Remediation
from gpuwatch.facts.model.telemetry import Device, DoubtedDevice, Schema, Signal
from gpuwatch.judge.health import assess as health
from gpuwatch.judge.health.assess import HealthPolicy
from gpuwatch.judge.idle import assess as idle
from gpuwatch.judge.idle.assess import IdlePolicy
from gpuwatch.judge.misfit import assess as misfit
from gpuwatch.judge.misfit.assess import MisfitPolicy

VERSION = 1
"""Version of the Analysis' JSON. Fields may be added; a removal or a change of meaning raises it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    health: HealthPolicy = HealthPolicy()
    idle: IdlePolicy = IdlePolicy()
    misfit: MisfitPolicy = MisfitPolicy()
    plan: PlanPolicy = PlanPolicy()
    xids: Mapping[int, Xid] | None = None  # the catalog with the operator's overrides; None: the catalog itself


def needs_of(policies: Policies) -> TelemetryNeeds:
    """The telemetry that the rules need under these policies."""
    others = {**idle.needs_of_rules(policies.idle), **misfit.needs_of_rules(policies.misfit)}
    return TelemetryNeeds(
        stats=statistics({**health.needs_of_rules(policies.health), **others}),
        state_signals=health.state_signals(policies.health),
        change_window_seconds=policies.health.change_window_seconds,
        activity_window_seconds=policies.idle.window_seconds,
        activity_step_seconds=policies.idle.step_seconds,
        activity_bound_ratio=policies.idle.active_ratio,
        port_stats=tuple(stat for ask in health.asks(policies.health).values() for stat in ask.port_stats),
    )


def remember(snapshot: Snapshot, policies: Policies, memory: FaultMemory) -> FaultMemory:
    """The memory of faults after this Snapshot. To remember the same one twice changes nothing."""
    return health.remember_faults(snapshot, policies.health, memory, xids=policies.xids)


def assess(
    snapshot: Snapshot, policies: Policies, *, everything: bool = False, faults: FaultMemory | None = None
) -> tuple[Finding, ...]:
    """The rules' findings, unordered. everything: include HEALTHY and similar ones."""
    found = (
        *health.assess_health(snapshot, policies.health, everything=everything, xids=policies.xids, memory=faults),
        *idle.assess_idle(snapshot, policies.idle, everything=everything),
        *misfit.assess_misfit(snapshot, policies.misfit, policies.plan.topology_labels, everything=everything),
    )
    dated = tuple(_dated(snapshot, item) for item in found)
    return explained(PlanFacts(snapshot=snapshot, findings=dated, policy=policies.plan))


def _dated(snapshot: Snapshot, finding: Finding) -> Finding:
    """A degraded device whose rule gives no beginning, with that of the state it rests on first. Where the state is as
    old as what was read, the evidence has that window, and the beginning is the latest that there can be."""
    if finding.verdict is not Verdict.DEGRADED or finding.since is not None or not finding.evidence:
        return finding
    fact, *rest = finding.evidence
    key = (finding.subject.name, fact.signal)
    change = next((each for each in snapshot.changes if (each.device, each.signal.value) == key), None)
    if change is None:
        return finding
    seconds = round((snapshot.at - change.at).total_seconds()) if change.before is None else fact.window_seconds
    fact = replace(fact, at=change.at, window_seconds=seconds)
    return replace(finding, since=change.at, evidence=(fact, *rest))


def analyse(known: PlanFacts, policies: Policies, faults: FaultMemory | None = None) -> Analysis:
    """Everything concluded from what is known; its findings and policy are filled in here. faults: None for a single
    run."""
    snapshot = known.snapshot
    findings = tuple(sorted(assess(snapshot, policies, faults=faults), key=_order))
    missing = missing_signals(snapshot.telemetry_schema, policies).items()
    limited = {rule: tuple(map(str, signals)) for rule, signals in missing}
    return Analysis(
        version=VERSION,
        at=snapshot.at,
        coverage=coverage_of(snapshot.devices, snapshot.doubted, findings, limited),
        devices=snapshot.devices,
        doubted=snapshot.doubted,
        cluster=snapshot.cluster,
        findings=findings,
        plan=draw_plan(replace(known, findings=findings, policy=policies.plan)),
        telemetry_schema=snapshot.telemetry_schema,
        gaps=snapshot.gaps,
    )


def proofs(
    snapshot: Snapshot, policies: Policies, known: tuple[Remediation, ...], faults: FaultMemory
) -> tuple[Finding, ...]:
    """HEALTHY and UNKNOWN findings on the tainted devices by the rules behind the open taints. An Analysis leaves
    HEALTHY findings out, and without them no taint would be removed."""
    wanted = {
        (device, detector)
        for each in known
        if each.phase.open and each.proposal.action is ActionKind.TAINT_NODE
        for device in each.proposal.devices
        for detector in each.proposal.detectors
    }
    if not wanted:
        return ()
    return tuple(
        item
        for item in health.assess_health(snapshot, policies.health, everything=True, xids=policies.xids, memory=faults)
        if item.verdict in (Verdict.HEALTHY, Verdict.UNKNOWN)
        and any((device, str(item.kind)) in wanted for device in item.devices)
    )


def missing_signals(schema: Schema, policies: Policies) -> dict[str, tuple[Signal, ...]]:
    """Rule → signals that it can use and that the exporters here support, but nothing exports."""
    found = {item.signal for item in schema.signals}
    # Without any exporter, suggest the commonest one.
    vocabularies = set(schema.vocabularies) or {"dcgm"}
    possible = {row.signal for row in metric_rows() if row.vocabulary in vocabularies}
    missing = {
        rule: tuple(signal for signal in signals if signal in possible and signal not in found)
        for rule, signals in rule_signals(policies).items()
    }
    return {rule: signals for rule, signals in missing.items() if signals}


def rule_signals(policies: Policies) -> Mapping[str, tuple[Signal, ...]]:
    """The signals that each rule rests on."""
    others = {**idle.needs_of_rules(policies.idle), **misfit.needs_of_rules(policies.misfit)}
    return {
        **health.signals_of_rules(policies.health),
        **{rule: tuple(dict.fromkeys(stat.signal for stat in stats)) for rule, stats in others.items()},
    }


SEVERITY_RANK = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}
_VERDICT = {Verdict.DEGRADED: 0, Verdict.IDLE: 1, Verdict.MISFIT: 2, Verdict.UNKNOWN: 3}


def _order(finding: Finding) -> tuple[int, int, float, str]:
    return (_VERDICT.get(finding.verdict, 4), SEVERITY_RANK[finding.severity], -finding.gpu_hours, finding.id)


def coverage_of(
    trusted: Sequence[Device],
    doubted: Sequence[DoubtedDevice],
    findings: Sequence[Finding],
    rules_limited: dict[str, tuple[str, ...]],
) -> Coverage:
    """What is known of these devices. findings: those about them. The health of a doubted one is unknown."""
    devices = (*trusted, *(item.shown for item in doubted))
    present = [device for device in devices if device.present]
    unknown = [finding for finding in findings if finding.verdict is Verdict.UNKNOWN]
    # Other UNKNOWN findings are about one fault (an XID that may be the application's), not about the device's health.
    health_unknown = {
        device
        for finding in unknown
        if finding.kind in (FindingKind.HEALTH_UNKNOWN, FindingKind.EXPORTER_DOWN, FindingKind.TELEMETRY_MISSING)
        for device in finding.devices
    }
    idle_unknown = {ref for finding in unknown if finding.family is Family.IDLE for ref in finding.pods}
    return Coverage(
        devices=len(devices),
        devices_present=len(present),
        devices_resolved=sum(1 for device in devices if device.node is not None),
        devices_allocated=sum(1 for device in present if device.pods),
        devices_shared=sum(1 for device in present if device.shared),
        health_unknown=len(health_unknown) + len(doubted),
        idle_unknown=len(idle_unknown),
        rules_limited=rules_limited,
    )
