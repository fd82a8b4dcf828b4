"""Pods that request accelerators, Pods of GPU exporters, and the other Pods' CPU and memory."""

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar

import msgspec

from gpuwatch.facts.frameworks.owner import OwnerRef
from gpuwatch.facts.model.cluster import (
    ClaimedVolume,
    HeldDevice,
    HostPort,
    Node,
    Placement,
    Pod,
    PodTerm,
    Toleration,
)
from gpuwatch.facts.model.telemetry import PodRef
from gpuwatch.sources.kube import wire
from gpuwatch.sources.kube.decode import own_annotations
from gpuwatch.sources.kube.placement import anti_affinity, host_ports, placement, tolerations, unmodelled_fields
from gpuwatch.sources.kube.resources import accelerator_counts, names_accelerator, pod_requests

MIRROR = "kubernetes.io/config.mirror"
"""The kubelet's annotation on the mirror of a static Pod."""

# Images, container names and labels of dcgm-exporter (alone, in the GPU Operator, managed by a cloud), AMD's
# device-metrics-exporter and its predecessors, Intel's XPU Manager, and Gaudi's metric exporter.
_EXPORTER = re.compile(
    r"dcgm-exporter|device-metrics-exporter|amd-(?:gpu-)?(?:metrics|smi)-exporter|xpumd|xpu-?manager"
    r"|(?:habana|gaudi).*metric.*exporter|^metric-exporter"
)
_EXPORTER_LABELS = ("app", "app.kubernetes.io/name", "k8s-app", "name")
_POD_RESOURCES = re.compile(r"/kubelet/?$|/pod-resources/?$")
_REFUSALS = frozenset({"UnexpectedAdmissionError", "TopologyAffinityError"})
"""A kubelet's reasons (pkg/kubelet/lifecycle, pkg/kubelet/cm/topologymanager) for a Pod that fits by what the Node
reports: its devices cannot be allocated, or not at one NUMA node. Others are no fault of it: Evicted, NodeShutdown,
NodeAffinity, and OutOfcpu with its like, which two schedulers or a late status cause."""
_decoder = msgspec.json.Decoder(wire.WirePod)
_managed = msgspec.json.Decoder(wire.ManagedPod)
_volumes = msgspec.json.Decoder(list[wire.Volume] | None)
_ports = msgspec.json.Decoder(list[wire.Port] | None)
_NOTHING: Mapping[str, str] = MappingProxyType({})
_Shared = TypeVar("_Shared", bound=Hashable)


class ClaimUse(msgspec.Struct, frozen=True, gc=False):
    """A volume of a Pod by a claim. template: of the claim that is made for the Pod, and ends with it."""

    volume: str
    claim: str
    template: wire.VolumeClaimSpec | None = None


@dataclass(frozen=True, slots=True)
class HeldPod:
    """A Pod with accelerators, and what the owner walk, the gang recognition and the landing need beside the model."""

    pod: Pod
    controller: OwnerRef | None
    static: bool
    scheduling_group: str  # pod.spec.schedulingGroup.podGroupName
    claims: tuple[ClaimUse, ...] = ()


@dataclass(frozen=True, slots=True)
class ExporterPod:
    """A running exporter. names: its Pod's name and IPs, as telemetry may have them. urls: of its metrics; none where
    it lists no port."""

    names: tuple[str, ...]
    node: str
    ref: PodRef
    urls: tuple[str, ...] = ()


class OtherPod(msgspec.Struct, frozen=True, gc=False):
    """What guards need of a Pod without accelerators. Most Pods of a cluster are such ones, so values that Pods of one
    owner share are stored once. node: '' while it is not scheduled."""

    node: str
    cpu_cores: float
    memory_bytes: int
    namespace: str = ""
    name: str = ""
    phase: str = ""
    priority: int = 0
    label_keys: tuple[str, ...] = ()
    label_values: tuple[str, ...] = ()
    annotations: Mapping[str, str] = _NOTHING
    controller: OwnerRef | None = None
    tolerations: tuple[Toleration, ...] = ()
    scheduling_group: str = ""
    pod_anti_affinity: tuple[PodTerm, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    claims: tuple[str, ...] = ()


class TakenPod(msgspec.Struct, frozen=True, gc=False):
    held: HeldPod | None
    exporter: ExporterPod | None
    other: OtherPod | None = None


def take_pod(raw: msgspec.Raw) -> TakenPod | None:
    """None when nothing of the Pod is used. Raises DecodeError, or ValueError for a bad quantity."""
    found = _decoder.decode(raw)
    asks = names_accelerator(found.spec) or found.spec.resource_claims
    held = _held(found, _once(unmodelled_fields(raw))) if asks else None
    if held is not None and (reason := _refused(found)):
        held = replace(held, pod=replace(held.pod, refused=reason, scheduled=_scheduled(raw)))
    exporter = _exporter(found)
    other = None if held else _other(found)
    return TakenPod(held, exporter, other) if held or exporter or other else None


@lru_cache(maxsize=16384)
def _once(value: _Shared) -> _Shared:
    """The first value that is equal to this one."""
    return value


def _other(found: wire.WirePod) -> OtherPod | None:
    meta, spec = found.metadata, found.spec
    if found.status.phase in ("Succeeded", "Failed"):
        return None
    requests = pod_requests(spec)
    labels = meta.labels or {}
    refs = meta.owner_references or ()
    return OtherPod(
        node=_once(spec.node_name or ""),
        cpu_cores=_once(float(requests.get("cpu", 0))),
        memory_bytes=_once(int(requests.get("memory", 0))),
        namespace=_once(meta.namespace),
        name=meta.name,
        phase=_once(found.status.phase),
        priority=spec.priority or 0,
        label_keys=_once(tuple(labels)),
        label_values=tuple(map(_once, labels.values())),
        annotations=(meta.annotations and own_annotations(meta.annotations)) or _NOTHING,
        controller=_once(refs[0]) if len(refs) == 1 and refs[0].controller else meta.controller,
        tolerations=tolerations(spec),
        scheduling_group=(spec.scheduling_group.pod_group_name if spec.scheduling_group else None) or "",
        pod_anti_affinity=anti_affinity(spec, meta.namespace),
        host_ports=host_ports(spec),
        claims=tuple(item.claim for item in _claim_uses(found)),
    )


def _claim_uses(found: wire.WirePod) -> tuple[ClaimUse, ...]:
    raw = bytes(found.spec.volumes)
    if b"persistentVolumeClaim" not in raw and b"ephemeral" not in raw:
        return ()  # most Pods: a volume with a token is all that they have
    uses = []
    for item in _volumes.decode(raw) or ():
        if item.persistent_volume_claim:
            uses.append(ClaimUse(item.name, str(item.persistent_volume_claim.get("claimName"))))
        elif item.ephemeral and (template := item.ephemeral.get("volumeClaimTemplate")):
            uses.append(ClaimUse(item.name, f"{found.metadata.name}-{item.name}", template.spec))
    return tuple(uses)


def companion(item: OtherPod) -> HeldPod:
    """The same Pod in the form of those with accelerators."""
    pod = Pod(
        namespace=item.namespace,
        name=item.name,
        node=item.node,
        phase=item.phase,
        labels=dict(zip(item.label_keys, item.label_values, strict=True)),
        annotations=dict(item.annotations),
        cpu_cores=item.cpu_cores,
        memory_bytes=item.memory_bytes,
        priority=item.priority,
        placement=Placement(
            tolerations=item.tolerations,
            pod_anti_affinity=item.pod_anti_affinity,
            host_ports=item.host_ports,
            volumes=tuple(ClaimedVolume(claim=f"{item.namespace}/{claim}") for claim in item.claims),
        ),
        of_node=item.controller is not None and item.controller.kind in ("DaemonSet", "Node"),
    )
    return HeldPod(pod, item.controller, static=False, scheduling_group=item.scheduling_group)


def with_others(nodes: Iterable[Node], others: Iterable[OtherPod]) -> tuple[Node, ...]:
    """Nodes with the requests of Pods without accelerators; Nodes without accelerators are unchanged."""
    taken: dict[str, list[OtherPod]] = {}
    for item in others:
        taken.setdefault(item.node, []).append(item)
    return tuple(
        replace(
            node,
            other_cpu_cores=sum(item.cpu_cores for item in taken[node.name]),
            other_memory_bytes=sum(item.memory_bytes for item in taken[node.name]),
            other_pods=len(taken[node.name]),
        )
        if node.accelerators and node.name in taken
        else node
        for node in nodes
    )


def _held(found: wire.WirePod, unmodelled: tuple[str, ...]) -> HeldPod:
    meta, spec, status = found.metadata, found.spec, found.status
    requests = pod_requests(spec)
    pod = Pod(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        node=spec.node_name or "",
        phase=status.phase,
        created=meta.creation_timestamp,
        started=_started(status),
        # A kubelet leaves Ready at True until the containers of a deleted Pod have ended.
        ready=meta.deletion_timestamp is None
        and any(item.type == "Ready" and item.status == "True" for item in status.conditions or ()),
        deleting=meta.deletion_timestamp is not None,
        ends_by=meta.deletion_timestamp,
        not_started=_not_started(status) if status.phase == "Pending" and spec.node_name else "",
        labels=meta.labels or {},
        annotations=own_annotations(meta.annotations),
        images=tuple(container.image for container in spec.containers or () if container.image),
        accelerators=accelerator_counts(requests.items()),
        cpu_cores=float(requests.get("cpu", 0)),
        memory_bytes=int(requests.get("memory", Decimal(0)).to_integral_value(ROUND_CEILING)),
        claims=_claims(found),
        devices=_devices(status),
        priority=spec.priority or 0,
        scheduler=spec.scheduler_name or "",
        restarts=sum(item.restart_count for item in status.container_statuses or ()),
        placement=placement(spec, meta.namespace, meta.labels or {}, unmodelled),
        unscheduled="" if spec.node_name else _unscheduled(status),
        sent_back=_sent_back(status),
    )
    group = spec.scheduling_group
    return HeldPod(
        pod=pod,
        controller=meta.controller,
        static=MIRROR in (meta.annotations or {}),
        scheduling_group=(group.pod_group_name if group else None) or "",
        claims=_claim_uses(found),
    )


def _not_started(status: wire.PodStatus) -> str:
    """The first reason that a container gives, init containers first; one that runs holds up the others."""
    for item in status.init_container_statuses or ():
        state = item.state or {}
        if "running" in state and not item.started:
            return "an init container runs"
        if (waits := state.get("waiting")) is not None and waits.reason not in (None, "PodInitializing"):
            return f"an init container waits: {waits.reason}"
    waiting = [(item.state or {}).get("waiting") for item in status.container_statuses or ()]
    return next((each.reason for each in waiting if each is not None and each.reason), "")


def _unscheduled(status: wire.PodStatus) -> str:
    said = (item for item in status.conditions or () if item.type == "PodScheduled" and item.status == "False")
    return next((f"{item.reason}: {item.message or ''}" for item in said), "")


def _sent_back(status: wire.PodStatus) -> datetime | None:
    """Kueue's condition (pkg/controller/tas, since 0.17). It leaves such a Pod Failed, without a Node."""
    said = (item for item in status.conditions or () if item.type == "TerminatedByKueue" and item.status == "True")
    return next((item.last_transition_time for item in said), None) if status.phase == "Failed" else None


def _refused(found: wire.WirePod) -> str:
    status, reason = found.status, found.status.reason or ""
    return reason if status.phase == "Failed" and reason in _REFUSALS and not _starts(status) else ""


def _scheduled(raw: msgspec.Raw) -> bool:
    """Whether a client set its containers, and none its nodeName. A scheduler's binding is in no managedFields, and the
    kubelet takes the condition PodScheduled out of the Pods that it refuses (seen with 1.36)."""
    entries = _managed.decode(raw).metadata.managed_fields or ()
    specs = [item.fields.spec or {} for item in entries if item.fields and not item.subresource]
    return any("f:containers" in spec for spec in specs) and not any("f:nodeName" in spec for spec in specs)


def _started(status: wire.PodStatus) -> datetime | None:
    """Start of the first container, or status.startTime if unknown, and after a restart: then a container's start is
    that of its latest run."""
    if any(item.restart_count for item in status.container_statuses or ()):
        return status.start_time
    return min(_starts(status), default=status.start_time)


def _starts(status: wire.PodStatus) -> list[datetime]:
    """Of its containers that run or have ended."""
    states = [state for item in status.container_statuses or () for state in (item.state or {}).values()]
    return [state.started_at for state in states if state is not None and state.started_at]


def _claims(found: wire.WirePod) -> tuple[str, ...]:
    """Names of its ResourceClaims: given, created from a template, or created for an extended resource. A claim that is
    not yet created from its template has no name."""
    spec, status = found.spec, found.status
    given = [item.resource_claim_name for item in spec.resource_claims or ()]
    made = [item.resource_claim_name for item in status.resource_claim_statuses or ()]
    extended = status.extended_resource_claim_status
    if extended is not None:
        made.append(extended.resource_claim_name)
    return tuple(dict.fromkeys(name for name in (*given, *made) if name))


def _devices(status: wire.PodStatus) -> tuple[HeldDevice, ...]:
    """What its containers hold until it has ended."""
    if status.phase in ("Succeeded", "Failed"):
        return ()
    told = (each for item in status.container_statuses or () for each in item.allocated_resources_status or ())
    devices = (device for resource in told for device in resource.resources or ())
    return tuple(HeldDevice(device.id, device.health or "") for device in devices)


@lru_cache(maxsize=4096)
def _names_exporter(text: str) -> bool:
    return _EXPORTER.search(text) is not None


def _exporter(found: wire.WirePod) -> ExporterPod | None:
    """An exporter by its names that mounts the kubelet's pod-resources from its Node. A tenant can forge names, but may
    not mount a hostPath (Pod Security: privileged); exporters need this one to learn which Pod has which GPU."""
    node = found.spec.node_name
    if not node or found.status.phase in ("Succeeded", "Failed"):
        return None  # another Pod may have the address of an ended Pod
    containers = found.spec.containers or ()
    labels = found.metadata.labels or {}
    named = [item for item in containers if _names_exporter(item.name) or _names_exporter(item.image or "")]
    if not named and not any(_names_exporter(labels[key]) for key in _EXPORTER_LABELS if key in labels):
        return None
    mounted = (item.host_path.get("path") or "" for item in _volumes.decode(found.spec.volumes) or () if item.host_path)
    if not any(map(_POD_RESOURCES.search, mounted)):
        return None
    addresses = [item.get("ip", "") for item in found.status.pod_ips or ()] or [found.status.pod_ip or ""]
    meta = found.metadata
    names = tuple(name for name in (meta.name, *addresses) if name)
    return ExporterPod(names, node, f"{meta.namespace}/{meta.name}", _urls(addresses[0], named or containers))


def _urls(address: str, containers: Iterable[wire.Container]) -> tuple[str, ...]:
    """Of the port that is named for metrics, else of the first one."""
    ports = [port for item in containers for port in _ports.decode(item.ports) or () if port.protocol in (None, "TCP")]
    ports.sort(key=lambda port: "metrics" not in (port.name or ""))
    host = f"[{address}]" if ":" in address else address
    found = (f"http{'s' * ('https' in (port.name or ''))}://{host}:{port.container_port}/metrics" for port in ports[:1])
    return tuple(found) if address else ()


def exporter_nodes(exporters: Iterable[ExporterPod]) -> dict[str, str]:
    """Node by name or IP of an exporter's Pod. A name on two Nodes is left out."""
    nodes: dict[str, str | None] = {}
    for exporter in exporters:
        for name in exporter.names:
            nodes[name] = exporter.node if nodes.get(name, exporter.node) == exporter.node else None
    return {name: node for name, node in nodes.items() if node is not None}
