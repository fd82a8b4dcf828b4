"""Resolves telemetry's host names to Nodes of the cluster.

The host may be the Node's name, its host name with or without a domain, an address, the name of the exporter's Pod (old
exporters), or `localhost` (a remote host engine, dcgm-exporter #572). A host that matches no Node stays None, and
nothing is written about its devices.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gpuwatch.model.cluster import Cluster
from gpuwatch.model.telemetry import Device, Exporter, Gap, GapKind


def resolve_nodes(
    devices: Sequence[Device], exporters: Sequence[Exporter], cluster: Cluster
) -> tuple[tuple[Device, ...], tuple[Exporter, ...], list[Gap]]:
    """Devices and exporters with `node` where it is certain, and a Gap for each host that is no Node."""
    if not cluster.known:
        return tuple(devices), tuple(exporters), []
    names = _names(cluster)
    by_instance: dict[str, str | None] = {}
    resolved = []
    unknown: Counter[str] = Counter()
    for device in devices:
        node = _node(device.node_label, device.exporter, names)
        if node is None:
            unknown[device.node_label or "(no host label)"] += 1
        elif device.exporter:
            by_instance[device.exporter] = node
        resolved.append(replace(device, node=node))
    targets = tuple(
        replace(item, node=by_instance.get(item.instance) or _node(item.node_label, item.instance, names))
        for item in exporters
    )
    gaps = [
        Gap(
            kind=GapKind.NODE_UNRESOLVED,
            what=f"host {host!r}",
            detail=f"{count} devices report from it, and the cluster has no such Node; nothing will be done about "
            "them. Add a ServiceMonitor relabelling of __meta_kubernetes_pod_node_name to `node`, or check that "
            "telemetry and cluster belong together.",
        )
        for host, count in sorted(unknown.items())
    ]
    return tuple(resolved), targets, gaps


def _names(cluster: Cluster) -> dict[str, str | None]:
    """Alias → Node; None where two Nodes share the alias."""
    names: dict[str, str | None] = {}
    for node in cluster.nodes:
        for alias in {node.name, node.labels.get("kubernetes.io/hostname", node.name)}:
            names[alias] = node.name if names.get(alias, node.name) == node.name else None
    for alias, node_name in (*cluster.node_addresses.items(), *cluster.exporter_nodes.items()):
        names[alias] = node_name if names.get(alias, node_name) == node_name else None
    # Short host names last, so that they never displace a full one.
    for node in cluster.nodes:
        short = node.name.partition(".")[0]
        if short not in names:
            names[short] = node.name
        elif names[short] != node.name and short != node.name:
            names[short] = None
    return names


def _node(host: str, instance: str, names: dict[str, str | None]) -> str | None:
    for candidate in (host, host.partition(".")[0] if not host.replace(".", "").isdigit() else "", _host(instance)):
        if candidate and names.get(candidate):
            return names[candidate]
    return None


def _host(instance: str) -> str:
    """A scrape target ('10.0.0.7:9400', '[fd00::7]:9400') without the port."""
    if instance.startswith("["):
        return instance[1:].partition("]")[0]
    return instance.rpartition(":")[0] if instance.count(":") == 1 else instance
