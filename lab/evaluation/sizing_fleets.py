"""Right-sizing on whole fleets: `python -m lab.evaluation.sizing_fleets --seeds 2000-2005`.

Each fleet runs for a week with workloads of all kinds, some of them planted with far more GPU than they can use. It is
written as a recording and sized at its end, as `gpuwatch recommend` does. What was planted and got no advice is counted
by the reason that was given. Advice is held against what the simulation knows that the work takes. Seeds from 1000 on
are for this alone: no bound is chosen by looking at them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import msgspec
from rich.console import Console
from rich.table import Table
from scipy.stats import binomtest

from gpuwatch.app.settings import Settings
from gpuwatch.app.sizing import size
from gpuwatch.app.sources import open_sources
from gpuwatch.facts.catalog.gpus import find_gpu
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.sizing import Recommendation, Target, TargetKind
from lab.demo import simulated
from lab.evaluation.detectors import parse_seeds
from lab.simulate.behaviour import CONTEXT_MIB, WorkKind, dram_share, tensor_share
from lab.simulate.fleet import SimulatedFleet
from lab.simulate.recording import write_recording
from lab.simulate.runs import Run
from lab.simulate.writing import write_cluster

CONTEXT_BYTES = CONTEXT_MIB * 2**20


@dataclass(frozen=True, kw_only=True)
class FleetSizing:
    """Counts of workloads, without a kind in their names: a deleted Notebook is known by its StatefulSet.

    planted: with far more GPU than they can use, and at work within the week. advised: of those, with advice.
    left: why the others got none → workloads. others, others_advised: not planted, and how many of them got advice; it
    may be right, as many use little. conditional: of all advice, that with a condition. small_memory, slower: advice
    (of all) for a target with less memory than the work takes, or that cannot give it what it asks of tensor cores and
    memory; each names its workloads.
    """

    seeds: tuple[int, ...]
    planted: int = 0
    advised: int = 0
    left: Counter[str] = field(default_factory=Counter)
    others: int = 0
    others_advised: int = 0
    conditional: int = 0
    small_memory: tuple[str, ...] = ()
    slower: tuple[str, ...] = ()

    def __add__(self, other: "FleetSizing") -> "FleetSizing":
        return FleetSizing(
            seeds=(*self.seeds, *other.seeds),
            planted=self.planted + other.planted,
            advised=self.advised + other.advised,
            left=self.left + other.left,
            others=self.others + other.others,
            others_advised=self.others_advised + other.others_advised,
            conditional=self.conditional + other.conditional,
            small_memory=(*self.small_memory, *other.small_memory),
            slower=(*self.slower, *other.slower),
        )


def size_fleet(seed: int, gpus: int, days: float) -> FleetSizing:
    """One fleet, in a folder that is removed afterwards. Some minutes for 64 GPUs and a week."""
    fleet = simulated(seed, gpus, days)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_recording(folder / "telemetry.parquet", fleet.series())
        (folder / "cluster").mkdir()
        write_cluster(fleet, folder / "cluster", fleet.plan.end)
        options: dict[str, object] = dict.fromkeys(("prometheus", "kubeconfig", "context", "at", "config"))
        options |= {"telemetry": (folder / "telemetry.parquet",), "cluster": folder / "cluster", "no_cluster": False}
        sized = size(open_sources(options, Settings()), None, timedelta(days=days), quiet=True)
    reasons = {_name(item.key.workload): str(item.kind) for item in sized.abstentions}
    return score(seed, fleet, sized.recommendations, reasons)


def score(
    seed: int, fleet: SimulatedFleet, recommendations: Sequence[Recommendation], reasons: dict[str, str]
) -> FleetSizing:
    """reasons: why a workload, by its name without the kind, got no advice."""
    at_work = grouped((run for run in fleet.runs if run.end > 0), lambda run: _name(run.workload.id))
    planted = {_name(workload) for workload in fleet.oversized} & at_work.keys()
    given = {_name(item.key.workload): item for item in recommendations}
    others = at_work.keys() - planted
    return FleetSizing(
        seeds=(seed,),
        planted=len(planted),
        advised=len(planted & given.keys()),
        left=Counter(reasons.get(name, "not profiled") for name in planted - given.keys()),
        others=len(others),
        others_advised=len(others & given.keys()),
        conditional=sum(bool(item.condition) for item in recommendations),
        small_memory=tuple(
            f"{seed} {name}" for name, item in sorted(given.items()) if _small_memory(item, at_work.get(name, ()))
        ),
        slower=tuple(f"{seed} {name}" for name, item in sorted(given.items()) if _slower(item, at_work.get(name, ()))),
    )


def _name(workload: str) -> str:
    return workload.partition("/")[2]


def _small_memory(item: Recommendation, runs: Iterable[Run]) -> bool:
    taken = max((run.behaviour.memory_share * item.current.memory_bytes + CONTEXT_BYTES for run in runs), default=0.0)
    return item.chosen.memory_bytes < taken


def _slower(item: Recommendation, runs: Iterable[Run]) -> bool:
    """Whether the work runs below the speed that the advice promises, by what it asks of the tensor cores and of
    the memory while it computes. A host-bound program computes for a small part of its time, and only that part gets
    longer. Fewer GPUs and shares have the same GPU, and are not judged, nor is a rate that the catalog lacks."""
    if item.chosen.target.kind not in (TargetKind.MIG, TargetKind.MODEL):
        return False
    return any(speed_ratio(item, run) < item.target_speed_ratio for run in runs)


def speed_ratio(item: Recommendation, run: Run) -> float:
    host_bound = run.behaviour.activity is WorkKind.HOST_BOUND
    level, share = (0.5, run.behaviour.sm_level) if host_bound else (run.behaviour.sm_level, 1.0)
    asked = {
        "fp16_dense_flops_per_second": level * tensor_share(level),
        "memory_bandwidth_bytes_per_second": level * dram_share(level),
    }
    longer = 1.0
    for rate, ratio in asked.items():
        now, then = _peak_of(item.current.target, rate), _peak_of(item.chosen.target, rate)
        if now and then:
            longer = max(longer, ratio * now / then)
    return 1.0 / (1.0 - share + share * longer)


def _peak_of(target: Target, rate: str) -> float | None:
    """Of all GPUs of a Pod; None where unknown."""
    peak: float | None = getattr(find_gpu(target.gpu_model), rate, None)
    return None if peak is None else peak * target.gpu_share_ratio * target.gpus_per_pod


def _print(result: FleetSizing, console: Console) -> None:
    interval = binomtest(result.advised, result.planted).proportion_ci(0.95) if result.planted else None
    table = Table(title=f"Right-sizing on {len(result.seeds)} whole fleets")
    for column in ("workloads", "of them", "advised", "recall, 95 %"):
        table.add_column(column, justify="left" if column == "workloads" else "right")
    recall = f"{interval.low:.0%}–{interval.high:.0%}" if interval else ""
    table.add_row("planted with far more GPU than they use", str(result.planted), str(result.advised), recall)
    table.add_row("others", str(result.others), str(result.others_advised), "")
    console.print(table)
    console.print(f"with a condition, of all advice: {result.conditional}")
    for reason, count in result.left.most_common():
        console.print(f"  planted, left as they are: {count} × {reason}")
    for what, names in (("too little memory", result.small_memory), ("too low a speed", result.slower)):
        console.print(f"advice with {what}: {len(names)}{': ' if names else ''}{', '.join(names)}")


@click.command()
@click.option("--seeds", default="2000-2005", show_default=True)
@click.option("--gpus", default=64, show_default=True)
@click.option("--days", default=7.0, show_default=True)
@click.option("--jobs", default=1, show_default=True, help="Fleets at a time, each in a process.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(seeds: str, gpus: int, days: float, jobs: int, form: str) -> None:
    """How many of the planted oversized workloads get advice on whole fleets, and whether advice is too small."""
    try:
        chosen = parse_seeds(seeds)
    except ValueError as error:
        raise click.BadParameter(f"{seeds!r} is no list of seeds: write 2000-2005 or 2000,2003") from error
    with ProcessPoolExecutor(jobs) as pool:
        parts = list(pool.map(size_fleet, chosen, [gpus] * len(chosen), [days] * len(chosen)))
    result = sum(parts[1:], start=parts[0])
    if form == "json":
        print(msgspec.json.format(msgspec.json.encode(result), indent=1).decode())
        return
    _print(result, Console())


if __name__ == "__main__":
    main()
