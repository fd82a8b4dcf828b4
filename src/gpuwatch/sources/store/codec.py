"""Values as msgpack with field names, so that a new field gets its default. Times are read back in UTC."""

import zlib
from collections.abc import Hashable
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

T = TypeVar("T")

# Level 1 compresses the repeated field names; higher levels save little more in a multiple of the time.
_LEVEL = 1


class DamagedError(Exception):
    """The bytes are not those that were written."""


class StoredRow(NamedTuple):
    """digest: of the uncompressed body; it detects both change and damage."""

    digest: bytes
    body: bytes


def encode(value: object) -> tuple[bytes, bytes]:
    """Digest and bytes, uncompressed: most rows have not changed and are not written."""
    data = msgspec.msgpack.encode(value)
    return _digest(data), data


def row(digest: bytes, data: bytes) -> StoredRow:
    return StoredRow(digest, zlib.compress(data, _LEVEL))


def decode(kept: StoredRow, kind: type[T]) -> T:
    """Raises DamagedError."""
    decoder: msgspec.msgpack.Decoder[T] = _decoder(cast("Hashable", kind))
    try:
        data = zlib.decompress(kept.body)
    except (zlib.error, TypeError) as error:
        raise DamagedError(f"not a whole value ({error})") from error
    if _digest(data) != kept.digest:
        raise DamagedError("its bytes are not those that were written")
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise DamagedError(str(error)) from error


@cache
def _decoder(kind: Hashable) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(cast(Any, kind))


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
