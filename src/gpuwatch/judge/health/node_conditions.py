"""Conditions and labels by which other detectors call a Node or its GPUs broken: shown, never acted on alone."""

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from gpuwatch.facts.catalog.detectors import node_conditions, node_labels
from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.decision import Advice, Evidence, Finding, FindingKind, Severity, Verdict
from gpuwatch.judge.fleet import SUSPECTED, Fleet, Tells, conclude, on_node
from gpuwatch.judge.rule import Judged, Nothing, Rule

_TELLS = Tells(
    FindingKind.NODE_CONDITION,
    "another detector says by a condition or label that the Node or a GPU is broken",
    "warning: inspect",
)


class _Said(NamedTuple):
    detector: str
    words: str
    by: str  # the condition or label, with its value
    since: datetime | None = None


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
            _Said(row.detector, row.words, f"{item.type}={item.status}", item.since)
            for item in node.conditions
            if (row := conditions.get(item.type)) is not None and item.status == row.bad_status
        ]
        marked = (labels[item] for item in node.labels.items() if item in labels)
        said += [_Said(row.detector, row.words, f"{row.key}={row.value}") for row in marked]
        if said:
            yield _finding(fleet, node, said)


def _finding(fleet: Fleet, node: Node, said: list[_Said]) -> Finding:
    return conclude(
        on_node(node.name),
        _TELLS,
        Verdict.DEGRADED,
        "; ".join(f"{each.detector} says: {each.words} ({each.by})" for each in said),
        severity=Severity.WARNING,
        advice=Advice.INSPECT,
        confidence_ratio=SUSPECTED,
        since=min((each.since for each in said if each.since is not None), default=None),
        evidence=[Evidence(signal="node_condition", value=each.by, at=each.since, note=each.detector) for each in said],
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
