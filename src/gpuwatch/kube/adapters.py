"""How each owner kind gives its accelerators up, and takes them back: one row per kind, and what all rows share.

A release is one patch: the fields that release, what they were before, and which Remediation did it. What is not in
the table is never acted on: SeldonDeployment, DynamoGraphDeployment, RayService, LLMInferenceService, Knative,
PaddleJob, Grove, Spark, workflows, DaemonSets, virtual machines, Pods of nobody.

A release is always of the whole object, so all of its Pods have to be idle, not those of one gang of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gpuwatch.kube import keys
from gpuwatch.kube.json_patch import ABSENT, difference, parts, pointer, put, removed, value_at
from gpuwatch.kube.kinds import KindKey
from gpuwatch.kube.writer import ClusterWriter, Failure, Object, WriteError, ref_of, version_of
from gpuwatch.model.remediation import ObjectRef, Saved

_STOPPED_NOTEBOOK = pointer("metadata", "annotations", "kubeflow-resource-stopped")
_VOLCANO_PHASE = "/status/state/phase"
_VOLCANO_RETRIES = 3  # Volcano's default of spec.maxRetry


@dataclass(frozen=True, slots=True)
class Refused:
    """Why it is not done: a sentence for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class Patch:
    """A merge patch. version: the resourceVersion that the object was read with."""

    target: ObjectRef
    body: Object
    version: str


@dataclass(frozen=True, slots=True)
class Creation:
    object: Object


Write = Patch | Creation


@dataclass(frozen=True, slots=True)
class Release:
    """The writes, in this order, and what is saved on the object by the first of them. No writes: they were sent
    before, in the name of the same Remediation."""

    writes: tuple[Write, ...]
    saved: tuple[Saved, ...]


@dataclass(frozen=True, slots=True)
class Restoration:
    """The writes that give back what the release took. left: fields that somebody changed since, which stay."""

    writes: tuple[Write, ...]
    left: tuple[str, ...] = ()


Fields = tuple[tuple[str, Any], ...]
"""JSON pointers and what they are set to."""


def _no_reason(_: Object) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One owner kind. versions: those whose fields are known.

    fields: what a release sets. refuses: why it would not work. ended: has it run to its end?
    holds: what the status says against it being released; '' where it says nothing against it.
    unset: what a restoration writes where there was no field before: its controller takes back nothing without it.
    commands: a release is asked for by creating a Command, of which the status tells the outcome (Volcano).
    """

    key: KindKey
    versions: tuple[str, ...]
    fields: Callable[[Object, datetime], Fields]
    holds: Callable[[Object], str]
    refuses: Callable[[Object], str] = _no_reason
    ended: Callable[[Object], bool] = field(default=lambda _: False)
    unset: object = ABSENT
    commands: bool = False


def condition(object_: Object, kind: str) -> bool | None:
    """Whether the condition is True; None where it is not told."""
    for item in value_at(object_, "/status/conditions") or ():
        if item.get("type") == kind:
            return bool(item.get("status") == "True")
    return None


def number(object_: Object, path: str, default: int = 0) -> int:
    found = value_at(object_, path)
    return found if isinstance(found, int) else default


def _sets(path: str, value: object) -> Callable[[Object, datetime], Fields]:
    return lambda _object, _at: ((path, value),)


def _ends(*conditions: str) -> Callable[[Object], bool]:
    return lambda object_: any(condition(object_, kind) for kind in conditions)


def _counts(*paths: str) -> Callable[[Object], str]:
    """Its status must have been written after the last change, and count nothing that runs."""

    def holds(object_: Object) -> str:
        seen, meant = value_at(object_, "/status/observedGeneration"), value_at(object_, "/metadata/generation")
        if isinstance(seen, int) and isinstance(meant, int) and seen < meant:
            return "its controller has not seen the change yet"
        left = {path: number(object_, path) for path in paths if number(object_, path)}
        return ", ".join(f"{path} is {count}" for path, count in left.items())

    return holds


def _job_refuses(object_: Object) -> str:
    manager = value_at(object_, "/spec/managedBy")
    if isinstance(manager, str) and manager != "kubernetes.io/job-controller":
        return f"{manager} runs it, not the Job controller."
    return ""


def _kubeflow_holds(object_: Object) -> str:
    statuses = value_at(object_, "/status/replicaStatuses")
    active = sum(item.get("active", 0) for item in statuses.values()) if isinstance(statuses, dict) else 0
    return f"/status/replicaStatuses count {active} active" if active else ""


def _train_job_holds(object_: Object) -> str:
    jobs = value_at(object_, "/status/jobsStatus")
    active = sum(item.get("active") or 0 for item in jobs) if isinstance(jobs, list) else 0
    return f"/status/jobsStatus count {active} active" if active else ""


def _jobset_holds(object_: Object) -> str:
    jobs = value_at(object_, "/status/replicatedJobsStatus")
    active = sum(item.get("active", 0) for item in jobs) if isinstance(jobs, list) else 0
    return f"/status/replicatedJobsStatus count {active} active" if active else ""


def _ray_job_refuses(object_: Object) -> str:
    # KubeRay fails a RayJob that asks for either.
    if value_at(object_, "/spec/shutdownAfterJobFinishes") is not True:
        return "KubeRay suspends a RayJob only with shutdownAfterJobFinishes: true."
    if value_at(object_, "/spec/clusterSelector"):
        return "It runs on a RayCluster that it selected, and KubeRay does not suspend such a RayJob."
    told = value_at(object_, "/status/jobDeploymentStatus")
    # In any other state KubeRay leaves the RayCluster as it is, whatever spec.suspend says.
    if told and told not in ("Initializing", "Running"):
        return f"Its jobDeploymentStatus is {told}, and KubeRay suspends none but a running RayJob."
    return ""


def _ray_job_holds(object_: Object) -> str:
    told = value_at(object_, "/status/jobDeploymentStatus")
    return "" if not told or told == "Suspended" else f"/status/jobDeploymentStatus is {told}"


def _ray_job_ended(object_: Object) -> bool:
    return value_at(object_, "/status/jobDeploymentStatus") in ("Complete", "Failed")


def _ray_cluster_holds(object_: Object) -> str:
    told = condition(object_, "RayClusterSuspended")
    if told is False:
        return "the condition RayClusterSuspended is not True"
    state = value_at(object_, "/status/state")
    if told is None and state and state != "suspended":
        return f"/status/state is {state}"
    return ""


def _volcano_refuses(object_: Object) -> str:
    most = number(object_, "/spec/maxRetry", _VOLCANO_RETRIES)
    # Resuming counts as a retry, and the last one fails the Job.
    if number(object_, "/status/retryCount") + 1 >= most:
        return f"Resuming it would be the last of its {most} tries (spec.maxRetry), and Volcano would fail it."
    phase = value_at(object_, _VOLCANO_PHASE)
    return "" if phase == "Running" else f"Its phase is {phase!r}, and only a running Job can be aborted and resumed."


def _volcano_holds(object_: Object) -> str:
    phase = value_at(object_, _VOLCANO_PHASE)
    return "" if phase == "Aborted" else f"{_VOLCANO_PHASE} is {phase}"


def _volcano_ended(object_: Object) -> bool:
    return value_at(object_, _VOLCANO_PHASE) in ("Completed", "Terminated", "Failed", "Terminating", "Completing")


def _kueue_refuses(object_: Object) -> str:
    owners = value_at(object_, "/metadata/ownerReferences")
    if not owners or any(owner.get("kind") == "Pod" for owner in owners):
        return "It admits Pods, which nobody would bring back."
    return ""


def _kueue_holds(object_: Object) -> str:
    return "Kueue still reserves its quota" if condition(object_, "QuotaReserved") else ""


def _inference_refuses(object_: Object) -> str:
    annotated = value_at(object_, pointer("metadata", "annotations", "serving.kserve.io/deploymentMode"))
    mode = value_at(object_, "/status/deploymentMode") if annotated is ABSENT else annotated
    revision = value_at(object_, "/status/components/predictor/latestCreatedRevision")
    if mode in ("Serverless", "Knative") or (mode is ABSENT and revision is not ABSENT):
        return ""
    if mode is ABSENT:
        return "Whether it is serverless is not told, and only Knative scales it to zero."
    if value_at(object_, pointer("metadata", "annotations", "serving.kserve.io/autoscalerClass")) != "none":
        return f"In the mode {mode} KServe keeps at least one replica; only Knative scales it to zero."
    if value_at(object_, "/spec/predictor/workerSpec") is not ABSENT:
        return "Its workers on other Nodes are not counted by minReplicas."
    return ""


def _notebook_fields(_: Object, at: datetime) -> Fields:
    return ((_STOPPED_NOTEBOOK, at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")),)


_SUSPEND = _sets("/spec/suspend", True)
_NO_REPLICAS = _sets("/spec/replicas", 0)
_RUN_POLICY = _sets("/spec/runPolicy/suspend", True)
_JOB_ENDS = _ends("Complete", "Failed")
_KUBEFLOW_ENDS = _ends("Succeeded", "Failed")

ADAPTERS: dict[KindKey, Adapter] = {
    row.key: row
    for row in (
        Adapter(("batch", "Job"), ("v1",), _SUSPEND, _counts("/status/active"), refuses=_job_refuses, ended=_JOB_ENDS),
        Adapter(
            ("jobset.x-k8s.io", "JobSet"),
            ("v1alpha2",),
            _SUSPEND,
            _jobset_holds,
            refuses=_job_refuses,
            ended=_ends("Completed", "Failed"),
        ),
        Adapter(("leaderworkerset.x-k8s.io", "LeaderWorkerSet"), ("v1",), _NO_REPLICAS, _counts("/status/replicas")),
        *(
            Adapter(("kubeflow.org", kind), ("v1",), _RUN_POLICY, _kubeflow_holds, ended=_KUBEFLOW_ENDS)
            for kind in ("PyTorchJob", "TFJob", "XGBoostJob", "JAXJob")
        ),
        Adapter(("kubeflow.org", "MPIJob"), ("v1", "v2beta1"), _RUN_POLICY, _kubeflow_holds, ended=_KUBEFLOW_ENDS),
        Adapter(("trainer.kubeflow.org", "TrainJob"), ("v1alpha1",), _SUSPEND, _train_job_holds, ended=_JOB_ENDS),
        Adapter(
            ("ray.io", "RayJob"), ("v1",), _SUSPEND, _ray_job_holds, refuses=_ray_job_refuses, ended=_ray_job_ended
        ),
        # KubeRay resumes a suspended RayCluster on false; the field's absence leaves it suspended.
        Adapter(("ray.io", "RayCluster"), ("v1",), _SUSPEND, _ray_cluster_holds, unset=False),
        Adapter(
            ("batch.volcano.sh", "Job"),
            ("v1alpha1",),
            _sets(_VOLCANO_PHASE, "Aborted"),
            _volcano_holds,
            refuses=_volcano_refuses,
            ended=_volcano_ended,
            commands=True,
        ),
        Adapter(
            ("kueue.x-k8s.io", "Workload"),
            ("v1beta2", "v1beta1"),
            _sets("/spec/active", False),
            _kueue_holds,
            refuses=_kueue_refuses,
            ended=_ends("Finished"),
        ),
        Adapter(("apps", "Deployment"), ("v1",), _NO_REPLICAS, _counts("/status/replicas")),
        Adapter(("apps", "StatefulSet"), ("v1",), _NO_REPLICAS, _counts("/status/replicas")),
        Adapter(
            ("serving.kserve.io", "InferenceService"),
            ("v1beta1",),
            _sets("/spec/predictor/minReplicas", 0),
            _no_reason,
            refuses=_inference_refuses,
        ),
        Adapter(("kubeflow.org", "Notebook"), ("v1", "v1beta1"), _notebook_fields, _counts("/status/readyReplicas")),
    )
}


def key_of(object_: Object) -> KindKey:
    return object_["apiVersion"].rpartition("/")[0], object_["kind"]


def adapter_of(object_: Object) -> Adapter | Refused:
    """The row of this object's kind and version."""
    row = ADAPTERS.get(key_of(object_))
    if row is None:
        return Refused(f"gpuwatch has no way to release a {object_['kind']} of {object_['apiVersion']}.")
    if object_["apiVersion"].rpartition("/")[2] not in row.versions:
        return Refused(f"The fields of {object_['kind']} in {object_['apiVersion']} are not known.")
    return row


def owned_paths(object_: Object) -> tuple[str, ...]:
    """The fields that a release of it would write; for telling who else writes them."""
    row = adapter_of(object_)
    if isinstance(row, Refused) or row.commands:
        return ()
    return tuple(path for path, _ in row.fields(object_, datetime.fromtimestamp(0, UTC)))


def release(object_: Object, *, remediation: str, at: datetime) -> Release | Refused:
    """What would release this object, as it was read just now.

    remediation: its name, which is written beside it. Who would undo it is `fights.fights`' business.
    """
    row = adapter_of(object_)
    if isinstance(row, Refused):
        return row
    holder = held_by(object_)
    if holder == remediation and keys.SAVED_STATE in object_["metadata"]["annotations"]:
        done = saved_state(object_)
        if isinstance(done, Refused):
            return done
        # The mark is written before the Command, so it alone does not tell that the Command was.
        again = row.commands and bool(row.holds(object_))
        return Release((Creation(_command(object_, remediation, "AbortJob")),) if again else (), done)
    if holder and holder != remediation:
        return Refused(f"The Remediation {holder} holds it already.")
    refusal = _refusal(row, object_, at)
    if refusal:
        return Refused(refusal)
    target = ref_of(object_)
    if row.commands:
        saved = tuple(
            Saved(target=target, path=path, before=_json(value_at(object_, path)), after=_json(value))
            for path, value in row.fields(object_, at)
        )
        marked = {"metadata": {"annotations": _marks(remediation, saved)}}
        patch = Patch(target, marked, version_of(object_))
        return Release((patch, Creation(_command(object_, remediation, "AbortJob"))), saved)
    changed, saved = _changed(object_, row.fields(object_, at))
    for key, value in _marks(remediation, saved).items():
        changed = put(changed, pointer("metadata", "annotations", key), value)
    return Release((Patch(target, difference(object_, changed), version_of(object_)),), saved)


def restore(object_: Object, saved: Sequence[Saved], *, remediation: str) -> Restoration | Refused:
    """What gives back what the release saved, field by field where the object still has what the release wrote. Both
    annotations go in the same write.

    remediation: the name of the one that released it. No writes: it was done before, or never released.
    """
    row = adapter_of(object_)
    if isinstance(row, Refused):
        return row
    target = ref_of(object_)
    if any(item.target.uid != target.uid for item in saved):
        return Refused(f"{target} is another object than the one that was released.")
    holder = held_by(object_)
    if holder and holder != remediation:
        return Refused(f"The Remediation {holder} holds it.")
    if keys.SAVED_STATE not in (object_["metadata"].get("annotations") or {}):
        return Restoration(())
    changed: Object = object_
    left = []
    resumes = False
    for item in saved:
        if row.commands and obeyed(object_):
            resumes = True
        elif _json(value_at(changed, item.path)) != item.after:
            left.append(item.path)
        elif item.before:
            changed = put(changed, item.path, json.loads(item.before))
        elif row.unset is not ABSENT and item == saved[0]:
            changed = put(changed, item.path, row.unset)
        else:
            changed = removed(changed, item.path)
    for key in (keys.REMEDIATION, keys.SAVED_STATE):
        changed = removed(changed, pointer("metadata", "annotations", key))
    patch = Patch(target, difference(object_, changed), version_of(object_))
    # The command comes first: were the marks gone before it, a restart in between would leave the Job aborted.
    writes: tuple[Write, ...] = (Creation(_command(object_, remediation, "ResumeJob")), patch) if resumes else (patch,)
    return Restoration(writes, tuple(left))


def released(object_: Object, pods: Sequence[Object] | None, pod_groups: Sequence[Object] | None = ()) -> bool | None:
    """Proof that its devices are free: it is still told to hold none, its status does not say otherwise, no Pod of it
    is left that may hold one or is on its way out, and no PodGroup of it keeps room in a queue. None where that cannot
    be told.

    pods: all Pods whose owners lead to it, those that are being deleted included. pod_groups: Volcano's in its
    Namespace. Either is None where it could not be read.
    """
    row = adapter_of(object_)
    if isinstance(row, Refused):
        return None
    meant = () if row.commands else row.fields(object_, datetime.fromtimestamp(0, UTC))
    if not all(_is_set(object_, path, value) for path, value in meant) or row.holds(object_):
        return False
    if not all(_holds_nothing(pod) for pod in pods or ()):
        return False
    if any(_keeps_room(group, object_["metadata"]["uid"]) for group in pod_groups or ()):
        return False
    return None if pods is None or pod_groups is None else True


def still_holds(object_: Object) -> str:
    """What its status says against it being released, for people; '' where nothing."""
    row = adapter_of(object_)
    return "" if isinstance(row, Refused) else row.holds(object_)


def obeyed(object_: Object) -> bool:
    """Has its controller begun to carry out the Command that releases it?"""
    return value_at(object_, _VOLCANO_PHASE) in ("Aborting", "Aborted")


def held_by(object_: Object) -> str:
    """The Remediation whose mark is on the object; '' where there is none."""
    return str((object_["metadata"].get("annotations") or {}).get(keys.REMEDIATION, ""))


def saved_state(object_: Object) -> tuple[Saved, ...] | Refused:
    """What was saved on the object itself."""
    written = (object_["metadata"].get("annotations") or {}).get(keys.SAVED_STATE)
    target = ref_of(object_)
    try:
        return tuple(
            Saved(target=target, path=str(item["path"]), before=str(item["before"]), after=str(item["after"]))
            for item in json.loads(written or "")
        )
    except (ValueError, TypeError, KeyError):
        return Refused(f"The annotation {keys.SAVED_STATE} of {target} cannot be read; restore it by hand.")


def write(writer: ClusterWriter, writes: Sequence[Write]) -> None:
    """Send them in order. Raises WriteError; the writes before it are done.

    What is to be created has a name of the Remediation's own, so what exists under it was sent before.
    """
    for item in writes:
        if isinstance(item, Patch):
            writer.patch(item.target, item.body, version=item.version)
            continue
        try:
            writer.create(item.object)
        except WriteError as error:
            if error.failure is not Failure.CONFLICT:
                raise


def _refusal(row: Adapter, object_: Object, at: datetime) -> str:
    metadata = object_["metadata"]
    if metadata.get("deletionTimestamp"):
        return "It is being deleted."
    if row.ended(object_):
        return "It has ended, and holds nothing."
    fields = row.fields(object_, at)
    if all(_is_set(object_, path, value) for path, value in fields):
        return "It is released already, by somebody else."
    return row.refuses(object_)


def _is_set(object_: Object, path: str, value: object) -> bool:
    """Of a stopped Notebook only that there is a time counts."""
    now = value_at(object_, path)
    return now is not ABSENT if path == _STOPPED_NOTEBOOK else bool(now == value)


def _changed(object_: Object, fields: Fields) -> tuple[Object, tuple[Saved, ...]]:
    """The object with the fields set, and what they were. A parent that has to be made for a field is saved after it,
    so that it goes where nothing but our field was put into it."""
    target = ref_of(object_)
    changed, saved = object_, []
    for path, value in fields:
        before = value_at(object_, path)
        saved.append(Saved(target=target, path=path, before=_json(before), after=_json(value)))
        names = parts(path)
        for depth in range(len(names) - 1, 1, -1):
            parent = pointer(*names[:depth])
            if names[0] == "spec" and value_at(object_, parent) is ABSENT:
                saved.append(Saved(target=target, path=parent, before="", after="{}"))
        changed = put(changed, path, value)
    return changed, tuple(saved)


def _marks(remediation: str, saved: Sequence[Saved]) -> dict[str, str]:
    told = [{"path": item.path, "before": item.before, "after": item.after} for item in saved]
    return {keys.REMEDIATION: remediation, keys.SAVED_STATE: json.dumps(told, separators=(",", ":"))}


def _command(job: Object, remediation: str, action: str) -> Object:
    """Volcano deletes it before it carries it out, so that it is carried out once at most."""
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


def _holds_nothing(pod: Object) -> bool:
    """Not while it is being deleted either: a Pod that was stopped fails before it is gone, and Kubeflow fails a Job
    that is resumed while such a Pod is left, where its restartPolicy is Never."""
    ended = value_at(pod, "/status/phase") in ("Succeeded", "Failed")
    return ended and "deletionTimestamp" not in pod["metadata"]


def _keeps_room(group: Object, uid: str) -> bool:
    ours = any(owner.get("uid") == uid for owner in value_at(group, "/metadata/ownerReferences") or ())
    return ours and value_at(group, "/status/phase") in ("Running", "Inqueue")


def _json(value: object) -> str:
    return "" if value is ABSENT else json.dumps(value, sort_keys=True, separators=(",", ":"))
