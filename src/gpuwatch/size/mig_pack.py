"""Packing slices into GPUs: an integer program over the patterns of the geometry, solved by HiGHS. Pure.

GPUs that are alike are one variable, so the program has some dozens of integers whatever the size of the fleet. A
greedy packing (the best filled GPUs first) needs as few GPUs, but in a fleet that is cut already it cuts twice as many
of them anew and moves 1.7 times as many Pods (lab/benchmarks/README.md).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np

from gpuwatch.facts.catalog.mig import MigGeometry, geometry, maximal

Cut: TypeAlias = tuple[str, ...]
"""Sorted profiles of one GPU's instances; the driver chooses their placement."""

# The solver returns integers such as 2.9999999998.
_ROUND = 1e-6
# A bound by work, not by time, so that equal input gives an equal plan. Real mixes need some tens.
_NODE_LIMIT = 20_000

_Row: TypeAlias = tuple[Sequence[int], float, float]
"""Factors of the columns; their sum has to be from, to."""


@dataclass(frozen=True, slots=True, order=True)
class KeptClass:
    """GPUs that can keep their present cut. offers: instances that demands may take, those of the tenants included, who
    need exactly what they have. cuttable: they may be cut anew instead."""

    offers: Cut
    tenants: int
    cuttable: bool


@dataclass(frozen=True, slots=True, order=True)
class UniformClass:
    """Empty Nodes of strategy `single`: `gpus` each, all now with the instances `profile` ('' for MIG off)."""

    gpus: int
    profile: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """GPUs of one model. held: profile → free instances of GPUs that stay in use in any case. kept: GPUs by class.
    uniform: Nodes by class. blank: uncut GPUs that may be cut."""

    shape: MigGeometry
    held: Mapping[str, int] = field(default_factory=dict)
    kept: Mapping[KeptClass, int] = field(default_factory=dict)
    uniform: Mapping[UniformClass, int] = field(default_factory=dict)
    blank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """gpus: in use, those of `Supply.held` aside. lower_bound: no packing uses fewer. keep: GPUs of each class that
    stay in use as they are. cut: pattern → GPUs to cut. uniform: (class, profile) → (Nodes, GPUs in use)."""

    gpus: int
    lower_bound: int
    keep: Mapping[KeptClass, int]
    cut: Mapping[Cut, int]
    uniform: Mapping[tuple[UniformClass, str], tuple[int, int]]


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


class _Column(NamedTuple):
    """One variable: GPUs of a class that keep their cut, GPUs to cut in one way, or of the empty Nodes of a class those
    cut alike to a profile (`node`) and the GPUs in use on them.

    offers: instances of a unit. used: GPUs in use. disturbance: GPUs to cut, less tenants that stay. spare: GPUs that
    could be cut anew."""

    most: int
    offers: Cut
    used: int = 1
    disturbance: int = 0
    spare: bool = False
    kept: KeptClass | None = None
    uniform: tuple[UniformClass, str] | None = None

    @property
    def node(self) -> bool:
        return self.uniform is not None and not self.used


def pack(demand: Mapping[str, int], supply: Supply) -> Packing | None:
    """The packing with the fewest GPUs for this demand (profile → slices), and of those the fewest cuts and moves; None
    where not everything fits."""
    needed = Counter(demand) - Counter(supply.held)
    columns = _columns(needed, supply)
    if not needed or not columns:
        return None if needed else Packing(gpus=0, lower_bound=0, keep={}, cut={}, uniform={})
    rows = _rows(needed, supply, columns)
    most = [column.most for column in columns]
    used = [column.used for column in columns]
    fewest = _solve(used, most, rows)
    if fewest is None:
        return None
    gpus = round(float(np.dot(used, fewest)))
    relaxed = _solve(used, most, rows, whole=False)
    # One moved Pod weighs as much as one cut GPU.
    gentlest = _solve([column.disturbance for column in columns], most, [*rows, (used, 0, gpus)])
    values = fewest if gentlest is None else gentlest
    chosen = [(column, count) for column, value in zip(columns, values, strict=True) if (count := round(float(value)))]
    in_use = {column.uniform: count for column, count in chosen if column.uniform and not column.node}
    return Packing(
        gpus=gpus,
        lower_bound=gpus if relaxed is None else math.ceil(float(np.dot(used, relaxed)) - _ROUND),
        keep={column.kept: count for column, count in chosen if column.kept},
        cut={column.offers: count for column, count in chosen if not column.kept and not column.uniform},
        uniform={
            column.uniform: (count, in_use.get(column.uniform, 0))
            for column, count in chosen
            if column.uniform and column.node
        },
    )


def _columns(needed: Mapping[str, int], supply: Supply) -> list[_Column]:
    columns = [
        _Column(count, each.offers, disturbance=-each.tenants, spare=each.cuttable, kept=each)
        for each, count in sorted(supply.kept.items())
    ]
    cuts = patterns(supply.shape.family, tuple(sorted(needed)))
    columns += [_Column(_spare(supply), cut, disturbance=1, spare=True) for cut in cuts]
    for owner, nodes in sorted(supply.uniform.items()):
        for profile in supply.shape.profiles:
            if profile.name in needed:
                alike, key = (profile.name,) * profile.max_instances, (owner, profile.name)
                recut = 0 if profile.name == owner.profile else owner.gpus
                columns.append(_Column(nodes, (), used=0, disturbance=recut, uniform=key))
                columns.append(_Column(nodes * owner.gpus, alike, uniform=key))
    return columns


def _spare(supply: Supply) -> int:
    return supply.blank + sum(count for each, count in supply.kept.items() if each.cuttable)


def _rows(needed: Mapping[str, int], supply: Supply, columns: Sequence[_Column]) -> list[_Row]:
    rows: list[_Row] = [
        ([column.offers.count(name) for column in columns], count, math.inf) for name, count in sorted(needed.items())
    ]
    # GPUs that keep their cut and GPUs that are cut anew share one supply.
    rows.append(([int(column.spare) for column in columns], 0, _spare(supply)))
    for owner, count in supply.uniform.items():
        of_class = [column.node and column.uniform is not None and column.uniform[0] == owner for column in columns]
        rows.append((of_class, 0, count))
    for key in dict.fromkeys(column.uniform for column in columns if column.uniform):
        within = [(-key[0].gpus if column.node else 1) if column.uniform == key else 0 for column in columns]
        rows.append((within, -math.inf, 0))
    return rows


def _solve(
    cost: Sequence[int],
    most: Sequence[int],
    rows: Sequence[_Row],
    *,
    whole: bool = True,
) -> np.ndarray | None:
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
