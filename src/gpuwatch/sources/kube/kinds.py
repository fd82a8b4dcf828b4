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
VOLUME_CLAIM = Kind("", "PersistentVolumeClaim", ("v1",))
VOLUME = Kind("", "PersistentVolume", ("v1",))
STORAGE_CLASS = Kind("storage.k8s.io", "StorageClass", ("v1",))
CSI_DRIVER = Kind("storage.k8s.io", "CSIDriver", ("v1",))
CSI_NODE = Kind("storage.k8s.io", "CSINode", ("v1",))
ATTACHMENT = Kind("storage.k8s.io", "VolumeAttachment", ("v1",))

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
    VOLUME_CLAIM,
    VOLUME,
    STORAGE_CLASS,
    CSI_DRIVER,
    CSI_NODE,
    ATTACHMENT,
    *LISTED_OWNERS.values(),
    kueue.WORKLOAD,
    *AUTOSCALERS,
    schedulers.NATIVE_GROUP,
    *(item.groups.kind for item in FRAMEWORKS if item.groups is not None),
)
READ = frozenset(kind.key for kind in LISTED)
"""Recorded objects of other kinds are ignored."""
