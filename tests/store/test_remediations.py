"""What the store of Remediations promises, in a cluster in memory and on a real API server."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, Event

import pytest

from cluster.api import Api
from deploy.manifests import CRDS, apply, documents
from gpuwatch.act.remediations import ConflictError, RemediationStore, needs_attention
from gpuwatch.facts.frameworks.keys import FINALIZER
from gpuwatch.facts.model.decision import ActionKind
from gpuwatch.facts.model.remediation import Pause, Phase, Remediation, Turn
from gpuwatch.facts.model.telemetry import GapKind
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.api_form import to_api
from gpuwatch.sources.store.custom_resources import API_VERSION, KIND, NODE_KIND
from store.remediation_stores import (
    DAY,
    JOB,
    MINUTE,
    NAMESPACE,
    NODE,
    NODE_REMEDIATIONS,
    REMEDIATIONS,
    T0,
    TEAM,
    InCluster,
    InMemory,
    Killed,
    Place,
    course,
    gang_proposal,
    namespace,
    of_team,
    proposal,
    remediation,
)


@pytest.fixture
def memory() -> InMemory:
    return InMemory()


@pytest.fixture(scope="module")
def in_cluster(request: pytest.FixtureRequest) -> InCluster:
    control_plane = request.getfixturevalue("control_plane")
    api = Api(control_plane.administrator)
    apply(api, [*documents(CRDS), *map(namespace, (NAMESPACE, TEAM))])
    return InCluster(api, control_plane.administrator)


@pytest.fixture
def cluster(control_plane_build: object, in_cluster: InCluster) -> Place:
    in_cluster.clear()
    return in_cluster


@pytest.fixture(params=["memory", pytest.param("cluster", marks=pytest.mark.cluster)])
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
    assert store.all() == (created,)


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
    assert store.all() == ()


def test_numbers_that_are_not_finite_are_refused_and_nothing_is_kept(store: RemediationStore) -> None:
    bad = replace(proposal(), score=replace(proposal().score, gained_gpu_hours=float("nan")))
    with pytest.raises(StoreError, match=r"taint-gpu-1 .*score\.gainedGpuHours is nan"):
        store.create(remediation(proposal=bad))
    assert store.all() == ()


# Which are found


def test_the_oldest_proposal_comes_first(store: RemediationStore) -> None:
    for index, name in enumerate(("c", "a", "b")):
        store.create(remediation(name, proposal=proposal(at=T0 + index * MINUTE)))
    assert [each.name for each in store.all()] == ["c", "a", "b"]


def test_those_need_attention_that_something_may_happen_to(store: RemediationStore) -> None:
    for phase in Phase:
        store.create(remediation(f"rem-{phase.lower()}", phase=phase))
    opened = {"proposed", "notified", "acting", "verifying", "ineffect", "undoing"}
    assert {each.name for each in store.all() if needs_attention(each)} == {f"rem-{name}" for name in opened}
    for phase in Phase:
        store.ask_undo(f"rem-{phase.lower()}")
    asked = {f"rem-{phase.lower()}" for phase in Phase} - {"rem-undone"}
    assert {each.name for each in store.all() if needs_attention(each)} == asked


# Two writers


def test_who_read_an_older_version_loses(store: RemediationStore) -> None:
    created = store.create(remediation())
    store.save(replace(created, attempts=1))
    with pytest.raises(ConflictError, match="was changed since it was read"):
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


@pytest.mark.cluster
def test_many_writers_lose_nothing(cluster: Place) -> None:
    with cluster.opened() as store:
        name = store.create(remediation()).name
    each_adds, writers = 10, 4
    all_have_read = Barrier(writers)

    def add(_: int) -> int:
        conflicts = added = 0
        with cluster.opened() as store:
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
    with cluster.opened() as store:
        assert read(store, name).attempts == each_adds * writers
    assert conflicts >= writers - 1


@pytest.mark.cluster
def test_an_approval_while_the_course_is_written_is_not_lost(cluster: Place) -> None:
    with cluster.opened() as store:
        name = store.create(remediation()).name
    begin, approved = Barrier(2), Event()
    turns = 30

    def write_course() -> None:
        with cluster.opened() as store:
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

    with ThreadPoolExecutor(1) as pool, cluster.opened() as store:
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


def killed_at_each_write(place: Place, work: Callable[[RemediationStore, int], object]) -> Iterator[tuple[int, bool]]:
    """Does the work in processes that are killed at each write in turn: at which, and whether the work came to its
    end, as the last one does."""
    for request in range(10):
        with place.killed_at(request) as dying:
            try:
                work(dying, request)
            except Killed:
                yield request, False
            else:
                assert request > 0  # it was killed at least once
                yield request, True
                return
    pytest.fail("it never came to its end")


def test_killed_anywhere_while_it_is_created(place: Place) -> None:
    wanted = [remediation(f"rem-{request}", **course()) for request in range(10)]
    for request, _ in killed_at_each_write(place, lambda store, request: store.create(wanted[request])):
        with place.opened() as store:
            found = store.get(wanted[request].name)
            assert found is None or same(found, remediation(found.name)) or same(found, wanted[request])
            again = store.create(wanted[request])
            assert same(again, wanted[request]) if found is None else again == found  # begun anew, or gone on from


def test_killed_anywhere_while_it_is_saved(place: Place) -> None:
    with place.opened() as store:
        before = store.create(remediation())
    wanted = replace(before, **course())
    for _, ended in killed_at_each_write(place, lambda store, _: store.save(wanted)):
        with place.opened() as store:
            assert same(read(store, before.name), wanted if ended else before)


# For workloads and for Nodes


def test_one_for_a_workload_lies_in_its_namespace(place: Place, store: RemediationStore) -> None:
    created = store.create(of_team(**course(JOB)))
    assert (created.id, created.namespace) == (f"{TEAM}/release-train", TEAM)
    assert same(created, of_team(**course(JOB)))
    assert store.get(created.id) == created == read(store, f"{TEAM}/release-train")
    assert store.get(created.name) is None
    assert store.get(f"team-b/{created.name}") is None
    assert place.raw(created.id)["spec"]["proposal"]["action"] == "ReleaseGang"
    assert store.all() == (created,)
    stored = store.save(replace(created, attempts=8))
    with pytest.raises(ConflictError):
        store.save(created)
    assert store.approve(stored.id, "ana").approved_by == "ana"
    assert store.ask_undo(stored.id).undo_asked
    store.save(replace(read(store, stored.id), phase=Phase.UNDONE))
    assert store.forget_final(T0 + DAY, at_most=0) == 1
    assert store.all() == ()


def test_the_same_name_may_be_given_once_in_each_place(store: RemediationStore) -> None:
    made = [store.create(each) for each in (remediation("same"), of_team("same"))]
    assert [each.id for each in store.all()] == ["same", f"{TEAM}/same"]
    store.reject(f"{TEAM}/same")
    assert [read(store, each.id).rejected for each in made] == [False, True]
    stored = store.save(replace(read(store, "same"), phase=Phase.REFUSED))
    assert store.forget_final(T0 + DAY, at_most=0) == 1
    assert [each.id for each in store.all()] == [f"{TEAM}/same"]
    assert store.get(stored.id) is None


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (of_team(proposal=gang_proposal(objects=(replace(JOB, namespace="team-b"),))), "names Job/team-b/train"),
        (of_team(proposal=gang_proposal(objects=(JOB, NODE))), "names Node/gpu-1"),
        (of_team(proposal=gang_proposal(pods=(f"{TEAM}/train-0", "team-b/train-0"))), "names team-b/train-0"),
        (of_team(proposal=gang_proposal(pods=("team-aa/train-0",))), "names team-aa/train-0"),
        (of_team(proposal=gang_proposal(objects=())), "names no object"),
        (of_team(**course(NODE)), "names Node/gpu-1"),
        (remediation(proposal=proposal(action=ActionKind.TAINT_NODE, namespace=TEAM)), "for 'team-a'"),
        (remediation(proposal=proposal(objects=(JOB,))), "names Job/team-a/train"),
        (remediation(proposal=proposal(pods=("team-a/train-0",))), "names team-a/train-0"),
    ],
)  # fmt: skip
def test_what_reaches_into_another_place_is_not_kept(store: RemediationStore, bad: Remediation, said: str) -> None:
    with pytest.raises(StoreError, match=said):
        store.create(bad)
    assert store.all() == ()


@pytest.mark.parametrize("space", [TEAM, ""])
def test_what_somebody_forged_is_a_gap_and_is_never_given(in_cluster: InCluster, space: str) -> None:
    """Where no admission policy is installed, and somebody may create what gpuwatch acts on."""
    in_cluster.clear()
    like = of_team() if space else remediation()
    kind, path = (KIND, REMEDIATIONS) if space else (NODE_KIND, NODE_REMEDIATIONS)
    elsewhere = replace(JOB, namespace="team-b")
    proposals = {
        "elsewhere": gang_proposal("team-b") if space else replace(proposal(), namespace=TEAM),
        "objects": replace(like.proposal, objects=(*like.proposal.objects, elsewhere)),
        "pods": replace(like.proposal, pods=("team-b/train-0",)),
        "good": like.proposal,
    }
    for name, forged in proposals.items():
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}}
        answer = in_cluster.api.answer("POST", path, {**body, "spec": {"proposal": to_api(forged), "approved": True}})
        assert answer.ok, answer.text
    with in_cluster.opened() as store:
        assert [each.name for each in store.all()] == ["good"]
        places = {name: f"{space}/{name}".removeprefix("/") for name in proposals if name != "good"}
        assert {gap.what for gap in store.gaps} == {f"remediation {at}" for at in places.values()}
        where = f"kubectl delete rem elsewhere -n {TEAM}" if space else "kubectl delete noderem elsewhere"
        assert any(where in gap.detail and "the object is in" in gap.detail for gap in store.gaps)
        for at in places.values():
            with pytest.raises(StoreError, match="cannot be decoded"):
                store.get(at)


# Nonsense


def test_nonsense_is_a_gap_and_the_rest_goes_on(memory: InMemory) -> None:
    with memory.opened() as store:
        good, bad = store.create(remediation("good", **course())), store.create(remediation("bad", **course()))
        memory.write_raw(bad.id, {**memory.raw(bad.id)["status"], "phase": "Resting"})
        assert store.all() == (read(store, good.name),)
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


# Deletion


def test_what_stands_is_held_and_what_has_ended_is_not(place: Place, store: RemediationStore) -> None:
    def held() -> set[str]:
        names = ("open", "ended")
        return {name for name in names if FINALIZER in place.raw(name)["metadata"].get("finalizers", ())}

    for name in ("open", "ended"):
        store.create(remediation(name))
    assert held() == {"open", "ended"}  # before anything was written anywhere
    store.save(replace(read(store, "ended"), phase=Phase.UNDONE))
    store.all()
    store.catch_up()
    assert held() == {"open"}
    store.all()
    assert store.catch_up() == 0


def test_a_finished_one_that_left_nothing_goes_at_once_and_one_that_stands_is_asked_for_its_undo(
    place: Place, store: RemediationStore
) -> None:
    idle = of_team("idle", phase=Phase.SUCCEEDED)
    going, ended = (
        store.create(remediation(name, phase=phase))
        for name, phase in (("going", Phase.IN_EFFECT), ("ended", Phase.EXPIRED))
    )
    idle = store.create(idle)
    store.all()
    store.catch_up()
    for each in (going, ended, idle):
        place.delete(each.id)
    assert store.get(ended.id) is None
    assert {each.id: each.undo_asked for each in store.all()} == {going.id: True, idle.id: True}
    store.catch_up()
    assert len(store.all()) == 2  # not before it is undone
    for each in store.all():
        store.save(replace(each, phase=Phase.UNDONE))
    store.all()
    store.catch_up()
    assert store.all() == ()


def test_one_that_was_made_without_the_finalizer_gets_it(place: Place, store: RemediationStore) -> None:
    kept = store.create(remediation())
    place.hold(kept.id, ["example.com/theirs"])
    store.all()
    store.catch_up()
    assert place.raw(kept.id)["metadata"]["finalizers"] == ["example.com/theirs", FINALIZER]
    store.save(replace(read(store, kept.id), phase=Phase.UNDONE))
    store.all()
    store.catch_up()
    assert place.raw(kept.id)["metadata"]["finalizers"] == ["example.com/theirs"]


def test_one_that_nobody_understands_goes_when_it_is_deleted_as_its_gap_advises(memory: InMemory) -> None:
    with memory.opened() as store:
        kept = store.create(remediation())
        memory.write_raw(kept.id, {"phase": "Resting"})
        store.all()
        store.catch_up()
        assert "removes its taint from the Node once the object is deleted" in store.gaps[0].detail
        assert FINALIZER in memory.raw(kept.id)["metadata"]["finalizers"]
        memory.delete(kept.id)
        store.all()
        store.catch_up()
        store.all()
        assert store.gaps == ()


def test_a_release_that_is_old_is_forgotten_and_not_undone(store: RemediationStore) -> None:
    turn = Turn(T0, Phase.SUCCEEDED, "")
    store.create(of_team(phase=Phase.SUCCEEDED, history=(turn,)))
    assert store.forget_final(T0 + 91 * DAY) == 1
    assert store.all() == ()


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


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "is missing: create it with `gpuwatch resume`"),
        ({"pause": "true"}, "unknown key 'pause'"),
        ({"paused": "false", "pasued": "true"}, "unknown key 'pasued'"),
        ({"reason": "maintenance"}, "maintenance (ConfigMap"),
        ({"paused": "ture"}, 'says neither paused: "false" nor "true"'),
        ({"paused": "yes please"}, "says neither"),
        ({"paused": "1"}, "says neither"),
        ({"paused": ""}, "says neither"),
    ],
)
def test_what_is_not_plainly_open_is_a_pause_that_says_what_to_write_and_resume_opens_it(
    place: Place, data: dict[str, str] | None, said: str
) -> None:
    with place.opened() as store:
        place.set_pause(data)
        assert store.paused().paused
        assert said in store.paused().reason
        assert not store.paused().everything
        store.resume()
        assert store.paused() == Pause()


@pytest.mark.parametrize("data", [{}, {"paused": "false"}, {"paused": "False", "reason": "over", "by": "ana"}])
def test_an_empty_pause_or_one_that_says_false_is_open(place: Place, data: dict[str, str]) -> None:
    with place.opened() as store:
        place.set_pause(data)
        assert store.paused() == Pause()


@pytest.mark.parametrize("data", [None, {}, {"paused": "ture"}, {"since": "yesterday", "paused": "true", "x": "y"}])
def test_a_pause_can_be_set_whatever_stands_there(place: Place, data: dict[str, str] | None) -> None:
    with place.opened() as store:
        place.set_pause(data)
        if (data or {}).get("paused") != "true":
            store.pause("ana", "maintenance", T0)
            assert store.paused() == Pause(paused=True, since=T0, by="ana", reason="maintenance")
        store.pause("ben", "a fire", T0 + MINUTE, everything=True)
        fire = Pause(paused=True, everything=True, since=T0 + MINUTE, by="ben", reason="a fire")
        assert store.paused() == fire
        assert store.pause("ana", "less", T0 + DAY) == fire == store.paused()  # it is not made milder


@pytest.mark.parametrize("decision", ["reject", "ask_undo"])
def test_that_the_finding_was_right_is_said_with_the_decision_and_stays_said(
    store: RemediationStore, decision: str
) -> None:
    names = [store.create(remediation(f"rem-{index}")).name for index in range(2)]
    assert getattr(store, decision)(names[0]).finding_correct is False
    assert getattr(store, decision)(names[1], True).finding_correct is True
    assert getattr(store, decision)(names[1]).finding_correct is True
    assert [each.finding_correct for each in store.all()] == [False, True]
    saved = store.save(replace(read(store, names[1]), attempts=1))
    assert saved.finding_correct is True
