"""Telemetry as gpuwatch sees it: TelemetrySource turns a store's rows into devices, readings, histories and changes.

Built on the seam `samples.SampleStore` alone, so that a server and a recording answer alike. Every method answers as
of `at`, and says as Gaps what it could not find out; none raises for what a server or an exporter does.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from gpuwatch.model.telemetry import (
    ActivityHistory,
    DeviceId,
    Gap,
    PodRef,
    Readings,
    Schema,
    Signal,
    StateChange,
    WindowStat,
)
from gpuwatch.model.workload_profile import HeldWindows
from gpuwatch.telemetry.activity import histories
from gpuwatch.telemetry.changes import state_changes
from gpuwatch.telemetry.discovery import discover
from gpuwatch.telemetry.gaps import failed
from gpuwatch.telemetry.inventory import Inventory, take_inventory
from gpuwatch.telemetry.owners import JobRun, PastPod, job_runs, pod_owners
from gpuwatch.telemetry.readings import read
from gpuwatch.telemetry.samples import (
    Expression,
    Function,
    Matcher,
    MatchOp,
    SampleStore,
    Selector,
    TelemetryError,
)
from gpuwatch.telemetry.throttling import throttled_shares
from gpuwatch.telemetry.windows import held_windows

__all__ = ["Inventory", "TelemetrySource"]


class TelemetrySource:
    """What is measured here."""

    def __init__(self, store: SampleStore) -> None:
        self._store = store

    def discover(self, at: datetime) -> tuple[Schema, tuple[Gap, ...]]:
        """Vocabularies, signals, labels and sampling interval of the last hour."""
        return discover(self._store, at)

    def inventory(
        self,
        at: datetime,
        schema: Schema,
        lookback_seconds: int = 3600,
        lost_seconds: int = 0,
        exporter_pods: Collection[PodRef] = (),
    ) -> Inventory:
        """Devices and exporters of the look-back, and which of them are there now; with lost_seconds also those of
        this longer time that are gone while others of their machine go on. exporter_pods: Pods that are known not to
        hold a device, whatever telemetry says."""
        return take_inventory(self._store, at, schema, lookback_seconds, lost_seconds, exporter_pods)

    def readings(
        self, stats: Sequence[WindowStat], at: datetime, schema: Schema, inventory: Inventory
    ) -> tuple[Readings, tuple[Gap, ...]]:
        """The stats of every device of the inventory, in SI units."""
        return read(self._store, stats, at, schema, inventory)

    def activity(
        self,
        at: datetime,
        schema: Schema,
        inventory: Inventory,
        *,
        window_seconds: int,
        step_seconds: int,
        bound_ratio: float,
        devices: Collection[DeviceId] | None = None,
    ) -> tuple[tuple[ActivityHistory, ...], tuple[Gap, ...]]:
        """Per device and Pod, which steps of the window were active, silent or unknown."""
        return histories(
            self._store,
            at,
            schema,
            inventory,
            window_seconds=window_seconds,
            step_seconds=step_seconds,
            bound_ratio=bound_ratio,
            devices=devices,
        )

    def changes(
        self, signals: Sequence[Signal], at: datetime, window_seconds: int, schema: Schema, inventory: Inventory
    ) -> tuple[tuple[StateChange, ...], tuple[Gap, ...]]:
        """Transitions of state-like signals within the window."""
        return state_changes(self._store, signals, at, window_seconds, schema, inventory)

    def windows(
        self,
        signals: Sequence[Signal],
        start: datetime,
        end: datetime,
        step_seconds: int,
        schema: Schema,
        inventory: Inventory | None = None,
    ) -> tuple[tuple[HeldWindows, ...], tuple[Gap, ...]]:
        """Means of the signals, window by window, of every device and the container that held it.

        start and end are rounded down to multiples of the step (Unix time). Without an inventory one is taken, of the
        devices that were seen in this time; its `Device.node` is where the node of the answer comes from.
        """
        gaps: tuple[Gap, ...] = ()
        if inventory is None:
            inventory = self.inventory(end, schema, max(round((end - start).total_seconds()), step_seconds))
            gaps = inventory.gaps
        found, more = held_windows(self._store, signals, start, end, step_seconds, schema, inventory)
        return found, (*gaps, *more)

    def throttled(
        self, start: datetime, end: datetime, step_seconds: int, schema: Schema, inventory: Inventory
    ) -> tuple[Mapping[str, array[float]], tuple[Gap, ...]]:
        """GPU (UUID) → share of each of the same windows in which heat or the power supply slowed it."""
        return throttled_shares(self._store, start, end, step_seconds, schema, inventory)

    def pod_owners(
        self, start: datetime, end: datetime, pods: Collection[PodRef]
    ) -> tuple[Mapping[PodRef, PastPod], tuple[Gap, ...]]:
        """What kube-state-metrics said of these Pods in (start, end]: owners, requests, ends for lack of memory."""
        return pod_owners(self._store, start, end, pods)

    def job_runs(self, start: datetime, end: datetime) -> tuple[tuple[JobRun, ...], tuple[Gap, ...]]:
        """Jobs of (start, end]: when they began and completed."""
        return job_runs(self._store, start, end)


def firing(store: SampleStore, names: Sequence[str], at: datetime) -> tuple[tuple[str, ...] | None, tuple[Gap, ...]]:
    """Those of the names that fire now, from the series `ALERTS` that Prometheus writes of its own rules.

    None where the store could not tell. A server that evaluates no rules has no such series, and then none fires.
    """
    selector = Selector("ALERTS", (Matcher("alertstate", MatchOp.EQUAL, "firing"),))
    try:
        rows = store.evaluate(Expression(selector, Function.LAST, by=("alertname",)), at)
    except TelemetryError as error:
        return None, (failed("alerts", error),)
    found = {row.labels.get("alertname", "") for row in rows if row.value > 0}
    return tuple(name for name in names if name in found), ()
