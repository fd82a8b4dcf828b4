"""Whose telemetry is it? Which series are of this cluster, and which targets may tell of its devices.

A target is trusted where a setting says so, where its address is that of an exporter's Pod or of a Node, or where its
series `up` names an exporter's Pod. Another Pod that exports GPU metrics is foreign: every query leaves its rows out.
A target of which nothing is known is shown and never acted on.
"""

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpuwatch.collect.resolve import HostNames, host_of
from gpuwatch.model.cluster import Cluster
from gpuwatch.model.telemetry import Device, Gap, GapKind, Schema
from gpuwatch.telemetry.discovery import discover
from gpuwatch.telemetry.labels import Labels, is_one_of, node_label
from gpuwatch.telemetry.promql import any_of, none_of
from gpuwatch.telemetry.samples import SampleStore
from gpuwatch.telemetry.scoped import ScopedStore, of_labels
from gpuwatch.telemetry.targets import CLUSTER_LABELS, Target, exporting, places, targets

TrustedTargets = Sequence[Mapping[str, str]]
"""prometheus.trusted_targets."""

_LEFT_OUT_AT_ONCE = 64
"""Instances in one matcher: VictoriaMetrics accepts queries of 16 KiB, most of which the devices' names take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """store: asks for this cluster's series alone. nodes: instance → the Node of its exporter. reasons: instance → why
    its devices are not trusted. by_setting: instances that the setting trusts."""

    store: SampleStore
    schema: Schema
    gaps: tuple[Gap, ...] = ()
    nodes: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    by_setting: frozenset[str] = frozenset()


def find_origin(
    store: SampleStore,
    at: datetime,
    cluster: Cluster,
    matchers: Mapping[str, str] = {},
    trusted: TrustedTargets = (),
) -> Origin:
    """The series of this cluster at `at`: those with the `matchers`; where there are none, with labels that are found.
    Without a cluster nothing can be told apart, and nothing is left out. matchers, trusted: see `Connection`."""
    raw, chosen = store, dict(matchers)
    more: tuple[Gap, ...] = ()
    if chosen:
        store = ScopedStore(raw, cluster=of_labels(chosen))
    schema, gaps = discover(store, at)
    if not chosen and schema.signals:
        rows, more = places(store, at, schema)
        chosen, unclear = _chosen(rows, HostNames(cluster))
        more += unclear
        if chosen:
            store = ScopedStore(raw, cluster=of_labels(chosen))
            schema, gaps = discover(store, at)
    gaps += more
    if not schema.signals:
        return Origin(store=store, schema=schema, gaps=gaps)
    if cluster.known:
        found = _with_targets(store, at, schema, cluster, trusted)
        return replace(found, schema=replace(found.schema, matchers=chosen), gaps=(*gaps, *found.gaps))
    return Origin(store=store, schema=replace(schema, matchers=chosen), gaps=gaps)


def _with_targets(
    store: SampleStore, at: datetime, schema: Schema, cluster: Cluster, trusted: TrustedTargets
) -> Origin:
    found, gaps = targets(store, at, schema)
    nodes: dict[str, str] = {}
    reasons: dict[str, str] = {}
    foreign: dict[str, list[Target]] = defaultdict(list)
    others: set[Target] = set()
    by_setting = frozenset(item.instance for item in found if _is_set(item, trusted))
    for target in found:
        node, known = _judged(target, cluster)
        if node is not None:
            nodes[target.instance] = node
        if known is False and target.instance not in by_setting:
            foreign[target.job].append(target)
            continue
        others.add(target)
        if known is None and target.instance not in by_setting:
            reasons[target.instance] = _unknown(target)
    jobs = {target.job for target in others}
    if not jobs:  # no exporter is recognised at all, so all are shown
        reasons = {target.instance: _unknown(target) for target in found}
        return Origin(store=store, schema=schema, gaps=gaps, reasons=reasons)
    # Jobs may scrape other Pods beside exporters; those that export GPU metrics are left out by their instance.
    if mixed := jobs & foreign.keys():
        wrote, more = exporting(store, at, schema, mixed)
        gaps += more
        for job in mixed:
            foreign[job] = [target for target in foreign[job] if target.instance in wrote]
    alone = {target.instance for job in mixed for target in foreign[job]} - {target.instance for target in others}
    left_out = sorted(alone)[:_LEFT_OUT_AT_ONCE]
    for job in mixed:
        reasons |= {item.instance: _unknown(item) for item in foreign[job] if item.instance not in left_out}
    matchers = (any_of("job", sorted(jobs)),) if jobs != {""} else ()
    store = ScopedStore(store, targets=matchers + ((none_of("instance", left_out),) if left_out else ()))
    if any(foreign.values()):
        schema, _ = discover(store, at)
    gaps += tuple(_foreign(job, items) for job, items in sorted(foreign.items()) if items)
    return Origin(store=store, schema=schema, gaps=gaps, nodes=nodes, reasons=reasons, by_setting=by_setting)


def _chosen(rows: Sequence[Labels], names: HostNames) -> tuple[dict[str, str], tuple[Gap, ...]]:
    """Labels that tell this cluster's rows from others'. A host name without its domain tells only where nothing else
    does."""
    chosen: dict[str, str] = {}
    for label in CLUSTER_LABELS:
        values = sorted({row.get(label, "") for row in rows})
        if len(values) < 2:
            continue
        ours: list[str] = []
        for confirms in (names.certain, names.short):
            here = (row for row in rows if confirms(node_label(row), row.get("instance", "")))
            ours = ours or sorted({row.get(label, "") for row in here})
        if len(ours) != 1:
            return {}, (_several(label, values, ours),)
        chosen[label] = ours[0]
    return chosen, ()


def _several(label: str, values: Sequence[str], ours: Sequence[str]) -> Gap:
    which = f"{', '.join(map(repr, ours))} name hosts of this cluster" if ours else "none names a host of this cluster"
    return Gap(
        kind=GapKind.AMBIGUOUS,
        what="telemetry",
        detail=f"Telemetry has series of several clusters: the label {label} has the values "
        f"{', '.join(map(repr, values))}, and {which}. Nothing is done until the setting prometheus.matchers says "
        f"which are this cluster's, for example {{{label}: {(ours or values)[-1]}}}.",
    )


def _judged(target: Target, cluster: Cluster) -> tuple[str | None, bool | None]:
    """The Node of its exporter, and whether it is one: None where nothing tells. A Pod's name alone is no proof."""
    host = host_of(target.instance)
    if _is_address(host) and host in cluster.exporter_nodes:
        return cluster.exporter_nodes[host], True
    if target.pods:
        exporters = frozenset(cluster.exporter_pods)
        is_exporter = {is_one_of(pod, exporters) for pod in target.pods}
        here = {cluster.exporter_nodes.get(pod.partition("/")[2]) for pod in target.pods & exporters}
        return (here.pop() if len(here) == 1 else None), (None if len(is_exporter) == 2 else is_exporter.pop())
    node = cluster.node_addresses.get(host) or next((each.name for each in cluster.nodes if each.name == host), None)
    return node, True if node else None


def _is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def _is_set(target: Target, trusted: TrustedTargets) -> bool:
    own = [dict(zip(("namespace", "pod"), pod.split("/", 1), strict=True)) for pod in target.pods] or [{}]
    known = [{"instance": target.instance, "job": target.job, **pod} for pod in own]
    return any(all(item.get(label) == value for label, value in each.items()) for each in trusted for item in known)


def _named(target: Target) -> str:
    pods = f" (Pod {min(target.pods)})" if target.pods else ""
    return f"target {target.instance or '(without instance)'} of job {target.job or '(none)'}{pods}"


def _unknown(target: Target) -> str:
    return (
        f"nothing ties its rows, from {_named(target)}, to an exporter on a Node of this cluster; if it is one, trust "
        f"it: prometheus.trusted_targets: [{{job: {target.job}}}]"
    )


def _foreign(job: str, items: Sequence[Target]) -> Gap:
    return Gap(
        kind=GapKind.UNTRUSTED,
        what=f"job {job!r}",
        detail=f"{len(items)} targets with GPU metrics are Pods of no known exporter, such as {_named(items[0])}; "
        "their rows count for nothing. An exporter's Pod mounts the kubelet's pod-resources from its Node; trust "
        f"another one by prometheus.trusted_targets, for example [{{job: {job}}}].",
    )


def untrusted(devices: Sequence[Device], found: Origin, cluster: Cluster) -> tuple[tuple[Device, ...], list[Gap]]:
    """The devices with the reason why nothing may be done about them, and one Gap per reason."""
    held = {node.name: node.gpu_count for node in cluster.nodes if not node.mig_layout}
    seen = Counter(node for node, _ in {(device.node, device.uuid) for device in devices if device.present})
    reasons: Counter[str] = Counter()
    judged = []
    for device in devices:
        reason = device.untrusted or found.reasons.get(device.exporter, "")
        there = found.nodes.get(device.exporter) if device.exporter not in found.by_setting else None
        if not reason and device.node and there not in (None, device.node):
            reason = f"its rows name the Node {device.node}, and its exporter {device.exporter} runs on {there}"
        if not reason and device.node and 0 < held.get(device.node, 0) < seen[device.node]:
            reason = (
                f"telemetry has {seen[device.node]} GPUs of the Node {device.node}, which has {held[device.node]}; "
                "rows of another cluster may be among them (prometheus.matchers)"
            )
        reasons[reason] += 1
        judged.append(replace(device, untrusted=reason))
    gaps = [
        Gap(
            kind=GapKind.UNTRUSTED,
            what=f"{count} devices",
            detail=f"shown and never acted on: {reason}",
        )
        for reason, count in sorted(reasons.items())
        if reason
    ]
    return tuple(judged), gaps
