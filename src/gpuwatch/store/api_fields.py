"""What each field of the nouns is called in the API, and what it says there: `kubectl explain` shows it.

A name that is not given here is the field's own in camelCase. Times end in `Time`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuwatch.model.decision import Evidence, Score
from gpuwatch.model.remediation import ObjectRef, Proposal, Saved, Step, Turn


@dataclass(frozen=True, slots=True)
class Said:
    """says: plain English, with the unit. name: there, where it is not the field's own. more: keys of its schema."""

    says: str = ""
    name: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)


def said(says: str, name: str = "", **more: Any) -> Mapping[str, Said]:
    """The metadata of a field of a class that is made for the API alone."""
    return {"said": Said(says, name, more)}


ATOMIC: frozenset[type] = frozenset({ObjectRef})
"""Of these no part is merged alone: one of another object makes no sense."""

FIELDS: Mapping[type, Mapping[str, Said]] = {
    ObjectRef: {
        "api_version": Said("API group and version of the object, such as apps/v1."),
        "kind": Said("Kind of the object, such as Deployment."),
        "name": Said("Name of the object."),
        "namespace": Said("Namespace of the object. Absent for an object without one, such as a Node."),
        "uid": Said("UID of the object. Nothing is written to another object of the same name."),
    },
    Score: {
        "gained_gpu_hours": Said("GPU-hours that would be won within the horizon if the finding is right."),
        "disrupted_gpu_hours": Said("GPU-hours of work that would be lost within the horizon."),
        "pool_gpu_hours": Said("GPU-hours that the pool offers within the horizon."),
        "confidence_ratio": Said("How sure the finding is, from 0 to 1."),
        "horizon_hours": Said("How far the score looks ahead, in hours."),
        "gain_basis": Said("How gainedGpuHours comes about, as a sentence with its arithmetic."),
        "harm_basis": Said("How disruptedGpuHours comes about, as a sentence with its arithmetic."),
    },
    Evidence: {
        "signal": Said("What was measured, such as xid or row_remap_failed_state."),
        "value": Said("What it was, in the unit of the evidence."),
        "unit": Said("Unit of the value, such as percent or bytes. Absent for counts and states."),
        "statistic": Said("What was taken of the samples in the window, such as mean or max."),
        "window_seconds": Said("Length of time that the value was taken over, in seconds. Absent for one moment."),
        "comparison": Said("How the value is compared with the bound: one of >, >=, <, <=, ==, !=, in."),
        "bound": Said("What the value is compared with. Absent where the value is for context alone."),
        "peers_median": Said("Median of the same value on comparable GPUs, in the unit of the evidence."),
        "peers": Said("How many comparable GPUs the median is of."),
        "at": Said("When the value was measured.", "time"),
        "promql": Said("Query that gives the value again."),
        "note": Said("What else a person should know about it."),
    },
    Proposal: {
        "action": Said("What is to be done."),
        "target": Said("What it is done to, such as node/gpu-1 or workload/Job/team-a/train."),
        "reason": Said("Why, in one sentence."),
        "findings": Said("Names of the findings behind it, strongest first."),
        "detectors": Said("Kinds of these findings. The outcome counts for or against them."),
        "devices": Said("The GPUs that are concerned, by UUID."),
        "pods": Said("The Pods that are moved or ended, as NAMESPACE/NAME."),
        "pod_uids": Said("UIDs of these Pods, in the same order. Pods of other UIDs are left alone.", "podUIDs"),
        "nodes": Said("The Nodes that are concerned."),
        "objects": Said("The objects that may be written to. The first one is tainted, released or moved."),
        "score": Said("What it would win and what it would cost."),
        "mode": Said(
            "What was allowed when it was proposed: Suggest waits for approval; Enforce does not; Observe does nothing."
        ),
        "created_at": Said("When it was proposed.", "proposedTime"),
        "expires_at": Said("Until when it can be approved.", "expirationTime"),
        "namespace": Said("Namespace of the workload. It is that of this object, and absent for a Node."),
        "pool": Said("Pool of the Nodes; its budget counts."),
        "gpu_model": Said("Model of the GPUs, such as NVIDIA-H100-80GB-HBM3; its budget counts."),
        "gpus": Said("How many GPUs it takes from work or gives back."),
        "framework": Said("What runs the gang, such as PyTorchJob."),
        "waiter": Said("Pending Pod that could run on what this frees, as NAMESPACE/NAME."),
        "evidence": Said("Facts behind the findings that a person can check again."),
    },
    Step: {
        "kind": Said("What is written in this step."),
        "target": Said("The object that is written to."),
        "parameters": Said("Details by name, such as the key and the effect of a taint."),
        "begun_at": Said(
            "When the intent was kept, before the write. Without completionTime nobody knows whether the write "
            "happened, until the object is read again.",
            "startTime",
        ),
        "done_at": Said("When the result of the write was kept.", "completionTime"),
        "attempts": Said("How often it was tried without success."),
        "error": Said("What the last attempt failed with."),
    },
    Saved: {
        "target": Said("The object that was changed."),
        "path": Said("JSON pointer to the field, such as /spec/suspend."),
        "before": Said("What the field was, as JSON. Empty where it was absent."),
        "after": Said("What it became, as JSON. It is only restored where it is this still."),
    },
    Turn: {
        "at": Said("When it happened.", "time"),
        "phase": Said("The phase from then on."),
        "message": Said("Why, in one sentence."),
    },
}
