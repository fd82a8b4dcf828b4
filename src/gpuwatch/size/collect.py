"""Updates the profiles with the windows since the last update, in stretches of time that fit into memory. A stretch
that could not be read completely is not counted: the book ends before it, and the next update retries it."""

import contextlib
import gc
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby

from gpuwatch.facts.catalog.xids import Xid
from gpuwatch.facts.catalog.xids import xids as catalog
from gpuwatch.facts.model.bounds import require
from gpuwatch.facts.model.cluster import Cluster, Pod
from gpuwatch.facts.model.telemetry import (
    Device,
    Gap,
    GapKind,
    PodRef,
    Schema,
    Signal,
    Statistic,
    WindowStat,
    partial_answers,
)
from gpuwatch.facts.model.workload_profile import HeldWindows, ProfileBook, Unfit
from gpuwatch.judge.misfit.unfit import CAUSES, degrades, unfit_by_changes
from gpuwatch.size.policy import ProfilePolicy
from gpuwatch.size.profile.joint import update_book
from gpuwatch.size.profile.joint_table import THROTTLED
from gpuwatch.sources.collect.collect import Progress
from gpuwatch.sources.telemetry.changes import state_changes
from gpuwatch.sources.telemetry.discovery import discover
from gpuwatch.sources.telemetry.gaps import failed
from gpuwatch.sources.telemetry.inventory import Inventory, take_inventory
from gpuwatch.sources.telemetry.owners import PastPod, pod_owners
from gpuwatch.sources.telemetry.readings import read_stats
from gpuwatch.sources.telemetry.samples import SampleStore, TelemetryError
from gpuwatch.sources.telemetry.throttling import throttled_shares
from gpuwatch.sources.telemetry.windows import aligned, held_windows

SIGNALS = (
    Signal.BUSY_RATIO,
    Signal.ENGINE_ACTIVE_RATIO,  # where present, BUSY is engine activity, else the coarser utilisation
    Signal.SM_ACTIVE_RATIO,
    Signal.TENSOR_ACTIVE_RATIO,
    Signal.DRAM_ACTIVE_RATIO,
    Signal.POWER_WATTS,
    Signal.MEMORY_USED_BYTES,
    Signal.MEMORY_FREE_BYTES,
    Signal.MEMORY_RESERVED_BYTES,
    Signal.PCIE_TX_BYTES_PER_SECOND,
    Signal.PCIE_RX_BYTES_PER_SECOND,
    Signal.NVLINK_BYTES_PER_SECOND,
    Signal.DECODER_UTIL_RATIO,
    Signal.ENCODER_UTIL_RATIO,
)

_XID = WindowStat(Signal.XID_CODE, Statistic.LAST)
_RECOVERY = WindowStat(Signal.RECOVERY_ACTION_CODE, Statistic.LAST)

THROTTLED_RATIO = 0.05
"""Throttled share of a window above which the window is left out: no more than the rounding of ratios."""
VALUES_AT_ONCE = 4_000_000
"""Windows × signals × devices in memory at the same time; each takes some 40 bytes at the peak, 160 MB in all."""

_FAILURES = frozenset({GapKind.UNREACHABLE, GapKind.REFUSED, GapKind.QUERY_FAILED, GapKind.PARTIAL})
"""Gaps after which a retry may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPolicy:
    """How profiles are read from telemetry.

    step_seconds: length of a window. 300: ten samples of the exporters' usual 30 s, so that one scrape more or less
        does not matter, and phases of minutes stay visible.
    history_seconds: how far back the first update goes, and the longest gap that a later one fills. A week: the period
        of most work; Prometheus keeps two by default.
    settle_seconds: the newest part is left for the next update, since samples may arrive late. 120: two scrapes and a
        remote write.
    degraded_seconds: how long a fatal XID that is still exported makes a GPU's windows unfit. A day: exporters show the
        last XID until the driver is reloaded, even after a repair.
    """

    step_seconds: int = 300
    history_seconds: int = 7 * 86400
    settle_seconds: int = 120
    degraded_seconds: int = 86400

    def __post_init__(self) -> None:
        counts = ("step_seconds", "history_seconds", "degraded_seconds")
        require(self, "fetch.", counts, lambda value: value > 0, "greater than 0")
        require(self, "fetch.", ("settle_seconds",), lambda value: value >= 0, "0 or more")


def update_profiles(
    book: ProfileBook | None,
    telemetry: SampleStore,
    cluster_state: Cluster,
    at: datetime,
    policy: ProfilePolicy,
    progress: Progress = lambda _: None,
    unfit: Sequence[Unfit] = (),
    fetch: FetchPolicy = FetchPolicy(),
    xids: Mapping[int, Xid] | None = None,
    partial: Sequence[Gap] = (),
    doubted: Set[str] = frozenset(),
) -> tuple[ProfileBook, tuple[Gap, ...]]:
    """The book with all whole windows up to `at` less settle_seconds.

    Without a book it begins `history_seconds` before `at`; a book keeps its own step. unfit: times to leave out, from
    the caller's findings; throttling, fatal XIDs and recovery actions are found here. xids: the catalog with the
    operator's overrides. partial: answers in part that `unfit` or `cluster_state` rest on; with any, nothing is read.
    doubted: devices, and instances of targets, whose rows count for nothing. What could not be read, or was answered in
    part, is a Gap, and `until` stays before it. It also stays before the newest windows in which no device of the fleet
    has a sample: samples may be late.
    """
    step = book.step_seconds if book else fetch.step_seconds
    end = aligned(at - timedelta(seconds=fetch.settle_seconds), step)
    earliest = aligned(at - timedelta(seconds=fetch.history_seconds), step)
    gaps: list[Gap] = []
    if book is None:
        book = ProfileBook(until=earliest, step_seconds=step)
    elif book.until < earliest:
        detail = (
            f"nothing was read between {book.until:%Y-%m-%d %H:%M} and {earliest:%Y-%m-%d %H:%M} UTC: the last update "
            "is longer ago than fetch.history_seconds"
        )
        gaps.append(Gap(kind=GapKind.PARTIAL, what="profiles", detail=detail))
        book = replace(book, until=earliest)
    # The telemetry's own: which series are this cluster's may have been found out from answers in part.
    gaps += (partial := (*partial, *partial_answers(telemetry.problems)))
    if partial or book.until >= end:
        return book, tuple(gaps)
    telemetry = telemetry.reading()
    live = {pod.ref: pod for pod in cluster_state.pods}
    reader = StretchReader(telemetry, cluster_state, fetch, step, catalog() if xids is None else xids, live, doubted)
    try:
        for stretch in reader.stretches(book.until, end):
            gaps += (*stretch.gaps, *(partial := partial_answers(telemetry.problems)))
            if partial or stretch.end == stretch.start:
                break
            progress(f"profiles: {stretch.start:%Y-%m-%d %H:%M} to {stretch.end:%Y-%m-%d %H:%M}")
            known = [each for each in unfit if each.start < stretch.end and each.end > stretch.start]
            if stretch.windows:
                # An empty book observed no start of a workload.
                before = book if book.profiles or book.power else None
                found = (*known, *stretch.unfit)
                with _garbage_collector_off():
                    book = update_book(before, stretch.windows, stretch.owners, stretch.pods, found, policy)
            book = replace(book, until=stretch.end)
    except TelemetryError as error:
        gaps.append(failed("profiles", error))
    # Most gaps repeat in every stretch.
    return book, tuple({(gap.kind, gap.what): gap for gap in reversed(gaps)}.values())[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The data of (start, end]. Empty, with end = start, if not all of it could be read. devices: seen in this time."""

    start: datetime
    end: datetime
    gaps: tuple[Gap, ...]
    windows: Sequence[HeldWindows] = ()
    owners: Mapping[PodRef, str] = field(default_factory=dict)
    pods: Mapping[PodRef, Pod] = field(default_factory=dict)
    unfit: Sequence[Unfit] = ()
    devices: Sequence[Device] = ()


@dataclass(frozen=True, slots=True)
class StretchReader:
    """live: the cluster's Pods. doubted: see `update_profiles`. signals: whose windows are read."""

    telemetry: SampleStore
    cluster: Cluster
    fetch: FetchPolicy
    step_seconds: int
    xids: Mapping[int, Xid]
    live: Mapping[PodRef, Pod]
    doubted: Set[str]
    signals: Sequence[Signal] = SIGNALS

    def stretches(self, start: datetime, end: datetime, later: Schema | None = None) -> Iterator[Stretch]:
        """Oldest first; ends after one that could not be read. later: the Schema of a later moment, if the end is
        not the newest one: samples up to it are not late, and are looked for if no exporter is there at the end."""
        schema, gaps = discover(self.telemetry, end)
        if later is not None and not schema.signals and not _failed(gaps):
            schema, gaps = later, ()
        if schema.signals and not _failed(gaps):
            inventory = self._inventory(start, end, schema)
            gaps = inventory.gaps
        if not schema.signals or _failed(gaps):
            yield Stretch(start=start, end=start, gaps=gaps)
            return
        length = self._length(len(inventory.devices))
        begin, before = start, None
        while begin < end:
            until = min(begin + length, end)
            now, gaps = (schema, ()) if until == end else discover(self.telemetry, until)
            joint, more = _joint_schema(before, now)
            if (begin, until) != (start, end):
                inventory = self._inventory(begin, until, joint)
            gaps = (*(gap for gap in gaps if gap.kind in _FAILURES), *more, *inventory.gaps)
            if _failed(gaps):
                yield Stretch(start=begin, end=begin, gaps=gaps)
                return
            yield self._read(begin, until, joint, inventory, gaps, is_newest=until == end and later is None)
            begin, before = until, now

    def _length(self, devices: int) -> timedelta:
        """Whole windows, a day at most, since discovery runs once for each stretch."""
        fitting = VALUES_AT_ONCE // (max(devices, 1) * len(self.signals))
        return timedelta(seconds=self.step_seconds * max(1, min(fitting, 86400 // self.step_seconds)))

    def _inventory(self, start: datetime, end: datetime, schema: Schema) -> Inventory:
        """Devices of this time."""
        seconds = round((end - start).total_seconds())
        return take_inventory(self.telemetry, end, schema, seconds, exporter_pods=self.cluster.exporter_pods)

    def _read(
        self,
        start: datetime,
        end: datetime,
        schema: Schema,
        inventory: Inventory,
        gaps: Iterable[Gap],
        *,
        is_newest: bool,
    ) -> Stretch:
        telemetry, step = self.telemetry, self.step_seconds
        with _garbage_collector_off():
            windows, more = held_windows(telemetry, self.signals, start, end, step, schema, inventory)
        out = self.doubted | {name for name, by in inventory.instances.items() if not self.doubted.isdisjoint(by)}
        gpus = {name.partition("/")[0] for name in out}  # their instances of another MIG layout too
        windows = tuple(each for each in windows if each.uuid not in gpus)
        found = [*gaps, *more]
        if is_newest:
            # Without a sample of any device, late samples are likelier than an outage of the whole fleet.
            end = max((_last_sample(each) for each in windows), default=start)
            windows = tuple(_cut(each, end) for each in windows)
        if _failed(found) or end <= start:
            return Stretch(start=start, end=start, gaps=tuple(found))
        shares, more = throttled_shares(telemetry, start, end, step, schema, inventory)
        found += more
        unfit = [
            Unfit(device_uuid=uuid, start=begin, end=until, cause=THROTTLED)
            for uuid, of_gpu in shares.items()
            for begin, until in _above(of_gpu, THROTTLED_RATIO, start, step)
        ]
        degraded, more = self._degraded(start, end, schema, inventory)
        found += more
        refs = sorted({each.pod for each in windows if each.pod})
        past, more = self._past(refs, start, end)
        found += more
        owners = {ref: self.live[ref].workload for ref in refs if ref in self.live and self.live[ref].workload}
        owners |= _past_owners(past, owners)
        if _failed(found):
            return Stretch(start=start, end=start, gaps=tuple(found))
        return Stretch(
            start=start,
            end=end,
            gaps=tuple(found),
            windows=self._attributed(windows),
            owners=owners,
            pods={ref: self.live[ref] for ref in refs if ref in self.live}
            | {ref: _pod(ref, past[ref], owners.get(ref, "")) for ref in refs if ref in past and ref not in self.live},
            unfit=[*unfit, *degraded],
            devices=inventory.devices,
        )

    def _attributed(self, windows: Sequence[HeldWindows]) -> Sequence[HeldWindows]:
        """The windows; () where no row names a Pod although Pods have GPUs, so that free devices are unknown."""
        if any(each.pod for each in windows):
            return windows
        held = any(pod.phase == "Running" and pod.accelerators for pod in self.cluster.pods)
        return () if held or not self.cluster.known else windows

    def _past(
        self, refs: Sequence[PodRef], start: datetime, end: datetime
    ) -> tuple[Mapping[PodRef, PastPod], tuple[Gap, ...]]:
        """Pods that the cluster no longer has, and live ones of their namespaces. The top owners of the live ones show
        what owns the owner that kube-state-metrics exports (a Notebook above a StatefulSet)."""
        gone = [ref for ref in refs if ref not in self.live or not self.live[ref].workload]
        if not gone:
            return {}, ()
        namespaces = {ref.partition("/")[0] for ref in gone}
        return pod_owners(self.telemetry, start, end, [ref for ref in refs if ref.partition("/")[0] in namespaces])

    def _degraded(
        self, start: datetime, end: datetime, schema: Schema, inventory: Inventory
    ) -> tuple[list[Unfit], tuple[Gap, ...]]:
        """Times in which a GPU had a fatal XID or a recovery action."""
        telemetry = self.telemetry
        now, gaps = read_stats(telemetry, (_XID, _RECOVERY), start, schema, inventory)
        open_since: dict[tuple[str, Signal], datetime] = {}
        fatal = {
            uuid: code for uuid, code in now.values.get(_XID.key, {}).items() if degrades(_XID.signal, code, self.xids)
        }
        if fatal:
            # A day before, the GPU may have had the same XID for another fault.
            recent, more = state_changes(
                telemetry, (_XID.signal,), start, self.fetch.degraded_seconds, schema, inventory
            )
            gaps += more
            open_since |= {(each.device, _XID.signal): start for each in recent if fatal.get(each.device) == each.after}
        for uuid, code in now.values.get(_RECOVERY.key, {}).items():
            if degrades(_RECOVERY.signal, code, self.xids):
                open_since[uuid, _RECOVERY.signal] = start
        seconds = round((end - start).total_seconds())
        changes, more = state_changes(telemetry, tuple(CAUSES), end, seconds, schema, inventory)
        unfit = unfit_by_changes(open_since, changes, end, self.xids)
        # The analysis reports signals that are not exported.
        return unfit, tuple(gap for gap in (*gaps, *more) if gap.kind in _FAILURES)


@contextlib.contextmanager
def _garbage_collector_off() -> Iterator[None]:
    """The collector took a quarter of a large fleet's update, and windows and profiles form no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _failed(gaps: Iterable[Gap]) -> bool:
    return any(gap.kind in _FAILURES for gap in gaps)


def _last_sample(windows: HeldWindows) -> datetime:
    index = len(next(iter(windows.values.values())))
    while index and all(math.isnan(values[index - 1]) for values in windows.values.values()):
        index -= 1
    return windows.start + timedelta(seconds=index * windows.step_seconds)


def _cut(windows: HeldWindows, end: datetime) -> HeldWindows:
    count = round((end - windows.start).total_seconds()) // windows.step_seconds
    if all(len(values) <= count for values in windows.values.values()):
        return windows
    return replace(windows, values={signal: values[:count] for signal, values in windows.values.items()})


def _joint_schema(before: Schema | None, now: Schema) -> tuple[Schema, tuple[Gap, ...]]:
    """The metrics of either schema, without those that changed their unit in between (DCGM 4.6 to 4.7)."""
    if before is None or before.signals == now.signals:
        return now, ()
    signals = {(each.signal, each.vocabulary, each.metric): each for each in before.signals}
    changed: list[str] = []
    for each in now.signals:
        key = (each.signal, each.vocabulary, each.metric)
        if key in signals and signals[key].scale != each.scale:
            changed.append(each.metric)
            del signals[key]
        else:
            signals[key] = each
    gaps = tuple(
        Gap(kind=GapKind.IMPLAUSIBLE, what=f"metric {metric}", detail="it changed its unit in this time; left out")
        for metric in dict.fromkeys(changed)
    )
    together = replace(
        now,
        signals=tuple(signals.values()),
        vocabularies=tuple(dict.fromkeys((*now.vocabularies, *before.vocabularies))),
        node_labels=tuple(dict.fromkeys((*now.node_labels, *before.node_labels))),
        interval_seconds=now.interval_seconds or before.interval_seconds,
    )
    return together, gaps


def _above(shares: Sequence[float], bound: float, start: datetime, step: int) -> Iterator[tuple[datetime, datetime]]:
    for above, part in groupby(range(len(shares)), key=lambda index: shares[index] > bound):
        if above:
            indices = list(part)
            yield start + timedelta(seconds=indices[0] * step), start + timedelta(seconds=(indices[-1] + 1) * step)


def _past_owners(past: Mapping[PodRef, PastPod], live: Mapping[PodRef, str]) -> dict[PodRef, str]:
    """Workloads of Pods that are not in `live`, by the cluster's name for the same owner's live Pods."""
    names: dict[str, set[str]] = {}
    for ref, workload in live.items():
        if ref in past and past[ref].workload:
            names.setdefault(past[ref].workload, set()).add(workload)
    owners: dict[PodRef, str] = {}
    for ref, each in past.items():
        if ref not in live and each.workload:
            known = names.get(each.workload, set())
            owners[ref] = next(iter(known)) if len(known) == 1 else each.workload
    return owners


def _pod(ref: PodRef, past: PastPod, workload: str) -> Pod:
    namespace, _, name = ref.partition("/")
    return Pod(
        namespace=namespace,
        name=name,
        started=past.started,
        cpu_cores=past.cpu_cores or 0.0,
        memory_bytes=round(past.memory_bytes or 0),
        workload=workload,
    )
