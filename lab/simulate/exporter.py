"""What Prometheus would hold of the fleet: series with labels, holes and staleness markers.

A series is one metric with one set of labels. When a Pod comes or goes the labels change, so one series ends with a
staleness marker and another begins; the same happens when a GPU, an exporter or a profiling metric vanishes. While
Prometheus itself is down there is neither a sample nor a marker.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuwatch.sources.telemetry.series import RecordedSeries, mark_stale
from lab.simulate.metrics import LINK_METRICS, METRICS, Metric, View
from lab.simulate.plan import FleetPlan, Floats, Mask
from lab.simulate.script import CardScript, Span, inside
from lab.simulate.states import DeviceState, MachineState
from lab.simulate.tables import NAMES

JOB, NAMESPACE, CONTAINER = "nvidia-dcgm-exporter", "gpu-operator", "nvidia-dcgm-exporter"
_XID_WINDOW_SECONDS = 300.0
_WATCHES = ("PCIE", "NVLINK", "PMU", "MCU", "MEM", "SM", "INFOROM", "THERMAL", "POWER", "DRIVER", "ALL")

_Samples: TypeAlias = tuple[NDArray[np.int64], Mask]
"""Positions of a series' samples, and which of them are staleness markers."""


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One device with one set of labels; `mask` are the samples in which it has them."""

    labels: dict[str, str]
    mask: Mask
    view: View


class MachineExporter:
    """The series of one node's exporter."""

    def __init__(self, plan: FleetPlan, state: MachineState, prometheus_up: Mask) -> None:
        self.plan = plan
        self.state = state
        self.machine = state.machine
        self.seconds = state.seconds
        start_ms = round(plan.start.timestamp() * 1000)
        offset = round(self.machine.scrape_offset_seconds * 1000)
        self.times_ms: NDArray[np.int64] = (
            start_ms + offset + np.arange(plan.steps, dtype=np.int64) * plan.interval_seconds * 1000
        )
        self.prometheus_up = prometheus_up
        self.up = prometheus_up & ~self._down()
        absent = [state.script.cards.get(card.index, CardScript()).absent for card in self.machine.cards]
        self.cards_up = [self.up & ~inside(self.seconds, spans) for spans in absent]
        # Without the minutes in which a user's profiler holds the performance counters.
        taken = [
            _now_and_then(plan, 0.02, 600, 3600, "profiler", self.machine.index, card) for card in range(len(absent))
        ]
        self.profiled = [up & ~inside(self.seconds, spans) for up, spans in zip(self.cards_up, taken, strict=True)]
        self.rows = [row for device in state.devices for row in self._rows(device)]
        self._samples: dict[tuple[int, bool], _Samples] = {}

    def _down(self) -> Mask:
        """Scrapes that fail: planted outages, and now and then one that times out."""
        rng = self.plan.rng("scrapes", self.machine.index)
        down = inside(self.seconds, self.state.script.exporter_down)
        for at in rng.uniform(0, self.plan.seconds, rng.poisson(0.35 * self.plan.days)):
            down |= inside(self.seconds, [(float(at), float(at + rng.exponential(1.5 * self.plan.interval_seconds)))])
        return down

    def _target_labels(self) -> dict[str, str]:
        return {"job": JOB, "instance": self.machine.exporter_address, "service": JOB, "endpoint": "gpu-metrics"}

    def _device_labels(self, device: DeviceState) -> dict[str, str]:
        machine, card = self.machine, device.card
        new = machine.vocabulary == "dcgm49"
        labels = {
            "gpu": str(card.index),
            "UUID": card.uuid,
            "pci_bus_id": card.pci_bus_id,
            "device": f"nvidia{card.index}",
            "modelName": machine.model.label,
            "hostname" if new else "Hostname": machine.name,
            "DCGM_FI_SYSTEM_DRIVER_VERSION" if new else "DCGM_FI_DRIVER_VERSION": machine.driver_version,
            **self._target_labels(),
        }
        if device.instance is not None:
            labels |= {"GPU_I_PROFILE": device.instance.profile, "GPU_I_ID": device.instance.gi}
        return labels

    def _pod_labels(self, namespace: str = "", pod: str = "", container: str = "") -> dict[str, str]:
        own = {"namespace": NAMESPACE, "pod": self.machine.exporter_pod, "container": CONTAINER}
        if not pod:
            return own
        workload = {"namespace": namespace, "pod": pod, "container": container}
        if self.plan.label_scheme == "native":
            return workload
        return own | {f"exported_{name}": value for name, value in workload.items()}

    def _rows(self, device: DeviceState) -> Iterator[_Row]:
        """One row per set of labels; shared cards have one row per Pod at a time, each with the card's values."""
        view = View(plan=self.plan, state=self.state, device=device)
        fixed = self._device_labels(device)
        up = self.cards_up[device.card.index]
        held = np.zeros(len(up), dtype=bool)
        pods: dict[tuple[str, str, str], Mask] = {}
        names: dict[tuple[str, str, str], dict[str, str]] = {}
        for tenure in device.tenures:
            workload, pod = tenure.run.workload, tenure.run.pods[tenure.pod]
            key = (workload.namespace, pod.name, str(tenure.replica))
            mask = pods.setdefault(key, np.zeros(len(up), dtype=bool))
            mask[tenure.first : tenure.last] = True
            held[tenure.first : tenure.last] = True
            labels = self._pod_labels(workload.namespace, pod.name, workload.container)
            names[key] = labels | ({"vgpu": key[2]} if tenure.replica >= 0 else {})
        if not held.all():
            yield _Row(labels=fixed | self._pod_labels(), mask=up & ~held, view=view)
        for key, mask in pods.items():
            yield _Row(labels=fixed | names[key], mask=up & mask, view=view)

    def _series(
        self, metric: str, labels: dict[str, str], values: Floats, where: Mask | _Samples
    ) -> Iterator[RecordedSeries]:
        """The values at these samples; nothing where there are none."""
        index, stale = where if isinstance(where, tuple) else samples(where, self.prometheus_up)
        if index.size:
            taken = values[index].astype(np.float64)
            mark_stale(taken, stale)
            yield RecordedSeries(metric, labels, self.times_ms[index], taken)

    def metric(self, metric: Metric) -> Iterator[RecordedSeries]:
        if metric.extended and not self.machine.extended:
            return
        name = metric.name(self.machine.vocabulary)
        scale = metric.scale49 if self.machine.vocabulary == "dcgm49" else 1.0
        values: Floats | None = None
        computed: DeviceState | None = None
        for number, row in enumerate(self.rows):
            device = row.view.device
            if not metric.applies(self.machine, device):
                continue
            if computed is not device or values is None:
                values, computed = metric.values(row.view) * scale, device
                if metric.dcgm49.endswith("_RATIO") and scale == 0.01:
                    values = np.round(values, 2)
            where = self._samples.get((number, metric.profiling))
            if where is None:
                mask = row.mask & self.profiled[device.card.index] if metric.profiling else row.mask
                where = self._samples[number, metric.profiling] = samples(mask, self.prometheus_up)
            yield from self._series(name, row.labels, values, where)

    def xids(self) -> Iterator[RecordedSeries]:
        """The last XID, a series of its own for each code as its labels tell it; none before the first XID, except
        with old exporters, and none after the exporter was restarted."""
        name = "DCGM_FI_DEV_XID_ERROR" if self.machine.vocabulary == "dcgm49" else "DCGM_FI_DEV_XID_ERRORS"
        for row in self.rows:
            codes = self._last_xid(row.view.trouble)
            for code in np.unique(codes[codes >= 0]):
                labels = row.labels | {"err_code": str(code), "err_msg": NAMES.xids.get(int(code), "Unknown Error")}
                yield from self._series(name, labels, codes, row.mask & (codes == code))

    def _last_xid(self, trouble: CardScript) -> Floats:
        codes = np.full(len(self.seconds), 0.0 if self.machine.prints_zero_xid else -1.0)
        for at, code in sorted(trouble.xids):
            codes[(self.seconds >= at) & (self.seconds < self._restarted(at))] = code
        return codes

    def _covering(self, spans: Sequence[Span]) -> Floats:
        count = np.zeros(len(self.seconds))
        for span in spans:
            count += inside(self.seconds, [span])
        return count

    def _restarted(self, after: float) -> float:
        """The first restart of the exporter after this time."""
        return min((at for at in self.state.script.exporter_restarts if at > after), default=float("inf"))

    def xid_counts(self) -> Iterator[RecordedSeries]:
        """XIDs within the exporter's window, one row per code, or one row without a code where there were none."""
        if not self.machine.extended:
            return
        name, window = "DCGM_EXP_XID_ERRORS_COUNT", {"window_size_in_ms": str(int(_XID_WINDOW_SECONDS * 1000))}
        for row in self.rows:
            none = np.ones(len(self.seconds), dtype=bool)
            for code, times in _by_code(row.view.trouble):
                count = self._covering([(at, at + _XID_WINDOW_SECONDS) for at in times])
                none &= count == 0
                labels = row.labels | window | {"xid": str(code)}
                yield from self._series(name, labels, count, row.mask & (count > 0))
            yield from self._series(name, row.labels | window, np.zeros(len(none)), row.mask & none)

    def xid_totals(self) -> Iterator[RecordedSeries]:
        """XIDs since the exporter started: a counter per code, which begins at its first XID."""
        if not self.machine.has_xid_totals:
            return
        for row in self.rows:
            for code, times in _by_code(row.view.trouble):
                total = self._covering([(at, self._restarted(at)) for at in times])
                labels = row.labels | {"xid": str(code)}
                yield from self._series("DCGM_EXP_XID_ERRORS_TOTAL", labels, total, row.mask & (total > 0))

    def health(self) -> Iterator[RecordedSeries]:
        """DCGM's health watches: 0 pass, 10 warn, 20 fail; whole GPUs only."""
        if not self.machine.has_health_watches:
            return
        for row in self.rows:
            if row.view.device.instance is not None:
                continue
            for watch in _WATCHES:
                labels = row.labels | {"health_watch": watch}
                # Two faults with one error code are one series, whose value is the worse of both.
                failing: dict[str, Floats] = {}
                for begin, end, status, error in row.view.trouble.watches.get(watch, []):
                    during = inside(self.seconds, [(begin + 60, end)])
                    values = failing.setdefault(error, np.zeros(len(self.seconds)))
                    np.maximum(values, np.where(during, status, 0), out=values)
                passing = np.ones(len(self.seconds), dtype=bool)
                for error, values in failing.items():
                    passing &= values == 0
                    failed = labels | {"health_error_code": error}
                    yield from self._series("DCGM_EXP_GPU_HEALTH_STATUS", failed, values, row.mask & (values > 0))
                healthy = np.zeros(len(passing))
                passed = labels | {"health_error_code": "DCGM_FR_OK"}
                yield from self._series("DCGM_EXP_GPU_HEALTH_STATUS", passed, healthy, row.mask & passing)

    def target(self, metric: str) -> Iterator[RecordedSeries]:
        """Prometheus' own metrics of the scrape: up, scrape_samples_scraped."""
        labels = self._target_labels() | self._pod_labels()
        values: Floats = self.up.astype(np.float64)
        if metric == "scrape_samples_scraped":
            devices: Floats = np.stack([row.mask for row in self.rows]).sum(axis=0).astype(np.float64)
            values = devices * (len(METRICS) if self.machine.extended else 23)
        yield from self._series(metric, labels, values, self.prometheus_up)


def samples(mask: Mask, prometheus_up: Mask) -> _Samples:
    """The samples in the mask, and a staleness marker at the first scrape after each run of them."""
    ended = np.zeros(len(mask), dtype=bool)
    ended[1:] = mask[:-1] & ~mask[1:]
    ended &= prometheus_up
    index = np.flatnonzero(mask | ended)
    return index, ended[index]


def _by_code(trouble: CardScript) -> Iterator[tuple[int, list[float]]]:
    for code in sorted({code for _, code in trouble.xids}):
        yield code, [at for at, other in trouble.xids if other == code]


def prometheus_up(plan: FleetPlan) -> Mask:
    """When Prometheus was up: it restarts now and then and then misses all samples of some minutes."""
    return ~inside(plan.sample_seconds, _now_and_then(plan, 0.2, 90, 330, "prometheus"))


def _now_and_then(plan: FleetPlan, per_day: float, shortest: float, longest: float, *stream: str | int) -> list[Span]:
    """Spans of between `shortest` and `longest` seconds."""
    rng = plan.rng(*stream)
    begins = rng.uniform(0, plan.seconds, rng.poisson(per_day * plan.days))
    return [(float(at), float(at + rng.uniform(shortest, longest))) for at in begins]


def fleet_series(
    exporters: Sequence[MachineExporter], only: Sequence[Metric] | None = None
) -> Iterator[RecordedSeries]:
    """All series, those of one metric together; `only` these of METRICS and nothing else where given."""
    for metric in METRICS if only is None else only:
        for vocabulary in ("dcgm", "dcgm49"):
            if vocabulary == "dcgm49" and metric.name("dcgm49") == metric.name("dcgm"):
                continue
            for exporter in exporters:
                if metric.name(exporter.machine.vocabulary) == metric.name(vocabulary):
                    yield from exporter.metric(metric)
    if only is not None:
        return
    for metric in LINK_METRICS:
        for exporter in exporters:
            yield from exporter.metric(metric)
    for vocabulary in ("dcgm", "dcgm49"):
        for exporter in exporters:
            if exporter.machine.vocabulary == vocabulary:
                yield from exporter.xids()
    for group in (MachineExporter.xid_counts, MachineExporter.xid_totals, MachineExporter.health):
        for exporter in exporters:
            yield from group(exporter)
    for name in ("up", "scrape_samples_scraped"):
        for exporter in exporters:
            yield from exporter.target(name)
