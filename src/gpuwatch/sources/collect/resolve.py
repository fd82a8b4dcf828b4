"""Resolves telemetry's host names to Nodes of the cluster.

The host may be the Node's name, its host name with or without a domain, an address, the name of the exporter's Pod (old
exporters), or `localhost` (a remote host engine, dcgm-exporter #572). A host that matches no Node stays None, and
nothing is done about its devices. Where only the part before the domain matches, the host may be another cluster's: it
counts where the exporter runs on that Node, or where the series are known to be of this cluster.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpuwatch.facts.model.cluster import Cluster, Pod
from gpuwatch.facts.model.telemetry import Device, Exporter, Gap, GapKind
from gpuwatch.sources.telemetry.gaps import failed
from gpuwatch.sources.telemetry.samples import Expression, Function, SampleStore, Selector, TelemetryError

_SAME_BOOT_SECONDS = 60
"""The kernel computes its boot time from a clock that is corrected now and then, so readings differ by seconds."""


class HostNames:
    """Nodes by the names that telemetry may have for them."""

    def __init__(self, cluster: Cluster) -> None:
        self._names = _names(cluster)

    def certain(self, host: str, instance: str) -> str | None:
        """The Node with this very name or address; without a usable host, that of the target's address."""
        if node := self._names.get(host):
            return node
        return None if self.short(host, "") else self._names.get(host_of(instance))

    def short(self, host: str, instance: str) -> str | None:  # noqa: ARG002 - as `certain`
        """The Node with the host's name less its domain."""
        return None if host.replace(".", "").isdigit() else self._names.get(host.partition(".")[0])


def resolve_nodes(
    devices: Sequence[Device],
    exporters: Sequence[Exporter],
    cluster: Cluster,
    nodes: Mapping[str, str] = {},
    ours: Collection[str] | None = (),
) -> tuple[tuple[Device, ...], tuple[Exporter, ...], list[Gap]]:
    """Devices and exporters with `node` where it is certain, and a Gap for each host that is no Node.

    nodes: instance → the Node of its exporter. ours: instances that are known to be of this cluster; None for all.
    """
    if not cluster.known:
        return tuple(devices), tuple(exporters), []
    names = HostNames(cluster)

    def found(host: str, instance: str) -> str | None:
        node = names.certain(host, instance)
        short = names.short(host, instance) if node is None else None
        there = nodes.get(instance) or names.certain("", instance)
        if short and (ours is None or instance in ours or there == short):
            return short
        return node or (None if short else nodes.get(instance))

    by_instance: dict[str, str | None] = {}
    resolved = []
    unknown: Counter[str] = Counter()
    for device in devices:
        node = found(device.node_label, device.exporter)
        if node is None:
            unknown[device.node_label or "(no host label)"] += 1
        elif device.exporter:
            by_instance[device.exporter] = node
        resolved.append(replace(device, node=node))
    targets = tuple(
        replace(item, node=by_instance.get(item.instance) or found(item.node_label, item.instance))
        for item in exporters
    )
    gaps = [
        Gap(
            kind=GapKind.NODE_UNRESOLVED,
            what=f"host {host!r}",
            detail=f"{count} devices report from it, and the cluster has no such Node"
            + (f" ({short} has the same name without the domain: no proof)" if (short := names.short(host, "")) else "")
            + "; nothing will be done about them. Add a ServiceMonitor relabelling of __meta_kubernetes_pod_node_name "
            "to `node`, or check that telemetry and cluster belong together (prometheus.matchers).",
        )
        for host, count in sorted(unknown.items())
    ]
    return tuple(resolved), targets, gaps


_LABELS_LAG = timedelta(minutes=5)
"""An exporter's labels follow a new Pod after a scrape or two, and an answer of Prometheus may be five minutes old."""


def held_devices(devices: Sequence[Device], cluster: Cluster, at: datetime) -> tuple[tuple[Device, ...], list[Gap]]:
    """Devices with the Pods that hold them by their kubelets, where the exporter names none; and a Gap where it names
    others for longer than its labels may lag: nothing is done about such a device. MIG devices' own UUIDs are not in
    telemetry, so they stay as they are."""
    holders: dict[tuple[str, str], list[Pod]] = defaultdict(list)
    for pod in cluster.pods:
        for item in pod.devices:
            holders[pod.node, item.id.partition("::")[0]].append(pod)
    told, wrong = [], []
    for device in devices:
        pods = [] if device.mig_instance or device.node is None else holders.get((device.node, device.uuid), [])
        names = tuple(sorted({pod.ref for pod in pods}))
        settled = all(pod.started is not None and pod.started + _LABELS_LAG <= at for pod in pods)
        if names and not device.pods:
            told.append(replace(device, pods=names, shared=len(names) > 1))
        elif names and settled and device.present and set(names).isdisjoint(device.pods):
            reason = f"telemetry gives it to {', '.join(device.pods)}, and the kubelet to {', '.join(names)}"
            told.append(replace(device, untrusted=reason))
            wrong.append(f"{device.id}: {reason}")
        else:
            told.append(device)
    detail = f"{'; '.join(wrong[:3])}. Check the exporter's Pod labels (its mount of pod-resources, honor_labels)."
    gap = Gap(kind=GapKind.UNTRUSTED, what=f"holders of {len(wrong)} devices", detail=detail)
    return tuple(told), [gap] if wrong else []


def boot_times(store: SampleStore, at: datetime, cluster: Cluster) -> tuple[dict[str, datetime], tuple[Gap, ...]]:
    """When each Node booted, by node_exporter's node_boot_time_seconds. A target counts for the Node with its address,
    even if its labels differ; a Node with two contradictory targets is left out."""
    try:
        rows = store.evaluate(Expression(Selector("node_boot_time_seconds"), Function.LAST, by=("instance",)), at)
    except TelemetryError as error:
        return {}, (failed("boots of Nodes", error),)
    names = HostNames(cluster)
    found: dict[str, set[float]] = defaultdict(set)
    for row in rows:
        if node := names.certain("", row.labels.get("instance", "")):
            found[node].add(row.value)
    agreed = {node: min(times) for node, times in found.items() if max(times) - min(times) < _SAME_BOOT_SECONDS}
    return {node: datetime.fromtimestamp(seconds, UTC) for node, seconds in agreed.items()}, ()


def infiniband_ports(
    store: SampleStore, at: datetime, cluster: Cluster, port_stats: Iterable[str]
) -> tuple[dict[str, dict[str, dict[str, float]]], tuple[Gap, ...]]:
    """`Snapshot.infiniband`; a target's Node as in `boot_times`. Without ports, the first query is the only one."""
    names = HostNames(cluster)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for statistic in port_stats:
        metric, function, seconds = statistic.split(":")
        asked = Expression(Selector(metric), Function(function), int(seconds), by=("instance", "device", "port"))
        try:
            rows = store.evaluate(asked, at)
        except TelemetryError as error:
            return {}, (failed("InfiniBand ports", error),)
        for row in rows:
            if node := names.certain("", row.labels.get("instance", "")):
                name = f"{row.labels.get('device', '')}/{row.labels.get('port', '')}"
                found.setdefault(node, {}).setdefault(name, {})[statistic] = row.value
        if not found:
            break
    return found, ()


def _names(cluster: Cluster) -> dict[str, str | None]:
    """Alias → Node; None where two Nodes share the alias."""
    names: dict[str, str | None] = {}
    hosts = [(node.labels.get("kubernetes.io/hostname", node.name), node.name) for node in cluster.nodes]
    own = [(node.name, node.name) for node in cluster.nodes]
    for alias, name in (*own, *hosts, *cluster.node_addresses.items(), *cluster.exporter_nodes.items()):
        names[alias] = name if names.get(alias, name) == name else None
    # Short host names last, so that they never displace a full one.
    for node in cluster.nodes:
        short = node.name.partition(".")[0]
        if short not in names:
            names[short] = node.name
        elif names[short] != node.name and short != node.name:
            names[short] = None
    return names


def host_of(instance: str) -> str:
    """A scrape target ('10.0.0.7:9400', '[fd00::7]:9400') without the port."""
    if instance.startswith("["):
        return instance[1:].partition("]")[0]
    return instance.rpartition(":")[0] if instance.count(":") == 1 else instance
