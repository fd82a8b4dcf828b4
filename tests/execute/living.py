"""A small fleet that lives: objects in a MemoryCluster, the few controllers that the tests need, and views of it."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpuwatch.execute.advance import Policies
from gpuwatch.execute.executor import Executor
from gpuwatch.execute.policy import ExecutePolicy
from gpuwatch.execute.recheck import View
from gpuwatch.kube.memory_cluster import MemoryCluster
from gpuwatch.kube.writer import Object
from gpuwatch.model.cluster import (
    ClaimedDevice,
    Cluster,
    Condition,
    DisruptionBudget,
    Gang,
    Namespace,
    Node,
    OwnerStatus,
    Pod,
    Taint,
    Workload,
)
from gpuwatch.model.decision import (
    ActionKind,
    Advice,
    Family,
    Finding,
    FindingKind,
    Mode,
    Severity,
    Snapshot,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.model.remediation import ObjectRef, Remediation
from gpuwatch.model.telemetry import Device, Vendor
from gpuwatch.plan.policy import PlanPolicy
from gpuwatch.store.remediation_sqlite import SqliteRemediations

START = datetime(2026, 3, 2, 12, tzinfo=UTC)
GPU = "nvidia.com/gpu"
GPUS = 8

SUGGEST = PlanPolicy(
    modes=dict.fromkeys(ActionKind, Mode.SUGGEST),
    actions_per_hour=100,
    namespace_actions_per_hour=100,
    pool_actions_per_hour=100,
    brake_alerts=("EtcdDown",),
)
ENFORCE = replace(SUGGEST, modes=dict.fromkeys(ActionKind, Mode.ENFORCE))


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Fleet:
    """Nodes of eight GPUs. sick: UUIDs; idle, busy: Pods by owner name."""

    nodes: int = 8
    now: datetime = START
    sick: set[str] = field(default_factory=set)
    idle: set[str] = field(default_factory=set)
    busy: set[str] = field(default_factory=set)
    blind: bool = False  # telemetry gives no verdict on healthy devices
    dark: set[str] = field(default_factory=set)
    """UUIDs of which telemetry shows nothing."""
    alerts: tuple[str, ...] = ()
    stale: timedelta = timedelta()
    claims: tuple[ClaimedDevice, ...] = ()
    unserved: tuple[str, ...] = ()
    notices: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    """Successful writes to the cluster but Events, which may be said twice."""
    before_write: Callable[[str, str, bool], None] = lambda _verb, _what, _done: None

    def __post_init__(self) -> None:
        self.cluster = MemoryCluster(unserved=self.unserved, interfere=self._interfere)
        self.rehearsal = Rehearsal(self.cluster)
        for index in range(self.nodes):
            self.cluster.put(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": f"n{index}", "uid": f"uid-n{index}"},
                    "spec": {},
                    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
                }
            )

    def _interfere(self, verb: str, what: str, done: bool) -> None:
        if done and not what.startswith("Event "):
            self.log.append(f"{verb} {what}")
        self.before_write(verb, what, done)

    # Objects

    def owner(self, kind: str, name: str, gpus: int, pods: int = 1, node: str = "n0", **spec: Any) -> None:
        api = {"Deployment": "apps/v1", "Job": "batch/v1", "JobSet": "jobset.x-k8s.io/v1alpha2"}[kind]
        whole = {"replicas": pods, **spec} if kind == "Deployment" else {"suspend": False, **spec}
        self.cluster.put(
            {
                "apiVersion": api,
                "kind": kind,
                "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}"},
                "spec": whole,
                "status": {},
                "test": {"gpus": gpus, "pods": pods},
            }
        )
        for index in range(pods):
            self._pod(name, index, node)

    def _pod(self, name: str, index: int, node: str) -> None:
        owner = self.find(name)
        generation = owner["test"].get("made", 0)
        owner["test"]["made"] = generation + 1
        self.cluster.put(owner)
        self.cluster.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{generation}",
                    "namespace": "ml",
                    "labels": {"app": name},
                    "ownerReferences": [
                        {
                            "apiVersion": owner["apiVersion"],
                            "kind": owner["kind"],
                            "name": name,
                            "uid": owner["metadata"]["uid"],
                            "controller": True,
                        }
                    ],
                },
                "spec": {"nodeName": node},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            }
        )

    def budget(self, name: str, allowed: int) -> None:
        self.cluster.put(
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": name, "namespace": "ml"},
                "spec": {"selector": {"matchLabels": {"app": name}}},
                "status": {"disruptionsAllowed": allowed},
            }
        )

    def find(self, name: str) -> Object:
        return next(item for kind, api in _KINDS for item in self._all(api, kind) if item["metadata"]["name"] == name)

    def node(self, name: str) -> Object:
        found = self.cluster.get(ObjectRef("v1", "Node", name))
        assert found is not None
        return found

    def pods(self, owner: str = "") -> list[Object]:
        return [pod for pod in self._all("v1", "Pod") if not owner or pod["metadata"]["labels"]["app"] == owner]

    def _all(self, api_version: str, kind: str) -> tuple[Object, ...]:
        return self.cluster.objects(api_version, kind)

    # The controllers

    def settle(self) -> None:
        """Suspended owners lose their Pods, others get theirs back on Nodes that nothing keeps them from."""
        for kind, api in _KINDS:
            for owner in self._all(api, kind):
                name = owner["metadata"]["name"]
                wanted = owner["spec"].get("replicas", 0 if owner["spec"].get("suspend") else owner["test"]["pods"])
                restarted = (owner["spec"].get("template") or {}).get("metadata", {}).get("annotations", {})
                stamp = restarted.get("kubectl.kubernetes.io/restartedAt", "")
                pods = self.pods(name)
                if stamp != owner["test"].get("stamp", ""):
                    owner["test"]["stamp"] = stamp
                    self.cluster.put(owner)
                    for pod in pods:
                        self._end(pod)
                    pods = []
                for pod in pods[wanted:]:
                    self._end(pod)
                for index in range(len(pods), wanted):
                    self._pod(name, index, self._free_node(owner["test"]["gpus"]))
                status = {"active": wanted} if kind == "Job" else {"replicas": wanted}
                if kind != "JobSet" and owner["status"] != status:
                    self.cluster.put({**self.find(name), "status": status})

    def _end(self, pod: Object) -> None:
        self.cluster.remove(ObjectRef("v1", "Pod", pod["metadata"]["name"], "ml"))

    def _free_node(self, gpus: int) -> str:
        used: dict[str, int] = {}
        for pod in self.pods():
            used[pod["spec"]["nodeName"]] = used.get(pod["spec"]["nodeName"], 0) + self._gpus(pod)
        # The last Nodes first: the first one is the sick one in these tests.
        names = [f"n{index}" for index in reversed(range(self.nodes))]
        fenced = {name for name in names if self.node(name)["spec"].get("taints")}
        return next(name for name in names if name not in fenced and used.get(name, 0) + gpus <= GPUS)

    def _gpus(self, pod: Object) -> int:
        return int(self.find(pod["metadata"]["labels"]["app"])["test"]["gpus"])

    # Views

    def view(self) -> View:
        pods = self.pods()
        taken: dict[str, int] = {}
        holders: dict[str, str] = {}
        for pod in pods:
            node = pod["spec"]["nodeName"]
            for _ in range(self._gpus(pod)):
                holders[_device(node, taken.get(node, 0))] = f"ml/{pod['metadata']['name']}"
                taken[node] = taken.get(node, 0) + 1
        devices = tuple(
            Device(
                id=_device(f"n{n}", i),
                uuid=_device(f"n{n}", i),
                vendor=Vendor.NVIDIA,
                vocabulary="dcgm",
                index=str(i),
                node_label=f"n{n}",
                node=f"n{n}",
                holders=(holders[_device(f"n{n}", i)],) if _device(f"n{n}", i) in holders else (),
            )
            for n in range(self.nodes)
            for i in range(GPUS)
            if _device(f"n{n}", i) not in self.dark
        )
        cluster = Cluster(
            nodes=tuple(self._model_node(item) for item in self._all("v1", "Node")),
            pods=tuple(self._model_pod(pod) for pod in pods),
            workloads=tuple(self._model_workload(owner) for kind, api in _KINDS for owner in self._all(api, kind)),
            gangs=tuple(self._gang(owner) for owner in self._all("batch/v1", "Job")),
            budgets=tuple(
                DisruptionBudget(
                    namespace="ml",
                    name=item["metadata"]["name"],
                    match_labels=item["spec"]["selector"]["matchLabels"],
                    disruptions_allowed=item["status"]["disruptionsAllowed"],
                )
                for item in self._all("policy/v1", "PodDisruptionBudget")
            ),
            namespaces=(Namespace(name="ml"),),
            claims=self.claims,
            known=True,
        )
        snapshot = Snapshot(at=self.now - self.stale, devices=devices, cluster=cluster)
        return View(snapshot, tuple(self._findings(devices, pods)), self.alerts)

    def _model_node(self, node: Object) -> Node:
        return Node(
            name=node["metadata"]["name"],
            uid=node["metadata"]["uid"],
            labels=node["metadata"].get("labels") or {},
            annotations=node["metadata"].get("annotations") or {},
            taints=tuple(
                Taint(item["key"], item.get("value", ""), item["effect"]) for item in node["spec"].get("taints") or ()
            ),
            conditions=(Condition("Ready", "True"),),
            unschedulable=bool(node["spec"].get("unschedulable")),
            accelerators={GPU: GPUS},
            allocatable={GPU: GPUS},
            gpu_product="A100",
            gpu_count=GPUS,
            pool="train",
        )

    def _model_pod(self, pod: Object) -> Pod:
        owner = self.find(pod["metadata"]["labels"]["app"])
        name = f"{owner['kind']}/ml/{owner['metadata']['name']}"
        return Pod(
            namespace="ml",
            name=pod["metadata"]["name"],
            uid=pod["metadata"]["uid"],
            node=pod["spec"]["nodeName"],
            phase="Running",
            started=START - timedelta(hours=10),
            ready=True,
            labels=pod["metadata"]["labels"],
            accelerators={GPU: owner["test"]["gpus"]},
            workload=name,
            gang=name if owner["kind"] == "Job" else "",
        )

    def _model_workload(self, owner: Object) -> Workload:
        name = owner["metadata"]["name"]
        return Workload(
            id=f"{owner['kind']}/ml/{name}",
            kind=owner["kind"],
            api_version=owner["apiVersion"],
            namespace="ml",
            name=name,
            uid=owner["metadata"]["uid"],
            status=OwnerStatus.FOUND,
            annotations=owner["metadata"].get("annotations") or {},
        )

    def _gang(self, owner: Object) -> Gang:
        name = f"Job/ml/{owner['metadata']['name']}"
        members = tuple(f"ml/{pod['metadata']['name']}" for pod in self.pods(owner["metadata"]["name"]))
        return Gang(id=name, framework="Job", workload=name, namespace="ml", pods=members)

    def _findings(self, devices: tuple[Device, ...], pods: list[Object]) -> list[Finding]:
        found = []
        for device in devices:
            sick = device.id in self.sick
            if not sick and self.blind:
                continue
            found.append(
                Finding(
                    rule="health.xid",
                    family=Family.HEALTH,
                    kind=FindingKind.XID,
                    subject=Subject(SubjectKind.DEVICE, device.id),
                    verdict=Verdict.DEGRADED if sick else Verdict.HEALTHY,
                    summary="fell off the bus" if sick else "no XID",
                    severity=Severity.CRITICAL if sick else Severity.INFO,
                    advice=Advice.REBOOT if sick else Advice.NONE,
                    confidence_ratio=0.9,
                    devices=(device.id,),
                    node=device.node,
                )
            )
        for pod in pods:
            owner = pod["metadata"]["labels"]["app"]
            if owner in self.idle or owner in self.busy:
                ref = f"ml/{pod['metadata']['name']}"
                idle = owner in self.idle
                found.append(
                    Finding(
                        rule="idle.abandoned",
                        family=Family.IDLE,
                        kind=FindingKind.ABANDONED if idle else FindingKind.IN_USE,
                        subject=Subject(SubjectKind.POD, ref),
                        verdict=Verdict.IDLE if idle else Verdict.BUSY,
                        summary="silent for good" if idle else "works",
                        confidence_ratio=0.9,
                        devices=tuple(device.id for device in devices if ref in device.holders),
                        pods=(ref,),
                    )
                )
        return found

    # Driving

    def executor(self, store: Any, policies: Policies) -> Executor:
        return Executor(store, self.cluster, self.rehearsal, self.view, self._notify, policies)

    def _notify(self, remediation: Remediation) -> None:
        self.notices.append(remediation.name)

    def propose(self, executor: Executor) -> tuple[Remediation, ...]:
        view = self.view()
        return executor.propose(view.plan(executor.policies.plan, executor.store.all(), {}), view, self.now)


_KINDS = (("Deployment", "apps/v1"), ("Job", "batch/v1"), ("JobSet", "jobset.x-k8s.io/v1alpha2"))


def _device(node: str, index: int) -> str:
    return f"GPU-{node}-{index}"


class Rehearsal:
    """The same cluster, of which each write is judged on a copy that is thrown away."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self.interfere: Callable[[str, str, bool], None] = lambda _verb, _what, _done: None

    def __getattr__(self, name: str) -> Any:
        trial = self._cluster.writer(interfere=self.interfere)
        trial._objects = copy.deepcopy(self._cluster._objects)
        return getattr(trial, name)


def new_store(path: Path | None = None) -> SqliteRemediations:
    """The store of an executor outside of a cluster, which need not outlive a power cut here."""
    chosen = path or Path(tempfile.mkdtemp(prefix="gpuwatch-execute-")) / "remediations.db"
    store = SqliteRemediations.open(chosen)
    store._db.execute("PRAGMA synchronous = OFF")
    return store


def drive(fleet: Fleet, executor: Executor, hours: float, least_seconds: int = 60) -> None:
    """Let the fleet and the executor run for so long; time in which nothing can happen is skipped."""
    end = fleet.now + timedelta(hours=hours)
    while fleet.now < end:
        soon = fleet.now + timedelta(seconds=least_seconds)
        if not tick(fleet, executor):
            told = [each.next_at for each in executor.store.open_() if each.next_at is not None]
            soon = max(soon, min(told, default=soon))
        fleet.now = soon


def tick(fleet: Fleet, executor: Executor) -> bool:
    """Was there anything to do?"""
    fleet.settle()
    due = executor.due(fleet.now)
    for name in due:
        executor.run_once(name, fleet.now)
    return bool(due)


def quick(**changes: Any) -> ExecutePolicy:
    """Short waits, so that a whole course is minutes of simulated time."""
    base = ExecutePolicy(
        announce_seconds=600,
        act_seconds=7200,
        rung_seconds=600,
        healthy_seconds=900,
        release_hold_seconds=7200,
        retry_cap_seconds=600,
    )
    return replace(base, **changes)
