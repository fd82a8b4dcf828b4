"""Draw up the Plan of one moment: pure, so that it can be replayed, back-tested and diffed."""

from __future__ import annotations

import math
from dataclasses import replace

from gpuwatch.kube import keys
from gpuwatch.model.decision import Candidate, Finding, Mode, Plan, PlanItem, Refusal, Snapshot
from gpuwatch.plan.budget import Ledger, brake
from gpuwatch.plan.candidates import candidates
from gpuwatch.plan.facts import Facts
from gpuwatch.plan.guards import Case, guard
from gpuwatch.plan.policy import PlanPolicy
from gpuwatch.plan.score import score


def draw_plan(snapshot: Snapshot, findings: tuple[Finding, ...], policy: PlanPolicy) -> Plan:
    """Every candidate with its score and all reasons against it, best first; the budget is given out in that order."""
    facts = Facts(snapshot, findings)
    halted = brake(facts, policy)
    items = []
    for candidate in candidates(facts):
        worth = score(candidate, facts, policy)
        items.append(
            PlanItem(
                candidate=candidate,
                score=worth,
                mode=_mode(candidate, facts, policy),
                refusals=guard(Case(candidate, worth, facts, policy)),
            )
        )
    items.sort(key=lambda item: (-item.score.value if math.isfinite(item.score.value) else math.inf, item.candidate.id))
    ledger = Ledger(facts, policy)
    drawn = []
    for item in items:
        if halted:
            drawn.append(replace(item, refusals=(*item.refusals, Refusal(guard="brake", reason=halted))))
            continue
        # A refused candidate takes nothing from the budget that a possible one could use.
        refusal = None if item.refusals else ledger.charge(item.candidate)
        drawn.append(replace(item, refusals=(*item.refusals, refusal)) if refusal else item)
    return Plan(at=snapshot.at, items=tuple(drawn), budgets=ledger.budgets, brake=halted)


_MILDEST_FIRST = (Mode.OBSERVE, Mode.SUGGEST, Mode.ENFORCE)


def _mode(candidate: Candidate, facts: Facts, policy: PlanPolicy) -> Mode:
    """The policy's mode, or a milder one that the Namespace asks for; what it cannot mean counts as observe."""
    asked = facts.namespaces.get(candidate.namespace, {}).get(keys.MODE)
    allowed = policy.mode(candidate.action)
    if asked is None:
        return allowed
    wanted = Mode(asked) if asked in set(Mode) else Mode.OBSERVE
    return min(allowed, wanted, key=_MILDEST_FIRST.index)
