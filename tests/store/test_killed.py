"""A process that is killed loses nothing that was kept, and repeats nothing; two at once do not mix."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.sources.store.store import Store
from store.values import advice, book, key, tags


def _lines(*arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("kill_saving.py")), *arguments],
        env={**os.environ, "PYTHONPATH": "src:tests"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_killed_at_each_line_that_writes(tmp_path: Path) -> None:
    lines = _lines(str(tmp_path))
    assert sum(line["killed"] for line in lines) > 40
    seen: set[tuple[int, ...]] = set()
    for line in lines:
        found = line["found"]
        old = ([1.0], 8) if line["begun"] else ([], 0)
        assert (found["tags"], found["profiles"]) in (old, ([2.0], 6)), line
        assert found["gaps"] == []
        # Advice of a run is kept whole or not at all, and not before its book.
        before = [1] if line["begun"] else []
        assert found["advice"] in (before, [*before, 2])
        assert found["advice_rows"] == 3 * len(found["advice"])
        if found["advice"][-1:] == [2]:
            assert found["tags"] == [2.0]
        assert found["outcomes"] in {3 * len(before), found["advice_rows"]}
        seen.add((line["begun"], *found["tags"], found["advice_rows"], found["outcomes"]))
        # The run after it: everything once.
        assert line["after"] == {
            "gaps": [],
            "tags": [2.0],
            "profiles": 6,
            "advice": [*before, 2],
            "advice_rows": 3 * len(before) + 3,
            "given": [*before, 2],
            "outcomes": 3 * len(before) + 3,
        }
    # Without a file and with one: nothing yet, the book alone, the advice too, all.
    assert len(seen) == 8


SAVE_OFTEN = """
import sys
from pathlib import Path
from gpuwatch.sources.store.store import Store
from store.values import T0, HOUR, advice, book, key
path, first = Path(sys.argv[1]), int(sys.argv[2])
for tag in range(first, first + 30, 2):
    with Store.open(path) as store:
        found, gaps = store.load_book()
        assert gaps == ()
        store.save_book(book(count=20 + tag, tag=tag))
        store.record_advice([advice(key(number), T0 + tag * HOUR) for number in range(5)])
"""


def test_two_processes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "state"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", SAVE_OFTEN, str(path), str(first)],
            env={**os.environ, "PYTHONPATH": "src:tests"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for first in (1, 2)
    ]
    seen: set[float] = set()
    while any(process.poll() is None for process in both):
        if path.exists():
            with Store.open(path) as store:
                found, gaps = store.load_book()
            assert gaps == ()
            if found is not None:
                (tag,) = tags(found)
                assert len(found.profiles) == 20 + tag
                seen.add(tag)
        time.sleep(0.01)
    for process in both:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    # Whether a look fell between the saves of each is chance; that every look saw a whole book is not.
    assert seen
    with Store.open(path) as store:
        found, gaps = store.load_book()
        assert gaps == ()
        assert found is not None
        (tag,) = tags(found)
        assert tag in {29.0, 30.0}
        assert found == book(count=20 + int(tag), tag=tag)
        # The same advice by both, once; whoever came first.
        assert {each.key for each in store.advice_given()} == {key(number) for number in range(5)}
        assert {each.chosen.target for each in store.advice_given()} == {advice().chosen.target}


@pytest.mark.parametrize("damaged", [False, True], ids=["new", "damaged"])
def test_many_open_at_once(tmp_path: Path, damaged: bool) -> None:
    """A damaged file that is moved aside by several processes in the same moment: one does it."""
    script = (
        "import sys, time; from pathlib import Path; from gpuwatch.sources.store.store import Store\n"
        "while not Path(sys.argv[2]).exists(): time.sleep(0.001)\n"
        "with Store.open(Path(sys.argv[1])) as store: print(len(store.load_book()[1]))"
    )
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        path, go = folder / "state", folder / "go"
        if damaged:
            path.write_bytes(b"gpuwatch state damaged")
        some = [
            subprocess.Popen([sys.executable, "-c", script, str(path), str(go)], stdout=subprocess.PIPE, text=True)
            for _ in range(4)
        ]
        time.sleep(0.5)
        go.touch()
        told = [process.communicate()[0] for process in some]
        assert sorted(told) == ["0\n"] * 3 + ["1\n" if damaged else "0\n"]
        assert len(list(folder.glob("*.damaged-*"))) == (1 if damaged else 0)
