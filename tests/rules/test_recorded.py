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

from gpuwatch.facts.catalog.gpus import gpu_share_ratio
from gpuwatch.facts.catalog.metrics import metric_rows
from parts.prometheus_server import ServerBuild
from rules import exporters
from rules.exporters import EXPORTED, H100, MIB, NATIVE, Row
from tools.rules.__main__ import files
from tools.rules.recorded import CARD, DEVICE, rule_groups

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "rules" / "gpuwatch-recording.yaml"
GROUPS = rule_groups()
EXPRESSIONS = [(group["name"], rule["record"], rule["expr"]) for group in GROUPS for rule in group["rules"]]
RECORDS = {record for _, record, _ in EXPRESSIONS}

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
    "gpu:gpu_row_remap_failed:max": 1,
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
    expected["gpu_kind:gpu_nvlink_errors:rate15m"] = {
        card(kind=kind, **more): 0.2
        for kind in ("crc_flit_errors", "crc_data_errors", "replay_errors", "recovery_errors")
    }
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


def written(rows: list[Row], first: int = 0, last: int = 180) -> list[Series]:
    """For some of the samples, in promtool's notation."""
    gap = f"_x{first} " if first else ""
    return [
        row(metric, f"{gap}{value + first * rise:.15g}+{rise:.15g}x{last - first}", **labels)
        for metric, labels, value, rise in rows
    ]


@pytest.mark.prometheus
@pytest.mark.parametrize(
    "series",
    [
        pytest.param(written(exporters.dcgm(False, **EXPORTED)), id="up-to-4.8"),
        pytest.param(written(exporters.dcgm(True, **EXPORTED)), id="from-4.9"),
        pytest.param(written(exporters.dcgm(False, host="hostname", **EXPORTED)), id="4.8.3-with-lower-case-hostname"),
        pytest.param(written(exporters.dcgm(False, **NATIVE)), id="honorLabels"),
        pytest.param(written(exporters.dcgm(True, **NATIVE)), id="from-4.9-honorLabels"),
        pytest.param(
            written(exporters.dcgm(False, node="n1", instance="10.0.0.7:9400", **EXPORTED)),
            id="node-attached-by-the-scrape",
        ),
        pytest.param(
            written(exporters.dcgm(False, **EXPORTED)) + written(exporters.dcgm(True, **EXPORTED)),
            id="both-names-at-the-same-time",
        ),
        pytest.param(
            # The old exporter's last samples answer for five more minutes, as there is no staleness marker.
            written(exporters.dcgm(False, **EXPORTED | {"pod": "dcgm-old"}), last=120)
            + written(exporters.dcgm(True, **EXPORTED | {"pod": "dcgm-new"}), first=121),
            id="upgraded-in-place",
        ),
        pytest.param(
            [
                each
                for replica in ("a", "b")
                for each in written(exporters.dcgm(False, prometheus_replica=replica, **EXPORTED))
            ],
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


@pytest.mark.parametrize(
    ("metric", "kind"),
    [
        ("COUNT_RX_SYMBOL_ERRORS", "rx_symbol_errors"),
        ("RX_SYMBOL_ERROR_TOTAL", "rx_symbol_errors"),
        ("COUNT_LINK_RECOVERY_FAILED_EVENTS", "failed_recoveries"),
        ("PPCNT_PHYSICAL_LINK_DOWN_COUNTER", "link_downs"),
    ],
)
def test_the_counters_of_nvlink_5_are_link_errors_too(
    prometheus_build: ServerBuild, tmp_path: Path, metric: str, kind: str
) -> None:
    series = [dcgm(f"DEV_NVLINK_{metric}", "5+6x180"), dcgm("DEV_NVLINK_COUNT_EFFECTIVE_ERRORS", "0+3x180")]
    kinds = {card(kind=kind): 0.2, card(kind="effective_errors"): 0.1}
    expected = {"gpu:gpu_nvlink_errors:rate15m": {card(): 0.3}, "gpu_kind:gpu_nvlink_errors:rate15m": kinds}
    check(prometheus_build, tmp_path, Case(series, expected))


def test_a_cluster_label_tells_nodes_of_the_same_name_apart(prometheus_build: ServerBuild, tmp_path: Path) -> None:
    east = written(exporters.dcgm(False, cluster="east", **EXPORTED))
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
        Case(written(exporters.amd(**held)), expected),
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
        Case(
            written(exporters.intel_1()),
            {name: {one: value} for name, value in first.items()} | {info: {workload: 1.0}},
        ),
        Case(written(exporters.intel_2()), {name: {two: value} for name, value in second.items()}),
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
    check(prometheus_build, tmp_path, Case(written(exporters.gaudi()), expected))


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
        assert re.fullmatch(r"(device|gpu|gpu_kind|node|namespace|cluster):[a-z0-9_]+:[a-z0-9]+", record), record


def test_a_group_records_each_name_once() -> None:
    assert len({(group, record) for group, record, _ in EXPRESSIONS}) == len(EXPRESSIONS)


def test_every_by_keeps_the_cluster() -> None:
    for _, record, expression in EXPRESSIONS:
        kept = re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
        assert all(labels.split(", ")[0] == "cluster" for labels in kept), (record, kept)
        assert not re.search(r"\b(without|ignoring)\b", expression), record


def test_every_metric_is_one_of_the_catalog_or_recorded_before() -> None:
    known: set[str] = set()
    exported = {row.metric for row in metric_rows()}
    for group, record, expression in EXPRESSIONS:
        bare = re.sub(r'"[^"]*"', "", re.sub(r"\{[^}]*\}|\b(by|on) \([^)]*\)", "", expression))
        names = set(re.findall(r"\b(?:DCGM|gpu|amd|pcie|xpum|hw|habanalabs)_\w+", re.sub(r"\b\w+:\w+:\w+", "", bare)))
        assert names <= exported, (group, record, names - exported)
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
