"""Sums of the ledger: by row, team, workload, image, Node, model, pool or hour; and its goodput. Pure."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.ledger import Group, Ledger, LedgerEntry, Row

UNKNOWN_IMAGE = "(unknown)"
"""Name of the hours of containers whose image is not known."""


class By(StrEnum):
    """What hours are summed by."""

    ROW = "row"
    TEAM = "team"
    WORKLOAD = "workload"
    IMAGE = "image"
    NODE = "node"
    MODEL = "model"
    POOL = "pool"
    HOUR = "hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSum:
    """GPU-hours of one name. known, unknown: by row; unknown is the row's twin. cost: of the priced part; None without
    any."""

    name: str
    gpu_hours: float
    known: Mapping[Row, float] = field(default_factory=dict)
    unknown: Mapping[Row, float] = field(default_factory=dict)
    cost: float | None = None

    def of_group(self, group: Group) -> float:
        """Known and unknown hours of its rows."""
        both = (*self.known.items(), *self.unknown.items())
        return math.fsum(hours for row, hours in both if row.group is group)


def sums(ledger: Ledger, by: By) -> tuple[LedgerSum, ...]:
    """Every hour is in exactly one sum, so they add up to the capacity. Rows and hours in their order, others by
    GPU-hours, most first. What no Pod has is named ''."""
    name_of = _NAMES.get(by, lambda entry: ledger.team(entry.namespace))
    parts = grouped(ledger.entries, name_of)
    found = [_sum(name, parts[name]) for name in parts]
    if by is By.ROW:
        order = list(Row)
        return tuple(sorted(found, key=lambda item: order.index(Row(item.name))))
    if by is By.HOUR:
        return tuple(sorted(found, key=lambda item: item.name))
    return tuple(sorted(found, key=lambda item: (-item.gpu_hours, item.name)))


_NAMES: Mapping[By, Callable[[LedgerEntry], str]] = {
    By.ROW: lambda entry: entry.row,
    By.WORKLOAD: lambda entry: entry.workload,
    By.IMAGE: lambda entry: entry.image or (UNKNOWN_IMAGE if entry.workload else ""),
    By.NODE: lambda entry: entry.node,
    By.MODEL: lambda entry: entry.gpu_model,
    By.POOL: lambda entry: entry.pool,
    By.HOUR: lambda entry: entry.hour.isoformat(),
}


def _sum(name: str, entries: Collection[LedgerEntry]) -> LedgerSum:
    parts = grouped(entries, lambda entry: (entry.row, entry.unknown))
    return LedgerSum(
        name=name,
        gpu_hours=hours_of_entries(entries),
        known={row: hours_of_entries(parts[row, False]) for row in Row if (row, False) in parts},
        unknown={row: hours_of_entries(parts[row, True]) for row in Row if (row, True) in parts},
        cost=cost_of_entries(entries),
    )


def hours_of_entries(entries: Iterable[LedgerEntry]) -> float:
    return math.fsum(each.gpu_hours for each in entries)


def cost_of_entries(entries: Iterable[LedgerEntry]) -> float | None:
    """Of the priced part; None without any."""
    costs = [each.cost for each in entries if each.cost is not None]
    return math.fsum(costs) if costs else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A ratio that is not known exactly, 0 to 1: at least and at most."""

    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Three factors and their product; None where there is nothing to divide by.

    scheduling: what Pods had, of the capacity. It does not say whether they needed it.
    runtime: the time at work, without work that was lost to a failure, of what Pods had.
    program: SM activity, of the time at work. It is no MFU: an SM counts as active with one warp that waits for memory.
    useful: SM activity, of the capacity. Each is a range by itself: an unknown hour may have been work or not, and
    useful or not, so the ends of the factors need not belong together.
    """

    scheduling: Span | None
    runtime: Span | None
    program: Span | None
    useful: Span | None


def goodput(ledger: Ledger) -> Goodput:
    fleet = total(ledger)
    held = math.fsum(fleet.of_group(group) for group in (Group.NOT_WORKING, Group.IDLE, Group.WORKING))
    # A GPU that is used outside Kubernetes is in no Pod's hands.
    held -= fleet.known.get(Row.OUTSIDE, 0.0) + fleet.unknown.get(Row.OUTSIDE, 0.0)
    unsure = fleet.unknown.get(Row.LOST, 0.0)
    working = fleet.of_group(Group.WORKING) - fleet.known.get(Row.LOST, 0.0) - unsure
    maybe = unsure + math.fsum(hours for row, hours in fleet.unknown.items() if row.group in _MAY_WORK)
    useful = fleet.known.get(Row.USEFUL, 0.0)
    most_useful = useful + fleet.unknown.get(Row.USEFUL, 0.0) + maybe
    return Goodput(
        scheduling=_span(held, held, fleet.gpu_hours),
        runtime=_span(working, working + maybe, held),
        program=_span(useful, most_useful, working + maybe),
        useful=_span(useful, most_useful, fleet.gpu_hours),
    )


_MAY_WORK = (Group.NOT_WORKING, Group.IDLE)


def total(ledger: Ledger) -> LedgerSum:
    """The whole fleet."""
    return _sum("", ledger.entries)


def _span(least: float, most: float, of: float) -> Span | None:
    return Span(least=min(least / of, 1.0), most=min(most / of, 1.0)) if of > 0 else None
