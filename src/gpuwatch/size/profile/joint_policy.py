"""The bounds of profiling, each with its unit and the reason for its default."""

from dataclasses import dataclass

from gpuwatch.facts.model.bounds import require


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePolicy:
    """How windows become profiles.

    half_life_hours: age at which a window counts half. 72: after a week the profile of a changed workload is mostly
        new, and a weekend does not erase the working week (the Vertical Pod Autoscaler halves CPU daily, which forgets
        Friday on Monday).
    start_up_seconds: the first part of each run, left out of the cells: images are pulled, models load, and speed does
        not matter. 600: start-up of large models takes up to that.
    max_runs: newest runs whose memory peaks are kept. max_cells: of the joint histogram; beyond it the grid is made
        coarser. 96 cells are some kilobytes.
    usage_days: how long hours and days of use are kept: five weeks hold a month and the week before it.
    forget_days: a workload that was not seen for so long loses its profile.
    idle_busy_ratio: engine activity up to which a board's power is idle power. 0.001: the step of DCGM's counter.
    """

    half_life_hours: float = 72.0
    start_up_seconds: int = 600
    max_runs: int = 20
    max_cells: int = 96
    usage_days: int = 35
    forget_days: int = 35
    idle_busy_ratio: float = 0.001

    def __post_init__(self) -> None:
        counts = ("half_life_hours", "max_runs", "max_cells", "usage_days", "forget_days")
        require(self, "profiles.", counts, lambda value: 0 < value < float("inf"), "greater than 0")
        require(self, "profiles.", ("start_up_seconds",), lambda value: value >= 0, "0 or more")
        require(self, "profiles.", ("idle_busy_ratio",), lambda value: 0 <= value <= 1, "a ratio from 0 to 1")
