"""Controllers between a Pod and its top owner, reduced to the fields in use. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from gpuwatch.facts.frameworks.objects import KindKey


class Wire(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Every field may be missing or null: the API omits empty fields, and hand-written files omit more."""


class OwnerRef(Wire, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]


class WorkloadRef(Wire, frozen=True):
    """`pod.spec.workloadRef`, the form before Kubernetes 1.36."""

    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str | None = None


class KubeflowSchedulingPolicy(Wire, frozen=True):
    min_available: int | None = None


class KubeflowRunPolicy(Wire, frozen=True):
    suspend: bool | None = None
    scheduling_policy: KubeflowSchedulingPolicy | None = None


class Scaled(Wire, frozen=True):
    """replicas, num_of_hosts: of a Ray cluster's worker group."""

    min_replicas: int | None = None
    replicas: int | None = None
    num_of_hosts: int | None = None


class LeaderWorkerTemplate(Wire, frozen=True):
    size: int | None = None


class RayClusterSpec(Wire, frozen=True):
    enable_in_tree_autoscaling: bool | None = None
    worker_group_specs: list[Scaled] | None = None


class PodSet(Wire, frozen=True):
    count: int | None = None
    min_count: int | None = None


class GangPolicy(Wire, frozen=True):
    gang: PodSet | None = None


class NamedGroup(Wire, frozen=True):
    name: str = ""
    policy: GangPolicy | None = None
    scheduling_policy: GangPolicy | None = None


class StartupPolicy(Wire, frozen=True):
    startup_policy_order: str = ""


class JobSize(Wire, frozen=True):
    """pods: that a Job runs at once, of which it needs no more than it completes. 1: the API's default."""

    parallelism: int | None = None
    completions: int | None = None

    @property
    def pods(self) -> int:
        counts = [count for count in (self.parallelism, self.completions) if count is not None]
        return min(counts, default=1)


class JobTemplate(Wire, frozen=True):
    spec: JobSize = JobSize()


class ReplicatedJob(Wire, frozen=True):
    replicas: int | None = None
    depends_on: list[msgspec.Raw] | None = None
    template: JobTemplate | None = None


class Condition(Wire, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class OwnerState(Wire, frozen=True):
    """`status` of kinds that say why their Pods are not placed."""

    conditions: list[Condition] | None = None

    def matching(self, **wanted: str) -> str:
        """Type, reason and message of the first condition that has the wanted status; '' for none."""
        found = (item for name in wanted for item in self.conditions or () if item.type == name)
        told = (item for item in found if item.status == wanted[item.type])
        return next((f"{item.type}={item.status}, {item.reason}: {item.message}" for item in told), "")


class OwnerSpec(Wire, frozen=True):
    """One for all kinds, since a field has the same meaning in all; the comments name the kinds that have it."""

    replicas: int | None = None  # Deployment, StatefulSet, LeaderWorkerSet, PodCliqueSet
    suspend: bool | None = None  # Job, CronJob, JobSet, TrainJob, RayJob, RayCluster, AppWrapper, Workflow
    parallelism: int | None = None  # Job
    completions: int | None = None  # Job
    replicated_jobs: list[ReplicatedJob] | None = None  # JobSet
    startup_policy: str | StartupPolicy | None = None  # LeaderWorkerSet; JobSet
    completion_mode: str | None = None  # Job
    pod_management_policy: str | None = None  # StatefulSet
    run_policy: KubeflowRunPolicy | None = None  # Kubeflow training-operator v1, MPIJob
    elastic_policy: Scaled | None = None  # PyTorchJob
    leader_worker_template: LeaderWorkerTemplate | None = None  # LeaderWorkerSet
    predictor: Scaled | None = None  # InferenceService
    ray_cluster_spec: RayClusterSpec | None = None  # RayJob
    started: bool | None = None  # DevWorkspace
    min_available: int | None = None  # Volcano Job
    queue: str | None = None  # Volcano Job and PodGroup, KAI PodGroup
    queue_name: str | None = None  # Kueue Workload
    active: bool | None = None  # Kueue Workload
    pod_sets: list[PodSet] | None = None  # Kueue Workload
    min_member: int | None = None  # PodGroup of Volcano, Coscheduling and KAI
    scheduling_policy: GangPolicy | None = None  # scheduling.k8s.io PodGroup
    pod_groups: list[NamedGroup] | None = None  # scheduling.k8s.io Workload
    podgroups: list[Scaled] | None = None  # Grove PodGang


@dataclass(frozen=True, slots=True)
class Owner:
    """One controller in the chain, or a Pod that owns others."""

    group: str
    kind: str
    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    created: datetime | None = None
    controller: OwnerRef | None = None
    spec: OwnerSpec = OwnerSpec()
    replicas: int | None = None
    suspended: bool | None = None
    unscheduled: str = ""  # why its Pods are not placed, as its status says
    loses: str | None = None  # see Workload

    @property
    def key(self) -> KindKey:
        return self.group, self.kind
