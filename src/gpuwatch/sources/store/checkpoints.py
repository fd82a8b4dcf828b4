"""Profiles, advice and known faults as objects of the cluster, for a controller without a volume.

The Store keeps its SQLite file in a scratch folder. After each write, the changed rows go to the cluster in pieces:

    Checkpoint profile-3f…   rows of one table whose keys hash to one bucket; named by its content, immutable
    Checkpoint state         the names of all pieces that make up the state
    Checkpoint faults        the same for the known faults

A list is written last, in one request, so that a process killed earlier leaves the old state whole. Its `sweep` lists
the pieces to delete and those about to be created, so that none is left over.
"""

import base64
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from gpuwatch.facts.frameworks.objects import Object, version_of
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.remediation import ObjectRef
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.kube.writer import ClusterWriter, Failure, WriteError
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.custom_resources import API_VERSION, CHECKPOINT_KIND
from gpuwatch.sources.store.database import SCHEMA, TABLES, make_tables, other_schema
from gpuwatch.sources.store.store import Store

STATE = "state"

FAULTS = "faults"
"""Name of the list of the known faults' pieces. It is separate because a fault is written within a minute, and the
profiles by a long job."""

PIECE_BYTES = 256 * 1024
"""Target size before base64. etcd allows 1.5 MiB per object; hashing spreads rows unevenly."""

LARGEST_BYTES = 1024 * 1024
"""Limit of one piece before base64, close to etcd's limit."""


@contextmanager
def store_in_cluster(
    writer: ClusterWriter, namespace: str, scratch: Path | None = None, *, state: str = STATE
) -> Iterator[Store]:
    """A Store with the Checkpoints of this Namespace. Only the leader may write; another replica's write is detected.
    Raises StoreError when the cluster does not answer, or its state has another schema.

    Reads do not query the cluster. A write that fails in the cluster stays in the scratch file and is included in the
    next one that succeeds.

    scratch: a folder with room for twice the state; by default the system's temporary folder. state: the name of its
    list of pieces; each list has a Store of its own.
    """
    with tempfile.TemporaryDirectory(dir=scratch, prefix="gpuwatch-state-") as folder:
        path = Path(folder) / "state.sqlite"
        checkpoints = _Checkpoints(writer, namespace, path, state)
        with Store.open(path, gaps=checkpoints.load(), written=checkpoints.publish) as store:
            yield store


class _Checkpoints:
    def __init__(self, writer: ClusterWriter, namespace: str, path: Path, state: str = STATE) -> None:
        self._writer, self._namespace, self._path, self._state = writer, namespace, path, state
        self._version = ""  # of `state`; '' if there is none
        self._pieces: tuple[str, ...] = ()
        self._sweep: tuple[str, ...] = ()

    def load(self) -> list[Gap]:
        """Fill the scratch file. Returns a Gap for each damaged piece."""
        gaps: list[Gap] = []
        with _store_errors("reading the state"):
            state = self._writer.get(self._ref(self._state))
        if state is None:
            return gaps
        spec = state["spec"]
        if spec["schema"] != SCHEMA:
            raise StoreError(
                f"The Checkpoints in Namespace {self._namespace} were {other_schema(spec['schema'])}, left as they "
                "are; use that version, or delete them to start without profiles and advice"
            )
        self._version = version_of(state)
        self._pieces, self._sweep = tuple(spec.get("pieces") or ()), tuple(spec.get("sweep") or ())
        damaged = []
        with self._database() as db:
            make_tables(db)
            for name in self._pieces:
                with _store_errors("reading the state"):
                    piece = self._writer.get(self._ref(name))
                try:
                    rows = _rows_of(name, piece)
                    places = ", ".join("?" * len(rows[0]))
                    db.executemany(f"INSERT INTO {_table(name)} VALUES ({places})", rows)  # noqa: S608 — of TABLES
                except (_LostError, sqlite3.Error) as lost:
                    what = f"Checkpoint {self._namespace}/{name}"
                    detail = f"damaged ({lost}); its rows of the table {_table(name)} are lost"
                    gaps.append(Gap(kind=GapKind.BAD_INPUT, what=what, detail=detail))
                    damaged.append(name)
            if damaged:
                # A row without its other half is useless, and its id would be reused.
                db.execute("DELETE FROM advice_body WHERE id NOT IN (SELECT id FROM advice)")
                db.execute("DELETE FROM advice WHERE id NOT IN (SELECT id FROM advice_body)")
        # `publish` creates a damaged piece again even if its content is the same.
        self._pieces = tuple(name for name in self._pieces if name not in damaged)
        self._sweep += tuple(damaged)
        return gaps

    def publish(self) -> None:
        """Write the changes of the scratch file to the cluster."""
        with self._database() as db:
            wanted = {name: body for table in TABLES for name, body in _pieces_of(db, table)}
        new = [name for name in wanted if name not in self._pieces]
        old = [name for name in self._pieces if name not in wanted]
        if not new and not old:
            return
        with _store_errors("writing the state"):
            # New pieces are listed in `sweep` first, so that they are deleted if this process ends before they count.
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
            stored = self._writer.patch(self._ref(self._state), {"spec": spec}, version=self._version)
        else:
            stored = self._writer.create(self._object(self._state, spec))
        self._version = version_of(stored)
        self._pieces, self._sweep = tuple(pieces), tuple(sweep)

    def _make(self, name: str, body: bytes) -> None:
        piece = self._object(name, {"data": base64.b64encode(body).decode("ascii")})
        try:
            self._writer.create(piece)
        except WriteError as error:
            if error.failure is not Failure.CONFLICT:
                raise
            # Left by a process that was killed: it has the same content, or it is damaged.
            try:
                _rows_of(name, self._writer.get(self._ref(name)))
            except _LostError:
                self._delete(name)
                self._writer.create(piece)

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
        """A second connection to the scratch file, in one transaction."""
        db = sqlite3.connect(self._path)
        try:
            with db:
                yield db
        finally:
            db.close()


class _LostError(Exception):
    """A piece is missing or damaged."""


def _pieces_of(db: sqlite3.Connection, table: str) -> Iterator[tuple[str, bytes]]:
    """Name and body of each piece: the rows in buckets by the hash of their first column. The number of buckets is a
    power of two, so that few pieces change when the table grows."""
    rows = sorted(db.execute(f"SELECT * FROM {table}"))  # noqa: S608 — of TABLES; keys come first
    size = sum(len(value) if isinstance(value, bytes | str) else 8 for row in rows for value in row)
    count = 1
    while count * PIECE_BYTES < size:
        count *= 2

    def bucket_of(row: Sequence[Any]) -> int:
        return int.from_bytes(blake2b(str(row[0]).encode(), digest_size=8).digest()) % count

    for bucket in grouped(rows, bucket_of).values():
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


def _rows_of(name: str, piece: Object | None) -> list[list[Any]]:
    if piece is None:
        raise _LostError("it is missing")
    try:
        body = base64.b64decode(piece["spec"]["data"], validate=True)
        if _name(_table(name), body) != name or _table(name) not in TABLES:
            raise _LostError("its bytes are not those that were written")
        rows: list[list[Any]] = msgspec.msgpack.decode(zlib.decompress(body))
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise _LostError(f"not a whole value: {error}") from error
    return rows


@contextmanager
def _store_errors(doing: str) -> Iterator[None]:
    try:
        yield
    except WriteError as error:
        if error.failure is Failure.CONFLICT:
            raise StoreError(
                f"{doing}: another replica wrote the state since it was read, and its state is kept; open it again"
            ) from error
        raise StoreError(f"{doing}: {error.message}") from error
