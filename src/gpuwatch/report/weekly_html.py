"""The weekly report as one HTML page, without scripts or external resources, for dark screens, paper and screen
readers.

The page's Content-Security-Policy forbids scripts and requests, so that even a name that got past the escaping could do
nothing. Lists are cut at `ROWS_SHOWN` and the like; the CSV and JSON forms have everything.
"""

from collections.abc import Callable, Sequence

from gpuwatch.advise.recommend import by_worth
from gpuwatch.model.sizing import Option, Recommendation
from gpuwatch.model.weekly import TeamUse, WeeklyReport
from gpuwatch.report import weekly_words as say
from gpuwatch.report.templating import weekly_text

ROWS_SHOWN = 200  # of the tables with one line each: about 150 kB of HTML
ADVICE_SHOWN = 50  # with all facts, the YAML and the options: about 10 kB each
ABSTAINED_SHOWN = 25  # of each kind
OPTIONS_SHOWN = 12

_SECTIONS = (
    ("glance", "At a glance"),
    ("teams", "Teams"),
    ("changes", "Advised changes"),
    ("kept", "Left as they are"),
    ("workloads", "All workloads"),
    ("idle", "Idle allocations"),
    ("degraded", "Degraded GPUs"),
    ("actions", "Actions"),
    ("outcomes", "Earlier advice"),
    ("limits", "Coverage and limits"),
)


def weekly_html(report: WeeklyReport) -> str:
    """The page, UTF-8 text. Everything that came from a cluster is escaped."""
    advised = sorted((item.recommendation for item in report.workloads if item.recommendation), key=by_worth)
    worth = _worth_of(report.top_changes)
    return weekly_text(
        "weekly.html.j2",
        report,
        sections=_SECTIONS,
        rows_shown=ROWS_SHOWN,
        advice_shown=ADVICE_SHOWN,
        abstained_shown=ABSTAINED_SHOWN,
        options_shown=OPTIONS_SHOWN,
        worth=worth,
        models=_models,
        most_worth=max((worth(item.chosen) or 0.0 for item in report.top_changes), default=0.0),
        anchors={item.key: f"change-{index}" for index, item in enumerate(advised[:ADVICE_SHOWN], 1)},
        most_allocated=max((team.use.allocated_gpu_hours for team in report.teams), default=0.0),
        advised=advised,
        most_lost=max(report.lost_gpu_hours_by_cause.values(), default=0.0),
    )


def _worth_of(changes: Sequence[Recommendation]) -> Callable[[Option], float | None]:
    """The value that bars compare: money if any price is known, else GPU-hours."""
    if any(item.chosen.projected_saving_per_week is not None for item in changes):
        return lambda option: option.projected_saving_per_week
    return lambda option: option.projected_saving_gpu_hours_per_week


def _models(team: TeamUse) -> str:
    """The three GPU models with the team's most GPU-hours."""
    ordered = sorted(team.gpu_models.items(), key=lambda item: (-item[1], item[0]))
    more = f", {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(f"{model} {say.gpu_hours(used)}" for model, used in ordered[:3]) + more
