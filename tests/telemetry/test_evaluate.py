"""The vectorised functions against the plain ones, on series that nobody would think of."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.sources.telemetry import evaluate, recording
from gpuwatch.sources.telemetry.recording import RecordingStore
from gpuwatch.sources.telemetry.recording_part import TextFile
from gpuwatch.sources.telemetry.samples import Combine, Expression, Function, Selector
from gpuwatch.sources.telemetry.series import RecordedSeries, mark_stale
from telemetry import promql_oracle
from telemetry.promql_oracle import Samples
from telemetry.timeline import at_steps

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
common = st.sampled_from([0.0, 1.0, 2.0, 3.5, 8.0, 12.0, math.nan])
values = (
    common
    | common
    | st.sampled_from([math.nan, math.nan, -1.0, math.inf, -math.inf, None, None])
    | st.floats(-1e6, 1e6)
)
edges = st.lists(
    st.sampled_from([0, -1, -299_999, -300_000, -300_001, -60_000, -10_000]), min_size=1, max_size=5, unique=True
)
one_series = (times | edges.map(sorted)).flatmap(
    lambda chosen: st.tuples(*(values.map(lambda value, time=time: (BASE_MS + time, value)) for time in chosen))
)
moments = (
    st.just(BASE_MS)
    | st.integers(-720, 120).map(lambda seconds: BASE_MS + seconds * 1000)
    | st.integers(BASE_MS - 700_000, BASE_MS)
)


def _expression(function: Function, window: int, parameter: float, offset: int, step: int) -> Expression:
    if function is Function.LAST:
        return Expression(Selector("m"), function, offset_seconds=offset, by=None)
    given_parameter = {
        Function.QUANTILE: parameter,
        Function.FRACTION_ABOVE: round(parameter * 8),
        Function.FRACTION_BITS: 1 + round(abs(parameter) * 20),
    }.get(function)
    return Expression(Selector("m"), function, window, given_parameter, offset, step, by=None)


def expressions(functions: st.SearchStrategy[Function]) -> st.SearchStrategy[Expression]:
    return st.builds(
        _expression,
        functions,
        st.sampled_from([600, 300, 60, 30, 10, 1]),
        st.floats(0, 1) | st.sampled_from([0.0, 1.0, 0.5, -0.5, 1.5]),
        st.sampled_from([0, 0, 60]),
        st.sampled_from([10, 30, 60]),
    )


@pytest.mark.parametrize("function", Function)
@given(data=st.data())
def test_every_function_of_every_series(function: Function, data: st.DataObject) -> None:
    columns: list[Samples] = data.draw(st.lists(one_series, min_size=1, max_size=4))
    expression = data.draw(expressions(st.just(function)))
    at_ms = data.draw(moments)
    if not any(value is not None for samples in columns for _, value in samples):
        return
    found = {row.labels["i"]: row.value for row in store(columns).evaluate(expression, moment(at_ms))}
    for index, samples in enumerate(columns):
        assert agree(found.get(str(index)), promql_oracle.answer(samples, expression, at_ms)), index


@given(
    st.lists(one_series, min_size=1, max_size=4),
    expressions(st.sampled_from(Function)),
    moments,
    st.sampled_from([1, 7, 60, 400]),
)
def test_a_grid_is_one_evaluation_after_another(
    columns: list[Samples], expression: Expression, at_ms: int, step: int
) -> None:
    if not any(value is not None for samples in columns for _, value in samples):
        return
    grid = store(columns).grid(expression, at_steps(moment(at_ms), moment(at_ms + 12_500), step))
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
    ask = expression, at_steps(moment(BASE_MS), moment(BASE_MS + 199_000), 1)
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


@pytest.mark.parametrize(("late", "carried_on"), [(65, 65), (66, 30), (67, 30)])
def test_a_slope_is_carried_on_to_an_edge_nearer_than_eleven_tenths_of_the_distance(
    late: int, carried_on: float
) -> None:
    """Samples a minute apart, the first so long after the window's begin; the counter is far from zero."""
    times = range(BASE_MS - 900_000 + late * 1000, BASE_MS + 1, 60_000)
    samples = [(time, 1000.0 + number) for number, time in enumerate(times)]
    sampled, to_end = (times[-1] - times[0]) / 1000, (BASE_MS - times[-1]) / 1000
    (row,) = store([samples]).evaluate(Expression(Selector("m"), Function.INCREASE, 900), moment(BASE_MS))
    assert row.value == pytest.approx((len(samples) - 1) * (sampled + carried_on + to_end) / sampled, rel=1e-12)


def at_every_half_minute(*runs: tuple[float | None, int]) -> Samples:
    """Runs of a value (None: no samples) from BASE_MS on, as in promtool's test notation."""
    values = [value for value, count in runs for _ in range(count)]
    return [(BASE_MS + 30_000 * number, value) for number, value in enumerate(values) if value is not None]


def test_increase_is_blind_to_a_first_occurrence_and_sees_events_in_a_code() -> None:
    """Why XIDs are never asked for with increase() alone: the worked examples of Prometheus' own semantics."""
    up, down = at_every_half_minute((13.0, 31), (79.0, 31)), at_every_half_minute((79.0, 31), (13.0, 31))
    born, second = at_every_half_minute((None, 31), (1.0, 31)), at_every_half_minute((1.0, 31), (2.0, 31))
    codes = store([up, down]).evaluate(
        Expression(Selector("m"), Function.INCREASE, 300, by=("i",)), moment(BASE_MS + 1_020_000)
    )
    assert [row.value for row in codes] == pytest.approx([66 * 300 / 270, 13 * 300 / 270])
    counts = store([born, second]).evaluate(
        Expression(Selector("m"), Function.INCREASE, 600, by=("i",)), moment(BASE_MS + 1_200_000)
    )
    assert [row.value for row in counts] == pytest.approx([0, 600 / 570])


@pytest.mark.parametrize(("reasons", "share"), [(8.0, 1.0), (4.0, 0.0), (196.0, 1.0), (0.0, 0.0), (16.0, 0.0)])
def test_throttling_that_matters_is_told_from_a_software_power_cap(reasons: float, share: float) -> None:
    """Hardware slowdown (8), thermal (64) and power brake (128); a software power cap (4) at full load is normal."""
    question = Expression(Selector("m"), Function.FRACTION_BITS, 600, 8 + 64 + 128, step_seconds=60)
    (row,) = store([at_every_half_minute((reasons, 41))]).evaluate(question, moment(BASE_MS + 1_200_000))
    assert row.value == share
