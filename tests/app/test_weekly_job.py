"""The weekly report is made once and arrives once, whoever makes it: restarts, replicas, receivers that fail."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from deliver.receivers import Webhook, webhook
from gpuwatch.app.controller.leader import Election, NotLeadingError
from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.controller.weekly_job import WeeklyJob
from gpuwatch.app.settings.run_policy import ControllerPolicy
from gpuwatch.facts.model.delivery import DeliveryState, Sending
from gpuwatch.say.deliver import deliver as turns
from gpuwatch.say.deliver.deliver import Sent
from gpuwatch.say.deliver.policy import DeliveryPolicy
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.checkpoints import DELIVERIES
from gpuwatch.sources.store.store import Store
from kube.memory_cluster import MemoryCluster
from store.places import InCluster

# Apprise's mail plug-in imports it on Pythons that still have it.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")

DUE = datetime(2026, 3, 9, 6, tzinfo=UTC)
LATE = timedelta(hours=36)


@pytest.fixture(autouse=True)
def one_attempt_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "ATTEMPTS", 1)


class Replica:
    """One process' part: its own folder, and the Lease that it shares where there is one."""

    def __init__(self, folder: Path, name: str, cluster: MemoryCluster | None = None, **policy: Any) -> None:
        self.folder = folder / name
        self.run = ControllerPolicy(folder=self.folder)
        self.policy = DeliveryPolicy(timeout_seconds=5.0, folder=folder / "shared", **policy)
        self.cluster = cluster
        self.metrics = Metrics()
        self.stopping = threading.Event()
        self.clock = time.monotonic()
        self.election: Election | None = None
        if cluster is not None:
            self.election = Election(
                cluster,
                "gpuwatch",
                name,
                lease_duration_seconds=15,
                monotonic=lambda: self.clock,
            )
        self.made: list[datetime] = []
        self.fault: Exception | None = None
        self.restarted(self.metrics)

    def make(self, end: datetime) -> tuple[Mapping[str, bytes], str]:
        if self.fault is not None:
            raise self.fault
        self.made.append(end)
        # Never twice the same content: what makes it the same report is when it was due.
        return {"report.md": f"{self.folder.name} {len(self.made)} {time.monotonic()}".encode()}, "summary"

    def look(self, now: datetime) -> bool:
        return self.job.look(now, self.run, self.policy, self.make)

    def opened(self) -> Store:
        if self.cluster is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            return Store.open(self.folder / "state")
        return InCluster(self.cluster, DELIVERIES).opened()

    def restarted(self, metrics: Metrics | None = None) -> None:
        self.sent = Sent(self.opened)
        check = self.election.check_lease if self.election is not None else lambda: None
        self.job = WeeklyJob(self.sent, metrics or Metrics(), self.stopping, check)

    def leads(self) -> None:
        assert self.election is not None
        self.clock += 30
        self.election.attempt()
        self.clock += 16
        assert self.election.attempt()
        self.sent.read_again()


def shared(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "shared").iterdir()) if (folder / "shared").exists() else []


def urls(*servers: Webhook) -> tuple[str, ...]:
    return tuple(f"json://{server.address}/" for server in servers)


def two_replicas(folder: Path, *servers: Webhook) -> Iterator[Replica]:
    """Of one cluster; the first leads."""
    cluster = MemoryCluster()
    for name in "ab":
        replica = Replica(folder, name, cluster, urls=urls(*servers))
        if name == "a":
            replica.leads()
        yield replica


def test_it_is_made_when_it_is_due_and_once(tmp_path: Path) -> None:
    one = Replica(tmp_path, "a")
    assert not one.look(DUE - timedelta(seconds=1))
    assert one.look(DUE)
    assert not one.look(DUE + timedelta(seconds=10))
    one.restarted()
    one.look(DUE + timedelta(hours=1))
    assert one.made == [DUE]
    assert len(shared(tmp_path)) == 1
    assert shared(tmp_path)[0].startswith("gpus-from-2026-03-02-to-2026-03-09-")
    assert one.look(DUE + timedelta(days=7))
    assert len(shared(tmp_path)) == 2


def test_one_that_was_missed_is_made_up_within_its_time_and_not_after(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    late = Replica(tmp_path, "late")
    assert not late.look(DUE + LATE)
    with caplog.at_level(logging.INFO, "gpuwatch.say"):
        assert late.look(DUE + LATE - timedelta(seconds=1))
    assert "was due at 2026-03-09 06:00Z was missed, and is made now" in caplog.text
    assert late.made == [DUE]


def test_what_could_not_be_made_is_tried_again_after_a_while(tmp_path: Path) -> None:
    one = Replica(tmp_path, "a")
    one.fault = StoreError("no answer")
    with pytest.raises(StoreError):
        one.look(DUE)
    one.fault = None
    assert not one.look(DUE + timedelta(seconds=10))  # within the minute of this machine's own clock
    one.restarted()
    assert one.look(DUE + timedelta(seconds=70))
    assert one.made == [DUE]


def test_a_receiver_that_fails_gets_it_later_and_the_others_once(tmp_path: Path) -> None:
    with webhook(500) as bad, webhook() as good:
        one = Replica(tmp_path, "a", urls=urls(bad, good))
        assert one.look(DUE)
        assert (len(bad.taken), len(good.taken)) == (0, 1)
        assert one.metrics.registry.get_sample_value("gpuwatch_deliveries_pending", {"content": "report"}) == 1
        assert not one.look(DUE + timedelta(seconds=59))
        assert one.look(DUE + timedelta(seconds=60))
        assert not one.look(DUE + timedelta(seconds=70))
        assert (len(bad.taken), len(good.taken)) == (1, 1)
        assert one.metrics.registry.get_sample_value("gpuwatch_deliveries_pending", {"content": "report"}) == 0
    assert one.made == [DUE]


def test_one_that_never_arrives_is_given_up_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with webhook(*[500] * 40) as bad:
        one = Replica(tmp_path, "a", urls=urls(bad))
        now = DUE
        while now < DUE + LATE + timedelta(hours=1):
            one.look(now)
            now += timedelta(minutes=10)
    tries = len(bad.bodies)
    assert 8 < tries < 40
    assert "did not arrive everywhere in its time" in caplog.text
    assert len(shared(tmp_path)) == 1


def test_a_destination_that_is_none_any_more_is_not_waited_for(tmp_path: Path) -> None:
    with webhook(500) as bad:
        one = Replica(tmp_path, "a", urls=urls(bad))
        one.look(DUE)
        one.policy = replace(one.policy, urls=())
        one.look(DUE + timedelta(seconds=70))
        assert not one.look(DUE + timedelta(seconds=80))
        assert len(bad.bodies) == 1


class TestReplicas:
    def test_another_replica_does_not_make_it_again(self, tmp_path: Path) -> None:
        with webhook() as server:
            one, two = two_replicas(tmp_path, server)
            assert one.look(DUE)
            two.leads()
            assert not two.look(DUE + timedelta(minutes=1))
            assert not two.look(DUE + timedelta(minutes=2))
        assert (one.made, two.made) == ([DUE], [])
        assert len(server.taken) == 1
        (known,) = two.sent.all().values()
        assert (known.at, [item.state for item in known.deliveries]) == (DUE, [DeliveryState.SENT] * 2)

    def test_a_new_leader_sends_it_to_those_that_lack_it(self, tmp_path: Path) -> None:
        with webhook(500) as bad, webhook() as good:
            one, two = two_replicas(tmp_path, good, bad)
            one.look(DUE)
            two.leads()
            assert two.look(DUE + timedelta(minutes=1))
            # The first leads again, and it has read before that one has it not.
            one.leads()
            one.look(DUE + timedelta(hours=2))
            one.look(DUE + timedelta(hours=3))
            assert (len(good.taken), len(bad.taken)) == (1, 1)
            # Whoever sends it, and whatever is in it: a receiver knows it for the same.
            assert good.taken == bad.taken
        assert len(shared(tmp_path)) == 1

    def test_whoever_leads_no_more_sends_nothing_more(self, tmp_path: Path) -> None:
        with webhook() as server:
            one, two = two_replicas(tmp_path, server)
            make = one.make

            def slow(end: datetime) -> tuple[Mapping[str, bytes], str]:
                two.leads()
                return make(end)

            one.make = slow  # type: ignore[method-assign]
            with pytest.raises(NotLeadingError):
                one.look(DUE)
            assert shared(tmp_path) == []
            assert two.look(DUE + timedelta(minutes=1))
        assert len(server.taken) == 1
        assert len(shared(tmp_path)) == 1

    def test_what_was_sent_and_not_noted_is_noted_and_not_sent_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answers = True
        cluster = MemoryCluster(may=lambda verb, _: answers or verb != "patch")
        with webhook() as server:
            one = Replica(tmp_path, "a", cluster, urls=urls(server))
            one.leads()
            note = one.sent.note

            def lost(sending: Sending, *, later: bool = False) -> Sending:
                """The API server is away from the moment on at which the webhook has answered."""
                nonlocal answers
                answers = not server.taken
                return note(sending, later=later)

            with monkeypatch.context() as away, pytest.raises(StoreError, match="writing the state"):
                away.setattr(one.sent, "note", lost)
                one.look(DUE)
            answers = True
            one.look(DUE + timedelta(minutes=5))
            assert len(server.taken) == 1
        one.sent.read_again()
        (known,) = one.sent.all().values()
        assert {item.state for item in known.deliveries} == {DeliveryState.SENT}

    def test_a_new_leader_makes_what_it_lacks_again_and_sends_it_to_those_that_lack_it(self, tmp_path: Path) -> None:
        """Its folder is its own; the state says who has it."""
        with webhook(500) as bad, webhook() as good:
            one, two = two_replicas(tmp_path, good, bad)
            one.look(DUE)
            one.restarted()
            one.look(DUE + timedelta(seconds=30))  # not due yet, after a restart too
            assert (len(good.taken), len(bad.bodies)) == (1, 1)
            two.leads()
            assert two.look(DUE + timedelta(minutes=1))
            assert (one.made, two.made) == ([DUE], [DUE])
            assert (len(good.taken), len(bad.taken)) == (1, 1)

    def test_two_clusters_do_not_write_over_each_others_reports(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            cluster = MemoryCluster()
            if name == "b":  # these clusters number their objects
                metadata = {"name": "first", "namespace": "gpuwatch"}
                cluster.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
            one = Replica(tmp_path, name, cluster)
            one.leads()
            one.look(DUE)
        assert len(shared(tmp_path)) == 2
