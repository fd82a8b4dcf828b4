"""Where Pods would land; else why not, and the changes that would place them, each tried by the landing. Pure.

A change is to the Pods (a toleration, a selector, less CPU or memory), to a Node (uncordoned), or to others (idle gangs
released, Pods moved, which all have to land elsewhere). Its cost is the work that it makes others lose. Where no single
change is enough, a change of toleration or selector is tried together with each other one.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gpuwatch.act.placement import Nowhere, Room, untolerated
from gpuwatch.act.plan.demand import needed_for
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.score import chosen, restart_hours
from gpuwatch.facts.catalog.gpus import find_gpu
from gpuwatch.facts.catalog.mig import MigProfile, geometry
from gpuwatch.facts.frameworks.allowed import move_refusal
from gpuwatch.facts.model.cluster import Node, Placement, Pod, Toleration
from gpuwatch.facts.model.decision import ActionKind, Candidate, PlanItem, Subject, SubjectKind, TimingKind
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.telemetry import Device, PodRef

_CORDON = "node.kubernetes.io/unschedulable"
_GIB = 2**30
_NODES_TRIED = 50
"""Nodes that are tried for a move, those with the most free accelerators first: each trial lands all Pods of one."""
_SETS_TRIED = 256
"""Sets of Pods that are tried on one Node, the cheapest first: all sets of eight Pods, one for each GPU of a Node."""


class ChangeKind(StrEnum):
    TOLERATE = "tolerate"
    SELECT = "select"
    LESS_CPU = "less_cpu"
    LESS_MEMORY = "less_memory"
    UNCORDON = "uncordon"
    REPARTITION = "repartition"
    RELEASE = "release"
    MOVE = "move"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change that places the Pods.

    what: to do, as a sentence. subjects: a taint, a label, a Node and perhaps its GPUs, workloads, or Pods.
    lost_gpu_hours: work of others that is lost at most if it is done now; 0 where none is touched. places: where the
    Pods land then. value: CPU cores or bytes of each Pod. refused: why gpuwatch would not do it itself; '' where it
    would, or where it never does. when: the moment at which others lose least, a sentence; '' for now. first: the
    change that is needed as well.
    """

    kind: ChangeKind
    what: str
    subjects: tuple[str, ...]
    lost_gpu_hours: float
    places: Mapping[PodRef, str]
    value: float | None = None
    refused: str = ""
    when: str = ""
    first: "Change | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """places: where the Pods land now; empty where they do not. reason: why not. known: False where the reason is a
    field of theirs that is not modelled: no change is tried then. never: why they would not land if all GPUs of the
    Nodes in service were free; '' where they would. against: first cause of a Node → how many Nodes have it. ahead:
    Pods that wait before them. held: who keeps them from the scheduler, and why. changes: the cheapest first."""

    pods: tuple[PodRef, ...]
    places: Mapping[PodRef, str]
    reason: str = ""
    known: bool = True
    never: str = ""
    against: Mapping[str, int]
    ahead: tuple[PodRef, ...] = ()
    held: str = ""
    changes: tuple[Change, ...] = ()


def what_if(
    pods: Sequence[Pod], facts: PlanFacts, releases: Iterable[PlanItem] = (), within: Sequence[str] | None = None
) -> WhatIf:
    """pods: of one gang, which wait or do not exist yet. releases: of the plan. within: only these Nodes."""
    pods = [_let_through(pod) for pod in pods]
    refs = tuple(sorted(pod.ref for pod in pods))
    room, ahead = _room(facts, {*refs}, within)
    landed = room.copy().land(pods, within)
    against = Counter(cause for name, count, cause in room.copies(pods[0]) if not count and _among(name, within))
    told = WhatIf(pods=refs, places={}, against=against, ahead=ahead, held=_held(pods[0], facts))
    if not isinstance(landed, Nowhere):
        return replace(told, places=landed)
    told = replace(told, reason=landed.reason, known=landed.known)
    if not landed.known:
        return told
    empty = Room(facts.nodes.values(), (), facts.out_of_service, facts.snapshot.cluster.bystanders).land(pods, within)
    tried = _Trial(pods, facts, room, within, tuple(releases))
    changes = tried.changes() or tried.pairs()
    order = list(ChangeKind)
    changes.sort(key=lambda each: (each.lost_gpu_hours, order.index(each.kind), each.subjects))
    return replace(told, never=empty.reason if isinstance(empty, Nowhere) else "", changes=tuple(changes))


def _let_through(pod: Pod) -> Pod:
    """As it is once its gates are removed."""
    if not pod.placement.gated:
        return pod
    fields = tuple(each for each in pod.placement.unmodelled if not each.startswith("spec.schedulingGates"))
    return replace(pod, placement=replace(pod.placement, unmodelled=fields))


def _held(pod: Pod, facts: PlanFacts) -> str:
    """Who keeps the Pod from the scheduler by a gate, and why, a sentence; '' for nobody."""
    if not pod.placement.gated:
        return ""
    gang = facts.gangs.get(pod.gang)
    why = f"it waits: {gang.unscheduled.rstrip('.')}" if gang is not None and gang.unscheduled else "nothing says why"
    return f"A scheduling gate keeps it from the scheduler; {why}."


def _among(name: str, within: Sequence[str] | None) -> bool:
    return within is None or name in within


def _room(facts: PlanFacts, own: set[PodRef], within: Sequence[str] | None) -> tuple[Room, tuple[PodRef, ...]]:
    """The room that is left for them, and the Pods that wait before them in the scheduler's order. From then on nothing
    lands outside of these Nodes."""
    room, ahead = facts.bare_room.copy(), []
    for group in facts.pending:
        if not own.isdisjoint(pod.ref for pod in group):
            break
        room.land(group, tell=False, perhaps=True)
        ahead += sorted(pod.ref for pod in group)
    room.avoid(
        (name for name in facts.nodes if not _among(name, within)), "it is not among the Nodes that are asked for"
    )
    return room, tuple(ahead)


@dataclass(frozen=True, slots=True)
class _Trial:
    pods: Sequence[Pod]
    facts: PlanFacts
    room: Room
    within: Sequence[str] | None
    releases: tuple[PlanItem, ...]

    def changes(self) -> list[Change]:
        """Those that are enough by themselves."""
        of_pods = (change for change, trial in self._of_pods() for change in trial._placing(change))
        less = (change for kind in (ChangeKind.LESS_CPU, ChangeKind.LESS_MEMORY) for change in self._less(kind))
        return [*of_pods, *less, *self._of_nodes(), *self._of_layouts(), *self._of_releases(), *self._of_moves()]

    def pairs(self) -> list[Change]:
        """Of two changes, the first to tolerations or selectors. Each pair once."""
        found = dict[frozenset[tuple[str, tuple[str, ...]]], Change]()
        for first, trial in self._of_pods():
            for change in trial.changes():
                both = frozenset((each.kind.value, each.subjects) for each in (first, change))
                found.setdefault(both, replace(change, first=first))
        return [*found.values()]

    def _placing(self, change: Change) -> Iterator[Change]:
        if places := self._landed(self.pods, self.room):
            yield replace(change, places=places)

    def _landed(self, pods: Sequence[Pod], room: Room) -> Mapping[PodRef, str] | None:
        found = room.copy().land(pods, tell=False)
        return None if isinstance(found, Nowhere) else found

    def _of_pods(self) -> Iterator[tuple[Change, "_Trial"]]:
        """Changes to their placement, and the trial with each. Of gpuwatch's and Kubernetes' own taints none is
        tolerated: these Nodes are out of service."""
        taints = {
            (taint.key, taint.value, taint.effect)
            for node in self._nodes()
            if node.name not in self.facts.out_of_service and (taint := untolerated(self.pods[0], node)) is not None
        }
        places = [pod.placement for pod in self.pods]
        for key, value, effect in sorted(taints):
            more, name = Toleration(key=key, value=value, effect=effect), f"{key}={value}:{effect}"
            tolerant = [replace(each, tolerations=(*each.tolerations, more)) for each in places]
            yield self._placed(
                ChangeKind.TOLERATE, name, f"Tolerate the taint {name}, if they may run there.", tolerant
            )
        for key in sorted({key for each in places for key in each.node_selector}):
            without = [
                replace(each, node_selector={name: word for name, word in each.node_selector.items() if name != key})
                for each in places
            ]
            yield self._placed(ChangeKind.SELECT, key, f"Remove the node selector {key}.", without)
        if any(each.node_terms for each in places):
            anywhere = [replace(each, node_terms=()) for each in places]
            yield self._placed(ChangeKind.SELECT, "nodeAffinity", "Remove the node affinity.", anywhere)

    def _placed(self, kind: ChangeKind, subject: str, what: str, to: Sequence[Placement]) -> tuple[Change, "_Trial"]:
        pods = [replace(pod, placement=place) for pod, place in zip(self.pods, to, strict=True)]
        told = Change(kind=kind, what=what, subjects=(subject,), lost_gpu_hours=0.0, places={})
        return told, replace(self, pods=pods)

    def _nodes(self) -> Iterator[Node]:
        return (node for node in self.facts.nodes.values() if _among(node.name, self.within))

    def _less(self, kind: ChangeKind) -> Iterator[Change]:
        """The most of it, up to what the first Pod asks for, with which all land. Amounts: what Nodes have free."""
        cpu = kind is ChangeKind.LESS_CPU
        asked = self.pods[0].cpu_cores if cpu else float(self.pods[0].memory_bytes)
        free = {self.room.left(node.name) for node in self._nodes()}
        amounts = {cores if cpu else float(memory) for cores, memory in free}
        parts = {amount / count for amount in amounts for count in range(1, len(self.pods) + 1)}

        def lowered(amount: float) -> list[Pod]:
            if cpu:
                return [replace(pod, cpu_cores=min(pod.cpu_cores, amount)) for pod in self.pods]
            return [replace(pod, memory_bytes=min(pod.memory_bytes, int(amount))) for pod in self.pods]

        smaller = sorted((part for part in parts if 0 < part < asked), reverse=True)
        # With less of it they land wherever they land with more.
        low, high = 0, len(smaller)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._landed(lowered(smaller[middle]), self.room) else (middle + 1, high)
        if low < len(smaller) and (places := self._landed(lowered(smaller[low]), self.room)):
            amount = smaller[low]
            text = f"{amount:.6g} CPU cores" if cpu else f"{amount / _GIB:.4g} GiB of memory"
            was = f"{asked:.6g}" if cpu else f"{asked / _GIB:.4g}"
            what = f"Ask for at most {text} for each Pod, in place of {was}."
            yield Change(kind=kind, what=what, subjects=(), lost_gpu_hours=0.0, places=places, value=amount)

    def _of_nodes(self) -> Iterator[Change]:
        for node in self._nodes():
            if not node.unschedulable:
                continue
            taints = tuple(taint for taint in node.taints if taint.key != _CORDON)
            opened = replace(node, unschedulable=False, taints=taints)
            cluster = self.facts.snapshot.cluster
            nodes = tuple(opened if each.name == node.name else each for each in cluster.nodes)
            state = replace(self.facts.snapshot, cluster=replace(cluster, nodes=nodes))
            facts = replace(self.facts, snapshot=state)
            room, _ = _room(facts, {pod.ref for pod in self.pods}, self.within)
            if places := self._landed(self.pods, room):
                what = f"Uncordon Node {node.name}, if its work is done."
                yield Change(
                    kind=ChangeKind.UNCORDON, what=what, subjects=(node.name,), lost_gpu_hours=0.0, places=places
                )

    def _of_layouts(self) -> Iterator[Change]:
        """Partitions free GPUs into the MIG profile that is asked for, on the first Node where that places the Pods."""
        resource = next(iter(self.pods[0].accelerators), "")
        offered = (node for node in self._nodes() if node.mig_strategy == "mixed" and "/mig-" in resource)
        for node in offered:
            gpu = find_gpu(node.gpu_product) if node.name not in self.facts.out_of_service else None
            shape = geometry(gpu.mig_family) if gpu is not None else None
            profile = shape.profile(resource.partition("/mig-")[2]) if shape is not None else None
            if profile is not None and (found := self._partitioned(node.name, resource, profile)):
                yield found
                return

    def _partitioned(self, node: str, resource: str, profile: MigProfile) -> Change | None:
        """The fewest free GPUs of the Node that are enough."""
        room, named = self.room.copy(), list[str]()
        for devices in self._free_cards(node):
            slices = (f"nvidia.com/mig-{each.mig_profile.replace('+', '.')}" for each in devices if each.mig_profile)
            has = Counter(slices) or Counter({"nvidia.com/gpu": 1})
            if any(room.free(node, name) < count for name, count in has.items()):
                continue  # the cluster says that a Pod has it
            room.offer(node, {name: -count for name, count in has.items()})
            room.offer(node, {resource: profile.max_instances})
            named.append(devices[0].index or devices[0].uuid)
            if places := self._landed(self.pods, room):
                which = f"GPU {named[0]}" if len(named) == 1 else f"each of the GPUs {', '.join(named)}"
                into = f"{profile.max_instances} × {profile.name}"
                return Change(
                    kind=ChangeKind.REPARTITION,
                    what=f"Partition {which} of Node {node}, which no Pod has, into {into}.",
                    subjects=(node, *named),
                    lost_gpu_hours=0.0,
                    places=places,
                )
        return None

    def _free_cards(self, node: str) -> Iterator[list[Device]]:
        """The devices of each GPU that no Pod has and that is not degraded, by telemetry."""
        cards = grouped(self.facts.devices_of_node.get(node, ()), lambda item: item.uuid)
        for _, devices in sorted(cards.items()):
            if not any(item.pods or not item.present or item.id in self.facts.degraded_devices for item in devices):
                yield devices

    def _of_releases(self) -> Iterator[Change]:
        """The least harmful idle allocations that make the room."""
        offered = [item for item in self.releases if item.candidate.action is ActionKind.RELEASE_GANG]
        offered = [item for item in offered if {pod.ref for pod in self.pods}.isdisjoint(item.candidate.pods)]
        offered.sort(key=lambda item: (bool(item.refusals), item.score.disrupted_gpu_hours, item.candidate.id))
        needed = needed_for(self.pods, offered, self.room)
        room = self.room.copy()
        room.without(ref for item in needed or () for ref in item.candidate.pods)
        if needed and (places := self._landed(self.pods, room)):
            names = tuple(item.candidate.target.name for item in needed)
            why = next((f"{each.guard}: {each.reason}" for item in needed for each in item.refusals), "")
            yield Change(
                kind=ChangeKind.RELEASE,
                what=f"Release {' and '.join(names)}, which {'is' if len(names) == 1 else 'are'} idle.",
                subjects=names,
                lost_gpu_hours=sum(item.score.disrupted_gpu_hours for item in needed),
                places=places,
                refused=why,
            )

    def _of_moves(self) -> Iterator[Change]:
        """Pods that land elsewhere and leave the room, the least work lost first; each Pod of the gang in turn."""
        room, moved = self.room.copy(), list[Pod]()
        order = sorted(self.pods, key=lambda pod: (-sum(pod.accelerators.values()), pod.ref))
        for pod in order:
            landed = room.land([pod], tell=False)
            if isinstance(landed, Nowhere):
                best = min(self._ways(pod, room), key=lambda way: (way[0], way[1]), default=None)
                if best is None:
                    return
                moved += best[2]
                room = best[3]
        if moved:
            places = {pod.ref: name for pod in self.pods if (name := room.node_of(pod.ref)) is not None}
            hours = self._hours(moved)
            names = " and ".join(each.ref for each in moved)
            what = f"Move {names}: each of them finds another place."
            yield Change(
                kind=ChangeKind.MOVE,
                what=what,
                subjects=tuple(each.ref for each in moved),
                lost_gpu_hours=hours,
                places=places,
                when=self._when(moved),
            )

    def _when(self, pods: Sequence[Pod]) -> str:
        """When their move loses least, waiting aside; '' for now."""
        refs = tuple(pod.ref for pod in pods)
        candidate = Candidate(
            action=ActionKind.EVICT_GANG,
            target=Subject(SubjectKind.WORKLOAD, pods[0].workload),
            findings=(),
            devices=(),
            pods=refs,
            nodes=(),
        )
        _, timing = chosen(candidate, self.facts, 0.0)
        return timing.reason if timing.kind is not TimingKind.NOW else ""

    def _hours(self, pods: Iterable[Pod]) -> float:
        return sum(restart_hours(pod, self.facts) * self.facts.gpu_shares([pod]) for pod in pods)

    def _ways(self, pod: Pod, room: Room) -> Iterator[tuple[float, str, list[Pod], Room]]:
        """Work lost, the Node, what leaves it, and the room afterwards with the Pod in it."""
        resource = next(iter(sorted(pod.accelerators)), "")
        ever = [name for name in room.ever(pod) if _among(name, self.within)]
        least = math.inf
        for name in sorted(ever, key=lambda each: (-room.free(each, resource), each))[:_NODES_TRIED]:
            lacks = pod.accelerators.get(resource, 0) - room.free(name, resource)
            here = sorted(self._movable(name, room), key=lambda each: (self._hours([each]), each.ref))
            for leaving in self._sets(here, resource, lacks):
                hours = self._hours(leaving)
                if hours >= least:
                    break
                trial = room.copy()
                trial.without(each.ref for each in leaving)
                if isinstance(trial.land([pod], [name], tell=False), Nowhere):
                    continue
                if not isinstance(trial.land(leaving, tell=False), Nowhere):
                    least = hours
                    yield hours, name, leaving, trial
                    break

    def _sets(self, pods: Sequence[Pod], resource: str, lacks: int) -> Iterator[list[Pod]]:
        """Sets of these Pods, sorted by what their move loses, that free enough accelerators: the cheapest first."""
        hours, tried = [self._hours([pod]) for pod in pods], 0
        queue: list[tuple[float, tuple[int, ...]]] = [(hours[0], (0,))] if pods else []
        while queue and tried < _SETS_TRIED:
            lost, chosen_ = heapq.heappop(queue)
            tried += 1
            if sum(pods[index].accelerators.get(resource, 0) for index in chosen_) >= lacks:
                yield [pods[index] for index in chosen_]
            last = chosen_[-1]
            if last + 1 < len(pods):  # each set is reached once: its last Pod is joined by the next, or gives way to it
                heapq.heappush(queue, (lost + hours[last + 1], (*chosen_, last + 1)))
                heapq.heappush(queue, (lost - hours[last] + hours[last + 1], (*chosen_[:-1], last + 1)))

    def _movable(self, node: str, room: Room) -> Iterator[Pod]:
        """Pods on the Node that may be moved one by one, and were not moved already."""
        for pod in self.facts.live.values():
            if pod.node != node or room.node_of(pod.ref) != node or pod.gang or pod.deleting:
                continue
            owner, siblings = self.facts.workloads.get(pod.workload), self.facts.owned.get(pod.workload, [])
            if not move_refusal(None, owner, [pod], siblings):
                yield pod
