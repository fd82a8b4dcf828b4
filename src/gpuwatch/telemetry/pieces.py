"""What the pieces of a device's series make together.

A device's series is cut whenever its labels change, above all its Pod. Pieces follow each other, or they are there at
once: replicas for the Pods that share a GPU, rows per process beside the row of the device, two exporters on one host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuwatch.model.telemetry import Statistic
from gpuwatch.telemetry.questions import ADDED, WEIGHTED, Question

_TOLERANCE = 1.05
"""Samples may come up to 5 % more often than the median says, before pieces count as being there at once."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One row of an answer. Pieces with different slots (`labels.SLOT_LABELS`) can be there at once by their nature."""

    value: float
    slot: tuple[str, ...]
    question: Question
    labels: Mapping[str, str]


def joined(
    statistic: Statistic,
    pieces: Sequence[Piece],
    samples: Sequence[float] | None,
    fitting: float | None,
    *,
    lowest: bool = False,
) -> float:
    """One value of one device.

    samples: how many each piece has, in their order; None where the whole does not depend on it.
    fitting: samples that fit into the window one after the other; None where the interval is not known, and then
        pieces count as being there at once.
    lowest: the last value of a device is the lowest of its rows, not the highest.
    """
    values = [piece.value for piece in pieces]
    if statistic is Statistic.MIN or (statistic is Statistic.LAST and lowest):
        return min(values)
    if samples is None or statistic not in ADDED | WEIGHTED:
        return max(values)
    if statistic in WEIGHTED:
        total = sum(samples)
        # Replicas say the same, so that it does not matter how often they are counted.
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
