"""`gpuwatch demo`: a week of a simulated fleet through the whole cycle, with the findings compared with the planted
faults."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shlex import quote

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from gpuwatch.act.analysis import Policies, analyse, needs_of
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.app.cli.terminal import output
from gpuwatch.facts.model.decision import SubjectKind
from gpuwatch.facts.model.telemetry import PodRef
from gpuwatch.judge.idle.assess import assess_idle
from gpuwatch.say.layout import FoldedName
from gpuwatch.say.tables import analysis_tables
from gpuwatch.say.words import duration, plural, short_uuid
from gpuwatch.sources.collect.collect import collect
from gpuwatch.sources.kube.recorded import RecordedCluster
from gpuwatch.sources.telemetry.recording import open_recording
from gpuwatch.sources.telemetry.samples import SampleStore
from lab.simulate.fleet import SimulatedFleet, build_fleet
from lab.simulate.plan import FleetPlan
from lab.simulate.scoring import IDLE_KINDS, Named, false_names, first_named, holds, moments_of, named_of
from lab.simulate.truth import Truth
from lab.simulate.writing import write_cluster, write_fleet

END = datetime(2026, 3, 2, 12, tzinfo=UTC)
"""The fleet's last moment; fixed, so that a seed gives the same week every day."""

_EVERY_HOURS = 12.0
_ROWS = 12
_EXPLAINED = (SubjectKind.POD, SubjectKind.DEVICE, SubjectKind.NODE)


def run_demo(seed: int, gpus: int, days: float, folder: Path) -> int:
    console = output()
    fleet = build_fleet(FleetPlan(seed=seed, end=END, gpus=gpus, days=days, oversized=max(gpus // 8, 1)))
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
        store = open_recording([folder / "telemetry.parquet"])
        named, said = _watch(store, fleet, moments, folder, progress)
    write_cluster(fleet, folder / "cluster")
    policies = Policies()
    snapshot = collect(store, RecordedCluster(folder / "cluster"), END, needs_of(policies))
    analysis = analyse(PlanFacts(snapshot=snapshot), policies)
    console.rule("[bold]What gpuwatch says at the end[/]")
    console.print(analysis_tables(analysis, "simulated fleet", rows=_ROWS, wide=False))
    console.rule(f"[bold]All the time, watched at {len(moments)} moments, against what was planted[/]")
    _compare(console, planted, named, said, fleet, moments)
    console.rule("[bold]What runs on more GPU than it needs[/]")
    report = _report(fleet, folder, console)
    sources = f"--telemetry {quote(f'{folder}/telemetry.parquet')} --cluster {quote(f'{folder}/cluster')}"
    subject = next((str(item.subject) for item in analysis.findings if item.subject.kind in _EXPLAINED), "pod/NS/NAME")
    console.print(f"\nLook further: the recording lies in {folder}", markup=False, soft_wrap=True)
    for command in ("analyze --rows 50", f"explain {subject}", "recommend", "mig-plan", "doctor"):
        console.print(f"  gpuwatch {command} {sources}", markup=False, soft_wrap=True)
    console.print("\n[bold]The report of the week[/], for a browser:", soft_wrap=True)
    console.print(f"  {report}", markup=False, soft_wrap=True)
    return 0


def _report(fleet: SimulatedFleet, folder: Path, console: Console) -> Path:
    """Prints the advice beside what was planted and writes the report; returns the HTML file's path."""
    from gpuwatch.app.settings import Settings
    from gpuwatch.app.sizing import size
    from gpuwatch.app.sources import open_sources
    from gpuwatch.app.weekly_report import report_files, week_of
    from gpuwatch.say.sizing_tables import recommend_tables

    options: dict[str, object] = dict.fromkeys(("prometheus", "kubeconfig", "context", "at", "config"))
    options |= {"telemetry": (folder / "telemetry.parquet",), "cluster": folder / "cluster", "no_cluster": False}
    opened = open_sources(options, Settings())
    length = fleet.plan.end - fleet.plan.start
    sized = size(opened, None, length, Console(stderr=True))
    console.print(recommend_tables(sized.recommendations, sized.abstentions, rows=_ROWS, wide=False))
    # A deleted Notebook is known by its StatefulSet, so the comparison ignores kinds.
    advised = {item.key.workload.partition("/")[2] for item in sized.recommendations}
    found = [name for name in fleet.oversized if name.partition("/")[2] in advised]
    console.print(
        f"\nOf {plural(len(fleet.oversized), 'workload')} that were planted with far more GPU than they can use, "
        f"advice was given for {len(found)}.",
        soft_wrap=True,
    )
    target = folder / "report"
    target.mkdir(exist_ok=True)
    for name, content in report_files(week_of(opened, sized, length)).items():
        (target / name).write_bytes(content)
    return target / "report.html"


def _watch(
    store: SampleStore, fleet: SimulatedFleet, moments: Sequence[datetime], folder: Path, progress: Progress
) -> tuple[list[Named], dict[PodRef, str]]:
    """Analyses each moment with the data up to then. Returns what was named, and the last verdict on each Pod."""
    policies = Policies()
    named: list[Named] = []
    said: dict[PodRef, str] = {}
    for at in progress.track(moments, description="watching the week"):
        write_cluster(fleet, folder / "cluster", at)
        snapshot = collect(store, RecordedCluster(folder / "cluster"), at, needs_of(policies))
        named.extend(named_of(at, analyse(PlanFacts(snapshot=snapshot), policies).findings))
        for finding in assess_idle(snapshot, policies.idle, everything=True):
            said.update(dict.fromkeys(finding.pods, f"{at:%a %H:%M}: {finding.summary}"))
    return named, said


def _compare(
    console: Console,
    planted: Sequence[Truth],
    named: Sequence[Named],
    said: Mapping[PodRef, str],
    fleet: SimulatedFleet,
    moments: Sequence[datetime],
) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("planted", "on", "began", "to be named", "found"):
        table.add_column(column, overflow="fold")
    found = 0
    # A workload that ended before the first analysis cannot be found.
    seen = [truth for truth in planted if any(holds(truth, at) for at in moments)]
    before: tuple[object, ...] = ()
    why: list[str] = []
    for truth in sorted(seen, key=lambda item: (not item.fault, item.start, item.subject.name, item.kind)):
        at = first_named(truth, named)
        found += at is not None
        late = duration(60 * max(round((at - truth.start) / timedelta(minutes=1)), 0)) if at else ""
        result = f"[green]after {late}[/]" if at else "[bold red]missed[/]"
        thing = (truth.note, truth.subject, truth.start)
        # A fault with several symptoms is described once and has a line per symptom.
        about = ("", "", "") if thing == before else (escape(truth.note), _on(truth), f"{truth.start:%a %H:%M}")
        table.add_row(*about, truth.kind.replace("_", " "), result)
        before = thing
        if at is None and truth.pods:
            why.append(f"{truth.pods[0]}, {said.get(truth.pods[0], 'never seen')}")
    console.print(table)
    false = false_names(fleet.truth, named)
    console.print(f"\n[bold]{found} of {len(seen)} found[/], {len(seen) - found} missed, {len(false)} named wrongly.")
    for reason in why:
        console.print(f"  missed: {reason}", markup=False)
    if len(seen) < len(planted):
        console.print(f"{len(planted) - len(seen)} more began and ended between two cycles; no rule could see them.")
    for name, kind in sorted(false):
        console.print(f"  named wrongly: {kind} {name}", markup=False)
    console.print(
        "Found after: from the beginning to the first cycle that named it. `make evaluate` measures all this on many "
        "fleets that no bound was chosen on."
    )


def _on(truth: Truth) -> FoldedName:
    if truth.subject.kind is SubjectKind.DEVICE:
        return FoldedName("/".join((*truth.nodes[:1], short_uuid(truth.subject.name))))
    return FoldedName(truth.subject.name)
