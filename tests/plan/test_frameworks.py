"""What a plan admits of the frameworks: tests/frameworks has what is allowed at all."""

from gpuwatch.facts.frameworks.allowed import move_refusal, release_refusal
from gpuwatch.facts.model.cluster import Gang
from plan.fleet import pod, workload


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
