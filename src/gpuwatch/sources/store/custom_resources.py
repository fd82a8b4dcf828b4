"""The custom resources of gpuwatch.dev/v1alpha1. tools/crds.py writes their definitions from these classes and from the
descriptions in crd_fields.yaml."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from gpuwatch.facts.model.remediation import Phase, Proposal, Remediation, RemediationId, Saved, Step, Turn, misplaced
from gpuwatch.facts.model.sizing import AbstentionKind
from gpuwatch.sources.store.api_form import FormError
from gpuwatch.sources.store.conditions import ApiCondition, conditions

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
