"""Values as JSON, YAML and CSV, and the JSON Schema of the analysis."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from gpuwatch.model.decision import Analysis, Finding

T = TypeVar("T")
Cell = str | float | int | datetime | None
Columns = Mapping[str, Callable[[T], Cell]]
"""Heading → the cell of a row."""

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
    writer.writerows([csv_cell(value(row)) for value in columns.values()] for row in rows)
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


def fields(*names: str, of: str = "") -> dict[str, Callable[[Any], Any]]:
    """Columns named as the fields that they show. of: the field that has them, where the row has it."""
    return {name: attrgetter(f"{of}.{name}" if of else name) for name in names}


def findings_to_csv(findings: tuple[Finding, ...]) -> str:
    """One line per finding, lists joined by spaces; the header is fixed."""
    columns: Columns[Finding] = {
        **fields("id", "family", "kind"),
        "subject_kind": lambda item: item.subject.kind,
        "subject": lambda item: item.subject.name,
        **fields("verdict", "severity", "advice"),
        "confidence_ratio": lambda item: f"{item.confidence_ratio:.3f}",
        **fields("since", "node"),
        "devices": lambda item: " ".join(item.devices),
        "pods": lambda item: " ".join(item.pods),
        "gpu_hours": lambda item: f"{item.gpu_hours:.2f}",
        **fields("summary"),
    }
    return to_csv(columns, findings, line_end="\n")


def analysis_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of `gpuwatch analyze --format json`."""
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
