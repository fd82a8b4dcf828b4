"""Profiles, advice and outcomes as objects of the cluster, for a controller without a volume.

The Store keeps its SQLite file in a scratch folder. After each write, the rows that changed go to the cluster in
pieces:

    Checkpoint profile-3f…   rows of one table whose keys fall into one bucket; named by its content, never changed
    Checkpoint state         the names of all pieces that make up the state

`state` is written last and at once: whoever is killed before leaves the old state whole. Pieces that are to go, and
those that were about to be made, stand in its `sweep`, so that none is left over.

What it costs, measured with 10,000 profiles on a real API server: of usual ones (40 cells, 5 runs, 14 days; 4 kB each)
257 pieces with 53 MB in base64, the largest 287 kB; 8 s when all of them change, 4 s to open and load. Of ones as large
as they get (96 cells, 20 runs, 35 days; 9 kB) 513 pieces with 121 MB, the largest 388 kB; 20 s and 13 s. etcd has all
versions of the last minutes beside each other, and a default quota of 2 GiB: with so many workloads keep the state on a
volume (`state: FILE`), or save it every few hours instead of each (what was not saved is read from Prometheus again).
A tenth of the workloads is a tenth of the bytes.
"""

from __future__ import annotations

import base64
import sqlite3
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from gpuwatch.frameworks.objects import Object, version_of
from gpuwatch.kube.writer import ClusterWriter, Failure, WriteError
from gpuwatch.model.remediation import ObjectRef
from gpuwatch.model.telemetry import Gap, GapKind
from gpuwatch.store import StoreError
from gpuwatch.store.custom_resources import API_VERSION, CHECKPOINT_KIND
from gpuwatch.store.database import SCHEMA
from gpuwatch.store.store import Store

STATE = "state"

PIECE_BYTES = 256 * 1024
"""Aimed at, before base64. An object may have 1.5 MiB in etcd; hashing spreads rows unevenly."""

LARGEST_BYTES = 1024 * 1024
"""Of one piece, before base64: beyond it etcd's limit is near."""

_TABLES = ("book", "profile", "usage", "advice", "advice_body", "outcome")


@contextmanager
def store_in_cluster(writer: ClusterWriter, namespace: str, scratch: Path | None = None) -> Iterator[Store]:
    """A Store of what the Checkpoints of this Namespace have. One replica may write, the leader; another's write in
    between is found. Raises StoreError where the cluster does not answer, or its state is a newer gpuwatch's.

    Reads never ask the cluster. A write that fails there has happened in the scratch file alone; the next one that
    succeeds takes it along.

    scratch: a folder with room for the state, and as much again; else the system's for temporary files.
    """
    with tempfile.TemporaryDirectory(dir=scratch, prefix="gpuwatch-state-") as folder:
        path = Path(folder) / "state.sqlite"
        Store.open(path).close()  # makes its tables
        checkpoints = _Checkpoints(writer, namespace, path)
        with Store.open(path, gaps=checkpoints.load(), written=checkpoints.publish) as store:
            yield store


class _Checkpoints:
    """The rows of the scratch file in the cluster."""

    def __init__(self, writer: ClusterWriter, namespace: str, path: Path) -> None:
        self._writer = writer
        self._namespace = namespace
        self._path = path
        self._version = ""  # of `state`; '' where there is none
        self._pieces: tuple[str, ...] = ()
        self._sweep: tuple[str, ...] = ()

    # From the cluster

    def load(self) -> list[Gap]:
        """Fills the scratch file; what of it is damaged."""
        gaps: list[Gap] = []
        with _told("reading the state"):
            state = self._writer.get(self._ref(STATE))
        if state is None:
            return gaps
        spec = state["spec"]
        if spec.get("schema", 0) > SCHEMA:
            raise StoreError(
                f"The Checkpoints in Namespace {self._namespace} were written by a newer gpuwatch (schema "
                f"{spec['schema']}, this one knows {SCHEMA}), left as they are; upgrade"
            )
        self._version = version_of(state)
        self._pieces, self._sweep = tuple(spec.get("pieces") or ()), tuple(spec.get("sweep") or ())
        damaged = []
        with self._database() as db:
            for name in self._pieces:
                with _told("reading the state"):
                    piece = self._writer.get(self._ref(name))
                try:
                    _insert(db, name, _rows_of(name, piece))
                except (_LostError, sqlite3.Error) as lost:
                    what = f"Checkpoint {self._namespace}/{name}"
                    detail = f"damaged ({lost}); what it had of the table {_table(name)} begins anew"
                    gaps.append(Gap(kind=GapKind.BAD_INPUT, what=what, detail=detail))
                    damaged.append(name)
            if damaged:
                # Without its other half a row is of no use, and its number would be given again.
                db.execute("DELETE FROM advice_body WHERE id NOT IN (SELECT id FROM advice)")
                db.execute("DELETE FROM advice WHERE id NOT IN (SELECT id FROM advice_body)")
        # One of the same content is made anew.
        self._pieces = tuple(name for name in self._pieces if name not in damaged)
        self._sweep += tuple(damaged)
        return gaps

    # To the cluster

    def publish(self) -> None:
        """Brings what changed in the scratch file to the cluster."""
        with self._database() as db:
            wanted = {name: body for table in _TABLES for name, body in _pieces_of(db, table)}
        new = [name for name in wanted if name not in self._pieces]
        old = [name for name in self._pieces if name not in wanted]
        if not new and not old:
            return
        with _told("writing the state"):
            # What is about to be made is said first, so that it is swept if this ends before it counts.
            gone = [name for name in self._sweep if name not in wanted]
            self._write_state(self._pieces, (*gone, *new))
            for name in new:
                self._make(name, wanted[name])
            self._write_state(tuple(wanted), (*gone, *old))
            for name in self._sweep:
                self._delete(name)
            self._sweep = ()

    def _write_state(self, pieces: Sequence[str], sweep: Sequence[str]) -> None:
        spec = {"schema": SCHEMA, "pieces": list(pieces), "sweep": list(sweep)}
        if self._version:
            stored = self._writer.patch(self._ref(STATE), {"spec": spec}, version=self._version)
        else:
            stored = self._writer.create(self._object(STATE, spec))
        self._version, self._pieces, self._sweep = version_of(stored), tuple(pieces), tuple(sweep)

    def _make(self, name: str, body: bytes) -> None:
        try:
            self._writer.create(self._object(name, {"data": base64.b64encode(body).decode("ascii")}))
        except WriteError as error:
            if error.failure is not Failure.CONFLICT:
                raise
            # Left by somebody who was killed: it has the same content, or it is damaged.
            there = self._writer.get(self._ref(name))
            if there is not None and _is_whole(name, there):
                return
            self._delete(name)
            self._writer.create(self._object(name, {"data": base64.b64encode(body).decode("ascii")}))

    def _delete(self, name: str) -> None:
        try:
            self._writer.delete(self._ref(name))
        except WriteError as error:
            if error.failure is not Failure.NOT_FOUND:
                raise

    def _ref(self, name: str) -> ObjectRef:
        return ObjectRef(API_VERSION, CHECKPOINT_KIND, name, self._namespace)

    def _object(self, name: str, spec: Object) -> Object:
        metadata = {"name": name, "namespace": self._namespace}
        return {"apiVersion": API_VERSION, "kind": CHECKPOINT_KIND, "metadata": metadata, "spec": spec}

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """The scratch file beside its store, in one transaction."""
        db = sqlite3.connect(self._path)
        try:
            with db:
                yield db
        finally:
            db.close()


class _LostError(Exception):
    """The piece is not what was written."""


def _pieces_of(db: sqlite3.Connection, table: str) -> Iterator[tuple[str, bytes]]:
    """The table's rows in buckets by the hash of their first column, each as a piece. There are as many buckets as
    keep pieces small, a power of two, so that few change when the table grows."""
    rows = db.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4").fetchall()  # noqa: S608 — of _TABLES
    size = sum(len(value) if isinstance(value, bytes | str) else 8 for row in rows for value in row)
    count = 1
    while count * PIECE_BYTES < size:
        count *= 2
    buckets: dict[int, list[Sequence[Any]]] = defaultdict(list)
    for row in rows:
        key = blake2b(str(row[0]).encode(), digest_size=8).digest()
        buckets[int.from_bytes(key) % count].append(row)
    for bucket in buckets.values():
        body = zlib.compress(msgspec.msgpack.encode(bucket), 1)
        if len(body) > LARGEST_BYTES:
            raise StoreError(
                f"The state is too large for the cluster: {len(bucket)} rows of {table} that belong together have "
                f"{len(body):,} bytes, and {LARGEST_BYTES:,} may be kept in one object; keep it in a file (state: FILE)"
            )
        yield _name(table, body), body


def _name(table: str, body: bytes) -> str:
    return f"{table.replace('_', '-')}-{blake2b(body, digest_size=16).hexdigest()}"


def _table(name: str) -> str:
    return name.rpartition("-")[0].replace("-", "_")


def _is_whole(name: str, piece: Object) -> bool:
    try:
        _rows_of(name, piece)
    except _LostError:
        return False
    return True


def _rows_of(name: str, piece: Object | None) -> list[list[Any]]:
    if piece is None:
        raise _LostError("it is gone")
    try:
        body = base64.b64decode(piece["spec"]["data"], validate=True)
        if _name(_table(name), body) != name or _table(name) not in _TABLES:
            raise _LostError("its bytes are not those that were written")
        rows: list[list[Any]] = msgspec.msgpack.decode(zlib.decompress(body))
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise _LostError(f"not a whole value: {error}") from error
    return rows


def _insert(db: sqlite3.Connection, name: str, rows: list[list[Any]]) -> None:
    if rows:
        places = ", ".join("?" * len(rows[0]))
        db.executemany(f"INSERT INTO {_table(name)} VALUES ({places})", rows)  # noqa: S608 — of _TABLES


@contextmanager
def _told(doing: str) -> Iterator[None]:
    try:
        yield
    except WriteError as error:
        if error.failure is Failure.CONFLICT:
            raise StoreError(
                f"{doing}: another replica wrote the state since it was read, and its state stays; open it again"
            ) from error
        raise StoreError(f"{doing}: {error.message}") from error
