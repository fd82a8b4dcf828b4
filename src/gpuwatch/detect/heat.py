"""Heat that a GPU's power does not explain, by what the busy GPUs of its model show.

Power becomes heat, so temperature is a line in power, per model. Huber's regression finds it although some cards lie
far above it. The rest is compared with the same slot in other machines, since the cards behind others get warmer air.
Where the other GPUs of its machine are too hot as well, the machine's air is the cause, and no card stands out.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import sub
from statistics import NormalDist, fmean, median, pstdev

from gpuwatch.detect.fleet import GpuAnswers, PhysicalGpu, peers_of

LEAST_GPUS = 10
"""GPUs of a model that a line takes: two numbers are fitted, and some cards may be faulty."""
LEAST_MACHINES = 3
"""Machines that they are on, and that have a slot, before a slot is compared."""
_LEAST_SPREAD_CELSIUS = 3.0
"""What healthy cards are credited with at least: sensors read whole degrees, and airflow differs."""


_CHANCE = 0.05
"""That any card of a healthy model stands out: of 1,000 cards one or two are three spreads above the line."""


@dataclass(frozen=True, slots=True)
class Excess:
    """Temperature beyond what its power explains, and the least that stands out. gpus: busy ones of the model, by which
    that is known."""

    celsius: float
    expected_celsius: float
    least_celsius: float
    gpus: int


def excess_heat(
    working: Iterable[PhysicalGpu], temperature: GpuAnswers, power: GpuAnswers, deviations: float
) -> Mapping[PhysicalGpu, Excess]:
    """Of the GPUs that are hotter than explained by more than so many spreads, or more where many are compared; none
    where too few of a model work."""
    measured: dict[Hashable, dict[PhysicalGpu, tuple[float, float]]] = defaultdict(dict)
    for gpu in working:
        celsius, watts = temperature.of(gpu), power.of(gpu)
        if gpu.model and celsius is not None and watts is not None:
            measured[gpu.lead.vendor, gpu.model][gpu] = (watts, celsius)
    found: dict[PhysicalGpu, Excess] = {}
    for cards in measured.values():
        if len(cards) >= LEAST_GPUS and len({gpu.home for gpu in cards}) >= LEAST_MACHINES:
            found.update(_of_model(cards, max(deviations, NormalDist().inv_cdf(1 - _CHANCE / len(cards)))))
    return {gpu: each for gpu, each in found.items() if each.celsius > each.least_celsius}


def _of_model(
    cards: Mapping[PhysicalGpu, tuple[float, float]], deviations: float
) -> Iterable[tuple[PhysicalGpu, Excess]]:
    watts, celsius = zip(*cards.values(), strict=True)
    left = dict(zip(cards, map(sub, celsius, _line(watts, celsius)), strict=True))
    # Before slots are compared: the median of few machines' slot is near each of them, so little would be left.
    spread = max(peers_of(list(left.values()), 0.0).spread, _LEAST_SPREAD_CELSIUS)
    by_slot: dict[str, list[float]] = defaultdict(list)
    by_home: dict[str, dict[PhysicalGpu, float]] = defaultdict(dict)
    for gpu, value in left.items():
        by_slot[gpu.lead.index].append(value)
    for gpu, value in left.items():
        slot = by_slot[gpu.lead.index]
        left[gpu] = value - max(median(slot) if gpu.lead.index and len(slot) >= LEAST_MACHINES else 0.0, 0.0)
        by_home[gpu.home][gpu] = left[gpu]
    for gpu, value in left.items():
        others = [other for each, other in by_home[gpu.home].items() if each is not gpu]
        if not others or median(others) <= spread:
            yield gpu, Excess(value, cards[gpu][1] - value, deviations * spread, len(cards))


def _line(watts: Sequence[float], celsius: Sequence[float]) -> list[float]:
    """The temperatures, in °C, that these powers explain."""
    from sklearn.linear_model import HuberRegressor  # takes a second, and small fleets never need it

    middle, spread = fmean(watts), pstdev(watts)
    if spread < 1.0:  # all draw the same, so there is no line to find
        return [median(celsius)] * len(celsius)
    scaled = [[(each - middle) / spread] for each in watts]
    return [float(each) for each in HuberRegressor(max_iter=1000).fit(scaled, celsius).predict(scaled)]
