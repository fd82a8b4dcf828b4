"""GPUs that are freed for a Pod that waits: did it start, and what follows where it did not."""

from dataclasses import replace
from datetime import timedelta

import pytest

from execute.living import ENFORCE, SUGGEST, Fleet, drive, only, quick
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.facts.model.remediation import ObjectRef, Phase, StepKind
from gpuwatch.sources.kube.writer import Failure, WriteError

ON_DEMAND = replace(ENFORCE, reclaim_only_on_demand=True, idle_storm_ratio=1.0)


def crowded(**owners: int) -> Fleet:
    """Two Nodes: idle Jobs on the first, one that works on the second; a Deployment waits for a whole Node."""
    fleet = Fleet(nodes=2, idle=set(owners))
    fleet.owner("Job", "train", 8, node="n1")
    for name, gpus in owners.items():
        fleet.owner("Job", name, gpus, node="n0")
    fleet.owner("Deployment", "late", 8, node="")
    return fleet


def begun(fleet: Fleet, store: RemediationStore, plan: PlanPolicy = ON_DEMAND) -> Executor:
    executor = fleet.executor(store, ExecutorPolicies(plan, quick(notice_period_seconds=120)))
    fleet.propose(executor)
    return executor


def until_released(fleet: Fleet, store: RemediationStore, executor: Executor) -> None:
    while only(store).phase is not Phase.VERIFYING:
        drive(fleet, executor, 1 / 60)


def test_it_is_looked_for_whom_it_was_released_and_not_for_whom_it_was_proposed(store: RemediationStore) -> None:
    """The first one found a place while owners could object, and another waits."""
    fleet = crowded(chat=8)
    executor = begun(fleet, store)
    drive(fleet, executor, 1 / 60)
    fleet.cluster.remove(ObjectRef("apps/v1", "Deployment", "late", "ml"))
    fleet.owner("Deployment", "later", 8, node="")
    fleet.stuck = {"later"}
    until_released(fleet, store, executor)
    (release,) = [step for step in only(store).steps if step.kind is StepKind.RELEASE]
    assert release.parameters["waiter"] == "ml/later-0"
    drive(fleet, executor, 1)
    assert (only(store).phase, only(store).verified["waiter_started"]) == (Phase.FAILED, False)


def test_a_waiter_that_cannot_be_read_is_neither(store: RemediationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = crowded(chat=8)
    executor = begun(fleet, store)
    fleet.stuck = {"late"}
    until_released(fleet, store, executor)
    read = fleet.cluster.get

    def refuse(ref: ObjectRef) -> object:
        if ref.kind == "Pod":
            raise WriteError(Failure.FORBIDDEN, "no")
        return read(ref)

    monkeypatch.setattr(fleet.cluster, "get", refuse)
    drive(fleet, executor, 1)
    assert only(store).phase is Phase.VERIFYING
    assert only(store).verified == {}
    monkeypatch.undo()
    fleet.stuck = set()
    drive(fleet, executor, 0.2)
    assert only(store).verified == {"released": True, "waiter_started": True}


def test_of_releases_that_make_room_together_one_that_is_not_approved_holds_up_all(store: RemediationStore) -> None:
    fleet = crowded(chat=4, talk=4)
    executor = begun(fleet, store, replace(ON_DEMAND, modes=SUGGEST.modes))
    first, second = (each.id for each in store.all())
    store.approve(first, "ann")
    drive(fleet, executor, 0.5)
    assert [each.phase for each in store.all()] == [Phase.NOTIFIED, Phase.PROPOSED]
    store.approve(second, "ann")
    drive(fleet, executor, 0.5)
    assert [each.phase for each in store.all()] == [Phase.IN_EFFECT, Phase.IN_EFFECT]


def test_one_of_several_that_comes_to_nothing_takes_the_others_back(store: RemediationStore) -> None:
    fleet = crowded(chat=4, talk=4)
    executor = begun(fleet, store)
    while Phase.VERIFYING not in {each.phase for each in store.all()}:
        for name in executor.due(fleet.now)[:1]:
            executor.run_once(name, fleet.now)
        fleet.now += timedelta(minutes=1)
        fleet.settle()
    (other,) = [each for each in store.all() if each.phase is not Phase.VERIFYING]
    store.reject(other.id)
    drive(fleet, executor, 1.5)
    assert sorted(each.phase for each in store.all()) == [Phase.FAILED, Phase.REJECTED]
    assert [job["spec"]["suspend"] for job in (fleet.find("chat"), fleet.find("talk"))] == [False, False]
