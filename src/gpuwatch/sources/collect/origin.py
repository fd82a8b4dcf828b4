"""Decides which series are of this cluster, and which scrape targets are trusted to describe its devices.

A target is trusted where a setting lists it, where its address is that of an exporter's Pod or of a Node, or where its
series `up` names an exporter's Pod. Any other Pod that exports GPU metrics is foreign: every query leaves its rows out.
The devices of an unknown target are shown and never acted on.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpuwatch.facts.model.cluster import Cluster
from gpuwatch.facts.model.telemetry import Device, DeviceId, Gap, GapKind, Schema
from gpuwatch.sources.collect.resolve import HostNames, host_of
from gpuwatch.sources.telemetry.discovery import Places, discover
from gpuwatch.sources.telemetry.labels import Labels, is_address, is_one_of, node_label
from gpuwatch.sources.telemetry.promql import any_of, none_of
from gpuwatch.sources.telemetry.samples import SampleStore
from gpuwatch.sources.telemetry.targets import CLUSTER_LABELS, ScopedStore, Target, places, targets

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
    store: SampleStore, at: datetime, cluster: Cluster, matchers: Mapping[str, str] = {}, trusted: TrustedTargets = ()
) -> Origin:
    """The series of this cluster at `at`: those with the `matchers`, or by default with labels found in telemetry.
    Without a cluster, all series count. matchers, trusted: see `Connection`."""
    exporting: Places = {}
    origin = _of_cluster(store, at, matchers, exporting)
    if not matchers and origin.schema.signals:
        rows, gaps = places(store, at, origin.schema)
        chosen, unclear = _chosen(rows, HostNames(cluster))
        if chosen:
            exporting = {}
            origin = _of_cluster(store, at, chosen, exporting)
        origin = replace(origin, gaps=(*origin.gaps, *gaps, *unclear))
    return _of_exporters(origin, at, cluster, trusted, exporting) if cluster.known and origin.schema.signals else origin


def _of_cluster(store: SampleStore, at: datetime, matchers: Mapping[str, str], exporting: Places) -> Origin:
    scoped = ScopedStore(store, cluster=tuple(any_of(label, [value]) for label, value in matchers.items()))
    schema, gaps = discover(scoped, at, exporting)
    return Origin(store=scoped, schema=replace(schema, matchers=dict(matchers)), gaps=gaps)


def _of_exporters(origin: Origin, at: datetime, cluster: Cluster, trusted: TrustedTargets, exporting: Places) -> Origin:
    found, gaps = targets(origin.store, at, origin.schema, exporting)
    judge = _TargetJudge(cluster)
    by_setting = {item for item in found if _is_set(item, trusted)}
    known = {item for item in found if judge.is_exporter(item)} | by_setting
    foreign = {item for item in found if judge.is_exporter(item) is False} - known
    if foreign == set(found):
        foreign = set()  # no exporter is recognised, so all targets are shown
    # A target that exports GPU metrics but shows no device may describe the devices of others.
    shown = known | {item for item in found if item.has_devices or not item.exports} - foreign
    wrong = {item for item in found if item.exports} - shown
    jobs = {item.job for item in shown}
    shared = {item.instance for item in shown}
    alone = sorted({item.instance for item in wrong if item.job in jobs} - shared)
    if len(alone) > _LEFT_OUT_AT_ONCE:
        gaps += (_too_many(alone),)
    matchers = (any_of("job", sorted(jobs)),) if jobs != {""} else ()
    left_out = (none_of("instance", alone[:_LEFT_OUT_AT_ONCE]),) if alone else ()
    store, schema = ScopedStore(origin.store, targets=(*matchers, *left_out)), origin.schema
    if wrong:
        schema = replace(discover(store, at)[0], matchers=schema.matchers)
        gaps += (_foreign(sorted(wrong, key=_named)),)
    doubted = shown - known | {item for item in wrong if item.instance in shared}
    return Origin(
        store=store,
        schema=schema,
        gaps=(*origin.gaps, *gaps),
        nodes={item.instance: node for item in found if (node := judge.node(item)) is not None},
        reasons={item.instance: _unknown(item) for item in doubted},
        by_setting=frozenset(item.instance for item in by_setting),
    )


def _chosen(rows: Sequence[Labels], names: HostNames) -> tuple[dict[str, str], tuple[Gap, ...]]:
    """Labels that tell this cluster's rows from others', by whole host names, or else by names without a domain."""
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


class _TargetJudge:
    def __init__(self, cluster: Cluster) -> None:
        self._of_exporter = cluster.exporter_nodes
        self._exporters = frozenset(cluster.exporter_pods)
        self._of_host = {**cluster.node_addresses, **{node.name: node.name for node in cluster.nodes}}

    def node(self, target: Target) -> str | None:
        """The Node of its exporter. A Pod's name alone is no proof: its Namespace has to be the exporter's."""
        host = host_of(target.instance)
        if is_address(host) and host in self._of_exporter:
            return self._of_exporter[host]
        if not target.pods:
            return self._of_host.get(host)
        here = {self._of_exporter.get(pod.partition("/")[2]) for pod in target.pods & self._exporters}
        return here.pop() if len(here) == 1 else None

    def is_exporter(self, target: Target) -> bool | None:
        """None if unknown."""
        are = {is_one_of(pod, self._exporters) for pod in target.pods}
        if len(are) == 1 and not (are == {False} and host_of(target.instance) in self._of_exporter):
            return are.pop()
        return True if self.node(target) is not None else None


def _is_set(target: Target, trusted: TrustedTargets) -> bool:
    own = [dict(zip(("namespace", "pod"), pod.split("/", 1), strict=True)) for pod in target.pods] or [{}]
    known = [{"instance": target.instance, "job": target.job, **pod} for pod in own]
    return any(all(item.get(label) == value for label, value in each.items()) for each in trusted for item in known)


def _named(target: Target) -> str:
    pods = f" (Pod {min(target.pods)})" if target.pods else ""
    return f"target {target.instance or '(without instance)'} of job {target.job or '(none)'}{pods}"


def _unknown(target: Target) -> str:
    return (
        f"its rows come from {_named(target)}, which is not known as an exporter on a Node of this cluster; if it is "
        f"one, set prometheus.trusted_targets: [{{job: {target.job}}}]"
    )


def _foreign(items: Sequence[Target]) -> Gap:
    return Gap(
        kind=GapKind.UNTRUSTED,
        what=f"{len(items)} targets",
        detail=f"They export GPU metrics and belong to no known exporter, so their rows are ignored; one is "
        f"{_named(items[0])}. gpuwatch knows an exporter's Pod by its mount of the kubelet's pod-resources. To trust "
        f"another target, set prometheus.trusted_targets, for example [{{job: {items[0].job}}}].",
    )


def _too_many(instances: Sequence[str]) -> Gap:
    return Gap(
        kind=GapKind.AMBIGUOUS,
        what="telemetry",
        detail=f"{len(instances)} targets of the exporters' own jobs export GPU metrics and are no exporters, such as "
        f"{instances[0]}; queries can leave out only {_LEFT_OUT_AT_ONCE}. Nothing is done until exporters have a job "
        "of their own, or prometheus.trusted_targets names them.",
    )


def untrusted(
    devices: Sequence[Device], instances: Mapping[DeviceId, Collection[str]], found: Origin, cluster: Cluster
) -> tuple[tuple[Device, ...], list[Gap]]:
    """The devices with why nothing may be done about them, and one Gap per reason. instances: device → targets."""
    held = {node.name: node.gpu_count for node in cluster.nodes if not node.mig_layout}
    seen = Counter(node for node, _ in {(device.node, device.uuid) for device in devices if device.present})
    reasons: Counter[str] = Counter()
    judged = []
    for device in devices:
        sources = (*instances.get(device.id, ()), device.exporter)
        reason = device.untrusted or next((found.reasons[item] for item in sources if item in found.reasons), "")
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
        Gap(kind=GapKind.UNTRUSTED, what=f"{count} devices", detail=f"shown and never acted on: {reason}")
        for reason, count in sorted(reasons.items())
        if reason
    ]
    return tuple(judged), gaps
