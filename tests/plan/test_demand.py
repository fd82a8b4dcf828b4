"""Who waits: releases for named pending Pods, landings beside them, and taints that would take their place."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.act.placement import Nowhere, Room
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.cluster import Node, Pod
from gpuwatch.facts.model.decision import ActionKind, Finding, Plan, Snapshot
from gpuwatch.facts.model.remediation import Phase, Remediation
from plan.fleet import device, guards, idle, node, only, plan_of, pod, remediation, sick, snapshot

OPEN = PlanPolicy(
    budget_ratio=1.0,
    idle_storm_ratio=1.0,
    actions_per_hour=99,
    namespace_actions_per_hour=99,
    pool_actions_per_hour=99,
)
ON_DEMAND = replace(OPEN, reclaim_only_on_demand=True)
RELEASE = ActionKind.RELEASE_GANG


def waiting(name: str, gpus: int, **changes: object) -> Pod:
    return pod(f"ml/{name}", "", gpus, phase="Pending", started=None, **changes)


def idle_fleet(
    sizes: dict[str, tuple[str, int]], *pending: Pod, nodes: tuple[Node, ...] = (), **cluster: object
) -> tuple[Snapshot, tuple[Finding, ...]]:
    """sizes: name of an idle Pod → its Node and GPUs, on Nodes of 8."""
    used: dict[str, int] = {}
    devices, pods, findings = [], [], []
    for name, (at, gpus) in sizes.items():
        held = [device(at, used.get(at, 0) + i, f"ml/{name}") for i in range(gpus)]
        used[at] = used.get(at, 0) + gpus
        devices += held
        pods.append(pod(f"ml/{name}", at, gpus))
        findings.append(idle(f"ml/{name}", held))
    made = nodes or tuple(node(name) for name in sorted({at for at, _ in sizes.values()}))
    return snapshot(made, devices, [*pods, *pending], **cluster), tuple(findings)


def released(plan: Plan) -> dict[str, str]:
    return {
        item.candidate.target.name.rpartition("/")[2]: item.candidate.waiter
        for item in plan.items
        if item.candidate.action is RELEASE and item.admitted
    }


def test_several_releases_on_one_node_make_room_together() -> None:
    sizes = {"a": ("n0", 3), "b": ("n0", 3), "c": ("n0", 2), "d": ("n1", 4), "busy": ("n1", 4)}
    state, findings = idle_fleet(sizes, waiting("w", 6))
    plan = plan_of(state, findings[:4], ON_DEMAND)
    assert released(plan) == {"a": "ml/w", "b": "ml/w"}
    # Where one of them is refused, the other would be for nothing.
    plan = plan_of(state, findings[:4], replace(ON_DEMAND, actions_per_hour=2), [began(20)])
    assert released(plan) == {}
    refused = {item.candidate.target.name: guards(item) for item in plan.items}
    assert refused["Deployment/ml/a"] | refused["Deployment/ml/b"] == {"rate", "demand"}


def began(minutes: float, **changes: object) -> Remediation:
    """A release that began so long ago."""
    return remediation(
        RELEASE, f"workload/w{minutes}", phase=Phase.IN_EFFECT, begun_minutes_ago=minutes, **{"gpus": 1, **changes}
    )


@pytest.mark.parametrize(
    ("rate", "past", "served", "says"),
    [
        ("pool_actions_per_hour", [], True, ""),
        ("namespace_actions_per_hour", [], True, ""),
        ("actions_per_hour", [began(61)], True, ""),
        ("actions_per_hour", [began(10, waiter="ml/w"), began(11, waiter="ml/w")], True, ""),
        (
            "actions_per_hour",
            [began(10), began(20)],
            False,
            "2 may begin in an hour. The next may begin at 12:40 UTC at the earliest. All releases that make room for "
            "ml/w may begin together at 12:50 UTC at the earliest, however many they are.",
        ),
        ("pool_actions_per_hour", [began(10, pool="other"), began(20, pool="other")], True, ""),
        ("namespace_actions_per_hour", [began(10, namespace="ml")], False, "All releases that make room for ml/w"),
    ],
)
def test_a_group_larger_than_a_rate_begins_where_nothing_else_began(
    rate: str, past: list[Remediation], served: bool, says: str
) -> None:
    """A Pod of 8 GPUs needs five idle notebooks. They are released all or none."""
    sizes = {**{name: ("n0", 2 if name in "abc" else 1) for name in "abcde"}, "busy": ("n1", 8)}
    state, findings = idle_fleet(sizes, waiting("w", 8), nodes=(node("n0"), node("n1")))
    plan = plan_of(state, findings[:5], replace(ON_DEMAND, **{rate: 2}), past)
    assert released(plan) == (dict.fromkeys("abcde", "ml/w") if served else {})
    assert served or any(says in refusal.reason for item in plan.items for refusal in item.refusals)
    # What needs no waiting Pod is no group.
    alone = plan_of(state, findings[:5], replace(OPEN, **{rate: 2}), past)
    assert sum(item.admitted for item in alone.items) <= 2


def test_what_a_group_that_is_refused_would_have_taken_goes_to_others() -> None:
    """Two releases for the first that waits are one more than may still begin; the second needs one only."""
    sizes = {"a": ("n0", 4), "b": ("n0", 4), "c": ("n1", 2), "busy": ("n1", 6)}
    pending = (waiting("first", 8, priority=9), waiting("second", 2))
    state, findings = idle_fleet(sizes, *pending)
    assert released(plan_of(state, findings[:3], ON_DEMAND)) == {"a": "ml/first", "b": "ml/first", "c": "ml/second"}
    for limit, past, expected in (
        (2, [began(5)], {"c": "ml/second"}),
        (1, [], {"a": "ml/first", "b": "ml/first"}),
        (0, [], {}),
    ):
        policy = replace(ON_DEMAND, actions_per_hour=limit)
        assert released(plan_of(state, findings[:3], policy, past)) == expected


@given(
    sizes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=6),
    asks=st.lists(st.integers(1, 8), max_size=3),
)
def test_every_release_on_demand_serves_somebody_and_none_is_too_many(
    sizes: list[tuple[int, int]], asks: list[int]
) -> None:
    used = [0, 0, 0]
    kept = {}
    for index, (at, gpus) in enumerate(sizes):
        if used[at] + gpus <= 8:
            used[at] += gpus
            kept[f"p{index}"] = (f"n{at}", gpus)
    pending = [waiting(f"w{i}", gpus) for i, gpus in enumerate(asks)]
    nodes = tuple(node(f"n{i}") for i in range(3))
    state, findings = idle_fleet(kept, *pending, nodes=nodes)
    found = released(plan_of(state, findings, ON_DEMAND))

    def served(gone: set[str]) -> int:
        """Those that fit as it is have their places before anything is released. In the scheduler's order; of equals
        by name."""
        room = Room(nodes, state.cluster.pods, {})
        waiting_on = [each for each in pending if isinstance(room.land([each]), Nowhere)]
        room.without(f"ml/{name}" for name in gone)
        return len(pending) - sum(isinstance(room.land([each]), Nowhere) for each in waiting_on)

    assert set(found.values()) <= {each.ref for each in pending}
    if found:
        assert served(set(found)) > served(set())


def test_a_moved_gang_leaves_the_waiting_their_place() -> None:
    """One free Node: a Pod that waits takes it, so the gang has nowhere to go."""
    held = [device("n0", i, "ml/t") for i in range(8)]
    nodes = [node("n0"), node("n1")]
    devices = [*held, *(device("n1", i) for i in range(8))]
    for pending, landed in (([], True), ([waiting("w", 1)], False), ([waiting("w", 9)], True)):
        state = snapshot(nodes, devices, [pod("ml/t", "n0", 8, "Job/ml/t"), *pending])
        item = only(plan_of(state, (sick(held[0]),), OPEN), ActionKind.EVICT_GANG)
        assert ("lands" not in guards(item)) is landed


def test_two_gangs_do_not_land_in_the_same_place() -> None:
    """Of 20 Nodes two may be out of service at once, and one is free."""
    nodes = [node(f"n{i}") for i in range(20)]
    devices = [device(f"n{n}", i, f"ml/t{n}" if n != 2 else "") for n in range(20) for i in range(8)]
    pods = [pod(f"ml/t{n}", f"n{n}", 8, f"Job/ml/t{n}") for n in range(20) if n != 2]
    plan = plan_of(snapshot(nodes, devices, pods), (sick(devices[0]), sick(devices[8])), OPEN)
    moves = [item for item in plan.items if item.candidate.action is ActionKind.EVICT_GANG]
    assert [guards(item) for item in moves] == [set(), {"lands"}]
    alone = plan_of(snapshot(nodes, devices, pods), (sick(devices[8]),), OPEN)
    assert only(alone, ActionKind.EVICT_GANG).admitted
