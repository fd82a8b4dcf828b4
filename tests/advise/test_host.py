"""A Pod that keeps the CPU or memory of its GPUs' host frees no GPU by a smaller slice, and the saving says so."""

import pytest

from advise.world import GIB, advised, answer, cluster, node, option, profile, rules
from gpuwatch.facts.model.sizing import TargetKind

SLICE = TargetKind.MIG


@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        # The Node has 96 CPU cores and 1,000 GiB for 8 GPUs.
        ({"cpu_cores": 24.0}, "the host takes 4 of them"),
        ({"cpu_cores": 12.0}, "the host takes 8 of them"),
        ({"host_memory_bytes": 400.0 * GIB}, "the host takes 2 of them"),
        ({"cpu_cores": 97.0}, "the host takes 0 of them"),
        ({"cpu_cores": 10.0, "host_memory_bytes": 100.0 * GIB}, None),
        ({}, None),
    ],
)
def test_a_slice_frees_nothing_where_the_host_bounds_the_pods(asked, refused):
    one = option(answer(profile(**asked)), SLICE, "1g.5gb")
    reasons = [veto.reason for veto in one.vetoes if veto.rule == "host_resources"]
    assert len(reasons) == (refused is not None)
    assert all(refused in reason for reason in reasons)


def test_the_saving_counts_the_part_of_the_host_that_stays_in_use():
    """6 of 96 cores: 16 such Pods on 8 GPUs, half a GPU each, whatever their slices. 84 of 168 hours are saved."""
    light, heavy = advised(answer(profile(cpu_cores=1.0))), advised(answer(profile(cpu_cores=6.0)))
    assert light.chosen.projected_saving_gpu_hours_per_week == pytest.approx(168 * 7 / 8, rel=0.01)
    assert heavy.chosen.projected_saving_gpu_hours_per_week == pytest.approx(168 / 2, rel=0.01)
    assert heavy.chosen.projected_saving_per_week == pytest.approx(168, rel=0.01)  # at 2 USD an hour
    assert any(
        "the host takes 16 of them, so the saving counts 0.50 GPUs as still in use" in it for it in heavy.caveats
    )


def test_what_pods_without_gpus_ask_for_is_not_there():
    world = cluster(nodes=[node(other_cpu_cores=60.0)])
    assert "host_resources" in rules(option(answer(profile(cpu_cores=6.0), world=world), SLICE, "1g.5gb"))
    assert "host_resources" not in rules(option(answer(profile(cpu_cores=4.0), world=world), SLICE, "1g.5gb"))


def test_fewer_gpus_with_the_same_host_free_nothing():
    found = answer(profile("Job/team/lab", gpus=4, cpu_cores=48.0, cells=profile().cells))
    assert "host_resources" in rules(option(found, TargetKind.FEWER, "2 ×"))


def test_a_host_of_unknown_size_vetoes_no_slice():
    found = answer(profile(cpu_cores=24.0), world=cluster(nodes=[node(cpu_cores=0.0)]))
    assert "host_resources" not in rules(option(found, SLICE, "1g.5gb"))
