"""The nouns as the Kubernetes API writes them: camelCase, nothing where there is nothing, and the schema of that form.

The functions here walk the same types: dataclasses, tuples, Mappings with text as keys (which stay as they are), enums,
times, texts, numbers, and None beside any of them. A field that is a number or a text has two names, `value` and
`valueText`, since a structural schema knows no such union; a number that is not finite, which JSON has no word for,
becomes text there, or nothing where nothing is allowed.
"""

from __future__ import annotations

import math
import types
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

MAX_ITEMS = 8192
"""Of any list: a gang of so many devices fits, and CEL can bound its work."""

MAX_TEXT = 16384
"""Of any text, in characters. PromQL that names one device is a few hundred."""

_TEXT = "Text"


class FormError(ValueError):
    """The object is not of the form, or a value cannot be written in it; the message names the place."""


@dataclass(frozen=True, slots=True)
class _Named:
    """A field: its name here, its name there, its type without None, and what it is where it is absent."""

    name: str
    there: str
    kind: Any
    optional: bool
    field: Field[Any]

    @property
    def required(self) -> bool:
        return self.field.default is MISSING and self.field.default_factory is MISSING

    def default(self) -> object:
        if self.field.default is not MISSING:
            return self.field.default
        return self.field.default_factory() if self.field.default_factory is not MISSING else MISSING


def to_api(value: object, where: str = "") -> dict[str, Any]:
    """A dataclass as plain data for JSON. What has its default is left out. Raises FormError."""
    found: dict[str, Any] = {}
    for each in _named(cast("Hashable", type(value))):
        held = getattr(value, each.name)
        if held is None or (not each.required and held == each.default()):
            continue
        place = f"{where}.{each.there}".removeprefix(".")
        if each.kind is _NumberOrText:
            if isinstance(held, str) or not math.isfinite(held):
                found[each.there + _TEXT] = str(held)
            else:
                found[each.there] = held
        elif isinstance(held, float) and not math.isfinite(held) and each.optional:
            continue
        else:
            found[each.there] = _written(held, place)
    return found


def from_api(data: object, kind: type[T], where: str = "") -> T:
    """The dataclass of this plain data; names that it does not know are left out. Raises FormError."""
    if not isinstance(data, Mapping):
        raise FormError(f"{where or 'it'} is no object")
    values: dict[str, Any] = {}
    for each in _named(cast("Hashable", kind)):
        place = f"{where}.{each.there}".removeprefix(".")
        held = data.get(each.there)
        if each.kind is _NumberOrText and held is None:
            held = data.get(each.there + _TEXT)
        if held is None:
            if each.required and not each.optional:
                raise FormError(f"{place} is missing")
            if each.required:
                values[each.name] = None
            continue
        values[each.name] = _read(held, each.kind, place)
    return kind(**values)


def with_unknown(old: object, new: Any, kind: Any) -> Any:
    """`new`, with what stands in `old` under names that this version does not know: a later one's, to be kept.

    Items of lists are matched by their place.
    """
    if get_origin(kind) is tuple and isinstance(old, list):
        (item, _) = get_args(kind)
        return [with_unknown(was, each, item) for was, each in zip(old, new, strict=False)] + new[len(old) :]
    if not is_dataclass(kind) or not isinstance(old, Mapping):
        return new
    known = _named(cast("Hashable", kind))
    names = {each.there for each in known} | {each.there + _TEXT for each in known if each.kind is _NumberOrText}
    kept = {name: value for name, value in old.items() if name not in names}
    return {
        **kept,
        **new,
        **{
            each.there: with_unknown(old.get(each.there), new[each.there], each.kind)
            for each in known
            if each.there in new
        },
    }


def schema(kind: type) -> dict[str, Any]:
    """The structural schema of `to_api` of this dataclass. A field's description is its metadata['says'], and
    its metadata['length'] how long its text may be, where that is more than MAX_TEXT."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    for each in _named(cast("Hashable", kind)):
        says = {"description": each.field.metadata["says"]} if "says" in each.field.metadata else {}
        if each.kind is _NumberOrText:
            properties[each.there] = {**says, "type": "number"}
            properties[each.there + _TEXT] = {**_text(), "description": f"Instead of {each.there} where it is a text."}
        else:
            properties[each.there] = {**_schema(each.kind), **says}
            if "length" in each.field.metadata:
                properties[each.there]["maxLength"] = each.field.metadata["length"]
            if each.required and not each.optional:
                required.append(each.there)
    found: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        found["required"] = required
    return found


def camel(name: str) -> str:
    first, *rest = name.rstrip("_").split("_")
    return first + "".join(word.capitalize() for word in rest)


class _NumberOrText:
    """Stands for the type `float | str`."""


@cache
def _named(kind: Hashable) -> tuple[_Named, ...]:
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise TypeError(f"{kind} has no form in the API")
    hints = get_type_hints(kind)
    found = []
    for each in fields(kind):
        bare, optional = _without_none(hints[each.name])
        found.append(_Named(each.name, camel(each.name), bare, optional, each))
    return tuple(found)


def _without_none(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) not in (Union, types.UnionType):
        return kind, False
    parts = set(get_args(kind))
    optional = type(None) in parts
    parts.discard(type(None))
    if parts == {float, str}:
        return _NumberOrText, optional
    (bare,) = parts  # another union has no form
    return bare, optional


def _written(value: object, where: str) -> Any:
    if is_dataclass(value):
        return to_api(value, where)
    if isinstance(value, tuple):
        return [_written(each, f"{where}[{index}]") for index, each in enumerate(value)]
    if isinstance(value, Mapping):
        return {str(key): _written(each, f"{where}[{key}]") for key, each in value.items()}
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise FormError(f"{where} is a time without a zone")
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        raise FormError(f"{where} is {value}, which is not finite")
    return value


def _read(data: Any, kind: Any, where: str) -> Any:
    if is_dataclass(kind):
        return from_api(data, cast(type[Any], kind), where)
    origin = get_origin(kind)
    if origin is tuple:
        (item, _) = get_args(kind)
        if not isinstance(data, list):
            raise FormError(f"{where} is no list")
        return tuple(_read(each, item, f"{where}[{index}]") for index, each in enumerate(data))
    if origin is not None:
        (_, item) = get_args(kind)
        if not isinstance(data, Mapping):
            raise FormError(f"{where} is no object")
        return {key: _read(each, item, f"{where}[{key}]") for key, each in data.items()}
    if kind is _NumberOrText:
        if isinstance(data, str | int | float) and not isinstance(data, bool):
            return data if isinstance(data, str) else float(data)
        raise FormError(f"{where} is neither a number nor a text")
    return _scalar(data, kind, where)


def _scalar(data: Any, kind: Any, where: str) -> Any:
    try:
        if issubclass(kind, Enum):
            return kind(data)
        if kind is datetime and (at := datetime.fromisoformat(data)).tzinfo is not None:
            return at.astimezone(UTC)
    except (TypeError, ValueError) as error:
        raise FormError(f"{where} is {data!r}, which is no {kind.__name__}") from error
    if kind is datetime:
        raise FormError(f"{where} is {data!r}, a time without a zone")
    # JSON has one kind of number: 3 is a float where one is asked for. True is no number.
    if kind is float and isinstance(data, int | float) and not isinstance(data, bool):
        return float(data)
    if type(data) is not kind:
        raise FormError(f"{where} is {data!r}, which is no {kind.__name__}")
    return data


def _schema(kind: Any) -> dict[str, Any]:
    if is_dataclass(kind):
        return schema(cast(type, kind))
    origin = get_origin(kind)
    if origin is tuple:
        (item, _) = get_args(kind)
        return {"type": "array", "maxItems": MAX_ITEMS, "items": _schema(item)}
    if origin is not None:
        (_, item) = get_args(kind)
        return {"type": "object", "maxProperties": MAX_ITEMS, "additionalProperties": _schema(item)}
    if kind is datetime:
        return {"type": "string", "format": "date-time"}
    if issubclass(kind, Enum):
        return {"type": "string", "enum": [each.value for each in kind]}
    return {
        bool: {"type": "boolean"},
        int: {"type": "integer", "format": "int64"},
        float: {"type": "number"},
        str: _text(),
    }[kind]


def _text() -> dict[str, Any]:
    return {"type": "string", "maxLength": MAX_TEXT}
