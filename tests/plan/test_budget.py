"""Budgets and rates: harm in flight counts whoever caused it, each GPU once, and never lets more be done."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.act.plan.budget import Ledger, acted_at, budgets
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.cluster import Taint
from gpuwatch.facts.model.decision import ActionKind, BudgetUse, Finding, Plan, Snapshot
from gpuwatch.facts.model.remediation import ObjectRef, Phase, Remediation, Step, StepKind, Turn
from plan.fleet import NOW, device, guards, idle, node, only, plan_of, pod, reason, remediation, sick, snapshot

MINUTE = timedelta(minutes=1)
TAINT, EVICT, RELEASE = ActionKind.TAINT_NODE, ActionKind.EVICT_GANG, ActionKind.RELEASE_GANG
FREE = PlanPolicy(actions_per_hour=99, namespace_actions_per_hour=99, pool_actions_per_hour=99)


def fleet(idle_pods: Iterable[int] = (), nodes: int = 10) -> tuple[Snapshot, tuple[Finding, ...]]:
    """A pool of Nodes of 8 GPUs, each held by one Pod of its own owner and Namespace; some of them idle."""
    names = [f"n{i}" for i in range(nodes)]
    devices = {name: [device(name, i, f"t{name}/p") for i in range(8)] for name in names}
    state = snapshot(
        [node(name) for name in names],
        [item for each in devices.values() for item in each],
        [pod(f"t{name}/p", name, 8) for name in names],
    )
    return state, tuple(idle(f"tn{i}/p", devices[f"n{i}"]) for i in idle_pods)


def pool_use(history: Iterable[Remediation], state: Snapshot | None = None) -> BudgetUse:
    found = state or fleet()[0]
    return budgets(PlanFacts(snapshot=found, policy=FREE, history=tuple(history)))["pool/train"]


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("action", [TAINT, EVICT, RELEASE])
def test_every_remediation_in_flight_weighs(phase: Phase, action: ActionKind) -> None:
    """And what was announced; but not releases and moves that are verified: what they freed works for others. Nor a
    release whose fields are put back, with no step left: no GPU is out of service while its Pods wait."""
    use = pool_use([remediation(action, "node/n1", ["n1"], phase=phase, gpus=8)])
    weighs = phase is Phase.NOTIFIED or (phase.in_flight and (phase is not Phase.IN_EFFECT or action is TAINT))
    weighs = weighs and (phase, action) != (Phase.UNDOING, RELEASE)
    assert use.in_flight_gpus == (8 if weighs else 0)
    assert use.reasons == ((f"r-n1 is {phase}",) if weighs else ())


def test_a_gpu_is_harmed_once_whoever_harms_it() -> None:
    taint = remediation(TAINT, "node/n1", ["n1"], phase=Phase.IN_EFFECT, gpus=8)
    move = remediation(EVICT, "gang/g", ["n1"], gpus=8)
    state = fleet()[0]
    shown = tuple(
        replace(item, taints=(Taint("gpuwatch.dev/degraded", "x", "NoSchedule"),)) if item.name == "n1" else item
        for item in state.cluster.nodes
    )
    state = replace(state, cluster=replace(state.cluster, nodes=shown))
    assert pool_use([taint, move], state).in_flight_gpus == 8
    assert pool_use([taint, move]).in_flight_gpus == 8
    assert pool_use([], state).in_flight_gpus == 8
    assert pool_use([remediation(EVICT, "gang/g", ["n1", "n2"], gpus=8)], state).in_flight_gpus == 12


def tainted(state: Snapshot, *names: str) -> Snapshot:
    """With gpuwatch's first taint, which keeps no Pod off, on these Nodes."""
    taint = Taint("gpuwatch.dev/degraded", "xid", "PreferNoSchedule")
    nodes = tuple(replace(item, taints=(taint,)) if item.name in names else item for item in state.cluster.nodes)
    return replace(state, cluster=replace(state.cluster, nodes=nodes))


def test_a_taint_without_a_record_weighs_is_an_action_and_is_not_set_again_until_it_is_gone() -> None:
    state, findings = fleet([0])
    lost = tainted(state, "n1", "n2")
    use = pool_use([], lost)
    assert use.in_flight_gpus == 16
    assert use.reasons == ("n1 has the taint gpuwatch.dev/degraded", "n2 has the taint gpuwatch.dev/degraded")
    taint = remediation(TAINT, "node/n1", ["n1"], phase=Phase.IN_EFFECT, gpus=8, begun_minutes_ago=90)
    assert pool_use([taint], lost).in_flight_gpus == 16  # each GPU once, with a record or without
    policy = replace(FREE, budget_min_gpus=80, actions_per_hour=2)
    assert guards(only(plan_of(lost, findings, policy), RELEASE)) == {"rate"}
    assert only(plan_of(lost, findings, policy, history=[taint]), RELEASE).admitted
    held = device("n1", 0, "tn1/p")
    again = only(plan_of(lost, (sick(held),), policy), TAINT)
    assert "no Remediation holds it" in reason(again, "already_tainted")


def test_on_a_node_that_a_taint_without_a_record_leaves_open_no_harm_is_free() -> None:
    """Its Pods still work, unlike those of a Node that is out of service."""
    state, findings = fleet([0])
    assert only(plan_of(tainted(state, "n0"), findings, FREE), RELEASE).admitted
    assert guards(only(plan_of(tainted(state, "n0", "n1"), findings, FREE), RELEASE)) == {"budget"}


def test_a_node_that_is_gone_still_weighs_on_its_pool_and_model() -> None:
    gone = remediation(TAINT, "node/gone", ["gone"], gpus=8, gpu_model="NVIDIA-A100-SXM4-80GB")
    found = budgets(PlanFacts(snapshot=fleet()[0], policy=FREE, history=(gone,)))
    assert {scope: use.in_flight_gpus for scope, use in found.items()} == {
        "model/NVIDIA-A100-SXM4-80GB": 8,
        "pool/train": 8,
    }


def test_a_remediation_in_flight_takes_the_budget_that_a_release_would_need() -> None:
    state, findings = fleet([0])
    assert only(plan_of(state, findings, FREE), RELEASE).admitted
    other = remediation(EVICT, "gang/g", ["n9"], gpus=1)
    item = only(plan_of(state, findings, FREE, history=[other]), RELEASE)
    assert guards(item) == {"budget"}
    assert "r-g is Acting" in reason(item, "budget")


def test_a_gang_over_two_pools_is_charged_to_both() -> None:
    nodes = [node("a0", pool="a"), node("b0", pool="b")]
    devices = [device("a0", 0, "ml/x"), device("b0", 0, "ml/y")]
    owner = "Deployment/ml/chat"
    state = snapshot(nodes, devices, [pod("ml/x", "a0", 1, owner), pod("ml/y", "b0", 1, owner)])
    findings = (idle("ml/x", devices[:1]), idle("ml/y", devices[1:]))
    assert only(plan_of(state, findings, FREE), RELEASE).admitted
    busy = remediation(TAINT, "node/b0", ["b1"], pool="b", gpus=8)
    item = only(plan_of(state, findings, FREE, history=[busy]), RELEASE)
    assert reason(item, "budget").startswith("pool/b: 9 of 8")


def test_a_taint_in_flight_leaves_its_node_out_of_the_pool() -> None:
    nodes = [node(f"n{i}") for i in range(3)]
    held = [device("n0", i, "ml/p") for i in range(8)]
    state = snapshot(nodes, [*held, device("n1", 0), device("n2", 0)], [pod("ml/p", "n0", 8)])
    policy = replace(FREE, budget_min_gpus=24, min_pool_nodes_left=1)
    finding = (sick(held[0]),)
    one = [remediation(TAINT, "node/n1", ["n1"])]
    assert "pool_nodes" not in guards(only(plan_of(state, finding, policy, history=one), TAINT))
    two = [*one, remediation(TAINT, "node/n2", ["n2"])]
    assert "pool_nodes" in guards(only(plan_of(state, finding, policy, history=two), TAINT))


@pytest.mark.parametrize(("began", "admitted"), [(True, True), (False, False)])
def test_a_claim_is_no_harm_that_another_adds_nothing_to(began: bool, admitted: bool) -> None:
    """The taint of n0 was claimed, and then somebody cordoned n9: what moves off n0 is no further harm once it is
    tainted, and not before. Both together are one Node, and were within the budget."""
    nodes = [node(f"n{i}", unschedulable=i == 9) for i in range(10)]
    held = [device("n0", i, "ml/p") for i in range(8)]
    facts = snapshot(nodes, held, [pod("ml/p", "n0", 8)])
    claim = remediation(TAINT, "node/n0", ["n0"], phase=Phase.ACTING, begun_minutes_ago=5)
    claim = claim if began else replace(claim, steps=(replace(claim.steps[0], begun_at=None, done_at=None),))
    (moving,) = [
        item.candidate for item in plan_of(facts, (sick(held[0]),), FREE).items if item.candidate.action is EVICT
    ]
    policy = replace(FREE, budget_min_gpus=8, budget_ratio=0.0)
    refused = Ledger(PlanFacts(snapshot=facts, policy=policy, history=(claim,))).charge(moving)
    assert ([item.guard for item in refused] == []) is admitted
    calm = snapshot([node(f"n{i}") for i in range(10)], held, [pod("ml/p", "n0", 8)])
    assert Ledger(PlanFacts(snapshot=calm, policy=policy, history=(claim,))).charge(moving) == ()


@pytest.mark.parametrize("began", [True, False])
def test_an_notification_that_is_taken_back_weighs_nothing(began: bool) -> None:
    """Else what disturbs the Node that it was to taint would be no further harm, and any budget could be exceeded."""
    back = remediation(TAINT, "node/n0", ["n0"], phase=Phase.UNDOING, begun_minutes_ago=5 if began else None)
    assert pool_use([back]).in_flight_gpus == (8 if began else 0)


def test_an_open_remediation_of_the_same_thing_is_not_proposed_again() -> None:
    state, findings = fleet([0])
    for phase in Phase:
        same = remediation(RELEASE, "workload/Deployment/tn0/p", phase=phase, begun_minutes_ago=None)
        other = remediation(RELEASE, "workload/Deployment/tn1/p", phase=phase, begun_minutes_ago=None)
        item = only(plan_of(state, findings, FREE, history=[same]), RELEASE)
        assert ("already_open" in guards(item)) is phase.open
        assert "already_open" not in guards(only(plan_of(state, findings, FREE, history=[other]), RELEASE))


def admitted(plan: Plan) -> int:
    return sum(item.admitted for item in plan.items)


@pytest.mark.parametrize(
    ("policy", "where"),
    [
        (replace(FREE, actions_per_hour=3), "3 actions began"),
        (replace(FREE, pool_actions_per_hour=3), "3 actions in pool train began"),
    ],
)
def test_rates_count_what_is_planned_and_what_began(policy: PlanPolicy, where: str) -> None:
    policy = replace(policy, budget_ratio=1.0)
    state, findings = fleet(range(5))
    assert admitted(plan_of(state, findings, policy)) == 3
    done = [remediation(RELEASE, f"workload/w{i}", phase=Phase.SUCCEEDED) for i in range(2)]
    plan = plan_of(state, findings, policy, history=done)
    assert admitted(plan) == 1
    assert where in next(reason(item, "rate") for item in plan.items if not item.admitted)


@pytest.mark.parametrize(("minutes", "counts"), [(59.9, True), (60, False)])
def test_the_rate_looks_back_an_hour(minutes: float, counts: bool) -> None:
    state, findings = fleet([0])
    past = remediation(RELEASE, "workload/w", phase=Phase.UNDONE, begun_minutes_ago=minutes)
    plan = plan_of(state, findings, replace(FREE, actions_per_hour=1), history=[past])
    assert guards(only(plan, RELEASE)) == ({"rate"} if counts else set())


def test_a_namespace_has_its_own_rate() -> None:
    state, findings = fleet([0])
    policy = replace(FREE, namespace_actions_per_hour=1)
    for namespace, refused in (("tn0", True), ("tn1", False)):
        past = remediation(RELEASE, "workload/w", phase=Phase.SUCCEEDED, namespace=namespace)
        assert guards(only(plan_of(state, findings, policy, history=[past]), RELEASE)) == (
            {"rate"} if refused else set()
        )


@pytest.mark.parametrize(
    ("phase", "claimed", "steps", "expected"),
    [
        (Phase.NOTIFIED, False, (), None),
        # Its history is lost, but it may be writing: it counts from when it was proposed.
        (Phase.ACTING, False, (), 30),
        (Phase.ACTING, True, (), 10),
        (Phase.NOTIFIED, True, (), None),  # a claim that was given up
        (Phase.UNDOING, False, (StepKind.NOTIFY, StepKind.CLEAR), None),  # only what was notified goes
        (Phase.REJECTED, False, (StepKind.NOTIFY, StepKind.CLEAR), None),
        (Phase.ACTING, True, (StepKind.NOTIFY,), 10),
        (Phase.ACTING, True, (StepKind.NOTIFY, StepKind.RELEASE), 5),
        (Phase.UNDONE, True, (StepKind.RELEASE, StepKind.RESTORE), 5),
        (Phase.FAILED, True, (StepKind.EVICT,), 5),
    ],
)
def test_what_wrote_nothing_did_not_act(
    phase: Phase, claimed: bool, steps: tuple[StepKind, ...], expected: int | None
) -> None:
    """Minutes ago: proposed 30, claimed 10, written 5."""
    made = remediation(RELEASE, "workload/w", phase=phase, begun_minutes_ago=None, created_at=NOW - 30 * MINUTE)
    begun = NOW - 5 * MINUTE
    made = replace(
        made,
        history=(Turn(NOW - 10 * MINUTE, Phase.ACTING, "claimed"),) if claimed else (),
        steps=tuple(Step(kind=kind, target=ObjectRef("v1", "Any", "w"), begun_at=begun) for kind in steps),
    )
    assert acted_at(made) == (None if expected is None else NOW - expected * MINUTE)


scenario = {
    "idle_pods": st.sets(st.integers(0, 9)),
    "sick_nodes": st.sets(st.integers(0, 9), max_size=2),
    "sizes": st.lists(st.integers(1, 8), min_size=10, max_size=10),
    "cordoned": st.sets(st.integers(0, 9), max_size=3),
    "flying": st.sets(st.integers(0, 9), max_size=3),
    "more_cordoned": st.sets(st.integers(0, 9), max_size=3),
    "more_flying": st.sets(st.integers(0, 9), max_size=3),
}


def harmed(plan: Plan, state: Snapshot, before: set[str]) -> int:
    """GPUs that the plan takes out of service or disturbs, but for those on Nodes that are out already."""
    taken: dict[str, int] = {}
    offered = {item.name: item.accelerators["nvidia.com/gpu"] for item in state.cluster.nodes}
    pods = {item.ref: item for item in state.cluster.pods}
    for item in plan.items:
        if item.admitted and item.candidate.action is TAINT:
            taken.update({name: offered[name] for name in item.candidate.nodes})
        elif item.admitted:
            for ref in item.candidate.pods:
                held = pods[ref]
                gpus = taken.get(held.node, 0) + sum(held.accelerators.values())
                taken[held.node] = min(gpus, offered[held.node])
    return sum(gpus for name, gpus in taken.items() if name not in before)


@given(**scenario)
def test_no_budget_is_exceeded_and_more_harm_in_flight_never_admits_more(
    idle_pods: set[int],
    sick_nodes: set[int],
    sizes: list[int],
    cordoned: set[int],
    flying: set[int],
    more_cordoned: set[int],
    more_flying: set[int],
) -> None:
    """Whatever the candidates: Pods of 1 to 8 GPUs that are idle, Nodes that are sick, cordons and Remediations."""
    policy = replace(FREE, budget_ratio=0.3, storm_ratio=1.0, idle_storm_ratio=1.0)
    names = [f"n{i}" for i in range(10)]
    devices = [
        device(name, i, f"t{name}/p" if i < sizes[at] else "") for at, name in enumerate(names) for i in range(8)
    ]
    pods = [pod(f"t{name}/p", name, sizes[at]) for at, name in enumerate(names)]
    findings = (
        *(idle(f"tn{i}/p", [d for d in devices if d.pods == (f"tn{i}/p",)]) for i in sorted(idle_pods)),
        *(sick(devices[8 * i]) for i in sorted(sick_nodes)),
    )

    def drawn(closed: set[int], moving: set[int]) -> tuple[int, int, Plan]:
        state = snapshot([node(name, unschedulable=at in closed) for at, name in enumerate(names)], devices, pods)
        history = [remediation(TAINT, f"node/n{i}", [f"n{i}"], gpus=8) for i in sorted(moving)]
        plan = plan_of(state, findings, policy, history=history)
        out = {f"n{i}" for i in closed | moving}
        return 8 * len(out), harmed(plan, state, out), plan

    before, more, plan = drawn(cordoned, flying)
    for use in plan.budgets:
        assert use.in_flight_gpus == before
        assert more == 0 or before + more <= use.limit_gpus == 24
    worse, then, _ = drawn(cordoned | more_cordoned, flying | more_flying)
    assert worse >= before
    assert then <= more


@given(begun=st.integers(0, 6), extra=st.integers(0, 3), wanted=st.sets(st.integers(0, 9)))
def test_no_rate_is_exceeded_and_more_history_never_admits_more(begun: int, extra: int, wanted: set[int]) -> None:
    state, findings = fleet(sorted(wanted))
    policy = PlanPolicy(budget_ratio=1.0, idle_storm_ratio=1.0, actions_per_hour=5, pool_actions_per_hour=4)

    def count(past: int) -> int:
        history = [remediation(RELEASE, f"workload/w{i}", phase=Phase.SUCCEEDED) for i in range(past)]
        return admitted(plan_of(state, findings, policy, history=history))

    assert count(begun) <= max(4 - begun, 0)
    assert count(begun + extra) <= count(begun)
