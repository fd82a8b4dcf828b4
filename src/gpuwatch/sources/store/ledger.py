"""The ledger as it is kept between runs: each hour in detail for days, each day by team, GPU model and row for a year,
and the sums since it began."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.ledger import (
    Checkpoint,
    Group,
    LedgerEntry,
    LedgerPast,
    Loss,
    LossCause,
    Restated,
    Row,
    Worked,
)
from gpuwatch.facts.model.telemetry import Gap, PodRef
from gpuwatch.sources.store.rows import Place, State
from gpuwatch.sources.store.state_file import WAIT_SECONDS, StateFile

KEPT_HOURS = timedelta(days=8)
"""Of the detail: a week, and a day in which a report may be late."""
KEPT_DAYS = timedelta(days=400)
"""Of the days' sums: a year, and the month that is compared with the one a year ago."""

DETAIL_OF_DAYS = ("team", "model", "row")
"""What the sums of days tell apart."""

_PART = 16_384
"""Entries of one row of the state: at most some 300 kB, so that a piece stays far below what an object may have."""

_HOURS, _DAYS, _TOTAL, _PAST = "ledgerhour", "ledgerday", "ledgertotal", "ledgerpast"
_LOSSES, _RESTATED, _CHECKPOINTS = "ledgerloss", "ledgerrestated", "ledgercheckpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Packed:
    """Entries of one hour, column by column. places: Node, pool, GPU model and price of a GPU-hour. holders: Namespace
    and workload; images: of each holder, () in what was kept without them. currency: of the prices. The columns have
    one number for each entry, in bytes that compress well: see `_bytes`."""

    places: tuple[tuple[str, str, str, float | None], ...]
    holders: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Row, bool], ...]
    currency: str
    of_place: bytes
    of_holder: bytes
    of_row: bytes
    gpu_hours: bytes
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """until: hours before this are counted. One that is counted is not counted again, whatever is read again."""

    until: datetime
    packed: _Packed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past:
    """Of one GPU. node: '' if it does not count any more. worked: Pod, container, and what is known of it."""

    node: str
    gpu_model: str
    worked: tuple[tuple[PodRef, str, Worked], ...]


def ledger_file(state: Path) -> Path:
    """Beside the file of the state, which is written each minute; the ledger is larger, and is written each hour."""
    return state.with_name(f"{state.name}.ledger")


class LedgerStore(AbstractContextManager["LedgerStore"]):
    """For one thread. Every method raises StoreError; a save is whole or not at all.

    currency: of all costs. What was kept in another one has no cost.
    """

    def __init__(self, place: Place, currency: str) -> None:
        self._state = State(place)
        self.currency = currency

    @classmethod
    def open(cls, path: Path, currency: str, wait_seconds: float = WAIT_SECONDS) -> Self:
        """The ledger in a file, which need not exist; as `Store.open`."""
        return cls(StateFile(path, wait_seconds), currency)

    def __exit__(self, *_: object) -> None:
        """Nothing is held between calls."""

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Damaged parts found so far, which are left out."""
        return self._state.gaps

    def final(self) -> datetime | None:
        """Hours before this do not change any more. None if nothing is kept."""
        return next((sums.until for _, sums in self._state.rows(_TOTAL, _Sums)), None)

    def past(self) -> LedgerPast:
        """What the hours from `final` on depend on, as of five hours before it."""
        gpus: dict[str, tuple[str, str]] = {}
        worked: dict[tuple[str, PodRef, str], Worked] = {}
        for uuid, each in self._state.rows(_PAST, _Past):
            if each.node:
                gpus[uuid] = each.node, each.gpu_model
            worked |= {(uuid, pod, container): known for pod, container, known in each.worked}
        checkpoints = dict(self._state.rows(_CHECKPOINTS, tuple[Checkpoint, ...]))
        return LedgerPast(gpus=gpus, worked=worked, checkpoints=checkpoints)

    def save(
        self,
        start: datetime,
        entries: Sequence[LedgerEntry],
        final: datetime,
        past: LedgerPast,
        losses: Iterable[Loss] = (),
    ) -> None:
        """Replaces all hours from `start` on by these entries. Those before `final` do not change any more, and are
        added to the sums of their day and to the total. Old hours and days are deleted. If another process was
        further, nothing is saved.

        losses: of these hours. What one took of hours before `start`, which are in the total already, is moved to the
        row `lost` in hours and days, and added to `restated`.
        """
        with self._state.writing():
            known = next((sums for _, sums in self._state.rows(_TOTAL, _Sums)), None)
            if known is not None and known.until > final:
                return
            self._replace_hours(start, entries, final - KEPT_HOURS)
            if known is None:
                self._state.replace(_RESTATED, {})  # of a total that was lost
            moved = self._restate(losses, start, final)
            newest = [each for each in entries if each.hour < final]
            if known is None or known.until < final:
                begin = known.until if known else start
                total = [*_unpacked(known.packed, begin, self.currency)] if known else []
                total += (each for each in newest if each.hour >= begin)
                self._state.replace(_TOTAL, {"": _Sums(until=final, packed=_packed(_summed(total), self.currency))})
            self._add_to_days(newest, moved, final)
            self._state.replace(_CHECKPOINTS, dict(past.checkpoints))
            by_gpu = grouped(past.worked.items(), lambda item: item[0][0])
            rows = {
                uuid: _Past(
                    node=past.gpus.get(uuid, ("", ""))[0],
                    gpu_model=past.gpus.get(uuid, ("", ""))[1],
                    worked=tuple(
                        (pod, container, each) for (_, pod, container), each in sorted(by_gpu[uuid], key=itemgetter(0))
                    ),
                )
                for uuid in {*past.gpus, *by_gpu}
            }
            self._state.replace(_PAST, rows)

    def _replace_hours(self, start: datetime, entries: Iterable[LedgerEntry], oldest: datetime) -> None:
        old = {key for key in self._state.keys(_HOURS) if not oldest <= _hour_of(key) < start}
        rows: dict[str, _Packed | None] = dict.fromkeys(old)
        for hour, found in grouped(entries, lambda each: each.hour).items():
            for part in range(0, len(found), _PART):
                rows[f"{hour.isoformat()} {part // _PART}"] = _packed(found[part : part + _PART], self.currency)
        self._state.change(_HOURS, rows)

    def _restate(self, losses: Iterable[Loss], start: datetime, final: datetime) -> tuple[LedgerEntry, ...]:
        """Moves hours before `start` to the row `lost`; once, however often a loss is read. What was moved, as entries
        to be added to their days: those of rows of work are negative."""
        known = dict(self._state.rows(_LOSSES, Loss))
        read = {_key(loss): loss for loss in losses}
        again = {key: old for key, old in known.items() if old.at > start and key not in read}
        moved: list[LedgerEntry] = []
        sums = {_names(each): each for each in self.restated()}
        kept: dict[str, Loss | None] = dict.fromkeys(again)  # one that was read with another end, or is none any more
        for key, loss in read.items():
            if key in known:
                continue
            found = [*self._move(loss, start)] if loss.since is not None and loss.since < start else []
            moved += (each for pair in found for each in pair)
            for lost, _ in found:
                name = (lost.namespace, lost.gpu_model, lost.row, lost.unknown, loss.cause)
                before = sums[name].gpu_hours if name in sums else 0.0
                sums[name] = _restated(name, before - lost.gpu_hours)
            restated = math.fsum(
                (
                    *(added.gpu_hours for _, added in found),
                    *(old.restated_gpu_hours for old in again.values() if _of(old) == _of(loss)),
                )
            )
            kept[key] = replace(loss, gpu_hours=loss.gpu_hours + restated, restated_gpu_hours=restated)
        old = (key for key, each in known.items() if each.at < final - KEPT_HOURS)
        self._state.change(_LOSSES, {**dict.fromkeys(old), **kept})
        if moved:
            self._state.replace(_RESTATED, {"": tuple(sums.values())})
        return tuple(moved)

    def _move(self, loss: Loss, start: datetime) -> Iterator[tuple[LedgerEntry, LedgerEntry]]:
        """What is taken from each row of work, and what is added to the row `lost`."""
        assert loss.since is not None
        hour = timedelta(hours=1)
        keys = [key for key in self._state.keys(_HOURS) if loss.since - hour < _hour_of(key) < start]
        changed: dict[str, _Packed] = {}
        for key, packed in self._state.some(_HOURS, keys, _Packed).items():
            entries: list[LedgerEntry] = []
            part = min((_hour_of(key) + hour - loss.since) / hour, 1.0) * loss.ratio
            found = []
            for each in _unpacked(packed, _hour_of(key), self.currency):
                if not _is_work_of(each, loss):
                    entries.append(each)
                    continue
                taken = _times(each, part)
                found.append((_times(taken, -1.0), replace(taken, row=Row.LOST, unknown=loss.unknown)))
                if part < 1.0:
                    entries.append(_times(each, 1.0 - part))
            if found:
                changed[key] = _packed((*entries, *(added for _, added in found)), self.currency)
                yield from found
        self._state.change(_HOURS, changed)

    def losses(self) -> tuple[Loss, ...]:
        """Of the hours whose detail is kept, in their order."""
        return tuple(loss for _, loss in sorted(self._state.rows(_LOSSES, Loss), key=lambda item: item[0]))

    def restated(self) -> tuple[Restated, ...]:
        """The sums of all hours that were found lost after they had been added to the total."""
        return next((sums for _, sums in self._state.rows(_RESTATED, tuple[Restated, ...])), ())

    def _add_to_days(self, newest: Iterable[LedgerEntry], moved: Iterable[LedgerEntry], final: datetime) -> None:
        by_day = grouped(newest, lambda each: each.hour.replace(hour=0))
        changes = grouped(moved, lambda each: each.hour.replace(hour=0))
        known = self._state.some(_DAYS, [day.isoformat() for day in {*by_day, *changes}], _Sums)
        rows: dict[str, _Sums | None] = {}
        for day in {*by_day, *changes}:
            found = by_day.get(day, ())
            before = known.get(day.isoformat())
            kept = _unpacked(before.packed, day, self.currency) if before else ()
            new = (each for each in found if before is None or each.hour >= before.until)
            taken = changes.get(day, ()) if before else ()  # a damaged day begins with what is new
            sums = _summed(replace(each, hour=day) for each in (*kept, *new, *taken))
            until = max(final, before.until) if before else final
            rows[day.isoformat()] = _Sums(until=until, packed=_packed(sums, self.currency))
        old = (day for day in self._state.keys(_DAYS) if datetime.fromisoformat(day) < final - KEPT_DAYS)
        self._state.change(_DAYS, {**dict.fromkeys(old), **rows})

    def hours(self, start: datetime, end: datetime) -> Iterator[LedgerEntry]:
        """In detail, of the hours that begin within [start, end)."""
        keys = [key for key in self._state.keys(_HOURS) if start <= _hour_of(key) < end]
        found = self._state.some(_HOURS, keys, _Packed)
        for key in sorted(found):
            yield from _unpacked(found[key], _hour_of(key), self.currency)

    def days(self, start: datetime, end: datetime) -> Iterator[LedgerEntry]:
        """Of the days, in UTC, that begin within [start, end), with their begin as the hour; by team, GPU model and
        row. Only hours that do not change any more are in them."""
        for key, sums in sorted(self._state.rows(_DAYS, _Sums), key=lambda item: item[0]):
            day = datetime.fromisoformat(key)
            if start <= day < end:
                yield from _unpacked(sums.packed, day, self.currency)

    def total(self) -> tuple[LedgerEntry, ...]:
        """The sums of all hours before `final`, by team, GPU model and row; in the order in which they were first
        seen."""
        sums = next((sums for _, sums in self._state.rows(_TOTAL, _Sums)), None)
        return tuple(_unpacked(sums.packed, sums.until, self.currency)) if sums else ()


def _key(loss: Loss) -> str:
    return f"{loss.at.isoformat()} {loss.node} {loss.gpu_model} {loss.workload} {loss.cause} {loss.unknown}"


def _of(loss: Loss) -> tuple[str, str, str]:
    return loss.node, loss.gpu_model, loss.workload


def _names(each: Restated) -> tuple[str, str, Row, bool, LossCause]:
    return each.namespace, each.gpu_model, each.row, each.unknown, each.cause


def _restated(name: tuple[str, str, Row, bool, LossCause], gpu_hours: float) -> Restated:
    namespace, model, row, unknown, cause = name
    return Restated(namespace=namespace, gpu_model=model, row=row, unknown=unknown, cause=cause, gpu_hours=gpu_hours)


def _is_work_of(entry: LedgerEntry, loss: Loss) -> bool:
    names = (entry.node, entry.gpu_model, entry.workload)
    is_work = entry.row.group is Group.WORKING and entry.row is not Row.LOST
    return is_work and names == _of(loss)


def _times(entry: LedgerEntry, ratio: float) -> LedgerEntry:
    cost = None if entry.cost is None else entry.cost * ratio
    return replace(entry, gpu_hours=entry.gpu_hours * ratio, cost=cost)


def _hour_of(key: str) -> datetime:
    return datetime.fromisoformat(key.partition(" ")[0])


def _summed(entries: Iterable[LedgerEntry]) -> Iterator[LedgerEntry]:
    """By team, GPU model and row; hours without a price apart from those that have one."""
    sums: dict[tuple[datetime, str, str, Row, bool, bool], tuple[float, float]] = {}
    for each in entries:
        key = (each.hour, each.namespace, each.gpu_model, each.row, each.unknown, each.cost is None)
        hours, cost = sums.get(key, (0.0, 0.0))
        sums[key] = hours + each.gpu_hours, cost + (each.cost or 0.0)
    for (hour, namespace, model, row, unknown, unpriced), (hours, cost) in sums.items():
        if abs(hours) < 1e-9:  # all of it was moved to another row
            continue
        yield LedgerEntry(
            hour=hour,
            node="",
            pool="",
            gpu_model=model,
            namespace=namespace,
            workload="",
            row=row,
            unknown=unknown,
            gpu_hours=hours,
            cost=None if unpriced else cost,
        )


def _packed(entries: Iterable[LedgerEntry], currency: str) -> _Packed:
    places: dict[tuple[str, str, str, float | None], int] = {}
    holders: dict[tuple[str, str, str], int] = {}
    rows: dict[tuple[Row, bool], int] = {}
    columns: list[tuple[int, int, int]] = []
    hours: list[float] = []
    for each in entries:
        # Rounded, as the division gives one price several last digits.
        price = None if each.cost is None else float(f"{each.cost / each.gpu_hours:.12g}")
        place = (each.node, each.pool, each.gpu_model, price)
        columns.append(
            (
                places.setdefault(place, len(places)),
                holders.setdefault((each.namespace, each.workload, each.image), len(holders)),
                rows.setdefault((each.row, each.unknown), len(rows)),
            )
        )
        hours.append(each.gpu_hours)
    of_place, of_holder, of_row = np.array(columns, np.int32).reshape(-1, 3).T
    return _Packed(
        places=tuple(places),
        holders=tuple((namespace, workload) for namespace, workload, _ in holders),
        images=tuple(image for _, _, image in holders),
        rows=tuple(rows),
        currency=currency,
        of_place=_bytes(np.diff(of_place, prepend=np.int32(0))),
        of_holder=_bytes(np.diff(of_holder, prepend=np.int32(0))),
        of_row=of_row.astype(np.uint8).tobytes(),
        gpu_hours=_bytes(np.array(hours, np.float64)),
    )


def _unpacked(packed: _Packed, hour: datetime, currency: str) -> Iterator[LedgerEntry]:
    of_place = np.cumsum(_numbers(packed.of_place, np.dtype(np.int32)))
    of_holder = np.cumsum(_numbers(packed.of_holder, np.dtype(np.int32)))
    hours = _numbers(packed.gpu_hours, np.dtype(np.float64))
    columns = (of_place.tolist(), of_holder.tolist(), packed.of_row, hours.tolist())
    for place, holder, index, gpu_hours in zip(*columns, strict=True):
        node, pool, model, price = packed.places[place]
        namespace, workload = packed.holders[holder]
        row, unknown = packed.rows[index]
        yield LedgerEntry(
            hour=hour,
            node=node,
            pool=pool,
            gpu_model=model,
            namespace=namespace,
            workload=workload,
            image=packed.images[holder] if packed.images else "",
            row=row,
            unknown=unknown,
            gpu_hours=gpu_hours,
            cost=None if price is None or packed.currency != currency else price * gpu_hours,
        )


def _bytes(numbers: npt.NDArray[np.int32] | npt.NDArray[np.float64]) -> bytes:
    """The first byte of each number, then the second of each: most of the first ones are alike."""
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, numbers.itemsize).T.tobytes()


def _numbers(content: bytes, kind: "np.dtype[np.int32] | np.dtype[np.float64]") -> npt.NDArray[np.float64]:
    parts = np.frombuffer(content, np.uint8).reshape(kind.itemsize, -1)
    return np.ascontiguousarray(parts.T).view(kind).reshape(-1)
