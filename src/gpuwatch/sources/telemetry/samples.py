"""The interface to sample stores: expressions, the store that evaluates them, and its errors.

Windows are left-open, (at − window, at], as in Prometheus 3, and so is the look-back of LAST; a store for Prometheus 2,
whose windows are closed, must query so that it gets the same samples.

FRACTION_* and LAST_TIME evaluate steps: the multiples t of step_seconds, in Unix time, in (at − window, at], where the
offset is subtracted from `at` first. A step's sample is the newest one in (t − step, t] that is no staleness marker.
Steps without a sample do not count; a series with none has no answer. So no sample counts twice, none is repeated in a
gap, and samples after the last multiple are ignored. Where step_seconds is the sampling interval and divides `at` and
the window, these are the window's samples.

Labels of answers never include the metric's name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar, Protocol, Self

import msgspec
import numpy as np
import numpy.typing as npt

from gpuwatch.facts.model.plain_text import plain
from gpuwatch.facts.model.telemetry import Gap, GapKind


class Function(StrEnum):
    """Applied to one series' samples in the window. PromQL semantics, staleness markers skipped."""

    LAST = "last"  # instant vector: newest sample of the last 5 min unless a staleness marker is newer; window 0
    LAST_IN_WINDOW = "last_in_window"  # last_over_time
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    COUNT = "count"
    QUANTILE = "quantile"
    FRACTION_ABOVE = "fraction_above"  # share of steps with a sample above the bound; NaN is not above
    FRACTION_BITS = "fraction_bits"  # share of steps with a sample whose integer part has any bit of the mask
    INCREASE = "increase"
    CHANGES = "changes"
    LAST_TIME = "last_time"  # Unix seconds of the last step with a sample


class Combine(StrEnum):
    """Combines series with equal `by` labels."""

    MAX = "max"
    MIN = "min"
    AVG = "avg"
    SUM = "sum"
    COUNT = "count"


class MatchOp(StrEnum):
    EQUAL = "="
    MATCHES = "=~"  # RE2, anchored on both ends
    DIFFERS = "!~"  # MATCHES, negated


@dataclass(frozen=True, slots=True)
class Matcher:
    label: str
    op: MatchOp
    value: str


@dataclass(frozen=True, slots=True)
class Selector:
    """Series of one metric. A missing label equals the empty string, as in PromQL."""

    metric: str
    matchers: tuple[Matcher, ...] = ()


@dataclass(frozen=True, slots=True)
class Expression:
    """`combine by (by) (function(selector[window] offset offset))`.

    window_seconds is 0 for LAST only. parameter: the quantile, the bound, or the bit mask.
    step_seconds: of FRACTION_* and LAST_TIME (see the top of this file); 0 takes the partition's sampling interval,
    else 60. by: labels to keep; answers leave out labels that a series lacks. None keeps all labels, without combining.
    """

    selector: Selector
    function: Function
    window_seconds: int = 0
    parameter: float | None = None
    offset_seconds: int = 0
    step_seconds: int = 0
    combine: Combine = Combine.MAX
    by: tuple[str, ...] | None = ()


class AnswerRow(msgspec.Struct, frozen=True, gc=False):
    """One value of an answer, which may be NaN. A Struct: a cycle of a large fleet creates hundreds of thousands."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Series:
    """Samples of one series, oldest first: parallel sequences of Unix seconds and values, without staleness markers."""

    labels: Mapping[str, str]
    times: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Partition:
    """How to divide a large query: by the values of the label that names the Node. nodes: label value → estimated
    series of one metric (its devices), so that parts are even. interval_seconds: the sampling interval; 0 if
    unknown."""

    label: str
    nodes: Mapping[str, int]
    interval_seconds: float


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps (start + i·step, start + (i+1)·step] for i below count."""

    start: datetime
    step_seconds: int
    count: int

    @property
    def first(self) -> datetime:
        """The end of the first step."""
        return self.start + timedelta(seconds=self.step_seconds)

    @property
    def end(self) -> datetime:
        return self.start + timedelta(seconds=self.count * self.step_seconds)

    def values(self, series: Series) -> npt.NDArray[np.float64]:
        """A series of `SampleStore.grid` as one value for each step; NaN where it has none."""
        if len(series.times) == self.count:
            return np.array(series.values, np.float64)
        values = np.full(self.count, np.nan)
        passed = (np.asarray(series.times, np.float64) - self.start.timestamp()) / self.step_seconds
        values[np.rint(passed).astype(np.int64) - 1] = series.values
        return values


def unix_seconds(moment: datetime) -> float:
    """Raises ValueError for a datetime without a time zone, which would mean this machine's."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment}: a moment without a time zone; say which, for example with tzinfo=UTC")
    return moment.timestamp()


class SampleStore(Protocol):
    """Holds samples. No method uses samples later than `at`. Methods raise TelemetryError; `evaluate_many` returns it
    in place of the answer that failed."""

    @property
    def description(self) -> str:
        """Kind and address for messages, without secrets: 'Prometheus at https://prom.example'."""

    @property
    def problems(self) -> tuple[Gap, ...]:
        """What the answers so far may lack: unreadable lines of a file, parts of a fleet that did not answer."""

    def reading(self) -> Self:
        """The same samples for one read: its `problems` are those of its own answers."""

    def metric_names(self, at: datetime, lookback_seconds: int) -> frozenset[str]:
        """Names of metrics with samples in the look-back, perhaps also of others with older samples."""

    def evaluate(self, expression: Expression, at: datetime, partition: Partition | None = None) -> list[AnswerRow]:
        """One row for each set of labels."""

    def evaluate_many(
        self, expressions: Sequence[Expression], at: datetime, partition: Partition | None = None
    ) -> "list[list[AnswerRow] | TelemetryError]":
        """Answers in the order of the expressions, queried a few at a time."""

    def grid(self, expression: Expression, steps: Steps, partition: Partition | None = None) -> list[Series]:
        """The expression at the end of each step: a range query."""

    def raw(self, selector: Selector, start: datetime, end: datetime) -> list[Series]:
        """Stored samples of (start, end]; for few series only."""

    def render(self, expression: Expression) -> str:
        """The expression in PromQL, for people to check; in MetricsQL for VictoriaMetrics."""


class SampleSource(SampleStore, Protocol):
    """A server or a recording, as it was opened."""

    @property
    def end(self) -> datetime | None:
        """Time of the last sample of a recording; None for a server."""

    def clock_skew_seconds(self, at: datetime) -> float | None:
        """How far the source's clock is ahead of `at` (now); None if unknown."""

    def alert_names(self) -> frozenset[str] | None:
        """Names of the alerting rules there are; None for a recording, which has no rules."""


class TelemetryError(Exception):
    """Telemetry could not be read. The message names the store, the query and what to do, without secrets."""

    kind: ClassVar[GapKind] = GapKind.QUERY_FAILED

    def __init__(self, message: str) -> None:
        super().__init__(plain(message))


class StoreUnreachable(TelemetryError):
    """No answer: connection refused, timed out, not resolved. A retry may succeed."""

    kind = GapKind.UNREACHABLE


class StoreRefused(TelemetryError):
    """401 or 403: the credentials or the tenant are wrong."""

    kind = GapKind.REFUSED


class QueryTooLarge(TelemetryError):
    """The query would load more samples than the server allows; smaller parts may succeed."""


class QueryFailed(TelemetryError):
    """The server answered, but not with a result."""
