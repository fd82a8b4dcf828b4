"""What may be done: scopes, Namespaces' wishes, and what a detector's measured precision allows."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpuwatch.act.plan.policy import ModeScope, PlanPolicy
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.cluster import Namespace
from gpuwatch.facts.model.decision import ActionKind, Finding, FindingKind, Mode, PlanItem, Snapshot
from plan.fleet import device, guards, idle, node, only, plan_of, pod, snapshot

TAINT, RELEASE = ActionKind.TAINT_NODE, ActionKind.RELEASE_GANG
OBSERVE, SUGGEST, ENFORCE = Mode.OBSERVE, Mode.SUGGEST, Mode.ENFORCE


def test_the_scope_that_names_most_wins_and_of_equals_the_mildest() -> None:
    policy = PlanPolicy(
        modes={RELEASE: SUGGEST},
        scopes=(
            ModeScope(mode=OBSERVE),
            ModeScope(mode=ENFORCE, namespace="ml"),
            ModeScope(mode=OBSERVE, action=RELEASE, pool="prod"),
            ModeScope(mode=ENFORCE, action=RELEASE, namespace="ml"),
            ModeScope(mode=ENFORCE, action=TAINT, pool="spot"),
            ModeScope(mode=ENFORCE, action=RELEASE, namespace="ml", pool="both"),
        ),
    )
    assert policy.mode(TAINT) is OBSERVE
    assert policy.mode(TAINT, pool="spot") is ENFORCE
    assert policy.mode(RELEASE) is SUGGEST
    assert policy.mode(RELEASE, "web", "train") is SUGGEST
    # One names the action, one the Namespace: of equals the mildest; both together name more.
    assert policy.mode(ActionKind.EVICT_GANG, "ml") is ENFORCE
    assert replace(policy, scopes=policy.scopes[:2]).mode(RELEASE, "ml") is SUGGEST
    assert policy.mode(RELEASE, "ml", "train") is ENFORCE
    assert policy.mode(RELEASE, "ml", "prod") is OBSERVE
    assert policy.mode(RELEASE, "ml", "both") is ENFORCE


def test_a_node_without_a_pool_is_in_the_pool_default() -> None:
    policy = PlanPolicy(scopes=(ModeScope(mode=ENFORCE, pool="default"),))
    assert policy.mode(TAINT) is ENFORCE
    assert policy.mode(TAINT, pool="spot") is OBSERVE


def state_of(*pools: str) -> tuple[Snapshot, tuple[Finding, ...]]:
    """One idle Deployment with a Pod in each pool."""
    devices = [device(f"n-{name}", 0, f"ml/p-{name}") for name in pools]
    pods = [pod(f"ml/p-{name}", f"n-{name}", owner="Deployment/ml/chat") for name in pools]
    state = snapshot([node(f"n-{name}", pool=name) for name in pools], devices, pods)
    return state, tuple(idle(each.ref, [held]) for each, held in zip(pods, devices, strict=True))


def drawn(
    policy: PlanPolicy, *pools: str, precision: Mapping[tuple[str, str], float] | None = None, asked: str = ""
) -> PlanItem:
    state, findings = state_of(*pools)
    if asked:
        space = Namespace(name="ml", annotations={keys.MODE: asked})
        state = replace(state, cluster=replace(state.cluster, namespaces=(space,)))
    return only(plan_of(state, findings, policy, precision=precision or {}), RELEASE)


def test_over_several_pools_the_mildest_holds() -> None:
    policy = PlanPolicy(scopes=(ModeScope(mode=ENFORCE), ModeScope(mode=SUGGEST, pool="prod")))
    assert drawn(policy, "train").mode is ENFORCE
    both = drawn(policy, "train", "prod")
    assert (both.mode, both.mode_reason) == (SUGGEST, "Settings for pool prod.")


@pytest.mark.parametrize(("asked", "mode"), [("enforce", ENFORCE), ("suggest", SUGGEST), ("observe", OBSERVE)])
def test_a_namespace_makes_it_milder(asked: str, mode: Mode) -> None:
    item = drawn(PlanPolicy(modes={RELEASE: ENFORCE}), "train", asked=asked)
    assert item.mode is mode
    assert ("gpuwatch.dev/mode" in item.mode_reason) is (mode is not ENFORCE)


@pytest.mark.parametrize(
    ("precision", "mode"),
    [
        ({("ml", FindingKind.ABANDONED): 0.8}, ENFORCE),
        ({("ml", FindingKind.ABANDONED): 0.79}, SUGGEST),
        ({("ml", FindingKind.ABANDONED): float("nan")}, SUGGEST),
        ({("ml", FindingKind.XID): 0.1}, ENFORCE),
        ({("", FindingKind.ABANDONED): 0.1}, SUGGEST),
        ({("", FindingKind.ABANDONED): 0.1, ("ml", FindingKind.ABANDONED): 0.9}, SUGGEST),
        ({("web", FindingKind.ABANDONED): 0.1}, ENFORCE),
        ({}, ENFORCE),
    ],
)
def test_a_detector_that_is_imprecise_here_or_on_nodes_only_suggests(
    precision: Mapping[tuple[str, str], float], mode: Mode
) -> None:
    item = drawn(PlanPolicy(modes={RELEASE: ENFORCE}), "train", precision=precision)
    assert item.mode is mode
    assert ("precision of abandoned" in item.mode_reason) is (mode is SUGGEST)
    # It never makes the mode stronger.
    assert drawn(PlanPolicy(), "train", precision=precision).mode is OBSERVE


def test_a_precise_detector_is_enough_if_it_is_sure_enough() -> None:
    state, findings = state_of("train")
    policy = PlanPolicy(modes={RELEASE: ENFORCE})
    poor = {("ml", FindingKind.ABANDONED): 0.3}
    for confidence, mode in ((0.8, ENFORCE), (0.79, SUGGEST)):
        second = replace(findings[0], kind=FindingKind.NEVER_USED, confidence_ratio=confidence)
        plan = plan_of(state, (*findings, second), policy, precision=poor)
        assert only(plan, RELEASE).mode is mode


# What is only looked at takes nothing from what is done


def two_pools(first: Mode, second: Mode) -> tuple[Snapshot, tuple[Finding, ...], PlanPolicy]:
    """An idle gang of 8 in pool `big`, one of 4 in pool `small`; one action may begin in an hour."""
    nodes = [node("n0", pool="big"), node("n1", 4, pool="small")]
    devices = [device("n0", i, "ml/a") for i in range(8)] + [device("n1", i, "ml/b") for i in range(4)]
    pods = [pod("ml/a", "n0", 8), pod("ml/b", "n1", 4)]
    findings = (idle("ml/a", devices[:8]), idle("ml/b", devices[8:]))
    scopes = (ModeScope(mode=first, pool="big"), ModeScope(mode=second, pool="small"))
    return snapshot(nodes, devices, pods), findings, PlanPolicy(idle_storm_ratio=1.0, scopes=scopes, actions_per_hour=1)


def test_what_is_observed_takes_no_budget_from_what_is_enforced() -> None:
    state, findings, policy = two_pools(OBSERVE, ENFORCE)
    items = plan_of(state, findings, policy).items
    # Best score first, as ever; the smaller one is done.
    assert [(item.candidate.target.name[-1], item.admitted) for item in items] == [("a", False), ("b", True)]
    assert guards(items[0]) == {"rate"}
    state, findings, policy = two_pools(SUGGEST, ENFORCE)
    assert [item.admitted for item in plan_of(state, findings, policy).items] == [True, False]
    state, findings, policy = two_pools(OBSERVE, OBSERVE)
    assert [item.admitted for item in plan_of(state, findings, policy).items] == [True, False]


def test_a_release_that_is_only_observed_is_no_part_of_one_that_is_done_on_demand() -> None:
    """A Pod of 8 GPUs waits; of two idle ones of 4 on the Node only one may be released, which would be for nothing.
    Elsewhere one of 8 is more harm, and enough."""
    nodes = [node("n0", pool="mixed"), node("n1", pool="mixed")]
    devices = [device("n0", i, "ml/a" if i < 4 else "web/b") for i in range(8)]
    devices += [device("n1", i, "ml/c") for i in range(8)]
    pods = [pod("ml/a", "n0", 4), pod("web/b", "n0", 4), pod("ml/c", "n1", 8)]
    waits = pod("ml/w", "", 8, phase="Pending", started=None)
    state = snapshot(nodes, devices, [*pods, waits])
    findings = (idle("ml/a", devices[:4]), idle("web/b", devices[4:8]), idle("ml/c", devices[8:]))
    everything = PlanPolicy(
        budget_ratio=1.0, reclaim_only_on_demand=True, idle_storm_ratio=1.0, scopes=(ModeScope(mode=ENFORCE),)
    )
    partly = replace(everything, scopes=(ModeScope(mode=ENFORCE, namespace="ml"),))

    def done(policy: PlanPolicy, found: tuple[Finding, ...]) -> set[str]:
        plan = plan_of(state, found, policy)
        return {item.candidate.target.name for item in plan.items if item.admitted and item.mode is ENFORCE}

    assert done(everything, findings[:2]) == {"Deployment/ml/a", "Deployment/web/b"}
    assert done(partly, findings[:2]) == set()
    assert done(partly, findings) == {"Deployment/ml/c"}


def test_a_finding_that_asks_for_approval_only_suggests_unless_another_one_is_sure() -> None:
    state, (found,) = state_of("train")
    policy = PlanPolicy(modes={RELEASE: ENFORCE})
    asks = replace(found, approval="A person has to approve it: why.")
    item = only(plan_of(state, (asks,), policy), RELEASE)
    assert (item.mode, item.mode_reason) == (SUGGEST, "A person has to approve it: why.")
    for confidence, mode in ((0.8, ENFORCE), (0.79, SUGGEST)):
        second = replace(found, kind=FindingKind.NEVER_USED, confidence_ratio=confidence)
        assert only(plan_of(state, (asks, second), policy), RELEASE).mode is mode
    assert only(plan_of(state, (asks,), PlanPolicy()), RELEASE).mode is OBSERVE
