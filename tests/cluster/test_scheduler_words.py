"""fixtures/scheduler-words.yaml: what a real kube-scheduler says of Pods that it does not place."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.api import Api, Object
from cluster.control_plane import ControlPlaneBuild, running
from parts.processes import wait_until

pytestmark = pytest.mark.slow

WORDS = yaml.safe_load((Path(__file__).parents[1] / "fixtures" / "scheduler-words.yaml").read_text(encoding="utf-8"))
GPU = "nvidia.com/gpu"


def node(name: str, gpus: int = 8, **taint: str) -> Object:
    size = {GPU: str(gpus), "cpu": "64", "memory": "512Gi", "pods": "110"}
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    spec = {"taints": [{"effect": "NoSchedule", **taint}]} if taint else {}
    status = {"capacity": size, "allocatable": size}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status}


def pod(name: str, row: dict[str, Any], label: str = "") -> Object:
    limits = {GPU: str(row.get("gpus", 8)), **row.get("limits", {})}
    container = {"name": "main", "image": "work", "resources": {"limits": limits}, "ports": row.get("ports", [])}
    metadata = {"name": name, "namespace": "default", "labels": {"app": label or name}}
    spec = {"containers": [container], **row.get("pod", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.fixture(scope="module")
def full(control_plane_build: ControlPlaneBuild) -> Iterator[Api]:
    with running(control_plane_build, alive=True) as cluster:
        api = Api(cluster.administrator)
        for each in (
            *(node(f"full-{index}") for index in range(2)),
            node("cpu", 0),
            node("sick", key="gpuwatch.dev/degraded", value="xid"),
            node("free", key="dedicated", value="beside"),
        ):
            api.create(each)
        claim = {"storageClassName": "none", "accessModes": ["ReadWriteOnce"]}
        metadata = {"name": "unbound", "namespace": "default"}
        spec = {**claim, "resources": {"requests": {"storage": "1Gi"}}}
        api.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
        at = {name: {"nodeName": name} for name in ("full-0", "full-1", "free")}
        for name in ("full-0", "full-1"):
            api.create(pod(f"on-{name}", {"pod": at[name]}))
        port = [{"containerPort": 80, "hostPort": 80}]
        api.create(pod("on-free", {"pod": at["free"], "gpus": 0, "ports": port}, "beside"))
        yield api


def said(api: Api, name: str) -> str | None:
    status = api.get(f"/api/v1/namespaces/default/pods/{name}")["status"]
    words = (each for each in status.get("conditions", ()) if each.get("reason") == "Unschedulable")
    return next((each["message"] for each in words), None)


def test_a_real_scheduler_says_what_is_recorded(full: Api) -> None:
    """Numbers too, once it has seen all Nodes and Pods."""
    rows = WORDS["kube-scheduler"]
    names = {row: re.sub(r"\W+", "-", row.lower()) for row in rows}
    for row, name in names.items():
        full.create(pod(name, rows[row], "beside" if "affinity" in rows[row].get("pod", {}) else ""))
    recorded = {row: rows[row]["said"] for row in rows}

    def found() -> dict[str, str | None]:
        return {row: said(full, name) for row, name in names.items()}

    wait_until(lambda: found() == recorded, lambda: str({k: v for k, v in found().items() if v != recorded[k]}))
