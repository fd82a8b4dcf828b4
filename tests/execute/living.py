"""A small fleet that lives: objects in a MemoryCluster, the few controllers that the tests need, and views of it."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.executor import Executor, read_surroundings
from gpuwatch.act.execute.policy import ExecutePolicy
from gpuwatch.act.plan.draw import draw_plan
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.act.remediations import RemediationStore, needs_attention
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.fights import may_release
from gpuwatch.facts.frameworks.objects import Object, ref_of
from gpuwatch.facts.frameworks.release import loses
from gpuwatch.facts.model.cluster import (
    ClaimedDevice,
    Cluster,
    DisruptionBudget,
    Gang,
    Namespace,
    Node,
    Pod,
    Taint,
    Workload,
)
from gpuwatch.facts.model.decision import (
    ActionKind,
    Advice,
    Evidence,
    Finding,
    FindingKind,
    Mode,
    Plan,
    Severity,
    Snapshot,
    Verdict,
)
from gpuwatch.facts.model.remediation import ObjectRef, Remediation
from gpuwatch.facts.model.telemetry import Device, Gap, GapKind, Signal, SourceRead
from gpuwatch.sources.kube.writer import Failure, WriteError
from gpuwatch.sources.store.custom_resources import API_VERSION, KIND, NODE_KIND
from kube.memory_cluster import MemoryCluster, merged
from plan import fleet as model

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
    """Nodes of eight GPUs. sick: UUIDs; idle, busy: Pods by owner name; stuck: owners whose Pods are never placed.

    Volcano takes a Command up, which deletes it, after `takes_up`, and carries it out `carries_out` later. Kueue gives
    the quota back `frees` after the last Pod; its ClusterQueue has `quota` GPUs, which who waits longest gets first.
    """

    nodes: int = 8
    now: datetime = START
    sick: set[str] = field(default_factory=set)
    idle: set[str] = field(default_factory=set)
    idle_kind: FindingKind = FindingKind.ABANDONED
    sick_kind: FindingKind = FindingKind.XID
    sick_for: timedelta = timedelta(hours=2)
    busy: set[str] = field(default_factory=set)
    blind: bool = False  # telemetry gives no verdict on healthy devices
    dark: set[str] = field(default_factory=set)
    """UUIDs of which telemetry shows nothing."""
    silent: set[str] = field(default_factory=set)
    """UUIDs that do not report now, though rules still conclude from what they told before."""
    well: set[str] = field(default_factory=set)
    at_work: set[str] = field(default_factory=set)
    """UUIDs whose exporter shows them as well, or at work, whatever the series say."""
    unanswered: str = ""
    """Why no exporter answers."""
    asked: list[str] = field(default_factory=list)
    """URLs of exporters that were read."""
    partial: bool = False
    alerts: tuple[str, ...] = ()
    stale: timedelta = timedelta()
    claims: tuple[ClaimedDevice, ...] = ()
    beside: dict[str, str] = field(default_factory=dict)
    """Pods without accelerators, and their Nodes."""
    daemons: dict[str, str] = field(default_factory=dict)
    """The same of DaemonSets."""
    unserved: tuple[str, ...] = ()
    stuck: set[str] = field(default_factory=set)
    takes_up: timedelta = timedelta()
    carries_out: timedelta = timedelta()
    frees: timedelta = timedelta()
    quota: int = 1_000
    waited: timedelta = timedelta()
    """Before the start, by Pods that wait; 0 where it is not known."""
    may_move: set[str] = field(default_factory=set)
    """Owners who allow that their working Pods are moved for others."""
    notices: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    """Successful writes to the cluster but Events, which may be said twice."""
    foresees: bool = True
    """The plan knows what stands beside an owner."""
    before_write: Callable[[str, str, bool], None] = lambda _verb, _what, _done: None

    def __post_init__(self) -> None:
        self.size: dict[str, tuple[int, int]] = {}  # GPUs of a Pod, and Pods, of each owner
        self.made: dict[str, int] = {}
        self.stamps: dict[str, str] = {}
        self.idle_since: dict[str, datetime] = {}
        self.commands: dict[str, datetime] = {}
        self.orders: list[tuple[datetime, str, str]] = []
        self.aborted: list[str] = []  # by Volcano
        self.queued: list[str] = []  # by Kueue, in the order in which they wait
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
        """kind: as in the API, 'Volcano' for its Job. node: '' where its Pods wait."""
        api = next((version for known, version in _KINDS if known == kind), VOLCANO)
        self.size[name] = (gpus, pods)
        metadata: Object = {"name": name, "namespace": "ml", "uid": f"uid-{name}"}
        if name in self.may_move:
            metadata["annotations"] = {keys.MAY_MOVE: "true"}
        status: Object = {}
        if kind == "Volcano":
            whole = {"minAvailable": pods, "maxRetry": 5, **spec}
            status = {"state": {"phase": "Running"}, "retryCount": 0}
        else:
            whole = {"replicas": pods, **spec} if api == "apps/v1" else {"suspend": False, **spec}
        self.cluster.put(
            {
                "apiVersion": api,
                "kind": kind if kind != "Volcano" else "Job",
                "metadata": metadata,
                "spec": whole,
                "status": status,
            }
        )
        if kind == "Volcano":
            self._pod_group(name, "Running")
        for _ in range(pods):
            self._pod(name, node)

    def cordon(self, name: str = "n0") -> None:
        """By a person: what is moved off it needs no taint of ours."""
        node = copy.deepcopy(self.node(name))
        node["spec"]["unschedulable"] = True
        self.cluster.put(node)

    def queue(self, name: str) -> None:
        """Kueue manages this Job. Admitted, if it runs."""
        job = self.find(name)
        job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
        self.cluster.put(job)
        reserved = {"type": "QuotaReserved", "status": str(not job["spec"]["suspend"])}
        self.cluster.put(
            {
                "apiVersion": KUEUE,
                "kind": "Workload",
                "metadata": {"name": f"job-{name}", "namespace": "ml", "ownerReferences": [self._reference(name)]},
                "spec": {"active": True, "queueName": "team"},
                "status": {"conditions": [reserved]},
            }
        )
        self.queued.append(name)

    def rival(self, name: str, gpus: int, pods: int = 1) -> None:
        """Another team's Job, which waits in Kueue's queue for quota, before all that is stopped later."""
        self.owner("Job", name, gpus, pods=0, suspend=True)
        self.size[name] = (gpus, pods)
        self.queue(name)

    def finish(self, name: str) -> None:
        """This Job of Kueue ends, and its quota is free."""
        self.queued.remove(name)
        job = self.find(name)
        self.cluster.remove(ref_of(job))

    def _pod_group(self, name: str, phase: str) -> None:
        metadata = {"name": f"{name}-group", "namespace": "ml", "ownerReferences": [self._reference(name)]}
        self.cluster.put(
            {
                "apiVersion": "scheduling.volcano.sh/v1beta1",
                "kind": "PodGroup",
                "metadata": metadata,
                "spec": {},
                "status": {"phase": phase},
            }
        )

    def _pod(self, name: str, node: str) -> None:
        generation = self.made.get(name, 0)
        self.made[name] = generation + 1
        self.cluster.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{generation}",
                    "namespace": "ml",
                    "labels": {"app": name},
                    "ownerReferences": [self._reference(name)],
                },
                "spec": {},
                "status": {"phase": "Pending"},
            }
        )
        if node:
            self._place(f"{name}-{generation}", node)
        else:
            self._refuse(next(pod for pod in self.pods(name) if pod["metadata"]["name"] == f"{name}-{generation}"))

    def _place(self, name: str, node: str) -> None:
        pod = self.cluster.get(ObjectRef("v1", "Pod", name, "ml"))
        assert pod is not None
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.cluster.put({**pod, "spec": {"nodeName": node}, "status": status})

    def _refuse(self, pod: Object) -> None:
        """The scheduler's words about a Pod that it does not place."""
        name, closed = pod["metadata"]["labels"]["app"], sum(map(is_closed, self._all("v1", "Node")))
        why = f"{self.nodes - closed} Insufficient {GPU}"
        if self._free_node(self.size[name][0]) is not None:
            why = "1 node(s) had volume node affinity conflict"
        barred = f"{closed} node(s) had untolerated taint(s), " if closed else ""
        said = {**UNPLACED, "message": f"0/{self.nodes} nodes are available: {barred}{why}."}
        if pod["status"].get("conditions") != [said]:  # it writes only what it did not say before
            self.cluster.put({**pod, "status": {"phase": "Pending", "conditions": [said]}})

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
        """A copy."""
        return copy.deepcopy(self._owner(name))

    def _reference(self, name: str) -> Object:
        """As the owner's Pods have it."""
        found = self._owner(name)
        kind, uid = found["kind"], found["metadata"]["uid"]
        return {"apiVersion": found["apiVersion"], "kind": kind, "name": name, "uid": uid, "controller": True}

    def _owner(self, name: str) -> Object:
        places = tuple((version.partition("/")[0], kind) for kind, version in _KINDS)
        stored = self.cluster._objects
        return next(stored[group, kind, "ml", name] for group, kind in places if (group, kind, "ml", name) in stored)

    def node(self, name: str) -> Object:
        found = self.cluster.get(ObjectRef("v1", "Node", name))
        assert found is not None
        return found

    def pods(self, owner: str = "") -> list[Object]:
        return [pod for pod in self._all("v1", "Pod") if not owner or pod["metadata"]["labels"]["app"] == owner]

    def ended_with(self, owner: str) -> list[Object]:
        """All Pods that end when the owner is suspended."""
        return self.pods(owner)

    def _all(self, api_version: str, kind: str) -> list[Object]:
        """As they are stored: to be read, and copied before they are changed."""
        key = (api_version.rpartition("/")[0], kind)
        stored = self.cluster._objects
        return [stored[place] for place in sorted(place for place in stored if place[:2] == key)]

    # The controllers

    def settle(self) -> None:
        """Suspended owners lose their Pods, others get theirs back on Nodes that nothing keeps them from."""
        self._kueue()
        self._volcano()
        for kind, api in _KINDS:
            for owner in self._all(api, kind):
                name = owner["metadata"]["name"]
                wanted = self._wanted(owner)
                restarted = (owner["spec"].get("template") or {}).get("metadata", {}).get("annotations", {})
                stamp = restarted.get("kubectl.kubernetes.io/restartedAt", "")
                pods = [pod for pod in self.pods(name) if "deletionTimestamp" not in pod["metadata"]]
                if stamp != self.stamps.get(name, ""):
                    self.stamps[name] = stamp
                    for pod in pods:
                        self._end(pod)
                    pods = []
                for pod in pods[wanted:]:
                    self._end(pod)
                for _ in range(len(pods), wanted):
                    self._pod(name, "")
                status = {"active": wanted} if kind == "Job" else {"replicas": wanted}
                if kind != "JobSet" and api != VOLCANO and owner["status"] != status:
                    self.cluster.put({**self.find(name), "status": status})
        for pod in self.pods():
            name = pod["metadata"]["labels"]["app"]
            if "nodeName" not in pod["spec"]:
                node = self._free_node(self.size[name][0]) if name not in self.stuck else None
                if node is not None:
                    self._place(pod["metadata"]["name"], node)
                else:
                    self._refuse(pod)

    def _wanted(self, owner: Object) -> int:
        count = self.size[owner["metadata"]["name"]][1]
        if owner["apiVersion"] == VOLCANO:
            return count if owner["status"]["state"]["phase"] == "Running" else 0
        return int(owner["spec"].get("replicas", 0 if owner["spec"].get("suspend") else count))

    def _kueue(self) -> None:
        """An admitted Job runs. One whose Workload is inactive does not. Its quota is free a while later, and the
        Workload that has waited longest takes it. A Workload that is active again waits behind the others."""
        stored = {item["metadata"]["ownerReferences"][0]["name"]: item for item in self._all(KUEUE, "Workload")}
        for name in list(self.queued):
            workload, job = copy.deepcopy(stored[name]), self.find(name)
            active, state = workload["spec"].get("active", True), workload["status"]["conditions"][0]
            before, reserved = copy.deepcopy(state), state["status"] == "True"
            if reserved and not active and job["spec"]["suspend"] and self.now - self.idle_since[name] >= self.frees:
                state["status"] = "False"
                self.queued.remove(name)
                self.queued.append(name)
            elif active and not reserved:
                missing = self._quota_in_use() + self._quota_of(name) - self.quota
                state["status"] = str(missing <= 0)
                if missing > 0:
                    state |= {"reason": "Pending", "message": f"insufficient unused quota, {missing} more needed"}
            if state != before:
                self.cluster.put(workload)
            runs = active and state["status"] == "True"
            if job["spec"]["suspend"] is runs:
                job["spec"]["suspend"] = not runs
                self.cluster.put(job)
                self.idle_since[name] = self.now

    def _quota_in_use(self) -> int:
        """GPUs of the Workloads that have their quota reserved."""
        reserved = (
            item["metadata"]["ownerReferences"][0]["name"]
            for item in self._all(KUEUE, "Workload")
            if item["status"]["conditions"][0]["status"] == "True"
        )
        return sum(self._quota_of(name) for name in reserved)

    def _quota_of(self, name: str) -> int:
        gpus, pods = self.size[name]
        return gpus * pods

    def _volcano(self) -> None:
        """As its job controller: whoever deletes a Command carries it out, once, later."""
        for command in self._all("bus.volcano.sh/v1alpha1", "Command"):
            since = self.commands.setdefault(command["metadata"]["uid"], self.now)
            if self.now - since >= self.takes_up:
                self.cluster.remove(ref_of(command))
                self.orders.append((self.now + self.carries_out, command["target"]["name"], command["action"]))
        due = [order for order in self.orders if order[0] <= self.now]
        self.orders = [order for order in self.orders if order not in due]
        for job in copy.deepcopy(self._all(VOLCANO, "Job")):
            name, state = job["metadata"]["name"], job["status"]["state"]
            before = state["phase"]
            state["phase"] = {"Aborting": "Aborted", "Restarting": "Pending", "Pending": "Running"}.get(before, before)
            for _, _, action in [order for order in due if order[1] == name]:
                if action == "AbortJob" and state["phase"] in ("Running", "Pending"):
                    state["phase"] = "Aborting"
                    self.aborted.append(name)
                elif action == "ResumeJob" and state["phase"] in ("Aborting", "Aborted"):
                    state["phase"] = "Restarting"
                    job["status"]["retryCount"] += 1
            if state["phase"] != before:
                self.cluster.put(job)
                self._pod_group(name, "Running" if state["phase"] == "Running" else "Pending")

    def _end(self, pod: Object) -> None:
        self.cluster.remove(ObjectRef("v1", "Pod", pod["metadata"]["name"], "ml"))

    def _free_node(self, gpus: int) -> str | None:
        # The last Nodes first: the first one is the sick one in these tests.
        names = [f"n{index}" for index in reversed(range(self.nodes))]
        closed = {node["metadata"]["name"] for node in self._all("v1", "Node") if is_closed(node)}
        return next((name for name in names if name not in closed and self._has_room(name, gpus)), None)

    def _has_room(self, node: str, gpus: int) -> bool:
        used = sum(self._gpus(pod) for pod in self.pods() if pod["spec"].get("nodeName") == node)
        return used + gpus <= GPUS

    def _gpus(self, pod: Object) -> int:
        return self.size[pod["metadata"]["labels"]["app"]][0]

    # Views

    def view(self) -> PlanFacts:
        pods = self.pods()
        devices = self._devices(pods)
        cluster = Cluster(
            nodes=tuple(self._model_node(item) for item in self._all("v1", "Node")),
            pods=tuple(self._model_pod(pod) for pod in pods),
            companions=tuple(
                Pod(namespace="db", name=name, node=node, phase="Running", of_node=name in self.daemons)
                for name, node in (self.beside | self.daemons).items()
            ),
            workloads=tuple(self._model_workload(owner) for kind, api in _KINDS for owner in self._all(api, kind)),
            gangs=tuple(self._gang(owner) for api in ("batch/v1", VOLCANO) for owner in self._all(api, "Job")),
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
            exporter_urls=self.exporter_urls(),
            known=True,
            unread=(),
        )
        snapshot = Snapshot(at=self.now - self.stale, devices=devices, cluster=cluster, gaps=self.gaps())
        return PlanFacts(snapshot=snapshot, findings=tuple(self._findings(devices, pods)), alerts=self.alerts)

    def _devices(self, pods: list[Object]) -> tuple[Device, ...]:
        taken: dict[str, int] = {}
        holders: dict[str, str] = {}
        for pod in pods:
            node = pod["spec"].get("nodeName", "")
            for _ in range(self._gpus(pod) if node else 0):
                holder = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
                holders[device_id(node, taken.get(node, 0))] = holder
                taken[node] = taken.get(node, 0) + 1
        return tuple(
            model.device(
                f"n{n}", i, holders.get(device_id(f"n{n}", i), ""), present=device_id(f"n{n}", i) not in self.silent
            )
            for n in range(self.nodes)
            for i in range(GPUS)
            if device_id(f"n{n}", i) not in self.dark
        )

    def exporter_urls(self) -> dict[str, str]:
        """As the API server tells them."""
        return {f"http://n{n}:9400/metrics": f"n{n}" for n in range(self.nodes)}

    def read_exporters(self, urls: Sequence[str]) -> SourceRead:
        """The page of one Node."""
        self.asked += urls
        (url,) = urls
        name = self.exporter_urls()[url]
        if self.unanswered:
            return SourceRead(failed=f"{url} could not be read: {self.unanswered}.")
        values: dict[tuple[str, Signal], dict[str, float]] = {}
        mine = [each for each in Fleet._devices(self, self.pods()) if each.node == name]
        names = {f"ml/{pod['metadata']['name']}": pod["metadata"]["labels"]["app"] for pod in self.pods()}
        for device in mine:
            works = {names.get(ref, "") for ref in device.pods} - self.idle or device.id in self.at_work
            well = device.id not in self.sick or device.id in self.well
            values[device.id, Signal.BUSY_RATIO] = {"": 0.9 if works else 0.0}
            values[device.id, Signal.XID_CODE] = {"": 0.0 if well else 79.0}
        return SourceRead(url, frozenset(each.id for each in mine), values)

    def gaps(self) -> tuple[Gap, ...]:
        """Of telemetry."""
        return (Gap(kind=GapKind.PARTIAL, what="telemetry", detail="A store did not answer."),) if self.partial else ()

    def _model_node(self, node: Object) -> Node:
        taints = node["spec"].get("taints") or ()
        return model.node(
            node["metadata"]["name"],
            GPUS,
            uid=node["metadata"]["uid"],
            labels=node["metadata"].get("labels") or {},
            annotations=node["metadata"].get("annotations") or {},
            taints=tuple(Taint(item["key"], item.get("value", ""), item["effect"]) for item in taints),
            unschedulable=bool(node["spec"].get("unschedulable")),
            gpu_count=GPUS,
        )

    def _model_pod(self, pod: Object) -> Pod:
        owner = self._owner(pod["metadata"]["labels"]["app"])
        name, phase = f"{owner['kind']}/ml/{owner['metadata']['name']}", pod["status"]["phase"]
        words = [each for each in pod["status"].get("conditions", ()) if each["type"] == "PodScheduled"]
        return model.pod(
            f"ml/{pod['metadata']['name']}",
            pod["spec"].get("nodeName", ""),
            self._gpus(pod),
            name,
            uid=pod["metadata"]["uid"],
            phase=phase,
            ready=phase == "Running",
            created=START - self.waited if self.waited and phase == "Pending" else None,
            labels=pod["metadata"]["labels"],
            unscheduled=": ".join(each.get(key, "") for each in words for key in ("reason", "message")),
            gang=name if owner["kind"] == "Job" else "",
        )

    def _model_workload(self, owner: Object) -> Workload:
        return model.workload(
            f"{owner['kind']}/ml/{owner['metadata']['name']}",
            api_version=owner["apiVersion"],
            uid=owner["metadata"]["uid"],
            annotations=owner["metadata"].get("annotations") or {},
            loses=loses(owner),
            unreleasable=" ".join(may_release(owner, read_surroundings(self.cluster, owner)).no)
            if self.foresees
            else "",
        )

    def _gang(self, owner: Object) -> Gang:
        name = f"Job/ml/{owner['metadata']['name']}"
        members = tuple(f"ml/{pod['metadata']['name']}" for pod in self.pods(owner["metadata"]["name"]))
        queued = "labels" in owner["metadata"]
        framework = "Volcano" if owner["apiVersion"] == VOLCANO else "Kueue" if queued else "Job"
        return Gang(id=name, framework=framework, workload=name, namespace="ml", pods=members)

    def _findings(self, devices: tuple[Device, ...], pods: list[Object]) -> list[Finding]:
        found = []
        for device in devices:
            if device.id in self.sick:
                found.append(model.sick(device, kind=self.sick_kind, since=self.now - self.sick_for, evidence=(SHOWN,)))
            elif not self.blind:
                found.append(model.sick(device, **HEALTHY, kind=self.sick_kind))
        for pod in pods:
            owner = pod["metadata"]["labels"]["app"]
            if owner in self.idle or owner in self.busy:
                ref = f"ml/{pod['metadata']['name']}"
                idle = owner in self.idle
                busy = {} if idle else {"kind": FindingKind.IN_USE, "verdict": Verdict.BUSY, "summary": "works"}
                held = [device for device in devices if ref in device.pods]
                since = START if idle else None
                found.append(model.idle(ref, held, **{"kind": self.idle_kind, "since": since, **busy}))
        return found

    # Driving

    def become(self, name: str, value: Any) -> None:
        """Sets an attribute; seconds where it is a time."""
        kind = type(getattr(self, name))
        setattr(self, name, timedelta(seconds=value) if kind is timedelta else kind(value))

    def fail(self, failures: Mapping[str, str]) -> None:
        """From now on, dry runs of writes of which the name has such a part fail in this way."""

        def interfere(_verb: str, what: str, _done: bool) -> None:
            for part, failure in failures.items():
                if part in what:
                    raise WriteError(Failure(failure), f"injected {failure}")

        self.rehearsal.interfere = interfere

    def executor(self, store: Any, policies: ExecutorPolicies) -> Executor:
        return Executor(store, self.cluster, self.rehearsal, self.view, self._notify, policies, self.read_exporters)

    def _notify(self, remediation: Remediation) -> None:
        self.notices.append(remediation.name)

    def propose(self, executor: Executor) -> tuple[Remediation, ...]:
        return executor.propose(self.plan(executor), self.view(), self.now)

    def plan(self, executor: Executor) -> Plan:
        return draw_plan(replace(self.view(), policy=executor.policies.plan, history=executor.store.all()))


SHOWN = Evidence(signal="xid_code", value=79.0, statistic="last", comparison="==", bound=79.0)
"""What the rules say of a sick GPU here, whatever its kind."""
HEALTHY = {
    "verdict": Verdict.HEALTHY,
    "summary": "no XID",
    "severity": Severity.INFO,
    "advice": Advice.NONE,
}
UNPLACED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
VOLCANO = "batch.volcano.sh/v1alpha1"
KUEUE = "kueue.x-k8s.io/v1beta2"
_KINDS = (
    ("Deployment", "apps/v1"),
    ("StatefulSet", "apps/v1"),
    ("Job", "batch/v1"),
    ("JobSet", "jobset.x-k8s.io/v1alpha2"),
    ("Job", VOLCANO),
)


def is_closed(node: Object) -> bool:
    """Whether the scheduler puts no Pod there. No Pod of this fleet tolerates a taint. PreferNoSchedule is no bar."""
    hard = any(taint["effect"] != "PreferNoSchedule" for taint in node["spec"].get("taints") or ())
    return hard or bool(node["spec"].get("unschedulable"))


def device_id(node: str, index: int) -> str:
    return f"GPU-{node}-{index}"


class Rehearsal:
    """The same cluster, of which each write is judged on a copy that is thrown away."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self.interfere: Callable[[str, str, bool], None] = lambda _verb, _what, _done: None

    def __getattr__(self, name: str) -> Any:
        trial = self._cluster.writer(interfere=self.interfere)
        trial._objects = dict(self._cluster._objects)  # stored objects are replaced, never changed
        return getattr(trial, name)


def new_store() -> RemediationStore:
    """That of an executor, in a cluster of its own: what the fleet's cluster is told, its tests count."""
    store = RemediationStore(MemoryCluster(), "gpuwatch")
    store.resume()
    return store


def only(store: RemediationStore) -> Remediation:
    (found,) = store.all()
    return found


def attended(store: RemediationStore) -> list[Remediation]:
    """Those to which something may still happen."""
    return [each for each in store.all() if needs_attention(each)]


def drive(fleet: Fleet, executor: Executor, hours: float, least_seconds: int = 60) -> None:
    """Let the fleet and the executor run for so long; time in which nothing can happen is skipped."""
    end = fleet.now + timedelta(hours=hours)
    while fleet.now < end:
        soon = fleet.now + timedelta(seconds=least_seconds)
        if not tick(fleet, executor):
            told = [each.next_at for each in attended(executor.store) if each.next_at is not None]
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
        notice_period_seconds=600,
        action_timeout_seconds=7200,
        taint_escalation_seconds=600,
        healthy_for_seconds=900,
        release_observation_seconds=7200,
        retry_max_seconds=600,
    )
    return replace(base, **changes)


class Scene:
    """A fleet, its Remediations and an executor. The methods after `sees` are what a row of courses.yaml may see."""

    def __init__(self, fleet: Fleet, plan: PlanPolicy, of: ActionKind | None, **execute: Any) -> None:
        """of: the action that is looked at, where there are several."""
        self.fleet, self.store, self.of = fleet, new_store(), of
        self.executor = fleet.executor(self.store, ExecutorPolicies(plan, quick(**execute)))
        self.before = {name: fleet.find(name)["spec"] for name in fleet.size}

    def only(self) -> Remediation:
        (found,) = [each for each in self.store.all() if self.of in (None, each.proposal.action)]
        return found

    def drive(self, hours: float, least_seconds: int = 60) -> None:
        drive(self.fleet, self.executor, hours, least_seconds)

    def until(self, wanted: Mapping[str, Any]) -> None:
        for _ in range(400):
            if self.sees(wanted) == wanted:
                return
            tick(self.fleet, self.executor)
            self.fleet.now += timedelta(seconds=60)
        raise AssertionError(f"It was never {wanted}: {self.sees(wanted)}")

    def stored(self, name: str) -> Object:
        """Of 'KIND/NAME' or of an owner's name."""
        kind, _, short = name.rpartition("/")
        if not kind:
            return self.fleet.find(name)
        (found,) = [
            item for place, item in self.fleet.cluster._objects.items() if (place[1], place[3]) == (kind, short)
        ]
        return copy.deepcopy(found)

    def change(self, name: str, patch: Object) -> None:
        self.fleet.cluster.put(merged(self.stored(name), patch))

    def remove(self, name: str) -> None:
        self.fleet.cluster.remove(ref_of(self.stored(name)))

    def people(self, decision: str) -> None:
        """About all that are looked at."""
        if decision == "resume":
            self.store.resume()
        elif decision.startswith("pause"):
            self.store.pause("ann", "a demo", self.fleet.now, everything=decision == "pause everything")
        for each in self.store.all():
            if self.of not in (None, each.proposal.action):
                continue
            if decision == "approve":
                self.store.approve(each.id, "ann")
            elif decision == "reject":
                self.store.reject(each.id)
            elif decision == "undo":
                self.store.ask_undo(each.id)
            elif decision == "delete":  # as with kubectl
                kind = KIND if each.namespace else NODE_KIND
                self.store._writer.delete(ObjectRef(API_VERSION, kind, each.name, each.namespace))

    def sees(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """What is so of what is wanted. said: the texts of it that some message contains."""
        told = [turn.message for each in self.store.all() for turn in each.history]
        found = {key: getattr(self, key)() for key in wanted if key != "said"}
        if "said" in wanted:
            found["said"] = [text for text in wanted["said"] if any(text in each for each in told)]
        return found

    def phase(self) -> str:
        return self.only().phase

    def phases(self) -> list[str]:
        return sorted(each.phase for each in self.store.all())

    def last(self) -> str:
        return self.only().history[-1].message

    def verified(self) -> dict[str, bool]:
        return dict(self.only().verified)

    def turns(self) -> int:
        return len(self.only().history)

    def waiter(self) -> str:
        return self.only().proposal.waiter

    def steps(self) -> list[str]:
        """Those that change more than notes."""
        return [step.kind for step in self.only().steps if not step.kind.only_notes]

    def overdue(self) -> bool:
        return self.only().overdue

    def began(self) -> bool:
        return self.only().began_at is not None

    def clean(self) -> bool:
        return self.only().clean_since is not None

    def effects(self) -> list[str]:
        """Of gpuwatch's taints on the first Node."""
        return [each["effect"] for each in self.taints() if each["key"] == keys.DEGRADED]

    def taints(self) -> list[Object]:
        return self.fleet.node("n0")["spec"].get("taints") or []

    def labels(self) -> Object:
        return self.fleet.node("n0")["metadata"].get("labels") or {}

    def suspended(self) -> list[str]:
        return [name for name in self.before if self.fleet.find(name)["spec"].get("suspend")]

    def changed(self) -> list[str]:
        """Owners of which the spec is not as it was."""
        return [name for name, spec in self.before.items() if self.fleet.find(name)["spec"] != spec]

    def marked(self) -> list[str]:
        """Owners, and the first Node, with an annotation of gpuwatch."""
        found = {name: self.fleet.find(name) for name in self.before} | {"n0": self.fleet.node("n0")}
        ours = {name: [key for key in annotated(each) if key.startswith(keys.PREFIX)] for name, each in found.items()}
        return [name for name, here in ours.items() if set(here) - {keys.MAY_MOVE}]

    def running(self) -> dict[str, int]:
        counts = {name: self.fleet.pods(name) for name in self.fleet.size}
        return {name: sum(pod["status"]["phase"] == "Running" for pod in pods) for name, pods in counts.items()}

    def evictions(self) -> int:
        return sum("eviction" in line for line in self.fleet.log)

    def writes(self) -> int:
        return len(self.fleet.log)

    def reads(self) -> int:
        """Of exporters."""
        return len(self.fleet.asked)

    def calls(self) -> int:
        """Events that call a person."""
        events = self.fleet.cluster.objects("events.k8s.io/v1", "Event")
        return sum(event["reason"] == "RemediationNeedsPerson" for event in events)

    def orders(self) -> list[str]:
        """Objects for a repair system."""
        made = self.fleet.cluster.objects("nodemaintenance.medik8s.io/v1beta1", "NodeMaintenance")
        return [item["metadata"]["name"] for item in made]

    def commands(self) -> int:
        return len(self.fleet.cluster.objects("bus.volcano.sh/v1alpha1", "Command"))

    def aborted(self) -> list[str]:
        return self.fleet.aborted


def annotated(found: Object) -> dict[str, str]:
    return found["metadata"].get("annotations") or {}
