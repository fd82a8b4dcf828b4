"""The GPU, Node and Pod that a finding names, and why health is unknown, for labels of metrics. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpuwatch.act.analysis import SEVERITY_RANK
from gpuwatch.facts.model.cluster import Pod
from gpuwatch.facts.model.decision import ActionKind, Analysis, Finding, FindingKind, SubjectKind, Verdict
from gpuwatch.facts.model.remediation import Remediation, StepKind
from gpuwatch.facts.model.telemetry import Device, DeviceId, PodRef, Schema


class UnknownReason(StrEnum):
    """Why no rule could tell the health of a GPU that is known. Derived by `health_unknown`."""

    SIGNALS_MISSING = "signals_missing"  # it reports; no series of what the rules need is exported here
    SAMPLES_MISSING = "samples_missing"  # it reports; what the rules need is exported here, but not enough of it
    EXPORTER_DOWN = "exporter_down"  # its exporter cannot be scraped, or it is not known whether it can
    EXPORTER_EMPTY = "exporter_empty"  # its exporter answers without a GPU, as while a driver is loaded
    TELEMETRY_MISSING = "telemetry_missing"  # so many exporters are down that the scraping is at fault


@dataclass(frozen=True, slots=True)
class Culprit:
    """The subject of a finding; '' where there are several, or it is unknown.

    gpu_node: the Node, or the host as in telemetry if it matches no Node.
    """

    gpu_node: str = ""
    uuid: str = ""
    mig_instance: str = ""
    namespace: str = ""
    pod: str = ""


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """In a stable order while the findings stay the same."""
    return sorted(findings, key=lambda item: (SEVERITY_RANK[item.severity], str(item.verdict), item.id))


def culprits(analysis: Analysis, findings: Iterable[Finding]) -> list[Culprit]:
    """One for each finding. A gang or a workload of several Pods is named by its first Pod by name. For a GPU that
    several Pods share no Pod is named, and a Namespace only if it is the same for all: it is not known which Pod is the
    cause."""
    devices = {device.id: device for device in analysis.devices}
    pods = {pod.ref: pod for pod in analysis.cluster.pods}
    namespaces = {workload.id: workload.namespace for workload in analysis.cluster.workloads}
    namespaces |= {gang.id: gang.namespace for gang in analysis.cluster.gangs}
    return [_culprit(item, devices, pods, namespaces) for item in findings]


def _culprit(
    item: Finding, devices: Mapping[DeviceId, Device], pods: Mapping[PodRef, Pod], namespaces: Mapping[str, str]
) -> Culprit:
    kind, name = item.subject.kind, item.subject.name
    known = [devices[one] for one in item.devices if one in devices]
    if kind is SubjectKind.FLEET:
        return Culprit()
    if kind is SubjectKind.NODE:
        return Culprit(gpu_node=item.node or name)
    refs = sorted(set(item.pods)) or ([name] if kind is SubjectKind.POD else [])
    homes = {device.node or device.node_label for device in known}
    homes = homes or {pods[ref].node for ref in refs if ref in pods}
    uuid, mig_instance = _one({one.uuid for one in known}), _one({one.mig_instance or "" for one in known})
    if kind is SubjectKind.DEVICE and not known:
        uuid, _, mig_instance = name.partition("/")
    ref = refs[0] if kind in (SubjectKind.GANG, SubjectKind.WORKLOAD) and refs else _one(set(refs))
    return Culprit(
        gpu_node=item.node or _one(homes),
        uuid=uuid,
        mig_instance=mig_instance if uuid else "",
        namespace=_one({ref.partition("/")[0] for ref in refs}) or namespaces.get(name, ""),
        pod=ref.partition("/")[2],
    )


def _one(values: set[str]) -> str:
    return next(iter(values)) if len(values) == 1 else ""


def health_unknown(analysis: Analysis) -> Mapping[tuple[str, str], int]:
    """(Node, UnknownReason) → GPUs and MIG instances of unknown health, the highest count first. The sum is
    Coverage.health_unknown. The reason derives from the finding's kind, from Finding.missing compared with the signals
    exported here, and from the exporter's `up` in its evidence."""
    devices = {device.id: device for device in analysis.devices}
    why: dict[DeviceId, tuple[str, str]] = {}
    for item in analysis.findings:
        reason = _unknown_reason(item, analysis.telemetry_schema)
        for name in item.devices if reason is not None else ():
            device = devices.get(name)
            node = (device.node or device.node_label) if device is not None else item.node or ""
            why.setdefault(name, (node, str(reason)))
    return dict(sorted(Counter(why.values()).items(), key=lambda item: (-item[1], item[0])))


def _unknown_reason(item: Finding, schema: Schema) -> UnknownReason | None:
    if item.verdict is not Verdict.UNKNOWN:
        return None
    if item.kind is FindingKind.HEALTH_UNKNOWN:
        exported = {str(found.signal) for found in schema.signals}
        return UnknownReason.SAMPLES_MISSING if exported & set(item.missing) else UnknownReason.SIGNALS_MISSING
    if item.kind is FindingKind.EXPORTER_DOWN:
        answers = any(one.signal == "up" and one.value == 1.0 for one in item.evidence)
        return UnknownReason.EXPORTER_EMPTY if answers else UnknownReason.EXPORTER_DOWN
    return UnknownReason.TELEMETRY_MISSING if item.kind is FindingKind.TELEMETRY_MISSING else None


def tainted_since(remediations: Iterable[Remediation]) -> dict[str, datetime]:
    """Node → since when it or one of its devices has a taint of ours, by the steps that were done."""
    found: dict[str, datetime] = {}
    for each in remediations:
        if each.proposal.action is not ActionKind.TAINT_NODE or not each.phase.in_flight:
            continue
        done = [step for step in each.steps if step.done_at is not None]
        removed = {(_TAINT_OF[step.kind], step.target) for step in done if step.kind in _TAINT_OF}
        since = [
            step.done_at
            for step in done
            if step.done_at is not None and step.kind in _TAINT_OF.values() and (step.kind, step.target) not in removed
        ]
        if since:
            for node in each.proposal.nodes:
                found[node] = min(since) if node not in found else min(found[node], *since)
    return dict(sorted(found.items(), key=lambda item: (item[1], item[0])))


_TAINT_OF = {StepKind.UNTAINT: StepKind.TAINT, StepKind.DEVICE_UNTAINT: StepKind.DEVICE_TAINT}
