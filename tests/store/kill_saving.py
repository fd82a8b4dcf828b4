"""Saves in a child that is killed, then looks what is in the file; again and again.

    python kill_saving.py FOLDER statement|moment SEED ROUNDS

statement: before the n-th SQL statement, for n = 1, 2, …, each on a copy of the same file, until the child outlives
it; in the first rounds there is no file yet. moment: by SIGKILL at a random moment, always on the same file. Prints one
JSON line per round. A process of its own, without threads, because it forks.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from gpuwatch.facts.model.workload_profile import ProfileBook
from gpuwatch.sources.store.store import Store
from store.values import HOUR, T0, advice, book, key, outcome, tags

KILLED = -signal.SIGKILL


def whole_run(path: Path, new: ProfileBook, tag: int, kill_at: int | None = None) -> None:
    """What one run of gpuwatch writes."""
    with Store.open(path) as store:
        left = kill_at

        def count(_: str) -> None:
            nonlocal left
            if left is not None:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        store._db.set_trace_callback(count)
        store.load_book()
        store.save_book(new)
        slices = "1g.10gb" if tag % 2 else "2g.20gb"
        given = [advice(key(number), T0 + tag * HOUR, slices) for number in range(3)]
        store.record_advice(given)
        store.record_outcomes([outcome(each, applied_at=each.at + HOUR) for each in given])


def look(path: Path) -> dict[str, object]:
    with Store.open(path) as store:
        found, _ = store.load_book()
        kept = store._db.execute("SELECT workload, at FROM advice").fetchall()
        return {
            "gaps": [gap.detail for gap in store.gaps],
            "tags": sorted(tags(found)) if found else [],
            "profiles": len(found.profiles) if found else 0,
            "advice": sorted({at // 3_600_000_000 - int(T0.timestamp()) // 3600 for _, at in kept}),
            "advice_rows": len(kept),
            "given": sorted({(each.at - T0) // HOUR for each in store.advice_given()}),
            "outcomes": store._db.execute("SELECT count(applied_at) FROM advice").fetchone()[0],
        }


def forked(path: Path, new: ProfileBook, tag: int, kill_at: int | None = None, after: float | None = None) -> bool:
    """Whether the child was killed."""
    child = os.fork()
    if child == 0:
        whole_run(path, new, tag, kill_at)
        os._exit(0)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in {0, KILLED}, code
    return code == KILLED


def at_statements(folder: Path) -> None:
    old = folder / "old.db"
    whole_run(old, book(count=8, tag=1.0), 1)
    for begun in (False, True):
        number, killed = 1, True
        while killed:
            path = folder / f"{begun}-{number}.db"
            if begun:
                shutil.copy(old, path)
            new = book(count=6, tag=2.0)
            killed = forked(path, new, 2, kill_at=number)
            found = look(path)
            whole_run(path, new, 2)
            print(json.dumps({"begun": begun, "killed": killed, "found": found, "after": look(path)}), flush=True)
            number += 1


def at_moments(folder: Path, seed: int, rounds: int) -> None:
    random_ = random.Random(seed)
    path = folder / "state.db"
    began = time.monotonic()
    whole_run(path, book(count=300, tag=0.0), 0)
    reach = time.monotonic() - began
    for tag in range(1, rounds + 1):
        killed = forked(path, book(count=300 + tag % 3, tag=tag), tag, after=random_.uniform(0, reach))
        found = look(path)
        print(json.dumps({"tag": tag, "killed": killed, "found": found}), flush=True)
        # However busy the machine is, about every other save is reached.
        reach *= 0.7 if found["tags"] == [float(tag)] else 1.5


if __name__ == "__main__":
    base = Path(sys.argv[1])
    if sys.argv[2] == "statement":
        at_statements(base)
    else:
        at_moments(base, int(sys.argv[3]), int(sys.argv[4]))
