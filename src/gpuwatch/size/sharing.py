"""Workloads that could share a GPU: partners of one namespace, for time-slicing or MPS.

Profiles do not show which workloads work at the same time, so their demands are added up. Memory is not isolated, and
one process's fault ends all of them: sharing is never advised across Namespaces, to gangs, to services, or to Pods with
several GPUs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from gpuwatch.facts.model.cluster import Sharing
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.sizing import EvidenceTier, MemoryNeed, SpeedEstimate
from gpuwatch.facts.model.workload_profile import WorkloadKey, WorkloadProfile
from gpuwatch.size.policy import AdvicePolicy

# What partners on one device may need together: 0.9 of the framebuffer, with one more CUDA context each; 0.8 of the
# time when they take turns (time-slicing); 0.8 of the bandwidth, its practical peak, and all SMs when they run side by
# side (MPS).
SHARED_MEMORY_RATIO, SHARED_CONTEXT_BYTES = 0.9, 1.0 * 2**30
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
    memory = sum(one.peak_bytes + SHARED_CONTEXT_BYTES for one in group)
    if memory > SHARED_MEMORY_RATIO * capacity_bytes:
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
