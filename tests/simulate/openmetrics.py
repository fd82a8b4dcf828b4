"""A simulated fleet as OpenMetrics, for a real Prometheus."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gpuwatch.sources.telemetry.series import RecordedSeries, is_stale
from lab.simulate.fleet import SimulatedFleet


def write_openmetrics(fleet: SimulatedFleet, path: Path) -> None:
    """OpenMetrics text with timestamps for `promtool tsdb create-blocks-from openmetrics FILE DIR`.

    Text cannot carry staleness markers, so they are left out: a series that ended answers for five more minutes.
    A line takes some 400 bytes and promtool reads the file once per block, so this is for hours of a small fleet.
    Raises OSError where the file cannot be written.
    """
    with path.open("w", encoding="utf-8") as stream:
        for series in fleet.series():
            stream.writelines(_lines(series))
        stream.write("# EOF\n")


def _lines(series: RecordedSeries) -> Iterator[str]:
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in series.labels.items())
    kept = ~is_stale(np.ascontiguousarray(series.values))
    for time_ms, value in zip(series.times_ms[kept].tolist(), series.values[kept].tolist(), strict=True):
        yield f"{series.metric}{{{labels}}} {value!r} {time_ms / 1000!r}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
