"""The bounds of the misfit rules, each with its unit, its source and the reason for its default."""

from __future__ import annotations

from dataclasses import dataclass, fields

_HOUR = 3600
_DAY = 24 * _HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class MisfitPolicy:
    """When Pods are in each other's way.

    window_seconds: time over which traffic is judged, and for which Pods must have shared a GPU. 1 h: a move costs
        more than a busy quarter of an hour.
    min_coverage_ratio: share of the window's samples without which nothing is said. 0.8, as for idleness.
    dram_peak_ratio: DRAM activity that kernels reach at most. 0.8: NVIDIA's guide to DCGM's profiling metrics; 1.0
        would be a transfer in every cycle.
    pcie_peak_ratio: share of a link's rate (after its encoding) that is left for packets, which is what DCGM counts
        (headers and payload). 0.92: 57.88 of 62.96 Gbit/s, the rest are flow control and acknowledgements
        (Neugebauer et al., SIGCOMM 2018).
    saturated_ratio: share of such a peak from which a GPU is at it. 0.9: peaks of single GPUs and access patterns
        differ by as much; the queue at nine tenths of a capacity is long already.
    """

    window_seconds: int = _HOUR
    min_coverage_ratio: float = 0.8
    dram_peak_ratio: float = 0.8
    pcie_peak_ratio: float = 0.92
    saturated_ratio: float = 0.9

    def __post_init__(self) -> None:
        for name in (item.name for item in fields(self)):
            value = getattr(self, name)
            if name.endswith("_ratio") and not 0 < value <= 1:
                raise ValueError(f"misfit.{name} is {value!r}; it has to be a ratio above 0 and up to 1")
            if name.endswith("_seconds") and not 0 < value <= _DAY:
                raise ValueError(f"misfit.{name} is {value!r}; it has to be seconds, above 0 and within a day")
