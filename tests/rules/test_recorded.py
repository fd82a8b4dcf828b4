"""The recording rules, run by promtool of both major versions on what exporters write, name by name.

A case is some series in promtool's notation, one sample each 30 seconds, and what the rules make of them.
"""

import math
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

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


def test_a_cluster_label_tells_nodes_of_the_same_name_apart(either_prometheus: ServerBuild, tmp_path: Path) -> None:
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
    check(either_prometheus, tmp_path, Case(east + west, expected, SOON))


# Single situations

WORDS = {
    "card": card(),
    "dcgm": labelled(Hostname="n1", UUID="GPU-a", gpu=0, modelName=H100),
    "h100": H100,
}


def listed_cases() -> dict[str, Case]:
    """Those of recorded_cases.yaml, by name."""
    rows = yaml.safe_load(Path(__file__).with_name("recorded_cases.yaml").read_text(encoding="utf-8"))
    return {
        row["name"]: Case(
            [(Template(series).substitute(WORDS), values) for series, values in row["series"].items()],
            {
                expression: {Template(labels).substitute(WORDS): value for labels, value in samples.items()}
                for expression, samples in row["expected"].items()
            },
            row.get("at", END),
        )
        for row in rows
    }


@pytest.mark.prometheus
@pytest.mark.parametrize("case", listed_cases().values(), ids=listed_cases())
def test_a_single_situation(either_prometheus: ServerBuild, tmp_path: Path, case: Case) -> None:
    check(either_prometheus, tmp_path, case)


# Other vendors


def test_amd(either_prometheus: ServerBuild, tmp_path: Path) -> None:
    held = {"namespace": "team-a", "pod": "train-0", "container": "main"}
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
    check(either_prometheus, tmp_path, Case(written(exporters.amd(**held)), expected))


def test_intel_of_both_generations(either_prometheus: ServerBuild, tmp_path: Path) -> None:
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
        either_prometheus,
        tmp_path,
        Case(
            written(exporters.intel_1()),
            {name: {one: value} for name, value in first.items()} | {info: {workload: 1.0}},
        ),
        Case(written(exporters.intel_2()), {name: {two: value} for name, value in second.items()}),
    )


def test_gaudi(either_prometheus: ServerBuild, tmp_path: Path) -> None:
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
    check(either_prometheus, tmp_path, Case(written(exporters.gaudi()), expected))


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
