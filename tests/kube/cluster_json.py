"""Small Kubernetes objects for tests, as the API's JSON."""

import json
from typing import Any

import msgspec

CREATED = "2026-11-20T08:00:00Z"


def raw(found: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(found).encode())


def metadata(name: str, namespace: str = "", **more: Any) -> dict[str, Any]:
    placed = {"namespace": namespace} if namespace else {}
    return {"name": name, "uid": f"uid-{namespace}-{name}", "creationTimestamp": CREATED, **placed, **more}


def node(
    name: str = "gpu-0", labels: dict[str, str] | None = None, capacity: dict[str, str] | None = None, **status: Any
) -> dict[str, Any]:
    """A Node whose capacity is all allocatable."""
    offered = capacity or {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata(name, labels=labels or {}),
        "status": {"capacity": offered, "allocatable": offered, **status},
    }


def container(name: str = "main", image: str = "registry.example/app:1", **resources: Any) -> dict[str, Any]:
    return {"name": name, "image": image, "resources": resources}


def pod(
    name: str = "train-0",
    namespace: str = "ml",
    *,
    containers: list[dict[str, Any]] | None = None,
    status: dict[str, Any] | None = None,
    meta: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A Pod with one GPU on gpu-0, unless told otherwise."""
    one_gpu = [container(limits={"nvidia.com/gpu": "1"})]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(name, namespace, **(meta or {})),
        "spec": {"nodeName": "gpu-0", "containers": one_gpu if containers is None else containers, **spec},
        "status": {"phase": "Running", **(status or {})},
    }


def controlled_by(kind: str, name: str, api_version: str = "apps/v1", uid: str | None = None) -> dict[str, Any]:
    """Metadata of an object with this controller."""
    ref = {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid or f"uid-ml-{name}", "controller": True}
    return {"ownerReferences": [ref]}


def owner(kind: str, name: str, api_version: str = "apps/v1", **more: Any) -> dict[str, Any]:
    """A controller in Namespace ml; keyword `meta` adds metadata."""
    meta = more.pop("meta", {})
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata(name, "ml", **meta), **more}


def as_list(*items: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}
