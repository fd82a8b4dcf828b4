"""The joint histogram of a workload's windows, and how histograms are merged.

A grid over busy, SM, tensor and DRAM activity and board power. A cell keeps the exact weighted mean of every signal, so
merging preserves means. A workload with too many cells gets a grid of half as many levels. Levels are powers of two, so
a coarser cell contains whole finer ones, and the order of merges does not matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from gpuwatch.facts.model.workload_profile import Cell

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FINEST = 32
"""Levels per signal at first: 3 % of a ratio, 50 W of power."""

_POWER_SPAN_WATTS = 1600.0  # above any board's limit
_GRID = 5  # columns that make up a cell's place; the others are only averaged
_BITS = 6  # 0 for unknown, else the level + 1, at most 32
_EDGE = 1e-9  # a mean that rounding put just under the edge of its own cell stays in it; the same on every grid

_MEANS = tuple(item.name for item in fields(Cell) if item.name != "weight_seconds")
_means = attrgetter(*_MEANS)
COLUMNS = len(_MEANS)
"""A Cell's means, in the order of its fields: activities and power first, which make up the grid."""


@dataclass(frozen=True, slots=True)
class Weighted:
    """Rows of windows or cells: owner (an index), weight in seconds, and COLUMNS values each, NaN where unknown."""

    owner: Ints
    weight: Floats
    values: Floats  # rows × COLUMNS

    @staticmethod
    def of(rows: Sequence[tuple[int, float, Sequence[Cell]]]) -> "Weighted":
        """Cells of many owners as rows: (owner, factor on their weights, cells)."""
        owner = [index for index, _, cells in rows for _ in cells]
        weight = [cell.weight_seconds * factor for _, factor, cells in rows for cell in cells]
        values = [_means(cell) for _, _, cells in rows for cell in cells]
        return Weighted(
            np.array(owner, dtype=np.int64),
            np.array(weight, dtype=np.float64),
            np.array(values, dtype=np.float64).reshape(-1, COLUMNS),
        )

    def plus(self, other: "Weighted") -> "Weighted":
        return Weighted(
            np.concatenate((self.owner, other.owner)),
            np.concatenate((self.weight, other.weight)),
            np.concatenate((self.values, other.values)),
        )


def merged(rows: Weighted, resolution: Ints, max_cells: int) -> tuple[Weighted, Ints]:
    """Merges rows of one cell; cells in order of their owner, and the owners' resolutions. A resolution is halved until
    the owner has at most max_cells, or one level is left: then cells differ only in which signals are known, 64 at
    most. Weights and weighted means do not change, up to rounding."""
    resolution = resolution.copy()
    cells = _grouped(rows, resolution)
    while True:
        counts = np.bincount(cells.owner, minlength=len(resolution))
        crowded = (counts > max_cells) & (resolution > 1)
        if not crowded.any():
            return cells, resolution
        resolution[crowded] //= 2
        cells = _grouped(cells, resolution)


def _grouped(rows: Weighted, resolution: Ints) -> Weighted:
    if not len(rows.owner):
        return rows
    place = _places(rows, resolution)
    # Sorted by owner first, so that an owner's cells lie together.
    order = np.lexsort((place, rows.owner))
    owner, place = rows.owner[order], place[order]
    begins = np.flatnonzero(np.concatenate(([True], (owner[1:] != owner[:-1]) | (place[1:] != place[:-1]))))
    weight, values = rows.weight[order], rows.values[order]
    total = np.add.reduceat(weight, begins)
    # Within a cell a signal is known in all rows or in none, so NaN stays NaN.
    sums = np.add.reduceat(values * weight[:, None], begins, axis=0)
    return Weighted(owner[begins], total, sums / total[:, None])


def _places(rows: Weighted, resolution: Ints) -> Ints:
    """Each row's cell as one number: the levels of the grid's columns, and which of the others are known."""
    levels = resolution[rows.owner].astype(np.float64)
    place = np.zeros(len(rows.owner), dtype=np.int64)
    for column in range(COLUMNS):
        values = rows.values[:, column]
        known = ~np.isnan(values)
        if column >= _GRID:
            place = (place << 1) | known
            continue
        span = _POWER_SPAN_WATTS if column == _GRID - 1 else 1.0
        level = np.floor((np.where(known, values, 0.0) / span + _EDGE) * levels)
        level = np.clip(level, 0, levels - 1).astype(np.int64) + 1
        place = (place << _BITS) | np.where(known, level, 0)
    return place


def cells_of(rows: Weighted, owners: int) -> list[tuple[Cell, ...]]:
    """Rows that are in order of their owners, as Cells."""
    columns = [
        [None if gone else value for value, gone in zip(column.tolist(), np.isnan(column).tolist(), strict=True)]
        for column in rows.values.T
    ]
    cells = [
        Cell(weight_seconds=weight, **dict(zip(_MEANS, means, strict=True)))
        for weight, *means in zip(rows.weight.tolist(), *columns, strict=True)
    ]
    bounds = np.searchsorted(rows.owner, np.arange(owners + 1)).tolist()
    return [tuple(cells[begin:end]) for begin, end in pairwise(bounds)]
