"""The plan for a terminal: what would be done, when, why, what stops it, what it costs, and how to stop it. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.cluster import Cluster, Workload
from gpuwatch.facts.model.decision import (
    ActionKind,
    Analysis,
    BudgetUse,
    Finding,
    Mode,
    Plan,
    PlanItem,
    Score,
    Subject,
    SubjectKind,
)
from gpuwatch.say.layout import FoldedName, cut, new_grid, new_table, whole_or_line
from gpuwatch.say.words import duration, listed, plural, short_uuid

_TAINT, _MOVE = ActionKind.TAINT_NODE, ActionKind.EVICT_GANG
_NAMES = 3
"""Most Pods, Nodes or findings in a line; the JSON has all."""

_WHAT_HAPPENS = {
    Mode.OBSERVE: ("advisory (mode observe)", "yellow"),
    Mode.SUGGEST: ("done once a person approves it (mode suggest)", "yellow"),
    Mode.ENFORCE: ("owners are notified, and it is done unless one objects (mode enforce)", "bold cyan"),
}


def plan_summary(analysis: Analysis, rows: int, *, wide: bool = True) -> list[RenderableType]:
    """A row for each candidate, the best first; of two lines where it is not wide."""
    plan = analysis.plan
    if not plan.items:
        return [*_brake(plan), Text.from_markup("[bold]Plan[/]  nothing to do\n")]
    watched = all(item.mode is Mode.OBSERVE for item in plan.items)
    table = new_table(_title(plan), "verdict", "action", "GPUs", "when", *(() if watched else ("mode",)), "why")
    for item in plan.items[:rows]:
        why = _for_it(item, wide).split("\n") if item.admitted else _against(item)
        table.add_row(
            Text("yes", style="green") if item.admitted else Text("no", style="red"),
            Group(_action(item), FoldedName(called(item.candidate.target))),
            str(item.candidate.gpus),
            "now" if item.timing.at is None else f"in {_until(item.timing.at, analysis.at)}",
            *(() if watched else (str(item.mode),)),
            Group(
                *(whole_or_line(line, wide) for line in (why if wide else why[: 2 if item.admitted else 1])),
                *(() if item.admitted else (Text(item.helps, style="bold"),)),
            ),
        )
    return [*_brake(plan), table, *cut(len(plan.items), rows), Text()]


def plan_parts(analysis: Analysis, rows: int) -> list[RenderableType]:
    """Admitted items in full, refused ones with all reasons, and the rest of the budgets."""
    plan = analysis.plan
    admitted = [item for item in plan.items if item.admitted]
    refused = [item for item in plan.items if not item.admitted]
    if not plan.items:
        return [*plan_summary(analysis, rows), *_budgets(plan, rows)]
    parts: list[RenderableType] = _brake(plan)
    parts += [Text(_title(plan), style="bold"), Text()]
    findings = {item.id: item for item in analysis.findings}
    for number, item in enumerate(admitted[:rows], 1):
        parts += [_head(number, item), Padding(item_lines(item, findings, analysis.cluster, analysis.at), (0, 0, 0, 3))]
        parts.append(Text())
    parts += cut(len(admitted), rows)
    if refused:
        table = new_table("Refused", "action", "target", "GPUs", "worth", "why not, and what helps")
        for item in refused[:rows]:
            table.add_row(
                _action(item),
                FoldedName(called(item.candidate.target)),
                str(item.candidate.gpus),
                f"{item.score.value:+.4f}",
                Group(*map(Text, _against(item)), Text(item.helps, style="bold")),
            )
        parts += [table, *cut(len(refused), rows), Text()]
    parts += _budgets(plan, rows)
    if admitted and any(item.mode is not Mode.OBSERVE for item in admitted):
        parts += [Text("Stop everything: gpuwatch pause --reason WHY; go on with gpuwatch resume."), Text()]
    return parts


def item_lines(
    item: PlanItem, findings: Mapping[str, Finding], cluster: Cluster, at: datetime, *, why: bool = True
) -> RenderableType:
    """why: with the findings' summaries."""
    candidate = item.candidate
    grid = new_grid()
    for label, text in _lines(item, findings, at):
        if label == "why" and not why and not item.candidate.reason:
            continue
        grid.add_row(label, escape(text))
    if candidate.waiter:
        grid.add_row("for", escape(f"Pod {candidate.waiter}, which waits and could be scheduled with what this frees"))
    for refusal in item.refusals:
        grid.add_row("stops it", escape(f"{refusal.guard}: {refusal.reason}"), style="red")
    if item.helps:
        grid.add_row("what helps", escape(item.helps))
    command = _annotate(item, cluster)
    if command:
        grid.add_row("keep off", escape(f"{command} {keys.OPT_OUT}=true\nor for a while: {keys.SNOOZE_UNTIL}=TIME"))
    return grid


def _lines(item: PlanItem, findings: Mapping[str, Finding], at: datetime) -> Iterator[tuple[str, str]]:
    candidate = item.candidate
    yield "why", _why(item, findings)
    yield "concerns", _concerns(item)
    yield "worth", worth(item.score)
    yield from worth_bases(item.score)
    then = item.timing.at
    when = "" if then is None else f"{f'{then:%a %Y-%m-%d %H:%M %Z}'.rstrip()}, in {_until(then, at)}. "
    yield "when", f"{when}{item.timing.reason or ('Now.' if then is None else '')}".rstrip()
    if candidate.relief_gpus is not None:
        yield "relieves", f"others, by {candidate.relief_gpus:.1f} GPUs' worth of work"
    yield "mode", f"{item.mode}. {item.mode_reason}".rstrip()


def worth(score: Score) -> str:
    gained = score.gained_gpu_hours * score.confidence_ratio
    return (
        f"saves {gained:,.1f} GPU-hours in {score.horizon_hours:g} h ({score.gained_gpu_hours:,.1f} × confidence "
        f"{score.confidence_ratio:.2f}), costs {score.disrupted_gpu_hours:,.1f}; the pool offers "
        f"{score.pool_gpu_hours:,.0f}: score {score.value:+.4f}"
    )


def worth_bases(score: Score) -> Iterator[tuple[str, str]]:
    """Where its two numbers come from; an older score has no basis."""
    if score.gain_basis:
        yield "saves", score.gain_basis
    if score.harm_basis:
        yield "costs", score.harm_basis


def _why(item: PlanItem, findings: Mapping[str, Finding]) -> str:
    found = [findings[name] for name in item.candidate.findings if name in findings]
    said = [f"{each.kind}: {each.summary} (confidence {each.confidence_ratio:.2f})" for each in found[:_NAMES]]
    if item.candidate.reason:
        said.insert(0, item.candidate.reason)
    if len(found) > _NAMES:
        said.append(f"and {plural(len(found) - _NAMES, 'more finding')}")
    return "\n".join(said) or ", ".join(item.candidate.findings)


def _concerns(item: PlanItem) -> str:
    candidate = item.candidate
    models = f" × {candidate.gpu_model}" if candidate.gpu_model else ""
    parts = [f"{candidate.gpus}{models or ' GPUs'}" + (f" of pool {candidate.pool}" if candidate.pool else "")]
    for noun, names in (("Node", candidate.nodes), ("Pod", candidate.pods)):
        if names:
            parts.append(f"{plural(len(names), noun)}: {listed(names, _NAMES)}")
    return "\n".join(parts)


def _annotate(item: PlanItem, cluster: Cluster) -> str:
    """The command by which an owner exempts the object; '' if no object is known."""
    candidate = item.candidate
    if candidate.action is ActionKind.TAINT_NODE:
        return f"kubectl annotate node {candidate.nodes[0]}" if candidate.nodes else ""
    mine = set(candidate.pods)
    owners = {pod.workload for pod in cluster.pods if pod.ref in mine}
    owner = next((each for each in cluster.workloads if each.id in owners), None)
    if owner is None:
        return ""
    return f"kubectl -n {owner.namespace} annotate {kubectl_kind(owner)} {owner.name}"


def kubectl_kind(workload: Workload) -> str:
    """Its kind as kubectl takes it, such as deployment.apps."""
    group, kind = workload.key
    return f"{kind.lower()}.{group}" if group else kind.lower()


def _head(number: int, item: PlanItem) -> Text:
    told, style = _WHAT_HAPPENS[item.mode]
    head = Text(f"{number}. {_action(item)} {called(item.candidate.target)}", style="bold green")
    head.append(f": {told}", style=style)
    return head


def _title(plan: Plan) -> str:
    admitted = sum(1 for item in plan.items if item.admitted)
    title = f"Plan: {plural(admitted, 'action')} worth doing, {len(plan.items) - admitted} refused"
    if all(item.mode is Mode.OBSERVE for item in plan.items):
        title += " (mode observe: nothing is done)"
    return title


def _brake(plan: Plan) -> list[RenderableType]:
    return [Text.from_markup(f"[bold red]Brake:[/] {escape(plan.brake)}\n")] if plan.brake else []


def _budgets(plan: Plan, rows: int) -> list[RenderableType]:
    """Budgets in use as a table; the others in a line."""
    asked: Counter[tuple[str, ActionKind]] = Counter()
    for item in plan.items:
        if item.admitted:
            candidate = item.candidate
            more = candidate.gpus if candidate.action is ActionKind.EVICT_GANG else len(candidate.nodes)
            asked[f"pool/{candidate.pool or 'default'}", candidate.action] += more
            asked[f"model/{candidate.gpu_model}", candidate.action] += more
    used = [
        use
        for use in plan.budgets
        if use.out_nodes or use.moving_gpus or asked[use.scope, _TAINT] or asked[use.scope, _MOVE]
    ]
    free = [use for use in plan.budgets if use not in used]
    parts: list[RenderableType] = []
    if used:
        table = new_table(
            "Budgets: Nodes out of service, and GPUs that moves disturb (+: by this plan, at most)",
            *("scope", "Nodes out", "limit", "of", "GPUs moved", "limit", "what"),
        )
        for use in used[:rows]:
            table.add_row(*_budget_row(use, asked[use.scope, _TAINT], asked[use.scope, _MOVE]))
        parts += [table, *cut(len(used), rows)]
    if free:
        smallest = min(free, key=lambda use: (use.limit_nodes, use.scope))
        noun = "budget has" if len(free) == 1 else "budgets have"
        parts.append(
            Text(
                f"{len(free)} {'other ' if used else ''}{noun} nothing on them; the smallest allows "
                f"{smallest.limit_nodes} of {plural(smallest.total_nodes, 'Node')} ({smallest.scope}).",
                style="dim",
            )
        )
    return [*parts, Text()] if parts else []


def _budget_row(use: BudgetUse, nodes: int, gpus: int) -> Iterable[RenderableType]:
    yield FoldedName(use.scope)
    yield Text(f"{use.out_nodes}{f' + {nodes}' * (nodes > 0)}", style="bold red" * (use.out_nodes >= use.limit_nodes))
    yield str(use.limit_nodes)
    yield str(use.total_nodes)
    yield f"{use.moving_gpus}{f' + {gpus}' * (gpus > 0)}"
    yield str(use.limit_gpus)
    yield escape("; ".join(use.reasons[:_NAMES]) + (" …" if len(use.reasons) > _NAMES else ""))


def _action(item: PlanItem) -> str:
    return item.candidate.action.replace("_", " ")


def called(subject: Subject) -> str:
    return short_uuid(subject.name) if subject.kind is SubjectKind.DEVICE else subject.name


def short_worth(item: PlanItem) -> str:
    score = item.score
    return (
        f"saves {score.gained_gpu_hours * score.confidence_ratio:,.0f}, costs {score.disrupted_gpu_hours:,.0f} "
        f"GPU-hours in {score.horizon_hours:g} h"
    )


def _for_it(item: PlanItem, wide: bool) -> str:
    """What it is worth, for whom, and why if no finding says so."""
    waiter = f"; Pod {item.candidate.waiter} waits for it" if item.candidate.waiter else ""
    basis = item.score.gain_basis if wide else ""
    return "\n".join(filter(None, (item.candidate.reason, f"{short_worth(item)}{waiter}", basis)))


def _against(item: PlanItem) -> list[str]:
    return [f"{refusal.guard}: {refusal.reason}" for refusal in item.refusals]


def _until(then: datetime, now: datetime) -> str:
    return duration(max((then - now).total_seconds(), 0.0))
