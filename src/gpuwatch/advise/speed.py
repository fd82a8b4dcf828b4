"""How fast a workload would run on another GPU or on a slice: a roofline with idle time, per cell of its profile.

One unit of time with engine activity g takes, on the target, (1 − g) + g · k, where k is how much longer the kernels
take: 1 where they find all they need, demand over supply where they do not. The time between kernels belongs to the
host and does not shrink or grow. Times are averaged over cells, never speeds and never demands, as the maximum within
k bends: what a mean demand fits into, its peaks may not.

Three answers, from what the kernels' demand within a window may look like (`demand.drawn`):
    high    every kernel asks for the mean: the roofline itself
    likely  maximum entropy, resources independent of each other
    low     the same with a margin on the demand where it comes from power; where SM activity is measured, half way,
            in time, from there to Amdahl's bound, where kernels ask for all or nothing
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuwatch.advise.capability import Capability, Ratios, Span, capability_of, ratios
from gpuwatch.advise.demand import Demand, Floats, SpeedPolicy, demand_of, drawn
from gpuwatch.model.sizing import EvidenceTier, SpeedEstimate
from gpuwatch.model.workload_profile import PowerEnvelope, WorkloadProfile

__all__ = ["Capability", "SpeedPolicy", "capability_of", "predict_speed", "predict_speeds"]


def predict_speed(
    profile: WorkloadProfile,
    now: Capability,
    target: Capability,
    envelope: PowerEnvelope | None = None,
    policy: SpeedPolicy | None = None,
) -> SpeedEstimate | None:
    """Speed on `target` relative to `now`, on which the profile was measured; None where it has no measured cell.

    envelope: of the boards of now.gpu_model; without it, power says nothing about SMs. Raises ValueError where nothing
    tells how the two compute against each other.
    """
    return predict_speeds(profile, now, (target,), envelope, policy)[0]


def predict_speeds(
    profile: WorkloadProfile,
    now: Capability,
    targets: Sequence[Capability],
    envelope: PowerEnvelope | None = None,
    policy: SpeedPolicy | None = None,
) -> tuple[SpeedEstimate | None, ...]:
    """`predict_speed` for several targets, one answer each: the profile is read once."""
    policy = policy or SpeedPolicy()
    demand = demand_of(profile, now, envelope, policy)
    if demand is None:
        return (None,) * len(targets)
    kernels = _kernels(demand)
    return tuple(_estimate(demand, kernels, now, target) for target in targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernels:
    """Demands while busy, per cell: means (cells,) and draws (cells, DRAWS)."""

    sm: Floats
    dram: Floats
    tensor: Floats
    sm_drawn: Floats
    sm_drawn_wary: Floats  # with the margin of its source
    dram_drawn: Floats
    tensor_drawn: Floats


def _kernels(demand: Demand) -> _Kernels:
    busy = np.where(demand.busy > 0, demand.busy, 1.0)
    sm, dram, tensor = demand.sm / busy, demand.dram / busy, demand.tensor / busy
    wary = np.minimum(demand.sm + demand.margin, demand.busy) / busy
    return _Kernels(
        sm=sm,
        dram=dram,
        tensor=tensor,
        sm_drawn=drawn(sm, 0),
        sm_drawn_wary=drawn(wary, 0),
        dram_drawn=drawn(dram, 1),
        tensor_drawn=drawn(tensor, 2),
    )


def _estimate(demand: Demand, kernels: _Kernels, now: Capability, target: Capability) -> SpeedEstimate:
    if (now.gpu_model, now.mig_profile) == (target.gpu_model, target.mig_profile):
        return SpeedEstimate(
            low_ratio=1.0, likely_ratio=1.0, high_ratio=1.0, tier=demand.tier, basis="It stays where it was measured."
        )
    offer = ratios(now, target)
    # Without tensor activity, tensor cores may be all that the SMs work with; on one chip both go together.
    same = demand.tensor_known or now.gpu_model == target.gpu_model
    compute = offer.compute if same else _lower(offer.compute, offer.tensor)
    worst = 1.0 / min(compute.low, offer.memory, offer.tensor.low, 1.0)
    best = 1.0 / max(compute.high, offer.memory, offer.tensor.high, 1.0)

    amdahl = np.maximum.reduce(
        [
            1.0 + _wary(demand, kernels) * (1.0 / compute.low - 1.0),
            1.0 + kernels.dram * (1.0 / offer.memory - 1.0),
            1.0 + kernels.tensor * (1.0 / offer.tensor.low - 1.0),
            np.ones_like(kernels.sm),
        ]
    )
    wary = np.maximum(1.0, _pressure(kernels.sm_drawn_wary, kernels, compute.low, offer.memory, offer.tensor.low))
    low = (1.0 - demand.burst) * wary.mean(axis=1) + demand.burst * amdahl
    pressure = _pressure(kernels.sm_drawn, kernels, compute.likely, offer.memory, offer.tensor.likely)
    reach = np.maximum.reduce([kernels.sm_drawn, kernels.dram_drawn, kernels.tensor_drawn])
    # What no resource limits (latency) takes as long as before; what one limits changes with it.
    likely = np.maximum(pressure, np.minimum(1.0, 1.0 - reach + pressure)).mean(axis=1)
    high = np.maximum.reduce(
        [
            kernels.sm / compute.high,
            kernels.dram / offer.memory,
            kernels.tensor / offer.tensor.high,
            np.full_like(kernels.sm, best),
        ]
    )
    # Where SM or memory demand is unknown it may be all of the busy time, and the middle is no more than a middle.
    blind = ~(demand.sm_known & demand.dram_known)
    low = np.where(blind, worst, low)
    likely = np.where(blind, (low + np.maximum(high, likely)) / 2, likely)
    if demand.tier is EvidenceTier.UTILISATION:
        low = likely = np.full_like(low, worst)
    times = [_time(demand, offer, kernel) for kernel in (low, likely, high)]
    slow, middle, fast = times[0], min(times[1], times[0]), min(times)
    return SpeedEstimate(
        low_ratio=1.0 / slow,
        likely_ratio=1.0 / middle,
        high_ratio=1.0 / fast,
        tier=demand.tier,
        basis=_basis(demand, offer, compute, now, target),
    )


def _lower(compute: Span, tensor: Span) -> Span:
    return Span(min(compute.low, tensor.low), min(compute.likely, tensor.likely), compute.high)


def _wary(demand: Demand, kernels: _Kernels) -> Floats:
    busy = np.where(demand.busy > 0, demand.busy, 1.0)
    wary: Floats = np.minimum(kernels.sm + demand.margin / busy, 1.0)
    return wary


def _pressure(sm: Floats, kernels: _Kernels, compute: float, memory: float, tensor: float) -> Floats:
    """Demand over supply of the scarcest resource, per kernel: (cells, DRAWS)."""
    most: Floats = np.maximum.reduce([sm / compute, kernels.dram_drawn / memory, kernels.tensor_drawn / tensor])
    return most


def _time(demand: Demand, offer: Ratios, kernel: Floats) -> float:
    """Time on the target for one unit of time now."""
    on_device = demand.busy * kernel
    if offer.pcie is not None:
        on_device = np.maximum(on_device, demand.pcie / offer.pcie)
    return float(np.sum(demand.weight * (1.0 - demand.busy + on_device)))


_SOURCES = {
    EvidenceTier.SM: "SM, memory and engine activity",
    EvidenceTier.POWER: "board power against what such boards were seen to draw, memory and engine activity",
    EvidenceTier.ENGINE: "engine and memory activity, without anything that tells how many SMs are used",
    EvidenceTier.UTILISATION: "GPU utilisation alone, which does not tell how much of the GPU is used: measure first",
}


def _basis(demand: Demand, offer: Ratios, compute: Span, now: Capability, target: Capability) -> str:
    """What bounds it, and what it was computed from."""
    mean = {name: float(np.sum(demand.weight * getattr(demand, name))) for name in ("busy", "sm", "dram", "tensor")}
    need = {
        "SMs": mean["sm"] / compute.likely,
        "memory bandwidth": mean["dram"] / offer.memory,
        "tensor cores": mean["tensor"] / offer.tensor.likely,
    }
    scarce = max(need, key=lambda name: need[name])
    bound = f"{scarce} bound it" if need[scarce] > mean["busy"] else f"{scarce} come nearest to bounding it"
    across = "" if now.gpu_model == target.gpu_model else " Across models the span covers what the peak rates say."
    return (
        f"Busy {mean['busy']:.0%} of the time; on {target.name} {bound}: {compute.likely:.2f} of the compute and "
        f"{offer.memory:.2f} of the bandwidth of {now.name}. From {_SOURCES[demand.tier]}.{across}"
    )
