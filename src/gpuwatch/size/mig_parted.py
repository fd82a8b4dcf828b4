"""mig-parted's configuration file: named layouts of a Node's GPUs; a label of the Node selects one.

Format v1 (NVIDIA/mig-parted, api/spec/v1): per name a list of {devices, mig-enabled, mig-devices}. `devices` is `all`
or a list of indices. It must cover every GPU of a Node, or mig-parted's assert always fails. It takes counts only;
mig-parted tries the orders of creation until the instances fit.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence

from gpuwatch.facts.catalog.gpus import find_gpu
from gpuwatch.facts.catalog.mig import MigGeometry, geometry
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.sizing import NodeMigChange
from gpuwatch.size.mig_fleet import MigFleet


def layout(cuts: Mapping[int, tuple[str, ...]]) -> list[dict[str, object]]:
    """Entries for one Node; GPUs that are alike share one. cuts: GPU index → instances, () for MIG off."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for index, cut in sorted(cuts.items()):
        alike.setdefault(tuple(sorted(cut)), []).append(index)
    entries: list[dict[str, object]] = []
    for cut, indices in alike.items():
        entry: dict[str, object] = {"devices": "all" if len(alike) == 1 else indices, "mig-enabled": bool(cut)}
        if cut:
            entry["mig-devices"] = dict(sorted(Counter(cut).items()))
        entries.append(entry)
    return entries


def standard_name(shape: MigGeometry, cut: tuple[str, ...]) -> str:
    """The name in mig-parted's own configuration for GPUs that are all cut this way; '' where it has none."""
    counts = Counter(cut)
    if not counts:
        return "all-disabled"
    first = next((profile for profile in shape.profiles if profile.name == cut[0]), None)
    if len(counts) == 1 and first is not None and len(cut) == first.max_instances:
        return f"all-{first.resource_suffix}"
    share = {1: 2, 2: 1, 3: 1}  # instances of one, two and three slices in mig-parted's all-balanced
    plain = [profile for profile in shape.profiles if profile.name in shape.plain_profiles]
    balanced = Counter({item.name: share[item.compute_slices] for item in plain if item.compute_slices in share})
    return "all-balanced" if counts == balanced else ""


def own_name(entries: list[dict[str, object]]) -> str:
    """A hash of the content, short enough for a label value."""
    text = json.dumps(entries, sort_keys=True, separators=(",", ":"))
    return f"gpuwatch-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def configuration(changes: Sequence[NodeMigChange], fleet: MigFleet) -> tuple[dict[str, object], dict[str, str]]:
    """The file's content, and Node → name, for the Nodes that change. Where a standard name means different instances
    on different models, one keeps it and the others get their own. {} without changes: a file without configs is not
    valid."""
    after = {change.device: change.after for change in changes}
    on_node = grouped(fleet.gpus.values(), lambda gpu: gpu.node)
    configs: dict[str, object] = {}
    labels = {}
    for node in sorted({change.node for change in changes}):
        cuts = {gpu.index: after.get(gpu.uuid, fleet.spelled(gpu, gpu.cut)) for gpu in on_node[node]}
        entries = layout(cuts)
        alike = {(gpu.model, cuts[gpu.index]) for gpu in on_node[node]}
        model, cut = next(iter(alike))
        found = find_gpu(model) if len(alike) == 1 else None
        shape = geometry(found.mig_family) if found is not None else None
        standard = standard_name(shape, cut) if shape is not None else ""
        name = standard if standard and configs.get(standard, entries) == entries else own_name(entries)
        configs[name] = entries
        labels[node] = name
    return ({"version": "v1", "mig-configs": dict(sorted(configs.items()))} if configs else {}), labels
