"""A few hours of dcgm-exporter's metrics in which each rule has a GPU or Pod to find, beside some just short of it.

`SHOWN` says by name whom each section's query in docs/rules.md has to show, and so nobody else.
"""

from collections import defaultdict
from collections.abc import Callable

NOW = 1_760_000_400
STEP_SECONDS = 30
MINUTE, HOUR = 60, 3600

Value = Callable[[int], float | None]
"""By age in seconds before NOW; None where there is no sample."""

SHOWN: dict[str, set[str]] = {
    "health.recovery_action": {"action"},
    "health.dcgm_health": {"watch", "warns"},
    "health.vendor_health": {"amd"},
    "health.ecc": {"dbe", "stands", "sbe"},
    "health.row_remap": {"failed", "pending", "rows", "unrepairable", "exhausted", "low"},
    "health.page_retirement": {"full", "waits"},
    "health.pcie_replay": {"replays"},
    "health.pcie_width": {"narrow"},
    "health.nvlink_errors": {"replay", "recovery", "crc_flit", "crc_data", "symbols"},
    "health.fabric": {"training", "untrained", "unhealthy", "narrow bandwidth", "no route", "misconfigured"},
    "health.thermal_throttle": {"hot"},
    "health.power_brake": {"braked"},
    "health.board": {"corrupt"},
    "health.xid": {"new", "born"},
    "health.node_condition": {"n1"},
    "health.presence: gpu_missing": {"fallen"},
    "health.presence: exporter_down": {"silent-host"},
    "health.presence: telemetry_missing": {""},
    "health.hung": {"stuck"},
    "health.pod_failures": {"died"},
    "health.pod_admission": {"refused"},
    "health.infiniband": {"went down"},
    "health.health_unknown": {"mute"},
    "idle.never_used": {"never"},
    "idle.abandoned": {"left"},
    "idle.model_loaded": {"left"},
    "idle.partial_gang": {"torn"},
    "idle.host_bound": {"fed-slowly"},
    # By one query alone a Pod that was left looks like one that pauses.
    "idle.bursty": {"pauses", "left"},
    "idle.in_use": {"works", "fed-slowly", "half-seen"},
    "idle.suspected_idle": {"never", "young"},  # one query cannot tell the age
    "idle.idle_unknown": {"half-seen"},
    "misfit.hbm_contention": {"crowded"},
    "misfit.pcie_contention": {"thronged"},
    "misfit.scattered": {"wide"},
}


def always(value: float) -> Value:
    return lambda _: value


def per_minute(rate: float) -> Value:
    """A counter."""
    return lambda age: 1000 + rate * (8 * HOUR - age) / 60


def turned(at: int, before: float | None, after: float | None) -> Value:
    """`before` until that age, `after` from then on."""
    return lambda age: before if age > at else after


def every_minute(value: float) -> Value:
    return lambda age: value if age % 60 == 0 else None


def _gpu_series() -> list[tuple[str, dict[str, str], Value]]:
    series: list[tuple[str, dict[str, str], Value]] = []

    def gpu(metric: str, name: str, value: Value, **labels: str) -> None:
        series.append((f"DCGM_{metric}", {"UUID": name, "Hostname": "host", **labels}, value))

    gpu("FI_DEV_GPU_RECOVERY_ACTION", "action", always(1))
    gpu("FI_DEV_GPU_RECOVERY_ACTION", "well", always(0))
    gpu("EXP_GPU_HEALTH_STATUS", "watch", always(20), health_watch="MEM")
    gpu("EXP_GPU_HEALTH_STATUS", "well", always(10), health_watch="MEM")
    gpu("EXP_GPU_HEALTH_STATUS", "well", always(20), health_watch="THERMAL")
    gpu(
        "EXP_GPU_HEALTH_STATUS",
        "warns",
        always(10),
        health_watch="INFOROM",
        health_error_code="DCGM_FR_CORRUPT_INFOROM",
    )
    gpu("FI_DEV_ECC_DBE_VOL_TOTAL", "dbe", turned(30 * MINUTE, 0, 1))
    gpu("FI_DEV_ECC_DBE_VOL_TOTAL", "stands", always(5))
    gpu("FI_DEV_ECC_DBE_VOL_TOTAL", "well", turned(30 * MINUTE, 5, 0))
    gpu("FI_DEV_ECC_SBE_VOL_TOTAL", "sbe", per_minute(6.1))
    gpu("FI_DEV_ECC_SBE_VOL_TOTAL", "well", per_minute(5.9))
    gpu("FI_DEV_ROW_REMAP_FAILURE", "failed", always(1))
    gpu("FI_DEV_ROW_REMAP_FAILURE", "well", always(0))
    gpu("FI_DEV_ROW_REMAP_PENDING", "pending", always(1))
    gpu("FI_DEV_ROW_REMAP_PENDING", "well", always(0))
    gpu("FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "rows", always(512))
    gpu("FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "well", always(511))
    for metric, name, sick in (
        ("MEMORY_UNREPAIRABLE_FLAG", "unrepairable", 1),
        ("BANKS_REMAP_ROWS_AVAIL_NONE", "exhausted", 1),
        ("BANKS_REMAP_ROWS_AVAIL_LOW", "low", 1),
        ("INFOROM_CONFIG_VALID", "corrupt", 0),
    ):
        gpu(f"FI_DEV_{metric}", name, always(sick))
        gpu(f"FI_DEV_{metric}", "well", always(1 - sick))
    for name, single in (("full", 60), ("well", 59)):
        gpu("FI_DEV_RETIRED_SBE", name, always(single))
        gpu("FI_DEV_RETIRED_DBE", name, always(3))
    gpu("FI_DEV_RETIRED_PENDING", "waits", always(1))
    gpu("FI_DEV_PCIE_REPLAY_COUNTER", "replays", per_minute(31))
    gpu("FI_DEV_PCIE_REPLAY_COUNTER", "well", per_minute(30))
    gpu("FI_DEV_PCIE_LINK_WIDTH", "narrow", always(8))
    gpu("FI_DEV_PCIE_LINK_WIDTH", "well", turned(10 * MINUTE, 16, 8))
    for name in ("narrow", "well"):
        gpu("FI_DEV_PCIE_MAX_LINK_WIDTH", name, always(16))
    for name, enough in (("replay", 1.0), ("recovery", 1.0), ("crc_flit", 6000.0), ("crc_data", 6000.0)):
        metric = f"FI_DEV_NVLINK_{name.upper()}_ERROR_COUNT_TOTAL"
        gpu(metric, name, per_minute(1.01 * enough))
        gpu(metric, "well", per_minute(0.99 * enough))
    gpu("FI_DEV_THERMAL_VIOLATION", "hot", per_minute(0.11 * 60e9))
    gpu("FI_DEV_THERMAL_VIOLATION", "well", per_minute(0.09 * 60e9))
    gpu("FI_DEV_THERMAL_VIOLATION", "a hot moment", turned(5 * MINUTE, 0, 500e9))
    gpu("FI_DEV_CLOCKS_EVENT_REASONS", "braked", always(0x80 + 0x4))
    gpu("FI_DEV_CLOCKS_EVENT_REASONS", "capped", always(0x4))
    gpu("FI_DEV_CLOCKS_EVENT_REASONS", "once", turned(10 * MINUTE, 0, 0x80))
    gpu("FI_DEV_XID_ERRORS", "new", turned(20 * MINUTE, 13, 79))
    gpu("FI_DEV_XID_ERRORS", "born", turned(20 * MINUTE, None, 79))
    gpu("FI_DEV_XID_ERRORS", "well", always(79))
    gpu("FI_DEV_GPU_TEMP", "fallen", turned(20 * MINUTE, 40, None))
    gpu("FI_DEV_GPU_TEMP", "well", always(40))
    gpu("FI_DEV_GPU_TEMP", "mute", always(40))
    gpu("FI_DEV_GPU_TEMP", "dark", turned(20 * MINUTE, 40, None), Hostname="silent-host")
    for name, dram, watts in (("stuck", 0.0005, 120.0), ("well", 0.3, 120.0), ("warm", 0.0005, 600.0)):
        gpu("FI_PROF_GR_ENGINE_ACTIVE", name, always(1))
        gpu("FI_PROF_DRAM_ACTIVE", name, always(dram))
        gpu("FI_DEV_POWER_USAGE", name, turned(2 * HOUR, 75, watts))
    return series


def _fabric_series() -> list[tuple[str, dict[str, str], Value]]:
    series: list[tuple[str, dict[str, str], Value]] = []

    def gpu(metric: str, name: str, value: Value) -> None:
        series.append((f"DCGM_{metric}", {"UUID": name, "Hostname": "host"}, value))

    gpu("FI_DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS", "symbols", per_minute(1.01))
    gpu("FI_DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS", "well", per_minute(0.99))
    gpu("FI_DEV_FABRIC_MANAGER_STATUS", "training", always(2))
    gpu("FI_DEV_FABRIC_MANAGER_STATUS", "untrained", always(4))
    gpu("FI_DEV_FABRIC_MANAGER_STATUS", "well", always(3))
    gpu("FI_DEV_FABRIC_MANAGER_STATUS", "has none", always(0))
    gpu("FI_DEV_FABRIC_HEALTH_SUMMARY", "unhealthy", always(2))
    gpu("FI_DEV_FABRIC_HEALTH_SUMMARY", "well", always(1))
    for name, mask in (("narrow bandwidth", 0x1A9), ("no route", 0x19A), ("misconfigured", 0x4AA), ("well", 0x1AA)):
        gpu("FI_DEV_FABRIC_HEALTH_MASK", name, always(mask))
    return series


def _pod_series() -> list[tuple[str, dict[str, str], Value]]:
    series: list[tuple[str, dict[str, str], Value]] = []

    def pod(metric: str, name: str, value: Value) -> None:
        labels = {"UUID": f"of {name}", "Hostname": "host", "exported_namespace": "ml", "exported_pod": name}
        series.append((f"DCGM_{metric}", labels, value))

    busy = "FI_PROF_GR_ENGINE_ACTIVE"
    pod(busy, "never", always(0))
    pod(busy, "young", turned(HOUR, None, 0))
    pod(busy, "left", turned(7 * HOUR, 0.5, 0))
    pod(busy, "pauses", turned(HOUR, 0.5, 0))
    pod(busy, "works", always(0.5))
    pod(busy, "fed-slowly", always(0.1))
    pod(busy, "half-seen", every_minute(0.5))
    pod("FI_DEV_FB_USED", "left", always(2000))
    pod("FI_DEV_FB_USED", "never", always(300))
    pod("FI_DEV_FB_USED", "works", always(2000))
    for name, watts in (("works", 300.0), ("half-seen", 300.0), ("left", 85.0)):
        pod("FI_DEV_POWER_USAGE", name, always(watts))
    return series


def _shared_series() -> list[tuple[str, dict[str, str], Value]]:
    """GPUs and what their Pods do with memory and link; Nodes and the Jobs on them."""
    series: list[tuple[str, dict[str, str], Value]] = []
    full = 0.9 * 0.92 * 984.6e6 * 16

    def gpu(name: str, pods: tuple[str, ...], dram: Value, link: Value, **labels: str) -> None:
        for pod in pods:
            held = {"UUID": name, "Hostname": "host", "exported_namespace": "ml", "exported_pod": pod, **labels}
            series.append(("DCGM_FI_PROF_DRAM_ACTIVE", held, dram))
            series.append(("DCGM_FI_PROF_PCIE_RX_BYTES", held, link))
        series.append(("DCGM_FI_DEV_PCIE_LINK_WIDTH", {"UUID": name, "Hostname": "host"}, always(16)))
        series.append(("DCGM_FI_DEV_PCIE_LINK_GEN", {"UUID": name, "Hostname": "host"}, always(3)))

    two = ("share-a", "share-b")
    gpu("crowded", two, always(0.73), always(0.99 * full))
    gpu("thronged", two, always(0.71), always(1.01 * full))
    gpu("crowded a while", two, turned(25 * MINUTE, 0.5, 0.8), turned(25 * MINUTE, 0.0, full * 1.05))
    gpu("its own", ("share-a",), always(0.8), always(1.05 * full))
    gpu("sliced", two, always(0.8), always(1.05 * full), GPU_I_ID="1")
    for node in ("n1", "n2", "n3"):
        clique = "a" if node == "n1" else "b"
        said = {"node": node, "condition": "XidCriticalError", "status": "true"}
        series.append(("kube_node_status_condition", said, always(1 if node == "n1" else 0)))
        series.append(("kube_node_labels", {"node": node, "label_nvidia_com_gpu_clique": clique}, always(1)))
    for job, nodes in (("wide", ("n1", "n2")), ("near", ("n2", "n3")), ("torn", ("n1", "")), ("waits", ("", ""))):
        for number, node in enumerate(nodes):
            labels = {"namespace": "ml", "pod": f"{job}-{number}", "node": node}
            labels |= {"created_by_kind": "Job", "created_by_name": job}
            series.append(("kube_pod_info", labels, always(1)))
    for pod, node, failed in (("died", "gpu-1", 1), ("lives", "gpu-1", 0), ("died elsewhere", "gpu-2", 1)):
        series.append(("kube_pod_info", {"namespace": "ml", "pod": pod, "node": node}, always(1)))
        phase = {"namespace": "ml", "pod": pod, "phase": "Failed"}
        series.append(("kube_pod_status_phase", phase, lambda age, failed=failed: failed if age > HOUR else None))
    for pod, node in (("refused", "gpu-1"), ("refused elsewhere", "gpu-2")):
        series.append(("kube_pod_info", {"namespace": "ml", "pod": pod, "node": node}, always(1)))
        reason = {"namespace": "ml", "pod": pod, "reason": "UnexpectedAdmissionError"}
        series.append(("kube_pod_status_reason", reason, always(1)))
    for port, state in (("went down", lambda age: 1 if age < HOUR else 4), ("up", always(4)), ("unused", always(1))):
        series.append(("node_infiniband_state_id", {"node": port, "device": "mlx5_0", "port": "1"}, state))
    return series


def openmetrics() -> str:
    """Everything as text for `promtool tsdb create-blocks-from openmetrics`: eight hours, samples 30 s apart."""
    lines: dict[str, list[str]] = defaultdict(list)
    amd: list[tuple[str, dict[str, str], Value]] = [
        ("gpu_health", {"gpu_uuid": "amd"}, always(0)),
        ("gpu_health", {"gpu_uuid": "well"}, always(1)),
    ]
    for metric, labels, value in (*_gpu_series(), *_fabric_series(), *_pod_series(), *_shared_series(), *amd):
        text = ",".join(f'{name}="{label}"' for name, label in labels.items())
        for age in range(8 * HOUR, -1, -STEP_SECONDS):
            found = value(age)
            if found is not None:
                lines[metric].append(f"{metric}{{{text}}} {found} {NOW - age}")
    return "\n".join(line for each in lines.values() for line in each) + "\n# EOF\n"
