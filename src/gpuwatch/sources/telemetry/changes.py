"""Changes of signals that hold a state, such as the newest XID or a recovery action.

Of a counter, a fall by more than half is a change: it began anew. A smaller fall may come from a second exporter that
is some seconds behind. Cheap queries about all devices find where something changed; raw samples are read for those
devices only. A device has one state across all its series, because a new Pod, or another err_code label of an XID row,
starts a new series without a change of state.

Of an exporter's windowed count, a change is when an event began, with the least number of events. dcgm-exporter counts
an XID while it is within the exporter's window (its label window_size_in_ms, five minutes by default) and writes no row
for it afterwards. Ten XIDs, ten minutes apart, show as ten times 1: neither the greatest value nor the changes of the
series distinguish them from a single XID.

Of a counter with a variant, such as dcgm-exporter's total of an XID, a change is a rise from one sample of a series to
the next. The first sample of a series is none, as a restarted exporter or a new Pod begins one too; nor is a fall.
"""

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from gpuwatch.facts.catalog.metrics import MetricRow, plausible_range
from gpuwatch.facts.model.telemetry import (
    DeviceId,
    Gap,
    Readings,
    Schema,
    Scope,
    Signal,
    StateChange,
    Statistic,
    WindowStat,
)
from gpuwatch.sources.telemetry import labels as row_labels
from gpuwatch.sources.telemetry.discovery import by_labels, selector
from gpuwatch.sources.telemetry.gaps import BLANK, Dropped, failed, missing
from gpuwatch.sources.telemetry.inventory import Inventory
from gpuwatch.sources.telemetry.questions import found_rows, in_si
from gpuwatch.sources.telemetry.samples import (
    AnswerRow,
    Combine,
    Expression,
    Function,
    SampleStore,
    Series,
    TelemetryError,
)
from gpuwatch.sources.telemetry.sightings import INSTANT_SECONDS

_States: TypeAlias = dict[DeviceId, dict[float, float]]
"""One signal: samples by device, for devices that may have changed."""


def state_changes(
    store: SampleStore,
    signals: Sequence[Signal],
    at: datetime,
    window_seconds: int,
    schema: Schema,
    inventory: Inventory,
) -> tuple[tuple[StateChange, ...], tuple[Gap, ...]]:
    """Changes within (at − window, at], by time. The device of a PHYSICAL signal is the GPU's UUID.

    before: the last value before the change, from up to one more window earlier, else None. A first value of 0 is no
    change. Of simultaneous rows the greatest value counts. A windowed count, and a counter with a variant, changes with
    each new event; its `before` and `after` are the least numbers of events of the variant since the window began.
    """
    changes: list[StateChange] = []
    gaps: list[Gap] = []
    reader = _Reader(store, at, window_seconds + INSTANT_SECONDS, inventory)
    for signal in dict.fromkeys(signals):
        found = [row for row, _ in found_rows(signal, schema)]
        if not found:
            gaps.append(missing(signal, schema.vocabularies))
            continue
        states: _States = {}
        dropped = Dropped()
        for row in found:
            try:
                if row.kind == "window":
                    changes.extend(_counted(occurrences(store, row, at, window_seconds, inventory), signal))
                elif row.variant_label:
                    found_rises = rises(store, row, at, window_seconds, inventory, schema.interval_seconds)
                    changes.extend(_counted(found_rises, signal))
                else:
                    reader.read(row, states, dropped)
            except TelemetryError as error:
                gaps.append(failed(f"changes of {signal} ({row.metric})", error))
        begin = at.timestamp() - window_seconds
        for device, samples in states.items():
            falls_only = found[0].kind == "counter"
            changes.extend(_transitions(device, signal, samples, begin, falls_only=falls_only))
        gaps.extend(dropped.gaps())
    changes.sort(key=lambda change: (change.at, change.device, change.signal, change.variant))
    return tuple(changes), tuple(gaps)


@dataclass(frozen=True, slots=True)
class _Reader:
    """window_seconds: includes the sample before the window asked for, since the change may be at its edge."""

    store: SampleStore
    at: datetime
    window_seconds: int
    inventory: Inventory

    def read(self, row: MetricRow, states: _States, dropped: Dropped) -> None:
        suspects = self._fallen(row) if row.kind == "counter" else self._suspects(row)
        known = {device.uuid if row.scope is Scope.PHYSICAL else device.id for device in self.inventory.devices}
        start = self.at - timedelta(seconds=2 * self.window_seconds)
        for series in raw_series(self.store, row, suspects, start, self.at, self.inventory):
            device = _device(series, row)
            if device in known and device in suspects:
                _add(states.setdefault(device, {}), series, row, device, dropped)

    def _suspects(self, row: MetricRow) -> frozenset[DeviceId]:
        """Devices with two values in the window, or with another value or none in the window before it."""
        by, window = row_labels.IDENTITY_LABELS[row.vendor], self.window_seconds
        lowest = Expression(selector(row), Function.MIN, window, combine=Combine.MIN, by=by)
        highest = replace(lowest, function=Function.MAX, combine=Combine.MAX)
        earlier = replace(highest, function=Function.LAST_IN_WINDOW, offset_seconds=window)
        lows, highs, before = self._by_device(row, (lowest, highest, earlier))
        return frozenset(
            device
            for device, low in lows.items()
            # Only zeros, and nothing before them: no event yet.
            if low != highs.get(device) or (before[device] != low if device in before else low != 0)
        )

    def _fallen(self, row: MetricRow) -> frozenset[DeviceId]:
        """Devices whose counter is now below half of its maximum in the window."""
        by = row_labels.IDENTITY_LABELS[row.vendor]
        highest = Expression(selector(row), Function.MAX, self.window_seconds, combine=Combine.MAX, by=by)
        newest = replace(highest, function=Function.LAST, window_seconds=0)
        highs, last = self._by_device(row, (highest, newest))
        return frozenset(device for device, value in last.items() if value < highs.get(device, value) / 2)

    def _by_device(self, row: MetricRow, questions: Sequence[Expression]) -> Iterator[dict[DeviceId, float]]:
        """The answer to each question, by device. Raises TelemetryError."""
        answers = self.store.evaluate_many(questions, self.at, self.inventory.partition)
        for question, answer in zip(questions, answers, strict=True):
            if isinstance(answer, TelemetryError):
                raise answer
            extreme = min if question.combine is Combine.MIN else max
            values: dict[DeviceId, float] = {}
            for each in answer:
                if (device := _device(each, row)) is not None:
                    values[device] = extreme(values.get(device, each.value), each.value)
            yield values


def _device(of: AnswerRow | Series, row: MetricRow) -> DeviceId | None:
    found = row_labels.ids(of.labels, row.vendor)
    return None if found is None else found[row.scope is Scope.PHYSICAL]


def _add(samples: dict[float, float], series: Series, row: MetricRow, device: DeviceId, dropped: Dropped) -> None:
    low, high = plausible_range(row.signal)
    for time, raw in zip(series.times, series.values, strict=True):
        value = in_si(raw, row.scale)
        if raw < BLANK and low <= value <= high:
            samples[time] = max(samples.get(time, value), value)
        elif not math.isnan(raw):
            dropped.add(row.signal, device, blank=raw >= BLANK)


def _transitions(
    device: DeviceId, signal: Signal, samples: Mapping[float, float], begin: float, *, falls_only: bool
) -> Iterator[StateChange]:
    before: float | None = None
    for time, value in sorted(samples.items()):
        if falls_only:
            changed = before is not None and value < before / 2
        else:
            changed = value != before and not (before is None and value == 0)
        if changed and time > begin:
            moment = datetime.fromtimestamp(time, UTC)
            yield StateChange(device=device, signal=signal, at=moment, before=before, after=value)
        before = value


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


def rises(
    store: SampleStore, row: MetricRow, at: datetime, window_seconds: int, inventory: Inventory, interval_seconds: float
) -> list[Occurrence]:
    """Rises of a counter with a variant within (at − window, at], by device and time. Series of one device and variant
    that rise within two intervals show the same event, as two exporters do. Raises TelemetryError."""
    by = by_labels(row_labels.IDENTITY_LABELS[row.vendor], (row.variant_label,))
    span = window_seconds + INSTANT_SECONDS  # a rise at the window's edge needs the sample before
    question = Expression(selector(row), Function.INCREASE, span, combine=Combine.MAX, by=by)
    rising = {
        key for each in store.evaluate(question, at, inventory.partition) if each.value > 0 and (key := _key(each, row))
    }
    begin, found = at.timestamp() - window_seconds, defaultdict(list)
    start = at - timedelta(seconds=span)
    for number, series in enumerate(raw_series(store, row, {device for device, _ in rising}, start, at, inventory)):
        key, before = _key(series, row), math.inf
        for time, value in zip(series.times, series.values, strict=True):
            if key in rising and 0 <= value <= plausible_range(row.signal)[1]:
                if value > before and time > begin:
                    found[key].append((time, number, round(value - before)))
                before = value
    return [
        Occurrence(*key, seen, count) for key in found for seen, count in _together(found[key], 2 * interval_seconds)
    ]


def _together(found: Iterable[tuple[float, int, int]], seconds: float) -> Iterator[tuple[float, int]]:
    """(time, count) of each event, from (time, series, count) of the rises of several series."""
    kept: list[tuple[float, dict[int, int]]] = []  # first seen, and the counts by series
    for time, number, count in sorted(found):
        if kept and time - kept[-1][0] <= seconds and number not in kept[-1][1]:
            kept[-1][1][number] = count
        else:
            kept.append((time, {number: count}))
    return ((time, max(counts.values())) for time, counts in kept)


def _window_seconds(labels: Mapping[str, str]) -> float:
    stated = labels.get(_WINDOW_LABEL, "")
    return int(stated) / 1000 if stated.isdecimal() and int(stated) else _USUAL_WINDOW_SECONDS


def _key(of: AnswerRow | Series, row: MetricRow) -> _Key | None:
    """None for a row without a variant, which is the exporter's zero."""
    device, variant = _device(of, row), of.labels.get(row.variant_label, "")
    return (device, variant) if device and variant else None


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


def _counted(found: Iterable[Occurrence], signal: Signal) -> Iterator[StateChange]:
    so_far: dict[tuple[DeviceId, str], int] = {}
    for each in found:
        key = (each.device, each.variant)
        before = so_far.get(key, 0)
        so_far[key] = before + each.count
        yield StateChange(
            device=each.device,
            signal=signal,
            at=datetime.fromtimestamp(each.seen, UTC),
            before=float(before),
            after=float(so_far[key]),
            variant=each.variant,
        )


SIGNALS = (
    Signal.XID_CODE,
    Signal.RECOVERY_ACTION_CODE,
    Signal.ROW_REMAP_FAILED_STATE,
    Signal.ROW_REMAP_PENDING_STATE,
    Signal.ROW_REMAP_UNCORRECTABLE_TOTAL,
    Signal.MEMORY_UNREPAIRABLE_STATE,
    Signal.SRAM_ECC_THRESHOLD_EXCEEDED_STATE,
    Signal.ECC_DBE_VOLATILE_TOTAL,
    Signal.PAGES_RETIRED_PENDING_STATE,
)
"""States and counts that stay once they are above 0."""

_LOOK_BACK = timedelta(days=1, minutes=5)
_MOST = 32
"""Devices for each signal: a day of one is some thousand samples. Of a fleet with more, the others are left out."""


def standing(
    store: SampleStore, readings: Readings, at: datetime, schema: Schema, inventory: Inventory
) -> Iterator[StateChange]:
    """For each device with one of SIGNALS above 0 now: when that began, within the last day. `before` is None where it
    was so at the first sample. What cannot be read is left out: the finding has its evidence without it."""
    for signal in SIGNALS:
        values = readings.values.get(WindowStat(signal, Statistic.LAST).key, {})
        devices = sorted(device for device, value in values.items() if value > 0)[:_MOST]
        samples: dict[DeviceId, dict[float, float]] = {device: {} for device in devices}
        rows = [row for row, _ in found_rows(signal, schema)] if devices else []
        for row in rows:
            with suppress(TelemetryError):
                for series in raw_series(store, row, devices, at - _LOOK_BACK, at, inventory):
                    if (device := _device(series, row)) in samples:
                        pairs = zip(series.times, series.values, strict=True)
                        samples[device].update((time, in_si(each, row.scale)) for time, each in pairs if each < BLANK)
        counts = any(row.kind == "counter" for row in rows)  # any count above 0 is the same state
        for device, seen in samples.items():
            if not seen:
                continue
            now = seen[max(seen)]
            last = max((time for time in seen if (seen[time] <= 0 if counts else seen[time] != now)), default=None)
            first = min(time for time in seen if last is None or time > last)
            before = None if last is None else seen[last]
            began = datetime.fromtimestamp(first, UTC)
            yield StateChange(device=device, signal=signal, at=began, before=before, after=now)
