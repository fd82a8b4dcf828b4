"""GPU-hours of each hour by namespace and GPU model, for the reports."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from gpuwatch.facts.catalog.gpus import model_name
from gpuwatch.facts.model.telemetry import Signal
from gpuwatch.facts.model.workload_profile import UsageHour
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
