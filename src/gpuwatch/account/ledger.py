"""Every GPU-hour in exactly one row. Pure: from the history of a GPU to shares that add up to its capacity.

In each step the first row that holds takes the GPU, or the part of it that a Pod has; a working step is divided. Facts
are 1 (yes), 0 (no) or NaN (unknown). If an unknown fact would decide, the step goes to an unknown twin, so that a
signal that is taken away can only add to unknown hours.

What is measured goes before what Kubernetes says: a kernel that runs is work, whatever the Pod's phase.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

from gpuwatch.account.lost_work import TOGETHER_STEPS, LostSpan
from gpuwatch.account.money import cost_of
from gpuwatch.facts.model.ledger import LedgerEntry, LedgerPast, Loss, LossCause, Row, Worked
from gpuwatch.facts.model.telemetry import PodRef

Floats = npt.NDArray[np.float64]
Shares = Mapping[tuple[Row, bool], Floats]
"""(row, whether it is the unknown twin) → the share of the GPU in each step, 0 to 1."""

_Claim = tuple[Row, Floats, Row]
"""A row, the ratio of the step that it takes, and the row whose unknown twin takes what cannot be decided."""

ACTIVE_RATIO = 0.01
"""Engine activity above which a step is work: the noise floor of the counters, as in the idle rules."""
MODEL_BYTES = 2**30
"""Memory in use from which a model is loaded, as in the idle rules: a CUDA context takes 0.3 to 0.7 GiB."""
LOAD_SECONDS = 2 * 3600
"""How long a Pod may load before it counts as never used (field.md 4.2); large checkpoints take tens of minutes."""
PAUSE_SECONDS = 30 * 60
"""A shorter silence is a pause of work: the idle rules' bound for what is in use."""
IDLE_SECONDS = 5 * 3600
"""A longer silence is idle, whatever follows: the idle rules' wait for a job that has worked (batch_prior_seconds)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldHistory:
    """One container's hold of a GPU, or of a part of it, by Pod namespace/name and container. All arrays have one value
    for each step.

    first: the GPU's step at which its arrays begin: the one before it has the GPU. They end one after it, where the
    span has these steps. part_ratio: the part of the GPU that it has, 0 to 1. engine_ratio, sm_ratio: means of the
    step. memory_bytes: in use. running: its container runs. init: an init container runs. started_seconds: from its
    first step to the newest start of its container by then, negative if before, infinite before its first. deleting:
    its Pod is being deleted. gang_waits: a member of its gang has not started. worked_before, worked_since_start:
    whether it worked before the span, since it has the GPU, and since its container's newest start before the span;
    None unknown. lost: steps of the span whose work was lost.
    image: as in LedgerEntry.
    """

    pod: PodRef
    container: str
    workload: str
    part_ratio: Floats
    engine_ratio: Floats
    sm_ratio: Floats
    memory_bytes: Floats
    running: Floats
    init: Floats
    started_seconds: Floats
    deleting: Floats
    gang_waits: Floats
    worked_before: bool | None = None
    worked_since_start: bool | None = None
    lost: tuple[LostSpan, ...] = ()
    image: str = ""
    first: int = 0

    @property
    def namespace(self) -> str:
        return self.pod.partition("/")[0]

    @property
    def steps(self) -> slice:
        return slice(self.first, self.first + len(self.part_ratio))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHistory:
    """One physical GPU. Arrays as in HoldHistory.

    exists_ratio: from its first to its last appearance. uncovered_ratio: slices that no MIG instance covers. missing:
    it has no sample while others of its Node have some. ready: its Node is. withheld_ratio: how much of the Node's free
    GPUs its device plugin does not offer. cordoned, degraded: the Node is, a GPU of the Node was. engine_ratio,
    memory_bytes: of its free part. free_ratios: the part that each free row has of the free GPUs of its pool and model,
    at most 1 together; of the rest it is not known whether a request could use them.
    """

    uuid: str
    node: str
    pool: str
    gpu_model: str
    exists_ratio: Floats
    uncovered_ratio: Floats
    missing: Floats
    ready: Floats
    withheld_ratio: Floats
    cordoned: Floats
    degraded: Floats
    engine_ratio: Floats
    memory_bytes: Floats
    free_ratios: Mapping[Row, Floats]
    holds: tuple[HoldHistory, ...] = ()


def shares_of(gpu: GpuHistory, step_seconds: float) -> Iterator[tuple[HoldHistory | None, Shares]]:
    """The shares of each hold in its steps, and (None) of what no Pod has. They add up to exists_ratio in each step."""
    parts, left = _parts(gpu)
    for hold, part in zip(gpu.holds, parts, strict=True):
        yield hold, _held(hold, part, step_seconds)
    yield None, _free(gpu, left)


def _parts(gpu: GpuHistory) -> tuple[list[Floats], Floats]:
    """The part of each hold in its steps, and what no Pod has in each step."""
    parts = [np.clip(hold.part_ratio, 0.0, None) for hold in gpu.holds]
    held = np.zeros_like(gpu.exists_ratio)
    for hold, part in zip(gpu.holds, parts, strict=True):
        held[hold.steps] += part
    # A Pod that has ended may still be listed beside its successor.
    factor = np.where(held > gpu.exists_ratio, gpu.exists_ratio / np.where(held > 0, held, 1.0), 1.0)
    left = np.clip(gpu.exists_ratio - held * factor, 0.0, None)
    return [part * factor[hold.steps] for hold, part in zip(gpu.holds, parts, strict=True)], left


def entries_of(
    gpus: Iterable[GpuHistory],
    begin: datetime,
    step_seconds: int,
    start: datetime,
    price: Callable[[str, str], float | None],
) -> tuple[float, tuple[LedgerEntry, ...]]:
    """The capacity in GPU-hours, and the entries, of the hours from `start` on.

    begin: start of the histories; what they have before `start` only tells of the past. An hour that the span cuts has
    a part. price: of a GPU-hour, by GPU model and Node.
    """
    capacity = 0.0
    found: dict[tuple[int, str, str, str, str, str, str, Row, bool], float] = {}
    for gpu in gpus:
        starts = begin.timestamp() + np.arange(len(gpu.exists_ratio)) * float(step_seconds)
        counted = starts >= start.timestamp()
        capacity += float(gpu.exists_ratio[counted].sum()) * step_seconds / 3600
        for hold, shares in shares_of(gpu, step_seconds):
            holder = (hold.namespace, hold.workload, hold.image) if hold else ("", "", "")
            steps = hold.steps if hold else slice(None)
            here = counted[steps]
            hours, bounds = np.unique(np.floor(starts[steps][here] / 3600).astype(np.int64), return_index=True)
            if not len(hours):
                continue
            for (row, unknown), share in shares.items():
                sums = np.add.reduceat(share[here], bounds) * (step_seconds / 3600)
                for index in np.flatnonzero(sums).tolist():
                    key = (int(hours[index]), gpu.node, gpu.pool, gpu.gpu_model, *holder, row, unknown)
                    found[key] = found.get(key, 0.0) + float(sums[index])
    return capacity, tuple(
        LedgerEntry(
            hour=datetime.fromtimestamp(hour * 3600, UTC),
            node=node,
            pool=pool,
            gpu_model=model,
            namespace=namespace,
            workload=workload,
            row=row,
            unknown=unknown,
            gpu_hours=hours_of,
            cost=cost_of(hours_of, price(model, node)),
            image=image,
        )
        for (hour, node, pool, model, namespace, workload, image, row, unknown), hours_of in sorted(found.items())
    )


def losses_of(gpus: Sequence[GpuHistory], begin: datetime, step_seconds: int, start: datetime) -> Iterator[Loss]:
    """The work that was lost on one Node, by its end. gpus: all of the Node. start: GPU-hours from then on count."""
    counted = begin.timestamp() + np.arange(len(gpus[0].exists_ratio)) * float(step_seconds) >= start.timestamp()
    parts: dict[_LossKey, tuple[float, float]] = {}
    since: dict[_LossKey, datetime | None] = {}
    for gpu in (each for each in gpus if any(hold.lost for hold in each.holds)):
        for hold, part in zip(gpu.holds, _parts(gpu)[0], strict=True):
            shares = _held(hold, part, step_seconds) if hold.lost else {}
            for span in hold.lost:
                key = (span.end, gpu.gpu_model, hold.namespace, hold.workload, span.cause, span.unknown)
                steps = slice(max(span.begin - hold.first, 0), max(span.end - hold.first, 0))
                share = shares.get((Row.LOST, span.unknown), np.zeros_like(hold.part_ratio)) * counted[hold.steps]
                before = parts.get(key, (0.0, 0.0))
                hours = float(share[steps].sum()) * step_seconds / 3600
                parts[key] = before[0] + _part_at(hold, span.end), before[1] + hours
                since[key] = min((at for at in (since.get(key), span.since) if at is not None), default=None)
    for key, (own, hours) in sorted(parts.items()):
        if own <= 0:
            continue
        end, model, namespace, workload, cause, unknown = key
        holds = (hold for gpu in gpus for hold in gpu.holds if (gpu.gpu_model, hold.workload) == (model, workload))
        yield Loss(
            at=begin + timedelta(seconds=end * step_seconds),
            since=since[key],
            node=gpus[0].node,
            gpu_model=model,
            namespace=namespace,
            workload=workload,
            cause=cause,
            unknown=unknown,
            gpus=own,
            ratio=min(own / math.fsum(_part_at(hold, end) for hold in holds), 1.0),
            gpu_hours=hours,
        )


_LossKey = tuple[int, str, str, str, LossCause, bool]
"""The step after it, GPU model, Namespace, workload, cause, and whether it is unknown."""


def _part_at(hold: HoldHistory, end: int) -> float:
    """What it had of the GPU when its run ended, give or take the steps in which the members of a gang end."""
    near = hold.part_ratio[max(end - hold.first - TOGETHER_STEPS, 0) : max(end - hold.first, 0)]
    return float(near.max()) if len(near) else 0.0


def past_of(gpu: GpuHistory, step: int, step_seconds: float) -> LedgerPast:
    """What a later ledger, whose telemetry begins with this step, has to know of the GPU. step: 1 or later."""
    return LedgerPast(
        gpus={gpu.uuid: (gpu.node, gpu.gpu_model)} if gpu.exists_ratio[step - 1] > 0 else {},
        worked={
            (gpu.uuid, hold.pod, hold.container): Worked(
                since_held=_worked_by(hold, step), since_start=_worked_since_start(hold, step, step_seconds)
            )
            for hold in gpu.holds
            if hold.first < step < hold.steps.stop and hold.part_ratio[step - hold.first] > 0
        },
    )


def _worked_by(hold: HoldHistory, step: int) -> bool | None:
    """Whether it has worked before this step, since it has the GPU."""
    upto = step - hold.first
    without = np.flatnonzero(hold.part_ratio[:upto] <= 0)
    begin = int(without[-1]) + 1 if len(without) else 0
    active = _above(hold.engine_ratio[begin:upto], ACTIVE_RATIO)
    before = hold.worked_before if begin == hold.first == 0 else False
    if before or (active == 1).any():
        return True
    return None if before is None or np.isnan(active).any() else False


def _worked_since_start(hold: HoldHistory, step: int, step_seconds: float) -> bool | None:
    here = hold.part_ratio > 0
    active = np.where(here, _above(hold.engine_ratio, ACTIVE_RATIO), 0.0)
    worked = _worked(hold, active, here, step_seconds)[step - hold.first]
    return None if np.isnan(worked) else bool(worked)


class _Split:
    """Takes rows off the left-over, one after the other."""

    def __init__(self, part: Floats) -> None:
        self.left = part
        self.shares: dict[tuple[Row, bool], Floats] = {}

    def take(self, row: Row, holds: Floats, unknown: Row) -> None:
        """The row takes its ratio of what is left; where that is unknown, the twin of `unknown` takes all of it."""
        if not holds.any():
            return  # most rows in most holds
        unsure = np.isnan(holds)
        known = np.where(unsure, 0.0, holds)
        self.add(row, False, self.left * known)
        if unsure.any():
            self.add(unknown, True, np.where(unsure, self.left, 0.0))
        self.left = np.where(unsure, 0.0, self.left * (1.0 - known))

    def add(self, row: Row, unknown: bool, share: Floats) -> None:
        before = self.shares.get((row, unknown))
        self.shares[row, unknown] = share if before is None else before + share


def _free(gpu: GpuHistory, part: Floats) -> Shares:
    uncovered = _Split(np.minimum(part, gpu.uncovered_ratio))
    split = _Split(part - uncovered.left)
    absent = _either(_not(gpu.ready), gpu.missing)
    outside = _either(_above(gpu.engine_ratio, ACTIVE_RATIO), _at_least(gpu.memory_bytes, MODEL_BYTES))
    # Slices that no instance covers have no telemetry of their own, and nothing can use them.
    for each, used, unknown in ((uncovered, np.zeros_like(part), Row.UNREACHABLE), (split, outside, Row.USABLE)):
        each.take(Row.ABSENT, absent, unknown)
        each.take(Row.OUTSIDE, used, unknown)
        each.take(Row.ABSENT, np.clip(gpu.withheld_ratio, 0.0, 1.0), unknown)
        each.take(Row.DEGRADED, _both(gpu.cordoned, gpu.degraded), Row.MAINTENANCE)
        each.take(Row.MAINTENANCE, gpu.cordoned, unknown)
    split.add(Row.UNREACHABLE, False, uncovered.left)
    # Which of its pool's free GPUs a request could use is not known, so each has an equal part of every row.
    known = {row: split.left * np.nan_to_num(ratio) for row, ratio in gpu.free_ratios.items()}
    split.add(Row.UNREACHABLE, True, np.clip(split.left - sum(known.values()), 0.0, None))
    for row, share in known.items():
        split.add(row, False, share)
    for (row, is_unknown), share in uncovered.shares.items():
        split.add(row, is_unknown, share)
    return split.shares


def _held(hold: HoldHistory, part: Floats, step_seconds: float) -> Shares:
    split = _Split(part)
    here = part > 0
    measured = ~np.isnan(hold.engine_ratio)
    split.take(Row.UNMEASURED, np.where(measured, 0.0, np.nan), Row.UNMEASURED)
    active = np.where(here, _above(hold.engine_ratio, ACTIVE_RATIO), 0.0)
    silent = _not(active)
    began = _both(_at_least(hold.started_seconds, -np.inf), np.where(np.isposinf(hold.started_seconds), 0.0, 1.0))
    stopped = _not(hold.running)
    young = _young(hold, step_seconds)
    fresh = _not(_worked(hold, active, here, step_seconds))  # it has not worked since its container's newest start
    claims: tuple[_Claim, ...] = (
        (Row.RESTART, _either(hold.deleting, _both(stopped, began)), Row.SUSPECTED),
        (Row.INIT, hold.init, Row.PULL),
        (Row.PULL, stopped, Row.PULL),
        (Row.GANG, _both(fresh, hold.gang_waits), Row.LOAD),
        (Row.LOAD, _both(fresh, young), Row.LOAD),
    )
    for row, holds, unknown in claims:
        split.take(row, _both(silent, holds), unknown)
    for row, holds, unknown in _silences(hold, active, here, step_seconds):
        split.take(row, holds, unknown)
    split.take(Row.LOST, _lost(hold), Row.LOST)
    _work(split, hold)
    return split.shares


def _lost(hold: HoldHistory) -> Floats:
    """Whether work of each step was lost."""
    found = np.zeros(len(hold.part_ratio))
    for span in hold.lost:
        steps = slice(max(span.begin - hold.first, 0), max(span.end - hold.first, 0))
        found[steps] = np.nan if span.unknown else 1.0
    return found


def _work(split: _Split, hold: HoldHistory) -> None:
    """Divides what is left: pauses and work."""
    engine = np.clip(np.nan_to_num(hold.engine_ratio), 0.0, 1.0)
    sm = np.minimum(np.clip(hold.sm_ratio, 0.0, 1.0), engine)
    known = ~np.isnan(sm)
    useful = np.where(known, sm, 0.0)
    split.add(Row.NO_KERNEL, False, split.left * (1.0 - engine))
    split.add(Row.USEFUL, False, split.left * useful)
    split.add(Row.FEW_SMS, False, np.where(known, split.left * (engine - useful), 0.0))
    split.add(Row.USEFUL, True, np.where(known, 0.0, split.left * engine))
    split.left = np.zeros_like(split.left)


def _young(hold: HoldHistory, step_seconds: float) -> Floats:
    """Whether the step ends within LOAD_SECONDS of the container's newest start, or of the end of its wait for its
    gang, the later of them. It may have waited until the span began."""
    index = np.arange(len(hold.part_ratio))
    ends = (index + 1) * step_seconds

    def within(waits: npt.NDArray[np.bool_], before: float) -> npt.NDArray[np.bool_]:
        last = _last(np.where(waits, index, -1))
        since = np.where(last >= 0, (last + 1) * step_seconds, before)
        return ends - np.maximum(hold.started_seconds, since) <= LOAD_SECONDS

    certain = within(hold.gang_waits == 1, -np.inf)
    possible = within(hold.gang_waits != 0, 0.0 if hold.first == 0 else -np.inf)
    known = np.where(certain, 1.0, np.where(possible, np.nan, 0.0))
    return np.where(np.isnan(hold.started_seconds), np.nan, known)


def _worked(hold: HoldHistory, active: Floats, here: npt.NDArray[np.bool_], step_seconds: float) -> Floats:
    """Whether it has worked since its container's newest start, before each step. Unknown while an unmeasured step, or
    the time before the span, could have been work."""
    index = np.arange(len(active))
    unknown_start = np.isnan(hold.started_seconds)
    since = np.floor(hold.started_seconds / step_seconds)
    # An unknown start is not before one that was known earlier.
    since = np.where(unknown_start, np.maximum.accumulate(np.where(np.isfinite(since), since, -np.inf)), since)
    last_active = _last(np.where(active == 1, index, -1))
    last_unknown = _last(np.where(here & np.isnan(active), index, -1))
    worked = (last_active >= 0) & (last_active >= since)
    maybe = (last_unknown >= 0) & (last_unknown >= since)
    before = since + hold.first < 0
    worked |= before & (hold.worked_since_start is True)
    maybe |= before & (hold.worked_since_start is None)
    return np.where(worked, np.where(unknown_start, np.nan, 1.0), np.where(maybe, np.nan, 0.0))


def _last(index: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The greatest index before each step; -1 where there is none."""
    return np.concatenate(([-1], np.maximum.accumulate(index)[:-1]))


# Silences

_WORK, _PAUSE, _NEVER, _LONG, _RESTING, _OPEN = range(6)


def _silences(hold: HoldHistory, active: Floats, here: npt.NDArray[np.bool_], step_seconds: float) -> Iterable[_Claim]:
    """What silent steps are by the whole silence that they belong to. Where an unmeasured step could have been work or
    not, both are tried: a step whose silence is the same either way is known."""
    if_work = _kinds(hold, here & (active == 0), here & (active != 0), step_seconds, before_worked=True)
    if_silent = _kinds(hold, here & (active != 1), here & (active == 1), step_seconds, before_worked=False)
    differ = if_work != if_silent

    def known(kind: int) -> Floats:
        return np.where(differ, np.nan, (if_work == kind).astype(np.float64))

    yield Row.NEVER_USED, known(_NEVER), Row.SUSPECTED
    yield Row.MODEL_LOADED, _both(known(_LONG), _at_least(hold.memory_bytes, MODEL_BYTES)), Row.ABANDONED
    yield Row.ABANDONED, known(_LONG), Row.ABANDONED
    yield Row.RESTING, known(_RESTING), Row.SUSPECTED
    yield Row.SUSPECTED, known(_OPEN), Row.SUSPECTED


def _kinds(
    hold: HoldHistory,
    silent: npt.NDArray[np.bool_],
    working: npt.NDArray[np.bool_],
    step_seconds: float,
    *,
    before_worked: bool,
) -> npt.NDArray[np.int64]:
    """The kind of the silence of each step. before_worked: what is taken of the time before the span, where unknown."""
    count = len(silent)
    kinds = np.full(count, _WORK)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], silent.astype(np.int8), [0]))))
    if not edges.size:
        return kinds
    begins, ends = edges[::2], edges[1::2]
    lengths = (ends - begins) * float(step_seconds)
    # It may have worked before the span, and the silence may be longer than is seen, unless it had never started.
    earlier = bool(silent[0] | working[0]) and not np.isposinf(hold.started_seconds[0])
    # A Pod keeps its GPU, so after a time without it another Pod has the name.
    index = np.arange(count)
    away = np.maximum.accumulate(np.where(silent | working, -1, index))[begins]
    worked = _last(np.where(working, index, -1))[begins] > away
    if earlier:
        worked |= (away < 0) & (before_worked if hold.worked_before is None else hold.worked_before)
        if begins[0] == 0 and not before_worked:
            lengths[0] = np.inf
    resumed = np.concatenate((working, [False]))[ends]
    # A step in which a kernel ran for a part is work, so a silence loses half a step at each end, on average.
    lengths = np.where(resumed, lengths + step_seconds, lengths)
    kind = np.select(
        [~worked, lengths < PAUSE_SECONDS, lengths >= IDLE_SECONDS, resumed],
        [_NEVER, _PAUSE, _LONG, _RESTING],
        _OPEN,
    )
    kinds[silent] = np.repeat(kind, ends - begins)
    return kinds


# Facts that may be unknown: 1, 0 or NaN


def _not(fact: Floats) -> Floats:
    return 1.0 - fact


def _both(one: Floats, other: Floats) -> Floats:
    """0 if either is 0, even where the other is unknown."""
    return np.where((one == 0) | (other == 0), 0.0, one * other)


def _either(one: Floats, other: Floats) -> Floats:
    return _not(_both(_not(one), _not(other)))


def _above(values: Floats, bound: float) -> Floats:
    return np.where(np.isnan(values), np.nan, (values > bound).astype(np.float64))


def _at_least(values: Floats, bound: float) -> Floats:
    return np.where(np.isnan(values), np.nan, (values >= bound).astype(np.float64))
