"""`recommend`, `mig-plan` and `report`. Each returns its exit code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markdown import Markdown

from gpuwatch.account.money import HOURS_PER_WEEK
from gpuwatch.app.cli.remediation_commands import kept_of
from gpuwatch.app.cli.scope import check_namespace, shown_name
from gpuwatch.app.cli.terminal import output as console
from gpuwatch.app.cli.terminal import print_answer, print_listing, remark, write
from gpuwatch.app.errors import OptionsError, SourceError
from gpuwatch.app.exit_code import ExitCode
from gpuwatch.app.ledger import hours_of
from gpuwatch.app.sizing import Sized, price_list, size
from gpuwatch.app.sources import Opened, checked_sources
from gpuwatch.app.weekly_report import report_files, week_of
from gpuwatch.facts.model.decision import Verdict
from gpuwatch.facts.model.delivery import Delivery, DeliveryState, Sending
from gpuwatch.facts.model.sizing import Abstention, Outcome, Recommendation
from gpuwatch.facts.model.telemetry import Gap
from gpuwatch.say.deliver.deliver import (
    DeliveryContext,
    Progress,
    Sent,
    deliver,
    over,
    read_report,
    report_id,
    with_new_destinations,
    write_report,
)
from gpuwatch.say.deliver.policy import DeliveryPolicy
from gpuwatch.say.machine import to_json, to_yaml
from gpuwatch.say.sizing_tables import mig_plan_tables, patch_yaml, recommend_tables, workload_detail
from gpuwatch.say.tables import gap_tables
from gpuwatch.say.weekly_machine import advice_columns, weekly_tables
from gpuwatch.say.weekly_pages import weekly_markdown, weekly_summary
from gpuwatch.size.mig_fleet import slice_demands
from gpuwatch.size.mig_plan import plan_mig
from gpuwatch.sources.store.store import Store

VERSION = 1
"""Version of the JSON of `recommend`. Fields may be added; a removal or a change of meaning raises it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """What `recommend -o json` prints."""

    version: int
    at: datetime
    until: datetime  # profiles hold windows up to here
    currency: str  # of all money in it, ISO 4217
    recommendations: tuple[Recommendation, ...]
    abstentions: tuple[Abstention, ...]
    outcomes: tuple[Outcome, ...]
    gaps: tuple[Gap, ...]


def run_recommend(
    form: str,
    output_file: Path | None,
    rows: int,
    namespace: str,
    workload: str | None,
    state: Path | None,
    days: float,
    **options: Any,
) -> int:
    opened, sized = _sized(state, timedelta(days=days), options)
    check_namespace(namespace, sized.snapshot)

    def wanted(item: Recommendation | Abstention | Outcome) -> bool:
        key = item.key
        named = workload is None or f"/{key.workload}".endswith(f"/{workload}")
        return named and namespace in ("", key.namespace)

    advice = tuple(item for item in sized.recommendations if wanted(item))
    abstained = tuple(item for item in sized.abstentions if wanted(item))
    if workload is not None and not advice and not abstained:
        known = sorted({key.workload for key in sized.book.profiles})
        raise SourceError(
            f"no profile of {workload!r}" + (f" in {namespace}" if namespace else "")
            + f"; {len(known)} workloads are known" + (f", such as {', '.join(known[:3])}" if known else "")
        )  # fmt: skip
    answer = Advised(
        version=VERSION,
        at=opened.at,
        until=sized.book.until,
        currency=sized.currency,
        recommendations=advice,
        abstentions=abstained,
        outcomes=tuple(item for item in sized.outcomes if wanted(item)),
        gaps=(*sized.snapshot.gaps, *sized.gaps),
    )
    if form == "patch":
        write("---\n".join(f"# {item.reason}\n{patch_yaml(item.change)}" for item in advice))
        return _code(sized)
    print_listing(
        answer,
        form,
        lambda: _advice_tables(answer, rows, detail=workload is not None, wide=form == "wide"),
        (shown_name(f"workload/{item.key.workload}", namespace, sized.snapshot.cluster) for item in advice),
        advice_columns(),
        advice,
        output_file,
    )
    return _code(sized)


def _advice_tables(answer: Advised, rows: int, *, detail: bool, wide: bool) -> RenderableType:
    both: list[Recommendation | Abstention] = [*answer.recommendations, *answer.abstentions]
    parts: list[RenderableType] = (
        [workload_detail(item) for item in both]
        if detail
        else [recommend_tables(answer.recommendations, answer.abstentions, rows=rows, wide=wide)]
    )
    return Group(*parts, *gap_tables(answer.gaps, wide=wide))


def run_mig_plan(form: str, rows: int, state: Path | None, days: float, **options: Any) -> int:
    opened, sized = _sized(state, timedelta(days=days), options)
    cluster, devices = sized.snapshot.cluster, sized.snapshot.devices
    degraded = {name for item in sized.analysis.findings if item.verdict is Verdict.DEGRADED for name in item.devices}
    demands = slice_demands(sized.recommendations, cluster, devices)
    plan = plan_mig(demands, cluster, devices, opened.settings.mig_plan, opened.at, avoid=degraded)
    gaps = (*sized.snapshot.gaps, *sized.gaps)
    if form == "mig-parted":
        write(to_yaml(dict(plan.mig_parted)))
    else:
        wide = form == "wide"
        prices, nodes = price_list(opened.settings), {node.name: node for node in cluster.nodes}
        places = {device.uuid: nodes.get(device.node or "") for device in devices}
        freed = [node for name in plan.freed if (node := places.get(name)) is not None]
        paid = [prices.of_node(node).price_per_gpu_hour for node in freed]
        known = [price for price in paid if price is not None]
        gain = HOURS_PER_WEEK * sum(known) if len(known) == len(plan.freed) else None
        told = mig_plan_tables(plan, rows=rows, wide=wide, gain_per_week=gain, currency=prices.currency)
        tables = Group(told, *gap_tables(gaps, wide=wide))
        print_answer(plan, form, lambda: tables)
    return _code(sized)


def run_report(
    form: str,
    start: datetime | None,
    end: datetime | None,
    output_dir: Path,
    send: bool,
    state: Path | None,
    **options: Any,
) -> int:
    """The report of (start, end], by default of the seven days up to --at."""
    if end is not None:
        if options["at"] is not None and options["at"] != end:
            raise OptionsError("--to and --at are the same thing here: give one of them")
        options["at"] = end
    if start is not None and end is not None and start >= end:
        raise OptionsError(f"--from {start:%Y-%m-%dT%H:%MZ} is not before --to {end:%Y-%m-%dT%H:%MZ}")
    opened = checked_sources(options)
    begin = start or opened.at - timedelta(days=7)
    if begin >= opened.at:
        raise SourceError(f"--from {begin:%Y-%m-%dT%H:%MZ} is not before {opened.at:%Y-%m-%dT%H:%MZ}, the report's end")
    length = opened.at - begin
    settings = opened.settings
    sized = size(opened, state or settings.state, length)
    hours = hours_of(replace(opened, snapshot=sized.snapshot), length, state or settings.state, trend=True)
    kept, unread = kept_of(opened, options)
    report = week_of(opened, sized, hours, length, remediations=kept[0] if kept else None, gaps=unread)
    files = report_files(report)
    if form == "parquet":
        from gpuwatch.say.frames import to_parquet

        files |= {f"{name}.parquet": to_parquet(*table) for name, table in weekly_tables(report).items()}

    tell = partial(remark, style="dim")
    title = f"GPUs from {report.start:%Y-%m-%d} to {report.end:%Y-%m-%d}"
    summary = weekly_summary(report)
    name = report_id(files, title, summary)
    written = output_dir / name / "report.html"
    write_report(written.parent, files)
    sent: tuple[Delivery, ...] = ()
    if send:
        sending = Sending(id=name, title=title, text=summary, at=opened.at, report=True)
        sent = _sent(sending, files, settings.delivery, state or settings.state, output_dir, tell)
    if form == "json":
        write(to_json(report) + "\n")
    elif form == "markdown":
        write(weekly_markdown(report))
    else:
        out = console()
        out.print(Markdown(summary))
        out.print(f"\nThe report: {written}", markup=False, soft_wrap=True)
    failed = any(item.state is not DeliveryState.SENT for item in sent)
    return ExitCode.FAILED if failed or not report.rows else ExitCode.OK


def _sent(
    sending: Sending,
    files: Mapping[str, bytes],
    policy: DeliveryPolicy,
    state: Path | None,
    output_dir: Path,
    tell: Progress,
) -> tuple[Delivery, ...]:
    """Sends the report, after those in the folder that earlier runs could not send. What was sent is noted in the
    state, or without one in a file in the folder."""
    sent = Sent(lambda: Store.open(state or output_dir / ".sent"))
    context = DeliveryContext()
    for each in sent.all().values():
        earlier = read_report(output_dir / each.id) if each.report and each.id != sending.id else {}
        waits = {item.destination for item in each.deliveries if not over(item, policy)}
        if earlier and waits:
            done = deliver(each, earlier, policy, sent, tell, context)
            _complain([item for item in done if item.destination in waits])
    known = with_new_destinations(sent.get(sending.id) or sending, policy)
    deliveries = deliver(sent.note(known), files, policy, sent, tell)
    _complain(deliveries)
    return deliveries


def _complain(deliveries: Sequence[Delivery]) -> None:
    for item in deliveries:
        if item.state is DeliveryState.SENT:
            remark(f"sent to {item.destination}", "green")
        else:
            tries = f"{item.attempts} tries so far; the next run tries again"
            remark(f"not sent to {item.destination}: {item.error} ({tries})", "red")


def _sized(state: Path | None, history: timedelta, options: Mapping[str, Any]) -> tuple[Opened, Sized]:
    opened = checked_sources(options)
    return opened, size(opened, state or opened.settings.state, history)


def _code(sized: Sized) -> int:
    """A failure if nothing was profiled: that does not mean a fleet without waste."""
    return ExitCode.OK if sized.book.profiles or sized.book.power else ExitCode.FAILED
