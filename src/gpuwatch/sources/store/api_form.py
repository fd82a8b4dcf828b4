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
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from gpuwatch.facts.model.plain_text import plain

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
    """A dataclass field. api_name: its name in the API. kind: its type without None. default: MISSING where it has
    none."""

    name: str
    api_name: str
    kind: Any
    optional: bool
    default: object

    @property
    def required(self) -> bool:
        return self.default is MISSING


def to_api(value: object, where: str = "") -> dict[str, Any]:
    """A dataclass as data for JSON, without fields that have their default. Raises FormError."""
    found: dict[str, Any] = {}
    for each in form_fields(cast("Hashable", type(value))):
        held = getattr(value, each.name)
        if held is None or held == each.default:
            continue
        place = f"{where}.{each.api_name}".removeprefix(".")
        if each.kind is NumberOrText:
            if isinstance(held, str) or not math.isfinite(held):
                found[each.api_name + TEXT_SUFFIX] = plain(str(held))
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
        held, of = data.get(each.api_name), each.kind
        if of is NumberOrText:
            of = float
            if held is None and (text := data.get(each.api_name + TEXT_SUFFIX)) is not None:
                held, of, place = text, str, place + TEXT_SUFFIX
        if held is not None:
            values[each.name] = _read(held, of, place)
        elif each.required:
            if not each.optional:
                raise FormError(f"{place} is missing")
            values[each.name] = None
    return kind(**values)


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
        default = each.default if each.default_factory is MISSING else each.default_factory()
        found.append(FormField(each.name, NAMES.get(each.name) or camel(each.name), bare, optional, default))
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
    if isinstance(value, str):
        return plain(value)
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
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        return tuple(_read(each, inner[0], f"{where}[{at}]") for at, each in enumerate(_scalar(data, list, where)))
    if origin is not None:
        return {key: _read(each, inner[1], f"{where}[{key}]") for key, each in _scalar(data, dict, where).items()}
    return _scalar(data, kind, where)


def _scalar(data: Any, kind: type, where: str) -> Any:
    found: Any = None
    if issubclass(kind, Enum) or kind in _OF_TEXT:
        if isinstance(data, str):
            found = enum_members(kind).get(data) if issubclass(kind, Enum) else _OF_TEXT[kind](data)
    elif type(data) is kind:
        found = plain(data) if isinstance(data, str) else data
    if found is None:
        raise FormError(f"{where} is {data!r}, which is no {_CALLED.get(kind, kind.__name__)}")
    return found


def _time(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.astimezone(UTC) if at.tzinfo is not None else None


def _number(text: str) -> float | None:
    return float(text) if _QUANTITY.fullmatch(text) else None


_OF_TEXT: Mapping[type, Callable[[str], object]] = {datetime: _time, float: _number}
_CALLED = {datetime: "time with a zone", float: "number as text, such as '0.5'", dict: "object"}
