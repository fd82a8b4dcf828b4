"""The joint histogram: whatever is merged, nothing is lost and no mean moves, and it stays small."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.size.profile.joint import MAX_CELLS
from gpuwatch.size.profile.joint_cells import COLUMNS, FINEST, Weighted, cells_of, merged
from parts.held_windows import AT_ONCE, UNKNOWN, at, only, update, windows

ratios = st.one_of(st.just(UNKNOWN), st.integers(0, 1000).map(lambda value: value / 1000))


@st.composite
def rows(draw: st.DrawFn) -> Weighted:
    """Weights over nine orders of magnitude: old windows beside new ones."""
    count = draw(st.integers(1, 60))
    weight = [10.0 ** draw(st.integers(-6, 3)) for _ in range(count)]
    values = [
        [
            draw(st.integers(0, 1000)) / 1000,
            *(draw(ratios) for _ in range(3)),
            draw(ratios) * 700,
            draw(ratios),
            UNKNOWN,
        ]
        for _ in range(count)
    ]
    owner = sorted(draw(st.integers(0, 2)) for _ in range(count))
    return Weighted(np.array(owner, dtype=np.int64), np.array(weight), np.array(values).reshape(-1, COLUMNS))


def finest() -> np.typing.NDArray[np.int64]:
    return np.full(3, FINEST, dtype=np.int64)


quiet = settings(max_examples=60, derandomize=True)


@quiet
@given(given_rows=rows(), max_cells=st.integers(1, 20))
def test_nothing_is_lost_and_no_mean_moves(given_rows: Weighted, max_cells: int) -> None:
    found, resolution = merged(given_rows, finest(), max_cells)
    for owner in range(3):
        before, after = given_rows.owner == owner, found.owner == owner
        assert after.sum() <= max_cells or resolution[owner] == 1
        assert found.weight[after].sum() == pytest.approx(given_rows.weight[before].sum(), rel=1e-12)
        for column in range(COLUMNS):
            was, now = given_rows.values[before, column], found.values[after, column]
            assert np.nansum(now * found.weight[after]) == pytest.approx(
                np.nansum(was * given_rows.weight[before]), rel=1e-9, abs=1e-12
            )
            # Known for as long as before: what is unknown does not become nothing.
            assert found.weight[after][~np.isnan(now)].sum() == pytest.approx(
                given_rows.weight[before][~np.isnan(was)].sum(), rel=1e-12
            )


@quiet
@given(given_rows=rows(), cut=st.integers(0, 60), max_cells=st.integers(1, 20))
def test_two_parts_merged_are_the_whole(given_rows: Weighted, cut: int, max_cells: int) -> None:
    whole, resolution = merged(given_rows, finest(), max_cells)
    parts, levels = [], []
    for part in (slice(0, cut), slice(cut, None)):
        piece, level = merged(
            Weighted(given_rows.owner[part], given_rows.weight[part], given_rows.values[part]), finest(), max_cells
        )
        parts.append(piece)
        levels.append(level)
    for first, second in (parts, parts[::-1]):
        found, now = merged(first.plus(second), np.minimum(*levels), max_cells)
        assert now.tolist() == resolution.tolist()
        assert found.owner.tolist() == whole.owner.tolist()
        np.testing.assert_allclose(found.weight, whole.weight, rtol=1e-9)
        np.testing.assert_allclose(found.values, whole.values, rtol=1e-9, atol=1e-12)


def test_cells_of_an_owner_without_any_are_none() -> None:
    nothing = Weighted(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros((0, COLUMNS)))
    assert cells_of(merged(nothing, finest(), 96)[0], 3) == [(), (), ()]


def test_a_profile_of_noise_is_of_a_few_kilobytes() -> None:
    """A week of a device whose every signal is noise, traffic and all: as large as a profile with few runs gets."""
    draw = np.random.default_rng(1)
    count = 7 * 288
    noise = {
        name: draw.random(count).tolist() for name in ("sm_active_ratio", "tensor_active_ratio", "dram_active_ratio")
    }
    traffic = {
        f"{name}_bytes_per_second": (draw.random(count) * 1e9).tolist() for name in ("pcie_tx", "pcie_rx", "nvlink")
    }
    power = (draw.random(count) * 700).tolist()
    profile = only(update(None, windows(draw.random(count).tolist(), power_watts=power, **noise, **traffic)))
    assert len(profile.cells) <= MAX_CELLS
    assert len(msgspec.msgpack.encode(profile)) < 32_000


def test_boards_are_counted_the_same_in_one_update_and_in_two() -> None:
    """Two boards, one after the other: never more than one at a time."""
    first = windows(0.9, count=12, device="GPU-1", pod="team/a", power_watts=300.0)
    second = windows(0.9, first=12, count=12, device="GPU-2", pod="team/b", power_watts=300.0)
    silent = windows(0.9, count=24, device="GPU-3", pod="team/c")
    whole = update(None, first, second, silent, policy=AT_ONCE)
    pieces = update(update(None, first, policy=AT_ONCE), second, policy=AT_ONCE)
    assert [book.power["A100-SXM4-40GB"].devices for book in (whole, pieces)] == [1, 1]
    assert whole.until == pieces.until == at(24)
