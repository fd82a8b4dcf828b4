"""XIDs: what a recent number says about the GPU that raised it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpuwatch.catalog.xids import Xid, XidAction, XidClass, conflicts
from gpuwatch.detect.fleet import Conclusion, Fleet, Judge, PhysicalGpu, conclude
from gpuwatch.detect.xid_events import CommonCause, XidEvent, common_causes, counts_xids, xid_events, xid_needs
from gpuwatch.model.decision import Advice, Evidence, Finding, FindingKind, Severity, Subject, SubjectKind, Verdict
from gpuwatch.model.telemetry import Vendor

CORROBORATING = frozenset(
    {
        FindingKind.RECOVERY_ACTION,
        FindingKind.DCGM_HEALTH,
        FindingKind.VENDOR_HEALTH,
        FindingKind.ECC,
        FindingKind.ROW_REMAP,
        FindingKind.PAGE_RETIREMENT,
        FindingKind.PCIE_REPLAY,
        FindingKind.PCIE_WIDTH,
        FindingKind.NVLINK_ERRORS,
        FindingKind.GPU_MISSING,
    }
)
"""Findings on the same GPU that are independent of the XID."""

_ADVICE = {
    XidAction.RESTART_BM: Advice.REBOOT,
    XidAction.RESTART_VM: Advice.REBOOT,
    XidAction.CHECK_MECHANICALS: Advice.INSPECT,
    XidAction.CONTACT_SUPPORT: Advice.INSPECT,
}

# Columns of NVIDIA's catalog by the prefix of a model's name. Other models (Ada, Turing, GH200) have no column there,
# so every XID applies to them.
_ARCHITECTURES = (
    ("GB200", "GB200"),
    ("GB300", "GB200"),
    ("B100", "B100"),
    ("B200", "B100"),
    ("B300", "B100"),
    ("H100", "H100"),
    ("H800", "H100"),
    ("H200", "H100"),
    ("H20", "H100"),
    ("A100", "A100"),
    ("A800", "A100"),
)

_SEVERITIES = list(Severity)
_ADVICES = list(Advice)

# Confidence from a number alone. With a fatal one the driver says that the GPU needs a reset; driver bugs raise 119 and
# 62, hence not 1. One that needs corroboration counts half; its doubt is multiplied with that of the other sign.
_FATAL_CONFIDENCE = 0.9
_REPEATED_CONFIDENCE = 0.85
_UNSURE_CONFIDENCE = 0.5
# Two workloads seldom have the same bug at once.
_TWO_WORKLOADS_CONFIDENCE = 0.7


def architecture(model: str) -> str | None:
    """The column of NVIDIA's XID catalog for a model name; None where there is none."""
    name = model.upper().replace("NVIDIA", "").strip(" -")
    return next((column for prefix, column in _ARCHITECTURES if name.startswith(prefix)), None)


def xid(fleet: Fleet, others: Mapping[str, Sequence[Finding]]) -> tuple[Judge, tuple[Finding, ...]]:
    """The rule, and the findings on what many GPUs' XIDs have in common.

    others: by GPU the DEGRADED findings of the other rules, which corroborate.
    """
    kind = FindingKind.XID
    events = xid_events(fleet)
    stats = xid_needs(fleet.policy)
    last, *counting = map(fleet.answers, stats)
    reporting = fleet.reporting(fleet.policy.change_window_seconds)
    gauge_is_there = (
        bool(last.values)
        or bool(fleet.changes(last.stat.signal))
        or fleet.snapshot.telemetry_schema.has(last.stat.signal)
    )

    causes = common_causes(fleet, (event for found in events.values() for event in found))
    cause_of = {event: cause for cause in causes for event in cause.events}

    def judge(gpu: PhysicalGpu) -> Conclusion:
        found = [
            _of_event(event, _judge_event(fleet, event, cause_of.get(event), others.get(gpu.uuid, ())))
            for event in events.get(gpu.uuid, ())
        ]
        shown = [item for item in found if isinstance(item, Finding)]
        if shown:
            return _strongest(shown)
        if found:
            return Verdict.HEALTHY if Verdict.HEALTHY in found else Verdict.UNKNOWN
        if any(counts_xids(answers, gpu) for answers in counting):
            return fleet.healthy(gpu, kind, "no XID in the window")
        code = last.of(gpu)
        if code:
            return fleet.healthy(
                gpu, kind, f"XID {code:g} is older than the window; the gauge never clears", last, confidence_ratio=0.8
            )
        # Since DCGM 4.5 the gauge has no series before the first XID, so its absence is no gap if others have it.
        if code == 0 or (gauge_is_there and gpu.lead.vendor is Vendor.NVIDIA and reporting(gpu)):
            return fleet.healthy(gpu, kind, "no XID in the window", last, confidence_ratio=0.8)
        return fleet.unknown(gpu, kind, "no XID metric is exported", [stat.signal for stat in stats[:3]])

    return judge, tuple(_together(fleet, causes))


def _judge_event(fleet: Fleet, event: XidEvent, cause: CommonCause | None, others: Sequence[Finding]) -> Conclusion:
    known = event.known
    if known is None:
        return _undecided(
            event,
            f"XID {event.code} is not in the catalog",
            [f"the meaning of XID {event.code}; the operator's overrides can give it"],
            severity=Severity.WARNING,
        )
    title = f"XID {known.code} ({known.description}): {known.reason}"
    column = architecture(event.gpu.model)
    if column is not None and known.architectures and column not in known.architectures:
        applies = ", ".join(known.architectures)
        return _undecided(
            event,
            f"XID {known.code} is not one of {event.gpu.model}: the catalog has it for {applies}",
            ["the kernel log of the Node"],
        )
    if known.xid_class is XidClass.IGNORE:
        if not fleet.everything:
            return Verdict.HEALTHY
        return conclude(event.gpu, FindingKind.XID, Verdict.HEALTHY, title, confidence_ratio=0.8)
    independent = [finding for finding in others if finding.kind in CORROBORATING and not _derived(known, finding.kind)]
    fatal = known.xid_class is XidClass.FATAL
    repeated = known.repeat_is_fatal and event.count >= fleet.policy.xid_repeats
    if known.xid_class is not XidClass.APPLICATION and independent:
        return _corroborated(event, known, title, independent, fatal=fatal or repeated)
    if cause is not None:
        if not fleet.everything:
            return Verdict.UNKNOWN
        return _undecided(event, f"{title}; {_words(cause)}", ["a sign on this GPU alone"])
    if fatal or repeated:
        if event.doubtful:
            missing = ["when it was: it may be older than the window, as the gauge never clears"]
            return _undecided(event, title, missing, severity=Severity.WARNING)
        return conclude(
            event.gpu,
            FindingKind.XID,
            Verdict.DEGRADED,
            title if fatal else f"{title}; it came {event.count} times at least",
            severity=Severity.CRITICAL,
            advice=_ADVICE.get(known.action, Advice.RESET),
            confidence_ratio=_FATAL_CONFIDENCE if fatal else _REPEATED_CONFIDENCE,
        )
    if known.xid_class is XidClass.APPLICATION:
        return _application(event, title)
    missing = ["a second sign: a recovery action, DCGM health, an ECC, remap or link counter"]
    if known.repeat_is_fatal and not event.countable:
        missing.append("whether it came again: the last XID shows no repeat, only a count of XIDs does")
    return _undecided(event, title, missing)


def _derived(known: Xid, kind: FindingKind) -> bool:
    """Whether the finding repeats the XID: DCGM's health module fails on some XIDs by their number."""
    return kind is FindingKind.DCGM_HEALTH and any(item.authority == "dcgm_health" for item in known.others)


def _corroborated(event: XidEvent, known: Xid, title: str, independent: list[Finding], *, fatal: bool) -> Finding:
    """The XID and another sign agree; the graver of the two decides the advice."""
    alone = _FATAL_CONFIDENCE if fatal else _UNSURE_CONFIDENCE
    best = max(independent, key=lambda finding: finding.confidence_ratio)
    own = _ADVICE.get(known.action, Advice.RESET) if fatal else Advice.NONE
    severity = Severity.CRITICAL if fatal else max((item.severity for item in independent), key=_SEVERITIES.index)
    return conclude(
        event.gpu,
        FindingKind.XID,
        Verdict.DEGRADED,
        f"{title}; {' and '.join(sorted({item.kind.replace('_', ' ') for item in independent}))} on the same GPU",
        severity=severity,
        advice=max((own, *(item.advice for item in independent)), key=_ADVICES.index),
        confidence_ratio=1 - (1 - alone) * (1 - best.confidence_ratio),
        evidence=[evidence for finding in independent for evidence in finding.evidence],
    )


def _application(event: XidEvent, title: str) -> Finding:
    """The program's fault, unless different workloads raised it on the same GPU."""
    workloads = sorted(str(subject) for subject in event.all_workloads)
    # Workloads that share the GPU at one time cannot be told apart; those of different times can.
    distinct = {held for held in event.workloads if held}
    if len(distinct) > 1 and not frozenset.intersection(*distinct):
        return conclude(
            event.gpu,
            FindingKind.XID,
            Verdict.DEGRADED,
            f"{title}, but {len(workloads)} workloads raised it on this GPU: {', '.join(workloads)}",
            severity=Severity.WARNING,
            advice=Advice.RESET_WHEN_IDLE,
            confidence_ratio=_TWO_WORKLOADS_CONFIDENCE,
        )
    who = f" (allocated to {', '.join(workloads)})" if workloads else ""
    return conclude(
        event.gpu,
        FindingKind.XID,
        Verdict.UNKNOWN,
        title + who,
        advice=Advice.FIX_APPLICATION,
        missing=["the same XID on this GPU under another workload, which would make it the hardware's"],
    )


def _undecided(event: XidEvent, summary: str, missing: Iterable[str], *, severity: Severity = Severity.INFO) -> Finding:
    return conclude(
        event.gpu, FindingKind.XID, Verdict.UNKNOWN, summary, severity=severity, advice=Advice.WATCH, missing=missing
    )


def _of_event(event: XidEvent, found: Conclusion) -> Conclusion:
    """The conclusion with the event's own time and evidence."""
    if not isinstance(found, Finding):
        return found
    catalog = [] if event.known is None else [_catalog(event.known)]
    since = event.times[0] if event.times else None
    return replace(found, since=since, evidence=(*event.evidence, *catalog, *found.evidence))


def _catalog(known: Xid) -> Evidence:
    return Evidence(
        signal="xid_catalog",
        value=f"{known.xid_class} ({known.rule})",
        note=conflicts(known) or f"NVIDIA: {known.action.replace('_', ' ')}",
    )


def _strongest(found: list[Finding]) -> Finding:
    """The gravest finding, with the evidence of the others appended."""
    order = (Verdict.HEALTHY, Verdict.UNKNOWN, Verdict.DEGRADED)
    ranked = sorted(
        found,
        key=lambda item: (order.index(item.verdict), _SEVERITIES.index(item.severity), item.confidence_ratio),
        reverse=True,
    )
    first, *rest = ranked
    if not rest:
        return first
    also = ", ".join(item.summary.partition(" (")[0].partition(" is ")[0] for item in rest)
    extra = [evidence for item in rest for evidence in item.evidence if evidence not in first.evidence]
    return replace(first, summary=f"{first.summary}; also {also}", evidence=(*first.evidence, *extra))


def _words(cause: CommonCause) -> str:
    gpus = len({event.gpu.uuid for event in cause.events})
    where = f"{gpus} GPUs on {cause.homes} machine{'s' if cause.homes > 1 else ''} raised it together"
    if cause.subject.kind is not SubjectKind.FLEET:
        return f"{where}, all of {cause.subject}: one cause, and not each GPU's hardware"
    return f"{where}: a job, a rollout, a driver or the site is the likelier cause than each GPU's hardware"


def _together(fleet: Fleet, causes: list[CommonCause]) -> Iterable[Finding]:
    """One finding per subject that GPUs with the same XID share."""
    by_subject: dict[Subject, list[CommonCause]] = defaultdict(list)
    for cause in causes:
        by_subject[cause.subject].append(cause)
    for subject, found in by_subject.items():
        events = [event for cause in found for event in cause.events]
        gpus = {event.gpu.uuid: event.gpu for event in events}
        nodes = {gpu.lead.node for gpu in gpus.values()}
        times = [time for event in events for time in event.times]
        evidence = [
            Evidence(
                signal="xid_code",
                value=float(len({event.gpu.uuid for event in cause.events})),
                unit="GPUs",
                window_seconds=fleet.policy.common_cause_seconds,
                note=f"XID {cause.code} on {cause.homes} machines",
                promql=next((item.promql for event in cause.events for item in event.evidence if item.promql), ""),
            )
            for cause in found
        ]
        catalog = [_catalog(cause.known) for cause in found if cause.known is not None]
        nobodys = subject.kind in (SubjectKind.FLEET, SubjectKind.NODE)
        only_application = all(
            cause.known is not None and cause.known.xid_class is XidClass.APPLICATION for cause in found
        )
        yield conclude(
            subject,
            FindingKind.XID,
            Verdict.UNKNOWN,
            "; ".join(f"XID {cause.code}: {_words(cause)}" for cause in found),
            severity=Severity.INFO if only_application else Severity.WARNING,
            advice=Advice.WATCH if nobodys else Advice.FIX_APPLICATION,
            since=min(times, default=None),
            evidence=[*evidence, *catalog],
            missing=["a sign on one GPU alone that would make it that GPU's hardware"],
            gpus=gpus.values(),
            node=nodes.pop() if len(nodes) == 1 else None,
        )
