"""Where the volumes are that Pods with accelerators claim, or can be made, as kube-scheduler (1.36) sees it:
VolumeBinding, VolumeZone, VolumeRestrictions, NodeVolumeLimits. Nothing is listed while no such Pod has a claim.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from itertools import chain, product
from typing import Protocol, TypeVar

import msgspec

from gpuwatch.facts.frameworks.framework import Kind
from gpuwatch.facts.frameworks.owner import OwnerRef, Wire
from gpuwatch.facts.model.cluster import HOSTNAME, ClaimedVolume, FreeVolume, NodeTerm, Requirement
from gpuwatch.facts.model.selectors import labels_match
from gpuwatch.sources.kube import kinds, wire
from gpuwatch.sources.kube.decode import Listing, Take
from gpuwatch.sources.kube.pods import ClaimUse, HeldPod, OtherPod
from gpuwatch.sources.kube.resources import quantity

T = TypeVar("T")
_REPLACED = {
    f"failure-domain.beta.kubernetes.io/{name}": f"topology.kubernetes.io/{name}" for name in ("zone", "region")
}
"""Label of a zone or region → the label that replaced it."""
_ZONES = (*_REPLACED, *_REPLACED.values())
_IN_TREE, _NO_PROVISIONER = "kubernetes.io/", "kubernetes.io/no-provisioner"
"""What begins the name of each provisioner that is no CSI driver's; and the name of the one that makes nothing."""
_ANY, _LIVE = "*", ("Pending", "Running")


class _Annotations(Wire, frozen=True):
    bound: str | None = msgspec.field(default=None, name="pv.kubernetes.io/bind-completed")
    selected_node: str | None = msgspec.field(default=None, name="volume.kubernetes.io/selected-node")


class _Metadata(Wire, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] | None = None
    annotations: _Annotations | None = None
    owner_references: list[OwnerRef] | None = None


class _Phase(Wire, frozen=True):
    phase: str = ""


class _Claim(Wire, frozen=True):
    metadata: _Metadata
    spec: wire.VolumeClaimSpec = wire.VolumeClaimSpec()
    status: _Phase = _Phase()


class _Csi(Wire, frozen=True):
    driver: str = ""
    volume_handle: str = ""


class _VolumeSpec(Wire, frozen=True):
    """The last three are the sources that are what they say. Others may be handed to a CSI driver as another volume; a
    hostPath is another folder on each Node."""

    capacity: wire.Quantities | None = None
    access_modes: list[str] | None = None
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    node_affinity: dict[str, wire.NodeSelector | None] | None = None
    claim_ref: wire.WireName | None = None
    csi: _Csi | None = None
    local: dict[str, msgspec.Raw] | None = None
    nfs: dict[str, msgspec.Raw] | None = None

    @property
    def plain(self) -> bool:
        return any(each is not None for each in (self.csi, self.local, self.nfs))

    @property
    def terms(self) -> tuple[NodeTerm, ...] | None:
        """The scheduler compares labels alone, so a term on a Node's name matches none."""
        needed = (self.node_affinity or {}).get("required")
        found = (needed.node_selector_terms or ()) if needed else ()
        made = tuple(NodeTerm(() if term.match_fields else term.match_expressions or ()) for term in found)
        return made if needed else None


class _Volume(Wire, frozen=True):
    metadata: _Metadata
    spec: _VolumeSpec = _VolumeSpec()
    status: _Phase = _Phase()


class _Allowed(Wire, frozen=True):
    key: str
    values: tuple[str, ...] = ()


class _StorageClass(Wire, frozen=True):
    metadata: _Metadata
    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: list[dict[str, list[_Allowed] | None]] | None = None


class _CsiDriverSpec(Wire, frozen=True):
    storage_capacity: bool | None = None
    prevent_pod_scheduling_if_missing: bool | None = None


class _CsiDriver(Wire, frozen=True):
    metadata: _Metadata
    spec: _CsiDriverSpec = _CsiDriverSpec()


class _NodeDriver(Wire, frozen=True):
    name: str
    allocatable: dict[str, int | None] | None = None


class _CsiNode(Wire, frozen=True):
    metadata: _Metadata
    spec: dict[str, list[_NodeDriver] | None] = msgspec.field(default_factory=dict)


class _AttachmentSpec(Wire, frozen=True):
    attacher: str = ""
    node_name: str = ""
    source: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)


class _Attachment(Wire, frozen=True):
    spec: _AttachmentSpec = _AttachmentSpec()


class _Lists(Protocol):
    def __call__(self, kind: Kind, take: Take[T]) -> Listing[T]: ...


class _UnknownError(Exception):
    """What a claim asks of Nodes is not known. The message says what gpuwatch does not know."""


@dataclass(frozen=True, slots=True)
class Volumes:
    """What was listed. drivers, nodes, attachments: None where one of the three was not read. whole: each object was
    decoded. users: how many Pods have the claim."""

    claims: Mapping[str, _Claim]  # by namespace/name
    volumes: Mapping[str, _Volume]
    free: Mapping[str, Sequence[_Volume]]  # without a claim, or meant for one that is not bound yet: by class, by size
    classes: Mapping[str, _StorageClass]
    drivers: Mapping[str, _CsiDriverSpec] | None
    nodes: Sequence[_CsiNode] | None
    attachments: Sequence[_AttachmentSpec] | None
    whole: bool
    users: Mapping[str, int]

    def resolved(self, item: HeldPod) -> HeldPod:
        """The Pod with what its claims ask of Nodes. Claims for which that is not known stay fields that are not
        modelled."""
        place, sized = item.pod.placement, dict[str, tuple[Decimal, ClaimedVolume]]()
        unmodelled = [*place.unmodelled]
        for use in item.claims:
            field = f"spec.volumes[{use.volume}].{'ephemeral' if use.template else 'persistentVolumeClaim'}"
            unmodelled = [each for each in unmodelled if not each.startswith(field)]
            claim = f"{item.pod.namespace}/{use.claim}"
            try:
                sized[claim] = self._asks(item, use, claim)
            except _UnknownError as error:
                unmodelled.append(f"{field}: gpuwatch does not know {error}, of claim {claim}")
                sized[claim] = Decimal(0), ClaimedVolume(claim=claim, driver=self._attached_as(claim)[0].strip(_ANY))
        volumes = tuple(each for _, each in sorted(sized.values(), key=lambda each: each[0]))
        placement = replace(place, volumes=volumes, unmodelled=tuple(unmodelled))
        return replace(item, pod=replace(item.pod, placement=placement)) if volumes else item

    def _asks(self, item: HeldPod, use: ClaimUse, place: str) -> tuple[Decimal, ClaimedVolume]:
        """With the bytes by which the scheduler sorts claims that have no volume."""
        claim = self.claims.get(place)
        # A Pod that is to run elsewhere is another Pod, which gets another claim by the template.
        if use.template and (claim is None or item.pod.node):
            return self._unbound(use.template, None, place)
        owners = [each.uid for each in (claim.metadata.owner_references if claim else None) or () if each.controller]
        volume = self.volumes.get((claim.spec.volume_name if claim else None) or "")
        never = ""
        if claim is None:
            never = "does not exist"
        elif claim.status.phase == "Lost" or (claim.spec.volume_name and volume is None):
            never = "has lost its volume"
        elif claim.metadata.deletion_timestamp:
            never = "is being deleted"
        elif use.template and item.pod.uid not in owners:
            never = "is not that of the Pod"
        elif volume and not (claim.metadata.annotations and claim.metadata.annotations.bound):
            never = "is not bound to its volume yet"
        if never or claim is None:
            if not self.whole:
                raise _UnknownError("all volumes, claims and StorageClasses")
            return Decimal(0), ClaimedVolume(claim=place, terms=(), where=never)
        alone = not use.template and "ReadWriteOncePod" in (claim.spec.access_modes or ())
        if volume is None:
            size, asks = self._unbound(claim.spec, claim, place)
            return size, replace(asks, alone=alone)
        spec, driver = volume.spec, self._attached_as(place)[0]
        if not spec.plain:
            raise _UnknownError("on which Nodes a volume of this kind can be")
        if spec.csi and self.users[place] > 1 and set(claim.spec.access_modes or ()) <= {"ReadWriteOnce"}:
            # The scheduler does not ask, but the volume is attached to one Node at a time.
            raise _UnknownError("with which Pods it is to be on one Node")
        self._check(driver)
        # Of volumes of templates the scheduler does not compare zones.
        zones = _zones({} if use.template else volume.metadata.labels or {})
        both = product((term.labels for term in spec.terms) if spec.terms is not None else [()], zones)
        # A term without a requirement matches no Node.
        terms = tuple(NodeTerm((*of_node, *of_zone)) for of_node, of_zone in both if of_node or spec.terms is None)
        asks = ClaimedVolume(
            claim=place, terms=terms, where=f"is bound to {_words(volume)}", alone=alone, driver=driver
        )
        return Decimal(0), asks if zones != [()] or spec.terms is not None else replace(asks, terms=None)

    def _unbound(self, spec: wire.VolumeClaimSpec, claim: _Claim | None, place: str) -> tuple[Decimal, ClaimedVolume]:
        """claim: None where it is still to be made, by a template."""
        kind = self.classes.get(spec.storage_class_name or "")
        if kind is None or kind.volume_binding_mode != "WaitForFirstConsumer":
            if claim is None or not self.whole:
                raise _UnknownError("where its volume will be made")
            return Decimal(0), ClaimedVolume(claim=place, terms=(), where="is not bound to a volume")
        if self.users[place] > 1:
            raise _UnknownError("where its volume will be made, as several Pods wait for it")
        size = _size((spec.resources.requests if spec.resources else None) or {})
        notes = claim.metadata.annotations if claim else None
        on = (Requirement("metadata.name", "In", (notes.selected_node,)),) if notes and notes.selected_node else ()
        free = () if on else self._free(spec, claim, place, size)
        if kind.provisioner == _NO_PROVISIONER:
            return size, ClaimedVolume(claim=place, terms=(), free=free, where="finds no free volume")
        if kind.provisioner.startswith(_IN_TREE):
            raise _UnknownError(f"where {kind.provisioner} makes volumes")
        self._check(kind.provisioner)
        driver = (self.drivers or {}).get(kind.provisioner)
        if size and driver and driver.storage_capacity:
            raise _UnknownError(f"where {kind.provisioner} has space left")
        allowed = [
            tuple(Requirement(each.key, "In", each.values) for each in term.get("matchLabelExpressions") or ())
            for term in kind.allowed_topologies or ()
        ]
        terms = (
            tuple(NodeTerm(each, on) for each in allowed if each) if allowed else (NodeTerm((), on),) if on else None
        )
        where = f"gets its volume on Node {on[0].values[0]}" if on else "finds no volume, and none can be made"
        return size, ClaimedVolume(claim=place, terms=terms, free=free, where=where, driver=kind.provisioner)

    def _free(
        self, spec: wire.VolumeClaimSpec, claim: _Claim | None, place: str, size: Decimal
    ) -> tuple[FreeVolume, ...]:
        """In the order in which the scheduler takes them. One that is meant for the claim rules out others."""
        found = []
        wanted = spec.selector or wire.LabelSelector()
        for each in self.free[spec.storage_class_name or ""]:
            ref, it = each.spec.claim_ref, each.spec
            if (
                _size(it.capacity or {}) < size
                or (spec.volume_mode or "Filesystem") != (it.volume_mode or "Filesystem")
                or (spec.volume_attributes_class_name or "") != (it.volume_attributes_class_name or "")
                or each.metadata.deletion_timestamp
            ):
                continue
            volume = FreeVolume(each.metadata.name, it.terms)
            suits = set(spec.access_modes or ()) <= set(it.access_modes or ())
            if ref is not None:
                if f"{ref.namespace}/{ref.name}" == place and ref.uid in ("", claim.metadata.uid if claim else ""):
                    if not suits:
                        # The scheduler takes it, and the controller never binds it.
                        raise _UnknownError("whether its volume will be bound")
                    return (volume,)
            elif (
                suits
                and each.status.phase == "Available"
                and labels_match(each.metadata.labels or {}, wanted.match_labels or {}, wanted.match_expressions or ())
            ):
                found.append(volume)
        return tuple(found)

    def _check(self, driver: str) -> None:
        """Raises _UnknownError where it is not known on which Nodes the driver attaches a volume."""
        if driver and (self.drivers is None or self.nodes is None or self.attachments is None):
            raise _UnknownError("how many volumes Nodes can attach")
        if driver and (found := (self.drivers or {}).get(driver)) and found.prevent_pod_scheduling_if_missing:
            raise _UnknownError(f"which Nodes have {driver}")

    def _attached_as(self, place: str) -> tuple[str, str]:
        """The CSI driver that attaches the claim's volume, _ANY where that is not known; and the volume's name."""
        claim = self.claims.get(place)
        volume = self.volumes.get(claim.spec.volume_name or "") if claim else None
        if volume is not None:
            csi = volume.spec.csi or _Csi("" if volume.spec.plain else _ANY, volume.metadata.name)
            return csi.driver, csi.volume_handle
        kind = self.classes.get(claim.spec.storage_class_name or "") if claim else None
        made_by = kind.provisioner if kind else _NO_PROVISIONER
        return ("" if made_by == _NO_PROVISIONER else _ANY if made_by.startswith(_IN_TREE) else made_by), place

    def attachable(self, held: Iterable[HeldPod], others: Iterable[OtherPod]) -> dict[str, dict[str, int]]:
        """`attachable` of each Node with a bound for a driver that Pods with accelerators need."""
        needed = {each.driver for item in held for each in item.pod.placement.volumes if each.driver}
        limits = {
            node.metadata.name: {
                each.name: count
                for each in node.spec.get("drivers") or ()
                if each.name in needed and (count := (each.allocatable or {}).get("count")) is not None
            }
            for node in self.nodes or ()
        }
        own = {
            (item.pod.node, *self._attached_as(f"{item.pod.namespace}/{use.claim}"))
            for item in held
            for use in item.claims
        }
        used = {
            (item.node, *self._attached_as(f"{item.namespace}/{claim}"))
            for item in others
            if limits.get(item.node)
            for claim in item.claims
        }
        for at in self.attachments or ():
            name = msgspec.json.decode(at.source.get("persistentVolumeName", b"null"))
            volume = self.volumes.get(name or "")
            if volume is not None and volume.spec.csi:
                # What a Pod with accelerators has is detached when it leaves.
                used |= {(at.node_name, at.attacher, volume.spec.csi.volume_handle)} - own
        used |= {each for each in own if each[1] == _ANY}
        taken = Counter((node, driver) for node, driver, _ in used)
        return {
            node: {name: count - taken[node, name] - taken[node, _ANY] for name, count in found.items()}
            for node, found in limits.items()
            if found
        }


def _size(amounts: wire.Quantities) -> Decimal:
    return quantity(amounts.get("storage", 0))


def _zones(labels: Mapping[str, str]) -> list[tuple[Requirement, ...]]:
    """What lets a Node have a volume with these labels; one has to hold. A Node without a zone has it too."""
    asked = {key: tuple(labels[key].split("__")) for key in _ZONES if key in labels}
    ways: list[list[tuple[Requirement, ...]]] = []
    for key, values in asked.items():
        ways.append([(Requirement(key, "In", values),)])
        if key in _REPLACED:
            ways[-1].append((Requirement(key, "DoesNotExist"), Requirement(_REPLACED[key], "In", values)))
    found = [tuple(chain(*way)) for way in product(*ways)]
    return [*found, tuple(Requirement(key, "DoesNotExist") for key in _ZONES)] if asked else found


def _words(volume: _Volume) -> str:
    """Where it is: 'a volume in zone b'."""
    asked = [
        (each.key, each.values) for term in volume.spec.terms or () for each in term.labels if each.operator == "In"
    ]
    asked += [(key, tuple(value.split("__"))) for key, value in (volume.metadata.labels or {}).items() if key in _ZONES]
    for key, values in asked:
        if key == HOSTNAME or key in _ZONES:
            place = "on Node" if key == HOSTNAME else f"in {key.rpartition('/')[2]}"
            return f"a volume {place} {' or '.join(values)}"
    return f"volume {volume.metadata.name}, which other Nodes have"


def read_volumes(lists: _Lists, held: Sequence[HeldPod], others: Sequence[OtherPod]) -> Volumes | None:
    """None where no Pod with accelerators has a claim, or claims, volumes or StorageClasses could not be read."""
    if not any(item.claims for item in held):
        return None
    claims = lists(kinds.VOLUME_CLAIM, msgspec.json.Decoder(_Claim).decode)
    volumes = lists(kinds.VOLUME, msgspec.json.Decoder(_Volume).decode)
    classes = lists(kinds.STORAGE_CLASS, msgspec.json.Decoder(_StorageClass).decode)
    if claims.failure or volumes.failure or classes.failure:
        return None
    drivers = lists(kinds.CSI_DRIVER, msgspec.json.Decoder(_CsiDriver).decode)
    nodes = lists(kinds.CSI_NODE, msgspec.json.Decoder(_CsiNode).decode)
    attachments = lists(kinds.ATTACHMENT, msgspec.json.Decoder(_Attachment).decode)
    free = defaultdict[str, list[_Volume]](list)
    for each in sorted(volumes.items, key=lambda each: _size(each.spec.capacity or {})):
        if each.status.phase != "Bound":
            free[each.spec.storage_class_name or ""].append(each)
    users = Counter(
        f"{item.pod.namespace}/{use.claim}" for item in held if item.pod.phase in _LIVE for use in item.claims
    )
    users.update(f"{item.namespace}/{claim}" for item in others for claim in item.claims)
    return Volumes(
        claims={f"{each.metadata.namespace}/{each.metadata.name}": each for each in claims.items},
        volumes={each.metadata.name: each for each in volumes.items},
        free=free,
        classes={each.metadata.name: each for each in classes.items},
        drivers=None if drivers.failure else {each.metadata.name: each.spec for each in drivers.items},
        nodes=None if nodes.failure else nodes.items,
        attachments=None if attachments.failure else [each.spec for each in attachments.items],
        whole=not (claims.bad or volumes.bad or classes.bad),
        users=users,
    )
