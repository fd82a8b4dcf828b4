"""What became of advice: applied or not, measured speed, savings."""

from dataclasses import replace
from datetime import timedelta

import pytest

from advise.world import GIB, NOW, advised, answer, book, cell, cluster, node, owner, pod, price, profile, run
from gpuwatch.facts.model.cluster import Sharing
from gpuwatch.facts.model.sizing import OutcomeVerdict, Recommendation, TargetKind
from gpuwatch.facts.model.workload_profile import DayUse
from gpuwatch.size.outcome import Run, judge
from gpuwatch.size.policy import AdvicePolicy

JOB = "CronJob/team/nightly"
POLICY = AdvicePolicy()
GIVEN = NOW - timedelta(days=3)
LATER = NOW - timedelta(days=2)


def given(workload: str = JOB, **more) -> Recommendation:
    """Advice of three days ago: from an A100 to its 1g.5gb."""
    world = cluster([node()], [owner(workload, "batch/v1")], [pod(workload)])
    return replace(advised(answer(profile(workload, **more), world=world)), at=GIVEN)


def on_slice(workload: str = JOB, busy: float = 0.1, **more):
    """What runs there since two days, 24 h a day."""
    fresh = replace(run(2.0, capacity_gib=4.75), first_seen=LATER, last_seen=NOW)
    values = {"mig": "1g.5gb", "cells": [cell(busy, 0.05)], "days": 2.0, "runs": (fresh,), "hours_per_day": 24 / 8}
    return replace(profile(workload, **(values | more)), observed_seconds=48 * 3600.0, expected_seconds=48 * 3600.0)


def job(hours: float, *, after: bool) -> Run:
    start = LATER if after else GIVEN - timedelta(days=1)
    return start, start + timedelta(hours=hours)


def test_nothing_there_yet_is_waited_for():
    found = judge(given(), book(profile(JOB)), NOW, POLICY)
    assert found.verdict is OutcomeVerdict.WAITING
    assert found.applied_at is None
    assert (found.saved_gpu_hours, found.saved_cost) == (0.0, None)


def test_a_slice_that_was_in_use_before_the_advice_is_not_its_doing():
    ran = replace(run(2.0), first_seen=GIVEN - timedelta(days=5), last_seen=GIVEN - timedelta(days=4))
    old = replace(on_slice(runs=(ran,)), first_seen=ran.first_seen, last_seen=ran.last_seen)
    assert judge(given(), book(old), NOW, POLICY).applied_at is None


@pytest.mark.parametrize(
    ("busy_after", "measured", "verdict"),
    [
        (0.1, 1.0, OutcomeVerdict.HIT),
        (0.189, 0.9011, OutcomeVerdict.HIT),
        (0.191, 0.8989, OutcomeVerdict.MISS),
    ],
)
def test_the_share_of_rest_tells_the_speed_of_a_job(busy_after, measured, verdict):
    found = judge(given(), book(profile(JOB), on_slice(busy=busy_after)), NOW, POLICY)
    assert found.measured_speed_ratio == pytest.approx(measured, abs=1e-3)
    assert found.verdict is verdict
    assert found.applied_at == LATER


def test_rest_shrinks_as_the_kernels_stretch():
    # 0.4 busy and 0.6 rest; kernels take twice as long: 0.8 of 1.4 busy.
    before = profile(JOB, cells=[cell(0.4, 0.02)])
    found = judge(given(), book(on_slice(busy=0.8 / 1.4)), NOW, POLICY, before=before)
    assert found.measured_speed_ratio == pytest.approx(1 / 1.4)


@pytest.mark.parametrize(
    ("change_before", "change_after", "word"),
    [
        ({"cells": [cell(0.81, 0.02)]}, {}, "is needed to see a change"),
        ({"coarse_busy": True}, {}, "too coarse"),
        ({}, {"observed_seconds": 24 * 3600.0, "expected_seconds": 72 * 3600.0}, "33% of its time"),
    ],
)
def test_what_cannot_tell_is_unknown(change_before, change_after, word):
    before = replace(profile(JOB), **{k: tuple(v) if k == "cells" else v for k, v in change_before.items()})
    found = judge(given(), book(replace(on_slice(), **change_after)), NOW, POLICY, before=before)
    assert found.verdict is OutcomeVerdict.UNKNOWN
    assert found.measured_speed_ratio is None
    assert word in found.reason


def test_enough_rest_tells():
    before = profile(JOB, cells=[cell(0.79, 0.02)])
    found = judge(given(), book(on_slice(busy=0.79)), NOW, POLICY, before=before)
    assert found.verdict is OutcomeVerdict.HIT


@pytest.mark.parametrize(("hours", "verdict"), [(2.9, OutcomeVerdict.WAITING), (3.0, OutcomeVerdict.HIT)])
def test_too_little_since_is_waited_for(hours, verdict):
    early = replace(on_slice(), observed_seconds=hours * 3600, expected_seconds=hours * 3600)
    assert judge(given(), book(profile(JOB), early), NOW, POLICY).verdict is verdict


def test_run_times_come_before_everything_else():
    runs = [job(1.0, after=False), job(1.2, after=False), job(1.1, after=True), job(1.3, after=True)]
    found = judge(given(), book(profile(JOB), on_slice(busy=0.9)), NOW, POLICY, runs=runs)
    assert found.measured_speed_ratio == pytest.approx(1.1 / 1.2)
    assert found.verdict is OutcomeVerdict.HIT
    assert "median of 2 runs" in found.reason


@pytest.mark.parametrize(("peak_gib", "said"), [(4.6, True), (4.4, False)])
def test_a_framebuffer_that_is_nearly_full_is_said(peak_gib, said):
    full = replace(run(peak_gib, capacity_gib=4.75), first_seen=LATER, last_seen=NOW)
    found = judge(given(), book(profile(JOB), on_slice(runs=(full,))), NOW, POLICY)
    assert ("filled to" in found.reason) is said


@pytest.mark.parametrize("workload", ["Deployment/team/api", "Notebook/team/lab"])
def test_work_that_arrives_does_not_tell_its_speed(workload):
    advice = replace(given(), key=profile(workload).key)
    found = judge(advice, book(profile(workload), on_slice(workload)), NOW, POLICY)
    assert found.verdict is OutcomeVerdict.UNKNOWN
    assert "works on demand" in found.reason
    assert found.saved_gpu_hours > 0


def test_another_model_has_another_host():
    advice = given()
    l4 = replace(
        advice.chosen, target=replace(advice.chosen.target, kind=TargetKind.MODEL, gpu_model="L4", mig_profile="")
    )
    there = replace(on_slice(mig="", gpu="L4"), key=replace(advice.key, gpu_model="L4"))
    found = judge(replace(advice, chosen=l4), book(profile(JOB), there), NOW, POLICY)
    assert found.verdict is OutcomeVerdict.UNKNOWN
    assert "host changed" in found.reason


def test_saved_since_it_was_applied_adds_up():
    found = judge(given(), book(profile(JOB), on_slice()), NOW, POLICY)
    # 48 h on an eighth of a GPU at the speed of before, and 2 USD per GPU and hour.
    assert found.measured_speed_ratio == pytest.approx(1.0)
    assert found.saved_gpu_hours == pytest.approx(48 * 7 / 8)
    assert found.saved_cost == pytest.approx(48 * 7 / 8 * 2)


def test_money_in_another_currency_is_left_out():
    found = judge(given(), book(profile(JOB), on_slice()), NOW, POLICY, currency="EUR")
    assert (found.saved_cost, found.saved_gpu_hours) == (None, pytest.approx(48 * 7 / 8))
    assert judge(given(), book(profile(JOB), on_slice()), NOW, POLICY, currency="USD").saved_cost is not None


def test_a_slower_job_saved_less():
    found = judge(given(), book(profile(JOB), on_slice(busy=0.19)), NOW, POLICY)
    assert found.saved_gpu_hours == pytest.approx(48 * (0.9 - 1 / 8))


def test_fewer_gpus_are_seen_by_their_count():
    before = profile(JOB, cells=[cell(0.02, 0.01)], gpus=4)
    world = cluster([node()], [owner(JOB, "batch/v1")], [pod(JOB, accelerators={"nvidia.com/gpu": 4})])
    advice = replace(advised(answer(before, world=world)), at=GIVEN)
    assert advice.chosen.target.kind is TargetKind.FEWER
    assert judge(advice, book(before), NOW, POLICY).verdict is OutcomeVerdict.WAITING
    fresh = replace(run(2.0), first_seen=LATER, last_seen=NOW)
    now = replace(
        before,
        gpus_per_pod=1,
        runs=(*before.runs, fresh),
        days=(DayUse(day=LATER.date(), allocated_gpu_hours=24.0, busy_gpu_hours=1.0),),
    )
    found = judge(advice, book(now), NOW, POLICY)
    assert found.applied_at == LATER
    assert found.verdict is OutcomeVerdict.UNKNOWN  # one profile holds both, so nothing tells them apart
    assert found.saved_gpu_hours == pytest.approx(24 * (4 * advice.chosen.speed.likely_ratio - 1))
    runs = [job(1.0, after=False), job(1.0, after=False), job(1.05, after=True), job(1.05, after=True)]
    assert judge(advice, book(now), NOW, POLICY, runs=runs).verdict is OutcomeVerdict.HIT


@pytest.mark.parametrize(
    ("sharing", "applied"), [(Sharing.MPS, True), (Sharing.TIME_SLICING, False), (Sharing.NONE, False)]
)
def test_sharing_is_seen_on_the_node(sharing, applied):
    advice = given()
    target = replace(advice.chosen.target, kind=TargetKind.SHARED, sharing=Sharing.MPS, mig_profile="")
    advice = replace(advice, chosen=replace(advice.chosen, target=target))
    world = cluster(
        [node(sharing=sharing)], pods=[pod(JOB, created=LATER), pod(JOB, "old", created=GIVEN - timedelta(days=9))]
    )
    found = judge(advice, book(profile(JOB)), NOW, POLICY, cluster=world)
    assert (found.applied_at == LATER) is applied
    assert found.verdict is (OutcomeVerdict.UNKNOWN if applied else OutcomeVerdict.WAITING)


def test_without_prices_hours_are_saved_and_no_money():
    world = cluster([node()], [owner(JOB, "batch/v1")], [pod(JOB)])
    advice = replace(advised(answer(profile(JOB), world=world, prices=[])), at=GIVEN)
    found = judge(advice, book(profile(JOB), on_slice()), NOW, POLICY)
    assert found.saved_cost is None
    assert found.saved_gpu_hours == pytest.approx(48 * 7 / 8)


def test_what_is_kept_of_advice_needs_no_options():
    advice = given()
    kept = replace(advice, options=(), runner_up=None, caveats=())
    world = book(profile(JOB), on_slice())
    assert judge(kept, world, NOW, POLICY) == judge(advice, world, NOW, POLICY)
    assert advice.memory.need_bytes > 2 * GIB
    assert price().price_per_gpu_hour == 2.0
