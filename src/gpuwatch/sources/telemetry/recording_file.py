"""Recordings as Parquet files: one row per series, and separate row groups for each metric, which can be read alone.

Columns: metric (dictionary string), labels (map, without `__name__`), first_ms and last_ms (Unix milliseconds of the
first and last sample other than a staleness marker; null without one), times (list of Unix milliseconds, rising),
values (list of doubles, staleness markers kept as bits). The schema's metadata holds one JSON object under
`gpuwatch.recording`: version. The laboratory writes them (`lab/simulate/recording.py`).
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpuwatch.facts.model.plain_text import plain_key
from gpuwatch.sources.telemetry.samples import TelemetryError
from gpuwatch.sources.telemetry.series import IntArray, MetricSamples, stacked

VERSION = 1
MAGIC = b"PAR1"
METADATA_KEY = b"gpuwatch.recording"

COLUMNS = [
    ("metric", pa.dictionary(pa.int32(), pa.string())),
    ("labels", pa.map_(pa.string(), pa.string())),
    ("first_ms", pa.int64()),
    ("last_ms", pa.int64()),
    ("times", pa.list_(pa.int64())),
    ("values", pa.list_(pa.float64())),
]


class RecordingFile:
    """A Parquet recording, read metric by metric on demand. Raises TelemetryError where the file is not one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._readable():
            self._file = pq.ParquetFile(path)
        self._check()
        self.spans_ms: dict[str, tuple[int, int] | None] = {}
        self._groups: dict[str, list[int]] = {}
        # A device's metrics mostly have the same labels and share one mapping.
        self._mappings: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
        self._labels: dict[str, tuple[Mapping[str, str], ...]] = {}
        self._index()

    def read(self, metric: str) -> MetricSamples:
        if metric not in self._groups:
            return stacked((), ())
        with self._readable():
            table = self._file.read_row_groups(self._groups[metric], columns=["times", "values"])
            if metric not in self._labels:
                column = self._file.read_row_groups(self._groups[metric], columns=["labels"])["labels"]
                self._labels[metric] = tuple(
                    self._mappings.setdefault(tuple(pairs), {name: plain_key(value) for name, value in pairs})
                    for pairs in column.to_pylist()
                )
        starts, times_ms = _flat(table["times"], np.dtype(np.int64))
        value_starts, values = _flat(table["values"], np.dtype(np.float64))
        falls = np.diff(times_ms) <= 0
        begins = starts[(starts > 0) & (starts < times_ms.size)]
        falls[begins - 1] = False  # the next series starts again at an earlier time
        if not np.array_equal(starts, value_starts) or falls.any():
            raise TelemetryError(f"{self._path}: the samples of {metric} are damaged; record or capture them again")
        return MetricSamples(self._labels[metric], starts, times_ms, values)

    def _check(self) -> None:
        stated = (self._file.schema_arrow.metadata or {}).get(METADATA_KEY)
        if stated is None:
            raise TelemetryError(
                f"{self._path} is Parquet but no recording of gpuwatch; give a file that gpuwatch wrote, "
                "or OpenMetrics text"
            )
        about = json.loads(stated)
        if about.get("version") != VERSION:
            raise TelemetryError(
                f"{self._path} is a recording of version {about.get('version')}, and this gpuwatch reads version "
                f"{VERSION}; read it with a newer gpuwatch, or record it again with this one"
            )
        if [(field.name, field.type) for field in self._file.schema_arrow] != COLUMNS:
            raise TelemetryError(
                f"{self._path} does not have the columns of a recording, {', '.join(name for name, _ in COLUMNS)}; "
                "it was changed by another program: record or capture it again"
            )

    def _index(self) -> None:
        for number in range(self._file.metadata.num_row_groups):
            group = self._file.metadata.row_group(number)
            columns = {group.column(index).path_in_schema: group.column(index) for index in range(group.num_columns)}
            metric, first, last = (columns[name].statistics for name in ("metric", "first_ms", "last_ms"))
            if metric is None or metric.min != metric.max:
                raise TelemetryError(
                    f"{self._path}: row group {number} is not of one metric; "
                    "it was changed by another program: record or capture it again"
                )
            self._groups.setdefault(metric.min, []).append(number)
            spans = [span] if (span := self.spans_ms.get(metric.min)) else []
            if first is not None and first.has_min_max:
                spans.append((first.min, last.max))
            self.spans_ms[metric.min] = (min(s[0] for s in spans), max(s[1] for s in spans)) if spans else None

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise TelemetryError(
                f"{self._path} is cut off or damaged ({error}); copy it again, or record or capture it again"
            ) from error


def _flat(lists: pa.ChunkedArray, kind: np.dtype[Any]) -> tuple[IntArray, npt.NDArray[Any]]:
    """Start of each list, then the end; and all elements in one array, not copied where there is one chunk."""
    chunks = [chunk.flatten().to_numpy() for chunk in lists.chunks]
    flat = chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, kind), *chunks])
    lengths = [np.asarray(pc.fill_null(pc.list_value_length(chunk), 0), np.int64) for chunk in lists.chunks]
    return np.concatenate(([0], np.cumsum(np.concatenate(lengths)))).astype(np.int64), flat
