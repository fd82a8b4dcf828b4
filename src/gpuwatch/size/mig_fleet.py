"""Input of a fleet MIG plan: how GPUs are cut now, which Pods hold what, and what may change."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gpuwatch.facts.catalog.gpus import Gpu, find_gpu, profile_name
from gpuwatch.facts.catalog.mig import geometry
from gpuwatch.facts.model.cluster import Cluster, Node
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.sizing import SliceDemand
from gpuwatch.facts.model.telemetry import Device, DeviceId, PodRef
from gpuwatch.size.mig_pack import Cut


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """A MIG instance, or the whole GPU (`profile` '')."""

    device: DeviceId
    profile: str  # as the catalog spells it
    pods: tuple[PodRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetGpu:
    """A physical GPU. cut: its instances, () with MIG off. closed: why nothing new may be placed here; '' if it may."""

    uuid: str
    node: str
    index: int
    model: str  # Gpu.name
    cut: Cut
    rows: tuple[DeviceRow, ...]
    strategy: str  # mixed or single
    closed: str = ""

    @property
    def pods(self) -> tuple[PodRef, ...]:
        return tuple(sorted({ref for row in self.rows for ref in row.pods}))

    @property
    def order(self) -> tuple[str, int, str]:
        return self.node, self.index, self.uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class MigFleet:
    """gpus: by UUID. bystanders: Node → index → instances of the GPUs of other models there. spellings: (Node or
    'model …', the catalog's profile) → the driver's spelling. left_out: sentences about what stays unchanged."""

    gpus: Mapping[str, FleetGpu]
    bystanders: Mapping[str, Mapping[int, Cut]]
    spellings: Mapping[tuple[str, str], str]
    left_out: tuple[str, ...]

    def spelled(self, node: str, model: str, profile: str) -> str:
        """The profile's name on this Node; else on other Nodes of the model; else in the catalog."""
        return self.spellings.get((node, profile)) or self.spellings.get((f"model {model}", profile)) or profile


def gpu_of(device: Device, node: Node | None) -> Gpu | None:
    """The device's model in the catalog: by its own name, else by its Node's product."""
    return _known(device.model) or (_known(node.gpu_product) if node is not None else None)


@lru_cache(maxsize=1024)
def _known(name: str) -> Gpu | None:
    return find_gpu(name) if name else None


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


def read_fleet(
    demands: Sequence[SliceDemand], cluster: Cluster, devices: Sequence[Device], avoid: Collection[DeviceId] = ()
) -> MigFleet:
    """The GPUs of the models with demand for slices. `avoid`: devices or UUIDs that get nothing new."""
    models = {demand.gpu_model for demand in demands if demand.mig_profile}
    return _FleetReader(cluster, devices, frozenset(avoid)).fleet(models)


class _FleetReader:
    def __init__(self, cluster: Cluster, devices: Sequence[Device], avoid: frozenset[str]) -> None:
        self.cluster = cluster
        self.nodes = {node.name: node for node in cluster.nodes}
        self.avoid = avoid
        self.holders = holders_of(cluster, devices)
        self.by_uuid = grouped(devices, lambda device: device.uuid)
        self.left_out: list[str] = []
        self.spellings: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self.unattributed = self._unattributed()

    def fleet(self, models: Collection[str]) -> MigFleet:
        strays: Counter[tuple[str, str]] = Counter()
        by_node: dict[str, list[list[Device]]] = defaultdict(list)
        wanted: set[str] = set()
        for rows in self.by_uuid.values():
            node = self.nodes.get(rows[0].node or "")
            found = gpu_of(rows[0], node)
            asked = found is not None and found.name in models
            if node is not None:
                by_node[node.name].append(rows)
                wanted |= {node.name} if asked else set()
            elif found is not None and asked:
                strays[rows[0].node_label or "a host that telemetry does not name", found.name] += 1
        self.left_out += [
            f"{count} × {model} on {host}: the host is not a Node of this cluster, so nothing is planned there."
            for (host, model), count in sorted(strays.items())
        ]
        gpus: dict[str, FleetGpu] = {}
        bystanders: dict[str, dict[int, Cut]] = defaultdict(dict)
        for name in sorted(wanted):
            node = self.nodes[name]
            strategy = _strategy(node)
            closed = _no_strategy(strategy) or self._closed(node, by_node[name])
            closed = closed or self._unknown_layout(node, by_node[name])
            if closed:
                self.left_out.append(f"Node {name}: nothing changes there, because {closed}.")
            for rows in by_node[name]:
                found = gpu_of(rows[0], node)
                if found is not None and found.name in models:
                    gpus[rows[0].uuid] = self._gpu(node, rows, found, strategy, closed)
                else:
                    cut = tuple(sorted(row.mig_profile or "" for row in rows if row.mig_instance is not None))
                    bystanders[name][_index(rows[0])] = cut
        return MigFleet(
            gpus=gpus,
            bystanders=bystanders,
            spellings={key: min(found, key=lambda text: (-found[text], text)) for key, found in self.spellings.items()},
            left_out=tuple(self.left_out),
        )

    def _closed(self, node: Node, all_rows: Sequence[Sequence[Device]]) -> str:
        if node.unschedulable:
            return "the Node is cordoned"
        if node.ready is not True:
            return "the Node is not known to be ready"
        if any(taint.effect in ("NoSchedule", "NoExecute") and taint.key.startswith("node.") for taint in node.taints):
            return "the Node is tainted as out of service"
        if self.unattributed.get(node.name):
            return f"it is not known which of its GPUs Pod {self.unattributed[node.name][0]} has"
        if any(gpu_of(rows[0], node) is None for rows in all_rows):
            return "the catalog does not know all of its GPUs"
        # mig-parted's assert fails unless the config covers every GPU of the Node.
        indices = [rows[0].index for rows in all_rows]
        if sorted(indices) != [str(number) for number in sorted(range(len(indices)), key=str)]:
            return f"telemetry shows only its GPUs {', '.join(sorted(indices))}"
        if node.gpu_count and node.gpu_count != len(indices):
            return f"telemetry shows {len(indices)} of its {node.gpu_count} GPUs"
        if not all(row.present for rows in all_rows for row in rows):
            return "some of its GPUs do not report now"
        return ""

    def _unknown_layout(self, node: Node, all_rows: Sequence[Sequence[Device]]) -> str:
        """Which instances the catalog does not know, such as compute instances (1c.3g.20gb); '' for none."""
        models = {found for rows in all_rows if (found := gpu_of(rows[0], node)) is not None}
        shapes = [shape for found in models if (shape := geometry(found.mig_family)) is not None]
        reported = {row.mig_profile or "" for rows in all_rows for row in rows if row.mig_instance is not None}
        for spelling in sorted({*node.mig_layout, *reported}):
            names = {profile.name for shape in shapes if (profile := shape.profile(spelling)) is not None}
            if not names:
                return f"it has instances {spelling!r}, which the catalog does not know"
            for name in names:
                self.spellings[node.name, name][spelling] += 1
        return ""

    def _gpu(self, node: Node, rows: Sequence[Device], found: Gpu, strategy: str, closed: str) -> FleetGpu:
        held = []
        instances = [row for row in rows if row.mig_instance is not None]
        for row in instances or rows:
            profile = ""
            if row.mig_instance is not None and row.mig_profile:
                profile = profile_name(found.name, row.mig_profile)
                self.spellings[f"model {found.name}", profile][row.mig_profile] += 1
            held.append(DeviceRow(device=row.id, profile=profile, pods=self.holders.get(row.id, ())))
        # A claim may name the parent GPU; which instance the Pod holds is then unknown.
        parent = self.holders.get(rows[0].uuid, ())
        if instances and parent:
            closed = closed or f"Pod {parent[0]} has the whole GPU {rows[0].index}, which is cut into instances"
        if rows[0].uuid in self.avoid or any(row.id in self.avoid for row in rows):
            closed = closed or "the GPU is degraded"
        return FleetGpu(
            uuid=rows[0].uuid,
            node=node.name,
            index=_index(rows[0]),
            model=found.name,
            cut=tuple(sorted(row.profile for row in held)) if instances else (),
            rows=tuple(sorted(held, key=lambda item: item.device)),
            strategy=strategy,
            closed=closed,
        )

    def _unattributed(self) -> dict[str, list[PodRef]]:
        """Node → its Pods with NVIDIA accelerators whose devices are unknown."""
        known = {ref for refs in self.holders.values() for ref in refs}
        found: dict[str, list[PodRef]] = defaultdict(list)
        for pod in self.cluster.pods:
            asks = any(name.startswith("nvidia.com/") for name in pod.accelerators)
            if pod.node and asks and pod.phase not in ("Succeeded", "Failed") and pod.ref not in known:
                found[pod.node].append(pod.ref)
        return {node: sorted(refs) for node, refs in found.items()}


def _index(device: Device) -> int:
    return int(device.index) if device.index.isdecimal() else -1


def _strategy(node: Node) -> str:
    """From GFD's label; without it, resources named after slices mean `mixed`."""
    return node.mig_strategy or ("mixed" if any("/mig-" in name for name in node.accelerators) else "")


def _no_strategy(strategy: str) -> str:
    if strategy in ("mixed", "single"):
        return ""
    if strategy == "none":
        return "its MIG strategy is none; set mig.strategy to mixed or single to have its GPUs cut"
    if strategy:
        return f"its MIG strategy is {strategy!r}, which is none of mixed, single and none"
    return "its MIG strategy is not known (no label nvidia.com/mig.strategy)"
