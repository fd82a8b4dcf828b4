"""What the rules need of telemetry: they name statistics, `act.analysis` makes one value of all, and `sources.collect`
reads it."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuwatch.facts.model.telemetry import Signal, Statistic, WindowStat


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryNeeds:
    """The statistics, and how far back each query reaches.

    activity_window_seconds, activity_step_seconds: the history that idleness is learnt from, and its resolution.
    activity_bound_ratio: engine activity above which a step counts as active.
    suspect_window_seconds: only devices idle in it, and those of like Workloads, need the long history. 0: all do.
    inventory_seconds: a device seen within it is reported as missing when it vanishes.
    lost_seconds: the same where other devices of the machine report. Later only the Node's capacity shows the loss.
    port_stats: what is read of each InfiniBand port, as `metric:function:seconds`; only the first if it has no rows.
    pod_runs_seconds: over which ends of Pods are compared. 6 h: a few starts of jobs that die at once.
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
    pod_runs_seconds: int = 6 * 3600
    port_stats: tuple[str, ...] = ()


def stats(statistic: Statistic, window_seconds: int, *signals: Signal) -> tuple[WindowStat, ...]:
    """The same statistic of several signals."""
    return tuple(WindowStat(signal, statistic, window_seconds) for signal in signals)


def statistics(rules: Mapping[str, tuple[WindowStat, ...]]) -> tuple[WindowStat, ...]:
    """Every statistic that these rules read, once."""
    return tuple(dict.fromkeys(stat for stats in rules.values() for stat in stats))
