"""The kinds that are listed, beside the owners that `frameworks` knows."""

from gpuwatch.facts import frameworks
from gpuwatch.facts.frameworks import FRAMEWORKS, kueue, schedulers
from gpuwatch.facts.frameworks.fights import AUTOSCALERS
from gpuwatch.facts.frameworks.framework import Kind

NODE = Kind("", "Node", ("v1",))
POD = Kind("", "Pod", ("v1",))
NAMESPACE = Kind("", "Namespace", ("v1",), metadata_only=True)
BUDGET = Kind("policy", "PodDisruptionBudget", ("v1",))
QUOTA = Kind("", "ResourceQuota", ("v1",))
CLAIM = Kind("resource.k8s.io", "ResourceClaim", ("v1", "v1beta2", "v1beta1"))
SLICE = Kind("resource.k8s.io", "ResourceSlice", ("v1", "v1beta2", "v1beta1"))
DEVICE_TAINT = Kind("resource.k8s.io", "DeviceTaintRule", ("v1", "v1beta2", "v1alpha3"))

LISTED_OWNERS = {key: kind for key, kind in frameworks.OWNERS.items() if kind.versions}
"""Controllers that the walk over owners lists. All others are of an unknown kind: reported, never acted on."""

LISTED = (
    NODE,
    POD,
    NAMESPACE,
    BUDGET,
    QUOTA,
    CLAIM,
    SLICE,
    DEVICE_TAINT,
    *LISTED_OWNERS.values(),
    kueue.WORKLOAD,
    *AUTOSCALERS,
    schedulers.NATIVE_GROUP,
    *(item.groups.kind for item in FRAMEWORKS if item.groups is not None),
)
READ = frozenset(kind.key for kind in LISTED)
"""Recorded objects of other kinds are ignored."""
