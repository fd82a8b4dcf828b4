"""Which option is best, and whether it is worth a change."""

from gpuwatch.facts.model.sizing import Option, SpeedEstimate, TargetKind
from gpuwatch.size.facts import Facts
from gpuwatch.size.policy import AdvicePolicy
from gpuwatch.size.ready import Ready

# Order of options of the same cost: better isolation first, then fewer prerequisites.
_PREFERENCE = (TargetKind.SAME, TargetKind.MIG, TargetKind.FEWER, TargetKind.MODEL, TargetKind.SHARED)


def miss_probability(speed: SpeedEstimate, target_ratio: float) -> float:
    """P(speed < target), for a triangular distribution over the interval."""
    low, likely, high = speed.low_ratio, speed.likely_ratio, speed.high_ratio
    if target_ratio <= low:
        return 0.0
    if target_ratio >= high:
        return 1.0
    if target_ratio <= likely:
        return (target_ratio - low) ** 2 / ((high - low) * (likely - low))
    return 1.0 - (high - target_ratio) ** 2 / ((high - low) * (high - likely))


def expected_cost(option: Option, current: Option, hours_now: float, policy: AdvicePolicy) -> float:
    """Per week: money where prices are known, else GPU-hours. The penalty for missing the target speed is included."""
    missed = miss_probability(option.speed, policy.target_speed_ratio) if option is not current else 0.0
    if current.projected_cost_per_week is not None:
        cost = option.projected_cost_per_week if option.projected_cost_per_week is not None else float("inf")
        return cost + policy.penalty_ratio * missed * current.projected_cost_per_week
    return hours_now - option.projected_saving_gpu_hours_per_week + policy.penalty_ratio * missed * hours_now


def ranked(item: Ready, facts: Facts) -> list[Option]:
    """Best first, the vetoed ones last."""

    def order(option: Option) -> tuple[bool, float, int, str]:
        cost = expected_cost(option, item.current, item.gpu_hours, facts.policy)
        return not option.allowed, cost, _PREFERENCE.index(option.target.kind), option.target.name

    return sorted(item.options, key=order)


def best_of(item: Ready, facts: Facts) -> Option | None:
    """The cheapest allowed option; None where no change is worth it."""
    best = ranked(item, facts)[0]
    return best if best.allowed and worth_it(item, best, facts.policy) else None


def worth_it(item: Ready, option: Option, policy: AdvicePolicy) -> bool:
    """Whether it saves enough to justify a restart."""
    if (
        option.target.kind is TargetKind.SAME
        or option.projected_saving_gpu_hours_per_week < policy.min_saving_gpu_hours_per_week
    ):
        return False
    if item.current.projected_cost_per_week is None:
        return option.projected_saving_gpu_hours_per_week >= policy.min_saving_ratio * item.gpu_hours
    saving = option.projected_saving_per_week
    return (
        saving is not None and saving > 0 and saving >= policy.min_saving_ratio * item.current.projected_cost_per_week
    )
