"""How well each kind of finding is found: planted, found and wrongly named, how soon, over one fleet or several. Pure.

Every Truth and every finding counts once, however many moments saw it. `lab.planted` says which finding
is right.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from enum import Enum
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.decision import Finding, FindingKind, Verdict
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.telemetry import PodRef
from lab.planted import (
    ABSENCES,
    IDLE_KINDS,
    Named,
    Truth,
    about,
    explained,
    first_about,
    holds,
    nameable_faults,
    named_as,
    named_by_pod,
    named_of,
    wrongly_named,
)
from lab.simulate.moments import NEVER_USED_LIMIT

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MISFIT_KINDS = (FindingKind.HBM_CONTENTION, FindingKind.PCIE_CONTENTION, FindingKind.SCATTERED)
SURE = ", proven"
"""Suffix to the kind of a misfit that the plan would act on: confidence of at least 0.8."""
ALLOCATION_KINDS = frozenset(
    {kind.value for kind in IDLE_KINDS} | {f"{kind.value}{sure}" for kind in MISFIT_KINDS for sure in ("", SURE)}
)

# While these hold, or did within the silence, whether a Pod works is not known.
_UNSEEN = (*ABSENCES, FindingKind.GPU_MISSING)


def named_with_misfits(at: datetime, findings: Sequence[Finding]) -> list[Named]:
    """As `named_of`, and the misfits, those that are sure enough to act on under a kind of their own as well."""
    named = named_of(at, findings)
    for finding in findings:
        if finding.verdict is Verdict.MISFIT:
            named.append(named_as(at, finding))
            if finding.confidence_ratio >= PlanPolicy().min_confidence_ratio:
                named.append(named_as(at, finding, f"{finding.kind}{SURE}"))
    return named


@dataclass(frozen=True, kw_only=True)
class Quality:
    """How well one kind is found. Counts are of Truths (planted, found) and of subjects named (false_found).

    same_kind: those of `found` that were given the very kind that was planted (idle classes only can differ).
    delays_hours: for each found one the time from the start of its Truth to the first moment that named it.
    gpu_hours, gpu_hours_named: how long the planted ones lasted within the moments, and how long after being named.
    false_names: the subjects behind `false_found`.
    due: how many of the planted idle allocations were watched, without a hole in telemetry, for longer than their past
        explains (see `evaluation.patience`; what never worked is due after NEVER_USED_LIMIT). due_found: how
        many of those were named. late_hours: for each of these how long after it was due; below 0 where it was
        named sooner.
    """

    kind: str
    planted: int
    found: int
    false_found: int
    same_kind: int
    delays_hours: tuple[float, ...] = ()
    gpu_hours: float = 0.0
    gpu_hours_named: float = 0.0
    false_names: tuple[str, ...] = ()
    due: int = 0
    late_hours: tuple[float, ...] = ()

    @property
    def due_found(self) -> int:
        return len(self.late_hours)

    @property
    def late_hours_median(self) -> float | None:
        return statistics.median(self.late_hours) if self.late_hours else None

    @property
    def delay_hours(self) -> float | None:
        """The median delay; None where nothing was found."""
        return statistics.median(self.delays_hours) if self.delays_hours else None

    @property
    def recall(self) -> float | None:
        return self.found / self.planted if self.planted else None

    @property
    def precision(self) -> float | None:
        named = self.found + self.false_found
        return self.found / named if named else None


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Pods that go on working, and how many of them a rule named idle all the same; the services among them."""

    rule: str
    pods: int
    named: int
    services: int
    services_named: int


# Faults


def score_faults(truths: Sequence[Truth], named: Sequence[Named], moments: Sequence[datetime]) -> list[Quality]:
    """One row per kind of health finding that was planted or named."""
    faults = nameable_faults(truths)
    about_gpus = [one for one in named if one.kind not in ALLOCATION_KINDS]
    asked = [truth for truth in faults if not truth.harmless and _asked(truth, moments)]
    kinds = {truth.kind.value for truth in asked} | {one.kind for one in about_gpus}
    found: dict[str, list[Named]] = defaultdict(list)
    for one in about_gpus:
        found[one.kind].append(one)
    rows = []
    for kind in sorted(kinds):
        planted = [truth for truth in asked if truth.kind.value == kind]
        first = {id(truth): first_about(truth, found[kind]) for truth in planted}
        false = {one.subject for one in found[kind] if not explained(one, faults)}
        rows.append(_quality(kind, planted, first, false, moments[-1]))
    return rows


def _asked(truth: Truth, moments: Sequence[datetime]) -> bool:
    """It began while somebody was looking, and some moment saw it. An XID that came before anybody looked is an
    event of the past."""
    return truth.start >= moments[0] and any(holds(truth, at) for at in moments)


# Misfits


def score_misfits(truths: Sequence[Truth], named: Sequence[Named], moments: Sequence[datetime]) -> list[Quality]:
    """Two rows per kind that was planted or named: all that is named, and what the plan would make something of."""
    so = [truth for truth in truths if truth.kind in MISFIT_KINDS and not truth.harmless]
    asked = [truth for truth in so if _asked(truth, moments)]
    rows = []
    for kind in MISFIT_KINDS:
        planted = [truth for truth in asked if truth.kind is kind]
        for name in (kind.value, f"{kind.value}{SURE}"):
            found = [one for one in named if one.kind == name]
            if not planted and not found:
                continue
            mine = [truth for truth in so if truth.kind is kind]
            false = {
                one.subject
                for one in found
                # What the last hour is judged by may have ended within it.
                if not any(holds(truth, one.at, timedelta(hours=1)) and about(truth, one) for truth in mine)
            }
            first = {id(truth): first_about(truth, found) for truth in planted}
            rows.append(_quality(name, planted, first, false, moments[-1]))
    return rows


# Allocations


def score_idle(
    truths: Sequence[Truth],
    named: Sequence[Named],
    moments: Sequence[datetime],
    rule: str = "",
    waits: Mapping[PodRef, timedelta] = MappingProxyType({}),
) -> tuple[list[Quality], Kept]:
    """Per class of idleness and over all of them ('idle'), and the working Pods that were named.

    rule: the name of a baseline whose Named are meant; '' for the project's own, of which the classes are told.
    waits: for how long the silence of a Pod that had worked is explained; one that is not in it is never due.
    """
    wanted = {rule} if rule else {kind.value for kind in IDLE_KINDS}
    of_pod = named_by_pod(named, wanted)
    idle = [t for t in truths if not t.harmless and t.kind in IDLE_KINDS and _asked(t, moments)]
    first = {id(t): min((n.at for n in of_pod[t.pods[0]] if holds(t, n.at)), default=None) for t in idle}
    kind_at = {id(t): {n.kind for n in of_pod[t.pods[0]] if holds(t, n.at)} for t in idle if first[id(t)] is not None}
    wrong = wrongly_named(truths, of_pod)
    unseen = [t for t in truths if t.kind in _UNSEEN]
    due = {id(t): at for t in idle if (at := _due(t, moments, waits, unseen)) is not None}
    rows = []
    for kind in IDLE_KINDS if not rule else ():
        planted = [truth for truth in idle if truth.kind is kind]
        false = {pod for pod, kinds in wrong.items() if kind.value in kinds}
        same = sum(1 for truth in planted if kind.value in kind_at.get(id(truth), ()))
        rows.append(_quality(kind.value, planted, first, false, moments[-1], same, due))
    same = sum(1 for truth in idle if truth.kind.value in kind_at.get(id(truth), ()))
    rows.append(_quality(rule or "idle, any class", idle, first, set(wrong), moments[-1], same, due))
    working = [t for t in truths if t.pods and t.harmless and any(holds(t, at) for at in moments)]
    pods = {truth.pods[0] for truth in working}
    services = {truth.pods[0] for truth in working if truth.workload.startswith("Deployment/")}
    kept = Kept(
        rule=rule or "gpuwatch",
        pods=len(pods),
        named=len(pods & set(wrong)),
        services=len(services),
        services_named=len(services & set(wrong)),
    )
    return rows, kept


def _due(
    truth: Truth, moments: Sequence[datetime], waits: Mapping[PodRef, timedelta], unseen: Iterable[Truth]
) -> datetime | None:
    """When it should be named; None where that is not known, nobody looked any more, or telemetry was missing before
    (`unseen`): unknown is not idle."""
    wait = NEVER_USED_LIMIT if truth.kind is FindingKind.NEVER_USED else waits.get(truth.pods[0])
    if wait is None:
        return None
    at = truth.start + wait
    blind = any(
        set(gap.nodes) & set(truth.nodes) and gap.start < at and (gap.end is None or gap.end > truth.start)
        for gap in unseen
    )
    return at if not blind and any(moment >= at and holds(truth, moment) for moment in moments) else None


def _quality(
    kind: str,
    planted: Sequence[Truth],
    first: dict[int, datetime | None],
    false: set[str],
    until: datetime,
    same: int | None = None,
    due: Mapping[int, datetime] = MappingProxyType({}),
) -> Quality:
    delays, late = [], []
    lasted = known = 0.0
    for truth in planted:
        end = min(truth.end or until, until)
        lasted += len(truth.devices) * max((end - truth.start).total_seconds(), 0.0) / 3600
        at = first[id(truth)]
        if at is not None:
            delays.append(max((at - truth.start).total_seconds(), 0.0) / 3600)
            if id(truth) in due:
                late.append((at - due[id(truth)]).total_seconds() / 3600)
            known += len(truth.devices) * max((end - at).total_seconds(), 0.0) / 3600
    return Quality(
        kind=kind,
        planted=len(planted),
        found=len(delays),
        false_found=len(false),
        same_kind=len(delays) if same is None else same,
        delays_hours=tuple(delays),
        gpu_hours=lasted,
        gpu_hours_named=known,
        false_names=tuple(sorted(false)),
        due=sum(1 for truth in planted if id(truth) in due),
        late_hours=tuple(late),
    )


Row = TypeVar("Row", bound="DataclassInstance")


def summed(rows: Sequence[Row]) -> Row:
    """Several rows about the same as one: numbers are added and tuples joined; words are those of the first."""
    values = {item.name: [getattr(row, item.name) for row in rows] for item in fields(rows[0])}
    together = {
        name: tuple(chain.from_iterable(each)) if isinstance(each[0], tuple) else sum(each)
        for name, each in values.items()
        if not isinstance(each[0], str | Enum)
    }
    return replace(rows[0], **together)


def added(fleets: Iterable[Sequence[Quality]]) -> list[Quality]:
    """The rows of several fleets as one, kind by kind."""
    return [summed(rows) for rows in grouped(chain.from_iterable(fleets), lambda row: row.kind).values()]


def kept_together(fleets: Iterable[Iterable[Kept]]) -> list[Kept]:
    """The counts of several fleets as one, rule by rule."""
    return [summed(rows) for rows in grouped(chain.from_iterable(fleets), lambda row: row.rule).values()]
