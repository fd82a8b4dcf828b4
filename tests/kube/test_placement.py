"""Where the scheduler may put a Pod, and what Pods without accelerators take of a Node, as the API's JSON says it."""

from typing import Any

import pytest

from gpuwatch.facts.model.cluster import NodeTerm, Placement, PodTerm, Requirement, Spread, Toleration
from gpuwatch.sources.kube.nodes import take_node
from gpuwatch.sources.kube.pods import OtherPod, take_pod, with_others
from kube.cluster_json import container, node, pod, raw

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def placed(**spec: Any) -> Placement:
    found = take_pod(raw(pod(meta={"labels": {"app": "x", "hash": "7"}}, **spec)))
    assert found is not None
    assert found.held is not None
    return found.held.pod.placement


def test_a_pod_that_may_run_anywhere() -> None:
    assert placed() == Placement()
    assert placed(affinity={}, tolerations=[], nodeSelector={}, schedulingGates=[]) == Placement()


def test_tolerations_and_the_node_selector() -> None:
    found = placed(
        nodeSelector={"gpu": "h100"},
        tolerations=[
            {"operator": "Exists"},
            {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule", "tolerationSeconds": 5},
        ],
    )
    assert found.node_selector == {"gpu": "h100"}
    assert found.tolerations == (
        Toleration("", "Exists"),
        Toleration("nvidia.com/gpu", "Equal", "present", "NoSchedule", ends=True),  # after its five seconds
    )


def test_only_what_is_required_of_the_node_is_kept() -> None:
    terms = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
    ]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}, PREFERRED: [{"weight": 1, "preference": {}}]}}
    assert placed(affinity=affinity).node_terms == (
        NodeTerm((Requirement("zone", "In", ("a", "b")),)),
        NodeTerm((), (Requirement("metadata.name", "In", ("n1",)),)),
    )
    only_preferred = {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": terms[0]}]}}
    assert placed(affinity=only_preferred) == Placement()


@pytest.mark.parametrize(
    ("given", "namespaces", "any_namespace"),
    [
        ({}, ("ml",), False),
        ({"namespaces": ["a", "b"]}, ("a", "b"), False),
        ({"namespaceSelector": {}}, (), True),
        ({"namespaces": ["a"], "namespaceSelector": {"matchLabels": {"x": "y"}}}, ("a",), True),
    ],
)
def test_other_pods_are_meant_in_the_own_namespace_unless_told_otherwise(
    given: dict[str, Any], namespaces: tuple[str, ...], any_namespace: bool
) -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}, **given}
    expected = PodTerm(
        topology_key="kubernetes.io/hostname",
        match_labels={"app": "x"},
        namespaces=namespaces,
        any_namespace=any_namespace,
    )
    assert placed(affinity={"podAntiAffinity": {REQUIRED: [term]}}).pod_anti_affinity == (expected,)
    assert placed(affinity={"podAffinity": {REQUIRED: [term]}}).pod_affinity == (expected,)


def test_a_missing_selector_selects_no_pod() -> None:
    (term,) = placed(affinity={"podAntiAffinity": {REQUIRED: [{"topologyKey": "zone"}]}}).pod_anti_affinity
    assert term.selects_none


def test_spread_that_must_be_kept_with_its_label_keys() -> None:
    hard = {
        "topologyKey": "zone",
        "maxSkew": 2,
        "minDomains": 3,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
        "matchLabelKeys": ["hash", "absent"],
    }
    soft = {**hard, "whenUnsatisfiable": "ScheduleAnyway"}
    assert placed(topologySpreadConstraints=[hard, soft]).spread == (
        Spread(
            topology_key="zone",
            max_skew=2,
            min_domains=3,
            match_expressions=(Requirement("app", "Exists"), Requirement("hash", "In", ("7",))),
        ),
    )


def test_a_gated_pod_says_so() -> None:
    assert placed(schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]).gated


def other(**more: Any) -> OtherPod | None:
    asked = container("a", requests={"cpu": "500m"}, limits={"cpu": "2", "memory": "1Gi"})
    found = take_pod(raw(pod(**{"containers": [asked, container("b", requests={"memory": "1G"})], **more})))
    return found.other if found is not None else None


def test_what_a_pod_without_accelerators_takes_of_its_node() -> None:
    def takes(**more: Any) -> tuple[str, float, int]:
        found = other(**more)
        assert found is not None
        return found.node, found.cpu_cores, found.memory_bytes

    assert takes() == ("gpu-0", 0.5, 2**30 + 10**9)
    assert takes(initContainers=[container("init", requests={"cpu": "3"})]) == ("gpu-0", 3.0, 2**30 + 10**9)
    assert takes(overhead={"cpu": "250m"}) == ("gpu-0", 0.75, 2**30 + 10**9)
    assert takes(nodeName=None)[0] == ""


def test_nodes_carry_the_sum_of_the_others() -> None:
    nodes = [
        take_node(raw(node("gpu-0", capacity={"nvidia.com/gpu": "8", "cpu": "64", "pods": "110"}))).node,
        take_node(raw(node("cpu-0", capacity={"cpu": "64"}))).node,
    ]
    gpu, cpu = with_others(nodes, [OtherPod("gpu-0", 1.5, 10), OtherPod("gpu-0", 0.5, 5), OtherPod("cpu-0", 9.0, 9)])
    assert (gpu.other_cpu_cores, gpu.other_memory_bytes, gpu.other_pods, gpu.max_pods) == (2.0, 15, 2, 110)
    assert (cpu.other_pods, cpu.max_pods) == (0, None)
