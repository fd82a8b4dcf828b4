"""Could the scheduler place these Pods, a gang all at once, beside everything that runs?

Considered: accelerators (MIG profiles are resources of their own), CPU, memory, the number of Pods, taints, node
selector and affinity, Pod affinity and anti-affinity, topology spread, host ports, volume claims. A Pod with any other
field that may restrict it (kube/pod_fields.yaml), or with a claim that is not wholly known, lands nowhere. Unknown
means no. The plan's moves and the MIG plan ask the same simulation. Pure.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuwatch.facts.model.cluster import HOSTNAME, Node, NodeTerm, Placement, Pod, PodTerm, Spread, Taint, Toleration
from gpuwatch.facts.model.selectors import counts, holds, means
from gpuwatch.facts.model.telemetry import PodRef

# Bounds the backtracking for one gang; beyond it the answer is 'no'. Equal Pods without affinities need none.
_TRIES = 200
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Nowhere:
    """Why a group does not land: the first Pod without a place, and the Node that came closest. known: False where it
    may land, and nothing proves it."""

    reason: str
    known: bool = True


@dataclass(slots=True)
class FreeResources:
    """What is left of one Node. pods: None where its limit is unknown. volumes: by CSI driver, where it has a limit; a
    volume of two Pods counts twice."""

    accelerators: dict[str, int]
    cpu_cores: float
    memory_bytes: int
    pods: int | None
    volumes: dict[str, int]

    def take(self, pod: Pod, sign: int = 1) -> None:
        for name, count in pod.accelerators.items():
            self.accelerators[name] = self.accelerators.get(name, 0) - sign * count
        self.cpu_cores -= sign * pod.cpu_cores
        self.memory_bytes -= sign * pod.memory_bytes
        if self.pods is not None:
            self.pods -= sign
        for volume in pod.placement.volumes:
            if volume.driver in self.volumes:
                self.volumes[volume.driver] -= sign

    def lacks(self, pod: Pod) -> Iterator[tuple[float, str]]:
        """(missing share of the need, description) of each resource that is short; nothing where the Pod fits."""
        for name, count in sorted(pod.accelerators.items()):
            free = max(self.accelerators.get(name, 0), 0)
            if free < count:
                yield (count - free) / count, f"{free} of {count} {name} are free"
        # CPU sums have rounding errors: tolerate a thousandth of a millicore.
        if pod.cpu_cores and self.cpu_cores + 1e-6 < pod.cpu_cores:
            free_cores = max(self.cpu_cores, 0.0)
            yield 1 - free_cores / pod.cpu_cores, f"{free_cores:g} of {pod.cpu_cores:g} CPU cores are free"
        if pod.memory_bytes and self.memory_bytes < pod.memory_bytes:
            room = max(self.memory_bytes, 0)
            words = f"{room / _GIB:.1f} of {pod.memory_bytes / _GIB:.1f} GiB memory are free"
            yield 1 - room / pod.memory_bytes, words
        if self.pods is not None and self.pods < 1:
            yield 1.0, "it takes no more Pods"
        for driver, count in Counter(volume.driver for volume in pod.placement.volumes).items():
            if self.volumes.get(driver, count) < count:
                yield 1.0, f"it attaches no more volumes of {driver}"

    def bounds(self, cpu_cores: float, memory_bytes: float) -> dict[str, float]:
        """How many Pods with these requests fit, by each resource but accelerators; inf where nothing bounds them."""
        found = {"Pods": math.inf if self.pods is None else float(self.pods)}
        if cpu_cores:
            found["CPU"] = (self.cpu_cores + 1e-6) // cpu_cores
        if memory_bytes:
            found["memory"] = float(self.memory_bytes // memory_bytes)
        return {name: max(count, 0.0) for name, count in found.items()}

    def times(self, cpu_cores: float, memory_bytes: float) -> float:
        """How many Pods with these requests fit, accelerators aside; inf where nothing bounds them."""
        return min(self.bounds(cpu_cores, memory_bytes).values())

    @property
    def left(self) -> tuple[int, float, int]:
        """Sort key for best fit."""
        return sum(self.accelerators.values()), self.cpu_cores, self.memory_bytes


def unallocated(node: Node) -> FreeResources:
    """The Node without Pods that have accelerators."""
    return FreeResources(
        dict(node.allocatable),
        node.cpu_cores - node.other_cpu_cores,
        node.memory_bytes - node.other_memory_bytes,
        None if node.max_pods is None else node.max_pods - node.other_pods,
        dict(node.attachable),
    )


class PlacedPods:
    """Affinity, anti-affinity, topology spread, host ports and volumes of one Pod against placed Pods, computed once
    for all Nodes."""

    def __init__(
        self,
        pod: Pod,
        nodes: Mapping[str, Node],
        placed: Collection[tuple[Pod, str]],
        apart: Iterable[tuple[Pod, str]],
        taken: Container[str],
    ) -> None:
        """placed: Pods and their Nodes; apart: those of them with an anti-affinity. taken: volumes that are not free
        any more."""
        self._pod = pod
        self._taken = taken
        place = pod.placement

        def where(key: str, *terms: PodTerm) -> frozenset[str]:
            """Domains with a Pod that all the terms select."""
            met = (label_of(nodes[at], key) for other, at in placed if all(means(each, other) for each in terms))
            return frozenset(name for name in met if name is not None)

        self._away = [(term.topology_key, where(term.topology_key, term)) for term in place.pod_anti_affinity]
        self._near = [(term.topology_key, where(term.topology_key, *place.pod_affinity)) for term in place.pod_affinity]
        # The first Pod of a group with affinity to itself may be anywhere.
        self._first = all(means(term, pod) for term in place.pod_affinity) and not any(at for _, at in self._near)
        self._shunned: dict[str, dict[str, PodRef]] = {}
        for other, at in apart:
            for term in other.placement.pod_anti_affinity:
                if means(term, pod) and (name := label_of(nodes[at], term.topology_key)) is not None:
                    self._shunned.setdefault(term.topology_key, {}).setdefault(name, other.ref)
        self._spread = [(spread, self._counted(spread, nodes, placed)) for spread in place.spread]
        self._ports = {
            at: (port.port, other.ref)
            for other, at in (placed if place.host_ports else ())
            for port in place.host_ports
            if any(map(port.clashes, other.placement.host_ports))
        }
        alone = {item.claim for item in place.volumes if item.alone}
        self._users = {
            item.claim: other.ref
            for other, _ in (placed if alone else ())
            for item in other.placement.volumes
            if item.claim in alone
        }

    def _counted(
        self, spread: Spread, nodes: Mapping[str, Node], placed: Iterable[tuple[Pod, str]]
    ) -> Mapping[str, int]:
        """Pods that are spread together with this one, by domain, on Nodes that it may run on by their labels."""
        keys = [each.topology_key for each in self._pod.placement.spread]
        domains = {
            node.name: label_of(node, spread.topology_key) or ""
            for node in nodes.values()
            if all(label_of(node, key) is not None for key in keys) and not unselected(self._pod, node)
        }
        found = Counter(dict.fromkeys(domains.values(), 0))
        found.update(domains[at] for other, at in placed if at in domains and counts(spread, self._pod, other))
        return found

    def occupied(self, node: Node) -> str:
        """Why Pods with the Pod's host ports or volumes rule out the Node; '' for no reason."""
        if node.name in self._ports:
            port, ref = self._ports[node.name]
            return f"its host port {port} is taken by Pod {ref}"
        for claim, ref in self._users.items():
            return f"claim {claim} is for one Pod alone, and Pod {ref} uses it"
        return volumes_on(self._pod, node, self._taken)[1]

    def quarrel(self, node: Node) -> str:
        """Why placed Pods rule out the Node; '' for no reason."""
        return self.occupied(node) or self.unfriendly(node) or self.uneven(node)

    def unfriendly(self, node: Node) -> str:
        """Why an affinity or anti-affinity does; '' for no reason."""
        for key, names in self._away:
            if label_of(node, key) in names:
                return f"a Pod that it must not be beside is in the same {key}"
        for key, refs in self._shunned.items():
            here = label_of(node, key)
            if here is not None and here in refs:
                return f"Pod {refs[here]} must not have it in the same {key}"
        for key, names in self._near:
            here = label_of(node, key)
            if here is None:
                return f"it has no label {key}"
            if not self._first and here not in names:
                return f"no Pod that it must be beside is known in the same {key}"
        return ""

    def uneven(self, node: Node) -> str:
        """Why a topology spread does; '' for no reason."""
        for spread, found in self._spread:
            here = label_of(node, spread.topology_key)
            if here is None:
                return f"it has no label {spread.topology_key}"
            least = 0 if len(found) < spread.min_domains else min(found.values(), default=0)
            if found.get(here, 0) + counts(spread, self._pod, self._pod) - least > spread.max_skew:
                return f"its {spread.topology_key} has {found.get(here, 0)} of these Pods, and another {least}"
        return ""


class Room:
    """Nodes and what is free. `without`, `put`, `avoid`, `offer` and `land` change it; `copy` it for a trial."""

    def __init__(
        self, nodes: Iterable[Node], pods: Iterable[Pod], out: Mapping[str, str], beside: Iterable[Pod] = ()
    ) -> None:
        """pods: only those with a Node take room. out: Node → why nothing lands there. beside: `Cluster.bystanders`."""
        self._nodes = {node.name: node for node in nodes}
        self._out = dict(out)
        self._free = {node.name: unallocated(node) for node in self._nodes.values()}
        self._own: set[str] = set(self._free)  # Nodes whose FreeResources is not shared with a copy
        self._pods: dict[PodRef, tuple[Pod, str]] = {}
        self._apart: set[PodRef] = set()
        self._beside = [(pod, pod.node) for pod in beside if pod.node in self._nodes]
        self._shy = [item for item in self._beside if item[0].placement.pod_anti_affinity]
        self._unfit: dict[tuple[int, str], tuple[Placement, str]] = {}
        self._taken: dict[str, PodRef] = {}  # volumes that were free, and for which Pod here they are taken
        for pod in pods:
            if pod.node in self._nodes and pod.phase in ("Running", "Pending"):
                self.put(pod, pod.node)

    def copy(self) -> "Room":
        made = object.__new__(Room)
        made._nodes, made._unfit = self._nodes, self._unfit
        made._beside, made._shy = self._beside, self._shy
        made._out, made._free = dict(self._out), dict(self._free)
        made._pods, made._apart = dict(self._pods), set(self._apart)
        made._taken = dict(self._taken)
        made._own = set()
        self._own = set()
        return made

    def avoid(self, nodes: Iterable[str], why: str) -> None:
        for name in nodes:
            if name in self._nodes:
                self._out.setdefault(name, why)

    def without(self, refs: Iterable[PodRef]) -> None:
        """Remove these Pods."""
        for ref in refs:
            found = self._pods.pop(ref, None)
            self._apart.discard(ref)
            if found is not None:
                self._mine(found[1]).take(found[0], -1)
                for name in [name for name, user in self._taken.items() if user == ref]:
                    del self._taken[name]

    def put(self, pod: Pod, node: str) -> None:
        self._pods[pod.ref] = (pod, node)
        if pod.placement.pod_anti_affinity:
            self._apart.add(pod.ref)
        if pod.placement.volumes and pod.node != node:
            self._taken |= dict.fromkeys(volumes_on(pod, self._nodes[node], self._taken)[0], pod.ref)
        self._mine(node).take(pod)

    def node_of(self, ref: PodRef) -> str | None:
        found = self._pods.get(ref)
        return found[1] if found is not None else None

    def times(self, node: str, cpu_cores: float, memory_bytes: float) -> float:
        """How many more Pods with these requests the Node takes, accelerators and constraints aside."""
        return self._free[node].times(cpu_cores, memory_bytes)

    def copies(self, pod: Pod) -> Iterator[tuple[str, int, str]]:
        """Node, how many more Pods like this one it takes, and what bounds them: 'out of service', 'taint KEY',
        'labels', 'other Pods', 'Pods', 'CPU', 'memory', the name of the accelerator, or words on a host port or a
        volume. Its own affinities do not count."""
        place = pod.placement
        others = self._placed_pods(pod) if self._apart or self._shy or place.host_ports or place.volumes else None
        for name, node in self._nodes.items():
            free = self._free[name]
            bounds = {
                resource: float(max(free.accelerators.get(resource, 0), 0) // count)
                for resource, count in pod.accelerators.items()
            } | free.bounds(pod.cpu_cores, pod.memory_bytes)
            against = ""
            if name in self._out:
                against = "out of service"
            elif taint := untolerated(pod, node):
                against = f"taint {taint.key}"
            elif unselected(pod, node):
                against = "labels"
            elif others is not None and (occupied := others.occupied(node)):
                against = occupied.partition(" by Pod ")[0]
            elif others is not None and others.quarrel(node):
                against = "other Pods"
            if place.host_ports:
                bounds["its host ports"] = 1.0
            for driver, count in Counter(item.driver for item in place.volumes).items():
                if driver in free.volumes:
                    bounds[f"it attaches no more volumes of {driver}"] = float(max(free.volumes[driver], 0) // count)
            least = min(bounds, key=lambda each: bounds[each])
            yield (name, 0, against) if against else (name, int(bounds[least]), least)

    def first_lacks(self, pod: Pod, names: Iterable[str], gone: Pod | None = None) -> Iterator[tuple[str, str]]:
        """Node in service, and the first that keeps the Pod from it: 'CPU', 'memory', 'Pods', 'taint or affinity', the
        name of an accelerator, 'topology', 'unknown'; '' where it lands. gone: a Pod taken to be on none of them."""
        others = self._placed_pods(pod) if self._choosy(pod) else None
        unknown = "unknown" if _unknown(pod) else ""
        for name in names:
            if name in self._out or name not in self._nodes:
                continue
            node, free = self._nodes[name], self._free[name]
            if gone is not None:
                free = replace(free, accelerators=dict(free.accelerators), volumes=dict(free.volumes))
                free.take(gone, -1)
            bounds = free.bounds(pod.cpu_cores, pod.memory_bytes)
            short = next((each for each in ("CPU", "memory", "Pods") if bounds.get(each, 1) < 1), "")
            if not short and (self._never(pod, node) or (others is not None and others.unfriendly(node))):
                short = "taint or affinity"
            short = short or next((each for each, n in pod.accelerators.items() if self.free(name, each) < n), "")
            uneven = not short and others is not None and others.uneven(node)
            yield name, short or ("topology" if uneven else unknown)

    def kept_away(self) -> Callable[[Pod], tuple[bool, ...]]:
        """Which of the anti-affinities of placed Pods mean a Pod: equal for Pods that the same Nodes rule out."""
        terms: list[PodTerm] = []
        for other, _ in (*(self._pods[ref] for ref in sorted(self._apart)), *self._shy):
            terms += [each for each in other.placement.pod_anti_affinity if each not in terms]
        return lambda pod: tuple(means(each, pod) for each in terms)

    def left(self, node: str) -> tuple[float, int]:
        """CPU cores and bytes of memory that no Pod has asked for."""
        return self._free[node].cpu_cores, self._free[node].memory_bytes

    def free(self, node: str, resource: str) -> int:
        """Accelerators of the Node that no Pod has, whether or not one can land there."""
        return max(self._free[node].accelerators.get(resource, 0), 0)

    def offer(self, node: str, more: Mapping[str, int]) -> None:
        """So many more accelerators of the Node; fewer where negative."""
        free = self._mine(node).accelerators
        for name, count in more.items():
            free[name] = free.get(name, 0) + count

    def _mine(self, node: str) -> FreeResources:
        if node not in self._own:
            shared = self._free[node]
            self._free[node] = replace(shared, accelerators=dict(shared.accelerators), volumes=dict(shared.volumes))
            self._own.add(node)
        return self._free[node]

    def ever(self, pod: Pod) -> frozenset[str]:
        """Nodes in service on which the Pod would fit if it were alone there."""
        if _unknown(pod):
            return frozenset()
        return frozenset(
            node.name
            for node in self._nodes.values()
            if node.name not in self._out
            and not self._never(pod, node)
            and all(node.allocatable.get(name, 0) >= count for name, count in pod.accelerators.items())
        )

    def _never(self, pod: Pod, node: Node) -> str:
        key = (id(pod.placement), node.name)
        found = self._unfit.get(key)
        if found is None:
            # With the Placement, so that no other one gets its id.
            found = self._unfit[key] = pod.placement, unfit(pod, node)
        return found[1]

    def land(
        self, pods: Sequence[Pod], within: Collection[str] | None = None, *, tell: bool = True, perhaps: bool = False
    ) -> Mapping[PodRef, str] | Nowhere:
        """A Node for each of the Pods, all at once, or why there is none. Places all of them here, or none.

        within: only these Nodes. tell: find the Node that came closest, by a scan. perhaps: also Pods with fields that
        are not modelled, for the room that they take if they land. Pods here must be removed first.
        """
        # The hardest to place first: many accelerators, then much CPU and memory.
        order = sorted(pods, key=lambda p: (-sum(p.accelerators.values()), -p.cpu_cores, -p.memory_bytes, p.ref))
        for pod in order:
            # A claim alone says nothing of the room that its Pod takes.
            if (not perhaps or (pod.claims and not pod.accelerators)) and (why := _unknown(pod)):
                return Nowhere(why, known=False)
        names = sorted(
            name
            for name in (self._nodes if within is None else within)
            if name in self._nodes and name not in self._out
        )
        uniform = all(pod.placement is order[0].placement or pod.placement == order[0].placement for pod in order)
        place = order[0].placement
        minding = bool(place.pod_affinity or place.pod_anti_affinity or place.spread)
        equal = uniform and not minding and all(_needs(pod) == _needs(order[0]) for pod in order)
        tries_left = len(order) + (0 if equal else _TRIES)
        placed: list[tuple[Pod, str]] = []
        choices: list[list[str]] = []
        failed: Nowhere | None = None
        while len(placed) < len(order):
            pod = order[len(placed)]
            if len(choices) == len(placed):
                choices.append(self._choices(pod, names, uniform=uniform, first_only=equal))
                if tell and not choices[-1] and failed is None:
                    failed = self._nowhere(pod, len(placed), len(order), within)
            if choices[-1] and tries_left > 0:
                tries_left -= 1
                name = choices[-1].pop(0)
                self.put(pod, name)
                placed.append((pod, name))
                continue
            choices.pop()
            if not placed or tries_left <= 0 or equal:
                self.without(item.ref for item, _ in placed)
                return failed or Nowhere(f"No place was found for its {len(order)} Pods together.")
            last, _ = placed.pop()
            self.without((last.ref,))
        return {pod.ref: name for pod, name in placed}

    def _choices(self, pod: Pod, names: Iterable[str], *, uniform: bool, first_only: bool) -> list[str]:
        """Nodes with room for the Pod, the fullest first. uniform: all Pods of the group may run on the same Nodes, so
        of Nodes with equal room one is enough. first_only: only the first is needed."""
        free = self._free
        fitting = [name for name in names if not any(free[name].lacks(pod)) and not self._never(pod, self._nodes[name])]
        if self._choosy(pod):
            others = self._placed_pods(pod)
            fitting = [name for name in fitting if not others.quarrel(self._nodes[name])]
        if first_only:
            return [min(fitting, key=lambda name: (*free[name].left, name))] if fitting else []
        if self._choosy(pod):
            return sorted(fitting, key=lambda name: (*free[name].left, name))
        if uniform:
            alike: dict[tuple[object, ...], str] = {}
            for name in fitting:
                left = free[name]
                alike.setdefault((left.left, left.pods, tuple(sorted(left.accelerators.items()))), name)
            fitting = list(alike.values())
        return sorted(fitting, key=lambda name: (*free[name].left, name))

    def _choosy(self, pod: Pod) -> bool:
        place = pod.placement
        own = place.pod_affinity or place.pod_anti_affinity or place.spread or place.host_ports
        return bool(own or self._apart or self._shy or any(item.alone or item.free for item in place.volumes))

    def _placed_pods(self, pod: Pod) -> PlacedPods:
        apart = [self._pods[ref] for ref in sorted(self._apart)]
        return PlacedPods(pod, self._nodes, [*self._pods.values(), *self._beside], [*apart, *self._shy], self._taken)

    def _nowhere(self, pod: Pod, before: int, of: int, within: Collection[str] | None) -> Nowhere:
        """The reason, with the Node that lacks the fewest resources, then the smallest share."""
        best: tuple[tuple[int, float, str], str] | None = None
        others = self._placed_pods(pod) if self._choosy(pod) else None
        for name, node in self._nodes.items():
            if within is not None and name not in within:
                continue
            lacks = list(self._free[name].lacks(pod))
            words = [text for _, text in lacks]
            if name in self._out:
                words.insert(0, self._out[name])
            words += [text for text in (self._never(pod, node),) if text]
            if others is not None and (quarrel := others.quarrel(node)) and quarrel not in words:
                words.append(quarrel)
            rank = (len(words), sum(share for share, _ in lacks), name)
            if words and (best is None or rank < best[0]):
                best = rank, f"{name}: {', '.join(words)}"
        asks = ", ".join(f"{count} {name}" for name, count in sorted(pod.accelerators.items()))
        needs = f"needs {asks} and " if asks else ""
        after = f" after {before} of {of} Pods of its group have a place" if before else ""
        closest = f"Closest is {best[1]}." if best else "There is no Node to look at."
        return Nowhere(f"Pod {pod.ref} {needs}would land nowhere{after}. {closest}")


def _unknown(pod: Pod) -> str:
    """Why it is not known where the Pod can run; '' where it is."""
    if fields := pod.placement.unmodelled:
        more = f" (and {len(fields) - 1} more such fields)" if len(fields) > 1 else ""
        return f"It is not known where Pod {pod.ref} can run: it has {fields[0]}{more}."
    if pod.claims:
        return f"Pod {pod.ref} has its GPU by a ResourceClaim; where such a claim fits is not known."
    return ""


def _needs(pod: Pod) -> tuple[Mapping[str, int], float, int]:
    return pod.accelerators, pod.cpu_cores, pod.memory_bytes


def unlike(pods: Iterable[Pod]) -> list[Pod]:
    """One Pod of each set with equal accelerators and placement."""
    found: list[Pod] = []
    for pod in pods:
        if not any(pod.accelerators == other.accelerators and pod.placement == other.placement for other in found):
            found.append(pod)
    return found


def waiting_groups(pods: Iterable[Pod]) -> list[list[Pod]]:
    """Pending Pods, gangs together, in the scheduler's order: by priority, then the oldest first."""
    groups: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        if (
            pod.phase == "Pending"
            and not pod.node
            and not pod.deleting
            and not pod.placement.gated
            and (pod.accelerators or pod.claims)
        ):
            groups[pod.gang or pod.ref].append(pod)

    def rank(group: list[Pod]) -> tuple[int, float, str]:
        created = [pod.created.timestamp() for pod in group if pod.created is not None]
        return -max(pod.priority for pod in group), min(created, default=math.inf), min(pod.ref for pod in group)

    return sorted(groups.values(), key=rank)


_REASON = re.compile(r"(?:^|[:,.]\s+)\d+ (.+?)(?=[,.]+(?:\s|$)|$)", re.DOTALL)
"""A scheduler's reason, after the number of Nodes for which it holds. kube-scheduler 1.36, Coscheduling and nearly so
Volcano: '0/4 nodes are available: 1 node(s) had untolerated taint(s), 3 Insufficient nvidia.com/gpu. preemption: …'.
KAI: 'no nodes with enough resources were found: 5 node(s) didn't have enough resources: GPUs.'"""
_KAI_LACKS = "node(s) didn't have enough "
_SIMULATED = re.compile(
    rf"(?:Insufficient|{re.escape(_KAI_LACKS)}resources:) (?:cpu|CPU cores|memory)|Too many pods"
    r"|.* taint.*|.*were unschedulable|.*node affinity/selector"
)
"""Reasons that the landing sees as the scheduler does, whatever else the Pod asks for."""


def _reasons(pod: Pod) -> tuple[str, ...]:
    said = pod.unscheduled.partition(" preemption: ")[0]
    # A name in quotes, such as a claim's, is what a tenant wrote: anything.
    return tuple(_REASON.findall(said)) if said.startswith("Unschedulable: ") and '"' not in said else ()


def _shortages(pod: Pod) -> set[str]:
    """Of its accelerators, in the words of schedulers."""
    named = {f"Insufficient {name}" for name in pod.accelerators}
    kai = {f"{_KAI_LACKS}of mig profile: {name}" for name in pod.accelerators}
    return named | kai | ({f"{_KAI_LACKS}resources: GPUs"} if pod.accelerators else set())


def lacks_accelerators(pod: Pod) -> bool:
    """Whether its scheduler says that a Node lacks the accelerators that the Pod asks for."""
    return not _shortages(pod).isdisjoint(_reasons(pod))


def lacks_room_alone(pod: Pod) -> bool:
    """Whether its scheduler names nothing against any Node but what the landing sees too."""
    return all(each in _shortages(pod) or _SIMULATED.fullmatch(each) for each in _reasons(pod))


def unfit(pod: Pod, node: Node) -> str:
    """Why the Pod may not run on the Node; '' where it may."""
    if taint := untolerated(pod, node):
        return f"its taint {taint.key}={taint.value}:{taint.effect} is not tolerated"
    return unselected(pod, node) or volumes_on(pod, node)[1]


def untolerated(pod: Pod, node: Node) -> Taint | None:
    """The first taint that keeps the Pod from the Node."""
    keeps = (taint for taint in node.taints if taint.effect in ("NoSchedule", "NoExecute"))
    return next((taint for taint in keeps if not tolerates(pod.placement.tolerations, taint)), None)


def unselected(pod: Pod, node: Node) -> str:
    """Why the Pod's node selector or node affinity does not match the Node; '' where they do. Taints do not count."""
    place = pod.placement
    for key, value in place.node_selector.items():
        if label_of(node, key) != value:
            return f"it has no label {key}={value}"
    if place.node_terms and not any(_term_holds(term, node) for term in place.node_terms):
        return "the required node affinity does not hold"
    return ""


def volumes_on(pod: Pod, node: Node, taken: Container[str] = ()) -> tuple[Sequence[str], str]:
    """The free volumes that the Pod's claims get on the Node, by the scheduler's choice; or why a claim gets none, ''
    where each does. taken: no longer free."""
    chosen: list[str] = []
    for item in pod.placement.volumes:
        free = (each for each in item.free if each.name not in taken and each.name not in chosen)
        if (found := next((each.name for each in free if _one_holds(each.terms, node)), None)) is not None:
            chosen.append(found)
        elif not _one_holds(item.terms, node):
            return (), f"claim {item.claim} {item.where}"
    return chosen, ""


def _one_holds(terms: Sequence[NodeTerm] | None, node: Node) -> bool:
    return terms is None or any(_term_holds(term, node) for term in terms)


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    return any(
        (not item.effect or item.effect == taint.effect)
        and (item.key == taint.key or (not item.key and item.operator == "Exists"))
        and (item.operator == "Exists" or item.value == taint.value)
        for item in tolerations
    )


def stays(tolerations: Sequence[Toleration], taint: Taint) -> bool:
    """Does a Pod run on under this NoExecute taint? Of several tolerations the shortest time may count."""
    return tolerates(tolerations, taint) and not tolerates((each for each in tolerations if each.ends), taint)


def label_of(node: Node, key: str) -> str | None:
    value = node.labels.get(key)
    # The kubelet sets the hostname label, but hand-made recordings may lack it.
    return node.name if value is None and key == HOSTNAME else value


def _term_holds(term: NodeTerm, node: Node) -> bool:
    if not term.labels and not term.fields:
        return False
    return all(holds(item, label_of(node, item.key)) for item in term.labels) and all(
        item.key == "metadata.name" and holds(item, node.name) for item in term.fields
    )
