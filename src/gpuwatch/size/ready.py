"""The gates: what has to be known of a workload before its options are compared."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from gpuwatch.account.money import pod_hours_per_week
from gpuwatch.facts.catalog.gpus import Gpu, find_gpu
from gpuwatch.facts.frameworks.keys import TARGET_SPEED, stated
from gpuwatch.facts.model.sizing import (
    Abstention,
    AbstentionKind,
    EvidenceTier,
    MemoryNeed,
    Option,
    SpeedEstimate,
    Target,
)
from gpuwatch.facts.model.telemetry import EngineLoad
from gpuwatch.facts.model.workload_profile import WorkloadKey, WorkloadProfile
from gpuwatch.size.change import unknown_owner
from gpuwatch.size.facts import Facts
from gpuwatch.size.memory import memory_need
from gpuwatch.size.policy import AdvicePolicy
from gpuwatch.size.speed import predict_speed
from gpuwatch.size.targets import current, gpu_of

_SHARE = re.compile(r"0?\.\d+|1(\.0*)?")
_SECONDS_PER_DAY = 86400.0
# Mean activity at or below which there is nothing to size: DCGM shows activity in per mille.
_IDLE_BUSY_RATIO = 0.001
# Age from which an ended profile is ignored, if the same container runs elsewhere: a nightly job still counts.
MOVED_AFTER = timedelta(hours=24)
# Widens the needed framebuffer of young profiles by 1 + multiplier / days of samples, as the Vertical Pod Autoscaler
# widens its upper bound by 1 / days; a tenth of it, as the need is a peak, not a mean.
_MEMORY_CONFIDENCE_MULTIPLIER = 0.1
# Share of the total memory of a whole card that a container gets: 7g.40gb of an A100-40GB, the whole card, has 40192 of
# 40960 MiB. Slices have what labels say or was measured.
_USABLE_MEMORY_RATIO = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A workload that passed the gates. confidence_days: days of samples, as the Vertical Pod Autoscaler counts.
    policy: with the speed that its owner accepts. refused: why an annotation of its owner does not count; or ''."""

    profile: WorkloadProfile
    policy: AdvicePolicy
    gpu: Gpu
    now: Target
    memory: MemoryNeed
    tier: EvidenceTier
    current: Option
    pod_hours: float
    confidence_days: float
    options: tuple[Option, ...] = ()
    refused: str = ""
    load: EngineLoad = EngineLoad()

    @property
    def key(self) -> WorkloadKey:
        return self.profile.key

    @property
    def gpu_hours(self) -> float:
        """Whole GPUs × hours a week that it holds now."""
        return self.current.projected_gpu_hours_per_week


def confidence_days(profile: WorkloadProfile) -> float:
    """The profile's age or its sampled time, in days, whichever is less."""
    life = (profile.last_seen - profile.first_seen).total_seconds()
    return min(life, profile.observed_seconds) / _SECONDS_PER_DAY


def widened(speed: SpeedEstimate, days: float, multiplier: float) -> SpeedEstimate:
    """Multiplies the slowdown at the low end by 1 + multiplier / days. The low end stays at or below the likely one."""
    if speed.low_ratio <= 0 or days <= 0:
        return replace(speed, low_ratio=0.0)
    slowdown = 1.0 / speed.low_ratio - 1.0
    if slowdown <= 0:
        return speed
    return replace(speed, low_ratio=min(1.0 / (1.0 + slowdown * (1.0 + multiplier / days)), speed.likely_ratio))


def prepare(profile: WorkloadProfile, facts: Facts) -> Ready | Abstention:
    key, policy = profile.key, facts.policy
    ends = facts.ends(key)

    def abstain(kind: AbstentionKind, reason: str, resolve: str) -> Abstention:
        return Abstention(key=key, at=facts.at, kind=kind, reason=reason, resolve=resolve)

    moved = _moved_to(profile, facts)
    if moved is not None:
        return abstain(
            AbstentionKind.MOVED,
            f"It was last seen here at {profile.last_seen:%Y-%m-%d %H:%M}; since then it runs as {moved}.",
            f"Change nothing here: {moved} has its own advice.",
        )
    gpu = find_gpu(key.gpu_model)
    if gpu is None:
        return abstain(
            AbstentionKind.UNKNOWN_GPU,
            f"The catalog does not know the GPU model {key.gpu_model!r}, so it cannot be compared with others.",
            f"Add {key.gpu_model!r} to gpuwatch's GPU table, as a model or as another name of one.",
        )
    if key.workload in facts.idle:
        return abstain(
            AbstentionKind.IDLE,
            "Its Pods are idle. An idle workload is released, not resized.",
            "Release it, or wait until it works again.",
        )
    owner = unknown_owner(facts.workloads.get(key.workload))
    if owner:
        return abstain(AbstentionKind.UNKNOWN_OWNER, owner, "Let gpuwatch read the owner, or resize it by hand.")
    early = _too_little(profile, ends=ends, policy=policy)
    if early is not None:
        return abstain(*early)
    busy = profile.mean("busy_ratio") or 0.0
    if busy <= _IDLE_BUSY_RATIO:
        return abstain(
            AbstentionKind.IDLE,
            f"Its engine was busy {busy:.2%} of the time. An idle workload is released, not resized.",
            "Release it, or wait until it works again.",
        )
    load = facts.load(key)
    memory = memory_need(profile, facts.pods.get(key.workload, ()), facts.annotated(key), load.kv_cache_ratio)
    here = facts.capability(gpu, key.mig_profile)
    stays = predict_speed(profile, here, here, facts.book.envelopes.get(gpu.name))
    if memory is None or stays is None:
        return abstain(
            AbstentionKind.COVERAGE,
            "Its framebuffer use was never measured, so it is not known which GPUs have enough memory."
            if memory is None
            else "None of its activity was measured.",
            "Export DCGM_FI_DEV_FB_USED and DCGM_FI_PROF_GR_ENGINE_ACTIVE for its devices.",
        )
    days = confidence_days(profile)
    memory = replace(memory, need_bytes=memory.need_bytes * (1.0 + _MEMORY_CONFIDENCE_MULTIPLIER / days))
    now = current(profile, gpu, facts)
    hours = pod_hours_per_week(profile, facts.book.until, ends=ends)
    cost = None if now.price_per_hour is None else now.price_per_hour * hours
    target, refused = accepted_speed(facts.annotated(key), policy.target_speed_ratio)
    return Ready(
        profile=profile,
        policy=replace(policy, target_speed_ratio=target),
        refused=refused,
        load=load,
        gpu=gpu,
        now=now,
        memory=memory,
        tier=stays.tier,
        current=Option(
            target=now,
            speed=stays,
            memory_bytes=usable_bytes(now, facts),
            projected_cost_per_week=cost,
            projected_saving_per_week=None if cost is None else 0.0,
            projected_gpu_hours_per_week=hours * now.gpu_share_ratio * now.gpus_per_pod,
        ),
        pod_hours=hours,
        confidence_days=days,
    )


def accepted_speed(annotated: Iterable[tuple[str, Mapping[str, str]]], usual_ratio: float) -> tuple[float, str]:
    """The least speed that the first annotation accepts, else the usual one; and why an annotation does not count."""
    where, text = stated(annotated, TARGET_SPEED)
    if _SHARE.fullmatch(text.strip()) and float(text) > 0:
        return float(text), ""
    bad = f"{TARGET_SPEED} of {where} is {text!r}, and not a share of today's speed such as 0.6; gpuwatch ignores it."
    return usual_ratio, bad if where else ""


def _moved_to(profile: WorkloadProfile, facts: Facts) -> WorkloadKey | None:
    """The newest later profile of the same container, if this one ended."""
    key = profile.key
    ended = facts.book.until - profile.last_seen > MOVED_AFTER
    if not ended:
        return None
    later = [
        other
        for other in facts.profiles_of.get((key.workload, key.container), ())
        if other.last_seen > profile.last_seen and other.first_seen > profile.first_seen
    ]
    return max(later, key=lambda other: (other.last_seen, other.key)).key if later else None


def _to_resolve(profile: WorkloadProfile) -> str:
    """How to fix the largest cause of missing time."""
    left_out = profile.left_out_seconds
    silent = profile.expected_seconds - profile.observed_seconds - sum(left_out.values())
    largest = max(left_out, key=lambda name: left_out[name], default="")
    if not largest or silent > left_out[largest]:
        return "Look for gaps in the exporter's scrapes; `gpuwatch doctor` names them."
    if largest == "ambiguous":
        return (
            "Several Pods share the device, and the metrics do not tell their work apart: run the workload on a device "
            "or a MIG instance of its own for a while."
        )
    if largest == "start_up":
        return "Wait for runs that last longer than their start-up."
    return f"Its GPU's state distorts the measurement ({largest}): repair the GPU, or run the workload elsewhere."


def _too_little(
    profile: WorkloadProfile, *, ends: bool, policy: AdvicePolicy
) -> tuple[AbstentionKind, str, str] | None:
    if not profile.cells or profile.coverage_ratio < policy.min_coverage_ratio:
        left_out = ", ".join(
            f"{name} {seconds / 3600:.1f} h" for name, seconds in sorted(profile.left_out_seconds.items())
        )
        return (
            AbstentionKind.COVERAGE,
            f"Only {profile.coverage_ratio:.0%} of its allocated time was measured and usable; "
            f"at least {policy.min_coverage_ratio:.0%} is needed." + (f" Left out: {left_out}." if left_out else ""),
            _to_resolve(profile),
        )
    days = confidence_days(profile)
    if days * 24 < policy.min_observed_hours:
        return (
            AbstentionKind.YOUNG,
            f"{days * 24:.1f} h of it were measured; {policy.min_observed_hours:g} h are needed.",
            "Wait until it has run longer.",
        )
    if profile.run_count < policy.min_runs and (ends or days < policy.min_serving_days):
        return (
            AbstentionKind.YOUNG,
            f"{profile.run_count} run over {days:.1f} days was seen; {policy.min_runs} runs are needed"
            + ("." if ends else f", or one of {policy.min_serving_days:g} days."),
            "Wait for its next run: another run may need more.",
        )
    return None


def usable_bytes(target: Target, facts: Facts) -> float:
    """What a container gets: a slice's whole memory; of a whole card, what the driver leaves."""
    offered = facts.capability(gpu_of(target), target.mig_profile).memory_bytes
    return offered if target.mig_profile else offered * _USABLE_MEMORY_RATIO
