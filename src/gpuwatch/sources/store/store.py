"""State between runs in one SQLite file. Unchanged rows are not written."""
# ruff: noqa: S608 — all parts of the statements are in this file.

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import MISSING, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self, TypeVar, get_type_hints

import msgspec

from gpuwatch.facts.model.faults import FaultMemory, KnownFault
from gpuwatch.facts.model.sizing import Outcome, Recommendation, Target
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.facts.model.workload_profile import ProfileBook, UsageHour, WorkloadKey, WorkloadProfile
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.codec import DamagedError, StoredRow, decode, encode, row
from gpuwatch.sources.store.database import (
    WAIT_SECONDS,
    DamagedFileError,
    connected,
    move_aside,
    stat_of,
    store_errors,
    usable,
)

KEPT = timedelta(days=400)
"""Minimum retention of advice: a year, and the month that is compared with the one a year ago."""

# Fields of a book beside profiles and hours of use, and those without a default.
_PARTS: dict[str, Any] = {
    name: kind for name, kind in get_type_hints(ProfileBook).items() if name not in {"profiles", "usage"}
}
_REQUIRED = frozenset(
    each.name for each in fields(ProfileBook) if each.default is MISSING and each.default_factory is MISSING
)

_FAULT_KEY = "uuid, kind, code"
_KEY = "workload, container, gpu_model, mig_profile"
_IS_KEY = "workload = ? AND container = ? AND gpu_model = ? AND mig_profile = ?"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_Names = tuple[str, str, str, str]
"""A WorkloadKey as its columns."""

T = TypeVar("T")
K = TypeVar("K", bound=tuple[object, ...])
V = TypeVar("V")


class Store(AbstractContextManager["Store"]):
    """Profiles, advice and known faults, for one thread. Every method raises StoreError; writes are atomic. Several
    processes on one machine may use the file; its WAL mode does not work on network file systems. The last saved book
    wins as a whole."""

    def __init__(
        self, db: sqlite3.Connection, path: Path, wait_seconds: float, gaps: Iterable[Gap], written: Callable[[], None]
    ) -> None:
        self._db = db
        self._written = written
        self._path = path
        self._wait_seconds = wait_seconds
        self._gaps = list(gaps)
        self._found_at_open = tuple(self._gaps)
        # Values last read or written, with their digests, so that an unchanged value is not encoded again.
        self._profiles: dict[_Names, tuple[WorkloadProfile, bytes]] = {}
        self._hours: dict[tuple[int], tuple[tuple[UsageHour, ...], bytes]] = {}
        # Keys of damaged rows, which are written again even with an equal digest.
        self._damaged: set[tuple[object, ...]] = set()

    @classmethod
    def open(
        cls,
        path: Path,
        wait_seconds: float = WAIT_SECONDS,
        *,
        gaps: Iterable[Gap] = (),
        written: Callable[[], None] = lambda: None,
    ) -> Self:
        """Open or create the file. A damaged one is moved aside, and `load_book` returns a Gap.

        wait_seconds: how long to wait while another process holds the file. gaps: known missing parts of the file.
        written: called after each write; its errors are passed on, and the file keeps the write.
        Raises StoreError if the file cannot be created, or has another schema or belongs to another program.
        """
        path = usable(path)
        found_gaps = list(gaps)
        while True:
            found = stat_of(path)
            try:
                return cls(connected(path, wait_seconds), path, wait_seconds, found_gaps, written)
            except DamagedFileError as damage:
                if found is None:
                    raise StoreError(
                        f"{path}: the new file cannot be read back ({damage}); name another file"
                    ) from None
                try:
                    aside = move_aside(path, found)
                except OSError as error:
                    raise StoreError(
                        f"{path}: damaged ({damage}), and it cannot be moved aside ({error}); move it away"
                    ) from error
                if aside is not None:
                    detail = f"damaged ({damage}); moved to {aside}; the new file has no profiles and no advice yet"
                    found_gaps.append(Gap(kind=GapKind.BAD_INPUT, what=f"state {path}", detail=detail))

    def __exit__(self, *_: object) -> None:
        self._db.close()

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Damaged parts found so far, which are left out."""
        return tuple(dict.fromkeys(self._gaps))

    def load_book(self) -> tuple[ProfileBook | None, tuple[Gap, ...]]:
        """The last saved book without its damaged parts, and a Gap for each of these. None if none was saved or a
        required part is missing. `usage` is ordered by hour, then as it was saved."""
        gaps: list[Gap] = []
        with self._transaction("reading profiles"):
            parts = self._parts(gaps)
            profiles = dict(self._kept_profiles(gaps))
            hours = dict(self._kept_hours(gaps))
        book: ProfileBook | None = None
        if missing := _REQUIRED - parts.keys():
            if profiles or hours or gaps:
                what = f"profiles up to now: {', '.join(sorted(missing))}"
                gaps.append(self._lost(what, "missing or damaged", "all profiles start empty"))
        else:
            values: dict[str, Any] = {
                **parts,
                "profiles": {profile.key: profile for profile, _ in profiles.values()},
                "usage": tuple(use for uses, _ in hours.values() for use in uses),
            }
            book = ProfileBook(**values)
            self._profiles, self._hours = profiles, hours
        self._gaps += gaps
        return book, tuple(dict.fromkeys((*self._found_at_open, *gaps)))

    def save_book(self, book: ProfileBook) -> None:
        """Replace the last book. Profiles and hours that are not in this one are deleted."""
        hours: dict[tuple[int], tuple[UsageHour, ...]] = {}
        for use in book.usage:
            at = (_micros(use.hour),)
            hours[at] = (*hours.get(at, ()), use)
        with self._writing("profiles"):
            self._save_rows("book", "field", {(name,): getattr(book, name) for name in _PARTS}, {})
            by_names = {_names(key): profile for key, profile in book.profiles.items()}
            self._profiles = self._save_rows("profile", _KEY, by_names, self._profiles)
            self._hours = self._save_rows("usage", "hour", hours, self._hours)
        self._damaged.clear()

    def _parts(self, gaps: list[Gap]) -> dict[str, object]:
        parts: dict[str, object] = {}
        for name, *kept in self._db.execute("SELECT field, digest, body FROM book"):
            if name not in _PARTS:
                gaps.append(self._lost(str(name), "this version knows no such part of a book", "it is left out"))
                continue
            try:
                parts[name] = decode(StoredRow(*kept), _PARTS[name])
            except DamagedError as damage:
                self._damaged.add((name,))
                gaps.append(self._lost(name, damage, "it starts empty"))
        return parts

    def _kept_profiles(self, gaps: list[Gap]) -> Iterator[tuple[_Names, tuple[WorkloadProfile, bytes]]]:
        rows = self._db.execute(f"SELECT {_KEY}, digest, body FROM profile ORDER BY {_KEY}")
        for *names, digest, body in rows:
            key = WorkloadKey(*names)
            try:
                profile = decode(StoredRow(digest, body), WorkloadProfile)
                _demand(profile.key == key, f"it is that of {profile.key}")
            except DamagedError as damage:
                self._damaged.add(_names(key))
                gaps.append(self._lost(f"profile of {key}", damage, "it starts empty"))
            else:
                yield _names(key), (profile, digest)

    def _kept_hours(self, gaps: list[Gap]) -> Iterator[tuple[tuple[int], tuple[tuple[UsageHour, ...], bytes]]]:
        for hour, *kept in self._db.execute("SELECT hour, digest, body FROM usage ORDER BY hour"):
            try:
                uses = decode(StoredRow(*kept), tuple[UsageHour, ...])
                _demand(all(_micros(use.hour) == hour for use in uses), "it is that of another hour")
            except DamagedError as damage:
                self._damaged.add((hour,))
                gaps.append(self._lost(f"use in the hour of {_utc(hour)}", damage, "it is missing from reports"))
            else:
                yield (hour,), (uses, kept[0])

    def _save_rows(
        self, table: str, columns: str, values: Mapping[K, V], known: Mapping[K, tuple[V, bytes]]
    ) -> dict[K, tuple[V, bytes]]:
        """Writes changed values and deletes the rows of all others. Returns the values with their digests. columns:
        those of the key. known: values with digests, which are not encoded again."""
        # Compared with the file, because another process may have saved since it was read.
        rows = self._db.execute(f"SELECT rowid, digest, {columns} FROM {table}")
        kept = {tuple(key): (at, digest) for at, digest, *key in rows}
        same = {key: digest for key, (_, digest) in kept.items() if key not in self._damaged}
        now: dict[K, tuple[V, bytes]] = {}

        def changed() -> Iterator[tuple[object, ...]]:
            for key, value in values.items():
                held = known.get(key)
                if held is not None and held[1] == same.get(key) and (held[0] is value or held[0] == value):
                    now[key] = held
                    continue
                digest, data = encode(value)
                now[key] = (value, digest)
                if digest != same.get(key):
                    yield (*key, *row(digest, data))

        places = ", ".join("?" * (columns.count(",") + 3))
        self._db.executemany(f"INSERT OR REPLACE INTO {table} ({columns}, digest, body) VALUES ({places})", changed())
        gone = [(at,) for key, (at, _) in kept.items() if key not in values]
        self._db.executemany(f"DELETE FROM {table} WHERE rowid = ?", gone)
        return now

    def record_advice(self, recommendations: Sequence[Recommendation], at: datetime | None = None) -> None:
        """Store each recommendation that is new or has another target than the last one of its key.

        A new price is not a new target. Stored without `options`, with its key's profile of the last `save_book`.
        Repeated advice keeps its first `at`, the time from which an owner could act on it.
        at: time of this run; by default that of the newest recommendation. Advice last given more than KEPT before
        `at` is deleted.
        """
        now = at if at is not None else max((each.at for each in recommendations), default=None)
        if now is None:
            return
        with self._writing("advice"):
            for each in recommendations:
                self._record(each)
            gone = (_micros(now - KEPT),)
            self._db.execute("DELETE FROM advice_body WHERE id IN (SELECT id FROM advice WHERE last_at < ?)", gone)
            self._db.execute("DELETE FROM advice WHERE last_at < ?", gone)

    def _record(self, given: Recommendation) -> None:
        names, at = _names(given.key), _micros(given.at)
        standing = self._db.execute(
            f"SELECT id, at, target FROM advice WHERE {_IS_KEY} AND at <= ? ORDER BY at DESC LIMIT 1", (*names, at)
        ).fetchone()
        # A price file with another price or size for the same machine does not make another target.
        target = replace(
            given.chosen.target, price_per_hour=None, price_source="", host_cpu_cores=None, host_memory_bytes=None
        )
        if standing is not None and _target(standing[2]) == target:
            self._db.execute("UPDATE advice SET last_at = max(last_at, ?) WHERE id = ?", (at, standing[0]))
            return
        if standing is not None and standing[1] == at:
            # The same time was evaluated again, with other bounds or prices.
            self._db.execute("DELETE FROM advice_body WHERE id = ?", (standing[0],))
            self._db.execute("DELETE FROM advice WHERE id = ?", (standing[0],))
        number = self._db.execute(
            f"INSERT INTO advice ({_KEY}, at, last_at, target) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*names, at, at, msgspec.msgpack.encode(target)),
        ).lastrowid
        self._db.execute(
            "INSERT INTO advice_body (id, digest, body) VALUES (?, ?, ?)",
            (number, *row(*encode(replace(given, options=())))),
        )
        self._db.execute(
            "UPDATE advice_body SET (profile_digest, profile) = "
            f"(SELECT digest, body FROM profile WHERE {_IS_KEY}) WHERE id = ?",
            (*names, number),
        )

    def advice_given(self, since: datetime | None = None) -> tuple[Recommendation, ...]:
        """Advice to evaluate, oldest first: each container's last advice, one for each GPU model at that time; and all
        earlier advice that was applied. since: only advice first given at that time or later."""
        with self._transaction("reading advice"):
            rows = self._db.execute(
                "SELECT a.workload, a.container, b.digest, b.body "
                "FROM advice AS a JOIN advice_body AS b USING (id) WHERE a.at >= ? AND ("
                " a.last_at = (SELECT max(n.last_at) FROM advice AS n"
                "   WHERE n.workload = a.workload AND n.container = a.container) OR a.applied_at IS NOT NULL)"
                " ORDER BY a.at, a.workload, a.container, a.gpu_model, a.mig_profile",
                (-(2**63) if since is None else _micros(since),),
            )
            return tuple(self._whole(rows, Recommendation, "advice to"))

    def profile_at_advice(self, key: WorkloadKey, recommended_at: datetime | None = None) -> WorkloadProfile | None:
        """The profile of this key at its advice, by default the last; None if no advice or profile is stored."""
        with self._transaction("reading advice"):
            kept = self._db.execute(
                "SELECT profile_digest, profile FROM advice JOIN advice_body USING (id) "
                f"WHERE {_IS_KEY} AND (? IS NULL OR at = ?) ORDER BY at DESC LIMIT 1",
                (*_names(key), *[None if recommended_at is None else _micros(recommended_at)] * 2),
            ).fetchone()
            if kept is None or kept[1] is None:
                return None
            found = list(self._whole([(key.workload, key.container, *kept)], WorkloadProfile, "earlier profile of"))
        return found[0] if found and found[0].key == key else None

    def record_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Store when advice was applied, by which `advice_given` keeps it when other advice follows."""
        with self._writing("outcomes"):
            for each in outcomes:
                applied_at = None if each.applied_at is None else _micros(each.applied_at)
                self._db.execute(
                    f"UPDATE advice SET applied_at = ? WHERE {_IS_KEY} AND at = ? AND applied_at IS NOT ?",
                    (applied_at, *_names(each.key), _micros(each.recommended_at), applied_at),
                )

    def load_faults(self) -> FaultMemory:
        """What is remembered of faults. `unread` names what is damaged: a fault that is forgotten is not over."""
        faults, lost = [], [gap.detail for gap in self._found_at_open]
        with self._transaction("reading faults"):
            for uuid, kind, code, *kept in self._db.execute(f"SELECT {_FAULT_KEY}, digest, body FROM fault"):
                try:
                    faults.append(decode(StoredRow(*kept), KnownFault))
                except DamagedError as damage:
                    lost.append(self._lost(f"fault {kind} {code} of {uuid}", damage, "it is forgotten").detail)
        unread = f"{'; '.join(lost)}; restart gpuwatch to go on without these faults" if lost else ""
        return FaultMemory(faults=tuple(faults), unread=unread)

    def save_faults(self, memory: FaultMemory) -> None:
        """Replace the last memory, whole or not at all."""
        faults = {(fault.uuid, str(fault.kind), fault.code): fault for fault in memory.faults}
        with self._writing("faults"):
            self._save_rows("fault", _FAULT_KEY, faults, {})

    def _whole(self, rows: Iterable[Sequence[Any]], kind: type[T], what: str) -> Iterator[T]:
        for workload, container, *kept in rows:
            try:
                yield decode(StoredRow(*kept), kind)
            except DamagedError as damage:
                self._gaps.append(self._lost(f"{what} {workload}[{container}]", damage, "it is left out"))

    def _lost(self, what: str, damage: object, so: str) -> Gap:
        detail = f"unreadable in {self._path} ({damage}); {so}"
        return Gap(kind=GapKind.BAD_INPUT, what=what, detail=detail)

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        with self._transaction(f"writing {what}", "BEGIN IMMEDIATE"):
            yield
        self._written()

    @contextmanager
    def _transaction(self, doing: str, begin: str = "BEGIN") -> Iterator[None]:
        with store_errors(self._path, doing, self._wait_seconds):
            try:
                self._db.execute(begin)
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


def _demand(holds: bool, damage: str) -> None:
    if not holds:
        raise DamagedError(damage)


def _target(data: bytes) -> Target | None:
    try:
        return msgspec.msgpack.decode(data, type=Target)
    except (msgspec.MsgspecError, TypeError, ValueError):
        return None  # damaged, so equal to no target


def _names(key: WorkloadKey) -> _Names:
    return key.workload, key.container, key.gpu_model, key.mig_profile


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


def _utc(micros: int) -> str:
    try:
        return f"{_EPOCH + micros * _MICROSECOND:%Y-%m-%d %H:%M} UTC"
    except OverflowError:  # damaged
        return str(micros)
