"""The ledger adds up whatever the history, and what is not known only ever adds to the unknown twins."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from gpuwatch.account.ledger import (
    IDLE_SECONDS,
    Floats,
    GpuHistory,
    HoldHistory,
    entries_of,
    past_of,
    shares_of,
)
from gpuwatch.account.lost_work import LostSpan
from gpuwatch.facts.model.ledger import LossCause, Row, Worked

STEP = 300.0
OF_HOLD = (
    *("engine_ratio", "sm_ratio", "memory_bytes"),
    *("running", "init", "started_seconds", "deleting", "gang_waits"),
)
OF_FREE = (Row.WAITED_FOR, Row.UNREACHABLE, Row.USABLE)
OF_GPU = (
    *("missing", "ready", "withheld_ratio", "cordoned", "degraded"),
    *("engine_ratio", "memory_bytes", "free_ratios"),
)
UNKNOWN_PAST: dict[str, Any] = {"worked_before": None, "worked_since_start": None}
Key = tuple[int, Row, bool]


def runs(rng: np.random.Generator, count: int, values: tuple[float, ...]) -> Floats:
    """Steps that stay alike for a while, as in life."""
    lengths = rng.geometric(1 / rng.choice([2, 8, 40]), count)
    return np.repeat(rng.choice(values, count), lengths)[:count].astype(np.float64)


def hold(rng: np.random.Generator, count: int, part: Floats) -> HoldHistory:
    engine = runs(rng, count, (0.0, 0.0, 0.004, 0.3, 0.97, np.nan))
    starts = np.where(rng.random(count) < 0.05, np.arange(count) * STEP + 30.0, -np.inf)
    began = float(rng.choice([-90000.0, -600.0, np.inf]))
    started = np.maximum.accumulate(np.where(np.isneginf(starts), -np.inf, starts))
    started = np.where(np.isneginf(started), began, started)
    started[rng.random(count) < rng.choice([0.0, 0.2])] = np.nan
    return HoldHistory(
        pod="ml/train-0",
        container="main",
        workload="Job/ml/train",
        part_ratio=part,
        engine_ratio=engine,
        sm_ratio=engine * runs(rng, count, (0.0, 0.4, 1.2, np.nan)),
        memory_bytes=runs(rng, count, (0.0, 2.0**29, 2.0**34, np.nan)),
        running=runs(rng, count, (1.0, 1.0, 0.0, np.nan)),
        init=runs(rng, count, (0.0, 0.0, 1.0, np.nan)),
        started_seconds=started,
        deleting=runs(rng, count, (0.0, 0.0, 0.0, 1.0, np.nan)),
        gang_waits=runs(rng, count, (0.0, 0.0, 1.0, np.nan)),
        worked_before=(worked := (None, True, False)[rng.integers(3)]),
        worked_since_start=worked,
        lost=tuple(lost(rng, count)),
    )


def lost(rng: np.random.Generator, count: int) -> Iterator[LostSpan]:
    """Ends of runs, in order, and from when on their work was lost."""
    begin = -1
    for end in sorted(rng.integers(0, count + 1, rng.choice([0, 0, 1, 3])).tolist()):
        begin = int(rng.integers(begin, end + 1))
        yield LostSpan(begin=begin, end=end, cause=LossCause.ERROR, unknown=bool(rng.random() < 0.5), since=None)
        begin = end


def history(seed: int, most: int = 150) -> GpuHistory:
    """Gaps, restarts, repartitions, shared GPUs, and a GPU that comes and goes."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, most))
    exists = np.ones(count)
    exists[: rng.integers(0, count + 1) // 3] = 0.0
    exists[count - rng.integers(0, count + 1) // 3 :] *= rng.choice([0.0, 1.0])
    sharers = int(rng.integers(0, 4))
    parts = [runs(rng, count, (0.0, 1 / max(sharers, 1), 0.5, 1.0)) for _ in range(sharers)]
    return GpuHistory(
        uuid="GPU-1",
        node="gpu-1",
        pool="a100",
        gpu_model="A100",
        exists_ratio=exists,
        uncovered_ratio=runs(rng, count, (0.0, 0.0, 0.125, 0.5)),
        missing=runs(rng, count, (0.0, 0.0, 1.0, np.nan)),
        ready=runs(rng, count, (1.0, 1.0, 0.0, np.nan)),
        withheld_ratio=runs(rng, count, (0.0, 0.0, 0.25, np.nan)),
        cordoned=runs(rng, count, (0.0, 0.0, 1.0, np.nan)),
        degraded=runs(rng, count, (0.0, 1.0)),
        engine_ratio=runs(rng, count, (0.0, 0.0, 0.5, np.nan)),
        memory_bytes=runs(rng, count, (0.0, 0.0, 2.0**34, np.nan)),
        free_ratios=free_ratios(rng, count),
        holds=tuple(replace(hold(rng, count, part), pod=f"ml/train-{index}") for index, part in enumerate(parts)),
    )


def free_ratios(rng: np.random.Generator, count: int) -> dict[Row, Floats]:
    """Parts that add up to 1, less what nothing could tell of; one of a thing, or of several; or nothing at all."""
    parts = np.stack([runs(rng, count, (0.0, 0.0, 0.7, 2.0)) for _ in (*OF_FREE, "unknown")])
    total, told = parts.sum(axis=0), runs(rng, count, (1.0, 1.0, np.nan))
    return dict(zip(OF_FREE, told * parts[:-1] / np.where(total > 0, total, np.nan), strict=True))


def by_row(gpu: GpuHistory) -> dict[Key, Floats]:
    return {
        (index, *key): share for index, (_, shares) in enumerate(shares_of(gpu, STEP)) for key, share in shares.items()
    }


def after_start(hold: HoldHistory) -> Floats:
    """Nothing works before its container has started."""
    return np.where(np.isposinf(hold.started_seconds), 0.0, hold.engine_ratio)


def without_pause(part: Floats) -> Floats:
    there = np.flatnonzero(part)
    found = part.copy()
    if len(there):
        span = slice(int(there[0]), int(there[-1]))
        found[span] = np.where(part[span] > 0, part[span], 0.25)
    return found


@pytest.mark.parametrize("block", range(10))
def test_every_step_adds_up_to_the_capacity(block: int) -> None:
    for seed in range(block * 1000, block * 1000 + 1000):
        gpu = history(seed)
        found = by_row(gpu)
        assert all((share >= 0).all() for share in found.values()), seed
        total = np.sum([*found.values()], axis=0)
        np.testing.assert_allclose(total, gpu.exists_ratio, atol=1e-9, err_msg=str(seed))


def blind(gpu: GpuHistory, rng: np.random.Generator) -> GpuHistory:
    """The history without a part of one of its signals, or of all of them."""
    picked = rng.choice(["part", "all"])

    def less(values: Floats) -> Floats:
        if picked == "part" and rng.random() < 0.6:
            return values
        begin = int(rng.integers(0, len(values)))
        end = int(rng.integers(begin, len(values) + 1)) if picked == "part" else len(values)
        return np.concatenate((values[:begin], np.full(end - begin, np.nan), values[end:]))

    def less_of_ends(spans: Iterable[LostSpan]) -> tuple[LostSpan, ...]:
        """Without a checkpoint more may be lost; without its cause, it may have been done."""
        return tuple(
            replace(each, begin=max(each.begin - int(rng.integers(0, 9)), -1), unknown=True)
            if rng.random() < 0.3
            else each
            for each in spans
        )

    holds = tuple(
        replace(
            each,
            **({} if rng.random() < 0.7 else UNKNOWN_PAST),
            **every(less, each, OF_HOLD),
            lost=less_of_ends(each.lost),
        )
        for each in gpu.holds
    )
    return replace(gpu, holds=holds, **every(less, gpu, OF_GPU))


def every(change: Callable[[Floats], Floats], of: GpuHistory | HoldHistory, names: Iterable[str]) -> dict[str, Any]:
    def changed(values: Any) -> Any:
        return {key: change(each) for key, each in values.items()} if isinstance(values, Mapping) else change(values)

    return {name: changed(getattr(of, name)) for name in names}


def only_less_is_known(before: Mapping[Key, Floats], after: Mapping[Key, Floats], seed: int) -> None:
    for key, share in after.items():
        if not key[2]:
            known = before.get(key, np.zeros_like(share))
            assert (share <= known + 1e-9).all(), (seed, key, np.flatnonzero(share > known + 1e-9)[:3])


def test_a_signal_less_moves_hours_into_unknown_twins_alone() -> None:
    for seed in range(3000):
        gpu = history(seed)
        only_less_is_known(by_row(gpu), by_row(blind(gpu, np.random.default_rng(seed))), seed)


def test_a_later_begin_of_the_span_makes_nothing_known_that_was_not() -> None:
    compared = 0
    for seed in range(5000):
        gpu = history(seed)
        cut = int(np.random.default_rng(seed).integers(0, len(gpu.exists_ratio)))
        if any(each.part_ratio[:cut].any() and not each.part_ratio[cut] for each in gpu.holds):
            continue  # a hold does not pause
        compared += 1
        gpu = replace(gpu, holds=tuple(replace(each, engine_ratio=after_start(each)) for each in gpu.holds))

        short = between(gpu, cut, len(gpu.exists_ratio), {})
        long = {key: share[cut:] for key, share in by_row(gpu).items()}
        only_less_is_known(long, by_row(short), seed)
    assert compared > 2000


def test_hours_that_are_kept_are_those_of_the_whole_history() -> None:
    """From five hours after a later begin, if it is known what came before it, to five hours before an earlier end."""
    compared, idle = 0, int(IDLE_SECONDS // STEP)
    for seed in range(4000):
        whole = history(seed, most=500)
        begin, end = sorted(np.random.default_rng(seed).integers(1, len(whole.exists_ratio) + 1, 2).tolist())
        if end - begin <= 2 * idle:
            continue
        # What explains a silence that is not over may be over later. A hold does not pause, and ends with its GPU.
        parts = [without_pause(each.part_ratio) * whole.exists_ratio for each in whole.holds]
        holds = tuple(
            replace(each, part_ratio=part, engine_ratio=after_start(each))
            for each, part in zip(whole.holds, parts, strict=True)
            if part[begin] > 0 and not np.isnan(each.started_seconds[begin])
        )
        compared += bool(holds)
        whole = replace(whole, holds=holds)
        short = between(whole, begin, end, past_of(whole, begin, STEP).worked)
        found, expected = by_row(short), by_row(whole)
        for key in {*found, *expected}:
            of_short = found.get(key, np.zeros(end - begin))[idle : end - begin - idle]
            of_whole = expected.get(key, np.zeros(len(whole.exists_ratio)))[begin + idle : end - idle]
            np.testing.assert_allclose(of_short, of_whole, atol=1e-9, err_msg=f"{seed}: {key}")
    assert compared > 300


def between(gpu: GpuHistory, begin: int, end: int, past: Mapping[tuple[str, str, str], Worked]) -> GpuHistory:
    """The steps from `begin` to `end`; past: of what came before."""

    def part(values: Floats) -> Floats:
        return values[begin:end]

    holds = []
    for each in gpu.holds:
        known = past.get((gpu.uuid, each.pod, each.container), Worked(since_held=None, since_start=None))
        cut = replace(each, **every(part, each, (*OF_HOLD, "part_ratio")))
        holds.append(
            replace(
                cut,
                started_seconds=cut.started_seconds - begin * STEP,
                worked_before=known.since_held,
                worked_since_start=known.since_start,
                lost=tuple(
                    replace(span, begin=max(span.begin - begin, -1), end=min(span.end, end) - begin)
                    for span in each.lost
                    if span.end > begin
                ),
            )
        )
    return replace(gpu, holds=tuple(holds), **every(part, gpu, (*OF_GPU, "exists_ratio", "uncovered_ratio")))


def test_all_facts_that_may_be_unknown_are_taken_away() -> None:
    of_hold, of_gpu = (
        {item.name for item in fields(kind) if item.type in (Floats, Mapping[Row, Floats])}
        for kind in (HoldHistory, GpuHistory)
    )
    assert of_hold - {"part_ratio"} == {*OF_HOLD}
    assert of_gpu - {"exists_ratio", "uncovered_ratio"} == {*OF_GPU}


def test_minutes_add_up_to_hours() -> None:
    """The same history in steps of a minute and of five, in hours that the span cuts."""
    start = datetime(2026, 3, 2, 7, 20, tzinfo=UTC)
    for seed in range(300):
        gpu = history(seed)
        fine = replace(
            gpu,
            **every(lambda values: np.repeat(values, 5), gpu, (*OF_GPU, "exists_ratio", "uncovered_ratio")),
            holds=tuple(
                replace(
                    each,
                    **every(lambda values: np.repeat(values, 5), each, (*OF_HOLD, "part_ratio")),
                    lost=tuple(replace(span, begin=5 * span.begin, end=5 * span.end) for span in each.lost),
                )
                for each in gpu.holds
            ),
        )
        hours = [entries_of([one], start, step, start, lambda *_: 2.0) for one, step in ((gpu, 300), (fine, 60))]
        for capacity, entries in hours:
            assert capacity == pytest.approx(gpu.exists_ratio.sum() / 12, abs=1e-9)
            assert math.fsum(item.gpu_hours for item in entries) == pytest.approx(capacity, abs=1e-9)
            assert math.fsum(item.cost or 0.0 for item in entries) == pytest.approx(2 * capacity, abs=1e-9)
            for hour in {item.hour for item in entries}:
                whole = math.fsum(item.gpu_hours for item in entries if item.hour == hour)
                assert whole <= 1.0 + 1e-9
        by_hour = [
            {
                hour: math.fsum(item.gpu_hours for item in entries if item.hour == hour)
                for hour in {i.hour for i in entries}
            }
            for _, entries in hours
        ]
        assert by_hour[0] == pytest.approx(by_hour[1], abs=1e-9)
