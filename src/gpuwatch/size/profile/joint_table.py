"""Windows of many devices as flat columns, and whether profiles may use each: profiles are computed without loops."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gpuwatch.facts.catalog.gpus import gpu_share_ratio
from gpuwatch.facts.model.cluster import Pod
from gpuwatch.facts.model.telemetry import PodRef, Signal
from gpuwatch.facts.model.workload_profile import HeldWindows, MemoryRun, Unfit
from gpuwatch.size.profile.joint_cells import Floats, Ints

Mask = npt.NDArray[np.bool_]

T = TypeVar("T")
AMBIGUOUS, START_UP, THROTTLED = "ambiguous", "start_up", "throttled"


@dataclass(frozen=True, slots=True)
class Table:
    """All windows one after another: those of series i are rows offsets[i] to offsets[i + 1].

    series: of each row. time: the window's start in Unix seconds. seen: any signal was measured. expected: within the
    time in which the series' Pod is known to have held the device. part: what a row counts of its device, so that a
    device in one window counts once however many share it or follow each other within it, times the instance's share
    of its GPU. cause: index into `causes`, 0 where the window may be used.
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
    run: Ints  # per series: the Pod, in one of its lives; -1 where no Pod was seen to hold the device

    @property
    def window(self) -> Ints:
        """The number of each row's window, counted from the first of all."""
        number: Ints = np.rint((self.time - self.time.min()) / self.step).astype(np.int64)
        return number

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
        """Both directions; unknown where either is."""
        return self.column(Signal.PCIE_TX_BYTES_PER_SECOND) + self.column(Signal.PCIE_RX_BYTES_PER_SECOND)

    def each(self, values: Sequence[int] | Ints) -> Ints:
        """One value per series as one per row."""
        return np.asarray(values, dtype=np.int64)[self.series]


def tabulate(
    windows: Sequence[HeldWindows],
    pods: Mapping[PodRef, Pod],
    unfit: Sequence[Unfit],
    newest: Mapping[PodRef, MemoryRun],
    start_up_seconds: float,
    *,
    watched: bool,
) -> Table:
    """The windows, of one step, as a Table. newest: each Pod's newest run. watched: there are earlier windows."""
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
    began = float(starts.min())
    lives: dict[tuple[PodRef, bool], int] = {}
    run = np.full(len(windows), -1, dtype=np.int64)
    for index, item in enumerate(windows):
        begin, end = int(offsets[index]), int(offsets[index + 1])
        measured = np.flatnonzero(seen[begin:end])
        if not item.pod or not len(measured):
            continue
        pod = pods.get(item.pod)
        first, last = int(measured[0]), int(measured[-1])
        made = _created(pod)
        is_current = made is not None and made.timestamp() < float(time[end - 1]) + step
        created = pod.started.timestamp() if pod is not None and pod.started is not None and is_current else None
        before = newest.get(item.pod)
        if before is not None and is_current and made is not None and before.last_seen <= made:
            before = None
        run[index] = lives.setdefault((item.pod, is_current), len(lives))
        run_start[index] = _run_start(created, before, float(time[begin + first]), began, watched=watched)
        # Windows without any sample count as held where the Pod is known to have been there before, or still to be.
        if before is not None or (created is not None and created <= starts[index]):
            first = 0
        if pod is not None and pod.phase == "Running" and not pod.deleting and is_current:
            last = end - begin - 1
        expected[begin + first : begin + last + 1] = True
    run_start = _of_runs(run_start, run, len(lives))
    number = np.rint((time - began) / step).astype(np.int64)
    device = numbered(item.device for item in windows)[1][series] * (int(number.max()) + 1) + number
    # A window without a sample has no holder where another Pod was seen on the device.
    silent = np.flatnonzero(expected & ~seen)
    expected[silent[np.isin(device[silent], device[seen])]] = False
    part = _parts(windows, series, number, device, seen | expected)
    cause, causes = _causes(windows, offsets, starts, step, unfit)
    young = time - run_start[series] < start_up_seconds  # NaN compares as False
    shared = np.array([item.shared for item in windows], dtype=bool)[series]
    causes += [AMBIGUOUS, START_UP]
    # A cause that is there already stays: a degraded device is degraded for all Pods on it.
    cause[shared & (cause == 0)] = len(causes) - 2
    cause[young & (cause == 0)] = len(causes) - 1
    return Table(windows, step, offsets, series, time, columns, seen, expected, part, cause, causes, run_start, run)


def split_at_creation(windows: Sequence[HeldWindows], pods: Mapping[PodRef, Pod]) -> list[HeldWindows]:
    """Splits windows where the present Pod was created: a StatefulSet's next Pod has the same name."""
    found: list[HeldWindows] = []
    for item in windows:
        pod = pods.get(item.pod) if item.pod else None
        made = _created(pod)
        before = 0 if made is None else int((made - item.start).total_seconds() // item.step_seconds)
        if 0 < before < _length(item):
            cut = item.start + timedelta(seconds=before * item.step_seconds)
            found.append(replace(item, values={name: each[:before] for name, each in item.values.items()}))
            found.append(replace(item, start=cut, values={name: each[before:] for name, each in item.values.items()}))
        else:
            found.append(item)
    return found


def _created(pod: Pod | None) -> datetime | None:
    """When this Pod was created. Its samples may be older than its containers, as it holds devices during pulls."""
    return None if pod is None else pod.created or pod.started


def _of_runs(run_start: Floats, run: Ints, runs: int) -> Floats:
    """Start of each run: that of its first device; NaN where any device's start was not seen."""
    start = np.full(runs + 1, np.inf)
    start[runs] = np.nan
    with np.errstate(invalid="ignore"):  # NaN is to stay
        np.minimum.at(start, run[run >= 0], run_start[run >= 0])
    found: Floats = start[np.where(run >= 0, run, runs)]
    return found


def _length(item: HeldWindows) -> int:
    return len(next(iter(item.values.values()), ()))


def _column(windows: Sequence[HeldWindows], signal: Signal, lengths: Ints) -> Floats:
    nothing = {length: np.full(length, np.nan).tobytes() for length in set(lengths.tolist())}
    parts = (item.values.get(signal, nothing[length]) for item, length in zip(windows, lengths.tolist(), strict=True))
    return np.frombuffer(b"".join(parts), dtype=np.float64)


def _run_start(
    created: float | None, before: MemoryRun | None, first_seen: float, began: float, *, watched: bool
) -> float:
    """When the Pod began; NaN for one in the very first window, which may have run for days."""
    if before is not None and before.started is not None:
        return before.started.timestamp()  # the Pod's own start time changes when its containers start or restart
    if created is not None:
        return created
    if before is not None:
        return float("nan")
    return first_seen if first_seen > began or watched else float("nan")


def numbered(values: Iterable[T]) -> tuple[list[T], Ints]:
    """The different values, and each value's index among them."""
    numbers: dict[T, int] = {}
    indices = np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)
    return list(numbers), indices


def _parts(windows: Sequence[HeldWindows], series: Ints, number: Ints, device: Ints, counted: Mask) -> Floats:
    """number: of the window; device: one number for each window of each device."""
    sliced = np.array([bool(item.mig_profile) for item in windows], dtype=bool)[series]
    if sliced.any():
        # A GPU beside its own instances would count twice.
        gpu = numbered(item.uuid for item in windows)[1][series] * (int(number.max()) + 1) + number
        counted = counted & (sliced | ~np.isin(gpu, gpu[sliced & counted]))
    ratios = {key: gpu_share_ratio(*key) for key in {(item.model, item.mig_profile) for item in windows}}
    share = np.array([ratios[item.model, item.mig_profile] for item in windows])[series]
    rows = np.flatnonzero(counted)
    _, inverse, count = np.unique(device[rows], return_inverse=True, return_counts=True)
    part = np.zeros(len(series))
    part[rows] = share[rows] / count[inverse]
    return part


def _causes(
    windows: Sequence[HeldWindows], offsets: Ints, starts: Floats, step: int, unfit: Sequence[Unfit]
) -> tuple[Ints, list[str]]:
    cause = np.zeros(int(offsets[-1]), dtype=np.int64)
    causes = [""]
    of_uuid: dict[str, list[int]] = defaultdict(list)
    for index, item in enumerate(windows):
        of_uuid[item.uuid].append(index)
    # A degraded GPU that is also throttled counts as lost, not as slow.
    for stretch in sorted(unfit, key=lambda item: item.cause == THROTTLED):
        if stretch.cause not in causes:
            causes.append(stretch.cause)
        for index in of_uuid.get(stretch.device_uuid, ()):
            begin, end = int(offsets[index]), int(offsets[index + 1])
            # Windows (t, t + step] that overlap with (start, end].
            first = max(int(np.floor((stretch.start.timestamp() - starts[index]) / step)), 0)
            last = min(int(np.ceil((stretch.end.timestamp() - starts[index]) / step)), end - begin)
            if first < last:
                rows = cause[begin + first : begin + last]
                rows[rows == 0] = causes.index(stretch.cause)
    return cause, causes
