"""Pushes samples with exact timestamps into a running Prometheus: what the text format cannot carry.

The protocol is Prometheus remote write 1.0: a snappy-compressed protobuf message
`WriteRequest{1: TimeSeries{1: Label{1: name, 2: value}, 2: Sample{1: double value, 2: int64 milliseconds}}}`.
"""

import struct
import urllib.request
from collections.abc import Iterable, Mapping

import pyarrow

_STALE = struct.pack("<Q", 0x7FF0000000000002)
"""The NaN by which Prometheus marks the end of a series; packed, as passing through a float may quieten it."""


def write(url: str, series: Iterable[tuple[Mapping[str, str], Iterable[tuple[float, float | None]]]]) -> None:
    """Series as (labels with `__name__`, (Unix seconds, value) oldest first); a value of None is a staleness marker."""
    post(url, b"".join(field(1, _time_series(labels, samples)) for labels, samples in series))


def post(url: str, request: bytes) -> None:
    """Send an encoded WriteRequest."""
    body = pyarrow.compress(request, codec="snappy", asbytes=True)
    headers = {
        "Content-Encoding": "snappy",
        "Content-Type": "application/x-protobuf",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    message = urllib.request.Request(f"{url}/api/v1/write", data=body, headers=headers, method="POST")
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(message, timeout=60) as answer:
        answer.read()


def _time_series(labels: Mapping[str, str], samples: Iterable[tuple[float, float | None]]) -> bytes:
    named = b"".join(
        field(1, field(1, name.encode()) + field(2, value.encode())) for name, value in sorted(labels.items())
    )
    return named + b"".join(field(2, _sample(seconds, value)) for seconds, value in samples)


def _sample(seconds: float, value: float | None) -> bytes:
    bits = _STALE if value is None else struct.pack("<d", value)
    return b"\x09" + bits + b"\x10" + varint(round(seconds * 1000))


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field of a protobuf message."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def varint(value: int) -> bytes:
    """Protobuf's variable-length integer."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
