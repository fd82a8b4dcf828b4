"""PromQL's functions over recorded samples, for all series and all evaluation times at once.

Semantics are those of Prometheus 3: windows and the look-back are left-open. A staleness marker ends a series for an
instant lookup; range functions skip it. NaN is a value, which min and max skip and other functions return. Answers have
one row per series and one column per evaluation time; a mask of that shape is true where there is an answer.
"""

import math
from dataclasses import dataclass

import numpy as np

from gpuwatch.sources.telemetry.promql import STEPPED, bit_runs
from gpuwatch.sources.telemetry.samples import Combine, Expression, Function
from gpuwatch.sources.telemetry.series import BoolArray, FloatArray, IntArray, MetricSamples

LOOKBACK_MS = 300_000
"""Greatest age of a sample in an instant lookup: Prometheus' default (--query.lookback-delta)."""

_CELLS_AT_ONCE = 4_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """values[i, j] is series i at evaluation time j, valid where present[i, j]."""

    values: FloatArray
    present: BoolArray


def reach_ms(expression: Expression, step_ms: int) -> int:
    """How far before the end of a window its answer depends on samples."""
    if expression.function is Function.LAST:
        return LOOKBACK_MS
    return expression.window_seconds * 1000 + (step_ms if expression.function in STEPPED else 0)


def per_series(
    samples: MetricSamples,
    markers: MetricSamples,
    chosen: IntArray,
    expression: Expression,
    ends_ms: IntArray,
    step_ms: int,
) -> Matrix:
    """The expression's function of each chosen series at each end of a window, before `combine`. samples, markers: of
    one metric, from `MetricSamples.parted`. ends_ms: evaluation times less the offset, rising. step_ms: the step of
    FRACTION_* and LAST_TIME."""
    function, window_ms = expression.function, expression.window_seconds * 1000
    with np.errstate(all="ignore"):
        if function is Function.LAST:
            return _instant_answers(samples, markers, chosen, ends_ms)
        begins_ms, until_ms = ends_ms - window_ms, ends_ms
        if function in STEPPED:
            # A window between two steps holds the samples of all its steps.
            begins_ms, until_ms = begins_ms // step_ms * step_ms, until_ms // step_ms * step_ms
        seen, lows, highs = _windows(samples, chosen, begins_ms, until_ms)
        present = highs - lows >= (2 if function is Function.INCREASE else 1)
        low, high = lows[present], highs[present]
        answers = np.full(present.shape, np.nan)
        if not low.size:
            pass
        elif function in STEPPED:
            answers[present] = _over_steps(seen, low, high, expression, step_ms)
        elif function is Function.INCREASE:
            ends = np.broadcast_to(ends_ms, present.shape)[present]
            answers[present] = _increases(seen, low, high, ends - window_ms, ends)
        else:
            answers[present] = _over_windows(seen.values, low, high, expression)
        return Matrix(answers, present)


def _windows(
    samples: MetricSamples, chosen: IntArray, begins_ms: IntArray, ends_ms: IntArray
) -> tuple[MetricSamples, IntArray, IntArray]:
    """Samples, and the index range of (begin, end] in them for each chosen series and window. Where the windows hold at
    most half of all samples, only those are copied and returned, since later steps process every sample."""
    lows, highs = samples.positions(chosen, begins_ms), samples.positions(chosen, ends_ms)
    first, last = lows[:, 0], highs[:, -1]
    if 2 * int((last - first).sum()) > samples.times_ms.size:
        return samples, lows, highs
    seen = samples.between(chosen, first, last)
    moved = (seen.starts[:-1] - first)[:, None]
    return seen, lows + moved, highs + moved


def grouped(answers: Matrix, group: IntArray, combine: Combine) -> Matrix:
    """`combine` over the series of each group, at every time. group[i] ≥ 0: the group of series i. One row per group
    that has a series, in the order of their numbers."""
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    values, present = answers.values[order], answers.present[order]
    counts = np.add.reduceat(present.astype(np.int64), starts, axis=0)
    with np.errstate(all="ignore"):
        return Matrix(_combined(values, present, counts, starts, combine), counts > 0)


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


def _instant_answers(samples: MetricSamples, markers: MetricSamples, chosen: IntArray, ends_ms: IntArray) -> Matrix:
    """The newest sample of (end − look-back, end], unless a staleness marker is newer."""
    newest, exists = _newest(samples, chosen, ends_ms)
    times_ms = samples.times_ms[newest]
    present = exists & (times_ms > ends_ms - LOOKBACK_MS)
    if markers.times_ms.size:
        marker, ended = _newest(markers, chosen, ends_ms)
        present &= ~(ended & (markers.times_ms[marker] > times_ms))
    return Matrix(samples.values[newest], present)


def _newest(samples: MetricSamples, chosen: IntArray, ends_ms: IntArray) -> tuple[IntArray, BoolArray]:
    newest = samples.positions(chosen, ends_ms) - 1
    exists = newest >= samples.starts[chosen][:, None]
    return np.where(exists, newest, 0), exists


def _over_steps(
    samples: MetricSamples, low: IntArray, high: IntArray, expression: Expression, step_ms: int
) -> FloatArray:
    """avg_over_time((last_over_time(x[step]) > bool bound)[window:step]) and max_over_time(timestamp(…)[…]).

    A subquery evaluates at every multiple of the step in (end − window, end]. It finds the newest sample of (multiple −
    step, multiple] and gives it that multiple as its time.
    """
    steps = -(-samples.times_ms // step_ms)
    if expression.function is Function.LAST_TIME:
        return steps[high - 1] * step_ms / 1000
    newest = np.append(steps[1:] != steps[:-1], True)
    newest[samples.starts[1:][samples.starts[1:] > 0] - 1] = True  # the last sample of its series
    assert expression.parameter is not None
    if expression.function is Function.FRACTION_ABOVE:
        holds = samples.values > expression.parameter
    else:
        holds = _any_bit(samples.values, int(expression.parameter))
    seen, true = _running_count(newest), _running_count(newest & holds)
    share: FloatArray = (true[high] - true[low]) / (seen[high] - seen[low])
    return share


def _running_count(mask: BoolArray) -> IntArray:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(mask, dtype=np.int64)))


def _any_bit(values: FloatArray, mask: int) -> BoolArray:
    """Whether a value has any bit of the mask, computed as promql.py does, also for negative and fractional ones."""
    *higher, (top, lowest) = bit_runs(mask)
    for above, below in higher:
        values = np.minimum(np.fmod(values, 2.0**above), 2.0**below - 1)
    return np.fmod(values, 2.0**top) >= 2.0**lowest


def _over_windows(values: FloatArray, low: IntArray, high: IntArray, expression: Expression) -> FloatArray:
    """A range function over values[low:high] of each window; windows are not empty and may overlap."""
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
    """The ufunc over values[low:high] of each window, as in `_over_windows`."""
    if high.max() == values.size:
        values = np.append(values, 0.0)  # reduceat refuses an index past the end
    bounds = np.column_stack((low, high)).ravel()
    reduced: FloatArray = ufunc.reduceat(values, bounds)[::2]
    return reduced


_DOWN = 2.0**-64
"""Scale for a mean whose sum of finite values overflows."""


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
            # NumPy sorts NaN last, Prometheus first: rank i lies this many positions further left.
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
    """increase() as Prometheus ≥2.52 extrapolates it: to an edge of the window within 1.1 average sample intervals,
    else by half an interval, and never to before a counter with this slope was zero. Windows have at least two samples.
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
