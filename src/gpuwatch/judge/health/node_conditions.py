"""Conditions by which other detectors call a Node or its GPUs broken: shown with the source, never acted on alone."""

from collections.abc import Iterable

from gpuwatch.facts.catalog.detectors import NodeCondition, node_conditions
from gpuwatch.facts.model.cluster import Condition, Node
from gpuwatch.facts.model.decision import Advice, Evidence, Finding, FindingKind, Severity, Verdict
from gpuwatch.judge.fleet import SUSPECTED, Fleet, Tells, conclude, on_node
from gpuwatch.judge.rule import Judged, Nothing, Rule

_TELLS = Tells(
    FindingKind.NODE_CONDITION,
    "another detector says by a condition that the Node or its GPUs are broken",
    "warning: inspect",
)


def broken_conditions(fleet: Fleet) -> Iterable[Finding]:
    """One finding per Node with GPUs that has such a condition.

    Most conditions name no GPU, some stay after the repair (eks-node-monitoring-agent #266), and they may rest on the
    same signals as gpuwatch's findings. So they are no second sign for an XID, and are not enough to act on.
    """
    known = node_conditions()
    for node in fleet.snapshot.cluster.nodes:
        if not node.accelerators and not fleet.at_home.get(node.name):
            continue
        broken = [
            (item, known[item.type])
            for item in node.conditions
            if item.type in known and item.status == known[item.type].bad_status
        ]
        if broken:
            yield _finding(fleet, node, broken)


def _finding(fleet: Fleet, node: Node, broken: list[tuple[Condition, NodeCondition]]) -> Finding:
    return conclude(
        on_node(node.name),
        _TELLS,
        Verdict.DEGRADED,
        "; ".join(f"{row.detector} says: {row.words} ({row.type}={row.bad_status})" for _, row in broken),
        severity=Severity.WARNING,
        advice=Advice.INSPECT,
        confidence_ratio=SUSPECTED,
        since=min((item.since for item, _ in broken if item.since is not None), default=None),
        evidence=[
            Evidence(signal="node_condition", value=f"{item.type}={item.status}", at=item.since, note=row.detector)
            for item, row in broken
        ],
        missing=["a sign that gpuwatch sees itself"],
        gpus=fleet.at_home.get(node.name, ()),
        node=node.name,
    )


NODE_CONDITION = Rule(
    tells=(_TELLS,),
    needs=Nothing,
    judge=lambda fleet, _: Judged(shared=tuple(broken_conditions(fleet))),
    assesses=False,
)
