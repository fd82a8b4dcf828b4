"""The weekly report as Markdown (GitHub's tables), and a summary short enough for a message."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from gpuwatch.model.sizing import Recommendation
from gpuwatch.model.weekly import WeeklyReport
from gpuwatch.report import weekly_words as say
from gpuwatch.report.sizing_tables import patch_yaml
from gpuwatch.report.tables import other_gaps
from gpuwatch.report.words import ago, plural, short_uuid

ROWS_SHOWN = 50  # a message of some 40 kB at most; the CSV and JSON forms have everything
CHANGES_SHOWN = 10  # with their YAML
_SUMMARY_CHANGES = 5

_SPECIAL = re.compile(r"([\\`*_\[\]|~$])")


def weekly_markdown(report: WeeklyReport) -> str:
    """The whole report but the list of all workloads. Names are escaped: they make neither markup nor mentions."""
    return "\n".join(_lines(report)) + "\n"


def weekly_summary(report: WeeklyReport) -> str:
    """At most 25 lines of Markdown that read well as plain text: for a chat or the top of an e-mail."""
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
    yield f"# GPUs in the {say.period(report)} of {say.span(report.start, report.end)}"
    yield ""
    yield f"From {escaped(report.source)}, written {report.at:%Y-%m-%d %H:%M} {report.at.tzname() or ''}.".replace(
        " .", "."
    )
    yield ""
    yield " ".join(say.headline(report))
    yield ""
    yield say.basis(report)
    yield ""
    yield from _table(
        ("", "now", "", f"against the {say.period(report)} before"),
        (
            (
                item.title,
                f"**{item.value}**",
                item.detail,
                f"{item.trend.arrow} {item.trend.judged}" if item.trend else "",
            )
            for item in say.figures(report)
        ),
        3,
    )
    parts = say.parts(report.fleet)
    if parts:
        yield "## Where the GPU-hours went"
        yield ""
        total = sum(part.gpu_hours or 0.0 for part in parts)
        yield from _table(
            ("", "GPU-hours", "share"),
            (
                (
                    part.label,
                    say.gpu_hours(part.gpu_hours),
                    say.percent(part.gpu_hours / total if total > 0 and part.gpu_hours is not None else None),
                )
                for part in parts
            ),
            len(parts),
            numbers=(1, 2),
        )
    yield from _changes(report)
    if report.teams:
        yield "## Teams"
        yield ""
        yield from _table(
            (
                "team",
                "GPU-hours allocated",
                "busy",
                "unknown",
                f"cost in the {when}",
                "of it idle",
                f"would have been saved in the {when}",
                "projected saving, a week",
                "changes",
                "idle",
            ),
            (
                (
                    escaped(team.namespace),
                    say.gpu_hours(team.use.allocated_gpu_hours),
                    say.percent(say.busy_ratio(team.use)),
                    say.gpu_hours(team.use.unknown_gpu_hours),
                    say.money(team.use.cost, currency),
                    say.money(team.use.wasted_cost, currency),
                    say.money(team.use.saving, currency),
                    say.money(team.use.projected_saving_per_week, currency),
                    str(team.recommendations),
                    str(team.idle_allocations),
                )
                for team in report.teams
            ),
            len(report.teams),
            numbers=range(1, 10),
        )
    yield from _abstentions(report)
    yield from _findings(report)
    yield from _actions(report)
    yield from _outcomes(report)
    yield from _limits(report)


def _changes(report: WeeklyReport) -> Iterable[str]:
    yield "## The changes worth most"
    yield ""
    if not report.top_changes:
        yield "No change is advised." if report.workloads else "Not known: no workload was profiled."
        yield ""
        return
    uses = {use.recommendation.key: use for use in report.workloads if use.recommendation}
    yield from _table(
        (
            "workload",
            "from",
            "to",
            "speed, of now",
            f"would have saved in the {say.period(report)}, of its cost",
            "projected saving, a week",
            "basis",
        ),
        (
            (
                _name(item),
                escaped(item.current.target.name),
                f"**{escaped(item.chosen.target.name)}**",
                say.speed(item.chosen.speed),
                say.saved(uses.get(item.key), report.currency),
                say.saving(item.chosen, report.currency),
                f"{say.TIER[item.chosen.speed.tier]}, {say.percent(item.confidence_ratio)} sure",
            )
            for item in report.top_changes
        ),
        len(report.top_changes),
    )
    for item in report.top_changes[:CHANGES_SHOWN]:
        yield f"### {escaped(say.workload_name(item.key))}"
        yield ""
        yield " ".join(escaped(line) for line in (item.reason, *item.caveats))
        yield ""
        text = patch_yaml(item.change)
        # The fence is longer than any run of backticks within, so that no name can close it.
        fence = "`" * max(3, max(map(len, re.findall(r"`+", text)), default=0) + 1)
        yield f"{fence}yaml\n{text}{fence}"
        yield ""


def _abstentions(report: WeeklyReport) -> Iterable[str]:
    found = [item.abstention for item in report.workloads if item.abstention]
    if not found:
        return
    yield "## Left as they are"
    yield ""
    kinds = [
        (title, meaning, [item for item in found if item.kind is kind])
        for kind, (title, meaning) in say.ABSTAINED.items()
    ]
    rows = [
        (
            title,
            str(len(items)),
            meaning,
            ", ".join(escaped(item.key.workload) for item in items[:3]),
            escaped(items[0].resolve),
        )
        for title, meaning, items in kinds
        if items
    ]
    yield from _table(
        ("reason", "workloads", "meaning", "such as", "what would resolve it"), rows, len(rows), numbers=(1,)
    )


def _findings(report: WeeklyReport) -> Iterable[str]:
    yield "## Idle allocations"
    yield ""
    if report.idle:
        yield from _table(
            ("Pod", "class", "GPUs", "idle for", "GPU-hours so far", "why"),
            (
                (
                    escaped(item.subject.name),
                    item.kind.replace("_", " "),
                    str(len(item.devices)),
                    ago(item.since, report.at) or say.UNKNOWN,
                    say.gpu_hours(item.gpu_hours),
                    escaped(item.summary),
                )
                for item in report.idle
            ),
            len(report.idle),
            numbers=(2, 3, 4),
        )
    else:
        yield say.none_idle(report)
        yield ""
    yield "## Degraded GPUs"
    yield ""
    if report.degraded:
        yield from _table(
            ("GPU", "Node", "severity", "what", "for", "do"),
            (
                (
                    escaped(short_uuid(item.subject.name)),
                    escaped(item.node or say.UNKNOWN),
                    str(item.severity),
                    escaped(f"{item.kind.replace('_', ' ')}: {item.summary}"),
                    ago(item.since, report.at) or say.UNKNOWN,
                    item.advice.replace("_", " "),
                )
                for item in report.degraded
            ),
            len(report.degraded),
        )
    else:
        yield say.none_degraded(report)
        yield ""
    if report.lost_gpu_hours_by_cause:
        yield from _table(
            ("lost by cause", "GPU-hours"),
            (
                (escaped(cause.replace("_", " ")), say.gpu_hours(lost))
                for cause, lost in report.lost_gpu_hours_by_cause.items()
            ),
            len(report.lost_gpu_hours_by_cause),
            numbers=(1,),
        )


def _actions(report: WeeklyReport) -> Iterable[str]:
    yield "## What was done"
    yield ""
    yield escaped(say.actions_line(report))
    yield ""
    if report.actions:
        yield from _table(
            ("target", "action", "GPUs", "proposed", "became of it", "GPU-hours released", "why"),
            (
                (
                    escaped(item.target),
                    item.action.replace("_", " "),
                    str(item.gpus),
                    f"{item.proposed_at:%m-%d %H:%M}",
                    f"{say.BECAME[item.phase]}: {escaped(item.said)}",
                    say.gpu_hours(item.released_gpu_hours) if item.released_gpu_hours else "",
                    escaped(item.reason),
                )
                for item in report.actions
            ),
            len(report.actions),
            numbers=(2, 5),
        )
    if report.detectors:
        yield from _table(
            ("detector", "right", "wrong", "precision, 95 % interval"),
            (
                (
                    escaped(item.detector.replace("_", " ")),
                    str(item.right),
                    str(item.wrong),
                    f"{say.percent(item.lower_ratio)} to {say.percent(item.upper_ratio)}",
                )
                for item in report.detectors
            ),
            len(report.detectors),
            numbers=(1, 2),
        )


def _outcomes(report: WeeklyReport) -> Iterable[str]:
    yield "## What became of earlier advice"
    yield ""
    yield say.record(report.outcomes).sentence
    yield ""
    if report.outcomes:
        yield from _table(
            ("workload", "advised", "predicted", "measured", "verdict", "saved", "why"),
            (
                (
                    escaped(item.key.workload),
                    escaped(item.target.name),
                    say.speed(item.predicted),
                    say.percent(item.measured_speed_ratio),
                    say.OUTCOME[item.verdict] + (", out of memory" if item.out_of_memory else ""),
                    say.money(item.saved_cost, report.currency) if item.applied_at else "not yet",
                    escaped(item.reason),
                )
                for item in report.outcomes
            ),
            len(report.outcomes),
        )


def _limits(report: WeeklyReport) -> Iterable[str]:
    coverage = report.coverage
    yield "## Coverage and limits"
    yield ""
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
    """Text that Markdown, and the chats that speak something like it, show as it is. `code` keeps `code spans`."""
    flat = " ".join(text.split())
    safe = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # A zero-width space keeps @here and its like from calling anybody.
    safe = _SPECIAL.sub(r"\\\1", safe).replace("@", "@\u200b")
    return (
        re.sub(r"\\`(\w+(?:\\[_-]\w+)*)\\`", lambda found: f"`{found[1].replace(chr(92), '')}`", safe) if code else safe
    )


def _table(
    head: Sequence[str], rows: Iterable[Sequence[str]], total: int, *, numbers: Iterable[int] = ()
) -> Iterable[str]:
    right = set(numbers)
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join('---:' if index in right else '---' for index in range(len(head)))}|"
    for index, row in enumerate(rows):
        if index == ROWS_SHOWN:
            break
        yield f"| {' | '.join(row)} |"
    yield ""
    if total > ROWS_SHOWN:
        yield f"… and {total - ROWS_SHOWN:,} more, see the CSV files or the JSON form"
        yield ""
