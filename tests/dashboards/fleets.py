"""What a Prometheus has to hold for the boards: small fleets of every exporter, recorded by the shipped rules.

Each fleet is a value of the label `cluster`. The exporters' rows are written as they are scraped; the recorded layer is
what this Prometheus answers to the rules' own expressions. kube-state-metrics, alerts and gpuwatch's own metrics stand
beside them.
"""

import contextlib
import itertools
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from app.told_fleet import END, leading, simulated
from dashboards.shown import ROOT, SERIES, targets
from parts import prometheus_server, remote_write
from parts.prometheus_server import ServerBuild
from rules import exporters
from rules.exporters import Row

STEP = 120
STOPPED_HOURS = 2
HOURS = 1.5
NODES = ("node-1", "node-2")
FREE, SICK = ("node-1", "0"), ("node-2", "1")
"""The GPU that no Pod has, and the one with every fault."""

Rows = Callable[[str, str], list[Row]]
"""Of a GPU, by its Node and index."""
Labels = dict[str, str]


def pod(node: str, gpu: str, number: int = 0) -> Labels:
    """The labels of a GPU's Pod: empty on the free GPU."""
    labels = {"namespace": f"team-{node[-1]}", "pod": f"train-{number}-{node}", "container": "main"}
    return dict.fromkeys(labels, "") if (node, gpu) == FREE else labels


def scraped(target: Labels, own: Labels, honour: bool) -> Labels:
    """What a scrape makes of the labels of its target and of the exporter, with honorLabels or without."""
    told = {name: value for name, value in own.items() if value}
    return target | (told if honour else {f"exported_{name}": value for name, value in told.items()})


def nvidia(new: bool, attached: bool, honour: bool, cut: str) -> Rows:
    """dcgm-exporter: Nodes attached by the scrape or told by it; whole GPUs, MIG instances, or Pods that share."""

    def rows(node: str, gpu: str) -> list[Row]:
        card = {"gpu": gpu, "UUID": f"GPU-{node}-{gpu}", "hostname" if new else "Hostname": node}
        if attached:  # and without NODE_NAME the exporter knows its own Pod's name alone
            card |= {"node": node, "hostname" if new else "Hostname": f"nvidia-dcgm-exporter-{node}"}
        target = {"namespace": "gpu-operator", "pod": f"nvidia-dcgm-exporter-{node}", "container": "exporter"}
        instances = [{"GPU_I_ID": number, "GPU_I_PROFILE": "3g.40gb"} for number in "12"] if cut == "mig" else [{}]
        written = [
            row
            for instance in instances
            for number in range(2 if cut == "shared" else 1)
            for row in exporters.dcgm(new, **card, **instance, **scraped(target, pod(node, gpu, number), honour))
        ]
        return [row for row in written if cut != "mig" or "GPU_UTIL" not in row.metric]

    return rows


def default_list(node: str, gpu: str) -> list[Row]:
    every = nvidia(new=False, attached=True, honour=False, cut="whole")(node, gpu)
    return [row for row in every if row.metric in exporters.DEFAULT_LIST]


def amd(honour: bool, divided: bool) -> Rows:
    target = {"namespace": "kube-amd-gpu", "container": "metrics-exporter-container"}

    def rows(node: str, gpu: str) -> list[Row]:
        exporter = target | {"pod": f"amd-metrics-exporter-{node}"}
        labels = {"hostname": node, "serial_number": f"S{gpu}"}
        labels |= scraped(exporter, pod(node, gpu), honour)
        if not divided:
            return exporters.amd(**labels, gpu_id=gpu)
        return [row for number in range(4) for row in exporters.amd_partition(number, "amd_", **labels)]

    return rows


def intel_1(node: str, gpu: str) -> list[Row]:
    pods = {f"kube_{name}": value for name, value in pod(node, gpu).items()}
    return exporters.intel_1(node=node, uuid=f"{node}-{gpu}", card=f"card{gpu}", **pods)


def intel_2(attached: bool) -> Rows:
    def rows(node: str, gpu: str) -> list[Row]:
        labels = {"instance": f"{node}:29999", "node": node if attached else "", "pci_bdf": f"0000:4{gpu}:00.0"}
        return exporters.intel_2(**labels)

    return rows


def gaudi(attached: bool) -> Rows:
    def rows(node: str, gpu: str) -> list[Row]:
        labels = {"Hostname": "", "node": node if attached else "", "UUID": f"{node}-{gpu}", "id": gpu}
        holder = pod(node, gpu)
        return exporters.gaudi(pod_namespace=holder["namespace"], pod_name=holder["pod"], **labels)

    return rows


NVIDIA = list(itertools.product(("4.8", "4.9"), ("host", "node"), ("exported", "honoured"), ("whole", "mig", "shared")))
FLEETS: dict[str, tuple[str, Rows]] = {
    **{
        "-".join(("dcgm", version, host, pods, cut)): (
            "nvidia_com_mig_3g_40gb" if cut == "mig" else "nvidia_com_gpu",
            nvidia(version == "4.9", host == "node", pods == "honoured", cut),
        )
        for version, host, pods, cut in NVIDIA
    },
    "dcgm-default-list": ("nvidia_com_gpu", default_list),
    "amd-exported": ("amd_com_gpu", amd(honour=False, divided=False)),
    "amd-honoured": ("amd_com_gpu", amd(honour=True, divided=False)),
    "amd-exported-divided": ("amd_com_gpu", amd(honour=False, divided=True)),
    "amd-honoured-divided": ("amd_com_gpu", amd(honour=True, divided=True)),
    "intel-1": ("gpu_intel_com_i915", intel_1),
    "intel-2": ("gpu_intel_com_xe", intel_2(attached=True)),
    "intel-2-without-node": ("gpu_intel_com_xe", intel_2(attached=False)),
    "gaudi": ("habana_ai_gaudi", gaudi(attached=True)),
    "gaudi-without-node": ("habana_ai_gaudi", gaudi(attached=False)),
    "quiet": ("nvidia_com_gpu", nvidia(new=True, attached=False, honour=False, cut="whole")),
    "stopped": ("nvidia_com_gpu", nvidia(new=True, attached=False, honour=False, cut="whole")),
}
"""Resource and rows of each fleet. `quiet` has no fault and nothing is found in it; the exporters of `stopped` stopped
two hours ago, and gpuwatch runs on and sees nothing."""

Series = tuple[Labels, list[tuple[float, float | None]]]


def telemetry(cluster: str, times: Sequence[int]) -> Iterator[Series]:
    """What the exporters write."""
    seen = set()
    for node, gpu in itertools.product(NODES, "01"):
        sick = (node, gpu) == SICK and cluster != "quiet"
        rows = FLEETS[cluster][1](node, gpu)
        for metric, labels, value, rise in rows if sick else exporters.well(rows):
            named = {"__name__": metric, "cluster": cluster, **{name: word for name, word in labels.items() if word}}
            if (key := frozenset(named.items())) in seen:
                continue  # the links of a card, which stand beside each of its instances
            seen.add(key)
            start = value + 9 * (sick and "temp" in metric.lower())
            yield named, [(at, start + rise * (at - times[0]) / 30) for at in times]


def beside(cluster: str, times: Sequence[int]) -> Iterator[Series]:
    """kube-state-metrics and a firing alert."""
    series = []
    for node in NODES:
        labels = {"node": node, "resource": FLEETS[cluster][0], "unit": "integer"}
        series.append(({"__name__": "kube_node_status_capacity", **labels}, 2))
        series.append(({"__name__": "kube_node_status_allocatable", **labels}, 2 if cluster == "quiet" else 1))
    if cluster != "quiet":
        alert = {"alertname": "GpuXidFatal", "severity": "critical", "UUID": "GPU-node-2-1"}
        if cluster == "stopped":
            alert = {"alertname": "GpuNodeWithoutTelemetry", "severity": "warning"}
        series.append(({"__name__": "ALERTS", "alertstate": "firing", "node": "node-2", **alert}, 1))
    for labels, value in series:
        yield {**labels, "cluster": cluster}, [(at, value) for at in times]


SHOWN = {name for _, _, target in targets() for name in SERIES.findall(target["expr"])}
STEADILY = re.compile("duration|process|deliveries|cluster_writes")
"""Counters that count at each step; the others at each twentieth."""


@cache
def told(hours: float = 0) -> list[tuple[str, Labels, float]]:
    """gpuwatch's own metrics as far as boards show them, some hours after telemetry ended, from a real registry."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        registry = leading(simulated(Path(folder), END + timedelta(hours=hours))).registry
    text = generate_latest(registry).decode()
    return [
        (sample.name, dict(sample.labels), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in SHOWN
    ]


def own(cluster: str, metrics: Iterable[tuple[str, Labels, float]], times: Sequence[int]) -> Iterator[Series]:
    """gpuwatch's metrics of a cluster. The times go with the clock."""
    target = {"cluster": cluster, "job": "gpuwatch", "instance": f"{cluster}:8080", "namespace": "gpuwatch"}
    for name, labels, value in metrics:
        if cluster == "quiet" and name.startswith(("gpuwatch_finding", "gpuwatch_advice")):
            continue
        points: list[tuple[float, float | None]]
        if name.endswith(("_total", "_count", "_sum", "_bucket")):
            every = 1 if STEADILY.search(name) else 20
            if labels.get("failure", "conflict") != "conflict":  # of the many ways to fail
                every = len(times)
            points = [(at, value + count // every) for count, at in enumerate(times)]
        elif name.endswith("_timestamp_seconds"):
            points = [(at, at - (90 if "report_done" in name else 60)) for at in times]
        else:
            points = [(at, value) for at in times]
        yield {"__name__": name, **labels, **target}, points


def query_range(url: str, query: str, start: int, end: int, step: int) -> list[dict[str, Any]]:
    body = urlencode({"query": query, "start": start, "end": end, "step": step}).encode()
    with build_opener(ProxyHandler({})).open(f"{url}/api/v1/query_range", body, timeout=120) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found


def record(url: str, start: int, end: int) -> None:
    """The shipped recording rules over past time: each in its order, evaluated by the server and written back to it.

    As where a server runs them, a rule reads what those before it recorded at the same time, and a series that ends is
    marked as ended.
    """
    rules = yaml.safe_load((ROOT / "rules" / "gpuwatch-recording.yaml").read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        recorded: list[Series] = []
        for series in query_range(url, rule["expr"], start, end, STEP):
            points: list[tuple[float, float | None]] = []
            for at, value in series["values"]:
                if points and at - points[-1][0] > STEP:
                    points.append((points[-1][0] + STEP, None))
                points.append((at, float(value)))
            if points[-1][0] < end:
                points.append((points[-1][0] + STEP, None))
            recorded.append(({**series["metric"], "__name__": rule["record"]}, points))
        if recorded:
            remote_write.write(url, recorded)


@contextlib.contextmanager
def running(
    build: ServerBuild, now: int, clusters: Sequence[str] = tuple(FLEETS), hours: float = HOURS
) -> Iterator[str]:
    """A Prometheus with these fleets over the last hours until `now` (Unix seconds). Yields its base URL."""
    with prometheus_server.running(build) as url:
        begin = now - round(hours * 3600)
        for cluster in clusters:
            hours_ago = STOPPED_HOURS if cluster == "stopped" else 0
            times = range(begin, now + 1, STEP)
            remote_write.write(url, telemetry(cluster, [at - hours_ago * 3600 for at in times]))
            remote_write.write(url, beside(cluster, times))
            remote_write.write(url, own(cluster, told(hours_ago), times))
        record(url, begin - STOPPED_HOURS * 3600, now)
        yield url
