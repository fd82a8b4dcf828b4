"""Brakes: conditions that stop all actions, such as implausible telemetry, a recent storm, an alert or a freeze."""

from collections.abc import Callable
from datetime import datetime, timedelta

from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.guards import Guard
from gpuwatch.facts.model.decision import FindingKind, Refusal, Severity, SubjectKind, Verdict
from gpuwatch.facts.model.telemetry import GapKind

# Share of the known devices that report now, and of the ready Nodes with accelerators that telemetry shows. Below half,
# what is missing could turn every other number round.
_MIN_COVERAGE_RATIO = 0.5
# Two Nodes of 8 GPUs: so many may fail at once by one cause, and are a large share of a small fleet only.
_STORM_MIN_GPUS = 16
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
    policy = facts.policy
    if _partial(facts):
        return ""  # rows that are missing may look like a storm, which would be remembered
    # Forged devices must not make a storm look small.
    devices = [device for device in facts.snapshot.devices if not device.untrusted] or facts.snapshot.devices
    present = [device for device in devices if device.present]
    known = facts.physical(device.id for device in devices)
    reporting = facts.physical(device.id for device in present)
    if not known:
        return "Telemetry shows no GPU; `gpuwatch doctor` says which exporter it looks for."
    grave = [finding for finding in facts.findings if finding.severity is Severity.CRITICAL]
    if any(finding.kind is FindingKind.TELEMETRY_MISSING for finding in grave):
        return "Telemetry of the fleet as a whole is missing or stale."
    if reporting < _MIN_COVERAGE_RATIO * known:
        return f"Only {reporting} of {known} known GPUs report."
    # A Prometheus that lost a part of the fleet and its history shows no missing device. Compare with the cluster's
    # Nodes, if the hosts in telemetry are Nodes.
    holding = [node for node in facts.nodes.values() if node.ready is True and any(node.accelerators.values())]
    seen = sum(any(item.present for item in facts.devices_of_node.get(node.name, ())) for node in holding)
    if seen < _MIN_COVERAGE_RATIO * len(holding) and all(device.node is not None for device in present):
        return f"Telemetry shows devices of only {seen} of {len(holding)} Nodes that have any."
    # One cause for a rack leaves its GPUs UNKNOWN; they count as well.
    together = {device for finding in grave if finding.subject.kind is SubjectKind.FLEET for device in finding.devices}
    sick = facts.physical(facts.degraded_devices | together)
    if sick >= _STORM_MIN_GPUS and sick > policy.storm_ratio * known:
        return f"{sick} of {known} GPUs look degraded at once, more than {policy.storm_ratio:.0%}."
    looks_idle = {name for finding in facts.findings if finding.verdict is Verdict.IDLE for name in finding.devices}
    # Allocated instances of a GPU count as equal parts of it.
    held: dict[str, list[bool]] = {}
    for device in present:
        if device.pods:
            held.setdefault(device.uuid, []).append(device.id in looks_idle)
    idle = sum(sum(parts) / len(parts) for parts in held.values())
    if idle >= _STORM_MIN_GPUS and idle > policy.idle_storm_ratio * len(held):
        return f"{idle:.0f} of {len(held)} allocated GPUs look idle at once, more than {policy.idle_storm_ratio:.0%}."
    return ""


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
