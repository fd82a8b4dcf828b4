"""Pending Pods that could be scheduled if idle GPUs were released, and the fewest releases that they need."""

from collections.abc import Collection, Mapping, Sequence

from gpuwatch.act.placement.landing import Nowhere, Room, unlike
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.cluster import Pod
from gpuwatch.facts.model.decision import ActionKind, FindingKind, PlanItem
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
    for first in facts.ground.unsettled:
        group, gang = first, first[0].gang
        if gang in served:
            continue
        useful = frozenset(name for pod in unlike(group) for name in facts.bare_room.ever(pod))
        there = [item for item in left if useful.intersection(item.candidate.nodes)]
        needed = _needed(group, [item for item in there if _gives_way(item, group, facts)], room)
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


def _needed(group: Sequence[Pod], offered: list[PlanItem], room: Room) -> list[PlanItem] | None:
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
