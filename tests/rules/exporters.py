"""What each exporter writes of one GPU that works and has every fault that it can tell of: rows with their labels.

The names are the exporters' own, written down by hand: gpuwatch's catalog is what is tested with them.
"""

from __future__ import annotations

from typing import NamedTuple

H100 = "NVIDIA H100 80GB HBM3"
MIB = 1048576

EXPORTED = {
    "namespace": "gpu-operator", "pod": "dcgm-x2x4z", "container": "exporter",
    "exported_namespace": "team-a", "exported_pod": "train-0", "exported_container": "main",
}  # fmt: skip
"""Pod labels of a scrape with honorLabels: false."""
NATIVE = {"namespace": "team-a", "pod": "train-0", "container": "main"}
"""With honorLabels: true."""


class Row(NamedTuple):
    metric: str
    labels: dict[str, str]
    value: float
    """Of the first sample."""
    rise: float = 0.0
    """From then on, in 30 seconds."""


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
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("DCGM_FI_DEV_ROW_REMAP_FAILED", 1, 1),
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


def dcgm(new: bool, host: str = "", **labels: str) -> list[Row]:
    """In the names from 4.9 where `new`, else up to 4.8. `host` is the label that the exporter has for it."""
    host = host or ("hostname" if new else "Hostname")
    own = {"gpu": "0", "UUID": "GPU-a", "modelName": H100, host: "n1", "DCGM_FI_DRIVER_VERSION": "580.1"} | labels
    rows = [
        Row(name49, own, value * factor) if new else Row(old, own, value)
        for old, (name49, value, factor) in STEADY.items()
    ]
    rows += [
        Row(name49, own, 0, rise * factor) if new else Row(old, own, 0, rise)
        for old, (name49, rise, factor) in RISING.items()
    ]
    # Rows of a link name the card in labels of their own, and no Pod.
    of_card = {"nvlink", "UUID", "modelName", "DCGM_FI_DRIVER_VERSION", "GPU_I_ID", "GPU_I_PROFILE", "vgpu", *EXPORTED}
    of_link = {"gpu_uuid": own["UUID"], "model_name": own["modelName"]}
    of_link |= {name: value for name, value in own.items() if name not in of_card}
    for kind in LINKS:
        name = f"DCGM_FI_DEV_NVLINK_{kind}_ERROR_{'TOTAL' if new else 'COUNT_TOTAL'}"
        rows += [Row(name, {"nvlink": link, **of_link}, 0, 3) for link in "01"]
    return rows


DEFAULT_LIST = {
    "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_ROW_REMAP_FAILURE",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE",
}  # fmt: skip
"""What of it dcgm-exporter writes by itself: its etc/default-counters.csv, 4.5.3 to 4.8.2."""


def amd(prefix: str = "", **labels: str) -> list[Row]:
    """device-metrics-exporter; `prefix` is amd_ under AMD's GPU operator."""
    own = {"hostname": "n1", "card_series": "AMD Instinct MI300X OAM", "serial_number": "S1", "gpu_id": "2"}
    own |= {"gpu_partition_id": "0", "gpu_compute_partition_type": "spx", "gpu_memory_partition_type": "nps1"}
    own |= labels
    rows = [
        Row("gpu_gfx_busy_instantaneous", {"xcc": "0", **own}, 40),
        Row("gpu_gfx_busy_instantaneous", {"xcc": "1", **own}, 60),
        Row("gpu_gfx_activity", own, 90),
        Row("gpu_prof_sm_active", own, 40),
        Row("gpu_prof_tensor_active_percent", own, 30),
        Row("gpu_umc_activity", own, 20),
        Row("gpu_used_vram", own, 1024),
        Row("gpu_total_vram", own, 4096),
        Row("gpu_junction_temperature", own, 60),
        Row("gpu_memory_temperature", own, 70),
        Row("gpu_package_power", own, 0),
        Row("gpu_average_package_power", own, 300),
        Row("gpu_clock", {"clock_type": "system", **own}, 1980),
        Row("gpu_clock", {"clock_type": "memory", **own}, 900),
        Row("gpu_ecc_correct_total", own, 0, 3),
        Row("gpu_ecc_uncorrect_total", own, 0, 2),
        Row("pcie_replay_count", own, 0, 6),
    ]
    return [row._replace(metric=prefix + row.metric) for row in rows]


def amd_partition(partition: int, prefix: str = "", **labels: str) -> list[Row]:
    """One of the four of a divided card: temperature, activity and power stand on the first alone."""
    own = {"gpu_compute_partition_type": "qpx", "gpu_partition_id": str(partition), "gpu_id": str(partition)}
    on_each = {f"{prefix}gpu_used_vram", f"{prefix}gpu_total_vram", f"{prefix}gpu_package_power"}
    return [row for row in amd(prefix, **own | labels) if partition == 0 or row.metric in on_each]


INTEL_POD = {"kube_namespace": "team-a", "kube_pod": "train-0", "kube_container": "main", "pod": "xpumd-1"}


def intel_1(**labels: str) -> list[Row]:
    """XPU Manager 1.x: two tiles of a card."""
    rows = []
    for tile in "01":
        own = {"uuid": "u-1", "dev_name": "Max 1550", "card": "card0", "node": "n1", "sub_dev": tile}
        own |= INTEL_POD | labels
        rows += [
            Row("xpum_engine_ratio", own, 0.4 + int(tile) / 10),
            Row("xpum_eu_active_ratio", own, 0.4),
            Row("xpum_memory_bandwidth_ratio", own, 0.2),
            Row("xpum_memory_used_bytes", own, 1000),
            Row("xpum_power_watts", own, 300),
            Row("xpum_temperature_celsius", {"location": "gpu", **own}, 60),
            Row("xpum_temperature_celsius", {"location": "mem", **own}, 70),
            Row("xpum_frequency_mhz", {"location": "gpu", "type": "actual", **own}, 1980),
            Row("xpum_cache_errors_total", {"type": "uncorrectable", **own}, 0, 2),
            Row("xpum_cache_errors_total", {"type": "correctable", **own}, 0, 3),
        ]
    return rows


def intel_2(**labels: str) -> list[Row]:
    """XPU Manager 2.x: two tiles of a card, and no Pod."""
    rows = []
    for tile in "01":
        own = {"pci_bdf": "0000:4d:00.0", "hw_name": "Max 1550", "node": "n1", "com_intel_subdevice_id": tile}
        own |= labels
        errors = {"hw_type": "gpu", "error_category": "a", **own}
        rows += [
            Row("hw_gpu_utilization_ratio", own, 0.5),
            Row("hw_memory_bandwidth_utilization_ratio", own, 0.2),
            Row("hw_memory_usage_bytes", {"hw_memory_location": "device", **own}, 1000),
            Row("hw_memory_size_bytes", {"hw_memory_location": "device", **own}, 4000),
            Row("hw_power_watts", own, 300),
            Row("hw_power_limit_watts", own, 700),
            Row("hw_temperature_celsius", {"hw_sensor_location": "gpu", "statistic": "max", **own}, 60),
            Row("hw_temperature_celsius", {"hw_sensor_location": "memory", "statistic": "max", **own}, 70),
            Row("hw_frequency_hertz", {"hw_frequency_domain": "gpu", "aggregation": "avg", **own}, 1.98e9),
            Row("hw_errors_total", {"error_type": "uncorrectable", **errors}, 0, 1),
            Row("hw_errors_total", {"error_type": "correctable", **errors}, 0, 1),
        ]
    return rows


def gaudi(**labels: str) -> list[Row]:
    own = {"UUID": "G-1", "id": "3", "Hostname": "n1", "pod_namespace": "team-a", "pod_name": "train-0"}
    own |= {"pod": "habana-metrics-1", "namespace": "habana", "container": "exporter"} | labels
    return [
        Row("habanalabs_utilization", own, 50),
        Row("habanalabs_memory_used_bytes", own, 1024),
        Row("habanalabs_memory_total_bytes", own, 4096),
        Row("habanalabs_power_mW", own, 300_000),
        Row("habanalabs_power_default_limit_mW", own, 700_000),
        Row("habanalabs_temperature_onchip", own, 60),
        Row("habanalabs_clock_soc_mhz", own, 1980),
        Row("habanalabs_pending_rows_state", own, 1),
        Row("habanalabs_pcie_replay_count", own, 0, 6),
    ]


FAULT_STATES = {
    "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR",
    "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", "DCGM_FI_DEV_GPU_RECOVERY_ACTION",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED", "DCGM_FI_DEV_ROW_REMAP_PENDING",
    "habanalabs_pending_rows_state",
}  # fmt: skip


def well(rows: list[Row]) -> list[Row]:
    """The same GPU without a fault: every counter of errors stands still, every state is 0."""
    return [row._replace(value=0 if row.metric in FAULT_STATES else row.value, rise=0) for row in rows]
