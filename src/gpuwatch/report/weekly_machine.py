"""The weekly report for machines: JSON with its schema, and CSV files for spreadsheets. Complete, never cut."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from gpuwatch.model.weekly import WeeklyReport
from gpuwatch.report.machine import to_json
from gpuwatch.report.sizing_tables import patch_yaml
from gpuwatch.report.weekly_words import busy_gpu_hours, busy_ratio

WEEKLY_SCHEMA_ID = "https://gpuwatch.dev/schemas/weekly-v1.json"

# A spreadsheet takes a cell that begins so for a formula; the last four are the full-width forms of the first.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def weekly_json(report: WeeklyReport) -> str:
    """The whole report, indented; null is unknown."""
    return to_json(report)


def weekly_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of `weekly_json`; docs/weekly-v1.schema.json holds it."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": WEEKLY_SCHEMA_ID,
        "title": "gpuwatch weekly report, version 1",
        **msgspec.json.schema(WeeklyReport, schema_hook=_of_any),
    }


def _of_any(kind: type) -> dict[str, Any]:
    """A change's patch is of the owner's kind, whose schema is the cluster's."""
    if kind is object:
        return {"description": "Anything that the owner's kind allows."}
    raise NotImplementedError(kind)


def weekly_csvs(report: WeeklyReport) -> Mapping[str, str]:
    """File name → text. Units stand in the names of the columns, an empty cell is unknown or not there, and text that
    a spreadsheet would run as a formula begins with an apostrophe."""
    return {
        "workloads.csv": _csv(_WORKLOAD_COLUMNS, _workloads(report)),
        "teams.csv": _csv(_TEAM_COLUMNS, _teams(report)),
        "recommendations.csv": _csv(_RECOMMENDATION_COLUMNS, _recommendations(report)),
        "actions.csv": _csv(_ACTION_COLUMNS, _actions(report)),
    }


_Cell = str | float | int | datetime | None


def _csv(columns: Sequence[str], rows: Iterable[Sequence[_Cell]]) -> str:
    out = io.StringIO()
    # RFC 4180; with this line end, a lone carriage return within a cell is quoted too.
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: _Cell) -> str:
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


def _whole(size: float | None) -> int | None:
    return None if size is None else round(size)


_WORKLOAD_COLUMNS = (
    "workload",
    "namespace",
    "gpu_model",
    "allocated_gpu_hours",
    "busy_ratio",
    "sm_active_ratio",
    "memory_peak_bytes",
    "cost",
    "saving",
    "currency",
    "saving_gpu_hours",
    "idle_gpu_hours",
    "advice",
    "advised_target",
    "projected_saving_per_week",
    "projected_saving_gpu_hours_per_week",
    "reason",
    "resolve",
)


def _workloads(report: WeeklyReport) -> Iterable[Sequence[_Cell]]:
    """advice: 'change', the kind of an abstention, or 'not_profiled'."""
    for item in report.workloads:
        advised, withheld = item.recommendation, item.abstention
        yield (
            item.workload,
            item.namespace,
            item.gpu_model,
            item.allocated_gpu_hours,
            item.busy_ratio,
            item.sm_active_ratio,
            _whole(item.memory_peak_bytes),
            item.cost,
            item.saving,
            report.currency,
            item.saving_gpu_hours,
            item.idle_gpu_hours,
            "change" if advised else str(withheld.kind) if withheld else "not_profiled",
            advised.chosen.target.name if advised else None,
            advised.chosen.projected_saving_per_week if advised else None,
            advised.chosen.projected_saving_gpu_hours_per_week if advised else None,
            advised.reason if advised else withheld.reason if withheld else None,
            withheld.resolve if withheld else None,
        )


_TEAM_COLUMNS = (
    "namespace",
    "allocated_gpu_hours",
    "busy_gpu_hours",
    "busy_ratio",
    "sm_gpu_hours",
    "unknown_gpu_hours",
    "idle_gpu_hours",
    "lost_gpu_hours",
    "cost",
    "wasted_cost",
    "saving",
    "projected_saving_per_week",
    "currency",
    "saving_gpu_hours",
    "projected_saving_gpu_hours_per_week",
    "recommendations",
    "idle_allocations",
    "gpu_hours_by_model",
)


def _teams(report: WeeklyReport) -> Iterable[Sequence[_Cell]]:
    for team in report.teams:
        use = team.use
        yield (
            team.namespace,
            use.allocated_gpu_hours,
            busy_gpu_hours(use),
            busy_ratio(use),
            use.sm_gpu_hours,
            use.unknown_gpu_hours,
            use.idle_gpu_hours,
            use.lost_gpu_hours,
            use.cost,
            use.wasted_cost,
            use.saving,
            use.projected_saving_per_week,
            report.currency,
            use.saving_gpu_hours,
            use.projected_saving_gpu_hours_per_week,
            team.recommendations,
            team.idle_allocations,
            " ".join(f"{model}={_cell(hours)}" for model, hours in team.gpu_models.items()),
        )


_RECOMMENDATION_COLUMNS = (
    "workload",
    "namespace",
    "container",
    "now",
    "advised",
    "resource",
    "speed_low_ratio",
    "speed_likely_ratio",
    "speed_high_ratio",
    "target_speed_ratio",
    "tier",
    "confidence_ratio",
    "memory_need_bytes",
    "memory_offered_bytes",
    "cost",
    "saving",
    "projected_cost_now_per_week",
    "projected_cost_advised_per_week",
    "projected_saving_per_week",
    "currency",
    "saving_gpu_hours",
    "projected_saving_gpu_hours_per_week",
    "runner_up",
    "reason",
    "caveats",
    "change_yaml",
)


def _recommendations(report: WeeklyReport) -> Iterable[Sequence[_Cell]]:
    for use in report.workloads:
        if use.recommendation is None:
            continue
        item, chosen = use.recommendation, use.recommendation.chosen
        yield (
            item.key.workload,
            item.key.namespace,
            item.key.container,
            item.current.target.name,
            chosen.target.name,
            chosen.target.resource,
            chosen.speed.low_ratio,
            chosen.speed.likely_ratio,
            chosen.speed.high_ratio,
            item.target_speed_ratio,
            str(chosen.speed.tier),
            item.confidence_ratio,
            _whole(item.memory.need_bytes),
            _whole(chosen.memory_bytes),
            use.cost,
            use.saving,
            item.current.projected_cost_per_week,
            chosen.projected_cost_per_week,
            chosen.projected_saving_per_week,
            report.currency,
            use.saving_gpu_hours,
            chosen.projected_saving_gpu_hours_per_week,
            item.runner_up.target.name if item.runner_up else None,
            item.reason,
            " ".join(item.caveats),
            patch_yaml(item.change),
        )


_ACTION_COLUMNS = (
    "name",
    "action",
    "target",
    "namespace",
    "pool",
    "gpus",
    "mode",
    "approved_by",
    "proposed_at",
    "changed_at",
    "phase",
    "released_gpu_hours",
    "detectors",
    "reason",
    "said",
)


def _actions(report: WeeklyReport) -> Iterable[Sequence[_Cell]]:
    for item in report.actions or ():
        yield (
            item.name,
            str(item.action),
            item.target,
            item.namespace,
            item.pool,
            item.gpus,
            str(item.mode),
            item.approved_by,
            item.proposed_at,
            item.changed_at,
            str(item.phase),
            item.released_gpu_hours,
            " ".join(item.detectors),
            item.reason,
            item.said,
        )
