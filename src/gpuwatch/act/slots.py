"""How many more gangs of each size would start now, why other free GPUs are in none, and what waits beside them. Pure.

A gang of N GPUs is one Pod, up to the GPUs of a Node; a larger one has Pods of the largest part of N that a Node has.
Each Pod asks for as much CPU and memory per GPU as the median Pod with such GPUs does now. It tolerates the taints of
the GPU's vendor. Room that waiting Pods are about to get is taken. Quotas are not looked at.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from statistics import median

from gpuwatch.act.placement import Nowhere, lacks_room_alone
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.facts.catalog.gpus import model_name
from gpuwatch.facts.model.cluster import Node, Placement, Pod, Sharing, Toleration
from gpuwatch.facts.model.grouping import grouped

SIZES = (1, 2, 4, 8, 16, 32, 64)
"""GPUs of a gang: what users ask for (kueue#10505)."""

ANYWHERE = ""
"""The topology of gangs whose Pods may be on any Nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Gangs of one size that would start now.

    resource: as Pods ask for it. whole: its units are GPUs, and not slices or shares. gpus: units of a gang; pods: its
    Pods. cpu_cores, memory_bytes: of each Pod; 0 where no Pod has such GPUs. topology: a label, of which all Nodes of a
    gang have one value; or ANYWHERE. count: of all domains. domains: by value, those with a slot. free: units that no
    Pod has. left: of them those in no slot, by cause; of ANYWHERE alone.
    """

    gpu_model: str
    resource: str
    whole: bool
    gpus: int
    pods: int
    cpu_cores: float
    memory_bytes: int
    topology: str
    count: int
    free: int
    domains: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        return unit_of(self.resource, whole=self.whole)


def unit_of(resource: str, *, whole: bool) -> str:
    """The resource; marked where its units are slices or shares, as whole GPUs of a model may have its name too."""
    return resource if whole else f"{resource} (part)"


TOO_FEW = "too few of them free on their Node"
NO_REST = "no place for the rest of a gang"
WORDS = {"Pods": "no more Pods on the Node", "CPU": "too little CPU", "memory": "too little memory"}

RETRIED = timedelta(minutes=5)
"""kube-scheduler tries each Pod again after five minutes at most (podMaxInUnschedulablePodsDuration)."""


class RoomFor(StrEnum):
    """Whether there is room for Pods that wait."""

    FITS = "fits"  # now, beside all that runs
    NONE = "none"
    NEW = "new"  # their scheduler may not have looked since they were created
    UNKNOWN = "unknown"  # a field of theirs, or a reason of their scheduler's, is not modelled


def waiting_gpus(facts: PlanFacts) -> dict[RoomFor, int]:
    """GPUs, slices and shares that pending Pods ask for, gangs together, in the scheduler's order. Pods that a gate
    holds back do not count."""
    found = dict.fromkeys(RoomFor, 0)
    room = facts.bare_room.copy()
    for group in facts.pending:
        landed = room.land(group, tell=False)
        young = (pod.created is None or pod.created > facts.snapshot.at - RETRIED for pod in group)
        if isinstance(landed, Nowhere):
            answer = RoomFor.NONE if landed.known else RoomFor.UNKNOWN
        elif any(young):
            answer = RoomFor.NEW
        else:
            answer = RoomFor.FITS if all(map(lacks_room_alone, group)) else RoomFor.UNKNOWN
        found[answer] += sum(sum(pod.accelerators.values()) for pod in group)
    return found


Kind = tuple[str, str, bool]
"""GPU model, resource, and whether its units are whole GPUs."""


def slots(
    facts: PlanFacts, sizes: Collection[int] = SIZES, labels: Sequence[str] = (), tolerated: Collection[str] = ()
) -> tuple[Slots, ...]:
    """By GPU model, resource, topology and size. sizes: of whole GPUs; of slices and shares only one is asked for.
    labels: of Nodes, each a topology; one that no Node has is left out. tolerated: keys of more taints that the Pods
    tolerate."""
    found: list[Slots] = []
    for kind, nodes in sorted(kinds_of(facts).items()):
        _, resource, whole = kind
        most = max(node.allocatable[resource] for node in nodes.values())
        single = pod_like(facts, resource, nodes, 1, tolerated)
        for gpus in sorted({*sizes}) if whole else (1,):
            each = largest_part(gpus, most)
            pod = replace(
                single,
                accelerators={resource: each},
                cpu_cores=each * single.cpu_cores,
                memory_bytes=each * single.memory_bytes,
            )
            found += _of_size(facts, kind, nodes, pod, gpus // each, labels)
    return tuple(found)


def largest_part(gpus: int, most: int) -> int:
    """GPUs of each Pod of a gang, on Nodes that have at most so many.

    >>> largest_part(12, 8)
    6
    """
    return max(part for part in range(1, min(gpus, most) + 1) if gpus % part == 0)


def pod_like(
    facts: PlanFacts, resource: str, nodes: Mapping[str, Node], units: int, tolerated: Collection[str] = ()
) -> Pod:
    """A Pod that asks for so many units, and for each for as much CPU and memory as the median Pod on these Nodes."""
    cpu_cores, memory_bytes = _usual(facts, resource, nodes)
    return Pod(
        namespace="",
        name="slot",
        accelerators={resource: units},
        cpu_cores=units * cpu_cores,
        memory_bytes=round(units * memory_bytes),
        placement=Placement(tolerations=_tolerations(resource, nodes.values(), tolerated)),
    )


def kinds_of(facts: PlanFacts) -> dict[Kind, dict[str, Node]]:
    found: defaultdict[Kind, dict[str, Node]] = defaultdict(dict)
    for node in facts.nodes.values():
        shown = (device.model for device in facts.devices_of_node.get(node.name, ()))
        model = model_name(node.gpu_product or next(shown, ""))
        for resource, count in node.allocatable.items():
            if count > 0:
                found[model, resource, _whole(node, resource)][node.name] = node
    return found


def _whole(node: Node, resource: str) -> bool:
    """Whether its units are GPUs. Beside slices of the strategy `mixed` there may be GPUs without MIG."""
    beside = node.mig_strategy == "mixed" and "/mig-" not in resource and node.sharing is Sharing.NONE
    return not node.cut or (beside and node.replicas == 1)


def _usual(facts: PlanFacts, resource: str, nodes: Collection[str]) -> tuple[float, float]:
    """CPU cores and bytes of memory per unit that the median Pod on these Nodes asks for."""
    here = [
        (pod, count)
        for pod in facts.live.values()
        if pod.node in nodes and (count := pod.accelerators.get(resource, 0)) and len(pod.accelerators) == 1
    ]
    if not here:
        return 0.0, 0.0
    cores, memory = (median(of) for of in zip(*((p.cpu_cores / n, p.memory_bytes / n) for p, n in here), strict=True))
    return float(cores), float(memory)


def _tolerations(resource: str, nodes: Iterable[Node], tolerated: Collection[str]) -> tuple[Toleration, ...]:
    """Of the vendor's taints, such as nvidia.com/gpu, which keep only Pods without GPUs away, and of those named."""
    vendor = resource.partition("/")[0]
    keys = {taint.key for node in nodes for taint in node.taints if taint.key.partition("/")[0] == vendor}
    return tuple(Toleration(key=key, operator="Exists") for key in sorted({*keys, *tolerated}))


def _of_size(
    facts: PlanFacts, kind: Kind, nodes: Mapping[str, Node], pod: Pod, pods: int, labels: Sequence[str]
) -> Iterable[Slots]:
    model, resource, whole = kind
    each, room = pod.accelerators[resource], facts.ground.room
    takes = {name: (count, why) for name, count, why in room.copies(pod) if name in nodes}
    free = {name: room.free(name, resource) for name in nodes}
    for topology in (ANYWHERE, *labels):
        labelled = (node for node in nodes.values() if not topology or topology in node.labels)
        domains = grouped(labelled, lambda node, topology=topology: node.labels.get(topology, ""))  # type: ignore[misc]
        counts = {value: sum(takes[node.name][0] for node in of) // pods for value, of in domains.items()}
        if not domains:
            continue
        left: Counter[str] = Counter()
        if not topology:
            for name, (count, why) in takes.items():
                left[WORDS.get(why, why) if why != resource else TOO_FEW] += free[name] - count * each
            left[NO_REST] += sum(count for count, _ in takes.values()) % pods * each
        yield Slots(
            gpu_model=model,
            resource=resource,
            whole=whole,
            gpus=pods * each,
            pods=pods,
            cpu_cores=pod.cpu_cores,
            memory_bytes=pod.memory_bytes,
            topology=topology,
            count=sum(counts.values()),
            free=sum(free.values()),
            domains={value: count for value, count in sorted(counts.items()) if count and topology},
            left={why: units for why, units in sorted(left.items()) if units},
        )
