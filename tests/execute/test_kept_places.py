"""A move keeps the gang's place, or it is not begun; and what is undone runs again."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from execute.living import ENFORCE, Fleet, drive, quick
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.objects import Object
from gpuwatch.facts.model.decision import ActionKind, Mode, Plan
from gpuwatch.facts.model.remediation import Phase, Remediation


def start(fleet: Fleet, store: RemediationStore, *actions: ActionKind, **changes: Any) -> Executor:
    modes = dict.fromkeys(actions, Mode.ENFORCE) or ENFORCE.modes
    executor = fleet.executor(store, ExecutorPolicies(replace(ENFORCE, modes=modes), quick(**changes)))
    fleet.propose(executor)
    return executor


def plan_of(fleet: Fleet, executor: Executor) -> Plan:
    return fleet.plan(executor)


def moves(store: RemediationStore) -> list[Remediation]:
    return [each for each in store.all() if each.proposal.action is ActionKind.EVICT_GANG]


def running(fleet: Fleet, name: str) -> int:
    return sum(pod["status"]["phase"] == "Running" for pod in fleet.pods(name))


def refusals(fleet: Fleet, executor: Executor) -> str:
    items = [item for item in plan_of(fleet, executor).items if item.candidate.action is ActionKind.EVICT_GANG]
    return " ".join(refusal.reason for item in items for refusal in item.refusals)


# Queues


@pytest.mark.parametrize("kind", ["Volcano", "Job"])
def test_a_gang_of_a_queue_with_room_is_not_stopped_either(store: RemediationStore, kind: str) -> None:
    """Whether the room is still there when the gang is resumed, nothing says."""
    fleet = Fleet(sick={"GPU-n0-0"})
    fleet.owner(kind, "train", 8)
    if kind == "Job":
        fleet.queue("train")
    executor = start(fleet, store)
    drive(fleet, executor, 12)
    assert running(fleet, "train") == 1
    assert not moves(store)
    assert "the next in the queue" in refusals(fleet, executor)


def default_queue(fleet: Fleet) -> None:
    """The Job is in a queue without a label of it, which the last look did not show."""
    fleet.queue("train")
    job = fleet.find("train")
    del job["metadata"]["labels"]
    fleet.cluster.put(job)


def another_scheduler(fleet: Fleet) -> None:
    (pod,) = fleet.pods("train")
    fleet.cluster.put({**pod, "spec": {**pod["spec"], "schedulerName": "kai-scheduler"}})


@pytest.mark.parametrize("queued", [default_queue, another_scheduler])
@pytest.mark.parametrize("at", [Phase.NOTIFIED, Phase.ACTING], ids=["before-the-claim", "before-the-first-write"])
def test_a_queue_is_asked_for_right_before_the_first_write(
    store: RemediationStore, queued: Callable[[Fleet], None], at: Phase
) -> None:
    fleet = stuck_move()
    executor = start(fleet, store, ActionKind.EVICT_GANG)
    while moves(store)[0].phase is not at:
        drive(fleet, executor, 1 / 60)
    assert moves(store)[0].began_at is None
    queued(fleet)
    drive(fleet, executor, 2)
    (move,) = moves(store)
    assert (move.phase, move.began_at) == (Phase.REFUSED, None)
    assert "the next in the queue" in " ".join(turn.message for turn in move.history)
    assert running(fleet, "train") == 1


def test_a_move_waits_while_it_cannot_be_read_whether_a_queue_admits_it(store: RemediationStore) -> None:
    fleet = stuck_move()
    executor = start(fleet, store, ActionKind.EVICT_GANG)
    may = fleet.cluster._may
    fleet.cluster._may = lambda verb, resource: "kueue" not in resource  # type: ignore[method-assign]
    drive(fleet, executor, 1)
    (move,) = moves(store)
    assert (move.phase, move.began_at, running(fleet, "train")) == (Phase.NOTIFIED, None, 1)
    assert move.history[-1].message.startswith("It is not known whether a queue admits it: ")
    fleet.cluster._may = may  # type: ignore[method-assign]
    drive(fleet, executor, 1)
    assert moves(store)[0].phase is Phase.SUCCEEDED


# Undone


def stuck_move() -> Fleet:
    """A gang that is stopped to be moved, and finds no Node any more: others took it meanwhile."""
    fleet = Fleet(sick={"GPU-n0-0"})
    fleet.owner("Job", "train", 8)
    fleet.cordon()
    return fleet


# NoSchedule


def taint_effects(node: Object) -> list[str]:
    return [taint["effect"] for taint in node["spec"].get("taints") or () if taint["key"] == keys.DEGRADED]


def test_a_gang_is_not_stopped_while_its_node_would_take_it_back(store: RemediationStore) -> None:
    fleet = Fleet(sick={"GPU-n0-0"})
    fleet.owner("Job", "train", 8)
    seen: list[list[str]] = []

    def look(_verb: str, what: str, done: bool) -> None:
        if what == "Job/ml/train" and done and fleet.find("train")["spec"]["suspend"]:
            seen.append(taint_effects(fleet.node("n0")))

    fleet.before_write = look
    executor = start(fleet, store)
    drive(fleet, executor, 3)
    assert seen[:1] == [["NoSchedule"]]
    assert moves(store)[0].phase is Phase.SUCCEEDED


def test_a_move_says_that_it_waits_for_no_schedule_and_when_it_is_due(store: RemediationStore) -> None:
    """It does not expire meanwhile, however long gpuwatch's own taint takes to rise."""
    fleet = Fleet(sick={"GPU-n0-0"})
    fleet.owner("Job", "train", 8)
    changes = {"action_timeout_seconds": 1800, "taint_escalation_seconds": 4 * 3600}
    executor = start(fleet, store, **changes)
    (item,) = [item for item in plan_of(fleet, executor).items if item.candidate.action is ActionKind.EVICT_GANG]
    assert item.timing.reason.endswith(" It waits for NoSchedule on Node n0.")
    while taint_effects(fleet.node("n0")) != ["PreferNoSchedule"]:
        drive(fleet, executor, 1 / 60)
    begun = fleet.now
    drive(fleet, executor, 3.5)
    (move,) = moves(store)
    due = f"{begun - timedelta(minutes=1) + timedelta(hours=4):%Y-%m-%d %H:%M UTC}"
    why = "It waits for NoSchedule on Node n0: the scheduler may put the Pods back there, due about "
    assert (move.phase, move.history[-1].message) == (Phase.NOTIFIED, f"{why}{due}.")
    assert f"is in phase Notified: {why}{due}." in refusals(fleet, executor)
    drive(fleet, executor, 2)
    assert moves(store)[0].phase is Phase.SUCCEEDED


def test_the_taint_is_read_again_right_before_the_first_write(store: RemediationStore) -> None:
    """The last look showed NoSchedule, and a person has made it milder since."""
    fleet = Fleet(sick={"GPU-n0-0"})
    fleet.owner("Job", "train", 8)
    taint = {"key": keys.DEGRADED, "value": "xid", "effect": "NoSchedule"}
    fleet.cluster.put({**fleet.node("n0"), "spec": {"taints": [taint]}})
    executor = start(fleet, store, ActionKind.EVICT_GANG)
    seen = fleet.view()
    fleet.cluster.put({**fleet.node("n0"), "spec": {"taints": [{**taint, "effect": "PreferNoSchedule"}]}})
    at = fleet.now
    fleet.view = lambda: replace(seen, snapshot=replace(seen.snapshot, at=fleet.now))  # type: ignore[method-assign]
    executor = fleet.executor(store, executor.policies)
    drive(fleet, executor, 1)
    (move,) = moves(store)
    assert fleet.now > at
    assert (move.phase, move.began_at, running(fleet, "train")) == (Phase.NOTIFIED, None, 1)
    assert "the scheduler may put the Pods back there" in move.history[-1].message
