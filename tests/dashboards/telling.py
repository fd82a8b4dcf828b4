"""What a Prometheus has to hold for the boards: the recorded layer of several clusters, and gpuwatch's own metrics.

Each cluster is a value of the label `cluster`:

- `dcgm-old`, `dcgm-new`, `amd`: by exporter. The recorded layer gives them the same names; what the exporter does not
  tell is missing (`LACKS`).
- `mig`: cards cut into instances. `shared`: two Pods on each GPU. `quiet`: nothing found, no fault.
- `stopped`: every exporter stopped two hours ago; gpuwatch runs on, and sees nothing.
- `never`: nothing was ever told of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from app.told_fleet import END, leading, simulated
from gpuwatch.model.decision import Analysis

STEP = 120
HOURS = 5
STOPPED_HOURS = 2
WATCHED = ("dcgm-old", "dcgm-new", "amd", "mig", "shared", "quiet")
LACKS = {
    "dcgm-old": {"gpu:gpu_recovery_action:max", "gpu:gpu_nvlink_errors:rate15m"},
    "amd": {
        "gpu:gpu_xid:last", "gpu:gpu_recovery_action:max", "gpu:gpu_row_remap_failed:max",
        "gpu:gpu_row_remap_pending:max", "gpu:gpu_nvlink_errors:rate15m", "gpu:gpu_power_brake_ratio:rate15m",
        "gpu:gpu_power_limit_watts:max", "device:gpu_tensor_active_ratio:max", "device:gpu_dram_active_ratio:max",
    },
}  # fmt: skip
"""What an exporter of such a cluster does not tell, so that the recorded layer has no series."""

DEVICE_VALUES = {
    "device:gpu_share:ratio": 1.0, "device:gpu_allocated:bool": 1.0,
    "device:gpu_engine_active_ratio:max": 0.6, "device:gpu_sm_active_ratio:max": 0.5,
    "device:gpu_tensor_active_ratio:max": 0.3, "device:gpu_dram_active_ratio:max": 0.4,
    "device:gpu_memory_used_bytes:max": 4e10, "device:gpu_memory_total_bytes:max": 8.5e10,
}  # fmt: skip
CARD_VALUES = {
    "gpu:gpu_temperature_celsius:max": (62, 71), "gpu:gpu_memory_temperature_celsius:max": (70, 80),
    "gpu:gpu_power_watts:max": (400, 410), "gpu:gpu_power_limit_watts:max": (700, 700),
    "gpu:gpu_sm_clock_hertz:max": (1.9e9, 1.4e9), "gpu:gpu_xid:last": (0, 79),
    "gpu:gpu_ecc_uncorrected:increase1h": (0, 1), "gpu:gpu_ecc_uncorrected_since_reload:max": (0, 1),
    "gpu:gpu_ecc_corrected:rate1h": (0, 0.2), "gpu:gpu_row_remap_failed:max": (0, 1),
    "gpu:gpu_row_remap_pending:max": (0, 1), "gpu:gpu_pcie_replays:rate15m": (0, 0.1),
    "gpu:gpu_nvlink_errors:rate15m": (0, 0.1), "gpu:gpu_thermal_throttle_ratio:rate15m": (0, 0.2),
    "gpu:gpu_power_brake_ratio:rate15m": (0, 0.2), "gpu:gpu_recovery_action:max": (0, 1),
    "gpu:gpu_engine_active_ratio:weighted": (0.6, 0.6), "gpu:gpu_allocated_ratio:sum": (1, 1),
}  # fmt: skip
"""Of a card that is well, and of the sick one of each cluster. `quiet` has no sick one."""

Series = tuple[str, dict[str, str], float]


def recorded(cluster: str) -> Iterator[Series]:
    """The recorded layer: two Nodes of two GPUs each; the second Node's second GPU is sick."""
    model = "AMD Instinct MI300X" if cluster == "amd" else "NVIDIA H100 80GB HBM3"
    lacks = LACKS.get(cluster, set())
    for node in ("node-1", "node-2"):
        place = {"cluster": cluster, "node": node}
        for gpu in "01":
            card = {**place, "UUID": f"GPU-{cluster}-{node}-{gpu}", "gpu": gpu, "modelName": model}
            sick = (node, gpu) == ("node-2", "1") and cluster != "quiet"
            yield from ((name, card, float(pair[sick])) for name, pair in CARD_VALUES.items() if name not in lacks)
            cut = [{"GPU_I_ID": "1", "GPU_I_PROFILE": "3g.40gb"}, {"GPU_I_ID": "2", "GPU_I_PROFILE": "3g.40gb"}]
            for instance in cut if cluster == "mig" else [{}]:
                device = {**card, **instance}
                yield from ((name, device, value) for name, value in DEVICE_VALUES.items() if name not in lacks)
                for pod in ("train-0", "train-1") if cluster == "shared" else ("train-0",):
                    work = {"namespace": f"team-{node[-1]}", "pod": f"{pod}-{node}", "container": "main"}
                    yield "device:gpu_workload:info", {**device, **work}, 1.0
        yield "node:gpus:count", place, 2.0
        yield "node:gpu_engine_active_ratio:avg", place, 0.6
        yield "node:gpu_power_watts:sum", place, 810.0
        space = {"cluster": cluster, "namespace": f"team-{node[-1]}"}
        yield "namespace:gpus_allocated:count", space, 2.0
        yield "namespace:gpu_engine_active_ratio:avg", space, 0.6
    models = {"cluster": cluster, "modelName": model}
    yield "cluster:gpus:count", models, 4.0
    yield "cluster:gpus_allocated:sum", models, 4.0
    yield "cluster:gpu_engine_active_ratio:avg", models, 0.6


def of_cluster(cluster: str) -> Iterator[Series]:
    """What kube-state-metrics and the rules tell."""
    for node in ("node-1", "node-2"):
        labels = {"cluster": cluster, "node": node, "resource": "nvidia_com_gpu", "unit": "integer"}
        yield "kube_node_status_capacity", labels, 2.0
        yield "kube_node_status_allocatable", labels, 2.0 if cluster == "quiet" else 1.0
    if cluster != "quiet":
        alert = {"alertname": "GpuXidFatal", "alertstate": "firing", "severity": "critical", "node": "node-2"}
        yield "ALERTS", {**alert, "cluster": cluster, "UUID": f"GPU-{cluster}-node-2-1"}, 1.0


def told(analysis: Analysis) -> list[Series]:
    """gpuwatch's own metrics, as a real registry tells them."""
    text = generate_latest(leading(analysis).registry).decode()
    return [
        (sample.name, dict(sample.labels), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created") and sample.name != "python_info"
    ]


def openmetrics(folder: Path, now: int) -> str:
    """All of it at each step of the last hours until `now` (Unix seconds)."""
    samples: dict[str, list[str]] = defaultdict(list)
    begin, stop = now - HOURS * 3600, now - STOPPED_HOURS * 3600

    def write(series: Iterable[Series], until: int, since: int = begin) -> None:
        for name, labels, value in series:
            shown = ",".join(f'{key}="{word}"' for key, word in labels.items())
            for index, at in enumerate(range(begin, until + 1, STEP)):
                if at < since:
                    continue
                moved = value
                if name.endswith(("_total", "_count", "_sum", "_bucket")):
                    moved = value + index  # every counter counts
                elif "gpuwatch" in name and name.endswith("_timestamp_seconds"):
                    moved = at - 60 if name != "gpuwatch_report_done_timestamp_seconds" else at - 90
                samples[name].append(f"{name}{{{shown}}} {moved} {at}")

    own, unseen = told(simulated(folder)), told(simulated(folder, END + timedelta(hours=STOPPED_HOURS)))
    for cluster in (*WATCHED, "stopped"):
        write(recorded(cluster), stop if cluster == "stopped" else now)
        write(of_cluster(cluster), stop if cluster == "stopped" else now)
    for cluster in (*WATCHED, "stopped"):
        target = {"cluster": cluster, "job": "gpuwatch", "instance": f"{cluster}:8080", "namespace": "gpuwatch"}
        chosen = unseen if cluster == "stopped" else own
        if cluster == "quiet":
            chosen = [each for each in own if not each[0].startswith(("gpuwatch_finding", "gpuwatch_advice"))]
        write(((name, {**labels, **target}, value) for name, labels, value in chosen), now)
    return "\n".join(line for lines in samples.values() for line in lines) + "\n# EOF\n"
