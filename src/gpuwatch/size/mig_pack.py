"""Packing slices into GPUs: an integer program over the patterns of the geometry, solved by HiGHS.

GPUs that are alike are one variable, so the program has some dozens of integers whatever the size of the fleet. GPUs
that keep their cut, and Nodes whose GPUs must all be cut alike (MIG strategy `single`), have variables of their own.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np

from gpuwatch.facts.catalog.mig import geometry, maximal

Cut: TypeAlias = tuple[str, ...]
"""Sorted profiles of one GPU's instances; the driver chooses their placement."""

# The solver returns integers such as 2.9999999998.
_ROUND = 1e-6
# A bound by work, not by time, so that equal input gives an equal plan. Real mixes need some tens.
_NODE_LIMIT = 20_000


@dataclass(frozen=True, slots=True, order=True)
class KeptClass:
    """GPUs that can keep their present cut. offers: instances that demands may take, those of the tenants included, who
    need exactly what they have. forced: it stays in use in any case. cuttable: it may be cut anew instead."""

    offers: Cut
    tenants: int
    forced: bool
    cuttable: bool


@dataclass(frozen=True, slots=True, order=True)
class UniformClass:
    """Empty Nodes of strategy `single`: `gpus` each, all now with the instances `profile` ('' for MIG off)."""

    gpus: int
    profile: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """family: of the geometry. demand: profile → slices. blank: uncut GPUs that may be cut."""

    family: str
    demand: Mapping[str, int]
    kept: Mapping[KeptClass, int] = field(default_factory=dict)
    uniform: Mapping[UniformClass, int] = field(default_factory=dict)
    blank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """gpus: all in use. lower_bound: no packing of this problem uses fewer. keep: GPUs of each class that stay in use
    as they are. cut: pattern → GPUs to cut. uniform: (class, profile) → (Nodes, GPUs in use)."""

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


def pack(problem: Problem) -> Packing | None:
    """The packing with the fewest GPUs, and of those the fewest cuts and moves; None where not everything fits."""
    program = _Program(problem)
    fewest = program.solve(program.used)
    if fewest is None:
        return None
    relaxed = program.solve(program.used, whole=False)
    gpus = round(float(program.used @ fewest))
    bound = math.ceil(float(program.used @ relaxed) - _ROUND) if relaxed is not None else gpus
    # One moved Pod weighs as much as one cut GPU.
    gentlest = program.solve(program.disturbance, at_most=gpus)
    return program.packing(gentlest if gentlest is not None else fewest, bound)


def shortage(problem: Problem, weights: Mapping[str, float], firm: Mapping[str, int]) -> dict[str, int]:
    """Slices per profile that must be left out so that the rest fits, of least total weight. firm: never left out."""
    short = _Program(problem, firm)
    values = short.solve(np.array([weights.get(name, 1.0) if name else 0.0 for name in short.short_names]))
    if values is None:
        return {name: count - firm.get(name, 0) for name, count in problem.demand.items()}
    found = {name: round(float(value)) for name, value in zip(short.short_names, values, strict=True) if name}
    return {name: count for name, count in found.items() if count}


class _Variable(NamedTuple):
    """used: GPUs in use per unit. disturbance: cuts and moves per unit. recut: whether it takes a cuttable GPU."""

    upper: float
    lower: float = 0.0
    used: float = 0.0
    disturbance: float = 0.0
    offers: Mapping[str, int] = MappingProxyType({})
    recut: bool = False


class _Program:
    """Columns: keep per class, cut per pattern, (Nodes set, GPUs used) per uniform class and profile, [shortfall]."""

    def __init__(self, problem: Problem, firm: Mapping[str, int] | None = None) -> None:
        self.problem = problem
        self.profiles = tuple(sorted(problem.demand))
        self.classes = tuple(sorted(problem.kept))
        self.cuts = patterns(problem.family, self.profiles)
        found = geometry(problem.family)
        most = {name: item.max_instances for name in self.profiles if found and (item := found.profile(name))}
        self.settings = tuple(
            (each, name) for each in sorted(problem.uniform) for name in self.profiles if most.get(name)
        )
        free = {each for each in self.classes if each.cuttable and not each.forced}
        spare = problem.blank + sum(problem.kept[each] for each in free)
        columns = []
        for each in self.classes:
            count = problem.kept[each]
            lower = count if each.forced else 0
            columns.append(_Variable(count, lower, 1, -each.tenants, Counter(each.offers), each in free))
        columns += [_Variable(spare, 0, 1, 1, Counter(cut), True) for cut in self.cuts]
        for uniform, name in self.settings:
            nodes = problem.uniform[uniform]
            columns.append(_Variable(nodes, disturbance=0 if name == uniform.profile else uniform.gpus))
            columns.append(_Variable(nodes * uniform.gpus, used=1, offers={name: most[name]}))
        self.short_names = [""] * len(columns)
        if firm is not None:
            self.short_names += self.profiles
            short = {name: max(problem.demand[name] - firm.get(name, 0), 0) for name in self.profiles}
            columns += [_Variable(short[name], offers={name: 1}) for name in self.profiles]
        self.lower, self.upper = [column.lower for column in columns], [column.upper for column in columns]
        self.used = np.array([column.used for column in columns], dtype=float)
        self.disturbance = np.array([column.disturbance for column in columns], dtype=float)
        self.rows, self.least, self.greatest = self._constraints(columns, spare)

    def _constraints(self, columns: Sequence[_Variable], spare: int) -> tuple[np.ndarray, list[float], list[float]]:
        rows = [[float(column.offers.get(name, 0)) for column in columns] for name in self.profiles]
        least = [float(self.problem.demand[name]) for name in self.profiles]
        greatest = [math.inf] * len(rows)
        # GPUs that keep their cut and GPUs that are cut anew share one supply.
        rows.append([float(column.recut) for column in columns])
        least.append(0.0)
        greatest.append(float(spare))
        places = range(len(columns))
        nodes_at = {len(self.classes) + len(self.cuts) + 2 * n: owner for n, (owner, _) in enumerate(self.settings)}
        for uniform in sorted(self.problem.uniform):
            rows.append([float(nodes_at.get(at) == uniform) for at in places])
            least.append(0.0)
            greatest.append(float(self.problem.uniform[uniform]))
        for place, owner in nodes_at.items():
            rows.append([-float(owner.gpus) if at == place else float(at == place + 1) for at in places])
            least.append(-math.inf)
            greatest.append(0.0)
        return np.array(rows), least, greatest

    def solve(self, cost: np.ndarray, *, whole: bool = True, at_most: int | None = None) -> np.ndarray | None:
        """The cheapest values of the columns; None where no solution was found."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        if not len(cost):
            return np.zeros(0) if not any(self.problem.demand.values()) else None
        rows, least, greatest = self.rows, self.least, self.greatest
        if at_most is not None:
            rows, least, greatest = np.vstack([rows, self.used]), [*least, 0.0], [*greatest, at_most + _ROUND]
        answer = milp(
            cost,
            integrality=np.ones(len(cost)) if whole else np.zeros(len(cost)),
            bounds=Bounds(self.lower, self.upper),
            constraints=LinearConstraint(rows, least, greatest),
            options={"node_limit": _NODE_LIMIT, "mip_rel_gap": 0.0},
        )
        if answer.x is None:
            return None
        return np.round(answer.x) if whole else np.asarray(answer.x)

    def packing(self, values: np.ndarray, bound: int) -> Packing:
        counts = [round(float(value)) for value in values]
        cuts_from = len(self.classes)
        settings_from = cuts_from + len(self.cuts)
        return Packing(
            gpus=round(float(self.used @ values)),
            lower_bound=bound,
            keep=dict(zip(self.classes, counts[:cuts_from], strict=True)),
            cut={cut: count for cut, count in zip(self.cuts, counts[cuts_from:settings_from], strict=True) if count},
            uniform={
                setting: (counts[settings_from + 2 * number], counts[settings_from + 2 * number + 1])
                for number, setting in enumerate(self.settings)
                if counts[settings_from + 2 * number]
            },
        )
