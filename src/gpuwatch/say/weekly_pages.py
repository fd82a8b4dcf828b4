"""The weekly report as one HTML page, as GitHub Markdown, and as a summary short enough for a message.

The page has no external resources, and is for dark screens, paper and screen readers. Every name is escaped: it makes
neither markup nor mentions. The page's Content-Security-Policy forbids requests and all scripts but its own, so that
even a name that is not escaped does no harm. Long lists are cut; the CSV and JSON forms are complete.
"""

import re
from collections import Counter

from gpuwatch.facts.model.weekly import TeamUse, WeeklyReport
from gpuwatch.say import weekly_words as say
from gpuwatch.say.tables import lasted, other_gaps
from gpuwatch.say.templating import POLICY, SCRIPT, SCRIPT_HASH, template

ROWS_SHOWN = 200  # of the page's tables with one line each: about 150 kB of HTML
ACT_SHOWN = 8  # rows before the fold, of findings, changes and teams
MARKDOWN_ROWS_SHOWN = 50  # a message of at most some 40 kB
_MARKDOWN_CHANGES = 10  # with their YAML
_SUMMARY_CHANGES = 5
_SUMMARY_KINDS = 4  # of degraded GPUs


def weekly_html(report: WeeklyReport) -> str:
    """The page, UTF-8 text. Everything that came from a cluster is escaped."""
    return _text(
        "weekly.html.j2",
        report,
        rows_shown=ROWS_SHOWN,
        act_shown=ACT_SHOWN,
        policy=f"{POLICY}; script-src '{SCRIPT_HASH}'",
        script=SCRIPT,
        models=_models,
        most_allocated=max((team.use.allocated_gpu_hours for team in report.teams), default=0.0),
    )


def weekly_markdown(report: WeeklyReport) -> str:
    """The whole report but the list of all workloads."""
    return _text(
        "weekly.md.j2", report, rows_shown=MARKDOWN_ROWS_SHOWN, changes_shown=_MARKDOWN_CHANGES, code_block=_code_block
    )


def weekly_summary(report: WeeklyReport) -> str:
    """At most 25 lines of Markdown."""
    kinds = Counter(item.kind for item in report.degraded).most_common(_SUMMARY_KINDS)
    return _text("summary.md.j2", report, changes_shown=_SUMMARY_CHANGES, degraded_kinds=kinds)


def _text(name: str, report: WeeklyReport, **more: object) -> str:
    """The weekly report by one of its templates. more: values that only this template has."""
    return template(name).render(
        report=report,
        period=say.period(report),
        use_of=say.use_of(report),
        gaps=other_gaps(report.gaps),
        since=lambda finding: lasted(finding, report.at) or say.UNKNOWN,
        **more,
    )


def _models(team: TeamUse) -> str:
    """The three GPU models with the team's most GPU-hours."""
    ordered = sorted(team.gpu_models.items(), key=lambda item: (-item[1], item[0]))
    more = f", {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(f"{model} {say.hours(used)}" for model, used in ordered[:3]) + more


def _code_block(text: str) -> str:
    """A YAML block. Its fence is longer than any run of backticks within, so that no name can close it."""
    fence = "`" * max(3, max(map(len, re.findall(r"`+", text)), default=0) + 1)
    return f"{fence}yaml\n{text}{fence}"
