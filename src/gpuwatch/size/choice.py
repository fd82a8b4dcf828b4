"""Which option is best, whether it is worth a change, and why nothing is advised. Vetoes across workloads: a gang moves
as a whole, and sharing needs all partners.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from gpuwatch.facts.frameworks.keys import GPU_MEMORY_NEED
from gpuwatch.facts.model.sizing import (
    Abstention,
    AbstentionKind,
    EvidenceTier,
    Option,
    SpeedEstimate,
    Target,
    TargetKind,
    Veto,
)
from gpuwatch.facts.model.workload_profile import WorkloadKey
from gpuwatch.size.facts import Facts
from gpuwatch.size.policy import AdvicePolicy, rounded_apart
from gpuwatch.size.ready import MOVED_AFTER, Ready
from gpuwatch.size.vetoes import ACROSS

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


def abstention(item: Ready, facts: Facts) -> Abstention:
    policy = facts.policy
    order = ranked(item, facts)
    worth = [option for option in order if worth_it(item, option, policy)]
    known = partial(
        Abstention, key=item.key, at=facts.at, current=item.current, options=tuple(order), memory=item.memory
    )

    def only(option: Option, *rules: str) -> bool:
        return {one.rule for one in option.vetoes} <= set(rules)

    def fast_enough(option: Option) -> bool:
        return option.speed.likely_ratio >= policy.target_speed_ratio

    def answer(kind: AbstentionKind, reason: str, resolve: str, nearest: Option | None) -> Abstention:
        return known(kind=kind, reason=reason, resolve=resolve, nearest=nearest)

    if item.tier is EvidenceTier.UTILISATION:
        return answer(
            AbstentionKind.SIGNALS,
            "Only GPU utilisation is known, which says that some kernel ran, not how much of the GPU it used.",
            "Export DCGM_FI_PROF_GR_ENGINE_ACTIVE, _SM_ACTIVE and _DRAM_ACTIVE, and measure first.",
            next((option for option in worth if only(option, "measure_first", "target_speed", "latency")), None),
        )
    unsure = next((option for option in worth if fast_enough(option) and only(option, "target_speed", "latency")), None)
    if unsure is not None:
        speed = unsure.speed
        low, needed = rounded_apart(100 * speed.low_ratio, 100 * policy.target_speed_ratio, digits=0)
        more = "" if item.tier is EvidenceTier.SM else " Exporting SM_ACTIVE would narrow the estimate."
        return answer(
            AbstentionKind.UNCERTAIN,
            f"On {unsure.target.name} it would likely run at {speed.likely_ratio:.0%} of today's speed. The low "
            f"estimate is {low} %; at least {needed} % is needed. {unsure.vetoes[0].reason}",
            f"Try one run on {unsure.target.name} and compare, or measure longer.{more}",
            unsure,
        )
    filled = next((option for option in worth if only(option, "elastic_memory", "framebuffer")), None)
    if filled is not None and item.memory.elastic:
        return answer(
            AbstentionKind.MEMORY_ELASTIC,
            item.memory.reason,
            f"State its need per GPU in the annotation {GPU_MEMORY_NEED}, for example 12Gi.",
            filled,
        )
    barred = next(
        (option for option in worth if not only(option, "framebuffer", "target_speed") and fast_enough(option)), None
    )
    if barred is not None:
        rules = ", ".join(dict.fromkeys(one.rule for one in barred.vetoes))
        return answer(
            AbstentionKind.VETOED,
            f"{barred.target.name} would be fast enough and cheaper, but: {' '.join(v.reason for v in barred.vetoes)}",
            f"Resolve the vetoes ({rules}) if you can; otherwise keep the present GPU.",
            barred,
        )
    if worth:
        nearest: Option | None = worth[0]
        reason = (
            "No option that saves enough is both fast enough and large enough in memory. The cheapest of them is "
            f"{worth[0].target.name}: {worth[0].vetoes[0].reason}"
        )
    else:
        nearest = next((option for option in order if option.target.kind is not TargetKind.SAME), None)
        least, hours = policy.min_saving_ratio, policy.min_saving_gpu_hours_per_week
        reason = f"No option saves at least {least:.0%} of its cost and {hours:g} GPU-hours a week."
    return answer(AbstentionKind.RIGHT_SIZED, reason, "Change nothing: it is on the right GPU.", nearest)


def together(ready: Mapping[WorkloadKey, Ready], facts: Facts) -> dict[WorkloadKey, Ready]:
    """The workloads with the vetoes `gang_whole` and `partners` added."""
    found = dict(ready)
    for keys in _gangs(ready, facts):
        common = _common(keys, ready, facts.policy)
        for key in keys:
            if key in found:
                elsewhere = [o.target for o in found[key].options if _where(o.target) != common]
                found[key] = _vetoed(found[key], "gang_whole", elsewhere)
    while lonely := _lonely(found, facts):
        for key, targets in lonely.items():
            found[key] = _vetoed(found[key], "partners", targets)
    return found


def _where(target: Target) -> tuple[str, str]:
    return target.gpu_model, target.mig_profile


def _common(
    keys: Sequence[WorkloadKey], ready: Mapping[WorkloadKey, Ready], policy: AdvicePolicy
) -> tuple[str, str] | None:
    """(GPU model, MIG profile) that all members of a gang may use at the least total cost; None: keep as is."""
    if not all(key in ready for key in keys):
        return None
    members = [ready[key] for key in keys]
    stay = sum(expected_cost(item.current, item.current, item.gpu_hours, policy) for item in members)
    best, least = None, stay
    for where in sorted({_where(option.target) for item in members for option in item.options if option.allowed}):
        cost = 0.0
        for item in members:
            there = [option for option in item.options if option.allowed and _where(option.target) == where]
            moves = [option for option in there if option is item.current or worth_it(item, option, policy)]
            costs = [expected_cost(option, item.current, item.gpu_hours, policy) for option in moves]
            cost += min(costs, default=float("inf"))
        if cost < least:
            best, least = where, cost
    return best


def _gangs(ready: Mapping[WorkloadKey, Ready], facts: Facts) -> list[list[WorkloadKey]]:
    """Recent keys of each gang's workload, with those that did not pass the gates."""
    by_workload: dict[str, list[WorkloadKey]] = defaultdict(list)
    for key in sorted(facts.book.profiles):
        profile = facts.book.profiles[key]
        recent = facts.book.until - profile.last_seen <= MOVED_AFTER
        if recent and facts.gang_pods(profile) >= 2:
            by_workload[key.workload].append(key)
    return [keys for keys in by_workload.values() if len(keys) > 1 and any(key in ready for key in keys)]


def _vetoed(item: Ready, rule: str, targets: Collection[Target]) -> Ready:
    return replace(
        item,
        options=tuple(
            replace(option, vetoes=(*option.vetoes, Veto(rule, ACROSS[rule])))
            if option.target.kind is not TargetKind.SAME and option.target in targets
            else option
            for option in item.options
        ),
    )


def _lonely(ready: Mapping[WorkloadKey, Ready], facts: Facts) -> dict[WorkloadKey, tuple[Target, ...]]:
    """Allowed sharing targets that a partner would not choose too. Empty when all agree."""
    open_to = {
        key: targets
        for key, item in ready.items()
        if (targets := tuple(o.target for o in item.options if o.allowed and o.target.kind is TargetKind.SHARED))
    }
    choices = {key: best_of(ready[key], facts) for key in open_to}
    found = {}
    for key, targets in open_to.items():
        alone = tuple(
            target
            for target in targets
            if not all(_agrees(choices.get(partner), key, target) for partner in target.partners)
        )
        if alone:
            found[key] = alone
    return found


def _agrees(choice: Option | None, key: WorkloadKey, target: Target) -> bool:
    return (
        choice is not None
        and choice.target.kind is TargetKind.SHARED
        and choice.target.sharing is target.sharing
        and key in choice.target.partners
    )
