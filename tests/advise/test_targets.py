"""What is looked at: slices, models, fewer GPUs, and how their resources are called."""

import pytest

from advise.world import GIB, answer, cluster, node, option, owner, pod, price, profile
from gpuwatch.facts.model.cluster import Sharing
from gpuwatch.facts.model.sizing import TargetKind
from gpuwatch.size.targets import shared_resource, strategy

JOB = "Job/team/train"


def names(found, kind):
    return [one.target.mig_profile or one.target.gpu_model for one in found.options if one.target.kind is kind]


def test_every_slice_of_the_card_and_no_variant_for_graphics_or_media():
    found = answer(profile())
    assert sorted(names(found, TargetKind.MIG)) == ["1g.10gb", "1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]
    there = answer(profile(mig="2g.10gb"))
    assert "2g.10gb" not in names(there, TargetKind.MIG)
    assert names(answer(profile(gpu="L4")), TargetKind.MIG) == []


def test_models_that_the_cluster_has_come_with_its_nodes_prices():
    nodes = [node(), node("l4-0", "NVIDIA-L4", instance_type="l4-2", gpus=2)]
    prices = [price(), price("l4-2", "L4", gpus=2, per_hour=3.0), price("l4-1", "L4", gpus=1, per_hour=0.1)]
    one = option(answer(profile(JOB), world=cluster(nodes, [], []), prices=prices), TargetKind.MODEL, "L4").target
    assert (one.instance_type, one.price_per_hour, one.resource) == ("l4-2", 1.5, "nvidia.com/gpu")


def test_other_models_are_machines_of_the_same_region_and_provider():
    prices = [
        price(),
        price("l4-far", "L4", gpus=1, per_hour=0.1, region="there"),
        price("l4-foreign", "L4", gpus=1, per_hour=0.2, vendor="another", region="elsewhere"),
        price("l4-1", "L4", gpus=1, per_hour=0.5),
        price("t4-own", "T4", gpus=1, per_hour=0.3, vendor="", region="*"),
    ]
    found = answer(profile(JOB), world=cluster([node()], [], []), prices=prices)
    assert {
        one.target.gpu_model: one.target.instance_type for one in found.options if one.target.kind is TargetKind.MODEL
    } == {
        "L4": "l4-1",
        "T4": "t4-own",
    }


def test_a_new_machine_is_paid_as_a_whole():
    prices = [price(), price("l4-8", "L4", gpus=8, per_hour=8.0), price("l4-1", "L4", gpus=1, per_hour=1.5)]
    one = option(answer(profile(JOB), world=cluster([node()], [], []), prices=prices), TargetKind.MODEL, "L4").target
    assert (one.instance_type, one.price_per_hour) == ("l4-1", 1.5)
    many = answer(profile(JOB, pods=8.0), world=cluster([node()], [], []), prices=prices)
    one = option(many, TargetKind.MODEL, "L4").target
    assert (one.instance_type, one.price_per_hour) == ("l4-8", 1.0)


def offered(prices, **asked):
    """The machine with an L4 that is looked at."""
    found = answer(profile(JOB, **asked), world=cluster([node()], [], []), prices=[price(), *prices])
    return option(found, TargetKind.MODEL, "L4").target


def test_a_new_machines_host_comes_by_the_share_of_its_gpus():
    # Of 8 CPUs the kubelet keeps 0.09, of 16 GiB 2.6 GiB.
    alone = offered([price("l4-1", "L4", gpus=1, per_hour=0.5, vcpus=8, host_gib=16)])
    assert (alone.host_cpu_cores, alone.host_memory_bytes) == (pytest.approx(7.91), pytest.approx(13.4 * GIB))
    beside = offered([price("l4-2", "L4", gpus=2, per_hour=0.5, vcpus=8, host_gib=16)])
    assert (beside.host_cpu_cores, beside.host_memory_bytes) == (pytest.approx(3.955), pytest.approx(6.7 * GIB))
    unknown = offered([price("l4-1", "L4", gpus=1, per_hour=0.5)])
    assert (unknown.host_cpu_cores, unknown.host_memory_bytes) == (None, None)


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ({}, "small"),  # nobody knows what it asks for
        ({"cpu_cores": 3.91, "host_memory_bytes": 13.3 * GIB}, "small"),
        ({"cpu_cores": 3.93}, "large"),
        ({"host_memory_bytes": 13.5 * GIB}, "large"),
        ({"cpu_cores": 7.92}, "untold"),  # more than any host is known to have: perhaps the one that is not known
    ],
)
def test_the_cheapest_machine_whose_host_fits_is_looked_at(asked, chosen):
    prices = [
        price("small", "L4", gpus=1, per_hour=0.5, vcpus=4, host_gib=16),
        price("untold", "L4", gpus=1, per_hour=0.6),
        price("large", "L4", gpus=1, per_hour=0.7, vcpus=8, host_gib=32),
        price("larger", "L4", gpus=1, per_hour=0.9, vcpus=8, host_gib=64),
    ]
    assert offered(prices, **asked).instance_type == chosen


def test_a_machine_with_too_few_gpus_never_comes_first_for_its_host():
    prices = [
        price("one", "L4", gpus=1, per_hour=0.5, vcpus=64, host_gib=512),
        price("two", "L4", gpus=2, per_hour=2.0, vcpus=4, host_gib=16),
    ]
    assert offered(prices, gpus=2, cpu_cores=32.0).instance_type == "two"


def test_what_nobody_offers_is_no_target():
    assert names(answer(profile(), prices=[]), TargetKind.MODEL) == []


def test_fewer_gpus_are_the_divisors():
    found = answer(profile(gpus=6))
    counts = sorted(one.target.gpus_per_pod for one in found.options if one.target.kind is TargetKind.FEWER)
    assert counts == [1, 2, 3]
    assert names(answer(profile(gpus=1)), TargetKind.FEWER) == []


def test_the_present_is_called_as_its_pods_call_it():
    renamed = cluster(pods=[pod(accelerators={"nvidia.com/gpu-1g5gb": 1})])
    assert answer(profile(mig="1g.5gb"), world=renamed).current.target.resource == "nvidia.com/gpu-1g5gb"
    gone = cluster(pods=[])
    assert answer(profile(mig="1g.5gb"), world=gone).current.target.resource == "nvidia.com/mig-1g.5gb"


@pytest.mark.parametrize(
    ("strategies", "resource"),
    [(["mixed"], "nvidia.com/mig-1g.5gb"), (["single"], "nvidia.com/gpu"), ([""], "nvidia.com/mig-1g.5gb"),
     (["single", "mixed"], "nvidia.com/mig-1g.5gb")],
)  # fmt: skip
def test_the_strategy_names_the_slice(strategies, resource):
    nodes = [node(f"n{number}", mig_strategy=one) for number, one in enumerate(strategies)]
    assert strategy(nodes) == ("single" if strategies == ["single"] else "mixed")
    found = answer(profile(), world=cluster(nodes, [owner()], [pod(on="")]))
    assert option(found, TargetKind.MIG, "1g.5gb").target.resource == resource


def test_shared_devices_are_called_as_their_nodes_call_them():
    plain = node(sharing=Sharing.TIME_SLICING, accelerators={"nvidia.com/gpu": 32})
    renamed = node(sharing=Sharing.TIME_SLICING, accelerators={"nvidia.com/gpu.shared": 32})
    assert shared_resource([plain], Sharing.TIME_SLICING) == "nvidia.com/gpu"
    assert shared_resource([renamed], Sharing.TIME_SLICING) == "nvidia.com/gpu.shared"
    assert shared_resource([plain], Sharing.MPS) == "nvidia.com/gpu.shared"
    assert shared_resource([], Sharing.MPS) == "nvidia.com/gpu.shared"
