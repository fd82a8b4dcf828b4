"""Saves in a child that is killed, then looks what is in the file; again and again.

    python kill_saving.py FOLDER

By SIGKILL before each line that writes the file in turn, each on a copy of the same file, until the child outlives it;
in the first rounds there is no file yet. Prints one JSON line per round. A process of its own, without threads, because
it forks.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from gpuwatch.facts.model.workload_profile import ProfileBook
from gpuwatch.sources.store.state_file import StateFile, replace_file
from gpuwatch.sources.store.store import Store, _Advice
from store.values import HOUR, T0, advice, book, key, outcome, tags


def whole_run(path: Path, new: ProfileBook, tag: int) -> None:
    """What one run of gpuwatch writes."""
    store = Store.open(path)
    store.load_book()
    store.save_book(new)
    slices = "1g.10gb" if tag % 2 else "2g.20gb"
    given = [advice(key(number), T0 + tag * HOUR, slices) for number in range(3)]
    store.record_advice(given)
    store.record_outcomes([outcome(each, applied_at=each.at + HOUR) for each in given])


def kill_after(lines: int) -> Any:
    left = lines

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code not in (StateFile.write.__code__, replace_file.__code__):
            return None
        left -= event == "line"
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def look(path: Path) -> dict[str, object]:
    store = Store.open(path)
    found, _ = store.load_book()
    kept = [each for _, each in store._state.rows("advice", _Advice)]
    return {
        "gaps": [gap.detail for gap in store.gaps],
        "tags": sorted(tags(found)) if found else [],
        "profiles": len(found.profiles) if found else 0,
        "advice": sorted({(each.at - T0) // HOUR for each in kept}),
        "advice_rows": len(kept),
        "given": sorted({(each.at - T0) // HOUR for each in store.advice_given()}),
        "outcomes": sum(each.applied_at is not None for each in kept),
    }


def forked(path: Path, new: ProfileBook, tag: int, kill_at: int) -> bool:
    """Whether the child was killed."""
    child = os.fork()
    if child == 0:
        sys.settrace(kill_after(kill_at))
        whole_run(path, new, tag)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in {0, -signal.SIGKILL}, code
    return code != 0


def at_lines(folder: Path) -> None:
    old = folder / "old"
    whole_run(old, book(count=8, tag=1.0), 1)
    for begun in (False, True):
        number, killed = 0, True
        while killed:
            path = folder / f"{begun}-{number}"
            if begun:
                shutil.copy(old, path)
            new = book(count=6, tag=2.0)
            killed = forked(path, new, 2, kill_at=number)
            found = look(path)
            whole_run(path, new, 2)
            print(json.dumps({"begun": begun, "killed": killed, "found": found, "after": look(path)}), flush=True)
            number += 1


if __name__ == "__main__":
    at_lines(Path(sys.argv[1]))
