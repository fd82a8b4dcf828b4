"""Faults of a GPU's memory: ECC errors, remapped rows, retired pages."""

from gpuwatch.detect.fleet import SUSPECTED, Conclusion, Fleet, GpuAnswers, Judge, Peers, PhysicalGpu, conclude
from gpuwatch.detect.health_policy import HealthPolicy
from gpuwatch.model.decision import Advice, Evidence, FindingKind, Severity, Verdict
from gpuwatch.model.telemetry import Signal, Statistic, WindowStat

_COUNTED_CONFIDENCE = 0.95
"""Of a hardware counter that increased, or a criterion for replacement by the driver or DCGM; only a wrong reading is
left."""
_PENDING_CONFIDENCE = 0.9
"""Of memory that the card takes out of use at its next reset; it works until then."""


def ecc_needs(policy: HealthPolicy) -> tuple[WindowStat, ...]:
    window = policy.change_window_seconds
    return (
        WindowStat(Signal.SRAM_ECC_THRESHOLD_EXCEEDED_STATE, Statistic.LAST),
        WindowStat(Signal.ECC_DBE_VOLATILE_TOTAL, Statistic.INCREASE, window),
        WindowStat(Signal.ECC_DBE_VOLATILE_TOTAL, Statistic.APPEARED, window),
        WindowStat(Signal.ECC_DBE_AGGREGATE_TOTAL, Statistic.INCREASE, window),
        WindowStat(Signal.ECC_SBE_VOLATILE_TOTAL, Statistic.INCREASE, window),
        WindowStat(Signal.ECC_SBE_AGGREGATE_TOTAL, Statistic.INCREASE, window),
        WindowStat(Signal.ROW_REMAP_PENDING_STATE, Statistic.LAST),
    )


def row_remap_needs(policy: HealthPolicy) -> tuple[WindowStat, ...]:
    return (
        WindowStat(Signal.ROW_REMAP_FAILED_STATE, Statistic.LAST),
        WindowStat(Signal.ROW_REMAP_PENDING_STATE, Statistic.LAST),
        WindowStat(Signal.ROW_REMAP_UNCORRECTABLE_TOTAL, Statistic.LAST),
        WindowStat(Signal.ROW_REMAP_UNCORRECTABLE_TOTAL, Statistic.INCREASE, policy.change_window_seconds),
    )


def page_retirement_needs(policy: HealthPolicy) -> tuple[WindowStat, ...]:
    return (
        WindowStat(Signal.PAGES_RETIRED_SBE_TOTAL, Statistic.LAST),
        WindowStat(Signal.PAGES_RETIRED_DBE_TOTAL, Statistic.LAST),
        WindowStat(Signal.PAGES_RETIRED_DBE_TOTAL, Statistic.INCREASE, policy.retired_pages_window_seconds),
        WindowStat(Signal.PAGES_RETIRED_PENDING_STATE, Statistic.LAST),
    )


def ecc(fleet: Fleet) -> Judge:
    """New uncorrectable errors, or more corrected ones than the peers have. Lifetime counters survive reboots, so only
    their increase counts."""
    kind = FindingKind.ECC
    policy = fleet.policy
    window = policy.change_window_seconds
    stats = ecc_needs(policy)
    sram, dbe, appeared, dbe_lifetime, sbe, sbe_lifetime, pending = map(fleet.answers, stats)
    reporting = fleet.reporting(window)
    sbe_peers = {
        answers.stat.key: fleet.peers(answers.times(1 / window), any_model=True) for answers in (sbe, sbe_lifetime)
    }

    def judge(gpu: PhysicalGpu) -> Conclusion:
        if (sram.of(gpu) or 0) > 0:
            # NVIDIA's own criterion for replacement, computed by the driver.
            return conclude(
                gpu,
                kind,
                Verdict.DEGRADED,
                "uncorrectable SRAM errors passed the driver's threshold for exchange",
                severity=Severity.CRITICAL,
                advice=Advice.REPLACE,
                confidence_ratio=_COUNTED_CONFIDENCE,
                evidence=[sram.evidence(gpu, comparison="==", bound=1.0)],
            )
        fresh = next((answers for answers in (dbe, dbe_lifetime) if (answers.of(gpu) or 0) > 0), None)
        if fresh is not None:
            return _uncorrectable(gpu, fresh, pending)
        first = appeared.of(gpu)
        if first is not None and first > 0:
            summary = f"{first:g} uncorrectable ECC errors since the driver was loaded; telemetry began after them"
            missing = "when they were: the counter's series is new in the window"
            return fleet.undecided(gpu, kind, summary, [appeared.evidence(gpu, comparison=">", bound=0.0)], missing)
        corrected = sbe if sbe.of(gpu) is not None else sbe_lifetime
        rate = (corrected.of(gpu) or 0.0) / window
        if rate >= policy.corrected_ecc_per_second:
            return _corrected(fleet, gpu, corrected, rate, sbe_peers[corrected.stat.key](gpu))
        known = [answers for answers in (sram, dbe, dbe_lifetime, sbe, sbe_lifetime) if answers.known(gpu)]
        if dbe.known(gpu) or dbe_lifetime.known(gpu):
            if reporting(gpu):
                return fleet.healthy(gpu, kind, "no uncorrectable ECC errors", *known)
            return fleet.unseen(gpu, kind, window)
        return fleet.unknown(
            gpu, kind, "uncorrectable ECC errors are not exported", [dbe.stat.signal, dbe_lifetime.stat.signal]
        )

    return judge


def _uncorrectable(gpu: PhysicalGpu, fresh: GpuAnswers, pending: GpuAnswers) -> Conclusion:
    """New double-bit errors. From Ampere on the driver takes the row out of use, and the reset can wait; otherwise the
    GPU has to be reset before its memory is used again (XID 48's workflow)."""
    contained = (pending.of(gpu) or 0) > 0
    # increase() extrapolates: a single error can read as 1.03.
    count = max(round(fresh.of(gpu) or 0.0), 1)
    evidence: list[Evidence] = [fresh.evidence(gpu, comparison=">", bound=0.0)]
    if contained:
        evidence.append(pending.evidence(gpu, comparison="==", bound=1.0))
    return conclude(
        gpu,
        FindingKind.ECC,
        Verdict.DEGRADED,
        f"{count} new uncorrectable ECC error{'s' if count > 1 else ''}"
        + ("; the row is to be remapped at the next reset" if contained else ""),
        severity=Severity.WARNING if contained else Severity.CRITICAL,
        advice=Advice.RESET_WHEN_IDLE if contained else Advice.RESET,
        confidence_ratio=_COUNTED_CONFIDENCE,
        evidence=evidence,
    )


def _corrected(fleet: Fleet, gpu: PhysicalGpu, corrected: GpuAnswers, rate: float, peers: Peers | None) -> Conclusion:
    """Many corrected errors: a fault only where the peers have fewer (NVIDIA asks for no action on XID 92)."""
    kind = FindingKind.ECC
    bound = fleet.policy.corrected_ecc_per_second
    whom = "GPUs of all models" if peers is not None and not peers.same_model else "peers"
    fact = corrected.evidence(
        gpu,
        rate,
        unit="errors/second",
        comparison=">=",
        bound=bound,
        peers=peers,
        note=f"increase ÷ window, compared with {whom}",
    )
    if peers is None:
        summary = f"{rate:,.3g} corrected ECC errors per second, and too few GPUs to compare with"
        missing = f"{fleet.policy.min_peers} other GPUs that export corrected errors"
        return fleet.undecided(gpu, kind, summary, [fact], missing)
    if rate <= peers.upper(fleet.policy.peer_deviations):
        summary = f"{rate:,.3g} corrected ECC errors per second, as its peers have"
        return fleet.healthy(gpu, kind, summary, corrected, confidence_ratio=0.6)
    return conclude(
        gpu,
        kind,
        Verdict.DEGRADED,
        f"{rate:,.3g} corrected ECC errors per second; the median of {peers.count} {whom} has {peers.median:,.3g}",
        severity=Severity.WARNING,
        advice=Advice.RESET_WHEN_IDLE,
        # The outlier is certain; that it gets worse is not ('SBE trend predicts' is unverified). Memory of other models
        # compares less well.
        confidence_ratio=0.8 if peers.same_model else SUSPECTED,
        evidence=[fact],
    )


def row_remap(fleet: Fleet) -> Judge:
    """Failed remapping is NVIDIA's criterion for replacement. A pending one can wait for the next reset (autopilot
    #55). DCGM warns of many remapped rows."""
    kind = FindingKind.ROW_REMAP
    failed, pending, rows, new_rows = map(fleet.answers, row_remap_needs(fleet.policy))
    bound = fleet.policy.remapped_rows

    def judge(gpu: PhysicalGpu) -> Conclusion:
        evidence: list[Evidence] = []
        words: list[str] = []
        severity, advice, confidence = Severity.INFO, Advice.NONE, 0.0
        if (failed.of(gpu) or 0) > 0:
            words.append("a bad row could not be remapped")
            evidence.append(failed.evidence(gpu, comparison="==", bound=1.0))
            # The card's own state, which never clears: one sample is enough.
            severity, advice, confidence = Severity.CRITICAL, Advice.REPLACE, 0.97
        count = rows.of(gpu)
        if count is not None and count >= bound:
            words.append(f"{count:g} rows are remapped for uncorrectable errors")
            evidence.append(rows.evidence(gpu, comparison=">=", bound=float(bound)))
            if advice is Advice.NONE:
                # DCGM warns; the card still works and reports no lack of spare rows.
                severity, advice, confidence = Severity.WARNING, Advice.WATCH, 0.7
        if (pending.of(gpu) or 0) > 0:
            words.append("a remapped row waits for the next reset")
            evidence.append(pending.evidence(gpu, comparison="==", bound=1.0))
            if advice is not Advice.REPLACE:
                advice, confidence = Advice.RESET_WHEN_IDLE, _PENDING_CONFIDENCE
        if words:
            if (new_rows.of(gpu) or 0) > 0:
                evidence.append(new_rows.evidence(gpu))
            return conclude(
                gpu,
                kind,
                Verdict.DEGRADED,
                "; ".join(words),
                severity=severity,
                advice=advice,
                confidence_ratio=confidence,
                evidence=evidence,
            )
        if failed.of(gpu) is None and pending.of(gpu) is None:
            return fleet.unknown(
                gpu, kind, "the state of row remapping is not exported", [failed.stat.signal, pending.stat.signal]
            )
        return fleet.healthy(gpu, kind, "no row waits or failed to be remapped", failed, pending, rows)

    return judge


def page_retirement(fleet: Fleet) -> Judge:
    """Retired pages (cards before Ampere), by DCGM's rules: nearly all 64 are used, or double-bit ones increase."""
    kind = FindingKind.PAGE_RETIREMENT
    policy = fleet.policy
    sbe, dbe, dbe_new, pending = map(fleet.answers, page_retirement_needs(policy))

    def judge(gpu: PhysicalGpu) -> Conclusion:
        single, double = sbe.of(gpu), dbe.of(gpu)
        total = (single or 0.0) + (double or 0.0)
        new = dbe_new.of(gpu) or 0.0
        if total >= policy.retired_pages:
            return conclude(
                gpu,
                kind,
                Verdict.DEGRADED,
                f"{total:g} pages are retired, of at most 64",
                severity=Severity.CRITICAL,
                advice=Advice.REPLACE,
                confidence_ratio=_COUNTED_CONFIDENCE,
                evidence=[
                    dbe.evidence(gpu, total, comparison=">=", bound=float(policy.retired_pages), note="with SBE pages"),
                    sbe.evidence(gpu),
                ],
            )
        if double is not None and double > policy.retired_dbe_pages and new > policy.retired_dbe_pages_per_week:
            return conclude(
                gpu,
                kind,
                Verdict.DEGRADED,
                f"{double:g} pages are retired for double-bit errors, {round(new)} of them within the week",
                severity=Severity.CRITICAL,
                advice=Advice.REPLACE,
                confidence_ratio=0.9,
                evidence=[
                    dbe.evidence(gpu, comparison=">", bound=float(policy.retired_dbe_pages)),
                    dbe_new.evidence(gpu, comparison=">", bound=float(policy.retired_dbe_pages_per_week)),
                ],
            )
        if (pending.of(gpu) or 0) > 0:
            return conclude(
                gpu,
                kind,
                Verdict.DEGRADED,
                "a page waits for the next reset to be retired",
                advice=Advice.RESET_WHEN_IDLE,
                confidence_ratio=_PENDING_CONFIDENCE,
                evidence=[pending.evidence(gpu, comparison=">", bound=0.0)],
            )
        if single is None and double is None and pending.of(gpu) is None:
            return fleet.unknown(gpu, kind, "retired pages are not exported", [sbe.stat.signal, dbe.stat.signal])
        return fleet.healthy(gpu, kind, "few pages are retired", sbe, dbe, pending)

    return judge
