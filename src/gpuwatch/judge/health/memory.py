"""Faults of a GPU's memory: ECC errors, remapped rows, retired pages."""

from gpuwatch.facts.catalog.gpus import Gpu, find_gpu
from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, Severity
from gpuwatch.facts.model.telemetry import Signal, Statistic, Vendor, WindowStat
from gpuwatch.judge.fleet import SUSPECTED, Conclusion, Fleet, GpuAnswers, Grade, Judge, Peers, PhysicalGpu
from gpuwatch.judge.health.policy import HealthPolicy
from gpuwatch.judge.needs import stats

_UNCONTAINED_XIDS = (95, 140)
_CONTAINED_XIDS = (63, 94)
_ANY_DOUBLE_BIT = 48
_LETS_WORK_END = (0, 3, 4)
"""Recovery actions: none, drain peer-to-peer traffic, drain and reset."""
_ANOTHER_SERVICE = 5
_WITH_MIG = ": NVML does not give it for a GPU with MIG instances"
"""nvmlDeviceGetRemappedRows and nvmlDeviceGetMemoryErrorCounter (volatile counts) say so."""

_EXCHANGE = Grade(Severity.CRITICAL, Advice.REPLACE, 0.95)
_WHEN_IDLE = Grade(Severity.WARNING, Advice.RESET_WHEN_IDLE, 0.95)
_PENDING = Grade(Severity.INFO, Advice.RESET_WHEN_IDLE, 0.9)
"""Of memory that the card takes out of use at its next reset; it works until then."""


def ecc_needs(policy: HealthPolicy) -> tuple[WindowStat, ...]:
    dbe, dbe_lifetime = Signal.ECC_DBE_VOLATILE_TOTAL, Signal.ECC_DBE_AGGREGATE_TOTAL
    counters = (dbe, dbe_lifetime, Signal.ECC_SBE_VOLATILE_TOTAL, Signal.ECC_SBE_AGGREGATE_TOTAL)
    return (
        *stats(Statistic.LAST, 0, Signal.SRAM_ECC_THRESHOLD_EXCEEDED_STATE, dbe),
        *stats(Statistic.INCREASE, policy.change_window_seconds, *counters),
        *stats(Statistic.APPEARED, policy.change_window_seconds, dbe),
        *stats(Statistic.LAST, 0, Signal.ROW_REMAP_PENDING_STATE, Signal.RECOVERY_ACTION_CODE),
    )


def row_remap_needs(policy: HealthPolicy) -> tuple[WindowStat, ...]:
    rows = Signal.ROW_REMAP_UNCORRECTABLE_TOTAL
    spare = (Signal.MEMORY_UNREPAIRABLE_STATE, Signal.REMAP_BANKS_EXHAUSTED_COUNT, Signal.REMAP_BANKS_LOW_COUNT)
    return (
        *stats(Statistic.LAST, 0, Signal.ROW_REMAP_FAILED_STATE, Signal.ROW_REMAP_PENDING_STATE, rows, *spare),
        *stats(Statistic.INCREASE, policy.change_window_seconds, rows),
    )


def page_retirement_needs(policy: HealthPolicy) -> tuple[WindowStat, ...]:
    pages = (Signal.PAGES_RETIRED_SBE_TOTAL, Signal.PAGES_RETIRED_DBE_TOTAL, Signal.PAGES_RETIRED_PENDING_STATE)
    new = stats(Statistic.INCREASE, policy.retired_pages_window_seconds, pages[1])
    return (*stats(Statistic.LAST, 0, *pages), *new)


def ecc(fleet: Fleet) -> Judge:
    """New uncorrectable errors, or more corrected ones than peers have. Of lifetime counters the increase counts."""
    kind = FindingKind.ECC
    policy = fleet.policy
    window = policy.change_window_seconds
    sram, standing, dbe, dbe_lifetime, sbe, sbe_lifetime, appeared, *containment = map(fleet.answers, ecc_needs(policy))
    # Statistics of other rules, on the exporter's default list, that tell whether an error was contained.
    containment.append(fleet.answers(WindowStat(Signal.XID_CODE, Statistic.LAST)))
    containment.append(fleet.answers(WindowStat(Signal.ROW_REMAP_UNCORRECTABLE_TOTAL, Statistic.INCREASE, window)))
    reporting = fleet.reporting(window)
    sbe_peers = {
        answers.stat.key: fleet.peers(answers.times(1 / window), any_model=True) for answers in (sbe, sbe_lifetime)
    }

    def judge(gpu: PhysicalGpu) -> Conclusion:
        if (sram.of(gpu) or 0) > 0:
            # NVIDIA's own criterion for replacement, computed by the driver.
            summary = "uncorrectable SRAM errors passed the driver's threshold for exchange"
            return fleet.degraded(gpu, kind, summary, _EXCHANGE, [sram.evidence(gpu, comparison="==", bound=1.0)])
        # NVML's volatile counter starts at 0 with the driver: above 0 a reset is due, at 0 it was done. The counters of
        # other vendors may never start again.
        volatile = standing.of(gpu) if gpu.lead.vendor is Vendor.NVIDIA else None
        fresh = next((answers for answers in (dbe, dbe_lifetime) if (answers.of(gpu) or 0) > 0), None)
        if volatile or (fresh is not None and volatile is None):
            return _uncorrectable(gpu, fresh or standing, *containment)
        first = None if volatile == 0 else appeared.of(gpu)
        if first is not None and first > 0:
            summary = f"{first:g} uncorrectable ECC errors since the driver was loaded; telemetry began after them"
            missing = "when they were: the counter's series is new in the window"
            return fleet.undecided(gpu, kind, summary, [appeared.evidence(gpu, comparison=">", bound=0.0)], missing)
        corrected = sbe if sbe.of(gpu) is not None else sbe_lifetime
        rate = (corrected.of(gpu) or 0.0) / window
        if rate >= policy.corrected_ecc_per_second:
            return _corrected(fleet, gpu, corrected, rate, sbe_peers[corrected.stat.key](gpu))
        known = [answers for answers in (sram, standing, dbe, dbe_lifetime, sbe, sbe_lifetime) if answers.known(gpu)]
        if dbe.known(gpu) or dbe_lifetime.known(gpu):
            if reporting(gpu):
                return fleet.healthy(gpu, kind, "no uncorrectable ECC errors", *known)
            return fleet.unseen(gpu, kind, window)
        summary = f"uncorrectable ECC errors are not exported{_WITH_MIG if gpu.sliced else ''}"
        return fleet.unknown(gpu, kind, summary, [dbe.stat.signal, dbe_lifetime.stat.signal])

    return judge


def _uncorrectable(gpu: PhysicalGpu, seen: GpuAnswers, *containment: GpuAnswers) -> Finding:
    """Uncorrectable errors. A contained one affects only the program that met it: the driver takes the page out of use,
    other work goes on, and the reset can wait ('Response to Uncorrectable Contained ECC Errors'). Without a sign that
    the error was not contained, no running job is ended for it.

    The driver's recovery action outranks XIDs, which outrank the architecture. For XID 48 NVIDIA asks for a reset; with
    a 63 for a drain first.
    """
    pending, recovery, last_xid, new_rows = containment
    action, code, contained, grade = recovery.of(gpu), last_xid.of(gpu), None, _WHEN_IDLE
    waits = next((answers for answers in (pending, new_rows) if (answers.of(gpu) or 0) > 0), None)
    known = [] if waits is None else [waits.evidence(gpu, comparison=">", bound=0.0)]
    if action is not None and action != _ANOTHER_SERVICE:
        contained = action in _LETS_WORK_END
        known.append(recovery.evidence(gpu, comparison="==", bound=action))
    elif code in (*_UNCONTAINED_XIDS, *_CONTAINED_XIDS) or (code == _ANY_DOUBLE_BIT and not known):
        contained = code in _CONTAINED_XIDS
        known.append(last_xid.evidence(gpu, comparison="==", bound=code))
    elif known:
        contained = True
    elif (model := find_gpu(gpu.model)) is not None and model.vendor is Vendor.NVIDIA and not _contains(model):
        contained = False
    words = {True: "it was contained", False: "it was not contained", None: "whether it was contained is not known"}
    how = words[contained]
    if contained is False:
        grade = Grade(Severity.CRITICAL, Advice.RESET, 0.95)
    elif action == 0 and waits is None:
        how, grade = "the driver asks for no recovery", grade._replace(confidence_ratio=SUSPECTED)
    # increase() extrapolates: a single error can read as 1.03.
    count = max(round(seen.of(gpu) or 0.0), 1)
    errors = f"uncorrectable ECC error{'s' if count > 1 else ''}"
    new = seen.stat.statistic is Statistic.INCREASE
    summary = f"{count} new {errors}; {how}" if new else f"{count} {errors} since the driver was loaded; {how}"
    evidence = [seen.evidence(gpu, comparison=">", bound=0.0), *known]
    missing = [Signal.RECOVERY_ACTION_CODE, Signal.ROW_REMAP_PENDING_STATE] if contained is None else []
    return Fleet.degraded(gpu, FindingKind.ECC, summary, grade, evidence, missing=missing)


def _contains(model: Gpu) -> bool:
    """Whether it may contain errors: GA100, GH100 and GB10x ('Supported GPUs'), which of these generations have MIG."""
    return model.architecture in ("ampere", "hopper", "blackwell") and bool(model.mig_family)


def _corrected(fleet: Fleet, gpu: PhysicalGpu, corrected: GpuAnswers, rate: float, peers: Peers | None) -> Conclusion:
    """Many corrected errors: a fault only where the peers have fewer (NVIDIA asks for no action on XID 92)."""
    kind = FindingKind.ECC
    bound = fleet.policy.corrected_ecc_per_second
    compared = "GPUs of all models" if peers is not None and not peers.same_model else "peers"
    note = f"increase ÷ window, compared with {compared}"
    fact = corrected.evidence(gpu, rate, unit="errors/second", comparison=">=", bound=bound, peers=peers, note=note)
    if peers is None:
        summary = f"{rate:,.3g} corrected ECC errors per second, and too few GPUs to compare with"
        missing = f"{fleet.policy.min_peers} other GPUs that export corrected errors"
        return fleet.undecided(gpu, kind, summary, [fact], missing)
    if rate <= peers.upper(fleet.policy.peer_deviations):
        summary = f"{rate:,.3g} corrected ECC errors per second, as its peers have"
        return fleet.healthy(gpu, kind, summary, corrected, confidence_ratio=0.6)
    summary = f"{rate:,.3g} corrected ECC errors per second; {peers.count} {compared} have {peers.median:,.3g} (median)"
    # The GPU is an outlier; that it gets worse is unverified. A comparison with other models is less sure.
    grade = Grade(Severity.WARNING, Advice.RESET_WHEN_IDLE, 0.8 if peers.same_model else SUSPECTED)
    return fleet.degraded(gpu, kind, summary, grade, [fact])


def row_remap(fleet: Fleet) -> Judge:
    """Failed remapping is NVIDIA's criterion for replacement. A pending one can wait for the next reset (autopilot
    #55; NVML: it does not affect future work). DCGM warns of many remapped rows."""
    kind = FindingKind.ROW_REMAP
    failed, pending, rows, unrepairable, exhausted, low, new_rows = map(fleet.answers, row_remap_needs(fleet.policy))
    # A failure never clears, so one sample is enough. No recorded page shows the three that are only suspected.
    many = fleet.policy.remapped_rows
    signs: tuple[tuple[GpuAnswers, int, str, Grade], ...] = (
        (failed, 1, "a bad row could not be remapped", Grade(Severity.CRITICAL, Advice.REPLACE, 0.97)),
        (rows, many, "{:g} rows are remapped for uncorrectable errors", Grade(Severity.WARNING, Advice.WATCH, 0.7)),
        (pending, 1, "a remapped row waits for the next reset", _PENDING),
        (unrepairable, 1, "memory cannot be repaired", Grade(Severity.WARNING, Advice.REPLACE, SUSPECTED)),
        (exhausted, 1, "{:g} banks have no spare row left", Grade(Severity.WARNING, Advice.REPLACE, SUSPECTED)),
        (low, 1, "{:g} banks have few spare rows left", Grade(Severity.INFO, Advice.WATCH, SUSPECTED)),
    )

    def judge(gpu: PhysicalGpu) -> Conclusion:
        found = [sign for sign in signs if (sign[0].of(gpu) or 0) >= sign[1]]
        if found:
            words = "; ".join(text.format(answers.of(gpu)) for answers, _, text, _ in found)
            evidence = [answers.evidence(gpu, comparison=">=", bound=float(bound)) for answers, bound, *_ in found]
            if (new_rows.of(gpu) or 0) > 0:
                evidence.append(new_rows.evidence(gpu))
            # The surest sign leads; a suspected one does not raise the severity.
            lead = max((grade for *_, grade in found), key=lambda grade: grade.confidence_ratio)
            counted = [lead.severity, *(grade.severity for *_, grade in found if grade.confidence_ratio > SUSPECTED)]
            return fleet.degraded(
                gpu, kind, words, lead._replace(severity=max(counted, key=list(Severity).index)), evidence
            )
        if failed.of(gpu) is None and pending.of(gpu) is None:
            summary = f"the state of row remapping is not exported{_WITH_MIG if gpu.sliced else ''}"
            return fleet.unknown(gpu, kind, summary, [failed.stat.signal, pending.stat.signal])
        return fleet.healthy(gpu, kind, "no row waits or failed to be remapped", failed, pending, rows)

    return judge


def page_retirement(fleet: Fleet) -> Judge:
    """Retired pages (cards before Ampere), by DCGM's rules: nearly all 64 are used, or double-bit ones increase."""
    kind = FindingKind.PAGE_RETIREMENT
    policy = fleet.policy
    sbe, dbe, pending, dbe_new = map(fleet.answers, page_retirement_needs(policy))

    def judge(gpu: PhysicalGpu) -> Conclusion:
        single, double = sbe.of(gpu), dbe.of(gpu)
        total = (single or 0.0) + (double or 0.0)
        new = round(dbe_new.of(gpu) or 0.0)  # increase() extrapolates one page to 1.03
        evidence = []
        if total >= policy.retired_pages:
            bound = float(policy.retired_pages)
            evidence.append(dbe.evidence(gpu, total, comparison=">=", bound=bound, note="with SBE pages"))
            evidence.append(sbe.evidence(gpu))
            return fleet.degraded(gpu, kind, f"{total:g} pages are retired, of at most 64", _EXCHANGE, evidence)
        if double is not None and double > policy.retired_dbe_pages and new > policy.retired_dbe_pages_per_week:
            evidence.append(dbe.evidence(gpu, comparison=">", bound=float(policy.retired_dbe_pages)))
            evidence.append(dbe_new.evidence(gpu, comparison=">", bound=float(policy.retired_dbe_pages_per_week)))
            summary = f"{double:g} pages are retired for double-bit errors, {new} of them within the week"
            return fleet.degraded(gpu, kind, summary, _EXCHANGE._replace(confidence_ratio=0.9), evidence)
        if (pending.of(gpu) or 0) > 0:
            evidence.append(pending.evidence(gpu, comparison=">", bound=0.0))
            return fleet.degraded(gpu, kind, "a page waits for the next reset to be retired", _PENDING, evidence)
        if single is None and double is None and pending.of(gpu) is None:
            return fleet.unknown(gpu, kind, "retired pages are not exported", [sbe.stat.signal, dbe.stat.signal])
        return fleet.healthy(gpu, kind, "few pages are retired", sbe, dbe, pending)

    return judge
