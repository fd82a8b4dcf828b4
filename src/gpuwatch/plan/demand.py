"""Pending Pods that could be scheduled if idle GPUs were released, and the fewest releases that they need."""

from collections.abc import Mapping, Sequence

from gpuwatch.model.cluster import Pod
from gpuwatch.model.decision import ActionKind, PlanItem
from gpuwatch.model.telemetry import PodRef
from gpuwatch.placement.landing import Nowhere, Room, unlike
from gpuwatch.plan.facts import PlanFacts


def waiters(items: Sequence[PlanItem], facts: PlanFacts) -> dict[str, PodRef]:
    """Candidate.id of a release → the Pod that waits for it.

    items: releases without refusals. For each waiting group, in the scheduler's order: take the least harmful releases
    until all of it can be placed, then drop those that it does not need, most harm first.
    """
    room = facts.ground.room.copy()
    left = sorted(
        (item for item in items if item.candidate.action is ActionKind.RELEASE_GANG),
        key=lambda item: (item.score.disrupted_gpu_hours, item.candidate.gpus, item.candidate.id),
    )
    chosen: dict[str, PodRef] = {}
    for group in facts.ground.unsettled:
        useful = frozenset(name for pod in unlike(group) for name in facts.bare_room.ever(pod))
        needed = _needed(group, [item for item in left if useful.intersection(item.candidate.nodes)], room)
        if needed is None:
            continue
        _places(group, needed, room, keep=True)
        waiter = min(pod.ref for pod in group)
        chosen.update((item.candidate.id, waiter) for item in needed)
        left = [item for item in left if item not in needed]
    return chosen


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
