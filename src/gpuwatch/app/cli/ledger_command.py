"""`ledger`: where every GPU-hour of a period went. Returns its exit code."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Group

from gpuwatch.account.ledger_sums import By
from gpuwatch.app.cli.terminal import print_listing
from gpuwatch.app.exit_code import ExitCode
from gpuwatch.app.ledger import ledger_of
from gpuwatch.app.sources import checked_sources
from gpuwatch.say.ledger_tables import OPENCOST, days_of_workloads, entry_columns, ledger_tables
from gpuwatch.say.tables import gap_tables
from gpuwatch.say.weekly_words import COLUMNS
from gpuwatch.sources.store.ledger import DETAIL_OF_DAYS


def run_ledger(
    form: str,
    output_file: Path | None,
    rows: int,
    by: str,
    group: str | None,
    days: float,
    state: Path | None,
    **options: Any,
) -> int:
    opened = checked_sources(options)
    detail = by not in DETAIL_OF_DAYS or form == "opencost-csv"
    ledger = ledger_of(opened, timedelta(days=days), state or opened.settings.state, detail=detail)

    def tables() -> Group:
        one = next((each for each, name in COLUMNS.items() if name == group), None)
        shown = ledger_tables(ledger, By(by), group=one, rows=rows)
        return Group(shown, *gap_tables(ledger.gaps, wide=form == "wide"))

    if form == "opencost-csv":
        print_listing(ledger, "csv", tables, (), OPENCOST, days_of_workloads(ledger), output_file)
    else:
        print_listing(ledger, form, tables, (), entry_columns(ledger), ledger.entries, output_file)
    # Without a GPU nothing is known; that is no fleet without waste.
    return ExitCode.OK if ledger.entries else ExitCode.FAILED
