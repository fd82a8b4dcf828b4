"""The weekly report as one HTML page, without external resources, for dark screens, paper and screen readers.

The page's Content-Security-Policy forbids requests and every script but the page's own, which sorts and filters tables,
so that even a name that got past the escaping could do nothing. Lists are cut at `ROWS_SHOWN` and the like; the CSV and
JSON forms have everything.
"""

from gpuwatch.advise.recommend import by_worth
from gpuwatch.model.weekly import TeamUse, WeeklyReport
from gpuwatch.report import weekly_words as say
from gpuwatch.report.templating import POLICY, SCRIPT, SCRIPT_HASH, weekly_text

ROWS_SHOWN = 200  # of the tables with one line each: about 150 kB of HTML
ADVICE_SHOWN = 50  # with all facts, the YAML and the options: about 10 kB each
ABSTAINED_SHOWN = 25  # of each kind
OPTIONS_SHOWN = 12

ACT_SHOWN = 8  # rows before the fold, of what is to be done and of the teams
_LOG_SHOWN = 5  # of what was done
_LIST_SHOWN = 20  # of the other lists

_SECTIONS = (
    ("glance", "At a glance"),
    ("act", "Act now"),
    ("changes", "Advised changes"),
    ("teams", "Teams"),
    ("actions", "Actions"),
    ("outcomes", "Earlier advice"),
    ("limits", "Coverage and limits"),
    ("kept", "Left as they are"),
    ("workloads", "All workloads"),
)


def weekly_html(report: WeeklyReport) -> str:
    """The page, UTF-8 text. Everything that came from a cluster is escaped."""
    advised = sorted((item.recommendation for item in report.workloads if item.recommendation), key=by_worth)
    return weekly_text(
        "weekly.html.j2",
        report,
        sections=_SECTIONS,
        rows_shown=ROWS_SHOWN,
        advice_shown=ADVICE_SHOWN,
        abstained_shown=ABSTAINED_SHOWN,
        options_shown=OPTIONS_SHOWN,
        act_shown=ACT_SHOWN,
        log_shown=_LOG_SHOWN,
        list_shown=_LIST_SHOWN,
        policy=f"{POLICY}; script-src '{SCRIPT_HASH}'",
        script=SCRIPT,
        models=_models,
        anchors={item.key: f"change-{index}" for index, item in enumerate(advised[:ADVICE_SHOWN], 1)},
        most_allocated=max((team.use.allocated_gpu_hours for team in report.teams), default=0.0),
        advised=advised,
        most_lost=max(report.lost_gpu_hours_by_cause.values(), default=0.0),
    )


def _models(team: TeamUse) -> str:
    """The three GPU models with the team's most GPU-hours."""
    ordered = sorted(team.gpu_models.items(), key=lambda item: (-item[1], item[0]))
    more = f", {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(f"{model} {say.gpu_hours(used)}" for model, used in ordered[:3]) + more
