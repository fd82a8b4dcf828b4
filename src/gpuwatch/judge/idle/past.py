"""The idle time that the past of each workload, and of similar ones, explains."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from gpuwatch.judge.idle.explanation import (
    MIN_PEERS,
    PEER_QUANTILE_RATIO,
    Explanation,
    Kin,
    Prior,
    explained_silence_seconds,
    judged_later,
    time_text,
    without,
)
from gpuwatch.judge.idle.holdings import Holdings, PodHolding, WorkloadClass, class_of, image_family
from gpuwatch.judge.idle.policy import IdlePolicy
from gpuwatch.judge.idle.rhythm import Hourly, Rhythm, hourly, on_clock, paced, rhythm_of
from gpuwatch.judge.idle.silence import (
    WEEKEND_RATIO,
    Calendar,
    Lane,
    SilenceNow,
    Silences,
    joined,
    silence_now,
    silences_of,
    unlikely_silence_seconds,
)

_HOUR = 3600
EXCEED_CHANCE_RATIO = 0.005
"""Chance that any workload that still works exceeds the bound learnt from its past, in as long again. It is divided
among the workloads (Bonferroni), so that a large fleet has as few false findings as a small one. Undivided it named 3
of 775 services in twelve simulated fleets, in nights with few requests; divided, 1 of 5,086 in eighty: lognormal idle
times have a longer tail than the assumed exponential one."""
PEER_MATURE_SECONDS = 18 * _HOUR
"""Time over which a peer must have worked: more than a working day, so it has a night."""
PEER_CHANCE_RATIO = 0.05
"""Chance that a peer exceeds its own bound within MATURE_SECONDS, the time for which the young workload is young. Not
less, as the quantile is careful already."""
MATURE_SECONDS = 24 * _HOUR
BATCH_MATURE_SECONDS = 4 * _HOUR
"""Time between first and last activity from which the own past, of a job by the second, begins to replace peers and
prior: a day and its night, and less than the prior of a job."""

_LIKENESSES = (
    "{each} with image {image} in namespace {namespace}",
    "{each} with image {image}",
    "{each} in namespace {namespace}",
    "{each}",
)
# A workload of unknown kind may be a job.
_ENDING = (WorkloadClass.BATCH, WorkloadClass.OTHER)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Kind:
    """The mature workloads of a class.

    rhythm: None where the hour of the day does not matter. own: each workload's bound by its clock; bounds: the same by
    likeness, ascending.
    """

    rhythm: Rhythm | None
    members: Mapping[str, Hourly]
    own: Mapping[str, float]
    bounds: Mapping[str, tuple[float, ...]]


class SilenceModel:
    def __init__(self, holdings: Holdings, calendar: Calendar, policy: IdlePolicy) -> None:
        self.calendar = calendar
        self.policy = policy
        members: dict[str, list[PodHolding]] = defaultdict(list)
        for holder in holdings.holders.values():
            members[holder.workload].append(holder)
        self.silences: dict[str, Silences] = {}
        self._lanes: dict[str, list[Lane]] = {}
        self.classes: dict[str, WorkloadClass] = {}
        self._likenesses: dict[str, tuple[str, ...]] = {}
        for workload, holders in members.items():
            known = holdings.workloads.get(workload)
            each = class_of(holders[0].pod, known)
            self.classes[workload] = each
            lanes = _units(holders) + list(holdings.past.get(workload, ()))
            self._lanes[workload] = lanes
            counted = True if each is WorkloadClass.BATCH else None
            self.silences[workload] = silences_of(calendar, lanes, weekends_count=counted)
            image, namespace = image_family(holders[0].pod), holders[0].ref.partition("/")[0]
            self._likenesses[workload] = tuple(
                text.format(each=each, image=image, namespace=namespace)
                for text in _LIKENESSES
                if image or "image" not in text
            )
        # The chance of a false finding is for the whole fleet, so each workload has its part of it (Bonferroni).
        self._chance_ratio = EXCEED_CHANCE_RATIO / max(1, sum(own.worked for own in self.silences.values()))
        self._kinds = {each: self._kind(each) for each in set(self.classes.values())}

    def weekends_count(self, workload: str) -> bool:
        """Whether weekends count as idle time: for jobs always, for others that work on weekends. Where none of its own
        was observed, nearly all of its kind must work on them."""
        if self.classes[workload] is WorkloadClass.BATCH:
            return True
        seen = self.silences[workload].works_weekends
        if seen is not None:
            return seen
        kind = self._kinds[self.classes[workload]]
        if kind.rhythm is None:
            return False
        return kind.rhythm.weekend_ratio(kind.members.get(workload)) >= PEER_QUANTILE_RATIO

    def silence(self, workload: str, lane: Lane) -> SilenceNow:
        return silence_now(self.calendar, lane, self.weekends_count(workload), self.policy.min_coverage_ratio)

    def explanation(
        self,
        workload: str,
        now: SilenceNow,
        *,
        own_alone: bool = True,
        never_worked: bool = False,
        released: bool = False,
    ) -> Explanation:
        """The idle time within which this workload is expected to work again.

        now: the idle time to explain; the bounds of kin depend on its hours.
        own_alone: False where its past is mixed with that of others on the same device.
        never_worked: this Pod has not worked since it started, while others of its workload have: only their idle times
            explain its own, so that such a Pod has less time.
        released: nothing is in the memory of its devices. Otherwise, and where that is unknown, the work of a job
            may be unfinished (`judged_later`).
        """
        policy = self.policy
        own = self.silences[workload]
        kin, prior, floor = None, Prior(seconds=0.0, mature_seconds=0.0, reason=""), policy.min_age_seconds
        lacks, stretch = "", 1.0
        if not never_worked:
            kin, prior = self._kin(workload, now), self._prior(self.classes[workload], released)
            floor = policy.min_silence_seconds
            if not own_alone:
                lacks = "other Pods work on the same device"
            elif own.works_weekends is None and self._on_weekend(workload, now):
                # Some workloads work half as much on weekends, and are idle for twice as long.
                lacks, stretch = "no weekend of it was seen", 1 / WEEKEND_RATIO
        found = explained_silence_seconds(
            own,
            kin,
            prior,
            chance_ratio=self._chance_ratio,
            floor_seconds=floor,
            step_seconds=self.calendar.step_seconds,
            own_lacks=lacks,
            own_stretch_ratio=stretch,
        )
        if released or self.classes[workload] not in _ENDING:
            return found
        return judged_later(found, own, policy.batch_prior_seconds)

    def _on_weekend(self, workload: str, now: SilenceNow) -> bool:
        """Whether this idle time has weekends that count only because of the kind."""
        if self.classes[workload] is WorkloadClass.BATCH or not self.weekends_count(workload):
            return False
        return bool(self.calendar.weekend[now.proven_step :].any())

    def _kind(self, each: WorkloadClass) -> _Kind:
        """What the mature workloads of a class have in common; jobs wait for no person, so they have no rhythm."""
        calendar = self.calendar
        grown = [
            workload
            for workload, of in self.classes.items()
            if of is each and self.silences[workload].worked_seconds >= PEER_MATURE_SECONDS
        ]
        members = {workload: hourly(calendar, joined(self._lanes[workload])) for workload in grown}
        batch = each is WorkloadClass.BATCH
        rhythm = rhythm_of(list(members.values())) if members and not batch else None
        weekends_count = batch or (rhythm is not None and rhythm.weekend_ratio() >= PEER_QUANTILE_RATIO)
        clock = calendar.clock(weekends_count)
        if rhythm is not None:
            clock = paced(calendar, clock, rhythm.share())
        own = {}
        bounds: dict[str, list[float]] = defaultdict(list)
        for workload in grown:
            past = silences_of(calendar, self._lanes[workload], weekends_count=weekends_count, clock=clock)
            own[workload] = unlikely_silence_seconds(past, PEER_CHANCE_RATIO, calendar.step_seconds, MATURE_SECONDS)
            for likeness in self._likenesses[workload]:
                bounds[likeness].append(own[workload])
        return _Kind(
            rhythm=rhythm,
            members=members,
            own=own,
            bounds={likeness: tuple(sorted(values)) for likeness, values in bounds.items()},
        )

    def _kin(self, workload: str, now: SilenceNow) -> Kin | None:
        """The most similar kin of which there are enough, else all of its class."""
        kind = self._kinds[self.classes[workload]]
        bounds: tuple[float, ...] = ()
        likeness = ""
        for likeness in self._likenesses[workload]:
            bounds = without(kind.bounds.get(likeness, ()), kind.own.get(workload))
            if len(bounds) >= MIN_PEERS:
                break
        if not bounds:
            return None
        if kind.rhythm is not None:
            clock = self.calendar.clock(self.weekends_count(workload))
            pace = paced(self.calendar, clock, kind.rhythm.share(kind.members.get(workload)))
            bounds = on_clock(clock, pace, now.proven_step, bounds)
        return Kin(bounds=bounds, likeness=likeness)

    def _prior(self, each: WorkloadClass, released: bool) -> Prior:
        policy = self.policy
        if each is WorkloadClass.BATCH:
            seconds, reason = policy.batch_prior_seconds, "a job waits for no request or person"
        elif each is WorkloadClass.INTERACTIVE and released:
            seconds, reason = policy.released_prior_seconds, "its process is gone, its user may come back tomorrow"
        elif each is WorkloadClass.INTERACTIVE:
            seconds, reason = policy.interactive_prior_seconds, "its user may be away for two days"
        else:
            seconds, reason = policy.serving_prior_seconds, "it may have no work overnight"
        mature = BATCH_MATURE_SECONDS if each is WorkloadClass.BATCH else MATURE_SECONDS
        return Prior(seconds=seconds, mature_seconds=mature, reason=f"{reason}: {time_text(seconds)}")


def _units(holders: list[PodHolding]) -> list[Lane]:
    """Activity of each gang, and of each Pod without one."""
    gangs: dict[str, list[Lane]] = defaultdict(list)
    for holder in holders:
        gangs[holder.gang or f"pod:{holder.ref}"].append(holder.lane)
    return [joined(lanes) for lanes in gangs.values()]
