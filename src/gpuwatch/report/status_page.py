"""The controller's status page: the fleet, what was found, what is done, and what keeps it from more. Pure. It has no
script, loads nothing from outside, and escapes every name."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuwatch.model.decision import Analysis, Finding, Mode, Verdict
from gpuwatch.model.remediation import Pause, Phase, Remediation
from gpuwatch.model.telemetry import Device
from gpuwatch.report.remediation_tables import held_up_by, pause_text
from gpuwatch.report.tables import other_gaps
from gpuwatch.report.templating import template
from gpuwatch.report.words import ago, listed, plural, short_uuid

ROWS_SHOWN = 100
"""Most rows of each table."""
NODES_SHOWN = 500
"""Most Nodes of the picture: 4,000 GPUs are about 1 MB of HTML."""

_OWN_TAINTS = "gpuwatch.dev/"


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


STATES = ("degraded", "unknown", "idle", "busy", "tainted", "free")
"""States of a GPU on the page; the first that applies is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One GPU or MIG instance. state: of STATES. finding: number of the finding in the page's table that says why; 0
    without one."""

    name: str
    state: str
    said: str
    finding: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One Node with its GPUs. notes: model, taints."""

    name: str
    notes: str
    cells: tuple[Cell, ...]


def status_html(status: Status, *, refresh: bool = True) -> str:
    """The page, UTF-8 text. refresh: whether it loads itself anew each minute."""
    fleet = fleet_rows(status.analysis) if status.analysis is not None else []
    concluded = _listed(status.analysis.findings) if status.analysis is not None else []
    newest_first = sorted(
        status.remediations or (), key=lambda each: (each.proposal.created_at, each.name), reverse=True
    )
    ended = [each for each in newest_first if not each.phase.open]
    items = status.analysis.plan.items if status.analysis is not None else ()
    budgets = status.analysis.plan.budgets if status.analysis is not None else ()
    return template("status.html.j2").render(
        status=status,
        refresh=refresh,
        fleet=fleet,
        counts=Counter(cell.state for row in fleet for cell in row.cells),
        states=STATES,
        findings=concluded,
        untold=[item for item in status.analysis.findings if item.verdict is Verdict.UNKNOWN]
        if status.analysis is not None
        else [],
        headline=_headline(status),
        stops=_stops(status),
        rows_shown=ROWS_SHOWN,
        nodes_shown=NODES_SHOWN,
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


def fleet_rows(analysis: Analysis) -> list[NodeRow]:
    """Every Node with its GPUs, those with a degraded, unknown or idle one first. A Node whose GPUs no telemetry shows
    has as many unknown ones as Kubernetes counts."""
    nodes = {node.name: node for node in analysis.cluster.nodes}
    devices: dict[str, list[Device]] = {name: [] for name, node in nodes.items() if node.accelerators}
    for device in analysis.devices:
        devices.setdefault(device.node or device.node_label or "Node unknown", []).append(device)
    number = {
        name: (index, item)
        for index, item in reversed([*enumerate(_listed(analysis.findings), 1)])
        for name in item.devices
    }
    untold = {name: item for item in analysis.findings if item.verdict is Verdict.UNKNOWN for name in item.devices}
    rows = []
    for name, found in devices.items():
        node = nodes.get(name)
        barred = [taint.key for taint in node.taints if taint.key.startswith(_OWN_TAINTS)] if node else []
        barred += ["cordoned"] if node is not None and node.unschedulable else []
        found.sort(key=lambda each: (each.index.zfill(4), each.id))
        cells = [_cell(each, number.get(each.id), untold.get(each.id), barred) for each in found]
        if not cells and node is not None:
            silent = Cell(name="", state="unknown", said="No telemetry shows this GPU.")
            cells = [silent] * sum(node.accelerators.values())
        models = sorted({each.model for each in found if each.model})
        rows.append(NodeRow(name=name, notes=", ".join((*models, *barred)), cells=tuple(cells)))
    return sorted(rows, key=lambda row: (min([STATES.index(each.state) for each in row.cells] + [3]), row.name))


def _cell(device: Device, found: tuple[int, Finding] | None, untold: Finding | None, barred: Sequence[str]) -> Cell:
    index, finding = found or (0, None)
    if finding is not None and finding.verdict in (Verdict.DEGRADED, Verdict.IDLE):
        state, said = str(finding.verdict), finding.summary
    elif not device.present or untold is not None or device.untrusted:
        state = "unknown"
        said = untold.summary if untold is not None else device.untrusted or "It reports no samples now."
    elif device.pods:
        state, said = "busy", f"Used by {listed(device.pods, 3)}."
    else:
        state, said = ("tainted", f"{', '.join(barred)}: takes no new Pods.") if barred else ("free", "No Pod has it.")
    name = device.index or short_uuid(device.id).partition("/")[0]
    name += f"/{device.mig_instance}" if device.mig_instance else ""
    return Cell(name=name, state=state, said=f"{device.id}: {said}", finding=index)


def _listed(findings: Sequence[Finding]) -> list[Finding]:
    """The findings of the page's table, in its order."""
    shown = (Verdict.DEGRADED, Verdict.IDLE, Verdict.MISFIT)
    return sorted((item for item in findings if item.verdict in shown), key=lambda item: shown.index(item.verdict))


def _headline(status: Status) -> str:
    if not status.leads:
        return f"Standing by: {status.leader or 'nobody'} leads; the leader alone shows the fleet."
    if status.analysis is None:
        return "It leads; its first cycle has not ended yet."
    coverage = status.analysis.coverage
    findings = [str(item.verdict) for item in status.analysis.findings]
    return (
        f"It leads. {coverage.devices_present} of {coverage.devices} GPUs and MIG instances report: "
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
