"""Each Pod's Workload, and the gangs among the Pods. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuwatch.facts.frameworks import FRAMEWORKS, kueue
from gpuwatch.facts.frameworks.owner import Owner
from gpuwatch.facts.frameworks.recognise import GangObjects, Member, Membership, kueue_workload, recognise, unscheduled
from gpuwatch.facts.model.cluster import Gang, OwnerStatus, Pod, Workload
from gpuwatch.sources.kube.owners import OwnerIndex, Reached, climb
from gpuwatch.sources.kube.pods import HeldPod

_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Climbed:
    held: HeldPod
    member: Member
    reached: Reached


def climb_all(pods: Sequence[HeldPod], index: OwnerIndex) -> list[Climbed]:
    climbed = []
    for held in pods:
        pod = held.pod
        reached = Reached(OwnerStatus.STATIC) if held.static else climb(index, held.controller, pod.namespace)
        member = Member(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            labels=pod.labels,
            annotations=pod.annotations,
            status=reached.status,
            chain=reached.chain,
            scheduling_group=held.scheduling_group,
            workload_ref=held.workload_ref,
        )
        climbed.append(Climbed(held, member, reached))
    return climbed


def assign_workloads(
    climbed: Sequence[Climbed], objects: GangObjects
) -> tuple[tuple[Pod, ...], tuple[Workload, ...], tuple[Gang, ...]]:
    """The Pods with their Workload and gang set, and those Workloads and gangs."""
    ids = _Ids()
    # Existing Workloads get the plain id before missing ones of the same name.
    order = sorted(range(len(climbed)), key=lambda at: climbed[at].reached.status is not OwnerStatus.FOUND)
    owner_ids = {at: ids.assign(climbed[at], objects) for at in order}
    pods: list[Pod] = []
    gangs: dict[str, tuple[Membership, str, list[Pod]]] = {}
    for at, item in enumerate(climbed):
        pod = item.held.pod
        # A Pod that ended holds no device and is no longer a member.
        membership = recognise(item.member, objects) if pod.phase not in _ENDED else None
        pod = replace(pod, workload=owner_ids[at], gang=membership.id if membership else "")
        pods.append(pod)
        if membership is not None:
            if membership.id not in gangs:
                gangs[membership.id] = (membership, unscheduled(item.member, objects), [])
            gangs[membership.id][2].append(pod)
    return tuple(pods), tuple(ids.workloads.values()), tuple(_gang(*found) for found in gangs.values())


def assign_companions(
    beside: Sequence[Climbed], climbed: Sequence[Climbed], tied: Sequence[Pod], objects: GangObjects
) -> list[Pod]:
    """Pods without accelerators, with the Workload and gang that they share with some of `tied`; '' for others."""
    owners = {_identity(item): pod.workload for item, pod in zip(climbed, tied, strict=True)}
    gangs = {pod.gang for pod in tied}
    found = []
    for item in beside:
        owner = owners.get(_identity(item), "")
        membership = recognise(item.member, objects) if owner else None
        gang = membership.id if membership is not None and membership.id in gangs else ""
        found.append(replace(item.held.pod, workload=owner, gang=gang))
    return found


def _gang(membership: Membership, why: str, pods: Sequence[Pod]) -> Gang:
    owners = {pod.workload for pod in pods}
    return Gang(
        id=membership.id,
        framework=membership.framework,
        # A PodGroup may span several owners; then none of them can be acted on alone.
        workload=owners.pop() if len(owners) == 1 else "",
        namespace=membership.namespace,
        pods=tuple(pod.ref for pod in pods),
        min_available=membership.min_available,
        recognised_by=membership.recognised_by,
        unscheduled=why,
    )


_Identity = tuple[str, str, str, str, str]


def _identity(item: Climbed) -> _Identity:
    """API group, kind, Namespace, name and uid of the Workload."""
    pod, ref, chain = item.held.pod, item.reached.ref, item.reached.chain
    if ref is not None:
        return ref.group, ref.kind, pod.namespace, ref.name, ref.uid
    if chain:
        top = chain[-1]
        return top.group, top.kind, top.namespace, top.name, top.uid
    return "", "Pod", pod.namespace, pod.name, pod.uid


class _Ids:
    """Workloads by id. One with the same name in another API group, or with another uid, gets a longer id."""

    def __init__(self) -> None:
        self.workloads: dict[str, Workload] = {}
        self._taken: dict[_Identity, str] = {}

    def assign(self, item: Climbed, objects: GangObjects) -> str:
        identity = _identity(item)
        if identity in self._taken:
            return self._taken[identity]
        group, kind, namespace, name, uid = identity
        choices = (f"{kind}/{namespace}/{name}", f"{kind}.{group}/{namespace}/{name}")
        chosen = next((item for item in choices if item not in self.workloads), f"{choices[1]}@{uid}")
        self._taken[identity] = chosen
        self.workloads[chosen] = _workload(chosen, item, objects)
        return chosen


def _workload(id_: str, item: Climbed, objects: GangObjects) -> Workload:
    _, kind, namespace, name, uid = _identity(item)
    reached, admitted = item.reached, kueue_workload(item.member, objects)
    found = Workload(
        id=id_,
        kind=kind,
        api_version=reached.ref.api_version if reached.ref is not None else reached.api_version,
        namespace=namespace,
        name=name,
        uid=uid,
        status=reached.status,
        queue=_queue(item, admitted),
    )
    if reached.ref is not None:
        return found  # only the reference is known
    if not reached.chain:
        pod = item.held.pod
        return replace(found, labels=pod.labels, annotations=pod.annotations, created=pod.created)
    top = reached.chain[-1]
    inactive = admitted is not None and admitted.spec.active is False
    return replace(
        found,
        labels=top.labels,
        annotations=top.annotations,
        created=top.created,
        replicas=top.replicas,
        suspended=True if inactive else top.suspended,
        loses=top.loses,
    )


def _queue(item: Climbed, admitted: Owner | None) -> str:
    """Kueue's queue, else the scheduler's, of the topmost owner that names one."""
    spec: kueue.WorkloadSpec | None = admitted.spec if admitted is not None else None
    if spec is not None and spec.queue_name:
        return spec.queue_name
    chain = tuple(reversed(item.reached.chain))
    managed = next((owner.labels[kueue.QUEUE] for owner in chain if owner.labels.get(kueue.QUEUE)), "")
    scheduled = next((owner.spec.queue for owner in chain if owner.spec.queue), "")
    own = (item.member.mark(framework.queues) for framework in FRAMEWORKS)
    return managed or scheduled or next((found[1] for found in own if found), "")
