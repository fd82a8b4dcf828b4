"""What the ledger of a week, and one hourly run of its keeping, cost once they are read: 10,000 GPUs beside 1,000.

Each fleet is a process of its own, with windows and histories as `gpuwatch ledger` has them: 5 h and then 7 days, or
the 6 h that a run reads and keeps anew, in steps of 5 minutes; a Pod a day on four of five GPUs, eight GPUs a Node, and
a Job on each Node. A run also saves the hours into a file. The ratio matters, not the seconds.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from array import array
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from gpuwatch.account.gpu_histories import FleetHistory, gpu_histories
from gpuwatch.account.ledger import entries_of
from gpuwatch.facts.model.cluster import Cluster
from gpuwatch.facts.model.ledger import ClusterHistory, ContainerHistory, LedgerPast, NodeHistory, Row
from gpuwatch.facts.model.telemetry import Signal
from gpuwatch.facts.model.workload_profile import HeldWindows
from gpuwatch.sources.store.ledger import LedgerStore
from lab.benchmarks.window_statistics import peak_mib

START, STEP, DAY = datetime(2026, 3, 2, tzinfo=UTC), 300, 288
LEAD_HOURS, WEEK_HOURS, RUN_HOURS = 5, 168, 6


def fleet(gpus: int, count: int) -> FleetHistory:
    rng = np.random.default_rng(7)
    windows, containers = [], {}
    for gpu in range(gpus):
        for day, begin in enumerate(range(0, count, DAY)):
            length = min(DAY, count - begin)
            engine = np.clip(rng.normal(0.6, 0.4, length), 0.0, 1.0)
            pod = f"ml/train-{gpu // 8}-{gpu % 8}-{day}" if gpu % 5 else ""
            values = {
                Signal.BUSY_RATIO: engine,
                Signal.SM_ACTIVE_RATIO: engine / 2,
                Signal.MEMORY_USED_BYTES: engine * 1e10,
            }
            windows.append(
                HeldWindows(
                    device=f"GPU-{gpu}",
                    uuid=f"GPU-{gpu}",
                    model="NVIDIA A100-SXM4-80GB",
                    mig_profile="",
                    pod=pod,
                    container="main" if pod else "",
                    shared=False,
                    start=START + timedelta(seconds=STEP * begin),
                    step_seconds=STEP,
                    values={signal: column(each, "f") for signal, each in values.items()},
                )
            )
            if pod:
                containers[pod, "main"] = life(pod, begin, length)
    free = dict.fromkeys((Row.WAITED_FOR, Row.UNREACHABLE, Row.USABLE), column(np.full(count, 0.25)))
    nodes = {f"node-{number}": node(f"node-{number}", count) for number in range((gpus + 7) // 8)}
    return FleetHistory(
        start=START,
        step_seconds=STEP,
        count=count,
        windows=windows,
        owners={pod: f"Job/{pod.rsplit('-', 2)[0]}" for pod, _ in containers},
        node_of={f"GPU-{gpu}": f"node-{gpu // 8}" for gpu in range(gpus)},
        cluster=Cluster(),
        history=ClusterHistory(
            start=START,
            step_seconds=STEP,
            nodes=nodes,
            containers=containers,
            free={("default", "A100-SXM4-80GB"): free},
        ),
    )


def column(values: np.ndarray, kind: str = "d") -> "array[float]":
    return array(kind, values.astype(kind).tobytes())


def life(pod: str, begin: int, length: int) -> ContainerHistory:
    ones = np.ones(length)
    return ContainerHistory(
        pod=pod,
        container="main",
        first=begin,
        running=column(ones, "f"),
        init=column(ones * 0.0, "f"),
        started=column(ones * (START.timestamp() + STEP * begin)),
        deleting=column(ones * 0.0, "f"),
        ended=column(ones * np.nan, "f"),
    )


def node(name: str, count: int) -> NodeHistory:
    ones = np.ones(count)
    return NodeHistory(
        name=name,
        ready=column(ones),
        cordoned=column(ones * 0),
        capacity=column(ones * 8),
        allocatable=column(ones * 8),
    )


def measure(gpus: int, hours: int) -> None:
    history, start = fleet(gpus, (LEAD_HOURS + hours) * 3600 // STEP), START + timedelta(hours=LEAD_HOURS)
    read = peak_mib()
    begin = time.perf_counter()
    capacity, entries = entries_of(gpu_histories(history), START, STEP, start, lambda *_: 2.0)
    assert abs(capacity - gpus * hours) < 1e-3
    if hours == RUN_HOURS:
        with tempfile.TemporaryDirectory() as folder:
            LedgerStore.open(Path(folder, "ledger"), "USD").save(
                start, entries, start + timedelta(hours=1), LedgerPast()
            )
    print(gpus, time.perf_counter() - begin, len(entries), read, peak_mib())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, help="measure a fleet of this size alone, here")
    parser.add_argument("--hours", type=int, default=WEEK_HOURS, help="of that fleet")
    given = parser.parse_args()
    if given.gpus:
        measure(given.gpus, given.hours)
        return
    table = Table("hours", "GPUs", "seconds", "÷ 1,000 GPUs", "entries", "MiB of facts", "peak MiB")
    for hours in (WEEK_HOURS, RUN_HOURS):
        first = 0.0
        for gpus in (1000, 10_000):
            run = (sys.executable, "-m", "lab.benchmarks.ledger", "--gpus", str(gpus), "--hours", str(hours))
            found = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
            first = first or float(found[1])
            ratio = f"{float(found[1]) / first:.1f}"
            table.add_row(str(hours), f"{gpus:,}", f"{float(found[1]):.1f}", ratio, *found[2:])
    Console().print(table)


if __name__ == "__main__":
    main()
