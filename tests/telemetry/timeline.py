"""Series with exact times for tests of the telemetry store, in a recording or in a real Prometheus."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from gpuwatch.facts.model.telemetry import Gap, GapKind, Schema
from gpuwatch.sources.telemetry.discovery import discover
from gpuwatch.sources.telemetry.inventory import Inventory, take_inventory
from gpuwatch.sources.telemetry.recording import RecordingStore, open_recording
from gpuwatch.sources.telemetry.samples import (
    AnswerRow,
    Expression,
    Partition,
    QueryFailed,
    SampleStore,
    Selector,
    Series,
    Steps,
    TelemetryError,
)
from gpuwatch.sources.telemetry.series import FloatArray, RecordedSeries, mark_stale
from lab.simulate.recording import write_recording

NOW = 1_767_225_600  # 2026-01-01, a multiple of every step that tests use
AT = datetime.fromtimestamp(NOW, UTC)
EVERY = 30

FIXTURES = Path(__file__).parents[1] / "fixtures" / "exposition"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the captured pages are not part of the repository")


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-1111-2222-3333-444455556666"


def gpu(number: int, host: str = "node-a", **more: str) -> dict[str, str]:
    """Labels of a whole GPU as Prometheus stores them. A label given as '' is left out."""
    labels = {
        "gpu": str(number % 8),
        "UUID": uuid(number),
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": host,
        "instance": f"{host}:9400",
        "job": "dcgm",
    }
    return {name: value for name, value in (labels | more).items() if value}


def held(pod: str, namespace: str = "team") -> dict[str, str]:
    return {"exported_pod": pod, "exported_namespace": namespace, "exported_container": "main"}


@dataclass
class Timeline:
    """Series to be; times are seconds before NOW, so that 0 is now."""

    series: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[float, float | None]]] = field(
        default_factory=dict
    )

    def add(
        self,
        metric: str,
        labels: Mapping[str, str],
        value: float | Callable[[float], float],
        ago: float = 3600,
        until: float = 0,
        every: float = EVERY,
        ends: bool = False,
    ) -> Self:
        """Samples in (NOW − ago, NOW − until]; `ends`: a staleness marker follows, one interval later."""
        samples = self.series.setdefault((metric, tuple(sorted(labels.items()))), [])
        before = ago - every
        while before >= until:
            samples.append((NOW - before, value(before) if callable(value) else value))
            before -= every
        if ends:
            samples.append((NOW - before, None))
        return self

    def store(self, folder: Path) -> RecordingStore:
        path = folder / "timeline.parquet"
        ordered = sorted(self.series.items())
        write_recording(
            path,
            (
                RecordedSeries(
                    metric,
                    dict(labels),
                    np.array([round(time * 1000) for time, _ in samples], np.int64),
                    _values(samples),
                )
                for (metric, labels), samples in ordered
            ),
        )
        return open_recording([path])

    def for_remote_write(self) -> list[tuple[dict[str, str], list[tuple[float, float | None]]]]:
        return [({"__name__": metric, **dict(labels)}, samples) for (metric, labels), samples in self.series.items()]


def _values(samples: list[tuple[float, float | None]]) -> FloatArray:
    values = np.array([0.0 if value is None else value for _, value in samples], np.float64)
    ended = np.array([value is None for _, value in samples], np.bool_)
    mark_stale(values, ended)
    return values


def seen(store: SampleStore, lookback_seconds: int = 3600) -> tuple[Schema, Inventory]:
    """What there is to ask about at AT."""
    schema, _ = discover(store, AT)
    return schema, take_inventory(store, AT, schema, lookback_seconds)


def said(gaps: Iterable[Gap]) -> list[tuple[str, str]]:
    """Kind and subject of each."""
    return [(gap.kind, gap.what) for gap in gaps]


def at_steps(start: datetime, end: datetime, step_seconds: int) -> Steps:
    """The steps that end at start, start + step, … ≤ end."""
    step = timedelta(seconds=step_seconds)
    return Steps(start - step, step_seconds, (end - start) // step + 1)


class Witness:
    """A store that refuses some questions, answers some in part, and keeps those that it was asked."""

    def __init__(
        self,
        store: SampleStore,
        refuses: Callable[[Expression], bool] = lambda _: False,
        partial: Callable[[Expression], bool] = lambda _: False,
    ) -> None:
        self._store = store
        self._refuses = refuses
        self._partial = partial
        self._lacking: tuple[Gap, ...] = ()
        self.asked: list[Expression] = []
        self.partitions: list[Partition | None] = []
        self.raw_selectors: list[Selector] = []

    @property
    def description(self) -> str:
        return self._store.description

    @property
    def end(self) -> datetime | None:
        return self._store.end

    @property
    def problems(self) -> tuple[Gap, ...]:
        return (*self._store.problems, *self._lacking)

    def reading(self) -> Self:
        fresh = copy.copy(self)
        fresh._lacking = ()
        return fresh

    def clock_skew_seconds(self, at: datetime) -> float | None:
        return self._store.clock_skew_seconds(at)

    def metric_names(self, at: datetime, lookback_seconds: int) -> frozenset[str]:
        return self._store.metric_names(at, lookback_seconds)

    def evaluate(self, expression: Expression, at: datetime, partition: Partition | None = None) -> list[AnswerRow]:
        self._ask(expression, partition)
        return self._store.evaluate(expression, at, partition)

    def evaluate_many(
        self, expressions: Sequence[Expression], at: datetime, partition: Partition | None = None
    ) -> list[list[AnswerRow] | TelemetryError]:
        answers: list[list[AnswerRow] | TelemetryError] = []
        for expression in expressions:
            try:
                answers.append(self.evaluate(expression, at, partition))
            except TelemetryError as error:
                answers.append(error)
        return answers

    def grid(self, expression: Expression, steps: Steps, partition: Partition | None = None) -> list[Series]:
        self._ask(expression, partition)
        return self._store.grid(expression, steps, partition)

    def raw(self, selector: Selector, start: datetime, end: datetime) -> list[Series]:
        self.raw_selectors.append(selector)
        return self._store.raw(selector, start, end)

    def render(self, expression: Expression) -> str:
        return self._store.render(expression)

    def _ask(self, expression: Expression, partition: Partition | None) -> None:
        self.asked.append(expression)
        self.partitions.append(partition)
        if self._refuses(expression):
            raise QueryFailed(f"{expression.selector.metric} was refused")
        if self._partial(expression):
            detail = f"store-3 did not answer about {expression.selector.metric}."
            self._lacking = (Gap(kind=GapKind.PARTIAL, what="answers in part", detail=detail),)
