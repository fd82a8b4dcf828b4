"""The controller's status page: the fleet, the findings, the plan, the open Remediations, and what blocks actions.

Pure. The page has no script, requests nothing, and escapes every name.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.decision import Analysis, Finding, Mode, Verdict
from gpuwatch.facts.model.remediation import Pause, Phase, Remediation
from gpuwatch.facts.model.telemetry import Device
from gpuwatch.say.remediation_tables import held_up_by, pause_text
from gpuwatch.say.tables import lasted, other_gaps, shown
from gpuwatch.say.templating import template
from gpuwatch.say.words import ago, listed, plural, short_uuid

ROWS_SHOWN = 100
"""Of each table."""
NODES_SHOWN = 500
"""Of the fleet: 4,000 GPUs are about 1 MB of HTML."""

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
    enforcement: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """A report in the folder; its main file comes first."""

    id: str
    title: str
    files: tuple[str, ...]


STATES = ("degraded", "idle", "unknown", "allocated", "tainted", "free")
"""States of a GPU on the page; the first that applies is shown."""
_VERDICTS = (Verdict.DEGRADED, Verdict.IDLE, Verdict.UNKNOWN, Verdict.MISFIT)
"""Of the findings of one GPU, the first of these decides its state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One GPU or MIG instance. state: of STATES. reason: of the state, as a sentence. anchor: of the finding's row on
    the page; '' without one."""

    name: str
    state: str
    reason: str
    anchor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One Node with its GPUs. notes: models, taints, cordon."""

    name: str
    notes: str
    cells: tuple[Cell, ...]


def status_html(status: Status, *, refresh: bool = True) -> str:
    """The page, UTF-8 text. refresh: whether it reloads itself every minute."""
    analysis = status.analysis
    fleet = fleet_rows(analysis) if analysis is not None else []
    counts = Counter(cell.state for row in fleet for cell in row.cells)
    newest_first = sorted(
        status.remediations or (), key=lambda each: (each.proposal.created_at, each.name), reverse=True
    )
    ended = [each for each in newest_first if not each.phase.open]
    return template("status.html.j2").render(
        status=status,
        refresh=refresh,
        fleet=fleet,
        counts=counts,
        states=STATES,
        findings=_concluded(analysis.findings) if analysis is not None else [],
        unknown=_unknown(analysis.findings) if analysis is not None else [],
        headline=_headline(status, counts),
        stops=_stops(status),
        rows_shown=ROWS_SHOWN,
        nodes_shown=NODES_SHOWN,
        open=[each for each in newest_first if each.phase.open],
        ended=sorted(ended, key=lambda each: each.changed_at, reverse=True)[:10],
        gaps=other_gaps(analysis.gaps) if analysis is not None else [],
        held_up=held_up_by,
        since=lambda then: ago(then, status.at) or "now",
        lasted=lasted,
        waiting=sum(each.phase is Phase.PROPOSED for each in newest_first),
    )


def reports_html(reports: Sequence[ReportFiles], total: int) -> str:
    """The newest reports of the folder, of which there are `total`."""
    return template("reports.html.j2").render(reports=reports, total=total)


def fleet_rows(analysis: Analysis) -> list[NodeRow]:
    """Every Node with its GPUs, those with a degraded, idle or unknown one first. A Node whose GPUs no telemetry shows
    has as many unknown ones as Kubernetes counts."""
    nodes = {node.name: node for node in analysis.cluster.nodes}
    devices: dict[str, list[Device]] = {name: [] for name, node in nodes.items() if node.accelerators}
    for device in shown(analysis):
        devices.setdefault(device.node or device.node_label or "Node unknown", []).append(device)
    deciding, doubts = _deciding(analysis.findings), {item.shown.id: item.why for item in analysis.doubted}
    rows = [_node_row(name, nodes.get(name), found, deciding, doubts) for name, found in devices.items()]
    return sorted(rows, key=lambda row: (_urgency(row), row.name))


def _deciding(findings: Sequence[Finding]) -> dict[str, tuple[Finding, str]]:
    """Device → the finding that decides its state, with its anchor."""
    anchored = [*_anchored("finding", _concluded(findings)), *_anchored("unknown", _unknown(findings))]
    decided: dict[str, tuple[Finding, str]] = {}
    for item, anchor in sorted(anchored, key=lambda pair: _VERDICTS.index(pair[0].verdict)):
        for device in item.devices:
            decided.setdefault(device, (item, anchor))
    return decided


def _node_row(
    name: str,
    node: Node | None,
    devices: Sequence[Device],
    deciding: Mapping[str, tuple[Finding | None, str]],
    doubts: Mapping[str, str],
) -> NodeRow:
    barred = [taint.key for taint in node.taints if taint.key.startswith(_OWN_TAINTS)] if node is not None else []
    barred += ["cordoned"] if node is not None and node.unschedulable else []
    # GPU 2 before 10, and instance 7 before 10.
    in_order = sorted(devices, key=lambda each: (each.index.zfill(4), (each.mig_instance or "").zfill(4), each.id))
    cells = [_cell(each, *deciding.get(each.id, (None, "")), doubts.get(each.id, ""), barred) for each in in_order]
    if not cells and node is not None:
        silent = Cell(name="", state="unknown", reason="No telemetry shows this GPU.")
        cells = [silent] * sum(node.accelerators.values())
    models = sorted({each.model for each in devices if each.model})
    return NodeRow(name=name, notes=", ".join((*models, *barred)), cells=tuple(cells))


def _urgency(row: NodeRow) -> int:
    """Of its worst GPU; 'allocated' and what comes after it are alike."""
    alike = STATES.index("allocated")
    return min((STATES.index(each.state) for each in row.cells if STATES.index(each.state) < alike), default=alike)


def _anchored(kind: str, findings: Sequence[Finding]) -> list[tuple[Finding, str]]:
    """Each finding with the id of its row on the page; '' for those beyond the rows shown."""
    return [(item, f"{kind}-{row}" if row <= ROWS_SHOWN else "") for row, item in enumerate(findings, 1)]


def _cell(device: Device, finding: Finding | None, anchor: str, doubt: str, barred: Sequence[str]) -> Cell:
    verdict = finding.verdict if finding is not None else None
    if finding is not None and verdict in (Verdict.DEGRADED, Verdict.IDLE, Verdict.UNKNOWN):
        state, reason = str(verdict), finding.summary
    elif not device.present or doubt:
        state, reason = "unknown", f"It is not trusted: {doubt}." if doubt else "It reports no samples now."
    elif device.pods:
        state, reason = "allocated", f"Allocated to {listed(device.pods, 3)}."
    elif barred:
        state, reason = "tainted", f"{', '.join(barred)}: takes no new Pods."
    else:
        state, reason = "free", "No Pod has it."
    name = device.index or short_uuid(device.id).partition("/")[0]
    name += f"/{device.mig_instance}" if device.mig_instance else ""
    return Cell(name=name, state=state, reason=f"{device.id}: {reason}", anchor=anchor)


def _concluded(findings: Sequence[Finding]) -> list[Finding]:
    """The findings with a verdict, in the order of the page's table."""
    found = [item for item in findings if item.verdict in _VERDICTS and item.verdict is not Verdict.UNKNOWN]
    return sorted(found, key=lambda item: _VERDICTS.index(item.verdict))


def _unknown(findings: Sequence[Finding]) -> list[Finding]:
    return [item for item in findings if item.verdict is Verdict.UNKNOWN]


def _headline(status: Status, counts: Mapping[str, int]) -> str:
    if not status.leads:
        leader = (
            f"{status.leader} leads, and only its page shows the fleet" if status.leader else "no replica leads now"
        )
        return f"This replica stands by: {leader}."
    if status.analysis is None:
        return "This replica leads; its first cycle has not ended yet."
    coverage = status.analysis.coverage
    if not coverage.devices:
        return "This replica leads. Telemetry shows no GPU: the state of the fleet is unknown."
    return (
        f"This replica leads. {coverage.devices_present} of {coverage.devices} GPUs and MIG instances report. "
        f"{counts['degraded']} degraded, {counts['idle']} idle, {counts['unknown']} unknown."
    )


def _stops(status: Status) -> tuple[tuple[str, str], ...]:
    """What blocks actions now."""
    found = [("Not ready", line) for line in status.complaints]
    if status.pause is not None and status.pause.paused:
        found.append(("Pause", pause_text(status.pause, status.at)))
    if status.analysis is not None and status.analysis.plan.brake:
        found.append(("Brake", status.analysis.plan.brake))
    if status.analysis is not None and (unread := status.analysis.cluster.unread):
        kinds = ", ".join(dict.fromkeys(f"{item.kind}{item.namespace and f' of {item.namespace}'}" for item in unread))
        found.append(("Not read", f"{kinds}, at least in part. gpuwatch refuses the actions that depend on them."))
    if status.undelivered:
        found.append(("Notifications", f"No receiver accepted {plural(status.undelivered, 'notification')}."))
    return tuple(found)
