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
class ApiField:
    """says: plain English, with the unit. name: there, where it is not the field's own. more: keys of its schema."""

    says: str = ""
    name: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)


def doc(says: str, name: str = "", **more: Any) -> Mapping[str, ApiField]:
    """The metadata of a field of a class that is made for the API alone."""
    return {"doc": ApiField(says, name, more)}


ATOMIC: frozenset[type] = frozenset({ObjectRef})
"""Of these no part is merged alone: one of another object makes no sense."""

FIELDS: Mapping[type, Mapping[str, ApiField]] = {
    ObjectRef: {
        "api_version": ApiField("API group and version of the object, such as apps/v1."),
        "kind": ApiField("Kind of the object, such as Deployment."),
        "name": ApiField("Name of the object."),
        "namespace": ApiField("Namespace of the object. Absent for an object without one, such as a Node."),
        "uid": ApiField("UID of the object. Nothing is written to another object of the same name."),
    },
    Score: {
        "gained_gpu_hours": ApiField("GPU-hours that would be won within the horizon if the finding is right."),
        "disrupted_gpu_hours": ApiField("GPU-hours of work that would be lost within the horizon."),
        "pool_gpu_hours": ApiField("GPU-hours that the pool offers within the horizon."),
        "confidence_ratio": ApiField("How sure the finding is, from 0 to 1."),
        "horizon_hours": ApiField("How far the score looks ahead, in hours."),
        "gain_basis": ApiField("How gainedGpuHours comes about, as a sentence with its arithmetic."),
        "harm_basis": ApiField("How disruptedGpuHours comes about, as a sentence with its arithmetic."),
    },
    Evidence: {
        "signal": ApiField("What was measured, such as xid or row_remap_failed_state."),
        "value": ApiField("What it was, in the unit of the evidence."),
        "unit": ApiField("Unit of the value, such as percent or bytes. Absent for counts and states."),
        "statistic": ApiField("What was taken of the samples in the window, such as mean or max."),
        "window_seconds": ApiField("Length of time that the value was taken over, in seconds. Absent for one moment."),
        "comparison": ApiField("How the value is compared with the bound: one of >, >=, <, <=, ==, !=, in."),
        "bound": ApiField("What the value is compared with. Absent where the value is for context alone."),
        "peers_median": ApiField("Median of the same value on comparable GPUs, in the unit of the evidence."),
        "peers": ApiField("How many comparable GPUs the median is of."),
        "at": ApiField("When the value was measured.", "time"),
        "promql": ApiField("Query that gives the value again."),
        "note": ApiField("What else a person should know about it."),
    },
    Proposal: {
        "action": ApiField("What is to be done."),
        "target": ApiField("What it is done to, such as node/gpu-1 or workload/Job/team-a/train."),
        "reason": ApiField("Why, in one sentence."),
        "findings": ApiField("Names of the findings behind it, strongest first."),
        "detectors": ApiField("Kinds of these findings. The outcome counts for or against them."),
        "devices": ApiField("The GPUs that are concerned, by UUID."),
        "pods": ApiField("The Pods that are moved or ended, as NAMESPACE/NAME."),
        "pod_uids": ApiField("UIDs of these Pods, in the same order. Pods of other UIDs are left alone.", "podUIDs"),
        "nodes": ApiField("The Nodes that are concerned."),
        "objects": ApiField("The objects that may be written to. The first one is tainted, released or moved."),
        "score": ApiField("What it would win and what it would cost."),
        "mode": ApiField(
            "What was allowed when it was proposed: Suggest waits for approval; Enforce does not; Observe does nothing."
        ),
        "created_at": ApiField("When it was proposed.", "proposedTime"),
        "expires_at": ApiField("Until when it can be approved.", "expirationTime"),
        "namespace": ApiField("Namespace of the workload. It is that of this object, and absent for a Node."),
        "pool": ApiField("Pool of the Nodes; its budget counts."),
        "gpu_model": ApiField("Model of the GPUs, such as NVIDIA-H100-80GB-HBM3; its budget counts."),
        "gpus": ApiField("How many GPUs it takes from work or gives back."),
        "framework": ApiField("What runs the gang, such as PyTorchJob."),
        "waiter": ApiField("Pending Pod that could run on what this frees, as NAMESPACE/NAME."),
        "evidence": ApiField("Facts behind the findings that a person can check again."),
    },
    Step: {
        "kind": ApiField("What is written in this step."),
        "target": ApiField("The object that is written to."),
        "parameters": ApiField("Details by name, such as the key and the effect of a taint."),
        "begun_at": ApiField(
            "When the intent was kept, before the write. Without completionTime nobody knows whether the write "
            "happened, until the object is read again.",
            "startTime",
        ),
        "done_at": ApiField("When the result of the write was kept.", "completionTime"),
        "attempts": ApiField("How often it was tried without success."),
        "error": ApiField("What the last attempt failed with."),
    },
    Saved: {
        "target": ApiField("The object that was changed."),
        "path": ApiField("JSON pointer to the field, such as /spec/suspend."),
        "before": ApiField("What the field was, as JSON. Empty where it was absent."),
        "after": ApiField("What it became, as JSON. It is only restored where it is this still."),
    },
    Turn: {
        "at": ApiField("When it happened.", "time"),
        "phase": ApiField("The phase from then on."),
        "message": ApiField("Why, in one sentence."),
    },
}
