"""Each fault that the simulator plants fires exactly its alerts, and quiet days fire none.

Real: the shipped recording rules and the shipped main alert file as they are, run together step by step by Prometheus'
own rule manager with `for` and staleness (`promtool test rules`; see simulated.py), because a server evaluates rules
only as fast as time passes. One test has all three files in a running server, each second, for what needs no wait.

Simulated: the exporters' telemetry, with staleness markers, restarts of Prometheus and scrapes that fail, and
kube-state-metrics' view of the Nodes. Rules run every two minutes on faults and every five in the quiet days, not every
half minute, so a `for` is rounded up to as much.

Alerts on gpuwatch's own metrics are not planted here (alert_cases.py has them); gpuwatch is there and says nothing
more, and none of them fires.
"""

import json
import os
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuwatch.sources.telemetry.series import RecordedSeries
from lab.simulate.behaviour import Behaviour, WorkKind
from lab.simulate.fault_kinds import FaultKind
from lab.simulate.fleet import SimulatedFleet, build_fleet
from lab.simulate.metrics import Metric
from lab.simulate.plan import FleetPlan
from lab.simulate.runs import Place
from lab.simulate.symptoms import Fault
from parts.processes import wait_until
from parts.prometheus_server import ServerBuild, running
from rules.simulated import Fired, fired
from simulate.openmetrics import write_openmetrics

pytestmark = [pytest.mark.prometheus, pytest.mark.slow]

RULES = Path(__file__).resolve().parents[2] / "rules"
FILES = (RULES / "gpuwatch-recording.yaml", RULES / "gpuwatch-alerts.yaml")
FILES_ALL = (*FILES, RULES / "gpuwatch-alerts-optional.yaml")
END = datetime(2026, 3, 4, 12, tzinfo=UTC)
LOOK_MINUTES = 10
QUIET_DAYS = int(os.environ.get("QUIET_DAYS", "3"))

HELD_BACK = "GpuAllocatableBelowCapacity"  # the device plugin withdraws the GPU
UNSEEN = {"GpuExporterDown", "GpuNodeWithoutTelemetry"}

FIRES: dict[FaultKind, set[str]] = {
    FaultKind.FALLEN_OFF_BUS: {"GpuXidFatal", "GpuMissing", HELD_BACK},
    FaultKind.VANISHED: {"GpuMissing", HELD_BACK},
    FaultKind.DOUBLE_BIT: {
        "GpuXidFatal", "GpuUncorrectableEcc", "GpuUncorrectableEccNotReset", "GpuRowRemapPending", HELD_BACK,
    },
    FaultKind.GSP_TIMEOUT: {"GpuXidFatal", HELD_BACK},
    # XIDs 63, 154 and 45 are no proof by themselves.
    FaultKind.ROW_REMAP_PENDING: {"GpuXidNeedsSecondSign", "GpuRowRemapPending"},
    FaultKind.ROW_REMAP_FAILED: {"GpuXidFatal", "GpuRowRemapFailed", HELD_BACK},
    FaultKind.RECOVERY_RESET: {"GpuXidNeedsSecondSign", "GpuRecoveryActionNeeded", HELD_BACK},
    FaultKind.RECOVERY_REBOOT: {"GpuXidNeedsSecondSign", "GpuRecoveryActionNeeded", HELD_BACK},
    FaultKind.PCIE_REPLAYS: {"GpuPcieReplays"},
    FaultKind.NVLINK_ERRORS: {"GpuNvlinkErrors"},
    # The margin to the slowdown temperature (GpuThermalMarginGone) is exported by hand.
    FaultKind.OVERHEATING: {"GpuThermalThrottle"},
    FaultKind.POWER_BRAKE: {"GpuPowerBrake"},
    # Busy with nothing: no exporter has a metric that is wrong by itself. gpuwatch's finding compares several.
    FaultKind.HUNG: set(),
    FaultKind.EXPORTER_DOWN: UNSEEN,
    FaultKind.NODE_GONE: {*UNSEEN, HELD_BACK},
    FaultKind.TELEMETRY_MISSING: UNSEEN,
    FaultKind.APPLICATION_XID: {"GpuXidApplication"},
    FaultKind.TEARDOWN_XID: {"GpuXidNeedsSecondSign"},
    FaultKind.PROCESS_XID: {"GpuXidApplication"},
    # The power cap is normal work.
    FaultKind.POWER_CAP: set(),
    # Counters that start anew are no errors.
    FaultKind.DRIVER_RELOAD: set(),
}  # fmt: skip
"""Of the main file. What more a fault fires by its circumstances: `expected`."""

BY_HAND = {
    "GpuCorrectedEccStorm", "GpuDrainNeeded", "GpuThermalMarginGone", "GpuProfilingMissing", "GpuLowUtilization",
    "GpuCapacityExhausted",
}  # fmt: skip
"""Alerts on what no fault of the simulator does; a test makes what they are about."""

FAILS_WATCH = {
    FaultKind.DOUBLE_BIT,
    FaultKind.ROW_REMAP_FAILED,
    FaultKind.RECOVERY_RESET,
    FaultKind.RECOVERY_REBOOT,
    FaultKind.NVLINK_ERRORS,
}
OF_NODES = {HELD_BACK, *UNSEEN}

Where = tuple[str, int]
"""Node and index of the card; −1: the Node itself."""


def expected(fleet: SimulatedFleet, fault: Fault) -> set[str]:
    """What this fault fires, with what its exporter and its course add."""
    names = set(FIRES[fault.kind])
    if fault.kind in FAILS_WATCH and fleet.machines[fault.machine].has_health_watches:
        names.add("GpuHealthCheckFailed")
    if fault.kind is FaultKind.DOUBLE_BIT and fault.strength > 0.5:
        names.add("GpuXidNeedsSecondSign")  # XID 63 comes after XID 48
    if fault.kind is FaultKind.DRIVER_RELOAD and fault.end - fault.start > 16 * 60:
        names |= UNSEEN  # the exporter is away for longer than a restart takes
    return names


def places(fleet: SimulatedFleet, fault: Fault, name: str) -> set[Where]:
    """Where the alert has to be: each card of the fault, or its Node."""
    nodes = [machine.name for machine in fleet.machines]
    if name not in OF_NODES:
        cards = [(fault.machine, card) for card in fault.cards] + list(fault.others)
        return {(nodes[machine], card) for machine, card in cards}
    return {(nodes[fault.machine], -1)} if fault.machine >= 0 else {(node, -1) for node in nodes}


def place(fleet: SimulatedFleet, alert: Fired) -> Where:
    for machine in fleet.machines:
        for card in machine.cards:
            if alert.labels.get("UUID") == card.uuid:
                return machine.name, card.index
        if alert.labels.get("instance") == machine.exporter_address:
            return machine.name, -1
    return alert.labels.get("node", ""), -1


def planted(kinds: tuple[FaultKind, ...], *, gpus: int, hours: float, end: datetime = END) -> SimulatedFleet:
    plan = FleetPlan(
        seed=3, end=end, gpus=gpus, days=hours / 24, vocabulary="mixed", extended_share=1.0, faults=kinds,
        idle_allocations=0,
    )  # fmt: skip
    fleet = build_fleet(plan)
    assert {fault.kind for fault in fleet.faults} == set(kinds), "a fault found no room"
    return fleet


WHOLE_NODE = (FaultKind.POWER_BRAKE, FaultKind.EXPORTER_DOWN, FaultKind.NODE_GONE, FaultKind.DRIVER_RELOAD)
EVERYWHERE = FaultKind.TELEMETRY_MISSING
SINGLE = tuple(kind for kind in FaultKind if kind not in (*WHOLE_NODE, EVERYWHERE))


def test_the_table_has_every_kind_and_every_alert() -> None:
    assert set(FIRES) == set(FaultKind) == {*WHOLE_NODE, *SINGLE, EVERYWHERE}
    shipped = {rule["alert"] for group in yaml.safe_load(FILES[1].read_text())["groups"] for rule in group["rules"]}
    fires = set().union(*FIRES.values()) | {"GpuHealthCheckFailed"} | BY_HAND
    assert fires == {name for name in shipped if not name.startswith("Gpuwatch")}


@pytest.mark.parametrize(
    ("kinds", "gpus", "hours"),
    [
        # What takes a whole Node first, while there is room.
        pytest.param((*WHOLE_NODE, *SINGLE), 64, 12.0, id="each-on-its-gpu"),
        pytest.param((EVERYWHERE,), 24, 5.0, id="everywhere-at-once"),
    ],
)
def test_each_fault_fires_exactly_its_alerts(
    kinds: tuple[FaultKind, ...], gpus: int, hours: float, newest_prometheus: ServerBuild, tmp_path: Path
) -> None:
    """On its GPUs or its Node and nowhere else, and not before it began or long after it ended."""
    fleet = planted(kinds, gpus=gpus, hours=hours)
    alerts = fired(newest_prometheus, fleet, FILES, tmp_path, step_seconds=120, look_minutes=LOOK_MINUTES)
    seen = {(alert.name, *place(fleet, alert)) for alert in alerts}
    wanted = {
        (name, *where): fault
        for fault in fleet.faults
        for name in expected(fleet, fault)
        for where in places(fleet, fault, name)
    }
    assert seen - wanted.keys() == set(), "fires wrongly"
    assert {one: wanted[one].kind for one in wanted.keys() - seen} == {}, "does not fire"
    for alert in alerts:
        causes = [
            fault
            for fault in fleet.faults
            if alert.name in expected(fleet, fault)
            and place(fleet, alert) in places(fleet, fault, alert.name)
            and fault.start / 60 <= alert.first <= fault.end / 60 + LOOK_MINUTES
        ]
        assert causes, f"{alert} fires at another time than its fault"


def test_what_no_fault_does_fires_when_it_is_set_by_hand(newest_prometheus: ServerBuild, tmp_path: Path) -> None:
    fleet = planted((), gpus=16, hours=4.0)
    end = fleet.plan.seconds
    fleet.scripts[0].cards[2].states["recovery"].append((3600.0, end, 4.0))  # drain it, then reset it
    fleet.scripts[1].cards[5].rates["ecc_sbe"].append((3600.0, end, 0.5))
    alerts = fired(newest_prometheus, fleet, FILES, tmp_path, step_seconds=120, look_minutes=LOOK_MINUTES)
    names = [machine.name for machine in fleet.machines]
    assert {(alert.name, *place(fleet, alert)) for alert in alerts} == {
        ("GpuDrainNeeded", names[0], 2),
        ("GpuCorrectedEccStorm", names[1], 5),
    }
    assert all(alert.first >= 60 for alert in alerts)


MARGIN = Metric(dcgm="DCGM_FI_DEV_GPU_TEMP_LIMIT", dcgm49="DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS", state="margin")


@dataclass(frozen=True)
class CutShort(SimulatedFleet):
    """Exports the margin to the slowdown temperature, and no profiling metrics of machine 1 in the last five hours."""

    def series(self, only: Sequence[Metric] | None = None) -> Iterator[RecordedSeries]:
        last = (self.plan.end.timestamp() - 5 * 3600) * 1000
        unread = {card.uuid for card in self.machines[1].cards}
        for series in chain(super().series(only), super().series([MARGIN])):
            gone = series.metric.startswith("DCGM_FI_PROF_") and series.labels["UUID"] in unread
            kept = (series.times_ms < last) | (not gone)
            yield RecordedSeries(series.metric, series.labels, series.times_ms[kept], series.values[kept])


def test_a_full_fleet_with_a_namespace_that_rests_for_a_day(newest_prometheus: ServerBuild, tmp_path: Path) -> None:
    """Machine 0 works, and one of its cards has no margin left; machine 1 does nothing, then has no profiling metrics;
    a Pod waits for a GPU. Over a day, as low utilization is one of a day."""
    whole = planted((), gpus=16, hours=27.0)
    runs = []
    for machine, (namespace, activity) in zip(
        whole.machines, (("works", WorkKind.TRAINING), ("rests", WorkKind.SILENT)), strict=True
    ):
        workload = whole.scheduler.new_workload("Job", namespace, "train", -7200.0, "registry.example.com/train:1")
        seats = (tuple(Place(machine.index, card.index) for card in machine.cards),)
        works = Behaviour(activity=activity, sm_level=0.8, memory_share=0.5, keeps_context=True)
        runs.append(whole.scheduler.run(workload, seats, -7200.0, float("inf"), works))
        for card in machine.cards:
            whole.scripts[machine.index].cards[card.index].states["margin"].append((0.0, float("inf"), 25.0))
    whole.scripts[0].cards[3].states["margin"].append((36000.0, 43200.0, -3.0))
    fleet = CutShort(
        plan=whole.plan,
        machines=whole.machines,
        runs=runs,
        scripts=whole.scripts,
        faults=(),
        oversized=(),
        scheduler=whole.scheduler,
    )
    waits = 'namespace="works",pod="waits-x"'
    pending = {
        f'kube_pod_status_phase{{{waits},phase="Pending"}}': f"_x1000 1x{fleet.plan.steps}",
        f'kube_pod_container_resource_requests{{{waits},resource="nvidia_com_gpu",container="c"}}': (
            f"1x{fleet.plan.steps}"
        ),
    }
    alerts = fired(newest_prometheus, fleet, FILES, tmp_path, step_seconds=300, look_minutes=LOOK_MINUTES, more=pending)
    nodes = [machine.name for machine in fleet.machines]
    named = {(alert.name, alert.labels.get("namespace", ""), *place(fleet, alert)): alert.first for alert in alerts}
    assert set(named) == {
        ("GpuThermalMarginGone", "", nodes[0], 3),
        ("GpuProfilingMissing", "", nodes[1], -1),
        ("GpuLowUtilization", "rests", "", -1),
        ("GpuCapacityExhausted", "", "", -1),
    }
    after = {name: minutes for (name, *_), minutes in named.items()}
    assert 600 <= after["GpuThermalMarginGone"] <= 630
    assert after["GpuProfilingMissing"] >= 23 * 60
    assert after["GpuLowUtilization"] >= 25 * 60
    assert 1060 <= after["GpuCapacityExhausted"] <= 1090


def test_a_running_server_fires_what_needs_no_wait(prometheus_build: ServerBuild, tmp_path: Path) -> None:
    """A memory row that cannot be remapped: its XID fires at once, the failed remapping waits for its minute."""
    fleet = planted((FaultKind.ROW_REMAP_FAILED,), gpus=16, hours=2.0, end=datetime.now(UTC))
    write_openmetrics(fleet, tmp_path / "fleet.om")
    rules = tmp_path / "rules.yaml"
    groups = [group for file in FILES_ALL for group in yaml.safe_load(file.read_text())["groups"]]
    rules.write_text(yaml.safe_dump({"groups": [group | {"interval": "1s"} for group in groups]}))
    flags = ["--query.lookback-delta=15m"]
    with running(prometheus_build, tmp_path / "fleet.om", rule_files=[rules], flags=flags) as url:

        def active() -> set[tuple[str, str, Where]]:
            return {
                (alert["labels"]["alertname"], alert["state"], place(fleet, Fired(alert["labels"], 0, 0)))
                for alert in told(url, "alerts")["alerts"]
                if not alert["labels"]["alertname"].startswith("Gpuwatch")
            }

        fault = fleet.faults[0]
        card = (fleet.machines[fault.machine].name, fault.cards[0])
        wanted = {("GpuXidFatal", "firing", card), ("GpuRowRemapFailed", "pending", card)}
        wait_until(lambda: active() >= wanted, lambda: f"only {active()}", seconds=30)
        wait_until(lambda: "unknown" not in health(url).values(), lambda: f"not evaluated: {health(url)}", seconds=30)
        assert active() == wanted
        assert {name: state for name, state in health(url).items() if state != "ok"} == {}


def health(url: str) -> dict[tuple[str, str], str]:
    """Whether a rule was evaluated and how that went, by its group and its name with its expression."""
    groups = told(url, "rules")["groups"]
    return {
        (group["name"], f"{rule['name']}: {rule['query']}"): rule["health"]
        for group in groups
        for rule in group["rules"]
    }


def told(url: str, what: str) -> dict[str, Any]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/api/v1/{what}", timeout=60) as answer:
        data: dict[str, Any] = json.load(answer)["data"]
        return data


def test_quiet_days_fire_nothing(newest_prometheus: ServerBuild, tmp_path: Path) -> None:
    """Eight GPUs that train, with jobs that come and go, scrapes that fail and restarts of Prometheus; no fault. A week
    in `make verify`.

    The simulator's notebooks and services with few requests are left out: GpuLowUtilization names their Namespaces,
    rightly, as theirs are busy less than a tenth of the day.
    """
    plan = FleetPlan(
        seed=3, end=END, gpus=8, days=QUIET_DAYS, vocabulary="mixed", extended_share=1.0, faults=(), idle_allocations=0
    )
    whole = build_fleet(plan)
    training = [run for run in whole.runs if run.behaviour.activity is WorkKind.TRAINING]
    assert len(training) > 2 * QUIET_DAYS
    fleet = replace(whole, runs=training)
    assert fired(newest_prometheus, fleet, FILES, tmp_path, step_seconds=300, look_minutes=LOOK_MINUTES) == []
