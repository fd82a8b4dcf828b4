"""Rows by table and key, saved in pieces: in one file (`state_file`) or as objects of the cluster (`checkpoints`).

A piece has the rows of one table whose keys hash to one bucket. Its name is `table-bucket-buckets-digest`: by the
digest, an unchanged piece is not written again and a damaged one is found. The number of buckets is a power of two that
grows with the table, so that a save of a few changed rows writes a few pieces.
"""

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import msgspec

from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.telemetry import Gap, GapKind

PIECE_BYTES = 1024 * 1024
"""Most bytes of a piece on average, uncompressed; compressed it is at most half of that. etcd allows 1.5 MiB for an
object in base64, and hashing spreads rows unevenly."""

# Level 1 compresses the repeated field names; higher levels save little more in a multiple of the time.
_LEVEL = 1

LOST: Mapping[str, str] = {
    "book": "the time up to which profiles are known: all profiles start empty, and are learned from Prometheus",
    "profile": "profiles of workloads: they start empty, and are learned anew",
    "usage": "hours of use: they are missing from reports",
    "advice": "advice: it is not followed up",
    "advised": "advice and the profiles that it was based on: it is not followed up",
    "fault": "known faults: they are forgotten",
    "delivery": "which reports and notifications were sent: they may be sent again",
    "enforcement": "in how many cycles enforcement was possible: it is counted anew",
    "ledgerhour": "hours of the ledger: they are missing from it",
    "ledgerday": "days of the ledger: they are missing from it",
    "ledgertotal": "the sums of the ledger: its counters begin at 0, and its last eight days are read again",
    "ledgerpast": "what GPUs did before the ledger's last hours: more of the next hours are unknown",
    "ledgerloss": "losses of the ledger: their causes are not shown",
    "ledgerrestated": "the sums of restated hours: their counter begins at 0",
    "ledgercheckpoint": "checkpoints of workloads: more of the work that a failure ended is unknown",
    "token": "the name of this state in those of its reports: a report may be sent again under another name",
}
"""By table: what a damaged piece had, and what follows."""


class Place(Protocol):
    """Where the pieces of one state are. All methods raise StoreError."""

    @property
    def description(self) -> str:
        """Kind and name, for messages."""

    @property
    def gaps(self) -> list[Gap]:
        """What was found damaged as a whole, with what was done about it."""

    def read(self) -> Mapping[str, bytes] | None:
        """Name → piece, b'' for one that is missing. None if it is what was read or written last."""

    def locked(self) -> AbstractContextManager[None]:
        """Keeps other processes from writing, where they would not be refused by `write`."""

    def write(self, pieces: Mapping[str, bytes]) -> None:
        """Replaces all pieces, wholly or not at all. A piece that has the name of one in the place is that one."""


class State:
    """Rows over one Place, for one thread. Values are dataclasses, or what msgpack holds; a new field of a dataclass
    gets its default, and one that is unknown is ignored. Times are read back in UTC."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._gaps: list[Gap] = []
        self._pieces: dict[str, bytes] = {}  # compressed
        self._damaged: set[str] = set()
        self._read()

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Damaged parts found so far, which are left out."""
        return tuple(dict.fromkeys((*self._place.gaps, *self._gaps)))

    def rows(self, table: str, kind: Any) -> Iterator[tuple[str, Any]]:
        """Key and value of each row, in no order. Damaged ones are left out, with a gap."""
        for name in self._of(table):
            yield from self._decoded(table, self._opened(name), kind)

    def keys(self, table: str) -> set[str]:
        return {key for name in self._of(table) for key in self._opened(name)}

    def some(self, table: str, keys: Collection[str], kind: Any) -> dict[str, Any]:
        """The rows of these keys, of which only the pieces are read."""
        found: dict[str, Any] = {}
        for _, wanted, rows in self._by_bucket(table, keys)[1]:
            found |= self._decoded(table, {key: rows[key] for key in wanted if key in rows}, kind)
        return found

    def _decoded(self, table: str, rows: Mapping[str, msgspec.Raw], kind: Any) -> Iterator[tuple[str, Any]]:
        decoder = _decoder(kind)
        for key, raw in rows.items():
            try:
                yield key, decoder.decode(raw)
            except msgspec.MsgspecError as error:
                self._lost(table, f"the row {key!r} is unreadable: {error}")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One save: all changes within it, or none if it raises. Other processes' saves are read first."""
        with self._place.locked():
            self._read()
            before = self._pieces.copy()
            try:
                yield
                if self._damaged:
                    # First without them: one that is made anew has the same name.
                    self._place.write({name: body for name, body in before.items() if name not in self._damaged})
                if self._damaged or self._pieces.keys() != before.keys():
                    self._place.write(self._pieces)
            except BaseException:
                self._pieces = before
                raise
            self._damaged.clear()

    def replace(self, table: str, values: Mapping[str, object]) -> None:
        """All rows of the table. Call it within `writing`."""
        size = sum(len(msgspec.msgpack.encode(value)) for value in values.values())
        buckets = 1
        while buckets * PIECE_BYTES < size:
            buckets *= 2
        old = {name: self._pieces.pop(name) for name in self._of(table)}
        for bucket, keys in grouped(sorted(values), lambda key: _bucket(key, buckets)).items():
            self._put(table, bucket, buckets, {key: values[key] for key in keys}, old)

    def change(self, table: str, values: Mapping[str, object]) -> None:
        """Some rows of the table; None deletes a row. Call it within `writing`."""
        buckets, found = self._by_bucket(table, values)
        for bucket, keys, rows in found:
            now = {**rows, **{key: values[key] for key in keys}}
            kept = {key: now[key] for key in sorted(now) if now[key] is not None}
            old = {name: self._pieces.pop(name) for name in self._of(table) if _parts(name).bucket == bucket}
            self._put(table, bucket, buckets, kept, old)
        if any(len(self._pieces[name]) > PIECE_BYTES for name in self._of(table)):
            self.replace(table, {key: raw for name in self._of(table) for key, raw in self._opened(name).items()})

    def _by_bucket(
        self, table: str, keys: Iterable[str]
    ) -> tuple[int, Iterator[tuple[int, Sequence[str], Mapping[str, msgspec.Raw]]]]:
        """The number of buckets; and each bucket that has some of these keys, with them and its rows."""
        names = {_parts(name).bucket: name for name in self._of(table)}
        buckets = max((_parts(name).buckets for name in names.values()), default=1)
        wanted = grouped(keys, lambda key: _bucket(key, buckets))
        return buckets, (
            (bucket, here, self._opened(names[bucket]) if bucket in names else {}) for bucket, here in wanted.items()
        )

    def _put(self, table: str, bucket: int, buckets: int, rows: Mapping[str, object], old: Mapping[str, bytes]) -> None:
        """old: former pieces, which are not compressed again if they are still the same."""
        if rows:
            body = msgspec.msgpack.encode(rows)
            name = f"{table}-{bucket}-{buckets}-{_digest(body)}"
            self._pieces[name] = old.get(name) or zlib.compress(body, _LEVEL)

    def _read(self) -> None:
        found = self._place.read()
        if found is not None:
            self._pieces, self._damaged = dict(found), set()

    def _of(self, table: str) -> list[str]:
        return [name for name in self._pieces if name.startswith(f"{table}-")]

    def _opened(self, name: str) -> Mapping[str, msgspec.Raw]:
        """The rows of a piece. A damaged one is dropped, and has none."""
        piece = self._pieces[name]
        try:
            body = zlib.decompress(piece)
            if _digest(body) == _parts(name).digest:
                return msgspec.msgpack.decode(body, type=dict[str, msgspec.Raw])
            why = "its bytes are not those that were written"
        except zlib.error as error:
            why = str(error) if piece else "it is missing"
        del self._pieces[name]
        self._damaged.add(name)
        self._lost(_parts(name).table, f"a part is damaged ({why})")
        return {}

    def _lost(self, table: str, why: str) -> None:
        what = f"state {self._place.description}"
        self._gaps.append(Gap(kind=GapKind.BAD_INPUT, what=what, detail=f"{why}; it had {LOST[table]}"))


def is_piece(name: str) -> bool:
    table, *rest = name.rsplit("-", 3)
    return table in LOST and len(rest) == 3 and rest[0].isdecimal() and rest[1].isdecimal()


class _Parts(NamedTuple):
    table: str
    bucket: int
    buckets: int
    digest: str


def _parts(name: str) -> _Parts:
    table, bucket, buckets, digest = name.rsplit("-", 3)
    return _Parts(table, int(bucket), int(buckets), digest)


def _bucket(key: str, buckets: int) -> int:
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) % buckets


def _digest(body: bytes) -> str:
    return blake2b(body, digest_size=16).hexdigest()


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)
