"""The actions on findings, for the weekly report. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from gpuwatch.facts.model.decision import ActionKind
from gpuwatch.facts.model.remediation import Phase, Remediation
from gpuwatch.facts.model.weekly import ActionTaken

NOT_READ = "It is not known what was done: no Remediations were read. Give the cluster that stores them."
NOTHING = "Nothing was proposed."
OBSERVED = "Nothing was proposed: mode observe."


def actions_in(known: Sequence[Remediation], start: datetime, end: datetime) -> tuple[ActionTaken, ...]:
    """Actions that were proposed, changed or in effect within (start, end], newest first."""
    found = [
        _taken(each, start, end)
        for each in known
        if each.proposal.created_at <= end and (each.phase.open or each.changed_at > start)
    ]
    return tuple(sorted(found, key=lambda item: (item.proposed_at, item.name), reverse=True))


def _taken(remediation: Remediation, start: datetime, end: datetime) -> ActionTaken:
    proposal = remediation.proposal
    return ActionTaken(
        name=remediation.name,
        action=proposal.action,
        target=proposal.target,
        namespace=proposal.namespace,
        pool=proposal.pool,
        gpus=proposal.gpus,
        mode=proposal.mode,
        approved_by=(remediation.approved_by or "a person") if remediation.approved else "",
        proposed_at=proposal.created_at,
        changed_at=remediation.changed_at,
        phase=remediation.phase,
        reason=proposal.reason,
        said=remediation.history[-1].message if remediation.history else proposal.reason,
        detectors=proposal.detectors,
        released_gpu_hours=_released_gpu_hours(remediation, start, end),
    )


def _released_gpu_hours(remediation: Remediation, start: datetime, end: datetime) -> float:
    if remediation.proposal.action is not ActionKind.RELEASE_GANG:
        return 0.0
    total, since = 0.0, None
    for turn in remediation.history:
        if turn.phase is Phase.IN_EFFECT:
            since = since or turn.at
        elif since is not None:
            total += _hours(max(since, start), min(turn.at, end))
            since = None
    if since is not None:
        total += _hours(max(since, start), end)
    return total * remediation.proposal.gpus


def _hours(since: datetime, until: datetime) -> float:
    return max((until - since) / timedelta(hours=1), 0.0)
