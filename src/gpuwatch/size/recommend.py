"""One answer per profiled workload: a recommendation, or why there is none. Pure.

Gates ▸ options with their vetoes ▸ vetoes across workloads (gangs, partners) ▸ the cheapest option that is left.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from gpuwatch.account.money import PriceList
from gpuwatch.facts.catalog.instances import CURRENCY, InstanceType
from gpuwatch.facts.frameworks.keys import COMPUTE_CAPABILITIES
from gpuwatch.facts.model.cluster import Cluster
from gpuwatch.facts.model.decision import Finding
from gpuwatch.facts.model.sizing import (
    Abstention,
    AbstentionKind,
    EvidenceTier,
    Option,
    Recommendation,
    Target,
    TargetKind,
    by_worth,
)
from gpuwatch.facts.model.workload_profile import ProfileBook, WorkloadKey
from gpuwatch.size.capability import built_for, condition
from gpuwatch.size.change import change
from gpuwatch.size.choice import abstention, best_of, ranked, together, worth_it
from gpuwatch.size.facts import Facts, gather
from gpuwatch.size.options import options_of, partners
from gpuwatch.size.policy import AdvicePolicy
from gpuwatch.size.ready import Ready, prepare
from gpuwatch.size.targets import gpu_of
from gpuwatch.size.vetoes import host_share


def advise(
    book: ProfileBook,
    cluster: Cluster,
    prices: Sequence[InstanceType],
    policy: AdvicePolicy,
    at: datetime,
    findings: Sequence[Finding] = (),
    currency: str = CURRENCY,
) -> tuple[tuple[Recommendation, ...], tuple[Abstention, ...]]:
    """One answer for each WorkloadKey of the book, the largest saving first; abstentions in order of their keys.

    prices: of `catalog.instances` and the operator's own; those in another currency than `currency` do not count.
    findings: of the idle rules; an idle workload is to be released, not resized. An exception on one workload becomes
    its Abstention; the others are not affected.
    """
    facts = gather(book, cluster, PriceList(prices, currency), policy, at, findings)
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
        chosen = best_of(ready[key], facts)
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


def _recommendation(item: Ready, chosen: Option, facts: Facts) -> Recommendation:
    policy = facts.policy
    order = ranked(item, facts)
    others = [option for option in order if option.allowed and option is not chosen]
    days = item.confidence_days

    def only(option: Option) -> str:
        return condition(item.gpu, gpu_of(option.target), policy.compute_capabilities, facts.annotated(item.key))

    only_if = only(chosen)
    sure = [option for option in others if only_if and worth_it(item, option, policy) and not only(option)]
    reasons = [only_if] if only_if else []
    reasons += [_saves(item, chosen, facts.prices.currency), chosen.speed.basis]
    # The best that needs no condition, beside one that does.
    reasons += [f"Without a condition: {_saves(item, option, facts.prices.currency)}" for option in sure[:1]]
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


def _saves(item: Ready, chosen: Option, currency: str) -> str:
    speed = chosen.speed
    hours = f"{chosen.projected_saving_gpu_hours_per_week:.1f} {item.gpu.name} GPU-hours"
    saving, cost = chosen.projected_saving_per_week, item.current.projected_cost_per_week
    of = "" if cost is None else f" of {cost:.2f}"
    money = "" if saving is None else f"{saving:.2f}{of} {currency} and "
    verb = "free" if not money else "save"
    return (
        f"{chosen.target.name} keeps {speed.likely_ratio:.0%} of the speed ({speed.low_ratio:.0%} at worst) and is "
        f"projected to {verb} {money}{hours} a week."
    )


def _caveats(item: Ready, chosen: Option, facts: Facts, only_if: str) -> tuple[str, ...]:
    target = chosen.target
    offers = facts.capability(gpu_of(target), target.mig_profile), facts.capability(item.gpu, item.key.mig_profile)
    found = list(dict.fromkeys(sentence for offer in offers for sentence in offer.assumed))
    found.append("Peaks between two samples of the exporter (30 s by default) are not seen.")
    if chosen.projected_saving_per_week is None:
        found.append(f"Options were compared by GPU-hours, as no price is known. {item.now.price_source}")
    if facts.prices.of_nodes(facts.present_nodes(item.key)).spot:
        found.append("Its Nodes are spot or preemptible, which cost less than the on-demand prices used here.")
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
