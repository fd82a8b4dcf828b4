"""The weekly report as GitHub Markdown, and a summary short enough for a message."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import TypeVar

from gpuwatch.model.sizing import Recommendation
from gpuwatch.model.weekly import WeeklyReport
from gpuwatch.report import weekly_words as say
from gpuwatch.report.sizing_tables import patch_yaml
from gpuwatch.report.tables import other_gaps
from gpuwatch.report.words import ago, plural, short_uuid

T = TypeVar("T")

ROWS_SHOWN = 50  # a message of at most some 40 kB; the CSV and JSON forms have everything
CHANGES_SHOWN = 10  # with their YAML
_SUMMARY_CHANGES = 5

_SPECIAL = re.compile(r"([\\`*_\[\]|~$])")


def weekly_markdown(report: WeeklyReport) -> str:
    """The whole report but the list of all workloads. Names are escaped: they make neither markup nor mentions."""
    return "\n".join(_lines(report)) + "\n"


def weekly_summary(report: WeeklyReport) -> str:
    """At most 25 lines of Markdown that are readable as plain text, for a chat or the top of an e-mail."""
    lines = [f"**GPUs in the {say.period(report)} of {say.span(report.start, report.end)}**", ""]
    lines += [" ".join(say.headline(report)), ""]
    for item in say.figures(report):
        trend = f" ({item.trend.arrow} {item.trend.judged})" if item.trend else ""
        lines.append(f"- {item.title}: **{item.value}**{trend}")
    if report.top_changes:
        uses = {use.recommendation.key: use for use in report.workloads if use.recommendation}
        lines += ["", "Worth most:"]
        for change in report.top_changes[:_SUMMARY_CHANGES]:
            move = f"{escaped(change.current.target.name)} → {escaped(change.chosen.target.name)}"
            saved, saves = say.saved(uses.get(change.key), report.currency), say.saving(change.chosen, report.currency)
            lines.append(
                f"- {_name(change)}: {move}, {say.speed(change.chosen.speed)} of the speed; would have saved {saved} "
                f"in the {say.period(report)}; projected, {saves} a week"
            )
    lines += ["", f"Idle allocations: {_idle_line(report)}", f"Degraded GPUs: {_degraded_line(report)}"]
    if report.actions:
        lines.append(say.actions_line(report))
    if report.outcomes:
        lines.append(say.record(report.outcomes).sentence)
    return "\n".join(lines) + "\n"


def _idle_line(report: WeeklyReport) -> str:
    if not report.idle:
        return say.none_idle(report)
    worst = escaped(report.idle[0].subject.name)
    hours = say.gpu_hours(sum(item.gpu_hours for item in report.idle))
    return f"{plural(len(report.idle), 'Pod')}, {hours} GPU-hours so far; most by {worst}."


def _degraded_line(report: WeeklyReport) -> str:
    if not report.degraded:
        return say.none_degraded(report)
    kinds = Counter(item.kind.replace("_", " ") for item in report.degraded)
    return ", ".join(f"{count} × {kind}" for kind, count in kinds.most_common(4)) + "."


def _lines(report: WeeklyReport) -> Iterable[str]:
    currency, when = report.currency, say.period(report)
    written = f"{report.at:%Y-%m-%d %H:%M} {report.at.tzname() or ''}".rstrip()
    for line in (
        f"# GPUs in the {when} of {say.span(report.start, report.end)}",
        f"From {escaped(report.source)}, written {written}.",
        " ".join(say.headline(report)),
        say.basis(report),
    ):
        yield line
        yield ""
    yield from _table(
        say.figures(report),
        ("", lambda item: item.title),
        ("now", lambda item: f"**{item.value}**"),
        ("", lambda item: item.detail),
        (
            f"against the {when} before",
            lambda item: f"{item.trend.arrow} {item.trend.judged}" if item.trend else "",
        ),
    )
    parts = say.parts(report.fleet)
    if parts:
        total = sum(part.gpu_hours or 0.0 for part in parts)
        yield from _section("Where the GPU-hours went")
        yield from _table(
            parts,
            ("", lambda part: part.label),
            ("GPU-hours", lambda part: say.gpu_hours(part.gpu_hours)),
            (
                "share",
                lambda part: say.percent(None if part.gpu_hours is None or not total else part.gpu_hours / total),
            ),
            numbers=(1, 2),
        )
    yield from _changes(report)
    if report.teams:
        yield from _section("Teams")
        yield from _table(
            report.teams,
            ("team", lambda team: escaped(team.namespace)),
            ("GPU-hours allocated", lambda team: say.gpu_hours(team.use.allocated_gpu_hours)),
            ("busy", lambda team: say.percent(say.busy_ratio(team.use))),
            ("unknown", lambda team: say.gpu_hours(team.use.unknown_gpu_hours)),
            (f"cost in the {when}", lambda team: say.money(team.use.cost, currency)),
            ("of it idle", lambda team: say.money(team.use.wasted_cost, currency)),
            (f"would have been saved in the {when}", lambda team: say.money(team.use.saving, currency)),
            ("projected saving, a week", lambda team: say.money(team.use.projected_saving_per_week, currency)),
            ("changes", lambda team: str(team.recommendations)),
            ("idle", lambda team: str(team.idle_allocations)),
            numbers=range(1, 10),
        )
    yield from _abstentions(report)
    yield from _findings(report)
    yield from _actions(report)
    yield from _outcomes(report)
    yield from _limits(report)


def _changes(report: WeeklyReport) -> Iterable[str]:
    if not report.top_changes:
        none = "No change is advised." if report.workloads else "Not known: no workload was profiled."
        yield from _section("The changes worth most", none)
        return
    yield from _section("The changes worth most")
    uses = {use.recommendation.key: use for use in report.workloads if use.recommendation}
    yield from _table(
        report.top_changes,
        ("workload", _name),
        ("from", lambda item: escaped(item.current.target.name)),
        ("to", lambda item: f"**{escaped(item.chosen.target.name)}**"),
        ("speed, of now", lambda item: say.speed(item.chosen.speed)),
        (
            f"would have saved in the {say.period(report)}, of its cost",
            lambda item: say.saved(uses.get(item.key), report.currency),
        ),
        ("projected saving, a week", lambda item: say.saving(item.chosen, report.currency)),
        ("basis", lambda item: f"{say.TIER[item.chosen.speed.tier]}, {say.percent(item.confidence_ratio)} sure"),
    )
    for item in report.top_changes[:CHANGES_SHOWN]:
        text = patch_yaml(item.change)
        # The fence is longer than any run of backticks within, so that no name can close it.
        fence = "`" * max(3, max(map(len, re.findall(r"`+", text)), default=0) + 1)
        for line in (
            f"### {escaped(say.workload_name(item.key))}",
            " ".join(escaped(line) for line in (item.reason, *item.caveats)),
            f"{fence}yaml\n{text}{fence}",
        ):
            yield line
            yield ""


def _abstentions(report: WeeklyReport) -> Iterable[str]:
    found = [item.abstention for item in report.workloads if item.abstention]
    if not found:
        return
    yield from _section("Left as they are")
    alike = {kind: [item for item in found if item.kind is kind] for kind in say.ABSTAINED}
    yield from _table(
        [(say.ABSTAINED[kind], items) for kind, items in alike.items() if items],
        ("reason", lambda row: row[0][0]),
        ("workloads", lambda row: str(len(row[1]))),
        ("meaning", lambda row: row[0][1]),
        ("such as", lambda row: ", ".join(escaped(item.key.workload) for item in row[1][:3])),
        ("what would resolve it", lambda row: escaped(row[1][0].resolve)),
        numbers=(1,),
    )


def _findings(report: WeeklyReport) -> Iterable[str]:
    yield from _section("Idle allocations", *(() if report.idle else (say.none_idle(report),)))
    if report.idle:
        yield from _table(
            report.idle,
            ("Pod", lambda item: escaped(item.subject.name)),
            ("class", lambda item: item.kind.replace("_", " ")),
            ("GPUs", lambda item: str(len(item.devices))),
            ("idle for", lambda item: ago(item.since, report.at) or say.UNKNOWN),
            ("GPU-hours so far", lambda item: say.gpu_hours(item.gpu_hours)),
            ("why", lambda item: escaped(item.summary)),
            numbers=(2, 3, 4),
        )
    yield from _section("Degraded GPUs", *(() if report.degraded else (say.none_degraded(report),)))
    if report.degraded:
        yield from _table(
            report.degraded,
            ("GPU", lambda item: escaped(short_uuid(item.subject.name))),
            ("Node", lambda item: escaped(item.node or say.UNKNOWN)),
            ("severity", lambda item: str(item.severity)),
            ("what", lambda item: escaped(f"{item.kind.replace('_', ' ')}: {item.summary}")),
            ("for", lambda item: ago(item.since, report.at) or say.UNKNOWN),
            ("do", lambda item: item.advice.replace("_", " ")),
        )
    if report.lost_gpu_hours_by_cause:
        yield from _table(
            report.lost_gpu_hours_by_cause.items(),
            ("lost by cause", lambda item: escaped(item[0].replace("_", " "))),
            ("GPU-hours", lambda item: say.gpu_hours(item[1])),
            numbers=(1,),
        )


def _actions(report: WeeklyReport) -> Iterable[str]:
    yield from _section("What was done", escaped(say.actions_line(report)))
    if report.actions:
        yield from _table(
            report.actions,
            ("target", lambda item: escaped(item.target)),
            ("action", lambda item: item.action.replace("_", " ")),
            ("GPUs", lambda item: str(item.gpus)),
            ("proposed", lambda item: f"{item.proposed_at:%m-%d %H:%M}"),
            ("became of it", lambda item: f"{say.BECAME[item.phase]}: {escaped(item.said)}"),
            (
                "GPU-hours released",
                lambda item: say.gpu_hours(item.released_gpu_hours) if item.released_gpu_hours else "",
            ),
            ("why", lambda item: escaped(item.reason)),
            numbers=(2, 5),
        )
    if report.detectors:
        yield from _table(
            report.detectors,
            ("detector", lambda item: escaped(item.detector.replace("_", " "))),
            ("right", lambda item: str(item.right)),
            ("wrong", lambda item: str(item.wrong)),
            (
                "precision, 95 % interval",
                lambda item: f"{say.percent(item.lower_ratio)} to {say.percent(item.upper_ratio)}",
            ),
            numbers=(1, 2),
        )


def _outcomes(report: WeeklyReport) -> Iterable[str]:
    yield from _section("What became of earlier advice", say.record(report.outcomes).sentence)
    if report.outcomes:
        yield from _table(
            report.outcomes,
            ("workload", lambda item: escaped(item.key.workload)),
            ("advised", lambda item: escaped(item.target.name)),
            ("predicted", lambda item: say.speed(item.predicted)),
            ("measured", lambda item: say.percent(item.measured_speed_ratio)),
            ("verdict", lambda item: say.OUTCOME[item.verdict] + (", out of memory" if item.out_of_memory else "")),
            ("saved", lambda item: say.money(item.saved_cost, report.currency) if item.applied_at else "not yet"),
            ("why", lambda item: escaped(item.reason)),
        )


def _limits(report: WeeklyReport) -> Iterable[str]:
    coverage = report.coverage
    yield from _section("Coverage and limits")
    yield (
        f"- {plural(coverage.devices, 'GPU')} seen, {coverage.devices_present} of them now; health unknown of "
        f"{coverage.health_unknown}, use unknown of {plural(coverage.idle_unknown, 'Pod')}."
    )
    yield f"- Allocated time with activity measured: {say.percent(report.coverage_ratio)}."
    for line in report.limits:
        yield f"- {escaped(line, code=True)}"
    gaps = other_gaps(report.gaps)
    for gap in gaps[:ROWS_SHOWN]:
        yield f"- {escaped(gap.what)}: {escaped(gap.detail)}"
    if len(gaps) > ROWS_SHOWN:
        yield f"- … and {len(gaps) - ROWS_SHOWN:,} more, see the JSON form"


def _name(item: Recommendation) -> str:
    return escaped(item.key.workload)


def escaped(text: str, *, code: bool = False) -> str:
    """Text that Markdown and chat dialects show literally. `code` keeps `code spans`."""
    flat = " ".join(text.split())
    safe = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # A zero-width space keeps @here and the like from notifying anybody.
    safe = _SPECIAL.sub(r"\\\1", safe).replace("@", "@\u200b")
    return (
        re.sub(r"\\`(\w+(?:\\[_-]\w+)*)\\`", lambda found: f"`{found[1].replace(chr(92), '')}`", safe) if code else safe
    )


def _table(
    items: Collection[T], *columns: tuple[str, Callable[[T], str]], numbers: Iterable[int] = ()
) -> Iterable[str]:
    """columns: heading, and the text of a cell. numbers: indices of the right-aligned columns."""
    right = set(numbers)
    yield f"| {' | '.join(heading for heading, _ in columns)} |"
    yield f"|{'|'.join('---:' if index in right else '---' for index in range(len(columns)))}|"
    for item in islice(items, ROWS_SHOWN):
        yield f"| {' | '.join(value(item) for _, value in columns)} |"
    yield ""
    if len(items) > ROWS_SHOWN:
        yield f"… and {len(items) - ROWS_SHOWN:,} more, see the CSV files or the JSON form"
        yield ""


def _section(title: str, *sentences: str) -> Iterable[str]:
    for line in (f"## {title}", *sentences):
        yield line
        yield ""
