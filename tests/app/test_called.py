"""A person is called for a gang that stays stopped, also while gpuwatch can save nothing."""

import logging
import threading
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deliver.receivers import webhook
from execute.living import ENFORCE, Fleet, drive, quick
from gpuwatch.act.analysis import Policies
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.app.controller import remediation_job
from gpuwatch.app.controller.leader import Election
from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.controller.remediation_job import RemediationJob
from gpuwatch.app.controller.replica import Replica, Writers
from gpuwatch.app.settings import Settings
from gpuwatch.app.settings.run_policy import ControllerPolicy
from gpuwatch.app.sources import Opened
from gpuwatch.say.deliver.policy import DeliveryPolicy
from gpuwatch.sources.kube.writer import Failure, WriteError

# Apprise's mail plug-in imports it on Pythons that still have it.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")

STOPPED = 900


def suspended(fleet: Fleet, store: RemediationStore) -> None:
    """A move has just stopped the gang."""
    fleet.owner("Job", "train", 8)
    fleet.cordon()
    executor = fleet.executor(store, ExecutorPolicies(ENFORCE, quick(stopped_gang_seconds=STOPPED)))
    fleet.propose(executor)
    while not fleet.find("train")["spec"]["suspend"]:
        drive(fleet, executor, 1 / 60)


@pytest.mark.parametrize(
    ("refused", "leads"),
    [("status", True), ("every write", True), ("every write", False)],
    ids=["status refused", "every write refused", "every write refused, the Lease too"],
)
def test_a_call_needs_no_write(
    refused: str, leads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(sick={"GPU-n0-0"})
    store = RemediationStore(fleet.cluster, "gpuwatch")
    store.resume()
    suspended(fleet, store)

    def refuse(_: str, what: str, done: bool) -> None:
        if not done and (refused == "every write" or "emediation" in what):
            raise WriteError(Failure.FORBIDDEN, "No.", status=403)

    fleet.before_write = refuse
    monkeypatch.setattr(remediation_job, "datetime", SimpleNamespace(now=lambda _: fleet.now))
    lead = SimpleNamespace(leads=leads, vacant=not leads, holder="", recall=lambda _: "", note=lambda *_: None)
    with webhook() as server:
        settings = Settings(
            run=ControllerPolicy(folder=tmp_path),
            execute=quick(stopped_gang_seconds=STOPPED),
            delivery=DeliveryPolicy(urls=(f"json://{server.address}/",)),
        )
        opened = Opened(settings, Policies(plan=ENFORCE), None, None, None, fleet.now, "a test")
        writers = Writers(fleet.cluster, fleet.rehearsal)
        replica = Replica({}, opened, writers, cast(Election, lead), Metrics(), threading.Event())
        look = cast(Any, SimpleNamespace(last=None, fresh=lambda _: fleet.view()))
        job = RemediationJob(replica, look)
        (began,) = (each.stopped_since for each in store.all() if each.stopped_since)
        while not server.bodies and fleet.now - began < timedelta(hours=1):
            fleet.now += timedelta(seconds=30)
            with caplog.at_level(logging.ERROR, "gpuwatch.run"):
                job.run()
            replica.notifications.send(settings.delivery, fleet.now)
        for _ in range(10):  # told once by each process, and shown as long as it is so
            fleet.now += timedelta(seconds=30)
            job.run()
            replica.notifications.send(settings.delivery, fleet.now)
    assert timedelta(seconds=STOPPED) <= fleet.now - began - timedelta(minutes=5) <= timedelta(seconds=STOPPED + 90)
    assert len(server.bodies) == 1
    assert b"gpuwatch needs a person. gang/Job/ml/train has been stopped since" in server.bodies[0]
    assert replica.metrics.registry.get_sample_value("gpuwatch_remediations_overdue") == 1
    (said,) = job.stopped
    assert "may be unable to write" in said
    assert sum(said in record.message for record in caplog.records) == 1
    fleet.before_write = lambda *_: None
    lead.leads, lead.vacant = True, False
    job.run()
    assert job.stopped == ()
    lead.leads = False
    job.run()
    assert replica.metrics.registry.get_sample_value("gpuwatch_remediations_overdue") == 0


def test_nobody_is_called_before_it_is_due(tmp_path: Path) -> None:
    fleet = Fleet(sick={"GPU-n0-0"})
    store = RemediationStore(fleet.cluster, "gpuwatch")
    store.resume()
    suspended(fleet, store)
    (move,) = (each for each in store.all() if each.stopped_since)
    policy, since = quick(stopped_gang_seconds=STOPPED), cast(datetime, move.stopped_since)
    assert remediation_job.unheard(move, policy, since + timedelta(seconds=STOPPED - 1)) is None
    assert remediation_job.unheard(move, policy, since + timedelta(seconds=STOPPED)) is not None
