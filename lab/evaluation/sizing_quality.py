"""Predictors of slice speed held against measured speed: errors, intervals, and what a decision by them would do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gpuwatch.facts.catalog.gpus import gpu_share_ratio
from gpuwatch.facts.catalog.mig import geometry
from gpuwatch.facts.model.sizing import SpeedEstimate
from gpuwatch.facts.model.workload_profile import PowerEnvelope
from gpuwatch.size.capability import capability_of, ratios
from gpuwatch.size.memory import memory_need
from gpuwatch.size.speed import Floats, SpeedPolicy, predict_speeds
from lab.evaluation.sizing_rows import MeasuredJob, envelopes, measured_on, profile_of

# Rounding of published numbers: a truth this far outside is inside.
_ROUNDING = 0.0005


@dataclass(frozen=True, kw_only=True)
class Points:
    """All (job, slice) pairs as columns, the base slice left out; jobs in the order given, smallest slices first."""

    jobs: tuple[MeasuredJob, ...]
    job: tuple[int, ...]  # index into jobs
    slices: tuple[str, ...]
    truth: Floats
    busy: Floats
    sm: Floats  # stand-in for SM activity: power between idle and the observed ceiling, or SM activity itself
    memory: Floats
    compute_share: Floats
    memory_share: Floats
    freed: Floats  # share of the card that others could use
    fits_need: tuple[bool, ...]  # by `memory_need`

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(f"{self.jobs[index].gpu.name} {self.jobs[index].model}" for index in self.job)


def points_of(jobs: Sequence[MeasuredJob]) -> Points:
    seen = envelopes(jobs, 1.0)
    rows = []
    for index, job in enumerate(jobs):
        now = measured_on(job)
        shape = geometry(job.gpu.mig_family)
        need = memory_need(profile_of(job))
        assert shape is not None
        for name, truth in job.speeds.items():
            profile = shape.profile(name)
            if name == job.base or profile is None:
                continue
            target = capability_of(job.gpu, name)
            share = gpu_share_ratio(job.gpu.name, name)
            offer = ratios(now, target)
            rows.append(
                (
                    share, index, name, truth, _stand_in(job, seen[job.gpu.name], now.idle_power_watts),
                    offer.compute.low, offer.memory, need is not None and need.need_bytes <= target.memory_bytes,
                )
            )  # fmt: skip
    rows.sort(key=lambda row: (row[1], row[0], row[5]))
    return Points(
        jobs=tuple(jobs),
        job=tuple(row[1] for row in rows),
        slices=tuple(row[2] for row in rows),
        truth=np.array([row[3] for row in rows]),
        busy=np.array([jobs[row[1]].busy for row in rows]),
        sm=np.array([row[4] for row in rows]),
        memory=np.array([jobs[row[1]].memory_util for row in rows]),
        compute_share=np.array([row[5] for row in rows]),
        memory_share=np.array([row[6] for row in rows]),
        freed=np.array([1.0 - row[0] for row in rows]),
        fits_need=tuple(row[7] for row in rows),
    )


def _stand_in(job: MeasuredJob, envelope: PowerEnvelope, idle_watts: float) -> float:
    if job.sm_active is not None:
        return job.sm_active
    share = (job.power_watts - idle_watts) / max(
        min(envelope.ceiling_watts, job.gpu.power_limit_watts) - idle_watts, 1.0
    )
    return min(max(share, 0.0), job.busy)


# Predictors


def published_baselines(points: Points) -> dict[str, Floats]:
    """What is in use or published elsewhere, on the same points."""
    u, s, m = points.busy, points.compute_share, points.memory_share
    return {
        "linear n/7": s,
        "Amdahl on GPU_UTIL": 1.0 / ((1.0 - u) + u / s),
        "fits if util ≤ slice": np.minimum(1.0, s / u),
        "roofline on power": 1.0 / ((1.0 - u) + np.maximum.reduce([u, points.sm / s, points.memory / m])),
        "Amdahl on power": 1.0 / (1.0 + np.maximum(points.sm * (1.0 / s - 1.0), points.memory * (1.0 / m - 1.0))),
    }


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """Low, likely and high of `predict_speeds` per point."""

    low: Floats
    likely: Floats
    high: Floats
    tiers: tuple[str, ...]


def predict_points(
    points: Points,
    policy: SpeedPolicy | None = None,
    *,
    dram: bool = True,
    power: bool = True,
    coarse: bool = False,
    ceiling_ratio: float = 1.0,
    mig_was_off: bool = False,
) -> Intervals:
    """What the product says. dram, power, coarse: signals taken away, to see the lower tiers. ceiling_ratio: an error
    of the observed ceiling. mig_was_off: as if the measured base were the whole card with all its SMs."""
    seen = envelopes(points.jobs, ceiling_ratio)
    found: list[SpeedEstimate] = []
    for index, job in enumerate(points.jobs):
        now = capability_of(job.gpu) if mig_was_off else measured_on(job)
        names = [name for at, name in zip(points.job, points.slices, strict=True) if at == index]
        estimates = predict_speeds(
            profile_of(job, dram=dram, power=power, coarse=coarse),
            now,
            [capability_of(job.gpu, name) for name in names],
            seen[job.gpu.name],
            policy,
        )
        found.extend(estimate for estimate in estimates if estimate is not None)
    return Intervals(
        low=np.array([one.low_ratio for one in found]),
        likely=np.array([one.likely_ratio for one in found]),
        high=np.array([one.high_ratio for one in found]),
        tiers=tuple(one.tier.value for one in found),
    )


# Judging


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Of one predictor. worst_over_promise: the most that it promised too much; over_promised: share of points with
    more than 0.10 of it. worst_model: the model with the largest mean error."""

    name: str
    points: int
    mae: float
    bias: float
    worst_over_promise: float
    over_promised_ratio: float
    worst_model: str
    worst_model_mae: float


def errors_of(name: str, predicted: Floats, points: Points) -> Errors:
    difference = predicted - points.truth
    models = np.array(points.models)
    by_model = {model: float(np.abs(difference[models == model]).mean()) for model in dict.fromkeys(points.models)}
    worst = max(by_model, key=lambda model: by_model[model])
    return Errors(
        name=name,
        points=len(difference),
        mae=float(np.abs(difference).mean()),
        bias=float(difference.mean()),
        worst_over_promise=float(difference.max()),
        over_promised_ratio=float((difference > 0.10).mean()),
        worst_model=worst,
        worst_model_mae=by_model[worst],
    )


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How often the truth was in the interval, above its low end, and how wide it is."""

    name: str
    tiers: tuple[str, ...]
    points: int
    inside_ratio: float
    above_low_ratio: float
    worst_below_low: float
    mean_width: float


def coverage_of(name: str, found: Intervals, points: Points) -> Coverage:
    above, below = points.truth >= found.low - _ROUNDING, points.truth <= found.high + _ROUNDING
    return Coverage(
        name=name,
        tiers=tuple(dict.fromkeys(found.tiers)),
        points=len(points.truth),
        inside_ratio=float((above & below).mean()),
        above_low_ratio=float(above.mean()),
        worst_below_low=float(np.maximum(found.low - points.truth, 0.0).max()),
        mean_width=float((found.high - found.low).mean()),
    )


def margin_held_out(points: Points) -> Intervals:
    """The intervals with another `low`: on each model's points that of the smallest margin of power that covers nine of
    ten points of the other models. It judges the shipped margin, which was chosen by looking at all of them. Needs two
    models or more."""
    margins = (0.0, 0.02, 0.04, 0.06, 0.08, 0.10, 0.12, 0.15, 0.20, 0.25)
    lows = [predict_points(points, replace(SpeedPolicy(), power_margin_ratio=margin)).low for margin in margins]
    models = np.array([points.jobs[index].model for index in points.job])
    low = lows[-1].copy()
    for model in dict.fromkeys(models.tolist()):
        mine = models == model
        low[mine] = next((each for each in lows if (points.truth >= each)[~mine].mean() >= 0.9), lows[-1])[mine]
    return replace(predict_points(points), low=low)


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """Taking the smallest slice whose predicted speed meets the target. broken: it did not keep it.

    saving: freed share of cards over what an oracle frees that knows all speeds; broken ones count nothing.
    """

    name: str
    target: float
    jobs: int
    possible: int
    downsized: int
    broken: int
    worst_speed: float | None
    saving_found_ratio: float | None
    broken_jobs: tuple[str, ...] = field(default=())


def decide(name: str, predicted: Floats, points: Points, target: float, *, by_memory_need: bool = False) -> Decisions:
    """by_memory_need: only slices that `memory_need` allows; else those that the job was seen to fit into."""
    freed, oracle, broken, chosen, possible = 0.0, 0.0, [], [], 0
    for index, job in enumerate(points.jobs):
        mine = [at for at, one in enumerate(points.job) if one == index]
        enough = [at for at in mine if points.truth[at] >= target]
        if enough:
            possible += 1
            oracle += max(float(points.freed[at]) for at in enough)
        allowed = [at for at in mine if predicted[at] >= target and (points.fits_need[at] or not by_memory_need)]
        if not allowed:
            continue
        pick = max(allowed, key=lambda at: (points.freed[at], predicted[at]))
        chosen.append(float(points.truth[pick]))
        if points.truth[pick] < target:
            broken.append(f"{job.name} on {points.slices[pick]}: {points.truth[pick]:.2f}")
        else:
            freed += float(points.freed[pick])
    return Decisions(
        name=name,
        target=target,
        jobs=len(points.jobs),
        possible=possible,
        downsized=len(chosen),
        broken=len(broken),
        worst_speed=min(chosen, default=None),
        saving_found_ratio=freed / oracle if oracle else None,
        broken_jobs=tuple(broken),
    )


def by_job(points: Points, values: Floats) -> Mapping[str, Mapping[str, float]]:
    """Job → slice → value, for people who look one up."""
    found: dict[str, dict[str, float]] = {}
    for at, index in enumerate(points.job):
        found.setdefault(points.jobs[index].name, {})[points.slices[at]] = round(float(values[at]), 3)
    return found
