"""Work that a failure made worthless: from the last checkpoint to the end of the run. Pure.

It is looked for in workloads that work towards an end: a service that stops has answered what it was asked, and of a
notebook nobody knows what was saved. The members of a gang lose their work together.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from gpuwatch.facts.frameworks import kind_of
from gpuwatch.facts.frameworks.framework import Nature
from gpuwatch.facts.model.ledger import ENDINGS, Checkpoint, ContainerHistory, LossCause

TOGETHER_STEPS = 6
"""Ends within half an hour are of one failure: members of a gang follow each other, and a crash loop goes on."""
SUCCESSOR_STEPS = 24
"""A Pod of the same workload that starts within two hours of the end of another replaces it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostSpan:
    """Steps of a Pod, [begin, end), whose work is lost. unknown: it may be lost. since: as in Loss."""

    begin: int
    end: int
    cause: LossCause
    unknown: bool
    since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """From one start of a container to its end: steps [begin, end); end None while it goes on. start: Unix seconds;
    None where it is not known. ended: by kube-state-metrics, as in ContainerHistory; None where it does not tell."""

    begin: int
    end: int | None
    start: float | None
    ended: int | None = None
    is_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a run before its work was done. end: the step after it."""

    end: int
    cause: LossCause


def can_lose(workload: str) -> bool:
    """Whether it works towards an end, or is of a kind that gpuwatch does not know."""
    kind = kind_of(workload)
    return kind is None or kind.nature in (None, Nature.ENDS)


def runs_of(life: ContainerHistory, begin: float, step_seconds: int) -> tuple[Run, ...]:
    """The runs of a container, in order. begin: Unix seconds of the span's begin."""
    running, started, ended = (np.asarray(each) for each in (life.running, life.started, life.ended))
    runs = np.flatnonzero(running == 1)
    if not len(runs):
        return ()
    known = np.flatnonzero(started > 0)
    new = known[np.flatnonzero(np.diff(started[known], prepend=-np.inf) > 0)]
    # Steps that ran before the first start that is known are of a run before it.
    borders = [int(at) for at in new]
    starts: list[float | None] = [float(started[at]) for at in new]
    first = int(runs[0])
    if not borders or _step(float(started[borders[0]]), begin, step_seconds) > life.first + first:
        borders, starts = [first, *borders], [None, *starts]
    spans = zip([0, *borders[1:]], [*borders[1:], len(running)], strict=True)
    own = [runs[(runs >= at) & (runs < limit)] for at, limit in spans]
    ends = [int(of[-1]) + 1 if len(of) else border + 1 for of, border in zip(own, borders, strict=True)]
    found = []
    for index, (border, end) in enumerate(zip(borders, ends, strict=True)):
        # kube-state-metrics tells how this run ended while the next one runs.
        later = ended[end : ends[index + 1] if index + 1 < len(ends) else len(ended)]
        told = later[~np.isnan(later)]
        is_last = index + 1 == len(borders)
        found.append(
            Run(
                begin=life.first + (int(own[index][0]) if len(own[index]) else border),
                end=None if is_last and end == len(running) else life.first + end,
                start=starts[index],
                ended=int(told[0]) if len(told) else None,
                is_last=is_last,
            )
        )
    return tuple(found)


def _step(at: float, begin: float, step_seconds: int) -> int:
    return int(np.floor((at - begin) / step_seconds))


def endings_of(
    life: ContainerHistory,
    runs: Sequence[Run],
    *,
    reported: npt.NDArray[np.bool_],
    not_ready: npt.NDArray[np.bool_],
    degraded: npt.NDArray[np.bool_],
    successors: Sequence[int],
    scheduled: bool,
    lives: bool,
) -> Iterator[Ending]:
    """The runs that ended before their work was done. reported: kube-state-metrics had series. not_ready, degraded: its
    Node, or a GPU of it, was. successors: steps at which other Pods of its workload began, in order; scheduled: by
    a clock, so that they may replace no Pod. lives: the Pod still exists."""
    count, over = len(reported), life.first + len(life.running)
    started = np.asarray(life.started)
    known, unsure = started > 0, np.isnan(started) & (np.asarray(life.running) == 1)
    if len(after := np.flatnonzero(unsure & ~np.maximum.accumulate(known[::-1])[::-1])):
        # It may have started anew since the last start that is known.
        yield Ending(end=life.first + int(after[-1]) + 1, cause=LossCause.UNKNOWN)
    for run, later in zip_longest(runs, runs[1:]):
        end = run.end if run.end is not None else over
        until = later.begin if later is not None else over
        # A start of 0 is of a Pod that was made anew under the name.
        anew = bool((started[end - life.first : until - life.first] == 0).any())
        near = slice(max(end - 1, 0), end + 1)
        replaced = bisect_right(successors, end - 1 + SUCCESSOR_STEPS) > bisect_left(successors, end - 1)
        cause: LossCause | None
        if run.end is None and (over >= count or lives):
            continue  # it goes on
        if run.ended is not None:
            cause = ENDINGS[run.ended]
        elif not_ready[near].any() and not _drained(life, end, not_ready):
            cause = LossCause.NODE
        elif run.end is not None and not anew and _is_listed(life, end, run):
            cause = LossCause.UNKNOWN  # it stopped, and kube-state-metrics does not export why
        elif end < count and not reported[end]:
            cause = LossCause.UNKNOWN  # it was gone when kube-state-metrics was back
        else:
            # Its Pod was deleted. If no other Pod replaced it, it was stopped on purpose, and no work was lost.
            cause = LossCause.DISRUPTED if replaced or anew or not run.is_last else None
            if replaced and scheduled:
                cause = LossCause.UNKNOWN
        if cause in (LossCause.ERROR, LossCause.NODE) and degraded[near].any():
            cause = LossCause.GPU
        if cause is not None:
            yield Ending(end=end, cause=cause)


def _drained(life: ContainerHistory, end: int, not_ready: npt.NDArray[np.bool_]) -> bool:
    """Whether its Pod was being deleted while its Node was Ready. Kubernetes waits 300 s before it deletes the Pods of
    a Node that is not, so where both began in one step, the Pod was first."""
    deleted = np.flatnonzero(np.asarray(life.deleting)[: end + 1 - life.first] == 1)
    return bool(len(deleted)) and not not_ready[max(life.first + int(deleted[0]) - 1, 0)]


def _is_listed(life: ContainerHistory, end: int, run: Run) -> bool:
    """Whether the Pod was still there after the end of the run."""
    at = end - life.first
    return at < len(life.running) and not np.isnan(life.running[at]) and not (run.is_last and life.deleting[at] == 1)


def lost_spans(
    endings: Iterable[Ending], own: Sequence[Run], checkpoints: Sequence[Checkpoint], begin: float, step_seconds: int
) -> tuple[LostSpan, ...]:
    """What a Pod lost by these ends, which may be those of other members of its gang. own: its own runs."""
    found: list[LostSpan] = []
    for failure in _together(sorted(endings, key=lambda each: each.end)):
        end, cause = failure[-1].end, _cause(failure)
        first, newest = (begin + step * step_seconds for step in (failure[0].end, failure[0].end - 1))
        run = next((run for run in own if run.begin < end and _reaches(run, failure[0].end)), None)
        if run is None:
            continue  # it was not there then
        before = found[-1].end if found else None
        # It ended in this step at the latest, and what is saved after its next start is of the next run.
        later = (each.start for each in own if each.begin >= failure[0].end and each.start is not None)
        saved, is_newest = _saved(checkpoints, min([first + step_seconds, *later]), newest)
        # Of the step with the checkpoint nothing is lost, of that with the start all.
        if saved is not None:
            at = min(int(np.ceil((saved - begin) / step_seconds)), end)
        else:
            at = _step(run.start, begin, step_seconds) if run.start is not None else -1
        is_known = saved is not None or run.start is not None
        at = max(at, before) if before is not None else at
        found.append(
            LostSpan(
                begin=at,
                end=end,
                cause=cause,
                unknown=not is_newest or cause is LossCause.UNKNOWN,
                since=datetime.fromtimestamp(begin + at * step_seconds, UTC) if is_known else None,
            )
        )
    return tuple(found)


def _reaches(run: Run, end: int) -> bool:
    return run.end is None or run.end + TOGETHER_STEPS >= end


def _together(endings: Iterable[Ending]) -> Iterator[list[Ending]]:
    found: list[Ending] = []
    for each in endings:
        if found and each.end - found[-1].end > TOGETHER_STEPS:
            yield found
            found = []
        found.append(each)
    if found:
        yield found


def _cause(failure: Sequence[Ending]) -> LossCause:
    """Of what ended first: the other Pods of the gang are deleted after it, or end without a reason."""
    follows = (LossCause.DISRUPTED, LossCause.UNKNOWN)
    return next((each.cause for each in failure if each.cause not in follows), failure[0].cause)


def _saved(checkpoints: Sequence[Checkpoint], failed: float, since: float) -> tuple[float | None, bool]:
    """The newest checkpoint before the failure, in Unix seconds, and whether it is known that there was no newer one:
    it was seen as the newest in the last step before the failure, or later. since: begin of that step."""
    before = [each for each in checkpoints if each.at.timestamp() < failed]
    if not before:
        return None, False
    newest = max(before, key=lambda each: each.at).at
    return newest.timestamp(), any(each.seen.timestamp() >= since for each in before if each.at == newest)


def spans_by_pod(
    workloads: Mapping[str, str],
    endings: Mapping[str, Sequence[Ending]],
    runs: Mapping[str, Sequence[Run]],
    gangs: Mapping[str, str],
    checkpoints: Mapping[str, Sequence[Checkpoint]],
    begin: float,
    step_seconds: int,
) -> dict[str, tuple[LostSpan, ...]]:
    """By Pod. workloads: Workload.id of each Pod. gangs: by Pod, a name that the members of its gang have."""
    of_gang: dict[str, list[Ending]] = {}
    for pod, found in endings.items():
        of_gang.setdefault(gangs.get(pod, pod), []).extend(found)
    return {
        pod: lost_spans(
            of_gang[gangs.get(pod, pod)],
            runs.get(pod, ()),
            checkpoints.get(pod) or checkpoints.get(workload, ()),
            begin,
            step_seconds,
        )
        for pod, workload in workloads.items()
        if gangs.get(pod, pod) in of_gang
    }
