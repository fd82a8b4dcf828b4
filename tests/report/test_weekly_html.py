"""The weekly page, in a real browser where what counts is what people see."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser

from gpuwatch.facts.model.sizing import AbstentionKind, EvidenceTier, OutcomeVerdict
from gpuwatch.facts.model.weekly import LeverKind, WeeklyReport
from gpuwatch.say.weekly_pages import ACT_SHOWN, ROWS_SHOWN, weekly_html
from gpuwatch.say.weekly_words import ABSTAINED, OUTCOME, TIER, hours, parts
from parts.browser import BrowserBuild, page, pdf_pages
from report.html_checks import checked, parsed, text_of, unfocused
from report.weekly_example import (
    HOSTILE,
    HOSTILE_NAMESPACE,
    empty_report,
    free_report,
    full_report,
    huge_report,
)

REPORTS = {"full": full_report, "empty": empty_report, "free": free_report}


@pytest.mark.parametrize("name", REPORTS)
def test_every_tag_is_closed_and_every_link_leads_somewhere_within(name: str) -> None:
    tags = parsed(weekly_html(REPORTS[name]()))
    assert len(set(tags.ids)) == len(tags.ids)
    assert tags.links
    assert {link.removeprefix("#") for link in tags.links} <= set(tags.ids)
    assert not {"iframe", "object", "link", "img", "form"} & tags.names


def test_names_are_text_and_nothing_else() -> None:
    report = replace(full_report(), source=HOSTILE_NAMESPACE, currency=HOSTILE, limits=(HOSTILE, f"`{HOSTILE}`"))
    html = weekly_html(report)
    assert "<img" not in html
    assert html.count("<script") == 1  # its own
    assert HOSTILE_NAMESPACE in parsed(html).text
    assert HOSTILE in text_of(html)


def test_nothing_measured_is_shown_as_unknown_and_never_as_zero() -> None:
    text = text_of(weekly_html(empty_report())).split("GPUs and MIG instances seen")[0]
    assert "Nothing was measured in this week: what the GPUs did is unknown, not zero." in text
    assert not re.search(r"\b0(\.0)? (USD|%|GPU-hours)|\b0\.0\b|\b0 %", text)
    assert text.count("unknown") >= 10
    assert text.count("Not known: no workload was profiled.") == 1
    assert "None was proven" not in text
    assert "None was found" not in text


def test_a_price_of_zero_is_known() -> None:
    text = text_of(weekly_html(free_report()))
    assert "Wasted 0 EUR of 0 EUR" in text
    assert "Sure saving, a week 0 EUR" in text


def test_what_has_no_price_is_said_so() -> None:
    text = text_of(weekly_html(full_report()))
    assert re.search(r"GPU-755b4166.{,300} 1 d 17 h 41 210 USD", text)
    assert re.search(r"GPU-0f1e2d3c/7.{,300} unknown unknown unknown", text)
    assert "unknown 135 GPU-hours" in text


def test_the_trend_is_in_words() -> None:
    text = text_of(weekly_html(full_report()))
    assert "up 4.1 points from 64 %, better" in text
    assert "up 12 % from 29,840 USD, worse" in text
    without = text_of(weekly_html(replace(full_report(), previous=None)))
    assert "The week before is unknown, so there is no trend." in without
    assert ", better" not in without


def test_the_exact_change_stands_beside_the_advice() -> None:
    html = weekly_html(full_report())
    assert html.count('<pre tabindex="0">apiVersion') + html.count('<pre tabindex="0"># ') == 13
    assert "nvidia.com/gpu: null\n            nvidia.com/mig-1g.10gb: 1" in html


def test_a_large_fleet_gives_a_page_that_opens_and_says_what_it_leaves_out() -> None:
    html = weekly_html(huge_report(10_000))
    assert len(html.encode()) < 3_000_000
    text = text_of(html)
    assert f"… and {10_000 - ROWS_SHOWN:,} more, see workloads.csv" in text
    assert f"… and {3_334 - ROWS_SHOWN:,} more, see levers.csv" in text
    assert text.count(" more, see the JSON form") >= 4


def test_every_kind_has_its_words() -> None:
    assert set(ABSTAINED) == set(AbstentionKind)
    assert set(TIER) == set(EvidenceTier)
    assert set(OUTCOME) == set(OutcomeVerdict)


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_asks_for_nothing_and_complains_of_nothing(
    browser: Browser, tmp_path: Path, name: str, scheme: Literal["light", "dark"]
) -> None:
    with page(browser, weekly_html(REPORTS[name]()), tmp_path, scheme=scheme) as (opened, heard):
        assert checked(opened, "outline") == []
        assert unfocused(opened) == []
        assert heard.requests == [opened.url]
        assert heard.console == []
        assert opened.title() == f"{'GPUs' if name == 'empty' else 'eu-1'}, Mon 2026-02-23 to Mon 2026-03-02, UTC"


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("width", [400, 760, 1280, 1600])
def test_nothing_reaches_beyond_the_page(browser: Browser, tmp_path: Path, name: str, width: int) -> None:
    with page(browser, weekly_html(REPORTS[name]()), tmp_path, width=width) as (opened, _):
        opened.evaluate("document.querySelectorAll('details').forEach(item => item.open = true)")
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
        assert checked(opened, "beyond", width) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_texts_and_charts_stand_out(
    browser: Browser, tmp_path: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    with page(browser, weekly_html(full_report()), tmp_path, width=width, scheme=scheme) as (opened, _):
        found = checked(opened, "contrast")
    assert len(found["texts"]) > 500
    assert len(found["shapes"]) > 50
    assert [item for item in found["texts"] if item[0] < 4.5] == []
    assert [item for item in found["shapes"] if item[0] < 3.0] == []


@pytest.mark.parametrize(("width", "shown"), [(400, "narrow"), (1280, "wide")])
def test_each_chart_is_seen_once_and_has_a_name(browser: Browser, tmp_path: Path, width: int, shown: str) -> None:
    with page(browser, weekly_html(full_report()), tmp_path, width=width) as (opened, _):
        seen = checked(opened, "charts")
        named = opened.get_by_role("img").evaluate_all(
            "items => items.map(item => item.querySelector('title').textContent)"
        )
    assert [kind for kind, _, _ in seen] == [f"chart {shown}"] * 2
    assert all(height > 120 for _, height, _ in seen)
    assert all(named)
    assert "11 of 168 points unknown" in seen[0][2]


def test_texts_of_charts_do_not_cover_each_other(browser: Browser, tmp_path: Path) -> None:
    for width in (400, 1280):
        with page(browser, weekly_html(full_report()), tmp_path, width=width) as (opened, _):
            covered = checked(opened, "covered")
        assert covered == [], width


def test_tables_stay_tables_for_those_who_hear_them(browser: Browser, tmp_path: Path) -> None:
    for width in (400, 1280):
        with page(browser, weekly_html(full_report()), tmp_path, width=width) as (opened, _):
            tree: Any = json.dumps(opened.locator("#teams").aria_snapshot())
            assert opened.get_by_role("main").count() == 1
            assert opened.get_by_role("navigation", name="Sections").count() == 1
            table = opened.get_by_role("table", name="Teams by what they waste")
            assert table.get_by_role("rowheader").count() == ACT_SHOWN < len(full_report().teams)
            assert table.get_by_role("columnheader").count() == 8
        assert "rowheader" in tree


def test_the_first_printed_page_has_what_matters_most(
    browser: Browser, browser_build: BrowserBuild, tmp_path: Path
) -> None:
    with page(browser, weekly_html(full_report()), tmp_path, scheme="dark") as (opened, _):
        pages = pdf_pages(browser_build, opened, tmp_path / "page.pdf")
        opened.emulate_media(media="print")
        ground = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    first = pages[0]
    for key in (
        "68 %",
        "47 %",
        "33,366 USD",
        "6,474 USD",
        "up 4.1 points",
    ):
        assert key in first, key
    assert "Act now" in first
    assert "Where the GPU-hours went" in first + pages[1]
    assert "GPU-755b4166" in first
    assert "research/jupyter-ada-0" in first
    for item in full_report().levers.levers[:ACT_SHOWN]:
        # A name may be broken at its hyphens.
        assert item.kind is LeverKind.RELEASE or item.subject.split("/")[-1].split("-")[0] in pages[1] + pages[2]
    assert len(pages) <= 10
    assert ground == "rgb(255, 255, 255)"


@pytest.mark.parametrize("make", [full_report, lambda: huge_report(3_000)])
def test_at_most_four_printed_pages_stand_before_the_appendix(
    browser: Browser, browser_build: BrowserBuild, tmp_path: Path, make: Callable[[], WeeklyReport]
) -> None:
    with page(browser, weekly_html(make()), tmp_path) as (opened, _):
        pages = pdf_pages(browser_build, opened, tmp_path / "page.pdf")
    appendix = next(number for number, text in enumerate(pages) if "Coverage and limits" in text)
    assert appendix <= 4
    assert "All workloads" in "".join(pages[appendix:])


def test_what_is_urgent_stands_first_and_the_dearest_on_top() -> None:
    html = weekly_html(full_report())
    places = [html.index(f'id="{name}"') for name in ("degraded", "idle", "glance", "levers", "teams", "workloads")]
    assert places == sorted(places)


def test_rows_sort_and_filter_without_a_network(browser: Browser, tmp_path: Path) -> None:
    with page(browser, weekly_html(full_report()), tmp_path) as (opened, heard):
        table = opened.locator("#levers table.sortable").first
        seen = lambda: [  # noqa: E731
            row.split("\n")[0].strip() for row in table.locator("tbody tr:visible th").all_inner_texts()
        ]
        by_money = seen()
        assert len(by_money) == ACT_SHOWN
        opened.locator("#levers details.rest > summary").first.click()
        assert len(seen()) == 15  # 13 changes and two releases
        table.get_by_role("button", name="Lever").press("Enter")
        assert seen() == sorted(seen(), key=str.lower)
        assert table.get_by_role("columnheader", name="Lever").get_attribute("aria-sort") == "ascending"
        heading = table.get_by_role("button", name="Saves a week")
        cells = lambda: [  # noqa: E731
            float(text.removesuffix(" USD").replace(",", ""))
            for text in table.locator('[data-label="Saves a week"]').all_inner_texts()
            if not text.startswith("unknown")
        ]
        heading.click()
        assert cells() == sorted(cells(), reverse=True)
        assert cells()[0] > cells()[-1]
        heading.click()
        assert cells() == sorted(cells())
        opened.locator("#levers input").first.fill("embedder")
        assert seen() == ["embedder"]
        assert heard.requests == [opened.url]
        assert heard.console == []


def test_paper_says_what_the_levers_that_are_not_sure_would_save(
    browser: Browser, browser_build: BrowserBuild, tmp_path: Path
) -> None:
    with page(browser, weekly_html(full_report()), tmp_path) as (opened, _):
        text = "".join(pdf_pages(browser_build, opened, tmp_path / "page.pdf"))
    assert re.search(r"Refused by the plan \(1\): 818 USD", text)
    assert re.search(r"Up to \(8\): 3,506 USD", text)


def test_what_is_folded_can_be_found(browser: Browser, tmp_path: Path) -> None:
    with page(browser, weekly_html(full_report()), tmp_path) as (opened, _):
        teams = opened.locator("#teams tbody tr:visible")
        assert teams.count() == ACT_SHOWN
        opened.keyboard.press("Control+f")
        assert teams.count() == len(full_report().teams)
        folded = opened.locator("#levers details.list")
        assert not folded.first.evaluate("item => item.open")
        # A link to a text is found as find-in-page finds it.
        opened.goto(f"{opened.url}#:~:text=The%20ledger%27s%20hours")
        opened.locator("#levers details.list[open]").first.wait_for()


def test_no_other_script_runs(browser: Browser, tmp_path: Path) -> None:
    html = weekly_html(full_report()).replace("</main>", "</main><script>document.title = 'changed'</script>")
    with page(browser, html, tmp_path) as (opened, heard):
        assert opened.title() != "changed"
        assert any("Content Security Policy" in line for line in heard.console)


def test_the_parts_that_are_shown_add_up_to_what_is_shown() -> None:
    report = full_report()
    shown = parts(report)
    assert sum(part.gpu_hours or 0.0 for part in shown) == pytest.approx(report.fleet.capacity_gpu_hours)
    assert sum(part.cost or 0.0 for part in shown[1:4]) == pytest.approx(report.fleet.wasted_cost)
    text = text_of(weekly_html(report))
    for part in shown:
        assert f"{part.label} {hours(part.gpu_hours)} " in text
    assert parts(empty_report()) == ()


def test_a_lever_is_one_click_from_its_change(browser: Browser, tmp_path: Path) -> None:
    with page(browser, weekly_html(full_report()), tmp_path) as (opened, _):
        row = opened.locator("#idle tbody tr").first
        assert not row.locator("pre").is_visible()
        row.locator("summary").click()
        assert "kubectl -n x patch" in row.locator("pre").inner_text()
        change = opened.locator("#levers tbody tr", has_text="embedder").first
        change.locator("summary").first.click()
        assert "nvidia.com/mig-1g.10gb" in change.locator("pre").inner_text()


def test_shades_can_be_told_apart_without_colour() -> None:
    html = weekly_html(full_report())
    hatches = dict(re.findall(r'class="shade (\w+)".*?(<path class="hatch" d="[^"]+" ?/>|</pattern>)', html))
    assert set(hatches) == {"busy", "allocated", "idle", "unknown", "free"}
    # Busy is solid and dark, free is empty: the only two without a hatch.
    assert [shade for shade, drawn in hatches.items() if drawn == "</pattern>"] == ["busy", "free"]
    assert len({drawn for drawn in hatches.values() if drawn != "</pattern>"}) == 3
