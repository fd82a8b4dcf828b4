"""What is read from a real Prometheus is the same as from a recording: devices, readings, histories, changes, windows,
throttling and owners."""

import contextlib
import math
from array import array
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from collect.test_collect import NEEDS
from gpuwatch.facts.model.telemetry import Signal, Statistic, WindowStat
from gpuwatch.facts.model.workload_profile import HeldWindows
from gpuwatch.sources.telemetry.activity import histories
from gpuwatch.sources.telemetry.changes import state_changes
from gpuwatch.sources.telemetry.connection import Connection
from gpuwatch.sources.telemetry.discovery import discover
from gpuwatch.sources.telemetry.inventory import take_inventory
from gpuwatch.sources.telemetry.owners import job_runs, pod_owners
from gpuwatch.sources.telemetry.pod_runs import pod_runs
from gpuwatch.sources.telemetry.prometheus import PrometheusStore
from gpuwatch.sources.telemetry.readings import read_stats
from gpuwatch.sources.telemetry.recording import RecordingStore
from gpuwatch.sources.telemetry.throttling import throttled_shares
from gpuwatch.sources.telemetry.windows import held_windows
from parts import remote_write
from parts.prometheus_server import ServerBuild, running
from telemetry.timeline import AT, NOW, Timeline, gpu, held, seen, uuid

HOUR = timedelta(hours=1)
ENGINE, UTIL, POWER, FB = (
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_FB_USED",
)
SIGNALS = (
    Signal.BUSY_RATIO,
    Signal.ENGINE_ACTIVE_RATIO,
    Signal.MEMORY_USED_BYTES,
    Signal.POWER_WATTS,
    Signal.PCIE_TX_BYTES_PER_SECOND,
    Signal.THERMAL_THROTTLE_SECONDS_TOTAL,
)
STATS = (
    WindowStat(Signal.BUSY_RATIO, Statistic.LAST),
    WindowStat(Signal.BUSY_RATIO, Statistic.AVG, 3600),
    WindowStat(Signal.BUSY_RATIO, Statistic.COUNT, 3600),
    WindowStat(Signal.BUSY_RATIO, Statistic.MAX, 900),
    WindowStat(Signal.BUSY_RATIO, Statistic.FRACTION_ABOVE, 3600, 0.5),
    WindowStat(Signal.BUSY_RATIO, Statistic.QUANTILE, 3600, 0.9),
    WindowStat(Signal.MEMORY_USED_BYTES, Statistic.MIN, 3600),
    WindowStat(Signal.POWER_WATTS, Statistic.AVG, 3600),
    WindowStat(Signal.ENERGY_JOULES_TOTAL, Statistic.INCREASE, 1800),
    WindowStat(Signal.XID_CODE, Statistic.CHANGES, 3600),
    WindowStat(Signal.XID_EVENTS_TOTAL, Statistic.APPEARED, 1800),
    WindowStat(Signal.GPU_TEMPERATURE_CELSIUS, Statistic.DISAPPEARED, 3600),
)


def fleet() -> Timeline:
    """Two vocabularies: holders that change within the hour, a gap, one that appears, a shared GPU, MIG, rows per
    process, a GPU that is gone, blank values, throttling, XIDs; and the owners of Pods that are gone."""
    timeline = Timeline()
    own = {"pod": "dcgm-exporter-x1", "namespace": "mon", "container": "exporter"}

    def wave(ago: float) -> float:
        return (ago % 700) / 1000

    timeline.add(ENGINE, gpu(1) | own, 0, ago=3590, until=2700, ends=True)
    timeline.add(ENGINE, gpu(1) | own | held("a"), wave, ago=2690, until=920, ends=True)
    timeline.add(ENGINE, gpu(1) | own | held("b"), 0.4, ago=890)
    timeline.add(FB, gpu(1) | own | held("a"), lambda ago: 1000 + ago, ago=2690, until=920, ends=True)
    timeline.add(FB, gpu(1) | own | held("b"), lambda ago: 2.0**63 if ago < 100 else 700, ago=890)
    timeline.add(POWER, gpu(1) | own | held("b"), lambda ago: 100 + wave(ago) * 100, ago=890)
    timeline.add(POWER, gpu(2) | own | held("s"), lambda ago: 100 + wave(ago) * 100)
    for slot, pod in (("0", "s"), ("1", "t")):
        timeline.add(UTIL, gpu(2, vgpu=slot) | own | held(pod), lambda ago: 60 if ago < 1800 else 0)
    timeline.add(ENGINE, gpu(3) | own | held("c"), 0.5, until=2400).add(ENGINE, gpu(3) | own | held("c"), 0.7, ago=600)
    timeline.add("DCGM_FI_PROF_PCIE_TX_BYTES", gpu(3) | own | held("c"), lambda ago: 1e9 + ago)
    timeline.add(FB, gpu(4) | own, 1000).add(FB, gpu(4) | own | held("d"), 700)
    for number, labels in ((1, held("b")), (2, {}), (5, {})):
        gone = number == 5
        timeline.add("DCGM_FI_DEV_GPU_TEMP", gpu(number) | own | labels, 40, until=900 * gone, ends=gone)
    timeline.add(FB, gpu(5) | own, 500, until=900, ends=True)
    timeline.add("DCGM_FI_DEV_THERMAL_VIOLATION", gpu(3) | own | held("c"), lambda ago: max(0, 1800 - ago) * 4e8)
    reasons = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
    timeline.add(reasons, gpu(1) | own, lambda ago: 0x44 if 600 <= ago < 750 else 0x4, ago=3590)
    timeline.add("DCGM_FI_DEV_XID_ERRORS", gpu(1, err_code="13") | own, 13, until=900, ends=True)
    timeline.add("DCGM_FI_DEV_XID_ERRORS", gpu(1, err_code="79") | own, 79, ago=900)
    timeline.add("DCGM_EXP_XID_ERRORS_TOTAL", gpu(1, xid="79") | own, 1, ago=900)
    timeline.add("DCGM_EXP_XID_ERRORS_TOTAL", gpu(3, xid="31") | own, lambda ago: 1 + (ago < 900) + (ago < 300))
    counting = gpu(2, xid="119", window_size_in_ms="300000") | own
    for ago in (3000, 1500, 600):
        timeline.add("DCGM_EXP_XID_ERRORS_COUNT", counting, 1, ago=ago, until=ago - 300, ends=True)
    timeline.add("up", {"job": "dcgm", "instance": "node-a:9400", "pod": "dcgm-exporter-x1", "namespace": "mon"}, 1)
    newer = {"Hostname": "", "hostname": "node-b", "instance": "node-b:9400"}
    for instance, pod in (("7", "m"), ("8", "")):
        labels = gpu(9, GPU_I_ID=instance, GPU_I_PROFILE="1g.10gb", **newer) | (held(pod) if pod else {})
        timeline.add("DCGM_FI_DEV_BOARD_POWER_WATTS", labels, lambda ago: 200 + ago / 36)
        timeline.add("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", labels, 0.1 if instance == "7" else 0)
        timeline.add("DCGM_FI_DEV_FB_USED_BYTES", labels, 2**30)
        timeline.add("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", labels, lambda ago: 1e6 + (3600 - ago) * 250)
    ksm = {"job": "ksm", "namespace": "team"}
    is_owner = {"owner_is_controller": "true"}
    owner = is_owner | {"owner_kind": "ReplicaSet", "owner_name": "web-1"}
    timeline.add("kube_pod_owner", ksm | {"pod": "a"} | owner, 1, until=920, ends=True)
    parent = is_owner | {"owner_kind": "Deployment", "owner_name": "web"}
    timeline.add("kube_replicaset_owner", ksm | {"replicaset": "web-1"} | parent, 1)
    timeline.add("kube_pod_owner", ksm | {"pod": "b"}, 1)
    for name, phase in (("a", "Failed"), ("b", "Running")):
        of_pod = ksm | {"pod": name, "uid": name}
        until = 920 if name == "a" else 0
        asked = {"resource": "nvidia_com_gpu", "node": "node-a", "container": "main"}
        timeline.add("kube_pod_container_resource_requests", of_pod | asked, 1, until=until, ends=until > 0)
        timeline.add("kube_pod_status_phase", of_pod | {"phase": phase}, 1, until=until, ends=until > 0)
        timeline.add("kube_pod_start_time", of_pod, NOW - 3000, until=until, ends=until > 0)
    timeline.add("kube_job_status_start_time", ksm | {"job_name": "j"}, NOW - 3000)
    timeline.add("kube_job_status_completion_time", ksm | {"job_name": "j"}, NOW - 600, ago=600)
    return timeline


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordingStore:
    return fleet().store(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="module")
def url(prometheus_build: ServerBuild) -> Iterator[str]:
    with running(prometheus_build) as url:
        remote_write.write(url, fleet().for_remote_write())
        yield url


@pytest.fixture(params=[50_000_000, 500])
def store(url: str, request: pytest.FixtureRequest) -> Iterator[PrometheusStore]:
    """Also a server that takes few samples at once: every larger question is divided by host."""
    with contextlib.closing(PrometheusStore(Connection(url=url, max_samples_per_query=request.param))) as store:
        yield store


def test_devices_readings_histories_and_changes(store: PrometheusStore, recorded: RecordingStore) -> None:
    schema, gaps = discover(store, AT)
    expected_schema, expected = seen(recorded)
    assert gaps == ()
    assert schema.signals == expected_schema.signals
    assert schema.vocabularies == ("dcgm", "dcgm49")
    assert schema.node_labels == ("Hostname", "hostname")
    assert schema.pod_labels == "exported_*"
    assert schema.interval_seconds == 30

    inventory = take_inventory(store, AT, schema, 3600)
    assert inventory.devices == expected.devices
    assert inventory.exporters == expected.exporters
    assert inventory.gaps == expected.gaps == ()
    assert {device.id: device.pods for device in inventory.devices} == {
        uuid(1): ("team/b",),
        uuid(2): ("team/s", "team/t"),
        uuid(3): ("team/c",),
        uuid(4): ("team/d",),
        uuid(5): (),
        f"{uuid(9)}/7": ("team/m",),
        f"{uuid(9)}/8": (),
    }
    assert [device.id for device in inventory.devices if not device.present] == [uuid(5)]

    readings, gaps = read_stats(store, STATS, AT, schema, inventory)
    expected_readings, expected_gaps = read_stats(recorded, STATS, AT, expected_schema, expected)
    assert gaps == expected_gaps
    assert readings.promql == expected_readings.promql
    assert readings.variants == expected_readings.variants
    for key, values in expected_readings.values.items():
        # increase() of Prometheus 2.42 does not extrapolate quite as that of 3.
        assert readings.values[key] == pytest.approx(values, rel=0.02 if "increase" in key else 1e-9), key
        assert values, key

    for devices in (None, {uuid(1), f"{uuid(9)}/7"}):
        found, gaps = histories(store, AT, schema, inventory, NEEDS, devices)
        assert gaps == ()
        assert found == histories(recorded, AT, expected_schema, expected, NEEDS, devices)[0]

    states = (Signal.XID_CODE, Signal.XID_WINDOW_COUNT, Signal.XID_EVENTS_TOTAL)
    changes, gaps = state_changes(store, states, AT, 1800, schema, inventory)
    assert gaps == ()
    assert changes == state_changes(recorded, states, AT, 1800, expected_schema, expected)[0]
    assert [(each.variant, each.before, each.after) for each in changes] == [
        ("119", 0, 1),
        ("", 13, 79),
        ("31", 0, 1),
        ("119", 1, 2),
        ("31", 1, 2),
    ]


def assert_same(found: tuple[HeldWindows, ...], expected: tuple[HeldWindows, ...]) -> None:
    assert [replace(each, values={}) for each in found] == [replace(each, values={}) for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.values.keys() == other.values.keys(), (one.device, one.pod)
        for signal, values in other.values.items():
            # increase() of Prometheus 2.42 does not extrapolate quite as that of 3.
            exactness = 0.02 if signal is Signal.THERMAL_THROTTLE_SECONDS_TOTAL else 1e-9
            what = (one.device, one.pod, signal)
            assert one.values[signal] == pytest.approx(values, rel=exactness, nan_ok=True), what


@pytest.mark.parametrize("step", [120, 600])
def test_windows_throttling_and_owners(store: PrometheusStore, recorded: RecordingStore, step: int) -> None:
    schema, inventory = seen(recorded)
    expected, expected_gaps = held_windows(recorded, SIGNALS, AT - HOUR, AT, step, schema, inventory)
    slowed, _ = throttled_shares(recorded, AT - HOUR, AT, step, schema, inventory)
    assert len(expected) == 10
    assert {windows.pod for windows in expected} == {"", *(f"team/{pod}" for pod in "abcdstm")}
    assert any(math.isnan(value) for windows in expected for value in windows.values.get(Signal.BUSY_RATIO, ()))
    assert set(slowed) == {uuid(1), uuid(3)}
    owners = pod_owners(recorded, AT - HOUR, AT, ["team/a", "team/b", "team/z"])
    workloads = {"team/a": "Deployment/team/web", "team/b": "Pod/team/b"}
    assert {pod: past.workload for pod, past in owners[0].items()} == workloads
    runs = pod_runs(recorded, AT, 3600)
    assert [(run.pod, run.phase) for run in runs[0]] == [("team/a", "Failed"), ("team/b", "Running")]

    there = take_inventory(store, AT, schema, 3600)
    found, gaps = held_windows(store, SIGNALS, AT - HOUR, AT, step, schema, there)
    assert_same(found, expected)
    assert gaps == expected_gaps
    shares, gaps = throttled_shares(store, AT - HOUR, AT, step, schema, there)
    assert gaps == ()
    assert shares.keys() == slowed.keys()
    for device, values in slowed.items():
        assert shares[device] == pytest.approx(values, rel=0.02, abs=1e-9, nan_ok=True), device
    assert pod_owners(store, AT - HOUR, AT, ["team/a", "team/b", "team/z"]) == owners
    assert pod_runs(store, AT, 3600) == runs
    assert job_runs(store, AT - HOUR, AT) == job_runs(recorded, AT - HOUR, AT)


def test_an_hour_asked_window_by_window_is_the_hour(store: PrometheusStore) -> None:
    schema, inventory = seen(store)
    signals = (Signal.BUSY_RATIO, Signal.MEMORY_USED_BYTES)
    whole, _ = held_windows(store, signals, AT - HOUR, AT, 300, schema, inventory)
    again, _ = held_windows(store, signals, AT - HOUR, AT, 300, schema, inventory)
    assert [repr(each) for each in again] == [repr(each) for each in whole]
    told: dict[tuple[str, str, Signal, float], float] = {}
    for ago in range(3600, 0, -300):
        start = AT - timedelta(seconds=ago)
        part, _ = held_windows(store, signals, start, start + timedelta(seconds=300), 300, schema, inventory)
        told |= by_window(part)
    # Of a window alone it is not to be told whether rows of a device stand beside those of its processes.
    known = {key: value for key, value in told.items() if key[0] != uuid(4)}
    assert known == {key: value for key, value in by_window(whole).items() if key[0] != uuid(4)}


def by_window(windows: tuple[HeldWindows, ...]) -> dict[tuple[str, str, Signal, float], float]:
    found: dict[tuple[str, str, Signal, float], float] = {}
    for each in windows:
        for signal, values in each.values.items():
            assert isinstance(values, array)
            for index, value in enumerate(values):
                if not math.isnan(value):
                    ago = (AT - each.start).total_seconds() - index * each.step_seconds
                    found[each.device, each.pod, signal, ago] = value
    return found


def test_a_server_that_is_not_there_is_a_gap() -> None:
    store = PrometheusStore(Connection(url="http://127.0.0.1:9", retries=0))
    schema, gaps = discover(store, AT)
    assert [gap.kind for gap in gaps] == ["unreachable"]
    assert schema.signals == ()
    assert take_inventory(store, AT, schema, 3600).devices == ()
