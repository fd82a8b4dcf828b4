"""Vetoes across workloads: a gang moves as a whole, and sharing needs all partners."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gpuwatch.facts.model.sizing import Option, Target, TargetKind, Veto
from gpuwatch.facts.model.workload_profile import WorkloadKey
from gpuwatch.size.choice import best_of, expected_cost, worth_it
from gpuwatch.size.facts import Facts
from gpuwatch.size.policy import AdvicePolicy
from gpuwatch.size.ready import MOVED_AFTER, Ready
from gpuwatch.size.vetoes import ACROSS


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
