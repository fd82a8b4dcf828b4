"""How fast a workload would run on another GPU or on a slice: a roofline with idle time, per cell of its profile.

One unit of time with engine activity g takes, on the target, (1 − g) + g · k. k is the slowdown of the kernels: 1 where
the supply covers their demand, else demand over supply. The time between kernels is the host's and does not change.
Times are averaged over cells, never speeds or demands: k is a maximum, so a mean demand may fit where its peaks do not.

Three answers, by the distribution of the kernels' demand within a window (`demand.drawn`):
    high    every kernel needs the mean: the roofline itself, less the margin of its source
    likely  maximum entropy, resources independent of each other
    low     the same with a margin on the demand where it comes from power; where SM activity is measured, and across
            architectures, Amdahl's bound: kernels need all or nothing
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpuwatch.facts.model.sizing import EvidenceTier, SpeedEstimate
from gpuwatch.facts.model.workload_profile import PowerEnvelope, WorkloadProfile
from gpuwatch.size.capability import Capability, Ratios, ratios
from gpuwatch.size.demand import Demand, Floats, SpeedPolicy, demand_of, drawn


def predict_speed(
    profile: WorkloadProfile,
    now: Capability,
    target: Capability,
    envelope: PowerEnvelope | None = None,
    policy: SpeedPolicy | None = None,
) -> SpeedEstimate | None:
    """Speed on `target` relative to `now`, on which the profile was measured; None where it has no measured cell.

    envelope: of the boards of now.gpu_model; without it power is not used. Raises ValueError where no measure of
    compute is known for both.
    """
    return predict_speeds(profile, now, (target,), envelope, policy)[0]


def predict_speeds(
    profile: WorkloadProfile,
    now: Capability,
    targets: Sequence[Capability],
    envelope: PowerEnvelope | None = None,
    policy: SpeedPolicy | None = None,
) -> tuple[SpeedEstimate | None, ...]:
    """`predict_speed` for several targets, one answer each."""
    policy = policy or SpeedPolicy()
    demand = demand_of(profile, now, envelope, policy)
    if demand is None or not targets:
        return (None,) * len(targets)
    offers = [ratios(now, target) for target in targets]
    rows = [_supply(now, target, offer, demand.tensor_known) for target, offer in zip(targets, offers, strict=True)]
    supply = _Supply(*np.hsplit(np.array(rows), len(_Supply._fields)))
    times = _times(demand, _kernels(demand), supply).tolist()
    means = [float(column @ demand.weight) for column in (demand.busy, demand.sm, demand.dram, demand.tensor)]
    return tuple(
        _estimate(demand, means, offer, now, target, three)
        for offer, target, three in zip(offers, targets, times, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernels:
    """Demands while busy, per cell: means (cells,) and draws (cells, DRAWS)."""

    sm_least: Floats
    sm_most: Floats
    dram_least: Floats
    dram: Floats
    tensor: Floats
    sm_drawn: Floats
    sm_most_drawn: Floats
    dram_drawn: Floats
    tensor_drawn: Floats | None  # None where no cell has any
    free_drawn: Floats  # unused share of the resource that the kernel uses most


def _kernels(demand: Demand) -> _Kernels:
    busy = np.where(demand.busy > 0, demand.busy, 1.0)
    most, dram, tensor = demand.sm_most / busy, demand.dram / busy, demand.tensor / busy
    sm_drawn, dram_drawn = drawn(demand.sm / busy, 0), drawn(dram, 1)
    tensor_drawn = drawn(tensor, 2) if tensor.any() else None
    reach = np.maximum(sm_drawn, dram_drawn)
    if tensor_drawn is not None:
        reach = np.maximum(reach, tensor_drawn)
    return _Kernels(
        sm_least=demand.sm_least / busy,
        sm_most=most,
        dram_least=demand.dram_least / busy,
        dram=dram,
        tensor=tensor,
        sm_drawn=sm_drawn,
        sm_most_drawn=sm_drawn if np.array_equal(demand.sm, demand.sm_most) else drawn(most, 0),
        dram_drawn=dram_drawn,
        tensor_drawn=tensor_drawn,
        free_drawn=1.0 - reach,
    )


class _Supply(NamedTuple):
    """Time per unit of demand on each target, now = 1: (targets, 1). compute and tensor: slowest, likely, fastest."""

    compute_low: Floats
    compute: Floats
    compute_high: Floats
    tensor_low: Floats
    tensor: Floats
    tensor_high: Floats
    memory: Floats
    pcie: Floats
    burst: Floats  # 1 on another architecture, where the kernels' demand is unknown


def _supply(now: Capability, target: Capability, offer: Ratios, tensor_known: bool) -> tuple[float, ...]:
    """The fields of `_Supply` for one target."""
    low, likely = offer.compute.low, offer.compute.likely
    another = now.gpu_model != target.gpu_model
    if another and not tensor_known:  # the SMs' work may all be on tensor cores
        low, likely = min(low, offer.tensor.low), min(likely, offer.tensor.likely)
    pcie = 1.0 if offer.pcie is None else offer.pcie
    tensor = (offer.tensor.low, offer.tensor.likely, offer.tensor.high)
    burst = float(another and now.architecture != target.architecture)
    return (*(1.0 / rate for rate in (low, likely, offer.compute.high, *tensor, offer.memory, pcie)), burst)


def _times(demand: Demand, kernels: _Kernels, supply: _Supply) -> Floats:
    """Time on each target for one unit of time now: (targets, 3), the slowest first."""
    low = _slowest(demand, kernels, supply)
    likely = _likely(kernels, supply)
    high = np.maximum.reduce(
        [
            kernels.sm_least * supply.compute_high,
            kernels.dram_least * supply.memory,
            kernels.tensor * supply.tensor_high,
            np.minimum.reduce([supply.compute_high, supply.memory, supply.tensor_high, np.ones_like(supply.memory)])
            + np.zeros_like(kernels.tensor),
        ]
    )
    if demand.tier is EvidenceTier.UTILISATION:
        low = np.maximum.reduce([supply.compute_low, supply.memory, supply.tensor_low, np.ones_like(supply.memory)])
        low = likely = low + np.zeros_like(high)
    cells = 1.0 - demand.busy + demand.busy * np.stack((low, likely, high))
    # A slower link: at the high end transfers overlap with kernels, else they add to them.
    cells[:2] += demand.pcie * np.maximum(supply.pcie - 1.0, 0.0)
    cells[2] = np.maximum(cells[2], demand.pcie * np.maximum(supply.pcie, 1.0))
    times = cells @ demand.weight
    # Unknown signals can push the likely time beyond an end: clamp it.
    ordered: Floats = np.stack((times[0], np.minimum(times[1], times[0]), times.min(axis=0)), axis=1)
    return ordered


def _slowest(demand: Demand, kernels: _Kernels, supply: _Supply) -> Floats:
    """Times of the kernels, now = 1, at the pessimistic end; never below 1."""
    compute, memory, tensor = supply.compute_low, supply.memory, supply.tensor_low
    entropic = np.maximum(1.0, _pressure(kernels.sm_most_drawn, kernels, compute, memory, tensor)).mean(axis=-1)
    amdahl = np.maximum.reduce(
        [
            entropic,
            1.0 + kernels.sm_most * (compute - 1.0),
            1.0 + kernels.dram * (memory - 1.0),
            1.0 + kernels.tensor * (tensor - 1.0),
        ]
    )
    burst = np.maximum(demand.burst, supply.burst)
    slowest: Floats = (1.0 - burst) * entropic + burst * amdahl
    return slowest


def _likely(kernels: _Kernels, supply: _Supply) -> Floats:
    """Times of the kernels, now = 1: time that no resource limits (latency) stays, the rest changes."""
    pressure = _pressure(kernels.sm_drawn, kernels, supply.compute, supply.memory, supply.tensor)
    times: Floats = np.maximum(pressure, np.minimum(1.0, kernels.free_drawn + pressure)).mean(axis=-1)
    return times


def _pressure(sm: Floats, kernels: _Kernels, compute: Floats, memory: Floats, tensor: Floats) -> Floats:
    """Demand over supply of the scarcest resource, per kernel: (targets, cells, DRAWS)."""
    most = sm * compute[:, :, None]
    np.maximum(most, kernels.dram_drawn * memory[:, :, None], out=most)
    if kernels.tensor_drawn is not None:
        np.maximum(most, kernels.tensor_drawn * tensor[:, :, None], out=most)
    return most


def _estimate(
    demand: Demand, means: Sequence[float], offer: Ratios, now: Capability, target: Capability, times: Sequence[float]
) -> SpeedEstimate:
    if (now.gpu_model, now.mig_profile) == (target.gpu_model, target.mig_profile):
        return SpeedEstimate(
            low_ratio=1.0, likely_ratio=1.0, high_ratio=1.0, tier=demand.tier, basis="It stays where it was measured."
        )
    return SpeedEstimate(
        low_ratio=1.0 / times[0],
        likely_ratio=1.0 / times[1],
        high_ratio=1.0 / times[2],
        tier=demand.tier,
        basis=_basis(means, demand.tier, offer, now, target),
    )


_SOURCES = {
    EvidenceTier.SM: "SM, memory and engine activity",
    EvidenceTier.POWER: "board power relative to the most that such boards drew, memory and engine activity",
    EvidenceTier.ENGINE: "engine and memory activity, without a signal of how many SMs are used",
    EvidenceTier.UTILISATION: "GPU utilisation alone, which does not tell how much of the GPU is used: measure first",
}


def _basis(means: Sequence[float], tier: EvidenceTier, offer: Ratios, now: Capability, target: Capability) -> str:
    busy, sm, dram, tensor = means
    need = {
        "SMs": sm / offer.compute.likely,
        "memory bandwidth": dram / offer.memory,
        "tensor cores": tensor / offer.tensor.likely,
    }
    scarce = max(need, key=lambda name: need[name])
    bound = f"its tightest resource is {scarce}" if need[scarce] > busy else "every resource suffices on average"
    across = (
        ""
        if now.gpu_model == target.gpu_model
        else " Across models the range covers the peak rates of both; the host's part is assumed unchanged."
    )
    return (
        f"Busy {busy:.0%} of the time; on {target.name} {bound}: {offer.compute.likely:.2f} of the compute and "
        f"{offer.memory:.2f} of the bandwidth of {now.name}. From {_SOURCES[tier]}.{across}"
    )
