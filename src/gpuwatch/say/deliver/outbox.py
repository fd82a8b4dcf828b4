"""The outbox: a folder per report with its files and a small state file, so that a kill at any line loses nothing. A
report appears in the outbox by one rename, complete and on disk. From then on only its state file changes, each time by
a rename. A report not recorded as sent is sent again, so a destination gets it at least once."""

import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

import msgspec

_STATE = "state.json"
_FORMAT = 1
# No leading dot: neither hidden files nor the parent folder.
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class DeliveryState(StrEnum):
    SENT = "sent"
    FAILED = "failed"  # all attempts of one run failed; the next run retries
    PENDING = "pending"  # not tried yet, or a run was interrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One report to one destination. `destination` and `error` hold no secret. attempts: over all runs. tried_at: time
    of the last attempt; None if unknown."""

    destination: str
    state: DeliveryState = DeliveryState.PENDING
    attempts: int = 0
    error: str = ""
    tried_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report in the outbox. id: derived from its content or identity; name of the folder."""

    id: str
    folder: Path
    title: str
    summary_markdown: str
    files: tuple[str, ...]
    deliveries: tuple[Delivery, ...]


class OutboxError(Exception):
    """The outbox cannot be read or written; the message has the path."""


class OutboxBusyError(OutboxError):
    """Another process has the outbox locked."""


@contextmanager
def locked(outbox: Path, name: str = ".lock") -> Iterator[None]:
    """Locks the outbox for one process; the kernel releases the lock at its end. OutboxBusyError where another has it,
    OutboxError where the outbox cannot be written, here or in the body."""
    try:
        outbox.mkdir(parents=True, exist_ok=True)
        with (outbox / name).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OutboxBusyError(f"{outbox}: another process delivers from it") from None
            yield
    except OSError as error:
        raise OutboxError(f"{error.filename or outbox}: {error.strerror}; the outbox has to be writable") from error


def register(outbox: Path, files: Mapping[str, bytes], title: str, summary_markdown: str, identity: str = "") -> Report:
    """Puts a report into the outbox, unless it is there. identity: of the report, with any content; the first
    content stays. ValueError for an invalid file name."""
    for name in files:
        if not _FILE_NAME.fullmatch(name) or name == _STATE:
            raise ValueError(f"{name!r} is not a valid name for a report's file; use letters, digits, dots and dashes")
    name_of_report = identified(title, identity) if identity else report_id(files, title, summary_markdown)
    folder = outbox / name_of_report
    if not folder.exists():
        draft = outbox / f".draft-{name_of_report}"
        if draft.exists():
            shutil.rmtree(draft)  # of a run that was killed; the caller has the lock
        draft.mkdir()
        for name, content in files.items():
            _write(draft / name, content)
        report = Report(
            id=name_of_report,
            folder=folder,
            title=title,
            summary_markdown=summary_markdown,
            files=tuple(sorted(files)),
            deliveries=(),
        )
        _write(draft / _STATE, _state(report))
        _sync(draft)
        draft.rename(folder)
        _sync(outbox)
    return load(folder)


def report_id(files: Mapping[str, bytes], title: str, summary_markdown: str) -> str:
    """Name of a report's folder: its title and a hash of its content."""
    identity = hashlib.sha256()
    named = (part for name in sorted(files) for part in (name.encode(), files[name]))
    for part in (title.encode(), summary_markdown.encode(), *named):
        identity.update(len(part).to_bytes(8, "big") + part)
    return _named(title, identity.hexdigest())


def identified(title: str, identity: str) -> str:
    """Name of the folder of a report that has an identity."""
    return _named(title, hashlib.sha256(identity.encode()).hexdigest())


def _named(title: str, digest: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].rstrip("-") or "report"
    return f"{words}-{digest[:12]}"


def token(outbox: Path) -> str:
    """Unique token of this outbox, for the identities of its reports; created on first use."""
    file = outbox / ".token"
    try:
        found = file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        found = ""
    if not found:
        outbox.mkdir(parents=True, exist_ok=True)
        found = secrets.token_hex(8)
        write_file(file, found.encode())
    return found


def load(folder: Path) -> Report:
    """OutboxError where the folder's state file cannot be read."""
    where = folder / _STATE
    try:
        content = where.read_bytes()
        written = msgspec.json.decode(content, type=_Format).format
        if written != _FORMAT:
            raise OutboxError(f"{where}: format {written} is not {_FORMAT}; a newer gpuwatch wrote it")
        state = msgspec.json.decode(content, type=_State)
    except OSError as error:
        raise OutboxError(f"{where}: cannot be read ({error.strerror})") from error
    except msgspec.MsgspecError as error:
        raise OutboxError(f"{where}: is not the state of a report ({error}); remove the folder to forget it") from error
    return Report(
        id=folder.name,
        folder=folder,
        title=state.title,
        summary_markdown=state.summary,
        files=state.files,
        deliveries=state.deliveries,
    )


def save(report: Report) -> None:
    write_file(report.folder / _STATE, _state(report))


def reports(outbox: Path) -> list[Path]:
    """Folders of the outbox, sorted by name, which begins with the report's title."""
    return sorted(item for item in outbox.iterdir() if item.is_dir() and not item.name.startswith("."))


def write_file(target: Path, content: bytes) -> None:
    """Writes the file atomically and syncs it to disk."""
    draft = target.with_name(f".{target.name}.part")
    _write(draft, content)
    draft.rename(target)
    _sync(target.parent)


class _Format(msgspec.Struct):
    format: int


class _State(_Format):
    """A report's state file."""

    title: str
    summary: str
    files: tuple[str, ...]
    deliveries: tuple[Delivery, ...]


def _state(report: Report) -> bytes:
    state = _State(_FORMAT, report.title, report.summary_markdown, report.files, report.deliveries)
    return msgspec.json.format(msgspec.json.encode(state), indent=1)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Makes renames in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
