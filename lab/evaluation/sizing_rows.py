"""Jobs whose speed was measured on slices or on several GPU models: what the sizing evaluation is held against.

Slices: CSV with the columns of MISO's measurements, `model,batch,util_gpu_pct,util_mem_pct,fb_used_mib,power_w` and
`speed_SLICE` per slice (a kind such as `3g`, or a profile's name), relative to the slice that has 1.0. An empty speed:
it does not fit. Optional: `card` (a name of the catalog), `sm_active_pct`, `dram_active_pct`, `tensor_active_pct`.

Models: Gavel's throughputs, `gpu_type,job,scale_factor,steps_per_s`, also gzipped.
"""

import csv
import gzip
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from gpuwatch.facts.catalog.gpus import Gpu, find_gpu
from gpuwatch.facts.catalog.mig import MigProfile, geometry
from gpuwatch.facts.model.workload_profile import Cell, MemoryRun, PowerEnvelope, WorkloadKey, WorkloadProfile
from gpuwatch.size.capability import Capability, capability_of
from gpuwatch.size.speed import SpeedPolicy

_NEEDED = ("model", "batch", "util_gpu_pct", "util_mem_pct", "fb_used_mib", "power_w")
_THEN = datetime(2026, 1, 1, tzinfo=UTC)
_MIB = 2**20


class RowError(ValueError):
    """A file of measurements that cannot be read; names file, line and what to do."""


@dataclass(frozen=True, kw_only=True)
class MeasuredJob:
    """One job as it ran on the whole card, and its speed on each slice that it fits into."""

    gpu: Gpu
    model: str
    batch: str
    busy: float
    memory_util: float
    power_watts: float
    memory_bytes: float
    sm_active: float | None
    dram_active: float | None
    tensor_active: float | None
    speeds: Mapping[str, float]  # profile's name → speed
    base: str  # the profile with speed 1

    @property
    def name(self) -> str:
        return f"{self.gpu.name} {self.model}/{self.batch}"


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Steps per second of one job on one GPU."""

    gpu_type: str
    job: str
    steps_per_second: float


def read_measured(path: Path, card: str) -> list[MeasuredJob]:
    """card: the catalog's name of the GPU where the file has no column `card`. RowError for what cannot be read."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        columns = rows.fieldnames or ()
        missing = [column for column in _NEEDED if column not in columns]
        if missing:
            raise RowError(f"{path}, line 1: the columns {', '.join(missing)} are missing")
        jobs = []
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            try:
                jobs.append(_job(row, row.get("card") or card))
            except ValueError as error:
                raise RowError(f"{where}: {error}") from error
    if not jobs:
        raise RowError(f"{path}: no rows")
    return jobs


def _job(row: Mapping[str, str], card: str) -> MeasuredJob:
    gpu = find_gpu(card)
    if gpu is None:
        raise ValueError(f"{card!r} is no GPU of the catalog; name one with --card or in a column 'card'")
    speeds = {}
    for column, value in row.items():
        if column.startswith("speed_") and value and value.strip():
            speeds[_profile(gpu, column.removeprefix("speed_")).name] = _number(row, column)
    bases = [name for name, speed in speeds.items() if speed == 1.0]
    if not bases:
        raise ValueError("no slice has the speed 1.0, so nothing says what the speeds are relative to")
    return MeasuredJob(
        gpu=gpu,
        model=row["model"],
        batch=row["batch"],
        busy=_number(row, "util_gpu_pct") / 100,
        memory_util=_number(row, "util_mem_pct") / 100,
        power_watts=_number(row, "power_w"),
        memory_bytes=_number(row, "fb_used_mib") * _MIB,
        sm_active=_optional(row, "sm_active_pct"),
        dram_active=_optional(row, "dram_active_pct"),
        tensor_active=_optional(row, "tensor_active_pct"),
        speeds=speeds,
        base=bases[-1],
    )


def _profile(gpu: Gpu, slice_: str) -> MigProfile:
    shape = geometry(gpu.mig_family)
    if shape is None:
        raise ValueError(f"{gpu.name} cannot be cut into slices")
    found = shape.profile(slice_)
    if found is None:
        plain = [p for p in shape.profiles if p.name in shape.plain_profiles and p.name.startswith(f"{slice_}.")]
        found = plain[0] if plain else None
    if found is None:
        raise ValueError(f"{gpu.name} has no slice {slice_!r}; it has {', '.join(shape.plain_profiles)}")
    return found


def _number(row: Mapping[str, str], column: str) -> float:
    try:
        return float(row[column])
    except (TypeError, ValueError):
        raise ValueError(f"column {column!r} is {row[column]!r}; expected a number") from None


def _optional(row: Mapping[str, str], column: str) -> float | None:
    return _number(row, column) / 100 if (row.get(column) or "").strip() else None


def measured_on(job: MeasuredJob) -> Capability:
    """One instance of the whole card: it has the SMs that MIG leaves, and the board's power is its own."""
    return replace(capability_of(job.gpu, job.base), mig_profile="")


def envelopes(jobs: Iterable[MeasuredJob], peak_ratio: float) -> dict[str, PowerEnvelope]:
    """As the fleet's boards were seen. None of these was seen idle, so the floor is left to the catalog."""
    seen: dict[str, float] = {}
    for job in jobs:
        seen[job.gpu.name] = max(seen.get(job.gpu.name, 0.0), job.power_watts)
    return {
        name: PowerEnvelope(gpu_model=name, floor_watts=None, ceiling_watts=watts * peak_ratio, devices=1)
        for name, watts in seen.items()
    }


def profile_of(job: MeasuredJob, *, dram: bool = True, power: bool = True, coarse: bool = False) -> WorkloadProfile:
    """The job as a profile of one window. Without DRAM activity the driver's memory utilisation stands in for it: the
    share of time in which memory was used at all, which is no less, so it is not held against a practical peak."""
    traffic = job.dram_active if job.dram_active is not None else SpeedPolicy().dram_peak_ratio * job.memory_util
    run = MemoryRun(
        pod="jobs/job",
        first_seen=_THEN,
        last_seen=_THEN,
        peak_bytes=job.memory_bytes,
        at_start_bytes=0.0,
        capacity_bytes=float(job.gpu.memory_bytes),
        device_seconds=3600.0,
    )
    return WorkloadProfile(
        key=WorkloadKey(f"Job/jobs/{job.model}-{job.batch}", "main", job.gpu.name),
        as_of=_THEN,
        half_life_seconds=86400.0,
        cells=(
            Cell(
                weight_seconds=3600.0,
                busy_ratio=job.busy,
                sm_active_ratio=job.sm_active if power else None,
                tensor_active_ratio=job.tensor_active if power else None,
                dram_active_ratio=traffic if dram else None,
                power_watts=job.power_watts if power else None,
            ),
        ),
        runs=(run,),
        run_count=1,
        first_seen=_THEN,
        last_seen=_THEN,
        observed_seconds=3600.0,
        expected_seconds=3600.0,
        coarse_busy=coarse,
    )


def read_throughputs(folder: Path) -> list[Throughput]:
    """All single-GPU rows of the `*isolated*.csv[.gz]` of a folder; zero steps (does not fit) are left out."""
    files = sorted(folder.glob("*isolated*.csv*"))
    if not files:
        raise RowError(f"{folder}: no file is named *isolated*.csv or *isolated*.csv.gz")
    found = []
    for path in files:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
        for row in csv.DictReader(text.splitlines()):
            steps = float(row["steps_per_s"])
            if row["scale_factor"] == "1" and steps > 0 and not row["gpu_type"].endswith("unconsolidated"):
                job = f"{path.name.partition('_')[0]}: {row['job']}"
                found.append(Throughput(gpu_type=row["gpu_type"], job=job, steps_per_second=steps))
    return found
