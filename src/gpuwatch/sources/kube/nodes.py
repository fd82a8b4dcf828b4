"""Nodes: their resources, and the labels of GPU Feature Discovery (GFD) and cloud providers."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.cluster import Condition, Node, Sharing, Taint
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.kube import wire
from gpuwatch.sources.kube.decode import own_annotations
from gpuwatch.sources.kube.resources import LABELS, accelerator_counts, is_accelerator, quantity, whole

_SHARED_SUFFIX = "-SHARED"
_MIG_SUFFIX = re.compile(r"-MIG-(?P<profile>INVALID|(?:\d+c\.)?\d+g\.\d+gb\S*)$")
_MIG_RESOURCE = re.compile(
    r"nvidia\.com/mig-(?P<profile>(?:\d+c\.)?\d+g\.\d+gb(?:[.-][a-z0-9.-]+?)??)(?P<count>\.count)?"
)
_MIG_SHARING = re.compile(r"nvidia\.com/mig-.+\.sharing-strategy")
_decoder = msgspec.json.Decoder(wire.WireNode)
_AMD_PARTITIONS = {"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4, "cpx": 8}
"""Partitions of a GPU by its compute mode. CPX makes one of each compute die: eight in MI300X, MI325X and MI350X, six
in MI300A (ROCm's documentation of compute partitioning)."""
_MI300A_CPX = 6
_AMD_MODE = re.compile(r"(spx|dpx|tpx|qpx|cpx)(?:_|$)")
_MEDIA_SUFFIX = re.compile(r"(\d+g\.\d+gb)\.")


@dataclass(frozen=True, slots=True)
class TakenNode:
    """addresses: inside the cluster: IP addresses, DNS name, host name. offers: its capacity names an accelerator. The
    number is 0 while a restarted kubelet waits for the device plugin."""

    node: Node
    addresses: tuple[str, ...]
    offers: bool = False


def take_node(raw: msgspec.Raw) -> TakenNode:
    """Raises DecodeError, or ValueError for a bad quantity."""
    found = _decoder.decode(raw)
    inside = ("InternalIP", "InternalDNS", "Hostname")
    addresses = tuple(item.address for item in found.status.addresses or () if item.type in inside and item.address)
    return TakenNode(_node(found), addresses, any(map(is_accelerator, found.status.capacity or ())))


def _node(found: wire.WireNode) -> Node:
    meta = found.metadata
    labels = meta.labels or {}
    capacity = found.status.capacity or {}
    counts = accelerator_counts((name, quantity(amount)) for name, amount in capacity.items())
    allocatable = found.status.allocatable or {}
    product, profile = _product(labels)
    # With MIG strategy `single`, GFD's labels describe the instances and no label describes their GPUs.
    instances_only = bool(profile)
    return Node(
        name=meta.name,
        uid=meta.uid,
        boot_id=found.status.node_info.boot_id if found.status.node_info else "",
        created=meta.creation_timestamp,
        labels=labels,
        annotations=own_annotations(meta.annotations),
        taints=tuple(
            Taint(item.key, item.value or "", item.effect, item.time_added) for item in found.spec.taints or ()
        ),
        conditions=tuple(
            Condition(item.type, item.status, item.reason or "", item.last_transition_time)
            for item in found.status.conditions or ()
        ),
        unschedulable=bool(found.spec.unschedulable),
        accelerators=counts,
        allocatable={name: whole(allocatable.get(name, 0)) for name in counts},
        cpu_cores=float(quantity(allocatable.get("cpu", 0))),
        memory_bytes=whole(allocatable.get("memory", 0)),
        max_pods=whole(allocatable["pods"]) if "pods" in allocatable else None,
        gpu_product=product,
        gpu_count=0 if instances_only else _gpu_count(labels, counts, product),
        mig_strategy=labels.get("nvidia.com/mig.strategy", ""),
        mig_layout=_mig_layout(labels, counts, profile),
        sharing=_sharing(labels, counts),
        replicas=_replicas(labels),
        pool=next((labels[key] for key in (keys.POOL, *LABELS.pool) if labels.get(key)), ""),
    )


def _product(labels: Mapping[str, str]) -> tuple[str, str]:
    """GPU product without GFD's suffixes, and the MIG profile in the suffix."""
    text = next((labels[key] for key in LABELS.product if labels.get(key)), "").removesuffix(_SHARED_SUFFIX)
    suffix = _MIG_SUFFIX.search(text)
    return (text[: suffix.start()], suffix["profile"]) if suffix else (text, "")


def _number(labels: Mapping[str, str], *names: str) -> int:
    """The first of these labels that is a number, or 0."""
    return next((int(labels[name]) for name in names if labels.get(name, "").isdecimal()), 0)


def _gpu_count(labels: Mapping[str, str], counts: Mapping[str, int], product: str) -> int:
    """Physical GPUs by GFD's label, else the cloud's, else the Node's capacity."""
    return _number(labels, *LABELS.gpu_count) or sum(
        count // _partitions(name, labels, product) for name, count in counts.items() if _of_devices(name)
    )


def _of_devices(resource: str) -> bool:
    return resource in LABELS.whole_devices or _AMD_MODE.match(resource.removeprefix("amd.com/")) is not None


def _partitions(resource: str, labels: Mapping[str, str], product: str) -> int:
    """Units of an AMD resource per GPU. The label has the mode where all partitions are `amd.com/gpu`."""
    mode = next((labels[key] for key in LABELS.partition if labels.get(key)), "")
    if not resource.startswith("amd.com/"):
        return 1
    found = _AMD_MODE.match(mode.lower() if resource == "amd.com/gpu" else resource.removeprefix("amd.com/"))
    if found is None:
        return 1
    return _MI300A_CPX if found[1] == "cpx" and "MI300A" in product else _AMD_PARTITIONS[found[1]]


def _mig_layout(labels: Mapping[str, str], counts: Mapping[str, int], single_profile: str) -> dict[str, int]:
    """Instances by profile. GFD's labels count instances; resources count instances × replicas."""
    if single_profile:
        count = _number(labels, "nvidia.com/gpu.count")
        return {_profile(single_profile): count} if count and single_profile != "INVALID" else {}
    layout = {}
    for key in labels:
        found = _MIG_RESOURCE.fullmatch(key)
        if found and found["count"] and _number(labels, key):
            layout[_profile(found["profile"])] = _number(labels, key)
    if layout:
        return layout
    resources = ((_MIG_RESOURCE.fullmatch(name.removesuffix(".shared")), count) for name, count in counts.items())
    return {_profile(found["profile"]): count for found, count in resources if found and not found["count"]}


def _profile(label: str) -> str:
    """NVIDIA's name of a MIG profile; labels and resources cannot contain the plus sign of 1g.10gb+me."""
    return _MEDIA_SUFFIX.sub(r"\1+", label)


def _sharing(labels: Mapping[str, str], counts: Mapping[str, int]) -> Sharing:
    strategies = [labels.get("nvidia.com/gpu.sharing-strategy", "")]
    strategies += [value for key, value in labels.items() if _MIG_SHARING.fullmatch(key)]
    for strategy in (Sharing.TIME_SLICING, Sharing.MPS):
        if strategy.value in strategies:
            return strategy
    if Sharing.NONE.value in strategies:
        return Sharing.NONE
    # Versions of GFD without the strategy label supported time-slicing only.
    renamed = any(name.startswith("nvidia.com/") and name.endswith(".shared") for name in counts)
    suffixed = labels.get("nvidia.com/gpu.product", "").endswith(_SHARED_SUFFIX)
    return Sharing.TIME_SLICING if renamed or suffixed else Sharing.NONE


def _replicas(labels: Mapping[str, str]) -> int:
    """How many Pods may share a device: the largest number in a label, 1 without sharing."""
    names = [key for key in labels if key.startswith("nvidia.com/") and key.endswith(".replicas")]
    return max([1, *(_number(labels, key) for key in names)])


def node_names(taken: Iterable[TakenNode]) -> tuple[dict[str, str], tuple[Gap, ...]]:
    """Node by internal address or host name, and a Gap for each name that two Nodes have."""
    owners: dict[str, set[str]] = {}
    for item in taken:
        for address in item.addresses:
            owners.setdefault(address, set()).add(item.node.name)
    gaps = tuple(
        Gap(
            kind=GapKind.NODE_UNRESOLVED,
            what=f"address {address}",
            detail=f"The Nodes {', '.join(sorted(names))} share it, so telemetry from it is assigned to none of them.",
        )
        for address, names in sorted(owners.items())
        if len(names) > 1
    )
    return {address: next(iter(names)) for address, names in owners.items() if len(names) == 1}, gaps
