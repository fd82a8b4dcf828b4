"""The custom resources of gpuwatch.dev/v1alpha1: their parts, and the definitions that deploy/base/crds.yaml holds.

python -m gpuwatch.store.custom_resources > deploy/base/crds.yaml
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import yaml

from gpuwatch.model.decision import ActionKind
from gpuwatch.model.remediation import (
    OF_NODES,
    OF_WORKLOADS,
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
from gpuwatch.store.api_fields import said
from gpuwatch.store.api_form import FormError, camel_enum, schema
from gpuwatch.store.conditions import CONDITIONS_LIST, MEANINGS, TYPES, Condition, conditions, pending

GROUP = "gpuwatch.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
ADVISED = "Advised"
"""The condition of a WorkloadProfile."""


NODE_KIND = "NodeRemediation"
KIND = "Remediation"
PROFILE_KIND = "WorkloadProfile"
CONDITIONS: Mapping[str, Mapping[str, str]] = {
    KIND: MEANINGS,
    NODE_KIND: MEANINGS,
    PROFILE_KIND: {ADVISED: "something is recommended; where it is False, the reason says why not"},
}
"""By kind and type, what is so where the condition is True."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediationSpec:
    """What is proposed, written once by gpuwatch, and what people decided about it."""

    proposal: Proposal = field(metadata=said("What is to be done and why. It cannot be changed."))
    approved: bool = field(default=False, metadata=said("Set true to have it done."))
    approved_by: str = field(
        default="", metadata=said("Who approved it: empty, or the name that the API server knows the approver by.")
    )
    rejected: bool = field(default=False, metadata=said("Set true to have it never done."))
    undo: bool = field(default=False, metadata=said("Set true to have what was done undone."))
    finding_correct: bool = field(
        default=False,
        metadata=said(
            "Set true where the finding was correct although this was rejected or undone. It does not count against "
            "its detectors then."
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediationStatus:
    """Its course, written by gpuwatch alone. observed_generation and conditions follow from the rest: they are written
    for others, and never read."""

    observed_generation: int = field(
        default=0, metadata=said("The metadata.generation that this status was written for.", minimum=0)
    )
    conditions: tuple[Condition, ...] = field(
        default=(),
        metadata=said(
            "Approved; Applied, once all writes are done; Verified, once they had their effect; and Finished.",
            **CONDITIONS_LIST,
        ),
    )
    phase: Phase = field(metadata=said("Where it is, in one word. The conditions say it for machines."))
    steps: tuple[Step, ...] = field(default=(), metadata=said("The writes that it consists of, in their order."))
    step: int = field(default=0, metadata=said("How many of the steps are done."))
    saved: tuple[Saved, ...] = field(default=(), metadata=said("What fields were before they were changed."))
    history: tuple[Turn, ...] = field(default=(), metadata=said("What happened to it, oldest first."))
    next_at: datetime | None = field(default=None, metadata=said("Before it nothing is done.", "nextStepTime"))
    deadline_at: datetime | None = field(
        default=None, metadata=said("When the phase ends at the latest.", "deadlineTime")
    )
    attempts: int = field(default=0, metadata=said("How often it had to wait, for the next wait."))
    verified: Mapping[str, bool] = field(
        default_factory=dict, metadata=said("What was looked for after the writes, by name: true where it is so.")
    )
    clean_since: datetime | None = field(
        default=None, metadata=said("Since when every look at the Node proved it healthy.", "healthySinceTime")
    )
    undo_to: Phase | None = field(default=None, metadata=said("What its phase is once it is undone."))


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

    workload: str = field(metadata=said("The workload, as Kind/namespace/name of its top owner."))
    container: str = field(metadata=said("The container within its Pods."))
    gpu_model: str = field(metadata=said("Model of the GPUs that it was measured on."))
    mig_profile: str = field(default="", metadata=said("MIG profile that it was measured on. Absent for whole GPUs."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """What was advised last."""

    at: datetime = field(metadata=said("When it was advised.", "time"))
    target: str = field(metadata=said("What to run on instead."))
    resource: str = field(default="", metadata=said("The resource to ask for, such as nvidia.com/mig-1g.10gb."))
    speed_low_ratio: float = field(
        metadata=said("Speed on the target at worst, as a fraction of the speed now: 0.9 is 10 percent slower.")
    )
    speed_likely_ratio: float = field(
        metadata=said("Speed on the target as expected, as a fraction of the speed now: 0.9 is 10 percent slower.")
    )
    projected_saving_per_week: float | None = field(
        default=None, metadata=said("Money that it saves in a week, in the currency. Absent where prices are unknown.")
    )
    currency: str = field(
        default="",
        metadata=said("Currency of the saving as in ISO 4217, such as USD. Absent without one."),
    )
    saving_gpu_hours_per_week: float = field(default=0.0, metadata=said("GPU-hours that it saves in a week."))
    confidence_ratio: float = field(metadata=said("How sure the advice is, from 0 to 1."))
    message: str = field(metadata=said("Why, in plain words."))
    patch: str = field(default="", metadata=said("What the owner would change, as a strategic merge patch in JSON."))
    prerequisites: tuple[str, ...] = field(default=(), metadata=said("What has to be done before."))
    caveats: tuple[str, ...] = field(default=(), metadata=said("What to keep in mind."))


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRecommended:
    """Why nothing is advised, and what would resolve it."""

    at: datetime = field(metadata=said("When it was concluded.", "time"))
    reason: AbstentionKind = field(metadata=said("Why nothing is advised, in one word."))
    message: str = field(metadata=said("Why nothing is advised, in plain words."))
    resolve: str = field(default="", metadata=said("What would change that."))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProfileStatus:
    """What was measured, in short."""

    observed_generation: int = field(
        default=0, metadata=said("The metadata.generation that this status was written for.", minimum=0)
    )
    conditions: tuple[Condition, ...] = field(
        default=(), metadata=said("Advised: whether something is recommended, and why not.", **CONDITIONS_LIST)
    )
    as_of: datetime | None = field(default=None, metadata=said("Up to when it was measured.", "observationTime"))
    first_seen: datetime | None = field(
        default=None, metadata=said("When the workload was first seen.", "firstObservedTime")
    )
    last_seen: datetime | None = field(
        default=None, metadata=said("When the workload was last seen.", "lastObservedTime")
    )
    coverage_ratio: float | None = field(
        default=None, metadata=said("Part of its time that was measured, from 0 to 1.")
    )
    observed_gpu_hours: float | None = field(default=None, metadata=said("How long it was measured, in GPU-hours."))
    gpus_per_pod: int | None = field(default=None, metadata=said("How many GPUs or slices each Pod has."))
    busy_ratio: float | None = field(
        default=None, metadata=said("Mean activity of the GPU's engine, from 0 to 1, recent hours counting more.")
    )
    memory_peak_bytes: int | None = field(
        default=None, metadata=said("Most GPU memory that one of its recent runs had, in bytes.")
    )
    recommendation: Recommended | None = field(default=None, metadata=said("What is advised, if anything is."))
    abstention: NotRecommended | None = field(default=None, metadata=said("Why nothing is advised."))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """A piece of the state, in base64, or the list of its pieces."""

    data: str = field(default="", metadata=said("Rows of one table, in base64.", maxLength=1_400_000))
    schema: int = field(default=0, metadata=said("Version of the tables. An older gpuwatch refuses a later one."))
    pieces: tuple[str, ...] = field(default=(), metadata=said("The pieces that make up the state, by name."))
    sweep: tuple[str, ...] = field(default=(), metadata=said("Pieces that are not needed any more, or not yet."))


def definitions() -> list[dict[str, Any]]:
    """The CustomResourceDefinitions, as they are applied to a cluster."""
    return [
        _remediation(
            KIND, "rem", "Namespaced", OF_WORKLOADS,
            "Something to be done to a workload of this Namespace, whose people set spec.approved or spec.rejected.",
        ),
        _remediation(
            NODE_KIND, "noderem", "Cluster", OF_NODES,
            "Something to be done to a Node. The platform's people set spec.approved or spec.rejected.",
        ),
        _workload_profile(),
        _checkpoint(),
    ]  # fmt: skip


_ACTIONS = {
    ActionKind.TAINT_NODE: "TaintNode keeps new Pods off a Node.",
    ActionKind.EVICT_GANG: "EvictGang moves Pods elsewhere.",
    ActionKind.RELEASE_GANG: "ReleaseGang suspends an idle workload or scales it to zero.",
}


def _remediation(kind: str, short: str, scope: str, actions: Collection[ActionKind], says: str) -> dict[str, Any]:
    spec, status = schema(RemediationSpec), schema(RemediationStatus)
    proposal = spec["properties"]["proposal"]
    proposal["x-kubernetes-validations"] = [
        {"rule": "self == oldSelf", "message": "the proposal cannot be changed; reject it, and another is made"}
    ]
    action = proposal["properties"]["action"]
    action["enum"] = sorted(map(camel_enum, actions))
    action["description"] = "What is to be done. " + " ".join(_ACTIONS[each] for each in sorted(actions))
    spec["x-kubernetes-validations"] = [
        {
            "rule": "!(has(self.approved) && self.approved && has(self.rejected) && self.rejected)",
            "message": "approved and rejected exclude each other",
        }
    ]
    status["default"] = {"phase": camel_enum(Phase.PROPOSED), "conditions": pending(*TYPES)}
    return _definition(
        kind,
        f"{kind.lower()}s",
        short,
        scope,
        says,
        {"spec": spec, "status": status},
        [
            ("Action", "string", ".spec.proposal.action", 0),
            ("Target", "string", ".spec.proposal.target", 0),
            ("GPUs", "integer", ".spec.proposal.gpus", 0),
            ("Phase", "string", ".status.phase", 0),
            ("Approved", "string", _condition(TYPES[0], "status"), 0),
            ("Age", "date", ".metadata.creationTimestamp", 0),
            ("Reason", "string", ".spec.proposal.reason", 1),
        ],
    )


def _condition(type_: str, part: str) -> str:
    return f'.status.conditions[?(@.type=="{type_}")].{part}'


def _workload_profile() -> dict[str, Any]:
    spec, status = schema(WorkloadProfileSpec), schema(WorkloadProfileStatus)
    spec["x-kubernetes-validations"] = [{"rule": "self == oldSelf", "message": "a profile stays that of its workload"}]
    status["default"] = {"conditions": pending(ADVISED)}
    advised = ".status.recommendation"
    return _definition(
        PROFILE_KIND,
        "workloadprofiles",
        "wlp",
        "Namespaced",
        "What was measured of one container of a workload, and what is advised. For reading: gpuwatch writes it.",
        {"spec": spec, "status": status},
        [
            ("Workload", "string", ".spec.workload", 0),
            ("Container", "string", ".spec.container", 1),
            ("GPU", "string", ".spec.gpuModel", 0),
            ("Slice", "string", ".spec.migProfile", 1),
            ("Busy", "string", ".status.busyRatio", 0),
            ("Advised", "string", _condition(ADVISED, "status"), 0),
            ("Reason", "string", _condition(ADVISED, "reason"), 0),
            ("Target", "string", f"{advised}.target", 0),
            ("Saves per week", "string", f"{advised}.projectedSavingPerWeek", 0),
            ("Currency", "string", f"{advised}.currency", 0),
            ("Observed", "date", ".status.observationTime", 0),
        ],
    )


def _checkpoint() -> dict[str, Any]:
    return _definition(
        "Checkpoint",
        "checkpoints",
        "gwcp",
        "Namespaced",
        "A piece of what gpuwatch remembers. For gpuwatch alone.",
        {"spec": schema(CheckpointSpec)},
        [("Age", "date", ".metadata.creationTimestamp", 0)],
    )


def _definition(
    kind: str,
    plural: str,
    short: str,
    scope: str,
    says: str,
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
                            "description": says,
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": {"type": "string", "description": "Version of this form of the object."},
                                "kind": {"type": "string", "description": "Kind of the object."},
                                "metadata": {"type": "object"},
                                **{name: {"description": _PARTS[name], **part} for name, part in parts.items()},
                            },
                        }
                    },
                }
            ],
        },
    }


_PARTS = {
    "spec": "What gpuwatch wrote when it made the object, and what people decide.",
    "status": "What became of it, written by gpuwatch alone.",
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
