"""The options of one workload: every target with its speed, its price and its vetoes.

Sharing a GPU by time-slicing or MPS is an option for partners of one namespace. Profiles do not show which workloads
work at the same time, so their demands are added up. Memory is not isolated, and one process's fault ends all of them:
sharing is never advised across Namespaces, to gangs, to services, or to Pods with several GPUs.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeAlias

from gpuwatch.account.money import run_time_ratio
from gpuwatch.facts.catalog.gpus import Gpu
from gpuwatch.facts.model.cluster import Sharing
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.sizing import EvidenceTier, MemoryNeed, Option, SpeedEstimate, Target, TargetKind
from gpuwatch.facts.model.telemetry import Vendor
from gpuwatch.facts.model.workload_profile import WorkloadKey, WorkloadProfile
from gpuwatch.size.capability import Capability, ratios
from gpuwatch.size.facts import Facts
from gpuwatch.size.policy import AdvicePolicy
from gpuwatch.size.ready import Ready, usable_bytes, widened
from gpuwatch.size.speed import predict_speeds
from gpuwatch.size.targets import candidates, gpu_of, shared
from gpuwatch.size.vetoes import VetoCase, host_share, veto

# Highest predicted activity when a Pod gets fewer GPUs: above it the pauses of one GPU cannot hold the work of another.
_FEWER_BUSY_RATIO = 0.8
# Widens the predicted slowdown of young profiles by 1 + multiplier / days of samples, as the Vertical Pod Autoscaler
# widens its upper bound.
_CONFIDENCE_MULTIPLIER = 1.0
# What partners on one device may need together: 0.9 of the framebuffer, with one more CUDA context each; 0.8 of the
# time when they take turns (time-slicing); 0.8 of the bandwidth, its practical peak, and all SMs when they run side by
# side (MPS).
_SHARED_MEMORY_RATIO, _SHARED_CONTEXT_BYTES = 0.9, 1.0 * 2**30
_SHARED_BUSY_RATIO, _SHARED_DRAM_RATIO = 0.8, 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharer:
    """A workload that could share: mean activity from 0 to 1, and peak framebuffer. None: not measured."""

    key: WorkloadKey
    busy_ratio: float
    sm_active_ratio: float | None
    dram_active_ratio: float | None
    peak_bytes: float
    tier: EvidenceTier


SharingGroup: TypeAlias = tuple[Sharing, Sharer, Sequence[Sharer]]
"""How a workload could share a GPU, the workload, and the others."""


def sharer(profile: WorkloadProfile, memory: MemoryNeed, tier: EvidenceTier) -> Sharer | None:
    """None where it cannot share: a slice, several GPUs or Pods, elastic memory, or GPU_UTIL as the only activity."""
    busy = profile.mean("busy_ratio")
    alone = not profile.key.mig_profile and profile.gpus_per_pod == 1 and ceil(profile.pods - 1e-6) <= 1
    if not alone or busy is None or memory.elastic or tier is EvidenceTier.UTILISATION:
        return None
    return Sharer(
        key=profile.key,
        busy_ratio=busy,
        sm_active_ratio=profile.mean("sm_active_ratio"),
        dram_active_ratio=profile.mean("dram_active_ratio"),
        peak_bytes=memory.peak_bytes,
        tier=tier,
    )


def groups(
    sharers: Iterable[Sharer], capacity_bytes: float, sharing: Sharing, policy: AdvicePolicy
) -> tuple[tuple[Sharer, ...], ...]:
    """Groups of two or more that fit on one device, each sharer in at most one; the busiest are placed first.

    sharers: of one GPU model. capacity_bytes: the device's nominal framebuffer.
    """
    by_namespace = grouped(sharers, lambda one: one.key.namespace)
    found: list[tuple[Sharer, ...]] = []
    for namespace in sorted(by_namespace):
        bins: list[list[Sharer]] = []
        for one in sorted(by_namespace[namespace], key=lambda item: (-item.busy_ratio, item.key)):
            fitting = (group for group in bins if fits((*group, one), capacity_bytes, sharing, policy))
            group = next(fitting, None)
            if group is None:
                bins.append([one])
            else:
                group.append(one)
        found += [tuple(group) for group in bins if len(group) > 1]
    return tuple(found)


def fits(group: Sequence[Sharer], capacity_bytes: float, sharing: Sharing, policy: AdvicePolicy) -> bool:
    """Whether they fit on one device together. An unmeasured need does not fit."""
    if len(group) > policy.max_partners:
        return False
    memory = sum(one.peak_bytes + _SHARED_CONTEXT_BYTES for one in group)
    if memory > _SHARED_MEMORY_RATIO * capacity_bytes:
        return False
    if sharing is Sharing.TIME_SLICING:
        return sum(one.busy_ratio for one in group) <= _SHARED_BUSY_RATIO
    sm = [one.sm_active_ratio for one in group]
    dram = [one.dram_active_ratio for one in group]
    return (
        all(value is not None for value in (*sm, *dram))
        and sum(value or 0.0 for value in sm) <= 1.0
        and sum(value or 0.0 for value in dram) <= _SHARED_DRAM_RATIO
    )


def shared_speed(one: Sharer, partners: Sequence[Sharer], sharing: Sharing) -> SpeedEstimate:
    """Its speed beside them, relative to alone.

    At worst, all partners work whenever it does: each of its turns waits for one turn of each partner that still has
    work. Likely, they work independently, and it waits for g × Σ of the others. At best, they never work at the same
    time. MPS runs them side by side where SMs are free; no measurement shows how far, so the bounds stay.
    """
    g, others = one.busy_ratio, [partner.busy_ratio for partner in partners]
    worst = 1.0 + sum(min(g, busy) for busy in others)
    likely = 1.0 + g * sum(others)
    tier = max([one.tier, *(partner.tier for partner in partners)], key=list(EvidenceTier).index)
    how = "taking turns" if sharing is Sharing.TIME_SLICING else "side by side"
    return SpeedEstimate(
        low_ratio=1.0 / worst,
        likely_ratio=1.0 / likely,
        high_ratio=1.0,
        tier=tier,
        basis=(
            f"Its engine is busy {g:.0%} of the time and its partners' {sum(others):.0%} in all, {how}; the low end "
            "assumes that all work at the same time, because profiles do not show when they work."
        ),
    )


def partners(ready: Mapping[WorkloadKey, Ready], facts: Facts) -> Mapping[WorkloadKey, Sequence[SharingGroup]]:
    by_gpu: dict[Gpu, list[Sharer]] = defaultdict(list)
    for key, item in ready.items():
        one = sharer(item.profile, item.memory, item.tier)
        lone = not facts.serves(key) and facts.gang_pods(item.profile) < 2 and facts.alive(item.profile)
        if one is not None and lone and item.gpu.vendor is Vendor.NVIDIA:
            by_gpu[item.gpu].append(one)
    found: dict[WorkloadKey, list[SharingGroup]] = defaultdict(list)
    for gpu, sharers in sorted(by_gpu.items(), key=lambda each: each[0].name):
        for sharing in (Sharing.MPS, Sharing.TIME_SLICING):
            for group in groups(sharers, gpu.memory_bytes, sharing, facts.policy):
                for one in group:
                    found[one.key].append((sharing, one, [other for other in group if other is not one]))
    return found


def options_of(item: Ready, sharings: Sequence[SharingGroup], facts: Facts) -> tuple[Option, ...]:
    """The present target, then all others, with their vetoes."""
    targets = candidates(item.profile, item.now, item.gpu, facts)
    found = [item.current]
    for target, (speed, unknown) in zip(targets, _speeds(item, targets, facts), strict=True):
        found.append(_option(item, target, speed, usable_bytes(target, facts), facts, unknown))
    for sharing, one, others in sharings:
        target = shared(item.now, sharing, [other.key for other in others], facts)
        taken = sum(other.peak_bytes + _SHARED_CONTEXT_BYTES for other in others)
        left = _SHARED_MEMORY_RATIO * item.gpu.memory_bytes - taken
        found.append(_option(item, target, shared_speed(one, others, sharing), left, facts))
    return tuple(found)


def _speeds(item: Ready, targets: Sequence[Target], facts: Facts) -> list[tuple[SpeedEstimate, str]]:
    """(speed, why it is unknown or '') of each target."""
    here = facts.capability(item.gpu, item.key.mig_profile)
    problems: dict[int, str] = {}
    there: dict[int, Capability] = {}
    for index, target in enumerate(targets):
        if target.kind is TargetKind.FEWER:
            continue
        offered = facts.capability(gpu_of(target), target.mig_profile)
        try:
            ratios(here, offered)
        except ValueError as unknown:
            problems[index] = str(unknown)
        else:
            there[index] = offered
    envelope = facts.book.envelopes.get(item.gpu.name)
    predicted = predict_speeds(item.profile, here, tuple(there.values()), envelope)
    speeds = dict(zip(there, predicted, strict=True))
    found = []
    for index, target in enumerate(targets):
        fewer = target.kind is TargetKind.FEWER
        speed = fewer_speed(item.profile, item.now, target, item.tier) if fewer else speeds.get(index)
        problem = "" if speed is not None else problems.get(index, "nothing was measured")
        nothing = {"low_ratio": 0.0, "likely_ratio": 0.0, "high_ratio": 0.0}
        found.append((speed or SpeedEstimate(**nothing, tier=item.tier, basis=f"Not known: {problem}."), problem))
    return found


def fewer_speed(profile: WorkloadProfile, now: Target, target: Target, tier: EvidenceTier) -> SpeedEstimate:
    """Speed when each remaining GPU does the work of several. At worst, and likely, they worked at the same time, so a
    window with activity g takes (1 − g) + g × n / n′. At best the work of one fits into the pauses of another, up to
    the bound of activity."""
    factor = now.gpus_per_pod / target.gpus_per_pod
    weight = slow = fast = 0.0
    for cell in profile.cells:
        g, w = cell.busy_ratio, cell.weight_seconds
        weight += w
        slow += w * ((1.0 - g) + g * factor)
        fast += w * max(1.0, g * factor / _FEWER_BUSY_RATIO)
    worst, best = max(slow, fast) / weight, min(slow, fast) / weight
    return SpeedEstimate(
        low_ratio=1.0 / worst,
        likely_ratio=1.0 / worst,
        high_ratio=1.0 / best,
        tier=tier,
        basis=(
            f"Each GPU would do the work of {factor:g}; the engine was busy "
            f"{profile.mean('busy_ratio') or 0.0:.0%} of the time on each."
        ),
    )


def _option(
    item: Ready, target: Target, speed: SpeedEstimate, offered_bytes: float, facts: Facts, unknown: str = ""
) -> Option:
    if not unknown:
        speed = widened(speed, item.confidence_days, _CONFIDENCE_MULTIPLIER)
    case = VetoCase(
        item=item, target=target, speed=speed, offered_bytes=offered_bytes, facts=facts, speed_unknown=unknown
    )
    longer = 1.0 if unknown else run_time_ratio(speed, ends=facts.ends(item.key))
    share = target.gpu_share_ratio * target.gpus_per_pod
    # Another model's Node has its own host, with a veto of its own.
    host = host_share(item.profile, facts) if target.kind is not TargetKind.MODEL else None
    held_gpus = share if host is None or not host.pods else max(share, host.gpus)
    hours = item.pod_hours * longer
    cost = None if target.price_per_hour is None else target.price_per_hour * held_gpus / share * hours
    before = item.current.projected_cost_per_week
    other = target.gpu_model != item.now.gpu_model
    held = hours * held_gpus
    return Option(
        target=target,
        speed=speed,
        memory_bytes=max(offered_bytes, 0.0),
        vetoes=veto(case),
        projected_cost_per_week=cost,
        projected_saving_per_week=None if cost is None or before is None else before - cost,
        projected_gpu_hours_per_week=held,
        projected_saving_gpu_hours_per_week=item.gpu_hours - (0.0 if other else held),
    )
