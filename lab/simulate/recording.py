"""Writes recordings, as `gpuwatch.sources.telemetry.recording_file` reads them."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpuwatch.sources.telemetry.recording_file import COLUMNS, METADATA_KEY, VERSION
from gpuwatch.sources.telemetry.series import RecordedSeries, is_stale

_ROW_GROUP_SAMPLES = 8_000_000  # 128 MB in memory


def write_recording(path: Path, series: Iterable[RecordedSeries], compression_level: int | None = None) -> None:
    """Writes series, grouped by metric, to a new file that replaces `path` when complete. Holds one row group in memory
    at a time. Raises ValueError for series not grouped by metric, a series that comes twice, and times that do not
    rise; OSError where the file cannot be written. compression_level: of zstd."""
    schema = pa.schema(COLUMNS, metadata={METADATA_KEY: json.dumps({"version": VERSION}).encode()})
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with pq.ParquetWriter(
            unfinished,
            schema,
            compression="zstd",
            compression_level=compression_level,
            use_dictionary=["metric", "labels.key_value.key", "labels.key_value.value"],
            # PLAIN: a dictionary may merge NaN values that differ in their bits.
            column_encoding={"times.list.element": "DELTA_BINARY_PACKED", "values.list.element": "PLAIN"},
            write_statistics=["metric", "first_ms", "last_ms"],
        ) as writer:
            for rows in _row_groups(series):
                writer.write_table(_table(rows, schema), row_group_size=len(rows))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _row_groups(series: Iterable[RecordedSeries]) -> Iterator[list[RecordedSeries]]:
    written: set[str] = set()
    for metric, members in groupby(series, key=lambda one: one.metric):
        if metric in written:
            raise ValueError(f"series of {metric} come in two places: sort the series by metric")
        written.add(metric)
        known: set[frozenset[tuple[str, str]]] = set()
        rows: list[RecordedSeries] = []
        size = 0
        for one in members:
            identity = frozenset((name, value) for name, value in one.labels.items() if value)
            if identity in known:
                raise ValueError(f"{metric}{dict(one.labels)} comes twice: join its samples first")
            known.add(identity)
            if not one.times_ms.size:
                continue
            if one.times_ms.shape != one.values.shape or not (np.diff(one.times_ms) > 0).all():
                raise ValueError(f"{metric}{dict(one.labels)}: times must rise and be as many as the values")
            if rows and size + one.times_ms.size > _ROW_GROUP_SAMPLES:
                yield rows
                rows, size = [], 0
            rows.append(one)
            size += one.times_ms.size
        if rows:
            yield rows


def _table(rows: Sequence[RecordedSeries], schema: pa.Schema) -> pa.Table:
    offsets = pa.array(np.concatenate(([0], np.cumsum([one.times_ms.size for one in rows]))), pa.int32())
    real = [one.times_ms[~is_stale(np.asarray(one.values, np.float64))] for one in rows]
    times = np.concatenate([np.asarray(one.times_ms, np.int64) for one in rows])
    values = np.concatenate([np.asarray(one.values, np.float64) for one in rows])
    metrics = pa.array([one.metric for one in rows]).dictionary_encode()
    labels = [[(name, value) for name, value in sorted(one.labels.items()) if value] for one in rows]
    return pa.Table.from_arrays(
        [
            metrics,
            pa.array(labels, schema.field("labels").type),
            pa.array([int(one[0]) if one.size else None for one in real], pa.int64()),
            pa.array([int(one[-1]) if one.size else None for one in real], pa.int64()),
            pa.ListArray.from_arrays(offsets, pa.array(times)),
            pa.ListArray.from_arrays(offsets, pa.array(values)),
        ],
        schema=schema,
    )
