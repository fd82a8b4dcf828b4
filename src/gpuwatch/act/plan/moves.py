"""Moves that make room for Pods that wait: which owner's Pods can leave and land elsewhere, at the least cost. Pure.

One move is of one owner: a single Pod whose siblings do not need it, or all Pods of an owner that is stopped as a whole
and resumed. `score.waited_hours` says when one is worth its cost.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpuwatch.act.placement import Nowhere, Room, unlike
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.score import restart_hours, saved_at
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.allowed import move_refusal
from gpuwatch.facts.model.cluster import Pod
from gpuwatch.facts.model.decision import ActionKind, Candidate, Subject, SubjectKind
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.remediation import Proposal
from gpuwatch.facts.model.telemetry import PodRef

WAITING_POD = "waiting_pod"
"""What a move for a Pod that waits rests on, in the place of a detector: its outcomes count for it."""

_WAITERS = 32
"""Waiting groups for which moves are looked for in a plan, in the scheduler's order; equal ones count once."""

_TRIALS = 64
"""Moves that are tried for one waiting group, the cheapest first."""


def making_room(facts: PlanFacts) -> Iterator[Candidate]:
    """The moves under way, then the cheapest move for each group that waits and fits nowhere: one whose owner allows
    it, else one that the guard `allowed` refuses, so that its owner can be asked."""
    room, served, moved = facts.ground.room.copy(), set[PodRef](), set[PodRef]()
    for proposal in (*facts.rechecked, *(item.proposal for item in facts.open)):
        served |= {proposal.waiter} - {""}
        moved.update(proposal.pods)
        if proposal.action is ActionKind.MAKE_ROOM and (found := _kept(proposal, facts)):
            yield found
    tried = set[tuple[tuple[str, str, float, int], ...]]()
    units = sorted(_units(facts), key=lambda unit: (hours_lost(unit, facts), unit[0].ref))
    for group in facts.ground.unsettled:
        shape = tuple(sorted(map(_asks, group)))
        if shape in tried or served.intersection(pod.ref for pod in group):
            continue
        if len(tried) == _WAITERS:
            return
        tried.add(shape)
        useful = [unit for unit in _helpful(units, group, room) if moved.isdisjoint(pod.ref for pod in unit)]
        willing = [unit for unit in useful if not not_allowed(unit, facts)]
        found_ = _cheapest(group, willing, room, facts) or _cheapest(group, useful, room, facts)
        if found_ is not None:
            moved.update(pod.ref for pod in found_)
            yield _candidate(found_, group, facts)


def _asks(pod: Pod) -> tuple[str, str, float, int]:
    return repr(pod.placement), repr(sorted(pod.accelerators.items())), pod.cpu_cores, pod.memory_bytes


def _kept(proposal: Proposal, facts: PlanFacts) -> Candidate | None:
    """The move that was proposed, with those of its Pods that are left; None once its Pod waits no more."""
    group, known = _waiting(proposal.waiter, facts), set(proposal.pod_uids)
    unit = [pod for ref in proposal.pods if (pod := facts.live.get(ref)) is not None and pod.uid in known]
    return _candidate(unit, group, facts) if unit and group else None


def _waiting(waiter: PodRef, facts: PlanFacts) -> Sequence[Pod]:
    return next((group for group in facts.pending if any(pod.ref == waiter for pod in group)), ())


def _units(facts: PlanFacts) -> Iterator[list[Pod]]:
    """What can leave at once: single Pods whose siblings do not need them, and all Pods of other owners and gangs."""
    for key, pods in facts.members.items():
        kind, alone = facts.kind_of(pods[0].workload), key not in facts.gangs
        yield from [[pod] for pod in pods] if alone and kind is not None and kind.independent else [pods]


def _helpful(units: Iterable[list[Pod]], group: Sequence[Pod], room: Room) -> Iterator[list[Pod]]:
    """Those that leave a Node on which one of the group then has as much of everything as it asks for."""
    asking = [(pod, room.ever(pod)) for pod in unlike(group)]
    mine = {pod.workload for pod in group}

    def enough(name: str, leaving: Sequence[Pod], pod: Pod) -> bool:
        cores, memory = room.left(name)
        return (
            cores + sum(each.cpu_cores for each in leaving) + 1e-6 >= pod.cpu_cores
            and memory + sum(each.memory_bytes for each in leaving) >= pod.memory_bytes
            and all(
                room.free(name, each) + sum(other.accelerators.get(each, 0) for other in leaving) >= count
                for each, count in pod.accelerators.items()
            )
        )

    for unit in units:
        if unit[0].workload in mine or any(room.node_of(pod.ref) != pod.node for pod in unit):
            continue
        here = grouped(unit, lambda pod: pod.node)
        if any(name in ever and enough(name, leaving, pod) for name, leaving in here.items() for pod, ever in asking):
            yield unit


def _stays(unit: Sequence[Pod], facts: PlanFacts) -> str:
    """Why these Pods cannot be moved at once; '' where they can."""
    owner, siblings = facts.workloads.get(unit[0].workload), facts.owned.get(unit[0].workload, [])
    if any(pod.deleting or not pod.node for pod in unit) or len({pod.workload for pod in unit}) > 1:
        return "Some of its Pods end or wait, or have another owner."
    return move_refusal(facts.gangs.get(unit[0].gang), owner, list(unit), siblings)


def _cheapest(
    group: Sequence[Pod], units: Iterable[Sequence[Pod]], room: Room, facts: PlanFacts
) -> Sequence[Pod] | None:
    """The first whose leaving places the group and itself; the room is as afterwards then, else as before."""
    movable = (unit for unit in units if not _stays(unit, facts))
    for _, unit in zip(range(_TRIALS), movable, strict=False):
        # Who waits alone fits nowhere else.
        left = {pod.node for pod in unit} if len(group) == 1 else None
        room.without(pod.ref for pod in unit)
        placed = room.land(group, left, tell=False)
        if not isinstance(placed, Nowhere):
            if not isinstance(room.land(unit, tell=False), Nowhere):
                return unit
            room.without(placed)
        for pod in unit:
            room.put(pod, pod.node)
    return None


def place_for_waiter(candidate: Candidate, room: Room, facts: PlanFacts) -> Mapping[PodRef, str] | Nowhere:
    """Where the Pods of a move land once they have left and those that wait are placed; changes this room."""
    group, unit = _waiting(candidate.waiter, facts), facts.pods_of(candidate)
    if not group:
        return Nowhere(f"{candidate.waiter} waits no more.")
    room.without(candidate.pods)
    placed = room.land(group)
    if isinstance(placed, Nowhere):
        return Nowhere(f"Pod {group[0].ref}, which waits, would find no place: {placed.reason}", placed.known)
    return room.land(unit)


def hours_lost(unit: Iterable[Pod], facts: PlanFacts) -> float:
    """GPU-hours of work that a restart of these Pods loses."""
    return sum(restart_hours(pod, facts) * facts.gpu_shares([pod]) for pod in unit)


def not_allowed(unit: Iterable[Pod], facts: PlanFacts) -> str:
    """Why these Pods must not be moved for others; '' where each does no work, has saved its work since it started, or
    has an owner who allows it."""
    for pod in unit:
        owner = facts.workloads.get(pod.workload)
        told = [pod.annotations, owner.annotations if owner else {}, facts.namespaces.get(pod.namespace, {})]
        said = next((texts[keys.MAY_MOVE] for texts in told if keys.MAY_MOVE in texts), "")
        idle = pod.ref in facts.idle_pods
        if said.lower() == "false" or not (idle or said.lower() == "true" or saved_at(pod, facts)):
            why = f"forbids it with {keys.MAY_MOVE}=false" if said.lower() == "false" else "does not allow it"
            return f"Pod {pod.ref} works, and its owner {why}."
    return ""


def _candidate(unit: Sequence[Pod], group: Sequence[Pod], facts: PlanFacts) -> Candidate:
    first, waiter = unit[0], min(pod.ref for pod in group)
    gang = first.gang if first.gang in facts.gangs else ""
    asked = sum(sum(pod.accelerators.values()) for pod in group)
    node = facts.nodes.get(first.node)
    also = f" and {len(group) - 1} more" if len(group) > 1 else ""
    return Candidate(
        action=ActionKind.MAKE_ROOM,
        target=Subject(SubjectKind.GANG if gang else SubjectKind.WORKLOAD, gang or first.workload),
        findings=(),
        devices=(),
        pods=tuple(sorted(pod.ref for pod in unit)),
        nodes=tuple(sorted({pod.node for pod in unit})),
        namespace=first.namespace,
        pool=facts.pool(node),
        gpu_model=node.gpu_product if node else "",
        gpus=facts.gpus(unit),
        detectors=(WAITING_POD,),
        reason=(
            f"Pod {waiter}{also} waits for {asked} accelerators. It is placed once "
            f"{'this Pod leaves' if len(unit) == 1 else f'these {len(unit)} Pods leave'} "
            f"{first.node if len({pod.node for pod in unit}) == 1 else 'their Nodes'}, and they have a place elsewhere."
        ),
        waiter=waiter,
        # A slice counts as it does on the Nodes that the Pods leave.
        relief_gpus=facts.gpu_shares(replace(pod, node=first.node) for pod in group),
    )
