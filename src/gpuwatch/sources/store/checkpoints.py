"""The state as Checkpoints, objects of the cluster, for a controller without a volume.

    Checkpoint profile-3-64-9f86d0…   a piece (see `rows`); immutable
    Checkpoint state                  the names of all pieces that make up the state
    Checkpoint faults, deliveries     the same for the cycle's known faults and counts, and for what was sent
    Checkpoint ledger                 the same for the ledger

A list is written last, in one request, so that a process killed earlier leaves the old state whole. Its `sweep` lists
the pieces to delete and those about to be created, so that none is left over.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from gpuwatch.facts.frameworks.objects import Object, version_of
from gpuwatch.facts.model.remediation import ObjectRef
from gpuwatch.facts.model.telemetry import Gap
from gpuwatch.sources.kube.writer import ClusterWriter, Failure, WriteError
from gpuwatch.sources.store import SCHEMA, StoreError, other_schema
from gpuwatch.sources.store.custom_resources import API_VERSION, CHECKPOINT_KIND
from gpuwatch.sources.store.rows import is_piece

STATE = "state"

FAULTS = "faults"
"""Name of the list of the pieces that a cycle writes: known faults, and the counts of possible enforcement. It is
separate because a fault is written within a minute, and the profiles by a long job."""

DELIVERIES = "deliveries"
"""Name of the list of what was sent; separate for the same reason."""

LEDGER = "ledger"
"""Name of the list of the ledger's pieces; separate because they are most of the bytes, and read by few."""

LARGEST_BYTES = 1024 * 1024
"""Limit of one piece before base64, close to etcd's limit."""


class Checkpoints:
    """A Place for `rows.State`, in one Namespace. Only the leader may write; another replica's write is detected.

    state: the name of the list of pieces.
    """

    def __init__(self, writer: ClusterWriter, namespace: str, state: str = STATE) -> None:
        self._writer, self._namespace, self._state = writer, namespace, state
        self._known = False
        self._version = ""  # of the list; '' if there is none
        self._pieces: tuple[str, ...] = ()
        self._sweep: tuple[str, ...] = ()
        self.gaps: list[Gap] = []

    @property
    def description(self) -> str:
        return f"Checkpoint {self._namespace}/{self._state}"

    def read(self) -> Mapping[str, bytes] | None:
        """Asks the cluster once: who wrote since then is found by `write`."""
        if self._known:
            return None
        with _store_errors("reading the state"):
            state = self._writer.get(self._ref(self._state))
            if state is not None:
                spec = state["spec"]
                if spec["schema"] != SCHEMA:
                    raise StoreError(
                        f"The Checkpoints in Namespace {self._namespace} were {other_schema(spec['schema'])}, left as "
                        "they are; use that version, or start without profiles, advice and known faults: "
                        f"`kubectl -n {self._namespace} delete checkpoints --all`"
                    )
                self._version = version_of(state)
                self._pieces, self._sweep = tuple(spec.get("pieces") or ()), tuple(spec.get("sweep") or ())
            found = {name: _body(self._writer.get(self._ref(name))) for name in self._pieces if is_piece(name)}
        self._known = True
        return found

    def locked(self) -> AbstractContextManager[None]:
        return nullcontext()

    def write(self, pieces: Mapping[str, bytes]) -> None:
        for name, body in pieces.items():
            if len(body) > LARGEST_BYTES:
                raise StoreError(
                    f"The state is too large for the cluster: rows of {name.partition('-')[0]} that belong together "
                    f"have {len(body):,} bytes, and {LARGEST_BYTES:,} may be kept in one object; keep it in a file "
                    "(state: FILE)"
                )
        new = [name for name in pieces if name not in self._pieces]
        old = [name for name in self._pieces if name not in pieces]
        with _store_errors("writing the state"):
            # New pieces are listed in `sweep` first, so that they are deleted if this process ends before they count.
            gone = [name for name in self._sweep if name not in pieces]
            self._write_list(self._pieces, (*gone, *new))
            for name in new:
                self._make(name, pieces[name])
            self._write_list(tuple(pieces), (*gone, *old))
            for name in self._sweep:
                self._delete(name)
            self._sweep = ()

    def _write_list(self, pieces: Sequence[str], sweep: Sequence[str]) -> None:
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
            if _body(self._writer.get(self._ref(name))) != body:
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


def _body(piece: Object | None) -> bytes:
    """b'' if it is missing, or has none."""
    try:
        return base64.b64decode(piece["spec"]["data"], validate=True) if piece is not None else b""
    except (KeyError, TypeError, binascii.Error, ValueError):
        return b""


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
