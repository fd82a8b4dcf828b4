"""Known faults in a file and in the cluster: whole or as before, whatever line the process ends at."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given

from gpuwatch.facts.model.decision import Evidence, FindingKind
from gpuwatch.facts.model.faults import FaultMemory, Holding, KnownFault, Repair, RepairKind
from gpuwatch.sources.store.checkpoints import FAULTS, store_in_cluster
from gpuwatch.sources.store.codec import decode, encode, row
from gpuwatch.sources.store.store import Store
from kube.memory_cluster import MemoryCluster
from store.test_checkpoints import NAMESPACE, Killed, loaded, saved
from store.values import T0, any_of, book

FAULT = KnownFault(
    uuid="GPU-1",
    kind=FindingKind.XID,
    code=79,
    node="node-1",
    slot="00000000:18:00.0",
    boot_id="one",
    since=T0,
    last_at=T0,
    seen_at=T0,
    energy_joules=9e8,
    bursts=(T0,),
    repairs=(Repair(kind=RepairKind.REBOOT, at=T0 + timedelta(hours=1)),),
    holdings=(Holding(at=T0, workload="workload/Job/ns/a", program=("ns/a",)),),
    evidence=(Evidence(signal="xid_code", value=79.0, at=T0),),
)


def memory(count: int = 3, *, code: int = 79) -> FaultMemory:
    return FaultMemory(faults=tuple(replace(FAULT, uuid=f"GPU-{number}", code=code) for number in range(count)))


def by_key(found: FaultMemory) -> FaultMemory:
    return replace(found, faults=tuple(sorted(found.faults, key=lambda each: each.key)))


def in_file(path: Path) -> Callable[[], AbstractContextManager[Store]]:
    return lambda: Store.open(path)


def in_cluster(cluster: MemoryCluster) -> Callable[[], AbstractContextManager[Store]]:
    return lambda: store_in_cluster(cluster, NAMESPACE, state=FAULTS)


@pytest.mark.parametrize("place", ["file", "cluster"])
def test_what_is_saved_is_what_the_next_process_loads(place: str, tmp_path: Path) -> None:
    opened = in_file(tmp_path / "state.sqlite") if place == "file" else in_cluster(MemoryCluster())
    for each in (FaultMemory(), memory(3), memory(5, code=48), memory(1)):
        with opened() as store:
            store.save_faults(each)
        with opened() as store:
            assert by_key(store.load_faults()) == each


@given(any_of(KnownFault))
def test_every_fault_can_be_stored(fault: KnownFault) -> None:
    assert decode(row(*encode(fault)), KnownFault) == fault


def test_profiles_and_faults_do_not_disturb_each_other() -> None:
    """A cycle stores a fault while the job of the profiles has its Store open."""
    cluster = MemoryCluster()
    saved(cluster, book(count=5))
    with store_in_cluster(cluster, NAMESPACE) as profiles:
        profiles.load_book()
        with in_cluster(cluster)() as store:
            store.save_faults(memory())
        profiles.save_book(book(count=6))
    assert loaded(cluster) == book(count=6)
    with in_cluster(cluster)() as store:
        assert by_key(store.load_faults()) == memory()


def test_killed_at_any_line_nothing_is_lost() -> None:
    seen = set()
    for at in range(30):
        cluster, left = MemoryCluster(), at
        with in_cluster(cluster)() as store:
            store.save_faults(memory(3))

        def end(verb: str, what: str, after: bool) -> None:
            nonlocal left
            if not after:
                if not left:
                    raise Killed
                left -= 1

        with (
            contextlib.suppress(Killed),
            store_in_cluster(cluster.writer(interfere=end), NAMESPACE, state=FAULTS) as store,
        ):
            store.save_faults(memory(4))
        with in_cluster(cluster)() as store:
            found = by_key(store.load_faults())
        assert found in (memory(3), memory(4))
        seen.add(len(found.faults))
        if left:
            break
    assert seen == {3, 4}


def test_a_damaged_fault_is_said_and_its_end_is_not_concluded(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    with Store.open(path) as store:
        store.save_faults(memory(2))
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE fault SET body = x'00' WHERE uuid = 'GPU-0'")
        db.commit()
    with Store.open(path) as store:
        found = store.load_faults()
    assert [each.uuid for each in found.faults] == ["GPU-1"]
    assert "unreadable in" in found.unread
    assert "restart gpuwatch" in found.unread
