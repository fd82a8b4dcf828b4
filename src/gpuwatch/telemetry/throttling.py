"""Throttling, window by window: under the same load a throttled GPU looks busier than a healthy one.

In two phases, as in changes.py: one cheap question about all devices tells which were slowed at all, and windows are
asked for those alone.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from gpuwatch.catalog.metrics import MetricRow, plausible_range
from gpuwatch.model.telemetry import Gap, GapKind, Schema, Signal
from gpuwatch.telemetry import labels as door
from gpuwatch.telemetry.discovery import by_labels, selector
from gpuwatch.telemetry.gaps import failed
from gpuwatch.telemetry.inventory import Inventory
from gpuwatch.telemetry.questions import found_rows, in_raw_unit
from gpuwatch.telemetry.samples import Expression, Function, Matcher, SampleStore, TelemetryError
from gpuwatch.telemetry.series import FloatArray
from gpuwatch.telemetry.sightings import DEVICES_IN_MATCHER
from gpuwatch.telemetry.windows import aligned, rate_window

SLOWED_BITS = 0x8 | 0x20 | 0x40 | 0x80
"""NVML's clock event reasons that are faults: hardware slowdown, thermal by software and by hardware, power brake. A
software power cap (0x4) at full load is how a healthy card works."""

_SIGNALS = (
    Signal.THERMAL_THROTTLE_SECONDS_TOTAL,
    Signal.HW_POWER_BRAKE_SECONDS_TOTAL,
    Signal.CLOCK_EVENT_REASONS_BITS,
)


def throttled_shares(
    store: SampleStore,
    start: datetime,
    end: datetime,
    step_seconds: int,
    schema: Schema,
    inventory: Inventory,
) -> tuple[Mapping[str, array[float]], tuple[Gap, ...]]:
    """GPU (UUID) → the share of each window in which heat or the power supply slowed it, from 0 to 1.

    Windows as in held_windows. The greatest of the throttle counters and of the share of samples with such a reason.
    Only GPUs that were slowed at all are there; NaN where nothing was measured. A Gap where nobody exports any of it.
    """
    begin, until = aligned(start, step_seconds), aligned(end, step_seconds)
    count = round((until - begin).total_seconds()) // step_seconds
    found = [pair for signal in _SIGNALS for pair in found_rows(signal, schema)]
    if count <= 0:
        return {}, ()
    if not found:
        detail = f"none of {', '.join(_SIGNALS)} is exported; windows in which a GPU was slowed are taken for its need"
        return {}, (Gap(kind=GapKind.SIGNAL_MISSING, what="throttling", detail=detail),)
    shares = _Shares(store, inventory, begin, step_seconds, count, {})
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
    start: datetime
    step_seconds: int
    count: int
    of: dict[str, FloatArray]

    def read(self, row: MetricRow, scale: float) -> None:
        by = by_labels(door.IDENTITY_LABELS[row.vendor])
        window = self.step_seconds
        if row.kind == "counter":
            window = rate_window(self.step_seconds, self.inventory.interval_seconds)
        suspects = self._suspects(row, by, window)
        if not suspects:
            return
        first = self.start + timedelta(seconds=self.step_seconds)
        # An answer over time is put together from its parts only where it keeps the label that divides them.
        kept = by_labels(by, (self.inventory.partition.label,) if self.inventory.partition else ())
        for only in door.any_device(suspects, DEVICES_IN_MATCHER):
            if row.kind == "counter":
                question = Expression(selector(row, only), Function.INCREASE, window, by=kept)
            else:
                question = Expression(
                    selector(row, only), Function.FRACTION_BITS, window, parameter=SLOWED_BITS, by=kept
                )
            # A step of the subquery is a sample's distance: the store takes it from the partition.
            for series in self.store.grid(question, first, self._end, self.step_seconds, self.inventory.partition):
                if (ids := door.ids(series.labels, row.vendor)) is None:
                    continue
                values = np.asarray(series.values, np.float64)
                if row.kind == "counter":
                    values = values * scale / window
                number = np.rint((np.asarray(series.times) - first.timestamp()) / self.step_seconds).astype(np.int64)
                shares = np.full(self.count, np.nan)
                shares[number] = np.clip(values, 0.0, 1.0)
                self.of[ids[1]] = np.fmax(self.of[ids[1]], shares) if ids[1] in self.of else shares

    @property
    def _end(self) -> datetime:
        return self.start + timedelta(seconds=self.count * self.step_seconds)

    def _suspects(self, row: MetricRow, by: tuple[str, ...], window: int) -> Iterable[Matcher]:
        """Matchers for GPUs whose counter rose, or with any reason of at least the lowest of the faults' bits."""
        span = (self.count - 1) * self.step_seconds + window
        is_counter = row.kind == "counter"
        question = Expression(selector(row), Function.INCREASE if is_counter else Function.MAX, span, by=by)
        least = 0.0 if is_counter else math.nextafter(SLOWED_BITS & -SLOWED_BITS, 0)
        most = in_raw_unit(plausible_range(row.signal)[1], row.scale)
        return {
            picked[0]
            for each in self.store.evaluate(question, self._end, self.inventory.partition)
            if least < each.value <= most and (picked := door.device_matchers(each.labels, row.vendor))
        }
