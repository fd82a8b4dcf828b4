"""Objects of the API server as JSON, and writes to them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpuwatch.facts.frameworks.json_patch import value_at
from gpuwatch.facts.model.remediation import ObjectRef

Object = dict[str, Any]
"""JSON of an object of the API server."""

KindKey = tuple[str, str]
"""API group ('' for the core group) and kind."""

MANAGER = "gpuwatch"
"""Our name in managedFields."""


@dataclass(frozen=True, slots=True)
class Refused:
    """reason: a sentence for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class Patch:
    """A merge patch. version: the resourceVersion of the object as it was read."""

    target: ObjectRef
    body: Object
    version: str


@dataclass(frozen=True, slots=True)
class Creation:
    object: Object


Write = Patch | Creation


def key_of(object_: Object) -> KindKey:
    return object_["apiVersion"].rpartition("/")[0], object_["kind"]


def ref_of(object_: Mapping[str, Any]) -> ObjectRef:
    metadata = object_["metadata"]
    return ObjectRef(
        object_["apiVersion"], object_["kind"], metadata["name"], metadata.get("namespace", ""), metadata.get("uid", "")
    )


def version_of(object_: Mapping[str, Any]) -> str:
    return str(object_["metadata"]["resourceVersion"])


def stamp(at: datetime) -> str:
    """As the API server writes a time."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(object_: Object, kind: str) -> bool | None:
    """Whether the condition is True; None where it is missing."""
    for item in value_at(object_, "/status/conditions") or ():
        if item.get("type") == kind:
            return bool(item.get("status") == "True")
    return None


def number(object_: Object, path: str, default: int = 0) -> int:
    found = value_at(object_, path)
    return found if isinstance(found, int) else default
