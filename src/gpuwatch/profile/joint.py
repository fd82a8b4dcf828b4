"""Windows ▸ profiles of workloads: joint, decaying, mergeable. Pure; what is not measured stays unknown.

An update in one piece gives the same book as in several, up to rounding: weights decay from each window's own time,
cells lie on a fixed grid, runs and days add up by name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import numpy as np

from gpuwatch.catalog.gpus import find_gpu
from gpuwatch.model.cluster import Pod
from gpuwatch.model.telemetry import PodRef, Signal
from gpuwatch.model.workload_profile import (
    Cell,
    DayUse,
    HeldWindows,
    MemoryRun,
    ProfileBook,
    Unfit,
    WorkloadKey,
    WorkloadProfile,
)
from gpuwatch.profile.joint_cells import FINEST, Floats, Ints, Weighted, cells_of, merged
from gpuwatch.profile.joint_policy import ProfilePolicy
from gpuwatch.profile.joint_power import envelope, update_power
from gpuwatch.profile.joint_table import Mask, Past, Table, tabulate
from gpuwatch.profile.joint_usage import merge_usage, usage_hours

_AT_START_SECONDS = 600.0
"""After start-up: in so long a framework that fills the card has filled it."""
_COARSE_RATIO = 0.1
"""Share of windows with GPU_UTIL alone from which on a profile's busy ratio is the coarse one."""


def update_book(
    book: ProfileBook | None,
    windows: Sequence[HeldWindows],
    owners: Mapping[PodRef, str],
    pods: Mapping[PodRef, Pod],
    unfit: Sequence[Unfit],
    policy: ProfilePolicy,
) -> ProfileBook:
    """The book with these windows in it; they follow each other and are newer than the book.

    owners: Pod → Workload.id; a Pod without one is a workload of its own. pods: what is known of Pods that are there,
    or were. All windows have one step. Windows of nobody count for the fleet's use only.
    """
    windows = [item for item in windows if item.values]
    if not windows:
        return book if book is not None else _empty()
    past = Past()
    if book is not None:
        starts = {run.pod: run.first_seen.timestamp() for item in book.profiles.values() for run in item.runs}
        past = Past(until=book.until.timestamp(), run_starts=starts)
    else:
        book = ProfileBook(until=windows[0].start, step_seconds=windows[0].step_seconds)
    table = tabulate(windows, pods, unfit, past, policy.start_up_seconds)
    until = max(book.until, _moment(float(table.time.max()) + table.step))
    keys = [_key(item, owners, pods) for item in windows]
    profiles = {
        key: item for key, item in book.profiles.items() if until - item.last_seen <= timedelta(days=policy.forget_days)
    }
    profiles.update(_profiles(table, keys, profiles, pods, until, policy))
    power = update_power(book.power, table, until, policy)
    return replace(
        book,
        until=until,
        profiles=profiles,
        power=power,
        envelopes={model: found for model, item in power.items() if (found := envelope(model, item)) is not None},
        usage=merge_usage(book.usage, usage_hours(table), until - timedelta(days=policy.usage_days)),
    )


def _empty() -> ProfileBook:
    raise ValueError("there are no windows and no book, so there is nothing to say when the book ends")


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _key(item: HeldWindows, owners: Mapping[PodRef, str], pods: Mapping[PodRef, Pod]) -> WorkloadKey | None:
    """None for time in which nobody held the device."""
    if not item.pod:
        return None
    pod = pods.get(item.pod)
    workload = owners.get(item.pod) or (pod.workload if pod is not None else "") or f"Pod/{item.pod}"
    gpu = find_gpu(item.model)
    return WorkloadKey(workload, item.container, gpu.name if gpu is not None else item.model, item.mig_profile)


def _profiles(
    table: Table,
    keys: Sequence[WorkloadKey | None],
    old: Mapping[WorkloadKey, WorkloadProfile],
    pods: Mapping[PodRef, Pod],
    until: datetime,
    policy: ProfilePolicy,
) -> dict[WorkloadKey, WorkloadProfile]:
    """The profiles of every workload that these windows have something of."""
    numbers: dict[WorkloadKey, int] = {}
    for number, key in enumerate(keys):
        begin, end = table.offsets[number], table.offsets[number + 1]
        if key is not None and table.expected[begin:end].any():
            numbers.setdefault(key, len(numbers))
    if not numbers:
        return {}
    found = list(numbers)
    # Rows of nobody, and of those without any sample, go to one number more, which is cut off everywhere.
    owner = table.each([len(found) if key is None else numbers.get(key, len(found)) for key in keys])
    half_life = policy.half_life_hours * 3600
    decay: Floats = np.exp2(-(until.timestamp() - table.time - table.step) / half_life)
    held = table.expected & (owner < len(found))
    measured = held & ~np.isnan(table.busy)
    used = measured & (table.cause == 0)
    cells, resolution = _cells(table, found, old, owner, used, decay, until, half_life, policy)
    left_out = _left_out(table, owner, measured & (table.cause != 0), len(found))
    runs = _runs(table, keys, numbers, held)
    gpus, present, pod_time = _pods_at_once(table, owner, held, decay, len(found))
    days = _days(table, owner, held, len(found))
    seconds = table.step * np.bincount(owner[held], minlength=len(found))
    observed = table.step * np.bincount(owner[used], minlength=len(found))
    coarse = np.bincount(owner[used & np.isnan(table.column(Signal.ENGINE_ACTIVE_RATIO))], minlength=len(found))
    usable = np.bincount(owner[used], minlength=len(found))
    asked = _asked(table, keys, numbers, pods)
    result = {}
    for number, key in enumerate(found):
        before = old.get(key)
        mine = runs[number]
        fade = 1.0 if before is None else 2 ** (-(until - before.as_of).total_seconds() / half_life)
        was_present = 0.0 if before is None else before.present_seconds * fade
        was_pods = 0.0 if before is None else before.pods * was_present
        now_present = was_present + float(present[number])
        first = min(item.first_seen for item in mine)
        last = max(item.last_seen for item in mine)
        cpu, memory = asked.get(number, (None, None))
        result[key] = WorkloadProfile(
            key=key,
            as_of=until,
            half_life_seconds=half_life,
            cells=cells[number],
            runs=_kept_runs(before.runs if before else (), mine, policy.max_runs),
            run_count=(before.run_count if before else 0) + _new_runs(before, mine),
            first_seen=min(first, before.first_seen) if before else first,
            last_seen=max(last, before.last_seen) if before else last,
            observed_seconds=(before.observed_seconds if before else 0.0) + float(observed[number]),
            expected_seconds=(before.expected_seconds if before else 0.0) + float(seconds[number]),
            left_out_seconds=_added(before.left_out_seconds if before else {}, left_out[number]),
            gpus_per_pod=max(int(gpus[number]), 1),
            pods=(was_pods + float(pod_time[number])) / now_present if now_present > 0 else 1.0,
            present_seconds=now_present,
            days=_kept_days(before.days if before else (), days[number], until, policy.usage_days),
            resolution=int(resolution[number]),
            coarse_busy=bool(coarse[number] > _COARSE_RATIO * usable[number])
            if usable[number]
            else (before.coarse_busy if before else False),
            cpu_cores=cpu if cpu is not None else (before.cpu_cores if before else None),
            host_memory_bytes=memory if memory is not None else (before.host_memory_bytes if before else None),
        )
    return result


def _cells(
    table: Table,
    keys: Sequence[WorkloadKey],
    old: Mapping[WorkloadKey, WorkloadProfile],
    owner: Ints,
    used: Mask,
    decay: Floats,
    until: datetime,
    half_life: float,
    policy: ProfilePolicy,
) -> tuple[list[tuple[Cell, ...]], Ints]:
    # A MIG instance has no power of its own.
    whole = np.array([not item.mig_profile for item in table.windows], dtype=bool)[table.series]
    columns = (
        np.clip(table.busy, 0.0, 1.0),
        table.column(Signal.SM_ACTIVE_RATIO),
        table.column(Signal.TENSOR_ACTIVE_RATIO),
        table.column(Signal.DRAM_ACTIVE_RATIO),
        np.where(whole, table.column(Signal.POWER_WATTS), np.nan),
        table.pcie,
        table.column(Signal.NVLINK_BYTES_PER_SECOND),
    )
    fresh = Weighted(owner[used], decay[used] * table.step, np.stack([values[used] for values in columns], axis=1))
    befores = [old.get(key) for key in keys]
    kept = Weighted.of(
        [
            (number, 2 ** (-(until - before.as_of).total_seconds() / half_life), before.cells)
            for number, before in enumerate(befores)
            if before is not None
        ]
    )
    resolution = np.array([FINEST if before is None else before.resolution for before in befores], dtype=np.int64)
    rows, resolution = merged(kept.plus(fresh), resolution, policy.max_cells)
    return cells_of(rows, len(keys)), resolution


def _left_out(table: Table, owner: Ints, rows: Mask, keys: int) -> list[dict[str, float]]:
    found: list[dict[str, float]] = [{} for _ in range(keys)]
    pairs, counts = np.unique(owner[rows] * len(table.causes) + table.cause[rows], return_counts=True)
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        number, cause = divmod(pair, len(table.causes))
        found[number][table.causes[cause]] = float(count * table.step)
    return found


def _runs(
    table: Table, keys: Sequence[WorkloadKey | None], numbers: Mapping[WorkloadKey, int], held: Mask
) -> list[list[MemoryRun]]:
    """What these windows say of each Pod, by workload."""
    used = table.column(Signal.MEMORY_USED_BYTES)
    rest = np.nan_to_num(table.column(Signal.MEMORY_RESERVED_BYTES))
    capacity = used + rest + table.column(Signal.MEMORY_FREE_BYTES)
    found: list[dict[PodRef, MemoryRun]] = [{} for _ in numbers]
    for index, (item, key) in enumerate(zip(table.windows, keys, strict=True)):
        begin, end = int(table.offsets[index]), int(table.offsets[index + 1])
        rows = np.flatnonzero(held[begin:end]) + begin
        if key is None or not len(rows):
            continue
        # On a shared device the framebuffer is everybody's.
        mine = rows[:0] if item.shared else rows[~np.isnan(used[rows])]
        start = float(table.run_start[index])
        # NaN, a start that was not seen, compares as False.
        early = mine[table.time[mine] < start + _AT_START_SECONDS + table.start_up_seconds]
        run = MemoryRun(
            pod=item.pod,
            first_seen=_moment(float(table.time[rows[0]])),
            last_seen=_moment(float(table.time[rows[-1]]) + table.step),
            peak_bytes=float(used[mine].max()) if len(mine) else 0.0,
            at_start_bytes=float(used[early].max()) if len(early) else None,
            capacity_bytes=_most(capacity[mine]),
            device_seconds=float(len(rows) * table.step),
        )
        runs = found[numbers[key]]
        runs[item.pod] = _one_run(runs[item.pod], run) if item.pod in runs else run
    return [list(runs.values()) for runs in found]


def _most(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.max()) if len(known) else None


def _one_run(one: MemoryRun, other: MemoryRun) -> MemoryRun:
    """The same Pod, seen on two devices or at two times."""
    starts = [item for item in (one.at_start_bytes, other.at_start_bytes) if item is not None]
    capacities = [item for item in (one.capacity_bytes, other.capacity_bytes) if item is not None]
    return MemoryRun(
        pod=one.pod,
        first_seen=min(one.first_seen, other.first_seen),
        last_seen=max(one.last_seen, other.last_seen),
        peak_bytes=max(one.peak_bytes, other.peak_bytes),
        at_start_bytes=max(starts) if starts else None,
        capacity_bytes=max(capacities) if capacities else None,
        device_seconds=one.device_seconds + other.device_seconds,
    )


def _kept_runs(before: Iterable[MemoryRun], now: Iterable[MemoryRun], most: int) -> tuple[MemoryRun, ...]:
    runs = {item.pod: item for item in before}
    for item in now:
        runs[item.pod] = _one_run(runs[item.pod], item) if item.pod in runs else item
    return tuple(sorted(runs.values(), key=lambda item: (item.last_seen, item.pod))[-most:])


def _new_runs(before: WorkloadProfile | None, now: Iterable[MemoryRun]) -> int:
    known = {item.pod for item in before.runs} if before else set()
    return sum(1 for item in now if item.pod not in known)


def _pods_at_once(table: Table, owner: Ints, held: Mask, decay: Floats, keys: int) -> tuple[Ints, Floats, Floats]:
    """Per workload: the most devices of one Pod at a time; decayed seconds with any Pod; decayed Pod-seconds."""
    pods: dict[PodRef, int] = {}
    pod = table.each([pods.setdefault(item.pod, len(pods)) for item in table.windows])[held]
    number = np.floor((table.time[held] - table.time.min()) / table.step).astype(np.int64)
    span = int(number.max(initial=0)) + 1
    mine, weight = owner[held], decay[held] * table.step
    _, first, count = np.unique((mine * len(pods) + pod) * span + number, return_index=True, return_counts=True)
    gpus = np.zeros(keys, dtype=np.int64)
    np.maximum.at(gpus, mine[first], count)
    pod_time = np.bincount(mine[first], weights=weight[first], minlength=keys).astype(np.float64)
    _, any_pod = np.unique(mine * span + number, return_index=True)
    present = np.bincount(mine[any_pod], weights=weight[any_pod], minlength=keys).astype(np.float64)
    return gpus, present, pod_time


def _days(table: Table, owner: Ints, held: Mask, keys: int) -> list[dict[date, DayUse]]:
    day = np.floor(table.time[held] / 86400).astype(np.int64)
    mine, part = owner[held], table.part[held] * table.step / 3600
    busy = table.busy[held]
    first = int(table.time.min() // 86400)
    span = int(table.time.max() // 86400) - first + 1
    pairs, inverse = np.unique(mine * span + (day - first), return_inverse=True)
    allocated = np.bincount(inverse, weights=part)
    worked = np.bincount(inverse, weights=part * np.nan_to_num(busy))
    unknown = np.bincount(inverse, weights=part * np.isnan(busy))
    found: list[dict[date, DayUse]] = [{} for _ in range(keys)]
    for pair, hours, work, gap in zip(
        pairs.tolist(), allocated.tolist(), worked.tolist(), unknown.tolist(), strict=True
    ):
        number, offset = divmod(pair, span)
        at = date(1970, 1, 1) + timedelta(days=first + offset)
        found[number][at] = DayUse(day=at, allocated_gpu_hours=hours, busy_gpu_hours=work, unknown_gpu_hours=gap)
    return found


def _kept_days(
    before: Iterable[DayUse], now: Mapping[date, DayUse], until: datetime, usage_days: int
) -> tuple[DayUse, ...]:
    days = {item.day: item for item in before}
    for day, item in now.items():
        known = days.get(day)
        days[day] = (
            item
            if known is None
            else DayUse(
                day=day,
                allocated_gpu_hours=known.allocated_gpu_hours + item.allocated_gpu_hours,
                busy_gpu_hours=known.busy_gpu_hours + item.busy_gpu_hours,
                unknown_gpu_hours=known.unknown_gpu_hours + item.unknown_gpu_hours,
            )
        )
    oldest = until.date() - timedelta(days=usage_days)
    return tuple(days[day] for day in sorted(days) if day >= oldest)


def _asked(
    table: Table,
    keys: Sequence[WorkloadKey | None],
    numbers: Mapping[WorkloadKey, int],
    pods: Mapping[PodRef, Pod],
) -> dict[int, tuple[float | None, float | None]]:
    """Host CPU cores and memory that one Pod asks for, where a Pod of the workload tells: the newest one's."""
    found: dict[int, tuple[datetime, float | None, float | None]] = {}
    oldest = datetime.min.replace(tzinfo=UTC)
    for item, key in zip(table.windows, keys, strict=True):
        pod = pods.get(item.pod)
        if key is None or pod is None or key not in numbers or not (pod.cpu_cores or pod.memory_bytes):
            continue
        at = pod.started or oldest
        known = found.get(numbers[key])
        if known is None or at >= known[0]:
            found[numbers[key]] = (at, pod.cpu_cores or None, float(pod.memory_bytes) or None)
    return {number: (cpu, memory) for number, (_, cpu, memory) in found.items()}


def _added(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float, before)
    for name, value in now.items():
        total[name] += value
    return dict(total)
