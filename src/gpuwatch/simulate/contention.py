"""Workloads in each other's way on shared cards, and others on shared cards that are not.

In closed form: each Pod asks for a share of its card's memory bandwidth, or of its link, that is steady while it
computes; what a card shows is the sum of it, or its peak where the sum is more. Workloads contend while the sum is more
than the peak. The fleet around them has no part in it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpuwatch.model.decision import FindingKind
from gpuwatch.simulate.behaviour import Behaviour, WorkKind
from gpuwatch.simulate.cards import Machine
from gpuwatch.simulate.names import NAMES
from gpuwatch.simulate.plan import DAY, HOUR, FleetPlan, Floats
from gpuwatch.simulate.runs import Place, Run
from gpuwatch.simulate.schedule import FOREVER, Scheduler

BUSY_RATIO = 0.87
"""Share of the time in which such a Pod computes, as `WorkKind.BATCH` has it: 0.9 of it between pauses of 25 s, four an
hour."""


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Workloads on one card from `start` to `end`, in seconds; contended: they ask for more than it has."""

    kind: FindingKind
    machine: int
    card: int
    start: float
    end: float
    contended: bool
    note: str


def dram_peak(plan: FleetPlan, machine: Machine, card: int) -> float:
    """The highest DRAM activity that kernels reach on this card, about 0.8."""
    return float(np.clip(plan.rng("dram-peak", machine.index, card).normal(0.8, 0.03), 0.7, 0.9))


def at_peak(ratio: Floats, peak: float, rng: np.random.Generator) -> Floats:
    """The measured part of a demand: at most the peak, which varies by a few percent."""
    seen: Floats = np.minimum(ratio, peak * rng.normal(1.0, 0.02, len(ratio)))
    return seen


def fill_contended(
    plan: FleetPlan, machines: tuple[Machine, ...], scheduler: Scheduler
) -> tuple[list[Run], list[Shared]]:
    """Runs of the contended machines, in turn of memory bandwidth and of the link.

    On each: two workloads that contend for a day or two; two that do not, with a demand anywhere below the peak. On
    every second pair of machines both that contend have another Pod with a card to itself; on the others there is a
    workload near the peak beside one that hardly does anything, and two more that do not contend.
    """
    runs: list[Run] = []
    shared: list[Shared] = []
    mine = [machine for machine in machines if machine.role == "contended"]
    for number, machine in enumerate(mine):
        kind = FindingKind.PCIE_CONTENTION if number % 2 else FindingKind.HBM_CONTENTION
        for run, where in _machine(plan, scheduler, machine, kind, alone=number // 2 % 2 == 0):
            runs.append(run)
            if where is not None:
                shared.append(where)
    return runs, shared


def _machine(
    plan: FleetPlan, scheduler: Scheduler, machine: Machine, kind: FindingKind, *, alone: bool
) -> Iterator[tuple[Run, Shared | None]]:
    rng = plan.rng("contended", machine.index)
    window = plan.seconds
    scale = min(1.0, plan.days / 7)

    def peak(card: int) -> float:
        return dram_peak(plan, machine, card) if kind is FindingKind.HBM_CONTENTION else 1.0

    def pair(card: int, sum_of_peak: float, part: float) -> tuple[Behaviour, Behaviour]:
        total = sum_of_peak * peak(card) / BUSY_RATIO
        return _asks(kind, total * part, rng), _asks(kind, total * (1 - part), rng)

    def on(card: int, behaviour: Behaviour, start: float, end: float, *more: int) -> Iterator[Run]:
        """One Pod on this card, and one of the same workload alone on each card of `more`."""
        made = scheduler.new_workload(
            "Deployment",
            str(rng.choice(NAMES.products)),
            str(rng.choice(NAMES.workloads["serving"])),
            -float(rng.uniform(2, 30)) * DAY,
            NAMES.images["batch"],
        )
        for replica, each in enumerate((card, *more)):
            first, last = (start, end) if each == card else (-DAY, FOREVER)
            place = Place(machine.index, each, "", int(rng.integers(2)) * 2 + replica % 2)
            yield scheduler.run(made, ((place,),), first, last, behaviour, replica)

    # Workloads that contend. A single one never demands more than the peak.
    start = float(rng.uniform(0.15, 0.6)) * window
    end = start + float(rng.uniform(12, 48)) * HOUR * scale
    first, second = pair(0, float(rng.uniform(1.15, 1.6)), float(rng.uniform(0.42, 0.58)))
    yield from ((run, None) for run in on(0, first, -DAY, FOREVER, *([1] if alone else [])))
    note = "two workloads on one card that together ask for more than its peak"
    contended = Shared(kind=kind, machine=machine.index, card=0, start=start, end=end, contended=True, note=note)
    for number, run in enumerate(on(0, second, start, end, *([2] if alone else []))):
        yield run, contended if number == 0 else None
    # Workloads that do not contend.
    for card in (3,) if alone else (2, 3):
        first, second = pair(card, float(rng.uniform(0.3, 1.0)), float(rng.uniform(0.2, 0.8)))
        yield from ((run, None) for run in on(card, first, -DAY, FOREVER))
        note = "two workloads on one card that together ask for less than its peak"
        innocent = Shared(kind=kind, machine=machine.index, card=card, start=0, end=window, contended=False, note=note)
        yield from ((run, innocent) for run in on(card, second, -DAY, FOREVER))
    if not alone:
        first, second = pair(1, float(rng.uniform(0.9, 1.0)), 0.99)
        yield from ((run, None) for run in on(1, first, -DAY, FOREVER))
        note = "a workload near the peak beside one that hardly does anything"
        harmless = Shared(kind=kind, machine=machine.index, card=1, start=0, end=window, contended=False, note=note)
        yield from ((run, harmless) for run in on(1, second, -DAY, FOREVER))


def _asks(kind: FindingKind, demand: float, rng: np.random.Generator) -> Behaviour:
    level = float(rng.uniform(0.15, 0.45))
    memory = float(rng.uniform(0.3, 0.7))
    if kind is FindingKind.HBM_CONTENTION:
        return Behaviour(activity=WorkKind.BATCH, sm_level=level, memory_share=memory, dram_demand=demand)
    return Behaviour(activity=WorkKind.BATCH, sm_level=level, memory_share=memory, pcie_demand=demand)
