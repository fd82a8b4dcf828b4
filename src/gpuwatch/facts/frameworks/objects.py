"""Objects of the API server as JSON, and writes to them: by JSON pointers (RFC 6901) and the JSON merge patch
(RFC 7396) between two of them. Pure."""

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

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


def owned_by(object_: Object, uids: Collection[str]) -> bool:
    return any(owner.get("uid") in uids for owner in object_["metadata"].get("ownerReferences") or ())


def number(object_: Object, path: str, default: int = 0) -> int:
    found = value_at(object_, path)
    return found if isinstance(found, int) else default


class Absent:
    """Value of a missing field, since None is JSON's null. It counts as false."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()


def parts(path: str) -> tuple[str, ...]:
    """The names in a pointer; '' is the whole document. ValueError for one without a leading slash."""
    if path and not path.startswith("/"):
        raise ValueError(f"{path!r} is no JSON pointer.")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:])


def pointer(*names: str) -> str:
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)


def value_at(document: object, path: str) -> Any:
    """The value at a JSON pointer, or ABSENT."""
    here: Any = document
    for name in parts(path):
        if isinstance(here, Mapping) and name in here:
            here = here[name]
        elif isinstance(here, list) and name.isdecimal() and int(name) < len(here):
            here = here[int(name)]
        else:
            return ABSENT
    return here


def put(document: Any, path: str, value: object) -> Any:
    """A copy with the value set; missing parent objects are created. Lists are not entered."""
    if not path:
        return value
    name, *below = parts(path)
    here = document if isinstance(document, Mapping) else {}
    return {**here, name: put(here.get(name), pointer(*below), value)}


def removed(document: Any, path: str) -> Any:
    """A copy without the field. Lists are not entered."""
    names = parts(path)
    if not isinstance(document, Mapping) or names[0] not in document:
        return document
    if len(names) == 1:
        return {key: value for key, value in document.items() if key != names[0]}
    return {**document, names[0]: removed(document[names[0]], pointer(*names[1:]))}


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch from `before` to `after`, which must have no null that `before` lacks."""
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key, ABSENT)
        if isinstance(old, dict) and isinstance(value, dict):
            if old != value:
                patch[key] = difference(old, value)
        elif old != value or type(old) is not type(value):
            patch[key] = copy.deepcopy(value)
    return patch
