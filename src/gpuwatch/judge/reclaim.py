"""Nodes that change on purpose: taken back by their provider (being a spot Node is not enough), under repair by another
remediator, or with GPUs that are being set up anew."""

from gpuwatch.facts.catalog.detectors import node_labels
from gpuwatch.facts.model.cluster import Node

TAINTS = (
    # The three that the kubernetes-mixin's KubeNodeUnreachable leaves out.
    "cloud.google.com/impending-node-termination",  # GKE's graceful termination, of Spot VMs too
    "aws-node-termination-handler/",  # spot-itn, scheduled-maintenance, asg-lifecycle-termination, …
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",  # Karpenter 1.x; before that karpenter.sh/disruption=disrupting
    "karpenter.sh/disruption",
    "cloudprovider.azure.microsoft.com/draining",  # Azure's cloud provider, of a Spot eviction
    "node.cloudprovider.kubernetes.io/shutdown",
)
"""Keys of taints by which a provider or an autoscaler announces that the Node goes; one that ends in / is a prefix."""

_SOON = frozenset({"rebalance-recommendation"})  # of aws-node-termination-handler: the Node may stay
CONDITIONS = ("PreemptScheduled", "TerminateScheduled")
"""Conditions by which AKS' node problem detector announces the same."""


# MIG manager stops the exporter while it works, and gives every instance a new identity.
_MIG_STATE = "nvidia.com/mig.config.state"
_MIG_CHANGING = frozenset({"pending", "rebooting"})
_MIG_FAILED = "failed"
# In every other state the GPU Operator may have unloaded the driver.
_DRIVER_STATE = "nvidia.com/gpu-driver-upgrade-state"
_DRIVER_FAILED = "upgrade-failed"
_DRIVER_AT_REST = frozenset({"", "upgrade-done", "upgrade-required", _DRIVER_FAILED})
# The GPU Operator gives all GPUs of such a Node to virtual machines.
_WORKLOADS = "nvidia.com/gpu.workload.config"
_FOR_VMS = frozenset({"vm-passthrough", "vm-vgpu"})

REMEDIATORS = (
    ("NVSentinel", "label", "dgxc.nvidia.com/nvsentinel-state"),
    ("medik8s", "taint", "medik8s.io/remediation"),
)
"""Other remediators, and the label or taint that they put on a Node while they drain or repair it. Those that only use
a cordon or the taints above (Karpenter, EKS, GKE) need no row here."""


def remediated(node: Node) -> str:
    """The remediator that repairs this Node already, in words; '' for none."""
    return next((f"{who} is at work on {node.name} ({mark})" for who, mark in remediators(node)), "")


def remediators(node: Node) -> list[tuple[str, str]]:
    """Each one that repairs this Node now, and the label or taint by which it says so."""
    taints, found = {taint.key for taint in node.taints}, []
    for who, what, key in REMEDIATORS:
        if key in (taints if what == "taint" else node.labels):
            found.append((who, f"{what} {key}={node.labels[key]}" if what == "label" else f"{what} {key}"))
    marked = (node_labels()[item] for item in node.labels.items() if item in node_labels())
    return [*found, *((row.detector, f"label {row.key}={row.value}") for row in marked if row.repairs)]


def reclaimed(node: Node) -> str:
    """The taint or condition that announces the Node's end, in words; '' where there is none."""
    for taint in node.taints:
        if taint.effect == "PreferNoSchedule" or taint.key.rpartition("/")[2] in _SOON:
            continue
        if any(taint.key == key or (key.endswith("/") and taint.key.startswith(key)) for key in TAINTS):
            return f"the taint {taint.key}"
    for condition in node.conditions:
        if condition.type in CONDITIONS and condition.status == "True":
            return f"the condition {condition.type}"
    return ""


def being_changed(node: Node | None) -> str:
    """The planned change of the Node or its GPUs that is under way; '' for none."""
    if node is None:
        return ""
    if why := reclaimed(node):
        return f"its provider takes the Node back ({why})"
    if (given := node.labels.get(_WORKLOADS, "")) in _FOR_VMS:
        return f"its GPUs are given to virtual machines ({given})"
    mig = node.labels.get(_MIG_STATE, "")
    if mig in _MIG_CHANGING:
        return f"its MIG layout is being changed ({mig})"
    driver = node.labels.get(_DRIVER_STATE, "")
    if driver not in _DRIVER_AT_REST:
        return f"its driver is being upgraded ({driver})"
    return ""


def change_failed(node: Node | None) -> str:
    """The planned change of the Node's GPUs that its operator gave up, and the label that says so; '' for none."""
    labels = {} if node is None else node.labels
    if labels.get(_DRIVER_STATE) == _DRIVER_FAILED:
        return f"its driver upgrade has failed ({_DRIVER_STATE}={_DRIVER_FAILED})"
    if labels.get(_MIG_STATE) == _MIG_FAILED:
        return f"its MIG layout could not be applied ({_MIG_STATE}={_MIG_FAILED})"
    return ""
