"""What is remembered of faults: the memory of the last cycle and this Snapshot ▸ the memory of this one.

A fault lasts until its repair was seen. Exporters forget an XID after minutes, and Prometheus after its retention, so
what is open is remembered per GPU and XID. To remember the same Snapshot twice changes nothing.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from gpuwatch.catalog.xids import Xid, XidClass
from gpuwatch.detect.fleet import Fleet, PhysicalGpu
from gpuwatch.detect.health_policy import HealthPolicy
from gpuwatch.detect.xid_events import XidEvent
from gpuwatch.model.decision import Advice, Finding, FindingKind, Subject, Verdict
from gpuwatch.model.faults import FaultMemory, Holding, KnownFault, Repair, RepairKind
from gpuwatch.model.telemetry import Signal, Statistic, WindowStat

ENERGY = WindowStat(Signal.ENERGY_JOULES_TOTAL, Statistic.LAST)
"""NVML counts it "since the driver was last reloaded". It is on dcgm-exporter's default list."""

RECOVERY = WindowStat(Signal.RECOVERY_ACTION_CODE, Statistic.LAST)

REPAIR_TO_BE_SEEN = frozenset({64, 79, 140})
"""XIDs that the driver's 'no action' does not end: a card that was lost, and memory errors that were not recovered."""

_MOST = 4096
"""Faults that are remembered; 300 bytes each when stored."""
_MOST_TIMES = 16
"""Times, repairs and holders of one fault that are remembered."""
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)


def fault_needs(_: HealthPolicy) -> tuple[WindowStat, ...]:
    return (RECOVERY, ENERGY)


def remembered(
    fleet: Fleet, events: Mapping[str, Sequence[XidEvent]], lost: Iterable[Finding], memory: FaultMemory
) -> FaultMemory:
    """events: by GPU. lost: the findings on missing GPUs."""
    known = {fault.key: fault for fault in memory.faults}
    gpus = {gpu.uuid: gpu for gpu in fleet.gpus}
    for uuid, found in events.items():
        for event in found:
            if event.known is not None and _worth(event.known, event):
                key = (uuid, FindingKind.XID, event.known.code)
                known[key] = _with_event(fleet, event, known.get(key))
    for finding in lost:
        if finding.kind is FindingKind.GPU_MISSING and finding.verdict is Verdict.DEGRADED:
            gpu = gpus.get(finding.subject.name)
            if gpu is not None:
                key = (gpu.uuid, FindingKind.GPU_MISSING, 0)
                known[key] = _came(fleet, gpu, known.get(key) or _new(fleet, gpu, finding), fleet.snapshot.at)
    faults = (_looked_at(fleet, fault, gpus.get(fault.uuid)) for fault in known.values())
    return replace(memory, faults=_kept(fleet, faults))


def with_memory(
    fleet: Fleet, events: Mapping[str, Sequence[XidEvent]], memory: FaultMemory
) -> dict[str, list[XidEvent]]:
    """The events with what is remembered of them, and an event for each open XID that nothing shows any more."""
    known = {(fault.uuid, fault.code): fault for fault in memory.faults if fault.kind is FindingKind.XID}
    found = {
        uuid: [replace(event, fault=known.pop((uuid, event.known.code if event.known else 0), None)) for event in mine]
        for uuid, mine in events.items()
    }
    gpus = {gpu.uuid: gpu for gpu in fleet.gpus}
    for (uuid, code), fault in known.items():
        xid = fleet.xids.get(code)
        if uuid in gpus and fault.open and xid is not None and xid.xid_class is XidClass.FATAL:
            found.setdefault(uuid, []).append(_forgotten(gpus[uuid], xid, fault))
    return found


def _forgotten(gpu: PhysicalGpu, xid: Xid, fault: KnownFault) -> XidEvent:
    return XidEvent(
        gpu=gpu,
        code=fault.code,
        known=xid,
        count=1,
        countable=False,
        times=(fault.last_at,),
        doubtful=not fault.timed,
        workloads=(frozenset(),),
        evidence=fault.evidence,
        fault=fault,
    )


def came_back(fleet: Fleet, finding: Finding, memory: FaultMemory) -> Finding:
    """A missing GPU that reboots did not bring back needs hands."""
    if finding.kind is not FindingKind.GPU_MISSING or finding.verdict is not Verdict.DEGRADED:
        return finding
    known = (fault for fault in memory.faults if (fault.uuid, fault.kind) == (finding.subject.name, finding.kind))
    reboots = max((fault.failed_repairs for fault in known), default=0)
    if reboots < fleet.policy.failed_repairs:
        return finding
    words = f"{finding.summary}; {reboots} reboots did not bring it back: exchange the GPU, or inspect its machine"
    return replace(finding, summary=words, advice=Advice.REPLACE)


def _worth(known: Xid, event: XidEvent) -> bool:
    return known.xid_class is XidClass.FATAL or (known.xid_class is XidClass.APPLICATION and bool(event.times))


def _kept(fleet: Fleet, faults: Iterable[KnownFault]) -> tuple[KnownFault, ...]:
    """Without those of GPUs that are long gone and those that were repaired long ago; the newest, open ones first."""
    oldest = fleet.before(fleet.policy.fault_kept_seconds)
    alive = [fault for fault in faults if fault.seen_at > oldest and (fault.open or fault.last_at > oldest)]
    alive.sort(key=lambda fault: (not fault.open, -fault.last_at.timestamp(), fault.uuid, fault.kind, fault.code))
    return tuple(alive[:_MOST])


def _new(fleet: Fleet, gpu: PhysicalGpu, of: XidEvent | Finding) -> KnownFault:
    before = fleet.before(fleet.policy.change_window_seconds)
    node = fleet.nodes.get(gpu.lead.node or "")
    return KnownFault(
        uuid=gpu.uuid,
        kind=FindingKind.XID if isinstance(of, XidEvent) else of.kind,
        code=of.known.code if isinstance(of, XidEvent) and of.known is not None else 0,
        node=gpu.lead.node or "",
        slot=gpu.lead.pci_bus_id,
        boot_id=node.boot_id if node is not None else "",
        since=before,
        last_at=before - _DAY,
        seen_at=gpu.last_seen or fleet.snapshot.at,
        evidence=of.evidence[:2],
    )


def _with_event(fleet: Fleet, event: XidEvent, fault: KnownFault | None) -> KnownFault:
    gpu, at = event.gpu, fleet.snapshot.at
    begun = event.times and not event.doubtful
    if fault is None:
        fault = replace(_new(fleet, gpu, event), timed=bool(begun))
        if event.standing:
            return _came(fleet, gpu, fault, fault.since)
    elif event.standing or (not begun and not _over_since(fleet, fault)):
        return fault  # of what is open, or was repaired within the window, an event without a time is no news
    for time, held in zip(event.times, event.workloads, strict=False):
        if time > fault.last_at:
            fault = replace(_came(fleet, gpu, fault, time), timed=bool(begun), evidence=event.evidence[:2])
            if event.known is not None and event.known.xid_class is XidClass.APPLICATION:
                new = (Holding(at=time, workload=str(each), program=program(fleet, each)) for each in held)
                kept = [each for each in (*fault.holdings, *new) if each.at > at - _DAY]
                fault = replace(fault, holdings=tuple(kept[-_MOST_TIMES:]))
    return fault if event.times else _came(fleet, gpu, fault, at)


def _over_since(fleet: Fleet, fault: KnownFault) -> bool:
    return not fault.open and fault.repairs[-1].at <= fleet.before(fleet.policy.change_window_seconds)


def _came(fleet: Fleet, gpu: PhysicalGpu, fault: KnownFault, time: datetime) -> KnownFault:
    """It came, or came again. What is missing stays missing, so of that only the first moment is one."""
    # A repair that was seen between two times of this Snapshot belongs between them.
    fault = _repaired(fleet, gpu, fault, before=time)
    again = not fault.open or not fault.bursts
    if fault.kind is FindingKind.GPU_MISSING and fault.bursts and (fault.open or fault.repairs[-1].at == time):
        return fault
    node = fleet.nodes.get(gpu.lead.node or "")
    burst = again or (time - fault.last_at).total_seconds() > fleet.policy.common_cause_seconds
    return replace(
        fault,
        node=gpu.lead.node or fault.node,
        slot=gpu.lead.pci_bus_id or fault.slot,
        boot_id=node.boot_id if node is not None else "",
        since=time if again else fault.since,
        last_at=time,
        asked=False if again else fault.asked,
        energy_joules=fleet.answers(ENERGY).of(gpu),
        bursts=(*fault.bursts, time)[-_MOST_TIMES:] if burst else fault.bursts,
    )


def _looked_at(fleet: Fleet, fault: KnownFault, gpu: PhysicalGpu | None) -> KnownFault:
    """The fault with what this Snapshot shows of its GPU, its Node and its slot."""
    if gpu is not None and gpu.last_seen is not None and gpu.last_seen - fault.seen_at >= _HOUR:
        fault = replace(fault, seen_at=gpu.last_seen)
    if not fault.open:
        return fault
    if gpu is not None and not fault.asked:
        changed = fleet.changes(Signal.RECOVERY_ACTION_CODE).get(gpu.uuid, ())
        now = fleet.answers(RECOVERY).of(gpu) or 0
        fault = replace(fault, asked=now > 0 or any(each.after > 0 and each.at >= fault.since for each in changed))
    return _repaired(fleet, gpu, fault)


def _repaired(fleet: Fleet, gpu: PhysicalGpu | None, fault: KnownFault, before: datetime | None = None) -> KnownFault:
    """With the repair that was seen since it last came. before: only what is known to be earlier."""
    if not fault.open or not fault.bursts:
        return fault
    for look in (_counters_began_anew, _rebooted, _exchanged, _called_off):
        repair = look(fleet, gpu, fault)
        if repair is not None and (before is None or repair.at < before):
            return replace(fault, repairs=(*fault.repairs, repair)[-_MOST_TIMES:])
    return fault


def _counters_began_anew(fleet: Fleet, gpu: PhysicalGpu | None, fault: KnownFault) -> Repair | None:
    """A reset, or a reload of the driver. A restarted exporter leaves these counters as they are."""
    if gpu is None or not gpu.present or fault.kind is FindingKind.GPU_MISSING:
        return None
    falls = fleet.changes(Signal.ENERGY_JOULES_TOTAL).get(gpu.uuid, ())
    first = next((change.at for change in falls if change.at > fault.last_at), None)
    if first is not None:
        return Repair(kind=RepairKind.RELOAD, at=first)
    now = fleet.answers(ENERGY).of(gpu)
    if now is not None and fault.energy_joules is not None and now < fault.energy_joules:
        return Repair(kind=RepairKind.RELOAD, at=fleet.snapshot.at)
    return None


def _rebooted(fleet: Fleet, gpu: PhysicalGpu | None, fault: KnownFault) -> Repair | None:
    """Another boot of the Node, or the GPU in another machine, which lost its power for that."""
    name = (gpu.lead.node if gpu is not None and gpu.present else None) or fault.node
    node = fleet.nodes.get(name)
    if node is None or not node.boot_id or not fault.boot_id or node.boot_id == fault.boot_id:
        return None
    return Repair(kind=RepairKind.REBOOT, at=fleet.snapshot.at)


def _exchanged(fleet: Fleet, gpu: PhysicalGpu | None, fault: KnownFault) -> Repair | None:
    if (gpu is not None and gpu.present) or not fault.slot:
        return None
    if any(other.lead.pci_bus_id == fault.slot for other in fleet.at_home.get(fault.node, ())):
        return Repair(kind=RepairKind.EXCHANGE, at=fleet.snapshot.at)
    return None


def _called_off(fleet: Fleet, gpu: PhysicalGpu | None, fault: KnownFault) -> Repair | None:
    """The driver asks for nothing, read after the fault; a missing GPU is back."""
    if gpu is None or not gpu.present:
        return None
    if fault.kind is FindingKind.GPU_MISSING:
        return Repair(kind=RepairKind.CALLED_OFF, at=fleet.snapshot.at)
    if fault.code in REPAIR_TO_BE_SEEN or fleet.answers(RECOVERY).of(gpu) != 0:
        return None
    # The page that shows the XID first may hold the recovery action of before.
    settled = timedelta(seconds=2 * (fleet.snapshot.telemetry_schema.interval_seconds or 60))
    known = fleet.xids.get(fault.code)
    if fleet.snapshot.at - fault.last_at < settled or (known is not None and not speaks_of(known, gpu)):
        return None
    kind = RepairKind.RESET if fault.asked else RepairKind.CALLED_OFF
    return Repair(kind=kind, at=fleet.snapshot.at)


def speaks_of(known: Xid, gpu: PhysicalGpu) -> bool:
    """Whether this GPU's driver is new enough to ask for a recovery action after this XID."""
    branch = re.match(r"\d+", gpu.lead.driver_version)
    return branch is None or known.recovery_driver is None or int(branch[0]) >= known.recovery_driver


def program(fleet: Fleet, workload: Subject) -> tuple[str, ...]:
    """What tells a program from others of its Namespace: the name without its generated parts, and the images. Two
    workloads that share one of these run one program, as do two runs of a test."""
    space, _, name = workload.name.rpartition("/")
    space = space.rpartition("/")[2]
    parts = [part for part in re.split(r"[-.]", name) if not _GENERATED.fullmatch(part)]
    pods = [pod for ref, pod in fleet.pods.items() if pod.images and fleet.workload_of(ref) == workload]
    return tuple(sorted({f"{space}/{'-'.join(parts) or name}", *(f"{space} {' '.join(pod.images)}" for pod in pods)}))


_GENERATED = re.compile(r".*\d.*|[bcdfghjklmnpqrstvwxz2456789]{5}")
"""Numbers and hashes, and the letters that Kubernetes generates names from."""


def programs_differ(holdings: Sequence[Holding]) -> bool:
    """Whether two of them held the GPU at different times, with no program in common."""
    at: dict[datetime, set[str]] = {}
    for each in holdings:
        at.setdefault(each.at, set()).update(each.program)
    found = list(at.values())
    return any(one.isdisjoint(other) for number, one in enumerate(found) for other in found[number + 1 :])
