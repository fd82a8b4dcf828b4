"""Divides large queries by Node into parts that a server accepts, and sends a few at a time.

Prometheus limits the samples that a query loads at once (--query.max-samples). They are estimated as series × steps or
samples per series. A part that the server refuses all the same is halved and sent again, down to one Node; later parts
of that size are halved before they are sent.
"""

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from gpuwatch.sources.telemetry.http_errors import PerhapsTooLarge, TimedOut
from gpuwatch.sources.telemetry.samples import (
    AnswerRow,
    Combine,
    Expression,
    Partition,
    QueryTooLarge,
    StoreRefused,
    StoreUnreachable,
    TelemetryError,
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
