"""Packing slices into GPUs: an integer program over the patterns of the geometry, solved by HiGHS. Pure.

GPUs that are alike are one variable, so the program has some dozens of integers whatever the size of the fleet. A
greedy packing (the best filled GPUs first) needs as few GPUs, but in a fleet that is cut already it cuts twice as many
of them anew and moves 1.7 times as many Pods (lab/benchmarks/README.md).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from gpuwatch.facts.catalog.mig import MigGeometry, geometry, maximal

Cut: TypeAlias = tuple[str, ...]
"""Sorted profiles of one GPU's instances; the driver chooses their placement."""

# The solver returns integers such as 2.9999999998.
_ROUND = 1e-6
# A bound by work, not by time, so that equal input gives an equal plan. Real mixes need some tens.
_NODE_LIMIT = 20_000


@dataclass(frozen=True, slots=True, order=True)
class KeptClass:
    """GPUs that can keep their present cut. offers: instances that demands may take, those of the tenants included, who
    need exactly what they have. cuttable: they may be cut anew instead."""

    offers: Cut
    tenants: int
    cuttable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """gpus: in use, those of the free instances aside. lower_bound: no packing uses fewer. keep: GPUs of each class
    that stay in use as they are. cut: pattern → GPUs to cut."""

    gpus: int
    lower_bound: int
    keep: Mapping[KeptClass, int]
    cut: Mapping[Cut, int]


@lru_cache(maxsize=256)
def patterns(family: str, profiles: tuple[str, ...]) -> tuple[Cut, ...]:
    """Maximal cuts of one GPU into these profiles, those with most instances first."""
    found = geometry(family)
    if found is None or not profiles:
        return ()
    cuts = {tuple(sorted(item.profile for item in placed)) for placed in maximal(found, profiles)}
    counts = {cut: Counter(cut) for cut in cuts}
    # A set that is maximal in its placement may be part of a larger one with other placements.
    best = [cut for cut in cuts if not any(cut != other and counts[cut] <= counts[other] for other in cuts)]
    return tuple(sorted(best, key=lambda cut: (-len(cut), cut)))


def pack(
    demand: Mapping[str, int],
    shape: MigGeometry,
    *,
    held: Mapping[str, int] | None = None,
    kept: Mapping[KeptClass, int] | None = None,
    blank: int = 0,
) -> Packing | None:
    """The packing with the fewest GPUs for this demand (profile → slices), and of those the fewest cuts and moves; None
    where not everything fits. held: free instances of GPUs that stay in use in any case. kept: GPUs by class. blank:
    uncut GPUs that may be cut."""
    needed = Counter(demand) - Counter(held)
    if not needed:
        return Packing(gpus=0, lower_bound=0, keep={}, cut={})
    classes = sorted((kept or {}).items())
    cuts = patterns(shape.family, tuple(sorted(needed)))
    offers = [each.offers for each, _ in classes] + list(cuts)
    # GPUs that keep their cut and GPUs that are cut anew share one supply.
    spare = blank + sum(count for each, count in classes if each.cuttable)
    of_spare = [int(each.cuttable) for each, _ in classes] + [1] * len(cuts)
    most = [count for _, count in classes] + [spare] * len(cuts)
    rows: list[_Row] = [([cut.count(name) for cut in offers], count, math.inf) for name, count in needed.items()]
    rows.append((of_spare, 0, spare))
    each_gpu = [1] * len(offers)
    fewest = _solve(each_gpu, most, rows)
    if fewest is None:
        return None
    gpus = round(float(fewest.sum()))
    relaxed = _solve(each_gpu, most, rows, whole=False)
    # One moved Pod weighs as much as one cut GPU.
    disturbance = [-each.tenants for each, _ in classes] + [1] * len(cuts)
    gentlest = _solve(disturbance, most, [*rows, (each_gpu, 0, gpus)])
    counts = [round(float(value)) for value in (fewest if gentlest is None else gentlest)]
    return Packing(
        gpus=gpus,
        lower_bound=gpus if relaxed is None else math.ceil(float(relaxed.sum()) - _ROUND),
        keep={each: count for (each, _), count in zip(classes, counts, strict=False) if count},
        cut={cut: count for cut, count in zip(cuts, counts[len(classes) :], strict=True) if count},
    )


_Row: TypeAlias = tuple[Sequence[int], float, float]
"""Factors of the columns; their sum has to be from, to."""


def _solve(cost: Sequence[int], most: Sequence[int], rows: Sequence[_Row], *, whole: bool = True) -> np.ndarray | None:
    """The cheapest values of the columns within their rows; None where no solution was found."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    matrix, least, greatest = zip(*rows, strict=True)
    answer = milp(
        np.array(cost, dtype=float),
        integrality=np.full(len(cost), int(whole)),
        bounds=Bounds(0, np.array(most, dtype=float)),
        constraints=LinearConstraint(np.array(matrix, dtype=float), least, greatest),
        options={"node_limit": _NODE_LIMIT, "mip_rel_gap": 0.0},
    )
    return None if answer.x is None else np.asarray(answer.x)
