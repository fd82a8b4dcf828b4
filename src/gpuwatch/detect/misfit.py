"""Misplaced Pods: those that contend for a shared GPU, and gangs that span too many domains."""

from collections.abc import Mapping, Sequence

from gpuwatch.detect.contention import Contention, MisfitPolicy, contention_needs
from gpuwatch.detect.scattered import scattered
from gpuwatch.model.decision import Finding, FindingKind, Snapshot
from gpuwatch.model.telemetry import WindowStat

__all__ = ["MisfitPolicy", "assess_misfit", "needs_of_rules"]


def needs_of_rules(policy: MisfitPolicy) -> Mapping[str, tuple[WindowStat, ...]]:
    """The statistics that each rule (`Finding.rule`) reads; `scattered` reads none."""
    return {**contention_needs(policy), f"misfit.{FindingKind.SCATTERED}": ()}


def assess_misfit(
    snapshot: Snapshot, policy: MisfitPolicy, topology_labels: Sequence[str], *, everything: bool = False
) -> tuple[Finding, ...]:
    """Findings of verdict MISFIT; with `everything`, HEALTHY and UNKNOWN ones too.

    topology_labels: Node labels whose value names a domain, `PlanPolicy.topology_labels`.
    """
    return (
        *Contention(snapshot, policy, everything=everything).findings(),
        *scattered(snapshot, topology_labels, everything=everything),
    )
