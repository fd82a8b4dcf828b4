"""The state of Kubernetes: Nodes, GPU Pods, their owners, gangs and budgets, reduced to the fields in use."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpuwatch.facts.model.telemetry import DeviceId, Gap, PodRef

HOSTNAME = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class Taint:
    """since: when it was set, where its writer says so (`timeAdded`); Kubernetes' own controllers do."""

    key: str
    value: str
    effect: str
    since: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    status: str  # 'True', 'False', 'Unknown'
    reason: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """A requirement on a label. operator: In, NotIn, Exists, DoesNotExist; for Nodes also Gt and Lt (integers)."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Toleration:
    """Empty key with Exists: every taint; empty effect: every effect. ends: it has tolerationSeconds for NoExecute."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    ends: bool = False


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """All requirements have to hold; an empty term matches no Node. fields: on the Node's metadata.name."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTerm:
    """Other Pods, by their labels, in one topology domain. selects_none: no selector was given.

    namespaces: whose Pods count; () is the Pod's own. any_namespace: a namespace selector was given: either empty,
    which selects all, or one that gpuwatch does not evaluate.
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


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port of its Node that a Pod takes. ip: '' for each address of the Node."""

    port: int
    protocol: str = "TCP"
    ip: str = ""

    def clashes(self, other: "HostPort") -> bool:
        alike = (self.port, self.protocol) == (other.port, other.protocol)
        return alike and (self.ip == other.ip or not self.ip or not other.ip)


@dataclass(frozen=True, slots=True)
class FreeVolume:
    """A PersistentVolume without a claim. terms: as of `ClaimedVolume`."""

    name: str
    terms: tuple[NodeTerm, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedVolume:
    """What a volume claim of a Pod asks of a Node.

    claim: namespace/name. terms: where its volume is or can be made: one has to match, None for any Node, () for none.
    free: the first that fits the Node is taken in place of a new one. where: why a Node does not fit, as the claim's
    predicate. alone: no second Pod may use it (ReadWriteOncePod). driver: what attaches it by CSI; '' where nothing.
    """

    claim: str
    terms: tuple[NodeTerm, ...] | None = None
    free: tuple[FreeVolume, ...] = ()
    where: str = ""
    alone: bool = False
    driver: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Hard constraints on where the scheduler may place a Pod, without preferences.

    node_terms: one of them has to match; () allows any Node. gated: scheduling gates hold it back, not resources.
    volumes: of its claims, in the order in which the scheduler serves them. unmodelled: fields of the Pod's spec that
    may restrict it further, each with why nothing more is known.
    """

    tolerations: tuple[Toleration, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    node_terms: tuple[NodeTerm, ...] = ()
    pod_affinity: tuple[PodTerm, ...] = ()
    pod_anti_affinity: tuple[PodTerm, ...] = ()
    spread: tuple[Spread, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    volumes: tuple[ClaimedVolume, ...] = ()
    gated: bool = False
    unmodelled: tuple[str, ...] = ()


class Sharing(StrEnum):
    NONE = "none"
    TIME_SLICING = "time-slicing"
    MPS = "mps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A Node. `accelerators` (capacity) and `allocatable` count extended resources by name, e.g. nvidia.com/gpu.

    cpu_cores, memory_bytes, max_pods: allocatable; max_pods is None where not reported. other_*: requests of the Pods
    without accelerators, which the Cluster does not list. attachable: CSI driver → how many volumes it attaches at
    most, where there is a bound, less those of others than Pods with accelerators.
    """

    name: str
    uid: str = ""
    boot_id: str = ""  # changes with each boot; '' unknown
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
    attachable: Mapping[str, int] = field(default_factory=dict)
    gpu_product: str = ""  # nvidia.com/gpu.product without its -SHARED and -MIG-… suffixes
    gpu_count: int = 0
    mig_strategy: str = ""  # none, single, mixed, '' unknown
    mig_layout: Mapping[str, int] = field(default_factory=dict)  # profile → instances
    sharing: Sharing = Sharing.NONE
    replicas: int = 1
    pool: str = ""  # node pool or instance type, from the usual labels
    # GPUs of its ResourceSlices (DRA) and their taints; None where the slices were not read.
    published: Mapping[DeviceId, tuple[Taint, ...]] | None = field(default_factory=dict)

    @property
    def ready(self) -> bool | None:
        """None without a Ready condition."""
        for condition in self.conditions:
            if condition.type == "Ready":
                return condition.status == "True"
        return None

    @property
    def cut(self) -> bool:
        """Whether its capacity counts slices, shares or partitions instead of GPUs."""
        return bool(self.mig_layout) or self.sharing is not Sharing.NONE or self.replicas > 1 or self.partitioned

    @property
    def partitioned(self) -> bool:
        """Whether its capacity counts AMD's partitions, which no label of sharing tells."""
        return (
            0 < self.gpu_count < sum(count for name, count in self.accelerators.items() if name.startswith("amd.com/"))
        )


class OwnerStatus(StrEnum):
    """Result of the search for the top owner. FORBIDDEN does not mean that there is none."""

    FOUND = "found"
    BARE = "bare"  # the Pod has no controller
    FORBIDDEN = "forbidden"
    MISSING = "missing"  # an owner reference points to an object that is gone
    FOREIGN = "foreign"  # an owner reference has the uid of an object of another Namespace, kind or name
    UNKNOWN_KIND = "unknown_kind"  # gpuwatch does not know the controller's kind: report, never act
    STATIC = "static"  # a mirror Pod of the kubelet
    DAEMON = "daemon"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The top controller of some Pods. `id` is `Kind/namespace/name`; a bare Pod is its own workload.

    loses: why a release or a move of it would delete data that outlives a Pod; '' where it would not, None where its
    own fields were not read. unreleasable: why a release of it, or a move that stops it, would not be written or would
    not last; '' where it would, None where that was not read. retries: how many of its Pods may be evicted before its
    controller gives it up; None where it counts none, or gpuwatch does not know how.
    """

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
    loses: str | None = None
    unreleasable: str | None = None
    retries: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """API group ('' for the core group) and kind."""
        return self.api_version.rpartition("/")[0], self.kind


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device that a Pod holds, as its kubelet tells it (KEP-4680). id: as the device plugin gave it, such as a UUID
    with `::N` for a replica, or driver/pool/name by DRA. health: Healthy (may be outdated), Unhealthy or Unknown."""

    id: str
    health: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A Pod that requests accelerators or has a claim for one. `accelerators` sums its containers' requests.

    unscheduled: reason and message of the condition PodScheduled, where the scheduler has not placed it.
    refused: why its kubelet did not admit it, where that is a fault of the Node; such a Pod ran nowhere, and `started`
    is the time of the refusal. scheduled: of a refused Pod: no client chose its Node, so a scheduler did.
    of_node: of a Pod without accelerators: a DaemonSet's or a static Pod, which starts again with its Node.
    ends_by: end of its grace period, where it is being deleted. not_started: why its containers have not started, in
    its kubelet's words; '' where they have.
    sent_back: when Kueue ended it before it ran, as the Node that Kueue had chosen for it took it no more.
    """

    namespace: str
    name: str
    uid: str = ""
    node: str = ""
    phase: str = ""
    created: datetime | None = None
    started: datetime | None = None
    ready: bool = False
    deleting: bool = False
    ends_by: datetime | None = None
    not_started: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    accelerators: Mapping[str, int] = field(default_factory=dict)
    cpu_cores: float = 0.0
    memory_bytes: int = 0
    claims: tuple[str, ...] = ()  # ResourceClaim names in the Pod's namespace
    devices: tuple[HeldDevice, ...] = ()  # () where its kubelet does not tell
    priority: int = 0
    scheduler: str = ""
    workload: str = ""  # Workload.id of the top owner
    gang: str = ""  # Gang.id, '' where it belongs to none
    restarts: int = 0
    placement: Placement = Placement()
    unscheduled: str = ""
    refused: str = ""
    scheduled: bool = False
    of_node: bool = False
    sent_back: datetime | None = None

    @property
    def ref(self) -> PodRef:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """Where Kueue placed a gang by its topology. pods: Node, by HOSTNAME → how many; {} where not understood. replaced:
    Nodes for which it looks for others. evictions: how often it found none; evicted_at: when that last began or ended.
    """

    pods: Mapping[str, int] = field(default_factory=dict)
    replaced: tuple[str, ...] = ()
    evictions: int = 0
    evicted_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """Pods that have to run together: the unit of action.

    min_available: number of Pods that it needs, whether they exist or not; None where it needs all that exist.
    unscheduled: why some are not placed, by its Kueue Workload or Volcano PodGroup. assigned: None where Kueue did not
    place it by its topology.
    """

    id: str
    framework: str  # JobSet, Kueue, Volcano, …
    workload: str
    namespace: str
    pods: tuple[PodRef, ...]
    min_available: int | None = None
    recognised_by: str = ""  # label or field
    unscheduled: str = ""
    assigned: Assigned | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DisruptionBudget:
    namespace: str
    name: str
    match_labels: Mapping[str, str] = field(default_factory=dict)
    match_expressions: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    selects_all: bool = False  # an empty selector
    disruptions_allowed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A ResourceQuota. limited: names of what it limits, as in its spec: requests.nvidia.com/gpu, pods, …"""

    namespace: str
    name: str
    limited: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDevice:
    """A device allocated to a ResourceClaim (DRA). `device` is the GPU's UUID where the ResourceSlice has it.

    unhealthy: type and reason of a condition by which its driver calls it so; '' where there is none.
    """

    claim: str  # namespace/name
    driver: str
    pool: str
    name: str
    device: DeviceId = ""
    unhealthy: str = ""


class FactKind(StrEnum):
    """What decisions are based on, by the lists that it is read from."""

    NODES = "nodes"
    PODS = "pods"
    OWNERS = "owners"  # all kinds between the Pods and their Workloads
    GANGS = "gangs"  # Kueue's Workloads and PodGroups
    BUDGETS = "budgets"  # PodDisruptionBudgets
    QUOTAS = "quotas"  # ResourceQuotas
    AUTOSCALERS = "autoscalers"  # HorizontalPodAutoscalers, and ScaledObjects of KEDA
    NAMESPACES = "namespaces"
    CLAIMS = "claims"  # ResourceClaims and ResourceSlices


@dataclass(frozen=True, slots=True)
class Unread:
    """Objects of this kind may be missing, in one Namespace or ('') anywhere. why: what happened, and what to do."""

    kind: FactKind
    namespace: str
    why: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """Everything read from Kubernetes or from a recorded folder. `gaps` lists what could not be read.

    unread: facts that were not read completely, so that a missing object proves nothing. By default all facts.
    """

    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    # Pods without accelerators, whose Workload also has Pods with some, or whose Node has accelerators.
    companions: tuple[Pod, ...] = ()
    # Placed Pods without accelerators that an affinity or a spread of a Pod with some means, or that keep one away: by
    # anti-affinity, a host port, or a volume claim that one Pod alone may use.
    bystanders: tuple[Pod, ...] = ()
    workloads: tuple[Workload, ...] = ()
    # Owners and Kueue Workloads that gpuwatch has marked, with Pods or without.
    marked: tuple[Workload, ...] = ()
    gangs: tuple[Gang, ...] = ()
    budgets: tuple[DisruptionBudget, ...] = ()
    quotas: tuple[Quota, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    claims: tuple[ClaimedDevice, ...] = ()
    exporter_nodes: Mapping[str, str] = field(default_factory=dict)  # name or IP of an exporter's Pod → its Node
    exporter_pods: tuple[PodRef, ...] = ()  # GPU exporters' Pods that request no device, and so hold none
    exporter_urls: Mapping[str, str] = field(default_factory=dict)  # URL of such a Pod's metrics → its Node
    node_addresses: Mapping[str, str] = field(default_factory=dict)  # internal IP or host name → Node
    gaps: tuple[Gap, ...] = ()
    unread: tuple[Unread, ...] = tuple(Unread(kind, "", "No cluster was read.") for kind in FactKind)
    known: bool = False  # False: no cluster was read, so a missing Pod means nothing
