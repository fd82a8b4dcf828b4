"""Fleets for the tests of the MIG plan, and a check of every plan that shares no code with the planner."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from gpuwatch.facts.catalog.gpus import find_gpu
from gpuwatch.facts.catalog.mig import geometry, placement_sets
from gpuwatch.facts.model.cluster import Cluster, Condition, Node, Pod
from gpuwatch.facts.model.sizing import MigPlan, SliceDemand
from gpuwatch.facts.model.telemetry import Device, Vendor
from gpuwatch.facts.model.workload_profile import WorkloadKey
from gpuwatch.size.mig_plan import MigPlanPolicy, plan_mig

AT = datetime(2026, 10, 1, 12, 0, tzinfo=UTC)
A100 = "A100-SXM4-40GB"
OTHER_SPELLINGS = {"3g.39gb": "3g.40gb"}
PLAIN = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


@dataclass
class MigFleet:
    """Nodes, devices and demands under construction."""

    model: str = A100
    nodes: list[Node] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    demands: list[SliceDemand] = field(default_factory=list)

    def node(
        self, name: str, gpus: int = 1, *, cuts: Mapping[int, Sequence[str]] | None = None, **changes: object
    ) -> None:
        """A Node with MIG off on its GPUs, but for `cuts`: index → instances."""
        base = Node(
            name=name,
            conditions=(Condition("Ready", "True"),),
            gpu_product=f"NVIDIA-{self.model}",
            gpu_count=gpus,
            mig_strategy="mixed",
        )
        self.nodes.append(replace(base, **changes))  # type: ignore[arg-type]
        for index in range(gpus):
            uuid = f"GPU-{name}-{index}"
            row = Device(
                id=uuid, uuid=uuid, vendor=Vendor.NVIDIA, vocabulary="dcgm", index=str(index), model=self.model,
                node_label=name, node=name,
            )  # fmt: skip
            cut = (cuts or {}).get(index, ())
            self.devices += [
                replace(row, id=f"{uuid}/{number}", mig_instance=str(number), mig_profile=profile)
                for number, profile in enumerate(cut, 1)
            ] or [row]

    def holds(
        self,
        name: str,
        device: str,
        profile: str | None = None,
        *,
        wants: str | None = None,
        host: Mapping[str, object] | None = None,
        **changes: object,
    ) -> str:
        """A Pod team/name that holds the device; `wants`: what it was advised, else it needs what it has. None of
        both: a Pod that nobody made a demand for."""
        ref = f"team/{name}"
        number = next(at for at, item in enumerate(self.devices) if item.id == device)
        held = self.devices[number]
        self.devices[number] = replace(held, pods=(*held.pods, ref))
        pod = Pod(namespace="team", name=name, node=held.node or "", phase="Running", workload=f"Job/team/{name}",
                  accelerators={"nvidia.com/gpu": 1}, **(host or {}))  # type: ignore[arg-type]  # fmt: skip
        self.pods.append(pod)
        need = wants if wants is not None else profile
        if need is not None:
            key = WorkloadKey(pod.workload, "main", self.model, held.mig_profile or "")
            demand = SliceDemand(key=key, gpu_model=self.model, mig_profile=need, pod=ref, devices=(device,))
            self.demands.append(replace(demand, **changes))  # type: ignore[arg-type]
        return ref

    def asks(self, profile: str, times: int = 1, **changes: object) -> None:
        """Pods that do not run yet."""
        for _ in range(times):
            number = len(self.demands)
            key = WorkloadKey(f"Job/team/new-{number}", "main", self.model)
            demand = SliceDemand(key=key, gpu_model=self.model, mig_profile=profile)
            self.demands.append(replace(demand, **changes))  # type: ignore[arg-type]

    @property
    def cluster(self) -> Cluster:
        return Cluster(nodes=tuple(self.nodes), pods=tuple(self.pods), known=True)

    def plan(self, policy: MigPlanPolicy | None = None, avoid: Iterable[str] = ()) -> MigPlan:
        """The plan, checked."""
        plan = plan_mig(self.demands, self.cluster, self.devices, policy or MigPlanPolicy(), AT, avoid=tuple(avoid))
        check(plan, self)
        return plan


HALVES = ("3g.20gb", "3g.20gb")


def fleet_of(*names: str, gpus: int = 1, cut: Sequence[str] = ()) -> MigFleet:
    """Nodes with these names. cut: the instances of the first GPU of each; MIG is off on the others."""
    fleet = MigFleet()
    for name in names:
        fleet.node(name, gpus, cuts={0: cut} if cut else None)
    return fleet


def check(plan: MigPlan, fleet: MigFleet) -> None:
    """Everything that has to hold of any plan. Counts by itself, from the devices and from what the plan says."""
    rows: dict[str, list[Device]] = defaultdict(list)
    for device in fleet.devices:
        rows[device.uuid].append(device)
    now = {uuid: Counter(row.mig_profile for row in found if row.mig_profile) for uuid, found in rows.items()}
    after = dict(now)
    for change in plan.changes:
        shape = geometry(find_gpu(change.gpu_model).mig_family)  # type: ignore[union-attr]
        cut = [OTHER_SPELLINGS.get(name, name) for name in change.after]
        valid = [Counter(spot.profile for spot in placed) for placed in placement_sets(shape, set(cut))]  # type: ignore[arg-type]
        assert Counter(cut) in valid, f"{change.after} does not fit on one GPU"
        assert Counter(change.before) == now[change.device]
        assert set(change.displaced) == {ref for row in rows[change.device] for ref in row.pods}
        after[change.device] = Counter(change.after)
    spots = [spot for text in plan.placements.values() for spot in text.split(", ")]
    taken: dict[str, Counter[str]] = defaultdict(Counter)
    for spot in spots:
        uuid, profile = spot.split(" ")
        taken[uuid][profile] += 1
    for uuid, profiles in taken.items():
        assert profiles <= after[uuid], f"{uuid} has {after[uuid]} and is to serve {profiles}"
    changed = {change.device for change in plan.changes}
    # Whoever was not given a place stays, on a GPU that is not touched and not given away.
    demands = {demand.pod: demand for demand in fleet.demands if demand.pod}
    for device in fleet.devices:
        for ref in device.pods:
            if ref not in demands or not demands[ref].mig_profile:
                assert device.uuid not in changed, f"{ref} stays on {device.uuid}, which is to be cut"
                if not device.mig_profile:
                    assert device.uuid not in taken
    placed = Counter(name.rsplit(" #", 1)[0] for name in plan.placements)
    asked = Counter(str(demand.key) for demand in fleet.demands if demand.mig_profile)
    refused = Counter(
        str(demand.key)
        for demand in fleet.demands
        if demand.mig_profile and any(line.startswith(f"{demand.pod or demand.key} (") for line in plan.unplaced)
    )
    assert placed + refused == asked
    assert plan.gpus_after >= plan.lower_bound_gpus
    assert set(plan.node_labels) == {change.node for change in plan.changes} == set(plan.order)
    assert set(plan.freed).isdisjoint(taken)
    check_mig_parted(plan, after, fleet)


def check_mig_parted(plan: MigPlan, after: Mapping[str, Counter[str]], fleet: MigFleet) -> None:
    """The rules of mig-parted's v1 format, and that applying it leaves what the plan says."""
    if not plan.changes:
        assert plan.mig_parted == {}
        return
    assert set(plan.mig_parted) == {"version", "mig-configs"}
    assert plan.mig_parted["version"] == "v1"
    configs = plan.mig_parted["mig-configs"]
    assert isinstance(configs, dict)
    assert set(configs) == set(plan.node_labels.values())
    for name, entries in configs.items():
        assert len(name) <= 63
        assert entries
        for entry in entries:
            assert set(entry) <= {"devices", "mig-enabled", "mig-devices"}
            assert entry["devices"] == "all" or all(isinstance(index, int) for index in entry["devices"])
            assert isinstance(entry["mig-enabled"], bool)
            assert entry["mig-enabled"] == ("mig-devices" in entry)
            assert all(count > 0 for count in entry.get("mig-devices", {}).values())
    for node, name in plan.node_labels.items():
        gpus = {device.index: device.uuid for device in fleet.devices if device.node == node}
        covered: Counter[str] = Counter()
        for entry in configs[name]:
            indices = list(gpus) if entry["devices"] == "all" else [str(index) for index in entry["devices"]]
            covered.update(indices)
            for index in indices:
                assert Counter(entry.get("mig-devices", {})) == after[gpus[index]]
        assert covered == Counter(gpus.keys()), f"{node}: mig-parted wants each GPU covered once"


def random_fleet(seed: int, workloads: int, profiles: Sequence[str] = PLAIN) -> MigFleet:
    """A mix of Pods that do not run yet, on empty Nodes of eight that are enough."""
    chance = random.Random(seed)
    fleet = MigFleet()
    weights = [chance.random() ** 2 for _ in profiles]
    for profile, count in Counter(chance.choices(profiles, weights, k=workloads)).items():
        fleet.asks(profile, count)
    for number in range(workloads // 8 + 1):
        fleet.node(f"node-{number:04}", gpus=8)
    return fleet


def random_hosts(seed: int) -> MigFleet:
    """Nodes of 1 to 8 GPUs whose hosts differ, with Pods that bind CPU, memory or neither."""
    chance = random.Random(seed)
    fleet = MigFleet()
    for at in range(chance.randint(2, 5)):
        gpus = chance.choice((1, 2, 4, 8))
        cores, memory = gpus * chance.choice((2, 4, 8, 12)), gpus * chance.choice((8, 16, 64)) * 2**30
        used, held, name = 0.0, 0, f"n{at}"
        fleet.node(name, gpus, cpu_cores=float(cores), memory_bytes=memory, max_pods=110)
        for index in range(gpus):
            asks = {
                "cpu_cores": chance.choice((1.0, 2.0, 3.5, 4.0, 8.0)),
                "memory_bytes": chance.choice((1, 8, 16)) * 2**30,
            }
            if chance.random() < 0.1 or used + asks["cpu_cores"] > cores or held + asks["memory_bytes"] > memory:
                continue
            used, held = used + asks["cpu_cores"], held + asks["memory_bytes"]
            wants = chance.choice((None, "", "1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"))
            fleet.holds(f"p{at}-{index}", f"GPU-{name}-{index}", "" if wants == "" else None, wants=wants, host=asks)
    return fleet


def nodes_after(plan: MigPlan, fleet: MigFleet) -> dict[str, str]:
    """Pod → its Node once the plan is carried out; Pods without a placement stay."""
    after = {pod.ref: pod.node for pod in fleet.pods}
    node_of = {device.uuid: device.node or "" for device in fleet.devices}
    for name, spots in plan.placements.items():
        _, _, rest = name.partition("/")
        after[rest.split("[")[0]] = node_of[spots.split(" ")[0]]
    return after


def overfull(fleet: MigFleet, plan: MigPlan) -> dict[str, tuple[float, int]]:
    """Node → CPU cores and bytes asked beyond what it has, by adding up; no code of the planner's."""
    pods = {pod.ref: pod for pod in fleet.pods}
    found: dict[str, tuple[float, int]] = {}
    after = nodes_after(plan, fleet)
    for node in fleet.nodes:
        here = [pods[ref] for ref, name in after.items() if name == node.name]
        cores = sum(pod.cpu_cores for pod in here) - node.cpu_cores
        memory = sum(pod.memory_bytes for pod in here) - node.memory_bytes
        if cores > 1e-6 or memory > 0:
            found[node.name] = (cores, memory)
    return found
