"""Throttling, window by window: under the same load a throttled GPU shows as busier than a healthy one. As in
changes.py, a cheap query finds the devices that were throttled, and windows are queried for those only."""

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from gpuwatch.facts.catalog.metrics import MetricRow, plausible_range
from gpuwatch.facts.model.telemetry import Gap, GapKind, Schema, Signal
from gpuwatch.sources.telemetry import labels as row_labels
from gpuwatch.sources.telemetry.discovery import by_labels, selector
from gpuwatch.sources.telemetry.gaps import failed
from gpuwatch.sources.telemetry.inventory import Inventory
from gpuwatch.sources.telemetry.questions import found_rows, in_raw_unit
from gpuwatch.sources.telemetry.samples import Expression, Function, Matcher, SampleStore, Steps, TelemetryError
from gpuwatch.sources.telemetry.series import FloatArray
from gpuwatch.sources.telemetry.sightings import DEVICES_IN_MATCHER
from gpuwatch.sources.telemetry.windows import aligned_steps, rate_window

SLOWED_BITS = 0x8 | 0x20 | 0x40 | 0x80
"""NVML's clock event reasons that are faults: hardware slowdown, both thermal slowdowns, power brake."""

_SIGNALS = (Signal.THERMAL_THROTTLE_SECONDS_TOTAL, Signal.HW_POWER_BRAKE_SECONDS_TOTAL, Signal.CLOCK_EVENT_REASONS_BITS)


def throttled_shares(
    store: SampleStore, start: datetime, end: datetime, step_seconds: int, schema: Schema, inventory: Inventory
) -> tuple[Mapping[str, "array[float]"], tuple[Gap, ...]]:
    """GPU (UUID) → the share of each window in which heat or the power supply slowed it, from 0 to 1. Windows as in
    held_windows. The share is the greatest of the throttle counters and of the share of samples with a reason of
    SLOWED_BITS; NaN without samples. GPUs that were never slowed are left out. Missing signals are a Gap."""
    steps = aligned_steps(start, end, step_seconds)
    found = [pair for signal in _SIGNALS for pair in found_rows(signal, schema)]
    if steps.count <= 0:
        return {}, ()
    if not found:
        detail = f"none of {', '.join(_SIGNALS)} is exported; windows in which a GPU was slowed count as its demand"
        return {}, (Gap(kind=GapKind.SIGNAL_MISSING, what="throttling", detail=detail),)
    shares = _Shares(store, inventory, steps, {})
    gaps = []
    for row, spelling in found:
        try:
            shares.read(row, spelling.scale)
        except TelemetryError as error:
            gaps.append(failed(f"throttling ({row.metric})", error))
    answer = {uuid: array("d", values.tobytes()) for uuid, values in sorted(shares.of.items())}
    return answer, tuple(gaps)


@dataclass(slots=True)
class _Shares:
    store: SampleStore
    inventory: Inventory
    steps: Steps
    of: dict[str, FloatArray]

    def read(self, row: MetricRow, scale: float) -> None:
        by = by_labels(row_labels.IDENTITY_LABELS[row.vendor])
        is_counter, window = row.kind == "counter", self.steps.step_seconds
        if is_counter:
            window = rate_window(window, self.inventory.interval_seconds)
        suspects = self._suspects(row, by, window)
        if not suspects:
            return
        # Parts of a range answer can be merged only if it keeps the partition's label.
        kept = by_labels(by, (self.inventory.partition.label,) if self.inventory.partition else ())
        for only in row_labels.any_device(suspects, DEVICES_IN_MATCHER):
            question = Expression(selector(row, only), Function.INCREASE, window, by=kept)
            if not is_counter:
                question = replace(question, function=Function.FRACTION_BITS, parameter=SLOWED_BITS)
            # The store takes the subquery's step, the sampling interval, from the partition.
            for series in self.store.grid(question, self.steps, self.inventory.partition):
                if (ids := row_labels.ids(series.labels, row.vendor)) is None:
                    continue
                shares = self.steps.values(series)
                if is_counter:
                    shares = shares * scale / window
                shares = np.clip(shares, 0.0, 1.0)
                self.of[ids[1]] = np.fmax(self.of[ids[1]], shares) if ids[1] in self.of else shares

    def _suspects(self, row: MetricRow, by: tuple[str, ...], window: int) -> Iterable[Matcher]:
        """Matchers for GPUs whose counter rose, or whose reasons reached the lowest bit of SLOWED_BITS."""
        span = (self.steps.count - 1) * self.steps.step_seconds + window
        is_counter = row.kind == "counter"
        question = Expression(selector(row), Function.INCREASE if is_counter else Function.MAX, span, by=by)
        least = 0.0 if is_counter else math.nextafter(SLOWED_BITS & -SLOWED_BITS, 0)
        most = in_raw_unit(plausible_range(row.signal)[1], row.scale)
        return {
            picked[0]
            for each in self.store.evaluate(question, self.steps.end, self.inventory.partition)
            if least < each.value <= most and (picked := row_labels.device_matchers(each.labels, row.vendor))
        }
