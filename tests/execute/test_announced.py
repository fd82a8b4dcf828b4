"""Owners are told only of what would be done if it were due now, and what cannot be read is waited for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from execute.living import ENFORCE, Fleet, drive, quick
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.objects import Object
from gpuwatch.facts.model.remediation import Phase
from gpuwatch.sources.kube.writer import Failure, WriteError
from kube.memory_cluster import merged

OF_CHAT = {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}, "maxReplicas": 4}


def beside(api_version: str, kind: str) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "s", "namespace": "ml"}, "spec": OF_CHAT}


AROUND: dict[str, tuple[Object, list[Object], str]] = {
    "HPA": ({}, [beside("autoscaling/v2", "HorizontalPodAutoscaler")], "HorizontalPodAutoscaler s sets its replicas"),
    "KEDA": ({}, [beside("keda.sh/v1alpha1", "ScaledObject")], "ScaledObject s sets its replicas"),
    "Argo CD": (
        {"annotations": {"argocd.argoproj.io/tracking-id": "x"}},
        [],
        "Argo CD deploys it",
    ),
    "Flux": ({"labels": {"helm.toolkit.fluxcd.io/name": "x"}}, [], "Flux deploys it"),
    "none": ({}, [], ""),
}


def idle_service(metadata: Object, others: list[Object]) -> Fleet:
    fleet = Fleet(idle={"chat"})
    fleet.owner("Deployment", "chat", 2, 2)
    fleet.cluster.put(merged(fleet.find("chat"), {"metadata": metadata}))
    for each in others:
        fleet.cluster.put(each)
    return fleet


def start(fleet: Fleet, store: RemediationStore, plan: PlanPolicy = ENFORCE) -> Executor:
    executor = fleet.executor(store, ExecutorPolicies(plan, quick()))
    fleet.propose(executor)
    return executor


@pytest.mark.parametrize("foresees", [True, False], ids=["the plan knows", "it came since the plan"])
@pytest.mark.parametrize("scene", AROUND)
def test_what_would_be_refused_is_not_announced(store: RemediationStore, scene: str, foresees: bool) -> None:
    """The plan refuses it with the executor's reason. What the plan could not see is refused before anybody is told."""
    metadata, others, why = AROUND[scene]
    fleet = idle_service(metadata, others)
    fleet.foresees = foresees
    executor = start(fleet, store)
    (item,) = fleet.plan(executor).items
    told = [each.reason for each in item.refusals if each.guard == "framework"]
    assert [why in each for each in told] == ([True] if why and foresees else [])
    drive(fleet, executor, 24)
    ended = [(each.phase, each.history[-1].message) for each in store.all()]
    if not why:
        assert ended == [(Phase.SUCCEEDED, "Its owner did not undo the release within the observation time.")]
        return
    assert (fleet.log, fleet.notices) == ([], [])
    assert [phase for phase, _ in ended] == ([] if foresees else [Phase.REFUSED])
    assert all(why in message for _, message in ended)


LISTS = ("HorizontalPodAutoscaler", "Workload", "PodGroup")


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("status", [429, 403, 504])
@pytest.mark.parametrize("told", [False, True], ids=["before the notice", "after the notice"])
def test_what_was_not_read_is_waited_for(store: RemediationStore, kind: str, status: int, told: bool) -> None:
    fleet = idle_service({}, [])
    executor = start(fleet, store)
    if told:
        drive(fleet, executor, 0.1)
    read, written = fleet.cluster.objects, list(fleet.notices)
    fleet.cluster.objects = failing(fleet.cluster.objects, kind, status)  # type: ignore[method-assign]
    drive(fleet, executor, 1)
    (found,) = store.all()
    assert (found.phase, found.began_at, fleet.notices) == (Phase.NOTIFIED, None, written)
    assert found.history[-1].message.startswith("It is not known whether it may be released: ")
    fleet.cluster.objects = read  # type: ignore[method-assign]
    drive(fleet, executor, 1)
    assert [each.phase for each in store.all()] == [Phase.IN_EFFECT]


def test_what_is_never_read_is_never_told_and_does_not_fail(store: RemediationStore) -> None:
    fleet = idle_service({}, [])
    fleet.cluster.objects = failing(fleet.cluster.objects, LISTS[0], 403)  # type: ignore[method-assign]
    executor = start(fleet, store)
    for _ in range(3):
        drive(fleet, executor, 8)
        fleet.propose(executor)
    assert (fleet.log, fleet.notices) == ([], [])
    assert {each.phase for each in store.all()} <= {Phase.NOTIFIED, Phase.PROPOSED, Phase.EXPIRED}
    assert [each.phase for each in store.all()].count(Phase.EXPIRED) == 3


def failing(read: Callable[..., Any], kind: str, status: int) -> Callable[..., Any]:
    failures = {429: Failure.THROTTLED, 403: Failure.FORBIDDEN, 504: Failure.UNSURE}

    def objects(api_version: str, listed: str, *rest: str) -> Any:
        if listed == kind:
            raise WriteError(failures[status], f"{kind}s were not listed.", status=status)
        return read(api_version, listed, *rest)

    return objects


@pytest.mark.parametrize(
    ("change", "phase"),
    [
        ({"metadata": {"annotations": {keys.OBJECTION: "a demo"}}}, Phase.REJECTED),
        ({"metadata": {"annotations": {keys.OPT_OUT: "true"}}}, Phase.REJECTED),
    ],
    ids=["objected", "opted out"],
)
def test_an_owner_who_has_spoken_before_the_notice_is_not_told(
    store: RemediationStore, change: Object, phase: Phase
) -> None:
    fleet = idle_service({}, [])
    executor = start(fleet, store)
    fleet.cluster.put(merged(fleet.find("chat"), change))
    fleet.log.clear()
    drive(fleet, executor, 2)
    assert [each.phase for each in store.all()] == [phase]
    assert (fleet.log, fleet.notices) == ([], [])


def test_a_mode_that_now_observes_tells_nobody(store: RemediationStore) -> None:
    fleet = idle_service({}, [])
    start(fleet, store)
    executor = fleet.executor(store, ExecutorPolicies(replace(ENFORCE, modes={}), quick()))
    drive(fleet, executor, 2)
    assert [each.phase for each in store.all()] == [Phase.REFUSED]
    assert (fleet.log, fleet.notices) == ([], [])
