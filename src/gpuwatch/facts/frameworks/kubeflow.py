"""Kubeflow's training operator (v1) and MPI operator. For Kubeflow Pipelines' ScheduledWorkflow see report_only.py."""

from collections.abc import Callable, Sequence

from gpuwatch.facts.frameworks import common
from gpuwatch.facts.frameworks.framework import (
    CYCLE,
    WHOLE,
    Deletes,
    Framework,
    GangRule,
    Kind,
    Labels,
    MovePlan,
    MoveRule,
    Nature,
    Never,
    ReleaseRule,
    Template,
    Tree,
    untried,
)
from gpuwatch.facts.frameworks.objects import ABSENT, Object, value_at
from gpuwatch.facts.frameworks.owner import OwnerSpec, Scaled, Wire
from gpuwatch.facts.model.cluster import Pod

_INDEX = "training.kubeflow.org/replica-index"
_TYPE = "training.kubeflow.org/replica-type"
# Labels are in lower case, fields are not.
_TYPES = {name.lower(): name for name in ("Master", "Worker", "Launcher", "Chief", "PS", "Evaluator")}


class _SchedulingPolicy(Wire, frozen=True):
    min_available: int | None = None


class _RunPolicy(Wire, frozen=True):
    suspend: bool | None = None
    scheduling_policy: _SchedulingPolicy | None = None


class TrainingSpec(OwnerSpec, frozen=True):
    run_policy: _RunPolicy | None = None
    elastic_policy: Scaled | None = None


def _suspended(deletes: str) -> ReleaseRule:
    return ReleaseRule(
        fields=common.sets("/spec/runPolicy/suspend", True),
        deletes=Deletes(deletes, None),
        holds=common.counts_active("/status/replicaStatuses"),
        ended=common.ends("Succeeded", "Failed"),
    )


def _minimum(spec: TrainingSpec | None, _: Labels) -> int | None:
    if spec is None:
        return None
    policy = spec.run_policy.scheduling_policy if spec.run_policy else None
    told = [policy.min_available if policy else None, spec.elastic_policy.min_replicas if spec.elastic_policy else None]
    return max((count for count in told if count is not None), default=None)


def _elastic(job: Object, there: Sequence[Object], chosen: Sequence[Object]) -> MovePlan:
    """Evicts only workers above an elastic job's minimum, and never the first one, which is the rendezvous."""
    least = value_at(job, "/spec/elasticPolicy/minReplicas")
    workers = [pod for pod in there if common.label(pod, _TYPE).lower() == "worker" and common.is_ready(pod)]
    spare = len(workers) - least if isinstance(least, int) else 0
    first = any(common.label(pod, _TYPE).lower() != "worker" or common.label(pod, _INDEX) == "0" for pod in chosen)
    return CYCLE if first or len(chosen) > spare or _eviction_may_fail_it(job) else common.evict(chosen)


def _eviction_may_fail_it(job: Object) -> bool:
    """Whether an eviction may fail the PyTorchJob. An evicted Pod fails before it is gone: its workers have to be
    restarted after any exit code, and a backoffLimit may count it."""
    policy = value_at(job, "/spec/pytorchReplicaSpecs/Worker/restartPolicy")
    again = policy is ABSENT or policy in ("OnFailure", "Always")
    return not again or value_at(job, "/spec/runPolicy/backoffLimit") is not ABSENT


def _place(replica_specs: str) -> Callable[[Sequence[Pod], Tree], Tree | None]:
    def place(pods: Sequence[Pod], pod_spec: Tree) -> Tree | None:
        types = [_TYPES.get(name.lower(), "") for name in common.groups_of(pods, _TYPE)]
        if not types or not all(types):
            return None
        return {"spec": {replica_specs: {name: {"template": {"spec": pod_spec}} for name in types}}}

    return place


def _kind(
    kind: str,
    replica_specs: str,
    release: ReleaseRule | Never,
    *,
    versions: tuple[str, ...] = ("v1",),
    move: MoveRule | Never = WHOLE,
) -> Kind:
    return Kind(
        "kubeflow.org",
        kind,
        versions,
        spec=TrainingSpec,
        suspended=lambda spec, _: spec.run_policy is not None and bool(spec.run_policy.suspend),
        nature=Nature.ENDS,
        release=release,
        move=move,
        template=Template(_place(replica_specs), note="Running Pods are not changed: recreate the job."),
    )


_MPI = "its PodGroup, in v1 its Services too, which it makes again; its ConfigMap and Secret stay"
_COMMON = "its Services and its PodGroup, which it makes again"

MPI = Framework(
    name="MPIJob",
    kinds=(_kind("MPIJob", "mpiReplicaSpecs", _suspended(_MPI), versions=("v1", "v2beta1")),),
    gang=GangRule(minimum=_minimum),
)
TRAINING = Framework(
    name="Kubeflow Training",
    kinds=(
        _kind(
            "PyTorchJob",
            "pytorchReplicaSpecs",
            _suspended(f"{_COMMON}; so too the autoscaler of an elastic one"),
            move=MoveRule(choose=_elastic),
        ),
        _kind("TFJob", "tfReplicaSpecs", _suspended(_COMMON)),
        _kind("XGBoostJob", "xgbReplicaSpecs", _suspended(_COMMON)),
        _kind("JAXJob", "jaxReplicaSpecs", _suspended(_COMMON)),
        _kind("PaddleJob", "paddleReplicaSpecs", untried("PaddleJob"), move=untried("PaddleJob")),
    ),
    gang=GangRule(named_by=("training.kubeflow.org/job-name",), minimum=_minimum),
)
