"""What a GPU or a MIG slice offers, by the catalog and by GPU Feature Discovery's labels, and relative to another; and
under which condition an image that runs on one GPU model runs on another.

NVIDIA's "Blackwell Compatibility Guide": binary code runs on the same major version and an equal or higher minor one;
the driver compiles PTX for newer GPUs. What an image carries is not in telemetry.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import sqrt

from gpuwatch.facts.catalog.gpus import Gpu, find_gpu, gpus, processors, profile_name
from gpuwatch.facts.catalog.mig import MigGeometry, MigProfile, geometry
from gpuwatch.facts.frameworks.keys import COMPUTE_CAPABILITIES, stated
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """What a whole GPU or one MIG slice offers. None: unknown.

    compute_per_second: multiprocessors × boost clock, the rate at which warps are issued. fp32_flops_per_second and
    fp16_flops_per_second: peaks outside and on the tensor cores. memory_bandwidth_bytes_per_second: of the slice's
    own memory. pcie_bytes_per_second: of the link, both ways; MIG does not divide it. memory_bytes: what a slice has;
    of a whole GPU the total. assumed: a sentence for each value that no source gives and a lower bound replaces.
    idle_power_watts: of the whole board, or a lower bound of it. power_limit_watts: the board's default limit.
    """

    gpu_model: str
    mig_profile: str  # '' without MIG
    architecture: str  # '' where unknown
    compute_per_second: float | None
    fp32_flops_per_second: float | None
    fp16_flops_per_second: float | None
    memory_bandwidth_bytes_per_second: float
    pcie_bytes_per_second: float | None
    memory_bytes: float
    power_limit_watts: float
    idle_power_watts: float
    assumed: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """'A100-SXM4-40GB 2g.10gb'."""
        return f"{self.gpu_model} {self.mig_profile}".strip()


@dataclass(frozen=True, slots=True)
class Span:
    """A ratio of capabilities that is known only to lie between two bounds. low ≤ likely ≤ high, all above 0."""

    low: float
    likely: float
    high: float

    @classmethod
    def at(cls, ratio: float) -> "Span":
        return cls(ratio, ratio, ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Target over present. pcie: None where a link is unknown."""

    compute: Span
    tensor: Span
    memory: float
    pcie: float | None


def capability_of(
    gpu: Gpu, mig_profile: str = "", labelled: Mapping[tuple[str, str], LabelledSize] | None = None
) -> Capability:
    """What a model of the catalog offers, whole or as one MIG slice (a profile's name in any driver's spelling). A
    slice's memory and SMs are those in the labels of the fleet's Nodes (`labelled`); else those that were measured
    (`mig.json`, `processors.csv`); else a lower bound. Raises ValueError for a profile that the model does not have."""
    processor = processors().get(gpu.name)
    compute = processor.multiprocessors * processor.boost_clock_hertz if processor else None
    compute_share, memory_share, profile_name = 1.0, 1.0, ""
    known, assumed = (labelled or {}).get((gpu.name, ""), LabelledSize()), []
    memory = known.memory_bytes or float(gpu.memory_bytes)
    if mig_profile:
        shape = geometry(gpu.mig_family)
        profile = shape.profile(mig_profile) if shape else None
        if shape is None or profile is None:
            names = ", ".join(shape.plain_profiles) if shape else "none: it cannot be cut"
            raise ValueError(f"{gpu.name} has no MIG profile {mig_profile!r}; it has {names}")
        profile_name, memory_share = profile.name, shape.memory_ratio(profile)
        known = (labelled or {}).get((gpu.name, profile_name), LabelledSize())
        measured = known.memory_bytes or profile.memory_bytes
        memory = measured or _least_memory(shape, profile, memory)
        if measured is None:
            assumed.append(f"No source gives the memory of {gpu.name} {profile_name}")
        share = known.multiprocessors / processor.multiprocessors if processor and known.multiprocessors else None
        share = share or _measured_share(gpu, _kind(profile))
        if share is None:
            assumed.append(f"No source gives the SMs of {gpu.name} {profile_name}")
        compute_share = share or _least_share(gpu, shape, profile)
    return Capability(
        gpu_model=gpu.name,
        mig_profile=profile_name,
        architecture=processor.architecture if processor else "",
        compute_per_second=times(compute, compute_share),
        fp32_flops_per_second=times(processor.fp32_flops_per_second if processor else None, compute_share),
        fp16_flops_per_second=times(gpu.fp16_dense_flops_per_second, compute_share),
        memory_bandwidth_bytes_per_second=gpu.memory_bandwidth_bytes_per_second * memory_share,
        pcie_bytes_per_second=processor.pcie_bytes_per_second if processor else None,
        memory_bytes=memory,
        power_limit_watts=gpu.power_limit_watts,
        idle_power_watts=_idle_power(gpu),
        assumed=tuple(f"{what}; the smallest share of such a slice on any measured GPU is used." for what in assumed),
    )


def _least_memory(shape: MigGeometry, profile: MigProfile, whole_bytes: float) -> float:
    """A lower bound in bytes: n times the memory of a smaller slice whose size fits in n times. Without such a slice:
    the smallest share of its GPU's memory that a slice of this size has on any measured GPU."""
    parts = [(profile.size // one.size) * one.memory_bytes for one in shape.profiles if one.memory_bytes]
    shares = [
        one.memory_bytes / gpu.memory_bytes
        for gpu, other in _cut_alike(shape)
        for one in other.profiles
        if one.size == profile.size and one.memory_bytes
    ]
    return max(parts, default=0.0) or whole_bytes * min(shares, default=shape.memory_ratio(profile))


def _measured_share(gpu: Gpu, kind: str) -> float | None:
    """SMs of the slice as a share of the GPU's SMs without MIG (an A100 has 108, and 98 with MIG)."""
    processor = processors().get(gpu.name)
    found = processor.slice_multiprocessors.get(kind) if processor else None
    return found / processor.multiprocessors if processor and found else None


def _least_share(gpu: Gpu, shape: MigGeometry, profile: MigProfile) -> float:
    """A lower bound: the share of this GPU's 1g times the compute slices. Without a measured 1g: the smallest share of
    such a slice on any measured GPU."""
    one = _measured_share(gpu, "1g")
    if one is not None:
        return one * profile.compute_slices
    shares = [_measured_share(other, _kind(profile)) for other, _ in _cut_alike(shape)]
    return min((share for share in shares if share), default=profile.compute_slices / shape.compute_total)


def _cut_alike(shape: MigGeometry) -> Iterable[tuple[Gpu, MigGeometry]]:
    """Models that are cut on the same grid, each with its own geometry."""
    for gpu in gpus():
        other = geometry(gpu.mig_family)
        if other is not None and (other.grid_units, other.compute_total) == (shape.grid_units, shape.compute_total):
            yield gpu, other


def ratios(now: Capability, target: Capability) -> Ratios:
    """Target over present. Between architectures the span covers the ratios of the different peaks.

    On the same chip the span of compute runs from the share of SMs to the share of bandwidth, if that is larger:
    3g has 3/7 of the SMs and 4/8 of the memory, and the stalls within SM_ACTIVE shrink with bandwidth per SM. Raises
    ValueError where no measure of compute is known for both.
    """
    if now == target:
        return Ratios(compute=Span.at(1.0), tensor=Span.at(1.0), memory=1.0, pcie=1.0)
    memory = target.memory_bandwidth_bytes_per_second / now.memory_bandwidth_bytes_per_second
    tensor = _ratio(now.fp16_flops_per_second, target.fp16_flops_per_second)
    issue = _ratio(now.compute_per_second, target.compute_per_second)
    fp32 = _ratio(now.fp32_flops_per_second, target.fp32_flops_per_second)
    measures = [one for one in (issue, fp32) if one is not None] or ([tensor] if tensor is not None else [])
    if not measures:
        raise ValueError(f"no compute rate of both {target.name} and {now.name} is known; add both to processors.csv")
    if now.gpu_model == target.gpu_model:
        compute = Span(measures[0], sqrt(measures[0] * max(measures[0], memory)), max(measures[0], memory))
        if measures[0] > 1:  # from a slice to more of the card: the loss by less bandwidth per SM is unknown
            compute = Span(min(measures[0], memory), min(measures[0], memory), measures[0])
    else:
        compute = Span(min(measures), sqrt(min(measures) * max(measures)), max(measures))
    return Ratios(
        compute=compute,
        tensor=compute if tensor is None else Span.at(tensor),
        memory=memory,
        pcie=_ratio(now.pcie_bytes_per_second, target.pcie_bytes_per_second),
    )


def _kind(profile: MigProfile) -> str:
    """The profile's name in processors.csv: '1g', '1g double-memory'. Variants with media engines have the same SMs."""
    kind = profile.name.partition(".")[0]
    return f"{kind} double-memory" if profile.double_memory else kind


def _idle_power(gpu: Gpu) -> float:
    """Watts: the model's own; else the lowest of boards with the same chip; else the power limit times the catalog's
    lowest ratio of idle power to limit. Too low a value overestimates a workload's demand, never underestimates it."""
    if gpu.idle_power_watts is not None:
        return gpu.idle_power_watts
    known = [(one, one.idle_power_watts) for one in gpus() if one.idle_power_watts is not None]
    kin = [watts for one, watts in known if _chip(one) is not None and _chip(one) == _chip(gpu)]
    return min(kin) if kin else gpu.power_limit_watts * min(watts / one.power_limit_watts for one, watts in known)


def _chip(gpu: Gpu) -> tuple[str, int] | None:
    processor = processors().get(gpu.name)
    return (processor.architecture, processor.multiprocessors) if processor else None


def times(value: float | None, factor: float) -> float | None:
    """None stays None."""
    return None if value is None else value * factor


def _ratio(now: float | None, target: float | None) -> float | None:
    return target / now if now is not None and target is not None else None


# The first whose tensor cores have the format: NVIDIA's CUDA Programming Guide, "Compute Capabilities".
_FORMATS = {"BF16": 8.0, "FP8": 8.9, "FP4": 10.0}


def lost_formats(now: Gpu, target: Gpu) -> list[str]:
    """Number formats of the tensor cores of `now` that `target` lacks; none where either is not NVIDIA's."""
    have, need = now.compute_capability, target.compute_capability
    return [name for name, first in _FORMATS.items() if have and need and need < first <= have]


def built_for(gpu: Gpu) -> str:
    """What an image has to be built for: NVIDIA's compute capability, others' architecture."""
    return str(gpu.compute_capability or gpu.architecture)


def condition(now: Gpu, target: Gpu, allowed: Iterable[str], annotated: Iterable[tuple[str, Mapping[str, str]]]) -> str:
    """A sentence; '' where the image runs on `target`, or where `allowed` or the first annotation names it."""
    _, annotated_for = stated(annotated, COMPUTE_CAPABILITIES)
    have, need = now.compute_capability, target.compute_capability
    if built_for(target) in {built_for(now), *allowed, *(name.strip() for name in annotated_for.split(","))}:
        return ""
    if have is None or need is None:
        return f"Only if the image is built for {target.architecture}."
    if int(have) == int(need) and have <= need:
        return ""
    now_sm, target_sm = (f"sm_{capability}".replace(".", "") for capability in (have, need))
    found = [f"Only if the image carries {target_sm}, or PTX that the driver can compile for it"]
    found += [f"{name} is not available" for name in lost_formats(now, target)]
    # From sm_90 on there are targets for one compute capability alone, such as sm_90a.
    found += [f"kernels for {now_sm}a do not run"] if have >= 9.0 else []
    return f"{'; '.join(found)}."
