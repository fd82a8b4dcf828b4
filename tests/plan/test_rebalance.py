"""Workloads that contend on a shared GPU: one of them goes, where it has a GPU to itself, for what that gives back. And
gangs that are scattered over domains."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.cluster import DisruptionBudget, Gang, Node, Sharing
from gpuwatch.facts.model.decision import (
    ActionKind,
    Advice,
    Family,
    Finding,
    FindingKind,
    Plan,
    PlanItem,
    Severity,
    Snapshot,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.remediation import Phase
from gpuwatch.judge.misfit.assess import MisfitPolicy, assess_misfit
from plan.fleet import GPU, NOW, device, guards, idle, node, only, plan_of, pod, reason, remediation, sick, snapshot

EVICT = ActionKind.EVICT_GANG
POLICY = PlanPolicy(budget_ratio=1.0)
A, B = "Deployment/ml/a", "Deployment/ml/b"
SHARED = {"sharing": Sharing.TIME_SLICING, "replicas": 4}


def contention(**changes: object) -> Finding:
    base = Finding(
        rule="misfit.hbm_contention",
        family=Family.MISFIT,
        kind=FindingKind.HBM_CONTENTION,
        subject=Subject(SubjectKind.DEVICE, "GPU-s0-0"),
        verdict=Verdict.MISFIT,
        summary="2 workloads share it",
        severity=Severity.WARNING,
        advice=Advice.REBALANCE,
        confidence_ratio=0.85,
        devices=("GPU-s0-0",),
        pods=("ml/a", "ml/b"),
        node="s0",
        relief_gpus={A: 0.4, B: 0.4},
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def crowded(*others: Node, hours: Mapping[str, float] | None = None, busy: tuple[str, ...] = ()) -> Snapshot:
    """One GPU of `s0` in four slices, of which `a` and `b` have one each. hours: for how long; busy: `node/index` of
    GPUs elsewhere that somebody holds."""
    ages = hours or {"a": 2.0, "b": 3.0}
    nodes = [node("s0", 4, **SHARED), *others]
    pods = [pod(f"ml/{name}", "s0", started=NOW - timedelta(hours=age)) for name, age in ages.items()]
    pods += [pod(f"ml/x-{where.replace('/', '-')}", where.partition("/")[0]) for where in busy]
    held = {where: f"ml/x-{where.replace('/', '-')}" for where in busy}
    devices = [device("s0", 0, pods=tuple(f"ml/{name}" for name in ages), shared=True)]
    devices += [
        device(other.name, index, held.get(f"{other.name}/{index}", ""))
        for other in others
        for index in range(other.accelerators[GPU] // other.replicas)
    ]
    return snapshot(nodes, devices, pods)


def moves(plan: Plan) -> dict[str, PlanItem]:
    return {item.candidate.target.name: item for item in plan.items if item.candidate.action is EVICT}


def test_the_one_whose_restart_costs_least_goes_and_the_other_stays() -> None:
    plan = plan_of(crowded(node("n0", 1)), (contention(),), POLICY)
    found = moves(plan)
    assert found[A].admitted, found[A].refusals
    assert (found[A].candidate.pods, found[A].candidate.detectors) == (("ml/a",), ("hbm_contention",))
    # 0.4 GPUs × 24 h come back, a quarter of a GPU × 2 h is lost.
    assert (found[A].score.gained_gpu_hours, found[A].score.disrupted_gpu_hours) == (pytest.approx(9.6), 0.5)
    assert found[A].score.confidence_ratio == 0.85
    assert guards(found[B]) == {"once"}
    assert (
        reason(found[B], "once")
        == f"{found[A].candidate.id} resolves hbm_contention:device/GPU-s0-0 and has a higher score."
    )
    older = plan_of(crowded(node("n0", 1), hours={"a": 5.0, "b": 3.0}), (contention(),), POLICY)
    assert {name: item.admitted for name, item in moves(older).items()} == {A: False, B: True}


def test_it_has_to_be_worth_it() -> None:
    small = contention(relief_gpus={A: 0.02, B: 0.02})
    assert {
        guard for item in moves(plan_of(crowded(node("n0", 1)), (small,), POLICY)).values() for guard in guards(item)
    } == {"worth_it"}
    some = contention(relief_gpus={A: 0.03, B: 0.03})
    assert moves(plan_of(crowded(node("n0", 1)), (some,), POLICY))[A].admitted


def test_what_nobody_can_know_is_no_gain_and_said_so() -> None:
    vague = contention(relief_gpus={}, confidence_ratio=0.5, missing=(f"what {A} asks for",), advice=Advice.WATCH)
    item = moves(plan_of(crowded(node("n0", 1)), (vague,), POLICY))[A]
    assert guards(item) == {"worth_it", "evidence"}
    assert item.score.gained_gpu_hours == 0
    assert reason(item, "worth_it") == f"It is not known what the move gains; missing: what {A} asks for."


def test_no_place_without_a_gpu_to_itself() -> None:
    assert reason(moves(plan_of(crowded(), (contention(),), POLICY))[A], "lands").startswith(
        "No Node in service has a GPU for it alone"
    )
    shared = node("s1", 4, **SHARED)
    assert moves(plan_of(crowded(shared), (contention(),), POLICY))[A].admitted
    # Three of its four slices are free, and all of them are of a GPU that somebody works on.
    taken = plan_of(crowded(shared, busy=("s1/0",)), (contention(),), POLICY)
    assert guards(moves(taken)[A]) == {"lands"}
    full = plan_of(crowded(node("n0", 1), busy=("n0/0",)), (contention(),), POLICY)
    assert guards(moves(full)[A]) == {"lands"}


def test_on_a_node_that_shares_its_gpus_nobody_may_hold_one_that_it_could_get() -> None:
    """Whether replicas are spread over GPUs or packed is a setting of the device plugin, which nobody sees."""
    two = node("s1", 8, **SHARED)
    assert moves(plan_of(crowded(two), (contention(),), POLICY))[A].admitted
    held = crowded(two, busy=("s1/0",))
    assert guards(moves(plan_of(held, (contention(),), POLICY))[A]) == {"lands"}
    others = tuple(f"ml/y{number}" for number in range(3))
    full = replace(held.devices[1], pods=("ml/x-s1-0", *others))
    assert full.node == "s1"
    state = replace(held, devices=(held.devices[0], full, *held.devices[2:]))
    assert moves(plan_of(state, (contention(),), POLICY))[A].admitted


def test_a_sick_node_is_no_place() -> None:
    state = crowded(node("n0", 1))
    plan = plan_of(state, (contention(), sick(state.devices[1])), POLICY)
    assert guards(moves(plan)[A]) == {"lands"}


def test_two_gpus_on_which_the_same_contend_are_answered_by_one_move_of_the_gang() -> None:
    """A gang's Pods go together, and give back what both GPUs lose."""
    state = crowded(node("n0", 2))
    second = replace(state.devices[0], id="GPU-s0-1", uuid="GPU-s0-1", pods=("ml/a1", "ml/b1"))
    gang = Gang(id="g", framework="JobSet", workload="JobSet/ml/g", namespace="ml", pods=("ml/a", "ml/a1"))
    members = [
        pod(f"ml/{name}", "s0", 1, "JobSet/ml/g", gang="g", started=NOW - timedelta(hours=1)) for name in ("a", "a1")
    ]
    others = [pod(f"ml/{name}", "s0", 1, B, started=NOW - timedelta(hours=2)) for name in ("b", "b1")]
    state = snapshot(
        state.cluster.nodes, [state.devices[0], second, *state.devices[1:]], [*members, *others], gangs=[gang]
    )
    relief = {"g": 0.3, B: 0.3}
    findings = (
        contention(relief_gpus=relief),
        contention(
            relief_gpus=relief,
            subject=Subject(SubjectKind.DEVICE, second.id),
            devices=(second.id,),
            pods=second.pods,
        ),
    )
    found = moves(plan_of(state, findings, POLICY))
    assert found["g"].admitted, found["g"].refusals
    assert found["g"].candidate.relief_gpus == pytest.approx(0.6)
    assert found["g"].candidate.pods == ("ml/a", "ml/a1")
    assert "once" in guards(found[B])


@pytest.mark.parametrize("phase", [Phase.PROPOSED, Phase.NOTIFIED, Phase.ACTING])
def test_while_one_is_being_moved_the_other_is_not(phase: Phase) -> None:
    """Whichever is worth more now."""
    open_one = remediation(
        EVICT, f"workload/{B}", ["s0"], phase=phase, begun_minutes_ago=None, findings=(contention().id,), pods=("ml/b",)
    )
    found = moves(plan_of(crowded(node("n0", 1)), (contention(),), POLICY, [open_one]))
    assert guards(found[A]) == {"already_open"}
    assert reason(found[A], "already_open").startswith(f"Remediation r-b, which moves workload/{B} away from it, is ")
    done = replace(open_one, phase=Phase.SUCCEEDED)
    assert moves(plan_of(crowded(node("n0", 1)), (contention(),), POLICY, [done]))[A].admitted


def test_a_gang_that_is_released_is_not_moved_as_well() -> None:
    """Idle, and on a sick GPU: one of both."""
    nodes = [node("n0", 1), node("n1", 1)]
    held = device("n0", 0, "ml/a")
    state = snapshot(nodes, [held, device("n1", 0)], [pod("ml/a", "n0", started=NOW - timedelta(hours=1))])
    findings = (sick(held), idle("ml/a", [held]))
    plan = plan_of(state, findings, replace(POLICY, min_pool_nodes_left=0))
    done = [item for item in plan.items if item.candidate.action is not ActionKind.TAINT_NODE]
    assert sorted(item.admitted for item in done) == [False, True]
    assert {guard for item in done for guard in guards(item)} == {"once"}
    begun = remediation(ActionKind.RELEASE_GANG, "workload/other", ["n0"], phase=Phase.PROPOSED, pods=("ml/a",))
    assert "already_open" in guards(only(plan_of(state, findings, POLICY, [begun]), EVICT))


def test_moves_share_a_disruption_budget() -> None:
    """Of 20 Nodes two may be out of service at once."""
    nodes = [node(f"n{i}", 1) for i in range(20)]
    devices = [device(f"n{i}", 0, f"ml/w{i}" if i < 2 else "") for i in range(20)]
    pods = [pod(f"ml/w{i}", f"n{i}", labels={"app": "w"}, started=NOW - timedelta(hours=1)) for i in range(2)]
    findings = tuple(sick(devices[i]) for i in range(2))

    def admitted(allowed: int) -> int:
        pdb = DisruptionBudget(namespace="ml", name="w", match_labels={"app": "w"}, disruptions_allowed=allowed)
        many = replace(POLICY, actions_per_hour=9, namespace_actions_per_hour=9, pool_actions_per_hour=9)
        plan = plan_of(snapshot(nodes, devices, pods, budgets=(pdb,)), findings, many)
        found = moves(plan).values()
        assert {guard for item in found for guard in guards(item)} <= {"once", "disruption_budget"}
        return sum(item.admitted for item in found)

    assert [admitted(allowed) for allowed in (0, 1, 2)] == [0, 1, 2]


@settings(max_examples=120)  # a busy machine
@given(
    holders=st.lists(st.sets(st.integers(0, 5), min_size=2, max_size=4), min_size=1, max_size=3),
    sick_gpus=st.sets(st.integers(0, 2)),
    idle_pods=st.sets(st.integers(0, 5)),
    relief=st.sampled_from((0.9, 0.2, 0.0)),
    free=st.integers(0, 6),
)
def test_whatever_is_found_no_pod_is_disturbed_twice_and_one_leaves_each_gpu(
    holders: list[set[int]], sick_gpus: set[int], idle_pods: set[int], relief: float, free: int
) -> None:
    """GPUs of one Node that six workloads share as it comes; some sick, some idle, some Nodes free."""
    refs = {number: f"ml/w{number}" for number in range(6)}
    owners = {number: f"Deployment/ml/w{number}" for number in range(6)}
    gpus = [
        device("s0", index, pods=tuple(refs[number] for number in sorted(found)), shared=True)
        for index, found in enumerate(holders)
    ]
    nodes = [node("s0", 4 * len(gpus), **SHARED), *(node(f"n{index}", 1) for index in range(free))]
    pods = [pod(refs[number], "s0", started=NOW - timedelta(hours=1 + number)) for number in range(6)]
    devices = [*gpus, *(device(f"n{index}", 0) for index in range(free))]
    findings: list[Finding] = [
        contention(
            subject=Subject(SubjectKind.DEVICE, gpu.id),
            devices=(gpu.id,),
            pods=gpu.pods,
            relief_gpus={owners[number]: relief for number in found},
        )
        for gpu, found in zip(gpus, holders, strict=True)
    ]
    findings += [sick(gpus[index]) for index in sick_gpus if index < len(gpus)]
    findings += [idle(refs[number], [gpu for gpu in gpus if refs[number] in gpu.pods]) for number in idle_pods]
    many = replace(POLICY, actions_per_hour=99, namespace_actions_per_hour=99, pool_actions_per_hour=99)
    plan = plan_of(snapshot(nodes, devices, pods), tuple(findings), many)
    done = [
        item.candidate for item in plan.items if item.admitted and item.candidate.action is not ActionKind.TAINT_NODE
    ]
    disturbed = [ref for candidate in done for ref in candidate.pods]
    assert len(disturbed) == len(set(disturbed))
    answered = [name for candidate in done for name in candidate.findings if name.startswith("hbm_contention:")]
    assert len(answered) == len(set(answered))
    # Each that is moved has a Node of its own to go to.
    assert sum(len(item.pods) for item in done if item.action is EVICT) <= free
    assert all(refusal.reason for item in plan.items for refusal in item.refusals)


# Gangs that are scattered over domains

CLIQUE = "nvidia.com/gpu.clique"


def spread_gang(domains: dict[str, str], at: tuple[str, str] = ("n0", "n2")) -> Snapshot:
    """Two Pods of 8 GPUs; domains: Node → its NVLink domain, '' for none."""
    nodes = [node(name, labels={CLIQUE: value} if value else {}) for name, value in domains.items()]
    gang = Gang(id="g", framework="JobSet", workload="JobSet/ml/g", namespace="ml", pods=("ml/g0", "ml/g1"))
    pods = [pod(f"ml/g{i}", name, 8, "JobSet/ml/g", gang="g") for i, name in enumerate(at)]
    held = {name: f"ml/g{i}" for i, name in enumerate(at)}
    devices = [device(name, i, held.get(name, "")) for name in domains for i in range(8)]
    return snapshot(nodes, devices, pods, gangs=[gang])


def drawn(state: Snapshot, policy: PlanPolicy = POLICY, *more: Finding) -> Plan:
    """The plan with the misfits that are found in the state."""
    return plan_of(state, (*more, *assess_misfit(state, MisfitPolicy(), policy.topology_labels)), policy)


TWO_RACKS = {"n0": "a", "n1": "a", "n2": "b"}
MANY = TWO_RACKS | {f"x{i}": "" for i in range(17)}
"""Of 20 Nodes two Nodes' GPUs may move at once."""


def test_a_scattered_gang_is_shown_and_moved_only_when_its_loss_is_known() -> None:
    item = only(drawn(spread_gang(TWO_RACKS)), EVICT)
    found = f"It spans 2 domains of {CLIQUE}, and 1 could hold it. It would fit into {CLIQUE}=a."
    assert item.candidate.reason == found
    assert item.candidate.detectors == ("scattered",)
    assert item.candidate.findings == ("scattered:gang/g",)
    assert guards(item) == {"worth_it"}
    assert reason(item, "worth_it") == "It is not known what the move gains; missing: what spanning them costs it."
    # 16 GPUs × 24 h × 0.5 are gained, 10 h × 16 lost.
    known = only(drawn(spread_gang(MANY), replace(POLICY, scattered_loss_ratio=0.5)), EVICT)
    assert (known.score.gained_gpu_hours, known.score.disrupted_gpu_hours) == (192.0, 160.0)
    assert known.admitted, known.refusals
    little = only(drawn(spread_gang(TWO_RACKS), replace(POLICY, scattered_loss_ratio=0.4)), EVICT)
    assert guards(little) == {"worth_it"}


@pytest.mark.parametrize(
    ("domains", "at"),
    [
        ({"n0": "a", "n1": "a", "n2": "a"}, ("n0", "n2")),  # one domain
        ({"n0": "a", "n2": "b"}, ("n0", "n2")),  # no domain takes both
        ({"n0": "a", "n1": "a", "n2": ""}, ("n0", "n2")),  # unknown is not another domain
        (TWO_RACKS, ("n0", "n1")),
    ],
)
def test_what_is_not_scattered_or_could_not_be_gathered(domains: dict[str, str], at: tuple[str, str]) -> None:
    assert drawn(spread_gang(domains, at)).items == ()


def test_a_domain_that_others_hold_is_no_place() -> None:
    state = spread_gang({**TWO_RACKS, "n3": "b"})
    assert drawn(state).items
    taken = tuple(pod(f"ml/x{name}", name, 1) for name in ("n1", "n3"))
    state = replace(state, cluster=replace(state.cluster, pods=(*state.cluster.pods, *taken)))
    assert drawn(state).items == ()


def test_a_gang_on_a_sick_gpu_is_moved_once_and_for_that() -> None:
    state = spread_gang({**TWO_RACKS, "n3": "b", "n4": "b"})
    plan = drawn(state, POLICY, sick(state.devices[0]))
    assert only(plan, EVICT).candidate.detectors == ("xid",)
