"""Prevents two Remediations on one target at once, and keeps a back-off after one. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import takewhile

from gpuwatch.act.execute.policy import ExecutePolicy, doubled
from gpuwatch.facts.model.decision import ActionKind
from gpuwatch.facts.model.remediation import Phase, Proposal, Remediation

TAKEN_BACK = "taken_back"
"""In `Remediation.verified`: its owner, or a person who works on the Node, undid the action."""

FAILURE_BACKOFF_MAX_SECONDS = 16 * 86_400
"""A target whose Remediations fail is left alone for a day, then two, and at most for so long: five failures in a row
are no chance, and one try in two weeks is no burden."""


def left_alone(
    proposal: Proposal, known: Iterable[Remediation], seen_at: datetime, now: datetime, policy: ExecutePolicy
) -> str:
    """Why this may not be proposed now; '' if it may. seen_at: time of the facts. Facts from before the end of the last
    Remediation may show the fault that it repaired."""
    ended = []
    for each in known:
        if not same_target(proposal, each.proposal):
            continue
        if each.phase.open:
            return f"{each.name} is {each.phase}."
        if each.proposal.action is proposal.action:
            ended.append(each)
    if not ended:
        return ""
    ended.sort(key=lambda each: each.changed_at)
    last = ended[-1]
    quiet_until = last.changed_at + timedelta(seconds=_quiet_seconds(ended, proposal, policy))
    if now < quiet_until:
        return f"{last.name} is {last.phase}; it is left alone until {quiet_until:%Y-%m-%d %H:%M %Z}."
    return f"Its facts are from before {last.name} ended." if seen_at <= last.changed_at else ""


def _quiet_seconds(ended: list[Remediation], proposal: Proposal, policy: ExecutePolicy) -> int:
    last = ended[-1]
    in_a_row = len(list(takewhile(lambda each: each.phase is last.phase, reversed(ended))))
    if _declined(last):
        return 0 if _about_more(proposal, last.proposal) else policy.rejection_backoff_seconds
    match last.phase:
        case Phase.FAILED:
            return doubled(policy.failure_backoff_seconds, in_a_row, FAILURE_BACKOFF_MAX_SECONDS)
        case Phase.OBSOLETE | Phase.REFUSED | Phase.EXPIRED:
            return doubled(policy.obsolete_backoff_seconds, in_a_row, policy.rejection_backoff_seconds)
        case _:
            return 0  # the last one succeeded, so this is new


def _declined(remediation: Remediation) -> bool:
    if remediation.phase is Phase.UNDONE:
        return remediation.undo_asked or remediation.verified.get(TAKEN_BACK, False)
    return remediation.phase is Phase.REJECTED


def _about_more(proposal: Proposal, declined: Proposal) -> bool:
    """Whether it names a device or a detector that the declined proposal lacked. Never for a release: the owner decided
    to keep an idle workload, whichever rule finds it."""
    if proposal.action is ActionKind.RELEASE_GANG:
        return False
    return not (set(proposal.devices) <= set(declined.devices) and set(proposal.detectors) <= set(declined.detectors))


def same_target(mine: Proposal, other: Proposal) -> bool:
    """Whether both write to one object or disrupt one Pod. A tainted Node and a gang that leaves it do not conflict."""
    if mine.action is other.action and mine.target == other.target:
        return True
    if not set(mine.objects).isdisjoint(other.objects):
        return True
    if ActionKind.TAINT_NODE in (mine.action, other.action):
        return False
    return not set(mine.pod_uids).isdisjoint(other.pod_uids)


def occupied(remediation: Remediation, others: Iterable[Remediation]) -> str:
    """Which other Remediation is acting on the same target; '' if none."""
    busy = (each for each in others if each.phase.in_flight and same_target(remediation.proposal, each.proposal))
    return next((f"Remediation {each.name} acts on {each.proposal.target}." for each in busy), "")
