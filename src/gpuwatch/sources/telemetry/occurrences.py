"""Events behind an exporter's windowed count: when each began, and their least number.

dcgm-exporter counts an XID while it is within the exporter's window (its label window_size_in_ms, five minutes by
default) and writes no row for it afterwards. Ten XIDs, ten minutes apart, show as ten times 1: neither the greatest
value nor the changes of the series distinguish them from a single XID.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from gpuwatch.facts.catalog.metrics import MetricRow, plausible_range
from gpuwatch.facts.model.telemetry import DeviceId, Scope
from gpuwatch.sources.telemetry import labels as row_labels
from gpuwatch.sources.telemetry.discovery import by_labels, selector
from gpuwatch.sources.telemetry.inventory import Inventory
from gpuwatch.sources.telemetry.samples import AnswerRow, Combine, Expression, Function, SampleStore, Series

_DEVICES_AT_ONCE = 50
_WINDOW_LABEL = "window_size_in_ms"
_USUAL_WINDOW_SECONDS = 300.0
"""dcgm-exporter@d5e5f510 pkg/cmd/app.go, --xid-count-window-size and --clock-events-count-window-size."""
_LATE_SECONDS = 30.0
"""How much longer than the window an event may be counted: older exporters collect at their own interval, 30 s by
default, and their page may be that old. Newer ones collect when they are scraped."""

_Key: TypeAlias = tuple[DeviceId, str]
"""Device and variant (the XID)."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """seen: Unix seconds of the first sample with more events than earlier ones explain. count: how many more."""

    device: DeviceId
    variant: str
    seen: float
    count: int


def occurrences(
    store: SampleStore, row: MetricRow, at: datetime, window_seconds: int, inventory: Inventory
) -> list[Occurrence]:
    """The fewest events that explain the samples of (at − window, at], by device and time. So a gap in the samples,
    another Pod's series or a second exporter never turns one event into two. Raises TelemetryError."""
    windows = _counting(store, row, at, window_seconds, inventory)
    if not windows:
        return []
    longest = max(windows.values()) + _LATE_SECONDS
    counts: dict[_Key, dict[float, int]] = defaultdict(dict)
    # Reads further back, to recognise events that began before the window.
    start = at - timedelta(seconds=window_seconds + longest)
    for series in raw_series(store, row, {device for device, _ in windows}, start, at, inventory):
        key = _key(series, row)
        if key in windows:
            samples = counts[key]
            for time, value in zip(series.times, series.values, strict=True):
                if 0 <= value <= plausible_range(row.signal)[1]:
                    samples[time] = max(samples.get(time, 0), round(value))
    begin = at.timestamp() - window_seconds
    return [
        Occurrence(*key, seen, count)
        for key, samples in counts.items()
        for seen, count in fewest_events(samples, windows[key] + _LATE_SECONDS)
        if seen > begin
    ]


def _counting(
    store: SampleStore, row: MetricRow, at: datetime, window_seconds: int, inventory: Inventory
) -> dict[_Key, float]:
    by = by_labels(row_labels.IDENTITY_LABELS[row.vendor], (row.variant_label, _WINDOW_LABEL))
    question = Expression(selector(row), Function.MAX, window_seconds, combine=Combine.MAX, by=by)
    windows: dict[_Key, float] = {}
    for each in store.evaluate(question, at, inventory.partition):
        key = _key(each, row)
        if key is not None and 0 < each.value <= plausible_range(row.signal)[1]:
            windows[key] = max(windows.get(key, 0.0), _window_seconds(each.labels))
    return windows


def _window_seconds(labels: Mapping[str, str]) -> float:
    stated = labels.get(_WINDOW_LABEL, "")
    return int(stated) / 1000 if stated.isdecimal() and int(stated) else _USUAL_WINDOW_SECONDS


def _key(of: AnswerRow | Series, row: MetricRow) -> _Key | None:
    """None for a row without a variant, which is the exporter's zero."""
    found, variant = row_labels.ids(of.labels, row.vendor), of.labels.get(row.variant_label, "")
    return None if found is None or not variant else (found[row.scope is Scope.PHYSICAL], variant)


def fewest_events(samples: Mapping[float, int], visible_seconds: float) -> Iterator[tuple[float, int]]:
    """(time of the first sample, number of events) of the fewest events that explain these counts, where each event is
    counted for at most `visible_seconds`. Greedy: each event begins as late, and lasts as long, as it can."""
    counted: deque[tuple[float, int]] = deque()  # (end, number)
    for time, value in sorted(samples.items()):
        while counted and counted[0][0] < time:
            counted.popleft()
        new = value - sum(count for _, count in counted)
        if new > 0:
            counted.append((time + visible_seconds, new))
            yield time, new


def raw_series(
    store: SampleStore,
    row: MetricRow,
    devices: Collection[DeviceId],
    start: datetime,
    end: datetime,
    inventory: Inventory,
) -> Iterator[Series]:
    """Stored samples of (start, end] of the GPUs of these devices; for few devices only. Raises TelemetryError."""
    picked = {
        inventory.matchers[device.id][0]
        for device in inventory.devices
        if (device.uuid if row.scope is Scope.PHYSICAL else device.id) in devices
    }
    for only in row_labels.any_device(picked, _DEVICES_AT_ONCE):
        yield from store.raw(selector(row, only), start, end)
