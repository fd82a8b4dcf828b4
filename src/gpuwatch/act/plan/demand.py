"""Who waits: which releases make room for pending Pods, and why the rest of a partly placed gang is not placed."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gpuwatch.act.placement import Nowhere, Room, unlike
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.act.plan.score import stopped_work
from gpuwatch.facts.model.cluster import Pod
from gpuwatch.facts.model.decision import ActionKind, Evidence, Finding, FindingKind, Mode, PlanItem
from gpuwatch.facts.model.remediation import Phase, Remediation
from gpuwatch.facts.model.telemetry import PodRef


def on_demand(detectors: Collection[str], policy: PlanPolicy) -> bool:
    """Whether a release by these detectors needs a Pod that waits for its GPUs. The release of a partly placed gang
    always does, because the gang may still be completed."""
    return policy.reclaim_only_on_demand or FindingKind.PARTIAL_GANG in detectors


def waiters(items: Sequence[PlanItem], facts: PlanFacts) -> dict[str, PodRef]:
    """Candidate.id of a release → the Pod that waits for it.

    items: releases without refusals. For each waiting group, in the scheduler's order: take the least harmful releases
    until the whole group can be placed, then drop those that it does not need, most harm first. No gang is released for
    its own Pods, or once room is made for them. Of two gangs that wait for each other's GPUs, the one whose release
    loses less is released.
    """
    room = facts.ground.room.copy()
    left = sorted(
        (item for item in items if item.candidate.action is ActionKind.RELEASE_GANG),
        key=lambda item: (item.score.disrupted_gpu_hours, item.candidate.gpus, item.candidate.id),
    )
    chosen: dict[str, PodRef] = {}
    served: set[str] = set()
    # What releases on their way free is as good as free, and what they end waits no longer.
    coming = [each.proposal for each in facts.open if _on_its_way(each)]
    room.without(ref for each in coming for ref in each.pods)
    ending = {each.target.partition("/")[2] for each in coming}
    for first in facts.ground.unsettled:
        group, gang = first, first[0].gang
        if gang in served or gang in ending:
            continue
        if coming and _places(group, (), room) is not None:
            _places(group, (), room, keep=True)
            continue
        useful = frozenset(name for pod in unlike(group) for name in facts.bare_room.ever(pod))
        there = [item for item in left if useful.intersection(item.candidate.nodes)]
        needed = needed_for(group, [item for item in there if _gives_way(item, group, facts)], room)
        if needed is None:
            continue
        own = next((item for item in left if item.candidate.target.name == gang), None)
        if own is not None and (other := _instead(own, needed, facts, room)):
            group, needed = other, [own]
        _places(group, needed, room, keep=True)
        waiter = min(pod.ref for pod in group)
        chosen.update((item.candidate.id, waiter) for item in needed)
        served |= {group[0].gang, *(item.candidate.target.name for item in needed)} - {""}
        left = [item for item in left if item.candidate.target.name not in served]
    return chosen


def _on_its_way(remediation: Remediation) -> bool:
    """Whether it is a release that is to be carried out without a person, or is under way."""
    proposal, phase = remediation.proposal, remediation.phase
    soon = phase is Phase.PROPOSED and proposal.mode is Mode.ENFORCE
    return proposal.action is ActionKind.RELEASE_GANG and (soon or phase in _UNDER_WAY)


_UNDER_WAY = (Phase.NOTIFIED, Phase.ACTING, Phase.VERIFYING)


def _gives_way(item: PlanItem, group: Sequence[Pod], facts: PlanFacts) -> bool:
    """Whether it may be released for the group: it is neither the same gang nor one that waits with higher priority."""
    waits = FindingKind.PARTIAL_GANG in item.candidate.detectors
    above = any(pod.priority > max(each.priority for each in group) for pod in facts.pods_of(item.candidate))
    return item.candidate.target.name != group[0].gang and not (waits and above)


def _instead(own: PlanItem, needed: list[PlanItem], facts: PlanFacts, room: Room) -> tuple[Pod, ...] | None:
    """The waiting Pods of the only gang in `needed`, if the release of `own` for them loses less; else None."""
    if len(needed) != 1 or needed[0].score.disrupted_gpu_hours <= own.score.disrupted_gpu_hours:
        return None
    waiting = (group for group in facts.ground.unsettled if group[0].gang == needed[0].candidate.target.name)
    fits = (group for group in waiting if _gives_way(own, group, facts) and _places(group, [own], room) is not None)
    return next(fits, None)


def needed_for(group: Sequence[Pod], offered: list[PlanItem], room: Room) -> list[PlanItem] | None:
    """The offered releases that the group needs, least harm first; None where all of them are not enough."""
    if not offered or _places(group, offered, room) is None:
        return None
    # Bisect for the shortest prefix that is enough.
    low, high = -1, len(offered)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _places(group, offered[:middle], room) is not None else (middle, high)
    taken = offered[:high]
    places = _places(group, taken, room)
    used = set(places.values()) if places is not None else set()
    there = [item for item in taken if used.intersection(item.candidate.nodes)]
    if _places(group, there, room) is not None:
        taken = there
    for item in reversed(taken):
        without = [other for other in taken if other is not item]
        if _places(group, without, room) is not None:
            taken = without
    return taken


def _places(
    group: Sequence[Pod], freed: Sequence[PlanItem], room: Room, *, keep: bool = False
) -> Mapping[PodRef, str] | None:
    """Where the group lands once these are released. keep: change this room instead of a copy."""
    trial = room if keep else room.copy()
    trial.without(ref for item in freed for ref in item.candidate.pods)
    found = trial.land(group, tell=False)
    return None if isinstance(found, Nowhere) else found


def explained(facts: PlanFacts) -> tuple[Finding, ...]:
    """All findings; those of partly placed gangs with the reason why their other Pods find no room."""
    partial = {item.subject.name: item for item in facts.findings if item.kind is FindingKind.PARTIAL_GANG}
    rest = {group[0].gang: group for group in facts.pending if group[0].gang in partial}
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
