"""Windows: means over aligned windows for every device and container that held it. One range query per metric covers
all devices and holders. A mean is over the samples in which the Pod held the device; NaN where there are none."""

import math
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import numpy as np

from gpuwatch.facts.catalog.metrics import MetricRow, plausible_range, rows_for
from gpuwatch.facts.model.telemetry import Device, DeviceId, Gap, GapKind, Schema, Scope, Signal, SignalFound, Vendor
from gpuwatch.facts.model.workload_profile import HeldWindows
from gpuwatch.sources.telemetry import labels as row_labels
from gpuwatch.sources.telemetry.discovery import by_labels, selector
from gpuwatch.sources.telemetry.gaps import BLANK, Dropped, failed, missing
from gpuwatch.sources.telemetry.inventory import Inventory
from gpuwatch.sources.telemetry.labels import Labels
from gpuwatch.sources.telemetry.questions import found_rows, in_si
from gpuwatch.sources.telemetry.samples import (
    Combine,
    Expression,
    Function,
    Matcher,
    SampleStore,
    Series,
    Steps,
    TelemetryError,
    unix_seconds,
)
from gpuwatch.sources.telemetry.series import BoolArray, FloatArray

PEAKS = {Signal.MEMORY_USED_BYTES: Function.MAX, Signal.MEMORY_FREE_BYTES: Function.MIN}
"""Exceptions to the mean: peak memory decides what fits. Free memory is lowest when used memory peaks, so that the two
still add up to the card's size."""

_HolderKey: TypeAlias = tuple[str, str]
"""Pod and container; both '' for a free device."""
_DeviceKey: TypeAlias = tuple[DeviceId, str]
"""A device and its MIG profile: after a change of the layout another instance may have the same id."""
_FREE = ("", "")


def aligned(moment: datetime, step_seconds: int) -> datetime:
    """The last multiple of the step, in Unix time, at or before the moment."""
    return datetime.fromtimestamp(math.floor(unix_seconds(moment) / step_seconds) * step_seconds, UTC)


def aligned_steps(start: datetime, end: datetime, step_seconds: int) -> Steps:
    """The whole steps between these moments, both `aligned`."""
    begin, until = aligned(start, step_seconds), aligned(end, step_seconds)
    return Steps(begin, step_seconds, round((until - begin).total_seconds()) // step_seconds)


def held_windows(
    store: SampleStore,
    signals: Sequence[Signal],
    start: datetime,
    end: datetime,
    step_seconds: int,
    schema: Schema,
    inventory: Inventory,
) -> tuple[tuple[HeldWindows, ...], tuple[Gap, ...]]:
    """Windows (start + i·step, start + (i+1)·step] of every device and holder, by device and time.

    `start` and `end` are rounded down to multiples of the step in Unix time. Gauges are averaged, MEMORY_USED is the
    window's maximum, MEMORY_FREE its minimum, counters are a rate per second. Of simultaneous rows the greatest counts.
    Raises ValueError for states and codes, which have no mean.

    NaN is a window without a sample of the holder; the windows before its first and after its last sample belong to it
    unless another holder has one there. If another holder came in between, there are two HeldWindows. The HeldWindows
    of a holder that came after the first window begins at least one window earlier. Shared time (two holders, both in
    two consecutive windows; in a single one they may be consecutive) has HeldWindows of its own. Where an exporter
    writes rows per process beside the device's row, a sole holder has the device's value. A PHYSICAL signal of a MIG
    instance comes from its own row, else from other rows of the GPU.

    If no row names a Pod, the holder is the only one of `inventory.devices[].pods`, else none, with a Gap. A signal
    that fails is a Gap and missing in the windows.
    """
    for row in (row for signal in signals for row in rows_for(signal)):
        if row.kind not in ("gauge", "counter"):
            raise ValueError(f"{row.signal} is a {row.kind}, which has no mean over a window; ask for its changes")
    if step_seconds <= 0:
        raise ValueError(f"step_seconds: must be greater than 0, is {step_seconds}")
    steps = aligned_steps(start, end, step_seconds)
    if steps.count <= 0:
        return (), ()
    grid = _Grid(store, inventory, steps)
    gaps: list[Gap] = []
    asked: list[tuple[Signal, list[tuple[MetricRow, SignalFound]]]] = []
    for signal in dict.fromkeys(signals):
        if found := found_rows(signal, schema):
            asked.append((signal, found))
        else:
            gaps.append(missing(signal, schema.vocabularies))
    for index, (signal, found) in enumerate(asked):
        later = {row.metric for _, others in asked[index + 1 :] for row, _ in others}
        grid.read(signal, found, later)
    gaps += grid.gaps()
    if grid.devices and not any(pod for device in grid.devices.values() for pod, _ in device.holders):
        gaps += grid.attribute()
    return tuple(grid.windows()), tuple(gaps)


@dataclass(slots=True)
class _Held:
    """One device. holders: holder → signal → a value per window."""

    uuid: str
    model: str
    holders: dict[_HolderKey, dict[Signal, FloatArray]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _RowTarget:
    device: _DeviceKey
    uuid: str
    holder: _HolderKey
    model: str


@dataclass(slots=True)
class _Grid:
    store: SampleStore
    inventory: Inventory
    steps: Steps
    devices: dict[_DeviceKey, _Held] = field(default_factory=dict)
    _physical: set[Signal] = field(default_factory=set)
    _places: dict[tuple[Vendor, int], tuple[Labels, _RowTarget | None]] = field(default_factory=dict)
    _answers: dict[Expression, Sequence[Series]] = field(default_factory=dict)
    _errors: dict[Signal, TelemetryError] = field(default_factory=dict)
    _dropped: Dropped = field(default_factory=Dropped)

    def read(self, signal: Signal, found: Sequence[tuple[MetricRow, SignalFound]], kept: Collection[str]) -> None:
        """Queries one level of preference after the other. kept: metrics that another signal needs."""
        answered: set[str] = set()
        for preference in sorted({row.preference for row, _ in found}):
            before = frozenset(answered)
            for row, spelling in found:
                only = self._only(row, before) if row.preference == preference else None
                if only is not None:
                    answered |= self._read_row(signal, row, spelling.scale, only, before, kept)

    def _only(self, row: MetricRow, answered: frozenset[str]) -> tuple[Matcher, ...] | None:
        """Matchers for the devices that are left; () for all or many, None where none is left."""
        if not answered and not any(device.vendor is row.vendor for device in self.inventory.devices):
            return ()
        left = [
            device.id
            for device in self.inventory.devices
            if device.vendor is row.vendor and _about(row, device.id, device.uuid) not in answered
        ]
        if not left:
            return None
        return self.inventory.matching(left) if answered else ()

    def _read_row(
        self,
        signal: Signal,
        row: MetricRow,
        scale: float,
        only: tuple[Matcher, ...],
        before: frozenset[str],
        kept: Collection[str],
    ) -> set[str]:
        """Returns the devices, or GPUs for PHYSICAL signals, that this metric has."""
        expression = self._expression(signal, row, only)
        try:
            known = self._answers.pop(expression, None)
            answer = known or self.store.grid(expression, self.steps, self.inventory.partition)
        except TelemetryError as error:
            self._errors.setdefault(signal, error)
            return set()
        if row.metric in kept:
            self._answers[expression] = answer
        if row.scope is Scope.PHYSICAL:
            self._physical.add(signal)
        places = [self._place(series.labels, row.vendor) for series in answer]
        block = np.full((len(answer), self.steps.count), np.nan)
        for index, series in enumerate(answer):
            block[index] = self.steps.values(series)
        values = self._in_si(signal, row, scale, block, places)
        answered: set[str] = set()
        for place, of_place in zip(places, values, strict=True):
            if place is None:
                continue
            about = _about(row, place.device[0], place.uuid)
            if about in before:
                continue
            answered.add(about)
            held = self.devices.get(place.device)
            if held is None:
                held = self.devices[place.device] = _Held(place.uuid, place.model)
            of_holder = held.holders.setdefault(place.holder, {})
            other = of_holder.get(signal)
            of_holder[signal] = of_place if other is None else np.fmax(other, of_place)
        return answered

    def _expression(self, signal: Signal, row: MetricRow, only: tuple[Matcher, ...]) -> Expression:
        partition = self.inventory.partition
        function, window = PEAKS.get(signal, Function.AVG), self.steps.step_seconds
        if row.kind == "counter":
            function, window = Function.INCREASE, rate_window(self.steps.step_seconds, self.inventory.interval_seconds)
        # Sum over tiles, but not over replicas of a shared device or two exporters on one host.
        slots = row_labels.SLOT_LABELS if row.combine in ("sum", "avg") else ()
        described = (*row_labels.LABELS.model, "GPU_I_PROFILE")
        by = by_labels(
            row_labels.IDENTITY_LABELS[row.vendor],
            row_labels.HOLDER_LABELS[row.vendor],
            [name for name in row_labels.LABELS.description[row.vendor] if name in described],
            slots,
            # Parts of a range answer can be merged only if it keeps the partition's label.
            (partition.label,) if partition else (),
        )
        return Expression(selector(row, *only), function, window, combine=Combine(row.combine), by=by)

    def _place(self, labels: Labels, vendor: Vendor) -> _RowTarget | None:
        # Answers about several signals have the same labels; a store may share one object for them.
        key = (vendor, id(labels))
        known = self._places.get(key)
        if known is not None:
            return known[1]
        place = None
        if (identity := row_labels.identity(labels, vendor)) is not None:
            holder = row_labels.holder(labels, vendor, self.inventory.scrape_targets)
            place = _RowTarget(
                (identity.id, identity.profile or ""),
                identity.uuid,
                (holder.pod, holder.container) if holder else _FREE,
                row_labels.first(labels, row_labels.LABELS.model),
            )
        self._places[key] = (labels, place)
        return place

    def _in_si(
        self, signal: Signal, row: MetricRow, scale: float, raw: FloatArray, places: Sequence[_RowTarget | None]
    ) -> FloatArray:
        low, high = plausible_range(signal)
        values = in_si(raw, scale)
        usable = (values >= low) & (values <= high)
        if row.zero_means_absent:
            usable &= raw != 0
            raw = np.where(raw == 0, np.nan, raw)
        unusable = ~usable & ~np.isnan(raw)
        for index in np.flatnonzero(unusable.any(axis=1)).tolist():
            place = places[index]
            if place is not None:
                # The mean of one blank value among a sample per second.
                is_blank = bool((raw[index][unusable[index]] >= BLANK / self.steps.step_seconds).any())
                self._dropped.add(signal, place.device[0], blank=is_blank)
        values[~usable] = np.nan
        if row.kind == "counter":
            values /= rate_window(self.steps.step_seconds, self.inventory.interval_seconds)
        return values

    def attribute(self) -> Iterator[Gap]:
        """Gives devices to the single Pod that holds them in the inventory, with a Gap: a guess."""
        known: Mapping[DeviceId, Device] = {device.id: device for device in self.inventory.devices}
        given = 0
        for (device, _), held in self.devices.items():
            found = known.get(device)
            if found is not None and len(found.pods) == 1:
                holder = (found.pods[0], found.containers[0] if found.containers else "")
                held.holders = {holder: next(iter(held.holders.values()))}
                given += 1
        detail = (
            f"no row from {self.steps.start:%Y-%m-%d %H:%M} on names a Pod: either all GPUs were free, or the exporter "
            "does not name the Pods (dcgm-exporter: DCGM_EXPORTER_KUBERNETES=true and its Pod's access to "
            "/var/lib/kubelet/pod-resources; check also that no relabelling drops the labels)"
        )
        if given:
            detail += f"; the windows of {given} devices are counted for the Pod that holds them now"
        yield Gap(kind=GapKind.SIGNAL_MISSING, what="Pods of devices", detail=detail)

    def gaps(self) -> Iterator[Gap]:
        for signal, error in self._errors.items():
            yield failed(f"windows of {signal}", error)
        yield from self._dropped.gaps()

    def windows(self) -> Iterator[HeldWindows]:
        gpus: dict[str, list[tuple[_DeviceKey, _Held]]] = {}
        for key, held in sorted(self.devices.items()):
            gpus.setdefault(held.uuid, []).append((key, held))
        for uuid, members in gpus.items():
            board = self._board(held for _, held in members)
            for (device, profile), held in members:
                for holder, begin, end, shared, values in _stretches(held, board, bool(self.inventory.per_process)):
                    yield HeldWindows(
                        device=device,
                        uuid=uuid,
                        model=held.model,
                        mig_profile=profile,
                        pod=holder[0],
                        container=holder[1],
                        shared=shared,
                        start=self.steps.start + timedelta(seconds=begin * self.steps.step_seconds),
                        step_seconds=self.steps.step_seconds,
                        values={signal: array("d", each[begin:end].tobytes()) for signal, each in values.items()},
                    )

    def _board(self, members: Iterable[_Held]) -> dict[Signal, FloatArray]:
        """PHYSICAL signals of a GPU, from any of its rows; empty where it has one row."""
        rows = [values for held in members for values in held.holders.values()]
        if len(rows) < 2:
            return {}
        board: dict[Signal, FloatArray] = {}
        for values in rows:
            for signal in self._physical & values.keys():
                board[signal] = np.fmax(board[signal], values[signal]) if signal in board else values[signal]
        return board


def _about(row: MetricRow, device: DeviceId, uuid: str) -> str:
    return uuid if row.scope is Scope.PHYSICAL else device


def rate_window(step_seconds: int, interval_seconds: float) -> int:
    """Seconds of a counter's rate: increase() needs two samples, and only three intervals hold two for certain."""
    return max(step_seconds, math.ceil(3 * interval_seconds))


_Stretch: TypeAlias = tuple[_HolderKey, int, int, bool, Mapping[Signal, FloatArray]]
"""Holder, first window, end (exclusive), shared, values of all windows."""


def _stretches(held: _Held, board: Mapping[Signal, FloatArray], per_process: bool) -> list[_Stretch]:
    if len(held.holders) == 1 and not board:
        (holder, own), *_ = held.holders.items()
        there = {signal: values for signal, values in own.items() if not np.isnan(values).all()}
        return [(holder, 0, next(iter(there.values())).size, False, there)] if there else []
    seen: dict[_HolderKey, BoolArray] = {
        holder: np.logical_not(np.isnan([*values.values()]).all(axis=0)) for holder, values in held.holders.items()
    }
    count = next(iter(seen.values())).size
    none = np.zeros(count, np.bool_)
    pods = [mask for holder, mask in seen.items() if holder != _FREE]
    holders = np.sum(pods, axis=0) if pods else np.zeros(count, np.int64)
    idle = seen.get(_FREE, none)
    shared = _together(pods) if len(pods) > 1 else none
    if count == 1 and len(pods) > 1:
        shared = holders > 1  # a single window does not show consecutive holders
    # Rows of the device beside rows of its processes, not those of a free card before a Pod takes it.
    beside = _together([idle, holders > 0]) if pods and idle.any() else none
    if count == 1:
        beside = idle & (holders > 0) & per_process
    if pods and idle.any():
        seen[_FREE] = idle & (holders == 0)
    taken = np.logical_or.reduce(list(seen.values()))
    of_device = held.holders.get(_FREE, {})
    rows = (*held.holders.values(), board)
    exported = [
        signal
        for signal in dict.fromkeys(signal for values in rows for signal in values)
        if any(signal in values and not np.isnan(values[signal]).all() for values in rows)
    ]
    found: list[_Stretch] = []
    for holder, mask in seen.items():
        if not mask.any():
            continue
        own = held.holders[holder]
        values: dict[Signal, FloatArray] = {}
        for signal in exported:
            each = own.get(signal)
            if each is None:
                each = np.full(count, np.nan)
            if holder != _FREE and signal in of_device:
                sole = beside & (holders == 1)
                each = np.where(sole, np.fmax(each, of_device[signal]), each)
                each = np.where(mask & np.isnan(each), of_device[signal], each)
            if signal in board:
                each = np.where(mask & np.isnan(each), board[signal], each)
            values[signal] = np.where(mask, each, np.nan)
        found.extend((holder, begin, end, flag, values) for begin, end, flag in _runs(mask, shared, taken))
    return sorted(found, key=lambda stretch: (stretch[1], stretch[0]))


def _together(masks: Sequence[BoolArray]) -> BoolArray:
    """Windows in which two masks are true at once, both in this window and in an adjacent one."""
    result = np.zeros(masks[0].size, np.bool_)
    lasting = np.sum([mask[:-1] & mask[1:] for mask in masks], axis=0) > 1
    result[:-1] |= lasting
    result[1:] |= lasting
    return result


def _runs(mask: BoolArray, shared: BoolArray, taken: BoolArray) -> Iterator[tuple[int, int, bool]]:
    """Stretches of a holder's windows (begin, end, shared), cut where `shared` changes or others held the device. A
    stretch includes windows before and after it without a holder, up to the next `taken` one. The first stretch begins
    at least one window early, unless it begins with window 0, to show that the holder came then."""
    there = np.flatnonzero(mask)
    flags = shared[there]
    # Taken windows between two adjacent elements of `there`, exclusive.
    before = np.concatenate(([0], np.cumsum(taken)))
    between = before[there[1:]] - before[there[:-1] + 1]
    cuts = np.flatnonzero((flags[1:] != flags[:-1]) | (between > 0)) + 1
    begin = 0
    for number, part in enumerate(np.split(there, cuts)):
        first, last = int(part[0]), int(part[-1])
        earlier = np.flatnonzero(taken[begin:first])
        if earlier.size:
            begin = min(begin + int(earlier[-1]) + 1, first - 1 if number == 0 else first)
        later = np.flatnonzero(taken[last + 1 :])
        end = last + 1 + int(later[0]) if later.size else taken.size
        yield begin, end, bool(shared[first])
        begin = end
