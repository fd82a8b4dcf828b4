"""For how long a silence is explained to somebody who knows every kind of workload."""

from datetime import UTC, datetime

import numpy as np
import pytest

from gpuwatch.facts.model.decision import FindingKind
from lab.evaluation.patience import REST_SECONDS, wait_seconds, waits_of
from lab.simulate.behaviour import Behaviour, WorkKind
from lab.simulate.fleet import SimulatedFleet, build_fleet
from lab.simulate.plan import DAY, HOUR, FleetPlan
from lab.simulate.runs import Place, PodLife, Run, SimulatedWorkload

pytestmark = pytest.mark.slow

# The window begins on a Monday at midnight.
PLAN = FleetPlan(seed=3, end=datetime(2026, 3, 16, tzinfo=UTC), interval_seconds=120)


def stopped(activity: WorkKind, born: float, stops: float) -> Run:
    """Hours from Monday's midnight on."""
    behaviour = Behaviour(
        activity=activity, requests_per_second=1 / 120, request_seconds=60, stops_at_seconds=stops * HOUR
    )
    workload = SimulatedWorkload(
        framework="Deployment", namespace="chat", name="api", uid="", created_seconds=born * HOUR, image=""
    )
    return Run(
        workload=workload,
        pods=(PodLife(name="api-0", uid="", places=(Place(0, 0),)),),
        start=born * HOUR,
        end=float("inf"),
        behaviour=behaviour,
        seed=1,
        idle=FindingKind.MODEL_LOADED,
        idle_from=stops * HOUR,
    )


def wait_hours(activity: WorkKind, born: float, stops: float) -> float:
    return wait_seconds(PLAN, stopped(activity, born, stops)) / HOUR


def test_a_service_that_was_seen_for_days_is_waited_for_less_than_a_new_one() -> None:
    """Both fall silent on Thursday evening; the night is explained for the one that nobody knows yet."""
    known, new = wait_hours(WorkKind.SERVING, 1, 3 * 24 + 21), wait_hours(WorkKind.SERVING, 3 * 24 + 20.8, 3 * 24 + 21)
    assert REST_SECONDS / HOUR <= known < new < 24


def test_a_notebook_is_waited_for_over_the_weekend() -> None:
    tuesday, friday = (wait_hours(WorkKind.HUMAN, day * 24 + 14, day * 24 + 14.5) for day in (1, 4))
    # At least one of a hundred takes the next day off; nobody is expected back on a Saturday.
    assert 36 < tuesday < 4 * 24
    assert friday > 2.5 * 24
    assert friday <= 7 * DAY / HOUR


@pytest.fixture(scope="module")
def fleet() -> SimulatedFleet:
    return build_fleet(FleetPlan(seed=4, end=PLAN.end, gpus=16, days=3, idle_allocations=4, faults=()))


def test_there_is_one_for_every_planted_pod_that_worked(fleet: SimulatedFleet) -> None:
    waits = waits_of(fleet)
    stopped_pods = {
        truth.pods[0]
        for truth in fleet.truth
        if not truth.harmless and truth.kind in (FindingKind.ABANDONED, FindingKind.MODEL_LOADED)
    }
    assert stopped_pods
    assert set(waits) == stopped_pods
    assert all(np.isfinite(wait.total_seconds()) and wait.total_seconds() >= REST_SECONDS for wait in waits.values())
