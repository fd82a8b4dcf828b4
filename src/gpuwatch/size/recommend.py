"""One answer per profiled workload: a recommendation, or why there is none. Pure.

Gates ▸ options with their vetoes ▸ vetoes across workloads (gangs, partners) ▸ the cheapest option that is left.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from gpuwatch.account.money import Discount, PriceList
from gpuwatch.facts.catalog.instances import CURRENCY, InstanceType
from gpuwatch.facts.frameworks.keys import COMPUTE_CAPABILITIES, GPU_MEMORY_NEED
from gpuwatch.facts.model.cluster import Cluster
from gpuwatch.facts.model.decision import Finding
from gpuwatch.facts.model.sizing import (
    Abstention,
    AbstentionKind,
    EvidenceTier,
    Option,
    Recommendation,
    SpeedEstimate,
    Target,
    TargetKind,
    Veto,
    by_worth,
)
from gpuwatch.facts.model.telemetry import EngineLoad, PodRef
from gpuwatch.facts.model.workload_profile import ProfileBook, WorkloadKey
from gpuwatch.size.capability import built_for, condition
from gpuwatch.size.change import change
from gpuwatch.size.facts import Facts, gather
from gpuwatch.size.memory import reserves
from gpuwatch.size.options import options_of, partners
from gpuwatch.size.policy import AdvicePolicy, rounded_apart
from gpuwatch.size.ready import MOVED_AFTER, Ready, prepare
from gpuwatch.size.targets import gpu_of
from gpuwatch.size.vetoes import ACROSS, at_work_ratio, host_share

# Order of options of the same cost: better isolation first, then fewer prerequisites.
_PREFERENCE = (TargetKind.SAME, TargetKind.MIG, TargetKind.FEWER, TargetKind.MODEL, TargetKind.SHARED)

_STATE_NEED = f"State its need per GPU in the annotation {GPU_MEMORY_NEED}, for example 12Gi."


def advise(
    book: ProfileBook,
    cluster: Cluster,
    prices: Sequence[InstanceType],
    policy: AdvicePolicy,
    at: datetime,
    findings: Sequence[Finding] = (),
    currency: str = CURRENCY,
    discounts: Sequence[Discount] = (),
    loads: Mapping[PodRef, EngineLoad] | None = None,
) -> tuple[tuple[Recommendation, ...], tuple[Abstention, ...]]:
    """One answer for each WorkloadKey of the book, the largest saving first; abstentions in order of their keys.

    prices: of `catalog.instances` and the operator's own; those in another currency than `currency` do not count.
    findings: of the idle rules; an idle workload is to be released, not resized. loads: of serving engines. An
    exception on one workload becomes its Abstention; the others are not affected.
    """
    facts = gather(book, cluster, PriceList(prices, currency, discounts), policy, at, findings, loads)
    abstained: dict[WorkloadKey, Abstention] = {}
    ready: dict[WorkloadKey, Ready] = {}

    def each(keys: Sequence[WorkloadKey], step: Callable[[WorkloadKey], None]) -> None:
        for key in keys:
            try:
                step(key)
            except Exception as problem:  # noqa: BLE001 - reported as an Abstention of this workload
                abstained[key] = _failed(key, at, problem)
                ready.pop(key, None)

    def pass_gates(key: WorkloadKey) -> None:
        found = prepare(book.profiles[key], facts)
        if isinstance(found, Abstention):
            abstained[key] = found
        else:
            ready[key] = found

    def weigh(key: WorkloadKey) -> None:
        ready[key] = replace(ready[key], options=options_of(ready[key], sharers.get(key, ()), facts))

    each(sorted(book.profiles), pass_gates)
    sharers = partners(ready, facts)
    each(list(ready), weigh)
    ready = together(ready, facts)
    recommended: list[Recommendation] = []

    def decide(key: WorkloadKey) -> None:
        chosen = best_of(ready[key])
        if chosen is not None:
            recommended.append(_recommendation(ready[key], chosen, facts))
        else:
            abstained[key] = abstention(ready[key], facts)

    each(list(ready), decide)
    return (
        tuple(sorted(recommended, key=by_worth)),
        tuple(replace(abstained[key], currency=currency) for key in sorted(abstained)),
    )


def _failed(key: WorkloadKey, at: datetime, problem: Exception) -> Abstention:
    return Abstention(
        key=key,
        at=at,
        kind=AbstentionKind.FAILED,
        reason=f"gpuwatch failed on this workload ({type(problem).__name__}: {problem}).",
        resolve="Report this error with the saved profile book; other workloads are not affected.",
    )


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


def ranked(item: Ready) -> list[Option]:
    """Best first, the vetoed ones last."""

    def order(option: Option) -> tuple[bool, float, int, str]:
        cost = expected_cost(option, item.current, item.gpu_hours, item.policy)
        return not option.allowed, cost, _PREFERENCE.index(option.target.kind), option.target.name

    return sorted(item.options, key=order)


def best_of(item: Ready) -> Option | None:
    """The cheapest allowed option; None where no change is worth it."""
    best = ranked(item)[0]
    return best if best.allowed and worth_it(item, best, item.policy) else None


def worth_it(item: Ready, option: Option, policy: AdvicePolicy) -> bool:
    """Whether it saves enough to justify a restart."""
    hours, saving = option.projected_saving_gpu_hours_per_week, option.projected_saving_per_week
    if option.target.kind is TargetKind.SAME or hours < policy.min_saving_gpu_hours_per_week:
        return False
    cost = item.current.projected_cost_per_week
    if cost is None:
        return hours >= policy.min_saving_ratio * item.gpu_hours
    return saving is not None and saving > 0 and saving >= policy.min_saving_ratio * cost


def abstention(item: Ready, facts: Facts) -> Abstention:
    policy = item.policy
    order = ranked(item)
    worth = [option for option in order if worth_it(item, option, policy)]

    known = partial(
        Abstention, key=item.key, at=facts.at, current=item.current, options=tuple(order), memory=item.memory
    )

    def only(option: Option, *rules: str) -> bool:
        return {one.rule for one in option.vetoes} <= set(rules)

    def fast_enough(option: Option) -> bool:
        return option.speed.likely_ratio >= policy.target_speed_ratio

    def answer(kind: AbstentionKind, reason: str, resolve: str, nearest: Option | None) -> Abstention:
        said = " ".join(filter(None, (reason, item.refused)))
        return known(kind=kind, reason=said, resolve=resolve, nearest=nearest)

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
            _STATE_NEED,
            filled,
        )
    barred = next(
        (option for option in worth if not only(option, "framebuffer", "target_speed") and fast_enough(option)), None
    )
    if barred is not None:
        rules = ", ".join(dict.fromkeys(one.rule for one in barred.vetoes))
        merits = [] if {"latency", "target_speed"} & {veto.rule for veto in barred.vetoes} else ["fast enough"]
        merits += ["cheaper"] if (barred.projected_saving_per_week or 0.0) > 0 else []
        return answer(
            AbstentionKind.VETOED,
            f"{barred.target.name} would be {' and '.join(merits) or 'possible'}, but: "
            + " ".join(veto.reason for veto in barred.vetoes),
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
    if item.memory.elastic and item.now.gpus_per_pod == 1:
        # Nobody can say that it is on the right GPU: with a known need it might share one.
        unknown = f"{reason} Whether it could share a GPU is not known. {item.memory.reason}"
        return answer(AbstentionKind.MEMORY_ELASTIC, unknown, _STATE_NEED, nearest)
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
    while lonely := _lonely(found):
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
    stay = sum(expected_cost(item.current, item.current, item.gpu_hours, item.policy) for item in members)
    best, least = None, stay
    for where in sorted({_where(option.target) for item in members for option in item.options if option.allowed}):
        cost = 0.0
        for item in members:
            there = [option for option in item.options if option.allowed and _where(option.target) == where]
            moves = [option for option in there if option is item.current or worth_it(item, option, policy)]
            costs = [expected_cost(option, item.current, item.gpu_hours, item.policy) for option in moves]
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


def _lonely(ready: Mapping[WorkloadKey, Ready]) -> dict[WorkloadKey, tuple[Target, ...]]:
    """Allowed sharing targets that a partner would not choose too. Empty when all agree."""
    open_to = {
        key: targets
        for key, item in ready.items()
        if (targets := tuple(o.target for o in item.options if o.allowed and o.target.kind is TargetKind.SHARED))
    }
    choices = {key: best_of(ready[key]) for key in open_to}

    def agrees(partner: WorkloadKey, key: WorkloadKey, target: Target) -> bool:
        choice = choices.get(partner)
        # Only a shared target has partners.
        return choice is not None and choice.target.sharing is target.sharing and key in choice.target.partners

    alone = {
        key: tuple(target for target in targets if not all(agrees(each, key, target) for each in target.partners))
        for key, targets in open_to.items()
    }
    return {key: targets for key, targets in alone.items() if targets}


def _recommendation(item: Ready, chosen: Option, facts: Facts) -> Recommendation:
    policy = item.policy
    order = ranked(item)
    others = [option for option in order if option.allowed and option is not chosen]
    days = item.confidence_days

    def only(option: Option) -> str:
        image = condition(item.gpu, gpu_of(option.target), policy.compute_capabilities, facts.annotated(item.key))
        return " ".join(filter(None, (image, reserves(item.memory, item.current.memory_bytes, option.memory_bytes))))

    only_if = only(chosen)
    sure = [option for option in others if only_if and worth_it(item, option, policy) and not only(option)]
    reasons = [only_if] if only_if else []
    reasons += [_saves(item, chosen, facts.prices.currency, policy.target_speed_ratio), chosen.speed.basis]
    # The best that needs no condition, beside one that does.
    reasons += [
        f"Without a condition: {_saves(item, option, facts.prices.currency, policy.target_speed_ratio)}"
        for option in sure[:1]
    ]
    return Recommendation(
        key=item.key,
        at=facts.at,
        current=item.current,
        chosen=chosen,
        runner_up=next(iter((*sure, *others)), None),
        options=tuple(order),
        memory=item.memory,
        target_speed_ratio=policy.target_speed_ratio,
        confidence_ratio=days / (1.0 + days) * item.profile.coverage_ratio,
        change=change(item.key, item.now, chosen.target, facts),
        doing_nothing_cost_per_week=chosen.projected_saving_per_week,
        doing_nothing_gpu_hours_per_week=chosen.projected_saving_gpu_hours_per_week,
        reason=" ".join(reasons),
        currency=facts.prices.currency,
        caveats=_caveats(item, chosen, facts, only_if),
        condition=only_if,
    )


def _saves(item: Ready, chosen: Option, currency: str, target_speed_ratio: float) -> str:
    speed = chosen.speed
    hours = f"{chosen.projected_saving_gpu_hours_per_week:.1f} {item.gpu.name} GPU-hours"
    saving, cost = chosen.projected_saving_per_week, item.current.projected_cost_per_week
    of = "" if cost is None else f" of {cost:.2f}"
    money = "" if saving is None else f"{saving:.2f}{of} {currency} and "
    verb = "free" if not money else "save"
    at_work = at_work_ratio(item.profile, speed)
    worst = f"{speed.low_ratio:.0%} at worst"
    if at_work is not None and at_work < target_speed_ratio:
        # People who wait for a cell of a notebook feel this, not the speed over days.
        worst += f", and {at_work:.0%} while its GPU works, {item.profile.mean('busy_ratio') or 0.0:.1%} of the time"
    if at_work is not None and (wait := item.load.first_token_seconds):
        # Work on the GPU, so it slows as that does.
        worst += f"; a first token takes up to about {wait / at_work:.2f} s instead of {wait:.2f} s"
    return (
        f"{chosen.target.name} keeps {speed.likely_ratio:.0%} of the speed ({worst}) and is "
        f"projected to {verb} {money}{hours} a week."
    )


def _caveats(item: Ready, chosen: Option, facts: Facts, only_if: str) -> tuple[str, ...]:
    target = chosen.target
    offers = facts.capability(gpu_of(target), target.mig_profile), facts.capability(item.gpu, item.key.mig_profile)
    found = list(dict.fromkeys(sentence for offer in offers for sentence in offer.assumed))
    found += [item.refused] if item.refused else []
    found.append("Peaks between two samples of the exporter (30 s by default) are not seen.")
    if chosen.projected_saving_per_week is None:
        found.append(f"Options were compared by GPU-hours, as no price is known. {item.now.price_source}")
    if facts.prices.of_nodes(facts.present_nodes(item.key)).spot:
        found.append(
            "Its Nodes are spot or preemptible, which cost less than the on-demand prices used here; say what you pay "
            "in the setting discounts."
        )
    if item.confidence_days < 7:
        found.append(f"The profile covers {item.confidence_days:.1f} days; a full week may differ.")
    if item.tier is EvidenceTier.POWER:
        found.append("SM demand is estimated from board power; exporting SM_ACTIVE would measure it.")
    if item.tier is EvidenceTier.ENGINE:
        found.append("How many SMs were used was not measured; engine activity is an upper bound. Export SM_ACTIVE.")
    if target.kind is TargetKind.MODEL:
        found += _model_caveats(item, target, facts, only_if)
    else:
        share = host_share(item.profile, facts)
        if share is not None and share.gpus > target.gpu_share_ratio * target.gpus_per_pod:
            kept = f"the host takes {share.pods} of them, so the saving counts {share.gpus:.2f} GPUs as still in use."
            found.append(f"A Pod {share.reason}: {kept}")
    if target.kind is TargetKind.SHARED:
        found.append("Partners share memory and faults: a crash of one may end all of them.")
    if target.kind in (TargetKind.MIG, TargetKind.SHARED) and target.price_per_hour is not None:
        found.append("The saving becomes money once others use the rest of the GPU, or fewer Nodes are needed.")
    if target.kind is TargetKind.FEWER:
        found.append("Tell the program its new number of GPUs, unless it counts them itself.")
    return tuple(found)


def _model_caveats(item: Ready, target: Target, facts: Facts, only_if: str) -> list[str]:
    found = [f"Prices: {item.now.price_source}; {target.price_source}."]
    if only_if:
        found.append(f"Where this holds, set annotation {COMPUTE_CAPABILITIES} to {built_for(gpu_of(target))}.")
    if not facts.nodes_of.get(target.gpu_model):
        known = {"CPUs": target.host_cpu_cores, "memory": target.host_memory_bytes}
        unknown = " and ".join(what for what, have in known.items() if have is None)
        if unknown:
            found.append(
                f"The catalog does not know the host's {unknown} on {target.instance_type}; compare them with the "
                "Pod's requests."
            )
    return found
