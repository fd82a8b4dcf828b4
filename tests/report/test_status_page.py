"""The status page and the list of reports, in a real browser where what counts is what people see."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser

from execute.living import ENFORCE, START, Fleet, drive, new_store, quick
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.facts.model.cluster import Cluster, FactKind, Unread
from gpuwatch.facts.model.decision import (
    ActionKind,
    Analysis,
    BudgetUse,
    Coverage,
    Evidence,
    Mode,
    Plan,
    Score,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.remediation import Pause
from gpuwatch.facts.model.telemetry import Device, DoubtedDevice, Gap, GapKind, Vendor
from gpuwatch.say.status_page import JobTimes, ReportFiles, Status, fleet_rows, reports_html, status_html
from parts.browser import page
from parts.http_server import QuietHandler, served
from report.html_checks import checked, parsed, text_of, unfocused
from report.terminal import analysis_of
from report.weekly_example import HOSTILE, HOSTILE_NAMESPACE, LONG


@pytest.fixture
def asked() -> list[str]:
    """The paths that the browser asked the server of `port` for."""
    return []


@pytest.fixture
def port(asked: list[str]) -> Iterator[int]:
    """A server of the page, which reloads every second here."""
    body = status_html(full()).replace('content="60; ', 'content="1; ').encode()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200 if self.path == "/" else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(body if self.path == "/" else b"")

    with served(Handler) as url:
        yield int(url.rpartition(":")[2])


def standing_by() -> Status:
    return Status(
        at=START,
        version="0.1.0",
        identity=f"gpuwatch-0_{LONG}",
        started_at=START - timedelta(hours=5),
        source="Prometheus at http://prometheus:9090",
        leads=False,
        leader="gpuwatch-1_1234",
        modes=tuple((str(kind), Mode.OBSERVE) for kind in ActionKind),
    )


@cache
def full() -> Status:
    """A leader with everything that can be on the page, in names that want to be more."""
    store = new_store()
    fleet = Fleet(idle={"chat"}, sick={"GPU-n0-0"})
    fleet.owner("Job", "chat", 2, node="n1")
    fleet.owner("Job", "train", 8)
    executor = fleet.executor(store, ExecutorPolicies(ENFORCE, quick()))
    fleet.propose(executor)
    fleet.budget("chat", 0)  # so its release waits
    drive(fleet, executor, 1.0)
    known = store.all()
    view, now = fleet.view(), fleet.now
    plan = fleet.plan(executor)
    refused = next(item for item in plan.items if not item.admitted)
    gang = replace(refused.candidate, target=Subject(SubjectKind.GANG, HOSTILE))
    hostile = replace(refused, candidate=gang, helps=f"First ask the owner of {HOSTILE}.")
    budget = BudgetUse(
        scope=f"pool/{HOSTILE_NAMESPACE}",
        limit_nodes=1,
        total_nodes=8,
        out_nodes=1,
        limit_gpus=8,
        moving_gpus=8,
        reasons=(LONG,),
    )
    plan = replace(
        plan, items=(*plan.items, hostile), budgets=(budget, *plan.budgets), brake=f"An alert fires: {HOSTILE}"
    )
    known = (
        replace(known[0], proposal=replace(known[0].proposal, target=f"gang/{HOSTILE}", reason=HOSTILE)),
        *known[1:],
    )
    coverage = Coverage(devices=64, devices_present=63)
    snapshot, at = view.snapshot, now - timedelta(seconds=40)
    found = replace(
        analysis_of(
            view.findings, at=at, devices=snapshot.devices, cluster=snapshot.cluster, coverage=coverage, plan=plan
        ),
        gaps=(
            Gap(kind=GapKind.REFUSED, what=f"rayclusters {HOSTILE_NAMESPACE}", detail=HOSTILE),
            Gap(kind=GapKind.SIGNAL_MISSING, what="sm_active_ratio", detail="No series."),
        ),
    )
    return replace(
        standing_by(),
        at=now,
        leads=True,
        leader="gpuwatch-0",
        complaints=("the API server does not answer",),
        jobs=(
            JobTimes(name="analysis", succeeded_at=now - timedelta(seconds=40), seconds=1.27),
            JobTimes(name="profiles", failed_at=now - timedelta(hours=1), error=HOSTILE, running_since=now),
            JobTimes(name="forget"),
        ),
        analysis=found,
        remediations=known,
        pause=Pause(paused=True, since=now - timedelta(minutes=5), by=HOSTILE, reason=HOSTILE_NAMESPACE),
        report_due=now - timedelta(days=1),
        undelivered=2,
        enforcement="In the last 7 days enforcement was possible in 97 % of the cycles (9 counted); stopped by brake.",
    )


def analysis() -> Analysis:
    found = full().analysis
    assert found is not None
    return found


def changed(**changes: object) -> str:
    """The page of the same leader, whose analysis has these fields instead."""
    return status_html(replace(full(), analysis=replace(analysis(), **changes)))


def listed() -> str:
    found = [
        ReportFiles(id=f"gpus-{n}-0123456789ab", title=f"GPUs {HOSTILE} {n}", files=("report.html", "actions.csv"))
        for n in range(3)
    ]
    return reports_html(found, 60)


PAGES = {
    "leads": lambda: status_html(full()),
    "stands by": lambda: status_html(standing_by()),
    "reports": listed,
    "no reports": lambda: reports_html((), 0),
}


@pytest.mark.parametrize("name", PAGES)
def test_every_tag_is_closed_and_links_stay_here(name: str) -> None:
    html = PAGES[name]()
    tags = parsed(html)
    assert len(set(tags.ids)) == len(tags.ids)
    # Relative, so that they hold behind a proxy that adds a prefix.
    assert not [link for link in tags.links if link.startswith("/") or ":" in link]
    assert not {"script", "iframe", "object", "link", "img", "form"} & tags.names


def test_names_are_text_and_nothing_else() -> None:
    html = status_html(full())
    assert "<img" not in html
    assert "<script" not in html
    assert text_of(html).count(HOSTILE) >= 5
    assert HOSTILE in text_of(listed())


def test_it_tells_what_stops_it_and_what_is_open() -> None:
    text = text_of(status_html(full()))
    for words in (
        "This replica leads. 63 of 64 GPUs and MIG instances report. 1 degraded, 2 idle, 0 unknown.",
        "Not ready: the API server does not answer",
        "Pause: Paused since",
        "Brake: An alert fires",
        "Notifications: No receiver accepted 2 notifications.",
        " UTC, 40 s ago",
        "Mode of taint node observe",
        "UTC: not everywhere yet",
        "in effect",
        "Budgets in use",
        "What could not be read",
        "analysis 40 s ago 1.3 s",
        "profiles not yet – running for 0 s 1 h ago: <img",
        "forget not yet",
    ):
        assert words in text, f"{words!r} is not in {text}"
    assert "sm_active_ratio" not in text  # told per rule by the doctor


def test_it_says_what_helps_and_how_often_enforcement_was_possible() -> None:
    text = text_of(status_html(full()))
    assert "Enforcement In the last 7 days enforcement was possible in 97 % of the cycles (9 counted)" in text
    assert all(item.helps and item.helps in text for item in analysis().plan.items if not item.admitted)


def test_instances_stand_in_the_order_of_their_numbers() -> None:
    instances = (
        Device(
            id=f"GPU-a/{number}", uuid="GPU-a", vendor=Vendor.NVIDIA, vocabulary="dcgm", index="0", mig_instance=number
        )
        for number in ("10", "7", "13")
    )
    (row,) = fleet_rows(analysis_of((), at=START, devices=(replace(each, node="n0") for each in instances)))
    assert [cell.name for cell in row.cells] == ["0/7", "0/10", "0/13"]


def test_the_fleet_is_a_picture_of_every_node_and_gpu() -> None:
    rows = {row.name: row for row in fleet_rows(analysis())}
    assert list(rows)[:2] == ["n0", "n1"]  # those with something to do
    assert [cell.state for cell in rows["n0"].cells] == ["degraded", *["tainted"] * 7]
    assert "gpuwatch.dev/degraded" in rows["n0"].notes
    assert [cell.state for cell in rows["n1"].cells][:3] == ["idle", "idle", "free"]
    assert {cell.state for cell in rows["n7"].cells} == {"allocated"}
    html = status_html(full())
    assert '<a href="#finding-1">0 degraded</a>' in html
    assert 'id="finding-1">GPU-n0' in html
    assert "degraded 1 idle 2 allocated 8 tainted 7 free 46" in text_of(html)


def test_a_gpu_that_telemetry_does_not_tell_is_unknown_and_never_free() -> None:
    devices = tuple(replace(each, present=each.node != "n2") for each in analysis().devices if each.node != "n3")
    rows = {row.name: row for row in fleet_rows(replace(analysis(), devices=devices))}
    assert [cell.state for cell in rows["n2"].cells] == ["unknown"] * 8
    assert [cell.state for cell in rows["n3"].cells] == ["unknown"] * 8
    assert "No telemetry shows this GPU." in rows["n3"].cells[0].reason


def test_a_doubted_gpu_is_unknown_with_the_reason() -> None:
    whole = analysis()
    mine = [item for item in whole.devices if item.node == "n1"]
    doubted = tuple(DoubtedDevice(shown=item, why="its target is unknown") for item in mine)
    rest = tuple(item for item in whole.devices if item not in mine)
    rows = {row.name: row for row in fleet_rows(replace(whole, devices=rest, doubted=doubted, findings=()))}
    assert [(cell.state, cell.reason.partition(": ")[2]) for cell in rows["n1"].cells] == [
        ("unknown", "It is not trusted: its target is unknown.")
    ] * 8
    page_of = changed(devices=rest, doubted=doubted, findings=())
    assert "It is not trusted: its target is unknown." in page_of


def test_findings_stand_by_name_with_their_evidence() -> None:
    fact = Evidence(signal="xid_code", value=79.0, comparison="==", bound=79.0)
    first = replace(analysis().findings[0], evidence=(fact,))
    untold = replace(first, verdict=Verdict.UNKNOWN, summary="No samples.", devices=())
    text = text_of(changed(findings=(first, untold)))
    assert "1 finding" in text
    assert "xid_code = 79 (== 79)" in text
    assert "Not known (1): neither healthy nor idle, never acted on" in text


def test_it_loads_itself_anew_unless_asked_not_to() -> None:
    assert '<meta http-equiv="refresh" content="60; url=./">' in status_html(full())
    still = status_html(full(), refresh=False)
    assert 'http-equiv="refresh"' not in still
    assert '<a href="./">Reload every minute</a>' in still


def test_a_cell_leads_to_its_finding_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    with page(browser, status_html(full()), tmp_path) as (opened, _):
        fleet = opened.get_by_role("table", name="8 Nodes")
        assert fleet.get_by_role("rowheader").count() == 8
        assert fleet.get_by_role("listitem").count() == 64
        fleet.get_by_role("link", name="0 degraded").press("Enter")
        assert opened.url.endswith("#finding-1")
        assert opened.locator("#finding-1").is_visible()


def test_an_unknown_cell_opens_the_fold_that_says_why(browser: Browser, tmp_path: Path) -> None:
    untold = replace(analysis().findings[0], verdict=Verdict.UNKNOWN, summary="No samples.", devices=("GPU-n2-0",))
    with page(browser, changed(findings=(*analysis().findings, untold)), tmp_path) as (opened, _):
        assert not opened.locator("#unknown-1").is_visible()
        opened.get_by_role("link", name="0 unknown").press("Enter")
        assert opened.locator("#unknown-1").is_visible()


def test_a_fleet_that_was_not_seen_is_unknown_and_not_well() -> None:
    text = text_of(changed(coverage=Coverage(), devices=(), findings=(), cluster=Cluster(), plan=Plan(at=full().at)))
    assert "Telemetry shows no GPU: the state of the fleet is unknown." in text
    assert "Not known: no GPU was seen." in text
    assert "No GPU was found degraded" not in text


def test_names_of_nodes_stand_in_full() -> None:
    plan = analysis().plan
    item = plan.items[0]
    long = replace(item, candidate=replace(item.candidate, target=Subject(SubjectKind.NODE, "gpu-node-a-02")))
    assert "gpu-node-a-02" in text_of(changed(plan=replace(plan, items=(long,))))


def test_it_reloads_by_itself_also_where_a_cell_was_followed(browser: Browser, port: int, asked: list[str]) -> None:
    opened = browser.new_page(viewport={"width": 1280, "height": 400})
    opened.goto(f"http://127.0.0.1:{port}/#finding-1")
    before = opened.evaluate("scrollY")
    opened.wait_for_event("load", timeout=10_000)
    assert asked.count("/") >= 2
    assert opened.evaluate("scrollY") == before > 0
    opened.close()


def test_it_tells_what_was_not_read_and_what_that_stops() -> None:
    unread = (Unread(FactKind.BUDGETS, "", "403"), Unread(FactKind.PODS, "ml", "bad"), Unread(FactKind.PODS, "ml", "x"))
    assert (
        "Not read: budgets, pods of ml, at least in part. gpuwatch refuses the actions that depend on them."
        in text_of(changed(cluster=replace(analysis().cluster, unread=unread)))
    )
    assert "Not read:" not in text_of(status_html(full()))


def test_what_is_worth_doing_says_its_sums() -> None:
    worth = replace(
        analysis().plan.items[0],
        refusals=(),
        score=Score(
            gained_gpu_hours=276.0, disrupted_gpu_hours=140.0, pool_gpu_hours=768.0, confidence_ratio=0.97,
            horizon_hours=24.0, gain_basis=f"Expected gang of 11.5 GPUs {HOSTILE}.", harm_basis="7 GPUs × 20 h.",
        ),
    )  # fmt: skip
    html = changed(plan=Plan(at=full().at, items=(worth,)))
    assert "saves 268, costs 140 GPU-hours in 24 h" in text_of(html)
    assert f"Expected gang of 11.5 GPUs {HOSTILE}. 7 GPUs × 20 h." in text_of(html)
    assert "<img" not in html


def test_one_that_stands_by_says_nothing_of_the_fleet() -> None:
    text = text_of(status_html(standing_by()))
    assert "This replica stands by: gpuwatch-1_1234 leads, and only its page shows the fleet." in text
    assert "Open Remediations" not in text
    assert "The last plan" not in text
    assert "No task has started yet." in text


def test_before_the_first_look_nothing_is_claimed() -> None:
    text = text_of(status_html(replace(standing_by(), leads=True)))
    assert "This replica leads; its first cycle has not ended yet." in text
    assert "The plan has no action" not in text
    assert "No Remediation is open" not in text


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_ask_for_nothing_complain_of_nothing_and_stand_out(
    browser: Browser, tmp_path: Path, name: str, scheme: Literal["light", "dark"]
) -> None:
    with page(browser, PAGES[name](), tmp_path, scheme=scheme) as (opened, heard):
        found = checked(opened, "contrast")
        assert checked(opened, "outline") == []
        assert unfocused(opened) == []
        assert heard.requests == [opened.url]
        assert heard.console == []
    assert len(found["texts"]) > 3
    assert [item for item in found["texts"] if item[0] < 4.5] == []


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [400, 760, 1280])
def test_nothing_reaches_beyond_the_page(browser: Browser, tmp_path: Path, name: str, width: int) -> None:
    with page(browser, PAGES[name](), tmp_path, width=width) as (opened, _):
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
        assert checked(opened, "beyond", width) == []
