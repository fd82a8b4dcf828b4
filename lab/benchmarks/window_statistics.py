"""What the statistics of a week, and of a health cycle, cost beside the bare queries and beside fetching ranges.

Three ways to the same numbers, side by side on one real Prometheus, each in a process of its own:
  bare      the cheapest server-side expression per statistic, sent one after the other; the sum of their times
  gpuwatch  read_stats: discovery, splitting by Node, attribution, units
  ranges    prometheus-api-client: fetch every sample into a MetricRangeDataFrame, then pandas (week only)

Ratios matter, not seconds: `python -m lab.benchmarks.window_statistics week` and `… health`; --help for the sizes.
"""

import argparse
import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gpuwatch.facts.catalog.metrics import rows_for
from gpuwatch.facts.model.needs import statistics
from gpuwatch.facts.model.telemetry import Signal, Statistic, WindowStat
from gpuwatch.judge.health.assess import HealthPolicy, needs_of_rules
from lab.benchmarks import load

WEEK = 7 * 86400
WEEK_SIGNALS = (
    Signal.BUSY_RATIO,
    Signal.TENSOR_ACTIVE_RATIO,
    Signal.DRAM_ACTIVE_RATIO,
    Signal.MEMORY_USED_BYTES,
    Signal.POWER_WATTS,
)
WEEK_STATISTICS = (Statistic.AVG, Statistic.MAX, Statistic.COUNT)


def week_stats() -> list[WindowStat]:
    plain = [WindowStat(signal, statistic, WEEK) for signal in WEEK_SIGNALS for statistic in WEEK_STATISTICS]
    return [*plain, WindowStat(Signal.MEMORY_USED_BYTES, Statistic.QUANTILE, WEEK, 0.99)]


def health_stats() -> list[WindowStat]:
    """What the health rules ask of the last hour; the few longer windows are left to the slower jobs."""
    return [stat for stat in statistics(needs_of_rules(HealthPolicy())) if stat.window_seconds <= 3600]


def metric_of(signal: Signal) -> str:
    """The first choice of an exporter up to 4.8."""
    return next(row.metric for row in rows_for(signal) if row.vocabulary == "dcgm")


def exported(signal: Signal) -> bool:
    return any(row.vocabulary == "dcgm" and row.default_exported for row in rows_for(signal))


def bare_query(stat: WindowStat) -> str:
    """The cheapest expression that gives the statistic per device."""
    metric = metric_of(stat.signal)
    window = f"[{stat.window_seconds}s]"
    inner = {
        Statistic.LAST: metric,
        Statistic.AVG: f"avg_over_time({metric}{window})",
        Statistic.MAX: f"max_over_time({metric}{window})",
        Statistic.MIN: f"min_over_time({metric}{window})",
        Statistic.COUNT: f"count_over_time({metric}{window})",
        Statistic.INCREASE: f"increase({metric}{window})",
        Statistic.CHANGES: f"changes({metric}{window})",
        Statistic.QUANTILE: f"quantile_over_time({stat.parameter}, {metric}{window})",
        Statistic.FRACTION_ABOVE: f"avg_over_time(({metric} > bool {stat.parameter})[{stat.window_seconds}s:60s])",
        Statistic.APPEARED: f"last_over_time({metric}{window})",
        Statistic.DISAPPEARED: f"last_over_time({metric}{window})",
    }.get(stat.statistic, metric)
    return f"max by (UUID, GPU_I_ID) ({inner})"


def measure_bare(url: str, stats: list[WindowStat]) -> dict[str, float]:
    total = 0.0
    answers = 0
    for stat in stats:
        body = urllib.parse.urlencode({"query": bare_query(stat), "time": load.END.timestamp(), "timeout": "300s"})
        began = time.perf_counter()
        with urllib.request.urlopen(f"{url}/api/v1/query", data=body.encode(), timeout=300) as answer:
            data = answer.read()
        total += time.perf_counter() - began
        answers += len(json.loads(data)["data"]["result"])
    return {"seconds": total, "answers": answers}


def measure_gpuwatch(url: str, stats: list[WindowStat]) -> dict[str, float]:
    from gpuwatch.sources.telemetry.connection import Connection
    from gpuwatch.sources.telemetry.discovery import discover
    from gpuwatch.sources.telemetry.inventory import take_inventory
    from gpuwatch.sources.telemetry.prometheus import PrometheusStore
    from gpuwatch.sources.telemetry.readings import read_stats

    store = PrometheusStore(Connection(url=url))
    began = time.perf_counter()
    schema, gaps = discover(store, load.END)
    inventory = take_inventory(store, load.END, schema, 3600)
    found = time.perf_counter()
    readings, more = read_stats(store, stats, load.END, schema, inventory)
    ended = time.perf_counter()
    problems = [*gaps, *inventory.gaps, *more]
    if problems:
        sys.exit(f"gpuwatch had gaps, so the comparison is void: {problems[:3]}")
    return {
        "seconds": ended - found,
        "discovery_seconds": found - began,
        "answers": sum(len(answers) for answers in readings.values.values()),
    }


def measure_ranges(url: str, stats: list[WindowStat]) -> dict[str, float]:
    import pandas as pd
    from prometheus_api_client import MetricRangeDataFrame, PrometheusConnect

    client = PrometheusConnect(url=url)
    began = time.perf_counter()
    answers = 0
    for signal in dict.fromkeys(stat.signal for stat in stats):
        days = [
            MetricRangeDataFrame(
                client.custom_query(
                    f"{metric_of(signal)}[1d]",
                    params={"time": (load.END - timedelta(days=day)).timestamp()},
                    timeout=300,
                )
            )[["UUID", "value"]]
            for day in range(7)
        ]
        grouped = pd.concat(days).groupby("UUID")["value"]
        for stat in stats:
            if stat.signal is signal:
                result = {
                    Statistic.AVG: grouped.mean,
                    Statistic.MAX: grouped.max,
                    Statistic.COUNT: grouped.count,
                    Statistic.QUANTILE: lambda: grouped.quantile(0.99),  # noqa: B023 - called in this turn
                }[stat.statistic]()
                answers += len(result)
    return {"seconds": time.perf_counter() - began, "answers": answers}


WAYS = {"bare": measure_bare, "gpuwatch": measure_gpuwatch, "ranges": measure_ranges}


def peak_mib() -> float:
    """Of this process alone: ru_maxrss begins with that of the process that started it, which loaded the data."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def in_process(way: str, question: str, url: str) -> dict[str, float]:
    """One way in a process of its own, so that its peak memory is its own."""
    command = [sys.executable, "-m", "lab.benchmarks.window_statistics", question, "--only", way, "--url", url]
    return dict(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=["week", "health"])
    parser.add_argument("--gpus", type=int, help="default: 1,000 for the week, 10,000 for the health cycle")
    parser.add_argument("--rounds", type=int, default=3, help="the three ways are taken in turn this often")
    parser.add_argument("--no-ranges", action="store_true", help="leave out fetching ranges (minutes, gigabytes)")
    parser.add_argument("--only", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    stats = week_stats() if arguments.question == "week" else health_stats()
    stats = [stat for stat in stats if exported(stat.signal)]
    if arguments.only:
        result = WAYS[arguments.only](arguments.url, stats)
        result["peak_mib"] = peak_mib()
        print(json.dumps(result))
        return
    from parts.prometheus_server import running

    gpus = arguments.gpus or (1000 if arguments.question == "week" else 10_000)
    seconds = WEEK if arguments.question == "week" else 3600
    ways = ["bare", "gpuwatch"]
    if arguments.question == "week" and not arguments.no_ranges:
        ways.append("ranges")
    metrics = list(dict.fromkeys(metric_of(stat.signal) for stat in stats))
    with running(load.newest_server(), flags=["--storage.tsdb.max-block-duration=31d"]) as url:
        samples = load.load(url, metrics, gpus, seconds, 60)
        settle(url)
        rounds = [{way: in_process(way, arguments.question, url) for way in ways} for _ in range(arguments.rounds)]
    show(arguments.question, gpus, samples, len(stats), rounds)


def settle(url: str) -> None:
    """Wait until the server has compacted what was loaded, so that nobody pays for it."""
    quiet = 0
    while quiet < 3:
        before = server_cpu_seconds(url)
        time.sleep(2)
        quiet = quiet + 1 if server_cpu_seconds(url) - before < 0.2 else 0


def server_cpu_seconds(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("process_cpu_seconds_total "))


def show(question: str, gpus: int, samples: int, stats: int, rounds: list[dict[str, dict[str, float]]]) -> None:
    table = Table(title=f"{question}: {gpus:,} GPUs, {samples:,} samples, {stats} statistics; medians of {len(rounds)}")
    for column in ("way", "seconds", "÷ bare", "peak MiB", "answers"):
        table.add_column(column, justify="right")
    middle = len(rounds) // 2
    for way in rounds[0]:
        ratio = sorted(each[way]["seconds"] / each["bare"]["seconds"] for each in rounds)[middle]
        table.add_row(
            way,
            f"{sorted(each[way]['seconds'] for each in rounds)[middle]:.2f}",
            f"{ratio:.2f}",
            f"{max(each[way]['peak_mib'] for each in rounds):.0f}",
            f"{rounds[0][way]['answers']:.0f}",
        )
    Console().print(table)
    discovery = sorted(each["gpuwatch"]["discovery_seconds"] for each in rounds)[middle]
    Console().print(f"discovery and inventory, once an hour and once a cycle: {discovery:.2f} s")


if __name__ == "__main__":
    main()
