"""What each command does: open the sources, take a Snapshot, decide, print. Returns the exit code."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from gpuwatch.act.analysis import analyse, assess
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.app.cli.remediation_commands import kept_of, plan_facts
from gpuwatch.app.cli.scope import Scope, check_namespace, shown_name
from gpuwatch.app.cli.terminal import print_answer, print_listing, remark
from gpuwatch.app.errors import OptionsError
from gpuwatch.app.exit_code import ExitCode
from gpuwatch.app.sizing import size
from gpuwatch.app.sources import Opened, checked_sources, known_faults, take_snapshot, unreadable
from gpuwatch.facts.model.decision import Verdict
from gpuwatch.facts.model.remediation import ObjectRef
from gpuwatch.facts.model.sizing import Abstention, Recommendation
from gpuwatch.facts.model.telemetry import GapKind
from gpuwatch.say.doctor import diagnose, diagnosis_tables, installations, price_fact, switched_off
from gpuwatch.say.explain import explain, explanation_tables, full_subject, workloads_of
from gpuwatch.say.machine import FINDINGS
from gpuwatch.say.remediation_tables import enforcement_text, pause_text
from gpuwatch.say.tables import analysis_tables, shown
from gpuwatch.sources.collect.pseudonyms import pseudonymise
from gpuwatch.sources.collect.snapshot_file import save_snapshot
from gpuwatch.sources.kube.live import api_client
from gpuwatch.sources.kube.live_writer import LiveWriter
from gpuwatch.sources.kube.transport import DEFAULT_LIMITS
from gpuwatch.sources.kube.writer import ClusterWriter, WriteError
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.checkpoints import FAULTS, Checkpoints
from gpuwatch.sources.store.store import Store

_NAMED = (Verdict.DEGRADED, Verdict.IDLE, Verdict.MISFIT)


def run_analyze(
    form: str,
    output_file: Path | None,
    rows: int,
    fail_on_findings: bool,
    state: Path | None,
    namespace: str,
    selector: str,
    **options: Any,
) -> int:
    from gpuwatch.app.sizing import price_list

    scope = Scope(namespace, selector)
    opened = checked_sources(options)
    snapshot = take_snapshot(opened)
    prices = price_list(opened.settings)
    analysis = analyse(PlanFacts(snapshot=snapshot), opened.policies, known_faults(state, opened, snapshot))
    check_namespace(scope.namespace, snapshot)
    analysis = scope.of(analysis)
    named = (str(item.subject) for item in analysis.findings if item.verdict in _NAMED)
    print_listing(
        analysis,
        form,
        lambda: analysis_tables(
            analysis, opened.description, scope=str(scope), rows=rows, wide=form == "wide", prices=prices
        ),
        (shown_name(name, scope.namespace, snapshot.cluster) for name in named),
        FINDINGS,
        analysis.findings,
        output_file,
    )
    if unreadable(snapshot):
        return ExitCode.FAILED
    found = any(item.verdict in (Verdict.DEGRADED, Verdict.IDLE) for item in analysis.findings)
    return ExitCode.FOUND if fail_on_findings and found else ExitCode.OK


_FEW_DEVICES = 256
"""With at most so many devices, an explanation without stored profiles computes them: it takes seconds."""


def run_explain(subject: str, namespace: str, form: str, state: Path | None, days: float, **options: Any) -> int:
    if "/" not in subject:
        raise OptionsError(f"{subject!r}: write KIND/NAME, such as pod/NAME, deployment/NAME or node/NAME")
    opened = checked_sources(options)
    snapshot = take_snapshot(opened)
    check_namespace(namespace, snapshot)
    subject = full_subject(snapshot, subject, namespace)
    known, gaps = plan_facts(opened, options, snapshot)
    for gap in gaps:
        remark(f"{gap.what}: {gap.detail}")
    faults = known_faults(state, opened, snapshot)
    concluded = assess(snapshot, opened.policies, everything=True, faults=faults)
    explanation = explain(snapshot, subject, concluded, analyse(known, opened.policies, faults).plan)
    workloads = workloads_of(snapshot, explanation)
    if workloads and opened.store is not None:
        kept = state or opened.settings.state
        if kept is None and len(snapshot.devices) > _FEW_DEVICES:
            note = f"not worked out: profiling {len(snapshot.devices)} devices takes a while; give --state FILE"
            explanation = replace(explanation, sizing_note=note)
        else:
            sized = size(replace(opened, snapshot=snapshot), kept, timedelta(days=days))
            both: list[Recommendation | Abstention] = [*sized.recommendations, *sized.abstentions]
            mine = tuple(item for item in both if item.key.workload in workloads)
            note = "" if mine else "no profile yet: too little of it was measured"
            explanation = replace(explanation, sizing=mine, sizing_note=note)
    print_answer(explanation, form, lambda: explanation_tables(explanation, snapshot, wide=form == "wide"))
    return ExitCode.OK


def run_doctor(form: str, csv_out: Path | None, allow_limited: bool, **options: Any) -> int:
    from gpuwatch.app.sizing import price_list

    opened = checked_sources(options)
    snapshot = take_snapshot(opened)
    telemetry = opened.store.description if opened.store else "none given"
    cluster = opened.cluster.description if opened.cluster else "none given"
    if opened.snapshot is not None:
        telemetry = cluster = opened.description
    if options["no_cluster"]:  # left out on purpose
        gaps = (gap for gap in snapshot.gaps if (gap.kind, gap.what) != (GapKind.UNREACHABLE, "cluster"))
        snapshot = replace(snapshot, gaps=tuple(gaps))
    diagnosis = diagnose(snapshot, opened.policies, telemetry, cluster)
    seconds = DEFAULT_LIMITS.connect_timeout_seconds + DEFAULT_LIMITS.read_timeout_seconds
    off = switched_off(opened.settings.plan, opened.settings.execute, seconds)
    priced = {"prices": price_fact(snapshot.cluster, price_list(opened.settings), snapshot.at)}
    diagnosis = replace(diagnosis, facts={**diagnosis.facts, **priced, **off})
    if opened.cluster is not None and opened.cluster.served:
        kept, unread = kept_of(opened, options)
        told = pause_text(kept[1], snapshot.at) if kept is not None else f"not read: {unread[0].detail}"
        writer = LiveWriter(api_client(options["kubeconfig"], options["context"]))
        installed = {"guardrails": _guardrails(writer), "installations": _installations(writer)}
        facts = {**diagnosis.facts, **installed, "pause": told, "enforcement": enforcement_of(opened, writer)}
        diagnosis = replace(diagnosis, facts=facts)
    print_answer(diagnosis, form, lambda: diagnosis_tables(diagnosis, wide=form == "wide"))
    if csv_out is not None:
        csv_out.write_text(diagnosis.counters_csv, encoding="utf-8")
        remark(f"wrote {csv_out}")
    if diagnosis.unreadable:
        return ExitCode.FAILED
    return ExitCode.LIMITED if diagnosis.limited and not allow_limited else ExitCode.OK


def _guardrails(writer: LiveWriter) -> str:
    """Whether the last admission policy of deploy/base, which refuses all that no other names, is bound."""
    at = ObjectRef("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", "gpuwatch-other")
    try:
        found = writer.get(at)
    except WriteError as error:
        return f"unknown: {error.message}"
    return "in place" if found is not None else "none: RBAC alone holds gpuwatch's account (deploy/README.md)"


def _installations(writer: LiveWriter) -> str:
    try:
        return installations(writer.objects("apps/v1", "Deployment", ""))
    except WriteError as error:
        return f"unknown: {error.message}"


def enforcement_of(opened: Opened, writer: ClusterWriter) -> str:
    """What the controller's state says, in a file that is here or in the cluster."""
    file, kept = opened.settings.state, Checkpoints(writer, opened.settings.namespace, FAULTS)
    try:
        store = Store.open(file) if file is not None and file.exists() else Store(kept)
        return enforcement_text(store.load_enforcement(), opened.at)
    except StoreError as error:
        return f"Unknown: {error}"


def run_capture(output_file: Path, pseudonyms: bool, **options: Any) -> int:
    opened = checked_sources(options)
    snapshot = take_snapshot(opened)
    save_snapshot(pseudonymise(snapshot) if pseudonyms else snapshot, output_file)
    remark(
        f"wrote {output_file}: {len(shown(snapshot))} devices, {len(snapshot.cluster.pods)} GPU Pods, "
        f"{len(snapshot.gaps)} gaps; replay it with: gpuwatch analyze --telemetry {output_file}"
    )
    return ExitCode.OK
