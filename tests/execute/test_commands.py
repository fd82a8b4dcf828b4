"""Volcano's Commands, which are carried out later, and Kueue's Workload as what is released: through the executor."""

from dataclasses import replace
from datetime import timedelta

import pytest

from execute.living import ENFORCE, KUEUE, Fleet, Killed, drive, new_store, only, quick
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.objects import Object
from gpuwatch.facts.model.decision import ActionKind, Mode
from gpuwatch.facts.model.remediation import Phase, StepKind
from gpuwatch.sources.kube.writer import Failure, WriteError

MINUTE = timedelta(minutes=1)
COMMANDS = ("bus.volcano.sh/v1alpha1", "Command")


def volcano(**delays: timedelta) -> Fleet:
    fleet = Fleet(nodes=4, idle={"chat"}, **delays)
    fleet.owner("Volcano", "chat", 4, pods=2)
    return fleet


def kueue(**delays: timedelta) -> Fleet:
    fleet = Fleet(nodes=4, idle={"chat"}, **delays)
    fleet.owner("Job", "chat", 4, pods=2)
    fleet.queue("chat")
    return fleet


def admitted(fleet: Fleet) -> Object:
    (found,) = fleet.cluster.objects(KUEUE, "Workload", "ml")
    return found


def begun(fleet: Fleet, store: RemediationStore, action: ActionKind = ActionKind.RELEASE_GANG) -> Executor:
    plan = replace(ENFORCE, modes={action: Mode.ENFORCE})
    executor = fleet.executor(store, ExecutorPolicies(plan, quick(notice_period_seconds=120)))
    fleet.propose(executor)
    return executor


def until(fleet: Fleet, executor: Executor, kind: StepKind) -> None:
    """Until the first step of this kind is done."""
    while not any(step.kind is kind and step.done_at for each in executor.store.all() for step in each.steps):
        drive(fleet, executor, 1 / 60)
        assert fleet.now.hour < 20


def phase_of(fleet: Fleet) -> str:
    return str(fleet.find("chat")["status"]["state"]["phase"])


def as_before(fleet: Fleet) -> bool:
    """It runs, all of it, and nothing of ours is left."""
    fleet.settle()
    annotations = fleet.find("chat")["metadata"].get("annotations") or {}
    running = [pod for pod in fleet.pods("chat") if pod["status"]["phase"] == "Running"]
    return not annotations and len(running) == 2 and not fleet.cluster.objects(*COMMANDS)


# Volcano


def test_a_room_that_a_pod_group_keeps_is_not_free(store: RemediationStore) -> None:
    fleet = volcano()
    executor = begun(fleet, store)
    group = fleet._pod_group
    fleet._pod_group = lambda name, phase: group(name, "Inqueue")  # type: ignore[method-assign]
    drive(fleet, executor, 0.4)
    assert (phase_of(fleet), fleet.pods("chat")) == ("Aborted", [])
    assert (only(store).phase, only(store).verified) == (Phase.VERIFYING, {"released": False})
    group("chat", "Pending")
    drive(fleet, executor, 0.3)
    assert only(store).phase is Phase.IN_EFFECT


def test_a_command_that_was_never_sent_is_not_sent_hours_later(store: RemediationStore) -> None:
    """The process ended between the mark and the Command, and there is no reason for it any more."""
    fleet = volcano()
    executor = begun(fleet, store)

    def kill(verb: str, what: str, done: bool) -> None:
        if what.startswith("Command"):
            raise Killed

    fleet.before_write = kill
    with pytest.raises(Killed):
        drive(fleet, executor, 1)
    assert keys.REMEDIATION in fleet.find("chat")["metadata"]["annotations"]
    fleet.before_write = lambda verb, what, done: None
    fleet.idle, fleet.busy = set(), {"chat"}
    fleet.now += timedelta(hours=5)
    drive(fleet, executor, 1)
    assert only(store).phase is Phase.OBSOLETE
    assert fleet.aborted == []
    assert as_before(fleet)


# Kueue


def test_a_job_of_kueue_is_released_through_its_workload(store: RemediationStore) -> None:
    """The Job itself is never written to but for what was notified; free is what Kueue has given back."""
    fleet = kueue(frees=15 * MINUTE)
    executor = begun(fleet, store)
    until(fleet, executor, StepKind.RELEASE)
    fleet.settle()
    assert fleet.pods("chat") == []
    drive(fleet, executor, 0.2)
    assert (only(store).phase, only(store).verified) == (Phase.VERIFYING, {"released": False})
    drive(fleet, executor, 0.3)
    assert only(store).phase is Phase.IN_EFFECT
    (release,) = [step for step in only(store).steps if step.kind is StepKind.RELEASE]
    assert (release.target.kind, release.target.name) == ("Workload", "job-chat")
    store.ask_undo(only(store).id)
    drive(fleet, executor, 0.2)
    assert only(store).phase is Phase.UNDONE
    assert as_before(fleet)
    (workload,) = fleet.cluster.objects(KUEUE, "Workload")
    assert workload["spec"] == {"active": True, "queueName": "team"}
    assert not workload["metadata"].get("annotations")
    assert {line for line in fleet.log if "Job/" in line} == {"patch Job/ml/chat"}
    assert [step.target.kind for step in only(store).steps if not step.kind.only_notes] == ["Workload", "Workload"]


# An undo at any moment, with any fault at any write


@pytest.mark.parametrize("make", [volcano, kueue])
@pytest.mark.parametrize("delay", [0, 4])
def test_an_undo_at_any_minute_leaves_it_running(make: object, delay: int) -> None:
    for minute in range(0, 32, 2):
        delays = {"takes_up": delay * MINUTE, "carries_out": delay * MINUTE, "frees": delay * MINUTE}
        fleet: Fleet = make(**delays)  # type: ignore[operator]
        store = new_store()
        executor = begun(fleet, store)
        for _ in range(minute):
            for name in executor.due(fleet.now):
                executor.run_once(name, fleet.now)
            fleet.now += MINUTE
            fleet.settle()
        store.ask_undo(only(store).id)
        drive(fleet, executor, 2)
        assert only(store).phase in (Phase.UNDONE, Phase.REJECTED), (minute, only(store).history)
        assert as_before(fleet), (minute, only(store).history, fleet.find("chat"))


def test_undo_was_asked_while_the_command_may_be_on_its_way() -> None:
    """The process ends with the Command sent or not, taken up or not, and a person wants it undone before the next."""
    for sent in (True, False):
        for taken_up in (timedelta(), timedelta(hours=5)):
            fleet = volcano(takes_up=taken_up, carries_out=10 * MINUTE)
            store = new_store()
            executor = begun(fleet, store)

            def kill(verb: str, what: str, done: bool) -> None:
                if what.startswith("Command") and done is sent:  # noqa: B023 - called before the next round
                    raise Killed

            fleet.before_write = kill
            with pytest.raises(Killed):
                drive(fleet, executor, 1)
            fleet.before_write = lambda _verb, _what, _done: None
            store.ask_undo(only(store).id)
            drive(fleet, executor, 2)
            assert only(store).phase is Phase.UNDONE
            assert [step.kind for step in only(store).steps].count(StepKind.COMMAND) == 1
            assert as_before(fleet), (sent, taken_up)
            drive(fleet, executor, 6)
            assert as_before(fleet), (sent, taken_up)


@pytest.mark.parametrize("undo", [True, False])
@pytest.mark.parametrize("make", [volcano, kueue])
def test_a_kill_at_any_write_while_a_controller_is_late(make: object, undo: bool) -> None:
    """undo: as soon as the first process has ended. The Job ends as it began, or is released: nothing in between."""
    for at in range(1, 40):
        late = 4 * MINUTE
        fleet: Fleet = make(takes_up=late, carries_out=late, frees=late)  # type: ignore[operator]
        left = at

        def kill(verb: str, what: str, done: bool) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed

        store = new_store()
        executor = begun(fleet, store)
        fleet.before_write = kill
        try:
            drive(fleet, executor, 1)
        except Killed:
            if undo:
                store.ask_undo(only(store).id)
            drive(fleet, executor, 1.2)
        end = only(store)
        if left > 0:
            assert at > 8  # all writes were tried
            return
        if undo:
            assert end.phase in (Phase.UNDONE, Phase.REJECTED), (at, end.history)
            assert as_before(fleet), (at, end.history)
        else:
            assert (end.phase, fleet.pods("chat")) == (Phase.IN_EFFECT, []), (at, end.history)
    raise AssertionError("There were more writes than were tried.")


def test_what_was_begun_and_did_not_happen_is_not_done_once_it_is_to_be_undone(store: RemediationStore) -> None:
    fleet = kueue()
    executor = begun(fleet, store)

    def unsure(verb: str, what: str, done: bool) -> None:
        if what.startswith("Workload") and not done:
            raise WriteError(Failure.UNSURE, "no answer")

    fleet.before_write = unsure
    before = admitted(fleet)
    while not any(step.kind is StepKind.RELEASE and step.begun_at for step in only(store).steps):
        drive(fleet, executor, 1 / 60)
    fleet.before_write = lambda _verb, _what, _done: None
    store.ask_undo(only(store).id)
    drive(fleet, executor, 0.5)
    assert only(store).phase is Phase.REJECTED
    # It was touched, so that the write cannot land later, and what the touch said is gone.
    after = admitted(fleet)
    assert after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
    assert (after["spec"], after["metadata"].get("annotations") or {}) == (before["spec"], {})
    assert as_before(fleet)
