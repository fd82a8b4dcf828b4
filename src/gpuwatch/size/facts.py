"""Look-ups over the cluster, made once for all workloads."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil

from gpuwatch.account.money import PriceList
from gpuwatch.facts.catalog.gpus import Gpu, model_name
from gpuwatch.facts.frameworks import FRAMEWORK_OF, OWNERS, kind_of
from gpuwatch.facts.frameworks.framework import Kind, Nature
from gpuwatch.facts.model.cluster import Cluster, Gang, Namespace, Node, Pod, Workload
from gpuwatch.facts.model.decision import Family, Finding, SubjectKind, Verdict
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.telemetry import EngineLoad, PodRef
from gpuwatch.facts.model.workload_profile import ProfileBook, WorkloadKey, WorkloadProfile
from gpuwatch.size.capability import Capability, LabelledSize, capability_of, labelled_sizes
from gpuwatch.size.policy import AdvicePolicy

_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """pods: only live ones."""

    book: ProfileBook
    policy: AdvicePolicy
    prices: PriceList
    cluster: Cluster
    at: datetime
    workloads: Mapping[str, Workload]
    pods: Mapping[str, tuple[Pod, ...]]  # Workload.id → Pods
    nodes: Mapping[str, Node]
    nodes_of: Mapping[str, tuple[Node, ...]]  # Gpu.name → Nodes
    gangs: Mapping[str, tuple[Gang, ...]]  # Workload.id → gangs
    idle: frozenset[str]  # Workload.id, where all of its Pods are idle
    namespaces: Mapping[str, Namespace]
    profiles_of: Mapping[tuple[str, str], tuple[WorkloadProfile, ...]]  # (Workload.id, container) → profiles
    labelled_sizes: Mapping[tuple[str, str], LabelledSize]  # by Gpu.name, and MIG profile or ''
    loads: Mapping[PodRef, EngineLoad] = field(default_factory=dict)

    def kind(self, key: WorkloadKey) -> Kind | None:
        owner = self.workloads.get(key.workload)
        return OWNERS.get(owner.key) if owner is not None else kind_of(key.workload)

    def capability(self, gpu: Gpu, mig_profile: str) -> Capability:
        return capability_of(gpu, mig_profile, self.labelled_sizes)

    def ends(self, key: WorkloadKey) -> bool:
        kind = self.kind(key)
        return kind is not None and kind.nature is Nature.ENDS

    def serves(self, key: WorkloadKey) -> bool:
        """Whether it answers requests. Plain Deployments and StatefulSets count as serving."""
        kind = self.kind(key)
        return kind is not None and kind.nature is Nature.SERVES

    def gang_pods(self, profile: WorkloadProfile) -> int:
        """Pods with accelerators in its largest gang; 0 without a gang."""
        kind = self.kind(profile.key)
        if kind is not None:
            framework = FRAMEWORK_OF[kind.key]
            if kind.independent and not framework.makes_gangs:
                return 0  # even where a queue admits them together
            rule = framework.gang
            if rule is not None and not rule.whole_with and not self.pods.get(profile.key.workload):
                return ceil(profile.pods - 1e-6)
        return max((len(gang.pods) for gang in self.gangs.get(profile.key.workload, ())), default=0)

    def present_nodes(self, key: WorkloadKey) -> tuple[Node, ...]:
        """Nodes of its Pods; without any, all Nodes with its GPU model."""
        names = dict.fromkeys(pod.node for pod in self.pods.get(key.workload, ()) if pod.node)
        on = tuple(self.nodes[name] for name in names if name in self.nodes)
        fitting = tuple(node for node in on if model_name(node.gpu_product) in ("", key.gpu_model))
        return fitting or self.nodes_of.get(key.gpu_model, ())

    def annotated(self, key: WorkloadKey) -> Iterable[tuple[str, Mapping[str, str]]]:
        """(object, labels and annotations) of the owner, its Pods and its Namespace."""
        owner = self.workloads.get(key.workload)
        if owner is not None:
            yield owner.id, {**owner.labels, **owner.annotations}
        for pod in self.pods.get(key.workload, ()):
            yield f"Pod {pod.ref}", {**pod.labels, **pod.annotations}
        space = self.namespaces.get(key.namespace)
        if space is not None:
            yield f"Namespace {space.name}", {**space.labels, **space.annotations}

    def load(self, key: WorkloadKey) -> EngineLoad:
        """Of its live Pods, the largest of each."""
        found = [self.loads[pod.ref] for pod in self.pods.get(key.workload, ()) if pod.ref in self.loads]
        caches = (one.kv_cache_ratio for one in found if one.kv_cache_ratio is not None)
        waits = (one.first_token_seconds for one in found if one.first_token_seconds is not None)
        return EngineLoad(max(caches, default=None), max(waits, default=None))

    def alive(self, profile: WorkloadProfile) -> bool:
        """Whether it was seen in the newest hour of the book."""
        return (self.book.until - profile.last_seen).total_seconds() <= 3600


def in_service(node: Node) -> bool:
    return not node.unschedulable and node.ready is not False


def gather(
    book: ProfileBook,
    cluster: Cluster,
    prices: PriceList,
    policy: AdvicePolicy,
    at: datetime,
    findings: Sequence[Finding],
    loads: Mapping[PodRef, EngineLoad] | None = None,
) -> Facts:
    live = (pod for pod in cluster.pods if pod.phase not in _ENDED and not pod.deleting)
    pods = grouped(live, lambda pod: pod.workload)
    nodes_of = grouped((node for node in cluster.nodes if node.gpu_product), lambda node: model_name(node.gpu_product))
    profiles_of = grouped(book.profiles.values(), lambda profile: (profile.key.workload, profile.key.container))
    gangs: dict[str, list[Gang]] = defaultdict(list)
    owners = {pod.ref: pod.workload for pod in cluster.pods}
    for gang in cluster.gangs:
        for owner in dict.fromkeys([gang.workload, *(owners.get(ref, "") for ref in gang.pods)]):
            if owner:
                gangs[owner].append(gang)
    return Facts(
        book=book,
        policy=policy,
        prices=prices,
        cluster=cluster,
        at=at,
        workloads={owner.id: owner for owner in cluster.workloads},
        pods={name: tuple(found) for name, found in pods.items()},
        nodes={node.name: node for node in cluster.nodes},
        nodes_of={name: tuple(found) for name, found in nodes_of.items()},
        gangs={name: tuple(found) for name, found in gangs.items()},
        idle=_idle(findings, pods),
        namespaces={space.name: space for space in cluster.namespaces},
        profiles_of={name: tuple(found) for name, found in profiles_of.items()},
        labelled_sizes=labelled_sizes(cluster.nodes),
        loads=loads or {},
    )


def _idle(findings: Sequence[Finding], pods: Mapping[str, Sequence[Pod]]) -> frozenset[str]:
    idle = [item for item in findings if item.family is Family.IDLE and item.verdict is Verdict.IDLE]
    idle_pods = {ref for item in idle for ref in item.pods}
    named = {item.subject.name for item in idle if item.subject.kind is SubjectKind.WORKLOAD}
    whole = {name for name, found in pods.items() if found and all(pod.ref in idle_pods for pod in found)}
    return frozenset(named | whole)
