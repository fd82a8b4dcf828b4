"""One file of a recording; its format is detected from its content, not its name. Here are read: a saved answer of
Prometheus' API, and exposition text: an exporter's /metrics page, samples with timestamps, dumps of Prometheus' blocks.

Timestamps are seconds in OpenMetrics, which ends with `# EOF`, and milliseconds in Prometheus text; an exporter's page
has none. dcgm-exporter does not escape label values and repeats HELP and TYPE; saved pages may have titles and rulers.
Unreadable lines are reported with their number.

`promtool tsdb dump-openmetrics` writes staleness markers as NaN, although its help says that it omits them, and no HELP
or TYPE; `promtool tsdb dump`, the only one in Prometheus 2.42, writes `{__name__="…"}` and milliseconds. Prometheus
ends a series with one marker, never two in a row. So a single NaN after a number is read as a marker, others as values.
"""

import gzip
import io
import math
import re
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from gpuwatch.facts.model.plain_text import plain, plain_key
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.telemetry import recording_file
from gpuwatch.sources.telemetry.recording_file import RecordingFile
from gpuwatch.sources.telemetry.samples import TelemetryError
from gpuwatch.sources.telemetry.series import (
    Conflict,
    MetricSamples,
    RecordedSeries,
    is_stale,
    joined,
    mark_stale,
    stacked,
)

_SECONDS_BELOW = 1e11
"""Smaller timestamps are seconds (until the year 5138), others milliseconds (since March 1973)."""
_LATEST_MS = 253_402_300_800_000
"""Year 10000; later timestamps are errors."""
_PROBLEMS_SHOWN = 20

_HEAD = re.compile(r"(?P<metric>[a-zA-Z_:][^\s{}\",=]*)?\s*(?:\{(?P<labels>.*)\})?", re.DOTALL)
_LABEL = re.compile(
    r'\s*(?:(?P<name>[^\s"=,{}]+)|"(?P<quoted>(?:[^"\\]|\\.)*)")\s*=\s*"(?P<value>(?:[^"\\]|\\.)*)"\s*(?:,|\Z)',
    re.DOTALL,
)
_QUOTED_METRIC = re.compile(r'\s*"(?P<metric>(?:[^"\\]|\\.)*)"\s*(?:,|\Z)')
# An unescaped value ends at the first quote before another label or the end.
_LOOSE_LABEL = re.compile(
    r'\s*(?P<name>[a-zA-Z_]\w*)\s*=\s*"(?P<value>.*?)"\s*(?:,\s*(?=\Z|[a-zA-Z_]\w*\s*=\s*")|\Z)', re.DOTALL | re.ASCII
)
_EXEMPLAR = re.compile(r"\s#\s*\{.*", re.DOTALL)
_ESCAPE = re.compile(r'\\([\\"n])')


@dataclass(slots=True)
class Problems:
    """Problems by line (0: the whole file). `shown` has the first ones, `hidden` counts the others."""

    shown: list[tuple[int, str]] = field(default_factory=list)
    hidden: int = 0

    def add(self, line: int, detail: str) -> None:
        if len(self.shown) < _PROBLEMS_SHOWN or line == 0:
            self.shown.append((line, detail))
        else:
            self.hidden += 1


def parse(lines: Iterable[str], page_ms: int) -> tuple[list[RecordedSeries], Problems]:
    """Series and samples in the order of the text, and problems. Never raises on the content. page_ms: time of samples
    without a timestamp. The order of labels does not matter."""
    reader = _PageReader()
    ended = described = False
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith("#"):
            ended = ended or text == "# EOF"
            described = described or text.startswith(("# HELP", "# TYPE", "# UNIT"))
        elif text:
            try:
                reader.add(text, number)
            except ValueError as error:
                reader.problems.add(number, f"{error}; the line is skipped: {_shortened(text)}")
    series = reader.series(page_ms, openmetrics=ended)
    if reader.dumped or (ended and not described):
        _restore_markers(series, reader.problems)
    return series, reader.problems


@dataclass(slots=True)
class _Column:
    """Samples of one series as in the text; the time is NaN where the text has none."""

    metric: str
    labels: dict[str, str]
    times: "array[float]" = field(default_factory=lambda: array("d"))
    values: "array[float]" = field(default_factory=lambda: array("d"))


@dataclass(slots=True)
class _PageReader:
    columns: dict[str, _Column] = field(default_factory=dict)  # by the text before the value
    distinct: dict[tuple[str, frozenset[tuple[str, str]]], _Column] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)
    dumped: bool = False  # metric names are among the labels: only `promtool tsdb dump` does that

    def add(self, text: str, line: int) -> None:
        cut = _cut(text)
        column = self.columns.get(text[:cut])
        if column is None:
            self.dumped = self.dumped or text.startswith("{__name__=")
            text, column, escaped = _described(text)
            cut = _cut(text)
            if not escaped:
                detail = "label values are not escaped, which Prometheus refuses; they are read unchanged"
                self.problems.add(line, f"{detail}: {_shortened(text)}")
        fields = text[cut:].split()
        if not 1 <= len(fields) <= 2:
            raise ValueError("not a metric, its value and perhaps a timestamp")
        value = float(fields[0])
        time = math.nan
        if len(fields) == 2:
            time = float(fields[1])
            if not abs(time) < _LATEST_MS:
                raise ValueError(f"{fields[1]} is no timestamp")
        if text[:cut] not in self.columns:
            # Labels in another order are the same series.
            column = self.distinct.setdefault((column.metric, frozenset(column.labels.items())), column)
            self.columns[text[:cut]] = column
        column.times.append(time)
        column.values.append(value)

    def series(self, page_ms: int, *, openmetrics: bool) -> list[RecordedSeries]:
        columns = list(self.distinct.values())
        given = [np.frombuffer(column.times, np.float64) for column in columns]
        largest = max((float(np.nanmax(times)) for times in given if not np.isnan(times).all()), default=None)
        scale = 1000 if openmetrics else 1
        if largest is not None and openmetrics and largest >= _SECONDS_BELOW:
            scale = 1
            self.problems.add(0, "`# EOF` says seconds but the timestamps are milliseconds; read as milliseconds")
        elif largest is not None and not openmetrics and largest < _SECONDS_BELOW:
            scale = 1000
            self.problems.add(0, "timestamps in seconds but no `# EOF`: the file may be cut off; read as seconds")
        return [
            RecordedSeries(
                column.metric,
                column.labels,
                np.where(np.isnan(times), page_ms, np.rint(times * scale)).astype(np.int64),
                np.array(column.values),
            )
            for column, times in zip(columns, given, strict=True)
        ]


def _cut(text: str) -> int:
    """Index where the value begins: after the last brace, else after the first word."""
    return text.rfind("}") + 1 or len(text.split(None, 1)[0])


def _described(text: str) -> tuple[str, _Column, bool]:
    """The text without its exemplar, its series, and whether its label values are escaped."""
    without = _EXEMPLAR.sub("", text)
    for candidate in dict.fromkeys((without, text)):
        column = _column(candidate[: _cut(candidate)], _LABEL)
        if column is not None:
            return candidate, column, True
    column = _column(text[: _cut(text)], _LOOSE_LABEL)
    if column is None:
        raise ValueError("not a metric with its labels")
    return text, column, False


def _column(head: str, label: re.Pattern[str]) -> _Column | None:
    found = _HEAD.fullmatch(head)
    if found is None:
        return None
    metric, inside = found["metric"] or "", found["labels"] or ""
    position = 0
    quoted = _QUOTED_METRIC.match(inside) if not metric else None
    if quoted is not None:
        metric, position = _unescaped(quoted["metric"]), quoted.end()
    escaped = label is _LABEL
    labels: dict[str, str] = {}
    while position < len(inside.rstrip()):
        one = label.match(inside, position)
        if one is None:
            return None
        name = one["name"] or _unescaped(one["quoted"])
        if one["value"]:
            labels[name] = plain_key(_unescaped(one["value"]) if escaped else one["value"])
        position = one.end()
    metric = labels.pop("__name__", metric)
    return _Column(metric, labels) if metric else None


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], text) if "\\" in text else text


def _shortened(text: str) -> str:
    text = plain(text)
    return text if len(text) <= 120 else f"{text[:117]}…"


def _restore_markers(series: list[RecordedSeries], problems: Problems) -> None:
    restored = 0
    for one in series:
        nan = np.isnan(one.values)
        if one.values.size > 1 and nan.any():
            lonely = nan & ~np.append(False, nan[:-1]) & ~np.append(nan[1:], False)
            lonely[0] = False
            mark_stale(one.values, lonely)
            restored += int(lonely.sum())
    if restored:
        detail = f"{restored} single NaN samples are read as ends of series: in a dump both look alike"
        problems.add(0, detail)


_GZIP = b"\x1f\x8b"
_JSON = re.compile(rb'\s*(?:\{\s*"[^"]*"\s*:|\[)')


class TextFile:
    """One text or JSON file in memory. spans_ms: metric → times of first and last sample; None with markers only."""

    def __init__(self, series: Iterable[RecordedSeries]) -> None:
        by_metric: dict[str, list[RecordedSeries]] = {}
        for one in series:
            by_metric.setdefault(one.metric, []).append(one)
        self._metrics: dict[str, MetricSamples] = {}
        self.spans_ms: dict[str, tuple[int, int] | None] = {}
        self.conflicts: dict[str, list[Conflict]] = {}
        for metric, members in by_metric.items():
            samples, conflicts = joined((one.labels, one.times_ms, one.values) for one in members)
            self._metrics[metric] = samples
            if conflicts:
                self.conflicts[metric] = conflicts
            real = samples.times_ms[~is_stale(samples.values)]
            self.spans_ms[metric] = (int(real.min()), int(real.max())) if real.size else None

    def read(self, metric: str) -> MetricSamples:
        return self._metrics.get(metric, stacked((), ()))


RecordingPart: TypeAlias = RecordingFile | TextFile
"""Series of one file."""


def opened(path: Path, at: datetime | None) -> tuple[RecordingPart, list[Gap]]:
    """One file, and its problems. at: time of samples without a timestamp; None for the time of the file's last change.
    Raises TelemetryError where the file cannot be read or has no samples."""
    try:
        with path.open("rb") as stream:
            magic = stream.read(4)
        if magic == recording_file.MAGIC:
            return RecordingFile(path), []
        page_ms = round((path.stat().st_mtime if at is None else at.timestamp()) * 1000)
        with gzip.open(path) if magic.startswith(_GZIP) else path.open("rb") as stream:
            return _read(path, stream, page_ms)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TelemetryError(f"{path} is cut off or damaged ({error}); copy it again") from error
    except OSError as error:
        raise TelemetryError(f"{path} cannot be read: {error.strerror or error}") from error


def _read(path: Path, stream: io.BufferedReader | gzip.GzipFile, page_ms: int) -> tuple[RecordingPart, list[Gap]]:
    start = stream.peek(4096)[:4096]
    if b"\0" in start:
        raise TelemetryError(f"{path} is neither Parquet nor text; give a recording, a page of metrics or a dump")
    if _JSON.match(start):
        try:
            series, problems = _parse_answer(stream.read())
        except ValueError as error:
            raise TelemetryError(f"{path}: {error}; save the answer of an instant or a range query") from error
    else:
        cut_off: list[str] = []
        series, problems = parse(_lines(stream, cut_off), page_ms)
        for reason in cut_off:
            problems.add(0, f"the file is cut off or damaged ({reason}); what stands before is read")
    if not series:
        first = "".join(f" (line {line}: {detail})" if line else f" ({detail})" for line, detail in problems.shown[:1])
        raise TelemetryError(f"{path} has no samples{first}; give a recording, a page of metrics, a dump or an answer")
    gaps = [gap(path, line, detail) for line, detail in problems.shown]
    if problems.hidden:
        gaps.append(gap(path, 0, f"{problems.hidden} more lines have problems of these kinds"))
    part = TextFile(series)
    gaps.extend(contradiction(str(path), metric, conflicts) for metric, conflicts in part.conflicts.items())
    return part, gaps


class _SavedResult(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] | None = None  # native histograms have neither


class _Data(msgspec.Struct):
    resultType: Literal["vector", "matrix"]  # noqa: N815
    result: list[_SavedResult]


class _Answer(msgspec.Struct):
    status: str
    error: str = ""
    data: _Data | None = None


def _parse_answer(content: bytes) -> tuple[list[RecordedSeries], Problems]:
    """The series of a saved answer of Prometheus' API: a vector or a matrix of series with their names. A vector has
    the query's time; its samples may be five minutes older. Problems have the result's number. Raises ValueError."""
    try:
        answer = msgspec.json.decode(content, type=_Answer)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not an answer of /api/v1/query or /api/v1/query_range: {error}") from None
    if answer.data is None:
        raise ValueError(f"Prometheus answered with {answer.status}: {answer.error or 'no data'}")
    problems = Problems()
    series: list[RecordedSeries] = []
    for number, result in enumerate(answer.data.result, 1):
        labels = {name: plain_key(value) for name, value in result.metric.items()}
        metric = labels.pop("__name__", "")
        samples = result.values or ([result.value] if result.value else [])
        try:
            values = np.array([float(value) for _, value in samples], np.float64)
        except ValueError as error:
            problems.add(number, f"the result is skipped: {error}")
            continue
        times_ms = np.array([round(time * 1000) for time, _ in samples], np.int64)
        if not metric:
            problems.add(number, "a result without metric name is skipped; save the answer of a plain selector")
        elif not samples:
            problems.add(number, f"{metric} is skipped: it has no samples that are numbers")
        else:
            series.append(RecordedSeries(metric, labels, times_ms, values))
    return series, problems


def _lines(stream: Iterable[bytes], cut_off: list[str]) -> Iterator[str]:
    """Lines up to the end, or to where compressed data are cut off; the reason is then added to `cut_off`."""
    try:
        for line in stream:
            yield line.decode("utf-8", "backslashreplace")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        cut_off.append(str(error))


def gap(path: Path, line: int, detail: str) -> Gap:
    return Gap(kind=GapKind.BAD_INPUT, what=f"{path}:{line}" if line else str(path), detail=detail)


def contradiction(place: str, metric: str, conflicts: list[Conflict]) -> Gap:
    """The Gap for several values of one series at one time. `conflicts` must not be empty."""
    samples = sum(conflict.samples for conflict in conflicts)
    first = min(conflicts, key=lambda conflict: conflict.first_ms)
    when = datetime.fromtimestamp(first.first_ms / 1000, UTC).isoformat()
    labels = ",".join(f'{name}="{value}"' for name, value in first.labels.items())
    return Gap(
        kind=GapKind.BAD_INPUT,
        what=place,
        detail=f"{samples} samples of {metric} occur twice with different values, the first at {when} for "
        f"{{{labels}}}; the last value counts",
    )
