"""The fields that are read of Kubernetes objects; all others are skipped."""

from datetime import datetime

import msgspec

from gpuwatch.facts.frameworks.owner import OwnerRef, Wire
from gpuwatch.facts.model.cluster import Requirement

Quantities = dict[str, str | int | float]


class Metadata(Wire, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerRef] | None = None

    @property
    def controller(self) -> OwnerRef | None:
        """The one owner that manages the object; others only matter for garbage collection."""
        return next((ref for ref in self.owner_references or () if ref.controller), None)


class WireName(Wire, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class WireNamed(Wire, frozen=True):
    """Identity of an object of any kind."""

    api_version: str = ""
    kind: str = ""
    metadata: WireName | None = None


class PageMetadata(Wire, frozen=True):
    resource_version: str = ""
    continue_: str | None = msgspec.field(default=None, name="continue")


class WirePage(Wire, frozen=True):
    """A page of a list, or a `kubectl get -o json` file, with its objects as raw JSON."""

    api_version: str = ""
    kind: str = ""
    metadata: PageMetadata | None = None
    items: list[msgspec.Raw] | None = None


class StatusCause(Wire, frozen=True):
    reason: str = ""
    message: str = ""


class StatusDetails(Wire, frozen=True):
    causes: list[StatusCause] | None = None
    retry_after_seconds: int | None = None


class WireStatus(Wire, frozen=True):
    """The `Status` in an error of the API server."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


class Event(Wire, frozen=True):
    """A line of a watch. object: the current object, the last state of a deleted one, or a `Status`."""

    type: str = ""
    object: msgspec.Raw = msgspec.Raw(b"{}")


class ApiGroup(Wire, frozen=True):
    name: str = ""
    versions: list[dict[str, str]] = msgspec.field(default_factory=list)  # groupVersion, version


class ApiGroups(Wire, frozen=True):
    """The answer to GET /apis."""

    groups: list[ApiGroup] = msgspec.field(default_factory=list)


class NamedValue(Wire, frozen=True):
    type: str = ""
    address: str = ""


class WireTaint(Wire, frozen=True):
    key: str = ""
    value: str | None = None
    effect: str = ""
    time_added: datetime | None = None


class WireCondition(Wire, frozen=True):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: datetime | None = None


class NodeSpec(Wire, frozen=True):
    unschedulable: bool | None = None
    taints: list[WireTaint] | None = None


class NodeInfo(Wire, frozen=True):
    boot_id: str = msgspec.field(default="", name="bootID")


class NodeStatus(Wire, frozen=True):
    capacity: Quantities | None = None
    allocatable: Quantities | None = None
    conditions: list[WireCondition] | None = None
    addresses: list[NamedValue] | None = None
    node_info: NodeInfo | None = None


class WireNode(Wire, frozen=True):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Resources(Wire, frozen=True):
    requests: Quantities | None = None
    limits: Quantities | None = None


class Container(Wire, frozen=True):
    name: str = ""
    image: str | None = None
    resources: Resources | None = None
    restart_policy: str | None = None
    ports: msgspec.Raw = msgspec.Raw(b"null")  # as list[Port] | None; decoded of exporters, and for host ports


class PodClaim(Wire, frozen=True):
    name: str = ""
    resource_claim_name: str | None = None


class LabelSelector(Wire, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Requirement, ...] | None = None


class WireToleration(Wire, frozen=True):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


class NodeSelectorTerm(Wire, frozen=True):
    match_expressions: tuple[Requirement, ...] | None = None
    match_fields: tuple[Requirement, ...] | None = None


class NodeSelector(Wire, frozen=True):
    node_selector_terms: list[NodeSelectorTerm] | None = None


class NodeAffinity(Wire, frozen=True):
    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class PodAffinityTerm(Wire, frozen=True):
    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None


class PodAffinity(Wire, frozen=True):
    required: list[PodAffinityTerm] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(Wire, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class SpreadConstraint(Wire, frozen=True):
    topology_key: str = ""
    max_skew: int = 1
    min_domains: int | None = None
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    match_label_keys: list[str] | None = None


class SchedulingGroup(Wire, frozen=True):
    pod_group_name: str | None = None


class PodSpec(Wire, frozen=True):
    node_name: str | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: Quantities | None = None
    resources: Resources | None = None
    priority: int | None = None
    scheduler_name: str | None = None
    resource_claims: list[PodClaim] | None = None
    scheduling_group: SchedulingGroup | None = None
    tolerations: list[WireToleration] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    topology_spread_constraints: list[SpreadConstraint] | None = None
    scheduling_gates: list[msgspec.Raw] | None = None  # read only for whether there are any
    volumes: msgspec.Raw = msgspec.Raw(b"null")  # as list[Volume] | None; decoded of exporters, and for claims


class Port(Wire, frozen=True):
    container_port: int = 0
    name: str | None = None
    protocol: str | None = None
    host_port: int | None = None
    host_ip: str | None = msgspec.field(default=None, name="hostIP")


class VolumeClaimSpec(Wire, frozen=True):
    volume_name: str | None = None
    storage_class_name: str | None = None
    access_modes: list[str] | None = None
    resources: Resources | None = None
    selector: LabelSelector | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None


class ClaimTemplate(Wire, frozen=True):
    spec: VolumeClaimSpec = VolumeClaimSpec()


class Volume(Wire, frozen=True):
    name: str = ""
    host_path: dict[str, str | None] | None = None  # path, type
    persistent_volume_claim: dict[str, str | bool] | None = None  # claimName, readOnly
    ephemeral: dict[str, ClaimTemplate | None] | None = None  # volumeClaimTemplate


class ContainerState(Wire, frozen=True):
    """reason: why it waits, or has ended."""

    started_at: datetime | None = None
    reason: str | None = None


class DeviceStatus(Wire, frozen=True):
    id: str = msgspec.field(default="", name="resourceID")
    health: str | None = None


class ResourceStatus(Wire, frozen=True):
    resources: list[DeviceStatus] | None = None


class ContainerStatus(Wire, frozen=True):
    """state: of running, terminated and waiting, the one that it is in; waiting has no start."""

    restart_count: int = 0
    started: bool | None = None  # of a sidecar: it runs beside the others
    state: dict[str, ContainerState | None] | None = None
    allocated_resources_status: list[ResourceStatus] | None = None


class PodStatus(Wire, frozen=True):
    phase: str = ""
    reason: str | None = None
    start_time: datetime | None = None
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    pod_ips: list[dict[str, str]] | None = msgspec.field(default=None, name="podIPs")
    conditions: list[WireCondition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[PodClaim] | None = None
    extended_resource_claim_status: PodClaim | None = None


class WirePod(Wire, frozen=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class FieldsV1(Wire, frozen=True):
    spec: dict[str, msgspec.Raw] | None = msgspec.field(default=None, name="f:spec")


class ManagedFields(Wire, frozen=True):
    subresource: str | None = None
    fields: FieldsV1 | None = msgspec.field(default=None, name="fieldsV1")


class Managed(Wire, frozen=True):
    managed_fields: list[ManagedFields] | None = None


class ManagedPod(Wire, frozen=True):
    """Who set which of a Pod's fields. Large, so decoded of refused Pods alone."""

    metadata: Managed = Managed()


class Bare(Wire, frozen=True):
    """An object of which only the metadata is read."""

    metadata: Metadata
