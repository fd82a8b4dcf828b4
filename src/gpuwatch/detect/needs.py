"""What the rules ask of telemetry, as one value: `cycle` puts it together, `collect` reads it."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.model.telemetry import Signal, WindowStat


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryNeeds:
    """The statistics and how far back each question reaches.

    activity_window_seconds and activity_step_seconds: the past that idleness is learnt from, and its resolution.
    activity_bound_ratio: engine activity above which a step counts as active.
    suspect_window_seconds: devices without activity in it are suspects; only they, and devices of Workloads like
        theirs, need the long history. 0 asks for everybody's history.
    inventory_seconds: how far back a device must have been seen to be missed now. One hour.
    lost_seconds: the same of a device on a machine whose other devices report: what is missing there is missed for a
        day by its own name, and then by the Node's capacity alone. A machine that is silent as a whole has perhaps
        left, and is not missed for longer than the look-back.
    """

    stats: tuple[WindowStat, ...]
    state_signals: tuple[Signal, ...]
    change_window_seconds: int
    activity_window_seconds: int
    activity_step_seconds: int
    activity_bound_ratio: float
    suspect_window_seconds: int = 1800
    inventory_seconds: int = 3600
    lost_seconds: int = 24 * 3600
