"""gpuwatch's own label, annotation and taint keys, all under `gpuwatch.dev/`.

Owners set them as annotations (or labels) on a Pod, on its top owner, on its Namespace or on a Node.
"""

PREFIX = "gpuwatch.dev/"

OPT_OUT = f"{PREFIX}opt-out"
"""Anything but 'false': gpuwatch reports on the object, and never proposes to act on it."""

SNOOZE_UNTIL = f"{PREFIX}snooze-until"
"""A time such as 2026-01-31T18:00:00Z: no proposal before it."""

OBJECTION = f"{PREFIX}objection"
"""The owner's reason against an notified action; any text objects."""

MODE = f"{PREFIX}mode"
"""observe, suggest or enforce on a Namespace: the mildest of this and the policy's mode holds."""

POOL = f"{PREFIX}pool"
"""Label on a Node: the pool that budgets count it in, where the provider's own pool label does not fit."""

REMEDIATION = f"{PREFIX}remediation"
"""Annotation on whatever was changed, written in the same request as the change: the Remediation that did it. It goes
in the request that takes the change back, so that a controller that was killed finds in it what it had done."""

NOTICE = f"{PREFIX}notice"
"""Annotation on the owner or the Node: which Remediation is coming, when, why, and how to object."""

DEGRADED = f"{PREFIX}degraded"
"""Taint on a Node (and on a device, by a DeviceTaintRule); its value is the cause. Other values than those that
gpuwatch wrote itself are somebody else's and never touched."""

TAINT = f"{PREFIX}taint"
"""Annotation beside the taint: JSON with the Remediation, the reason and when the taint expires."""

CONDITION = "GPUDegraded"
"""Type of the Node condition that other controllers may act on."""

SAVED_STATE = f"{PREFIX}saved-state"
"""Annotation on a released owner, written in the same request: what the changed fields were before, as JSON."""

LAST_CHECKPOINT = f"{PREFIX}last-checkpoint"
"""Annotation on a Pod or its owner: when the job last saved its state, such as 2026-01-31T18:00:00Z."""

EXPECTED_END = f"{PREFIX}expected-end"
"""Annotation on a Pod or its owner: when the job is expected to end by itself, written in the same way."""
