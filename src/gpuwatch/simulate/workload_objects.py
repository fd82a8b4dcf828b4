"""Pods, their owners, budgets, Namespaces and PriorityClasses as `kubectl get -o json` prints them at a moment."""

import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import timedelta

from gpuwatch.simulate.cards import Machine
from gpuwatch.simulate.exporter import NAMESPACE
from gpuwatch.simulate.node_objects import Object, stamp
from gpuwatch.simulate.plan import FleetPlan
from gpuwatch.simulate.runs import PodLife, Run, SimulatedWorkload, resource_name
from gpuwatch.simulate.schedule import template_hash
from gpuwatch.simulate.script import MachineScript

# How long a finished Job and its Pods are kept (ttlSecondsAfterFinished).
_FINISHED_SECONDS = 3600.0
_RUN_TO_END = ("Job", "JobSet", "PyTorchJob", "VolcanoJob", "CronJob")
_API = {
    "Job": ("batch/v1", "Job"),
    "CronJob": ("batch/v1", "CronJob"),
    "JobSet": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    "PyTorchJob": ("kubeflow.org/v1", "PyTorchJob"),
    "VolcanoJob": ("batch.volcano.sh/v1alpha1", "Job"),
    "Deployment": ("apps/v1", "Deployment"),
    "StatefulSet": ("apps/v1", "StatefulSet"),
    "Notebook": ("kubeflow.org/v1", "Notebook"),
}


@dataclass(frozen=True, kw_only=True)
class Scene:
    plan: FleetPlan
    machines: tuple[Machine, ...]
    scripts: tuple[MachineScript, ...]
    runs: tuple[Run, ...]
    at: float

    def stamp(self, seconds: float) -> str:
        return stamp(self.plan.start + timedelta(seconds=int(seconds)))

    def shown(self) -> list[Run]:
        """Runs whose Pods exist in the API server: alive, or ended recently."""
        return [run for run in self.runs if run.start <= self.at and self.at < kept_until(run)]


@dataclass(frozen=True, slots=True)
class OwnerName:
    kind: str
    name: str


def owner_chain(run: Run) -> list[OwnerName]:
    """From the top owner down to the Pods' controller; empty for a bare Pod."""
    workload = run.workload
    if workload.framework == "Bare":
        return []
    top = OwnerName(_API[workload.framework][1], workload.name)
    below = {
        "Deployment": OwnerName("ReplicaSet", f"{workload.name}-{template_hash(workload, run.generation)}"),
        "Notebook": OwnerName("StatefulSet", workload.name),
        "CronJob": OwnerName("Job", run.pods[0].name.rpartition("-")[0]),
        "JobSet": OwnerName("Job", f"{workload.name}-workers-0"),
    }.get(workload.framework)
    return [top, below] if below else [top]


def kept_until(run: Run) -> float:
    """When the Pods are deleted: those of a finished Job later."""
    keeps = run.workload.framework in ("Job", "CronJob") and run.failed_at is None
    return run.end + (_FINISHED_SECONDS if keeps else 0.0)


def workload_objects(scene: Scene) -> list[Object]:
    objects: dict[tuple[str, str, str, str], Object] = {}

    def add(item: Object) -> None:
        meta = item["metadata"]
        objects[item["apiVersion"], item["kind"], meta.get("namespace", ""), meta["name"]] = item

    shown = scene.shown()
    replicas = Counter(run.workload.uid for run in shown if run.alive(scene.at))
    for run in shown:
        for item in _owners(scene, run, replicas[run.workload.uid]):
            add(item)
        for number, pod in enumerate(run.pods):
            add(_pod(scene, run, number, pod))
        if run.workload.protected:
            add(_budget(scene, run.workload, replicas[run.workload.uid]))
    for namespace in sorted({run.workload.namespace for run in scene.runs} | {NAMESPACE, "kube-system"}):
        add(_namespace(namespace, scene))
    for name, value in (("training-high", 1000), ("serving", 100_000), ("system-node-critical", 2_000_001_000)):
        add(_priority_class(scene, name, value))
    return list(objects.values())


def _meta(scene: Scene, workload: SimulatedWorkload, **more: object) -> Object:
    created = scene.stamp(workload.created_seconds)
    meta = {"name": workload.name, "namespace": workload.namespace, "uid": workload.uid, "creationTimestamp": created}
    return {**meta, **more}


def _reference(item: Object) -> Object:
    meta = item["metadata"]
    return {
        "apiVersion": item["apiVersion"],
        "kind": item["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _derived(parent_uid: str, name: str) -> str:
    return str(uuid.uuid5(uuid.UUID(parent_uid), name))


def _child(scene: Scene, parent: Object, api: str, kind: str, name: str, created: float, spec: Object) -> Object:
    meta = parent["metadata"]
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "uid": _derived(meta["uid"], f"{kind}/{name}"),
            "creationTimestamp": scene.stamp(created),
            "ownerReferences": [_reference(parent)],
        },
        "spec": spec,
    }


def _owners(scene: Scene, run: Run, replicas: int) -> list[Object]:
    """The objects of `owner_chain`, and a PodGroup; none for a bare Pod."""
    workload = run.workload
    chain = owner_chain(run)
    if not chain:
        return []
    api, kind = _API[workload.framework]
    spec, below = _specs(workload, len(run.pods), replicas)
    top: Object = {"apiVersion": api, "kind": kind, "metadata": _meta(scene, workload), "spec": spec}
    if workload.framework == "VolcanoJob":
        name = f"{workload.name}-{workload.uid}"
        return [top, _child(scene, top, "scheduling.volcano.sh/v1beta1", "PodGroup", name, run.start - 5, below)]
    api_below = "batch/v1" if chain[-1].kind == "Job" else "apps/v1"
    children = (_child(scene, top, api_below, each.kind, each.name, run.start - 5, below) for each in chain[1:])
    return [top, *children]


def _specs(workload: SimulatedWorkload, pods: int, replicas: int) -> tuple[Object, Object]:
    """Specs of the top owner and of the owner below it."""
    selector = {"matchLabels": {"app": workload.name}}
    workers: Object = {"parallelism": pods, "completions": pods}
    if workload.framework == "Deployment":
        return {"replicas": max(replicas, 1), "selector": selector}, {"replicas": 1}
    if workload.framework == "StatefulSet":
        return {"replicas": 1, "serviceName": workload.name, "selector": selector}, {}
    if workload.framework == "Notebook":
        return {"template": {"spec": {}}}, {"replicas": 1}
    if workload.framework == "Job":
        return {**workers, "backoffLimit": 3, **({"completionMode": "Indexed"} if pods > 1 else {})}, {}
    if workload.framework == "CronJob":
        return {"schedule": "0 */6 * * *", "suspend": False, "concurrencyPolicy": "Forbid"}, workers
    if workload.framework == "JobSet":
        jobs = [{"name": "workers", "replicas": 1}]
        failures = {"maxRestarts": 10}
        return (
            {"suspend": False, "failurePolicy": failures, "replicatedJobs": jobs},
            {**workers, "completionMode": "Indexed"},
        )
    if workload.framework == "PyTorchJob":
        replicas_of = {"Master": {"replicas": 1}} | ({"Worker": {"replicas": pods - 1}} if pods > 1 else {})
        return {"pytorchReplicaSpecs": replicas_of, "runPolicy": {"suspend": False}}, {}
    tasks = [{"name": "worker", "replicas": pods}]
    return {"minAvailable": pods, "queue": "research", "tasks": tasks}, {"minMember": pods, "queue": "research"}


def _pod_labels(workload: SimulatedWorkload, run: Run, number: int) -> tuple[dict[str, str], dict[str, str]]:
    name, framework = workload.name, workload.framework
    labels = {"app": name}
    annotations: dict[str, str] = {}
    if framework == "Deployment":
        labels["pod-template-hash"] = template_hash(workload, run.generation)
    elif framework == "Job":
        labels["batch.kubernetes.io/job-name"] = name
        if len(run.pods) > 1:
            labels["batch.kubernetes.io/job-completion-index"] = str(number)
    elif framework == "CronJob":
        labels["batch.kubernetes.io/job-name"] = run.pods[0].name.rpartition("-")[0]
    elif framework == "JobSet":
        labels |= {
            "jobset.sigs.k8s.io/jobset-name": name,
            "jobset.sigs.k8s.io/jobset-uid": workload.uid,
            "jobset.sigs.k8s.io/replicatedjob-name": "workers",
            "jobset.sigs.k8s.io/job-index": "0",
            "jobset.sigs.k8s.io/restart-attempt": str(run.generation),
            "batch.kubernetes.io/job-name": f"{name}-workers-0",
            "batch.kubernetes.io/job-completion-index": str(number),
        }
    elif framework == "PyTorchJob":
        labels |= {
            "training.kubeflow.org/job-name": name,
            "training.kubeflow.org/operator-name": "pytorchjob-controller",
            "training.kubeflow.org/replica-type": "master" if number == 0 else "worker",
            "training.kubeflow.org/replica-index": str(max(number - 1, 0)),
        }
    elif framework == "VolcanoJob":
        labels |= {"volcano.sh/job-name": name, "volcano.sh/task-spec": "worker", "volcano.sh/queue-name": "research"}
        annotations["scheduling.k8s.io/group-name"] = f"{name}-{workload.uid}"
    elif framework == "Notebook":
        labels |= {"notebook-name": name, "statefulset": name}
    return labels, annotations


def _pod(scene: Scene, run: Run, number: int, pod: PodLife) -> Object:
    workload = run.workload
    machine = scene.machines[pod.places[0].machine]
    labels, annotations = _pod_labels(workload, run, number)
    resources: defaultdict[str, int] = defaultdict(int)
    for place in pod.places:
        resources[resource_name(machine, place)] += 1
    amounts = {name: str(count) for name, count in resources.items()}
    finished = scene.at >= run.end
    gone = any(begin + 340 <= scene.at < end for begin, end in scene.scripts[machine.index].node_down)
    meta: Object = {
        "name": pod.name,
        "namespace": workload.namespace,
        "uid": pod.uid,
        "creationTimestamp": scene.stamp(run.start - 8),
        "labels": labels,
    }
    if annotations:
        meta["annotations"] = annotations
    if gone:
        meta["deletionTimestamp"] = scene.stamp(scene.at)
    owners = [item for item in _owners(scene, run, 1) if item["kind"] != "PodGroup"]
    if owners:
        meta["ownerReferences"] = [_reference(owners[-1])]
    share = 1 if pod.replica >= 0 or pod.places[0].gi else 10
    request = {"cpu": str(share * len(pod.places)), "memory": f"{12 * share * len(pod.places)}Gi"} | amounts
    container = {
        "name": workload.container,
        "image": workload.image,
        "resources": {"requests": request, "limits": amounts | {"memory": request["memory"]}},
    }
    spec: Object = {
        "nodeName": machine.name,
        "containers": [container],
        "restartPolicy": "Never" if workload.framework in _RUN_TO_END else "Always",
        "schedulerName": "volcano" if workload.framework == "VolcanoJob" else "default-scheduler",
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    }
    if workload.priority_class:
        spec["priorityClassName"] = workload.priority_class
        spec["priority"] = 100_000 if workload.priority_class == "serving" else 1000
    begun = scene.stamp(run.start)
    ready = "False" if finished or gone else "True"
    status: Object = {
        "phase": "Succeeded" if finished else "Running",
        "startTime": begun,
        "podIP": f"10.44.{pod.places[0].machine % 250}.{10 + int(pod.uid[:4], 16) % 240}",
        "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": begun}],
        "containerStatuses": [
            {"name": workload.container, "ready": not finished, "restartCount": 0, "state": _container(scene, run)}
        ],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def _container(scene: Scene, run: Run) -> Object:
    started = scene.stamp(run.start)
    if scene.at < run.end:
        return {"running": {"startedAt": started}}
    ended = scene.stamp(run.end)
    return {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": started, "finishedAt": ended}}


def _budget(scene: Scene, workload: SimulatedWorkload, replicas: int) -> Object:
    wanted = max(replicas - 1, 1)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _meta(scene, workload, uid=_derived(workload.uid, "budget")),
        "spec": {"minAvailable": wanted, "selector": {"matchLabels": {"app": workload.name}}},
        "status": {
            "currentHealthy": replicas,
            "desiredHealthy": wanted,
            "expectedPods": replicas,
            "disruptionsAllowed": max(replicas - wanted, 0),
        },
    }


def _namespace(name: str, scene: Scene) -> Object:
    team = "platform" if name in (NAMESPACE, "kube-system") else name
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "uid": str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.{scene.plan.seed}")),
            "creationTimestamp": scene.stamp(-400 * 86400),
            "labels": {"kubernetes.io/metadata.name": name, "team": team},
        },
        "status": {"phase": "Active"},
    }


def _priority_class(scene: Scene, name: str, value: int) -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {
            "name": name,
            "uid": str(uuid.uuid5(uuid.NAMESPACE_DNS, name)),
            "creationTimestamp": scene.stamp(-400 * 86400),
        },
        "value": value,
        "globalDefault": False,
    }
