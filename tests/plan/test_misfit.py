"""Misfits: gangs scattered over domains, and sizes that keep others waiting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwatch.act.plan.draw import draw_plan
from gpuwatch.act.plan.policy import ModeScope, PlanPolicy
from gpuwatch.facts.model.cluster import Gang, Pod
from gpuwatch.facts.model.decision import ActionKind, Finding, Mode, Plan, Snapshot
from gpuwatch.facts.model.sizing import (
    Change,
    EvidenceTier,
    MemoryNeed,
    Option,
    Recommendation,
    SpeedEstimate,
    Target,
    TargetKind,
)
from gpuwatch.facts.model.workload_profile import WorkloadKey
from gpuwatch.judge.misfit.assess import MisfitPolicy, assess_misfit
from plan.fleet import NOW, device, guards, node, only, pod, reason, sick, snapshot

EVICT, RESIZE = ActionKind.EVICT_GANG, ActionKind.RESIZE_WORKLOAD
CLIQUE = "nvidia.com/gpu.clique"
POLICY = PlanPolicy(budget_ratio=1.0)


def spread_gang(domains: dict[str, str], at: tuple[str, str] = ("n0", "n2")) -> Snapshot:
    """Two Pods of 8 GPUs; domains: Node → its NVLink domain, '' for none."""
    nodes = [node(name, labels={CLIQUE: value} if value else {}) for name, value in domains.items()]
    gang = Gang(id="g", framework="JobSet", workload="JobSet/ml/g", namespace="ml", pods=("ml/g0", "ml/g1"))
    pods = [pod(f"ml/g{i}", name, 8, "JobSet/ml/g", gang="g") for i, name in enumerate(at)]
    held = {name: f"ml/g{i}" for i, name in enumerate(at)}
    devices = [device(name, i, held.get(name, "")) for name in domains for i in range(8)]
    return snapshot(nodes, devices, pods, gangs=[gang])


def drawn(state: Snapshot, policy: PlanPolicy = POLICY, *more: Finding) -> Plan:
    """The plan with the misfits that are found in the state."""
    return draw_plan(state, (*more, *assess_misfit(state, MisfitPolicy(), policy.topology_labels)), policy)


TWO_RACKS = {"n0": "a", "n1": "a", "n2": "b"}


def test_a_scattered_gang_is_shown_and_moved_only_when_its_loss_is_known() -> None:
    item = only(drawn(spread_gang(TWO_RACKS)), EVICT)
    found = f"It spans 2 domains of {CLIQUE}, and 1 could hold it. It would fit into {CLIQUE}=a."
    assert item.candidate.reason == found
    assert item.candidate.detectors == ("scattered",)
    assert item.candidate.findings == ("scattered:gang/g",)
    assert guards(item) == {"worth_it"}
    assert reason(item, "worth_it") == "It is not known what the move gains; missing: what spanning them costs it."
    # 16 GPUs × 24 h × 0.5 are gained, 10 h × 16 lost.
    known = only(drawn(spread_gang(TWO_RACKS), replace(POLICY, scattered_loss_ratio=0.5)), EVICT)
    assert (known.score.gained_gpu_hours, known.score.disrupted_gpu_hours) == (192.0, 160.0)
    assert known.admitted, known.refusals
    little = only(drawn(spread_gang(TWO_RACKS), replace(POLICY, scattered_loss_ratio=0.4)), EVICT)
    assert guards(little) == {"worth_it"}


@pytest.mark.parametrize(
    ("domains", "at"),
    [
        ({"n0": "a", "n1": "a", "n2": "a"}, ("n0", "n2")),  # one domain
        ({"n0": "a", "n2": "b"}, ("n0", "n2")),  # no domain takes both
        ({"n0": "a", "n1": "a", "n2": ""}, ("n0", "n2")),  # unknown is not another domain
        (TWO_RACKS, ("n0", "n1")),
    ],
)
def test_what_is_not_scattered_or_could_not_be_gathered(domains: dict[str, str], at: tuple[str, str]) -> None:
    assert drawn(spread_gang(domains, at)).items == ()


def test_a_domain_that_others_hold_is_no_place() -> None:
    state = spread_gang({**TWO_RACKS, "n3": "b"})
    assert drawn(state).items
    taken = tuple(pod(f"ml/x{name}", name, 1) for name in ("n1", "n3"))
    state = replace(state, cluster=replace(state.cluster, pods=(*state.cluster.pods, *taken)))
    assert drawn(state).items == ()


def test_a_gang_on_a_sick_gpu_is_moved_once_and_for_that() -> None:
    state = spread_gang({**TWO_RACKS, "n3": "b", "n4": "b"})
    plan = drawn(state, POLICY, sick(state.devices[0]))
    assert only(plan, EVICT).candidate.detectors == ("xid",)


def option(kind: TargetKind, gpus: int, share: float = 1.0) -> Option:
    speed = SpeedEstimate(low_ratio=0.95, likely_ratio=1.0, high_ratio=1.0, tier=EvidenceTier.SM, basis="measured")
    target = Target(kind=kind, gpu_model="A100", gpus_per_pod=gpus, gpu_share_ratio=share)
    return Option(target=target, speed=speed, memory_bytes=1.0)


def advice(current: Option, chosen: Option, confidence: float = 0.9) -> Recommendation:
    return Recommendation(
        key=WorkloadKey("Deployment/ml/chat", "main", "A100"),
        at=NOW,
        current=current,
        chosen=chosen,
        runner_up=None,
        options=(),
        memory=MemoryNeed(need_bytes=1, peak_bytes=1, runs=3, headroom_ratio=0.2, elastic=False, reason=""),
        target_speed_ratio=0.9,
        confidence_ratio=confidence,
        change=Change(api_version="apps/v1", kind="Deployment", namespace="ml", name="chat"),
        doing_nothing_cost_per_week=None,
        doing_nothing_gpu_hours_per_week=0.0,
        reason="It is fast enough.",
    )


def contended(*pending: Pod, pods: int = 1, gpus: int = 4) -> Snapshot:
    owner = "Deployment/ml/chat"
    held = [pod(f"ml/chat-{i}", "n0", gpus, owner) for i in range(pods)]
    devices = [device("n0", i, f"ml/chat-{i // gpus}" if i < pods * gpus else "") for i in range(8)]
    busy = [pod("ml/rest", "n0", 8 - pods * gpus)] if pods * gpus < 8 else []
    return snapshot([node("n0"), node("n1", 0)], devices, [*held, *busy, *pending])


WAITER = pod("ml/w", "", 2, phase="Pending")
HALF = advice(option(TargetKind.SAME, 4), option(TargetKind.FEWER, 2))


def test_a_size_that_keeps_somebody_waiting_is_shown_and_never_written() -> None:
    everything = replace(POLICY, scopes=(ModeScope(mode=Mode.ENFORCE),))
    item = only(draw_plan(contended(WAITER), (), everything, recommendations=[HALF]), RESIZE)
    assert (item.candidate.gpus, item.candidate.waiter, item.candidate.detectors) == (2, "ml/w", ("oversized",))
    assert item.candidate.reason.startswith("2 × A100 instead of 4 × A100 frees 2 whole GPUs of pool train")
    assert item.mode is Mode.OBSERVE
    assert (item.score.gained_gpu_hours, item.score.disrupted_gpu_hours) == (48.0, 40.0)
    assert item.admitted, item.refusals


def test_nobody_waits_so_nothing_is_said() -> None:
    for pending in ((), (pod("ml/w", "", 9, phase="Pending"),), (replace(WAITER, node="n0"),)):
        assert draw_plan(contended(*pending), (), POLICY, recommendations=[HALF]).items == ()


@pytest.mark.parametrize(
    ("pods", "current", "chosen", "freed"),
    [
        (1, option(TargetKind.SAME, 1), option(TargetKind.MIG, 1, 0.5), 0),
        (2, option(TargetKind.SAME, 1), option(TargetKind.MIG, 1, 0.5), 1),  # 2 × 4/8
        (2, option(TargetKind.SAME, 1), option(TargetKind.SHARED, 1, 0.5), 1),
        (1, option(TargetKind.SAME, 1), option(TargetKind.MODEL, 1), 1),  # another model: all are freed
    ],
)
def test_whole_gpus_only(pods: int, current: Option, chosen: Option, freed: int) -> None:
    plan = draw_plan(contended(WAITER, pods=pods, gpus=1), (), POLICY, recommendations=[advice(current, chosen)])
    assert [item.candidate.gpus for item in plan.items] == ([freed] if freed else [])


@pytest.mark.parametrize(("confidence", "sure"), [(0.8, True), (0.79, False)])
def test_a_recommendation_has_to_be_as_sure_as_a_finding(confidence: float, sure: bool) -> None:
    found = advice(HALF.current, HALF.chosen, confidence)
    item = only(draw_plan(contended(WAITER), (), POLICY, recommendations=[found]), RESIZE)
    assert ("evidence" not in guards(item)) is sure
    if not sure:
        assert "0.79" in reason(item, "evidence")
