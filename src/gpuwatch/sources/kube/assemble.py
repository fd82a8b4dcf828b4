"""From raw objects, of live lists or recorded files, to a Cluster."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol, TypeVar

from gpuwatch.facts.frameworks import WRITTEN, kueue
from gpuwatch.facts.frameworks.fights import AUTOSCALERS, is_scaled
from gpuwatch.facts.frameworks.framework import Kind
from gpuwatch.facts.frameworks.objects import KindKey, Object
from gpuwatch.facts.frameworks.owner import Owner
from gpuwatch.facts.frameworks.recognise import GangObjects, Member, group_kinds
from gpuwatch.facts.frameworks.release import MARKS
from gpuwatch.facts.model.cluster import Cluster, FactKind, OwnerStatus, Unread, Workload
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.kube import kinds
from gpuwatch.sources.kube.bystanders import bystanders_of
from gpuwatch.sources.kube.claims import (
    Claim,
    SliceSpec,
    claimed_devices,
    device_uuids,
    published,
    take_claim,
    take_rule,
    take_slice,
)
from gpuwatch.sources.kube.decode import Listing, Take, take_budget, take_namespace, take_quota
from gpuwatch.sources.kube.nodes import node_names, take_node
from gpuwatch.sources.kube.owners import (
    TakeOwner,
    assign_companions,
    assign_workloads,
    climb_all,
    judge_releases,
    read_owners,
    take_autoscaler,
)
from gpuwatch.sources.kube.pods import HeldPod, OtherPod, companion, exporter_nodes, take_pod, with_others
from gpuwatch.sources.kube.reader import ClusterError
from gpuwatch.sources.kube.volumes import read_volumes

T = TypeVar("T")

# By how much this machine's clock may lag behind the API server's.
_CLOCK_SLACK = timedelta(seconds=60)


class Source(Protocol):
    def objects(self, kind: Kind, take: Take[T], version: str = "") -> Listing[T]:
        """All objects of the kind in all Namespaces, decoded by `take`. version: the one that an owner reference names.
        Errors are returned in the Listing, not raised."""


@dataclass(slots=True)
class _ReadProgress:
    source: Source
    gaps: list[Gap] = field(default_factory=list)
    answered: int = 0
    unread: dict[tuple[FactKind, str], Unread] = field(default_factory=dict)

    def objects(
        self, fact: FactKind, kind: Kind, take: Take[T], *, optional: bool = False, places: Iterable[str] = ("",)
    ) -> Listing[T]:
        """optional: a kind that the cluster does not serve is no gap. places: what depends on it, as in `lose`; () if
        nothing shows that the kind is in use: a failure is then a gap for people alone."""
        found = self.source.objects(kind, take)
        self.gaps += found.bad
        self.lose(fact, found.bad_places, " ".join(gap.detail for gap in found.bad))
        if found.failure is None:
            self.answered += 1
        elif not (optional and found.failure.kind is GapKind.NOT_SERVED):
            self.gaps.append(found.failure)
            # A kind that is not served has no objects: Pods may have the label of a PodGroup without its controller.
            if not (fact is FactKind.GANGS and found.failure.kind is GapKind.NOT_SERVED):
                self.lose(fact, places, found.failure.detail)
        return found

    def aside(self, kind: Kind, take: Take[T]) -> Listing[T]:
        """Objects whose absence makes nothing else unknown: a failure is a gap for people alone."""
        found = self.source.objects(kind, take)
        self.gaps += found.bad
        if found.failure is not None and found.failure.kind is not GapKind.NOT_SERVED:
            self.gaps.append(found.failure)
        return found

    def lose(self, fact: FactKind, places: Iterable[str], why: str) -> None:
        """places: namespace/name of missing objects, '' if unknown."""
        for place in places:
            namespace = place if fact is FactKind.NAMESPACES else place.rpartition("/")[0]
            self.unread.setdefault((fact, namespace), Unread(fact, namespace, why))


def read_cluster(source: Source, now: datetime) -> Cluster:
    """Raises ClusterError when no list could be read."""
    reading = _ReadProgress(source)
    nodes = reading.objects(FactKind.NODES, kinds.NODE, take_node)
    pods = reading.objects(FactKind.PODS, kinds.POD, take_pod)
    budgets = reading.objects(FactKind.BUDGETS, kinds.BUDGET, take_budget)
    # Every API server serves it. Only a recording may lack it, and nothing is done in a recorded cluster.
    quotas = reading.objects(FactKind.QUOTAS, kinds.QUOTA, take_quota, optional=True)
    namespaces = reading.objects(FactKind.NAMESPACES, kinds.NAMESPACE, take_namespace)
    if not reading.answered:
        raise ClusterError("; ".join(f"{gap.what}: {gap.detail}" for gap in reading.gaps))
    exporters = [taken.exporter for taken in pods.items if taken.exporter is not None]
    held = _existing_at(now, [taken.held for taken in pods.items if taken.held is not None], reading)
    without = [taken.other for taken in pods.items if taken.other is not None]
    volumes = read_volumes(reading.aside, held, without)
    held = [volumes.resolved(item) for item in held] if volumes else held
    admitted = reading.objects(FactKind.GANGS, kueue.WORKLOAD, TakeOwner(kueue.WORKLOAD), optional=True)
    reading.gaps += [item.misread for item in admitted.items if item.misread]
    gpu_nodes = {item.node.name for item in nodes.items if item.offers}
    others = _companions(held, without, gpu_nodes)
    index = read_owners(held, lambda kind, version, uids: source.objects(kind, TakeOwner(kind, uids), version), others)
    reading.gaps += index.gaps
    climbed = climb_all(held, index)
    beside = climb_all(others, index)
    reading.lose(FactKind.OWNERS, index.bad_places, " ".join(gap.detail for gap in index.gaps))
    for end in (*climbed, *beside):
        if end.reached.status is OwnerStatus.FORBIDDEN and end.reached.ref is not None:
            # The owner that was not read may own any Pod of its Namespace.
            ref = end.reached.ref
            why = f"{ref.kind} {ref.name}: {index.unread.get((ref.group, ref.kind), '')}"
            reading.lose(FactKind.OWNERS, (end.held.pod.ref,), why)
    objects = _gang_objects(reading, admitted.items, [item.member for item in climbed])
    tied, workloads, gangs = assign_workloads(climbed, objects)
    tops = [item.reached.chain[-1] for item in climbed if item.reached.status is OwnerStatus.FOUND]
    workloads = judge_releases(workloads, tops, tuple(objects.by_name.values()), _autoscalers(reading, tops))
    claims, slices = _claims(reading, held)
    # Without slices no rule withholds anything. Rules are for people alone: nothing is decided by them.
    rules = (
        reading.objects(FactKind.CLAIMS, kinds.DEVICE_TAINT, take_rule, optional=True, places=()) if slices else None
    )
    gpus = published(slices or (), [rule for rule in rules.items if rule is not None] if rules else ())
    attachable = volumes.attachable(held, without) if volumes else {}
    addresses, shared = node_names(nodes.items)
    reading.gaps += shared
    return Cluster(
        nodes=with_others(
            (
                replace(
                    item.node,
                    published=None if slices is None else gpus.get(item.node.name, {}),
                    attachable=attachable.get(item.node.name, {}),
                )
                for item in nodes.items
            ),
            without,
        ),
        pods=tied,
        companions=tuple(
            pod for pod in assign_companions(beside, climbed, tied, objects) if pod.workload or pod.node in gpu_nodes
        ),
        bystanders=bystanders_of(held, without),
        workloads=workloads,
        marked=tuple(_marked((*index.by_uid.values(), *admitted.items))),
        gangs=gangs,
        budgets=tuple(budgets.items),
        quotas=tuple(quotas.items),
        namespaces=tuple(namespaces.items),
        claims=claimed_devices(claims, device_uuids(slices or ())),
        exporter_nodes=exporter_nodes(exporters),
        # A Pod that requests accelerators is a workload, even when one of its containers is an exporter.
        exporter_pods=tuple(sorted(item.exporter.ref for item in pods.items if item.exporter and not item.held)),
        exporter_urls={
            url: at.node for item in pods.items if not item.held and (at := item.exporter) for url in at.urls
        },
        node_addresses=addresses,
        gaps=tuple(reading.gaps),
        unread=tuple(reading.unread.values()),
        known=pods.failure is None,
    )


def _marked(owners: Iterable[Owner]) -> Iterable[Workload]:
    for each in owners:  # a Deployment's ReplicaSets have copies of its annotations
        top = each.controller is None or each.key == kueue.WORKLOAD.key
        if top and not each.annotations.keys().isdisjoint(MARKS):
            version, space = WRITTEN[each.key].api_version, each.namespace
            id_ = f"{each.kind}/{space}/{each.name}"
            yield Workload(id=id_, kind=each.kind, api_version=version, namespace=space, name=each.name, uid=each.uid)


def _companions(held: Sequence[HeldPod], others: Sequence[OtherPod], gpu_nodes: Collection[str]) -> list[HeldPod]:
    """Pods without accelerators that an action on the others may end: of their Namespaces, or on GPU Nodes."""
    spaces = {item.pod.namespace for item in held}
    return [companion(item) for item in others if item.namespace in spaces or item.node in gpu_nodes]


def _existing_at(now: datetime, held: Sequence[HeldPod], reading: _ReadProgress) -> list[HeldPod]:
    """Pods that existed at `now`; a Gap counts the later ones."""
    limit = now + _CLOCK_SLACK
    kept = [item for item in held if item.pod.created is None or item.pod.created <= limit]
    if len(kept) < len(held):
        newest = max(item.pod.created for item in held if item.pod.created is not None)
        detail = (
            f"{len(held) - len(kept)} Pods were created after {now:%Y-%m-%d %H:%M:%S %Z}, the newest at "
            f"{newest:%Y-%m-%d %H:%M:%S %Z}, and are left out. If they should count, check this machine's clock."
        )
        reading.gaps.append(Gap(kind=GapKind.CLOCK, what="Pods", detail=detail))
        known = {item.pod.ref for item in kept}
        reading.lose(FactKind.PODS, (item.pod.ref for item in held if item.pod.ref not in known), detail)
    return kept


def _gang_objects(reading: _ReadProgress, admitted: Sequence[Owner], members: Sequence[Member]) -> GangObjects:
    by_name: dict[tuple[KindKey, str, str], Owner] = {}
    by_job: dict[tuple[str, str], Owner] = {}
    for item in admitted:
        by_name[item.key, item.namespace, item.name] = item
        job = item.labels.get("kueue.x-k8s.io/job-uid") or (item.controller.uid if item.controller else "")
        if job:
            by_job[item.namespace, job] = item
    for kind in group_kinds(members):
        for item in reading.objects(FactKind.GANGS, kind, TakeOwner(kind)).items:
            by_name[item.key, item.namespace, item.name] = item
    return GangObjects(by_job, by_name)


def _autoscalers(reading: _ReadProgress, tops: Iterable[Owner]) -> list[Object]:
    """Listed only where some owners of GPU Pods may have one."""
    scaled = sorted({f"{top.namespace}/{top.name}" for top in tops if is_scaled(top.key)})
    found: list[Object] = []
    for kind in AUTOSCALERS if scaled else ():
        take = partial(take_autoscaler, kind)
        found += reading.objects(FactKind.AUTOSCALERS, kind, take, optional=True, places=scaled).items
    return found


def _claims(reading: _ReadProgress, held: Sequence[HeldPod]) -> tuple[Sequence[Claim], list[SliceSpec] | None]:
    """None: the slices could not be read. A kind that is not served has no objects."""
    # A Pod names its claims. Where none has one, no Pod holds a device by DRA, whatever the list would say.
    used = any(item.pod.claims for item in held)
    claims = reading.objects(FactKind.CLAIMS, kinds.CLAIM, take_claim, optional=not used, places=("",) if used else ())
    of_claims = ("",) if claims.items else ()
    slices = reading.objects(FactKind.CLAIMS, kinds.SLICE, take_slice, optional=not of_claims, places=of_claims)
    unread = slices.failure is not None and slices.failure.kind is not GapKind.NOT_SERVED
    return claims.items, None if unread else [spec for spec in slices.items if spec is not None]
