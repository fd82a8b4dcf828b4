"""A Pod's part of its host, in GPUs: a Pod that takes the CPUs of two GPUs frees no GPU by a smaller slice."""

from typing import NamedTuple

from gpuwatch.act.placement.landing import unallocated
from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.workload_profile import WorkloadProfile
from gpuwatch.size.facts import Facts

_GIB = 2**30


class HostShare(NamedTuple):
    """pods: how many such Pods the host takes. gpus: the Node's GPUs divided by that number, inf for none. reason: the
    resource that limits them, as the end of a sentence."""

    gpus: float
    pods: int
    reason: str


def host_share(profile: WorkloadProfile, facts: Facts) -> HostShare | None:
    """The largest share on the workload's Nodes that take such a Pod at all. None where no known request and no known
    Node size limits it."""
    nodes = (node for node in facts.present_nodes(profile.key) if node.gpu_count and node.cpu_cores)
    found = [share for node in nodes if (share := share_of(node, profile)) is not None]
    return max([share for share in found if share.pods] or found, default=None)


def share_of(node: Node, profile: WorkloadProfile) -> HostShare | None:
    free, cores, memory = unallocated(node), profile.cpu_cores or 0.0, profile.host_memory_bytes or 0.0
    there = f"and Node {node.name} has"
    pods, reason = min(
        (free.times(cores, 0.0), f"{cores:g} CPU cores, {there} {free.cpu_cores:g}"),
        (
            free.times(0.0, memory),
            f"{memory / _GIB:.1f} GiB of host memory, {there} {free.memory_bytes / _GIB:.1f} GiB",
        ),
    )
    if pods == float("inf"):
        return None
    return HostShare(
        max(node.gpu_count, 1) / pods if pods else float("inf"), int(pods), f"asks for {reason} for such Pods"
    )
