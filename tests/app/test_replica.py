"""What the jobs of a process hand to each other, while leadership comes and goes."""

import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from detect.test_fault_memory import quiet
from gpuwatch.act.analysis import Policies
from gpuwatch.app.controller.cycle_job import CycleJob
from gpuwatch.app.controller.leader import Election
from gpuwatch.app.controller.look import LastStorm, Look
from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.controller.replica import Found, Replica
from gpuwatch.app.settings import Settings
from gpuwatch.app.settings.run_policy import ControllerPolicy
from gpuwatch.app.sources import Opened
from gpuwatch.facts.model.remediation import Pause
from gpuwatch.sources.kube.writer import Failure, WriteError

STORM = datetime(2026, 11, 21, 3, tzinfo=UTC)


class Lead:
    """An election that a test decides. said: on the Lease."""

    def __init__(self) -> None:
        self.leads = True
        self.said: dict[str, str] = {}
        self.answers = True

    def recall(self, key: str) -> str:
        if not self.answers:
            raise WriteError(Failure.THROTTLED, "no answer")
        return self.said.get(key, "")

    def note(self, key: str, value: str) -> None:
        self.said[key] = value


def replica_of(lead: Lead | None, folder: Path) -> Replica:
    opened = Opened(Settings(run=ControllerPolicy(folder=folder)), Policies(), None, None, None, STORM, "a test")
    return Replica({}, opened, None, cast(Election, lead), Metrics(), threading.Event())


def test_what_a_replica_showed_as_the_leader_ends_with_its_term(tmp_path: Path) -> None:
    lead = Lead()
    replica = replica_of(lead, tmp_path)
    assert replica.leads()
    advice = cast(Any, ("advice",))
    replica.found = Found(remediations=(), pause=Pause(), leftovers=("a taint",), advice=advice)
    assert (replica.leads(), replica.term, replica.found.leftovers) == (True, 1, ("a taint",))
    lead.leads = False
    # The advice is of the profiles, which outlast a leader, and of the next cycle's costs.
    assert (replica.leads(), replica.found) == (False, Found(advice=advice))
    assert replica.metrics.registry.get_sample_value("gpuwatch_leader") == 0
    lead.leads = True
    assert (replica.leads(), replica.term, replica.found) == (True, 2, Found(advice=advice))


def test_no_leadership_ends_while_a_job_tells_what_it_found(tmp_path: Path) -> None:
    lead = Lead()
    replica = replica_of(lead, tmp_path)
    replica.leads()
    with replica.telling:
        lead.leads = False
        other = threading.Thread(target=replica.leads)
        other.start()
        other.join(0.2)
        assert other.is_alive()
        replica.found = replace(replica.found, leftovers=("a taint",))
    other.join(10)
    assert (other.is_alive(), replica.found) == (False, Found())


def test_a_cycle_that_ends_after_the_leadership_tells_nothing(tmp_path: Path) -> None:
    """Its metrics would stay beside those of the new leader until the process ends."""
    lead = Lead()
    replica = replica_of(lead, tmp_path)
    snapshot = replace(quiet(), at=datetime.now(UTC))

    class Looking(Look):
        def now(self, *arguments: Any) -> Any:
            lead.leads = led
            return super().now(*arguments)

    replica.opened = replace(replica.opened, snapshot=snapshot)
    for led in (True, False):
        CycleJob(replica, Looking(replica)).run()
        shown = replica.metrics.registry.get_sample_value("gpuwatch_devices", {"state": "known"})
        assert (replica.found.analysis is not None, bool(shown)) == (led, led)


@pytest.mark.parametrize("elected", [True, False])
def test_a_storm_is_noted_and_read_again_in_a_new_term(elected: bool) -> None:
    lead = Lead()
    first = LastStorm(cast(Election, lead) if elected else None)
    assert first.at(1) is None
    first.remember(STORM)
    assert first.at(1) == STORM
    assert lead.said == ({"gpuwatch.dev/last-storm": STORM.isoformat()} if elected else {})
    lead.said = {}
    assert first.at(1) == STORM
    assert first.at(2) == (None if elected else STORM)


def test_a_storm_that_cannot_be_read_is_taken_for_now() -> None:
    lead = Lead()
    lead.answers = False
    storm, before = LastStorm(cast(Election, lead)), datetime.now(UTC)
    at = storm.at(1)
    assert at is not None
    assert at >= before
    assert storm.at(1) == at
