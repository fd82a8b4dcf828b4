"""GPUs that are busy all the time without power, memory traffic or tensor work: hung, or waiting for a peer.

In a synchronous job the GPUs that wait for a slow or dead peer spin in a polling kernel: engine activity 100 %, power
and traffic near idle. A pattern that several GPUs of one job share is therefore the job's, unless one GPU differs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from gpuwatch.facts.catalog.gpus import find_gpu
from gpuwatch.facts.model.decision import Advice, Evidence, Finding, FindingKind, Severity, Subject, Verdict
from gpuwatch.facts.model.telemetry import Signal, Statistic
from gpuwatch.judge.fleet import SUSPECTED, Conclusion, Fleet, Grade, PhysicalGpu, Tells, conclude, peers_of
from gpuwatch.judge.rule import OVER_TIME, Ask, Judged, Rule

_IDLE_BUSY_RATIO = 0.01
"""Highest engine activity of an idle card: the noise of the counter."""


_BUSY_RATIO = 0.95
"""Least engine activity of a hung GPU in the window: a stuck kernel never pauses."""
_POWER_RATIO = 0.1
"""Most power of a hung GPU above idle, as a share of the range from idle to limit. A loaded context takes up to 8 % (an
H100 goes from 70 to 120 of 700 W), real work takes more."""
_ACTIVITY_RATIO = 0.001
"""Most memory or tensor activity of a hung GPU. Idle cards read 0.000005 and less; the smallest real programs, and the
polling of a collective, read 0.002 and more."""
_IDLE_POWER_RATIO = 0.4
"""Share of the power limit above which a reading is not idle power. Idle cards draw 10 to 20 %, small ones with a
context up to 40 % (T4: 27 of 70 W)."""
_PAST_SECONDS = 6 * 3600
"""Past in which a card's own idle power is looked for: most cards pause once in it."""

_DAY_SECONDS = 24 * 3600

_TELLS = Tells(
    FindingKind.HUNG,
    "busy without power and memory traffic: a stuck kernel or collective",
    "warning: reset, fix_application",
)


class _Asked:
    def __init__(self, ask: Ask) -> None:
        window = ask.policy.window_seconds
        self.busy_lowest = ask(Signal.BUSY_RATIO, Statistic.MIN, window)
        self.busy_highest = ask(Signal.BUSY_RATIO, Statistic.MAX, window)
        self.busy_covered = ask.covered(window, Signal.BUSY_RATIO)
        self.power_highest = ask(Signal.POWER_WATTS, Statistic.MAX, window)
        self.power_average = ask(Signal.POWER_WATTS, Statistic.AVG, window)
        self.power_covered = ask.covered(window, Signal.POWER_WATTS)
        self.covers_day = ask.covered(_DAY_SECONDS, Signal.POWER_WATTS)
        self.power_past = ask(Signal.POWER_WATTS, Statistic.MIN, _PAST_SECONDS)
        # What lasts for a day is as often a program that keeps its GPU busy on purpose.
        self.busy_day = ask.context(Signal.BUSY_RATIO, Statistic.MIN, _DAY_SECONDS)
        self.power_day = ask.context(Signal.POWER_WATTS, Statistic.MAX, _DAY_SECONDS)
        self.limit = ask(Signal.POWER_LIMIT_WATTS)
        self.dram = ask(Signal.DRAM_ACTIVE_RATIO, Statistic.MAX, window)
        self.copy = ask(Signal.MEMORY_COPY_UTIL_RATIO, Statistic.MAX, window)
        self.tensor = ask(Signal.TENSOR_ACTIVE_RATIO, Statistic.MAX, window)


@dataclass(frozen=True, slots=True)
class _Pattern:
    gpu: PhysicalGpu
    watts: float
    evidence: tuple[Evidence, ...]
    silent_signals: int  # signals of memory or tensor work that are exported and show none
    seconds: int  # how long it was seen at least


def hung(fleet: Fleet, asked: _Asked) -> Judged:
    """Conclusions by GPU, and findings on jobs that hang as a whole."""
    look = _patterns(fleet, asked)
    seen = {gpu.uuid: look(gpu) for gpu in fleet.gpus}
    patterns = {uuid: each for uuid, each in seen.items() if isinstance(each, _Pattern)}
    conclusions = {uuid: each for uuid, each in seen.items() if not isinstance(each, _Pattern)}
    jobs: list[Finding] = []
    alone = set(patterns)
    accompanied: set[str] = set()
    for job, members in _jobs(fleet, patterns).items():
        if len(members) > 1:
            accompanied |= {gpu.uuid for gpu in members}
        waiting = [patterns[gpu.uuid] for gpu in members if gpu.uuid in patterns]
        if len(waiting) < 2:
            continue
        alone -= {item.gpu.uuid for item in waiting}
        jobs.append(_waiting_job(fleet, job, waiting, members))
        odd = _odd_one(fleet, waiting)
        for item in waiting:
            if item is odd:
                why = "draws less than the GPUs that wait with it: they seem to wait for it"
                # Only its power differs from the job's, by a few watts.
                conclusions[item.gpu.uuid] = _hung(fleet, item, why, confidence_ratio=0.5)
                continue
            words = f"waits together with {len(waiting) - 1} other GPUs of {job}"
            found = fleet.unknown(item.gpu, _TELLS, words, ["what the job waits for"])
            if isinstance(found, Finding):
                found = replace(found, advice=Advice.FIX_APPLICATION, evidence=item.evidence)
            conclusions[item.gpu.uuid] = found
    for uuid in sorted(alone):
        item = patterns[uuid]
        # Where activity, power and two signals of work agree and the rest of the job works, only a program that
        # polls for requests looks the same. With fewer signals, or no job, small kernels do too.
        confidence = {0: 0.4, 1: SUSPECTED}.get(item.silent_signals, 0.7)
        if uuid in accompanied:
            conclusions[uuid] = _hung(fleet, item, "no other GPU of its job is", confidence_ratio=confidence)
        elif item.gpu.pods:
            why = (
                "its program hangs, or keeps the GPU busy without work: ask its owner to end it; then reset a busy GPU"
            )
            found = _hung(fleet, item, why, confidence_ratio=min(confidence, SUSPECTED))
            conclusions[uuid] = replace(found, advice=Advice.FIX_APPLICATION)
        else:
            why, confidence = "its program may just as well have hung", min(confidence, SUSPECTED)
            conclusions[uuid] = _hung(fleet, item, why, confidence_ratio=confidence)
    return Judged(lambda gpu: conclusions[gpu.uuid], jobs)


def _patterns(fleet: Fleet, asked: _Asked) -> Callable[[PhysicalGpu], _Pattern | Conclusion]:
    """By GPU: the pattern that it shows, or the conclusion why it shows none or why that is unknown."""
    kind, window = _TELLS, fleet.policy.window_seconds
    busy_lowest, power_highest = asked.busy_lowest, asked.power_highest
    idle_power = _idle_power(fleet, asked)

    def look(gpu: PhysicalGpu) -> _Pattern | Conclusion:
        busy, watts = busy_lowest.of(gpu), power_highest.of(gpu)
        if gpu.sliced:
            # One small instance at work hardly shows in the power of the whole card.
            return fleet.unknown(gpu, kind, "power is not measured per MIG instance", ["power of each MIG instance"])
        if busy is None or watts is None:
            missing = [item.stat.signal for item in (busy_lowest, power_highest) if item.of(gpu) is None]
            return fleet.unknown(gpu, kind, "activity or power is not known", missing)
        enough = asked.busy_covered(gpu) and asked.power_covered(gpu)
        if busy < _BUSY_RATIO:
            if not enough:
                return fleet.unseen(gpu, kind, window)
            return fleet.healthy(gpu, kind, "it paused within the window", busy_lowest)
        work = [item for item in (asked.dram, asked.copy, asked.tensor) if item.of(gpu) is not None]
        working = [item for item in work if (item.of(gpu) or 0.0) > _ACTIVITY_RATIO]
        if working:
            return fleet.healthy(gpu, kind, "it works", busy_lowest, *working)
        if not enough:
            return fleet.unseen(gpu, kind, window)
        model = find_gpu(gpu.model)
        limit = asked.limit.of(gpu) or (None if model is None else model.power_limit_watts)
        idle = idle_power(gpu, limit)
        if idle is None or limit is None:
            lacking = ["its power at idle"] if idle is None else []
            lacking += ["its power limit"] if limit is None else []
            return fleet.unknown(gpu, kind, "whether its power is that of an idle card is not known", lacking)
        idle_watts, source = idle
        bound = idle_watts + _POWER_RATIO * (limit - idle_watts)
        if watts > bound:
            return fleet.healthy(gpu, kind, "it draws the power of work", power_highest)
        note = f"idle is {idle_watts:.0f} W ({source}), the limit {limit:.0f} W"
        day_busy, day_watts = asked.busy_day.of(gpu), asked.power_day.of(gpu)
        day = day_busy is not None and day_watts is not None and day_busy >= _BUSY_RATIO and day_watts <= bound
        return _Pattern(
            gpu=gpu,
            seconds=_DAY_SECONDS if day and asked.covers_day(gpu) else window,
            watts=asked.power_average.of(gpu) or watts,
            evidence=(
                busy_lowest.evidence(gpu, comparison=">=", bound=_BUSY_RATIO),
                power_highest.evidence(gpu, comparison="<=", bound=bound, note=note),
                *(item.evidence(gpu, comparison="<=", bound=_ACTIVITY_RATIO) for item in work),
            ),
            silent_signals=len(work),
        )

    return look


def _idle_power(fleet: Fleet, asked: _Asked) -> Callable[[PhysicalGpu, float | None], tuple[float, str] | None]:
    """A card's power at idle in watts, by its limit, and the source: the median of idle allocated cards of its model (a
    context takes some watts), of idle free ones, its own lowest, or the catalog's; the first that is known."""
    held: dict[str, list[float]] = defaultdict(list)
    free: dict[str, list[float]] = defaultdict(list)
    for gpu in fleet.present:
        busy, watts = asked.busy_highest.of(gpu), asked.power_average.of(gpu)
        if busy is not None and watts is not None and busy <= _IDLE_BUSY_RATIO and gpu.model:
            (held if gpu.pods else free)[gpu.model].append(watts)

    def idle(gpu: PhysicalGpu, limit: float | None) -> tuple[float, str] | None:
        for name, found in (("allocated idle peers", held), ("idle peers", free)):
            watts = found.get(gpu.model, [])
            if len(watts) >= fleet.policy.min_peers:
                return median(watts), f"median of {len(watts)} {name}"
        past = asked.power_past.of(gpu)
        if past is not None and limit is not None and past <= _IDLE_POWER_RATIO * limit:
            return past, f"its lowest in {_PAST_SECONDS // 3600} h"
        model = find_gpu(gpu.model)
        if model is not None and model.idle_power_watts is not None:
            return model.idle_power_watts, "catalog"
        return None

    return idle


def _jobs(fleet: Fleet, patterns: Iterable[str]) -> dict[Subject, list[PhysicalGpu]]:
    """Jobs with a GPU that shows the pattern → all GPUs of the job."""
    wanted = set(patterns)
    by_job: dict[Subject, list[PhysicalGpu]] = defaultdict(list)
    for gpu in fleet.gpus if wanted else ():
        for job in {fleet.workload_of(pod): None for pod in gpu.pods}:
            by_job[job].append(gpu)
    return {job: gpus for job, gpus in by_job.items() if any(gpu.uuid in wanted for gpu in gpus)}


def _odd_one(fleet: Fleet, waiting: Sequence[_Pattern]) -> _Pattern | None:
    """The only GPU that draws clearly less than those that wait with it; None where there is no such GPU."""
    if len(waiting) <= fleet.policy.min_peers:
        return None
    peers = peers_of([item.watts for item in waiting])
    low = [item for item in waiting if item.watts < peers.lower]
    return low[0] if len(low) == 1 else None


def _waiting_job(fleet: Fleet, job: Subject, waiting: Sequence[_Pattern], members: Sequence[PhysicalGpu]) -> Finding:
    names = {item.gpu.uuid for item in waiting}
    sick = [gpu for gpu in members if fleet.against.get(gpu.uuid)]
    apart = [gpu for gpu in members if gpu.uuid not in names]
    summary = f"{len(waiting)} of its {len(members)} GPUs are busy without power or memory traffic: it hangs or waits"
    if sick:
        kinds = sorted({finding.kind.replace("_", " ") for gpu in sick for finding in fleet.against[gpu.uuid]})
        summary += f"; look first at {', '.join(gpu.uuid for gpu in sick[:3])} ({', '.join(kinds)})"
    elif len(apart) == 1:
        state = "is gone" if not apart[0].present else "does not wait"
        summary += f"; look first at {apart[0].uuid}, which {state}"
    nodes = {gpu.lead.node for gpu in members}
    return conclude(
        job,
        _TELLS,
        Verdict.UNKNOWN,
        summary,
        severity=Severity.WARNING,
        advice=Advice.FIX_APPLICATION,
        since=fleet.before(fleet.policy.window_seconds),
        evidence=[evidence for item in waiting[:3] for evidence in item.evidence],
        missing=["what the job waits for: its own logs, or a collective's time-out"],
        gpus=members,
        node=nodes.pop() if len(nodes) == 1 else None,
        gpu_hours=len(waiting) * fleet.policy.window_seconds / 3600,
    )


def _hung(fleet: Fleet, item: _Pattern, why: str, *, confidence_ratio: float) -> Finding:
    long = "a day or longer" if item.seconds == _DAY_SECONDS else f"{item.seconds // 60} min"
    return fleet.degraded(
        item.gpu,
        _TELLS,
        f"busy for {long} with the power of an idle card and no sign of work; {why}",
        Grade(Severity.WARNING, Advice.RESET, confidence_ratio),
        item.evidence,
        since=fleet.before(item.seconds),
        missing=[] if item.silent_signals else [Signal.DRAM_ACTIVE_RATIO, Signal.TENSOR_ACTIVE_RATIO],
        gpu_hours=item.seconds / 3600,
    )


HUNG = Rule(tells=(_TELLS,), needs=_Asked, judge=hung, unshown=OVER_TIME)
