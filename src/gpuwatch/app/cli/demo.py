"""`gpuwatch demo`: a recording of a simulated fleet through the whole cycle, from telemetry to advice and report.

The recording is packaged. `python -m lab.demo` of a checkout made it, and compares with what was planted in it.
"""

import shutil
import sys
import tarfile
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from importlib import resources
from pathlib import Path
from shlex import quote
from typing import IO

import msgspec

from gpuwatch.act.analysis import Policies, analyse, needs_of
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.app.cli.terminal import output
from gpuwatch.facts.model.decision import SubjectKind
from gpuwatch.say.tables import analysis_tables

_ROWS = 12
_EXPLAINED = (SubjectKind.POD, SubjectKind.DEVICE, SubjectKind.NODE)


class SimulatedFleet(msgspec.Struct, frozen=True, kw_only=True):
    """fleet.json beside the recording. at: the recording's end, and the moment of cluster/*.json."""

    seed: int
    gpus: int
    days: float
    at: datetime


def run_demo(folder: Path) -> int:
    emptied(folder)
    packaged = resources.files("gpuwatch.app.cli") / "demo_fleet"
    for name in ("telemetry.parquet", "fleet.json"):
        (folder / name).write_bytes((packaged / name).read_bytes())
    with (packaged / "cluster.tar.xz").open("rb") as file:
        unpack(file, folder)
    show(folder)
    return 0


def unpack(archive: IO[bytes], folder: Path) -> None:
    """Unpacks one of our own archives. Python before 3.11.4 (Debian 12 has 3.11.2) has no filters, and needs none."""
    with tarfile.open(fileobj=archive) as opened:
        opened.extraction_filter = getattr(tarfile, "data_filter", None)
        opened.extractall(folder)  # noqa: S202  # filtered where Python can; the archive is ours


def emptied(folder: Path) -> None:
    """Makes the folder, without the clusters of an earlier demo. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in ("moments", "cluster"):
        shutil.rmtree(folder / old, ignore_errors=True)


def show(folder: Path) -> Collection[str]:
    """Prints what gpuwatch says about the recording in the folder (telemetry.parquet, fleet.json, cluster/*.json), and
    writes report/. Returns the Workload.ids that get advice. Raises OSError."""
    from gpuwatch.app.ledger import hours_of
    from gpuwatch.app.settings import Settings
    from gpuwatch.app.sizing import price_list, size
    from gpuwatch.app.sources import open_sources
    from gpuwatch.app.weekly_report import report_files, week_of
    from gpuwatch.say.sizing_tables import recommend_tables
    from gpuwatch.sources.collect.collect import collect
    from gpuwatch.sources.kube.recorded import RecordedCluster
    from gpuwatch.sources.telemetry.recording import open_recording

    console, policies = output(), Policies()
    fleet = msgspec.json.decode((folder / "fleet.json").read_bytes(), type=SimulatedFleet)
    telemetry, cluster = folder / "telemetry.parquet", folder / "cluster"
    console.print(f"A recording of a simulated fleet (seed {fleet.seed}): {fleet.gpus} GPUs, {fleet.days:g} days.")
    snapshot = collect(open_recording([telemetry]), RecordedCluster(cluster), fleet.at, needs_of(policies))
    analysis = analyse(PlanFacts(snapshot=snapshot), policies)
    console.rule("[bold]What gpuwatch says at the end[/]")
    console.print(analysis_tables(analysis, "simulated fleet", rows=_ROWS, wide=False, prices=price_list(Settings())))
    console.rule("[bold]What runs on more GPU than it needs[/]")
    options: dict[str, object] = dict.fromkeys(("prometheus", "kubeconfig", "context", "at", "config"))
    options |= {"telemetry": (telemetry,), "cluster": cluster, "no_cluster": False}
    opened, length = open_sources(options, Settings()), timedelta(days=fleet.days)
    sized = size(opened, None, length)
    console.print(recommend_tables(sized.recommendations, sized.abstentions, rows=_ROWS, wide=False))
    hours = hours_of(replace(opened, snapshot=snapshot), length, None)
    report = folder / "report"
    report.mkdir(exist_ok=True)
    for name, content in report_files(week_of(opened, sized, hours, length)).items():
        (report / name).write_bytes(content)
    sources = f"--telemetry {quote(str(telemetry))} --cluster {quote(str(cluster))}"
    subject = next((str(item.subject) for item in analysis.findings if item.subject.kind in _EXPLAINED), "")
    explain = (f"explain {quote(subject)}",) if subject else ()
    console.print(f"\nLook further: the recording lies in {folder}", markup=False, soft_wrap=True)
    for command in ("analyze --rows 50", *explain, "recommend", "mig-plan", "doctor"):
        console.print(f"  {_command()} {command} {sources}", markup=False, soft_wrap=True)
    console.print("\n[bold]The report of these days[/], for a browser:", soft_wrap=True)
    console.print(f"  {report / 'report.html'}", markup=False, soft_wrap=True)
    return {item.key.workload for item in sized.recommendations}


def _command() -> str:
    """What a shell calls this gpuwatch by: its name where the PATH leads to it, else its path."""
    own, found = Path(sys.executable).with_name("gpuwatch"), shutil.which("gpuwatch")
    if not own.exists() or (found and Path(found).samefile(own)):
        return "gpuwatch"
    here = Path.cwd()
    return quote(str(own.relative_to(here) if own.is_relative_to(here) else own))
