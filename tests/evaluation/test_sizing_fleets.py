"""Right-sizing on whole fleets: what counts as found, and which advice counts as too small."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from advise.world import answer, profile
from gpuwatch.facts.model.sizing import Recommendation, Target, TargetKind
from lab.demo import simulated
from lab.evaluation.sizing_fleets import FleetSizing, main, score, speed_ratio
from lab.simulate.behaviour import WorkKind
from lab.simulate.fleet import SimulatedFleet

MIB = 2**20


@pytest.fixture(scope="module")
def fleet() -> SimulatedFleet:
    return simulated(3, 32, 3.0)


def advice(fleet: SimulatedFleet, memory_gib: float = 10.0, model: str = "A10G", name: str = "") -> Recommendation:
    given = answer(profile())
    assert isinstance(given, Recommendation)
    now = replace(given.current.target, gpu_model="A100-SXM4-80GB", gpus_per_pod=1, gpu_share_ratio=1.0)
    return replace(
        given,
        key=replace(given.key, workload=name or fleet.oversized[0]),
        current=replace(given.current, target=now, memory_bytes=80 * 1024 * MIB),
        chosen=replace(
            given.chosen,
            target=Target(kind=TargetKind.MODEL, gpu_model=model, gpus_per_pod=1),
            memory_bytes=memory_gib * 1024 * MIB,
        ),
    )


def test_what_was_planted_is_advised_or_has_a_reason(fleet: SimulatedFleet) -> None:
    reasons = {fleet.oversized[1].partition("/")[2]: "young"}
    found = score(3, fleet, [advice(fleet)], reasons)
    assert (found.planted, found.advised, found.others_advised) == (len(fleet.oversized), 1, 0)
    assert found.left == {"young": 1, "not profiled": len(fleet.oversized) - 2}
    assert found.small_memory == found.slower == ()


def test_a_target_with_less_memory_than_the_work_takes_is_counted(fleet: SimulatedFleet) -> None:
    name = fleet.oversized[0]
    taken = max(run.behaviour.memory_share for run in fleet.runs if run.workload.id == name) * 80 + 460 / 1024
    for less, wrong in ((0.01, False), (-0.01, True)):
        found = score(3, fleet, [advice(fleet, taken + less)], {})
        assert bool(found.small_memory) is wrong


def test_a_target_that_cannot_give_the_rates_is_counted(fleet: SimulatedFleet) -> None:
    """Of an A100, the tensor cores of a T4 are a fifth and its bandwidth is a sixth."""
    hard = next(run for run in fleet.runs if run.behaviour.sm_level > 0.7)
    assert score(3, fleet, [advice(fleet, 80, "T4")], {}).slower == ()
    found = score(3, fleet, [advice(fleet, 80, "T4", hard.workload.id)], {})
    assert found.slower == (f"3 {hard.workload.id.partition('/')[2]}",)
    assert (found.advised, found.others_advised) == (0, 1)


def test_of_host_bound_work_only_the_part_on_the_gpu_gets_longer(fleet: SimulatedFleet) -> None:
    """Its kernels ask for 0.29 of an A100's bandwidth, and a T4 has 0.16: they take 1.84 times as long. They run for
    10 % of the time, so that the whole takes 1.08 times as long; at 20 % it would be 1.17 times."""
    run = next(run for run in fleet.runs if run.behaviour.activity is WorkKind.HOST_BOUND)
    for busy, speed in ((0.1, 0.92), (0.2, 0.86)):
        slow = replace(run, behaviour=replace(run.behaviour, sm_level=busy))
        assert speed_ratio(advice(fleet, 80, "T4"), slow) == pytest.approx(speed, abs=0.01)


def test_fleets_add_up() -> None:
    both = FleetSizing(seeds=(1,), planted=2, small_memory=("1 a",)) + FleetSizing(seeds=(2,), planted=3)
    assert (both.seeds, both.planted, both.small_memory) == ((1, 2), 5, ("1 a",))


def test_the_command_prints_them() -> None:
    answered = CliRunner().invoke(main, ["--seeds", "20", "--gpus", "16", "--days", "2", "--format", "json"])
    assert answered.exit_code == 0, answered.output
    found = json.loads(answered.output)
    assert found["planted"] == found["advised"] + sum(found["left"].values())
    refused = CliRunner().invoke(main, ["--seeds", "many"])
    assert "no list of seeds" in refused.output
