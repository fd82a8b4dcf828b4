"""Who holds which devices, and what was seen of them: a Snapshot laid out for the idle rules."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import numpy as np

from gpuwatch.frameworks import OWNERS
from gpuwatch.frameworks.framework import Nature
from gpuwatch.model.cluster import Node, OwnerStatus, Pod, Sharing, Workload
from gpuwatch.model.decision import Snapshot
from gpuwatch.model.telemetry import ActivityHistory, Device, DeviceId, PodRef
from gpuwatch.profile.silence import (
    ABSENT,
    ACTIVE,
    SILENT,
    UNKNOWN,
    Calendar,
    Lane,
    calendar_of,
    joined,
    lane_of,
    read_steps,
)


class WorkloadClass(StrEnum):
    """What decides whether a workload works: callers, a person at a keyboard, or only itself."""

    SERVING = "serving"
    INTERACTIVE = "interactive"
    BATCH = "batch"
    OTHER = "other"


_CLASS_OF = {
    Nature.SERVES: WorkloadClass.SERVING,
    Nature.SESSION: WorkloadClass.INTERACTIVE,
    Nature.ENDS: WorkloadClass.BATCH,
}
_INTERACTIVE_IMAGE = re.compile(r"notebook|jupyter|code-server|rstudio|vscode", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PodHolding:
    """A running Pod and what it holds.

    pod: None where no cluster was read. workload: Workload.id, or the Pod's own name where none is known.
    lanes: one per device; lane: all of them as one. started: when it began to hold them; None where the
    history does not reach back to before that, or where it is not known. ambiguous: other Pods share one of its
    devices, so that work seen there may be theirs. unseen: what keeps the picture incomplete, for people.
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
    """holders: by Pod. past: lanes of Pods that are gone, by workload. left_out: Pods that are not judged, and why.
    unheld: devices that telemetry or a claim calls held, by whom, where the cluster knows no such Pod."""

    calendar: Calendar | None
    holders: Mapping[PodRef, PodHolding]
    past: Mapping[str, tuple[Lane, ...]]
    left_out: Mapping[PodRef, str]
    unheld: Mapping[DeviceId, tuple[str, ...]]
    workloads: Mapping[str, Workload]


def class_of(pod: Pod | None, workload: Workload | None) -> WorkloadClass:
    """By the top controller's kind; by the image where that says nothing."""
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
    """Pods of the cluster that no idle rule judges, each with the reason."""
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
    """Lays the Snapshot out.

    Where no cluster was read, the Pods that telemetry names as holders are all that is known: each is its own
    workload. ValueError where the histories do not share one step.
    """
    cluster = snapshot.cluster
    codes = [read_steps(history) for history in snapshot.activity]
    calendar = calendar_of(snapshot.activity, codes) if snapshot.activity else None
    rows: dict[PodRef, list[tuple[ActivityHistory, Lane]]] = defaultdict(list)
    for history, code in zip(snapshot.activity, codes, strict=True):
        if history.pod:
            rows[history.pod].append((history, code))
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
            held[pod.ref] += [item for item in claimed.get(f"{pod.namespace}/{claim}", ()) if item not in held[pod.ref]]
    build = _Builder(snapshot, calendar, rows, held)
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
    ) -> None:
        self.calendar = calendar
        self.rows = rows
        self.held = held
        self.devices = {device.id: device for device in snapshot.devices}
        self.nodes = {node.name: node for node in snapshot.cluster.nodes}

    def holder(self, ref: PodRef, pod: Pod | None) -> PodHolding:
        started = (pod.started or pod.created) if pod is not None else None
        devices = {device.id: device for device in self.held.get(ref, ())}
        lanes: dict[DeviceId, Lane] = {}
        unseen: list[str] = []
        calendar = self.calendar
        if calendar is not None:
            rows = self.rows.get(ref, ())
            if started is None:
                begin, started = self._first_seen(rows)
            else:
                begin = calendar.index_after(started)
                # Of a Pod that is as old as the telemetry nobody can say that it never worked.
                if begin <= calendar.first_known:
                    begin, started = calendar.first_known, None
            for history, code in rows:
                lane = lane_of(calendar, history, code, begin, lasts=True)
                # A row of the same name from before the Pod was made anew belongs to the past.
                if history.device in devices or (lane & (SILENT | ACTIVE)).any():
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
        """The step in which a Pod of unknown age appeared, and the moment where telemetry alone can tell it: where
        it had been there for an hour before the Pod."""
        calendar = self.calendar
        assert calendar is not None
        begin = min((_first_known(calendar, history, code) for history, code in rows), default=calendar.steps)
        hour = max(1, 3600 // calendar.step_seconds)
        told = calendar.first_known + hour <= begin < calendar.steps
        return begin, calendar.time_of(begin) if told else None

    def _shared(self, device: Device) -> bool:
        node = self.nodes.get(device.node or "")
        return device.shared or (node is not None and node.sharing is not Sharing.NONE and node.replicas > 1)

    def past(
        self, holders: Mapping[PodRef, PodHolding], workloads: Mapping[str, Workload], left_out: Mapping[PodRef, str]
    ) -> dict[str, tuple[Lane, ...]]:
        """Lanes of earlier Pods: those that are gone, and what was before a Pod of the same name was made anew."""
        calendar = self.calendar
        assert calendar is not None
        owners = _Owners(workloads)
        found: dict[str, list[Lane]] = defaultdict(list)
        for ref, rows in self.rows.items():
            holder = holders.get(ref)
            if holder is not None:
                if holder.pod is None or holder.started is None:
                    continue
                before = calendar.index_after(holder.started)
                lanes = [lane_of(calendar, history, code, None, lasts=False) for history, code in rows]
                for lane in lanes:
                    lane[before:] = ABSENT
                workload = holder.workload
            elif ref in left_out:
                continue
            else:
                workload = owners.of(ref)
                lanes = [lane_of(calendar, history, code, None, lasts=False) for history, code in rows]
            lanes = [lane for lane in lanes if lane.any()]
            if workload and lanes:
                found[workload].append(joined(lanes))
        return {workload: tuple(lanes) for workload, lanes in found.items()}


class _Owners:
    """Tells the workload of a Pod that is gone by the names that controllers give: no object is left that says who
    owned it."""

    def __init__(self, workloads: Mapping[str, Workload]) -> None:
        self._named: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for workload in workloads.values():
            kind = OWNERS.get(workload.key)
            if kind is not None and kind.pod_suffix:
                self._named[f"{workload.namespace}/{workload.name}"].append((workload.id, kind.pod_suffix))

    def of(self, ref: PodRef) -> str:
        """Workload.id, or '' where no workload, or more than one, would have named a Pod so."""
        fitting = []
        parts = ref.split("-")
        for end in range(1, len(parts)):
            suffix = "-".join(parts[end:])
            named = self._named.get("-".join(parts[:end]), ())
            fitting += [workload for workload, pattern in named if re.fullmatch(pattern, suffix)]
        return fitting[0] if len(fitting) == 1 else ""


def _claimed(snapshot: Snapshot) -> dict[str, list[Device]]:
    """Devices by the claim that holds them."""
    devices = {device.id: device for device in snapshot.devices}
    found: dict[str, list[Device]] = defaultdict(list)
    for item in snapshot.cluster.claims:
        if item.device in devices:
            found[item.claim].append(devices[item.device])
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


def _first_known(calendar: Calendar, history: ActivityHistory, codes: Lane) -> int:
    lane = lane_of(calendar, history, codes, None, lasts=True)
    return next((int(index) for index in lane.nonzero()[0][:1]), calendar.steps)


def _unknown(calendar: Calendar, begin: int) -> Lane:
    lane = _nothing(calendar.steps)
    lane[begin:] = UNKNOWN
    return lane


def _nothing(steps: int = 0) -> Lane:
    return np.zeros(steps, dtype=np.uint8)
