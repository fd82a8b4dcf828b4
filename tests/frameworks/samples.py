"""One object or more of every kind that can be released, as users write them, with the status of a running one."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import Any

from gpuwatch.facts.frameworks import WRITTEN, keys
from gpuwatch.facts.frameworks.framework import ReleaseRule
from gpuwatch.facts.frameworks.objects import Object, ref_of
from gpuwatch.facts.model.remediation import Saved

_POD = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example.org/main:1"}]}}
_SERVED = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "main", "image": "example.org/m:1"}]}}
_SELECTS = {"selector": {"matchLabels": {"app": "x"}}, "template": _SERVED}
_RAY_GROUP = {"rayStartParams": {"num-gpus": "8"}, "template": _POD}
_RAY = {
    "headGroupSpec": _RAY_GROUP,
    "workerGroupSpecs": [{"groupName": "gpu", "replicas": 2, "minReplicas": 0, **_RAY_GROUP}],
}
_JOB_OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "1-2-3", "controller": True}
ANNOTATIONS = {"team.example.org/owner": "vision", "kubectl.kubernetes.io/note": "kept/~as it is"}


@dataclass(frozen=True)
class Sample:
    """path: the field that releases it. released: the status of one that gave everything up.

    spec_after: what a restoration leaves in its spec that was not there before.
    """

    id: str
    object: Object
    path: str
    status: Object = field(default_factory=dict)
    released: Object = field(default_factory=dict)
    spec_after: Object = field(default_factory=dict)

    def named(self, namespace: str, **metadata: Any) -> Object:
        made = copy.deepcopy(self.object)
        made["metadata"] = {"name": self.id, "namespace": namespace, **made.get("metadata", {}), **metadata}
        return made


def _sample(id_: str, api_version: str, kind: str, path: str, spec: Object, **more: Any) -> Sample:
    metadata = more.pop("metadata", {})
    return Sample(id_, {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}, path, **more)


def _conditions(**told: str) -> Object:
    return {"conditions": [{"type": kind, "status": status} for kind, status in told.items()]}


_RUN = "/spec/runPolicy/suspend"
_TRAINING = {
    "PyTorchJob": "pytorchReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
    "JAXJob": "jaxReplicaSpecs",
}
_WORKERS = {"Worker": {"replicas": 4, "restartPolicy": "OnFailure", "template": _POD}}
_ACTIVE = {"replicaStatuses": {"Worker": {"active": 4}}}

SAMPLES = (
    _sample("job", "batch/v1", "Job", "/spec/suspend", {"parallelism": 2, "template": _POD}),
    _sample("job-false", "batch/v1", "Job", "/spec/suspend", {"suspend": False, "template": _POD}),
    _sample(
        "appwrapper",
        "workload.codeflare.dev/v1beta2",
        "AppWrapper",
        "/spec/suspend",
        {
            "components": [
                {"template": {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": {}}}
            ]
        },
        status={"phase": "Running"},
        released={"phase": "Suspended"},
    ),
    _sample(
        "jobset",
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        "/spec/suspend",
        {"replicatedJobs": [{"name": "workers", "replicas": 2, "template": {"spec": {"template": _POD}}}]},
        status={"replicatedJobsStatus": [{"name": "workers", "active": 2}]},
        released={"replicatedJobsStatus": [{"name": "workers", "suspended": 2}], **_conditions(Suspended="True")},
    ),
    _sample(
        "lws",
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        "/spec/replicas",
        {"replicas": 3, "leaderWorkerTemplate": {"size": 4, "workerTemplate": _POD}},
        status={"replicas": 3},
        released={"replicas": 0},
    ),
    *(
        _sample(kind.lower(), "kubeflow.org/v1", kind, _RUN, {field_name: _WORKERS}, status=_ACTIVE)
        for kind, field_name in _TRAINING.items()
    ),
    _sample(
        "pytorchjob-policy",
        "kubeflow.org/v1",
        "PyTorchJob",
        _RUN,
        {"runPolicy": {"cleanPodPolicy": "All", "suspend": False}, "pytorchReplicaSpecs": _WORKERS},
        status=_ACTIVE,
    ),
    _sample("mpijob-v1", "kubeflow.org/v1", "MPIJob", _RUN, {"mpiReplicaSpecs": _WORKERS}, status=_ACTIVE),
    _sample(
        "mpijob",
        "kubeflow.org/v2beta1",
        "MPIJob",
        _RUN,
        {"runPolicy": {"cleanPodPolicy": "Running"}, "mpiReplicaSpecs": _WORKERS},
        status=_ACTIVE,
    ),
    _sample(
        "trainjob",
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        "/spec/suspend",
        {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"numNodes": 2}},
        status={"jobsStatus": [{"name": "node", "active": 1}]},
        released={"jobsStatus": [{"name": "node", "active": 0, "suspended": 1}]},
    ),
    _sample(
        "rayjob",
        "ray.io/v1",
        "RayJob",
        "/spec/suspend",
        {"entrypoint": "python t.py", "shutdownAfterJobFinishes": True, "rayClusterSpec": _RAY},
        status={"jobDeploymentStatus": "Running"},
        released={"jobDeploymentStatus": "Suspended"},
    ),
    _sample(
        "raycluster",
        "ray.io/v1",
        "RayCluster",
        "/spec/suspend",
        _RAY,
        status={"state": "ready"},
        released={"state": "suspended"},
        spec_after={"suspend": False},
    ),
    _sample("raycluster-false", "ray.io/v1", "RayCluster", "/spec/suspend", {"suspend": False, **_RAY}),
    _sample(
        "workload",
        "kueue.x-k8s.io/v1beta2",
        "Workload",
        "/spec/active",
        {"queueName": "gpus", "podSets": [{"name": "main", "count": 4, "template": _POD}]},
        metadata={"ownerReferences": [_JOB_OWNER]},
        status=_conditions(QuotaReserved="True", Admitted="True"),
        released=_conditions(QuotaReserved="False", Evicted="True"),
    ),
    _sample(
        "deployment", "apps/v1", "Deployment", "/spec/replicas", {"replicas": 2, **_SELECTS}, status={"replicas": 2}
    ),
    _sample("deployment-default", "apps/v1", "Deployment", "/spec/replicas", _SELECTS, status={"replicas": 1}),
    _sample(
        "statefulset",
        "apps/v1",
        "StatefulSet",
        "/spec/replicas",
        {"replicas": 4, "serviceName": "x", **_SELECTS},
        status={"replicas": 4},
    ),
    _sample(
        "inferenceservice",
        "serving.kserve.io/v1beta1",
        "InferenceService",
        "/spec/predictor/minReplicas",
        {"predictor": {"minReplicas": 1, "maxReplicas": 3, "model": {"modelFormat": {"name": "vllm"}}}},
        status={"deploymentMode": "Serverless"},
        released={"deploymentMode": "Serverless"},
    ),
    _sample(
        "inferenceservice-default",
        "serving.kserve.io/v1beta1",
        "InferenceService",
        "/spec/predictor/minReplicas",
        {"predictor": {"model": {"modelFormat": {"name": "vllm"}}}},
        status={"components": {"predictor": {"latestCreatedRevision": "x-predictor-00001"}}},
        released={"components": {"predictor": {"latestCreatedRevision": "x-predictor-00001"}}},
    ),
    _sample(
        "notebook",
        "kubeflow.org/v1",
        "Notebook",
        "/metadata/annotations/kubeflow-resource-stopped",
        {"template": {"spec": _POD["spec"]}},
        metadata={"annotations": ANNOTATIONS},
        status={"readyReplicas": 1},
        released={"readyReplicas": 0},
    ),
)
VOLCANO = _sample(
    "volcano",
    "batch.volcano.sh/v1alpha1",
    "Job",
    "/status/state/phase",
    {"minAvailable": 2, "queue": "gpus", "tasks": [{"name": "worker", "replicas": 4, "template": _POD}]},
    status={"state": {"phase": "Running"}, "running": 4},
    released={"state": {"phase": "Aborted"}},
)

assert {(item.object["apiVersion"].rpartition("/")[0], item.object["kind"]) for item in (*SAMPLES, VOLCANO)} == {
    key for key, kind in WRITTEN.items() if isinstance(kind.release, ReleaseRule)
}


def told_state(object_: Object) -> tuple[Saved, ...]:
    """What the annotation on the object says of the fields before the release. People read it; gpuwatch does not."""
    target, text = ref_of(object_), object_["metadata"]["annotations"][keys.SAVED_STATE]
    return tuple(Saved(target=target, **item) for item in json.loads(text))
