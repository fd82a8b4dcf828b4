"""Gangs that are placed in part: some Pods hold GPUs and wait for others, which the scheduler does not place.

The cluster's objects name such a gang; the silence of its GPUs confirms that it waits.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from gpuwatch.facts.frameworks.schedulers import KAI, KAI_MINIMUM
from gpuwatch.facts.model.cluster import Cluster, Pod
from gpuwatch.facts.model.decision import Advice, Evidence, Finding, FindingKind, Severity, Verdict
from gpuwatch.judge.fleet import conclude
from gpuwatch.judge.idle.explanation import time_text
from gpuwatch.judge.idle.silence import ACTIVE, UNKNOWN
from gpuwatch.judge.idle.verdict import Allocation, IdleJudge, gpu_share

CAUSES: Mapping[str, str] = {
    "resources": r"Insufficient (?!unused quota|quota)|Too many pods|cannot allocate all claims|free ports",
    "taint": r" taint|were unschedulable",
    "topology": r"node affinity/selector|affinity rules|topology spread|requested node name",
    "volume": r"volume|pvc\(s\)|available disk|free storage",
    "gang": r"pod ?group|gang",
    "quota": r"quota|non-empty scheduling gates",
}
"""What keeps a Pod from being placed → pattern in the words of kube-scheduler 1.36 (its plugins' reasons), Volcano
and Kueue. `quota` also where an admission controller such as Kueue holds it by a scheduling gate."""


@dataclass(frozen=True, slots=True)
class PartialGang:
    """needed: Pods that have to be placed, those without accelerators included; placed: those that are; unmade: those
    that do not exist. since: when the last one was placed and another waited. said: the reason in the gang's object.
    advice: a setting that would place all of them or none."""

    holding: tuple[Pod, ...]
    waiting: tuple[Pod, ...]
    placed: int
    needed: int
    unmade: int
    since: datetime
    said: str = ""
    advice: str = ""


def partial_gangs(cluster: Cluster) -> dict[str, PartialGang]:
    """Gang.id → gangs in which some Pods hold accelerators and too few are placed; those whose times are known."""
    members: dict[str, list[Pod]] = defaultdict(list)
    every = (*cluster.pods, *cluster.companions)
    for pod in every:
        members[pod.gang].append(pod)
    completed = {pod.workload for pod in every if pod.phase == "Succeeded"}
    failed = {pod.workload for pod in every if pod.phase == "Failed"}
    annotations = {workload.id: workload.annotations for workload in cluster.workloads}
    found = {}
    for gang in cluster.gangs:
        pods = members[gang.id]
        holds = [pod for pod in pods if pod.accelerators or pod.claims]
        waiting = tuple(pod for pod in holds if pod.phase == "Pending" and not pod.node)
        holding = tuple(pod for pod in holds if pod.phase == "Running")
        placed = sum(bool(pod.node) for pod in pods)
        needed = len(pods) if gang.min_available is None else gang.min_available
        ends = gang.workload in completed or any(pod.deleting for pod in pods)
        held = [at for pod in holding if (at := pod.started or pod.created)]
        asked = [pod.created for pod in waiting if pod.created]
        known = len(held) == len(holding) and len(asked) == len(waiting)
        unmade = max(0, needed - len(pods))
        # Pods that start may have others made after them, and one that failed is made again.
        stands = gang.workload not in failed and all(pod.phase == "Running" for pod in pods)
        if (waiting or (unmade and stands)) and holding and placed < needed and known and not ends:
            since = max(*held, min(asked, default=held[0]))
            advice = ""
            by_kai = any(pod.scheduler in KAI.schedulers for pod in holds)
            if by_kai and KAI_MINIMUM not in annotations.get(gang.workload, {}):
                advice = f"KAI places {gang.workload} Pod by Pod; {KAI_MINIMUM}={needed} on it places all or none"
            found[gang.id] = PartialGang(holding, waiting, placed, needed, unmade, since, gang.unscheduled, advice)
    return found


def causes(pods: Sequence[Pod], own: str = "") -> tuple[str, ...]:
    """Which of CAUSES the scheduler names for these Pods; () where it names none. own: `PartialGang.said`."""
    # After 'preemption:' the scheduler repeats its reasons.
    said = " ".join((*(pod.unscheduled.partition(" preemption: ")[0] for pod in pods), own.partition(": ")[2]))
    return tuple(name for name, pattern in CAUSES.items() if re.search(pattern, said, re.IGNORECASE))


def judge_partial(judge: IdleJudge | None, item: Allocation, partial: PartialGang, at: datetime) -> Finding | None:
    """None where it is not a gang that waits: too young, or its GPUs work. UNKNOWN where its GPUs' silence is not
    proven: shown, never acted on. judge: None without any history of activity. item: the Pods that hold GPUs.
    """
    since, age = partial.since, (at - partial.since).total_seconds()
    if judge is None:
        return _shown(item, partial, at, ("activity",))
    policy, away = judge.policy, not {pod.ref for pod in partial.holding}.issubset(item.pods)
    if away or age < policy.partial_gang_seconds or judge.signals.video(item.devices) is not None:
        return None
    if judge.signals.recent_work(item.devices) is not None:
        # The statistic is the device's, so that it may be the work of an earlier Pod.
        whose = ("which Pod did the last work of its GPUs",)
        return _shown(item, partial, at, whose) if age < policy.recent_seconds else None
    first = judge.calendar.index_after(since)
    worked = np.flatnonzero(item.lane[first:] & ACTIVE)
    if worked.size:
        first += int(worked[-1]) + 1
        since = judge.calendar.time_of(first)
        # It worked without the missing Pods, so a short silence may be a pause.
        if (at - since).total_seconds() < policy.min_silence_seconds:
            return None
    steps = item.lane[first:] != UNKNOWN
    known = float(np.mean(steps)) if steps.size else 0.0
    missing = judge.missing_data(item, judge.model.silence(item.workload, item.lane))
    if known < policy.min_coverage_ratio:
        missing = (*missing, f"activity since {since:%Y-%m-%d %H:%M}: {known:.0%} of it is known")
    opinion = judge.signals.second_opinion(item.devices, (at - since).total_seconds())
    contradicted = (f"silence: {opinion.contradiction}",) if opinion.contradiction else ()
    shown = _shown(item, partial, at, (*missing, *contradicted, *opinion.missing), opinion.evidence)
    if shown.missing:
        return replace(shown, advice=Advice.FIX_MONITORING if opinion.missing else Advice.NONE)
    return replace(
        shown,
        summary=f"{shown.summary}; its GPUs do nothing meanwhile",
        verdict=Verdict.IDLE,
        severity=Severity.WARNING,
        advice=Advice.RECLAIM,
        # Two sources agree that it waits: the scheduler, and the silence of the engine and a second signal.
        confidence_ratio=round(0.95 * known, 3),
        since=since,
        # A release ends those that wait, too.
        pods=(*item.pods, *(pod.ref for pod in partial.waiting)),
        gpu_hours=round((at - since) / timedelta(hours=1) * sum(map(gpu_share, item.devices)), 2),
    )


def _shown(
    item: Allocation, partial: PartialGang, at: datetime, missing: tuple[str, ...], more: tuple[Evidence, ...] = ()
) -> Finding:
    kept_by = " or ".join(causes(partial.waiting, partial.said))
    text = f"{partial.placed} of the {partial.needed} Pods that it needs are placed; "
    text += f"{len(partial.waiting) + partial.unmade} not placed for {time_text((at - partial.since).total_seconds())}"
    text += f" ({partial.unmade} never created)" if partial.unmade else ""
    text += f"; its scheduler's reason: {kept_by}" if kept_by else ""
    text += f"; {partial.advice}" if partial.advice else ""
    waits = [f"{pod.ref}: {pod.unscheduled}" for pod in partial.waiting[:1] if pod.unscheduled]
    note = "; ".join((*waits, *([partial.said] if partial.said else [])))
    placed, bound = float(partial.placed), float(partial.needed)
    found = conclude(
        item.subject,
        FindingKind.PARTIAL_GANG,
        Verdict.UNKNOWN,
        f"{text}; missing: {', '.join(missing)}" if missing else text,
        since=partial.since,
        missing=missing,
        evidence=(Evidence(signal="placed_pods", value=placed, comparison="<", bound=bound, note=note), *more),
    )
    return replace(found, pods=item.pods, devices=tuple(device.id for device in item.devices))
