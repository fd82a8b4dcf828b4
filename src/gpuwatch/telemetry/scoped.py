"""The one place where the matchers that say whose series count are added to selectors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gpuwatch.catalog.metrics import metric_rows
from gpuwatch.model.telemetry import Gap
from gpuwatch.telemetry.promql import any_of
from gpuwatch.telemetry.samples import (
    AnswerRow,
    Expression,
    Matcher,
    Partition,
    SampleStore,
    Selector,
    Series,
    TelemetryError,
)

_OF_DEVICES = frozenset(row.metric for row in metric_rows())


def of_labels(labels: Mapping[str, str]) -> tuple[Matcher, ...]:
    return tuple(any_of(name, [value]) for name, value in labels.items())


@dataclass(frozen=True, slots=True)
class ScopedStore:
    """A SampleStore that asks `store` for some series alone.

    cluster: matchers for every series. An alert's rule may drop such a label, so an alert without it counts too.
    targets: further matchers for the metrics of GPU exporters.
    """

    store: SampleStore
    cluster: tuple[Matcher, ...] = ()
    targets: tuple[Matcher, ...] = ()

    @property
    def description(self) -> str:
        return self.store.description

    @property
    def end(self) -> datetime | None:
        return self.store.end

    @property
    def problems(self) -> tuple[Gap, ...]:
        return self.store.problems

    def clock_skew_seconds(self, at: datetime) -> float | None:
        return self.store.clock_skew_seconds(at)

    def metric_names(self, at: datetime, lookback_seconds: int) -> frozenset[str]:
        """Of all series: discovery then counts each metric's own."""
        return self.store.metric_names(at, lookback_seconds)

    def alert_names(self) -> frozenset[str] | None:
        return self.store.alert_names()

    def evaluate(self, expression: Expression, at: datetime, partition: Partition | None = None) -> list[AnswerRow]:
        return self.store.evaluate(self._scoped(expression), at, partition)

    def evaluate_many(
        self, expressions: Sequence[Expression], at: datetime, partition: Partition | None = None
    ) -> list[list[AnswerRow] | TelemetryError]:
        return self.store.evaluate_many([self._scoped(each) for each in expressions], at, partition)

    def grid(
        self,
        expression: Expression,
        start: datetime,
        end: datetime,
        step_seconds: int,
        partition: Partition | None = None,
    ) -> list[Series]:
        return self.store.grid(self._scoped(expression), start, end, step_seconds, partition)

    def raw(self, selector: Selector, start: datetime, end: datetime) -> list[Series]:
        return self.store.raw(self._selector(selector), start, end)

    def render(self, expression: Expression) -> str:
        return self.store.render(self._scoped(expression))

    def _scoped(self, expression: Expression) -> Expression:
        return replace(expression, selector=self._selector(expression.selector))

    def _selector(self, selector: Selector) -> Selector:
        more = self.cluster + (self.targets if selector.metric in _OF_DEVICES else ())
        if selector.metric == "ALERTS":
            more = tuple(any_of(each.label, {each.value, ""}) for each in more)
        return replace(selector, matchers=selector.matchers + more)
