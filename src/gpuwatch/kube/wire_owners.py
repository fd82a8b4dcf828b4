"""The fields in use of controllers, pod groups and DRA objects. One Struct serves all kinds of `kinds.py`, which
give the same name to the same thing; the comments say whose field it is."""

from __future__ import annotations

from gpuwatch.kube.wire import Metadata, Wire


class SchedulingPolicy(Wire, frozen=True):
    min_available: int | None = None


class RunPolicy(Wire, frozen=True):
    suspend: bool | None = None
    scheduling_policy: SchedulingPolicy | None = None


class ElasticPolicy(Wire, frozen=True):
    min_replicas: int | None = None


class LeaderWorkerTemplate(Wire, frozen=True):
    size: int | None = None


class PodSet(Wire, frozen=True):
    count: int | None = None
    min_count: int | None = None


class Gang(Wire, frozen=True):
    min_count: int | None = None


class GangPolicy(Wire, frozen=True):
    gang: Gang | None = None


class NamedGroup(Wire, frozen=True):
    name: str = ""
    policy: GangPolicy | None = None
    scheduling_policy: GangPolicy | None = None


class PodGangGroup(Wire, frozen=True):
    min_replicas: int | None = None


class Predictor(Wire, frozen=True):
    min_replicas: int | None = None


class OwnerSpec(Wire, frozen=True):
    replicas: int | None = None  # Deployment, StatefulSet, LeaderWorkerSet, PodCliqueSet
    suspend: bool | None = None  # Job, CronJob, JobSet, TrainJob, RayJob, RayCluster, AppWrapper, Workflow
    parallelism: int | None = None  # Job
    completion_mode: str | None = None  # Job
    pod_management_policy: str | None = None  # StatefulSet
    run_policy: RunPolicy | None = None  # Kubeflow training-operator v1, MPIJob
    elastic_policy: ElasticPolicy | None = None  # PyTorchJob
    leader_worker_template: LeaderWorkerTemplate | None = None  # LeaderWorkerSet
    predictor: Predictor | None = None  # InferenceService
    started: bool | None = None  # DevWorkspace
    min_available: int | None = None  # Volcano Job
    queue: str | None = None  # Volcano Job and PodGroup, KAI PodGroup
    queue_name: str | None = None  # Kueue Workload
    active: bool | None = None  # Kueue Workload
    pod_sets: list[PodSet] | None = None  # Kueue Workload
    min_member: int | None = None  # PodGroup of Volcano, Coscheduling and KAI
    scheduling_policy: GangPolicy | None = None  # scheduling.k8s.io PodGroup
    pod_groups: list[NamedGroup] | None = None  # scheduling.k8s.io Workload
    podgroups: list[PodGangGroup] | None = None  # Grove PodGang


class Owner(Wire, frozen=True):
    metadata: Metadata
    spec: OwnerSpec = OwnerSpec()


class AllocatedDevice(Wire, frozen=True):
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None


class DeviceAllocation(Wire, frozen=True):
    results: list[AllocatedDevice] | None = None


class Allocation(Wire, frozen=True):
    devices: DeviceAllocation | None = None


class ClaimStatus(Wire, frozen=True):
    allocation: Allocation | None = None


class ResourceClaim(Wire, frozen=True):
    metadata: Metadata
    status: ClaimStatus = ClaimStatus()


class Attribute(Wire, frozen=True):
    string: str | None = None


class BasicDevice(Wire, frozen=True):
    """Where resource.k8s.io/v1beta1 has the attributes."""

    attributes: dict[str, Attribute] | None = None


class SliceDevice(Wire, frozen=True):
    name: str = ""
    attributes: dict[str, Attribute] | None = None
    basic: BasicDevice | None = None


class SlicePool(Wire, frozen=True):
    name: str = ""
    generation: int = 0


class SliceSpec(Wire, frozen=True):
    driver: str = ""
    pool: SlicePool = SlicePool()
    devices: list[SliceDevice] | None = None


class ResourceSlice(Wire, frozen=True):
    metadata: Metadata
    spec: SliceSpec = SliceSpec()
