"""Windows of many devices as flat columns, and what may be made of each: the arithmetic of profiles without loops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import numpy.typing as npt

from gpuwatch.catalog.gpus import find_gpu
from gpuwatch.catalog.mig import geometry
from gpuwatch.model.cluster import Pod
from gpuwatch.model.telemetry import PodRef, Signal
from gpuwatch.model.workload_profile import HeldWindows, Unfit
from gpuwatch.profile.joint_cells import Floats, Ints

Mask = npt.NDArray[np.bool_]

AMBIGUOUS, START_UP = "ambiguous", "start_up"


@dataclass(frozen=True, slots=True)
class Table:
    """All windows one after another: those of series i are rows offsets[i] to offsets[i + 1].

    series: of each row. time: the window's start in Unix seconds. seen: any signal was measured. expected: within the
    time in which the series' Pod is known to have held the device. part: what a row counts of its device, so that a
    device in one window counts once however many share it or follow each other within it, times the instance's share
    of compute. cause: index into `causes`, 0 where the window may be used.
    """

    windows: Sequence[HeldWindows]
    step: int
    offsets: Ints
    series: Ints
    time: Floats
    columns: Mapping[Signal, Floats]
    seen: Mask
    expected: Mask
    part: Floats
    cause: Ints
    causes: Sequence[str]
    run_start: Floats  # per series; NaN where the run's start was not seen
    start_up_seconds: float

    def column(self, signal: Signal) -> Floats:
        found = self.columns.get(signal)
        return np.full(len(self.time), np.nan) if found is None else found

    @property
    def busy(self) -> Floats:
        """The best signal of engine activity that each window has."""
        best = self.column(Signal.BUSY_RATIO)
        for signal in (Signal.ENGINE_ACTIVE_RATIO, Signal.GPU_UTIL_RATIO):
            best = np.where(np.isnan(best), self.column(signal), best)
        return best

    @property
    def pcie(self) -> Floats:
        """Both directions; unknown where neither is known."""
        return _sum(self.column(Signal.PCIE_TX_BYTES_PER_SECOND), self.column(Signal.PCIE_RX_BYTES_PER_SECOND))

    def each(self, values: Sequence[int]) -> Ints:
        """One value per series as one per row."""
        return np.asarray(values, dtype=np.int64)[self.series]


@dataclass(slots=True)
class Past:
    """What the book knows already: where it ends, and since when each Pod is known to run."""

    until: float | None = None
    run_starts: Mapping[PodRef, float] = field(default_factory=dict)


def tabulate(
    windows: Sequence[HeldWindows],
    pods: Mapping[PodRef, Pod],
    unfit: Sequence[Unfit],
    past: Past,
    start_up_seconds: float,
) -> Table:
    """The windows as a Table. All have one step."""
    step = windows[0].step_seconds
    lengths = np.array([_length(item) for item in windows], dtype=np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    series = np.repeat(np.arange(len(windows)), lengths)
    starts = np.array([item.start.timestamp() for item in windows])
    time: Floats = starts[series] + (np.arange(len(series)) - offsets[series]).astype(np.float64) * step
    signals = {signal for item in windows for signal in item.values}
    columns = {signal: _column(windows, signal, lengths) for signal in signals}
    seen = np.zeros(len(series), dtype=bool)
    for values in columns.values():
        seen |= ~np.isnan(values)
    expected = np.zeros(len(series), dtype=bool)
    run_start = np.full(len(windows), np.nan)
    for index, item in enumerate(windows):
        begin, end = int(offsets[index]), int(offsets[index + 1])
        measured = np.flatnonzero(seen[begin:end])
        if not item.pod or not len(measured):
            continue
        pod = pods.get(item.pod)
        first, last = int(measured[0]), int(measured[-1])
        known_since = past.run_starts.get(item.pod)
        created = pod.started.timestamp() if pod is not None and pod.started is not None else None
        run_start[index] = _run_start(
            created, known_since, float(time[begin + first]), float(starts[index]), past.until
        )
        # Windows without any sample count as held where the Pod is known to have been there before, or still to be.
        if known_since is not None or (created is not None and created <= starts[index]):
            first = 0
        if pod is not None and pod.phase == "Running" and not pod.deleting:
            last = end - begin - 1
        expected[begin + first : begin + last + 1] = True
    number = np.floor((time - starts.min()) / step).astype(np.int64)
    part = _parts(windows, series, number, seen | expected)
    cause, causes = _causes(windows, offsets, starts, step, unfit)
    young = (time - run_start[series] < start_up_seconds) & (cause == 0)  # NaN compares as False
    causes += [AMBIGUOUS, START_UP]
    cause[young] = len(causes) - 1
    shared = np.array([item.shared for item in windows], dtype=bool)[series]
    cause[shared] = len(causes) - 2
    return Table(
        windows, step, offsets, series, time, columns, seen, expected, part, cause, causes, run_start, start_up_seconds
    )


def _length(item: HeldWindows) -> int:
    return len(next(iter(item.values.values()), ()))


def _column(windows: Sequence[HeldWindows], signal: Signal, lengths: Ints) -> Floats:
    return np.concatenate(
        [
            np.frombuffer(values, dtype=np.float64) if (values := item.values.get(signal)) else np.full(length, np.nan)
            for item, length in zip(windows, lengths.tolist(), strict=True)
        ]
    )


def _run_start(
    created: float | None, known_since: float | None, first_seen: float, chunk_start: float, until: float | None
) -> float:
    """When the Pod began, or NaN: one that was there in the very first window may have run for days."""
    if created is not None:
        return created
    if known_since is not None:
        return known_since
    was_watched = until is not None and until >= chunk_start
    return first_seen if first_seen > chunk_start or was_watched else float("nan")


def _parts(windows: Sequence[HeldWindows], series: Ints, number: Ints, counted: Mask) -> Floats:
    """number: of the window."""
    numbers: dict[str, int] = {}
    device = np.array([numbers.setdefault(item.device, len(numbers)) for item in windows], dtype=np.int64)[series]
    share = np.array([share_ratio(item) for item in windows])[series]
    rows = np.flatnonzero(counted)
    span = int(number.max(initial=0)) + 1
    _, inverse, count = np.unique(device[rows] * span + number[rows], return_inverse=True, return_counts=True)
    part = np.zeros(len(series))
    part[rows] = share[rows] / count[inverse]
    return part


def share_ratio(item: HeldWindows) -> float:
    """The instance's share of its GPU's compute slices; 1 for a whole GPU and a profile that the catalog lacks."""
    gpu = find_gpu(item.model) if item.mig_profile else None
    cut = geometry(gpu.mig_family) if gpu is not None else None
    profile = cut.profile(item.mig_profile) if cut is not None else None
    return cut.compute_ratio(profile) if cut is not None and profile is not None else 1.0


def _causes(
    windows: Sequence[HeldWindows], offsets: Ints, starts: Floats, step: int, unfit: Sequence[Unfit]
) -> tuple[Ints, list[str]]:
    cause = np.zeros(int(offsets[-1]), dtype=np.int64)
    causes = [""]
    of_uuid: dict[str, list[int]] = defaultdict(list)
    for index, item in enumerate(windows):
        of_uuid[item.uuid].append(index)
    for stretch in unfit:
        if stretch.cause not in causes:
            causes.append(stretch.cause)
        for index in of_uuid.get(stretch.device_uuid, ()):
            begin, end = int(offsets[index]), int(offsets[index + 1])
            # Windows (t, t + step] that overlap with (start, end].
            first = max(int(np.floor((_seconds(stretch.start) - starts[index]) / step)), 0)
            last = min(int(np.ceil((_seconds(stretch.end) - starts[index]) / step)), end - begin)
            if first < last:
                rows = cause[begin + first : begin + last]
                rows[rows == 0] = causes.index(stretch.cause)
    return cause, causes


def _seconds(at: datetime) -> float:
    return at.timestamp()


def _sum(one: Floats, other: Floats) -> Floats:
    total = np.nan_to_num(one) + np.nan_to_num(other)
    unknown = np.isnan(one) & np.isnan(other)
    return np.where(unknown, np.nan, total)
