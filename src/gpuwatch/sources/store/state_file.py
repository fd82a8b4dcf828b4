"""The state as one file, which each save replaces: a process that is killed, or a machine that loses power, leaves the
state before or after it. Readers need no lock. One process writes at a time; beside the file lies `.FILE.lock`.

    gpuwatch state 5 1234 9f86d0…   the schema, and the length and digest of the index
    index                           msgpack: name and length of each piece
    pieces                          see `rows`
"""

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from itertools import count
from pathlib import Path

import msgspec

from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.store import SCHEMA, StoreError, other_schema
from gpuwatch.sources.store.rows import is_piece

WAIT_SECONDS = 30.0
"""How long another process may write. 10,000 profiles take it about two seconds."""

_RETRY_SECONDS = 0.02

_MAGIC = b"gpuwatch state "
_HEADER = re.compile(rb"gpuwatch state (\d{1,4}) (\d{1,10}) ([0-9a-f]{32})\n")

_ADVICE = {
    errno.ENOSPC: "the disk is full; the state of the last save is whole. Make room and run again",
    errno.EDQUOT: "the quota is used up; the state of the last save is whole. Make room and run again",
    errno.EFBIG: "the file may not be so large; the state of the last save is whole. Raise the limit and run again",
    errno.EIO: "the disk failed; the state of the last save is whole. Check the disk",
}
_READ_ONLY = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class StateFile:
    """A Place for `rows.State`. The constructor raises StoreError where there cannot be a file.

    wait_seconds: how long to wait while another process writes.
    """

    def __init__(self, path: Path, wait_seconds: float = WAIT_SECONDS) -> None:
        self._path = _usable(path)
        self._wait_seconds = wait_seconds
        self._header: bytes | None = None  # the first line of what was read or written last
        self._holds = False
        self.gaps: list[Gap] = []

    @property
    def description(self) -> str:
        return str(self._path)

    def read(self) -> Mapping[str, bytes] | None:
        try:
            return self._pieces()
        except _DamagedError:
            # Looked at again under the lock: another process may have moved it aside, and saved a new one.
            with self.locked():
                try:
                    return self._pieces()
                except _DamagedError as damage:
                    self._move_aside(str(damage))
                    return {}

    def _pieces(self) -> Mapping[str, bytes] | None:
        try:
            with self._path.open("rb") as file:
                header = file.readline(256)
                if header == self._header:
                    return None
                rest = file.read()
        except FileNotFoundError:
            header, rest = b"", b""
        except OSError as error:
            raise self._error("reading the state", error) from error
        found = _whole(self._path, header, rest) if header else {}
        self._header = header
        return found

    @contextmanager
    def locked(self) -> Iterator[None]:
        if self._holds:
            yield
            return
        lock = self._path.with_name(f".{self._path.name}.lock")
        try:
            file = lock.open("a+")
        except OSError as error:
            raise self._error("locking the state", error) from error
        with file:
            # Each open file has a lock of its own, so that threads of one process wait for each other too.
            end = time.monotonic() + self._wait_seconds
            while not _taken(file.fileno()):
                if time.monotonic() > end:
                    file.seek(0)
                    holder = file.read().strip()
                    raise StoreError(
                        f"{self._path}: {f'process {holder}' if holder else 'another process'} holds it for more than "
                        f"{self._wait_seconds:g} s; wait for it or end it, and run again"
                    )
                time.sleep(_RETRY_SECONDS)
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            self._holds = True
            try:
                yield
            finally:
                self._holds = False
                file.truncate(0)

    def write(self, pieces: Mapping[str, bytes]) -> None:
        index = msgspec.msgpack.encode([(name, len(body)) for name, body in pieces.items()])
        header = b"%s%d %d %s\n" % (_MAGIC, SCHEMA, len(index), _digest(index))
        try:
            replace_file(self._path, (header, index, *pieces.values()))
        except OSError as error:
            raise self._error("writing the state", error) from error
        self._header = header

    def _move_aside(self, why: str) -> None:
        names = (self._path.with_name(f"{self._path.name}.damaged-{number}") for number in count(1))
        aside = next(name for name in names if not name.exists())
        try:
            self._path.rename(aside)
        except OSError as error:
            raise StoreError(
                f"{self._path}: damaged ({why}), and it cannot be moved aside ({error}); move it away"
            ) from error
        self._header = b""
        detail = f"damaged ({why}); moved to {aside}; the new file has no profiles and no advice yet"
        self.gaps.append(Gap(kind=GapKind.BAD_INPUT, what=f"state {self._path}", detail=detail))

    def _error(self, doing: str, error: OSError) -> StoreError:
        advice = "make the file and its folder readable and writable, or name another file"
        if error.errno in _READ_ONLY:
            advice = "the file or its folder is read-only; make both writable, or name another file"
        why = _ADVICE.get(error.errno or 0) or f"{error.strerror or error}; {advice}"
        return StoreError(f"{self._path}: {doing}: {why}")


class _DamagedError(Exception):
    """The file is not one that was saved."""


def _whole(path: Path, header: bytes, rest: bytes) -> Mapping[str, bytes]:
    if not header.startswith(_MAGIC) and (header + rest).strip(b"\0"):
        raise StoreError(f"{path}: no state of gpuwatch, left as it is; name another file, or move this one away")
    found = _HEADER.fullmatch(header)
    if found is None:
        raise _DamagedError("its first line is not that of a state")
    if int(found[1]) != SCHEMA:
        raise StoreError(
            f"{path}: {other_schema(int(found[1]))}, left as it is; use that version, or name another file"
        )
    length = int(found[2])
    if _digest(rest[:length]) != found[3]:
        raise _DamagedError("its index is not the one that was written")
    pieces, at = {}, length
    for name, size in msgspec.msgpack.decode(rest[:length], type=list[tuple[str, int]]):
        pieces[name] = rest[at : at + size]
        at += size
    if len(rest) != at:
        raise _DamagedError("it is not as long as it was")
    return {name: body for name, body in pieces.items() if is_piece(name)}


def replace_file(path: Path, content: Iterable[bytes]) -> None:
    """Writes the file wholly or not at all, and onto the disk. One process at a time. Raises OSError."""
    draft = path.with_name(f".{path.name}.part")
    try:
        with draft.open("wb") as file:
            if path.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).hexdigest().encode()


def _usable(path: Path) -> Path:
    """The path without links. Raises StoreError."""
    try:
        path = path.expanduser().resolve()
        other, placed = False, path.parent.is_dir()
        # In one call, since another process may move the file aside between two.
        with suppress(FileNotFoundError, NotADirectoryError):
            other = not stat.S_ISREG(path.stat().st_mode)
    except (OSError, RuntimeError, ValueError) as error:
        raise StoreError(f"{path}: the state cannot be opened ({error}); name another file") from error
    if other:
        raise StoreError(f"{path}: the state has to be a regular file, and this is none; name a file")
    if not placed:
        raise StoreError(f"{path}: there is no folder {path.parent}; make it, or name another file")
    for each in (path, path.parent):
        # Another process may move the file aside between two of these calls.
        if each.exists() and not os.access(each, os.W_OK, effective_ids=True) and each.exists():
            raise StoreError(
                f"{path}: {each} is read-only for this user; make file and folder writable, or name another file"
            )
    return path
