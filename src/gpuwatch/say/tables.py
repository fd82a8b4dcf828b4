"""The Analysis as tables for a terminal. Pure: returns what rich renders, prints nothing."""

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from gpuwatch.account.money import PriceList
from gpuwatch.facts.model.decision import (
    Analysis,
    Evidence,
    Family,
    Finding,
    FindingKind,
    Severity,
    Snapshot,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.telemetry import Device, Gap, GapKind
from gpuwatch.say.layout import FoldedName, cut, new_grid, new_table, whole_or_line
from gpuwatch.say.plan_tables import called, plan_parts, plan_summary
from gpuwatch.say.weekly_words import percent
from gpuwatch.say.words import ago, duration, plural, quantity, short_uuid

_COLOUR = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}


def shown(of: Analysis | Snapshot) -> tuple[Device, ...]:
    """All devices that telemetry shows, trusted or not: for people, and for nothing that concludes."""
    return (*of.devices, *(item.shown for item in of.doubted))


def analysis_tables(
    analysis: Analysis,
    source: str,
    *,
    scope: str = "",
    rows: int = 30,
    wide: bool = True,
    prices: PriceList | None = None,
) -> RenderableType:
    """A line of verdict, then the most urgent first; tables are cut at `rows` lines, with a note. wide: with all
    reasons and evidence; else two lines a row at most, for 80 columns. scope: what the analysis is about, where that is
    not all. prices: for what idle GPUs cost."""
    by_verdict = grouped(analysis.findings, lambda finding: (finding.family, finding.verdict))
    devices = {device.id: device for device in analysis.devices}
    suspected = [item for item in analysis.findings if item.kind is FindingKind.SUSPECTED_IDLE]
    unknown = [item for item in analysis.findings if item.verdict is Verdict.UNKNOWN and item not in suspected]
    parts: list[RenderableType] = [
        _verdict(analysis, prices),
        _head(analysis, source, scope),
        _degraded(by_verdict[Family.HEALTH, Verdict.DEGRADED], analysis, devices, rows, wide),
        _idle(by_verdict[Family.IDLE, Verdict.IDLE], analysis, rows, wide),
    ]
    if suspected:
        parts.append(_allocations("Suspected idle, not proven, never acted on", suspected, analysis, rows, wide))
    if misfits := by_verdict[Family.MISFIT, Verdict.MISFIT]:
        parts.append(_misfit(misfits, devices, rows, wide))
    if unknown:
        parts.append(_unknown(unknown, rows, wide))
    parts += plan_summary(analysis, rows, wide=wide)
    parts += gap_tables(analysis.gaps, rules_limited=analysis.coverage.rules_limited, rows=rows, wide=wide)
    if not wide and (analysis.findings or analysis.plan.items):
        parts.append(Text("\nEvidence and whole reasons: -o wide; of one: gpuwatch explain KIND/NAME", style="dim"))
    return Group(*parts)


def plan_tables(
    analysis: Analysis, source: str, *, scope: str = "", rows: int = 30, wide: bool = True
) -> RenderableType:
    """What would be done now and what not, with the reasons, and the budgets in use; compact: a row for each."""
    shown = plan_parts(analysis, rows) if wide else plan_summary(analysis, rows, wide=False)
    return Group(_head(analysis, source, scope), *shown, *gap_tables(analysis.gaps, rows=rows, wide=wide))


def _verdict(analysis: Analysis, prices: PriceList | None) -> RenderableType:
    """What to act on, and what it costs, in one line; nothing found is no good news where nothing could be judged."""
    coverage, devices = analysis.coverage, {device.id: device for device in analysis.devices}
    broken = [item for item in analysis.findings if (item.family, item.verdict) == (Family.HEALTH, Verdict.DEGRADED)]
    idle = [item for item in analysis.findings if (item.family, item.verdict) == (Family.IDLE, Verdict.IDLE)]

    def gpus(findings: Iterable[Finding]) -> set[str]:
        return {devices[name].uuid for item in findings for name in item.devices if name in devices}

    told = []
    if broken:
        grave = sum(item.severity is Severity.CRITICAL for item in broken)
        count = len(gpus(broken)) or len(broken)
        told.append(f"{plural(count, 'GPU')} {'is' if count == 1 else 'are'} degraded{' (critical)' if grave else ''}")
    if idle:
        count = len(gpus(idle))
        cost = _cost_per_day({name for item in idle for name in item.devices}, analysis, prices)
        costs = f", which costs {cost:,.0f} {prices.currency} a day" if cost is not None and prices else ""
        told.append(f"{plural(count, 'allocated GPU')} {'is' if count == 1 else 'are'} idle{costs}")
    if told:
        return Text(f"Act: {', and '.join(told)}.\n", style="bold red" if broken else "bold yellow")
    judged = coverage.devices - coverage.health_unknown
    if judged <= 0:
        return Text("Not known: the health of no GPU could be judged.\n", style="bold magenta")
    pods = {ref for device in shown(analysis) if device.present for ref in device.pods}
    used = len(pods) - coverage.idle_unknown
    return Text(
        f"Nothing to act on: none of {plural(judged, 'device')} is degraded, and none of {plural(used, 'Pod')} is "
        "proven idle, of those that could be judged.\n",
        style="bold green",
    )


def _cost_per_day(names: Collection[str], analysis: Analysis, prices: PriceList | None) -> float | None:
    """Of these devices, a MIG instance as an equal part of its GPU; None where the price of one is not known."""
    nodes = {node.name: node for node in analysis.cluster.nodes}
    parts = Counter(device.uuid for device in analysis.devices)
    total = 0.0
    for device in (device for device in analysis.devices if device.id in names):
        node = nodes.get(device.node or "")
        price = prices.of_node(node).price_per_gpu_hour if prices is not None and node is not None else None
        if price is None:
            return None
        total += 24 * price / parts[device.uuid]
    return total


def _head(analysis: Analysis, source: str, scope: str) -> RenderableType:
    coverage = analysis.coverage
    devices = shown(analysis)
    nodes = {device.node or device.node_label for device in devices}
    pods = {ref for device in devices if device.present for ref in device.pods}
    models = Counter(device.model or "unknown model" for device in devices)
    known, asked = _uses(analysis)
    cut_up = {device.uuid for device in devices if device.mig_instance is not None}
    instances = f" (MIG instances of {plural(len(cut_up), 'GPU')} among them)" if cut_up else ""
    grid = new_grid()
    grid.add_row("At", f"{analysis.at:%Y-%m-%d %H:%M %Z}".strip() + f" · {source}")
    missing = coverage.devices - coverage.devices_present
    if scope:
        grid.add_row("Only", escape(f"{scope}, and the GPUs that they have"))
    grid.add_row(
        "Shown" if scope else "Fleet",
        f"{plural(coverage.devices, 'device')}{instances} on {plural(len(nodes), 'node')}"
        + (f", [red]{missing} not reporting now[/]" if missing else "")
        + f" · {coverage.devices_allocated} allocated to {plural(len(pods), 'Pod')}"
        + (" · " if models else "")
        + ", ".join(f"{count} × {escape(name)}" for name, count in models.most_common(4))
        + (" …" if len(models) > 4 else ""),
    )
    grid.add_row(
        "Known",
        f"health of {coverage.devices - coverage.health_unknown} of {coverage.devices} devices · "
        f"use of {known} of {plural(asked, 'Pod')} · "
        f"Node of {coverage.devices_resolved} of {coverage.devices}"
        + (f" · {plural(coverage.devices_shared, 'shared device')}" if coverage.devices_shared else "")
        + (f" · [yellow]{plural(len(analysis.doubted), 'device')} not trusted[/]" if analysis.doubted else ""),
    )
    return Group(grid, Text())


def _none(how: str, known: int, noun: str) -> str:
    """Finding nothing is no good news if nothing is known."""
    return f"none {how} among the {plural(known, noun)} that could be judged" if known > 0 else "[magenta]not known[/]"


def _where(finding: Finding, devices: dict[str, Device]) -> RenderableType:
    known = [devices[name] for name in finding.devices if name in devices]
    if finding.subject.kind is SubjectKind.DEVICE and known:
        device = known[0]
        place = f"{device.node or device.node_label or '?'} gpu {device.index or '?'}"
        return Group(FoldedName(place), FoldedName(short_uuid(finding.subject.name)))
    return FoldedName(called(finding.subject))


def evidence_line(item: Evidence) -> str:
    """One fact in a line: 'xid_code = 79 (in fatal), 42 peers at 0'."""
    window = f" over {duration(item.window_seconds)}" if item.window_seconds else ""
    statistic = f" {item.statistic}" if item.statistic and item.statistic != "last" else ""
    text = f"{item.signal}{statistic}{window} = {quantity(item.value, item.unit)}"
    if item.comparison and item.bound is not None:
        text += f" ({item.comparison} {quantity(item.bound, item.unit)})"
    if item.peers_median is not None:
        text += f", median of {item.peers} peers {quantity(item.peers_median, item.unit)}"
    return text


def lasted(finding: Finding, at: datetime) -> str:
    """How long the finding has held; '' if unknown. "at least" where it held when the window of its evidence began."""
    if finding.since is not None:
        seconds = round((at - finding.since).total_seconds())
        windows = [item.window_seconds for item in finding.evidence if finding.family is Family.HEALTH]
        least = any(seconds in (window, 2 * window) for window in windows)
        return f"{'at least ' if least else ''}{duration(seconds)}"
    grown = [item.window_seconds for item in finding.evidence if item.statistic in ("increase", "appeared")]
    return f"within {duration(min(grown))}" if grown else ""


def _degraded(
    findings: list[Finding], analysis: Analysis, devices: dict[str, Device], rows: int, wide: bool
) -> RenderableType:
    if not findings:
        known = analysis.coverage.devices - analysis.coverage.health_unknown
        return Text.from_markup("[bold]Degraded[/]  " + _none("found", known, "device") + "\n")
    # All that is wrong with one GPU is one row, the gravest first.
    places = list(grouped(findings, lambda item: item.subject).values())
    more = f", with {len(findings)} findings" if len(findings) > len(places) else ""
    columns = ("where", "what", "since", *(("evidence",) if wide else ()), "do")
    table = new_table(f"Degraded ({len(places)}{more})", *columns)
    for here in places[:rows]:
        facts = [evidence_line(fact) for item in here for fact in item.evidence[:2]]
        table.add_row(
            _where(here[0], devices),
            Group(*(_what(item, wide, _COLOUR[item.severity]) for item in here)),
            lasted(here[0], analysis.at) or "not known",
            *((escape("\n".join(facts)),) if wide else ()),
            Group(Text(here[0].advice.replace("_", " ")), _sure(here[0])),
        )
    return Group(table, *cut(len(places), rows), Text())


def _what(finding: Finding, wide: bool, colour: str = "") -> RenderableType:
    """Kind and summary. colour: that of the severity, which is named then."""
    severity = f"{finding.severity}: " if colour else ""
    kind = Text(severity + finding.kind.replace("_", " "), style=colour or "bold")
    others = [Text(f"but {finding.dissent}", style="yellow", overflow="fold")] if finding.dissent else []
    return Group(kind, whole_or_line(finding.summary, wide), *others)


def _sure(finding: Finding) -> Text:
    return Text(f"{percent(finding.confidence_ratio)} sure", style="dim")


def _uses(analysis: Analysis) -> tuple[int, int]:
    """Pods whose use is known, of all that have a device or of which a finding says that their use is unknown."""
    having = {ref for device in shown(analysis) if device.present for ref in device.pods}
    unknown = {
        ref
        for finding in analysis.findings
        if finding.family is Family.IDLE and finding.verdict is Verdict.UNKNOWN
        for ref in finding.pods
    }
    return len(having - unknown), len(having | unknown)


def _idle(findings: list[Finding], analysis: Analysis, rows: int, wide: bool) -> RenderableType:
    if not findings:
        return Text.from_markup("[bold]Idle allocations[/]  " + _none("proven", _uses(analysis)[0], "Pod") + "\n")
    return _allocations("Idle allocations", findings, analysis, rows, wide)


def _allocations(what: str, findings: list[Finding], analysis: Analysis, rows: int, wide: bool) -> RenderableType:
    hours = sum(finding.gpu_hours for finding in findings)
    gpus = len({device for finding in findings for device in finding.devices})
    title = f"{what} ({len(findings)}): {plural(gpus, 'device')}, {hours:,.0f} GPU-hours so far"
    table = new_table(title, "who", "devices", "idle for", "GPU-hours", "what")
    owner = {pod.ref: pod.workload for pod in analysis.cluster.pods}
    # One owner's Pods that are idle for one reason are one row; who has no known owner has a row of their own.
    alike = grouped(findings, lambda item: (item.kind, owner.get(item.subject.name, "") or item.subject.name))
    for (_, name), group in list(alike.items())[:rows]:
        first = max(group, key=lambda item: item.gpu_hours)
        table.add_row(
            FoldedName(f"{plural(len(group), 'Pod')} of {name}" if len(group) > 1 else _who(first)),
            str(len({device for item in group for device in item.devices})),
            ago(first.since, analysis.at),
            f"{sum(item.gpu_hours for item in group):,.1f}",
            _what(first, wide),
        )
    return Group(table, *cut(len(alike), rows), Text())


def _who(finding: Finding) -> str:
    return f"{finding.subject.kind} {called(finding.subject)}"


def _misfit(findings: list[Finding], devices: dict[str, Device], rows: int, wide: bool) -> RenderableType:
    table = new_table(f"In the wrong place ({len(findings)})", "where", "what", "")
    for finding in findings[:rows]:
        table.add_row(_where(finding, devices), _what(finding, wide, _COLOUR[finding.severity]), _sure(finding))
    return Group(table, *cut(len(findings), rows), Text())


def _unknown(findings: list[Finding], rows: int, wide: bool) -> RenderableType:
    """One line for all findings of a rule that lack the same signals."""
    alike = grouped(findings, lambda finding: (finding.rule, finding.missing))
    columns = ("rule", "who", "why", *(("missing",) if wide else ()))
    table = new_table(f"Not known ({len(findings)}): neither healthy nor idle, never acted on", *columns)
    for (rule, missing), group in list(alike.items())[:rows]:
        named = group[: 2 if wide else 1]
        who = [FoldedName(_who(item)) for item in named]
        rest = len(group) - len(named)
        more: list[RenderableType] = [Text(f"and {rest} more", style="dim")] if rest else []
        example = "such as: " if len({item.summary for item in group}) > 1 else ""
        why = whole_or_line(example + group[0].summary, wide)
        table.add_row(rule, Group(*who, *more), why, *((escape(", ".join(missing)),) if wide else ()))
    return Group(table, *cut(len(alike), rows), Text())


def gap_tables(
    gaps: Iterable[Gap], *, rules_limited: Collection[str] = (), rows: int = 10, wide: bool = True
) -> list[RenderableType]:
    """What could not be read, and the rules that lack signals, as one table; nothing if there is neither."""
    found = list(dict.fromkeys(other_gaps(gaps)))
    if not found and not rules_limited:
        return []
    table = new_table("Limits of this answer", "what", "why")
    if rules_limited:
        names = f": {', '.join(sorted(rules_limited))}" if wide else ""
        table.add_row(
            plural(len(rules_limited), "rule"),
            escape(f"could know more with signals that nothing exports here{names}. `gpuwatch doctor` shows which."),
        )
    for gap in found[:rows]:
        table.add_row(escape(f"{gap.kind}: {gap.what}"), whole_or_line(gap.detail, wide))
    return [table, *cut(len(found), rows)]


def other_gaps(gaps: Iterable[Gap]) -> list[Gap]:
    """All gaps but missing signals, which are listed per rule."""
    return [gap for gap in gaps if gap.kind is not GapKind.SIGNAL_MISSING]
