"""Fill a real Prometheus quickly: remote write with numpy, a synthetic fleet with the labels of a real exporter."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from gpuwatch.facts.catalog.metrics import metric_rows, plausible_range
from parts.prometheus_server import ServerBuild, find_servers
from parts.remote_write import field, post, varint

GPUS_PER_NODE = 8
END = datetime(2026, 3, 2, 12, tzinfo=UTC)
"""Moment of the newest sample; fixed, so that every run asks the same questions."""


def newest_server() -> ServerBuild:
    """The newest Prometheus that is installed; says how to get one where there is none."""
    servers = find_servers()
    if not servers:
        sys.exit("benchmarks need a Prometheus: run tests/parts/install first")
    return max(servers, key=lambda build: build.major)


def series_labels(metric: str, gpu: int) -> dict[str, str]:
    """The labels that dcgm-exporter, the GPU Operator's ServiceMonitor and Prometheus' defaults give a row."""
    node, index = divmod(gpu, GPUS_PER_NODE)
    return {
        "__name__": metric,
        "gpu": str(index),
        "UUID": f"GPU-{gpu:08x}-69c4-b61d-e0bc-7b2460096005",
        "pci_bus_id": f"00000000:{0x53 + index:02X}:00.0",
        "device": f"nvidia{index}",
        "modelName": "NVIDIA A100-SXM4-80GB",
        "Hostname": f"gpu-node-{node:05d}",
        "DCGM_FI_DRIVER_VERSION": "580.105.08",
        "container": "nvidia-dcgm-exporter",
        "namespace": "gpu-operator",
        "pod": f"nvidia-dcgm-exporter-{node:05d}",
        "exported_container": "main",
        "exported_namespace": "ml",
        "exported_pod": f"train-{node:05d}-{index}",
        "endpoint": "gpu-metrics",
        "instance": f"10.{node >> 16 & 255}.{node >> 8 & 255}.{node & 255}:9400",
        "job": "nvidia-dcgm-exporter",
        "service": "nvidia-dcgm-exporter",
    }


def up_labels(node: int) -> dict[str, str]:
    gpu = series_labels("up", node * GPUS_PER_NODE)
    return {name: gpu[name] for name in ("__name__", "instance", "job", "namespace", "pod", "service", "endpoint")}


def load(
    url: str,
    metrics: Sequence[str],
    gpus: int,
    seconds: int,
    interval_seconds: int,
    silent_every: int = 0,
    up: bool = True,
) -> int:
    """Write the fleet's last `seconds` into the server; returns the number of samples written.

    silent_every: each GPU of that many reads 0 in everything; 0 for none. up: write the `up` series too.
    """
    rng = np.random.default_rng(11)
    heads = [_labels(series_labels(metric, gpu)) for metric in metrics for gpu in range(gpus)]
    heads += [_labels(up_labels(node)) for node in range(gpus // GPUS_PER_NODE if up else 0)]
    silent = range(0, gpus, silent_every) if silent_every else ()
    scales = np.array([[0.0 if gpu in silent else _top(metric) / 100] for metric in metrics for gpu in range(gpus)])
    scales = np.vstack([scales, np.ones((len(heads) - len(scales), 1))])
    # Scrapes have a phase of their own; samples exactly on multiples of a step are a case that no fleet shows.
    last = int(END.timestamp()) - 7
    times = np.arange(last - seconds + interval_seconds, last + 1, interval_seconds)
    # About 200,000 samples a request, or a few samples each of a large fleet, whose labels weigh more than they do.
    steps = min(max(200_000 // len(heads), 10), 120)
    at_once = 200_000 // steps
    written = 0
    for first in track(range(0, len(times), steps), "loading", console=Console(stderr=True)):
        chunk = times[first : first + steps]
        values = rng.integers(0, 101, size=(len(heads), len(chunk))).astype("<f8") * scales
        for part in range(0, len(heads), at_once):
            post(url, _request(heads[part : part + at_once], chunk, values[part : part + at_once]))
        written += len(heads) * len(chunk)
    return written


def _top(metric: str) -> float:
    """A plausible largest value of the metric, as exported: states stay 0, everything else at most 100 or its bound."""
    row = next(row for row in metric_rows() if row.metric == metric)
    if row.kind == "state":
        return 0.0
    return min(plausible_range(row.signal)[1] / row.scale, 100.0)


def _labels(labels: dict[str, str]) -> bytes:
    return b"".join(
        field(1, field(1, name.encode()) + field(2, value.encode())) for name, value in sorted(labels.items())
    )


def _request(heads: Sequence[bytes], times: np.ndarray, values: np.ndarray) -> bytes:
    # A sample is a fixed 18 bytes, because a millisecond time of this century is a varint of six.
    sample = np.empty((len(times), 18), np.uint8)
    sample[:, 0:3] = (0x12, 16, 0x09)
    sample[:, 11] = 0x10
    sample[:, 12:] = np.frombuffer(b"".join(varint(int(t) * 1000) for t in times), np.uint8).reshape(-1, 6)
    size = sample.size
    out = []
    for head, row in zip(heads, values, strict=True):
        sample[:, 3:11] = row.view(np.uint8).reshape(-1, 8)
        out.append(b"\x0a" + varint(len(head) + size) + head + sample.tobytes())
    return b"".join(out)
