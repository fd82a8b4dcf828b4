"""A simulated fleet, built from a plan: its series, its cluster objects at a moment, and the planted truth."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from gpuwatch.sources.telemetry.series import RecordedSeries
from lab.planted import Truth
from lab.simulate.behaviour import Load
from lab.simulate.cards import Machine, build_machines
from lab.simulate.exporter import MachineExporter, fleet_series, prometheus_up
from lab.simulate.faults import FaultPlanter
from lab.simulate.forms import Object
from lab.simulate.idle import plant_idle
from lab.simulate.kube_state_metrics import owner_series, state_series
from lab.simulate.metrics import Metric
from lab.simulate.node_objects import exporter_objects, node_object
from lab.simulate.oversized import make_oversized
from lab.simulate.plan import FleetPlan
from lab.simulate.runs import Place, Run
from lab.simulate.schedule import Scheduler
from lab.simulate.script import MachineScript
from lab.simulate.states import DeviceState, MachineState, devices_of, play_machine, run_loads
from lab.simulate.symptoms import Fault
from lab.simulate.truth import allocation_truths, fault_truths, reboot_truths
from lab.simulate.workload_objects import Scene, workload_objects


@dataclass(frozen=True, eq=False)
class SimulatedFleet:
    """Made by `build_fleet`. Everything is a function of the plan; nothing here changes afterwards. scheduler: drew the
    workloads and can draw more. more_truths: of workloads that were added."""

    plan: FleetPlan
    machines: tuple[Machine, ...]
    runs: Sequence[Run]
    scripts: Sequence[MachineScript]
    faults: Sequence[Fault]
    oversized: tuple[str, ...]  # Workload.ids
    scheduler: Scheduler
    more_truths: tuple[Truth, ...] = ()

    @cached_property
    def truth(self) -> tuple[Truth, ...]:
        truths = [*allocation_truths(self.plan, self.machines, self.runs), *self.more_truths]
        for fault in self.faults:
            truths.extend(fault_truths(self.plan, self.machines, fault))
        for machine, script in zip(self.machines, self.scripts, strict=True):
            truths.extend(reboot_truths(self.plan, machine, script.reboots))
        return tuple(sorted(truths, key=lambda truth: (truth.start, truth.kind, truth.subject.name)))

    def _states(self, machines: list[Machine]) -> Iterator[MachineState]:
        wanted = {machine.index for machine in machines}
        placed: dict[int, list[tuple[Run, int, dict[Place, Load]]]] = defaultdict(list)
        for run in self.runs:
            touched = {place.machine for place in run.places} & wanted
            if not touched:
                continue
            first, loads = run_loads(self.plan, self.machines, run)
            for index in touched if loads else ():
                placed[index].append((run, first, loads))
        for machine in machines:
            devices = self.devices(machine, placed.pop(machine.index, []))
            yield play_machine(self.plan, machine, self.scripts[machine.index], devices)

    def devices(self, machine: Machine, placed: list[tuple[Run, int, dict[Place, Load]]]) -> list[DeviceState]:
        """As `states.devices_of`."""
        return devices_of(self.plan, machine, placed)

    def series(self, only: Sequence[Metric] | None = None) -> Iterator[RecordedSeries]:
        """Every series that Prometheus would hold, grouped by metric, each in order of time.

        only: restrict to these metrics. Holds the state of all cards in memory: about 2 MB per card and 10,000 samples.
        """
        up = prometheus_up(self.plan)
        exporters = [MachineExporter(self.plan, state, up) for state in self._states(list(self.machines))]
        yield from fleet_series(exporters, only)
        if only is None:
            yield from owner_series(self.plan, self.runs, up)

    def state_series(self) -> Iterator[RecordedSeries]:
        """What kube-state-metrics tells of Nodes and containers, grouped by metric. They are no part of `series`: rules
        are measured without them."""
        return state_series(self.plan, self.machines, self.scripts, self.runs, prometheus_up(self.plan))

    def cluster_objects(self, at: datetime | None = None) -> list[Object]:
        """Kubernetes objects as kubectl prints them, by default at the window's end. Raises ValueError for a moment
        outside the window."""
        seconds = self.plan.seconds if at is None else (at - self.plan.start).total_seconds()
        if not 0 <= seconds <= self.plan.seconds:
            raise ValueError(f"{at} is outside of the simulated window {self.plan.start} to {self.plan.end}")
        nodes = [node_object(self.plan, m, self.scripts[m.index], seconds) for m in self.machines]
        scene = Scene(plan=self.plan, machines=self.machines, scripts=self.scripts, runs=self.runs, at=seconds)
        return [*nodes, *exporter_objects(self.plan, self.machines), *workload_objects(scene)]


def build_fleet(plan: FleetPlan) -> SimulatedFleet:
    """The fleet of this plan: cards, workloads, idle allocations and faults, in this order."""
    machines = build_machines(plan)
    scheduler = Scheduler(plan, machines, plan.rng("schedule"))
    slots = scheduler.slots()
    runs = plant_idle(plan, scheduler, slots, scheduler.fill(slots))
    planter = FaultPlanter(plan, machines, scheduler, runs)
    planter.plant()
    oversized = make_oversized(plan, machines, planter.runs)
    return SimulatedFleet(plan, machines, planter.runs, planter.scripts, planter.faults, oversized, scheduler)
