"""The scrape targets of GPU metrics, the clusters that series name, and queries restricted to some of both."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from gpuwatch.facts.catalog.metrics import metric_rows
from gpuwatch.facts.model.telemetry import Gap, GapKind, PodRef, Schema
from gpuwatch.sources.telemetry import labels as row_labels
from gpuwatch.sources.telemetry.discovery import LOOKBACK_SECONDS, PLACE, Places, by_labels, place_of, selector
from gpuwatch.sources.telemetry.labels import Labels
from gpuwatch.sources.telemetry.promql import any_of
from gpuwatch.sources.telemetry.samples import (
    AnswerRow,
    Combine,
    Expression,
    Function,
    Matcher,
    Partition,
    SampleStore,
    Selector,
    Series,
    Steps,
    TelemetryError,
)
from gpuwatch.sources.telemetry.sightings import looked_back_metrics

CLUSTER_LABELS = ("cluster", "cluster_name", "k8s_cluster", "k8s_cluster_name", "kubernetes_cluster")
"""Labels that tell clusters apart in one server: external labels of Prometheus and Thanos, and OpenTelemetry's."""

UP_SECONDS = 86_400
"""How far back targets are looked for: the longest window of a health rule; targets that ended have samples in it."""


@dataclass(frozen=True, slots=True)
class Target:
    """instance, job: '' where the rows lack them. pods: the target's own, by its series `up`; empty where that names
    none. exports: it has GPU metrics now or in the look-back. has_devices: among them one that shows every device."""

    instance: str
    job: str
    pods: frozenset[PodRef]
    exports: bool
    has_devices: bool


def targets(
    store: SampleStore, at: datetime, schema: Schema, exporting: Places
) -> tuple[tuple[Target, ...], tuple[Gap, ...]]:
    """Targets with GPU metrics, and all targets that their jobs had in the last day. exporting: as `discover` fills
    it."""
    shown, gaps = _rows(store, at, schema, PLACE)
    devices = {place_of(row) for row in shown}
    exporters = devices.union(*(exporting.get(item.metric, ()) for item in schema.signals))
    pods: dict[tuple[str, str], set[PodRef]] = {place: set() for place in exporters}
    if jobs := sorted({job for _, job in pods if job}):
        chosen = Selector("up", (any_of("job", jobs),))
        wanted = Expression(chosen, Function.LAST_IN_WINDOW, UP_SECONDS, by=(*PLACE, "pod", "namespace"))
        try:
            for row in store.evaluate(wanted, at):
                own = pods.setdefault(place_of(row.labels), set())
                if pod := row_labels.target({**row.labels, "__name__": "up"}):
                    own.add(pod)
        except TelemetryError as error:
            gaps.append(_unsure("targets of the exporters' jobs", error))
    found = (Target(*key, frozenset(own), key in exporters, key in devices) for key, own in sorted(pods.items()))
    return tuple(found), tuple(gaps)


def places(store: SampleStore, at: datetime, schema: Schema) -> tuple[list[Labels], tuple[Gap, ...]]:
    """Distinct cluster labels, hosts and instances of the devices' rows; cluster labels alone if each has one value."""
    found, gaps = _rows(store, at, schema, CLUSTER_LABELS)
    if any(len({row.get(label, "") for row in found}) > 1 for label in CLUSTER_LABELS):
        found, more = _rows(store, at, schema, by_labels(CLUSTER_LABELS, row_labels.NODE_LABELS, ("instance",)))
        gaps += more
    return found, tuple(gaps)


def _rows(store: SampleStore, at: datetime, schema: Schema, by: Sequence[str]) -> tuple[list[Labels], list[Gap]]:
    """Distinct labels of the devices' series of the look-back."""
    asked = (selector(row) for row in looked_back_metrics(schema))
    look_back = (Function.LAST_IN_WINDOW, LOOKBACK_SECONDS)
    wanted = [Expression(each, *look_back, combine=Combine.COUNT, by=tuple(by)) for each in asked]
    found: dict[tuple[tuple[str, str], ...], None] = {}
    gaps: list[Gap] = []
    for answer in store.evaluate_many(wanted, at) if wanted else ():
        if isinstance(answer, TelemetryError):
            gaps.append(_unsure("targets of GPU metrics", answer))
        else:
            found.update(dict.fromkeys(tuple(sorted(row.labels.items())) for row in answer))
    return [dict(each) for each in found], gaps[:1]


def _unsure(what: str, error: TelemetryError) -> Gap:
    """Whom to trust follows from the answer; without it a tenant's target on a Node looks like an exporter."""
    detail = f"{error} Until it is answered, nothing is done, as it is not known whose rows are an exporter's."
    return Gap(kind=GapKind.AMBIGUOUS, what=what, detail=detail)


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
