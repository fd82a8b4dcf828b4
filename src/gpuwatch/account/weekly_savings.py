"""Workloads of the report's period with their cost and saving, and the projected saving per week. Pure.

A saving never spans more time than the cost beside it: it is the advised change's share of the workload's cost in the
period, plus the price of the hours that were proven idle. So it is never more than the cost, and workloads add up to
teams, and teams to the fleet. The saving per week is a separate projection.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from gpuwatch.account.ledger_sums import cost_of_entries
from gpuwatch.account.money import HOURS_PER_WEEK, Rates, cost_of
from gpuwatch.account.weekly_use import is_busy, is_known, is_proven_idle, use_of
from gpuwatch.facts.catalog.gpus import gpu_share_ratio, model_name, profile_name
from gpuwatch.facts.model.decision import Analysis, Finding
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.ledger import Group, LedgerEntry
from gpuwatch.facts.model.sizing import Abstention, Recommendation
from gpuwatch.facts.model.telemetry import Device, DeviceId, PodRef
from gpuwatch.facts.model.weekly import WorkloadUse
from gpuwatch.facts.model.workload_profile import ProfileBook, WorkloadProfile


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
    """By namespace: in the period, and projected to a week (apart: with a condition)."""

    in_span: defaultdict[str, Sum] = field(default_factory=lambda: defaultdict(Sum))
    projected: defaultdict[str, Sum] = field(default_factory=lambda: defaultdict(Sum))
    conditional: defaultdict[str, Sum] = field(default_factory=lambda: defaultdict(Sum))


def workload_uses(
    entries: Iterable[LedgerEntry],
    book: ProfileBook,
    recommendations: Iterable[Recommendation],
    abstentions: Iterable[Abstention],
    start: datetime,
    end: datetime,
) -> tuple[WorkloadUse, ...]:
    """Every workload and GPU model of the entries, most GPU-hours first; apart for each of its profiles, which share
    its hours as they had them."""
    advised = {item.key: item for item in recommendations}
    abstained = {item.key: item for item in abstentions}
    profiles = grouped(book.profiles.values(), lambda each: (each.key.workload, each.key.gpu_model))
    found = []
    for (workload, model), of in grouped(
        (each for each in entries if each.namespace), lambda each: (each.workload, each.gpu_model)
    ).items():
        use = use_of(of)
        idle_cost = cost_of_entries(each for each in of if is_proven_idle(each))
        known = use.allocated_gpu_hours - use.unknown_gpu_hours
        of_known_sms = known - sum(each.gpu_hours for each in of if is_busy(each) and each.unknown)
        for profile, part in _parts(profiles.get((workload, model), ()), start, end):
            advice = advised.get(profile.key) if profile else None
            saving, saved = _saved(use.allocated_gpu_hours, use.cost, use.idle_gpu_hours, idle_cost, advice)
            found.append(
                WorkloadUse(
                    workload=workload,
                    namespace=of[0].namespace,
                    gpu_model=f"{model} {profile.key.mig_profile if profile else ''}".strip(),
                    allocated_gpu_hours=use.allocated_gpu_hours * part,
                    busy_gpu_hours=use.busy_gpu_hours * part,
                    idle_gpu_hours=use.idle_gpu_hours * part,
                    busy_ratio=min(use.busy_gpu_hours / known, 1.0) if known > 0 else None,
                    sm_active_ratio=min(use.sm_gpu_hours / of_known_sms, 1.0)
                    if use.sm_gpu_hours is not None and of_known_sms > 0
                    else None,
                    memory_peak_bytes=profile.memory_peak_bytes if profile else None,
                    cost=None if use.cost is None else use.cost * part,
                    saving=None if saving is None else saving * part,
                    saving_gpu_hours=saved * part,
                    recommendation=advice,
                    abstention=abstained.get(profile.key) if profile else None,
                )
            )
    return tuple(sorted(found, key=lambda item: (-item.allocated_gpu_hours, item.workload)))


def _parts(
    profiles: Sequence[WorkloadProfile], start: datetime, end: datetime
) -> Sequence[tuple[WorkloadProfile | None, float]]:
    """Each profile that had hours in these days, and its share of them; no profile with all if none had any."""
    first, last = start.astimezone(UTC).date(), (end.astimezone(UTC) - timedelta(microseconds=1)).date()
    hours = [sum(day.allocated_gpu_hours for day in profile.days if first <= day.day <= last) for profile in profiles]
    total = sum(hours)
    if total <= 0:
        return ((None, 1.0),)
    return [(profile, each / total) for profile, each in zip(profiles, hours, strict=True) if each > 0]


def _saved(
    hours: float, cost: float | None, idle_hours: float, idle_cost: float | None, advice: Recommendation | None
) -> tuple[float | None, float]:
    """Money and GPU-hours. A change without a condition saves its share of the hours that were not idle; of idle ones
    all is saved."""
    of_hours, of_cost = (0.0, 0.0) if advice is None or advice.condition else saving_ratios(advice)
    gpu_hours = idle_hours + of_hours * (hours - idle_hours)
    if advice is None and not idle_hours:
        return 0.0, 0.0
    if cost is None or (of_cost is None and not idle_hours):
        return None, gpu_hours
    idle = idle_cost or 0.0
    return idle + (of_cost or 0.0) * (cost - idle), gpu_hours


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


def projected_savings(
    workloads: Iterable[WorkloadUse],
    recommendations: Iterable[Recommendation],
    idle: Sequence[Finding],
    devices: Iterable[Device],
    rates: Rates,
) -> Savings:
    """The sums of the workloads' savings, and of what the advised changes and a release of what is idle now would save
    in a coming week."""
    savings = Savings()
    for use in workloads:
        savings.in_span[use.namespace].add(use.saving_gpu_hours, use.saving)
    for item in recommendations:
        chosen = item.chosen
        (savings.conditional if item.condition else savings.projected)[item.key.namespace].add(
            chosen.projected_saving_gpu_hours_per_week, chosen.projected_saving_per_week
        )
    for finding, device, share in _held(idle, devices):
        hours = share * HOURS_PER_WEEK
        price = rates.price(model_name(device.model if device else ""), node=device.node if device else None)
        savings.projected[namespace_of(finding)].add(hours, cost_of(hours, price))
    return savings


def hours_of_findings(
    findings: Sequence[Finding], analysis: Analysis, entries: Iterable[LedgerEntry]
) -> Mapping[str, Sum]:
    """Finding.id → hours of the period, from the finding's start on, in which its Pods had their GPUs and did not work.
    The ledger has no Pods: those of one workload on one Node share its hours by their GPUs."""
    workload_of = {pod.ref: pod.workload for pod in analysis.cluster.pods if pod.workload}
    silent = grouped(
        (each for each in entries if each.row.group in (Group.NOT_WORKING, Group.IDLE) and is_known(each)),
        lambda each: (each.workload, each.node),
    )
    shares: defaultdict[tuple[str, str], list[tuple[Finding, float]]] = defaultdict(list)
    for finding, device, share in _held(findings, analysis.devices):
        for pod in (pods := _pods_on(device, finding)):
            place = (workload_of.get(pod, f"Pod/{pod}"), (device.node if device else finding.node) or "")
            shares[place].append((finding, share / len(pods)))
    found: defaultdict[str, Sum] = defaultdict(Sum)
    for place, of in shares.items():
        total = sum(share for _, share in of)
        for finding, share in of:
            since = finding.since.replace(minute=0, second=0, microsecond=0) if finding.since else None
            for each in silent.get(place, ()):
                if since is None or each.hour >= since:
                    part = share / total if total > 0 else 0.0
                    found[finding.id].add(each.gpu_hours * part, None if each.cost is None else each.cost * part)
    return found


def namespace_of(idle: Finding) -> str:
    """The Namespace of its Pods: the finding of a gang is named by the gang's id."""
    return idle.pods[0].partition("/")[0]


def _held(findings: Sequence[Finding], devices: Iterable[Device]) -> Iterable[tuple[Finding, Device | None, float]]:
    """Each allocation's part of each of its devices, of a GPU. Pods that share a device have a part each, so that two
    of them free it once."""
    known = {device.id: device for device in devices}
    claims: defaultdict[DeviceId, int] = defaultdict(int)
    for finding in findings:
        for name in finding.devices:
            claims[name] += len(_pods_on(known.get(name), finding))
    for finding in findings:
        for name in finding.devices:
            device = known.get(name)
            model = device.model if device else ""
            profile = profile_name(model, device.mig_profile or "") if device else ""
            sharers = len(device.pods) if device is not None and device.shared else 1
            part = len(_pods_on(device, finding)) / max(sharers, claims[name])
            yield finding, device, gpu_share_ratio(model, profile) * part


def _pods_on(device: Device | None, finding: Finding) -> Sequence[PodRef]:
    """The allocation's Pods that have the device; its first where telemetry names none of them."""
    return sorted(set(device.pods if device else ()) & set(finding.pods)) or finding.pods[:1]
