"""The bounds of profiles and of right-sizing, each with its unit and the reason for its default."""

from dataclasses import dataclass

from gpuwatch.facts.catalog.gpus import gpus
from gpuwatch.facts.model.bounds import named, require
from gpuwatch.size.capability import built_for


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvicePolicy:
    """What is needed before something is advised, and what an advised target has to keep.

    target_speed_ratio: speed on the target relative to now that the pessimistic end of the estimate has to reach.
        0.9: the bound at which the published predictors were compared (MISO's measurements on A100 slices).
    min_coverage_ratio: usable share of the allocated time; below it the measured part may be the quiet part (krr
        refuses too).
    min_observed_hours, min_runs: hours of samples and Pods seen before a job is sized.
    min_serving_days: days of one Pod of a service that replace min_runs: a day has its peak hour, and three days
        distinguish it from a busy day.
    penalty_ratio: cost of missing the target speed, as a multiple of the workload's present cost. 1: the work is done
        once more as before.
    min_saving_ratio, min_saving_gpu_hours_per_week: a change that saves less is not worth a restart: 5 %, and half a
        working day of one GPU.
    max_partners: Pods on one shared device; they have no fault isolation from each other.
    allow_vendor_change, allow_arm_hosts, allow_older_architecture: whether a target that needs another container
        image, or lacks BF16 while the present card has it, may be advised.
    compute_capabilities: those on which every workload's image runs, such as ["8.0", "12.0"] (an architecture for other
        vendors' GPUs); advice to such a GPU has no condition.
    """

    target_speed_ratio: float = 0.9
    min_coverage_ratio: float = 0.6
    min_observed_hours: float = 3.0
    min_runs: int = 2
    min_serving_days: float = 3.0
    penalty_ratio: float = 1.0
    min_saving_ratio: float = 0.05
    min_saving_gpu_hours_per_week: float = 4.0
    max_partners: int = 4
    allow_vendor_change: bool = False
    allow_arm_hosts: bool = False
    allow_older_architecture: bool = False
    compute_capabilities: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ratios = [name for name in named(self, "_ratio") if name != "penalty_ratio"]
        require(self, "advice.", ratios, lambda value: 0 <= value <= 1, "a ratio from 0 to 1")
        amounts = ("penalty_ratio", "min_observed_hours", "min_serving_days", "min_saving_gpu_hours_per_week")
        require(self, "advice.", amounts, lambda value: 0 <= value < float("inf"), "a finite number, 0 or more")
        require(self, "advice.", ("min_runs",), lambda value: value >= 1, "1 or more")
        known = "compute capabilities of GPU models, such as '8.0'"
        require(self, "advice.", ("compute_capabilities",), lambda names: {*names} <= {*map(built_for, gpus())}, known)
        require(self, "advice.", ("max_partners",), lambda value: value >= 2, "2 or more")


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


def rounded_apart(one: float, other: float, digits: int = 2) -> tuple[str, str]:
    """Both with the fewest decimals that show the difference, from `digits` to 6.

    >>> rounded_apart(0.847, 0.9), rounded_apart(0.8991, 0.9)
    (('0.85', '0.90'), ('0.899', '0.900'))
    >>> rounded_apart(10.02, 9.98, digits=1), rounded_apart(2.0, 2.0)
    (('10.02', '9.98'), ('2.00', '2.00'))
    """
    alike = f"{one:.{digits}f}", f"{other:.{digits}f}"
    for more in range(digits, 7):
        texts = f"{one:.{more}f}", f"{other:.{more}f}"
        if texts[0] != texts[1]:
            return texts
    return alike
