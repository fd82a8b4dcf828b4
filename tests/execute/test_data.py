"""What would lose data is neither released nor moved: the plan refuses it, and the executor just before a write."""

from dataclasses import replace

import pytest

from execute.living import ENFORCE, Fleet, drive, only, quick, tick
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.facts.frameworks import WRITTEN
from gpuwatch.facts.frameworks.framework import Deletes, ReleaseRule
from gpuwatch.facts.frameworks.objects import Object
from gpuwatch.facts.model.decision import ActionKind, Mode
from gpuwatch.facts.model.remediation import Phase

POLICY = "persistentVolumeClaimRetentionPolicy"
DELETE, RETAIN = {"whenScaled": "Delete"}, {"whenScaled": "Retain"}
REASON = "Its volume claims would be deleted: persistentVolumeClaimRetentionPolicy.whenScaled is Delete."
ACTIONS = pytest.mark.parametrize("action", [ActionKind.RELEASE_GANG, ActionKind.EVICT_GANG])


def fleet_of(action: ActionKind, policy: Object, kind: str = "StatefulSet") -> Fleet:
    """A StatefulSet that is idle, or that is to leave a cordoned Node with a sick GPU."""
    idle = action is ActionKind.RELEASE_GANG
    fleet = Fleet(idle={"chat"}) if idle else Fleet(sick={"GPU-n0-0"})
    fleet.owner(kind, "chat", 4, **({POLICY: policy} if kind == "StatefulSet" else {}))
    if not idle:
        fleet.cordon()
    return fleet


def start(fleet: Fleet, store: RemediationStore, action: ActionKind) -> Executor:
    plan = replace(ENFORCE, modes={action: Mode.ENFORCE})
    executor = fleet.executor(store, ExecutorPolicies(plan, quick()))
    fleet.propose(executor)
    return executor


def disrupted(fleet: Fleet) -> list[str]:
    """Writes to the owner's fields, and evictions; neither notices nor marks."""
    released = fleet.find("chat")["spec"].get("replicas") == 0
    return [line for line in fleet.log if "eviction" in line] + (["released"] if released else [])


def change(fleet: Fleet, policy: Object) -> None:
    found = fleet.find("chat")
    fleet.cluster.put({**found, "spec": {**found["spec"], POLICY: policy}})


def until(fleet: Fleet, executor: Executor, phase: Phase) -> None:
    for _ in range(60):
        (found,) = executor.store.all()
        if found.phase is phase:
            return
        tick(fleet, executor)
        fleet.now = max(fleet.now, found.next_at or fleet.now)
    raise AssertionError(f"It never was {phase}.")


@ACTIONS
def test_the_plan_proposes_nothing_that_deletes_data(store: RemediationStore, action: ActionKind) -> None:
    fleet = fleet_of(action, DELETE)
    executor = start(fleet, store, action)
    plan = fleet.plan(executor)
    (item,) = [each for each in plan.items if each.candidate.action is action]
    assert [each.reason for each in item.refusals if each.guard == "framework"] == [f"StatefulSet: {REASON}"]
    drive(fleet, executor, 1)
    assert store.all() == ()
    assert fleet.log == []


@ACTIONS
@pytest.mark.parametrize("at", [Phase.NOTIFIED, Phase.ACTING])
def test_a_policy_that_changes_before_the_write_stops_it(
    store: RemediationStore, monkeypatch: pytest.MonkeyPatch, action: ActionKind, at: Phase
) -> None:
    """The plan still has the former policy; the object that the executor reads has the new one."""
    fleet = fleet_of(action, RETAIN)
    former = fleet.view().snapshot.cluster.workloads
    executor = start(fleet, store, action)
    monkeypatch.setattr(fleet, "_model_workload", lambda owner: next(each for each in former if each.name == "chat"))
    until(fleet, executor, at)
    change(fleet, DELETE)
    drive(fleet, executor, 1)
    assert disrupted(fleet) == []
    assert only(store).phase is Phase.REFUSED
    assert REASON in [turn.message for turn in only(store).history]


def test_kueues_workload_is_not_written_where_its_owner_would_lose_data(
    store: RemediationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Workload says nothing about it, so the owner is read again, too. What Kueue admitted is not moved at all."""
    fleet = fleet_of(ActionKind.RELEASE_GANG, {}, kind="Job")
    fleet.queue("chat")
    executor = start(fleet, store, ActionKind.RELEASE_GANG)
    until(fleet, executor, Phase.ACTING)
    kind = WRITTEN["batch", "Job"]
    assert isinstance(kind.release, ReleaseRule)
    losing = Deletes("its data", lambda job: REASON if job["metadata"]["name"] == "chat" else "")
    monkeypatch.setitem(WRITTEN, ("batch", "Job"), replace(kind, release=replace(kind.release, deletes=losing)))  # type: ignore[arg-type]
    drive(fleet, executor, 1)
    assert not [line for line in fleet.log if "Workload" in line]
    assert only(store).phase is Phase.REFUSED
    assert REASON in [turn.message for turn in only(store).history]
