"""Owners as people write them, each with a sidecar and the GPU container, and what their alive Pods are labelled."""

from typing import Any

Tree = dict[str, Any]


def pod_spec(**more: Any) -> Tree:
    """A sidecar and the container that holds the GPU."""
    return {
        "restartPolicy": "Always",
        "nodeSelector": {"disk": "fast"},
        "containers": [
            {"name": "sidecar", "image": "logs:1", "resources": {"limits": {"cpu": "1"}}},
            {
                "name": "main",
                "image": "train:1",
                "args": ["--go"],
                "resources": {
                    "limits": {"nvidia.com/gpu": "1", "cpu": "8"},
                    "requests": {"nvidia.com/gpu": "1", "cpu": "4"},
                },
            },
        ],
        **more,
    }


def template(**more: Any) -> Tree:
    return {"metadata": {"labels": {"app": "x"}}, "spec": pod_spec(**more)}


JOB_SPEC = {"spec": {"template": template(restartPolicy="Never")}}
SELECTOR = {"selector": {"matchLabels": {"app": "x"}}}

# kind → (apiVersion, spec, labels of its GPU Pods, where the changed Pod specs are, where the untouched ones are)
OBJECTS: dict[str, tuple[str, Tree, list[Tree], list[str], list[str]]] = {
    "Deployment": ("apps/v1", SELECTOR | {"template": template()}, [{}], ["template.spec"], []),
    "StatefulSet": (
        "apps/v1",
        SELECTOR | {"serviceName": "x", "template": template()},
        [{}],
        ["template.spec"],
        [],
    ),
    "Job": ("batch/v1", JOB_SPEC["spec"], [{}], ["template.spec"], []),
    "CronJob": (
        "batch/v1",
        {"schedule": "0 1 * * *", "jobTemplate": JOB_SPEC},
        [{}],
        ["jobTemplate.spec.template.spec"],
        [],
    ),
    "Pod": ("v1", pod_spec(), [{}], [""], []),
    "JobSet": (
        "jobset.x-k8s.io/v1alpha2",
        {"replicatedJobs": [{"name": "driver", "template": JOB_SPEC}, {"name": "workers", "template": JOB_SPEC}]},
        [{"jobset.sigs.k8s.io/replicatedjob-name": "workers"}],
        ["replicatedJobs.workers.template.spec.template.spec"],
        ["replicatedJobs.driver.template.spec.template.spec"],
    ),
    "LeaderWorkerSet": (
        "leaderworkerset.x-k8s.io/v1",
        {"leaderWorkerTemplate": {"size": 2, "leaderTemplate": template(), "workerTemplate": template()}},
        [{"leaderworkerset.sigs.k8s.io/worker-index": "0"}, {"leaderworkerset.sigs.k8s.io/worker-index": "1"}],
        ["leaderWorkerTemplate.workerTemplate.spec"],
        ["leaderWorkerTemplate.leaderTemplate.spec"],
    ),
    "PyTorchJob": (
        "kubeflow.org/v1",
        {"pytorchReplicaSpecs": {"Master": {"template": template()}, "Worker": {"template": template()}}},
        [
            {"training.kubeflow.org/replica-type": "master"},
            {"training.kubeflow.org/replica-type": "worker"},
        ],
        ["pytorchReplicaSpecs.Master.template.spec", "pytorchReplicaSpecs.Worker.template.spec"],
        [],
    ),
    "MPIJob": (
        "kubeflow.org/v1",
        {"mpiReplicaSpecs": {"Launcher": {"template": template()}, "Worker": {"template": template()}}},
        [{"training.kubeflow.org/replica-type": "worker"}],
        ["mpiReplicaSpecs.Worker.template.spec"],
        ["mpiReplicaSpecs.Launcher.template.spec"],
    ),
    "RayCluster": (
        "ray.io/v1",
        {
            "headGroupSpec": {"template": template()},
            "workerGroupSpecs": [
                {"groupName": "cpu", "template": template()},
                {"groupName": "gpu", "template": template()},
            ],
        },
        [{"ray.io/node-type": "worker", "ray.io/group": "gpu"}],
        ["workerGroupSpecs.gpu.template.spec"],
        ["headGroupSpec.template.spec", "workerGroupSpecs.cpu.template.spec"],
    ),
    "RayJob": (
        "ray.io/v1",
        {
            "rayClusterSpec": {
                "headGroupSpec": {"template": template()},
                "workerGroupSpecs": [{"groupName": "gpu", "template": template()}],
            }
        },
        [
            {"ray.io/node-type": "head", "ray.io/group": "headgroup"},
            {"ray.io/node-type": "worker", "ray.io/group": "gpu"},
        ],
        ["rayClusterSpec.headGroupSpec.template.spec", "rayClusterSpec.workerGroupSpecs.gpu.template.spec"],
        [],
    ),
    "Job.batch.volcano.sh": (
        "batch.volcano.sh/v1alpha1",
        {"tasks": [{"name": "ps", "template": template()}, {"name": "worker", "template": template()}]},
        [{"volcano.sh/task-spec": "worker"}],
        ["tasks.worker.template.spec"],
        ["tasks.ps.template.spec"],
    ),
    "Notebook": ("kubeflow.org/v1", {"template": template()}, [{}], ["template.spec"], []),
}


def merged(into: Any, patch: Any) -> Any:
    """A strategic merge as far as these kinds go: lists of named things merge by name, null takes away."""
    if isinstance(patch, dict) and isinstance(into, dict):
        result = dict(into)
        for key, value in patch.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = merged(result.get(key), value)
        return result
    if isinstance(patch, dict):
        return {key: merged(None, value) for key, value in patch.items() if value is not None}
    if isinstance(patch, list) and isinstance(into, list):
        result_list = list(into)
        for item in patch:
            at = next((i for i, old in enumerate(result_list) if name_of(old) == name_of(item)), None)
            assert at is not None, f"the patch makes a new {name_of(item)!r}, which is nobody's"
            result_list[at] = merged(result_list[at], item)
        return result_list
    return patch


def name_of(item: Tree) -> str:
    return str(item.get("name", item.get("groupName")))


def at(tree: Any, path: str) -> Any:
    """The value at a dotted path; a step into a list is the name of its item."""
    for step in path.split(".") if path else []:
        tree = next(item for item in tree if name_of(item) == step) if isinstance(tree, list) else tree[step]
    return tree
