"""Which allocations are idle: allocated and not used.

A gang is judged as one: one busy or unknown device keeps it. It is idle only where neither its own past nor that of
similar workloads explains the silence (`gpuwatch.judge.idle.silence`), a second signal agrees, and enough was seen.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from gpuwatch.facts.model.cluster import Gang
from gpuwatch.facts.model.decision import Finding, Snapshot, Subject, SubjectKind, Verdict
from gpuwatch.judge.idle.holdings import Holdings, PodHolding, holdings_of
from gpuwatch.judge.idle.partial_gang import PartialGang, judge_partial, partial_gangs
from gpuwatch.judge.idle.past import SilenceModel
from gpuwatch.judge.idle.policy import IdlePolicy
from gpuwatch.judge.idle.signals import needs_of_rules
from gpuwatch.judge.idle.silence import joined
from gpuwatch.judge.idle.verdict import UNTOLD, Allocation, IdleJudge, idle_unknown

__all__ = ["IdlePolicy", "assess_idle", "needs_of_rules"]


def assess_idle(snapshot: Snapshot, policy: IdlePolicy, *, everything: bool = False) -> tuple[Finding, ...]:
    """One finding per gang, per running Pod without one, and per device whose Pod the cluster does not know.

    everything: findings for all devices. ValueError where the histories of the Snapshot differ in their step.
    """
    holdings = holdings_of(snapshot)
    calendar = holdings.calendar
    partial = partial_gangs(snapshot.cluster)
    judge = IdleJudge(snapshot, policy, SilenceModel(holdings, calendar, policy)) if calendar is not None else None
    judged = ((item, partial.get(item.subject.name)) for item in _allocations(holdings, snapshot, judge))
    findings = [_judged(judge, item, found, snapshot.at) for item, found in judged]
    if judge is None:
        return tuple(findings)
    if everything:
        findings += [judge.judge(item) for holder in holdings.holders.values() for item in _devices(holder)]
    devices = {device.id: device for device in snapshot.devices}
    for name, by in holdings.unheld.items():
        text = f"telemetry or a claim gives it to {' and '.join(by)}, but the cluster has no such Pod"
        found = idle_unknown(Subject(SubjectKind.DEVICE, name), text, ("the Pod that has it",))
        findings.append(replace(found, devices=(name,), node=devices[name].node))
    return tuple(findings)


def _judged(judge: IdleJudge | None, item: Allocation, partial: PartialGang | None, at: datetime) -> Finding:
    """judge: None without any history of activity."""
    found = judge_partial(judge, item, partial, at) if partial is not None else None
    if found is not None and (found.verdict is Verdict.IDLE or judge is None):
        return found
    if judge is None:
        names = tuple(device.id for device in item.devices)
        return replace(idle_unknown(item.subject, UNTOLD, item.unseen), devices=names, pods=item.pods)
    usual = judge.judge(item)
    if found is None or not usual.gpu_hours:
        return found or usual
    # The finding on its own silence has the GPU-hours already, so the partial gang adds words alone.
    return replace(usual, summary=f"{usual.summary}; {found.summary}")


def _allocations(holdings: Holdings, snapshot: Snapshot, judge: IdleJudge | None) -> Iterator[Allocation]:
    gangs = {gang.id: gang for gang in snapshot.cluster.gangs}
    members: dict[str, list[PodHolding]] = defaultdict(list)
    for holder in holdings.holders.values():
        if holder.gang:
            members[holder.gang].append(holder)
        else:
            yield _allocation(Subject(SubjectKind.POD, holder.ref), [holder], _device_notes(holder, judge))
    for name, holders in members.items():
        notes = _gang_notes(gangs.get(name), holders, holdings, judge)
        yield _allocation(Subject(SubjectKind.GANG, name), holders, notes)


def _allocation(subject: Subject, holders: Sequence[PodHolding], notes: tuple[str, ...]) -> Allocation:
    starts = [holder.started for holder in holders if holder.started is not None]
    unseen = [text if len(holders) == 1 else f"{text} ({holder.ref})" for holder in holders for text in holder.unseen]
    return Allocation(
        subject=subject,
        workload=holders[0].workload,
        devices=tuple({device.id: device for holder in holders for device in holder.devices}.values()),
        pods=tuple(holder.ref for holder in holders),
        lane=joined([holder.lane for holder in holders]),
        # The age of the youngest; unknown where any Pod's age is.
        started=max(starts) if len(starts) == len(holders) else None,
        ambiguous=any(holder.ambiguous for holder in holders),
        unseen=tuple(unseen),
        notes=notes,
    )


def _devices(holder: PodHolding) -> Iterator[Allocation]:
    """Each device of the Pod alone, judged by the past of its workload."""
    for device in holder.devices:
        lane = holder.lanes.get(device.id)
        if lane is None:
            continue
        yield Allocation(
            subject=Subject(SubjectKind.DEVICE, device.id),
            workload=holder.workload,
            devices=(device,),
            pods=(holder.ref,),
            lane=lane,
            started=holder.started,
            ambiguous=holder.ambiguous,
            unseen=() if device.present else (f"{device.id} has left telemetry",),
        )


def _device_notes(holder: PodHolding, judge: IdleJudge | None) -> tuple[str, ...]:
    if judge is None or len(holder.devices) < 2:
        return ()
    idle = sum(judge.unexplained(holder.workload, lane) for lane in holder.lanes.values())
    if idle in (0, len(holder.lanes)):
        return ()
    return (f"{idle} of its {len(holder.lanes)} devices have been idle for longer than their past explains",)


def _gang_notes(
    gang: Gang | None, holders: Sequence[PodHolding], holdings: Holdings, judge: IdleJudge | None
) -> tuple[str, ...]:
    notes = []
    if gang is not None:
        away = [ref for ref in gang.pods if ref in holdings.left_out]
        if away:
            notes.append(f"{len(away)} of its {len(gang.pods)} Pods not counted: {holdings.left_out[away[0]]}")
        if judge is not None and gang.min_available is not None and len(holders) > gang.min_available:
            silent = sum(judge.unexplained(holder.workload, holder.lane) for holder in holders)
            spare = len(holders) - gang.min_available
            if 0 < silent < len(holders):
                notes.append(
                    f"{silent} of its {len(holders)} Pods are idle for longer than their past explains, and "
                    f"{spare} are above its minimum of {gang.min_available}"
                )
    return tuple(notes)
