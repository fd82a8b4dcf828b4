"""Input of a fleet MIG plan: how GPUs are cut now, which Pods hold what and need what, and what may change."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuwatch.facts.catalog.gpus import Gpu, find_gpu, profile_name
from gpuwatch.facts.catalog.mig import geometry
from gpuwatch.facts.model.cluster import Cluster, Node
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.sizing import Recommendation, SliceDemand, TargetKind
from gpuwatch.facts.model.telemetry import Device, DeviceId, PodRef
from gpuwatch.facts.model.workload_profile import WorkloadKey
from gpuwatch.size.mig_pack import Cut


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """A MIG instance, or the whole GPU (`profile` '')."""

    device: DeviceId
    profile: str  # as the catalog spells it
    pods: tuple[PodRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetGpu:
    """A physical GPU. cut: its instances, () with MIG off. closed: nothing new may be placed here."""

    uuid: str
    node: str
    index: int
    model: str  # Gpu.name
    cut: Cut
    rows: tuple[DeviceRow, ...]
    closed: bool = False

    @property
    def pods(self) -> tuple[PodRef, ...]:
        return tuple(sorted({ref for row in self.rows for ref in row.pods}))

    @property
    def order(self) -> tuple[str, int, str]:
        return self.node, self.index, self.uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class MigFleet:
    """gpus: by UUID, all of the Nodes that have a model with demand. spellings: (Node or 'model …', the catalog's
    profile) → the driver's spelling. left_out: sentences about what stays unchanged."""

    gpus: Mapping[str, FleetGpu]
    spellings: Mapping[tuple[str, str], str]
    left_out: tuple[str, ...]

    def spelled(self, gpu: FleetGpu, cut: Cut) -> Cut:
        """The profiles' names on this GPU's Node; else on other Nodes of the model; else in the catalog."""
        known, model = self.spellings, f"model {gpu.model}"
        return tuple(known.get((gpu.node, name)) or known.get((model, name)) or name for name in cut)


def gpu_of(device: Device, node: Node | None) -> Gpu | None:
    """The device's model in the catalog: by its own name, else by its Node's product."""
    return find_gpu(device.model) or (find_gpu(node.gpu_product) if node is not None else None)


def holders_of(cluster: Cluster, devices: Sequence[Device]) -> dict[DeviceId, tuple[PodRef, ...]]:
    """Pods that hold each device, by telemetry and by claims (DRA). Pods that have ended hold nothing."""
    ended = {pod.ref for pod in cluster.pods if pod.phase in ("Succeeded", "Failed")}
    holders: dict[DeviceId, set[PodRef]] = defaultdict(set)
    for device in devices:
        holders[device.id] |= {ref for ref in device.pods if ref not in ended}
    claimed: dict[str, list[DeviceId]] = defaultdict(list)
    for claim in cluster.claims:
        if claim.device:
            claimed[claim.claim].append(claim.device)
    for pod in cluster.pods:
        for name in pod.claims if pod.ref not in ended else ():
            for device_id in claimed.get(f"{pod.namespace}/{name}", ()):
                holders[device_id].add(pod.ref)
    return {device_id: tuple(sorted(refs)) for device_id, refs in holders.items()}


def slice_demands(
    recommendations: Iterable[Recommendation], cluster: Cluster, devices: Sequence[Device]
) -> tuple[SliceDemand, ...]:
    """What every Pod on a MIG-capable NVIDIA GPU needs: the advised slice, else what it holds now. The plan ignores
    recommendations for other kinds of targets, and those with a condition that its owner has yet to meet. A Pod on
    several models or profiles has one demand for each."""
    advised = {
        item.key: item.chosen.target
        for item in recommendations
        if item.chosen.target.kind is TargetKind.MIG
        and item.chosen.target.gpu_model == item.key.gpu_model
        and not item.condition
    }
    nodes = {node.name: node for node in cluster.nodes}
    holders = holders_of(cluster, devices)
    pods = {pod.ref: pod for pod in cluster.pods}
    held: dict[tuple[PodRef, WorkloadKey], list[DeviceId]] = defaultdict(list)
    for device in sorted(devices, key=lambda item: item.id):
        found = gpu_of(device, nodes.get(device.node or ""))
        if found is None or geometry(found.mig_family) is None:
            continue
        profile = profile_name(found.name, device.mig_profile or "") if device.mig_instance is not None else ""
        for ref in holders.get(device.id, ()):
            pod = pods.get(ref)
            workload = pod.workload if pod is not None and pod.workload else f"Pod/{ref}"
            containers = dict(zip(device.pods, device.containers, strict=False))
            held[ref, WorkloadKey(workload, containers.get(ref, ""), found.name, profile)].append(device.id)
    return tuple(
        SliceDemand(
            key=key,
            gpu_model=key.gpu_model,
            mig_profile=(advised[key].mig_profile if key in advised else key.mig_profile) or "",
            count=advised[key].gpus_per_pod if key in advised else len(ids),
            pod=ref,
            devices=tuple(ids),
            priority=pods[ref].priority if ref in pods else 0,
        )
        for (ref, key), ids in sorted(held.items())
    )


def read_fleet(
    models: Collection[str], cluster: Cluster, devices: Sequence[Device], avoid: Collection[DeviceId]
) -> MigFleet:
    """The GPUs of all Nodes with one of these models. `avoid`: devices or UUIDs that get nothing new."""
    nodes = {node.name: node for node in cluster.nodes}
    holders = holders_of(cluster, devices)
    unattributed = _unattributed(cluster, holders)
    gpus: dict[str, FleetGpu] = {}
    spellings: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    left_out = []
    for name, here in sorted(grouped(devices, lambda device: device.node or "").items()):
        node = nodes.get(name)
        known = {device.uuid: gpu_of(device, node) for device in here}
        if not any(found is not None and found.name in models for found in known.values()):
            continue
        if node is None:
            hosts = ", ".join(sorted({device.node_label or "a host without a name" for device in here}))
            left_out.append(f"{len(known)} GPUs on {hosts}: no Node of this cluster, so nothing is planned there.")
            continue
        closed = _closed(node, here, known, unattributed.get(name, ()))
        if closed:
            left_out.append(f"Node {name}: nothing changes there, because {closed}.")
        for uuid, rows in grouped(here, lambda device: device.uuid).items():
            found = known[uuid]
            if found is None:
                continue
            unsafe = bool(closed) or any(name in avoid for name in (uuid, *(row.id for row in rows)))
            gpus[uuid] = gpu = _gpu(name, rows, found, holders, unsafe)
            for row in rows if gpu.cut else ():
                for key in (name, f"model {found.name}"):
                    spellings[key, profile_name(found.name, row.mig_profile or "")][row.mig_profile or ""] += 1
    return MigFleet(
        gpus=gpus,
        spellings={key: min(found, key=lambda text: (-found[text], text)) for key, found in spellings.items()},
        left_out=tuple(left_out),
    )


def _gpu(
    node: str, rows: Sequence[Device], found: Gpu, holders: Mapping[DeviceId, tuple[PodRef, ...]], closed: bool
) -> FleetGpu:
    instances = [row for row in rows if row.mig_instance is not None]
    held = [
        DeviceRow(
            device=row.id,
            profile=profile_name(found.name, row.mig_profile) if instances and row.mig_profile else "",
            pods=holders.get(row.id, ()),
        )
        for row in sorted(instances or rows, key=lambda row: row.id)
    ]
    return FleetGpu(
        uuid=rows[0].uuid,
        node=node,
        index=int(rows[0].index) if rows[0].index.isdecimal() else -1,
        model=found.name,
        cut=tuple(sorted(row.profile for row in held)) if instances else (),
        rows=tuple(held),
        # A claim may name the GPU that instances lie on; which of them the Pod holds is then unknown.
        closed=closed or bool(instances and holders.get(rows[0].uuid)),
    )


def _closed(node: Node, here: Sequence[Device], known: Mapping[str, Gpu | None], unattributed: Sequence[PodRef]) -> str:
    """Why nothing on the Node may change; '' if it may. here: its devices. known: UUID → model in the catalog."""
    # From the label of gpu-feature-discovery; without it, resources named after slices mean `mixed`.
    strategy = node.mig_strategy or ("mixed" if any("/mig-" in name for name in node.accelerators) else "unknown")
    if strategy != "mixed":
        return f"its MIG strategy is {strategy}, not mixed (label nvidia.com/mig.strategy)"
    if node.unschedulable:
        return "the Node is cordoned"
    if node.ready is not True:
        return "the Node is not known to be ready"
    if any(taint.effect in ("NoSchedule", "NoExecute") and taint.key.startswith("node.") for taint in node.taints):
        return "the Node is tainted as out of service"
    if unattributed:
        return f"it is not known which of its GPUs Pod {min(unattributed)} has"
    if None in known.values():
        return "the catalog does not know all of its GPUs"
    # mig-parted's assert fails unless the config covers every GPU of the Node.
    indices = sorted({device.uuid: device.index for device in here}.values())
    if indices != sorted(str(number) for number in range(node.gpu_count or len(indices))):
        return f"telemetry shows its GPUs {', '.join(indices)} alone, of {node.gpu_count or 'an unknown number'}"
    if not all(device.present for device in here):
        return "some of its GPUs do not report now"
    shapes = [shape for found in known.values() if found is not None and (shape := geometry(found.mig_family))]
    reported = {device.mig_profile or "" for device in here if device.mig_instance is not None}
    for spelling in sorted({*node.mig_layout, *reported}):  # compute instances, such as 1c.3g.20gb, are among them
        if not any(shape.profile(spelling) for shape in shapes):
            return f"it has instances {spelling!r}, which the catalog does not know"
    return ""


def _unattributed(cluster: Cluster, holders: Mapping[DeviceId, Sequence[PodRef]]) -> Mapping[str, Sequence[PodRef]]:
    """Node → its Pods with NVIDIA accelerators whose devices are unknown."""
    known = {ref for refs in holders.values() for ref in refs}
    found: dict[str, list[PodRef]] = defaultdict(list)
    for pod in cluster.pods:
        asks = any(name.startswith("nvidia.com/") for name in pod.accelerators)
        if pod.node and asks and pod.phase not in ("Succeeded", "Failed") and pod.ref not in known:
            found[pod.node].append(pod.ref)
    return found
