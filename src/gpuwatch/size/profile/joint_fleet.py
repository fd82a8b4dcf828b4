"""The windows of the fleet: GPU-hours of each hour by namespace and GPU model, for the reports; and idle and highest
power of the boards, per GPU model: the scale for power as a sign of work.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from gpuwatch.facts.catalog.gpus import model_name
from gpuwatch.facts.model.telemetry import Signal
from gpuwatch.facts.model.workload_profile import PowerEnvelope, PowerHistogram, UsageHour
from gpuwatch.size.policy import ProfilePolicy
from gpuwatch.size.profile.joint_cells import Floats, Ints
from gpuwatch.size.profile.joint_table import AMBIGUOUS, START_UP, THROTTLED, Table, numbered

_NOT_LOST = ("", AMBIGUOUS, START_UP, THROTTLED)
"""Causes under which the device was usable; a throttled one is slower by an unknown amount."""


def usage_hours(table: Table) -> tuple[UsageHour, ...]:
    """Rows of these windows; an hour that they cover in part counts in part."""
    counted = (table.part > 0) & (table.expected | table.seen)
    names, group_of = numbered((item.pod.split("/")[0], model_name(item.model)) for item in table.windows)
    group = table.each(group_of)[counted]
    hour = np.floor(table.time[counted] / 3600).astype(np.int64)
    first = int(table.time.min() // 3600)
    span = int(table.time.max() // 3600) - first + 1
    hours = table.part[counted] * table.step / 3600
    busy, sm = table.busy[counted], table.column(Signal.SM_ACTIVE_RATIO)[counted]
    pairs, inverse = np.unique(group * span + (hour - first), return_inverse=True)
    weights = (hours, hours * np.nan_to_num(busy), hours * np.nan_to_num(sm), ~np.isnan(sm), hours * np.isnan(busy))
    allocated, worked, active, with_sm, unknown = (np.bincount(inverse, weights=each).tolist() for each in weights)
    lost: list[dict[str, float]] = [{} for _ in pairs]
    cause = table.cause[counted]
    for index, what in enumerate(table.causes):
        if what not in _NOT_LOST:
            by_pair = np.bincount(inverse, weights=hours * (cause == index), minlength=len(pairs))
            for pair in np.flatnonzero(by_pair).tolist():
                lost[pair][what] = float(by_pair[pair])
    rows = []
    for index, pair in enumerate(pairs.tolist()):
        number, offset = divmod(pair, span)
        namespace, model = names[number]
        rows.append(
            UsageHour(
                hour=datetime.fromtimestamp((first + offset) * 3600, UTC),
                namespace=namespace,
                gpu_model=model,
                allocated_gpu_hours=allocated[index],
                busy_gpu_hours=worked[index],
                sm_gpu_hours=active[index] if with_sm[index] else None,
                unknown_gpu_hours=unknown[index] if namespace else 0.0,
                lost_gpu_hours=lost[index],
            )
        )
    return tuple(rows)


def merge_usage(before: Sequence[UsageHour], now: Iterable[UsageHour], oldest: datetime) -> tuple[UsageHour, ...]:
    """Rows of one hour, namespace and model added up, in order; hours before `oldest` are forgotten."""
    rows = {(item.hour, item.namespace, item.gpu_model): item for item in before if item.hour >= oldest}
    for item in now:
        key = (item.hour, item.namespace, item.gpu_model)
        known = rows.get(key)
        rows[key] = item if known is None else _sum(known, item)
    return tuple(rows[key] for key in sorted(rows) if key[0] >= oldest)


def _sum(one: UsageHour, other: UsageHour) -> UsageHour:
    sm = [item.sm_gpu_hours for item in (one, other) if item.sm_gpu_hours is not None]
    causes = sorted({*one.lost_gpu_hours, *other.lost_gpu_hours})
    return replace(
        one,
        allocated_gpu_hours=one.allocated_gpu_hours + other.allocated_gpu_hours,
        busy_gpu_hours=one.busy_gpu_hours + other.busy_gpu_hours,
        sm_gpu_hours=sum(sm) if sm else None,
        unknown_gpu_hours=one.unknown_gpu_hours + other.unknown_gpu_hours,
        lost_gpu_hours={
            cause: one.lost_gpu_hours.get(cause, 0.0) + other.lost_gpu_hours.get(cause, 0.0) for cause in causes
        },
    )


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
