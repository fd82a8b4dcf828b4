"""Telemetry that ended: of one GPU beside siblings that report, of one exporter, of all.

A GPU that falls off the bus shows hardly any sign before (five of seven such cases, arXiv 2603.28781): its series end
while those of its siblings go on. Where an exporter, or most of them, have no samples, monitoring is at fault.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple
from uuid import NAMESPACE_DNS, uuid5

from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.decision import Advice, Evidence, Finding, FindingKind, Severity, Verdict
from gpuwatch.facts.model.telemetry import Exporter, Signal, Statistic, WindowStat
from gpuwatch.judge.fleet import FLEET, REPORTING_SIGNALS, SUSPECTED, Fleet, Grade, PhysicalGpu, conclude, on_node
from gpuwatch.judge.health.policy import HealthPolicy
from gpuwatch.judge.reclaim import reclaimed

FELL_OFF_THE_BUS = 79

monitoring_fault = partial(conclude, verdict=Verdict.UNKNOWN, advice=Advice.FIX_MONITORING)

# MIG manager stops the exporter while it works, and gives every instance a new identity.
_MIG_STATE = "nvidia.com/mig.config.state"
_MIG_CHANGING = frozenset({"pending", "rebooting"})
# In every other state the GPU Operator may have unloaded the driver.
_DRIVER_STATE = "nvidia.com/gpu-driver-upgrade-state"
_DRIVER_AT_REST = frozenset({"", "upgrade-done", "upgrade-required", "upgrade-failed"})
# The GPU Operator gives all GPUs of such a Node to virtual machines.
_WORKLOADS = "nvidia.com/gpu.workload.config"
_FOR_VMS = frozenset({"vm-passthrough", "vm-vgpu"})
# Resources of KubeVirt's and Kata's device plugins, named after the chip in pci.ids (GH100_H100_SXM5_80GB) or `pgpu`.
_VFIO_RESOURCE = re.compile(r"nvidia\.com/(pgpu|[A-Z]{2}\d{3}[A-Z]*_\w+)")
# A GPU that the DRA driver offers to virtual machines. Its uuid is not the GPU's, but made of its slot
# (kubernetes-sigs/dra-driver-nvidia-gpu@95932046 nvlib.go, getVfioDeviceInfo).
_VFIO_DEVICE = "gpu-vfio-"


def presence_needs(policy: HealthPolicy) -> tuple[WindowStat, ...]:
    """Sample counts, for the coverage of the other rules; presence itself comes from the inventory."""
    return tuple(
        WindowStat(signal, Statistic.COUNT, window)
        for signal in REPORTING_SIGNALS
        for window in (policy.window_seconds, 2 * policy.window_seconds, policy.change_window_seconds)
    )


@dataclass
class Presence:
    """explained: UUIDs of GPUs whose absence the findings, or the cluster, account for."""

    findings: list[Finding] = field(default_factory=list)
    explained: set[str] = field(default_factory=set)


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


def presence(fleet: Fleet) -> Presence:
    result = Presence()
    if not fleet.gpus:
        result.findings.append(_nothing_at_all(fleet))
        return result
    counted = []
    for machine in _machines(fleet):
        if machine.silent and _left_the_cluster(fleet, machine):
            result.explained |= {gpu.uuid for gpu in machine.gpus}
        else:
            counted.append(machine)
    silent = [machine for machine in counted if machine.silent]
    if silent and (len(silent) == len(counted) or widespread(fleet, len(silent), len(counted))):
        result.findings.append(_telemetry_missing(fleet, silent, len(counted)))
    else:
        result.findings += [_exporter_down(fleet, machine) for machine in silent]
    result.explained |= {gpu.uuid for machine in silent for gpu in machine.gpus}
    lost = [gpu for gpu in fleet.gpus if not gpu.present and gpu.uuid not in result.explained]
    _judge_lost(fleet, lost, result)
    if fleet.everything:
        kind, sure = FindingKind.GPU_MISSING, 0.95
        result.findings += [
            conclude(gpu, kind, Verdict.HEALTHY, "it reports", confidence_ratio=sure, since=gpu.last_seen)
            for gpu in fleet.present
        ]
    return result


def widespread(fleet: Fleet, few: int, of: int) -> bool:
    """Whether so many machines are affected that monitoring is the likelier cause."""
    policy = fleet.policy
    return few >= policy.telemetry_missing_exporters and few >= policy.telemetry_missing_ratio * of


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


def _left_the_cluster(fleet: Fleet, machine: _Machine) -> bool:
    """Whether the Node was scaled down or replaced. False where telemetry's hosts do not resolve to Nodes at all."""
    if not fleet.snapshot.cluster.known or machine.node is not None:
        return False
    return any(gpu.lead.node is not None for gpu in fleet.present)


def _nothing_at_all(fleet: Fleet) -> Finding:
    gaps = "; ".join(f"{gap.what}: {gap.detail}" for gap in fleet.snapshot.gaps[:3])
    return monitoring_fault(
        FLEET,
        FindingKind.TELEMETRY_MISSING,
        summary="no GPU telemetry at all was read, which says nothing about the GPUs" + (f" ({gaps})" if gaps else ""),
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
        FindingKind.TELEMETRY_MISSING,
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
    change = being_changed(node)
    if change:
        why = f"{change}, which takes the exporter away"
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
        FindingKind.EXPORTER_DOWN,
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


def being_changed(node: Node | None) -> str:
    """The planned change of the Node or its GPUs that is under way; '' for none."""
    if node is None:
        return ""
    if why := reclaimed(node):
        return f"its provider takes the Node back ({why})"
    if (given := node.labels.get(_WORKLOADS, "")) in _FOR_VMS:
        return f"its GPUs are given to virtual machines ({given})"
    mig = node.labels.get(_MIG_STATE, "")
    if mig in _MIG_CHANGING:
        return f"its MIG layout is being changed ({mig})"
    driver = node.labels.get(_DRIVER_STATE, "")
    if driver not in _DRIVER_AT_REST:
        return f"its driver is being upgraded ({driver})"
    return ""


def _judge_lost(fleet: Fleet, lost: Sequence[PhysicalGpu], result: Presence) -> None:
    """Judges GPUs that are missing while their exporter reports others."""
    suspects = []
    for gpu in lost:
        reason = _excused(fleet, gpu)
        if reason:
            result.explained.add(gpu.uuid)
            if fleet.everything:
                result.findings.append(_gone_unknown(gpu, reason, Severity.INFO))
        else:
            suspects.append(gpu)
    homes = {gpu.home for gpu in suspects}
    wide = widespread(fleet, len(homes), len(homes | set(fleet.at_home)))
    lost_at = Counter(gpu.home for gpu in lost)
    for gpu in suspects:
        result.explained.add(gpu.uuid)
        if wide:
            reason = f"gone together with GPUs of {len(homes) - 1} other machines: what is exported has changed"
            result.findings.append(_gone_unknown(gpu, reason, Severity.WARNING))
        else:
            result.findings.append(_gone(fleet, gpu, lost_at[gpu.home]))


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
        FindingKind.GPU_MISSING,
        Verdict.UNKNOWN,
        f"not reporting; {reason}",
        severity=severity,
        advice=Advice.NONE if severity is Severity.INFO else Advice.FIX_MONITORING,
        since=gpu.last_seen,
        missing=["telemetry of this GPU"],
    )


def _gone(fleet: Fleet, gpu: PhysicalGpu, lost: int) -> Finding:
    """A GPU that is missing beside siblings that report. lost: missing GPUs of its machine, itself included."""
    at, policy = fleet.snapshot.at, fleet.policy
    seen = gpu.last_seen
    silence = None if seen is None else (at - seen).total_seconds()
    siblings = fleet.at_home.get(gpu.home, ())
    unreported = fleet.answers(WindowStat(REPORTING_SIGNALS[0], Statistic.COUNT, policy.change_window_seconds))
    fact = unreported.evidence(gpu, comparison=">=", bound=float(policy.missing_seconds), at=seen, unit="seconds")
    value, note = "unknown" if silence is None else silence, f"{len(siblings)} siblings report"
    evidence = [replace(fact, signal="unreported_seconds", value=value, statistic="", window_seconds=0, note=note)]
    if silence is None or silence < policy.missing_seconds:
        words, missing = "not reporting beside siblings that do", f"{policy.missing_seconds // 60} min without a sample"
        return fleet.undecided(gpu, FindingKind.GPU_MISSING, f"{words}, but not for long", evidence, missing)
    # Where most GPUs of a machine are missing, the exporter's device filter may be the cause, but not after an XID 79.
    confidence = 0.9 if lost <= len(siblings) else SUSPECTED
    fallen = [change for change in fleet.changes(Signal.XID_CODE).get(gpu.uuid, ()) if change.after == FELL_OFF_THE_BUS]
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
    return fleet.degraded(gpu, FindingKind.GPU_MISSING, summary, grade, evidence, since=seen, gpu_hours=silence / 3600)
