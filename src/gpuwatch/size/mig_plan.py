"""The fleet MIG plan: all advised slices in valid geometries, on few GPUs, with little disturbance. Pure.

Per GPU model: read the present GPUs (mig_fleet), pack (mig_pack), choose GPUs, order the Nodes for draining, and give
each Pod a slice. A demand without a place stays where it is and is reported.
"""

import math
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gpuwatch.act.placement import Nowhere, Room
from gpuwatch.facts.catalog.gpus import find_gpu
from gpuwatch.facts.catalog.mig import MigGeometry, geometry
from gpuwatch.facts.model.cluster import Cluster, Pod
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.sizing import MigPlan, NodeMigChange, SliceDemand
from gpuwatch.facts.model.telemetry import Device, DeviceId, PodRef
from gpuwatch.facts.model.workload_profile import WorkloadKey
from gpuwatch.size.mig_fleet import FleetGpu, MigFleet, read_fleet
from gpuwatch.size.mig_pack import Cut, KeptClass, Packing, pack
from gpuwatch.size.mig_parted import configuration

# In so many rounds, slices are added on further Nodes for Pods that no host takes. Afterwards such Pods stay.
_MORE_SLICES_ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MigPlanPolicy:
    """How far the fleet MIG plan may go.

    protected_priority: Pods at or above it are never moved for others (2,000,000,000: the system-critical classes). A
        Pod below it that needs exactly the slice it has may be moved to save a GPU; it is listed (`MigPlan.moved`).
        -2,147,483,648, the lowest priority of Kubernetes, keeps them all in place.
    """

    protected_priority: int = 2_000_000_000


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
    They must still be in `devices`, as mig-parted's config covers all GPUs of a Node. Models and profiles have the
    catalog's names; for one that it lacks only its own demands fail, with a line in `unplaced`.
    """
    hosts = _Hosts(Room(cluster.nodes, cluster.pods, {}, cluster.bystanders), {pod.ref: pod for pod in cluster.pods})
    stuck = {number: why for number, demand in enumerate(demands) if (why := _not_in_catalog(demand))}
    models = sorted({item.gpu_model for number, item in enumerate(demands) if item.mig_profile and number not in stuck})
    fleet = read_fleet(models, cluster, devices, frozenset(avoid))
    pools = [_pool(fleet, model, demands, policy) for model in models]
    extra: dict[str, Counter[str]] = defaultdict(Counter)
    rounds = 0
    while True:
        layouts = [_lay_out(pool, stuck, extra[pool.model], hosts) for pool in pools]
        changes = [change for layout in layouts for change in _changes(layout)]
        order = _drain_order(changes, fleet)
        stage = {name: number for number, name in enumerate(order, 1)}
        room = hosts.room.copy()
        room.without(ref for layout in layouts for ref in _movers(layout, stuck))
        spots: dict[int, Sequence[str]] = {}
        refused: dict[int, str] = {}
        for layout in layouts:
            found, not_found = _place(layout, stage, hosts, room)
            spots |= found
            refused |= not_found
        if not refused:
            break
        rounds += 1
        for number, why in refused.items():
            demand = demands[number]
            if rounds > _MORE_SLICES_ROUNDS or demand.pod not in hosts.pods:
                stuck[number] = why  # it keeps its GPU, so all is packed again without it
            else:
                extra[demand.gpu_model][demand.mig_profile] += 1
    in_use = {uuid for uuids in spots.values() for uuid in uuids}
    in_use |= {gpu.uuid for layout in layouts for gpu in layout.pool.gpus.values() if layout.stand.remaining(gpu)}
    changes = [change for change in changes if change.device in in_use]  # not for a slice more that was of no use
    drained = {change.node for change in changes}
    freed, hostless = _freed(pools, in_use, hosts, room)
    replicas: Counter[WorkloadKey] = Counter()
    placements: dict[str, str] = {}
    for number, uuids in spots.items():
        demand = demands[number]
        replicas[demand.key] += 1
        where = (f"{uuid} {fleet.spelled(fleet.gpus[uuid], (demand.mig_profile,))[0]}" for uuid in uuids)
        placements[f"{demand.key} #{replicas[demand.key]}"] = ", ".join(where)
    mig_config, labels = configuration(changes, fleet)
    return MigPlan(
        at=at,
        gpus_before=sum(bool(gpu.pods) for pool in pools for gpu in pool.gpus.values()),
        gpus_after=len(in_use),
        lower_bound_gpus=sum(layout.lower_bound for layout in layouts),
        changes=tuple(sorted(changes, key=lambda item: (stage[item.node], item.index or 0))),
        order=tuple(name for name in order if name in drained),
        freed=freed,
        freed_without_host=hostless,
        moved=tuple(sorted({demands[number].pod for layout in layouts for number in layout.tenants(stay=False)})),
        mig_parted=mig_config,
        node_labels=labels,
        placements=placements,
        unplaced=(*(_left(demands[number], why) for number, why in stuck.items()), *fleet.left_out),
    )


def _not_in_catalog(demand: SliceDemand) -> str:
    found = find_gpu(demand.gpu_model)
    shape = geometry(found.mig_family) if found is not None else None
    if not demand.mig_profile or (shape is not None and shape.profile(demand.mig_profile) is not None):
        return ""
    return f"the catalog knows no MIG profile {demand.mig_profile!r} of the GPU model {demand.gpu_model!r}"


def _left(demand: SliceDemand, why: str) -> str:
    who = f"{demand.pod or demand.key} ({demand.count} × {demand.gpu_model} {demand.mig_profile or 'whole'})"
    return f"{who}: {why}{'; it stays where it is' if demand.devices else ''}."


@dataclass(frozen=True, slots=True)
class _Hosts:
    """room: what the Pods leave on the Nodes now. pods: those that the cluster lists."""

    room: Room
    pods: Mapping[PodRef, Pod]

    def refusal(self, demand: SliceDemand, nodes: Collection[str], room: Room, *, tell: bool = False) -> str:
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
    number."""

    fleet: MigFleet
    model: str
    shape: MigGeometry
    gpus: Mapping[str, FleetGpu]
    device: Mapping[DeviceId, tuple[FleetGpu, str]]  # with the instance's profile, '' for a whole GPU
    demands: Mapping[int, SliceDemand]
    policy: MigPlanPolicy

    def count(self, numbers: Iterable[int]) -> Counter[str]:
        """Slices that they ask for, by profile."""
        found: Counter[str] = Counter()
        for number in numbers:
            found[self.demands[number].mig_profile] += self.demands[number].count
        return found


def _pool(fleet: MigFleet, model: str, demands: Sequence[SliceDemand], policy: MigPlanPolicy) -> _Pool:
    found = find_gpu(model)
    shape = geometry(found.mig_family) if found is not None else None
    assert shape is not None  # _not_in_catalog
    gpus = {gpu.uuid: gpu for gpu in sorted(fleet.gpus.values(), key=lambda item: item.order) if gpu.model == model}
    device = {row.device: (gpu, row.profile) for gpu in gpus.values() for row in gpu.rows}
    asking = {number: demand for number, demand in enumerate(demands) if demand.gpu_model == model}
    return _Pool(fleet, model, shape, gpus, device, asking, policy)


@dataclass(frozen=True, slots=True)
class _Stand:
    """What stays and what may go. fixed: GPUs that keep their cut and the Pods on them that need not leave. sitting:
    demands that stay there. tenants: UUID → demands that could stay, on other GPUs. placeable: demands to place, the
    tenants included. leaves: devices and Pods that leave them in any case."""

    fixed: frozenset[str]
    sitting: Sequence[int]
    tenants: Mapping[str, Sequence[int]]
    placeable: Sequence[int]
    leaves: frozenset[tuple[DeviceId, PodRef]]

    def remaining(self, gpu: FleetGpu) -> Counter[str]:
        """Profiles of a fixed GPU that Pods continue to hold ('' for the whole GPU)."""
        if gpu.uuid not in self.fixed:
            return Counter()
        return Counter(row.profile for row in gpu.rows if any((row.device, ref) not in self.leaves for ref in row.pods))


def _stand(pool: _Pool, stuck: Collection[int]) -> _Stand:
    sitting: list[int] = []
    placeable: list[int] = []
    leaves: set[tuple[DeviceId, PodRef]] = set()
    movable: dict[tuple[DeviceId, PodRef], int] = {}
    for number, demand in pool.demands.items():
        if number in stuck:
            continue
        held = [pool.device[item][1] for item in demand.devices if item in pool.device]
        if held != [demand.mig_profile] * demand.count:
            if demand.mig_profile:
                leaves |= {(item, demand.pod) for item in demand.devices}
                placeable.append(number)
        elif not demand.mig_profile or demand.count > 1 or demand.priority >= pool.policy.protected_priority:
            sitting.append(number)
        else:
            movable[demand.devices[0], demand.pod] = number
    may_leave = leaves | movable.keys()
    fixed = set()
    for uuid, gpu in pool.gpus.items():
        stays = any((row.device, ref) not in may_leave for row in gpu.rows for ref in row.pods)
        shared = any(len(row.pods) > 1 and any((row.device, ref) in movable for ref in row.pods) for row in gpu.rows)
        if gpu.closed or stays or shared:
            fixed.add(uuid)
    tenants: dict[str, list[int]] = defaultdict(list)
    for (device, _), number in movable.items():
        gpu = pool.device[device][0]
        if gpu.uuid in fixed:
            sitting.append(number)
        else:
            tenants[gpu.uuid].append(number)
            placeable.append(number)
    return _Stand(frozenset(fixed), sorted(sitting), tenants, placeable, frozenset(leaves))


@dataclass(frozen=True, slots=True)
class _Layout:
    """after: GPUs that slices may be on → their instances in the end. recut: of them, those to cut anew."""

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


@dataclass(frozen=True, slots=True)
class _Stock:
    """What there is to pack into. held: UUID of a GPU that stays in use in any case → its free instances. kept: class
    of GPUs that can keep their cut → its GPUs. blank: GPUs without a cut."""

    shape: MigGeometry
    held: Mapping[str, Cut]
    kept: Mapping[KeptClass, Sequence[FleetGpu]]
    blank: Sequence[FleetGpu]

    def pack(self, demand: Mapping[str, int]) -> Packing | None:
        held = Counter(name for offers in self.held.values() for name in offers)
        kept = {each: len(gpus) for each, gpus in self.kept.items()}
        return pack(demand, self.shape, held=held, kept=kept, blank=len(self.blank))


def _stock(pool: _Pool, stand: _Stand) -> _Stock:
    held: dict[str, Cut] = {}
    kept: dict[KeptClass, list[FleetGpu]] = defaultdict(list)
    blank = []
    for gpu in pool.gpus.values():
        remaining = stand.remaining(gpu)
        cuttable = gpu.uuid not in stand.fixed
        offers = tuple(sorted((Counter(gpu.cut) - remaining).elements())) if not gpu.closed else ()
        if offers and remaining:
            held[gpu.uuid] = offers
        elif offers:
            kept[KeptClass(offers, len(stand.tenants.get(gpu.uuid, ())), cuttable)].append(gpu)
        elif cuttable:
            blank.append(gpu)
    return _Stock(pool.shape, held, kept, blank)


def _lay_out(pool: _Pool, stuck: dict[int, str], extra: Counter[str], hosts: _Hosts) -> _Layout:
    """What has no place joins `stuck`: where it runs it keeps a GPU, so the rest is packed again without it. extra:
    slices beyond the demand, as hosts cannot fill all of a Node's; emptied where there are no GPUs for them."""
    while True:
        stand = _stand(pool, stuck)
        stock, demand = _stock(pool, stand), pool.count(stand.placeable)
        packing = stock.pack(demand + extra)
        if packing is not None:
            break
        if extra:
            extra.clear()
        else:
            stuck |= _left_over(pool, stand, stock)
    bound = stock.pack(demand) if extra else packing
    assert bound is not None  # less than what was packed
    kept = dict(stock.held)
    spare = list(stock.blank)
    for each, gpus in stock.kept.items():
        count = packing.keep.get(each, 0)
        kept |= {gpu.uuid: each.offers for gpu in gpus[:count]}
        spare += gpus[count:] if each.cuttable else []
    recut = _cut(pool, stand, packing.cut, spare, kept, hosts)
    forced = sum(bool(stand.remaining(gpu)) for gpu in pool.gpus.values())
    return _Layout(pool, stand, kept | recut, recut, forced + bound.lower_bound)


def _left_over(pool: _Pool, stand: _Stand, stock: _Stock) -> dict[int, str]:
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
    usable = sum(not gpu.closed for gpu in pool.gpus.values())
    for level in sorted(levels):
        numbers = sorted(levels[level], key=lambda item: (-pool.demands[item].count, item))
        fit = _that_fit(pool, numbers, admitted, stock)
        admitted += pool.count(numbers[:fit])
        why = f"no place is left for {level[-1]} on the {usable} GPUs of this model that may be used"
        dropped |= dict.fromkeys(numbers[fit:], why)
    # Where the solver found no packing of all within its bounds, but one of each part.
    return dropped or dict.fromkeys(stand.placeable, "the solver found no packing within its bounds")


def _that_fit(pool: _Pool, numbers: Sequence[int], admitted: Mapping[str, int], stock: _Stock) -> int:
    """How many of these demands, from the first on, have a place beside what is admitted."""

    def too_many(count: int) -> bool:
        return stock.pack(Counter(admitted) + pool.count(numbers[:count])) is None

    return bisect_left(range(1, len(numbers) + 1), True, key=too_many)


def _cut(
    pool: _Pool,
    stand: _Stand,
    cuts: Mapping[Cut, int],
    spare: Sequence[FleetGpu],
    kept: Mapping[str, Cut],
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
    slices = Counter(pool.gpus[uuid].node for uuid, cut in kept.items() for _ in cut)
    on_hosts = {name: room.times(name, cores, memory) - slices[name] for name in by_node}
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
    fleet, gpus = layout.pool.fleet, layout.pool.gpus
    return [
        NodeMigChange(
            node=gpu.node,
            device=gpu.uuid,
            index=gpu.index,
            gpu_model=gpu.model,
            before=fleet.spelled(gpu, gpu.cut),
            after=fleet.spelled(gpu, layout.recut[gpu.uuid]),
            displaced=gpu.pods,
        )
        for gpu in gpus.values()
        if gpu.uuid in layout.recut
    ]


def _drain_order(changes: Iterable[NodeMigChange], fleet: MigFleet) -> tuple[str, ...]:
    """The Nodes to drain: first those where the fewest Pods must leave, of equals those with the fewest GPUs in use."""
    displaced = {
        name: {ref for change in found for ref in change.displaced}
        for name, found in grouped(changes, lambda change: change.node).items()
    }
    busy = Counter(gpu.node for gpu in fleet.gpus.values() if gpu.pods)
    return tuple(sorted(displaced, key=lambda name: (len(displaced[name]), busy[name], name)))


def _movers(layout: _Layout, stuck: Collection[int]) -> set[PodRef]:
    """Pods that keep none of their present devices."""
    at_home = layout.tenants(stay=True)
    demands = layout.pool.demands
    moving = {demands[number].pod for number in layout.stand.placeable if number not in at_home}
    staying = (*layout.stand.sitting, *at_home, *(demands.keys() & stuck))
    return moving - {demands[number].pod for number in staying}


def _place(
    layout: _Layout, stage: Mapping[str, int], hosts: _Hosts, room: Room
) -> tuple[dict[int, Sequence[str]], dict[int, str]]:
    """UUIDs of each demand's slices, on a Node that would take its Pod, which is placed there in `room`; and why no
    Node would. Pods on GPUs that are drained first get the slices that are ready first."""
    spots: dict[int, Sequence[str]] = {}
    refused: dict[int, str] = {}
    pool, at_home = layout.pool, layout.tenants(stay=True)
    for number in layout.stand.sitting:
        if pool.demands[number].mig_profile:
            spots[number] = [pool.device[item][0].uuid for item in pool.demands[number].devices]
    left = {uuid: Counter(cut) for uuid, cut in layout.after.items()}
    for number, uuid in at_home.items():
        left[uuid][pool.demands[number].mig_profile] -= 1
        spots[number] = [uuid]
    ready = {uuid: stage[pool.gpus[uuid].node] if uuid in layout.recut else 0 for uuid in layout.after}

    def first_ready(uuids: Sequence[str]) -> tuple[int, object]:
        return ready[uuids[0]], pool.gpus[uuids[0]].order

    # Profile → its free slices on each Node; the ready ones first, of a Node as of all Nodes.
    lines: dict[str, list[list[str]]] = {}
    for profile in {name for cut in left.values() for name in cut}:
        free = [uuid for uuid, cut in left.items() for _ in range(cut[profile])]
        on_nodes = grouped(sorted(free, key=lambda uuid: first_ready([uuid])), lambda uuid: pool.gpus[uuid].node)
        lines[profile] = sorted(on_nodes.values(), key=first_ready)
    unfit: set[tuple[object, str]] = set()

    def taken(demand: SliceDemand) -> list[str]:
        pod = hosts.pods.get(demand.pod)
        # A Node that refused one Pod of a workload refuses every other one with the same requests.
        alike = demand.pod if pod is None else (pod.workload, pod.cpu_cores, pod.memory_bytes, room.node_of(pod.ref))
        line = lines.get(demand.mig_profile, [])
        for at, uuids in enumerate(line):
            if len(uuids) < demand.count or (alike, node := pool.gpus[uuids[0]].node) in unfit:
                continue
            if not hosts.refusal(demand, (node,), room):
                found, uuids[: demand.count] = uuids[: demand.count], []
                if not uuids:
                    del line[at]
                elif ready[uuids[0]] != ready[found[0]]:
                    line.sort(key=first_ready)
                return found
            unfit.add((alike, node))
        return []

    leaves_at = {
        number: min((stage[gpu.node] for gpu in gone if gpu.uuid in layout.recut), default=len(stage) + 1)
        for number in layout.stand.placeable
        if number not in at_home
        for gone in ([pool.device[item][0] for item in pool.demands[number].devices if item in pool.device],)
    }
    # Several slices for one Pod first, as they must be on one Node.
    for number in sorted(leaves_at, key=lambda item: (-pool.demands[item].count, leaves_at[item], item)):
        uuids = taken(pool.demands[number])
        if uuids:
            spots[number] = uuids
        else:
            refused[number] = _no_host(layout, pool.demands[number], hosts, room)
    return spots, refused


def _no_host(layout: _Layout, demand: SliceDemand, hosts: _Hosts, room: Room) -> str:
    slices: Counter[str] = Counter()
    for uuid, cut in layout.after.items():
        slices[layout.pool.gpus[uuid].node] += cut.count(demand.mig_profile)
    nodes = [name for name, count in slices.items() if count >= demand.count]
    if demand.count > 1 and not nodes:
        return f"no Node would have {demand.count} × {demand.mig_profile} for one Pod"
    reason = hosts.refusal(demand, nodes, room.copy(), tell=True) or "Nodes that would take it have no free slice"
    return f"no Node with slices {demand.mig_profile} would take its Pod: {reason}"


def _freed(
    pools: Iterable[_Pool], in_use: Collection[str], hosts: _Hosts, room: Room
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The GPUs that are emptied and whose host could take a Pod like the pool's least demanding one, after those that
    were empty before; and the other emptied GPUs."""
    able: list[str] = []
    unable: list[str] = []
    for pool in pools:
        cores, memory = min(hosts.requests(pool.demands.values()), default=(0.0, 0))
        empty = [gpu for uuid, gpu in pool.gpus.items() if uuid not in in_use]
        for node, gpus in grouped(empty, lambda gpu: gpu.node).items():
            emptied = [gpu.uuid for gpu in gpus if gpu.pods]
            room_for = room.times(node, cores, memory) - (len(gpus) - len(emptied))
            count = int(min(max(room_for, 0), len(emptied)))
            able += emptied[:count]
            unable += emptied[count:]
    return tuple(able), tuple(unable)
