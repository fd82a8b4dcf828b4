"""What an action ends is counted from the object that is written: all Pods of that owner, with or without GPUs."""

from dataclasses import replace

import msgspec
import pytest

from gpuwatch.act.execute.recheck import no_execute_refused, others_of_owner
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.cluster import DisruptionBudget, Gang, Placement, Pod, Toleration
from gpuwatch.facts.model.decision import ActionKind, Mode, Snapshot
from gpuwatch.sources.kube.placement import tolerations
from gpuwatch.sources.kube.wire import PodSpec
from plan.fleet import device, guards, idle, node, only, plan_of, pod, reason, remediation, sick, snapshot, workload

API = "Deployment/ml/api"
SET = "JobSet/ml/train"
ALL = Placement(tolerations=(Toleration(operator="Exists"),))


def beside(name: str, owner: str = API, **changes: object) -> Pod:
    return replace(pod(f"ml/{name}", "c", 0, owner), accelerators={}, **changes)  # type: ignore[arg-type]


def released(*companions: Pod, gang: str = "", owner: str = API, **cluster: object) -> tuple[set[str], str]:
    """The guards against the release of one idle Pod, and what they say of the companions."""
    gpu = pod("ml/gpu-0", "a", owner=owner, gang=gang)
    gangs = [Gang(id=gang, framework="JobSet", workload=owner, namespace="ml", pods=(gpu.ref,))] if gang else []
    nodes, devices = [node("a"), node("b")], [device("a", 0, gpu.ref)]
    state = snapshot(nodes, devices, [gpu], [workload(owner)], gangs, companions=companions, **cluster)
    item = only(plan_of(state, (idle(gpu.ref, devices),), PlanPolicy()), ActionKind.RELEASE_GANG)
    return guards(item), " ".join(refusal.reason for refusal in item.refusals)


def test_a_working_pod_without_a_gpu_is_never_released_with_an_idle_one() -> None:
    assert released()[0] == set()
    found, said = released(*(beside(f"cpu-{number}") for number in range(9)))
    assert found == {"whole_group_idle"}
    assert "9 Pods without a GPU" in said
    assert "ml/cpu-0" in said
    assert released(beside("other", owner="Deployment/ml/other"))[0] == set()


def test_a_pod_that_its_framework_counts_to_the_gang_ends_with_it() -> None:
    assert released(beside("head", SET, gang=SET), gang=SET, owner=SET)[0] == set()
    assert released(beside("head", SET), gang=SET, owner=SET)[0] == {"whole_group_idle"}


@pytest.mark.parametrize(
    ("changes", "guard"),
    [
        ({"annotations": {"gpuwatch.dev/opt-out": "true"}}, "opted_out"),
        ({"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}, "opted_out"),
        ({"annotations": {"gpuwatch.dev/snooze-until": "2027-01-01T00:00:00Z"}}, "snoozed"),
        ({"labels": {"gpuwatch.dev/objection": "no"}}, "opted_out"),
        ({"priority": 2_000_000_000}, "priority"),
        ({"labels": {"app": "head"}}, "disruption_budget"),
    ],
)
def test_pods_without_gpus_have_the_same_say(changes: dict[str, object], guard: str) -> None:
    budget = DisruptionBudget(namespace="ml", name="head", match_labels={"app": "head"}, disruptions_allowed=0)
    head = beside("head", SET, gang=SET, **changes)
    assert released(head, gang=SET, owner=SET, budgets=(budget,))[0] == {guard}


def test_a_move_of_a_whole_owner_asks_its_pods_without_gpus() -> None:
    owner = gang = SET
    gpu = pod("ml/gpu-0", "a", owner=owner, gang=gang)
    leader = beside("leader", owner, gang=gang, annotations={"gpuwatch.dev/opt-out": "true"})
    groups = [Gang(id=gang, framework="JobSet", workload=owner, namespace="ml", pods=(gpu.ref,))]
    bad = device("a", 0, gpu.ref)
    state = snapshot([node("a"), node("b")], [bad], [gpu], [workload(owner)], groups, companions=(leader,))
    item = only(plan_of(state, (sick(bad),), PlanPolicy()), ActionKind.EVICT_GANG)
    assert "Pod ml/leader opted out" in reason(item, "opted_out")


def _facts(*companions: Pod) -> PlanFacts:
    gpu = pod("ml/gpu-0", "a", owner=API)
    state: Snapshot = snapshot([node("a"), node("c")], [], [gpu], [workload(API)], companions=companions)
    return PlanFacts(snapshot=state)


def test_a_recheck_finds_pods_without_gpus_that_would_go_too() -> None:
    proposal = remediation(ActionKind.RELEASE_GANG, API, pods=("ml/gpu-0",)).proposal
    assert others_of_owner(proposal, _facts()) == ""
    assert others_of_owner(proposal, _facts(beside("cpu-0"))).startswith("Pod ml/cpu-0 has the same owner")


def test_no_execute_counts_every_pod_on_the_node_that_does_not_tolerate_it() -> None:
    taint = remediation(ActionKind.TAINT_NODE, "node/c", ["c"], detectors=("xid",))
    assert no_execute_refused(taint, _facts()) == ""
    assert no_execute_refused(taint, _facts(beside("agent", "", placement=ALL))) == ""
    assert "Pod ml/agent" in no_execute_refused(taint, _facts(beside("agent", "")))
    assert no_execute_refused(taint, _facts(replace(beside("agent", ""), node="a"))) == ""


@pytest.mark.parametrize(
    ("retries", "nodes_of_pods", "refused"),
    [(None, "cca", False), (2, "cca", False), (1, "cca", True), (1, "ca", False), (1, "cA", True)],
)
def test_no_execute_leaves_a_job_alone_that_would_have_no_retry_left(
    retries: int | None, nodes_of_pods: str, refused: bool
) -> None:
    """A Pod on the Node A ends already, and the Job has not counted it yet."""
    gang = job = "Job/ml/train"
    pods = [
        pod(f"ml/gpu-{number}", name.lower(), owner=job, gang=gang, deleting=name.isupper())
        for number, name in enumerate(nodes_of_pods)
    ]
    groups = [Gang(id=gang, framework="Job", workload=job, namespace="ml", pods=tuple(each.ref for each in pods))]
    nodes = [node(name) for name in "abcd"]
    state = snapshot(nodes, [], pods, [replace(workload(job), retries=retries)], groups)
    taint = remediation(ActionKind.TAINT_NODE, "node/c", ["c"], detectors=("xid",))
    allowed = PlanPolicy(modes=dict.fromkeys(ActionKind, Mode.ENFORCE))
    said = no_execute_refused(taint, PlanFacts(snapshot=state, policy=allowed))
    assert ("2 would be, and 1 may be" in said) is refused, said


def test_a_pod_that_tolerates_the_taint_for_a_time_ends_after_it() -> None:
    taint = remediation(ActionKind.TAINT_NODE, "node/c", ["c"], detectors=("xid",))
    for_a_time = Placement(tolerations=(*ALL.tolerations, Toleration(operator="Exists", ends=True)))
    assert no_execute_refused(taint, _facts(beside("agent", "", placement=for_a_time))) != ""
    spec = msgspec.json.decode('{"tolerations": [{"operator": "Exists", "tolerationSeconds": 0}]}', type=PodSpec)
    assert tolerations(spec) == (Toleration(operator="Exists", ends=True),)
