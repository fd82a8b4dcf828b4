"""A Snapshot in one file of versioned, gzipped JSON."""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpuwatch.facts.model.decision import Snapshot

FORMAT = "gpuwatch-snapshot"
VERSION = 2


class SnapshotFileError(Exception):
    """This version cannot read the file; the message has its path and what to do."""


@dataclass(frozen=True, slots=True)
class _Head:
    format: str = ""
    version: int = 0


@dataclass(frozen=True, slots=True)
class _File:
    format: str
    version: int
    snapshot: Snapshot


def save_snapshot(snapshot: Snapshot, path: Path) -> None:
    """Writes the file atomically."""
    part = path.with_name(path.name + ".part")
    data = msgspec.json.encode(_File(FORMAT, VERSION, snapshot))
    # mtime=0 makes the bytes reproducible.
    part.write_bytes(gzip.compress(data, mtime=0))
    part.replace(path)


def is_snapshot(path: Path) -> bool:
    """By the first bytes of the file."""
    try:
        with gzip.open(path, "rb") as file:
            return FORMAT.encode() in file.read(64)
    except (OSError, EOFError, zlib.error):
        return False


def load_snapshot(path: Path) -> Snapshot:
    """Raises SnapshotFileError for any file that `save_snapshot` did not write."""
    try:
        data = gzip.decompress(path.read_bytes())
    except FileNotFoundError:
        raise SnapshotFileError(f"{path}: there is no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise SnapshotFileError(f"{path}: not a whole gzip file ({error}); capture it again") from error
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.format != FORMAT:
            raise SnapshotFileError(f"{path}: not a file of `gpuwatch capture`")
        if head.version > VERSION:
            raise SnapshotFileError(
                f"{path}: written by a newer gpuwatch (format {head.version}, this one reads up to {VERSION}); upgrade"
            )
        if head.version < VERSION:
            raise SnapshotFileError(
                f"{path}: of an older gpuwatch, which kept doubted devices as others; capture it again"
            )
        return msgspec.json.decode(data, type=_File).snapshot
    except msgspec.DecodeError as error:
        raise SnapshotFileError(f"{path}: damaged, or of an older gpuwatch ({error}); capture it again") from error
