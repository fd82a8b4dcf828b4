"""Expressions as PromQL. Steps (FRACTION_*, LAST_TIME) are subqueries over `last_over_time(metric[step])`, not over the
bare metric: an instant lookup would repeat a sample in a gap of up to five minutes, and `timestamp(metric)` in a
subquery takes Prometheus 2.42 60 times as long."""

import math
import re
from collections.abc import Iterable, Iterator
from enum import Enum

from gpuwatch.facts.model.plain_text import original, quoted
from gpuwatch.sources.telemetry.samples import Expression, Function, Matcher, MatchOp, Selector

DEFAULT_STEP_SECONDS = 60
STEPPED = frozenset({Function.FRACTION_ABOVE, Function.FRACTION_BITS, Function.LAST_TIME})
"""Functions that need a subquery."""


class Dialect(Enum):
    """Servers that evaluate the same PromQL differently."""

    PROMETHEUS_2 = "Prometheus 2"  # windows include a sample at their left edge
    PROMETHEUS_3 = "Prometheus 3"  # they do not; Thanos' and Mimir's engine is this one or the one above
    METRICSQL = "MetricsQL"  # VictoriaMetrics: they do not


_METRICSQL = {Function.INCREASE: "increase_prometheus", Function.CHANGES: "changes_prometheus"}
"""MetricsQL's own `increase` and `changes` use the sample before the window, and assume that a new series began at
zero: a counter would rise whenever its labels change, as they do with every Pod."""
_LOOKBACK_SECONDS = 300
_OVER_TIME = {
    Function.LAST_IN_WINDOW: "last_over_time",
    Function.MIN: "min_over_time",
    Function.MAX: "max_over_time",
    Function.AVG: "avg_over_time",
    Function.COUNT: "count_over_time",
    Function.INCREASE: "increase",
    Function.CHANGES: "changes",
}
_UNITS = ((604_800_000, "w"), (86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms"))
_PLAIN_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_PLAIN_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SPECIAL_IN_RE2 = re.compile(r"[\\.+*?()|\[\]{}^$]")


def render(
    expression: Expression,
    *,
    more: Iterable[Matcher] = (),
    step_seconds: int = DEFAULT_STEP_SECONDS,
    dialect: Dialect = Dialect.PROMETHEUS_3,
) -> str:
    """The expression's PromQL. more: further matchers. step_seconds: for expressions without one. Raises ValueError for
    an invalid expression.

    dialect: for Prometheus 2 windows are a millisecond shorter, which gives the same samples, as Prometheus' times are
    milliseconds; increase() then differs by at most 1 ms / (time between its first and last sample). VictoriaMetrics'
    increase() is the difference of the window's samples, not extrapolated to its edges.
    """
    function, selector = expression.function, vector(expression.selector, more)
    _check(expression)
    closed, metricsql = dialect is Dialect.PROMETHEUS_2, dialect is Dialect.METRICSQL
    step = expression.step_seconds or step_seconds
    window = duration(expression.window_seconds, closed)
    offset = f" offset {duration(expression.offset_seconds)}" if expression.offset_seconds else ""
    newest = f"last_over_time({selector}[{duration(step, closed)}])"
    steps = f"[{window}:{duration(step)}]{offset}"
    match function:
        case Function.LAST if closed:
            recent = f"last_over_time({selector}[{duration(_LOOKBACK_SECONDS, closed)}]{offset})"
            inner = f"{selector}{offset} and {recent}"
        case Function.LAST:
            inner = f"{selector}{offset}"
        case Function.QUANTILE:
            inner = f"quantile_over_time({_number(expression.parameter)}, {selector}[{window}]{offset})"
        case Function.FRACTION_ABOVE:
            inner = f"avg_over_time(({newest} > bool {_number(expression.parameter)}){steps})"
        case Function.FRACTION_BITS:
            inner = f"avg_over_time(({_any_bit(newest, int(expression.parameter or 0))}){steps})"
        case Function.LAST_TIME:
            seen = f"timestamp({newest})"
            if metricsql:  # its timestamp() is the sample's time, not the step's
                seen = f"(present_over_time({selector}[{duration(step)}]) * time())"
            inner = f"max_over_time({seen}{steps})"
        case _:
            name = _OVER_TIME[function]
            inner = f"{_METRICSQL.get(function, name) if metricsql else name}({selector}[{window}]{offset})"
    if expression.by is None:
        return inner
    kept = f" by ({', '.join(expression.by)}) " if expression.by else ""
    return f"{expression.combine}{kept}({inner})"


def vector(selector: Selector, more: Iterable[Matcher] = ()) -> str:
    """The selector with further matchers: `metric{label="value"}`."""
    matchers = [f"{each.label}{each.op}{quoted(original(each.value))}" for each in (*selector.matchers, *more)]
    if _PLAIN_METRIC.fullmatch(selector.metric):
        return f"{selector.metric}{{{', '.join(matchers)}}}" if matchers else selector.metric
    return f"{{{', '.join([f'__name__={quoted(selector.metric)}', *matchers])}}}"


def any_of(label: str, values: Iterable[str]) -> Matcher:
    """Matches series whose label has one of the values; '' matches series without the label."""
    chosen = list(values)
    if len(chosen) == 1:
        return Matcher(label, MatchOp.EQUAL, chosen[0])
    return Matcher(label, MatchOp.MATCHES, _alternatives(chosen))


def none_of(label: str, values: Iterable[str]) -> Matcher:
    return Matcher(label, MatchOp.DIFFERS, _alternatives(values))


def _alternatives(values: Iterable[str]) -> str:
    return "|".join(_SPECIAL_IN_RE2.sub(r"\\\g<0>", value) for value in values)


def in_batches(label: str, values: Iterable[str], at_once: int) -> Iterator[Matcher]:
    """`any_of` for at most `at_once` of the values, sorted, in each matcher."""
    ordered = sorted(values)
    for begin in range(0, len(ordered), at_once):
        yield any_of(label, ordered[begin : begin + at_once])


def duration(seconds: float, closed: bool = False) -> str:
    """`7d`, `90s`, `1h`: in the largest unit that divides it; `closed` subtracts a millisecond."""
    milliseconds = round(seconds * 1000) - closed
    unit, name = next((size, name) for size, name in _UNITS if milliseconds % size == 0)
    return f"{milliseconds // unit}{name}"


def bit_runs(mask: int) -> Iterator[tuple[int, int]]:
    """Runs of adjacent bits, the highest first: the bit above the run, and its lowest bit, counted from 0."""
    while mask:
        top = lowest = mask.bit_length()
        while lowest and mask >> (lowest - 1) & 1:
            lowest -= 1
        yield top, lowest
        mask &= (1 << lowest) - 1


def _any_bit(value: str, mask: int) -> str:
    """1 where the value has any bit of the mask, else 0, with constant operands only.

    PromQL has no bitwise `and`, and a sum of one vector per bit costs the server a join each. So, from the highest run
    of adjacent bits down: `% 2^top` drops the bits above the run; where the run is not zero, `clamp_max` to one less
    than its lowest bit sets all bits below, so that the test of the next run is true.
    """
    *higher, (top, lowest) = bit_runs(mask)
    for above, below in higher:
        value = f"clamp_max({value} % {1 << above}, {(1 << below) - 1})"
    return f"{value} % {1 << top} >= bool {1 << lowest}"


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)


def _check(expression: Expression) -> None:
    function, parameter = expression.function, expression.parameter
    where = f"{function} of {expression.selector.metric}"
    if not expression.selector.metric:
        raise ValueError(f"{function}: the selector names no metric")
    if (expression.window_seconds == 0) != (function is Function.LAST) or expression.window_seconds < 0:
        raise ValueError(f"{where}: window_seconds is {expression.window_seconds}; it is 0 for last and > 0 elsewhere")
    if expression.offset_seconds < 0 or expression.step_seconds < 0:
        raise ValueError(f"{where}: offset_seconds and step_seconds are never negative")
    if function in (Function.QUANTILE, Function.FRACTION_ABOVE, Function.FRACTION_BITS) and parameter is None:
        raise ValueError(f"{where}: needs a parameter")
    if function is Function.FRACTION_BITS and not (
        parameter is not None and 0 < parameter < 2**53 and parameter == int(parameter)
    ):
        raise ValueError(f"{where}: the mask {parameter} is no whole number from 1 to 2^53 − 1")
    named = [*(expression.by or ()), *(matcher.label for matcher in expression.selector.matchers)]
    for label in named:
        if not _PLAIN_LABEL.fullmatch(label):
            raise ValueError(f"{where}: {label!r} is no label name")
