"""A move keeps the gang's place, or it is not begun; and what is undone runs again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from execute.living import ENFORCE, Fleet, drive, new_store, quick
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.objects import Object, ref_of
from gpuwatch.facts.model.decision import ActionKind, Mode, Plan
from gpuwatch.facts.model.remediation import Phase, Remediation


@pytest.fixture
def store() -> RemediationStore:
    return new_store()


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


def full_queue() -> Fleet:
    """A gang on a sick Node, whose quota another team waits for."""
    fleet = Fleet(sick={"GPU-n0-0"}, quota=8)
    fleet.owner("Job", "train", 8)
    fleet.queue("train")
    fleet.rival("next", 8)
    fleet.settle()
    assert (running(fleet, "train"), running(fleet, "next")) == (1, 0)
    return fleet


def test_a_gang_is_not_stopped_whose_quota_the_next_in_the_queue_takes(store: RemediationStore) -> None:
    fleet = full_queue()
    executor = start(fleet, store)
    drive(fleet, executor, 12)
    assert (running(fleet, "train"), running(fleet, "next")) == (1, 0)
    assert not moves(store)
    told = refusals(fleet, executor)
    assert "Kueue" in told and "the next in the queue" in told and "by hand" in told


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


def stop(fleet: Fleet, executor: Executor, name: str = "train") -> None:
    while not fleet.find(name)["spec"]["suspend"]:
        drive(fleet, executor, 1 / 60)


def test_a_gang_that_does_not_run_again_is_not_undone(store: RemediationStore) -> None:
    fleet = stuck_move()
    executor = start(fleet, store, ActionKind.EVICT_GANG)
    stop(fleet, executor)
    fleet.stuck.add("train")
    drive(fleet, executor, 48)
    (move,) = moves(store)
    assert running(fleet, "train") == 0
    assert not fleet.find("train")["spec"]["suspend"], "the field is put back"
    assert not any("undone" in turn.message for turn in move.history), move.history
    assert (move.phase, move.overdue) == (Phase.UNDOING, True)
    assert move.name in fleet.notices
    fleet.stuck.clear()
    drive(fleet, executor, 1)
    (move,) = moves(store)
    assert running(fleet, "train") == 1
    assert (move.phase, move.overdue) == (Phase.FAILED, False)
    assert move.history[-1].message == "All changes were undone, and its Pods run again."


def test_a_person_is_called_with_the_words_of_the_scheduler(store: RemediationStore) -> None:
    fleet = stuck_move()
    executor = start(fleet, store, ActionKind.EVICT_GANG, verification_timeout_seconds=120)
    stop(fleet, executor)
    since = fleet.now - timedelta(minutes=1)
    fleet.stuck.add("train")
    drive(fleet, executor, 1)
    (call,) = {step.parameters["text"] for step in moves(store)[0].steps if "call" in step.parameters}
    assert f"has been stopped since {since:%Y-%m-%d %H:%M:%S UTC}, and does not run again." in call
    assert call.endswith("0 of 1 Pods run. Pod train-1: Unschedulable: no Node has room")
    # It is looked at for as long as it takes, and says nothing twice.
    turns = len(moves(store)[0].history)
    drive(fleet, executor, 48, least_seconds=600)
    assert len(moves(store)[0].history) == turns


def put_back(store: RemediationStore) -> tuple[Fleet, Executor]:
    """An idle gang was released, a person asked for the undo, and its Pods find no Node."""
    fleet = Fleet(idle={"chat"})
    fleet.owner("Job", "chat", 2, pods=2)
    executor = start(fleet, store)
    drive(fleet, executor, 1)
    fleet.stuck.add("chat")
    store.ask_undo(store.all()[0].id)
    drive(fleet, executor, 1)
    (release,) = store.all()
    assert not fleet.find("chat")["spec"]["suspend"]
    assert release.phase is Phase.UNDOING
    assert not any("undone" in turn.message for turn in release.history)
    assert release.overdue
    return fleet, executor


def test_a_release_is_undone_once_it_runs_again(store: RemediationStore) -> None:
    fleet, executor = put_back(store)
    assert not replace(fleet.view(), history=tuple(store.all())).disruptive, "its waiting Pods are no outage"
    fleet.stuck.clear()
    drive(fleet, executor, 0.5)
    (release,) = store.all()
    assert (release.phase, running(fleet, "chat")) == (Phase.UNDONE, 2)
    assert release.history[-1].message == "All changes were undone, and its Pods run again."


def test_a_person_takes_over_what_does_not_run_again(store: RemediationStore) -> None:
    """They stop it themselves, delete the workload, or delete the Remediation."""
    fleet, executor = put_back(store)
    job = fleet.find("chat")
    fleet.cluster.put({**job, "spec": {**job["spec"], "suspend": True}})
    drive(fleet, executor, 0.5)
    (release,) = store.all()
    said = "All changes were undone; others have set /spec/suspend since, and decide about its Pods."
    assert (release.phase, release.history[-1].message) == (Phase.UNDONE, said)

    other = new_store()
    fleet, executor = put_back(other)
    fleet.cluster.remove(ref_of(fleet.find("chat")))
    drive(fleet, executor, 0.5)
    assert other.all()[0].history[-1].message == "All changes were undone; the workload is gone."

    other = new_store()
    fleet, executor = put_back(other)
    assert other.delete_all() == {}
    drive(fleet, executor, 0.2)
    assert other.all() == ()
    assert not fleet.find("chat")["metadata"].get("annotations")


def test_what_was_never_stopped_is_not_waited_for(store: RemediationStore) -> None:
    """A person asks for the undo of what was rejected before the first write, and its Pods have ended since."""
    fleet = Fleet(idle={"chat"})
    fleet.owner("Deployment", "chat", 2, pods=2)
    executor = start(fleet, store)
    store.reject(store.all()[0].id)
    drive(fleet, executor, 0.5)
    assert store.all()[0].phase is Phase.REJECTED
    fleet.stuck.add("chat")
    for pod in fleet.pods("chat"):
        fleet._end(pod)
    store.ask_undo(store.all()[0].id)
    drive(fleet, executor, 1)
    (release,) = store.all()
    assert (release.phase, release.called_at) == (Phase.UNDONE, None)


def test_a_move_that_succeeded_is_not_waited_for(store: RemediationStore) -> None:
    fleet = stuck_move()
    executor = start(fleet, store, ActionKind.EVICT_GANG)
    drive(fleet, executor, 1)
    assert moves(store)[0].phase is Phase.SUCCEEDED
    fleet.stuck.add("train")
    for pod in fleet.pods("train"):
        fleet._end(pod)
    store.ask_undo(moves(store)[0].id)
    drive(fleet, executor, 1)
    assert (moves(store)[0].phase, moves(store)[0].called_at) == (Phase.UNDONE, None)


def test_evicted_pods_that_find_no_node_are_waited_for(store: RemediationStore) -> None:
    """Unless an autoscaler asks for fewer by then."""
    fleet = Fleet(sick={"GPU-n0-0", "GPU-n0-4"})
    fleet.owner("Deployment", "web", 4, pods=2)
    fleet.cordon()
    executor = start(fleet, store, ActionKind.EVICT_GANG, action_timeout_seconds=1200)
    while len([line for line in fleet.log if "eviction" in line]) < 1:
        drive(fleet, executor, 1 / 60)
    fleet.stuck.add("web")
    drive(fleet, executor, 6)
    (move,) = moves(store)
    assert (move.phase, move.overdue, running(fleet, "web")) == (Phase.UNDOING, True, 1)
    web = fleet.find("web")
    fleet.cluster.put({**web, "spec": {**web["spec"], "replicas": 1}})
    drive(fleet, executor, 1)
    assert moves(store)[0].phase is Phase.FAILED


def test_a_queue_that_gave_the_quota_away_is_named(store: RemediationStore) -> None:
    """An idle gang of Kueue is released; the next in the queue takes its quota, and the undo says so."""
    fleet = Fleet(idle={"chat"}, quota=4)
    fleet.owner("Job", "chat", 2, pods=2)
    fleet.queue("chat")
    fleet.rival("next", 4)
    executor = start(fleet, store)
    drive(fleet, executor, 1)
    store.ask_undo(store.all()[0].id)
    drive(fleet, executor, 1)
    (release,) = store.all()
    assert (release.phase, running(fleet, "next"), running(fleet, "chat")) == (Phase.UNDOING, 1, 0)
    (call,) = {step.parameters["text"] for step in release.steps if "call" in step.parameters}
    assert "Workload job-chat: QuotaReserved=False, Pending: insufficient unused quota, 4 more needed" in call
    fleet.finish("next")
    drive(fleet, executor, 0.5)
    assert (store.all()[0].phase, running(fleet, "chat")) == (Phase.UNDONE, 2)


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


def test_a_move_waits_for_a_cordon_where_no_schedule_is_never_set(store: RemediationStore) -> None:
    fleet = Fleet(sick={"GPU-n0-0"})
    fleet.owner("Job", "train", 8)
    executor = start(fleet, store, last_taint_effect="PreferNoSchedule")
    drive(fleet, executor, 1)
    (move,) = moves(store)
    assert (move.phase, move.began_at) == (Phase.NOTIFIED, None)
    assert move.history[-1].message.endswith("gpuwatch does not set it now; a cordon serves as well.")
    fleet.cordon()
    drive(fleet, executor, 1)
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
