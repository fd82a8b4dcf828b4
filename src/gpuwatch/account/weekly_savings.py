"""Cost of the report's period, what could have been saved of it, and the projected saving per week. Pure.

A saving never spans more time than the cost beside it: it is the advised change's share of the workload's cost in the
period, plus the price of the hours in which an allocation was idle. So it is never more than the cost, and workloads
add up to teams, and teams to the fleet. The saving per week is a separate projection.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta

from gpuwatch.account.money import HOURS_PER_WEEK, Rates, cost_of
from gpuwatch.facts.catalog.gpus import gpu_share_ratio, model_name, profile_name
from gpuwatch.facts.model.decision import Analysis, Finding
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.sizing import Abstention, Recommendation
from gpuwatch.facts.model.telemetry import Device, DeviceId
from gpuwatch.facts.model.weekly import WorkloadUse
from gpuwatch.facts.model.workload_profile import DayUse, ProfileBook, UsageHour, WorkloadKey, WorkloadProfile

_Group = tuple[str, str]  # namespace, Gpu.name


@dataclass(slots=True)
class Sum:
    """GPU-hours, and the price of the priced part; None if there is none."""

    gpu_hours: float = 0.0
    cost: float | None = None

    def add(self, gpu_hours: float, cost: float | None) -> None:
        self.gpu_hours += gpu_hours
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost

    @property
    def known_cost(self) -> float | None:
        """0 if there is nothing to save; None if the savable part has no price."""
        return 0.0 if self.cost is None and not self.gpu_hours else self.cost


@dataclass(slots=True)
class Savings:
    """By namespace: in the period, projected to a week (apart: with a condition), and the idle hours in the period."""

    in_span: defaultdict[str, Sum] = field(default_factory=lambda: defaultdict(Sum))
    projected: defaultdict[str, Sum] = field(default_factory=lambda: defaultdict(Sum))
    conditional: defaultdict[str, Sum] = field(default_factory=lambda: defaultdict(Sum))
    idle_gpu_hours: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


@dataclass(frozen=True, slots=True)
class _IdleDevice:
    """One idle allocation's part of one device. gpu_hours: within the period."""

    finding: Finding
    group: _Group
    node: str | None
    mig_profile: str
    share_ratio: float
    gpu_hours: float


def workload_savings(
    analysis: Analysis,
    book: ProfileBook,
    recommendations: Sequence[Recommendation],
    abstentions: Sequence[Abstention],
    idle: Sequence[Finding],
    rates: Rates,
    start: datetime,
    end: datetime,
) -> tuple[tuple[WorkloadUse, ...], Savings]:
    """Every workload of (start, end] with its cost and saving, most GPU-hours first; and the sums."""
    allocated: defaultdict[_Group, float] = defaultdict(float)
    busy: defaultdict[_Group, float] = defaultdict(float)
    for row in book.usage:
        if row.namespace and start <= row.hour < end:
            allocated[row.namespace, row.gpu_model] += row.allocated_gpu_hours
            busy[row.namespace, row.gpu_model] += row.busy_gpu_hours
    found = _uses(book, recommendations, abstentions, allocated, rates, start, end)
    members = _members(found)
    parts = _parts(analysis.devices, idle, start, end)
    # Only time that was allocated and not busy can have been idle. Idle time without a profile (of forgotten workloads,
    # or of those never profiled) counts for the team alone.
    room = {key: max(item.allocated_gpu_hours - item.busy_gpu_hours, 0.0) for key, item in found.items()}
    others = {
        group: max(
            hours
            - sum(found[key].allocated_gpu_hours for key in members[group])
            - max(busy[group] - sum(found[key].busy_gpu_hours for key in members[group]), 0.0),
            0.0,
        )
        for group, hours in allocated.items()
    }
    workload_of = {pod.ref: pod.workload for pod in analysis.cluster.pods if pod.workload}
    savings = Savings()
    silent: defaultdict[WorkloadKey, float] = defaultdict(float)
    for part in parts:
        left = part.gpu_hours
        for key in _holders(part, members[part.group], book.profiles, workload_of):
            taken = min(left, room[key])
            room[key] -= taken
            silent[key] += taken
            left -= taken
        taken = min(left, others.get(part.group, 0.0))
        if taken > 0:
            others[part.group] -= taken
            namespace, model = part.group
            savings.idle_gpu_hours[namespace] += taken
            savings.in_span[namespace].add(taken, cost_of(taken, rates.price(model, namespace=namespace)))
    workloads = []
    for key, item in found.items():
        use = _with_saving(item, silent[key], rates.price(key.gpu_model, namespace=key.namespace))
        savings.idle_gpu_hours[key.namespace] += silent[key]
        savings.in_span[key.namespace].add(use.saving_gpu_hours, use.saving)
        workloads.append(use)
    _project(savings, recommendations, parts, rates)
    return tuple(sorted(workloads, key=lambda item: (-item.allocated_gpu_hours, item.workload))), savings


def held_by(
    findings: Sequence[Finding], devices: Iterable[Device], rates: Rates, start: datetime, end: datetime
) -> Sum:
    """GPU-hours of these allocations within the period, and their cost."""
    total = Sum()
    for part in _parts(devices, findings, start, end):
        total.add(part.gpu_hours, cost_of(part.gpu_hours, rates.price(part.group[1], node=part.node)))
    return total


def _with_saving(item: WorkloadUse, idle_gpu_hours: float, price: float | None) -> WorkloadUse:
    """A change without a condition saves its share of the hours that were not idle; of idle ones all is saved."""
    idle = min(idle_gpu_hours, item.allocated_gpu_hours)
    worked = item.allocated_gpu_hours - idle
    advice = item.recommendation
    hours, money = (0.0, 0.0) if advice is None or advice.condition else saving_ratios(advice)
    saved: float | None = 0.0
    if advice is not None or idle:
        unknown = price is None or (money is None and not idle)
        saved = None if unknown or price is None else price * (idle + (money or 0.0) * worked)
    return replace(item, idle_gpu_hours=idle, saving_gpu_hours=idle + hours * worked, saving=saved)


def saving_ratios(item: Recommendation) -> tuple[float, float | None]:
    """The change's saving of the workload's GPU-hours and of its cost, 0 to 1 each. Cost: None if a price is unknown; 0
    if the target costs more."""
    before, chosen = item.current, item.chosen
    hours = before.projected_gpu_hours_per_week
    of_hours = chosen.projected_saving_gpu_hours_per_week / hours if hours > 0 else 0.0
    cost, saving = before.projected_cost_per_week, chosen.projected_saving_per_week
    if cost is None or saving is None:
        return _ratio(of_hours), None
    return _ratio(of_hours), _ratio(saving / cost if cost > 0 else 0.0)


def _ratio(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _uses(
    book: ProfileBook,
    recommendations: Iterable[Recommendation],
    abstentions: Iterable[Abstention],
    allocated: Mapping[_Group, float],
    rates: Rates,
    start: datetime,
    end: datetime,
) -> dict[WorkloadKey, WorkloadUse]:
    advised = {item.key: item for item in recommendations}
    abstained = {item.key: item for item in abstentions}
    part_of_day = _part_of_day(book.usage, start, end)
    first, last = start.astimezone(UTC).date(), (end.astimezone(UTC) - timedelta(microseconds=1)).date()
    found = {}
    for key, profile in book.profiles.items():
        days = [(day, part_of_day(key, day.day)) for day in profile.days if first <= day.day <= last]
        if days:
            found[key] = replace(_use(profile, days), recommendation=advised.get(key), abstention=abstained.get(key))
    # No team is shown with more than it had, and no workload with more than its team.
    for group, keys in _members(found).items():
        total = sum(found[key].allocated_gpu_hours for key in keys)
        if group in allocated and total > allocated[group]:
            for key in keys:
                hours = found[key].allocated_gpu_hours * allocated[group] / total
                found[key] = replace(
                    found[key], allocated_gpu_hours=hours, busy_gpu_hours=min(found[key].busy_gpu_hours, hours)
                )
    return {
        key: replace(item, cost=cost_of(item.allocated_gpu_hours, rates.price(key.gpu_model, namespace=key.namespace)))
        for key, item in found.items()
    }


def _use(profile: WorkloadProfile, days: Sequence[tuple[DayUse, float]]) -> WorkloadUse:
    """days: with the share of each that counts."""
    key = profile.key
    allocated = sum(day.allocated_gpu_hours * part for day, part in days)
    busy = sum(day.busy_gpu_hours * part for day, part in days)
    known = allocated - sum(day.unknown_gpu_hours * part for day, part in days)
    active = [(cell.weight_seconds, cell.sm_active_ratio) for cell in profile.cells if cell.sm_active_ratio is not None]
    weight = sum(seconds for seconds, _ in active)
    return WorkloadUse(
        workload=key.workload,
        namespace=key.namespace,
        gpu_model=f"{key.gpu_model} {key.mig_profile}".strip(),
        allocated_gpu_hours=allocated,
        busy_gpu_hours=min(busy, allocated),
        busy_ratio=min(busy / known, 1.0) if known > 0 else None,
        sm_active_ratio=sum(seconds * ratio for seconds, ratio in active) / weight if weight > 0 else None,
        memory_peak_bytes=max((run.peak_bytes for run in profile.runs if run.peak_bytes is not None), default=None),
        cost=None,
    )


def _part_of_day(usage: Iterable[UsageHour], start: datetime, end: datetime) -> Callable[[WorkloadKey, date], float]:
    """Splits days, the finest unit of a profile. Of a day that the period cuts, a workload counts with the share that
    its team's hours on that model have within the period; if those are unknown, with the period's share of the day."""
    whole: defaultdict[tuple[str, str, date], float] = defaultdict(float)
    within: defaultdict[tuple[str, str, date], float] = defaultdict(float)
    for row in usage:
        name = (row.namespace, row.gpu_model, row.hour.astimezone(UTC).date())
        whole[name] += row.allocated_gpu_hours
        within[name] += row.allocated_gpu_hours if start <= row.hour < end else 0.0

    def part(key: WorkloadKey, day: date) -> float:
        name = (key.namespace, key.gpu_model, day)
        if whole[name] > 0:
            return within[name] / whole[name]
        begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
        return max((min(end, begin + timedelta(days=1)) - max(start, begin)) / timedelta(days=1), 0.0)

    return part


def namespace_of(idle: Finding) -> str:
    """The Namespace of its Pods: the finding of a gang is named by the gang's id."""
    return idle.pods[0].partition("/")[0]


def _parts(devices: Iterable[Device], idle: Sequence[Finding], start: datetime, end: datetime) -> list[_IdleDevice]:
    """Each idle allocation's part of each of its devices. Pods that share a device have a part each, so that two idle
    ones free it once."""
    known = {device.id: device for device in devices}
    claims: defaultdict[DeviceId, int] = defaultdict(int)
    for finding in idle:
        for name in finding.devices:
            claims[name] += _pods_on(known.get(name), finding)
    found = []
    for finding in idle:
        hours = max((end - max(finding.since or start, start)) / timedelta(hours=1), 0.0)
        for name in finding.devices:
            device = known.get(name)
            model = device.model if device else ""
            profile = profile_name(model, device.mig_profile or "") if device else ""
            sharers = len(device.pods) if device is not None and device.shared else 1
            part = _pods_on(device, finding) / max(sharers, claims[name])
            share = gpu_share_ratio(model, profile) * part
            group = (namespace_of(finding), model_name(model))
            found.append(_IdleDevice(finding, group, device.node if device else None, profile, share, hours * share))
    return found


def _pods_on(device: Device | None, idle: Finding) -> int:
    """How many of the allocation's Pods have the device; 1 where telemetry names none of them."""
    return len(set(device.pods if device else ()) & set(idle.pods)) or 1


def _holders(
    part: _IdleDevice,
    members: Iterable[WorkloadKey],
    profiles: Mapping[WorkloadKey, WorkloadProfile],
    workload_of: Mapping[str, str],
) -> list[WorkloadKey]:
    """Workloads that the idle Pods may belong to: a Pod may have several containers with GPUs."""
    pods = set(part.finding.pods)
    workloads = {workload_of.get(pod, f"Pod/{pod}") for pod in pods}
    return [
        key
        for key in members
        if key.mig_profile == part.mig_profile
        and (key.workload in workloads or any(run.pod in pods for run in profiles[key].runs))
    ]


def _project(
    savings: Savings,
    recommendations: Iterable[Recommendation],
    parts: Iterable[_IdleDevice],
    rates: Rates,
) -> None:
    for item in recommendations:
        chosen = item.chosen
        (savings.conditional if item.condition else savings.projected)[item.key.namespace].add(
            chosen.projected_saving_gpu_hours_per_week, chosen.projected_saving_per_week
        )
    for part in parts:
        namespace, model = part.group
        hours = part.share_ratio * HOURS_PER_WEEK
        savings.projected[namespace].add(hours, cost_of(hours, rates.price(model, node=part.node)))


def _members(found: Iterable[WorkloadKey]) -> defaultdict[_Group, list[WorkloadKey]]:
    return grouped(found, lambda key: (key.namespace, key.gpu_model))
