"""Gangs that are placed in part: some Pods hold GPUs and wait for others, which the scheduler does not place.

The cluster's objects name such a gang; the silence of its GPUs confirms that it waits. A gang whose minimum is placed,
whose GPUs work, that ends, or of which a Pod has completed waits for nobody.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from gpuwatch.detect.fleet import conclude
from gpuwatch.detect.idle_verdict import Allocation, IdleJudge, gpu_share
from gpuwatch.model.cluster import Cluster, Condition, Gang, Pod
from gpuwatch.model.decision import Advice, Evidence, Family, Finding, FindingKind, Severity, Verdict
from gpuwatch.model.telemetry import Device, PodRef
from gpuwatch.profile.explanation import spoken
from gpuwatch.profile.silence import ACTIVE, UNKNOWN

CAUSES: Mapping[str, str] = {
    "resources": r"Insufficient |Too many pods|cannot allocate all claims|free ports",
    "taint": r" taint|were unschedulable",
    "topology": r"node affinity/selector|affinity rules|topology spread|requested node name",
    "volume": r"volume|pvc\(s\)|available disk|free storage",
    "gang": r"pod ?group|gang",
    "quota": r"quota|non-empty scheduling gates",
}
"""What keeps a Pod from being placed → pattern in the words of kube-scheduler 1.36 and of Volcano; `quota` also where
an admission controller such as Kueue holds it by a scheduling gate. Which of them decides, the landing shows."""

_WORDS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in CAUSES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialGang:
    """needed: Pods that have to be placed, those without accelerators included; placed: those that are. since: when a
    Pod held GPUs and another waited for the first time; None where unknown."""

    gang: Gang
    holding: tuple[Pod, ...]
    waiting: tuple[Pod, ...]
    placed: int
    needed: int
    since: datetime | None


def partial_gangs(cluster: Cluster) -> dict[str, PartialGang]:
    """Gang.id → gangs of which some Pods hold accelerators, some wait for a Node, and too few are placed."""
    members: dict[str, list[Pod]] = defaultdict(list)
    for pod in (*cluster.pods, *cluster.companions):
        members[pod.gang].append(pod)
    completed = {pod.workload for pod in cluster.pods if pod.phase == "Succeeded"}
    found = {}
    for gang in cluster.gangs:
        pods = members[gang.id]
        holds = [pod for pod in pods if pod.accelerators or pod.claims]
        waiting = tuple(pod for pod in holds if pod.phase == "Pending" and not pod.node)
        holding = tuple(pod for pod in holds if pod.phase == "Running")
        placed = sum(bool(pod.node) for pod in pods)
        needed = len(pods) if gang.min_available is None else gang.min_available
        ends = gang.workload in completed or any(pod.deleting for pod in pods)
        if waiting and holding and placed < needed and not ends:
            held, asked = _first(pod.started or pod.created for pod in holding), _first(pod.created for pod in waiting)
            found[gang.id] = PartialGang(
                gang=gang,
                holding=holding,
                waiting=waiting,
                placed=placed,
                needed=needed,
                since=max(held, asked) if held is not None and asked is not None else None,
            )
    return found


def _first(times: Iterable[datetime | None]) -> datetime | None:
    """None where any is unknown."""
    known = list(times)
    return min((at for at in known if at is not None), default=None) if None not in known else None


def causes(pods: Sequence[Pod]) -> tuple[str, ...]:
    """Which of CAUSES the scheduler names for these Pods; () where it names none."""
    said = " ".join(_said(pod.unscheduled) for pod in pods if pod.unscheduled is not None)
    return tuple(name for name, pattern in _WORDS.items() if pattern.search(said))


def _said(condition: Condition) -> str:
    # What follows is what preemption would find: the same reasons again, for other Nodes.
    return condition.message.partition(" preemption: ")[0]


def judge_partial(judge: IdleJudge | None, item: Allocation, partial: PartialGang, at: datetime) -> Finding | None:
    """None where it is not a gang that waits: too young, or its GPUs work. UNKNOWN where its GPUs' silence is not
    proven: shown, never acted on. judge: None without any history of activity.

    item: the allocation of the Pods that hold GPUs.
    """
    age = (at - partial.since).total_seconds() if partial.since is not None else None
    if age is not None and judge is not None and age < judge.policy.partial_gang_seconds:
        return None
    if judge is None or partial.since is None or age is None:
        return _finding(partial, item, at, missing=("since when its Pods wait" if age is None else "its activity",))
    away = [pod.ref for pod in partial.holding if pod.ref not in item.pods]
    if away:
        return _finding(partial, item, at, missing=(f"what {away[0]} does, which is not judged",))
    if judge.signals.video(item.devices) is not None:
        return None
    if judge.signals.recent_work(item.devices) is not None:
        # The statistic is the device's, so that it may be the work of an earlier Pod.
        earlier = age < judge.policy.recent_seconds
        return _finding(partial, item, at, missing=("whose the last work of its GPUs was",)) if earlier else None
    return _by_silence(judge, item, partial, partial.since, at)


def _by_silence(
    judge: IdleJudge, item: Allocation, partial: PartialGang, since: datetime, at: datetime
) -> Finding | None:
    policy, calendar = judge.policy, judge.calendar
    first = calendar.index_after(since)
    worked = np.flatnonzero(item.lane[first:] & ACTIVE)
    if worked.size:
        first += int(worked[-1]) + 1
        since = calendar.time_of(first)
        # It worked without the others, so for a while it may only pause.
        if (at - since).total_seconds() < policy.min_silence_seconds:
            return None
    missing = judge.blind(item, judge.model.silence(item.workload, item.lane))
    known = float(np.mean(item.lane[first:] != UNKNOWN)) if first < calendar.steps else 0.0
    if not missing and known < policy.min_coverage_ratio:
        missing = (f"activity since {since:%Y-%m-%d %H:%M}: {known:.0%} of it is known",)
    if missing:
        return _finding(partial, item, at, missing=missing)
    opinion = judge.signals.second_opinion(item.devices, (at - since).total_seconds(), soonest=True)
    if not opinion.agrees:
        lacks = opinion.missing if opinion.agrees is None else (f"silence: {opinion.contradiction}",)
        advice = Advice.FIX_MONITORING if opinion.agrees is None else Advice.NONE
        return replace(_finding(partial, item, at, missing=lacks, evidence=opinion.evidence), advice=advice)
    found = _finding(partial, item, at, evidence=opinion.evidence)
    return replace(
        found,
        summary=f"{found.summary}; its GPUs do nothing meanwhile",
        verdict=Verdict.IDLE,
        severity=Severity.WARNING,
        advice=Advice.RECLAIM,
        # Two sources agree that it waits: the scheduler, and the silence of engine and second signal.
        confidence_ratio=round(0.95 * known, 3),
        since=since,
        gpu_hours=round(_gpu_hours(partial, item.devices, since, at), 2),
    )


def _gpu_hours(partial: PartialGang, devices: Sequence[Device], since: datetime, at: datetime) -> float:
    began: dict[PodRef, datetime] = {pod.ref: pod.started or pod.created or since for pod in partial.holding}
    return sum(
        gpu_share(device) * ((at - max(since, *(began[ref] for ref in device.pods if ref in began))) / timedelta(hours=1))
        for device in devices
    )


def _finding(
    partial: PartialGang,
    item: Allocation,
    at: datetime,
    *,
    missing: tuple[str, ...] = (),
    evidence: tuple[Evidence, ...] = (),
) -> Finding:
    for_ = f" for {spoken((at - partial.since).total_seconds())}" if partial.since is not None else ""
    kept_by = causes(partial.waiting)
    why = f", kept from it by {' or '.join(kept_by)}, as its scheduler says" if kept_by else ""
    lacks = f"; missing: {', '.join(missing)}" if missing else ""
    nodes = {device.node for device in item.devices}
    found = conclude(
        item.subject,
        FindingKind.PARTIAL_GANG,
        Verdict.UNKNOWN,
        f"{partial.placed} of the {partial.needed} Pods that it needs are placed and {len(partial.waiting)} wait for a "
        f"Node{for_}{why}{lacks}",
        family=Family.IDLE,
        since=partial.since,
        missing=missing,
        evidence=(*_placement(partial), *evidence),
        node=nodes.pop() if len(nodes) == 1 else None,
    )
    return replace(
        found,
        pods=(*item.pods, *(pod.ref for pod in partial.waiting)),
        devices=tuple(device.id for device in item.devices),
    )


def _placement(partial: PartialGang) -> Iterator[Evidence]:
    yield Evidence(
        signal="placed_pods",
        value=float(partial.placed),
        unit="Pods",
        comparison="<",
        bound=float(partial.needed),
        note=f"the gang is {partial.gang.framework}'s, by {partial.gang.recognised_by}",
    )
    pod = next((pod for pod in partial.waiting if pod.unscheduled is not None), None)
    if pod is not None and pod.unscheduled is not None:
        said = pod.unscheduled
        note = f"{pod.ref}, by {pod.scheduler or 'its scheduler'}: {said.message}"
        yield Evidence(signal="pod_scheduled", value=said.reason, at=said.since, note=note)
