"""From `given` of a row to samples and cluster objects. What a row leaves out is a fleet that works and is well.

given:
  interval: 1m, the time between two samples
  pools:    name → {nodes: 5, free: 1, gpus: 8, model: H100, mig: [], partitions: "", labels: {}, driver: 570.124.06}.
            Nodes are a0, a1, …; the last `free` ones have no Pod; on each other Node a Job that is named after it holds
            all GPUs, unless `jobs` says otherwise. mig: the profiles into which each GPU is cut; such instances are
            free. partitions: AMD's compute mode such as cpx, in which each GPU is eight devices. model: also those of
            `vendors.yaml`. dra: true, its GPUs are published in ResourceSlices, and no device plugin counts them.
  jobs:     name → {nodes: [a0], gpus: [0, 1], kind: Job, namespace: ml, image: …, from: 10m, until: 40m, load: train,
            memory_mib: 60000}. One Pod per Node; a Job of several Nodes is Indexed, so a gang. `from` may be negative.
            waits: 2, so many more Pods that have no Node. kind: Pod, without an owner. owner: its name, where several
            jobs are Pods of one. labels: of its Pods. status: what their status has besides, or in place of the
            usual.
            load: train, or idle. rests: [[10h, 40h]], from when to when it does nothing, though its load is train.
            memory_at_rest_mib: what it has in memory meanwhile, where that is less.
            Where jobs are given, only the Nodes that none of them uses get a Job of their own.
  alone:    true: no Job but those of `jobs`.
  metrics:  series in promtool's notation. A metric of a GPU exporter is one series per GPU that `node` and `gpu` select
            (=, or =~ for a regular expression); its other labels are added. 'absent' takes the series away. The metric
            `all{…}` says in which samples GPUs report at all: a number for yes, _ for no. `up{node=…}` is the target's.
            Any other metric is taken as it stands. Of two that name the same series the later one counts.
  ended:    Jobs of one Pod with one GPU, as kube-state-metrics saw them: {nodes: [a0], namespaces: [ml], from: 10m,
            every: 15m, count: 3, minutes: 2, phase: Failed, image: train, deleted: true}. One on each Node for each
            Namespace. minutes: of a list, those of each turn. refused: true, the kubelet gave the Pod no device, at
            its start or when the Node booted again.
  nodes:    Node, or a regular expression → {labels, annotations, conditions: {Ready: "False"}, boot_id, allocatable: 7,
            capacity: 7, unschedulable, taints, gone: true, device_taints: {3: {key, effect}}}. The last are of GPUs in
            a ResourceSlice.
  objects:  further objects as the API server gives them.
  reloads:  a0 → [79m]: when the driver of the Node is loaded again, so that energy is counted anew.
  exported: the metrics of a GPU that the exporter's list has at all, in place of the default list.
  vocabulary: dcgm49: the default list is spelled as dcgm-exporter 4.9 does. 70m: it is from then on; until then, and in
            `metrics`, as 4.8 does.
  honor_labels: true: the scrape keeps the exporter's own labels `pod`, `namespace` and `container`.
  replicas: of a Prometheus pair whose series nobody deduplicates.
  exchanged: a0/3 → {uuid: GPU-new, from: 100m}: another GPU comes into its slot then. `metrics` that name a GPU are of
            the old one.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from detect.situations.notation import STALE, values
from frameworks.names import api_version
from gpuwatch.sources.kube import kinds
from gpuwatch.sources.telemetry.recording import RecordingStore
from gpuwatch.sources.telemetry.recording_part import TextFile
from gpuwatch.sources.telemetry.series import FloatArray, RecordedSeries, mark_stale
from lab.simulate.metrics import METRICS

START = datetime(2026, 9, 17, tzinfo=UTC)  # a Thursday
_EXPORTER, _NAMESPACE = "nvidia-dcgm-exporter", "gpu-operator"
_IMAGE = "registry.example/team/train:1"


VENDORS: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent.parent / "vendors.yaml").read_text())
"""How the exporters of other vendors write a GPU; NVIDIA's is in `World`."""
_OF_DEVICES = ("DCGM_", *(prefix for said in VENDORS.values() for prefix in said["prefixes"]))


@dataclass(frozen=True)
class Model:
    """What a card of the model shows at work and at rest. label: as the exporter writes it; product: as GPU Feature
    Discovery does."""

    label: str
    product: str
    memory_mib: int
    watts: tuple[float, float]  # at work, at rest
    celsius: tuple[float, float]
    megahertz: tuple[float, float]
    profiled: bool = True
    vendor: str = "nvidia"


_NEWER = {metric.dcgm: (metric.dcgm49, metric.scale49) for metric in METRICS} | {
    "DCGM_FI_DEV_XID_ERRORS": ("DCGM_FI_DEV_XID_ERROR", 1.0)
}
"""Name and factor of a metric from dcgm-exporter 4.9 on."""

MODELS = {
    "H100": Model("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3", 81559, (610, 71), (62, 31), (1710, 345)),
    "A100": Model("NVIDIA A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB", 81920, (370, 62), (58, 32), (1390, 210)),
    "B200": Model("NVIDIA B200", "NVIDIA-B200", 183359, (880, 140), (58, 33), (1830, 120)),
    "GB200": Model("NVIDIA GB200", "NVIDIA-GB200", 189471, (1050, 150), (55, 33), (1900, 120)),
    "T4": Model("Tesla T4", "Tesla-T4", 15360, (66, 10), (72, 38), (1100, 300)),
    "L4": Model("NVIDIA L4", "NVIDIA-L4", 23034, (68, 16), (74, 40), (1500, 210)),
    "A10-24Q": Model("NVIDIA A10-24Q", "NVIDIA-A10-24Q", 24576, (150, 20), (60, 35), (1700, 210), False),  # a vGPU
    "V100": Model("Tesla V100-SXM2-32GB", "Tesla-V100-SXM2-32GB", 32768, (260, 42), (60, 34), (1500, 135), False),
} | {name: Model(vendor=vendor, **said["models"][name]) for vendor, said in VENDORS.items() for name in said["models"]}


@dataclass(frozen=True)
class Gpu:
    """begin: of one that was put into the slot of another, which had gone before."""

    node: str
    index: int
    model: Model
    exchanged_for: str = ""
    begin: timedelta = timedelta(0)

    @property
    def uuid(self) -> str:
        return self.exchanged_for or f"GPU-{self.node}-{self.index}"


@dataclass(frozen=True, kw_only=True)
class Job:
    name: str
    nodes: tuple[str, ...]
    gpus: tuple[int, ...] | None = None  # of each Node; None: all
    kind: str = "Job"
    namespace: str = "ml"
    image: str = _IMAGE
    begin: timedelta = timedelta(hours=-3)
    end: timedelta | None = None
    load: str = "train"
    memory_mib: float | None = None
    rests: tuple[tuple[timedelta, timedelta], ...] = ()
    memory_at_rest_mib: float | None = None
    waits: int = 0
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)

    def pod(self, number: int) -> str:
        return f"{self.name}-{number}"

    def holds(self, gpu: Gpu) -> bool:
        return gpu.node in self.nodes and (self.gpus is None or gpu.index in self.gpus)


def duration(text: str) -> timedelta:
    """'90m', '26h', '8d', '-3h'."""
    found = re.fullmatch(r"(-?\d+)([smhd])", text)
    if found is None:
        raise ValueError(f"{text!r} is no time such as 90m, 26h or 8d")
    unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[found[2]]
    return timedelta(**{unit: int(found[1])})


class World:
    """Telemetry and cluster of one row. last: until when telemetry goes."""

    def __init__(self, given: Mapping[str, Any], last: timedelta) -> None:
        unknown = set(given) - {
            "interval",
            "pools",
            "jobs",
            "alone",
            "metrics",
            "ended",
            "nodes",
            "objects",
            "reloads",
            "exchanged",
            "exported",
            "vocabulary",
            "honor_labels",
            "replicas",
        }
        if unknown:
            raise ValueError(f"given: {', '.join(sorted(unknown))} is not known")
        self._interval = duration(given.get("interval", "1m"))
        self._length = int(last / self._interval) + 1
        self._pools: dict[str, dict[str, Any]] = {}
        self.gpus: list[Gpu] = []
        self._pool_of: dict[str, str] = {}
        free: set[str] = set()
        for pool, said in (given.get("pools") or {"a": {}}).items():
            usual = {"nodes": 5, "free": 1, "gpus": 8, "model": "H100", "mig": [], "partitions": "", "labels": {}}
            self._pools[pool] = usual | {"driver": "570.124.06"} | dict(said)
            count = self._pools[pool]["nodes"]
            for number in range(count):
                self._pool_of[f"{pool}{number}"] = pool
            free |= {f"{pool}{number}" for number in range(count - self._pools[pool]["free"], count)}
        for node, pool in self._pool_of.items():
            model = MODELS[self._pools[pool]["model"]]
            self.gpus += [Gpu(node, index, model) for index in range(self._pools[pool]["gpus"])]
        for place, said in (given.get("exchanged") or {}).items():
            node, _, index = place.partition("/")
            model = MODELS[self._pools[self._pool_of[node]]["model"]]
            self.gpus.append(Gpu(node, int(index), model, said["uuid"], duration(said["from"])))
        self.jobs = [_job(name, said) for name, said in (given.get("jobs") or {}).items()]
        used = {node for job in self.jobs for node in job.nodes}
        if not given.get("alone"):
            self.jobs += [Job(name=f"train-{node}", nodes=(node,)) for node in self._pool_of if node not in used | free]
        self._reloads: Mapping[str, list[str]] = given.get("reloads") or {}
        self._exported: list[str] | None = given.get("exported")
        vocabulary = given.get("vocabulary", "")
        self._newer: bool = vocabulary == "dcgm49"
        self._renamed = duration(vocabulary) if vocabulary and not self._newer else None
        self._honors: bool = given.get("honor_labels", False)
        self._replicas: int = given.get("replicas", 1)
        self._metrics: Mapping[str, str | float] = given.get("metrics") or {}
        self._ended: list[dict[str, Any]] = given.get("ended") or []
        self._nodes: Mapping[str, Mapping[str, Any]] = given.get("nodes") or {}
        self._objects: list[dict[str, Any]] = given.get("objects") or []

    # Telemetry

    def telemetry(self) -> RecordingStore:
        """All samples, in memory; the store that reads recorded files."""
        return RecordingStore("recording of a situation", [TextFile(self._replicated())])

    def _replicated(self) -> Iterator[RecordedSeries]:
        for series in self._series() if self._renamed is None else self._of_two_exporters(self._renamed):
            if self._replicas == 1:
                yield series
            for number in range(self._replicas if self._replicas > 1 else 0):
                yield replace(series, labels={**series.labels, "prometheus_replica": f"prometheus-{number}"})

    def _of_two_exporters(self, at: timedelta) -> Iterator[RecordedSeries]:
        """The new exporter's first scrape ends the old one's series."""
        first = round((START + at).timestamp() * 1000)
        for self._newer in (False, True):
            for series in self._series():
                times, samples = series.times_ms, series.values
                later = times >= first
                if series.metric == "up":
                    if self._newer:
                        yield series
                elif self._newer:
                    yield replace(series, times_ms=times[later], values=samples[later])
                else:
                    samples, ends = samples.copy(), later & (np.cumsum(later) == 1)
                    mark_stale(samples, ends)
                    yield replace(series, times_ms=times[~later | ends], values=samples[~later | ends])

    def _series(self) -> Iterator[RecordedSeries]:
        device: dict[tuple[str, str, tuple[tuple[str, str], ...]], FloatArray] = {}
        reports = {gpu.uuid: self._since(gpu.begin) for gpu in self.gpus}
        others: dict[tuple[str, tuple[tuple[str, str], ...]], FloatArray] = {}
        for node in self._pool_of:
            others["up", tuple(sorted(self._target(node).items()))] = np.ones(self._length)
        for gpu in self.gpus:
            for metric, found in self._usual(gpu).items():
                if self._exported is None or metric in self._exported:
                    name, scale = _NEWER[metric] if self._newer else (metric, 1.0)
                    name, _, more = _selector(name)
                    device[gpu.uuid, name, tuple(sorted(more.items()))] = found * scale
        for written, text in self._metrics.items():
            metric, selected, labels = _selector(written)
            if self._renamed is not None and self._newer:
                metric = _NEWER.get(metric, (metric, 1.0))[0]
            if metric == "up":
                for node in self._pool_of:
                    if _selects(selected, node=node):
                        others["up", tuple(sorted(self._target(node).items()))] = values(text, self._length)
                continue
            if metric != "all" and not metric.startswith(_OF_DEVICES):
                plain = labels | {name: value for name, (_, value) in selected.items()}
                others[metric, tuple(sorted(plain.items()))] = values(text, self._length)
                continue
            chosen = [
                gpu
                for gpu in self.gpus
                if _selects(selected, node=gpu.node, gpu=str(gpu.index))
                and not (gpu.exchanged_for and "gpu" in selected)
            ]
            if not chosen:
                raise ValueError(f"{written} selects no GPU")
            for gpu in chosen:
                if metric == "all":
                    reports[gpu.uuid] &= ~np.isnan(values(text, self._length))
                elif text == "absent":
                    for known in [key for key in device if key[:2] == (gpu.uuid, metric)]:
                        del device[known]
                else:
                    device[gpu.uuid, metric, tuple(sorted(labels.items()))] = values(text, self._length)
        self._freeze_energy(device)
        by_uuid = {gpu.uuid: gpu for gpu in self.gpus}
        for (uuid, metric, more), found in device.items():
            gpu = by_uuid[uuid]
            pool = self._pools[self._pool_of[gpu.node]]
            instances = [{"GPU_I_PROFILE": name, "GPU_I_ID": str(number)} for number, name in enumerate(pool["mig"], 1)]
            if mode := pool["partitions"]:
                said = VENDORS[gpu.model.vendor]
                numbers = range(said["partitions"][mode] if metric in said["per_partition"] else 1)
                instances = [
                    {"gpu_partition_id": str(number), "gpu_compute_partition_type": mode} for number in numbers
                ]
            for instance in instances or [{}]:
                yield from self._of_gpu(gpu, metric, dict(more) | instance, found, reports[uuid])
        for number, said in enumerate(self._ended):
            others |= self._ends(number, said)
        for (metric, plain_labels), found in others.items():
            yield self._recorded(metric, dict(plain_labels), found, np.zeros(self._length, np.bool_))

    def _freeze_energy(self, device: Mapping[tuple[str, str, Any], FloatArray]) -> None:
        """The driver cannot read a GPU that is off the bus: its energy stands still, unless the row has it."""
        given = {_selector(written)[0] for written in self._metrics}
        for (uuid, metric, _), found in device.items():
            off = (
                found == 79 if metric in ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR") else np.zeros(0, np.bool_)
            )
            energy = next((key for key in device if key[0] == uuid and "_ENERGY_" in key[1]), None)
            if off.any() and energy is not None and energy[1] not in given:
                device[energy][off] = device[energy][off.argmax()]

    def _ends(self, number: int, said: Mapping[str, Any]) -> Mapping[Any, FloatArray]:
        """kube-state-metrics' series of finished Pods, whose objects the cluster no longer has."""
        found: dict[Any, FloatArray] = {}
        phase, image = said.get("phase", "Failed"), said.get("image", "train")
        for node, namespace, turn in product(said["nodes"], said["namespaces"], range(said.get("count", 1))):
            begin = duration(said.get("from", "0m")) + turn * duration(said.get("every", "15m"))
            minutes = said["minutes"]
            end = begin + timedelta(minutes=minutes[turn] if isinstance(minutes, list) else minutes)
            there, over = self._since(begin), self._since(end)
            ran = there & ~over if said.get("refused") else there
            job = f"run-{number}{chr(97 + turn)}-{node}"
            labels = {"namespace": namespace, "pod": f"{job}-x7k2p", "uid": f"{namespace}-{job}", "job": "ksm"}

            def add(metric: str, mask: Any, value: Any = 1.0, labels: dict[str, str] = labels, **more: str) -> None:
                samples = np.where(mask, value, np.nan)
                found[f"kube_pod_{metric}", tuple(sorted({**labels, **more}.items()))] = samples

            add("container_resource_requests", there, node=node, resource="nvidia_com_gpu")
            add("status_phase", there, ~over, phase="Running")
            add("status_phase", there, over, phase=phase)
            add("start_time", there, (START + begin).timestamp())
            add("completion_time", over & ran, (START + end).timestamp())
            add("container_info", ran, image=f"registry.example/{namespace}/{image}:1")
            add("info", there, created_by_kind="Job", created_by_name=job, node=node)
            add("container_status_terminated_reason", over & ran, reason="Error" if phase == "Failed" else "Completed")
            add("status_reason", over & ~ran, reason="UnexpectedAdmissionError")
            if said.get("deleted"):
                add("deletion_timestamp", over, (START + end).timestamp())
        return found

    def _of_gpu(
        self, gpu: Gpu, metric: str, more: dict[str, str], found: FloatArray, reports: Any
    ) -> Iterator[RecordedSeries]:
        """A series for each Pod that holds the GPU in turn, and one for the time without any: the labels differ. Where
        the labels change, or the GPU is no longer exported, Prometheus writes a staleness marker."""
        identity = self._identity(gpu) | self._target(gpu.node)
        left = np.ones(self._length, np.bool_)
        turns: list[tuple[dict[str, str], Any]] = []
        for job in self.jobs:
            if job.holds(gpu):
                mask = self._during(job)
                pod = job.pod(job.nodes.index(gpu.node))
                kept = "" if self._honors else "exported_"
                names = (f"{kept}namespace", f"{kept}pod", f"{kept}container")
                if gpu.model.vendor != "nvidia":
                    names = VENDORS[gpu.model.vendor]["holder"]
                held = {name: value for name, value in zip(names, (job.namespace, pod, "main"), strict=True) if name}
                turns.append((held, mask))
                left &= ~mask
        turns.append(({}, left))
        for held, mask in turns:
            there = mask & reports
            if not there.any():
                continue
            ends = np.zeros(self._length, np.bool_)
            ends[1:] = there[:-1] & ~there[1:]
            yield self._recorded(metric, identity | held | more, np.where(there, found, np.nan), ends)

    def _identity(self, gpu: Gpu) -> dict[str, str]:
        if gpu.model.vendor == "nvidia":
            return {
                "gpu": str(gpu.index),
                "UUID": gpu.uuid,
                "pci_bus_id": f"00000000:{0x18 + gpu.index:02X}:00.0",
                "device": f"nvidia{gpu.index}",
                "modelName": gpu.model.label,
                "hostname" if self._newer else "Hostname": gpu.node,
                "DCGM_FI_SYSTEM_DRIVER_VERSION" if self._newer else "DCGM_FI_DRIVER_VERSION": self._pools[
                    self._pool_of[gpu.node]
                ]["driver"],
            }
        words = {"uuid": gpu.uuid, "index": str(gpu.index), "node": gpu.node, "model": gpu.model.label}
        words["bus"] = f"0000:{0x18 + gpu.index:02x}:00.0"
        return {name: text.format(**words) for name, text in VENDORS[gpu.model.vendor]["identity"].items()}

    def _recorded(self, metric: str, labels: dict[str, str], found: FloatArray, ends: Any) -> RecordedSeries:
        samples = found.copy()
        stale = ends | (samples == STALE)
        samples[stale] = 0.0
        kept = ~np.isnan(samples)
        mark_stale(samples, stale)
        begin, step = round(START.timestamp() * 1000), round(self._interval.total_seconds() * 1000)
        times = begin + step * np.arange(self._length, dtype=np.int64)
        return RecordedSeries(metric, labels, times[kept], samples[kept])

    def _since(self, begin: timedelta) -> Any:
        return np.arange(self._length) * self._interval.total_seconds() >= begin.total_seconds()

    def _during(self, job: Job) -> Any:
        held = self._since(job.begin)
        return held if job.end is None else held & ~self._since(job.end)

    def _usual(self, gpu: Gpu) -> dict[str, FloatArray]:
        """dcgm-exporter's default list, as far as gpuwatch reads it. Cards of one model differ by a few per cent."""
        works, has_memory = np.zeros(self._length, np.bool_), np.full(self._length, 4.0)
        for job in self.jobs:
            if job.holds(gpu):
                during = self._during(job)
                rests = np.zeros(self._length, np.bool_)
                for begin, end in job.rests:
                    rests |= self._since(begin) & ~self._since(end)
                works |= during & ~rests & (job.load == "train")
                has_memory[during] = 0.75 * gpu.model.memory_mib if job.memory_mib is None else job.memory_mib
                if job.memory_at_rest_mib is not None:
                    has_memory[during & rests] = job.memory_at_rest_mib
        spread = 1 + 0.004 * ((gpu.index * 3 + len(gpu.node) + sum(map(ord, gpu.node))) % 7 - 3)

        def either(busy: float, idle: float) -> FloatArray:
            return np.where(works, busy, idle)

        model = gpu.model
        if model.vendor != "nvidia":
            figures = {
                "memory_mib": has_memory,
                "free_mib": model.memory_mib - has_memory,
                "watts": either(model.watts[0] * spread, model.watts[1]),
                "celsius": either(model.celsius[0] * spread, model.celsius[1]),
                "megahertz": either(model.megahertz[0] * spread, model.megahertz[1]),
                "joules": self._energy(gpu.node, either(*model.watts)) / 1000,
                "ratio": either(0.97, 0),
                "one": np.ones(self._length),
                "none": np.zeros(self._length),
            }
            usual = VENDORS[model.vendor]["usual"]
            return {metric: figures[name] * float(scale) for metric, (name, scale) in usual.items()}
        found = {
            "DCGM_FI_DEV_SM_CLOCK": either(model.megahertz[0] * spread, model.megahertz[1]),
            "DCGM_FI_DEV_MEM_CLOCK": np.full(self._length, 2619.0),
            "DCGM_FI_DEV_GPU_TEMP": either(model.celsius[0] * spread, model.celsius[1]),
            "DCGM_FI_DEV_MEMORY_TEMP": either(model.celsius[0] * spread + 8, model.celsius[1] + 8),
            "DCGM_FI_DEV_POWER_USAGE": either(model.watts[0] * spread, model.watts[1]),
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": self._energy(gpu.node, either(*model.watts)),
            "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": np.zeros(self._length),
            "DCGM_FI_DEV_GPU_UTIL": either(98, 0),
            "DCGM_FI_DEV_MEM_COPY_UTIL": either(41, 0),
            "DCGM_FI_DEV_ENC_UTIL": np.zeros(self._length),
            "DCGM_FI_DEV_DEC_UTIL": np.zeros(self._length),
            "DCGM_FI_DEV_XID_ERRORS": np.zeros(self._length),
            "DCGM_FI_DEV_FB_USED": has_memory,
            "DCGM_FI_DEV_FB_FREE": model.memory_mib - has_memory,
        }
        if model.profiled:
            found |= {
                "DCGM_FI_PROF_GR_ENGINE_ACTIVE": either(0.97, 0),
                "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": either(0.36, 0),
                "DCGM_FI_PROF_DRAM_ACTIVE": either(0.42, 0),
                "DCGM_FI_PROF_PCIE_TX_BYTES": either(2.1e8, 1e4),
                "DCGM_FI_PROF_PCIE_RX_BYTES": either(3.4e8, 1e4),
            }
        if model.label.startswith(("NVIDIA H", "NVIDIA A", "NVIDIA B", "NVIDIA G")):
            found |= {
                "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": np.zeros(self._length),
                "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": np.zeros(self._length),
                "DCGM_FI_DEV_ROW_REMAP_FAILURE": np.zeros(self._length),
                "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": either(240_000, 0),
            }
        return found

    def _energy(self, node: str, watts: FloatArray) -> FloatArray:
        """In millijoules since the driver was loaded."""
        total = 1e9 + np.cumsum(watts) * 1000 * self._interval.total_seconds()
        for text in self._reloads.get(node, ()):
            index = int(duration(text) / self._interval)
            total[index:] -= total[index]
        return total

    def _target(self, node: str) -> dict[str, str]:
        return {
            "job": _EXPORTER,
            "instance": f"{self._address(node)}:9400",
            "namespace": _NAMESPACE,
            "pod": self._exporter(node),
            "container": _EXPORTER,
            "endpoint": "gpu-metrics",
            "service": _EXPORTER,
        }

    def _address(self, node: str) -> str:
        number = list(self._pool_of).index(node)
        return f"10.32.{number // 200}.{number % 200 + 10}"

    def _exporter(self, node: str) -> str:
        return f"{_EXPORTER}-{node}"

    # Cluster

    def cluster(self, folder: Path, after: timedelta, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Writes the lists of `kubectl get` as they are `after` the first sample. changes: of Nodes, over `nodes`."""
        items: dict[str, list[dict[str, Any]]] = {}

        def add(item: dict[str, Any]) -> None:
            items.setdefault(item["kind"], []).append(item)

        for name, pool in self._pool_of.items():
            said = self._said(name, changes)
            if not said.get("gone"):
                add(self._node(name, said))
                add(self._exporter_pod(name))
                if self._pools[pool].get("dra"):
                    add(self._slice(name, said.get("device_taints", {})))
        add(_daemon_set())
        for item in self._job_objects(after):
            add(item)
        for name in sorted({_NAMESPACE, *(job.namespace for job in self.jobs)}):
            add({"apiVersion": "v1", "kind": "Namespace", "metadata": _metadata(name)})
        for item in self._objects:
            add(item)
        for kind in kinds.LISTED:
            here = [item for item in items.get(kind.kind, ()) if item["apiVersion"].rpartition("/")[0] == kind.group]
            path = folder / f"{kind.plural}.{kind.group or 'core'}.json"
            path.write_text(json.dumps({"apiVersion": "v1", "kind": f"{kind.kind}List", "items": here}))

    def _said(self, name: str, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """What the row says of a Node: labels, annotations and conditions add up, of the others the last one counts."""
        said: dict[str, Any] = {}
        for found in (self._nodes, changes):
            for pattern, each in found.items():
                if re.fullmatch(pattern, name):
                    deeper = {
                        key: {**said.get(key, {}), **value} for key, value in each.items() if isinstance(value, dict)
                    }
                    said |= {**each, **deeper}
        return said

    def _node(self, name: str, said: Mapping[str, Any]) -> dict[str, Any]:
        pool = self._pools[self._pool_of[name]]
        model = MODELS[pool["model"]]
        vendor = VENDORS.get(model.vendor, {})
        resource = self._resource(name)
        units = (
            0
            if pool.get("dra")
            else pool["gpus"] * (vendor["partitions"][pool["partitions"]] if pool["partitions"] else 1)
        )
        capacity = {
            resource: str(said.get("capacity", units)),
            "cpu": "192",
            "memory": "2048Gi",
            "pods": "110",
        }
        if pool["mig"]:
            counts = {f"nvidia.com/mig-{name}": str(pool["gpus"] * pool["mig"].count(name)) for name in pool["mig"]}
            capacity |= {"nvidia.com/gpu": "0", **counts}
        allocatable = capacity | {resource: str(said.get("allocatable", capacity[resource]))}
        labels = {
            "kubernetes.io/hostname": name,
            "node.kubernetes.io/instance-type": f"gpu-{pool['model'].lower()}",
            "gpuwatch.dev/pool": self._pool_of[name],
        }
        if not vendor:
            labels |= {
                "nvidia.com/gpu.product": model.product,
                "nvidia.com/gpu.count": str(pool["gpus"]),
                "nvidia.com/gpu.memory": str(model.memory_mib),
            }
        elif product := vendor["product_label"]:
            labels[product] = model.product
        conditions = {"Ready": "True"} | said.get("conditions", {})
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                **_metadata(name),
                "labels": {**labels, **pool["labels"], **said.get("labels", {})},
                "annotations": said.get("annotations", {}),
            },
            "spec": {"unschedulable": said.get("unschedulable", False), "taints": said.get("taints", [])},
            "status": {
                "capacity": capacity,
                "allocatable": allocatable,
                "addresses": [
                    {"type": "InternalIP", "address": "192.0.2." + str(list(self._pool_of).index(name) % 250)}
                ],
                "conditions": [
                    {"type": kind, "status": status, "reason": "Said", "lastTransitionTime": _stamp(START)}
                    for kind, status in conditions.items()
                ],
                "nodeInfo": {"bootID": said.get("boot_id", f"boot-of-{name}"), "kernelVersion": "6.8.0"},
            },
        }

    def _slice(self, node: str, taints: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        devices = [
            {
                "name": f"gpu-{gpu.index}",
                "attributes": {"uuid": {"string": gpu.uuid}, "type": {"string": "gpu"}},
                **({"taints": [taints[gpu.index]]} if gpu.index in taints else {}),
            }
            for gpu in self.gpus
            if gpu.node == node
        ]
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": _metadata(f"{node}-gpu.nvidia.com"),
            "spec": {
                "driver": "gpu.nvidia.com",
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        }

    def _resource(self, node: str) -> str:
        vendor = MODELS[self._pools[self._pool_of[node]]["model"]].vendor
        return "nvidia.com/gpu" if vendor == "nvidia" else str(VENDORS[vendor]["resource"])

    def _exporter_pod(self, node: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **_metadata(self._exporter(node), _NAMESPACE),
                "labels": {"app": _EXPORTER},
                "ownerReferences": [_reference("apps/v1", "DaemonSet", _EXPORTER, _NAMESPACE)],
            },
            "spec": {
                "nodeName": node,
                "containers": [
                    {"name": _EXPORTER, "image": "nvcr.io/nvidia/k8s/dcgm-exporter:4.4.2-4.7.0-ubuntu22.04"}
                ],
                "volumes": [{"name": "pod-resources", "hostPath": {"path": "/var/lib/kubelet/pod-resources"}}],
            },
            "status": {"phase": "Running", "podIP": self._address(node), "podIPs": [{"ip": self._address(node)}]},
        }

    def _job_objects(self, after: timedelta) -> Iterator[dict[str, Any]]:
        owners = set()
        for job in self.jobs:
            if not job.begin <= after or (job.end is not None and job.end <= after):
                continue
            begun = _stamp(START + job.begin)
            version = api_version(job.kind)
            count = len(job.nodes) + job.waits
            spec: dict[str, Any] = {"suspend": False, "parallelism": count, "completions": count}
            if count > 1:
                spec["completionMode"] = "Indexed"
            if job.kind != "Job":
                spec = {"replicas": len(job.nodes)}
            owner = (version, job.kind, job.owner or job.name)
            meta = {**_metadata(owner[2], job.namespace, begun), "annotations": dict(job.annotations)}
            if job.kind != "Pod" and owner not in owners:
                owners.add(owner)
                yield {
                    "apiVersion": version,
                    "kind": job.kind,
                    "metadata": meta,
                    "spec": spec,
                    "status": {"startTime": begun},
                }
            if job.kind == "Deployment":
                below = f"{job.name}-5d9f7"
                owned = {
                    **_metadata(below, job.namespace, begun),
                    "ownerReferences": [_reference(*owner, job.namespace)],
                }
                yield {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "metadata": owned,
                    "spec": {"replicas": len(job.nodes)},
                }
                owner = ("apps/v1", "ReplicaSet", below)
            for number, node in enumerate((*job.nodes, *("",) * job.waits)):
                at = node or job.nodes[0]
                here = [gpu for gpu in self.gpus if gpu.node == at and job.holds(gpu) and not gpu.exchanged_for]
                amounts = {
                    self._resource(at): str(len(here)),
                    "cpu": str(8 * len(here)),
                    "memory": f"{64 * len(here)}Gi",
                }
                yield {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {
                        **_metadata(job.pod(number), job.namespace, begun),
                        "labels": {
                            "app": job.name,
                            "batch.kubernetes.io/job-completion-index": str(number),
                            **job.labels,
                        },
                        "ownerReferences": [] if job.kind == "Pod" else [_reference(*owner, job.namespace)],
                    },
                    "spec": {
                        **({"nodeName": node} if node else {}),
                        "restartPolicy": "Never",
                        "containers": [
                            {"name": "main", "image": job.image, "resources": {"requests": amounts, "limits": amounts}}
                        ],
                    },
                    "status": {
                        "phase": "Running",
                        "startTime": begun,
                        "conditions": [{"type": "Ready", "status": "True"}],
                        **job.status,
                    }
                    if node
                    else {"phase": "Pending", "conditions": [_UNPLACED]},
                }


_UNPLACED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}


def _job(name: str, said: Mapping[str, Any]) -> Job:
    given = dict(said)
    begin, end = given.pop("from", "-3h"), given.pop("until", None)
    gpus = given.pop("gpus", None)
    return Job(
        name=name,
        nodes=tuple(given.pop("nodes")),
        gpus=None if gpus is None else tuple(gpus),
        begin=duration(begin),
        end=None if end is None else duration(end),
        rests=tuple((duration(first), duration(last)) for first, last in given.pop("rests", ())),
        **given,
    )


_LABEL = re.compile(r'\s*(?P<name>\w+)(?P<op>=~|=)"(?P<value>[^"]*)"\s*(?:,|$)')


def _selector(text: str) -> tuple[str, dict[str, tuple[str, str]], dict[str, str]]:
    """The metric, the matchers of `node` and `gpu`, and the other labels. Raises ValueError."""
    metric, _, rest = text.partition("{")
    inside = rest.removesuffix("}")
    selected: dict[str, tuple[str, str]] = {}
    labels: dict[str, str] = {}
    at = 0
    while at < len(inside):
        found = _LABEL.match(inside, at)
        if found is None:
            raise ValueError(f"{text!r} is no series")
        if found["name"] in ("node", "gpu"):
            selected[found["name"]] = (found["op"], found["value"])
        else:
            labels[found["name"]] = found["value"]
        at = found.end()
    return metric, selected, labels


def _selects(selected: Mapping[str, tuple[str, str]], **of: str) -> bool:
    for name, value in of.items():
        op, wanted = selected.get(name, ("=~", ".*"))
        if not (re.fullmatch(wanted, value) if op == "=~" else wanted == value):
            return False
    return True


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _metadata(name: str, namespace: str = "", created: str = "2026-06-01T08:00:00Z") -> dict[str, Any]:
    placed = {"namespace": namespace} if namespace else {}
    return {"name": name, "uid": f"uid-{namespace}-{name}", "creationTimestamp": created, **placed}


def _reference(version: str, kind: str, name: str, namespace: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "name": name, "uid": f"uid-{namespace}-{name}", "controller": True}


def _daemon_set() -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": _metadata(_EXPORTER, _NAMESPACE), "spec": {}}
