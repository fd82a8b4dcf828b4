"""What the cluster's objects say, shown and never acted on alone: conditions and labels by which other detectors call a
Node broken, devices that Kubernetes itself calls unhealthy, by the Pods that hold them and by the claims that they
belong to, and Nodes that two operators reconcile at once, so that each undoes what the other one does."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from gpuwatch.facts.catalog.detectors import NodeCondition, NodeLabel, node_conditions, node_labels
from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.decision import Advice, Evidence, Finding, FindingKind, Severity, Verdict
from gpuwatch.judge.fleet import SUSPECTED, Fleet, Grade, PhysicalGpu, Tells, conclude, on_node
from gpuwatch.judge.reclaim import remediators
from gpuwatch.judge.rule import without_statistics

_CONDITION = Tells(
    FindingKind.NODE_CONDITION,
    "another detector says by a condition or label that the Node or a GPU is broken",
    "warning: inspect",
)
_DEVICE = Tells(
    FindingKind.DEVICE_HEALTH,
    "the device plugin or the DRA driver calls a device that is in use unhealthy",
    "warning: inspect",
)
_CONFLICT = Tells(FindingKind.OPERATOR_CONFLICT, "two operators reconcile one Node or its GPUs", "warning: inspect")
_MIG_MANAGER = "nvidia.com/mig.config.state"
"""Label of NVIDIA's MIG manager (gpu-operator), on each Node that it looks after."""
HAMI = "hami.io/node-nvidia-register"
"""Annotation of HAMi's device plugin, which can set up MIG devices as well: the two must not reconcile the same GPU
(Project-HAMi/website, pull request 794)."""
_DRA_DRIVER = "gpu.nvidia.com"
_GRADE = Grade(Severity.WARNING, Advice.INSPECT, SUSPECTED)
_MISSING = ("a sign that gpuwatch sees itself",)


def _said(row: NodeCondition | NodeLabel, by: str, since: datetime | None = None) -> tuple[str, Evidence]:
    """by: the condition or label, with its value."""
    fact = Evidence(signal="node_condition", value=by, at=since, note=row.detector)
    return f"{row.detector} says: {row.words} ({by})", fact


def calls_well(fleet: Fleet, name: str | None) -> list[str]:
    """Conditions of the Node by which other detectors say that all is well, as `type=status`."""
    node, known = fleet.nodes.get(name or ""), node_conditions()
    return [
        f"{item.type}={item.status}"
        for item in (node.conditions if node is not None else ())
        if item.type in known and item.status in {"True", "False"} - {known[item.type].bad_status}
    ]


def broken_conditions(fleet: Fleet) -> Iterable[Finding]:
    """One finding per Node with GPUs that has such a condition or label.

    Most conditions name no GPU, some stay after the repair (eks-node-monitoring-agent #266), and they may rest on the
    same signals as gpuwatch's findings. So they are no second sign for an XID, and are not enough to act on.
    """
    conditions, labels = node_conditions(), node_labels()
    for node in fleet.snapshot.cluster.nodes:
        if not node.accelerators and not fleet.at_home.get(node.name):
            continue
        said = [
            _said(row, f"{item.type}={item.status}", item.since)
            for item in node.conditions
            if (row := conditions.get(item.type)) is not None and item.status == row.bad_status
        ]
        marked = (labels[item] for item in node.labels.items() if item in labels)
        said += [_said(row, f"{row.key}={row.value}") for row in marked]
        if said:
            yield fleet.degraded(
                on_node(node.name),
                _CONDITION,
                "; ".join(words for words, _ in said),
                _GRADE,
                [fact for _, fact in said],
                since=min((fact.at for _, fact in said if fact.at is not None), default=None),
                missing=_MISSING,
                gpus=fleet.at_home.get(node.name, ()),
                node=node.name,
            )


def unhealthy_devices(fleet: Fleet) -> Iterable[Finding]:
    """One finding for each GPU, and for each Node with devices that telemetry does not show. Healthy proves nothing: a
    kubelet repeats it when the plugin has gone. The cause is the driver's, often the XID that another rule sees, so it
    is no second sign."""
    cluster = fleet.snapshot.cluster
    names = {f"{claim.driver}/{claim.pool}/{claim.name}": claim.device for claim in cluster.claims}
    said = [
        (pod.node, names.get(item.id) or item.id.partition("::")[0], "allocatedResourcesStatus", item.health, pod.ref)
        for pod in cluster.pods
        for item in pod.devices
        if item.health == "Unhealthy"
    ]
    said += [
        (claim.pool, claim.device or claim.name, "status.devices", claim.unhealthy, f"ResourceClaim {claim.claim}")
        for claim in cluster.claims
        if claim.unhealthy
    ]
    facts: dict[tuple[str, PhysicalGpu | None], list[Evidence]] = defaultdict(list)
    for node, device, field, value, where in said:
        gpu = next((each for each in fleet.at_home.get(node, ()) if each.uuid == device), None)
        facts[node, gpu].append(Evidence(signal=field, value=value, note=f"{device} of {where}"))
    for (node, gpu), evidence in facts.items():
        words = f"Kubernetes says that {'it' if gpu else 'a device that telemetry does not show'} is unhealthy"
        yield fleet.degraded(gpu or on_node(node), _DEVICE, words, _GRADE, evidence, missing=_MISSING, node=node)


def operator_conflicts(fleet: Fleet) -> Iterable[Finding]:
    """UNKNOWN, so never acted on: whether they disturb each other depends on their settings."""
    claimed = {claim.pool for claim in fleet.snapshot.cluster.claims if claim.driver == _DRA_DRIVER}
    for node in fleet.snapshot.cluster.nodes:
        if facts := [*_conflicts(node, claimed)]:
            yield conclude(
                on_node(node.name),
                _CONFLICT,
                Verdict.UNKNOWN,
                "two operators reconcile it: " + "; ".join(who for who, _ in facts),
                severity=Severity.WARNING,
                advice=Advice.INSPECT,
                evidence=[Evidence(signal="operators", value=who, note=marks) for who, marks in facts],
                missing=["their settings, which may keep them apart"],
                gpus=fleet.at_home.get(node.name, ()),
                node=node.name,
            )


def _conflicts(node: Node, claimed: set[str]) -> Iterable[tuple[str, str]]:
    """What the two do, and the marks by which they are known."""
    repair = remediators(node)
    if len(repair) > 1:
        yield f"{' and '.join(who for who, _ in repair)} repair it", ", ".join(mark for _, mark in repair)
    if _MIG_MANAGER in node.labels and HAMI in node.annotations:
        yield "MIG manager and HAMi can set up its MIG devices", f"label {_MIG_MANAGER}, annotation {HAMI}"
    if node.name in claimed and node.accelerators.get("nvidia.com/gpu"):
        both = "the device plugin and the DRA driver give out its GPUs"
        yield both, f"capacity nvidia.com/gpu, ResourceClaims of {_DRA_DRIVER}"


NODE_CONDITION = without_statistics(_CONDITION, broken_conditions)
DEVICE_HEALTH = without_statistics(_DEVICE, unhealthy_devices)
OPERATOR_CONFLICT = without_statistics(_CONFLICT, operator_conflicts)
