"""What the plan costs as its candidates grow: n of them and 2n over one fleet, side by side in one process.

  10,000 GPUs on Nodes of 8, a Pod on 6 of them, 100 Namespaces with 5 PodDisruptionBudgets each. *releases*: idle Pods,
  a candidate each. *moves*: Nodes with a GPU that fell off the bus, a candidate for the taint and one for the move of
  its Pod.

Only the plan is measured: the findings are given. CPU time, since one thread does it.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from rich.console import Console
from rich.table import Table

from gpuwatch.act.plan.draw import draw_plan
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.cluster import DisruptionBudget
from gpuwatch.facts.model.decision import Finding, Snapshot
from plan.fleet import device, idle, node, pod, sick, snapshot

PER_NODE, HELD, NAMESPACES, BUDGETS, ROUNDS = 8, 6, 100, 5, 3
POLICY = PlanPolicy(storm_ratio=1.0, idle_storm_ratio=1.0)
"""Without the storm brake: under it no budget is spent, which is a part of the cost."""


def fleet(gpus: int, candidates: int, kind: str) -> tuple[Snapshot, tuple[Finding, ...]]:
    nodes, devices, pods = [], [], []
    for number in range(gpus // PER_NODE):
        nodes.append(node(f"n{number}"))
        for index in range(PER_NODE):
            gpu = number * PER_NODE + index
            ref = f"team-{gpu % NAMESPACES}/work-{gpu}" if index < HELD else ""
            devices.append(device(f"n{number}", index, ref))
            if ref:
                pods.append(replace(pod(ref, f"n{number}"), labels={"app": f"work-{gpu}"}))
    budgets = [
        DisruptionBudget(
            namespace=f"team-{space}", name=f"b{number}", match_labels={"app": f"b{number}"}, disruptions_allowed=1
        )
        for space in range(NAMESPACES)
        for number in range(BUDGETS)
    ]
    if kind == "releases":
        found = tuple(idle(each.pods[0], [each]) for each in devices if each.pods)[:candidates]
    else:
        found = tuple(sick(each) for each in devices[: candidates // 2 * PER_NODE : PER_NODE])
    return snapshot(nodes, devices, pods, budgets=tuple(budgets)), found


def seconds(gpus: int, candidates: int, kind: str) -> float:
    state, findings = fleet(gpus, candidates, kind)
    began = time.process_time()
    plan = draw_plan(PlanFacts(snapshot=state, findings=findings, policy=POLICY))
    taken = time.process_time() - began
    if len(plan.items) != candidates or plan.brake:
        sys.exit(f"void: {len(plan.items)} candidates of {candidates}, brake {plan.brake!r}")
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--candidates", type=int, default=2_000, help="the larger number; half of it is the smaller")
    arguments = parser.parse_args()
    table = Table(title=f"the plan over {arguments.gpus:,} GPUs, CPU seconds")
    sizes = (arguments.candidates // 2, arguments.candidates)
    for column in ("candidates", *(f"{size:,}" for size in sizes), "ratio"):
        table.add_column(column, justify="right")
    for kind in ("releases", "moves"):
        taken: dict[int, list[float]] = {size: [] for size in sizes}
        for _ in range(ROUNDS):
            for size in sizes:
                taken[size].append(seconds(arguments.gpus, size, kind))
        small, large = (median(taken[size]) for size in sizes)
        table.add_row(kind, f"{small:.2f}", f"{large:.2f}", f"{large / small:.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
