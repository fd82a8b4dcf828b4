"""Values as JSON, YAML and CSV, and the JSON Schema of the analysis."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from gpuwatch.facts.model.decision import Analysis, Finding, PlanItem

T = TypeVar("T")
Cell = str | float | int | datetime | None

TEXT, NUMBER, COUNT, FLAG, TIME = "string", "float64", "Int64", "boolean", "datetime64[us, UTC]"
"""What a column holds, as pandas' dtypes; each has a value for what is unknown."""


class Column(NamedTuple, Generic[T]):
    cell: Callable[[T], Cell]
    dtype: str = TEXT


Columns = Mapping[str, Column[T]]
"""Heading → the column of a CSV file and of a DataFrame. Headings have their units."""

# A spreadsheet takes a cell with this start for a formula; the last four are the full-width forms of the first.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def to_json(value: object) -> str:
    """Indented JSON of any value of the model."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def to_yaml(value: object) -> str:
    return msgspec.yaml.encode(msgspec.to_builtins(value)).decode()


def to_csv(columns: Columns[T], rows: Iterable[T], *, line_end: str = "\r\n") -> str:
    """RFC 4180. An empty cell is unknown or absent. Text that a spreadsheet would run as a formula begins with an
    apostrophe."""
    out = io.StringIO()
    # With RFC 4180's line end, a lone carriage return within a cell is quoted too.
    writer = csv.writer(out, lineterminator=line_end)
    writer.writerow(columns)
    writer.writerows([csv_cell(column.cell(row)) for column in columns.values()] for row in rows)
    return out.getvalue()


def csv_cell(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float):
        if not math.isfinite(value):
            return ""
        return f"{value:.4f}".rstrip("0").rstrip(".") if value else "0"
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return str(value)


def fields(*names: str, of: str = "", dtype: str = TEXT) -> dict[str, Column[Any]]:
    """Columns named as the fields that they show. of: the field that has them, where the row has it."""
    return {name: Column(attrgetter(f"{of}.{name}" if of else name), dtype) for name in names}


FINDINGS: Columns[Finding] = {
    **fields("id", "family", "kind"),
    "subject_kind": Column(lambda item: item.subject.kind),
    "subject": Column(lambda item: item.subject.name),
    **fields("verdict", "severity", "advice"),
    **fields("confidence_ratio", dtype=NUMBER),
    **fields("since", dtype=TIME),
    **fields("node"),
    "devices": Column(lambda item: " ".join(item.devices)),
    "pods": Column(lambda item: " ".join(item.pods)),
    **fields("gpu_hours", dtype=NUMBER),
    **fields("summary"),
}
"""A row per finding; lists are joined by spaces."""


PLAN: Columns[PlanItem] = {
    **fields("action", "target", "namespace", "pool", "gpu_model", of="candidate"),
    **fields("gpus", of="candidate", dtype=COUNT),
    **fields("admitted", dtype=FLAG),
    **fields("mode"),
    **fields("at", of="timing", dtype=TIME),
    **fields("gained_gpu_hours", "disrupted_gpu_hours", "confidence_ratio", "horizon_hours", of="score", dtype=NUMBER),
    "score": Column(lambda item: item.score.value, NUMBER),
    "refusals": Column(lambda item: " ".join(f"{each.guard}: {each.reason}" for each in item.refusals)),
    **fields("helps"),
}
"""A row per candidate."""


def analysis_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of `gpuwatch analyze -o json`."""
    return json_schema(Analysis, "analysis-v1", "gpuwatch analysis, version 1")


def json_schema(kind: type, name: str, title: str) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://gpuwatch.dev/schemas/{name}.json",
        "title": title,
        **msgspec.json.schema(kind, schema_hook=_of_any),
    }


def _of_any(kind: type) -> dict[str, Any]:
    """A change's patch has the schema of the owner's kind, which only the cluster knows."""
    if kind is object:
        return {"description": "Anything that the owner's kind allows."}
    raise NotImplementedError(kind)  # so a schema hook tells msgspec that the type is not its own
