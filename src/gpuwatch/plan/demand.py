"""Who waits for what: pending Pods that could be scheduled if idle GPUs were released, and the least that they need."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwatch.model.decision import ActionKind, PlanItem
from gpuwatch.model.telemetry import PodRef
from gpuwatch.plan.facts import Facts
from gpuwatch.plan.landing import Nowhere


def waiters(items: Sequence[PlanItem], facts: Facts) -> dict[str, PodRef]:
    """Candidate.id of a release → the Pod that waits for it.

    items: releases that nothing speaks against. Of each waiting group, in the scheduler's order, those releases are
    taken that are needed to place all of it, the least harmful ones: what can be left out is, most harm first.
    """
    room = facts.ground.room.copy()
    left = sorted(
        (item for item in items if item.candidate.action is ActionKind.RELEASE_GANG),
        key=lambda item: (-item.score.disrupted_gpu_hours, -item.candidate.gpus, item.candidate.id),
    )
    chosen: dict[str, PodRef] = {}
    for group in facts.ground.unsettled:
        useful = frozenset(name for pod in group for name in facts.bare_room.ever(pod))
        needed = [item for item in left if useful.intersection(item.candidate.nodes)]
        if not needed:
            continue
        trial = room.copy()
        trial.without(ref for item in needed for ref in item.candidate.pods)
        if isinstance(trial.land(group), Nowhere):
            continue
        for item in tuple(needed):
            without = [other for other in needed if other is not item]
            trial = room.copy()
            trial.without(ref for other in without for ref in other.candidate.pods)
            if not isinstance(trial.land(group), Nowhere):
                needed = without
        # Nothing is needed where an earlier release left room enough.
        room.without(ref for item in needed for ref in item.candidate.pods)
        room.land(group)
        waiter = min(pod.ref for pod in group)
        chosen.update((item.candidate.id, waiter) for item in needed)
        left = [item for item in left if item not in needed]
    return chosen
