"""Whose target is whose: two Remediations never act on one at once. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from gpuwatch.model.decision import ActionKind
from gpuwatch.model.remediation import Proposal, Remediation


def same_target(mine: Proposal, other: Proposal) -> bool:
    """Would both write to one object, or disturb one Pod? A tainted Node and the gang that moves off it are two."""
    if mine.action is other.action and mine.target == other.target:
        return True
    if not set(mine.objects).isdisjoint(other.objects):
        return True
    if ActionKind.TAINT_NODE in (mine.action, other.action):
        return False
    return not set(mine.pod_uids).isdisjoint(other.pod_uids)


def occupied(remediation: Remediation, others: Iterable[Remediation]) -> str:
    """Which other one is at work on the same target; '' where none is."""
    for other in others:
        if other.phase.in_flight and same_target(remediation.proposal, other.proposal):
            return f"Remediation {other.name} is at work on {other.proposal.target}."
    return ""
