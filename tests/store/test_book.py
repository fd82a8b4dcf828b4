"""What is saved is what is loaded, and only what changed is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings

from gpuwatch.facts.model.telemetry import GapKind
from gpuwatch.facts.model.workload_profile import ProfileBook, WorkloadKey, WorkloadProfile
from gpuwatch.sources.store.codec import StoredRow, encode, row
from gpuwatch.sources.store.store import Store
from store.values import HOUR, T0, book, books, key, profile, use


def saved(path: Path, *all_of: ProfileBook) -> None:
    with Store.open(path) as store:
        for each in all_of:
            store.save_book(each)


def loaded(path: Path) -> ProfileBook:
    with Store.open(path) as store:
        found, gaps = store.load_book()
    assert gaps == ()
    assert found is not None
    return found


def written(store: Store, save: Callable[[], None]) -> int:
    """Rows that `save` wrote or deleted."""
    before = store._db.total_changes
    save()
    return store._db.total_changes - before


def test_sqlite_is_a_store(tmp_path: Path) -> None:
    store: Store = Store.open(tmp_path / "state.db")
    assert store.load_book() == (None, ())
    assert store.gaps == ()


@settings(max_examples=60)
@given(one=books(), other=books())
def test_any_book_comes_back(one: ProfileBook, other: ProfileBook) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "state.db"
        saved(path, one)
        assert loaded(path) == one
        saved(path, other)
        assert loaded(path) == other


def test_usage_is_in_the_order_of_hours_and_else_as_saved(tmp_path: Path) -> None:
    usage = (use(T0 + HOUR, "b"), use(T0, "z"), use(T0, "a"))
    saved(tmp_path / "state.db", replace(book(), usage=usage))
    assert loaded(tmp_path / "state.db").usage == (usage[1], usage[2], usage[0])


def test_an_empty_book_is_a_book(tmp_path: Path) -> None:
    empty = ProfileBook(until=T0, step_seconds=300)
    saved(tmp_path / "state.db", book(), empty)
    assert loaded(tmp_path / "state.db") == empty


def test_unchanged_rows_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    first = book(count=20)
    with Store.open(path) as store:
        # 20 profiles, 20 hours, until, step_seconds, envelopes, power
        assert written(store, lambda: store.save_book(first)) == 44
        assert written(store, lambda: store.save_book(first)) == 0
        changed = replace(first, until=T0 + 9 * HOUR, profiles={**first.profiles, key(3): profile(3, tag=7.0)})
        assert written(store, lambda: store.save_book(changed)) == 2
    with Store.open(path) as store:
        # Values that are equal, but not the same objects; first not loaded before, then loaded.
        again = replace(changed, profiles={each: replace(value) for each, value in changed.profiles.items()})
        assert written(store, lambda: store.save_book(again)) == 0
        found, _ = store.load_book()
        assert found is not None
        assert written(store, lambda: store.save_book(found)) == 0
        later = replace(found, usage=(*found.usage[1:], use(T0)))
        assert written(store, lambda: store.save_book(later)) == 2  # one hour comes, one goes
    assert loaded(path) == later


def test_forgotten_profiles_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    saved(path, book(count=5), book(count=2))
    assert loaded(path) == book(count=2)


def test_what_another_process_saved_meanwhile_is_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    saved(path, book(count=3, tag=1.0))
    with Store.open(path) as store:
        mine, _ = store.load_book()
        assert mine is not None
        saved(path, book(count=6, tag=2.0))
        store.save_book(mine)
    assert loaded(path) == book(count=3, tag=1.0)


def _replace_row(path: Path, kept: StoredRow, where: str, table: str = "profile") -> None:
    with sqlite3.connect(path) as db:
        changed = db.execute(
            f"UPDATE {table} SET digest = ?, body = ? WHERE {where}",
            (kept.digest, kept.body),
        )
        assert changed.rowcount == 1
    db.close()


def _damage_body(path: Path, where: str, table: str) -> None:
    """The digest stays that of what was written."""
    with sqlite3.connect(path) as db:
        assert db.execute(f"UPDATE {table} SET body = x'00' WHERE {where}").rowcount == 1
    db.close()


def test_a_row_without_newer_fields_has_their_defaults_and_unknown_ones_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    saved(path, book(count=1))
    old = msgspec.to_builtins(profile(0), builtin_types=(bytes,))
    for name in ("days", "coarse_busy", "resolution"):
        del old[name]
    old["cells"][0]["colour"] = "green"
    old["later"] = 7
    _replace_row(path, row(*encode(old)), "1")
    plain = WorkloadProfile(key=key(), as_of=T0, half_life_seconds=1.0, first_seen=T0, last_seen=T0)
    assert loaded(path).profiles[key()] == replace(
        profile(0), days=plain.days, coarse_busy=plain.coarse_busy, resolution=plain.resolution
    )


def test_a_part_that_an_older_gpuwatch_did_not_keep_has_its_default(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    saved(path, book())
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM book WHERE field = 'power'")
    db.close()
    assert loaded(path) == replace(book(), power={})


def test_a_part_that_only_a_newer_gpuwatch_knows_does_not_outlive_its_book(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    saved(path, book())
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO book SELECT 'mood', digest, body FROM book WHERE field = 'power'")
    db.close()
    with Store.open(path) as store:
        found, gaps = store.load_book()
    assert found == book()
    assert [gap.what for gap in gaps] == ["mood"]
    saved(path, book(tag=2.0))
    with sqlite3.connect(path) as db:
        assert {name for (name,) in db.execute("SELECT field FROM book")} == {
            "until",
            "step_seconds",
            "envelopes",
            "power",
        }
    db.close()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "bit": lambda body: body[:40] + bytes([body[40] ^ 4]) + body[41:],
    "cut": lambda body: body[: len(body) // 2],
    "empty": lambda body: b"",
    "zeros": lambda body: bytes(len(body)),
    "another whole body": lambda body: row(*encode(profile(2, tag=9.0))).body,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_profile_costs_that_profile(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "state.db"
    saved(path, book(count=4))
    digest, data = encode(profile(2))
    whole = row(digest, data)
    _replace_row(path, StoredRow(digest, DAMAGES[damage](whole.body)), "workload = 'Job/team-2/job-2'")
    with Store.open(path) as store:
        found, gaps = store.load_book()
        assert found is not None
        assert found == replace(book(count=4), profiles={key(each): profile(each) for each in (0, 1, 3)})
        assert [(gap.kind, gap.what) for gap in gaps] == [(GapKind.BAD_INPUT, f"profile of {key(2)}")]
        assert str(path) in gaps[0].detail
        assert gaps == store.gaps
        # The same again: its digest has not changed, and still it is written.
        store.save_book(book(count=4))
    assert loaded(path) == book(count=4)


def test_a_damaged_profile_that_does_not_come_back_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    saved(path, book(count=2))
    _replace_row(path, StoredRow(b"?", b"?"), "workload = 'Job/team-1/job-1'")
    with Store.open(path) as store:
        found, gaps = store.load_book()
        assert found is not None
        assert len(gaps) == 1
        store.save_book(found)
    assert loaded(path) == found


def test_a_profile_under_another_key_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    saved(path, book(count=2))
    _replace_row(path, row(*encode(profile(0))), "workload = 'Job/team-1/job-1'")
    with Store.open(path) as store:
        found, gaps = store.load_book()
    assert found is not None
    assert set(found.profiles) == {key(0)}
    assert "it is that of Job/team-0/job-0" in gaps[0].detail


def test_a_damaged_hour_costs_that_hour(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    saved(path, book(count=3))
    micros = int((T0 - 2 * HOUR).timestamp()) * 1_000_000
    for damage in ("body", "another's"):
        if damage == "body":
            _damage_body(path, f"hour = {micros}", "usage")
        else:
            _replace_row(path, row(*encode((use(T0 - 3 * HOUR),))), f"hour = {micros}", "usage")
        with Store.open(path) as store:
            found, gaps = store.load_book()
            assert found is not None
            assert found.usage == (use(T0 - 3 * HOUR), use(T0 - HOUR))
            assert [gap.what for gap in gaps] == ["use in the hour of 2026-02-28 22:00 UTC"]
            store.save_book(book(count=3))
        assert loaded(path) == book(count=3)


def test_a_damaged_part_begins_anew_and_a_book_without_its_end_is_none(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    for name, left in (("power", replace(book(), power={})), ("until", None), ("step_seconds", None)):
        saved(path, book())
        _damage_body(path, f"field = '{name}'", "book")
        with Store.open(path) as store:
            found, gaps = store.load_book()
            assert found == left
            assert [gap.what for gap in gaps] == [name, f"profiles up to now: {name}"][: 1 if left else 2]
            # step_seconds is what it was, and still it is written.
            store.save_book(book())
        assert loaded(path) == book()


def test_names_of_any_kind(tmp_path: Path) -> None:
    odd = [WorkloadKey("", "", ""), WorkloadKey("Job/ü/'; DROP TABLE profile", "a\x00b", "H100", "1g.10gb+me")]
    some = replace(book(), profiles={each: replace(profile(), key=each) for each in odd})
    saved(tmp_path / "state.db", book(), some)
    assert loaded(tmp_path / "state.db") == some
