"""Advice is kept once, as it was first given, with the profile of that time; outcomes take each other's place."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.facts.model.sizing import Recommendation
from gpuwatch.sources.store.store import KEPT, Store
from store.values import DAY, HOUR, T0, advice, any_of, applied, book, key, outcome, profile, without_options


@settings(max_examples=40)
@given(
    recommendations=st.lists(any_of(Recommendation), max_size=3, unique_by=lambda each: (each.key.workload, each.at)),
    applied_at=any_of(datetime),
)
def test_any_advice_comes_back_with_when_it_was_applied(
    recommendations: list[Recommendation], applied_at: datetime
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "state.db"
        with Store.open(path) as store:
            for each in recommendations:
                # Each at its own time, so that none is too old.
                store.record_advice([replace(each, at=T0)])
            store.record_outcomes([outcome(replace(each, at=T0), applied_at) for each in recommendations])
        with Store.open(path) as store:
            last = {each.key: replace(each, at=T0, options=()) for each in recommendations}
            found = store.advice_given()
            assert {each.key: each for each in found} == last
            assert len(found) == len(last)
            assert applied(store) == dict.fromkeys(last, applied_at)
            assert store.gaps == ()


def test_the_same_target_is_the_same_advice(tmp_path: Path) -> None:
    with Store.open(tmp_path / "state.db") as store:
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


def test_the_same_moment_worked_out_anew_takes_the_place(tmp_path: Path) -> None:
    with Store.open(tmp_path / "state.db") as store:
        store.record_advice([advice()])
        store.record_advice([advice(mig_profile="1g.10gb")])
        store.record_outcomes([outcome(advice(), applied_at=T0 + HOUR)])
        assert store.advice_given() == (without_options(advice(mig_profile="1g.10gb")),)


def test_advice_that_was_applied_stays_when_other_advice_follows(tmp_path: Path) -> None:
    first, second, third = (
        advice(at=T0 + number * DAY, mig_profile=name) for number, name in enumerate(("3g.40gb", "2g.20gb", "1g.10gb"))
    )
    with Store.open(tmp_path / "state.db") as store:
        for each in (first, second, third):
            store.record_advice([each])
        assert store.advice_given() == (without_options(third),)
        store.record_outcomes([outcome(first, applied_at=T0 + HOUR), outcome(second)])
        assert store.advice_given() == (without_options(first), without_options(third))
        assert store.advice_given(first.at) == (without_options(first), without_options(third))
        assert store.advice_given(first.at + HOUR) == (without_options(third),)
        assert store.advice_given(third.at + HOUR) == ()


def test_the_last_advice_of_a_container_is_that_on_its_present_gpus(tmp_path: Path) -> None:
    a100, h100 = advice(key()), advice(key(gpu_model="H100-SXM5-80GB"))
    sidecar = advice(key(container="sidecar"))
    with Store.open(tmp_path / "state.db") as store:
        store.record_advice([a100, h100, sidecar])
        # It runs on both.
        assert {each.key for each in store.advice_given()} == {a100.key, h100.key, sidecar.key}
        # It was moved: only one of them is still advised, though with no other target.
        store.record_advice([replace(h100, at=T0 + HOUR)])
        assert {each.key for each in store.advice_given()} == {h100.key, sidecar.key}
        # No advice any more does not take back what was advised.
        store.record_advice([], T0 + DAY)
        assert {each.key for each in store.advice_given()} == {h100.key, sidecar.key}


def test_the_profile_at_the_time_of_the_advice(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with Store.open(path) as store:
        store.record_advice([advice()])
        assert store.profile_at_advice(key()) is None  # none was saved
        store.save_book(book(count=1, tag=1.0))
        store.record_advice([advice(at=T0 + DAY, mig_profile="1g.10gb")])
        store.save_book(book(count=1, tag=2.0))
        store.record_advice([advice(at=T0 + 2 * DAY, mig_profile="1g.10gb")])  # the same as before
        assert store.profile_at_advice(key()) == profile(0, tag=1.0)
        store.record_advice([advice(at=T0 + 3 * DAY, mig_profile="3g.40gb")])
        store.save_book(replace(book(count=1), profiles={}))
    with Store.open(path) as store:
        assert store.profile_at_advice(key()) == profile(0, tag=2.0)
        assert store.profile_at_advice(key(), T0 + DAY) == profile(0, tag=1.0)
        assert store.profile_at_advice(key(), T0) is None
        assert store.profile_at_advice(key(), T0 + 2 * DAY) is None
        assert store.profile_at_advice(key(1)) is None


def test_the_last_outcome_says_when_advice_was_applied(tmp_path: Path) -> None:
    first, second = advice(), advice(key(1), at=T0 + DAY)
    with Store.open(tmp_path / "state.db") as store:
        store.record_advice([first, second])
        store.record_outcomes([outcome(second), outcome(first)])
        assert applied(store) == {}
        store.record_outcomes([outcome(first, applied_at=T0 + HOUR)])
        assert applied(store) == {first.key: T0 + HOUR}
        before = store._db.total_changes
        store.record_outcomes([outcome(first, applied_at=T0 + HOUR), outcome(second)])
        store.record_outcomes([outcome(replace(first, at=T0 - HOUR), applied_at=T0)])  # of no advice that is kept
        store.record_outcomes([])
        assert store._db.total_changes == before
        store.record_outcomes([outcome(first)])
        assert applied(store) == {}


def test_nothing_is_forgotten_within_a_year(tmp_path: Path) -> None:
    assert KEPT > 366 * DAY
    old, other = advice(), advice(key(1))
    done = advice(key(2))
    with Store.open(tmp_path / "state.db") as store:
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
        for table in ("advice", "advice_body"):
            assert store._db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


def test_damaged_advice_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    some = [advice(key(number)) for number in range(3)]
    with Store.open(path) as store:
        store.save_book(book(count=3))
        store.record_advice(some)
    db = sqlite3.connect(path)
    db.execute("UPDATE advice_body SET body = x'00' WHERE id = (SELECT id FROM advice WHERE workload LIKE '%job-1')")
    db.execute("UPDATE advice_body SET profile = x'00' WHERE id = (SELECT id FROM advice WHERE workload LIKE '%job-2')")
    db.execute("UPDATE advice SET target = x'00' WHERE workload LIKE '%job-0'")
    db.commit()
    db.close()
    with Store.open(path) as store:
        assert store.advice_given() == (without_options(some[0]), without_options(some[2]))
        assert store.profile_at_advice(key(2)) is None
        assert store.profile_at_advice(key(1)) == profile(1)
        assert [gap.what for gap in store.gaps] == [
            "advice to Job/team-1/job-1[main]",
            "earlier profile of Job/team-2/job-2[main]",
        ]
        # Whether the target has changed is not known, so this is new advice.
        again = replace(some[0], at=T0 + HOUR)
        store.record_advice([again])
        assert store.advice_given(T0 + HOUR) == (without_options(again),)
