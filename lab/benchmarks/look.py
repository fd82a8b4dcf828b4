"""What one look of the controller costs: telemetry and cluster into a Snapshot, all rules, and the plan.

  10,000 GPUs and 1,000, each in a Prometheus of its own: a day of engine activity at a minute, two hours of the rest of
  the default list. One GPU in 20 is silent, so that its past decides.

Every series of looks is a process of its own. `gpuwatch run` looks once a minute.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime, timedelta

from rich.console import Console
from rich.table import Table

from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.facts.catalog.metrics import metric_rows
from gpuwatch.facts.model.cluster import Cluster, Condition, Node, Workload
from lab.benchmarks import load
from lab.benchmarks.profile_update import cluster, running
from lab.benchmarks.window_statistics import peak_mib, server_cpu_seconds, settle

DAY, HOURS = 86_400, 7_200
SILENT_EVERY = 20
LOOKS = 3
ENGINE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"


class Listed:
    """The loaded fleet's Nodes and Pods, a Job per Node, as a reader of the cluster gives them."""

    description = "the loaded fleet"

    def __init__(self, gpus: int) -> None:
        pods, nodes, owners = [], [], {}
        for gpu, pod in enumerate(cluster(gpus).pods):
            host = load.series_labels("up", gpu)["Hostname"]
            pods.append(replace(pod, uid=f"pod-{gpu}", node=host, started=load.END - timedelta(days=2)))
            kind, namespace, name = pod.workload.split("/")
            owners[pod.workload] = Workload(
                id=pod.workload, kind=kind, api_version="batch/v1", namespace=namespace, name=name
            )
            if gpu % load.GPUS_PER_NODE == 0:
                held = {"nvidia.com/gpu": load.GPUS_PER_NODE}
                ready = (Condition("Ready", "True"),)
                nodes.append(Node(name=host, conditions=ready, accelerators=held, allocatable=held))
        self._state = Cluster(
            nodes=tuple(nodes), pods=tuple(pods), workloads=tuple(owners.values()), known=True, unread=()
        )

    def read(self, at: datetime) -> Cluster:  # noqa: ARG002 - the loaded fleet has one moment
        return self._state


def metrics() -> list[str]:
    """What an exporter up to 4.8 has by default, but for the engine's activity."""
    found = [row.metric for row in metric_rows() if row.vocabulary == "dcgm" and row.default_exported]
    return [metric for metric in dict.fromkeys(found) if metric != ENGINE]


def measure(url: str, gpus: int) -> dict[str, float]:
    """Looks one after the other, a minute of the fleet apart, as the controller takes them: the first, and the last."""
    from gpuwatch.act.analysis import Policies, analyse
    from gpuwatch.app.settings import Settings
    from gpuwatch.app.sources import Opened, take_snapshot
    from gpuwatch.sources.telemetry.connection import Connection
    from gpuwatch.sources.telemetry.prometheus import PrometheusStore

    fleet = Listed(gpus)
    found: dict[str, float] = {}
    with contextlib.closing(PrometheusStore(Connection(url=url))) as store:
        for number in range(LOOKS):
            at = load.END - timedelta(minutes=LOOKS - 1 - number)
            opened = Opened(Settings(), Policies(), store, fleet, None, at, "loaded")
            busy, own = time.process_time() + server_cpu_seconds(url), time.process_time()
            began = time.perf_counter()
            snapshot = take_snapshot(opened, quiet=True)
            read = time.perf_counter()
            analysis = analyse(PlanFacts(snapshot=snapshot), opened.policies)
            ended = time.perf_counter()
            which = "first" if number == 0 else "later"
            found[f"{which}_seconds"] = ended - began
            found[f"{which}_cpu_seconds"] = time.process_time() + server_cpu_seconds(url) - busy
            found[f"{which}_own_cpu_seconds"] = time.process_time() - own
            found[f"{which}_analysis_seconds"] = ended - read
    if len(snapshot.devices) != gpus or len(snapshot.activity) < gpus // SILENT_EVERY:
        sys.exit(f"void: {len(snapshot.devices)} devices, {len(snapshot.activity)} histories, {snapshot.gaps[:3]}")
    found["findings"] = len(analysis.findings)
    return {**found, "peak_mib": peak_mib()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(arguments.only[0], int(arguments.only[1]))))
        return
    sizes = (arguments.gpus // 10, arguments.gpus)
    results = []
    for gpus in sizes:
        with running([]) as url:
            load.load(url, metrics(), gpus, HOURS, 60, SILENT_EVERY)
            load.load(url, [ENGINE], gpus, DAY, 60, SILENT_EVERY, up=False)
            settle(url)
            command = [sys.executable, "-m", "lab.benchmarks.look", "--only", url, str(gpus)]
            results.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
    table = Table(title=f"one look; one GPU in {SILENT_EVERY} is silent")
    for column in ("", *(f"{gpus:,} GPUs" for gpus in sizes), "ratio"):
        table.add_column(column, justify="right")
    for name in results[0]:
        small, large = (each[name] for each in results)
        table.add_row(name.replace("_", " "), f"{small:.2f}", f"{large:.2f}", f"{large / small:.1f}" if small else "")
    Console().print(table)


if __name__ == "__main__":
    main()
