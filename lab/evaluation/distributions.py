"""Compares the A100s of simulated fleets with those of a real cluster: `python -m lab.evaluation.distributions`.

The reference is the Kalos cluster of the Acme trace (A100-80GB, March to August 2023, 15 s; CC BY 4.0), given as CDFs
in a CSV with the columns cluster, metric, value, cdf_pct. Where the file is not given, its quantiles below are used.
"""

import csv
import gzip
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from gpuwatch.sources.telemetry.series import is_stale
from lab.simulate.fleet import build_fleet
from lab.simulate.plan import FleetPlan

QUANTILES = (5, 25, 50, 75, 90, 99)

# Quantiles of the Kalos CDFs at QUANTILES, in percent, watts and degrees Celsius.
KALOS: dict[str, tuple[float, ...]] = {
    "gpu_util_pct": (0, 0, 98, 99, 100, 100),
    "sm_active_pct": (0, 0, 33.0, 72.8, 91.3, 99.0),
    "gpu_power_w": (61.9, 66.4, 101.3, 371.7, 403.6, 439.7),
    "gpu_temp_c": (25, 30, 40, 51, 58, 66),
    "gpu_mem_used_pct": (0, 0, 75.3, 77.4, 88.1, 97.3),
}
_METRICS = {
    "DCGM_FI_DEV_GPU_UTIL": ("gpu_util_pct", 1.0),
    "DCGM_FI_PROF_SM_ACTIVE": ("sm_active_pct", 100.0),
    "DCGM_FI_DEV_POWER_USAGE": ("gpu_power_w", 1.0),
    "DCGM_FI_DEV_GPU_TEMP": ("gpu_temp_c", 1.0),
    "DCGM_FI_DEV_FB_USED": ("gpu_mem_used_pct", 100.0 / 81304),
}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Quantiles of one quantity (QUANTILES), in the fleet and in the reference, and the shares of zeros."""

    quantity: str
    simulated: tuple[float, ...]
    reference: tuple[float, ...]
    simulated_zero_ratio: float
    reference_zero_ratio: float


def compare(seeds: Sequence[int], reference: Path | None = None, gpus: int = 64, days: float = 7) -> list[Comparison]:
    """Pools the A100s of these fleets (MIG cards left out, as the reference has none)."""
    pooled: dict[str, list[np.ndarray[tuple[int], np.dtype[np.float64]]]] = defaultdict(list)
    for seed in seeds:
        plan = FleetPlan(
            seed=seed,
            end=datetime(2026, 3, 15, 12, tzinfo=UTC),
            gpus=gpus,
            days=days,
            interval_seconds=120,
            extended_share=1.0,
        )
        for series in build_fleet(plan).series():
            if series.metric in _METRICS and "A100" in series.labels["modelName"] and "GPU_I_ID" not in series.labels:
                quantity, scale = _METRICS[series.metric]
                pooled[quantity].append(series.values[~is_stale(series.values)] * scale)
    known = {name: _zero_and_quantiles(*points) for name, points in read_cdfs(reference).items()} if reference else {}
    found = []
    for quantity, quantiles in KALOS.items():
        values = np.concatenate(pooled[quantity])
        zero, expected = known.get(quantity, (0.26 if quantiles[0] == 0 else 0.0, quantiles))
        found.append(
            Comparison(
                quantity=quantity,
                simulated=tuple(float(q) for q in np.percentile(values, QUANTILES)),
                reference=expected,
                simulated_zero_ratio=float(np.mean(values <= 0)),
                reference_zero_ratio=zero,
            )
        )
    return found


def read_cdfs(path: Path, cluster: str = "kalos") -> dict[str, tuple[list[float], list[float]]]:
    """Quantity → values and their cumulated percents, from a CSV (perhaps gzipped) as described above."""
    points: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row["cluster"] == cluster:
                points[row["metric"]][0].append(float(row["value"]))
                points[row["metric"]][1].append(float(row["cdf_pct"]))
    return dict(points)


def _zero_and_quantiles(values: list[float], percents: list[float]) -> tuple[float, tuple[float, ...]]:
    zero = sum(1 for value in values if value <= 0) / len(values)
    return zero, tuple(float(np.interp(q, percents, values)) for q in QUANTILES)


@click.command()
@click.option("--seeds", default="0-3", show_default=True, help="First and last seed.")
@click.option("--reference", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="CSV of CDFs.")
@click.option("--gpus", default=64, show_default=True)
@click.option("--days", default=7.0, show_default=True)
def main(seeds: str, reference: Path | None, gpus: int, days: float) -> None:
    """Prints quantiles of simulated A100 telemetry beside those of a real cluster."""
    first, _, last = seeds.partition("-")
    table = Table(title="A100 telemetry: simulated / Acme Kalos")
    table.add_column("quantity")
    table.add_column("zero", justify="right")
    for quantile in QUANTILES:
        table.add_column(f"p{quantile}", justify="right")
    for row in compare(range(int(first), int(last or first) + 1), reference, gpus, days):
        pairs = [f"{mine:.0f} / {real:.0f}" for mine, real in zip(row.simulated, row.reference, strict=True)]
        zero = f"{row.simulated_zero_ratio:.0%} / {row.reference_zero_ratio:.0%}"
        table.add_row(row.quantity, zero, *pairs)
    Console().print(table)


if __name__ == "__main__":
    main()
