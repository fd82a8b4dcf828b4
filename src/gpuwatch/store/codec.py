"""Values as bytes: msgpack of the nouns by the names of their fields, so that a field that is new has its default.

Fields of a class are found by itself; nothing here lists them. Times come back in UTC.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Any, TypeVar, cast

import msgspec

VERSION = 1
"""Of a row's body. A change after which an older gpuwatch would misread a row counts it up."""

T = TypeVar("T")

# Names of fields repeat in every cell: level 1 finds those, and higher ones find little more at a multiple of the time.
_LEVEL = 1


class DamagedError(Exception):
    """The bytes are not what was written; the message says in what way."""


class FutureError(Exception):
    """Written by a newer gpuwatch."""


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A value as it is kept. digest: of the version, and of the body before it is compressed; so both change and damage
    are seen."""

    version: int
    digest: bytes
    body: bytes


def encode(value: object) -> tuple[bytes, bytes]:
    """Digest and bytes, not compressed yet: most rows have not changed and need not be."""
    data = msgspec.msgpack.encode(value)
    return _digest(data), data


def row(digest: bytes, data: bytes) -> StoredRow:
    return StoredRow(VERSION, digest, zlib.compress(data, _LEVEL))


def decode(kept: StoredRow, kind: type[T]) -> T:
    """Raises FutureError of a later version's row, DamagedError of bytes that are not what was written."""
    decoder: msgspec.msgpack.Decoder[T] = _decoder(cast("Hashable", kind))
    data = _whole(kept)
    if kept.version > VERSION:
        raise FutureError(kept.version)
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise DamagedError(str(error)) from error


def is_from_the_future(kept: StoredRow) -> bool:
    """Did a newer gpuwatch write this row? Not if it is damaged."""
    try:
        return bool(_whole(kept)) and kept.version > VERSION
    except DamagedError:
        return False


def _whole(kept: StoredRow) -> bytes:
    try:
        data = zlib.decompress(kept.body)
    except (zlib.error, TypeError) as error:
        raise DamagedError(f"not a whole value ({error})") from error
    if _digest(data, kept.version) != kept.digest:
        raise DamagedError("its bytes are not those that were written")
    return data


@cache
def _decoder(kind: Hashable) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(cast(Any, kind))


def _digest(data: bytes, version: int = VERSION) -> bytes:
    return blake2b(data, digest_size=16, salt=f"version {version}".encode()[:16]).digest()
