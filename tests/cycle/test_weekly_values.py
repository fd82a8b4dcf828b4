"""What the weekly report adds up: GPU-hours, money, savings, trend, and what it says that it does not know."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
import yaml

from advise.world import node, pod, price
from detect.idle_world import POLICY, InEffect, bystander, steps, world
from gpuwatch.account.fleet_cost import fleet_cost, rates_of
from gpuwatch.account.money import PriceList, Rates
from gpuwatch.account.weekly import assemble_weekly
from gpuwatch.facts.model.cluster import Cluster, Pod
from gpuwatch.facts.model.decision import (
    ActionKind,
    Candidate,
    Finding,
    FindingKind,
    Mode,
    Plan,
    PlanItem,
    Refusal,
    Score,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.ledger import Group, Ledger, LedgerEntry, Row
from gpuwatch.facts.model.sizing import Recommendation
from gpuwatch.facts.model.telemetry import Device, Vendor
from gpuwatch.facts.model.weekly import Left, WeeklyReport
from gpuwatch.facts.model.workload_profile import DayUse, MemoryRun, ProfileBook, WorkloadKey, WorkloadProfile
from gpuwatch.judge.idle.assess import assess_idle
from gpuwatch.say.weekly_pages import weekly_html, weekly_markdown, weekly_summary
from gpuwatch.say.weekly_words import parts
from plan import fleet
from report.terminal import analysis_of
from report.weekly_example import recommendation

END = datetime(2026, 3, 2, tzinfo=UTC)
START = END - timedelta(days=7)
MODEL = "A100-SXM4-40GB"
MODELS = (MODEL, "H100-SXM5-80GB")
PRICES = {MODEL: 2.0}
WEEKS = yaml.safe_load(Path(__file__).with_name("weeks.yaml").read_text(encoding="utf-8"))


FREE, HELD = (
    [
        f"{row}{twin}"
        for row in Row
        for twin in ("", "?")
        if (row is Row.OUTSIDE or row.group in (Group.FREE, Group.OUT_OF_SERVICE)) == free
    ]
    for free in (True, False)
)
"""Rows of what no Pod has, and of what one has."""
WORK = {"useful": 0.6, "few_sms": 0.9, "no_kernel": 0.5, "unmeasured?": 1.0}


def hours(
    count: int = 168,
    end: datetime = END,
    rows: Mapping[str, float] = MappingProxyType(WORK),
    namespace: str = "team-a",
    workload: str = "Deployment/team-a/chat",
    free: Mapping[str, float] = MappingProxyType({"usable": 1.0}),
    model: str = MODEL,
) -> list[LedgerEntry]:
    """`count` hours up to `end`, GPU-hours by row, with ? for the unknown twin. By default of 4 GPUs: team-a has 3 and
    keeps 1.5 busy, one has no sample, and one is free."""
    return [
        LedgerEntry(
            hour=end - timedelta(hours=number + 1),
            node="gpu-node",
            pool="",
            gpu_model=model,
            namespace=holder[0],
            workload=holder[1],
            row=Row(row.removesuffix("?")),
            unknown=row.endswith("?"),
            gpu_hours=gpu_hours,
        )
        for number in range(count)
        for holder, of in (((namespace, workload), rows), (("", ""), free))
        for row, gpu_hours in of.items()
    ]


def ledger(entries: Iterable[LedgerEntry], prices: Mapping[str, float] | None = None, currency: str = "USD") -> Ledger:
    found = tuple(
        replace(each, cost=each.gpu_hours * prices[each.gpu_model]) if prices and each.gpu_model in prices else each
        for each in entries
    )
    return Ledger(
        version=1, start=START, end=END, source="a test", currency=currency,
        capacity_gpu_hours=sum(each.gpu_hours for each in found), entries=found,
    )  # fmt: skip


def idle(pod: str, devices: tuple[str, ...], since: datetime) -> Finding:
    return fleet.idle(pod, map(device, devices), since=since)


def device(name: str, profile: str | None = None) -> Device:
    return Device(
        id=name, uuid=name.split("/", maxsplit=1)[0], vendor=Vendor.NVIDIA, vocabulary="dcgm", model=f"NVIDIA {MODEL}",
        mig_profile=profile, mig_instance="1" if profile else None, node="gpu-node",
    )  # fmt: skip


def released(findings: Iterable[Finding], refused: str = "") -> Plan:
    """A plan with a release of each; refused: why all are."""
    items = (
        PlanItem(
            candidate=Candidate(
                action=ActionKind.RELEASE_GANG, target=item.subject, findings=(item.id,), devices=item.devices,
                pods=item.pods, nodes=(),
            ),
            score=Score(
                gained_gpu_hours=1.0, disrupted_gpu_hours=0.0, pool_gpu_hours=1.0, confidence_ratio=0.9,
                horizon_hours=24.0,
            ),
            mode=Mode.OBSERVE,
            refusals=(Refusal(guard="evidence", reason=refused),) if refused else (),
        )
        for item in findings
    )  # fmt: skip
    return Plan(at=END, items=tuple(items))


def report(
    entries: list[LedgerEntry],
    findings: tuple[Finding, ...] = (),
    profiles: tuple[WorkloadProfile, ...] = (),
    prices: dict[str, float] = PRICES,
    devices: tuple[Device, ...] = (),
    advice: tuple[Recommendation, ...] = (),
    start: datetime = START,
    world: Cluster | None = None,
    currency: str = "USD",
    before: list[LedgerEntry] | None = None,
    refused: str = "",
) -> WeeklyReport:
    """The plan releases all that is idle; refused: why it does not."""
    found = [item for item in findings if item.verdict is Verdict.IDLE]
    analysis = analysis_of(findings, at=END, devices=devices, cluster=world or Cluster(), plan=released(found, refused))
    book = ProfileBook(until=END, step_seconds=300, profiles={item.key: item for item in profiles})
    return assemble_weekly(
        analysis, ledger(entries, prices, currency), entries, book, advice, (), (), start=start, end=END,
        rates=Rates(by_model=prices), before=None if before is None else ledger(before, prices),
    )  # fmt: skip


CHAT = WorkloadKey("Deployment/team-a/chat", "server", MODEL)


def used(
    days: int, key: WorkloadKey | dict[str, str] = CHAT, each: float = 24.0, busy: float = 6.0, last: int = 0
) -> WorkloadProfile:
    """One GPU for so many days up to END, or up to `last` days before."""
    return WorkloadProfile(
        key=WorkloadKey(**key) if isinstance(key, dict) else key,
        as_of=END,
        half_life_seconds=72 * 3600,
        first_seen=END - timedelta(days=days),
        last_seen=END,
        days=tuple(
            DayUse(day=(END - timedelta(days=number + 1)).date(), allocated_gpu_hours=each, busy_gpu_hours=busy)
            for number in range(last, days)
        ),
    )


def half(key: WorkloadKey = CHAT, ratio: float = 0.5, *, priced: bool = True, condition: str = "") -> Recommendation:
    """Saves half of a week that goes on without an end: 84 of 168 GPU-hours, 168 of 336."""
    base = recommendation(key.workload, model=key.gpu_model)
    return replace(
        base,
        key=key,
        condition=condition,
        current=replace(
            base.current, projected_cost_per_week=336.0 if priced else None, projected_gpu_hours_per_week=168.0
        ),
        chosen=replace(
            base.chosen,
            projected_saving_per_week=336.0 * ratio if priced else None,
            projected_saving_gpu_hours_per_week=168.0 * ratio,
        ),
    )


def finding(pod: str, devices: list[str], hours: float = 168, **changes: Any) -> Finding:
    """Idle for so long."""
    told = msgspec.to_builtins(idle(pod, tuple(devices), END - timedelta(hours=hours)))
    return msgspec.convert({**told, **changes}, Finding)


def week(row: dict[str, Any]) -> WeeklyReport:
    """The report of a row of weeks.yaml, which lasts for `hours`. use, before: of `hours()`, each; idle: findings;
    used: profiles; advised: changes that save half; devices: what is not usual with those that findings name; pods:
    their workloads."""
    findings = tuple(finding(**each) for each in row.get("idle", ()))
    told = row.get("devices", {})
    names = dict.fromkeys(name for item in findings for name in item.devices)
    pods = (
        Pod(namespace=name.partition("/")[0], name=name.partition("/")[2], phase="Running", workload=workload)
        for name, workload in row.get("pods", {}).items()
    )
    return report(
        [hour for each in row.get("use", [{}]) for hour in hours(**each)],
        findings,
        tuple(used(**each) for each in row.get("used", ())),
        row.get("prices", PRICES),
        tuple(replace(device(name), **told.get(name, {})) for name in names),
        tuple(half(**each) for each in row.get("advised", ())),
        END - timedelta(hours=row.get("hours", 168)),
        Cluster(pods=tuple(pods)),
        row.get("currency", "USD"),
        hours(**row["before"]) if "before" in row else None,
        row.get("refused", ""),
    )


def at(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value[int(part)] if part.isdigit() else getattr(value, part)
    return value


@pytest.mark.parametrize("row", WEEKS, ids=lambda row: row["what"])
def test_a_week_adds_up(row: dict[str, Any]) -> None:
    found = week(row)
    for path, value in row.get("then", {}).items():
        seen = at(found, path)
        assert (list(seen) if isinstance(value, list) else seen) == pytest.approx(value), path
        assert not isinstance(value, dict) or list(at(found, path)) == list(value)
    limits = "\n".join(found.limits)
    assert [words for words in row.get("says", ()) if words not in limits] == []
    assert [words for words in row.get("says_not", ()) if words in limits] == []


def test_a_week_without_data_is_unknown_and_not_idle() -> None:
    found = report([])
    assert found.fleet.capacity_gpu_hours is None
    assert found.fleet.cost is None
    assert found.coverage_ratio is None
    assert found.previous is None
    assert len(found.limits) == 1
    assert "unknown, not idle" in found.limits[0]
    assert all(point.allocatable_gpus is None for point in found.curve)


def test_an_hour_without_samples_is_a_gap_in_the_curve() -> None:
    entries = [each for each in hours() if each.hour != START + timedelta(hours=50)]
    curve = report(entries).curve
    assert len(curve) == 168
    assert curve[50].allocatable_gpus is None
    assert curve[50].busy_gpus is None
    assert (curve[49].allocatable_gpus, curve[49].allocated_gpus, curve[49].busy_gpus) == (4.0, 3.0, 1.5)


def test_hours_of_which_nothing_is_known_are_a_gap_in_the_curve() -> None:
    found = report(hours(rows={"unmeasured?": 3.0}, free={"usable?": 1.0}))
    assert {(point.allocatable_gpus, point.busy_gpus) for point in found.curve} == {(None, None)}
    assert (found.fleet.allocated_gpu_hours, found.fleet.wasted_cost) == (504.0, 0.0)
    assert found.coverage_ratio == 0.0
    assert "Only 0 of 168 hours were measured" in found.limits[0]


def test_free_gpus_are_known_to_be_free_whoever_could_have_used_them() -> None:
    found = report(hours(rows={}, free={"unreachable?": 4.0}))
    assert {(point.allocatable_gpus, point.allocated_gpus) for point in found.curve} == {(4.0, 0.0)}
    assert not any("hours were measured" in limit for limit in found.limits)


def test_held_hours_without_any_sample_of_activity_are_unknown_in_the_curve() -> None:
    found = report(hours(rows={"unmeasured?": 3.0}))
    assert {(point.allocated_gpus, point.busy_gpus) for point in found.curve} == {(3.0, None)}


def test_the_rows_and_the_parts_add_up_to_the_capacity() -> None:
    rows = {
        f"{row}{twin}": 1.0 for row in Row for twin in ("", "?") if row.group not in (Group.FREE, Group.OUT_OF_SERVICE)
    }
    rest = {f"{row}{twin}": 1.0 for row in Row for twin in ("", "?") if row.group in (Group.FREE, Group.OUT_OF_SERVICE)}
    del rows["outside"], rows["outside?"]
    found = report(hours(1, rows=rows, free={**rest, "outside": 1.0, "outside?": 1.0}))
    assert [each.row for each in found.rows] == list(Row)
    assert sum(each.gpu_hours + each.unknown_gpu_hours for each in found.rows) == found.fleet.capacity_gpu_hours == 48
    told = {part.label: part.gpu_hours for part in parts(found)}
    assert sum(told.values()) == pytest.approx(48)
    # One hour of each row is known and one is not; all that is wasted has a lever or a reason.
    assert told["Useful work"] == 1
    assert told["Out of service"] == found.fleet.out_of_service_gpu_hours == 6
    assert told["Not known"] == 20
    assert told["Wasted: a sure lever"] == 0
    assert told["Wasted: a lever, not sure"] == 6  # three of starts, a gang, a failure, what is unreachable
    assert told["Wasted: no lever"] == 15
    assert found.fleet.cost == 96.0
    assert found.fleet.wasted_cost == found.levers.wasted.cost == 42.0


def test_a_gang_in_part_costs_what_it_had_and_did_not_use() -> None:
    left = idle("team-a/left", ("gpu-0",), START - timedelta(hours=5))
    gang = replace(left, kind=FindingKind.PARTIAL_GANG, pods=("team-a/left", "team-a/without-a-place"))
    world = Cluster(pods=(Pod(namespace="team-a", name="left", phase="Running", workload=CHAT.workload),))
    found = report(hours(rows={"gang": 1.0}), (gang,), devices=(device("gpu-0"),), world=world)
    assert found.idle == (gang,)
    assert [(each.findings, each.wasted.cost) for each in found.levers.levers] == [((gang.id,), pytest.approx(336.0))]
    assert found.fleet.idle_gpu_hours == 0
    for text in (weekly_html(found), weekly_markdown(found)):
        assert "partial" in text


def test_gpus_that_are_out_of_service_have_their_hours_of_the_period() -> None:
    """Eight GPUs of a Node that was cordoned three days before the period: 24 h a day of each day in it."""
    cordoned = replace(
        idle("team-a/left", (), START - timedelta(days=3)),
        kind=FindingKind.OUT_OF_SERVICE,
        verdict=Verdict.UNKNOWN,
        subject=Subject(SubjectKind.NODE, "gpu-node-09"),
        gpu_hours=8 * (END - START + timedelta(days=3)) / timedelta(hours=1),
        summary="8 free GPUs are out of service: the Node is cordoned",
    )
    undated = replace(cordoned, subject=Subject(SubjectKind.NODE, "other"), since=None, gpu_hours=0.0)
    found = report(hours(), (cordoned, undated))
    assert found.unusable == (cordoned, undated)
    assert found.unusable_gpu_hours == {cordoned.id: pytest.approx(8 * (END - START) / timedelta(hours=1))}
    assert (found.idle, found.degraded, found.fleet.idle_gpu_hours) == ((), (), 0.0)
    for text in (weekly_html(found), weekly_markdown(found)):
        assert "Out of service, or allocated and not at work" in text
        assert "the Node is cordoned" in text
        assert "unknown" in text
    assert "Out of service, or" not in weekly_html(report(hours(), ()))


def test_what_is_suspected_is_left_with_its_hours_and_money() -> None:
    looks = replace(
        idle("team-a/left", ("gpu-0", "gpu-1/1"), END - timedelta(hours=5)),
        kind=FindingKind.SUSPECTED_IDLE,
        verdict=Verdict.UNKNOWN,
    )
    silent = hours(rows={"suspected": 1.5}, workload="Pod/team-a/left", free={})
    found = report(silent, (looks,), devices=(device("gpu-0"), device("gpu-1/1", "3g.20gb")))
    assert found.suspected == (looks,)
    assert (found.idle, found.fleet.idle_gpu_hours, found.levers.levers) == ((), 0.0, ())
    assert [(each.left, each.wasted.cost) for each in found.levers.left] == [(Left.SUSPECTED, 504.0)]
    for text in (weekly_html(found), weekly_markdown(found)):
        assert "Suspected idle" in text


def test_idle_pods_of_one_workload_on_one_node_share_its_hours() -> None:
    """Three GPUs were silent for the week; two Pods have them now. A third Pod is of another workload."""
    one, two = (idle(f"team-a/chat-{n}", gpus, START) for n, gpus in ((0, ("A",)), (1, ("B", "C"))))
    other = idle("team-a/other", ("D",), END - timedelta(hours=10))
    world = Cluster(
        pods=tuple(Pod(namespace="team-a", name=f"chat-{n}", phase="Running", workload=CHAT.workload) for n in (0, 1))
    )
    entries = [*hours(rows={"abandoned": 3.0}), *hours(rows={"model_loaded": 1.0}, workload="Pod/team-a/other")]
    found = report(entries, (one, two, other), devices=tuple(map(device, "ABCD")), world=world)
    costs = {each.findings: each.wasted.cost for each in found.levers.levers}
    assert costs == pytest.approx({(one.id,): 336.0, (two.id,): 672.0, (other.id,): 20.0})


def test_an_idle_gang_counts_with_all_its_gpus_for_the_namespace_of_its_pods() -> None:
    gang = replace(
        idle("team-a/worker-0", ("GPU-1", "GPU-2"), END - timedelta(hours=10)),
        subject=Subject(SubjectKind.GANG, "JobSet/team-a/train"),
        pods=("team-a/worker-0", "team-a/worker-1"),
    )
    entries = hours(10, rows={"abandoned": 2.0}, workload="JobSet/team-a/train")
    world = Cluster(
        pods=tuple(
            Pod(namespace="team-a", name=f"worker-{n}", phase="Running", workload="JobSet/team-a/train") for n in (0, 1)
        )
    )
    found = report(entries, (gang,), devices=(device("GPU-1"), device("GPU-2")), world=world)
    assert found.idle == (gang,)
    assert found.fleet.idle_gpu_hours == pytest.approx(2 * 10)
    assert found.levers.levers[0].wasted.cost == pytest.approx(2 * 10 * 2.0)
    assert found.levers.saving_gpu_hours_per_week == pytest.approx(2 * 168)
    (team,) = found.teams
    assert (team.team, team.idle_allocations) == ("team-a", 1)
    assert team.saving_per_week == pytest.approx(2 * 168 * 2.0)
    assert "2 Pods" in weekly_summary(found)
    for text in (weekly_summary(found), weekly_markdown(found), weekly_html(found).replace("<wbr>", "")):
        assert "JobSet/team-a/train" in text


def test_an_idle_gang_that_the_detector_finds_is_in_the_report() -> None:
    members = [
        InEffect(
            name=f"worker-{number}", kind="JobSet", namespace="train", workload="run", gang="run",
            activity=(steps(("#", 40), (".", 19)),),
        )
        for number in range(2)
    ]  # fmt: skip
    findings = assess_idle(world(*members, bystander()), POLICY)
    assert [item.subject.name for item in report(hours(), findings).idle] == ["run"]


def test_workloads_add_up_to_teams_and_teams_to_the_fleet() -> None:
    entries = [
        *hours(rows={"abandoned": 2.0, "useful": 1.0}),
        *hours(rows={"few_sms": 1.5}, namespace="team-b", workload="Job/team-b/x"),
        *hours(rows={"load": 0.5, "lost?": 1.0}, namespace="team-b", workload="Job/team-b/y", model="H100-SXM5-80GB"),
    ]
    found = report(entries, profiles=(used(4), used(9, replace(CHAT, container="side"))))
    names = ["allocated_gpu_hours", "idle_gpu_hours", "cost", "wasted_cost"]
    for team in found.teams:
        members = [use for use in found.workloads if use.namespace == team.team]
        for name in names:
            parts = [value for use in members if (value := getattr(use, name)) is not None]
            assert (getattr(team.use, name) or 0.0) == pytest.approx(sum(parts), abs=1e-6), name
    for name in names[:2]:
        assert getattr(found.fleet, name) == pytest.approx(sum(getattr(team.use, name) for team in found.teams))


def test_a_degraded_gpu_costs_its_price_from_the_start_of_the_finding() -> None:
    began = replace(
        idle("x/y", ("GPU-1",), END - timedelta(hours=30)),
        kind=FindingKind.XID,
        verdict=Verdict.DEGRADED,
        subject=Subject(SubjectKind.DEVICE, "GPU-1"),
    )
    before = replace(began, kind=FindingKind.ECC, since=START - timedelta(hours=5))
    open_start = replace(began, kind=FindingKind.ROW_REMAP, since=None)
    unseen = replace(began, kind=FindingKind.HUNG, devices=("GPU-9",))
    found = report(hours(), (open_start, unseen, began, before), devices=(device("GPU-1"),))
    assert found.degraded_gpu_hours == {began.id: pytest.approx(30.0), before.id: pytest.approx(168.0)}
    assert found.fleet.cost is not None
    assert found.fleet.capacity_gpu_hours is not None
    price = found.fleet.cost / found.fleet.capacity_gpu_hours
    assert found.degraded_cost == {began.id: pytest.approx(30.0 * price), before.id: pytest.approx(168.0 * price)}
    assert found.degraded[:2] == (before, began)  # the dearest first


def test_a_workloads_week_comes_from_the_ledger_and_its_memory_from_its_profile() -> None:
    run = MemoryRun(
        pod="team-a/chat-0", first_seen=START, last_seen=END, peak_bytes=3e9, at_start_bytes=None,
        capacity_bytes=None, device_seconds=600.0,
    )  # fmt: skip
    rows = {"useful": 0.6, "few_sms": 0.6, "no_kernel": 0.8, "unmeasured?": 2.0}
    found = report(hours(rows=rows), profiles=(replace(used(9), runs=(run,)),)).workloads
    assert len(found) == 1
    assert (found[0].namespace, found[0].gpu_model) == ("team-a", MODEL)
    assert found[0].allocated_gpu_hours == pytest.approx(168 * 4)
    assert found[0].busy_ratio == pytest.approx(0.6)
    assert found[0].sm_active_ratio == pytest.approx(0.3)
    assert found[0].cost == pytest.approx(168 * 4 * 2.0)
    assert found[0].memory_peak_bytes == 3e9
    (without,) = report(hours(rows={"useful?": 1.0})).workloads
    assert (without.busy_ratio, without.sm_active_ratio, without.memory_peak_bytes) == (1.0, None, None)


def test_a_cheap_and_a_dear_node_of_one_model_cost_the_same_in_the_report_as_on_the_status_page() -> None:
    """Two instance types have an A100 for 2 and for 6 an hour; each team has a whole Node."""
    listed = PriceList([price(), price(name="dear", per_hour=48.0)])
    nodes = [node("cheap"), node("dear", instance_type="dear")]
    pods = [
        pod(f"Job/team-{name}/{name}", name, on=name, accelerators={"nvidia.com/gpu": 8}) for name in ("cheap", "dear")
    ]
    held = tuple(
        replace(device(f"{name}-{number}"), node=name, pods=(f"team-{name}/{name}",))
        for name in ("cheap", "dear")
        for number in range(8)
    )
    silent = idle("team-dear/dear", tuple(each.id for each in held if each.node == "dear"), START)
    entries = [
        replace(each, node=name, cost=8.0 * cost)
        for name, cost in (("cheap", 2.0), ("dear", 6.0))
        for each in hours(
            rows={"abandoned": 8.0}, namespace=f"team-{name}", workload=f"Job/team-{name}/{name}", free={}
        )
    ]
    world = Cluster(nodes=tuple(nodes), pods=tuple(pods))
    now = analysis_of([silent], at=END, devices=held, cluster=world, plan=released([silent]))
    page, book = fleet_cost(now, listed), ProfileBook(until=END, step_seconds=300)
    found = assemble_weekly(
        now, ledger(entries), entries, book, (), (), (), start=START, end=END, rates=rates_of(now, listed)
    )  # fmt: skip
    of_team = {team.team: team.use.cost for team in found.teams}
    an_hour = {"team-cheap": page.cost["team-cheap", "allocated"], "team-dear": page.cost["team-dear", "idle"]}
    assert an_hour == {"team-cheap": pytest.approx(16.0), "team-dear": pytest.approx(48.0)}
    assert of_team == {name: pytest.approx(168 * cost) for name, cost in an_hour.items()}
    assert found.fleet.cost == pytest.approx(168 * 64.0)
    assert found.levers.levers[0].wasted.cost == pytest.approx(168 * 48.0)
    assert found.levers.saving_per_week == pytest.approx(168 * page.saving["team-dear", "release", "likely"])
