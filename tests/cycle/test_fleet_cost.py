"""Who has which GPUs, and what that costs: added up by hand, and on a simulated fleet."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from advise.world import A100, NOW, advised, answer, cell, cluster, node, owner, pod, price, profile
from detect.builders import device
from gpuwatch.account.fleet_cost import FleetCost, advice_counts, fleet_cost
from gpuwatch.account.money import PriceList
from gpuwatch.facts.model.cluster import ClaimedDevice, Node, Pod, Sharing
from gpuwatch.facts.model.decision import (
    Finding,
    FindingKind,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.sizing import Outcome, OutcomeVerdict, Recommendation
from gpuwatch.facts.model.telemetry import Device
from gpuwatch.sources.kube.recorded import RecordedCluster
from lab.simulate.fleet import build_fleet
from lab.simulate.plan import FleetPlan
from lab.simulate.writing import write_cluster
from plan import fleet
from report.terminal import analysis_of

PRICES = PriceList([price()])  # 2 USD for an A100 and hour
GPU = "nvidia.com/gpu"


def idle(*refs: str, confidence: float = 0.9, kind: SubjectKind = SubjectKind.POD) -> Finding:
    return fleet.idle(refs[0], (), subject=Subject(kind, refs[0]), confidence_ratio=confidence, pods=refs)


def costs(
    nodes: Sequence[Node],
    pods: Sequence[Pod],
    *findings: Finding,
    devices: Sequence[Device] = (),
    advice: Sequence[Recommendation] = (),
    prices: PriceList = PRICES,
    **more: object,
) -> FleetCost:
    return fleet_cost(
        analysis_of(findings, at=NOW, devices=devices, cluster=cluster(nodes, (), pods, **more)), prices, advice
    )


def team(name: str, gpus: int = 1, number: int = 0, resource: str = GPU, **more: object) -> Pod:
    return pod(f"Job/{name}/train", f"train-{number}", accelerators={resource: gpus}, **more)


def test_gpus_are_counted_by_team_and_paid_for_by_the_hour() -> None:
    found = costs([node(pool="train")], [team("nlp", 2), team("vision", 4)], idle("nlp/train-0"))
    assert found.allocatable == {(A100, "train"): 8}
    assert found.allocated == {("vision", A100, "train"): 4, ("nlp", A100, "train"): 2}
    assert found.cost == {
        ("", "free"): 4.0,
        ("vision", "allocated"): 8.0,
        ("vision", "idle"): 0.0,
        ("vision", "suspected"): 0.0,
        ("nlp", "allocated"): 0.0,
        ("nlp", "idle"): 4.0,
        ("nlp", "suspected"): 0.0,
    }
    assert next(iter(found.cost)) == ("", "free")
    assert [key[0] for key in found.allocated] == ["vision", "nlp"]  # the largest first
    assert found.saving == {
        ("nlp", "release", "likely"): 4.0,
        ("nlp", "release", "pessimistic"): pytest.approx(3.6),
    }
    assert found.unpriced == {(A100, "train"): 0}
    assert found.currency == "USD"


def test_what_is_suspected_is_counted_apart_and_saves_nothing() -> None:
    suspected = replace(idle("nlp/train-0"), kind=FindingKind.SUSPECTED_IDLE, verdict=Verdict.UNKNOWN)
    found = costs([node()], [team("nlp", 2), team("nlp", 1, 1)], suspected)
    assert [found.cost["nlp", state] for state in ("suspected", "idle", "allocated")] == [4.0, 0.0, 2.0]
    assert found.saving == {}


def test_a_gang_is_idle_with_all_its_pods() -> None:
    pods = [team("nlp", 2, number) for number in range(3)]
    found = costs([node()], pods, idle("nlp/train-0", "nlp/train-1", kind=SubjectKind.GANG))
    assert found.cost["nlp", "idle"] == 8.0
    assert found.cost["nlp", "allocated"] == 4.0


def test_of_a_gang_in_part_those_cost_that_have_a_place() -> None:
    waiting = team("nlp", 2, 1, on="", phase="Pending")
    partial = replace(idle("nlp/train-0", "nlp/train-1", kind=SubjectKind.GANG), kind=FindingKind.PARTIAL_GANG)
    found = costs([node()], [team("nlp", 2), waiting], partial)
    assert (found.cost["nlp", "idle"], found.cost["nlp", "allocated"]) == (4.0, 0.0)


def test_a_price_that_is_not_known_has_no_cost() -> None:
    found = costs([node(instance_type="unheard")], [team("nlp", 2)], idle("nlp/train-0"))
    assert (found.cost, found.saving) == ({}, {})
    assert found.allocated == {("nlp", A100, "default"): 2}
    assert found.unpriced == {(A100, "default"): 8}


def test_the_part_of_a_team_without_a_price_is_no_zero() -> None:
    dear = node("gpu-1", instance_type="unheard")
    found = costs([node(), dear], [team("nlp", 2), team("nlp", 4, 1, on="gpu-1")], idle("nlp/train-1"))
    assert found.cost == {("", "free"): 12.0, ("nlp", "allocated"): 4.0, ("nlp", "suspected"): 0.0}  # of idle: unknown
    assert found.unpriced == {(A100, "default"): 8}


@pytest.mark.parametrize(
    ("layout", "profile_name", "gpus"),
    [
        ({"1g.10gb": 4}, "1g.10gb", 0.25),
        ({"3g.20gb": 2}, "3g.20gb", 0.5),
        ({"7g.40gb": 1}, "7g.40gb", 1.0),
    ],
)
def test_instances_count_with_their_share_of_a_gpu(layout: dict[str, int], profile_name: str, gpus: float) -> None:
    found = costs([cut(layout)], [team("nlp", 1, resource=f"nvidia.com/mig-{profile_name}")])
    assert found.allocated == {("nlp", A100, "default"): pytest.approx(gpus)}
    assert found.allocatable[A100, "default"] == pytest.approx(1.0)
    assert sum(found.cost.values()) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "layout", [{"1g.5gb": 7}, {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 2}, {"4g.20gb": 1, "3g.20gb": 1}]
)
def test_all_instances_of_a_gpu_are_no_more_than_the_gpu(layout: dict[str, int]) -> None:
    pods = [team("nlp", count, number, f"nvidia.com/mig-{name}") for number, (name, count) in enumerate(layout.items())]
    found = costs([cut(layout)], pods)
    assert found.allocated["nlp", A100, "default"] == pytest.approx(found.allocatable[A100, "default"])
    assert 0.8 < found.allocatable[A100, "default"] <= 1.0 + 1e-9
    assert found.cost["", "free"] == pytest.approx(0.0)


def cut(layout: dict[str, int]) -> Node:
    """One A100 in these instances."""
    resources = {f"nvidia.com/mig-{name}": count for name, count in layout.items()}
    return node(gpus=1, accelerators=resources, allocatable=resources)


def test_instances_that_are_counted_as_gpus() -> None:
    """Strategy `single`: GPU Feature Discovery tells instances alone, and no GPUs."""
    alike = node(gpus=0, mig_strategy="single", accelerators={GPU: 8}, mig_layout={"1g.10gb": 8})
    found = costs([alike], [team("nlp", 4)])
    assert found.allocated == {("nlp", A100, "default"): pytest.approx(1.0)}
    assert found.allocatable == {(A100, "default"): pytest.approx(2.0)}


@pytest.mark.parametrize("labels", [{}, {"nvidia.com/gpu.replicas": "4"}])
def test_sharers_of_a_gpu_count_with_their_part(labels: dict[str, str]) -> None:
    """As the label of the resource says it; else by what the Node is known to do."""
    shared = node(
        gpus=2, accelerators={GPU: 8}, allocatable={GPU: 8}, sharing=Sharing.TIME_SLICING, replicas=4, labels=labels
    )
    found = costs([shared], [team("nlp"), team("vision", 3)])
    assert found.allocated == {("vision", A100, "default"): 0.75, ("nlp", A100, "default"): 0.25}
    assert found.allocatable == {(A100, "default"): 2.0}
    assert found.cost["", "free"] == 2.0


def test_claimed_devices_are_shared_by_the_pods_of_the_claim() -> None:
    """DRA: Nodes count no resource, and telemetry shows the GPUs."""
    bare = node(gpus=0, accelerators={})
    gpus = [device(f"gpu-{number}", node="gpu-0", model=A100) for number in range(4)]
    pods = [pod(f"Job/{name}/train", "train-0", accelerators={}, claims=("pair",)) for name in ("nlp", "vision")]
    pods.append(pod("Job/nlp/more", "more-0", accelerators={}, claims=("pair",)))
    claims = tuple(
        ClaimedDevice(claim=claim, driver="gpu.nvidia.com", pool="gpu-0", name=name, device=name)
        for claim, name in (("nlp/pair", "gpu-0"), ("nlp/pair", "gpu-1"), ("vision/pair", "gpu-2"))
    )
    found = costs([bare], pods, devices=gpus, claims=claims)
    assert found.allocated == {("nlp", A100, "default"): 2.0, ("vision", A100, "default"): 1.0}
    assert found.allocatable == {(A100, "default"): 4.0}


def test_what_a_pod_has_is_never_more_than_what_can_be_had() -> None:
    """The device plugin gave two GPUs up that a Pod has; and a Pod that ended is still listed beside its successor."""
    given_up = node(allocatable={GPU: 6})
    found = costs([given_up], [team("nlp", 8)])
    assert found.allocatable == {(A100, "default"): 8.0}
    assert found.cost["", "free"] == 0.0
    twice = costs([node()], [team("nlp", 8), team("nlp", 8, 1)])
    assert twice.allocated == {("nlp", A100, "default"): 8.0}


def test_pods_that_ended_or_wait_have_nothing() -> None:
    found = costs([node()], [team("nlp", 2, phase="Succeeded"), team("nlp", 2, 1, phase="Pending", on="")])
    assert found.allocated == {}
    assert found.cost == {("", "free"): 16.0}


def test_advice_saves_by_the_hour_and_less_where_the_work_runs_slowly() -> None:
    notebook = advised(answer(profile()))
    found = costs([node()], [pod()], advice=[notebook])
    kind = str(notebook.chosen.target.kind)
    likely = found.saving["team", kind, "likely"]
    assert likely == pytest.approx((notebook.chosen.projected_saving_per_week or 0.0) / 168)
    assert found.saving["team", kind, "pessimistic"] == likely  # it has no end, so it takes no longer
    unsure = replace(notebook, condition="Only if the image carries sm_120.")
    assert ("team", kind, "likely") not in costs([node()], [pod()], advice=[unsure]).saving
    world = cluster(workloads=[owner("Job/team/train", "batch/v1")], pods=[pod("Job/team/train", "train-0")])
    job = advised(answer(profile("Job/team/train", cells=(cell(0.5, 0.05),)), world=world))
    speed = job.chosen.speed
    assert speed.low_ratio < speed.likely_ratio, "the example has to be slower at worst than is likely"
    found = costs([node()], [], advice=[job])
    likely, pessimistic = (found.saving["team", str(job.chosen.target.kind), how] for how in ("likely", "pessimistic"))
    week = job.chosen.target.price_per_hour
    assert week is not None
    assert 0 < likely - pessimistic == pytest.approx(week * (1 / speed.low_ratio - 1 / min(speed.likely_ratio, 1.0)))


def test_what_is_idle_now_is_released_and_not_resized() -> None:
    notebook = advised(answer(profile()))
    found = costs([node()], [pod()], idle("team/lab-0", confidence=1.0), advice=[notebook])
    assert found.saving == {("team", "release", "likely"): 2.0, ("team", "release", "pessimistic"): 2.0}


def test_advice_is_counted_by_what_became_of_it() -> None:
    given = advised(answer(profile()))
    target, kind = given.chosen.target, str(given.chosen.target.kind)

    def outcome(days: float, applied: bool = False, workload: str = "") -> Outcome:
        at = NOW - timedelta(days=days)
        key = type(given.key)(workload or given.key.workload, "main", A100, "")
        return Outcome(
            key=key,
            recommended_at=at,
            target=target,
            predicted=given.chosen.speed,
            verdict=OutcomeVerdict.WAITING,
            applied_at=at + timedelta(hours=1) if applied else None,
        )

    outcomes = [outcome(20), outcome(10, applied=True), outcome(8, workload="Job/a/b"), outcome(1, workload="Job/a/c")]
    silent = answer(profile(cells=(cell(0.0, 0.0),)))
    assert not isinstance(silent, Recommendation)
    assert advice_counts([given], [silent], outcomes, NOW) == {
        (kind, "advised", ""): 1,
        ("", "abstained", str(silent.kind)): 1,
        (kind, "applied", ""): 1,
        (kind, "ignored", ""): 1,  # b; of c its owner may only not have heard yet
    }


@pytest.mark.parametrize("seed", [7, 11])
def test_a_simulated_fleet_adds_up(seed: int, tmp_path: Path) -> None:
    end = datetime(2026, 3, 2, 12, tzinfo=UTC)
    built = build_fleet(FleetPlan(seed=seed, end=end, days=1.0, interval_seconds=300, faults=()))
    write_cluster(built, tmp_path)
    state = RecordedCluster(tmp_path).read(end)
    found = fleet_cost(analysis_of(at=NOW, cluster=state), PriceList([]))
    held: dict[tuple[str, str], float] = defaultdict(float)
    for (_, model, pool), gpus in found.allocated.items():
        held[model, pool] += gpus
    assert sum(held.values()) > 20
    assert all(gpus <= found.allocatable[kind] + 1e-9 for kind, gpus in held.items())
    assert 63.5 < sum(found.allocatable.values()) <= 64 + 1e-9
