"""The fleet MIG plan: all advised slices in valid geometries, on few GPUs, with little disturbance. Pure.

Per GPU model: read the present GPUs (mig_fleet), pack (mig_pack), choose GPUs, order the Nodes for draining, and give
each Pod a slice. A demand without a place stays where it is and is reported.
"""

import math
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache

from gpuwatch.act.placement.landing import Nowhere, Room
from gpuwatch.facts.catalog.gpus import find_gpu, profile_name
from gpuwatch.facts.catalog.mig import MigGeometry, geometry
from gpuwatch.facts.model.bounds import named, require
from gpuwatch.facts.model.cluster import Cluster, Pod
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.sizing import MigPlan, NodeMigChange, Recommendation, SliceDemand, TargetKind
from gpuwatch.facts.model.telemetry import Device, DeviceId, PodRef
from gpuwatch.facts.model.workload_profile import WorkloadKey
from gpuwatch.size.mig_fleet import FleetGpu, MigFleet, gpu_of, holders_of, read_fleet
from gpuwatch.size.mig_pack import Cut, KeptClass, Packing, Supply, UniformClass, pack
from gpuwatch.size.mig_parted import configuration

# In so many rounds, slices are added on further Nodes for Pods that no host takes. Afterwards such Pods stay.
_MORE_SLICES_ROUNDS = 5
# A batch of several Nodes displaces no more Pods: as many as 4 Nodes of 8 whole GPUs have.
_DISPLACED_PODS_PER_BATCH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class MigPlanPolicy:
    """How far the fleet MIG plan may go.

    protected_priority: Pods at or above it are never moved for others (2,000,000,000: the system-critical classes). A
        Pod below it that needs exactly the slice it has may be moved to save a GPU; it is listed (`MigPlan.moved`).
        -2,147,483,648, the lowest priority of Kubernetes, keeps them all in place.
    nodes_per_batch: Nodes that are drained together. One: a cut takes minutes, and a mistake affects one Node only.
    """

    protected_priority: int = 2_000_000_000
    nodes_per_batch: int = 1

    def __post_init__(self) -> None:
        require(self, "mig_plan.", named(self, "_per_batch"), lambda value: value >= 1, "1 or more")


def slice_demands(
    recommendations: Iterable[Recommendation], cluster: Cluster, devices: Sequence[Device]
) -> tuple[SliceDemand, ...]:
    """What every Pod on a MIG-capable NVIDIA GPU needs: the advised slice, else what it holds now. The plan ignores
    recommendations for other kinds of targets. A Pod on several models or profiles has one demand for each."""
    advised = {
        item.key: item
        for item in recommendations
        if item.chosen.target.kind is TargetKind.MIG and item.chosen.target.gpu_model == item.key.gpu_model
    }
    nodes = {node.name: node for node in cluster.nodes}
    holders = holders_of(cluster, devices)
    pods = {pod.ref: pod for pod in cluster.pods}
    held: dict[tuple[PodRef, WorkloadKey], list[DeviceId]] = defaultdict(list)
    for device in sorted(devices, key=lambda item: item.id):
        found = gpu_of(device, nodes.get(device.node or ""))
        if found is None or geometry(found.mig_family) is None:
            continue
        profile = ""
        if device.mig_instance is not None:
            profile = profile_name(found.name, device.mig_profile or "")
        for ref in holders.get(device.id, ()):
            pod = pods.get(ref)
            workload = pod.workload if pod is not None and pod.workload else f"Pod/{ref}"
            containers = dict(zip(device.pods, device.containers, strict=False))
            key = WorkloadKey(workload, containers.get(ref, ""), found.name, profile)
            held[ref, key].append(device.id)
    demands = []
    for (ref, key), ids in sorted(held.items()):
        target = advised[key].chosen.target if key in advised else None
        demands.append(
            SliceDemand(
                key=key,
                gpu_model=key.gpu_model,
                mig_profile=target.mig_profile if target is not None else key.mig_profile,
                count=target.gpus_per_pod if target is not None else len(ids),
                pod=ref,
                devices=tuple(ids),
                priority=pods[ref].priority if ref in pods else 0,
            )
        )
    return tuple(demands)


def plan_mig(
    demands: Sequence[SliceDemand],
    cluster: Cluster,
    devices: Sequence[Device],
    policy: MigPlanPolicy,
    at: datetime,
    *,
    avoid: Collection[DeviceId] = (),
) -> MigPlan:
    """Packs the demands into the GPUs of their models.

    Devices whose holders have no demand stay as they are. avoid: devices or UUIDs that get nothing new (degraded ones).
    They must still be in `devices`, as mig-parted's config covers all GPUs of a Node. For an unknown model, profile or
    Node only its own demands fail, with a line in `unplaced`.
    """
    usable, complaints = _checked(demands)
    fleet = read_fleet(usable, cluster, devices, avoid)
    hosts = _Hosts(Room(cluster.nodes, cluster.pods, {}), {pod.ref: pod for pod in cluster.pods})
    models = sorted({demand.gpu_model for demand in usable if demand.mig_profile})
    pools = [_pool(fleet, model, [item for item in usable if item.gpu_model == model], policy) for model in models]
    repairs = {pool.model: _Repairs() for pool in pools}
    layouts = {pool.model: _lay_out(pool, repairs[pool.model], hosts) for pool in pools}
    while True:
        changes = [change for layout in layouts.values() for change in _changes(layout)]
        displaced = {
            name: {ref for change in found for ref in change.displaced}
            for name, found in grouped(changes, lambda change: change.node).items()
        }
        busy = Counter(gpu.node for gpu in fleet.gpus.values() if gpu.pods)
        order = tuple(sorted(displaced, key=lambda name: (len(displaced[name]), busy[name], name)))
        batches = _batches(order, displaced, policy)
        stage = {name: number for number, batch in enumerate(batches, 1) for name in batch}
        room = hosts.room.copy()
        room.without(ref for layout in layouts.values() for ref in _movers(layout, repairs[layout.pool.model].stuck))
        placed = {model: _place(layout, stage, hosts, room) for model, layout in layouts.items()}
        # Each of these repairs one thing, so that the next round may find another.
        repaired = {
            model: better
            for model, layout in layouts.items()
            if (better := _repaired(layout, placed[model], repairs[model], hosts, room)) is not None
        }
        if not repaired:
            break
        layouts |= repaired
    rank = {name: number for number, name in enumerate(order)}
    results = [(layout, placed[model]) for model, layout in layouts.items()]
    replicas: Counter[WorkloadKey] = Counter()
    placements: dict[str, str] = {}
    held: dict[str, dict[str, Counter[str]]] = {}
    freed: list[str] = []
    hostless: list[str] = []
    for layout, found in results:
        complaints += [
            f"{_who(demand)}: {reason}{'; it stays where it is' if demand.devices else ''}."
            for number, reason in repairs[layout.pool.model].stuck.items()
            for demand in (layout.pool.demands[number],)
        ]
        for demand, spots in found.spots:
            replicas[demand.key] += 1
            where = (f"{uuid} {fleet.spelled(fleet.gpus[uuid].node, layout.pool.model, name)}" for uuid, name in spots)
            placements[f"{demand.key} #{replicas[demand.key]}"] = ", ".join(where)
        held[layout.pool.model] = _held_after(layout, found)
        able, unable = _able_to_serve(layout, held[layout.pool.model], hosts, room)
        freed += able
        hostless += unable
    mig_config, labels = configuration(changes, fleet)
    return MigPlan(
        at=at,
        gpus_before=sum(bool(gpu.pods) for pool in pools for gpu in pool.gpus.values()),
        gpus_after=sum(map(len, held.values())),
        lower_bound_gpus=sum(layout.lower_bound for layout, _ in results),
        fragmentation_before_ratio=_fragmentation_ratio(
            (pool, gpu, gpu.cut, Counter(row.profile for row in gpu.rows if row.pods))
            for pool in pools
            for gpu in pool.gpus.values()
        ),
        fragmentation_after_ratio=_fragmentation_ratio(
            (layout.pool, gpu, layout.recut.get(uuid, gpu.cut), held[model].get(uuid, Counter()))
            for model, layout in layouts.items()
            for uuid, gpu in layout.pool.gpus.items()
        ),
        changes=tuple(sorted(changes, key=lambda item: (rank[item.node], item.index or 0))),
        order=order,
        batches=batches,
        freed=tuple(freed),
        freed_without_host=tuple(hostless),
        moved=tuple(
            sorted({layout.pool.demands[number].pod for layout, _ in results for number in layout.tenants(stay=False)})
        ),
        waiting=tuple(sorted({ref for _, found in results for ref in found.waiting})),
        mig_parted=mig_config,
        node_labels=labels,
        placements=placements,
        unplaced=(*complaints, *fleet.left_out),
    )


def _checked(demands: Sequence[SliceDemand]) -> tuple[list[SliceDemand], list[str]]:
    """Demands with the catalog's names, and sentences about those that the catalog cannot name."""
    good: list[SliceDemand] = []
    bad: list[str] = []
    for demand in demands:
        model, profile, problem = _in_catalog(demand.gpu_model, demand.mig_profile)
        if demand.count < 1:
            problem = f"it asks for {demand.count} slices; there is nothing to place"
        if problem:
            bad.append(f"{_who(demand)}: {problem}.")
        else:
            good.append(replace(demand, gpu_model=model, mig_profile=profile))
    return good, bad


@lru_cache(maxsize=1024)
def _in_catalog(gpu_model: str, mig_profile: str) -> tuple[str, str, str]:
    """Model and profile with the catalog's names, and the problem, '' for none."""
    found = find_gpu(gpu_model)
    if found is None:
        return "", "", f"the catalog does not know the GPU model {gpu_model!r}"
    shape = geometry(found.mig_family)
    if not mig_profile:
        return found.name, "", ""
    if shape is None:
        return "", "", f"{found.name} has no MIG, and {mig_profile} is asked for"
    profile = shape.profile(mig_profile)
    if profile is None:
        known = ", ".join(item.name for item in shape.profiles)
        return "", "", f"{found.name} has no MIG profile {mig_profile!r} that the catalog knows; it has {known}"
    return found.name, profile.name, ""


def _who(demand: SliceDemand) -> str:
    return f"{demand.pod or demand.key} ({demand.count} × {demand.gpu_model} {demand.mig_profile or 'whole'})"


@dataclass(frozen=True, slots=True)
class _Hosts:
    """room: what the Pods leave on the Nodes now. pods: those that the cluster lists."""

    room: Room
    pods: Mapping[PodRef, Pod]

    def lands(self, demand: SliceDemand, nodes: Collection[str], room: Room, *, tell: bool = False) -> str:
        """Places its Pod, accelerators aside, on one of the Nodes in `room`. Returns '', or why none takes it."""
        if not demand.pod:
            return ""  # it does not run yet, so its future Pod's requests are unknown
        pod = self.pods.get(demand.pod)
        if pod is None:
            return "the cluster does not list its Pod, so its CPU and memory requests are not known"
        there = room.node_of(pod.ref)  # for another of its containers
        if there is not None:
            return "" if there in nodes else f"its Pod stays on Node {there}"
        # Labels of the GPU change with its cut; the pool has one model only.
        selector = {key: value for key, value in pod.placement.node_selector.items() if "nvidia.com/" not in key}
        placement = replace(pod.placement, node_selector=selector) if pod.placement.node_selector else pod.placement
        # On its own Node it has all that its fields ask for, as a volume; that is not known of other Nodes.
        own = {pod.node}.intersection(nodes) if placement.unmodelled else set[str]()
        trial = (replace(pod, accelerators={}, claims=(), placement=placement),)
        found = room.land(trial, own or nodes, tell=tell, perhaps=bool(own))
        return found.reason.rstrip(".") if isinstance(found, Nowhere) else ""

    def requests(self, demands: Iterable[SliceDemand]) -> list[tuple[float, int]]:
        """CPU cores and memory bytes of their Pods, where the cluster lists them."""
        refs = dict.fromkeys(demand.pod for demand in demands)  # in order, so that equal input gives equal sums
        return [(pod.cpu_cores, pod.memory_bytes) for ref in refs if (pod := self.pods.get(ref)) is not None]


@dataclass(frozen=True, slots=True)
class _Pool:
    """One GPU model: its GPUs by UUID, its devices with their GPUs, and all that asks for it. A demand is known by its
    number in `demands`."""

    fleet: MigFleet
    model: str
    shape: MigGeometry
    gpus: Mapping[str, FleetGpu]
    device: Mapping[DeviceId, tuple[FleetGpu, str]]  # with the instance's profile, '' for a whole GPU
    demands: Sequence[SliceDemand]
    mix: Counter[str]  # slices that they ask for, by profile
    policy: MigPlanPolicy

    def count(self, numbers: Iterable[int]) -> Counter[str]:
        return _slices(self.demands[number] for number in numbers)

    def share(self, profiles: Mapping[str, int]) -> float:
        """The part of a GPU's memory that these instances have; '' is the whole GPU."""
        # An instance may have a profile that the catalog lacks: 0.
        size = {item.name: item.size for item in self.shape.profiles} | {"": self.shape.grid_units}
        return min(sum(size.get(name, 0) * count for name, count in profiles.items()) / self.shape.grid_units, 1.0)


def _slices(demands: Iterable[SliceDemand]) -> Counter[str]:
    found: Counter[str] = Counter()
    for demand in demands:
        found[demand.mig_profile] += demand.count
    return found


def _pool(fleet: MigFleet, model: str, demands: Sequence[SliceDemand], policy: MigPlanPolicy) -> _Pool:
    found = find_gpu(model)
    shape = geometry(found.mig_family) if found is not None else None
    assert shape is not None  # _checked
    gpus = {uuid: gpu for uuid, gpu in sorted(fleet.gpus.items(), key=lambda item: item[1].order) if gpu.model == model}
    device = {row.device: (gpu, row.profile) for gpu in gpus.values() for row in gpu.rows}
    return _Pool(fleet, model, shape, gpus, device, demands, _slices(demands), policy)


@dataclass(slots=True)
class _Repairs:
    """stuck: demands without a place, with the reason; those that run stay as they are. extra: slices beyond the
    demand, as hosts cannot fill all of a Node's. rounds: that added some."""

    stuck: dict[int, str] = field(default_factory=dict)
    extra: Counter[str] = field(default_factory=Counter)
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class _Stand:
    """What stays and what may go. fixed: GPUs that keep their cut and the Pods on them that need not leave. sitting:
    demands that stay there. tenants: UUID → demands that could stay, on other GPUs. placeable: demands to place, the
    tenants included. leaves: devices and Pods that leave them in any case."""

    fixed: frozenset[str]
    sitting: frozenset[int]
    tenants: Mapping[str, Sequence[int]]
    placeable: Sequence[int]
    leaves: frozenset[tuple[DeviceId, PodRef]]

    def remaining(self, gpu: FleetGpu) -> Counter[str]:
        """Profiles of a fixed GPU that Pods continue to hold ('' for the whole GPU)."""
        if gpu.uuid not in self.fixed:
            return Counter()
        return Counter(row.profile for row in gpu.rows if any((row.device, ref) not in self.leaves for ref in row.pods))


def _stand(pool: _Pool, stuck: Collection[int]) -> _Stand:
    fixed = {uuid for uuid, gpu in pool.gpus.items() if gpu.closed}
    sitting: set[int] = set()
    placeable: list[int] = []
    leaves: set[tuple[DeviceId, PodRef]] = set()
    movable: dict[tuple[DeviceId, PodRef], int] = {}
    for number, demand in enumerate(pool.demands):
        if number in stuck:
            continue
        held = [pool.device[item] for item in demand.devices if item in pool.device]
        if len(held) != demand.count or any(profile != demand.mig_profile for _, profile in held):
            if demand.mig_profile:
                leaves |= {(item, demand.pod) for item in demand.devices}
                placeable.append(number)
        elif not demand.mig_profile or demand.count > 1 or demand.priority >= pool.policy.protected_priority:
            sitting.add(number)
            fixed |= {gpu.uuid for gpu, _ in held}
        else:
            movable[demand.devices[0], demand.pod] = number
    for uuid, gpu in pool.gpus.items():
        on_it = [(row.device, ref) for row in gpu.rows for ref in row.pods]
        unknown = any(each not in leaves and each not in movable for each in on_it)
        shared = any(len(row.pods) > 1 and any((row.device, ref) in movable for ref in row.pods) for row in gpu.rows)
        if unknown or shared:
            fixed.add(uuid)
    tenants: dict[str, list[int]] = defaultdict(list)
    for (device, _), number in movable.items():
        gpu = pool.device[device][0]
        if gpu.uuid in fixed:
            sitting.add(number)
        else:
            tenants[gpu.uuid].append(number)
            placeable.append(number)
    return _Stand(frozenset(fixed), frozenset(sitting), tenants, placeable, frozenset(leaves))


@dataclass(frozen=True, slots=True)
class _Layout:
    """after: GPUs that slices may be on → their instances in the end. recut: GPUs to cut anew, those of Nodes of
    strategy `single` included, on which nothing may come to lie."""

    pool: _Pool
    stand: _Stand
    after: Mapping[str, Cut]
    recut: Mapping[str, Cut]
    lower_bound: int

    def tenants(self, *, stay: bool) -> dict[int, str]:
        """Those that keep their slice, or those that are moved for others; with the GPU that each has now."""
        kept = self.after.keys() - self.recut.keys()
        tenants = self.stand.tenants
        return {number: uuid for uuid, numbers in tenants.items() if (uuid in kept) is stay for number in numbers}


def _lay_out(pool: _Pool, repairs: _Repairs, hosts: _Hosts) -> _Layout:
    """What has no place joins `repairs.stuck`: where it runs it keeps a GPU, so the rest is packed again without it."""
    while True:
        stand = _stand(pool, repairs.stuck)
        stock, demand = _stock(pool, stand), pool.count(stand.placeable)
        packing = pack(demand + repairs.extra, stock.supply)
        if packing is not None:
            break
        if repairs.extra:
            repairs.extra.clear()
        else:
            repairs.stuck |= _left_over(pool, stand, stock.supply)
    bound = pack(demand, stock.supply) if repairs.extra else packing
    assert bound is not None  # less than what was packed
    forced = sum(bool(stand.remaining(gpu)) for gpu in pool.gpus.values())
    return _Layout(pool, stand, *_chosen(pool, stand, stock, packing, hosts), forced + bound.lower_bound)


@dataclass(frozen=True, slots=True)
class _Stock:
    """What there is to pack into. members: class of GPUs → its GPUs; None: those without a cut. held: UUID of a GPU
    that stays in use in any case → its free instances."""

    supply: Supply
    members: Mapping[KeptClass | UniformClass | None, Sequence[FleetGpu]]
    held: Mapping[str, Cut]


def _stock(pool: _Pool, stand: _Stand) -> _Stock:
    members: dict[KeptClass | UniformClass | None, list[FleetGpu]] = defaultdict(list)
    held: dict[str, Cut] = {}
    uniform_nodes = _uniform_nodes(pool, stand)
    for gpu in pool.gpus.values():
        if gpu.node in uniform_nodes:
            continue
        remaining = stand.remaining(gpu)
        cuttable = gpu.uuid not in stand.fixed and gpu.strategy == "mixed"
        offers = tuple(sorted((Counter(gpu.cut) - remaining).elements())) if not gpu.closed else ()
        if offers and remaining:
            held[gpu.uuid] = offers
        elif offers:
            members[KeptClass(offers, len(stand.tenants.get(gpu.uuid, ())), cuttable)].append(gpu)
        elif cuttable:
            members[None].append(gpu)
    # Of Nodes that are alike, those with the fewest Pods in the way come first.
    for gpus in sorted(uniform_nodes.values(), key=lambda each: (sum(len(gpu.pods) for gpu in each), each[0].order)):
        profiles = {name for gpu in gpus for name in gpu.cut}
        now = pool.shape.profile(min(profiles)) if len(profiles) == 1 else None
        full = now is not None and all(len(gpu.cut) == now.max_instances for gpu in gpus)
        members[UniformClass(len(gpus), now.name if now is not None and full else "")] += gpus
    supply = Supply(
        shape=pool.shape,
        held=Counter(name for offers in held.values() for name in offers),
        kept={each: len(found) for each, found in members.items() if isinstance(each, KeptClass)},
        uniform={each: len(found) // each.gpus for each, found in members.items() if isinstance(each, UniformClass)},
        blank=len(members[None]),
    )
    return _Stock(supply, members, held)


def _uniform_nodes(pool: _Pool, stand: _Stand) -> dict[str, list[FleetGpu]]:
    """Nodes of strategy `single` that can be cut anew: no Pod stays on any of their GPUs."""
    nodes = grouped((gpu for gpu in pool.gpus.values() if gpu.strategy == "single"), lambda gpu: gpu.node)
    everyone = Counter(gpu.node for gpu in pool.fleet.gpus.values())
    everyone.update({node: len(others) for node, others in pool.fleet.bystanders.items()})
    return {
        node: gpus
        for node, gpus in nodes.items()
        if len(gpus) == everyone[node]
        and not any(gpu.uuid in stand.fixed or stand.tenants.get(gpu.uuid) for gpu in gpus)
    }


def _left_over(pool: _Pool, stand: _Stand, supply: Supply) -> dict[int, str]:
    """Demands that get no place, with the reason: of the lowest priority first, of equals those that do not run, then
    the small ones."""
    tenants = {number for numbers in stand.tenants.values() for number in numbers}
    size = {item.name: item.size for item in pool.shape.profiles}
    levels: dict[tuple[int, int, int, str], list[int]] = defaultdict(list)
    for number in stand.placeable:
        demand = pool.demands[number]
        rank = 0 if number in tenants else 1 if demand.devices else 2
        levels[rank, -demand.priority, -size[demand.mig_profile], demand.mig_profile].append(number)
    admitted: Counter[str] = Counter()
    dropped: dict[int, str] = {}
    for level in sorted(levels):
        numbers = sorted(levels[level], key=lambda item: (-pool.demands[item].count, item))
        fit = _that_fit(pool, numbers, admitted, supply)
        admitted += pool.count(numbers[:fit])
        dropped |= dict.fromkeys(numbers[fit:], _why_none(pool, level[-1]))
    # Where the solver found no packing of all within its bounds, but one of each part.
    return dropped or dict.fromkeys(stand.placeable, "the solver found no packing within its bounds")


def _that_fit(pool: _Pool, numbers: Sequence[int], admitted: Mapping[str, int], supply: Supply) -> int:
    """How many of these demands, from the first on, have a place beside what is admitted."""

    def too_many(count: int) -> bool:
        return pack(Counter(admitted) + pool.count(numbers[:count]), supply) is None

    return bisect_left(range(1, len(numbers) + 1), True, key=too_many)


def _why_none(pool: _Pool, profile: str) -> str:
    open_ = sum(not gpu.closed for gpu in pool.gpus.values())
    away = len(pool.gpus) - open_
    if not pool.gpus:
        return f"no GPU of this model can be cut, so there is no place for {profile}"
    apart = f"; {away} more are out of service or must not change" if away else ""
    return f"no place is left for {profile} on the {open_} GPUs of this model that may be used{apart}"


def _chosen(
    pool: _Pool, stand: _Stand, stock: _Stock, packing: Packing, hosts: _Hosts
) -> tuple[dict[str, Cut], dict[str, Cut]]:
    """The GPUs that slices may be on, and of all GPUs those to cut anew, with their instances in the end."""
    after = dict(stock.held)
    recut: dict[str, Cut] = {}
    spare = list(stock.members[None])
    for each, found in stock.members.items():
        if isinstance(each, KeptClass):
            count = packing.keep.get(each, 0)
            after |= {gpu.uuid: each.offers for gpu in found[:count]}
            spare += found[count:] if each.cuttable else []
    new = _cut(pool, stand, packing.cut, spare, after, hosts)
    first: Counter[UniformClass] = Counter()
    for (uniform, name), (nodes, used) in sorted(packing.uniform.items()):
        gpus = stock.members[uniform][first[uniform] :][: nodes * uniform.gpus]
        first[uniform] += len(gpus)
        profile = pool.shape.profile(name)
        cut = (name,) * (profile.max_instances if profile is not None else 0)
        recut |= {gpu.uuid: cut for gpu in gpus if gpu.cut != cut}
        after |= {gpu.uuid: cut for gpu in gpus[:used]}
    return after | new, recut | new


def _cut(
    pool: _Pool,
    stand: _Stand,
    cuts: Mapping[Cut, int],
    spare: Sequence[FleetGpu],
    after: Mapping[str, Cut],
    hosts: _Hosts,
) -> dict[str, Cut]:
    """Chooses GPUs for the new cuts: on few Nodes, with few Pods on them, alike on each Node."""
    by_node = grouped(sorted(spare, key=lambda gpu: (len(gpu.pods), gpu.order)), lambda gpu: gpu.node)
    wanted = Counter(cuts)
    nodes = sorted(
        by_node.items(),
        key=lambda item: (sum(len(gpu.pods) for gpu in item[1]) / len(item[1]), -len(item[1]), item[0]),
    )
    # Node → Pods of average need that it takes beside those that stay and the slices that are kept.
    room = hosts.room.copy()
    moving = [pool.demands[number] for number in stand.placeable]
    room.without({demand.pod for demand in moving})
    asked = hosts.requests(moving)
    cores, memory = (sum(each) / max(len(asked), 1) for each in zip(*asked, strict=True)) if asked else (0.0, 0.0)
    kept = Counter(pool.gpus[uuid].node for uuid, cut in after.items() for _ in cut)
    on_hosts = {name: room.times(name, cores, memory) - kept[name] for name in by_node}
    found: dict[str, Cut] = {}
    # GPUs whose slices no host can fill are cut last.
    for left in (on_hosts, dict.fromkeys(by_node, math.inf)):
        for name, gpus in nodes:
            free = deque(gpu for gpu in gpus if gpu.uuid not in found)
            while free and +wanted and left[name] > 0:
                # The most frequent cut first, so that whole Nodes are alike and can use a standard config.
                cut = min(wanted, key=lambda each: (-wanted[each], each))
                count = min(wanted[cut], len(free), math.ceil(min(left[name] / len(cut), len(free))))
                found |= {free.popleft().uuid: cut for _ in range(count)}
                wanted[cut] -= count
                left[name] -= count * len(cut)
    return found


def _changes(layout: _Layout) -> list[NodeMigChange]:
    pool = layout.pool

    def spelled(gpu: FleetGpu, cut: Cut) -> Cut:
        return tuple(pool.fleet.spelled(gpu.node, pool.model, name) for name in cut)

    return [
        NodeMigChange(
            node=gpu.node,
            device=uuid,
            index=gpu.index,
            gpu_model=pool.model,
            before=spelled(gpu, gpu.cut),
            after=spelled(gpu, layout.recut[uuid]),
            displaced=gpu.pods,
        )
        for uuid, gpu in pool.gpus.items()
        if uuid in layout.recut
    ]


def _batches(
    order: Sequence[str], displaced: Mapping[str, set[PodRef]], policy: MigPlanPolicy
) -> tuple[tuple[str, ...], ...]:
    batches: list[list[str]] = []
    pods = 0
    for name in order:
        full = not batches or len(batches[-1]) >= policy.nodes_per_batch
        if full or pods + len(displaced[name]) > _DISPLACED_PODS_PER_BATCH:
            batches.append([])
            pods = 0
        batches[-1].append(name)
        pods += len(displaced[name])
    return tuple(tuple(batch) for batch in batches)


def _movers(layout: _Layout, stuck: Collection[int]) -> set[PodRef]:
    """Pods that keep none of their present devices."""
    pod = [demand.pod for demand in layout.pool.demands]
    at_home = layout.tenants(stay=True)
    moving = {pod[number] for number in layout.stand.placeable if number not in at_home}
    return moving - {pod[number] for number in (*layout.stand.sitting, *at_home, *stuck)}


@dataclass(slots=True)
class _Placements:
    """spots: demand → (UUID, profile) of its slices. taken: UUID → profiles of the slices in use. failed: numbers of
    demands whose Pods no Node with a slice for them would take."""

    failed: list[int] = field(default_factory=list)
    spots: list[tuple[SliceDemand, tuple[tuple[str, str], ...]]] = field(default_factory=list)
    taken: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    waiting: set[PodRef] = field(default_factory=set)

    def take(self, demand: SliceDemand, uuids: Sequence[str]) -> None:
        self.spots.append((demand, tuple((uuid, demand.mig_profile) for uuid in uuids)))
        for uuid in uuids:
            self.taken[uuid][demand.mig_profile] += 1


def _place(layout: _Layout, stage: Mapping[str, int], hosts: _Hosts, room: Room) -> _Placements:
    """Gives each demand its slices on Nodes that would take its Pod, and places the Pod there in `room`. Pods on GPUs
    that are drained first get the slices that are ready first. A Pod whose slice is ready only after it must leave is
    in `waiting`."""
    pool, placed, at_home = layout.pool, _Placements(), layout.tenants(stay=True)
    left = {uuid: Counter(cut) for uuid, cut in layout.after.items()}
    for number in sorted(layout.stand.sitting):
        demand = pool.demands[number]
        if demand.mig_profile:
            placed.spots.append(
                (demand, tuple((gpu.uuid, name) for gpu, name in map(pool.device.__getitem__, demand.devices)))
            )
    for number, uuid in at_home.items():
        left[uuid][pool.demands[number].mig_profile] -= 1
        placed.take(pool.demands[number], [uuid])
    ready = {uuid: stage[pool.gpus[uuid].node] if uuid in layout.recut else 0 for uuid in layout.after}

    def first_ready(uuids: Sequence[str]) -> tuple[int, object]:
        return ready[uuids[0]], pool.gpus[uuids[0]].order

    # Profile → its free slices on each Node; the ready ones first, of a Node as of all Nodes.
    lines: dict[str, list[list[str]]] = {}
    for profile in {name for cut in left.values() for name in cut}:
        free = [uuid for uuid, cut in left.items() for _ in range(cut[profile])]
        on_nodes = grouped(sorted(free, key=lambda uuid: first_ready([uuid])), lambda uuid: pool.gpus[uuid].node)
        lines[profile] = sorted(on_nodes.values(), key=first_ready)
    refused: set[tuple[object, str]] = set()

    def found(demand: SliceDemand) -> list[str]:
        pod = hosts.pods.get(demand.pod)
        # A Node that refused one Pod of a workload refuses every other one with the same requests.
        alike = demand.pod if pod is None else (pod.workload, pod.cpu_cores, pod.memory_bytes, room.node_of(pod.ref))
        line = lines.get(demand.mig_profile, [])
        for at, uuids in enumerate(line):
            if len(uuids) < demand.count or (alike, node := pool.gpus[uuids[0]].node) in refused:
                continue
            if not hosts.lands(demand, (node,), room):
                taken, uuids[: demand.count] = uuids[: demand.count], []
                if not uuids:
                    del line[at]
                elif ready[uuids[0]] != ready[taken[0]]:
                    line.sort(key=first_ready)
                return taken
            refused.add((alike, node))
        return []

    leaves_at = {
        number: min(gone, default=len(stage) + 1)
        for number in layout.stand.placeable
        if number not in at_home
        for gone in ([stage[gpu.node] for gpu in _devices_of(pool, number) if gpu.uuid in layout.recut],)
    }
    # Several slices for one Pod first, as they must be on one Node.
    for number in sorted(leaves_at, key=lambda item: (-pool.demands[item].count, leaves_at[item], item)):
        demand = pool.demands[number]
        uuids = found(demand)
        if not uuids:
            placed.failed.append(number)
            continue
        if demand.devices and demand.count == 1 and leaves_at[number] <= ready[uuids[0]]:
            placed.waiting.add(demand.pod)
        placed.take(demand, uuids)
    return placed


def _devices_of(pool: _Pool, number: int) -> list[FleetGpu]:
    return [pool.device[item][0] for item in pool.demands[number].devices if item in pool.device]


def _repaired(layout: _Layout, placed: _Placements, repairs: _Repairs, hosts: _Hosts, room: Room) -> _Layout | None:
    """A better layout, None where this one does. For Pods that no host takes, slices on further Nodes are tried first;
    a GPU that would be cut for nothing keeps its cut."""
    demands = layout.pool.demands
    if placed.failed:
        failed = [demands[number] for number in placed.failed]
        if repairs.rounds < _MORE_SLICES_ROUNDS and all(item.pod in hosts.pods for item in failed):
            repairs.rounds += 1
            repairs.extra.update(item.mig_profile for item in failed)
        else:
            repairs.stuck |= {number: _no_host(layout, demands[number], hosts, room) for number in placed.failed}
        return _lay_out(layout.pool, repairs, hosts)
    nodes = {layout.pool.gpus[uuid].node for uuid in placed.taken}
    unused = {
        uuid
        for uuid in set(layout.recut) - set(placed.taken)
        if layout.pool.gpus[uuid].strategy != "single" or layout.pool.gpus[uuid].node not in nodes
    }
    if not unused:
        return None
    return replace(
        layout,
        after={uuid: cut for uuid, cut in layout.after.items() if uuid not in unused},
        recut={uuid: cut for uuid, cut in layout.recut.items() if uuid not in unused},
    )


def _no_host(layout: _Layout, demand: SliceDemand, hosts: _Hosts, room: Room) -> str:
    slices: Counter[str] = Counter()
    for uuid, cut in layout.after.items():
        slices[layout.pool.gpus[uuid].node] += cut.count(demand.mig_profile)
    nodes = [name for name, count in slices.items() if count >= demand.count]
    if demand.count > 1 and not nodes:
        return f"no Node would have {demand.count} × {demand.mig_profile} for one Pod"
    reason = hosts.lands(demand, nodes, room.copy(), tell=True) or "Nodes that would take it have no free slice"
    return f"no Node with slices {demand.mig_profile} would take its Pod: {reason}"


def _held_after(layout: _Layout, placed: _Placements) -> dict[str, Counter[str]]:
    """UUID of each GPU in use → profiles that Pods hold in the end."""
    held = {uuid: placed.taken[uuid] + layout.stand.remaining(gpu) for uuid, gpu in layout.pool.gpus.items()}
    return {uuid: profiles for uuid, profiles in held.items() if profiles}


def _able_to_serve(layout: _Layout, after: Collection[str], hosts: _Hosts, room: Room) -> tuple[list[str], list[str]]:
    """The freed GPUs whose host could take a Pod like the pool's least demanding one; and the other freed GPUs."""
    cores, memory = min(hosts.requests(layout.pool.demands), default=(0.0, 0))
    emptied = [gpu for uuid, gpu in layout.pool.gpus.items() if uuid not in after]
    idle = Counter(gpu.node for gpu in emptied if not gpu.pods)
    able: list[str] = []
    unable: list[str] = []
    for gpu in emptied:
        if gpu.pods:
            idle[gpu.node] += 1
            (able if room.times(gpu.node, cores, memory) >= idle[gpu.node] else unable).append(gpu.uuid)
    return able, unable


def _fragmentation_ratio(gpus: Iterable[tuple[_Pool, FleetGpu, Cut, Counter[str]]]) -> float | None:
    """Mean share of the free capacity that a demand of its pool cannot use; None where nothing is free. gpus: each with
    its instances, and those that Pods hold.

    After FGD (Weng et al., 'Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
    Descent', USENIX ATC 2023): a GPU's fragmentation is its free capacity times the probability that a demand drawn
    from the mix cannot run there; the fleet's is the sum. Here capacity is memory slices, and a GPU in use can run only
    what its free instances serve: to cut it anew it must be empty.
    """
    free = unusable = 0.0
    for pool, gpu, cut, held in gpus:
        served = set(Counter(cut) - held) if held else set(pool.mix)
        share = 1 - pool.share(held)
        useless = sum(count for name, count in pool.mix.items() if gpu.closed or name not in served)
        free += share
        unusable += share * useless / pool.mix.total()
    return unusable / free if free > 0 else None
