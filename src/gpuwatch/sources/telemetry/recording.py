"""Recorded files as a SampleStore: Parquet recordings, exposition text and saved answers of Prometheus' API, gzipped or
not. Expressions have the semantics of Prometheus 3 (see evaluate.py). Several files, or a folder, are one recording;
where two files have a sample of one series at one time, the file named later wins."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwatch.facts.model.plain_text import original
from gpuwatch.facts.model.telemetry import Gap
from gpuwatch.sources.telemetry.evaluate import Matrix, grouped, per_series, reach_ms
from gpuwatch.sources.telemetry.promql import DEFAULT_STEP_SECONDS, render
from gpuwatch.sources.telemetry.recording_part import RecordingPart, contradiction, gap, opened
from gpuwatch.sources.telemetry.samples import (
    AnswerRow,
    Expression,
    Matcher,
    MatchOp,
    Partition,
    QueryFailed,
    Selector,
    Series,
    Steps,
    TelemetryError,
    unix_seconds,
)
from gpuwatch.sources.telemetry.series import IntArray, MetricSamples, joined

Groups = tuple[Sequence[Mapping[str, str]], IntArray]
"""Labels of each group, in the order of their values, and each series' group number."""


class LoadedMetric:
    """One metric: which series a selector matches, and how labels group them, cached for each cycle.

    samples: what range functions see. markers: the staleness markers of the same series."""

    def __init__(self, recorded: MetricSamples, known_times_ms: Iterable[IntArray] = ()) -> None:
        """known_times_ms: columns of other metrics; an equal one is shared, which halves the memory."""
        samples, self.markers = recorded.parted()
        alike = (times_ms for times_ms in known_times_ms if np.array_equal(times_ms, samples.times_ms))
        self.samples = replace(samples, times_ms=next(alike, samples.times_ms))
        self.arrays = (self.samples.times_ms, self.samples.values, self.markers.times_ms, self.markers.values)
        self._groups: dict[tuple[str, ...], Groups] = {}
        self._columns: dict[str, tuple[Sequence[str], IntArray]] = {}
        starts, times_ms = self.samples.starts, self.samples.times_ms
        self._filled = np.flatnonzero(np.diff(starts))
        self._first_ms = times_ms[starts[self._filled]]
        self._last_ms = times_ms[starts[self._filled + 1] - 1]

    def within(self, after_ms: int, until_ms: int) -> IntArray:
        """Indices of the series with a sample up to until_ms and one after after_ms: candidates for the range."""
        return self._filled[(self._first_ms <= until_ms) & (self._last_ms > after_ms)]

    def has_samples(self, after_ms: int, until_ms: int) -> bool:
        edges = self.samples.positions(self.within(after_ms, until_ms), np.array([after_ms, until_ms]))
        return bool((edges[:, 0] < edges[:, 1]).any())

    def chosen(self, selector: Selector) -> IntArray:
        """Indices of the series that all matchers accept. Raises QueryFailed for an invalid matcher."""
        accepted = np.ones(len(self.samples.labels), np.bool_)
        for matcher in selector.matchers:
            if matcher.label == "__name__":
                raise QueryFailed(f"{selector.metric}: the metric's name is set twice; remove the matcher on __name__")
            values, codes = self._column(matcher.label)
            fitting = _fitting(matcher, values)
            accepted &= np.array([value in fitting for value in values], np.bool_)[codes]
        return np.flatnonzero(accepted)

    def groups(self, by: tuple[str, ...]) -> Groups:
        """The series grouped by the labels `by`; a group's labels leave out empty ones."""
        if by not in self._groups:
            columns = [self._column(label) for label in by]
            everywhere = np.zeros(len(self.samples.labels), np.int64)
            rows, numbers = np.unique(
                np.column_stack((everywhere, *(codes for _, codes in columns))), axis=0, return_inverse=True
            )
            labels = tuple(
                {
                    name: value
                    for name, (values, _), code in zip(by, columns, codes, strict=True)
                    if (value := values[code])
                }
                for _, *codes in rows.tolist()
            )
            self._groups[by] = labels, numbers.ravel()
        return self._groups[by]

    def _column(self, label: str) -> tuple[Sequence[str], IntArray]:
        """The sorted values of a label, and the index of each series' value; '' where it lacks the label."""
        if label not in self._columns:
            values = [labels.get(label, "") for labels in self.samples.labels]
            distinct = sorted(set(values))
            code = {value: index for index, value in enumerate(distinct)}
            self._columns[label] = distinct, np.array([code[value] for value in values], np.int64)
        return self._columns[label]


def _fitting(matcher: Matcher, values: Sequence[str]) -> set[str]:
    if matcher.op is MatchOp.EQUAL:
        return {matcher.value}
    keys, candidates = pa.array(values, pa.string()), pa.array(map(original, values), pa.string())
    try:
        # Arrow matches with RE2, as Prometheus does.
        matched = pc.match_substring_regex(candidates, f"^(?s:{original(matcher.value)})$")
    except pa.ArrowInvalid as error:
        raise QueryFailed(f"{matcher.label}{matcher.op}{matcher.value!r} is no valid matcher: {error}") from error
    return set(keys.filter(pc.invert(matched) if matcher.op is MatchOp.DIFFERS else matched).to_pylist())


_CACHE_BYTES = 512 * 1024 * 1024
"""Limit of cached samples: a week of 64 GPUs at one sample a minute is 300 MB. The metric in use is always kept."""
_CELLS_AT_ONCE = 4_000_000


def open_recording(paths: Sequence[Path], at: datetime | None = None) -> "RecordingStore":
    """Opens files and folders as one recording. The store's `problems` name what could not be read.

    at: the time of samples without a timestamp; by default that of the file's last change. Raises TelemetryError where
    a named file is unreadable, and where no sample is found.
    """
    parts: list[RecordingPart] = []
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
    """SampleStore over recorded samples; `open_recording` makes one. Not thread-safe."""

    def __init__(self, description: str, parts: Sequence[RecordingPart], problems: Iterable[Gap] = ()) -> None:
        self.description = description
        self._parts = tuple(parts)
        self._problems = dict.fromkeys(problems)
        self._loaded: dict[str, LoadedMetric] = {}
        end_ms = max(span[1] for part in parts for span in part.spans_ms.values() if span)
        self.end = datetime.fromtimestamp(end_ms / 1000, UTC)

    @property
    def problems(self) -> tuple[Gap, ...]:
        """What could not be read. Contradictions between files are added when their metric is first read."""
        return tuple(self._problems)

    def reading(self) -> Self:
        return self  # what a file lacks, each read of it lacks

    def clock_skew_seconds(self, at: datetime) -> None:  # noqa: ARG002 - a file has no clock
        return None

    def metric_names(self, at: datetime, lookback_seconds: int) -> frozenset[str]:
        end_ms = _milliseconds(at)
        return frozenset(
            metric
            for metric in {metric for part in self._parts for metric in part.spans_ms}
            if self._has_samples(metric, end_ms - lookback_seconds * 1000, end_ms)
        )

    def alert_names(self) -> None:
        return None

    def evaluate(self, expression: Expression, at: datetime, partition: Partition | None = None) -> list[AnswerRow]:
        labels, answers = self._answers(expression, np.array([_milliseconds(at)], np.int64), partition)
        there = np.flatnonzero(answers.present)
        return [
            AnswerRow(labels[index], value)
            for index, value in zip(there.tolist(), answers.values[there, 0].tolist(), strict=True)
        ]

    def evaluate_many(
        self, expressions: Sequence[Expression], at: datetime, partition: Partition | None = None
    ) -> list[list[AnswerRow] | TelemetryError]:
        answers: dict[int, list[AnswerRow] | TelemetryError] = {}
        # Metric by metric, so that each is read once even where the cache is too small.
        for index in sorted(range(len(expressions)), key=lambda index: expressions[index].selector.metric):
            try:
                answers[index] = self.evaluate(expressions[index], at, partition)
            except TelemetryError as error:
                answers[index] = error
        return [answers[index] for index in range(len(expressions))]

    def grid(self, expression: Expression, steps: Steps, partition: Partition | None = None) -> list[Series]:
        ends_ms = _milliseconds(steps.first) + np.arange(steps.count, dtype=np.int64) * steps.step_seconds * 1000
        labels, answers = self._answers(expression, ends_ms, partition)
        times = ends_ms / 1000
        return [
            Series(series, tuple(times[present].tolist()), tuple(values[present].tolist()))
            for series, values, present in zip(labels, answers.values, answers.present, strict=True)
            if present.any()
        ]

    def raw(self, selector: Selector, start: datetime, end: datetime) -> list[Series]:
        metric = self._load(selector.metric)
        start_ms, end_ms = _milliseconds(start), _milliseconds(end)
        series = []
        for index in np.intersect1d(metric.chosen(selector), metric.within(start_ms, end_ms), assume_unique=True):
            times_ms, values = metric.samples.part(int(index))
            window = slice(*times_ms.searchsorted([start_ms, end_ms], "right"))
            if times_ms[window].size:
                times = (times_ms[window] / 1000).tolist()
                series.append(Series(metric.samples.labels[index], tuple(times), tuple(values[window].tolist())))
        return series

    def render(self, expression: Expression) -> str:
        return render(expression)

    def _answers(
        self, expression: Expression, ends_ms: IntArray, partition: Partition | None
    ) -> tuple[Sequence[Mapping[str, str]], Matrix]:
        render(expression)  # raises ValueError for an invalid expression
        metric = self._load(expression.selector.metric)
        chosen = metric.chosen(expression.selector)
        step_seconds = expression.step_seconds or (partition.interval_seconds if partition else 0)
        step_ms = round((step_seconds or DEFAULT_STEP_SECONDS) * 1000)
        ends_ms = ends_ms - expression.offset_seconds * 1000
        if ends_ms.size:
            reached = metric.within(int(ends_ms[0]) - reach_ms(expression, step_ms), int(ends_ms[-1]))
            chosen = np.intersect1d(chosen, reached, assume_unique=True)
        if not chosen.size or not ends_ms.size:
            return (), Matrix(np.empty((0, ends_ms.size)), np.empty((0, ends_ms.size), np.bool_))
        if expression.by is None:
            labels = [metric.samples.labels[index] for index in chosen]
        else:
            names, numbers = metric.groups(expression.by)
            group = numbers[chosen]
            labels = [names[number] for number in np.unique(group)]
        blocks = []
        at_once = max(1, _CELLS_AT_ONCE // chosen.size)
        for begin in range(0, ends_ms.size, at_once):
            ends = ends_ms[begin : begin + at_once]
            answers = per_series(metric.samples, metric.markers, chosen, expression, ends, step_ms)
            blocks.append(answers if expression.by is None else grouped(answers, group, expression.combine))
        return labels, Matrix(
            np.concatenate([block.values for block in blocks], axis=1),
            np.concatenate([block.present for block in blocks], axis=1),
        )

    def _load(self, metric: str) -> LoadedMetric:
        if metric in self._loaded:
            return self._loaded[metric]
        holders = [part for part in self._parts if metric in part.spans_ms]
        if len(holders) == 1:
            samples = holders[0].read(metric)
        else:
            pieces = [part.read(metric) for part in holders]
            samples, conflicts = joined(
                (piece.labels[index], *piece.part(index)) for piece in pieces for index in range(len(piece.labels))
            )
            if conflicts:  # each once, however often the metric is read
                self._problems[contradiction(self.description, metric, conflicts)] = None
        loaded = LoadedMetric(samples, [kept.samples.times_ms for kept in self._loaded.values()])
        # Metrics are read in the same order in each cycle. The oldest ones stay, so that some are found again; evicting
        # the least recently used would evict each metric just before its next use.
        while self._loaded and _bytes([loaded, *self._loaded.values()]) > _CACHE_BYTES:
            self._loaded.popitem()
        self._loaded[metric] = loaded
        return loaded

    def _has_samples(self, metric: str, after_ms: int, until_ms: int) -> bool:
        spans = [span for part in self._parts if (span := part.spans_ms.get(metric))]
        if any(after_ms < edge <= until_ms for span in spans for edge in span):
            return True
        if not any(first <= until_ms and last > after_ms for first, last in spans):
            return False
        return self._load(metric).has_samples(after_ms, until_ms)


def _bytes(loaded: Iterable[LoadedMetric]) -> int:
    return sum({id(array): array.nbytes for metric in loaded for array in metric.arrays}.values())


def _milliseconds(moment: datetime) -> int:
    return round(unix_seconds(moment) * 1000)
