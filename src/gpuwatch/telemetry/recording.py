"""Recorded files as a store of samples: Parquet recordings, exposition text and saved answers of Prometheus' API.

Expressions are answered with the semantics of Prometheus 3 (see evaluate.py). Files may be gzipped. Several files, or
a folder of them, are one recording; of two samples of one series at one time that of the file named later is taken.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwatch.model.telemetry import Gap
from gpuwatch.telemetry.evaluate import grouped, per_series
from gpuwatch.telemetry.promql import DEFAULT_STEP_SECONDS, render
from gpuwatch.telemetry.recording_part import Part, contradiction, gap, opened
from gpuwatch.telemetry.samples import (
    Expression,
    Matcher,
    MatchOp,
    Partition,
    QueryFailed,
    Row,
    Selector,
    Series,
    TelemetryError,
)
from gpuwatch.telemetry.series import BoolArray, FloatArray, IntArray, MetricSamples, joined

_CACHE_BYTES = 256 * 1024 * 1024
_CELLS_AT_ONCE = 4_000_000


def open_recording(paths: Sequence[Path], at: datetime | None = None) -> RecordingStore:
    """Opens files and folders as one recording.

    A page without timestamps is taken as of `at`, else as of the time at which its file was last written. What cannot
    be read is in the store's `problems`. Raises TelemetryError for a named file of which nothing can be read, and where
    there is not one sample.
    """
    parts: list[Part] = []
    problems: list[Gap] = []
    for path in paths:
        if not path.exists():
            raise TelemetryError(f"{path} does not exist; name a recording, a page of metrics, or a folder of them")
        for file in _files(path):
            try:
                part, found = opened(file, at)
            except TelemetryError as error:
                if file == path:
                    raise
                problems.append(gap(file, 0, str(error)))
                continue
            parts.append(part)
            problems.extend(found)
    if not any(span for part in parts for span in part.spans_ms.values()):
        reason = f" ({problems[0].detail})" if problems else ""
        raise TelemetryError(
            f"no samples in {', '.join(map(str, paths)) or 'no file'}{reason}; give a recording of gpuwatch, "
            "OpenMetrics or Prometheus text, or an answer of Prometheus' API saved as JSON"
        )
    return RecordingStore(f"recording {', '.join(path.name for path in paths)}", parts, problems)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))


class RecordingStore:
    """SampleStore over recorded samples; `open_recording` makes one. Not for several threads at once."""

    def __init__(self, description: str, parts: Sequence[Part], problems: Iterable[Gap] = ()) -> None:
        self._description = description
        self._parts = tuple(parts)
        self._problems = list(problems)
        self._read: set[str] = set()
        self._loaded: OrderedDict[str, tuple[MetricSamples, MetricSamples]] = OrderedDict()
        spans = [span for part in parts for span in part.spans_ms.values() if span]
        self._start_ms, self._end_ms = min(span[0] for span in spans), max(span[1] for span in spans)

    @property
    def description(self) -> str:
        return self._description

    @property
    def problems(self) -> tuple[Gap, ...]:
        """What could not be read. Contradictions between files join it when their metric is first read."""
        return tuple(self._problems)

    @property
    def start(self) -> datetime:
        """Time of the first sample."""
        return datetime.fromtimestamp(self._start_ms / 1000, UTC)

    @property
    def end(self) -> datetime:
        """Time of the last sample."""
        return datetime.fromtimestamp(self._end_ms / 1000, UTC)

    def metric_names(self, at: datetime, lookback_seconds: int) -> frozenset[str]:
        end_ms = _milliseconds(at)
        return frozenset(
            metric
            for metric in {metric for part in self._parts for metric in part.spans_ms}
            if self._has_samples(metric, end_ms - lookback_seconds * 1000, end_ms)
        )

    def evaluate(self, expression: Expression, at: datetime, partition: Partition | None = None) -> list[Row]:
        ends_ms = np.array([_milliseconds(at)], np.int64)
        return [
            Row(labels, float(values[0]))
            for labels, values, present in self._answers(expression, ends_ms, partition)
            if present[0]
        ]

    def evaluate_many(
        self, expressions: Sequence[Expression], at: datetime, partition: Partition | None = None
    ) -> list[list[Row] | TelemetryError]:
        answers: dict[int, list[Row] | TelemetryError] = {}
        # Metric by metric, so that each is read once however small the cache is.
        for index in sorted(range(len(expressions)), key=lambda index: expressions[index].selector.metric):
            try:
                answers[index] = self.evaluate(expressions[index], at, partition)
            except TelemetryError as error:
                answers[index] = error
        return [answers[index] for index in range(len(expressions))]

    def grid(
        self,
        expression: Expression,
        start: datetime,
        end: datetime,
        step_seconds: int,
        partition: Partition | None = None,
    ) -> list[Series]:
        if step_seconds <= 0:
            raise ValueError(f"step_seconds: must be greater than 0, is {step_seconds}")
        ends_ms = np.arange(_milliseconds(start), _milliseconds(end) + 1, step_seconds * 1000, dtype=np.int64)
        return [
            Series(labels, tuple((ends_ms[present] / 1000).tolist()), tuple(values[present].tolist()))
            for labels, values, present in self._answers(expression, ends_ms, partition)
            if present.any()
        ]

    def raw(self, selector: Selector, start: datetime, end: datetime) -> list[Series]:
        _, plain = self._load(selector.metric)
        start_ms, end_ms = _milliseconds(start), _milliseconds(end)
        series = []
        for index in _chosen(selector, plain):
            times_ms, values = plain.part(int(index))
            window = slice(*times_ms.searchsorted([start_ms, end_ms], "right"))
            if times_ms[window].size:
                times = (times_ms[window] / 1000).tolist()
                series.append(Series(plain.labels[index], tuple(times), tuple(values[window].tolist())))
        return series

    def render(self, expression: Expression) -> str:
        return render(expression)

    def _answers(
        self, expression: Expression, ends_ms: IntArray, partition: Partition | None
    ) -> list[tuple[Mapping[str, str], FloatArray, BoolArray]]:
        render(expression)  # refuses what makes no sense
        samples, plain = self._load(expression.selector.metric)
        chosen = _chosen(expression.selector, samples)
        if not chosen.size or not ends_ms.size:
            return []
        labels = [samples.labels[index] for index in chosen]
        looked_at_ms = ends_ms - expression.offset_seconds * 1000
        interval = round(partition.interval_seconds) if partition else 0
        step_ms = 1000 * (expression.step_seconds or interval or DEFAULT_STEP_SECONDS)
        # Few enough series and times at once; every block has the same groups in the same order.
        blocks = []
        for block_ms in np.array_split(looked_at_ms, -(-chosen.size * ends_ms.size // _CELLS_AT_ONCE)):
            answers = per_series(samples, plain, chosen, expression, block_ms, step_ms)
            if expression.by is None:
                blocks.append(list(zip(labels, answers.values, answers.present, strict=True)))
            else:
                blocks.append(grouped(answers, labels, expression.combine, expression.by))
        return [
            (rows[0][0], np.concatenate([row[1] for row in rows]), np.concatenate([row[2] for row in rows]))
            for rows in zip(*blocks, strict=True)
        ]

    def _load(self, metric: str) -> tuple[MetricSamples, MetricSamples]:
        """The samples of a metric, with and without staleness markers."""
        if metric in self._loaded:
            self._loaded.move_to_end(metric)
            return self._loaded[metric]
        holders = [part for part in self._parts if metric in part.spans_ms]
        if len(holders) == 1:
            samples = holders[0].read(metric)
        else:
            pieces = [part.read(metric) for part in holders]
            samples, conflicts = joined(
                (piece.labels[index], *piece.part(index)) for piece in pieces for index in range(len(piece.labels))
            )
            if conflicts and metric not in self._read:
                self._problems.append(contradiction(self._description, metric, conflicts))
        self._read.add(metric)
        self._loaded[metric] = samples, samples.without_markers()
        while len(self._loaded) > 1 and sum(kept.nbytes for kept, _ in self._loaded.values()) > _CACHE_BYTES:
            self._loaded.popitem(last=False)
        return self._loaded[metric]

    def _has_samples(self, metric: str, after_ms: int, until_ms: int) -> bool:
        spans = [span for part in self._parts if (span := part.spans_ms.get(metric))]
        if any(after_ms < edge <= until_ms for span in spans for edge in span):
            return True
        if not any(first <= until_ms and last > after_ms for first, last in spans):
            return False
        times_ms = self._load(metric)[1].times_ms
        return bool(((times_ms > after_ms) & (times_ms <= until_ms)).any())


def _milliseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise ValueError("a datetime without a time zone; say which, for example datetime.now(UTC)")
    return round(moment.timestamp() * 1000)


def _chosen(selector: Selector, samples: MetricSamples) -> IntArray:
    """Indices of the series that all matchers accept."""
    accepted = np.ones(len(samples.labels), np.bool_)
    for matcher in selector.matchers:
        if matcher.label == "__name__":
            raise QueryFailed(f"{selector.metric}: the metric's name is set twice; leave the matcher on __name__ away")
        values = [labels.get(matcher.label, "") for labels in samples.labels]
        fitting = _fitting(matcher, set(values))
        accepted &= np.array([value in fitting for value in values], np.bool_)
    return np.flatnonzero(accepted)


def _fitting(matcher: Matcher, values: set[str]) -> set[str]:
    if matcher.op in (MatchOp.EQUAL, MatchOp.NOT_EQUAL):
        same = {value for value in values if value == matcher.value}
    else:
        candidates = pa.array(sorted(values), pa.string())
        try:
            # Arrow matches with RE2, as Prometheus does.
            matched = pc.match_substring_regex(candidates, f"^(?s:{matcher.value})$")
        except pa.ArrowInvalid as error:
            raise QueryFailed(f"{matcher.label}{matcher.op}{matcher.value!r} is no valid matcher: {error}") from error
        same = set(candidates.filter(matched).to_pylist())
    return values - same if matcher.op in (MatchOp.NOT_EQUAL, MatchOp.NOT_MATCHES) else same
