"""Reads telemetry and the cluster once into a Snapshot. Both are optional: without telemetry there are no findings;
without a cluster no Pod's owner is known, so the plan refuses every action."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from gpuwatch.facts.model.cluster import Cluster
from gpuwatch.facts.model.decision import Snapshot
from gpuwatch.facts.model.needs import TelemetryNeeds
from gpuwatch.facts.model.telemetry import (
    ActivityHistory,
    Device,
    DeviceId,
    Gap,
    GapKind,
    Readings,
    Signal,
    Statistic,
    WindowStat,
)
from gpuwatch.sources.collect.origin import (
    TrustedTargets,
    boot_times,
    by_trust,
    find_origin,
    held_devices,
    infiniband_ports,
    resolve_nodes,
)
from gpuwatch.sources.kube.reader import ClusterError, ClusterReader
from gpuwatch.sources.telemetry.activity import histories
from gpuwatch.sources.telemetry.changes import standing, state_changes
from gpuwatch.sources.telemetry.gaps import failed
from gpuwatch.sources.telemetry.inventory import take_inventory
from gpuwatch.sources.telemetry.pod_runs import pod_runs
from gpuwatch.sources.telemetry.readings import read_stats
from gpuwatch.sources.telemetry.samples import SampleStore, TelemetryError
from gpuwatch.sources.telemetry.serving import requests

Progress = Callable[[str], None]
"""Called with the name of each step before it begins."""

# Up to this many devices, all histories cost less than a selection.
_ALL_HISTORIES = 256
# How many busy devices' histories are fetched for comparison with young workloads.
_KIN_DEVICES = 128


def collect(
    telemetry: SampleStore | None,
    cluster: ClusterReader | None,
    at: datetime,
    needs: TelemetryNeeds,
    progress: Progress = lambda _: None,
    matchers: Mapping[str, str] = {},
    trusted: TrustedTargets = (),
) -> Snapshot:
    """The Snapshot of this moment. What could not be read is a Gap. matchers, trusted: see `Connection`."""
    state, gaps = _read_cluster(cluster, at, progress)
    snapshot = Snapshot(at=at, cluster=state, gaps=tuple(gaps))
    if telemetry is None:
        detail = "No telemetry source was given: use --prometheus URL or --telemetry FILE."
        missing = Gap(kind=GapKind.UNREACHABLE, what="telemetry", detail=detail)
        return replace(snapshot, gaps=(*snapshot.gaps, missing))
    # Whether the answers are whole is a fact of this Snapshot: the next one has answers of its own.
    reading = telemetry.reading()
    try:
        snapshot = _read_telemetry(reading, snapshot, needs, progress, matchers, trusted)
    except TelemetryError as error:
        snapshot = replace(snapshot, gaps=(*snapshot.gaps, failed("telemetry", error)))
    return replace(snapshot, gaps=tuple(dict.fromkeys((*snapshot.gaps, *reading.problems))))


def _read_cluster(cluster: ClusterReader | None, at: datetime, progress: Progress) -> tuple[Cluster, list[Gap]]:
    if cluster is None:
        detail = "No cluster was read, so Pods are known by name only: no kubeconfig was found, or --no-cluster is set."
        return Cluster(), [Gap(kind=GapKind.UNREACHABLE, what="cluster", detail=detail)]
    progress(f"reading {cluster.description}")
    try:
        state = cluster.read(at)
    except ClusterError as error:
        return Cluster(), [Gap(kind=GapKind.UNREACHABLE, what="cluster", detail=str(error))]
    return state, list(state.gaps)


def _read_telemetry(
    telemetry: SampleStore,
    snapshot: Snapshot,
    needs: TelemetryNeeds,
    progress: Progress,
    matchers: Mapping[str, str],
    trusted: TrustedTargets,
) -> Snapshot:
    at = snapshot.at
    gaps = list(snapshot.gaps)
    progress("finding out which metrics and labels there are")
    origin = find_origin(telemetry, at, snapshot.cluster, matchers, trusted)
    telemetry, schema = origin.store, origin.schema
    gaps += origin.gaps
    progress("listing devices")
    inventory = take_inventory(
        telemetry, at, schema, needs.inventory_seconds, needs.lost_seconds, exporter_pods=snapshot.cluster.exporter_pods
    )
    gaps += inventory.gaps
    ours = None if schema.matchers else origin.by_setting
    devices, exporters, unresolved = resolve_nodes(
        inventory.devices, inventory.exporters, snapshot.cluster, origin.nodes, ours
    )
    devices, wrong, contradicted = held_devices(devices, snapshot.cluster, at)
    wrong = {**inventory.doubts, **wrong}
    devices, doubted, untrusted = by_trust(devices, wrong, inventory.instances, origin, snapshot.cluster)
    gaps += (*unresolved, *contradicted, *untrusted)
    inventory = replace(inventory, devices=devices)
    suspects_stat = WindowStat(Signal.BUSY_RATIO, Statistic.MAX, needs.suspect_window_seconds)
    stats = tuple(dict.fromkeys((*needs.stats, suspects_stat) if needs.suspect_window_seconds else needs.stats))
    progress(f"asking {len(stats)} statistics of {len(devices)} devices")
    readings, found = read_stats(telemetry, stats, at, schema, inventory)
    gaps += found
    progress("reading state changes (XIDs, recovery actions)")
    changes, found = state_changes(telemetry, needs.state_signals, at, needs.change_window_seconds, schema, inventory)
    gaps += found
    window, events = timedelta(seconds=needs.change_window_seconds), set(needs.state_signals)
    stand = standing(telemetry, readings, at, schema, inventory)
    changes = (*(each for each in stand if each.signal not in events or at - each.at >= window), *changes)
    chosen = _histories_wanted(devices, readings, suspects_stat, needs)
    progress(f"reading the activity of {len(inventory.devices) if chosen is None else len(chosen)} devices")
    activity: Sequence[ActivityHistory] = ()
    if chosen is None or chosen:
        activity, found = histories(telemetry, at, schema, inventory, needs, chosen)
        gaps += found
    progress("reading how Pods with accelerators ended")
    runs, found = pod_runs(telemetry, at, needs.pod_runs_seconds)
    boots, more = boot_times(telemetry, at, snapshot.cluster)
    ports, failures = infiniband_ports(telemetry, at, snapshot.cluster, needs.port_stats)
    served, unserved = requests(telemetry, at)
    gaps += (*found, *more, *failures, *unserved)
    return replace(
        snapshot,
        telemetry_schema=schema,
        devices=devices,
        doubted=doubted,
        exporters=exporters,
        readings=readings,
        activity=tuple(activity),
        changes=tuple(changes),
        pod_runs=runs,
        requests=served,
        boots=boots,
        infiniband=ports,
        # A signal may be missing from several queries.
        gaps=tuple(dict.fromkeys(gaps)),
    )


def _histories_wanted(
    devices: Sequence[Device], readings: Readings, suspects_stat: WindowStat, needs: TelemetryNeeds
) -> frozenset[DeviceId] | None:
    """Devices whose long history is needed; None for all: those that were not active within the suspect window, and a
    sample of the busy ones for comparison. A device without data counts as not active."""
    if not needs.suspect_window_seconds or len(devices) <= _ALL_HISTORIES:
        return None
    held = [device for device in devices if device.present and device.pods]
    recent = {device.id: readings.get(suspects_stat, device) for device in held}
    suspects = {name for name, value in recent.items() if value is None or value <= needs.activity_bound_ratio}
    busy = sorted(device.id for device in held if device.id not in suspects)
    stride = max(len(busy) // _KIN_DEVICES, 1)
    return frozenset(suspects | set(busy[::stride]))
