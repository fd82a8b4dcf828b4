"""The custom resources of gpuwatch.dev/v1alpha1. tools/crds.py writes their definitions from these classes and from the
descriptions in crd_fields.yaml.

The conditions of a Remediation, as for `kubectl wait --for=condition=Finished`, are not read back: they follow from the
Remediation, and their transition times from its history."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from gpuwatch.facts.model.decision import Mode
from gpuwatch.facts.model.remediation import Phase, Proposal, Remediation, RemediationId, Saved, Step, Turn, misplaced
from gpuwatch.facts.model.sizing import AbstentionKind
from gpuwatch.sources.store.api_form import FormError

GROUP = "gpuwatch.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
ADVISED = "Advised"
"""The condition of a WorkloadProfile."""

NODE_KIND = "NodeRemediation"
KIND = "Remediation"
PROFILE_KIND = "WorkloadProfile"
CHECKPOINT_KIND = "Checkpoint"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediationSpec:
    """The proposal, written once by gpuwatch, and people's decisions."""

    proposal: Proposal
    approved: bool = False
    approved_by: str = ""
    rejected: bool = False
    undo: bool = False
    finding_correct: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediationStatus:
    """The progress, written only by gpuwatch. observed_generation and conditions are for other readers: gpuwatch
    derives them and never reads them."""

    observed_generation: int = 0
    conditions: tuple[ApiCondition, ...] = ()
    phase: Phase
    steps: tuple[Step, ...] = ()
    step: int = 0
    saved: tuple[Saved, ...] = ()
    history: tuple[Turn, ...] = ()
    next_at: datetime | None = None
    deadline_at: datetime | None = None
    attempts: int = 0
    verified: Mapping[str, bool] = field(default_factory=dict)
    clean_since: datetime | None = None
    undo_to: Phase | None = None


def parts_of(remediation: Remediation, generation: int = 0) -> tuple[RemediationSpec, RemediationStatus]:
    """The parts of a new object: without decisions. generation: of the object, for the conditions; 0 without an
    object."""
    status = RemediationStatus(
        observed_generation=generation,
        conditions=conditions(remediation, generation) if generation else (),
        **_progress(remediation),
    )
    return RemediationSpec(proposal=remediation.proposal), status


def _progress(of: Remediation | RemediationStatus) -> dict[str, Any]:
    """The fields that a Remediation and its status share: all but those for other readers."""
    names = {each.name for each in fields(RemediationStatus)} - {"observed_generation", "conditions"}
    return {name: getattr(of, name) for name in names}


def remediation_of(at: RemediationId, version: str, spec: RemediationSpec, status: RemediationStatus) -> Remediation:
    """Raises FormError when an object in this Namespace must not be acted on (`misplaced`)."""
    namespace, _, name = at.rpartition("/")
    found = Remediation(
        name=name,
        proposal=spec.proposal,
        approved=spec.approved,
        approved_by=spec.approved_by,
        rejected=spec.rejected,
        undo_asked=spec.undo,
        finding_correct=spec.finding_correct,
        **_progress(status),
        version=version,
    )
    if wrong := misplaced(found, namespace):
        raise FormError(wrong)
    return found


def said_correct(finding_correct: bool) -> dict[str, bool]:
    """The patch of spec; False does not overwrite an earlier True."""
    return {"findingCorrect": True} if finding_correct else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProfileSpec:
    workload: str
    container: str
    gpu_model: str
    mig_profile: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    at: datetime
    target: str
    resource: str = ""
    speed_low_ratio: float
    speed_likely_ratio: float
    projected_saving_per_week: float | None = None
    currency: str = ""
    saving_gpu_hours_per_week: float = 0.0
    confidence_ratio: float
    message: str
    patch: str = ""
    prerequisites: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRecommended:
    at: datetime
    reason: AbstentionKind
    message: str
    resolve: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProfileStatus:
    observed_generation: int = 0
    conditions: tuple[ApiCondition, ...] = ()
    as_of: datetime | None = None
    first_seen: datetime | None = None
    last_seen: datetime | None = None
    coverage_ratio: float | None = None
    observed_gpu_hours: float | None = None
    gpus_per_pod: int | None = None
    busy_ratio: float | None = None
    memory_peak_bytes: int | None = None
    recommendation: Recommended | None = None
    abstention: NotRecommended | None = None


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
