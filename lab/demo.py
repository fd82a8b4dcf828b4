"""`gpuwatch demo` on another fleet, and the recording that `gpuwatch demo` shows: `python -m lab.demo --seed 3`.

`--pack` writes the recording into the package. To be small, it has 32 GPUs, five days and a sample each two minutes;
numbers that are mostly noise keep three significant digits, and the energy counter, which nothing reads, is left out.
"""

import tarfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import msgspec
import numpy as np

from gpuwatch.app.cli import demo
from gpuwatch.app.cli.planted import Planted
from gpuwatch.sources.telemetry.series import RecordedSeries
from lab.simulate.fleet import SimulatedFleet, build_fleet
from lab.simulate.moments import moments_of
from lab.simulate.plan import FleetPlan
from lab.simulate.recording import write_recording
from lab.simulate.writing import write_cluster

END = datetime(2026, 3, 2, 12, tzinfo=UTC)
"""The fleet's last moment; fixed, so that a seed gives the same days every time."""
PACKAGED = Path(__file__).parents[1] / "src/gpuwatch/app/cli/demo_fleet"

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
    """planted.json, and the cluster at each moment; the caller writes telemetry.parquet. Raises OSError."""
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
        cluster = folder / "moments" / demo.stamp(at)
        cluster.mkdir(parents=True, exist_ok=True)
        write_cluster(fleet, cluster, at)
    (folder / "planted.json").write_bytes(msgspec.json.format(msgspec.json.encode(planted), indent=1) + b"\n")


def _few_digits(series: RecordedSeries) -> RecordedSeries:
    """The noisy numbers with three significant digits."""
    if series.metric not in _NOISY:
        return series
    values = np.array(series.values, np.float64)
    real = np.isfinite(values) & (values != 0)
    scale = 10.0 ** (2 - np.floor(np.log10(np.abs(values[real]))))
    values[real] = np.round(values[real] * scale) / scale
    return replace(series, values=values)


def pack(fleet: SimulatedFleet, target: Path) -> None:
    """Writes telemetry.parquet, planted.json and moments.tar.xz. The same fleet gives the same files with the same
    versions of the libraries."""
    target.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write(fleet, folder)
        # A quarter smaller than with the usual level, for ten times its time.
        write_recording(target / "telemetry.parquet", kept_series(fleet), compression_level=19)
        (target / "planted.json").write_bytes((folder / "planted.json").read_bytes())
        with tarfile.open(target / "moments.tar.xz", "w:xz", preset=9) as archive:
            for path in sorted((folder / "moments").glob("*/*.json")):
                item = tarfile.TarInfo(str(path.relative_to(folder)))
                item.size = path.stat().st_size
                with path.open("rb") as content:
                    archive.addfile(item, content)


def kept_series(fleet: SimulatedFleet) -> Iterator[RecordedSeries]:
    """What the packaged recording has of the fleet's series."""
    return (_few_digits(one) for one in fleet.series() if one.metric != _UNREAD)


@click.command()
@click.option("--seed", type=int, default=7, show_default=True, help="Another fleet with each seed.")
@click.option("--gpus", type=click.IntRange(8, 4096), default=64, show_default=True)
@click.option("--days", type=click.FloatRange(0.5, 60), default=7.0, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), default=Path("out/demo"), show_default=True)
@click.option("--pack", "packs", is_flag=True, help="Write the recording of `gpuwatch demo`; no other option counts.")
def main(seed: int, gpus: int, days: float, folder: Path, packs: bool) -> None:
    """Simulate a fleet, and show what gpuwatch finds of what was planted in it."""
    if packs:
        pack(packaged_fleet(), PACKAGED)
        return
    fleet = simulated(seed, gpus, days)
    demo.emptied(folder)
    write(fleet, folder)
    write_recording(folder / "telemetry.parquet", fleet.series())
    demo.show(folder)


if __name__ == "__main__":
    main()
