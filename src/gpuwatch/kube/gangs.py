"""The gang table: how each framework's Pods are told to live and die together. Pure.

Resolution order: Kueue's management, the owners from the top down, PodGroups that a Pod names itself, the
frameworks' labels where the owners could not be followed to the top, and last the conventions of plain Jobs and
StatefulSets. An opt-out is the plan's business. A Pod that no row recognises stands alone, like those of a Deployment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gpuwatch.kube import kinds
from gpuwatch.kube.kinds import Kind, KindKey
from gpuwatch.kube.owners import Owner
from gpuwatch.kube.wire import WorkloadRef
from gpuwatch.kube.wire_owners import OwnerSpec
from gpuwatch.model.cluster import OwnerStatus

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
_KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
_KUEUE_TOTAL = "kueue.x-k8s.io/pod-group-total-count"
_KUEUE_WORKLOAD = ("kueue.x-k8s.io/workload", "kueue.x-k8s.io/prebuilt-workload-name")
_KUEUE_MARKS = (KUEUE_QUEUE, "kueue.x-k8s.io/managed", "kueue.x-k8s.io/podset")
_LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"


@dataclass(frozen=True, slots=True)
class Member:
    """What the table looks at: one Pod, how far its owners were followed, and those found, from the Pod upwards."""

    namespace: str
    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    status: OwnerStatus = OwnerStatus.FOUND
    chain: tuple[Owner, ...] = ()
    scheduling_group: str = ""
    workload_ref: WorkloadRef | None = None

    def mark(self, names: Iterable[str]) -> tuple[str, str] | None:
        """The first of these labels or annotations that the Pod carries, as (where it stands, value)."""
        for name in names:
            if self.labels.get(name):
                return f"label {name}", self.labels[name]
            if self.annotations.get(name):
                return f"annotation {name}", self.annotations[name]
        return None


@dataclass(frozen=True, slots=True)
class Membership:
    """The gang that a Pod belongs to.

    min_available: as the framework counts, Pods without accelerators included; None where all are needed.
    """

    framework: str
    namespace: str
    name: str
    part: str = ""
    min_available: int | None = None
    recognised_by: str = ""

    @property
    def id(self) -> str:
        """Framework/namespace/name, and the part where one owner has several gangs."""
        name = f"{self.framework.replace(' ', '-')}/{self.namespace}/{self.name}"
        return f"{name}/{self.part}" if self.part else name


@dataclass(frozen=True, slots=True)
class GangObjects:
    """Objects that speak of gangs: Kueue's Workloads by the uid of the job they admit, and all by kind and name."""

    by_job: Mapping[str, Owner] = field(default_factory=dict)
    by_name: Mapping[tuple[KindKey, str, str], Owner] = field(default_factory=dict)


def _all_needed(_owner: Owner | None, _member: Member) -> int | None:
    return None


def _kubeflow_minimum(owner: Owner | None, _: Member) -> int | None:
    if owner is None:
        return None
    policy = owner.spec.run_policy.scheduling_policy if owner.spec.run_policy else None
    told = [
        policy.min_available if policy else None,
        owner.spec.elastic_policy.min_replicas if owner.spec.elastic_policy else None,
    ]
    return max((count for count in told if count is not None), default=None)


def _volcano_minimum(owner: Owner | None, _: Member) -> int | None:
    return owner.spec.min_available if owner is not None else None


def _lws_minimum(owner: Owner | None, member: Member) -> int | None:
    size = member.annotations.get(_LWS_SIZE, "")
    if size.isdecimal():
        return int(size)
    template = owner.spec.leader_worker_template if owner is not None else None
    return template.size if template else None


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """A framework whose controller makes the gang.

    owners: the controllers' kinds. named_by: labels or annotations that name the controller on its Pods.
    named_only_with: a label and its value without which `named_by` means another framework.
    split_by: every value of it is a gang of its own.
    whole_with: labels on the Pod or the owner; where given, a Pod without any of them and without `split_by` stands
    alone.
    """

    framework: str
    owners: tuple[KindKey, ...]
    named_by: tuple[str, ...] = ()
    named_only_with: tuple[str, str] | None = None
    split_by: tuple[str, ...] = ()
    whole_with: tuple[str, ...] = ()
    min_available: Callable[[Owner | None, Member], int | None] = _all_needed


_RAY_REPLICA = ("ray.io/worker-group-replica-name",)
_RAY_GANG = ("ray.io/gang-scheduling-enabled",)

OWNER_ROWS = (
    OwnerRow("AppWrapper", (("workload.codeflare.dev", "AppWrapper"),)),
    OwnerRow("Kubeflow Trainer", (("trainer.kubeflow.org", "TrainJob"),)),
    OwnerRow("JobSet", (("jobset.x-k8s.io", "JobSet"),), named_by=("jobset.sigs.k8s.io/jobset-name",)),
    OwnerRow(
        "LeaderWorkerSet",
        (("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),),
        named_by=("leaderworkerset.sigs.k8s.io/name",),
        split_by=("leaderworkerset.sigs.k8s.io/group-index", "leaderworkerset.sigs.k8s.io/group-key"),
        min_available=_lws_minimum,
    ),
    OwnerRow("MPIJob", (("kubeflow.org", "MPIJob"),), min_available=_kubeflow_minimum),
    OwnerRow(
        "Kubeflow Training",
        tuple(("kubeflow.org", kind) for kind in ("PyTorchJob", "TFJob", "XGBoostJob", "JAXJob", "PaddleJob")),
        named_by=("training.kubeflow.org/job-name",),
        min_available=_kubeflow_minimum,
    ),
    OwnerRow(
        "RayJob",
        (("ray.io", "RayJob"),),
        named_by=("ray.io/originated-from-cr-name",),
        named_only_with=("ray.io/originated-from-crd", "RayJob"),
    ),
    OwnerRow("RayService", (("ray.io", "RayService"),), split_by=_RAY_REPLICA, whole_with=_RAY_GANG),
    OwnerRow(
        "RayCluster",
        (("ray.io", "RayCluster"),),
        named_by=("ray.io/cluster",),
        split_by=_RAY_REPLICA,
        whole_with=_RAY_GANG,
    ),
    OwnerRow(
        "Volcano",
        (("batch.volcano.sh", "Job"),),
        named_by=("volcano.sh/job-name",),
        min_available=_volcano_minimum,
    ),
    OwnerRow(
        "Spark",
        (("sparkoperator.k8s.io", "SparkApplication"),),
        named_by=("spark-app-selector", "spark-app-name"),
    ),
    OwnerRow(
        "Argo Workflow",
        (("argoproj.io", "Workflow"), ("argoproj.io", "CronWorkflow"), ("kubeflow.org", "ScheduledWorkflow")),
    ),
    OwnerRow("Tekton", (("tekton.dev", "PipelineRun"), ("tekton.dev", "TaskRun"))),
)
_BY_OWNER = {key: row for row in OWNER_ROWS for key in row.owners}


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A scheduler whose Pods name their PodGroup themselves; `minimum` reads what the group needs."""

    framework: str
    kind: Kind
    named_by: tuple[str, ...]
    minimum: Callable[[OwnerSpec], int | None]


def _min_member(spec: OwnerSpec) -> int | None:
    return spec.min_member


def _pod_gang_minimum(spec: OwnerSpec) -> int | None:
    told = [group.min_replicas for group in spec.podgroups or () if group.min_replicas is not None]
    return sum(told) if told else None


GROUP_ROWS = (
    GroupRow("Grove", kinds.GROVE_GANG, ("grove.io/podgang",), _pod_gang_minimum),
    GroupRow(
        "Volcano",
        kinds.VOLCANO_GROUP,
        ("scheduling.volcano.sh/group-name", "scheduling.k8s.io/group-name"),
        _min_member,
    ),
    GroupRow("Coscheduling", kinds.COSCHEDULING_GROUP, ("scheduling.x-k8s.io/pod-group",), _min_member),
    GroupRow("KAI", kinds.KAI_GROUP, ("pod-group-name",), _min_member),
)
_NATIVE = "Kubernetes gang"


def group_kinds(members: Iterable[Member]) -> tuple[Kind, ...]:
    """The PodGroup kinds that these Pods name, so that only those are listed."""
    found = dict.fromkeys(
        kind
        for member in members
        for kind in (
            *(row.kind for row in GROUP_ROWS if member.mark(row.named_by)),
            *((kinds.NATIVE_GROUP,) if member.scheduling_group else ()),
            *((kinds.NATIVE_WORKLOAD,) if member.workload_ref else ()),
        )
    )
    return tuple(found)


def recognise(member: Member, objects: GangObjects) -> Membership | None:
    """The gang of this Pod; None where it stands alone."""
    return (
        _kueue(member, objects)
        or _by_owner(member, objects)
        or _by_group(member, objects)
        or (_by_label(member) if member.status is not OwnerStatus.FOUND else None)
        or _by_convention(member)
    )


def kueue_workload(member: Member, objects: GangObjects) -> Owner | None:
    """The Kueue Workload that admitted this Pod or one of its owners."""
    named = member.mark(_KUEUE_WORKLOAD)
    if named is not None:
        found = objects.by_name.get((kinds.KUEUE_WORKLOAD.key, member.namespace, named[1]))
        if found is not None:
            return found
    uids = (*(owner.uid for owner in reversed(member.chain)), member.uid)
    return next((objects.by_job[uid] for uid in uids if uid in objects.by_job), None)


def _kueue(member: Member, objects: GangObjects) -> Membership | None:
    group = member.labels.get(_KUEUE_GROUP)
    if group:
        # A plain group's Pods come back from nobody; those of a StatefulSet do.
        framework = "Kueue" if member.chain else "Kueue pod group"
        total = member.annotations.get(_KUEUE_TOTAL, "")
        needed = int(total) if total.isdecimal() else None
        return Membership(framework, member.namespace, group, "", needed, f"label {_KUEUE_GROUP}")
    admitted = kueue_workload(member, objects)
    if admitted is not None:
        sets = admitted.spec.pod_sets or ()
        counts = [item.count if item.min_count is None else item.min_count for item in sets]
        known = [count for count in counts if count is not None]
        needed = sum(known) if known and len(known) == len(counts) else None
        by = f"Kueue Workload {admitted.namespace}/{admitted.name}"
        return Membership("Kueue", member.namespace, admitted.name, "", needed, by)
    top = member.chain[-1] if member.chain else None
    own = member.mark(_KUEUE_MARKS)
    queued = next((owner for owner in reversed(member.chain) if owner.labels.get(KUEUE_QUEUE)), None)
    if own is None and queued is None:
        return None
    by = own[0] if own else f"label {KUEUE_QUEUE} of {queued.kind}" if queued else ""
    return Membership("Kueue", member.namespace, top.name if top else member.name, "", None, by)


def _by_owner(member: Member, objects: GangObjects) -> Membership | None:
    for owner in reversed(member.chain):
        row = _BY_OWNER.get(owner.key)
        if row is None:
            continue
        found = _of_row(row, member, owner, owner.name, f"owner {owner.kind}")
        if found is not None and found.min_available is None:
            needed = _own_group_minimum(member, owner, objects)
            return Membership(found.framework, found.namespace, found.name, found.part, needed, found.recognised_by)
        if found is not None:
            return found
    return None


def _of_row(row: OwnerRow, member: Member, owner: Owner | None, name: str, by: str) -> Membership | None:
    part = member.mark(row.split_by)
    carriers = (member.labels, owner.labels if owner is not None else {})
    whole = any(labels.get(key, "false") != "false" for labels in carriers for key in row.whole_with)
    if row.whole_with and owner is not None:
        if whole:
            part, by = None, f"label {row.whole_with[0]}"
        elif part is None:
            return None
    if part is not None:
        by = part[0]
    return Membership(
        row.framework, member.namespace, name, part[1] if part else "", row.min_available(owner, member), by
    )


def _own_group_minimum(member: Member, owner: Owner, objects: GangObjects) -> int | None:
    """What the PodGroup says that this very controller made; schedulers also make groups of one for any Pod."""
    for row in GROUP_ROWS:
        named = member.mark(row.named_by)
        group = objects.by_name.get((row.kind.key, member.namespace, named[1])) if named else None
        if group is not None and group.controller is not None and group.controller.uid == owner.uid:
            return row.minimum(group.spec)
    return None


def _by_group(member: Member, objects: GangObjects) -> Membership | None:
    if member.scheduling_group:
        group = objects.by_name.get((kinds.NATIVE_GROUP.key, member.namespace, member.scheduling_group))
        policy = group.spec.scheduling_policy if group is not None else None
        gang = policy.gang if policy else None
        if group is not None and gang is None:
            return None  # the basic policy schedules Pod by Pod
        return Membership(
            _NATIVE,
            member.namespace,
            member.scheduling_group,
            "",
            gang.min_count if gang else None,
            "spec.schedulingGroup.podGroupName",
        )
    if member.workload_ref is not None:
        return _by_workload_ref(member, member.workload_ref, objects)
    for row in GROUP_ROWS:
        named = member.mark(row.named_by)
        if named is None:
            continue
        found = objects.by_name.get((row.kind.key, member.namespace, named[1]))
        needed = row.minimum(found.spec) if found is not None else None
        if needed is not None and needed <= 1:
            continue  # a scheduler's own group around a single Pod, or Pods that do without each other
        return Membership(row.framework, member.namespace, named[1], "", needed, named[0])
    return None


def _by_workload_ref(member: Member, ref: WorkloadRef, objects: GangObjects) -> Membership | None:
    found = objects.by_name.get((kinds.NATIVE_WORKLOAD.key, member.namespace, ref.name))
    groups = found.spec.pod_groups or () if found is not None else ()
    policy = next((group.policy for group in groups if group.name == ref.pod_group), None)
    gang = policy.gang if policy else None
    if policy is not None and gang is None:
        return None
    part = f"{ref.pod_group}/{ref.pod_group_replica_key}" if ref.pod_group_replica_key else ref.pod_group
    needed = gang.min_count if gang else None
    return Membership(_NATIVE, member.namespace, ref.name, part, needed, "spec.workloadRef")


def _by_label(member: Member) -> Membership | None:
    for row in OWNER_ROWS:
        named = member.mark(row.named_by)
        if named is None:
            continue
        if row.named_only_with is not None and member.labels.get(row.named_only_with[0]) != row.named_only_with[1]:
            continue
        return _of_row(row, member, None, named[1], named[0])
    return None


def _by_convention(member: Member) -> Membership | None:
    """Indexed Jobs, and StatefulSets that start all their Pods at once, are how gangs are made by hand."""
    for owner in reversed(member.chain):
        if owner.key == ("batch", "Job") and owner.spec.completion_mode == "Indexed" and owner.replicas != 1:
            by = "spec.completionMode Indexed"
        elif (
            owner.key == ("apps", "StatefulSet")
            and owner.spec.pod_management_policy == "Parallel"
            and owner.replicas != 1
        ):
            by = "spec.podManagementPolicy Parallel"
        else:
            continue
        return Membership(owner.kind, member.namespace, owner.name, "", None, by)
    return None
