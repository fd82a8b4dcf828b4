"""The score's two numbers in words: a reader who does the sum in the sentence comes to the number."""

import re
from dataclasses import replace

import pytest

from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.decision import ActionKind, PlanItem, Score, Severity
from gpuwatch.say.remediation_tables import notification
from plan.fleet import node, only, plan_of, remediation, sick
from plan.test_draw import full_node_with_gang, one_idle, one_lost_of_eight
from plan.test_rebalance import TWO_RACKS, contention, crowded, drawn, moves, spread_gang

POLICY = PlanPolicy()

_SUM = re.compile(
    r": (?P<gpus>[\d,.]+) GPUs? × (?P<hours>[\d,.]+) h(?: × (?P<ratio>[\d.]+) \([^)]+\))?"
    r" = (?P<total>[\d,.]+) GPU-hours?\.$"
)


def number(text: str | None) -> float:
    return 1.0 if text is None else float(text.replace(",", ""))


def checked(score: Score) -> None:
    for basis, value in ((score.gain_basis, score.gained_gpu_hours), (score.harm_basis, score.disrupted_gpu_hours)):
        found = _SUM.search(basis)
        assert found is not None, basis
        assert number(found["total"]) == pytest.approx(value, abs=0.051), basis
        product = number(found["gpus"]) * number(found["hours"]) * number(found["ratio"])
        assert product == pytest.approx(value, rel=0.02, abs=0.06), basis


def tainted(**changes: bool | int) -> PlanItem:
    return one_lost_of_eight(**changes)  # type: ignore[arg-type]


def test_an_expected_gang_is_named_as_such() -> None:
    score = tainted(gang=True).score
    assert score.gain_basis == (
        "Expected gang of 16 GPUs (the mean gang of the allocated GPUs of pool train) that would land on the free "
        "degraded GPU and be stopped by it: 16 GPUs × 24 h = 384 GPU-hours."
    )
    assert score.harm_basis == (
        "Free healthy GPUs of the Node, which no others of the pool replace until it is repaired: 7 GPUs × 20 h = "
        "140 GPU-hours."
    )
    checked(score)


def test_without_a_gang_the_degraded_gpu_alone_counts_and_others_may_stand_in() -> None:
    alone, spared = tainted().score, tainted(also_free=1).score
    assert alone.gain_basis == "Degraded GPUs of the Node: 1 GPU × 24 h = 24 GPU-hours."
    assert spared.harm_basis == (
        "Others of the pool replace the Node's free healthy GPUs, and running Pods stay: 0 GPUs × 20 h = 0 GPU-hours."
    )
    checked(alone)
    checked(spared)


def test_a_gang_on_the_degraded_gpu_counts_whole() -> None:
    state, findings = full_node_with_gang()
    plan = plan_of(state, findings, POLICY)
    taint, move = only(plan, ActionKind.TAINT_NODE).score, only(plan, ActionKind.EVICT_GANG).score
    assert taint.gain_basis.startswith("GPUs of the gangs on the degraded GPU, which wait for it: 8 GPUs × 24 h = 192 ")
    assert taint.harm_basis.startswith("The Node has no free healthy GPU, and running Pods stay: 0 GPUs")
    assert move.gain_basis.startswith("GPUs of the gang that a degraded GPU holds up, from the move on: 8 GPUs × 24 h")
    assert move.harm_basis.startswith("Work that the restart loses, now: 8 GPUs × ")
    checked(taint)
    checked(move)


def test_a_warning_counts_a_third_and_says_so() -> None:
    state, _ = full_node_with_gang()
    finding = sick(next(each for each in state.devices if each.pods), severity=Severity.WARNING)
    score = only(plan_of(state, (finding,), POLICY), ActionKind.TAINT_NODE).score
    assert (
        "8 GPUs × 24 h × 0.33 (the share of a slower GPU's hours that counts as lost) = 64 GPU-hours"
        in score.gain_basis
    )
    checked(score)


def test_a_release() -> None:
    state, findings = one_idle()
    release = only(plan_of(state, findings, POLICY), ActionKind.RELEASE_GANG).score
    assert release.gain_basis == "GPUs that the release frees: 1 GPU × 24 h = 24 GPU-hours."
    assert release.harm_basis == ("Its next start-up, which counts as an hour: 1 GPU × 1 h = 1 GPU-hour.")
    checked(release)


def test_moves_for_others_and_of_scattered_gangs() -> None:
    for item in moves(plan_of(crowded(node("n0", 1)), (contention(),), POLICY)).values():
        assert "regain from the move on" in item.score.gain_basis
        checked(item.score)
    vague = contention(relief_gpus={})
    (first, *_) = moves(plan_of(crowded(node("n0", 1)), (vague,), POLICY)).values()
    assert first.score.gain_basis.startswith("The gain of the move is not known: 0 GPUs")
    scattered = only(drawn(spread_gang(TWO_RACKS), replace(POLICY, scattered_loss_ratio=0.5)), ActionKind.EVICT_GANG)
    checked(scattered.score)


def test_who_refuses_it_as_not_worth_it_says_the_sums() -> None:
    (refusal,) = tainted().refusals
    assert refusal.guard == "worth_it"
    score = tainted().score
    assert refusal.reason == (
        f"It gains 21.6 GPU-hours (times confidence) and costs 140.0 within 24 h. {score.gain_basis} {score.harm_basis}"
    )


def test_whoever_is_notified_reads_the_sums() -> None:
    score = tainted(gang=True).score
    plain = remediation(ActionKind.TAINT_NODE, "node/n0", ["n0"])
    _, text = notification(replace(plain, proposal=replace(plain.proposal, score=score)))
    assert f"- Saves: {score.gain_basis}" in text
    assert f"- Costs: {score.harm_basis}" in text
    assert "- Saves" not in notification(plain)[1]  # a score of before does not tell
