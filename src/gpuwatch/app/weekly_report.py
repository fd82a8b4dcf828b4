"""The weekly report, from one run of right-sizing and from what was done."""

from datetime import datetime, timedelta

from gpuwatch.account.weekly import assemble_weekly
from gpuwatch.act.execute.precision import precision
from gpuwatch.app.ledger import Hours
from gpuwatch.app.sizing import Sized
from gpuwatch.app.sources import Opened
from gpuwatch.facts.model.remediation import Remediation
from gpuwatch.facts.model.telemetry import Gap
from gpuwatch.facts.model.weekly import DetectorRecord, WeeklyReport
from gpuwatch.say.machine import to_json
from gpuwatch.say.weekly_machine import weekly_csvs
from gpuwatch.say.weekly_pages import weekly_html, weekly_markdown


def week_of(
    opened: Opened,
    sized: Sized,
    hours: Hours,
    length: timedelta,
    end: datetime | None = None,
    remediations: tuple[Remediation, ...] | None = None,
    gaps: tuple[Gap, ...] = (),
) -> WeeklyReport:
    """The report of the period `length` up to `end`, or up to the moment of the sources, of which `hours` are.
    remediations, gaps: None if no Remediations were read, and why."""
    end = end or opened.at
    detectors = (
        DetectorRecord(
            detector=name,
            right=each.successes,
            wrong=each.failures,
            lower_ratio=each.lower_ratio,
            upper_ratio=each.upper_ratio,
        )
        for name, each in precision(remediations or ()).items()
    )
    return assemble_weekly(
        sized.analysis,
        hours.ledger,
        hours.hourly,
        sized.book,
        sized.recommendations,
        sized.abstentions,
        sized.outcomes,
        start=end - length,
        end=end,
        rates=sized.rates,
        before=hours.before,
        gaps=(*sized.gaps, *gaps),
        remediations=remediations,
        observed=opened.settings.plan.only_observes,
        detectors=tuple(detectors),
        cluster=opened.settings.cluster_name,
    )


def report_files(report: WeeklyReport) -> dict[str, bytes]:
    """File name → content, for every form of the report."""
    texts = {
        "report.html": weekly_html(report),
        "report.md": weekly_markdown(report),
        "report.json": to_json(report),
        **weekly_csvs(report),
    }
    return {name: text.encode() for name, text in texts.items()}
