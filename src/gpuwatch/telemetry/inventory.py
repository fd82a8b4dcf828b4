"""Inventory: devices and exporters that telemetry knew in the look-back, and which of them are there now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from gpuwatch.catalog.metrics import MetricRow
from gpuwatch.model.telemetry import Device, DeviceId, Exporter, Gap, GapKind, PodRef, Schema, Signal, Vendor
from gpuwatch.telemetry import labels as door
from gpuwatch.telemetry.discovery import by_labels, selector
from gpuwatch.telemetry.gaps import failed
from gpuwatch.telemetry.promql import any_of
from gpuwatch.telemetry.samples import (
    Expression,
    Function,
    Matcher,
    Partition,
    Row,
    SampleStore,
    Selector,
    TelemetryError,
)

_PRESENCE = (
    Signal.GPU_TEMPERATURE_CELSIUS,
    Signal.POWER_WATTS,
    Signal.MEMORY_USED_BYTES,
    Signal.BUSY_RATIO,
    Signal.GPU_UTIL_RATIO,
)
"""Signals of which one at least is exported of every device, and which between them show every holder."""

_METRICS_LOOKED_BACK = 2
"""Metrics per vocabulary by which a device of the look-back is found: newest times are dear, and two are enough to find
devices of which an exporter with a counter list of its own leaves one out."""

INSTANT_SECONDS = 300
"""How far back an instant query looks: the default of Prometheus (--query.lookback-delta)."""

_UP_LABELS = ("instance", "job", "pod", "namespace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What telemetry knows to exist.

    devices: those of the look-back, by id; a MIG instance or whole-GPU row that a change of the MIG layout ended
        while its GPU goes on is left out: nothing is lost.
    exporters: by instance; one that was replaced on its host by another is left out. Empty on bare exposition pages,
        which have no `instance`.
    scrape_targets: Pods that are known to be exporters, so never holders.
    matchers: what picks a device's rows; the first one the rows of its GPU.
    per_process: (metric, instance) of exporters that write a row per process and Pod beside the row of the device, as
        dcgm-exporter does from 4.8.2 on for GPU_UTIL and FB_USED.
    partition: how to divide large questions.
    """

    devices: tuple[Device, ...] = ()
    exporters: tuple[Exporter, ...] = ()
    gaps: tuple[Gap, ...] = ()
    scrape_targets: frozenset[PodRef] = frozenset()
    matchers: Mapping[DeviceId, tuple[Matcher, ...]] = field(default_factory=dict)
    per_process: frozenset[tuple[str, str]] = frozenset()
    partition: Partition | None = None


@dataclass(slots=True)
class _Sighting:
    """Rows of one device: those of now, and the newest of the look-back."""

    identity: door.Identity
    row: MetricRow
    now: list[Row] = field(default_factory=list)
    newest: Row | None = None  # its value is a Unix time

    def labels(self) -> Mapping[str, str]:
        if self.now:
            return self.now[0].labels
        assert self.newest is not None
        return self.newest.labels

    def instances(self) -> list[str]:
        """Exporters of the rows of now, else of the newest one."""
        rows = self.now or ([self.newest] if self.newest else [])
        return sorted({row.labels.get("instance", "") for row in rows})


def take_inventory(
    store: SampleStore, rows: Sequence[MetricRow], at: datetime, schema: Schema, lookback_seconds: int
) -> Inventory:
    """Devices of (at − look-back, at]. A question that fails is a Gap; the rest goes on."""
    gaps: list[Gap] = []
    metrics = _presence_metrics(rows, schema)
    step = max(1, round(schema.interval_seconds)) if schema.interval_seconds else 60
    looked_back = [row for rank, row in _ranked(metrics) if rank < _METRICS_LOOKED_BACK]
    now_questions = [Expression(selector(row), Function.LAST, by=_all_labels(row.vendor)) for row in metrics]
    seen_questions = [
        Expression(selector(row), Function.LAST_TIME, lookback_seconds, step_seconds=step, by=_all_labels(row.vendor))
        for row in looked_back
    ]
    answers = store.evaluate_many([*now_questions, *seen_questions], at) if metrics else []
    now = _answered(metrics, answers[: len(metrics)], "devices that are there now", gaps)
    seen = _answered(looked_back, answers[len(metrics) :], "devices of the look-back", gaps)
    jobs = sorted({job for _, answer in (*now, *seen) for row in answer if (job := row.labels.get("job"))})
    ups, known_instances, targets = _ups(store, jobs, at, lookback_seconds, gaps)
    targets |= {pod for _, answer in (*now, *seen) for row in answer if (pod := door.target(row.labels))}
    answered_now = {selector(row) for row, _ in now}
    unsure = {row.vocabulary for row in metrics if selector(row) not in answered_now}
    sightings = _sightings(now, seen, unsure, at)
    _forget_old_layouts(sightings)
    exporters, moved = _exporters(sightings, ups, known_instances)
    return Inventory(
        devices=tuple(_moved(_device(sighting, targets, at, gaps), moved) for _, sighting in sorted(sightings.items())),
        exporters=exporters,
        gaps=tuple(gaps),
        scrape_targets=frozenset(targets),
        matchers={
            key: door.device_matchers(sighting.labels(), sighting.row.vendor) for key, sighting in sightings.items()
        },
        per_process=_per_process(now, targets),
        partition=_partition(sightings.values(), schema.interval_seconds),
    )


def _presence_metrics(rows: Sequence[MetricRow], schema: Schema) -> list[MetricRow]:
    """Per vocabulary the metric with most rows, then those of `_PRESENCE`; each once."""
    by_key = {(row.vocabulary, row.metric, row.signal): row for row in reversed(rows)}
    chosen: dict[Selector, MetricRow] = {}
    for vocabulary in schema.vocabularies:
        found = [each for each in schema.signals if each.vocabulary == vocabulary]
        plain = [each for each in found if not by_key[each.vocabulary, each.metric, each.signal].variant_label]
        best = max(plain or found, key=lambda each: each.devices, default=None)
        wanted = ([best] if best else []) + [each for each in found if each.signal in _PRESENCE]
        for each in wanted:
            row = by_key[each.vocabulary, each.metric, each.signal]
            chosen.setdefault(selector(row), row)
    return list(chosen.values())


def _ranked(metrics: Sequence[MetricRow]) -> Iterator[tuple[int, MetricRow]]:
    """Each metric with its place within its vocabulary."""
    places: Counter[str] = Counter()
    for row in metrics:
        yield places[row.vocabulary], row
        places[row.vocabulary] += 1


def _all_labels(vendor: Vendor) -> tuple[str, ...]:
    return by_labels(
        door.IDENTITY_LABELS[vendor],
        door.HOLDER_LABELS[vendor],
        ("pod", "namespace", "container", "instance", "job"),
        door.NODE_LABELS,
        door.DESCRIPTION_LABELS[vendor],
    )


_Answered = list[tuple[MetricRow, list[Row]]]


def _answered(
    metrics: Sequence[MetricRow], answers: Sequence[list[Row] | TelemetryError], what: str, gaps: list[Gap]
) -> _Answered:
    answered: _Answered = []
    for row, answer in zip(metrics, answers, strict=True):
        if isinstance(answer, TelemetryError):
            gaps.append(failed(f"{what} ({row.metric})", answer))
        else:
            answered.append((row, answer))
    return answered


def _ups(
    store: SampleStore, jobs: Sequence[str], at: datetime, lookback_seconds: int, gaps: list[Gap]
) -> tuple[dict[str, bool], frozenset[str], set[PodRef]]:
    """`up` by instance now, instances that had one in the look-back, and the Pods behind them."""
    if not jobs:
        return {}, frozenset(), set()
    chosen = Selector("up", (any_of("job", jobs),))
    questions = [
        Expression(chosen, Function.LAST, by=_UP_LABELS),
        Expression(chosen, Function.LAST_IN_WINDOW, lookback_seconds, by=_UP_LABELS),
    ]
    answers: list[list[Row]] = []
    for answer in store.evaluate_many(questions, at):
        if isinstance(answer, TelemetryError):
            gaps.append(failed("up of the exporters", answer))
            answers.append([])
        else:
            answers.append(answer)
    ups: dict[str, bool] = {}
    for row in answers[0]:
        instance = row.labels.get("instance", "")
        ups[instance] = ups.get(instance, False) or row.value > 0
    known = frozenset(row.labels.get("instance", "") for row in answers[1])
    pods = {pod for row in answers[1] if (pod := door.target({**row.labels, "__name__": "up"}))}
    return ups, known, pods


def _sightings(now: _Answered, seen: _Answered, unsure: Iterable[str], at: datetime) -> dict[DeviceId, _Sighting]:
    """Rows by device. Where a question about now failed for one of the `unsure` vocabularies, a device that was seen
    within the look-back of an instant query counts as there: no answer does not mean that it is gone."""
    sightings: dict[DeviceId, _Sighting] = {}
    for answered, is_now in ((now, True), (seen, False)):
        for metric, answer in answered:
            for row in answer:
                identity = door.identity(row.labels, metric.vendor)
                if identity is None or row.value != row.value:
                    continue
                sighting = sightings.setdefault(identity.id, _Sighting(identity, metric))
                if is_now:
                    sighting.now.append(row)
                elif sighting.newest is None or row.value > sighting.newest.value:
                    sighting.newest = row
                    if not sighting.now:
                        sighting.row = metric
    recently = at.timestamp() - INSTANT_SECONDS
    for sighting in sightings.values():
        newest = sighting.newest
        if not sighting.now and sighting.row.vocabulary in unsure and newest and newest.value > recently:
            sighting.now.append(newest)
    return sightings


def _forget_old_layouts(sightings: dict[DeviceId, _Sighting]) -> None:
    present = {sighting.identity.uuid for sighting in sightings.values() if sighting.now}
    for key in [key for key, each in sightings.items() if not each.now and each.identity.uuid in present]:
        del sightings[key]


def _device(sighting: _Sighting, targets: set[PodRef], at: datetime, gaps: list[Gap]) -> Device:
    identity, labels, vendor = sighting.identity, sighting.labels(), sighting.row.vendor
    held = [each for row in sighting.now if (each := door.holder(row.labels, vendor, targets))]
    containers: dict[PodRef, str] = {}
    for each in sorted(held, key=lambda holder: (holder.pod, holder.container)):
        containers.setdefault(each.pod, each.container)
    rows = sighting.now or [Row(labels, 0)]
    return Device(
        id=identity.id,
        uuid=identity.uuid,
        vendor=vendor,
        vocabulary=sighting.row.vocabulary,
        mig_instance=identity.instance,
        mig_profile=identity.profile,
        index=_said(rows, door.index),
        model=_said(rows, door.model),
        driver_version=_said(rows, door.driver_version),
        pci_bus_id=_said(rows, door.pci_bus_id),
        node_label=_node_label(identity.id, rows, gaps),
        exporter=sighting.instances()[0],
        holders=tuple(containers),
        containers=tuple(containers.values()),
        shared=len(containers) > 1,
        present=bool(sighting.now),
        last_seen=datetime.fromtimestamp(sighting.newest.value, UTC) if sighting.newest else at,
    )


def _said(rows: Sequence[Row], about: Callable[[door.Labels], str]) -> str:
    return next((value for row in rows if (value := about(row.labels))), "")


def _node_label(device: DeviceId, rows: Sequence[Row], gaps: list[Gap]) -> str:
    """The one host that the rows name; '' with a Gap where they name several."""
    values = sorted({value for row in rows if (value := door.node_label(row.labels))})
    hosts = [value for value in values if door.names_a_host(value)] or values
    if len(hosts) <= 1:
        return hosts[0] if hosts else ""
    gaps.append(
        Gap(
            kind=GapKind.NODE_UNRESOLVED,
            what=f"device {device}",
            detail=f"exported at once with the hosts {', '.join(hosts)}; two exporters that disagree, or one GPU "
            "passed to two machines. Nothing is written about it until they agree",
        )
    )
    return ""


def _exporters(
    sightings: Mapping[DeviceId, _Sighting],
    ups: Mapping[str, bool],
    known_instances: frozenset[str],
) -> tuple[tuple[Exporter, ...], dict[str, str]]:
    """Exporters of the look-back, and which one took the place of one that is gone.

    An exporter that restarts gets a new address; the old one is neither up nor down then, but replaced: it exports
    nothing, and another one on the same host does.
    """
    exported: dict[str, set[DeviceId]] = {}
    exported_now: dict[str, set[DeviceId]] = {}
    jobs: dict[str, str] = {}
    hosts: dict[str, Counter[str]] = {}
    for key, sighting in sightings.items():
        rows = [(row, True) for row in sighting.now] + ([(sighting.newest, False)] if sighting.newest else [])
        for row, is_now in rows:
            if not (instance := row.labels.get("instance", "")):
                continue
            exported.setdefault(instance, set()).add(key)
            if is_now:
                exported_now.setdefault(instance, set()).add(key)
            jobs.setdefault(instance, row.labels.get("job", ""))
            hosts.setdefault(instance, Counter())[door.node_label(row.labels)] += 1
    host_of = {instance: counts.most_common(1)[0][0] for instance, counts in hosts.items()}
    moved: dict[str, str] = {}
    for instance in exported:
        if instance in exported_now or instance in ups or not door.names_a_host(host_of[instance]):
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
                # A series that was there in the look-back and ended means that the target itself is gone.
                up=ups.get(instance, False if instance in known_instances else None),
                devices=len(own),
                devices_now=len(exported_now.get(instance, ())),
            )
        )
    return tuple(exporters), moved


def _moved(device: Device, moved: Mapping[str, str]) -> Device:
    return replace(device, exporter=moved[device.exporter]) if device.exporter in moved else device


def _per_process(now: _Answered, targets: set[PodRef]) -> frozenset[tuple[str, str]]:
    """Metrics and exporters of which a device has a row with a Pod and one without at the same time."""
    found: set[tuple[str, str]] = set()
    for metric, answer in now:
        held: dict[tuple[DeviceId, str], set[bool]] = {}
        for row in answer:
            identity = door.identity(row.labels, metric.vendor)
            if identity is not None:
                is_held = door.holder(row.labels, metric.vendor, targets) is not None
                held.setdefault((identity.id, row.labels.get("instance", "")), set()).add(is_held)
        found.update((metric.metric, instance) for (_, instance), both in held.items() if len(both) == 2)
    return frozenset(found)


def _partition(sightings: Iterable[_Sighting], interval_seconds: float) -> Partition | None:
    """Devices per host, by the label that most devices have.

    The value '' stands for series without that label, so that in a fleet with two spellings, or when the spelling
    changed within a window, no series falls between the parts. Where the label holds the exporter's own Pod, which
    changes whenever that restarts, the device's own label is taken.
    """
    all_labels = [sighting.labels() for sighting in sightings]
    if not all_labels:
        return None

    def count(names: Iterable[str]) -> tuple[str, Counter[str]]:
        return max(
            ((name, Counter(labels.get(name, "") for labels in all_labels)) for name in names),
            key=lambda named: sum(number for value, number in named[1].items() if value),
        )

    label, nodes = count(door.NODE_LABELS)
    if not all(door.names_a_host(value) for value in nodes if value) or set(nodes) == {""}:
        label, nodes = count(("UUID", "uuid", "gpu_uuid", "instance"))
    if set(nodes) == {""}:
        return None
    return Partition(label, {"": 0, **nodes}, interval_seconds)
