"""gpuwatch's own label, annotation and taint keys. Owners set them on a Pod, its top owner, its Namespace or a Node."""

from collections.abc import Iterable, Mapping
from datetime import datetime

PREFIX = "gpuwatch.dev/"

OPT_OUT = f"{PREFIX}opt-out"
"""Annotation or label; with any value but 'false' gpuwatch reports on the object and never proposes an action on it."""

SNOOZE_UNTIL = f"{PREFIX}snooze-until"
"""Annotation: a time such as 2026-01-31T18:00:00Z, before which nothing is proposed."""

OBJECTION = f"{PREFIX}objection"
"""Annotation: an owner's objection to a notified action; any text counts as one."""

MODE = f"{PREFIX}mode"
"""On a Namespace: observe, suggest or enforce. The milder of this and the mode in the settings applies."""

POOL = f"{PREFIX}pool"
"""Label on a Node: its pool for budgets, in place of the provider's pool label."""

REMEDIATION = f"{PREFIX}remediation"
"""Annotation that gpuwatch writes on every object it changes: the Remediation. It is set in the request that makes the
change and removed in the one that undoes it, so that a restarted controller knows what it had done."""

FINALIZER = f"{PREFIX}undo"
"""Finalizer on a Remediation whose changes may be in effect: a deletion asks for the undo and waits for its end."""

NOTICE = f"{PREFIX}notice"
"""Annotation that gpuwatch writes on the owner or the Node: the coming Remediation, when, why, and how to object."""

DEGRADED = f"{PREFIX}degraded"
"""Taint on a Node or device; its value is the finding kind. gpuwatch removes only one with a value that it wrote."""

TAINT = f"{PREFIX}taint"
"""Annotation beside the taint: the Remediation, the reason, the taint's value, effect and expiry, as JSON."""

ACCOUNT = f"{PREFIX}account"
"""Label on the ClusterRoleBindings of gpuwatch's account; the guardrails and `uninstall` find it there."""

LAST_STORM = f"{PREFIX}last-storm"
"""Annotation on gpuwatch's Lease: time of the last storm (much degraded or idle at once), for the cool-down."""

CONDITION = "GPUDegraded"
"""Type of the Node condition that gpuwatch writes beside its taint, for other controllers."""

SAVED_STATE = f"{PREFIX}saved-state"
"""Annotation on a released owner or a Node that was handed off: former values of what was changed, as JSON."""

MAY_MOVE = f"{PREFIX}may-move"
"""Annotation on a Pod, its owner or its Namespace: 'true' allows gpuwatch to move its working Pods elsewhere, so that a
Pod that waits is placed; 'false' forbids it for idle ones and for those that save their work too."""

LAST_CHECKPOINT = f"{PREFIX}last-checkpoint"
"""Annotation on a Pod or its owner: time of the job's last checkpoint, such as 2026-01-31T18:00:00Z."""

GPU_MEMORY_NEED = f"{PREFIX}gpu-memory-need"
"""Annotation on a Pod, its owner or its Namespace: framebuffer that it needs per GPU, such as 12Gi. It counts where the
need cannot be measured, because a framework reserves a share of any device."""

TARGET_SPEED = f"{PREFIX}target-speed"
"""Annotation on a Pod, its owner or its Namespace: the speed on another GPU that its owner accepts, as a share of
today's, such as 0.6. It replaces advice.target_speed_ratio, for latency too."""

COMPUTE_CAPABILITIES = f"{PREFIX}compute-capabilities"
"""Annotation on a Pod, its owner or its Namespace: compute capabilities on which its image runs and computes as it
should, such as 8.0,12.0 (other vendors' architecture, such as cdna3). Advice to such GPUs has no condition."""

REPAIRED_AT = f"{PREFIX}repaired-at"
"""On a Node, by a person: when its GPUs were repaired, as 2026-01-31T18:00:00Z. Earlier faults count as repaired."""

EXPECTED_END = f"{PREFIX}expected-end"
"""Annotation on a Pod or its owner: when the job is expected to end by itself, in the same format."""


def time_in(annotations: Mapping[str, str], key: str) -> datetime | None:
    """The time in an annotation; None where it is missing, is no time or has no time zone."""
    try:
        at = datetime.fromisoformat(annotations.get(key, ""))
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def stated(annotated: Iterable[tuple[str, Mapping[str, str]]], key: str) -> tuple[str, str]:
    """(object, value) of the first of (object, annotations) that has the key; ('', '') where none has it."""
    return next(((where, texts[key]) for where, texts in annotated if key in texts), ("", ""))
