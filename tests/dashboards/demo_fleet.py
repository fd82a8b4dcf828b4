"""A Prometheus with the demo's fleet over its last day, the shipped rules, and gpuwatch's own metrics: what the boards'
pictures show."""

import contextlib
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from importlib import resources
from pathlib import Path

import pyarrow.parquet
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from app.told_fleet import told_metrics
from dashboards import fleets
from dashboards.fleets import Labels, Series
from dashboards.shown import ROOT
from gpuwatch.account.fleet_cost import advice_counts, fleet_cost
from gpuwatch.account.money import PriceList
from gpuwatch.act.analysis import analyse, needs_of
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.slots import slots, waiting_gpus
from gpuwatch.app.ledger import read_ledger
from gpuwatch.app.settings import Settings
from gpuwatch.app.sizing import size
from gpuwatch.app.sources import Opened, open_sources
from gpuwatch.facts.catalog.instances import instance_types
from gpuwatch.sources.collect.collect import collect
from lab import demo
from parts import prometheus_server, remote_write
from parts.prometheus_server import ServerBuild

END = demo.END - timedelta(minutes=1)
"""The last samples are of this minute."""
DAY = timedelta(days=1)
EVERY = timedelta(hours=2)
CLUSTER = "eu-1"
"""The value of the label `cluster`."""
TAINTED = {"n0": "l4-node-01"}
"""The Node of the Remediations that are told, and the Node of this fleet that has a degraded GPU."""
_PACKED = resources.files("gpuwatch.app.cli") / "demo_fleet"


@contextlib.contextmanager
def running(build: ServerBuild) -> Iterator[str]:
    """Yields its base URL."""
    begin, end = round((END - DAY).timestamp()), round(END.timestamp())
    with tempfile.TemporaryDirectory(prefix="demo-fleet-") as folder, prometheus_server.running(build) as url:
        with tarfile.open(str(_PACKED / "cluster.tar.xz")) as packed:
            packed.extractall(folder, filter="data")
        recorded = Path(str(_PACKED / "telemetry.parquet"))
        for part in _telemetry(recorded, begin - 3 * 3600):
            remote_write.write(url, part)
        remote_write.write(url, _own(_opened(recorded, Path(folder, "cluster"))))
        fleets.record(url, begin - 3600, end)
        remote_write.write(url, _alerts(url, begin, end))
        yield url


def _opened(telemetry: Path, cluster: Path) -> Opened:
    options: dict[str, object] = dict.fromkeys(("prometheus", "kubeconfig", "context", "at", "config"))
    options |= {"telemetry": (telemetry,), "cluster": cluster, "no_cluster": False}
    return open_sources(options, Settings())


def _telemetry(recorded: Path, begin: int) -> Iterator[list[Series]]:
    """What was scraped since then, in parts that one request takes."""
    file = pyarrow.parquet.ParquetFile(recorded)
    for number in range(file.num_row_groups):
        part = []
        for row in file.read_row_group(number).to_pylist():
            points = [
                (at / 1000, value) for at, value in zip(row["times"], row["values"], strict=True) if at >= begin * 1000
            ]
            if points:
                part.append(({"__name__": row["metric"], **dict(row["labels"]), "cluster": CLUSTER}, points))
        yield part


def _own(opened: Opened) -> Iterator[Series]:
    """gpuwatch's metrics as it would have told them: looked at every two hours, its counters of the ledger by hour."""
    assert opened.store is not None and opened.cluster is not None
    sized = size(opened, None, timedelta(days=3), quiet=True)
    ledger = read_ledger(opened, timedelta(days=3), quiet=True)
    metrics = told_metrics()
    metrics.advised(advice_counts(sized.recommendations, sized.abstentions, sized.outcomes, END))
    found: dict[tuple[str, frozenset[tuple[str, str]]], list[tuple[float, float | None]]] = {}
    for number in range(DAY // EVERY, -1, -1):
        at = END - number * EVERY
        snapshot = collect(opened.store, opened.cluster, at, needs_of(opened.policies))
        # The recorded cluster is of the end. Earlier its clock would differ from that of the telemetry.
        snapshot = snapshot if at == END else replace(snapshot, gaps=())
        analysis = analyse(PlanFacts(snapshot=snapshot), opened.policies)
        facts = PlanFacts(snapshot=snapshot, findings=analysis.findings)
        metrics.analysed(analysis)
        metrics.costs(fleet_cost(analysis, PriceList(instance_types()), sized.recommendations))
        metrics.room(slots(facts, labels=facts.policy.slot_labels), waiting_gpus(facts))
        done = [each for each in ledger.entries if each.hour < at]
        metrics.accounted(at, done, ledger.currency)
        until = min(at + EVERY, END + timedelta(seconds=1))
        times = [float(each) for each in range(round(at.timestamp()), round(until.timestamp()), fleets.STEP)]
        for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
            for sample in family.samples:
                if sample.name in fleets.SHOWN:
                    labels = {name: TAINTED.get(value, value) for name, value in sample.labels.items()}
                    key = sample.name, frozenset(labels.items())
                    found.setdefault(key, []).extend((each, _told(sample, each)) for each in times)
    target = {"cluster": CLUSTER, "job": "gpuwatch", "instance": "gpuwatch-7d9c5b7f4:8080", "namespace": "gpuwatch"}
    for (name, labels), points in found.items():
        yield {"__name__": name, **dict(labels), **target}, points


def _told(sample: Sample, at: float) -> float:
    """Its value at this time: the times go with the clock, and each two minutes a cycle ends that took a second."""
    if sample.name.endswith("_timestamp_seconds"):
        return at - 60
    return sample.value + at // fleets.STEP if "_duration_" in sample.name else sample.value


def _alerts(url: str, begin: int, end: int) -> Iterator[Series]:
    """ALERTS, as the shipped alerts fire. Those that fire after a wait fire at once here."""
    rules = yaml.safe_load((ROOT / "rules" / "gpuwatch-alerts.yaml").read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        for series in fleets.query_range(url, rule["expr"], begin, end, fleets.STEP):
            labels: Labels = {**series["metric"], **rule["labels"], "alertname": rule["alert"], "alertstate": "firing"}
            yield {**labels, "__name__": "ALERTS"}, [(at, 1.0) for at, _ in series["values"]]
