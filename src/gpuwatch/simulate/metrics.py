"""The exporter's metrics: names in both vocabularies, and values rounded as the exporter prints them.

`values` gives the units of dcgm-exporter ≤4.8; where 4.9 has another unit (its release notes), `scale49` converts.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuwatch.simulate.cards import Machine
from gpuwatch.simulate.physics import HW_POWER_BRAKE, Sensors
from gpuwatch.simulate.plan import DAY, FleetPlan, Floats
from gpuwatch.simulate.script import CardScript, held
from gpuwatch.simulate.states import DeviceState, MachineState


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
        """Cumulative whole counts, reset at each driver reload unless the card stores them."""
        total = np.cumsum(increments, dtype=np.float64) + start
        if not survives_reload:
            for reset in sorted(self.state.script.counter_resets):
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
Applies = Callable[[Machine, DeviceState], bool]


def _always(_: Machine, __: DeviceState) -> bool:
    return True


def _whole_gpu(_: Machine, device: DeviceState) -> bool:
    return device.instance is None


def _remaps(machine: Machine, _: DeviceState) -> bool:
    return machine.model.has_row_remap


def _memory_sensor(machine: Machine, _: DeviceState) -> bool:
    return machine.model.has_memory_sensor


def _linked(machine: Machine, _: DeviceState) -> bool:
    return machine.model.nvlink_megabytes_per_second > 0


@dataclass(frozen=True, kw_only=True)
class Metric:
    """profiling: from the performance counters, which a user's profiler sometimes holds."""

    dcgm: str
    dcgm49: str
    values: Values
    scale49: float = 1.0
    profiling: bool = False
    extended: bool = False
    applies: Applies = _always

    def name(self, vocabulary: str) -> str:
        return self.dcgm49 if vocabulary == "dcgm49" else self.dcgm


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


def _zero(view: View) -> Floats:
    return np.zeros(len(view.seconds))


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


def _nvlink(view: View) -> Floats:
    rate: Floats = np.rint(view.device.load.link * view.machine.model.nvlink_megabytes_per_second)
    return rate


def _memory_used(view: View) -> Floats:
    return np.rint(view.device.load.memory_mib)


def _memory_reserved(view: View) -> Floats:
    reserved = 30.0 if view.device.instance is not None else float(view.machine.model.reserved_mib)
    return np.full(len(view.seconds), reserved)


def _energy(view: View) -> Floats:
    start = view.rng("energy-start").uniform(2e11, 4e12)
    return view.counter(np.diff(view.sensors.energy_joules, prepend=0.0) * 1000.0, start)


def _throttle(times: Callable[[Sensors], Floats], purpose: str) -> Values:
    """Cumulative nanoseconds since the driver was loaded."""

    def values(view: View) -> Floats:
        start = float(view.rng(purpose).exponential(2e10))
        return view.counter(np.diff(times(view.sensors), prepend=0.0) * 1e9, start)

    return values


def _brake_nanoseconds(view: View) -> Floats:
    braking = (view.sensors.reasons & HW_POWER_BRAKE) > 0
    return view.counter(np.where(braking, 0.97e9 * view.plan.interval_seconds, 0.0))


def _count(counter: str, per_day: float, *, start: float = 0.0, survives: bool = False) -> Values:
    def values(view: View) -> Floats:
        increments = view.faulty(counter) + (view.background(counter, per_day) if per_day else 0.0)
        begin = float(view.rng(counter + "-start").poisson(start)) if start else 0.0
        return view.counter(increments, begin, survives_reload=survives)

    return values


def _state(name: str) -> Values:
    return lambda view: held(view.seconds, view.trouble.states.get(name, []))


_DEV, _PROF = "DCGM_FI_DEV_", "DCGM_FI_PROF_"


def _device(dcgm: str, dcgm49: str, values: Values, scale49: float = 1.0, applies: Applies = _always) -> Metric:
    return Metric(dcgm=_DEV + dcgm, dcgm49=_DEV + dcgm49, values=values, scale49=scale49, applies=applies)


def _profiled(dcgm: str, dcgm49: str, values: Values, *, extended: bool = False, applies: Applies = _always) -> Metric:
    return Metric(
        dcgm=_PROF + dcgm, dcgm49=_PROF + dcgm49, values=values, profiling=True, extended=extended, applies=applies
    )


def _more(dcgm: str, dcgm49: str, values: Values, scale49: float = 1.0, applies: Applies = _always) -> Metric:
    return Metric(
        dcgm=_DEV + dcgm, dcgm49=_DEV + dcgm49, values=values, scale49=scale49, extended=True, applies=applies
    )


LINK_METRICS = tuple(
    _more(name, name, values)
    for name, values in (
        ("PCIE_LINK_GEN", lambda v: np.full(len(v.seconds), float(v.machine.model.pcie_generation))),
        ("PCIE_LINK_WIDTH", lambda v: np.full(len(v.seconds), 16.0)),
    )
)
"""On contended nodes only, beside METRICS."""

METRICS: tuple[Metric, ...] = (
    # The exporter's default list, without the licence status of virtual GPUs.
    _device("SM_CLOCK", "SM_CLOCK_HERTZ", lambda v: v.sensors.sm_clock_mhz, 1e6),
    _device("MEM_CLOCK", "MEMORY_CLOCK_HERTZ", lambda v: v.sensors.memory_clock_mhz, 1e6),
    _device("GPU_TEMP", "GPU_TEMP_CELSIUS", lambda v: np.rint(v.sensors.temperature)),
    _device(
        "MEMORY_TEMP", "MEMORY_TEMP_CELSIUS", lambda v: np.rint(v.sensors.memory_temperature), applies=_memory_sensor
    ),
    _device("POWER_USAGE", "BOARD_POWER_WATTS", lambda v: np.round(v.sensors.power_watts.astype(np.float64), 3)),
    _device("TOTAL_ENERGY_CONSUMPTION", "GPU_ENERGY_JOULES_TOTAL", _energy, 1e-3),
    _device("PCIE_REPLAY_COUNTER", "PCIE_REPLAY_TOTAL", _count("replays", 1.5, start=20)),
    _device("GPU_UTIL", "GPU_UTIL_RATIO", _util, 0.01, _whole_gpu),
    _device("MEM_COPY_UTIL", "MEMORY_UTIL_RATIO", _memory_copy_util, 0.01, _whole_gpu),
    _device("ENC_UTIL", "ENC_UTIL_RATIO", _zero, 0.01, _whole_gpu),
    _device("DEC_UTIL", "DEC_UTIL_RATIO", _zero, 0.01, _whole_gpu),
    _device("FB_USED", "FB_USED_BYTES", _memory_used, 2.0**20),
    _device("FB_FREE", "FB_FREE_BYTES", lambda v: v.machine.memory_mib(v.device.instance) - _memory_used(v), 2.0**20),
    _device("FB_RESERVED", "FB_RESERVED_BYTES", _memory_reserved, 2.0**20),
    _device("NVLINK_BANDWIDTH_TOTAL", "NVLINK_THROUGHPUT_BYTES_PER_SECOND", _nvlink, 1_024_000.0, _linked),
    _device(
        "UNCORRECTABLE_REMAPPED_ROWS",
        "ROW_REMAP_UNCORRECTABLE_TOTAL",
        _count("rows_uncorrectable", 0, start=0.02, survives=True),
        applies=_remaps,
    ),
    _device(
        "CORRECTABLE_REMAPPED_ROWS",
        "ROW_REMAP_CORRECTABLE_TOTAL",
        _count("rows_correctable", 0, start=0.05, survives=True),
        applies=_remaps,
    ),
    _device("ROW_REMAP_FAILURE", "ROW_REMAP_FAILED", _state("remap_failure"), applies=_remaps),
    _profiled("GR_ENGINE_ACTIVE", "GR_ENGINE_UTIL_RATIO", _ratio("engine", 3e-5)),
    _profiled("PIPE_TENSOR_ACTIVE", "TENSOR_UTIL_RATIO", _ratio("tensor", 1e-6)),
    _profiled("DRAM_ACTIVE", "DRAM_UTIL_RATIO", _ratio("dram", 3e-6)),
    _profiled("PCIE_TX_BYTES", "PCIE_TX_BYTES", _pcie("tx", 0.35), applies=_whole_gpu),
    _profiled("PCIE_RX_BYTES", "PCIE_RX_BYTES", _pcie("rx", 1.0), applies=_whole_gpu),
    # What a longer counter list adds.
    _profiled("SM_ACTIVE", "SM_UTIL_RATIO", _ratio("sm", 1e-5), extended=True),
    _more("ECC_SBE_VOL_TOTAL", "ECC_SBE_VOL_TOTAL", _count("ecc_sbe", 0.05)),
    _more("ECC_DBE_VOL_TOTAL", "ECC_DBE_VOL_TOTAL", _count("ecc_dbe", 0)),
    _more("ECC_SBE_AGG_TOTAL", "ECC_SBE_AGG_TOTAL", _count("ecc_sbe", 0.05, start=3, survives=True)),
    _more("ECC_DBE_AGG_TOTAL", "ECC_DBE_AGG_TOTAL", _count("ecc_dbe", 0, start=0.02, survives=True)),
    _more(
        "THERMAL_VIOLATION",
        "THERMAL_THROTTLE_SECONDS_TOTAL",
        _throttle(lambda s: s.thermal_seconds, "thermal-ns"),
        1e-9,
    ),
    _more(
        "POWER_VIOLATION", "POWER_THROTTLE_SECONDS_TOTAL", _throttle(lambda s: s.power_cap_seconds, "power-ns"), 1e-9
    ),
    _more(
        "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS",
        "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS",
        _brake_nanoseconds,
    ),
    _more("CLOCKS_EVENT_REASONS", "CLOCKS_EVENT_REASONS", lambda v: v.sensors.reasons.astype(np.float64)),
    _more(
        "ENFORCED_POWER_LIMIT",
        "BOARD_POWER_LIMIT_ENFORCED_WATTS",
        lambda v: np.full(len(v.seconds), v.machine.model.limit_watts),
    ),
    _more("GET_GPU_RECOVERY_ACTION", "GPU_RECOVERY_ACTION", _state("recovery"), applies=_whole_gpu),
    _more("ROW_REMAP_PENDING", "ROW_REMAP_PENDING", _state("remap_pending"), applies=_remaps),
    _more(
        "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "NVLINK_CRC_FLIT_ERROR_TOTAL",
        _count("nvlink_crc_flit", 4, start=5),
        applies=_linked,
    ),
    _more(
        "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        "NVLINK_CRC_DATA_ERROR_TOTAL",
        _count("nvlink_crc_data", 0.1),
        applies=_linked,
    ),
    _more(
        "NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVLINK_REPLAY_ERROR_TOTAL", _count("nvlink_replay", 0.3), applies=_linked
    ),
    _more(
        "NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "NVLINK_RECOVERY_ERROR_TOTAL",
        _count("nvlink_recovery", 0.05),
        applies=_linked,
    ),
)
