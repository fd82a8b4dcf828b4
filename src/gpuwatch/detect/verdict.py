"""Verdicts of others: the driver's recovery action, DCGM's health watches, a vendor's own health state."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from gpuwatch.detect.fleet import FLEET, SUSPECTED, Conclusion, Fleet, GpuAnswers, Judge, PhysicalGpu, conclude
from gpuwatch.detect.health_policy import HealthPolicy
from gpuwatch.model.decision import Advice, Finding, FindingKind, Severity, Verdict
from gpuwatch.model.telemetry import Signal, Statistic, WindowStat

DCGM_FAIL = 20
"""dcgm_structs.h: 0 pass, 10 warn, 20 fail."""
DCGM_WARN = 10

NOISY_WATCHES = frozenset({"THERMAL", "POWER"})
"""DCGM warns on any violation within a minute, which is normal on busy cards; the throttling rules measure them."""

EVERY_XID_WATCH = "ALL"
"""The watch that fails on any 'devastating' XID and stays failed until the host engine restarts."""

_WATCH_ADVICE = {
    "PCIE": Advice.INSPECT,
    "POWER": Advice.INSPECT,
    "THERMAL": Advice.INSPECT,
    "INFOROM": Advice.INSPECT,
    "NVLINK": Advice.RESET_WHEN_IDLE,
}


def recovery_action_needs(_: HealthPolicy) -> tuple[WindowStat, ...]:
    return (WindowStat(Signal.RECOVERY_ACTION_CODE, Statistic.LAST),)


def dcgm_health_needs(policy: HealthPolicy) -> tuple[WindowStat, ...]:
    return (
        WindowStat(Signal.HEALTH_STATUS_CODE, Statistic.LAST),
        WindowStat(Signal.HEALTH_STATUS_CODE, Statistic.MIN, policy.window_seconds),
        WindowStat(Signal.RECOVERY_ACTION_CODE, Statistic.LAST),
    )


def vendor_health_needs(policy: HealthPolicy) -> tuple[WindowStat, ...]:
    return (
        WindowStat(Signal.VENDOR_HEALTHY_STATE, Statistic.LAST),
        WindowStat(Signal.VENDOR_HEALTHY_STATE, Statistic.MAX, policy.window_seconds),
    )


class _Action(NamedTuple):
    """confidence_ratio: that the GPU is degraded; 0 where the action is not about it."""

    words: str
    severity: Severity
    advice: Advice
    confidence_ratio: float


# 0 to 5 are from go-nvml@2f9e261f, 6 and 7 only from a third party's copy of nvml.h (CUDA 13.4). The driver knows a
# GPU's state best, hence the highest confidence of all rules. 4 means 'works at reduced capacity: let the work end,
# then reset'. 5 is about the IMEX service of an NVLink domain; idle domains showed it for weeks (NVIDIA/aicr #2641).
_ACTIONS: dict[float, _Action] = {
    1: _Action("reset the GPU", Severity.CRITICAL, Advice.RESET, 0.98),
    2: _Action("reboot the Node", Severity.CRITICAL, Advice.REBOOT, 0.98),
    3: _Action("drain peer-to-peer traffic, then ask again what is needed", Severity.WARNING, Advice.WATCH, 0.8),
    4: _Action("drain the GPU and reset it", Severity.WARNING, Advice.RESET_WHEN_IDLE, 0.98),
    5: _Action("recover the IMEX domain, which is a service and not this GPU", Severity.INFO, Advice.WATCH, 0.0),
    6: _Action("reset the GPU's bus", Severity.CRITICAL, Advice.RESET, 0.8),
    7: _Action("reboot the system", Severity.CRITICAL, Advice.REBOOT, 0.8),
}


def recovery_action(fleet: Fleet) -> Judge:
    """The recovery action that the driver asks for now (DCGM field 1523; XID 154 is its event)."""
    kind = FindingKind.RECOVERY_ACTION
    (now,) = map(fleet.answers, recovery_action_needs(fleet.policy))
    changes = fleet.changes(Signal.RECOVERY_ACTION_CODE)

    def judge(gpu: PhysicalGpu) -> Conclusion:
        code = now.of(gpu)
        if code is None:
            return fleet.unknown(gpu, kind, "the driver's recovery action is not exported", [now.stat.signal])
        if code == 0:
            return fleet.healthy(gpu, kind, "the driver asks for nothing", now, confidence_ratio=0.95)
        since = next((change.at for change in reversed(changes.get(gpu.uuid, [])) if change.after == code), None)
        evidence = [now.evidence(gpu, comparison="!=", bound=0.0, at=since)]
        action = _ACTIONS.get(code)
        if action is None:
            return conclude(
                gpu,
                kind,
                Verdict.UNKNOWN,
                f"the driver asks for recovery action {code:g}, which is newer than this catalog",
                severity=Severity.WARNING,
                advice=Advice.WATCH,
                since=since,
                evidence=evidence,
                missing=[f"the meaning of recovery action {code:g}"],
            )
        degraded = action.confidence_ratio > 0
        return conclude(
            gpu,
            kind,
            Verdict.DEGRADED if degraded else Verdict.UNKNOWN,
            f"the driver asks to {action.words}",
            severity=action.severity,
            advice=action.advice,
            confidence_ratio=action.confidence_ratio,
            since=since,
            evidence=evidence,
            missing=[] if degraded else ["the state of the IMEX service"],
        )

    return judge


def dcgm_health(fleet: Fleet) -> tuple[Judge, list[Finding]]:
    """Failed DCGM health watches; 'WARN' is any violation within a minute and does not count.

    A watch that fails on a large part of the fleet is the likelier fault itself: one finding on the fleet instead.
    """
    kind = FindingKind.DCGM_HEALTH
    now, lowest, recovery = map(fleet.answers, dcgm_health_needs(fleet.policy))
    reporting = fleet.reporting(fleet.policy.window_seconds)

    def failed_watches(gpu: PhysicalGpu) -> dict[str, float]:
        watches = now.by_variant(gpu).items()
        return {name: code for name, code in watches if code >= DCGM_FAIL and name not in NOISY_WATCHES}

    watched: dict[str, list[PhysicalGpu]] = defaultdict(list)
    failing: dict[str, list[PhysicalGpu]] = defaultdict(list)
    for gpu in fleet.present:
        for name in now.by_variant(gpu):
            watched[name].append(gpu)
        for name in failed_watches(gpu):
            failing[name].append(gpu)
    everywhere = {name: gpus for name, gpus in failing.items() if _fleet_wide(fleet, gpus, watched[name])}

    def judge(gpu: PhysicalGpu) -> Conclusion:
        watches = now.by_variant(gpu)
        if not watches:
            return fleet.unknown(gpu, kind, "DCGM's health watches are not exported", [now.stat.signal])
        bad = failed_watches(gpu)
        failed = {name: code for name, code in bad.items() if name not in everywhere}
        if bad and not failed:
            return fleet.unknown(gpu, kind, f"{', '.join(sorted(bad))} failed, as all over the fleet", _ONE_GPU)
        if failed:
            stayed = lowest.by_variant(gpu)
            lasting = reporting(gpu) and any(stayed.get(name, 0.0) >= DCGM_FAIL for name in failed)
            return _failed(fleet, gpu, failed, lasting, now, recovery)
        warned = sorted(name for name, code in watches.items() if code >= DCGM_WARN)
        summary = f"no watch has failed; {', '.join(warned)} warned" if warned else "every watch passes"
        return fleet.healthy(gpu, kind, summary, confidence_ratio=0.7 if warned else 0.8)

    found = [
        _authority(fleet, kind, f"DCGM's health watch {name}", gpus, len(watched[name]), now)
        for name, gpus in sorted(everywhere.items())
    ]
    return judge, [_merged(found)] if found else []


_ONE_GPU = ("a failure of some GPUs and not of the fleet",)


def _fleet_wide(fleet: Fleet, bad: Sequence[PhysicalGpu], of: Sequence[PhysicalGpu]) -> bool:
    machines = {gpu.home for gpu in bad}
    return len(machines) >= fleet.policy.common_cause_nodes and len(bad) >= fleet.policy.fleet_wide_ratio * len(of)


def _authority(
    fleet: Fleet, kind: FindingKind, name: str, bad: Sequence[PhysicalGpu], total: int, answers: GpuAnswers
) -> Finding:
    """A check that fails on a large part of the fleet at once is the likelier fault."""
    share = answers.evidence(
        bad[0],
        len(bad) / total,
        unit="ratio",
        comparison=">=",
        bound=fleet.policy.fleet_wide_ratio,
        note=f"share of the GPUs that have {name}",
    )
    return conclude(
        FLEET,
        kind,
        Verdict.UNKNOWN,
        f"{name} fails on {len(bad)} of {total} GPUs at once: a matter of the check, or of what all share",
        severity=Severity.WARNING,
        advice=Advice.FIX_MONITORING,
        evidence=[share],
        missing=_ONE_GPU,
        gpus=bad,
    )


def _merged(found: Sequence[Finding]) -> Finding:
    """One finding for all watches: a subject has one finding of a kind."""
    return replace(
        found[0],
        summary="; ".join(item.summary for item in found),
        evidence=tuple(evidence for item in found for evidence in item.evidence),
        devices=tuple(dict.fromkeys(device for item in found for device in item.devices)),
        pods=tuple(dict.fromkeys(pod for item in found for pod in item.pods)),
    )


def _failed(
    fleet: Fleet, gpu: PhysicalGpu, failed: dict[str, float], lasting: bool, now: GpuAnswers, recovery: GpuAnswers
) -> Finding:
    names = sorted(failed)
    evidence = [
        now.evidence(gpu, failed[name], comparison=">=", bound=float(DCGM_FAIL), note=f"health watch {name}")
        for name in names
    ]
    asked = recovery.of(gpu)
    if names == [EVERY_XID_WATCH] and asked == 0:
        # The watch stays failed until the host engine restarts; the driver's state is current.
        return fleet.undecided(
            gpu,
            FindingKind.DCGM_HEALTH,
            "DCGM remembers a devastating XID, but the driver asks for no recovery",
            [*evidence, recovery.evidence(gpu, comparison="==", bound=0.0)],
            "when the XID was: the watch clears only when DCGM's host engine restarts",
        )
    # DCGM's texts contradict NVIDIA's own catalog, hence less than the driver's 0.98. A watch that passed within the
    # window may be flapping; one that the driver contradicts is no stronger.
    confidence = 0.85 if lasting and asked != 0 else SUSPECTED
    return conclude(
        gpu,
        FindingKind.DCGM_HEALTH,
        Verdict.DEGRADED,
        f"DCGM's health watch {' and '.join(names)} failed"
        + ("" if lasting else ", but not through the whole window")
        + (", though the driver asks for no recovery" if asked == 0 else ""),
        severity=Severity.CRITICAL if confidence > SUSPECTED else Severity.WARNING,
        advice=max((_WATCH_ADVICE.get(name, Advice.RESET) for name in names), key=list(Advice).index),
        confidence_ratio=confidence,
        since=fleet.before(fleet.policy.window_seconds) if lasting else None,
        evidence=evidence if asked is None else [*evidence, recovery.evidence(gpu)],
    )


def vendor_health(fleet: Fleet) -> tuple[Judge, list[Finding]]:
    """A vendor's own health state, such as AMD's gpu_health (unhealthy from the first uncorrectable error on) or
    Intel's hw_status; one finding on the fleet where a large part of it is unhealthy."""
    kind = FindingKind.VENDOR_HEALTH
    now, highest = map(fleet.answers, vendor_health_needs(fleet.policy))
    reporting = fleet.reporting(fleet.policy.window_seconds)
    asked = [gpu for gpu in fleet.present if now.of(gpu) is not None]
    bad = [gpu for gpu in asked if now.of(gpu) == 0]
    everywhere = _fleet_wide(fleet, bad, asked)

    def judge(gpu: PhysicalGpu) -> Conclusion:
        state = now.of(gpu)
        if state is None:
            return fleet.unknown(gpu, kind, "no verdict of the vendor is exported", [now.stat.signal])
        if state > 0:
            return fleet.healthy(gpu, kind, "the vendor's exporter calls it healthy", now, confidence_ratio=0.8)
        if everywhere:
            return fleet.unknown(gpu, kind, "called unhealthy by the vendor, as all over the fleet", _ONE_GPU)
        best = highest.of(gpu)
        lasting = best is not None and best <= 0 and reporting(gpu)
        # AMD's default calls a GPU unhealthy for one uncorrectable error, hence no more than 0.8.
        return conclude(
            gpu,
            kind,
            Verdict.DEGRADED if lasting else Verdict.UNKNOWN,
            "the vendor's exporter calls it unhealthy" + ("" if lasting else ", but not through the whole window"),
            severity=Severity.WARNING,
            advice=Advice.RESET_WHEN_IDLE if lasting else Advice.WATCH,
            confidence_ratio=0.8 if lasting else 0.0,
            since=fleet.before(fleet.policy.window_seconds) if lasting else None,
            evidence=[
                now.evidence(gpu, comparison="==", bound=0.0),
                highest.evidence(gpu, comparison="==", bound=0.0),
            ],
            missing=[] if lasting else ["a steady verdict through the window"],
        )

    name = "the vendor's own verdict"
    return judge, [_authority(fleet, kind, name, bad, len(asked), now)] if everywhere else []
