"""Asks the product about a row: samples → statistics → Snapshot → findings → plan, with nothing in between replaced."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from detect.situations.fleet import START, World, duration
from gpuwatch.act.analysis import Policies, analyse, assess, needs_of, remember
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.decision import ActionKind, Finding, Mode, Plan, PlanItem, Snapshot, Verdict
from gpuwatch.facts.model.faults import FaultMemory
from gpuwatch.sources.collect.collect import collect
from gpuwatch.sources.kube.recorded import RecordedCluster
from tools.situations import Expect, Moment, Row

POLICIES = Policies(plan=PlanPolicy(modes=dict.fromkeys(ActionKind, Mode.ENFORCE)))
"""Default bounds; everything may be done."""

_ENDS_WORK = (ActionKind.EVICT_GANG, ActionKind.RELEASE_GANG)


@dataclass(frozen=True)
class Memory:
    """What one cycle leaves to the next. The one place where memory is handed on between the moments of a row."""

    storm_at: datetime | None = None
    faults: FaultMemory = FaultMemory()


@dataclass(frozen=True)
class Concluded:
    snapshot: Snapshot
    findings: tuple[Finding, ...]  # HEALTHY ones too
    shown: frozenset[str]  # Finding.id of those that people see
    plan: Plan
    faults: FaultMemory


def cycle(snapshot: Snapshot, memory: Memory) -> tuple[Concluded, Memory]:
    """One cycle of the controller, without the executor."""
    faults = remember(snapshot, POLICIES, memory.faults)
    analysis = analyse(PlanFacts(snapshot=snapshot, last_storm=memory.storm_at), POLICIES, faults)
    everything = assess(snapshot, POLICIES, everything=True, faults=faults)
    shown = frozenset(item.id for item in analysis.findings)
    left = Memory(storm_at=analysis.plan.last_storm, faults=faults)
    return Concluded(snapshot, everything, shown, analysis.plan, faults), left


def concluded(row: Row, folder: Path) -> Iterator[tuple[Moment, Concluded]]:
    """What is concluded at each moment of the row, in turn."""
    world = World(row.given, max(duration(moment.at) for moment in row.moments))
    store = world.telemetry()
    memory = Memory()
    changes: dict[str, dict[str, object]] = {}
    for number, moment in enumerate(row.moments):
        for pattern, said in moment.nodes.items():
            changes[pattern] = {**changes.get(pattern, {}), **said}
        cluster = folder / str(number)
        cluster.mkdir()
        after = duration(moment.at)
        world.cluster(cluster, after, changes)
        snapshot = collect(store, RecordedCluster(cluster), START + after, needs_of(POLICIES))
        found, memory = cycle(snapshot, memory)
        yield moment, found


def complaints(moment: Moment, found: Concluded) -> list[str]:
    """Where the conclusions are not those of the row, with what was concluded instead."""
    wrong = [text for each in moment.expect for text in _finding(each, found)]
    actions = [f"{item.candidate.action} {item.candidate.target}" for item in _done(found.plan)]
    ends = [
        f"{item.candidate.action} {item.candidate.target}"
        for item in _done(found.plan)
        if item.candidate.action in _ENDS_WORK
    ]
    if moment.nothing_done and actions:
        wrong.append(f"nothing was to be done, but: {', '.join(actions)}")
    if moment.spared and ends:
        wrong.append(f"no job was to be moved, but: {', '.join(ends)}")
    if not moment.others:
        named = {name for each in moment.expect for subject in each.subjects for name in _names(subject)}
        wrong += [
            f"not expected: {_shown(item, found)}"
            for item in found.findings
            if item.id in found.shown
            and item.verdict in (Verdict.DEGRADED, Verdict.IDLE, Verdict.MISFIT)
            and "any" not in named
            and named.isdisjoint({str(item.subject), *(f"device/{name}" for name in item.devices)})
        ]
    return [f"at {moment.at}: {text}" for text in wrong]


def _done(plan: Plan) -> list[PlanItem]:
    return [item for item in plan.items if item.admitted and item.mode is Mode.ENFORCE]


def _actions(finding: Finding, plan: Plan) -> set[ActionKind]:
    return {item.candidate.action for item in _done(plan) if finding.id in item.candidate.findings}


def _names(subject: str) -> tuple[str, ...]:
    """'a0/3' → device/GPU-a0-3; anything else is a subject, or 'any'."""
    node, _, index = subject.partition("/")
    return (f"device/GPU-{node}-{index}",) if index.isdecimal() else (subject,)


def _finding(each: Expect, found: Concluded) -> list[str]:
    return [text for subject in each.subjects for text in _on(each, subject, found)]


def _on(each: Expect, subject: str, found: Concluded) -> list[str]:
    names = _names(subject)
    there = [
        item for item in found.findings if item.kind in each.kinds and (subject == "any" or str(item.subject) in names)
    ]
    shown = "; ".join(_shown(item, found) for item in there) or "no such finding"
    what = f"{' or '.join(each.kinds)} on {subject}"
    if each.verdict is None:
        return [f"no {what} was expected: {_shown(item, found)}" for item in there if item.id in found.shown]
    if any(_fits(each, item, found) for item in there):
        return []
    wanted = [
        each.verdict,
        each.severity,
        each.advice,
        "" if each.acted_on is None else f"acted_on={each.acted_on}",
        each.says,
    ]
    return [f"{what}: expected {', '.join(str(part) for part in wanted if part)}; got: {shown}"]


def _fits(each: Expect, item: Finding, found: Concluded) -> bool:
    acted = _actions(item, found.plan)
    as_wanted = each.acted_on is None or (
        bool(acted) is each.acted_on if isinstance(each.acted_on, bool) else acted == set(each.acted_on)
    )
    return (
        item.verdict is each.verdict
        and each.severity in (None, item.severity)
        and each.advice in (None, item.advice)
        and each.says in item.summary
        and as_wanted
    )


def _shown(item: Finding, found: Concluded) -> str:
    refused = [
        f"{plan.candidate.action} refused by {', '.join(sorted({refusal.guard for refusal in plan.refusals}))}"
        for plan in found.plan.items
        if item.id in plan.candidate.findings and not plan.admitted
    ]
    acted = ", ".join(sorted(_actions(item, found.plan))) or "nothing done"
    return (
        f"{item.kind} on {item.subject}: {item.verdict}, {item.severity}, {item.advice}, {item.confidence_ratio:.2f}, "
        f"{acted}{''.join(f' ({text})' for text in refused)} — {item.summary}"
    )
