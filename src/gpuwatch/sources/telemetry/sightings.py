"""Sightings: the rows of devices, now and within the look-back, from few and cheap queries.

The look-back is queried for device ids only. When a device was last seen, and with which labels, is an expensive query,
so it covers only devices that are not present now. Before the look-back, instant queries cover a few moments, each
twice as long ago as the one before: they find every device that was present for at least as long as it has been gone.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpuwatch.facts.catalog.metrics import MetricRow, metric_rows
from gpuwatch.facts.model.telemetry import DeviceId, Gap, Schema, Signal, Vendor
from gpuwatch.sources.telemetry import labels as row_labels
from gpuwatch.sources.telemetry.discovery import by_labels, selector
from gpuwatch.sources.telemetry.gaps import failed
from gpuwatch.sources.telemetry.labels import Labels
from gpuwatch.sources.telemetry.samples import (
    AnswerRow,
    Expression,
    Function,
    Matcher,
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
"""Every device exports one of these signals at least, and together they show every holder."""

_METRICS_LOOKED_BACK = 2
"""Metrics per vocabulary that find devices of the look-back: two, as an exporter's own counter list may lack one."""

INSTANT_SECONDS = 300
"""Look-back of an instant query: Prometheus' default (--query.lookback-delta)."""

_LOST_STEP_SECONDS = 300
"""Resolution of the last-seen time of devices gone for longer than the look-back."""

DEVICES_IN_MATCHER = 300
"""Queries about more devices have no matcher: VictoriaMetrics accepts queries of 16 KiB, and 300 UUIDs take 12."""


@dataclass(slots=True)
class Sighting:
    """now: distinct labels of its present rows. newest: an absent device's newest row; its value is the row's time."""

    identity: row_labels.Identity
    row: MetricRow
    now: list[Labels] = field(default_factory=list)
    newest: AnswerRow | None = None

    def rows(self) -> list[Labels]:
        """Labels of present rows, else of the newest row. Never empty."""
        return self.now or ([self.newest.labels] if self.newest else [])


_Repeated = list[tuple[MetricRow, Sequence[Labels]]]
_Asked = tuple[str, MetricRow, Expression]
_Answered = list[tuple[MetricRow, list[AnswerRow]]]
_NOW, _SEEN, _BEFORE = "devices that are present", "devices of the look-back", "devices before the look-back"


def sight(
    store: SampleStore, schema: Schema, at: datetime, lookback_seconds: int, lost_seconds: int, gaps: list[Gap]
) -> tuple[dict[DeviceId, Sighting], _Repeated]:
    """Devices of (at − look-back, at], and those of (at − lost, at] on hosts or exporters that have others now: a whole
    machine that has been gone for longer was removed. Devices of an earlier MIG layout of a present GPU are left out.

    Also returns the metrics of which one device has several rows now, with their labels. gaps: gets failed queries.
    """
    metrics = _presence_metrics(schema)
    looked_back = looked_back_metrics(schema)
    first = [row for rank, row in _ranked(metrics) if rank == 0]
    offsets = _offsets(lookback_seconds, lost_seconds)
    asked = [(_NOW, row, Expression(selector(row), Function.LAST, by=_all_labels(row.vendor))) for row in metrics]
    for row in looked_back:
        by = row_labels.IDENTITY_LABELS[row.vendor]
        asked.append((_SEEN, row, Expression(selector(row), Function.LAST_IN_WINDOW, lookback_seconds, by=by)))
    for row in first:
        by = by_labels(row_labels.IDENTITY_LABELS[row.vendor], row_labels.NODE_LABELS, ("instance",))
        then = Expression(selector(row), Function.LAST, by=by)
        asked += [(_BEFORE, row, replace(then, offset_seconds=offset)) for offset in offsets]
    answers = _answered(store, at, asked, gaps)
    now, seen, earlier = answers[_NOW], answers[_SEEN], answers[_BEFORE]
    devices, repeated = _of_now(now)
    present = {sighting.identity.uuid for sighting in devices.values()}
    places = {place for sighting in devices.values() for labels in sighting.now for place in _places(labels)}
    missing = [(metric, gone) for metric, answer in seen if (gone := _gone(metric, answer, present))]
    answered_now = {selector(metric) for metric, _ in now}
    unsure = {metric.vocabulary for metric in metrics if selector(metric) not in answered_now}
    step_seconds = max(1, round(schema.interval_seconds)) if schema.interval_seconds else 60
    newest = _answered(store, at, _newest(missing, lookback_seconds, step_seconds), gaps)[_SEEN]
    _add_missing(devices, newest, present, unsure, at)
    known = present | {sighting.identity.uuid for sighting in devices.values()}
    lost = _newest(_lost(earlier, known, places), lost_seconds, max(step_seconds, _LOST_STEP_SECONDS))
    newest = _answered(store, at, lost, gaps)[_SEEN]
    _add_missing(devices, newest, known, (), at)
    return devices, repeated


def _offsets(lookback_seconds: int, lost_seconds: int) -> list[int]:
    """Moments before the look-back, in seconds before now, up to lost_seconds."""
    if lost_seconds <= lookback_seconds:
        return []
    doubled = (lookback_seconds * 2**times for times in itertools.count(1))
    return [*itertools.takewhile(lambda offset: offset < lost_seconds, doubled), lost_seconds]


def _places(labels: Labels) -> set[tuple[str, str]]:
    """What devices of one machine have in common: the host, where one is named, and the exporter."""
    host, instance = row_labels.node_label(labels), labels.get("instance", "")
    named = host if row_labels.names_a_host(host) else ""
    return {place for place in (("host", named), ("exporter", instance)) if place[1]}


def _lost(
    earlier: _Answered, known: Collection[str], places: Set[tuple[str, str]]
) -> list[tuple[MetricRow, set[Matcher]]]:
    """Matchers for devices of earlier moments whose GPU is not yet known, on machines that have others now."""
    lost: dict[Selector, tuple[MetricRow, set[Matcher]]] = {}
    for metric, answer in earlier:
        if gone := _gone(metric, (row for row in answer if not places.isdisjoint(_places(row.labels))), known):
            lost.setdefault(selector(metric), (metric, set()))[1].update(gone)
    return list(lost.values())


def _presence_metrics(schema: Schema) -> list[MetricRow]:
    """Per vocabulary, the metric with most rows, then those of `_PRESENCE`; each once."""
    by_key = {(str(row.vocabulary), row.metric, row.signal): row for row in metric_rows()}
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


def looked_back_metrics(schema: Schema) -> list[MetricRow]:
    """The metrics of each vocabulary that find devices of the look-back."""
    return [row for rank, row in _ranked(_presence_metrics(schema)) if rank < _METRICS_LOOKED_BACK]


def _ranked(metrics: Sequence[MetricRow]) -> Iterator[tuple[int, MetricRow]]:
    places: Counter[str] = Counter()
    for row in metrics:
        yield places[row.vocabulary], row
        places[row.vocabulary] += 1


def _all_labels(vendor: Vendor) -> tuple[str, ...]:
    return by_labels(
        row_labels.IDENTITY_LABELS[vendor],
        row_labels.HOLDER_LABELS[vendor],
        ("pod", "namespace", "container", "instance", "job"),
        row_labels.NODE_LABELS,
        row_labels.LABELS.description[vendor],
    )


def _answered(store: SampleStore, at: datetime, asked: Sequence[_Asked], gaps: list[Gap]) -> dict[str, _Answered]:
    found: dict[str, _Answered] = defaultdict(list)
    answers = store.evaluate_many([question for _, _, question in asked], at) if asked else []
    for (what, row, _), answer in zip(asked, answers, strict=True):
        if isinstance(answer, TelemetryError):
            gaps.append(failed(f"{what} ({row.metric})", answer))
        else:
            found[what].append((row, answer))
    return found


def _of_now(now: _Answered) -> tuple[dict[DeviceId, Sighting], _Repeated]:
    devices: dict[DeviceId, Sighting] = {}
    repeated: _Repeated = []
    # Metrics of one exporter have the same labels; a store may share one object for them.
    names: dict[tuple[Vendor, int], row_labels.Identity | None] = {}
    taken: set[tuple[Vendor, int]] = set()
    for metric, answer in now:
        rows: dict[DeviceId, list[Labels]] = {}
        for row in answer:
            place = metric.vendor, id(row.labels)
            if place not in names:
                names[place] = row_labels.identity(row.labels, metric.vendor)
            identity = names[place]
            if identity is None:
                continue
            rows.setdefault(identity.id, []).append(row.labels)
            if place not in taken and not math.isnan(row.value):
                taken.add(place)
                devices.setdefault(identity.id, Sighting(identity, metric)).now.append(row.labels)
        repeated.extend((metric, several) for several in rows.values() if len(several) > 1)
    return devices, repeated


def _gone(metric: MetricRow, answer: Iterable[AnswerRow], present: Collection[str]) -> set[Matcher]:
    missing: set[Matcher] = set()
    for row in answer:
        found = row_labels.ids(row.labels, metric.vendor)
        if found is not None and found[1] not in present:
            missing.add(row_labels.device_matchers(row.labels, metric.vendor)[0])
    return missing


def _newest(missing: Iterable[tuple[MetricRow, set[Matcher]]], window_seconds: int, step_seconds: int) -> list[_Asked]:
    asked: list[_Asked] = []
    for row, picked in missing:
        by = _all_labels(row.vendor)
        is_few = len(picked) <= DEVICES_IN_MATCHER
        for matchers in zip(row_labels.any_device(picked, len(picked)), strict=True) if is_few else ((),):
            chosen = selector(row, *matchers)
            question = Expression(chosen, Function.LAST_TIME, window_seconds, step_seconds=step_seconds, by=by)
            asked.append((_SEEN, row, question))
    return asked


def _add_missing(
    devices: dict[DeviceId, Sighting],
    newest: _Answered,
    present: Collection[str],
    unsure: Collection[str],
    at: datetime,
) -> None:
    """Adds devices whose GPU is not `present`. The query of present rows failed for the `unsure` vocabularies: their
    devices count as present where they were seen within the look-back of an instant query."""
    found: dict[DeviceId, Sighting] = {}
    for metric, answer in newest:
        for row in answer:
            identity = row_labels.identity(row.labels, metric.vendor)
            if identity is None or identity.uuid in present or math.isnan(row.value):
                continue
            sighting = found.setdefault(identity.id, Sighting(identity, metric))
            if sighting.newest is None or row.value > sighting.newest.value:
                sighting.newest, sighting.row = row, metric
    recently = at.timestamp() - INSTANT_SECONDS
    for sighting in found.values():
        if sighting.newest and sighting.newest.value > recently and sighting.row.vocabulary in unsure:
            sighting.now.append(sighting.newest.labels)
    there = {sighting.identity.uuid for sighting in found.values() if sighting.now}
    devices.update(
        (device, sighting) for device, sighting in found.items() if sighting.now or sighting.identity.uuid not in there
    )
