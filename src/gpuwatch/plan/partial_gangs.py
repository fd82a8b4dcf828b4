"""What keeps the rest of a gang that is placed in part from its place, and which of them wait for each other's GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpuwatch.model.cluster import Pod
from gpuwatch.model.decision import Evidence, Finding, FindingKind
from gpuwatch.plan.facts import PlanFacts
from gpuwatch.plan.landing import Nowhere
from gpuwatch.plan.policy import PlanPolicy
from gpuwatch.plan.timing import stopped_work


def explained(facts: PlanFacts, policy: PlanPolicy) -> tuple[Finding, ...]:
    """All findings; those of gangs that are placed in part with what the landing of their rest shows."""
    partial = {item.subject.name: item for item in facts.findings if item.kind is FindingKind.PARTIAL_GANG}
    rest = {group[0].gang: group for group in facts.waiting if group[0].gang in partial}
    frees = {
        name: [other for other in sorted(partial) if other != name and _lands(group, facts, other) is None]
        for name, group in rest.items()
        if _lands(group, facts) is not None
    }
    told = {item.id: _told(item, partial, rest, frees, facts, policy) for item in partial.values()}
    return tuple(told.get(item.id, item) for item in facts.findings)


def _lands(group: Sequence[Pod], facts: PlanFacts, without: str = "") -> str | None:
    """Why the group lands nowhere, once the gang `without` is released; None where it lands."""
    room = facts.bare_room.copy()
    room.without(pod.ref for pod in facts.members.get(without, ()))
    found = room.land(group)
    return found.reason if isinstance(found, Nowhere) else None


def _told(
    item: Finding,
    partial: Mapping[str, Finding],
    rest: Mapping[str, Sequence[Pod]],
    frees: Mapping[str, Sequence[str]],
    facts: PlanFacts,
    policy: PlanPolicy,
) -> Finding:
    name = item.subject.name
    if name not in frees:
        text = "by what is simulated there is room for them" if name in rest else "they are not offered to a scheduler"
        return replace(item, summary=f"{item.summary}; {text}")
    evidence = [*item.evidence, Evidence(signal="landing", value="nowhere", note=_lands(rest[name], facts) or "")]
    text = f"; room would be where {' or '.join(frees[name])} stands, placed in part too" if frees[name] else ""
    ring = sorted(other for other in _behind(name, frees) if name in _behind(other, frees))
    if ring:
        costs = {each: _loss(partial[each], facts, policy) for each in ring}
        least = min(ring, key=lambda each: (costs[each], each))
        text = f"; {' and '.join(ring)} wait for each other's GPUs, and the release of {least} loses least"
        note = ", ".join(f"{each} loses {cost:.1f} GPU-hours" for each, cost in costs.items())
        evidence.append(Evidence(signal="release_cost", value=costs[least], unit="GPU-hours", note=note))
    return replace(item, summary=f"{item.summary}{text}", evidence=tuple(evidence))


def _behind(name: str, frees: Mapping[str, Sequence[str]]) -> set[str]:
    """The gangs whose release would make room for it, for those, and so on; with itself where they wait for it."""
    found, new = set[str](), set(frees.get(name, ()))
    while new:
        found |= new
        new = {other for each in new for other in frees.get(each, ())} - found
    return found


def _loss(item: Finding, facts: PlanFacts, policy: PlanPolicy) -> float:
    """GPU-hours that its release loses, as the plan weighs it."""
    held = [pod for pod in facts.members[item.subject.name] if pod.node]
    return facts.gpu_shares(held) + stopped_work(held, [item], facts, policy)
