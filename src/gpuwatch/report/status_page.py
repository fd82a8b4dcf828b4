"""The controller's status page: what it does, and what keeps it from more. Pure. Like the weekly report it has no
script, loads nothing from outside, and escapes every name."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuwatch.model.decision import Analysis, Mode
from gpuwatch.model.remediation import Pause, Phase, Remediation
from gpuwatch.report.remediation_tables import held_up_by, pause_text
from gpuwatch.report.tables import other_gaps
from gpuwatch.report.templating import template
from gpuwatch.report.words import ago, plural

ROWS_SHOWN = 100
"""Most rows of each table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTimes:
    """The last runs of one job. error: of the last run, '' if it succeeded; running_since: None if it is not
    running."""

    name: str
    succeeded_at: datetime | None = None
    failed_at: datetime | None = None
    seconds: float | None = None
    error: str = ""
    running_since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of one replica and, if it leads, of the fleet. complaints: why it is not ready or not alive. analysis,
    remediations: as of the last analysis; None before it, and on replicas that do not lead. undelivered: notifications
    that no receiver accepted. modes: the configured modes as text."""

    at: datetime
    version: str
    identity: str
    started_at: datetime
    source: str
    leads: bool
    leader: str
    modes: tuple[tuple[str, Mode], ...]
    complaints: tuple[str, ...] = ()
    jobs: tuple[JobTimes, ...] = ()
    analysis: Analysis | None = None
    remediations: tuple[Remediation, ...] | None = None
    pause: Pause | None = None
    report_due: datetime | None = None
    report_done: datetime | None = None
    undelivered: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """A report in the folder; its main file comes first."""

    id: str
    title: str
    files: tuple[str, ...]


def status_html(status: Status) -> str:
    """The page, UTF-8 text."""
    newest_first = sorted(
        status.remediations or (), key=lambda each: (each.proposal.created_at, each.name), reverse=True
    )
    ended = [each for each in newest_first if not each.phase.open]
    items = status.analysis.plan.items if status.analysis is not None else ()
    budgets = status.analysis.plan.budgets if status.analysis is not None else ()
    return template("status.html.j2").render(
        status=status,
        headline=_headline(status),
        stops=_stops(status),
        rows_shown=ROWS_SHOWN,
        open=[each for each in newest_first if each.phase.open],
        ended=sorted(ended, key=lambda each: each.changed_at, reverse=True)[:10],
        admitted=[item for item in items if item.admitted],
        refused=[item for item in items if not item.admitted],
        budgets=[use for use in budgets if use.in_flight_gpus],
        free_budgets=sum(not use.in_flight_gpus for use in budgets),
        gaps=other_gaps(status.analysis.gaps) if status.analysis is not None else [],
        held_up=held_up_by,
        since=lambda then: ago(then, status.at) or "now",
        waiting=sum(each.phase is Phase.PROPOSED for each in newest_first),
    )


def reports_html(reports: Sequence[ReportFiles], total: int) -> str:
    """The newest reports of the folder, of which there are `total`."""
    return template("reports.html.j2").render(reports=reports, total=total)


def _headline(status: Status) -> str:
    if not status.leads:
        return f"Standing by: {status.leader or 'nobody'} leads; the leader alone shows the fleet."
    if status.analysis is None:
        return "It leads; its first cycle has not ended yet."
    coverage = status.analysis.coverage
    findings = [str(item.verdict) for item in status.analysis.findings]
    return (
        f"It leads. {coverage.devices_present} of {plural(coverage.devices, 'device')} report: "
        f"{findings.count('degraded')} degraded, {findings.count('idle')} idle, {findings.count('unknown')} not known."
    )


def _stops(status: Status) -> tuple[tuple[str, str], ...]:
    """What blocks all actions now."""
    found = [("Not well", line) for line in status.complaints]
    if status.pause is not None and status.pause.paused:
        found.append(("Pause", pause_text(status.pause, status.at)))
    if status.analysis is not None and status.analysis.plan.brake:
        found.append(("Brake", status.analysis.plan.brake))
    if status.analysis is not None and (unread := status.analysis.cluster.unread):
        kinds = ", ".join(dict.fromkeys(f"{item.kind}{item.namespace and f' of {item.namespace}'}" for item in unread))
        found.append(("Not read", f"{kinds}, at least in part. What depends on them is refused; the gaps say why."))
    if status.undelivered:
        found.append(("Notifications", f"No receiver took {plural(status.undelivered, 'notification')}."))
    return tuple(found)
