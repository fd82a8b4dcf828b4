"""The seam to where samples are: expressions, the store that evaluates them, and its errors.

    TelemetryError
    ├── StoreUnreachable   no answer: refused, timed out, not resolved; try again later
    ├── StoreRefused       401 or 403: the credentials or the tenant are wrong; a person must act
    ├── QueryTooLarge      422 and its kin: the query would load too many samples; split it further
    └── QueryFailed        anything else, with what the server said

Windows are left-open, (at − window, at], as in Prometheus 3; a store whose server closes them on the left
(Prometheus 2) has to ask in a way that gives the same samples. The look-back of LAST is left-open too.

FRACTION_* and LAST_TIME look at steps, the whole multiples t of step_seconds in (at − window, at] (in Unix time; an
offset is taken off `at` first). A step has the newest sample in (t − step, t], staleness markers skipped, however
old others are; a step without one does not count, and a series without any such step has no answer. So no sample is
counted twice, none is carried over a gap, and samples after the last multiple are not seen: with `at` and the window
multiples of a step that is the sampling interval, these are the window's samples.

Labels of answers never hold the metric's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

import msgspec

from gpuwatch.model.telemetry import Gap


class Function(StrEnum):
    """What is done with one series' samples in the window. PromQL semantics, staleness markers skipped."""

    LAST = "last"  # instant vector: newest sample of the last 5 min unless a staleness marker is newer; window 0
    LAST_IN_WINDOW = "last_in_window"  # last_over_time
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    COUNT = "count"
    QUANTILE = "quantile"
    FRACTION_ABOVE = "fraction_above"  # share of the steps whose sample is above the bound; NaN is not
    FRACTION_BITS = "fraction_bits"  # share of the steps whose sample (its whole part) has any bit of the mask
    INCREASE = "increase"
    CHANGES = "changes"
    LAST_TIME = "last_time"  # Unix seconds of the last step that has a sample


class Combine(StrEnum):
    """How series that fall on the same `by` labels become one value."""

    MAX = "max"
    MIN = "min"
    AVG = "avg"
    SUM = "sum"
    COUNT = "count"


class MatchOp(StrEnum):
    EQUAL = "="
    MATCHES = "=~"  # RE2, anchored on both ends


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

    window_seconds is 0 for LAST alone. parameter: the quantile, the bound, or the bit mask.
    step_seconds: the steps at which FRACTION_* and LAST_TIME look (see the top of this file); 0 takes the partition's
    sampling interval, else 60.
    by: labels that are kept; a label that a series lacks is left out of the answer's labels.
    by None keeps every label (no combining).
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
    """One value of an answer. NaN is a value here; `source` drops it.

    A Struct, because a health cycle of a large fleet makes hundreds of thousands of them.
    """

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Series:
    """Samples of one series, oldest first: parallel tuples of Unix seconds and values, markers left out."""

    labels: Mapping[str, str]
    times: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Partition:
    """How a large question may be divided: by the values of the label that names the Node.

    `nodes` maps each label value to about how many series of one metric it has (its devices), so that the store
    can fill its queries evenly; interval_seconds is the sampling interval, for the samples that a window holds.
    """

    label: str
    nodes: Mapping[str, int]
    interval_seconds: float


class SampleStore(Protocol):
    """Where samples are. Every method answers about the past as of `at`, never later than it.

    Methods raise TelemetryError; `evaluate_many` returns the error in the place of that answer instead, so that
    one failed question costs one answer.
    """

    @property
    def description(self) -> str:
        """Kind and place for people, without secrets: 'Prometheus at https://prom.example', 'recording w.parquet'."""

    @property
    def end(self) -> datetime | None:
        """Time of the last sample of a recording; None of a server, to which samples keep coming."""

    @property
    def problems(self) -> tuple[Gap, ...]:
        """What may be missing in the answers so far: lines of a file that could not be read, parts of a fleet's
        telemetry that did not answer."""

    def clock_skew_seconds(self, at: datetime) -> float | None:
        """How far the store's clock is ahead of `at`, which should be now; None where it has none, or does not say."""

    def metric_names(self, at: datetime, lookback_seconds: int) -> frozenset[str]:
        """Names of all metrics with samples in the look-back."""

    def evaluate(self, expression: Expression, at: datetime, partition: Partition | None = None) -> list[AnswerRow]:
        """One answer."""

    def evaluate_many(
        self, expressions: Sequence[Expression], at: datetime, partition: Partition | None = None
    ) -> list[list[AnswerRow] | TelemetryError]:
        """Answers in the order of the questions, asked a few at a time."""

    def grid(
        self,
        expression: Expression,
        start: datetime,
        end: datetime,
        step_seconds: int,
        partition: Partition | None = None,
    ) -> list[Series]:
        """The expression at start, start + step, … ≤ end: a range query."""

    def raw(self, selector: Selector, start: datetime, end: datetime) -> list[Series]:
        """The stored samples of (start, end]; for few series only."""

    def render(self, expression: Expression) -> str:
        """The PromQL of the expression for people to check; MetricsQL where VictoriaMetrics is asked."""


class TelemetryError(Exception):
    """Telemetry could not be read. The message names the place, the query and what to do; it holds no secret."""


class StoreUnreachable(TelemetryError):
    """No answer at all; worth another try."""


class StoreRefused(TelemetryError):
    """The server does not let us in."""


class QueryTooLarge(TelemetryError):
    """The query would load more samples than the server allows; smaller parts may pass."""


class QueryFailed(TelemetryError):
    """The server answered, but not with a result."""
