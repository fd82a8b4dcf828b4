"""Restricts queries to the series of this cluster and of trusted targets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from gpuwatch.facts.catalog.metrics import metric_rows
from gpuwatch.facts.model.telemetry import Gap
from gpuwatch.sources.telemetry.samples import (
    AnswerRow,
    Expression,
    Matcher,
    Partition,
    SampleStore,
    Selector,
    Series,
    Steps,
    TelemetryError,
)

_OF_DEVICES = frozenset(row.metric for row in metric_rows())


@dataclass(frozen=True, slots=True)
class ScopedStore:
    """A SampleStore that adds matchers to queries: `cluster` for every metric, `targets` for exporters' metrics too."""

    store: SampleStore
    cluster: tuple[Matcher, ...] = ()
    targets: tuple[Matcher, ...] = ()

    @property
    def description(self) -> str:
        return self.store.description

    @property
    def problems(self) -> tuple[Gap, ...]:
        return self.store.problems

    def reading(self) -> Self:
        return replace(self, store=self.store.reading())

    def metric_names(self, at: datetime, lookback_seconds: int) -> frozenset[str]:
        """Of all series: discovery then counts each metric's own."""
        return self.store.metric_names(at, lookback_seconds)

    def evaluate(self, expression: Expression, at: datetime, partition: Partition | None = None) -> list[AnswerRow]:
        return self.store.evaluate(self._scoped(expression), at, partition)

    def evaluate_many(
        self, expressions: Sequence[Expression], at: datetime, partition: Partition | None = None
    ) -> list[list[AnswerRow] | TelemetryError]:
        return self.store.evaluate_many([self._scoped(each) for each in expressions], at, partition)

    def grid(self, expression: Expression, steps: Steps, partition: Partition | None = None) -> list[Series]:
        return self.store.grid(self._scoped(expression), steps, partition)

    def raw(self, selector: Selector, start: datetime, end: datetime) -> list[Series]:
        return self.store.raw(self._selector(selector), start, end)

    def render(self, expression: Expression) -> str:
        return self.store.render(self._scoped(expression))

    def _scoped(self, expression: Expression) -> Expression:
        return replace(expression, selector=self._selector(expression.selector))

    def _selector(self, selector: Selector) -> Selector:
        more = self.cluster + (self.targets if selector.metric in _OF_DEVICES else ())
        return replace(selector, matchers=selector.matchers + more)
