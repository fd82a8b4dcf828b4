"""The ledger as tables for a terminal and as columns of CSV. Pure: returns what rich renders, prints nothing."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

from rich.console import Group as Together
from rich.console import RenderableType
from rich.text import Text

from gpuwatch.account.ledger_sums import By, Goodput, Span, cost_of_entries, goodput, hours_of_entries, sums, total
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.ledger import Group, Ledger, LedgerEntry, Loss, LossCause, Row
from gpuwatch.say.layout import FoldedName, cut, new_table
from gpuwatch.say.machine import FLAG, NUMBER, TIME, Column, Columns, fields
from gpuwatch.say.weekly_words import CAUSES, COLUMNS, GROUPS, ROWS, gpu_hours, money, percent
from gpuwatch.say.words import plural


def entry_columns(ledger: Ledger) -> Columns[LedgerEntry]:
    """A row per entry. The currency of the cost is the ledger's."""
    return {
        **fields("hour", dtype=TIME),
        **fields("node", "pool", "gpu_model"),
        "team": Column(lambda entry: ledger.team(entry.namespace)),
        **fields("namespace", "workload", "image"),
        "group": Column(lambda entry: entry.row.group),
        **fields("row"),
        **fields("unknown", dtype=FLAG),
        **fields("gpu_hours", "cost", dtype=NUMBER),
    }


def ledger_tables(ledger: Ledger, by: By, *, group: Group | None = None, rows: int = 30) -> RenderableType:
    """Where the hours went, as one table that adds up to the capacity; by something else, one line for each name.
    group: its hours alone, with a column for each row."""
    if not ledger.entries:
        return Text(f"No GPU was seen between {_moment(ledger)}: this is unknown, not zero.")
    if group is not None:
        ledger = replace(ledger, entries=tuple(entry for entry in ledger.entries if entry.row.group is group))
        return _by_row(ledger) if by is By.ROW else _by_name(ledger, by, rows, group)
    parts: list[RenderableType] = [_by_row(ledger) if by is By.ROW else _by_name(ledger, by, rows)]
    if by is By.ROW:
        parts += _losses(ledger.losses, rows)
    return Together(*parts, Text(), *(Text(line) for line in goodput_words(goodput(ledger))), Text())


def _moment(ledger: Ledger) -> str:
    return f"{ledger.start:%Y-%m-%d %H:%M} and {ledger.end:%Y-%m-%d %H:%M} UTC"


def _by_row(ledger: Ledger) -> RenderableType:
    fleet = total(ledger)
    costs = {item.name: item.cost for item in sums(ledger, By.ROW)}
    priced = fleet.cost is not None
    title = f"Where {gpu_hours(ledger.capacity_gpu_hours)} GPU-hours went between {_moment(ledger)}"
    table = new_table(title, "", "known", "of all", "unknown", *(["cost of both"] if priced else []))
    for column in table.columns[1:]:
        column.justify = "right"

    def line(name: str, rows: Sequence[Row], style: str = "") -> None:
        known, unknown = (math.fsum(of.get(row, 0.0) for row in rows) for of in (fleet.known, fleet.unknown))
        paid = [cost for row in rows if (cost := costs.get(row)) is not None]
        cells = (
            _hours(known),
            percent(known / ledger.capacity_gpu_hours, 1) if known else NONE,
            _hours(unknown),
            *([money(math.fsum(paid), ledger.currency) if paid else NONE] if priced else []),
        )
        if known or unknown:
            table.add_row(name, *cells, style=style)

    for group, name in GROUPS.items():
        rows = [row for row in ROWS if row.group is group]
        line(name, rows, "bold")
        for row in rows:
            line(f"  {ROWS[row]}", (row,))
    line("All", tuple(Row), "bold")
    return table


def _losses(losses: Sequence[Loss], rows: int) -> Iterable[RenderableType]:
    """The failures, and in one line the ends of which nobody knows whether they were."""
    failures = [each for each in losses if each.cause is not LossCause.UNKNOWN]
    if failures:
        table = new_table("Work lost to failures, most first", "workload", "Node", "ended (UTC)", "why", "GPU-hours")
        table.columns[-1].justify = "right"
        for each in sorted(failures, key=lambda item: (-item.gpu_hours, item.at, item.node, item.workload))[:rows]:
            amount = f"{'0 to ' * each.unknown}{gpu_hours(each.gpu_hours)}"
            names = (FoldedName(each.workload), FoldedName(each.node))
            table.add_row(*names, f"{each.at:%m-%d %H:%M}", CAUSES[each.cause], amount)
        yield from (Text(), table, *cut(len(failures), rows))
    ends = [each for each in losses if each.cause is LossCause.UNKNOWN]
    if ends:
        hours = gpu_hours(math.fsum(each.gpu_hours for each in ends))
        workloads = plural(len({each.workload for each in ends}), "workload")
        yield Text()
        yield Text(
            f"Pods of {workloads} ended, and it is not known whether they failed: up to {hours} GPU-hours of their "
            "work are lost. kube-state-metrics tells how containers end."
        )


def _by_name(ledger: Ledger, by: By, rows: int, group: Group | None = None) -> RenderableType:
    priced = any(entry.cost is not None for entry in ledger.entries)
    columns: Mapping[Group, str] | Mapping[Row, str] = COLUMNS
    title = f"GPU-hours by {by}"
    if group is not None:
        had = {entry.row for entry in ledger.entries if not entry.unknown}
        columns = {row: name for row, name in ROWS.items() if row in had}
        title = f"GPU-hours by {by}: {GROUPS[group]}"
    head = (by, "all", *columns.values(), "unknown", *(["cost"] if priced else []))
    table = new_table(f"{title}, between {_moment(ledger)}", *head)
    for column in table.columns[1:]:
        column.justify = "right"
    found = sums(ledger, by)
    for item in found[:rows]:
        known = [
            math.fsum(hours for row, hours in item.known.items() if column in (row, row.group)) for column in columns
        ]
        numbers = (item.gpu_hours, *known, math.fsum(item.unknown.values()))
        cost = NONE if item.cost is None else money(item.cost, ledger.currency)
        table.add_row(FoldedName(item.name or NOBODY), *map(_hours, numbers), *([cost] if priced else []))
    return Together(table, *cut(len(found), rows))


def _hours(value: float) -> str:
    return gpu_hours(value) if value else NONE


NONE = "–"
NOBODY = "(no Pod)"
"""Name of the hours that no Pod had."""


def goodput_words(found: Goodput) -> Iterable[str]:
    """The three factors in a sentence, and what they do not say."""
    if found.scheduling is None or found.runtime is None or found.program is None or found.useful is None:
        return
    yield (
        f"Pods had {_span(found.scheduling)} of the capacity, were at work in {_span(found.runtime)} of that, and kept "
        f"{_span(found.program)} of the SMs active then: {_span(found.useful)} of the capacity."
    )
    yield "Not known: how much of the SMs' work was computation (MFU), and what results were thrown away."


def _span(span: Span) -> str:
    least, most = percent(span.least), percent(span.most)
    return least if least == most else f"{least.removesuffix(' %')} to {most}"


# For tools that read OpenCost's CSV export

_IDLE = "__idle__"
"""OpenCost's Namespace of what no Pod had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DayOfWorkload:
    """GPU-hours of one workload on one UTC day; workload '' for what no Pod had. cost: None without a price."""

    day: date
    namespace: str
    workload: str
    gpu_hours: float
    cost: float | None


OPENCOST: Columns[DayOfWorkload] = {
    "Date": Column(lambda item: item.day.isoformat()),
    "Namespace": Column(lambda item: item.namespace or _IDLE),
    "ControllerKind": Column(lambda item: item.workload.partition("/")[0].lower()),
    "ControllerName": Column(lambda item: item.workload.rpartition("/")[2]),
    "GPUs": Column(lambda item: item.gpu_hours / 24, NUMBER),
    "GPUHours": Column(lambda item: item.gpu_hours, NUMBER),
    "GPUCost": Column(lambda item: item.cost, NUMBER),
}
"""OpenCost's columns that a ledger of GPUs can fill, with OpenCost's spelling; GPUs is the mean over the day, and
GPUHours is added. CPUs, memory, network and volumes are not in it, so there is no TotalCost either."""


def days_of_workloads(ledger: Ledger) -> tuple[DayOfWorkload, ...]:
    """By day, Namespace and workload, in order."""
    parts = grouped(ledger.entries, lambda entry: (entry.hour.date(), entry.namespace, entry.workload))
    found = []
    for (day, namespace, workload), entries in sorted(parts.items()):
        found.append(
            DayOfWorkload(
                day=day,
                namespace=namespace,
                workload=workload,
                gpu_hours=hours_of_entries(entries),
                cost=cost_of_entries(entries),
            )
        )
    return tuple(found)
