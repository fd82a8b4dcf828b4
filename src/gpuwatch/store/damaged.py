"""A damaged file is moved aside, never deleted: somebody may want to look at it."""

from __future__ import annotations

import fcntl
import os
from itertools import count
from pathlib import Path

# The log first: a new file must never meet the log of the old one.
_FILES = ("-wal", "-shm", "-journal", "")


def move_aside(path: Path, found: os.stat_result) -> Path | None:
    """Rename the file, and SQLite's files beside it, to `….damaged-<n>`; the new name, or None where another process
    was faster. found: what `path` was when it was seen to be damaged. Raises OSError where it cannot be renamed."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        # One process at a time, and only the file that was looked at: by now there may be a new one of this name.
        fcntl.flock(file, fcntl.LOCK_EX)
        if not _is_at(found, path):
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


def _is_at(found: os.stat_result, path: Path) -> bool:
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    return (now.st_dev, now.st_ino) == (found.st_dev, found.st_ino)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
