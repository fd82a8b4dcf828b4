"""KubeRay: RayJobs, RayClusters and RayServices."""

from collections.abc import Callable, Sequence

from gpuwatch.facts.frameworks import common
from gpuwatch.facts.frameworks.framework import (
    WHOLE,
    Deletes,
    Framework,
    GangRule,
    Kind,
    Labels,
    MoveRule,
    Nature,
    Never,
    ReleaseRule,
    Template,
    Tree,
    reported,
)
from gpuwatch.facts.frameworks.objects import ABSENT, Object, condition, pointer, value_at
from gpuwatch.facts.frameworks.owner import OwnerSpec, Scaled, Wire
from gpuwatch.facts.model.cluster import Pod

_TYPE = "ray.io/node-type"
_REPLICA = "ray.io/worker-group-replica-name"
_TOGETHER = ("ray.io/gang-scheduling-enabled",)
_ONLINE = Never("An online service: its traffic would be lost.")


class _WorkerGroup(Scaled, frozen=True):
    num_of_hosts: int | None = None


class _ClusterSpec(Wire, frozen=True):
    enable_in_tree_autoscaling: bool | None = None
    worker_group_specs: list[_WorkerGroup] | None = None


class RayJobSpec(OwnerSpec, frozen=True):
    ray_cluster_spec: _ClusterSpec | None = None


def _job_refuses(object_: Object) -> str:
    # KubeRay fails a suspended RayJob without shutdownAfterJobFinishes or with a clusterSelector.
    if value_at(object_, "/spec/shutdownAfterJobFinishes") is not True:
        return "KubeRay suspends a RayJob only with shutdownAfterJobFinishes: true."
    if value_at(object_, "/spec/clusterSelector"):
        return "It runs on a RayCluster that it selected, and KubeRay does not suspend such a RayJob."
    told = value_at(object_, "/status/jobDeploymentStatus")
    # In any other state KubeRay ignores spec.suspend.
    if told and told not in ("Initializing", "Running"):
        return f"Its jobDeploymentStatus is {told}, and KubeRay suspends only a running RayJob."
    return ""


def _job_holds(object_: Object) -> str:
    told = value_at(object_, "/status/jobDeploymentStatus")
    return "" if not told or told == "Suspended" else f"/status/jobDeploymentStatus is {told}"


def deleted_state(object_: Object, cluster: str) -> str:
    """Why the head's stored state goes with the RayCluster that has its spec in this field. KubeRay deletes it from
    Redis, and the claim that it made for RocksDB unless that is to be retained."""
    options = value_at(object_, f"{cluster}/gcsFaultToleranceOptions")
    annotated = value_at(object_, pointer("metadata", "annotations", "ray.io/ft-enabled"))
    if options in (ABSENT, None) and str(annotated).lower() != "true":
        return ""
    own, kept = value_at(options, "/storage/claimName"), value_at(options, "/storage/deletionPolicy") == "Retain"
    if value_at(options, "/backend") == "rocksdb" and (own or kept):
        return ""
    return "The state that its head stores for fault tolerance would be deleted with its RayCluster."


def _cluster_holds(object_: Object) -> str:
    told = condition(object_, "RayClusterSuspended")
    if told is False:
        return "the condition RayClusterSuspended is not True"
    state = value_at(object_, "/status/state")
    if told is None and state and state != "suspended":
        return f"/status/state is {state}"
    return ""


def _stays(labels: Labels) -> str:
    if labels.get(_TYPE) != "worker":
        return "The head of a RayCluster is never moved: its state would be lost."
    return "A worker on several hosts cannot be moved Pod by Pod." if labels.get(_REPLICA) else ""


def _minimum(spec: RayJobSpec | None, _: Labels) -> int | None:
    """The head and the workers that a RayJob starts with; with KubeRay's autoscaler, their minimum."""
    found = spec.ray_cluster_spec if spec is not None else None
    if found is None or found.worker_group_specs is None:
        return None
    scaled = found.enable_in_tree_autoscaling
    groups = [
        ((it.min_replicas if scaled else it.replicas) or 0, it.num_of_hosts or 1) for it in found.worker_group_specs
    ]
    return 1 + sum(count * hosts for count, hosts in groups)


def _place(*path: str) -> Callable[[Sequence[Pod], Tree], Tree | None]:
    def place(pods: Sequence[Pod], pod_spec: Tree) -> Tree | None:
        cluster: Tree = {}
        template = {"template": {"spec": pod_spec}}
        names = common.groups_of([pod for pod in pods if pod.labels.get(_TYPE) == "worker"], "ray.io/group")
        if "head" in common.groups_of(pods, _TYPE):
            cluster["headGroupSpec"] = template
        if names:
            cluster["workerGroupSpecs"] = [{"groupName": name, **template} for name in names]
        return common.under(*path)(pods, cluster) if cluster else None

    return place


JOB = Framework(
    name="RayJob",
    kinds=(
        Kind(
            "ray.io",
            "RayJob",
            ("v1",),
            spec=RayJobSpec,
            suspended=common.suspend,
            nature=Nature.ENDS,
            release=ReleaseRule(
                fields=common.sets("/spec/suspend", True),
                deletes=Deletes(
                    "its RayCluster, its Services and its submitting Job, which it makes again; with the cluster, the "
                    "state of GCS fault tolerance in Redis or in KubeRay's own claim",
                    lambda job: deleted_state(job, "/spec/rayClusterSpec"),
                ),
                holds=_job_holds,
                refuses=_job_refuses,
                ended=lambda job: value_at(job, "/status/jobDeploymentStatus") in ("Complete", "Failed"),
            ),
            move=WHOLE,
            template=Template(_place("rayClusterSpec"), frozen=True),
        ),
    ),
    gang=GangRule(
        named_by=("ray.io/originated-from-cr-name",),
        named_only_with=("ray.io/originated-from-crd", "RayJob"),
        minimum=_minimum,
    ),
    annotations=("ray.io/",),
)
SERVICE = Framework(
    name="RayService",
    kinds=(
        reported(
            "ray.io",
            "RayService",
            ("v1",),
            Nature.SERVES,
            _ONLINE,
            metadata_only=True,
            template=Template(_place("rayClusterConfig")),
        ),
    ),
    gang=GangRule(split_by=(_REPLICA,), whole_with=_TOGETHER),
)
CLUSTER = Framework(
    name="RayCluster",
    kinds=(
        Kind(
            "ray.io",
            "RayCluster",
            ("v1",),
            suspended=common.suspend,
            nature=Nature.SESSION,
            independent=True,
            # KubeRay resumes a suspended RayCluster on false; without the field it stays suspended.
            release=ReleaseRule(
                fields=common.sets("/spec/suspend", True),
                deletes=Deletes("nothing: its Services and the stored state of GCS fault tolerance stay", None),
                holds=_cluster_holds,
                unset=False,
            ),
            move=MoveRule(choose=lambda _, _there, chosen: common.evict(chosen), stays=_stays, whole=False),
            template=Template(_place(), note="Running Pods are not changed: delete them."),
        ),
    ),
    gang=GangRule(named_by=("ray.io/cluster",), split_by=(_REPLICA,), whole_with=_TOGETHER),
)
