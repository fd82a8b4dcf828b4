"""Changes of signals that hold a state, such as the newest XID or a recovery action.

Of a counter, a fall by more than half is a change: it began anew. A smaller fall may come from a second exporter that
is some seconds behind. Cheap queries about all devices find where something changed; raw samples are read for those
devices only. A device has one state across all its series, because a new Pod, or another err_code label of an XID row,
starts a new series without a change of state. Events behind a windowed count come from occurrences.py.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from gpuwatch.facts.catalog.metrics import MetricRow, plausible_range
from gpuwatch.facts.model.telemetry import DeviceId, Gap, Schema, Scope, Signal, StateChange
from gpuwatch.sources.telemetry import labels as row_labels
from gpuwatch.sources.telemetry.discovery import selector
from gpuwatch.sources.telemetry.gaps import BLANK, Dropped, failed, missing
from gpuwatch.sources.telemetry.inventory import Inventory
from gpuwatch.sources.telemetry.occurrences import Occurrence, occurrences, raw_series
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
    change. Of simultaneous rows the greatest value counts. A windowed count changes with each new event; its `before`
    and `after` are the least numbers of events of the variant since the window began.
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
