"""The signals of fabric and links as exporters spell them, from the samples to the findings."""

from pathlib import Path

import pytest

from gpuwatch.act.analysis import Policies, needs_of
from gpuwatch.facts.model.decision import Finding
from gpuwatch.judge.health.assess import HealthPolicy, assess_health
from gpuwatch.sources.collect.collect import collect
from telemetry.timeline import AT, Timeline, gpu, uuid

NODES, GPUS = 4, 4


def fleet(metric: str, usual: float, sick: float, per_second: bool, labels: dict[str, str]) -> Timeline:
    """GPUs 4 to 7 are those of node-1; the sick value stands on the first of them, or all where it is a state."""
    timeline = Timeline()
    for node in range(NODES):
        for index in range(GPUS):
            number = node * GPUS + index
            card = gpu(number, f"node-{node}", gpu=str(index), modelName="NVIDIA GB200")
            timeline.add("DCGM_FI_DEV_GPU_TEMP" if "SXID" not in metric else "DCGM_FI_DEV_GPU_TEMP_CELSIUS", card, 40.0)
            here = node == 1 and (index == 0 or not per_second)
            value = sick if here else usual
            named = card | labels
            if "gpu_uuid" in labels:  # of a link
                named = {key: each for key, each in named.items() if key != "UUID"} | {"gpu_uuid": card["UUID"]}
            if "nvswitch" in labels:  # of a switch, which names no GPU; one for each pair of GPUs
                named = {"Hostname": card["Hostname"], "instance": card["instance"], "nvswitch": str(index // 2)}
                if index % 2:
                    continue
            timeline.add(metric, named, (lambda ago, rate=value: (3600 - ago) * rate) if per_second else value)
    return timeline


def found(timeline: Timeline, folder: Path) -> dict[str, Finding]:
    snapshot = collect(timeline.store(folder), None, AT, needs_of(Policies()))
    return {item.id: item for item in assess_health(snapshot, HealthPolicy())}


@pytest.mark.parametrize(
    ("metric", "usual", "sick", "labels"),
    [
        ("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", 3, 4, {}),
        ("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", 3, 2, {}),
        ("DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY", 1, 2, {}),
        ("DCGM_FI_DEV_FABRIC_HEALTH_MASK", 0x1AA, 0x199, {}),
        ("DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS", 0, 12028, {"nvswitch": ""}),
        ("DCGM_FI_DEV_SXID_FATAL_ERROR", 0, 12028, {"nvswitch": ""}),
        ("DCGM_EXP_P2P_STATUS", 0, 5, {"peer_gpu": "2", "link_status": "NotSupported"}),
    ],
)
def test_a_machines_fabric(metric: str, usual: float, sick: float, labels: dict[str, str], tmp_path: Path) -> None:
    findings = found(fleet(metric, usual, sick, False, labels), tmp_path)
    assert [name for name in findings if name.startswith("fabric:")] == ["fabric:node/node-1"]
    assert findings["fabric:node/node-1"].confidence_ratio < 0.8


def test_one_switch_of_several_is_shown_with_its_machine(tmp_path: Path) -> None:
    """The rows of a switch name no GPU; the query that is shown asks for those of the GPU's scrape target."""
    timeline = fleet("DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS", 0.0, 0.0, False, {"nvswitch": ""})
    sick = {"Hostname": "node-2", "instance": "node-2:9400", "nvswitch": "3"}
    findings = found(timeline.add("DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS", sick, 12028.0), tmp_path)
    finding = findings["fabric:node/node-2"]
    assert "SXid 12028" in finding.summary
    assert finding.evidence[0].promql == (
        'max by (instance) (DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS{instance="node-2:9400"})'
    )


@pytest.mark.parametrize(
    ("metric", "labels"),
    [
        ("DCGM_FI_DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS", {}),
        ("DCGM_FI_DEV_NVLINK_RX_SYMBOL_ERROR_TOTAL", {}),
        ("DCGM_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS", {}),
        ("DCGM_FI_DEV_NVLINK_INTEGRITY_ERROR_TOTAL", {}),
        ("DCGM_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS", {}),
        ("DCGM_FI_DEV_NVLINK_EFFECTIVE_ERROR_TOTAL", {}),
        ("DCGM_FI_DEV_NVLINK_PPCNT_PHYSICAL_LINK_DOWN_COUNTER", {"gpu_uuid": "", "nvlink": "3"}),
        ("DCGM_FI_DEV_NVLINK_PPCNT_PHYSICAL_LINK_DOWN_TOTAL", {"gpu_uuid": "", "nvlink": "3"}),
        ("DCGM_FI_DEV_C2C_LINK_ERROR_REPLAY", {}),
    ],
)
def test_a_gpus_links(metric: str, labels: dict[str, str], tmp_path: Path) -> None:
    findings = found(fleet(metric, 0.0, 0.1, True, labels), tmp_path)
    assert [name for name in findings if name.startswith("nvlink_errors:")] == [f"nvlink_errors:device/{uuid(GPUS)}"]


def test_a_link_to_the_cpu_that_is_down(tmp_path: Path) -> None:
    timeline = fleet("DCGM_FI_DEV_C2C_LINK_STATUS", 1.0, 1.0, False, {})
    lame = gpu(GPUS, "node-1", gpu="0", modelName="NVIDIA GB200")
    del timeline.series["DCGM_FI_DEV_C2C_LINK_STATUS", tuple(sorted(lame.items()))]
    timeline.add("DCGM_FI_DEV_C2C_LINK_STATUS", lame, 0.0)
    findings = found(timeline, tmp_path)
    assert [name for name in findings if name.startswith("nvlink_errors:")] == [f"nvlink_errors:device/{uuid(GPUS)}"]
