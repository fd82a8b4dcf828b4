"""Fragmentation: how many of the free GPUs a request of the mix that is seen cannot use, in expectation, and why. Pure.

As by Fragmentation Gradient Descent (FGD, Weng et al., ATC'23): of each Node all free GPUs count for a request that the
Node takes, and none for another. The mix is what the GPU Pods ask for that run or wait now, each Pod counted once; the
most frequent requests that make up 95 % of the Pods. Unlike FGD, memory, the number of Pods, taints, affinities, MIG
and topology count, and Pods without GPUs are no requests: they leave GPUs as they are.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpuwatch.act.placement import Room
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.slots import TOO_FEW, WORDS, kinds_of
from gpuwatch.facts.model.cluster import Pod
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.ledger import Row
from gpuwatch.facts.model.selectors import counts, means
from gpuwatch.facts.model.telemetry import PodRef

MIX_PERCENT = 95
"""Of the Pods, whose requests are the mix: FGD's threshold. Rare requests cost time and move the figure little."""
MOST_BLOCKERS = 10

OTHER_KIND = "another MIG profile or kind of GPU"
UNKNOWN = "unknown"
_WORDS = {**WORDS, "topology": "topology spread"}
_ROWS = {"": Row.USABLE, UNKNOWN: UNKNOWN}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """A Pod without GPUs on a Node whose free GPUs lack CPU. gpus: expected free GPUs that a request could use too if
    this Pod alone were gone."""

    pod: PodRef
    node: str
    cpu_cores: float
    gpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragmentation:
    """Of one pool, GPU model and resource.

    free: units on Nodes in service that no Pod has, and no waiting Pod is about to get. unallocatable: of them those
    that a request of the mix cannot use, in expectation. causes: these by the first lack; beside them 'unknown' has the
    units for which the landing cannot tell, which are not in `unallocatable`. blockers: the most CPU cores first,
    MOST_BLOCKERS at most. gpus: physical GPUs by the rows of the ledger and 'unknown', with what waiting Pods get.
    """

    pool: str
    gpu_model: str
    resource: str
    whole: bool
    free: int
    unallocatable: float
    causes: Mapping[str, float] = field(default_factory=dict)
    blockers: tuple[Blocker, ...] = ()
    gpus: Mapping[str, float] = field(default_factory=dict)


def most_frequent(found: Mapping[_T, int]) -> dict[_T, float]:
    """The most frequent, until they make up MIX_PERCENT of all, and their shares of one another's sum. Among equally
    frequent ones the order of `found` decides.

    >>> most_frequent({"a": 16, "b": 80, "c": 4})
    {'b': 0.8333333333333334, 'a': 0.16666666666666666}
    """
    total, taken = sum(found.values()), 0
    kept: dict[_T, int] = {}
    for item, count in sorted(found.items(), key=lambda each: -each[1]):
        if 100 * taken >= MIX_PERCENT * total:
            break
        kept[item] = count
        taken += count
    return {item: count / taken for item, count in kept.items()}


def mix_of(pods: Iterable[Pod], room: Room) -> list[tuple[Pod, float]]:
    """A Pod for each of the most frequent requests, and the share of Pods that make it. Requests are equal where no
    Node can tell them apart. Without volumes and host ports: the next such Pod may have others."""
    kept_away, words, like = room.kept_away(), dict[int, str](), dict[object, Pod]()
    made: Counter[object] = Counter()
    for pod in sorted(pods, key=lambda each: each.ref):
        place = pod.placement
        if id(place) not in words:
            fields = place.unmodelled[:1] and ("a field",)
            words[id(place)] = repr(replace(place, gated=False, unmodelled=fields, host_ports=(), volumes=()))
        asks = (*sorted(pod.accelerators.items()), pod.cpu_cores, pod.memory_bytes, bool(pod.claims))
        # Labels differ from Pod to Pod, but not in what these terms make of them.
        own = tuple(means(each, pod) for each in place.pod_affinity)
        spread = tuple((pod.namespace, counts(each, pod, pod)) for each in place.spread)
        key = (asks, words[id(place)], own, spread, kept_away(pod))
        if key not in like:
            like[key] = replace(pod, placement=replace(place, host_ports=(), volumes=()))
        made[key] += 1
    return [(like[key], share) for key, share in most_frequent(made).items()]


def fragmentation(facts: PlanFacts) -> tuple[Fragmentation, ...]:
    """By pool, GPU model and resource; () where no GPU Pod runs or waits, as then no mix is seen. The room that waiting
    Pods are about to get is taken, as of `slots`."""
    room, mix = facts.ground.room, mix_of(facts.live.values(), facts.ground.room)
    kinds = {
        (pool, *kind): [node.name for node in here]
        for kind, nodes in kinds_of(facts).items()
        for pool, here in grouped(nodes.values(), facts.pool).items()
    }
    service = {name for names in kinds.values() for name in names} - facts.out_of_service.keys()
    some = {name for name in service for *_, resource, _ in kinds if room.free(name, resource)}
    lacks = {name: list[str]() for name in sorted(some)}
    for pod, _ in mix:
        for name, lack in room.first_lacks(pod, lacks):
            lacks[name].append(lack)
    found = []
    for (pool, model, resource, whole), names in sorted(kinds.items()) if mix else ():
        causes: defaultdict[str, float] = defaultdict(float)
        starved: dict[str, int] = {}
        free = {name: room.free(name, resource) for name in names if name in service}
        worth = {name: facts.unit_gpus(facts.nodes[name]).get(resource, 1.0) for name in free}
        gpus = dict.fromkeys((Row.USABLE, Row.UNREACHABLE, UNKNOWN), 0.0)
        gpus[Row.WAITED_FOR] = sum(worth[name] * (facts.bare_room.free(name, resource) - free[name]) for name in free)
        for name, units in ((name, units) for name, units in free.items() if units):
            for (pod, share), lack in zip(mix, lacks[name], strict=True):
                cause = _cause(pod, resource, units, lack)
                causes[cause] += share * units
                gpus[_ROWS.get(cause, Row.UNREACHABLE)] += worth[name] * share * units
            starved |= {name: units} if "CPU" in lacks[name] else {}
        usable, unknown = causes.pop("", 0.0), causes.get(UNKNOWN, 0.0)
        found.append(
            Fragmentation(
                pool=pool,
                gpu_model=model,
                resource=resource,
                whole=whole,
                free=sum(free.values()),
                unallocatable=max(sum(free.values()) - usable - unknown, 0.0),
                causes=dict(sorted(causes.items(), key=lambda each: (-each[1], each[0]))),
                blockers=_blockers(facts, room, mix, resource, starved, lacks),
                gpus=gpus,
            )
        )
    return tuple(found)


def _cause(pod: Pod, resource: str, units: int, lack: str) -> str:
    """What keeps the Pod from so many free units of the resource, in words; '' for nothing."""
    if lack in ("CPU", "memory", "Pods", "taint or affinity"):
        return _WORDS.get(lack, lack)
    asked = pod.accelerators.get(resource, 0)
    if asked > units:
        return TOO_FEW
    if (not asked and (pod.accelerators or not pod.claims)) or lack in pod.accelerators:
        return OTHER_KIND
    return _WORDS.get(lack, lack)


def _blockers(
    facts: PlanFacts,
    room: Room,
    mix: Iterable[tuple[Pod, float]],
    resource: str,
    starved: Mapping[str, int],
    lacks: Mapping[str, list[str]],
) -> tuple[Blocker, ...]:
    """starved: Node where a request of the mix lacks CPU → its free units."""
    here = (pod for pod in facts.snapshot.cluster.companions if pod.node in starved and pod.cpu_cores)
    biggest = sorted(here, key=lambda pod: (-pod.cpu_cores, pod.ref))[:MOST_BLOCKERS]

    def gained(gone: Pod) -> float:
        units, more = starved[gone.node], 0.0
        for (pod, share), before in zip(mix, lacks[gone.node], strict=True):
            ((_, lack),) = room.first_lacks(pod, (gone.node,), gone)
            if _cause(pod, resource, units, before) and not _cause(pod, resource, units, lack):
                more += share * units
        return more

    return tuple(Blocker(pod=pod.ref, node=pod.node, cpu_cores=pod.cpu_cores, gpus=gained(pod)) for pod in biggest)
