"""How the Pods of an owner are moved to other Nodes: some one by one, some only as a whole, some never. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from gpuwatch.kube import keys
from gpuwatch.kube.adapters import ADAPTERS, Patch, Refused, condition, key_of, number
from gpuwatch.kube.json_patch import ABSENT, value_at
from gpuwatch.kube.kinds import KindKey
from gpuwatch.kube.writer import Object, ref_of, version_of
from gpuwatch.model.remediation import ObjectRef

_LEADER = "leaderworkerset.sigs.k8s.io/worker-index"
_RAY_TYPE = "ray.io/node-type"
_RAY_REPLICA = "ray.io/worker-group-replica-name"
_TRAINING_INDEX = "training.kubeflow.org/replica-index"
_TRAINING_ROLE = "training.kubeflow.org/replica-type"
_LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
_VOLCANO_TASK = "volcano.sh/task-spec"
_AT_THE_END = {"PodEvicted", "PodFailed", "*"}  # events of Volcano that an eviction raises


class How(StrEnum):
    CYCLE = "cycle"  # release it whole, see it released, restore it
    EVICT = "evict"  # these Pods through the Eviction API, one after the other, each once the last one is back
    ROLLOUT = "rollout"  # a new Pod first, the old one after it


@dataclass(frozen=True, slots=True)
class Move:
    """pods: to evict, in this order; empty where `how` is not EVICT."""

    how: How
    pods: tuple[ObjectRef, ...] = ()


def move(
    object_: Object, pods: Sequence[Object], wanted: Sequence[str], min_available: int | None = None
) -> Move | Refused:
    """How to move the Pods of these uids, which are among `pods`, all Pods of this owner.

    object_: the top owner, or the Kueue Workload that holds it. min_available: of the gang; None where all are needed.
    """
    key = key_of(object_)
    there = [pod for pod in pods if value_at(pod, "/status/phase") not in ("Succeeded", "Failed")]
    chosen = [pod for pod in there if pod["metadata"].get("uid") in wanted]
    if not chosen:
        return Refused("None of the Pods to move is there any more.")
    if key in _RULES:
        return _RULES[key](object_, there, chosen, min_available)
    if key in _CYCLED:
        return Move(How.CYCLE)
    return Refused(f"gpuwatch does not move the Pods of a {object_['kind']} of {object_['apiVersion']}.")


def rollout(object_: Object, *, remediation: str, at: datetime) -> Patch:
    """A new generation of a Deployment's Pods, as `kubectl rollout restart` asks for it. Nothing to restore."""
    when = at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    template = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": when}}}
    body = {"metadata": {"annotations": {keys.REMEDIATION: remediation}}, "spec": {"template": template}}
    return Patch(ref_of(object_), body, version_of(object_))


def _label(pod: Object, name: str) -> str:
    return str((pod["metadata"].get("labels") or {}).get(name, ""))


def _annotation(pod: Object, name: str) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(name, ""))


def _evict(pods: Sequence[Object]) -> Move:
    ordered = sorted(pods, key=lambda pod: (pod["metadata"].get("namespace", ""), pod["metadata"]["name"]))
    return Move(How.EVICT, tuple(ref_of({"apiVersion": "v1", "kind": "Pod", **pod}) for pod in ordered))


def _ready(pod: Object) -> bool:
    return condition(pod, "Ready") is True and "deletionTimestamp" not in pod["metadata"]


def _job(job: Object, _there: Sequence[Object], chosen: Sequence[Object], _: int | None) -> Move | Refused:
    """A lone Pod may be evicted where that does not count as a failure of the Job. The first rule that matches counts,
    and an earlier one could match what the Pod exits with."""
    rules = value_at(job, "/spec/podFailurePolicy/rules")
    first = rules[0] if rules else {}
    ignored = first.get("action") == "Ignore" and any(
        item.get("type") == "DisruptionTarget" and item.get("status", "True") == "True"
        for item in first.get("onPodConditions") or ()
    )
    return _evict(chosen) if ignored and number(job, "/spec/parallelism", 1) == 1 else Move(How.CYCLE)


def _leader_worker_set(
    _object: Object, there: Sequence[Object], chosen: Sequence[Object], _: int | None
) -> Move | Refused:
    """The end of a leader is the end of its group, and of no other."""
    groups = {_label(pod, _LWS_GROUP) for pod in chosen}
    leaders = [pod for pod in there if _label(pod, _LEADER) == "0" and _label(pod, _LWS_GROUP) in groups]
    if "" in groups or len(leaders) != len(groups):
        return Refused("The leader of a group to move was not found.")
    return _evict(leaders)


def _elastic(job: Object, there: Sequence[Object], chosen: Sequence[Object], _: int | None) -> Move | Refused:
    """Workers above an elastic job's minimum, but not the first, where the others meet."""
    least = value_at(job, "/spec/elasticPolicy/minReplicas")
    workers = [pod for pod in there if _label(pod, _TRAINING_ROLE).lower() == "worker" and _ready(pod)]
    spare = len(workers) - least if isinstance(least, int) else 0
    first = any(
        _label(pod, _TRAINING_ROLE).lower() != "worker" or _label(pod, _TRAINING_INDEX) == "0" for pod in chosen
    )
    return Move(How.CYCLE) if first or len(chosen) > spare or _counts_an_end(job) else _evict(chosen)


def _counts_an_end(job: Object) -> bool:
    """A Pod that is evicted fails before it is gone. That ends a PyTorchJob whose workers are not started again
    whatever they exit with, and may count against a backoffLimit."""
    policy = value_at(job, "/spec/pytorchReplicaSpecs/Worker/restartPolicy")
    again = policy is ABSENT or policy in ("OnFailure", "Always")
    return not again or value_at(job, "/spec/runPolicy/backoffLimit") is not ABSENT


def _volcano(job: Object, there: Sequence[Object], chosen: Sequence[Object], least: int | None) -> Move | Refused:
    """The surplus above minAvailable, where no policy makes more of a Pod's end than that; else the whole Job."""
    told = value_at(job, "/spec/minAvailable")
    needed = told if isinstance(told, int) else least
    spare = sum(_ready(pod) for pod in there) - needed if needed is not None else 0
    whole = _makes_more_of_an_end(job) or _needed_by_task(job, there, chosen, needed)
    return Move(How.CYCLE) if whole or len(chosen) > spare else _evict(chosen)


def _makes_more_of_an_end(job: Object) -> bool:
    """A Pod that is evicted fails before it is gone, so what Volcano does about failures and exit codes it does about
    evictions too. Every action but SyncJob, which is what happens without a policy, ends other Pods or counts as a
    retry."""
    return any(
        policy.get("action") not in ("SyncJob", None)
        for holder in (job["spec"], *(value_at(job, "/spec/tasks") or ()))
        for policy in holder.get("policies") or ()
        if "exitCode" in policy or {policy.get("event"), *(policy.get("events") or ())} & _AT_THE_END
    )


def _needed_by_task(job: Object, there: Sequence[Object], chosen: Sequence[Object], needed: int | None) -> bool:
    """Volcano holds each task to its own minimum, which is all of it where none is told, unless the Job as a whole
    needs less than those together; and the groups of a task that is split are not known here."""
    tasks = value_at(job, "/spec/tasks") or ()
    least = {task["name"]: task.get("minAvailable", task.get("replicas", 0)) for task in tasks if task.get("name")}
    moved = Counter(_annotation(pod, _VOLCANO_TASK) for pod in chosen)
    if any(task.get("partitionPolicy") and moved[task.get("name", "")] for task in tasks):
        return True
    if needed is None or needed < sum(least.values()):
        return False
    ready = Counter(_annotation(pod, _VOLCANO_TASK) for pod in there if _ready(pod))
    return any(ready[name] - count < least.get(name, 0) for name, count in moved.items())


def _ray_cluster(_object: Object, _there: Sequence[Object], chosen: Sequence[Object], _: int | None) -> Move | Refused:
    if any(_label(pod, _RAY_TYPE) != "worker" for pod in chosen):
        return Refused("The head of a RayCluster is never moved: its state would be lost.")
    if any(_label(pod, _RAY_REPLICA) for pod in chosen):
        return Refused("A worker on several hosts cannot be moved Pod by Pod.")
    return _evict(chosen)


def _others_missing(owner: Object, there: Sequence[Object], chosen: Sequence[Object]) -> str:
    """Why not even one of the chosen may go: the others are not all there."""
    others = number(owner, "/spec/replicas", 1) - len(chosen)
    ready = sum(_ready(pod) for pod in there if pod not in chosen)
    return f"{ready} of its {others} other Pods are ready, and those come first." if ready < others else ""


def _deployment(deployment: Object, there: Sequence[Object], chosen: Sequence[Object], _: int | None) -> Move | Refused:
    """One that has no other Pod gets the new one first."""
    if number(deployment, "/spec/replicas", 1) == 1:
        return Move(How.ROLLOUT)
    missing = _others_missing(deployment, there, chosen)
    return Refused(missing) if missing else _evict(chosen)


def _stateful_set(stateful: Object, there: Sequence[Object], chosen: Sequence[Object], _: int | None) -> Move | Refused:
    parallel = value_at(stateful, "/spec/podManagementPolicy") == "Parallel"
    if parallel and number(stateful, "/spec/replicas", 1) > 1:
        return Move(How.CYCLE)  # how gangs are made by hand
    missing = _others_missing(stateful, there, chosen)
    return Refused(missing) if missing else _evict(chosen)


def _inference(_object: Object, there: Sequence[Object], chosen: Sequence[Object], _: int | None) -> Move | Refused:
    if sum(_ready(pod) for pod in there) <= len(chosen):
        return Refused("No other Pod of it would answer meanwhile.")
    return _evict(chosen)


_RULES = {
    ("batch", "Job"): _job,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker_set,
    ("kubeflow.org", "PyTorchJob"): _elastic,
    ("batch.volcano.sh", "Job"): _volcano,
    ("ray.io", "RayCluster"): _ray_cluster,
    ("apps", "Deployment"): _deployment,
    ("apps", "StatefulSet"): _stateful_set,
    ("serving.kserve.io", "InferenceService"): _inference,
}
_NEVER: frozenset[KindKey] = frozenset({("kubeflow.org", "Notebook")})
_CYCLED = frozenset(ADAPTERS) - frozenset(_RULES) - _NEVER
