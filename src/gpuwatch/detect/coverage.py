"""How much of a window was seen: the samples that are there against the samples that should be."""

from __future__ import annotations

from gpuwatch.model.telemetry import Device, Readings, Schema, Signal, Statistic, WindowStat


def coverage_stat(signal: Signal, window_seconds: int) -> WindowStat:
    """What has to be asked so that `coverage_ratio` can answer."""
    return WindowStat(signal, Statistic.COUNT, window_seconds)


def coverage_ratio(
    readings: Readings, schema: Schema, device: Device, signal: Signal, window_seconds: int
) -> float | None:
    """Share of the samples that `signal` of this device should have in the window, from 0 to 1.

    None where it cannot be told: no count came back (a missing answer is unknown, not zero samples), or
    discovery did not find the sampling interval.
    """
    return share_of_samples(readings.get(coverage_stat(signal, window_seconds), device), schema, window_seconds)


def share_of_samples(count: float | None, schema: Schema, window_seconds: int) -> float | None:
    """The same from a count that was read already. More samples than expected are full coverage: two scrapers,
    or a target that is scraped faster than most."""
    if count is None or schema.interval_seconds <= 0:
        return None
    return min(count * schema.interval_seconds / window_seconds, 1.0)
