"""`gpuwatch demo`: a week of a simulated fleet through the whole cycle, and the findings held against the truth."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from gpuwatch.collect.collect import collect
from gpuwatch.kube.recorded import RecordedCluster
from gpuwatch.report.analysis import Policies, analyse, needs_of
from gpuwatch.report.tables import analysis_tables
from gpuwatch.report.words import duration, plural
from gpuwatch.simulate.evaluate import moments_of
from gpuwatch.simulate.fleet import Fleet, build_fleet
from gpuwatch.simulate.plan import FleetPlan
from gpuwatch.simulate.scoring import IDLE_KINDS, Named, false_names, first_named, named_of
from gpuwatch.simulate.truth import Truth
from gpuwatch.simulate.writing import write_cluster, write_fleet
from gpuwatch.telemetry.recording import open_recording
from gpuwatch.telemetry.source import TelemetrySource

END = datetime(2026, 3, 2, 12, tzinfo=UTC)
"""The fleet's last moment; fixed, so that a seed gives the same week every day."""

_EVERY_HOURS = 12.0
_ROWS = 12


def run_demo(seed: int, gpus: int, days: float, folder: Path) -> int:
    """Simulate, watch, compare; returns the exit code."""
    console = Console(highlight=False)
    fleet = build_fleet(FleetPlan(seed=seed, end=END, gpus=gpus, days=days))
    planted = [truth for truth in fleet.truth if not truth.harmless and (truth.fault or truth.kind in IDLE_KINDS)]
    console.print(
        f"A simulated fleet (seed {seed}): {gpus} GPUs, {days:g} days, {len(planted)} faults and idle allocations "
        f"planted among {plural(sum(1 for truth in fleet.truth if truth.harmless), 'Pod')} that only look like it."
    )
    moments = moments_of(fleet, _EVERY_HOURS)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        writing = progress.add_task("writing telemetry and cluster", total=None)
        write_fleet(fleet, folder)
        progress.remove_task(writing)
        named = _watch(fleet, moments, folder, progress)
    write_cluster(fleet, folder / "cluster")
    store = open_recording([folder / "telemetry.parquet"])
    policies = Policies()
    snapshot = collect(TelemetrySource(store), RecordedCluster(folder / "cluster"), END, needs_of(policies))
    console.rule("[bold]What gpuwatch says at the end of the week[/]")
    console.print(analysis_tables(analyse(snapshot, policies), "simulated fleet", rows=_ROWS))
    console.rule(f"[bold]The week as a whole, watched at {len(moments)} moments, against what was planted[/]")
    _compare(console, planted, named, fleet, moments)
    console.print(
        f"\nLook further: the recording lies in {folder}\n"
        f"  gpuwatch analyze --telemetry {folder}/telemetry.parquet --cluster {folder}/cluster --rows 50\n"
        f"  gpuwatch explain pod/NAMESPACE/NAME --telemetry {folder}/telemetry.parquet --cluster {folder}/cluster\n"
        f"  gpuwatch doctor --telemetry {folder}/telemetry.parquet --cluster {folder}/cluster",
        markup=False,
    )
    return 0


def _watch(fleet: Fleet, moments: Sequence[datetime], folder: Path, progress: Progress) -> list[Named]:
    """Every moment as a user would see it then: the cluster as it was, telemetry up to it."""
    source = TelemetrySource(open_recording([folder / "telemetry.parquet"]))
    policies = Policies()
    named: list[Named] = []
    for at in progress.track(moments, description="watching the week"):
        write_cluster(fleet, folder / "cluster", at)
        snapshot = collect(source, RecordedCluster(folder / "cluster"), at, needs_of(policies))
        named.extend(named_of(at, analyse(snapshot, policies).findings))
    return named


def _compare(
    console: Console, planted: Sequence[Truth], named: Sequence[Named], fleet: Fleet, moments: Sequence[datetime]
) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("planted", "on", "began", "found", "after", "what it is"):
        table.add_column(column, overflow="fold")
    found = 0
    # What ended before anybody looked cannot be found, and what it would have been is not known either.
    seen = [truth for truth in planted if any(_visible(truth, at) for at in moments)]
    for truth in sorted(seen, key=lambda item: (item.kind, item.start)):
        at = first_named(truth, named)
        found += at is not None
        table.add_row(
            truth.fault.replace("_", " ") or truth.kind.replace("_", " "),
            escape(truth.subject.name),
            f"{truth.start:%a %H:%M}",
            "[green]yes[/]" if at else "[bold red]missed[/]",
            duration(max((at - truth.start) / timedelta(seconds=1), 0)) if at else "",
            escape(truth.note),
        )
    console.print(table)
    false = false_names(fleet.truth, named)
    console.print(f"\n[bold]{found} of {len(seen)} found[/], {len(seen) - found} missed, {len(false)} named wrongly.")
    if len(seen) < len(planted):
        console.print(f"{len(planted) - len(seen)} more began and ended between two looks; nobody could see them.")
    for name, kind in sorted(false):
        console.print(f"  named wrongly: {kind} {name}", markup=False)
    console.print(
        "Times after are up to the next look; `make evaluate` measures this on many fleets that no bound was chosen on."
    )


def _visible(truth: Truth, at: datetime) -> bool:
    return truth.start <= at and (truth.end is None or at < truth.end)
