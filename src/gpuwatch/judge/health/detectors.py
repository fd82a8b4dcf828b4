"""What other detectors say, shown and never acted on alone: conditions and labels by which they call a Node broken, and
devices that Kubernetes itself calls unhealthy, by the Pods that hold them and by the claims that they belong to."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from gpuwatch.facts.catalog.detectors import NodeCondition, NodeLabel, node_conditions, node_labels
from gpuwatch.facts.model.decision import Advice, Evidence, Finding, FindingKind, Severity
from gpuwatch.judge.fleet import SUSPECTED, Fleet, Grade, PhysicalGpu, Tells, on_node
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
_GRADE = Grade(Severity.WARNING, Advice.INSPECT, SUSPECTED)
_MISSING = ("a sign that gpuwatch sees itself",)


def _said(row: NodeCondition | NodeLabel, by: str, since: datetime | None = None) -> tuple[str, Evidence]:
    """by: the condition or label, with its value."""
    fact = Evidence(signal="node_condition", value=by, at=since, note=row.detector)
    return f"{row.detector} says: {row.words} ({by})", fact


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


NODE_CONDITION = without_statistics(_CONDITION, broken_conditions)
DEVICE_HEALTH = without_statistics(_DEVICE, unhealthy_devices)
