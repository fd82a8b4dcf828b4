"""The cluster's objects as the project's own reader takes them."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuwatch.facts.model.cluster import Cluster, Sharing
from gpuwatch.facts.model.decision import FindingKind
from gpuwatch.judge.idle.partial_gang import partial_gangs
from gpuwatch.sources.kube.recorded import RecordedCluster
from lab.simulate.fleet import SimulatedFleet, build_fleet
from lab.simulate.plan import FleetPlan
from lab.simulate.writing import write_cluster

END = datetime(2026, 3, 15, 12, tzinfo=UTC)
MOMENTS = [END - timedelta(hours=hours) for hours in (0, 37, 90, 150)]


@pytest.fixture(scope="module")
def fleet() -> SimulatedFleet:
    return build_fleet(FleetPlan(seed=7, end=END))


@pytest.fixture(params=MOMENTS, ids=[f"{moment:%d-%H}" for moment in MOMENTS])
def moment(request: pytest.FixtureRequest) -> datetime:
    at: datetime = request.param
    return at


@pytest.fixture
def cluster(fleet: SimulatedFleet, moment: datetime, tmp_path: Path) -> Cluster:
    write_cluster(fleet, tmp_path, moment)
    return RecordedCluster(tmp_path).read(moment)


def test_everything_is_read_without_a_gap(cluster: Cluster) -> None:
    assert cluster.known
    assert cluster.gaps == ()


def test_nodes_say_what_they_offer(fleet: SimulatedFleet, cluster: Cluster) -> None:
    assert {node.name for node in cluster.nodes} == {machine.name for machine in fleet.machines}
    assert sum(node.gpu_count for node in cluster.nodes) == 64
    by_name = {node.name: node for node in cluster.nodes}
    for machine in fleet.machines:
        node = by_name[machine.name]
        assert node.gpu_product == machine.model.product
        assert node.pool == machine.pool
    shared = next(by_name[machine.name] for machine in fleet.machines if machine.role == "shared")
    assert (shared.sharing, shared.replicas, shared.accelerators["nvidia.com/gpu"]) == (Sharing.TIME_SLICING, 4, 16)
    sliced = next(by_name[machine.name] for machine in fleet.machines if machine.role == "mig")
    assert dict(sliced.mig_layout) == {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 9}
    assert sliced.accelerators["nvidia.com/gpu"] == 6


def test_no_node_is_asked_for_more_than_it_has(cluster: Cluster) -> None:
    asked: Counter[tuple[str, str]] = Counter()
    for pod in cluster.pods:
        if pod.phase == "Running":
            for resource, count in pod.accelerators.items():
                asked[pod.node, resource] += count
    capacity = {node.name: node.accelerators for node in cluster.nodes}
    assert asked
    for (node, resource), count in asked.items():
        assert count <= capacity[node][resource]


def test_pods_are_those_that_hold_devices_now(fleet: SimulatedFleet, cluster: Cluster, moment: datetime) -> None:
    at = (moment - fleet.plan.start).total_seconds()
    alive = {f"{r.workload.namespace}/{pod.name}" for r in fleet.runs for pod in r.pods if r.alive(at)}
    running = {pod.ref for pod in cluster.pods if pod.phase == "Running"}
    assert running == alive


def test_gangs_and_budgets_are_read(fleet: SimulatedFleet, tmp_path: Path) -> None:
    frameworks: set[str] = set()
    budgets = 0
    for number, at in enumerate(MOMENTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_cluster(fleet, folder, at)
        cluster = RecordedCluster(folder).read(at)
        frameworks |= {gang.framework for gang in cluster.gangs}
        budgets += len(cluster.budgets)
    assert len(frameworks & {"JobSet", "Kubeflow Training", "Volcano"}) >= 2
    assert budgets > 0


def test_gangs_in_part_are_there_and_what_looks_like_one(tmp_path: Path) -> None:
    """One of each row of the table, as far as there is room; the others' Pods are as without them."""
    plan = FleetPlan(seed=5, end=END, gpus=128, days=2, idle_allocations=0, faults=(), partial_gangs=8)
    fleet = build_fleet(plan)
    planted = [run for run in fleet.runs if any(not pod.places for pod in run.pods)]
    told = {(run.idle, run.state) for run in planted}
    assert {(FindingKind.PARTIAL_GANG, ""), (None, ""), (None, "pulling")} <= told
    for run in planted:
        at = plan.moment(max(run.start, 0.0) + 60)
        write_cluster(fleet, tmp_path, at)
        cluster = RecordedCluster(tmp_path).read(at)
        refs = {f"{run.workload.namespace}/{pod.name}": pod for pod in run.pods}
        mine = {pod.ref: pod for pod in cluster.pods if pod.ref in refs}
        assert set(mine) == set(refs)
        waiting = [pod for ref, pod in mine.items() if not refs[ref].places and pod.phase == "Pending"]
        assert all(bool(pod.node) is (run.state == "pulling") for pod in waiting)
        assert all("Insufficient nvidia.com/gpu" in pod.unscheduled for pod in waiting if not pod.node)
        found = partial_gangs(cluster)
        named = {pod.gang for pod in mine.values() if pod.gang in found}
        waits = run.state not in ("pulling", "completed", "elastic", "leaving")
        assert bool(named) is waits, run.note
