"""What other detectors say of a Node with GPUs, by its conditions: shown with its source, and never acted on alone."""

from collections.abc import Iterable

from gpuwatch.catalog.node_conditions import NodeCondition, node_conditions
from gpuwatch.detect.fleet import SUSPECTED, Fleet, conclude
from gpuwatch.model.cluster import Condition, Node
from gpuwatch.model.decision import Advice, Evidence, Finding, FindingKind, Severity, Subject, SubjectKind, Verdict


def said_by_others(fleet: Fleet) -> Iterable[Finding]:
    """One finding per Node with GPUs that has such a condition.

    Most of them name no GPU, some stay after the repair (eks-node-monitoring-agent #266), and gpuwatch may have seen
    the same itself. So they are no second sign for an XID, and are not enough to act on.
    """
    known = node_conditions()
    for node in fleet.snapshot.cluster.nodes:
        if not node.accelerators and not fleet.at_home.get(node.name):
            continue
        told = [
            (item, known[item.type])
            for item in node.conditions
            if item.type in known and item.status == known[item.type].bad_status
        ]
        if told:
            yield _finding(fleet, node, told)


def _finding(fleet: Fleet, node: Node, told: list[tuple[Condition, NodeCondition]]) -> Finding:
    return conclude(
        Subject(SubjectKind.NODE, node.name),
        FindingKind.NODE_CONDITION,
        Verdict.DEGRADED,
        "; ".join(f"{row.detector} says: {row.words} ({row.type}={row.bad_status})" for _, row in told),
        severity=Severity.WARNING,
        advice=Advice.INSPECT,
        confidence_ratio=SUSPECTED,
        since=min((item.since for item, _ in told if item.since is not None), default=None),
        evidence=[
            Evidence(signal="node_condition", value=f"{item.type}={item.status}", at=item.since, note=row.detector)
            for item, row in told
        ],
        missing=["a sign that gpuwatch sees itself"],
        gpus=fleet.at_home.get(node.name, ()),
        node=node.name,
    )
