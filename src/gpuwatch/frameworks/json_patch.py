"""JSON pointers (RFC 6901), and the JSON merge patch (RFC 7396) between two objects."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any


class Absent:
    """What a pointer finds where there is nothing; None would be JSON's null. Like that it counts as false."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()


def parts(pointer: str) -> tuple[str, ...]:
    """The names on the way; '' is the whole document."""
    if pointer and not pointer.startswith("/"):
        raise ValueError(f"{pointer!r} is no JSON pointer.")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


def pointer(*names: str) -> str:
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)


_pointer = pointer  # for functions with a parameter of that name


def value_at(document: object, pointer: str) -> Any:
    """What the pointer finds, or ABSENT."""
    here: Any = document
    for name in parts(pointer):
        if isinstance(here, Mapping) and name in here:
            here = here[name]
        elif isinstance(here, list) and name.isdecimal() and int(name) < len(here):
            here = here[int(name)]
        else:
            return ABSENT
    return here


def put(document: Any, pointer: str, value: object) -> Any:
    """A copy with the value there; objects on the way are made where they are missing. Lists are not entered."""
    return _put(document, parts(pointer), value)


def _put(document: Any, names: tuple[str, ...], value: object) -> Any:
    if not names:
        return value
    here = document if isinstance(document, Mapping) else {}
    return {**here, names[0]: _put(here.get(names[0]), names[1:], value)}


def removed(document: Any, pointer: str) -> Any:
    """A copy without what is there. Lists are not entered."""
    names = parts(pointer)
    if not isinstance(document, Mapping) or names[0] not in document:
        return document
    if len(names) == 1:
        return {key: value for key, value in document.items() if key != names[0]}
    return {**document, names[0]: removed(document[names[0]], _pointer(*names[1:]))}


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that makes `after` of `before`. `after` must hold no null that `before` has not."""
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key, ABSENT)
        if isinstance(old, dict) and isinstance(value, dict):
            if old != value:
                patch[key] = difference(old, value)
        elif old != value or type(old) is not type(value):
            patch[key] = copy.deepcopy(value)
    return patch
