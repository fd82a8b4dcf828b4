"""The words of the ledger and of the weekly report, and its numbers as text. Unknown values are 'unknown'."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
import yaml

from gpuwatch.account.weekly import NOT_READ
from gpuwatch.account.weekly_use import PROVEN_IDLE
from gpuwatch.facts.catalog.tables import checked, packaged
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.ledger import Group, LossCause, Row
from gpuwatch.facts.model.remediation import Phase
from gpuwatch.facts.model.sizing import (
    Abstention,
    AbstentionKind,
    EvidenceTier,
    Option,
    OutcomeVerdict,
    Recommendation,
    SpeedEstimate,
)
from gpuwatch.facts.model.weekly import TeamUse, Use, WeeklyReport, WorkloadUse
from gpuwatch.facts.model.workload_profile import WorkloadKey
from gpuwatch.say.words import plural, quantity

UNKNOWN = "unknown"

PROJECTED = (
    "Projected for a week: a workload's last seven days are taken to repeat. One that is younger and still runs counts "
    "as if it ran for the whole week."
)
"""The basis of all numbers a week (`gpuwatch.account.money.pod_hours_per_week`)."""


class _Words(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """weekly_words.yaml. abstained: heading and meaning, in the order in which reports show them."""

    tier: dict[EvidenceTier, str]
    abstained: dict[AbstentionKind, tuple[str, str]]
    outcome: dict[OutcomeVerdict, str]
    became: dict[Phase, str]
    groups: dict[Group, str]
    columns: dict[Group, str]
    rows: dict[Row, str]
    causes: dict[LossCause, str]


_FILE = "weekly_words.yaml"
_WORDS = checked(yaml.safe_load(packaged(_FILE, "gpuwatch.say")), _Words, _FILE)
TIER, ABSTAINED, OUTCOME, BECAME = _WORDS.tier, _WORDS.abstained, _WORDS.outcome, _WORDS.became
GROUPS, COLUMNS, ROWS, CAUSES = _WORDS.groups, _WORDS.columns, _WORDS.rows, _WORDS.causes
"""What the ledger's groups, columns, rows and losses are called."""


def abstained(found: Sequence[Abstention]) -> list[tuple[str, str, list[Abstention]]]:
    """(heading, meaning, abstentions) of each kind that occurs."""
    alike = grouped(found, lambda item: item.kind)
    return [(*words, alike[kind]) for kind, words in ABSTAINED.items() if kind in alike]


def number(value: float, digits: int) -> str:
    """With thousands separators and a true minus sign; never '-0.0'.

    >>> number(7289.84, 1), number(-35, 0), number(-0.04, 1)
    ('7,289.8', '−35', '0.0')
    """
    text = f"{value:,.{digits}f}"
    if text.startswith("-"):
        text = text[1:] if not text.strip("-0.,") else f"−{text[1:]}"
    return text


def money(value: float | None, currency: str) -> str:
    """Whole units from 100 on, cents below.

    >>> money(18412.4, "USD"), money(4.1, "EUR"), money(0.0, "USD"), money(None, "USD")
    ('18,412 USD', '4.10 EUR', '0 USD', 'unknown')
    """
    if value is None:
        return UNKNOWN
    return f"{number(value, 2 if 0 < abs(value) < 100 else 0)} {currency}"


def gpu_hours(value: float | None) -> str:
    """One decimal, without the unit.

    >>> gpu_hours(7289.84), gpu_hours(None)
    ('7,289.8', 'unknown')
    """
    return UNKNOWN if value is None else number(value, 1)


def percent(ratio: float | None, digits: int = 0) -> str:
    """
    >>> percent(0.678), percent(0.678, 1), percent(None)
    ('68 %', '67.8 %', 'unknown')
    """
    return UNKNOWN if ratio is None else f"{number(ratio * 100, digits)} %"


def speed(estimate: SpeedEstimate) -> str:
    """Low to high, relative to today's speed.

    >>> speed(SpeedEstimate(low_ratio=0.93, likely_ratio=0.97, high_ratio=1.0, tier=EvidenceTier.SM, basis=""))
    '93–100 %'
    """
    low, high = number(estimate.low_ratio * 100, 0), number(estimate.high_ratio * 100, 0)
    return f"{low} %" if low == high else f"{low}–{high} %"


def saving(option: Option, currency: str) -> str:
    """Projected saving per week: money if the price is known, and GPU-hours."""
    known = option.projected_saving_per_week is not None
    amount = money(option.projected_saving_per_week, currency) if known else "price unknown"
    return f"{amount}, {gpu_hours(option.projected_saving_gpu_hours_per_week)} GPU-hours"


def conditional(use: Use, currency: str) -> str:
    """Projected saving per week of the changes with a condition, which no other sum has; '' without any."""
    amount, hours = use.projected_conditional_saving_per_week, use.projected_conditional_saving_gpu_hours_per_week
    return f"{money(amount, currency)}, {gpu_hours(hours)} GPU-hours" if hours else ""


def saved(use: WorkloadUse | None, currency: str) -> str:
    """The possible saving in the report's period, and the cost."""
    if use is None:
        return f"{money(0.0, currency)}: it had no GPU in this time"
    if use.cost is None:
        return f"{gpu_hours(use.saving_gpu_hours)} of {gpu_hours(use.allocated_gpu_hours)} GPU-hours, price unknown"
    return f"{money(use.saving, currency)} of {money(use.cost, currency)}"


def use_of(report: WeeklyReport) -> dict[WorkloadKey, WorkloadUse]:
    """The workloads for which a change is advised."""
    return {use.recommendation.key: use for use in report.workloads if use.recommendation}


def workload_name(key: WorkloadKey | str) -> str:
    """The last part of `Kind/namespace/name`; the whole of anything else.

    >>> workload_name("Deployment/nlp/reranker"), workload_name("reranker")
    ('reranker', 'reranker')
    """
    return _parts(key)[-1]


def workload_place(key: WorkloadKey | str) -> str:
    """The object's kind and namespace.

    >>> workload_place("Deployment/nlp/reranker"), workload_place("reranker")
    ('Deployment in nlp', '')
    """
    parts = _parts(key)
    return f"{parts[0]} in {parts[1]}" if len(parts) == 3 else ""


def _parts(key: WorkloadKey | str) -> list[str]:
    parts = (key if isinstance(key, str) else key.workload).split("/", 2)
    return parts if len(parts) == 3 else ["/".join(parts)]


def period(report: WeeklyReport) -> str:
    """What the report calls its time: 'week', 'day', or 'period' for another length, beside which stands its span."""
    return {timedelta(days=7): "week", timedelta(days=1): "day"}.get(report.end - report.start, "period")


def span(start: datetime, end: datetime) -> str:
    """Both ends; the clock only if it is not midnight.

    >>> from datetime import UTC
    >>> span(datetime(2026, 2, 23, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
    'Mon 2026-02-23 to Mon 2026-03-02, UTC'
    """
    clock = start.hour or start.minute or end.hour or end.minute
    shape = "%a %Y-%m-%d %H:%M" if clock else "%a %Y-%m-%d"
    zone = end.tzname() or "no time zone"
    return f"{start.strftime(shape)} to {end.strftime(shape)}, {zone}"


def measured(use: Use) -> bool:
    """False if nothing is known: then its zeros are no measurements."""
    return use.capacity_gpu_hours is not None or use.allocated_gpu_hours > 0


def allocated_ratio(use: Use) -> float | None:
    """Allocated time of the capacity; None if either is unknown."""
    return use.allocated_gpu_hours / use.capacity_gpu_hours if use.capacity_gpu_hours else None


def busy_ratio(use: Use) -> float | None:
    """Busy time of the allocated time that was measured; None if nothing was."""
    known = use.allocated_gpu_hours - use.unknown_gpu_hours
    return min(use.busy_gpu_hours / known, 1.0) if known > 0 else None


def busy_gpu_hours(use: Use) -> float | None:
    """None if no allocated time was measured; 0 if it is known that nothing was allocated."""
    known = use.allocated_gpu_hours - use.unknown_gpu_hours
    if known > 0:
        return min(use.busy_gpu_hours, known)
    return 0.0 if measured(use) and use.allocated_gpu_hours <= 0 else None


def no_kernel_gpu_hours(use: Use) -> float | None:
    """Allocated, known, and not busy: allocated = busy + no kernel + unknown. None where busy is unknown."""
    busy = busy_gpu_hours(use)
    return None if busy is None else use.allocated_gpu_hours - use.unknown_gpu_hours - busy


def reconciled(use: Use) -> str:
    """How the GPU-hours add up, as a sentence; '' if a part is unknown."""
    busy, silent = busy_gpu_hours(use), no_kernel_gpu_hours(use)
    if busy is None:
        return ""
    text = (
        f"{gpu_hours(use.allocated_gpu_hours)} GPU-hours allocated = {gpu_hours(busy)} busy + {gpu_hours(silent)} "
        f"without a kernel + {gpu_hours(use.unknown_gpu_hours)} unknown, each rounded by itself."
    )
    if use.capacity_gpu_hours is None:
        return text
    rest = max(use.capacity_gpu_hours - use.allocated_gpu_hours, 0.0)
    return f"{text} Together with {gpu_hours(rest)} that no Pod had: {gpu_hours(use.capacity_gpu_hours)}."


def cause(item: Recommendation, use: WorkloadUse | None) -> str:
    """Why a change is advised, in two sentences, and its condition."""
    did = [f"needs {quantity(item.memory.need_bytes, 'bytes')} of memory"] if item.memory.need_bytes is not None else []
    if use is not None and use.sm_active_ratio is not None:
        did.insert(0, f"keeps {percent(use.sm_active_ratio)} of its SMs active")
    if use is not None and use.busy_ratio is not None:
        did.insert(0, f"is busy {percent(use.busy_ratio)} of the time")
    what = f"It {' and '.join(filter(None, (', '.join(did[:-1]), *did[-1:])))}. " if did else ""
    chosen = item.chosen
    size = f" and has {quantity(chosen.memory_bytes, 'bytes')}" if chosen.memory_bytes is not None else ""
    kept = f"{chosen.target.name} is predicted to run at {speed(chosen.speed)} of today's speed"
    asked = f" ({percent(item.target_speed_ratio)} is asked for){size}."
    return f"{what}{kept}{asked}{' ' + item.condition if item.condition else ''}"


@dataclass(frozen=True, slots=True)
class UsePart:
    """One part of the allocatable time. `shade`: its pattern in charts; gpu_hours: None if unknown."""

    label: str
    shade: str
    gpu_hours: float | None


def parts(report: WeeklyReport) -> tuple[UsePart, ...]:
    """Where the GPU-hours went: rows of the ledger that do not overlap and add up to the capacity."""
    if not measured(report.fleet):
        return ()
    hours: dict[tuple[str, str], float] = dict.fromkeys(_PARTS.values(), 0.0)
    for each in report.rows:
        known, unknown = _part_of(each.row)
        hours[known] += each.gpu_hours
        hours[unknown] += each.unknown_gpu_hours
    return tuple(UsePart(label, shade, found) for (label, shade), found in hours.items())


_PARTS = {
    "busy": ("Busy", "busy"),
    "pauses": ("At work, no kernel", "allocated"),
    "starts": ("Starting, waiting, ending", "allocated"),
    "quiet": ("Quiet, not proven idle", "allocated"),
    "idle": ("Proven idle", "idle"),
    "unknown": ("Allocated, not known", "unknown"),
    "free": ("Free", "free"),
    "out": ("Out of service", "lost"),
}
"""Label and pattern."""


def _part_of(row: Row) -> tuple[tuple[str, str], tuple[str, str]]:
    """The parts of its known and of its unknown hours."""
    if row in (Row.LOST, Row.FEW_SMS, Row.USEFUL):
        return _PARTS["busy"], _PARTS["busy"]
    if row is Row.OUTSIDE or row.group is Group.FREE:
        return _PARTS["free"], _PARTS["free"]
    if row.group is Group.OUT_OF_SERVICE:
        return _PARTS["out"], _PARTS["out"]
    if row in PROVEN_IDLE:
        return _PARTS["idle"], _PARTS["unknown"]
    known = {Group.NOT_WORKING: "starts", Group.IDLE: "quiet", Group.WORKING: "pauses"}[row.group]
    return _PARTS[known], _PARTS["unknown"]


def row_name(row: Row) -> str:
    """
    >>> row_name(Row.NEVER_USED)
    'Allocated and idle: never used'
    """
    return f"{'Without a Pod' if row is Row.OUTSIDE else GROUPS[row.group]}: {ROWS[row]}"


@dataclass(frozen=True, slots=True)
class Trend:
    """Change since the period before. text: with its judgement, for forms without colour."""

    arrow: str  # ▲ ▼ or =
    text: str
    good: bool | None = None  # None: no change


def share_trend(now: float | None, before: float | None) -> Trend | None:
    """Of two shares, in percentage points; more is better. None if one is unknown.

    >>> share_trend(0.678, 0.637).text
    'up 4.1 points from 63.7 %, better'
    """
    if now is None or before is None:
        return None
    change = round(now * 100, 1) - round(before * 100, 1)
    return _trend(change, f"{number(abs(change), 1)} points from {percent(before, 1)}", good=change > 0)


def waste_trend(now: float | None, before: float | None, shown: str) -> Trend | None:
    """Of two wasted amounts, in percent; less is better. `shown` is the earlier amount as text.

    >>> waste_trend(110.0, 100.0, "100 USD").text
    'up 10 % from 100 USD, worse'
    """
    if now is None or before is None:
        return None
    change = now - before
    # A change from 0 has no percentage.
    text = f"from {shown}" if before == 0 else f"{number(abs(change / before) * 100, 0)} % from {shown}"
    return _trend(0.0 if f"{now:.1f}" == f"{before:.1f}" else change, text, good=change < 0)


def _trend(change: float, text: str, *, good: bool) -> Trend:
    if abs(change) < 0.05:
        return Trend("=", "no change")
    arrow, way = ("▲", "up") if change > 0 else ("▼", "down")
    return Trend(arrow, f"{way} {text}, {'better' if good else 'worse'}", good)


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the figures at the top of the report. trend: None if the period before is unknown."""

    title: str
    value: str
    detail: str
    trend: Trend | None


def figures(report: WeeklyReport) -> tuple[Figure, ...]:
    """The figures for a head of platform: allocation, use, money wasted, money savable, time lost. A trend is None
    where either week is unknown."""
    use, before, currency = report.fleet, report.previous, report.currency
    advised = [item.recommendation for item in report.workloads if item.recommendation is not None]
    changes = sum(1 for item in advised if not item.condition)
    held = busy = wasted = lost = None
    if before is not None:
        held = share_trend(allocated_ratio(use), allocated_ratio(before))
        busy = share_trend(busy_ratio(use), busy_ratio(before))
        wasted = waste_trend(use.wasted_cost, before.wasted_cost, money(before.wasted_cost, currency))
        lost_before = before.out_of_service_gpu_hours if measured(before) else None
        lost = waste_trend(use.out_of_service_gpu_hours, lost_before, gpu_hours(lost_before))
    savable = (
        f"{gpu_hours(use.saving_gpu_hours)} GPU-hours, by {plural(changes, 'change')} and "
        f"{plural(len(report.idle), 'release')}. Projected for a week: "
        f"{money(use.projected_saving_per_week, currency)}, "
        f"{gpu_hours(use.projected_saving_gpu_hours_per_week)} GPU-hours"
    )
    if more := conditional(use, currency):
        savable += f". {plural(len(advised) - changes, 'change')} with a condition: another {more}"
    allocated = f"{gpu_hours(use.allocated_gpu_hours)} of {gpu_hours(use.capacity_gpu_hours)} GPU-hours"
    worked = f"{gpu_hours(busy_gpu_hours(use))} GPU-hours; SMs active {gpu_hours(use.sm_gpu_hours)}"
    paid = f"of {money(use.cost, currency)} for all GPUs"
    found = (
        Figure("Allocated", percent(allocated_ratio(use), 1), allocated, held),
        Figure("Busy while allocated", percent(busy_ratio(use), 1), worked, busy),
        Figure("Spent on hours without a kernel", money(use.wasted_cost, currency), paid, wasted),
        # The savings of the week before are not stored.
        Figure(f"Would have been saved in the {period(report)}", money(use.saving, currency), savable, None),
        Figure(
            "GPU-hours out of service",
            gpu_hours(use.out_of_service_gpu_hours),
            "no Pod had them, and none could",
            lost,
        ),
    )
    return found if measured(use) else tuple(Figure(item.title, UNKNOWN, "not measured", None) for item in found)


def record(report: WeeklyReport) -> str:
    """What became of earlier advice, in sentences. The saved sum has the known costs only."""
    counts = Counter(item.verdict for item in report.outcomes)
    judged = counts[OutcomeVerdict.HIT] + counts[OutcomeVerdict.MISS]
    if not report.outcomes:
        return "No earlier advice is on record yet."
    told = ["No advised change has been made and measured yet."]
    if judged:
        costs = [item.saved_cost for item in report.outcomes if item.saved_cost is not None]
        hours = sum(item.saved_gpu_hours for item in report.outcomes)
        saved = f"{money(sum(costs) if costs else None, report.currency)} where the price is known"
        told = [
            f"{counts[OutcomeVerdict.HIT]} of {judged} changes that were made and measured kept the predicted speed.",
            f"Saved so far: {gpu_hours(hours)} GPU-hours, and {saved}.",
        ]
    waits = ((OutcomeVerdict.WAITING, "not made yet"), (OutcomeVerdict.UNKNOWN, "made, but not measured"))
    if rest := [f"{counts[verdict]} {what}" for verdict, what in waits if counts[verdict]]:
        told.append(f"{' and '.join(rest).capitalize()}.")
    return " ".join(told)


def team_advice(team: TeamUse) -> str:
    """'2 changes, 1 release'."""
    parts = [(team.recommendations, "change"), (team.idle_allocations, "release")]
    return ", ".join(plural(count, what) for count, what in parts if count) or "none"


def idle_pods(report: WeeklyReport) -> str:
    """How many Pods the idle allocations have: '3 Pods'."""
    return plural(sum(len(item.pods) for item in report.idle), "Pod")


def none_idle(report: WeeklyReport) -> str:
    """The text if no idle allocation was found. Without data it says that nothing is known."""
    coverage = report.coverage
    if coverage.devices == 0:
        return "Not known: no GPU was seen."
    if coverage.idle_unknown:
        return f"None was proven; the use of {plural(coverage.idle_unknown, 'Pod')} is unknown."
    return "None was proven."


UNUSABLE = (
    "As it was when the report was written; what ended before is not in it. These hours are no part of idle hours or "
    "savings."
)


def suspected(report: WeeklyReport) -> str:
    """What the suspected idle allocations had, and why gpuwatch does not act on them."""
    held = f"{gpu_hours(report.suspected_gpu_hours)} GPU-hours ({money(report.suspected_cost, report.currency)})"
    return (
        f"{plural(len(report.suspected), 'allocation')} with {held} in the {period(report)} looked idle by engine "
        "activity alone. gpuwatch does not act on them, and no total counts them as idle. `gpuwatch doctor` names the "
        "metrics that would prove or refute it."
    )


def none_degraded(report: WeeklyReport) -> str:
    """The text if no degraded GPU was found."""
    coverage = report.coverage
    known = coverage.devices - coverage.health_unknown
    if known <= 0:
        return "Not known: no GPU's health could be judged."
    return f"None was found among the {plural(known, 'GPU')} whose health could be judged."


def actions_line(report: WeeklyReport) -> str:
    """All actions in a sentence, or why there are none."""
    if not report.actions:
        return report.actions_note or NOT_READ
    group_of = {phase: what for what, phases in _GROUPS.items() for phase in phases}
    counts = Counter(group_of.get(item.phase, "open") for item in report.actions)
    told = [f"{counts[what]} {what}" for what in (*_GROUPS, "open") if counts[what]]
    hours = sum(item.released_gpu_hours for item in report.actions)
    released = f" Releases freed {hours:,.1f} GPU-hours." if hours else ""
    return f"{plural(len(report.actions), 'action')}: {', '.join(told)}.{released}"


_GROUPS = {
    "done": (Phase.VERIFYING, Phase.IN_EFFECT, Phase.SUCCEEDED),
    "undone": (Phase.UNDOING, Phase.UNDONE),
    "failed": (Phase.FAILED,),
    "not done": (Phase.REJECTED, Phase.EXPIRED, Phase.REFUSED, Phase.OBSOLETE),
}
"""Groups in which actions are counted, in the order of the sentence."""
