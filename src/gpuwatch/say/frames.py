"""Tables as pandas DataFrames and Parquet, with the columns of the CSV files. Only this module imports pandas."""

import dataclasses
import io
from collections.abc import Iterable
from operator import methodcaller
from typing import TypeVar

import pandas as pd

from gpuwatch.account.fleet_cost import Allocation
from gpuwatch.facts.model.telemetry import Gap
from gpuwatch.facts.model.workload_profile import Cell, WorkloadProfile
from gpuwatch.say.machine import COUNT, FLAG, NUMBER, TIME, Column, Columns, fields

T = TypeVar("T")


def to_frame(columns: Columns[T], rows: Iterable[T]) -> pd.DataFrame:
    """A row per value, also with dtypes where there is none. Unknown is <NA>, NaN or NaT, never 0."""
    rows = tuple(rows)
    return pd.DataFrame(
        {name: pd.Series(map(column.cell, rows), dtype=column.dtype) for name, column in columns.items()}
    )


def to_parquet(columns: Columns[T], rows: Iterable[T]) -> bytes:
    """The same DataFrame as one Parquet file."""
    out = io.BytesIO()
    to_frame(columns, rows).to_parquet(out, index=False)
    return out.getvalue()


def allocation_columns(currency: str) -> Columns[Allocation]:
    return {
        **fields("pod", "namespace", "workload", "node", "pool", "gpu_model"),
        **fields("gpus", dtype=NUMBER),
        **fields("state", "use"),
        **fields("cost_per_hour", dtype=NUMBER),
        "currency": Column(lambda _: currency),
    }


PROFILES: Columns[WorkloadProfile] = {
    **fields("workload", "namespace", "container", "gpu_model", "mig_profile", of="key"),
    **fields("first_seen", "last_seen", dtype=TIME),
    **fields("run_count", "gpus_per_pod", dtype=COUNT),
    "mean_pods": Column(lambda item: item.pods, NUMBER),
    "observed_hours": Column(lambda item: item.observed_seconds / 3600, NUMBER),
    **fields("coverage_ratio", dtype=NUMBER),
    **{item.name: Column(methodcaller("mean", item.name), NUMBER) for item in dataclasses.fields(Cell)[1:]},
    **fields("memory_peak_bytes", "cpu_cores", "host_memory_bytes", dtype=NUMBER),
    "busy_from_utilisation": Column(lambda item: item.coarse_busy, FLAG),
}
GAPS: Columns[Gap] = fields("kind", "what", "detail")
