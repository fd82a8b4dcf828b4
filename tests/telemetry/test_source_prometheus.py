"""What is read from a real Prometheus is the same as from a recording: devices, readings, histories and changes."""

from pathlib import Path

import pytest

from gpuwatch.facts.model.telemetry import Signal, Statistic, WindowStat
from gpuwatch.sources.telemetry.activity import histories
from gpuwatch.sources.telemetry.changes import state_changes
from gpuwatch.sources.telemetry.connection import Connection
from gpuwatch.sources.telemetry.discovery import discover
from gpuwatch.sources.telemetry.inventory import take_inventory
from gpuwatch.sources.telemetry.prometheus import PrometheusStore
from gpuwatch.sources.telemetry.readings import read_stats
from parts import remote_write
from parts.prometheus_server import ServerBuild, running
from telemetry.timeline import AT, Timeline, gpu, held, uuid

ENGINE, UTIL, TEMPERATURE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_TEMP"
HOUR = 3600


def fleet() -> Timeline:
    """Two hosts of two vocabularies: Pods that come and go, a shared GPU, MIG, a GPU that is gone, an XID."""
    timeline = Timeline()
    own = {"pod": "dcgm-exporter-x1", "namespace": "mon", "container": "exporter"}
    for number in (1, 2, 3):
        labels = gpu(number) | own | (held("b") if number == 1 else {})
        timeline.add(TEMPERATURE, labels, 40 + number, ends=number == 3, until=900 if number == 3 else 0)
        timeline.add("DCGM_FI_DEV_FB_USED", labels, 1000 * number)
    timeline.add(ENGINE, gpu(1) | own, 0, until=2700, ends=True)
    timeline.add(ENGINE, gpu(1) | own | held("a"), 0.8, ago=2700, until=900, ends=True)
    timeline.add(ENGINE, gpu(1) | own | held("b"), 0.4, ago=900)
    for slot, pod in (("0", "s"), ("1", "t")):
        timeline.add(UTIL, gpu(2, vgpu=slot) | own | held(pod), lambda ago: 60 if ago < 1800 else 0)
    timeline.add("DCGM_FI_DEV_XID_ERRORS", gpu(1, err_code="13") | own, 13, until=900, ends=True)
    timeline.add("DCGM_FI_DEV_XID_ERRORS", gpu(1, err_code="79") | own, 79, ago=900)
    timeline.add("DCGM_EXP_XID_ERRORS_TOTAL", gpu(1, xid="79") | own, 1, ago=900)
    counting = gpu(2, xid="119", window_size_in_ms="300000") | own
    for ago in (3000, 1500, 600):
        timeline.add("DCGM_EXP_XID_ERRORS_COUNT", counting, 1, ago=ago, until=ago - 300, ends=True)
    timeline.add("up", {"job": "dcgm", "instance": "node-a:9400", "pod": "dcgm-exporter-x1", "namespace": "mon"}, 1)
    newer = {"Hostname": "", "hostname": "node-b", "instance": "node-b:9400"}
    for instance in ("7", "8"):
        labels = gpu(9, GPU_I_ID=instance, GPU_I_PROFILE="1g.10gb", **newer)
        timeline.add("DCGM_FI_DEV_BOARD_POWER_WATTS", labels, lambda ago: 200 + ago / 36)
        timeline.add("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", labels, 0.1 if instance == "7" else 0)
        timeline.add("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", labels, lambda ago: 1e6 + (HOUR - ago) * 250)
    return timeline


STATS = (
    WindowStat(Signal.BUSY_RATIO, Statistic.LAST),
    WindowStat(Signal.BUSY_RATIO, Statistic.AVG, HOUR),
    WindowStat(Signal.BUSY_RATIO, Statistic.COUNT, HOUR),
    WindowStat(Signal.BUSY_RATIO, Statistic.MAX, 900),
    WindowStat(Signal.BUSY_RATIO, Statistic.FRACTION_ABOVE, HOUR, 0.5),
    WindowStat(Signal.BUSY_RATIO, Statistic.QUANTILE, HOUR, 0.9),
    WindowStat(Signal.MEMORY_USED_BYTES, Statistic.MIN, HOUR),
    WindowStat(Signal.POWER_WATTS, Statistic.AVG, HOUR),
    WindowStat(Signal.ENERGY_JOULES_TOTAL, Statistic.INCREASE, 1800),
    WindowStat(Signal.XID_CODE, Statistic.CHANGES, HOUR),
    WindowStat(Signal.XID_EVENTS_TOTAL, Statistic.APPEARED, 1800),
    WindowStat(Signal.GPU_TEMPERATURE_CELSIUS, Statistic.DISAPPEARED, HOUR),
)


def test_a_server_and_a_recording_tell_the_same(prometheus_build: ServerBuild, tmp_path: Path) -> None:
    timeline = fleet()
    recorded = timeline.store(tmp_path)
    with running(prometheus_build) as url:
        remote_write.write(url, timeline.for_remote_write())
        # A server that takes few samples at once: every larger question is divided by host.
        for most in (50_000_000, 1000):
            store = PrometheusStore(Connection(url=url, max_samples_per_query=most))
            schema, gaps = discover(store, AT)
            expected_schema, _ = discover(recorded, AT)
            assert gaps == ()
            assert schema.signals == expected_schema.signals
            assert schema.vocabularies == ("dcgm", "dcgm49")
            assert schema.node_labels == ("Hostname", "hostname")
            assert schema.pod_labels == "exported_*"
            assert schema.interval_seconds == 30

            inventory = take_inventory(store, AT, schema, 3600)
            expected = take_inventory(recorded, AT, expected_schema, 3600)
            assert inventory.devices == expected.devices
            assert inventory.exporters == expected.exporters
            assert inventory.gaps == expected.gaps == ()
            assert {device.id: device.pods for device in inventory.devices} == {
                uuid(1): ("team/b",),
                uuid(2): ("team/s", "team/t"),
                uuid(3): (),
                f"{uuid(9)}/7": (),
                f"{uuid(9)}/8": (),
            }

            readings, gaps = read_stats(store, STATS, AT, schema, inventory)
            expected_readings, _ = read_stats(recorded, STATS, AT, expected_schema, expected)
            assert gaps == ()
            assert readings.promql == expected_readings.promql
            assert readings.variants == expected_readings.variants
            for key, values in expected_readings.values.items():
                # increase() of Prometheus 2.42 does not extrapolate quite as that of 3.
                exactness = 0.02 if "increase" in key else 1e-9
                assert readings.values[key] == pytest.approx(values, rel=exactness), key

            for devices in (None, {uuid(1), f"{uuid(9)}/7"}):
                options = {"window_seconds": HOUR, "step_seconds": 300, "bound_ratio": 0.05, "devices": devices}
                found, gaps = histories(store, AT, schema, inventory, **options)
                assert gaps == ()
                assert found == histories(recorded, AT, expected_schema, expected, **options)[0]

            states = (Signal.XID_CODE, Signal.XID_WINDOW_COUNT)
            changes, gaps = state_changes(store, states, AT, 1800, schema, inventory)
            assert gaps == ()
            assert changes == state_changes(recorded, states, AT, 1800, expected_schema, expected)[0]
            assert [(change.variant, change.before, change.after) for change in changes] == [
                ("119", 0, 1),
                ("", 13, 79),
                ("119", 1, 2),
            ]
            store.close()


def test_a_server_that_is_not_there_is_a_gap() -> None:
    store = PrometheusStore(Connection(url="http://127.0.0.1:9", retries=0))
    schema, gaps = discover(store, AT)
    assert [gap.kind for gap in gaps] == ["unreachable"]
    assert schema.signals == ()
    assert take_inventory(store, AT, schema, 3600).devices == ()
