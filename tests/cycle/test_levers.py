"""The account of levers: it adds up over any ledger, and each wasted hour has the lever or the reason that fits."""

import json
import math
import re
import shlex
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cycle.test_weekly_values import (
    CHAT,
    END,
    FREE,
    HELD,
    MODEL,
    MODELS,
    PRICES,
    START,
    device,
    half,
    hours,
    idle,
    ledger,
    released,
    used,
)
from gpuwatch.account.levers import levers_of
from gpuwatch.account.money import Rates
from gpuwatch.facts.model.cluster import Cluster, Pod
from gpuwatch.facts.model.decision import Finding
from gpuwatch.facts.model.ledger import Group, Ledger, LedgerEntry, Loss, LossCause, Row
from gpuwatch.facts.model.sizing import Abstention, AbstentionKind, Recommendation, Veto
from gpuwatch.facts.model.weekly import Amount, Left, Lever, LeverAccount, LeverKind, Sureness
from gpuwatch.facts.model.workload_profile import ProfileBook, WorkloadKey, WorkloadProfile
from gpuwatch.say.weekly_words import LEFT, LEVERS, SURENESS
from report.terminal import analysis_of

PAGE = (Path(__file__).parents[2] / "docs" / "levers.md").read_text(encoding="utf-8")


def account(
    entries: Iterable[LedgerEntry],
    advice: Iterable[Recommendation] = (),
    abstained: Iterable[Abstention] = (),
    profiles: Iterable[WorkloadProfile] = (),
    findings: tuple[Finding, ...] = (),
    refused: str = "",
    prices: dict[str, float] = PRICES,
    losses: tuple[Loss, ...] = (),
    workloads: dict[str, str] | None = None,
) -> LeverAccount:
    """workloads: of Pods, by namespace/name."""
    pods = (
        Pod(namespace=ref.partition("/")[0], name=ref.partition("/")[2], phase="Running", workload=workload)
        for ref, workload in (workloads or {}).items()
    )
    names = dict.fromkeys(name for item in findings for name in item.devices)
    analysis = analysis_of(
        findings, at=END, devices=map(device, names), cluster=Cluster(pods=tuple(pods)),
        plan=released(findings, refused),
    )  # fmt: skip
    book = ProfileBook(until=END, step_seconds=300, profiles={item.key: item for item in profiles})
    of = replace(ledger(entries, prices), losses=losses)
    rates = Rates(by_model=prices)
    return levers_of(of, analysis, findings, book, advice, abstained, rates, START, END)[0]


def stays(
    kind: AbstentionKind,
    vetoes: Iterable[str] = (),
    ratio: float = 0.5,
    key: WorkloadKey = CHAT,
    *,
    priced: bool = True,
) -> Abstention:
    """An abstention whose nearest option saves a part of a week that goes on without an end."""
    advice = half(key, ratio, priced=priced)
    near = replace(advice.chosen, vetoes=tuple(Veto(rule, f"It is against {rule}.") for rule in vetoes))
    return Abstention(
        key=key, at=END, kind=kind, reason="Why.", resolve="How.", current=advice.current, nearest=near
    )  # fmt: skip


# What adds up


@st.composite
def accounts(draw: st.DrawFn) -> tuple[Ledger, LeverAccount]:
    """Workloads on two models, of which one may have no price, with hours in any rows; idle or not, with advice, with
    an abstention or with neither, in one profile or two; and what no Pod had."""
    profiles, advice, abstained, entries = [], [], [], list[LedgerEntry]()
    findings, workloads = list[Finding](), dict[str, str]()
    part = st.floats(0.01, 8)
    for number in range(draw(st.integers(1, 5))):
        team, model = f"team-{draw(st.integers(0, 2))}", draw(st.sampled_from(MODELS))
        key = WorkloadKey(f"Deployment/{team}/w-{number}", "main", model)
        entries += hours(
            draw(st.integers(1, 12)), rows=draw(st.dictionaries(st.sampled_from(HELD), part, min_size=1, max_size=8)),
            free=draw(st.dictionaries(st.sampled_from(FREE), part, max_size=3)), namespace=team,
            workload=key.workload, model=model,
        )  # fmt: skip
        for each in (key, replace(key, container="side")):
            if draw(st.booleans()):
                profiles.append(used(draw(st.integers(1, 10)), each, draw(st.floats(1.0, 24.0))))
            ratio, priced = draw(st.floats(-0.5, 1.0)), draw(st.booleans())
            match draw(st.integers(0, 2)):
                case 0:
                    advice.append(half(each, ratio, priced=priced, condition=draw(st.sampled_from(["", "Only if."]))))
                case 1:
                    rules = draw(st.lists(st.sampled_from(["framebuffer", "elastic_memory", "nvlink", "latency"])))
                    kind = draw(st.sampled_from(AbstentionKind))
                    abstained.append(stays(kind, rules, ratio, each, priced=priced))
        if draw(st.booleans()):
            pods = [f"{team}/w-{number}-{n}" for n in range(draw(st.integers(1, 2)))]
            workloads |= dict.fromkeys(pods, key.workload)
            since = END - timedelta(hours=draw(st.integers(1, 20)))
            findings += [idle(pod, (f"GPU-{pod}",), since) for pod in pods]
    prices = draw(st.sampled_from([PRICES, {}, dict.fromkeys(MODELS, 3.0)]))
    found = account(
        entries, advice, abstained, profiles, tuple(findings), draw(st.sampled_from(["", "The plan says no."])),
        prices, workloads=workloads,
    )  # fmt: skip
    return ledger(entries, prices), found


def total(amounts: Iterable[Amount]) -> tuple[float, float]:
    found = list(amounts)
    return math.fsum(each.gpu_hours for each in found), math.fsum(each.cost or 0.0 for each in found)


@settings(max_examples=300)
@given(accounts())
def test_levers_and_what_is_left_add_up_to_the_waste_and_the_parts_to_all_hours(
    made: tuple[Ledger, LeverAccount],
) -> None:
    entries, found = made[0].entries, made[1]
    wasted = [
        each
        for each in entries
        if each.row is not Row.USEFUL
        and each.row.group is not Group.OUT_OF_SERVICE
        and (not each.unknown or each.row is Row.WAITED_FOR)
    ]
    capacity = math.fsum(each.gpu_hours for each in entries)
    near = 1e-9 * max(capacity, 1.0)
    assert found.wasted.gpu_hours == pytest.approx(math.fsum(each.gpu_hours for each in wasted), abs=near)
    cost = math.fsum(each.cost or 0.0 for each in wasted)
    levers, left = total(each.wasted for each in found.levers), total(each.wasted for each in found.left)
    assert levers[0] + left[0] == pytest.approx(found.wasted.gpu_hours, abs=near)
    assert levers[1] + left[1] == pytest.approx(cost, abs=3 * near)
    assert (found.wasted.cost or 0.0) == pytest.approx(cost, abs=3 * near)
    parts = total((found.useful, found.unknown, found.out_of_service, found.wasted))
    assert parts[0] == pytest.approx(capacity, abs=near)
    assert parts[1] == pytest.approx(math.fsum(each.cost or 0.0 for each in entries), abs=3 * near)
    for each in (*found.levers, *found.left):
        assert each.wasted.gpu_hours >= -near
        assert (each.wasted.cost or 0.0) >= -near
    for each in found.left:
        assert math.fsum(each.rows.values()) == pytest.approx(each.wasted.gpu_hours, abs=near)
    for each in found.levers:
        if each.parts:
            assert total(part.wasted for part in each.parts) == pytest.approx(total([each.wasted]), abs=near)
    sure = [each for each in found.levers if each.sureness is Sureness.SURE]
    assert found.saving_gpu_hours_per_week == pytest.approx(sum(each.saving_gpu_hours_per_week for each in sure))
    assert all(each.evidence for each in found.levers)


def test_money_adds_up_where_all_has_a_price() -> None:
    found = account(
        [*hours(rows={"few_sms": 1.0, "load": 0.5, "useful": 2.0, "unmeasured?": 1.0}, free={"absent": 1.0})]
    )
    assert total((found.useful, found.unknown, found.out_of_service, found.wasted)) == (4.5 * 168 + 168, 5.5 * 168 * 2)


# Which lever an hour has


def only(found: LeverAccount, kind: LeverKind) -> Lever:
    (lever,) = [each for each in found.levers if each.kind is kind]
    return lever


def test_a_release_goes_before_the_row_and_before_a_change() -> None:
    """A day of loads and a day without a kernel; the Pod is idle for the second."""
    rows = [
        *hours(24, END - timedelta(hours=24), rows={"load": 1.0}, free={}),
        *hours(24, rows={"load": 0.5, "model_loaded": 0.5}, free={}),
    ]
    finding = idle("team-a/chat-0", ("GPU-1",), END - timedelta(hours=24))
    found = account(rows, [half()], profiles=[used(2)], findings=(finding,), workloads={"team-a/chat-0": CHAT.workload})
    assert only(found, LeverKind.RELEASE).wasted == Amount(gpu_hours=24.0, cost=48.0)
    assert only(found, LeverKind.STARTS).wasted == Amount(gpu_hours=24.0, cost=48.0)
    assert only(found, LeverKind.RESIZE).wasted.gpu_hours == 0.0
    assert found.left == ()


@pytest.mark.parametrize(
    ("workload", "command"),
    [
        (
            "Deployment/team-a/chat",
            """-n team-a patch deployment.apps chat --type=merge -p '{"spec":{"replicas":0}}'""",
        ),
        ("Job/a/b; rm", """-n a patch job.batch 'b; rm' --type=merge -p '{"spec":{"suspend":true}}'"""),
        (
            "MPIJob/a/b",
            """-n a patch mpijob.kubeflow.org b --type=merge -p '{"spec":{"runPolicy":{"suspend":true}}}'""",
        ),
        ("Pod/a/b", ""),
        ("Job.batch.volcano.sh/a/b", ""),
    ],
)
def test_the_command_of_a_release_is_the_patch_that_gpuwatch_makes(workload: str, command: str) -> None:
    finding = idle("team-a/one", ("GPU-1",), START)
    found = account(hours(), findings=(finding,), workloads={"team-a/one": workload})
    assert only(found, LeverKind.RELEASE).change == (f"kubectl {command}" if command else "gpuwatch plan")
    if command:
        assert json.loads(shlex.split(command)[-1])


def test_what_the_plan_refuses_or_does_not_know_is_not_sure() -> None:
    finding = idle("team-a/one", ("GPU-1",), START)
    rows, workloads = hours(rows={"abandoned": 1.0}, free={}), {"team-a/one": CHAT.workload}
    admitted = account(rows, findings=(finding,), workloads=workloads)
    assert (admitted.saving_per_week, only(admitted, LeverKind.RELEASE).needs) == (336.0, "")
    refused = account(rows, findings=(finding,), refused="No second signal.", workloads=workloads)
    assert (refused.saving_per_week, only(refused, LeverKind.RELEASE).sureness) == (0.0, Sureness.REFUSED)
    assert only(refused, LeverKind.RELEASE).needs == "No second signal."
    assert only(refused, LeverKind.RELEASE).saving_per_week == 336.0
    assert only(refused, LeverKind.RELEASE).change == "gpuwatch plan"  # not how to do it all the same


@pytest.mark.parametrize(
    ("kind", "vetoes", "lever"),
    [
        (AbstentionKind.MEMORY_ELASTIC, ["framebuffer", "elastic_memory"], LeverKind.MEMORY_NEED),
        (AbstentionKind.VETOED, ["framebuffer", "elastic_memory"], LeverKind.MEMORY_NEED),
        (AbstentionKind.VETOED, ["elastic_memory", "target_speed"], LeverKind.UNBLOCK),
        (AbstentionKind.VETOED, ["latency"], LeverKind.UNBLOCK),
        (AbstentionKind.UNCERTAIN, ["target_speed"], LeverKind.TRY_RUN),
        (AbstentionKind.SIGNALS, ["measure_first"], LeverKind.MEASURE),
        (AbstentionKind.VETOED, ["framebuffer"], None),  # it needs the memory
        (AbstentionKind.VETOED, ["nvlink", "latency"], None),
        (AbstentionKind.VETOED, ["nvlink", "elastic_memory"], None),
        (AbstentionKind.MEMORY_ELASTIC, [], None),
        (AbstentionKind.RIGHT_SIZED, ["latency"], None),
        (AbstentionKind.YOUNG, [], None),
    ],
)
def test_an_abstention_has_a_lever_only_if_its_owner_can_unlock_it(
    kind: AbstentionKind, vetoes: list[str], lever: LeverKind | None
) -> None:
    week = hours(rows={"useful": 0.4, "few_sms": 0.6}, free={})
    found = account(week, abstained=[stays(kind, vetoes)], profiles=[used(7)])
    assert [each.kind for each in found.levers] == ([lever] if lever else [])
    assert found.saving_per_week == 0.0
    assert {each.left for each in found.left} == {Left(kind)}
    if lever:
        assert only(found, lever).sureness is Sureness.UP_TO
        assert only(found, lever).saving_per_week == 168.0
        assert only(found, lever).wasted.gpu_hours == pytest.approx(84.0)
    dearer = account(week, abstained=[stays(kind, vetoes, -0.5)], profiles=[used(7)])
    assert dearer.levers == ()


def test_a_row_that_names_its_cause_is_told_by_image_node_and_cause() -> None:
    rows = hours(rows={"pull": 0.5, "init": 0.25, "gang": 1.0, "lost": 2.0, "restart": 0.25}, free={"unreachable": 0.5})
    shown = [replace(each, image="registry.example.com/train:1") if each.row is Row.PULL else each for each in rows]
    lost = Loss(
        at=END, since=START, node="gpu-node", gpu_model=MODEL, namespace="team-a", workload=CHAT.workload,
        cause=LossCause.OUT_OF_MEMORY, unknown=False, gpus=2.0, ratio=1.0, gpu_hours=336.0,
    )  # fmt: skip
    found = account(shown, losses=(lost,))
    starts = only(found, LeverKind.STARTS)
    assert [part.name for part in starts.parts] == ["registry.example.com/train:1", CHAT.workload]
    assert starts.parts[0].why == "most on Node gpu-node"
    assert only(found, LeverKind.FAILURES).parts[0].why == LossCause.OUT_OF_MEMORY
    assert only(found, LeverKind.UNREACHABLE).parts[0].name == "gpu-node"
    assert only(found, LeverKind.GANGS).wasted == Amount(gpu_hours=168.0, cost=336.0)
    assert {each.sureness for each in found.levers} == {Sureness.UP_TO}
    assert [each.left for each in found.left] == [Left.ENDS]


def test_everything_has_its_words() -> None:
    assert set(LEVERS) == set(LeverKind)
    assert set(SURENESS) == set(Sureness)
    assert set(LEFT) == set(Left)


# The example of docs/levers.md


def test_the_example_of_the_page_is_computed() -> None:
    rows = {"useful": 1.0, "few_sms": 0.5, "no_kernel": 0.5, "load": 0.25}
    guard = WorkloadKey("Deployment/shop/guard", "server", MODEL)
    entries = [
        *hours(rows=rows, namespace="shop", workload=guard.workload, free={"usable": 1.0, "absent": 0.25}),
        *hours(rows={"abandoned": 1.0}, namespace="shop", workload="Job/shop/train", free={}),
        *hours(rows={"unmeasured?": 0.5}, namespace="shop", workload="Job/shop/other", free={}),
    ]
    finding = idle("shop/train-x", ("GPU-1",), START)
    found = account(
        entries, [replace(half(guard, 0.25))], profiles=[used(7, guard)], findings=(finding,),
        workloads={"shop/train-x": "Job/shop/train"},
    )  # fmt: skip
    seen = {
        "useful work": found.useful,
        "not known": found.unknown,
        "out of service": found.out_of_service,
        "wasted": found.wasted,
        "release `train`": only(found, LeverKind.RELEASE).wasted,
        "resize `guard`": only(found, LeverKind.RESIZE).wasted,
        "start faster": only(found, LeverKind.STARTS).wasted,
        **{f"left: {each.left.replace('_', ' ')}": each.wasted for each in found.left},
    }
    told = {
        name: (float(gpu_hours.replace(",", "")), float(cost.replace(",", "")))
        for name, gpu_hours, cost in re.findall(
            r"^\| ([^|]+?) +\| +([\d,.]+) \| +([\d,.]+) \|", PAGE, flags=re.MULTILINE
        )
    }
    assert told == {name: (pytest.approx(each.gpu_hours), pytest.approx(each.cost)) for name, each in seen.items()}
    assert f"{found.saving_per_week:,.0f} USD a week" in PAGE
