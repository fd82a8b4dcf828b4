"""The outcome of a recommendation: whether it was applied, whether it kept its speed, and what it saved. Pure.

Evidence of speed, the strongest first: run times of jobs before and after; and, for jobs that stay on their GPU model,
the share of time in which the engine is idle. The host's part of the work takes as long as before, so this share
shrinks as the work on the GPU gets slower. Out of memory is a miss at any speed. Without evidence the verdict is
UNKNOWN.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from statistics import median
from typing import TypeAlias

from gpuwatch.facts.catalog.gpus import gpu_share_ratio
from gpuwatch.facts.frameworks import ends, kind_name
from gpuwatch.facts.model.cluster import Cluster, Pod
from gpuwatch.facts.model.sizing import Outcome, OutcomeVerdict, Recommendation, Target, TargetKind
from gpuwatch.facts.model.workload_profile import ProfileBook, WorkloadKey, WorkloadProfile
from gpuwatch.size.policy import AdvicePolicy, rounded_apart

# Below this share of idle time before, measurement noise hides the change: 0.2 ± 0.01 is already 5 %.
_MIN_IDLE_RATIO = 0.2
_MIN_RUNS = 2


Run: TypeAlias = tuple[datetime, datetime]
"""When a completed run of a job started and ended."""


def judge(
    given: Recommendation,
    book: ProfileBook,
    at: datetime,
    policy: AdvicePolicy,
    *,
    before: WorkloadProfile | None = None,
    cluster: Cluster | None = None,
    runs: Sequence[Run] = (),
    currency: str | None = None,
) -> Outcome:
    """Compare a recommendation with what happened since.

    given: its `options` are not needed. before: the profile at that time; else the book's profile of the old key, where
    it differs from the new key. cluster: needed to see whether Pods share a device now. runs: completed runs of the
    workload, before and after. currency: of sums now; savings from advice in another currency are left out. None: that
    of the advice.
    """
    found = Outcome(
        key=given.key,
        recommended_at=given.at,
        target=given.chosen.target,
        predicted=given.chosen.speed,
        verdict=OutcomeVerdict.WAITING,
    )
    after = book.profiles.get(_key_on(given.key, given.chosen.target))
    applied_at = _applied_at(given, after, cluster)
    if applied_at is None:
        return replace(found, reason=f"No Pod of the workload has run on {given.chosen.target.name} since the advice.")
    same_profile = _key_on(given.key, given.chosen.target) == given.key
    if before is None and not same_profile:
        before = book.profiles.get(given.key)
    measured, how = _speed(given, applied_at, before, None if same_profile else after, runs, policy)
    found = replace(found, applied_at=applied_at, measured_speed_ratio=measured, reason=how)
    found = _with_savings(found, given, after, at)
    if currency is not None and currency != given.currency:
        found = replace(found, saved_cost=None)
    if measured is None:
        early = after is None or after.observed_seconds < policy.min_observed_hours * 3600
        return replace(found, verdict=OutcomeVerdict.WAITING if early else OutcomeVerdict.UNKNOWN)
    least = min(given.target_speed_ratio, given.chosen.speed.low_ratio)
    verdict, held = (OutcomeVerdict.HIT, "at least") if measured >= least else (OutcomeVerdict.MISS, "less than")
    share, promised = rounded_apart(100 * measured, 100 * least, digits=0)
    full = _full(after, same_profile)
    reason = f"{how} its speed is {share} % of the speed before, {held} the promised {promised} %{full}."
    return replace(found, verdict=verdict, reason=reason)


def _key_on(key: WorkloadKey, target: Target) -> WorkloadKey:
    return replace(key, gpu_model=target.gpu_model, mig_profile=target.mig_profile)


def _applied_at(given: Recommendation, after: WorkloadProfile | None, cluster: Cluster | None) -> datetime | None:
    """When the first Pod after the advice ran as advised; None where none did."""
    target = given.chosen.target
    if target.kind is TargetKind.SHARED:
        return min((start for pod in _sharing_pods(given, cluster) if (start := pod.created)), default=None)
    if after is None or after.last_seen <= given.at:
        return None
    if target.kind is TargetKind.FEWER and after.gpus_per_pod != target.gpus_per_pod:
        return None
    started = [run.first_seen for run in after.runs if run.first_seen > given.at]
    if started:
        return min(started)
    return after.first_seen if after.first_seen > given.at else None


def _sharing_pods(given: Recommendation, cluster: Cluster | None) -> list[Pod]:
    """Its Pods created since the advice, on Nodes that share as advised."""
    if cluster is None:
        return []
    sharing = {node.name for node in cluster.nodes if node.sharing is given.chosen.target.sharing}
    return [
        pod
        for pod in cluster.pods
        if pod.workload == given.key.workload and pod.node in sharing and pod.created and pod.created > given.at
    ]


def _speed(
    given: Recommendation,
    applied_at: datetime,
    before: WorkloadProfile | None,
    after: WorkloadProfile | None,
    runs: Sequence[Run],
    policy: AdvicePolicy,
) -> tuple[float | None, str]:
    """Measured speed relative to before, and its source or why it is unknown."""
    measured, why = _speed_of_runs(applied_at, runs)
    if measured is not None:
        return measured, why
    if not ends(given.key.workload):
        return None, (
            f"A {kind_name(given.key.workload)} works on demand, so its activity does not tell its speed; compare the "
            "application's own metrics."
        )
    if given.chosen.target.gpu_model != given.key.gpu_model:
        return None, f"{why} Its host changed with the GPU, so times without GPU work cannot be compared."
    if before is None or after is None:
        return None, f"{why} No profile is known of the time {'before' if before is None else 'after'} the change."
    for one in (before, after):
        if one.observed_seconds < policy.min_observed_hours * 3600:
            measured, needed = one.observed_seconds / 3600, policy.min_observed_hours
            return None, f"{why} {measured:.1f} h were measured on {one.key.gpu_model}; {needed:g} h are needed."
        if one.coverage_ratio < policy.min_coverage_ratio:
            return None, f"{why} Only {one.coverage_ratio:.0%} of its time was measured."
    if before.coarse_busy or after.coarse_busy:
        return None, f"{why} GPU utilisation is too coarse to tell how long the engine was idle."
    idle_before = 1.0 - (before.mean("busy_ratio") or 0.0)
    idle_after = 1.0 - (after.mean("busy_ratio") or 0.0)
    if idle_before < _MIN_IDLE_RATIO:
        least = f"at least {_MIN_IDLE_RATIO:.0%} is needed to see a change"
        return None, f"{why} Its engine was idle {idle_before:.0%} of the time before; {least}."
    return idle_after / idle_before, (
        f"Its engine was idle {idle_before:.0%} of the time before and {idle_after:.0%} after; the host's part of the "
        "work takes as long as before, so"
    )


def _speed_of_runs(applied_at: datetime, runs: Sequence[Run]) -> tuple[float | None, str]:
    """Median run time before over median run time after, of completed runs."""
    earlier = [_hours(*run) for run in runs if run[1] <= applied_at and _hours(*run) > 0]
    later = [_hours(*run) for run in runs if run[0] >= applied_at and _hours(*run) > 0]
    if len(earlier) < _MIN_RUNS or len(later) < _MIN_RUNS:
        return None, f"{len(earlier)} completed runs before and {len(later)} after are too few to compare."
    return median(earlier) / median(later), (
        f"The median of {len(earlier)} runs before took {median(earlier):.2f} h, that of {len(later)} after "
        f"{median(later):.2f} h;"
    )


def _hours(started: datetime, ended: datetime) -> float:
    return (ended - started).total_seconds() / 3600


def _full(after: WorkloadProfile | None, same_profile: bool) -> str:
    if after is None or same_profile:
        return ""
    fills = [run.peak_bytes / run.capacity_bytes for run in after.runs if run.peak_bytes and run.capacity_bytes]
    return f"; its framebuffer was filled to {max(fills):.0%}" if fills and max(fills) >= 0.95 else ""


def _with_savings(found: Outcome, given: Recommendation, after: WorkloadProfile | None, at: datetime) -> Outcome:
    """Adds the savings since it was applied: GPU-hours of the same work before, less those on the target. One hour of a
    job on the target equals its speed (measured, else likely) in hours of before; for work without an end, one hour."""
    now, target = given.current.target, given.chosen.target
    hours = _pod_hours(found, target, after, at)
    if hours is None:
        return found
    speed = found.measured_speed_ratio if found.measured_speed_ratio is not None else given.chosen.speed.likely_ratio
    worth = speed if ends(given.key.workload) else 1.0
    there = target.gpu_share_ratio * target.gpus_per_pod if target.gpu_model == now.gpu_model else 0.0
    gpu_hours = hours * (worth * now.gpu_share_ratio * now.gpus_per_pod - there)
    saved = None
    if now.price_per_hour is not None and target.price_per_hour is not None:
        saved = hours * (worth * now.price_per_hour - target.price_per_hour)
    return replace(found, saved_gpu_hours=gpu_hours, saved_cost=saved)


def _pod_hours(found: Outcome, target: Target, after: WorkloadProfile | None, at: datetime) -> float | None:
    """Hours that its Pods ran as advised; None where the profile cannot separate them."""
    applied_at = found.applied_at
    if after is None or applied_at is None or target.kind is TargetKind.SHARED:
        return None
    per_pod = gpu_share_ratio(target.gpu_model, target.mig_profile) * target.gpus_per_pod
    held = sum(day.allocated_gpu_hours for day in after.days if applied_at.date() < day.day <= at.date())
    # FEWER keeps the same profile, so the day of the change has hours from before; other kinds have a new profile.
    first = sum(day.allocated_gpu_hours for day in after.days if day.day == applied_at.date())
    left = 24.0 - applied_at.hour - applied_at.minute / 60
    share = left / 24.0 if target.kind is TargetKind.FEWER else 1.0
    return (held + first * share) / per_pod
