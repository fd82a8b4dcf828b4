"""Slots as tables for a terminal and as columns of CSV. Pure: returns what rich renders, prints nothing."""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwatch.act.fragmentation import Fragmentation
from gpuwatch.act.slots import ANYWHERE, Slots, unit_of
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.say.layout import FoldedName, cut, new_table
from gpuwatch.say.machine import COUNT, FLAG, NUMBER, Column, Columns, fields

SLOTS: Columns[Slots] = {
    **fields("gpu_model", "resource"),
    **fields("whole", dtype=FLAG),
    **fields("gpus", "pods", dtype=COUNT),
    **fields("cpu_cores", "memory_bytes", dtype=NUMBER),
    **fields("topology"),
    **fields("count", "free", dtype=COUNT),
    "domains": Column(lambda item: " ".join(f"{value}={count}" for value, count in item.domains.items())),
    "left": Column(lambda item: "; ".join(f"{units} {why}" for why, units in item.left.items())),
}
"""A row per GPU model, resource, topology and size."""

_GIB = 2**30
_SHOWN = 0.05
"""Units of a cause, and fewer round to 0.0."""


def slots_tables(found: Sequence[Slots], by: Sequence[str] = (), *, rows: int = 30) -> RenderableType:
    """by: labels; a table for each shows its values."""
    if not found:
        return Text("No Node with GPUs was seen: how many slots there are is unknown, not zero.")
    sizes = sorted({each.gpus for each in found})
    kinds = grouped(found, lambda each: (each.gpu_model, each.resource, each.whole))
    table = new_table("How many more gangs would start now, by their GPUs", "GPU", "in one", "free", *map(str, sizes))
    for column in table.columns[2:]:
        column.justify = "right"
    for of in kinds.values():
        for topology, here in grouped(of, lambda each: each.topology).items():
            counts = {each.gpus: each.count for each in here}
            names = (name_of(here[0]), topology or "cluster")
            table.add_row(*map(FoldedName, names), str(here[0].free), *_cells(counts, sizes))
    parts: list[RenderableType] = [table]
    for label in by:
        parts += (Text(), *_by_domain([each for each in found if each.topology == label], label, sizes, rows))
    parts += (Text(), *_left(kinds.values()))
    return Group(*parts, *map(Text, _words(kinds.values())), Text())


def name_of(slots: Slots) -> str:
    """The GPU model, and of what is no whole GPU the resource."""
    model = slots.gpu_model or "(unknown model)"
    return model if slots.whole else f"{model} {slots.unit}"


def _cells(counts: dict[int, int], sizes: Iterable[int]) -> list[str]:
    return [str(counts[size]) if size in counts else "" for size in sizes]


def _by_domain(found: Sequence[Slots], label: str, sizes: Sequence[int], rows: int) -> Iterable[RenderableType]:
    if not found:
        yield Text(f"No Node with GPUs has the label {label}.")
        return
    table = new_table(f"In one {label}", label, "GPU", *map(str, sizes))
    for column in table.columns[2:]:
        column.justify = "right"
    lines: dict[tuple[str, str], dict[int, int]] = {}
    for each in found:
        for value, count in each.domains.items():
            lines.setdefault((value, name_of(each)), {})[each.gpus] = count
    for (value, name), counts in sorted(lines.items())[:rows]:
        asked = {each.gpus: 0 for each in found if name_of(each) == name}
        table.add_row(FoldedName(value), FoldedName(name), *_cells(asked | counts, sizes))
    yield table
    yield from cut(len(lines), rows)


def fragmentation_tables(found: Sequence[Fragmentation]) -> Iterable[RenderableType]:
    """What a request of the mix cannot use, and the Pods without GPUs that hold the CPU beside it."""
    table = new_table("Free GPUs that a request of the mix cannot use", "GPU", "pool", "free", "unusable", "", "why")
    for column in table.columns[2:5]:
        column.justify = "right"
    for each in found:
        if each.free:
            why = "; ".join(f"{units:.1f} {cause}" for cause, units in each.causes.items() if units >= _SHOWN)
            model = each.gpu_model or "(unknown model)"
            name = model if each.whole else f"{model} {unit_of(each.resource, whole=False)}"
            shares = (str(each.free), f"{each.unallocatable:.1f}", f"{each.unallocatable / each.free:.0%}")
            table.add_row(FoldedName(name), FoldedName(each.pool), *shares, why)
    if not table.row_count:
        return
    yield table
    yield Text()
    held = new_table(
        "Pods without GPUs beside GPUs that lack CPU", "Pod", "Node", "CPU cores", "GPUs usable without it"
    )
    held.columns[2].justify = held.columns[3].justify = "right"
    for pod in sorted({pod for each in found for pod in each.blockers}, key=lambda pod: (-pod.cpu_cores, pod.pod)):
        held.add_row(FoldedName(pod.pod), FoldedName(pod.node), f"{pod.cpu_cores:.3g}", f"{pod.gpus:.1f}")
    if held.row_count:
        yield held
        yield Text()
    yield Text("The mix is what GPU Pods ask for that run or wait now. Only free GPUs in service count.")
    yield Text()


def _left(kinds: Iterable[Sequence[Slots]]) -> Iterable[RenderableType]:
    """Of each kind the gang of a whole Node, and the largest one."""
    table = new_table("Free GPUs that are in none of these gangs", "GPU", "gang of", "left", "why")
    table.columns[1].justify = table.columns[2].justify = "right"
    for of in kinds:
        anywhere = [each for each in of if each.topology == ANYWHERE]
        whole_node = max((each for each in anywhere if each.pods == 1), key=lambda each: each.gpus, default=anywhere[0])
        for each in dict.fromkeys((whole_node.gpus, anywhere[-1].gpus)):
            (item,) = (other for other in anywhere if other.gpus == each)
            if item.left:
                causes = item.left.items()
                why = "; ".join(f"{units} {cause}" if len(causes) > 1 else cause for cause, units in causes)
                table.add_row(FoldedName(name_of(item)), str(item.gpus), str(sum(item.left.values())), why)
    if table.row_count:
        yield table
        yield Text()


def _words(kinds: Iterable[Sequence[Slots]]) -> Iterable[str]:
    asked: dict[str, list[str]] = {}
    for of in kinds:
        each, units = of[0], of[0].gpus // of[0].pods
        text = "nothing but its GPUs, as no Pod has such GPUs now"
        if each.cpu_cores or each.memory_bytes:
            cores, gib = each.cpu_cores / units, each.memory_bytes / units / _GIB
            text = f"{cores:.3g} CPU cores and {gib:.3g} GiB of memory for each, as the median Pod does now"
        asked.setdefault(text, []).append(name_of(each))
    for text, names in asked.items():
        yield f"{', '.join(names)}: a Pod asks for {text}."
    yield "Room that waiting Pods are about to get is taken. Quotas are not looked at."
