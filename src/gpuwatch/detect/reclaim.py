"""Nodes whose provider announced that it takes them back; a spot or preemptible Node alone is not one of them."""

from gpuwatch.model.cluster import Node

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
