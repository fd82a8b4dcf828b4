"""Moves for a Pod that waits: the cheapest that places it, only of Pods that may be moved, and only once it pays."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpuwatch.act.placement import Nowhere
from gpuwatch.act.plan.draw import draw_plan
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.moves import place_for_waiter
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.cluster import Namespace, Node, Pod
from gpuwatch.facts.model.decision import ActionKind, Plan, PlanItem, Snapshot
from gpuwatch.facts.model.remediation import Phase
from plan.fleet import NOW, device, guards, idle, node, plan_of, pod, reason, remediation, snapshot, workload

ROOM = ActionKind.MAKE_ROOM
POLICY = PlanPolicy(budget_ratio=1.0)
MAY = {keys.MAY_MOVE: "true"}


def waits(name: str, gpus: int, hours: float = 6.0, **changes: object) -> Pod:
    created = NOW - timedelta(hours=hours)
    return pod(f"ml/{name}", "", gpus, phase="Pending", started=None, created=created, **changes)


def works(ref: str, on: str, gpus: int, hours: float = 2.0, **changes: object) -> Pod:
    """Of an owner who allows moves, with so many hours of work that a restart loses."""
    return pod(ref, on, gpus, started=NOW - timedelta(hours=hours), **{"annotations": MAY, **changes})


def fleet(*pods: Pod, nodes: tuple[Node, ...] = (), **more: object) -> Snapshot:
    made = nodes or (node("n0"), node("n1"))
    used: dict[str, int] = {}
    devices = []
    for each in pods:
        for _ in range(sum(each.accelerators.values()) if each.node else 0):
            devices.append(device(each.node, used.get(each.node, 0), each.ref))
            used[each.node] = used.get(each.node, 0) + 1
    devices += [device(n.name, at) for n in made for at in range(used.get(n.name, 0), sum(n.accelerators.values()))]
    return snapshot(made, devices, pods, **more)


def moves(plan: Plan) -> dict[str, PlanItem]:
    """By the first Pod that moves."""
    return {item.candidate.pods[0]: item for item in plan.items if item.candidate.action is ROOM}


CROWDED = (works("ml/a", "n0", 2, 3.0), works("ml/b", "n1", 2, 1.0), waits("w", 8))
"""Each of two Nodes has a Pod of two GPUs; who waits needs a whole Node."""


def test_the_pod_that_loses_least_leaves_a_node_to_the_one_that_waits() -> None:
    found = moves(plan_of(fleet(*CROWDED), policy=POLICY))
    assert list(found) == ["ml/b"]
    item = found["ml/b"]
    assert item.admitted, item.refusals
    assert item.candidate.waiter == "ml/w"
    assert [(room.node, room.pods) for room in item.room] == [("n0", 1)]
    assert item.candidate.reason == (
        "Pod ml/w waits for 8 accelerators. It is placed once this Pod leaves n1, and they have a place elsewhere."
    )
    # 8 GPUs × 6 h that it waited, against 2 GPUs × 1 h of work.
    assert (item.score.gained_gpu_hours, item.score.disrupted_gpu_hours) == (48.0, 2.0)
    assert str(item.mode) == "observe"


@pytest.mark.parametrize(("waited", "worth"), [(0.24, False), (0.26, True)])
def test_it_pays_once_the_waiting_has_cost_as_much_as_the_move_does(waited: float, worth: bool) -> None:
    """8 GPUs × 0.25 h are the 2 GPU-hours that the move loses."""
    state = fleet(*CROWDED[:2], waits("w", 8, waited))
    item = moves(plan_of(state, policy=POLICY))["ml/b"]
    assert guards(item) == (set() if worth else {"worth_it"})


def test_a_wait_of_unknown_length_gains_nothing() -> None:
    state = fleet(*CROWDED[:2], replace(waits("w", 8), created=None))
    assert guards(moves(plan_of(state, policy=POLICY))["ml/b"]) == {"worth_it"}


@pytest.mark.parametrize(
    ("told", "owner", "space", "allowed"),
    [
        ({}, {}, {}, False),
        (MAY, {}, {}, True),
        ({}, MAY, {}, True),
        ({}, {}, MAY, True),
        ({keys.MAY_MOVE: "perhaps"}, MAY, {}, False),
        ({keys.LAST_CHECKPOINT: (NOW - timedelta(minutes=10)).isoformat()}, {}, {}, True),
        ({keys.LAST_CHECKPOINT: (NOW - timedelta(hours=30)).isoformat()}, {}, {}, False),  # before it started
        ({keys.LAST_CHECKPOINT: NOW.isoformat(), keys.MAY_MOVE: "false"}, {}, MAY, False),
    ],
)
def test_only_what_its_owner_allows_or_what_saves_its_work_is_moved(
    told: dict[str, str], owner: dict[str, str], space: dict[str, str], allowed: bool
) -> None:
    state = fleet(
        works("ml/b", "n1", 2, 1.0, annotations=told),
        works("ml/a", "n0", 2, annotations={keys.MAY_MOVE: "false"}),
        waits("w", 8),
        workloads=[workload(f"Deployment/ml/{name}", annotations=owner) for name in "abw"],
        namespaces=(Namespace(name="ml", labels={}, annotations=space),),
    )
    item = moves(plan_of(state, policy=POLICY))["ml/b"]
    assert guards(item) == (set() if allowed else {"allowed"})
    if not allowed:
        assert reason(item, "allowed").startswith("Pod ml/b works, and its owner ")


@pytest.mark.parametrize("forbidden", [False, True])
def test_an_idle_pod_is_moved_without_leave_but_not_where_it_is_forbidden(forbidden: bool) -> None:
    told = {keys.MAY_MOVE: "false"} if forbidden else {}
    other = works("ml/a", "n0", 2, annotations={keys.MAY_MOVE: "false"})
    state = fleet(pod("ml/b", "n1", 2, annotations=told), other, waits("w", 8, 20.0))
    held = [each for each in state.devices if "ml/b" in each.pods]
    found = moves(plan_of(state, (idle("ml/b", held),), replace(POLICY, idle_storm_ratio=1.0)))
    assert [guards(item) for item in found.values()] == [{"demand", *(["allowed"] if forbidden else [])}]


def test_a_willing_owner_is_asked_before_a_cheaper_one_who_has_not_said_so() -> None:
    state = fleet(CROWDED[0], replace(CROWDED[1], annotations={}), CROWDED[2])
    found = moves(plan_of(state, policy=POLICY))
    assert list(found) == ["ml/a"]
    assert found["ml/a"].admitted


def test_nothing_moves_that_would_find_no_place() -> None:
    full = (works("ml/a", "n0", 5), works("ml/b", "n1", 5), waits("w", 8))
    assert moves(plan_of(fleet(*full), policy=POLICY)) == {}


def test_nothing_moves_where_the_one_that_waits_has_room() -> None:
    """Its scheduler has not told so yet."""
    nodes = (node("n0"), node("n1"), node("n2"))
    assert moves(plan_of(fleet(*CROWDED, nodes=nodes), policy=POLICY)) == {}


def test_a_release_of_idle_gpus_goes_before_a_move() -> None:
    chat = pod("ml/chat", "n1", 2, "Deployment/ml/chat")
    state = fleet(works("ml/a", "n0", 2), chat, waits("w", 8))
    held = [each for each in state.devices if "ml/chat" in each.pods]
    modes = {ActionKind.RELEASE_GANG: "enforce", ROOM: "enforce"}
    policy = replace(POLICY, modes=modes, idle_storm_ratio=1.0)
    plan = plan_of(state, (idle("ml/chat", held),), policy)
    (item,) = moves(plan).values()
    assert guards(item) >= {"demand"}
    assert "makes the room for ml/w, and ends no work" in reason(item, "demand")


def test_pods_that_need_each_other_are_not_moved_one_by_one() -> None:
    """Two Pods of one Job, of which the whole would be stopped: they leave together, or not at all."""
    job = "Job/ml/pair"
    pair = [works(f"ml/pair-{at}", f"n{at}", 2, 1.0, owner=job) for at in range(2)]
    nodes = (node("n0"), node("n1"), node("n2", 4))
    state = fleet(*pair, waits("w", 8), nodes=nodes, workloads=[workload(job), workload("Deployment/ml/w")])
    (item,) = moves(plan_of(state, policy=POLICY)).values()
    assert item.candidate.pods == ("ml/pair-0", "ml/pair-1")
    assert str(item.candidate.target) == "workload/Job/ml/pair"


def test_a_move_that_was_proposed_is_kept_and_no_second_one_is_looked_for() -> None:
    """Meanwhile the other Pod would lose less."""
    state = fleet(replace(CROWDED[0], started=NOW, uid="u-a"), replace(CROWDED[1], uid="u-b"), CROWDED[2])
    assert list(moves(plan_of(state, policy=POLICY))) == ["ml/a"]
    mine = remediation(
        ROOM,
        "workload/Deployment/ml/b",
        ("n1",),
        phase=Phase.NOTIFIED,
        begun_minutes_ago=None,
        pods=("ml/b",),
        pod_uids=("u-b",),
        waiter="ml/w",
        namespace="ml",
    )
    found = moves(plan_of(state, policy=POLICY, history=[mine]))
    assert {name: guards(item) for name, item in found.items()} == {"ml/b": {"already_open"}}
    again = moves(draw_plan(PlanFacts(snapshot=state, policy=POLICY, rechecked=(mine.proposal,))))
    assert {name: guards(item) for name, item in again.items()} == {"ml/b": set()}
    gone = replace(state, cluster=replace(state.cluster, pods=state.cluster.pods[:2]))
    assert moves(draw_plan(PlanFacts(snapshot=gone, policy=POLICY, rechecked=(mine.proposal,)))) == {}


def test_equal_waiters_are_looked_at_once_and_the_next_ones_need_has_its_turn() -> None:
    pods = [works(f"ml/p{at}", f"n{at}", 2, at + 1.0) for at in range(3)]
    others = (waits("w1", 8), waits("w2", 8), waits("w3", 8, cpu_cores=1.0))
    state = fleet(*pods, *others, nodes=tuple(node(f"n{at}", cpu_cores=9.0) for at in range(3)))
    found = moves(plan_of(state, policy=POLICY))
    assert {name: item.candidate.waiter for name, item in found.items()} == {"ml/p0": "ml/w1", "ml/p2": "ml/w3"}


def test_the_place_of_the_one_that_waits_counts_first() -> None:
    """A move whose Pod would take the room that it is to free lands nowhere."""
    state = fleet(*CROWDED)
    facts = PlanFacts(snapshot=state, policy=POLICY)
    (item,) = moves(draw_plan(facts)).values()
    assert place_for_waiter(item.candidate, facts.ground.room.copy(), facts) == {"ml/b": "n0"}
    narrow = fleet(*CROWDED, nodes=(node("n0", 3), node("n1")))
    facts = PlanFacts(snapshot=narrow, policy=POLICY)
    found = place_for_waiter(item.candidate, facts.ground.room.copy(), facts)
    assert isinstance(found, Nowhere)
    assert "ml/b" in found.reason or "GPU" in found.reason


def test_a_gang_with_a_pod_on_a_node_that_is_not_known_stays() -> None:
    job = "Job/ml/pair"
    pair = [works(f"ml/pair-{at}", f"n{at}", 2, 1.0, owner=job) for at in (1, 9)]
    state = fleet(*pair, CROWDED[0], waits("w", 8), workloads=[workload(job), workload("Deployment/ml/a")])
    assert list(moves(plan_of(state, policy=POLICY))) == ["ml/a"]
