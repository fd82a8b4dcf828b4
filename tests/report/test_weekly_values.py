"""What the weekly report adds up: GPU-hours, money, savings, trend, and what it says that it does not know."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from gpuwatch.model.cluster import Cluster
from gpuwatch.model.decision import (
    Advice,
    Analysis,
    Coverage,
    Family,
    Finding,
    FindingKind,
    Plan,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.model.telemetry import Device, Vendor
from gpuwatch.model.weekly import WeeklyReport
from gpuwatch.model.workload_profile import (
    Cell,
    DayUse,
    ProfileBook,
    UsageHour,
    WorkloadKey,
    WorkloadProfile,
)
from gpuwatch.report.weekly import assemble_weekly, gpu_share_ratio

END = datetime(2026, 3, 2, tzinfo=UTC)
START = END - timedelta(days=7)
MODEL = "A100-SXM4-40GB"
PRICES = {MODEL: 2.0}


def hours(count: int = 168, end: datetime = END, **fields: object) -> list[UsageHour]:
    """`count` hours up to `end` of a fleet of 4 GPUs: team-a holds 2 and keeps 1.5 busy, one Pod more has no sample."""
    found = []
    for number in range(count):
        hour = end - timedelta(hours=number + 1)
        held = {"allocated_gpu_hours": 3.0, "busy_gpu_hours": 1.5, "unknown_gpu_hours": 1.0, "sm_gpu_hours": 0.6}
        found.append(UsageHour(hour=hour, namespace="team-a", gpu_model=MODEL, **{**held, **fields}))
        found.append(UsageHour(hour=hour, namespace="", gpu_model=MODEL, allocated_gpu_hours=1.0, busy_gpu_hours=0.0))
    return found


def idle(pod: str, devices: tuple[str, ...], since: datetime) -> Finding:
    return Finding(
        rule="idle.abandoned",
        family=Family.IDLE,
        kind=FindingKind.ABANDONED,
        subject=Subject(SubjectKind.POD, pod),
        verdict=Verdict.IDLE,
        summary="silent",
        advice=Advice.RECLAIM,
        since=since,
        devices=devices,
        pods=(pod,),
    )


def device(name: str, profile: str | None = None) -> Device:
    return Device(
        id=name, uuid=name.split("/", maxsplit=1)[0], vendor=Vendor.NVIDIA, vocabulary="dcgm", model=f"NVIDIA {MODEL}",
        mig_profile=profile, mig_instance="1" if profile else None,
    )  # fmt: skip


def report(
    usage: list[UsageHour],
    findings: tuple[Finding, ...] = (),
    profiles: tuple[WorkloadProfile, ...] = (),
    prices: dict[str, float] = PRICES,
    devices: tuple[Device, ...] = (),
) -> WeeklyReport:
    analysis = Analysis(
        version=1,
        at=END,
        coverage=Coverage(),
        devices=devices,
        cluster=Cluster(),
        findings=findings,
        plan=Plan(at=END),
    )
    book = ProfileBook(until=END, step_seconds=300, usage=tuple(usage), profiles={item.key: item for item in profiles})
    return assemble_weekly(analysis, book, (), (), (), start=START, end=END, usd_per_gpu_hour=prices, source="a test")


def test_the_weeks_gpu_hours_and_money() -> None:
    fleet = report(hours()).fleet
    assert fleet.capacity_gpu_hours == pytest.approx(168 * 4)
    assert fleet.allocated_gpu_hours == pytest.approx(168 * 3)
    assert fleet.busy_gpu_hours == pytest.approx(168 * 1.5)
    assert fleet.sm_gpu_hours == pytest.approx(168 * 0.6)
    assert fleet.unknown_gpu_hours == pytest.approx(168)
    assert fleet.cost_usd == pytest.approx(168 * 4 * 2.0)
    # Held, measured and not busy (3 − 1 − 1.5), and on offer without a taker (1); the unknown hour is not wasted.
    assert fleet.wasted_usd == pytest.approx(168 * (0.5 + 1.0) * 2.0)


def test_hours_outside_of_the_week_do_not_count() -> None:
    late = UsageHour(hour=END, namespace="team-a", gpu_model=MODEL, allocated_gpu_hours=1.0, busy_gpu_hours=1.0)
    first = UsageHour(hour=START, namespace="team-a", gpu_model=MODEL, allocated_gpu_hours=5.0, busy_gpu_hours=0.0)
    assert report([late, first]).fleet.allocated_gpu_hours == 5.0


def test_a_model_without_a_price_leaves_money_unknown_and_says_so() -> None:
    found = report(hours(), prices={})
    assert found.fleet.cost_usd is None
    assert found.fleet.wasted_usd is None
    assert any(f"No price is known for {MODEL}" in line for line in found.limits)
    assert not any("No price" in line for line in report(hours()).limits)


def test_a_week_without_data_is_unknown_and_not_idle() -> None:
    found = report([])
    assert found.fleet.capacity_gpu_hours is None
    assert found.fleet.cost_usd is None
    assert found.coverage_ratio is None
    assert found.previous is None
    assert len(found.limits) == 1
    assert "unknown, not idle" in found.limits[0]
    assert all(point.capacity_gpus is None for point in found.curve)


def test_the_trend_needs_a_whole_week_before() -> None:
    assert report(hours(168)).previous is None
    assert report(hours(168 + 100)).previous is None
    two_weeks = report(hours(2 * 168))
    assert two_weeks.previous is not None
    assert two_weeks.previous.allocated_gpu_hours == pytest.approx(168 * 3)
    assert not any("no trend" in line for line in two_weeks.limits)


def test_an_hour_without_samples_is_a_gap_in_the_curve() -> None:
    usage = [row for row in hours() if row.hour != START + timedelta(hours=50)]
    curve = report(usage).curve
    assert len(curve) == 168
    assert curve[50].capacity_gpus is None
    assert curve[50].busy_gpus is None
    assert (curve[49].capacity_gpus, curve[49].allocated_gpus, curve[49].busy_gpus) == (4.0, 3.0, 1.5)


def test_held_hours_without_any_sample_of_activity_are_unknown_in_the_curve() -> None:
    usage = hours(allocated_gpu_hours=3.0, unknown_gpu_hours=3.0, busy_gpu_hours=0.0)
    assert {point.busy_gpus for point in report(usage).curve} == {None}


def test_few_hours_and_thin_coverage_are_said() -> None:
    assert any("Only 100 of 168 hours" in line for line in report(hours(100)).limits)
    assert not any("hours were measured" in line for line in report(hours(150)).limits)
    thin = report(hours(unknown_gpu_hours=0.7, allocated_gpu_hours=3.0))
    assert thin.coverage_ratio == pytest.approx(1 - 0.7 / 3)
    assert any("Activity was measured for 77%" in line for line in thin.limits)
    assert not any("Activity was measured" in line for line in report(hours(unknown_gpu_hours=0.5)).limits)


def test_idle_allocations_count_from_their_silence_within_the_week() -> None:
    since = END - timedelta(hours=10)
    old = END - timedelta(days=30)
    found = report(
        hours(),
        (idle("team-a/one", ("GPU-1",), since), idle("team-b/two", ("GPU-2", "GPU-3"), old)),
        devices=(device("GPU-1"), device("GPU-2"), device("GPU-3")),
    )
    assert found.fleet.idle_gpu_hours == pytest.approx(10 + 2 * 168)
    assert found.fleet.savable_gpu_hours_per_week == pytest.approx(3 * 168)
    assert found.fleet.savable_usd_per_week == pytest.approx(3 * 168 * 2.0)
    team = found.teams[0]
    assert (team.namespace, team.idle_allocations) == ("team-a", 1)
    assert team.use.savable_gpu_hours_per_week == pytest.approx(168)


def test_two_idle_pods_on_one_device_free_it_once() -> None:
    findings = (idle("team-a/one", ("GPU-1",), START), idle("team-a/two", ("GPU-1",), START))
    found = report(hours(), findings, devices=(device("GPU-1"),))
    assert found.fleet.savable_gpu_hours_per_week == pytest.approx(168)


def test_an_instance_counts_with_its_share_of_compute() -> None:
    assert gpu_share_ratio(device("GPU-1/7", "2g.10gb")) == pytest.approx(2 / 7)
    assert gpu_share_ratio(device("GPU-1")) == 1.0
    assert gpu_share_ratio(device("GPU-1/7", "9g.999gb")) == 1.0


def test_lost_hours_are_added_by_cause_the_largest_first() -> None:
    found = report(hours(10, lost_gpu_hours={"xid": 0.25, "throttled": 0.5}))
    assert list(found.lost_gpu_hours_by_cause.items()) == [("throttled", 5.0), ("xid", 2.5)]
    assert found.fleet.lost_gpu_hours == pytest.approx(7.5)


def test_a_gpu_that_is_gone_counts_as_lost_from_then_on() -> None:
    since = END - timedelta(hours=30)
    finding = replace(
        idle("x/y", ("GPU-1",), since),
        kind=FindingKind.GPU_MISSING,
        verdict=Verdict.DEGRADED,
        subject=Subject(SubjectKind.DEVICE, "GPU-1"),
    )
    absent = replace(device("GPU-1"), present=False)
    found = report(hours(), (finding,), devices=(absent,))
    assert found.lost_gpu_hours_by_cause == {"gpu_missing": pytest.approx(30.0)}
    assert found.fleet.lost_gpu_hours == pytest.approx(30.0)
    assert found.fleet.capacity_gpu_hours == pytest.approx(168 * 4 + 30)
    # One that reports again is counted by its samples.
    assert report(hours(), (finding,), devices=(device("GPU-1"),)).lost_gpu_hours_by_cause == {}


def test_a_workloads_week_comes_from_its_days() -> None:
    days = tuple(
        DayUse(day=date(2026, 2, number), allocated_gpu_hours=24.0, busy_gpu_hours=6.0, unknown_gpu_hours=12.0)
        for number in range(20, 29)
    )
    profile = WorkloadProfile(
        key=WorkloadKey("Deployment/team-a/chat", "server", MODEL),
        as_of=END,
        half_life_seconds=72 * 3600,
        cells=(
            Cell(weight_seconds=300, busy_ratio=0.5, sm_active_ratio=0.2),
            Cell(weight_seconds=100, busy_ratio=0.5, sm_active_ratio=0.6),
            Cell(weight_seconds=900, busy_ratio=0.5),
        ),
        first_seen=START,
        last_seen=END,
        days=days,
    )
    found = report(hours(), profiles=(profile,)).workloads
    assert len(found) == 1
    assert found[0].namespace == "team-a"
    assert found[0].allocated_gpu_hours == pytest.approx(6 * 24)  # 23 to 28 February: the week begins on the 23rd
    assert found[0].busy_ratio == pytest.approx(0.5)
    assert found[0].sm_active_ratio == pytest.approx(0.3)
    assert found[0].cost_usd == pytest.approx(6 * 24 * 2.0)
    assert found[0].memory_peak_bytes is None
