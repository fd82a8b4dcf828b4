"""How well speeds on other slices are predicted: `python -m lab.evaluation.sizing --miso FILE`.

Everything is computed from what was measured on the whole card; the speeds on slices are only looked at to judge, and
by the learners, which are judged on models that they did not see.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from lab.evaluation.sizing_models import ModelPair, judge_models
from lab.evaluation.sizing_planted import PlantedQuality, judge_planted, planted
from lab.evaluation.sizing_quality import (
    Coverage,
    Decisions,
    Errors,
    Points,
    by_job,
    coverage_of,
    decide,
    errors_of,
    margin_held_out,
    points_of,
    predict_points,
    published_baselines,
)
from lab.evaluation.sizing_rows import RowError, read_measured, read_throughputs
from lab.evaluation.sizing_shapes import ShapeQuality, judge_shapes

TARGETS = (0.95, 0.9, 0.85, 0.8)


@dataclass(frozen=True, kw_only=True)
class SizingEvaluation:
    """coverage: of the intervals per evidence. decisions: by the pessimistic end, by the likely speed and by baselines.
    models: pairs of GPU models.
    """

    jobs: int
    points: int
    errors: list[Errors]
    coverage: list[Coverage]
    decisions: list[Decisions]
    models: list[ModelPair]
    predicted: Mapping[str, Mapping[str, Mapping[str, float]]]  # low, likely, high, measured → job → slice → speed


def evaluate_slices(points: Points, models: Sequence[ModelPair] = ()) -> SizingEvaluation:
    found = predict_points(points)
    baselines = published_baselines(points)
    several = len({job.model for job in points.jobs}) > 1
    variants = {
        "as measured": found,
        "engine and memory only": predict_points(points, power=False),
        "GPU_UTIL only": predict_points(points, power=False, dram=False, coarse=True),
        "ceiling of power 10 % too high": predict_points(points, ceiling_ratio=1.1),
        "ceiling of power 10 % too low": predict_points(points, ceiling_ratio=0.9),
        "base taken for a whole card without MIG": predict_points(points, mig_was_off=True),
    }
    others = {name: one for name, one in variants.items() if one is not found}
    if several:
        others["margin of power, fitted on the other models"] = margin_held_out(points)
    ways = {"predict_speed, low": found.low, "predict_speed, likely": found.likely, **baselines}
    return SizingEvaluation(
        jobs=len(points.jobs),
        points=len(points.truth),
        errors=[
            errors_of("predict_speed, likely", found.likely, points),
            *(errors_of(f"… {name}", one.likely, points) for name, one in variants.items() if one is not found),
            errors_of("predict_speed, high", found.high, points),
            errors_of("predict_speed, low", found.low, points),
            *(errors_of(name, one, points) for name, one in baselines.items()),
        ],
        coverage=[coverage_of(name, one, points) for name, one in ({"as measured": found} | others).items()],
        decisions=[
            *(decide(name, one, points, 0.9) for name, one in ways.items()),
            *(decide("predict_speed, low", found.low, points, target) for target in TARGETS if target != 0.9),
            decide("predict_speed, low, and memory_need", found.low, points, 0.9, by_memory_need=True),
            *(decide(f"low, {name}", one.low, points, 0.9) for name, one in others.items()),
        ],
        models=list(models),
        predicted={
            "low": by_job(points, found.low),
            "likely": by_job(points, found.likely),
            "high": by_job(points, found.high),
            "measured": by_job(points, points.truth),
        },
    )


# Output


def evaluation_json(result: SizingEvaluation) -> dict[str, Any]:
    plain = {
        name: [_plain(one) for one in getattr(result, name)] for name in ("errors", "coverage", "decisions", "models")
    }
    return {"jobs": result.jobs, "points": result.points, **plain, "predicted": result.predicted}


def _plain(value: Any) -> dict[str, Any]:
    known = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    return {name: round(each, 4) if isinstance(each, float) else each for name, each in known.items()}


def print_evaluation(result: SizingEvaluation, console: Console) -> None:
    console.print(f"{result.jobs} jobs, {result.points} (job, slice) points")
    _errors("Speed on slices", result.errors, console)
    table = _table("Intervals", "evidence", "tiers", "inside", "truth ≥ low", "worst below", "mean width")
    for one in result.coverage:
        table.add_row(
            one.name, ", ".join(one.tiers), f"{one.inside_ratio:.0%}", f"{one.above_low_ratio:.0%}",
            f"{one.worst_below_low:.3f}", f"{one.mean_width:.3f}",
        )  # fmt: skip
    console.print(table)
    _decisions("The smallest slice that the prediction allows", result.decisions, console)


def _models(pairs: Sequence[ModelPair], console: Console) -> None:
    table = _table(
        "Other GPU models (no telemetry: only the span is checked)", "from", "to", "jobs", "claimed", "measured",
        "inside", "above", "below", "FP32 off by", "bandwidth off by", "'as now' off by",
    )  # fmt: skip
    for one in pairs:
        table.add_row(
            one.now, one.target, str(one.jobs), f"{one.low:.2f}–{one.high:.2f}",
            f"{one.measured_low:.2f}–{one.measured_high:.2f} ({one.measured_median:.2f})", f"{one.inside_ratio:.0%}",
            f"{one.above_ratio:.0%}", f"{one.below_ratio:.0%}", f"×{exp(one.fp32_log_error):.2f}",
            f"×{exp(one.bandwidth_log_error):.2f}", f"×{exp(one.same_log_error):.2f}",
        )  # fmt: skip
    console.print(table)


def _shapes(rows: Sequence[ShapeQuality], console: Console) -> None:
    table = _table(
        f"{rows[0].jobs} made-up jobs whose kernels are known, at a target of 0.9", "demand from", "MAE", "truth ≥ low",
        "worst below", "inside", "downsized", "broken", "worst speed", "saving found",
    )  # fmt: skip
    for one in rows:
        worst = "" if one.worst_speed is None else f"{one.worst_speed:.3f}"
        table.add_row(
            one.name, f"{one.mae:.3f}", f"{one.above_low_ratio:.1%}", f"{one.worst_below:.3f}",
            f"{one.inside_ratio:.0%}", str(one.downsized), str(one.broken), worst, f"{one.saving_found_ratio:.0%}",
        )  # fmt: skip
    console.print(table)


def _errors(title: str, rows: Sequence[Errors], console: Console) -> None:
    table = _table(title, "predictor", "MAE", "bias", "worst over-promise", "over by > 0.10", "worst model", "its MAE")
    for one in rows:
        table.add_row(
            one.name, f"{one.mae:.3f}", f"{one.bias:+.3f}", f"{one.worst_over_promise:+.3f}",
            f"{one.over_promised_ratio:.0%}", one.worst_model, f"{one.worst_model_mae:.3f}",
        )  # fmt: skip
    console.print(table)


def _decisions(title: str, rows: Sequence[Decisions], console: Console) -> None:
    table = _table(title, "by", "target", "possible", "downsized", "broken", "worst speed", "saving found")
    for one in rows:
        worst = "" if one.worst_speed is None else f"{one.worst_speed:.3f}"
        found = "" if one.saving_found_ratio is None else f"{one.saving_found_ratio:.0%}"
        table.add_row(
            one.name, f"{one.target:g}", str(one.possible), str(one.downsized), str(one.broken), worst, found
        )  # fmt: skip
    console.print(table)


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title)
    table.add_column(first)
    for other in others:
        table.add_column(other, justify="right")
    return table


@click.command()
@click.option(
    "--miso",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV of speeds on slices; may be given more than once.",
)
@click.option(
    "--card",
    default="A100-PCIE-40GB",
    show_default=True,
    help="The card where a file has no column 'card'. MISO's had a limit of 250 W.",
)
@click.option(
    "--gavel", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of Gavel's throughputs."
)
@click.option("--shapes", default=0, show_default=True, help="So many made-up jobs whose kernels are known one by one.")
@click.option("--planted", "cases", default=0, show_default=True, help="So many Nodes and Pods, right and wrong ones.")
@click.option("--seed", default=0, show_default=True, help="Of those jobs and cases.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(files: tuple[Path, ...], card: str, gavel: Path | None, shapes: int, cases: int, seed: int, form: str) -> None:
    """Predicted against measured speed, the baselines beside it, and what decisions by them would have done."""
    if not files and gavel is None and shapes <= 0 and cases <= 0:
        raise click.UsageError(
            "nothing to evaluate: name a file with --miso, a folder with --gavel, --shapes N or --planted N"
        )
    try:
        jobs = [job for file in files for job in read_measured(file, card)]
        models = judge_models(read_throughputs(gavel)) if gavel else []
    except RowError as error:
        raise click.ClickException(str(error)) from error
    shaped = judge_shapes(shapes, seed) if shapes > 0 else []
    hosts = [judge_planted(planted(cases, seed))] if cases > 0 else []
    result = evaluate_slices(points_of(jobs), models) if jobs else None
    if form == "json":
        told = evaluation_json(result) if result else {"models": [_plain(one) for one in models]}
        told |= {"shapes": [_plain(one) for one in shaped], "planted": [_plain(one) for one in hosts]}
        print(json.dumps(told, indent=1, ensure_ascii=False))
        return
    console = Console()
    if result:
        print_evaluation(result, console)
    if models:
        _models(models, console)
    if shaped:
        _shapes(shaped, console)
    for one in hosts:
        _planted(one, console)


def _planted(found: PlantedQuality, console: Console) -> None:
    title = "Planted cases: hosts that bound their Pods, and work on the video decoder"
    table = _table(title, "cases", "advised", "wrong", "missed", "overstated", "1g by the GPU alone: wrong")
    values = (found.cases, found.advised, found.wrong, found.missed, found.overstated, found.by_gpu_alone)
    table.add_row(*map(str, values))
    console.print(table)


if __name__ == "__main__":
    main()
