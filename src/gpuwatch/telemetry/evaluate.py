"""PromQL's functions over recorded samples, for all series and all evaluation times at once.

Semantics are those of Prometheus 3: windows and the look-back are left-open, staleness markers end a series for an
instant lookup and are skipped by range functions, NaN is a value that min and max pass over and everything else
carries on. Arrays of answers have one row per series and one column per evaluation time, beside a mask of the same
shape that says where there is an answer at all (an answer may itself be NaN).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuwatch.telemetry.promql import STEPPED
from gpuwatch.telemetry.samples import Combine, Expression, Function
from gpuwatch.telemetry.series import BoolArray, FloatArray, IntArray, MetricSamples, is_stale

LOOKBACK_MS = 300_000
"""How old a sample may be for an instant lookup: the default of Prometheus (--query.lookback-delta)."""

_CELLS_AT_ONCE = 4_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """values[i, j] is series i at evaluation time j, where present[i, j]."""

    values: FloatArray
    present: BoolArray


def per_series(
    samples: MetricSamples,
    plain: MetricSamples,
    chosen: IntArray,
    expression: Expression,
    ends_ms: IntArray,
    step_ms: int,
) -> Answers:
    """The expression's function of each chosen series at each end of a window, before `combine`.

    plain is `samples.without_markers()`; ends_ms are the evaluation times with the offset taken off already;
    step_ms is the resolution of FRACTION_* and *_TIME.
    """
    function, window_ms = expression.function, expression.window_seconds * 1000
    with np.errstate(all="ignore"):
        if function is Function.LAST:
            return _instant_answers(samples, chosen, ends_ms)
        if function in STEPPED:
            return _step_answers(plain, chosen, expression, ends_ms, step_ms)
        if not plain.values.size:
            return Answers(np.empty((chosen.size, ends_ms.size)), np.zeros((chosen.size, ends_ms.size), np.bool_))
        lows, highs = (_positions(plain, chosen, edge_ms) for edge_ms in (ends_ms - window_ms, ends_ms))
        least = 2 if function is Function.INCREASE else 1
        present = highs - lows >= least
        low, high = lows[present], highs[present]
        answers = np.full(present.shape, np.nan)
        if low.size and function is Function.INCREASE:
            ends = np.broadcast_to(ends_ms, present.shape)[present]
            answers[present] = _increases(plain, low, high, ends - window_ms, ends)
        elif low.size:
            answers[present] = _over_windows(plain.values, low, high, expression)
        return Answers(answers, present)


def grouped(
    answers: Answers, labels: Sequence[Mapping[str, str]], combine: Combine, by: tuple[str, ...]
) -> list[tuple[Mapping[str, str], FloatArray, BoolArray]]:
    """`combine by (by)` over the series, at every time: labels, values, where there is one. Groups in label order."""
    if not labels:
        return []
    keys = [tuple(series.get(name, "") for name in by) for series in labels]
    names = sorted(set(keys))
    number = {key: index for index, key in enumerate(names)}
    group = np.array([number[key] for key in keys])
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(len(names)))
    values, present = answers.values[order], answers.present[order]
    counts = np.add.reduceat(present.astype(np.int64), starts, axis=0)
    with np.errstate(all="ignore"):
        result = _combined(values, present, counts, starts, combine)
    return [
        ({name: value for name, value in zip(by, key, strict=True) if value}, result[index], counts[index] > 0)
        for key, index in number.items()
    ]


def _combined(
    values: FloatArray, present: BoolArray, counts: IntArray, starts: IntArray, combine: Combine
) -> FloatArray:
    if combine is Combine.COUNT:
        return counts.astype(np.float64)
    if combine in (Combine.MAX, Combine.MIN):
        ufunc = np.fmax if combine is Combine.MAX else np.fmin
        extreme: FloatArray = ufunc.reduceat(np.where(present, values, np.nan), starts, axis=0)
        return extreme
    added = np.where(present, values, 0.0)
    total: FloatArray = np.add.reduceat(added, starts, axis=0)
    if combine is Combine.SUM:
        return total
    mean: FloatArray = total / counts
    return np.where(np.isfinite(mean), mean, np.add.reduceat(added * _DOWN, starts, axis=0) / counts / _DOWN)


def _positions(samples: MetricSamples, chosen: IntArray, at_ms: IntArray) -> IntArray:
    """Where the first sample after each moment lies in the columns, shaped series by moments; a series' end if none."""
    low = np.repeat(samples.starts[chosen][:, None], at_ms.size, axis=1)
    if at_ms.size >= chosen.size:
        for row, index in enumerate(chosen):
            low[row] += samples.part(int(index))[0].searchsorted(at_ms, "right")
        return low
    # Many series and few moments: one binary search in all series side by side.
    high = np.repeat(samples.starts[chosen + 1][:, None], at_ms.size, axis=1)
    while (searching := low < high).any():
        middle = (low + high) // 2
        later = samples.times_ms[np.where(searching, middle, 0)] > at_ms
        high = np.where(searching & later, middle, high)
        low = np.where(searching & ~later, middle + 1, low)
    return low


def _instant_answers(samples: MetricSamples, chosen: IntArray, ends_ms: IntArray) -> Answers:
    """The newest sample of (end − look-back, end], where it is no staleness marker."""
    newest = _positions(samples, chosen, ends_ms) - 1
    exists = newest >= samples.starts[chosen][:, None]
    newest[~exists] = 0
    values = samples.values[newest]
    recent = exists & (samples.times_ms[newest] > ends_ms - LOOKBACK_MS)
    return Answers(values, recent & ~is_stale(values))


def _step_answers(
    plain: MetricSamples, chosen: IntArray, expression: Expression, ends_ms: IntArray, step_ms: int
) -> Answers:
    """avg_over_time((last_over_time(x[step]) > bool bound)[window:step]) and min or max_over_time(timestamp(…)[…]).

    A subquery looks at every whole multiple of the step in (end − window, end], and each look sees the newest sample
    of (look − step, look]. The time of a sample is that of the look that sees it.
    """
    window_ms = expression.window_seconds * 1000
    first = int(ends_ms.min() - window_ms) // step_ms + 1
    looks_ms = np.arange(first, int(ends_ms.max()) // step_ms + 1, dtype=np.int64) * step_ms
    begins = (ends_ms - window_ms) // step_ms + 1 - first
    ends = ends_ms // step_ms + 1 - first
    values = np.full((chosen.size, ends_ms.size), np.nan)
    present = np.zeros(values.shape, np.bool_)
    for row, index in enumerate(chosen):
        times, numbers = plain.part(int(index))
        if not times.size or not looks_ms.size:
            continue
        newest = times.searchsorted(looks_ms, "right") - 1
        seen = (newest >= 0) & (times[newest] > looks_ms - step_ms)
        seen_before = _running_count(seen)
        looks_seen = seen_before[ends] - seen_before[begins]
        has = present[row] = looks_seen > 0
        if expression.function in (Function.FRACTION_ABOVE, Function.FRACTION_BITS):
            true_before = _running_count(seen & _holds(expression, numbers)[newest])
            values[row] = (true_before[ends] - true_before[begins]) / looks_seen
        else:
            position = seen_before[begins] if expression.function is Function.FIRST_TIME else seen_before[ends] - 1
            values[row, has] = looks_ms[seen][position[has]] / 1000
    return Answers(values, present)


def _running_count(mask: BoolArray) -> IntArray:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(mask, dtype=np.int64)))


def _holds(expression: Expression, values: FloatArray) -> BoolArray:
    """Where a sample is above the bound, or has any bit of the mask; NaN never is."""
    assert expression.parameter is not None
    if expression.function is Function.FRACTION_ABOVE:
        return values > expression.parameter
    return _any_bit(values, int(expression.parameter))


def _any_bit(values: FloatArray, mask: int) -> BoolArray:
    """Whether a value has any bit of the mask, in the steps that the PromQL takes (see promql.py).

    They differ from an integer's bits where the value is none: negative, fractional, infinite, NaN.
    """
    result = values
    while True:
        top = mask.bit_length()
        lowest = top
        while lowest and mask >> (lowest - 1) & 1:
            lowest -= 1
        mask &= (1 << lowest) - 1
        result = np.fmod(result, 2.0**top)
        if not mask:
            return result >= 2.0**lowest
        result = np.minimum(result, 2.0**lowest - 1)


def _over_windows(values: FloatArray, low: IntArray, high: IntArray, expression: Expression) -> FloatArray:
    """A range function over values[low:high] of each window; none of them is empty, they may overlap."""
    match expression.function:
        case Function.LAST_IN_WINDOW:
            return values[high - 1]
        case Function.MIN:
            return _reduced(np.fmin, values, low, high)
        case Function.MAX:
            return _reduced(np.fmax, values, low, high)
        case Function.AVG:
            return _means(values, low, high)
        case Function.COUNT:
            return (high - low).astype(np.float64)
        case Function.CHANGES:
            return _changes(values, low, high)
        case Function.QUANTILE:
            assert expression.parameter is not None
            return _quantiles(values, low, high, expression.parameter)
    raise AssertionError(f"{expression.function} is no range function")


def _reduced(ufunc: np.ufunc, values: FloatArray, low: IntArray, high: IntArray) -> FloatArray:
    """The ufunc over values[low:high] of each window; none of them is empty, they may overlap."""
    if high.max() == values.size:
        values = np.append(values, 0.0)  # reduceat refuses an end that lies behind the last value
    bounds = np.column_stack((low, high)).ravel()
    reduced: FloatArray = ufunc.reduceat(values, bounds)[::2]
    return reduced


_DOWN = 2.0**-64
"""Sums of finite values can overflow where their mean does not; scaled by this they do not either."""


def _means(values: FloatArray, low: IntArray, high: IntArray) -> FloatArray:
    means = _reduced(np.add, values, low, high) / (high - low)
    again = ~np.isfinite(means)
    if again.any():
        low, high = low[again], high[again]
        means[again] = _reduced(np.add, values * _DOWN, low, high) / (high - low) / _DOWN
    return means


def _quantiles(values: FloatArray, low: IntArray, high: IntArray, quantile: float) -> FloatArray:
    """quantile_over_time: linear between the two nearest ranks, NaN below everything else."""
    if math.isnan(quantile) or not 0 <= quantile <= 1:
        outside = math.nan if math.isnan(quantile) else math.copysign(math.inf, quantile)
        return np.full(low.size, outside)
    result = np.empty(low.size)
    counts = high - low
    for count in np.unique(counts):
        alike = np.flatnonzero(counts == count)
        rank = quantile * (count - 1)
        lower = math.floor(rank)
        upper = min(count - 1, lower + 1)
        weight = rank - lower
        at_once = max(1, _CELLS_AT_ONCE // int(count))
        for begin in range(0, alike.size, at_once):
            members = alike[begin : begin + at_once]
            block = np.sort(values[low[members, None] + np.arange(count)], axis=1)
            # NumPy sorts NaN to the end, Prometheus to the front: turned round, rank i lies this many further left.
            nans = np.isnan(block).sum(axis=1)
            rows = np.arange(members.size)
            below, above = block[rows, (lower - nans) % count], block[rows, (upper - nans) % count]
            result[members] = below * (1 - weight) + above * weight
    return result


def _changes(values: FloatArray, low: IntArray, high: IntArray) -> FloatArray:
    before, after = values[:-1], values[1:]
    changed = (after != before) & ~(np.isnan(after) & np.isnan(before))
    changed_until = _running_count(changed)
    return (changed_until[high - 1] - changed_until[low]).astype(np.float64)


def _increases(
    samples: MetricSamples, low: IntArray, high: IntArray, begins_ms: IntArray, ends_ms: IntArray
) -> FloatArray:
    """increase() as Prometheus ≥2.52 extrapolates it; every window has two samples or more.

    The slope is carried on to an edge of the window that is at most 1.1 average distances away, else by half a
    distance, and never to before the time at which a counter with this slope was zero.
    """
    values, times = samples.values, samples.times_ms
    first, last = values[low], values[high - 1]
    lost = np.concatenate(([0.0], np.where(values[1:] < values[:-1], values[:-1], 0.0)))
    increase = last - first + _reduced(np.add, lost, low + 1, high)
    sampled = (times[high - 1] - times[low]) / 1000
    distance = sampled / (high - low - 1)
    to_start = (times[low] - begins_ms) / 1000
    to_end = (ends_ms - times[high - 1]) / 1000
    to_start = np.where(to_start >= distance * 1.1, distance / 2, to_start)
    to_end = np.where(to_end >= distance * 1.1, distance / 2, to_end)
    to_zero = np.where((increase > 0) & (first >= 0), sampled * (first / increase), to_start)
    to_start = np.where(to_zero < to_start, to_zero, to_start)
    return increase * ((sampled + to_start + to_end) / sampled)
