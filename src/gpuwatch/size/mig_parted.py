"""mig-parted's configuration file: named layouts of a Node's GPUs; a label of the Node selects one.

Format v1 (NVIDIA/mig-parted, api/spec/v1): per name a list of {devices, mig-enabled, mig-devices}. `devices` is `all`
or a list of indices. It must cover every GPU of a Node, or mig-parted's assert always fails. It takes counts only;
mig-parted tries the orders of creation until the instances fit.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping

from gpuwatch.facts.catalog.mig import MigGeometry


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


def config(nodes: Mapping[str, tuple[list[dict[str, object]], str]]) -> tuple[dict[str, object], dict[str, str]]:
    """The file's content, and Node → name. nodes: Node → its entries and their standard name, or ''. Where a standard
    name means different instances on different models, one keeps it and the others get their own. {} without Nodes: a
    file without configs is not valid."""
    configs: dict[str, object] = {}
    labels = {}
    for node, (entries, standard) in sorted(nodes.items()):
        name = standard if standard and configs.get(standard, entries) == entries else own_name(entries)
        configs[name] = entries
        labels[node] = name
    return ({"version": "v1", "mig-configs": dict(sorted(configs.items()))} if configs else {}), labels
