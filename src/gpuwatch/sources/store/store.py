"""What is kept between runs: profiles, advice, known faults, and what was sent."""

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import msgspec

from gpuwatch.facts.model.delivery import Sending
from gpuwatch.facts.model.faults import FaultMemory, KnownFault
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.sizing import Outcome, Recommendation, Target
from gpuwatch.facts.model.telemetry import Gap
from gpuwatch.facts.model.workload_profile import ProfileBook, WorkloadKey, WorkloadProfile
from gpuwatch.sources.store.rows import Place, State
from gpuwatch.sources.store.state_file import WAIT_SECONDS, StateFile

KEPT = timedelta(days=400)
"""Minimum retention of advice: a year, and the month that is compared with the one a year ago."""

_UNPRICED: dict[str, Any] = {
    "price_per_hour": None,
    "price_source": "",
    "host_cpu_cores": None,
    "host_memory_bytes": None,
}
"""A target without what a price file says of its machine: that does not make it another target."""

_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Advice:
    """Of one recommendation, what changes with every run. applied_at: None without an application."""

    key: WorkloadKey
    at: datetime
    last_at: datetime
    target: Target
    applied_at: datetime | None = None

    @property
    def row(self) -> str:
        return f"{self.at.isoformat()} {_row(self.key)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Advised:
    """Of one recommendation, what stays: all but its options, and its key's profile at that time."""

    given: Recommendation
    profile: WorkloadProfile | None = None


class Store(AbstractContextManager["Store"]):
    """For one thread. Every method raises StoreError; writes are atomic. Reads see the state as it was when it was
    opened or last written here. The last saved book wins as a whole, and so does the last memory of faults; advice and
    what was sent are added to what is there."""

    def __init__(self, place: Place) -> None:
        self._state = State(place)
        self._damaged_as_a_whole = tuple(place.gaps)

    @classmethod
    def open(cls, path: Path, wait_seconds: float = WAIT_SECONDS) -> Self:
        """The state in a file, which need not exist. A damaged file is moved aside, and `load_book` returns a Gap.

        Raises StoreError if the file cannot be written, or has another schema or belongs to another program.
        """
        return cls(StateFile(path, wait_seconds))

    def __exit__(self, *_: object) -> None:
        """Nothing is held between calls."""

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Damaged parts found so far, which are left out."""
        return self._state.gaps

    def load_book(self) -> tuple[ProfileBook | None, tuple[Gap, ...]]:
        """The last saved book without its damaged parts, and a Gap for each of these. None if none was saved, or its
        head is lost."""
        before = len(self.gaps)
        head = next((book for _, book in self._state.rows("book", ProfileBook)), None)
        book: ProfileBook | None = None
        if head is not None:
            profiles = {each.key: each for _, each in self._state.rows("profile", WorkloadProfile)}
            book = replace(head, profiles={key: profiles[key] for key in sorted(profiles)})
        return book, tuple(dict.fromkeys((*self._damaged_as_a_whole, *self.gaps[before:])))

    def save_book(self, book: ProfileBook) -> None:
        """Replace the last book. Profiles that are not in this one are deleted."""
        with self._state.writing():
            self._state.replace("book", {"": replace(book, profiles={})})
            self._state.replace("profile", {_row(key): profile for key, profile in book.profiles.items()})
            self._state.replace("usage", {})  # hours that earlier commits kept here

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
        with self._state.writing():
            # Without its other half, which was damaged, a row is useless.
            known, advised = dict(self._state.rows("advice", _Advice)), self._state.keys("advised")
            gone = known.keys() ^ advised
            known = {row: each for row, each in known.items() if row not in gone}
            by_key = grouped(known.values(), lambda each: each.key)
            rows: dict[str, _Advice] = {}
            new: dict[str, Recommendation] = {}
            for given in recommendations:
                standing = max(
                    (each for each in by_key[given.key] if each.at <= given.at), key=lambda each: each.at, default=None
                )
                target = replace(given.chosen.target, **_UNPRICED)
                if standing is not None and standing.target == target:
                    if given.at > standing.last_at:
                        rows[standing.row] = replace(standing, last_at=given.at)
                    continue
                # Of the same time there is one: it was evaluated again, with other bounds or prices.
                advice = _Advice(key=given.key, at=given.at, last_at=given.at, target=target)
                rows[advice.row], new[advice.row] = advice, replace(given, options=())
            old = {row for row, each in (known | rows).items() if each.last_at < now - KEPT}
            profiles = self._state.some("profile", {_row(each.key) for each in new.values()}, WorkloadProfile)
            bodies = {row: _Advised(given=each, profile=profiles.get(_row(each.key))) for row, each in new.items()}
            for table, values in ("advice", rows), ("advised", bodies):
                self._state.change(table, {**dict.fromkeys(gone), **values, **dict.fromkeys(old)})

    def advice_given(self, since: datetime | None = None) -> tuple[Recommendation, ...]:
        """Advice to evaluate, oldest first: each container's last advice, one for each GPU model at that time; and all
        earlier advice that was applied. since: only advice first given at that time or later."""
        known = dict(self._state.rows("advice", _Advice))
        last: dict[tuple[str, str], datetime] = {}
        for each in known.values():
            of = each.key.workload, each.key.container
            last[of] = max(each.last_at, last.get(of, _NEVER))
        wanted = [
            row
            for row, each in known.items()
            if (since is None or each.at >= since)
            and (each.applied_at is not None or each.last_at == last[each.key.workload, each.key.container])
        ]
        found = self._state.some("advised", wanted, _Advised)
        return tuple(sorted((each.given for each in found.values()), key=lambda given: (given.at, given.key)))

    def profile_at_advice(self, key: WorkloadKey, recommended_at: datetime | None = None) -> WorkloadProfile | None:
        """The profile of this key at its advice, by default the last; None if no advice or profile is stored."""
        rows = {each.at: row for row, each in self._state.rows("advice", _Advice) if each.key == key}
        row = rows.get(recommended_at or max(rows, default=_NEVER))
        found = self._state.some("advised", [row], _Advised) if row is not None else {}
        return next((each.profile for each in found.values()), None)

    def record_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Store when advice was applied, by which `advice_given` keeps it when other advice follows."""
        with self._state.writing():
            known = {(each.key, each.at): each for _, each in self._state.rows("advice", _Advice)}
            changed = (
                replace(known[each.key, each.recommended_at], applied_at=each.applied_at)
                for each in outcomes
                if (each.key, each.recommended_at) in known
            )
            self._state.change("advice", {each.row: each for each in changed})

    def load_faults(self) -> FaultMemory:
        """What is remembered of faults. `unread` names what is damaged: a fault that is forgotten is not over."""
        before = len(self.gaps)
        faults = tuple(fault for _, fault in self._state.rows("fault", KnownFault))
        lost = [f"{gap.what}: {gap.detail}" for gap in (*self._damaged_as_a_whole, *self.gaps[before:])]
        unread = f"{'; '.join(lost)}; restart gpuwatch to go on without these faults" if lost else ""
        return FaultMemory(faults=faults, unread=unread)

    def save_faults(self, memory: FaultMemory) -> None:
        """Replace the last memory, whole or not at all."""
        with self._state.writing():
            self._state.replace("fault", {f"{each.uuid} {each.kind} {each.code}": each for each in memory.faults})

    def load_enforcement(self) -> dict[datetime, Counter[str]]:
        """By hour, in how many cycles enforcement was possible, and what stopped it in others."""
        rows = self._state.rows("enforcement", dict[str, int])
        return {datetime.fromisoformat(hour): Counter(counts) for hour, counts in rows}

    def save_enforcement(self, hours: Mapping[datetime, Counter[str]]) -> None:
        with self._state.writing():
            self._state.replace("enforcement", {hour.isoformat(): dict(counts) for hour, counts in hours.items()})

    def deliveries(self) -> dict[str, Sending]:
        """By id, what was sent or is to be sent."""
        return dict(self._state.rows("delivery", Sending))

    def save_deliveries(self, sendings: Iterable[Sending], forget: Iterable[str] = ()) -> None:
        """Add or replace these, and delete others by their ids."""
        with self._state.writing():
            self._state.change("delivery", {each.id: each for each in sendings} | dict.fromkeys(forget))

    def token(self) -> str:
        """Of this state alone, for the identities of its reports; made on first use."""
        with self._state.writing():
            found = next((each for _, each in self._state.rows("token", str)), "")
            if not found:
                found = secrets.token_hex(8)
                self._state.replace("token", {"": found})
        return found


def _row(key: WorkloadKey) -> str:
    return msgspec.json.encode((key.workload, key.container, key.gpu_model, key.mig_profile)).decode()
