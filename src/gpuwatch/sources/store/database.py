"""The SQLite file: creation, integrity check, and errors with advice."""

import fcntl
import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from itertools import count
from pathlib import Path

import msgspec
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from gpuwatch.sources.store import StoreError

SCHEMA = 4
"""user_version of the file. A file of another schema is refused. Increase it when the tables change, or when an older
gpuwatch would misread a body."""

WAIT_SECONDS = 30.0
"""How long another process may hold the file. Writing 10,000 profiles takes it seconds."""

_APPLICATION = 0x47505557  # 'GPUW'


TABLES: Mapping[str, str] = msgspec.yaml.decode(
    resources.files("gpuwatch.sources.store").joinpath("tables.yaml").read_bytes(), type=dict[str, str]
)
"""The statement that makes each table."""

# Errors that mean a damaged file while it is checked. The statements are fixed, so that SQLITE_ERROR (an unknown file
# format) and SQLITE_CONSTRAINT (two rows with one key) come from the file too.
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_ERROR})
_HELD = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


# In the order of renaming. The log is first: a new file must never be used with the log of the old one.
_FILES = ("-wal", "-shm", "-journal", "")


class DamagedFileError(Exception):
    """The file is not a whole database."""


def usable(path: Path) -> Path:
    """The path without links, as SQLite names its other files. Raises StoreError."""
    try:
        path = path.expanduser().resolve()
        found = stat_of(path)
        if found is not None and not stat.S_ISREG(found.st_mode):
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file"
            raise StoreError(f"{path}: the state has to be a file, and this is {kind}; name a file")
        if not path.parent.is_dir():
            raise StoreError(f"{path}: there is no folder {path.parent}; make it, or name another file")
    except (OSError, RuntimeError, ValueError) as error:
        raise StoreError(f"{path}: the state cannot be opened ({error}); name another file") from error
    for each in (path, path.parent):
        # Another process may create the file, or move it aside, between two of these calls.
        if stat_of(each) and not os.access(each, os.W_OK, effective_ids=True) and stat_of(each):
            raise StoreError(
                f"{path}: {each} is read-only for this user; make file and folder writable, or name another file"
            )
    return path


def connected(path: Path, wait_seconds: float) -> sqlite3.Connection:
    with store_errors(path, "opening the state", wait_seconds):
        db = sqlite3.connect(path, timeout=wait_seconds, isolation_level=None)
        # A damaged text must affect only its own row.
        db.text_factory = lambda data: data.decode(errors="replace")
        try:
            _check(db, path)
            _begin_wal(db, wait_seconds)
            if not _pragma(db, "user_version"):
                make_tables(db)
        except BaseException:
            db.close()
            raise
        return db


def _check(db: sqlite3.Connection, path: Path) -> None:
    try:
        _check_whole(db, path)
    except UnicodeDecodeError as error:  # of SQLite's own message, which quotes the file
        raise DamagedFileError("its tables cannot be read") from error
    except sqlite3.Error as error:
        if _code(error) in _DAMAGED:
            raise DamagedFileError(str(error)) from error
        raise


def _check_whole(db: sqlite3.Connection, path: Path) -> None:
    # In one transaction: another process may be creating the tables.
    db.execute("BEGIN")
    application, version = _pragma(db, "application_id"), _pragma(db, "user_version")
    made = {sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL")}
    if application != _APPLICATION and (application or version or made):
        raise StoreError(f"{path}: a database of another program, left as it is; name another file")
    if version not in (0, SCHEMA):
        raise StoreError(f"{path}: {other_schema(version)}, left as it is; use that version, or name another file")
    (answer,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if answer != "ok":
        raise DamagedFileError(answer)
    (answer,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    if made != (set(TABLES.values()) if version else set()):
        raise DamagedFileError("its tables are not those of this version")
    db.execute("COMMIT")
    if answer != "ok":
        # Only the indices are wrong. Digests detect damaged rows.
        db.execute("REINDEX")
        (answer,) = db.execute("PRAGMA integrity_check(1)").fetchone()
        if answer != "ok":
            raise DamagedFileError(answer)


def _begin_wal(db: sqlite3.Connection, wait_seconds: float) -> None:
    """The mode is stored in the file. SQLite does not wait for the lock when two processes set it at once."""
    for attempt in Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, sqlite3.Error) and _code(error) in _HELD),
        stop=stop_after_delay(wait_seconds),
        wait=wait_fixed(0.05),
        reraise=True,
    ):
        with attempt:
            db.execute("PRAGMA journal_mode = WAL").fetchone()
    # FULL syncs each commit; there is one per hour.
    db.execute("PRAGMA synchronous = FULL")
    # The first save writes everything; afterwards the log shrinks.
    db.execute(f"PRAGMA journal_size_limit = {16 * 1024 * 1024}").fetchone()


def other_schema(schema: int) -> str:
    which = "a newer" if schema > SCHEMA else "an older"
    return f"written by {which} gpuwatch (schema {schema}, this one knows only {SCHEMA})"


def make_tables(db: sqlite3.Connection) -> None:
    """The tables in an empty file; nothing in a file that has them."""
    db.execute("BEGIN IMMEDIATE")
    if not _pragma(db, "user_version"):  # else another process was faster
        for statement in TABLES.values():
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {_APPLICATION}")
        db.execute(f"PRAGMA user_version = {SCHEMA}")
    db.execute("COMMIT")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    (value,) = db.execute(f"PRAGMA {name}").fetchone()
    return int(value)


@contextmanager
def store_errors(path: Path, doing: str, wait_seconds: float) -> Iterator[None]:
    """Turn SQLite's errors into a StoreError with advice."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # ours
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {doing}: {_reason(path, error, wait_seconds)}") from error


def _reason(path: Path, error: sqlite3.Error, wait_seconds: float) -> str:
    code = _code(error)
    if code in _HELD:
        pids = holders(path)
        who = f"process {', '.join(map(str, pids))} holds it" if pids else "another process holds it"
        return f"{who} for more than {wait_seconds:g} s; wait for it or end it, and run again"
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return f"the file is damaged ({error}); move it away, or put back a copy"
    return {
        sqlite3.SQLITE_READONLY: "the file or its folder is read-only; make both writable, or name another file",
        sqlite3.SQLITE_FULL: "the disk is full; the state of the last run is whole. Make room and run again",
        sqlite3.SQLITE_IOERR: f"the disk failed ({error}); the state of the last run is whole. Check the disk",
        sqlite3.SQLITE_CANTOPEN: f"{error}; make the file and its folder readable and writable, or name another file",
    }.get(code, f"{error}; if this persists, move the file away, or put back a copy")


def _code(error: sqlite3.Error) -> int:
    """The primary result code, without the extended code in the higher bits."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def stat_of(path: Path) -> os.stat_result | None:
    """None without a file. One call: between two, another process may move the file aside."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def move_aside(path: Path, found: os.stat_result) -> Path | None:
    """Renames the damaged file and SQLite's other files to `….damaged-<n>`, so that a person can inspect them. found:
    stat of `path` when the damage was found. Returns the new name, or None when another process was faster. Raises
    OSError."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        # One process at a time, and only the file that was checked: by now a new one may have its name.
        fcntl.flock(file, fcntl.LOCK_EX)
        now = stat_of(path)
        if now is None or (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino):
            return None
        aside = next(
            name
            for number in count(1)
            if not any(
                _beside(name := path.with_name(f"{path.name}.damaged-{number}"), each).exists() for each in _FILES
            )
        )
        for each in _FILES:
            if _beside(path, each).exists():
                _beside(path, each).rename(_beside(aside, each))
        return aside
    finally:
        os.close(file)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def holders(path: Path) -> tuple[int, ...]:
    """PIDs of other processes with a write lock on the SQLite file or its index, from Linux' /proc/locks; () when it
    does not list them (another machine, another PID namespace, no /proc)."""
    try:
        files = {each.stat().st_ino for each in (path, path.with_name(path.name + "-shm")) if each.exists()}
        lines = Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ()
    pids: set[int] = set()
    for line in lines:
        # 1: POSIX  ADVISORY  WRITE 2711 fd:01:1179793 120 120
        words = line.split()
        if len(words) < 6 or words[1] == "->" or words[3] != "WRITE" or not words[4].isdecimal():
            continue
        if words[5].rpartition(":")[2] in {str(file) for file in files}:
            pids.add(int(words[4]))
    return tuple(sorted(pids - {0, os.getpid()}))
