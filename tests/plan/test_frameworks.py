"""Every row of the table of frameworks: what may be released, what may be moved, and what is reported only."""

from __future__ import annotations

import pytest

from gpuwatch.kube import kinds
from gpuwatch.kube.gangs import GROUP_ROWS, OWNER_ROWS
from gpuwatch.model.cluster import Gang, Pod
from gpuwatch.model.decision import ActionKind, Advice, Severity
from gpuwatch.plan.draw import draw_plan
from gpuwatch.plan.frameworks import GANGS, OWNERS, move_refusal, release_refusal
from gpuwatch.plan.policy import PlanPolicy
from plan.fleet import device, guards, idle, node, only, pod, reason, sick, snapshot, workload

POLICY = PlanPolicy(budget_ratio=1.0)

# Framework → (may be released, may be moved), as the reference table has it; stricter where it says 'only with …'.
BY_GANG = {
    "Kueue": (True, True),
    "Kueue pod group": (False, False),
    "JobSet": (True, True),
    "LeaderWorkerSet": (True, True),
    "Kubeflow Training": (True, True),
    "MPIJob": (True, True),
    "Kubeflow Trainer": (True, True),
    "RayJob": (True, True),
    "RayCluster": (True, True),
    "RayService": (False, False),
    "Volcano": (True, True),
    "Coscheduling": (True, False),
    "KAI": (True, False),  # without the label of preemptible Pods
    "Grove": (True, True),
    "Kubernetes gang": (True, True),
    "Spark": (False, False),
    "Argo Workflow": (False, False),
    "Tekton": (False, False),
    "AppWrapper": (True, False),
    "Job": (True, True),
    "StatefulSet": (True, True),
    "Something new": (False, False),
}
BY_OWNER = {
    "Deployment": (True, True),
    "StatefulSet": (True, True),
    "Job": (True, True),
    "JobSet": (True, True),
    "RayCluster": (True, True),
    "InferenceService": (True, True),
    "Service": (True, True),
    "Notebook": (True, False),
    "Workspace": (True, False),
    "DevWorkspace": (True, False),
    "CronJob": (False, False),
    "RayService": (False, False),
    "SparkApplication": (False, False),
    "Workflow": (False, False),
    "PipelineRun": (False, False),
    "SeldonDeployment": (False, False),
}


def gang(framework: str, owner: str = "JobSet/ml/x") -> Gang:
    return Gang(id="g", framework=framework, workload=owner, namespace="ml", pods=("ml/a",))


@pytest.mark.parametrize("framework", BY_GANG)
def test_gangs(framework: str) -> None:
    owner = workload("JobSet/ml/x")
    found = (
        not release_refusal(gang(framework), owner),
        not move_refusal(gang(framework), owner, [pod("ml/a", "n0")], []),
    )
    assert found == BY_GANG[framework]


@pytest.mark.parametrize("kind", BY_OWNER)
def test_owners_without_a_gang(kind: str) -> None:
    owner = workload(f"{kind}/ml/x")
    found = (not release_refusal(None, owner), not move_refusal(None, owner, [pod("ml/a", "n0")], []))
    assert found == BY_OWNER[kind]


def test_no_framework_and_no_kind_that_kube_recognises_is_forgotten() -> None:
    recognised = {row.framework for row in (*OWNER_ROWS, *GROUP_ROWS)}
    assert recognised <= set(GANGS)
    # On the way up only: a ReplicaSet's Deployment acts, a Pod is bare, a revision is its Service's.
    inner = {"Pod", "PodClique", "PodCliqueScalingGroup", "Configuration", "Revision"}
    assert {kind for _, kind in kinds.OWNERS} - inner <= set(OWNERS)


def test_a_gang_of_several_owners_is_nobodys_to_act_on_but_kueues() -> None:
    for framework, allowed in (("Volcano", False), ("Kueue", True)):
        several = gang(framework, "")
        assert (not release_refusal(several, workload("Job/ml/x"))) is allowed
        assert (not move_refusal(several, workload("Job/ml/x"), [pod("ml/a", "n0")], [])) is allowed


def test_kai_moves_preemptible_pods_only() -> None:
    free = pod("ml/a", "n0", labels={"kai.scheduler/preemptibility": "preemptible"})
    assert not move_refusal(gang("KAI"), workload("JobSet/ml/x"), [free], [])
    assert move_refusal(gang("KAI"), workload("JobSet/ml/x"), [free, pod("ml/b", "n0")], [])


def test_a_ray_head_stays() -> None:
    owner = workload("RayCluster/ml/x")
    head, worker = (pod(f"ml/{kind}", "n0", labels={"ray.io/node-type": kind}) for kind in ("head", "worker"))
    assert "is the head" in move_refusal(None, owner, [head], [])
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
        plan = draw_plan(snapshot(nodes, devices, pods), (sick(devices[0]),), POLICY)
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
    alone = draw_plan(state, (idle("ml/a", devices[:1]),), POLICY)
    assert guards(only(alone, ActionKind.RELEASE_GANG)) == {"whole_group_idle"}
    assert "ml/b" in reason(only(alone, ActionKind.RELEASE_GANG), "whole_group_idle")
    both = draw_plan(state, (idle("ml/a", devices[:1]), idle("ml/b", devices[1:])), POLICY)
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
    released = only(draw_plan(state, (idle("ml/chat", [held]),), POLICY), ActionKind.RELEASE_GANG)
    assert guards(released) == ({"opted_out"} if refused else set())
    # A taint touches no Pod.
    finding = sick(held, severity=Severity.WARNING, advice=Advice.RESET_WHEN_IDLE)
    taint = only(draw_plan(state, (finding,), POLICY), ActionKind.TAINT_NODE)
    assert "opted_out" not in guards(taint)
