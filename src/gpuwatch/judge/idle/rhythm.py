"""When workloads of one kind work: a clock that runs with them, and whether they work on weekends.

Idleness is stronger evidence while nearly all workloads of a kind work than at night. A young workload, which has not
seen a night, is measured by a clock that runs at the share of its kin that work in each hour.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwatch.judge.idle.silence import ACTIVE, KNOWN, WEEKEND_RATIO, Calendar, Lane, cumulative

# Half a day of weekends: its quiet and its busy part, wherever midnight is.
_WEEKEND_HOURS = 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hourly:
    """One workload by the hours of a calendar: whether it was known in each, and whether it worked.

    works_weekends: None where less than half a day of weekends was seen.
    """

    known: NDArray[np.bool_]
    worked: NDArray[np.bool_]
    works_weekends: bool | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rhythm:
    """Many workloads by the hours of a calendar: how many were known and how many worked in each.

    weekends_seen, weekends_worked: of how many enough of a weekend was seen to tell, and how many worked on it.
    """

    known: NDArray[np.int64]
    worked: NDArray[np.int64]
    weekends_seen: int
    weekends_worked: int

    def share(self, own: Hourly | None = None) -> NDArray[np.float64]:
        """For each hour the share of the workloads, but for this one of them, that worked in it.

        Two are added, one of which works (Laplace), so that few workloads have little weight and no share is 0.
        """
        known, worked = self.known, self.worked
        if own is not None:
            known, worked = known - own.known, worked - own.worked
        share: NDArray[np.float64] = (worked + 1) / (known + 2)
        return share

    def weekend_ratio(self, own: Hourly | None = None) -> float:
        """Share of the workloads, but for this one of them, that work on weekends; two are added as above."""
        seen, worked = self.weekends_seen, self.weekends_worked
        if own is not None:
            seen, worked = seen - (own.works_weekends is not None), worked - (own.works_weekends is True)
        return (worked + 1) / (seen + 2)


def hourly(calendar: Calendar, whole: Lane) -> Hourly:
    """whole: the workload's lanes, joined.

    Unlike in `silences_of`, a silence that goes on now counts against the weekend: this is about what the others do.
    """
    hours = int(calendar.hours[-1]) + 1 if calendar.steps else 0
    known = np.bincount(calendar.hours[(whole & KNOWN) > 0], minlength=hours) > 0
    worked = np.bincount(calendar.hours[(whole & ACTIVE) > 0], minlength=hours) > 0
    weekend = np.bincount(calendar.hours[calendar.weekend], minlength=hours) > 0
    seen, others = np.count_nonzero(known & weekend), np.count_nonzero(known & ~weekend)
    works: bool | None = None
    if seen >= _WEEKEND_HOURS and others:
        rest, work = np.count_nonzero(worked & weekend) / seen, np.count_nonzero(worked & ~weekend) / others
        works = bool(rest >= WEEKEND_RATIO * work)
    return Hourly(known=known, worked=worked, works_weekends=works)


def rhythm_of(members: Sequence[Hourly]) -> Rhythm:
    """Of at least one workload."""
    return Rhythm(
        known=np.sum([one.known for one in members], axis=0, dtype=np.int64),
        worked=np.sum([one.worked for one in members], axis=0, dtype=np.int64),
        weekends_seen=sum(one.works_weekends is not None for one in members),
        weekends_worked=sum(one.works_weekends is True for one in members),
    )


def paced(calendar: Calendar, clock: NDArray[np.float64], share: NDArray[np.float64]) -> NDArray[np.float64]:
    """The clock (counted seconds before each step), running in each hour as fast as the share says."""
    return cumulative(np.diff(clock) * share[calendar.hours])


def on_clock(
    clock: NDArray[np.float64], pace: NDArray[np.float64], first_step: int, lengths: Sequence[float]
) -> tuple[float, ...]:
    """Lengths of paced time from `first_step` on, in seconds of the clock; lower bounds, as the future counts fully."""
    passed = pace[first_step:] - pace[first_step]
    counted = clock[first_step:] - clock[first_step]
    places = np.searchsorted(passed, lengths)
    return tuple(
        float(counted[place]) if place < len(passed) else float(counted[-1] + length - passed[-1])
        for place, length in zip(places, lengths, strict=True)
    )
