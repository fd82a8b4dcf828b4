"""The answer of `whatif` for a terminal. Pure: returns what rich renders, prints nothing."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwatch.act.whatif import WhatIf
from gpuwatch.facts.model.cluster import Pod
from gpuwatch.say.layout import FoldedName, cut, new_table
from gpuwatch.say.words import plural

_GIB = 2**30
_AGAINST = {
    "out of service": "out of service: cordoned, not Ready, degraded or kept free",
    "labels": "its labels are not those that the Pod asks for",
    "other Pods": "a Pod there keeps it away, or the Pod keeps away from one there",
    "Pods": "it takes no more Pods",
    "CPU": "too little CPU is free",
    "memory": "too little memory is free",
}


def asked_words(pods: Sequence[Pod]) -> str:
    """`2 Pods, each with 8 nvidia.com/gpu, 80 CPU cores and 960 GiB of memory`."""
    first = pods[0]
    asks = [f"{count} {name}" for name, count in sorted(first.accelerators.items())]
    asks += [f"{first.cpu_cores:.4g} CPU cores"] if first.cpu_cores else []
    asks += [f"{first.memory_bytes / _GIB:.4g} GiB of memory"] if first.memory_bytes else []
    text = " and ".join([", ".join(asks[:-1]), asks[-1]]) if len(asks) > 1 else "".join(asks)
    return f"{plural(len(pods), 'Pod')}{', each' if len(pods) > 1 else ''} with {text}"


def whatif_tables(asked: str, found: WhatIf, *, rows: int = 30) -> RenderableType:
    parts: list[RenderableType] = []
    if found.places:
        nodes = ", ".join(f"{name} ({count})" for name, count in sorted(Counter(found.places.values()).items()))
        parts += [Text(f"{asked}: there is room now.", style="green"), Text(f"Nodes (Pods): {nodes}")]
        return Group(*parts, *_others(found), Text())
    parts += [Text(f"{asked}: there is no room now.", style="yellow"), Text(found.reason), *_others(found)]
    if found.never:
        parts.append(Text(f"Nor would there be if all GPUs of the Nodes in service were free. {found.never}"))
    if found.against:
        table = new_table("Why not, by the first cause of each Node", "Nodes", "cause")
        table.columns[0].justify = "right"
        for cause, count in sorted(found.against.items(), key=lambda item: (-item[1], item[0])):
            table.add_row(str(count), _AGAINST.get(cause, cause if " " in cause else f"too few {cause} are free"))
        parts += (Text(), table)
    parts.append(Text())
    if not found.known:
        parts.append(Text("What would place it is not known."))
    elif not found.changes:
        more = "its request or the fleet has to change" if found.never else "more GPUs have to become free"
        parts.append(Text(f"No change was found that would place it: {more}."))
    else:
        table = new_table("Each of these would place it; the least work lost first", "change", "lost", "Nodes then")
        table.columns[1].justify = "right"
        for change in found.changes[:rows]:
            what = f"{change.first.what} Also: {change.what}" if change.first else change.what
            what += f" {change.when}" if change.when else ""
            what += f" gpuwatch does not do it: {change.refused}" if change.refused else ""
            lost = f"{change.lost_gpu_hours:.1f} GPU-h" if change.lost_gpu_hours else "none"
            table.add_row(what, lost, FoldedName(", ".join(sorted({*change.places.values()}))))
        parts += (table, *cut(len(found.changes), rows))
    return Group(*parts, Text())


def _others(found: WhatIf) -> list[RenderableType]:
    """Who keeps it back, and who waits before it."""
    told = [found.held] if found.held else []
    if found.ahead:
        more = f" and {len(found.ahead) - 3} more" if len(found.ahead) > 3 else ""
        told.append(f"Before it wait: {', '.join(found.ahead[:3])}{more}.")
    return [Text(each) for each in told]
