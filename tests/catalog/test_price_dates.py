"""Prices that are old: what doctor says of those that count here, and what fails a release."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from advise.world import cluster, node, price
from gpuwatch.account.money import PriceList
from gpuwatch.facts.model.cluster import Cluster
from gpuwatch.say.doctor import price_fact
from tools.price_dates import PRICES, too_old

AT = datetime(2026, 11, 26, 12, tzinfo=UTC)
ROW = replace(price(), price_date=date(2026, 7, 29))
"""120 days before AT."""


def fact(*rows: object, world: Cluster | None = None) -> str:
    return price_fact(world or cluster([node()], [], []), PriceList(rows), AT)  # type: ignore[arg-type]


@pytest.mark.parametrize(("days", "old"), [(0, False), (1, True)])
def test_a_price_is_old_after_120_days(days: int, old: bool) -> None:
    told = fact(replace(ROW, price_date=ROW.price_date - timedelta(days=days)))
    assert told.startswith("known of 1 of 1 GPU Node")
    assert ("The price of big-a100 is of 2026-07-28, more than 120 days ago: compare it" in told) is old


def test_an_old_price_that_does_not_count_here_is_not_told() -> None:
    assert "days ago" not in fact(ROW, replace(ROW, name="other", price_date=date(2020, 1, 1)))


def test_instance_types_without_a_price_are_named() -> None:
    world = cluster([node(), node("m", instance_type="p9.huge")], [], [])
    assert fact(ROW, world=world) == "known of 1 of 2 GPU Nodes, not of p9.huge; give them in the setting prices"
    assert fact(ROW, world=cluster([], [], [])) == "no GPU Node was read"


@pytest.mark.parametrize(("day", "count"), [("2026-07-29", 0), ("2026-07-28", 1)])
def test_a_release_fails_for_prices_of_more_than_120_days_ago(day: str, count: int) -> None:
    text = f"name,vendor,price_date\na,aws,{day}\nb,azure,2026-11-01\n"
    assert too_old(text, AT.date()) == ({("aws", day): 1} if count else {})


def test_the_release_check_reads_the_shipped_prices() -> None:
    assert too_old(PRICES.read_text(), date(2027, 12, 31))
    assert list(too_old(PRICES.read_text(), date(2026, 8, 4))) == [("aws", "2025-04-24")]
