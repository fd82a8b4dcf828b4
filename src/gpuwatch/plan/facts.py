"""Look-ups over one Snapshot, made once for all candidates and guards."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from gpuwatch.model.cluster import Gang, Node, Pod, Workload
from gpuwatch.model.decision import Finding, Snapshot, Verdict
from gpuwatch.model.telemetry import Device, DeviceId, PodRef

# Taints by which Kubernetes itself fences a Node. Other NoSchedule taints (nvidia.com/gpu, dedicated=…) only say who
# may use it: counting them as harm would use up every budget on a healthy cluster.
_FENCE_PREFIX = "node.kubernetes.io/"


@dataclass(frozen=True)
class Facts:
    """A Snapshot and its findings, indexed."""

    snapshot: Snapshot
    findings: tuple[Finding, ...]

    @cached_property
    def devices(self) -> dict[DeviceId, Device]:
        return {device.id: device for device in self.snapshot.devices}

    @cached_property
    def nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.snapshot.cluster.nodes}

    @cached_property
    def pods(self) -> dict[PodRef, Pod]:
        return {pod.ref: pod for pod in self.snapshot.cluster.pods}

    @cached_property
    def workloads(self) -> dict[str, Workload]:
        return {workload.id: workload for workload in self.snapshot.cluster.workloads}

    @cached_property
    def gangs(self) -> dict[str, Gang]:
        return {gang.id: gang for gang in self.snapshot.cluster.gangs}

    @cached_property
    def namespaces(self) -> dict[str, dict[str, str]]:
        return {item.name: dict(item.annotations) for item in self.snapshot.cluster.namespaces}

    @cached_property
    def findings_by_id(self) -> dict[str, Finding]:
        return {finding.id: finding for finding in self.findings}

    @cached_property
    def devices_of_node(self) -> dict[str, list[Device]]:
        found: dict[str, list[Device]] = defaultdict(list)
        for device in self.snapshot.devices:
            if device.node is not None:
                found[device.node].append(device)
        return found

    @cached_property
    def members(self) -> dict[str, list[Pod]]:
        """Live Pods that hold accelerators, by gang id, or by workload id where there is no gang."""
        found: dict[str, list[Pod]] = defaultdict(list)
        for pod in self.snapshot.cluster.pods:
            if pod.phase in ("Running", "Pending") and (pod.accelerators or pod.claims):
                found[pod.gang or pod.workload].append(pod)
        return found

    @cached_property
    def idle_pods(self) -> frozenset[PodRef]:
        return frozenset(ref for item in self.findings if item.verdict is Verdict.IDLE for ref in item.pods)

    def pods_on(self, devices: Iterable[DeviceId]) -> list[Pod]:
        """Pods of the cluster that telemetry says hold these devices."""
        refs = {ref for name in devices if name in self.devices for ref in self.devices[name].holders}
        return [self.pods[ref] for ref in sorted(refs) if ref in self.pods]

    def pool(self, node: Node | None) -> str:
        return node.pool if node is not None and node.pool else "default"

    def node_gpus(self, node: Node) -> int:
        """Accelerators of a Node, by its capacity; telemetry's count where the capacity names none."""
        return sum(node.accelerators.values()) or len(self.devices_of_node.get(node.name, ()))

    def fenced(self, node: Node) -> str:
        """Why no new Pod lands on this Node, whoever caused it; '' where it is in service."""
        if node.unschedulable:
            return f"{node.name} is cordoned"
        if node.ready is not True:
            return f"{node.name} is {'NotReady' if node.ready is False else 'without a Ready condition'}"
        for taint in node.taints:
            if taint.key.startswith(_FENCE_PREFIX) and taint.effect in ("NoSchedule", "NoExecute"):
                return f"{node.name} has the taint {taint.key}"
        return ""

    @cached_property
    def _claimed(self) -> Counter[str]:
        return Counter(item.claim for item in self.snapshot.cluster.claims)

    def gpus(self, pods: Iterable[Pod]) -> int:
        """Accelerators that these Pods ask for, or hold by a claim (DRA)."""
        return sum(
            sum(pod.accelerators.values()) + sum(self._claimed[f"{pod.namespace}/{name}"] for name in pod.claims)
            for pod in pods
        )
