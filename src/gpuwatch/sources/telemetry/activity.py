"""Activity: whether a device's engine was active while a Pod held it, step by step.

A range query over max_over_time(busy[step]) has one row per device and Pod; each row becomes one character per step.
Large fleets are queried in blocks of devices, so that memory holds the samples of one block.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt

from gpuwatch.facts.catalog.metrics import MetricRow, plausible_range
from gpuwatch.facts.model.needs import TelemetryNeeds
from gpuwatch.facts.model.telemetry import Activity, ActivityHistory, Device, DeviceId, Gap, PodRef, Schema, Signal
from gpuwatch.sources.telemetry import labels as row_labels
from gpuwatch.sources.telemetry.discovery import by_labels, selector
from gpuwatch.sources.telemetry.gaps import Dropped, failed, missing
from gpuwatch.sources.telemetry.inventory import Inventory
from gpuwatch.sources.telemetry.promql import any_of
from gpuwatch.sources.telemetry.questions import found_rows, in_raw_unit
from gpuwatch.sources.telemetry.samples import (
    Combine,
    Expression,
    Function,
    Matcher,
    Partition,
    SampleStore,
    Series,
    Steps,
    TelemetryError,
)

_POINTS_AT_ONCE = 500_000

_UNKNOWN, _SILENT, _ACTIVE = 0, 1, 2  # the greater of two codes wins
_CHARACTERS = np.frombuffer(f"{Activity.UNKNOWN}{Activity.SILENT}{Activity.ACTIVE}".encode(), np.uint8)

_Codes = npt.NDArray[np.uint8]


def histories(
    store: SampleStore,
    at: datetime,
    schema: Schema,
    inventory: Inventory,
    needs: TelemetryNeeds,
    devices: Collection[DeviceId] | None = None,
) -> tuple[tuple[ActivityHistory, ...], tuple[Gap, ...]]:
    """One history per device and Pod, and one with pod '' for the time in which no Pod held the device.

    Every history covers (at − n·step, at], for the n whole steps of the window. A step is active when a sample in it is
    above the bound, and unknown while the Pod did not hold the device. devices: only these, if they have a row.
    """
    window_seconds, step_seconds = needs.activity_window_seconds, needs.activity_step_seconds
    if step_seconds <= 0 or window_seconds < step_seconds:
        raise ValueError(f"a window of {window_seconds} s has no step of {step_seconds} s")
    found = found_rows(Signal.BUSY_RATIO, schema)
    if not found:
        return (), (missing(Signal.BUSY_RATIO, schema.vocabularies),)
    count = window_seconds // step_seconds
    steps = Steps(at - timedelta(seconds=count * step_seconds), step_seconds, count)
    activity = _Activity(store, inventory, steps, needs.activity_bound_ratio)
    wanted = [device for device in inventory.devices if devices is None or device.id in devices]
    for preference in sorted({row.preference for row, _ in found}):
        left = [device for device in wanted if device.id not in activity.answered]
        for row, signal in found:
            if row.preference == preference:
                activity.ask(row, signal.scale, [device for device in left if device.vendor is row.vendor])
        activity.answered.update(device for device, _ in activity.codes)
    return tuple(activity.histories()), tuple(activity.gaps())


@dataclass(slots=True)
class _Activity:
    store: SampleStore
    inventory: Inventory
    steps: Steps
    bound_ratio: float
    codes: dict[tuple[DeviceId, PodRef], _Codes] = field(default_factory=dict)
    answered: set[DeviceId] = field(default_factory=set)
    errors: dict[str, TelemetryError] = field(default_factory=dict)
    dropped: Dropped = field(default_factory=Dropped)

    def ask(self, row: MetricRow, scale: float, devices: Sequence[Device]) -> None:
        by = by_labels(row_labels.IDENTITY_LABELS[row.vendor], row_labels.HOLDER_LABELS[row.vendor])
        for only, partition in self._blocks(devices):
            window = self.steps.step_seconds
            expression = Expression(selector(row, *only), Function.MAX, window, combine=Combine.MAX, by=by)
            try:
                answer = self.store.grid(expression, self.steps, partition)
            except TelemetryError as error:
                self.errors.setdefault(row.metric, error)
                continue
            wanted = {device.id for device in devices}
            for series in answer:
                identity = row_labels.identity(series.labels, row.vendor)
                if identity is not None and identity.id in wanted:
                    holder = row_labels.holder(series.labels, row.vendor, self.inventory.scrape_targets)
                    self._add(identity.id, holder.pod if holder else "", series, scale)

    def _add(self, device: DeviceId, pod: PodRef, series: Series, scale: float) -> None:
        values = self.steps.values(series)
        highest = in_raw_unit(plausible_range(Signal.BUSY_RATIO)[1], scale)
        if (values > highest).any():
            self.dropped.add(Signal.BUSY_RATIO, device)
        seen = np.where(values > in_raw_unit(self.bound_ratio, scale), _ACTIVE, _SILENT)
        codes = self.codes.setdefault((device, pod), np.full(self.steps.count, _UNKNOWN, np.uint8))
        np.maximum(codes, np.where(values <= highest, seen, _UNKNOWN), out=codes, casting="unsafe")

    def _blocks(self, devices: Sequence[Device]) -> Iterator[tuple[tuple[Matcher, ...], Partition]]:
        """Matchers for one block of devices each; no matcher where one query covers the whole fleet. The partition uses
        the device's own label: range answers can be merged only by a label that they keep."""
        at_once = max(1, _POINTS_AT_ONCE // self.steps.count)
        places: dict[str, list[str]] = {}
        for device in devices:
            first = self.inventory.matchers[device.id][0]
            places.setdefault(first.label, []).append(first.value)
        everything = len(devices) == len(self.inventory.devices) <= at_once and len(places) == 1
        for label, values in places.items():
            ordered = sorted(values)
            for begin in range(0, len(ordered), at_once):
                block = Counter(ordered[begin : begin + at_once])
                partition = Partition(label, dict(block), self.inventory.interval_seconds)
                yield () if everything else (any_of(label, block),), partition

    def histories(self) -> Iterator[ActivityHistory]:
        held: dict[DeviceId, _Codes] = {}
        for (device, pod), codes in self.codes.items():
            if pod:
                held[device] = np.maximum(held.get(device, np.uint8(_UNKNOWN)), codes)
        for (device, pod), seen in sorted(self.codes.items(), key=lambda item: item[0]):
            # Where rows of a device's processes exist too, the device's own row does not mean that it was free.
            beside = not pod and device in held
            codes = np.where(held[device] == _UNKNOWN, seen, np.uint8(_UNKNOWN)) if beside else seen
            if codes.any():
                steps = _CHARACTERS[codes].tobytes().decode()
                start, step_seconds = self.steps.start, self.steps.step_seconds
                yield ActivityHistory(device=device, pod=pod, start=start, step_seconds=step_seconds, steps=steps)

    def gaps(self) -> Iterator[Gap]:
        for metric, error in self.errors.items():
            yield failed(f"activity ({metric})", error)
        yield from self.dropped.gaps()
