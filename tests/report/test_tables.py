"""What a person reads in the terminal."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from detect.test_contention import ALONE_A, ALONE_B, SHARED, SISTERS, A, B, dram, snapshot
from gpuwatch.account.money import PriceList
from gpuwatch.act.analysis import Policies, analyse, assess
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.app.cli.scope import Scope
from gpuwatch.facts.catalog.instances import InstanceType
from gpuwatch.facts.model.decision import (
    Analysis,
    Coverage,
    Evidence,
    Family,
    Finding,
    FindingKind,
    Severity,
    Snapshot,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.telemetry import Device, Vendor
from gpuwatch.say.explain import explain, explanation_tables
from gpuwatch.say.tables import analysis_tables
from plan.fleet import node, pod, sick
from report import terminal
from report.terminal import analysis_of, flat

AT = datetime(2026, 3, 2, 12, tzinfo=UTC)


def device(name: str, *pods: str) -> Device:
    return Device(id=name, uuid=name, vendor=Vendor.NVIDIA, vocabulary="dcgm", pods=pods)


def analysis(findings: tuple[Finding, ...] = (), devices: int = 0, health_unknown: int = 0) -> Analysis:
    coverage = Coverage(devices=devices, devices_present=devices, health_unknown=health_unknown)
    return analysis_of(findings, at=AT, devices=(device(f"GPU-{n}") for n in range(devices)), coverage=coverage)


def unknown(pod: str) -> Finding:
    return Finding(
        rule="idle.idle_unknown",
        family=Family.IDLE,
        kind=FindingKind.IDLE_UNKNOWN,
        subject=Subject(SubjectKind.POD, pod),
        verdict=Verdict.UNKNOWN,
        summary=f"{pod} shares its device",
        severity=Severity.INFO,
        missing=("which Pod's work it is",),
    )


def shown(item: Analysis, rows: int = 30, scope: str = "") -> str:
    return terminal.shown(analysis_tables(item, "a test", scope=scope, rows=rows))


@pytest.mark.parametrize(
    ("devices", "health_unknown", "says"),
    [
        (0, 0, "Degraded  not known"),
        (8, 8, "Degraded  not known"),
        (8, 7, "Degraded  none found among the 1 device that could be judged"),
    ],
)
def test_nothing_found_where_nothing_is_known_is_no_good_news(devices: int, health_unknown: int, says: str) -> None:
    assert says in shown(analysis(devices=devices, health_unknown=health_unknown))


def idle(name: str) -> Finding:
    return replace(unknown(f"ml/{name}"), verdict=Verdict.IDLE, devices=(name,))


def broken(name: str) -> Finding:
    return replace(unknown("x"), family=Family.HEALTH, verdict=Verdict.DEGRADED, devices=(name,))


@pytest.mark.parametrize(
    ("findings", "devices", "health_unknown", "says"),
    [
        ((), 0, 0, "Not known: the health of no GPU could be judged."),
        ((), 8, 8, "Not known: the health of no GPU could be judged."),
        ((), 8, 1, "Nothing to act on: none of 7 devices is degraded, and none of 0 Pods is proven idle, of those"),
        ((broken("GPU-0"), broken("GPU-0")), 8, 0, "Act: 1 GPU is degraded."),
        (
            (broken("GPU-0"), idle("GPU-1"), idle("GPU-2")),
            8,
            0,
            "Act: 1 GPU is degraded, and 2 allocated GPUs are idle.",
        ),
        ((replace(broken("GPU-0"), severity=Severity.CRITICAL),), 8, 8, "Act: 1 GPU is degraded (critical)."),
    ],
)
def test_the_first_line_is_the_verdict(
    findings: tuple[Finding, ...], devices: int, health_unknown: int, says: str
) -> None:
    assert shown(analysis(findings, devices, health_unknown)).lstrip().startswith(says)


@pytest.mark.parametrize(("priced", "says"), [(True, "are idle, which costs 72 EUR a day."), (False, "are idle.")])
def test_the_verdict_says_what_idle_gpus_cost_where_each_price_is_known(priced: bool, says: str) -> None:
    """A MIG instance of two counts half: 2 EUR × 24 h for a GPU, and half of it for the instance."""
    big = InstanceType(
        name="big",
        vendor="",
        region="*",
        gpu="A100-SXM4-80GB",
        gpu_count=8,
        price_per_hour=16.0,
        currency="EUR",
        price_date=AT.date(),
        source="a contract",
    )
    labels = {"node.kubernetes.io/instance-type": "big" if priced else "small"}
    nodes = (node("n0", labels=labels, gpu_count=8),)
    devices = [replace(device(f"GPU-{n}"), node="n0") for n in range(2)]
    devices.append(replace(device("MIG-1"), uuid="GPU-1", node="n0"))
    item = analysis((idle("GPU-0"), idle("MIG-1")), 3)
    item = replace(item, devices=tuple(devices), cluster=replace(item.cluster, nodes=nodes))
    assert says in terminal.shown(analysis_tables(item, "a test", prices=PriceList([big], "EUR")))


def test_findings_that_lack_the_same_are_one_line() -> None:
    text = shown(analysis(tuple(unknown(f"ml/pod-{n}") for n in range(5))))
    assert "Not known (5)" in text
    assert text.count("which Pod's work it is") == 1
    assert "and 3 more" in text


def test_all_that_is_wrong_with_a_gpu_is_one_row() -> None:
    first = replace(broken("GPU-0"), subject=Subject(SubjectKind.DEVICE, "GPU-0"), kind=FindingKind.ROW_REMAP)
    second = replace(first, kind=FindingKind.XID, summary="XID 64")
    other = replace(first, subject=Subject(SubjectKind.DEVICE, "GPU-1"), devices=("GPU-1",))
    text = shown(analysis((first, second, other), 2))
    assert "Degraded (2, with 3 findings)" in text
    assert text.count("row remap") == 2
    assert "XID 64" in text
    assert "Degraded (1)" in shown(analysis((first,), 1))


def test_pods_of_one_owner_that_are_idle_for_one_reason_are_one_row() -> None:
    found = [
        replace(idle(f"GPU-{n}"), subject=Subject(SubjectKind.POD, f"ml/web-{n}"), gpu_hours=2.0) for n in range(20)
    ]
    other = replace(found[0], subject=Subject(SubjectKind.POD, "ml/desk"), devices=("GPU-20",), gpu_hours=5.0)
    pods = tuple(pod(f"ml/web-{n}", "n0", owner="Deployment/ml/web") for n in range(20))
    item = analysis((*found, other), 21)
    text = shown(replace(item, cluster=replace(item.cluster, pods=pods)))
    assert "Idle allocations (21): 21 devices, 45 GPU-hours so far" in text
    (row,) = [line for line in text.splitlines() if "20 Pods of Deployment/ml/web" in line]
    assert "40.0" in row
    assert text.count("pod ml/desk") == 1


def test_what_is_suspected_has_a_table_of_its_own() -> None:
    looks = replace(unknown("ml/pod-0"), kind=FindingKind.SUSPECTED_IDLE, rule="idle.suspected_idle", gpu_hours=21.0)
    text = shown(analysis((looks, unknown("ml/pod-1"))))
    assert "Suspected idle, not proven, never acted on (1): 0 devices, 21 GPU-hours so far" in text
    assert "Not known (1)" in text


@pytest.mark.parametrize(
    ("since", "statistic", "window_seconds", "says"),
    [
        (7200, "last", 0, "2 h"),
        (900, "max", 900, "at least 15 min"),
        (1800, "min", 900, "at least 30 min"),  # two windows
        (None, "increase", 3600, "within 1 h"),
        (None, "last", 0, "not known"),
    ],
)
def test_how_long_it_has_been_so(since: int | None, statistic: str, window_seconds: int, says: str) -> None:
    fact = Evidence(signal="xid_code", value=79.0, statistic=statistic, window_seconds=window_seconds)
    began = None if since is None else AT - timedelta(seconds=since)
    finding = replace(unknown("a/b"), family=Family.HEALTH, verdict=Verdict.DEGRADED, evidence=(fact,), since=began)
    row = next(line for line in shown(analysis((finding,), devices=1)).splitlines() if "idle unknown" in line)
    assert f"  {says}  " in row


def test_the_head_counts_what_is_shown_and_says_so() -> None:
    devices = tuple(device(f"GPU-{pod}", pod) for pod in ("ml/a", "web/b"))
    mine, other = (replace(unknown(pod), pods=(pod,), devices=("GPU-ml/a",)) for pod in ("ml/a", "web/b"))
    scope = Scope("ml")
    chosen = scope.of(replace(analysis((mine, other)), devices=devices))
    assert [str(item.subject) for item in chosen.findings] == ["pod/ml/a"]
    text = shown(chosen, scope=str(scope))
    assert "Only   Pods in Namespace ml, and the GPUs that they have" in text
    assert "Shown  1 device on 1 node · 1 allocated to 1 Pod" in text
    assert "use of 0 of 1 Pod" in text


def test_pods_of_unknown_use_that_no_device_shows_are_among_those_that_are_counted() -> None:
    """As before the first sample: without this the head said that the use of -2 of 0 Pods is known."""
    hidden = tuple(replace(unknown(pod), pods=(pod,)) for pod in ("ml/a", "ml/b"))
    nothing = replace(analysis(hidden), coverage=Coverage(idle_unknown=2))
    assert "use of 0 of 2 Pods" in shown(nothing)
    assert "0 allocated to 0 Pods\n" in "\n".join(line.rstrip() for line in shown(nothing).splitlines())
    seen = replace(analysis(hidden), devices=(device("GPU-0", "ml/a"), device("GPU-1", "web/c")))
    assert "use of 1 of 3 Pods" in shown(seen)


def test_a_table_that_is_cut_says_so() -> None:
    findings = tuple(sick(device(f"GPU-{n}")) for n in range(4))
    assert "and 2 more" in shown(analysis(findings, devices=4), rows=2)
    assert "more: --rows" not in shown(analysis(findings, devices=4), rows=4)


def shared(**asked: float) -> Snapshot:
    return snapshot((SHARED, ALONE_A, ALONE_B), (A, B, *SISTERS), dram(**asked))


def test_contention_is_in_the_analysis_with_its_reason() -> None:
    text = flat(shown(analyse(PlanFacts(snapshot=shared(a=0.5, b=0.7)), Policies())))
    assert "In the wrong place (1)" in text
    assert "hbm contention" in text
    assert "they lose 33% of their speed" in text
    assert "In the wrong place" not in shown(analyse(PlanFacts(snapshot=shared(shared=0.5)), Policies()))


def test_an_explanation_says_what_was_looked_at_and_is_well_or_not_known() -> None:
    calm = shared(shared=0.5, a=0.1, b=0.1)
    plan = analyse(PlanFacts(snapshot=calm), Policies()).plan
    found = explain(calm, "device/gpu-0", assess(calm, Policies(), everything=True), plan)
    verdicts = {item.rule: str(item.verdict) for item in found.findings if item.rule.startswith("misfit.")}
    assert verdicts == {"misfit.hbm_contention": "healthy", "misfit.pcie_contention": "unknown"}
    assert "its workloads leave room on its memory's bandwidth" in terminal.shown(explanation_tables(found, calm))


def test_a_misfit_comes_after_what_is_broken_or_idle_and_before_what_is_not_known() -> None:
    crowded = analyse(PlanFacts(snapshot=shared(a=0.5, b=0.7)), Policies())
    verdicts = [str(item.verdict) for item in crowded.findings]
    assert verdicts.index("misfit") < verdicts.index("unknown")
