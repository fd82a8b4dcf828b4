"""The score of an action: expected GPU-hours gained × confidence, less GPU-hours disrupted; and when it costs least.

Gain and loss are fractions of the pool's GPU-hours over the horizon, so that scores of pools of 16 and of 10,000 GPUs
compare. An action is for now, for when the workload is next idle, after a checkpoint, or when the job ends. The cost of
a moment is what waiting for it loses (times confidence), plus the work that the restart then loses. Only moves have a
choice: a taint touches no Pod, and a release takes idle GPUs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.framework import Nature
from gpuwatch.facts.model.cluster import Pod
from gpuwatch.facts.model.decision import (
    ActionKind,
    Candidate,
    Family,
    Finding,
    FindingKind,
    Score,
    Severity,
    Timing,
    TimingKind,
)
from gpuwatch.facts.model.telemetry import Activity

# Most hours of work per GPU that a move, or the release of a job, counts as lost: as many as the score looks ahead. Up
# to it the time since the last checkpoint counts, or since the start, since without one all work is lost.
_RESTART_COST_CAP_HOURS = 24.0
# Enough time for a move.
_QUIET_SECONDS = 1800
# So many days idle at the same time of day make a habit.
_DAYS_SEEN = 3
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Moment:
    """One choice. lost_gpu_hours: work that the restart loses. also: what else it contains, ending the sentence."""

    kind: TimingKind
    wait_hours: float
    lost_gpu_hours: float
    words: str
    also: str = ""


def chosen(candidate: Candidate, facts: PlanFacts, lost_per_hour: float) -> tuple[Moment, Timing]:
    """The cheapest moment; the earliest of equals. lost_per_hour: GPU-hours lost per hour of waiting."""
    moments = _moments(candidate, facts)
    costs = [
        (lost_per_hour * item.wait_hours + item.lost_gpu_hours, item.wait_hours, index)
        for index, item in enumerate(moments)
    ]
    cost, wait, index = min(costs)
    best = moments[index]
    others = [f"{item.words} {costs[at][0]:.1f}" for at, item in enumerate(moments) if at != index]
    costs_it = f"it costs {cost:.1f} GPU-hours" if cost else "no work is lost"
    reason = f"{best.words[:1].upper()}{best.words[1:]} {costs_it}"
    return best, Timing(
        kind=best.kind,
        at=None if best.kind is TimingKind.NOW else facts.snapshot.at + timedelta(hours=wait),
        cost_gpu_hours=cost,
        reason=f"{reason}{'; ' if others else ''}{', '.join(others)}.",
    )


def _moments(candidate: Candidate, facts: PlanFacts) -> list[Moment]:
    if candidate.action is ActionKind.TAINT_NODE:
        return [Moment(TimingKind.NOW, 0.0, 0.0, "now, as no Pod is touched,")]
    if candidate.action is ActionKind.RELEASE_GANG:
        # The start-up counts as an hour per GPU, although a model is loaded again in well under one.
        held = [pod for pod in facts.pods_of(candidate) if pod.node]
        gpus = facts.gpu_shares(held) or float(candidate.gpus)
        work = stopped_work(held, facts.findings_of(candidate), facts)
        also = f", and {work:.1f} GPU-hours of work before it stopped, {_unsaved(held, facts)}" if work else ""
        return [Moment(TimingKind.NOW, 0.0, gpus + work, "now, as it is idle,", also)]
    pods = facts.pods_of(candidate)
    now = facts.snapshot.at
    lost = sum(restart_hours(pod, facts) * facts.gpu_shares([pod]) for pod in pods)
    moments = []
    saved = [_annotated_time(pod, keys.LAST_CHECKPOINT, facts) for pod in pods]
    known = [at for at in saved if at is not None and at <= now]
    whole = bool(pods) and len(known) == len(pods)
    since = f" (work since the checkpoint at {min(known):%Y-%m-%d %H:%M %Z})" if whole else ""
    kinds = [facts.kind_of(pod.workload) for pod in pods]
    if kinds and all(kind is not None and kind.nature is Nature.SERVES for kind in kinds):
        quiet = _next_quiet(pods, facts)
        if quiet == 0.0:
            return [Moment(TimingKind.NOW, 0.0, 0.0, "now, as it is idle,")]
        if quiet is not None:
            at = now + timedelta(hours=quiet)
            moments.append(Moment(TimingKind.WHEN_IDLE, quiet, 0.0, f"at {at:%a %H:%M %Z}, when it is usually idle,"))
    moments.append(Moment(TimingKind.NOW, 0.0, lost, f"now{since}"))
    if whole and facts.policy.checkpoint_interval_hours:
        interval = timedelta(hours=facts.policy.checkpoint_interval_hours)
        # Ranks save together, so the oldest checkpoint decides. An overdue one may come at any time, or never.
        wait = (min(known) + interval - now).total_seconds() / 3600
        if wait > 0:
            words = f"after the checkpoint expected at {min(known) + interval:%Y-%m-%d %H:%M %Z}"
            moments.append(Moment(TimingKind.AFTER_CHECKPOINT, wait, 0.0, words))
    ends = [_annotated_time(pod, keys.EXPECTED_END, facts) for pod in pods]
    coming = [at for at in ends if at is not None and at > now]
    if coming and len(coming) == len(pods):
        wait = (max(coming) - now).total_seconds() / 3600
        moments.append(Moment(TimingKind.AT_JOB_END, wait, 0.0, f"at its end at {max(coming):%Y-%m-%d %H:%M %Z}"))
    return moments


def stopped_work(held: Iterable[Pod], findings: Iterable[Finding], facts: PlanFacts) -> float:
    """GPU-hours of unsaved work from before these Pods stopped, as of a move, for kinds that end or are not known.

    0 for services and sessions, which have no result to work for again, unless their gang is placed in part; 0 for what
    never worked.
    """
    every = [item for item in findings if item.kind is not FindingKind.NEVER_USED]
    lost = 0.0
    for pod in held:
        kind = facts.kind_of(pod.workload)
        ends = kind is None or kind.nature in (None, Nature.ENDS)
        found = [item for item in every if ends or item.kind is FindingKind.PARTIAL_GANG]
        found = [item for item in found if pod.ref in item.pods] or found
        if found:
            stopped = min((item.since for item in found if item.since is not None), default=None)
            lost += restart_hours(pod, facts, stopped) * facts.gpu_shares([pod])
    return lost


def _unsaved(held: Iterable[Pod], facts: PlanFacts) -> str:
    """From when on the work of these Pods counts as lost, and what would change that."""
    saved = [saved_at(pod, facts) for pod in held]
    known = [at for at in saved if at is not None]
    if len(known) == len(saved):
        return f"since its checkpoint at {min(known):%Y-%m-%d %H:%M %Z}"
    most = f"at most {_RESTART_COST_CAP_HOURS:g} h count"
    return f"since its start ({most}; the annotation {keys.LAST_CHECKPOINT} can name a later checkpoint)"


def restart_hours(pod: Pod, facts: PlanFacts, until: datetime | None = None) -> float:
    """Hours of work that a restart of this Pod loses, capped: from its last checkpoint or start to `until` or now."""
    started = saved_at(pod, facts) or pod.started or pod.created
    if started is None:
        return _RESTART_COST_CAP_HOURS
    age_hours = ((until or facts.snapshot.at) - started).total_seconds() / 3600
    return min(max(age_hours, 0.0), _RESTART_COST_CAP_HOURS)


def saved_at(pod: Pod, facts: PlanFacts) -> datetime | None:
    """When this Pod last saved its work, since it started; None where that is not known."""
    started, told = pod.started or pod.created, _annotated_time(pod, keys.LAST_CHECKPOINT, facts)
    if told is None or told > facts.snapshot.at or (started is not None and told < started):
        return None
    return told


def _annotated_time(pod: Pod, key: str, facts: PlanFacts) -> datetime | None:
    """A time from an annotation of the Pod or its owner; None where it is missing or invalid."""
    owner = facts.workloads.get(pod.workload)
    own = pod.annotations if owner is None or pod.annotations.get(key) else owner.annotations
    return keys.time_in(own, key)


def _next_quiet(pods: list[Pod], facts: PlanFacts) -> float | None:
    """Hours until these Pods are next idle for half an hour: 0 where they are now, None where unknown. By habit: a time
    of day at which they were idle on all known days of the last seven, at least three."""
    refs = {pod.ref for pod in pods}
    histories = [item for item in facts.snapshot.activity if item.pod in refs]
    steps = {item.step_seconds for item in histories}
    if len(steps) != 1:
        return None
    step = steps.pop()
    states: dict[int, str] = {}
    now = int(facts.snapshot.at.timestamp()) // step
    for item in histories:
        first = int(item.start.timestamp()) // step
        for index, state in enumerate(item.steps):
            at = first + index
            # Silent only where all known devices were.
            if states.get(at) != Activity.ACTIVE and (state != Activity.SILENT or at not in states):
                states[at] = state
    length = max(_QUIET_SECONDS // step, 1)

    def seen(first: int) -> set[str]:
        return {states.get(at, Activity.UNKNOWN) for at in range(first, first + length)}

    if seen(now - length) == {Activity.SILENT}:
        return 0.0
    day = _DAY_SECONDS // step
    for ahead in range(1, day + 1):
        known = [each for days in range(1, 8) if Activity.UNKNOWN not in (each := seen(now + ahead - days * day))]
        if len(known) >= _DAYS_SEEN and set().union(*known) == {Activity.SILENT}:
            return ahead * step / 3600
    return None


def waited_hours(candidate: Candidate, facts: PlanFacts) -> float:
    """How long the Pod that the move is for has waited, at most the horizon; 0 where that is not known.

    A wait is taken to last as long again as it has. So a move is worth its cost once the waiting has cost as much, and
    both together are at most twice what the better one alone would have cost (the ski rental problem; Karlin, Manasse,
    Rudolph and Sleator, 1988): when a running job ends is not known.
    """
    waiter = facts.pods.get(candidate.waiter)
    if waiter is None or waiter.created is None:
        return 0.0
    return min(max((facts.snapshot.at - waiter.created).total_seconds() / 3600, 0.0), HORIZON_HOURS)


HORIZON_HOURS = 24.0
"""Over which gain and disruption are added up. A day: long enough that a repair pays, short enough to need no
forecast."""
# How long a tainted Node stays away: the median of 584 repairs (InfiniteHBD trace).
_REPAIR_HOURS = 20.0
# Share of a degraded GPU's hours that is lost without action. CRITICAL: it cannot be used, or computes wrongly.
# WARNING: it works, slower or at risk: the worst same-model outlier of SC22 (2208.11035) is 1.5× slower than the
# median, which loses a third.
_LOSS = {Severity.CRITICAL: 1.0, Severity.WARNING: 1 / 3, Severity.INFO: 0.0}
_LOSS_IS = "the share of a slower GPU's hours that counts as lost"


def weigh(candidate: Candidate, facts: PlanFacts) -> tuple[Score, Timing]:
    """The score of a candidate at its cheapest moment, in GPU-hours over the horizon; and that moment.

    Worked example (a test): a pool of eight 8-GPU Nodes. Pods of one GPU hold seven of them; the last one has a GPU off
    the bus (CRITICAL, confidence 0.9) and seven free GPUs. Its taint gains 1 × 24 h × 0.9 and takes away 7 GPUs without
    replacement for 20 h: −118.4 of 1536 GPU-hours. With another Node free it takes none away: +21.6. If the pool runs
    gangs of 16, the next user of the degraded GPU is expected to be such a gang: +205.6. With all eight GPUs held by
    one gang it takes none away and gains all: a failed rank stops its gang.
    """
    findings = facts.findings_of(candidate)
    loss = max((_LOSS[finding.severity] for finding in findings), default=0.0)
    confidence = max((finding.confidence_ratio for finding in findings), default=0.0)
    pods = facts.pods_of(candidate)
    if candidate.action is ActionKind.MAKE_ROOM:
        # Who waits, and where there is room, are facts of the API server.
        rate, confidence = candidate.relief_gpus or 0.0, 1.0
    elif any(finding.family is Family.MISFIT for finding in findings):
        rate = candidate.relief_gpus or 0.0
    else:
        rate = facts.gpu_shares(pods) * loss
    moment, timing = chosen(candidate, facts, rate * confidence)
    horizon = HORIZON_HOURS
    if candidate.action is ActionKind.RELEASE_GANG:
        freed = facts.gpu_shares(pods) if pods else candidate.gpus
        gain = _Term(freed, horizon, "GPUs that the release frees")
        harm = _restart(candidate, moment, freed)
    elif candidate.action is ActionKind.MAKE_ROOM:
        what = "GPUs for which a Pod waits, which is expected to wait as long again as it has"
        gain = _Term(rate, waited_hours(candidate, facts), what)
        harm = _restart(candidate, moment, facts.gpu_shares(pods))
    elif candidate.action is ActionKind.EVICT_GANG:
        gain = _moved(candidate, rate, loss, max(horizon - moment.wait_hours, 0.0))
        harm = _restart(candidate, moment, facts.gpu_shares(pods))
    else:
        gain, harm = _affected(candidate, pods, loss, horizon, facts), _missed(candidate, facts)
    pool = candidate.pool or "default"
    pool_gpus = facts.pool_gpus.get(pool, 0) if facts.nodes else facts.physical(facts.devices)
    return (
        Score(
            gained_gpu_hours=gain.gpu_hours,
            disrupted_gpu_hours=harm.gpu_hours,
            pool_gpu_hours=pool_gpus * horizon,
            confidence_ratio=confidence,
            horizon_hours=horizon,
            gain_basis=gain.sentence,
            harm_basis=harm.sentence,
        ),
        timing,
    )


@dataclass(frozen=True, slots=True)
class _Term:
    """GPUs × hours × ratio, with a description."""

    gpus: float
    hours: float
    what: str
    ratio: float = 1.0
    ratio_is: str = ""  # what the ratio is, where it is not 1

    @property
    def gpu_hours(self) -> float:
        return self.gpus * self.hours * self.ratio

    @property
    def sentence(self) -> str:
        """Such as 'Seven free GPUs are away: 7 GPUs × 20 h = 140 GPU-hours.'"""
        factors = f"{_gpus(self.gpus)} × {_number(self.hours)} h"
        if self.ratio != 1.0:
            factors += f" × {_number(self.ratio)} ({self.ratio_is})"
        total = f"{self.gpu_hours:,.1f}".removesuffix(".0")
        what = self.what[:1].upper() + self.what[1:]
        return f"{what}: {factors} = {total} GPU-hour{'' if total == '1' else 's'}."


def _number(value: float) -> str:
    """At most two decimals, so that the printed product can be checked."""
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def _gpus(count: float) -> str:
    return f"{_number(count)} GPU{'' if count == 1 else 's'}"


def _restart(candidate: Candidate, moment: Moment, gpus: float) -> _Term:
    """Work that the restart loses; the hours are per GPU."""
    if not moment.lost_gpu_hours:
        return _Term(0.0, 0.0, f"{moment.words.rstrip(',')}, the restart loses no work")
    gpus = gpus or 1.0
    what = f"work that the restart loses, {moment.words}".rstrip(",")
    if candidate.action is ActionKind.RELEASE_GANG:
        what = f"its next start-up, which counts as an hour{moment.also}"
    return _Term(gpus, moment.lost_gpu_hours / gpus, what)


def _moved(candidate: Candidate, rate: float, loss: float, hours: float) -> _Term:
    """Work regained by it or its neighbours from the move on."""
    if candidate.relief_gpus is not None and rate == candidate.relief_gpus:
        return _Term(rate, hours, "work that it and its neighbours regain from the move on, in GPUs")
    if not rate:
        return _Term(0.0, hours, "the gain of the move is not known")
    gpus = rate / loss if loss else 0.0
    return _Term(gpus, hours, "GPUs of the gang that a degraded GPU holds up, from the move on", loss, _LOSS_IS)


def _affected(candidate: Candidate, pods: list[Pod], loss: float, horizon: float, facts: PlanFacts) -> _Term:
    """GPUs lost while the Node takes Pods, the most of: its degraded GPUs, the gangs on them, the expected gang."""
    here = float(facts.physical(candidate.devices))
    # A degraded GPU harms every member of the gang that waits for it.
    gangs = {pod.gang for pod in pods if pod.gang}
    held = facts.gpu_shares([member for key in gangs for member in facts.members[key]] or pods)
    pool = candidate.pool or "default"
    free = any(not facts.devices[name].pods for name in candidate.devices if name in facts.devices)
    expected = facts.mean_group_gpus.get(pool, 0.0) if free else 0.0
    if expected > max(here, held):
        what = (
            f"expected gang of {_gpus(expected)} (the mean gang of the allocated GPUs of pool {pool}) that would land "
            "on the free degraded GPU and be stopped by it"
        )
        return _Term(expected, horizon, what, loss, _LOSS_IS)
    if held > here:
        return _Term(held, horizon, "GPUs of the gangs on the degraded GPU, which wait for it", loss, _LOSS_IS)
    return _Term(here, horizon, "degraded GPUs of the Node", loss, _LOSS_IS)


def _missed(candidate: Candidate, facts: PlanFacts) -> _Term:
    missed, hours = _missed_gpus(candidate, facts), min(_REPAIR_HOURS, HORIZON_HOURS)
    if missed:
        what = "free healthy GPUs of the Node, which no others of the pool replace until it is repaired"
        return _Term(missed, hours, what)
    what = "the Node has no free healthy GPU"
    if any(facts.free_gpus.get(name, 0) for name in candidate.nodes):
        what = "others of the pool replace the Node's free healthy GPUs"
    return _Term(0.0, hours, f"{what}, and running Pods stay")


def _missed_gpus(candidate: Candidate, facts: PlanFacts) -> float:
    """Free healthy GPUs of the Node that the pool cannot replace by free blocks as large. A Pod that waits
    although a block is free cannot use it."""
    missed = 0.0
    for name in candidate.nodes:
        node = facts.nodes.get(name)
        here = facts.free_gpus.get(name, 0)
        if not here or node is None:
            missed += here
            continue
        blocks = facts.free_blocks.get(facts.pool(node))
        spare = sum(free // here * here * nodes for free, nodes in blocks.items()) if blocks else 0
        if name not in facts.out_of_service:
            spare -= here  # its own
        missed += min(max(here - spare, 0), here)
    return missed
