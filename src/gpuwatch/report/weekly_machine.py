"""The weekly report as JSON with its schema, and as CSV files. Complete, never cut."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from gpuwatch.model.sizing import Recommendation
from gpuwatch.model.weekly import ActionTaken, TeamUse, WeeklyReport, WorkloadUse
from gpuwatch.report.machine import csv_text, to_json
from gpuwatch.report.sizing_tables import patch_yaml
from gpuwatch.report.weekly_words import busy_gpu_hours, busy_ratio

WEEKLY_SCHEMA_ID = "https://gpuwatch.dev/schemas/weekly-v1.json"


def weekly_json(report: WeeklyReport) -> str:
    """The whole report, indented; null is unknown."""
    return to_json(report)


def weekly_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of `weekly_json`; docs/weekly-v1.schema.json is a copy."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": WEEKLY_SCHEMA_ID,
        "title": "gpuwatch weekly report, version 1",
        **msgspec.json.schema(WeeklyReport, schema_hook=_of_any),
    }


def _of_any(kind: type) -> dict[str, Any]:
    """A change's patch has the schema of the owner's kind, which only the cluster knows."""
    if kind is object:
        return {"description": "Anything that the owner's kind allows."}
    raise NotImplementedError(kind)


def weekly_csvs(report: WeeklyReport) -> Mapping[str, str]:
    """File name → text. Column names have the units. An empty cell is unknown or absent. Text that a spreadsheet would
    run as a formula begins with an apostrophe."""
    return {
        "workloads.csv": _workloads(report),
        "teams.csv": _teams(report),
        "recommendations.csv": _recommendations(report),
        "actions.csv": _actions(report),
    }


_Cell = str | float | int | datetime | None
T = TypeVar("T")
_Columns = dict[str, Callable[[T], _Cell]]
"""Heading → the cell of a row."""


def _csv(columns: _Columns[T], rows: Iterable[T]) -> str:
    out = io.StringIO()
    # RFC 4180; with this line end, a lone carriage return within a cell is quoted too.
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([_cell(value(row)) for value in columns.values()] for row in rows)
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
    return csv_text(value) if isinstance(value, str) else str(value)


def _whole(size: float | None) -> int | None:
    return None if size is None else round(size)


def _workloads(report: WeeklyReport) -> str:
    """advice: 'change', the kind of an abstention, or 'not_profiled'."""

    def advice(use: WorkloadUse) -> str:
        return "change" if use.recommendation else use.abstention.kind if use.abstention else "not_profiled"

    def reason(use: WorkloadUse) -> str | None:
        said = use.recommendation or use.abstention
        return said.reason if said else None

    columns: _Columns[WorkloadUse] = {
        "workload": lambda use: use.workload,
        "namespace": lambda use: use.namespace,
        "gpu_model": lambda use: use.gpu_model,
        "allocated_gpu_hours": lambda use: use.allocated_gpu_hours,
        "busy_ratio": lambda use: use.busy_ratio,
        "sm_active_ratio": lambda use: use.sm_active_ratio,
        "memory_peak_bytes": lambda use: _whole(use.memory_peak_bytes),
        "cost": lambda use: use.cost,
        "saving": lambda use: use.saving,
        "currency": lambda _: report.currency,
        "saving_gpu_hours": lambda use: use.saving_gpu_hours,
        "idle_gpu_hours": lambda use: use.idle_gpu_hours,
        "advice": advice,
        "advised_target": lambda use: use.recommendation.chosen.target.name if use.recommendation else None,
        "projected_saving_per_week": lambda use: (
            use.recommendation.chosen.projected_saving_per_week if use.recommendation else None
        ),
        "projected_saving_gpu_hours_per_week": lambda use: (
            use.recommendation.chosen.projected_saving_gpu_hours_per_week if use.recommendation else None
        ),
        "reason": reason,
        "resolve": lambda use: None if use.recommendation or not use.abstention else use.abstention.resolve,
    }
    return _csv(columns, report.workloads)


def _teams(report: WeeklyReport) -> str:
    columns: _Columns[TeamUse] = {
        "namespace": lambda team: team.namespace,
        "allocated_gpu_hours": lambda team: team.use.allocated_gpu_hours,
        "busy_gpu_hours": lambda team: busy_gpu_hours(team.use),
        "busy_ratio": lambda team: busy_ratio(team.use),
        "sm_gpu_hours": lambda team: team.use.sm_gpu_hours,
        "unknown_gpu_hours": lambda team: team.use.unknown_gpu_hours,
        "idle_gpu_hours": lambda team: team.use.idle_gpu_hours,
        "lost_gpu_hours": lambda team: team.use.lost_gpu_hours,
        "cost": lambda team: team.use.cost,
        "wasted_cost": lambda team: team.use.wasted_cost,
        "saving": lambda team: team.use.saving,
        "projected_saving_per_week": lambda team: team.use.projected_saving_per_week,
        "currency": lambda _: report.currency,
        "saving_gpu_hours": lambda team: team.use.saving_gpu_hours,
        "projected_saving_gpu_hours_per_week": lambda team: team.use.projected_saving_gpu_hours_per_week,
        "recommendations": lambda team: team.recommendations,
        "idle_allocations": lambda team: team.idle_allocations,
        "gpu_hours_by_model": lambda team: " ".join(
            f"{model}={_cell(hours)}" for model, hours in team.gpu_models.items()
        ),
    }
    return _csv(columns, report.teams)


def _recommendations(report: WeeklyReport) -> str:
    uses = {use.recommendation.key: use for use in report.workloads if use.recommendation}
    columns: _Columns[Recommendation] = {
        "workload": lambda item: item.key.workload,
        "namespace": lambda item: item.key.namespace,
        "container": lambda item: item.key.container,
        "now": lambda item: item.current.target.name,
        "advised": lambda item: item.chosen.target.name,
        "resource": lambda item: item.chosen.target.resource,
        "speed_low_ratio": lambda item: item.chosen.speed.low_ratio,
        "speed_likely_ratio": lambda item: item.chosen.speed.likely_ratio,
        "speed_high_ratio": lambda item: item.chosen.speed.high_ratio,
        "target_speed_ratio": lambda item: item.target_speed_ratio,
        "tier": lambda item: item.chosen.speed.tier,
        "confidence_ratio": lambda item: item.confidence_ratio,
        "memory_need_bytes": lambda item: _whole(item.memory.need_bytes),
        "memory_offered_bytes": lambda item: _whole(item.chosen.memory_bytes),
        "cost": lambda item: uses[item.key].cost,
        "saving": lambda item: uses[item.key].saving,
        "projected_cost_now_per_week": lambda item: item.current.projected_cost_per_week,
        "projected_cost_advised_per_week": lambda item: item.chosen.projected_cost_per_week,
        "projected_saving_per_week": lambda item: item.chosen.projected_saving_per_week,
        "currency": lambda _: report.currency,
        "saving_gpu_hours": lambda item: uses[item.key].saving_gpu_hours,
        "projected_saving_gpu_hours_per_week": lambda item: item.chosen.projected_saving_gpu_hours_per_week,
        "runner_up": lambda item: item.runner_up.target.name if item.runner_up else None,
        "reason": lambda item: item.reason,
        "caveats": lambda item: " ".join(item.caveats),
        "change_yaml": lambda item: patch_yaml(item.change),
    }
    return _csv(columns, (use.recommendation for use in report.workloads if use.recommendation))


def _actions(report: WeeklyReport) -> str:
    columns: _Columns[ActionTaken] = {
        "name": lambda item: item.name,
        "action": lambda item: item.action,
        "target": lambda item: item.target,
        "namespace": lambda item: item.namespace,
        "pool": lambda item: item.pool,
        "gpus": lambda item: item.gpus,
        "mode": lambda item: item.mode,
        "approved_by": lambda item: item.approved_by,
        "proposed_at": lambda item: item.proposed_at,
        "changed_at": lambda item: item.changed_at,
        "phase": lambda item: item.phase,
        "released_gpu_hours": lambda item: item.released_gpu_hours,
        "detectors": lambda item: " ".join(item.detectors),
        "reason": lambda item: item.reason,
        "said": lambda item: item.said,
    }
    return _csv(columns, report.actions or ())
