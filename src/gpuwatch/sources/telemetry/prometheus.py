"""Samples in a server with the Prometheus HTTP API: Prometheus, Thanos, Mimir, VictoriaMetrics.

Large queries are divided by Node into parts that a server accepts. A few parts are sent at a time. Prometheus limits
the samples that a query loads at once (--query.max-samples). They are estimated as series × steps or samples per
series. A part that the server refuses all the same is halved and sent again, down to one Node; later parts of that size
are halved before they are sent.
"""

import copy
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Generic, Self, TypeVar

from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.telemetry.connection import Connection
from gpuwatch.sources.telemetry.http_api import Answers, ApiSession, connect
from gpuwatch.sources.telemetry.http_errors import PerhapsTooLarge, TimedOut
from gpuwatch.sources.telemetry.promql import DEFAULT_STEP_SECONDS, STEPPED, Dialect, any_of, duration, render, vector
from gpuwatch.sources.telemetry.samples import (
    AnswerRow,
    Combine,
    Expression,
    Function,
    Partition,
    QueryFailed,
    QueryTooLarge,
    Selector,
    Series,
    Steps,
    StoreRefused,
    StoreUnreachable,
    TelemetryError,
    unix_seconds,
)

T = TypeVar("T")
_NAMES_LENGTH = 8_000
"""Characters of Node names in one query: VictoriaMetrics accepts queries of 16 KiB (-search.maxQueryLen)."""
_DOUBTS = 2
"""How often a part is halved after an error that size may not explain."""
_OUTAGES = 3
"""Consecutive failures to reach the server, each after its own retries, before the remaining parts fail unsent."""


@dataclass(frozen=True, slots=True)
class QueryPart:
    """Some Nodes of a query. whole: all of them, queried without a matcher. first: index of the first Node."""

    nodes: tuple[str, ...] = ()
    series: int = 0
    whole: bool = True
    first: int = 0
    doubts: int = _DOUBTS


@dataclass(slots=True)
class PartitionedQuery(Generic[T]):
    """kind: the same for queries of similar cost. samples: that the server loads per series."""

    ask: Callable[[QueryPart], T]
    parts: list[QueryPart]
    kind: str
    samples: float
    answers: dict[int, T] = field(default_factory=dict)
    error: TelemetryError | None = None

    def in_order(self) -> list[T]:
        return [self.answers[first] for first in sorted(self.answers)]


def divided(partition: Partition | None, expression: Expression, samples: float, max_samples: float) -> list[QueryPart]:
    """Parts of about max_samples / samples series at most, as even as Nodes allow."""
    if partition is None or not partition.nodes:
        return [QueryPart()]
    if expression.by is not None and partition.label not in expression.by and expression.combine is Combine.AVG:
        return [QueryPart()]  # a mean over Nodes cannot be computed from the means of parts
    nodes = tuple(sorted(partition.nodes))
    series = sum(partition.nodes.values())
    count = math.ceil(series * samples / max_samples)
    if count > 1:
        count = max(count, math.ceil(sum(len(node) + 1 for node in nodes) / _NAMES_LENGTH))
    return _cut(QueryPart(nodes, series), partition, min(count, len(nodes)))


def halves(part: QueryPart, partition: Partition | None) -> list[QueryPart]:
    """The part in two; unchanged where it has at most one Node."""
    return _cut(part, partition, 2) if partition is not None and len(part.nodes) > 1 else [part]


def _cut(part: QueryPart, partition: Partition, count: int) -> list[QueryPart]:
    if count <= 1:
        return [part]
    weights = [max(1, partition.nodes[node]) for node in part.nodes]
    total = sum(weights)
    seen = 0
    bins: dict[int, list[int]] = {}
    for index, weight in enumerate(weights):
        bins.setdefault((2 * seen + weight) * count // (2 * total), []).append(index)
        seen += weight
    return [
        replace(
            part,
            nodes=part.nodes[chosen[0] : chosen[-1] + 1],
            series=sum(weights[index] for index in chosen),
            whole=False,
            first=part.first + chosen[0],
        )
        for chosen in bins.values()
    ]


def together(answers: Sequence[list[AnswerRow]], label: str, expression: Expression) -> list[AnswerRow]:
    """The rows of all parts, combined once more where the answer drops the partition's label."""
    rows = [row for answer in answers for row in answer]
    if len(answers) == 1 or expression.by is None or label in expression.by:
        return rows
    combined: dict[tuple[tuple[str, str], ...], AnswerRow] = {}
    for row in rows:
        key = tuple(sorted(row.labels.items()))
        other = combined.get(key)
        combined[key] = (
            row if other is None else AnswerRow(row.labels, _combined(expression.combine, other.value, row.value))
        )
    return list(combined.values())


def _combined(combine: Combine, one: float, other: float) -> float:
    """As in Prometheus: max and min skip NaN."""
    if combine in (Combine.SUM, Combine.COUNT):
        return one + other
    if math.isnan(one) or math.isnan(other):
        return other if math.isnan(one) else one
    return max(one, other) if combine is Combine.MAX else min(one, other)


class Asker:
    """Sends queries part by part, `concurrency` at a time. Remembers which sizes the server refused."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._refused: dict[str, float] = {}
        self._lock = threading.Lock()

    def ask(self, questions: Sequence[PartitionedQuery[T]], partition: Partition | None) -> None:
        """Fills in `answers` (by `QueryPart.first`) or `error` of each query."""
        outages: list[StoreUnreachable | StoreRefused] = []
        running: dict[Future[T], tuple[PartitionedQuery[T], QueryPart]] = {}
        pool = ThreadPoolExecutor(self._concurrency, thread_name_prefix="query")

        def submit(question: PartitionedQuery[T], part: QueryPart) -> None:
            for piece in self._fitting(question, part, partition):
                running[pool.submit(asked, question, piece)] = (question, piece)

        def asked(question: PartitionedQuery[T], part: QueryPart) -> T:
            if question.error is not None:
                raise question.error
            gone = tuple(outages)
            if len(gone) >= _OUTAGES:
                raise type(gone[-1])(*gone[-1].args)
            try:
                answer = question.ask(part)
            except (StoreUnreachable, StoreRefused) as error:
                outages.append(error)
                raise
            outages.clear()
            return answer

        try:
            for question in questions:
                for part in question.parts:
                    submit(question, part)
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    question, part = running.pop(future)
                    try:
                        question.answers[part.first] = future.result()
                    except (QueryTooLarge, TimedOut) as error:
                        smaller = self._smaller(question, part, partition, error)
                        if smaller:
                            for piece in smaller:
                                submit(question, piece)
                        else:
                            question.error = question.error or error
                    except TelemetryError as error:
                        question.error = question.error or error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _smaller(
        self, question: PartitionedQuery[T], part: QueryPart, partition: Partition | None, error: TelemetryError
    ) -> list[QueryPart]:
        """The parts to send in place of a refused one; none where it must not be divided."""
        pieces = halves(part, partition)
        if len(pieces) < 2 or question.error is not None:
            return []
        if isinstance(error, (PerhapsTooLarge, TimedOut)):
            return [replace(piece, doubts=part.doubts - 1) for piece in pieces] if part.doubts else []
        with self._lock:
            size = part.series * question.samples
            self._refused[question.kind] = min(size, self._refused.get(question.kind, math.inf))
        return pieces

    def _fitting(self, question: PartitionedQuery[T], part: QueryPart, partition: Partition | None) -> list[QueryPart]:
        """The part, halved until it is smaller than any refused one."""
        if part.series * question.samples < self._refused.get(question.kind, math.inf):
            return [part]
        pieces = halves(part, partition)
        if len(pieces) < 2:
            return [part]
        return [fitting for piece in pieces for fitting in self._fitting(question, piece, partition)]


_POINTS_AT_ONCE = 250_000
"""Points in one part of a range query's answer: about 40 bytes of JSON each, more while decoded."""
_STEPS_COST = 4
"""A step of a subquery takes Prometheus 3 to 5 times as long as a sample of a window. Smaller parts run in parallel."""
_PROBE = "count_over_time(vector(1)[2m:1m]) * 10 + changes(vector(time())[2m:1m])"
_DIALECTS = {32.0: Dialect.PROMETHEUS_2, 21.0: Dialect.PROMETHEUS_3, 22.0: Dialect.METRICSQL}
_STEPS_AT_ONCE = 10_000
"""Prometheus refuses range queries of more than 11,000 steps."""


@dataclass(slots=True)
class _Found:
    """What was found out about the server."""

    dialect: Dialect | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class PrometheusStore:
    """SampleStore over HTTP; thread-safe. The constructor sends nothing; it raises TelemetryError where a file that the
    connection names is missing. A probe before the first query finds the server's dialect, so that Prometheus 2,
    Prometheus 3 and VictoriaMetrics give the same answers."""

    def __init__(self, connection: Connection) -> None:
        self.description = f"Prometheus at {connection.url}"
        self.end = None
        self._connection = connection
        self._session = ApiSession(connection)
        self._asker = Asker(connection.concurrency)
        self._found = _Found()
        self._begin()

    def _begin(self) -> None:
        self._answers = Answers(self._session)
        self._client = connect(self._connection, self._answers)

    def reading(self) -> Self:
        """The same server for one read, which may run while others do. Shared are the connections, the server's dialect
        and the sizes that it refused."""
        fresh = copy.copy(self)
        fresh._begin()
        return fresh

    @property
    def problems(self) -> tuple[Gap, ...]:
        """Why data may be missing from the answers of this read, each reason once."""
        return tuple(
            Gap(kind=GapKind.PARTIAL, what="answers in part", detail=f"{reason} Parts of the fleet may be missing.")
            for reason in tuple(self._answers.lacks)
        )

    def close(self) -> None:
        self._session.close()

    def check(self) -> None:
        """Raises TelemetryError where a trivial query has no answer within a few seconds."""
        patience = min(self._connection.timeout_seconds, 10.0)
        quick = PrometheusStore(replace(self._connection, retries=1, timeout_seconds=patience))
        try:
            quick._query("1", datetime.now(UTC))
        finally:
            quick.close()

    def clock_skew_seconds(self, at: datetime) -> float | None:
        """How far the server's Date header is ahead of `at` (now), to about a second; None without the header."""
        answer = self._session.request(
            "POST", f"{self._connection.url}/api/v1/query", {"query": "1", "time": _unix(at)}
        )
        try:
            return (parsedate_to_datetime(answer.date) - at).total_seconds()
        except (ValueError, TypeError):
            return None

    def metric_names(self, at: datetime, lookback_seconds: int) -> frozenset[str]:
        """Names of the metrics in the blocks that overlap the look-back. Some may have samples only a few hours (with
        Thanos or after compaction days) before it; an exact answer would have to read every series."""
        begin = at - timedelta(seconds=lookback_seconds)
        asked = {"start": _unix(begin), "end": _unix(at)}
        try:
            return frozenset(self._client.get_label_values("__name__", asked))
        except QueryFailed:
            rows = self._query('count by (name) (label_replace({__name__!=""}, "name", "$1", "__name__", "(.+)"))', at)
            return frozenset(row.labels["name"] for row in rows)

    def alert_names(self) -> frozenset[str]:
        """Of /api/v1/rules. Raises TelemetryError where the server refuses it or has no such interface."""
        answer = self._answers.request("GET", f"{self._connection.url}/api/v1/rules", {"type": "alert"})
        return frozenset(answer.json()["data"])

    def evaluate(self, expression: Expression, at: datetime, partition: Partition | None = None) -> list[AnswerRow]:
        answer = self.evaluate_many([expression], at, partition)[0]
        if isinstance(answer, TelemetryError):
            raise answer
        return answer

    def evaluate_many(
        self, expressions: Sequence[Expression], at: datetime, partition: Partition | None = None
    ) -> list[list[AnswerRow] | TelemetryError]:
        try:
            dialect = self._probed_dialect(at)
        except TelemetryError as error:
            return [error for _ in expressions]
        questions: list[PartitionedQuery[list[AnswerRow]]] = []
        for expression in expressions:
            samples = _samples(expression, partition)
            ask = _asking(partial(self._query, at=at), expression, partition, dialect)
            most = self._connection.max_samples_per_query
            if expression.function in STEPPED:
                most //= _STEPS_COST
            parts = divided(partition, expression, samples, max(1, most))
            questions.append(PartitionedQuery(ask, parts, expression.function, samples))
        self._asker.ask(questions, partition)
        label = partition.label if partition else ""
        return [
            question.error or together(question.in_order(), label, expression)
            for question, expression in zip(questions, expressions, strict=True)
        ]

    def grid(self, expression: Expression, steps: Steps, partition: Partition | None = None) -> list[Series]:
        dialect = self._probed_dialect(steps.end)
        questions: list[PartitionedQuery[list[Series]]] = []
        for number in range(0, steps.count, _STEPS_AT_ONCE):
            count = min(_STEPS_AT_ONCE, steps.count - number)
            begin = steps.first + timedelta(seconds=number * steps.step_seconds)
            ask = _asking(partial(self._query_range, begin, count, steps.step_seconds), expression, partition, dialect)
            held = _samples(expression, partition, count, steps.step_seconds)
            most = min(self._connection.max_samples_per_query, _POINTS_AT_ONCE * held / count)
            # Parts of a range answer can be merged only if it keeps the Node label.
            kept = expression.by is None or (partition is not None and partition.label in expression.by)
            by_node = partition if kept else None
            parts = divided(by_node, expression, held, most)
            questions.append(PartitionedQuery(ask, parts, f"grid of {expression.function}", held))
        self._asker.ask(questions, partition)
        for question in questions:
            if question.error is not None:
                raise question.error
        return _joined([question.in_order() for question in questions])

    def raw(self, selector: Selector, start: datetime, end: datetime) -> list[Series]:
        window = duration((end - start).total_seconds(), self._probed_dialect(end) is Dialect.PROMETHEUS_2)
        series: list[Series] = self._query(f"{vector(selector)}[{window}]", end)
        return series

    def render(self, expression: Expression) -> str:
        # MetricsQL differs: with PromQL's functions VictoriaMetrics would show other numbers.
        return render(
            expression, dialect=Dialect.METRICSQL if self._found.dialect is Dialect.METRICSQL else Dialect.PROMETHEUS_3
        )

    def _probed_dialect(self, at: datetime) -> Dialect:
        """The server's dialect, probed once: a value at each whole minute, in a window of two minutes. Prometheus 2
        finds three values with two changes, Prometheus 3 two with one, and VictoriaMetrics two with two. Any other
        answer counts as Prometheus 3 now, and the next question probes again."""
        with self._found.lock:
            if self._found.dialect is None:
                minute = datetime.fromtimestamp(float(_unix(at)) // 60 * 60, UTC)
                rows: list[AnswerRow] = self._query(_PROBE, minute)
                self._found.dialect = _DIALECTS.get(rows[0].value if rows else math.nan)
            return self._found.dialect or Dialect.PROMETHEUS_3

    def _query(self, promql: str, at: datetime) -> Any:
        return self._client.custom_query(promql, params={"time": _unix(at), **self._parameters()})

    def _parameters(self) -> dict[str, str]:
        # Thanos: no downsampled data, which are aggregates. VictoriaMetrics: no rounding of start and end.
        timeout = f"{math.ceil(self._connection.timeout_seconds)}s"
        return {"timeout": timeout, "max_source_resolution": "0s", "nocache": "1"}

    def _query_range(self, start: datetime, count: int, step_seconds: int, promql: str) -> Any:
        end = start + timedelta(seconds=(count - 1) * step_seconds)
        # PrometheusConnect would round both to whole seconds.
        exact = {"start": _unix(start), "end": _unix(end), **self._parameters()}
        return self._client.custom_query_range(promql, start, end, str(step_seconds), params=exact)


def _asking(
    send: Callable[[str], Any], expression: Expression, partition: Partition | None, dialect: Dialect
) -> Callable[[QueryPart], Any]:
    """Sends the expression's PromQL for one part."""

    def ask(part: QueryPart) -> Any:
        more = () if part.whole or partition is None else (any_of(partition.label, part.nodes),)
        return send(render(expression, more=more, step_seconds=_step(expression, partition), dialect=dialect))

    return ask


def _step(expression: Expression, partition: Partition | None) -> int:
    found = round(partition.interval_seconds) if partition else 0
    return expression.step_seconds or found or DEFAULT_STEP_SECONDS


def _samples(expression: Expression, partition: Partition | None, count: int = 1, grid_step_seconds: int = 0) -> float:
    """Estimated samples that the server holds per series: of the window or subquery, and of the answer."""
    if expression.function is Function.LAST:
        return count
    step = _step(expression, partition)
    every = step if expression.function in STEPPED else (partition.interval_seconds if partition else 0) or step
    return (expression.window_seconds + (count - 1) * grid_step_seconds) / every + count


def _joined(chunks: list[list[list[Series]]]) -> list[Series]:
    if len(chunks) == 1:
        return [series for part in chunks[0] for series in part]
    found: dict[tuple[tuple[str, str], ...], list[Series]] = {}
    for series in (series for chunk in chunks for part in chunk for series in part):
        found.setdefault(tuple(sorted(series.labels.items())), []).append(series)
    return [
        Series(pieces[0].labels, [x for p in pieces for x in p.times], [x for p in pieces for x in p.values])
        for pieces in found.values()
    ]


def _unix(at: datetime) -> str:
    return f"{unix_seconds(at):.3f}"
