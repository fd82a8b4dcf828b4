"""What can be wrong with the file of the state: each gives a clear error, or a Gap where the run can go on."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpuwatch.facts.model.telemetry import GapKind
from gpuwatch.facts.model.workload_profile import ProfileBook
from gpuwatch.sources.store import SCHEMA, StoreError
from gpuwatch.sources.store.store import Store
from store.values import advice, book

NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a book and advice."""
    path = tmp_path / "gpuwatch.state"
    store = Store.open(path)
    store.save_book(book(count=12))
    store.record_advice([advice()])
    return path


def loaded(path: Path) -> ProfileBook | None:
    found, gaps = Store.open(path).load_book()
    assert gaps == ()
    return found


class TestWhere:
    @pytest.mark.parametrize(
        ("name", "said"),
        [
            (".", "has to be a regular file, and this is none; name a file"),
            ("pipe", "has to be a regular file"),
            ("no-such/state", r"no-such/state: there is no folder .*no-such; make it"),
            ("gpuwatch.state/state", "name another file"),
            ("a\x00b", "cannot be opened"),
        ],
    )
    def test_no_place_for_a_file(self, path: Path, name: str, said: str) -> None:
        os.mkfifo(path.with_name("pipe"))
        with pytest.raises(StoreError, match=said):
            Store.open(path.parent / name)

    def test_an_empty_file_is_a_new_one(self, tmp_path: Path) -> None:
        (tmp_path / "state").touch()
        assert loaded(tmp_path / "state") is None

    def test_a_link_is_followed_and_stays_one(self, tmp_path: Path, path: Path) -> None:
        (tmp_path / "link").symlink_to(path)
        Store.open(tmp_path / "link").save_book(book(count=3))
        assert loaded(path) == book(count=3)
        assert (tmp_path / "link").is_symlink()

    def test_its_mode_stays(self, path: Path) -> None:
        path.chmod(0o640)
        Store.open(path).save_book(book())
        assert stat.S_IMODE(path.stat().st_mode) == 0o640


FOREIGN: dict[str, tuple[Callable[[Path], object], str]] = {
    "SQLite, of an older gpuwatch": (lambda path: path.write_bytes(b"SQLite format 3\0"), "no state of gpuwatch, left"),
    "settings": (lambda path: path.write_text("plan: {}\n"), "no state of gpuwatch, left as it is; name another file"),
    "a newer schema": (
        lambda path: path.write_text(f"gpuwatch state {SCHEMA + 1} 10 {'0' * 32}\n"),
        rf"written by a newer gpuwatch \(schema {SCHEMA + 1}, this one knows only {SCHEMA}\).*use that version",
    ),
}


@pytest.mark.parametrize("of", FOREIGN)
def test_what_is_no_state_of_this_version_is_left_as_it_is(tmp_path: Path, of: str) -> None:
    path = tmp_path / "state"
    make, words = FOREIGN[of]
    make(path)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=words) as told:
        Store.open(path)
    assert str(path) in str(told.value)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["state"]


@contextmanager
def as_nobody() -> Iterator[None]:
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
        copy = Path(folder) / "state"
        shutil.copy(path, copy)
        copy.chmod(0o444 if what == "file" else 0o666)
        Path(folder).chmod(0o777 if what == "file" else 0o555)
        at_fault = copy if what == "file" else folder
        with as_nobody(), pytest.raises(StoreError, match=rf"{at_fault} is read-only for this user; make file and"):
            Store.open(copy)
        copy.chmod(0o666)
        Path(folder).chmod(0o777)
        with as_nobody():
            store = Store.open(copy)
        Path(folder).chmod(0o555)
        with (
            as_nobody(),
            pytest.raises(StoreError, match=r"ing the state: .*; the file or its folder is read-only"),
        ):
            store.save_book(book(tag=2.0))
        Path(folder).chmod(0o777)
        assert loaded(copy) == book(count=12)


FILE_SIZE_LIMITED = """
import resource, signal, sys
from pathlib import Path
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.store import Store
from store.values import book
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
store = Store.open(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    store.save_book(book(count=300, tag=2.0))
except StoreError as error:
    print(error)
assert store.load_book() == (book(count=12), ())
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
store.save_book(book(count=13))
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
    assert (
        f"{path}: writing the state: the file may not be so large; the state of the last save is whole" in done.stdout
    )
    assert loaded(path) == book(count=13)
    assert not list(path.parent.glob("*.part"))


def test_a_full_disk_is_said(path: Path, tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full")
    path.with_name(f".{path.name}.part").symlink_to(full)
    with pytest.raises(StoreError, match=r"the disk is full; the state of the last save is whole\. Make room"):
        Store.open(path).save_book(book(tag=2.0))
    assert loaded(path) == book(count=12)
    Store.open(path).save_book(book(tag=2.0))
    assert loaded(path) == book(tag=2.0)


HOLD = """
import sys, time
from pathlib import Path
from gpuwatch.sources.store.state_file import StateFile
with StateFile(Path(sys.argv[1])).locked():
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@contextmanager
def held(path: Path, seconds: float) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), str(seconds)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process.pid
        process.kill()


def test_held_by_another_process(path: Path) -> None:
    with held(path, 600) as pid:
        store = Store.open(path, wait_seconds=0.2)
        assert store.load_book() == (book(count=12), ())
        with pytest.raises(StoreError, match=f"process {pid} holds it for more than 0.2 s; wait for it or end it"):
            store.save_book(book(tag=2.0))
    # Its lock ends with it.
    Store.open(path, wait_seconds=0.2).save_book(book(tag=2.0))
    assert loaded(path) == book(tag=2.0)


def test_held_for_a_while(path: Path) -> None:
    with held(path, 0.5):
        Store.open(path, wait_seconds=60).save_book(book(tag=2.0))
    assert loaded(path) == book(tag=2.0)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: bytes(len(data)), id="zeros"),
        pytest.param(lambda data: data[:20], id="a part of the first line"),
        pytest.param(lambda data: data[:100], id="the first line and a part of the index"),
        pytest.param(lambda data: data[:-1], id="all but the last byte"),
        pytest.param(lambda data: data.replace(b"profile-", b"profite-"), id="another name in the index"),
        pytest.param(lambda data: data.replace(b"state 5 ", b"state 5x"), id="another first line"),
    ],
)
def test_a_file_that_is_damaged_as_a_whole_is_moved_aside_and_the_run_goes_on_cold(
    path: Path, damage: Callable[[bytes], bytes]
) -> None:
    for number in (1, 2):
        damaged = damage(path.read_bytes())
        path.write_bytes(damaged)
        aside = path.with_name(f"{path.name}.damaged-{number}")
        store = Store.open(path)
        found, gaps = store.load_book()
        assert found is None
        assert [(gap.kind, gap.what) for gap in gaps] == [(GapKind.BAD_INPUT, f"state {path}")]
        assert f"moved to {aside}; the new file has no profiles" in gaps[0].detail
        assert store.gaps == gaps
        assert store.advice_given() == ()
        assert str(aside) in store.load_faults().unread
        store.save_book(book(count=12))
        assert aside.read_bytes() == damaged
        assert loaded(path) == book(count=12)
