"""Oversized workloads for right-sizing: a small model on a whole 80 GB card.

Existing services, notebooks and recurring batch jobs are changed, so that the rest of the fleet does not depend on the
option. Their kernels are small, so that a few SMs are about as fast.
"""

from collections.abc import Sequence
from dataclasses import replace

from gpuwatch.facts.model.grouping import grouped
from lab.simulate.cards import Machine
from lab.simulate.plan import FleetPlan
from lab.simulate.runs import Run, SimulatedWorkload

_FRAMEWORKS = ("Deployment", "Notebook", "CronJob")


def make_oversized(plan: FleetPlan, machines: Sequence[Machine], runs: Sequence[Run]) -> tuple[str, ...]:
    """Change the runs of up to `plan.oversized` workloads. Returns their Workload.ids."""
    by_workload = grouped(runs, lambda run: run.workload.uid)
    fitting = sorted(
        (mine for mine in by_workload.values() if _fits(mine[0].workload, mine, machines)),
        key=lambda mine: mine[0].workload.id,
    )
    rng = plan.rng("oversized")
    rng.shuffle(fitting)
    chosen = fitting[: plan.oversized]
    for mine in chosen:
        sm, memory = float(rng.uniform(0.012, 0.06)), float(rng.uniform(0.02, 0.09))
        for run in mine:
            run.behaviour = replace(run.behaviour, sm_level=sm, memory_share=memory)
    return tuple(sorted(mine[0].workload.id for mine in chosen))


def _fits(workload: SimulatedWorkload, runs: Sequence[Run], machines: Sequence[Machine]) -> bool:
    """Each Pod has one whole card that supports MIG, and nothing is planted in it."""
    return workload.framework in _FRAMEWORKS and all(
        not run.planted
        and len(pod.places) == 1
        and not pod.places[0].gi
        and pod.replica < 0
        and (
            "A100" in machines[pod.places[0].machine].model.label
            or "H100" in machines[pod.places[0].machine].model.label
        )
        for run in runs
        for pod in run.pods
    )
