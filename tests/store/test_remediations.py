"""What every store of Remediations promises, held against each: a file, and custom resources on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event

import pytest

from cluster.api import Api
from deploy.manifests import CRDS, apply, documents
from gpuwatch.model.remediation import Pause, Phase, Remediation, Turn
from gpuwatch.model.telemetry import GapKind
from gpuwatch.store.remediations import ConflictError, RemediationStore
from gpuwatch.store.store import StoreError
from store.remediation_stores import (
    DAY,
    MINUTE,
    NAMESPACE,
    T0,
    InCluster,
    InFile,
    Killed,
    Place,
    course,
    proposal,
    remediation,
)


@pytest.fixture
def file(tmp_path: Path) -> Place:
    return InFile(tmp_path / "remediations.sqlite")


@pytest.fixture(scope="module")
def in_cluster(request: pytest.FixtureRequest) -> InCluster:
    control_plane = request.getfixturevalue("control_plane")
    api = Api(control_plane.administrator)
    apply(api, [*documents(CRDS), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])
    return InCluster(api, control_plane.administrator)


@pytest.fixture
def cluster(control_plane_build: object, in_cluster: InCluster) -> Place:
    in_cluster.clear()
    return in_cluster


@pytest.fixture(params=["file", pytest.param("cluster", marks=pytest.mark.cluster)])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def store(place: Place) -> Iterator[RemediationStore]:
    with place.opened() as opened:
        yield opened


def same(one: Remediation | None, other: Remediation) -> bool:
    return one is not None and replace(one, version="") == replace(other, version="")


def read(store: RemediationStore, name: str) -> Remediation:
    found = store.get(name)
    assert found is not None
    return found


# Kept as given


def test_what_is_created_is_what_is_read(store: RemediationStore) -> None:
    given = remediation(**course())
    created = store.create(given)
    assert same(created, given)
    assert created.version
    assert store.get(given.name) == created
    assert store.all() == store.open_() == (created,)


def test_what_is_saved_is_what_is_read(store: RemediationStore) -> None:
    created = store.create(remediation())
    later = replace(created, **course())
    stored = store.save(later)
    assert same(stored, later)
    assert stored.version != created.version
    assert store.get(later.name) == stored
    cleared = store.save(replace(stored, steps=(), step=0, verified={}, next_at=None, phase=Phase.OBSOLETE))
    assert store.get(later.name) == cleared
    assert (cleared.verified, cleared.next_at) == ({}, None)


def test_who_creates_second_gets_the_first(store: RemediationStore) -> None:
    first = store.create(remediation(**course()))
    second = store.create(remediation(proposal=proposal(reason="another")))
    assert second == first == store.get(first.name)


def test_decisions_are_not_created(store: RemediationStore) -> None:
    created = store.create(remediation(approved=True, approved_by="gpuwatch", undo_asked=True))
    assert (created.approved, created.approved_by, created.undo_asked) == (False, "", False)
    assert store.get(created.name) == created


def test_what_is_not_there_is_none(store: RemediationStore) -> None:
    assert store.get("nobody") is None
    assert store.all() == store.open_() == store.history("node/gpu-1") == ()


def test_numbers_that_are_not_finite_are_refused_and_nothing_is_kept(store: RemediationStore) -> None:
    bad = replace(proposal(), score=replace(proposal().score, gained_gpu_hours=float("nan")))
    with pytest.raises(StoreError, match=r"taint-gpu-1 .*score\.gainedGpuHours is nan"):
        store.create(remediation(proposal=bad))
    assert store.all() == ()


# Which are found


def test_times_and_targets_select(store: RemediationStore) -> None:
    names = ["a-first", "b-second", "c-third"]
    for index, name in enumerate(names):
        target = "node/gpu-2" if name == "b-second" else "node/gpu-1"
        store.create(remediation(name, proposal=proposal(target, T0 + index * MINUTE)))
    assert [each.name for each in store.all(T0 + MINUTE)] == ["b-second", "c-third"]
    assert [each.name for each in store.all(T0 + MINUTE + MINUTE / 60)] == ["c-third"]
    assert [each.name for each in store.history("node/gpu-1")] == ["a-first", "c-third"]
    assert [each.name for each in store.history("node/gpu-1", T0 + MINUTE)] == ["c-third"]


def test_open_are_those_that_something_may_happen_to(store: RemediationStore) -> None:
    for phase in Phase:
        store.create(remediation(f"rem-{phase.lower()}", phase=phase))
    opened = {"proposed", "notified", "acting", "verifying", "ineffect", "undoing"}
    assert {each.name for each in store.open_()} == {f"rem-{name}" for name in opened}
    for phase in Phase:
        store.ask_undo(f"rem-{phase.lower()}")
    assert {each.name for each in store.open_()} == {f"rem-{name}" for name in (*opened, "succeeded", "failed")}


# Two writers


def test_who_read_an_older_version_loses(store: RemediationStore) -> None:
    created = store.create(remediation())
    store.save(replace(created, attempts=1))
    with pytest.raises(ConflictError, match="written by somebody else"):
        store.save(replace(created, attempts=7))
    with pytest.raises(ConflictError):
        store.save(replace(created, version="", attempts=7))
    assert read(store, created.name).attempts == 1


def test_what_is_gone_is_not_written(store: RemediationStore) -> None:
    created = store.create(remediation(phase=Phase.REJECTED))
    assert store.forget_final(T0 + DAY, at_most=0) == 1
    with pytest.raises(ConflictError):
        store.save(replace(created, attempts=1))
    again = store.create(remediation())
    with pytest.raises(ConflictError):  # its namesake is another one
        store.save(replace(created, attempts=1))
    assert store.get(created.name) == again


def test_many_writers_lose_nothing(place: Place) -> None:
    with place.opened() as store:
        name = store.create(remediation()).name
    each_adds, writers = 10, 4
    all_have_read = Barrier(writers)

    def add(_: int) -> int:
        conflicts = added = 0
        with place.opened() as store:
            found = read(store, name)
            all_have_read.wait()  # so that one of the first saves counts, and the others meet a conflict
            while added < each_adds:
                try:
                    store.save(replace(found, attempts=found.attempts + 1))
                except ConflictError:
                    conflicts += 1
                else:
                    added += 1
                found = read(store, name)
        return conflicts

    with ThreadPoolExecutor(writers) as pool:
        conflicts = sum(pool.map(add, range(writers)))
    with place.opened() as store:
        assert read(store, name).attempts == each_adds * writers
    assert conflicts >= writers - 1


def test_many_creators_make_one(place: Place) -> None:
    creators = 4
    begin = Barrier(creators)

    def create(number: int) -> Remediation:
        with place.opened() as store:
            begin.wait()
            return store.create(remediation(proposal=proposal(reason=f"of {number}")))

    with ThreadPoolExecutor(creators) as pool:
        found = set(pool.map(lambda number: create(number).proposal.reason, range(creators)))
    assert len(found) == 1


def test_an_approval_while_the_course_is_written_is_not_lost(place: Place) -> None:
    with place.opened() as store:
        name = store.create(remediation()).name
    begin, approved = Barrier(2), Event()
    turns = 30

    def write_course() -> None:
        with place.opened() as store:
            begin.wait()
            done = 0
            # So long that the approval falls in between, and a few more after it.
            while done < turns or not approved.is_set():
                found = read(store, name)
                turn = Turn(T0 + done * MINUTE, Phase.PROPOSED, f"turn {done}")
                try:
                    store.save(replace(found, history=(*found.history, turn)))
                except ConflictError:
                    continue
                done += 1

    with ThreadPoolExecutor(1) as pool, place.opened() as store:
        writing = pool.submit(write_course)
        begin.wait()
        store.approve(name, "ana")
        approved.set()
        writing.result()
        found = read(store, name)
    assert (found.approved, found.approved_by) == (True, "ana")
    assert [turn.message for turn in found.history] == [f"turn {index}" for index in range(len(found.history))]
    assert len(found.history) >= turns


def test_a_decision_that_came_since_is_a_conflict_and_then_seen(store: RemediationStore) -> None:
    created = store.create(remediation())
    decided = store.reject(created.name)
    assert decided.rejected
    with pytest.raises(ConflictError):
        store.save(replace(created, phase=Phase.NOTIFIED))
    assert store.save(replace(read(store, created.name), phase=Phase.REJECTED)).rejected


def test_the_course_writes_no_decision_and_no_proposal(store: RemediationStore) -> None:
    created = store.create(remediation())
    store.save(replace(created, approved=True, approved_by="gpuwatch", proposal=proposal(reason="another"), attempts=1))
    found = read(store, created.name)
    assert (found.approved, found.approved_by, found.attempts) == (False, "", 1)
    assert found.proposal == created.proposal


def test_approved_and_rejected_exclude_each_other(store: RemediationStore) -> None:
    store.create(remediation("one"))
    store.create(remediation("other"))
    store.approve("one", "ana")
    store.reject("other")
    with pytest.raises(StoreError, match="one is approved already"):
        store.reject("one")
    with pytest.raises(StoreError, match="other is rejected already"):
        store.approve("other", "ana")
    assert (read(store, "one").rejected, read(store, "other").approved) == (False, False)


def test_of_two_opposite_decisions_at_once_one_holds(place: Place) -> None:
    for attempt in range(5):
        name = f"rem-{attempt}"
        begin = Barrier(2)
        with place.opened() as store:
            store.create(remediation(name))

        def decide(wanted: str, name: str = name, begin: Barrier = begin) -> bool:
            with place.opened() as store:
                begin.wait()
                try:
                    if wanted == "approve":
                        store.approve(name, "ana")
                    else:
                        store.reject(name)
                except StoreError:
                    return False
            return True

        with ThreadPoolExecutor(2) as pool:
            held = list(pool.map(decide, ("approve", "reject")))
        with place.opened() as store:
            found = read(store, name)
        assert [found.approved, found.rejected] == held
        assert sum(held) == 1


@pytest.mark.parametrize("decision", ["approve", "reject", "undo"])
def test_what_is_not_there_cannot_be_decided(store: RemediationStore, decision: str) -> None:
    with pytest.raises(StoreError, match="nobody"):
        if decision == "approve":
            store.approve("nobody", "ana")
        elif decision == "reject":
            store.reject("nobody")
        else:
            store.ask_undo("nobody")


# Killed


def test_killed_anywhere_while_it_is_created(place: Place) -> None:
    given = remediation(**course())
    for request in range(10):
        name = f"rem-{request}"
        wanted = replace(given, name=name)
        with place.killed_at(request) as dying:
            try:
                dying.create(wanted)
            except Killed:
                ended = False
            else:
                ended = True
        with place.opened() as store:
            found = store.get(name)
            bare = replace(remediation(), name=name)
            assert found is None or same(found, bare) or same(found, wanted)
            if found is None:
                assert same(store.create(wanted), wanted)  # begun anew
            else:
                assert store.create(wanted) == found  # gone on from
        if ended:
            break
    else:
        pytest.fail("it never came to its end")
    assert request > 0  # it was killed at least once


def test_killed_anywhere_while_it_is_saved(place: Place) -> None:
    with place.opened() as store:
        before = store.create(remediation())
    for request in range(10):
        wanted = replace(before, **course())
        with place.killed_at(request) as dying:
            try:
                dying.save(wanted)
            except Killed:
                ended = False
            else:
                ended = True
        with place.opened() as store:
            found = read(store, before.name)
        assert same(found, wanted if ended else before)
        if ended:
            break
    else:
        pytest.fail("it never came to its end")
    assert request > 0


# Later versions, and nonsense


def test_what_a_later_version_wrote_is_kept(place: Place, store: RemediationStore) -> None:
    with place.of_a_later_version():
        created = store.create(remediation(**course()))
        status = place.raw(created.name)["status"]
        status["mood"] = {"calm": True}
        status["steps"][1]["weather"] = "rain"
        place.write_raw(created.name, status)
        found = read(store, created.name)
        assert same(found, created)
        stored = store.save(replace(found, attempts=9, steps=(*found.steps, found.steps[0])))
        raw = place.raw(created.name)["status"]
        assert (raw["mood"], raw["attempts"]) == ({"calm": True}, 9)
        assert [step.get("weather") for step in raw["steps"]] == [None, "rain", None]
        assert store.get(created.name) == stored


def test_nonsense_is_a_gap_and_the_rest_goes_on(place: Place, store: RemediationStore) -> None:
    with place.of_a_later_version():
        good, bad = store.create(remediation("good", **course())), store.create(remediation("bad", **course()))
        place.write_raw(bad.name, {**place.raw(bad.name)["status"], "phase": "Resting"})
        assert store.all() == store.open_() == (read(store, good.name),)
        (gap,) = store.gaps
        assert (gap.kind, gap.what) == (GapKind.BAD_INPUT, "remediation bad")
        assert "status.phase is 'Resting'" in gap.detail
        with pytest.raises(StoreError, match=r"bad .*Resting"):
            store.get(bad.name)
        store.save(replace(read(store, good.name), attempts=4))
        assert read(store, good.name).attempts == 4
        assert store.forget_final(T0 + 1000 * DAY, at_most=0) == 0


# Forgetting


def test_final_ones_are_forgotten_by_age(store: RemediationStore) -> None:
    for name, phase in (("old", Phase.SUCCEEDED), ("young", Phase.SUCCEEDED), ("open", Phase.IN_EFFECT)):
        turn = Turn(T0 + (DAY if name == "young" else 0 * DAY), phase, "")
        store.create(remediation(name, phase=phase, history=(turn,)))
    assert store.forget_final(T0 + 90 * DAY, kept=90 * DAY) == 0
    assert store.forget_final(T0 + 90 * DAY + MINUTE, kept=90 * DAY) == 1
    assert {each.name for each in store.all()} == {"young", "open"}


def test_the_oldest_final_ones_go_beyond_a_number(store: RemediationStore) -> None:
    for index in range(5):
        turn = Turn(T0 + index * MINUTE, Phase.EXPIRED, "")
        store.create(remediation(f"rem-{index}", phase=Phase.EXPIRED, history=(turn,)))
    store.create(remediation("open"))
    store.create(remediation("to-undo", phase=Phase.FAILED))
    store.ask_undo("to-undo")
    assert store.forget_final(T0, at_most=2) == 3
    assert [each.name for each in store.all()] == ["open", "rem-3", "rem-4", "to-undo"]


# The pause


def test_the_pause_is_seen_by_others_at_once_and_stays_as_it_was_set(place: Place, store: RemediationStore) -> None:
    assert store.paused() == Pause()
    with place.opened() as other:
        assert other.paused() == Pause()
        held = store.pause("ana", "maintenance", T0)
        assert held == Pause(paused=True, since=T0, by="ana", reason="maintenance")
        assert other.paused() == held
        assert other.pause("ben", "me too", T0 + MINUTE) == held == other.paused()
        assert other.resume() == Pause() == store.paused()
        assert (
            store.pause("ben", "again", T0 + DAY)
            == other.paused()
            == Pause(paused=True, since=T0 + DAY, by="ben", reason="again")
        )


@pytest.mark.parametrize("text", ["ture", "yes please", "1"])
def test_a_pause_that_nobody_understands_holds(place: Place, text: str) -> None:
    with place.opened() as store:
        place.break_pause(text)
        assert store.paused().paused
        store.resume()
        assert not store.paused().paused


@pytest.mark.parametrize("decision", ["reject", "ask_undo"])
def test_that_the_finding_was_right_is_said_with_the_decision_and_stays_said(
    store: RemediationStore, decision: str
) -> None:
    names = [store.create(remediation(f"rem-{index}")).name for index in range(2)]
    assert getattr(store, decision)(names[0]).finding_right is False
    assert getattr(store, decision)(names[1], True).finding_right is True
    assert getattr(store, decision)(names[1]).finding_right is True
    assert [each.finding_right for each in store.all()] == [False, True]
    saved = store.save(replace(read(store, names[1]), attempts=1))
    assert saved.finding_right is True
