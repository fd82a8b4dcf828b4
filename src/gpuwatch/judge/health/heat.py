"""Heat that a GPU's power does not explain, by what the busy GPUs of its model show.

Power becomes heat, so temperature is a line in power, per model. Huber's regression finds it although some cards lie
far above it. The rest is compared with the same slot in other machines, since the cards behind others get warmer air,
and with the GPUs of its machine and its rack at the same time: where they are too hot as well, their air is the cause.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median, pstdev
from typing import TypeAlias

from gpuwatch.judge.fleet import PEER_DEVIATIONS, GpuAnswers, PhysicalGpu, peers_of

LEAST_GPUS = 10
"""GPUs of a model that a line takes: two numbers are fitted, and some cards may be faulty."""
LEAST_MACHINES = 3
"""Machines that they are on, and that have a slot, before a slot is compared."""
_LEAST_SPREAD_CELSIUS = 3.0
"""What healthy cards are credited with at least: sensors read whole degrees, and airflow differs."""


_LEAST_NEAR = 4
"""GPUs of a labelled place, such as a rack, whose median says how warm it is."""
_CHANCE = 0.05
"""That any card of a healthy model stands out: of 1,000 cards one or two are three spreads above the line."""


_Places: TypeAlias = Callable[[PhysicalGpu], Collection[str]]


@dataclass(frozen=True, slots=True)
class Excess:
    """Temperature beyond what its power and its place explain, and the least that stands out. gpus: busy ones of the
    model, by which that is known. alone: no other of them is in its place.
    """

    celsius: float
    expected_celsius: float
    least_celsius: float
    gpus: int
    alone: bool

    @property
    def stands_out(self) -> bool:
        return self.celsius > self.least_celsius


def excess_heat(
    working: Iterable[PhysicalGpu],
    temperature: GpuAnswers,
    power: GpuAnswers,
    places: _Places,
    slowed: Container[PhysicalGpu],
) -> Mapping[PhysicalGpu, Excess]:
    """By GPU; what stands out is more than PEER_DEVIATIONS spreads, or more where many are compared. Empty where too
    few of a model work. places: the labelled ones that a GPU is in, whose air it shares. slowed: they draw less the
    hotter they are, so that the line is of the others, where those are enough."""
    measured: dict[Hashable, dict[PhysicalGpu, tuple[float, float]]] = defaultdict(dict)
    for gpu in working:
        celsius, watts = temperature.of(gpu), power.of(gpu)
        if gpu.model and celsius is not None and watts is not None:
            measured[gpu.lead.vendor, gpu.model][gpu] = (watts, celsius)
    found: dict[PhysicalGpu, Excess] = {}
    for cards in measured.values():
        if _enough(cards):
            usual = [gpu for gpu in cards if gpu not in slowed]
            spreads = max(PEER_DEVIATIONS, NormalDist().inv_cdf(1 - _CHANCE / len(cards)))
            found.update(_of_model(cards, usual if _enough(usual) else list(cards), spreads, places))
    return found


def _enough(cards: Collection[PhysicalGpu]) -> bool:
    return len(cards) >= LEAST_GPUS and len({gpu.home for gpu in cards}) >= LEAST_MACHINES


def _of_model(
    cards: Mapping[PhysicalGpu, tuple[float, float]], usual: Sequence[PhysicalGpu], deviations: float, places: _Places
) -> Iterable[tuple[PhysicalGpu, Excess]]:
    line = _line(*zip(*(cards[gpu] for gpu in usual), strict=True))
    left = {gpu: celsius - line(watts) for gpu, (watts, celsius) in cards.items()}
    # Before slots are compared: the median of few machines' slot is near each of them, so little would be left.
    spread = max(peers_of([left[gpu] for gpu in usual], 0.0).spread, _LEAST_SPREAD_CELSIUS)
    by_slot: dict[str, list[float]] = defaultdict(list)
    by_home: dict[str, dict[PhysicalGpu, float]] = defaultdict(dict)
    by_place: dict[str, list[float]] = defaultdict(list)
    for gpu, value in left.items():
        by_slot[gpu.lead.index].append(value)
    for gpu, value in left.items():
        slot = by_slot[gpu.lead.index]
        left[gpu] = value - max(median(slot) if gpu.lead.index and len(slot) >= LEAST_MACHINES else 0.0, 0.0)
        by_home[gpu.home][gpu] = left[gpu]
        for place in places(gpu):
            by_place[place].append(left[gpu])
    warmth = {place: median(values) for place, values in by_place.items() if len(values) >= _LEAST_NEAR}
    for gpu, value in left.items():
        others = [other for each, other in by_home[gpu.home].items() if each is not gpu]
        near = [warmth[place] for place in places(gpu) if place in warmth] + ([median(others)] if others else [])
        warm = max(near, default=0.0)
        # The cards of a place that is too warm differ, too: by no more than it is warm.
        own, least = value - max(warm, 0.0), deviations * spread + max(warm, 0.0)
        yield gpu, Excess(own, cards[gpu][1] - own, least, len(cards), not near)


def _line(watts: Sequence[float], celsius: Sequence[float]) -> Callable[[float], float]:
    """The temperature, in °C, that a power explains; beyond the powers that were seen, as at the nearest of them."""
    from sklearn.linear_model import HuberRegressor  # takes a second, and small fleets never need it

    middle, spread, usual = fmean(watts), pstdev(watts), median(celsius)
    if spread < 1.0:  # all draw the same, so there is no line to find
        return lambda _: usual
    fit = HuberRegressor(max_iter=1000).fit([[(each - middle) / spread] for each in watts], celsius)
    slope, level, least, most = float(fit.coef_[0]) / spread, float(fit.intercept_), min(watts), max(watts)
    if slope < 0.0:  # heat made the hottest draw less, and little else differs
        return lambda _: usual
    return lambda drawn: level + slope * (min(max(drawn, least), most) - middle)
