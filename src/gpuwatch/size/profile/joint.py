"""Windows ▸ profiles of workloads: joint, decaying, mergeable. Pure; unmeasured values stay unknown.

One update or several smaller ones give the same book, up to rounding: weights decay from each window's own time, cells
lie on a fixed grid, runs and days add up by name.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import numpy as np

from gpuwatch.facts.catalog.gpus import model_name, profile_name
from gpuwatch.facts.model.cluster import Pod
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.telemetry import PodRef, Signal
from gpuwatch.facts.model.workload_profile import (
    Cell,
    DayUse,
    HeldWindows,
    MemoryRun,
    ProfileBook,
    Unfit,
    WorkloadKey,
    WorkloadProfile,
)
from gpuwatch.size.policy import ProfilePolicy
from gpuwatch.size.profile.joint_cells import FINEST, Floats, Ints, Weighted, cells_of, merged
from gpuwatch.size.profile.joint_fleet import envelope, update_power
from gpuwatch.size.profile.joint_table import Mask, Table, numbered, split_at_creation, tabulate

_AT_START_SECONDS = 600.0
"""After start-up; by then a framework that fills the card has filled it."""
# Newest runs whose memory peaks are kept.
_MAX_RUNS = 20
# Of the joint histogram; beyond it the grid is made coarser. 96 cells are some kilobytes.
MAX_CELLS = 96
_STILL_THERE = timedelta(hours=1)
"""Runs seen this long before the newest one are kept, so that the next update joins a running Pod to its run."""
_COARSE_RATIO = 0.1
"""Share of windows with GPU_UTIL alone above which a profile's busy ratio is coarse."""


def update_book(
    book: ProfileBook | None,
    windows: Sequence[HeldWindows],
    owners: Mapping[PodRef, str],
    pods: Mapping[PodRef, Pod],
    unfit: Sequence[Unfit],
    policy: ProfilePolicy,
) -> ProfileBook:
    """The book with these windows added. They are newer than the book and have one step.

    owners: Pod → Workload.id; a Pod without one is its own workload. pods: present and past Pods. Windows without a Pod
    count for the fleet's usage only.
    """
    windows = split_at_creation([item for item in windows if item.values], pods)
    if not windows:
        if book is None:
            raise ValueError("there are neither windows nor a book, so the end of the book is unknown")
        return book
    watched = book is not None
    if book is None:
        book = ProfileBook(until=windows[0].start, step_seconds=windows[0].step_seconds)
    keys = [_key(item, owners, pods) for item in windows]
    there = {item.pod for item in windows}
    before = [run for profile in book.profiles.values() for run in profile.runs if run.pod in there]
    newest: dict[PodRef, MemoryRun] = {}
    for run in sorted(before, key=lambda run: run.last_seen, reverse=True):
        newest.setdefault(run.pod, run)
    table = tabulate(windows, pods, unfit, newest, policy.start_up_seconds, watched=watched)
    until = max(book.until, _moment(float(table.time.max()) + table.step))
    # A Pod whose owner was unknown until now has no profile of its own any more.
    owned = {f"Pod/{item.pod}" for item, key in zip(windows, keys, strict=True) if key is not None} - {
        key.workload for key in keys if key is not None
    }
    profiles = {
        key: item
        for key, item in book.profiles.items()
        if until - item.last_seen <= timedelta(days=policy.forget_days) and key.workload not in owned
    }
    profiles.update(_profiles(table, keys, profiles, pods, until, policy))
    power = update_power(book.power, table, until, policy)
    return replace(
        book,
        until=until,
        profiles=profiles,
        power=power,
        envelopes={model: found for model, item in power.items() if (found := envelope(model, item)) is not None},
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _key(item: HeldWindows, owners: Mapping[PodRef, str], pods: Mapping[PodRef, Pod]) -> WorkloadKey | None:
    """None where no Pod held the device."""
    if not item.pod:
        return None
    pod = pods.get(item.pod)
    workload = owners.get(item.pod) or (pod.workload if pod is not None else "") or f"Pod/{item.pod}"
    return WorkloadKey(workload, item.container, model_name(item.model), profile_name(item.model, item.mig_profile))


def _profiles(
    table: Table,
    keys: Sequence[WorkloadKey | None],
    old: Mapping[WorkloadKey, WorkloadProfile],
    pods: Mapping[PodRef, Pod],
    until: datetime,
    policy: ProfilePolicy,
) -> dict[WorkloadKey, WorkloadProfile]:
    """The profiles of all workloads in these windows."""
    numbers: dict[WorkloadKey, int] = {}
    for number, key in enumerate(keys):
        begin, end = table.offsets[number], table.offsets[number + 1]
        if key is not None and table.expected[begin:end].any():
            numbers.setdefault(key, len(numbers))
    if not numbers:
        return {}
    found = list(numbers)
    # Rows without a Pod or without any sample get an extra number, which is dropped everywhere.
    owner = table.each([len(found) if key is None else numbers.get(key, len(found)) for key in keys])
    half_life = policy.half_life_hours * 3600
    decay: Floats = np.exp2(-(until.timestamp() - table.time - table.step) / half_life)
    held = table.expected & (owner < len(found))
    measured = held & ~np.isnan(table.busy)
    used = measured & (table.cause == 0)
    cells, resolution = _cells(table, found, old, owner, used, decay, until)
    left_out = _left_out(table, owner, measured & (table.cause != 0), len(found))
    runs = _runs(table, keys, numbers, owner, held, policy.start_up_seconds)
    present, pod_time = _pods_at_once(table, owner, held, decay, len(found))
    days = _days(table, owner, held, len(found))
    seconds = table.step * np.bincount(owner[held], minlength=len(found))
    observed = table.step * np.bincount(owner[used], minlength=len(found))
    is_coarse = used & np.isnan(table.column(Signal.ENGINE_ACTIVE_RATIO))
    coarse = table.step * np.bincount(owner[is_coarse], weights=decay[is_coarse], minlength=len(found))
    asked = _host_requests(table, keys, numbers, pods)
    result = {}
    for number, key in enumerate(found):
        cpu, memory = asked.get(number, (None, None))
        now = WorkloadProfile(
            key=key,
            as_of=until,
            half_life_seconds=half_life,
            runs=tuple(runs[number]),
            run_count=len(runs[number]),
            first_seen=min(item.first_seen for item in runs[number]),
            last_seen=max(item.last_seen for item in runs[number]),
            observed_seconds=float(observed[number]),
            expected_seconds=float(seconds[number]),
            left_out_seconds=left_out[number],
            pods=float(pod_time[number] / present[number]),
            present_seconds=float(present[number]),
            days=days[number],
            coarse_seconds=float(coarse[number]),
            cpu_cores=cpu,
            host_memory_bytes=memory,
        )
        result[key] = _combined(old.get(key), now, cells[number], int(resolution[number]), policy)
    return result


def _fade(profile: WorkloadProfile, until: datetime) -> float:
    """Decay factor of its weights."""
    return float(2.0 ** (-(until - profile.as_of).total_seconds() / profile.half_life_seconds))


def _combined(
    before: WorkloadProfile | None,
    now: WorkloadProfile,
    cells: tuple[Cell, ...],
    resolution: int,
    policy: ProfilePolicy,
) -> WorkloadProfile:
    """Both as one, with the given cells."""
    sides = [now] if before is None else [before, now]
    until = max(item.as_of for item in sides)
    present = [item.present_seconds * _fade(item, until) for item in sides]
    pod_time = sum(item.pods * seconds for item, seconds in zip(sides, present, strict=True))
    runs, joined = _joined_runs([run for item in sides for run in item.runs])
    last = max(run.last_seen for run in runs)
    coarse = sum(item.coarse_seconds * _fade(item, until) for item in sides)
    left_out: defaultdict[str, float] = defaultdict(float)
    for item in sides:
        for name, seconds in item.left_out_seconds.items():
            left_out[name] += seconds
    return replace(
        now,
        as_of=until,
        cells=cells,
        runs=tuple(
            run
            for index, run in enumerate(runs)
            if index >= len(runs) - _MAX_RUNS or run.last_seen >= last - _STILL_THERE
        ),
        run_count=sum(item.run_count for item in sides) - joined,
        first_seen=min(item.first_seen for item in sides),
        last_seen=max(item.last_seen for item in sides),
        observed_seconds=sum(item.observed_seconds for item in sides),
        expected_seconds=sum(item.expected_seconds for item in sides),
        left_out_seconds=dict(left_out),
        gpus_per_pod=max(run.devices for run in runs if run.last_seen == last),
        pods=pod_time / sum(present) if sum(present) > 0 else 1.0,
        present_seconds=sum(present),
        days=_days_combined([item.days for item in sides], until, policy.forget_days),
        resolution=resolution,
        coarse_busy=coarse > _COARSE_RATIO * sum(cell.weight_seconds for cell in cells),
        coarse_seconds=coarse,
        cpu_cores=_newest([(item.as_of, item.cpu_cores) for item in sides]),
        host_memory_bytes=_newest([(item.as_of, item.host_memory_bytes) for item in sides]),
    )


def _newest(told: Sequence[tuple[datetime, float | None]]) -> float | None:
    """The newest known value; the greater of two at the same time."""
    known = [(at, value) for at, value in told if value is not None]
    return max(known)[1] if known else None


def _cells(
    table: Table,
    keys: Sequence[WorkloadKey],
    old: Mapping[WorkloadKey, WorkloadProfile],
    owner: Ints,
    used: Mask,
    decay: Floats,
    until: datetime,
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
        [(number, _fade(before, until), before.cells) for number, before in enumerate(befores) if before is not None]
    )
    resolution = np.array([FINEST if before is None else before.resolution for before in befores], dtype=np.int64)
    rows, resolution = merged(kept.plus(fresh), resolution, MAX_CELLS)
    return cells_of(rows, len(keys)), resolution


def _left_out(table: Table, owner: Ints, rows: Mask, keys: int) -> list[dict[str, float]]:
    found: list[dict[str, float]] = [{} for _ in range(keys)]
    pairs, counts = np.unique(owner[rows] * len(table.causes) + table.cause[rows], return_counts=True)
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        number, cause = divmod(pair, len(table.causes))
        found[number][table.causes[cause]] = float(count * table.step)
    return found


def _runs(
    table: Table,
    keys: Sequence[WorkloadKey | None],
    numbers: Mapping[WorkloadKey, int],
    owner: Ints,
    held: Mask,
    start_up_seconds: float,
) -> list[list[MemoryRun]]:
    """The runs in these windows, by workload."""
    used = table.column(Signal.MEMORY_USED_BYTES)
    rest = np.nan_to_num(table.column(Signal.MEMORY_RESERVED_BYTES))
    capacity = used + rest + table.column(Signal.MEMORY_FREE_BYTES)
    # On a shared device the framebuffer is that of all Pods.
    alone = held & np.array([not item.shared for item in table.windows], dtype=bool)[table.series]
    began = table.run_start[table.series]
    # NaN, a start that was not seen, compares as False.
    early = alone & (table.time < began + start_up_seconds + _AT_START_SECONDS)
    begins = table.offsets[:-1]
    peaks = np.fmax.reduceat(np.where(alone, used, np.nan), begins).tolist()
    starts = np.fmax.reduceat(np.where(early, used, np.nan), begins).tolist()
    sizes = np.fmax.reduceat(np.where(alone, capacity, np.nan), begins).tolist()
    decoded, encoded = (
        np.fmax.reduceat(np.where(alone, table.column(signal), np.nan), begins).tolist()
        for signal in (Signal.DECODER_UTIL_RATIO, Signal.ENCODER_UTIL_RATIO)
    )
    firsts = np.fmin.reduceat(np.where(held, table.time, np.nan), begins).tolist()
    lasts = np.fmax.reduceat(np.where(held, table.time, np.nan), begins).tolist()
    counts = np.add.reduceat(held.astype(np.int64), begins).tolist()
    devices = _devices_at_once(table, owner, held)
    found: list[dict[int, MemoryRun]] = [{} for _ in numbers]
    for index, (item, key) in enumerate(zip(table.windows, keys, strict=True)):
        if key is None or not counts[index]:
            continue
        mine, number = numbers[key], int(table.run[index])
        start = float(table.run_start[index])
        run = MemoryRun(
            pod=item.pod,
            first_seen=_moment(firsts[index]),
            last_seen=_moment(lasts[index] + table.step),
            peak_bytes=_known(peaks[index]),
            at_start_bytes=_known(starts[index]),
            capacity_bytes=_known(sizes[index]),
            device_seconds=float(counts[index] * table.step),
            started=None if np.isnan(start) else _moment(start),
            devices=devices[(mine, number)],
            decoder_peak_ratio=_known(decoded[index]),
            encoder_peak_ratio=_known(encoded[index]),
        )
        runs = found[mine]
        runs[number] = _one_run(runs[number], run) if number in runs else run
    return [list(runs.values()) for runs in found]


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value


def _devices_at_once(table: Table, owner: Ints, held: Mask) -> dict[tuple[int, int], int]:
    """Per workload and run: the most devices that it held in one window."""
    number = table.window[held]
    span, runs = int(number.max(initial=0)) + 1, int(table.run.max(initial=0)) + 1
    mine = owner[held] * runs + table.run[table.series][held]
    pairs, count = np.unique(mine * span + number, return_counts=True)
    who, inverse = np.unique(pairs // span, return_inverse=True)
    most = np.zeros(len(who), dtype=np.int64)
    np.maximum.at(most, inverse, count)
    return {(each // runs, each % runs): many for each, many in zip(who.tolist(), most.tolist(), strict=True)}


def _one_run(one: MemoryRun, other: MemoryRun) -> MemoryRun:
    """The same run, seen on two devices or at two times."""
    return MemoryRun(
        pod=one.pod,
        first_seen=min(one.first_seen, other.first_seen),
        last_seen=max(one.last_seen, other.last_seen),
        peak_bytes=_most(one.peak_bytes, other.peak_bytes),
        at_start_bytes=_most(one.at_start_bytes, other.at_start_bytes),
        capacity_bytes=_most(one.capacity_bytes, other.capacity_bytes),
        device_seconds=one.device_seconds + other.device_seconds,
        started=min((item for item in (one.started, other.started) if item is not None), default=None),
        devices=max(one.devices, other.devices),
        decoder_peak_ratio=_most(one.decoder_peak_ratio, other.decoder_peak_ratio),
        encoder_peak_ratio=_most(one.encoder_peak_ratio, other.encoder_peak_ratio),
    )


def _most(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _joined_runs(runs: Iterable[MemoryRun]) -> tuple[list[MemoryRun], int]:
    """Joins pieces of one run. Returns the runs by when they were last seen, and how many pieces were joined."""
    found: list[MemoryRun] = []
    joined = 0
    newest: dict[PodRef, MemoryRun] = {}
    for run in sorted(runs, key=lambda item: item.first_seen):
        before = newest.get(run.pod)
        if before is None:
            newest[run.pod] = run
        elif run.started is not None and run.started != before.started and before.last_seen <= run.started:
            found.append(before)
            newest[run.pod] = run
        else:
            newest[run.pod] = _one_run(before, run)
            joined += 1
    return sorted([*found, *newest.values()], key=lambda item: (item.last_seen, item.pod)), joined


def _pods_at_once(table: Table, owner: Ints, held: Mask, decay: Floats, keys: int) -> tuple[Floats, Floats]:
    """Per workload: decayed seconds with any Pod; decayed Pod-seconds."""
    pods, pod_of = numbered(item.pod for item in table.windows)
    pod = table.each(pod_of)[held]
    number = table.window[held]
    span = int(number.max(initial=0)) + 1
    mine, weight = owner[held], decay[held] * table.step
    _, first = np.unique((mine * len(pods) + pod) * span + number, return_index=True)
    pod_time = np.bincount(mine[first], weights=weight[first], minlength=keys).astype(np.float64)
    _, any_pod = np.unique(mine * span + number, return_index=True)
    present = np.bincount(mine[any_pod], weights=weight[any_pod], minlength=keys).astype(np.float64)
    return present, pod_time


def _days(table: Table, owner: Ints, held: Mask, keys: int) -> list[tuple[DayUse, ...]]:
    day = np.floor(table.time[held] / 86400).astype(np.int64)
    mine, part = owner[held], table.part[held] * table.step / 3600
    busy = table.busy[held]
    first = int(table.time.min() // 86400)
    span = int(table.time.max() // 86400) - first + 1
    pairs, inverse = np.unique(mine * span + (day - first), return_inverse=True)
    allocated = np.bincount(inverse, weights=part)
    worked = np.bincount(inverse, weights=part * np.nan_to_num(busy))
    unknown = np.bincount(inverse, weights=part * np.isnan(busy))
    found: list[list[DayUse]] = [[] for _ in range(keys)]
    columns = (pairs.tolist(), allocated.tolist(), worked.tolist(), unknown.tolist())
    for pair, hours, work, gap in zip(*columns, strict=True):
        number, offset = divmod(pair, span)
        at = date(1970, 1, 1) + timedelta(days=first + offset)
        found[number].append(DayUse(day=at, allocated_gpu_hours=hours, busy_gpu_hours=work, unknown_gpu_hours=gap))
    return [tuple(each) for each in found]


def _days_combined(sides: Sequence[Sequence[DayUse]], until: datetime, usage_days: int) -> tuple[DayUse, ...]:
    oldest = until.date() - timedelta(days=usage_days)
    days = grouped((each for side in sides for each in side if each.day >= oldest), lambda each: each.day)
    return tuple(
        DayUse(
            day=day,
            allocated_gpu_hours=sum(each.allocated_gpu_hours for each in days[day]),
            busy_gpu_hours=sum(each.busy_gpu_hours for each in days[day]),
            unknown_gpu_hours=sum(each.unknown_gpu_hours for each in days[day]),
        )
        for day in sorted(days)
    )


def _host_requests(
    table: Table, keys: Sequence[WorkloadKey | None], numbers: Mapping[WorkloadKey, int], pods: Mapping[PodRef, Pod]
) -> dict[int, tuple[float | None, float | None]]:
    """Host CPU cores and memory that the newest Pod of each workload requests, where known."""
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
