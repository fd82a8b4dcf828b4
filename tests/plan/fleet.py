"""A small fleet for the tests of the plan: sane defaults, override what matters."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from frameworks.names import api_version
from gpuwatch.act.plan.draw import draw_plan
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.cluster import Cluster, Condition, Gang, Node, OwnerStatus, Pod, Workload
from gpuwatch.facts.model.decision import (
    ActionKind,
    Advice,
    Family,
    Finding,
    FindingKind,
    Mode,
    Plan,
    PlanItem,
    Score,
    Severity,
    Snapshot,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.remediation import ObjectRef, Phase, Proposal, Remediation, Step, StepKind, Turn
from gpuwatch.facts.model.telemetry import Device, Vendor

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
GPU = "nvidia.com/gpu"
FULL = f"Unschedulable: 0/9 nodes are available: 9 Insufficient {GPU}."
"""What kube-scheduler says of a Pod for which no Node has GPUs."""


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
        pods=(holder,) if holder else (),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def pod(ref: str, on: str, gpus: int = 1, owner: str = "", **changes: object) -> Pod:
    """on: '' for one that waits for GPUs, as its scheduler says."""
    namespace, name = ref.split("/")
    base = Pod(
        namespace=namespace,
        name=name,
        node=on,
        phase="Running",
        started=NOW - timedelta(hours=10),
        accelerators={GPU: gpus},
        workload=owner or f"Deployment/{namespace}/{name}",
        unscheduled="" if on else FULL,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def workload(name: str, status: OwnerStatus = OwnerStatus.FOUND, **changes: object) -> Workload:
    kind, namespace, short = name.split("/")
    base = Workload(
        id=name,
        kind=kind.split(".")[0],
        api_version=api_version(kind),
        namespace=namespace,
        name=short,
        status=status,
        loses="",
        unreleasable="",
    )
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
        since=NOW - timedelta(hours=2),  # what begins within an hour may be a storm
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
        summary="idle for good",
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
        **{"known": True, "unread": (), **cluster},  # type: ignore[arg-type]
    )
    return Snapshot(at=NOW, devices=tuple(devices), cluster=state)


def remediation(
    action: ActionKind,
    target: str,
    nodes: Iterable[str] = (),
    *,
    phase: Phase = Phase.ACTING,
    begun_minutes_ago: float | None = 10,
    **proposal: object,
) -> Remediation:
    """One that began some minutes ago; None for one that did not begin."""
    at = NOW - timedelta(minutes=begun_minutes_ago or 0)
    base = Proposal(
        action=action,
        target=target,
        reason="because",
        findings=(),
        detectors=(),
        devices=(),
        pods=(),
        pod_uids=(),
        nodes=tuple(nodes),
        objects=(),
        score=Score(gained_gpu_hours=1, disrupted_gpu_hours=0, pool_gpu_hours=1, confidence_ratio=1, horizon_hours=24),
        mode=Mode.ENFORCE,
        created_at=at,
        expires_at=NOW + timedelta(days=1),
        pool="train",
    )
    name = target.rpartition("/")[2]
    made = replace(base, **proposal)  # type: ignore[arg-type]
    began = Remediation(name=f"r-{name}", proposal=made, phase=phase)
    if begun_minutes_ago is None:
        return began
    kind = StepKind.TAINT if action is ActionKind.TAINT_NODE else StepKind.RELEASE
    step = Step(kind=kind, target=ObjectRef("v1", "Any", name), begun_at=at, done_at=at)
    return replace(began, steps=(step,), step=1, history=(Turn(at, Phase.ACTING, "began"),))


def plan_of(
    state: Snapshot,
    findings: tuple[Finding, ...] = (),
    policy: PlanPolicy = PlanPolicy(),  # noqa: B008 - frozen
    history: Iterable[Remediation] = (),
    **known: Any,
) -> Plan:
    """known: other fields of PlanFacts."""
    return draw_plan(PlanFacts(snapshot=state, findings=findings, policy=policy, history=tuple(history), **known))


def only(plan: Plan, action: ActionKind) -> PlanItem:
    (item,) = [item for item in plan.items if item.candidate.action is action]
    return item


def guards(item: PlanItem) -> set[str]:
    return {refusal.guard for refusal in item.refusals}


def reason(item: PlanItem, guard: str) -> str:
    """The first of this guard's; a budget may have one for each scope."""
    return next(refusal.reason for refusal in item.refusals if refusal.guard == guard)
