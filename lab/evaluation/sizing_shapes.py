"""Jobs whose kernels are known one by one: how much the shape within a window, which nobody sees, costs the prediction.

Each job draws kernels with demands for SMs (a beta distribution between level and all-or-nothing) and memory. Its
speed on each slice follows from the kernels, the prediction only from their means. This tests the bounds against shapes
and nothing else: in reality demand is not known exactly, and time does not follow the roofline.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from gpuwatch.facts.catalog.gpus import find_gpu, gpu_share_ratio
from gpuwatch.facts.model.workload_profile import Cell, PowerEnvelope, WorkloadKey, WorkloadProfile
from gpuwatch.size.capability import capability_of, ratios
from gpuwatch.size.speed import SpeedPolicy, predict_speeds

_THEN = datetime(2026, 1, 1, tzinfo=UTC)
_KERNELS = 400
_SLICES = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb")
_FLOOR, _CEILING = 50.0, 400.0


@dataclass(frozen=True, kw_only=True)
class ShapeQuality:
    """One way to see demand, over all jobs. broken: taken at a target of 0.9, and slower than that."""

    name: str
    jobs: int
    mae: float
    above_low_ratio: float
    worst_below: float
    inside_ratio: float
    downsized: int
    broken: int
    worst_speed: float | None
    saving_found_ratio: float


def judge_shapes(jobs: int, seed: int, bursts: Sequence[float] = (0.5, 0.75, 1.0)) -> list[ShapeQuality]:
    """SM activity measured, with several `sm_burst_ratio`; and power that follows it exactly, as the policy has it."""
    ways = [(f"SM activity, sm_burst_ratio {burst:g}", SpeedPolicy(sm_burst_ratio=burst), False) for burst in bursts]
    return [_judge(*way, jobs, seed) for way in [*ways, ("power that follows SM activity", SpeedPolicy(), True)]]


def _judge(name: str, policy: SpeedPolicy, from_power: bool, jobs: int, seed: int) -> ShapeQuality:
    gpu = find_gpu("A100-SXM4-40GB")
    assert gpu is not None
    now, targets = capability_of(gpu), [capability_of(gpu, kind) for kind in _SLICES]
    offers = [ratios(now, target) for target in targets]
    compute = np.array([[offer.compute.low] for offer in offers])
    memory = np.array([[offer.memory] for offer in offers])
    envelope = PowerEnvelope(gpu_model=gpu.name, floor_watts=_FLOOR, ceiling_watts=_CEILING, devices=8)
    rng = np.random.default_rng(seed)
    truths, lows, likelies, highs = [], [], [], []
    for _ in range(jobs):
        busy, mean, level = rng.uniform(0.05, 1.0), rng.beta(0.7, 1.5), np.exp(rng.uniform(np.log(0.3), np.log(30.0)))
        sm = rng.beta(mean * level + 1e-3, (1.0 - mean) * level + 1e-3, _KERNELS)
        dram = np.clip(sm * rng.uniform(0.0, 1.0) * rng.uniform(0.5, 1.5, _KERNELS), 0.0, 1.0)
        slowed = np.maximum(1.0, np.maximum(sm / compute, dram / memory)).mean(axis=1)
        truths.append(1.0 / (1.0 - busy + busy * slowed))
        active = busy * float(sm.mean())
        cell = Cell(
            weight_seconds=1.0,
            busy_ratio=busy,
            sm_active_ratio=None if from_power else active,
            dram_active_ratio=policy.dram_peak_ratio * busy * float(dram.mean()),
            tensor_active_ratio=0.0,
            power_watts=_FLOOR + (_CEILING - _FLOOR) * active,
        )
        found = [one for one in predict_speeds(_profile(cell, gpu.name), now, targets, envelope, policy) if one]
        lows.append([one.low_ratio for one in found])
        likelies.append([one.likely_ratio for one in found])
        highs.append([one.high_ratio for one in found])
    truth, low, likely, high = np.array(truths), np.array(lows), np.array(likelies), np.array(highs)
    inside = (truth >= low - 1e-6) & (truth <= high + 1e-6)
    freed = np.array([1.0 - gpu_share_ratio(gpu.name, kind) for kind in _SLICES])
    taken, possible = low >= 0.9, truth >= 0.9
    pick = np.argmax(taken, axis=1)
    speeds = truth[np.arange(jobs), pick][taken.any(axis=1)]
    kept = np.where(taken.any(axis=1) & possible[np.arange(jobs), pick], freed[pick], 0.0)
    best = np.where(possible.any(axis=1), freed[np.argmax(possible, axis=1)], 0.0)
    return ShapeQuality(
        name=name,
        jobs=jobs,
        mae=float(np.abs(likely - truth).mean()),
        above_low_ratio=float((truth >= low - 1e-6).mean()),
        worst_below=float(np.maximum(low - truth, 0.0).max()),
        inside_ratio=float(inside.mean()),
        downsized=len(speeds),
        broken=int((speeds < 0.9).sum()),
        worst_speed=float(speeds.min()) if len(speeds) else None,
        saving_found_ratio=float(kept.sum() / best.sum()) if best.sum() else 0.0,
    )


def _profile(cell: Cell, gpu_model: str) -> WorkloadProfile:
    return WorkloadProfile(
        key=WorkloadKey("Job/jobs/shape", "main", gpu_model),
        as_of=_THEN,
        half_life_seconds=86400.0,
        cells=(cell,),
        first_seen=_THEN,
        last_seen=_THEN,
    )
