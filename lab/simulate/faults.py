"""Plants faults: chooses cards that can show them, writes what happens to them, and ends the jobs that they hit.

Where a fault shows only in metrics outside of the exporter's default list, a node with more metrics is chosen. No two
faults share a card at a time, and a fault of a whole node avoids planted idle allocations, so that each Truth can be
judged alone.
"""

from collections.abc import Callable

import numpy as np

from lab.simulate.behaviour import WorkKind, dram_share, tensor_share
from lab.simulate.cards import Machine
from lab.simulate.fault_kinds import FAULTS, FaultKind
from lab.simulate.plan import HOUR, FleetPlan
from lab.simulate.runs import Run
from lab.simulate.schedule import Scheduler
from lab.simulate.script import MachineScript, Span
from lab.simulate.symptoms import Fault, show

_LAST_XID = (FaultKind.APPLICATION_XID, FaultKind.TEARDOWN_XID, FaultKind.PROCESS_XID)
"""Faults whose XID stays on the gauge of the last XID."""


class FaultPlanter:
    """Keeps the taken cards and times, so that faults do not overlap. `runs` and `scripts` are changed in place."""

    def __init__(self, plan: FleetPlan, machines: tuple[Machine, ...], scheduler: Scheduler, runs: list[Run]) -> None:
        self.plan = plan
        self.machines = machines
        self.scheduler = scheduler
        self.runs = runs
        self.rng = plan.rng("faults")
        self.scripts = [MachineScript() for _ in machines]
        self.faults: list[Fault] = []
        self._taken: dict[tuple[int, int], list[Span]] = {}

    def plant(self) -> None:
        for kind in self._wanted():
            for _ in range(120):
                fault = self._candidate(kind)
                if fault is not None and self._fits(fault):
                    self._apply(fault)
                    self.faults.append(fault)
                    break

    def _wanted(self) -> list[FaultKind]:
        if self.plan.faults is not None:
            return list(self.plan.faults)
        kinds = [kind for kind in FaultKind if kind is not FaultKind.TELEMETRY_MISSING]
        times = self.plan.gpus / 64
        wanted: list[FaultKind] = []
        for _ in range(int(np.ceil(times))):
            order = list(self.rng.permutation(len(kinds)))
            wanted.extend(kinds[i] for i in order)
        wanted = wanted[: round(times * len(kinds))]
        # The largest faults are placed first; the fleet-wide outage happens once.
        wanted.sort(key=lambda kind: (not FAULTS[kind].whole_node, not FAULTS[kind].follows_job))
        return [*wanted, FaultKind.TELEMETRY_MISSING] if self.plan.days >= 2 else wanted

    def _candidate(self, kind: FaultKind) -> Fault | None:
        rng = self.rng
        window = self.plan.seconds
        traits = FAULTS[kind]
        lasting = traits.hours * HOUR * (1.0 if traits.sigma == 0 else float(rng.lognormal(0.0, traits.sigma)))
        lasting = lasting if np.isinf(lasting) else min(lasting, 0.4 * window)
        start = float(rng.uniform(0.05, 0.88)) * window
        strength = float(rng.random())
        if kind is FaultKind.TELEMETRY_MISSING:
            return Fault(kind=kind, machine=-1, cards=(), start=start, end=start + lasting, strength=strength)
        if traits.follows_job:
            return self._on_job(kind, start, lasting, strength)
        machine = self.machines[int(rng.integers(len(self.machines)))]
        if traits.extended and not machine.extended:
            return None
        if kind is FaultKind.NVLINK_ERRORS and not machine.model.nvlink_megabytes_per_second:
            return None
        if traits.remaps and not machine.model.has_row_remap:
            return None
        cards = tuple(range(len(machine.cards))) if traits.whole_node else (int(rng.integers(len(machine.cards))),)
        if len(machine.cards) < 2 and kind in (FaultKind.FALLEN_OFF_BUS, FaultKind.VANISHED):
            return None  # without a sibling it looks like a lost exporter
        if not traits.whole_node and machine.cards[cards[0]].instances:
            return None
        return Fault(kind=kind, machine=machine.index, cards=cards, start=start, end=start + lasting, strength=strength)

    def _on_job(self, kind: FaultKind, start: float, lasting: float, strength: float) -> Fault | None:
        """Faults that need a certain workload at a certain time."""
        wanted: Callable[[Run], bool] = {
            FaultKind.APPLICATION_XID: lambda run: len(run.places) >= 2 and run.alive(start + HOUR),
            FaultKind.TEARDOWN_XID: lambda run: len(run.places) >= 2,
            FaultKind.PROCESS_XID: lambda run: len(run.places) == 1 and run.alive(start + HOUR),
            FaultKind.HUNG: lambda run: len(run.places) == 1 and run.alive(start + 2 * HOUR),
            FaultKind.OVERHEATING: lambda run: run.behaviour.sm_level > 0.68 and run.alive(start + lasting),
            FaultKind.POWER_CAP: lambda run: run.behaviour.sm_level > 0.75 and run.end - start > 4 * HOUR,
        }[kind]
        running = [
            run
            for run in self.runs
            if run.behaviour.activity is WorkKind.TRAINING
            and not run.planted
            and run.start + HOUR < start
            and run.end > start
            and wanted(run)
            and not any(place.gi or place.replica >= 0 for place in run.places)
        ]
        if not running:
            return None
        run = running[int(self.rng.integers(len(running)))]
        first = run.places[int(self.rng.integers(len(run.places)))]
        machine = self.machines[first.machine]
        if FAULTS[kind].extended and not machine.extended:
            return None
        begin, end = start, start + lasting
        cards: tuple[int, ...] = (first.card,)
        others: tuple[tuple[int, int], ...] = ()
        if kind in (FaultKind.APPLICATION_XID, FaultKind.TEARDOWN_XID):
            cards = tuple(place.card for place in run.places if place.machine == first.machine)
            others = tuple((place.machine, place.card) for place in run.places if place.machine != first.machine)
        if kind is FaultKind.TEARDOWN_XID:
            begin = run.end
            if begin > 0.97 * self.plan.seconds:
                return None
        if kind is FaultKind.POWER_CAP:
            begin, end = max(run.start + HOUR / 2, 0.0), run.end
            if not self._demand(machine, run.behaviour.sm_level) > 0.95:
                return None
        if kind in _LAST_XID:
            end = float("inf")  # the gauge latches
        return Fault(
            kind=kind, machine=first.machine, cards=cards, start=begin, end=end, strength=strength, others=others
        )

    @staticmethod
    def _demand(machine: Machine, level: float) -> float:
        """Power of such a job on an average card ÷ its limit."""
        model = machine.model
        computing = model.sm_watts + tensor_share(level) * model.tensor_watts + dram_share(level) * model.dram_watts
        return (model.floor_watts + model.context_watts + level * computing) / model.limit_watts

    def _spans(self, fault: Fault) -> list[tuple[int, int, Span]]:
        """(machine, card, time) that the fault and its repair take."""
        until = fault.end + HOUR
        if fault.kind in _LAST_XID:
            until = fault.start + 2 * HOUR
        own = [(machine, card, (fault.start - HOUR, until)) for machine, card in fault.all_cards]
        if FAULTS[fault.kind].repair == "reboot":
            everyone = range(len(self.machines[fault.machine].cards))
            own += [(fault.machine, card, (fault.end - HOUR / 2, fault.end + HOUR)) for card in everyone]
        return own

    def _fits(self, fault: Fault) -> bool:
        for machine, card, (begin, end) in self._spans(fault):
            others = self._taken.get((machine, card), [])
            if any(begin < other_end and other_begin < end for other_begin, other_end in others):
                return False
            alone = frozenset({card})
            for run in self.runs:
                if run.planted and run.touches(machine, alone) and run.start < end and begin < run.end:
                    return False
        return True

    def _apply(self, fault: Fault) -> None:
        for machine, card, span in self._spans(fault):
            self._taken.setdefault((machine, card), []).append(span)
        if fault.machine < 0:
            for script in self.scripts:
                script.exporter_down.append((fault.start, fault.end))
            return
        script = self.scripts[fault.machine]
        for machine, card in fault.all_cards:
            show(fault, self.scripts[machine].cards[card], self.plan.interval_seconds, self.rng)
        if fault.kind in (FaultKind.EXPORTER_DOWN, FaultKind.NODE_GONE):
            script.exporter_down.append((fault.start, fault.end))
        if fault.kind is FaultKind.NODE_GONE:
            script.node_down.append((fault.start, fault.end))
            script.counter_resets.append(fault.end)
            script.exporter_restarts.append(fault.end)
        elif fault.kind is FaultKind.POWER_BRAKE:
            script.brakes.append((fault.start, fault.end))
        elif fault.kind is FaultKind.DRIVER_RELOAD:
            script.reboot(fault.start, fault.end - fault.start)
        self._change_runs(fault, script)

    def _change_runs(self, fault: Fault, script: MachineScript) -> None:
        kind, traits = fault.kind, FAULTS[fault.kind]
        cards = frozenset(fault.cards)
        everyone = frozenset(range(len(self.machines[fault.machine].cards)))
        delay = float(self.rng.uniform(60, 420))
        if traits.stops_work:
            self._interrupt(fault.machine, cards, fault.start + delay, fault.end + 900)
            script.unallocatable.extend((fault.start + 60, fault.end, card) for card in cards)
        if traits.repair == "reboot" and fault.end < self.plan.seconds:
            self._interrupt(fault.machine, everyone - cards, fault.end - 60, fault.end + 900)
            script.reboot(fault.end)
        elif traits.repair == "reset" and fault.end < self.plan.seconds:
            self._interrupt(fault.machine, cards, fault.end - 60, fault.end + 600)
            script.exporter_restarts.append(fault.end)
            for card in cards:
                script.cards[card].counter_resets.append(fault.end)
        if kind is FaultKind.DRIVER_RELOAD:
            self._interrupt(fault.machine, everyone, fault.start - 60, fault.end + 300)
        elif kind is FaultKind.HUNG:
            self._interrupt(fault.machine, cards, fault.end, None)
        elif kind in (FaultKind.APPLICATION_XID, FaultKind.PROCESS_XID):
            self._interrupt(fault.machine, cards, fault.start + 60, fault.start + 900)

    def _interrupt(self, machine: int, cards: frozenset[int], at: float, resume: float | None) -> None:
        """End every run on these cards at `at`, and restart those that would have lasted longer at `resume`. A run that
        should begin between the two begins at `resume`. None: nothing is restarted."""
        added: list[Run] = []
        kept: list[Run] = []
        for run in self.runs:
            affected = run.touches(machine, cards)
            if affected and run.alive(at):
                if resume is not None and run.end > resume + 1800:
                    added.append(self.scheduler.resumed(run, resume))
                run.end, run.failed_at = at, at
                kept.append(run)
            elif affected and resume is not None and at <= run.start < resume:
                if run.end > resume + 1800:
                    run.start = resume
                    kept.append(run)
            else:
                kept.append(run)
        self.runs[:] = [*kept, *added]
