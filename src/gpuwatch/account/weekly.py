"""Assembles the weekly report's values. Pure; `report` writes it.

GPU-hours come from the profiles' hours and days, findings and coverage from the analysis of the period's last moment,
money from the prices of the Nodes that the Pods are on (`Rates`), as on the status page. Unknown values stay None: a
cost with an unpriced part is a lower bound, and `limits` says so.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from gpuwatch.account.money import Rates, cost_of
from gpuwatch.account.weekly_savings import Savings, Sum, held_by, namespace_of, workload_savings
from gpuwatch.facts.catalog.gpus import gpu_share_ratio, model_name
from gpuwatch.facts.catalog.instances import CURRENCY
from gpuwatch.facts.model.decision import ActionKind, Analysis, Finding, FindingKind, Severity, SubjectKind, Verdict
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.remediation import Phase, Remediation
from gpuwatch.facts.model.sizing import Abstention, EvidenceTier, Outcome, Recommendation, by_worth
from gpuwatch.facts.model.telemetry import Device, Gap
from gpuwatch.facts.model.weekly import ActionTaken, DetectorRecord, TeamUse, Use, UsePoint, WeeklyReport
from gpuwatch.facts.model.workload_profile import ProfileBook, UsageHour

VERSION = 1
"""Version of the weekly report's JSON. Fields may be added; a removal or a change of meaning raises it."""

TOP_CHANGES = 10
_LOW_COVERAGE_RATIO = 0.8  # below it a week's averages may mislead: the coverage that idleness needs (sizing 5.7)


def assemble_weekly(
    analysis: Analysis,
    book: ProfileBook,
    recommendations: Sequence[Recommendation],
    abstentions: Sequence[Abstention],
    outcomes: Sequence[Outcome],
    *,
    start: datetime,
    end: datetime,
    rates: Rates,
    source: str,
    gaps: Sequence[Gap] = (),
    remediations: Sequence[Remediation] | None = None,
    observed: bool = False,
    detectors: Sequence[DetectorRecord] = (),
    currency: str = CURRENCY,
) -> WeeklyReport:
    """The report of (start, end]. rates: in `currency`.

    The fleet is compared with the period of the same length before, if the book covers it. remediations: all stored
    ones; None if they could not be read. observed: whether every mode is observe.
    """
    actions = None if remediations is None else actions_in(remediations, start, end)
    hours = [row for row in book.usage if start <= row.hour < end]
    before = [row for row in book.usage if start - (end - start) <= row.hour < start]
    # One finding for each gang, and for each Pod without one (`gpuwatch.judge.idle.assess`).
    idle = _most_gpu_hours_first(item for item in analysis.findings if item.verdict is Verdict.IDLE)
    idle_cost = {
        item.id: cost
        for item in idle
        if (cost := held_by([item], analysis.devices, rates, start, end).known_cost) is not None
    }
    suspected = _most_gpu_hours_first(item for item in analysis.findings if item.kind is FindingKind.SUSPECTED_IDLE)
    suspicion = held_by(suspected, analysis.devices, rates, start, end)
    unusable = _most_gpu_hours_first(item for item in analysis.findings if item.kind in _UNUSABLE)
    devices = {device.id: device for device in analysis.devices}
    workloads, savings = workload_savings(analysis, book, recommendations, abstentions, idle, rates, start, end)
    teams = _teams(hours, recommendations, idle, savings, rates)
    gone = _gone_gpu_hours(analysis, start, end)
    fleet = _with_savings(
        _use(hours, rates, fleet=True),
        sum(team.use.idle_gpu_hours for team in teams),
        _sum(savings.in_span.values()),
        _sum(savings.projected.values()),
        _sum(savings.conditional.values()),
    )
    fleet = replace(
        fleet,
        # A GPU that fell off the bus is paid for, but has no samples to count.
        allocatable_gpu_hours=None
        if fleet.allocatable_gpu_hours is None
        else fleet.allocatable_gpu_hours + sum(gone.values()),
        lost_gpu_hours=fleet.lost_gpu_hours + sum(gone.values()),
    )
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
        source=source,
        fleet=fleet,
        previous=_use(before, rates, fleet=True) if _reaches(before, start - (end - start)) else None,
        curve=_curve(hours, start, end),
        teams=teams,
        workloads=workloads,
        top_changes=tuple(sorted(recommendations, key=by_worth)[:TOP_CHANGES]),
        idle=tuple(sorted(idle, key=lambda item: -idle_cost.get(item.id, 0.0))),
        idle_cost=idle_cost,
        suspected=suspected,
        suspected_gpu_hours=suspicion.gpu_hours,
        suspected_cost=suspicion.known_cost,
        degraded=tuple(degraded),
        degraded_gpu_hours={name: of.gpu_hours for name, of in lost.items()},
        degraded_cost=lost_cost,
        unusable=unusable,
        unusable_gpu_hours={
            item.id: item.gpu_hours * _hours(max(item.since, start), min(analysis.at, end)) / lasted
            for item in unusable
            if item.since is not None and (lasted := _hours(item.since, analysis.at)) > 0
        },
        lost_gpu_hours_by_cause=_lost(hours, gone),
        outcomes=tuple(outcomes),
        actions=actions,
        actions_note="" if actions else NOT_READ if actions is None else OBSERVED if observed else NOTHING,
        detectors=tuple(detectors),
        coverage=analysis.coverage,
        coverage_ratio=_coverage_ratio(hours),
        currency=currency,
        limits=tuple(_limits(hours, before, start, end, rates, recommendations, analysis)),
        gaps=tuple(dict.fromkeys((*analysis.gaps, *gaps))),
    )


_UNUSABLE = (FindingKind.OUT_OF_SERVICE, FindingKind.NOT_RUNNING, FindingKind.USED_OUTSIDE)


def _most_gpu_hours_first(found: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(found, key=lambda item: (-item.gpu_hours, item.subject.name)))


def _use(rows: Collection[UsageHour], rates: Rates, *, fleet: bool) -> Use:
    held = [row for row in rows if row.namespace]
    offered = rows if fleet else held
    allocated = sum(row.allocated_gpu_hours for row in held)
    measured_sm = [row.sm_gpu_hours for row in held if row.sm_gpu_hours is not None]
    costs = [
        (price * row.allocated_gpu_hours, price * _wasted_gpu_hours(row))
        for row in offered
        if (price := rates.price(row.gpu_model, namespace=row.namespace)) is not None
    ]
    return Use(
        allocatable_gpu_hours=sum(row.allocated_gpu_hours for row in rows) if fleet and rows else None,
        allocated_gpu_hours=allocated,
        busy_gpu_hours=sum(row.busy_gpu_hours for row in held),
        sm_gpu_hours=sum(measured_sm) if measured_sm else None,
        unknown_gpu_hours=sum(row.unknown_gpu_hours for row in held),
        lost_gpu_hours=sum(sum(row.lost_gpu_hours.values()) for row in rows),
        cost=sum(cost for cost, _ in costs) if costs else None,
        wasted_cost=sum(wasted for _, wasted in costs) if costs else None,
    )


def _wasted_gpu_hours(row: UsageHour) -> float:
    """Allocatable, measured, and not busy. Time without a sample is unknown, not wasted."""
    if not row.namespace:
        return row.allocated_gpu_hours
    return max(row.allocated_gpu_hours - row.unknown_gpu_hours - row.busy_gpu_hours, 0.0)


def _reaches(rows: Collection[UsageHour], start: datetime) -> bool:
    """True if the hours begin within a day of `start`: half a week would read as half the use."""
    return bool(rows) and min(row.hour for row in rows) - start <= timedelta(days=1)


def _curve(rows: Iterable[UsageHour], start: datetime, end: datetime) -> tuple[UsePoint, ...]:
    """One point per hour; an hour without any row is a gap, not zero."""
    by_hour = grouped(rows, lambda row: row.hour)
    points = []
    hour = start.replace(minute=0, second=0, microsecond=0)
    # Whole hours only: the mean of an hour that the period cuts would look like a drop.
    hour += timedelta(hours=hour < start)
    while hour + timedelta(hours=1) <= end:
        found = by_hour.get(hour)
        held = [row for row in found or () if row.namespace]
        measured = not held or any(row.allocated_gpu_hours > row.unknown_gpu_hours for row in held)
        points.append(
            UsePoint(
                at=hour,
                allocatable_gpus=sum(row.allocated_gpu_hours for row in found) if found else None,
                allocated_gpus=sum(row.allocated_gpu_hours for row in held) if found else None,
                busy_gpus=sum((row.busy_gpu_hours for row in held), 0.0) if found and measured else None,
            )
        )
        hour += timedelta(hours=1)
    return tuple(points)


def _teams(
    rows: Iterable[UsageHour],
    recommendations: Iterable[Recommendation],
    idle: Sequence[Finding],
    savings: Savings,
    rates: Rates,
) -> tuple[TeamUse, ...]:
    by_namespace = grouped((row for row in rows if row.namespace), lambda row: row.namespace)
    for namespace in {*savings.in_span, *savings.projected, *savings.conditional}:
        by_namespace.setdefault(namespace, [])  # nothing allocated in this period, but with advice
    advised = Counter(item.key.namespace for item in recommendations)
    allocations = Counter(namespace_of(finding) for finding in idle)
    teams = []
    for namespace, found in by_namespace.items():
        models: dict[str, float] = defaultdict(float)
        for row in found:
            models[row.gpu_model] += row.allocated_gpu_hours
        use = _with_savings(
            _use(found, rates, fleet=False),
            savings.idle_gpu_hours[namespace],
            savings.in_span[namespace],
            savings.projected[namespace],
            savings.conditional[namespace],
        )
        teams.append(
            TeamUse(
                namespace=namespace,
                use=use,
                gpu_models=dict(sorted(models.items())),
                recommendations=advised[namespace],
                idle_allocations=allocations[namespace],
            )
        )
    return tuple(sorted(teams, key=lambda team: (-team.use.allocated_gpu_hours, team.namespace)))


def _with_savings(use: Use, idle_gpu_hours: float, in_span: Sum, projected: Sum, conditional: Sum) -> Use:
    return replace(
        use,
        idle_gpu_hours=idle_gpu_hours,
        saving=in_span.known_cost,
        saving_gpu_hours=in_span.gpu_hours,
        projected_saving_per_week=projected.known_cost,
        projected_saving_gpu_hours_per_week=projected.gpu_hours,
        projected_conditional_saving_per_week=conditional.known_cost,
        projected_conditional_saving_gpu_hours_per_week=conditional.gpu_hours,
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


def _gone_gpu_hours(analysis: Analysis, start: datetime, end: datetime) -> dict[str, float]:
    """Cause → hours, within the period, of GPUs that are missing at its end."""
    absent = {device.id: device for device in analysis.devices if not device.present}
    missing = (item for item in analysis.findings if item.kind is FindingKind.GPU_MISSING)
    found = (_since_then(item, absent, Rates(), start, end) for item in missing if item.verdict is Verdict.DEGRADED)
    hours = sum(of.gpu_hours for of in found if of is not None)
    return {str(FindingKind.GPU_MISSING): hours} if hours > 0 else {}


def _lost(rows: Iterable[UsageHour], gone: Mapping[str, float]) -> dict[str, float]:
    causes: dict[str, float] = defaultdict(float, gone)
    for row in rows:
        for cause, gpu_hours in row.lost_gpu_hours.items():
            causes[cause] += gpu_hours
    return dict(sorted(causes.items(), key=lambda item: (-item[1], item[0])))


def _coverage_ratio(rows: Iterable[UsageHour]) -> float | None:
    held = [row for row in rows if row.namespace]
    allocated = sum(row.allocated_gpu_hours for row in held)
    return 1.0 - sum(row.unknown_gpu_hours for row in held) / allocated if allocated > 0 else None


def _limits(
    rows: Sequence[UsageHour],
    before: Sequence[UsageHour],
    start: datetime,
    end: datetime,
    rates: Rates,
    recommendations: Sequence[Recommendation],
    analysis: Analysis,
) -> Iterable[str]:
    """Limits of these numbers, as full sentences."""
    if not rows:
        yield (
            f"No use was measured between {start:%Y-%m-%d %H:%M} and {end:%Y-%m-%d %H:%M} UTC: "
            "this is unknown, not idle. Check with `gpuwatch doctor` that the exporters' metrics reach the source."
        )
        return
    covered = len({row.hour for row in rows})
    wanted = round((end - start) / timedelta(hours=1))
    if covered < _LOW_COVERAGE_RATIO * wanted:
        yield f"Only {covered} of {wanted} hours were measured; sums are of those hours and are not scaled up."
    coverage = _coverage_ratio(rows)
    if coverage is not None and coverage < _LOW_COVERAGE_RATIO:
        yield (
            f"Activity was measured for {coverage:.0%} of the allocated time only; the rest is unknown, "
            "neither busy nor wasted."
        )
    unpriced = sorted({row.gpu_model for row in rows if rates.price(row.gpu_model, namespace=row.namespace) is None})
    if unpriced:
        yield (
            f"No price is known for {', '.join(unpriced)}: sums of money leave them out. Give prices with the setting "
            "`prices`, or label the Nodes with their instance type and region."
        )
    if not _reaches(before, start - (end - start)):
        yield "The period before was not measured, so there is no trend yet."
    if any(row.sm_gpu_hours is None for row in rows if row.namespace):
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
