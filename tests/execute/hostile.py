"""The fleet of `living` in a cluster where others mean harm, and where any part may not be readable.

Its view is made as the product makes it: raw objects through `read_cluster`, telemetry's rows through `resolve_nodes`,
`held_devices` and `by_trust`. Only the rules' verdicts are the fleet's own.
"""

import copy
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from execute.living import GPU, GPUS, START, Fleet, Killed
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.framework import Kind
from gpuwatch.facts.frameworks.objects import KindKey, Object, stamp
from gpuwatch.facts.model.cluster import Cluster
from gpuwatch.facts.model.decision import Finding, Snapshot
from gpuwatch.facts.model.remediation import ObjectRef
from gpuwatch.facts.model.telemetry import Device, Gap, GapKind
from gpuwatch.sources.collect.origin import Origin, by_trust, held_devices, host_of, resolve_nodes
from gpuwatch.sources.kube.assemble import read_cluster
from gpuwatch.sources.kube.decode import BadObjects, Listing, Take, take_all
from gpuwatch.sources.kube.reader import ClusterError
from gpuwatch.sources.kube.writer import WriteError
from kube.memory_cluster import MemoryCluster

T = TypeVar("T")

SLICES = 10
LAG = timedelta(minutes=10)
"""By how much a stale list lags: `MAX_FACTS_AGE_SECONDS`, up to which a look may be decided on."""
FAILURES = {
    "refused": GapKind.REFUSED,
    "timed out": GapKind.UNREACHABLE,
    "failed": GapKind.QUERY_FAILED,
    "partial": GapKind.PARTIAL,
}
READS = (*FAILURES, "undecodable", "stale")
"""How a list goes wrong."""
_BUDGETS = ("policy", "PodDisruptionBudget")
LISTS: tuple[KindKey, ...] = (
    ("", "Node"),
    ("", "Pod"),
    ("", "Namespace"),
    *(_BUDGETS,) * 3,  # the one whose absence no other list shows
    ("apps", "Deployment"),
    ("batch", "Job"),
    ("batch.volcano.sh", "Job"),
    ("kueue.x-k8s.io", "Workload"),
)

Stored = dict[tuple[str, str, str, str], Object]


class FrozenCluster(MemoryCluster):
    """A process may stand still between its last check and its write, which lands later or never."""

    def __init__(self, of: MemoryCluster, **settings: Any) -> None:
        super().__init__(**settings)
        self._objects, self._counter = of._objects, of._counter
        self.freezes: Callable[[str], bool] = lambda _what: False
        self.frozen: list[tuple[str, Callable[[], Object]]] = []

    def _write(self, verb: str, what: str, resource: str, change: Callable[[], Object]) -> Object:
        def asked() -> Object:
            if self.freezes(what):
                self.frozen.append((what, change))
                raise Killed
            return change()

        return super()._write(verb, what, resource, asked)

    def thaw(self) -> str:
        """The oldest such write reaches the API server. Returns what it changed, '' where a precondition failed."""
        what, change = self.frozen.pop(0)
        try:
            change()
        except WriteError:
            return ""
        return what


@dataclass
class HostileFleet(Fleet):
    """reads: how the list of a kind goes wrong. rows: devices that others' targets export. lied: devices about which
    another target tells that they are sick. undying: owners whose Pods do not end. shared: a Node of eight GPUs, each
    of which time-slicing shows as ten; no Pod of the fleet is placed there."""

    nodes: int = 6
    reads: dict[KindKey, str] = field(default_factory=dict)
    rows: list[Device] = field(default_factory=list)
    lied: set[str] = field(default_factory=set)
    undying: set[str] = field(default_factory=set)
    shared: str = "n5"
    between: Callable[[], object] = lambda: None
    """What happens between the reading for a cycle and what is read for a step that rests on it."""
    unreadable: str = ""
    """A resource that the executor itself may not get or list."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.process = FrozenCluster(self.cluster, may=self._may, interfere=self._interfere)
        self.past: deque[tuple[datetime, Stored]] = deque(maxlen=64)
        self._encoded: dict[tuple[str, str], bytes] = {}
        for space in ("ml", "evil"):
            self.cluster.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
        for index in range(self.nodes):
            node = copy.deepcopy(self.node(f"n{index}"))
            slices = SLICES if node["metadata"]["name"] == self.shared else 1
            node["metadata"]["labels"] = {
                keys.POOL: "train",
                "nvidia.com/gpu.product": "A100",
                "nvidia.com/gpu.count": str(GPUS),
                **({"nvidia.com/gpu.replicas": str(slices), _STRATEGY: "time-slicing"} if slices > 1 else {}),
            }
            room = {GPU: str(GPUS * slices), "cpu": "256", "memory": "1Ti", "pods": "110"}
            address = [{"type": "InternalIP", "address": f"10.0.0.{index}"}]
            node["status"] |= {"capacity": room, "allocatable": room, "addresses": address}
            self.cluster.put(node)

    def executor(self, store: Any, policies: ExecutorPolicies) -> Executor:
        return Executor(store, self.process, self.rehearsal, self.fresh, self._notify, policies, self.read_exporters)

    def _may(self, verb: str, resource: str) -> bool:
        return verb not in ("get", "list") or resource != self.unreadable

    # Pods

    def _pod(self, name: str, node: str) -> None:
        super()._pod(name, "")
        pod = self._named(f"{name}-{self.made[name] - 1}")
        pod["metadata"]["creationTimestamp"] = stamp(self.now)
        pod["spec"] = {"containers": containers(self.size[name][0])}
        self.cluster.put(pod)
        if node:
            self._place(pod["metadata"]["name"], node)

    def _place(self, name: str, node: str) -> None:
        spec = self._named(name)["spec"]
        super()._place(name, node)
        pod = self._named(name)
        pod["spec"] = {**spec, "nodeName": node}
        pod["status"]["startTime"] = stamp(START - timedelta(hours=10))
        self.cluster.put(pod)

    def _named(self, name: str) -> Object:
        found = self.cluster.get(ObjectRef("v1", "Pod", name, "ml"))
        assert found is not None
        return found

    def foreign_pod(self, owner: str) -> None:
        """A tenant's Pod in another Namespace, with an idle GPU, that names this owner."""
        reference = self._reference(owner)
        self._own_pod("evil", f"forged-{owner}", {"app": f"forged-{owner}"}, reference, gpus=1, node="n3")

    def side_pod(self, owner: str, annotations: dict[str, str]) -> None:
        """A Pod without a GPU of the same owner."""
        self._own_pod("ml", f"side-{owner}", {"app": owner}, self._reference(owner), 0, "n4", annotations)

    def _own_pod(
        self,
        namespace: str,
        name: str,
        labels: dict[str, str],
        reference: Object,
        gpus: int,
        node: str,
        annotations: dict[str, str] | None = None,
    ) -> None:
        metadata: Object = {"name": name, "namespace": namespace, "labels": labels, "ownerReferences": [reference]}
        if annotations:
            metadata["annotations"] = annotations
        metadata["creationTimestamp"] = stamp(self.now)
        status = {
            "phase": "Running",
            "startTime": stamp(START - timedelta(hours=10)),
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        spec = {"nodeName": node, "containers": containers(gpus)}
        self.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status})

    def pods(self, owner: str = "") -> list[Object]:
        """Of an owner: those with GPUs that are not being deleted."""
        found = super().pods(owner)
        if not owner:
            return found
        return [pod for pod in found if not is_side(pod) and not pod["metadata"].get("deletionTimestamp")]

    def ended_with(self, owner: str) -> list[Object]:
        """All Pods that end when the owner is suspended."""
        return [*self.pods(owner), *(pod for pod in super().pods(owner) if is_side(pod))]

    def _gpus(self, pod: Object) -> int:
        limits = (pod["spec"].get("containers") or [{}])[0].get("resources", {}).get("limits", {})
        return int(limits.get(GPU, 0))

    def _end(self, pod: Object) -> None:
        if pod["metadata"]["labels"]["app"] not in self.undying:
            super()._end(pod)
        elif not pod["metadata"].get("deletionTimestamp"):
            stuck = copy.deepcopy(pod)
            stuck["metadata"]["deletionTimestamp"] = stamp(self.now)
            self.cluster.put(stuck)

    def settle(self) -> None:
        super().settle()
        for pod in super().pods():
            name = pod["metadata"]["labels"]["app"]
            if is_side(pod) and self._wanted(self._owner(name)) == 0:
                super()._end(pod)
            if pod["metadata"].get("deletionTimestamp") and name not in self.undying:
                super()._end(pod)
        if not self.past or self.past[-1][0] != self.now:
            self.past.append((self.now, dict(self.cluster._objects)))

    def _free_node(self, gpus: int) -> str | None:
        self.nodes -= 1  # the shared Node is for others
        try:
            return super()._free_node(gpus)
        finally:
            self.nodes += 1

    # Views

    def view(self) -> PlanFacts:
        gaps: list[Gap] = []
        try:
            cluster = read_cluster(_Lists(self), self.now)
        except ClusterError as error:
            cluster = Cluster()
            gaps.append(Gap(kind=GapKind.UNREACHABLE, what="cluster", detail=str(error)))
        cluster = replace(cluster, exporter_urls=self.exporter_urls())
        gaps += cluster.gaps
        gaps += self.gaps()
        pods = self.pods()
        own = self._devices(pods)
        raw = (*own, *self.rows)
        nodes = {
            device.exporter: node
            for device in raw
            if (node := cluster.node_addresses.get(host_of(device.exporter))) is not None
        }
        instances = {device.id: {device.exporter} for device in raw}
        for name in self.lied:
            instances.setdefault(name, set()).add(LIAR)
        told = {name for found in instances.values() for name in found} - set(nodes) - {""}
        origin = Origin(
            store=_NO_STORE,
            schema=Snapshot(at=self.now).telemetry_schema,
            nodes=nodes,
            reasons=dict.fromkeys(told, "nothing ties its rows to an exporter of this cluster"),
        )
        resolved, _, more = resolve_nodes(raw, (), cluster, nodes, set(nodes))
        held, wrong, away = held_devices(resolved, cluster, self.now)
        devices, doubted, doubts = by_trust(held, wrong, instances, origin, cluster)
        gaps += (*more, *away, *doubts)
        snapshot = Snapshot(
            at=self.now - self.stale, devices=devices, doubted=doubted, cluster=cluster, gaps=tuple(gaps)
        )
        return PlanFacts(snapshot=snapshot, findings=tuple(self._findings(devices, pods)), alerts=self.alerts)

    def fresh(self) -> PlanFacts:
        """The view of a cycle, for a step that rests on it."""
        found = self.view()
        self.between()
        return found

    def _devices(self, pods: list[Object]) -> tuple[Device, ...]:
        """As its exporter names them, not resolved."""
        found = super()._devices(pods)
        return tuple(replace(each, node=None, exporter=f"10.0.0.{each.node_label[1:]}:9400") for each in found)

    def _findings(self, devices: tuple[Device, ...], pods: list[Object]) -> list[Finding]:
        """A rule believes what is said of the trusted devices, which are all that it is given."""
        true_sick, true_idle = self.sick, self.idle
        self.sick = true_sick | self.lied | {device.id for device in self.rows}
        self.idle = true_idle | {pod["metadata"]["labels"]["app"] for pod in pods if is_foreign(pod)}
        try:
            found = super()._findings(devices, [pod for pod in pods if not is_side(pod)])
        finally:
            self.sick, self.idle = true_sick, true_idle
        space = {f"ml/{pod['metadata']['name']}": "evil" for pod in pods if is_foreign(pod)}
        return [_moved(each, space) for each in found]

    def raw(self, kind: KindKey) -> list[bytes]:
        stored: Stored = self.cluster._objects
        if self.reads.get(kind) == "stale":
            stored = next((old for at, old in self.past if self.now - at <= LAG), stored)
        found = [stored[place] for place in sorted(place for place in stored if place[:2] == kind)]
        texts = [self._text(item) for item in found]
        if self.reads.get(kind) == "undecodable" and texts:
            broken = copy.deepcopy(found[-1])
            broken["metadata"]["annotations"] = 7
            texts[-1] = json.dumps(broken).encode()
        return texts

    def _text(self, item: Object) -> bytes:
        at = (item["metadata"]["uid"], item["metadata"]["resourceVersion"])
        if at not in self._encoded:
            self._encoded[at] = msgspec.json.encode(item)
        return self._encoded[at]


@dataclass
class _Lists:
    """The `assemble.Source` of the fleet."""

    fleet: HostileFleet

    def objects(self, kind: Kind, take: Take[T], version: str = "") -> Listing[T]:
        del version
        how = self.fleet.reads.get(kind.key, "")
        if how in FAILURES:
            gap = Gap(kind=FAILURES[how], what=kind.resource, detail=f"The list {how}.")
            return Listing(failure=gap)
        found: list[T] = []
        bad = BadObjects()
        take_all(((msgspec.Raw(text), "a page") for text in self.fleet.raw(kind.key)), take, found, bad)
        return Listing(found, bad=bad.gaps(kind.resource), bad_places=frozenset(bad.places))


LIAR = "10.66.0.9:8080"
"""The target of a tenant's Pod."""
_STRATEGY = "nvidia.com/gpu.sharing-strategy"
_NO_STORE: Any = None


def containers(gpus: int) -> list[Object]:
    limits = {"cpu": "1", **({GPU: str(gpus)} if gpus else {})}
    return [{"name": "main", "image": "work", "resources": {"limits": limits, "requests": limits}}]


def is_side(pod: Object) -> bool:
    return bool(pod["metadata"]["name"].startswith("side-"))


def is_foreign(pod: Object) -> bool:
    return bool(pod["metadata"]["namespace"] == "evil")


def _moved(finding: Finding, space: dict[str, str]) -> Finding:
    """The finding in the Namespace where its Pod is."""
    if not any(ref in space for ref in finding.pods):
        return finding
    pods = tuple(ref.replace("ml/", "evil/", 1) for ref in finding.pods)
    return replace(finding, subject=replace(finding.subject, name=pods[0]), pods=pods)
