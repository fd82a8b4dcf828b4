"""Which Pods work in the wrong place: in each other's way, or far from each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuwatch.detect.contention import Contention, MisfitPolicy, contention_needs
from gpuwatch.detect.scattered import scattered
from gpuwatch.model.decision import Finding, FindingKind, Snapshot
from gpuwatch.model.telemetry import WindowStat

__all__ = ["MisfitPolicy", "assess_misfit", "needs", "needs_of_rules"]


def needs(policy: MisfitPolicy) -> tuple[WindowStat, ...]:
    """Every statistic that some rule asks for, once."""
    return tuple(dict.fromkeys(stat for stats in needs_of_rules(policy).values() for stat in stats))


def needs_of_rules(policy: MisfitPolicy) -> Mapping[str, tuple[WindowStat, ...]]:
    """What each rule (`Finding.rule`) looks up in Readings; scattered gangs are seen in the cluster alone."""
    return {**contention_needs(policy), f"misfit.{FindingKind.SCATTERED}": ()}


def assess_misfit(
    snapshot: Snapshot, policy: MisfitPolicy, topology_labels: Sequence[str], *, everything: bool = False
) -> tuple[Finding, ...]:
    """Findings of verdict MISFIT. With `everything`, what was looked at and is well, or cannot be told, too.

    topology_labels: Node labels whose value names a domain, `PlanPolicy.topology_labels`.
    """
    return (
        *Contention(snapshot, policy, everything=everything).findings(),
        *scattered(snapshot, topology_labels, everything=everything),
    )
