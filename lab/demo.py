"""What gpuwatch finds of what was planted in a simulated fleet: `python -m lab.demo`, or `--seed 7` for another fleet.

It shows the recording of `gpuwatch demo` too, at each of its moments. `--pack` makes that recording. To be small, it
has 32 GPUs, five days and a sample each two minutes; numbers that are mostly noise keep three significant digits, and
the energy counter, which nothing reads, is left out.
"""

import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import msgspec
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from gpuwatch.act.analysis import Policies, analyse, needs_of
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.app.cli import demo
from gpuwatch.app.cli.terminal import output
from gpuwatch.facts.model.decision import SubjectKind
from gpuwatch.facts.model.telemetry import PodRef
from gpuwatch.judge.idle.assess import assess_idle
from gpuwatch.say.layout import FoldedName
from gpuwatch.say.words import duration, plural, short_uuid
from gpuwatch.sources.collect.collect import collect
from gpuwatch.sources.kube.recorded import RecordedCluster
from gpuwatch.sources.telemetry.recording import open_recording
from gpuwatch.sources.telemetry.series import RecordedSeries
from lab.planted import IDLE_KINDS, Named, Planted, Truth, false_names, first_named, holds, named_of
from lab.simulate.fleet import SimulatedFleet, build_fleet
from lab.simulate.moments import moments_of
from lab.simulate.plan import FleetPlan
from lab.simulate.recording import write_recording
from lab.simulate.writing import write_cluster

END = datetime(2026, 3, 2, 12, tzinfo=UTC)
"""The fleet's last moment; fixed, so that a seed gives the same days every time."""
PACKAGED = Path(__file__).parents[1] / "src/gpuwatch/app/cli/demo_fleet"
PLANTED = Path(__file__).with_name("demo_fleet")
"""What was planted in the packaged recording, and its cluster at each moment."""

_EVERY_HOURS = 12.0
_UNREAD = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
_NOISY = {
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_PROF_DRAM_ACTIVE",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_PROF_PCIE_RX_BYTES",
    "DCGM_FI_PROF_PCIE_TX_BYTES",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_PROF_SM_ACTIVE",
}


def simulated(seed: int, gpus: int, days: float, interval_seconds: int = 60) -> SimulatedFleet:
    plan = FleetPlan(
        seed=seed, end=END, gpus=gpus, days=days, interval_seconds=interval_seconds, oversized=max(gpus // 8, 1)
    )
    return build_fleet(plan)


def packaged_fleet() -> SimulatedFleet:
    """Of a development seed. It was chosen because its last moment has a degraded GPU, an idle Pod and an oversized
    workload, so that each part of the output has something to show."""
    return simulated(seed=3, gpus=32, days=5.0, interval_seconds=120)


def write(fleet: SimulatedFleet, folder: Path) -> None:
    """planted.json, fleet.json, and the cluster at each moment; the caller writes telemetry.parquet. Raises OSError."""
    truths, moments = fleet.truth, moments_of(fleet, _EVERY_HOURS)
    planted = Planted(
        seed=fleet.plan.seed,
        gpus=fleet.plan.gpus,
        days=fleet.plan.days,
        look_alikes=sum(truth.harmless and not truth.fault for truth in truths),
        truths=tuple(truth for truth in truths if truth.fault or not truth.harmless),
        oversized=fleet.oversized,
        moments=tuple(moments),
    )
    for at in moments:
        cluster = folder / "moments" / _stamp(at)
        cluster.mkdir(parents=True, exist_ok=True)
        write_cluster(fleet, cluster, at)
    (folder / "planted.json").write_bytes(msgspec.json.format(msgspec.json.encode(planted), indent=1) + b"\n")
    shown = demo.SimulatedFleet(seed=planted.seed, gpus=planted.gpus, days=planted.days, at=moments[-1])
    (folder / "fleet.json").write_bytes(msgspec.json.encode(shown) + b"\n")
    shutil.copytree(folder / "moments" / _stamp(moments[-1]), folder / "cluster", dirs_exist_ok=True)


def _stamp(at: datetime) -> str:
    """The name of the folder with the cluster at this moment."""
    return f"{at:%Y%m%dT%H%M%SZ}"


def _few_digits(series: RecordedSeries) -> RecordedSeries:
    """The noisy numbers with three significant digits."""
    if series.metric not in _NOISY:
        return series
    values = np.array(series.values, np.float64)
    real = np.isfinite(values) & (values != 0)
    scale = 10.0 ** (2 - np.floor(np.log10(np.abs(values[real]))))
    values[real] = np.round(values[real] * scale) / scale
    return replace(series, values=values)


def pack(fleet: SimulatedFleet, target: Path, planted: Path) -> None:
    """telemetry.parquet, fleet.json and cluster.tar.xz go to the target; planted.json and moments.tar.xz to `planted`.
    The same fleet gives the same files with the same versions of the libraries."""
    for each in (target, planted):
        each.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write(fleet, folder)
        # A quarter smaller than with the usual level, for ten times its time.
        write_recording(target / "telemetry.parquet", kept_series(fleet), compression_level=19)
        shutil.copy(folder / "fleet.json", target)
        shutil.copy(folder / "planted.json", planted)
        _archive(folder, "cluster/*.json", target / "cluster.tar.xz")
        _archive(folder, "moments/*/*.json", planted / "moments.tar.xz")


def _archive(folder: Path, names: str, target: Path) -> None:
    with tarfile.open(target, "w:xz", preset=9) as archive:
        for path in sorted(folder.glob(names)):
            item = tarfile.TarInfo(str(path.relative_to(folder)))
            item.size = path.stat().st_size
            with path.open("rb") as content:
                archive.addfile(item, content)


def kept_series(fleet: SimulatedFleet) -> Iterator[RecordedSeries]:
    """What the packaged recording has of the fleet's series."""
    return (_few_digits(one) for one in (*fleet.series(), *fleet.state_series()) if one.metric != _UNREAD)


@click.command()
@click.option("--seed", type=int, help="Another fleet with each seed; without one, the packaged recording.")
@click.option("--gpus", type=click.IntRange(8, 4096), help="Of another fleet. [default: 64]")
@click.option("--days", type=click.FloatRange(0.5, 60), help="Of another fleet. [default: 7]")
@click.option("--folder", type=click.Path(path_type=Path), default=Path("out/demo"), show_default=True)
@click.option("--pack", "packs", is_flag=True, help="Write the recording of `gpuwatch demo`; no other option counts.")
def main(seed: int | None, gpus: int | None, days: float | None, folder: Path, packs: bool) -> None:
    """Show what gpuwatch finds of what was planted in a simulated fleet."""
    if packs:
        pack(packaged_fleet(), PACKAGED, PLANTED)
        return
    demo.emptied(folder)
    if seed is None and gpus is None and days is None:
        for each in (PACKAGED / "telemetry.parquet", PACKAGED / "fleet.json", PLANTED / "planted.json"):
            shutil.copy(each, folder)
        for packed in (PACKAGED / "cluster.tar.xz", PLANTED / "moments.tar.xz"):
            with packed.open("rb") as archive:
                demo.unpack(archive, folder)
    else:
        fleet = simulated(7 if seed is None else seed, gpus or 64, days or 7.0)
        write(fleet, folder)
        write_recording(folder / "telemetry.parquet", chain(fleet.series(), fleet.state_series()))
    show(folder)


def show(folder: Path) -> None:
    """Prints what was planted and what was found of it, then what `gpuwatch demo` says."""
    console = output()
    fleet = msgspec.json.decode((folder / "planted.json").read_bytes(), type=Planted)
    planted = [truth for truth in fleet.truths if not truth.harmless and (truth.fault or truth.kind in IDLE_KINDS)]
    console.print(
        f"A simulated fleet (seed {fleet.seed}): {fleet.gpus} GPUs, {fleet.days:g} days, {len(planted)} faults and "
        f"idle allocations planted among {plural(fleet.look_alikes, 'Pod')} that only look like it."
    )
    console.rule(f"[bold]What was found of what was planted, watched at {len(fleet.moments)} moments[/]")
    named, said = _watch(fleet, folder)
    _compare(console, planted, named, said, fleet)
    # A deleted Notebook is known by its StatefulSet, so the comparison ignores kinds.
    advised = {workload.partition("/")[2] for workload in demo.show(folder)}
    found = [name for name in fleet.oversized if name.partition("/")[2] in advised]
    console.print(
        f"\nOf {plural(len(fleet.oversized), 'workload')} that were planted with far more GPU than they can use, "
        f"advice was given for {len(found)}.",
        soft_wrap=True,
    )


def _watch(fleet: Planted, folder: Path) -> tuple[list[Named], dict[PodRef, str]]:
    """Analyses each moment with the data up to then. Returns what was named, and the last verdict on each Pod."""
    store, policies = open_recording([folder / "telemetry.parquet"]), Policies()
    named: list[Named] = []
    said: dict[PodRef, str] = {}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for at in progress.track(fleet.moments, description="watching the fleet"):
            cluster = RecordedCluster(folder / "moments" / _stamp(at))
            snapshot = collect(store, cluster, at, needs_of(policies))
            analysis = analyse(PlanFacts(snapshot=snapshot), policies)
            named.extend(named_of(at, analysis.findings))
            for finding in assess_idle(snapshot, policies.idle, everything=True):
                said.update(dict.fromkeys(finding.pods, f"{at:%a %H:%M}: {finding.summary}"))
    return named, said


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


if __name__ == "__main__":
    main()
