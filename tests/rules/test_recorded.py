"""The recording rules, run by promtool of both major versions on what exporters write, name by name.

A case is some series in promtool's notation, one sample each 30 seconds, and what the rules make of them.
"""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from gpuwatch.catalog.gpus import gpu_share_ratio
from gpuwatch.catalog.metrics import rows_named
from parts.prometheus_server import ServerBuild
from tools.rules.__main__ import files
from tools.rules.recorded import CARD, DEVICE, rule_groups

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "rules" / "gpuwatch-recording.yaml"
GROUPS = rule_groups()
EXPRESSIONS = [(group["name"], rule["record"], rule["expr"]) for group in GROUPS for rule in group["rules"]]
RECORDS = {record for _, record, _ in EXPRESSIONS}

H100 = "NVIDIA H100 80GB HBM3"
A100_40 = "NVIDIA A100-SXM4-40GB"
END = "90m"
"""When the rules are looked at: behind 180 samples."""
SOON = "5m"
"""Where nothing looks back."""

Series = tuple[str, str]
Expected = Mapping[str, Mapping[str, float]]
"""Expression → labels as promtool prints them → value."""


@dataclass(frozen=True)
class Case:
    series: list[Series]
    expected: Expected
    at: str = END


def labelled(**labels: object) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in sorted(labels.items()) if value != "") + "}"


def row(metric: str, values: str, **labels: object) -> Series:
    return metric + labelled(**labels), values


def check(build: ServerBuild, folder: Path, *cases: Case) -> None:
    """Fails with promtool's own words where a case does not hold."""
    tests = [
        {
            "interval": "30s",
            "input_series": [{"series": series, "values": values} for series, values in case.series],
            "promql_expr_test": [
                {
                    "expr": f"round({expr}, 0.0001)",
                    "eval_time": case.at,
                    "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
                }
                for expr, samples in case.expected.items()
            ],
        }
        for case in cases
    ]
    content = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "30s",
        "group_eval_order": [group["name"] for group in GROUPS],
        "tests": tests,
    }
    file = folder / "recorded.test.yml"
    file.write_text(yaml.safe_dump(content, sort_keys=False, width=10_000))
    done = subprocess.run([build.promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{build.name}: {done.stdout}{done.stderr}"[:6000]


def card(**labels: object) -> str:
    return labelled(**{"node": "n1", "UUID": "GPU-a", "gpu": "0", "modelName": H100} | labels)


# Every series, in each vocabulary

MIB = 1048576
STEADY = {
    # name up to 4.8, name from 4.9, value up to 4.8, factor to the value from 4.9
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 0.5, 1),
    "DCGM_FI_DEV_GPU_UTIL": ("DCGM_FI_DEV_GPU_UTIL_RATIO", 90, 0.01),
    "DCGM_FI_PROF_SM_ACTIVE": ("DCGM_FI_PROF_SM_UTIL_RATIO", 0.4, 1),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("DCGM_FI_PROF_TENSOR_UTIL_RATIO", 0.3, 1),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("DCGM_FI_PROF_DRAM_UTIL_RATIO", 0.2, 1),
    "DCGM_FI_DEV_FB_USED": ("DCGM_FI_DEV_FB_USED_BYTES", 1024, MIB),
    "DCGM_FI_DEV_FB_FREE": ("DCGM_FI_DEV_FB_FREE_BYTES", 2048, MIB),
    "DCGM_FI_DEV_FB_RESERVED": ("DCGM_FI_DEV_FB_RESERVED_BYTES", 1024, MIB),
    "DCGM_FI_DEV_GPU_TEMP": ("DCGM_FI_DEV_GPU_TEMP_CELSIUS", 60, 1),
    "DCGM_FI_DEV_MEMORY_TEMP": ("DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", 70, 1),
    "DCGM_FI_DEV_POWER_USAGE": ("DCGM_FI_DEV_BOARD_POWER_WATTS", 300, 1),
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": ("DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS", 700, 1),
    "DCGM_FI_DEV_SM_CLOCK": ("DCGM_FI_DEV_SM_CLOCK_HERTZ", 1980, 1_000_000),
    "DCGM_FI_DEV_XID_ERRORS": ("DCGM_FI_DEV_XID_ERROR", 79, 1),
    "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION": ("DCGM_FI_DEV_GPU_RECOVERY_ACTION", 1, 1),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("DCGM_FI_DEV_ROW_REMAP_FAILED", 0, 1),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": ("DCGM_FI_DEV_ROW_REMAP_PENDING", 1, 1),
}
RISING = {
    # the same for counters: by how much they rise in 30 seconds
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": ("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", 1, 1),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 2, 1),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 3, 1),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("DCGM_FI_DEV_PCIE_REPLAY_TOTAL", 6, 1),
    "DCGM_FI_DEV_THERMAL_VIOLATION": ("DCGM_FI_DEV_THERMAL_THROTTLE_SECONDS_TOTAL", 3_000_000_000, 1e-9),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS": (
        "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS",
        6_000_000_000,
        1,
    ),
}
LINKS = ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY")

OF_DEVICE = {
    "device:gpu_share:ratio": 1,
    "device:gpu_allocated:bool": 1,
    "device:gpu_engine_active_ratio:max": 0.5,
    "device:gpu_sm_active_ratio:max": 0.4,
    "device:gpu_tensor_active_ratio:max": 0.3,
    "device:gpu_dram_active_ratio:max": 0.2,
    "device:gpu_memory_used_bytes:max": 1024 * MIB,
    "device:gpu_memory_total_bytes:max": 4096 * MIB,
    "gpu:gpu_temperature_celsius:max": 60,
    "gpu:gpu_memory_temperature_celsius:max": 70,
    "gpu:gpu_power_watts:max": 300,
    "gpu:gpu_power_limit_watts:max": 700,
    "gpu:gpu_sm_clock_hertz:max": 1980e6,
    "gpu:gpu_xid:last": 79,
    "gpu:gpu_recovery_action:max": 1,
    "gpu:gpu_row_remap_failed:max": 0,
    "gpu:gpu_row_remap_pending:max": 1,
    "gpu:gpu_ecc_uncorrected_ever:max": 180,
    "gpu:gpu_ecc_uncorrected_since_reload:max": 360,
    "gpu:gpu_ecc_uncorrected:increase1h": 120,
    "gpu:gpu_ecc_corrected_since_reload:max": 540,
    "gpu:gpu_ecc_corrected:rate1h": 0.1,
    "gpu:gpu_pcie_replays_since_reload:max": 1080,
    "gpu:gpu_pcie_replays:rate15m": 0.2,
    "gpu:gpu_nvlink_errors:rate15m": 0.8,  # two links, four kinds, 0.1 each
    "gpu:gpu_thermal_throttle_seconds:max": 540,
    "gpu:gpu_thermal_throttle_ratio:rate15m": 0.1,
    "gpu:gpu_power_brake_seconds:max": 1080,
    "gpu:gpu_power_brake_ratio:rate15m": 0.2,
    "gpu:gpu_engine_active_ratio:weighted": 0.5,
    "gpu:gpu_allocated_ratio:sum": 1,
}


def every_expected(**more: object) -> dict[str, dict[str, float]]:
    """What one whole GPU with one Pod gives in every vocabulary, with `more` labels on all of it."""
    cluster = {name: value for name, value in more.items() if name == "cluster"}
    expected = {record: {card(**more): float(value)} for record, value in OF_DEVICE.items()}
    expected["device:gpu_workload:info"] = {card(namespace="team-a", pod="train-0", container="main", **more): 1.0}
    averages = {"gpus:count": 1.0, "gpu_engine_active_ratio:avg": 0.5}
    for level, label, values in (
        ("node", {"node": "n1"}, averages | {"gpu_power_watts:sum": 300.0}),
        ("cluster", {"modelName": H100}, averages | {"gpus_allocated:sum": 1.0}),
        (
            "namespace",
            {"namespace": "team-a"},
            {"gpus_allocated:count": 1.0, "gpus_allocated:sum": 1.0, "gpu_engine_active_ratio:avg": 0.5},
        ),
    ):
        expected |= {f"{level}:{name}": {labelled(**label, **cluster): value} for name, value in values.items()}
    return expected


EXPORTED = {
    "namespace": "gpu-operator", "pod": "dcgm-x2x4z", "container": "exporter",
    "exported_namespace": "team-a", "exported_pod": "train-0", "exported_container": "main",
}  # fmt: skip
NATIVE = {"namespace": "team-a", "pod": "train-0", "container": "main"}


def every_series(vocabulary: str, first: int = 0, last: int = 180, host: str = "", **labels: object) -> list[Series]:
    """All metrics of a GPU in the names up to 4.8 ('dcgm') or from 4.9 ('dcgm49'), for some of the samples."""
    new = vocabulary == "dcgm49"
    host = host or ("hostname" if new else "Hostname")
    own = {"gpu": 0, "UUID": "GPU-a", "modelName": H100, host: "n1", "DCGM_FI_DRIVER_VERSION": "580.1"} | labels
    gap = f"_x{first} " if first else ""
    series = []
    for old, (name49, value, factor) in STEADY.items():
        written = value * factor if new else value
        series.append(row(name49 if new else old, f"{gap}{written:.12g}x{last - first}", **own))
    for old, (name49, step, factor) in RISING.items():
        rise = step * factor if new else step
        begin = first * rise
        series.append(row(name49 if new else old, f"{gap}{begin:.15g}+{rise:.15g}x{last - first}", **own))
    target = {name: value for name, value in labels.items() if name not in EXPORTED}
    for kind in LINKS:
        name = f"DCGM_FI_DEV_NVLINK_{kind}_ERROR_{'TOTAL' if new else 'COUNT_TOTAL'}"
        for link in (0, 1):
            linked = {"nvlink": link, "gpu": 0, "gpu_uuid": "GPU-a", "model_name": H100, host: "n1"} | target
            series.append(row(name, f"{gap}{first * 3}+3x{last - first}", **linked))
    return series


@pytest.mark.prometheus
@pytest.mark.parametrize(
    "series",
    [
        pytest.param(every_series("dcgm", **EXPORTED), id="up-to-4.8"),
        pytest.param(every_series("dcgm49", **EXPORTED), id="from-4.9"),
        pytest.param(every_series("dcgm", host="hostname", **EXPORTED), id="4.8.3-with-lower-case-hostname"),
        pytest.param(every_series("dcgm", **NATIVE), id="honorLabels"),
        pytest.param(every_series("dcgm49", **NATIVE), id="from-4.9-honorLabels"),
        pytest.param(
            every_series("dcgm", node="n1", instance="10.0.0.7:9400", **EXPORTED), id="node-attached-by-the-scrape"
        ),
        pytest.param(
            every_series("dcgm", **EXPORTED) + every_series("dcgm49", **EXPORTED), id="both-names-at-the-same-time"
        ),
        pytest.param(
            # The old exporter's last samples answer for five more minutes, as there is no staleness marker.
            every_series("dcgm", last=120, **EXPORTED | {"pod": "dcgm-old"})
            + every_series("dcgm49", first=121, **EXPORTED | {"pod": "dcgm-new"}),
            id="upgraded-in-place",
        ),
        pytest.param(
            [each for replica in ("a", "b") for each in every_series("dcgm", prometheus_replica=replica, **EXPORTED)],
            id="two-scrapers",
        ),
    ],
)
def test_every_recorded_series_in_every_vocabulary(
    prometheus_build: ServerBuild, tmp_path: Path, series: list[Series]
) -> None:
    expected = every_expected()
    assert set(expected) == RECORDS, "a recorded series has no expectation, or the other way round"
    check(prometheus_build, tmp_path, Case(series, expected))


def test_a_cluster_label_tells_nodes_of_the_same_name_apart(prometheus_build: ServerBuild, tmp_path: Path) -> None:
    east = every_series("dcgm", cluster="east", **EXPORTED)
    west = [row("DCGM_FI_DEV_GPU_TEMP", "40x180", Hostname="n1", UUID="GPU-b", gpu=0, modelName=H100, cluster="west")]
    expected = {
        "node:gpus:count": {labelled(cluster="east", node="n1"): 1.0, labelled(cluster="west", node="n1"): 1.0},
        "cluster:gpus_allocated:sum": {
            labelled(cluster="east", modelName=H100): 1.0,
            labelled(cluster="west", modelName=H100): 0.0,
        },
        "namespace:gpu_engine_active_ratio:avg": {labelled(cluster="east", namespace="team-a"): 0.5},
    }
    check(prometheus_build, tmp_path, Case(east + west, expected, SOON))


# MIG, sharing, workloads


def dcgm(metric: str, values: str, **labels: object) -> Series:
    return row(f"DCGM_FI_{metric}", values, **{"Hostname": "n1", "UUID": "GPU-a", "gpu": 0, "modelName": H100} | labels)


def test_mig_instances_weigh_their_memory_slices_and_the_card_counts_once(
    prometheus_build: ServerBuild, tmp_path: Path
) -> None:
    """3g.40gb is half of the card, 1g.10gb an eighth; on the A100 with 40 GB the same 1g.10gb is a quarter."""
    series = []
    instances = [(H100, "GPU-a", "1", "3g.40gb", 0.8, "team-a"), (H100, "GPU-a", "9", "1g.10gb", 0.4, "team-b")]
    instances += [(A100_40, "GPU-b", "7", "1g.10gb", 0.4, "team-b"), (A100_40, "GPU-b", "8", "1g.5gb", 0.8, "")]
    for model, uuid, gi, profile, ratio, namespace in instances:
        labels = {"modelName": model, "UUID": uuid, "GPU_I_ID": gi, "GPU_I_PROFILE": profile, "gpu": uuid[-1]}
        if namespace:
            labels |= {"exported_namespace": namespace, "exported_pod": "p", "exported_container": "c"}
        series += [
            dcgm("PROF_GR_ENGINE_ACTIVE", f"{ratio}x180", **labels),
            dcgm("DEV_GPU_UTIL", "0x180", **labels),
            dcgm("DEV_GPU_TEMP", "50x180", **labels),
            dcgm("DEV_POWER_USAGE", "200x180", **labels),
            dcgm("DEV_ECC_DBE_VOL_TOTAL", "0+1x180", **labels),
        ]
    first, second = card(gpu="a"), card(gpu="b", UUID="GPU-b", modelName=A100_40)
    expected = {
        'device:gpu_share:ratio{UUID="GPU-b"}': {
            card(gpu="b", UUID="GPU-b", modelName=A100_40, GPU_I_ID="7", GPU_I_PROFILE="1g.10gb"): 0.25,
            card(gpu="b", UUID="GPU-b", modelName=A100_40, GPU_I_ID="8", GPU_I_PROFILE="1g.5gb"): 0.125,
        },
        "gpu:gpu_engine_active_ratio:weighted": {first: 0.8 / 2 + 0.4 / 8, second: 0.4 / 4 + 0.8 / 8},
        "gpu:gpu_allocated_ratio:sum": {first: 0.625, second: 0.25},
        "gpu:gpu_power_watts:max": {first: 200.0, second: 200.0},
        "gpu:gpu_ecc_uncorrected:increase1h": {first: 120.0, second: 120.0},
        "node:gpu_power_watts:sum": {labelled(node="n1"): 400.0},
        "node:gpus:count": {labelled(node="n1"): 2.0},
        "cluster:gpus_allocated:sum": {labelled(modelName=H100): 0.625, labelled(modelName=A100_40): 0.25},
        "namespace:gpus_allocated:count": {labelled(namespace="team-a"): 1.0, labelled(namespace="team-b"): 2.0},
        "namespace:gpus_allocated:sum": {labelled(namespace="team-a"): 0.5, labelled(namespace="team-b"): 0.375},
        "namespace:gpu_engine_active_ratio:avg": {labelled(namespace="team-a"): 0.8, labelled(namespace="team-b"): 0.4},
    }
    check(prometheus_build, tmp_path, Case(series, expected))


def test_a_zero_of_gpu_util_on_a_mig_instance_means_nothing(prometheus_build: ServerBuild, tmp_path: Path) -> None:
    instance = {"GPU_I_ID": "1", "GPU_I_PROFILE": "3g.40gb"}
    series = [dcgm("DEV_GPU_UTIL", "0x180", **instance), dcgm("DEV_GPU_TEMP", "50x180", **instance)]
    check(prometheus_build, tmp_path, Case(series, {"device:gpu_engine_active_ratio:max": {}}, SOON))


@pytest.mark.parametrize("exported", [True, False], ids=["honorLabels-false", "honorLabels-true"])
def test_a_shared_gpu_and_an_idle_one(prometheus_build: ServerBuild, tmp_path: Path, exported: bool) -> None:
    """Three Pods of two namespaces hold one GPU; on the idle one the Pod is the exporter's own."""
    exporter = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x2x4z", "container": "exporter"}
    series = [
        dcgm("DEV_GPU_TEMP", "40x180", UUID="GPU-b", gpu=1, **exporter),
        dcgm("DEV_GPU_UTIL", "0x180", UUID="GPU-b", gpu=1, **exporter),
    ]
    pods = [("team-a", "one"), ("team-a", "two"), ("team-b", "three")]
    for replica, (namespace, pod) in enumerate(pods):
        own = {"namespace": namespace, "pod": pod, "container": "main"}
        labels = exporter | {f"exported_{name}": value for name, value in own.items()} if exported else own
        series += [
            dcgm("DEV_GPU_TEMP", "50x180", vgpu=replica, **labels),
            dcgm("DEV_GPU_UTIL", f"{30 + replica}x180", vgpu=replica, **labels),
        ]
    expected = {
        "device:gpu_workload:info": {
            card(namespace=namespace, pod=pod, container="main"): 1.0 for namespace, pod in pods
        },
        "device:gpu_allocated:bool": {card(): 1.0},
        "gpu:gpu_allocated_ratio:sum": {card(): 1.0, card(UUID="GPU-b", gpu=1): 0.0},
        "gpu:gpu_engine_active_ratio:weighted": {card(): 0.32, card(UUID="GPU-b", gpu=1): 0.0},
        "namespace:gpus_allocated:count": {labelled(namespace="team-a"): 1.0, labelled(namespace="team-b"): 1.0},
        "namespace:gpus_allocated:sum": {labelled(namespace="team-a"): 0.5, labelled(namespace="team-b"): 0.5},
        "namespace:gpu_engine_active_ratio:avg": {
            labelled(namespace="team-a"): 0.32,
            labelled(namespace="team-b"): 0.32,
        },
    }
    check(prometheus_build, tmp_path, Case(series, expected, SOON))


# Counters


def test_counters_over_pods_resets_gaps_and_first_samples(prometheus_build: ServerBuild, tmp_path: Path) -> None:
    """An error that ends the Pod falls between two of the exporter's series, and is seen all the same."""
    pod = {"exported_namespace": "a", "exported_pod": "p", "exported_container": "c"}
    cases: dict[str, tuple[list[tuple[str, dict[str, str]]], float, float]] = {
        "quiet": ([("0x180", {})], 0, 0),
        "old error": ([("7x180", {})], 0, 7),
        "ends its Pod": ([("0x149 stale", pod), ("_x150 1x30", {})], 1, 1),
        "reset by a reload": ([("5x149 0x30", {})], 0, 0),
        "rises after a reset": ([("5x119 0x29 1x30", {})], 1, 1),
        "after a gap": ([("0x129 stale _x30 1x19", {})], 1, 1),
        # Nobody knows whether it is new: the warning about what was not reset looks at the value instead.
        "first sample above zero": ([("_x150 3x30", {})], 0, 3),
        "an exporter that was replaced": ([("2x150", {"instance": "old"}), ("_x140 2x40", {"instance": "new"})], 0, 2),
    }
    series = [
        dcgm("DEV_ECC_DBE_VOL_TOTAL", values, **labels | {"UUID": name})
        for name, (rows, _, _) in cases.items()
        for values, labels in rows
    ]
    expected = {
        "(gpu:gpu_ecc_uncorrected:increase1h > bool 0)": {card(UUID=name): case[1] for name, case in cases.items()},
        "gpu:gpu_ecc_uncorrected_since_reload:max": {card(UUID=name): case[2] for name, case in cases.items()},
    }
    check(prometheus_build, tmp_path, Case(series, expected))


def test_sentinels_percent_and_missing_signals(prometheus_build: ServerBuild, tmp_path: Path) -> None:
    blank = "9223372036854775794x180"
    check(
        prometheus_build,
        tmp_path,
        Case(
            [dcgm("DEV_MEMORY_TEMP", blank), dcgm("DEV_GPU_TEMP", "50x180"), dcgm("DEV_POWER_USAGE", blank)],
            {
                "gpu:gpu_memory_temperature_celsius:max": {},
                "gpu:gpu_power_watts:max": {},
                "gpu:gpu_engine_active_ratio:weighted": {},
                "node:gpus:count": {labelled(node="n1"): 1.0},
                "gpu:gpu_xid:last": {},
            },
            SOON,
        ),
        # DCGM 4.6: the new name, and still percent.
        Case([dcgm("DEV_GPU_UTIL_RATIO", "40x5 1x5")], {"device:gpu_engine_active_ratio:max": {card(): 0.01}}, SOON),
        Case([dcgm("DEV_GPU_UTIL_RATIO", "0.4x180")], {"device:gpu_engine_active_ratio:max": {card(): 0.4}}, SOON),
        # Without reserved memory, as with old drivers.
        Case(
            [dcgm("DEV_FB_USED", "10x180"), dcgm("DEV_FB_FREE", "30x180")],
            {"device:gpu_memory_total_bytes:max": {card(): 40.0 * MIB}},
            SOON,
        ),
        # A newer XID takes the older one's place, whose labels are others.
        Case(
            [dcgm("DEV_XID_ERRORS", "79x5 stale", err_code=79), dcgm("DEV_XID_ERRORS", "_x6 13x9", err_code=13)],
            {"gpu:gpu_xid:last": {card(): 13.0}},
            SOON,
        ),
    )


# Other vendors


def test_amd_whole_and_divided(prometheus_build: ServerBuild, tmp_path: Path) -> None:
    base = {"hostname": "n1", "card_series": "AMD Instinct MI300X OAM", "gpu_compute_partition_type": "spx"}
    base |= {"gpu_memory_partition_type": "nps1", "gpu_partition_id": "0", "serial_number": "S1", "gpu_id": "2"}
    held = {"namespace": "team-a", "pod": "train-0", "container": "main"}
    exporter = {
        "namespace": "kube-amd-gpu",
        "pod": "amd-metrics-exporter-x2x4z",
        "container": "metrics-exporter-container",
    }
    whole = [
        row("gpu_gfx_busy_instantaneous", "40x180", xcc=0, **base, **held),
        row("gpu_gfx_busy_instantaneous", "60x180", xcc=1, **base, **held),
        row("gpu_gfx_activity", "90x180", **base, **held),
        row("gpu_prof_sm_active", "40x180", **base, **held),
        row("gpu_prof_tensor_active_percent", "30x180", **base, **held),
        row("gpu_umc_activity", "20x180", **base, **held),
        row("gpu_used_vram", "1024x180", **base, **held),
        row("gpu_total_vram", "4096x180", **base, **held),
        row("gpu_junction_temperature", "60x180", **base, **held),
        row("gpu_memory_temperature", "70x180", **base, **held),
        row("gpu_package_power", "0x180", **base, **held),
        row("gpu_average_package_power", "300x180", **base, **held),
        row("gpu_clock", "1980x180", clock_type="system", **base, **held),
        row("gpu_clock", "900x180", clock_type="memory", **base, **held),
        row("gpu_ecc_correct_total", "0+3x180", **base, **held),
        row("gpu_ecc_uncorrect_total", "0+2x180", **base, **held),
        row("pcie_replay_count", "0+6x180", **base, **held),
    ]
    amd = {"UUID": "n1:S1:2", "gpu": 2, "modelName": "AMD Instinct MI300X OAM"}
    recorded = recorded_by("amd") | {"gpu:gpu_ecc_uncorrected:increase1h", "gpu:gpu_ecc_corrected:rate1h"}
    expected = {name: {card(**amd): float(OF_DEVICE[name])} for name in recorded if name in OF_DEVICE}
    expected |= {
        "device:gpu_workload:info": {card(**held, **amd): 1.0},
        "gpu:gpu_ecc_uncorrected:increase1h": {card(**amd): 240.0},
        "node:gpus:count": {labelled(node="n1"): 1.0},
        "node:gpu_power_watts:sum": {labelled(node="n1"): 300.0},
        "namespace:gpu_engine_active_ratio:avg": {labelled(namespace="team-a"): 0.5},
    }
    assert recorded_by("amd") <= set(expected)
    # Four partitions of one card: temperature and activity of the first alone, no power but the first one's.
    divided = []
    for partition in range(4):
        labels = base | {"gpu_compute_partition_type": "qpx", "gpu_partition_id": partition, "gpu_id": partition}
        labels |= held if partition == 1 else exporter
        divided.append(row("amd_gpu_total_vram", "1024x180", **labels))
        divided.append(row("amd_gpu_package_power", f"{700 if partition == 0 else 0}x180", **labels))
        if partition == 0:
            divided.append(row("amd_gpu_gfx_activity", "80x180", **labels))
    split = {"UUID": "n1:S1", "gpu": "", "modelName": "AMD Instinct MI300X OAM"}
    check(
        prometheus_build,
        tmp_path,
        Case(whole, expected),
        Case(
            divided,
            {
                "device:gpu_share:ratio": {
                    card(GPU_I_ID=partition, GPU_I_PROFILE="qpx_nps1", **split): 0.25 for partition in range(4)
                },
                "gpu:gpu_allocated_ratio:sum": {card(**split): 0.25},
                "gpu:gpu_power_watts:max": {card(**split): 700.0},
                "gpu:gpu_engine_active_ratio:weighted": {card(**split): 0.8},
                "node:gpus:count": {labelled(node="n1"): 1.0},
            },
            SOON,
        ),
        # gpu_uuid where it is exported; a guest without serial number and model.
        Case(
            [row("gpu_total_vram", "4096x180", **base | {"gpu_uuid": "ccff74a1"})],
            {
                "node:gpus:count": {labelled(node="n1"): 1.0},
                "device:gpu_share:ratio": {card(**amd | {"UUID": "ccff74a1"}): 1.0},
            },
            SOON,
        ),
        Case(
            [
                row(
                    "gpu_total_vram",
                    "4096x180",
                    hostname="n1",
                    gpu_id=0,
                    gpu_compute_partition_type="none",
                    gpu_partition_id="NA",
                )
            ],
            {"device:gpu_share:ratio": {labelled(node="n1", UUID="n1:0", gpu=0): 1.0}},
            SOON,
        ),
    )


def test_intel_of_both_generations(prometheus_build: ServerBuild, tmp_path: Path) -> None:
    """Two tiles of a card: their memory and errors add up, their power and ratios do not."""
    old, new = [], []
    for tile in ("0", "1"):
        labels = {"uuid": "u-1", "dev_name": "Max 1550", "card": "card0", "node": "n1", "sub_dev": tile}
        labels |= {"kube_namespace": "team-a", "kube_pod": "train-0", "kube_container": "main", "pod": "xpumd-1"}
        old += [
            row("xpum_engine_ratio", f"0.{4 + int(tile)}x180", **labels),
            row("xpum_eu_active_ratio", "0.4x180", **labels),
            row("xpum_memory_bandwidth_ratio", "0.2x180", **labels),
            row("xpum_memory_used_bytes", "1000x180", **labels),
            row("xpum_power_watts", "300x180", **labels),
            row("xpum_temperature_celsius", "60x180", location="gpu", **labels),
            row("xpum_temperature_celsius", "70x180", location="mem", **labels),
            row("xpum_frequency_mhz", "1980x180", location="gpu", type="actual", **labels),
            row("xpum_cache_errors_total", "0+2x180", type="uncorrectable", **labels),
            row("xpum_cache_errors_total", "0+3x180", type="correctable", **labels),
        ]
        labels = {"pci_bdf": "0000:4d:00.0", "hw_name": "Max 1550", "node": "n1", "com_intel_subdevice_id": tile}
        new += [
            row("hw_gpu_utilization_ratio", "0.5x180", **labels),
            row("hw_memory_bandwidth_utilization_ratio", "0.2x180", **labels),
            row("hw_memory_usage_bytes", "1000x180", hw_memory_location="device", **labels),
            row("hw_memory_size_bytes", "4000x180", hw_memory_location="device", **labels),
            row("hw_power_watts", "300x180", **labels),
            row("hw_power_limit_watts", "700x180", **labels),
            row("hw_temperature_celsius", "60x180", hw_sensor_location="gpu", statistic="max", **labels),
            row("hw_temperature_celsius", "70x180", hw_sensor_location="memory", statistic="max", **labels),
            row("hw_frequency_hertz", "1.98e9x180", hw_frequency_domain="gpu", aggregation="avg", **labels),
            row("hw_errors_total", "0+1x180", hw_type="gpu", error_type="uncorrectable", error_category="a", **labels),
            row("hw_errors_total", "0+1x180", hw_type="gpu", error_type="correctable", error_category="a", **labels),
        ]
    one = card(UUID="u-1", gpu="card0", modelName="Max 1550")
    two = card(UUID="n1:0000:4d:00.0", gpu="", modelName="Max 1550")
    common = {
        "device:gpu_share:ratio": 1.0,
        "device:gpu_engine_active_ratio:max": 0.5,
        "device:gpu_dram_active_ratio:max": 0.2,
        "device:gpu_memory_used_bytes:max": 2000.0,
        "gpu:gpu_temperature_celsius:max": 60.0,
        "gpu:gpu_memory_temperature_celsius:max": 70.0,
        "gpu:gpu_power_watts:max": 300.0,
        "gpu:gpu_sm_clock_hertz:max": 1980e6,
    }
    first = common | {
        "device:gpu_sm_active_ratio:max": 0.4,
        "gpu:gpu_ecc_uncorrected_since_reload:max": 360.0,
        "gpu:gpu_ecc_corrected_since_reload:max": 540.0,
    }
    second = common | {
        "device:gpu_memory_total_bytes:max": 8000.0,
        "gpu:gpu_power_limit_watts:max": 700.0,
        "gpu:gpu_ecc_uncorrected_since_reload:max": 360.0,
        "gpu:gpu_ecc_uncorrected:increase1h": 240.0,
        "gpu:gpu_ecc_corrected_since_reload:max": 360.0,
    }
    workload = labelled(
        node="n1", UUID="u-1", gpu="card0", modelName="Max 1550", namespace="team-a", pod="train-0", container="main"
    )
    info = "device:gpu_workload:info"
    assert recorded_by("intel") <= {*first, *second, info}
    check(
        prometheus_build,
        tmp_path,
        Case(old, {name: {one: value} for name, value in first.items()} | {info: {workload: 1.0}}),
        Case(new, {name: {two: value} for name, value in second.items()}),
        Case(
            [
                row(
                    "hw_memory_usage_bytes",
                    "9x180",
                    pci_bdf="0000:4d:00.0",
                    instance="10.0.0.7:29999",
                    hw_memory_location="device",
                )
            ],
            {"device:gpu_share:ratio": {labelled(UUID="10.0.0.7:29999:0000:4d:00.0"): 1.0}},
            SOON,
        ),
    )


def test_gaudi(prometheus_build: ServerBuild, tmp_path: Path) -> None:
    labels = {"UUID": "G-1", "id": 3, "Hostname": "n1", "pod_namespace": "team-a", "pod_name": "train-0"}
    labels |= {"pod": "habana-metrics-1", "namespace": "habana", "container": "exporter"}
    series = [
        row("habanalabs_utilization", "50x180", **labels),
        row("habanalabs_memory_used_bytes", "1024x180", **labels),
        row("habanalabs_memory_total_bytes", "4096x180", **labels),
        row("habanalabs_power_mW", "300000x180", **labels),
        row("habanalabs_power_default_limit_mW", "700000x180", **labels),
        row("habanalabs_temperature_onchip", "60x180", **labels),
        row("habanalabs_clock_soc_mhz", "1980x180", **labels),
        row("habanalabs_pending_rows_state", "1x180", **labels),
        row("habanalabs_pcie_replay_count", "0+6x180", **labels),
    ]
    recorded = recorded_by("gaudi") | {"gpu:gpu_pcie_replays:rate15m", "gpu:gpu_engine_active_ratio:weighted"}
    gaudi = {"UUID": "G-1", "gpu": 3, "modelName": ""}
    expected = {name: {card(**gaudi): float(OF_DEVICE[name])} for name in recorded if name in OF_DEVICE}
    expected |= {
        "device:gpu_memory_used_bytes:max": {card(**gaudi): 1024.0},
        "device:gpu_memory_total_bytes:max": {card(**gaudi): 4096.0},
        "device:gpu_workload:info": {card(namespace="team-a", pod="train-0", **gaudi): 1.0},
        "namespace:gpus_allocated:count": {labelled(namespace="team-a"): 1.0},
    }
    assert recorded_by("gaudi") <= set(expected)
    check(prometheus_build, tmp_path, Case(series, expected))


def recorded_by(vendor: str) -> set[str]:
    return {record for group, record, _ in EXPRESSIONS if group == f"gpuwatch-recording-{vendor}"}


# The text of the rules


def test_the_files_are_fresh() -> None:
    for path, text in files().items():
        assert path.read_text() == text, f"{path.name} is out of date: make rules"


def test_the_prometheus_rule_object_holds_the_same_groups() -> None:
    rule = yaml.safe_load((ROOT / "deploy" / "optional" / "prometheus-rule-recording.yaml").read_text())
    assert rule["kind"] == "PrometheusRule"
    assert rule["spec"] == yaml.safe_load(RULES.read_text())


def test_names_say_level_metric_and_operation() -> None:
    for _, record, _ in EXPRESSIONS:
        assert re.fullmatch(r"(device|gpu|node|namespace|cluster):[a-z0-9_]+:[a-z0-9]+", record), record


def test_a_group_records_each_name_once() -> None:
    assert len({(group, record) for group, record, _ in EXPRESSIONS}) == len(EXPRESSIONS)


def test_every_by_keeps_the_cluster() -> None:
    for _, record, expression in EXPRESSIONS:
        kept = re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
        assert all(labels.split(", ")[0] == "cluster" for labels in kept), (record, kept)
        assert not re.search(r"\b(without|ignoring)\b", expression), record


def test_every_metric_is_one_of_the_catalog_or_recorded_before() -> None:
    known: set[str] = set()
    for group, record, expression in EXPRESSIONS:
        bare = re.sub(r'"[^"]*"', "", re.sub(r"\{[^}]*\}|\b(by|on) \([^)]*\)", "", expression))
        names = set(re.findall(r"\b(?:DCGM|gpu|amd|pcie|xpum|hw|habanalabs)_\w+", re.sub(r"\b\w+:\w+:\w+", "", bare)))
        assert all(rows_named(name) for name in names), (group, record, names)
        assert set(re.findall(r"\b\w+:\w+:\w+", bare)) <= known, (record, "reads a series that a later rule records")
        known.add(record)


def test_the_last_xid_is_no_counter() -> None:
    for _, record, expression in EXPRESSIONS:
        if "XID" in expression or "gpu_xid" in expression:
            assert not re.search(r"\b(rate|increase|delta|sum|avg)\b", expression), record


def test_labels_of_the_levels() -> None:
    assert ", ".join(DEVICE) == "cluster, node, UUID, gpu, modelName, GPU_I_ID, GPU_I_PROFILE"
    assert DEVICE[: len(CARD)] == CARD


def test_shares_are_those_of_the_catalog() -> None:
    """The two spots where one profile's name has two shares, as the promtool test above takes them."""
    assert math.isclose(gpu_share_ratio(A100_40, "1g.10gb"), 0.25)
    assert math.isclose(gpu_share_ratio(H100, "1g.10gb"), 0.125)
