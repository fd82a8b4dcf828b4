"""The words of the ledger and of the weekly report, and its numbers as text. Unknown values are 'unknown'."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
import yaml

from gpuwatch.account.weekly import NOT_READ
from gpuwatch.facts.catalog.tables import checked, packaged
from gpuwatch.facts.model.decision import Finding
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.ledger import Group, LossCause, Row
from gpuwatch.facts.model.remediation import Phase
from gpuwatch.facts.model.sizing import (
    Abstention,
    AbstentionKind,
    EvidenceTier,
    Option,
    OutcomeVerdict,
    SpeedEstimate,
)
from gpuwatch.facts.model.weekly import (
    Amount,
    Left,
    LeftOver,
    Lever,
    LeverKind,
    Sureness,
    TeamUse,
    Use,
    WeeklyReport,
    WorkloadUse,
)
from gpuwatch.facts.model.workload_profile import WorkloadKey
from gpuwatch.say.words import plural

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
    levers: dict[LeverKind, str]
    sureness: dict[Sureness, tuple[str, str]]
    left: dict[Left, tuple[str, str]]
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
LEVERS, SURENESS = _WORDS.levers, _WORDS.sureness
LEFT = {**{Left(kind): words for kind, words in ABSTAINED.items() if kind.value in set(Left)}, **_WORDS.left}
"""Title and meaning of why an hour has no lever."""


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


def whole_money(value: float | None, currency: str) -> str:
    """Whole units; what is less than one and not zero says so.

    >>> whole_money(38.07, "USD"), whole_money(0.3, "EUR"), whole_money(0.0, "USD"), whole_money(None, "USD")
    ('38 USD', '<1 EUR', '0 USD', 'unknown')
    """
    return UNKNOWN if value is None else f"{_whole(value)} {currency}"


def hours(value: float | None) -> str:
    """Whole GPU-hours, without the unit; what is less than one and not zero says so.

    >>> hours(7289.84), hours(0.25), hours(None)
    ('7,290', '<1', 'unknown')
    """
    return UNKNOWN if value is None else _whole(value)


def _whole(value: float) -> str:
    return "<1" if 1e-9 < value < 0.5 else number(value, 0)


def gpu_hours(value: float | None) -> str:
    """One decimal, without the unit.

    >>> gpu_hours(7289.84), gpu_hours(None)
    ('7,289.8', 'unknown')
    """
    return UNKNOWN if value is None else number(value, 1)


def percent(ratio: float | None, digits: int = 0) -> str:
    """
    >>> percent(0.678), percent(0.0678, 1), percent(None)
    ('68 %', '6.8 %', 'unknown')
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
    return saved(option.projected_saving_per_week, option.projected_saving_gpu_hours_per_week, currency)


def saved(amount: float | None, gpu_hours: float, currency: str) -> str:
    """
    >>> saved(38.07, 16.2, "USD"), saved(None, 16.2, "USD")
    ('38 USD, 16 GPU-hours', 'price unknown, 16 GPU-hours')
    """
    return f"{'price unknown' if amount is None else whole_money(amount, currency)}, {hours(gpu_hours)} GPU-hours"


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


@dataclass(frozen=True, slots=True)
class UsePart:
    """One part of the fleet's time. `shade`: its pattern in charts; gpu_hours, cost: None if unknown."""

    label: str
    shade: str
    gpu_hours: float | None
    cost: float | None = None


def parts(report: WeeklyReport) -> tuple[UsePart, ...]:
    """Where the GPU-hours went: parts that do not overlap and add up to the capacity."""
    if not measured(report.fleet):
        return ()
    account = report.levers

    def part(label: str, shade: str, *found: Amount) -> UsePart:
        costs = [each.cost for each in found if each.cost is not None]
        return UsePart(label, shade, math.fsum(each.gpu_hours for each in found), math.fsum(costs) if costs else None)

    sure = [item.wasted for item in account.levers if item.sureness is Sureness.SURE]
    unsure = [item.wasted for item in account.levers if item.sureness is not Sureness.SURE]
    return (
        part("Useful work", "busy", account.useful),
        part("Wasted: a sure lever", "allocated", *(sure or [Amount()])),
        part("Wasted: a lever, not sure", "allocated", *(unsure or [Amount()])),
        part("Wasted: no lever", "idle", *([item.wasted for item in account.left] or [Amount()])),
        part("Not known", "unknown", account.unknown),
        part("Out of service", "lost", account.out_of_service),
    )


def by_sureness(report: WeeklyReport) -> list[tuple[Sureness, str, str, list[Lever], str]]:
    """(sureness, heading, meaning, levers, what they save together in a week) of each that occurs."""
    alike = grouped(report.levers.levers, lambda item: item.sureness)
    found = []
    for sureness, words in SURENESS.items():
        if levers := alike.get(sureness):
            known = [item.saving_per_week for item in levers if item.saving_per_week is not None]
            gpu_hours = math.fsum(item.saving_gpu_hours_per_week for item in levers)
            found.append(
                (sureness, *words, levers, saved(math.fsum(known) if known else None, gpu_hours, report.currency))
            )
    return found


def lever_of(report: WeeklyReport, finding: Finding) -> Lever | None:
    """The release of an idle allocation."""
    return next((item for item in report.levers.levers if finding.id in item.findings), None)


def evidence_rows(item: LeftOver) -> str:
    """The rows that most of its hours are in: '55 % few SMs active, 30 % no kernel'."""
    total = math.fsum(item.rows.values())
    most = sorted(item.rows.items(), key=lambda each: -each[1])[:3]
    return ", ".join(f"{percent(each / total)} {ROWS[row]}" for row, each in most if total > 0 and each / total >= 0.01)


def degraded_gpus(report: WeeklyReport) -> list[tuple[list[Finding], float | None, float | None]]:
    """Degraded GPUs and Nodes in their order: their findings, the most severe first, and GPU-hours and cost from the
    start of the oldest one on, None where unknown."""

    def most(of: Mapping[str, float], found: list[Finding]) -> float | None:
        return max((of[item.id] for item in found if item.id in of), default=None)

    alike = grouped(report.degraded, lambda item: (item.subject, item.node)).values()
    return [(found, most(report.degraded_gpu_hours, found), most(report.degraded_cost, found)) for found in alike]


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
    'up 4.1 points from 64 %, better'
    """
    if now is None or before is None:
        return None
    change = round(now * 100, 1) - round(before * 100, 1)
    return _trend(change, f"{number(abs(change), 1)} points from {percent(before)}", good=change > 0)


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
    use, before, currency, account = report.fleet, report.previous, report.currency, report.levers
    held = busy = wasted = lost = None
    if before is not None:
        held = share_trend(allocated_ratio(use), allocated_ratio(before))
        busy = share_trend(busy_ratio(use), busy_ratio(before))
        wasted = waste_trend(use.wasted_cost, before.wasted_cost, whole_money(before.wasted_cost, currency))
        lost_before = before.out_of_service_gpu_hours if measured(before) else None
        lost = waste_trend(use.out_of_service_gpu_hours, lost_before, hours(lost_before))
    sure = sum(item.sureness is Sureness.SURE for item in account.levers)
    savable = f"{hours(account.saving_gpu_hours_per_week)} GPU-hours a week, by {plural(sure, 'lever')}, projected"
    found = (
        Figure(
            "Allocated",
            percent(allocated_ratio(use)),
            f"{hours(use.allocated_gpu_hours)} of {hours(use.capacity_gpu_hours)} GPU-hours",
            held,
        ),
        Figure("Busy while allocated", percent(busy_ratio(use)), f"{hours(busy_gpu_hours(use))} GPU-hours", busy),
        Figure(
            "Wasted",
            whole_money(use.wasted_cost, currency),
            f"of {whole_money(use.cost, currency)} for all GPUs",
            wasted,
        ),
        # The savings of the week before are not stored.
        Figure("Sure saving, a week", whole_money(account.saving_per_week, currency), savable, None),
        Figure(
            "GPU-hours out of service", hours(use.out_of_service_gpu_hours), "no Pod had them, and none could", lost
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


def team_left(team: TeamUse) -> str:
    """Why most of its waste has no lever; '' where nothing is left."""
    return "" if team.left is None else LEFT[team.left][0]


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
    "As it was when the report was written; what ended before is not in it. These hours are no part of idle hours."
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
