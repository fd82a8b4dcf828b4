"""From what a node's cards do to what their sensors show: power, temperature, clocks and counters, coupled.

work ─▶ demand in watts ─▶ power (cut at the limit) ─▶ temperature (with inertia, and warmer air from busy siblings)
                                 └─▶ clock ◀── slow-down temperature, power brake
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.simulate.behaviour import Load
from lab.simulate.cards import Card, Machine
from lab.simulate.plan import Floats, Mask
from lab.simulate.script import CardScript, MachineScript, inside

# Clock event reasons, NVML's bits (nvml.h, nvmlClocksEventReason…).
GPU_IDLE, SW_POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, HW_POWER_BRAKE = 0x1, 0x4, 0x8, 0x20, 0x40, 0x80

_THERMAL_SECONDS = 75.0  # time constant of heat sink and die together: minutes to settle
_BRAKE_POWER = 0.55  # a power brake leaves about half of the limit


@dataclass(kw_only=True)
class Sensors:
    """One card over time, before rounding. Energy in joules from the window's start; throttle times in seconds."""

    power_watts: Floats
    temperature: Floats
    memory_temperature: Floats
    sm_clock_mhz: Floats
    memory_clock_mhz: Floats
    reasons: NDArray[np.int64]
    energy_joules: Floats
    thermal_seconds: Floats
    power_cap_seconds: Floats


def simulate_sensors(
    machine: Machine,
    loads: list[Load],
    script: MachineScript,
    seconds: Floats,
    interval: float,
    rng: np.random.Generator,
) -> list[Sensors]:
    """loads: one per card, the sum of its Pods."""
    braked = inside(seconds, script.brakes)
    powers, wants = [], []
    for card, load in zip(machine.cards, loads, strict=True):
        demand = _demand_watts(machine, card, load)
        limit = np.where(braked, _BRAKE_POWER, 1.0) * machine.model.limit_watts
        wants.append(demand)
        powers.append(_drawn_watts(demand, limit, rng))
    air = np.mean(powers, axis=0) / machine.model.limit_watts
    sensors = []
    for card, load, demand, power in zip(machine.cards, loads, wants, powers, strict=True):
        trouble = script.cards[card.index] if card.index in script.cards else CardScript()
        sensors.append(_sense(machine, card, load, demand, power, air, braked, trouble, seconds, interval, rng))
    return sensors


def _demand_watts(machine: Machine, card: Card, load: Load) -> Floats:
    model = machine.model
    work = model.sm_watts * load.sm + model.tensor_watts * load.tensor + model.dram_watts * load.dram
    context = np.where(load.context, model.context_watts, 0.0)
    demand: Floats = model.floor_watts * card.floor_factor + card.power_factor * (context + work)
    return demand


def _drawn_watts(demand: Floats, limit: Floats, rng: np.random.Generator) -> Floats:
    """The regulator keeps the mean at the limit; single samples exceed it, one in a hundred by a tenth."""
    size = len(demand)
    working = np.clip((demand - demand.min()) / 50.0, 0.0, 1.0)
    noise = rng.normal(0.0, 0.006, size) + working * rng.normal(0.0, 0.018, size)
    drawn = np.minimum(demand, limit) * (1.0 + noise)
    over = np.where(demand > 0.93 * limit, rng.exponential(0.025, size), 0.0)
    power: Floats = np.minimum(drawn * (1.0 + over), 1.25 * limit)
    return power


def _settle(target: Floats, interval: float, seconds: float) -> Floats:
    """First-order lag with this time constant, by a short convolution."""
    keep = np.exp(-interval / seconds)
    taps = max(2, int(np.ceil(np.log(1e-3) / np.log(keep))))
    weights = (1.0 - keep) * keep ** np.arange(taps)
    weights /= weights.sum()
    padded = np.concatenate((np.full(taps - 1, target[0]), target))
    settled: Floats = np.convolve(padded, weights, mode="valid")
    return settled


def _sense(
    machine: Machine,
    card: Card,
    load: Load,
    demand: Floats,
    power: Floats,
    air: Floats,
    braked: Mask,
    trouble: CardScript,
    seconds: Floats,
    interval: float,
    rng: np.random.Generator,
) -> Sensors:
    model = machine.model
    size = len(seconds)
    resistance = np.full(size, model.celsius_per_watt * card.thermal_factor)
    for begin, end, factor in trouble.hotter:
        grown = np.clip((seconds - begin) / min(2.0 * 3600, 0.2 * (end - begin)), 0.0, 1.0)
        resistance = np.where((seconds >= begin) & (seconds < end), resistance * (1 + (factor - 1) * grown), resistance)
    daily = 0.8 * np.sin(2 * np.pi * seconds / 86400.0 - 1.5)
    ambient = card.ambient_celsius + daily + 8.0 * air
    settled = _settle(ambient + resistance * power, interval, _THERMAL_SECONDS)

    # Above its slow-down temperature the card lowers its clock until it stays at that temperature.
    throttled = (settled > model.slowdown_celsius) & load.context
    allowed = np.clip((model.slowdown_celsius - ambient) / resistance, 0.35 * model.limit_watts, None)
    power = np.where(throttled, np.minimum(power, allowed * (1 + rng.normal(0.0, 0.01, size))), power)
    temperature = np.where(throttled, model.slowdown_celsius + np.abs(rng.normal(0.0, 1.0, size)), settled)

    limit = np.where(braked, _BRAKE_POWER, 1.0) * model.limit_watts
    capped = load.context & (demand > limit)
    floor = model.floor_watts * card.floor_factor
    want = np.maximum(demand - floor, 1.0)
    have = np.minimum(np.where(throttled, np.minimum(power, limit), limit) - floor, want)
    # Dynamic power falls with about the square of the clock where voltage follows it.
    clock = model.max_clock_mhz * np.clip(have / want, 0.12, 1.0) ** 0.45
    clock = np.where(braked, np.minimum(clock, 0.5 * model.max_clock_mhz), clock)
    resting = ~load.context & (load.engine <= 0)
    clock = np.where(resting, model.idle_clock_mhz, np.floor(clock / 15) * 15)

    reasons = np.where(resting, GPU_IDLE, 0).astype(np.int64)
    reasons |= np.where(capped & ~throttled & ~braked, SW_POWER_CAP, 0)
    reasons |= np.where(throttled, SW_THERMAL | HW_THERMAL | HW_SLOWDOWN, 0)
    reasons |= np.where(braked, HW_POWER_BRAKE | HW_SLOWDOWN, 0)
    memory_heat = 9.0 + 6.0 * load.dram + (3.0 if model.family == "ampere" else 1.0)
    return Sensors(
        power_watts=power,
        temperature=temperature,
        memory_temperature=temperature + memory_heat - 0.1 * np.clip(temperature - 30, 0, None),
        sm_clock_mhz=clock,
        memory_clock_mhz=np.where(resting, model.idle_memory_clock_mhz, model.memory_clock_mhz),
        reasons=reasons,
        energy_joules=np.cumsum(power) * interval,
        thermal_seconds=np.cumsum(np.where(throttled, interval * rng.uniform(0.6, 1.0, size), 0.0)),
        power_cap_seconds=np.cumsum(np.where(capped & ~braked, interval * rng.uniform(0.5, 1.0, size), 0.0)),
    )
