"""The exporter's metrics: names in both vocabularies, and values rounded as the exporter prints them, in the units of
dcgm-exporter ≤4.8; 4.9 has others (its release notes)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from lab.simulate.cards import Machine
from lab.simulate.physics import HW_POWER_BRAKE, Sensors
from lab.simulate.plan import DAY, FleetPlan, Floats
from lab.simulate.script import CardScript, held
from lab.simulate.states import DeviceState, MachineState
from lab.simulate.tables import read_table


@dataclass(frozen=True, kw_only=True)
class View:
    """Inputs of a value: one device or MIG instance, with its card's sensors and troubles."""

    plan: FleetPlan
    state: MachineState
    device: DeviceState

    @property
    def machine(self) -> Machine:
        return self.state.machine

    @property
    def sensors(self) -> Sensors:
        return self.state.sensors[self.device.card.index]

    @property
    def trouble(self) -> CardScript:
        return self.state.script.cards.get(self.device.card.index, CardScript())

    @property
    def seconds(self) -> Floats:
        return self.state.seconds

    def rng(self, purpose: str) -> np.random.Generator:
        """The same numbers for every MIG instance of a card: physical signals repeat on each."""
        return self.plan.rng(purpose, self.machine.index, self.device.card.index)

    def counter(self, increments: Floats, start: float = 0.0, *, survives_reload: bool = False) -> Floats:
        """Cumulative whole counts, reset with the card and at each driver reload unless the card stores them."""
        total = np.cumsum(increments, dtype=np.float64) + start
        if not survives_reload:
            for reset in sorted((*self.state.script.counter_resets, *self.trouble.counter_resets)):
                index = int(np.searchsorted(self.seconds, reset))
                if 0 < index < len(total):
                    total[index:] -= total[index - 1]
        counted: Floats = np.floor(total)
        return counted

    def faulty(self, counter: str) -> Floats:
        """Increments per sample that troubles add to a counter."""
        interval = float(self.plan.interval_seconds)
        rates = self.trouble.rates.get(counter, [])
        added = np.zeros(len(self.seconds))
        for begin, end, per_second in rates:
            during = (self.seconds >= begin) & (self.seconds < end)
            added[during] += self.rng(counter + "-fault").poisson(per_second * interval, int(during.sum()))
        for at, count in self.trouble.steps.get(counter, []):
            index = int(np.searchsorted(self.seconds, at))
            if index < len(added):
                added[index] += count
        return added

    def background(self, counter: str, per_day: float) -> Floats:
        """Increments per sample of a healthy card; one in five has several times more."""
        rng = self.rng(counter)
        rate = per_day * float(rng.lognormal(0.0, 0.8)) / DAY * self.plan.interval_seconds
        counts: Floats = rng.poisson(rate, len(self.seconds)).astype(np.float64)
        return counts


Values = Callable[[View], Floats]


class Metric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of metrics.csv: the exporter's default list, without the licence status of virtual GPUs, and what a longer
    list adds (extended).

    dcgm, dcgm49: the name up to 4.8, and from 4.9 on. scale49: to the unit of 4.9.
    only: what exports it; '' all. One of three says its values: `value`, a function below; `state`, of
    CardScript.states; `counter`, of CardScript.rates and steps, which counts `per_day` on a healthy card from about
    `start` on, and survives a reload of the driver where the card stores it.
    """

    dcgm: str
    dcgm49: str
    scale49: float = 1.0
    extended: bool = False
    only: Literal["", "whole_gpu", "memory_sensor", "remaps", "linked", "contended"] = ""
    value: str = ""
    state: str = ""
    counter: str = ""
    per_day: float = 0.0
    start: float = 0.0
    survives_reload: bool = False

    @property
    def profiling(self) -> bool:
        """From the performance counters, which a user's profiler sometimes holds."""
        return self.dcgm.startswith("DCGM_FI_PROF_")

    def name(self, vocabulary: str) -> str:
        return self.dcgm49 if vocabulary == "dcgm49" else self.dcgm

    def applies(self, machine: Machine, device: DeviceState) -> bool:
        return {
            "": True,
            "whole_gpu": device.instance is None,
            "memory_sensor": machine.model.has_memory_sensor,
            "remaps": machine.model.has_row_remap,
            "linked": machine.model.nvlink_megabytes_per_second > 0,
            "contended": machine.role == "contended",
        }[self.only]

    def values(self, view: View) -> Floats:
        if self.state:
            return held(view.seconds, view.trouble.states.get(self.state, []))
        if not self.counter:
            return _VALUES[self.value](view)
        increments = view.faulty(self.counter) + (view.background(self.counter, self.per_day) if self.per_day else 0.0)
        begin = float(view.rng(self.counter + "-start").poisson(self.start)) if self.start else 0.0
        return view.counter(increments, begin, survives_reload=self.survives_reload)


def _util(view: View) -> Floats:
    """NVML measures only its last sampling period, in whole percents."""
    engine = view.device.load.engine
    rng = view.rng("util")
    seen = np.where(engine < 0.97, engine * rng.lognormal(0.0, 0.12, len(engine)), engine)
    percent: Floats = np.clip(np.rint(100 * seen), 0, 100)
    return percent


def _memory_copy_util(view: View) -> Floats:
    dram = view.device.load.dram
    percent: Floats = np.clip(np.rint(100 * dram * view.rng("mem-copy").normal(0.85, 0.04, len(dram))), 0, 100)
    return percent


def _ratio(name: str, whisper: float) -> Values:
    """A profiling ratio with six decimals. whisper: occasional activity of an open context."""

    def values(view: View) -> Floats:
        load = view.device.load
        ratio: Floats = getattr(load, name)
        rng = view.rng(f"{name}-{view.device.instance.gi if view.device.instance else ''}")
        heard = np.where(rng.random(len(ratio)) < 0.15, rng.exponential(whisper, len(ratio)), 0.0)
        return np.round(np.clip(np.where(load.context, ratio + heard, ratio), 0.0, 1.0), 6)

    return values


def _pcie(direction: str, part: float) -> Values:
    """Bytes per second. Monitoring causes some kilobytes, an open context some hundred more."""

    def values(view: View) -> Floats:
        card = view.device.load
        rng = view.rng(f"pcie-{direction}")
        size = len(card.pcie)
        rest = np.where(card.context, 9e4, 1.1e4) * rng.lognormal(0.0, 0.25, size)
        work = card.pcie * view.machine.model.pcie_bytes_per_second * part * rng.lognormal(0.0, 0.1, size)
        return np.rint(rest + work)

    return values


def _energy(view: View) -> Floats:
    start = view.rng("energy-start").uniform(2e11, 4e12)
    return view.counter(np.diff(view.sensors.energy_joules, prepend=0.0) * 1000.0, start)


def _throttle(times: Callable[[Sensors], Floats], purpose: str) -> Values:
    """Cumulative nanoseconds since the driver was loaded."""

    def values(view: View) -> Floats:
        start = float(view.rng(purpose).exponential(2e10))
        return view.counter(np.diff(times(view.sensors), prepend=0.0) * 1e9, start)

    return values


_VALUES: Mapping[str, Values] = {
    "sm_clock": lambda v: v.sensors.sm_clock_mhz,
    "memory_clock": lambda v: v.sensors.memory_clock_mhz,
    "temperature": lambda v: np.rint(v.sensors.temperature),
    "memory_temperature": lambda v: np.rint(v.sensors.memory_temperature),
    "power": lambda v: np.round(v.sensors.power_watts.astype(np.float64), 3),
    "power_limit": lambda v: np.full(len(v.seconds), v.machine.model.limit_watts),
    "energy": _energy,
    "clock_reasons": lambda v: v.sensors.reasons.astype(np.float64),
    "thermal_throttle": _throttle(lambda sensors: sensors.thermal_seconds, "thermal-ns"),
    "power_throttle": _throttle(lambda sensors: sensors.power_cap_seconds, "power-ns"),
    "brake_nanoseconds": lambda v: v.counter(
        np.where((v.sensors.reasons & HW_POWER_BRAKE) > 0, 0.97e9 * v.plan.interval_seconds, 0.0)
    ),
    "util": _util,
    "memory_copy_util": _memory_copy_util,
    "zero": lambda v: np.zeros(len(v.seconds)),
    "memory_used": lambda v: np.rint(v.device.load.memory_mib),
    "memory_free": lambda v: v.machine.memory_mib(v.device.instance) - np.rint(v.device.load.memory_mib),
    "memory_reserved": lambda v: np.full(
        len(v.seconds), 30.0 if v.device.instance is not None else float(v.machine.model.reserved_mib)
    ),
    "nvlink": lambda v: np.rint(v.device.load.link * v.machine.model.nvlink_megabytes_per_second),
    "engine": _ratio("engine", 3e-5),
    "sm": _ratio("sm", 1e-5),
    "tensor": _ratio("tensor", 1e-6),
    "dram": _ratio("dram", 3e-6),
    "pcie_tx": _pcie("tx", 0.35),
    "pcie_rx": _pcie("rx", 1.0),
    "link_generation": lambda v: np.full(len(v.seconds), float(v.machine.model.pcie_generation)),
    "link_width": lambda v: np.full(len(v.seconds), 16.0),
}

_ROWS = read_table("metrics.csv", Metric)
METRICS = tuple(metric for metric in _ROWS if metric.only != "contended")
LINK_METRICS = tuple(metric for metric in _ROWS if metric.only == "contended")
"""On contended nodes only, beside METRICS."""
