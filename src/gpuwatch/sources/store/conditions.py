"""Conditions of a Remediation, as for `kubectl wait --for=condition=Finished`. Pure. They are not stored: they follow
from the Remediation, and their transition times from its history."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpuwatch.facts.model.decision import Mode
from gpuwatch.facts.model.remediation import Phase, Remediation

PENDING = "Pending"
MAX_MESSAGE = 32768
"""Characters of a message, the limit of metav1.Condition."""


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCondition:
    """As metav1.Condition."""

    type: str
    status: ConditionStatus
    observed_generation: int = 0
    last_transition_time: datetime
    reason: str
    message: str


MEANINGS: Mapping[str, str] = {
    "Approved": "a person approved it, or the mode asks for no approval",
    "Applied": "all writes are done and were not undone",
    "Verified": "the writes had their effect",
    "Finished": "it has ended; the reason is the final phase",
    "Overdue": "a stopped gang does not run again in time, and a person was called",
}
"""Meaning of each condition when it is True."""

TYPES = tuple(MEANINGS)

_Verdict = tuple[ConditionStatus, str, str]
"""Status, reason and message."""

_CALLED = "PersonCalled"
_NOTHING_YET = "Nothing is written yet."
_UNWRITTEN = (Phase.REJECTED, Phase.EXPIRED, Phase.REFUSED, Phase.OBSOLETE)


def conditions(remediation: Remediation, generation: int) -> tuple[ApiCondition, ...]:
    """generation: of the object that was read. An approval has the time of the first phase after it, because the object
    does not have its own time."""
    turns = remediation.history
    phases = [Phase.PROPOSED, *(turn.phase for turn in turns)]
    times = [remediation.proposal.created_at, *(turn.at for turn in turns)]
    if phases[-1] is not remediation.phase:  # the history lacks the last turn and so its time
        phases, times = [*phases, remediation.phase], [*times, times[-1]]
    last = len(phases)
    course = [_at(remediation, phases[:upto], now=upto == last) for upto in range(1, last + 1)]
    found = []
    for name, (status, reason, message) in course[-1].items():
        since = last - 1
        while since and course[since - 1][name][0] is status:
            since -= 1
        found.append(
            ApiCondition(
                type=name,
                status=status,
                observed_generation=generation,
                last_transition_time=(remediation.called_at if reason == _CALLED else None) or times[since],
                reason=reason,
                message=message[:MAX_MESSAGE],
            )
        )
    return tuple(found)


def _at(remediation: Remediation, phases: Sequence[Phase], *, now: bool) -> Mapping[str, _Verdict]:
    """Conditions after these phases. now: these are all phases, so that people's decisions count."""
    why = remediation.history[-1].message if now and remediation.history else ""
    verdicts = (
        _approved(remediation, phases, why, now=now),
        _applied(phases, why),
        _verified(phases, why),
        _finished(phases, why),
        _overdue(remediation, why, now=now),
    )
    return dict(zip(TYPES, verdicts, strict=True))


def _approved(remediation: Remediation, phases: Sequence[Phase], why: str, *, now: bool) -> _Verdict:
    phase = phases[-1]
    if remediation.rejected and now:
        return ConditionStatus.FALSE, "Rejected", "A person rejected it."
    if remediation.approved and (now or phase is not Phase.PROPOSED):
        return ConditionStatus.TRUE, "Approved", f"Approved by {remediation.approved_by or 'a person'}."
    if phase is Phase.PROPOSED:
        if remediation.proposal.mode is Mode.ENFORCE and len(phases) == 1:
            return ConditionStatus.UNKNOWN, PENDING, "It is not evaluated yet."
        return ConditionStatus.FALSE, "AwaitingApproval", why or "It waits for a person's approval."
    if remediation.proposal.mode is Mode.ENFORCE and phase is not Phase.REJECTED:
        return ConditionStatus.TRUE, "Enforced", "The mode Enforce asks for no approval."
    return ConditionStatus.FALSE, str(phase), why


def _applied(phases: Sequence[Phase], why: str) -> _Verdict:
    before = _before_undoing(phases)
    phase = before[-1]
    if phase is Phase.ACTING:
        return ConditionStatus.FALSE, "Acting", why
    # True when the writes were undone, or the Remediation failed while undoing.
    ended = phase in (Phase.UNDONE, *_UNWRITTEN) or (phase is Phase.FAILED and Phase.UNDOING in phases)
    if phase is Phase.SUCCEEDED or (Phase.VERIFYING in before and not ended):
        return ConditionStatus.TRUE, "Applied", "All writes are done."
    if not phase.open:
        return ConditionStatus.FALSE, str(phase), why
    return ConditionStatus.FALSE, PENDING, _NOTHING_YET


def _verified(phases: Sequence[Phase], why: str) -> _Verdict:
    phase = _before_undoing(phases)[-1]
    if phase in (Phase.IN_EFFECT, Phase.SUCCEEDED):
        return ConditionStatus.TRUE, "Verified", why
    if phase is Phase.VERIFYING:
        return ConditionStatus.UNKNOWN, "Verifying", why
    if phase.open:
        return ConditionStatus.UNKNOWN, PENDING, _NOTHING_YET
    return ConditionStatus.FALSE, str(phase), why


def _before_undoing(phases: Sequence[Phase]) -> Sequence[Phase]:
    """An action counts as before until its undo is complete."""
    upto = len(phases)
    while upto > 1 and phases[upto - 1] is Phase.UNDOING:
        upto -= 1
    return phases[:upto]


def _overdue(remediation: Remediation, why: str, *, now: bool) -> _Verdict:
    if now and remediation.overdue:
        return ConditionStatus.TRUE, _CALLED, why
    return ConditionStatus.FALSE, "InTime", "No stopped gang is overdue."


def _finished(phases: Sequence[Phase], why: str) -> _Verdict:
    phase = phases[-1]
    if phase.open:
        return ConditionStatus.FALSE, str(phase), why or "It was proposed."
    return ConditionStatus.TRUE, str(phase), why
