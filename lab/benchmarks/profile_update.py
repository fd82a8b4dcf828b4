"""What keeping profiles up to date costs: an hourly update beside the first one, and a large fleet beside a small one.

  week   1,000 GPUs: the first update, of the whole week, and then one of the last hour, from the same Prometheus
  fleet  the last hour of 10,000 GPUs and of 1,000, each in a Prometheus of its own

Every update is a process of its own, and begins with discovery and the inventory; what is measured is update_profiles
as the controller calls it, from the question to the new book. Ratios matter, not seconds; those of CPU time, client and
server together, matter where other work keeps the cores busy.
"""

import argparse
import contextlib
import json
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gpuwatch.facts.catalog.metrics import rows_for
from gpuwatch.facts.model.cluster import Cluster, Pod
from gpuwatch.facts.model.telemetry import Signal
from gpuwatch.size.collect import SIGNALS, FetchPolicy, update_profiles
from gpuwatch.size.policy import ProfilePolicy
from lab.benchmarks import load
from lab.benchmarks.window_statistics import peak_mib, server_cpu_seconds, settle

THIS = (sys.executable, "-m", "lab.benchmarks.profile_update")
WEEK, HOUR = 7 * 86400, 3600


def metrics() -> list[str]:
    """What an exporter up to 4.8 has of them by default, and SM activity, which profiles ask people to enable."""
    signals = (*SIGNALS, Signal.XID_CODE)
    chosen = [
        row.metric
        for signal in signals
        for row in rows_for(signal)[:1]
        if row.vocabulary == "dcgm" and (row.default_exported or signal is Signal.SM_ACTIVE_RATIO)
    ]
    return list(dict.fromkeys(chosen))


def cluster(gpus: int) -> Cluster:
    """The Pods of the loaded fleet: one on each GPU, a Job per Node."""
    pods = []
    for gpu in range(gpus):
        labels = load.series_labels("up", gpu)
        namespace, name = labels["exported_namespace"], labels["exported_pod"]
        workload = f"Job/{namespace}/{name.rpartition('-')[0]}"
        pods.append(
            Pod(
                namespace=namespace,
                name=name,
                phase="Running",
                workload=workload,
                accelerators={"nvidia.com/gpu": 1},
                cpu_cores=8,
            )
        )
    return Cluster(pods=tuple(pods), known=True)


def measure(url: str, gpus: int, history_seconds: int, hours_ago: float, book_file: Path) -> dict[str, float]:
    """One update as of that long ago, going on from the book in the file, and leaving the new one there."""
    from gpuwatch.sources.telemetry.connection import Connection
    from gpuwatch.sources.telemetry.prometheus import PrometheusStore

    book = pickle.loads(book_file.read_bytes()) if book_file.exists() else None
    state = cluster(gpus)
    fetch = FetchPolicy(history_seconds=history_seconds)
    at = load.END - timedelta(hours=hours_ago)
    with contextlib.closing(PrometheusStore(Connection(url=url))) as store:
        busy = time.process_time() + server_cpu_seconds(url)
        began = time.perf_counter()
        book, gaps = update_profiles(book, store, state, at, ProfilePolicy(), fetch=fetch)
        seconds = time.perf_counter() - began
        busy = time.process_time() + server_cpu_seconds(url) - busy
    failures = [gap for gap in gaps if gap.kind != "signal_missing"]
    if failures or book.until < at - timedelta(seconds=600):
        sys.exit(f"the update did not get to its end, so the comparison is void: {failures[:3]}, {book.until}")
    book_file.write_bytes(pickle.dumps(book))
    return {"seconds": seconds, "cpu_seconds": busy, "peak_mib": peak_mib(), "profiles": len(book.profiles)}


def in_process(url: str, gpus: int, history: int, hours_ago: float, book: Path) -> dict[str, float]:
    """An update in a process of its own, so that its peak memory is its own."""
    command = [*THIS, "week", "--only", url, str(gpus), str(history), str(hours_ago), str(book)]
    return dict(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


def week(rounds: int, gpus: int) -> None:
    found: list[tuple[dict[str, float], dict[str, float]]] = []
    with (
        tempfile.TemporaryDirectory(prefix="profiles-") as folder,
        running(["--storage.tsdb.max-block-duration=31d"]) as url,
    ):
        samples = load.load(url, metrics(), gpus, WEEK, 60)
        settle(url)
        for number in range(rounds):
            book = Path(folder) / f"{number}.book"
            first = in_process(url, gpus, WEEK, 1, book)
            found.append((first, in_process(url, gpus, WEEK, 0, book)))
    title = f"{gpus:,} GPUs, {samples:,} samples, {len(metrics())} metrics; medians of {rounds}"
    show(title, ("first update, a week", "hourly update"), found, "÷ first")


def fleet(rounds: int, gpus: int) -> None:
    found: list[tuple[dict[str, float], dict[str, float]]] = []
    small = gpus // 10
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="profiles-")))
        urls = {size: stack.enter_context(running([])) for size in (small, gpus)}
        for size, url in urls.items():
            load.load(url, metrics(), size, 4 * HOUR + 600, 60)
            settle(url)
            # Three hours of the larger fleet are more than one stretch: as much as is ever held at once.
            first = in_process(url, size, 3 * HOUR, 1, folder / f"{size}.book")
        for number in range(rounds):
            results = []
            for size, url in urls.items():
                book = folder / f"{size}-{number}.book"
                book.write_bytes((folder / f"{size}.book").read_bytes())
                results.append(in_process(url, size, WEEK, 0, book))
            found.append((results[0], results[1]))
    title = f"hourly updates, {len(metrics())} metrics at a minute; medians of {rounds}"
    show(title, (f"{small:,} GPUs", f"{gpus:,} GPUs"), found, f"÷ {small:,} GPUs")
    Console().print(f"first update of {gpus:,} GPUs, in stretches: peak {first['peak_mib']:.0f} MiB")


def running(flags: Sequence[str]) -> contextlib.AbstractContextManager[str]:
    from parts.prometheus_server import running as started

    return started(load.newest_server(), flags=flags)


def show(
    title: str, ways: tuple[str, str], rounds: Sequence[tuple[dict[str, float], dict[str, float]]], ratio: str
) -> None:
    table = Table(title=title)
    for column in ("update", "seconds", ratio, "CPU seconds", ratio, "peak MiB", "profiles"):
        table.add_column(column, justify="right")
    middle = len(rounds) // 2
    for index, way in enumerate(ways):
        cells = []
        for measured in ("seconds", "cpu_seconds"):
            ratios = sorted(each[index][measured] / each[0][measured] for each in rounds)
            cells += [f"{sorted(each[index][measured] for each in rounds)[middle]:.2f}", f"{ratios[middle]:.4f}"]
        peak = max(each[index]["peak_mib"] for each in rounds)
        table.add_row(way, *cells, f"{peak:.0f}", f"{rounds[0][index]['profiles']:.0f}")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=["week", "fleet"])
    parser.add_argument("--gpus", type=int, help="default: 1,000 for the week, 10,000 for the fleet")
    parser.add_argument("--rounds", type=int, default=3, help="how often both are measured, in turn")
    parser.add_argument("--only", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        url, gpus, history, hours_ago, book = arguments.only
        print(json.dumps(measure(url, int(gpus), int(history), float(hours_ago), Path(book))))
    elif arguments.question == "week":
        week(arguments.rounds, arguments.gpus or 1000)
    else:
        fleet(arguments.rounds, arguments.gpus or 10_000)


if __name__ == "__main__":
    main()
