"""The troubles of one node, its cards and its exporter. Times are seconds from the window's start."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from lab.simulate.plan import Floats, Mask

Span: TypeAlias = tuple[float, float]


@dataclass(kw_only=True)
class CardScript:
    """`rates` and `steps` are added to counters; `states` replace a state's value."""

    absent: list[Span] = field(default_factory=list)
    hung: list[Span] = field(default_factory=list)
    xids: list[tuple[float, int]] = field(default_factory=list)
    hotter: list[tuple[float, float, float]] = field(default_factory=list)  # from, to, °C/W at the end ÷ normal
    rates: dict[str, list[tuple[float, float, float]]] = field(default_factory=lambda: defaultdict(list))
    steps: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    states: dict[str, list[tuple[float, float, float]]] = field(default_factory=lambda: defaultdict(list))
    watches: dict[str, list[tuple[float, float, float, str]]] = field(default_factory=lambda: defaultdict(list))
    counter_resets: list[float] = field(default_factory=list)  # the card was reset


@dataclass(kw_only=True)
class MachineScript:
    """A reboot resets every counter and restarts the exporter, which loses its XIDs."""

    cards: dict[int, CardScript] = field(default_factory=lambda: defaultdict(CardScript))
    exporter_down: list[Span] = field(default_factory=list)
    node_down: list[Span] = field(default_factory=list)
    brakes: list[Span] = field(default_factory=list)
    counter_resets: list[float] = field(default_factory=list)
    exporter_restarts: list[float] = field(default_factory=list)
    reboots: list[Span] = field(default_factory=list)
    unallocatable: list[tuple[float, float, int]] = field(default_factory=list)  # from, to, card

    def reboot(self, at: float, seconds: float = 480.0) -> None:
        self.exporter_down.append((at, at + seconds))
        self.reboots.append((at, at + seconds))
        self.counter_resets.append(at)
        self.exporter_restarts.append(at)


def inside(seconds: Floats, spans: list[Span]) -> Mask:
    """Samples in any of the spans [from, to)."""
    mask = np.zeros(len(seconds), dtype=bool)
    for begin, end in spans:
        mask |= (seconds >= begin) & (seconds < end)
    return mask


def held(seconds: Floats, values: list[tuple[float, float, float]]) -> Floats:
    """A state over time: the value of the last span that covers the sample, 0 elsewhere."""
    state = np.zeros(len(seconds))
    for begin, end, value in values:
        state[(seconds >= begin) & (seconds < end)] = value
    return state
