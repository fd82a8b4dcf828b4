"""Checks that policies run on their own settings."""

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any


def named(policy: Any, *endings: str) -> list[str]:
    """Names of the policy's fields with one of these endings, such as '_ratio'."""
    return [item.name for item in fields(policy) if item.name.endswith(endings)]


def require(policy: object, section: str, names: Iterable[str], holds: Callable[[Any], bool], wanted: str) -> None:
    """Raises ValueError for the first of these fields whose value is invalid. section: prefix of its name in the
    settings, such as 'plan.'; wanted: the valid values, for the message."""
    for name in names:
        value = getattr(policy, name)
        if not holds(value):
            raise ValueError(f"{section}{name} is {value!r}; it has to be {wanted}")
