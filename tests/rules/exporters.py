"""What each exporter writes of one GPU that works and has every fault it can tell of: the rows of exporters.yaml."""

from pathlib import Path
from typing import Any, NamedTuple

import yaml

_TABLES: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_DCGM = _TABLES["dcgm"]
H100: str = _DCGM["labels"]["modelName"]
MIB = 1048576

EXPORTED = {
    "namespace": "gpu-operator", "pod": "dcgm-x2x4z", "container": "exporter",
    "exported_namespace": "team-a", "exported_pod": "train-0", "exported_container": "main",
}  # fmt: skip
"""Pod labels of a scrape with honorLabels: false."""
NATIVE = {"namespace": "team-a", "pod": "train-0", "container": "main"}
"""With honorLabels: true."""
STEADY: dict[str, tuple[str, float, float]] = {name: tuple(row) for name, row in _DCGM["steady"].items()}
"""Name up to 4.8 → name from 4.9, value up to 4.8, factor to the value from 4.9."""
DEFAULT_LIST = frozenset(_DCGM["default_list"])


class Row(NamedTuple):
    metric: str
    labels: dict[str, str]
    value: float
    """Of the first sample."""
    rise: float = 0.0
    """From then on, in 30 seconds."""


def dcgm(new: bool, host: str = "", **labels: str) -> list[Row]:
    """In the names from 4.9 where `new`, else up to 4.8. `host` is the label that the exporter has for it."""
    own = {**_DCGM["labels"], host or ("hostname" if new else "Hostname"): "n1", **labels}
    rows = [
        Row(name49, own, value * factor) if new else Row(old, own, value)
        for old, (name49, value, factor) in STEADY.items()
    ]
    rows += [
        Row(name49, own, 0, rise * factor) if new else Row(old, own, 0, rise)
        for old, (name49, rise, factor) in _DCGM["rising"].items()
    ]
    # Rows of a link name the card in labels of their own, and no Pod.
    of_card = {"nvlink", "UUID", "modelName", "DCGM_FI_DRIVER_VERSION", "GPU_I_ID", "GPU_I_PROFILE", "vgpu", *EXPORTED}
    of_link = {"gpu_uuid": own["UUID"], "model_name": own["modelName"]}
    of_link |= {name: value for name, value in own.items() if name not in of_card}
    for kind in _DCGM["links"]:
        name = f"DCGM_FI_DEV_NVLINK_{kind}_ERROR_{'TOTAL' if new else 'COUNT_TOTAL'}"
        rows += [Row(name, {"nvlink": link, **of_link}, 0, 3) for link in "01"]
    return rows


def _listed(exporter: str, labels: dict[str, str], prefix: str = "") -> list[Row]:
    own = _TABLES[exporter]["labels"] | labels
    return [
        Row(prefix + metric, {**more, **own}, value, rise) for metric, more, value, rise in _TABLES[exporter]["rows"]
    ]


def amd(prefix: str = "", **labels: str) -> list[Row]:
    """device-metrics-exporter; `prefix` is amd_ under AMD's GPU operator."""
    return _listed("amd", labels, prefix)


def amd_partition(partition: int, prefix: str = "", **labels: str) -> list[Row]:
    """One of the four of a divided card: temperature, activity and power stand on the first alone."""
    own = {"gpu_compute_partition_type": "qpx", "gpu_partition_id": str(partition), "gpu_id": str(partition)}
    on_each = {f"{prefix}gpu_used_vram", f"{prefix}gpu_total_vram", f"{prefix}gpu_package_power"}
    return [row for row in amd(prefix, **own | labels) if partition == 0 or row.metric in on_each]


def intel_1(**labels: str) -> list[Row]:
    """XPU Manager 1.x: two tiles of a card."""
    return _listed("intel_1", labels)


def intel_2(**labels: str) -> list[Row]:
    """XPU Manager 2.x: two tiles of a card, and no Pod."""
    return _listed("intel_2", labels)


def gaudi(**labels: str) -> list[Row]:
    return _listed("gaudi", labels)


def well(rows: list[Row]) -> list[Row]:
    """The same GPU without a fault: every counter of errors stands still, every state is 0."""
    return [row._replace(value=0 if row.metric in _TABLES["fault_states"] else row.value, rise=0) for row in rows]
