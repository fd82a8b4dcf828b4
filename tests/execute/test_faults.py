"""The process killed before and after every write, every failure at every write, and two processes at once."""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from execute.living import ENFORCE, KUEUE, VOLCANO, Fleet, Killed, drive, new_store, quick
from execute.test_courses import FILE, started
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.objects import Object
from gpuwatch.facts.model.cluster import ClaimedDevice
from gpuwatch.facts.model.decision import ActionKind, Mode
from gpuwatch.facts.model.remediation import Phase, Remediation
from gpuwatch.sources.kube.writer import Failure, WriteError
from gpuwatch.sources.store import StoreError
from kube.memory_cluster import MemoryCluster


@dataclass(frozen=True)
class Course:
    """One Remediation from its proposal to its end. halfway: what happens after `first` hours."""

    make: Callable[[], Fleet]
    action: ActionKind
    first: float
    halfway: Callable[[Fleet, Any], None]
    second: float
    end: Phase


def _of(name: str) -> Callable[[], Fleet]:
    """A fleet of courses.yaml."""
    return lambda: started(FILE.fleets[name], nodes=4)


def _claimed() -> Fleet:
    claim = ClaimedDevice(claim="ml/c", driver="gpu.nvidia.com", pool="n0", name="gpu-0", device="GPU-n0-0")
    fleet = Fleet(nodes=4, sick={"GPU-n0-0"}, claims=(claim,))
    fleet.owner("Job", "train", 8)
    return fleet


def _heal(fleet: Fleet, _: Any) -> None:
    fleet.sick.clear()


def _undo(_: Fleet, store: Any) -> None:
    for each in store.all():
        store.ask_undo(each.id)


def _nothing(_: Fleet, __: Any) -> None:
    pass


COURSES = {
    "taint": Course(_of("sick"), ActionKind.TAINT_NODE, 0.9, _heal, 0.8, Phase.SUCCEEDED),
    "taint_device": Course(_claimed, ActionKind.TAINT_NODE, 0.6, _heal, 0.8, Phase.SUCCEEDED),
    "release": Course(_of("idle"), ActionKind.RELEASE_GANG, 0.6, _undo, 0.5, Phase.UNDONE),
    "volcano": Course(_of("volcano"), ActionKind.RELEASE_GANG, 0.6, _undo, 0.5, Phase.UNDONE),
    "kueue": Course(_of("kueue_late"), ActionKind.RELEASE_GANG, 0.6, _undo, 0.5, Phase.UNDONE),
    "cycle": Course(_of("fenced"), ActionKind.EVICT_GANG, 1.2, _nothing, 0, Phase.SUCCEEDED),
    "evict": Course(_of("replicas"), ActionKind.EVICT_GANG, 1.2, _nothing, 0, Phase.SUCCEEDED),
    "make_room": Course(_of("blocked"), ActionKind.MAKE_ROOM, 1.2, _nothing, 0, Phase.SUCCEEDED),
    "rollout": Course(_of("lone_fenced"), ActionKind.EVICT_GANG, 1.2, _nothing, 0, Phase.SUCCEEDED),
}
SHOWN = [
    pytest.param(name, marks=pytest.mark.thorough) if name in ("taint_device", "volcano") else name for name in COURSES
]
"""Two of them take long, and do as `taint` and `release` do, with other objects."""


class Watched:
    """A store whose writes, and questions for the pause, are told before and after."""

    def __init__(self, store: RemediationStore, tell: Callable[[str], None]) -> None:
        self._store = store
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in ("create", "save", "paused"):
            return method

        def told(*args: Any) -> Any:
            self._tell(f"before {name}")
            found = method(*args)
            self._tell(f"after {name}")
            return found

        return told


class Lives:
    """Runs a course. Where the process is killed, another begins on the same store and cluster."""

    def __init__(self, course: Course, tell: Callable[[str], None] = lambda _: None) -> None:
        self.course = course
        self.fleet = course.make()
        self.store = new_store()
        self.tell = tell
        policy = quick(hand_off_label="repair=yes", hand_off_when_empty=False)
        self.policies = ExecutorPolicies(replace(ENFORCE, modes={course.action: Mode.ENFORCE}), policy)
        self.before = self.state()
        self.lives = 0

    def executor(self) -> Executor:
        return self.fleet.executor(Watched(self.store, self.tell), self.policies)

    def run(self) -> Remediation:
        self.live(self.fleet.propose)
        start = self.fleet.now
        for hours, then in ((self.course.first, self.course.halfway), (self.course.second, _nothing)):
            end = start + timedelta(hours=hours)
            self.live(lambda executor, end=end: drive(self.fleet, executor, _left(self.fleet, end)))
            then(self.fleet, self.store)
            start = end
        (found,) = self.store.all()
        return found

    def live(self, doing: Callable[[Executor], object]) -> None:
        while True:
            self.lives += 1
            try:
                doing(self.executor())
            except Killed:
                continue
            return

    def log(self, of: Remediation, expected: list[str]) -> list[str]:
        """What was written, without the touches by which a write that may still come is made to come too late, and
        without the removal of what a touch said."""
        touched = [step.target for step in of.steps if "touch" in step.parameters and step.done_at is not None]
        spare = Counter(f"patch {target}" for target in touched * 2)
        found: list[str] = []
        for line in self.fleet.log:
            if spare[line] and line not in expected[len(found) : len(found) + 1]:
                spare[line] -= 1
            else:
                found.append(line)
        return found

    def state(self) -> dict[str, Any]:
        """What stands in the cluster of ours and of what we may change."""
        found: dict[str, Any] = {}
        for kind, api in (
            ("Node", "v1"),
            ("Job", "batch/v1"),
            ("Job", VOLCANO),
            ("Workload", KUEUE),
            ("Deployment", "apps/v1"),
            ("Command", "bus.volcano.sh/v1alpha1"),
        ):
            for item in self.fleet.cluster.objects(api, kind):
                found[f"{kind}/{item['metadata']['name']}"] = _part(item)
        rules = self.fleet.cluster.objects("resource.k8s.io/v1", "DeviceTaintRule")
        found |= {f"rule/{item['metadata']['name']}": item["spec"] for item in rules}
        return found


def _part(item: Object) -> dict[str, Any]:
    part: dict[str, Any] = {
        "spec": copy.deepcopy(item.get("spec", {})),
        "annotations": item["metadata"].get("annotations") or {},
        "labels": item["metadata"].get("labels") or {},
    }
    part["spec"].pop("template", None)  # a rollout stamps the time on it, and there is nothing to take back
    return part


def _left(fleet: Fleet, end: datetime) -> float:
    return max((end - fleet.now).total_seconds() / 3600, 0.0)


def undisturbed(course: Course) -> tuple[Remediation, Lives, int]:
    """How it goes when nothing fails, and how many points there are to be killed at."""
    points = 0

    def count(_: str) -> None:
        nonlocal points
        points += 1

    lives = Lives(course, count)
    lives.fleet.before_write = lambda _verb, what, done: count(what) if not what.startswith("?") else None
    return lives.run(), lives, points


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_a_kill_at_any_point_is_made_good(name: str) -> None:
    """Before and after each write to the store and to the cluster: the same end, and every write happened once."""
    course = COURSES[name]
    expected, reference, points = undisturbed(course)
    assert expected.phase is course.end
    assert points > 60
    for at in range(1, points + 1):
        left = at

        def tell(_: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed

        lives = Lives(course, tell)
        lives.fleet.before_write = lambda _verb, what, _done: tell(what)
        found = lives.run()
        assert lives.lives > reference.lives, at
        assert found.phase is expected.phase, (at, found.history)
        assert lives.log(found, reference.fleet.log) == reference.fleet.log, at
        assert lives.state() == reference.state(), at
        assert set(lives.fleet.notices) == set(reference.fleet.notices), at


FAILS = [*((failure, False) for failure in Failure), (Failure.UNSURE, True)]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["writer", "rehearsal"])
@pytest.mark.parametrize(("failure", "happened"), FAILS, ids=str)
@pytest.mark.parametrize("name", COURSES)
def test_every_failure_of_every_write(name: str, failure: Failure, happened: bool, where: str) -> None:
    """What may pass passes; what may not ends it, and then nothing of ours stands. UNSURE writes nothing twice."""
    course = COURSES[name]
    expected, reference, _ = undisturbed(course)
    if happened and where == "rehearsal":
        where = "writer"  # a rehearsal never happens
    for at in range(1, len(reference.fleet.log) + 1):
        left = at

        def interfere(_verb: str, what: str, done: bool) -> None:
            nonlocal left
            if what.startswith("Event ") or done is not happened:
                return
            left -= 1
            if left == 0:
                raise WriteError(failure, f"injected {failure}")

        lives = Lives(course)
        if where == "writer":
            lives.fleet.before_write = interfere
        else:
            lives.fleet.rehearsal.interfere = interfere
        found = lives.run()
        assert left <= 0, at
        if failure in (Failure.CONFLICT, Failure.BUDGET, Failure.THROTTLED, Failure.UNSURE):
            assert found.phase is expected.phase, (at, found.history)
            assert lives.log(found, reference.fleet.log) == reference.fleet.log, at
            assert lives.state() == reference.state(), at
        elif found.phase is not expected.phase:
            assert found.phase in (Phase.FAILED, Phase.OBSOLETE, Phase.UNDONE), (at, found.history)
            assert f"injected {failure}" in str(found), at
            assert lives.state() == lives.before, at
        elif lives.fleet.log == reference.fleet.log:
            assert lives.state() == reference.state(), at  # what is taken back is tried again
        else:
            # What the action stands without was left out, and is said; a kind that is not served has another version.
            assert f"injected {failure}" in str(found) or name == "taint_device", at


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_two_executors_at_once_never_act_twice(name: str) -> None:
    """One runs wherever the other is about to keep or to write something."""
    course = COURSES[name]
    expected, reference, points = undisturbed(course)
    for at in range(1, points + 1, 2):
        left = at

        here: list[Lives] = []

        def tell(_: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                (lives,) = here  # noqa: B023 - called before the next round
                other = lives.fleet.executor(lives.store, lives.policies)
                for due in other.due(lives.fleet.now):
                    other.run_once(due, lives.fleet.now)

        lives = Lives(course, tell)
        here.append(lives)
        lives.fleet.before_write = lambda _verb, what, _done: tell(what)
        found = lives.run()
        assert found.phase is expected.phase, (at, found.history)
        assert lives.fleet.log == reference.fleet.log, at
        assert lives.state() == reference.state(), at


def test_a_write_that_was_held_up_does_not_land_on_what_changed() -> None:
    """One process stands still with its write in hand until another took it over, and goes on then."""
    course = COURSES["release"]
    lives = Lives(course)
    held: list[Callable[[], None]] = []
    executor = lives.executor()
    lives.fleet.propose(executor)
    send = lives.fleet.cluster.patch

    def slow(*args: Any, **options: Any) -> Object:
        body = args[1]
        if not held and "spec" in body:
            held.append(lambda: send(*args, **options))
            raise WriteError(Failure.UNSURE, "no answer")
        return send(*args, **options)

    lives.fleet.cluster.patch = slow  # type: ignore[method-assign]
    drive(lives.fleet, executor, 1)
    assert lives.store.all()[0].phase is Phase.IN_EFFECT
    after = lives.state()
    with pytest.raises(WriteError) as told:
        held[0]()
    assert told.value.failure is Failure.CONFLICT
    assert lives.state() == after


def test_a_proposal_that_the_store_refuses_costs_itself_alone() -> None:
    fleet = Fleet(nodes=3, sick={"GPU-n0-0", "GPU-n1-0"})
    store = new_store()
    executor = fleet.executor(store, ExecutorPolicies(ENFORCE, quick()))
    create, asked = store.create, []

    def refusing(remediation: Remediation) -> Remediation:
        asked.append(remediation.id)
        if len(asked) == 1:
            remediation = replace(remediation, proposal=replace(remediation.proposal, objects=()))
        return create(remediation)

    store.create = refusing  # type: ignore[method-assign]
    kept = fleet.propose(executor)
    assert [each.id for each in kept] == asked[1:]
    assert [gap.what for gap in executor.refused] == [f"proposal {asked[0]}"]
    assert "it names no object" in executor.refused[0].detail
    fleet.propose(executor)
    assert executor.refused == []


def test_a_store_that_does_not_answer_ends_the_proposing() -> None:
    fleet = Fleet(nodes=3, sick={"GPU-n0-0", "GPU-n1-0"})
    asked: list[str] = []

    def dead(verb: str, what: str, done: bool) -> None:
        asked.append(f"{verb} {what}")
        raise WriteError(Failure.UNSURE, "no answer")

    executor = fleet.executor(
        RemediationStore(MemoryCluster(interfere=dead), "gpuwatch"), ExecutorPolicies(ENFORCE, quick())
    )
    with pytest.raises(StoreError, match="no answer"):
        fleet.propose(executor)
    assert len(asked) == 1


def test_a_notification_that_fails_is_told_again() -> None:
    lives = Lives(COURSES["release"])
    executor = lives.executor()
    failing = replace(executor, notify=_raise)
    lives.fleet.propose(executor)
    with pytest.raises(OSError, match="no mail"):
        drive(lives.fleet, failing, 0.2)
    drive(lives.fleet, executor, 1)
    assert lives.store.all()[0].phase is Phase.IN_EFFECT
    assert len(lives.fleet.notices) == 1
    assert keys.NOTICE not in lives.state()["Job/chat"]["annotations"]


def _raise(_: Remediation) -> None:
    raise OSError("no mail")
