"""XIDs: what each says about the GPU that raised it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb

from gpuwatch.facts.catalog.xids import Xid, XidAction, XidClass, conflicts
from gpuwatch.facts.model.decision import (
    Advice,
    Component,
    Evidence,
    Finding,
    FindingKind,
    Severity,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.faults import FaultMemory, KnownFault, RepairKind
from gpuwatch.facts.model.telemetry import Signal, Statistic, Vendor
from gpuwatch.judge.components import XID_COMPONENTS, combined_confidence, independent
from gpuwatch.judge.fleet import FLEET, SUSPECTED, Conclusion, Fleet, Grade, PhysicalGpu, Tells, conclude
from gpuwatch.judge.health.fault_memory import (
    CONTAINED,
    LEMON_DAYS,
    FaultsAsked,
    contained_days,
    programs_differ,
    remembered_xids,
    with_memory,
)
from gpuwatch.judge.health.xid_events import (
    COMMON_CAUSE_SECONDS,
    CommonCause,
    XidEvent,
    XidsAsked,
    applies,
    common_causes,
    counts_xids,
    xid_events,
)
from gpuwatch.judge.rule import Ask, Judged, Rule

_TELLS = Tells(
    FindingKind.XID,
    "an XID: the driver reported a fault",
    "critical: reset, reboot, inspect, replace; warning: replace, reset_when_idle, inspect, watch; "
    "info: fix_application, watch",
)

_OF_XIDS = {Component.MEMORY, Component.PCIE, Component.NVLINK}
_ON_THE_GPU = (FindingKind.RECOVERY_ACTION, FindingKind.DCGM_HEALTH, FindingKind.VENDOR_HEALTH)
"""Judgements on the whole GPU."""


class _Asked(XidsAsked):
    def __init__(self, ask: Ask) -> None:
        super().__init__(ask)
        self.signals = (Signal.XID_CODE, Signal.XID_WINDOW_COUNT, Signal.XID_EVENTS_TOTAL)
        self.recovery = ask(Signal.RECOVERY_ACTION_CODE)
        # Of the memory of faults: without them repairs are not seen.
        ask(Signal.ENERGY_JOULES_TOTAL)
        ask(Signal.ECC_DBE_VOLATILE_TOTAL)
        self.energy = ask.context(Signal.ENERGY_JOULES_TOTAL, Statistic.INCREASE, _ALIVE_SECONDS)
        self.faults = FaultsAsked(ask)
        self.reporting = ask.reporting(ask.policy.change_window_seconds)


def corroborates(finding: Finding) -> bool:
    """Whether it may corroborate an XID on the same GPU: it is on a component of XIDs, or judges the whole GPU."""
    return finding.kind in _ON_THE_GPU or not _OF_XIDS.isdisjoint(finding.components)


_CONFIRMS_NOTHING = frozenset({45, 154, 162})
"""They follow another event: a process' end, a new recovery action, the end of a fault."""
_RECOVERY_ACTION_CHANGED = 154
_INFOROM_NOT_WRITTEN = 93
"""On Volta, DCGM's health module takes it for a corrupt InfoROM. Elsewhere NVIDIA asks for no action."""
_UNCONTAINED = frozenset({64, 95, 140})

_ADVICE = {
    XidAction.RESTART_BM: Advice.REBOOT,
    XidAction.RESTART_VM: Advice.REBOOT,
    XidAction.CHECK_MECHANICALS: Advice.INSPECT,
    XidAction.CONTACT_SUPPORT: Advice.INSPECT,
}

_SEVERITIES = list(Severity)
_ADVICES = list(Advice)

# Confidence from a number alone. After a fatal one the GPU needs a reset; driver bugs raise 119 and 62, hence not 1.
# One that needs corroboration counts half; its doubt is multiplied with that of the other sign.
_FATAL_CONFIDENCE = 0.9
_UNSURE_CONFIDENCE = 0.5
_OFF_THE_BUS = 79
_ALIVE_SECONDS = 600
"""Time after an XID 79 in which the energy counter has to rise, before it contradicts the XID: ten samples. The driver
cannot read a GPU that is off the bus."""
_TWO_WORKLOADS = Grade(Severity.WARNING, Advice.RESET_WHEN_IDLE, 0.7)
"""Two workloads seldom have the same bug at once."""
_LEMON = Grade(Severity.WARNING, Advice.REPLACE, 0.8)
"""Its work may end; then the field diagnostic decides."""
_INFOROM = Grade(Severity.WARNING, Advice.INSPECT, SUSPECTED)
_DAY_SECONDS = 24 * 3600


def xid(fleet: Fleet, asked: _Asked) -> Judged:
    """With findings on what many GPUs' XIDs have in common. It uses the findings of the rules before it."""
    kind, last, memory = _TELLS, asked.last, fleet.memory
    raised = xid_events(fleet, asked)
    faults = remembered_xids(fleet, asked.faults, raised, memory or FaultMemory())
    events = with_memory(fleet, raised, faults)
    gauge_is_there = bool(last.values) or bool(asked.latched) or fleet.snapshot.telemetry_schema.has(last.stat.signal)

    causes = common_causes(fleet, (event for found in events.values() for event in found if _lasts(event)))
    cause_of = {event: cause for cause in causes for event in cause.events}
    none = "no XID in the window" + ("; a single run remembers none from before it" if memory is None else "")

    def judge(gpu: PhysicalGpu) -> Conclusion:
        mine = events.get(gpu.uuid, ())
        found = [
            _of_event(
                event,
                _Event(fleet, asked, event, mine, fleet.against.get(gpu.uuid, ()), cause_of.get(event)).conclusion(),
            )
            for event in mine
        ]
        shown = [item for item in found if isinstance(item, Finding)]
        if shown and (notable := [item for item in shown if item.notable] or shown):
            return _strongest(notable)
        if Verdict.UNKNOWN in found:
            return Verdict.UNKNOWN
        if memory is not None and memory.unread:
            return fleet.unknown(gpu, kind, "earlier faults may be forgotten", [memory.unread])
        if found:
            return Verdict.HEALTHY
        if any(counts_xids(answers, gpu) for answers in asked.counts):
            return fleet.healthy(gpu, kind, none)
        code = last.of(gpu)  # of an XID from before the window that is not fatal; a 154 hides the one before it
        if code == _RECOVERY_ACTION_CHANGED and asked.recovery.of(gpu) is None:
            return _hidden(gpu)
        if code:
            words = f"XID {code:g} is older than the window; the gauge never clears"
            return fleet.healthy(gpu, kind, words, last, confidence_ratio=0.8)
        # Since DCGM 4.5 the gauge has no series before the first XID, so its absence is no gap if others have it.
        if code == 0 or (gauge_is_there and gpu.lead.vendor is Vendor.NVIDIA and asked.reporting(gpu)):
            return fleet.healthy(gpu, kind, none, last, confidence_ratio=0.8)
        return fleet.unknown(gpu, kind, "no XID metric is exported", asked.signals)

    return Judged(judge, (*_together(causes), *_of_drivers(fleet, events)))


def _lasts(event: XidEvent) -> bool:
    """A contained error is remembered for its days alone: what follows it, a reset or not, ends nothing."""
    return event.fault is None or event.fault.open or event.fault.code in CONTAINED


def _hidden(gpu: PhysicalGpu) -> Conclusion:
    words = "the driver changed its recovery action (XID 154), which hides the XID before it, and neither is exported"
    missing = (Signal.RECOVERY_ACTION_CODE, "a count of XIDs, which shows the one before")
    return Fleet.undecided(gpu, _TELLS, words, (), *missing, severity=Severity.WARNING)


@dataclass(frozen=True, slots=True)
class _Event:
    """One XID of one GPU beside its other XIDs and the findings of other rules on it."""

    fleet: Fleet
    asked: _Asked
    event: XidEvent
    mine: Sequence[XidEvent]
    others: Sequence[Finding]
    cause: CommonCause | None

    def conclusion(self) -> Conclusion:
        event, known = self.event, self.event.known
        if known is None:
            missing = f"the meaning of XID {event.code}; the operator's overrides can give it"
            return self._undecided(f"XID {event.code} is not in the catalog", missing, Severity.WARNING)
        title = f"XID {known.code} ({known.description}): {known.reason}"
        if not applies(known, event.gpu.model):
            where = ", ".join(known.architectures)
            words = f"XID {known.code} is not one of {event.gpu.model}: the catalog has it for {where}"
            return self._undecided(words, "the kernel log of the Node")
        if known.xid_class is XidClass.IGNORE:
            return self._healthy(title)
        if known.code == _RECOVERY_ACTION_CHANGED:
            exported = self.asked.recovery.of(event.gpu) is not None
            return self._healthy("its recovery action is judged by itself") if exported else _hidden(event.gpu)
        days = contained_days(event.fault, self.fleet.snapshot.at) if known.code in CONTAINED else 0
        if days >= LEMON_DAYS:
            words = f"{title}; on {days} days of this week: let its work end, then run the field diagnostic"
            return Fleet.degraded(event.gpu, _TELLS, words, _LEMON, (), components=(Component.MEMORY,))
        if event.fault is not None and not _lasts(event):
            return self._healthy(f"{title}; over since {_ended(event.fault)}")
        return self._open(known, title)

    def _open(self, known: Xid, title: str) -> Conclusion:
        """An XID of which no repair was seen."""
        event = self.event
        fatal, application = known.xid_class is XidClass.FATAL, known.xid_class is XidClass.APPLICATION
        signs = [] if application else self._signs(known)
        asked = any(sign.kind is FindingKind.RECOVERY_ACTION for sign in signs)
        if known.code == _OFF_THE_BUS and not signs and (joules := self._alive()):
            return self._contradicted(title, joules)
        if self.cause is not None and not asked and (fatal or not signs):
            if not self.fleet.everything:
                return Verdict.UNKNOWN
            return self._undecided(f"{title}; {_words(self.cause)}", "a sign on this GPU alone")
        if application:
            return _application(event, title)
        if fatal or signs:
            return self._degraded(known, title, signs)
        if known.code == _INFOROM_NOT_WRITTEN:
            if "V100" not in event.gpu.model:
                return self._healthy(title)
            return Fleet.degraded(event.gpu, _TELLS, title, _INFOROM, (), components=())
        missing = "a second sign: a recovery action, DCGM health, an ECC, remap or link counter"
        # A driver that would ask for the reset, and asks for nothing, makes it a program's hang.
        due = known.action is XidAction.RESET_GPU and self.asked.recovery.of(event.gpu) != 0
        return self._undecided(title, missing, Severity.WARNING if due else Severity.INFO)

    def _alive(self) -> float:
        """Joules that the GPU has used in a whole window after the XID; 0.0 where that is not seen."""
        event, fault = self.event, self.event.fault
        last = max(event.times, default=fault.last_at if fault is not None and fault.timed else None)
        late = last is not None and last <= self.fleet.before(_ALIVE_SECONDS)
        return (self.asked.energy.of(event.gpu) or 0.0) if late and event.gpu.present else 0.0

    def _contradicted(self, title: str, joules: float) -> Finding:
        """One of the two is wrong, and nobody here can tell which."""
        fact = self.asked.energy.evidence(self.event.gpu, joules, comparison=">", bound=0.0)
        words = f"{title}; but the driver still reads the GPU: {joules / 1000:,.0f} kJ in the last 10 min"
        missing = "which of the two is right; look for the XID in the kernel log of the Node"
        return Fleet.undecided(self.event.gpu, _TELLS, words, [fact], missing, severity=Severity.WARNING)

    def _signs(self, known: Xid) -> list[Finding]:
        """Findings that show the same event or judge the whole GPU, without those that repeat the XID's number. For a
        fatal XID all that corroborate count: they make it surer that the GPU is degraded."""
        if known.code in _CONFIRMS_NOTHING:
            return []
        found = [each for each in self.others if corroborates(each) and not _derived(known, each.kind)]
        part = XID_COMPONENTS.get(known.code)
        if known.xid_class is XidClass.FATAL:
            return found
        return [each for each in found if not each.components or part in each.components]

    def _degraded(self, known: Xid, title: str, signs: list[Finding]) -> Finding:
        """The XID and its signs. The driver's advice comes first, then the gravest; a contained error can wait."""
        fatal = known.xid_class is XidClass.FATAL
        parts = (XID_COMPONENTS[known.code],) if known.code in XID_COMPONENTS else ()
        driver = [sign for sign in signs if sign.kind is FindingKind.RECOVERY_ACTION]
        same = driver or [sign for sign in signs if not fatal or not independent(sign, parts)]
        severity = max((sign.severity for sign in same), key=_SEVERITIES.index, default=Severity.INFO)
        advice = max((sign.advice for sign in same), key=_ADVICES.index, default=Advice.NONE)
        if fatal and not driver:
            severity = Severity.CRITICAL
            advice = max(advice, _ADVICE.get(known.action, Advice.RESET), key=_ADVICES.index)
        if not driver and self._contained(parts, signs):
            title += "; the driver contained it, so running work may go on"
            severity, advice = min(severity, Severity.WARNING, key=_SEVERITIES.index), Advice.RESET_WHEN_IDLE
        if signs:
            title += f"; {' and '.join(sorted({sign.kind.replace('_', ' ') for sign in signs}))} on the same GPU"
        fault, missing = self.event.fault, []
        confidence = _FATAL_CONFIDENCE if fatal else _UNSURE_CONFIDENCE
        if fatal and not signs and self.event.doubtful and not (fault is not None and fault.timed):
            missing = ["when it was: it may be older than the window, as the gauge never clears"]
            severity, confidence = Severity.WARNING, SUSPECTED
        if again := "" if fault is None else self._again(fault):
            title, advice = f"{title}; {again}: exchange the GPU, or inspect its machine", Advice.REPLACE
        grade = Grade(severity, advice, confidence)
        own = Fleet.degraded(self.event.gpu, _TELLS, title, grade, (), components=parts)
        evidence = tuple(evidence for sign in signs for evidence in sign.evidence)
        sure = combined_confidence([own, *signs])
        return replace(own, confidence_ratio=sure, evidence=evidence, missing=tuple(missing))

    def _contained(self, parts: Sequence[Component], signs: Sequence[Finding]) -> bool:
        """Whether the driver confined a memory error to a program, or the row waits for its remapping."""
        codes = {event.code for event in self.mine if _lasts(event)}
        waits = any(sign.kind is FindingKind.ROW_REMAP and sign.advice is Advice.RESET_WHEN_IDLE for sign in signs)
        return Component.MEMORY in parts and not codes & _UNCONTAINED and (waits or bool(codes & CONTAINED))

    def _again(self, fault: KnownFault) -> str:
        """How often it came back, where that asks for more than another repair; '' where it does not."""
        policy = self.fleet.policy
        if fault.code in CONTAINED:
            return ""
        if fault.failed_repairs >= policy.failed_repairs:
            return f"it came back after {fault.failed_repairs} repairs"
        bursts = sum(time > self.fleet.before(_DAY_SECONDS) for time in fault.bursts)
        return f"it came {bursts} times within a day" if bursts >= policy.xid_bursts_per_day else ""

    def _healthy(self, summary: str) -> Conclusion:
        return self.fleet.healthy(self.event.gpu, _TELLS, summary, confidence_ratio=0.8)

    def _undecided(self, summary: str, missing: str, severity: Severity = Severity.INFO) -> Finding:
        return Fleet.undecided(self.event.gpu, _TELLS, summary, (), missing, severity=severity)


def _ended(fault: KnownFault) -> str:
    repair = fault.repairs[-1]
    how = {RepairKind.CALLED_OFF: "the driver asks for nothing"}.get(repair.kind, f"a {repair.kind} was seen")
    return f"{repair.at:%Y-%m-%d %H:%M} UTC: {how}"


def _derived(known: Xid, kind: FindingKind) -> bool:
    """Whether the finding repeats the XID: DCGM's health module fails on some XIDs by their number."""
    return kind is FindingKind.DCGM_HEALTH and any(item.authority == "dcgm_health" for item in known.others)


def _application(event: XidEvent, title: str) -> Finding:
    """The program's fault, unless different programs raised it on the same GPU within a day."""
    holdings = event.fault.holdings if event.fault is not None else ()
    workloads = sorted({each.workload for each in holdings} | {str(subject) for subject in event.all_workloads})
    if programs_differ(holdings):
        words = f"{title}, but {len(workloads)} workloads raised it on this GPU: {', '.join(workloads)}"
        return Fleet.degraded(event.gpu, _TELLS, words, _TWO_WORKLOADS, ())
    who = f" (allocated to {', '.join(workloads)})" if workloads else ""
    return conclude(
        event.gpu,
        _TELLS,
        Verdict.UNKNOWN,
        title + who,
        advice=Advice.FIX_APPLICATION,
        missing=["the same XID on this GPU under another program, which would make it the hardware's"],
    )


def _of_event(event: XidEvent, found: Conclusion) -> Conclusion:
    """The conclusion with the event's own time and evidence."""
    if not isinstance(found, Finding):
        return found
    catalog = [] if event.known is None else [_catalog(event.known)]
    since = event.times[0] if event.times else None
    if event.fault is not None and event.fault.open and event.fault.timed and found.verdict is Verdict.DEGRADED:
        since = event.fault.since
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
    first, *rest = sorted(
        found,
        key=lambda item: (order.index(item.verdict), _SEVERITIES.index(item.severity), item.confidence_ratio),
        reverse=True,
    )
    if not rest:
        return first
    also = ", ".join(item.summary.partition(" (")[0].partition(" is ")[0] for item in rest)
    extra = [evidence for item in rest for evidence in item.evidence if evidence not in first.evidence]
    return replace(first, summary=f"{first.summary}; also {also}", evidence=(*first.evidence, *extra))


def _words(cause: CommonCause) -> str:
    gpus = len({event.gpu.uuid for event in cause.events})
    place = f", all in {cause.place}" if cause.place else ""
    where = f"{gpus} GPUs on {cause.homes} machine{'s' if cause.homes > 1 else ''} raised it together{place}"
    if cause.fatal:
        return f"{where}: a switch, power, cooling or a driver is the likelier cause than each GPU, and no program is"
    if cause.known.code in XID_COMPONENTS:
        return f"{where}: what they share, such as a switch, is the likelier cause than each GPU, and no program is"
    if cause.subject.kind is not SubjectKind.FLEET:
        return f"{where}, all of {cause.subject}: one cause, and not each GPU's hardware"
    return f"{where}: a job, a rollout, a driver or the site is the likelier cause than each GPU's hardware"


def _together(causes: list[CommonCause]) -> Iterable[Finding]:
    """One finding per subject that GPUs with the same XID share."""
    for subject in dict.fromkeys(cause.subject for cause in causes):
        found = [cause for cause in causes if cause.subject == subject]
        events = [event for cause in found for event in cause.events]
        gpus = {event.gpu.uuid: event.gpu for event in events}
        nodes = {gpu.lead.node for gpu in gpus.values()}
        times = [time for event in events for time in event.times]
        evidence = [
            Evidence(
                signal="xid_code",
                value=float(len({event.gpu.uuid for event in cause.events})),
                unit="GPUs",
                window_seconds=COMMON_CAUSE_SECONDS,
                note=f"XID {cause.known.code} on {cause.homes} machines",
                promql=next((item.promql for event in cause.events for item in event.evidence if item.promql), ""),
            )
            for cause in found
        ]
        catalog = [_catalog(cause.known) for cause in found]
        # No program can mend an XID on a hardware component (an NVLink, the PCIe link).
        on_hardware = any(cause.known.code in XID_COMPONENTS for cause in found)
        shared = on_hardware or subject.kind in (SubjectKind.FLEET, SubjectKind.NODE)
        fatal = any(cause.fatal for cause in found)
        domain = subject.kind is SubjectKind.FLEET and subject != FLEET
        only_application = all(cause.known.xid_class is XidClass.APPLICATION for cause in found)
        yield conclude(
            subject,
            _TELLS,
            Verdict.UNKNOWN,
            ("look at the switches of this NVLink domain first; " if domain else "")
            + "; ".join(f"XID {cause.known.code}: {_words(cause)}" for cause in found),
            severity=Severity.INFO if only_application else Severity.CRITICAL if fatal or domain else Severity.WARNING,
            advice=Advice.INSPECT if fatal or domain else Advice.WATCH if shared else Advice.FIX_APPLICATION,
            since=min(times, default=None),
            evidence=[*evidence, *catalog],
            missing=["a sign on one GPU alone that would make it that GPU's hardware"],
            gpus=gpus.values(),
            node=nodes.pop() if len(nodes) == 1 else None,
        )


_BY_CHANCE = 0.05
"""Chance that Nodes drawn blindly all run this driver, from which it is no news that they do."""


def _of_drivers(fleet: Fleet, events: Mapping[str, Sequence[XidEvent]]) -> Iterable[Finding]:
    """A driver that all Nodes share whose GPU firmware failed, and others do not have: a rollout is the likelier cause
    than so many GPUs. Each GPU keeps its own finding."""
    firmware = [
        event
        for found in events.values()
        for event in found
        if event.known is not None and XID_COMPONENTS.get(event.known.code) is Component.FIRMWARE and _lasts(event)
    ]
    homes = {event.gpu.home for event in firmware}
    drivers = {event.gpu.lead.driver_version for event in firmware}
    if len(homes) < fleet.policy.common_cause_nodes or len(drivers) != 1 or not (driver := drivers.pop()):
        return
    known = {gpu.home: gpu.lead.driver_version for gpu in fleet.gpus if gpu.lead.driver_version}
    having = [home for home, version in known.items() if version == driver]
    chance = comb(len(having), len(homes)) / comb(len(known), len(homes))
    if chance > _BY_CHANCE:
        return
    codes = " and ".join(str(code) for code in sorted({event.known.code for event in firmware if event.known}))
    words = (
        f"XID {codes} on {len(homes)} of {len(having)} Nodes with driver {driver}, and on none of the "
        f"{len(known) - len(having)} with other drivers: look at the driver, and roll it back before you reset GPUs"
    )
    fact = Evidence(
        signal="driver_version", value=driver, comparison="<=", bound=_BY_CHANCE, note=f"by chance: {chance:.3f}"
    )
    yield conclude(
        Subject(SubjectKind.FLEET, f"driver {driver}"),
        _TELLS,
        Verdict.UNKNOWN,
        words,
        severity=Severity.WARNING,
        advice=Advice.INSPECT,
        since=min((time for event in firmware for time in event.times), default=None),
        evidence=[fact],
        missing=["a GPU that fails with another driver too"],
        gpus={event.gpu.uuid: event.gpu for event in firmware}.values(),
    )


XID = Rule(tells=(_TELLS,), needs=_Asked, judge=xid)
