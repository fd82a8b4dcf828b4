"""Owners as people write them (objects.yaml), and patches applied to them."""

from pathlib import Path
from typing import Any

import yaml

Tree = dict[str, Any]
_READ = yaml.safe_load(Path(__file__).with_name("objects.yaml").read_text(encoding="utf-8"))
POD_SPEC: Tree = _READ["pod_spec"]
OBJECTS: dict[str, tuple[str, Tree, list[Tree], list[str], list[str]]] = _READ["owners"]


def merged(into: Any, patch: Any) -> Any:
    """A strategic merge as far as these kinds go: lists of named things merge by name, null takes away."""
    if isinstance(patch, dict) and isinstance(into, dict):
        result = dict(into)
        for key, value in patch.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = merged(result.get(key), value)
        return result
    if isinstance(patch, dict):
        return {key: merged(None, value) for key, value in patch.items() if value is not None}
    if isinstance(patch, list) and isinstance(into, list):
        result_list = list(into)
        for item in patch:
            at = next((i for i, old in enumerate(result_list) if name_of(old) == name_of(item)), None)
            assert at is not None, f"the patch makes a new {name_of(item)!r}, which is nobody's"
            result_list[at] = merged(result_list[at], item)
        return result_list
    return patch


def name_of(item: Tree) -> str:
    return str(item.get("name", item.get("groupName")))


def at(tree: Any, path: str) -> Any:
    """The value at a dotted path; a step into a list is the name of its item."""
    for step in path.split(".") if path else []:
        tree = next(item for item in tree if name_of(item) == step) if isinstance(tree, list) else tree[step]
    return tree
