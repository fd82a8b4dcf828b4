"""How the rules name the statistics that they need."""

from collections.abc import Mapping

from gpuwatch.facts.model.telemetry import Signal, Statistic, WindowStat


def stats(statistic: Statistic, window_seconds: int, *signals: Signal) -> tuple[WindowStat, ...]:
    """The same statistic of several signals."""
    return tuple(WindowStat(signal, statistic, window_seconds) for signal in signals)


def statistics(rules: Mapping[str, tuple[WindowStat, ...]]) -> tuple[WindowStat, ...]:
    """Every statistic that these rules read, once."""
    return tuple(dict.fromkeys(stat for stats in rules.values() for stat in stats))
