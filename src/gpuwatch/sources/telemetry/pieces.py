"""Joins the pieces of a device's series into one value. A new piece begins whenever a label changes, mostly the Pod.
Pieces follow each other, or are simultaneous: replicas of a shared GPU, rows per process, two exporters on one host."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gpuwatch.facts.catalog.metrics import MetricRow
from gpuwatch.facts.model.telemetry import PodRef, Statistic
from gpuwatch.sources.telemetry.labels import SLOT_LABELS, Labels, holder
from gpuwatch.sources.telemetry.questions import ADDED, WEIGHTED, Question

RowKey: TypeAlias = frozenset[tuple[str, str]]

_TOLERANCE = 1.05
"""Pieces with over 5 % more samples than the median interval allows in a row are simultaneous."""


@dataclass(slots=True)
class Piece:
    """One answer row of a Question with pieces."""

    value: float
    question: Question
    labels: Labels

    @property
    def instance(self) -> str:
        return self.labels.get("instance", "")

    def is_held(self, targets: frozenset[PodRef]) -> bool:
        return holder(self.labels, self.question.row.vendor, targets) is not None

    @property
    def slot(self) -> tuple[str, ...]:
        """Pieces in different slots may be simultaneous."""
        return tuple(self.labels.get(name, "") for name in SLOT_LABELS)

    @property
    def row(self) -> RowKey:
        return row_key(self.labels)


def row_key(labels: Labels) -> RowKey:
    return frozenset(labels.items())


def takes_lowest(statistic: Statistic, row: MetricRow) -> bool:
    """Whether the device's value is the lowest of simultaneous rows, not the highest."""
    return statistic is Statistic.MIN or (statistic is Statistic.LAST and row.combine == "min")


def needs_samples(statistic: Statistic, pieces: Sequence[Piece]) -> bool:
    """Whether the joined value depends on the number of samples of each piece."""
    if len(pieces) < 2 or statistic is Statistic.COUNT:
        return False
    if statistic in WEIGHTED:
        return len({piece.value for piece in pieces}) > 1
    return statistic in ADDED and sum(piece.value != 0 for piece in pieces) > 1


def joined(
    statistic: Statistic, pieces: Sequence[Piece], samples: Sequence[float] | None, fitting: float | None
) -> float:
    """The device's value. samples: number of samples of each piece; None where the value does not depend on it.
    fitting: samples that fit into the window one after the other; None where the interval is unknown, and then pieces
    count as simultaneous."""
    values = [piece.value for piece in pieces]
    if takes_lowest(statistic, pieces[0].question.row):
        return min(values)
    if samples is None or statistic not in ADDED | WEIGHTED:
        return max(values)
    if statistic in WEIGHTED:
        total = sum(samples)
        # Replicas have equal values, so counting them several times changes nothing.
        return sum(value * count for value, count in zip(values, samples, strict=True)) / total
    if _follow(samples, fitting):
        return sum(values)
    slots: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for piece, value, count in zip(pieces, values, samples, strict=True):
        slots.setdefault(piece.slot, []).append((value, count))
    return max(
        sum(value for value, _ in members)
        if _follow([count for _, count in members], fitting)
        else max(value for value, _ in members)
        for members in slots.values()
    )


def _follow(samples: Sequence[float], fitting: float | None) -> bool:
    return fitting is not None and sum(samples) <= fitting * _TOLERANCE + 1
