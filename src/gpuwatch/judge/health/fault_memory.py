"""Updates the memory of faults: the memory of the last cycle and this Snapshot ▸ the memory of this cycle.

A fault lasts until its repair was seen. Exporters forget an XID after minutes, and Prometheus after its retention, so
open faults are remembered per GPU and XID. To remember the same Snapshot twice changes nothing.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpuwatch.facts.catalog.xids import Xid, XidClass
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.decision import Advice, Evidence, Finding, FindingKind, Subject, Verdict
from gpuwatch.facts.model.faults import FaultMemory, Holding, KnownFault, Repair, RepairKind
from gpuwatch.facts.model.telemetry import Signal, Statistic
from gpuwatch.judge.fleet import Fleet, PhysicalGpu
from gpuwatch.judge.health.xid_events import COMMON_CAUSE_SECONDS, XidEvent, applies
from gpuwatch.judge.rule import Ask

REPAIR_TO_BE_SEEN = frozenset({64, 79, 140})
"""XIDs that the driver's 'no action' does not end: a card that was lost, and memory errors that were not recovered."""

_COUNTED = frozenset({48, 95, 171, 172})
"""Double-bit errors, which the volatile count holds until the GPU is reset or its driver is loaded again."""

_WITH_48 = frozenset({171, 172})
"""They accompany a 48 and locate its error, so the driver's 'no action' after the 48 covers them."""

CONTAINED = frozenset({63, 94})
"""The driver confined the memory error to the program that met it, or takes the row out of use at the next reset. One
is no fault of the GPU; it is remembered for a week, as a GPU that has them again and again is worn out."""
LEMON_DAYS = 3
"""Days of a week with such an error from which a GPU is worn out. On cards that retire pages NVIDIA calls more than one
page a week too many (DCGM_FR_RETIRED_PAGES_DBE_LIMIT); NVSentinel counts five events in seven days."""

_MOST_FAULTS = 4096
_MOST_OF_ONE = 16
"""Occurrences, repairs and holders of one fault that are remembered."""
_HOUR, _DAY, _WEEK = timedelta(hours=1), timedelta(days=1), timedelta(days=7)


class FaultsAsked:
    """What tells that a fault occurred, and that it was repaired."""

    def __init__(self, ask: Ask) -> None:
        volatile, window = Signal.ECC_DBE_VOLATILE_TOTAL, ask.policy.change_window_seconds
        self.recovery = ask.context(Signal.RECOVERY_ACTION_CODE)
        # NVML counts it "since the driver was last reloaded". It is on dcgm-exporter's default list.
        self.energy = ask.context(Signal.ENERGY_JOULES_TOTAL)
        self.double_bit = ask.context(volatile)
        self.rises = (
            ask.context(volatile, Statistic.INCREASE, window),
            ask.context(volatile, Statistic.APPEARED, window),
            ask.context(Signal.ECC_DBE_AGGREGATE_TOTAL, Statistic.INCREASE, window),
        )
        self.last_xid = ask.context(Signal.XID_CODE)
        self.xid_changes = ask.changes(Signal.XID_CODE)
        self.recovery_changes = ask.changes(Signal.RECOVERY_ACTION_CODE)
        self.energy_changes = ask.changes(Signal.ENERGY_JOULES_TOTAL)


def remembered_xids(
    fleet: Fleet, asked: FaultsAsked, events: Mapping[str, Sequence[XidEvent]], memory: FaultMemory
) -> FaultMemory:
    """The memory with this Snapshot's XIDs, and their repairs. events: by GPU."""
    look = _Look(fleet, asked)
    known = {fault.key: fault for fault in memory.faults if fault.kind is FindingKind.XID}
    for event in (event for found in events.values() for event in found):
        if event.known is not None and _is_remembered(event.known, event.gpu, event.times):
            new = look.new(event.gpu, FindingKind.XID, event.known.code, event.evidence)
            known[new.key] = look.with_event(event, known.get(new.key, new))
    for older in (fault for gpu in fleet.gpus for fault in look.older_faults(gpu)):
        known.setdefault(older.key, older)
    return look.with_faults(memory, FindingKind.XID, known.values())


def remembered_missing(fleet: Fleet, asked: FaultsAsked, lost: Iterable[Finding], memory: FaultMemory) -> FaultMemory:
    """The memory with the GPUs that are missing, and those that came back. lost: the findings on missing GPUs."""
    look = _Look(fleet, asked)
    gpus = {gpu.uuid: gpu for gpu in fleet.gpus}
    known = {fault.key: fault for fault in memory.faults if fault.kind is FindingKind.GPU_MISSING}
    for finding in lost:
        gpu = gpus.get(finding.subject.name)
        if gpu is not None and finding.kind is FindingKind.GPU_MISSING and finding.verdict is Verdict.DEGRADED:
            new = look.new(gpu, finding.kind, 0, finding.evidence)
            fault = known.get(new.key, new)
            lasts = fault.bursts and fault.open
            known[new.key] = fault if lasts else look.occurred(gpu, fault, fleet.snapshot.at)
    return look.with_faults(memory, FindingKind.GPU_MISSING, known.values())


def with_memory(
    fleet: Fleet, events: Mapping[str, Sequence[XidEvent]], memory: FaultMemory
) -> dict[str, list[XidEvent]]:
    """The events with what is remembered of them, and an event for each open XID of which there is no news."""
    known = {(fault.uuid, fault.code): fault for fault in memory.faults if fault.kind is FindingKind.XID}
    found = {
        uuid: [replace(event, fault=known.pop((uuid, event.known.code if event.known else 0), None)) for event in mine]
        for uuid, mine in events.items()
    }
    gpus = {gpu.uuid: gpu for gpu in fleet.gpus}
    for (uuid, code), fault in known.items():
        xid = fleet.xids.get(code)
        lasts = code in CONTAINED and contained_days(fault, fleet.snapshot.at) >= LEMON_DAYS
        if uuid in gpus and xid is not None and (xid.xid_class is XidClass.FATAL or lasts):
            event = XidEvent(
                gpu=gpus[uuid],
                code=code,
                known=xid,
                times=(fault.last_at,) if fault.timed else (),
                doubtful=not fault.timed,
                workloads=(frozenset(),),
                evidence=fault.evidence,
                fault=fault,
            )
            found.setdefault(uuid, []).append(event)
    return found


def with_failed_reboots(fleet: Fleet, finding: Finding, memory: FaultMemory) -> Finding:
    """Advises replacement of a missing GPU that reboots did not bring back; leaves other findings as they are."""
    if finding.kind is not FindingKind.GPU_MISSING or finding.verdict is not Verdict.DEGRADED:
        return finding
    mine = (finding.subject.name, finding.kind)  # of a GPU, or of a Node that has fewer than its capacity
    known = (each for each in memory.faults if mine in ((each.uuid, each.kind), (each.node, each.kind)) and each.open)
    reboots = max((fault.failed_repairs for fault in known), default=0)
    if reboots < fleet.policy.failed_repairs:
        return finding
    words = f"{finding.summary}; {reboots} reboots did not bring it back: exchange the GPU, or inspect its machine"
    return replace(finding, summary=words, advice=Advice.REPLACE)


def contained_days(fault: KnownFault | None, at: datetime) -> int:
    """Days (UTC) of the last week on which it occurred."""
    return len({time.date() for time in fault.bursts if time > at - _WEEK}) if fault is not None else 0


def _is_remembered(known: Xid, gpu: PhysicalGpu, times: Sequence[datetime] = ()) -> bool:
    """Whether it is a fault of the GPU, or an error that becomes one where other programs, or other days, have it."""
    fault, again = known.xid_class is XidClass.FATAL, known.xid_class is XidClass.APPLICATION or known.code in CONTAINED
    return applies(known, gpu.model) and (fault or (again and bool(times)))


@dataclass(frozen=True, slots=True)
class _Look:
    """At one Snapshot, for what became of faults."""

    fleet: Fleet
    asked: FaultsAsked

    def with_faults(self, memory: FaultMemory, kind: FindingKind, faults: Iterable[KnownFault]) -> FaultMemory:
        """The memory with these faults of one kind, but those of GPUs long gone, old repaired ones, programs' errors of
        yesterday and contained ones of last week; open ones first."""
        fleet = self.fleet
        oldest, day = fleet.before(fleet.policy.fault_kept_seconds), fleet.snapshot.at - _DAY
        gpus = {gpu.uuid: gpu for gpu in fleet.gpus}

        def rank(fault: KnownFault) -> int:
            known = fleet.xids.get(fault.code)
            if fault.code in CONTAINED:
                return 2 if fault.last_at > fleet.snapshot.at - _WEEK else 3
            if known is not None and known.xid_class is XidClass.APPLICATION:
                return 2 if fault.last_at > day else 3
            return (0 if fault.open else 1) if fault.open or fault.last_at > oldest else 3

        mine = (self._updated(fault, gpus.get(fault.uuid)) for fault in faults)
        alive = [fault for fault in mine if fault.seen_at > oldest and rank(fault) < 3]
        alive += [fault for fault in memory.faults if fault.kind is not kind]
        alive.sort(key=lambda fault: (rank(fault), -fault.last_at.timestamp(), fault.key))
        return replace(memory, faults=tuple(alive[:_MOST_FAULTS]))

    def new(
        self, gpu: PhysicalGpu, kind: FindingKind, code: int, evidence: Sequence[Evidence], *, timed: bool = True
    ) -> KnownFault:
        """A fault without an occurrence."""
        before = self._before
        return KnownFault(
            uuid=gpu.uuid,
            kind=kind,
            code=code,
            node=gpu.lead.node or "",
            slot=gpu.lead.pci_bus_id,
            boot_id=self._boot(gpu.lead.node),
            since=before,
            last_at=before,
            seen_at=gpu.last_seen or self.fleet.snapshot.at,
            timed=timed,
            evidence=tuple(evidence[:2]),
        )

    def older_faults(self, gpu: PhysicalGpu) -> Iterable[KnownFault]:
        """Fatal XIDs from before the window that the gauge shows, or showed until another. A reset clears the gauge."""
        last, xids = self.asked.last_xid, self.fleet.xids
        changes = self.asked.xid_changes.get(gpu.uuid, ())
        shown = [last.of(gpu), *(change.before for change in changes if change.after)]
        for code in {int(code) for code in shown if code}:
            if code in xids and _is_remembered(xids[code], gpu):
                note = "from before the window: the gauge shows an XID until another comes, or DCGM's host engine ends"
                yield self.new(gpu, FindingKind.XID, code, [last.evidence(gpu, float(code), note=note)], timed=False)

    def with_event(self, event: XidEvent, fault: KnownFault) -> KnownFault:
        """The fault with the occurrences of the event that are not known yet."""
        if self._is_known(event, fault):
            return fault
        if not event.times:
            return replace(self.occurred(event.gpu, fault, self.fleet.snapshot.at), timed=False)
        for time, held in zip(event.times, event.workloads, strict=False):
            if time > fault.last_at or not fault.bursts:
                fault = self._with_time(event, fault, time, held)
        return fault

    def _is_known(self, event: XidEvent, fault: KnownFault) -> bool:
        """Whether an event without a certain time may be the occurrence that is known: of an open fault, or one that
        was repaired within the window."""
        if event.times and not event.doubtful:
            return False
        return bool(fault.bursts) and (fault.open or fault.repairs[-1].at > self._before)

    def _with_time(self, event: XidEvent, fault: KnownFault, time: datetime, held: Iterable[Subject]) -> KnownFault:
        """The fault with an occurrence at this time. Of a program's error the workloads that held the GPU then."""
        timed = not event.doubtful
        fault = replace(self.occurred(event.gpu, fault, time), timed=timed, evidence=event.evidence[:2])
        if event.known is None or event.known.xid_class is not XidClass.APPLICATION:
            return fault
        new = (Holding(at=time, workload=str(each), program=program(self.fleet, each)) for each in held)
        kept = [each for each in (*fault.holdings, *new) if each.at > self.fleet.snapshot.at - _DAY]
        return replace(fault, holdings=tuple(kept[-_MOST_OF_ONE:]))

    def occurred(self, gpu: PhysicalGpu, fault: KnownFault, time: datetime) -> KnownFault:
        # The repair may lie between two occurrences that this Snapshot shows.
        fault = self._repaired(gpu, fault, before=time)
        again = not fault.bursts or not fault.open
        burst = again or (time - fault.last_at).total_seconds() > COMMON_CAUSE_SECONDS
        return replace(
            fault,
            node=gpu.lead.node or fault.node,
            slot=gpu.lead.pci_bus_id or fault.slot,
            boot_id=self._boot(gpu.lead.node),
            since=time if again else fault.since,
            last_at=time,
            asked=fault.asked and not again,
            counted=fault.counted and not again,
            energy_joules=self.asked.energy.of(gpu),
            bursts=(*fault.bursts, time)[-_MOST_OF_ONE:] if burst else fault.bursts,
        )

    @property
    def _before(self) -> datetime:
        return self.fleet.before(self.fleet.policy.change_window_seconds)

    def _boot(self, node: str | None) -> str:
        return self.fleet.nodes[node].boot_id if node in self.fleet.nodes else ""

    def _updated(self, fault: KnownFault, gpu: PhysicalGpu | None) -> KnownFault:
        """The fault with what this Snapshot shows of its GPU, its Node and its slot."""
        if gpu is not None and gpu.last_seen is not None and gpu.last_seen - fault.seen_at >= _HOUR:
            fault = replace(fault, seen_at=gpu.last_seen)
        if fault.code in CONTAINED and self._declared(gpu, fault) is not None:
            fault = replace(fault, bursts=())  # a person says that the GPU was repaired
        if gpu is not None and fault.open and not fault.asked:
            changed = self.asked.recovery_changes.get(gpu.uuid, ())
            now = self.asked.recovery.of(gpu) or 0
            fault = replace(fault, asked=now > 0 or any(each.after > 0 and each.at >= fault.since for each in changed))
        if gpu is not None and fault.open and fault.code in _COUNTED and not fault.counted:
            fault = replace(fault, counted=self._counted(gpu, fault))
        return self._repaired(gpu, fault)

    def _counted(self, gpu: PhysicalGpu, fault: KnownFault) -> bool:
        """Whether double-bit errors were counted: now, or within the window if no earlier fault can be their cause."""
        seen = (self.asked.double_bit, *(() if fault.repairs else self.asked.rises))
        return any((each.of(gpu) or 0) > 0 for each in seen)

    def _repaired(self, gpu: PhysicalGpu | None, fault: KnownFault, before: datetime | None = None) -> KnownFault:
        """The fault with the repair that was seen since it last occurred. before: only an earlier repair counts."""
        if not fault.open:
            return fault
        for look in (self._counters_began_anew, self._rebooted, self._exchanged, self._declared, self._called_off):
            repair = look(gpu, fault)
            if repair is not None and (before is None or repair.at < before):
                fault = replace(fault, repairs=(*fault.repairs, repair)[-_MOST_OF_ONE:])
                back = fault.kind is not FindingKind.GPU_MISSING or (gpu is not None and gpu.present)
                if repair.kind is RepairKind.REBOOT and not back:
                    return replace(fault, last_at=repair.at, boot_id=self._boot(fault.node))
                return fault
        return fault

    def _counters_began_anew(self, gpu: PhysicalGpu | None, fault: KnownFault) -> Repair | None:
        """A reset, or a reload of the driver; no restart of an exporter. A smaller fall may be a second exporter."""
        if gpu is None or not gpu.present or fault.kind is FindingKind.GPU_MISSING:
            return None
        falls = self.asked.energy_changes.get(gpu.uuid, ())
        at = next((change.at for change in falls if change.at > fault.last_at), None)
        now = self.asked.energy.of(gpu)
        if at is None and now is not None and fault.energy_joules is not None and now < fault.energy_joules / 2:
            at = self.fleet.snapshot.at
        if fault.counted and self.asked.double_bit.of(gpu) == 0 and self._settled(fault):
            at = at or self.fleet.snapshot.at
        return None if at is None else Repair(kind=RepairKind.RELOAD, at=at)

    def _settled(self, fault: KnownFault) -> bool:
        """Whether values read now are from after the fault. The page that shows an XID first may have older values."""
        seconds = 2 * (self.fleet.snapshot.telemetry_schema.interval_seconds or 60)
        return (self.fleet.snapshot.at - fault.last_at).total_seconds() >= seconds

    def _rebooted(self, gpu: PhysicalGpu | None, fault: KnownFault) -> Repair | None:
        """Another boot of the Node, or the GPU in another machine, which lost its power for that."""
        node = (gpu.lead.node if gpu is not None and gpu.present else None) or fault.node
        boot, at, now = self._boot(node), self.fleet.snapshot.boots.get(node), self.fleet.snapshot.at
        if at is not None and at > fault.last_at:
            # A GPU that was missing before the reboot and is missing now was gone again at once.
            return Repair(kind=RepairKind.REBOOT, at=now if fault.kind is FindingKind.GPU_MISSING else at)
        if not boot or not fault.boot_id or boot == fault.boot_id:
            return None
        return Repair(kind=RepairKind.REBOOT, at=now)

    def _exchanged(self, gpu: PhysicalGpu | None, fault: KnownFault) -> Repair | None:
        there = self.fleet.at_home.get(fault.node, ()) if fault.slot and (gpu is None or not gpu.present) else ()
        taken = any(other.lead.pci_bus_id == fault.slot for other in there)
        return Repair(kind=RepairKind.EXCHANGE, at=self.fleet.snapshot.at) if taken else None

    def _declared(self, gpu: PhysicalGpu | None, fault: KnownFault) -> Repair | None:
        """A repair that an annotation of the Node declares, with a valid time, which has a zone and has passed."""
        node = self.fleet.nodes.get((gpu.lead.node if gpu is not None else None) or fault.node)
        at = keys.time_in(node.annotations, keys.REPAIRED_AT) if node is not None else None
        if at is None or not fault.last_at < at <= self.fleet.snapshot.at:
            return None
        return Repair(kind=RepairKind.DECLARED, at=at)

    def _called_off(self, gpu: PhysicalGpu | None, fault: KnownFault) -> Repair | None:
        """The driver has asked for no action since the fault; or a missing GPU is back."""
        if gpu is None or not gpu.present:
            return None
        silent = self.asked.recovery.of(gpu) == 0 and self._settled(fault) and self._driver_ends(fault.code, gpu)
        if fault.kind is not FindingKind.GPU_MISSING and not silent:
            return None
        return Repair(kind=RepairKind.RESET if fault.asked else RepairKind.CALLED_OFF, at=self.fleet.snapshot.at)

    def _driver_ends(self, code: int, gpu: PhysicalGpu) -> bool:
        """Whether 'no action' of this GPU's driver ends this XID: the driver would ask for an action after it."""
        known = self.fleet.xids.get(48 if code in _WITH_48 else code)
        if known is None or known.recovery_driver is None or code in REPAIR_TO_BE_SEEN:
            return False
        branch = re.match(r"\d+", gpu.lead.driver_version)
        return branch is None or int(branch[0]) >= known.recovery_driver


def program(fleet: Fleet, workload: Subject) -> tuple[str, ...]:
    """The name without its generated parts, and the images. Workloads that share one of these run one program."""
    space, _, name = workload.name.rpartition("/")
    space = space.rpartition("/")[2]
    images = (f"{space} {' '.join(each)}" for each in fleet.images.get(workload, ()))
    return tuple(sorted({f"{space}/{stem(name)}", *images}))


def stem(name: str) -> str:
    """A name without its generated parts."""
    return "-".join(part for part in re.split(r"[-.]", name) if not _GENERATED.fullmatch(part)) or name


_GENERATED = re.compile(r".*\d.*|[bcdfghjklmnpqrstvwxz2456789]{5}")
"""Numbers and hashes, and the letters that Kubernetes generates names from."""


def programs_differ(holdings: Sequence[Holding]) -> bool:
    """Whether two of them held the GPU at different times, with no program in common."""
    at: dict[datetime, set[str]] = {}
    for each in holdings:
        at.setdefault(each.at, set()).update(each.program)
    found = list(at.values())
    return any(one.isdisjoint(other) for number, one in enumerate(found) for other in found[number + 1 :])
