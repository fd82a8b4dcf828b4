"""A small fleet for the tests of the plan: sane defaults, override what matters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpuwatch.model.cluster import Cluster, Condition, Gang, Node, OwnerStatus, Pod, Workload
from gpuwatch.model.decision import (
    Advice,
    Family,
    Finding,
    FindingKind,
    Severity,
    Snapshot,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.model.telemetry import Device, Vendor

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
GPU = "nvidia.com/gpu"


def node(name: str, gpus: int = 8, **changes: object) -> Node:
    base = Node(
        name=name,
        conditions=(Condition("Ready", "True"),),
        accelerators={GPU: gpus},
        allocatable={GPU: gpus},
        gpu_product="NVIDIA-A100-SXM4-80GB",
        pool="train",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def device(node_name: str, index: int, holder: str = "", **changes: object) -> Device:
    name = f"GPU-{node_name}-{index}"
    base = Device(
        id=name,
        uuid=name,
        vendor=Vendor.NVIDIA,
        vocabulary="dcgm",
        index=str(index),
        node_label=node_name,
        node=node_name,
        holders=(holder,) if holder else (),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def pod(ref: str, on: str, gpus: int = 1, owner: str = "", **changes: object) -> Pod:
    namespace, name = ref.split("/")
    base = Pod(
        namespace=namespace,
        name=name,
        node=on,
        phase="Running",
        started=NOW - timedelta(hours=10),
        accelerators={GPU: gpus},
        workload=owner or f"Deployment/{namespace}/{name}",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def workload(name: str, status: OwnerStatus = OwnerStatus.FOUND, **changes: object) -> Workload:
    kind, namespace, short = name.split("/")
    base = Workload(id=name, kind=kind, api_version="apps/v1", namespace=namespace, name=short, status=status)
    return replace(base, **changes)  # type: ignore[arg-type]


def sick(target: Device, **changes: object) -> Finding:
    base = Finding(
        rule="health.xid",
        family=Family.HEALTH,
        kind=FindingKind.XID,
        subject=Subject(SubjectKind.DEVICE, target.id),
        verdict=Verdict.DEGRADED,
        summary="fell off the bus",
        severity=Severity.CRITICAL,
        advice=Advice.REBOOT,
        confidence_ratio=0.9,
        devices=(target.id,),
        node=target.node,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def idle(ref: str, devices: Iterable[Device], **changes: object) -> Finding:
    base = Finding(
        rule="idle.abandoned",
        family=Family.IDLE,
        kind=FindingKind.ABANDONED,
        subject=Subject(SubjectKind.POD, ref),
        verdict=Verdict.IDLE,
        summary="silent for good",
        severity=Severity.WARNING,
        advice=Advice.RECLAIM,
        confidence_ratio=0.9,
        devices=tuple(item.id for item in devices),
        pods=(ref,),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def snapshot(
    nodes: Iterable[Node],
    devices: Iterable[Device],
    pods: Iterable[Pod] = (),
    workloads: Iterable[Workload] | None = None,
    gangs: Iterable[Gang] = (),
    **cluster: object,
) -> Snapshot:
    members = tuple(pods)
    owners = (
        tuple(workloads) if workloads is not None else tuple(workload(name) for name in {p.workload for p in members})
    )
    state = Cluster(
        nodes=tuple(nodes),
        pods=members,
        workloads=owners,
        gangs=tuple(gangs),
        known=True,
        **cluster,  # type: ignore[arg-type]
    )
    return Snapshot(at=NOW, devices=tuple(devices), cluster=state)
