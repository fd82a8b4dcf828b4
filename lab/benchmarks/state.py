"""The state of a fleet: what a save costs, and how large file and memory become.

    python -m lab.benchmarks.state [PROFILES]

Profiles of 30 cells, 5 runs and 14 days, with random values, and 35 days of use by 100 groups.
"""

import random
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from gpuwatch.facts.model.delivery import Sending
from gpuwatch.facts.model.workload_profile import (
    Cell,
    DayUse,
    MemoryRun,
    ProfileBook,
    WorkloadKey,
    WorkloadProfile,
)
from gpuwatch.sources.store.store import Store

T0 = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
GPU = "A100-SXM4-80GB"


def profile(number: int, draw: Callable[[], float]) -> WorkloadProfile:
    cells = (
        Cell(
            weight_seconds=draw() * 1e5, busy_ratio=draw(), sm_active_ratio=draw(), tensor_active_ratio=draw(),
            dram_active_ratio=draw(), power_watts=400 * draw(), pcie_bytes_per_second=1e9 * draw(),
            nvlink_bytes_per_second=1e9 * draw(),
        )
        for _ in range(30)
    )  # fmt: skip
    runs = (
        MemoryRun(
            pod=f"team/job-{number}-{run}", first_seen=T0 - HOUR, last_seen=T0, peak_bytes=8e10 * draw(),
            at_start_bytes=8e10 * draw(), capacity_bytes=8e10, device_seconds=1e5 * draw(),
        )
        for run in range(5)
    )  # fmt: skip
    days = (
        DayUse(day=(T0 - day * timedelta(days=1)).date(), allocated_gpu_hours=24 * draw(), busy_gpu_hours=24 * draw())
        for day in range(14)
    )
    return WorkloadProfile(
        key=WorkloadKey(f"Job/team-{number % 100}/job-{number}", "main", GPU), as_of=T0, half_life_seconds=1e6,
        cells=tuple(cells), runs=tuple(runs), days=tuple(days), first_seen=T0, last_seen=T0,
        observed_seconds=1e5 * draw(), expected_seconds=1e5,
    )  # fmt: skip


def main() -> None:
    draw = random.Random(1).random
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    profiles = {each.key: each for each in (profile(number, draw) for number in range(count))}
    book = ProfileBook(until=T0, step_seconds=300, profiles=profiles)
    odd = {key: replace(each, observed_seconds=1.0) for key, each in list(profiles.items())[::2]}
    half = replace(book, until=T0 + HOUR, profiles={**profiles, **odd})
    mark = Sending(id="x", title="X", text="", at=T0)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        for what, work in (
            ("first save", lambda: Store.open(path).save_book(book)),
            ("the same again", lambda: Store.open(path).save_book(book)),
            ("half of the profiles changed", lambda: Store.open(path).save_book(half)),
            ("one delivery noted", lambda: Store.open(path).save_deliveries([mark])),
            ("opened and loaded", lambda: Store.open(path).load_book()),
        ):
            began, cpu = time.monotonic(), time.process_time()
            work()
            cpu, wall = time.process_time() - cpu, time.monotonic() - began
            print(f"{what}: {cpu:.2f} s of CPU, {wall:.2f} s; the file has {path.stat().st_size / 1e6:.1f} MB")
        for what, work in (
            ("opened", lambda: Store.open(path)),
            ("opened and saved, all changed", lambda: Store.open(path).save_book(book)),
        ):
            tracemalloc.start()
            work()
            print(f"{what}: at most {tracemalloc.get_traced_memory()[1] / 1e6:.1f} MB of memory")
            tracemalloc.stop()


if __name__ == "__main__":
    main()
