"""Faults of a GPU's memory: ECC errors, remapped rows, retired pages."""

from typing import NamedTuple

from gpuwatch.facts.catalog.gpus import Gpu, find_gpu
from gpuwatch.facts.model.decision import Advice, Component, Evidence, Finding, FindingKind, Severity
from gpuwatch.facts.model.telemetry import Signal, Statistic, Vendor
from gpuwatch.judge.fleet import SUSPECTED, Conclusion, Fleet, GpuAnswers, Grade, Peers, PhysicalGpu, Tells
from gpuwatch.judge.rule import Ask, Judged, Rule

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
_MANY_ROWS = Grade(Severity.WARNING, Advice.WATCH, 0.7)
_DEFERRED = Grade(Severity.INFO, Advice.WATCH, 0.9)
_PENDING = Grade(Severity.INFO, Advice.RESET_WHEN_IDLE, 0.9)
"""Of memory that the card takes out of use at its next reset; it works until then."""


_CORRECTED_PER_SECOND = 0.1
"""Corrected ECC errors, over the change window, from which a GPU is compared with its peers. A healthy fleet shows
none, the known degraded GPU showed 17,700 (NVSentinel #1748)."""
_REMAPPED_ROWS = 512
"""Rows remapped for uncorrectable errors from which a GPU is degraded: DCGM warns from there."""
_NEW_ROWS_PER_WEEK = 3
"""Rows remapped within a week from which a GPU is worn out. One error takes a row, or two; where pages are retired,
NVIDIA calls more than one a week too many (DCGM_FR_RETIRED_PAGES_DBE_LIMIT)."""
_WORN_OUT = "{:g} rows were remapped within the week: let its work end, then run the field diagnostic"
_EXCHANGE_SOON = Grade(Severity.WARNING, Advice.REPLACE, 0.8)
_RETIRED_PAGES = 63
"""Retired pages, of at most 64, from which a GPU is degraded: DCGM's bound."""
_RETIRED_DBE_PAGES, _RETIRED_DBE_PAGES_PER_WEEK = 15, 1
"""A GPU is degraded with more double-bit pages than the first, of which more than the second are new within the week:
DCGM's bounds."""
_WEEK_SECONDS = 7 * 24 * 3600

_ECC = Tells(
    FindingKind.ECC,
    "uncorrectable memory errors, or many corrected ones",
    "critical: replace, reset; warning: reset_when_idle; info: watch",
    (Component.MEMORY,),
)
_REMAP = Tells(
    FindingKind.ROW_REMAP,
    "a memory row was remapped, or could not be",
    "critical: replace; warning: replace, watch; info: reset_when_idle, watch",
    (Component.MEMORY,),
)
_PAGES = Tells(
    FindingKind.PAGE_RETIREMENT,
    "memory pages were retired (before Ampere)",
    "critical: replace; info: reset_when_idle",
    (Component.MEMORY,),
)


class _EccAsked:
    def __init__(self, ask: Ask) -> None:
        window = ask.policy.change_window_seconds
        self.sram = ask(Signal.SRAM_ECC_THRESHOLD_EXCEEDED_STATE)
        self.standing = ask(Signal.ECC_DBE_VOLATILE_TOTAL)
        self.dbe = ask(Signal.ECC_DBE_VOLATILE_TOTAL, Statistic.INCREASE, window)
        self.dbe_lifetime = ask(Signal.ECC_DBE_AGGREGATE_TOTAL, Statistic.INCREASE, window)
        self.sbe = ask(Signal.ECC_SBE_VOLATILE_TOTAL, Statistic.INCREASE, window)
        self.deferred = ask(Signal.ECC_DEFERRED_TOTAL, Statistic.INCREASE, window)
        self.sbe_lifetime = ask(Signal.ECC_SBE_AGGREGATE_TOTAL, Statistic.INCREASE, window)
        self.appeared = ask(Signal.ECC_DBE_VOLATILE_TOTAL, Statistic.APPEARED, window)
        # What tells whether an error was contained. The last two are on the exporter's default list.
        self.pending = ask(Signal.ROW_REMAP_PENDING_STATE)
        self.recovery = ask(Signal.RECOVERY_ACTION_CODE)
        self.last_xid = ask.context(Signal.XID_CODE)
        self.new_rows = ask.context(Signal.ROW_REMAP_UNCORRECTABLE_TOTAL, Statistic.INCREASE, window)
        self.reporting = ask.reporting(window)


class _RemapAsked:
    def __init__(self, ask: Ask) -> None:
        rows = Signal.ROW_REMAP_UNCORRECTABLE_TOTAL
        self.failed = ask(Signal.ROW_REMAP_FAILED_STATE)
        self.pending = ask(Signal.ROW_REMAP_PENDING_STATE)
        self.rows = ask(rows)
        self.unrepairable = ask(Signal.MEMORY_UNREPAIRABLE_STATE)
        self.exhausted = ask(Signal.REMAP_BANKS_EXHAUSTED_COUNT)
        self.low = ask(Signal.REMAP_BANKS_LOW_COUNT)
        self.new_rows = ask(rows, Statistic.INCREASE, ask.policy.change_window_seconds)
        # Each Pod has a series of its own; a count that rises between two of them rises in no series.
        self.least_rows = ask.context(rows, Statistic.MIN, _WEEK_SECONDS)


class _PagesAsked:
    def __init__(self, ask: Ask) -> None:
        self.sbe = ask(Signal.PAGES_RETIRED_SBE_TOTAL)
        self.dbe = ask(Signal.PAGES_RETIRED_DBE_TOTAL)
        self.pending = ask(Signal.PAGES_RETIRED_PENDING_STATE)
        self.dbe_new = ask(Signal.PAGES_RETIRED_DBE_TOTAL, Statistic.INCREASE, _WEEK_SECONDS)


def ecc(fleet: Fleet, asked: _EccAsked) -> Judged:
    """New uncorrectable errors, or more corrected ones than peers have. Of lifetime counters the increase counts."""
    kind, window = _ECC, fleet.policy.change_window_seconds
    sram, standing, dbe, sbe = asked.sram, asked.standing, asked.dbe, asked.sbe
    dbe_lifetime, sbe_lifetime, appeared = asked.dbe_lifetime, asked.sbe_lifetime, asked.appeared
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
            return _uncorrectable(gpu, fresh or standing, asked)
        first = None if volatile == 0 else appeared.of(gpu)
        if first is not None and first > 0:
            summary = f"{first:g} uncorrectable ECC errors since the driver was loaded; telemetry began after them"
            missing = "when they were: the counter's series is new in the window"
            return fleet.undecided(gpu, kind, summary, [appeared.evidence(gpu, comparison=">", bound=0.0)], missing)
        corrected = sbe if sbe.of(gpu) is not None else sbe_lifetime
        rate = (corrected.of(gpu) or 0.0) / window
        if rate >= _CORRECTED_PER_SECOND:
            return _corrected(fleet, gpu, corrected, rate, sbe_peers[corrected.stat.key](gpu))
        if deferred := round(asked.deferred.of(gpu) or 0.0):
            # The memory marked the data as bad. Only work that reads it ends, and then the error is uncorrectable.
            words = f"{deferred} new deferred memory errors: bad data that no work has read yet"
            return fleet.degraded(
                gpu, kind, words, _DEFERRED, [asked.deferred.evidence(gpu, comparison=">", bound=0.0)]
            )
        known = [answers for answers in (sram, standing, dbe, dbe_lifetime, sbe, sbe_lifetime) if answers.known(gpu)]
        if dbe.known(gpu) or dbe_lifetime.known(gpu):
            if asked.reporting(gpu):
                return fleet.healthy(gpu, kind, "no uncorrectable ECC errors", *known)
            return fleet.unseen(gpu, kind, window)
        summary = f"uncorrectable ECC errors are not exported{_WITH_MIG if gpu.sliced else ''}"
        return fleet.unknown(gpu, kind, summary, [dbe.stat.signal, dbe_lifetime.stat.signal])

    return Judged(judge)


class _Containment(NamedTuple):
    """contained: None where nothing tells. row: evidence of a row that waits to be remapped, or was. evidence: that
    too, and what tells."""

    contained: bool | None
    row: tuple[Evidence, ...]
    evidence: tuple[Evidence, ...]


_CONTAINED: dict[bool | None, tuple[str, Grade]] = {
    True: ("it was contained", _WHEN_IDLE),
    False: ("it was not contained", Grade(Severity.CRITICAL, Advice.RESET, 0.95)),
    None: ("whether it was contained is not known", _WHEN_IDLE),
}


def _containment(gpu: PhysicalGpu, asked: _EccAsked) -> _Containment:
    """Whether an error was contained. The driver's recovery action outranks XIDs, which outrank the architecture. For
    XID 48 NVIDIA asks for a reset; with a 63 for a drain first."""
    action, code = asked.recovery.of(gpu), asked.last_xid.of(gpu)
    waits = next((answers for answers in (asked.pending, asked.new_rows) if (answers.of(gpu) or 0) > 0), None)
    row = () if waits is None else (waits.evidence(gpu, comparison=">", bound=0.0),)
    if action is not None and action != _ANOTHER_SERVICE:
        said = asked.recovery.evidence(gpu, comparison="==", bound=action)
        return _Containment(action in _LETS_WORK_END, row, (*row, said))
    if code in (*_UNCONTAINED_XIDS, *_CONTAINED_XIDS) or (code == _ANY_DOUBLE_BIT and not row):
        said = asked.last_xid.evidence(gpu, comparison="==", bound=code)
        return _Containment(code in _CONTAINED_XIDS, row, (*row, said))
    model = find_gpu(gpu.model)
    never = model is not None and model.vendor is Vendor.NVIDIA and not _contains(model)
    return _Containment(True if row else False if never else None, row, row)


def _uncorrectable(gpu: PhysicalGpu, seen: GpuAnswers, asked: _EccAsked) -> Finding:
    """Uncorrectable errors. A contained one affects only the program that met it: the driver takes the page out of use,
    other work goes on, and the reset can wait ('Response to Uncorrectable Contained ECC Errors'). Without a sign that
    the error was not contained, no running job is ended for it."""
    found = _containment(gpu, asked)
    how, grade = _CONTAINED[found.contained]
    if asked.recovery.of(gpu) == 0 and not found.row:
        how, grade = "the driver asks for no recovery", grade._replace(confidence_ratio=SUSPECTED)
    # increase() extrapolates: a single error can read as 1.03.
    count = max(round(seen.of(gpu) or 0.0), 1)
    errors = f"uncorrectable ECC error{'s' if count > 1 else ''}"
    new = seen.stat.statistic is Statistic.INCREASE
    summary = f"{count} new {errors}; {how}" if new else f"{count} {errors} since the driver was loaded; {how}"
    evidence = [seen.evidence(gpu, comparison=">", bound=0.0), *found.evidence]
    missing = [Signal.RECOVERY_ACTION_CODE, Signal.ROW_REMAP_PENDING_STATE] if found.contained is None else []
    return Fleet.degraded(gpu, _ECC, summary, grade, evidence, missing=missing)


def _contains(model: Gpu) -> bool:
    """Whether it may contain errors: GA100, GH100 and GB10x ('Supported GPUs'), which of these generations have MIG."""
    return model.architecture in ("ampere", "hopper", "blackwell") and bool(model.mig_family)


def _corrected(fleet: Fleet, gpu: PhysicalGpu, corrected: GpuAnswers, rate: float, peers: Peers | None) -> Conclusion:
    """Many corrected errors: a fault only where the peers have fewer (NVIDIA asks for no action on XID 92)."""
    kind, bound = _ECC, _CORRECTED_PER_SECOND
    compared = "GPUs of all models" if peers is not None and not peers.same_model else "peers"
    note = f"increase ÷ window, compared with {compared}"
    fact = corrected.evidence(gpu, rate, unit="errors/second", comparison=">=", bound=bound, peers=peers, note=note)
    if peers is None:
        summary = f"{rate:,.3g} corrected ECC errors per second, and too few GPUs to compare with"
        missing = f"{fleet.policy.min_peers} other GPUs that export corrected errors"
        return fleet.undecided(gpu, kind, summary, [fact], missing)
    if rate <= peers.upper:
        summary = f"{rate:,.3g} corrected ECC errors per second, as its peers have"
        return fleet.healthy(gpu, kind, summary, corrected, confidence_ratio=0.6)
    summary = f"{rate:,.3g} corrected ECC errors per second; {peers.count} {compared} have {peers.median:,.3g} (median)"
    # The GPU is an outlier; that it gets worse is unverified. A comparison with other models is less sure.
    grade = Grade(Severity.WARNING, Advice.RESET_WHEN_IDLE, 0.8 if peers.same_model else SUSPECTED)
    return fleet.degraded(gpu, kind, summary, grade, [fact])


def row_remap(fleet: Fleet, asked: _RemapAsked) -> Judged:
    """Failed remapping is NVIDIA's criterion for replacement. A pending one can wait for the next reset (autopilot
    #55; NVML: it does not affect future work). DCGM warns of many remapped rows."""
    kind, failed, pending, rows = _REMAP, asked.failed, asked.pending, asked.rows
    # A failure never clears, so one sample is enough. No recorded page shows the three that are only suspected.
    signs: tuple[tuple[GpuAnswers, float, str, Grade], ...] = (
        (failed, 1, "a bad row could not be remapped", Grade(Severity.CRITICAL, Advice.REPLACE, 0.97)),
        (rows, _REMAPPED_ROWS, "{:g} rows are remapped for uncorrectable errors", _MANY_ROWS),
        (pending, 1, "a remapped row waits for the next reset", _PENDING),
        (asked.unrepairable, 1, "memory cannot be repaired", Grade(Severity.WARNING, Advice.REPLACE, SUSPECTED)),
        (asked.exhausted, 1, "{:g} banks have no spare row left", Grade(Severity.WARNING, Advice.REPLACE, SUSPECTED)),
        (asked.low, 1, "{:g} banks have few spare rows left", Grade(Severity.INFO, Advice.WATCH, SUSPECTED)),
    )

    def judge(gpu: PhysicalGpu) -> Conclusion:
        found = [sign for sign in signs if (sign[0].of(gpu) or 0) >= sign[1]]
        total, least = rows.of(gpu), asked.least_rows.of(gpu)
        if total is not None and least is not None and total - least >= _NEW_ROWS_PER_WEEK:
            words = _WORN_OUT.format(total - least)
            found.append((rows, least + _NEW_ROWS_PER_WEEK, words, _EXCHANGE_SOON))
        if found:
            words = "; ".join(text.format(answers.of(gpu)) for answers, _, text, _ in found)
            evidence = [answers.evidence(gpu, comparison=">=", bound=float(bound)) for answers, bound, *_ in found]
            if (asked.new_rows.of(gpu) or 0) > 0:
                evidence.append(asked.new_rows.evidence(gpu))
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

    return Judged(judge)


def page_retirement(fleet: Fleet, asked: _PagesAsked) -> Judged:
    """Retired pages (cards before Ampere), by DCGM's rules: nearly all 64 are used, or double-bit ones increase."""
    kind, sbe, dbe, pending, dbe_new = _PAGES, asked.sbe, asked.dbe, asked.pending, asked.dbe_new

    def judge(gpu: PhysicalGpu) -> Conclusion:
        single, double = sbe.of(gpu), dbe.of(gpu)
        total = (single or 0.0) + (double or 0.0)
        new = round(dbe_new.of(gpu) or 0.0)  # increase() extrapolates one page to 1.03
        evidence = []
        if total >= _RETIRED_PAGES:
            evidence = [each.evidence(gpu, comparison=">=", bound=each.of(gpu)) for each in (dbe, sbe)]
            return fleet.degraded(gpu, kind, f"{total:g} pages are retired, of at most 64", _EXCHANGE, evidence)
        if double is not None and double > _RETIRED_DBE_PAGES and new > _RETIRED_DBE_PAGES_PER_WEEK:
            evidence.append(dbe.evidence(gpu, comparison=">", bound=float(_RETIRED_DBE_PAGES)))
            evidence.append(dbe_new.evidence(gpu, comparison=">", bound=float(_RETIRED_DBE_PAGES_PER_WEEK)))
            summary = f"{double:g} pages are retired for double-bit errors, {new} of them within the week"
            return fleet.degraded(gpu, kind, summary, _EXCHANGE._replace(confidence_ratio=0.9), evidence)
        if (pending.of(gpu) or 0) > 0:
            evidence.append(pending.evidence(gpu, comparison=">", bound=0.0))
            return fleet.degraded(gpu, kind, "a page waits for the next reset to be retired", _PENDING, evidence)
        if single is None and double is None and pending.of(gpu) is None:
            return fleet.unknown(gpu, kind, "retired pages are not exported", [sbe.stat.signal, dbe.stat.signal])
        return fleet.healthy(gpu, kind, "few pages are retired", sbe, dbe, pending)

    return Judged(judge)


ECC = Rule(tells=(_ECC,), needs=_EccAsked, judge=ecc)
ROW_REMAP = Rule(tells=(_REMAP,), needs=_RemapAsked, judge=row_remap)
PAGE_RETIREMENT = Rule(tells=(_PAGES,), needs=_PagesAsked, judge=page_retirement)
