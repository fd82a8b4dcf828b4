"""What can be said about another GPU model, held against Gavel's measured throughputs.

Gavel has no telemetry, so nothing can be predicted for a job; what can be checked is the span that `predict_speed`
gives a job of which only its utilisation is known, at 100 %: it claims that no job gains or loses more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import permutations

import numpy as np

from gpuwatch.facts.catalog.gpus import find_gpu
from gpuwatch.facts.model.workload_profile import Cell, WorkloadKey, WorkloadProfile
from gpuwatch.size.capability import Capability, capability_of, ratios
from gpuwatch.size.speed import predict_speed
from lab.evaluation.sizing_rows import Throughput

_THEN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class ModelPair:
    """Jobs measured on both. low, high: the span claimed. inside: share of jobs whose measured ratio lies in it.

    errors of single numbers, mean over jobs of |ln(predicted / measured)|: of the ratio of FP32 peaks, of bandwidths,
    and of saying that nothing changes.
    """

    now: str
    target: str
    jobs: int
    low: float
    high: float
    measured_low: float
    measured_median: float
    measured_high: float
    inside_ratio: float
    above_ratio: float
    below_ratio: float
    fp32_log_error: float
    bandwidth_log_error: float
    same_log_error: float


def judge_models(rows: Sequence[Throughput]) -> list[ModelPair]:
    """Every ordered pair of the GPU types that are known here; others are left out."""
    cards = _cards()
    speeds: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.gpu_type in cards:
            speeds.setdefault(row.gpu_type, {})[row.job] = row.steps_per_second
    return [_pair(now, target, cards, speeds) for now, target in permutations(sorted(speeds), 2)]


def _pair(now: str, target: str, cards: dict[str, Capability], speeds: dict[str, dict[str, float]]) -> ModelPair:
    both = sorted(speeds[now].keys() & speeds[target].keys())
    measured = np.array([speeds[target][job] / speeds[now][job] for job in both])
    estimate = predict_speed(_always_busy(now), cards[now], cards[target])
    assert estimate is not None
    low, high = estimate.low_ratio, estimate.high_ratio
    fp32 = ratios(cards[now], cards[target])
    flops = (cards[target].fp32_flops_per_second or 0.0) / (cards[now].fp32_flops_per_second or 1.0)
    return ModelPair(
        now=cards[now].name,
        target=cards[target].name,
        jobs=len(both),
        low=low,
        high=high,
        measured_low=float(measured.min()),
        measured_median=float(np.median(measured)),
        measured_high=float(measured.max()),
        inside_ratio=float(((measured >= low) & (measured <= high)).mean()),
        above_ratio=float((measured > high).mean()),
        below_ratio=float((measured < low).mean()),
        fp32_log_error=float(np.abs(np.log(flops / measured)).mean()),
        bandwidth_log_error=float(np.abs(np.log(fp32.memory / measured)).mean()),
        same_log_error=float(np.abs(np.log(measured)).mean()),
    )


def _always_busy(gpu_type: str) -> WorkloadProfile:
    return WorkloadProfile(
        key=WorkloadKey("Job/jobs/gavel", "main", gpu_type),
        as_of=_THEN,
        half_life_seconds=86400.0,
        cells=(Cell(weight_seconds=3600.0, busy_ratio=1.0),),
        first_seen=_THEN,
        last_seen=_THEN,
        coarse_busy=True,
    )


def _cards() -> dict[str, Capability]:
    """Gavel's GPU types. The older two are not in the catalog: nobody is advised to use them. Data sheets of K80 (one
    of its two GPUs, at boost) and P100 PCIe 16 GB; neither has tensor cores, so FP16 is what the SMs do."""
    v100 = find_gpu("V100-SXM2-16GB")
    assert v100 is not None
    return {
        "v100": capability_of(v100),
        "p100": _older("P100-PCIE-16GB", "pascal", 56, 1303e6, 9.3e12, 18.7e12, 732e9, 16, 250.0),
        "k80": _older("K80 (one of two)", "kepler", 13, 875e6, 4.37e12, 4.37e12, 240e9, 12, 150.0),
    }


def _older(
    name: str, architecture: str, sms: int, clock: float, fp32: float, fp16: float, bandwidth: float, gib: int,
    watts: float,
) -> Capability:  # fmt: skip
    return Capability(
        gpu_model=name,
        mig_profile="",
        architecture=architecture,
        compute_per_second=sms * clock,
        fp32_flops_per_second=fp32,
        fp16_flops_per_second=fp16,
        memory_bandwidth_bytes_per_second=bandwidth,
        pcie_bytes_per_second=31.5e9,
        memory_bytes=float(gib * 2**30),
        power_limit_watts=watts,
        idle_power_watts=0.0,  # not needed: power is not known here
    )
