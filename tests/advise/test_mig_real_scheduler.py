"""The fleet MIG plan, held against the real kube-scheduler: what it places and what it frees, on random clusters.

Each random cluster is built twice in one control plane, as it is once the plan is carried out. In one, every Pod that
moves is bound by a node selector to the Node that the plan names: what the plan says of a host must be the scheduler's
own arithmetic, exactly. In the other the scheduler chooses among all Nodes, as it would for the owner's Pods.

    GPUWATCH_SCHEDULER_CLUSTERS=300 pytest tests/advise/test_mig_real_scheduler.py -s
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from advise.mig_fleets import MigFleet, nodes_after, random_hosts
from cluster.api import Api, Object
from cluster.control_plane import ControlPlaneBuild, running
from gpuwatch.facts.model.sizing import MigPlan
from parts.processes import wait_until

pytestmark = pytest.mark.slow

CLUSTERS = int(os.environ.get("GPUWATCH_SCHEDULER_CLUSTERS", "50"))
PODS = "/api/v1/namespaces/team/pods"


@dataclass
class Carried:
    """A random cluster as the plan leaves it. spare: Node → whole GPUs that nobody holds."""

    name: str
    fleet: MigFleet
    plan: MigPlan
    pinned: bool
    spare: Counter[str] = field(default_factory=Counter)

    def nodes(self) -> Iterator[Object]:
        cuts = {change.device: change.after for change in self.plan.changes}
        after = nodes_after(self.plan, self.fleet)
        for node in self.fleet.nodes:
            offers: Counter[str] = Counter()
            for device in self.fleet.devices:
                if device.node == node.name and device.uuid not in cuts:
                    offers["nvidia.com/gpu"] += 1
                    held = any(after[ref] == node.name and not self.moves(ref) for ref in device.pods)
                    self.spare[node.name] += not held
                elif device.node == node.name:
                    offers.update(f"nvidia.com/mig-{profile}" for profile in cuts[device.uuid])
            allocatable = {
                "cpu": f"{round(node.cpu_cores * 1000)}m",
                "memory": str(node.memory_bytes),
                "pods": "110",
                **{name: str(count) for name, count in offers.items()},
            }
            full = f"{self.name}-{node.name}"
            labels = {"kubernetes.io/hostname": full, "cluster": self.name}
            status = {"capacity": allocatable, "allocatable": allocatable}
            yield {
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": full, "labels": labels}, "status": status
            }  # fmt: skip

    def moves(self, ref: str) -> bool:
        return any(f"{ref}[" in name for name in self.plan.placements)

    def pods(self, *, moving: bool) -> Iterator[Object]:
        after = nodes_after(self.plan, self.fleet)
        advised = {demand.pod: demand.mig_profile for demand in self.fleet.demands}
        for pod in self.fleet.pods:
            if self.moves(pod.ref) is moving:
                gpu = f"nvidia.com/mig-{advised[pod.ref]}" if moving else "nvidia.com/gpu"
                yield self.pod(pod.name, gpu, pod.cpu_cores, pod.memory_bytes, after[pod.ref], bind=not moving)

    def pod(self, name: str, gpu: str, cores: float, memory: int, node: str, *, bind: bool = False) -> Object:
        asks = {"cpu": f"{round(cores * 1000)}m", "memory": str(memory), gpu: "1"}
        container = {"name": "main", "image": "example.org/main:1", "resources": {"requests": asks, "limits": asks}}
        spec: Object = {"containers": [container], "terminationGracePeriodSeconds": 0}
        at = f"{self.name}-{node}"
        if bind:
            spec["nodeName"] = at
        else:
            spec["nodeSelector"] = {"kubernetes.io/hostname": at} if self.pinned else {"cluster": self.name}
        labels = {"cluster": self.name}
        metadata = {"name": f"{self.name}-{name}", "namespace": "team", "labels": labels}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def further(self) -> Iterator[Object]:
        """Pods of a whole GPU like the least demanding of the plan's: one for each spare GPU where they are pinned,
        else as many as the plan frees."""
        asked = {demand.pod for demand in self.fleet.demands}
        cores, memory = min((pod.cpu_cores, pod.memory_bytes) for pod in self.fleet.pods if pod.ref in asked)
        for node, count in self.spare.items():
            for number in range(count if self.pinned else 0):
                yield self.pod(f"further-{node}-{number}", "nvidia.com/gpu", cores, memory, node)
        for number in range(0 if self.pinned else len(self.plan.freed)):
            yield self.pod(f"further-{number}", "nvidia.com/gpu", cores, memory, "")

    def expected(self) -> int:
        """Of the further Pods of a pinned cluster, those that the plan says could start: its freed GPUs, and of those
        that were free before as many as the host takes."""
        return len(self.plan.freed) + self.idle_that_serve()

    def idle_that_serve(self) -> int:
        asked = {demand.pod for demand in self.fleet.demands}
        pods = {pod.ref: pod for pod in self.fleet.pods}
        cores, memory = min((pod.cpu_cores, pod.memory_bytes) for pod in self.fleet.pods if pod.ref in asked)
        after = nodes_after(self.plan, self.fleet)
        emptied = {*self.plan.freed, *self.plan.freed_without_host}
        found = 0
        for node in self.fleet.nodes:
            here = [pods[ref] for ref, name in after.items() if name == node.name]
            by_cores = (node.cpu_cores - sum(pod.cpu_cores for pod in here) + 1e-6) // cores
            by_memory = (node.memory_bytes - sum(pod.memory_bytes for pod in here)) // memory
            freed = sum(1 for device in self.fleet.devices if device.node == node.name and device.uuid in emptied)
            found += int(min(self.spare[node.name] - freed, by_cores, by_memory))
        return found


def create(api: Api, objects: list[Object]) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(api.create, objects))


def settled(api: Api) -> dict[str, Counter[str]]:
    """Cluster → 'placed' and 'refused' Pods, once the scheduler has answered for each."""
    found: dict[str, Counter[str]] = {}

    def all_answered() -> bool:
        found.clear()
        for item in api.get(PODS)["items"]:
            told = {each["type"]: each for each in item["status"].get("conditions", ())}
            refused = told.get("PodScheduled", {}).get("reason") == "Unschedulable"
            if not item["spec"].get("nodeName") and not refused:
                return False
            counts = found.setdefault(item["metadata"]["labels"]["cluster"], Counter())
            counts["placed" if item["spec"].get("nodeName") else "refused"] += 1
        return True

    wait_until(all_answered, lambda: "the scheduler has not answered for every Pod", seconds=300)
    return found


def clusters() -> list[Carried]:
    made = []
    for seed in range(CLUSTERS):
        fleet = random_hosts(seed)
        plan = fleet.plan()
        made += [Carried(f"pinned-{seed}", fleet, plan, True), Carried(f"chosen-{seed}", fleet, plan, False)]
    return [one for one in made if one.plan.placements]


def test_the_scheduler_places_what_the_plan_places_and_fills_what_it_frees(
    control_plane_build: ControlPlaneBuild,
) -> None:
    made = clusters()
    with running(control_plane_build, alive=True) as plane:
        api = Api(plane.administrator)
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
        wait_until(
            lambda: api.answer("GET", "/api/v1/namespaces/team/serviceaccounts/default").ok, lambda: "no account"
        )
        create(api, [node for one in made for node in one.nodes()])
        create(api, [pod for one in made for pod in one.pods(moving=False)])
        create(api, [pod for one in made for pod in one.pods(moving=True)])
        moved = settled(api)
        create(api, [pod for one in made for pod in one.further()])
        filled = settled(api)
    wrong: dict[str, list[str]] = defaultdict(list)
    for one in made:
        refused = moved[one.name]["refused"]
        further = filled[one.name]["placed"] - moved[one.name]["placed"]
        expected = one.expected() if one.pinned else len(one.plan.freed)
        kind = "pinned" if one.pinned else "chosen"
        if refused:
            wrong[f"{kind}, refused"].append(f"{one.name}: {refused} of {len(one.plan.placements)}")
        if further != expected:
            wrong[f"{kind}, freed"].append(f"{one.name}: {further} of {expected}")
    freed = sum(len(one.plan.freed) for one in made if one.pinned)
    hostless = sum(len(one.plan.freed_without_host) for one in made if one.pinned)
    print(f"{len(made) // 2} clusters, {freed} GPUs freed, {hostless} emptied without host; {dict(wrong)}")
    assert freed > CLUSTERS / 2
    assert hostless > 0
    assert not wrong["pinned, refused"]
    assert not wrong["pinned, freed"]
