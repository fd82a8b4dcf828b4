"""The bounds of planning, each with its unit and the reason for its default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from gpuwatch.model.decision import ActionKind, Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPolicy:
    """How much may be planned at once, and what is never planned.

    modes: what may be done with an admitted action, per kind. Everything starts at `observe`.
    horizon_hours: over which gain and disruption are added up. A day: long enough that a repair pays, short
        enough that nobody has to believe in a forecast.
    min_confidence_ratio: findings below it are shown, never planned. 0.8 leaves out single weak signals.
    min_score: of the pool; 0 means that the expected gain has to exceed the expected disruption.
    budget_ratio and budget_min_gpus: share of a pool and of a GPU model that may be out of service or disturbed at
        once, whoever caused it; the absolute floor (one node of 8) because a share alone blocks small pools for ever
        (karpenter #2134), the share because a count alone grows harmless in large ones.
    min_pool_nodes_left: schedulable Nodes of a pool that planning never goes below.
    storm_ratio and storm_min_gpus: when more GPUs than both look degraded at once, the observer is the likelier
        patient (karpenter #2811: 'inadvertently marked healthy nodes as unhealthy'): everything is refused.
    idle_storm_ratio: the same for idle GPUs, as a share of the held ones; a broken exporter looks like idleness.
    min_coverage_ratio: share of the known devices that report now, below which everything is refused.
    restart_cost_cap_hours: what a restart is taken to cost at most per GPU where the last checkpoint is unknown;
        the Pod's age is the estimate (without a checkpoint all of it is lost).
    repair_hours: how long a fenced Node stays away: 20 h, the median of 584 repairs (InfiniteHBD trace).
    protected_priority: Pods at or above it are never disturbed (2,000,000,000: the system-critical classes).
    """

    modes: Mapping[ActionKind, Mode] = field(default_factory=dict)
    horizon_hours: float = 24.0
    min_confidence_ratio: float = 0.8
    min_score: float = 0.0
    budget_ratio: float = 0.1
    budget_min_gpus: int = 8
    min_pool_nodes_left: int = 1
    storm_ratio: float = 0.2
    storm_min_gpus: int = 16
    idle_storm_ratio: float = 0.8
    min_coverage_ratio: float = 0.5
    restart_cost_cap_hours: float = 24.0
    repair_hours: float = 20.0
    protected_priority: int = 2_000_000_000

    def __post_init__(self) -> None:
        for name in (item.name for item in fields(self) if item.name.endswith("_ratio")):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"plan.{name} is {value!r}; it has to be a ratio from 0 to 1")
        for name in ("horizon_hours", "restart_cost_cap_hours", "repair_hours"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"plan.{name} is {value!r}; it has to be a number of hours above 0")
        for name in ("budget_min_gpus", "storm_min_gpus", "min_pool_nodes_left"):
            value = getattr(self, name)
            if value < 0:
                raise ValueError(f"plan.{name} is {value!r}; it has to be 0 or more")

    def mode(self, action: ActionKind) -> Mode:
        return self.modes.get(action, Mode.OBSERVE)
