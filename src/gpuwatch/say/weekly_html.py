"""The weekly report as one HTML page, without external resources, for dark screens, paper and screen readers.

Every name is escaped. The page's Content-Security-Policy forbids requests and all scripts but its own, so that even a
name that is not escaped does no harm. Lists are cut at `ROWS_SHOWN` and the like; the CSV and JSON forms are complete.
"""

from gpuwatch.facts.model.sizing import by_worth
from gpuwatch.facts.model.weekly import TeamUse, WeeklyReport
from gpuwatch.say import weekly_words as say
from gpuwatch.say.templating import POLICY, SCRIPT, SCRIPT_HASH, weekly_text

ROWS_SHOWN = 200  # of the tables with one line each: about 150 kB of HTML
ADVICE_SHOWN = 50  # with all facts, the YAML and the options: about 10 kB each
ABSTAINED_SHOWN = 25  # of each kind
ACT_SHOWN = 8  # rows before the fold, of findings, changes and teams


def weekly_html(report: WeeklyReport) -> str:
    """The page, UTF-8 text. Everything that came from a cluster is escaped."""
    advised = sorted((item.recommendation for item in report.workloads if item.recommendation), key=by_worth)
    return weekly_text(
        "weekly.html.j2",
        report,
        rows_shown=ROWS_SHOWN,
        advice_shown=ADVICE_SHOWN,
        abstained_shown=ABSTAINED_SHOWN,
        act_shown=ACT_SHOWN,
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
