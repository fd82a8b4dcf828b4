"""`gpuwatch demo`: a recording of a simulated fleet through the whole cycle, and its findings beside what was planted.

The recording is packaged; `python -m lab.demo` of a checkout makes it, and shows others in the same way.
"""

import shutil
import sys
import tarfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from importlib import resources
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from gpuwatch.act.analysis import Policies, analyse, needs_of
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.app.cli.planted import IDLE_KINDS, Named, Planted, Truth, false_names, first_named, holds, named_of
from gpuwatch.app.cli.terminal import output
from gpuwatch.facts.model.decision import Analysis, SubjectKind
from gpuwatch.facts.model.telemetry import PodRef
from gpuwatch.judge.idle.assess import assess_idle
from gpuwatch.say.layout import FoldedName
from gpuwatch.say.tables import analysis_tables
from gpuwatch.say.words import duration, plural, short_uuid

if TYPE_CHECKING:
    from gpuwatch.sources.telemetry.samples import SampleStore

_ROWS = 12
_EXPLAINED = (SubjectKind.POD, SubjectKind.DEVICE, SubjectKind.NODE)


def run_demo(folder: Path) -> int:
    emptied(folder)
    packaged = resources.files("gpuwatch.app.cli") / "demo_fleet"
    for name in ("telemetry.parquet", "planted.json"):
        (folder / name).write_bytes((packaged / name).read_bytes())
    with (packaged / "moments.tar.xz").open("rb") as file, tarfile.open(fileobj=file) as archive:
        archive.extractall(folder, filter="data")
    show(folder)
    return 0


def emptied(folder: Path) -> None:
    """Makes the folder, without the clusters of an earlier demo. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in ("moments", "cluster"):
        shutil.rmtree(folder / old, ignore_errors=True)


def stamp(at: datetime) -> str:
    """The name of the folder with the cluster at this moment."""
    return f"{at:%Y%m%dT%H%M%SZ}"


def show(folder: Path) -> None:
    """Prints what gpuwatch says about the recording in the folder: telemetry.parquet, planted.json and
    moments/STAMP/*.json. Writes cluster/, the last of these, and report/. Raises OSError."""
    from gpuwatch.sources.telemetry.recording import open_recording

    console = output()
    fleet = msgspec.json.decode((folder / "planted.json").read_bytes(), type=Planted)
    planted = [truth for truth in fleet.truths if not truth.harmless and (truth.fault or truth.kind in IDLE_KINDS)]
    console.print(
        f"A recording of a simulated fleet (seed {fleet.seed}): {fleet.gpus} GPUs, {fleet.days:g} days, {len(planted)} "
        f"faults and idle allocations planted among {plural(fleet.look_alikes, 'Pod')} that only look like it."
    )
    shutil.copytree(folder / "moments" / stamp(fleet.moments[-1]), folder / "cluster")
    store = open_recording([folder / "telemetry.parquet"])
    analysis, named, said = _watch(store, fleet, folder)
    console.rule("[bold]What gpuwatch says at the end[/]")
    console.print(analysis_tables(analysis, "simulated fleet", rows=_ROWS, wide=False))
    console.rule(f"[bold]All the time, watched at {len(fleet.moments)} moments, against what was planted[/]")
    _compare(console, planted, named, said, fleet)
    console.rule("[bold]What runs on more GPU than it needs[/]")
    report = _report(fleet, folder, console)
    sources = f"--telemetry {quote(f'{folder}/telemetry.parquet')} --cluster {quote(f'{folder}/cluster')}"
    subject = next((str(item.subject) for item in analysis.findings if item.subject.kind in _EXPLAINED), "")
    explain = (f"explain {quote(subject)}",) if subject else ()
    console.print(f"\nLook further: the recording lies in {folder}", markup=False, soft_wrap=True)
    for command in ("analyze --rows 50", *explain, "recommend", "mig-plan", "doctor"):
        console.print(f"  {_command()} {command} {sources}", markup=False, soft_wrap=True)
    console.print("\n[bold]The report of these days[/], for a browser:", soft_wrap=True)
    console.print(f"  {report}", markup=False, soft_wrap=True)


def _command() -> str:
    """What a shell calls this gpuwatch by: its name where the PATH leads to it, else its path."""
    own, found = Path(sys.executable).with_name("gpuwatch"), shutil.which("gpuwatch")
    if not own.exists() or (found and Path(found).samefile(own)):
        return "gpuwatch"
    here = Path.cwd()
    return quote(str(own.relative_to(here) if own.is_relative_to(here) else own))


def _report(fleet: Planted, folder: Path, console: Console) -> Path:
    """Prints the advice beside what was planted and writes the report; returns the HTML file's path."""
    from gpuwatch.app.settings import Settings
    from gpuwatch.app.sizing import size
    from gpuwatch.app.sources import open_sources
    from gpuwatch.app.weekly_report import report_files, week_of
    from gpuwatch.say.sizing_tables import recommend_tables

    options: dict[str, object] = dict.fromkeys(("prometheus", "kubeconfig", "context", "at", "config"))
    options |= {"telemetry": (folder / "telemetry.parquet",), "cluster": folder / "cluster", "no_cluster": False}
    opened = open_sources(options, Settings())
    length = timedelta(days=fleet.days)
    sized = size(opened, None, length)
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


def _watch(store: "SampleStore", fleet: Planted, folder: Path) -> tuple[Analysis, list[Named], dict[PodRef, str]]:
    """Analyses each moment with the data up to then. Returns the last analysis, what was named, and the last verdict on
    each Pod."""
    from gpuwatch.sources.collect.collect import collect
    from gpuwatch.sources.kube.recorded import RecordedCluster

    policies = Policies()
    named: list[Named] = []
    said: dict[PodRef, str] = {}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for at in progress.track(fleet.moments, description="watching the fleet"):
            cluster = RecordedCluster(folder / "moments" / stamp(at))
            snapshot = collect(store, cluster, at, needs_of(policies))
            analysis = analyse(PlanFacts(snapshot=snapshot), policies)
            named.extend(named_of(at, analysis.findings))
            for finding in assess_idle(snapshot, policies.idle, everything=True):
                said.update(dict.fromkeys(finding.pods, f"{at:%a %H:%M}: {finding.summary}"))
    return analysis, named, said


def _compare(
    console: Console,
    planted: Sequence[Truth],
    named: Sequence[Named],
    said: Mapping[PodRef, str],
    fleet: Planted,
) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("planted", "on", "began", "to be named", "found"):
        table.add_column(column, overflow="fold")
    found = 0
    # A workload that ended before the first analysis cannot be found.
    seen = [truth for truth in planted if any(holds(truth, at) for at in fleet.moments)]
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
    false = false_names(fleet.truths, named)
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
