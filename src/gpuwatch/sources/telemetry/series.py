"""Recorded samples in memory: columns of Unix milliseconds and values, with Prometheus' staleness markers. A marker is
the NaN with the bits 0x7ff0000000000002 that Prometheus writes when a series ends; any other NaN is a value. NumPy,
Arrow and Parquet keep its bits unless something computes with them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

_STALE_BITS = 0x7FF0000000000002


def mark_stale(values: FloatArray, where: BoolArray) -> None:
    """Writes staleness markers into the array, in place."""
    values.view(np.uint64)[where] = _STALE_BITS


def is_stale(values: FloatArray) -> BoolArray:
    stale: BoolArray = np.ascontiguousarray(values).view(np.uint64) == _STALE_BITS
    return stale


@dataclass(frozen=True, slots=True, eq=False)
class RecordedSeries:
    """Samples of one series, oldest first, with NaN and staleness markers. labels: no `__name__`; '' means missing."""

    metric: str
    labels: Mapping[str, str]
    times_ms: IntArray
    values: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class MetricSamples:
    """All series of one metric: series i is [starts[i], starts[i + 1]) of times_ms and values."""

    labels: tuple[Mapping[str, str], ...]
    starts: IntArray
    times_ms: IntArray
    values: FloatArray

    def part(self, index: int) -> tuple[IntArray, FloatArray]:
        window = slice(self.starts[index], self.starts[index + 1])
        return self.times_ms[window], self.values[window]

    def parted(self) -> tuple["MetricSamples", "MetricSamples"]:
        """The samples without staleness markers, and the markers. Returns itself as samples where it has no marker."""
        stale = is_stale(self.values)
        markers = np.flatnonzero(stale)
        starts = markers.searchsorted(self.starts)
        ended = MetricSamples(self.labels, starts, self.times_ms[markers], self.values[markers])
        if not markers.size:
            return self, ended
        return MetricSamples(self.labels, self.starts - starts, self.times_ms[~stale], self.values[~stale]), ended

    def positions(self, chosen: IntArray, at_ms: IntArray) -> IntArray:
        """Index of the first sample after each of the rising moments, a row per chosen series; else the series' end."""
        low = np.repeat(self.starts[chosen][:, None], at_ms.size, axis=1)
        if at_ms.size >= chosen.size:
            for row, index in enumerate(chosen):
                low[row] += self.part(int(index))[0].searchsorted(at_ms, "right")
            return low
        # Many series and few moments: one binary search in all series at once.
        high = np.repeat(self.starts[chosen + 1][:, None], at_ms.size, axis=1)
        while (searching := low < high).any():
            middle = (low + high) // 2
            later = self.times_ms[np.where(searching, middle, 0)] > at_ms
            high = np.where(searching & later, middle, high)
            low = np.where(searching & ~later, middle + 1, low)
        return low

    def between(self, chosen: IntArray, low: IntArray, high: IntArray) -> "MetricSamples":
        """A copy of the samples at [low[i], high[i]) for each chosen series i."""
        lengths = high - low
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        picked = np.repeat(low - starts[:-1], lengths) + np.arange(starts[-1])
        return MetricSamples(
            tuple(self.labels[index] for index in chosen), starts, self.times_ms[picked], self.values[picked]
        )


@dataclass(frozen=True, slots=True)
class Conflict:
    """Samples of one series given again with another value; the value given last is kept."""

    labels: Mapping[str, str]
    samples: int
    first_ms: int


def joined(parts: Iterable[tuple[Mapping[str, str], IntArray, FloatArray]]) -> tuple[MetricSamples, list[Conflict]]:
    """One metric from pieces (labels, times_ms, values) in any order; at equal times the later piece wins. Pieces whose
    labels differ only in order or in empty values are one series."""
    pieces: dict[tuple[tuple[str, str], ...], list[tuple[IntArray, FloatArray]]] = {}
    for labels, times_ms, values in parts:
        identity = tuple(sorted((name, value) for name, value in labels.items() if value))
        pieces.setdefault(identity, []).append((times_ms, values))
    names: list[Mapping[str, str]] = []
    columns: list[tuple[IntArray, FloatArray]] = []
    conflicts: list[Conflict] = []
    for identity, given in pieces.items():
        times_ms = np.concatenate([times for times, _ in given])
        values = np.concatenate([numbers for _, numbers in given])
        if times_ms.size > 1 and not (np.diff(times_ms) > 0).all():
            order = np.argsort(times_ms, kind="stable")
            times_ms, values = times_ms[order], values[order]
            repeated = times_ms[1:] == times_ms[:-1]
            left, right = values[1:], values[:-1]
            # NaN values equal each other; staleness markers equal only each other.
            alike = (left == right) | (np.isnan(left) & np.isnan(right) & (is_stale(left) == is_stale(right)))
            differs = repeated & ~alike
            if differs.any():
                first = int(times_ms[int(np.argmax(differs))])
                conflicts.append(Conflict(dict(identity), int(differs.sum()), first))
            last = np.append(~repeated, True)
            times_ms, values = times_ms[last], values[last]
        names.append(dict(identity))
        columns.append((times_ms, values))
    return stacked(names, columns), conflicts


def stacked(labels: Sequence[Mapping[str, str]], columns: Sequence[tuple[IntArray, FloatArray]]) -> MetricSamples:
    """One metric from distinct series whose samples are sorted."""
    starts = np.concatenate(([0], np.cumsum([times.size for times, _ in columns], dtype=np.int64))).astype(np.int64)
    times_ms = np.concatenate([np.empty(0, np.int64), *(times for times, _ in columns)])
    values = np.concatenate([np.empty(0, np.float64), *(numbers for _, numbers in columns)])
    return MetricSamples(tuple(labels), starts, times_ms, values)
