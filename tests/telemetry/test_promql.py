"""Expressions as people read them, and what is no expression."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.sources.telemetry.promql import Dialect, any_of, duration, quoted, render
from gpuwatch.sources.telemetry.samples import Combine, Expression, Function, Matcher, MatchOp, Selector

METRIC = Selector("m", (Matcher("node", MatchOp.EQUAL, "a"),))
STEPS = Expression(METRIC, Function.FRACTION_ABOVE, 3600, 0.05, by=("UUID", "node"))


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        (Expression(METRIC, Function.LAST), 'max(m{node="a"})'),
        (Expression(METRIC, Function.LAST, offset_seconds=60, by=None), 'm{node="a"} offset 1m'),
        (Expression(METRIC, Function.AVG, 900, by=("UUID",)), 'max by (UUID) (avg_over_time(m{node="a"}[15m]))'),
        (Expression(METRIC, Function.INCREASE, 90, combine=Combine.SUM), 'sum(increase(m{node="a"}[90s]))'),
        (
            Expression(METRIC, Function.QUANTILE, 604_800, 0.95, offset_seconds=3600),
            'max(quantile_over_time(0.95, m{node="a"}[1w] offset 1h))',
        ),
        (
            STEPS,
            'max by (UUID, node) (avg_over_time((last_over_time(m{node="a"}[1m]) > bool 0.05)[1h:1m]))',
        ),
        (
            replace(STEPS, function=Function.FRACTION_BITS, parameter=8 | 64 | 128, step_seconds=30, by=None),
            'avg_over_time((clamp_max(last_over_time(m{node="a"}[30s]) % 256, 63) % 16 >= bool 8)[1h:30s])',
        ),
        (
            replace(STEPS, function=Function.LAST_TIME, parameter=None, by=None),
            'max_over_time(timestamp(last_over_time(m{node="a"}[1m]))[1h:1m])',
        ),
        (Expression(Selector("a.b"), Function.COUNT, 60, by=None), 'count_over_time({__name__="a.b"}[1m])'),
    ],
)
def test_expressions_are_shown_as_promql(expression: Expression, shown: str) -> None:
    assert render(expression) == shown


def test_servers_that_close_windows_are_asked_a_millisecond_less() -> None:
    window = Expression(METRIC, Function.AVG, 3600, offset_seconds=60, by=None)
    assert render(window, dialect=Dialect.PROMETHEUS_2) == 'avg_over_time(m{node="a"}[3599999ms] offset 1m)'
    last = Expression(METRIC, Function.LAST, by=None)
    assert render(last, dialect=Dialect.PROMETHEUS_2) == 'm{node="a"} and last_over_time(m{node="a"}[299999ms])'


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (Function.INCREASE, 'increase_prometheus(m{node="a"}[1h])'),
        (Function.CHANGES, 'changes_prometheus(m{node="a"}[1h])'),
        (Function.AVG, 'avg_over_time(m{node="a"}[1h])'),
        (Function.LAST_TIME, 'max_over_time((present_over_time(m{node="a"}[30s]) * time())[1h:30s])'),
    ],
)
def test_victoria_metrics_is_asked_in_its_own_words(function: Function, shown: str) -> None:
    assert render(Expression(METRIC, function, 3600, step_seconds=30, by=None), dialect=Dialect.METRICSQL) == shown


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (Expression(METRIC, Function.AVG), "window_seconds is 0"),
        (Expression(METRIC, Function.AVG, -60), "window_seconds is -60"),
        (Expression(METRIC, Function.LAST, 60), "window_seconds is 60"),
        (Expression(METRIC, Function.QUANTILE, 60), "needs a parameter"),
        (Expression(METRIC, Function.FRACTION_ABOVE, 60), "needs a parameter"),
        (Expression(METRIC, Function.FRACTION_BITS, 60, 0), "mask"),
        (Expression(METRIC, Function.FRACTION_BITS, 60, 1.5), "mask"),
        (Expression(METRIC, Function.AVG, 60, offset_seconds=-1), "never negative"),
        (Expression(METRIC, Function.AVG, 60, by=("a-b",)), "'a-b' is no label name"),
        (Expression(Selector(""), Function.AVG, 60), "names no metric"),
    ],
)
def test_what_makes_no_sense_is_refused(expression: Expression, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        render(expression)


def test_values_cannot_end_their_quotes() -> None:
    assert quoted('a"} or up{x="\\\n') == '"a\\"} or up{x=\\"\\\\\\n"'


def test_names_of_nodes_are_matched_to_the_letter() -> None:
    assert any_of("node", ["a.b"]) == Matcher("node", MatchOp.EQUAL, "a.b")
    assert any_of("node", ["a.b", "c|d"]) == Matcher("node", MatchOp.MATCHES, r"a\.b|c\|d")


@pytest.mark.parametrize(
    ("seconds", "shown"), [(1, "1s"), (60, "1m"), (90, "90s"), (86_400, "1d"), (1_209_600, "2w"), (0.5, "500ms")]
)
def test_durations_are_in_the_largest_unit(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@given(st.integers(1, 2**20), st.integers(0, 2**21))
def test_a_mask_in_constants_alone_is_the_mask(mask: int, value: int) -> None:
    promql = render(Expression(Selector("m"), Function.FRACTION_BITS, 60, mask, by=None))
    inner = promql.removeprefix("avg_over_time((").removesuffix(")[1m:1m])").replace("last_over_time(m[1m])", "value")
    found = eval(inner.replace(">= bool", ">="), {"clamp_max": min, "value": value})
    assert found == bool(value & mask)
