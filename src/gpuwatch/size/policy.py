"""The bounds of right-sizing, each with its unit and the reason for its default."""

from dataclasses import dataclass

from gpuwatch.facts.catalog.gpus import gpus
from gpuwatch.facts.model.bounds import named, require
from gpuwatch.size.image import built_for


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
