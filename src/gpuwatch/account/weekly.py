"""Assembles the weekly report's values. Pure; `report` writes it.

GPU-hours and their money come from the ledger, findings and coverage from the analysis of the period's last moment.
Unknown values stay None: a cost with an unpriced part is a lower bound, and `limits` says so.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from gpuwatch.account.ledger_sums import By, hours_of_entries, sums
from gpuwatch.account.levers import Sum, levers_of, namespace_of
from gpuwatch.account.money import Rates, cost_of
from gpuwatch.account.weekly_use import is_busy, is_known, use_of, workload_uses
from gpuwatch.facts.catalog.gpus import gpu_share_ratio, model_name
from gpuwatch.facts.model.decision import ActionKind, Analysis, Finding, FindingKind, Severity, SubjectKind, Verdict
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.ledger import Group, Ledger, LedgerEntry
from gpuwatch.facts.model.remediation import Phase, Remediation
from gpuwatch.facts.model.sizing import Abstention, EvidenceTier, Outcome, Recommendation, by_worth
from gpuwatch.facts.model.telemetry import Device, Gap
from gpuwatch.facts.model.weekly import (
    ActionTaken,
    DetectorRecord,
    Left,
    LeverAccount,
    RowHours,
    Sureness,
    TeamUse,
    Use,
    UsePoint,
    WeeklyReport,
)
from gpuwatch.facts.model.workload_profile import ProfileBook

VERSION = 1
"""Version of the weekly report's JSON. Fields may be added; a removal or a change of meaning raises it."""

TOP_CHANGES = 10
_LOW_COVERAGE_RATIO = 0.8  # below it a week's averages may mislead: the coverage that idleness needs (sizing 5.7)


def assemble_weekly(
    analysis: Analysis,
    ledger: Ledger,
    hourly: Sequence[LedgerEntry],
    book: ProfileBook,
    recommendations: Sequence[Recommendation],
    abstentions: Sequence[Abstention],
    outcomes: Sequence[Outcome],
    *,
    start: datetime,
    end: datetime,
    rates: Rates,
    before: Ledger | None = None,
    gaps: Sequence[Gap] = (),
    remediations: Sequence[Remediation] | None = None,
    observed: bool = False,
    detectors: Sequence[DetectorRecord] = (),
    cluster: str = "",
) -> WeeklyReport:
    """The report of (start, end], of which `ledger` is. rates: what idle and degraded GPUs cost now, in its currency.

    hourly: the ledger by hour and row, with a Namespace where Pods had the GPUs; in the ledger itself work may be
    summed by day. before: of the period of the same length before; None where it is not kept. remediations: all stored
    ones; None if they could not be read. observed: whether every mode is observe. cluster: its name, for the title.
    """
    actions = None if remediations is None else actions_in(remediations, start, end)
    hours = ledger.entries
    # One finding for each gang, and for each Pod without one (`gpuwatch.judge.idle.assess`).
    idle = _most_gpu_hours_first(item for item in analysis.findings if item.verdict is Verdict.IDLE)
    suspected = _most_gpu_hours_first(item for item in analysis.findings if item.kind is FindingKind.SUSPECTED_IDLE)
    unusable = _most_gpu_hours_first(item for item in analysis.findings if item.kind in _UNUSABLE)
    devices = {device.id: device for device in analysis.devices}
    workloads = workload_uses(hours, book, recommendations, abstentions, start, end)
    levers, left = levers_of(ledger, analysis, idle, book, recommendations, abstentions, rates, start, end)
    fleet = replace(use_of(hours), capacity_gpu_hours=ledger.capacity_gpu_hours if hours else None)
    degraded = [
        item
        for item in analysis.findings
        if item.verdict is Verdict.DEGRADED and item.subject.kind in (SubjectKind.DEVICE, SubjectKind.NODE)
    ]
    lost = {item.id: of for item in degraded if (of := _since_then(item, devices, rates, start, end))}
    lost_cost = {name: of.cost for name, of in lost.items() if of.cost is not None}
    degraded.sort(
        key=lambda item: (-list(Severity).index(item.severity), -lost_cost.get(item.id, 0.0), -item.gpu_hours)
    )
    return WeeklyReport(
        version=VERSION,
        at=analysis.at,
        start=start,
        end=end,
        source=ledger.source,
        fleet=fleet,
        previous=_previous(before),
        rows=_rows(ledger),
        curve=_curve(hourly, start, end),
        teams=_teams(ledger, recommendations, idle, levers, left),
        workloads=workloads,
        top_changes=tuple(sorted(recommendations, key=by_worth)[:TOP_CHANGES]),
        idle=idle,
        suspected=suspected,
        degraded=tuple(degraded),
        degraded_gpu_hours={name: of.gpu_hours for name, of in lost.items()},
        degraded_cost=lost_cost,
        unusable=unusable,
        unusable_gpu_hours={
            item.id: item.gpu_hours * _hours(max(item.since, start), min(analysis.at, end)) / lasted
            for item in unusable
            if item.since is not None and (lasted := _hours(item.since, analysis.at)) > 0
        },
        outcomes=tuple(outcomes),
        actions=actions,
        actions_note="" if actions else NOT_READ if actions is None else OBSERVED if observed else NOTHING,
        detectors=tuple(detectors),
        coverage=analysis.coverage,
        coverage_ratio=_coverage_ratio(fleet),
        currency=ledger.currency,
        limits=tuple(_limits(hours, hourly, fleet, before, start, end, recommendations, analysis)),
        gaps=tuple(dict.fromkeys((*analysis.gaps, *ledger.gaps, *gaps))),
        levers=levers,
        cluster=cluster,
    )


_UNUSABLE = (FindingKind.OUT_OF_SERVICE, FindingKind.NOT_RUNNING, FindingKind.USED_OUTSIDE)


def _most_gpu_hours_first(found: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(found, key=lambda item: (-item.gpu_hours, item.subject.name)))


def _previous(before: Ledger | None) -> Use | None:
    if before is None or not before.entries:
        return None
    return replace(use_of(before.entries), capacity_gpu_hours=before.capacity_gpu_hours)


def _rows(ledger: Ledger) -> tuple[RowHours, ...]:
    return tuple(
        RowHours(
            row=row,
            gpu_hours=each.known.get(row, 0.0),
            unknown_gpu_hours=each.unknown.get(row, 0.0),
            cost=each.cost,
        )
        for each in sums(ledger, By.ROW)
        for row in {**each.known, **each.unknown}
    )


def _curve(entries: Iterable[LedgerEntry], start: datetime, end: datetime) -> tuple[UsePoint, ...]:
    """One point per hour; an hour of which nothing is known is a gap, not zero."""
    by_hour = grouped(entries, lambda each: each.hour)
    points = []
    hour = start.replace(minute=0, second=0, microsecond=0)
    # Whole hours only: the mean of an hour that the period cuts would look like a drop.
    hour += timedelta(hours=hour < start)
    while hour + timedelta(hours=1) <= end:
        found = by_hour.get(hour, ())
        if not any(is_known(each) for each in found):
            found = ()
        use = use_of(found)
        is_measured = not use.allocated_gpu_hours or use.allocated_gpu_hours > use.unknown_gpu_hours
        offered = (each for each in found if each.row.group is not Group.OUT_OF_SERVICE)
        points.append(
            UsePoint(
                at=hour,
                allocatable_gpus=hours_of_entries(offered) if found else None,
                allocated_gpus=use.allocated_gpu_hours if found else None,
                busy_gpus=use.busy_gpu_hours if found and is_measured else None,
            )
        )
        hour += timedelta(hours=1)
    return tuple(points)


def _teams(
    ledger: Ledger,
    recommendations: Iterable[Recommendation],
    idle: Sequence[Finding],
    account: LeverAccount,
    left: Mapping[str, Left],
) -> tuple[TeamUse, ...]:
    """The most wasteful first."""
    by_team = grouped((each for each in ledger.entries if each.namespace), lambda each: ledger.team(each.namespace))
    sure = grouped((each for each in account.levers if each.sureness is Sureness.SURE), lambda each: each.team)
    for team in sure:
        by_team.setdefault(team, [])  # nothing allocated in this period, but with advice
    advised = Counter(ledger.team(item.key.namespace) for item in recommendations)
    allocations = Counter(ledger.team(namespace_of(finding)) for finding in idle)
    teams = []
    for team, found in by_team.items():
        models: dict[str, float] = defaultdict(float)
        for each in found:
            models[each.gpu_model] += each.gpu_hours
        saved = _sum(Sum(item.saving_gpu_hours_per_week, item.saving_per_week) for item in sure.get(team, ()))
        teams.append(
            TeamUse(
                team=team,
                use=use_of(found),
                gpu_models=dict(sorted(models.items())),
                recommendations=advised[team],
                idle_allocations=allocations[team],
                saving_per_week=saved.known_cost,
                saving_gpu_hours_per_week=saved.gpu_hours,
                left=left.get(team),
            )
        )
    return tuple(
        sorted(teams, key=lambda each: (-(each.use.wasted_cost or 0.0), -each.use.allocated_gpu_hours, each.team))
    )


def _sum(parts: Iterable[Sum]) -> Sum:
    total = Sum()
    for part in parts:
        total.add(part.gpu_hours, part.cost)
    return total


def _since_then(
    item: Finding, devices: Mapping[str, Device], rates: Rates, start: datetime, end: datetime
) -> Sum | None:
    """GPU-hours and cost of the finding's GPUs among `devices`, within the period and from the finding's start on; None
    where the start or all GPUs are unknown."""
    known = [devices[name] for name in item.devices if name in devices]
    if item.since is None or not known:
        return None
    total, hours = Sum(), max((end - max(item.since, start)) / timedelta(hours=1), 0.0)
    for device in known:
        gpu_hours = hours * gpu_share_ratio(device.model, device.mig_profile)
        total.add(gpu_hours, cost_of(gpu_hours, rates.price(model_name(device.model), node=device.node)))
    return total


def _coverage_ratio(fleet: Use) -> float | None:
    return 1.0 - fleet.unknown_gpu_hours / fleet.allocated_gpu_hours if fleet.allocated_gpu_hours > 0 else None


def _limits(
    entries: Collection[LedgerEntry],
    hourly: Iterable[LedgerEntry],
    fleet: Use,
    before: Ledger | None,
    start: datetime,
    end: datetime,
    recommendations: Sequence[Recommendation],
    analysis: Analysis,
) -> Iterable[str]:
    """Limits of these numbers, as full sentences."""
    if not entries:
        yield (
            f"No use was measured between {start:%Y-%m-%d %H:%M} and {end:%Y-%m-%d %H:%M} UTC: "
            "this is unknown, not idle. Check with `gpuwatch doctor` that the exporters' metrics reach the source."
        )
        return
    covered = len({each.hour for each in hourly if is_known(each)})
    wanted = round((end - start) / timedelta(hours=1))
    if covered < _LOW_COVERAGE_RATIO * wanted:
        yield f"Only {covered} of {wanted} hours were measured; sums are of those hours and are not scaled up."
    coverage = _coverage_ratio(fleet)
    if coverage is not None and coverage < _LOW_COVERAGE_RATIO:
        yield (
            f"What GPUs did is known for {coverage:.0%} of the allocated time only; the rest is unknown, "
            "neither busy nor wasted."
        )
    unpriced = sorted({each.gpu_model for each in entries if each.cost is None})
    if unpriced:
        yield (
            f"No price is known for {', '.join(unpriced)}: sums of money leave them out. Give prices with the setting "
            "`prices`, or label the Nodes with their instance type and region."
        )
    if before is None or not before.entries:
        yield "The period before was not measured, so there is no trend yet."
    if any(is_busy(each) and each.unknown for each in entries):
        yield (
            "Some GPUs export no SM activity. Their busy hours are of engine activity, which one small kernel in a "
            "loop keeps at 100 %, so their real use may be lower."
        )
    if any(item.chosen.speed.tier is not EvidenceTier.SM for item in recommendations):
        yield "Some advice rests on board power instead of SM activity; its speed ranges are wider."
    yield "Exporters average over their interval (30 s by default): shorter peaks of memory and activity are not seen."
    if any(item.kind is FindingKind.TELEMETRY_MISSING for item in analysis.findings):
        yield "Telemetry was missing at the end of the period; it is unknown what happened since."


NOT_READ = "It is not known what was done: no Remediations were read. Give the cluster that stores them."
NOTHING = "Nothing was proposed."
OBSERVED = "Nothing was proposed: mode observe."


def actions_in(known: Sequence[Remediation], start: datetime, end: datetime) -> tuple[ActionTaken, ...]:
    """Actions that were proposed, changed or in effect within (start, end], newest first."""
    found = [
        _taken(each, start, end)
        for each in known
        if each.proposal.created_at <= end and (each.phase.open or each.changed_at > start)
    ]
    return tuple(sorted(found, key=lambda item: (item.proposed_at, item.name), reverse=True))


def _taken(remediation: Remediation, start: datetime, end: datetime) -> ActionTaken:
    proposal = remediation.proposal
    return ActionTaken(
        name=remediation.name,
        action=proposal.action,
        target=proposal.target,
        namespace=proposal.namespace,
        pool=proposal.pool,
        gpus=proposal.gpus,
        mode=proposal.mode,
        approved_by=(remediation.approved_by or "a person") if remediation.approved else "",
        proposed_at=proposal.created_at,
        changed_at=remediation.changed_at,
        phase=remediation.phase,
        reason=proposal.reason,
        said=remediation.history[-1].message if remediation.history else proposal.reason,
        detectors=proposal.detectors,
        released_gpu_hours=_released_gpu_hours(remediation, start, end),
    )


def _released_gpu_hours(remediation: Remediation, start: datetime, end: datetime) -> float:
    if remediation.proposal.action is not ActionKind.RELEASE_GANG:
        return 0.0
    total, since = 0.0, None
    ends = ((turn.at, turn.phase is Phase.IN_EFFECT) for turn in remediation.history)
    for at, holds in (*ends, (end, False)):
        if holds:
            since = since or at
        elif since is not None:
            total += _hours(max(since, start), min(at, end))
            since = None
    return total * remediation.proposal.gpus


def _hours(since: datetime, until: datetime) -> float:
    return max((until - since) / timedelta(hours=1), 0.0)
