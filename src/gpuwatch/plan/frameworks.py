"""What may be done to Pods of each kind of owner and gang: release them, move them, or only report."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.model.cluster import Gang, Pod, Workload

RAY_NODE_TYPE = "ray.io/node-type"
KAI_PREEMPTIBILITY = "kai.scheduler/preemptibility"


@dataclass(frozen=True, slots=True)
class Rights:
    """release, move: why it must not be, '' where it may. whole: a move takes all Pods of the owner along, because it
    goes through a suspension; else each Pod is moved by itself."""

    release: str = ""
    move: str = ""
    whole: bool = True


def _never(reason: str) -> Rights:
    return Rights(release=reason, move=reason)


_FREE = Rights()
_SINGLY = Rights(whole=False)
_STEPS = _never("Its suspension holds back new steps only, and a step that is ended fails.")
_SESSION = Rights(move="A session's state is lost when it is moved.")
_SPARK = _never("A Spark application is not restored once its driver is gone.")

# By `Gang.framework`. A gang that is one by convention only has its owner's kind there.
GANGS: dict[str, Rights] = {
    "Kueue": _FREE,
    "Kueue pod group": _never("Kueue does not recreate the Pods of a plain group."),
    "AppWrapper": Rights(move="An AppWrapper is released as a whole; nothing moves it."),
    "Kubeflow Trainer": _FREE,
    "JobSet": _FREE,
    "LeaderWorkerSet": _FREE,
    "MPIJob": _FREE,
    "Kubeflow Training": _FREE,
    "RayJob": _FREE,
    "RayCluster": _FREE,
    "RayService": _never("An online service: its traffic would be lost."),
    "Volcano": _FREE,
    "Spark": _SPARK,
    "Argo Workflow": _STEPS,
    "Tekton": _STEPS,
    "Grove": _FREE,
    "Coscheduling": Rights(move="The members that stay keep running, and a replacement may not fit beside them."),
    "KAI": _FREE,  # a move asks for preemptible Pods, see `refusal`
    "Kubernetes gang": _FREE,
    "Job": _FREE,
    "StatefulSet": _FREE,
}

# By `Workload.kind`, for Pods that belong to no gang.
OWNERS: dict[str, Rights] = {
    "Deployment": _SINGLY,
    "ReplicaSet": _SINGLY,
    "ReplicationController": _SINGLY,
    "StatefulSet": _SINGLY,
    "InferenceService": _SINGLY,
    "LLMInferenceService": _SINGLY,
    "Service": _SINGLY,  # Knative's; the core Service owns no Pods
    "RayCluster": _SINGLY,
    "Job": _FREE,
    "JobSet": _FREE,
    "LeaderWorkerSet": _FREE,
    "PyTorchJob": _FREE,
    "TFJob": _FREE,
    "MPIJob": _FREE,
    "XGBoostJob": _FREE,
    "JAXJob": _FREE,
    "PaddleJob": _FREE,
    "TrainJob": _FREE,
    "RayJob": _FREE,
    "PodCliqueSet": _FREE,
    "PodGangSet": _FREE,
    "AppWrapper": GANGS["AppWrapper"],
    "Notebook": _SESSION,
    "Workspace": _SESSION,
    "DevWorkspace": _SESSION,
    "CronJob": _never("A CronJob's suspension holds back new Jobs only."),
    "RayService": GANGS["RayService"],
    "SparkApplication": _SPARK,
    "Workflow": _STEPS,
    "CronWorkflow": _STEPS,
    "ScheduledWorkflow": _STEPS,
    "PipelineRun": _STEPS,
    "TaskRun": _STEPS,
}
# Kinds that serve until somebody stops them: while they are idle, a restart loses nothing.
ENDLESS = frozenset(
    {
        "Deployment",
        "ReplicaSet",
        "ReplicationController",
        "StatefulSet",
        "InferenceService",
        "LLMInferenceService",
        "Service",
    }
)


def rights(gang: Gang | None, owner: Workload | None) -> Rights:
    """Of a gang, or of an owner's Pods without one. What the tables do not know is reported, never acted on."""
    if gang is not None:
        return GANGS.get(gang.framework) or _never(f"gpuwatch does not know how {gang.framework} brings a gang back.")
    if owner is None:
        return _never("Its owner was not read.")
    return OWNERS.get(owner.kind) or _never(f"gpuwatch does not know how a {owner.kind} brings its Pods back.")


def release_refusal(gang: Gang | None, owner: Workload | None) -> str:
    return rights(gang, owner).release or _several_owners(gang)


def move_refusal(gang: Gang | None, owner: Workload | None, pods: list[Pod], siblings: list[Pod]) -> str:
    """siblings: all live Pods of the owner."""
    found = rights(gang, owner).move or _several_owners(gang)
    if found:
        return found
    for pod in pods:
        if (
            gang is None
            and owner is not None
            and owner.kind == "RayCluster"
            and pod.labels.get(RAY_NODE_TYPE) == "head"
        ):
            return f"Pod {pod.ref} is the head, without which the Ray cluster is gone."
        if gang is not None and gang.framework == "KAI" and pod.labels.get(KAI_PREEMPTIBILITY) != "preemptible":
            return f"Pod {pod.ref} is not labelled {KAI_PREEMPTIBILITY}=preemptible."
    if gang is None and owner is not None and owner.kind == "StatefulSet":
        moved = {pod.ref for pod in pods}
        waiting = sorted(pod.ref for pod in siblings if pod.ref not in moved and not pod.ready)
        if len(moved) > 1 or waiting:
            why = f"{waiting[0]} is not ready" if waiting else f"{len(moved)} are due"
            return f"A StatefulSet's Pods move one by one, while all others are ready; {why}."
    return ""


def _several_owners(gang: Gang | None) -> str:
    # Kueue's own Workload releases all Pods of a group, whoever owns them.
    if gang is not None and not gang.workload and gang.framework != "Kueue":
        return "Its Pods belong to several owners, and nobody's alone can be acted on."
    return ""
