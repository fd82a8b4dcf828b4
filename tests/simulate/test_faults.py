"""Each kind of fault, planted alone, shows in the series what its Truth promises, and nothing before it."""

from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
import pytest

from gpuwatch.facts.model.decision import FindingKind
from gpuwatch.sources.telemetry.series import is_stale
from lab.planted import Truth
from lab.simulate.fault_kinds import FaultKind
from lab.simulate.fleet import SimulatedFleet, build_fleet
from lab.simulate.physics import HW_POWER_BRAKE, HW_THERMAL, SW_POWER_CAP
from lab.simulate.plan import FleetPlan

END = datetime(2026, 3, 12, 6, tzinfo=UTC)


class Planted:
    """A fleet with one fault, and what was recorded of its first device around the fault."""

    def __init__(self, kind: FaultKind, seed: int = 1) -> None:
        self.fleet = build_fleet(
            FleetPlan(
                seed=seed, end=END, days=3, faults=(kind,), idle_allocations=0, extended_share=1.0, interval_seconds=60
            )
        )
        self.truths = [truth for truth in self.fleet.truth if truth.fault == kind]

    def samples(self, metric: str, device: str, **labels: str) -> tuple[np.ndarray, np.ndarray]:
        """All samples of the device, markers left out, and their times in seconds since the epoch."""
        times, values = [], []
        for series in self.fleet.series():
            wanted = {"UUID": device.partition("/")[0], **labels}
            if series.metric == metric and all(series.labels.get(key) == value for key, value in wanted.items()):
                live = ~is_stale(series.values)
                times.append(series.times_ms[live] / 1000)
                values.append(series.values[live])
        if not times:
            return np.zeros(0), np.zeros(0)
        order = np.argsort(np.concatenate(times), kind="stable")
        return np.concatenate(times)[order], np.concatenate(values)[order]

    def split(self, metric: str, truth: Truth, device: str = "", **labels: str) -> tuple[np.ndarray, np.ndarray]:
        """Values before the fault, and while it lasts."""
        times, values = self.samples(metric, device or truth.devices[0], **labels)
        begin = truth.start.timestamp()
        end = truth.end.timestamp() if truth.end else END.timestamp()
        return values[times < begin], values[(times >= begin + 60) & (times < end)]


HARMLESS = {
    FaultKind.APPLICATION_XID,
    FaultKind.TEARDOWN_XID,
    FaultKind.PROCESS_XID,
    FaultKind.POWER_CAP,
    FaultKind.DRIVER_RELOAD,
}


@pytest.mark.parametrize("kind", list(FaultKind))
def test_every_kind_can_be_planted_and_says_whether_it_harms(kind: FaultKind) -> None:
    planted = Planted(kind)
    assert planted.truths
    for truth in planted.truths:
        assert truth.harmless == (kind in HARMLESS)
        assert planted.fleet.plan.start <= truth.start < END
        assert truth.end is None or truth.start < truth.end <= END
        assert truth.note


def test_a_gpu_falls_off_the_bus_with_xid_79_while_its_siblings_report() -> None:
    planted = Planted(FaultKind.FALLEN_OFF_BUS)
    truth = planted.truths[0]
    assert {truth.kind for truth in planted.truths} == {FindingKind.XID, FindingKind.GPU_MISSING}
    before, during = planted.split("DCGM_FI_DEV_XID_ERRORS", truth)
    assert 79 not in before
    assert set(during) <= {79.0}
    times, _ = planted.samples("DCGM_FI_DEV_GPU_TEMP", truth.devices[0])
    end = truth.end.timestamp() if truth.end else END.timestamp()
    assert not ((times > truth.start.timestamp() + 300) & (times < end)).any()
    machine = next(m for m in planted.fleet.machines if any(c.uuid == truth.devices[0] for c in m.cards))
    sibling = next(card.uuid for card in machine.cards if card.uuid != truth.devices[0])
    times, _ = planted.samples("DCGM_FI_DEV_GPU_TEMP", sibling)
    assert ((times > truth.start.timestamp() + 300) & (times < end - 300)).any()


@pytest.mark.parametrize(
    ("kind", "metric", "holds"),
    [
        (FaultKind.DOUBLE_BIT, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", lambda before, during: during.max() > before.max()),
        (FaultKind.DOUBLE_BIT, "DCGM_FI_DEV_XID_ERRORS", lambda _, during: 48 in during),
        (FaultKind.GSP_TIMEOUT, "DCGM_FI_DEV_XID_ERRORS", lambda before, during: 119 in during and 119 not in before),
        (FaultKind.ROW_REMAP_PENDING, "DCGM_FI_DEV_ROW_REMAP_PENDING", lambda b, d: b.max() == 0 and d.min() == 1),
        (FaultKind.ROW_REMAP_FAILED, "DCGM_FI_DEV_ROW_REMAP_FAILURE", lambda b, d: b.max() == 0 and d.min() == 1),
        (FaultKind.RECOVERY_RESET, "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", lambda b, d: b.max() == 0 and d.min() == 1),
        (FaultKind.RECOVERY_REBOOT, "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", lambda b, d: b.max() == 0 and d.min() == 2),
        # DCGM's bound of a Gen 5 ×16 link is 31 replays a minute.
        (
            FaultKind.PCIE_REPLAYS,
            "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
            lambda b, d: np.diff(d).mean() > 31 > np.diff(b).mean(),
        ),
        (
            FaultKind.NVLINK_ERRORS,
            "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
            lambda b, d: np.diff(d).mean() > 1 > np.diff(b).mean(),
        ),
        (
            FaultKind.OVERHEATING,
            "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
            lambda b, d: (d.astype(int) & HW_THERMAL).any() and not (b.astype(int) & HW_THERMAL).any(),
        ),
        (
            FaultKind.OVERHEATING,
            "DCGM_FI_DEV_THERMAL_VIOLATION",
            lambda b, d: np.diff(b).max() == 0 and d.max() > d.min(),
        ),
        (
            FaultKind.POWER_BRAKE,
            "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
            lambda b, d: (d.astype(int) & HW_POWER_BRAKE).all() and not (b.astype(int) & HW_POWER_BRAKE).any(),
        ),
        (
            FaultKind.POWER_CAP,
            "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
            lambda _, d: ((d.astype(int) & SW_POWER_CAP) > 0).mean() > 0.3 and not (d.astype(int) & 0xE8).any(),
        ),
        (FaultKind.APPLICATION_XID, "DCGM_FI_DEV_XID_ERRORS", lambda _, d: set(d) <= {13.0, 31.0} and len(d) > 0),
        (FaultKind.TEARDOWN_XID, "DCGM_FI_DEV_XID_ERRORS", lambda _, d: set(d) == {45.0}),
        (FaultKind.PROCESS_XID, "DCGM_FI_DEV_XID_ERRORS", lambda _, d: set(d) == {43.0}),
    ],
)  # fmt: skip
def test_a_fault_shows_where_it_should(
    kind: FaultKind, metric: str, holds: Callable[[np.ndarray, np.ndarray], bool]
) -> None:
    planted = Planted(kind)
    assert holds(*planted.split(metric, planted.truths[0]))


def test_a_hung_gpu_is_busy_near_idle_power_and_moves_nothing() -> None:
    planted = Planted(FaultKind.HUNG)
    truth = planted.truths[0]
    _, util = planted.split("DCGM_FI_DEV_GPU_UTIL", truth)
    _, dram = planted.split("DCGM_FI_PROF_DRAM_ACTIVE", truth)
    _, power = planted.split("DCGM_FI_DEV_POWER_USAGE", truth)
    _, limit = planted.split("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", truth)
    assert util.min() >= 95
    assert dram.max() < 0.001
    assert power.max() < 0.45 * limit[0]


def test_an_overheating_card_is_hotter_at_equal_power() -> None:
    planted = Planted(FaultKind.OVERHEATING)
    truth = planted.truths[0]
    hot_before, hot = planted.split("DCGM_FI_DEV_GPU_TEMP", truth)
    before, during = planted.split("DCGM_FI_DEV_POWER_USAGE", truth)
    assert (hot.mean() - 25) / during.mean() > 1.5 * (hot_before.mean() - 25) / before.mean()
    assert hot.max() < 95  # it slows down instead of burning


@pytest.mark.parametrize("kind", [FaultKind.EXPORTER_DOWN, FaultKind.NODE_GONE, FaultKind.TELEMETRY_MISSING])
def test_up_is_zero_while_exporters_are_gone(kind: FaultKind) -> None:
    planted = Planted(kind)
    truth = planted.truths[0]
    begin, end = truth.start.timestamp() + 60, (truth.end or END).timestamp()
    silent = set()
    for series in planted.fleet.series():
        if series.metric == "up":
            times = series.times_ms / 1000
            if (series.values[(times > begin) & (times < end)] == 0).all():
                silent.add(series.labels["instance"])
    wanted = {
        machine.exporter_address
        for machine in planted.fleet.machines
        if kind is FaultKind.TELEMETRY_MISSING or machine.name == truth.subject.name
    }
    assert silent == wanted


def test_a_gone_node_is_not_ready_and_a_gone_exporter_changes_nothing_there() -> None:
    def ready(fleet: SimulatedFleet, truth: Truth) -> str:
        at = truth.start + (min(truth.end or END, END) - truth.start) / 2
        nodes = [item for item in fleet.cluster_objects(at) if item["kind"] == "Node"]
        node = next(item for item in nodes if item["metadata"]["name"] == truth.subject.name)
        return str(next(c["status"] for c in node["status"]["conditions"] if c["type"] == "Ready"))

    gone, exporter = Planted(FaultKind.NODE_GONE), Planted(FaultKind.EXPORTER_DOWN)
    assert ready(gone.fleet, gone.truths[0]) == "Unknown"
    assert ready(exporter.fleet, exporter.truths[0]) == "True"
