"""Telemetry that ended: of one GPU beside siblings that report, of one exporter, of all.

A GPU that falls off the bus shows hardly any sign before (five of seven such cases, arXiv 2603.28781): its series end
while those of its siblings go on. Where an exporter, or most of them, have no samples, monitoring is at fault.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import NAMESPACE_DNS, uuid5

from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.decision import Advice, Evidence, Finding, Severity, Verdict
from gpuwatch.facts.model.faults import FaultMemory
from gpuwatch.facts.model.telemetry import Exporter, Signal, Statistic
from gpuwatch.judge.fleet import (
    FLEET,
    REPORTING_SIGNALS,
    SUSPECTED,
    Conclusion,
    Fleet,
    Grade,
    PhysicalGpu,
    conclude,
    on_node,
)
from gpuwatch.judge.health.capacity import (
    EXPORTER_DOWN,
    GPU_MISSING,
    TELEMETRY_MISSING,
    missing_from_telemetry,
    monitoring_fault,
    widespread,
)
from gpuwatch.judge.health.fault_memory import FaultsAsked, remembered_missing, with_failed_reboots
from gpuwatch.judge.reclaim import being_changed, change_failed
from gpuwatch.judge.rule import Ask, Judged, Rule

FELL_OFF_THE_BUS = 79

# Resources of KubeVirt's and Kata's device plugins, named after the chip in pci.ids (GH100_H100_SXM5_80GB) or `pgpu`.
_VFIO_RESOURCE = re.compile(r"nvidia\.com/(pgpu|[A-Z]{2}\d{3}[A-Z]*_\w+)")
# A GPU that the DRA driver offers to virtual machines. Its uuid is not the GPU's, but made of its slot
# (kubernetes-sigs/dra-driver-nvidia-gpu@95932046 nvlib.go, getVfioDeviceInfo).
_VFIO_DEVICE = "gpu-vfio-"


class PresenceAsked:
    """Sample counts, for the evidence; presence itself comes from the inventory."""

    def __init__(self, ask: Ask) -> None:
        self.samples = [ask(signal, Statistic.COUNT, ask.policy.change_window_seconds) for signal in REPORTING_SIGNALS]
        self.xids = ask.changes(Signal.XID_CODE)
        self.faults = FaultsAsked(ask)


class _Machine(NamedTuple):
    """The GPUs of one machine and its exporters, past ones too: a restarted exporter has another address."""

    name: str
    exporters: tuple[Exporter, ...]
    gpus: tuple[PhysicalGpu, ...]

    @property
    def silent(self) -> bool:
        return not any(gpu.present for gpu in self.gpus)

    @property
    def node(self) -> str | None:
        nodes = (*(gpu.lead.node for gpu in self.gpus), *(exporter.node for exporter in self.exporters))
        return next((node for node in nodes if node is not None), None)

    @property
    def up(self) -> bool | None:
        """Whether any of its exporters answers; None where unknown."""
        known = [exporter.up for exporter in self.exporters if exporter.up is not None]
        return any(known) if known else None


def presence(fleet: Fleet, asked: PresenceAsked) -> Judged:
    gone, whole = absences(fleet, asked)
    faults = remembered_missing(fleet, asked.faults, gone.values(), fleet.memory or FaultMemory())

    def judge(gpu: PhysicalGpu) -> Conclusion:
        if gpu.uuid in gone:
            return with_failed_reboots(fleet, gone[gpu.uuid], faults)
        if not gpu.present or not fleet.everything:
            return Verdict.HEALTHY if gpu.present else Verdict.UNKNOWN
        return conclude(gpu, GPU_MISSING, Verdict.HEALTHY, "it reports", confidence_ratio=0.95, since=gpu.last_seen)

    fewer = [with_failed_reboots(fleet, finding, faults) for finding in missing_from_telemetry(fleet)]
    return Judged(judge, [*whole, *fewer])


def absences(fleet: Fleet, asked: PresenceAsked) -> tuple[dict[str, Finding], list[Finding]]:
    """Findings on GPUs that are gone beside others, by UUID, and on machines and the fleet that show none."""
    if not fleet.gpus:
        return {}, [_nothing_at_all(fleet)]
    counted = [machine for machine in _machines(fleet) if not (machine.silent and _is_elsewhere(fleet, machine))]
    silent = [machine for machine in counted if machine.silent]
    # A planned change takes its exporter away, and says nothing about the others.
    unexplained = [machine for machine in silent if not _change(fleet, machine)]
    of = len(counted) - len(silent) + len(unexplained)
    if unexplained and (len(silent) == len(counted) or widespread(fleet, len(unexplained), of)):
        whole = [_telemetry_missing(fleet, unexplained, of)]
        silent = [machine for machine in silent if machine not in unexplained]
    else:
        whole = []
    whole += [_exporter_down(fleet, machine) for machine in silent]
    lost = [gpu for machine in counted if not machine.silent for gpu in machine.gpus if not gpu.present]
    return _lost(fleet, asked, lost), whole


def _machines(fleet: Fleet) -> list[_Machine]:
    """Machines that had a GPU within the inventory window. A metrics file names no exporter."""
    gpus: dict[str, list[PhysicalGpu]] = defaultdict(list)
    homes: dict[str, str] = {}
    for gpu in fleet.gpus:
        gpus[gpu.home].append(gpu)
        homes[gpu.lead.exporter] = gpu.home
    exporters: dict[str, list[Exporter]] = defaultdict(list)
    for exporter in fleet.snapshot.exporters:
        home = homes.get(exporter.instance) or exporter.node or exporter.node_label
        exporters[home].append(exporter)
    return [_Machine(home, tuple(exporters.get(home, ())), tuple(found)) for home, found in gpus.items()]


def _is_elsewhere(fleet: Fleet, machine: _Machine) -> bool:
    """Whether the Node was scaled down or replaced, or what reports of it is doubted. False where telemetry's hosts do
    not resolve to Nodes at all."""
    if machine.name in fleet.doubted_at:
        return True
    if not fleet.snapshot.cluster.known or machine.node is not None:
        return False
    return any(gpu.lead.node is not None for gpu in fleet.present)


def _change(fleet: Fleet, machine: _Machine) -> str:
    """The planned change that explains its silence, under way or failed; '' for none."""
    node = fleet.nodes.get(machine.node or "")
    return being_changed(node) or change_failed(node)


def _nothing_at_all(fleet: Fleet) -> Finding:
    gaps = "; ".join(f"{gap.what}: {gap.detail}" for gap in fleet.snapshot.gaps[:3])
    return monitoring_fault(
        FLEET,
        TELEMETRY_MISSING,
        summary=f"no GPU telemetry{' that is trusted' if fleet.snapshot.doubted else ' at all'} was read, which says "
        "nothing about the GPUs" + (f" ({gaps})" if gaps else ""),
        severity=Severity.CRITICAL,
        evidence=[Evidence(signal="exporters", value=0.0), Evidence(signal="devices", value=0.0)],
        missing=["any series of a GPU exporter"],
    )


def _telemetry_missing(fleet: Fleet, silent: Sequence[_Machine], total: int) -> Finding:
    names = ", ".join(machine.name for machine in silent[:5]) + (" …" if len(silent) > 5 else "")
    jobs = "|".join(sorted({exporter.job for machine in silent for exporter in machine.exporters if exporter.job}))
    query = f'1 - avg(up{{job=~"{jobs}"}})' if jobs else ""
    fact = Evidence(signal="exporters_down", value=len(silent) / total, unit="ratio", note=names)
    return monitoring_fault(
        FLEET,
        TELEMETRY_MISSING,
        summary=f"{len(silent)} of {total} machines' exporters are down: scraping, network or a rollout, rather than "
        "all those machines",
        severity=Severity.CRITICAL,
        evidence=[replace(fact, comparison=">=", bound=fleet.policy.telemetry_missing_ratio, promql=query)],
        missing=["telemetry of these machines"],
        gpus=[gpu for machine in silent for gpu in machine.gpus],
    )


def _exporter_down(fleet: Fleet, machine: _Machine) -> Finding:
    """A monitoring fault of one machine, and never a reason to disturb its workloads."""
    gpus = machine.gpus
    node = fleet.nodes.get(machine.node or "")
    seen = max((gpu.last_seen for gpu in gpus if gpu.last_seen is not None), default=None)
    fresh = seen is not None and (fleet.snapshot.at - seen).total_seconds() < fleet.policy.missing_seconds
    change, failed = being_changed(node), change_failed(node)
    if change:
        why = f"{change}, which takes the exporter away"
    elif failed:
        why = f"{failed}: look at the operator's Pods on this Node"
    elif node is not None and node.ready is False:
        why = "and its Node is NotReady, so the machine may be down"
    elif machine.up:
        why = "though it answers: a driver that is being loaded shows no device"
    else:
        why = "which says nothing about the GPUs"
    calm = fresh or bool(change)
    instances = "|".join(exporter.instance for exporter in machine.exporters)
    query = f'up{{instance=~"{instances}"}}' if instances else ""
    up = "unknown" if machine.up is None else float(machine.up)
    return conclude(
        on_node(machine.name),
        EXPORTER_DOWN,
        Verdict.UNKNOWN,
        f"the exporter shows none of its {len(gpus)} GPUs, {why}",
        severity=Severity.INFO if calm else Severity.WARNING,
        advice=Advice.WATCH if calm else Advice.FIX_MONITORING,
        since=seen,
        evidence=[
            Evidence(signal="up", value=up, comparison="==", bound=1.0, promql=query),
            Evidence(signal="gpus", value=0.0, comparison="==", bound=float(len(gpus)), at=seen),
        ],
        missing=["telemetry of this machine's GPUs"],
        gpus=gpus,
        node=machine.node,
    )


def _lost(fleet: Fleet, asked: PresenceAsked, lost: Sequence[PhysicalGpu]) -> dict[str, Finding]:
    """Findings on GPUs that are missing while their exporter reports others. Those that something excuses have one only
    with `everything`."""
    excuses = {gpu: _excused(fleet, gpu) for gpu in lost}
    homes = {gpu.home for gpu, excuse in excuses.items() if not excuse}
    wide = widespread(fleet, len(homes), len(homes | set(fleet.at_home)))
    lost_at = Counter(gpu.home for gpu in lost)
    found = {}
    for gpu, excuse in excuses.items():
        if excuse and fleet.everything:
            found[gpu.uuid] = _gone_unknown(gpu, excuse, Severity.INFO)
        elif wide and not excuse:
            reason = f"gone together with GPUs of {len(homes) - 1} other machines: what is exported has changed"
            found[gpu.uuid] = _gone_unknown(gpu, reason, Severity.WARNING)
        elif not excuse:
            found[gpu.uuid] = _gone(fleet, asked, gpu, lost_at[gpu.home])
    return found


def _excused(fleet: Fleet, gpu: PhysicalGpu) -> str:
    """Why a GPU's absence is no fault; '' where nothing explains it."""
    node = fleet.nodes.get(gpu.lead.node or "")
    if change := being_changed(node):
        return f"{change}, so devices come and go"
    if _passed_through(fleet, gpu, node):
        return "it is given to a virtual machine"
    seen = gpu.last_seen
    if node is not None and node.created is not None and seen is not None and node.created > seen:
        return f"{node.name} was created after it was last seen, so it is another machine of the same name"
    bus = gpu.lead.pci_bus_id
    for sibling in fleet.at_home.get(gpu.home, ()):
        if bus and sibling.lead.pci_bus_id == bus:
            return f"{sibling.uuid} is in its slot now: it was exchanged"
    return ""


def _passed_through(fleet: Fleet, gpu: PhysicalGpu, node: Node | None) -> bool:
    """Whether a virtual machine has it, by a claim of the DRA driver or by the Node's counts of GPUs for VMs."""
    lost = sum(other.home == gpu.home and not other.present for other in fleet.gpus)
    slot = gpu.lead.pci_bus_id.lower()[-12:]  # 0000:53:00.0; DCGM writes eight digits of the domain
    claims = (item for item in fleet.snapshot.cluster.claims if item.pool == gpu.lead.node)
    given = [item.device for item in claims if item.name.startswith(_VFIO_DEVICE)]
    if str(uuid5(NAMESPACE_DNS, slot)) in given or (given and not slot and len(given) >= lost):
        return True
    counted = {} if node is None else node.accelerators
    for_vms = sum(count for name, count in counted.items() if _VFIO_RESOURCE.fullmatch(name))
    return for_vms >= lost and counted.get("nvidia.com/gpu") == len(fleet.at_home.get(gpu.home, ()))


def _gone_unknown(gpu: PhysicalGpu, reason: str, severity: Severity) -> Finding:
    return conclude(
        gpu,
        GPU_MISSING,
        Verdict.UNKNOWN,
        f"not reporting; {reason}",
        severity=severity,
        advice=Advice.NONE if severity is Severity.INFO else Advice.FIX_MONITORING,
        since=gpu.last_seen,
        missing=["telemetry of this GPU"],
    )


def _gone(fleet: Fleet, asked: PresenceAsked, gpu: PhysicalGpu, lost: int) -> Finding:
    """A GPU that is missing beside siblings that report. lost: missing GPUs of its machine, itself included."""
    at, policy = fleet.snapshot.at, fleet.policy
    seen = gpu.last_seen
    silence = None if seen is None else (at - seen).total_seconds()
    siblings = fleet.at_home.get(gpu.home, ())
    bound = float(policy.missing_seconds)
    fact = asked.samples[0].evidence(gpu, comparison=">=", bound=bound, at=seen, unit="seconds")
    value, note = "unknown" if silence is None else silence, f"{len(siblings)} siblings report"
    evidence = [replace(fact, signal="unreported_seconds", value=value, statistic="", window_seconds=0, note=note)]
    if silence is None or silence < policy.missing_seconds:
        words, missing = "not reporting beside siblings that do", f"{policy.missing_seconds // 60} min without a sample"
        return fleet.undecided(gpu, GPU_MISSING, f"{words}, but not for long", evidence, missing)
    # Where most GPUs of a machine are missing, the exporter's device filter may be the cause, but not after an XID 79.
    confidence = 0.9 if lost <= len(siblings) else SUSPECTED
    fallen = [change for change in asked.xids.get(gpu.uuid, ()) if change.after == FELL_OFF_THE_BUS]
    if fallen:
        confidence = 0.97
        evidence.append(Evidence(signal=Signal.XID_CODE, value=fallen[-1].after, at=fallen[-1].at, note="last XID"))
    node = fleet.nodes.get(gpu.lead.node or "")
    for resource, capacity in ({} if node is None else node.accelerators).items():
        left = capacity if node is None else node.allocatable.get(resource, capacity)
        if left < capacity:
            note = f"{resource}: the device plugin has given up on {capacity - left}"
            evidence.append(
                Evidence(signal="allocatable", value=float(left), comparison="<", bound=float(capacity), note=note)
            )
    slot = f", slot {gpu.lead.pci_bus_id}" if gpu.lead.pci_bus_id else ""
    words = f"gone for {silence / 60:.0f} min, while {len(siblings)} siblings report"
    summary = f"index {gpu.lead.index or '?'}{slot}: {words}"
    grade = Grade(Severity.CRITICAL, Advice.REBOOT, confidence)
    return fleet.degraded(gpu, GPU_MISSING, summary, grade, evidence, since=seen, gpu_hours=silence / 3600)


PRESENCE = Rule(
    tells=(GPU_MISSING, EXPORTER_DOWN, TELEMETRY_MISSING), needs=PresenceAsked, judge=presence, assesses=False
)
