"""Nodes whose kubelet refuses Pods that the kubelets of other Nodes admit. Such a Node looks free for ever, so the
scheduler goes on to send Pods there, and each is lost (pytorch/ci-infra: 554 Pods in 106 minutes on a Ready Node)."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from gpuwatch.facts.model.cluster import Node, Pod
from gpuwatch.facts.model.decision import Advice, Evidence, Finding, FindingKind, Severity, Verdict
from gpuwatch.judge.fleet import Fleet, Tells, conclude, on_node
from gpuwatch.judge.rule import without_statistics

_TELLS = Tells(
    FindingKind.POD_ADMISSION,
    "the kubelet refuses Pods that other Nodes admit",
    "critical: inspect; warning: inspect",
)
_WINDOW = timedelta(minutes=15)
"""Of all refusals that count together. A Job tries again after 10, 20, 40 seconds: five tries take five minutes."""
_PODS = 5
"""Refused Pods. One or two are a race between scheduler and kubelet, such as a device that just became unhealthy."""
_OWNERS = 2
"""One owner may ask for what no Node can give, such as devices of one NUMA node."""
_CONFIDENCE = 0.9
"""The kubelet itself says that it refuses, and others admit the same requests."""


def pod_admission(fleet: Fleet) -> Iterable[Finding]:
    """A finding for each Node that refused enough Pods. DEGRADED only where they may be of two teams, so no Pods of one
    team can cause it. A person has to approve what follows where the teams or the one cause are not certain."""
    refused = _refused(fleet)
    many = {name: pods for name, pods in refused.items() if len(pods) >= _PODS}
    return [_finding(fleet, name, pods, sorted({*many} - {name})) for name, pods in sorted(many.items())]


def _refused(fleet: Fleet) -> Mapping[str, Sequence[Pod]]:
    """By Node, the refused Pods that count: a scheduler sent them to a Node that was Ready before they were made (after
    a boot, Pods from before it are refused), and another Node admitted at least their request in the same time."""
    since, cluster = fleet.snapshot.at - _WINDOW, fleet.snapshot.cluster
    nodes = {node.name: node for node in cluster.nodes}
    lost = [
        pod
        for pod in cluster.pods
        if pod.refused
        and pod.scheduled
        and pod.accelerators
        and pod.started is not None
        and since <= pod.started <= fleet.snapshot.at
        and pod.node in nodes
        and _settled(nodes[pod.node], pod)
    ]
    admitted = [
        pod
        for pod in (cluster.pods if lost else ())
        if pod.phase in ("Running", "Succeeded") and pod.node and pod.started is not None and pod.started >= since
    ]
    found = defaultdict(list)
    for pod in lost:
        if any(other.node != pod.node and _as_much(other, pod) for other in admitted):
            found[pod.node].append(pod)
    return found


def _settled(node: Node, pod: Pod) -> bool:
    ready = next((item.since for item in node.conditions if item.type == "Ready" and item.status == "True"), None)
    return ready is not None and pod.created is not None and ready <= pod.created


def _as_much(other: Pod, pod: Pod) -> bool:
    return all(other.accelerators.get(name, 0) >= count for name, count in pod.accelerators.items())


def _finding(fleet: Fleet, node: str, lost: Sequence[Pod], also: Sequence[str]) -> Finding:
    owners = {pod.workload or pod.ref for pod in lost}
    labels = {space.name: space.labels.get(fleet.policy.team_label, "") for space in fleet.snapshot.cluster.namespaces}
    teams = {labels.get(pod.namespace, "") for pod in lost}
    named = sorted(teams - {""})
    reasons = Counter(pod.refused for pod in lost)
    missing, approval = [], ""
    if len(owners) < _OWNERS:
        missing.append("Pods of a second owner that this Node refuses")
    elif len(named) < 2 and "" not in teams:
        missing.append("Pods of a second team that this Node refuses")
    elif len(named) < 2:
        label = f"the label {fleet.policy.team_label}" if fleet.policy.team_label else "a label (health.team_label)"
        approval = f"no two of the refused Pods' Namespaces name different teams by {label}."
    elif also:
        approval = f"Pods are refused on {', '.join(also)} too, so the cause may not be this Node."
    minutes = int(_WINDOW.total_seconds() // 60)
    return conclude(
        on_node(node),
        _TELLS,
        Verdict.UNKNOWN if missing else Verdict.DEGRADED,
        f"the kubelet refused {len(lost)} Pods of {len(owners)} owner{'' if len(owners) == 1 else 's'} within "
        f"{minutes} min that a scheduler had placed, while other Nodes admit such Pods",
        severity=Severity.WARNING if missing else Severity.CRITICAL,
        advice=Advice.INSPECT,
        confidence_ratio=0.0 if missing else _CONFIDENCE,
        since=min(pod.started for pod in lost if pod.started is not None),
        evidence=[
            Evidence(
                signal="refused Pods",
                value=float(len(lost)),
                window_seconds=int(_WINDOW.total_seconds()),
                comparison=">=",
                bound=float(_PODS),
                note=", ".join(f"{reason} × {count}" for reason, count in sorted(reasons.items())),
            ),
            Evidence(signal="teams of the refused Pods", value=", ".join(named) or "not known"),
        ],
        missing=missing,
        gpus=fleet.at_home.get(node, ()),
        node=node,
        approval=f"A person has to approve it: {approval}" if approval else "",
    )


POD_ADMISSION = without_statistics(_TELLS, pod_admission)
