"""Which gang a Pod belongs to. Pure.

Resolution order: Kueue, the owners from the top down, PodGroups that a Pod names itself, the frameworks' labels where
the top owner was not found, and last the conventions of plain Jobs and StatefulSets. Other Pods, such as a
Deployment's, have no gang. The plan handles opt-outs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpuwatch.facts.frameworks import FRAMEWORK_OF, FRAMEWORKS, kueue, schedulers
from gpuwatch.facts.frameworks.framework import Framework, GangRule, Kind
from gpuwatch.facts.frameworks.objects import KindKey
from gpuwatch.facts.frameworks.owner import Owner
from gpuwatch.facts.model.cluster import OwnerStatus

_KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
_KUEUE_TOTAL = "kueue.x-k8s.io/pod-group-total-count"
_KUEUE_WORKLOAD = ("kueue.x-k8s.io/workload", "kueue.x-k8s.io/prebuilt-workload-name")
_KUEUE_MARKS = (kueue.QUEUE, *kueue.QUEUED)


@dataclass(frozen=True, slots=True)
class Member:
    """One Pod. status: result of the search for its owners; chain: those found, from the Pod upwards."""

    namespace: str
    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    status: OwnerStatus = OwnerStatus.FOUND
    chain: tuple[Owner, ...] = ()
    scheduling_group: str = ""

    def mark(self, names: Iterable[str]) -> tuple[str, str] | None:
        """The first of these labels or annotations on the Pod, as ('label NAME' or 'annotation NAME', value)."""
        for name in names:
            if self.labels.get(name):
                return f"label {name}", self.labels[name]
            if self.annotations.get(name):
                return f"annotation {name}", self.annotations[name]
        return None


@dataclass(frozen=True, slots=True)
class Membership:
    """A Pod's gang. min_available: includes Pods without accelerators, as the framework counts; None where all are
    needed."""

    framework: str
    namespace: str
    name: str
    recognised_by: str
    min_available: int | None = None
    part: str = ""

    @property
    def id(self) -> str:
        """Framework/namespace/name, and /part where one owner has several gangs."""
        name = f"{self.framework.replace(' ', '-')}/{self.namespace}/{self.name}"
        return f"{name}/{self.part}" if self.part else name


@dataclass(frozen=True, slots=True)
class GangObjects:
    """Objects that describe gangs: Kueue's Workloads by the Namespace and uid of the job they admit, and all by kind,
    Namespace and name. A label of another Namespace's Workload says nothing about a job."""

    by_job: Mapping[tuple[str, str], Owner] = field(default_factory=dict)
    by_name: Mapping[tuple[KindKey, str, str], Owner] = field(default_factory=dict)


_GANGS = tuple((item, item.gang) for item in FRAMEWORKS if item.gang is not None)
_GROUPS = tuple((item.name, item.groups) for item in FRAMEWORKS if item.groups is not None)


def group_kinds(members: Iterable[Member]) -> tuple[Kind, ...]:
    """The PodGroup kinds that these Pods name: the only ones to list."""
    found = dict.fromkeys(
        kind
        for member in members
        for kind in (
            *(groups.kind for _, groups in _GROUPS if member.mark(groups.named_by)),
            *((schedulers.NATIVE_GROUP,) if member.scheduling_group else ()),
        )
    )
    return tuple(found)


def recognise(member: Member, objects: GangObjects) -> Membership | None:
    """None for a Pod without a gang."""
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
        found = objects.by_name.get((kueue.WORKLOAD.key, member.namespace, named[1]))
        if found is not None:
            return found
    jobs = ((member.namespace, uid) for uid in (*(owner.uid for owner in reversed(member.chain)), member.uid))
    return next((objects.by_job[job] for job in jobs if job in objects.by_job), None)


def unscheduled(member: Member, objects: GangObjects) -> str:
    """Why Pods of its gang are not placed, as its Kueue Workload or PodGroup says; '' where neither does."""
    named = ((groups.kind.key, member.mark(groups.named_by)) for _, groups in _GROUPS)
    found = (objects.by_name.get((key, member.namespace, mark[1])) for key, mark in named if mark is not None)
    told = (item for item in (kueue_workload(member, objects), *found) if item is not None and item.unscheduled)
    return next((f"{item.kind} {item.name}: {item.unscheduled}" for item in told), "")


def priority(member: Member, own: int, objects: GangObjects) -> int:
    """The higher of the Pod's own priority, which its kubelet evicts by, and of its PodGroup's, which the scheduler
    preempts by."""
    group = objects.by_name.get((schedulers.NATIVE_GROUP.key, member.namespace, member.scheduling_group))
    return own if group is None else max(own, group.spec.priority or 0)


def _kueue(member: Member, objects: GangObjects) -> Membership | None:
    group = member.labels.get(_KUEUE_GROUP)
    if group:
        # Nothing recreates a plain group's Pods; a StatefulSet recreates its own.
        framework = (kueue.ADMITTED if member.chain else kueue.POD_GROUP).name
        total = member.annotations.get(_KUEUE_TOTAL, "")
        needed = int(total) if total.isdecimal() else None
        return Membership(framework, member.namespace, group, f"label {_KUEUE_GROUP}", needed)
    admitted = kueue_workload(member, objects)
    if admitted is not None:
        sets = admitted.spec.pod_sets or ()
        counts = [item.count if item.min_count is None else item.min_count for item in sets]
        known = [count for count in counts if count is not None]
        needed = sum(known) if known and len(known) == len(counts) else None
        by = f"Kueue Workload {admitted.namespace}/{admitted.name}"
        return Membership(kueue.ADMITTED.name, member.namespace, admitted.name, by, needed)
    top = member.chain[-1] if member.chain else None
    own = member.mark(_KUEUE_MARKS)
    queued = next((owner for owner in reversed(member.chain) if owner.labels.get(kueue.QUEUE)), None)
    if own is None and queued is None:
        return None
    by = own[0] if own else f"label {kueue.QUEUE} of {queued.kind}" if queued else ""
    return Membership(kueue.ADMITTED.name, member.namespace, top.name if top else member.name, by)


def _by_owner(member: Member, objects: GangObjects) -> Membership | None:
    for owner in reversed(member.chain):
        framework = FRAMEWORK_OF.get(owner.key)
        if framework is None or framework.gang is None:
            continue
        found = _membership(framework, framework.gang, member, owner, owner.name, f"owner {owner.kind}")
        asked = owner.annotations.get(schedulers.KAI_MINIMUM, "")
        if found is not None and asked.isdecimal() and member.mark(schedulers.KAI.queued):
            return replace(found, min_available=int(asked))  # its owner wants no more of them at once
        if found is not None and found.min_available is None:
            return replace(found, min_available=_own_group_minimum(member, owner, objects))
        if found is not None:
            return found
    return None


def _membership(
    framework: Framework, rule: GangRule, member: Member, owner: Owner | None, name: str, by: str
) -> Membership | None:
    part = member.mark(rule.split_by)
    carriers = (member.labels, owner.labels if owner is not None else {})
    whole = any(labels.get(key, "false") != "false" for labels in carriers for key in rule.whole_with)
    if rule.whole_with and owner is not None:
        if whole:
            part, by = None, f"label {rule.whole_with[0]}"
        elif part is None:
            return None
    if part is not None:
        by = part[0]
    needed = rule.minimum(owner.spec if owner is not None else None, member.annotations)
    return Membership(framework.name, member.namespace, name, by, needed, part[1] if part else "")


def _own_group_minimum(member: Member, owner: Owner, objects: GangObjects) -> int | None:
    """Minimum of the PodGroup that this controller created; schedulers also create groups of one for any Pod."""
    for _, groups in _GROUPS:
        named = member.mark(groups.named_by)
        group = objects.by_name.get((groups.kind.key, member.namespace, named[1])) if named else None
        if group is not None and group.controller is not None and group.controller.uid == owner.uid:
            return groups.minimum(group.spec)
    return None


def _by_group(member: Member, objects: GangObjects) -> Membership | None:
    if member.scheduling_group:
        group = objects.by_name.get((schedulers.NATIVE_GROUP.key, member.namespace, member.scheduling_group))
        policy = group.spec.scheduling_policy if group is not None else None
        gang = policy.gang if policy else None
        if group is not None and gang is None:
            return None  # the basic policy schedules Pod by Pod
        needed, by = gang.min_count if gang else None, "spec.schedulingGroup.podGroupName"
        return Membership(schedulers.NATIVE.name, member.namespace, member.scheduling_group, by, needed)
    for framework, groups in _GROUPS:
        named = member.mark(groups.named_by)
        if named is None:
            continue
        found = objects.by_name.get((groups.kind.key, member.namespace, named[1]))
        needed = groups.minimum(found.spec) if found is not None else None
        if needed is not None and needed <= 1:
            continue  # a scheduler's own group of a single Pod, or Pods that do not need each other
        return Membership(framework, member.namespace, named[1], named[0], needed)
    return None


def _by_label(member: Member) -> Membership | None:
    for framework, rule in _GANGS:
        named = member.mark(rule.named_by)
        if named is None:
            continue
        if rule.named_only_with is not None and member.labels.get(rule.named_only_with[0]) != rule.named_only_with[1]:
            continue
        return _membership(framework, rule, member, None, named[1], named[0])
    return None


def _by_convention(member: Member) -> Membership | None:
    for owner in reversed(member.chain):
        framework = FRAMEWORK_OF.get(owner.key)
        by = framework.by_convention(owner) if framework is not None and framework.by_convention is not None else ""
        if by:
            return Membership(owner.kind, member.namespace, owner.name, by, owner.replicas)
    return None
