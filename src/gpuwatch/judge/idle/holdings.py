"""Which Pod has which devices, and their activity: a Snapshot indexed for the idle rules."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import numpy as np

from gpuwatch.facts.frameworks import OWNERS
from gpuwatch.facts.frameworks.framework import Nature
from gpuwatch.facts.model.cluster import Node, OwnerStatus, Pod, Sharing, Workload
from gpuwatch.facts.model.decision import Snapshot
from gpuwatch.facts.model.telemetry import ActivityHistory, Device, DeviceId, PodRef
from gpuwatch.judge.idle.silence import ABSENT, KNOWN, UNKNOWN, Calendar, Lane, calendar_of, joined, lane_of, read_steps


class WorkloadClass(StrEnum):
    """Who gives a workload its work: callers, a person, or itself."""

    SERVING = "serving"
    INTERACTIVE = "interactive"
    BATCH = "batch"
    OTHER = "of unknown kind"


_CLASS_OF = {
    Nature.SERVES: WorkloadClass.SERVING,
    Nature.SESSION: WorkloadClass.INTERACTIVE,
    Nature.ENDS: WorkloadClass.BATCH,
}
_INTERACTIVE_IMAGE = re.compile(r"notebook|jupyter|code-server|rstudio|vscode", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PodHolding:
    """A running Pod and its devices.

    pod: None where no cluster was read. workload: Workload.id, or the Pod's own name where none is known.
    lanes: activity per device; lane: of all as one. started: None where unknown or before the history.
    ambiguous: other Pods share one of its devices, so work there may be theirs. unseen: missing data, for people.
    """

    ref: PodRef
    pod: Pod | None
    workload: str
    gang: str
    devices: tuple[Device, ...]
    lanes: Mapping[DeviceId, Lane]
    lane: Lane
    started: datetime | None
    ambiguous: bool
    unseen: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Holdings:
    """past: activity of earlier Pods, by workload. left_out: Pods that are not judged, with the reason. unheld: devices
    that telemetry or a claim gives to a Pod that the cluster does not know, with its name."""

    calendar: Calendar | None
    holders: Mapping[PodRef, PodHolding]
    past: Mapping[str, tuple[Lane, ...]]
    left_out: Mapping[PodRef, str]
    unheld: Mapping[DeviceId, tuple[str, ...]]
    workloads: Mapping[str, Workload]


def class_of(pod: Pod | None, workload: Workload | None) -> WorkloadClass:
    """By the top controller's kind, or by the image where the kind leaves it open."""
    kind = OWNERS.get(workload.key) if workload is not None else None
    found = _CLASS_OF[kind.nature] if kind is not None and kind.nature is not None else WorkloadClass.OTHER
    images = pod.images if pod is not None else ()
    if found is not WorkloadClass.BATCH and any(_INTERACTIVE_IMAGE.search(image) for image in images):
        return WorkloadClass.INTERACTIVE
    return found


def image_family(pod: Pod | None) -> str:
    """The first image without registry, tag and digest: 'vllm/vllm-openai'; '' where none is known."""
    if pod is None or not pod.images:
        return ""
    name = pod.images[0].split("@", 1)[0]
    first, _, rest = name.partition("/")
    if rest and ("." in first or ":" in first or first == "localhost"):
        name = rest
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last.split(':', 1)[0]}"


def left_out_reasons(snapshot: Snapshot) -> dict[PodRef, str]:
    """Pods that no idle rule judges (ended, leaving, DaemonSets, exporters …), each with the reason."""
    cluster = snapshot.cluster
    nodes = {node.name: node for node in cluster.nodes}
    workloads = {workload.id: workload for workload in cluster.workloads}
    reasons = {}
    for pod in cluster.pods:
        reason = _left_out(pod, nodes.get(pod.node), workloads.get(pod.workload), cluster.exporter_nodes)
        if reason:
            reasons[pod.ref] = reason
    return reasons


def _left_out(pod: Pod, node: Node | None, workload: Workload | None, exporters: Mapping[str, str]) -> str:
    if pod.phase in ("Succeeded", "Failed"):
        return f"it has ended ({pod.phase})"
    if pod.deleting:
        return "it is being deleted"
    if pod.phase and pod.phase != "Running":
        return f"it does not run yet ({pod.phase})"
    if node is not None and node.ready is False:
        return f"its Node {node.name} is not ready"
    if workload is not None and workload.status is OwnerStatus.DAEMON:
        return "it belongs to a DaemonSet"
    if pod.name in exporters:
        return "it exports telemetry"
    return ""


def holdings_of(snapshot: Snapshot) -> Holdings:
    """Without a cluster, each Pod that telemetry names is its own workload.

    ValueError where the histories differ in their step.
    """
    cluster = snapshot.cluster
    codes = [read_steps(history) for history in snapshot.activity]
    calendar = calendar_of(snapshot.activity, codes) if snapshot.activity else None
    rows: dict[PodRef, list[tuple[ActivityHistory, Lane]]] = defaultdict(list)
    unnamed: dict[DeviceId, tuple[ActivityHistory, Lane]] = {}
    for history, code in zip(snapshot.activity, codes, strict=True):
        if history.pod:
            rows[history.pod].append((history, code))
        else:
            unnamed[history.device] = history, code
    workloads = {workload.id: workload for workload in cluster.workloads}
    left_out = left_out_reasons(snapshot)
    held: dict[PodRef, list[Device]] = defaultdict(list)
    for device in snapshot.devices:
        for ref in device.pods:
            held[ref].append(device)
    pods = {pod.ref: pod for pod in cluster.pods}
    claimed = _claimed(snapshot)
    for pod in cluster.pods:
        for claim in pod.claims:
            own = claimed.get(f"{pod.namespace}/{claim}", ())
            held[pod.ref] += [item for item in own if item.node == pod.node and item not in held[pod.ref]]
    build = _Builder(snapshot, calendar, rows, held, unnamed)
    if cluster.known:
        holders = {ref: build.holder(ref, pod) for ref, pod in pods.items() if ref not in left_out}
    else:
        holders = {ref: build.holder(ref, None) for ref in held}
    return Holdings(
        calendar=calendar,
        holders=holders,
        past=build.past(holders, workloads, left_out) if calendar is not None else {},
        left_out=left_out,
        unheld=_unheld(snapshot, pods) if cluster.known else {},
        workloads=workloads,
    )


class _Builder:
    def __init__(
        self,
        snapshot: Snapshot,
        calendar: Calendar | None,
        rows: Mapping[PodRef, Sequence[tuple[ActivityHistory, Lane]]],
        held: Mapping[PodRef, Sequence[Device]],
        unnamed: Mapping[DeviceId, tuple[ActivityHistory, Lane]],
    ) -> None:
        self.calendar = calendar
        self.rows = rows
        self.held = held
        self.unnamed = unnamed
        self.devices = {device.id: device for device in snapshot.devices}
        self.doubted = _doubted(snapshot)
        self.nodes = {node.name: node for node in snapshot.cluster.nodes}

    def holder(self, ref: PodRef, pod: Pod | None) -> PodHolding:
        started = (pod.started or pod.created) if pod is not None else None
        devices = {device.id: device for device in self.held.get(ref, ())}
        lanes: dict[DeviceId, Lane] = {}
        unseen: list[str] = []
        calendar = self.calendar
        if calendar is not None:
            rows = self.rows.get(ref, ())
            if not rows and started is not None:
                # The exporter names no Pods; the cluster tells which devices this one has had since its start.
                rows = [self.unnamed[device] for device in devices if device in self.unnamed]
            if started is None:
                begin, started = self._first_seen(rows)
            else:
                begin = calendar.index_after(started)
                # A Pod that is as old as the telemetry may have worked before.
                if begin <= calendar.first_known:
                    begin, started = calendar.first_known, None
            for history, code in rows:
                lane = lane_of(calendar, history, code, begin, lasts=True)
                # A row from before the Pod was recreated under the same name belongs to the past.
                there = self.devices.get(history.device)
                away = pod is not None and there is not None and there.node != pod.node
                if history.device in devices or ((lane & KNOWN).any() and not away):
                    lanes[history.device] = lane
                    if history.device in self.devices:
                        devices[history.device] = self.devices[history.device]
            for device in devices:
                if device not in lanes:
                    lanes[device] = _unknown(calendar, begin)
            if not lanes:
                lanes[""] = _unknown(calendar, begin)
        ambiguous = any(self._shared(device) for device in devices.values())
        asked = sum(pod.accelerators.values()) if pod is not None else 0
        if not devices:
            unseen.append("telemetry attributes no device to it")
        elif len(devices) < asked and not ambiguous:
            unseen.append(f"telemetry shows {len(devices)} of its {asked} devices")
        unseen += [f"{device.id} has left telemetry" for device in devices.values() if not device.present]
        unseen += [f"{name}, which may be its own, is not trusted" for name in self.doubted.get(ref, ())[:1]]
        if calendar is None:
            unseen.append("no history of activity")
        return PodHolding(
            ref=ref,
            pod=pod,
            workload=(pod.workload if pod is not None else "") or ref,
            gang=pod.gang if pod is not None else "",
            devices=tuple(devices.values()),
            lanes=lanes,
            lane=joined(list(lanes.values())) if lanes else _nothing(),
            started=started,
            ambiguous=ambiguous,
            unseen=tuple(unseen),
        )

    def _first_seen(self, rows: Sequence[tuple[ActivityHistory, Lane]]) -> tuple[int, datetime | None]:
        """The step in which a Pod of unknown age appeared, and its time if telemetry began an hour earlier."""
        calendar = self.calendar
        assert calendar is not None
        lanes = (lane_of(calendar, history, code, None, lasts=True) for history, code in rows)
        begin = min((int(lane.nonzero()[0][0]) for lane in lanes if lane.any()), default=calendar.steps)
        hour = max(1, 3600 // calendar.step_seconds)
        told = calendar.first_known + hour <= begin < calendar.steps
        return begin, calendar.time_of(begin) if told else None

    def _shared(self, device: Device) -> bool:
        node = self.nodes.get(device.node or "")
        return device.shared or (node is not None and node.sharing is not Sharing.NONE and node.replicas > 1)

    def past(
        self, holders: Mapping[PodRef, PodHolding], workloads: Mapping[str, Workload], left_out: Mapping[PodRef, str]
    ) -> dict[str, tuple[Lane, ...]]:
        """Activity of earlier Pods, by workload: Pods that are gone, and earlier ones of the same name."""
        calendar = self.calendar
        assert calendar is not None
        owner = _owners(workloads)
        found: dict[str, list[Lane]] = defaultdict(list)
        for ref, rows in self.rows.items():
            holder = holders.get(ref)
            if ref in left_out or (holder is not None and (holder.pod is None or holder.started is None)):
                continue
            lanes = [lane_of(calendar, history, code, None, lasts=False) for history, code in rows]
            if holder is not None and holder.started is not None:
                for lane in lanes:
                    lane[calendar.index_after(holder.started) :] = ABSENT
            workload = owner(ref) if holder is None else holder.workload
            lanes = [lane for lane in lanes if lane.any()]
            if workload and lanes:
                found[workload].append(joined(lanes))
        return {workload: tuple(lanes) for workload, lanes in found.items()}


def _owners(workloads: Mapping[str, Workload]) -> Callable[[PodRef], str]:
    """Finds a deleted Pod's workload by the names that controllers give to Pods; '' where not exactly one fits."""
    named: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for workload in workloads.values():
        kind = OWNERS.get(workload.key)
        if kind is not None and kind.pod_suffix:
            named[f"{workload.namespace}/{workload.name}"].append((workload.id, kind.pod_suffix))

    def owner(ref: PodRef) -> str:
        fitting = []
        parts = ref.split("-")
        for end in range(1, len(parts)):
            suffix = "-".join(parts[end:])
            known = named.get("-".join(parts[:end]), ())
            fitting += [workload for workload, pattern in known if re.fullmatch(pattern, suffix)]
        return fitting[0] if len(fitting) == 1 else ""

    return owner


def _claimed(snapshot: Snapshot) -> dict[str, list[Device]]:
    devices = {device.id: device for device in snapshot.devices}
    found: dict[str, list[Device]] = defaultdict(list)
    for item in snapshot.cluster.claims:
        if item.device in devices:
            found[item.claim].append(devices[item.device])
    return found


def _doubted(snapshot: Snapshot) -> dict[PodRef, list[DeviceId]]:
    """Doubted devices by the Pods that telemetry or a claim gives them to: such a Pod may have more than is seen."""
    found: dict[PodRef, list[DeviceId]] = defaultdict(list)
    for each in snapshot.doubted:
        for ref in each.shown.pods:
            found[ref].append(each.shown.id)
    doubted = {each.shown.id for each in snapshot.doubted}
    claimed = {item.claim: item.device for item in snapshot.cluster.claims if item.device in doubted}
    for pod in snapshot.cluster.pods:
        found[pod.ref] += [claimed[name] for claim in pod.claims if (name := f"{pod.namespace}/{claim}") in claimed]
    return found


def _unheld(snapshot: Snapshot, pods: Mapping[PodRef, Pod]) -> dict[DeviceId, tuple[str, ...]]:
    claims_in_use = {f"{pod.namespace}/{claim}" for pod in pods.values() for claim in pod.claims}
    found: dict[DeviceId, list[str]] = defaultdict(list)
    for device in snapshot.devices:
        found[device.id] += [ref for ref in device.pods if ref not in pods]
    for item in snapshot.cluster.claims:
        if item.device in found and item.claim not in claims_in_use:
            found[item.device].append(f"ResourceClaim {item.claim}")
    return {device: tuple(names) for device, names in found.items() if names}


def _unknown(calendar: Calendar, begin: int) -> Lane:
    lane = _nothing(calendar.steps)
    lane[begin:] = UNKNOWN
    return lane


def _nothing(steps: int = 0) -> Lane:
    return np.zeros(steps, dtype=np.uint8)
