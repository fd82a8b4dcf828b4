"""The bounds of profiling, each with its unit and the reason for its default."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePolicy:
    """How windows become profiles.

    half_life_hours: after so long a window counts half. 72: a workload that changed is mostly its new self after a
        week, and a weekend does not wipe out the working week (the Vertical Pod Autoscaler halves CPU daily, which
        forgets Friday on Monday).
    start_up_seconds: the first part of each run, left out of the cells: images are pulled, models load, nothing that
        happens then needs to be fast. 600: start-up takes up to that on large models.
    max_runs: newest runs whose memory peaks are kept. max_cells: of the joint histogram; beyond it the grid is made
        coarser. 96 cells are some kilobytes.
    usage_days: how long hours and days of use are kept: five weeks hold a month and the week before it.
    forget_days: a workload that was not seen for so long loses its profile.
    idle_busy_ratio: engine activity up to which a board's power counts as that of an idle one; DCGM shows activity
        in per mille.
    """

    half_life_hours: float = 72.0
    start_up_seconds: int = 600
    max_runs: int = 20
    max_cells: int = 96
    usage_days: int = 35
    forget_days: int = 35
    idle_busy_ratio: float = 0.001

    def __post_init__(self) -> None:
        for name in ("half_life_hours", "max_runs", "max_cells", "usage_days", "forget_days"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"profiles.{name} is {value!r}; it has to be greater than 0")
        if self.start_up_seconds < 0:
            raise ValueError(f"profiles.start_up_seconds is {self.start_up_seconds!r}; it has to be 0 or more")
        if not 0 <= self.idle_busy_ratio <= 1:
            raise ValueError(f"profiles.idle_busy_ratio is {self.idle_busy_ratio!r}; it has to be a ratio from 0 to 1")
