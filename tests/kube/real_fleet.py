"""A fleet as objects of a real API server: what controllers, kubelets and drivers would have written into it."""

from collections.abc import Iterator, Mapping
from typing import Any

from cluster.api import Api, Object
from parts.processes import wait_until

RECORDED = (
    ("v1", "Node"),
    ("v1", "Pod"),
    ("v1", "Namespace"),
    ("policy/v1", "PodDisruptionBudget"),
    ("scheduling.k8s.io/v1", "PriorityClass"),
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("batch/v1", "Job"),
    ("batch/v1", "CronJob"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    ("resource.k8s.io/v1", "ResourceClaim"),
    ("resource.k8s.io/v1", "ResourceSlice"),
)
"""What somebody who records this cluster would `kubectl get`."""

FIRST, LAST = "aa-research", "zz-serving"
"""Namespaces of the GPU Pods. Lists come in the order of Namespaces, so these are on the first and the last page."""

PLAIN_PODS = 1250
GPU_UUID = "GPU-5a1d3f5c-6f5a-4b0e-9c53-0a4b8e0d7c11"
STARTED = "2026-11-20T08:00:00Z"
DRIVER = "gpu.nvidia.com"

_ONE_GPU = {"nvidia.com/gpu": "1"}
_H100 = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/mig.strategy": "none",
    "node.kubernetes.io/instance-type": "p5.48xlarge",
}
_SHARED = {
    "nvidia.com/gpu.product": "Tesla-T4-SHARED",
    "nvidia.com/gpu.count": "4",
    "nvidia.com/gpu.memory": "15360",
    "nvidia.com/gpu.replicas": "4",
    "nvidia.com/gpu.sharing-strategy": "time-slicing",
    "gpuwatch.dev/pool": "notebooks",
}
_MIXED = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/gpu.count": "1",
    "nvidia.com/mig.strategy": "mixed",
    "nvidia.com/mig-1g.10gb.count": "7",
}


def create_fleet(api: Api) -> None:
    """All of it, as the administrator."""
    for name in (FIRST, "monitoring", "web"):
        api.create(_object("v1", "Namespace", name))
    serving = {"labels": {"team": "search"}, "annotations": {"gpuwatch.dev/mode": "observe", "other": "left out"}}
    api.create(_object("v1", "Namespace", LAST, meta=serving))
    api.create(_object("scheduling.k8s.io/v1", "PriorityClass", "production", value=100000))
    api.create(_jobset_definition())
    jobsets = "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
    wait_until(lambda: api.answer("GET", jobsets).ok, lambda: f"{jobsets} is not served")
    for node in _nodes():
        api.create(node)
    for budget in _budgets():
        api.create(budget)
    _create_devices(api)
    for pod in (*_owned_pods(api), *_unowned_pods(api)):
        api.create(pod)
    api.create(_pod("leaving", FIRST, terminationGracePeriodSeconds=3600))
    api.delete(_pod("leaving", FIRST))
    for number in range(PLAIN_PODS):
        api.create(_pod(f"plain-{number:04}", "web", containers=[_container()], status=None))


def _object(
    api_version: str, kind: str, name: str, namespace: str = "", *, meta: Object | None = None, **rest: Any
) -> Object:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **(meta or {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **rest}


def _nodes() -> Iterator[Object]:
    taints = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    yield _node("gpu-a", _H100, "10.1.0.1", {"nvidia.com/gpu": "8"}, taints=taints)
    yield _node("gpu-b", _SHARED, "10.1.0.2", {"nvidia.com/gpu": "16"})
    yield _node("gpu-c", _MIXED, "10.1.0.3", {"nvidia.com/mig-1g.10gb": "7"}, unschedulable=True)
    yield _node("gpu-d", {}, "10.1.0.1", {"amd.com/gpu": "8"})  # an address that gpu-a has too
    yield _node("cpu-a", {}, "10.1.0.5", {})


def _node(name: str, labels: Mapping[str, str], address: str, accelerators: Mapping[str, str], **spec: Any) -> Object:
    offered = {"cpu": "96", "memory": "1056270948Ki", "pods": "250", **accelerators}
    status = {
        "capacity": offered,
        "allocatable": {**offered, "cpu": "95690m"},
        "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": STARTED},
        ],
    }
    return _object("v1", "Node", name, meta={"labels": dict(labels)}, spec=spec, status=status)


def _budgets() -> Iterator[Object]:
    by_label = {"matchLabels": {"app": "chat"}}
    by_expression = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["chat", "embed"]}]}
    for name, selector in (("by-label", by_label), ("by-expression", by_expression), ("everything", {})):
        yield _object(
            "policy/v1",
            "PodDisruptionBudget",
            name,
            LAST,
            spec={"minAvailable": 1, "selector": selector},
            status={"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2},
        )


def _container(name: str = "main", image: str = "registry.example/app:1", **resources: Any) -> Object:
    return {"name": name, "image": image, "resources": resources}


_RUNNING = {
    "phase": "Running",
    "startTime": STARTED,
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [
        {
            "name": "main",
            "image": "registry.example/app:1",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": "2026-11-20T08:01:00Z"}},
        }
    ],
}


def _pod(
    name: str,
    namespace: str,
    *,
    owner: Object | None = None,
    containers: list[Object] | None = None,
    status: Object | None = _RUNNING,
    meta: Object | None = None,
    **spec: Any,
) -> Object:
    """A running Pod with one GPU on gpu-a, unless told otherwise. owner: its controller, as a reference."""
    one_gpu = [_container(limits=_ONE_GPU, requests={"cpu": "1500m", "memory": "2Gi"})]
    owned = {"ownerReferences": [owner]} if owner else {}
    return _object(
        "v1",
        "Pod",
        name,
        namespace,
        meta={**owned, **(meta or {})},
        spec={"nodeName": "gpu-a", "containers": one_gpu if containers is None else containers, **spec},
        **({"status": status} if status is not None else {}),
    )


def _reference(created: Object) -> Object:
    meta = created["metadata"]
    kind = {"apiVersion": created["apiVersion"], "kind": created["kind"]}
    return {**kind, "name": meta["name"], "uid": meta["uid"], "controller": True}


def _template(app: str, **spec: Any) -> Object:
    return {"metadata": {"labels": {"app": app}}, "spec": {"containers": [_container()], **spec}}


def _selected(app: str, **more: Any) -> Object:
    return {"selector": {"matchLabels": {"app": app}}, "template": _template(app), **more}


def _owned_pods(api: Api) -> Iterator[Object]:
    def owner(
        api_version: str,
        kind: str,
        name: str,
        namespace: str,
        *,
        above: Object | None = None,
        spec: Object,
        **meta: Any,
    ) -> Object:
        owned = {"ownerReferences": [above]} if above else {}
        return _reference(api.create(_object(api_version, kind, name, namespace, meta={**owned, **meta}, spec=spec)))

    chat = owner("apps/v1", "Deployment", "chat", LAST, spec=_selected("chat", replicas=2))
    current = owner("apps/v1", "ReplicaSet", "chat-6b8f", LAST, above=chat, spec=_selected("chat", replicas=2))
    owner("apps/v1", "ReplicaSet", "chat-5d7c", LAST, above=chat, spec=_selected("chat", replicas=0))
    for name in ("chat-6b8f-aaaaa", "chat-6b8f-bbbbb"):
        labels = {"labels": {"app": "chat"}}
        yield _pod(name, LAST, owner=current, meta=labels, priorityClassName="production")

    parallel = _selected("shard", replicas=2, serviceName="shard", podManagementPolicy="Parallel")
    shard = owner("apps/v1", "StatefulSet", "shard", FIRST, spec=parallel)
    for ordinal in range(2):
        yield _pod(f"shard-{ordinal}", FIRST, owner=shard)

    job_spec = {"template": _template("work", restartPolicy="Never")}
    indexed = {**job_spec, "completionMode": "Indexed", "parallelism": 2, "completions": 2}
    sweep = owner("batch/v1", "Job", "sweep", FIRST, spec=indexed)
    for index in range(2):
        yield _pod(f"sweep-{index}", FIRST, owner=sweep, restartPolicy="Never")

    schedule = {"schedule": "0 3 * * *", "suspend": True, "jobTemplate": {"spec": job_spec}}
    nightly = owner("batch/v1", "CronJob", "nightly", FIRST, spec=schedule)
    tonight = owner("batch/v1", "Job", "nightly-29384", FIRST, above=nightly, spec=job_spec)
    yield _pod("nightly-29384-x", FIRST, owner=tonight, restartPolicy="Never")
    ended = {**_RUNNING, "phase": "Succeeded"}
    yield _pod("nightly-29384-done", FIRST, owner=tonight, restartPolicy="Never", status=ended)

    pretrain = owner("jobset.x-k8s.io/v1alpha2", "JobSet", "pretrain", FIRST, spec={"suspend": False})
    workers = owner("batch/v1", "Job", "pretrain-workers-0", FIRST, above=pretrain, spec=indexed)
    for index in range(2):
        eight = [_container(limits={"nvidia.com/gpu": "8"})]
        labels = {"labels": {"jobset.sigs.k8s.io/jobset-name": "pretrain"}}
        yield _pod(f"pretrain-workers-0-{index}", FIRST, owner=workers, containers=eight, meta=labels)


def _unowned_pods(api: Api) -> Iterator[Object]:
    """Pods at the top of their chain, or whose chain cannot be followed, and an exporter."""

    def elsewhere(api_version: str, kind: str, name: str) -> Object:
        uid = "00000000-0000-4000-8000-000000000000"
        return {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": True}

    yield _pod("bare", FIRST, meta={"annotations": {"gpuwatch.dev/opt-out": "a demo", "secret": "left out"}})
    yield _pod("orphan", FIRST, owner=elsewhere("apps/v1", "ReplicaSet", "gone"))
    yield _pod("operated", FIRST, owner=elsewhere("example.com/v1", "Simulation", "storm"))
    yield _pod("daemon", FIRST, owner=elsewhere("apps/v1", "DaemonSet", "burn-in"))
    on_node = _reference({**api.get("/api/v1/nodes/gpu-a"), "apiVersion": "v1", "kind": "Node"})
    yield _pod("static-gpu-a", FIRST, owner=on_node, meta={"annotations": {"kubernetes.io/config.mirror": "0a1b"}})
    for member in range(2):
        grouped = {
            "labels": {"kueue.x-k8s.io/pod-group-name": "pair"},
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
        }
        yield _pod(f"pair-{member}", FIRST, meta=grouped)
    yield _pod("volcano", FIRST, meta={"annotations": {"scheduling.k8s.io/group-name": "not-served-here"}})
    pending = {"phase": "Pending"}
    yield _pod("waiting", FIRST, status=pending, nodeName=None)
    sidecar = {**_container("proxy", requests={"cpu": "250m", "memory": "64Mi"}), "restartPolicy": "Always"}
    loader = _container("loader", limits={**_ONE_GPU, "memory": "8Gi"})
    yield _pod("with-sidecar", LAST, initContainers=[sidecar, loader])
    yield _pod("sliced", LAST, nodeName="gpu-c", containers=[_container(limits={"nvidia.com/mig-1g.10gb": "2"})])
    for name, claim in (("claimed", "whole"), ("claimed-mig", "slices")):
        asked = [{**_container(), "resources": {"claims": [{"name": "device"}]}}]
        claims = [{"name": "device", "resourceClaimName": claim}]
        yield _pod(name, LAST, containers=asked, resourceClaims=claims)
    yield _pod(
        "dcgm-exporter-x",
        "monitoring",
        containers=[
            {
                **_container("exporter", "registry.example/dcgm-exporter:4"),
                "volumeMounts": [{"name": "pods", "mountPath": "/var/lib/kubelet/pod-resources"}],
            }
        ],
        volumes=[{"name": "pods", "hostPath": {"path": "/var/lib/kubelet/pod-resources"}}],
        meta={"labels": {"app": "nvidia-dcgm-exporter"}},
        status={**_RUNNING, "containerStatuses": [], "podIP": "10.2.0.9", "podIPs": [{"ip": "10.2.0.9"}]},
    )


def _create_devices(api: Api) -> None:
    """A slice of DRA devices and claims on them, as the driver and the scheduler write them."""
    devices = [
        {"name": "gpu-0", "attributes": {"uuid": {"string": GPU_UUID}}},
        {
            "name": "gpu-0-mig-9-0",
            "attributes": {"uuid": {"string": "MIG-1"}, "parentUUID": {"string": GPU_UUID}},
            "taints": [{"key": "gpu.nvidia.com/unhealthy", "effect": "NoSchedule", "timeAdded": STARTED}],
        },
        {"name": "gpu-1", "attributes": {"productName": {"string": "NVIDIA H100"}}},
    ]
    pool = {"name": "gpu-a", "generation": 2, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": "gpu-a", "pool": pool, "devices": devices}
    api.create(_object("resource.k8s.io/v1", "ResourceSlice", "gpu-a-new", spec=spec))
    stale = {
        **spec,
        "pool": {**pool, "generation": 1},
        "devices": [{**devices[2], "attributes": devices[0]["attributes"]}],
    }
    api.create(_object("resource.k8s.io/v1", "ResourceSlice", "gpu-a-old", spec=stale))
    for name, held in (("whole", ["gpu-0"]), ("slices", ["gpu-0-mig-9-0", "gpu-1"]), ("waiting", [])):
        asked = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": max(1, len(held))}
        results = [{"request": "device", "driver": DRIVER, "pool": "gpu-a", "device": device} for device in held]
        allocated = {"status": {"allocation": {"devices": {"results": results}}}} if held else {}
        spec = {"devices": {"requests": [{"name": "device", "exactly": asked}]}}
        api.create(_object("resource.k8s.io/v1", "ResourceClaim", name, LAST, spec=spec, **allocated))


def _jobset_definition() -> Object:
    """JobSet's resource with the fields in use; its own controller is not needed."""
    schema = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {"suspend": {"type": "boolean"}}},
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
    version = {"name": "v1alpha2", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return _object(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "jobsets.jobset.x-k8s.io",
        spec={
            "group": "jobset.x-k8s.io",
            "scope": "Namespaced",
            "names": {"plural": "jobsets", "singular": "jobset", "kind": "JobSet", "listKind": "JobSetList"},
            "versions": [version],
        },
    )
