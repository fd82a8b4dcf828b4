"""A Snapshot in one file: gzipped JSON, versioned, so that any decision can be replayed and shared."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpuwatch.model.decision import Snapshot

FORMAT = "gpuwatch-snapshot"
VERSION = 1


class SnapshotFileError(Exception):
    """The file is no Snapshot that this version can read; the message names the file and what to do."""


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
    """Write the file whole or not at all."""
    part = path.with_name(path.name + ".part")
    data = msgspec.json.encode(_File(FORMAT, VERSION, snapshot))
    # mtime=0: the same Snapshot gives the same bytes.
    part.write_bytes(gzip.compress(data, mtime=0))
    part.replace(path)


def is_snapshot(path: Path) -> bool:
    """Does the file begin as one of ours? Reads a few bytes only."""
    try:
        with gzip.open(path, "rb") as file:
            return FORMAT.encode() in file.read(64)
    except (OSError, EOFError, zlib.error):
        return False


def load_snapshot(path: Path) -> Snapshot:
    """Read a file that `save_snapshot` wrote; SnapshotFileError says what is wrong with any other."""
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
        return msgspec.json.decode(data, type=_File).snapshot
    except msgspec.DecodeError as error:
        raise SnapshotFileError(f"{path}: damaged ({error}); capture it again") from error
