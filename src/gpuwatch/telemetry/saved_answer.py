"""Reads saved JSON answers of Prometheus' HTTP API: a vector or a matrix of series with their names.

A vector has the time of the query; its samples may be up to five minutes older.
"""

from typing import Literal

import msgspec
import numpy as np

from gpuwatch.telemetry.openmetrics import Problems
from gpuwatch.telemetry.series import RecordedSeries


class _SavedResult(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] | None = None  # native histograms have neither


class _Data(msgspec.Struct):
    result_type: Literal["vector", "matrix"] = msgspec.field(name="resultType")
    result: list[_SavedResult]


class _Answer(msgspec.Struct):
    status: str
    error: str = ""
    data: _Data | None = None


def parse_answer(content: bytes) -> tuple[list[RecordedSeries], Problems]:
    """The series of one answer; problems have the result's number, from 1. Raises ValueError for any other content."""
    try:
        answer = msgspec.json.decode(content, type=_Answer)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not an answer of /api/v1/query or /api/v1/query_range: {error}") from None
    if answer.data is None:
        raise ValueError(f"Prometheus answered with {answer.status}: {answer.error or 'no data'}")
    problems = Problems()
    series: list[RecordedSeries] = []
    for number, result in enumerate(answer.data.result, 1):
        metric = result.metric.pop("__name__", "")
        samples = result.values or ([result.value] if result.value else [])
        try:
            values = np.array([float(value) for _, value in samples], np.float64)
        except ValueError as error:
            problems.add(number, f"the result is skipped: {error}")
            continue
        times_ms = np.array([round(time * 1000) for time, _ in samples], np.int64)
        if not metric:
            problems.add(number, "a result without metric name is skipped; save the answer of a plain selector")
        elif not samples:
            problems.add(number, f"{metric} is skipped: it has no samples that are numbers")
        else:
            series.append(RecordedSeries(metric, result.metric, times_ms, values))
    return series, problems
