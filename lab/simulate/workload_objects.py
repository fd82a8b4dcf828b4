"""Pods, their owners, budgets, Namespaces and PriorityClasses as `kubectl get -o json` prints them at a moment."""

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lab.simulate.cards import Machine
from lab.simulate.exporter import NAMESPACE
from lab.simulate.forms import OBJECTS, Object, fill
from lab.simulate.node_objects import stamp
from lab.simulate.plan import DAY, FleetPlan
from lab.simulate.runs import PodLife, Run, SimulatedWorkload, resource_name
from lab.simulate.script import MachineScript

# How long a finished Job and its Pods are kept (ttlSecondsAfterFinished).
_FINISHED_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Scene:
    plan: FleetPlan
    machines: tuple[Machine, ...]
    scripts: Sequence[MachineScript]
    runs: Sequence[Run]
    at: float

    def stamp(self, seconds: float) -> str:
        return stamp(self.plan.moment(seconds))


@dataclass(frozen=True, slots=True)
class OwnerName:
    kind: str
    name: str


def owner_chain(run: Run) -> list[OwnerName]:
    """From the top owner down to the Pods' controller; empty for a bare Pod."""
    form = run.workload.form
    if form.kind == "Pod":
        return []
    top = OwnerName(form.kind, run.workload.name)
    if form.below is None or not form.below.owns_pods:
        return [top]
    return [top, OwnerName(form.below.kind, fill(form.below.name, run.values()))]


def kept_until(run: Run) -> float:
    """When the Pods are deleted: those of a finished Job later."""
    keeps = run.workload.framework in ("Job", "CronJob") and run.failed_at is None
    return run.end + (_FINISHED_SECONDS if keeps else 0.0)


def workload_objects(scene: Scene) -> list[Object]:
    objects: dict[tuple[str, str, str, str], Object] = {}

    def add(item: Object) -> None:
        meta = item["metadata"]
        objects[item["apiVersion"], item["kind"], meta.get("namespace", ""), meta["name"]] = item

    # Runs whose Pods exist in the API server: alive, or ended recently.
    shown = [run for run in scene.runs if run.start <= scene.at < kept_until(run)]
    replicas = Counter(run.workload.uid for run in shown if run.alive(scene.at))
    for run in shown:
        for item in _owners(scene, run, replicas[run.workload.uid]):
            add(item)
        for number, pod in enumerate(run.pods):
            add(_pod(scene, run, number, pod))
        if run.workload.protected:
            add(_budget(scene, run.workload, replicas[run.workload.uid]))
    created = {"created": scene.stamp(-400 * DAY)}
    for name in sorted({run.workload.namespace for run in scene.runs} | {NAMESPACE, "kube-system"}):
        team = "platform" if name in (NAMESPACE, "kube-system") else name
        uid = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.{scene.plan.seed}"))
        add(fill(OBJECTS["Namespace"], created | {"name": name, "uid": uid, "team": team}))
    for name, value in (("training-high", 1000), ("serving", 100_000), ("system-node-critical", 2_000_001_000)):
        uid = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        add(fill(OBJECTS["PriorityClass"], created | {"name": name, "uid": uid, "value": value}))
    return list(objects.values())


def _meta(scene: Scene, workload: SimulatedWorkload, uid: str) -> Object:
    created = scene.stamp(workload.created_seconds)
    return {"name": workload.name, "namespace": workload.namespace, "uid": uid, "creationTimestamp": created}


def _reference(item: Object) -> Object:
    return {
        "apiVersion": item["apiVersion"],
        "kind": item["kind"],
        "name": item["metadata"]["name"],
        "uid": item["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _derived(parent_uid: str, name: str) -> str:
    return str(uuid.uuid5(uuid.UUID(parent_uid), name))


def _owners(scene: Scene, run: Run, replicas: int) -> list[Object]:
    """The objects of `owner_chain`, and a PodGroup; none for a bare Pod."""
    workload, form = run.workload, run.workload.form
    if form.kind == "Pod":
        return []
    values = run.values() | {"replicas": max(replicas, 1)}
    top = {"apiVersion": form.api_version, "kind": form.kind, "metadata": _meta(scene, workload, workload.uid)}
    top["spec"] = fill(form.spec, values)
    if form.below is None:
        return [top]
    name = fill(form.below.name, values)
    meta = {
        "name": name,
        "namespace": workload.namespace,
        "uid": _derived(workload.uid, f"{form.below.kind}/{name}"),
        "creationTimestamp": scene.stamp(run.start - 5),
        "ownerReferences": [_reference(top)],
    }
    below = {"apiVersion": form.below.api_version, "kind": form.below.kind, "metadata": meta}
    return [top, below | {"spec": fill(form.below.spec, values)}]


def _pod(scene: Scene, run: Run, number: int, pod: PodLife) -> Object:
    workload, form = run.workload, run.workload.form
    places = pod.places or run.pods[0].places
    machine = scene.machines[places[0].machine]
    values = run.values(number)
    resources = Counter(resource_name(machine, place) for place in places)
    amounts = {name: str(count) for name, count in resources.items()}
    finished = scene.at >= run.end
    gone = any(begin + 340 <= scene.at < end for begin, end in scene.scripts[machine.index].node_down)
    owners = [item for item in _owners(scene, run, 1) if item["kind"] != "PodGroup"]
    # A small model on a whole card (oversized) asks for as little of the host as one on a slice.
    small = 0 < run.behaviour.memory_share < 0.1 and run.behaviour.sm_level < 0.1
    share = 1 if pod.replica >= 0 or places[0].gi or small else 10
    memory = {"memory": f"{12 * share * len(places)}Gi"}
    begun = scene.stamp(run.start)
    state: Object = {"running": {"startedAt": begun}}
    if finished:
        ended = scene.stamp(run.end)
        state = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": begun, "finishedAt": ended}}
    priority = 100_000 if workload.priority_class == "serving" else 1000
    described = {
        "name": pod.name,
        "namespace": workload.namespace,
        "uid": pod.uid,
        "created": scene.stamp(run.start - 8),
        "labels": {"app": workload.name} | fill(form.labels, values),
        "annotations": fill(form.annotations, values) or None,
        "deleted": scene.stamp(scene.at) if gone or run.state == "leaving" else None,
        "owners": [_reference(owners[-1])] if owners else None,
        "node": machine.name,
        "container": workload.container,
        "image": workload.image,
        "requests": {"cpu": str(share * len(places))} | memory | amounts,
        "limits": amounts | memory,
        "restart_policy": "Never" if form.run_to_end else "Always",
        "scheduler": "volcano" if workload.framework == "VolcanoJob" else "default-scheduler",
        "priority_class": workload.priority_class or None,
        "priority": priority if workload.priority_class else None,
        "phase": "Succeeded" if finished else "Running",
        "started": begun,
        "address": f"10.44.{places[0].machine % 250}.{10 + int(pod.uid[:4], 16) % 240}",
        "ready": "False" if finished or gone else "True",
        "container_ready": not finished,
        "state": state,
    }
    described["conditions"] = fill(OBJECTS["PodReady"], described)
    if not pod.places and not finished:
        described |= OBJECTS["PodWithoutPlace"][run.state if run.pods[number - 1].places else ""]
    item: Object = fill(OBJECTS["Pod"], described)
    return item


def _budget(scene: Scene, workload: SimulatedWorkload, replicas: int) -> Object:
    wanted = max(replicas - 1, 1)
    values = {
        "metadata": _meta(scene, workload, _derived(workload.uid, "budget")),
        "name": workload.name,
        "replicas": replicas,
        "wanted": wanted,
        "allowed": max(replicas - wanted, 0),
    }
    budget: Object = fill(OBJECTS["PodDisruptionBudget"], values)
    return budget
