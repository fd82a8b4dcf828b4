"""Labels: which device a row is about, which Pod holds it, and on which host it is.

Pure functions on the labels of one row, whose names are in labels.yaml. No code outside this room depends on the name
of an exporter's label. An empty label equals a missing one, as in Prometheus.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import yaml

from gpuwatch.facts.catalog.tables import checked, packaged
from gpuwatch.facts.model.telemetry import DeviceId, PodRef, Vendor
from gpuwatch.sources.telemetry.promql import in_batches
from gpuwatch.sources.telemetry.samples import Matcher, MatchOp

Labels = Mapping[str, str]


class _Labels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tables of labels.yaml."""

    identity: Mapping[Vendor, tuple[str, ...]]
    pods: Mapping[Vendor, tuple[tuple[str, str, str], ...]]
    description: Mapping[Vendor, tuple[str, ...]]
    model: tuple[str, ...]
    index: tuple[str, ...]
    driver: tuple[str, ...]
    pci: tuple[str, ...]
    node: tuple[str, ...]
    exporter_containers: frozenset[str]


LABELS = checked(yaml.safe_load(packaged("labels.yaml", "gpuwatch.sources.telemetry")), _Labels, "labels.yaml")
IDENTITY_LABELS, NODE_LABELS, EXPORTER_CONTAINERS = LABELS.identity, LABELS.node, LABELS.exporter_containers

HOLDER_LABELS: Mapping[Vendor, tuple[str, ...]] = {
    vendor: tuple(name for names in places for name in names if name) for vendor, places in LABELS.pods.items()
}
"""Labels that name the Pod that holds a device."""

SLOT_LABELS = ("vgpu", "instance")
"""Rows that differ in one of these are simultaneous: replicas of a shared GPU, two exporters on one host."""

CHURN_LABELS = ("hpc_job",)
"""Labels other than the Pod that change during a device's life and so start a new series."""

_WHOLE_GPU = ("", "none", "na", "n/a", "spx")
_GENERATED_NAME = re.compile(r"(.+)-[bcdfghjklmnpqrstvwxz2456789]{5}")
"""Generated Pod names: the owner's name and five of these characters (k8s.io/apimachinery, util/rand)."""
EXPORTER_POD = re.compile(r"(^|-)(dcgm-exporter|metrics-exporter|xpumd?|xpumanager|xpu-manager)(-|$)")


@dataclass(frozen=True, slots=True)
class Identity:
    """The device of a row. `uuid` is the physical GPU, `instance` a MIG instance or AMD partition of it."""

    id: DeviceId
    uuid: str
    instance: str | None = None
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    pod: PodRef
    container: str


def identity(labels: Labels, vendor: Vendor) -> Identity | None:
    """The device, or None where the labels do not identify one (for example after a labeldrop of UUID).

    NVIDIA and Gaudi: UUID, for MIG with the GPU-instance id. AMD: gpu_uuid where it is exported, else host, serial
    number and GPU id; a GPU in DPX, QPX or CPX mode is its serial number with one device per partition. Intel: uuid,
    else host and PCI address.
    """
    if vendor is Vendor.AMD:
        return _amd(labels)
    if vendor is Vendor.INTEL:
        uuid = labels.get("uuid", "")
        place = labels.get("pci_bdf", "") or labels.get("hw_id", "")
        if not uuid and place:
            uuid = f"{node_label(labels) or labels.get('instance', '')}:{place}"
        return Identity(uuid, uuid) if uuid else None
    uuid = labels.get("UUID", "")
    if vendor is Vendor.NVIDIA:
        uuid = uuid or labels.get("uuid", "") or labels.get("gpu_uuid", "")
        instance = labels.get("GPU_I_ID", "")
        if uuid and instance:
            return Identity(f"{uuid}/{instance}", uuid, instance, labels.get("GPU_I_PROFILE") or None)
    return Identity(uuid, uuid) if uuid else None


def ids(labels: Labels, vendor: Vendor) -> tuple[DeviceId, str] | None:
    """`id` and `uuid` of `identity`, but faster: it runs for every row of every answer."""
    if vendor is Vendor.NVIDIA:
        uuid = labels.get("UUID") or labels.get("uuid") or labels.get("gpu_uuid")
        if not uuid:
            return None
        instance = labels.get("GPU_I_ID")
        return (f"{uuid}/{instance}" if instance else uuid), uuid
    found = identity(labels, vendor)
    return None if found is None else (found.id, found.uuid)


def _amd(labels: Labels) -> Identity | None:
    host, index = labels.get("hostname", ""), labels.get("gpu_id", "")
    if not index:
        return None  # another exporter: gpu_… is a common prefix
    serial, uuid = labels.get("serial_number", ""), labels.get("gpu_uuid", "")
    mode = labels.get("gpu_compute_partition_type", "").lower()
    if mode in _WHOLE_GPU:
        uuid = uuid or ":".join(part for part in (host, serial, index) if part)
        return Identity(uuid, uuid)
    parent = ":".join(part for part in (host, serial) if part) if serial else uuid or f"{host}:{index}"
    partition = labels.get("gpu_partition_id", "") or index
    memory = labels.get("gpu_memory_partition_type", "").lower()
    return Identity(f"{parent}/{partition}", parent, partition, "_".join(part for part in (mode, memory) if part))


def holder(labels: Labels, vendor: Vendor, targets: frozenset[PodRef] = frozenset()) -> Holder | None:
    """The Pod that holds the device, or None for a free device.

    With honorLabels: false the workload is in exported_*. With honorLabels: true it is in the plain labels, where a row
    without a workload has the scrape target's own Pod instead. targets: Pods known to be exporters (see `target`);
    they and earlier Pods of their DaemonSet hold no device. Without targets, the exporters' usual names decide.
    """
    for pod_label, namespace_label, container_label in LABELS.pods[vendor]:
        if not (pod := labels.get(pod_label)):
            continue
        namespace, container = labels.get(namespace_label, ""), labels.get(container_label, "")
        if pod_label != "pod" or not _is_target(namespace, pod, container, targets):
            return Holder(f"{namespace}/{pod}", container)
    return None


def target(labels: Labels) -> PodRef | None:
    """The scrape target's own Pod where the row names it for certain: beside exported_pod, or on an `up` series."""
    pod = labels.get("pod", "")
    certain = "exported_pod" in labels or labels.get("__name__") == "up"
    return f"{labels.get('namespace', '')}/{pod}" if pod and certain else None


def _is_target(namespace: str, pod: str, container: str, targets: frozenset[PodRef]) -> bool:
    if is_one_of(f"{namespace}/{pod}", targets):
        return True
    if targets and namespace not in _makers(targets)[1]:
        return False  # named like an exporter, in a namespace without scraped exporters
    return container in EXPORTER_CONTAINERS or looks_like_exporter(pod)


def is_one_of(pod: PodRef, exporters: frozenset[PodRef]) -> bool:
    """Whether it is one of these Pods, or another of the same DaemonSet by its generated name."""
    generated = _GENERATED_NAME.fullmatch(pod)
    return pod in exporters or (generated is not None and generated[1] in _makers(exporters)[0])


@lru_cache(maxsize=8)
def _makers(targets: frozenset[PodRef]) -> tuple[frozenset[str], frozenset[str]]:
    """`namespace/name` of the owners of these Pods where their names are generated, and their namespaces."""
    made = (_GENERATED_NAME.fullmatch(pod) for pod in targets)
    return frozenset(match[1] for match in made if match), frozenset(pod.partition("/")[0] for pod in targets)


def looks_like_exporter(pod: str) -> bool:
    """Whether it is a Pod name such as nvidia-dcgm-exporter-wqqqn; some exporters write it as their host name."""
    return EXPORTER_POD.search(pod) is not None


def node_label(labels: Labels) -> str:
    """The host as telemetry spells it, which may be no Node's name; '' where no label names one."""
    return first(labels, NODE_LABELS)


def names_a_host(value: str) -> bool:
    """False for what exporters write in place of a host name: localhost, an address, their own Pod, nothing."""
    return not (not value or value == "localhost" or looks_like_exporter(value) or is_address(value))


def is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def first(labels: Labels, names: Iterable[str]) -> str:
    return next((value for name in names if (value := labels.get(name))), "")


def device_matchers(labels: Labels, vendor: Vendor) -> tuple[Matcher, ...]:
    """Matchers that select exactly this device's rows; () without identity. The first alone selects its whole GPU."""
    if vendor is Vendor.AMD and not labels.get("gpu_uuid"):
        names: tuple[str, ...] = ("hostname", "serial_number", "gpu_id", "gpu_partition_id")
    elif vendor is Vendor.AMD:
        names = ("gpu_uuid", "gpu_partition_id")
    elif vendor is Vendor.INTEL:
        names = ("uuid",) if labels.get("uuid") else ("pci_bdf", "hw_id", *NODE_LABELS, "instance")
    else:
        names = (next((name for name in ("UUID", "uuid", "gpu_uuid") if labels.get(name)), "UUID"), "GPU_I_ID")
    return tuple(Matcher(name, MatchOp.EQUAL, value) for name in names if (value := labels.get(name)))


def any_device(picked: Iterable[Matcher], at_once: int) -> Iterator[Matcher]:
    """Joins first `device_matchers` of several devices, by label, with at most `at_once` values in each matcher."""
    values: dict[str, set[str]] = {}
    for matcher in picked:
        values.setdefault(matcher.label, set()).add(matcher.value)
    for label, chosen in sorted(values.items()):
        yield from in_batches(label, chosen, at_once)
