"""The weekly report as JSON with its schema, and as CSV files. Complete, never cut."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from gpuwatch.model.sizing import Recommendation
from gpuwatch.model.weekly import ActionTaken, TeamUse, WeeklyReport, WorkloadUse
from gpuwatch.report.machine import Columns, csv_cell, fields, json_schema, to_csv, to_json
from gpuwatch.report.sizing_tables import patch_yaml
from gpuwatch.report.weekly_words import busy_gpu_hours, busy_ratio, use_of


def weekly_json(report: WeeklyReport) -> str:
    """The whole report, indented; null is unknown."""
    return to_json(report)


def weekly_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of `weekly_json`; docs/weekly-v1.schema.json is a copy."""
    return json_schema(WeeklyReport, "weekly-v1", "gpuwatch weekly report, version 1")


def weekly_csvs(report: WeeklyReport) -> Mapping[str, str]:
    """File name → text. Column names have the units."""
    return {
        "workloads.csv": _workloads(report),
        "teams.csv": _teams(report),
        "recommendations.csv": _recommendations(report),
        "actions.csv": _actions(report),
    }


def _whole(size: float | None) -> int | None:
    return None if size is None else round(size)


def _workloads(report: WeeklyReport) -> str:
    """advice: 'change', the kind of an abstention, or 'not_profiled'."""

    def advice(use: WorkloadUse) -> str:
        return "change" if use.recommendation else use.abstention.kind if use.abstention else "not_profiled"

    def chosen(field: str) -> Callable[[WorkloadUse], Any]:
        return lambda use: attrgetter(f"chosen.{field}")(use.recommendation) if use.recommendation else None

    def reason(use: WorkloadUse) -> str | None:
        said = use.recommendation or use.abstention
        return said.reason if said else None

    columns: Columns[WorkloadUse] = {
        **fields("workload", "namespace", "gpu_model", "allocated_gpu_hours", "busy_ratio", "sm_active_ratio"),
        "memory_peak_bytes": lambda use: _whole(use.memory_peak_bytes),
        **fields("cost", "saving"),
        "currency": lambda _: report.currency,
        **fields("saving_gpu_hours", "idle_gpu_hours"),
        "advice": advice,
        "advised_target": chosen("target.name"),
        "projected_saving_per_week": chosen("projected_saving_per_week"),
        "projected_saving_gpu_hours_per_week": chosen("projected_saving_gpu_hours_per_week"),
        "reason": reason,
        "resolve": lambda use: None if use.recommendation or not use.abstention else use.abstention.resolve,
    }
    return to_csv(columns, report.workloads)


def _teams(report: WeeklyReport) -> str:
    columns: Columns[TeamUse] = {
        **fields("namespace"),
        **fields("allocated_gpu_hours", of="use"),
        "busy_gpu_hours": lambda team: busy_gpu_hours(team.use),
        "busy_ratio": lambda team: busy_ratio(team.use),
        **fields("sm_gpu_hours", "unknown_gpu_hours", "idle_gpu_hours", "lost_gpu_hours", of="use"),
        **fields("cost", "wasted_cost", "saving", "projected_saving_per_week", of="use"),
        "currency": lambda _: report.currency,
        **fields("saving_gpu_hours", "projected_saving_gpu_hours_per_week", of="use"),
        **fields("projected_conditional_saving_per_week", "projected_conditional_saving_gpu_hours_per_week", of="use"),
        **fields("recommendations", "idle_allocations"),
        "gpu_hours_by_model": lambda team: " ".join(
            f"{model}={csv_cell(hours)}" for model, hours in team.gpu_models.items()
        ),
    }
    return to_csv(columns, report.teams)


def _recommendations(report: WeeklyReport) -> str:
    uses = use_of(report)
    columns: Columns[Recommendation] = {
        **fields("workload", "namespace", "container", of="key"),
        "now": lambda item: item.current.target.name,
        "advised": lambda item: item.chosen.target.name,
        **fields("resource", of="chosen.target"),
        "speed_low_ratio": lambda item: item.chosen.speed.low_ratio,
        "speed_likely_ratio": lambda item: item.chosen.speed.likely_ratio,
        "speed_high_ratio": lambda item: item.chosen.speed.high_ratio,
        **fields("target_speed_ratio"),
        **fields("tier", of="chosen.speed"),
        **fields("confidence_ratio"),
        "memory_need_bytes": lambda item: _whole(item.memory.need_bytes),
        "memory_offered_bytes": lambda item: _whole(item.chosen.memory_bytes),
        "cost": lambda item: uses[item.key].cost,
        "saving": lambda item: uses[item.key].saving,
        "projected_cost_now_per_week": lambda item: item.current.projected_cost_per_week,
        "projected_cost_advised_per_week": lambda item: item.chosen.projected_cost_per_week,
        **fields("projected_saving_per_week", of="chosen"),
        "currency": lambda _: report.currency,
        "saving_gpu_hours": lambda item: uses[item.key].saving_gpu_hours,
        **fields("projected_saving_gpu_hours_per_week", of="chosen"),
        "runner_up": lambda item: item.runner_up.target.name if item.runner_up else None,
        **fields("condition", "reason"),
        "caveats": lambda item: " ".join(item.caveats),
        "change_yaml": lambda item: patch_yaml(item.change),
    }
    return to_csv(columns, (use.recommendation for use in report.workloads if use.recommendation))


def _actions(report: WeeklyReport) -> str:
    columns: Columns[ActionTaken] = {
        **fields("name", "action", "target", "namespace", "pool", "gpus", "mode", "approved_by"),
        **fields("proposed_at", "changed_at", "phase", "released_gpu_hours"),
        "detectors": lambda item: " ".join(item.detectors),
        **fields("reason", "said"),
    }
    return to_csv(columns, report.actions or ())
