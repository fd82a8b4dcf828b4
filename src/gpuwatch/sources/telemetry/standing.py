"""Since when states that are on have been on, such as a failed row remapping. The rules read their newest values."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from gpuwatch.facts.model.telemetry import DeviceId, Readings, Schema, Scope, Signal, StateChange, Statistic, WindowStat
from gpuwatch.sources.telemetry.gaps import BLANK
from gpuwatch.sources.telemetry.inventory import Inventory
from gpuwatch.sources.telemetry.labels import ids
from gpuwatch.sources.telemetry.occurrences import raw_series
from gpuwatch.sources.telemetry.questions import found_rows, in_si
from gpuwatch.sources.telemetry.samples import SampleStore, TelemetryError

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
                    found = ids(series.labels, row.vendor)
                    if found is not None and (device := found[row.scope is Scope.PHYSICAL]) in samples:
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
