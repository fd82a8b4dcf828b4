"""Remediations in an SQLite file, for where there is no cluster to keep them in.

A file of its own, beside that of the profiles: a step that is about to be done does not wait until 10,000 profiles are
written, and a file of profiles that is thrown away takes no saved state of a suspended workload with it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gpuwatch.model.remediation import Pause, Remediation, RemediationId, misplaced
from gpuwatch.model.telemetry import Gap, GapKind
from gpuwatch.store.api_form import FormError, from_api, to_api, with_unknown
from gpuwatch.store.custom_resources import (
    RemediationSpec,
    RemediationStatus,
    parts_of,
    remediation_of,
    said_correct,
    selected,
)
from gpuwatch.store.database import WAIT_SECONDS, told, usable
from gpuwatch.store.remediations import FINAL_AT_MOST, FINAL_KEPT, ConflictError, needs_attention, to_forget
from gpuwatch.store.store import StoreError

SCHEMA = 1
"""user_version of the file. A later one is refused."""

_APPLICATION = 0x47505552  # 'GPUR'
_TABLES = (
    # The two parts stand as in the custom resource, in JSON, so that a person can read them.
    """CREATE TABLE remediation (
        id TEXT PRIMARY KEY, version INTEGER NOT NULL, spec TEXT NOT NULL, status TEXT NOT NULL) WITHOUT ROWID""",
    "CREATE TABLE pause (id INTEGER PRIMARY KEY CHECK (id = 1), body TEXT NOT NULL)",
    # The last version that was given: one that was given is never given again, to whatever row.
    "CREATE TABLE last (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL)",
    "INSERT INTO last VALUES (1, 0)",
    "INSERT INTO pause VALUES (1, '{}')",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {SCHEMA}",
)


class SqliteRemediations:
    """A RemediationStore in one file, for one thread of each process; several processes of one machine may use it."""

    def __init__(self, db: sqlite3.Connection, path: Path, wait_seconds: float) -> None:
        self._db = db
        self._path = path
        self._wait_seconds = wait_seconds
        self._gaps: tuple[Gap, ...] = ()
        self._known: dict[RemediationId, Remediation] = {}

    @classmethod
    def open(cls, path: Path, wait_seconds: float = WAIT_SECONDS) -> Self:
        """The file, made where there is none. Raises StoreError where there can be no such file, or where it is damaged
        or another's: what was done stands in it, so that it is never begun anew by itself."""
        path = usable(path)
        with told(path, "opening the remediations", wait_seconds):
            db = sqlite3.connect(path, timeout=wait_seconds, isolation_level=None)
            try:
                _prepare(db, path)
            except BaseException:
                db.close()
                raise
        return cls(db, path, wait_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    @property
    def gaps(self) -> tuple[Gap, ...]:
        return self._gaps

    def open_(self) -> tuple[Remediation, ...]:
        return tuple(each for each in self.all() if needs_attention(each))

    def history(self, target: str, since: datetime | None = None) -> tuple[Remediation, ...]:
        return tuple(each for each in self.all(since) if each.proposal.target == target)

    def all(self, since: datetime | None = None) -> tuple[Remediation, ...]:
        gaps: list[Gap] = []
        with self._transaction("reading remediations", "BEGIN"):
            versions = dict(self._db.execute("SELECT id, version FROM remediation"))
            # What was read in this version is known: a version is never given twice.
            self._known = {at: each for at, each in self._known.items() if each.version == str(versions.get(at))}
            rows = [(at, self._row(at)) for at in versions if at not in self._known]
        for at, row in rows:
            assert row is not None
            try:
                self._known[at] = _decoded(at, *row)
            except FormError as error:
                detail = f"damaged in {self._path} ({error}); it is left out"
                gaps.append(Gap(kind=GapKind.BAD_INPUT, what=f"remediation {at}", detail=detail))
        self._gaps = tuple(gaps)
        return selected(self._known.values(), since)

    def get(self, at: RemediationId) -> Remediation | None:
        with self._transaction("reading remediations", "BEGIN"):
            return self._get(at)

    def create(self, remediation: Remediation) -> Remediation:
        wrong = misplaced(remediation, remediation.namespace)
        if wrong:
            raise StoreError(f"{self._path}: remediation {remediation.id} cannot be kept: {wrong}")
        spec, status = parts_of(remediation)
        form = [self._form(remediation.id, part) for part in (spec, status)]
        with self._writing():
            kept = self._get(remediation.id)
            if kept is not None:
                return kept
            version = self._next()
            self._db.execute(
                "INSERT INTO remediation VALUES (?, ?, ?, ?)", (remediation.id, version, *map(_json, form))
            )
        return remediation_of(remediation.id, str(version), spec, status)

    def save(self, remediation: Remediation) -> Remediation:
        _, status = parts_of(remediation)
        new = self._form(remediation.id, status)
        with self._writing():
            kept = self._row(remediation.id)
            if kept is None or str(kept[0]) != remediation.version:
                raise ConflictError(
                    f"{self._path}: remediation {remediation.id} was "
                    f"{'forgotten' if kept is None else 'written by somebody else'} since it was read; read it again"
                )
            version = self._next()
            whole = with_unknown(self._parsed(remediation.id, kept[2]), new, RemediationStatus)
            self._db.execute(
                "UPDATE remediation SET version = ?, status = ? WHERE id = ?",
                (version, _json(whole), remediation.id),
            )
        return replace(remediation, version=str(version))

    def catch_up(self) -> int:
        return 0  # nothing is shown but what is decided

    def approve(self, at: RemediationId, by: str) -> Remediation:
        def decide(kept: Remediation) -> dict[str, Any]:
            if kept.rejected:
                raise StoreError(f"{self._path}: remediation {at} is rejected already; it cannot be approved")
            return {"approved": True, "approvedBy": by}

        return self._decide(at, decide)

    def reject(self, at: RemediationId, finding_correct: bool = False) -> Remediation:
        def decide(kept: Remediation) -> dict[str, Any]:
            if kept.approved:
                raise StoreError(f"{self._path}: remediation {at} is approved already; ask for its undo instead")
            return {"rejected": True, **said_correct(finding_correct)}

        return self._decide(at, decide)

    def ask_undo(self, at: RemediationId, finding_correct: bool = False) -> Remediation:
        return self._decide(at, lambda _: {"undo": True, **said_correct(finding_correct)})

    def forget_final(self, now: datetime, kept: timedelta = FINAL_KEPT, at_most: int = FINAL_AT_MOST) -> int:
        forgotten = 0
        for each in to_forget(self.all(), now, kept, at_most):
            with self._writing():
                gone = self._db.execute(
                    "DELETE FROM remediation WHERE id = ? AND version = ?", (each.id, int(each.version))
                )
                forgotten += gone.rowcount
        return forgotten

    def pause(self, by: str, reason: str, now: datetime) -> Pause:
        with self._writing():
            held = self._pause()
            if held.paused:
                return held
            wanted = Pause(paused=True, since=now, by=by, reason=reason)
            self._db.execute("UPDATE pause SET body = ?", (_json(self._form("pause", wanted)),))
        return wanted

    def resume(self) -> Pause:
        with self._writing():
            self._db.execute("UPDATE pause SET body = '{}'")
        return Pause()

    def paused(self) -> Pause:
        with self._transaction("reading the pause", "BEGIN"):
            return self._pause()

    def _pause(self) -> Pause:
        row = self._db.execute("SELECT body FROM pause").fetchone()
        try:
            return from_api(json.loads(row[0]), Pause)
        except (TypeError, ValueError) as error:
            return Pause(paused=True, reason=f"the pause in {self._path} is damaged ({error}); resume, or pause anew")

    def _decide(self, at: RemediationId, decide: Callable[[Remediation], dict[str, Any]]) -> Remediation:
        with self._writing():
            row, kept = self._row(at), self._get(at)
            if row is None or kept is None:
                raise StoreError(f"{self._path}: there is no remediation {at}; `gpuwatch history` lists them")
            spec = {**self._parsed(at, row[1]), **decide(kept)}
            version = self._next()
            self._db.execute("UPDATE remediation SET version = ?, spec = ? WHERE id = ?", (version, _json(spec), at))
            return _decoded(at, version, _json(spec), row[2])

    def _row(self, at: RemediationId) -> tuple[int, str, str] | None:
        found: tuple[int, str, str] | None = self._db.execute(
            "SELECT version, spec, status FROM remediation WHERE id = ?", (at,)
        ).fetchone()
        return found

    def _get(self, at: RemediationId) -> Remediation | None:
        row, known = self._row(at), self._known.get(at)
        if row is not None and known is not None and known.version == str(row[0]):
            return known
        try:
            return None if row is None else _decoded(at, *row)
        except FormError as error:
            raise StoreError(
                f"{self._path}: remediation {at} is damaged ({error}); see what it had done, then delete its row"
            ) from error

    def _parsed(self, at: RemediationId, text: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = _loaded(text)
        except FormError as error:
            raise StoreError(f"{self._path}: remediation {at} is damaged ({error})") from error
        return found

    def _form(self, at: RemediationId, part: object) -> dict[str, Any]:
        try:
            return to_api(part)
        except FormError as error:
            raise StoreError(f"{self._path}: remediation {at} cannot be kept: {error}") from error

    def _next(self) -> int:
        (version,) = self._db.execute("UPDATE last SET version = version + 1 RETURNING version").fetchone()
        return int(version)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._transaction("writing remediations", "BEGIN IMMEDIATE"):
            yield

    @contextmanager
    def _transaction(self, doing: str, begin: str) -> Iterator[None]:
        with told(self._path, doing, self._wait_seconds):
            self._db.execute(begin)
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    db.execute("PRAGMA synchronous = FULL")  # what is about to be done is on the disk before it is done
    db.execute("BEGIN IMMEDIATE")
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not (application or version or tables):
        for statement in _TABLES:
            db.execute(statement)
    elif application != _APPLICATION:
        raise StoreError(f"{path}: a database of something else, left as it is; name another file")
    elif version > SCHEMA:
        raise StoreError(
            f"{path}: written by a newer gpuwatch (schema {version}, this one knows {SCHEMA}), left as it is; upgrade, "
            "or name another file"
        )
    (answer,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if answer != "ok":
        raise StoreError(
            f"{path}: damaged ({answer}), left as it is, since it says what was done to whom; copy it away and repair "
            "it, or see what stands under the taints and annotations of gpuwatch.dev, and name another file"
        )
    db.execute("COMMIT")


def _decoded(at: RemediationId, version: int, spec: str, status: str) -> Remediation:
    """Raises FormError."""
    return remediation_of(
        at,
        str(version),
        from_api(_loaded(spec), RemediationSpec, "spec"),
        from_api(_loaded(status), RemediationStatus, "status"),
    )


def _loaded(text: object) -> Any:
    try:
        return json.loads(text)  # type: ignore[arg-type]  # SQLite gives what is there
    except (TypeError, ValueError) as error:
        raise FormError(f"not JSON: {error}") from error


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
