"""What GPU Feature Discovery's labels say of the memory and the SMs of GPUs and of their MIG slices."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpuwatch.catalog.gpus import find_gpu, profile_name
from gpuwatch.model.cluster import Node

_PRODUCT = "nvidia.com/gpu.product"
_FACT = re.compile(r"nvidia\.com/(?:gpu|mig-(?P<profile>\d+g\.\d+gb[a-z.-]*?))\.(?P<fact>memory|multiprocessors)")
_MIB = 2.0**20


@dataclass(frozen=True, slots=True)
class Told:
    """Of one GPU or slice; None where no label says it."""

    memory_bytes: float | None = None
    multiprocessors: int | None = None


def told_by_labels(nodes: Iterable[Node]) -> Mapping[tuple[str, str], Told]:
    """(Gpu.name, profile or '') → what the labels say; where Nodes differ, the least.

    With MIG strategy `mixed` there are labels of each profile; with `single` the GPU's labels are those of its slices.
    """
    least: dict[tuple[str, str, str], int] = {}
    for node in nodes:
        gpu = find_gpu(node.gpu_product)
        if gpu is None:
            continue
        for profile, fact, value in _facts(node.labels):
            key = (gpu.name, profile_name(gpu.name, profile), fact)
            least[key] = min(value, least.get(key, value))
    return {
        (model, profile): Told(
            (least.get((model, profile, "memory"), 0) * _MIB) or None, least.get((model, profile, "multiprocessors"))
        )
        for model, profile, _ in least
    }


def _facts(labels: Mapping[str, str]) -> Iterator[tuple[str, str, int]]:
    """(profile as the driver spells it, fact, value). A value that is no number above 0 says nothing."""
    _, _, single = labels.get(_PRODUCT, "").removesuffix("-SHARED").partition("-MIG-")
    for label, value in labels.items():
        found = _FACT.fullmatch(label)
        if found and value.isdecimal() and int(value):
            yield found["profile"] or single, found["fact"], int(value)
