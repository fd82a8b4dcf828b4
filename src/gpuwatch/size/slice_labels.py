"""Memory and SMs of GPUs and their MIG slices, by GPU Feature Discovery's labels."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpuwatch.facts.catalog.gpus import find_gpu, profile_name
from gpuwatch.facts.model.cluster import Node

_PRODUCT = "nvidia.com/gpu.product"
_FACT = re.compile(r"nvidia\.com/(?:gpu|mig-(?P<profile>\d+g\.\d+gb[a-z.-]*?))\.(?P<fact>memory|multiprocessors)")
_MIB = 2.0**20


@dataclass(frozen=True, slots=True)
class LabelledSize:
    """Of one GPU or slice; None without a label."""

    memory_bytes: float | None = None
    multiprocessors: int | None = None


def labelled_sizes(nodes: Iterable[Node]) -> Mapping[tuple[str, str], LabelledSize]:
    """(Gpu.name, profile or '') → its size by the labels; where Nodes differ, the smallest. With MIG strategy `mixed`
    there are labels of each profile; with `single` the GPU's labels are those of its slices."""
    least: dict[tuple[str, str, str], int] = {}
    for node in nodes:
        gpu = find_gpu(node.gpu_product)
        if gpu is None:
            continue
        for profile, fact, value in _facts(node.labels):
            key = (gpu.name, profile_name(gpu.name, profile), fact)
            least[key] = min(value, least.get(key, value))
    return {
        (model, profile): LabelledSize(
            (least.get((model, profile, "memory"), 0) * _MIB) or None, least.get((model, profile, "multiprocessors"))
        )
        for model, profile, _ in least
    }


def _facts(labels: Mapping[str, str]) -> Iterator[tuple[str, str, int]]:
    """(profile as the driver spells it, fact, value). Values that are no number above 0 are ignored."""
    _, _, single = labels.get(_PRODUCT, "").removesuffix("-SHARED").partition("-MIG-")
    for label, value in labels.items():
        found = _FACT.fullmatch(label)
        if found and value.isdecimal() and int(value):
            yield found["profile"] or single, found["fact"], int(value)
