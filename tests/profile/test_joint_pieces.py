"""However the time is cut, the profile is one and the same; whatever is merged, nothing is lost and no mean moves."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwatch.facts.model.cluster import Pod
from gpuwatch.facts.model.workload_profile import HeldWindows, ProfileBook, Unfit, WorkloadProfile
from gpuwatch.size.policy import ProfilePolicy
from gpuwatch.size.profile import joint
from gpuwatch.size.profile.joint import MAX_CELLS
from gpuwatch.size.profile.joint_cells import COLUMNS, FINEST, Weighted, cells_of, merged
from parts.held_windows import AT_ONCE, STEP, UNKNOWN, alive, at, only, part, update, windows

COUNT = 36
POLICY = ProfilePolicy(half_life_hours=1.0)
FEW_CELLS = 6


@contextmanager
def few_cells(count: int = FEW_CELLS) -> Iterator[None]:
    """A grid that becomes coarser within a test's few windows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint, "MAX_CELLS", count)
        yield


ratios = st.one_of(
    st.integers(0, 32).map(lambda level: level / 32),  # on the edges of cells
    st.floats(0, 1, allow_nan=False).map(lambda value: round(value, 6)),
)
maybe = st.one_of(st.just(UNKNOWN), ratios)


@dataclass(frozen=True)
class Past:
    held: tuple[HeldWindows, ...]
    pods: tuple[Pod, ...]
    unfit: tuple[Unfit, ...]


@st.composite
def pasts(draw: st.DrawFn) -> Past:
    held: list[HeldWindows] = []
    names: set[str] = set()
    for device in range(draw(st.integers(1, 3))):
        edges = sorted(draw(st.sets(st.integers(0, COUNT), min_size=2, max_size=5)))
        for begin, end in pairwise(edges):
            pod = draw(st.sampled_from(["", "a", "b", "c"]))
            names |= {pod} - {""}
            of_all = st.lists(maybe, min_size=end - begin, max_size=end - begin)
            held.append(
                windows(
                    draw(of_all),
                    first=begin,
                    device=f"GPU-{device}",
                    pod=f"team/{pod}" if pod else "",
                    fine=draw(st.booleans()),
                    sm_active_ratio=draw(of_all) if draw(st.booleans()) else None,
                    dram_active_ratio=draw(of_all),
                    power_watts=draw(st.lists(st.floats(40, 400), min_size=end - begin, max_size=end - begin)),
                    memory_used_bytes=draw(st.lists(st.floats(1, 4e10), min_size=end - begin, max_size=end - begin)),
                )
            )
    known = [name for name in sorted(names) if draw(st.booleans())]
    pods = tuple(alive(name, started=draw(st.integers(-5, COUNT)) + 0.5, cpu_cores=4.0) for name in known)
    unfit = tuple(
        Unfit(device_uuid=f"GPU-{device}", start=at(begin), end=at(begin + length), cause=cause)
        for device, begin, length, cause in draw(
            st.lists(
                st.tuples(
                    st.integers(0, 2), st.floats(0, COUNT), st.floats(0, 6), st.sampled_from(["throttled", "xid"])
                ),
                max_size=3,
            )
        )
    )
    return Past(tuple(held), pods, unfit)


def played(past: Past, cuts: Sequence[int]) -> ProfileBook:
    book: ProfileBook | None = None
    edges = [0, *sorted(cuts), COUNT]
    for begin, end in pairwise(edges):
        pieces = [piece for held in past.held if (piece := part(held, begin, end)) is not None]
        if pieces:
            book = update(book, *pieces, pods=past.pods, unfit=past.unfit, policy=POLICY)
    assert book is not None
    return book


def same(one: Any, other: Any) -> bool:
    """Equal up to rounding, fields of fields too."""
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, rtol=1e-9, atol=1e-9))
    if isinstance(one, datetime) or one is None or isinstance(one, str | int | bool):
        return bool(one == other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dataclass_fields__"):
        return all(same(getattr(one, each.name), getattr(other, each.name)) for each in fields(one))
    return bool(one == other)


def differences(one: Any, other: Any) -> dict[str, tuple[Any, Any]]:
    return {
        each.name: (getattr(one, each.name), getattr(other, each.name))
        for each in fields(one)
        if not same(getattr(one, each.name), getattr(other, each.name))
    }


quiet = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


def test_a_book_with_nothing_measured_knows_since_when_it_was_watched() -> None:
    """A Pod that comes later began then: found by the test below."""
    unmeasured = {"dram_active_ratio": [UNKNOWN], "power_watts": [50.0], "memory_used_bytes": [1.0]}
    free = windows([UNKNOWN], device="GPU-1", pod="", **unmeasured)
    held = windows([UNKNOWN], first=1, pod="team/a", **unmeasured)
    whole, pieces = (played(Past((free, held), (), ()), cuts) for cuts in ((), (1,)))
    assert [run.started for profile in whole.profiles.values() for run in profile.runs] == [at(1)]
    assert same(whole.profiles, pieces.profiles)


@pytest.mark.parametrize("most", [joint.MAX_CELLS, FEW_CELLS])
@quiet
@given(past=pasts(), cuts=st.lists(st.integers(0, COUNT), max_size=4, unique=True))
def test_pieces_make_the_same_book_as_the_whole(past: Past, cuts: list[int], most: int) -> None:
    with few_cells(most):
        whole, pieces = played(past, ()), played(past, cuts)
    assert whole.profiles.keys() == pieces.profiles.keys()
    for key, profile in whole.profiles.items():
        found = pieces.profiles[key]
        # A profile that the last pieces have nothing of is as of an earlier moment; its weights say the same.
        assert differences(at_moment(profile, whole.until), at_moment(found, whole.until)) == {}


@quiet
@given(past=pasts())
def test_the_cells_hold_every_usable_window_once(past: Past) -> None:
    """Against the plainest way to add up: weights, and the mean of each signal over the windows that have it."""
    with few_cells():
        book = played(past, ())
    for profile in book.profiles.values():
        # Nothing that is not measured may look like nothing: a cell knows a signal or does not.
        assert len({id(cell) for cell in profile.cells}) == len(profile.cells)
        coarsest = profile.resolution == 1
        assert len(profile.cells) <= FEW_CELLS or coarsest
        assert all(cell.power_watts is not None and cell.dram_active_ratio != UNKNOWN for cell in profile.cells)
    usable = usable_windows(past, book)
    total = sum(weight for weight, _, _, _ in usable)
    cells = [cell for profile in book.profiles.values() for cell in profile.cells]
    assert sum(cell.weight_seconds for cell in cells) == pytest.approx(total)
    for name, column in (("busy_ratio", 1), ("sm_active_ratio", 2), ("dram_active_ratio", 3)):
        told = [(cell.weight_seconds, getattr(cell, name)) for cell in cells if getattr(cell, name) is not None]
        measured = [(row[0], row[column]) for row in usable if not np.isnan(row[column])]
        assert sum(weight for weight, _ in told) == pytest.approx(sum(weight for weight, _ in measured))
        assert sum(weight * value for weight, value in told) == pytest.approx(sum(w * v for w, v in measured))


def usable_windows(past: Past, book: ProfileBook) -> list[tuple[float, float, float, float]]:
    """Weight, busy, SM and DRAM of each window that counts, one window after the other."""
    found = []
    runs = {(run.pod, run.started) for profile in book.profiles.values() for run in profile.runs}
    started = {pod.ref: pod.started for pod in past.pods}
    for held in past.held:
        values = {name.value: list(each) for name, each in held.values.items()}
        for index, busy in enumerate(values["busy_ratio"]):
            begin = held.start.timestamp() + index * STEP
            if not held.pod or np.isnan(busy):
                continue
            if any(
                each.device_uuid == held.uuid and each.start.timestamp() < begin + STEP and each.end.timestamp() > begin
                for each in past.unfit
            ):
                continue
            current = started.get(held.pod)
            if current is not None and begin + STEP > current.timestamp():
                start = current.timestamp()
            else:
                lives = [run for pod, run in runs if pod == held.pod and run != current]
                start = lives[0].timestamp() if lives and lives[0] is not None else float("-inf")
            if begin - start < POLICY.start_up_seconds:
                continue
            weight = STEP * 2 ** (-(book.until.timestamp() - begin - STEP) / 3600)
            sm = values.get("sm_active_ratio")
            found.append((weight, busy, sm[index] if sm else UNKNOWN, values["dram_active_ratio"][index]))
    return found


def at_moment(profile: WorkloadProfile, moment: datetime) -> WorkloadProfile:
    """The same profile, its weights as of another moment."""
    fade = 2 ** (-(moment - profile.as_of).total_seconds() / profile.half_life_seconds)
    return replace(
        profile,
        as_of=moment,
        cells=tuple(replace(cell, weight_seconds=cell.weight_seconds * fade) for cell in profile.cells),
        present_seconds=profile.present_seconds * fade,
        coarse_seconds=profile.coarse_seconds * fade,
    )


shares = st.one_of(st.just(UNKNOWN), st.integers(0, 1000).map(lambda value: value / 1000))


@st.composite
def rows(draw: st.DrawFn) -> Weighted:
    """Weights over nine orders of magnitude: old windows beside new ones."""
    count = draw(st.integers(1, 60))
    weight = [10.0 ** draw(st.integers(-6, 3)) for _ in range(count)]
    values = [
        [
            draw(st.integers(0, 1000)) / 1000,
            *(draw(shares) for _ in range(3)),
            draw(shares) * 700,
            draw(shares),
            UNKNOWN,
        ]
        for _ in range(count)
    ]
    owner = sorted(draw(st.integers(0, 2)) for _ in range(count))
    return Weighted(np.array(owner, dtype=np.int64), np.array(weight), np.array(values).reshape(-1, COLUMNS))


def finest() -> np.typing.NDArray[np.int64]:
    return np.full(3, FINEST, dtype=np.int64)


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
    for rows_ in (slice(0, cut), slice(cut, None)):
        cut_rows = Weighted(given_rows.owner[rows_], given_rows.weight[rows_], given_rows.values[rows_])
        piece, level = merged(cut_rows, finest(), max_cells)
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
