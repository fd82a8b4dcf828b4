"""Would learning from measured jobs beat the physics? Each model is predicted by what the other models teach.

Nothing here is used by the product: it is the other side of the comparison (docs/sizing.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gpuwatch.size.demand import Floats, SpeedPolicy
from lab.evaluation.sizing_quality import Intervals, Points, predict_points

_COVER = 0.9
_MARGINS = (0.0, 0.02, 0.04, 0.06, 0.08, 0.10, 0.12, 0.15, 0.20, 0.25)
_SEED = 0  # of the trees: the same numbers each time

_Train = NDArray[np.bool_]
# (points, physics, who teaches) → prediction for all points
_Learner = Callable[[Points, Intervals, _Train], Floats]


@dataclass(frozen=True, kw_only=True)
class LowEnd:
    """A pessimistic end, learnt from other models. above: held-out truths at or above it; gap: how far below it lies
    on average."""

    name: str
    low: Floats
    above_ratio: float
    worst_below: float
    mean_gap: float


def held_out(points: Points, learner: _Learner, physics: Intervals) -> Floats:
    """Each model's points, predicted by a learner that saw the other models only."""
    models = np.array([points.jobs[index].model for index in points.job])
    result = np.full(len(points.truth), np.nan)
    for model in dict.fromkeys(models.tolist()):
        mine = models == model
        result[mine] = learner(points, physics, ~mine)[mine]
    clipped: Floats = np.clip(result, 0.01, None)
    return clipped


def learned_predictors(points: Points) -> dict[str, Floats]:
    """Likely speeds of every learner, held out by model. Needs two models or more."""
    physics = predict_points(points)
    return {name: held_out(points, learner, physics) for name, learner in _LEARNERS.items()}


def learned_low_ends(points: Points) -> list[LowEnd]:
    """Pessimistic ends that are to hold in nine of ten cases, held out by model, and the product's beside them."""
    physics = predict_points(points)
    ends = {"product": physics.low}
    ends |= {name: held_out(points, learner, physics) for name, learner in _LOW_LEARNERS.items()}
    return [
        LowEnd(
            name=name,
            low=low,
            above_ratio=float((points.truth >= low).mean()),
            worst_below=float(np.maximum(low - points.truth, 0.0).max()),
            mean_gap=float((points.truth - low).mean()),
        )
        for name, low in ends.items()
    ]


def _columns(points: Points, physics: Intervals | None) -> Floats:
    known = [points.busy, points.sm, points.memory, points.compute_share, points.memory_share]
    return np.column_stack(known if physics is None else [*known, physics.low, physics.likely, physics.high])


def _shifted(points: Points, physics: Intervals, train: _Train) -> Floats:
    moved: Floats = physics.likely + np.median((points.truth - physics.likely)[train])
    return moved


def _isotonic(points: Points, physics: Intervals, train: _Train) -> Floats:
    curve = IsotonicRegression(out_of_bounds="clip").fit(physics.likely[train], points.truth[train])
    return np.asarray(curve.predict(physics.likely))


def _ridge(points: Points, physics: Intervals, train: _Train) -> Floats:
    columns = _columns(points, physics)
    model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 3, 11)))
    model.fit(columns[train], (points.truth - physics.likely)[train])
    corrected: Floats = physics.likely + np.asarray(model.predict(columns))
    return corrected


def _boosted(points: Points, physics: Intervals, train: _Train) -> Floats:
    columns = _columns(points, physics)
    model = _trees().fit(columns[train], (points.truth - physics.likely)[train])
    corrected: Floats = physics.likely + np.asarray(model.predict(columns))
    return corrected


def _boosted_alone(points: Points, _: Intervals, train: _Train) -> Floats:
    columns = _columns(points, None)
    return np.asarray(_trees().fit(columns[train], points.truth[train]).predict(columns))


def _trees(**how: object) -> GradientBoostingRegressor:
    return GradientBoostingRegressor(n_estimators=100, max_depth=2, learning_rate=0.05, random_state=_SEED, **how)


def _conformal(points: Points, physics: Intervals, train: _Train) -> Floats:
    """The plain quantile: as far below as nine of ten of the others needed, with the finite-sample step up."""
    over = np.sort((physics.likely - points.truth)[train])
    rank = min(int(np.ceil(_COVER * (len(over) + 1))), len(over)) - 1
    lowered: Floats = physics.likely - over[rank]
    return lowered


def _boosted_quantile(points: Points, physics: Intervals, train: _Train) -> Floats:
    columns = _columns(points, physics)
    model = _trees(loss="quantile", alpha=1.0 - _COVER)
    model.fit(columns[train], (points.truth - physics.likely)[train])
    corrected: Floats = physics.likely + np.asarray(model.predict(columns))
    return corrected


def _fitted_margin(points: Points, physics: Intervals, train: _Train) -> Floats:
    """The smallest margin of power that covers nine of ten of the others."""
    low = physics.low
    for margin in _MARGINS:
        low = predict_points(points, replace(SpeedPolicy(), power_margin_ratio=margin)).low
        if float((points.truth >= low)[train].mean()) >= _COVER:
            return low
    return low


_LEARNERS: dict[str, _Learner] = {
    "+ median shift": _shifted,
    "+ isotonic": _isotonic,
    "+ ridge": _ridge,
    "+ boosted trees": _boosted,
    "boosted trees alone": _boosted_alone,
}
_LOW_LEARNERS: dict[str, _Learner] = {
    "plain quantile (conformal)": _conformal,
    "boosted trees, quantile": _boosted_quantile,
    "margin of power, fitted": _fitted_margin,
}
