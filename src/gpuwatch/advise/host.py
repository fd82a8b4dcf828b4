"""What a Pod takes of its host, counted in GPUs: whoever has the CPUs of two GPUs frees neither by a smaller slice."""

from dataclasses import dataclass

from gpuwatch.advise.facts import Facts
from gpuwatch.advise.rounding import rounded_apart
from gpuwatch.model.cluster import Node
from gpuwatch.model.workload_profile import WorkloadProfile
from gpuwatch.placement.landing import unallocated

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class HostShare:
    """gpus: of the Node's GPUs, those that come with the part of the host that one Pod takes (inf: it takes no such
    Pod). pods: as many of them as the Node takes. reason: half a sentence with the request that bounds them."""

    gpus: float
    pods: int
    reason: str


def host_share(profile: WorkloadProfile, facts: Facts) -> HostShare | None:
    """On the workload's Nodes, the least favourable that takes such a Pod at all. None where nothing that is known
    bounds it: it asks for nothing, or its requests or its Nodes' sizes are not known."""
    nodes = [node for node in facts.present_nodes(profile.key) if node.gpu_count and node.cpu_cores]
    found = [share for node in nodes if (share := _on(node, profile)) is not None]
    taking = [share for share in found if share.pods]
    return max(taking or found, key=lambda share: share.gpus, default=None)


def _on(node: Node, profile: WorkloadProfile) -> HostShare | None:
    free = unallocated(node)
    cores, memory = profile.cpu_cores or 0.0, profile.host_memory_bytes or 0.0
    by_cores, by_memory = free.times(cores, 0.0), free.times(0.0, memory)
    pods = min(by_cores, by_memory)
    if pods == float("inf"):
        return None
    if by_cores <= by_memory:
        reason = f"asks for {cores:g} CPU cores, and Node {node.name} has {max(free.cpu_cores, 0.0):g} for such Pods"
    else:
        asked, there = rounded_apart(memory / _GIB, max(free.memory_bytes, 0) / _GIB, digits=1)
        reason = f"asks for {asked} GiB of host memory, and Node {node.name} has {there} GiB for such Pods"
    return HostShare(node.gpu_count / pods if pods else float("inf"), int(pods), reason)
