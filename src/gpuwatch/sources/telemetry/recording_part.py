"""One file of a recording; its format is detected from its content, not its name."""

import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.telemetry import openmetrics, recording_file
from gpuwatch.sources.telemetry.recording_file import RecordingFile
from gpuwatch.sources.telemetry.samples import TelemetryError
from gpuwatch.sources.telemetry.series import Conflict, MetricSamples, RecordedSeries, is_stale, joined, stacked

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
        series, problems = openmetrics.parse(_lines(stream, cut_off), page_ms)
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


def _parse_answer(content: bytes) -> tuple[list[RecordedSeries], openmetrics.Problems]:
    """The series of a saved answer of Prometheus' API: a vector or a matrix of series with their names. A vector has
    the query's time; its samples may be five minutes older. Problems have the result's number. Raises ValueError."""
    try:
        answer = msgspec.json.decode(content, type=_Answer)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not an answer of /api/v1/query or /api/v1/query_range: {error}") from None
    if answer.data is None:
        raise ValueError(f"Prometheus answered with {answer.status}: {answer.error or 'no data'}")
    problems = openmetrics.Problems()
    series: list[RecordedSeries] = []
    for number, result in enumerate(answer.data.result, 1):
        metric = result.metric.pop("__name__", "")
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
            series.append(RecordedSeries(metric, result.metric, times_ms, values))
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
