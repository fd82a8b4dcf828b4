"""The signals of a device besides its engine activity: the independent second signal, memory and load.

The board measures power, and memory and copy activity come from other counters than the engine's. Before a device is
called idle, one of these has to confirm that it does nothing, and none may contradict. SM activity and PCIe traffic can
only contradict: the first shares its source with engine activity, and work that stays on the card has no PCIe traffic.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import gt, le

from gpuwatch.facts.catalog.gpus import find_gpu
from gpuwatch.facts.model.decision import Evidence, Snapshot
from gpuwatch.facts.model.needs import statistics, stats
from gpuwatch.facts.model.telemetry import Device, Signal, Statistic, WindowStat
from gpuwatch.judge.fleet import measured
from gpuwatch.judge.idle.explanation import MIN_PEERS
from gpuwatch.judge.idle.policy import IdlePolicy

_PCIE = (Signal.PCIE_TX_BYTES_PER_SECOND, Signal.PCIE_RX_BYTES_PER_SECOND)
_VIDEO = (Signal.ENCODER_UTIL_RATIO, Signal.DECODER_UTIL_RATIO)
_HOLDS = {">": gt, "<=": le}
CONFIRMING = (Signal.POWER_WATTS, Signal.DRAM_ACTIVE_RATIO, Signal.MEMORY_COPY_UTIL_RATIO)
"""Each of them alone can confirm that a device does nothing."""
POWER_FLOOR_FACTOR = 2.0
"""An idle card draws at most this times its floor, and `IdlePolicy.power_floor_watts`, where the numbers of idle cards
with an open context are."""
MEMORY_BOUNDS = ((Signal.DRAM_ACTIVE_RATIO, 0.02), (Signal.MEMORY_COPY_UTIL_RATIO, 0.01))
"""Most activity of an idle device's memory: refresh and monitoring stay below one percent; and the smallest step of the
copy counter."""
SM_ACTIVE_RATIO = 0.01
"""Most SM activity of an idle device: as IdlePolicy.active_ratio, since both come from the same counters."""
VIDEO_RATIO = 0.01
"""Use of the video encoder or decoder above which a Pod works, even with an idle engine: the smallest step of the
counters."""
HOST_TRAFFIC_BYTES_PER_SECOND = 10e6
"""Most average PCIe traffic, both ways, of an idle device: monitoring alone makes less than a tenth of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondOpinion:
    """The other signals of devices whose engine is idle.

    agrees: True where for every device at least one signal confirms and none contradicts; False where one contradicts
        (see `contradiction`); None where a device has none of them (see `missing`).
    """

    agrees: bool | None
    evidence: tuple[Evidence, ...] = ()
    contradiction: str = ""
    missing: tuple[str, ...] = ()


def needs_of_rules(policy: IdlePolicy) -> Mapping[str, tuple[WindowStat, ...]]:
    """The statistics that each rule (`Finding.rule`) reads, besides the history of activity. One of power, memory
    activity and copy utilisation is enough. Memory in use tells a loaded model from an abandoned device."""
    recent, long = policy.recent_window_seconds, policy.long_window_seconds
    use = (*stats(Statistic.MAX, policy.recent_seconds, Signal.BUSY_RATIO), *stats(Statistic.MAX, recent, *_VIDEO))
    traffic = stats(Statistic.AVG, long, *_PCIE)
    silence = (
        *use,
        *stats(Statistic.COUNT, recent, Signal.BUSY_RATIO),
        *stats(Statistic.MIN, policy.power_floor_seconds, Signal.POWER_WATTS),
        *stats(Statistic.MAX, recent, *CONFIRMING, Signal.SM_ACTIVE_RATIO),
        *stats(Statistic.MAX, long, *CONFIRMING, Signal.SM_ACTIVE_RATIO),
        *stats(Statistic.AVG, recent, *_PCIE),
        *traffic,
    )
    soonest = stats(Statistic.MAX, policy.recent_seconds, *CONFIRMING)
    memory = WindowStat(Signal.MEMORY_USED_BYTES, Statistic.LAST)
    return {
        "idle.never_used": silence,
        "idle.abandoned": silence,
        "idle.model_loaded": (*silence, memory),
        "idle.partial_gang": (*silence, *soonest),
        "idle.in_use": use,
        "idle.bursty": use,
        "idle.host_bound": (*stats(Statistic.AVG, long, Signal.BUSY_RATIO), *traffic),
    }


class DeviceSignals:
    def __init__(self, snapshot: Snapshot, policy: IdlePolicy) -> None:
        self.readings = snapshot.readings
        self.policy = policy
        # Rendering a key takes longer than the look-up, and every device needs the same ones.
        stats = statistics(needs_of_rules(policy))
        self._keys = {(stat.signal, stat.statistic, stat.window_seconds): stat.key for stat in stats}
        self._floors = self._floors_by_model(snapshot.devices)

    def _floors_by_model(self, devices: Iterable[Device]) -> Mapping[str, float]:
        """The second lowest floor of a model's cards, in watts, so that one broken sensor does not decide."""
        window = self.policy.power_floor_seconds
        floors: dict[str, dict[str, float]] = defaultdict(dict)
        for device in devices:
            watts = self.value(device, Signal.POWER_WATTS, Statistic.MIN, window, whole_gpu=True)
            if device.model and watts is not None:
                floors[device.model][device.uuid] = watts
        return {model: sorted(each.values())[1] for model, each in floors.items() if len(each) > MIN_PEERS}

    def value(
        self, device: Device, signal: Signal, statistic: Statistic, window_seconds: int = 0, *, whole_gpu: bool = False
    ) -> float | None:
        """The device's value; for a MIG instance its own, or with whole_gpu its GPU's. None where unknown."""
        answers = self.readings.values.get(self._keys.get((signal, statistic, window_seconds), ""), {})
        return answers.get(device.uuid if whole_gpu else device.id)

    def evidence(
        self, device: Device, stat: WindowStat, value: float, comparison: str, bound: float, note: str = ""
    ) -> Evidence:
        return measured(
            self.readings, stat, device, value, comparison, bound, f"{device.id}{': ' if note else ''}{note}"
        )

    def memory_used_bytes(self, devices: Iterable[Device]) -> tuple[float, Device] | None:
        """The highest memory in use, and its device; None where no device has an answer."""
        found = [(self.value(device, Signal.MEMORY_USED_BYTES, Statistic.LAST), device) for device in devices]
        known = [(value, device) for value, device in found if value is not None]
        return max(known, key=lambda pair: pair[0], default=None)

    def released(self, devices: Iterable[Device]) -> bool:
        """Whether no device has even a context in memory; False where one has no answer."""
        used = [self.value(device, Signal.MEMORY_USED_BYTES, Statistic.LAST) for device in devices]
        return bool(used) and all(each is not None and each < self.policy.context_bytes for each in used)

    def host_traffic(self, device: Device, window_seconds: int) -> float | None:
        """Average PCIe traffic, both ways, in bytes per second; None where neither way has an answer."""
        values = [self.value(device, signal, Statistic.AVG, window_seconds) for signal in _PCIE]
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    def recent_work(self, devices: Iterable[Device]) -> Evidence | None:
        """The first device whose engine was active recently. Unlike the history, all devices have this statistic."""
        return self._above(devices, (Signal.BUSY_RATIO,), self.policy.recent_seconds, self.policy.active_ratio)

    def video(self, devices: Iterable[Device]) -> Evidence | None:
        """The first device whose video encoder or decoder worked recently."""
        return self._above(devices, _VIDEO, self.policy.recent_window_seconds, VIDEO_RATIO, note="video work")

    def _above(
        self, devices: Iterable[Device], signals: Sequence[Signal], window: int, bound: float, note: str = ""
    ) -> Evidence | None:
        each = ((device, signal) for device in devices for signal in signals)
        found = (self._compared(device, signal, window, ">", bound, note=note) for device, signal in each)
        return next(filter(None, found), None)

    def _compared(
        self, device: Device, signal: Signal, window: int, comparison: str, bound: float, *, note: str = ""
    ) -> Evidence | None:
        """The highest value of the window as evidence; None where unknown, or where the comparison does not hold."""
        value = self.value(device, signal, Statistic.MAX, window)
        if value is None or not _HOLDS[comparison](value, bound):
            return None
        return self.evidence(device, WindowStat(signal, Statistic.MAX, window), value, comparison, bound, note)

    def second_opinion(self, devices: Sequence[Device], silent_seconds: float) -> SecondOpinion:
        """The other signals over the time in which the devices' engines were idle.

        silent_seconds: that time; the longest window that fits into it counts, else the shortest, with fewer signals.
        """
        window = self.policy.recent_window_seconds
        if silent_seconds >= self.policy.long_window_seconds:
            window = self.policy.long_window_seconds
        elif silent_seconds < window:
            window = self.policy.recent_seconds
        shown: tuple[Evidence, ...] = ()
        missing: list[str] = []
        for device in devices:
            against = self._contradiction(device, window)
            if against is not None:
                text = f"{against.signal} of {device.id} says that it works ({against.value:.3g} {against.unit})"
                return SecondOpinion(agrees=False, evidence=(against,), contradiction=text)
            confirming = self._confirmation(device, window)
            if confirming is None:
                missing.append(device.id)
            elif not shown:
                shown = (confirming,)
        if missing:
            what = "power and memory activity" if len(missing) == len(devices) else "a second signal"
            some = missing[0] if len(missing) == 1 else f"{missing[0]} and {len(missing) - 1} more"
            return SecondOpinion(agrees=None, evidence=shown, missing=(f"{what} of {some} over the idle time",))
        return SecondOpinion(agrees=bool(devices) or None, evidence=shown)

    def _contradiction(self, device: Device, window: int) -> Evidence | None:
        for signal, bound in ((Signal.SM_ACTIVE_RATIO, SM_ACTIVE_RATIO), *MEMORY_BOUNDS):
            if found := self._compared(device, signal, window, ">", bound):
                return found
        # Power does not contradict on a MIG instance: other instances draw from the same board.
        if device.mig_instance is None and (drawn := self._power_compared(device, window, ">")):
            return drawn
        traffic = self.host_traffic(device, window)
        if traffic is not None and traffic > HOST_TRAFFIC_BYTES_PER_SECOND:
            stat = WindowStat(Signal.PCIE_RX_BYTES_PER_SECOND, Statistic.AVG, window)
            return self.evidence(device, stat, traffic, ">", HOST_TRAFFIC_BYTES_PER_SECOND, "both ways")
        return None

    def _confirmation(self, device: Device, window: int) -> Evidence | None:
        if drawn := self._power_compared(device, window, "<="):
            return drawn
        found = (self._compared(device, signal, window, "<=", bound) for signal, bound in MEMORY_BOUNDS)
        return next(filter(None, found), None)

    def _power_compared(self, device: Device, window: int, comparison: str) -> Evidence | None:
        """As `_compared`, for the power of the whole card; the bound for an idle card follows from its floor, or from
        that of its model, if lower: a card that worked all the time has no floor of its own."""
        policy = self.policy
        highest = self.value(device, Signal.POWER_WATTS, Statistic.MAX, window, whole_gpu=True)
        own = self.value(device, Signal.POWER_WATTS, Statistic.MIN, policy.power_floor_seconds, whole_gpu=True)
        if highest is None or own is None:
            return None
        known, days = find_gpu(device.model), policy.power_floor_seconds // 86400
        floors = {
            f"the card's floor in {days} days": own,
            f"the second lowest floor of its model's cards in {days} days": self._floors.get(device.model),
            "an idle card of its model, by the catalog,": None if known is None else known.idle_power_watts,
        }
        floor, whose = min((watts, name) for name, watts in floors.items() if watts is not None)
        bound = POWER_FLOOR_FACTOR * floor + policy.power_floor_watts
        if not _HOLDS[comparison](highest, bound):
            return None
        stat, note = WindowStat(Signal.POWER_WATTS, Statistic.MAX, window), f"{whose} is {floor:.0f} W"
        return self.evidence(device, stat, highest, comparison, bound, note)
