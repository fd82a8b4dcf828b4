"""How long a workload may be idle and still be expected to work: by its own past, by similar workloads, or a prior."""

import math
from bisect import bisect_left
from dataclasses import dataclass
from enum import StrEnum

from gpuwatch.profile.silence import Silences, chance_of_longer, unlikely_silence_seconds

_MINUTE = 60
_HOUR = 3600


class ExplainedBy(StrEnum):
    OWN = "own"
    KIN = "kin"
    PRIOR = "prior"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kin:
    """Workloads like this one.

    bounds: `unlikely_silence_seconds` of each, for this silence, ascending. likeness: what they have in common, such as
    'serving in namespace chat'. enough: from this number on they replace the prior; fewer are averaged with it.
    """

    bounds: tuple[float, ...]
    likeness: str
    enough: int


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
    """A silence of up to `seconds` (counted time) is explained; `text` says by what, as part of a sentence."""

    seconds: float
    by: ExplainedBy
    text: str


def explained_silence_seconds(
    own: Silences,
    kin: Kin | None,
    prior: Prior,
    *,
    chance_ratio: float,
    peer_quantile_ratio: float,
    peer_limit_ratio: float,
    floor_seconds: float,
    step_seconds: float,
    own_lacks: str = "",
    own_stretch_ratio: float = 1.0,
) -> Explanation:
    """The longest silence after which this workload is expected to work again.

    An old workload has a bound from its own silences. A young one, which has not seen a night yet, gets at least the
    bound of its kin, or the prior where they are too few. Kin can raise the bound to at most `peer_limit_ratio` times
    the prior. The bound of kin or prior falls second for second as the workload works beyond `prior.mature_seconds`, so
    no single step of activity makes it look more idle.
    chance_ratio: chance that a workload which goes on working exceeds its own bound.
    peer_quantile_ratio: share of the kin whose bounds are covered. floor_seconds: the least result.
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
    others, other_text, other = _others(kin, prior, peer_quantile_ratio, peer_limit_ratio)
    if not own_lacks:
        others -= max(0.0, own.worked_seconds - prior.mature_seconds)
    if others > seconds:
        worked = f"worked over only {time_text(own.worked_seconds)} so far" if own.worked else past_text(own)
        text = f"{own_lacks or worked}, and {other_text}; threshold: {time_text(others)}"
        return Explanation(seconds=others, by=other, text=text)
    return Explanation(seconds=seconds, by=by, text=text)


def _others(
    kin: Kin | None, prior: Prior, peer_quantile_ratio: float, peer_limit_ratio: float
) -> tuple[float, str, ExplainedBy]:
    if kin is None or not kin.bounds:
        return prior.seconds, f"too few workloads like it are known ({prior.reason})", ExplainedBy.PRIOR
    rank = math.ceil(peer_quantile_ratio * len(kin.bounds)) - 1
    bound, limit = kin.bounds[rank], peer_limit_ratio * prior.seconds
    need = f"{rank + 1} of {len(kin.bounds)} workloads like it ({kin.likeness}) need no more than {time_text(bound)}"
    if bound > limit:
        bound = limit
        need = f"workloads like it ({kin.likeness}) differ too much to wait for the longest ({prior.reason})"
    if len(kin.bounds) < kin.enough:
        # Few kin with short silences are weak evidence, with long ones strong: never below the prior.
        part = len(kin.bounds) / kin.enough
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
    or a paused project. By kin at most 0.85, by a prior 0.7: each is weaker evidence about this workload.
    """
    limit = {ExplainedBy.OWN: 0.97, ExplainedBy.KIN: 0.85, ExplainedBy.PRIOR: 0.7}[explanation.by]
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
