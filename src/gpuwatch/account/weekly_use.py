"""What a group did in a period, from the ledger's entries. Pure."""

from collections.abc import Collection

from gpuwatch.account.ledger_sums import cost_of_entries, hours_of_entries
from gpuwatch.facts.model.ledger import Group, LedgerEntry, Row
from gpuwatch.facts.model.weekly import Use

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


def use_of(entries: Collection[LedgerEntry]) -> Use:
    """Without savings, and without the capacity, which only a fleet has."""
    held = [each for each in entries if each.namespace]
    busy = [each for each in held if is_busy(each)]
    unknown = [each for each in held if not is_known(each)]
    no_work = (each for each in entries if not is_busy(each) and (is_known(each) or not each.namespace))
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
        wasted_cost=None if cost is None else cost_of_entries(no_work) or 0.0,
    )
