"""Findings against truths, on small worked examples whose answer is plain."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpuwatch.facts.model.decision import Advice, Family, Finding, FindingKind, Subject, SubjectKind, Verdict
from lab.evaluation.scoring import Kept, Quality, added, kept_together, score_faults, score_idle
from lab.planted import Named, Truth, first_named, holds, named_of

START = datetime(2026, 3, 10, tzinfo=UTC)


def hour(number: float) -> datetime:
    return START + timedelta(hours=number)


MOMENTS = [hour(number) for number in range(0, 100, 4)]


def fault(kind: FindingKind, device: str, begin: float, end: float | None = None, *, harmless: bool = False) -> Truth:
    return Truth(
        kind=kind,
        subject=Subject(SubjectKind.DEVICE, device),
        start=hour(begin),
        end=hour(end) if end is not None else None,
        devices=(device,),
        note="",
        harmless=harmless,
        nodes=("node-1",),
        fault="planted",
    )


def allocation(kind: FindingKind, pod: str, begin: float, end: float | None = None, *, service: bool = False) -> Truth:
    return Truth(
        kind=kind,
        subject=Subject(SubjectKind.POD, pod),
        start=hour(begin),
        end=hour(end) if end is not None else None,
        devices=(f"GPU-of-{pod}",),
        note="",
        harmless=kind in (FindingKind.IN_USE, FindingKind.BURSTY),
        pods=(pod,),
        workload=f"{'Deployment' if service else 'Job'}/{pod}",
    )


def about(kind: FindingKind, at: float, *, device: str = "", pod: str = "", node: str = "") -> Named:
    return Named(
        at=hour(at),
        kind=kind.value,
        subject=f"device/{device}" if device else f"pod/{pod}" if pod else f"node/{node}",
        devices=frozenset({device} if device else ()),
        pods=frozenset({pod} if pod else ()),
        node=node,
    )


def finding(kind: FindingKind, verdict: Verdict, advice: Advice = Advice.NONE) -> Finding:
    return Finding(
        rule="r", family=Family.HEALTH, kind=kind, subject=Subject(SubjectKind.DEVICE, "GPU-1"), verdict=verdict,
        summary="", advice=advice, devices=("GPU-1",),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (finding(FindingKind.XID, Verdict.DEGRADED, Advice.RESET), True),
        (finding(FindingKind.XID, Verdict.DEGRADED, Advice.FIX_APPLICATION), False),
        (finding(FindingKind.XID, Verdict.HEALTHY), False),
        (finding(FindingKind.XID, Verdict.UNKNOWN), False),
        (finding(FindingKind.EXPORTER_DOWN, Verdict.UNKNOWN, Advice.FIX_MONITORING), True),
        (finding(FindingKind.EXPORTER_DOWN, Verdict.UNKNOWN, Advice.WATCH), False),  # a scrape failed a moment ago
        (finding(FindingKind.NEVER_USED, Verdict.IDLE), True),
        (finding(FindingKind.BURSTY, Verdict.BUSY), False),
    ],
)
def test_what_counts_as_named(given: Finding, names: bool) -> None:
    assert bool(named_of(START, [given])) is names


def test_a_truth_holds_from_its_start_to_before_its_end_and_a_while_where_rules_look_back() -> None:
    truth = fault(FindingKind.XID, "GPU-1", 10, 20)
    assert not holds(truth, hour(9.99))
    assert holds(truth, hour(10))
    assert holds(truth, hour(19.99))
    assert not holds(truth, hour(20))
    assert holds(truth, hour(20), timedelta(hours=1))
    assert holds(fault(FindingKind.XID, "GPU-1", 10), hour(10_000))


def test_recall_precision_and_delay_of_faults() -> None:
    truths = [
        fault(FindingKind.XID, "GPU-1", 10, 30),
        fault(FindingKind.XID, "GPU-2", 10, 30),
        fault(FindingKind.XID, "GPU-3", 10, 30, harmless=True),
    ]
    named = [
        about(FindingKind.XID, 12, device="GPU-1"),
        about(FindingKind.XID, 16, device="GPU-1"),
        about(FindingKind.XID, 16, device="GPU-3"),
        about(FindingKind.XID, 20, device="GPU-3"),
        about(FindingKind.XID, 16, device="GPU-9"),
    ]
    (row,) = score_faults(truths, named, MOMENTS)
    assert (row.planted, row.found, row.false_found) == (2, 1, 2)
    assert row.recall == 0.5
    assert row.precision == pytest.approx(1 / 3)
    assert row.delay_hours == 2
    assert row.false_names == ("device/GPU-3", "device/GPU-9")


def test_a_finding_before_the_fault_is_false_and_one_within_a_day_after_it_is_not() -> None:
    truths = [fault(FindingKind.ECC, "GPU-1", 10, 20)]
    early = score_faults(truths, [about(FindingKind.ECC, 8, device="GPU-1")], MOMENTS)
    assert (early[0].found, early[0].false_found) == (0, 1)
    late = score_faults(truths, [about(FindingKind.ECC, 44, device="GPU-1")], MOMENTS)
    assert (late[0].found, late[0].false_found) == (1, 0)
    later = score_faults(truths, [about(FindingKind.ECC, 48, device="GPU-1")], MOMENTS)
    assert (later[0].found, later[0].false_found) == (0, 1)


def test_another_finding_on_a_broken_gpu_is_neither_found_nor_false_but_on_a_silent_exporters_gpu_it_is_false() -> None:
    broken = fault(FindingKind.XID, "GPU-1", 10, 30)
    rows = {r.kind: r for r in score_faults([broken], [about(FindingKind.ROW_REMAP, 12, device="GPU-1")], MOMENTS)}
    assert rows["row_remap"].false_found == 0
    assert rows["xid"].found == 0
    silent = fault(FindingKind.EXPORTER_DOWN, "GPU-1", 10, 30)
    rows = {r.kind: r for r in score_faults([silent], [about(FindingKind.GPU_MISSING, 12, device="GPU-1")], MOMENTS)}
    assert rows["gpu_missing"].false_found == 1


def test_a_missing_gpu_that_is_known_by_its_node_alone_counts() -> None:
    truths = [fault(FindingKind.GPU_MISSING, "GPU-1", 10, 30)]
    (right,) = score_faults(truths, [about(FindingKind.GPU_MISSING, 12, node="node-1")], MOMENTS)
    assert (right.found, right.false_found) == (1, 0)
    (wrong,) = score_faults(truths, [about(FindingKind.GPU_MISSING, 12, node="node-2")], MOMENTS)
    assert (wrong.found, wrong.false_found) == (0, 1)


def test_what_began_before_anybody_looked_is_not_asked_for_and_not_false_either() -> None:
    truths = [fault(FindingKind.XID, "GPU-1", -2), fault(FindingKind.XID, "GPU-2", 0)]
    named = [about(FindingKind.XID, 4, device="GPU-1"), about(FindingKind.XID, 4, device="GPU-2")]
    (row,) = score_faults(truths, named, MOMENTS)
    assert (row.planted, row.found, row.false_found) == (1, 1, 0)


def test_a_rebooting_nodes_exporter_may_be_named_gone_but_need_not() -> None:
    rebooting = replace(fault(FindingKind.EXPORTER_DOWN, "GPU-1", 10, 11, harmless=True), fault="reboot", devices=())
    assert score_faults([rebooting], [], MOMENTS) == []
    (row,) = score_faults([rebooting], [about(FindingKind.EXPORTER_DOWN, 10.5, node="node-1")], MOMENTS)
    assert (row.planted, row.found, row.false_found) == (0, 0, 0)


def test_a_fault_that_no_moment_saw_is_not_asked_for() -> None:
    assert score_faults([fault(FindingKind.XID, "GPU-1", 9, 11)], [], MOMENTS) == []
    assert score_faults([fault(FindingKind.XID, "GPU-1", 7, 9)], [], MOMENTS)[0].planted == 1


def test_idle_classes_are_told_apart_and_working_pods_are_counted() -> None:
    truths = [
        allocation(FindingKind.NEVER_USED, "a/idle", 10),
        allocation(FindingKind.ABANDONED, "a/left", 20, 60),
        allocation(FindingKind.BURSTY, "a/service", 0, service=True),
        allocation(FindingKind.IN_USE, "a/job", 0),
    ]
    named = [
        about(FindingKind.NEVER_USED, 12, pod="a/idle"),
        about(FindingKind.MODEL_LOADED, 24, pod="a/left"),
        about(FindingKind.ABANDONED, 16, pod="a/service"),
    ]
    rows, kept = score_idle(truths, named, MOMENTS)
    by_kind = {row.kind: row for row in rows}
    assert (by_kind["never_used"].found, by_kind["never_used"].same_kind) == (1, 1)
    assert (by_kind["abandoned"].found, by_kind["abandoned"].same_kind, by_kind["abandoned"].false_found) == (1, 0, 1)
    assert by_kind["abandoned"].delay_hours == 4
    assert by_kind["model_loaded"].precision is None
    # One device, from hour 20 to 60, named at hour 24.
    assert (by_kind["abandoned"].gpu_hours, by_kind["abandoned"].gpu_hours_named) == (40, 36)
    assert (by_kind["idle, any class"].planted, by_kind["idle, any class"].found) == (2, 2)
    assert by_kind["idle, any class"].false_names == ("a/service",)
    assert kept == Kept(rule="gpuwatch", pods=2, named=1, services=1, services_named=1)


LEFT = allocation(FindingKind.ABANDONED, "a/left", 20, 60)


def due_of(truth: Truth, named_at: float | None, wait: float | None, *others: Truth) -> Quality:
    """The row of one planted allocation, named at that hour, whose silence is explained for so many hours."""
    named = [] if named_at is None else [about(truth.kind, named_at, pod=truth.pods[0])]
    waits = {} if wait is None else {truth.pods[0]: timedelta(hours=wait)}
    rows, _ = score_idle([truth, *others], named, MOMENTS, waits=waits)
    return next(row for row in rows if row.kind == truth.kind.value)


@pytest.mark.parametrize(("named_at", "late"), [(32, 2), (30, 0), (24, -6)])
def test_lateness_counts_from_when_the_silence_is_no_longer_explained(named_at: float, late: float) -> None:
    row = due_of(LEFT, named_at, 10)
    assert (row.due, row.due_found, row.late_hours) == (1, 1, (late,))
    assert row.late_hours_median == late


def test_what_is_due_and_was_not_named_is_missed() -> None:
    row = due_of(LEFT, None, 10)
    assert (row.due, row.due_found, row.late_hours_median) == (1, 0, None)


@pytest.mark.parametrize(("wait", "due"), [(36, 1), (37, 0), (None, 0)])
def test_what_ended_before_anybody_could_know_is_not_due(wait: float | None, due: int) -> None:
    # The last moment before its end is at hour 56.
    assert due_of(LEFT, None, wait).due == due


def test_what_never_worked_is_due_two_hours_after_its_start() -> None:
    row = due_of(allocation(FindingKind.NEVER_USED, "a/idle", 10), 12, None)
    assert (row.due, row.late_hours, row.delays_hours) == (1, (0,), (2,))


@pytest.mark.parametrize(
    ("begin", "end", "due"), [(25, 26, 0), (0, 21, 0), (19, None, 0), (0, 20, 1), (30, 40, 1)], ids=str
)
def test_without_telemetry_nothing_is_due(begin: float, end: float | None, due: int) -> None:
    gone = replace(fault(FindingKind.EXPORTER_DOWN, "GPU-1", begin, end), devices=(), nodes=("node-7", "node-8"))
    assert due_of(replace(LEFT, nodes=("node-7",)), 32, 10, gone).due == due
    assert due_of(replace(LEFT, nodes=("node-9",)), 32, 10, gone).due == 1


def test_naming_a_pod_that_still_works_is_false_even_where_it_stops_later() -> None:
    truths = [allocation(FindingKind.ABANDONED, "a/left", 20, 60)]
    rows, _ = score_idle(truths, [about(FindingKind.ABANDONED, 12, pod="a/left")], MOMENTS)
    assert (rows[-1].found, rows[-1].false_found) == (0, 1)


def test_a_baseline_is_scored_by_its_own_names_only() -> None:
    truths = [allocation(FindingKind.NEVER_USED, "a/idle", 10), allocation(FindingKind.BURSTY, "a/service", 0)]
    named = [
        Named(at=hour(12), kind="rule", subject="pod/a/idle", pods=frozenset({"a/idle"})),
        Named(at=hour(12), kind="rule", subject="pod/a/service", pods=frozenset({"a/service"})),
        about(FindingKind.NEVER_USED, 12, pod="a/other"),
    ]
    (row,), kept = score_idle(truths, named, MOMENTS, "rule")
    assert (row.kind, row.planted, row.found, row.false_found) == ("rule", 1, 1, 1)
    assert (kept.pods, kept.named) == (1, 1)


def test_first_named_is_the_first_of_its_kind() -> None:
    named = [
        about(FindingKind.ECC, 11, device="GPU-1"),
        about(FindingKind.XID, 14, device="GPU-1"),
        about(FindingKind.XID, 12, device="GPU-1"),
        about(FindingKind.MODEL_LOADED, 26, pod="a/left"),
    ]
    assert first_named(fault(FindingKind.XID, "GPU-1", 10), named) == hour(12)
    assert first_named(fault(FindingKind.HUNG, "GPU-1", 10), named) is None
    assert first_named(allocation(FindingKind.ABANDONED, "a/left", 20), named) == hour(26)


def test_fleets_add_up() -> None:
    one = Quality(
        kind="xid", planted=3, found=2, false_found=1, same_kind=2, delays_hours=(1, 5), due=2, late_hours=(1,)
    )
    two = Quality(kind="xid", planted=1, found=1, false_found=0, same_kind=1, delays_hours=(3,), due=1, late_hours=(3,))
    (row,) = added([[one], [two]])
    assert (row.planted, row.found, row.false_found, row.same_kind) == (4, 3, 1, 3)
    assert row.delay_hours == 3
    assert (row.due, row.due_found, row.late_hours_median) == (3, 2, 2)
    assert added([[one], [Quality(kind="ecc", planted=0, found=0, false_found=0, same_kind=0)]])[1].recall is None
    kept = Kept(rule="r", pods=4, named=1, services=2, services_named=1)
    assert kept_together([[kept], [kept]]) == [Kept(rule="r", pods=8, named=2, services=4, services_named=2)]
