"""What a GPU or a MIG slice offers, and what one offers relative to another."""

from dataclasses import dataclass
from math import sqrt

from gpuwatch.catalog.gpus import Gpu, gpus
from gpuwatch.catalog.mig import MigProfile, geometry
from gpuwatch.catalog.processors import processors


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """What a whole GPU or one MIG slice offers. None: unknown.

    compute_per_second: multiprocessors × boost clock, the rate at which warps are issued. fp32_flops_per_second and
    fp16_flops_per_second: peaks outside and on the tensor cores. memory_bandwidth_bytes_per_second: of the slice's
    own memory. pcie_bytes_per_second: of the link, both ways; MIG does not divide it. memory_bytes: nominal.
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

    @property
    def mig_on(self) -> bool:
        return bool(self.mig_profile)

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


def capability_of(gpu: Gpu, mig_profile: str = "") -> Capability:
    """What a model of the catalog offers, whole or as one MIG slice (a profile's or its resource's name).

    `processors.csv` has the SMs of slices (MIG leaves 98 of an A100's 108); without an entry they are the slice's share
    of compute. Raises ValueError for a profile that the model does not have.
    """
    processor = processors().get(gpu.name)
    compute = processor.multiprocessors * processor.boost_clock_hertz if processor else None
    compute_share, memory_share = 1.0, 1.0
    profile_name = ""
    if mig_profile:
        shape = geometry(gpu.mig_family)
        profile = shape.profile(mig_profile) if shape else None
        if shape is None or profile is None:
            known = ", ".join(shape.plain_profiles) if shape else "none: it cannot be cut"
            raise ValueError(f"{gpu.name} has no MIG profile {mig_profile!r}; it has {known}")
        profile_name = profile.name
        compute_share, memory_share = shape.compute_ratio(profile), shape.memory_ratio(profile)
        slices = processor.slice_multiprocessors if processor else {}
        if processor and _kind(profile) in slices:
            compute_share = slices[_kind(profile)] / processor.multiprocessors
    return Capability(
        gpu_model=gpu.name,
        mig_profile=profile_name,
        architecture=processor.architecture if processor else "",
        compute_per_second=times(compute, compute_share),
        fp32_flops_per_second=times(processor.fp32_flops_per_second if processor else None, compute_share),
        fp16_flops_per_second=times(gpu.fp16_dense_flops_per_second, compute_share),
        memory_bandwidth_bytes_per_second=gpu.memory_bandwidth_bytes_per_second * memory_share,
        pcie_bytes_per_second=processor.pcie_bytes_per_second if processor else None,
        memory_bytes=gpu.memory_bytes * memory_share,
        power_limit_watts=gpu.power_limit_watts,
        idle_power_watts=_idle_power(gpu),
    )


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
    """Its name in processors.csv: '1g', '1g double-memory'. Variants with media extensions have the same SMs."""
    kind = profile.name.partition(".")[0]
    return f"{kind} double-memory" if profile.double_memory else kind


def _idle_power(gpu: Gpu) -> float:
    """The model's own; else the least of the boards with the same chip; else the least share of its power limit that
    any model draws at rest. Too low a floor makes a workload look large, never small."""
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
