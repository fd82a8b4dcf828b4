"""How much of the free GPU capacity the demand cannot use, after FGD.

Weng et al., 'Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent', USENIX
ATC 2023: the fragmentation of a GPU is what it has free, times the probability that a demand drawn from the workload
mix cannot run there; that of the fleet is the sum. Here the free capacity is memory slices, and what can run on a GPU
in use is what its free instances are: the others would need it empty, and cut anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """One GPU. share: of its memory slices, what nobody holds (0 to 1). serves: profiles that could start there now
    ('' for a whole GPU). mix: profile → how many ask for it."""

    share: float
    serves: frozenset[str]
    mix: Mapping[str, int]


def fragmentation_ratio(gpus: Iterable[Free]) -> float | None:
    """The share of the free capacity that a demand of the mix cannot use, on average; None where nothing is free."""
    free = unusable = 0.0
    for gpu in gpus:
        asked = sum(gpu.mix.values())
        if not asked:
            continue
        free += gpu.share
        unusable += gpu.share * sum(count for name, count in gpu.mix.items() if name not in gpu.serves) / asked
    return unusable / free if free > 0 else None
