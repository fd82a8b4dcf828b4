"""The bounds of the fleet MIG plan, each with the reason for its default."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MigPlanPolicy:
    """How far the fleet MIG plan may go.

    move_tenants: whether a Pod that needs exactly the slice it has may be moved to save a GPU. Fewest GPUs come
        first, so yes; such Pods are listed (`MigPlan.moved`), and of plans with as few GPUs the one that moves and
        cuts least is taken.
    protected_priority: Pods at or above it are never moved for others (2,000,000,000: the system-critical classes).
    nodes_per_batch: Nodes that are drained together. One: a cut takes minutes, a mistake in it costs one Node.
    displaced_pods_per_batch: a batch of several Nodes displaces no more Pods than this.
    """

    move_tenants: bool = True
    protected_priority: int = 2_000_000_000
    nodes_per_batch: int = 1
    displaced_pods_per_batch: int = 32

    def __post_init__(self) -> None:
        for name in ("nodes_per_batch", "displaced_pods_per_batch"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"mig_plan.{name} is {value!r}; it has to be 1 or more")
