"""Gangs over more domains than they need."""

from detect.builders import AT
from gpuwatch.facts.model.cluster import Cluster, Node, Pod
from gpuwatch.facts.model.decision import Advice, Finding, Severity, Snapshot, Verdict
from gpuwatch.judge.misfit.assess import MisfitPolicy, assess_misfit

CLIQUE, LEAF = "nvidia.com/gpu.clique", "network.topology.nvidia.com/leaf"
GPU = "nvidia.com/gpu"


def node(name: str, **labels: str) -> Node:
    return Node(name=name, labels={CLIQUE: labels["clique"]} if "clique" in labels else {}, allocatable={GPU: 8})


def pod(name: str, on: str, *, gang: str = "g", phase: str = "Running") -> Pod:
    return Pod(namespace="ml", name=name, node=on, phase=phase, accelerators={GPU: 8}, gang=gang)


def found(nodes: list[Node], pods: list[Pod], *, everything: bool = False) -> list[Finding]:
    state = Snapshot(at=AT, cluster=Cluster(nodes=tuple(nodes), pods=tuple(pods), known=True))
    return list(assess_misfit(state, MisfitPolicy(), (CLIQUE, LEAF), everything=everything))


NODES = [node("n1", clique="a"), node("n2", clique="a"), node("n3", clique="b"), node("n4", clique="b")]


def test_a_gang_over_two_domains_that_one_could_hold_is_scattered() -> None:
    (item,) = found(NODES, [pod("0", "n1"), pod("1", "n3")])
    assert (item.verdict, item.severity, item.advice) == (Verdict.MISFIT, Severity.INFO, Advice.REBALANCE)
    assert (item.confidence_ratio, item.pods) == (1.0, ("ml/0", "ml/1"))
    assert item.evidence[0].value == 2
    assert item.evidence[0].note == "1 Pods in a, 1 Pods in b"
    assert not item.relief_gpus


def test_a_gang_in_one_domain_or_larger_than_one_is_not() -> None:
    assert not found(NODES, [pod("0", "n1"), pod("1", "n2")])
    assert not found(NODES, [pod("0", "n1"), pod("1", "n2"), pod("2", "n3")])
    wide = [*NODES, node("n5", clique="c")]
    assert found(wide, [pod("0", "n1"), pod("1", "n3"), pod("2", "n5")])


def test_without_labels_on_all_of_its_nodes_nothing_is_said() -> None:
    bare = [node("n1", clique="a"), node("n2")]
    assert not found(bare, [pod("0", "n1"), pod("1", "n2")])
    (item,) = found(bare, [pod("0", "n1"), pod("1", "n2")], everything=True)
    assert item.verdict is Verdict.UNKNOWN
    (item,) = found(NODES, [pod("0", "n1"), pod("1", "n2")], everything=True)
    assert item.verdict is Verdict.HEALTHY


def test_pods_that_ended_wait_or_are_alone_do_not_scatter_a_gang() -> None:
    assert not found(NODES, [pod("0", "n1"), pod("1", "n3", phase="Succeeded")])
    assert not found(NODES, [pod("0", "n1"), pod("1", "", phase="Pending")])
    assert not found(NODES, [pod("0", "n1", gang=""), pod("1", "n3", gang="")])
