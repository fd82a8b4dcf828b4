"""gpuwatch's own label, annotation and taint keys, all under `gpuwatch.dev/`.

Owners set them as annotations (or labels) on a Pod, on its top owner, on its Namespace or on a Node.
"""

PREFIX = "gpuwatch.dev/"

OPT_OUT = f"{PREFIX}opt-out"
"""Anything but 'false': gpuwatch reports on the object, and never proposes to act on it."""

SNOOZE_UNTIL = f"{PREFIX}snooze-until"
"""A time such as 2026-01-31T18:00:00Z: no proposal before it."""

OBJECT = f"{PREFIX}object"
"""The owner's reason against an announced action; any text objects."""

MODE = f"{PREFIX}mode"
"""observe, suggest or enforce on a Namespace: the mildest of this and the policy's mode holds."""

POOL = f"{PREFIX}pool"
"""Label on a Node: the pool that budgets count it in, where the provider's own pool label does not fit."""
