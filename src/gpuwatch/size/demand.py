"""How much of each resource the kernels of a workload need, from the cells of its profile.

A window gives the share g of time with engine activity and the mean share a of occupied SMs over 30 seconds. It does
not tell whether all kernels filled a/g of the card, or a few filled it and the others ran on one SM. On a slice only
the second case gets slower. The model uses the distribution of maximum entropy with the known mean: a truncated
exponential on [0, 1], which has no parameter to fit.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuwatch.facts.model.sizing import EvidenceTier
from gpuwatch.facts.model.workload_profile import PowerEnvelope, WorkloadProfile
from gpuwatch.size.capability import Capability

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
