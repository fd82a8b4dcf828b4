"""What the past of each workload, and of those like it, explains of a silence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from gpuwatch.detect.idle_holdings import Holder, Holdings, WorkloadClass, class_of, image_family
from gpuwatch.detect.idle_policy import IdlePolicy
from gpuwatch.profile.explanation import Explanation, Kin, Prior, explained_silence_seconds, kin_of, spoken
from gpuwatch.profile.silence import Calendar, Lane, Silences, joined, silences_of, unlikely_silence_seconds

_LIKENESSES = (
    "{each} with image {image} in namespace {namespace}",
    "{each} with image {image}",
    "{each} in namespace {namespace}",
    "{each}",
)
_CLASS_NAMES = {
    WorkloadClass.SERVING: "serving",
    WorkloadClass.INTERACTIVE: "interactive",
    WorkloadClass.BATCH: "batch",
    WorkloadClass.OTHER: "of unknown kind",
}


class Pasts:
    """Silences of every workload in the Snapshot, learnt once."""

    def __init__(self, holdings: Holdings, calendar: Calendar, policy: IdlePolicy) -> None:
        self.calendar = calendar
        self.policy = policy
        members: dict[str, list[Holder]] = defaultdict(list)
        for holder in holdings.holders.values():
            members[holder.workload].append(holder)
        self._silences: dict[str, Silences] = {}
        self._class: dict[str, WorkloadClass] = {}
        self._likenesses: dict[str, tuple[str, ...]] = {}
        for workload, holders in members.items():
            known = holdings.workloads.get(workload)
            each = class_of(holders[0].pod, known)
            self._class[workload] = each
            lanes = _units(holders) + list(holdings.past.get(workload, ()))
            self._silences[workload] = silences_of(
                calendar,
                lanes,
                weekends_count=True if each is WorkloadClass.BATCH else None,
                weekend_ratio=policy.weekend_ratio,
            )
            image, namespace = image_family(holders[0].pod), holders[0].ref.partition("/")[0]
            self._likenesses[workload] = tuple(
                text.format(each=_CLASS_NAMES[each], image=image, namespace=namespace)
                for text in _LIKENESSES
                if image or "image" not in text
            )
        self._bounds = self._grouped()

    def class_of(self, workload: str) -> WorkloadClass:
        return self._class[workload]

    def silences(self, workload: str) -> Silences:
        return self._silences[workload]

    def weekends_count(self, workload: str) -> bool:
        """Whether a weekend counts as silence: for jobs always, for others where they were seen to work on weekends.
        A weekend that was never seen is waited out; what others do on theirs is no evidence (an office-hours service
        among round-the-clock ones would be named on its first Sunday)."""
        return self._class[workload] is WorkloadClass.BATCH or self._silences[workload].works_weekends is True

    def explanation(
        self, workload: str, *, own_alone: bool, never_worked: bool = False, released: bool = False
    ) -> Explanation:
        """The silence up to which this workload may be expected to work again.

        own_alone: see `explained_silence_seconds`. never_worked: of a Pod of this workload that has not worked since
        it started, while others of its Pods have: only their silences explain its own, since a Pod that never worked
        is not waited for as long as one that did. released: nothing is in the memory of its devices.
        """
        policy = self.policy
        own = self._silences[workload]
        if never_worked:
            return explained_silence_seconds(
                own,
                None,
                Prior(seconds=0.0, mature_seconds=0.0, reason=""),
                chance_ratio=policy.exceed_chance_ratio,
                kin_quantile_ratio=policy.kin_quantile_ratio,
                kin_limit_ratio=policy.kin_limit_ratio,
                floor_seconds=policy.min_age_seconds,
                step_seconds=self.calendar.step_seconds,
            )
        return explained_silence_seconds(
            own,
            self._kin(workload),
            self._prior(self._class[workload], released),
            chance_ratio=policy.exceed_chance_ratio,
            kin_quantile_ratio=policy.kin_quantile_ratio,
            kin_limit_ratio=policy.kin_limit_ratio,
            floor_seconds=policy.min_silence_seconds,
            step_seconds=self.calendar.step_seconds,
            own_alone=own_alone,
        )

    def _bound(self, workload: str) -> float | None:
        """What its own past bounds, for others to go by; None while it is too young to be asked."""
        own = self._silences[workload]
        if own.worked_seconds < self.policy.kin_mature_seconds:
            return None
        return unlikely_silence_seconds(own, self.policy.kin_chance_ratio, self.calendar.step_seconds)

    def _grouped(self) -> Mapping[str, tuple[float, ...]]:
        """Bounds of the workloads that are alike, ascending, by what they are alike in."""
        bounds: dict[str, list[float]] = defaultdict(list)
        for workload, likenesses in self._likenesses.items():
            bound = self._bound(workload)
            if bound is not None:
                for likeness in likenesses:
                    bounds[likeness].append(bound)
        return {likeness: tuple(sorted(values)) for likeness, values in bounds.items()}

    def _kin(self, workload: str) -> Kin | None:
        """The nearest kin of which there are enough."""
        own = self._bound(workload)
        for likeness in self._likenesses[workload]:
            kin = kin_of(self._bounds.get(likeness, ()), own, likeness, self.policy.kin_minimum)
            if kin is not None:
                return kin
        return None

    def _prior(self, each: WorkloadClass, released: bool) -> Prior:
        policy = self.policy
        if each is WorkloadClass.BATCH:
            seconds, reason = policy.batch_prior_seconds, "a job waits for nobody"
        elif each is WorkloadClass.INTERACTIVE and released:
            seconds, reason = policy.released_prior_seconds, "its process is gone, its user may come back tomorrow"
        elif each is WorkloadClass.INTERACTIVE:
            seconds, reason = policy.interactive_prior_seconds, "its user may be away for a day"
        else:
            seconds, reason = policy.serving_prior_seconds, "it may rest from one day to the next"
        mature = policy.batch_mature_seconds if each is WorkloadClass.BATCH else policy.mature_seconds
        return Prior(seconds=seconds, mature_seconds=mature, reason=f"{reason}: {spoken(seconds)}")


def _units(holders: list[Holder]) -> list[Lane]:
    """Lanes of what acts as one: each gang, and each Pod that is in none."""
    gangs: dict[str, list[Lane]] = defaultdict(list)
    for holder in holders:
        gangs[holder.gang or f"pod:{holder.ref}"].append(holder.lane)
    return [joined(lanes) for lanes in gangs.values()]
