"""What Kubernetes says: Nodes, GPU Pods, their owners, gangs and budgets, trimmed to the fields in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpuwatch.model.telemetry import DeviceId, Gap, PodRef


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    status: str  # 'True', 'False', 'Unknown'
    reason: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a label has to be. operator: In, NotIn, Exists, DoesNotExist, and of Nodes Gt and Lt (whole numbers)."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Toleration:
    """key '' with the operator Exists tolerates every taint, effect '' every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """All of it has to hold; an empty one holds for no Node. fields: of the Node's metadata.name."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTerm:
    """Other Pods, by their labels, in one topology domain. selects_none: no selector was given.

    namespaces: those that are meant, the Pod's own filled in. any_namespace: a selector of Namespaces was given, of
    which gpuwatch does not know whom it selects, or an empty one, which selects all.
    """

    topology_key: str
    match_labels: Mapping[str, str] = field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()
    selects_none: bool = False
    namespaces: tuple[str, ...] = ()
    any_namespace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A topology spread constraint that the scheduler must keep (DoNotSchedule)."""

    topology_key: str
    max_skew: int = 1
    min_domains: int = 1
    match_labels: Mapping[str, str] = field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()
    selects_none: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the scheduler may put a Pod, as far as it must be kept: what is only preferred is left out.

    node_terms: one of them has to hold; () where any Node will do. gated: it waits for somebody to open its scheduling
    gates, and not for room.
    """

    tolerations: tuple[Toleration, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    node_terms: tuple[NodeTerm, ...] = ()
    pod_affinity: tuple[PodTerm, ...] = ()
    pod_anti_affinity: tuple[PodTerm, ...] = ()
    spread: tuple[Spread, ...] = ()
    gated: bool = False


class Sharing(StrEnum):
    NONE = "none"
    TIME_SLICING = "time-slicing"
    MPS = "mps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A Node. `accelerators` (capacity) and `allocatable` count extended resources by name, e.g. nvidia.com/gpu.

    cpu_cores, memory_bytes, max_pods: allocatable; max_pods is None where it was not told. other_*: what Pods without
    accelerators, which the Cluster does not list, ask for on it.
    """

    name: str
    uid: str = ""
    created: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    conditions: tuple[Condition, ...] = ()
    unschedulable: bool = False
    accelerators: Mapping[str, int] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)
    cpu_cores: float = 0.0
    memory_bytes: int = 0
    max_pods: int | None = None
    other_cpu_cores: float = 0.0
    other_memory_bytes: int = 0
    other_pods: int = 0
    gpu_product: str = ""  # nvidia.com/gpu.product without its -SHARED and -MIG-… suffixes
    gpu_count: int = 0
    gpu_memory_bytes: int = 0
    mig_strategy: str = ""  # none, single, mixed, '' unknown
    mig_layout: Mapping[str, int] = field(default_factory=dict)  # profile → instances
    sharing: Sharing = Sharing.NONE
    replicas: int = 1
    pool: str = ""  # node pool or instance type, from the usual labels

    @property
    def ready(self) -> bool | None:
        """None where no Ready condition was reported."""
        for condition in self.conditions:
            if condition.type == "Ready":
                return condition.status == "True"
        return None


class OwnerStatus(StrEnum):
    """How far the walk to the top owner came. 'Forbidden' is not 'no owner'."""

    FOUND = "found"
    BARE = "bare"  # the Pod has no controller
    FORBIDDEN = "forbidden"
    MISSING = "missing"  # the owner is referred to, but gone
    UNKNOWN_KIND = "unknown_kind"  # a controller of a kind that gpuwatch does not know: report, never act
    STATIC = "static"  # a mirror Pod of the kubelet
    DAEMON = "daemon"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The top controller of some Pods. `id` is `Kind/namespace/name`; a bare Pod is its own workload."""

    id: str
    kind: str
    api_version: str
    namespace: str
    name: str
    uid: str = ""
    status: OwnerStatus = OwnerStatus.FOUND
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    created: datetime | None = None
    replicas: int | None = None
    suspended: bool | None = None
    queue: str = ""  # Kueue or Volcano queue, where one manages it

    @property
    def key(self) -> tuple[str, str]:
        """API group ('' for the core group) and kind."""
        return self.api_version.rpartition("/")[0], self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A Pod that asks for accelerators, or has a claim for one. `accelerators` sums its containers' requests."""

    namespace: str
    name: str
    uid: str = ""
    node: str = ""
    phase: str = ""
    created: datetime | None = None
    started: datetime | None = None
    ready: bool = False
    deleting: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    accelerators: Mapping[str, int] = field(default_factory=dict)
    cpu_cores: float = 0.0
    memory_bytes: int = 0
    claims: tuple[str, ...] = ()  # ResourceClaim names in the Pod's namespace
    priority: int = 0
    priority_class: str = ""
    scheduler: str = ""
    workload: str = ""  # Workload.id of the top owner
    gang: str = ""  # Gang.id, '' where it belongs to none
    restarts: int = 0
    placement: Placement = Placement()

    @property
    def ref(self) -> PodRef:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """Pods that live and die together. The unit of action; `min_available` is None where all are needed."""

    id: str
    framework: str  # row of the gang table: JobSet, Kueue, Volcano, …
    workload: str
    namespace: str
    pods: tuple[PodRef, ...]
    min_available: int | None = None
    recognised_by: str = ""  # the label or field that told


@dataclass(frozen=True, slots=True, kw_only=True)
class DisruptionBudget:
    namespace: str
    name: str
    match_labels: Mapping[str, str] = field(default_factory=dict)
    match_expressions: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    selects_all: bool = False  # an empty selector
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDevice:
    """A device that a ResourceClaim (DRA) holds. `device` is the GPU's UUID where the ResourceSlice tells it."""

    claim: str  # namespace/name
    driver: str
    pool: str
    name: str
    device: DeviceId = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """All that was read from Kubernetes, or from a recorded folder. `gaps` lists what was not."""

    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    workloads: tuple[Workload, ...] = ()
    gangs: tuple[Gang, ...] = ()
    budgets: tuple[DisruptionBudget, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    priorities: Mapping[str, int] = field(default_factory=dict)
    claims: tuple[ClaimedDevice, ...] = ()
    exporter_nodes: Mapping[str, str] = field(default_factory=dict)  # name or IP of an exporter's Pod → its Node
    exporter_pods: tuple[PodRef, ...] = ()  # GPU exporters' Pods that ask for no device, and so hold none
    node_addresses: Mapping[str, str] = field(default_factory=dict)  # internal IP or host name → Node
    gaps: tuple[Gap, ...] = ()
    known: bool = False  # False: no cluster was read at all, so absence of a Pod means nothing
