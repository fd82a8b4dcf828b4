"""What it costs a look to find out whose series count: the same looks with scoping (`collect.origin`) and without it.

1,000 GPUs in a real Prometheus, loaded as look.py loads them. Both kinds of look are taken in turn, in one process;
"""

import argparse
import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from gpuwatch.act.analysis import Policies, needs_of
from gpuwatch.sources.collect import collect as collecting
from gpuwatch.sources.collect import origin
from gpuwatch.sources.telemetry.connection import Connection
from gpuwatch.sources.telemetry.http_api import ApiSession
from gpuwatch.sources.telemetry.prometheus import PrometheusStore
from lab.benchmarks import load
from lab.benchmarks.look import ENGINE, HOURS, SILENT_EVERY, Listed, metrics
from lab.benchmarks.profile_update import running
from lab.benchmarks.window_statistics import settle

ROUNDS = 9


class Counted:
    """Requests to the server, by path, and the seconds that they took together."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.seconds = 0.0

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        sent = ApiSession._ask

        def ask(session: ApiSession, method: str, url: str, *rest: Any) -> Any:
            began = time.perf_counter()
            try:
                return sent(session, method, url, *rest)
            finally:
                self.requests[url.rpartition("/")[2]] += 1
                self.seconds += time.perf_counter() - began

        ApiSession._ask = ask  # type: ignore[method-assign]
        try:
            yield
        finally:
            ApiSession._ask = sent  # type: ignore[method-assign]


def unscoped(store: Any, at: Any, _cluster: Any, matchers: Any, _trusted: Any) -> origin.Origin:
    return origin._of_cluster(store, at, matchers, {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1_000)
    gpus = parser.parse_args().gpus
    scoped = collecting.find_origin
    taken: dict[str, list[tuple[float, float, Counter[str]]]] = {"without scoping": [], "with scoping": []}
    with running([]) as url:
        load.load(url, metrics(), gpus, HOURS, 60, SILENT_EVERY)
        load.load(url, [ENGINE], gpus, 24 * 3_600, 60, SILENT_EVERY, up=False)
        settle(url)
        with contextlib.closing(PrometheusStore(Connection(url=url))) as store:
            for number in range(ROUNDS + 1):
                for name, finds in (("without scoping", unscoped), ("with scoping", scoped)):
                    collecting.find_origin = finds
                    counted = Counted()
                    began = time.perf_counter()
                    with counted.counting():
                        snapshot = collecting.collect(store, Listed(gpus), load.END, needs_of(Policies()))
                    if number:  # the first warms both up
                        taken[name].append((time.perf_counter() - began, counted.seconds, counted.requests))
                    assert len(snapshot.devices) == gpus, snapshot.gaps
    table = Table(title=f"one look at {gpus:,} GPUs, medians of {ROUNDS}")
    for column in ("", "instant queries", "all requests", "seconds", "seconds of requests"):
        table.add_column(column, justify="right")
    for name, rounds in taken.items():
        requests = rounds[0][2]
        whole, asking = (statistics.median(each[at] for each in rounds) for at in (0, 1))
        table.add_row(name, f"{requests['query']}", f"{requests.total()}", f"{whole:.2f}", f"{asking:.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
