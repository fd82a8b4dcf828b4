"""Tables as pandas DataFrames and Parquet, with the columns of the CSV files. Only this module imports pandas."""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pandas as pd

from gpuwatch.cycle.fleet_cost import Allocation
from gpuwatch.model.telemetry import Gap
from gpuwatch.model.workload_profile import WorkloadProfile
from gpuwatch.report.machine import COUNT, FLAG, NUMBER, TIME, Cell, Column, Columns, fields

T = TypeVar("T")


def to_frame(columns: Columns[T], rows: Iterable[T]) -> pd.DataFrame:
    """A row per value, also with dtypes where there is none. Unknown is <NA>, NaN or NaT, never 0."""
    rows = tuple(rows)
    return pd.DataFrame(
        {
            name: pd.Series([_value(column.cell(row)) for row in rows], dtype=column.dtype)
            for name, column in columns.items()
        }
    )


def to_parquet(columns: Columns[T], rows: Iterable[T]) -> bytes:
    """The same DataFrame as one Parquet file."""
    out = io.BytesIO()
    to_frame(columns, rows).to_parquet(out, index=False)
    return out.getvalue()


def parquets(tables: Mapping[str, tuple[Columns[Any], Sequence[Any]]]) -> dict[str, bytes]:
    """File name → content."""
    return {f"{name}.parquet": to_parquet(columns, rows) for name, (columns, rows) in tables.items()}


def _value(cell: Cell) -> Cell:
    """Enums as plain text; pandas would keep them."""
    return str(cell) if isinstance(cell, str) else cell


def allocation_columns(currency: str) -> Columns[Allocation]:
    return {
        **fields("pod", "namespace", "workload", "node", "pool", "gpu_model"),
        **fields("gpus", dtype=NUMBER),
        **fields("state", "use"),
        **fields("cost_per_hour", dtype=NUMBER),
        "currency": Column(lambda _: currency),
        "devices": Column(lambda item: " ".join(item.devices)),
    }


def _mean(signal: str) -> Column[WorkloadProfile]:
    return Column(lambda item: item.mean(signal), NUMBER)


def _memory_peak(profile: WorkloadProfile) -> float | None:
    return max((run.peak_bytes for run in profile.runs if run.peak_bytes is not None), default=None)


PROFILES: Columns[WorkloadProfile] = {
    **fields("workload", "namespace", "container", "gpu_model", "mig_profile", of="key"),
    **fields("first_seen", "last_seen", dtype=TIME),
    **fields("run_count", "gpus_per_pod", dtype=COUNT),
    **fields("pods", dtype=NUMBER),
    "observed_hours": Column(lambda item: item.observed_seconds / 3600, NUMBER),
    **fields("coverage_ratio", dtype=NUMBER),
    **{name: _mean(name) for name in ("busy_ratio", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio")},
    **{name: _mean(name) for name in ("power_watts", "pcie_bytes_per_second", "nvlink_bytes_per_second")},
    "memory_peak_bytes": Column(_memory_peak, NUMBER),
    **fields("cpu_cores", "host_memory_bytes", dtype=NUMBER),
    **fields("coarse_busy", dtype=FLAG),
}
GAPS: Columns[Gap] = fields("kind", "what", "detail")
