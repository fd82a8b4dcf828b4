"""Simulates one node: the loads of its Pods summed per device and per card, then the sensors."""

from dataclasses import dataclass

import numpy as np

from lab.simulate.behaviour import CONTEXT_MIB, Hours, Load, load_devices
from lab.simulate.cards import Card, Instance, Machine
from lab.simulate.physics import Sensors, simulate_sensors
from lab.simulate.plan import FleetPlan, Floats, Mask
from lab.simulate.runs import Place, Run
from lab.simulate.script import MachineScript, inside


@dataclass(frozen=True, kw_only=True)
class Tenure:
    """A Pod on a device: samples [first, last), and its time-slicing replica or −1."""

    run: Run
    pod: int
    replica: int
    first: int
    last: int


@dataclass(kw_only=True)
class DeviceState:
    """A whole GPU or a MIG instance: its load, and its Pods in order of time."""

    card: Card
    instance: Instance | None
    load: Load
    tenures: list[Tenure]


@dataclass(kw_only=True)
class MachineState:
    """A node over the whole window. `seconds` are the samples' times; sensors are in the order of the cards."""

    machine: Machine
    script: MachineScript
    seconds: Floats
    devices: list[DeviceState]
    sensors: list[Sensors]


def first_sample(seconds: float, interval: float, steps: int) -> int:
    """Index of the first sample at or after this time."""
    if seconds <= 0:
        return 0
    return min(steps, int(np.ceil(seconds / interval))) if np.isfinite(seconds) else steps


def idle_load(size: int) -> Load:
    numbers = ("engine", "sm", "tensor", "dram", "link", "pcie", "memory_mib")
    return Load(**{name: np.zeros(size) for name in numbers}, context=np.zeros(size, dtype=bool))


def run_loads(plan: FleetPlan, machines: tuple[Machine, ...], run: Run) -> tuple[int, dict[Place, Load]]:
    """Index of the run's first sample and the load of each of its places."""
    interval = float(plan.interval_seconds)
    first = first_sample(run.start, interval, plan.steps)
    last = first_sample(run.end, interval, plan.steps)
    if last <= first:
        return first, {}
    seconds = np.arange(first, last) * interval
    places = run.places
    memory = []
    for place in places:
        machine = machines[place.machine]
        amount = machine.memory_mib(machine.cards[place.card].instance(place.gi))
        memory.append(amount / machine.replicas if place.replica >= 0 else amount)
    rng = plan.rng("load", run.seed)
    loads = load_devices(run.behaviour, memory, Hours(seconds=seconds, start=plan.start), run.start, rng)
    return first, dict(zip(places, loads, strict=True))


def last_active(plan: FleetPlan, machines: tuple[Machine, ...], run: Run) -> float:
    """End of the last sample with work, in seconds; without any, the run's start, or the window's."""
    first, loads = run_loads(plan, machines, run)
    engine = np.max([load.engine for load in loads.values()], axis=0) if loads else np.zeros(0)
    active = np.flatnonzero(engine > 0)
    if not active.size:
        return max(run.start, 0.0)
    return float((first + int(active[-1]) + 1) * plan.interval_seconds)


def devices_of(
    plan: FleetPlan, machine: Machine, placed: list[tuple[Run, int, dict[Place, Load]]]
) -> list[DeviceState]:
    """The devices with what runs on them. placed: the runs that touch this machine, each with its first sample and its
    loads."""
    devices = [
        DeviceState(card=card, instance=instance, load=idle_load(plan.steps), tenures=[])
        for card in machine.cards
        for instance in card.instances or (None,)
    ]
    by_key = {(d.card.index, d.instance.gi if d.instance else ""): d for d in devices}
    for run, first, loads in placed:
        for number, pod in enumerate(run.pods):
            for place in pod.places:
                load = loads.get(place)
                if place.machine != machine.index or load is None:
                    continue
                device = by_key[place.card, place.gi]
                last = first + len(load.engine)
                _add(device.load, load, first, last)
                device.tenures.append(Tenure(run=run, pod=number, replica=place.replica, first=first, last=last))
    return devices


def play_machine(plan: FleetPlan, machine: Machine, script: MachineScript, devices: list[DeviceState]) -> MachineState:
    seconds = plan.sample_seconds
    cards = []
    for card in machine.cards:
        mine = [device for device in devices if device.card is card]
        if card.index in script.cards:
            for device in mine:
                _hang(device.load, inside(seconds, script.cards[card.index].hung))
        cards.append(_whole_card(mine))
    rng = plan.rng("sensors", machine.index)
    return MachineState(
        machine=machine,
        script=script,
        seconds=seconds,
        devices=devices,
        sensors=simulate_sensors(machine, cards, script, seconds, float(plan.interval_seconds), rng),
    )


def _add(total: Load, load: Load, first: int, last: int) -> None:
    """Add the work of another Pod on the same device: engines overlap, memory adds up."""
    at = slice(first, last)
    total.engine[at] = 1.0 - (1.0 - total.engine[at]) * (1.0 - load.engine)
    for name in ("sm", "tensor", "dram", "link", "pcie"):
        mine = getattr(total, name)
        mine[at] = np.minimum(mine[at] + getattr(load, name), 1.0)
    total.memory_mib[at] += load.memory_mib
    total.context[at] |= load.context


def _hang(load: Load, hung: Mask) -> None:
    """A kernel spins forever on one SM: the engine is active and moves no data."""
    if not hung.any():
        return
    load.engine[hung] = 1.0
    load.sm[hung] = 0.008
    for ratio in (load.tensor, load.dram, load.link, load.pcie):
        ratio[hung] = 0.0
    load.context[hung] = True
    load.memory_mib[hung] = np.maximum(load.memory_mib[hung], CONTEXT_MIB)


def _whole_card(devices: list[DeviceState]) -> Load:
    """The load of a MIG card: its instances weighted by their share of the slices."""
    if devices[0].instance is None:
        return devices[0].load
    size = len(devices[0].load.engine)
    card = idle_load(size)
    for device in devices:
        share = device.instance.share if device.instance else 1.0
        load = device.load
        card.engine = np.maximum(card.engine, load.engine)
        card.sm += share * load.sm
        card.tensor += share * load.tensor
        card.dram += share * load.dram
        card.pcie += share * load.pcie
        card.memory_mib += load.memory_mib
        card.context |= load.context
    return card
