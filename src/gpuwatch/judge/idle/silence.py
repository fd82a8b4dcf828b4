"""How long a workload is silent between two pieces of work, learnt from its own past and from workloads like it.

A lane is the activity of some devices: one code per step of a Calendar. Devices of one Pod, and Pods that work
together, are one lane: active where any was, else unknown where any is unknown, else silent.

Silences are measured in counted time. Steps without any telemetry do not count; Saturdays and Sundays count only for
workloads that work on them. An office-hours service is then idle for the same 15 hours from Friday to Monday as from
Monday to Tuesday, in every time zone, because its long silence contains 48 hours of weekend wherever midnight is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuwatch.facts.model.telemetry import ActivityHistory

Lane: TypeAlias = NDArray[np.uint8]
"""One code per step of the calendar. The codes are bits, so that lanes are joined by `|`."""

ABSENT, SILENT, UNKNOWN, ACTIVE = 0, 1, 2, 4
KNOWN = SILENT | ACTIVE

_HOUR = 3600
_DAY = 24 * _HOUR
_EPOCH_WEEKDAY = 3  # 1 January 1970 was a Thursday
_WEEKEND = (5, 6)  # 0 is Monday
WEEKEND_RATIO = 0.5
"""Active share of weekend hours, relative to other days, from which a workload works on weekends: it works half as much
there, so its idle times may be twice as long where no weekend of it was seen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calendar:
    """The common grid of all histories. Step i covers (start + i·step, start + (i+1)·step].

    every_day, week_days: counted seconds before step i, for i in 0..steps; the second leaves weekends out.
    hours: for each step the number of the hour it lies in, counted from the first.
    weekend: for each step whether it lies on a weekend (UTC).
    first_known: the first step in which any device was known; `steps` where none ever was.
    """

    start: datetime
    step_seconds: int
    steps: int
    every_day: NDArray[np.float64]
    week_days: NDArray[np.float64]
    hours: NDArray[np.int64]
    weekend: NDArray[np.bool_]
    first_known: int

    @property
    def end(self) -> datetime:
        return self.time_of(self.steps)

    def time_of(self, index: int) -> datetime:
        """When step `index` begins."""
        return self.start + timedelta(seconds=index * self.step_seconds)

    def index_after(self, moment: datetime) -> int:
        """The first step that begins at or after the moment, within 0..steps."""
        index = math.ceil((moment - self.start).total_seconds() / self.step_seconds)
        return min(max(index, 0), self.steps)

    def clock(self, weekends_count: bool) -> NDArray[np.float64]:
        return self.every_day if weekends_count else self.week_days


@dataclass(frozen=True, slots=True, kw_only=True)
class Silences:
    """Statistics of a workload's past silences.

    longest_seconds: the longest silence that ended in work, in counted time; 0 where none did.
    count: how many silences ended in work.
    observed_seconds: counted time for which lanes were there, all of them added up of which anything was seen.
    worked_seconds: counted time from the first to the last activity of the workload as a whole.
    unpaused_seconds: the longest time, weekends included, from activity to activity of one lane in which no step is
        known to be silent.
    active_ratio: share of the known steps with activity.
    works_weekends: None where less than one whole weekend and another day were seen between first and last activity.
    weekends_counted: whether the other times above are with weekends.
    """

    longest_seconds: float = 0.0
    count: int = 0
    observed_seconds: float = 0.0
    worked_seconds: float = 0.0
    unpaused_seconds: float = 0.0
    active_ratio: float = 0.0
    works_weekends: bool | None = None
    weekends_counted: bool = True

    @property
    def worked(self) -> bool:
        return self.worked_seconds > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceNow:
    """The silence at the end of a lane.

    first_step: the step after the last activity, or the lane's first where there was none.
    silent_seconds: counted time of the steps that are known to be silent, from where on enough steps are known.
    elapsed_seconds: calendar time from `first_step` to the end of the lane, known or not.
    proven_step: the step from which on enough is known; `first_step` where the silence has no large holes.
    proven_seconds: calendar time from `proven_step` to the end of the lane.
    coverage_ratio: known share of the steps since `first_step`.
    max_staleness_seconds: time at the lane's end in which nothing is known.
    active_before: the lane has activity before this silence.
    """

    first_step: int
    silent_seconds: float
    elapsed_seconds: float
    proven_step: int
    proven_seconds: float
    coverage_ratio: float
    max_staleness_seconds: float
    active_before: bool


_CODES = np.zeros(256, dtype=np.uint8)
for _letter, _code in (("?", UNKNOWN), (".", SILENT), ("#", ACTIVE)):
    _CODES[ord(_letter)] = _code


def read_steps(history: ActivityHistory) -> Lane:
    """The history's characters as codes. Raises ValueError for other characters."""
    codes = _CODES[np.frombuffer(history.steps.encode("ascii", "backslashreplace"), dtype=np.uint8)]
    if not codes.all():
        raise ValueError(
            f"the activity of {history.device} under {history.pod or 'no Pod'} has characters other than '?', '.' "
            "and '#'; collect the Snapshot again"
        )
    return codes


def calendar_of(histories: Sequence[ActivityHistory], codes: Sequence[Lane]) -> Calendar:
    """The grid that all histories lie on.

    codes: `read_steps` of each. ValueError where there is no history, or where the histories differ in their step.
    """
    if not histories:
        raise ValueError("no activity history: a calendar needs at least one")
    step = histories[0].step_seconds
    odd = next((item for item in histories if item.step_seconds != step or step <= 0), None)
    if odd is not None:
        raise ValueError(
            f"the activity of {odd.device} has steps of {odd.step_seconds} s and others have {step} s; "
            "one Snapshot needs one step above 0"
        )
    start = min(item.start for item in histories)
    offsets = [_offset(start, item) for item in histories]
    steps = max(offset + len(item) for offset, item in zip(offsets, codes, strict=True))
    known = np.zeros(steps, dtype=bool)
    for offset, item in zip(offsets, codes, strict=True):
        known[offset : offset + len(item)] |= item != UNKNOWN
    begins = math.floor(start.timestamp()) + np.arange(steps, dtype=np.int64) * step
    weekend = np.isin((begins // _DAY + _EPOCH_WEEKDAY) % 7, _WEEKEND)
    counted = known * float(step)
    return Calendar(
        start=start,
        step_seconds=step,
        steps=steps,
        every_day=cumulative(counted),
        week_days=cumulative(counted * ~weekend),
        hours=begins // _HOUR - begins[0] // _HOUR if steps else begins,
        weekend=weekend,
        first_known=int(np.argmax(known)) if known.any() else steps,
    )


def lane_of(calendar: Calendar, history: ActivityHistory, codes: Lane, begin: int | None, lasts: bool) -> Lane:
    """The history laid on the calendar.

    begin: the step in which its Pod's life begins; None: its first known step. lasts: the Pod lives to the calendar's
    end, else to the last known step. Steps of its life without history are UNKNOWN, others ABSENT.
    """
    offset = _offset(calendar.start, history)
    known = np.flatnonzero(codes != UNKNOWN)
    lane = np.zeros(calendar.steps, dtype=np.uint8)
    first = begin if begin is not None else (offset + int(known[0]) if len(known) else calendar.steps)
    end = calendar.steps if lasts else (offset + int(known[-1]) + 1 if len(known) else 0)
    lane[first:end] = UNKNOWN
    low, high = max(first, offset), min(end, offset + len(codes))
    if low < high:
        lane[low:high] = codes[low - offset : high - offset]
    return lane


def joined(lanes: Sequence[Lane]) -> Lane:
    """All lanes as one; of one lane the lane itself."""
    if len(lanes) == 1:
        return lanes[0]
    both = np.bitwise_or.reduce(np.stack(lanes), axis=0)
    return np.where(both & ACTIVE, ACTIVE, np.where(both & UNKNOWN, UNKNOWN, both)).astype(np.uint8)


def silences_of(
    calendar: Calendar,
    lanes: Sequence[Lane],
    *,
    weekends_count: bool | None = None,
    clock: NDArray[np.float64] | None = None,
) -> Silences:
    """What these lanes, the units of one workload past and present, say about its silences.

    A silence is the time from activity to activity, or from the beginning of a unit's life to its first activity,
    with its unknown steps: they neither end it nor shorten it. The silences of each lane count, and those of the
    workload as a whole, which outlast a Pod where another follows it; time in which no unit was there is not one.
    weekends_count: None lets the past decide, by WEEKEND_RATIO. clock: counted seconds before each step, where they
    are counted in another way than by weekends.
    """
    whole = joined(lanes) if lanes else np.zeros(calendar.steps, dtype=np.uint8)
    active = np.flatnonzero(whole & ACTIVE)
    works_weekends = _works_weekends(calendar, whole, active)
    counted = works_weekends is True if weekends_count is None else weekends_count
    clock = calendar.clock(counted) if clock is None else clock
    longest, count, observed = 0.0, 0, 0.0
    for lane in lanes:
        alive = np.flatnonzero(lane)
        if not (lane & KNOWN).any():
            continue
        observed += float(clock[alive[-1] + 1] - clock[alive[0]])
        lengths = _lengths(clock, np.flatnonzero(lane & ACTIVE) if len(lanes) > 1 else active, int(alive[0]))
        count += len(lengths)
        longest = max(longest, float(lengths.max(initial=0.0)))
    worked = 0.0
    if len(active):
        present = clock if len(lanes) == 1 else cumulative(np.diff(clock) * (whole != ABSENT))
        worked = float(present[active[-1] + 1] - present[active[0]])
        if len(lanes) > 1:
            longest = max(longest, float(_lengths(present, active, int(active[0])).max(initial=0.0)))
    known = int(np.count_nonzero(whole & KNOWN))
    return Silences(
        longest_seconds=longest,
        count=count,
        observed_seconds=observed,
        # Work on a weekend that does not count is work all the same.
        worked_seconds=max(worked, float(calendar.step_seconds)) if len(active) else 0.0,
        unpaused_seconds=max((_unpaused(calendar.every_day, lane) for lane in lanes), default=0.0),
        active_ratio=len(active) / known if known else 0.0,
        works_weekends=works_weekends,
        weekends_counted=counted,
    )


def silence_now(calendar: Calendar, lane: Lane, weekends_count: bool, min_coverage_ratio: float = 0.8) -> SilenceNow:
    """The silence at the lane's end; of length 0 where its last step is active or the lane is empty.

    Of a silence with holes the longest end counts of which this share of the steps is known.
    """
    alive = np.flatnonzero(lane)
    active = np.flatnonzero(lane & ACTIVE)
    first = int(active[-1]) + 1 if len(active) else (int(alive[0]) if len(alive) else calendar.steps)
    # From the end backwards.
    silent = (lane[first:] & SILENT)[::-1] > 0
    counted = np.cumsum(np.diff(calendar.clock(weekends_count)[first:])[::-1] * silent)
    covered = np.cumsum(silent) >= min_coverage_ratio * np.arange(1, len(silent) + 1)
    proven = int(np.flatnonzero(covered)[-1]) + 1 if covered.any() else 0
    return SilenceNow(
        first_step=first,
        silent_seconds=float(counted[proven - 1]) if proven else 0.0,
        elapsed_seconds=float(len(silent) * calendar.step_seconds),
        proven_step=calendar.steps - proven,
        proven_seconds=float(proven * calendar.step_seconds),
        coverage_ratio=float(silent.mean()) if len(silent) else 1.0,
        max_staleness_seconds=float((int(np.argmax(silent)) if silent.any() else len(silent)) * calendar.step_seconds),
        active_before=len(active) > 0,
    )


def unlikely_silence_seconds(
    past: Silences, chance_ratio: float, step_seconds: float, ahead_seconds: float | None = None
) -> float:
    """The silence that a workload with this past exceeds with at most this chance in the time ahead (None: in as long
    as was observed).

    Order statistics of gaps with an exponential tail: the longest of n silences is about ln(n) times the tail's
    mean, and one in the next m exceeds ln(m / chance) times that mean with the given chance; their quotient is
    ln(m / chance) / ln(n), never less than 1. For n and m stand the numbers of times that the longest silence fits
    into the time observed and into the time ahead (plus one each), rather than numbers of silences: many short ones
    say nothing about the long ones. A past without silences is taken to have had one of a single step.
    """
    longest = max(past.longest_seconds, step_seconds)
    fits = max(past.observed_seconds / longest, 1.0)
    more = fits if ahead_seconds is None else min(fits, ahead_seconds / longest)
    return longest * max(1.0, (math.log(1 + more) - math.log(chance_ratio)) / math.log(1 + fits))


def chance_of_longer(past: Silences, silent_seconds: float, step_seconds: float) -> float:
    """The chance, by the same model, that a workload with this past is idle for so long and works again."""
    longest = max(past.longest_seconds, step_seconds)
    fits = max(past.observed_seconds / longest, 1.0)
    return math.exp(min(0.0, (1 - silent_seconds / longest) * math.log(1 + fits)))


def _offset(start: datetime, history: ActivityHistory) -> int:
    return round((history.start - start).total_seconds() / history.step_seconds)


def cumulative(values: NDArray[np.float64]) -> NDArray[np.float64]:
    sums = np.zeros(len(values) + 1)
    np.cumsum(values, out=sums[1:])
    return sums


def _lengths(clock: NDArray[np.float64], active: NDArray[np.intp], begin: int) -> NDArray[np.float64]:
    """Counted lengths of the silences before each active step, the empty ones left out."""
    ends = np.concatenate(([begin], active[:-1] + 1)) if len(active) else active
    lengths: NDArray[np.float64] = clock[active] - clock[ends]
    return lengths[lengths > 0]


def _unpaused(clock: NDArray[np.float64], lane: Lane) -> float:
    """An unknown step is no pause: a hole in telemetry must not make a long work look like two short ones."""
    active = np.flatnonzero(lane & ACTIVE)
    if not len(active):
        return 0.0
    first, end = int(active[0]), int(active[-1]) + 1
    pauses = first + np.flatnonzero(lane[first:end] == SILENT)
    lengths = clock[np.append(pauses, end)] - clock[np.insert(pauses + 1, 0, first)]
    return float(lengths.max())


def _works_weekends(calendar: Calendar, whole: Lane, active: NDArray[np.intp]) -> bool | None:
    if not len(active):
        return None
    seen = slice(active[0], active[-1] + 1)
    since, weekend, hours = whole[seen], calendar.weekend[seen], calendar.hours[seen]
    known = (since & KNOWN) > 0
    # Nine tenths of two days and of one: a few holes do not make a weekend unseen.
    if (
        np.count_nonzero(known & weekend) * calendar.step_seconds < 0.9 * 2 * _DAY
        or np.count_nonzero(known & ~weekend) * calendar.step_seconds < 0.9 * _DAY
    ):
        return None

    worked = (since & ACTIVE) > 0

    def active_hours_ratio(days: NDArray[np.bool_]) -> float:
        return _distinct(hours[worked & days]) / _distinct(hours[known & days])

    return active_hours_ratio(weekend) >= WEEKEND_RATIO * active_hours_ratio(~weekend)


def _distinct(rising: NDArray[np.int64]) -> int:
    """How many different values a rising sequence has."""
    return int(np.count_nonzero(np.diff(rising))) + 1 if len(rising) else 0
