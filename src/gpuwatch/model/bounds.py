"""How a policy refuses settings that mean nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any


def named(policy: Any, *endings: str) -> list[str]:
    """The policy's fields whose names end so, such as '_ratio'."""
    return [item.name for item in fields(policy) if item.name.endswith(endings)]


def require(policy: object, section: str, names: Iterable[str], holds: Callable[[Any], bool], wanted: str) -> None:
    """Raises ValueError for the first of these fields that does not hold. section: what stands before its name in the
    settings, 'plan.'; wanted: what it has to be, for people."""
    for name in names:
        value = getattr(policy, name)
        if not holds(value):
            raise ValueError(f"{section}{name} is {value!r}; it has to be {wanted}")
