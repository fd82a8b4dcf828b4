"""The landing and the count of slots beside a real kube-scheduler, over random clusters in one control plane.

Each cluster has Nodes with a label of its own, a Namespace of its own, Pods on its Nodes, and one Pod that the
scheduler judges. SCENES: how many; more of them in `make verify`.
"""

import copy
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cluster.api import Api, Object
from cluster.control_plane import ControlPlaneBuild, running
from cluster.scene_volumes import Storage, provision, settled
from gpuwatch.act.placement import Nowhere
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.slots import Slots, slots
from gpuwatch.act.whatif import Change, ChangeKind, what_if
from gpuwatch.facts.model.cluster import Cluster, Pod
from gpuwatch.facts.model.decision import Snapshot
from gpuwatch.sources.kube.live import LiveCluster, api_client
from gpuwatch.sources.kube.transport import DEFAULT_LIMITS
from parts.processes import wait_until

pytestmark = pytest.mark.slow

SCENES = int(os.environ.get("SCENES", "100"))
AT_ONCE = 100
GPU, SCENE, PRODUCT = "nvidia.com/gpu", "example.org/scene", "nvidia.com/gpu.product"
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
APPS = ("train", "serve")
GATE = "example.org/not-yet"
FIRST = int(os.environ.get("FIRST_SCENE", "0"))


class Scene:
    """One random cluster. name: of its Namespace, and of the label that its Nodes have."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.name = f"scene-{seed}"
        self.nodes = [self._node(index) for index in range(self.draw.randint(1, 5))]
        self.storage = Storage(self.draw, self.name, [node["metadata"]["name"] for node in self.nodes])
        self.held = [pod for node in self.nodes for pod in self._on(node)]
        has_ports, has_volumes = self._maybe(0.2), self._maybe(0.4)
        # Where a port or a volume shall decide, not much else does.
        plain = (has_ports or has_volumes) and self._maybe(0.6)
        tolerated = [{"key": key, "operator": "Exists"} for key in (GPU, "dedicated", "leaves")]
        anywhere = {"nodeSelector": {SCENE: self.name}, "tolerations": tolerated}
        small = {GPU: 1, "cpu": 0, "memory": 0}
        self.probe = self._pod("probe", small if plain else self._size(), anywhere if plain else self._wishes())
        self.kinds: tuple[str, ...] = ()
        if has_ports:
            self._open(self.probe)
            self.kinds = ("host port",)
        if has_volumes:
            volumes = [*self.storage.of_probe(self.probe)]
            self.probe["spec"]["volumes"] = [volume for volume, _ in volumes]
            self.kinds += tuple(kind for _, kind in volumes)
            alone = [f"claim-{number}" for number, (_, kind) in enumerate(volumes) if kind == "alone"]
            if alone and self.held and self._maybe(0.5):
                self._use(self.draw.choice(self.held), alone[0])

    def _maybe(self, chance: float) -> bool:
        return self.draw.random() < chance

    def _node(self, index: int) -> Object:
        draw, name = self.draw, f"{self.name}-n{index}"
        labels = {HOST: name, SCENE: self.name, PRODUCT: f"Model-{self.name}"}
        labels |= {ZONE: draw.choice("ab")} if self._maybe(0.9) else {}
        labels |= {"disk": draw.choice(["ssd", "hdd"]), "generation": str(draw.randint(1, 5))}
        taints = []
        if self._maybe(0.2):
            taints.append({"key": "dedicated", "value": draw.choice("xy"), "effect": "NoSchedule"})
        if self._maybe(0.1):
            taints.append({"key": "leaves", "effect": draw.choice(["PreferNoSchedule", "NoExecute", "NoSchedule"])})
        if self._maybe(0.3):
            taints.append({"key": GPU, "value": "present", "effect": "NoSchedule"})
        size = {
            GPU: str(draw.choice([1, 2, 4, 8])),
            "cpu": str(draw.randint(2, 16)),
            "memory": f"{draw.randint(2, 16)}Gi",
            "pods": str(draw.choice([1, 3, 110, 110])),
        }
        spec: Object = {"taints": taints} | ({"unschedulable": True} if self._maybe(0.1) else {})
        metadata = {"name": name, "labels": labels}
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": {"capacity": size}}

    def _on(self, node: Object) -> Iterator[Object]:
        """Pods that the Node has, with GPUs and without; as many as it may have at most."""
        size = node["status"]["capacity"]
        free, cpu, memory = int(size[GPU]), int(size["cpu"]), int(size["memory"].removesuffix("Gi"))
        for index in range(self.draw.randint(0, min(3, int(size["pods"])))):
            asks = {
                GPU: self.draw.randint(0, free),
                "cpu": self.draw.randint(0, cpu // 2),
                "memory": self.draw.randint(0, memory // 2),
            }
            free, cpu, memory = free - asks[GPU], cpu - asks["cpu"], memory - asks["memory"]
            taken = self.draw.randint(0, 9)
            keeps_away = {"affinity": {"podAntiAffinity": self._terms()}} if self._maybe(0.15) else {}
            where = {"nodeName": node["metadata"]["name"], "tolerations": [{"operator": "Exists"}]}
            made = self._pod(f"{node['metadata']['name']}-p{index}", asks, where | keeps_away)
            if taken < 3:
                self._open(made)
            if taken > 7:
                self.storage.bound(f"of-{made['metadata']['name']}", csi=True)
                self._use(made, f"of-{made['metadata']['name']}")
            yield made
        if self._maybe(0.1):
            self.storage.attach(node["metadata"]["name"])

    def _open(self, pod: Object) -> None:
        """Gives it host ports."""
        draw, (container,) = self.draw, pod["spec"]["containers"]
        numbers = draw.sample([8080, 8081, 9090], draw.randint(1, 2))
        if self._maybe(0.3):
            pod["spec"]["hostNetwork"] = True
            container["ports"] = [{"containerPort": number} for number in numbers]
            return
        container["ports"] = [
            {"containerPort": 80 + index, "hostPort": number, "protocol": draw.choice(["TCP", "TCP", "UDP"])}
            | ({"hostIP": draw.choice(["0.0.0.0", "10.0.0.1", "10.0.0.2"])} if self._maybe(0.5) else {})
            for index, number in enumerate(numbers)
        ]

    def _use(self, pod: Object, claim: str) -> None:
        used = pod["spec"].setdefault("volumes", [])
        used.append({"name": f"v{len(used)}", "persistentVolumeClaim": {"claimName": claim}})

    def _size(self) -> dict[str, int]:
        draw = self.draw
        return {GPU: draw.choice([1, 1, 2, 4]), "cpu": draw.randint(0, 5), "memory": draw.randint(0, 5)}

    def _terms(self) -> Object:
        term = {
            "labelSelector": {"matchLabels": {"app": self.draw.choice(APPS)}},
            "topologyKey": self.draw.choice([HOST, ZONE]),
        }
        return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}

    def _wishes(self) -> Object:
        """Some of the fields that keep a Pod from Nodes."""
        draw, spec = self.draw, {"nodeSelector": {SCENE: self.name}}
        affinity: Object = {}
        if self._maybe(0.7):
            spec["tolerations"] = [{"key": GPU, "operator": "Exists"}]
        if self._maybe(0.3):
            spec.setdefault("tolerations", []).append({"key": "dedicated", "value": draw.choice("xy")})
        if self._maybe(0.2):
            spec["nodeSelector"] = {SCENE: self.name, "disk": draw.choice(["ssd", "hdd"])}
        if self._maybe(0.3):
            wish = draw.choice(
                [
                    {"key": "generation", "operator": draw.choice(["Gt", "Lt"]), "values": ["3"]},
                    {"key": "disk", "operator": draw.choice(["In", "NotIn"]), "values": ["ssd"]},
                    {"key": ZONE, "operator": draw.choice(["Exists", "DoesNotExist"])},
                ]
            )
            terms = [{"matchExpressions": [wish]}]
            affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        if self._maybe(0.15):
            affinity["podAntiAffinity"] = self._terms()
        if self._maybe(0.15):
            affinity["podAffinity"] = self._terms()
        if self._maybe(0.15):
            spread = {"maxSkew": draw.randint(1, 2), "topologyKey": draw.choice([HOST, ZONE])}
            own = {"labelSelector": {"matchLabels": {"app": draw.choice(APPS)}}, "whenUnsatisfiable": "DoNotSchedule"}
            spec["topologySpreadConstraints"] = [spread | own]
        return spec | ({"affinity": affinity} if affinity else {})

    def _pod(self, name: str, asks: dict[str, int], spec: Object) -> Object:
        sizes = {GPU: str(asks[GPU]), "cpu": str(asks["cpu"]), "memory": f"{asks['memory']}Gi"}
        limits = {resource: sizes[resource] for resource, count in asks.items() if count}
        container = {"name": "main", "image": "work", "resources": {"limits": limits, "requests": limits}}
        metadata = {"name": name, "namespace": self.name, "labels": {"app": self.draw.choice(APPS)}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}

    def changed(self, change: Change) -> Object:
        """The Pod as the change makes it."""
        made = copy.deepcopy(self.probe)
        made["metadata"]["name"] = "again"
        for part in filter(None, (change.first, change)):
            self._change(made["spec"], part)
        return made

    def _change(self, spec: Object, change: Change) -> None:
        resources = spec["containers"][0]["resources"]
        if change.kind is ChangeKind.TOLERATE:
            pair, _, effect = change.subjects[0].rpartition(":")
            key, _, value = pair.partition("=")
            more = {"key": key, "operator": "Equal", "value": value, "effect": effect}
            spec["tolerations"] = [*spec.get("tolerations", ()), more]
        elif change.kind is ChangeKind.SELECT:
            if change.subjects == ("nodeAffinity",):
                del spec["affinity"]["nodeAffinity"]
                spec["nodeSelector"] = {SCENE: self.name} | spec.get("nodeSelector", {})
            else:
                del spec["nodeSelector"][change.subjects[0]]
        elif change.kind in (ChangeKind.LESS_CPU, ChangeKind.LESS_MEMORY):
            assert change.value is not None
            cpu = change.kind is ChangeKind.LESS_CPU
            name, size = ("cpu", f"{change.value * 1000:.0f}m") if cpu else ("memory", f"{change.value:.0f}")
            for side in resources.values():
                side[name] = size

    def of_slot(self, each: Slots, number: int) -> Object:
        """A Pod as those that are counted."""
        units = each.gpus // each.pods
        sizes = {GPU: str(units), "cpu": f"{round(each.cpu_cores * 1000)}m", "memory": str(each.memory_bytes)}
        limits = {name: size for name, size in sizes.items() if size not in ("0", "0m")}
        container = {"name": "main", "image": "work", "resources": {"limits": limits, "requests": limits}}
        spec = {"nodeSelector": {SCENE: self.name}, "tolerations": [{"key": GPU, "operator": "Exists"}]}
        metadata = {"name": f"slot-{number}", "namespace": self.name, "labels": {"app": "slot"}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def judged(pod: Object) -> bool | None:
    """Whether the scheduler placed it; None while it has not looked."""
    if pod["spec"].get("nodeName"):
        return True
    said = (each for each in pod["status"].get("conditions", ()) if each.get("reason") == "Unschedulable")
    return False if any(said) else None


def is_ready(node: Object) -> bool:
    """No controller is to take a taint from it any more."""
    taints = {taint["key"] for taint in node["spec"].get("taints", ())} - {"node.kubernetes.io/unschedulable"}
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"].get("conditions", ()))
    return ready and not any(key.startswith("node.kubernetes.io/") for key in taints)


def pods_named(api: Api, prefix: str) -> list[Object]:
    return [item for item in api.get("/api/v1/pods")["items"] if item["metadata"]["name"].startswith(prefix)]


def until_judged(api: Api, prefix: str, count: int) -> dict[str, list[bool]]:
    """By Namespace, whether each of these Pods was placed."""

    def found() -> list[bool | None]:
        provision(api)
        return [judged(item) for item in pods_named(api, prefix)]

    def missing() -> str:
        left = [(each["metadata"], each["status"]) for each in pods_named(api, prefix) if judged(each) is None]
        return "; ".join(f"{meta['namespace']}: {status.get('conditions')}" for meta, status in left)

    wait_until(lambda: len(found()) == count and None not in found(), missing, seconds=60)
    answers: dict[str, list[bool]] = {}
    for item in pods_named(api, prefix):
        answers.setdefault(item["metadata"]["namespace"], []).append(bool(judged(item)))
    return answers


def are_placed(api: Api, prefix: str) -> bool:
    provision(api)
    return all(map(judged, pods_named(api, prefix)))


def open_gate(api: Api, namespace: str) -> None:
    path, body = f"/api/v1/namespaces/{namespace}/pods/probe", {"spec": {"schedulingGates": None}}
    assert api.answer("PATCH", path, body, content_type="application/merge-patch+json").ok


def read(kubeconfig: Path) -> Cluster:
    return LiveCluster(api_client(kubeconfig), DEFAULT_LIMITS).read(datetime.now(UTC))


def ungated(pod: Pod) -> Pod:
    known = tuple(each for each in pod.placement.unmodelled if "schedulingGates" not in each)
    return replace(pod, placement=replace(pod.placement, gated=False, unmodelled=known))


def of_scene(cluster: Cluster, name: str, *, without: str) -> tuple[PlanFacts, list[Pod]]:
    """What gpuwatch read of one cluster without the Pods that begin so; and these, as they were before."""
    pods = [pod for pod in cluster.pods if pod.namespace == name]
    probes = [ungated(pod) for pod in pods if pod.name.startswith(without)]
    held = tuple(pod for pod in pods if not pod.name.startswith(without))
    nodes = tuple(node for node in cluster.nodes if node.labels.get(SCENE) == name)
    beside = tuple(pod for pod in cluster.bystanders if pod.namespace == name)
    return PlanFacts(
        snapshot=Snapshot(at=datetime.now(UTC), cluster=Cluster(nodes=nodes, pods=held, bystanders=beside))
    ), probes


@pytest.fixture(scope="module", params=range(FIRST, FIRST + SCENES, AT_ONCE))
def told(request: pytest.FixtureRequest, control_plane_build: ControlPlaneBuild) -> Iterator[list[Any]]:
    """Of each cluster: the Scene, whether the scheduler placed its Pod, what the landing says, a change that would
    place it and whether it did, and the slots with how many Pods of one the scheduler placed."""
    scenes = [Scene(seed) for seed in range(request.param, min(request.param + AT_ONCE, FIRST + SCENES))]
    with running(control_plane_build, alive=True) as plane:
        api = Api(plane.administrator)
        for scene in scenes:
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": scene.name}})
            for each in (*scene.storage.objects, *scene.nodes, *scene.held):
                api.create(each)
        held = sum(len(scene.held) for scene in scenes)

        def is_settled() -> bool:
            placed = sum(bool(item["spec"].get("nodeName")) for item in pods_named(api, ""))
            return placed >= held and all(map(is_ready, api.get("/api/v1/nodes")["items"]))

        wait_until(is_settled, lambda: "some Nodes are not Ready, or Pods have no Node", seconds=180)
        for scene in scenes:
            api.create({**scene.probe, "spec": {**scene.probe["spec"], "schedulingGates": [{"name": GATE}]}})
        wait_until(lambda: settled(api), lambda: "claims are not bound", seconds=60)
        # Before the scheduler changes the claims.
        cluster = read(Path(plane.administrator))
        for scene in scenes:
            open_gate(api, scene.name)
        placed = until_judged(api, "probe", len(scenes))
        found = []
        for scene in scenes:
            facts, (probe,) = of_scene(cluster, scene.name, without="probe")
            found.append([scene, placed[scene.name][0], facts.bare_room.copy().land([probe])])
        for scene in scenes:
            api.delete(scene.probe)
        wait_until(lambda: not pods_named(api, "probe"), lambda: "the probes are not gone", seconds=60)
        again = []
        for row, scene in zip(found, scenes, strict=True):
            facts, (probe,) = of_scene(cluster, scene.name, without="probe")
            # A free volume may be meant for the claim of this Pod, and not for that of another Pod.
            changes = () if "own found" in scene.kinds else what_if([probe], facts).changes
            row.append(scene.draw.choice(changes) if changes else None)
            if changes:
                if row[3].kind is ChangeKind.UNCORDON:
                    body, path = {"spec": {"unschedulable": False}}, f"/api/v1/nodes/{row[3].subjects[0]}"
                    api.answer("PATCH", path, body, content_type="application/merge-patch+json")
                again.append(scene.changed(row[3]))
                api.create(again[-1])

        # A controller still takes the taint of a Node that was uncordoned.
        with suppress(RuntimeError):
            wait_until(lambda: are_placed(api, "again"), lambda: "some are not placed", seconds=60)
        started = until_judged(api, "again", len(again))
        for row in found:
            row.append(started.get(row[0].name, [False])[0])
        for each in again:
            api.delete(each)
        wait_until(lambda: not pods_named(api, "again"), lambda: "they are not gone", seconds=60)
        cluster = read(Path(plane.administrator))
        asked = 0
        for row, scene in zip(found, scenes, strict=True):
            facts, _ = of_scene(cluster, scene.name, without="probe")
            counts = slots(facts, (scene.draw.choice([1, 2, 3, 4]),))
            counted = next((each for each in counts if each.resource == GPU), None)
            row.append(counted)
            for number in range(counted.count * counted.pods + 1 if counted else 0):
                api.create(scene.of_slot(counted, number))
                asked += 1
        started = until_judged(api, "slot", asked)
        for row in found:
            row.append(sum(started.get(row[0].name, ())))
        yield found


def answer(landed: Any) -> str:
    return "lands" if not isinstance(landed, Nowhere) else "lands nowhere" if landed.known else "not known"


def test_the_landing_never_says_yes_where_the_scheduler_says_no(told: list[Any]) -> None:
    """And says no, or that it does not know, in few cases where the scheduler says yes."""
    tally = Counter(
        (kind, "placed" if placed else "not placed", answer(landed))
        for scene, placed, landed, *_ in told
        for kind in (scene.kinds or ("neither port nor volume",))
    )
    print("\n".join(f"{count:5} {', '.join(words)}" for words, count in sorted(tally.items())))
    differ = {
        scene.name: (placed, landed) for scene, placed, landed, *_ in told if placed == isinstance(landed, Nowhere)
    }
    assert {name: landed for name, (placed, landed) in differ.items() if not placed} == {}
    refused = [landed for _, landed in differ.values()]
    assert [landed.reason for landed in refused if landed.known] == []
    assert len(refused) <= 0.2 * len(told), [landed.reason for landed in refused]
    assert 0.2 * len(told) < sum(placed for _, placed, *_ in told) < 0.8 * len(told)


def test_what_would_place_a_pod_places_it(told: list[Any]) -> None:
    applied = {scene.name: (change, placed) for scene, _, _, change, placed, *_ in told if change is not None}
    assert {name: change for name, (change, placed) in applied.items() if not placed} == {}
    assert len(applied) > 0.05 * len(told)
    assert len({change.kind for change, _ in applied.values()}) > 2


def test_the_scheduler_places_as_many_pods_as_were_counted(told: list[Any]) -> None:
    differ = {
        scene.name: (counted.count * counted.pods, placed, counted)
        for scene, *_, counted, placed in told
        if counted is not None and not counted.count * counted.pods <= placed < (counted.count + 1) * counted.pods
    }
    assert differ == {}
    assert sum(counted is not None and counted.count > 0 for *_, counted, _ in told) > 0.2 * len(told)
