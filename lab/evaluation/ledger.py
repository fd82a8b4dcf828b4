"""How true the ledger is: `python -m lab.evaluation.ledger --seeds 2001-2005`.

Each fleet is played from a script that knows to the minute where its GPU-hours went (`ledger_fleet.py`), written as a
recording with a cluster, and read as `gpuwatch ledger` reads it. Seeds 2001 to 2005 are for development; those that
docs/ledger.md publishes were run once.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.table import Table

from gpuwatch.app.ledger import read_ledger
from gpuwatch.app.settings import Settings
from gpuwatch.app.sources import open_sources
from gpuwatch.facts.model.ledger import Ledger, Row
from lab.evaluation.detectors import parse_seeds
from lab.evaluation.ledger_fleet import LedgerFleet, ledger_fleet

OF_FLEET, OF_ROW, UNKNOWN = 0.02, 0.10, 0.05
"""Bounds of a row: its difference as a share of the fleet's hours and of its own, and its hours that are unknown."""
NOT_TOLD = frozenset({Row.HUNG, Row.SLOWED})
LEAD_HOURS = 32
"""The series begin so long before the ledger; it reads 29 hours of them, so that some Pods are older."""


@dataclass(frozen=True)
class RowTruth:
    """GPU-hours of one row. unknown: in its twin. fleet_hours: of all rows."""

    row: Row
    true: float
    named: float
    unknown: float
    fleet_hours: float

    @property
    def of_fleet(self) -> float:
        return (self.named - self.true) / self.fleet_hours

    @property
    def of_row(self) -> float:
        return (self.named - self.true) / self.true if self.true else 0.0 if not self.named else float("inf")

    @property
    def holds(self) -> bool | None:
        """None: the row is not told yet."""
        if self.row in NOT_TOLD or not (self.true or self.named):
            return None
        is_near = abs(self.of_fleet) <= OF_FLEET and abs(self.of_row) <= OF_ROW
        return is_near and self.unknown <= UNKNOWN * self.true


def read_fleet(fleet: LedgerFleet) -> Ledger:
    options: dict[str, object] = dict.fromkeys(("prometheus", "kubeconfig", "context", "at", "config"))
    with TemporaryDirectory() as temporary:
        telemetry, cluster = fleet.write(Path(temporary))
        options |= {"telemetry": (telemetry,), "cluster": cluster, "no_cluster": False}
        length = timedelta(days=fleet.plan.days) - timedelta(hours=LEAD_HOURS)
        return read_ledger(open_sources(options, Settings()), length, quiet=True)


def compare(fleet: LedgerFleet, ledger: Ledger) -> list[RowTruth]:
    named: defaultdict[tuple[Row, bool], float] = defaultdict(float)
    for entry in ledger.entries:
        named[entry.row, entry.unknown] += entry.gpu_hours
    begin, end = (round((at - fleet.plan.start).total_seconds() / 60) for at in (ledger.start, ledger.end))
    true = {row: float(gpus[begin:end].sum()) / 60 for row, gpus in fleet.truth_gpus().items()}
    total = sum(true.values())
    return [RowTruth(row, true[row], named[row, False], named[row, True], total) for row in Row]


def evaluate(seed: int, nodes: int, days: float) -> list[RowTruth]:
    fleet = ledger_fleet(seed, nodes, days)
    return compare(fleet, read_fleet(fleet))


def together(parts: Iterable[Sequence[RowTruth]]) -> list[RowTruth]:
    """Rows of several fleets as one."""
    sums = [[(each.true, each.named, each.unknown, each.fleet_hours) for each in rows] for rows in parts]
    return [RowTruth(row, *(sum(each) for each in zip(*of, strict=True))) for row, *of in zip(Row, *sums, strict=True)]


def print_rows(rows: Sequence[RowTruth], console: Console, title: str) -> None:
    table = Table(title=title)
    for name in ("row", "true", "of fleet", "named", "Δ of fleet", "Δ of row", "unknown", "verdict"):
        table.add_column(name, justify="left" if name in ("row", "verdict") else "right", no_wrap=True)
    for each in rows:
        verdict = "" if each.holds is None else "holds" if each.holds else "FAILS"
        share, near = each.true / each.fleet_hours, f"{each.of_fleet:+.2%}"
        numbers = (f"{each.true:.1f}", f"{share:.1%}", f"{each.named:.1f}", near, f"{each.of_row:+.1%}")
        table.add_row(each.row, *numbers, f"{each.unknown:.1f}", verdict)
    console.print(table)


@click.command()
@click.option("--seeds", default="2001-2005", show_default=True)
@click.option("--nodes", default=16, show_default=True, help="Nodes of each fleet, with eight GPUs each.")
@click.option("--days", default=6.0, show_default=True, help="Of the series; the ledger begins 32 hours later.")
def main(seeds: str, nodes: int, days: float) -> None:
    """True and named GPU-hours of each row of the ledger, on fleets whose truth is known to the minute."""
    try:
        chosen = parse_seeds(seeds)
    except ValueError as error:
        raise click.BadParameter(f"{seeds!r} is no list of seeds: write 1000-1004 or 1000,1003") from error
    parts, console = [evaluate(seed, nodes, days) for seed in chosen], Console(width=100)
    for seed, rows in zip(chosen, parts, strict=True) if len(parts) > 1 else ():
        print_rows(rows, console, f"Ledger of seed {seed}")
    print_rows(together(parts), console, f"Ledger of {len(parts)} fleets (seeds {seeds})")


if __name__ == "__main__":
    main()
