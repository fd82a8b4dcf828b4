"""Measures what is found and what is named wrongly: `python -m lab.evaluation.detectors --seeds 1000-1004`.

Each fleet is written as a recording and read as a user's recording is, at many moments of its life, with the cluster
as it was at each: telemetry and Pods in, findings out, held against the truth. The rules that people use today run
over the same fleets. Seeds from 1000 on are for this alone: no threshold is chosen by looking at them.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.table import Table
from scipy.stats import binomtest

from gpuwatch.act.analysis import Policies, analyse
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.facts.model.decision import Finding, FindingKind
from gpuwatch.sources.telemetry.series import RecordedSeries
from lab.evaluation.baseline import COMMON_RULE, SIX_HOURS, fixed_rules
from lab.evaluation.contention import contended_fleet
from lab.evaluation.health_fleets import Right
from lab.evaluation.health_rules import SceneScore, evaluate_health, scenes_together, snapshots_of
from lab.evaluation.patience import CHANCE_RATIO, waits_of
from lab.evaluation.scoring import (
    Kept,
    Quality,
    added,
    kept_together,
    named_with_misfits,
    score_faults,
    score_idle,
    score_misfits,
)
from lab.planted import Named, named_as
from lab.simulate.fleet import SimulatedFleet, build_fleet
from lab.simulate.metrics import Metric
from lab.simulate.moments import NEVER_USED_LIMIT, moments_of
from lab.simulate.plan import FleetPlan

END = datetime(2026, 3, 15, 12, tzinfo=UTC)
CONTENDED = 4
"""Nodes of shared cards that are added to each fleet: for memory and link one each where the demand of those who
contend is known, and one where it is not."""
PARTIAL_GANGS = 8
"""Gangs in a fleet of their own for each seed: two that are placed in part, six that only look like it."""
_LIMIT_HOURS = NEVER_USED_LIMIT / timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """faults, idle, misfits: one row per kind. baselines: the same for the rules of today. kept: working Pods per rule.

    gpus: of a fleet, without the shared ones of `CONTENDED` nodes that are added to each. health, scenes: of the fleets
    of `evaluation.health_fleets`, seen at health_moments; by kind, and by what was planted.
    """

    seeds: tuple[int, ...]
    gpus: int
    days: float
    every_hours: float
    moments: int
    faults: list[Quality]
    idle: list[Quality]
    misfits: list[Quality]
    baselines: list[Quality]
    kept: list[Kept]
    health: list[Quality]
    scenes: list[SceneScore]
    health_moments: int


def evaluate(
    seeds: Sequence[int],
    gpus: int = 64,
    days: float = 7,
    every_hours: float = 2,
    jobs: int = 1,
    progress: Callable[[str], None] = lambda _: None,
    special: bool = True,
) -> Evaluation:
    """Plays the fleets of these seeds and adds up how they were judged.

    every_hours: distance of the regular moments, from the second day on; each planted fault and idle allocation adds
    one of its own. jobs: fleets at a time, each in a process. special: with `special_fleets` of each seed. A seed takes
    some minutes.
    """
    parts: list[Evaluation] = []
    if jobs == 1:
        for seed in seeds:
            progress(f"fleet {seed}")
            parts.append(evaluate_fleet(seed, gpus, days, every_hours, special))
    else:
        with ProcessPoolExecutor(jobs) as pool:
            waiting = {pool.submit(evaluate_fleet, seed, gpus, days, every_hours, special): seed for seed in seeds}
            for done in as_completed(waiting):
                progress(f"fleet {waiting[done]} is done")
                parts.append(done.result())
    parts.sort(key=lambda part: part.seeds)
    return Evaluation(
        seeds=tuple(seeds),
        gpus=gpus,
        days=days,
        every_hours=every_hours,
        moments=sum(part.moments for part in parts),
        faults=added(part.faults for part in parts),
        idle=added(part.idle for part in parts),
        misfits=added(part.misfits for part in parts),
        baselines=added(part.baselines for part in parts),
        kept=kept_together(part.kept for part in parts),
        health=added(part.health for part in parts),
        scenes=scenes_together(part.scenes for part in parts),
        health_moments=sum(part.health_moments for part in parts),
    )


def evaluate_fleet(seed: int, gpus: int, days: float, every_hours: float, special: bool) -> Evaluation:
    """One fleet, in a folder that is removed afterwards, and the `special_fleets` of its seed."""
    fleet = contended_fleet(FleetPlan(seed=seed, end=END, gpus=gpus, days=days), CONTENDED)
    moments = moments_of(fleet, every_hours)
    named = watch(fleet, moments)
    more = special_fleets(seed) if special else Special()
    waits = waits_of(fleet)
    classes, kept = score_idle(fleet.truth, named, moments, waits=waits)
    baselines, left = [], [kept, *more.kept]
    rules = (COMMON_RULE, SIX_HOURS)
    fixed = list(fixed_rules(fleet, moments, rules))
    for rule in rules:
        rows, spared = score_idle(fleet.truth, fixed, moments, rule.name, waits)
        baselines.extend(rows)
        left.append(spared)
    return Evaluation(
        seeds=(seed,),
        gpus=gpus,
        days=days,
        every_hours=every_hours,
        moments=len(moments),
        faults=score_faults(fleet.truth, named, moments),
        idle=added([classes, more.idle]),
        misfits=score_misfits(fleet.truth, named, moments),
        baselines=baselines,
        kept=left,
        health=list(more.health),
        scenes=list(more.scenes),
        health_moments=more.moments,
    )


class Special(NamedTuple):
    """As in Evaluation, of the special fleets of a seed."""

    idle: Sequence[Quality] = ()
    kept: Sequence[Kept] = ()
    health: Sequence[Quality] = ()
    scenes: Sequence[SceneScore] = ()
    moments: int = 0


def special_fleets(seed: int) -> Special:
    """Fleets for what the regular one does not have: gangs in part, exporters with one signal, and `health_fleets`."""
    suspected, kept = suspected_of(seed)
    return Special([*gangs_of(seed), *suspected], [kept], *evaluate_health(seed))


def gangs_of(seed: int) -> list[Quality]:
    """How gangs that are placed in part are judged, beside others that only look like it; the rest of the fleet
    works."""
    plan = FleetPlan(seed=seed, end=END, gpus=128, days=2, idle_allocations=0, faults=(), partial_gangs=PARTIAL_GANGS)
    fleet = build_fleet(plan)
    moments = moments_of(fleet, 6)
    named = watch(fleet, moments)
    rows, _ = score_idle(fleet.truth, named, moments)
    return [row for row in rows if row.kind == FindingKind.PARTIAL_GANG]


_SECOND_SIGNALS = ("POWER", "ENERGY", "DRAM", "MEM_COPY", "MEMORY_UTIL", "PROF", "THROTTLE", "VIOLATION", "CLOCK")
"""In the names of what could confirm a silence."""


class OneSignalFleet(SimulatedFleet):
    """Its exporters have no second signal beside the GPU's utilization."""

    def series(self, only: Sequence[Metric] | None = None) -> Iterator[RecordedSeries]:
        for series in super().series(only):
            if not any(word in series.metric for word in _SECOND_SIGNALS):
                yield series


def suspected_of(seed: int) -> tuple[list[Quality], Kept]:
    """What is suspected to be idle, where nothing can confirm it."""
    built = build_fleet(FleetPlan(seed=seed, end=END, gpus=64, days=4, faults=()))
    fleet = OneSignalFleet(**{each.name: getattr(built, each.name) for each in fields(built)})
    moments = moments_of(fleet, 6)
    named = watch(fleet, moments, _suspected)
    return score_idle(fleet.truth, named, moments, FindingKind.SUSPECTED_IDLE.value)


def _suspected(at: datetime, findings: Sequence[Finding]) -> Iterator[Named]:
    for finding in findings:
        if finding.kind is FindingKind.SUSPECTED_IDLE:
            yield named_as(at, finding)


def watch(
    fleet: SimulatedFleet,
    moments: Sequence[datetime],
    taken: Callable[[datetime, Sequence[Finding]], Iterable[Named]] = named_with_misfits,
) -> list[Named]:
    """Runs the whole path at each moment. taken: from the findings of each moment."""
    policies = Policies()
    return [
        one
        for snapshot in snapshots_of(fleet, moments, policies)
        for one in taken(snapshot.at, analyse(PlanFacts(snapshot=snapshot), policies).findings)
    ]


# Output


def quality_json(row: Quality) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "planted": row.planted,
        "found": row.found,
        "false_found": row.false_found,
        "same_kind": row.same_kind,
        "precision": row.precision,
        "recall": row.recall,
        "delay_hours_median": row.delay_hours,
        "delay_hours_max": max(row.delays_hours, default=None),
        "due": row.due,
        "due_found": row.due_found,
        "late_hours_median": row.late_hours_median,
        "late_hours_max": max(row.late_hours, default=None),
        "gpu_hours": round(row.gpu_hours, 1),
        "gpu_hours_named": round(row.gpu_hours_named, 1),
        "false_names": list(row.false_names),
    }


def evaluation_json(result: Evaluation) -> dict[str, Any]:
    return {
        "seeds": list(result.seeds),
        "gpus": result.gpus,
        "days": result.days,
        "every_hours": result.every_hours,
        "moments": result.moments,
        "faults": [quality_json(row) for row in result.faults],
        "idle": [quality_json(row) for row in result.idle],
        "misfits": [quality_json(row) for row in result.misfits],
        "baselines": [quality_json(row) for row in result.baselines],
        "health_moments": result.health_moments,
        "health": [quality_json(row) for row in result.health],
        "scenes": [
            {
                "scene": row.scene,
                "kind": row.kind.value,
                "right": row.right.name.lower(),
                "planted": row.planted,
                "named": row.found,
                "too_far": row.too_far,
                "delay_hours_median": row.delay_hours,
            }
            for row in result.scenes
        ],
        "working_pods_named_idle": [
            {
                "rule": kept.rule,
                "working_pods": kept.pods,
                "named": kept.named,
                "services": kept.services,
                "services_named": kept.services_named,
            }
            for kept in result.kept
        ],
    }


def print_evaluation(result: Evaluation, console: Console) -> None:
    """Five tables: kinds, how late what is idle was named, the working Pods that each rule would have taken, and the
    fleets of `evaluation.health_fleets` by kind and by scene."""
    table = Table(
        title=f"{len(result.seeds)} fleets of {result.gpus} GPUs, {result.days:g} days, {result.moments} moments"
    )
    for column in ("kind", "planted", "found", "recall", "GPU-h", "false", "precision", "delay", "max"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    for section in (result.faults, result.idle, result.misfits, result.baselines):
        for row in section:
            hours = _share(row.gpu_hours_named / row.gpu_hours if row.gpu_hours else None)
            table.add_row(
                row.kind, str(row.planted), str(row.found), _share(row.recall), hours, str(row.false_found),
                _share(row.precision), _hours(row.delay_hours), _hours(max(row.delays_hours, default=None)),
            )  # fmt: skip
        table.add_section()
    console.print(table)
    late = Table(title="Idle allocations whose silence nothing explained any more")
    for column in ("kind", "due", "found", "late", "max", "working Pods named"):
        late.add_column(column, justify="left" if column == "kind" else "right")
    for section in (result.idle, result.baselines):
        for row in section:
            late.add_row(
                row.kind, str(row.due), str(row.due_found), _hours(row.late_hours_median),
                _hours(max(row.late_hours, default=None)), str(row.false_found),
            )  # fmt: skip
        late.add_section()
    console.print(late)
    spared = Table(title="Pods that go on working, and were named idle all the same")
    for column in ("rule", "working Pods", "named", "share", "of them services", "named", "share"):
        spared.add_column(column, justify="left" if column == "rule" else "right")
    for kept in result.kept:
        cells = []
        for pods, named in ((kept.pods, kept.named), (kept.services, kept.services_named)):
            cells += [str(pods), str(named), _share(named / pods if pods else None)]
        spared.add_row(kept.rule, *cells)
    console.print(spared)
    if result.scenes:
        _print_health(result, console)
    console.print(
        "recall: of what was planted; GPU-h: of the hours that it lasted, those after it was named; precision: of what "
        "was named; delay: median from the start to the first moment that named it, and the longest, as moments lie up "
        f"to {result.every_hours:g} h apart; due: somebody still watched it when its silence had become longer than "
        f"{1 - CHANCE_RATIO:.0%} of the rests that Pods of its kind with a past like its own begin at that time "
        f"({_LIMIT_HOURS:g} h where it never worked); late: from that moment on, median and longest, below 0 where it "
        "was named sooner"
    )


def _print_health(result: Evaluation, console: Console) -> None:
    table = Table(title=f"Fabric, board, places, repairs, Pods' ends, InfiniBand: {result.health_moments} moments")
    for column in ("kind", "planted", "found", "95 %", "named wrongly", "precision, 95 %"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    for row in result.health:
        counts = str(row.planted), str(row.found), interval(row.found, row.planted), str(row.false_found)
        table.add_row(row.kind, *counts, interval(row.found, row.found + row.false_found))
    console.print(table)
    scenes = Table(title="What was planted there")
    for column in ("kind", "scene", "right", "planted", "named", "too far", "delay"):
        scenes.add_column(column, justify="left" if column in ("kind", "scene", "right") else "right")
    for scene in result.scenes:
        right = "nothing" if scene.right is Right.NOTHING else f"{scene.right.name.lower()} at most"
        done = str(scene.planted), str(scene.found), str(scene.too_far), _hours(scene.delay_hours)
        scenes.add_row(scene.kind.value, scene.scene, right, *done)
    console.print(scenes)


def interval(found: int, of: int) -> str:
    """The 95 % confidence interval of a share, by Clopper and Pearson; '' of nothing."""
    if not of:
        return ""
    bounds = binomtest(found, of).proportion_ci(0.95)
    return f"{bounds.low:.0%}–{bounds.high:.0%}"


def _hours(hours: float | None) -> str:
    return "" if hours is None else f"{hours:.1f} h"


def _share(ratio: float | None) -> str:
    if ratio is None:
        return ""
    # A few of many must not round to none, nor nearly all to all.
    return f"{ratio:.1%}" if 0 < ratio < 0.01 or 0.99 < ratio < 1 else f"{ratio:.0%}"


def parse_seeds(text: str) -> list[int]:
    """'1000-1004,1010' → the seeds. ValueError where it is neither a number nor a range."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds.extend(range(int(first), int(last or first) + 1))
    return seeds


@click.command()
@click.option("--seeds", default="1000-1004", show_default=True)
@click.option("--gpus", default=64, show_default=True, help="GPUs of each fleet.")
@click.option("--days", default=7.0, show_default=True)
@click.option("--every-hours", default=2.0, show_default=True, help="Distance of the regular moments.")
@click.option("--jobs", default=2, show_default=True, help="Seeds at a time.")
@click.option("--special/--no-special", default=True, show_default=True, help="With the fleets of special faults.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(seeds: str, gpus: int, days: float, every_hours: float, jobs: int, special: bool, form: str) -> None:
    """Precision and recall of every kind of finding, over simulated fleets whose truth is known."""
    try:
        chosen = parse_seeds(seeds)
    except ValueError as error:
        raise click.BadParameter(f"{seeds!r} is no list of seeds: write 1000-1004 or 1000,1003") from error
    told = Console(stderr=True)
    result = evaluate(
        chosen, gpus, days, every_hours, jobs=min(jobs, len(chosen)), progress=told.print, special=special
    )
    if form == "json":
        print(json.dumps(evaluation_json(result), indent=1))
    else:
        print_evaluation(result, Console())


if __name__ == "__main__":
    main()
