"""PromQL on one series, one sample after another: slow, and plain enough to be checked by reading.

Samples are (Unix milliseconds, value), oldest first; a value of None is a staleness marker.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from gpuwatch.sources.telemetry.samples import Combine, Expression, Function

Samples = Sequence[tuple[int, float | None]]


def answer(samples: Samples, expression: Expression, at_ms: int, *, prometheus: int = 3) -> float | None:
    """`function(series[window] offset …)` at a moment; None where there is no answer.

    prometheus 2 (2.42, asked for windows a millisecond shorter) differs in INCREASE alone.
    """
    function, parameter = expression.function, expression.parameter
    end = at_ms - expression.offset_seconds * 1000
    begin = end - expression.window_seconds * 1000
    if function is Function.LAST:
        recent = [value for time, value in samples if end - 300_000 < time <= end]
        return recent[-1] if recent else None
    inside = [(time, value) for time, value in samples if begin < time <= end and value is not None]
    if function in (Function.FRACTION_ABOVE, Function.FRACTION_BITS, Function.LAST_TIME):
        return _steps(samples, expression, begin, end)
    values = [value for _, value in inside]
    if not values:
        return None
    match function:
        case Function.LAST_IN_WINDOW:
            return values[-1]
        case Function.MIN | Function.MAX:
            return extreme(values, function is Function.MAX)
        case Function.AVG:
            return mean(values)
        case Function.COUNT:
            return len(values)
        case Function.CHANGES:
            pairs = pairwise(values)
            return sum(new != old and not (math.isnan(new) and math.isnan(old)) for old, new in pairs)
        case Function.QUANTILE:
            assert parameter is not None
            return quantile(values, parameter)
        case Function.INCREASE:
            return increase(inside, begin, end, prometheus)
    raise AssertionError(function)


def combined(values: Sequence[float], combine: Combine) -> float:
    """What becomes of several series' values, of which there is one or more."""
    match combine:
        case Combine.MAX | Combine.MIN:
            return extreme(values, combine is Combine.MAX)
        case Combine.AVG:
            return mean(values)
        case Combine.SUM:
            return sum(values)
        case Combine.COUNT:
            return len(values)


def extreme(values: Sequence[float], greatest: bool) -> float:
    numbers = [value for value in values if not math.isnan(value)]
    if not numbers:
        return math.nan
    return max(numbers) if greatest else min(numbers)


def mean(values: Sequence[float]) -> float:
    if all(math.isfinite(value) for value in values):
        return sum(value / len(values) for value in values)  # the sum itself may overflow
    return sum(values)


def quantile(values: Sequence[float], share: float) -> float:
    if math.isnan(share) or not 0 <= share <= 1:
        return math.nan if math.isnan(share) else math.copysign(math.inf, share)
    ordered = sorted(values, key=lambda value: (not math.isnan(value), 0 if math.isnan(value) else value))
    rank = share * (len(ordered) - 1)
    lower = math.floor(rank)
    upper = min(len(ordered) - 1, lower + 1)
    return ordered[lower] * (1 - (rank - lower)) + ordered[upper] * (rank - lower)


def increase(inside: Sequence[tuple[int, float]], begin_ms: int, end_ms: int, prometheus: int) -> float | None:
    """Prometheus ≥2.52 first decides how far to carry the slope on and then stops at zero; 2.42 does it the other way
    round, and is asked for a window that begins a millisecond later."""
    if len(inside) < 2:
        return None
    if prometheus == 2:
        begin_ms += 1
    (first_ms, first), (last_ms, last) = inside[0], inside[-1]
    gained = last - first
    for (_, old), (_, new) in pairwise(inside):
        if new < old:
            gained += old
    sampled, distance = (last_ms - first_ms) / 1000, (last_ms - first_ms) / 1000 / (len(inside) - 1)
    to_start, to_end = (first_ms - begin_ms) / 1000, (end_ms - last_ms) / 1000
    to_zero = sampled * (first / gained) if gained > 0 and first >= 0 else math.inf
    if prometheus == 2:
        to_start = min(to_start, to_zero)
    if to_start >= 1.1 * distance:
        to_start = distance / 2
    if prometheus == 3:
        to_start = min(to_start, to_zero)
    if to_end >= 1.1 * distance:
        to_end = distance / 2
    return gained * (sampled + to_start + to_end) / sampled


def _steps(samples: Samples, expression: Expression, begin_ms: int, end_ms: int) -> float | None:
    step = expression.step_seconds * 1000
    looks = [time for time in range(begin_ms // step * step, end_ms + 1, step) if begin_ms < time <= end_ms]
    seen: list[tuple[int, float]] = []
    for look in looks:
        newest = [value for time, value in samples if look - step < time <= look and value is not None]
        if newest:
            seen.append((look, newest[-1]))
    if not seen:
        return None
    match expression.function:
        case Function.LAST_TIME:
            return seen[-1][0] / 1000
        case Function.FRACTION_ABOVE:
            assert expression.parameter is not None
            return sum(value > expression.parameter for _, value in seen) / len(seen)
    mask = int(expression.parameter or 0)
    return sum(math.isfinite(value) and value >= 0 and int(value) & mask != 0 for _, value in seen) / len(seen)
