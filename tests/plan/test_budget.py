"""Limits and rates: what is out of service counts whoever caused it, and what is only announced gives way."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.act.plan.budget import Ledger, acted_at, budgets
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.cluster import Condition, Taint
from gpuwatch.facts.model.decision import ActionKind, BudgetUse, Finding, Plan, Severity, Snapshot
from gpuwatch.facts.model.remediation import ObjectRef, Phase, Remediation, Step, StepKind, Turn
from plan.fleet import NOW, device, guards, idle, node, only, plan_of, pod, reason, remediation, sick, snapshot

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
TAINT, EVICT, RELEASE = ActionKind.TAINT_NODE, ActionKind.EVICT_GANG, ActionKind.RELEASE_GANG
FREE = PlanPolicy(actions_per_hour=99, namespace_actions_per_hour=99, pool_actions_per_hour=99)


def fleet(idle_pods: Iterable[int] = (), nodes: int = 10, gpus: int = 8) -> tuple[Snapshot, tuple[Finding, ...]]:
    """A pool of Nodes, each held by one Pod of its own owner and Namespace; some of them idle."""
    names = [f"n{i}" for i in range(nodes)]
    devices = {name: [device(name, i, f"t{name}/p") for i in range(gpus)] for name in names}
    state = snapshot(
        [node(name, gpus) for name in names],
        [item for each in devices.values() for item in each],
        [pod(f"t{name}/p", name, gpus) for name in names],
    )
    return state, tuple(idle(f"tn{i}/p", devices[f"n{i}"]) for i in idle_pods)


def broken(state: Snapshot, *names: str, **changes: object) -> tuple[Finding, ...]:
    return tuple(sick(device(name, 0, f"t{name}/p"), **changes) for name in names)


def with_nodes(state: Snapshot, changes: dict[str, dict[str, object]]) -> Snapshot:
    """changes: by the Node's name."""
    nodes = tuple(replace(item, **changes.get(item.name, {})) for item in state.cluster.nodes)  # type: ignore[arg-type]
    return replace(state, cluster=replace(state.cluster, nodes=nodes))


def pool_use(history: Iterable[Remediation], state: Snapshot | None = None) -> BudgetUse:
    found = state or fleet()[0]
    return budgets(PlanFacts(snapshot=found, policy=FREE, history=tuple(history)))["pool/train"]


def tainted(plan: Plan) -> set[str]:
    return {
        name for item in plan.items if item.admitted and item.candidate.action is TAINT for name in item.candidate.nodes
    }


# The limit of Nodes


@pytest.mark.parametrize(
    ("nodes", "gpus", "ratio", "limit"),
    [
        *((nodes, 1, 0.1, 1) for nodes in (5, 9, 12, 15)),
        (9, 16, 0.1, 1),
        (19, 8, 0.1, 1),
        (19, 8, 1.0, 1),  # no share of a few Nodes is small
        (20, 8, 0.1, 2),
        (29, 8, 0.1, 2),
        (30, 1, 0.1, 3),
        (20, 8, 0.0, 1),  # as a smaller pool may
        (20, 1, 1.0, 20),
    ],
)
def test_how_many_nodes_may_be_out_of_service(nodes: int, gpus: int, ratio: float, limit: int) -> None:
    """All of them are degraded, since long ago."""
    state, _ = fleet(nodes=nodes, gpus=gpus)
    policy = replace(FREE, budget_ratio=ratio, min_pool_nodes_left=0)
    plan = plan_of(state, broken(state, *(f"n{i}" for i in range(nodes))), policy)
    assert len(tainted(plan)) == limit
    for use in plan.budgets:
        assert (use.limit_nodes, use.total_nodes, use.out_nodes) == (limit, nodes, 0)
        assert use.limit_gpus == (max(gpus, int(ratio * nodes * gpus)) if nodes >= 20 else gpus)
    refused = [item for item in plan.items if item.candidate.action is TAINT and not item.admitted]
    assert all(guards(item) == {"budget"} for item in refused)
    assert not refused or f"{limit + 1} of {nodes} Nodes would be out of service" in reason(refused[0], "budget")


def test_a_model_over_several_small_pools_has_a_limit_of_its_own() -> None:
    nodes = [node(f"{pool}{i}", 1, pool=pool) for pool in "abc" for i in range(5)]
    devices = [device(each.name, 0, f"t/{each.name}") for each in nodes]
    state = snapshot(nodes, devices, [pod(f"t/{each.name}", each.name, 1) for each in nodes])
    plan = plan_of(state, tuple(sick(each) for each in devices), FREE)
    assert len(tainted(plan)) == 1
    refused = [item for item in plan.items if item.candidate.action is TAINT and not item.admitted]
    assert any(reason(item, "budget").startswith("model/NVIDIA-A100") for item in refused)


# What counts against it


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("action", [TAINT, EVICT, RELEASE])
def test_every_remediation_in_flight_weighs_in_its_ledger(phase: Phase, action: ActionKind) -> None:
    """And what was announced; but not moves that are verified: what they freed works for others. A release weighs
    nothing: it takes no capacity."""
    use = pool_use([remediation(action, "node/n1", ["n1"], phase=phase, gpus=8)])
    weighs = phase is Phase.NOTIFIED or (phase.in_flight and (phase is not Phase.IN_EFFECT or action is TAINT))
    assert use.out_nodes == (weighs and action is TAINT)
    assert use.moving_gpus == (8 if weighs and action is EVICT else 0)
    assert use.reasons == ((f"r-n1 is {phase}",) if weighs and action is TAINT else ())


def test_a_node_is_out_once_whoever_takes_it_out() -> None:
    taint = remediation(TAINT, "node/n1", ["n1"], phase=Phase.IN_EFFECT, gpus=8)
    move = remediation(EVICT, "gang/g", ["n1"], gpus=8)
    shown = with_nodes(fleet()[0], {"n1": {"taints": (Taint("gpuwatch.dev/degraded", "x", "NoSchedule"),)}})
    for history, state, uses in (
        ([taint, move], shown, (1, 0)),  # its GPUs are out of service already
        ([taint, move], None, (1, 8)),
        ([], shown, (1, 0)),
        ([remediation(EVICT, "gang/g", ["n1", "n2"], gpus=9)], None, (0, 10)),  # five of each, as its Pods may be gone
    ):
        use = pool_use(history, state)
        assert (use.out_nodes, use.moving_gpus) == uses


CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def not_ready(hours: float | None) -> dict[str, object]:
    since = None if hours is None else NOW - hours * timedelta(hours=1)
    return {"conditions": (Condition("Ready", "False", since=since),)}


def cordoned(hours: float | None) -> dict[str, object]:
    since = None if hours is None else NOW - hours * timedelta(hours=1)
    return {"unschedulable": True, "taints": (replace(CORDON, since=since),)}


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        (cordoned(23), True),
        (cordoned(25), False),
        (cordoned(None), True),
        ({"unschedulable": True}, True),  # its taint is not there yet
        (not_ready(23), True),
        (not_ready(25), False),
        (not_ready(None), True),
        (not_ready(-1), True),
        ({"conditions": ()}, True),
        # What takes it out longest decides.
        ({**cordoned(300), **not_ready(1)}, False),
        ({**cordoned(1), **not_ready(300)}, False),
        ({"taints": (Taint("node.kubernetes.io/unreachable", "", "NoExecute", NOW - 2 * DAY),)}, False),
        ({"taints": (Taint("node.kubernetes.io/unreachable", "", "NoExecute", NOW),)}, True),
        # gpuwatch's own always counts, recorded or not.
        ({"taints": (Taint("gpuwatch.dev/degraded", "xid", "NoSchedule", NOW - 9 * DAY),)}, True),
        ({"taints": (Taint("gpuwatch.dev/degraded", "xid", "PreferNoSchedule"),)}, True),
        # What only restricts who may use it takes nothing out.
        ({"taints": (Taint("nvidia.com/gpu", "present", "NoSchedule"),)}, False),
    ],
)
def test_others_outages_count_for_a_day_and_our_taints_always(changes: dict[str, object], counts: bool) -> None:
    """A Node that waits weeks for its repair does not keep every other one in service."""
    state = with_nodes(fleet()[0], {"n1": changes})
    assert pool_use([], state).out_nodes == counts
    item = only(plan_of(state, broken(state, "n0"), FREE), TAINT)
    assert guards(item) == ({"budget"} if counts else set())
    ours = remediation(TAINT, "node/n1", ["n1"], phase=Phase.IN_EFFECT, gpus=8, begun_minutes_ago=9 * 1440)
    assert pool_use([ours], state).out_nodes == 1


def test_a_taint_without_a_record_is_an_action_and_is_not_set_again_until_it_is_gone() -> None:
    state, findings = fleet([0])
    taint = (Taint("gpuwatch.dev/degraded", "xid", "PreferNoSchedule"),)
    lost = with_nodes(state, {"n1": {"taints": taint}, "n2": {"taints": taint}})
    use = pool_use([], lost)
    assert use.out_nodes == 2
    assert use.reasons == ("n1 has the taint gpuwatch.dev/degraded", "n2 has the taint gpuwatch.dev/degraded")
    recorded = remediation(TAINT, "node/n1", ["n1"], phase=Phase.IN_EFFECT, gpus=8, begun_minutes_ago=90)
    assert pool_use([recorded], lost).out_nodes == 2  # each Node once, with a record or without
    policy = replace(FREE, actions_per_hour=2)
    item = only(plan_of(lost, findings, policy), RELEASE)
    assert guards(item) == {"rate"}
    assert reason(item, "rate").endswith("The next may begin once that taint is gone.")
    assert only(plan_of(lost, findings, policy, history=[recorded]), RELEASE).admitted
    again = only(plan_of(lost, broken(lost, "n1"), policy), TAINT)
    assert "no Remediation holds it" in reason(again, "already_tainted")


def test_a_node_that_is_gone_still_weighs_on_its_pool_and_model() -> None:
    gone = remediation(TAINT, "node/gone", ["gone"], gpus=8, gpu_model="NVIDIA-A100-SXM4-80GB")
    move = remediation(EVICT, "gang/g", ["gone"], gpus=3, gpu_model="NVIDIA-A100-SXM4-80GB")
    found = budgets(PlanFacts(snapshot=fleet()[0], policy=FREE, history=(gone, move)))
    assert {scope: (use.out_nodes, use.moving_gpus) for scope, use in found.items()} == dict.fromkeys(
        ("model/NVIDIA-A100-SXM4-80GB", "pool/train"), (1, 3)
    )


def test_a_taint_in_flight_leaves_its_node_out_of_the_pool() -> None:
    nodes = [node(f"n{i}") for i in range(3)]
    held = [device("n0", i, "ml/p") for i in range(8)]
    state = snapshot(nodes, [*held, device("n1", 0), device("n2", 0)], [pod("ml/p", "n0", 8)])
    finding = (sick(held[0]),)
    one = [remediation(TAINT, "node/n1", ["n1"])]
    assert "pool_nodes" not in guards(only(plan_of(state, finding, FREE, history=one), TAINT))
    two = [*one, remediation(TAINT, "node/n2", ["n2"])]
    assert "pool_nodes" in guards(only(plan_of(state, finding, FREE, history=two), TAINT))


@pytest.mark.parametrize("began", [True, False])
def test_an_notification_that_is_taken_back_weighs_nothing(began: bool) -> None:
    back = remediation(TAINT, "node/n0", ["n0"], phase=Phase.UNDOING, begun_minutes_ago=5 if began else None)
    assert pool_use([back]).out_nodes == began


# Two ledgers


def announced(action: ActionKind, on: str, *findings: Finding, **changes: object) -> Remediation:
    names = tuple(finding.id for finding in findings)
    told = remediation(
        action, f"node/{on}", [on], phase=Phase.NOTIFIED, begun_minutes_ago=None, gpus=8, findings=names, **changes
    )
    return replace(told, history=(Turn(NOW - MINUTE, Phase.NOTIFIED, "told"),))


@pytest.mark.parametrize(
    "before",
    [
        announced(RELEASE, "n1"),
        announced(EVICT, "n1"),
        remediation(RELEASE, "workload/w", ["n1"], gpus=8),
        remediation(EVICT, "gang/g", ["n1"], gpus=8),
    ],
    ids=lambda each: f"{each.proposal.action}-{each.phase}",
)
def test_no_release_and_no_move_keeps_a_dead_gpu_untainted(before: Remediation) -> None:
    """A release that its owner snoozes is announced for hours."""
    state, _ = fleet(nodes=8)
    assert only(plan_of(state, broken(state, "n3"), FREE, history=[before]), TAINT).admitted


def test_a_release_does_not_displace_the_taint_of_a_dead_gpu_nor_the_other_way_round() -> None:
    nodes = [node(f"n{i}") for i in range(8)]
    held = [device("n1", i, "ml/chat") for i in range(2)]
    devices = [device(f"n{n}", i) for n in range(8) if n != 1 for i in range(8)] + held
    state = snapshot(nodes, devices, [pod("ml/chat", "n1", 2)])
    plan = plan_of(state, (sick(devices[0]), idle("ml/chat", held, gpu_hours=500.0)), PlanPolicy())
    assert {item.candidate.action: guards(item) for item in plan.items} == {TAINT: set(), RELEASE: set()}
    out = with_nodes(state, {f"n{i}": cordoned(1) for i in range(3, 8)})
    assert only(plan_of(out, (idle("ml/chat", held),), PlanPolicy()), RELEASE).admitted


@pytest.mark.parametrize(
    ("severity", "of_the_announced", "admitted"),
    [
        (Severity.CRITICAL, Severity.WARNING, True),
        (Severity.CRITICAL, Severity.CRITICAL, False),
        (Severity.WARNING, Severity.WARNING, False),
        (Severity.WARNING, Severity.CRITICAL, False),
        (Severity.CRITICAL, None, False),  # its finding is gone, and nobody knows how bad it was
    ],
)
def test_an_announced_taint_gives_way_to_a_worse_fault(
    severity: Severity, of_the_announced: Severity | None, admitted: bool
) -> None:
    state, _ = fleet()
    theirs = broken(state, "n1", severity=of_the_announced or severity)
    mine = broken(state, "n0", severity=severity)
    history = [announced(TAINT, "n1", *theirs)]
    plan = plan_of(state, (*mine, *(theirs if of_the_announced else ())), FREE, history=history)
    (item,) = [each for each in plan.items if each.candidate.id == "taint_node:node/n0"]
    assert guards(item) == (set() if admitted else {"budget"})
    begun = [remediation(TAINT, "node/n1", ["n1"], gpus=8, findings=tuple(each.id for each in theirs))]
    plan = plan_of(state, (*mine, *theirs), FREE, history=begun)
    (item,) = [each for each in plan.items if each.candidate.id == "taint_node:node/n0"]
    assert "r-n1 is Acting" in reason(item, "budget")


@pytest.mark.parametrize(
    ("nodes", "sizes", "moved"),
    [
        (10, (8,), True),
        (10, (4, 5), False),
        (10, (4, 4), True),
        (20, (8, 8), True),
        (20, (8, 8, 1), False),
        (30, (8, 8, 8), True),
    ],
)
def test_moves_disturb_a_nodes_gpus_or_the_share_at_once(nodes: int, sizes: tuple[int, ...], moved: bool) -> None:
    """The last one would begin; the others are in flight. None leaves a Node that is out of service."""
    flying = [remediation(EVICT, f"gang/g{i}", ["n1"], gpus=gpus) for i, gpus in enumerate(sizes[:-1])]
    devices = [device("n0", i, "ml/p") for i in range(sizes[-1])]
    state = snapshot([node(f"n{i}") for i in range(nodes)], devices, [pod("ml/p", "n0", sizes[-1])])
    moving = only(plan_of(state, (sick(devices[0]),), FREE), EVICT).candidate
    refused = Ledger(PlanFacts(snapshot=state, policy=FREE, history=tuple(flying))).charge(moving)
    assert {each.guard for each in refused} == (set() if moved else {"budget"})


def test_a_move_off_a_tainted_node_is_charged_for_what_is_in_service() -> None:
    """A gang of two Nodes leaves one that is to be tainted: eight of its GPUs are in service. One of three has 16."""
    for size, refused in ((2, False), (3, True)):
        nodes = [node(f"n{i}") for i in range(8)]
        held = [device(f"n{n}", i, f"ml/t-{n}") for n in range(size) for i in range(8)]
        free = [device(f"n{n}", i) for n in range(size, 8) for i in range(8)]
        pods = [pod(f"ml/t-{n}", f"n{n}", 8, "Job/ml/t") for n in range(size)]
        item = only(plan_of(snapshot(nodes, held + free, pods), (sick(held[0]),), FREE), EVICT)
        assert guards(item) == ({"budget"} if refused else set())
        assert not refused or "moves would disturb 16 GPUs at once" in reason(item, "budget")


# Rates


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
    policy = replace(policy, idle_storm_ratio=1.0)
    state, findings = fleet(range(5))
    assert admitted(plan_of(state, findings, policy)) == 3
    done = [remediation(RELEASE, f"workload/w{i}", phase=Phase.SUCCEEDED) for i in range(2)]
    plan = plan_of(state, findings, policy, history=done)
    assert admitted(plan) == 1
    refused = next(item for item in plan.items if not item.admitted)
    assert where in reason(refused, "rate")
    assert refused.helps == f"Wait until {NOW + 50 * MINUTE:%H:%M} UTC: the rate is 3 an hour."


@pytest.mark.parametrize(("limit", "minutes"), [(3, 10), (2, 30), (1, 50)])
def test_a_rate_says_from_when_on_one_more_may_begin(limit: int, minutes: int) -> None:
    state, findings = fleet([0])
    past = [
        remediation(RELEASE, f"workload/w{ago}", phase=Phase.SUCCEEDED, begun_minutes_ago=ago) for ago in (10, 30, 50)
    ]
    item = only(plan_of(state, findings, replace(FREE, actions_per_hour=limit), history=past), RELEASE)
    assert item.helps == f"Wait until {NOW + minutes * MINUTE:%H:%M} UTC: the rate is {limit} an hour."


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


@given(
    idle_pods=st.sets(st.integers(0, 9)),
    sick_nodes=st.sets(st.integers(0, 9), max_size=4),
    sizes=st.lists(st.integers(1, 8), min_size=10, max_size=10),
    padding=st.sampled_from((0, 10, 20)),
    closed=st.tuples(*[st.sets(st.integers(0, 9), max_size=3)] * 2),
    flying=st.tuples(*[st.sets(st.integers(0, 9), max_size=3)] * 2),
)
def test_no_limit_is_exceeded_and_more_outages_never_admit_more(
    idle_pods: set[int],
    sick_nodes: set[int],
    sizes: list[int],
    padding: int,
    closed: tuple[set[int], set[int]],
    flying: tuple[set[int], set[int]],
) -> None:
    """Whatever the candidates: Pods of 1 to 8 GPUs that are idle, Nodes that are sick, cordons and taints in flight; in
    pools of 10, 20 and 30 Nodes. Releases are admitted whatever is out of service."""
    policy = replace(FREE, storm_ratio=1.0, idle_storm_ratio=1.0)
    names = [f"n{i}" for i in range(10 + padding)]
    devices = [
        device(name, i, f"t{name}/p" if at < 10 and i < sizes[at] else "")
        for at, name in enumerate(names)
        for i in range(8)
    ]
    pods = [pod(f"t{name}/p", name, sizes[at]) for at, name in enumerate(names[:10])]
    findings = (
        *(idle(f"tn{i}/p", [d for d in devices if d.pods == (f"tn{i}/p",)]) for i in sorted(idle_pods)),
        *(sick(devices[8 * i]) for i in sorted(sick_nodes)),
    )
    limit = max((10 + padding) // 10, 1)

    def drawn(out: set[int], ours: set[int]) -> set[str]:
        state = snapshot([node(name, unschedulable=at in out) for at, name in enumerate(names)], devices, pods)
        history = [remediation(TAINT, f"node/n{i}", [f"n{i}"], gpus=8) for i in sorted(ours)]
        plan = plan_of(state, findings, policy, history=history)
        before = {f"n{i}" for i in out | ours}
        new = tainted(plan) - before
        moving: dict[str, int] = {}
        for item in plan.items:
            for ref in item.candidate.pods if item.admitted and item.candidate.action is EVICT else ():
                at = int(ref.partition("/")[0].removeprefix("tn"))
                moving[f"n{at}"] = sizes[at]
            held = {"budget", "pool_nodes"} & guards(item)
            assert item.candidate.action is not RELEASE or not held
        assert not new or len(new | before) <= limit
        assert sum(gpus for name, gpus in moving.items() if name not in new and int(name[1:]) not in out) <= 8 * limit
        for use in plan.budgets:
            assert (use.out_nodes, use.limit_nodes) == (len(before), limit)
        return new

    first = drawn(closed[0], flying[0])
    then = drawn(closed[0] | closed[1], flying[0] | flying[1])
    assert len(then) <= len(first)


@given(begun=st.integers(0, 6), extra=st.integers(0, 3), wanted=st.sets(st.integers(0, 9)))
def test_no_rate_is_exceeded_and_more_history_never_admits_more(begun: int, extra: int, wanted: set[int]) -> None:
    state, findings = fleet(sorted(wanted))
    policy = PlanPolicy(budget_ratio=1.0, idle_storm_ratio=1.0, actions_per_hour=5, pool_actions_per_hour=4)

    def count(past: int) -> int:
        history = [remediation(RELEASE, f"workload/w{i}", phase=Phase.SUCCEEDED) for i in range(past)]
        return admitted(plan_of(state, findings, policy, history=history))

    assert count(begun) <= max(4 - begun, 0)
    assert count(begun + extra) <= count(begun)
