"""`slots`: how many more gangs of each size would start now, and the fragmentation. Returns its exit code."""

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Group

from gpuwatch.act.analysis import assess
from gpuwatch.act.fragmentation import Fragmentation, fragmentation
from gpuwatch.act.slots import SIZES, Slots, slots
from gpuwatch.app.cli.remediation_commands import plan_facts
from gpuwatch.app.cli.terminal import print_listing
from gpuwatch.app.exit_code import ExitCode
from gpuwatch.app.sources import checked_sources, take_snapshot
from gpuwatch.facts.model.telemetry import Gap
from gpuwatch.say.slots_tables import SLOTS, fragmentation_tables, slots_tables
from gpuwatch.say.tables import gap_tables

VERSION = 1
"""Version of the JSON of `slots`. Fields may be added; a removal or a change of meaning raises it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsAnswer:
    """What `slots -o json` prints."""

    version: int
    at: datetime
    slots: tuple[Slots, ...]
    fragmentation: tuple[Fragmentation, ...]
    gaps: tuple[Gap, ...]


def run_slots(
    form: str,
    output_file: Path | None,
    rows: int,
    gpus: tuple[int, ...],
    by: tuple[str, ...],
    tolerate: tuple[str, ...],
    **options: Any,
) -> int:
    opened = checked_sources(options)
    snapshot = take_snapshot(opened)
    known, gaps = plan_facts(opened, options, snapshot)
    facts = replace(known, findings=assess(snapshot, opened.policies), policy=opened.policies.plan)
    labels = tuple(dict.fromkeys((*by, *opened.policies.plan.slot_labels)))
    answer = SlotsAnswer(
        version=VERSION,
        at=snapshot.at,
        slots=slots(facts, gpus or SIZES, labels, tolerate),
        fragmentation=fragmentation(facts),
        gaps=(*snapshot.gaps, *gaps),
    )
    print_listing(
        answer,
        form,
        lambda: Group(
            slots_tables(answer.slots, by, rows=rows),
            *fragmentation_tables(answer.fragmentation if answer.slots else ()),
            *gap_tables(answer.gaps, wide=form == "wide"),
        ),
        (),
        SLOTS,
        answer.slots,
        output_file,
    )
    # Without a Node nothing is known; that is no full cluster.
    return ExitCode.OK if answer.slots else ExitCode.FAILED
