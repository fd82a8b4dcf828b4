"""Right-sizing and the MIG plan as coloured tables for a terminal. Pure: returns what rich renders, prints nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from gpuwatch.model.sizing import Change

_EXAMPLES = 3


def patch_yaml(change: Change) -> str:
    """The change as a YAML document of the owner's kind: what differs, and the names that say of what.

    What must be there first stands above it as comments. null takes a key away (strategic-merge patch).
    """
    said = [*(f"First: {line}" for line in change.prerequisites), *([change.note] if change.note else [])]
    # A line break within a name must not end the comment.
    comments = "".join(f"# {' '.join(line.split())}\n" for line in said)
    patch = msgspec.to_builtins(dict(change.patch), str_keys=True)
    metadata = {"name": change.name, **({"namespace": change.namespace} if change.namespace else {})}
    document = {
        "apiVersion": change.api_version,
        "kind": change.kind,
        **patch,
        "metadata": {**_mapping(patch.get("metadata")), **metadata},
    }
    order = ["apiVersion", "kind", "metadata"]
    ordered = {name: document[name] for name in order} | document
    return comments + yaml.safe_dump(ordered, sort_keys=False, default_flow_style=False, allow_unicode=True, width=120)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
