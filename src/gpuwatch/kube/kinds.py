"""What is listed, and where: the objects that make up a Cluster, and every controller that the owner walk knows.

A controller that is missing here is an unknown kind: reported, never acted on. SeldonDeployment,
DynamoGraphDeployment, AmlJob, Run:ai's kinds and VirtualMachineInstance are left out for that reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuwatch.kube.wire import Metadata
from gpuwatch.kube.wire_owners import OwnerSpec

KindKey = tuple[str, str]
"""API group ('' for the core group) and kind."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource. `versions`: those whose fields are known, newest first; the served one is chosen at run time.

    metadata_only: nothing but the metadata is in use, so that the server is asked for nothing else.
    replicas, suspended: how the kind tells them; absent where it does not.
    """

    group: str
    kind: str
    plural: str
    versions: tuple[str, ...]
    metadata_only: bool = False
    replicas: Callable[[OwnerSpec], int | None] | None = None
    suspended: Callable[[OwnerSpec, Metadata], bool] | None = None

    @property
    def key(self) -> KindKey:
        return self.group, self.kind

    @property
    def resource(self) -> str:
        """As RBAC and kubectl name it: 'pods', 'jobsets.jobset.x-k8s.io'."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, version: str) -> str:
        """URL path of the list in all namespaces."""
        prefix = f"/apis/{self.group}" if self.group else "/api"
        return f"{prefix}/{version}/{self.plural}"


NODE = Kind("", "Node", "nodes", ("v1",))
POD = Kind("", "Pod", "pods", ("v1",))
NAMESPACE = Kind("", "Namespace", "namespaces", ("v1",), metadata_only=True)
BUDGET = Kind("policy", "PodDisruptionBudget", "poddisruptionbudgets", ("v1",))
PRIORITY_CLASS = Kind("scheduling.k8s.io", "PriorityClass", "priorityclasses", ("v1",))
CLAIM = Kind("resource.k8s.io", "ResourceClaim", "resourceclaims", ("v1", "v1beta2", "v1beta1"))
SLICE = Kind("resource.k8s.io", "ResourceSlice", "resourceslices", ("v1", "v1beta2", "v1beta1"))

KUEUE_WORKLOAD = Kind("kueue.x-k8s.io", "Workload", "workloads", ("v1beta2", "v1beta1"))
VOLCANO_GROUP = Kind("scheduling.volcano.sh", "PodGroup", "podgroups", ("v1beta1",))
COSCHEDULING_GROUP = Kind("scheduling.x-k8s.io", "PodGroup", "podgroups", ("v1alpha1",))
KAI_GROUP = Kind("scheduling.run.ai", "PodGroup", "podgroups", ("v2alpha2",))
NATIVE_GROUP = Kind("scheduling.k8s.io", "PodGroup", "podgroups", ("v1beta1", "v1alpha3", "v1alpha2"))
NATIVE_WORKLOAD = Kind("scheduling.k8s.io", "Workload", "workloads", ("v1alpha1",))
GROVE_GANG = Kind("scheduler.grove.io", "PodGang", "podgangs", ("v1alpha1",))

_STOPPED_NOTEBOOK = "kubeflow-resource-stopped"


def _suspend(spec: OwnerSpec, _: Metadata) -> bool:
    return bool(spec.suspend)


def _run_policy_suspend(spec: OwnerSpec, _: Metadata) -> bool:
    return spec.run_policy is not None and bool(spec.run_policy.suspend)


def _stopped_notebook(_: OwnerSpec, metadata: Metadata) -> bool:
    return _STOPPED_NOTEBOOK in (metadata.annotations or {})


def _not_started(spec: OwnerSpec, _: Metadata) -> bool:
    return spec.started is False


def _replicas(spec: OwnerSpec) -> int:
    return 1 if spec.replicas is None else spec.replicas  # the API's default


def _parallelism(spec: OwnerSpec) -> int:
    return 1 if spec.parallelism is None else spec.parallelism


def _predictor(spec: OwnerSpec) -> int | None:
    return spec.predictor.min_replicas if spec.predictor is not None else None


_KUBEFLOW = ("v1", "v2beta1")

OWNERS: dict[KindKey, Kind] = {
    kind.key: kind
    for kind in (
        Kind("apps", "ReplicaSet", "replicasets", ("v1",), metadata_only=True),
        Kind("apps", "Deployment", "deployments", ("v1",), replicas=_replicas),
        Kind("apps", "StatefulSet", "statefulsets", ("v1",), replicas=_replicas),
        Kind("", "ReplicationController", "replicationcontrollers", ("v1",), replicas=_replicas),
        # A leader Pod owns its LeaderWorkerSet group's StatefulSet, a Spark driver its executors.
        Kind("", "Pod", "pods", ("v1",), metadata_only=True),
        Kind("batch", "Job", "jobs", ("v1",), replicas=_parallelism, suspended=_suspend),
        Kind("batch", "CronJob", "cronjobs", ("v1",), suspended=_suspend),
        Kind("jobset.x-k8s.io", "JobSet", "jobsets", ("v1alpha2",), suspended=_suspend),
        Kind("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "leaderworkersets", ("v1",), replicas=_replicas),
        *(
            Kind("kubeflow.org", name, f"{name.lower()}s", _KUBEFLOW, suspended=_run_policy_suspend)
            for name in ("PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "JAXJob", "PaddleJob")
        ),
        Kind("trainer.kubeflow.org", "TrainJob", "trainjobs", ("v1alpha1",), suspended=_suspend),
        Kind("ray.io", "RayJob", "rayjobs", ("v1",), suspended=_suspend),
        Kind("ray.io", "RayCluster", "rayclusters", ("v1",), suspended=_suspend),
        Kind("ray.io", "RayService", "rayservices", ("v1",), metadata_only=True),
        Kind("batch.volcano.sh", "Job", "jobs", ("v1alpha1",)),
        Kind("grove.io", "PodClique", "podcliques", ("v1alpha1",), metadata_only=True),
        Kind("grove.io", "PodCliqueScalingGroup", "podcliquescalinggroups", ("v1alpha1",), metadata_only=True),
        Kind("grove.io", "PodCliqueSet", "podcliquesets", ("v1alpha1",), replicas=_replicas),
        Kind("grove.io", "PodGangSet", "podgangsets", ("v1alpha1",), replicas=_replicas),
        Kind("sparkoperator.k8s.io", "SparkApplication", "sparkapplications", ("v1beta2",), metadata_only=True),
        Kind("argoproj.io", "Workflow", "workflows", ("v1alpha1",), suspended=_suspend),
        Kind("argoproj.io", "CronWorkflow", "cronworkflows", ("v1alpha1",), metadata_only=True),
        Kind("tekton.dev", "TaskRun", "taskruns", ("v1",), metadata_only=True),
        Kind("tekton.dev", "PipelineRun", "pipelineruns", ("v1",), metadata_only=True),
        Kind("kubeflow.org", "ScheduledWorkflow", "scheduledworkflows", ("v1beta1", "v1alpha1"), metadata_only=True),
        Kind("workload.codeflare.dev", "AppWrapper", "appwrappers", ("v1beta2",), suspended=_suspend),
        Kind("serving.kserve.io", "InferenceService", "inferenceservices", ("v1beta1",), replicas=_predictor),
        Kind("serving.kserve.io", "LLMInferenceService", "llminferenceservices", ("v1alpha1",), replicas=_replicas),
        Kind("serving.knative.dev", "Service", "services", ("v1",), metadata_only=True),
        Kind("serving.knative.dev", "Configuration", "configurations", ("v1",), metadata_only=True),
        Kind("serving.knative.dev", "Revision", "revisions", ("v1",), metadata_only=True),
        Kind("kubeflow.org", "Notebook", "notebooks", ("v1", "v1beta1"), suspended=_stopped_notebook),
        Kind("kubeflow.org", "Workspace", "workspaces", ("v1beta1",), metadata_only=True),
        Kind("workspace.devfile.io", "DevWorkspace", "devworkspaces", ("v1alpha2",), suspended=_not_started),
    )
}

READ = frozenset(
    {
        *OWNERS,
        *(
            kind.key
            for kind in (
                NODE,
                POD,
                NAMESPACE,
                BUDGET,
                PRIORITY_CLASS,
                CLAIM,
                SLICE,
                KUEUE_WORKLOAD,
                VOLCANO_GROUP,
                COSCHEDULING_GROUP,
                KAI_GROUP,
                NATIVE_GROUP,
                NATIVE_WORKLOAD,
                GROVE_GANG,
            )
        ),
    }
)
"""Every kind that is in use, for telling which recorded objects are not."""
