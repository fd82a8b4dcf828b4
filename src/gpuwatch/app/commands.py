"""What each command does: open the sources, take a Snapshot, decide, print. Returns the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from rich.console import Console, RenderableType

from gpuwatch.app.exit_code import ExitCode
from gpuwatch.app.sources import SourceError, open_sources, take_snapshot
from gpuwatch.app.terminal import output
from gpuwatch.collect.pseudonyms import pseudonymise
from gpuwatch.collect.snapshot_file import SnapshotFileError, save_snapshot
from gpuwatch.deliver.outbox import OutboxError
from gpuwatch.kube.reader import ClusterError
from gpuwatch.model.decision import Verdict
from gpuwatch.model.sizing import Abstention, Recommendation
from gpuwatch.model.telemetry import GapKind
from gpuwatch.report.analysis import analyse
from gpuwatch.report.doctor import Diagnosis, RuleLimit, diagnose, diagnosis_tables
from gpuwatch.report.explain import UnknownSubject, explain, explanation_tables, workloads_of
from gpuwatch.report.machine import findings_to_csv, to_json, to_yaml
from gpuwatch.report.tables import analysis_tables
from gpuwatch.settings import SettingsError, load_settings
from gpuwatch.store import StoreError
from gpuwatch.telemetry.samples import TelemetryError

P = ParamSpec("P")

EXPECTED = (
    SourceError,
    SettingsError,
    SnapshotFileError,
    TelemetryError,
    ClusterError,
    UnknownSubject,
    StoreError,
    OutboxError,
)


def reported(command: Callable[P, int]) -> Callable[P, int]:
    """A fault of the input is a sentence on stderr; anything else is a bug and keeps its traceback."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return command(*args, **kwargs)
        except EXPECTED as error:
            Console(stderr=True, soft_wrap=True, highlight=False).print(f"gpuwatch: {error}", style="red", markup=False)
            return ExitCode.USAGE if isinstance(error, SettingsError) else ExitCode.FAILED
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            Console(stderr=True, soft_wrap=True, highlight=False).print(
                f"gpuwatch: {place}{error.strerror or error}", style="red", markup=False
            )
            return ExitCode.FAILED

    return run


def print_answer(value: object, form: str, table: Callable[[], RenderableType]) -> None:
    if form == "json":
        sys.stdout.write(to_json(value) + "\n")
    elif form == "yaml":
        sys.stdout.write(to_yaml(value))
    else:
        output().print(table())


@reported
def run_analyze(form: str, rows: int, fail_on_findings: bool, options: Mapping[str, Any]) -> int:
    opened = open_sources(options)
    snapshot = take_snapshot(opened, Console(stderr=True))
    analysis = analyse(snapshot, opened.policies)
    if form == "csv":
        sys.stdout.write(findings_to_csv(analysis.findings))
    else:
        print_answer(analysis, form, lambda: analysis_tables(analysis, opened.description, rows=rows))
    if not snapshot.devices and any(gap.kind in (GapKind.UNREACHABLE, GapKind.REFUSED) for gap in snapshot.gaps):
        return ExitCode.FAILED
    found = any(item.verdict in (Verdict.DEGRADED, Verdict.IDLE) for item in analysis.findings)
    return ExitCode.FOUND if fail_on_findings and found else ExitCode.OK


_FEW_DEVICES = 256
"""So many are profiled for one explanation without a kept state: it takes seconds."""


@reported
def run_explain(subject: str, form: str, state: Path | None, days: float, options: Mapping[str, Any]) -> int:
    opened = open_sources(options)
    snapshot = take_snapshot(opened, Console(stderr=True))
    from gpuwatch.app.remediation_commands import beside_of

    beside, gaps = beside_of(opened, options)
    for gap in gaps:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"{gap.what}: {gap.detail}", markup=False)
    explanation = explain(snapshot, opened.policies, subject, beside)
    workloads = workloads_of(snapshot, explanation)
    if workloads and opened.store is not None:
        settings = load_settings(options["config"])
        kept = state or settings.state
        if kept is None and len(snapshot.devices) > _FEW_DEVICES:
            note = f"not worked out: profiling {len(snapshot.devices)} devices takes a while; give --state FILE"
            explanation = replace(explanation, sizing_note=note)
        else:
            from gpuwatch.app.sizing import size

            sized = size(replace(opened, snapshot=snapshot), settings, kept, timedelta(days=days), Console(stderr=True))
            both: list[Recommendation | Abstention] = [*sized.recommendations, *sized.abstentions]
            mine = tuple(item for item in both if item.key.workload in workloads)
            note = "" if mine else "no profile yet: too little of it was measured"
            explanation = replace(explanation, sizing=mine, sizing_note=note)
    print_answer(explanation, form, lambda: explanation_tables(explanation, snapshot))
    return ExitCode.OK


@reported
def run_doctor(form: str, csv_out: Path | None, options: Mapping[str, Any]) -> int:
    opened = open_sources(options)
    snapshot = take_snapshot(opened, Console(stderr=True))
    telemetry = opened.store.description if opened.store else "none given"
    cluster = opened.cluster.description if opened.cluster else "none given"
    if opened.snapshot is not None:
        telemetry = cluster = opened.description
    diagnosis = diagnose(snapshot, opened.policies, telemetry, cluster)
    print_answer(_Diagnosed.of(diagnosis), form, lambda: diagnosis_tables(diagnosis))
    if csv_out is not None:
        csv_out.write_text(diagnosis.counters_csv, encoding="utf-8")
        Console(stderr=True).print(f"wrote {csv_out}", markup=False)
    if diagnosis.unreadable:
        return ExitCode.FAILED
    return ExitCode.LIMITED if diagnosis.limited else ExitCode.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class _Diagnosed:
    """The machine form of a Diagnosis, with its conclusions spelled out."""

    telemetry: str
    cluster: str
    unreadable: bool
    limited: bool
    facts: dict[str, str]
    rules: tuple[RuleLimit, ...]
    gaps: tuple[object, ...]
    telemetry_schema: object
    counters_csv: str
    service_monitor: str

    @classmethod
    def of(cls, item: Diagnosis) -> _Diagnosed:
        return cls(
            telemetry=item.telemetry,
            cluster=item.cluster,
            unreadable=item.unreadable,
            limited=item.limited,
            facts=dict(item.facts),
            rules=item.rules,
            gaps=item.gaps,
            telemetry_schema=item.telemetry_schema,
            counters_csv=item.counters_csv,
            service_monitor=item.service_monitor,
        )


@reported
def run_capture(output: Path, pseudonyms: bool, options: Mapping[str, Any]) -> int:
    opened = open_sources(options)
    snapshot = take_snapshot(opened, Console(stderr=True))
    save_snapshot(pseudonymise(snapshot) if pseudonyms else snapshot, output)
    console = Console(stderr=True, highlight=False)
    console.print(
        f"wrote {output}: {len(snapshot.devices)} devices, {len(snapshot.cluster.pods)} GPU Pods, "
        f"{len(snapshot.gaps)} gaps; replay it with: gpuwatch analyze --telemetry {output}",
        markup=False,
    )
    return ExitCode.OK
