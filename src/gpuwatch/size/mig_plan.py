"""The fleet MIG plan: all advised slices in valid geometries, on the fewest GPUs, with the least disturbance.

Per GPU model: read the present GPUs (mig_fleet), pack (mig_pack), choose GPUs, order the Nodes for draining, and give
each Pod a slice. A demand without a place stays where it is and is reported.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from itertools import groupby

from gpuwatch.act.placement.landing import Nowhere, Room
from gpuwatch.facts.catalog.gpus import find_gpu, profile_name
from gpuwatch.facts.catalog.mig import MigGeometry, geometry
from gpuwatch.facts.model.bounds import named, require
from gpuwatch.facts.model.cluster import Cluster, Pod
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.sizing import MigPlan, NodeMigChange, Recommendation, SliceDemand, TargetKind
from gpuwatch.facts.model.telemetry import Device, DeviceId, PodRef
from gpuwatch.facts.model.workload_profile import WorkloadKey
from gpuwatch.size import mig_parted
from gpuwatch.size.mig_fleet import (
    FleetGpu,
    FreeCapacity,
    MigFleet,
    fragmentation_ratio,
    gpu_of,
    holders_of,
    read_fleet,
)
from gpuwatch.size.mig_pack import Cut, KeptClass, Packing, Problem, UniformClass, pack, shortage

# In so many rounds, slices are added on further Nodes for Pods that no host takes. Afterwards such Pods stay.
_MORE_SLICES_ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MigPlanPolicy:
    """How far the fleet MIG plan may go.

    move_tenants: whether a Pod that needs exactly the slice it has may be moved to save a GPU. Yes: fewest GPUs come
        first. Such Pods are listed (`MigPlan.moved`); of plans with equally few GPUs the one with the fewest moves and
        cuts wins.
    protected_priority: Pods at or above it are never moved for others (2,000,000,000: the system-critical classes).
    nodes_per_batch: Nodes that are drained together. One: a cut takes minutes, and a mistake affects one Node only.
    displaced_pods_per_batch: a batch of several Nodes displaces no more Pods than this.
    """

    move_tenants: bool = True
    protected_priority: int = 2_000_000_000
    nodes_per_batch: int = 1
    displaced_pods_per_batch: int = 32

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
        shape = geometry(found.mig_family) if found is not None else None
        if found is None or shape is None:
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
        item = advised.get(key)
        pod = pods.get(ref)
        demands.append(
            SliceDemand(
                key=key,
                gpu_model=key.gpu_model,
                mig_profile=item.chosen.target.mig_profile if item is not None else key.mig_profile,
                count=item.chosen.target.gpus_per_pod if item is not None else len(ids),
                pod=ref,
                devices=tuple(ids),
                priority=pod.priority if pod is not None else 0,
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
    models = sorted({demand.gpu_model for demand in usable if demand.mig_profile})
    hosts = _Hosts(Room(cluster.nodes, cluster.pods, {}), {pod.ref: pod for pod in cluster.pods})
    pools = [
        _Pool(fleet, model, [item for item in usable if item.gpu_model == model], policy, hosts) for model in models
    ]
    while True:
        changes = [change for pool in pools for change in pool.changes]
        displaced = _displaced(changes)
        order = _order(displaced, fleet)
        batches = _batches(order, displaced, policy)
        stage = {name: number for number, batch in enumerate(batches, 1) for name in batch}
        room = hosts.room.copy()
        room.without(ref for pool in pools for ref in pool.movers())
        results = [(pool, _place(pool, stage, room)) for pool in pools]
        # Each of these repairs one thing, so that the next round may find another.
        again = [pool.repaired(placed, room) for pool, placed in results]
        if not any(again):
            break
    rank = {name: number for number, name in enumerate(order)}
    placements: dict[str, str] = {}
    waiting: set[PodRef] = set()
    after_free: list[FreeCapacity] = []
    before_free: list[FreeCapacity] = []
    gpus_after = gpus_before = 0
    freed: list[str] = []
    hostless: list[str] = []
    replicas: Counter[WorkloadKey] = Counter()
    for pool, placed in results:
        waiting |= placed.waiting
        complaints += pool.complaints
        for demand, spots in placed.spots:
            replicas[demand.key] += 1
            where = ", ".join(
                f"{uuid} {fleet.spelled(fleet.gpus[uuid].node, pool.model, name)}" for uuid, name in spots
            )
            placements[f"{demand.key} #{replicas[demand.key]}"] = where
        before = {uuid for uuid, gpu in pool.gpus.items() if gpu.pods}
        after = set(placed.taken) | pool.held_whole()
        gpus_before += len(before)
        gpus_after += len(after)
        able, unable = pool.able_to_serve(before, after, room)
        freed += able
        hostless += unable
        before_free += pool.free_before()
        after_free += pool.free_after(placed.taken, after)
    mig_config, labels = _config(changes, fleet)
    return MigPlan(
        at=at,
        gpus_before=gpus_before,
        gpus_after=gpus_after,
        lower_bound_gpus=sum(pool.lower_bound for pool in pools),
        fragmentation_before_ratio=fragmentation_ratio(before_free),
        fragmentation_after_ratio=fragmentation_ratio(after_free),
        changes=tuple(sorted(changes, key=lambda item: (rank[item.node], item.index or 0))),
        order=order,
        batches=batches,
        freed=tuple(freed),
        freed_without_host=tuple(hostless),
        moved=tuple(sorted({ref for pool in pools for ref in pool.moved})),
        waiting=tuple(sorted(waiting)),
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


@dataclass(slots=True)
class _Placements:
    """spots: demand → (UUID, profile) of its slices. taken: UUID → profiles of the slices in use. failed: numbers of
    demands whose Pods no Node with a slice for them would take."""

    failed: list[int] = field(default_factory=list)
    spots: list[tuple[SliceDemand, tuple[tuple[str, str], ...]]] = field(default_factory=list)
    taken: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    waiting: set[PodRef] = field(default_factory=set)


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


class _Pool:
    """One GPU model. A demand without a place is fixed where it is now, and the rest is packed again."""

    def __init__(
        self, fleet: MigFleet, model: str, demands: Sequence[SliceDemand], policy: MigPlanPolicy, hosts: _Hosts
    ) -> None:
        self.hosts = hosts
        self.extra = Counter[str]()  # slices beyond the demand, as hosts cannot fill all of a Node's
        self.rounds = 0
        self.fleet = fleet
        self.model = model
        self.policy = policy
        found = find_gpu(model)
        shape = geometry(found.mig_family) if found is not None else None
        assert shape is not None  # _checked
        self.shape: MigGeometry = shape
        self.gpus = {uuid: gpu for uuid, gpu in fleet.gpus.items() if gpu.model == model}
        self.row = {row.device: (gpu, row) for gpu in self.gpus.values() for row in gpu.rows}
        self.all_demands = demands
        self.mix = Counter[str]()
        for demand in demands:
            self.mix[demand.mig_profile] += demand.count
        self.asked = frozenset(self.mix)
        # Counters, as an instance may have a profile that the catalog lacks: 0.
        self.units = Counter({item.name: item.size for item in shape.profiles})
        self.most = Counter({item.name: item.max_instances for item in shape.profiles})
        self.stuck: set[int] = set()  # demands without a place; those that run stay as they are
        self.complaints: list[str] = []
        self.changes: list[NodeMigChange] = []
        self.moved: list[PodRef] = []
        self.lower_bound = 0
        self.after: dict[str, Cut] = {}  # GPUs that slices may be on → their instances in the end
        self.recut: set[str] = set()
        self.plan()

    def _stays(self, demand: SliceDemand) -> bool:
        """Whether it holds exactly the devices that it needs."""
        rows = [self.row[item][1] for item in demand.devices if item in self.row]
        return len(rows) == demand.count and all(row.profile == demand.mig_profile for row in rows)

    def _sort_out(self) -> None:
        """Finds the demands that leave or may be moved, and the GPUs that must not change (fixed)."""
        self.tenants: dict[str, list[int]] = defaultdict(list)  # UUID → demands that stay, but could be moved
        self.fixed: set[str] = {uuid for uuid, gpu in self.gpus.items() if gpu.closed}
        self.sitting: set[int] = set()  # demands that stay on fixed GPUs
        self.placeable: list[int] = []
        leaves: set[tuple[DeviceId, PodRef]] = set()
        movable: dict[tuple[DeviceId, PodRef], int] = {}
        for number, demand in enumerate(self.all_demands):
            if number in self.stuck:
                continue
            if not self._stays(demand):
                if demand.mig_profile:
                    leaves |= {(item, demand.pod) for item in demand.devices}
                    self.placeable.append(number)
                continue
            uuids = {self.row[item][0].uuid for item in demand.devices}
            anchored = (
                not demand.mig_profile
                or demand.count > 1
                or not self.policy.move_tenants
                or demand.priority >= self.policy.protected_priority
            )
            if anchored or uuids & self.fixed:
                self.sitting.add(number)
                self.fixed |= uuids
            else:
                movable[demand.devices[0], demand.pod] = number
        for uuid, gpu in self.gpus.items():
            for row in gpu.rows:
                unknown = [
                    ref for ref in row.pods if (row.device, ref) not in leaves and (row.device, ref) not in movable
                ]
                shared = len(row.pods) > 1 and any((row.device, ref) in movable for ref in row.pods)
                if unknown or shared:
                    self.fixed.add(uuid)
        for (device, _), number in movable.items():
            gpu = self.row[device][0]
            if gpu.uuid in self.fixed:
                self.sitting.add(number)
            else:
                self.tenants[gpu.uuid].append(number)
                self.placeable.append(number)
        self.leaves = leaves

    def _remaining(self, gpu: FleetGpu) -> Counter[str]:
        """Profiles of a fixed GPU that Pods continue to hold ('' for the whole GPU)."""
        return Counter(row.profile for row in gpu.rows if any((row.device, ref) not in self.leaves for ref in row.pods))

    def _offers(self, gpu: FleetGpu) -> Cut:
        """Instances of the present cut that this plan may use."""
        if gpu.closed:
            return ()
        free = Counter(gpu.cut) - (self._remaining(gpu) if gpu.uuid in self.fixed else Counter())
        return tuple(sorted(free.elements()))

    def plan(self) -> None:
        while True:
            self._sort_out()
            problem, members = self._problem()
            packing = pack(replace(problem, demand=self.extra + Counter(problem.demand)))
            if packing is None and self.extra:
                self.extra.clear()
                continue
            if packing is None:
                dropped = self._left_over(problem) or dict.fromkeys(
                    self.placeable, "the solver found no packing within its bounds"
                )
            else:
                self._choose(packing, members)
                dropped = self._split_pods()
                if not dropped:
                    break
            self._drop(dropped)
        bound = pack(problem) if self.extra else packing
        assert bound is not None  # less than what was packed
        forced = sum(count for each, count in problem.kept.items() if each.forced)
        self.lower_bound = bound.lower_bound + len(self.held_whole()) - forced
        self._list_changes()

    def _drop(self, dropped: Mapping[int, str]) -> None:
        """A dropped demand that runs keeps a GPU that this packing used: the rest is packed again without it."""
        self.stuck |= set(dropped)
        for number, reason in dropped.items():
            demand = self.all_demands[number]
            stays = "; it stays where it is" if demand.devices else ""
            self.complaints.append(f"{_who(demand)}: {reason}{stays}.")

    def repaired(self, placed: _Placements, room: Room) -> bool:
        """Whether anything was changed. For Pods that no host takes, slices on further Nodes are tried first."""
        if placed.failed:
            failed = [self.all_demands[number] for number in placed.failed]
            if self.rounds < _MORE_SLICES_ROUNDS and all(item.pod in self.hosts.pods for item in failed):
                self.rounds += 1
                self.extra.update(item.mig_profile for item in failed)
            else:
                self._drop({number: self._no_host(self.all_demands[number], room) for number in placed.failed})
            self.plan()
            return True
        unused = {uuid for uuid in self.recut if uuid not in placed.taken}
        self.recut -= unused
        for uuid in unused:
            del self.after[uuid]
        self._list_changes()
        return bool(unused)

    def _no_host(self, demand: SliceDemand, room: Room) -> str:
        nodes = {self.gpus[uuid].node for uuid, cut in self.after.items() if demand.mig_profile in cut}
        trial = room.copy()
        reason = self.hosts.lands(demand, nodes, trial, tell=True) or "Nodes that would take it have no free slice"
        return f"no Node with slices {demand.mig_profile} would take its Pod: {reason}"

    def movers(self) -> set[PodRef]:
        """Pods that keep none of their present devices."""
        at_home = {number for uuid in self.kept for number in self.tenants.get(uuid, ())}
        moving = {self.all_demands[number].pod for number in self.placeable if number not in at_home}
        return moving - {self.all_demands[number].pod for number in (*self.sitting, *at_home, *self.stuck)}

    def able_to_serve(self, before: Collection[str], after: Collection[str], room: Room) -> tuple[list[str], list[str]]:
        """The freed GPUs whose host could take a Pod like the pool's least demanding one; and the other freed GPUs."""
        asked = [
            (pod.cpu_cores, pod.memory_bytes) for item in self.all_demands if (pod := self.hosts.pods.get(item.pod))
        ]
        cores, memory = min(asked, default=(0.0, 0))
        idle = Counter(gpu.node for uuid, gpu in self.gpus.items() if uuid not in before and uuid not in after)
        able: list[str] = []
        unable: list[str] = []
        for uuid in sorted(set(before) - set(after), key=lambda item: self.gpus[item].order):
            node = self.gpus[uuid].node
            idle[node] += 1
            (able if room.times(node, cores, memory) >= idle[node] else unable).append(uuid)
        return able, unable

    def _problem(self) -> tuple[Problem, Mapping[object, list[FleetGpu]]]:
        members: dict[object, list[FleetGpu]] = defaultdict(list)
        uniform_nodes = self._uniform_nodes()
        blank = 0
        for gpu in sorted(self.gpus.values(), key=lambda item: item.order):
            if gpu.node in uniform_nodes:
                continue
            fixed = gpu.uuid in self.fixed
            offers = self._offers(gpu)
            cuttable = not fixed and gpu.strategy == "mixed"
            if offers:
                forced = fixed and bool(self._remaining(gpu))
                tenants = len(self.tenants.get(gpu.uuid, ()))
                members[KeptClass(offers, tenants, forced, cuttable)].append(gpu)
            elif cuttable:
                blank += 1
                members[None].append(gpu)
        # Of Nodes that are alike, those with the fewest Pods in the way come first.
        for gpus in sorted(
            uniform_nodes.values(), key=lambda each: (sum(len(gpu.pods) for gpu in each), each[0].order)
        ):
            profiles = {name for gpu in gpus for name in gpu.cut}
            full = len(profiles) == 1 and all(len(gpu.cut) == self.most[next(iter(profiles))] for gpu in gpus)
            members[UniformClass(len(gpus), next(iter(profiles)) if full else "")] += gpus
        demand: Counter[str] = Counter()
        for number in self.placeable:
            demand[self.all_demands[number].mig_profile] += self.all_demands[number].count
        problem = Problem(
            family=self.shape.family,
            demand=demand,
            kept={each: len(found) for each, found in members.items() if isinstance(each, KeptClass)},
            uniform={
                each: len(found) // each.gpus for each, found in members.items() if isinstance(each, UniformClass)
            },
            blank=blank,
        )
        return problem, members

    def _uniform_nodes(self) -> dict[str, list[FleetGpu]]:
        """Nodes of strategy `single` that can be cut anew: no Pod stays on any of their GPUs."""
        single = (gpu for gpu in self.gpus.values() if gpu.strategy == "single")
        nodes = grouped(sorted(single, key=lambda gpu: gpu.order), lambda gpu: gpu.node)
        everyone = Counter(gpu.node for gpu in self.fleet.gpus.values())
        everyone.update({node: len(others) for node, others in self.fleet.bystanders.items()})
        return {
            node: gpus
            for node, gpus in nodes.items()
            if len(gpus) == everyone[node]
            and not any(gpu.uuid in self.fixed or self.tenants.get(gpu.uuid) for gpu in gpus)
        }

    def _left_over(self, problem: Problem) -> dict[int, str]:
        """Demands that get no place, with the reason: the lowest priority first, of equals those that do not run."""
        levels: dict[tuple[int, int], list[int]] = defaultdict(list)
        tenants = {number for numbers in self.tenants.values() for number in numbers}
        for number in self.placeable:
            demand = self.all_demands[number]
            rank = 0 if number in tenants else 1 if demand.devices else 2
            levels[rank, -demand.priority].append(number)
        weights = {item.name: item.size / self.shape.grid_units for item in self.shape.profiles}
        admitted: Counter[str] = Counter()
        dropped: dict[int, str] = {}
        for level in sorted(levels):
            asked: Counter[str] = Counter()
            for number in levels[level]:
                asked[self.all_demands[number].mig_profile] += self.all_demands[number].count
            missing = shortage(replace(problem, demand=admitted + asked), weights, admitted)
            for number in sorted(levels[level], key=lambda item: (-self.all_demands[item].count, item), reverse=True):
                demand = self.all_demands[number]
                if missing.get(demand.mig_profile, 0) > 0:
                    missing[demand.mig_profile] -= demand.count
                    asked[demand.mig_profile] -= demand.count
                    dropped[number] = self._why_none(demand.mig_profile)
            admitted += asked
        return dropped

    def _why_none(self, profile: str) -> str:
        open_ = sum(not gpu.closed for gpu in self.gpus.values())
        away = len(self.gpus) - open_
        if not self.gpus:
            return f"no GPU of this model can be cut, so there is no place for {profile}"
        apart = f"; {away} more are out of service or must not change" if away else ""
        return f"no place is left for {profile} on the {open_} GPUs of this model that may be used{apart}"

    def _choose(self, packing: Packing, members: Mapping[object, list[FleetGpu]]) -> None:
        """Chooses the GPUs that keep their cut, and the new cuts of others."""
        self.after = {}
        self.recut = set()
        self.uniform_recut: set[str] = set()
        spare = list(members.get(None, ()))
        for each, count in packing.keep.items():
            found = members[each]
            for gpu in found[:count]:
                self.after[gpu.uuid] = each.offers
            if each.cuttable:
                spare += found[count:]
        self._cut(packing.cut, spare)
        nodes_of: dict[UniformClass, deque[list[FleetGpu]]] = {}
        for alike in {found for found, _ in packing.uniform}:
            gpus = members[alike]
            nodes_of[alike] = deque(gpus[at : at + alike.gpus] for at in range(0, len(gpus), alike.gpus))
        for (uniform, name), (nodes, used) in sorted(packing.uniform.items()):
            left = used
            for _ in range(nodes):
                for gpu in nodes_of[uniform].popleft():
                    cut = (name,) * self.most[name]
                    if gpu.cut != cut:
                        self.uniform_recut.add(gpu.uuid)
                    if left:
                        self.after[gpu.uuid] = cut
                        left -= 1

    def _cut(self, cuts: Mapping[Cut, int], spare: Sequence[FleetGpu]) -> None:
        """Chooses GPUs for the new cuts: on few Nodes, with few Pods on them, alike on each Node."""
        by_node = grouped(sorted(spare, key=lambda gpu: (len(gpu.pods), gpu.order)), lambda gpu: gpu.node)
        wanted = Counter(dict(cuts))
        nodes = sorted(
            by_node.items(),
            key=lambda item: (sum(len(gpu.pods) for gpu in item[1]) / len(item[1]), -len(item[1]), item[0]),
        )
        # GPUs whose slices no host can fill are cut last.
        for left in (self._left_on_hosts(by_node), dict.fromkeys(by_node, math.inf)):
            for name, gpus in nodes:
                free = deque(gpu for gpu in gpus if gpu.uuid not in self.recut)
                while free and +wanted and left[name] > 0:
                    # The most frequent cut first, so that whole Nodes are alike and can use a standard config.
                    cut = min(wanted, key=lambda each: (-wanted[each], each))
                    count = min(wanted[cut], len(free), math.ceil(min(left[name] / len(cut), len(free))))
                    for _ in range(count):
                        gpu = free.popleft()
                        self.after[gpu.uuid] = cut
                        self.recut.add(gpu.uuid)
                    wanted[cut] -= count
                    left[name] -= count * len(cut)

    def _left_on_hosts(self, nodes: Iterable[str]) -> dict[str, float]:
        """Node → Pods of average need that it takes beside those that stay and the slices that are kept."""
        room = self.hosts.room.copy()
        refs = {self.all_demands[number].pod for number in self.placeable}
        room.without(refs)
        pods = [pod for ref in refs if (pod := self.hosts.pods.get(ref)) is not None]
        cores = sum(pod.cpu_cores for pod in pods) / max(len(pods), 1)
        memory = sum(pod.memory_bytes for pod in pods) / max(len(pods), 1)
        kept = Counter(self.gpus[uuid].node for uuid, cut in self.after.items() for _ in cut)
        return {name: room.times(name, cores, memory) - kept[name] for name in nodes}

    def _split_pods(self) -> dict[int, str]:
        """Demands of several slices for one Pod that fit on no Node, with the reason."""
        room: dict[str, Counter[str]] = defaultdict(Counter)
        for uuid, cut in self.after.items():
            room[self.gpus[uuid].node].update(cut)
        for uuid, numbers in self.tenants.items():
            if uuid in self.after and uuid not in self.recut:
                room[self.gpus[uuid].node].subtract(self.all_demands[number].mig_profile for number in numbers)
        failed = {}
        for number in self.groups():
            demand = self.all_demands[number]
            node = next((name for name in sorted(room) if room[name][demand.mig_profile] >= demand.count), None)
            if node is None:
                failed[number] = f"no Node would have {demand.count} × {demand.mig_profile} for one Pod"
            else:
                room[node][demand.mig_profile] -= demand.count
        return failed

    @property
    def changed(self) -> set[str]:
        return self.recut | self.uniform_recut

    @property
    def kept(self) -> set[str]:
        """GPUs that slices may use and that keep their cut."""
        return set(self.after) - self.changed

    def groups(self) -> list[int]:
        """Demands of several slices for one Pod, largest first."""
        found = [number for number in self.placeable if self.all_demands[number].count > 1]
        return sorted(found, key=lambda number: (-self.all_demands[number].count, number))

    def _list_changes(self) -> None:
        self.changes = []
        uniform = {self.gpus[uuid].node: cut for uuid, cut in self.after.items() if uuid in self.uniform_recut}
        for uuid in sorted(self.changed, key=lambda item: self.gpus[item].order):
            gpu = self.gpus[uuid]
            # On a `single` Node an unused GPU is cut like the others.
            after = self.after[uuid] if uuid in self.after else uniform[gpu.node]
            self.changes.append(
                NodeMigChange(
                    node=gpu.node,
                    device=uuid,
                    index=gpu.index,
                    gpu_model=self.model,
                    before=self._spelled(gpu, gpu.cut),
                    after=self._spelled(gpu, after),
                    displaced=gpu.pods,
                )
            )
        kept = self.kept
        self.moved = [
            self.all_demands[number].pod
            for uuid, numbers in self.tenants.items()
            if uuid not in kept
            for number in numbers
        ]

    def _spelled(self, gpu: FleetGpu, cut: Cut) -> Cut:
        return tuple(self.fleet.spelled(gpu.node, self.model, name) for name in cut)

    def held_whole(self) -> set[str]:
        """GPUs that Pods continue to hold outside the packing."""
        return {uuid for uuid in self.fixed if self._remaining(self.gpus[uuid])}

    def free_before(self) -> list[FreeCapacity]:
        return [
            self._free(gpu, gpu.cut, Counter(row.profile for row in gpu.rows if row.pods), bool(gpu.pods))
            for gpu in self.gpus.values()
        ]

    def free_after(self, taken: Mapping[str, Counter[str]], used: Collection[str]) -> list[FreeCapacity]:
        found, changed = [], self.changed
        for uuid, gpu in self.gpus.items():
            held = taken.get(uuid, Counter()) + (self._remaining(gpu) if uuid in self.fixed else Counter())
            cut = self.after.get(uuid, gpu.cut) if uuid in changed else gpu.cut
            found.append(self._free(gpu, cut, held, uuid in used))
        return found

    def _free(self, gpu: FleetGpu, cut: Cut, held: Counter[str], used: bool) -> FreeCapacity:
        taken = self.shape.grid_units
        if not held[""]:
            taken = sum(self.units[name] * count for name, count in held.items())
        if gpu.closed:
            serves: frozenset[str] = frozenset()
        elif used:
            serves = frozenset(Counter(cut) - held)
        else:
            # An empty GPU can be cut in any way, or serve as a whole.
            serves = self.asked
        return FreeCapacity(share=1 - taken / self.shape.grid_units, serves=serves, mix=self.mix)


def _place(pool: _Pool, stage: Mapping[str, int], hosts: Room) -> _Placements:
    """Gives each demand its slices on Nodes that would take its Pod, and places the Pod there in `hosts`. Pods on GPUs
    that are drained first get the slices that are ready first. A Pod whose slice is ready only after it must leave is
    in `waiting`."""
    placed = _Placements()
    room: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))  # profile → Node → UUID
    for uuid, cut in pool.after.items():
        for name, count in Counter(cut).items():
            room[name][pool.gpus[uuid].node][uuid] = count
    kept = pool.kept
    home = {number: uuid for uuid, numbers in pool.tenants.items() if uuid in kept for number in numbers}

    def take(number: int, spots: Sequence[tuple[str, str]]) -> None:
        for uuid, name in spots:
            placed.taken[uuid][name] += 1
        placed.spots.append((pool.all_demands[number], tuple(spots)))

    for number, uuid in home.items():
        name = pool.all_demands[number].mig_profile
        room[name][pool.gpus[uuid].node][uuid] -= 1
        take(number, [(uuid, name)])
    for number in pool.sitting:
        demand = pool.all_demands[number]
        placed_rows = [pool.row[item] for item in demand.devices]
        if demand.mig_profile:
            placed.spots.append((demand, tuple((gpu.uuid, row.profile) for gpu, row in placed_rows)))
    for number in pool.groups():
        demand = pool.all_demands[number]
        by_node = room[demand.mig_profile]
        enough = (name for name in sorted(by_node) if by_node[name].total() >= demand.count)
        node = next((name for name in enough if not pool.hosts.lands(demand, (name,), hosts)), None)
        if node is None:
            placed.failed.append(number)
            continue
        spots = list((+by_node[node]).elements())[: demand.count]
        by_node[node].subtract(spots)
        take(number, [(uuid, demand.mig_profile) for uuid in spots])
    ready = {uuid: 0 if uuid in kept else stage[pool.gpus[uuid].node] for uuid in pool.after}
    lines: dict[str, list[tuple[str, list[str]]]] = {}  # profile → (Node, its free slices), the ready ones first
    for profile, by_node in room.items():
        free = [uuid for by_gpu in by_node.values() for uuid in (+by_gpu).elements()]
        free.sort(key=lambda uuid: (ready[uuid], pool.gpus[uuid].order))
        lines[profile] = [(node, list(uuids)) for node, uuids in groupby(free, lambda uuid: pool.gpus[uuid].node)]
    refused: set[tuple[object, str]] = set()

    def first(demand: SliceDemand) -> str | None:
        pod = pool.hosts.pods.get(demand.pod)
        # A Node that refused one Pod of a workload refuses every other one with the same requests.
        alike = demand.pod if pod is None else (pod.workload, pod.cpu_cores, pod.memory_bytes, hosts.node_of(pod.ref))
        line = lines.get(demand.mig_profile, [])
        for at, (node, uuids) in enumerate(line):
            if (alike, node) in refused:
                continue
            if not pool.hosts.lands(demand, (node,), hosts):
                line[at : at + 1] = [(node, uuids[1:])] if uuids[1:] else []
                return uuids[0]
            refused.add((alike, node))
        return None

    leaves_at = _leaves_at(pool, stage, home)
    for number in sorted(leaves_at, key=lambda item: (leaves_at[item], item)):
        demand = pool.all_demands[number]
        found = first(demand)
        if found is None:
            placed.failed.append(number)
            continue
        if demand.devices and leaves_at[number] <= ready[found]:
            placed.waiting.add(demand.pod)
        take(number, [(found, demand.mig_profile)])
    return placed


def _leaves_at(pool: _Pool, stage: Mapping[str, int], home: Collection[int]) -> dict[int, int]:
    """Number of a demand for one slice → the batch in which its Pod has to leave, or one after the last."""
    changed = pool.changed
    leaves_at = {}
    for number in pool.placeable:
        demand = pool.all_demands[number]
        if number not in home and demand.count == 1:
            gone = [
                stage[pool.row[item][0].node]
                for item in demand.devices
                if item in pool.row and pool.row[item][0].uuid in changed
            ]
            leaves_at[number] = min(gone, default=len(stage) + 1)
    return leaves_at


def _displaced(changes: Sequence[NodeMigChange]) -> Mapping[str, set[PodRef]]:
    """Node → Pods that must leave it."""
    by_node = grouped(changes, lambda change: change.node)
    return {name: {ref for change in found for ref in change.displaced} for name, found in by_node.items()}


def _order(displaced: Mapping[str, set[PodRef]], fleet: MigFleet) -> tuple[str, ...]:
    """Nodes by the number of Pods that must leave, then by the GPUs in use on them."""
    busy = Counter(gpu.node for gpu in fleet.gpus.values() if gpu.pods)
    return tuple(sorted(displaced, key=lambda name: (len(displaced[name]), busy[name], name)))


def _batches(
    order: Sequence[str], displaced: Mapping[str, set[PodRef]], policy: MigPlanPolicy
) -> tuple[tuple[str, ...], ...]:
    batches: list[list[str]] = []
    pods = 0
    for name in order:
        full = not batches or len(batches[-1]) >= policy.nodes_per_batch
        if full or pods + len(displaced[name]) > policy.displaced_pods_per_batch:
            batches.append([])
            pods = 0
        batches[-1].append(name)
        pods += len(displaced[name])
    return tuple(tuple(batch) for batch in batches)


def _config(changes: Sequence[NodeMigChange], fleet: MigFleet) -> tuple[Mapping[str, object], Mapping[str, str]]:
    """mig-parted's config and the labels, for the Nodes that change."""
    touched = {change.node for change in changes}
    after = {change.device: change.after for change in changes}
    cuts: dict[str, dict[int, Cut]] = {name: {} for name in touched}
    models: dict[str, set[str]] = {name: set() for name in touched}
    catalog: dict[str, set[Cut]] = {name: set() for name in touched}
    for gpu in fleet.gpus.values():
        if gpu.node not in touched:
            continue
        spelled = tuple(fleet.spelled(gpu.node, gpu.model, name) for name in gpu.cut)
        cuts[gpu.node][gpu.index] = after.get(gpu.uuid, spelled)
        models[gpu.node].add(gpu.model)
        catalog[gpu.node].add(cuts[gpu.node][gpu.index])
    for name in touched & set(fleet.bystanders):
        cuts[name] |= fleet.bystanders[name]
        models[name].add("")
    nodes = {}
    for name in touched:
        standard = ""
        found = find_gpu(next(iter(models[name]))) if len(models[name]) == 1 else None
        shape = geometry(found.mig_family) if found is not None else None
        if shape is not None and len(catalog[name]) == 1:
            standard = mig_parted.standard_name(shape, next(iter(catalog[name])))
        nodes[name] = (mig_parted.layout(cuts[name]), standard)
    return mig_parted.config(nodes)
