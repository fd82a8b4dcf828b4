"""Dataclasses as Kubernetes API objects: camelCase names, and no field for a default or None.

Types: dataclasses, tuples, Mappings with text keys (kept as they are), enums (in CamelCase: `taint_node` is TaintNode),
times, texts, numbers, and None beside any of them. The API conventions allow no floats, because clients round them
differently. A float is a text in the form of resource.Quantity that converts back exactly. A field that is a number or
a text has two names, `value` and `valueText`. A number that is not finite becomes text there, and in an optional field
it is left out.
"""

import math
import re
import types
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

QUANTITY = r"^[+-]?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]{1,3})?$"
"""Pattern of a number: resource.Quantity without its suffixes."""

NAMES: Mapping[str, str] = {
    "as_of": "observationTime",
    "at": "time",
    "begun_at": "startTime",
    "clean_since": "healthySinceTime",
    "created_at": "proposedTime",
    "deadline_at": "deadlineTime",
    "done_at": "completionTime",
    "expires_at": "expirationTime",
    "first_seen": "firstObservedTime",
    "last_seen": "lastObservedTime",
    "next_at": "nextStepTime",
    "pod_uids": "podUIDs",
}
"""API names that are not the field's name in camelCase. Times end in `Time`."""

TEXT_SUFFIX = "Text"
_QUANTITY = re.compile(QUANTITY, re.ASCII)


class FormError(ValueError):
    """An object does not have the form, or a value cannot be written in it. The message names the field."""


@dataclass(frozen=True, slots=True)
class FormField:
    """A dataclass field. api_name: its name in the API. kind: its type without None."""

    name: str
    api_name: str
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
    """A dataclass as data for JSON, without fields that have their default. Raises FormError."""
    found: dict[str, Any] = {}
    for each in form_fields(cast("Hashable", type(value))):
        held = getattr(value, each.name)
        if held is None or (not each.required and held == each.default()):
            continue
        place = f"{where}.{each.api_name}".removeprefix(".")
        if each.kind is NumberOrText:
            if isinstance(held, str) or not math.isfinite(held):
                found[each.api_name + TEXT_SUFFIX] = str(held)
            else:
                found[each.api_name] = _quantity(held)
        elif isinstance(held, float) and not math.isfinite(held) and each.optional:
            continue
        else:
            found[each.api_name] = _written(held, place)
    return found


def from_api(data: object, kind: type[T], where: str = "") -> T:
    """The dataclass from JSON data; unknown names are ignored. Raises FormError."""
    if not isinstance(data, Mapping):
        raise FormError(f"{where or 'it'} is not an object")
    values: dict[str, Any] = {}
    for each in form_fields(cast("Hashable", kind)):
        place = f"{where}.{each.api_name}".removeprefix(".")
        held = data.get(each.api_name)
        if each.kind is NumberOrText and held is None:
            text = data.get(each.api_name + TEXT_SUFFIX)
            if text is not None:
                values[each.name] = _scalar(text, str, place + TEXT_SUFFIX)
                continue
        if held is None:
            if each.required and not each.optional:
                raise FormError(f"{place} is missing")
            if each.required:
                values[each.name] = None
            continue
        values[each.name] = _read(held, each.kind, place)
    return kind(**values)


def with_unknown(old: object, new: Any, kind: Any) -> Any:
    """`new`, and the fields of `old` that only a later version knows. List items are matched by index."""
    if get_origin(kind) is tuple and isinstance(old, list):
        (item, _) = get_args(kind)
        return [with_unknown(was, each, item) for was, each in zip(old, new, strict=False)] + new[len(old) :]
    if not is_dataclass(kind) or not isinstance(old, Mapping):
        return new
    known = form_fields(cast("Hashable", kind))
    names = {each.api_name for each in known} | {
        each.api_name + TEXT_SUFFIX for each in known if each.kind is NumberOrText
    }
    kept = {name: value for name, value in old.items() if name not in names}
    return {
        **kept,
        **new,
        **{
            each.api_name: with_unknown(old.get(each.api_name), new[each.api_name], each.kind)
            for each in known
            if each.api_name in new
        },
    }


def camel_enum(member: Enum) -> str:
    """The value in CamelCase: 'taint_node' becomes TaintNode, 'Proposed' stays."""
    return "".join(word[:1].upper() + word[1:] for word in str(member.value).split("_"))


def camel(name: str) -> str:
    first, *rest = name.rstrip("_").split("_")
    return first + "".join(word.capitalize() for word in rest)


class NumberOrText:
    """Stands for the type `float | str`."""


@cache
def form_fields(kind: Hashable) -> tuple[FormField, ...]:
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise TypeError(f"{kind} has no form in the API")
    hints = get_type_hints(kind)
    found = []
    for each in fields(kind):
        bare, optional = _without_none(hints[each.name])
        found.append(FormField(each.name, NAMES.get(each.name) or camel(each.name), bare, optional, each))
    return tuple(found)


@cache
def enum_members(kind: type[Enum]) -> Mapping[str, Enum]:
    return {camel_enum(each): each for each in kind}


def _without_none(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) not in (Union, types.UnionType):
        return kind, False
    parts = set(get_args(kind))
    optional = type(None) in parts
    parts.discard(type(None))
    if parts == {float, str}:
        return NumberOrText, optional
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
        return camel_enum(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise FormError(f"{where} is {value}, which is not finite")
        return _quantity(value)
    return value


def _quantity(value: float) -> str:
    """The shortest text that converts back exactly."""
    return repr(float(value)).removesuffix(".0")


def _read(data: Any, kind: Any, where: str) -> Any:
    if is_dataclass(kind):
        return from_api(data, cast(type[Any], kind), where)
    origin = get_origin(kind)
    if origin is tuple:
        (item, _) = get_args(kind)
        if not isinstance(data, list):
            raise FormError(f"{where} is not a list")
        return tuple(_read(each, item, f"{where}[{index}]") for index, each in enumerate(data))
    if origin is not None:
        (_, item) = get_args(kind)
        if not isinstance(data, Mapping):
            raise FormError(f"{where} is not an object")
        return {key: _read(each, item, f"{where}[{key}]") for key, each in data.items()}
    if kind is NumberOrText or kind is float:
        if isinstance(data, str) and _QUANTITY.fullmatch(data):
            return float(data)
        raise FormError(f"{where} is {data!r}, which is not a number as text, such as '0.5'")
    return _scalar(data, kind, where)


def _scalar(data: Any, kind: Any, where: str) -> Any:
    try:
        if issubclass(kind, Enum):
            return enum_members(kind)[data]
        if kind is datetime and (at := datetime.fromisoformat(data)).tzinfo is not None:
            return at.astimezone(UTC)
    except (KeyError, TypeError, ValueError) as error:
        raise FormError(f"{where} is {data!r}, which is no {kind.__name__}") from error
    if kind is datetime:
        raise FormError(f"{where} is {data!r}, a time without a zone")
    if type(data) is not kind:
        raise FormError(f"{where} is {data!r}, which is no {kind.__name__}")
    return data
