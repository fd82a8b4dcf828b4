"""The walk from a Pod to its top controller, which lists each kind once, level by level; each Pod's Workload by the end
of its walk; and the gangs among the Pods."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Generic, TypeVar

import msgspec

from gpuwatch.facts.frameworks import FRAMEWORKS, WRITTEN, kueue
from gpuwatch.facts.frameworks.fights import PAUSED, Surroundings, alone, may_release
from gpuwatch.facts.frameworks.framework import Kind, ReleaseRule
from gpuwatch.facts.frameworks.objects import KindKey, Object, key_of
from gpuwatch.facts.frameworks.owner import Owner, OwnerRef, OwnerSpec, OwnerState, Wire
from gpuwatch.facts.frameworks.recognise import (
    GangObjects,
    Member,
    Membership,
    kueue_workload,
    priority,
    recognise,
    unscheduled,
)
from gpuwatch.facts.frameworks.release import ended
from gpuwatch.facts.model.cluster import Assigned, Gang, OwnerStatus, Pod, Workload
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.kube.decode import Listing, decode_bare, own_annotations, part
from gpuwatch.sources.kube.kinds import LISTED_OWNERS
from gpuwatch.sources.kube.pods import HeldPod
from gpuwatch.sources.kube.wire import Metadata

# No real chain is longer; the bound ends circular ownership.
_MAX_DEPTH = 12
_ENDED = ("Succeeded", "Failed")

S = TypeVar("S", bound=OwnerSpec)


class WireOwner(Wire, Generic[S], frozen=True):
    metadata: Metadata
    spec: S | None = None
    status: OwnerState = OwnerState()


@cache
def _decoder(spec: type[S]) -> msgspec.json.Decoder[WireOwner[S]]:
    return msgspec.json.Decoder(WireOwner[spec])  # type: ignore[valid-type]


@dataclass(frozen=True, slots=True)
class Reached:
    """Where the walk from one Pod ended. chain: the owners that were found, from the Pod upwards. ref: the owner that
    was not found or is of an unknown kind; None when `chain` ends at the top. api_version: of the top, by the reference
    to it."""

    status: OwnerStatus
    chain: tuple[Owner, ...] = ()
    ref: OwnerRef | None = None
    api_version: str = "v1"


ListOwners = Callable[[Kind, str, frozenset[str]], Listing[Owner]]
"""(kind, version that a reference names, wanted uids or none for all) → the owners of that kind."""


@dataclass(frozen=True, slots=True)
class TakeOwner:
    """Decodes one kind's objects and keeps the wanted uids, all if none is given, and objects without a uid."""

    kind: Kind
    wanted: frozenset[str] = frozenset()

    def __call__(self, raw: msgspec.Raw) -> Owner | None:
        kind = self.kind
        found = _decoder(kind.spec).decode(raw)
        meta, spec = found.metadata, found.spec or kind.spec()
        released = isinstance(kind.release, ReleaseRule)
        if self.wanted and meta.uid and meta.uid not in self.wanted:
            return None
        whole = take_whole(kind, raw) if released else {}
        assigned, misread = _assigned(kind, raw, f"{meta.namespace}/{meta.name}")
        return Owner(
            group=kind.group,
            kind=kind.kind,
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            labels=meta.labels or {},
            annotations=own_annotations(meta.annotations),
            created=meta.creation_timestamp,
            controller=meta.controller,
            spec=spec,
            replicas=kind.replicas(spec) if kind.replicas else None,
            suspended=kind.suspended(spec, meta.annotations or {}) if kind.suspended else None,
            unscheduled=kind.unscheduled(found.status) if kind.unscheduled else "",
            loses=kind.release.deletes.refusal(whole) if isinstance(kind.release, ReleaseRule) else None,
            alone=alone(whole) if released else (),
            ended=released and ended(whole),
            retries=kind.retries(spec, found.status) if kind.retries else None,
            assigned=assigned,
            misread=misread,
        )


def take_whole(kind: Kind, raw: msgspec.Raw) -> Object:
    """The object with its kind, which the items of a list lack."""
    return {"apiVersion": kind.api_version, "kind": kind.kind, **msgspec.json.decode(raw)}


def take_autoscaler(kind: Kind, raw: msgspec.Raw) -> Object:
    """As much of it as `may_release` asks for: its status changes all the time."""
    meta, spec = decode_bare(raw).metadata, part(raw, "/spec", dict) or {}
    paused = {key: value for key, value in (meta.annotations or {}).items() if key.startswith(PAUSED)}
    kept = {key: spec[key] for key in ("minReplicas", "maxReplicas") if key in spec}
    target = msgspec.convert(spec.get("scaleTargetRef") or {}, dict[str, str])
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": meta.name, "namespace": meta.namespace, "annotations": paused},
        "spec": {"scaleTargetRef": target, **kept},
    }


def _assigned(kind: Kind, raw: msgspec.Raw, of: str) -> tuple[Assigned | None, Gap | None]:
    """`Owner.assigned` and `Owner.misread`. What could not be understood counts as assigned, to Nodes not known."""
    if kind.assigned is None:
        return None, None
    try:
        return kind.assigned(part(raw, "/status", dict) or {}), None
    except (AttributeError, LookupError, TypeError, ValueError, msgspec.DecodeError) as error:
        why = f"Only its Pods show where Kueue placed it: its status is not understood ({error!r})."
        return Assigned(), Gap(kind=GapKind.BAD_INPUT, what=f"{kind.kind} {of}", detail=why)


@dataclass(slots=True)
class OwnerIndex:
    """Owners that were read. whole: kinds that were read completely; unread: kinds whose list failed, and why.
    bad_places: namespace/name of owners that could not be decoded."""

    by_uid: dict[str, Owner] = field(default_factory=dict)
    by_name: dict[tuple[KindKey, str, str], Owner] = field(default_factory=dict)
    whole: set[KindKey] = field(default_factory=set)
    unread: dict[KindKey, str] = field(default_factory=dict)
    bad_places: set[str] = field(default_factory=set)
    gaps: list[Gap] = field(default_factory=list)

    def add(self, owner: Owner) -> None:
        if owner.uid:
            self.by_uid[owner.uid] = owner
        self.by_name[owner.key, owner.namespace, owner.name] = owner

    def find(self, ref: OwnerRef, namespace: str) -> Owner | None:
        """By uid; by name only when one side has no uid, because a new object may have the owner's name. As for
        Kubernetes' garbage collector, an owner is in the dependant's Namespace or cluster-scoped, and has the
        reference's kind and name: a user who may create a Pod can write any uid into it."""
        found = self.by_uid.get(ref.uid) if ref.uid else None
        if found is not None:
            named = (found.group, found.kind, found.name) == (ref.group, ref.kind, ref.name)
            return found if named and found.namespace in (namespace, "") else None
        for place in (namespace, ""):  # a cluster-scoped owner has no Namespace
            namesake = self.by_name.get(((ref.group, ref.kind), place, ref.name))
            if namesake is not None and not (ref.uid and namesake.uid):
                return namesake
        return None


def climb(index: OwnerIndex, ref: OwnerRef | None, namespace: str) -> Reached:
    chain: list[Owner] = []
    api_version = "v1"
    while ref is not None:
        key = (ref.group, ref.kind)
        if key == ("apps", "DaemonSet"):
            return Reached(OwnerStatus.DAEMON, tuple(chain), ref)
        owner = index.find(ref, namespace)
        if owner is None and ref.uid in index.by_uid:
            return Reached(OwnerStatus.FOREIGN, tuple(chain), ref)
        if owner is None and key not in LISTED_OWNERS:
            return Reached(OwnerStatus.UNKNOWN_KIND, tuple(chain), ref)
        if owner is None and key in index.unread:
            return Reached(OwnerStatus.FORBIDDEN, tuple(chain), ref)
        if owner is None or owner in chain or len(chain) == _MAX_DEPTH:
            return Reached(OwnerStatus.MISSING, tuple(chain), ref)
        chain.append(owner)
        api_version, ref, namespace = ref.api_version, owner.controller, owner.namespace
    # A bare Pod may own other Pods, such as a Spark driver without its application.
    bare = not chain or chain[-1].key == ("", "Pod")
    return Reached(OwnerStatus.BARE if bare else OwnerStatus.FOUND, tuple(chain), None, api_version)


def read_owners(pods: Sequence[HeldPod], listed: ListOwners, beside: Sequence[HeldPod] = ()) -> OwnerIndex:
    """Lists the kinds between these Pods and their top controllers, level by level. beside: Pods without accelerators.
    Of kinds that are read without a spec (ReplicaSets: ten for each Deployment) only the wanted owners are kept. Such a
    kind is listed again when a higher level needs it too."""
    index = OwnerIndex()
    for item in pods:
        pod = item.pod
        index.add(Owner("", "Pod", pod.namespace, pod.name, pod.uid, pod.labels, controller=item.controller))
    every = (*pods, *beside)
    starts = {(item.controller, item.pod.namespace) for item in every if item.controller and not item.static}
    asked: set[tuple[KindKey, str, str]] = set()
    for _ in range(_MAX_DEPTH):
        wanted: dict[KindKey, list[OwnerRef]] = {}
        for ref, namespace in starts:
            end = climb(index, ref, namespace)
            if end.status is OwnerStatus.MISSING and end.ref is not None:
                key = (end.ref.group, end.ref.kind)
                question = (key, namespace, end.ref.uid or end.ref.name)
                if question not in asked:
                    asked.add(question)
                    wanted.setdefault(key, []).append(end.ref)
        if not wanted:
            break
        for key in sorted(wanted.keys() - index.whole):
            _read_kind(index, LISTED_OWNERS[key], wanted[key], listed)
    return index


def _read_kind(index: OwnerIndex, kind: Kind, refs: Sequence[OwnerRef], listed: ListOwners) -> None:
    uids = {ref.uid for ref in refs}
    select = frozenset() if not kind.metadata_only or "" in uids else frozenset(uids)
    listing = listed(kind, refs[0].version, select)
    index.gaps.extend(listing.bad)
    index.bad_places |= listing.bad_places
    if listing.failure is not None:
        index.unread[kind.key] = listing.failure.detail
        index.gaps.append(listing.failure)
    elif not select:
        index.whole.add(kind.key)
    for owner in listing.items:
        index.add(owner)


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
    gangs: dict[str, tuple[Membership, Member, list[Pod]]] = {}
    for at, item in enumerate(climbed):
        pod = item.held.pod
        # A Pod that ended holds no device and is no longer a member.
        membership = recognise(item.member, objects) if pod.phase not in _ENDED else None
        counts = priority(item.member, pod.priority, objects)
        pod = replace(pod, workload=owner_ids[at], gang=membership.id if membership else "", priority=counts)
        pods.append(pod)
        if membership is not None:
            if membership.id not in gangs:
                gangs[membership.id] = (membership, item.member, [])
            gangs[membership.id][2].append(pod)
    return tuple(pods), tuple(ids.workloads.values()), tuple(_gang(objects, *found) for found in gangs.values())


def judge_releases(
    workloads: Sequence[Workload], tops: Sequence[Owner], groups: Sequence[Owner], autoscalers: Sequence[Object]
) -> tuple[Workload, ...]:
    """These Workloads with `unreleasable`. groups: Kueue's Workloads and PodGroups."""
    known = {(owner.key, owner.namespace, owner.name): owner for owner in (*tops, *groups)}
    around: dict[str, list[Object]] = {}
    for group in groups:
        if group.controller is not None and not group.ended:
            around.setdefault(group.controller.uid, []).append(
                _bare(group, WRITTEN[group.key].api_version if group.key in WRITTEN else group.group + "/")
            )
    for item in autoscalers:
        around.setdefault(f"{item['metadata']['namespace']}/{item['spec']['scaleTargetRef'].get('name')}", []).append(
            item
        )

    def judged(workload: Workload) -> Workload:
        owner = known.get((workload.key, workload.namespace, workload.name))
        if owner is None or workload.status is not OwnerStatus.FOUND:
            return workload
        near = (*around.get(owner.uid, ()), *around.get(f"{owner.namespace}/{owner.name}", ()))
        answer = may_release(_bare(owner, workload.api_version), Surroundings(near), lambda it: known[_at(it)].alone)
        return replace(workload, unreleasable=" ".join(answer.no))

    return tuple(map(judged, workloads))


def _at(object_: Object) -> tuple[KindKey, str, str]:
    return key_of(object_), object_["metadata"]["namespace"], object_["metadata"]["name"]


def _bare(owner: Owner, api_version: str) -> Object:
    """As much of the object as `may_release` asks for beside `Owner.alone`."""
    above = [{"uid": owner.controller.uid}] if owner.controller is not None else []
    names = {"name": owner.name, "namespace": owner.namespace, "uid": owner.uid, "labels": dict(owner.labels)}
    return {"apiVersion": api_version, "kind": owner.kind, "metadata": {**names, "ownerReferences": above}}


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
        counts = priority(item.member, item.held.pod.priority, objects)
        found.append(replace(item.held.pod, workload=owner, gang=gang, priority=counts))
    return found


def _gang(objects: GangObjects, membership: Membership, member: Member, pods: Sequence[Pod]) -> Gang:
    admitted = kueue_workload(member, objects)
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
        unscheduled=unscheduled(member, objects),
        assigned=admitted.assigned if admitted is not None else None,
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
        retries=top.retries,
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
