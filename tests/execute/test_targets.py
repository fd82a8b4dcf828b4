"""When a target that had a Remediation gets another, and that two replicas make one of it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from execute.living import ENFORCE, START, SUGGEST, Fleet, drive, quick
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.execute.policy import ExecutePolicy
from gpuwatch.act.execute.propose import TAKEN_BACK, left_alone, propose
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.facts.model.decision import ActionKind, Mode
from gpuwatch.facts.model.remediation import Phase, Remediation, Turn
from plan.fleet import plan_of

POLICY = ExecutePolicy()
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
LATER = START + timedelta(days=60)
TAINTS = replace(ENFORCE, modes={ActionKind.TAINT_NODE: Mode.ENFORCE})


def sick_fleet() -> Fleet:
    fleet = Fleet(sick={"GPU-n0-0"})
    fleet.owner("Job", "train", 8)
    return fleet


def idle_fleet() -> Fleet:
    fleet = Fleet(idle={"chat"})
    fleet.owner("Job", "chat", 2)
    return fleet


def proposed(fleet: Fleet) -> Remediation:
    """What this fleet leads to: a taint, or a release."""
    view = fleet.view()
    policy = TAINTS if fleet.sick else ENFORCE
    (item,) = [item for item in plan_of(view.snapshot, view.findings, policy).items if item.admitted][:1]
    found = propose(item, view.snapshot, view.findings, START, quick())
    assert found is not None
    return found


def ended(base: Remediation, phase: Phase, at: timedelta = timedelta(), **changes: Any) -> Remediation:
    """One of the same that ended so, `at` after LATER."""
    name = f"{base.name}-{at.total_seconds():.0f}"
    return replace(base, name=name, phase=phase, history=(Turn(LATER + at, phase, "over"),), **changes)


@pytest.mark.parametrize(
    ("ends", "quiet"),
    [
        ([Phase.SUCCEEDED], timedelta()),
        ([Phase.UNDONE], timedelta()),  # a taint that expired
        ([Phase.OBSOLETE], HOUR),
        ([Phase.REFUSED], HOUR),
        ([Phase.EXPIRED], HOUR),
        ([Phase.OBSOLETE, Phase.OBSOLETE], 2 * HOUR),
        ([Phase.OBSOLETE] * 6, DAY),
        ([Phase.OBSOLETE, Phase.SUCCEEDED, Phase.OBSOLETE], HOUR),
        ([Phase.FAILED], DAY),
        ([Phase.FAILED, Phase.FAILED], 2 * DAY),
        ([Phase.REJECTED], DAY),
        ([Phase.REJECTED, Phase.REJECTED], DAY),
    ],
    ids=lambda value: "-".join(str(each)[:3] for each in value) if isinstance(value, list) else None,
)
def test_how_long_a_target_is_left_alone_depends_on_how_it_ended(ends: list[Phase], quiet: timedelta) -> None:
    found = proposed(sick_fleet())
    known = [ended(found, phase, (index - len(ends) + 1) * HOUR) for index, phase in enumerate(ends)]

    def why(after: timedelta) -> str:
        now = LATER + after
        return left_alone(found.proposal, known, now, now, POLICY)

    assert why(quiet + timedelta(seconds=1)) == ""
    if quiet:
        assert "it is left alone until" in why(quiet - timedelta(seconds=1))


def test_what_was_moved_for_another_one_is_left_alone_for_a_day() -> None:
    """It has little work to lose then, and would be the cheapest to move each time."""
    found = proposed(sick_fleet())
    found = replace(found, proposal=replace(found.proposal, action=ActionKind.MAKE_ROOM))
    known = [ended(found, Phase.SUCCEEDED)]
    for after, alone in ((DAY - HOUR, True), (DAY + HOUR, False)):
        now = LATER + after
        assert bool(left_alone(found.proposal, known, now, now, POLICY)) is alone


@pytest.mark.parametrize("said", [{"undo_asked": True}, {"verified": {TAKEN_BACK: True}}])
def test_what_people_took_back_is_a_no(said: dict[str, Any]) -> None:
    found = proposed(sick_fleet())
    known = [ended(found, Phase.UNDONE, **said)]
    for after, expected in ((DAY - HOUR, True), (DAY, False)):
        now = LATER + after
        assert bool(left_alone(found.proposal, known, now, now, POLICY)) is expected


@pytest.mark.parametrize(
    ("changes", "again"),
    [
        ({}, False),
        ({"devices": ("GPU-n0-0", "GPU-n0-5")}, True),
        ({"detectors": ("ecc", "xid")}, True),
        ({"devices": (), "detectors": ()}, False),
    ],
)
def test_a_no_to_a_taint_is_none_to_what_was_not_known_then(changes: dict[str, Any], again: bool) -> None:
    found = proposed(sick_fleet())
    known = [ended(found, Phase.REJECTED)]
    now = LATER + HOUR
    proposal = replace(found.proposal, **changes)
    assert (left_alone(proposal, known, now, now, POLICY) == "") is again
    release = proposed(idle_fleet())
    known = [ended(release, Phase.REJECTED)]
    assert left_alone(replace(release.proposal, **changes), known, now, now, POLICY)


def test_what_was_seen_before_the_last_one_ended_says_nothing_about_now() -> None:
    found = proposed(sick_fleet())
    known = [ended(found, Phase.SUCCEEDED)]
    now = LATER + HOUR
    assert "are from before" in left_alone(found.proposal, known, LATER, now, POLICY)
    assert left_alone(found.proposal, known, LATER + timedelta(seconds=1), now, POLICY) == ""


def test_another_action_on_the_target_is_not_held_up_by_the_end_of_this_one() -> None:
    """The GPU of a gang whose release was rejected breaks."""
    found = proposed(idle_fleet())
    move = replace(found.proposal, action=ActionKind.EVICT_GANG)
    now = LATER + HOUR
    assert left_alone(move, [ended(found, Phase.REJECTED)], now, now, POLICY) == ""
    still = replace(found, phase=Phase.IN_EFFECT)
    assert left_alone(move, [still], now, now, POLICY) == f"{found.name} is InEffect."


def tainted_twice(fleet: Fleet, store: RemediationStore, other: Executor | None = None) -> Executor:
    """Tainted, proven healthy, and an hour later sick once more, all on one day."""
    executor = fleet.executor(store, ExecutorPolicies(TAINTS, quick()))
    fleet.propose(executor)
    drive(fleet, executor, 0.5)
    assert fleet.node("n0")["spec"].get("taints")
    fleet.sick = set()
    drive(fleet, executor, 1)
    assert [each.phase for each in store.all()] == [Phase.SUCCEEDED]
    drive(fleet, executor, 1)
    fleet.sick = {"GPU-n0-0"}
    return executor


def test_a_gpu_that_fails_again_is_tainted_again_on_the_same_day(store: RemediationStore) -> None:
    fleet = sick_fleet()
    executor = tainted_twice(fleet, store)
    (again,) = fleet.propose(executor)
    drive(fleet, executor, 0.5)
    first, second = store.all()
    assert fleet.now.date() == START.date()
    assert first.name.endswith("-20260302")
    assert second.name == again.name == f"{first.name}-2"
    assert [taint["effect"] for taint in fleet.node("n0")["spec"]["taints"]] == ["NoSchedule"]


class Late:
    """A store that remembers what all() told once, as a replica that read it before the other one wrote."""

    def __init__(self, store: RemediationStore) -> None:
        self._store = store
        self._known = store.all()

    def all(self) -> tuple[Remediation, ...]:
        return self._known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_two_replicas_that_propose_at_once_make_one(store: RemediationStore) -> None:
    """Both have read the same before either writes; and one that has read nothing yet makes nothing."""
    fleet = sick_fleet()
    empty = Late(store)
    executor = tainted_twice(fleet, store)
    other = replace(executor, store=Late(store))
    (one,), (two,) = fleet.propose(executor), fleet.propose(other)
    assert one == two
    assert len(store.all()) == 2
    kept = fleet.propose(replace(executor, store=empty))
    assert [each.phase for each in kept] == [Phase.SUCCEEDED]  # the first of the day, as it is
    assert len(store.all()) == 2
    drive(fleet, executor, 0.5)
    assert len([line for line in fleet.log if line == "patch Node/n0"]) >= 3
    assert fleet.propose(other) == ()  # it is late still, and sees a taint of which it knows no record
    assert len(store.all()) == 2


def test_work_that_pauses_again_is_proposed_again_but_not_at_once(store: RemediationStore) -> None:
    fleet = idle_fleet()
    executor = fleet.executor(store, ExecutorPolicies(ENFORCE, quick()))
    (first,) = fleet.propose(executor)
    fleet.idle, fleet.busy = set(), {"chat"}
    drive(fleet, executor, 0.5)
    (lapsed,) = store.all()
    assert lapsed.phase is Phase.OBSOLETE
    fleet.idle, fleet.busy = {"chat"}, set()
    fleet.now = lapsed.history[-1].at + timedelta(minutes=59)
    assert fleet.propose(executor) == ()
    fleet.now += timedelta(minutes=1)
    (second,) = fleet.propose(executor)
    assert second.name == f"{first.name}-2"


def test_a_rejected_proposal_is_not_made_again_at_midnight(store: RemediationStore) -> None:
    fleet = idle_fleet()
    fleet.now = START.replace(hour=23, minute=30)
    executor = fleet.executor(store, ExecutorPolicies(SUGGEST, quick()))
    (first,) = fleet.propose(executor)
    store.reject(first.id)
    drive(fleet, executor, 1)
    assert fleet.now.date() > START.date()
    assert fleet.propose(executor) == ()
    fleet.now += DAY
    (second,) = fleet.propose(executor)
    assert second.name.endswith("-20260304")
