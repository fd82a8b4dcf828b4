"""The vectorised functions against the plain ones, on series that nobody would think of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.telemetry import evaluate, recording
from gpuwatch.telemetry.recording import RecordingStore
from gpuwatch.telemetry.recording_part import TextFile
from gpuwatch.telemetry.samples import Combine, Expression, Function, Selector
from gpuwatch.telemetry.series import RecordedSeries, mark_stale
from telemetry import promql_oracle
from telemetry.promql_oracle import Samples

BASE_MS = 1_760_000_400_000


def store(columns: Sequence[Samples]) -> RecordingStore:
    """One metric `m`; series i has the labels i and half (i // 2)."""
    series = []
    for index, samples in enumerate(columns):
        times_ms = np.array([time for time, _ in samples], np.int64)
        values = np.array([0.0 if value is None else value for _, value in samples])
        mark_stale(values, np.array([value is None for _, value in samples], np.bool_))
        series.append(RecordedSeries("m", {"i": str(index), "half": str(index // 2)}, times_ms, values))
    return RecordingStore("test", [TextFile(series)])


def moment(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def agree(found: float | None, expected: float | None) -> bool:
    if found is None or expected is None:
        return found is expected
    if math.isnan(found) or math.isnan(expected):
        return math.isnan(found) and math.isnan(expected)
    return found == expected or math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)


# Times close together and on round numbers, so that edges are met; values that repeat, so that changes and resets are.
times = st.lists(
    st.integers(-700_000, 0) | st.integers(-70, 0).map(lambda tens: tens * 10_000), min_size=1, max_size=12, unique=True
).map(sorted)
values = st.sampled_from([0.0, 1.0, 2.0, 3.5, 8.0, 12.0, -1.0, math.nan, math.inf, -math.inf, None, None]) | st.floats(
    -1e6, 1e6
)
one_series = times.flatmap(
    lambda chosen: st.tuples(*(values.map(lambda value, time=time: (BASE_MS + time, value)) for time in chosen))
)
moments = st.integers(-720, 120).map(lambda seconds: BASE_MS + seconds * 1000) | st.integers(BASE_MS - 700_000, BASE_MS)


def _expression(function: Function, window: int, parameter: float, offset: int, step: int) -> Expression:
    if function is Function.LAST:
        return Expression(Selector("m"), function, offset_seconds=offset, by=None)
    given_parameter = {
        Function.QUANTILE: parameter,
        Function.FRACTION_ABOVE: round(parameter * 8),
        Function.FRACTION_BITS: 1 + round(abs(parameter) * 20),
    }.get(function)
    return Expression(Selector("m"), function, window, given_parameter, offset, step, by=None)


expressions = st.builds(
    _expression,
    st.sampled_from(Function),
    st.sampled_from([1, 10, 30, 60, 300, 600]),
    st.floats(0, 1) | st.sampled_from([0.0, 1.0, 0.5, -0.5, 1.5]),
    st.sampled_from([0, 0, 60]),
    st.sampled_from([10, 30, 60]),
)


@given(st.lists(one_series, min_size=1, max_size=4), expressions, moments)
@settings(max_examples=300)
def test_every_function_of_every_series(columns: list[Samples], expression: Expression, at_ms: int) -> None:
    if not any(value is not None for samples in columns for _, value in samples):
        return
    found = {row.labels["i"]: row.value for row in store(columns).evaluate(expression, moment(at_ms))}
    for index, samples in enumerate(columns):
        assert agree(found.get(str(index)), promql_oracle.answer(samples, expression, at_ms)), index


@given(st.lists(one_series, min_size=1, max_size=4), expressions, moments, st.sampled_from([1, 7, 60, 400]))
def test_a_grid_is_one_evaluation_after_another(
    columns: list[Samples], expression: Expression, at_ms: int, step: int
) -> None:
    if not any(value is not None for samples in columns for _, value in samples):
        return
    grid = store(columns).grid(expression, moment(at_ms), moment(at_ms + 12_500), step)
    found = {one.labels["i"]: dict(zip(one.times, one.values, strict=True)) for one in grid}
    for index, samples in enumerate(columns):
        for each_ms in range(at_ms, at_ms + 12_501, step * 1000):
            expected = promql_oracle.answer(samples, expression, each_ms)
            assert agree(found.get(str(index), {}).get(each_ms / 1000), expected), (index, each_ms)


@given(
    st.lists(one_series, min_size=2, max_size=4),
    st.sampled_from(Combine),
    st.sampled_from([(), ("half",), ("half", "missing"), ("missing",)]),
)
def test_series_of_one_group_become_one_value(columns: list[Samples], combine: Combine, by: tuple[str, ...]) -> None:
    if not any(value is not None for samples in columns for _, value in samples):
        return
    expression = Expression(Selector("m"), Function.LAST_IN_WINDOW, 600, combine=combine, by=by)
    answers = {
        index: found
        for index, samples in enumerate(columns)
        if (found := promql_oracle.answer(samples, expression, BASE_MS)) is not None
    }
    keyed = groupby(sorted(answers), key=lambda index: str(index // 2) if "half" in by else "")
    expected = {key: promql_oracle.combined([answers[index] for index in members], combine) for key, members in keyed}
    rows = store(columns).evaluate(expression, moment(BASE_MS))
    assert all(set(row.labels) <= {"half"} for row in rows)
    found = {row.labels.get("half", ""): row.value for row in rows}
    assert found.keys() == expected.keys()
    assert all(agree(found[key], expected[key]) for key in found)


def test_a_large_grid_is_answered_in_blocks_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [[(BASE_MS + 1000 * second, float(second % 13 + series)) for second in range(200)] for series in range(3)]
    expression = Expression(Selector("m"), Function.MAX, 7, by=("half",))
    ask = expression, moment(BASE_MS), moment(BASE_MS + 199_000), 1
    whole = store(columns).grid(*ask)
    monkeypatch.setattr(recording, "_CELLS_AT_ONCE", 10)
    assert store(columns).grid(*ask) == whole
    assert [len(one.times) for one in whole] == [200, 200]


def test_quantiles_of_many_samples_are_taken_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(3)
    columns = [[(BASE_MS - 1000 * i, float(draw.random())) for i in reversed(range(50))] for _ in range(7)]
    expression = Expression(Selector("m"), Function.QUANTILE, 60, 0.9, by=None)
    whole = store(columns).evaluate(expression, moment(BASE_MS))
    monkeypatch.setattr(evaluate, "_CELLS_AT_ONCE", 120)
    assert store(columns).evaluate(expression, moment(BASE_MS)) == whole
    assert [row.value for row in whole] == pytest.approx(
        [np.quantile([value for _, value in samples], 0.9) for samples in columns]
    )


def test_the_mean_of_large_numbers_does_not_overflow() -> None:
    columns = [[(BASE_MS - 1000, 1.7e308), (BASE_MS, 1.5e308)], [(BASE_MS, 1.7e308)]]
    each = Expression(Selector("m"), Function.AVG, 60, by=None)
    together = Expression(Selector("m"), Function.MAX, 60, combine=Combine.AVG)
    assert [row.value for row in store(columns).evaluate(each, moment(BASE_MS))] == [1.6e308, 1.7e308]
    assert [row.value for row in store(columns).evaluate(together, moment(BASE_MS))] == [1.7e308]
