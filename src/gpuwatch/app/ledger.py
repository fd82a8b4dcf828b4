"""The ledger of a period: read from telemetry and the cluster, and nothing stored."""

from array import array
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from gpuwatch.account.fleet_cost import rates_of
from gpuwatch.account.gpu_histories import FleetHistory, gpu_histories
from gpuwatch.account.ledger import IDLE_SECONDS, entries_of
from gpuwatch.act.analysis import analyse
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.app.errors import SourceError
from gpuwatch.app.sizing import price_list
from gpuwatch.app.sources import Opened, own_telemetry, progress, take_snapshot
from gpuwatch.facts.catalog.xids import xids as catalog
from gpuwatch.facts.model.decision import Snapshot
from gpuwatch.facts.model.ledger import ClusterHistory, Ledger
from gpuwatch.facts.model.telemetry import Device, Gap, GapKind, Signal, partial_answers
from gpuwatch.facts.model.workload_profile import HeldWindows
from gpuwatch.size.collect import Stretch, StretchReader
from gpuwatch.size.profile.joint_table import THROTTLED
from gpuwatch.sources.collect.collect import Progress
from gpuwatch.sources.telemetry.cluster_history import cluster_history
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
    if opened.store is None:
        given = "a file of `gpuwatch capture` holds one moment" if opened.snapshot else "no telemetry source was given"
        raise SourceError(f"the ledger is made of days, but {given}: use --prometheus URL or --telemetry FILE")
    settings = opened.settings
    step = settings.fetch.step_seconds
    until = aligned(opened.at - timedelta(seconds=settings.fetch.settle_seconds), step)
    start = aligned(until - length, step)
    begin = aligned(start - timedelta(seconds=IDLE_SECONDS), step)
    snapshot = take_snapshot(opened, quiet=quiet)
    telemetry, doubted = own_telemetry(opened, opened.store, snapshot)
    telemetry = telemetry.reading()
    analysis = analyse(PlanFacts(snapshot=snapshot), opened.policies)
    live = {pod.ref: pod for pod in snapshot.cluster.pods}
    xids = catalog() if opened.policies.xids is None else opened.policies.xids
    reader = StretchReader(telemetry, snapshot.cluster, settings.fetch, step, xids, live, doubted, SIGNALS)
    with progress("ledger", quiet=quiet) as told:
        read, gaps = _stretches(reader, begin, until, told)
        until = max(read[-1].end if read else start, start)
        windows = tuple(each for stretch in read for each in stretch.windows)
        node_of = _nodes(snapshot, (device for stretch in read for device in stretch.devices))
        told("ledger: history of Nodes and Pods")
        holders = {(each.pod, each.container) for each in windows if each.pod}
        history, more = cluster_history(telemetry, begin, until, step, {*node_of.values()}, holders)
        if partial := partial_answers(telemetry.problems):
            # A series that is missing from an answer in part would read as a Node that is gone.
            history = ClusterHistory(start=begin, step_seconds=step)
        gaps += (*more, *partial)
    rates = rates_of(analysis, price_list(settings))
    fleet = FleetHistory(
        start=begin,
        step_seconds=step,
        count=round((until - begin).total_seconds()) // step,
        windows=windows,
        owners={ref: owner for stretch in read for ref, owner in stretch.owners.items()},
        node_of=node_of,
        cluster=snapshot.cluster,
        history=history,
        unfit=[each for stretch in read for each in stretch.unfit if each.cause != THROTTLED],
        findings=analysis.findings,
    )
    capacity, entries = entries_of(
        gpu_histories(fleet), begin, step, start, lambda model, node: rates.price(model, node=node)
    )
    ours = {f"signal {signal}" for signal in SIGNALS}
    found = (
        # Signals of the rules are not the ledger's.
        *(gap for gap in snapshot.gaps if gap.kind is not GapKind.SIGNAL_MISSING),
        *(gap for gap in gaps if not gap.what.startswith("signal ") or gap.what in ours),
        *_doubted(snapshot),
        *(gap for stretch in read for gap in _unattributed(stretch)),
    )
    return Ledger(
        version=VERSION,
        start=start,
        end=until,
        source=opened.description,
        currency=settings.currency,
        capacity_gpu_hours=capacity,
        entries=entries,
        gaps=tuple(dict.fromkeys(found)),
    )


def _stretches(
    reader: StretchReader, begin: datetime, end: datetime, told: Progress
) -> tuple[list[Stretch], tuple[Gap, ...]]:
    """What could be read from `begin` on, up to the first stretch that failed or was answered in part."""
    read: list[Stretch] = []
    gaps: list[Gap] = []
    try:
        for stretch in reader.stretches(begin, end):
            partial = partial_answers(reader.telemetry.problems)
            gaps += (*(gap for gap in stretch.gaps if gap.what != "throttling"), *partial)
            if partial or stretch.end == stretch.start:
                break
            told(f"ledger: {stretch.start:%Y-%m-%d %H:%M} to {stretch.end:%Y-%m-%d %H:%M}")
            read.append(replace(stretch, windows=tuple(map(_compact, stretch.windows))))
    except TelemetryError as error:
        gaps.append(failed("ledger", error))
    return read, tuple(gaps)


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
