"""Workloads in each other's way on shared cards, and others on shared cards that are not.

In closed form: each Pod asks for a share of its card's memory bandwidth, or of its link, that is steady while it
computes; what a card shows is the sum of it, or its peak where the sum is more. Workloads contend while the sum is more
than the peak. The fleet around them has no part in it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import msgspec
import numpy as np

from gpuwatch.facts.model.decision import FindingKind, Subject, SubjectKind
from lab.planted import Truth
from lab.simulate.behaviour import Behaviour, Load, WorkKind
from lab.simulate.cards import T4, Machine, make_machine
from lab.simulate.fleet import SimulatedFleet, build_fleet
from lab.simulate.plan import DAY, HOUR, FleetPlan, Floats
from lab.simulate.runs import Place, Run
from lab.simulate.schedule import FOREVER, Scheduler
from lab.simulate.script import MachineScript
from lab.simulate.states import DeviceState
from lab.simulate.tables import NAMES

BUSY_RATIO = 0.87
"""Share of the time in which such a Pod computes, as `WorkKind.BATCH` has it: 0.9 of it between pauses of 25 s, four an
hour."""

# The same card with the link's rate of packets including headers, which the counter measures: 92 % of 15.75 GB/s
# (Neugebauer et al., SIGCOMM 2018).
_LINKED_T4 = msgspec.structs.replace(T4, pcie_bytes_per_second=14.5e9)


@dataclass(frozen=True, kw_only=True)
class _Shared:
    """Workloads on one card from `start` to `end`, in seconds; contended: they ask for more than it has."""

    kind: FindingKind
    card: int
    start: float
    end: float
    contended: bool
    note: str


def contended_fleet(plan: FleetPlan, nodes: int) -> SimulatedFleet:
    """The fleet of this plan and so many nodes of 4 shared T4 cards, on which workloads are in each other's way, or
    nearly. The rest of the fleet is the same without them.

    The nodes take turns with memory bandwidth and the link. On each: two workloads that contend for a day or two; two
    that do not, with a demand anywhere below the peak. On every second pair of nodes both that contend have another Pod
    with a card to itself; on the others there is a workload near the peak beside one that hardly does anything, and two
    more that do not contend.
    """
    fleet = build_fleet(plan)
    rng = plan.rng("contended-machines")
    there = sum(machine.model.label == T4.label for machine in fleet.machines)
    first = len(fleet.machines)
    machines = tuple(
        # The long list of metrics, which has the link's generation and width.
        make_machine(plan, rng, first + number, "contended", _LINKED_T4, 4, there + number + 1, extended=True)
        for number in range(nodes)
    )
    outages = [(fault.start, fault.end) for fault in fleet.faults if fault.machine < 0]
    runs: list[Run] = []
    truths: list[Truth] = []
    for number, machine in enumerate(machines):
        kind = FindingKind.PCIE_CONTENTION if number % 2 else FindingKind.HBM_CONTENTION
        for run, where in _machine(plan, fleet.scheduler, machine, kind, alone=number // 2 % 2 == 0):
            runs.append(run)
            if where is not None:
                truths.append(_truth(plan, machine, where))
    more = {
        "machines": (*fleet.machines, *machines),
        "runs": [*fleet.runs, *runs],
        "scripts": [*fleet.scripts, *(MachineScript(exporter_down=list(outages)) for _ in machines)],
        "more_truths": tuple(truths),
    }
    return ContendedFleet(**{each.name: getattr(fleet, each.name) for each in fields(fleet)} | more)


class ContendedFleet(SimulatedFleet):
    """Its shared cards show no more than their peak of what their Pods ask for together."""

    def devices(self, machine: Machine, placed: list[tuple[Run, int, dict[Place, Load]]]) -> list[DeviceState]:
        devices = super().devices(machine, placed)
        for device in devices if machine.role == "contended" else ():
            rng = self.plan.rng("at-peak", machine.index, device.card.index)
            device.load.dram = _at_peak(device.load.dram, dram_peak(self.plan, machine, device.card.index), rng)
            device.load.pcie = _at_peak(device.load.pcie, 1.0, rng)
        return devices


def dram_peak(plan: FleetPlan, machine: Machine, card: int) -> float:
    """The highest DRAM activity that kernels reach on this card, about 0.8."""
    return float(np.clip(plan.rng("dram-peak", machine.index, card).normal(0.8, 0.03), 0.7, 0.9))


def _at_peak(ratio: Floats, peak: float, rng: np.random.Generator) -> Floats:
    """The measured part of a demand: at most the peak, which varies by a few percent."""
    seen: Floats = np.minimum(ratio, peak * rng.normal(1.0, 0.02, len(ratio)))
    return seen


def _truth(plan: FleetPlan, machine: Machine, shared: _Shared) -> Truth:
    device = machine.cards[shared.card].uuid
    return Truth(
        kind=shared.kind,
        subject=Subject(SubjectKind.DEVICE, device),
        start=plan.moment(shared.start),
        end=plan.until(shared.end),
        devices=(device,),
        note=shared.note,
        harmless=not shared.contended,
        nodes=(machine.name,),
    )


def _machine(
    plan: FleetPlan, scheduler: Scheduler, machine: Machine, kind: FindingKind, *, alone: bool
) -> Iterator[tuple[Run, _Shared | None]]:
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
    contended = _Shared(kind=kind, card=0, start=start, end=end, contended=True, note=note)
    for number, run in enumerate(on(0, second, start, end, *([2] if alone else []))):
        yield run, contended if number == 0 else None
    # Workloads that do not contend.
    for card in (3,) if alone else (2, 3):
        first, second = pair(card, float(rng.uniform(0.3, 1.0)), float(rng.uniform(0.2, 0.8)))
        yield from ((run, None) for run in on(card, first, -DAY, FOREVER))
        note = "two workloads on one card that together ask for less than its peak"
        innocent = _Shared(kind=kind, card=card, start=0, end=window, contended=False, note=note)
        yield from ((run, innocent) for run in on(card, second, -DAY, FOREVER))
    if not alone:
        first, second = pair(1, float(rng.uniform(0.9, 1.0)), 0.99)
        yield from ((run, None) for run in on(1, first, -DAY, FOREVER))
        note = "a workload near the peak beside one that hardly does anything"
        harmless = _Shared(kind=kind, card=1, start=0, end=window, contended=False, note=note)
        yield from ((run, harmless) for run in on(1, second, -DAY, FOREVER))


def _asks(kind: FindingKind, demand: float, rng: np.random.Generator) -> Behaviour:
    level = float(rng.uniform(0.15, 0.45))
    memory = float(rng.uniform(0.3, 0.7))
    if kind is FindingKind.HBM_CONTENTION:
        return Behaviour(activity=WorkKind.BATCH, sm_level=level, memory_share=memory, dram_demand=demand)
    return Behaviour(activity=WorkKind.BATCH, sm_level=level, memory_share=memory, pcie_demand=demand)
