"""The options of one workload: every target with its speed, its price and its vetoes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuwatch.account.money import run_time_ratio
from gpuwatch.facts.catalog.gpus import find_gpu
from gpuwatch.facts.model.cluster import Sharing
from gpuwatch.facts.model.sizing import EvidenceTier, Option, SpeedEstimate, Target, TargetKind
from gpuwatch.facts.model.telemetry import Vendor
from gpuwatch.facts.model.workload_profile import WorkloadKey, WorkloadProfile
from gpuwatch.size.capability import Capability, ratios
from gpuwatch.size.facts import Facts
from gpuwatch.size.ready import Ready, usable_bytes, widened
from gpuwatch.size.sharing import SHARED_CONTEXT_BYTES, SHARED_MEMORY_RATIO, Sharer, groups, shared_speed, sharer
from gpuwatch.size.speed import predict_speeds
from gpuwatch.size.targets import candidates, gpu_of, shared
from gpuwatch.size.vetoes import VetoCase, host_share, veto

# Highest predicted activity when a Pod gets fewer GPUs: above it the pauses of one GPU cannot hold the work of another.
_FEWER_BUSY_RATIO = 0.8
# Widens the predicted slowdown of young profiles by 1 + multiplier / days of samples, as the Vertical Pod Autoscaler
# widens its upper bound.
_CONFIDENCE_MULTIPLIER = 1.0


def partners(ready: Mapping[WorkloadKey, Ready], facts: Facts) -> dict[WorkloadKey, tuple["SharingGroup", ...]]:
    by_model: dict[str, list[Sharer]] = defaultdict(list)
    for key, item in ready.items():
        one = sharer(item.profile, item.memory, item.tier)
        lone = not facts.serves(key) and facts.gang_pods(item.profile) < 2 and facts.alive(item.profile)
        if one is not None and lone and item.gpu.vendor is Vendor.NVIDIA:
            by_model[item.gpu.name].append(one)
    found: dict[WorkloadKey, list[SharingGroup]] = defaultdict(list)
    for model, sharers in sorted(by_model.items()):
        gpu = find_gpu(model)
        for sharing in (Sharing.MPS, Sharing.TIME_SLICING):
            for group in groups(sharers, gpu.memory_bytes if gpu is not None else 0.0, sharing, facts.policy):
                for one in group:
                    others = tuple(other for other in group if other is not one)
                    found[one.key].append(SharingGroup(one, others, sharing))
    return {key: tuple(items) for key, items in found.items()}


@dataclass(frozen=True, slots=True)
class SharingGroup:
    """A workload and the others with which it could share a GPU."""

    member: Sharer
    others: tuple[Sharer, ...]
    sharing: Sharing


def options_of(item: Ready, sharings: Sequence[SharingGroup], facts: Facts) -> tuple[Option, ...]:
    """The present target, then all others, with their vetoes."""
    targets = candidates(item.profile, item.now, item.gpu, facts)
    found = [item.current]
    for target, (speed, unknown) in zip(targets, _speeds(item, targets, facts), strict=True):
        found.append(_option(item, target, speed, usable_bytes(target, facts), facts, unknown))
    for group in sharings:
        target = shared(item.now, group.sharing, [other.key for other in group.others], facts)
        taken = sum(other.peak_bytes + SHARED_CONTEXT_BYTES for other in group.others)
        left = SHARED_MEMORY_RATIO * item.gpu.memory_bytes - taken
        found.append(_option(item, target, shared_speed(group.member, group.others, group.sharing), left, facts))
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
        speed = speeds.get(index)
        if target.kind is TargetKind.FEWER:
            speed = fewer_speed(item.profile, item.now, target, item.tier)
        problem = "" if speed is not None else problems.get(index, "nothing was measured")
        no_speed = SpeedEstimate(
            low_ratio=0.0, likely_ratio=0.0, high_ratio=0.0, tier=item.tier, basis=f"Not known: {problem}."
        )
        found.append((speed or no_speed, problem))
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
        profile=item.profile,
        now=item.now,
        now_gpu=item.gpu,
        target=target,
        target_gpu=gpu_of(target),
        speed=speed,
        memory=item.memory,
        offered_bytes=offered_bytes,
        present_bytes=item.current.memory_bytes,
        facts=facts,
        speed_unknown=unknown,
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
