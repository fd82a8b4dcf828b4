"""gpuwatch's own label, annotation and taint keys, all under `gpuwatch.dev/`.

Owners set them as annotations (or labels) on a Pod, on its top owner, on its Namespace or on a Node.
"""

PREFIX = "gpuwatch.dev/"

OPT_OUT = f"{PREFIX}opt-out"
"""Annotation or label; anything but 'false': gpuwatch reports on the object, and never proposes to act on it."""

SNOOZE_UNTIL = f"{PREFIX}snooze-until"
"""Annotation: a time such as 2026-01-31T18:00:00Z; nothing is proposed before it."""

OBJECTION = f"{PREFIX}objection"
"""Annotation: an owner's reason against an action of which gpuwatch notified; any text objects."""

MODE = f"{PREFIX}mode"
"""observe, suggest or enforce on a Namespace: the milder of this and of the mode of the settings holds there."""

POOL = f"{PREFIX}pool"
"""Label on a Node: the pool that budgets count it in, where the provider's own pool label does not fit."""

REMEDIATION = f"{PREFIX}remediation"
"""Annotation that gpuwatch writes on whatever it changes, in the same request: the Remediation that did it. It goes in
the request that takes the change back, so that a controller that was killed finds in it what it had done."""

NOTICE = f"{PREFIX}notice"
"""Annotation that gpuwatch writes on the owner or the Node: which Remediation is coming, when, why, and how to
object."""

DEGRADED = f"{PREFIX}degraded"
"""Taint on a Node (and on a device, by a DeviceTaintRule); its value is the finding kind behind it. A taint of this key
with another value than gpuwatch wrote is somebody else's, and stays."""

TAINT = f"{PREFIX}taint"
"""Annotation beside the taint: JSON with the Remediation, the reason and when the taint expires."""

LAST_STORM = f"{PREFIX}last-storm"
"""Annotation on gpuwatch's Lease: when too much looked degraded or idle at once, so that the cool-down outlasts a
restart."""

CONDITION = "GPUDegraded"
"""Type of the Node condition that gpuwatch writes beside its taint, for other controllers."""

SAVED_STATE = f"{PREFIX}saved-state"
"""Annotation on a released owner, written in the same request: what the changed fields were before, as JSON."""

LAST_CHECKPOINT = f"{PREFIX}last-checkpoint"
"""Annotation on a Pod or its owner: when the job last saved its state, such as 2026-01-31T18:00:00Z."""

EXPECTED_END = f"{PREFIX}expected-end"
"""Annotation on a Pod or its owner: when the job is expected to end by itself, written in the same way."""
