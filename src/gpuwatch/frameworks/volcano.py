"""Volcano: its Jobs, and the PodGroups that it also creates for other controllers' Pods."""

from collections import Counter
from collections.abc import Callable, Sequence

from gpuwatch.frameworks import common, keys
from gpuwatch.frameworks.framework import (
    CYCLE,
    Commands,
    Framework,
    GangRule,
    Kind,
    MovePlan,
    MoveRule,
    Nature,
    PodGroups,
    ReleaseRule,
    Template,
    Tree,
)
from gpuwatch.frameworks.json_patch import value_at
from gpuwatch.frameworks.objects import Object, number
from gpuwatch.model.cluster import Pod

_PHASE = "/status/state/phase"
_ENDED = ("Completed", "Terminated", "Failed", "Terminating", "Completing")
_RETRIES = 3  # Volcano's default of spec.maxRetry
_TASK = "volcano.sh/task-spec"
_EVICTION_EVENTS = {"PodEvicted", "PodFailed", "*"}

POD_GROUP = Kind(
    "scheduling.volcano.sh",
    "PodGroup",
    ("v1beta1",),
    unscheduled=lambda state: state.matching(Unschedulable="True"),
)


def _refuses(object_: Object) -> str:
    most = number(object_, "/spec/maxRetry", _RETRIES)
    # Resuming counts as a retry, and the last one fails the Job.
    if number(object_, "/status/retryCount") + 1 >= most:
        return f"Resuming it would be the last of its {most} tries (spec.maxRetry), and Volcano would fail it."
    phase = value_at(object_, _PHASE)
    return "" if phase == "Running" else f"Its phase is {phase!r}, and only a running Job can be aborted and resumed."


def _holds(object_: Object) -> str:
    phase = value_at(object_, _PHASE)
    return "" if phase == "Aborted" else f"{_PHASE} is {phase}"


def _command(action: str) -> Callable[[Object, str], Object]:
    def make(job: Object, remediation: str) -> Object:
        """Volcano deletes a Command before it carries it out, so it runs at most once."""
        metadata = job["metadata"]
        target = {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
        }
        return {
            "apiVersion": "bus.volcano.sh/v1alpha1",
            "kind": "Command",
            "metadata": {
                "name": f"{remediation}-{action.lower()}",
                "namespace": metadata["namespace"],
                "annotations": {keys.REMEDIATION: remediation},
                "ownerReferences": [target],
            },
            "action": action,
            "target": target,
            "reason": "gpuwatch",
            "message": f"By the Remediation {remediation}.",
        }

    return make


def _move(job: Object, there: Sequence[Object], chosen: Sequence[Object]) -> MovePlan:
    """Evicts Pods above minAvailable, unless a policy reacts to a Pod's failure; else cycles the whole Job."""
    needed = value_at(job, "/spec/minAvailable")
    if not isinstance(needed, int) or _reacts_to_evictions(job) or _needed_by_task(job, there, chosen, needed):
        return CYCLE
    return common.evict(chosen) if len(chosen) <= sum(common.is_ready(pod) for pod in there) - needed else CYCLE


def _reacts_to_evictions(job: Object) -> bool:
    """An evicted Pod fails before it is gone, so policies for failures and exit codes apply to evictions. Every action
    but SyncJob, the default, ends other Pods or counts as a retry."""
    return any(
        policy.get("action") not in ("SyncJob", None)
        for holder in (job["spec"], *(value_at(job, "/spec/tasks") or ()))
        for policy in holder.get("policies") or ()
        if "exitCode" in policy or {policy.get("event"), *(policy.get("events") or ())} & _EVICTION_EVENTS
    )


def _needed_by_task(job: Object, there: Sequence[Object], chosen: Sequence[Object], needed: int) -> bool:
    """Whether a task would fall below its own minimum (default: all its replicas). Volcano enforces it unless the Job's
    minimum is below their sum. The groups of a task with a partitionPolicy are unknown here, so its Pods are needed."""
    tasks = value_at(job, "/spec/tasks") or ()
    least = {task["name"]: task.get("minAvailable", task.get("replicas", 0)) for task in tasks if task.get("name")}
    moved = Counter(_task(pod) for pod in chosen)
    if any(task.get("partitionPolicy") and moved[task.get("name", "")] for task in tasks):
        return True
    if needed < sum(least.values()):
        return False
    ready = Counter(_task(pod) for pod in there if common.is_ready(pod))
    return any(ready[name] - count < least.get(name, 0) for name, count in moved.items())


def _task(pod: Object) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(_TASK, ""))


def _place(pods: Sequence[Pod], pod_spec: Tree) -> Tree | None:
    names = common.groups_of(pods, _TASK)
    return {"spec": {"tasks": [{"name": name, "template": {"spec": pod_spec}} for name in names]}} if names else None


VOLCANO = Framework(
    name="Volcano",
    kinds=(
        Kind(
            "batch.volcano.sh",
            "Job",
            ("v1alpha1",),
            nature=Nature.ENDS,
            release=ReleaseRule(
                fields=common.sets(_PHASE, "Aborted"),
                holds=_holds,
                refuses=_refuses,
                ended=lambda job: value_at(job, _PHASE) in _ENDED,
                commands=Commands(
                    release=_command("AbortJob"),
                    restore=_command("ResumeJob"),
                    obeyed=lambda job: value_at(job, _PHASE) in ("Aborting", "Aborted"),
                    # An undo withdraws a Command that was not carried out; a sweep, one without a Remediation.
                    rights=tuple(("bus.volcano.sh", "commands", verb) for verb in ("create", "delete", "get", "list")),
                ),
            ),
            move=MoveRule(choose=_move),
            template=Template(_place, frozen=True),
        ),
    ),
    gang=GangRule(
        named_by=("volcano.sh/job-name",), minimum=lambda spec, _: spec.min_available if spec is not None else None
    ),
    groups=PodGroups(
        POD_GROUP, ("scheduling.volcano.sh/group-name", "scheduling.k8s.io/group-name"), common.min_member
    ),
    annotations=("volcano.sh/", "scheduling.volcano.sh/", "scheduling.k8s.io/"),
    queues=("scheduling.volcano.sh/queue-name", "volcano.sh/queue-name"),
)
