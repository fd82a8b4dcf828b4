"""The custom resources of gpuwatch.dev/v1alpha1: their parts, and the definitions that deploy/base/crds.yaml holds.

python -m gpuwatch.store.custom_resources > deploy/base/crds.yaml
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import yaml

from gpuwatch.model.remediation import Phase, Proposal, Remediation, Saved, Step, Turn
from gpuwatch.store.api_form import schema

GROUP = "gpuwatch.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"


def _says(text: str) -> Mapping[str, str]:
    return {"says": text}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediationSpec:
    """What is proposed, written once by gpuwatch, and what people decided about it."""

    proposal: Proposal = field(metadata=_says("What is to be done and why. It cannot be changed."))
    approved: bool = field(default=False, metadata=_says("Set true to have it done."))
    approved_by: str = field(default="", metadata=_says("Who approved it, for the record."))
    rejected: bool = field(default=False, metadata=_says("Set true to have it never done."))
    undo: bool = field(default=False, metadata=_says("Set true to have what was done undone."))
    finding_right: bool = field(
        default=False,
        metadata=_says(
            "Set true where the finding was right although this was rejected or undone: its detector is kept."
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediationStatus:
    """Its course, written by gpuwatch alone. An object without a status was proposed a moment ago."""

    phase: Phase = Phase.PROPOSED
    steps: tuple[Step, ...] = ()
    step: int = 0
    saved: tuple[Saved, ...] = field(default=(), metadata=_says("What fields were before they were changed, as JSON."))
    history: tuple[Turn, ...] = ()
    next_at: datetime | None = None
    deadline_at: datetime | None = None
    attempts: int = 0
    verified: Mapping[str, bool] = field(default_factory=dict)
    clean_since: datetime | None = None
    undo_to: Phase | None = None


def parts_of(remediation: Remediation) -> tuple[RemediationSpec, RemediationStatus]:
    """As a new object has them: without decisions, which people take afterwards."""
    status = RemediationStatus(
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


def remediation_of(name: str, version: str, spec: RemediationSpec, status: RemediationStatus) -> Remediation:
    return Remediation(
        name=name,
        proposal=spec.proposal,
        phase=status.phase,
        approved=spec.approved,
        approved_by=spec.approved_by,
        rejected=spec.rejected,
        undo_asked=spec.undo,
        finding_right=spec.finding_right,
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


def said_right(finding_right: bool) -> dict[str, bool]:
    """The part of spec in which a person says so; said once, it stays said."""
    return {"findingRight": True} if finding_right else {}


def selected(remediations: Iterable[Remediation], since: datetime | None) -> tuple[Remediation, ...]:
    """Those that were proposed at that time or later, oldest first."""
    wanted = (each for each in remediations if since is None or each.proposal.created_at >= since)
    return tuple(sorted(wanted, key=lambda each: (each.proposal.created_at, each.name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProfileSpec:
    """Whose profile it is."""

    workload: str = field(metadata=_says("Kind/namespace/name of the top owner."))
    container: str
    gpu_model: str
    mig_profile: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """What was advised last. speed_*_ratio: on the target, against now. patch: a strategic merge patch, as JSON."""

    at: datetime
    target: str
    resource: str = field(default="", metadata=_says("The resource to ask for, such as nvidia.com/mig-1g.10gb."))
    speed_low_ratio: float
    speed_likely_ratio: float
    projected_saving_per_week: float | None = None
    currency: str = field(default="", metadata=_says("Of the saving, ISO 4217."))
    saving_gpu_hours_per_week: float = 0.0
    confidence_ratio: float
    reason: str
    patch: str = field(default="", metadata=_says("What the owner would change, as a strategic merge patch in JSON."))
    prerequisites: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRecommended:
    """Why nothing is advised, and what would resolve it."""

    at: datetime
    why: str
    reason: str
    resolve: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProfileStatus:
    """What was measured, in short. busy_ratio: the engine's activity, mean of the decayed windows; None where there are
    none. memory_peak_bytes: of the runs that are kept."""

    as_of: datetime
    first_seen: datetime
    last_seen: datetime
    coverage_ratio: float
    observed_gpu_hours: float
    gpus_per_pod: int
    busy_ratio: float | None = None
    memory_peak_bytes: float | None = None
    recommendation: Recommended | None = None
    abstention: NotRecommended | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """A piece of the state, in base64, or the list of its pieces."""

    data: str = field(default="", metadata={**_says("Rows of one table, in base64."), "length": 1_400_000})
    schema: int = 0
    pieces: tuple[str, ...] = field(default=(), metadata=_says("The pieces that make up the state."))
    sweep: tuple[str, ...] = field(default=(), metadata=_says("Pieces that are not needed any more, or not yet."))


def definitions() -> list[dict[str, Any]]:
    """The CustomResourceDefinitions, as they are applied to a cluster."""
    return [_remediation(), _workload_profile(), _checkpoint()]


def _remediation() -> dict[str, Any]:
    spec = schema(RemediationSpec)
    spec["properties"]["proposal"]["x-kubernetes-validations"] = [
        {"rule": "self == oldSelf", "message": "the proposal cannot be changed; reject it, and another is made"}
    ]
    spec["x-kubernetes-validations"] = [
        {
            "rule": "!(has(self.approved) && self.approved && has(self.rejected) && self.rejected)",
            "message": "approved and rejected exclude each other",
        }
    ]
    return _definition(
        "Remediation",
        "remediations",
        "rem",
        "Cluster",
        {"spec": spec, "status": schema(RemediationStatus)},
        [
            ("Action", "string", ".spec.proposal.action", 0),
            ("Target", "string", ".spec.proposal.target", 0),
            ("GPUs", "integer", ".spec.proposal.gpus", 0),
            ("Phase", "string", ".status.phase", 0),
            ("Approved", "boolean", ".spec.approved", 0),
            ("Age", "date", ".metadata.creationTimestamp", 0),
            ("Reason", "string", ".spec.proposal.reason", 1),
        ],
    )


def _workload_profile() -> dict[str, Any]:
    spec = schema(WorkloadProfileSpec)
    spec["x-kubernetes-validations"] = [{"rule": "self == oldSelf", "message": "a profile stays that of its workload"}]
    advised = ".status.recommendation"
    return _definition(
        "WorkloadProfile",
        "workloadprofiles",
        "wlp",
        "Namespaced",
        {"spec": spec, "status": schema(WorkloadProfileStatus)},
        [
            ("Workload", "string", ".spec.workload", 0),
            ("Container", "string", ".spec.container", 1),
            ("GPU", "string", ".spec.gpuModel", 0),
            ("Slice", "string", ".spec.migProfile", 1),
            ("Busy", "number", ".status.busyRatio", 0),
            ("Advice", "string", f"{advised}.target", 0),
            ("Saves per week", "number", f"{advised}.projectedSavingPerWeek", 0),
            ("Why not", "string", ".status.abstention.why", 0),
            ("As of", "date", ".status.asOf", 0),
        ],
    )


def _checkpoint() -> dict[str, Any]:
    return _definition(
        "Checkpoint",
        "checkpoints",
        "gwcp",
        "Namespaced",
        {"spec": schema(CheckpointSpec)},
        [("Age", "date", ".metadata.creationTimestamp", 0)],
    )


def _definition(
    kind: str,
    plural: str,
    short: str,
    scope: str,
    parts: Mapping[str, Any],
    columns: list[tuple[str, str, str, int]],
) -> dict[str, Any]:
    """columns: name, type, JSONPath, and the priority: above 0 it is shown with `-o wide` alone."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["gpuwatch"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    **({"subresources": {"status": {}}} if "status" in parts else {}),
                    "additionalPrinterColumns": [
                        {"name": name, "type": type_, "jsonPath": path, "priority": priority}
                        for name, type_, path, priority in columns
                    ],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": {"type": "string"},
                                "kind": {"type": "string"},
                                "metadata": {"type": "object"},
                                **parts,
                            },
                        }
                    },
                }
            ],
        },
    }


_HEAD = """\
# Made by `python -m gpuwatch.store.custom_resources`, which takes the fields from the model. A test holds it to that.
"""


def main() -> None:
    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
            return True  # the API server's YAML has them, people's eyes have not

    documents = yaml.dump_all(definitions(), Dumper=Plain, sort_keys=False, width=118, explicit_start=True)
    sys.stdout.write(_HEAD + documents)


if __name__ == "__main__":
    main()
