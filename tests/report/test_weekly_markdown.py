"""The weekly report as Markdown and as a message."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from gpuwatch.facts.model.weekly import WeeklyReport
from gpuwatch.say.weekly_pages import MARKDOWN_ROWS_SHOWN, weekly_html, weekly_markdown, weekly_summary
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
        "Allocated: **67.8 %**",
        "33,366 USD",
        "6,987 USD",
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
def test_a_saving_with_a_condition_is_shown_apart(form: Callable[[WeeklyReport], str]) -> None:
    report = full_report()
    apart = {"projected_conditional_saving_per_week": 321.0, "projected_conditional_saving_gpu_hours_per_week": 45.6}
    change = replace(report.top_changes[0], condition="Only if the image carries sm_120.")
    workloads = tuple(
        replace(item, recommendation=change) if item.recommendation == report.top_changes[0] else item
        for item in report.workloads
    )
    given = replace(
        report,
        fleet=replace(report.fleet, **apart),
        teams=(replace(report.teams[0], use=replace(report.teams[0].use, **apart)), *report.teams[1:]),
        workloads=workloads,
        top_changes=(change, *report.top_changes[1:]),
    )
    text = form(given)
    assert "Changes with a condition would save another 321 USD, 45.6 GPU-hours in a coming week." in text
    assert "1 change with a condition: another 321 USD, 45.6 GPU-hours" in text
    assert text.count("on conditions: 321 USD, 45.6 GPU-hours") == 1  # of the team
    assert text.count("(on a condition)") == 1
    assert weekly_summary(given).count("(on a condition)") == 1
    plain = form(report)
    assert "on conditions" not in plain
    assert "(on a condition)" not in plain
    assert "Changes with a condition would" not in plain


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
