"""Values as bytes: msgpack of the nouns by the names of their fields, so that a field that is new has its default.

Fields of a class are found by itself; nothing here lists them. Times come back in UTC.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from hashlib import blake2b
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from gpuwatch.model.workload_profile import ProfileBook

VERSION = 1
"""Of a row's body. A change after which an older gpuwatch would misread a row counts it up."""

T = TypeVar("T")

# Names of fields repeat in every cell: level 1 finds those, and higher ones find little more at a multiple of the time.
_LEVEL = 1

IN_ROWS = frozenset({"profiles", "usage"})
"""Fields of a ProfileBook that have a table of their own."""


class DamagedError(Exception):
    """The bytes are not what was written; the message says in what way."""


class FutureError(Exception):
    """Written by a newer gpuwatch."""


@dataclass(frozen=True, slots=True)
class Row:
    """A value as it is kept. digest: of the body before it is compressed, to see both change and damage."""

    version: int
    digest: bytes
    body: bytes


def encode(value: object) -> tuple[bytes, bytes]:
    """Digest and bytes, not compressed yet: most rows have not changed and need not be."""
    data = msgspec.msgpack.encode(value)
    return _digest(data), data


def row(digest: bytes, data: bytes) -> Row:
    return Row(VERSION, digest, zlib.compress(data, _LEVEL))


def decode(kept: Row, kind: type[T]) -> T:
    """Raises FutureError of a later version's row, DamagedError of bytes that are not what was written."""
    decoder: msgspec.msgpack.Decoder[T] = _decoder(cast("Hashable", kind))
    if isinstance(kept.version, int) and kept.version > VERSION:
        raise FutureError(kept.version)
    try:
        data = zlib.decompress(kept.body)
        if _digest(data) != kept.digest:
            raise DamagedError("its bytes are not those that were written")
        return decoder.decode(data)
    except (zlib.error, TypeError) as error:
        raise DamagedError(f"not a whole value ({error})") from error
    except msgspec.MsgspecError as error:
        raise DamagedError(str(error)) from error


def encode_parts(book: ProfileBook) -> dict[str, tuple[bytes, bytes]]:
    """Field → digest and bytes, of all fields that have no table of their own."""
    parts: dict[str, tuple[bytes, bytes]] = {}
    for name in _part_kinds():
        value = getattr(book, name)
        if isinstance(value, Mapping) and _is_by_pairs(name):
            value = tuple(value.items())
        parts[name] = encode(value)
    return parts


def decode_part(name: str, kept: Row) -> object:
    """The value of one field of a ProfileBook. Errors as `decode`."""
    hint = _part_kinds()[name]
    if not _is_by_pairs(name):
        return decode(kept, hint)
    pairs: Any = tuple[tuple[get_args(hint)], ...]  # type: ignore[misc]
    return dict(decode(kept, pairs))


def part_names() -> frozenset[str]:
    """Fields of a ProfileBook that are kept by `encode_parts`."""
    return frozenset(_part_kinds())


def required_parts() -> frozenset[str]:
    """Fields of a ProfileBook without which there is none."""
    return frozenset(
        each.name
        for each in fields(ProfileBook)
        if each.name not in IN_ROWS and each.default is MISSING and each.default_factory is MISSING
    )


@cache
def _part_kinds() -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(ProfileBook).items() if name not in IN_ROWS}


def _is_by_pairs(name: str) -> bool:
    """msgpack's maps have plain keys; a mapping by anything else is kept as pairs."""
    hint = _part_kinds()[name]
    return get_origin(hint) is Mapping and get_args(hint)[0] not in {str, int}


@cache
def _decoder(kind: Hashable) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(cast(Any, kind))


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
