"""Values as msgpack with field names, so that a new field gets its default. Times are read back in UTC."""

import zlib
from collections.abc import Hashable
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

VERSION = 1
"""Version of a row's body. Increase it when an older gpuwatch would misread the new form."""

T = TypeVar("T")

# Level 1 compresses the repeated field names; higher levels save little more in a multiple of the time.
_LEVEL = 1


class DamagedError(Exception):
    """The bytes are not those that were written."""


class FutureError(Exception):
    """Written by a newer gpuwatch."""


class StoredRow(NamedTuple):
    """digest: of the version and the uncompressed body; it detects both change and damage."""

    version: int
    digest: bytes
    body: bytes


def encode(value: object) -> tuple[bytes, bytes]:
    """Digest and bytes, uncompressed: most rows have not changed and are not written."""
    data = msgspec.msgpack.encode(value)
    return _digest(data), data


def row(digest: bytes, data: bytes) -> StoredRow:
    return StoredRow(VERSION, digest, zlib.compress(data, _LEVEL))


def decode(kept: StoredRow, kind: type[T]) -> T:
    """Raises FutureError for a row of a later version, DamagedError for a damaged one."""
    decoder: msgspec.msgpack.Decoder[T] = _decoder(cast("Hashable", kind))
    data = _whole(kept)
    if kept.version > VERSION:
        raise FutureError(kept.version)
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise DamagedError(str(error)) from error


def is_from_the_future(kept: StoredRow) -> bool:
    """Whether a newer gpuwatch wrote this row; False if it is damaged."""
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
