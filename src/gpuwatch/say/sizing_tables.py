"""Right-sizing and the MIG plan as tables for a terminal. Pure: returns what rich renders, prints nothing."""

from collections.abc import Iterable, Sequence

import msgspec
import yaml
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from gpuwatch.facts.model.sizing import Abstention, Change, MemoryNeed, MigPlan, Option, Recommendation, by_worth
from gpuwatch.facts.model.workload_profile import WorkloadKey
from gpuwatch.say.layout import FoldedName, OneLine, cut, new_grid, new_table, whole_or_line
from gpuwatch.say.weekly_words import ABSTAINED, PROJECTED, TIER, abstained, gpu_hours, money, percent, saving, speed
from gpuwatch.say.words import listed, plural, quantity, short_uuid

_EXAMPLES = 3


def patch_yaml(change: Change) -> str:
    """The change as a YAML document of the owner's kind: the differing fields, and the names that identify them.

    Prerequisites are comments above it. null removes a key (strategic-merge patch).
    """
    said = [*(f"First: {line}" for line in change.prerequisites), *([change.note] if change.note else [])]
    # A line break within a name must not end the comment.
    comments = "".join(f"# {' '.join(line.split())}\n" for line in said)
    patch = msgspec.to_builtins(dict(change.patch), str_keys=True)
    metadata = {**(patch.pop("metadata", None) or {}), "name": change.name}
    if change.namespace:
        metadata["namespace"] = change.namespace
    return comments + _yaml({"apiVersion": change.api_version, "kind": change.kind, "metadata": metadata, **patch})


def recommend_tables(
    recommendations: Sequence[Recommendation], abstentions: Sequence[Abstention], *, rows: int = 30, wide: bool = True
) -> RenderableType:
    """One line per workload that should change, most money first, then why the others stay as they are."""
    ordered = sorted(recommendations, key=by_worth)
    parts: list[RenderableType] = []
    if ordered:
        parts += [_advised(ordered, rows, wide), *cut(len(ordered), rows), Text(PROJECTED, style="dim"), Text()]
    else:
        looked = "no workload was profiled" if not abstentions else f"none for {plural(len(abstentions), 'workload')}"
        parts.append(Text.from_markup(f"[bold]Changes[/]  {looked}\n"))
    if abstentions:
        parts.append(_abstained(abstentions, wide))
    return Group(*parts)


def workload_detail(item: Recommendation | Abstention) -> RenderableType:
    """One workload: the advice or why there is none, every option with its drawbacks, its memory, and the change as
    YAML."""
    grid = new_grid()
    grid.add_row("Workload", FoldedName(f"{item.key.workload}, container {item.key.container}"))
    if isinstance(item, Recommendation):
        for name, value in _advice_facts(item):
            grid.add_row(name, value)
    else:
        title, meaning = ABSTAINED[item.kind]
        if item.current is not None:
            grid.add_row("Now", escape(item.current.target.name))
        grid.add_row("Advice", f"[yellow]none[/] · {title}: {meaning}")
        grid.add_row("Why", escape(item.reason))
        grid.add_row("To resolve", escape(item.resolve))
        if item.nearest is not None:
            grid.add_row("Nearest", escape(f"{item.nearest.target.name}, {speed(item.nearest.speed)} of today's speed"))
    if item.memory is not None:
        grid.add_row("Memory", escape(_memory(item.memory)))
    parts: list[RenderableType] = [grid, Text()]
    if item.options:
        parts += [_options(item), Text()]
    if isinstance(item, Recommendation):
        # Without colour, for copying. rich crops text that it may not wrap, so a name longer than the line is folded;
        # `patch_yaml` has it whole.
        parts += [Text("The change", style="bold"), Text(patch_yaml(item.change), overflow="fold")]
    return Group(*parts)


def mig_plan_tables(
    plan: MigPlan, *, rows: int = 30, wide: bool = True, gain_per_week: float | None = None, currency: str = ""
) -> RenderableType:
    """What it gains, GPUs needed before and after, the new partitions in the order of draining, and their files.
    gain_per_week: money for the GPUs that it frees; None where a price is not known."""
    grid = new_grid()
    grid.add_row(
        "GPUs", f"{plan.gpus_before} now → {plan.gpus_after} after; no packing needs fewer than {plan.lower_bound_gpus}"
    )
    if plan.freed:
        grid.add_row("Freed", escape(listed([short_uuid(name) for name in plan.freed], rows)))
    if plan.freed_without_host:
        names = escape(listed([short_uuid(name) for name in plan.freed_without_host], rows))
        grid.add_row("Emptied", f"{names}: their Nodes have no CPU or memory for a further Pod")
    parts: list[RenderableType] = [_gain(plan, gain_per_week, currency), grid, Text()]
    if plan.changes:
        table = new_table(
            f"GPUs to cut anew ({len(plan.changes)}), Nodes in the order of draining",
            "Node", "GPU", "now", "after", "Pods that leave first",
        )  # fmt: skip
        for change in plan.changes[:rows]:
            table.add_row(
                FoldedName(change.node),
                FoldedName(f"{change.index} {short_uuid(change.device)}"),
                _slices(change.before) if change.before else Text("MIG off or unknown", style="dim"),
                _slices(change.after),
                Group(*map(FoldedName, change.displaced)) if change.displaced else Text("none", style="dim"),
            )
        parts += [table, *cut(len(plan.changes), rows), Text()]
    if plan.moved:
        names = listed(plan.moved, rows)
        parts += [Text(f"Move although they need no change ({len(plan.moved)}): {names}", overflow="fold"), Text()]
    if plan.unplaced:
        parts.append(Text(f"Left out ({len(plan.unplaced)})", style="bold"))
        parts += [Text(f"  {line}", style="yellow", overflow="fold") for line in plan.unplaced[:rows]]
        parts += [*cut(len(plan.unplaced), rows), Text()]
    if plan.node_labels:
        labels = new_table("Node labels to set", "Node", "nvidia.com/mig.config")
        for node, value in list(plan.node_labels.items())[:rows]:
            labels.add_row(FoldedName(node), FoldedName(value))
        parts += [labels, *cut(len(plan.node_labels), rows), Text()]
    if plan.mig_parted and not wide:
        parts.append(Text("Configuration for mig-parted: -o mig-parted", style="dim"))
    elif plan.mig_parted:
        parts += [Text("Configuration for mig-parted", style="bold"), Text(_yaml(plan.mig_parted), overflow="fold")]
    return Group(*parts)


def _gain(plan: MigPlan, gain_per_week: float | None, currency: str) -> Text:
    if not plan.changes:
        return Text("Nothing to cut: the layouts of today need no more GPUs.\n", style="bold green")
    leave = len({ref for change in plan.changes for ref in change.displaced} | {*plan.moved})
    costs = f"{plural(len(plan.changes), 'GPU')} {'is' if len(plan.changes) == 1 else 'are'} cut anew"
    costs += f", and {plural(leave, 'Pod')} {'leaves' if leave == 1 else 'leave'} first." if leave else "."
    worth = f", worth {gain_per_week:,.0f} {currency} a week" if gain_per_week else ""
    what = f"{plural(len(plan.freed), 'GPU')}{worth}" if plan.freed else "no GPU"
    return Text(f"It frees {what}: {costs}\n", style="bold")


def _yaml(value: object) -> str:
    plain = msgspec.to_builtins(value, str_keys=True)
    return yaml.safe_dump(plain, sort_keys=False, default_flow_style=False, allow_unicode=True, width=120)


def _advised(ordered: Sequence[Recommendation], rows: int, wide: bool) -> RenderableType:
    currency = ordered[0].currency
    sure = [item for item in ordered if not item.condition]
    conditional = [item for item in ordered if item.condition]
    title = _total(plural(len(sure), "change"), sure, currency)
    if conditional:
        title += "\n" + _total(f"{len(conditional)} more only on a condition", conditional, currency)
    saves = "saves a week, projected" if wide else "saves a week"
    table = new_table(title, "workload", "now → advised", "speed", saves, *(("why",) if wide else ()))
    for item in ordered[:rows]:
        saved, cost = item.chosen.projected_saving_per_week, item.current.projected_cost_per_week
        table.add_row(
            _workload(item.key),
            Group(
                whole_or_line(item.current.target.name, wide),
                Text(f"→ {item.chosen.target.name}", style="green", overflow="fold"),
                # The wide table's reason begins with it.
                *([OneLine(item.condition)] if item.condition and not wide else []),
            ),
            Group(
                Text(speed(item.chosen.speed)),
                Text(
                    f"{TIER[item.chosen.speed.tier]}\n" * wide + f"{percent(item.confidence_ratio)} sure", style="dim"
                ),
            ),
            Group(
                Text(money(saved, currency), style="magenta" if saved is None else "bold"),
                # Today's cost, for the same week as the saving.
                *([Text(f"of {money(cost, currency)}", style="dim")] if cost is not None else []),
                *([Text(f"{gpu_hours(item.chosen.projected_saving_gpu_hours_per_week)} GPU-h", style="dim")] * wide),
            ),
            *([escape(item.reason)] * wide),
        )
    return table


def _total(what: str, items: Sequence[Recommendation], currency: str) -> str:
    known = [saved for item in items if (saved := item.chosen.projected_saving_per_week) is not None]
    hours = gpu_hours(sum(item.chosen.projected_saving_gpu_hours_per_week for item in items))
    amount = money(sum(known) if known or not items else None, currency)
    unknown = f" (price unknown of {len(items) - len(known)})" if known and len(known) < len(items) else ""
    return f"{what}: {amount} and {hours} GPU-hours a week, projected{unknown}"


def _workload(key: WorkloadKey) -> RenderableType:
    kind, slash, rest = key.workload.partition("/")
    return Group(FoldedName(rest), Text(kind, style="dim", overflow="fold")) if slash else FoldedName(key.workload)


def _abstained(abstentions: Sequence[Abstention], wide: bool) -> RenderableType:
    table = new_table(f"Left as they are ({len(abstentions)})", "reason", "count", "such as", "what would resolve it")
    for title, meaning, found in abstained(abstentions):
        names = [item.key.workload.partition("/")[2] or item.key.workload for item in found[: _EXAMPLES if wide else 1]]
        more = [Text(f"and {len(found) - len(names)} more", style="dim")] if wide and len(found) > len(names) else []
        table.add_row(
            Group(Text(title, style="yellow"), *([Text(meaning, style="dim")] * wide)),
            f"{len(found)}",
            Group(*map(FoldedName, names), *more),
            whole_or_line(f"{found[0].reason} {found[0].resolve}" if wide else found[0].resolve, wide),
        )
    return table


def _advice_facts(item: Recommendation) -> Iterable[tuple[str, RenderableType]]:
    chosen, currency = item.chosen, item.currency
    resource = f" ({chosen.target.resource})" if chosen.target.resource else ""
    yield "Now", escape(item.current.target.name)
    yield "Advised", Text(f"{chosen.target.name}{resource}", style="bold green", overflow="fold")
    yield (
        "Speed",
        escape(
            f"{speed(chosen.speed)} of today's, likely {percent(chosen.speed.likely_ratio)}; "
            f"asked for {percent(item.target_speed_ratio)}. {chosen.speed.basis}"
        ),
    )
    yield "Basis", f"{TIER[chosen.speed.tier]}, {percent(item.confidence_ratio)} sure"
    yield ("Saves", f"{saving(chosen, currency)} a week, projected. {PROJECTED}")
    yield (
        "As now",
        f"costs {money(item.current.projected_cost_per_week, currency)} a week, projected; "
        f"{money(item.doing_nothing_cost_per_week, currency)} of it, and "
        f"{gpu_hours(item.doing_nothing_gpu_hours_per_week)} GPU-hours, would be wasted",
    )
    yield "Why", escape(item.reason)
    if item.caveats:
        yield "But", escape(" ".join(item.caveats))
    if item.runner_up is not None:
        yield "Runner-up", escape(f"{item.runner_up.target.name}, {speed(item.runner_up.speed)} of today's speed")


def _memory(need: MemoryNeed) -> str:
    if need.elastic:
        return f"peak {quantity(need.peak_bytes, 'bytes')}, which is no need. {need.reason}"
    return f"needs {quantity(need.need_bytes, 'bytes')}. {need.reason}"


def _options(item: Recommendation | Abstention) -> RenderableType:
    table = new_table(
        f"Options ({len(item.options)}), best first", "option", "speed", "memory", "saves a week, projected", "why not"
    )
    for option in item.options:
        table.add_row(
            Text(option.target.name, style="" if option.allowed else "dim", overflow="fold"),
            speed(option.speed),
            quantity(option.memory_bytes, "bytes"),
            money(option.projected_saving_per_week, item.currency),
            _verdict(option, item),
        )
    return table


def _verdict(option: Option, item: Recommendation | Abstention) -> RenderableType:
    if option.vetoes:
        return escape("\n".join(f"{veto.rule}: {veto.reason}" for veto in option.vetoes))
    if isinstance(item, Recommendation):
        if option == item.chosen:
            return Text("advised", style="bold green")
        if option == item.runner_up:
            return Text("runner-up", style="green")
    return Text("as now" if option == item.current else "allowed", style="dim")


def _slices(profiles: Sequence[str]) -> FoldedName:
    """'3g.40gb 2g.20gb 2 × 1g.10gb'."""
    counted = {name: profiles.count(name) for name in profiles}
    return FoldedName(" ".join(name if count == 1 else f"{count} × {name}" for name, count in counted.items()))
