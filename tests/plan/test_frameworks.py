"""What a plan admits of the frameworks: tests/frameworks has what is allowed at all."""

from __future__ import annotations

import pytest

from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.frameworks.allowed import move_refusal, release_refusal
from gpuwatch.facts.model.cluster import Gang, Pod
from gpuwatch.facts.model.decision import ActionKind, Advice, Severity
from plan.fleet import device, guards, idle, node, only, plan_of, pod, reason, sick, snapshot, workload

POLICY = PlanPolicy(budget_ratio=1.0)


def gang(framework: str, owner: str = "JobSet/ml/x") -> Gang:
    return Gang(id="g", framework=framework, workload=owner, namespace="ml", pods=("ml/a",))


def test_a_gang_of_several_owners_is_nobodys_to_act_on() -> None:
    for framework in ("Volcano", "Kueue"):
        several = gang(framework, "")
        assert "several owners" in release_refusal(several, workload("Job/ml/x"))
        assert "several owners" in move_refusal(several, workload("Job/ml/x"), [pod("ml/a", "n0")], [])


def test_a_gang_of_kai_keeps_its_place_whoever_may_preempt_it() -> None:
    free = pod("ml/a", "n0", labels={"kai.scheduler/preemptibility": "preemptible"})
    assert "the next in the queue" in move_refusal(gang("KAI"), workload("JobSet/ml/x"), [free], [])


def test_a_ray_head_stays() -> None:
    owner = workload("RayCluster/ml/x")
    head, worker = (pod(f"ml/{kind}", "n0", labels={"ray.io/node-type": kind}) for kind in ("head", "worker"))
    assert "The head of a RayCluster" in move_refusal(None, owner, [head], [])
    assert not move_refusal(None, owner, [worker], [])


def test_a_statefulset_moves_one_pod_while_the_others_are_ready() -> None:
    owner = workload("StatefulSet/ml/x")
    first, second = pod("ml/x-0", "n0"), pod("ml/x-1", "n1", ready=True)
    assert not move_refusal(None, owner, [first], [first, second])
    assert "ml/x-0 is not ready" in move_refusal(None, owner, [second], [first, second])
    assert "2 are due" in move_refusal(None, owner, [first, second], [first, second])


def test_only_the_pod_on_the_sick_gpu_moves_where_pods_are_independent() -> None:
    nodes = [node(f"n{i}") for i in range(3)]
    devices = [device("n0", 0, "ml/chat-0"), device("n1", 0, "ml/chat-1"), device("n2", 0)]
    for kind, moved in (("Deployment", ("ml/chat-0",)), ("Job", ("ml/chat-0", "ml/chat-1"))):
        owner = f"{kind}/ml/chat"
        pods = [pod("ml/chat-0", "n0", owner=owner), pod("ml/chat-1", "n1", owner=owner)]
        plan = plan_of(snapshot(nodes, devices, pods), (sick(devices[0]),), POLICY)
        assert only(plan, ActionKind.EVICT_GANG).candidate.pods == moved


def test_a_busy_sibling_gang_keeps_its_owner_from_being_released() -> None:
    """Two groups of one LeaderWorkerSet: scaling it away takes both."""
    owner = "LeaderWorkerSet/ml/serve"
    devices = [device("n0", 0, "ml/a"), device("n1", 0, "ml/b")]
    pods = [pod("ml/a", "n0", owner=owner, gang="g0"), pod("ml/b", "n1", owner=owner, gang="g1")]
    gangs = [
        Gang(id=f"g{i}", framework="LeaderWorkerSet", workload=owner, namespace="ml", pods=(pods[i].ref,))
        for i in range(2)
    ]
    state = snapshot([node("n0"), node("n1")], devices, pods, gangs=gangs)
    alone = plan_of(state, (idle("ml/a", devices[:1]),), POLICY)
    assert guards(only(alone, ActionKind.RELEASE_GANG)) == {"whole_group_idle"}
    assert "ml/b" in reason(only(alone, ActionKind.RELEASE_GANG), "whole_group_idle")
    both = plan_of(state, (idle("ml/a", devices[:1]), idle("ml/b", devices[1:])), POLICY)
    assert [item.refusals for item in both.items] == [(), ()]


@pytest.mark.parametrize(
    ("note", "refused"),
    [
        ({"karpenter.sh/do-not-disrupt": "true"}, True),
        ({"karpenter.sh/do-not-disrupt": "false"}, False),
        ({"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}, True),
        ({"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}, False),
    ],
)
def test_what_other_controllers_are_asked_is_honoured(note: dict[str, str], refused: bool) -> None:
    held = device("n0", 0, "ml/chat")
    chat: Pod = pod("ml/chat", "n0", annotations=note)
    state = snapshot([node("n0"), node("n1")], [held, device("n1", 0)], [chat])
    released = only(plan_of(state, (idle("ml/chat", [held]),), POLICY), ActionKind.RELEASE_GANG)
    assert guards(released) == ({"opted_out"} if refused else set())
    # A taint touches no Pod.
    finding = sick(held, severity=Severity.WARNING, advice=Advice.RESET_WHEN_IDLE)
    taint = only(plan_of(state, (finding,), POLICY), ActionKind.TAINT_NODE)
    assert "opted_out" not in guards(taint)
