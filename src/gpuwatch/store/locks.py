"""Who holds a file, as far as the kernel tells."""

from __future__ import annotations

import os
from pathlib import Path


def holders(path: Path) -> tuple[int, ...]:
    """Other processes that hold a write lock on the SQLite file or its index, from Linux' /proc/locks; () where it does
    not say (another machine, another PID namespace, no /proc)."""
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
