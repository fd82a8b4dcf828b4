"""Inventory: devices and exporters of the look-back, and which of them are present now."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from gpuwatch.facts.catalog.metrics import MetricRow
from gpuwatch.facts.model.telemetry import Device, DeviceId, Exporter, Gap, PodRef, Schema
from gpuwatch.sources.telemetry import labels as row_labels
from gpuwatch.sources.telemetry.gaps import failed
from gpuwatch.sources.telemetry.labels import Labels
from gpuwatch.sources.telemetry.promql import any_of
from gpuwatch.sources.telemetry.samples import (
    AnswerRow,
    Expression,
    Function,
    Matcher,
    Partition,
    SampleStore,
    Selector,
    TelemetryError,
)
from gpuwatch.sources.telemetry.sightings import DEVICES_IN_MATCHER, Sighting, sight

_UP_LABELS = ("instance", "job", "pod", "namespace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Devices and exporters in telemetry.

    devices: those of the look-back, by id, and those lost before it while others of their machine are present. A MIG
    instance or whole-GPU row that ended with a change of the MIG layout is left out while its GPU is present.
    exporters: by instance, without those that another one on the same host replaced. Empty for exposition pages, which
    have no `instance`.
    scrape_targets: Pods of exporters, which never hold a device. instances: of each device, the exporters that show it.
    matchers: select a device's rows; the first one alone selects the rows of its GPU.
    per_process: (metric, instance) of exporters that write a row per process and Pod beside the device's row, as
    dcgm-exporter does from 4.8.2 on for GPU_UTIL and FB_USED.
    doubts: device → why its rows contradict each other.
    """

    devices: tuple[Device, ...] = ()
    exporters: tuple[Exporter, ...] = ()
    gaps: tuple[Gap, ...] = ()
    scrape_targets: frozenset[PodRef] = frozenset()
    instances: Mapping[DeviceId, frozenset[str]] = field(default_factory=dict)  # that export a device
    matchers: Mapping[DeviceId, tuple[Matcher, ...]] = field(default_factory=dict)
    per_process: frozenset[tuple[str, str]] = frozenset()
    doubts: Mapping[DeviceId, str] = field(default_factory=dict)
    partition: Partition | None = None

    @property
    def interval_seconds(self) -> float:
        """Sampling interval; 0 if unknown."""
        return self.partition.interval_seconds if self.partition else 0.0

    def matching(self, devices: Collection[DeviceId]) -> tuple[Matcher, ...]:
        """One matcher for all these devices; none where they are too many or share no label."""
        if len(devices) > DEVICES_IN_MATCHER:
            return ()
        picked = [self.matchers[device][0] for device in devices if self.matchers.get(device)]
        together = tuple(row_labels.any_device(picked, DEVICES_IN_MATCHER))
        return together if len(picked) == len(devices) and len(together) == 1 else ()


def take_inventory(
    store: SampleStore,
    at: datetime,
    schema: Schema,
    lookback_seconds: int,
    lost_seconds: int = 0,
    exporter_pods: Collection[PodRef] = (),
) -> Inventory:
    """Devices of (at − look-back, at], and those of (at − lost, at] whose machine has other devices now. exporter_pods:
    Pods that hold no device, even if telemetry says so. A query that fails is a Gap."""
    gaps: list[Gap] = []
    sightings, repeated = sight(store, schema, at, lookback_seconds, lost_seconds, gaps)
    every_labels = [labels for sighting in sightings.values() for labels in sighting.rows()]
    ups, known_instances, scraped = _ups(store, every_labels, at, lookback_seconds, gaps)
    devices = _without_down_exporters(sightings, ups, at)
    beside = {pod for labels in every_labels if (pod := row_labels.target(labels))}
    targets = frozenset(scraped | beside | set(exporter_pods))
    exporters, moved = _exporters(devices, ups, known_instances)
    return Inventory(
        devices=tuple(_device(sighting, targets, moved, at) for _, sighting in sorted(devices.items())),
        exporters=exporters,
        gaps=tuple(gaps),
        scrape_targets=targets,
        instances={
            device: frozenset(labels.get("instance", "") for labels in sighting.rows())
            for device, sighting in devices.items()
        },
        matchers={
            device: row_labels.device_matchers(sighting.rows()[0], sighting.row.vendor)
            for device, sighting in devices.items()
        },
        per_process=_per_process(repeated, targets),
        doubts={
            device: f"{device} is exported at once with the hosts {', '.join(hosts)}; two exporters that disagree, one "
            "GPU passed to two machines, or another cluster's rows (prometheus.matchers)"
            for device, sighting in devices.items()
            if (hosts := _node_label(sighting.rows())[1])
        },
        partition=_partition(devices.values(), schema.interval_seconds),
    )


def _ups(
    store: SampleStore, labels: Iterable[Labels], at: datetime, lookback_seconds: int, gaps: list[Gap]
) -> tuple[dict[str, bool], frozenset[str], set[PodRef]]:
    """For the jobs in `labels`: `up` by instance now, instances with `up` in the look-back, and their Pods."""
    jobs = sorted({job for each in labels if (job := each.get("job"))})
    if not jobs:
        return {}, frozenset(), set()
    chosen = Selector("up", (any_of("job", jobs),))
    questions = [
        Expression(chosen, Function.LAST, by=_UP_LABELS),
        Expression(chosen, Function.LAST_IN_WINDOW, lookback_seconds, by=_UP_LABELS),
    ]
    answers = store.evaluate_many(questions, at)
    gaps += [failed("up of the exporters", answer) for answer in answers if isinstance(answer, TelemetryError)]
    now, lately = ([] if isinstance(answer, TelemetryError) else answer for answer in answers)
    ups: dict[str, bool] = {}
    for row in now:
        instance = row.labels.get("instance", "")
        ups[instance] = ups.get(instance, False) or row.value > 0
    known = frozenset(row.labels.get("instance", "") for row in lately)
    pods = {pod for row in lately if (pod := row_labels.target({**row.labels, "__name__": "up"}))}
    return ups, known, pods


def _without_down_exporters(
    sightings: Mapping[DeviceId, Sighting], ups: Mapping[str, bool], at: datetime
) -> Mapping[DeviceId, Sighting]:
    """The sightings without current rows of exporters that are down. Prometheus ends the series of a failed scrape, but
    not those with timestamps of their own or from remote write; an instant query finds these for five minutes more."""
    down = {instance for instance, up in ups.items() if not up}
    found: dict[DeviceId, Sighting] = {}
    for device, sighting in sightings.items():
        now = [labels for labels in sighting.now if labels.get("instance", "") not in down]
        late = AnswerRow(sighting.now[0], at.timestamp()) if sighting.now and not now else sighting.newest
        found[device] = replace(sighting, now=now, newest=late)
    return found


def _device(sighting: Sighting, targets: frozenset[PodRef], moved: Mapping[str, str], at: datetime) -> Device:
    identity, vendor, rows = sighting.identity, sighting.row.vendor, sighting.rows()
    held = [each for labels in sighting.now if (each := row_labels.holder(labels, vendor, targets))]
    containers: dict[PodRef, str] = {}
    for each in sorted(held, key=lambda holder: (holder.pod, holder.container)):
        containers.setdefault(each.pod, each.container)
    exporter = min(labels.get("instance", "") for labels in rows)
    return Device(
        id=identity.id,
        uuid=identity.uuid,
        vendor=vendor,
        vocabulary=sighting.row.vocabulary,
        mig_instance=identity.instance,
        mig_profile=identity.profile,
        index=_first_value(rows, row_labels.LABELS.index),
        model=_first_value(rows, row_labels.LABELS.model),
        driver_version=_first_value(rows, row_labels.LABELS.driver),
        pci_bus_id=_first_value(rows, row_labels.LABELS.pci),
        node_label=_node_label(rows)[0],
        exporter=moved.get(exporter, exporter),
        pods=tuple(containers),
        containers=tuple(containers.values()),
        shared=len(containers) > 1,
        present=bool(sighting.now),
        last_seen=datetime.fromtimestamp(sighting.newest.value, UTC) if sighting.newest else at,
    )


def _first_value(rows: Sequence[Labels], names: Sequence[str]) -> str:
    return next((value for labels in rows if (value := row_labels.first(labels, names))), "")


def _node_label(rows: Sequence[Labels]) -> tuple[str, list[str]]:
    """The host; or '' and all hosts where the rows name several."""
    values = sorted({value for labels in rows if (value := row_labels.node_label(labels))})
    hosts = values if len(values) < 2 else [value for value in values if row_labels.names_a_host(value)] or values
    return (hosts[0] if hosts else "", []) if len(hosts) < 2 else ("", hosts)


def _exporters(
    sightings: Mapping[DeviceId, Sighting], ups: Mapping[str, bool], known_instances: frozenset[str]
) -> tuple[tuple[Exporter, ...], dict[str, str]]:
    """Exporters of the look-back, and those that were replaced: old instance → new instance. A restarted exporter has a
    new address. It was replaced, and is not down, where exactly one other exporter on its host exports now."""
    exported: dict[str, set[DeviceId]] = {}
    exported_now: dict[str, set[DeviceId]] = {}
    jobs: dict[str, str] = {}
    hosts: dict[str, Counter[str]] = {}
    for key, sighting in sightings.items():
        for labels in sighting.rows():
            if not (instance := labels.get("instance", "")):
                continue
            exported.setdefault(instance, set()).add(key)
            if sighting.now:
                exported_now.setdefault(instance, set()).add(key)
            jobs.setdefault(instance, labels.get("job", ""))
            hosts.setdefault(instance, Counter())[row_labels.node_label(labels)] += 1
    host_of = {instance: counts.most_common(1)[0][0] for instance, counts in hosts.items()}
    moved: dict[str, str] = {}
    for instance in exported:
        if instance in exported_now or instance in ups or not row_labels.names_a_host(host_of[instance]):
            continue
        heirs = [other for other in exported_now if host_of[other] == host_of[instance]]
        if len(heirs) == 1:
            moved[instance] = heirs[0]
    exporters = []
    for instance in sorted(set(exported) - set(moved)):
        own = exported[instance].union(*(exported[old] for old, new in moved.items() if new == instance))
        exporters.append(
            Exporter(
                instance=instance,
                job=jobs[instance],
                node_label=host_of[instance],
                # False: a series of `up` that ended in the look-back means that the target is gone.
                up=ups.get(instance, False if instance in known_instances else None),
                devices=len(own),
            )
        )
    return tuple(exporters), moved


def _per_process(
    repeated: Iterable[tuple[MetricRow, Sequence[Labels]]], targets: frozenset[PodRef]
) -> frozenset[tuple[str, str]]:
    """Metrics and exporters with simultaneous rows of one device, one with a Pod and one without."""
    found: set[tuple[str, str]] = set()
    for metric, rows in repeated:
        held: dict[str, set[bool]] = {}
        for labels in rows:
            is_held = row_labels.holder(labels, metric.vendor, targets) is not None
            held.setdefault(labels.get("instance", ""), set()).add(is_held)
        found.update((metric.metric, instance) for instance, both in held.items() if len(both) == 2)
    return frozenset(found)


def _partition(sightings: Iterable[Sighting], interval_seconds: float) -> Partition | None:
    """Devices per host, by the host label that most devices have. The value '' stands for series without that label, so
    that a second or an earlier spelling is not missed. Where the label holds the exporter's Pod, which changes with
    each restart, the device's own label is used."""
    all_labels = [sighting.rows()[0] for sighting in sightings]
    if not all_labels:
        return None

    def count(names: Iterable[str]) -> tuple[str, Counter[str]]:
        return max(
            ((name, Counter(labels.get(name, "") for labels in all_labels)) for name in names),
            key=lambda named: sum(number for value, number in named[1].items() if value),
        )

    label, nodes = count(row_labels.NODE_LABELS)
    if not all(row_labels.names_a_host(value) for value in nodes if value) or set(nodes) == {""}:
        label, nodes = count(("UUID", "uuid", "gpu_uuid", "instance"))
    if set(nodes) == {""}:
        return None
    return Partition(label, {"": 0, **nodes}, interval_seconds)
