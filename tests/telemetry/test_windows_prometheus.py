"""Windows, throttling and owners on a real Prometheus: the same as from a recording."""

import contextlib
import math
from array import array
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gpuwatch.facts.model.telemetry import Signal
from gpuwatch.facts.model.workload_profile import HeldWindows
from gpuwatch.sources.telemetry.connection import Connection
from gpuwatch.sources.telemetry.discovery import discover
from gpuwatch.sources.telemetry.inventory import take_inventory
from gpuwatch.sources.telemetry.owners import job_runs, pod_owners
from gpuwatch.sources.telemetry.pod_runs import pod_runs
from gpuwatch.sources.telemetry.prometheus import PrometheusStore
from gpuwatch.sources.telemetry.throttling import throttled_shares
from gpuwatch.sources.telemetry.windows import held_windows
from parts import remote_write
from parts.prometheus_server import ServerBuild, running
from telemetry.timeline import AT, NOW, Timeline, gpu, held, uuid

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


def fleet() -> Timeline:
    """Two vocabularies: holders that change within the hour, a gap, one that appears, a shared GPU, MIG, rows per
    process, blank values, throttling; and the owners of Pods that are gone."""
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
    timeline.add("DCGM_FI_DEV_THERMAL_VIOLATION", gpu(3) | own | held("c"), lambda ago: max(0, 1800 - ago) * 4e8)
    reasons = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
    timeline.add(reasons, gpu(1) | own, lambda ago: 0x44 if 600 <= ago < 750 else 0x4, ago=3590)
    timeline.add("up", {"job": "dcgm", "instance": "node-a:9400", "pod": "dcgm-exporter-x1", "namespace": "mon"}, 1)
    newer = {"Hostname": "", "hostname": "node-b", "instance": "node-b:9400"}
    for instance, pod in (("7", "m"), ("8", "")):
        labels = gpu(9, GPU_I_ID=instance, GPU_I_PROFILE="1g.10gb", **newer) | (held(pod) if pod else {})
        timeline.add("DCGM_FI_DEV_BOARD_POWER_WATTS", labels, lambda ago: 200 + ago / 36)
        timeline.add("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", labels, 0.1 if instance == "7" else 0)
        timeline.add("DCGM_FI_DEV_FB_USED_BYTES", labels, 2**30)
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


def plain(windows: HeldWindows) -> HeldWindows:
    return replace(windows, values={})


def assert_same(found: tuple[HeldWindows, ...], expected: tuple[HeldWindows, ...]) -> None:
    assert [plain(each) for each in found] == [plain(each) for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.values.keys() == other.values.keys(), (one.device, one.pod)
        for signal, values in other.values.items():
            # increase() of Prometheus 2.42 does not extrapolate quite as that of 3.
            exactness = 0.02 if signal is Signal.THERMAL_THROTTLE_SECONDS_TOTAL else 1e-9
            what = (one.device, one.pod, signal)
            assert one.values[signal] == pytest.approx(values, rel=exactness, nan_ok=True), what


@pytest.mark.parametrize("step", [120, 600])
def test_a_server_and_a_recording_tell_the_same(prometheus_build: ServerBuild, tmp_path: Path, step: int) -> None:
    timeline = fleet()
    recorded = timeline.store(tmp_path)
    schema, _ = discover(recorded, AT)
    inventory = take_inventory(recorded, AT, schema, 3600)
    expected, expected_gaps = held_windows(recorded, SIGNALS, AT - HOUR, AT, step, schema, inventory)
    slowed, _ = throttled_shares(recorded, AT - HOUR, AT, step, schema, inventory)
    assert len(expected) == 9
    assert {windows.pod for windows in expected} == {"", *(f"team/{pod}" for pod in "abcdstm")}
    assert any(math.isnan(value) for windows in expected for value in windows.values.get(Signal.BUSY_RATIO, ()))
    assert set(slowed) == {uuid(1), uuid(3)}
    owners = pod_owners(recorded, AT - HOUR, AT, ["team/a", "team/b", "team/z"])
    assert {pod: past.workload for pod, past in owners[0].items()} == {
        "team/a": "Deployment/team/web",
        "team/b": "Pod/team/b",
    }
    runs = pod_runs(recorded, AT, 3600)
    assert [(run.pod, run.phase) for run in runs[0]] == [("team/a", "Failed"), ("team/b", "Running")]
    with running(prometheus_build) as url:
        remote_write.write(url, timeline.for_remote_write())
        # A server that takes few samples at once: every larger question is divided by host.
        for most in (50_000_000, 500):
            with contextlib.closing(PrometheusStore(Connection(url=url, max_samples_per_query=most))) as store:
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


def test_an_hour_asked_window_by_window_is_the_hour(prometheus_build: ServerBuild) -> None:
    with running(prometheus_build) as url:
        remote_write.write(url, fleet().for_remote_write())
        with contextlib.closing(PrometheusStore(Connection(url=url))) as store:
            schema, _ = discover(store, AT)
            inventory = take_inventory(store, AT, schema, 3600)
            signals = (Signal.BUSY_RATIO, Signal.MEMORY_USED_BYTES)
            whole, _ = held_windows(store, signals, AT - HOUR, AT, 300, schema, inventory)
            again, _ = held_windows(store, signals, AT - HOUR, AT, 300, schema, inventory)
            assert [repr(each) for each in again] == [repr(each) for each in whole]
            told: dict[tuple[str, str, Signal, float], float] = {}
            for ago in range(3600, 0, -300):
                start = AT - timedelta(seconds=ago)
                part, _ = held_windows(store, signals, start, start + timedelta(seconds=300), 300, schema, inventory)
                told |= by_window(part)
            expected = by_window(whole)
            # Of a window alone it is not to be told whether rows of a device stand beside those of its processes.
            known = {key for key in told if key[0] != uuid(4)}
            assert known == {key for key in expected if key[0] != uuid(4)}
            assert {key: told[key] for key in known} == {key: expected[key] for key in known}


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
