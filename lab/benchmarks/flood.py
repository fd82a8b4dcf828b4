"""What a flood of invented GPUs costs a look: eight honest Nodes, and 300,000 GPUs of targets that are no exporters.

  one     one target without a Pod on its series `up`
  many    100 such targets in a job of their own
  own     one target in the exporters' own job
  forged  an honest exporter's labels, as honorLabels on a tenant's job permits
  spread  each invented GPU under an instance of its own

Every look is a process of its own, with the memory limit of the manifests in mind (2 GiB).
"""

import argparse
import contextlib
import json
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

from rich.console import Console
from rich.table import Table

from gpuwatch.facts.model.cluster import Cluster
from lab.benchmarks import load
from lab.benchmarks.load import GPUS_PER_NODE, series_labels
from lab.benchmarks.look import Listed
from lab.benchmarks.profile_update import running
from lab.benchmarks.window_statistics import peak_mib, settle

HONEST, METRICS = 64, ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_XID_ERRORS")
KINDS = ("one", "many", "own", "forged", "spread")


def forged(kind: str, metric: str, number: int) -> dict[str, str]:
    invented = {"UUID": f"GPU-invented-{number:08x}", "Hostname": f"evil-{number // GPUS_PER_NODE:05d}"}
    target = {
        "one": {"instance": "203.0.113.9:8080", "job": "evil"},
        "many": {"instance": f"203.0.113.{number % 100}:8080", "job": "evil"},
        "own": {"instance": "203.0.113.9:8080"},
        "forged": {name: series_labels(metric, 0)[name] for name in ("instance", "job")},
        "spread": {"instance": f"203.0.113.9:{number}", "job": "evil"},
    }
    return series_labels(metric, number) | invented | target[kind]


def measure(url: str) -> dict[str, object]:
    from gpuwatch.act.analysis import Policies, analyse
    from gpuwatch.act.plan.facts import PlanFacts
    from gpuwatch.app.settings import Settings
    from gpuwatch.app.sources import Opened, take_snapshot
    from gpuwatch.sources.telemetry.connection import Connection
    from gpuwatch.sources.telemetry.prometheus import PrometheusStore

    known: Cluster = Listed(HONEST).read(load.END)
    nodes = tuple(replace(node, gpu_count=GPUS_PER_NODE) for node in known.nodes)
    exporters = [series_labels("up", gpu) for gpu in range(0, HONEST, GPUS_PER_NODE)]
    where = {each[name].partition(":")[0]: each["Hostname"] for each in exporters for name in ("pod", "instance")}
    pods = tuple(f"{each['namespace']}/{each['pod']}" for each in exporters)
    cluster = replace(known, nodes=nodes, exporter_nodes=where, exporter_pods=pods)
    with contextlib.closing(PrometheusStore(Connection(url=url))) as store:
        fleet = SimpleNamespace(description="eight Nodes", read=lambda _: cluster)
        began = time.perf_counter()
        opened = Opened(Settings(), Policies(), store, fleet, None, load.END, "loaded")
        snapshot = take_snapshot(opened, quiet=True)
        plan = analyse(PlanFacts(snapshot=snapshot), opened.policies).plan
    honest = sum(device.uuid.startswith("GPU-0") and not device.untrusted for device in snapshot.devices)
    told = [f"{gap.kind} {gap.what}: {gap.detail[:200]}" for gap in snapshot.gaps if gap.kind != "signal_missing"]
    return {
        "seconds": round(time.perf_counter() - began, 1),
        "peak MiB": round(peak_mib()),
        "devices": len(snapshot.devices),
        "trusted": honest,
        "brake": plan.brake[:80],
        "gaps": told[:4],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=300_000)
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(arguments.only)))
        return
    results = {}
    for kind in arguments.kinds:
        with running([]) as url:
            load.load(url, list(METRICS), HONEST, 600, 60)
            if kind != "none":
                honest = load.series_labels
                load.series_labels = lambda metric, number, kind=kind: forged(kind, metric, number)
                load.load(url, list(METRICS), arguments.gpus, 600, 60, up=False)
                load.series_labels = honest
            settle(url)
            command = [sys.executable, "-m", "lab.benchmarks.flood", "--only", url]
            found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            results[kind] = json.loads(found)
            print(kind, results[kind], flush=True)
    table = Table(title=f"{HONEST} honest GPUs and {arguments.gpus:,} invented ones")
    for column in ("flood", "seconds", "peak MiB", "devices", "trusted", "brake"):
        table.add_column(column)
    for kind, row in results.items():
        table.add_row(kind, *(str(row[name]) for name in ("seconds", "peak MiB", "devices", "trusted", "brake")))
    Console().print(table)


if __name__ == "__main__":
    main()
