"""What was done about findings, for the weekly report. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuwatch.model.decision import ActionKind
from gpuwatch.model.remediation import Phase, Remediation
from gpuwatch.model.weekly import ActionTaken, WeeklyReport
from gpuwatch.report.words import plural

BECAME = {
    Phase.PROPOSED: "waits for approval",
    Phase.NOTIFIED: "owners notified",
    Phase.ACTING: "under way",
    Phase.VERIFYING: "done, not verified yet",
    Phase.IN_EFFECT: "done, and stands",
    Phase.UNDOING: "being taken back",
    Phase.SUCCEEDED: "done",
    Phase.FAILED: "failed",
    Phase.UNDONE: "taken back",
    Phase.REJECTED: "rejected",
    Phase.EXPIRED: "expired",
    Phase.REFUSED: "refused",
    Phase.OBSOLETE: "obsolete",
}
"""Each phase as what became of it."""

_DONE = frozenset({Phase.VERIFYING, Phase.IN_EFFECT, Phase.SUCCEEDED})
_TAKEN_BACK = frozenset({Phase.UNDOING, Phase.UNDONE})
_NEVER = frozenset({Phase.REJECTED, Phase.EXPIRED, Phase.REFUSED, Phase.OBSOLETE})

NOT_READ = "What was done is not known: no Remediations were read (give a cluster, or --state FILE)."
NOTHING = "Nothing was proposed."
OBSERVED = "Nothing was proposed: mode observe."


def actions_in(known: Sequence[Remediation], start: datetime, end: datetime) -> tuple[ActionTaken, ...]:
    """Those that were proposed, changed, or stood within (start, end], newest first."""
    found = [_taken(each, start, end) for each in known if _concerns(each, start, end)]
    return tuple(sorted(found, key=lambda item: (item.proposed_at, item.name), reverse=True))


def _concerns(remediation: Remediation, start: datetime, end: datetime) -> bool:
    return remediation.proposal.created_at <= end and (remediation.phase.open or _changed(remediation) > start)


def _changed(remediation: Remediation) -> datetime:
    return remediation.history[-1].at if remediation.history else remediation.proposal.created_at


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
        approved_by=(remediation.approved_by or "somebody") if remediation.approved else "",
        proposed_at=proposal.created_at,
        changed_at=_changed(remediation),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many of each; `sentence` has them in words."""

    done: int
    taken_back: int
    failed: int
    never: int
    coming: int
    released_gpu_hours: float

    @property
    def sentence(self) -> str:
        told = [
            f"{count} {what}"
            for count, what in (
                (self.done, "done"),
                (self.taken_back, "taken back"),
                (self.failed, "failed"),
                (self.never, "not done"),
                (self.coming, "still to come"),
            )
            if count
        ]
        count = self.done + self.taken_back + self.failed + self.never + self.coming
        released = f" Releases gave others {self.released_gpu_hours:,.1f} GPU-hours." if self.released_gpu_hours else ""
        return f"{plural(count, 'action')}: {', '.join(told)}.{released}"


def tally(actions: Sequence[ActionTaken]) -> Tally:
    counts = Counter(item.phase for item in actions)

    def among(phases: frozenset[Phase]) -> int:
        return sum(counts[phase] for phase in phases)

    failed = counts[Phase.FAILED]
    done, back, never = among(_DONE), among(_TAKEN_BACK), among(_NEVER)
    return Tally(
        done=done,
        taken_back=back,
        failed=failed,
        never=never,
        coming=len(actions) - done - back - never - failed,
        released_gpu_hours=sum(item.released_gpu_hours for item in actions),
    )


def actions_line(report: WeeklyReport) -> str:
    """All of them in a sentence, or why there are none."""
    return tally(report.actions).sentence if report.actions else report.actions_note or NOT_READ
