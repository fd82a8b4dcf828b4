"""The election on a cluster in memory with clocks that the test moves; tests/e2e has it on a real one."""

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuwatch.app.controller.leader import Election, NotLeadingError
from gpuwatch.facts.model.remediation import ObjectRef
from gpuwatch.sources.kube.writer import Failure, WriteError
from kube.memory_cluster import MemoryCluster
from parts.processes import wait_until

LEASE = ObjectRef("coordination.k8s.io/v1", "Lease", "gpuwatch", "gpuwatch")
NODE = ObjectRef("v1", "Node", "gpu-0")
LEASE_SECONDS = 15


@dataclass
class Clock:
    """Of one replica. `seconds` is monotonic; the wall clock may be off."""

    seconds: float = 1000.0
    off: timedelta = field(default_factory=timedelta)

    def monotonic(self) -> float:
        return self.seconds

    def wall(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds) + self.off


def election(cluster: MemoryCluster, identity: str, clock: Clock, **options: Any) -> Election:
    writer = cluster.writer(**options)
    return Election(
        writer, "gpuwatch", identity, lease_duration_seconds=LEASE_SECONDS,
        wall=clock.wall, monotonic=clock.monotonic,
    )  # fmt: skip


def pair() -> tuple[MemoryCluster, Clock, Election, Election]:
    """Two replicas with one clock. The first one leads, and the second one knows it."""
    cluster, clock = MemoryCluster([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-0"}}]), Clock()
    one, two = election(cluster, "one", clock), election(cluster, "two", clock)
    assert one.attempt()
    assert not two.attempt()
    return cluster, clock, one, two


def holder(cluster: MemoryCluster) -> str:
    found = cluster.get(LEASE)
    assert found is not None
    return str(found["spec"].get("holderIdentity", ""))


def test_the_first_leads_and_the_second_waits() -> None:
    _, _, one, two = pair()
    assert (one.leads, two.leads, two.holder) == (True, False, "one")
    one.check_lease()
    with pytest.raises(NotLeadingError, match="two does not lead; one does"):
        two.check_lease()


@pytest.mark.parametrize("off_hours", [-5, 0, 5])
def test_the_other_takes_over_after_the_whole_duration_and_not_before_whatever_the_wall_clocks(off_hours: int) -> None:
    cluster = MemoryCluster()
    mine, theirs = Clock(), Clock(off=timedelta(hours=off_hours))
    one, two = election(cluster, "one", mine), election(cluster, "two", theirs)
    assert one.attempt()
    assert not two.attempt()
    theirs.seconds += LEASE_SECONDS - 0.1
    assert not two.attempt()
    theirs.seconds += 0.1
    assert two.attempt()
    assert holder(cluster) == "two"


def test_a_leader_that_cannot_renew_stops_writing_before_anybody_may_take_over() -> None:
    cluster, clock = MemoryCluster(), Clock()
    one = election(cluster, "one", clock)
    assert one.attempt()
    clock.seconds += LEASE_SECONDS * 2 / 3 - 0.1
    one.check_lease()
    clock.seconds += 0.1
    with pytest.raises(NotLeadingError):
        one.check_lease()
    assert one.attempt()  # nobody took it meanwhile
    one.check_lease()


def test_renewals_keep_the_other_away() -> None:
    _, clock, one, two = pair()
    for _ in range(20):
        assert one.attempt()
        assert not two.attempt()
        clock.seconds += 2


def test_the_time_that_a_renewal_takes_counts_against_the_leader() -> None:
    clock = Clock()

    def slow(verb: str, what: str, done: bool) -> None:
        clock.seconds += 4 if done else 0

    cluster = MemoryCluster()
    one = election(cluster, "one", clock, interfere=slow)
    assert one.attempt()
    clock.seconds += LEASE_SECONDS * 2 / 3 - 4
    assert not one.leads


def test_a_process_that_slept_through_its_lease_is_stopped_though_its_clock_stood_still() -> None:
    cluster, asleep, awake = MemoryCluster(), Clock(), Clock()
    one, two = election(cluster, "one", asleep), election(cluster, "two", awake)
    assert one.attempt()
    assert not two.attempt()
    awake.seconds += LEASE_SECONDS
    assert two.attempt()
    assert one.leads  # as far as its own clock tells
    with pytest.raises(NotLeadingError, match="two holds the Lease"):
        one.check_lease()
    assert not one.leads


def test_the_lease_check_stops_a_write_before_it_is_sent() -> None:
    cluster, _, one, two = pair()
    patch = {"metadata": {"annotations": {"by": "two"}}}
    with pytest.raises(NotLeadingError):
        cluster.writer(lease_check=two.check_lease).patch(NODE, patch)
    node = cluster.get(NODE)
    assert node is not None
    assert "annotations" not in node["metadata"]
    cluster.writer(lease_check=one.check_lease).patch(NODE, {"metadata": {"annotations": {"by": "one"}}})


def test_a_lease_check_that_cannot_be_read_stops_too() -> None:
    cluster, clock = MemoryCluster(), Clock()
    allowed = True
    one = election(cluster, "one", clock, may=lambda verb, resource: allowed)
    assert one.attempt()
    allowed = False
    with pytest.raises(NotLeadingError, match="could not be read"):
        one.check_lease()


def test_of_two_that_take_over_at_once_one_gets_it() -> None:
    cluster, clock = MemoryCluster(), Clock()
    one = election(cluster, "one", clock)
    assert one.attempt()
    three = election(cluster, "three", clock)

    def faster(verb: str, what: str, done: bool) -> None:
        if verb == "patch" and not done:
            assert three.attempt()

    two = election(cluster, "two", clock, interfere=faster)
    assert not two.attempt()
    assert not three.attempt()
    clock.seconds += LEASE_SECONDS
    assert not two.attempt()
    assert holder(cluster) == "three"


def test_a_leader_whose_renewal_comes_too_late_knows_who_leads_instead() -> None:
    """As a process that was suspended between its read of the Lease and its write."""
    cluster, clock = MemoryCluster(), Clock()
    two = election(cluster, "two", clock)

    def suspended(verb: str, what: str, done: bool) -> None:
        if verb == "patch" and not done:
            two.attempt()
            clock.seconds += LEASE_SECONDS
            assert two.attempt()

    one = election(cluster, "one", clock, interfere=suspended)
    assert one.attempt()
    assert not one.attempt()
    assert one.holder == "two"


def test_a_lease_that_is_given_back_is_taken_at_once() -> None:
    cluster, _, one, two = pair()
    one.release()
    assert not one.leads
    assert two.attempt()
    lease = cluster.get(LEASE)
    assert lease is not None
    assert lease["spec"]["leaseTransitions"] == 1
    one.release()  # of somebody else's nothing is given back
    assert holder(cluster) == "two"


def test_a_renewal_of_unknown_fate_neither_gives_nor_takes_time() -> None:
    cluster, clock = MemoryCluster(), Clock()
    broken = False

    def interfere(verb: str, what: str, done: bool) -> None:
        if broken and done:
            raise WriteError(Failure.UNSURE, "no answer")

    one = election(cluster, "one", clock, interfere=interfere)
    assert one.attempt()
    broken = True
    clock.seconds += 5
    with pytest.raises(WriteError):
        one.attempt()
    assert one.leads
    clock.seconds += 5
    assert not one.leads


def test_the_loop_takes_the_lease_and_ends_when_told() -> None:
    cluster, clock = MemoryCluster(), Clock()
    one = election(cluster, "one", clock)
    stop = threading.Event()
    thread = threading.Thread(target=one.run, args=(stop,))
    thread.start()
    try:
        wait_until(lambda: one.leads, lambda: "it does not lead", 5)
    finally:
        stop.set()
        thread.join(10)
    assert not thread.is_alive()
