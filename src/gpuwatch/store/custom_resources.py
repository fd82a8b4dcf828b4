"""The custom resources of gpuwatch.dev/v1alpha1, part by part. tools/crds.py writes their definitions from these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpuwatch.model.remediation import (
    Phase,
    Proposal,
    Remediation,
    RemediationId,
    Saved,
    Step,
    Turn,
    misplaced,
)
from gpuwatch.model.sizing import AbstentionKind
from gpuwatch.store.api_fields import doc
from gpuwatch.store.api_form import FormError
from gpuwatch.store.conditions import CONDITIONS_LIST, ApiCondition, conditions

GROUP = "gpuwatch.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
ADVISED = "Advised"
"""The condition of a WorkloadProfile."""


NODE_KIND = "NodeRemediation"
KIND = "Remediation"
PROFILE_KIND = "WorkloadProfile"
CHECKPOINT_KIND = "Checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediationSpec:
    """What is proposed, written once by gpuwatch, and what people decided about it."""

    proposal: Proposal = field(metadata=doc("What is to be done and why. It cannot be changed."))
    approved: bool = field(default=False, metadata=doc("Set true to have it done."))
    approved_by: str = field(
        default="", metadata=doc("Who approved it: empty, or the name that the API server knows the approver by.")
    )
    rejected: bool = field(default=False, metadata=doc("Set true to have it never done."))
    undo: bool = field(default=False, metadata=doc("Set true to have what was done undone."))
    finding_correct: bool = field(
        default=False,
        metadata=doc(
            "Set true where the finding was correct although this was rejected or undone. It does not count against "
            "its detectors then."
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediationStatus:
    """Its course, written by gpuwatch alone. observed_generation and conditions follow from the rest: they are written
    for others, and never read."""

    observed_generation: int = field(
        default=0, metadata=doc("The metadata.generation that this status was written for.", minimum=0)
    )
    conditions: tuple[ApiCondition, ...] = field(
        default=(),
        metadata=doc(
            "Approved; Applied, once all writes are done; Verified, once they had their effect; and Finished.",
            **CONDITIONS_LIST,
        ),
    )
    phase: Phase = field(metadata=doc("Where it is, in one word. The conditions say it for machines."))
    steps: tuple[Step, ...] = field(default=(), metadata=doc("The writes that it consists of, in their order."))
    step: int = field(default=0, metadata=doc("How many of the steps are done."))
    saved: tuple[Saved, ...] = field(default=(), metadata=doc("What fields were before they were changed."))
    history: tuple[Turn, ...] = field(default=(), metadata=doc("What happened to it, oldest first."))
    next_at: datetime | None = field(default=None, metadata=doc("Before it nothing is done.", "nextStepTime"))
    deadline_at: datetime | None = field(
        default=None, metadata=doc("When the phase ends at the latest.", "deadlineTime")
    )
    attempts: int = field(default=0, metadata=doc("How often it had to wait, for the next wait."))
    verified: Mapping[str, bool] = field(
        default_factory=dict, metadata=doc("What was looked for after the writes, by name: true where it is so.")
    )
    clean_since: datetime | None = field(
        default=None, metadata=doc("Since when every look at the Node proved it healthy.", "healthySinceTime")
    )
    undo_to: Phase | None = field(default=None, metadata=doc("What its phase is once it is undone."))


def parts_of(remediation: Remediation, generation: int = 0) -> tuple[RemediationSpec, RemediationStatus]:
    """As a new object has them: without decisions, which people take afterwards. generation: of the object, for the
    conditions; 0 where it is kept in no object."""
    status = RemediationStatus(
        observed_generation=generation,
        conditions=conditions(remediation, generation) if generation else (),
        phase=remediation.phase,
        steps=remediation.steps,
        step=remediation.step,
        saved=remediation.saved,
        history=remediation.history,
        next_at=remediation.next_at,
        deadline_at=remediation.deadline_at,
        attempts=remediation.attempts,
        verified=remediation.verified,
        clean_since=remediation.clean_since,
        undo_to=remediation.undo_to,
    )
    return RemediationSpec(proposal=remediation.proposal), status


def remediation_of(at: RemediationId, version: str, spec: RemediationSpec, status: RemediationStatus) -> Remediation:
    """Raises FormError where it says something that must not be acted on from where it lies."""
    namespace, _, name = at.rpartition("/")
    found = Remediation(
        name=name,
        proposal=spec.proposal,
        phase=status.phase,
        approved=spec.approved,
        approved_by=spec.approved_by,
        rejected=spec.rejected,
        undo_asked=spec.undo,
        finding_correct=spec.finding_correct,
        steps=status.steps,
        step=status.step,
        saved=status.saved,
        history=status.history,
        next_at=status.next_at,
        deadline_at=status.deadline_at,
        attempts=status.attempts,
        verified=status.verified,
        clean_since=status.clean_since,
        undo_to=status.undo_to,
        version=version,
    )
    wrong = misplaced(found, namespace)
    if wrong:
        raise FormError(wrong)
    return found


def said_correct(finding_correct: bool) -> dict[str, bool]:
    """The part of spec in which a person says so; said once, it stays said."""
    return {"findingCorrect": True} if finding_correct else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProfileSpec:
    """Whose profile it is."""

    workload: str = field(metadata=doc("The workload, as Kind/namespace/name of its top owner."))
    container: str = field(metadata=doc("The container within its Pods."))
    gpu_model: str = field(metadata=doc("Model of the GPUs that it was measured on."))
    mig_profile: str = field(default="", metadata=doc("MIG profile that it was measured on. Absent for whole GPUs."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """What was advised last."""

    at: datetime = field(metadata=doc("When it was advised.", "time"))
    target: str = field(metadata=doc("What to run on instead."))
    resource: str = field(default="", metadata=doc("The resource to ask for, such as nvidia.com/mig-1g.10gb."))
    speed_low_ratio: float = field(
        metadata=doc("Speed on the target at worst, as a fraction of the speed now: 0.9 is 10 percent slower.")
    )
    speed_likely_ratio: float = field(
        metadata=doc("Speed on the target as expected, as a fraction of the speed now: 0.9 is 10 percent slower.")
    )
    projected_saving_per_week: float | None = field(
        default=None,
        metadata=doc("Money that it saves in a week, in the currency. Absent where prices are unknown."),
    )
    currency: str = field(
        default="",
        metadata=doc("Currency of the saving as in ISO 4217, such as USD. Absent without one."),
    )
    saving_gpu_hours_per_week: float = field(default=0.0, metadata=doc("GPU-hours that it saves in a week."))
    confidence_ratio: float = field(metadata=doc("How sure the advice is, from 0 to 1."))
    message: str = field(metadata=doc("Why, in plain words."))
    patch: str = field(default="", metadata=doc("What the owner would change, as a strategic merge patch in JSON."))
    prerequisites: tuple[str, ...] = field(default=(), metadata=doc("What has to be done before."))
    caveats: tuple[str, ...] = field(default=(), metadata=doc("What to keep in mind."))


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRecommended:
    """Why nothing is advised, and what would resolve it."""

    at: datetime = field(metadata=doc("When it was concluded.", "time"))
    reason: AbstentionKind = field(metadata=doc("Why nothing is advised, in one word."))
    message: str = field(metadata=doc("Why nothing is advised, in plain words."))
    resolve: str = field(default="", metadata=doc("What would change that."))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProfileStatus:
    """What was measured, in short."""

    observed_generation: int = field(
        default=0, metadata=doc("The metadata.generation that this status was written for.", minimum=0)
    )
    conditions: tuple[ApiCondition, ...] = field(
        default=(), metadata=doc("Advised: whether something is recommended, and why not.", **CONDITIONS_LIST)
    )
    as_of: datetime | None = field(default=None, metadata=doc("Up to when it was measured.", "observationTime"))
    first_seen: datetime | None = field(
        default=None, metadata=doc("When the workload was first seen.", "firstObservedTime")
    )
    last_seen: datetime | None = field(
        default=None, metadata=doc("When the workload was last seen.", "lastObservedTime")
    )
    coverage_ratio: float | None = field(default=None, metadata=doc("Part of its time that was measured, from 0 to 1."))
    observed_gpu_hours: float | None = field(default=None, metadata=doc("How long it was measured, in GPU-hours."))
    gpus_per_pod: int | None = field(default=None, metadata=doc("How many GPUs or slices each Pod has."))
    busy_ratio: float | None = field(
        default=None, metadata=doc("Mean activity of the GPU's engine, from 0 to 1, recent hours counting more.")
    )
    memory_peak_bytes: int | None = field(
        default=None, metadata=doc("Most GPU memory that one of its recent runs had, in bytes.")
    )
    recommendation: Recommended | None = field(default=None, metadata=doc("What is advised, if anything is."))
    abstention: NotRecommended | None = field(default=None, metadata=doc("Why nothing is advised."))
