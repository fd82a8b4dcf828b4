import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.judge.fleet import peers_of


def test_one_sick_member_moves_neither_middle_nor_spread() -> None:
    assert peers_of([0.0] * 7 + [17_700.0]) == peers_of([0.0] * 8)


def test_the_spread_has_a_floor_where_all_are_equal() -> None:
    peers = peers_of([1000.0] * 6)
    assert (peers.median, peers.spread, peers.count) == (1000.0, 80.0, 5)
    # Three spreads are 24 %, just past the 22 % that healthy cards of one model differ by at most.
    assert peers.lower == pytest.approx(760.0)
    assert peers.upper == pytest.approx(1240.0)


def test_a_wide_cohort_is_credited_with_its_own_spread() -> None:
    # Deviations from the median 100 are 40, 20, 0, 20, 40: their median 20 makes 29.65.
    assert peers_of([60.0, 80.0, 100.0, 120.0, 140.0]).spread == pytest.approx(1.4826 * 20)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40))
def test_bounds_enclose_the_median(values: list[float]) -> None:
    peers = peers_of(values)
    assert peers.lower <= peers.median <= peers.upper
    assert peers.count == len(values) - 1
