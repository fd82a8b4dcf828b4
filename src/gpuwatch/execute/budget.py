"""What is in flight already, by the kept records: restarts and replicas change nothing about it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from gpuwatch.execute.policy import ExecutePolicy
from gpuwatch.model.decision import ActionKind
from gpuwatch.model.remediation import Phase, Proposal, Remediation, StepKind
from gpuwatch.plan.budget import budgets
from gpuwatch.plan.facts import Facts
from gpuwatch.plan.policy import PlanPolicy

RATE_WINDOW = timedelta(hours=1)

TELLING = frozenset({StepKind.ANNOUNCE, StepKind.CLEAR})
"""Steps that change nothing but our own notes."""


def weighs(remediation: Remediation) -> bool:
    """Does it keep GPUs out of service, or disturb their users? What a release has freed works for others."""
    if remediation.phase is Phase.HOLDING:
        return remediation.proposal.action is ActionKind.TAINT_NODE
    return remediation.phase.in_flight


def same_target(mine: Proposal, other: Proposal) -> bool:
    """Would both write to one object, or disturb one Pod? A fenced Node and the gang that moves off it are two."""
    if mine.action is other.action and mine.target == other.target:
        return True
    if not set(mine.objects).isdisjoint(other.objects):
        return True
    if ActionKind.TAINT_NODE in (mine.action, other.action):
        return False
    return not set(mine.pod_uids).isdisjoint(other.pod_uids)


def occupied(remediation: Remediation, others: Iterable[Remediation]) -> str:
    """Which other one is at work on the same target; '' where none is."""
    for other in others:
        if other.phase.in_flight and same_target(remediation.proposal, other.proposal):
            return f"Remediation {other.name} is at work on {other.proposal.target}."
    return ""


def too_fast(others: Iterable[Remediation], now: datetime, policy: ExecutePolicy) -> str:
    """Have as many begun within the last hour as may? A start counts whatever became of it."""
    begun = [other for other in others if (at := begun_at(other)) is not None and now - at < RATE_WINDOW]
    if len(begun) < policy.actions_per_hour:
        return ""
    return f"{len(begun)} actions began in the last 60 min; execute.actions_per_hour is {policy.actions_per_hour}."


def begun_at(remediation: Remediation) -> datetime | None:
    """When it first wrote anything but announcements; a claim that was given up did not begin."""
    acts = [step.begun_at for step in remediation.steps if step.kind not in TELLING and step.begun_at is not None]
    claimed = remediation.history[-1].at if remediation.phase is Phase.ACTING and remediation.history else None
    return min([*acts, *([claimed] if claimed else [])], default=None)


def over_budget(remediation: Remediation, others: Iterable[Remediation], facts: Facts, policy: PlanPolicy) -> str:
    """Which budget has no room; '' where all have. Counts what others fenced, as the plan does, and what the records
    say is in flight, once where both know of it."""
    proposal = remediation.proposal
    weighing = [other.proposal for other in others if weighs(other)]
    fenced = {node.name for node in facts.nodes.values() if facts.fenced(node)}
    by_us = {name for other in weighing if other.action is ActionKind.TAINT_NODE for name in other.nodes}
    last = _last_nodes(proposal, facts, fenced | by_us, policy)
    if last:
        return last
    found = budgets(facts, policy)
    scopes = [f"pool/{proposal.pool or 'default'}", *([f"model/{proposal.gpu_model}"] if proposal.gpu_model else [])]
    known = [scope for scope in scopes if scope in found]
    if not known:
        return "The GPUs of its pool are not known, so it has no budget."
    for scope in known:
        use = found[scope]
        here = [other for other in weighing if _in_scope(other, scope)]
        ours = _gpus(here, facts, fenced)
        after = use.in_flight_gpus + _gpus([*here, proposal], facts, fenced)
        if after > use.limit_gpus:
            return (
                f"{scope}: {after} of {use.total_gpus} GPUs would be out of service or disturbed; the limit is "
                f"{use.limit_gpus}, others fenced {use.in_flight_gpus} and Remediations in flight {ours}."
            )
    return ""


def _in_scope(proposal: Proposal, scope: str) -> bool:
    return scope in (f"pool/{proposal.pool or 'default'}", f"model/{proposal.gpu_model}")


def _gpus(proposals: Iterable[Proposal], facts: Facts, fenced: set[str]) -> int:
    """GPUs of these, without those on Nodes that are fenced already, and each of a tainted Node once."""
    proposals = list(proposals)
    tainted = {name for each in proposals if each.action is ActionKind.TAINT_NODE for name in each.nodes} - fenced
    total = 0
    for each in proposals:
        if each.action is ActionKind.TAINT_NODE:
            # A Node that is gone weighs what it weighed when it was proposed.
            total += 0 if set(each.nodes) <= fenced else each.gpus
            continue
        refs = set(each.pods)
        counted = sum(
            1
            for name in fenced | tainted
            for device in facts.devices_of_node.get(name, ())
            if refs.intersection(device.holders)
        )
        total += max(each.gpus - counted, 0)
    return total


def _last_nodes(proposal: Proposal, facts: Facts, away: set[str], policy: PlanPolicy) -> str:
    if proposal.action is not ActionKind.TAINT_NODE:
        return ""
    pool = proposal.pool or "default"
    left = [
        node.name
        for node in facts.nodes.values()
        if facts.pool(node) == pool and node.name not in away and node.name not in proposal.nodes
    ]
    if len(left) >= policy.min_pool_nodes_left:
        return ""
    return f"Pool {pool} would have {len(left)} Nodes in service left; {policy.min_pool_nodes_left} must stay."
