"""Up to which length a silence is explained: by the workload's own past, by workloads like it, or by a prior."""

from __future__ import annotations

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

    bounds: of each what its `unlikely_silence_seconds` come to for this silence, ascending. likeness: in what they are
    alike, for people: 'serving in namespace chat'. enough: from so many on they speak alone; of fewer each has its
    part, and the prior the rest.
    """

    bounds: tuple[float, ...]
    likeness: str
    enough: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is assumed of a class of workloads where nothing was learnt.

    seconds: the silence that is waited out. mature_seconds: time between its first and its last activity from
    which a workload's own past begins to speak. reason: where the number comes from, for people.
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
    """The longest silence after which this workload may be expected to work again.

    An old workload is measured by its own silences. A young one has not seen a night yet: it is given at least
    what workloads like it need, or the prior where they are too few. Kin can stretch the prior to `peer_limit_ratio`
    times its length and no further. What the others say fades, second for second, as the workload works beyond
    `prior.mature_seconds`, so that no single step of activity ever makes it look more idle.
    chance_ratio: of the own past's bound being exceeded by a workload that goes on working.
    peer_quantile_ratio: share of the kin whose bound it is to cover. floor_seconds: the least that is ever explained.
    own_lacks: why the own past does not replace kin and prior however long it is, as a sentence without a full stop;
    '' where it does. own_stretch_ratio: by how much its silences may be longer now than in that past, 1 or more.
    """
    seconds = unlikely_silence_seconds(own, chance_ratio, step_seconds) if own.worked else 0.0
    by, chance = ExplainedBy.OWN, f"1 in {1 / chance_ratio:,.0f}"
    text = f"{past_text(own)}, of which more than {spoken(seconds)} follows with a chance of {chance}"
    if own_stretch_ratio > 1:
        seconds *= own_stretch_ratio
        text = f"{text}; {own_lacks}, so {spoken(seconds)} are waited out"
    if seconds < floor_seconds:
        seconds, text = floor_seconds, f"{past_text(own)}; up to {spoken(floor_seconds)} are always waited out"
    others, other_text, other = _others(kin, prior, peer_quantile_ratio, peer_limit_ratio)
    if not own_lacks:
        others -= max(0.0, own.worked_seconds - prior.mature_seconds)
    if others > seconds:
        worked = f"worked over only {spoken(own.worked_seconds)} so far" if own.worked else "no work of it was seen"
        text = f"{own_lacks or worked}, and {other_text}; {spoken(others)} are waited out"
        return Explanation(seconds=others, by=other, text=text)
    return Explanation(seconds=seconds, by=by, text=text)


def _others(
    kin: Kin | None, prior: Prior, peer_quantile_ratio: float, peer_limit_ratio: float
) -> tuple[float, str, ExplainedBy]:
    if kin is None or not kin.bounds:
        return prior.seconds, f"too few workloads like it are known ({prior.reason})", ExplainedBy.PRIOR
    rank = math.ceil(peer_quantile_ratio * len(kin.bounds)) - 1
    bound, limit = kin.bounds[rank], peer_limit_ratio * prior.seconds
    need = f"{rank + 1} of {len(kin.bounds)} workloads like it ({kin.likeness}) need no more than {spoken(bound)}"
    if bound > limit:
        bound = limit
        need = f"workloads like it ({kin.likeness}) differ too much to wait for the longest ({prior.reason})"
    if len(kin.bounds) < kin.enough:
        # That one or two never rested long says little; that they did says much.
        part = len(kin.bounds) / kin.enough
        stretched = max(prior.seconds, part * bound + (1 - part) * prior.seconds)
        return stretched, f"too few workloads like it are known ({prior.reason})", ExplainedBy.PRIOR
    return bound, need, ExplainedBy.KIN


def past_text(own: Silences) -> str:
    """What was seen, such as 'longest of its 212 idle times in 6 days: 3 h 05 min'."""
    if not own.worked:
        return "it was never seen to work"
    span = spoken(own.observed_seconds) + ("" if own.weekends_counted else " without weekends")
    if not own.count:
        return f"no idle time in {span}"
    its = "its only idle time" if own.count == 1 else f"longest of its {own.count} idle times"
    return f"{its} in {span}: {spoken(own.longest_seconds)}"


def confidence_in_silence(own: Silences, explanation: Explanation, silent_seconds: float, step_seconds: float) -> float:
    """How sure it is that the work is over, 0 to 1, before coverage is taken into account.

    By the own past: one minus the chance of such a silence, at most 0.97, because pasts end (a holiday, a paused
    project) and no past knows it. By kin at most 0.85, by a prior 0.7: each is further from this workload.
    """
    limit = {ExplainedBy.OWN: 0.97, ExplainedBy.KIN: 0.85, ExplainedBy.PRIOR: 0.7}[explanation.by]
    if not own.worked:
        return limit
    return min(limit, 1 - chance_of_longer(own, silent_seconds, step_seconds))


def spoken(seconds: float) -> str:
    """A length of time as people say it.

    >>> spoken(33000), spoken(11100), spoken(2700), spoken(40 * 3600), spoken(6 * 86400), spoken(50 * 3600)
    ('9 h 10 min', '3 h 05 min', '45 min', '40 h', '6 days', '2 days 2 h')
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
    """The ascending bounds of a group without this workload's own, where it is among them."""
    if own is None:
        return bounds
    place = bisect_left(bounds, own)
    return bounds[:place] + bounds[place + 1 :]
