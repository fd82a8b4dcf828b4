"""Packing slices into GPUs: an integer program over the patterns of the geometry, solved by HiGHS.

There are few profiles and few patterns, and GPUs that look alike are one variable, so that the program stays at some
dozens of integers however many GPUs and Pods there are. GPUs that keep their cut, and Nodes whose GPUs must all be cut
the same way (MIG strategy `single`), are variables of their own kind.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from gpuwatch.catalog.mig import geometry, maximal

Cut: TypeAlias = tuple[str, ...]
"""Instances of one GPU by profile, sorted; where they lie is the driver's choice."""

# Roundness of the solver's answers: integers come as 2.9999999998.
_ROUND = 1e-6
# Bounds the search by work and not by time, so that equal input gives an equal plan. Real mixes need some tens.
_NODE_LIMIT = 20_000


@dataclass(frozen=True, slots=True, order=True)
class KeptClass:
    """GPUs that would serve as they are cut now. `offers` are the instances that slices may take, those of tenants who
    need just that included. forced: it stays in use in any case. cuttable: it may be cut anew instead."""

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
    """family: of the geometry. demand: profile → slices. blank: GPUs that may be cut and have no class, being uncut."""

    family: str
    demand: Mapping[str, int]
    kept: Mapping[KeptClass, int] = field(default_factory=dict)
    uniform: Mapping[UniformClass, int] = field(default_factory=dict)
    blank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """keep: GPUs of each class that stay in use as they are. cut: pattern → GPUs to cut so. uniform: (class, profile)
    → (Nodes, GPUs in use). gpus: all in use. lower_bound: no packing of this problem uses fewer."""

    gpus: int
    lower_bound: int
    keep: Mapping[KeptClass, int]
    cut: Mapping[Cut, int]
    uniform: Mapping[tuple[UniformClass, str], tuple[int, int]]


@lru_cache(maxsize=256)
def patterns(family: str, profiles: tuple[str, ...]) -> tuple[Cut, ...]:
    """The cuts of one GPU into these profiles to which no instance can be added, those with more first."""
    found = geometry(family)
    if found is None or not profiles:
        return ()
    cuts = {tuple(sorted(item.profile for item in placed)) for placed in maximal(found, profiles)}
    counts = {cut: Counter(cut) for cut in cuts}
    # A set that cannot be extended in place may still be part of one that begins elsewhere.
    best = [cut for cut in cuts if not any(cut != other and counts[cut] <= counts[other] for other in cuts)]
    return tuple(sorted(best, key=lambda cut: (-len(cut), cut)))


def pack(problem: Problem) -> Packing | None:
    """The fewest GPUs, and of those packings the one that cuts and moves least; None where not everything fits."""
    program = _Program(problem)
    fewest = program.solve(program.used)
    if fewest is None:
        return None
    relaxed = program.solve(program.used, whole=False)
    gpus = round(float(program.used @ fewest))
    bound = math.ceil(float(program.used @ relaxed) - _ROUND) if relaxed is not None else gpus
    # One Pod that moves weighs as much as one GPU that is cut.
    gentlest = program.solve(program.disturbance, at_most=gpus)
    return program.packing(gentlest if gentlest is not None else fewest, bound)


def shortage(problem: Problem, weights: Mapping[str, float], firm: Mapping[str, int]) -> dict[str, int]:
    """Slices per profile that must be left out so that the rest fits, least by weight. `firm`: never left out."""
    short = _Program(problem, firm)
    values = short.solve(np.array([weights.get(name, 1.0) if name else 0.0 for name in short.short_names]))
    if values is None:
        return {name: count - firm.get(name, 0) for name, count in problem.demand.items()}
    found = {name: round(float(value)) for name, value in zip(short.short_names, values, strict=True) if name}
    return {name: count for name, count in found.items() if count}


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
        self.most = most
        spare = self._spare()
        self.lower: list[float] = []
        self.upper: list[float] = []
        used: list[float] = []
        disturbance: list[float] = []
        offers: list[Mapping[str, int]] = []
        for each in self.classes:
            count = problem.kept[each]
            self._column(count if each.forced else 0, count)
            used.append(1)
            disturbance.append(-each.tenants)
            offers.append(Counter(each.offers))
        for cut in self.cuts:
            self._column(0, spare)
            used.append(1)
            disturbance.append(1)
            offers.append(Counter(cut))
        for uniform, name in self.settings:
            nodes = problem.uniform[uniform]
            self._column(0, nodes)
            self._column(0, nodes * uniform.gpus)
            used += [0, 1]
            disturbance += [0 if name == uniform.profile else uniform.gpus, 0]
            offers += [{}, {name: most[name]}]
        self.short_names = [""] * len(used)
        for name in self.profiles if firm is not None else ():
            self._column(0, max(problem.demand[name] - (firm or {}).get(name, 0), 0))
            used.append(0)
            disturbance.append(0)
            offers.append({name: 1})
            self.short_names.append(name)
        self.used = np.array(used, dtype=float)
        self.disturbance = np.array(disturbance, dtype=float)
        self.rows, self.least, self.greatest = self._constraints(offers, spare)

    def _column(self, lower: float, upper: float) -> None:
        self.lower.append(lower)
        self.upper.append(upper)

    def _spare(self) -> int:
        """GPUs that may be cut anew if none of them keeps its cut."""
        return self.problem.blank + sum(
            count for each, count in self.problem.kept.items() if each.cuttable and not each.forced
        )

    def _constraints(
        self, offers: Sequence[Mapping[str, int]], spare: int
    ) -> tuple[np.ndarray, list[float], list[float]]:
        width = len(offers)
        rows, least, greatest = [], [], []
        for name in self.profiles:
            rows.append([float(offer.get(name, 0)) for offer in offers])
            least.append(float(self.problem.demand[name]))
            greatest.append(math.inf)
        # What keeps its cut and what is cut anew are different GPUs.
        cuttable = [each.cuttable and not each.forced for each in self.classes]
        first_setting = len(self.classes) + len(self.cuts)
        row = [0.0] * width
        row[:first_setting] = [*map(float, cuttable), *([1.0] * len(self.cuts))]
        rows.append(row)
        least.append(0.0)
        greatest.append(float(spare))
        for uniform in sorted(self.problem.uniform):
            row = [0.0] * width
            for number, (owner, _) in enumerate(self.settings):
                if owner == uniform:
                    row[first_setting + 2 * number] = 1.0
            rows.append(row)
            least.append(0.0)
            greatest.append(float(self.problem.uniform[uniform]))
        for number, (owner, _) in enumerate(self.settings):
            row = [0.0] * width
            row[first_setting + 2 * number] = -float(owner.gpus)
            row[first_setting + 2 * number + 1] = 1.0
            rows.append(row)
            least.append(-math.inf)
            greatest.append(0.0)
        return np.array(rows), least, greatest

    def solve(self, cost: np.ndarray, *, whole: bool = True, at_most: int | None = None) -> np.ndarray | None:
        """The cheapest values of the columns; None where there are none."""
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
