"""TelemetrySource turns a store's rows into devices, readings, histories and changes.

It uses only `samples.SampleStore`, so that a server and a recording give the same answers. Every method answers as of
`at` and returns what is unknown as Gaps; none raises because of a server or an exporter.
"""

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
    def __init__(self, store: SampleStore) -> None:
        self._store = store

    def discover(self, at: datetime) -> tuple[Schema, tuple[Gap, ...]]:
        return discover(self._store, at)

    def inventory(
        self,
        at: datetime,
        schema: Schema,
        lookback_seconds: int = 3600,
        lost_seconds: int = 0,
        exporter_pods: Collection[PodRef] = (),
    ) -> Inventory:
        return take_inventory(self._store, at, schema, lookback_seconds, lost_seconds, exporter_pods)

    def readings(
        self, stats: Sequence[WindowStat], at: datetime, schema: Schema, inventory: Inventory
    ) -> tuple[Readings, tuple[Gap, ...]]:
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
        """As `held_windows`; without an inventory it takes one of the devices of this time."""
        gaps: tuple[Gap, ...] = ()
        if inventory is None:
            inventory = self.inventory(end, schema, max(round((end - start).total_seconds()), step_seconds))
            gaps = inventory.gaps
        found, more = held_windows(self._store, signals, start, end, step_seconds, schema, inventory)
        return found, (*gaps, *more)

    def throttled(
        self, start: datetime, end: datetime, step_seconds: int, schema: Schema, inventory: Inventory
    ) -> tuple[Mapping[str, "array[float]"], tuple[Gap, ...]]:
        return throttled_shares(self._store, start, end, step_seconds, schema, inventory)

    def pod_owners(
        self, start: datetime, end: datetime, pods: Collection[PodRef]
    ) -> tuple[Mapping[PodRef, PastPod], tuple[Gap, ...]]:
        return pod_owners(self._store, start, end, pods)

    def job_runs(self, start: datetime, end: datetime) -> tuple[tuple[JobRun, ...], tuple[Gap, ...]]:
        return job_runs(self._store, start, end)


def firing(store: SampleStore, names: Sequence[str], at: datetime) -> tuple[tuple[str, ...] | None, tuple[Gap, ...]]:
    """The alerts among `names` that fire now, from the series `ALERTS` that Prometheus writes for its rules.

    None where the query failed. A server without rules has no such series, and then none fires.
    """
    selector = Selector("ALERTS", (Matcher("alertstate", MatchOp.EQUAL, "firing"),))
    try:
        rows = store.evaluate(Expression(selector, Function.LAST, by=("alertname",)), at)
    except TelemetryError as error:
        return None, (failed("alerts", error),)
    found = {row.labels.get("alertname", "") for row in rows if row.value > 0}
    return tuple(name for name in names if name in found), ()
