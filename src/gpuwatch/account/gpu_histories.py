"""The histories of the fleet's GPUs over a span, for the ledger, from what telemetry and the cluster told. Pure."""

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt

from gpuwatch.account.fleet_cost import NO_POOL
from gpuwatch.account.ledger import ACTIVE_RATIO, LOAD_SECONDS, MODEL_BYTES, Floats, GpuHistory, HoldHistory
from gpuwatch.account.lost_work import Ending, LostSpan, Run, can_lose, endings_of, runs_of, spans_by_pod
from gpuwatch.facts.catalog.gpus import gpu_share_ratio, model_name
from gpuwatch.facts.frameworks import kind_name
from gpuwatch.facts.model.cluster import Cluster, Node, Pod
from gpuwatch.facts.model.decision import Finding, FindingKind, Verdict
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.ledger import (
    Checkpoint,
    ClusterHistory,
    ContainerHistory,
    LedgerPast,
    LossCause,
    NodeHistory,
    Worked,
)
from gpuwatch.facts.model.telemetry import PodRef, Signal
from gpuwatch.facts.model.workload_profile import HeldWindows, Unfit

_Bools = npt.NDArray[np.bool_]

ALONE = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "Notebook", "DaemonSet", "Pod"})
"""Kinds whose Pods do not wait for each other; of others, a Pod that is gone may have been in a gang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetHistory:
    """What was read about (start, start + count · step].

    windows: of every device and holder, with BUSY_RATIO, SM_ACTIVE_RATIO and MEMORY_USED_BYTES. owners: Workload.id of
    each Pod, where known. node_of: UUID → name of the Node, or the host as telemetry spells it. unfit: times in which
    a GPU was degraded. findings: at the span's end. past: at its begin.
    """

    start: datetime
    step_seconds: int
    count: int
    windows: Sequence[HeldWindows]
    owners: Mapping[PodRef, str]
    node_of: Mapping[str, str]
    cluster: Cluster
    history: ClusterHistory
    unfit: Sequence[Unfit] = ()
    findings: Sequence[Finding] = ()
    past: LedgerPast = field(default_factory=LedgerPast)

    def place(self, at: datetime) -> int:
        """The step that has this moment in it, at most `count`, at least 0."""
        passed = (at - self.start).total_seconds() / self.step_seconds
        return int(np.clip(np.floor(passed), 0, self.count))

    def blank(self) -> Floats:
        return np.full(self.count, np.nan)


def gpu_histories(fleet: FleetHistory) -> Iterable[GpuHistory]:
    """Node by Node, so that one Node's facts are in memory at a time."""
    pods = {pod.ref: pod for pod in fleet.cluster.pods}
    live = {node.name: node for node in fleet.cluster.nodes}
    degraded = _degraded(fleet)
    known = _Known(
        pods=pods,
        waits=_waits(fleet, pods),
        kinds={ref: item.kind for item in fleet.findings for ref in item.pods if item.kind in _WORKED},
        degraded=degraded,
        lost=_lost(fleet, pods, degraded),
    )
    by_gpu = grouped(fleet.windows, lambda each: each.uuid)
    nodes = {**{uuid: node for uuid, (node, _) in fleet.past.gpus.items()}, **fleet.node_of}
    by_node = grouped({*by_gpu, *fleet.past.gpus}, lambda uuid: nodes.get(uuid, ""))
    for name, uuids in sorted(by_node.items()):
        cards = [_card(uuid, by_gpu[uuid], fleet) if uuid in by_gpu else _unseen(uuid, fleet) for uuid in sorted(uuids)]
        yield from _of_node(name, live.get(name), cards, fleet, known)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """Facts of the whole fleet. pods: those that live. waits: whether a Pod waits for its gang. kinds: of findings that
    tell of a Pod's past. degraded: by UUID, whether the GPU was. lost: work of each Pod."""

    pods: Mapping[PodRef, Pod]
    waits: Mapping[PodRef, Floats]
    kinds: Mapping[PodRef, FindingKind]
    degraded: Mapping[str, Floats]
    lost: Mapping[PodRef, tuple[LostSpan, ...]]


@dataclass(slots=True)
class _Card:
    """One GPU as telemetry shows it. held: windows with the part of the GPU that they have in each step."""

    uuid: str
    model: str
    seen: _Bools
    uncovered: Floats
    engine: Floats
    memory: Floats
    held: dict[tuple[PodRef, str], list[tuple[HeldWindows, Floats]]] = field(default_factory=dict)
    exists: Floats = field(default_factory=lambda: np.zeros(0))


def _unseen(uuid: str, fleet: FleetHistory) -> _Card:
    """One that counted before the span, and has no sample in it."""
    return _Card(
        uuid=uuid,
        model=fleet.past.gpus[uuid][1],
        seen=np.zeros(fleet.count, np.bool_),
        uncovered=np.zeros(fleet.count),
        engine=fleet.blank(),
        memory=fleet.blank(),
    )


def _card(uuid: str, windows: Sequence[HeldWindows], fleet: FleetHistory) -> _Card:
    spans = [_mask(each, fleet) for each in windows]
    devices = grouped(range(len(windows)), lambda index: (windows[index].device, windows[index].mig_profile))
    shown = {key: np.logical_or.reduce([spans[index][1] for index in of]) for key, of in devices.items()}
    there = {key: np.logical_or.reduce([spans[index][0] for index in of]) for key, of in devices.items()}
    seen = np.logical_or.reduce([*shown.values()])
    # In a step with samples, only what has some counts; a row of the whole GPU beside its instances does not.
    active = {key: np.where(seen, shown[key], there[key]) for key in devices}
    instance = np.logical_or.reduce([active[key] for key in devices if key[1]] or [np.zeros(fleet.count, np.bool_)])
    share = {
        key: (active[key] & (instance if key[1] else ~instance)) * gpu_share_ratio(windows[of[0]].model, key[1])
        for key, of in devices.items()
    }
    total = np.sum([*share.values()], axis=0)
    scale = np.where(total > 1.0, 1.0 / np.where(total > 0, total, 1.0), 1.0)
    card = _Card(
        uuid=uuid,
        model=windows[-1].model,
        seen=seen,
        uncovered=np.where(instance, np.clip(1.0 - total, 0.0, 1.0), 0.0),
        engine=fleet.blank(),
        memory=fleet.blank(),
    )
    for key, of in devices.items():
        chosen = [np.where(shown[key], spans[index][1], spans[index][0]) for index in of]
        sharers = np.maximum(np.sum(chosen, axis=0), 1)
        for index, mask in zip(of, chosen, strict=True):
            each = windows[index]
            part = mask * share[key] * scale / sharers
            if each.pod:
                card.held.setdefault((each.pod, each.container), []).append((each, part))
            else:
                free = part > 0
                card.engine = np.where(free, np.fmax(card.engine, _values(each, Signal.BUSY_RATIO, fleet)), card.engine)
                used = _values(each, Signal.MEMORY_USED_BYTES, fleet)
                card.memory = np.where(free, np.fmax(card.memory, used), card.memory)
    return card


def _mask(windows: HeldWindows, fleet: FleetHistory) -> tuple[_Bools, _Bools]:
    """Where these windows are, and where they have a sample."""
    length = max((len(values) for values in windows.values.values()), default=0)
    first = round((windows.start - fleet.start).total_seconds() / fleet.step_seconds)
    there = np.zeros(fleet.count, np.bool_)
    there[max(first, 0) : max(first + length, 0)] = True
    any_sample = np.zeros(fleet.count, np.bool_)
    for signal in windows.values:
        any_sample |= ~np.isnan(_values(windows, signal, fleet))
    return there, any_sample


def _values(windows: HeldWindows, signal: Signal, fleet: FleetHistory) -> Floats:
    found, values = fleet.blank(), np.asarray(windows.values.get(signal, ()), np.float64)
    first = round((windows.start - fleet.start).total_seconds() / fleet.step_seconds)
    skipped = max(-first, 0)
    part = values[skipped : skipped + fleet.count - max(first, 0)]
    found[max(first, 0) : max(first, 0) + len(part)] = part
    return found


def _of_node(
    name: str, node: Node | None, cards: Sequence[_Card], fleet: FleetHistory, known: _Known
) -> Iterable[GpuHistory]:
    facts = fleet.history.nodes.get(name) or _as_it_stands(name, node, fleet)
    ready, cordoned = np.asarray(facts.ready), np.asarray(facts.cordoned)
    capacity, allocatable = np.asarray(facts.capacity), np.asarray(facts.allocatable)
    _appearances(cards, _there(ready, capacity, listed=node is not None), fleet.past.gpus)
    seen = np.sum([card.seen for card in cards], axis=0)
    missing = {card.uuid: np.where(card.seen, 0.0, np.where(seen > 0, 1.0, np.nan)) for card in cards}
    gone = np.sum([card.exists * (missing[card.uuid] == 1) for card in cards], axis=0)
    free = np.sum([_offered_ratio(card, missing[card.uuid], fleet) for card in cards], axis=0)
    ratio = (capacity - allocatable) / np.where(capacity > 0, capacity, 1.0)
    withheld = ratio * np.sum([card.exists for card in cards], axis=0)
    # A missing GPU is rightly withheld.
    withheld_ratio = np.clip(withheld - gone, 0.0, None) / np.where(free > 0, free, 1.0)
    of_node = [known.degraded[card.uuid] for card in cards if card.uuid in known.degraded]
    pool = (node.pool if node else "") or NO_POOL
    for card in cards:
        free = fleet.history.free.get((pool, model_name(card.model)), {})
        yield GpuHistory(
            uuid=card.uuid,
            node=name,
            pool=pool,
            gpu_model=model_name(card.model),
            exists_ratio=card.exists,
            uncovered_ratio=card.uncovered,
            missing=missing[card.uuid],
            ready=ready,
            withheld_ratio=withheld_ratio,
            cordoned=cordoned,
            degraded=np.max(of_node, axis=0) if of_node else np.zeros(fleet.count),
            engine_ratio=card.engine,
            memory_bytes=card.memory,
            free_ratios={row: np.asarray(ratio) for row, ratio in free.items()},
            holds=tuple(_holds(card, fleet, known, ~np.isnan(ready))),
        )


def _there(ready: Floats, capacity: Floats, *, listed: bool) -> _Bools:
    """Whether the Node is: it has a capacity. As before while kube-state-metrics is away; without any, as it is now."""
    known = ~np.isnan(ready) & (~np.isnan(capacity)).any()
    newest = np.maximum.accumulate(np.where(known, np.arange(len(ready)), -1))
    return np.where(newest >= 0, ~np.isnan(capacity)[newest], listed)


def _appearances(cards: Sequence[_Card], there: _Bools, before: Collection[str]) -> None:
    """Sets from when to when each GPU counts: from its first sample to its last, and on while its Node is there, until
    another GPU takes its place. there: the Node is. before: GPUs that counted before the span."""
    count = len(there)
    first = {card.uuid: int(np.argmax(card.seen)) if card.seen.any() else count for card in cards}
    first |= {card.uuid: 0 for card in cards if card.uuid in before}
    last = {card.uuid: count - 1 - int(np.argmax(card.seen[::-1])) if card.seen.any() else -1 for card in cards}
    newcomers = sorted(at for uuid, at in first.items() if uuid not in before)
    for card in sorted(cards, key=lambda each: last[each.uuid]):
        begin, end = first[card.uuid], last[card.uuid] + 1
        successor = next((each for each in newcomers if each >= end), count)
        if successor < count:
            newcomers.remove(successor)
        card.exists = np.zeros(count)
        card.exists[begin:end] = 1.0
        card.exists[end:successor] = there[end:successor]


def _as_it_stands(name: str, node: Node | None, fleet: FleetHistory) -> NodeHistory:
    """What the Node itself tells of its past: since when it is Ready or not, and cordoned."""
    ready, cordoned, unknown = fleet.blank(), fleet.blank(), array("d", fleet.blank().tobytes())
    if node is not None:
        condition = next((each for each in node.conditions if each.type == "Ready"), None)
        if condition is not None and condition.since is not None:
            ready[fleet.place(condition.since) :] = float(condition.status == "True")
        since = next((taint.since for taint in node.taints if taint.key == _UNSCHEDULABLE), None)
        if node.unschedulable and since is not None:
            cordoned[fleet.place(since) :] = 1.0
    return NodeHistory(
        name=name,
        ready=array("d", ready.tobytes()),
        cordoned=array("d", cordoned.tobytes()),
        capacity=unknown,
        allocatable=unknown,
    )


def _offered_ratio(card: _Card, missing: Floats, fleet: FleetHistory) -> Floats:
    """The part that no Pod has, of a GPU that is neither missing nor used outside Kubernetes: what may be withheld."""
    used = (card.engine > ACTIVE_RATIO) | (card.memory >= MODEL_BYTES)
    return np.where(used, 0.0, card.exists * (missing != 1) - _held_ratio(card, fleet))


def _held_ratio(card: _Card, fleet: FleetHistory) -> Floats:
    parts = [part for each in card.held.values() for _, part in each]
    return np.sum(parts, axis=0) if parts else np.zeros(fleet.count)


def _holds(card: _Card, fleet: FleetHistory, known: _Known, reported: _Bools) -> Iterable[HoldHistory]:
    """reported: kube-state-metrics had series. A Pod without its series and without a sample has ended then."""
    for (pod, container), pieces in card.held.items():
        part = np.sum([part for _, part in pieces], axis=0)
        there = np.flatnonzero(part)
        if not len(there):
            continue
        span = slice(max(int(there[0]) - 1, 0), min(int(there[-1]) + 2, fleet.count))
        measured = {signal: fleet.blank()[span] for signal in _SIGNALS}
        for windows, of_piece in pieces:
            for signal, values in measured.items():
                found = np.where(of_piece[span] > 0, _values(windows, signal, fleet)[span], np.nan)
                measured[signal] = np.fmax(values, found)
        life = fleet.history.containers.get((pod, container))
        running, init, started, deleting = _life(life, known.pods.get(pod), fleet, span)
        has_ended = reported[span] & np.isnan(running) & np.isnan(measured[Signal.BUSY_RATIO]) & (life is not None)
        worked = fleet.past.worked.get((card.uuid, pod, container), Worked(since_held=None, since_start=None))
        told = _WORKED.get(known.kinds.get(pod))
        yield HoldHistory(
            pod=pod,
            container=container,
            workload=fleet.owners.get(pod) or f"Pod/{pod}",
            part_ratio=np.where(has_ended, 0.0, part[span]),
            engine_ratio=measured[Signal.BUSY_RATIO],
            sm_ratio=measured[Signal.SM_ACTIVE_RATIO],
            memory_bytes=measured[Signal.MEMORY_USED_BYTES],
            running=running,
            init=init,
            started_seconds=started,
            deleting=deleting,
            gang_waits=known.waits.get(pod, fleet.blank())[span],
            worked_before=told if worked.since_held is None else worked.since_held,
            worked_since_start=told if worked.since_start is None else worked.since_start,
            lost=known.lost.get(pod, ()),
            image=_image(life, known.pods.get(pod)),
            first=span.start,
        )


def _life(
    life: ContainerHistory | None, pod: Pod | None, fleet: FleetHistory, span: slice
) -> tuple[Floats, Floats, Floats, Floats]:
    """running, init, started_seconds and deleting in these steps. Without kube-state-metrics a Pod that lives, and
    whose containers never restarted, is known to have run since some time after its start."""
    begin = fleet.start.timestamp() + span.start * fleet.step_seconds
    if life is not None:
        running, init, started, deleting = (
            _placed(values, life.first, fleet, span)
            for values in (life.running, life.init, life.started, life.deleting)
        )
        return running, init, np.where(started == 0, np.inf, started - begin), deleting
    running, started, zeros = (fleet.blank() for _ in range(3))
    stable = pod is not None and pod.phase == "Running" and not (pod.restarts or pod.deleting or pod.not_started)
    if pod is not None and pod.started and stable:
        after = fleet.place(pod.started + timedelta(seconds=LOAD_SECONDS))
        running[after:], zeros[after:] = 1.0, 0.0
        started[after:] = pod.started.timestamp() - begin
    return running[span], zeros[span], started[span], zeros[span]


def _image(life: ContainerHistory | None, pod: Pod | None) -> str:
    """Of a Pod with several images nothing but kube-state-metrics tells which one its container has."""
    images = set(pod.images) if pod is not None else set()
    return life.image if life is not None and life.image else next(iter(images)) if len(images) == 1 else ""


def _placed(values: "array[float]", first: int, fleet: FleetHistory, span: slice) -> Floats:
    """The values, which begin with the step `first`, in these steps; unknown outside of them."""
    found = fleet.blank()
    found[first : first + len(values)] = values
    return found[span]


def _waits(fleet: FleetHistory, pods: Mapping[PodRef, Pod]) -> Mapping[PodRef, Floats]:
    """Whether a member of its gang has not started, for each Pod that holds GPUs; of Pods that are gone, by the most
    Pods that their Workload had at a time."""
    refs = sorted({each.pod for each in fleet.windows if each.pod})
    lives = grouped(fleet.history.containers.values(), lambda life: life.pod)
    found: dict[PodRef, Floats] = {}
    for gang in fleet.cluster.gangs:
        if gang.pods:
            members = [_unstarted(lives.get(ref, ()), pods.get(ref), fleet) for ref in gang.pods]
            found |= dict.fromkeys(gang.pods, _any(members))
    no_wait = np.zeros(fleet.count)
    by_owner = grouped((ref for ref in refs if ref not in pods), lambda ref: fleet.owners.get(ref, ""))
    for owner, gone in by_owner.items():
        kind = owner.partition("/")[0]
        if owner and (kind in ALONE or len(gone) == 1):
            found |= dict.fromkeys(gone, no_wait)
        elif owner and kind != "Job":
            begun = np.nansum([1.0 - _unstarted(lives.get(ref, ()), None, fleet) for ref in gone], axis=0)
            found |= dict.fromkeys(gone, np.where(begun < begun.max(), 1.0, 0.0))
    return found | {ref: no_wait for ref in refs if ref in pods and ref not in found}


def _unstarted(lives: Sequence[ContainerHistory], pod: Pod | None, fleet: FleetHistory) -> Floats:
    """Whether a container of the Pod has not started: 1, 0, or NaN where nothing tells."""
    waits = fleet.blank()
    # All Nodes have a value in the steps in which kube-state-metrics was there.
    node = next(iter(fleet.history.nodes.values()), None)
    reported = np.zeros(fleet.count, np.bool_) if node is None else ~np.isnan(node.ready)
    for life in lives:
        started = _placed(life.started, life.first, fleet, slice(None))
        has_begun = np.maximum.accumulate(np.nan_to_num(started)) > 0
        # While others had rows and it had none yet, it had no Node.
        before = (np.arange(fleet.count) < life.first) & reported
        waits = np.fmax(waits, np.where(has_begun, 0.0, np.where(np.isnan(started) & ~before, np.nan, 1.0)))
    if not lives and pod is not None and (not pod.node or pod.not_started) and pod.created is not None:
        waits[fleet.place(pod.created) :] = 1.0
    return waits


def _lost(
    fleet: FleetHistory, pods: Mapping[PodRef, Pod], degraded: Mapping[str, Floats]
) -> dict[PodRef, tuple[LostSpan, ...]]:
    """Work that was lost, of each Pod that works towards an end."""
    begin, step = fleet.start.timestamp(), fleet.step_seconds
    windows = grouped((each for each in fleet.windows if each.pod), lambda each: each.pod)
    workloads = {ref: owner for ref in windows if can_lose(owner := fleet.owners.get(ref) or f"Pod/{ref}")}
    lives = grouped(fleet.history.containers.values(), lambda life: life.pod)
    runs = {name: runs_of(life, begin, step) for name, life in fleet.history.containers.items()}
    own: dict[PodRef, Sequence[Run]] = {pod: of for (pod, _), of in runs.items()}
    begins = {ref: min(run.begin for run in of) for ref, of in own.items() if of}
    pods_of = grouped((ref for ref in begins if ref in workloads), lambda ref: workloads[ref])
    of_owner = {owner: sorted(begins[ref] for ref in refs) for owner, refs in pods_of.items()}
    node = next(iter(fleet.history.nodes.values()), None)
    reported = np.zeros(fleet.count, np.bool_) if node is None else ~np.isnan(node.ready)
    endings: dict[PodRef, Sequence[Ending]] = {}
    for ref, owner in workloads.items():
        held = windows[ref]
        facts = fleet.history.nodes.get(fleet.node_of.get(held[-1].uuid, ""))
        not_ready = np.zeros(fleet.count, np.bool_) if facts is None else np.asarray(facts.ready) == 0
        faults = [degraded[each.uuid] for each in held if each.uuid in degraded]
        successors = of_owner.get(owner, [])
        if ref in begins:  # all but its own
            own_place = bisect_left(successors, begins[ref])
            successors = [*successors[:own_place], *successors[own_place + 1 :]]
        if ref in lives:
            endings[ref] = [
                each
                for life in lives[ref]
                for each in endings_of(
                    life,
                    runs[ref, life.container],
                    reported=reported,
                    not_ready=not_ready,
                    degraded=np.max(faults, axis=0) > 0 if faults else np.zeros(fleet.count, np.bool_),
                    successors=successors,
                    scheduled=kind_name(owner) == "CronJob",
                    lives=ref in pods,
                )
            ]
        else:
            # Without kube-state-metrics its end may have been a failure, and so may each of its restarts.
            end = max(fleet.place(each.start) + max(map(len, each.values.values()), default=0) for each in held)
            own[ref] = [Run(begin=min(fleet.place(each.start) for each in held), end=end, start=None)]
            if pods[ref].restarts if ref in pods else end < fleet.count:
                endings[ref] = [Ending(end=end, cause=LossCause.UNKNOWN)]
    checkpoints: dict[str, Sequence[Checkpoint]] = dict(fleet.past.checkpoints)
    for ref, told in fleet.history.checkpoints.items():
        checkpoints[ref] = (*checkpoints.get(ref, ()), *told)
    return spans_by_pod(workloads, endings, own, _gangs(fleet, workloads), checkpoints, begin, step)


def _gangs(fleet: FleetHistory, workloads: Mapping[PodRef, str]) -> dict[PodRef, str]:
    """A name that the members of a gang have, those too that are gone."""
    of_workload = grouped(fleet.cluster.gangs, lambda gang: gang.workload)
    found = {
        pod: gang.workload if len(of_workload[gang.workload]) == 1 and gang.workload else gang.id
        for gang in fleet.cluster.gangs
        for pod in gang.pods
    }
    gone = {ref: owner for ref, owner in workloads.items() if ref not in found}
    return found | {ref: owner for ref, owner in gone.items() if owner.partition("/")[0] not in (*ALONE, *_JOBS)}


_JOBS = ("Job", "CronJob")
"""Their Pods may be alone or a gang; of those that are gone it is not known."""


def _any(facts: Sequence[Floats]) -> Floats:
    """1 where one is; 0 where all are 0; else unknown."""
    together = np.array(facts)
    yes = (together == 1).any(axis=0)
    return np.where(yes, 1.0, np.where(np.isnan(together).any(axis=0), np.nan, 0.0))


def _degraded(fleet: FleetHistory) -> dict[str, Floats]:
    """By UUID: 1 while a rule, or an XID or recovery action of the past, said so."""
    found: defaultdict[str, Floats] = defaultdict(lambda: np.zeros(fleet.count))
    for each in fleet.unfit:
        found[each.device_uuid][fleet.place(each.start) : fleet.place(each.end) + 1] = 1.0
    for item in fleet.findings:
        if item.verdict is Verdict.DEGRADED and item.since is not None:
            for name in item.devices:
                found[name.split("/")[0]][fleet.place(item.since) :] = 1.0
    return found


_SIGNALS = (Signal.BUSY_RATIO, Signal.SM_ACTIVE_RATIO, Signal.MEMORY_USED_BYTES)
_WORKED: Mapping[FindingKind | None, bool] = {
    FindingKind.NEVER_USED: False,
    **dict.fromkeys((FindingKind.ABANDONED, FindingKind.MODEL_LOADED, FindingKind.BURSTY), True),
}
"""What the idle rules, which see two weeks, tell of the time before the span, so that both have one class."""
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
