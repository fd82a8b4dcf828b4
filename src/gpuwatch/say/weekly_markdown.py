"""The weekly report as GitHub Markdown, and a summary short enough for a message."""

import re
from collections import Counter

from gpuwatch.facts.model.weekly import WeeklyReport
from gpuwatch.say.templating import weekly_text

ROWS_SHOWN = 50  # a message of at most some 40 kB; the CSV and JSON forms have everything
_CHANGES_SHOWN = 10  # with their YAML
_SUMMARY_CHANGES = 5
_SUMMARY_KINDS = 4  # of degraded GPUs


def weekly_markdown(report: WeeklyReport) -> str:
    """The whole report but the list of all workloads. Names are escaped: they make neither markup nor mentions."""
    return weekly_text(
        "weekly.md.j2", report, rows_shown=ROWS_SHOWN, changes_shown=_CHANGES_SHOWN, code_block=_code_block
    )


def weekly_summary(report: WeeklyReport) -> str:
    """At most 25 lines of Markdown."""
    kinds = Counter(item.kind for item in report.degraded).most_common(_SUMMARY_KINDS)
    return weekly_text("summary.md.j2", report, changes_shown=_SUMMARY_CHANGES, degraded_kinds=kinds)


def _code_block(text: str) -> str:
    """A YAML block. Its fence is longer than any run of backticks within, so that no name can close it."""
    fence = "`" * max(3, max(map(len, re.findall(r"`+", text)), default=0) + 1)
    return f"{fence}yaml\n{text}{fence}"
