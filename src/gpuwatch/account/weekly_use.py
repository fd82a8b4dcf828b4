"""What a group and each workload did in a period, from the ledger's entries. Pure."""

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta

from gpuwatch.account.ledger_sums import cost_of_entries, hours_of_entries
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.ledger import Group, LedgerEntry, Row
from gpuwatch.facts.model.sizing import Abstention, Recommendation
from gpuwatch.facts.model.weekly import Use, WorkloadUse
from gpuwatch.facts.model.workload_profile import ProfileBook, WorkloadProfile

_BUSY = (Row.LOST, Row.FEW_SMS, Row.USEFUL)
PROVEN_IDLE = (Row.NEVER_USED, Row.ABANDONED, Row.MODEL_LOADED)


def is_busy(entry: LedgerEntry) -> bool:
    """Whether a kernel ran; how many SMs it kept active may be unknown. Work that was lost counts as a whole, although
    kernels ran in most of it only."""
    return entry.row in _BUSY


def is_proven_idle(entry: LedgerEntry) -> bool:
    return entry.row in PROVEN_IDLE and not entry.unknown


def is_known(entry: LedgerEntry) -> bool:
    """Whether it is known what the GPU did, or that it was free, whoever could have used it."""
    return not entry.unknown or is_busy(entry) or entry.row is Row.UNREACHABLE


def is_silent(entry: LedgerEntry) -> bool:
    """Whether a Pod had it and is known not to have worked."""
    return entry.row.group in (Group.NOT_WORKING, Group.IDLE) and is_known(entry)


def is_wasted(entry: LedgerEntry) -> bool:
    """Whether it is known to be neither useful work nor out of service."""
    known = not entry.unknown or entry.row is Row.WAITED_FOR
    return known and entry.row is not Row.USEFUL and entry.row.group is not Group.OUT_OF_SERVICE


def use_of(entries: Collection[LedgerEntry]) -> Use:
    """Without the capacity, which only a fleet has."""
    held = [each for each in entries if each.namespace]
    busy = [each for each in held if is_busy(each)]
    unknown = [each for each in held if not is_known(each)]
    cost = cost_of_entries(entries)
    quiet = not busy and len(held) > len(unknown)
    sm_known = [each for each in busy if not each.unknown]
    useful = (each for each in sm_known if each.row is Row.USEFUL)
    return Use(
        capacity_gpu_hours=None,
        allocated_gpu_hours=hours_of_entries(held),
        busy_gpu_hours=hours_of_entries(busy),
        sm_gpu_hours=hours_of_entries(useful) if sm_known or quiet else None,
        unknown_gpu_hours=hours_of_entries(unknown),
        idle_gpu_hours=hours_of_entries(each for each in held if is_proven_idle(each)),
        out_of_service_gpu_hours=hours_of_entries(each for each in entries if each.row.group is Group.OUT_OF_SERVICE),
        cost=cost,
        wasted_cost=None if cost is None else cost_of_entries(filter(is_wasted, entries)) or 0.0,
    )


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
    profiles = profiles_of(book)
    found = []
    for (workload, model), of in grouped(
        (each for each in entries if each.namespace), lambda each: (each.workload, each.gpu_model)
    ).items():
        use = use_of(of)
        known = use.allocated_gpu_hours - use.unknown_gpu_hours
        of_known_sms = known - sum(each.gpu_hours for each in of if is_busy(each) and each.unknown)
        for profile, part in parts_of(profiles.get((workload, model), ()), start, end):
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
                    wasted_cost=None if use.wasted_cost is None else use.wasted_cost * part,
                    recommendation=advised.get(profile.key) if profile else None,
                    abstention=abstained.get(profile.key) if profile else None,
                )
            )
    return tuple(sorted(found, key=lambda item: (-item.allocated_gpu_hours, item.workload)))


def profiles_of(book: ProfileBook) -> dict[tuple[str, str], list[WorkloadProfile]]:
    """By workload and GPU model."""
    return grouped(book.profiles.values(), lambda each: (each.key.workload, each.key.gpu_model))


def parts_of(
    profiles: Sequence[WorkloadProfile], start: datetime, end: datetime
) -> Sequence[tuple[WorkloadProfile | None, float]]:
    """Each profile that had hours in these days, and its share of them; no profile with all if none had any."""
    first, last = start.astimezone(UTC).date(), (end.astimezone(UTC) - timedelta(microseconds=1)).date()
    hours = [sum(day.allocated_gpu_hours for day in profile.days if first <= day.day <= last) for profile in profiles]
    total = sum(hours)
    if total <= 0:
        return ((None, 1.0),)
    return [(profile, each / total) for profile, each in zip(profiles, hours, strict=True) if each > 0]
