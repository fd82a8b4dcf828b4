"""What may be done with an admitted action: observe, suggest or enforce, and what made it so."""

from __future__ import annotations

from gpuwatch.frameworks import keys
from gpuwatch.model.decision import ActionKind, Candidate, Mode
from gpuwatch.plan.facts import Facts
from gpuwatch.plan.policy import MILDEST_FIRST, PlanPolicy


def mode_of(candidate: Candidate, facts: Facts, policy: PlanPolicy) -> tuple[Mode, str]:
    """The mildest of what the policy says for each pool that it touches, what its Namespace asks for, and what its
    detectors' precision allows; and the reason."""
    if candidate.action is ActionKind.RESIZE_WORKLOAD:
        return Mode.OBSERVE, "Sizes are their owner's to change; gpuwatch never writes them."
    nodes = [facts.nodes[name] for name in candidate.nodes if name in facts.nodes]
    pools = sorted({facts.pool(node) for node in nodes}) or [candidate.pool]
    scopes = [policy.scope(candidate.action, candidate.namespace, pool) for pool in pools]
    scope = min(scopes, key=lambda each: MILDEST_FIRST.index(each.mode))
    offers = [(scope.mode, f"Settings for {scope}.")]
    asked = facts.namespaces.get(candidate.namespace, {}).get(keys.MODE)
    if asked is not None:
        # What it cannot mean counts as observe.
        wanted = Mode(asked) if asked in set(Mode) else Mode.OBSERVE
        offers.append((wanted, f"Namespace {candidate.namespace} has {keys.MODE}={asked}."))
    doubt = _imprecise(candidate, facts, policy)
    if doubt:
        offers.append((Mode.SUGGEST, doubt))
    return min(offers, key=lambda offer: MILDEST_FIRST.index(offer[0]))


def _imprecise(candidate: Candidate, facts: Facts, policy: PlanPolicy) -> str:
    """Why it may only be suggested: every finding that would be enough comes from a detector that was measured to be
    wrong too often. One that was not measured yet is not held against it."""
    grounds = {
        str(finding.kind)
        for name in candidate.findings
        if (finding := facts.findings_by_id[name]).confidence_ratio >= policy.min_confidence_ratio
    } or set(candidate.detectors)
    poor = {name: facts.precision[name] for name in grounds if name in facts.precision}
    poor = {name: value for name, value in poor.items() if not value >= policy.min_precision_ratio}
    if not poor or set(poor) != grounds:
        return ""
    name = min(poor, key=lambda key: (-poor[key], key))
    return (
        f"The precision of {name} was measured to be {poor[name]:.2f} or better; {policy.min_precision_ratio:.2f} is "
        "needed to enforce."
    )
