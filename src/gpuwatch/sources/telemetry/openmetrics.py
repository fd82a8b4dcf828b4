"""Reads exposition text: an exporter's /metrics page, samples with timestamps, and dumps of Prometheus' blocks.

Timestamps are seconds in OpenMetrics, which ends with `# EOF`, and milliseconds in Prometheus text; an exporter's page
has none. dcgm-exporter does not escape label values and repeats HELP and TYPE; saved pages may have titles and rulers.
Unreadable lines are reported with their number.

`promtool tsdb dump-openmetrics` writes staleness markers as NaN, although its help says that it omits them, and no HELP
or TYPE; `promtool tsdb dump`, the only one in Prometheus 2.42, writes `{__name__="…"}` and milliseconds. Prometheus
ends a series with one marker, never two in a row. So a single NaN after a number is read as a marker, others as values.
"""

import math
import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from gpuwatch.sources.telemetry.series import RecordedSeries, mark_stale

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
            labels[name] = _unescaped(one["value"]) if escaped else one["value"]
        position = one.end()
    metric = labels.pop("__name__", metric)
    return _Column(metric, labels) if metric else None


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], text) if "\\" in text else text


def _shortened(text: str) -> str:
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
