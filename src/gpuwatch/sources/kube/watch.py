"""One watch: a stream of JSON events, one per line, until the server ends it."""

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import urllib3
from kubernetes.client import ApiClient, ApiException

from gpuwatch.facts.frameworks.framework import Kind
from gpuwatch.sources.kube import wire
from gpuwatch.sources.kube.decode import UNDECODABLE
from gpuwatch.sources.kube.transport import JSON, Limits, address, ask, cause_of, decoded_status, explained, retry_after

_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_event = msgspec.json.Decoder(wire.Event)

_READ_BYTES = 65536

_LONGEST_LINE_BYTES = 32 * 2**20
"""etcd limits a stored object to about 1.5 MiB of protobuf; as JSON it is a few times larger."""


class BrokenError(Exception):
    """The watch broke; another can continue from its position. pause_seconds: the server's Retry-After."""

    def __init__(self, detail: str, pause_seconds: float | None = None) -> None:
        super().__init__(detail)
        self.pause_seconds = pause_seconds


class LostError(Exception):
    """No watch can continue from the position; a new list is needed."""


@dataclass(frozen=True, slots=True)
class Position:
    """version: the API version that was listed. resource_version: all changes up to it are known."""

    kind: Kind
    version: str
    resource_version: str


class Watch:
    """One request, which `stop` ends from another thread."""

    def __init__(self, client: ApiClient, limits: Limits) -> None:
        self._client = client
        self._limits = limits
        self._answer: Any = None
        self._stopped = threading.Event()

    def events(self, position: Position, seconds: float, grace_seconds: float) -> Iterator[wire.Event]:
        """Events after the position, until the server ends the watch in order. seconds: the requested duration.
        grace_seconds: how much longer the server may take or send nothing. Raises BrokenError and LostError. Event
        types and objects are not validated."""
        parameters = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": position.resource_version,
            "timeoutSeconds": str(math.ceil(seconds)),
        }
        patience = seconds + grace_seconds
        end = time.monotonic() + patience
        kind = position.kind
        accept = _METADATA if kind.metadata_only else JSON
        timeout = (self._limits.connect_timeout_seconds, patience)
        try:
            self._answer = ask(self._client, kind.path(position.version), parameters, timeout, accept=accept)
        except ApiException as error:
            raise _refused(error, kind) from error
        except urllib3.exceptions.HTTPError as error:
            raise BrokenError(self._no_answer(error)) from error
        try:
            if not self._stopped.is_set():
                yield from self._lines(end)
        except urllib3.exceptions.HTTPError as error:
            raise BrokenError(self._no_answer(error)) from error
        finally:
            # Returns a fully read connection to the pool, and closes any other.
            self._answer.response.close()

    def stop(self) -> None:
        self._stopped.set()
        answer = self._answer
        if answer is not None:
            with contextlib.suppress(ValueError, RuntimeError, OSError):  # it may just have ended
                answer.response.shutdown()

    def _lines(self, end: float) -> Iterator[wire.Event]:
        begun: list[bytes] = []
        length = 0
        while chunk := self._answer.response.read1(_READ_BYTES):
            *whole, rest = chunk.split(b"\n")
            if whole:
                whole[0] = b"".join((*begun, whole[0]))
                begun, length = [], 0
            for line in whole:
                if line.strip():
                    yield _decoded(line)
            begun.append(rest)
            length += len(rest)
            if length > _LONGEST_LINE_BYTES:
                raise LostError(f"a line of the watch has more than {_LONGEST_LINE_BYTES} bytes")
            if time.monotonic() > end:
                raise BrokenError("the server did not end it in time")
        if length:
            raise BrokenError("it ended in the middle of an event")

    def _no_answer(self, error: Exception) -> str:
        return f"no answer from {address(self._client)}: {cause_of(error)}"


def _decoded(line: bytes) -> wire.Event:
    try:
        event = _event.decode(line)
    except UNDECODABLE as error:
        raise LostError(f"a line of the watch is no event in JSON ({error})") from error
    if event.type == "ERROR":
        said = decoded_status(event.object)
        raise LostError(f"the server ended it with an error ({said.code or 'no code'}: {said.message or said.reason})")
    return event


def _refused(error: ApiException, kind: Kind) -> Exception:
    status = int(error.status or 0)
    detail = explained(error, kind, "watch").detail.rstrip(".")
    if status in {401, 429} or status >= 500:
        return BrokenError(detail, retry_after(error))
    return LostError(detail)
