"""The Plan: what becomes a candidate, what each guard says on both sides of its bound, score, budget and brake."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.act.plan.policy import MILDEST_FIRST, PlanPolicy
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.cluster import (
    Condition,
    DisruptionBudget,
    Gang,
    Namespace,
    OwnerStatus,
    Placement,
    Taint,
    Toleration,
)
from gpuwatch.facts.model.decision import (
    ActionKind,
    Advice,
    Finding,
    Mode,
    PlanItem,
    Score,
    Severity,
    Snapshot,
    Subject,
    SubjectKind,
)
from gpuwatch.facts.model.remediation import Phase, Remediation
from gpuwatch.facts.model.telemetry import Gap, GapKind
from plan.fleet import (
    NOW,
    device,
    guards,
    idle,
    node,
    only,
    plan_of,
    pod,
    reason,
    remediation,
    sick,
    snapshot,
    workload,
)

POLICY = PlanPolicy()


def full_node_with_gang() -> tuple[Snapshot, tuple[Finding, ...]]:
    """One gang of 8 holds a Node of which one GPU fell off the bus; seven more Nodes are free."""
    nodes = [node(f"n{i}") for i in range(8)]
    gang = Gang(id="JobSet/ml/train", framework="JobSet", workload="JobSet/ml/train", namespace="ml", pods=("ml/t-0",))
    held = [device("n0", i, "ml/t-0") for i in range(8)]
    free = [device(f"n{n}", i) for n in range(1, 8) for i in range(8)]
    member = pod("ml/t-0", "n0", 8, "JobSet/ml/train", gang=gang.id)
    return snapshot(nodes, held + free, [member], gangs=[gang]), (sick(held[0]),)


def one_idle(**changes: object) -> tuple[Snapshot, tuple[Finding, ...]]:
    """One idle Deployment of one Pod on one of two Nodes."""
    nodes = [node("n0"), node("n1")]
    held = device("n0", 0, "ml/chat")
    member = pod("ml/chat", "n0", **changes)
    return snapshot(nodes, [held, device("n1", 0)], [member]), (idle("ml/chat", [held]),)


def test_a_lost_gpu_under_a_gang_is_tainted_and_the_gang_moved() -> None:
    state, findings = full_node_with_gang()
    plan = plan_of(state, findings, POLICY)
    taint, move = only(plan, ActionKind.TAINT_NODE), only(plan, ActionKind.EVICT_GANG)
    assert taint.admitted, taint.refusals
    assert move.admitted, move.refusals
    assert move.candidate.target == Subject(SubjectKind.GANG, "JobSet/ml/train")
    # The move is off the Node that is tainted anyway: its GPUs are charged once.
    (pool,) = [use for use in plan.budgets if use.scope == "pool/train"]
    assert (pool.limit_nodes, pool.limit_gpus) == (1, 8)


def moves_with(
    taint: Mode,
    move: Mode,
    history: tuple[Remediation, ...] = (),
    pod_changes: Mapping[str, object] | None = None,
    **n0: object,
) -> PlanItem:
    """The move of that gang, with these modes of taints and of moves, and with its Node changed."""
    state, findings = full_node_with_gang()
    cluster = state.cluster
    nodes = tuple(replace(each, **(n0 if each.name == "n0" else {})) for each in cluster.nodes)  # type: ignore[arg-type]
    pods = tuple(replace(each, **(pod_changes or {})) for each in cluster.pods)  # type: ignore[arg-type]
    state = replace(state, cluster=replace(cluster, nodes=nodes, pods=pods))
    policy = replace(POLICY, modes={ActionKind.TAINT_NODE: taint, ActionKind.EVICT_GANG: move})
    return only(plan_of(state, findings, policy, history), ActionKind.EVICT_GANG)


@pytest.mark.parametrize("taint", Mode)
@pytest.mark.parametrize("move", Mode)
def test_a_gang_is_moved_only_where_its_node_is_tainted_as_surely(taint: Mode, move: Mode) -> None:
    """By this plan."""
    item = moves_with(taint, move)
    if MILDEST_FIRST.index(taint) >= MILDEST_FIRST.index(move):
        assert item.admitted, item.refusals
    else:
        assert guards(item) == {"tainted_first"}
        said = reason(item, "tainted_first")
        assert said.startswith("n0 has neither NoSchedule nor a cordon: the scheduler may put the Pods back there")
        assert said.endswith(" is suggest.") is (taint is Mode.SUGGEST)


def _taint(phase: Phase, **changes: object) -> Remediation:
    return replace(remediation(ActionKind.TAINT_NODE, "node/n0", ["n0"], phase=phase), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("history", "n0", "allowed"),
    [
        ((), {"unschedulable": True}, True),
        ((), {"taints": (Taint(keys.DEGRADED, "xid", "NoSchedule"),)}, True),
        ((), {"taints": (Taint(keys.DEGRADED, "xid", "NoExecute"),)}, True),
        ((), {"taints": (Taint(keys.DEGRADED, "xid", "PreferNoSchedule"),)}, False),
        ((), {"taints": (Taint("dedicated", "ml", "NoSchedule"),)}, False),
        ((_taint(Phase.ACTING),), {}, True),
        ((_taint(Phase.IN_EFFECT),), {}, True),
        ((_taint(Phase.NOTIFIED),), {}, True),
        ((_taint(Phase.PROPOSED, steps=(), history=()),), {}, False),
        ((_taint(Phase.PROPOSED, steps=(), history=(), approved=True),), {}, True),
        ((_taint(Phase.UNDOING, undo_asked=True),), {}, False),
    ],
    ids=[
        "cordoned",
        "tainted",
        "tainted strictly",
        "tainted mildly",
        "dedicated",
        "being tainted",
        "taint in effect",
        "notified",
        "proposed",
        "approved",
        "being undone",
    ],
)
def test_a_gang_is_moved_where_somebody_fences_its_node(
    history: tuple[Remediation, ...], n0: dict[str, object], allowed: bool
) -> None:
    """Taints that are there, or open; this plan draws none that is enforced."""
    item = moves_with(Mode.OBSERVE, Mode.ENFORCE, history, **n0)
    assert ("tainted_first" not in guards(item)) is allowed, item.refusals


@pytest.mark.parametrize(
    ("toleration", "refused"),
    [
        (Toleration(key="", operator="Exists"), True),
        (Toleration(key=keys.DEGRADED, operator="Exists", effect="NoSchedule"), True),
        (Toleration(key=keys.DEGRADED, value="xid"), True),
        (Toleration(key=keys.DEGRADED, value="ecc"), False),
        (Toleration(key="nvidia.com/gpu", operator="Exists"), False),
    ],
)
def test_a_gang_that_no_taint_keeps_off_stays(toleration: Toleration, refused: bool) -> None:
    item = moves_with(Mode.ENFORCE, Mode.ENFORCE, pod_changes={"placement": Placement(tolerations=(toleration,))})
    assert ("tainted_first" in guards(item)) is refused
    if refused:
        assert reason(item, "tainted_first").startswith("Pod ml/t-0 tolerates the taint gpuwatch.dev/degraded")


def test_the_taint_of_a_move_has_its_turn_before_it() -> None:
    """Two gangs hold four GPUs of a Node with a sick one. The other four would be missed, as the other Nodes have two
    free GPUs each, so a move is worth more than a taint; and one Node may be out of service."""
    nodes = [node(f"n{i}") for i in range(8)]
    names = [f"JobSet/ml/g{i}" for i in range(2)]
    gangs = [Gang(id=name, framework="JobSet", workload=name, namespace="ml", pods=()) for name in names]
    members = [pod(f"ml/p{n}-{i}", f"n{n}", owner=names[n], gang=names[n]) for n in range(2) for i in range(4)]
    others = [pod(f"ml/p{n}-{i}", f"n{n}") for n in range(2, 8) for i in range(6)]
    held = {each.ref for each in (*members, *others)}
    refs = {(n, i): f"ml/p{n}-{i}" for n in range(8) for i in range(8)}
    devices = [device(f"n{n}", i, ref if ref in held else "") for (n, i), ref in refs.items()]
    state = snapshot(nodes, devices, [*members, *others], gangs=gangs)
    policy = replace(POLICY, budget_ratio=0.0, storm_ratio=1.0)
    plan = plan_of(state, (sick(devices[0]), sick(devices[8], confidence_ratio=0.95)), policy)
    items = [(item.candidate.action, item.candidate.nodes[0], item.admitted) for item in plan.items]
    assert items == [
        (ActionKind.EVICT_GANG, "n1", True),
        (ActionKind.EVICT_GANG, "n0", False),
        (ActionKind.TAINT_NODE, "n1", True),
        (ActionKind.TAINT_NODE, "n0", False),
    ]


def one_lost_of_eight(gang: bool = False, also_free: int = 0, waiting: int = 0) -> PlanItem:
    """The taint of a Node with one lost GPU and seven free ones, in a pool of eight Nodes of which all else is held, by
    Pods of one GPU or by gangs of two Nodes; but for so many Nodes, and with so many GPUs that others wait for."""
    nodes = [node(f"n{i}") for i in range(8)]
    held = range(1 + also_free, 8)
    # Six Nodes make three gangs; the seventh holds nobody of the cluster's then.
    names = {n: f"JobSet/ml/g{(n - 1) // 2}" if gang else "" for n in held if not gang or n < 7}
    members = [pod(f"ml/p{n}-{i}", f"n{n}", gang=name) for n, name in names.items() for i in range(8)]
    gangs = [
        Gang(id=name, framework="JobSet", workload=name, namespace="ml", pods=())
        for name in sorted(filter(None, set(names.values())))
    ]
    devices = [device(f"n{n}", i, f"ml/p{n}-{i}" if n in held else "") for n in range(8) for i in range(8)]
    pods = [*members, *([pod("ml/waits", "", gpus=waiting, phase="Pending")] if waiting else [])]
    state = snapshot(nodes, devices, pods, gangs=gangs)
    return only(plan_of(state, (sick(devices[0]),), POLICY), ActionKind.TAINT_NODE)


def worth(item: PlanItem) -> float:
    return item.score.gained_gpu_hours * item.score.confidence_ratio - item.score.disrupted_gpu_hours


def test_the_documented_score_examples() -> None:
    """Docstring of plan.score."""
    alone = one_lost_of_eight()
    assert worth(alone) == pytest.approx(-118.4)
    assert alone.score.pool_gpu_hours == 1536
    assert guards(alone) == {"worth_it"}
    spared = one_lost_of_eight(also_free=1)
    assert worth(spared) == pytest.approx(21.6)
    assert spared.admitted, spared.refusals
    assert worth(one_lost_of_eight(gang=True)) == pytest.approx(205.6)


@pytest.mark.parametrize(("also_free", "missed"), [(0, 7), (1, 0)])
@pytest.mark.parametrize("waiting", [0, 8, 10**9])
def test_free_gpus_are_missed_as_far_as_others_cannot_stand_in(also_free: int, missed: int, waiting: int) -> None:
    """A block of seven on another Node stands in. What waits although it is free cannot use it."""
    assert one_lost_of_eight(also_free=also_free, waiting=waiting).score.disrupted_gpu_hours == 20 * missed


def test_single_free_gpus_do_not_stand_in_for_a_block() -> None:
    nodes = [node(f"n{i}") for i in range(8)]
    pods = [pod(f"ml/p{n}-{i}", f"n{n}") for n in range(1, 8) for i in range(7)]
    devices = [device(f"n{n}", i, f"ml/p{n}-{i}" if n > 0 and i < 7 else "") for n in range(8) for i in range(8)]
    item = only(plan_of(snapshot(nodes, devices, pods), (sick(devices[0]),), POLICY), ActionKind.TAINT_NODE)
    assert item.score.disrupted_gpu_hours == 140


@pytest.mark.parametrize(
    "status",
    [s for s in OwnerStatus if s is not OwnerStatus.FOUND],
)
def test_owners_that_could_not_restore_it_are_refused(status: OwnerStatus) -> None:
    state, findings = one_idle()
    owner = workload("Deployment/ml/chat", status)
    state = replace(state, cluster=replace(state.cluster, workloads=(owner,)))
    item = only(plan_of(state, findings, POLICY), ActionKind.RELEASE_GANG)
    assert guards(item) == {"owner"}
    assert "ml/chat" in item.refusals[0].reason


@pytest.mark.parametrize(
    ("note", "guard"),
    [
        ({keys.OPT_OUT: "true"}, "opted_out"),
        ({keys.OBJECTION: "not today"}, "opted_out"),
        ({keys.SNOOZE_UNTIL: "2027-01-01T00:00:00Z"}, "snoozed"),
    ],
    ids=["opt-out", "object", "snooze"],
)
@pytest.mark.parametrize("where", ["pod", "workload", "namespace", "node"])
def test_what_owners_ask_for_is_honoured_wherever_it_stands(where: str, note: dict[str, str], guard: str) -> None:
    state, findings = one_idle()
    cluster = state.cluster
    changed = {
        "pod": lambda: replace(cluster, pods=(replace(cluster.pods[0], annotations=note),)),
        "workload": lambda: replace(cluster, workloads=(replace(cluster.workloads[0], annotations=note),)),
        "namespace": lambda: replace(cluster, namespaces=(Namespace(name="ml", annotations=note),)),
        "node": lambda: replace(cluster, nodes=(replace(cluster.nodes[0], annotations=note), cluster.nodes[1])),
    }[where]()
    item = only(plan_of(replace(state, cluster=changed), findings, POLICY), ActionKind.RELEASE_GANG)
    assert guards(item) == {guard}


@pytest.mark.parametrize("note", [{keys.OPT_OUT: "true"}, {keys.OBJECTION: "no"}, {keys.SNOOZE_UNTIL: "2027-01-01Z"}])
def test_a_tenant_protects_its_pods_and_not_the_node_below_them(note: dict[str, str]) -> None:
    """A taint ends no Pod; moving the same Pods is refused."""
    held = device("n0", 0, "ml/chat")
    state = snapshot(
        [node("n0"), node("n1")],
        [held],
        [pod("ml/chat", "n0", annotations=note)],
        namespaces=(Namespace(name="ml", annotations=note),),
    )
    plan = plan_of(state, (sick(held),), POLICY)
    asked = {"opted_out", "snoozed"}
    assert not guards(only(plan, ActionKind.TAINT_NODE)) & asked
    assert guards(only(plan, ActionKind.EVICT_GANG)) & asked


@pytest.mark.parametrize(
    ("value", "refused"),
    [
        ((NOW + timedelta(minutes=1)).isoformat(), True),
        (NOW.isoformat(), False),
        ("tomorrow", True),
        ("2026-03-02T13:00:00", True),  # no zone: nobody knows when it ends
    ],
)
def test_snooze(value: str, refused: bool) -> None:
    state, findings = one_idle(annotations={keys.SNOOZE_UNTIL: value})
    item = only(plan_of(state, findings, POLICY), ActionKind.RELEASE_GANG)
    assert guards(item) == ({"snoozed"} if refused else set())


def test_disruption_budget_on_both_sides() -> None:
    state, findings = one_idle(labels={"app": "chat"})
    for allowed, expected in ((1, set()), (0, {"disruption_budget"})):
        budget = DisruptionBudget(
            namespace="ml", name="chat", match_labels={"app": "chat"}, disruptions_allowed=allowed
        )
        cluster = replace(state.cluster, budgets=(budget,))
        item = only(plan_of(replace(state, cluster=cluster), findings, POLICY), ActionKind.RELEASE_GANG)
        assert guards(item) == expected


def test_without_a_cluster_everything_is_refused_and_says_why() -> None:
    held = device("n0", 0, "ml/chat")
    plan = plan_of(Snapshot(at=NOW, devices=(held,)), (idle("ml/chat", [held]), sick(held)), POLICY)
    assert plan.items
    assert all("cluster_known" in guards(item) for item in plan.items)


def test_the_limit_goes_to_the_worst_fault_and_then_to_the_best_score() -> None:
    """Of three sick Nodes of ten one may be tainted. On n2 are warnings alone, and three GPUs that would be spared."""
    nodes = [node(f"n{i}") for i in range(10)]
    devices = [device(f"n{n}", i, f"ml/p{n}-{i}" if i > 2 else "") for n in range(10) for i in range(8)]
    pods = [pod(f"ml/p{n}-{i}", f"n{n}") for n in range(10) for i in range(3, 8)]
    faults = ((0, Severity.CRITICAL, 0.8), (1, Severity.CRITICAL, 0.85), (2, Severity.WARNING, 0.95))
    findings = tuple(
        sick(devices[8 * n + i], severity=severity, advice=Advice.RESET_WHEN_IDLE, confidence_ratio=sure)
        for n, severity, sure in faults
        for i in range(3 if n == 2 else 1)
    )
    plan = plan_of(snapshot(nodes, devices, pods), findings, POLICY)
    found = [(item.candidate.target.name, guards(item)) for item in plan.items]
    assert found == [("n2", {"budget"}), ("n1", set()), ("n0", {"budget"})]


@pytest.mark.parametrize(("seen", "resolved", "stopped"), [(5, True, False), (4, True, True), (4, False, False)])
def test_nodes_that_telemetry_does_not_show_are_missed(seen: int, resolved: bool, stopped: bool) -> None:
    """Where a part of the fleet was lost with its past: half of the Nodes is enough, less is not.

    A machine of which the Node is not known may be any of them.
    """
    nodes = [node(f"n{i}") for i in range(10)]
    nodes += [node("cpu", gpus=0), node("down", conditions=(Condition("Ready", "False"),))]
    devices = [device(f"n{n}", i) for n in range(seen) for i in range(8)]
    if not resolved:
        devices.append(replace(device("n9", 0), node=None))
    plan = plan_of(snapshot(nodes, devices), (sick(devices[0]),), POLICY)
    assert plan.brake == ("Telemetry shows devices of only 4 of 10 Nodes that have any." if stopped else "")


def test_missing_telemetry_is_a_brake() -> None:
    state, findings = full_node_with_gang()
    gone = tuple(replace(item, present=index < 31) for index, item in enumerate(state.devices))
    assert "Only 31 of 64" in plan_of(replace(state, devices=gone), findings, POLICY).brake
    half = tuple(replace(item, present=index < 32) for index, item in enumerate(state.devices))
    assert plan_of(replace(state, devices=half), findings, POLICY).brake == ""


def test_a_partial_answer_is_a_brake_and_another_gap_is_none() -> None:
    state, findings = full_node_with_gang()
    for kind, halted in ((GapKind.PARTIAL, True), (GapKind.SIGNAL_MISSING, False)):
        gap = Gap(kind=kind, what="answers", detail="store-3 did not answer.")
        plan = plan_of(replace(state, gaps=(gap,)), findings, POLICY)
        assert bool(plan.brake) is halted
        assert all(("partial_answer" in guards(item)) is halted for item in plan.items)


def test_what_a_partial_answer_does_not_show_is_no_storm() -> None:
    """Its brake ends with it: no cool-down follows, and one that runs goes on as it was."""
    state, findings = full_node_with_gang()
    gap = Gap(kind=GapKind.PARTIAL, what="answers", detail="store-3 did not answer.")
    gone = tuple(replace(item, present=False) for item in state.devices)
    assert plan_of(replace(state, devices=gone), findings, POLICY).last_storm == state.at
    plan = plan_of(replace(state, devices=gone, gaps=(gap,)), findings, POLICY)
    assert (plan.brake, plan.last_storm) == ("Telemetry answered only in part: store-3 did not answer.", None)
    before = state.at - timedelta(minutes=5)
    assert plan_of(replace(state, gaps=(gap,)), findings, POLICY, last_storm=before).last_storm == before


def test_a_namespace_may_ask_for_a_milder_mode_only() -> None:
    state, findings = one_idle()
    policy = PlanPolicy(modes={ActionKind.RELEASE_GANG: Mode.SUGGEST})
    for asked, expected in (("enforce", Mode.SUGGEST), ("observe", Mode.OBSERVE), ("whatever", Mode.OBSERVE)):
        space = Namespace(name="ml", annotations={keys.MODE: asked})
        asked_state = replace(state, cluster=replace(state.cluster, namespaces=(space,)))
        assert only(plan_of(asked_state, findings, policy), ActionKind.RELEASE_GANG).mode is expected
    assert only(plan_of(state, findings, POLICY), ActionKind.RELEASE_GANG).mode is Mode.OBSERVE


def test_a_score_without_a_pool_is_not_a_number() -> None:
    score = Score(gained_gpu_hours=1, disrupted_gpu_hours=0, pool_gpu_hours=0, confidence_ratio=1, horizon_hours=24)
    assert math.isnan(score.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("budget_ratio", 1.1), ("min_confidence_ratio", -0.1), ("storm_ratio", -1.0), ("min_pool_nodes_left", -1)],
)
def test_bounds_out_of_range_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"plan\.{field} is"):
        PlanPolicy(**{field: value})  # type: ignore[arg-type]


@given(
    held=st.lists(st.booleans(), min_size=24, max_size=24),
    sick_gpus=st.sets(st.integers(0, 23), max_size=6),
    idle_gpus=st.sets(st.integers(0, 23), max_size=12),
    cordoned=st.sets(st.integers(0, 2), max_size=2),
)
def test_no_random_fleet_gets_past_its_budget(
    held: list[bool], sick_gpus: set[int], idle_gpus: set[int], cordoned: set[int]
) -> None:
    """Whatever is sick, idle or cordoned: what is admitted fits every budget beside what is already out of service."""
    nodes = [node(f"n{i}", unschedulable=i in cordoned) for i in range(3)]
    devices = [device(f"n{i // 8}", i % 8, f"ml/p{i}" if held[i] else "") for i in range(24)]
    pods = [pod(f"ml/p{i}", f"n{i // 8}") for i in range(24) if held[i]]
    findings = (
        *(sick(devices[i]) for i in sorted(sick_gpus)),
        *(idle(f"ml/p{i}", [devices[i]]) for i in sorted(idle_gpus) if held[i]),
    )
    plan = plan_of(snapshot(nodes, devices, pods), findings, PlanPolicy(budget_ratio=1.0))
    tainted: set[str] = set()
    moved: set[str] = set()
    for item in plan.items:
        if item.admitted and item.candidate.action is ActionKind.TAINT_NODE:
            tainted |= set(item.candidate.nodes)
        elif item.admitted and item.candidate.action is ActionKind.EVICT_GANG:
            moved |= {d.id for d in devices if set(d.pods) & set(item.candidate.pods)}
    # A GPU on a cordoned Node is out of service already, and no further harm.
    out = {f"n{i}" for i in cordoned}
    for use in plan.budgets:
        assert (use.out_nodes, use.limit_nodes, use.limit_gpus) == (len(out), 1, 8)
        assert not tainted or len(out | tainted) <= 1
        assert len({d.id for d in devices if d.id in moved and d.node not in out | tainted}) <= 8
    assert not [
        item
        for item in plan.items
        if item.admitted
        and item.candidate.action is ActionKind.TAINT_NODE
        and set(item.candidate.nodes) & {f"n{i}" for i in cordoned}
    ]


def test_a_finding_on_a_pod_that_ended_is_a_refusal_and_no_crash() -> None:
    held = device("n0", 0, "ml/a")
    for gone in ({"phase": "Succeeded"}, {"phase": ""}, {"accelerators": {}}):
        state = snapshot([node("n0", 1)], [held], [replace(pod("ml/a", "n0"), **gone)])  # type: ignore[arg-type]
        plan = plan_of(state, (idle("ml/a", [held]),), POLICY)
        assert not only(plan, ActionKind.RELEASE_GANG).admitted


T = TypeVar("T")


class Counted(tuple[T, ...]):
    """Counts its walks."""

    walks = 0

    def __iter__(self) -> Iterator[T]:
        self.walks += 1
        return super().__iter__()


def walks(candidates: int, kind: str) -> list[int]:
    """Over devices, Nodes, Pods and PodDisruptionBudgets."""
    devices = [device(f"n{number}", 0, f"ml/p{number}") for number in range(40)]
    pods = [pod(f"ml/p{number}", f"n{number}") for number in range(40)]
    state = snapshot([node(f"n{number}") for number in range(40)], devices, pods)
    budgets = Counted([DisruptionBudget(namespace="other", name=f"b{number}") for number in range(9)])
    given = [Counted(each) for each in (devices, state.cluster.nodes, pods)]
    cluster = replace(state.cluster, nodes=given[1], pods=given[2], budgets=budgets)
    found = [idle(each.pods[0], [each]) if kind == "releases" else sick(each) for each in devices[: candidates * 2 : 2]]
    plan = plan_of(
        replace(state, devices=given[0], cluster=cluster),
        tuple(found),
        PlanPolicy(storm_ratio=1.0, idle_storm_ratio=1.0),
    )
    assert len(plan.items) == candidates * (1 if kind == "releases" else 2)
    assert plan.brake == ""
    return [each.walks for each in (*given, budgets)]


@pytest.mark.parametrize("kind", ["releases", "moves"])
def test_more_candidates_are_no_more_walks_over_the_fleet(kind: str) -> None:
    few, many = walks(2, kind), walks(12, kind)
    assert all(few)
    assert many == few
