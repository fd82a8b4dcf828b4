"""The ledger of a period: read from telemetry and the cluster, or kept hour by hour."""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path

import numpy as np

from gpuwatch.account.fleet_cost import rates_of
from gpuwatch.account.gpu_histories import FleetHistory, gpu_histories
from gpuwatch.account.ledger import IDLE_SECONDS, GpuHistory, entries_of, losses_of, past_of
from gpuwatch.account.money import Rates, cost_of
from gpuwatch.act.analysis import analyse
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.app.errors import SourceError
from gpuwatch.app.sizing import price_list
from gpuwatch.app.sources import Opened, own_telemetry, progress, take_snapshot, unreadable
from gpuwatch.facts.catalog.xids import xids as catalog
from gpuwatch.facts.frameworks.keys import LAST_CHECKPOINT, time_in
from gpuwatch.facts.model.decision import Analysis, Snapshot
from gpuwatch.facts.model.ledger import (
    Checkpoint,
    ClusterHistory,
    Group,
    Ledger,
    LedgerEntry,
    LedgerPast,
    Loss,
    Row,
    Worked,
)
from gpuwatch.facts.model.telemetry import Device, Gap, GapKind, PodRef, Schema, Signal, partial_answers
from gpuwatch.facts.model.workload_profile import HeldWindows
from gpuwatch.size.collect import Stretch, StretchReader
from gpuwatch.size.profile.joint_table import THROTTLED
from gpuwatch.sources.collect.collect import Progress
from gpuwatch.sources.store.ledger import KEPT_HOURS, LedgerStore, ledger_file
from gpuwatch.sources.telemetry.cluster_history import cluster_history
from gpuwatch.sources.telemetry.discovery import discover
from gpuwatch.sources.telemetry.gaps import failed
from gpuwatch.sources.telemetry.samples import TelemetryError
from gpuwatch.sources.telemetry.windows import aligned

VERSION = 1
"""Version of the ledger's JSON. Fields may be added; a removal or a change of meaning raises it."""

SIGNALS = (Signal.BUSY_RATIO, Signal.SM_ACTIVE_RATIO, Signal.MEMORY_USED_BYTES)


def read_ledger(opened: Opened, length: timedelta, *, quiet: bool = False) -> Ledger:
    """The ledger of the period `length` up to the moment of the sources; both ends at whole steps.

    What a silence is depends on at most IDLE_SECONDS before it, so that much more is read.
    Raises SourceError without telemetry. A stretch of time that could not be read ends the ledger, with a Gap.
    """
    reader = _reader(opened, quiet=quiet)
    with progress("ledger", quiet=quiet) as told:
        return reader.ledger(reader.until - length, reader.until, told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What one call of `keep_ledger` found: gaps, what GPUs cost now, and teams, as in Ledger."""

    gaps: tuple[Gap, ...] = ()
    rates: Rates = Rates()
    teams: Mapping[str, str] = field(default_factory=dict)


def keep_ledger(opened: Opened, store: LedgerStore, *, quiet: bool = False) -> Kept:
    """Adds the hours since the last call to those that are kept, and replaces the last five of them, which may have
    changed. What `read_ledger` gives for a period is kept, but for what is known later than five hours afterwards.

    The first call reads the days whose detail is kept. A day at a time, so that a long one needs no more memory, and
    that what was read is kept if this process ends. Raises SourceError without telemetry, StoreError.
    """
    snapshot = take_snapshot(opened, quiet=quiet)
    if unread := unreadable(snapshot):
        return Kept(gaps=(unread,))
    reader = _reader(replace(opened, snapshot=snapshot), quiet=quiet)
    # A day may end in an outage, or before telemetry began.
    newest, _ = discover(reader.stretches.telemetry, reader.until)
    idle, gaps = timedelta(seconds=IDLE_SECONDS), list[Gap]()
    known, oldest, past = store.final(), _hour(reader.until - KEPT_HOURS), store.past()
    start = max(known or oldest, oldest)
    if known is not None and known < oldest:
        detail = (
            f"nothing was read between {known:%Y-%m-%d %H:%M} and {oldest:%Y-%m-%d %H:%M} UTC: the last run is longer "
            f"ago than {KEPT_HOURS.days} days. No sum has these hours"
        )
        gaps.append(Gap(kind=GapKind.PARTIAL, what="ledger", detail=detail))
        past = LedgerPast()
    with progress("ledger", quiet=quiet) as told:
        while start < reader.until:
            wanted = min(start + timedelta(days=1) + idle, reader.until)
            span = reader.read(start, wanted, told, past, newest if wanted < reader.until else None)
            final = max(_hour(span.end - idle), start)
            gaps += reader.gaps(span)
            if final > start or span.end == wanted:  # else nothing new was read, and what is kept is better
                _, entries = span.entries(border := final - idle)
                past = span.past if border > span.begin else past
                store.save(start, entries, final, past, span.losses)
            start = final
            if span.end < wanted or wanted == reader.until:
                break
    return Kept(gaps=tuple(dict.fromkeys((*gaps, *store.gaps))), rates=reader.rates, teams=reader.teams)


def kept_ledger(
    opened: Opened, store: LedgerStore, length: timedelta, end: datetime | None = None, kept: Kept = Kept()
) -> Ledger:
    """The ledger of the period `length` up to `end`, or to the moment of the sources, in whole hours, from what is
    kept. Longer than KEPT_HOURS, in whole days, it has teams, GPU models and rows alone, and ends with the last day.

    Hours keep the price that they had; one that had none, or one in another currency, costs what its Node costs now.
    """
    entries = tuple(_priced(_kept(opened, store, length, end), kept.rates))
    return _ledger(opened, entries, _until(opened, end), (*kept.gaps, *store.gaps), store.losses(), kept.teams)


def _until(opened: Opened, end: datetime | None) -> datetime:
    return opened.at if end is None else min(opened.at, _hour(end))


def _kept(opened: Opened, store: LedgerStore, length: timedelta, end: datetime | None) -> Iterator[LedgerEntry]:
    until = _hour(opened.at) + timedelta(hours=1) if end is None else _hour(end)
    start = (end or opened.at) - length
    return store.hours(_hour(start), until) if length <= KEPT_HOURS else store.days(_day(start), until)


def _priced(entries: Iterable[LedgerEntry], rates: Rates) -> Iterator[LedgerEntry]:
    for each in entries:
        if each.cost is None and each.node:
            yield replace(each, cost=cost_of(each.gpu_hours, rates.price(each.gpu_model, node=each.node)))
        else:
            yield each


def _by_day(entries: Iterable[LedgerEntry]) -> tuple[tuple[LedgerEntry, ...], tuple[LedgerEntry, ...]]:
    """The entries with the hours of work summed by day, and all by hour and row. A week of 10,000 GPUs has millions of
    entries, most of them of work; findings ask only for the hours without."""
    found: list[LedgerEntry] = []
    work: dict[_Names, tuple[float, float]] = {}
    hourly: dict[_Names, tuple[float, float]] = {}
    for each in entries:
        last = (each.row, each.unknown, each.cost is None)  # what has no price stays apart
        _add(hourly, (each.hour, "", "", "", "*" if each.namespace else "", "", *last), each)
        if each.row.group is Group.WORKING:
            names = (each.node, each.pool, each.gpu_model, each.namespace, each.workload)
            _add(work, (each.hour.replace(hour=0), *names, *last), each)
        else:
            found.append(each)
    return (*found, *map(_entry, work.items())), tuple(map(_entry, hourly.items()))


_Names = tuple[datetime, str, str, str, str, str, Row, bool, bool]
"""Hour, Node, pool, GPU model, Namespace, workload, row, whether it is the unknown twin, whether it has no price."""


def _add(sums: dict[_Names, tuple[float, float]], names: _Names, entry: LedgerEntry) -> None:
    hours, cost = sums.get(names, (0.0, 0.0))
    sums[names] = hours + entry.gpu_hours, cost + (entry.cost or 0.0)


def _entry(item: tuple[_Names, tuple[float, float]]) -> LedgerEntry:
    (hour, node, pool, model, namespace, workload, row, unknown, unpriced), (hours, cost) = item
    return LedgerEntry(
        hour=hour,
        node=node,
        pool=pool,
        gpu_model=model,
        namespace=namespace,
        workload=workload,
        row=row,
        unknown=unknown,
        gpu_hours=hours,
        cost=None if unpriced else cost,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """What a report tells of: the ledger of its period, and that of the period of the same length before, by team, GPU
    model and row; None where that is not kept.

    hourly: the ledger by hour and row, with '*' for what Pods had. In the ledger itself, work may be summed by day.
    """

    ledger: Ledger
    hourly: tuple[LedgerEntry, ...]
    before: Ledger | None = None


def hours_of(
    opened: Opened, length: timedelta, state: Path | None, *, trend: bool = False, quiet: bool = False
) -> Hours:
    """For the report of the period `length` up to the moment of the sources. state: as in `ledger_of`; of a period
    longer than what is kept in detail all is read. trend: reads the period before too, if it is not kept. Raises
    SourceError, StoreError."""
    if state is not None and length <= KEPT_HOURS:
        store = LedgerStore.open(ledger_file(state), opened.settings.currency)
        return kept_hours(opened, store, length, kept=keep_ledger(opened, store, quiet=quiet))
    reader = _reader(opened, quiet=quiet)
    start, before = reader.until - length, None
    with progress("ledger", quiet=quiet) as told:
        if trend:
            newest, _ = discover(reader.stretches.telemetry, reader.until)
            before = reader.ledger(start - length, start, told, newest)
        ledger = reader.ledger(start, reader.until, told)
    known = before if before and _reaches(before, start - length) else None
    return Hours(ledger=ledger, hourly=ledger.entries, before=known)


def kept_hours(
    opened: Opened, store: LedgerStore, length: timedelta, end: datetime | None = None, kept: Kept = Kept()
) -> Hours:
    """As `hours_of`, from what is kept, for the period up to `end`, or up to the moment of the sources. length: at most
    KEPT_HOURS. The period before is of whole days."""
    start = (end or opened.at) - length
    first, last = _day(start - length), _day(start)
    before = _ledger(opened, tuple(store.days(first, last)), last, ())
    entries, hourly = _by_day(_priced(_kept(opened, store, length, end), kept.rates))
    return Hours(
        ledger=_ledger(opened, entries, _until(opened, end), (*kept.gaps, *store.gaps), store.losses(), kept.teams),
        hourly=hourly,
        before=before if _reaches(before, first) else None,
    )


def _reaches(before: Ledger, start: datetime) -> bool:
    """True if its entries begin within a day of `start`: half a week would read as half the use."""
    return any(each.hour - start <= timedelta(days=1) for each in before.entries)


def _ledger(
    opened: Opened,
    entries: tuple[LedgerEntry, ...],
    end: datetime,
    gaps: Iterable[Gap],
    losses: Iterable[Loss] = (),
    teams: Mapping[str, str] | None = None,
) -> Ledger:
    start = min((each.hour for each in entries), default=end)
    return Ledger(
        version=VERSION,
        start=start,
        end=end,
        source=opened.description,
        currency=opened.settings.currency,
        capacity_gpu_hours=math.fsum(each.gpu_hours for each in entries),
        entries=entries,
        losses=tuple(each for each in losses if start < each.at <= end),
        teams=teams or {},
        gaps=tuple(dict.fromkeys(gaps)),
    )


def ledger_of(
    opened: Opened, length: timedelta, state: Path | None, *, detail: bool = True, quiet: bool = False
) -> Ledger:
    """The ledger of the period `length` up to the moment of the sources: with a state from what is kept beside it,
    after what is new was added; else all of it is read. Raises SourceError, StoreError.

    detail: it has Nodes and workloads, hour by hour; of a long period they are not kept, which raises SourceError.
    """
    if state is None:
        return read_ledger(opened, length, quiet=quiet)
    if detail and length > KEPT_HOURS:
        raise SourceError(
            f"{ledger_file(state)} keeps hours for {KEPT_HOURS.days} days, and after that days by team, model and row "
            f"alone; ask for {KEPT_HOURS.days} days or less (--days {KEPT_HOURS.days}), or by one of these "
            "(--by team, model or row)"
        )
    store = LedgerStore.open(ledger_file(state), opened.settings.currency)
    return kept_ledger(opened, store, length, kept=keep_ledger(opened, store, quiet=quiet))


def _hour(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _day(at: datetime) -> datetime:
    return _hour(at).replace(hour=0)


@dataclass(slots=True)
class _Span:
    """What was read: histories from `begin` on, of which (start, end] counts."""

    fleet: FleetHistory
    start: datetime
    end: datetime
    rates: Rates
    gaps: tuple[Gap, ...]
    past: LedgerPast = field(default_factory=LedgerPast)
    losses: tuple[Loss, ...] = ()

    @property
    def begin(self) -> datetime:
        return self.fleet.start

    def entries(self, border: datetime | None = None) -> tuple[float, tuple[LedgerEntry, ...]]:
        """The capacity and the entries; sets `losses`. border: sets `past` to what is known then."""
        step = self.fleet.step_seconds
        index = self.fleet.place(border) if border is not None else 0

        def noted() -> Iterable[GpuHistory]:
            gpus: dict[str, tuple[str, str]] = {}
            worked: dict[tuple[str, PodRef, str], Worked] = {}
            losses: list[Loss] = []
            for _, of_node in groupby(gpu_histories(self.fleet), key=lambda gpu: gpu.node):
                here = tuple(of_node)
                losses += losses_of(here, self.begin, step, self.start)
                for gpu in here:
                    if index:
                        known = past_of(gpu, index, step)
                        gpus |= known.gpus
                        worked |= known.worked
                    yield gpu
            self.losses = tuple(losses)
            self.past = LedgerPast(gpus=gpus, worked=worked, checkpoints=self.fleet.past.checkpoints)

        return entries_of(noted(), self.begin, step, self.start, lambda model, node: self.rates.price(model, node=node))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """What one moment knows of the fleet, and telemetry to read spans from. until: the newest whole step."""

    opened: Opened
    snapshot: Snapshot
    analysis: Analysis
    stretches: StretchReader
    rates: Rates
    until: datetime

    @property
    def teams(self) -> Mapping[str, str]:
        """As in Ledger, by the labels that Namespaces have now."""
        label = self.opened.settings.team_label
        found = {each.name: each.labels.get(label, "") for each in self.snapshot.cluster.namespaces} if label else {}
        return {name: team for name, team in found.items() if team}

    def read(
        self,
        start: datetime,
        end: datetime,
        told: Progress,
        past: LedgerPast | None = None,
        later: Schema | None = None,
    ) -> _Span:
        """past: what is known of the time before. later: as in StretchReader."""
        past, step = past or LedgerPast(), self.opened.settings.fetch.step_seconds
        past = replace(past, checkpoints=_checkpoints(self.snapshot, past))
        start = aligned(start, step)
        lead = timedelta(seconds=IDLE_SECONDS) + (timedelta() if past.gpus else _UNKNOWN_PAST)
        begin = aligned(start - lead, step)
        read, gaps = _stretches(self.stretches, begin, end, told, later)
        end = max(read[-1].end if read else start, start)
        windows = tuple(each for stretch in read for each in stretch.windows)
        node_of = _nodes(self.snapshot, (device for stretch in read for device in stretch.devices))
        told("ledger: history of Nodes and Pods")
        holders = {(each.pod, each.container) for each in windows if each.pod}
        names = {*node_of.values(), *(node for node, _ in past.gpus.values())}
        telemetry = self.stretches.telemetry
        history, more = cluster_history(telemetry, begin, end, step, names, holders)
        if partial := partial_answers(telemetry.problems):
            # A series that is missing from an answer in part would read as a Node that is gone.
            history = ClusterHistory(start=begin, step_seconds=step)
        fleet = FleetHistory(
            start=begin,
            step_seconds=step,
            count=round((end - begin).total_seconds()) // step,
            windows=windows,
            owners={ref: owner for stretch in read for ref, owner in stretch.owners.items()},
            node_of=node_of,
            cluster=self.snapshot.cluster,
            history=history,
            unfit=[each for stretch in read for each in stretch.unfit if each.cause != THROTTLED],
            findings=self.analysis.findings,
            past=past,
        )
        lacking = (gap for stretch in read for gap in _unattributed(stretch))
        return _Span(fleet, start, end, self.rates, (*gaps, *more, *partial, *lacking))

    def ledger(self, start: datetime, end: datetime, told: Progress, later: Schema | None = None) -> Ledger:
        span = self.read(start, end, told, None, later)
        capacity, entries = span.entries()
        return Ledger(
            version=VERSION,
            start=span.start,
            end=span.end,
            source=self.opened.description,
            currency=self.opened.settings.currency,
            capacity_gpu_hours=capacity,
            entries=entries,
            losses=span.losses,
            teams=self.teams,
            gaps=self.gaps(span),
        )

    def gaps(self, span: _Span) -> tuple[Gap, ...]:
        ours = {f"signal {signal}" for signal in SIGNALS}
        found = (
            # Signals of the rules are not the ledger's.
            *(gap for gap in self.snapshot.gaps if gap.kind is not GapKind.SIGNAL_MISSING),
            *(gap for gap in span.gaps if not gap.what.startswith("signal ") or gap.what in ours),
            *_doubted(self.snapshot),
        )
        return tuple(dict.fromkeys(found))


def _reader(opened: Opened, *, quiet: bool) -> _Reader:
    if opened.store is None:
        given = "a file of `gpuwatch capture` holds one moment" if opened.snapshot else "no telemetry source was given"
        raise SourceError(f"the ledger is made of days, but {given}: use --prometheus URL or --telemetry FILE")
    settings = opened.settings
    step = settings.fetch.step_seconds
    snapshot = take_snapshot(opened, quiet=quiet)
    telemetry, doubted = own_telemetry(opened, opened.store, snapshot)
    analysis = analyse(PlanFacts(snapshot=snapshot), opened.policies)
    live = {pod.ref: pod for pod in snapshot.cluster.pods}
    xids = catalog() if opened.policies.xids is None else opened.policies.xids
    reading = telemetry.reading()
    return _Reader(
        opened=opened,
        snapshot=snapshot,
        analysis=analysis,
        stretches=StretchReader(reading, snapshot.cluster, settings.fetch, step, xids, live, doubted, SIGNALS),
        rates=rates_of(analysis, price_list(settings)),
        until=aligned(opened.at - timedelta(seconds=settings.fetch.settle_seconds), step),
    )


def _stretches(
    reader: StretchReader, begin: datetime, end: datetime, told: Progress, later: Schema | None
) -> tuple[list[Stretch], tuple[Gap, ...]]:
    """What could be read from `begin` on, up to the first stretch that failed or was answered in part."""
    read: list[Stretch] = []
    gaps: list[Gap] = []
    without: list[Gap] = []  # of stretches without a sample
    try:
        for stretch in reader.stretches(begin, end, later):
            partial = partial_answers(reader.telemetry.problems)
            missing = [gap for gap in stretch.gaps if gap.kind is GapKind.SIGNAL_MISSING]
            gaps += (*(gap for gap in stretch.gaps if gap.what != "throttling" and gap not in missing), *partial)
            (gaps if stretch.windows else without).extend(gap for gap in missing if gap.what != "throttling")
            if partial or stretch.end == stretch.start:
                break
            told(f"ledger: {stretch.start:%Y-%m-%d %H:%M} to {stretch.end:%Y-%m-%d %H:%M}")
            read.append(replace(stretch, windows=tuple(map(_compact, stretch.windows))))
    except TelemetryError as error:
        gaps.append(failed("ledger", error))
    if later is None and not any(stretch.windows for stretch in read):
        gaps += without  # else telemetry began later, or was away, and no signal is missing for good
    return read, tuple(gaps)


def _checkpoints(snapshot: Snapshot, past: LedgerPast) -> dict[str, tuple[Checkpoint, ...]]:
    """What annotations of Pods and of their owners say now, behind what they said in the last hours."""
    cluster = snapshot.cluster
    said = {each.id: each.annotations for each in cluster.workloads} | {
        each.ref: each.annotations for each in cluster.pods
    }
    found = {
        name: recent
        for name, before in past.checkpoints.items()
        if (recent := tuple(each for each in before if snapshot.at - each.seen <= _REMEMBERED))
    }
    for name, annotations in said.items():
        if (at := time_in(annotations, LAST_CHECKPOINT)) is not None and at <= snapshot.at:
            before = tuple(each for each in found.get(name, ()) if each.seen < snapshot.at)
            found[name] = (*before, Checkpoint(seen=snapshot.at, at=at))
    return found


_UNKNOWN_PAST = timedelta(days=1)
"""Read in addition where nothing is known of the time before: of a Pod that is gone, only telemetry tells whether it
has ever worked."""
_REMEMBERED = timedelta(days=1)
"""Longer than hours are read again."""


def _compact(windows: HeldWindows) -> HeldWindows:
    """In half of the memory, as a period is longer than a stretch; its shares stay exact, as they are made of these."""
    values = {signal: array("f", np.asarray(each, np.float32).tobytes()) for signal, each in windows.values.items()}
    return replace(windows, values=values)


def _nodes(snapshot: Snapshot, devices: Iterable[Device]) -> dict[str, str]:
    """UUID → Node; the host as telemetry spells it where no Node is known by that."""
    hosts = {device.node_label: device.node for device in snapshot.devices if device.node}
    known = {device.uuid: hosts.get(device.node_label) or device.node_label for device in devices}
    return known | {device.uuid: device.node for device in snapshot.devices if device.node}


def _doubted(snapshot: Snapshot) -> Iterable[Gap]:
    gpus = sorted({item.shown.uuid for item in snapshot.doubted})
    if gpus:
        detail = (
            f"the hours of {len(gpus)} GPUs are left out, as it is not proven that they are of this cluster, such as "
            f"{gpus[0]}: {snapshot.doubted[0].why}"
        )
        yield Gap(kind=GapKind.PARTIAL, what="ledger", detail=detail)


def _unattributed(stretch: Stretch) -> Iterable[Gap]:
    if stretch.devices and not stretch.windows:
        detail = (
            f"no hours between {stretch.start:%Y-%m-%d %H:%M} and {stretch.end:%Y-%m-%d %H:%M} UTC: no sample names a "
            "Pod although Pods have GPUs, so it is not known which GPUs are free; let the exporter name them "
            "(DCGM_EXPORTER_KUBERNETES)"
        )
        yield Gap(kind=GapKind.PARTIAL, what="ledger", detail=detail)
