"""Idle and highest power of the fleet's boards, per GPU model: the scale for power as a sign of work."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime

import numpy as np

from gpuwatch.facts.catalog.gpus import model_name
from gpuwatch.facts.model.telemetry import Signal
from gpuwatch.facts.model.workload_profile import PowerEnvelope, PowerHistogram
from gpuwatch.size.policy import ProfilePolicy
from gpuwatch.size.profile.joint_cells import Floats, Ints
from gpuwatch.size.profile.joint_table import AMBIGUOUS, START_UP, Table, numbered

_BIN_WATTS = 5.0
_FLOOR_QUANTILE = 0.1
"""A low one: an idle board whose holder keeps its clocks up draws more than rest, and a floor that is too high makes
work look smaller than it is. Not the minimum, which one bad reading would set."""
_CEILING_QUANTILE = 0.995
"""Not the maximum: boards overshoot their limit for single samples."""
# Engine activity up to which a board's power is idle power: the step of DCGM's counter.
_IDLE_BUSY_RATIO = 0.001
_LEAST_SECONDS = 3600.0
"""Device-seconds of windows that a quantile needs."""


def update_power(
    before: Mapping[str, PowerHistogram], table: Table, until: datetime, policy: ProfilePolicy
) -> dict[str, PowerHistogram]:
    """The histograms with these windows. Boards with MIG instances are left out: their idle time is unknown."""
    power, busy = table.column(Signal.POWER_WATTS), table.busy
    models, model_of = numbered("" if item.mig_profile else model_name(item.model) for item in table.windows)
    model = table.each(model_of)
    board = table.each(numbered(item.uuid for item in table.windows)[1])
    window = table.window
    throttled = np.array([cause not in ("", AMBIGUOUS, START_UP) for cause in table.causes])[table.cause]
    # A device may have two rows in a window in which its holder changed; each counts in part.
    age = until.timestamp() - table.time - table.step
    weight = table.part * table.step * np.exp2(-age / (policy.half_life_hours * 3600))
    usable = ~np.isnan(power) & ~np.isnan(busy) & ~throttled & (weight > 0)
    result = {name: _faded(item, until, policy) for name, item in before.items()}
    for number, name in enumerate(models):
        rows = usable & (model == number)
        if not name or not rows.any():
            continue
        bins = np.floor(power[rows] / _BIN_WATTS).astype(np.int64)
        at_rest = busy[rows] <= _IDLE_BUSY_RATIO
        known = result.get(name, PowerHistogram(as_of=until))
        seen = np.unique(np.stack((window[rows], board[rows])), axis=1)[0]
        result[name] = PowerHistogram(
            as_of=until,
            idle_seconds=_added(known.idle_seconds, bins[at_rest], weight[rows][at_rest]),
            all_seconds=_added(known.all_seconds, bins, weight[rows]),
            devices=max(known.devices, int(np.unique(seen, return_counts=True)[1].max())),
        )
    return result


def envelope(model: str, item: PowerHistogram) -> PowerEnvelope | None:
    """None where too little was seen."""
    ceiling = _quantile(item.all_seconds, _CEILING_QUANTILE)
    if ceiling is None:
        return None
    return PowerEnvelope(
        gpu_model=model,
        floor_watts=_quantile(item.idle_seconds, _FLOOR_QUANTILE),
        ceiling_watts=ceiling,
        devices=item.devices,
    )


def _faded(item: PowerHistogram, until: datetime, policy: ProfilePolicy) -> PowerHistogram:
    factor = 2 ** (-(until - item.as_of).total_seconds() / (policy.half_life_hours * 3600))
    return PowerHistogram(
        as_of=until,
        idle_seconds={number: seconds * factor for number, seconds in item.idle_seconds.items()},
        all_seconds={number: seconds * factor for number, seconds in item.all_seconds.items()},
        devices=item.devices,
    )


def _added(before: Mapping[int, float], bins: Ints, weight: Floats) -> dict[int, float]:
    total = defaultdict(float, before)
    counted = np.bincount(bins, weights=weight) if len(bins) else np.zeros(0)
    for number in np.flatnonzero(counted).tolist():
        total[number] += float(counted[number])
    return dict(sorted(total.items()))


def _quantile(seconds: Mapping[int, float], quantile: float) -> float | None:
    """The middle of the bin in which the quantile lies."""
    total = sum(seconds.values())
    if total < _LEAST_SECONDS:
        return None
    passed = 0.0
    for number in sorted(seconds):
        passed += seconds[number]
        if passed >= quantile * total:
            return (number + 0.5) * _BIN_WATTS
    return None
