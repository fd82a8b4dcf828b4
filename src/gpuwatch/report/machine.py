"""The Analysis as JSON, YAML and CSV, and the JSON Schema of the first two."""

import csv
import io
from typing import Any

import msgspec

from gpuwatch.model.decision import Analysis, Finding

SCHEMA_ID = "https://gpuwatch.dev/schemas/analysis-v1.json"


def to_json(value: object) -> str:
    """Indented JSON of any value of the model."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def to_yaml(value: object) -> str:
    return msgspec.yaml.encode(msgspec.to_builtins(value)).decode()


_FINDING_COLUMNS = (
    "id",
    "family",
    "kind",
    "subject_kind",
    "subject",
    "verdict",
    "severity",
    "advice",
    "confidence_ratio",
    "since",
    "node",
    "devices",
    "pods",
    "gpu_hours",
    "summary",
)


# A spreadsheet takes a cell with this start for a formula; the last four are the full-width forms of the first.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def csv_text(text: str) -> str:
    """With an apostrophe before what a spreadsheet would run as a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def findings_to_csv(findings: tuple[Finding, ...]) -> str:
    """One line per finding, lists joined by spaces, no formulas; the header is fixed."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_FINDING_COLUMNS)
    for item in findings:
        cells = (
            item.id,
            item.family,
            item.kind,
            item.subject.kind,
            item.subject.name,
            item.verdict,
            item.severity,
            item.advice,
            f"{item.confidence_ratio:.3f}",
            item.since.isoformat() if item.since else "",
            item.node or "",
            " ".join(item.devices),
            " ".join(item.pods),
            f"{item.gpu_hours:.2f}",
            item.summary,
        )
        writer.writerow(csv_text(cell) for cell in cells)
    return out.getvalue()


def analysis_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of `gpuwatch analyze --format json`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "gpuwatch analysis, version 1",
        **msgspec.json.schema(Analysis),
    }
