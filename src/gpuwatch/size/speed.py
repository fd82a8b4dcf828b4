"""How fast a workload would run on another GPU or on a slice: a roofline with idle time, per cell of its profile.

One unit of time with engine activity g takes, on the target, (1 − g) + g · k. k is the slowdown of the kernels: 1 where
the supply covers their demand, else demand over supply. The time between kernels is the host's and does not change.
Times are averaged over cells, never speeds or demands: k is a maximum, so a mean demand may fit where its peaks do not.

Three answers, by the distribution of the kernels' demand within a window (`drawn`):
    high    every kernel needs the mean: the roofline itself, less the margin of its source
    likely  maximum entropy, resources independent of each other
    low     the same with a margin on the demand where it comes from power; where SM activity is measured, and across
            architectures, Amdahl's bound: kernels need all or nothing

The kernels' demand, from the cells: a window gives the share g of time with engine activity and the mean share a of
occupied SMs over 30 seconds. It does not tell whether all kernels filled a/g of the card, or a few filled it and the
others ran on one SM. On a slice only the second case gets slower. The model uses the distribution of maximum entropy
with the known mean: a truncated exponential on [0, 1], which has no parameter to fit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuwatch.facts.model.sizing import EvidenceTier, SpeedEstimate
from gpuwatch.facts.model.workload_profile import PowerEnvelope, WorkloadProfile
from gpuwatch.size.capability import Capability, Ratios, ratios

Floats: TypeAlias = NDArray[np.float64]

# Kernels drawn per window, each with its demand for SMs, memory and tensor cores.
DRAWS = 64
_MEANS = 513


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Arrays with one entry per cell of the profile: ratios of the present GPU or slice over all time, from 0 to 1.

    weight: sums to 1. busy: g, the upper bound of all others. sm lies between sm_least and sm_most: equal where SM
    activity is measured, a margin apart where power replaces it, else as far apart as engine activity allows.
    dram_least is 0 where memory activity is unknown, and dram is then sm_most. tensor and pcie are 0 where unknown;
    see tensor_known. burst: position of the pessimistic end between maximum entropy (0) and Amdahl's bound (1).
    """

    weight: Floats
    busy: Floats
    sm_least: Floats
    sm: Floats
    sm_most: Floats
    dram_least: Floats
    dram: Floats
    tensor: Floats
    pcie: Floats
    burst: Floats
    tensor_known: bool
    tier: EvidenceTier


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedPolicy:
    """How signals become demand: no settings, but the evaluation measures what each of them costs.

    dram_peak_ratio: DRAM activity that a stream of copies reaches in practice; it counts as full. 0.8 (KempnerPulse).
    power_margin_ratio: error of SM activity that is estimated from board power, as a share of the busy time: kernels
        that wait draw less than kernels that compute. 0.1: nine of ten of MISO's speeds on slices are at or above the
        pessimistic end, and none is more than 0.02 below it (docs/sizing.md).
    sm_burst_ratio: where SM activity is measured, only its mean is known, not whether kernels need all SMs or none.
        The pessimistic end lies this far, in time, from maximum entropy towards that (Amdahl's bound). 1: the bound
        itself. With it no decision over kernels of many shapes fails; 0.75 finds a tenth more of the savings and 4 of
        1141 decisions fail (docs/sizing.md).
    tier_share_ratio: share of the time that may have weaker evidence than the stated tier. 0.05.
    """

    dram_peak_ratio: float = 0.8
    power_margin_ratio: float = 0.10
    sm_burst_ratio: float = 1.0
    tier_share_ratio: float = 0.05


def demand_of(
    profile: WorkloadProfile, now: Capability, envelope: PowerEnvelope | None, policy: SpeedPolicy
) -> Demand | None:
    """None where the profile has no cell with weight: the demand is unknown."""
    cells = [cell for cell in profile.cells if cell.weight_seconds > 0]
    if not cells:
        return None
    weight = np.array([cell.weight_seconds for cell in cells], dtype=np.float64)
    weight /= weight.sum()
    busy = _column([cell.busy_ratio for cell in cells])
    sm, tensor = _column([cell.sm_active_ratio for cell in cells]), _column([c.tensor_active_ratio for c in cells])
    dram = _column([cell.dram_active_ratio for cell in cells]) / policy.dram_peak_ratio
    power = _column([cell.power_watts for cell in cells])
    pcie = _column([cell.pcie_bytes_per_second for cell in cells])

    busy = np.clip(np.fmax(busy, np.nan_to_num(sm)), 0.0, 1.0)
    has_sm, has_dram = ~np.isnan(sm), ~np.isnan(dram)
    from_power = _sm_from_power(power, now, envelope)
    has_power = ~has_sm & ~np.isnan(from_power) & has_dram
    dram, tensor = np.minimum(dram, busy), np.nan_to_num(np.minimum(tensor, busy))
    # SMs drive memory and tensor cores, so they are occupied at least as long as either.
    least = np.minimum(np.fmax(np.nan_to_num(dram) * policy.dram_peak_ratio, tensor), busy)
    measured = np.where(has_sm, sm, np.fmax(from_power, least))
    margin = np.where(has_power, policy.power_margin_ratio * busy, 0.0)
    known = has_sm | has_power
    sm_least = np.where(known, np.maximum(measured - margin, 0.0), least)
    sm_most = np.minimum(np.where(known, measured + margin, busy), busy)
    link = now.pcie_bytes_per_second
    level = np.select([has_sm & has_dram, has_power, has_dram & (not profile.coarse_busy)], [0, 1, 2], default=3)
    return Demand(
        weight=weight,
        busy=busy,
        sm_least=np.minimum(sm_least, busy),
        sm=np.minimum(np.where(known, measured, (least + busy) / 2), busy),
        sm_most=sm_most,
        dram_least=np.nan_to_num(dram),
        dram=np.where(has_dram, dram, sm_most),
        tensor=tensor,
        pcie=np.clip(np.nan_to_num(pcie) / link, 0.0, 1.0) if link else np.zeros_like(busy),
        burst=np.where(has_power, 0.0, policy.sm_burst_ratio),
        tensor_known=all(cell.tensor_active_ratio is not None for cell in cells),
        tier=_tier(level, weight, policy.tier_share_ratio),
    )


def _sm_from_power(power: Floats, now: Capability, envelope: PowerEnvelope | None) -> Floats:
    """The board's power, scaled from idle (0) to the most that the fleet's boards drew (1).

    The data sheet's limit is only an upper bound of the ceiling: a board with a lower setting never reaches it, and
    every workload would look small. For the same reason the lower of the fleet's and the catalog's floor counts. NaN
    without an envelope, and on a slice, which has no power of its own.
    """
    if envelope is None or now.mig_profile:
        return np.full_like(power, np.nan)
    ceiling = min(envelope.ceiling_watts, now.power_limit_watts)
    floor = now.idle_power_watts if envelope.floor_watts is None else min(envelope.floor_watts, now.idle_power_watts)
    if ceiling <= floor:
        return np.full_like(power, np.nan)
    share: Floats = np.clip((power - floor) / (ceiling - floor), 0.0, 1.0)
    return share


def _tier(level: NDArray[np.int64], weight: Floats, share: float) -> EvidenceTier:
    """The best tier such that at most `share` of the time has a worse one. level: positions in EvidenceTier."""
    return next(tier for rank, tier in enumerate(EvidenceTier) if float(weight[level > rank].sum()) <= share)


def _column(values: list[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def drawn(mean: Floats, shift: int) -> Floats:
    """`DRAWS` equally likely demands of maximum entropy per mean: shape (len(mean), DRAWS).

    mean: 0 to 1. shift: the coordinate of a rank-1 lattice that orders the draws. Resources with different coordinates
    are independent, which is again the case of maximum entropy.
    """
    index = np.clip(mean, 0.0, 1.0) * (_MEANS - 1)
    below = np.minimum(index.astype(np.int64), _MEANS - 2)
    part = (index - below)[:, None]
    table = _quantiles()
    values: Floats = table[below] * (1.0 - part) + table[below + 1] * part
    return values[:, _ORDERS[shift]]


# Fibonacci-like generators of a lattice of 64 points in three dimensions: each is odd, so each order is a permutation.
_ORDERS = tuple((np.arange(DRAWS) * generator) % DRAWS for generator in (1, 19, 27))


@cache
def _quantiles() -> Floats:
    """Quantiles at (i + ½)/DRAWS of exp(λx)/Z on [0, 1], a row per mean; rows are scaled to have exactly that mean."""
    points = (np.arange(DRAWS) + 0.5) / DRAWS
    rows = np.empty((_MEANS, DRAWS))
    for row, mean in enumerate(np.linspace(0.0, 1.0, _MEANS)):
        rows[row] = _quantiles_at(float(mean), points)
    rows.setflags(write=False)
    return rows


def _quantiles_at(mean: float, points: Floats) -> Floats:
    if mean in (0.0, 1.0):
        return np.full_like(points, mean)
    if mean > 0.5:
        return 1.0 - _quantiles_at(1.0 - mean, points)[::-1]
    if mean == 0.5:
        return points
    # exp(−rx) on [0, 1] has mean 1/r − 1/(e^r − 1), which falls from ½ to 0 as r grows. Bisection, because
    # scipy.optimize takes 50 MiB of the controller for this alone.
    low, high = 1e-6, 700.0
    while mean > 1.0 / 690 and high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if 1.0 / middle - 1.0 / math.expm1(middle) > mean else (low, middle)
    rate = high if mean > 1.0 / 690 else 1.0 / mean
    values = -np.log1p(-points * -np.expm1(-rate)) / rate
    scaled: Floats = values * (mean / values.mean())
    return scaled


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
