"""How often health.pod_failures is wrong: drawn fleets without a fault, and with one Node that kills.

`python tests/detect/test_pod_failures_chance.py` measures what docs/rules/nodes-and-pods.md says, with
100 fleets of each kind.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import product

import numpy as np
import pytest

from detect.builders import AT, POLICY, ago, cluster, machines, scene
from gpuwatch.facts.model.decision import Snapshot
from gpuwatch.facts.model.telemetry import ActivityHistory, PodRun
from gpuwatch.judge.fleet import Fleet
from gpuwatch.judge.health.pod_failures import POD_FAILURES

SIZES = ((12, 150), (50, 400), (50, 1500))
"""Nodes of eight GPUs, and workloads in six hours."""
PROGRAMS, TEAMS, KILLER = 40, 8, 3


def drawn(seed: int, nodes: int, workloads: int, killed: float) -> Snapshot:
    """Programs that seldom die and programs that nearly always do, some much more frequent than others. Three of five
    workloads hold one Node, the others are gangs; half of all keep to a fifth of the Nodes, as with a node selector.
    killed: the share of the workloads on Node 3 that die of it, where they would have lived."""
    rng = np.random.default_rng(seed)
    dying = rng.beta(0.4, 2.0, PROGRAMS)
    frequent = rng.dirichlet(np.full(PROGRAMS, 0.5))
    selected = rng.integers(0, nodes, (PROGRAMS, max(2, nodes // 5)))
    runs: list[PodRun] = []
    held: dict[str, list[str]] = {}
    for number in range(workloads):
        program = int(rng.choice(PROGRAMS, p=frequent))
        size = int(rng.choice([1, 1, 1, 2, 4]))
        anywhere = rng.integers(0, nodes, size)
        places = sorted(
            {int(each) for each in (rng.choice(selected[program], size) if rng.random() < 0.5 else anywhere)}
        )
        dies = rng.random() < dying[program] or (KILLER in places and rng.random() < killed)
        end = AT - timedelta(seconds=float(rng.uniform(60, 6 * 3600)))
        for rank, node in enumerate(places):
            run = PodRun(
                pod=f"team-{program % TEAMS}/run-{number}-{rank}",
                node=f"node-{node}",
                created_by=f"Job/run-{number}",
                images=(f"registry/program-{program}:v{number % 7}",),
                phase="Failed" if dies else "Succeeded",
                started=end - timedelta(minutes=2 if dies else 60),
                ended=end,
                reasons=("Error" if dies else "Completed",),
            )
            runs.append(run)
            held.setdefault(f"gpu-{node}-{int(rng.integers(0, 8))}", []).append(run.pod)
    gpus = machines(nodes, 8)
    activity = [
        ActivityHistory(device=gpu.id, pod=pod, start=ago(hours=6), step_seconds=300, steps="." * 72)
        for gpu in gpus
        for pod in held.get(gpu.id, [""])
    ]
    state = cluster(nodes=[f"node-{node}" for node in range(nodes)])
    return replace(scene(gpus, state=state, activity=activity), pod_runs=tuple(runs))


def named(seeds: Iterable[int], nodes: int, workloads: int, killed: float) -> Sequence[tuple[bool, int]]:
    """Of each fleet whether the Node that kills was named, or a GPU of it, and how many other places were."""
    found = []
    for seed in seeds:
        places = Counter(
            each.node for each in POD_FAILURES.judged(Fleet(drawn(seed, nodes, workloads, killed), POLICY)).shared
        )
        right = places.pop(f"node-{KILLER}", 0) if killed else 0
        found.append((right > 0, places.total()))
    return found


@pytest.mark.parametrize(("killed", "at_least"), [(0.0, 0), (0.9, 10)])
def test_few_places_are_named_that_do_not_kill(killed: float, at_least: int) -> None:
    """At most one of twenty, where one of a hundred is expected at most."""
    found = named(range(1000, 1020), 12, 150, killed)
    assert sum(wrong for _, wrong in found) <= 1
    assert sum(right for right, _ in found) >= at_least


if __name__ == "__main__":
    for (nodes, workloads), killed in product(SIZES, (0.0, 0.5, 0.9)):
        found = named(range(1000, 1100), nodes, workloads, killed)
        right, wrong = sum(right for right, _ in found), sum(wrong for _, wrong in found)
        print(
            f"{nodes} Nodes, {workloads} workloads, {killed:.0%} killed: named in {right} of 100, {wrong} others named"
        )
