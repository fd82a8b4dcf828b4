"""How much of each resource the kernels of a workload ask for, from the cells of its profile.

A window says that the engine was busy for a share g of the time and that SMs were occupied for a share a of it, on
average over SMs and over 30 seconds. It does not say whether all kernels filled a·100/g percent of the card, or a few
filled it and the rest ran on one SM; on a slice the first loses nothing and the second does. Between the two, the
distribution of the kernels' demand that assumes least is the one of maximum entropy with that mean: a truncated
exponential on [0, 1], without a parameter left to fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from gpuwatch.advise.capability import Capability
from gpuwatch.model.bounds import require
from gpuwatch.model.sizing import EvidenceTier
from gpuwatch.model.workload_profile import PowerEnvelope, WorkloadProfile

Floats: TypeAlias = NDArray[np.float64]

# Kernels drawn per window, each with its demand for SMs, memory and tensor cores.
DRAWS = 64
_MEANS = 513
_TIERS = (EvidenceTier.SM, EvidenceTier.POWER, EvidenceTier.ENGINE, EvidenceTier.UTILISATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Cells as columns, all of one length; ratios of the present GPU or slice, 0 to 1, as shares of all time.

    weight sums to 1. busy: g; nothing else is above it. sm lies between sm_least and sm_most, which are one where SM
    activity is measured, a margin apart where power stands in for it, and as far apart as the engine's activity allows
    where nothing tells. dram_least is 0 where memory activity is unknown, and dram then all that the SMs may ask for.
    tensor and pcie are 0 where unknown; tensor_known tells. burst: how far, in time, the pessimistic end lies from
    maximum entropy towards Amdahl's bound.
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
    """How signals become demand.

    dram_peak_ratio: DRAM activity that a stream of copies reaches in practice, and that counts as all. 0.8
        (KempnerPulse).
    power_margin_ratio: what power can be wrong by as a stand-in for SM activity, as a share of the busy time: kernels
        that wait draw less than kernels that compute. 0.1: with it nine of ten of MISO's speeds on slices are at or
        above the pessimistic end and none is more than 0.02 below it (docs/sizing.md).
    sm_burst_ratio: where SM activity is measured its mean is known, and what is not is whether kernels ask for all or
        nothing; the pessimistic end lies so far, in time, from maximum entropy towards that (Amdahl's bound). 1: the
        bound itself. Over kernels of many shapes no decision by it is broken; 0.75 finds a tenth more of the savings
        and breaks 4 of 1141 (docs/sizing.md).
    tier_share_ratio: share of the time that may rest on a lower tier of evidence than the one that is stated. 0.05.
    """

    dram_peak_ratio: float = 0.8
    power_margin_ratio: float = 0.10
    sm_burst_ratio: float = 1.0
    tier_share_ratio: float = 0.05

    def __post_init__(self) -> None:
        require(self, "", ("dram_peak_ratio",), lambda value: 0 < value <= 1, "above 0 and at most 1")
        others = ("power_margin_ratio", "sm_burst_ratio", "tier_share_ratio")
        require(self, "", others, lambda value: 0 <= value <= 1, "a ratio from 0 to 1")


def demand_of(
    profile: WorkloadProfile, now: Capability, envelope: PowerEnvelope | None, policy: SpeedPolicy
) -> Demand | None:
    """None where the profile has no cell with weight: nothing is known, which is not the same as nothing is needed."""
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
    # Memory and tensor cores are worked from SMs: these are occupied at least as long as either works.
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
    """Where the board's power lies between its rest and what the fleet's boards were seen to draw at most.

    The limit of the data sheet only bounds the ceiling: a board that was set to less never reaches it, and measuring
    against it would make every workload look small. The lower of the fleet's and the catalog's floor counts, for the
    same reason. NaN without an envelope, and on a slice, which has no power.
    """
    if envelope is None or now.mig_on:
        return np.full_like(power, np.nan)
    ceiling = min(envelope.ceiling_watts, now.power_limit_watts)
    floor = now.idle_power_watts if envelope.floor_watts is None else min(envelope.floor_watts, now.idle_power_watts)
    if ceiling <= floor:
        return np.full_like(power, np.nan)
    share: Floats = np.clip((power - floor) / (ceiling - floor), 0.0, 1.0)
    return share


def _tier(level: NDArray[np.int64], weight: Floats, share: float) -> EvidenceTier:
    """The best tier below which no more than `share` of the time lies."""
    for rank, tier in enumerate(_TIERS):
        if float(weight[level > rank].sum()) <= share:
            return tier
    return EvidenceTier.UTILISATION


def _column(values: list[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def drawn(mean: Floats, shift: int) -> Floats:
    """`DRAWS` equally likely demands of maximum entropy per mean: shape (len(mean), DRAWS), ascending but for order.

    mean: 0 to 1. shift: which coordinate of a rank-1 lattice orders the draws; different ones make resources
    independent of each other, which is again what assumes least.
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
    # exp(−rx) on [0, 1] has mean 1/r − 1/(e^r − 1), which falls from ½ to 0 as r grows.
    rate = brentq(lambda r: 1.0 / r - 1.0 / np.expm1(r) - mean, 1e-6, 700.0) if mean > 1.0 / 690 else 1.0 / mean
    values = -np.log1p(-points * -np.expm1(-rate)) / rate
    scaled: Floats = values * (mean / values.mean())
    return scaled
