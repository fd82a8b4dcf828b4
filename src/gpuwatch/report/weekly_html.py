"""The weekly report as one HTML page, without scripts or external resources, for dark screens, paper and screen
readers.

The page's Content-Security-Policy forbids scripts and requests, so that even a name that got past the escaping could do
nothing. Lists are cut at `ROWS_SHOWN` and the like; the CSV and JSON forms have everything.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from gpuwatch.cycle.weekly import by_worth
from gpuwatch.model.sizing import Abstention, Option, OutcomeVerdict, Recommendation
from gpuwatch.model.weekly import TeamUse, Use, WeeklyReport, WorkloadUse
from gpuwatch.report import charts
from gpuwatch.report import weekly_words as say
from gpuwatch.report.plan_tables import short_worth
from gpuwatch.report.sizing_tables import patch_yaml
from gpuwatch.report.tables import evidence_line, other_gaps
from gpuwatch.report.words import ago, plural, quantity, short_uuid

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


_HIT = {OutcomeVerdict.HIT: True, OutcomeVerdict.MISS: False}


def weekly_html(report: WeeklyReport) -> str:
    """The page, UTF-8 text. Everything that came from a cluster is escaped."""
    advised = sorted((item.recommendation for item in report.workloads if item.recommendation), key=by_worth)
    shown = advised[:ADVICE_SHOWN]
    gaps = other_gaps(report.gaps)
    worth = _worth_of(report.top_changes)
    return template("weekly.html.j2").render(
        report=report,
        sections=_SECTIONS,
        changed_nothing="All of it is advice: nothing was changed by writing it.",
        span=say.span(report.start, report.end),
        period=say.period(report),
        headline=say.headline(report),
        basis=say.basis(report),
        use_of={use.recommendation.key: use for use in report.workloads if use.recommendation},
        figures=say.figures(report),
        parts=say.parts(report.fleet),
        worth=worth,
        models=_models,
        most_worth=max((worth(item.chosen) or 0.0 for item in report.top_changes), default=0.0),
        anchors={item.key: f"change-{index}" for index, item in enumerate(shown, 1)},
        teams=report.teams[:ROWS_SHOWN],
        most_allocated=max((team.use.allocated_gpu_hours for team in report.teams), default=0.0),
        advised=shown,
        advised_count=len(advised),
        abstained=_abstained(report),
        abstained_count=sum(1 for item in report.workloads if item.abstention),
        workloads=report.workloads[:ROWS_SHOWN],
        idle=report.idle[:ROWS_SHOWN],
        degraded=report.degraded[:ROWS_SHOWN],
        none_idle=say.none_idle(report),
        none_degraded=say.none_degraded(report),
        most_lost=max(report.lost_gpu_hours_by_cause.values(), default=0.0),
        outcomes=report.outcomes[:ROWS_SHOWN],
        actions=(report.actions or ())[:ROWS_SHOWN],
        actions_line=say.actions_line(report),
        record=say.record(report.outcomes),
        gaps=gaps[:ROWS_SHOWN],
        gap_count=len(gaps),
        since=lambda finding: ago(finding.since, report.at) or say.UNKNOWN,
    )


def _worth_of(changes: Sequence[Recommendation]) -> Callable[[Option], float | None]:
    """The value that bars compare: money if any price is known, else GPU-hours."""
    if any(item.chosen.projected_saving_per_week is not None for item in changes):
        return lambda option: option.projected_saving_per_week
    return lambda option: option.projected_saving_gpu_hours_per_week


def _abstained(report: WeeklyReport) -> list[tuple[str, str, list[Abstention], int]]:
    """(heading, meaning, the ones shown, count) of each kind that occurs."""
    found = []
    for kind, (title, meaning) in say.ABSTAINED.items():
        items = [item.abstention for item in report.workloads if item.abstention and item.abstention.kind is kind]
        if items:
            found.append((title, meaning, items[:ABSTAINED_SHOWN], len(items)))
    return found


def _models(team: TeamUse) -> str:
    """The three GPU models with the team's most GPU-hours."""
    ordered = sorted(team.gpu_models.items(), key=lambda item: (-item[1], item[0]))
    more = f", {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(f"{model} {say.gpu_hours(used)}" for model, used in ordered[:3]) + more


def _known(text: str | Markup) -> str | Markup:
    """'unknown' is styled differently, so that nobody reads it as a value."""
    return Markup('<span class="unknown-text">unknown</span>') if text == say.UNKNOWN else text


def _code(text: str) -> Markup:
    """`names` in a sentence as code, escaped."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(Markup.escape(text))))  # noqa: S704


def _sm_ratio(use: Use) -> float | None:
    """SM activity of the allocated time that was measured."""
    known = use.allocated_gpu_hours - use.unknown_gpu_hours
    return use.sm_gpu_hours / known if use.sm_gpu_hours is not None and known > 0 else None


@pass_context
def _money(context: Context, value: float | None) -> str:
    return say.money(value, context["report"].currency)


@pass_context
def _saved(context: Context, use: WorkloadUse | None) -> str:
    return say.saved(use, context["report"].currency)


@pass_context
def _saving(context: Context, option: Option) -> str:
    return say.saving(option, context["report"].currency)


def _size(value: float | None) -> str:
    return say.UNKNOWN if value is None else quantity(value, "bytes")


@cache
def template(name: str) -> Template:
    """A template with the shared style; it escapes everything."""
    # The style sheet too is escaped: it contains nothing that escaping would change.
    environment = Environment(
        loader=PackageLoader("gpuwatch.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        code=_code,
        device=short_uuid,
        evidence=evidence_line,
        hours=say.gpu_hours,
        known=_known,
        money=_money,
        percent=say.percent,
        plural=plural,
        saves_and_costs=short_worth,
        saved=_saved,
        saving=_saving,
        size=_size,
        speed=say.speed,
        workload_name=say.workload_name,
        workload_place=say.workload_place,
        yaml=patch_yaml,
    )
    environment.globals.update(
        abstained_title={kind: title for kind, (title, _) in say.ABSTAINED.items()},
        busy_hours=say.busy_gpu_hours,
        busy_ratio=say.busy_ratio,
        chart=charts,
        became=say.BECAME,
        hit_of={verdict: _HIT.get(verdict) for verdict in OutcomeVerdict},
        options_shown=OPTIONS_SHOWN,
        outcome_word=say.OUTCOME,
        sm_ratio=_sm_ratio,
        tier=say.TIER,
    )
    return environment.get_template(name)
