"""What can be wrong with the file: each gives a clear error, or a Gap where the run can go on."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpuwatch.facts.model.telemetry import GapKind
from gpuwatch.facts.model.workload_profile import ProfileBook
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.database import SCHEMA, move_aside
from gpuwatch.sources.store.store import Store
from store.values import T0, advice, book, outcome, profile, without_options

NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a book, and advice that was applied."""
    path = tmp_path / "state.db"
    with Store.open(path) as store:
        store.save_book(book(count=12))
        store.record_advice([advice()])
        store.record_outcomes([outcome(advice(), applied_at=T0)])
    return path


def _loaded(path: Path) -> ProfileBook | None:
    with Store.open(path) as store:
        found, gaps = store.load_book()
    assert gaps == ()
    return found


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="this is a folder; name a file"):
        Store.open(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no-such/state\.db: there is no folder .*no-such; make it"):
        Store.open(tmp_path / "no-such" / "state.db")


def test_below_a_file(path: Path) -> None:
    with pytest.raises(StoreError, match="name another file"):
        Store.open(path / "state.db")


def test_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="not a regular file"):
        Store.open(tmp_path / "pipe")


def test_no_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        Store.open(tmp_path / "a\x00b")


def test_an_empty_file_is_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "state.db").touch()
    assert _loaded(tmp_path / "state.db") is None


def test_a_link_is_followed(tmp_path: Path, path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    assert _loaded(tmp_path / "link") == book(count=12)


def test_a_database_of_another_program_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE precious (thing)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"other\.db: a database of another program, left as it is"):
        Store.open(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["other.db"]


@pytest.mark.parametrize(("schema", "which"), [(SCHEMA + 1, "a newer"), (SCHEMA - 1, "an older")])
def test_another_schema_is_refused_and_not_touched(path: Path, schema: int, which: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {schema}")
        db.execute("DROP TABLE advice_body")
    before = path.read_bytes()
    said = rf"written by {which} gpuwatch \(schema {schema}, this one knows only {SCHEMA}\).*use that version"
    with pytest.raises(StoreError, match=said):
        Store.open(path)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == ["state.db"]


@contextmanager
def _as_nobody() -> Iterator[None]:
    """Root may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_read_only(path: Path, what: str) -> None:
    # Not below pytest's own folder, which is closed to others.
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "state.db"
        shutil.copy(path, copy)
        copy.chmod(0o444 if what == "file" else 0o666)
        Path(folder).chmod(0o777 if what == "file" else 0o555)
        at_fault = copy if what == "file" else folder
        with _as_nobody(), pytest.raises(StoreError, match=rf"{at_fault} is read-only for this user; make file and"):
            Store.open(copy)
        copy.chmod(0o666)
        Path(folder).chmod(0o777)
        with _as_nobody():
            assert _loaded(copy) == book(count=12)


def test_turned_read_only_while_open(path: Path) -> None:
    with Store.open(path) as store:
        store._db.execute("PRAGMA query_only = 1")
        with pytest.raises(StoreError, match=r"state\.db: writing profiles: the file or its folder is read-only"):
            store.save_book(book(tag=2.0))


def test_disk_full(path: Path) -> None:
    with Store.open(path) as store:
        store._db.execute(f"PRAGMA max_page_count = {path.stat().st_size // 4096 + 4}").fetchone()
        for write in (
            lambda: store.save_book(book(count=200, tag=2.0)),
            lambda: store.record_advice([advice(profile(each).key) for each in range(200)]),
        ):
            with pytest.raises(StoreError, match=r"the disk is full; the state of the last run is whole\. Make room"):
                write()
        assert store.load_book() == (book(count=12), ())
        assert len(store.advice_given()) == 1
        store._db.execute("PRAGMA max_page_count = 100000").fetchone()
        store.save_book(book(count=200, tag=2.0))
    assert _loaded(path) == book(count=200, tag=2.0)


FILE_SIZE_LIMITED = """
import resource, signal, sys
from pathlib import Path
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.store import Store
from store.values import book
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
try:
    with Store.open(path) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 40_000, -1))
        store.save_book(book(count=300, tag=2.0))
except StoreError as error:
    print(error)
"""


def test_writing_fails_in_the_middle(path: Path) -> None:
    """The system refuses a write, as on a disk or a quota that is full."""
    done = subprocess.run(
        [sys.executable, "-c", FILE_SIZE_LIMITED, str(path)],
        env={**os.environ, "PYTHONPATH": "src:tests"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "writing profiles: the disk" in done.stdout
    assert "the state of the last run is whole" in done.stdout
    assert _loaded(path) == book(count=12)


HOLD = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
db.execute("ROLLBACK")
"""


@contextmanager
def _held(path: Path, seconds: float) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), str(seconds)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process.pid
        process.kill()


def test_held_by_another_process(path: Path) -> None:
    with _held(path, 600) as pid, Store.open(path, wait_seconds=0.2) as store:
        assert store.load_book() == (book(count=12), ())
        with pytest.raises(
            StoreError, match=r"state\.db: writing profiles: (process \d+|another process) holds"
        ) as told:
            store.save_book(book(tag=2.0))
        if Path("/proc/locks").exists():
            assert f"process {pid} holds it for more than 0.2 s" in str(told.value)
    assert _loaded(path) == book(count=12)


def test_held_for_a_while(path: Path) -> None:
    with _held(path, 0.5), Store.open(path, wait_seconds=60) as store:
        store.save_book(book(tag=2.0))
    assert _loaded(path) == book(tag=2.0)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"not a database at all", id="text"),
        pytest.param(lambda data: bytes(len(data)), id="zeros"),
        pytest.param(lambda data: data[:100], id="header only"),
        pytest.param(lambda data: data[: len(data) // 2], id="half"),
        pytest.param(lambda data: data[:4096] + bytes(len(data) - 4096), id="first page only"),
        pytest.param(lambda data: data.replace(b"gpu_model TEXT", b"gpu_modem TEXT"), id="another column"),
    ],
)
def test_a_damaged_file_is_moved_aside_and_the_run_goes_on_cold(path: Path, damage: object) -> None:
    assert callable(damage)
    for number in (1, 2):
        damaged = damage(path.read_bytes())
        path.write_bytes(damaged)
        aside = path.with_name(f"state.db.damaged-{number}")
        with Store.open(path) as store:
            found, gaps = store.load_book()
            assert found is None
            assert [(gap.kind, gap.what) for gap in gaps] == [(GapKind.BAD_INPUT, f"state {path}")]
            assert f"moved to {aside}; the new file has no profiles" in gaps[0].detail
            assert store.gaps == gaps
            assert store.advice_given() == ()
            store.save_book(book(count=12))
        assert aside.read_bytes() == damaged
        assert _loaded(path) == book(count=12)


def test_a_log_of_the_damaged_file_goes_with_it(path: Path) -> None:
    log = Path(f"{path}-wal")
    log.write_bytes(b"log")
    aside = move_aside(path, path.stat())
    assert aside is not None
    assert Path(f"{aside}-wal").read_bytes() == b"log"
    assert not log.exists()


@pytest.mark.parametrize("length", [7, 512, 4096, 20_000])
def test_the_log_of_a_damaged_file_is_not_that_of_the_new_one(path: Path, length: int) -> None:
    with Store.open(path) as store:
        store.save_book(book(count=20, tag=2.0))
        copy = path.with_name("copy.db")
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    copy.write_bytes(b"?" * length)
    with Store.open(copy) as store:
        found, gaps = store.load_book()
        # What the log has of every page is the file.
        assert (found, gaps) == (book(count=20, tag=2.0), ()) or (found is None and len(gaps) == 1)
        store.save_book(book(count=3, tag=3.0))
    assert _loaded(copy) == book(count=3, tag=3.0)


def test_a_log_that_was_cut_off_gives_the_book_before_or_after(path: Path) -> None:
    """The machine lost power: any part of the log may be on the disk."""
    with Store.open(path) as store:
        store.save_book(book(count=12, tag=2.0))
        store.save_book(book(count=15, tag=3.0))
        main, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    random_ = random.Random(5)
    seen: set[int] = set()
    copy = path.with_name("copy.db")
    for _ in range(40):
        copy.write_bytes(main)
        Path(f"{copy}-wal").write_bytes(log[: random_.randrange(len(log) + 1)])
        Path(f"{copy}-shm").unlink(missing_ok=True)
        found = _loaded(copy)
        whole = [book(count=12), book(count=12, tag=2.0), book(count=15, tag=3.0)]
        assert found in whole
        seen.add(whole.index(found))
    assert len(seen) > 1


def test_damage_anywhere_is_found_and_nothing_false_is_read(path: Path) -> None:
    """Random bytes over a random stretch: whatever is read after is as it was written, and what is missing is told."""
    whole = book(count=12)
    data = path.read_bytes()
    random_ = random.Random(11)
    happened: Counter[str] = Counter()
    for number in range(150):
        copy = path.with_name(f"copy-{number}.db")
        start = random_.randrange(len(data))
        length = random_.choice((1, 1, 8, 300, 5000))
        copy.write_bytes(data[:start] + random_.randbytes(min(length, len(data) - start)) + data[start + length :])
        try:
            with Store.open(copy) as store:
                found, gaps = store.load_book()
                if found is None:
                    happened["cold"] += 1
                    assert gaps
                else:
                    lost = set(whole.profiles) - set(found.profiles)
                    hours = len(whole.usage) - len(found.usage)
                    happened["whole" if found == whole else "in part"] += 1
                    assert all(whole.profiles.get(key) == each for key, each in found.profiles.items())
                    assert all(each in whole.usage for each in found.usage)
                    assert (found.until, found.step_seconds) == (whole.until, whole.step_seconds)
                    assert found.power in (whole.power, {})
                    assert found.envelopes in (whole.envelopes, {})
                    assert len(gaps) >= len(lost) + hours
                    assert store.advice_given() in ((without_options(advice()),), ())
                store.save_book(book(count=5, tag=2.0))
                assert store.load_book()[0] == book(count=5, tag=2.0)
        except StoreError as error:
            happened["refused"] += 1
            assert str(copy) in str(error)
    assert {"cold", "whole", "in part"} <= happened.keys()
    # Bytes that say that the file is another's.
    assert happened["refused"] < 15


def test_a_new_file_is_not_moved_by_who_saw_the_old_one_damaged(path: Path) -> None:
    path.write_bytes(b"damaged")
    seen = path.stat()
    with Store.open(path) as store:  # another process was faster
        store.save_book(book(until=T0))
    assert move_aside(path, seen) is None
    assert _loaded(path) == book(until=T0)
    path.unlink()
    assert move_aside(path, seen) is None
