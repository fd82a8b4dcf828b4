"""What each place of the state promises, a file and a cluster alike: what is saved is what the next process loads; only
what changed is written; what is damaged is made anew, and said; a process that is killed leaves the old or the new."""

import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.facts.model.decision import Evidence, FindingKind
from gpuwatch.facts.model.delivery import Delivery, DeliveryState, Sending
from gpuwatch.facts.model.faults import FaultMemory, Holding, KnownFault, Repair, RepairKind
from gpuwatch.facts.model.sizing import Recommendation
from gpuwatch.facts.model.telemetry import GapKind
from gpuwatch.facts.model.workload_profile import ProfileBook, WorkloadKey, WorkloadProfile
from gpuwatch.sources.store import rows
from gpuwatch.sources.store.store import KEPT
from store.places import InCluster, InFile, Kept
from store.values import (
    DAY,
    HOUR,
    T0,
    advice,
    any_of,
    applied,
    book,
    books,
    key,
    outcome,
    profile,
    without_options,
)

FAULT = KnownFault(
    uuid="GPU-1",
    kind=FindingKind.XID,
    code=79,
    node="node-1",
    slot="00000000:18:00.0",
    boot_id="one",
    since=T0,
    last_at=T0,
    seen_at=T0,
    energy_joules=9e8,
    bursts=(T0,),
    repairs=(Repair(kind=RepairKind.REBOOT, at=T0 + HOUR),),
    holdings=(Holding(at=T0, workload="workload/Job/ns/a", program=("ns/a",)),),
    evidence=(Evidence(signal="xid_code", value=79.0, at=T0),),
)


@pytest.fixture(params=["file", "cluster"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    return InFile(tmp_path / "gpuwatch.state") if request.param == "file" else InCluster()


@pytest.fixture
def in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "PIECE_BYTES", 4096)


def memory(count: int = 3, *, code: int = 79) -> FaultMemory:
    return FaultMemory(faults=tuple(replace(FAULT, uuid=f"GPU-{number}", code=code) for number in range(count)))


def by_key(found: FaultMemory) -> FaultMemory:
    return replace(found, faults=tuple(sorted(found.faults, key=lambda each: each.key)))


def loaded(kept: Kept) -> ProfileBook | None:
    found, gaps = kept.opened().load_book()
    assert gaps == ()
    assert found is None or isinstance(found, ProfileBook)
    return found


def of(kept: Kept, table: str) -> list[str]:
    return sorted(name for name in kept.pieces() if name.startswith(f"{table}-"))


class TestBook:
    def test_nothing_was_saved(self, kept: Kept) -> None:
        store = kept.opened()
        assert (store.load_book(), store.gaps) == ((None, ()), ())
        assert (store.load_faults(), store.advice_given(), store.deliveries()) == (FaultMemory(), (), {})

    @settings(max_examples=60)
    @given(one=books(), other=books())
    def test_any_book_comes_back(self, one: ProfileBook, other: ProfileBook) -> None:
        with TemporaryDirectory() as folder:
            for kept in (InFile(Path(folder) / "state"), InCluster()):
                for each in (one, other):
                    kept.opened().save_book(each)
                    assert loaded(kept) == each

    def test_profiles_that_are_forgotten_go(self, kept: Kept) -> None:
        for each in (book(count=20), book(count=2), ProfileBook(until=T0, step_seconds=300)):
            kept.opened().save_book(each)
            assert loaded(kept) == each

    @pytest.mark.usefixtures("in_small_pieces")
    def test_only_what_changed_is_written(self, kept: Kept) -> None:
        first = book(count=60)
        kept.opened().save_book(first)
        before = set(kept.pieces())
        assert len(of(kept, "profile")) > 8
        changed = {**first.profiles, key(7): replace(first.profiles[key(7)], observed_seconds=99.0)}
        store = kept.opened()
        store.save_book(first)
        assert set(kept.pieces()) == before
        store.save_book(replace(first, profiles=changed))
        assert len(before - set(kept.pieces())) == len(set(kept.pieces()) - before) == 1

    def test_a_row_without_newer_fields_has_their_defaults_and_unknown_ones_are_passed_over(self, kept: Kept) -> None:
        kept.opened().save_book(book(count=1))
        old = msgspec.to_builtins(profile(0), builtin_types=(bytes, datetime))
        for name in ("days", "coarse_busy", "resolution"):
            del old[name]
        old["cells"][0]["colour"] = "green"
        old["later"] = 7
        state = kept.opened()._state
        with state.writing():
            state.replace("profile", {"x": old})
        plain = WorkloadProfile(key=key(), as_of=T0, half_life_seconds=1.0, first_seen=T0, last_seen=T0)
        found = loaded(kept)
        assert found is not None
        assert found.profiles[key()] == replace(
            profile(0), days=plain.days, coarse_busy=plain.coarse_busy, resolution=plain.resolution
        )

    def test_a_row_that_is_none_is_left_out_and_said(self, kept: Kept) -> None:
        kept.opened().save_book(book(count=2))
        state = kept.opened()._state
        with state.writing():
            state.change("profile", {"odd": {"key": 3}})
        found, (gap,) = kept.opened().load_book()
        assert found == book(count=2)
        assert "the row 'odd' is unreadable" in gap.detail

    def test_names_of_any_kind_and_two_kinds_of_gpu_of_one_container(self, kept: Kept) -> None:
        one = WorkloadKey("Job/ü/'; DROP", "a\x00b\tc", "H100", "1g.10gb+me")
        odd = [WorkloadKey("", "", ""), one, replace(one, gpu_model="A100"), replace(one, mig_profile="")]
        some = replace(book(), profiles={each: replace(profile(), key=each) for each in odd})
        kept.opened().save_book(some)
        assert loaded(kept) == some


class TestAdvice:
    @settings(max_examples=40)
    @given(
        given=st.lists(any_of(Recommendation), max_size=3, unique_by=lambda each: (each.key.workload, each.at)),
        applied_at=any_of(datetime),
    )
    def test_any_advice_comes_back_with_when_it_was_applied(
        self, given: list[Recommendation], applied_at: datetime
    ) -> None:
        kept = InCluster()
        store = kept.opened()
        for each in given:
            # Each at its own time, so that none is too old.
            store.record_advice([replace(each, at=T0)])
        store.record_outcomes([outcome(replace(each, at=T0), applied_at) for each in given])
        store = kept.opened()
        last = {each.key: replace(each, at=T0, options=()) for each in given}
        found = store.advice_given()
        assert {each.key: each for each in found} == last
        assert len(found) == len(last)
        assert applied(store) == dict.fromkeys(last, applied_at)
        assert store.gaps == ()

    def test_the_same_target_is_the_same_advice(self, kept: Kept) -> None:
        with kept.opened() as store:
            store.record_advice([advice()], T0)
            dearer = replace(advice(at=T0 + HOUR, price_per_hour=2.0), reason="other words", confidence_ratio=0.9)
            store.record_advice([dearer], T0 + HOUR)
            assert store.advice_given() == (without_options(advice()),)
            target = replace(advice().chosen.target, host_cpu_cores=7.91, host_memory_bytes=1.5e10)
            sized = replace(advice(at=T0 + HOUR), chosen=replace(advice().chosen, target=target))
            store.record_advice([sized], T0 + HOUR)
            assert store.advice_given() == (without_options(advice()),)
            other = advice(at=T0 + 2 * HOUR, mig_profile="1g.10gb")
            store.record_advice([other], T0 + 2 * HOUR)
            assert store.advice_given() == (without_options(other),)
            back = advice(at=T0 + 3 * HOUR)
            store.record_advice([back], T0 + 3 * HOUR)
            assert store.advice_given() == (without_options(back),)

    def test_the_same_moment_worked_out_anew_takes_the_place(self, kept: Kept) -> None:
        with kept.opened() as store:
            store.record_advice([advice()])
            store.record_advice([advice(mig_profile="1g.10gb")])
            store.record_outcomes([outcome(advice(), applied_at=T0 + HOUR)])
            assert store.advice_given() == (without_options(advice(mig_profile="1g.10gb")),)

    def test_advice_that_was_applied_stays_when_other_advice_follows(self, kept: Kept) -> None:
        first, second, third = (
            advice(at=T0 + number * DAY, mig_profile=name)
            for number, name in enumerate(("3g.40gb", "2g.20gb", "1g.10gb"))
        )
        with kept.opened() as store:
            for each in (first, second, third):
                store.record_advice([each])
            assert store.advice_given() == (without_options(third),)
            store.record_outcomes([outcome(first, applied_at=T0 + HOUR), outcome(second)])
            assert store.advice_given() == (without_options(first), without_options(third))
            assert store.advice_given(first.at) == (without_options(first), without_options(third))
            assert store.advice_given(first.at + HOUR) == (without_options(third),)
            assert store.advice_given(third.at + HOUR) == ()

    def test_the_last_advice_of_a_container_is_that_on_its_present_gpus(self, kept: Kept) -> None:
        a100, h100 = advice(key()), advice(key(gpu_model="H100-SXM5-80GB"))
        sidecar = advice(key(container="sidecar"))
        with kept.opened() as store:
            store.record_advice([a100, h100, sidecar])
            # It runs on both.
            assert {each.key for each in store.advice_given()} == {a100.key, h100.key, sidecar.key}
            # It was moved: only one of them is still advised, though with no other target.
            store.record_advice([replace(h100, at=T0 + HOUR)])
            assert {each.key for each in store.advice_given()} == {h100.key, sidecar.key}
            # No advice any more does not take back what was advised.
            store.record_advice([], T0 + DAY)
            assert {each.key for each in store.advice_given()} == {h100.key, sidecar.key}

    def test_the_profile_at_the_time_of_the_advice(self, kept: Kept) -> None:
        with kept.opened() as store:
            store.record_advice([advice()])
            assert store.profile_at_advice(key()) is None  # none was saved
            store.save_book(book(count=1, tag=1.0))
            store.record_advice([advice(at=T0 + DAY, mig_profile="1g.10gb")])
            store.save_book(book(count=1, tag=2.0))
            store.record_advice([advice(at=T0 + 2 * DAY, mig_profile="1g.10gb")])  # the same as before
            assert store.profile_at_advice(key()) == profile(0, tag=1.0)
            store.record_advice([advice(at=T0 + 3 * DAY, mig_profile="3g.40gb")])
            store.save_book(replace(book(count=1), profiles={}))
        with kept.opened() as store:
            assert store.profile_at_advice(key()) == profile(0, tag=2.0)
            assert store.profile_at_advice(key(), T0 + DAY) == profile(0, tag=1.0)
            assert store.profile_at_advice(key(), T0) is None
            assert store.profile_at_advice(key(), T0 + 2 * DAY) is None
            assert store.profile_at_advice(key(1)) is None

    def test_the_last_outcome_says_when_advice_was_applied(self, kept: Kept) -> None:
        first, second = advice(), advice(key(1), at=T0 + DAY)
        with kept.opened() as store:
            store.record_advice([first, second])
            store.record_outcomes([outcome(second), outcome(first)])
            assert applied(store) == {}
            store.record_outcomes([outcome(first, applied_at=T0 + HOUR)])
            assert applied(store) == {first.key: T0 + HOUR}
            before = kept.pieces()
            store.record_outcomes([outcome(first, applied_at=T0 + HOUR), outcome(second)])
            store.record_outcomes([outcome(replace(first, at=T0 - HOUR), applied_at=T0)])  # of no advice that is kept
            store.record_outcomes([])
            assert kept.pieces() == before
            store.record_outcomes([outcome(first)])
            assert applied(store) == {}

    def test_nothing_is_forgotten_within_a_year(self, kept: Kept) -> None:
        assert KEPT > 366 * DAY
        old, other = advice(), advice(key(1))
        done = advice(key(2))
        with kept.opened() as store:
            store.record_advice([old, other, done])
            store.record_outcomes([outcome(old), outcome(done, applied_at=T0 + DAY)])
            everything = store.advice_given(), applied(store)
            store.record_advice([replace(other, at=T0 + 100 * DAY)])
            store.record_advice([], T0 + KEPT)
            assert (store.advice_given(), applied(store)) == everything
            store.record_advice([], T0 + KEPT + HOUR)
            # What was advised again since stays, with the time at which it was first given.
            assert store.advice_given() == (without_options(other),)
            store.record_advice([], T0 + KEPT + 101 * DAY)
            assert store.advice_given() == ()
            assert [*of(kept, "advice"), *of(kept, "advised")] == []

    @pytest.mark.usefixtures("in_small_pieces")
    def test_much_advice_is_kept_in_many_pieces(self, kept: Kept) -> None:
        """Rows that come one by one divide their pieces when these grow."""
        store = kept.opened()
        store.save_book(book(count=40))
        for number in range(40):
            store.record_advice([advice(key(number))], T0)
        assert len(of(kept, "advised")) > 4
        assert [each.key for each in kept.opened().advice_given()] == sorted(key(number) for number in range(40))
        assert kept.opened().profile_at_advice(key(17)) == profile(17)


class TestFaults:
    def test_what_is_saved_is_what_the_next_process_loads(self, kept: Kept) -> None:
        for each in (FaultMemory(), memory(3), memory(5, code=48), memory(1)):
            kept.opened().save_faults(each)
            assert by_key(kept.opened().load_faults()) == each

    @given(any_of(KnownFault))
    def test_any_fault_comes_back(self, fault: KnownFault) -> None:
        kept = InCluster()
        kept.opened().save_faults(FaultMemory(faults=(fault,)))
        assert kept.opened().load_faults() == FaultMemory(faults=(fault,))

    def test_a_damaged_fault_is_said_and_its_end_is_not_concluded(self, kept: Kept) -> None:
        kept.opened().save_faults(memory(2))
        kept.spoil(of(kept, "fault")[0], lambda body: body[::-1])
        store = kept.opened()
        found = store.load_faults()
        assert found.faults == ()
        assert "known faults: they are forgotten" in found.unread
        assert "restart gpuwatch" in found.unread
        store.save_faults(found)  # without what is damaged
        assert kept.opened().load_faults() == FaultMemory()

    def test_damage_of_other_rows_is_not_that_of_faults(self, kept: Kept) -> None:
        store = kept.opened()
        store.save_faults(memory(2))
        store.save_book(book())
        kept.spoil(of(kept, "profile")[0], lambda body: body[::-1])
        assert by_key(kept.opened().load_faults()) == memory(2)


def test_what_was_sent_comes_back_and_is_forgotten(kept: Kept) -> None:
    sent = Delivery(destination="folder /out", state=DeliveryState.SENT, attempts=2, tried_at=T0)
    one = Sending(id="one-1f", title="One", at=T0, text="text", deliveries=(sent,))
    store = kept.opened()
    store.save_deliveries([one, replace(one, id="two")])
    store.save_deliveries([replace(one, title="Uno")], ["two", "never"])
    assert kept.opened().deliveries() == {"one-1f": replace(one, title="Uno")}


def test_a_state_has_a_token_of_its_own(kept: Kept, tmp_path: Path) -> None:
    token = kept.opened().token()
    assert kept.opened().token() == token != InFile(tmp_path / "other").opened().token()


class TestSeveral:
    def test_profiles_faults_and_deliveries_do_not_disturb_each_other(self, tmp_path: Path) -> None:
        """A cycle stores a fault while the job of the profiles has its Store open, and both are in one file."""
        kept = InFile(tmp_path / "state")
        profiles, faults, sent = kept.opened(), kept.opened(), kept.opened()
        profiles.save_book(book(count=5))
        faults.save_faults(memory())
        sent.save_deliveries([Sending(id="x", title="X", text="", at=T0)])
        profiles.save_book(book(count=6))
        assert loaded(kept) == book(count=6)
        assert by_key(kept.opened().load_faults()) == memory()
        assert kept.opened().deliveries().keys() == {"x"}

    def test_a_reader_sees_the_whole_state_of_one_moment(self, tmp_path: Path) -> None:
        kept = InFile(tmp_path / "state")
        kept.opened().save_book(book(count=5))
        reader = kept.opened()
        kept.opened().save_book(book(count=6, tag=2.0))
        assert reader.load_book() == (book(count=5), ())

    def test_what_another_process_saved_meanwhile_is_not_mixed_in(self, tmp_path: Path) -> None:
        kept = InFile(tmp_path / "state")
        store = kept.opened()
        kept.opened().save_book(book(count=6, tag=2.0))
        kept.opened().record_advice([advice(key(5))])
        store.save_book(book(count=3, tag=1.0))
        store.record_advice([advice(key(1))])
        assert loaded(kept) == book(count=3, tag=1.0)
        assert [each.key for each in kept.opened().advice_given()] == [key(1), key(5)]


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "a flipped bit": lambda body: body[:40] + bytes([body[40] ^ 4]) + body[41:],
    "cut": lambda body: body[: len(body) // 2],
    "zeros": lambda body: bytes(len(body)),
    "other bytes": lambda body: body[::-1],
    "no rows, well compressed": lambda _: zlib.compress(b"\x80"),
    "gone": lambda body: b"",
}


class TestDamage:
    @pytest.mark.usefixtures("in_small_pieces")
    @pytest.mark.parametrize("harm", HARMS)
    def test_a_piece_costs_what_it_had_and_is_made_anew(self, kept: Kept, harm: str) -> None:
        whole = book(count=60)
        store = kept.opened()
        store.save_book(whole)
        store.record_advice([advice(key(3))])
        kept.spoil(of(kept, "profile")[1], HARMS[harm])
        store = kept.opened()
        found, gaps = store.load_book()
        (gap,) = gaps
        assert store.gaps == gaps
        assert gap.kind is GapKind.BAD_INPUT
        assert ("gpuwatch.state" if isinstance(kept, InFile) else "gpuwatch/state") in gap.what
        assert "profiles of workloads: they start empty, and are learned anew" in gap.detail
        assert found is not None
        lost = whole.profiles.keys() - found.profiles.keys()
        assert 0 < len(lost) < len(whole.profiles)
        assert found == replace(whole, profiles={each: whole.profiles[each] for each in found.profiles})
        # The same pieces as before, and still the damaged one is written.
        store.save_book(whole)
        assert loaded(kept) == whole
        assert [each.key for each in kept.opened().advice_given()] == [key(3)]

    def test_a_book_without_its_head_is_none(self, kept: Kept) -> None:
        kept.opened().save_book(book())
        kept.spoil(of(kept, "book")[0], lambda body: b"?" * len(body))
        store = kept.opened()
        found, (gap,) = store.load_book()
        assert found is None
        assert "all profiles start empty" in gap.detail
        store.save_book(book(tag=2.0))
        assert loaded(kept) == book(tag=2.0)

    def test_lost_advice_does_not_stand_in_the_way_of_new(self, kept: Kept) -> None:
        for table in ("advice", "advised"):
            store = kept.opened()
            store.record_advice([advice(key(number)) for number in range(3)])
            kept.spoil(of(kept, table)[0], HARMS["other bytes"])
            store = kept.opened()
            assert store.advice_given() == ()
            (gap,) = store.gaps
            assert "not followed up" in gap.detail
            store.record_advice([advice(key(5), at=T0 + DAY)])
            assert key(5) in {each.key for each in kept.opened().advice_given()}

    def test_a_piece_that_nothing_reads_does_not_prevent_a_save(self, kept: Kept) -> None:
        store = kept.opened()
        store.save_book(book())
        store.save_faults(memory())
        kept.spoil(of(kept, "fault")[0], HARMS["cut"])
        kept.opened().save_book(book(tag=2.0))
        assert loaded(kept) == book(tag=2.0)
