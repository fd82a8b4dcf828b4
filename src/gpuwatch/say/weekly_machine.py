"""The weekly report as CSV files, and the schema of its JSON. Complete, never cut."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from gpuwatch.facts.model.sizing import Recommendation, by_worth
from gpuwatch.facts.model.weekly import ActionTaken, Lever, TeamUse, WeeklyReport, WorkloadUse
from gpuwatch.facts.model.workload_profile import WorkloadKey
from gpuwatch.say.machine import COUNT, NUMBER, TIME, Column, Columns, csv_cell, fields, json_schema, to_csv
from gpuwatch.say.sizing_tables import patch_yaml
from gpuwatch.say.weekly_words import busy_gpu_hours, busy_ratio, use_of


def weekly_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the report as JSON; docs/weekly-v1.schema.json is a copy."""
    return json_schema(WeeklyReport, "weekly-v1", "gpuwatch weekly report, version 1")


def weekly_csvs(report: WeeklyReport) -> Mapping[str, str]:
    """File name → text. Column names have the units."""
    return {f"{name}.csv": to_csv(columns, rows) for name, (columns, rows) in weekly_tables(report).items()}


def weekly_tables(report: WeeklyReport) -> Mapping[str, tuple[Columns[Any], Sequence[Any]]]:
    """Name → columns and rows, of the CSV files and of the DataFrames alike."""
    return {
        "workloads": (_workloads(report), report.workloads),
        "teams": (_teams(report), report.teams),
        "levers": (_levers(report), report.levers.levers),
        "recommendations": (
            advice_columns(use_of(report)),
            tuple(sorted((use.recommendation for use in report.workloads if use.recommendation), key=by_worth)),
        ),
        "actions": (ACTIONS, report.actions or ()),
    }


def _whole(size: float | None) -> int | None:
    return None if size is None else round(size)


def _workloads(report: WeeklyReport) -> Columns[WorkloadUse]:
    """advice: 'change', the kind of an abstention, or 'not_profiled'."""

    def advice(use: WorkloadUse) -> str:
        return "change" if use.recommendation else use.abstention.kind if use.abstention else "not_profiled"

    def chosen(field: str) -> Callable[[WorkloadUse], Any]:
        return lambda use: attrgetter(f"chosen.{field}")(use.recommendation) if use.recommendation else None

    def reason(use: WorkloadUse) -> str | None:
        said = use.recommendation or use.abstention
        return said.reason if said else None

    return {
        **fields("workload", "namespace", "gpu_model"),
        **fields("allocated_gpu_hours", "busy_ratio", "sm_active_ratio", dtype=NUMBER),
        "memory_peak_bytes": Column(lambda use: _whole(use.memory_peak_bytes), NUMBER),
        **fields("cost", "wasted_cost", dtype=NUMBER),
        "currency": Column(lambda _: report.currency),
        **fields("idle_gpu_hours", dtype=NUMBER),
        "advice": Column(advice),
        "advised_target": Column(chosen("target.name")),
        "projected_saving_per_week": Column(chosen("projected_saving_per_week"), NUMBER),
        "projected_saving_gpu_hours_per_week": Column(chosen("projected_saving_gpu_hours_per_week"), NUMBER),
        "reason": Column(reason),
        "resolve": Column(lambda use: None if use.recommendation or not use.abstention else use.abstention.resolve),
    }


def _teams(report: WeeklyReport) -> Columns[TeamUse]:
    use = partial(fields, of="use", dtype=NUMBER)
    return {
        **fields("team"),
        **use("allocated_gpu_hours"),
        "busy_gpu_hours": Column(lambda team: busy_gpu_hours(team.use), NUMBER),
        "busy_ratio": Column(lambda team: busy_ratio(team.use), NUMBER),
        **use("sm_gpu_hours", "unknown_gpu_hours", "idle_gpu_hours"),
        **use("cost", "wasted_cost"),
        **fields("saving_per_week", dtype=NUMBER),
        "currency": Column(lambda _: report.currency),
        **fields("saving_gpu_hours_per_week", dtype=NUMBER),
        **fields("left"),
        **fields("recommendations", "idle_allocations", dtype=COUNT),
        "gpu_hours_by_model": Column(
            lambda team: " ".join(f"{model}={csv_cell(hours)}" for model, hours in team.gpu_models.items())
        ),
    }


def _levers(report: WeeklyReport) -> Columns[Lever]:
    return {
        **fields("kind", "sureness", "subject", "team"),
        **fields("gpu_hours", "cost", of="wasted", dtype=NUMBER),
        **fields("saving_per_week", dtype=NUMBER),
        "currency": Column(lambda _: report.currency),
        **fields("saving_gpu_hours_per_week", dtype=NUMBER),
        **fields("evidence", "needs", "change"),
        "parts": Column(lambda item: " ".join(part.name for part in item.parts)),
    }


def advice_columns(uses: Mapping[WorkloadKey, WorkloadUse] | None = None) -> Columns[Recommendation]:
    """uses: of the report's period, for its cost; None without one."""

    def in_period(name: str) -> Columns[Recommendation]:
        return {} if uses is None else {name: Column(lambda item: getattr(uses[item.key], name), NUMBER)}

    return {
        **fields("workload", "namespace", "container", of="key"),
        "now": Column(lambda item: item.current.target.name),
        "advised": Column(lambda item: item.chosen.target.name),
        **fields("resource", of="chosen.target"),
        "speed_low_ratio": Column(lambda item: item.chosen.speed.low_ratio, NUMBER),
        "speed_likely_ratio": Column(lambda item: item.chosen.speed.likely_ratio, NUMBER),
        "speed_high_ratio": Column(lambda item: item.chosen.speed.high_ratio, NUMBER),
        **fields("target_speed_ratio", dtype=NUMBER),
        **fields("tier", of="chosen.speed"),
        **fields("confidence_ratio", dtype=NUMBER),
        "memory_need_bytes": Column(lambda item: _whole(item.memory.need_bytes), NUMBER),
        "memory_offered_bytes": Column(lambda item: _whole(item.chosen.memory_bytes), NUMBER),
        **in_period("cost"),
        "projected_cost_now_per_week": Column(lambda item: item.current.projected_cost_per_week, NUMBER),
        "projected_cost_advised_per_week": Column(lambda item: item.chosen.projected_cost_per_week, NUMBER),
        **fields("projected_saving_per_week", of="chosen", dtype=NUMBER),
        **fields("currency"),
        **fields("projected_saving_gpu_hours_per_week", of="chosen", dtype=NUMBER),
        "runner_up": Column(lambda item: item.runner_up.target.name if item.runner_up else None),
        **fields("condition", "reason"),
        "caveats": Column(lambda item: " ".join(item.caveats)),
        "change_yaml": Column(lambda item: patch_yaml(item.change)),
    }


ACTIONS: Columns[ActionTaken] = {
    **fields("name", "action", "target", "namespace", "pool"),
    **fields("gpus", dtype=COUNT),
    **fields("mode", "approved_by"),
    **fields("proposed_at", "changed_at", dtype=TIME),
    **fields("phase"),
    **fields("released_gpu_hours", dtype=NUMBER),
    "detectors": Column(lambda item: " ".join(item.detectors)),
    **fields("reason", "said"),
}
