"""Verdicts of others: the driver's recovery action, DCGM's health watches, a vendor's own health state."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpuwatch.facts.catalog.detectors import DcgmError, dcgm_error
from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, Severity
from gpuwatch.facts.model.telemetry import Signal, Statistic
from gpuwatch.judge.fleet import SUSPECTED, Conclusion, Fleet, GpuAnswers, Grade, PhysicalGpu, Tells
from gpuwatch.judge.places import together_finding
from gpuwatch.judge.rule import Ask, Judged, Rule

DCGM_FAIL = 20
"""dcgm_structs.h: 0 pass, 10 warn, 20 fail."""
DCGM_WARN = 10

_BEYOND_RESET = (Advice.REBOOT, Advice.REPLACE)
_DRAINS = (3, 4)  # recovery actions that let the work end first


_RECOVERY = Tells(
    FindingKind.RECOVERY_ACTION,
    "the driver asks for a reset, a drain or a reboot",
    "critical: reset, reboot; warning: reset_when_idle, watch",
)
_DCGM = Tells(
    FindingKind.DCGM_HEALTH,
    "a health watch of DCGM failed",
    "critical: reset, reboot, replace; warning: reset, reset_when_idle, inspect",
)
_VENDOR = Tells(FindingKind.VENDOR_HEALTH, "the vendor's own verdict (AMD, Intel, Gaudi)", "warning: reset_when_idle")


class _RecoveryAsked:
    def __init__(self, ask: Ask) -> None:
        self.now = ask(Signal.RECOVERY_ACTION_CODE)
        self.changes = ask.changes(Signal.RECOVERY_ACTION_CODE)


class _DcgmAsked:
    def __init__(self, ask: Ask) -> None:
        self.now = ask(Signal.HEALTH_STATUS_CODE)
        self.lowest = ask(Signal.HEALTH_STATUS_CODE, Statistic.MIN, ask.policy.window_seconds)
        self.recovery = ask(Signal.RECOVERY_ACTION_CODE)
        self.reporting = ask.reporting(ask.policy.window_seconds)


class _VendorAsked:
    def __init__(self, ask: Ask) -> None:
        self.now = ask(Signal.VENDOR_HEALTHY_STATE)
        self.highest = ask(Signal.VENDOR_HEALTHY_STATE, Statistic.MAX, ask.policy.window_seconds)
        self.reporting = ask.reporting(ask.policy.window_seconds)


# From nvidia-ml-py 13.615.71. The driver knows a GPU's state best, hence the highest confidence of all rules. 4 means
# 'works at reduced capacity: let the work end, then reset'.
_ACTIONS: dict[float, tuple[str, Grade]] = {
    1: ("reset the GPU", Grade(Severity.CRITICAL, Advice.RESET, 0.98)),
    2: ("reboot the Node", Grade(Severity.CRITICAL, Advice.REBOOT, 0.98)),
    3: ("drain peer-to-peer traffic, then ask again what is needed", Grade(Severity.WARNING, Advice.WATCH, 0.8)),
    4: ("drain the GPU and reset it", Grade(Severity.WARNING, Advice.RESET_WHEN_IDLE, 0.98)),
    6: ("reset the GPU's bus", Grade(Severity.CRITICAL, Advice.RESET, 0.98)),
    7: ("reboot the system", Grade(Severity.CRITICAL, Advice.REBOOT, 0.98)),
}
_BY_DRIVER = 5
"""GPU_RESET_BUS in nvidia-ml-py 13.580.82, missing in 13.590 and 13.595, RECOVER_IMEX_DOMAIN from 13.610 on. Idle
NVLink domains showed it for weeks (NVIDIA/aicr #2641)."""


def recovery_action(fleet: Fleet, asked: _RecoveryAsked) -> Judged:
    """The recovery action that the driver asks for now (DCGM field 1523; XID 154 is its event)."""
    kind, now = _RECOVERY, asked.now

    def judge(gpu: PhysicalGpu) -> Conclusion:
        code = now.of(gpu)
        if code is None:
            return fleet.unknown(gpu, kind, "the driver's recovery action is not exported", [now.stat.signal])
        if code == 0:
            return fleet.healthy(gpu, kind, "the driver asks for nothing", now, confidence_ratio=0.95)
        since = next((change.at for change in reversed(asked.changes.get(gpu.uuid, [])) if change.after == code), None)
        evidence = [now.evidence(gpu, comparison="!=", bound=0.0, at=since)]
        if code in _ACTIONS:
            words, grade = _ACTIONS[code]
            return fleet.degraded(gpu, kind, f"the driver asks to {words}", grade, evidence, since=since)
        if code == _BY_DRIVER:
            summary = "the driver asks to recover the IMEX domain (no GPU), or as version 580 to reset the GPU's bus"
            return fleet.undecided(gpu, kind, summary, evidence, "the driver's version, which decides what 5 means")
        summary = f"the driver asks for recovery action {code:g}, which is newer than this catalog"
        missing = f"the meaning of recovery action {code:g}"
        return fleet.undecided(gpu, kind, summary, evidence, missing, severity=Severity.WARNING)

    return Judged(judge)


class _Incident(NamedTuple):
    """What one watch shows: the exporter keeps only the last incident of a watch."""

    watch: str
    code: str
    status: float
    meaning: DcgmError

    @property
    def understood(self) -> bool:
        return self.meaning.code.startswith("DCGM_FR_") if self.code else self.meaning.code == self.watch


def _incidents(answers: GpuAnswers, gpu: PhysicalGpu) -> list[_Incident]:
    parts = ((*variant.partition(";")[::2], status) for variant, status in sorted(answers.by_variant(gpu).items()))
    return [_Incident(watch, code, status, dcgm_error(watch, code)) for watch, code, status in parts]


def dcgm_health(fleet: Fleet, asked: _DcgmAsked) -> Judged:
    """DCGM health watches that fail, and the few that can only warn, by their error code.

    A watch that fails on a large part of the fleet is the likelier fault itself: one finding on the fleet instead.
    """
    kind, now = _DCGM, asked.now

    def lasts(gpu: PhysicalGpu, incident: _Incident) -> bool:
        """Each code is a series of its own, so the watch lasted where none of its series was lower in the window."""
        stayed = [each.status for each in _incidents(asked.lowest, gpu) if each.watch == incident.watch]
        return bool(stayed) and min(stayed) >= incident.meaning.shown_from and asked.reporting(gpu)

    def shown(gpu: PhysicalGpu) -> list[_Incident]:
        """A warning counts only where it lasted: DCGM warns of a minute."""
        found = (each for each in _incidents(now, gpu) if each.status >= each.meaning.shown_from)
        return [each for each in found if each.status >= DCGM_FAIL or lasts(gpu, each)]

    watched: dict[str, list[PhysicalGpu]] = defaultdict(list)
    failing: dict[str, list[PhysicalGpu]] = defaultdict(list)
    for gpu in fleet.present:
        for name in {incident.watch for incident in _incidents(now, gpu)}:
            watched[name].append(gpu)
        for name in {incident.watch for incident in shown(gpu)}:
            failing[name].append(gpu)
    everywhere = {name: gpus for name, gpus in failing.items() if _fleet_wide(fleet, gpus, watched[name])}

    def judge(gpu: PhysicalGpu) -> Conclusion:
        if not now.by_variant(gpu):
            return fleet.unknown(gpu, kind, "DCGM's health watches are not exported", [now.stat.signal])
        bad = shown(gpu)
        failed = [incident for incident in bad if incident.watch not in everywhere]
        if bad and not failed:
            names = ", ".join(sorted({incident.watch for incident in bad}))
            return fleet.unknown(gpu, kind, f"{names} failed, as on a large part of the fleet", _ONE_GPU)
        if failed:
            lasting = any(lasts(gpu, each) for each in failed)
            return _failed(fleet, gpu, failed, lasting, asked)
        seen = (each for each in _incidents(now, gpu) if each.meaning.shown_from <= DCGM_FAIL)
        if names := ", ".join(sorted({each.watch for each in seen if each.status >= DCGM_WARN})):
            summary = f"no watch fails, but {names} warns; the exporter shows one incident of a watch"
            return fleet.unknown(gpu, kind, summary, [f"what else {names} has: dcgmi health --check"])
        return fleet.healthy(gpu, kind, "every watch passes", confidence_ratio=0.8)

    checks = {f"DCGM's health watch {name}": (gpus, watched[name]) for name, gpus in sorted(everywhere.items())}
    return Judged(judge, _failing_checks(fleet, kind, checks, now))


_ONE_GPU = ("a failure of some GPUs and not of the fleet",)


def _fleet_wide(fleet: Fleet, bad: Sequence[PhysicalGpu], of: Sequence[PhysicalGpu]) -> bool:
    machines = {gpu.home for gpu in bad}
    return len(machines) >= fleet.policy.common_cause_nodes and len(bad) >= fleet.policy.fleet_wide_ratio * len(of)


def _failing_checks(
    fleet: Fleet,
    kind: Tells,
    checks: Mapping[str, tuple[Sequence[PhysicalGpu], Sequence[PhysicalGpu]]],
    answers: GpuAnswers,
) -> list[Finding]:
    """One finding on all checks that fail on a large part of the fleet at once: the check is the likelier fault.

    checks: name → the GPUs that fail it, and those that have it."""
    bound, said, evidence = fleet.policy.fleet_wide_ratio, [], []
    for name, (bad, of) in checks.items():
        said.append(
            f"{name} fails on {len(bad)} of {len(of)} GPUs at once: look at the check first, or at what they share"
        )
        share, note = len(bad) / len(of), f"share of the GPUs that have {name}"
        evidence.append(answers.evidence(bad[0], share, unit="ratio", comparison=">=", bound=bound, note=note))
    gpus = dict.fromkeys(gpu for bad, _ in checks.values() for gpu in bad)
    more: dict[str, Any] = {"advice": Advice.FIX_MONITORING, "evidence": evidence, "missing": _ONE_GPU}
    return together_finding(kind, said, gpus, Severity.WARNING, **more)


def _failed(fleet: Fleet, gpu: PhysicalGpu, failed: list[_Incident], lasting: bool, asked: _DcgmAsked) -> Finding:
    kind, action = _DCGM, asked.recovery.of(gpu)
    evidence = [] if action is None else [asked.recovery.evidence(gpu)]
    for watch, code, status, _ in reversed(failed):
        note = f"health watch {watch}: {code}" if code else f"health watch {watch}"
        evidence.insert(
            0, asked.now.evidence(gpu, status, comparison=">=", bound=float(min(status, DCGM_FAIL)), note=note)
        )
    # The catalog has to know the code. Where the exporter gives no code, it has to know the watch.
    understood = [each for each in failed if each.understood]
    if not understood:
        # The GPU or its surroundings may be at fault, so it is no second sign for an XID either.
        names = " and ".join(f"{each.watch} ({each.code or 'no code'})" for each in failed)
        summary = f"DCGM's health watch {names} failed, by an error that is not in the catalog"
        missing = "what the error means: dcgmi health --check"
        return fleet.undecided(gpu, kind, summary, evidence, missing, severity=Severity.WARNING)
    failed = understood
    # The driver outranks the watch, except for faults that no reset cures: where it asks for nothing, no reset is due;
    # where it asks for a drain, the drain comes first.
    lasts = [each for each in failed if each.meaning.advice in _BEYOND_RESET]
    contradicted = action == 0 and not lasts
    causes = lasts if action == 0 and lasts else failed
    if not action:
        causes = [each for each in causes if not each.meaning.remembered] or causes
    remembered = not action and causes[0].meaning.remembered
    if contradicted and remembered:
        summary = "DCGM remembers a devastating XID, but the driver asks for no recovery"
        missing = "when the XID was: the watch clears only when DCGM's host engine restarts"
        return fleet.undecided(gpu, kind, summary, evidence, missing)
    # DCGM's texts contradict NVIDIA's own catalog, hence less than the driver's 0.98. A watch that passed within the
    # window may be flapping; a warning, or a fault that may be repaired already, is as weak.
    sure = lasting and not contradicted and not remembered and any(each.status >= DCGM_FAIL for each in causes)
    advice = max((each.meaning.advice for each in causes), key=list(Advice).index)
    severity = max((each.meaning.severity for each in causes), key=list(Severity).index)
    if action in _DRAINS and advice not in _BEYOND_RESET:
        advice, severity = Advice.RESET_WHEN_IDLE, Severity.WARNING
    summary = "DCGM's health watch " + " and ".join(f"{each.watch} ({each.meaning.words})" for each in causes)
    summary += " failed" if causes[0].status >= DCGM_FAIL else " warns"
    summary += "" if lasting else ", but not through the whole window"
    return fleet.degraded(
        gpu,
        kind,
        summary + (", though the driver asks for no recovery" if contradicted else ""),
        Grade(severity, advice, 0.85) if sure else Grade(Severity.WARNING, advice, SUSPECTED),
        evidence,
        since=fleet.before(fleet.policy.window_seconds) if lasting else None,
        missing=["whether it was repaired since: DCGM keeps an XID until its host engine restarts"] * remembered,
        components=dict.fromkeys(component for each in causes for component in each.meaning.components),
    )


def vendor_health(fleet: Fleet, asked: _VendorAsked) -> Judged:
    """A vendor's own health state (AMD's gpu_health, Intel's hw_status); one finding where much of the fleet fails."""
    kind, now, highest = _VENDOR, asked.now, asked.highest
    known = [gpu for gpu in fleet.present if now.of(gpu) is not None]
    bad = [gpu for gpu in known if now.of(gpu) == 0]
    everywhere = _fleet_wide(fleet, bad, known)

    def judge(gpu: PhysicalGpu) -> Conclusion:
        state = now.of(gpu)
        if state is None:
            return fleet.unknown(gpu, kind, "no verdict of the vendor is exported", [now.stat.signal])
        if state > 0:
            return fleet.healthy(gpu, kind, "the vendor's exporter calls it healthy", now, confidence_ratio=0.8)
        if everywhere:
            words = "the vendor's exporter calls it unhealthy, as a large part of the fleet"
            return fleet.unknown(gpu, kind, words, _ONE_GPU)
        best = highest.of(gpu)
        lasting = best is not None and best <= 0 and asked.reporting(gpu)
        facts = [answers.evidence(gpu, comparison="==", bound=0.0) for answers in (now, highest)]
        summary = "the vendor's exporter calls it unhealthy"
        if not lasting:
            missing = "a steady verdict through the window"
            return fleet.undecided(gpu, kind, f"{summary}, but not through the whole window", facts, missing)
        # AMD's default calls a GPU unhealthy for one uncorrectable error, hence no more than 0.8.
        grade = Grade(Severity.WARNING, Advice.RESET_WHEN_IDLE, 0.8)
        return fleet.degraded(gpu, kind, summary, grade, facts, since=fleet.before(fleet.policy.window_seconds))

    checks = {"the vendor's own verdict": (bad, known)} if everywhere else {}
    return Judged(judge, _failing_checks(fleet, kind, checks, now))


RECOVERY_ACTION = Rule(tells=(_RECOVERY,), needs=_RecoveryAsked, judge=recovery_action)
DCGM_HEALTH = Rule(tells=(_DCGM,), needs=_DcgmAsked, judge=dcgm_health)
VENDOR_HEALTH = Rule(tells=(_VENDOR,), needs=_VendorAsked, judge=vendor_health)
