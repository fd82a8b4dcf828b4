"""What the health rules make of `health_fleets`: which faults are named, what is named that only looks like a fault,
and where more would be done than is right.

The whole path runs as the controller does it, from files to the plan, with the memory of faults from moment to moment,
and with every action allowed: what is right to do does not depend on a budget.
"""

import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path

from gpuwatch.act.analysis import Policies, analyse, needs_of, remember
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.decision import (
    ActionKind,
    Analysis,
    Family,
    FindingKind,
    Mode,
    Severity,
    Snapshot,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.faults import FaultMemory
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.sources.collect.collect import collect
from gpuwatch.sources.kube.recorded import RecordedCluster
from gpuwatch.sources.telemetry.recording import open_recording
from lab.evaluation.health_fleets import FLEETS, Case, HealthFleet, Right, health_fleet
from lab.evaluation.scoring import Quality, added, summed
from lab.planted import ABSENCES
from lab.simulate.fleet import SimulatedFleet
from lab.simulate.writing import write_cluster, write_fleet

POLICIES = Policies(
    plan=PlanPolicy(
        modes=dict.fromkeys(ActionKind, Mode.ENFORCE),
        budget_ratio=1.0,
        idle_storm_ratio=1.0,
        storm_ratio=1.0,
        actions_per_hour=999,
        namespace_actions_per_hour=999,
        pool_actions_per_hour=999,
    )
)
_EVERY_HOURS = 3
_FIRST = timedelta(hours=7)
_PROBES = (timedelta(minutes=45), timedelta(minutes=130))
"""Moments after the beginning of faults: after two windows of 15 minutes, and when a slow heat-up has ended."""
_OF_NODES = frozenset(
    {FindingKind.NODE_CONDITION, FindingKind.POD_FAILURES, FindingKind.INFINIBAND, FindingKind.PARTIAL_GANG}
)
"""Kinds that no fault of a GPU explains."""
_MOVES = frozenset({ActionKind.EVICT_GANG, ActionKind.RELEASE_GANG})


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A finding at a moment, and how far it went."""

    at: datetime
    kind: FindingKind
    subject: str
    summary: str
    nodes: frozenset[str]
    devices: frozenset[str]
    pods: frozenset[str]
    together: bool
    level: Right


@dataclass(frozen=True, kw_only=True)
class SceneScore:
    """right: how far it may go. found: of a fault, those that were named; of a look-alike, those that were, wrongly.
    too_far: those for which more would have been done than is right. delays_hours: of the faults found."""

    scene: str
    kind: FindingKind
    right: Right
    planted: int
    found: int
    too_far: int
    delays_hours: tuple[float, ...] = ()

    @property
    def delay_hours(self) -> float | None:
        """The median delay; None where nothing was found."""
        return statistics.median(self.delays_hours) if self.delays_hours else None


def evaluate_health(seed: int) -> tuple[list[Quality], list[SceneScore], int]:
    """The fleets of this seed: rows by kind, rows by scene, and how often one was looked at."""
    kinds, scenes, looks = [], [], 0
    for each in FLEETS:
        fleet = health_fleet(seed, each)
        moments = moments_of(fleet)
        by_kind, by_scene = score(fleet.cases, watch(fleet, moments), moments)
        kinds.append(by_kind)
        scenes.append(by_scene)
        looks += len(moments)
    return added(kinds), scenes_together(scenes), looks


def moments_of(fleet: HealthFleet) -> list[datetime]:
    plan = fleet.plan
    count = int((plan.end - plan.start - _FIRST) / timedelta(hours=_EVERY_HOURS))
    moments = {plan.end - timedelta(hours=_EVERY_HOURS * number) for number in range(count + 1)}
    moments |= {(case.start + probe).replace(second=0) for case in fleet.cases for probe in _PROBES if case.right}
    return sorted(moment for moment in moments if plan.start + _FIRST <= moment <= plan.end)


def snapshots_of(fleet: SimulatedFleet, moments: Sequence[datetime], policies: Policies) -> Iterator[Snapshot]:
    """Of each moment, from files as a user has them."""
    with tempfile.TemporaryDirectory(prefix="gpuwatch-fleet-") as name:
        folder = Path(name)
        write_fleet(fleet, folder)
        store = open_recording([folder / "telemetry.parquet"])
        for at in moments:
            write_cluster(fleet, folder / "cluster", at)
            yield collect(store, RecordedCluster(folder / "cluster"), at, needs_of(policies))


def watch(fleet: HealthFleet, moments: Sequence[datetime]) -> list[Seen]:
    """What each moment's cycle shows and would do."""
    nodes = {card.uuid: machine.name for machine in fleet.machines for card in machine.cards}
    faults, storm_at = FaultMemory(), None
    seen: list[Seen] = []
    for snapshot in snapshots_of(fleet, moments, POLICIES):
        faults = remember(snapshot, POLICIES, faults)
        analysis = analyse(PlanFacts(snapshot=snapshot, last_storm=storm_at), POLICIES, faults)
        storm_at = analysis.plan.last_storm
        seen.extend(_seen(analysis, nodes))
    return seen


def _seen(analysis: Analysis, nodes: Mapping[str, str]) -> Iterable[Seen]:
    done: dict[str, set[ActionKind]] = defaultdict(set)
    for item in analysis.plan.items:
        for finding_id in item.candidate.findings if item.admitted else ():
            done[finding_id].add(item.candidate.action)
    for finding in analysis.findings:
        if finding.kind in ABSENCES or finding.kind is FindingKind.HEALTH_UNKNOWN:
            continue
        if finding.family is not Family.HEALTH and finding.kind is not FindingKind.PARTIAL_GANG:
            continue
        actions, kind = done[finding.id], finding.subject.kind
        named = finding.verdict in (Verdict.DEGRADED, Verdict.IDLE) or finding.severity is not Severity.INFO
        own = {finding.subject.name} if kind is SubjectKind.DEVICE else set()
        devices = frozenset(finding.devices) | own
        there = {nodes[device] for device in devices if device in nodes} | ({finding.node} if finding.node else set())
        if kind is SubjectKind.NODE:
            there.add(finding.subject.name)
        yield Seen(
            at=analysis.at,
            kind=finding.kind,
            subject=str(finding.subject),
            summary=finding.summary,
            nodes=frozenset(there),
            devices=devices,
            pods=frozenset(finding.pods),
            together=kind is SubjectKind.FLEET,
            level=Right.MOVED
            if actions & _MOVES
            else Right.TAINTED
            if actions
            else Right.NAMED
            if named
            else Right.QUESTION,
        )


def score(
    cases: Sequence[Case], seen: Sequence[Seen], moments: Sequence[datetime]
) -> tuple[list[Quality], list[SceneScore]]:
    """Every case and every wrongly named subject counts once, however many moments saw it."""
    asked = [case for case in cases if any(case.start <= at < case.end for at in moments)]
    wrong = [one for one in seen if one.level >= Right.NAMED and not any(_explains(case, one) for case in asked)]
    found = {id(case): _first(case, seen if case.right else wrong) for case in asked}
    rows = []
    for kind in sorted({case.kind for case in asked} | {one.kind for one in wrong}):
        planted = [case for case in asked if case.kind is kind and case.right]
        delays = tuple(_hours(case, at) for case in planted if (at := found[id(case)]) is not None)
        false = tuple(sorted({one.subject for one in wrong if one.kind is kind}))
        rows.append(
            Quality(
                kind=kind.value,
                planted=len(planted),
                found=len(delays),
                false_found=len(false),
                same_kind=len(delays),
                delays_hours=delays,
                false_names=false,
            )
        )
    scenes = []
    for scene, kind in dict.fromkeys((case.scene, case.kind) for case in asked):
        mine = [case for case in asked if case.scene == scene]
        times = [(case, at) for case in mine if (at := found[id(case)]) is not None]
        scenes.append(
            SceneScore(
                scene=scene,
                kind=kind,
                right=mine[0].right,
                planted=len(mine),
                found=len(times),
                too_far=sum(1 for case in mine if case.right and any(_too_far(case, one, asked) for one in seen)),
                delays_hours=tuple(_hours(case, at) for case, at in times if case.right),
            )
        )
    return rows, scenes


def _hours(case: Case, at: datetime) -> float:
    return (at - case.start) / timedelta(hours=1)


def _first(case: Case, seen: Iterable[Seen]) -> datetime | None:
    """The first moment at which it was named, or shown where no more is right."""
    least = Right.QUESTION if case.right is Right.QUESTION else Right.NAMED
    times = [
        one.at
        for one in seen
        if one.kind is case.kind
        and one.level >= least
        and case.start <= one.at < case.end
        and _about(case, one)
        and case.says in one.summary
        and (one.together or not case.together)
    ]
    return min(times, default=None)


def _about(case: Case, one: Seen) -> bool:
    if case.pods:
        return bool(case.pods & one.pods)
    if case.devices and one.devices:
        return bool(case.devices & one.devices)
    return bool(case.nodes & one.nodes)


def _explains(case: Case, one: Seen) -> bool:
    """It is about this fault, or about another sign of it on its GPUs."""
    if not case.right or not case.start <= one.at < case.end + case.fades or not _about(case, one):
        return False
    if one.kind is case.kind:
        return one.together or not case.together
    return not {one.kind, case.kind} & _OF_NODES and not case.together


def _too_far(case: Case, one: Seen, cases: Iterable[Case]) -> bool:
    """More would be done than is right, for this fault and for each other one that is there then."""
    kin = one.kind is case.kind or not {one.kind, case.kind} & _OF_NODES
    there = kin and case.start <= one.at < case.end and _about(case, one) and one.level > max(case.right, Right.NAMED)
    return there and not any(
        other.right >= one.level and other.start <= one.at < other.end + other.fades and _about(other, one)
        for other in cases
    )


def scenes_together(fleets: Iterable[Sequence[SceneScore]]) -> list[SceneScore]:
    """The rows of several fleets as one, scene by scene, by kind."""
    together = grouped(chain.from_iterable(fleets), lambda row: row.scene)
    added = (summed(rows) for rows in together.values())
    return sorted(added, key=lambda row: (row.kind, row.right is Right.NOTHING, row.scene))
