"""Judges one allocation: a gang, a Pod, or a single device of a Pod."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from gpuwatch.facts.catalog.gpus import gpu_share_ratio
from gpuwatch.facts.model.decision import (
    Advice,
    Evidence,
    Family,
    Finding,
    FindingKind,
    Severity,
    Snapshot,
    Subject,
    Verdict,
)
from gpuwatch.facts.model.needs import stats
from gpuwatch.facts.model.telemetry import Device, PodRef, Signal, Statistic, WindowStat
from gpuwatch.judge.fleet import conclude
from gpuwatch.judge.idle.explanation import ExplainedBy, Explanation, confidence_in_silence, past_text, time_text
from gpuwatch.judge.idle.holdings import WorkloadClass
from gpuwatch.judge.idle.past import SilenceModel
from gpuwatch.judge.idle.policy import IdlePolicy
from gpuwatch.judge.idle.signals import DeviceSignals
from gpuwatch.judge.idle.silence import ACTIVE, Lane, SilenceNow

_GIB = 2**30
HOST_BOUND_BUSY_RATIO = 0.3
"""Mean engine activity over long_window_seconds up to which a busy device waits for its host; Kalos' median job is at
0.98."""
HOST_BOUND_STEPS_RATIO = 0.9
"""Share of that window's active steps from which a device is busy all the time; short pauses, as for a checkpoint, do
not count."""
HOST_BOUND_BYTES_PER_SECOND = 1e9
"""Average PCIe traffic from which a service waits for its host too; with less it may be little used. A hundred times
the most of an idle device."""
UNTOLD = "whether it is used cannot be told"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Allocation:
    """A gang, a Pod or a device to judge.

    lane: its devices' activity as one. started: of its youngest Pod; None where unknown or before the history.
    ambiguous: other Pods work on one of its devices. unseen: missing data. notes: for people, without a full stop.
    """

    subject: Subject
    workload: str
    devices: tuple[Device, ...]
    pods: tuple[PodRef, ...]
    lane: Lane
    started: datetime | None
    ambiguous: bool
    unseen: tuple[str, ...]
    notes: tuple[str, ...] = ()


class IdleJudge:
    def __init__(self, snapshot: Snapshot, policy: IdlePolicy, model: SilenceModel) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.model = model
        self.calendar = model.calendar
        self.signals = DeviceSignals(snapshot, policy)
        self._recent = WindowStat(Signal.BUSY_RATIO, Statistic.MAX, policy.recent_seconds)
        self._count = WindowStat(Signal.BUSY_RATIO, Statistic.COUNT, policy.recent_window_seconds)
        # The time after the last step is unknown.
        self._behind = max(0.0, (snapshot.at - self.calendar.end).total_seconds())

    def unexplained(self, workload: str, lane: Lane) -> bool:
        """Whether this part of an allocation has been idle for longer than explained."""
        now = self.model.silence(workload, lane)
        # Checked first for speed: a shorter idle time is always explained, and most are shorter.
        return (
            now.silent_seconds > self.policy.min_silence_seconds
            and now.max_staleness_seconds + self._behind < self.policy.max_staleness_seconds
            and now.silent_seconds > self.model.explanation(workload, now).seconds
        )

    def judge(self, item: Allocation) -> Finding:
        nodes = {device.node for device in item.devices}
        found = self._conclusion(item)
        return replace(
            found,
            summary="; ".join((found.summary, *item.notes)),
            devices=tuple(device.id for device in item.devices),
            pods=item.pods,
            node=nodes.pop() if len(nodes) == 1 else None,
        )

    def _conclusion(self, item: Allocation) -> Finding:
        """Checks signs of work first, then missing data, then the idle time."""
        policy = self.policy
        now = self.model.silence(item.workload, item.lane)
        ago = now.elapsed_seconds + self._behind
        if now.active_before and ago < policy.recent_seconds:
            when = "works now" if ago < 2 * self.calendar.step_seconds else f"worked {time_text(ago)} ago"
            return self._working(item, when)
        work = self.signals.recent_work(item.devices)
        if work is not None:
            return self._working(item, f"worked within the last {time_text(policy.recent_seconds)}", (work,))
        video = self.signals.video(item.devices)
        if video is not None:
            return self._working(item, "uses its video engines", (video,))
        missing = self.missing_data(item, now)
        if missing:
            return idle_unknown(item.subject, UNTOLD, missing)
        covered = now.coverage_ratio >= policy.min_coverage_ratio
        own = self.model.silences[item.workload]
        age = (self.snapshot.at - item.started).total_seconds() if item.started is not None else None
        alone, released = not item.ambiguous, self.signals.released(item.devices)
        explanation = self.model.explanation(item.workload, now, own_alone=alone, released=released)
        if age is not None and not now.active_before:
            if age < policy.min_age_seconds:
                text = f"it is {time_text(age)} old, and no Pod is judged before {time_text(policy.min_age_seconds)}"
                return idle_unknown(item.subject, text, ("age",))
            if own.worked:
                explanation = self.model.explanation(item.workload, now, own_alone=alone, never_worked=True)
            elif covered:
                return self._silent(item, now, None)
        if now.silent_seconds > explanation.seconds and (age is None or age >= policy.min_age_seconds):
            return self._silent(item, now, explanation)
        if not covered:
            since = self.calendar.time_of(now.first_step)
            needed = f"at least {policy.min_coverage_ratio:.0%} is needed"
            text = f"activity since {since:%Y-%m-%d %H:%M}: {now.coverage_ratio:.0%} of it is known, {needed}"
            return idle_unknown(item.subject, UNTOLD, (text,))
        return self._explained(item, now, explanation)

    def missing_data(self, item: Allocation, now: SilenceNow) -> tuple[str, ...]:
        policy = self.policy
        if item.unseen:
            return item.unseen
        blind = now.max_staleness_seconds + self._behind
        if blind >= policy.max_staleness_seconds:
            return (f"activity of the last {time_text(blind)}",)
        for device in item.devices:
            count = self.snapshot.readings.get(self._count, device)
            seen = self.snapshot.telemetry_schema.share_of_samples(count, policy.recent_window_seconds)
            if seen is not None and seen < policy.min_coverage_ratio:
                return (f"samples of {device.id}: {seen:.0%} of those of the last hour are there",)
        return ()

    def _working(self, item: Allocation, when: str, evidence: tuple[Evidence, ...] = ()) -> Finding:
        if item.ambiguous:
            text = f"its device {when}, but other Pods share it"
            return idle_unknown(item.subject, text, ("which Pod's work it is",))
        kind, advice, confidence = FindingKind.IN_USE, Advice.NONE, 0.99
        if (waits := self._host_bound(item)) is not None:
            kind, advice, confidence = FindingKind.HOST_BOUND, Advice.FIX_APPLICATION, 0.7
            when, evidence = f"{when}, but {waits[0]}", waits[1]
        return conclude(
            item.subject, kind, Verdict.BUSY, when, advice=advice, confidence_ratio=confidence, evidence=evidence
        )

    def _host_bound(self, item: Allocation) -> tuple[str, tuple[Evidence, ...]] | None:
        """How its devices, busy all the time at a low level, wait for their host, and the evidence; None where unknown
        or not so. A job always has work, so its host is at fault. A service may have few requests: it also needs much
        PCIe traffic."""
        signals, devices, window = self.signals, item.devices, self.policy.long_window_seconds
        recent = item.lane[-(window // self.calendar.step_seconds) :]
        share = np.count_nonzero(recent & ACTIVE) / len(recent)
        means = [signals.value(device, Signal.BUSY_RATIO, Statistic.AVG, window) for device in devices]
        known = [mean for mean in means if mean is not None]
        if not known or len(known) < len(means):
            return None
        mean = max(known)
        if mean > HOST_BOUND_BUSY_RATIO or share < HOST_BOUND_STEPS_RATIO:
            return None
        traffic = max((signals.host_traffic(device, window) or 0.0 for device in devices), default=0.0)
        feeds, bound = traffic >= HOST_BOUND_BYTES_PER_SECOND, HOST_BOUND_BYTES_PER_SECOND
        if not feeds and self.model.classes[item.workload] is not WorkloadClass.BATCH:
            return None
        busy, received = stats(Statistic.AVG, window, Signal.BUSY_RATIO, Signal.PCIE_RX_BYTES_PER_SECOND)
        note = "the busiest of its devices"
        evidence = [signals.evidence(devices[0], busy, mean, "<=", HOST_BOUND_BUSY_RATIO, note)]
        if feeds:
            evidence.append(signals.evidence(devices[0], received, traffic, ">=", bound, f"both ways, {note}"))
        text = f"its busiest device is active in {share:.0%} of the last {time_text(window)} and only for {mean:.0%}"
        return f"{text} of the time: it waits for its host", tuple(evidence)

    def _silent(self, item: Allocation, now: SilenceNow, explanation: Explanation | None) -> Finding:
        """Idle for longer than explained: proven where a second signal agrees, suspected where none tells.

        explanation: None where no Pod of its workload ever worked."""
        served = self._requests(item, now.proven_seconds)
        if served is not None and served.value:
            text = f"its engines have been idle for {time_text(now.proven_seconds)}, but it {served.note}"
            return idle_unknown(item.subject, text, ("signals that agree",), evidence=(served,))
        opinion = self.signals.second_opinion(item.devices, now.proven_seconds)
        if opinion.agrees is False:
            text = f"its engines have been idle for {time_text(now.proven_seconds)}, but {opinion.contradiction}"
            return idle_unknown(item.subject, text, ("signals that agree",), evidence=opinion.evidence)
        since = self.calendar.time_of(now.proven_step)
        hours = (self.snapshot.at - since) / timedelta(hours=1)
        found = conclude(
            item.subject,
            FindingKind.SUSPECTED_IDLE,
            Verdict.UNKNOWN,
            f"{self._silence_text(item, now, explanation)}; only engine activity says so",
            severity=Severity.WARNING,
            advice=Advice.FIX_MONITORING,
            since=since,
            evidence=(self._activity(item, now, explanation, ">"), *opinion.evidence, *([served] if served else [])),
            missing=opinion.missing,
            gpu_hours=round(hours * sum(gpu_share(device) for device in item.devices), 2),
        )
        if opinion.agrees is None:
            return found
        held = self.signals.memory_used_bytes(item.devices)
        kind, holding = self._class(item, now, None if held is None else held[0])
        if explanation is None:
            # Its first work may still come. `started` rules out that it worked before the telemetry began.
            confidence = 0.95 if item.pods and self.snapshot.cluster.known else 0.85
        else:
            own, step = self.model.silences[item.workload], self.calendar.step_seconds
            confidence = confidence_in_silence(own, explanation, now.silent_seconds, step)
        return replace(
            found,
            rule=f"{Family.IDLE}.{kind}",
            kind=kind,
            verdict=Verdict.IDLE,
            summary=f"{self._silence_text(item, now, explanation)}; {holding}",
            advice=Advice.RECLAIM,
            confidence_ratio=round(confidence * now.coverage_ratio, 3),
            evidence=found.evidence if held is None else (*found.evidence, self._memory(item, *held)),
        )

    def _requests(self, item: Allocation, silent_seconds: float) -> Evidence | None:
        """The requests of its Pods in the longest window of the silence that was seen; None where no engine tells."""
        engines = [self.snapshot.requests[pod] for pod in item.pods if pod in self.snapshot.requests]
        longest = [max((each for each in told.by_window if each <= silent_seconds), default=0) for told in engines]
        counts = [
            (told.by_window[window], window, told) for told, window in zip(engines, longest, strict=True) if window
        ]
        # increase() extrapolates, and a fraction of a request is one.
        number = max(round(sum(count for count, *_ in counts)), int(any(count > 0 for count, *_ in counts)))
        if not counts or (not number and len(counts) < len(item.pods)):
            return None
        window, engine = min(seconds for _, seconds, _ in counts), counts[0][2]
        return Evidence(
            signal="requests",
            value=float(number),
            window_seconds=window,
            comparison="<=",
            bound=0.0,
            promql=engine.metric,
            note=f"had {number} requests by {engine.engine} in the last {time_text(window)} at least",
        )

    def _class(self, item: Allocation, now: SilenceNow, used_bytes: float | None) -> tuple[FindingKind, str]:
        """A loaded model decides, as its reload costs time. A context alone leaves 'never used' as it is."""
        policy = self.policy
        never = not now.active_before and item.started is not None
        plain = FindingKind.NEVER_USED if never else FindingKind.ABANDONED
        if used_bytes is None:
            return plain, "how much memory it uses is not known"
        size = f"{used_bytes / _GIB:.1f} GiB"
        if used_bytes >= policy.model_bytes:
            return FindingKind.MODEL_LOADED, f"a model of {size} stays in memory"
        if used_bytes >= policy.context_bytes:
            return plain, f"only a context of {size} is in memory"
        return plain, "nothing is in memory"

    def _silence_text(self, item: Allocation, now: SilenceNow, explanation: Explanation | None) -> str:
        if explanation is None:
            return f"never worked in the {time_text(self._since_start(item))} since it started"
        counted = ""
        if now.proven_seconds - now.silent_seconds > 0.1 * now.proven_seconds:
            counted = f" (of which {time_text(now.silent_seconds)} count)"
        silent = f"idle for {time_text(now.proven_seconds)}{counted}"
        if not now.active_before:
            silent += ", since it started" if item.started is not None else ", all that was seen of it"
        return f"{silent}; {explanation.text}"

    def _explained(self, item: Allocation, now: SilenceNow, explanation: Explanation) -> Finding:
        text = self._silence_text(item, now, explanation)
        if item.ambiguous:
            return idle_unknown(item.subject, text, ("which Pod's work it was",))
        if not now.active_before and not self.model.silences[item.workload].worked:
            return idle_unknown(item.subject, text, ("what it did before the history begins",))
        expected = explanation.seconds if explanation.expected_seconds is None else explanation.expected_seconds
        if now.silent_seconds > expected:
            left = time_text(explanation.seconds - now.silent_seconds)
            evidence = (self._activity(item, now, explanation, "<="),)
            return idle_unknown(item.subject, text, (f"another {left} without work",), evidence=evidence)
        own = explanation.by in (ExplainedBy.OWN, ExplainedBy.UNPAUSED)
        confidence = 0.9 if own else {ExplainedBy.KIN: 0.6, ExplainedBy.PRIOR: 0.5}[explanation.by]
        return conclude(
            item.subject,
            FindingKind.BURSTY,
            Verdict.BUSY,
            f"{text}; it is expected to work again within {time_text(expected)}",
            confidence_ratio=confidence,
            since=self.calendar.time_of(now.proven_step),
            evidence=(self._activity(item, now, explanation, "<="),),
        )

    def _since_start(self, item: Allocation) -> float:
        assert item.started is not None
        return (self.snapshot.at - item.started).total_seconds()

    def _memory(self, item: Allocation, used: float, device: Device) -> Evidence:
        stat, bound = WindowStat(Signal.MEMORY_USED_BYTES, Statistic.LAST), float(self.policy.model_bytes)
        note = "the most of its devices" if len(item.devices) > 1 else ""
        return self.signals.evidence(device, stat, used, ">=" if used >= bound else "<", bound, note)

    def _activity(
        self, item: Allocation, now: SilenceNow, explanation: Explanation | None, comparison: str
    ) -> Evidence:
        """The idle time, compared with what explains it."""
        lead = item.devices[0] if item.devices else None
        own = self.model.silences[item.workload]
        bound = self.policy.min_age_seconds if explanation is None else explanation.seconds
        note = f"time without activity; {now.coverage_ratio:.0%} of its steps are known"
        if own.worked:
            note += f"; {past_text(own)}; active in {own.active_ratio:.0%} of its steps"
        return Evidence(
            signal=Signal.BUSY_RATIO.value,
            value=now.silent_seconds if explanation is not None else self._since_start(item),
            unit="seconds",
            statistic="idle_time",
            window_seconds=round(now.proven_seconds),
            comparison=comparison if explanation is not None else ">=",
            bound=float(bound),
            at=self.calendar.time_of(now.proven_step),
            promql="" if lead is None else self.snapshot.readings.query(self._recent, lead),
            note=note,
        )


def idle_unknown(subject: Subject, text: str, missing: tuple[str, ...], evidence: tuple[Evidence, ...] = ()) -> Finding:
    kind, unknown, summary = FindingKind.IDLE_UNKNOWN, Verdict.UNKNOWN, f"{text}; missing: {', '.join(missing)}"
    return conclude(subject, kind, unknown, summary, evidence=evidence, missing=missing)


def gpu_share(device: Device) -> float:
    """The share of a GPU that each Pod of the device has: the device's share of its card, by its Pods if shared."""
    share = gpu_share_ratio(device.model, device.mig_profile)
    return share / max(1, len(device.pods)) if device.shared else share
