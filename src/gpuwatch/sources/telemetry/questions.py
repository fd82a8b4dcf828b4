"""From a WindowStat to the expressions that answer it for one row of the catalog.

Each change of Pod starts a new piece of a device's series. Statistics that join without the lengths of the pieces
(last, minimum, maximum) are queried per device, the others per device and Pod. Scales are applied to answers; bounds in
a query are converted to the metric's own unit.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

from gpuwatch.facts.catalog.metrics import MetricRow, plausible_range, rows_for
from gpuwatch.facts.model.telemetry import Schema, Scope, Signal, SignalFound, Statistic, Vendor, WindowStat
from gpuwatch.sources.telemetry import labels as row_labels
from gpuwatch.sources.telemetry.discovery import by_labels, selector
from gpuwatch.sources.telemetry.samples import Combine, Expression, Function, Matcher, MatchOp, SampleStore
from gpuwatch.sources.telemetry.series import FloatArray
from gpuwatch.sources.telemetry.sightings import INSTANT_SECONDS

FRACTIONS = frozenset({Statistic.FRACTION_ABOVE, Statistic.FRACTION_BITS})
ADDED = frozenset({Statistic.COUNT, Statistic.INCREASE, Statistic.CHANGES})
"""Statistics that add up over consecutive Pods of a device."""
WEIGHTED = frozenset({Statistic.AVG, *FRACTIONS})
"""Statistics that are means over the pieces of a series, weighted by samples."""
IN_UNITS = frozenset(Statistic) - {Statistic.COUNT, Statistic.CHANGES, *FRACTIONS}
"""Statistics whose values are in the signal's unit."""

_AT_ONE_END = frozenset({Statistic.APPEARED, Statistic.DISAPPEARED})
"""Statistics of series that have samples at one end of the window only."""

_PLACE = Matcher("__device__", MatchOp.EQUAL, "$device")


Raw = TypeVar("Raw", float, FloatArray)


@dataclass(frozen=True, slots=True)
class Question:
    """One WindowStat of one metric.

    in_units: answers are in the metric's unit, which `scale` converts to SI. counts: the number of samples of each row
    of `value`.
    beside: for APPEARED and DISAPPEARED, the range that must have no sample; for FRACTION_*, the maximum, to find blank
    values.
    pieces: the answer has one row per device and Pod, not one per device. plausible: bounds, in the metric's unit.
    """

    stat: WindowStat
    row: MetricRow
    scale: float
    in_units: bool
    value: Expression
    beside: Expression | None
    counts: Expression
    pieces: bool
    plausible: tuple[float, float]


def in_si(raw: Raw, scale: float) -> Raw:
    """raw × scale; divides where only that is exact (35 / 100 is 0.35, 35 · 0.01 is not)."""
    return raw / (1 / scale) if scale < 1 else raw * scale


def in_raw_unit(value: float, scale: float) -> float:
    """A bound in the metric's unit, rounded so that 0.29 is 29 % and not 28.999999999999996."""
    return float(f"{value / scale:.12g}")


def found_rows(signal: Signal, schema: Schema) -> list[tuple[MetricRow, SignalFound]]:
    """Catalog rows of a signal that exist here, preferred ones first."""
    found = {(each.vocabulary, each.metric): each for each in schema.signals if each.signal is signal}
    keys = ((row, (row.vocabulary, row.metric)) for row in rows_for(signal))
    return [(row, found[key]) for row, key in keys if key in found]


def device_labels(row: MetricRow) -> tuple[str, ...]:
    if row.scope is Scope.MACHINE:
        return ("instance",)
    return by_labels(row_labels.IDENTITY_LABELS[row.vendor], row.variant_labels)


def piece_labels(row: MetricRow) -> tuple[str, ...]:
    return by_labels(
        row_labels.IDENTITY_LABELS[row.vendor],
        row.variant_labels,
        row_labels.HOLDER_LABELS[row.vendor],
        row_labels.SLOT_LABELS,
        row_labels.CHURN_LABELS,
    )


def question(stat: WindowStat, row: MetricRow, scale: float, per_process: bool, interval_seconds: float) -> Question:
    """The question for one metric. per_process: the metric has rows per process beside the device's row."""
    statistic, window = stat.statistic, stat.window_seconds
    parts_of_device = row.combine in ("sum", "avg")
    pieces = (
        statistic in ADDED | WEIGHTED
        or (parts_of_device and statistic not in _AT_ONE_END)
        or (per_process and statistic is Statistic.MIN)
    )
    parameter = stat.parameter
    if statistic is Statistic.FRACTION_ABOVE and parameter is not None:
        parameter = in_raw_unit(parameter, scale)
    value = Expression(
        selector(row),
        Function.LAST_IN_WINDOW if statistic in _AT_ONE_END else Function(statistic.value),
        0 if statistic is Statistic.LAST else window,
        parameter=parameter,
        step_seconds=max(1, round(interval_seconds)) if statistic in FRACTIONS and interval_seconds else 0,
        combine=_combine(statistic, row),
        by=piece_labels(row) if pieces else device_labels(row),
    )
    per_device = replace(value, by=device_labels(row), parameter=None, step_seconds=0, combine=Combine.MAX)
    beside = None
    if statistic is Statistic.APPEARED:
        beside = replace(per_device, function=Function.COUNT, offset_seconds=window)
    elif statistic is Statistic.DISAPPEARED:
        beside = replace(per_device, function=Function.COUNT, window_seconds=INSTANT_SECONDS)
    elif statistic in FRACTIONS:
        beside = replace(per_device, function=Function.MAX)
    counts = replace(value, function=Function.COUNT, parameter=None, step_seconds=0, combine=Combine.MAX)
    low, high = plausible_range(stat.signal)
    plausible = in_raw_unit(low, scale), in_raw_unit(high, scale)
    return Question(stat, row, scale, statistic in IN_UNITS, value, beside, counts, pieces, plausible)


def _combine(statistic: Statistic, row: MetricRow) -> Combine:
    """How the server combines rows of one device or piece. Tiles and links as in the catalog; samples and changes count
    once, not once per tile. The quantile of a device is the greatest of its consecutive Pods' quantiles."""
    if statistic is Statistic.MIN and row.combine in ("max", "min"):
        return Combine.MIN
    if statistic in (Statistic.COUNT, Statistic.CHANGES) or (statistic is Statistic.MAX and row.combine == "min"):
        return Combine.MAX
    if statistic in _AT_ONE_END and row.combine in ("sum", "avg"):
        return Combine.MAX
    return Combine(row.combine)


def shown(store: SampleStore, questions: list[Question]) -> str:
    """PromQL for people, with `$device` in place of the device's matcher; the preferred metric first."""
    return " or ".join(dict.fromkeys(_shown(store, each) for each in questions))


def _shown(store: SampleStore, asked: Question) -> str:
    statistic, row = asked.stat.statistic, asked.row
    if row.scope is Scope.MACHINE:
        machine = Matcher("instance", MatchOp.EQUAL, "$machine")
        return store.render(replace(asked.value, selector=selector(row, machine)))
    by = (
        *(("UUID", "GPU_I_ID") if row.vendor is Vendor.NVIDIA else row_labels.IDENTITY_LABELS[row.vendor]),
        *row.variant_labels,
    )
    combine = asked.value.combine
    if statistic in ADDED:
        combine = Combine.SUM
    elif statistic in WEIGHTED:
        combine = Combine.AVG
    text = _rendered(store, replace(asked.value, by=by, combine=combine), row)
    if statistic in _AT_ONE_END:
        assert asked.beside is not None
        return f"({text} unless {_rendered(store, replace(asked.beside, by=by), row)})"
    return f"{text} * {asked.scale:.12g}" if asked.scale != 1 and statistic in IN_UNITS else text


def _rendered(store: SampleStore, expression: Expression, row: MetricRow) -> str:
    text = store.render(replace(expression, selector=selector(row, _PLACE)))
    return text.replace(f'{_PLACE.label}="{_PLACE.value}"', _PLACE.value)
