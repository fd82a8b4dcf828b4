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
    forget_days: how long hours and days of use are kept, and the profile of a workload that is no longer seen: five
        weeks hold a month and the week before it.
    """

    half_life_hours: float = 72.0
    start_up_seconds: int = 600
    forget_days: int = 35

    def __post_init__(self) -> None:
        require(
            self,
            "profiles.",
            ("half_life_hours", "forget_days"),
            lambda value: 0 < value < float("inf"),
            "greater than 0",
        )
        require(self, "profiles.", ("start_up_seconds",), lambda value: value >= 0, "0 or more")
