"""Why the rest of a partly placed gang is not placed, and which such gangs wait for each other's GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpuwatch.act.placement.landing import Nowhere
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.timing import stopped_work
from gpuwatch.facts.model.cluster import Pod
from gpuwatch.facts.model.decision import Evidence, Finding, FindingKind


def explained(facts: PlanFacts) -> tuple[Finding, ...]:
    """All findings; those of partly placed gangs with the reason why their other Pods find no room."""
    partial = {item.subject.name: item for item in facts.findings if item.kind is FindingKind.PARTIAL_GANG}
    rest = {group[0].gang: group for group in facts.waiting if group[0].gang in partial}
    stuck = {name: found for name, group in rest.items() if (found := _no_room(group, facts))}
    frees = {
        name: [each for each in sorted(partial) if each != name and not _no_room(rest[name], facts, each)]
        for name in stuck
    }
    told = {}
    for name, item in partial.items():
        evidence = []
        if (found := stuck.get(name)) is not None:
            evidence = [Evidence(signal="landing", value="nowhere" if found.known else "unknown", note=found.reason)]
        # A ring of more than two as well: each waits for the next.
        mutual = [other for other in _reached(name, frees) if other != name and name in _reached(other, frees)]
        text = ""
        if mutual:
            loss = {each: _loss(partial[each], facts) for each in sorted((name, *mutual))}
            least = min(loss, key=lambda each: loss[each])
            text = f"; {' and '.join(loss)} wait for each other's GPUs, and the release of {least} loses least"
            note = ", ".join(f"{each} loses {hours:.1f} GPU-hours" for each, hours in loss.items())
            evidence.append(Evidence(signal="release_cost", value=loss[least], unit="GPU-hours", note=note))
        elif frees.get(name):
            text = f"; the release of {' or '.join(frees[name])} would make room"
        elif name not in stuck and any(not pod.node for pod in facts.members[name]):
            text = "; the simulated scheduler finds room" if name in rest else "; they are kept from the scheduler"
        told[item.id] = replace(item, summary=item.summary + text, evidence=(*item.evidence, *evidence))
    return tuple(told.get(item.id, item) for item in facts.findings)


def _reached(name: str, frees: Mapping[str, Sequence[str]]) -> set[str]:
    """The gangs whose GPUs it waits for, those that these wait for, and so on."""
    found: set[str] = set()
    left = [name]
    while left:
        more = set(frees.get(left.pop(), ())) - found
        found |= more
        left += more
    return found


def _loss(item: Finding, facts: PlanFacts) -> float:
    """GPU-hours, as the plan weighs its release."""
    held = [pod for pod in facts.members[item.subject.name] if pod.node]
    return facts.gpu_shares(held) + stopped_work(held, [item], facts)


def _no_room(group: Sequence[Pod], facts: PlanFacts, released: str = "") -> Nowhere | None:
    """Why the group finds no room once the gang `released` is released; None where it does."""
    room = facts.bare_room.copy()
    room.without(pod.ref for pod in facts.members.get(released, ()))
    found = room.land(group, tell=not released)
    return found if isinstance(found, Nowhere) else None
