"""Prices of Nodes, hours of a week, and what a slower run costs."""

from datetime import timedelta

import pytest

from advise.world import A100, LIGHT, NOW, advised, answer, cell, cluster, node, option, owner, pod, price, profile
from gpuwatch.account.money import PriceList, pod_hours_per_week, run_time_ratio
from gpuwatch.facts.model.sizing import Abstention, EvidenceTier, SpeedEstimate, TargetKind
from gpuwatch.size.policy import AdvicePolicy

JOB = "Job/team/train"


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
