"""Brakes: conditions that stop all actions, such as implausible telemetry, a recent storm, an alert or a freeze."""

from collections.abc import Callable
from datetime import datetime, timedelta

from gpuwatch.act.plan.candidates import TAINTING
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.guards import Guard
from gpuwatch.facts.model.cluster import FactKind
from gpuwatch.facts.model.decision import Family, Finding, FindingKind, Refusal, Severity, SubjectKind, Verdict
from gpuwatch.facts.model.telemetry import Device, GapKind

# Share of the known devices that report now, and of the ready Nodes with accelerators that telemetry shows. Below half,
# what is missing could turn every other number round.
_MIN_COVERAGE_RATIO = 0.5
_STORM_MIN_NODES = 2
"""One Node may fail by itself."""
_STORM_WINDOW = timedelta(hours=1)
"""What one cause breaks, it breaks together: a rollout of an exporter or a driver passes a pool within an hour. What
broke one after the other over days is an old fleet."""
_STARTING = timedelta(minutes=30)
"""So long a new Node may take until its driver and exporter run, and a scrape has shown them. Nodes that live less
(spot, batch) may never be shown."""
_REMEDIATION_GAP = "remediation "
"""Prefix of the gaps that stores report for Remediations they cannot read."""


def brakes(facts: PlanFacts) -> tuple[Refusal, ...]:
    """Every reason against doing anything now; empty for none."""
    return tuple(name.refuses(reason) for name, check in BRAKES.items() if (reason := check(facts)))


def last_storm(facts: PlanFacts) -> datetime | None:
    """Time of the last storm within its cool-down, as input of the next plan; else None."""
    if _storm(facts):
        return facts.snapshot.at
    return facts.last_storm if _cooling(facts) else None


def first_seen(facts: PlanFacts) -> dict[str, datetime]:
    """Since when each finding that counts for a storm has been there, as input of the next plan."""
    counting = (item.id for item in facts.findings if _counts(item, facts))
    return {name: facts.first_seen.get(name, facts.snapshot.at) for name in counting}


def _counts(finding: Finding, facts: PlanFacts) -> bool:
    """Whether it could cause a taint or a move; or it says that one cause stands behind GPUs which are then UNKNOWN."""
    if finding.subject.kind is SubjectKind.FLEET:
        return finding.severity is Severity.CRITICAL
    sure = finding.verdict is Verdict.DEGRADED and finding.confidence_ratio >= facts.policy.min_confidence_ratio
    return sure and finding.family is Family.HEALTH and finding.advice in TAINTING


def _newly_degraded(facts: PlanFacts) -> frozenset[str]:
    """Nodes that became degraded within the window. A beginning that is not known is now."""
    at, began = facts.snapshot.at, dict[str, datetime]()
    for item in facts.findings:
        if _counts(item, facts):
            since = min(item.since or at, facts.first_seen.get(item.id, at))
            there = {item.node, *(facts.devices[name].node for name in item.devices if name in facts.devices)}
            began.update((name, min(since, began.get(name, at))) for name in there if name is not None)
    return frozenset(name for name, since in began.items() if at - since < _STORM_WINDOW)


def _degraded_together(facts: PlanFacts) -> str:
    """Of a pool, or of the fleet where its pools are small."""
    new, scopes = _newly_degraded(facts), dict[str, set[str]]()
    for node in facts.nodes.values():
        if facts.node_gpus(node):
            for scope in (f"pool {facts.pool(node)}", "the cluster"):
                scopes.setdefault(scope, set()).add(node.name)
    for scope, names in scopes.items():
        sick = sorted(names & new)
        if len(sick) >= _STORM_MIN_NODES and len(sick) / len(names) >= facts.policy.storm_ratio:
            what = f"{len(sick)} of {len(names)} Nodes of {scope} became degraded within an hour, such as {sick[0]}"
            return f"{what}. From {facts.policy.storm_ratio:.0%} on, one cause such as telemetry is likelier."
    return ""


def _gone(device: Device, facts: PlanFacts) -> bool:
    """Whether its Node left the cluster. False where that was not read, or telemetry's hosts are no Nodes at all."""
    cluster = facts.snapshot.cluster
    read = cluster.known and all(each.kind is not FactKind.NODES for each in cluster.unread)
    return read and not device.present and device.node is None and bool(facts.devices_of_node)


def _paused(facts: PlanFacts) -> str:
    pause = facts.pause
    if not pause.paused:
        return ""
    by = f" by {pause.by}" if pause.by else ""
    since = f" since {pause.since:%Y-%m-%d %H:%M %Z}" if pause.since else ""
    return f"gpuwatch is paused{by}{since}{f': {pause.reason}' if pause.reason else ''}."


def _memory(facts: PlanFacts) -> str:
    unread = [
        gap.what
        for gap in facts.snapshot.gaps
        if gap.kind is GapKind.BAD_INPUT and gap.what.startswith(_REMEDIATION_GAP)
    ]
    if not unread:
        return ""
    more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
    return f"The record of {unread[0]}{more} cannot be read, so budgets cannot count what was done."


def _first(facts: PlanFacts, kind: GapKind) -> str:
    return next((gap.detail for gap in facts.snapshot.gaps if gap.kind is kind), "")


def _partial(facts: PlanFacts) -> str:
    partial = _first(facts, GapKind.PARTIAL)
    return f"Telemetry answered only in part: {partial}" if partial else ""


def _storm(facts: PlanFacts) -> str:
    if _partial(facts):
        return ""  # rows that are missing may look like a storm, which would be remembered
    devices = facts.snapshot.devices
    present = [device for device in devices if device.present]
    known = facts.physical(device.id for device in devices if not _gone(device, facts))
    reporting = facts.physical(device.id for device in present)
    if not devices:
        return "Telemetry shows no GPU that is trusted; `gpuwatch doctor` says which exporter it looks for."
    grave = [finding for finding in facts.findings if finding.severity is Severity.CRITICAL]
    if any(finding.kind is FindingKind.TELEMETRY_MISSING for finding in grave):
        return "Telemetry of the fleet as a whole is missing or stale."
    if reporting < _MIN_COVERAGE_RATIO * known:
        return f"Only {reporting} of {known} known GPUs report."
    # A Prometheus that lost a part of the fleet and its history shows no missing device. Compare with the cluster's
    # Nodes, if the hosts in telemetry are Nodes.
    new = facts.snapshot.at - _STARTING
    ready = (node for node in facts.nodes.values() if node.ready is True and any(node.accelerators.values()))
    holding = [node for node in ready if node.created is None or node.created <= new]
    seen = sum(any(item.present for item in facts.devices_of_node.get(node.name, ())) for node in holding)
    if seen < _MIN_COVERAGE_RATIO * len(holding) and all(device.node is not None for device in present):
        return f"Telemetry shows devices of only {seen} of {len(holding)} Nodes that have any."
    return _degraded_together(facts)


def _cooling(facts: PlanFacts) -> str:
    if facts.last_storm is None:
        return ""
    until = facts.last_storm + timedelta(seconds=facts.policy.storm_cooldown_seconds)
    if facts.snapshot.at >= until:
        return ""
    return f"The last storm was at {facts.last_storm:%H:%M:%S %Z}; no action begins before {until:%H:%M:%S}."


def _alert(facts: PlanFacts) -> str:
    if not facts.policy.brake_alerts:
        return ""
    if facts.alerts is None:
        why = " ".join(gap.detail for gap in facts.snapshot.gaps if gap.what == "alerts")
        return f"It is not known whether {', '.join(facts.policy.brake_alerts)} fires. {why}".rstrip()
    firing = [name for name in facts.policy.brake_alerts if name in facts.alerts]
    return f"The alert {', '.join(firing)} fires." if firing else ""


def _freeze(facts: PlanFacts) -> str:
    for item in facts.policy.freezes:
        if item.holds(facts.snapshot.at):
            return f"A freeze is in force ({item}){f': {item.reason}' if item.reason else ''}."
    return ""


BRAKES: dict[Guard, Callable[[PlanFacts], str]] = {
    Guard.PAUSED: _paused,
    Guard.MEMORY: _memory,
    Guard.SEVERAL_CLUSTERS: lambda facts: _first(facts, GapKind.AMBIGUOUS),
    Guard.PARTIAL_ANSWER: _partial,
    Guard.CLOCKS: lambda facts: _first(facts, GapKind.CLOCK),
    Guard.BRAKE: _storm,
    Guard.COOL_DOWN: _cooling,
    Guard.ALERT: _alert,
    Guard.FREEZE: _freeze,
}
