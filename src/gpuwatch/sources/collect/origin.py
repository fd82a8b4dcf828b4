"""Where telemetry comes from: resolves its host names to Nodes of the cluster, and decides which series are of this
cluster and which scrape targets are trusted to describe its devices.

The host may be the Node's name, its host name with or without a domain, an address, the name of the exporter's Pod (old
exporters), or `localhost` (a remote host engine, dcgm-exporter #572). A host that matches no Node stays None, and
nothing is done about its devices. Where only the part before the domain matches, the host may be another cluster's: it
counts where the exporter runs on that Node, or where the series are known to be of this cluster.

A target is trusted where a setting lists it, where its series `up` names an exporter's Pod, or where that names no Pod
and the address is that of an exporter's Pod or of a Node. Any other Pod that exports GPU metrics is foreign: no query
asks for its rows. The devices of an unknown target, and of one whose labels contradict each other, are doubted.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from gpuwatch.facts.model.cluster import Cluster, Pod
from gpuwatch.facts.model.telemetry import Device, DeviceId, DoubtedDevice, Exporter, Gap, GapKind, Schema
from gpuwatch.sources.telemetry.discovery import LEFT_OUT_AT_ONCE, Places, discover, too_many
from gpuwatch.sources.telemetry.gaps import failed
from gpuwatch.sources.telemetry.labels import Labels, is_address, is_one_of, node_label
from gpuwatch.sources.telemetry.promql import any_of, none_of
from gpuwatch.sources.telemetry.samples import Expression, Function, SampleStore, Selector, TelemetryError
from gpuwatch.sources.telemetry.targets import CLUSTER_LABELS, ScopedStore, Target, places, targets

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


def held_devices(
    devices: Sequence[Device], cluster: Cluster, at: datetime
) -> tuple[tuple[Device, ...], dict[DeviceId, str], list[Gap]]:
    """Devices with the Pods that hold them by their kubelets, where the exporter names none. A Pod of another Node than
    the device's does not hold it. Why a device is doubted, and a Gap, where the exporter names such a Pod, or another
    than the kubelet, for longer than its labels may lag. MIG devices' own UUIDs are not in telemetry, so the kubelet
    tells nothing of them."""
    holders: dict[tuple[str, str], list[Pod]] = defaultdict(list)
    for pod in cluster.pods:
        for item in pod.devices:
            holders[pod.node, item.id.partition("::")[0]].append(pod)
    known = {pod.ref: pod for pod in cluster.pods}

    def settled(pod: Pod) -> bool:
        return pod.started is not None and pod.started + _LABELS_LAG <= at

    told: list[Device] = []
    wrong: dict[DeviceId, str] = {}
    for device in devices:
        away = {ref: known[ref] for ref in device.pods if ref in known and known[ref].node != device.node}
        stays = [pod for pod in away.values() if settled(pod) and device.present]
        if stays:
            where = f"on {device.node}" if device.node else f"on the host {device.node_label!r}, no Node of the cluster"
            wrong[device.id] = (
                f"telemetry gives it to {stays[0].ref}, which runs on {stays[0].node}, and the GPU is {where}"
            )
        refs = tuple(ref for ref in device.pods if ref not in away)
        inside = tuple(name for ref, name in zip(device.pods, device.containers, strict=False) if ref not in away)
        pods = [] if device.mig_instance or device.node is None else holders.get((device.node, device.uuid), [])
        names = tuple(sorted({pod.ref for pod in pods}))
        if names and refs and device.present and all(map(settled, pods)) and set(names).isdisjoint(refs):
            wrong[device.id] = f"telemetry gives it to {', '.join(refs)}, and the kubelet to {', '.join(names)}"
        held = refs or names
        here = replace(device, pods=held, containers=inside, shared=len(held) > 1) if held != device.pods else device
        told.append(device if device.id in wrong else here)  # a doubted one is shown as its exporter names it
    some = "; ".join(f"{name}: {reason}" for name, reason in list(wrong.items())[:3])
    detail = f"{some}. Check the exporter's Pod labels (its mount of pod-resources, honor_labels) and its host label."
    gap = Gap(kind=GapKind.UNTRUSTED, what=f"holders of {len(wrong)} devices", detail=detail)
    return tuple(told), wrong, [gap] if wrong else []


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


TrustedTargets = Sequence[Mapping[str, str]]
"""prometheus.trusted_targets."""


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
    if (flood := too_many(exporting)) is not None:
        exporting.clear()
        scoped = replace(scoped, targets=flood[0])
        schema, more = discover(scoped, at, exporting)
        gaps = (*gaps, *more)
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
    if len(alone) > LEFT_OUT_AT_ONCE:
        gaps += (_too_many(alone),)
    matchers = (any_of("job", sorted(jobs)),) if jobs != {""} else ()
    left_out = (none_of("instance", alone[:LEFT_OUT_AT_ONCE]),) if alone else ()
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
        reasons={item.instance: _unknown(item, judge.contradiction(item)) for item in doubted},
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
        """None if unknown. The Pod that `up` names counts before the address: scrape jobs copy labels of Pods and of
        Services to their targets, `instance` among them. Such a label has no colon, so it is no address with a port."""
        if target.pods and not any(is_one_of(pod, self._exporters) for pod in target.pods):
            return False
        if self.contradiction(target) or not (target.pods or host_of(target.instance) != target.instance):
            return None
        return True if target.pods or self.node(target) is not None else None

    def contradiction(self, target: Target) -> str:
        """What its labels say that cannot all be true; '' for nothing."""
        theirs = sorted(pod for pod in target.pods if not is_one_of(pod, self._exporters))
        if theirs and len(theirs) < len(target.pods):
            return f"`up` names the Pod {theirs[0]} too, which is no exporter"
        host = host_of(target.instance)
        there = self._of_exporter.get(host) or self._of_host.get(host)
        named = {self._of_exporter.get(pod.partition("/")[2]) for pod in target.pods & self._exporters}
        if there and named and None not in named and there not in named:
            return f"its address is on {there}, and `up` names a Pod on {', '.join(sorted(map(str, named)))}"
        return ""


def _is_set(target: Target, trusted: TrustedTargets) -> bool:
    """Whether the setting covers it with every Pod that its series `up` names."""
    own = [dict(zip(("namespace", "pod"), pod.split("/", 1), strict=True)) for pod in target.pods] or [{}]
    known = [{"instance": target.instance, "job": target.job, **pod} for pod in own]
    return all(
        any(all(item.get(label) == value for label, value in each.items()) for each in trusted) for item in known
    )


def _named(target: Target) -> str:
    pods = f" (Pod {min(target.pods)})" if target.pods else ""
    return f"target {target.instance or '(without instance)'} of job {target.job or '(none)'}{pods}"


def _unknown(target: Target, contradiction: str) -> str:
    why = contradiction or "which is not known as an exporter on a Node of this cluster"
    advice = f"if it is an exporter, set prometheus.trusted_targets: {_item(target)}"
    return f"its rows come from {_named(target)}, {why}; {advice}"


def _item(target: Target) -> str:
    """The item of prometheus.trusted_targets that covers it. A tenant's labels may set `job`, and no Namespace."""
    spaces = sorted({pod.partition("/")[0] for pod in target.pods})
    return f"[{{job: {target.job}{f', namespace: {spaces[0]}' if spaces else ''}}}]"


def _foreign(items: Sequence[Target]) -> Gap:
    return Gap(
        kind=GapKind.UNTRUSTED,
        what=f"{len(items)} targets",
        detail=f"They export GPU metrics and belong to no known exporter, so their rows are ignored; one is "
        f"{_named(items[0])}. gpuwatch knows an exporter's Pod by its mount of the kubelet's pod-resources. To trust "
        f"another target, set prometheus.trusted_targets, for example {_item(items[0])}.",
    )


def _too_many(instances: Sequence[str]) -> Gap:
    return Gap(
        kind=GapKind.AMBIGUOUS,
        what="telemetry",
        detail=f"{len(instances)} targets of the exporters' own jobs export GPU metrics and are no exporters, such as "
        f"{instances[0]}; queries can leave out only {LEFT_OUT_AT_ONCE}. Nothing is done until exporters have a job "
        "of their own, or prometheus.trusted_targets names them.",
    )


def by_trust(
    devices: Sequence[Device],
    wrong: Mapping[DeviceId, str],
    instances: Mapping[DeviceId, Collection[str]],
    found: Origin,
    cluster: Cluster,
) -> tuple[tuple[Device, ...], tuple[DoubtedDevice, ...], list[Gap]]:
    """The trusted devices, the doubted ones, and one Gap per reason. wrong: why devices are doubted already. instances:
    device → targets. A doubted part of a GPU makes the whole GPU doubted."""
    reasons: dict[str, str] = {}
    for device in devices:
        sources = (*instances.get(device.id, ()), device.exporter)
        reason = wrong.get(device.id) or next((found.reasons[item] for item in sources if item in found.reasons), "")
        there = found.nodes.get(device.exporter) if device.exporter not in found.by_setting else None
        if not reason and device.node and there not in (None, device.node):
            reason = f"its rows name the Node {device.node}, and its exporter {device.exporter} runs on {there}"
        if reason:
            reasons.setdefault(device.uuid, reason)
    here = {(item.node, item.uuid) for item in devices if item.present and item.uuid not in reasons}
    seen = Counter(node for node, _ in here)
    held = {node.name: node.gpu_count for node in cluster.nodes if not node.mig_layout}
    over = {name: seen[name] for name, count in held.items() if 0 < count < seen[name]}
    for device in devices:
        if device.node in over:
            reason = (
                f"telemetry has {over[device.node]} GPUs of the Node {device.node}, which has {held[device.node]}; "
                "rows of another cluster may be among them (prometheus.matchers)"
            )
            reasons.setdefault(device.uuid, reason)
    doubted = tuple(DoubtedDevice(shown=item, why=reasons[item.uuid]) for item in devices if item.uuid in reasons)
    gaps = [
        Gap(kind=GapKind.UNTRUSTED, what=f"{count} devices", detail=f"shown, and no rule judges them: {reason}")
        for reason, count in sorted(Counter(item.why for item in doubted).items())
    ]
    return tuple(item for item in devices if item.uuid not in reasons), doubted, gaps
