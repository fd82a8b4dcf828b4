"""What other detectors say of a Node, and Nodes that others repair."""

from __future__ import annotations

import pytest

from detect.builders import AT, ago, cluster, findings, machines, scene
from gpuwatch.facts.catalog.detectors import node_conditions
from gpuwatch.facts.model.cluster import Condition, Node, Taint
from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, SubjectKind, Verdict
from gpuwatch.facts.model.telemetry import Device
from gpuwatch.judge.reclaim import remediated

SINCE = ago(hours=2)


def told(*conditions: Condition, devices: tuple[Device, ...] = machines(1), gpus: int = 8) -> list[Finding]:
    node = Node(name="node-0", conditions=conditions, accelerators={"nvidia.com/gpu": gpus} if gpus else {})
    found = findings(scene(devices, state=cluster(nodes=[node]))).values()
    return [item for item in found if item.kind is FindingKind.NODE_CONDITION]


@pytest.mark.parametrize("kind", node_conditions())
def test_a_condition_is_shown_with_its_detector_and_is_not_enough_to_act(kind: str) -> None:
    row = node_conditions()[kind]
    (found,) = told(Condition(kind, row.bad_status, since=SINCE))
    assert (found.subject.kind, found.subject.name) == (SubjectKind.NODE, "node-0")
    assert (found.verdict, found.advice, found.since) == (Verdict.DEGRADED, Advice.INSPECT, SINCE)
    assert found.confidence_ratio < 0.8
    assert f"{row.detector} says: {row.words} ({kind}={row.bad_status})" in found.summary
    assert len(found.devices) == 8
    good = "False" if row.bad_status == "True" else "True"
    for status in (good, "Unknown"):
        assert told(Condition(kind, status)) == []


def test_other_conditions_and_nodes_without_gpus_are_left_alone() -> None:
    assert told(Condition("DiskPressure", "True"), Condition("Ready", "False")) == []
    assert told(Condition("KernelDeadlock", "True"), devices=(), gpus=0) == []


def test_two_conditions_of_a_node_are_one_finding_since_the_first() -> None:
    conditions = (Condition("GpuMemWatch", "True", since=AT), Condition("XIDErrors", "True", since=SINCE))
    (found,) = told(*conditions)
    assert found.since == SINCE
    assert len(found.evidence) == 2


def test_a_node_that_another_remediator_repairs_is_told() -> None:
    label = Node(name="n", labels={"dgxc.nvidia.com/nvsentinel-state": "draining"})
    assert remediated(label) == "NVSentinel is at work on n (label dgxc.nvidia.com/nvsentinel-state=draining)"
    taint = Node(name="n", taints=(Taint(key="medik8s.io/remediation", value="", effect="NoExecute"),))
    assert remediated(taint) == "medik8s is at work on n (taint medik8s.io/remediation)"
    assert remediated(Node(name="n", labels={"a": "b"})) == ""
