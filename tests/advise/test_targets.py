"""What is looked at and how its resources are called; prices of Nodes, hours of a week, and what a slower run costs."""

from datetime import timedelta

import pytest

from advise.world import A100, GIB, LIGHT, NOW, advised, answer, cell, cluster, node, option, owner, pod, price, profile
from gpuwatch.account.money import Capacity, Discount, PriceList, capacity_of, pod_hours_per_week, run_time_ratio
from gpuwatch.facts.model.cluster import Node, Sharing
from gpuwatch.facts.model.sizing import Abstention, EvidenceTier, SpeedEstimate, TargetKind
from gpuwatch.size.policy import AdvicePolicy
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


def test_price_of_a_node_by_type_and_region():
    prices = PriceList([price(), price(region="there", per_hour=32.0), price("own", region="*", per_hour=8.0)])
    assert prices.of_node(node()).price_per_gpu_hour == 2.0
    assert prices.of_node(node(region="there")).price_per_gpu_hour == 4.0
    assert prices.of_node(node(instance_type="own", region="moon")).price_per_gpu_hour == 1.0


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (node(instance_type=""), "no label node.kubernetes.io/instance-type"),
        (node(region="moon"), "No price of big-a100 in region moon is known"),
        (node(region=""), "has no label topology.kubernetes.io/region"),
        (node(instance_type="euro"), "in EUR and sums are in USD; give its price in USD"),
    ],
)
def test_a_price_that_is_not_known_says_why(one, words):
    found = PriceList([price(), price("euro", currency="EUR")]).of_node(one)
    assert found.price_per_gpu_hour is None
    assert words in found.reason


def test_a_list_in_another_currency_knows_only_prices_in_it():
    prices = PriceList([price(), price("euro", per_hour=8.0, currency="EUR")], "EUR")
    assert prices.of_node(node(instance_type="euro")).price_per_gpu_hour == 1.0
    assert prices.of_node(node()).price_per_gpu_hour is None
    assert "in USD and sums are in EUR" in prices.of_node(node()).reason
    assert [one.name for one in prices.offers(["here"])] == ["euro"]


def test_every_answer_names_the_currency_of_its_money():
    euros = [price(currency="EUR")]
    found = advised(answer(profile(), prices=euros, currency="EUR"))
    assert found.currency == "EUR"
    assert "294.00 of 336.00 EUR" in found.reason
    assert advised(answer(profile(), prices=euros)).chosen.projected_saving_per_week is None
    stays = answer(profile(cells=[cell(0.99, 0.95)]), prices=euros, currency="EUR")
    assert isinstance(stays, Abstention)
    assert stays.currency == "EUR"


def test_a_saving_is_never_more_than_what_it_is_saved_of():
    for one in (profile(), profile(JOB, cells=LIGHT), profile(pods=3.0), profile(days=2.0)):
        found = advised(answer(one))
        for each in found.options:
            assert each.projected_saving_per_week <= found.current.projected_cost_per_week
            assert each.projected_saving_gpu_hours_per_week <= found.current.projected_gpu_hours_per_week


def test_one_node_without_a_price_leaves_the_mean_unknown():
    prices = PriceList([price(), price("dear", per_hour=32.0)])
    both = prices.of_nodes([node(), node(instance_type="dear", gpus=24)])
    assert both.price_per_gpu_hour == pytest.approx((2.0 * 8 + 4.0 * 24) / 32)
    assert prices.of_nodes([node(), node(instance_type="unheard")]).price_per_gpu_hour is None
    assert prices.of_nodes([]).price_per_gpu_hour is None


def test_the_operators_row_counts_before_the_catalogs():
    assert PriceList([price(per_hour=8.0), price(per_hour=16.0)]).of_node(node()).price_per_gpu_hour == 1.0


def test_spot_nodes_are_said():
    spot = cluster([node(labels={"karpenter.sh/capacity-type": "spot"})])
    assert any("spot" in text for text in advised(answer(profile(), world=spot)).caveats)
    assert not any("spot" in text for text in advised(answer(profile())).caveats)


@pytest.mark.parametrize(
    ("more", "ends", "hours"),
    [
        ({"days": 14.0}, False, 168.0),
        ({"days": 14.0, "hours_per_day": 12.0}, True, 84.0),
        ({"days": 14.0, "pods": 3.0}, False, 504.0),
        ({"days": 14.0, "gpus": 4}, False, 168.0),
        ({"days": 2.0}, False, 168.0),  # goes on
        ({"days": 2.0}, True, 48.0),  # a young job is taken as it was
        ({"days": 2.0, "ended": timedelta(days=3)}, False, 48.0),  # ended
        ({"days": 2.0, "ended": timedelta(days=20)}, False, 0.0),  # not in the newest week
        ({"days": 14.0, "mig": "3g.20gb", "hours_per_day": 24.0 / 2}, False, 168.0),
    ],
)
def test_hours_of_a_week(more, ends, hours):
    # 2026-11-16 00:00: of the newest seven days six are over.
    assert pod_hours_per_week(profile(**more), NOW, ends=ends) == pytest.approx(hours)


@pytest.mark.parametrize(("ends", "hours"), [(False, 168.0), (True, 84.0)])
def test_hours_of_a_profile_that_kept_no_days(ends, hours):
    one = profile(days=3.5, hours_per_day=24.0)
    bare = type(one)(**{name: getattr(one, name) for name in one.__dataclass_fields__ if name != "days"})
    assert pod_hours_per_week(bare, NOW, ends=ends) == pytest.approx(hours)


def speed(low, likely, high=3.0):
    return SpeedEstimate(low_ratio=low, likely_ratio=likely, high_ratio=high, tier=EvidenceTier.SM, basis="")


@pytest.mark.parametrize(
    ("low", "likely", "ends", "ratio"),
    [(0.7, 0.8, True, 1.25), (0.7, 0.8, False, 1.0), (1.6, 2.0, True, 0.625), (0.9, 2.0, True, 1.0)],
)
def test_losses_count_as_likely_and_gains_as_sure(low, likely, ends, ratio):
    assert run_time_ratio(speed(low, likely), ends=ends) == pytest.approx(ratio)


def test_a_week_in_money_adds_up():
    found = advised(answer(profile(JOB, cells=LIGHT), world=cluster([node()], [owner(JOB, "batch/v1")], [pod(JOB)])))
    assert found.current.projected_cost_per_week == pytest.approx(168 * 2.0)
    one = option(found, TargetKind.MIG, "3g.20gb")
    longer = 1 / one.speed.likely_ratio
    assert one.projected_cost_per_week == pytest.approx(168 * 2.0 * 0.5 * longer)
    assert one.projected_saving_per_week == pytest.approx(168 * 2.0 * (1 - 0.5 * longer))
    assert one.projected_saving_gpu_hours_per_week == pytest.approx(168 * (1 - 0.5 * longer))
    assert found.doing_nothing_cost_per_week == found.chosen.projected_saving_per_week


def test_without_a_price_gpu_hours_decide_and_it_is_said():
    found = advised(answer(profile(), prices=[]))
    assert found.chosen.projected_cost_per_week is None
    assert found.chosen.projected_saving_per_week is None
    assert found.chosen.projected_saving_gpu_hours_per_week == pytest.approx(147.0)
    assert any("compared by GPU-hours" in text and "big-a100" in text for text in found.caveats)


def test_a_move_to_another_model_frees_all_hours_of_the_present_one():
    nodes = [node(), node("l4-0", "NVIDIA-L4", instance_type="l4-1")]
    found = answer(
        profile("Job/team/train"),
        world=cluster(nodes, [], []),
        prices=[price(), price("l4-1", "L4", gpus=8, per_hour=8.0)],
    )
    assert option(found, TargetKind.MODEL, "L4").projected_saving_gpu_hours_per_week == pytest.approx(168.0)


# 1g.5gb saves 7/8 = 0.875 of the cost.
@pytest.mark.parametrize(
    ("bound", "most"), [("min_saving_ratio", 0.87), ("min_saving_gpu_hours_per_week", 147.0)], ids=["ratio", "hours"]
)
def test_small_savings_are_not_worth_a_restart(bound, most):
    advised(answer(profile(), policy=AdvicePolicy(**{bound: most})))
    assert isinstance(answer(profile(), policy=AdvicePolicy(**{bound: most + 0.01})), Abstention)


def test_gpu_model_without_a_node_has_no_price():
    found = answer(profile(cells=[cell(0.1, 0.01)]), world=cluster([], [], []))
    assert found.current.projected_cost_per_week is None
    assert A100 in found.current.target.name


def bought(**labels: str) -> Node:
    return node("n-0", labels=labels)


@pytest.mark.parametrize(
    ("labels", "capacity"),
    [
        ({}, Capacity.ON_DEMAND),
        ({"karpenter.sh/capacity-type": "on-demand"}, Capacity.ON_DEMAND),
        ({"karpenter.sh/capacity-type": "spot"}, Capacity.SPOT),
        ({"eks.amazonaws.com/capacityType": "SPOT"}, Capacity.SPOT),
        ({"cloud.google.com/gke-spot": "true"}, Capacity.SPOT),
        ({"kubernetes.azure.com/scalesetpriority": "spot"}, Capacity.SPOT),
        ({"karpenter.sh/capacity-type": "reserved"}, Capacity.RESERVED),
        ({"eks.amazonaws.com/capacityType": "CAPACITY_BLOCK"}, Capacity.RESERVED),
        ({"cloud.google.com/reservation-name": "h100-block"}, Capacity.RESERVED),
    ],
)
def test_how_a_node_was_bought(labels: dict[str, str], capacity: Capacity) -> None:
    assert capacity_of(bought(**labels)) is capacity


def test_a_discount_is_taken_from_the_list_price_and_said() -> None:
    """8 GPUs at 16 USD an hour: 2 USD each; of spot Nodes 35 % are paid, 0.70 USD."""
    spot = bought(**{"karpenter.sh/capacity-type": "spot"})
    discounts = (
        Discount(price_ratio=0.35, capacity=Capacity.SPOT),
        Discount(price_ratio=0.6, instance_types="big-*"),
    )
    prices = PriceList([price()], discounts=discounts)
    assert prices.of_node(spot).price_per_gpu_hour == pytest.approx(0.70)
    assert "35% of it are paid, by the setting discounts" in prices.of_node(spot).reason
    assert not prices.of_node(spot).spot  # the caveat on list prices does not apply
    # The first entry that covers a Node counts, and other Nodes get the second.
    assert prices.of_node(bought()).price_per_gpu_hour == pytest.approx(1.20)
    assert PriceList([price()]).of_node(spot).price_per_gpu_hour == pytest.approx(2.00)
    assert PriceList([price()]).of_node(spot).spot


def test_new_machines_cost_what_machines_of_the_same_capacity_cost() -> None:
    prices = PriceList([price(region="here")], discounts=[Discount(price_ratio=0.5, capacity=Capacity.SPOT)])
    assert [one.price_per_hour for one in prices.offers(["here"], Capacity.SPOT)] == [8.0]
    assert [one.price_per_hour for one in prices.offers(["here"])] == [16.0]


@pytest.mark.parametrize("ratio", [0.0, -0.5, 1.01])
def test_a_discount_out_of_bounds_says_what_to_write(ratio: float) -> None:
    with pytest.raises(ValueError, match="give the share of the list price that you pay"):
        Discount(price_ratio=ratio)
