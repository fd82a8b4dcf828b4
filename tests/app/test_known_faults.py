"""What the controller knows of faults outlives the exporter's window, Prometheus' retention and the process."""

import contextlib
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from app.commands import document, gpuwatch
from detect.builders import AT
from detect.test_fault_memory import HOUR, moved, quiet, raised
from gpuwatch.act.analysis import Policies, assess
from gpuwatch.app.controller.look import KnownFaults
from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.controller.replica import Replica, Writers
from gpuwatch.app.settings import Settings
from gpuwatch.app.settings.run_policy import ControllerPolicy
from gpuwatch.app.sources import Opened
from gpuwatch.facts.model.decision import Snapshot, Verdict
from gpuwatch.facts.model.faults import FaultMemory
from gpuwatch.sources.collect.snapshot_file import save_snapshot
from gpuwatch.sources.kube.writer import ClusterWriter
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.checkpoints import FAULTS
from gpuwatch.sources.store.store import Store
from kube.memory_cluster import MemoryCluster
from store.places import InFile, Killed

MINUTE = timedelta(minutes=1)


def process(folder: Path, cluster: ClusterWriter | None) -> KnownFaults:
    opened = Opened(Settings(run=ControllerPolicy(folder=folder)), Policies(), None, None, None, AT, "a test")
    writers = None if cluster is None else Writers(plain=cluster, rehearsal=cluster)
    replica = Replica({}, opened, writers, None, Metrics(), threading.Event())
    return KnownFaults(lambda: replica.store(FAULTS))


def cycle(process: KnownFaults, snapshot: Snapshot, term: int = 0) -> FaultMemory:
    opened = Opened(Settings(), Policies(), None, None, None, AT, "a test")
    return process.with_snapshot(snapshot, opened, term)


def verdict(snapshot: Snapshot, memory: FaultMemory) -> Verdict:
    found = assess(snapshot, Policies(), everything=True, faults=memory)
    [finding] = [item for item in found if item.id == "xid:device/gpu-0"]
    return finding.verdict


@pytest.mark.parametrize("place", ["file", "cluster"])
def test_a_restart_forgets_nothing(place: str, tmp_path: Path) -> None:
    cluster = MemoryCluster() if place == "cluster" else None
    cycle(process(tmp_path, cluster), raised(79))
    later = quiet(by=5 * HOUR)
    assert verdict(later, cycle(process(tmp_path, cluster), later)) is Verdict.DEGRADED
    repaired = quiet(by=6 * HOUR, boot="two")
    assert verdict(repaired, cycle(process(tmp_path, cluster), repaired)) is Verdict.HEALTHY
    after = quiet(by=7 * HOUR, boot="two")
    assert verdict(after, cycle(process(tmp_path, cluster), after)) is Verdict.HEALTHY


def test_a_command_counts_what_the_controllers_file_remembers(tmp_path: Path) -> None:
    def xids(*more: str | Path) -> list[tuple[str, str]]:
        findings = document("analyze", "--telemetry", moment, *more)["findings"]
        found = [item for item in findings if item["kind"] == "xid"]
        return [(item["subject"]["name"], item["verdict"]) for item in found]

    def explained(*more: str | Path) -> str:
        result = gpuwatch("explain", "device/gpu-0", "--telemetry", moment, *more)
        assert result.exit_code == 0, result.stderr
        return " ".join(result.stdout.split())

    cycle(process(tmp_path, None), raised(79))
    kept, moment = tmp_path / "gpuwatch.state", tmp_path / "later.snapshot"
    with Store.open(kept) as store:
        before = store.load_faults()
    save_snapshot(quiet(by=5 * HOUR), moment)
    assert xids() == []
    assert xids("--state", tmp_path / "none.state") == []
    assert not (tmp_path / "none.state").exists()
    assert xids("--state", kept) == [("gpu-0", "degraded")]
    assert "a single run remembers none from before it" in explained("-o", "wide")
    assert "a single run" not in explained("--state", kept)
    assert "XID 79" in explained("--state", kept)
    # What came later than the moment is not known in it.
    save_snapshot(quiet(by=-5 * HOUR), moment)
    assert xids("--state", kept) == []
    with Store.open(kept) as store:
        assert store.load_faults() == before


def test_killed_at_any_line_nothing_is_lost(tmp_path: Path) -> None:
    """The next process looks a minute later, and Prometheus still shows what the last one saw."""
    killed = 0
    for at in range(30):
        cluster, left = MemoryCluster(), at

        def end(verb: str, what: str, after: bool) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        with contextlib.suppress(Killed):
            cycle(process(tmp_path, cluster.writer(interfere=end)), raised(79))
        cycle(process(tmp_path, cluster), moved(raised(79, at=AT - 11 * MINUTE), MINUTE))
        later = quiet(by=5 * HOUR)
        assert verdict(later, cycle(process(tmp_path, cluster), later)) is Verdict.DEGRADED
        if left >= 0:
            break
        killed += 1
    assert killed > 3


def test_where_nothing_happens_nothing_is_written(tmp_path: Path) -> None:
    writes: list[str] = []
    cluster = MemoryCluster()
    known_faults = process(
        tmp_path, cluster.writer(interfere=lambda verb, what, done: writes.append(verb) if done else None)
    )
    cycle(known_faults, quiet())
    assert [verb for verb in writes if verb != "get"] == []
    cycle(known_faults, moved(raised(79), MINUTE))
    assert [verb for verb in writes if verb != "get"]
    writes.clear()
    for minute in range(2, 5):
        cycle(known_faults, quiet(by=minute * MINUTE))
    assert writes == []


def test_while_the_store_does_not_answer_no_gpu_is_found_healthy(tmp_path: Path) -> None:
    cluster = MemoryCluster()
    cycle(process(tmp_path, cluster), raised(79))
    known_faults = process(tmp_path / "missing" / "folder", cluster)
    answers = False

    def fails(*_: object, **__: object) -> object:
        if not answers:
            raise StoreError("the API server does not answer")
        return original()

    original = known_faults._store
    known_faults._store = fails  # type: ignore[assignment]
    snapshot = quiet(by=HOUR)
    unread = cycle(known_faults, snapshot)
    assert "the API server does not answer" in unread.unread
    assert verdict(snapshot, unread) is Verdict.UNKNOWN
    answers = True
    known = cycle(known_faults, quiet(by=HOUR + MINUTE))
    assert known.unread == ""
    assert verdict(quiet(by=HOUR + MINUTE), known) is Verdict.DEGRADED


def test_what_is_damaged_is_said_until_a_restart_goes_on_without_it(tmp_path: Path) -> None:
    cycle(process(tmp_path, None), raised(79))
    kept = InFile(tmp_path / "gpuwatch.state")
    (piece,) = (name for name in kept.pieces() if name.startswith("fault-"))
    kept.spoil(piece, lambda body: body[::-1])
    known_faults = process(tmp_path, None)
    for minute in range(2):
        snapshot = quiet(by=HOUR + minute * MINUTE)
        assert verdict(snapshot, cycle(known_faults, snapshot)) is Verdict.UNKNOWN
    snapshot = quiet(by=2 * HOUR)
    assert verdict(snapshot, cycle(process(tmp_path, None), snapshot)) is Verdict.HEALTHY


def test_another_leader_in_between_is_believed(tmp_path: Path) -> None:
    """What it stored while this replica stood by is read again."""
    cluster = MemoryCluster()
    first = process(tmp_path, cluster)
    cycle(first, quiet())
    cycle(process(tmp_path, cluster), raised(79))
    later = quiet(by=2 * HOUR)
    assert verdict(later, cycle(first, later, term=1)) is Verdict.DEGRADED
