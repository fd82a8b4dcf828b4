"""The weekly report as Markdown and as a message."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from gpuwatch.facts.model.decision import FindingKind
from gpuwatch.facts.model.weekly import LeverKind, Sureness, WeeklyReport
from gpuwatch.say.weekly_pages import MARKDOWN_ROWS_SHOWN, weekly_html, weekly_markdown, weekly_summary
from gpuwatch.say.weekly_words import LEFT
from report.weekly_example import HOSTILE, LONG, empty_report, free_report, full_report, huge_report


def tokens(text: str) -> list[Token]:
    found = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        found += [token, *(token.children or ())]
    return found


def texts(text: str) -> str:
    return "".join(
        "\n" if token.type.endswith("_close") else token.content
        for token in tokens(text)
        if token.type in ("text", "code_inline", "fence", "text_special") or token.type.endswith("_close")
    )


@pytest.mark.parametrize("make", [full_report, empty_report, free_report, lambda: huge_report(2_000)])
def test_a_summary_fits_a_message(make: object) -> None:
    assert callable(make)
    text = weekly_summary(make())
    assert len(text.splitlines()) <= 25
    assert len(text) < 4000


def test_a_summary_has_what_matters_most() -> None:
    text = weekly_summary(full_report())
    for said in (
        "Allocated: **68 %**",
        "33,366 USD",
        "levers",
        "up 4.1 points",
        "nlp/embedder",
        "3 Pods",
        "row remap",
    ):
        assert said in text


def test_names_make_no_markup_and_call_nobody() -> None:
    report = full_report()
    idle = replace(report.idle[0], subject=replace(report.idle[0].subject, name=f"a/{HOSTILE} @here <!channel> **x**"))
    for text in (weekly_markdown(replace(report, idle=(idle,))), weekly_summary(replace(report, idle=(idle,)))):
        found = tokens(text)
        assert not {token.type for token in found} & {"html_block", "html_inline", "link_open", "image"}
        assert "@here" not in text
        assert "<!channel>" not in text
        shown = texts(text)
        assert HOSTILE in shown
        assert "**x**" in shown


def test_every_table_has_as_many_cells_in_each_row() -> None:
    rows = [line for line in weekly_markdown(full_report()).splitlines() if line.startswith("|")]
    kinds = {token.type for token in tokens(weekly_markdown(full_report()))}
    assert "table_open" in kinds
    width = 0
    for line in rows:
        cells = len(re.findall(r"(?<!\\)\|", line))
        if re.fullmatch(r"[|:-]+", line):
            assert cells == width
        width = cells
    assert len(rows) > 40


@pytest.mark.parametrize("form", [weekly_markdown, weekly_html])
def test_levers_that_are_not_sure_stand_apart_with_their_reason(form: Callable[[WeeklyReport], str]) -> None:
    report = full_report()
    first = next(item for item in report.levers.levers if item.kind is LeverKind.RESIZE)
    needs = "Only if the image carries a thing."
    apart = replace(first, sureness=Sureness.CONDITION, saving_per_week=321.0, needs=needs)
    levers = (*(item for item in report.levers.levers if item is not first), apart)
    text = form(replace(report, levers=replace(report.levers, levers=levers)))
    assert re.search(r"On a condition( \(1\))?: 321 USD, \d+ GPU-hours a week", text)
    assert needs in text
    assert "On a condition" not in form(report)
    assert text.count("The highest confidence of its findings is 0.70; 0.80 is needed.") >= 2
    assert re.search(r"Refused by the plan( \(1\))?: 818 USD, 168 GPU-hours a week", text)
    assert re.search(r"Up to( \(8\))?: 3,506 USD, 720 GPU-hours a week", text)
    assert "up to 438 USD" in text


@pytest.mark.parametrize("form", [weekly_markdown, weekly_html])
def test_each_reason_has_its_rows_and_workloads(form: Callable[[WeeklyReport], str]) -> None:
    text = form(full_report())
    for title, _ in LEFT.values():
        assert title in text
    assert "60 % no kernel, 40 % few SMs active" in text


@pytest.mark.parametrize("form", [weekly_markdown, weekly_html])
def test_a_gpu_with_two_faults_has_one_row(form: Callable[[WeeklyReport], str]) -> None:
    report = full_report()
    one = report.degraded[0]
    other = replace(one, kind=FindingKind.XID, summary="XID 64 was seen.")
    plain, both = (form(replace(report, degraded=found)) for found in ((one,), (one, other)))
    assert both.count("GPU-755b4166") == plain.count("GPU-755b4166")
    assert "XID 64 was seen." in both


@pytest.mark.parametrize("form", [weekly_markdown, weekly_html, weekly_summary])
def test_the_cluster_is_the_title(form: Callable[[WeeklyReport], str]) -> None:
    report = full_report()
    assert "eu-1" in form(report)
    assert "eu-1" not in form(replace(report, cluster=""))
    assert "<i>" not in form(replace(report, cluster="<i>"))


def test_nothing_measured_is_unknown() -> None:
    text = weekly_markdown(empty_report())
    assert "Nothing was measured in this week" in text
    assert "| Allocated | **unknown** |" in text
    assert "None was proven" not in text
    assert not re.search(r"\*\*0", text)
    assert "**unknown**" in weekly_summary(empty_report())


def test_a_yaml_block_cannot_be_closed_by_a_name() -> None:
    report = full_report()
    first = report.top_changes[0]
    change = replace(first.change, note="```\n# not yours")
    text = weekly_markdown(replace(report, top_changes=(replace(first, change=change),)))
    fences = [token for token in tokens(text) if token.type == "fence"]
    assert len(fences) == 1
    assert "# ``` # not yours" in fences[0].content


def test_long_lists_are_cut_and_say_so() -> None:
    text = weekly_markdown(huge_report(2_000))
    assert f"… and {2_000 - MARKDOWN_ROWS_SHOWN:,} more" in text
    assert len(text) < 100_000


def test_other_times_than_a_week_are_named() -> None:
    report = full_report()
    assert "GPUs in the day of" in weekly_summary(replace(report, start=report.end - timedelta(days=1)))
    assert "GPUs in the period of" in weekly_summary(replace(report, start=report.end - timedelta(hours=60)))


def test_long_names_are_whole() -> None:
    assert LONG in weekly_markdown(full_report())
