"""In how many cycles an action could have been enforced: over restarts, leaders and failures, and as people read it."""

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.act.analysis import Policies
from gpuwatch.act.plan.policy import ModeScope, PlanPolicy
from gpuwatch.app.cli.commands import enforcement_of
from gpuwatch.app.controller.cycle_job import CycleJob, EnforcementRecord
from gpuwatch.app.controller.look import Look
from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.controller.replica import Replica, UnreachableError, Writers
from gpuwatch.app.settings import Settings
from gpuwatch.app.settings.run_policy import ControllerPolicy
from gpuwatch.app.sources import Opened
from gpuwatch.facts.model.decision import ActionKind, Mode
from gpuwatch.facts.model.remediation import ObjectRef
from gpuwatch.say.remediation_tables import enforcement_text
from gpuwatch.sources.kube.writer import ClusterWriter, Failure, WriteError
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.checkpoints import FAULTS
from gpuwatch.sources.store.store import Store
from kube.memory_cluster import MemoryCluster

AT = datetime(2026, 11, 21, 3, 5, tzinfo=UTC)
TAINT, MOVE, RELEASE = ActionKind.TAINT_NODE, ActionKind.EVICT_GANG, ActionKind.RELEASE_GANG
ROOM = ActionKind.MAKE_ROOM
FREE: dict[ActionKind, tuple[str, ...]] = dict.fromkeys(ActionKind, ())
PAUSED = dict.fromkeys(FREE, ("paused",))
UNREAD = {each: () if each is TAINT else ("cluster_known",) for each in ActionKind}


def process(folder: Path, cluster: ClusterWriter | None = None, plan: PlanPolicy = PlanPolicy()) -> Replica:  # noqa: B008 - frozen
    settings = Settings(run=ControllerPolicy(folder=folder), plan=plan)
    writers = None if cluster is None else Writers(plain=cluster, rehearsal=cluster)
    opened = Opened(settings, Policies(), None, None, None, AT, "a test")
    replica = Replica({}, opened, writers, None, Metrics(), threading.Event())
    assert replica.leads()
    return replica


@pytest.mark.parametrize("place", ["file", "cluster"])
def test_a_restart_and_another_leader_go_on_from_what_is_stored(place: str, tmp_path: Path) -> None:
    cluster = MemoryCluster() if place == "cluster" else None
    first = EnforcementRecord(process(tmp_path, cluster))
    for minutes, stops in enumerate([FREE, PAUSED, UNREAD]):
        first.count(stops, AT + timedelta(minutes=5 * minutes))  # the last one is saved, ten minutes after the first
    replica = process(tmp_path, cluster)
    other = EnforcementRecord(replica)
    other.count(FREE, AT + timedelta(hours=1))
    hour = AT.replace(minute=0)
    expected = {
        hour: Counter({"": 3, TAINT: 2, MOVE: 1, ROOM: 1, RELEASE: 1, "paused": 1, "cluster_known": 1}),
        hour + timedelta(hours=1): Counter({"": 1, TAINT: 1, MOVE: 1, ROOM: 1, RELEASE: 1}),
    }
    assert other.hours == replica.store(FAULTS).load_enforcement() == expected
    replica.term += 1  # it led before and leads again: what it counted since its last save is another leader's to count
    other.count(FREE, AT + timedelta(hours=1, minutes=1))
    assert sum(each[""] for each in other.hours.values()) == 5


def test_what_is_older_than_eight_days_goes_and_known_faults_stay(tmp_path: Path) -> None:
    replica = process(tmp_path)
    record = EnforcementRecord(replica)
    for days in (0, 1, 8):
        record.count(FREE, AT + timedelta(days=days))
    hour = AT.replace(minute=0)
    assert list(replica.store(FAULTS).load_enforcement()) == [hour + timedelta(days=days) for days in (1, 8)]
    assert not replica.store(FAULTS).load_faults().unread


def test_a_state_that_cannot_be_read_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = process(tmp_path)
    EnforcementRecord(replica).count(PAUSED, AT)
    record = EnforcementRecord(replica)
    with monkeypatch.context() as broken:

        def fails(self: Store) -> Any:
            raise StoreError("no answer")

        broken.setattr(Store, "load_enforcement", fails)
        record.count(FREE, AT)
    record.count(FREE, AT)
    assert replica.store(FAULTS).load_enforcement() == {
        AT.replace(minute=0): Counter({"": 2, "paused": 1, TAINT: 1, MOVE: 1, ROOM: 1, RELEASE: 1})
    }


@pytest.mark.parametrize(
    ("plan", "enforced"),
    [
        (PlanPolicy(), ()),
        (PlanPolicy(modes={MOVE: Mode.ENFORCE, TAINT: Mode.SUGGEST}), (MOVE,)),
        (PlanPolicy(scopes=(ModeScope(mode=Mode.ENFORCE, action=TAINT, pool="spot"),)), (TAINT,)),
        (PlanPolicy(scopes=(ModeScope(mode=Mode.ENFORCE, namespace="ml"),)), tuple(ActionKind)),
    ],
)
def test_the_metric_says_what_is_enforced_and_what_stopped_it(
    plan: PlanPolicy, enforced: tuple[ActionKind, ...], tmp_path: Path
) -> None:
    replica = process(tmp_path, plan=plan)
    record = EnforcementRecord(replica)
    record.count(UNREAD, AT)
    record.count(dict.fromkeys(FREE, ("paused", "cluster_known")), AT)
    found = {
        tuple(sample.labels[name] for name in ("action", "enforced", "stopped_by")): sample.value
        for family in replica.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "gpuwatch_enforcement_cycles_total" and sample.value
    }
    assert found == {
        (action, "true" if action in enforced else "false", name): 1
        for action, names in UNREAD.items()
        for name in ((*names, "nothing")[0], "paused")
    }


def test_doctor_reads_the_file_that_is_here_and_the_cluster_otherwise(tmp_path: Path) -> None:
    def said(cluster: ClusterWriter, file: Path | None = None) -> str:
        settings = Settings(state=file)
        return enforcement_of(Opened(settings, Policies(), None, None, None, AT, "a test"), cluster)

    class Refusing(MemoryCluster):
        def get(self, ref: ObjectRef) -> Any:
            raise WriteError(Failure.FORBIDDEN, f"may not get {ref.kind}")

    file, cluster = tmp_path / "gpuwatch.state", MemoryCluster()
    EnforcementRecord(process(tmp_path)).count(FREE, AT)
    EnforcementRecord(process(tmp_path, cluster)).count(PAUSED, AT)
    assert said(cluster, file) == "In the last 7 days enforcement was possible in 100 % of the cycles (1 counted)."
    paused = "In the last 7 days enforcement was possible in 0 % of the cycles (1 counted); stopped by paused in 1."
    assert said(cluster) == said(cluster, tmp_path / "elsewhere.state") == paused
    assert said(Refusing()) == "Unknown: reading the state: may not get Checkpoint"


def test_a_cycle_without_any_source_counts_as_stopped(tmp_path: Path) -> None:
    replica = process(tmp_path)

    class Blind(Look):
        def now(self, *arguments: Any) -> Any:
            raise UnreachableError("telemetry does not answer")

    job = CycleJob(replica, Blind(replica))
    with pytest.raises(UnreachableError):
        job.run()
    assert list(job.enforcement.hours.values()) == [Counter({"": 1, "unreachable": 1})]


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        ({}, "Unknown: no cycle of the last 7 days was counted."),
        ({AT - timedelta(days=7): Counter({"": 60})}, "Unknown: no cycle of the last 7 days was counted."),
        (
            {AT: Counter({"": 1200} | dict.fromkeys(ActionKind, 1200))},
            "In the last 7 days enforcement was possible in 100 % of the cycles (1,200 counted).",
        ),
        (
            {
                AT - timedelta(days=6): Counter({"": 100, "brake": 100, "cool_down": 1}),
                AT: Counter({"": 100, TAINT: 99, MOVE: 0, RELEASE: 99, "cluster_known": 100}),
            },
            "In the last 7 days enforcement was possible in 49 % (taint_node), 0 % (evict_gang), 0 % (make_room), "
            "49 % (release_gang) of the cycles (200 counted); stopped by cluster_known in 100, brake in 100, "
            "cool_down in 1.",
        ),
    ],
)
def test_a_week_is_a_sentence(hours: dict[datetime, Counter[str]], text: str) -> None:
    assert enforcement_text(hours, AT) == text
