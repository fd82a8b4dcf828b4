"""How long a workload may be idle and still be expected to work: by its own past, by similar workloads, or a prior."""

import math
from bisect import bisect_left
from dataclasses import dataclass
from enum import StrEnum

from gpuwatch.judge.idle.silence import Silences, chance_of_longer, unlikely_silence_seconds

_MINUTE = 60
_HOUR = 3600
_NONE_SEEN = 3.0
"""The rule of three: what did not happen in T hours happens at most 3/T times an hour, at a confidence of 95 %."""
MIN_PEERS = 5
"""Similar workloads that replace the prior, as for GPUs; fewer stretch it, each by its part."""
PEER_QUANTILE_RATIO = 0.9
"""Share of the peers whose idle times are covered, and that must work on weekends before a first weekend counts: one
unusual peer in ten does not decide."""
PEER_LIMIT_RATIO = 2.0
"""How far peers can stretch the prior: those that need more differ too much to be a guide."""


class ExplainedBy(StrEnum):
    OWN = "own"
    UNPAUSED = "unpaused"
    KIN = "kin"
    PRIOR = "prior"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kin:
    """Workloads like this one.

    bounds: `unlikely_silence_seconds` of each, for this silence, ascending. likeness: what they have in common, such as
    'serving in namespace chat'.
    """

    bounds: tuple[float, ...]
    likeness: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """The assumption for a class of workloads without data.

    seconds: threshold for a silence. mature_seconds: time between a workload's first and last activity from which its
    own past begins to count. reason: source of the number.
    """

    seconds: float
    mature_seconds: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A silence of up to `seconds` (counted time) is explained; `text` says by what, as part of a sentence.

    expected_seconds: the silence up to which work is expected again. From there to `seconds` neither is known: whether
    it works again, or that it is over. None: no such time.
    """

    seconds: float
    by: ExplainedBy
    text: str
    expected_seconds: float | None = None


def explained_silence_seconds(
    own: Silences,
    kin: Kin | None,
    prior: Prior,
    *,
    chance_ratio: float,
    floor_seconds: float,
    step_seconds: float,
    own_lacks: str = "",
    own_stretch_ratio: float = 1.0,
) -> Explanation:
    """The longest silence after which this workload is expected to work again.

    An old workload has a bound from its own silences. A young one, which has not seen a night yet, gets at least the
    bound of its kin, or the prior where they are too few. Kin can raise the bound to at most PEER_LIMIT_RATIO times
    the prior. The bound of kin or prior falls second for second as the workload works beyond `prior.mature_seconds`, so
    no single step of activity makes it look more idle.
    chance_ratio: chance that a workload which goes on working exceeds its own bound. floor_seconds: the least result.
    own_lacks: why the own past cannot replace kin and prior, as a sentence without a full stop; '' where it can.
    own_stretch_ratio: factor by which its silences may be longer now than in that past, 1 or more.
    """
    seconds = unlikely_silence_seconds(own, chance_ratio, step_seconds) if own.worked else 0.0
    by, chance = ExplainedBy.OWN, f"1 in {1 / chance_ratio:,.0f}"
    text = f"{past_text(own)}; one of more than {time_text(seconds)} has a chance of {chance}"
    if own_stretch_ratio > 1:
        seconds *= own_stretch_ratio
        text = f"{text}; {own_lacks}, so the threshold is {time_text(seconds)}"
    if seconds < floor_seconds:
        seconds, text = floor_seconds, f"{past_text(own)}; the threshold is never below {time_text(floor_seconds)}"
    others, other_text, other = _others(kin, prior)
    if not own_lacks:
        others -= max(0.0, own.worked_seconds - prior.mature_seconds)
    if others > seconds:
        worked = f"worked over only {time_text(own.worked_seconds)} so far" if own.worked else past_text(own)
        text = f"{own_lacks or worked}, and {other_text}; threshold: {time_text(others)}"
        return Explanation(seconds=others, by=other, text=text)
    return Explanation(seconds=seconds, by=by, text=text)


def judged_later(found: Explanation, own: Silences, least_seconds: float) -> Explanation:
    """The explanation for work that ends by itself and may be unfinished: nothing is concluded before the larger of
    `least_seconds` and a third of the longest time that it worked without a pause (T).

    Why a third: no pause in T hours means at most 3/T pauses an hour, at 95 % (rule of three). So the record supports
    that it works for T/3 hours or more between two pauses, and says nothing about how long one of them lasts: the
    evaluation or upload after 72 hours has no example in them. That a pause may last as long as the work before it is
    an assumption, not a measurement. With it no bound shorter than T/3 follows from the record.
    Pauses that were seen cut T into parts. So several of them, spread over the work, lower the bound, and those of its
    first hours do not. None lowers it below `least_seconds`: checkpoints of five minutes are no examples of an upload.
    Unknown steps do not cut T, and more work never lowers the bound.
    """
    third = own.unpaused_seconds / _NONE_SEEN
    seconds = max(least_seconds, third)
    if seconds <= found.seconds:
        return found
    after = f"unless its GPU memory is empty, it is judged after {time_text(seconds)}"
    if third >= least_seconds:
        after += f", a third of the {time_text(own.unpaused_seconds)} that it worked without a pause"
    by = ExplainedBy.UNPAUSED if found.by is ExplainedBy.OWN else found.by
    return Explanation(seconds=seconds, by=by, text=f"{past_text(own)}; {after}", expected_seconds=found.seconds)


def _others(kin: Kin | None, prior: Prior) -> tuple[float, str, ExplainedBy]:
    if kin is None or not kin.bounds:
        return prior.seconds, f"too few workloads like it are known ({prior.reason})", ExplainedBy.PRIOR
    rank = math.ceil(PEER_QUANTILE_RATIO * len(kin.bounds)) - 1
    bound, limit = kin.bounds[rank], PEER_LIMIT_RATIO * prior.seconds
    need = f"{rank + 1} of {len(kin.bounds)} workloads like it ({kin.likeness}) need no more than {time_text(bound)}"
    if bound > limit:
        bound = limit
        need = f"workloads like it ({kin.likeness}) differ too much to wait for the longest ({prior.reason})"
    if len(kin.bounds) < MIN_PEERS:
        # Few kin with short silences are weak evidence, with long ones strong: never below the prior.
        part = len(kin.bounds) / MIN_PEERS
        stretched = max(prior.seconds, part * bound + (1 - part) * prior.seconds)
        return stretched, f"too few workloads like it are known ({prior.reason})", ExplainedBy.PRIOR
    return bound, need, ExplainedBy.KIN


def past_text(own: Silences) -> str:
    """For example 'longest of its 212 idle times in 6 days: 3 h 05 min'."""
    if not own.worked:
        return "it was never seen to work"
    span = time_text(own.observed_seconds) + ("" if own.weekends_counted else " without weekends")
    if not own.count:
        return f"no idle time in {span}"
    its = "its only idle time" if own.count == 1 else f"longest of its {own.count} idle times"
    return f"{its} in {span}: {time_text(own.longest_seconds)}"


def confidence_in_silence(own: Silences, explanation: Explanation, silent_seconds: float, step_seconds: float) -> float:
    """Confidence that the work is over, 0 to 1, before coverage is taken into account.

    By the own past: one minus the chance of such a silence, at most 0.97, because the past does not predict a holiday
    or a paused project. By the own time without a pause at most 0.95, the confidence of the rule of three. By kin at
    most 0.85, by a prior 0.7: each is weaker evidence about this workload.
    """
    limit = {
        ExplainedBy.OWN: 0.97,
        ExplainedBy.UNPAUSED: 0.95,
        ExplainedBy.KIN: 0.85,
        ExplainedBy.PRIOR: 0.7,
    }[explanation.by]
    if not own.worked:
        return limit
    return min(limit, 1 - chance_of_longer(own, silent_seconds, step_seconds))


def time_text(seconds: float) -> str:
    """Coarse, for sentences.

    >>> time_text(33000), time_text(2700), time_text(40 * 3600), time_text(6 * 86400), time_text(50 * 3600)
    ('9 h 10 min', '45 min', '40 h', '6 days', '2 days 2 h')
    """
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    minutes = round(seconds / _MINUTE)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 2 * 24 * 60:
        return f"{minutes // 60} h" + (f" {minutes % 60:02d} min" if minutes % 60 else "")
    hours = round(seconds / _HOUR)
    return f"{hours // 24} days" + (f" {hours % 24} h" if hours % 24 and hours < 4 * 24 else "")


def without(bounds: tuple[float, ...], own: float | None) -> tuple[float, ...]:
    """The ascending bounds of a group without this workload's own."""
    if own is None:
        return bounds
    place = bisect_left(bounds, own)
    return bounds[:place] + bounds[place + 1 :]
