"""The living control plane beside gpuwatch's own scheduling: where its taint sends Pods, and what has room nowhere."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from cluster.api import Api, Object
from cluster.control_plane import ControlPlaneBuild, running
from gpuwatch.act.placement import Nowhere, Room
from gpuwatch.sources.kube.nodes import take_node
from gpuwatch.sources.kube.pods import take_pod
from parts.processes import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def living(control_plane_build: ControlPlaneBuild) -> Iterator[Api]:
    with running(control_plane_build, alive=True) as cluster:
        api = Api(cluster.administrator)
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
        for number in range(2):
            gpus = {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi", "pods": "110"}
            status = {"capacity": gpus, "allocatable": gpus}
            metadata = {"name": f"gpu-{number}", "labels": {"kubernetes.io/hostname": f"gpu-{number}"}}
            api.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status})
        yield api


def pod_template(gpus: int, **spec: Any) -> Object:
    container = {"name": "main", "image": "example.org/main:1", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    return {"metadata": {"labels": {"app": "main"}}, "spec": {"containers": [container], **spec}}


def pods(api: Api, app: str) -> list[Object]:
    found = api.get("/api/v1/namespaces/team-a/pods", labelSelector=f"app={app}")["items"]
    return [item for item in found if "deletionTimestamp" not in item["metadata"]]


def running_pods(api: Api, app: str) -> list[Object]:
    return [item for item in pods(api, app) if item["status"]["phase"] == "Running"]


def wait_for_pods(api: Api, app: str, count: int) -> list[Object]:
    wait_until(lambda: len(running_pods(api, app)) == count, lambda: f"{app}: {[p['status'] for p in pods(api, app)]}")
    return running_pods(api, app)


def workload(kind: str, name: str, template: Object, **spec: Any) -> Object:
    template["metadata"]["labels"] = {"app": name}
    version = "batch/v1" if kind == "Job" else "apps/v1"
    selector = {} if kind == "Job" else {"selector": {"matchLabels": {"app": name}}}
    metadata = {"name": name, "namespace": "team-a"}
    return {
        "apiVersion": version, "kind": kind, "metadata": metadata, "spec": {**spec, **selector, "template": template}
    }  # fmt: skip


def test_the_mildest_taint_sends_a_gang_to_the_other_node_though_that_is_fuller(living: Api) -> None:
    """docs/rules/guards.md, tainted_first: the scheduler prefers another Node. A move waits for NoSchedule anyway."""
    size = {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi", "pods": "110"}
    for name, taints in (
        ("sick", [{"key": "gpuwatch.dev/degraded", "value": "xid", "effect": "PreferNoSchedule"}]),
        ("well", []),
    ):
        labels = {"kubernetes.io/hostname": name, "pool": "mild"}
        metadata, status = {"name": name, "labels": labels}, {"capacity": size, "allocatable": size}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": taints}, "status": status}
        living.create(node)
    filler = pod_template(0, restartPolicy="Never", nodeSelector={"kubernetes.io/hostname": "well"})
    filler["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "50", "memory": "400Gi"}}
    living.create(workload("Job", "filler", filler))
    wait_for_pods(living, "filler", 1)
    gang = pod_template(4, restartPolicy="Never", nodeSelector={"pool": "mild"})
    gang["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "4", "memory": "32Gi"}
    living.create(workload("Job", "gang", gang, parallelism=2, completions=2))
    assert {item["spec"]["nodeName"] for item in wait_for_pods(living, "gang", 2)} == {"well"}


def test_a_pod_whose_volume_is_on_a_tainted_node_is_placed_nowhere_and_does_not_land(living: Api) -> None:
    """Its twin without the volume is placed by the scheduler, and lands."""
    size = {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi", "pods": "110"}
    for name, taints in (("near", [{"key": "gpuwatch.dev/degraded", "effect": "NoSchedule"}]), ("far", [])):
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, "pool": "local"}}
        status = {"capacity": size, "allocatable": size}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": taints}, "status": status}
        living.create(node)
    on_near = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["near"]}]}
    shape = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    metadata = {
        "name": "data", "namespace": "team-a", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}
    }  # fmt: skip
    wanted = {**shape, "volumeName": "disk", "resources": {"requests": {"storage": "1Gi"}}}
    claim = living.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": wanted})
    held_by = {"kind": "PersistentVolumeClaim", "namespace": "team-a", "name": "data", "uid": claim["metadata"]["uid"]}
    living.create(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"},
         "spec": {**shape, "capacity": {"storage": "1Gi"}, "local": {"path": "/data"}, "claimRef": held_by,
                  "nodeAffinity": {"required": {"nodeSelectorTerms": [on_near]}}}}
    )  # fmt: skip
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    for name, volumes in (("local", [volume]), ("free", [])):
        spec = pod_template(4, restartPolicy="Never", nodeSelector={"pool": "local"}, volumes=volumes)
        living.create(workload("Job", name, spec))
    (placed,) = wait_for_pods(living, "free", 1)
    assert placed["spec"]["nodeName"] == "far"

    def said() -> str:
        found = (each for item in pods(living, "local") for each in item["status"].get("conditions", ()))
        return " ".join(each.get("message", "") for each in found if each.get("reason") == "Unschedulable")

    wait_until(lambda: "volume" in said().lower(), lambda: str(pods(living, "local")))
    assert not running_pods(living, "local")
    (left,) = pods(living, "local")
    now = [living.get(f"/api/v1/nodes/{name}") for name in ("near", "far")]
    nodes = [take_node(msgspec.Raw(json.dumps(each).encode())).node for each in now]
    for item, reason in ((left, "spec.volumes[data].persistentVolumeClaim"), (placed, "")):
        taken = take_pod(msgspec.Raw(json.dumps(item).encode()))
        assert taken is not None
        assert taken.held is not None
        found = Room(nodes, (), {}).land([taken.held.pod])
        if reason:
            assert isinstance(found, Nowhere)
            assert reason in found.reason
        else:
            assert found == {taken.held.pod.ref: "far"}
