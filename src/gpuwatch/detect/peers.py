"""How a device compares with others of its kind: median and spread that a few sick ones cannot move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

# Makes the median absolute deviation of a normal distribution its standard deviation.
_MAD_TO_DEVIATION = 1.4826


@dataclass(frozen=True, slots=True)
class Peers:
    """A cohort's middle. `spread` is in the unit of the values, `count` the others that a member is compared with;
    same_model is False where there were too few of its model and all of the fleet had to serve."""

    median: float
    spread: float
    count: int
    same_model: bool = True

    def upper(self, deviations: float) -> float:
        """Above it a member stands out."""
        return self.median + deviations * self.spread

    def lower(self, deviations: float) -> float:
        """Below it a member stands out."""
        return self.median - deviations * self.spread

    def times(self, factor: float) -> Peers:
        """The same in another unit."""
        return replace(self, median=self.median * factor, spread=self.spread * factor)


def peers_of(values: Sequence[float], spread_ratio: float) -> Peers:
    """Median, and the MAD scaled to a standard deviation, but at least `spread_ratio` of the median: where all
    but one are equal the MAD is 0, and healthy cards of one model do differ. `values` holds every member."""
    middle = median(values)
    deviation = median(abs(value - middle) for value in values)
    return Peers(middle, max(_MAD_TO_DEVIATION * deviation, spread_ratio * abs(middle)), len(values) - 1)
