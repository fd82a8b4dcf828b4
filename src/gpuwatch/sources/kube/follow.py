"""The objects of one resource, kept up to date by a thread that watches it: one request after another, each a stream of
JSON events, one per line, until the server ends it."""

import contextlib
import logging
import math
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
import urllib3
from kubernetes.client import ApiClient, ApiException

from gpuwatch.facts.frameworks.framework import Kind
from gpuwatch.facts.model.plain_text import plain_json
from gpuwatch.sources.kube import wire
from gpuwatch.sources.kube.decode import (
    UNDECODABLE,
    BadObjects,
    Listing,
    Take,
    decode_bare,
    decode_named,
    own_annotations,
)
from gpuwatch.sources.kube.kinds import LISTED_OWNERS, POD
from gpuwatch.sources.kube.owners import TakeOwner
from gpuwatch.sources.kube.transport import JSON, Limits, address, ask, cause_of, decoded_status, explained, retry_after

T = TypeVar("T")
log = logging.getLogger("gpuwatch.sources.kube")

_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_event = msgspec.json.Decoder(wire.Event)

_READ_BYTES = 65536


class BrokenError(Exception):
    """The watch broke; another can continue from where it was. pause_seconds: the server's Retry-After."""

    def __init__(self, detail: str, pause_seconds: float | None = None) -> None:
        super().__init__(detail)
        self.pause_seconds = pause_seconds


class LostError(Exception):
    """No watch can continue from there; a new list is needed."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits of watches.

    watch_seconds: duration of one watch. A minute: an orderly end, which the API server announces with a bookmark,
    proves that no event is missing; and a proxy that buffers delays events by a minute at most.
    grace_seconds: how late a watch may end.
    stale_seconds: without an event, a bookmark or an orderly end for longer, the resource is listed again. Longer than
    one whole watch and half of the next.
    verification_timeout_seconds: time between two comparisons of the objects with a new list.
    """

    watch_seconds: float = 60.0
    grace_seconds: float = 15.0
    stale_seconds: float = 120.0
    verification_timeout_seconds: float = 3600.0


DEFAULT_PATIENCE = Patience()


@dataclass(frozen=True, slots=True)
class CachedObject:
    """place: namespace/name, the order of lists. error: why the object could not be decoded."""

    place: str
    value: Any
    error: str = ""


class Keep:
    """Makes of an object the value that is cached: what `take` returns. Kinds with many unused owners (ReplicaSets: ten
    for each Deployment) are cached as JSON, and only the wanted objects are decoded."""

    def __init__(self, take: Take[Any]) -> None:
        self._take = take
        self.chosen = isinstance(take, TakeOwner) and take.kind.metadata_only

    def __call__(self, raw: msgspec.Raw) -> tuple[str, CachedObject | None]:
        """The uid and the object, None when it is not used. Raises DecodeError or ValueError for other JSON."""
        meta = decode_named(raw).metadata
        if meta is None or not meta.name:
            raise ValueError("an object without a name")
        place = f"{meta.namespace}/{meta.name}".lstrip("/")
        uid = meta.uid or place
        try:
            value = _trimmed(raw) if self.chosen else self._take(raw)
        except (msgspec.DecodeError, ValueError) as error:
            return uid, CachedObject(place, None, str(error))
        return uid, None if value is None else CachedObject(place, value)


def _trimmed(raw: msgspec.Raw) -> bytes:
    meta = decode_bare(raw).metadata
    kept = msgspec.structs.replace(meta, annotations=own_annotations(meta.annotations) or None)
    return msgspec.json.encode(wire.Bare(kept))


def name_of(kind: Kind) -> str:
    # Pods are watched twice when some of them own others.
    return f"{kind.resource} (owners)" if kind is LISTED_OWNERS.get(POD.key) else kind.resource


class Follow:
    def __init__(
        self,
        client: ApiClient,
        limits: Limits,
        patience: Patience,
        kind: Kind,
        keep: Keep,
        listed: Listing[tuple[str, CachedObject | None]],
        began: float,
    ) -> None:
        """began: time of the list request, on the monotonic clock."""
        self.keep, self.kind = keep, kind
        self.name = name_of(kind)
        self._client, self._limits, self._patience = client, limits, patience
        self._lock = threading.Lock()
        self._objects = {uid: held for uid, held in listed.items if held is not None}
        self._nameless, self._nameless_places = listed.bad, listed.bad_places
        self.version = listed.version  # of the API
        self._reached = listed.resource_version  # all changes up to it are known
        self._began = self._heard = began
        self.verify_later()
        self._trouble = self._lost = ""
        self._answer: Any = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {self.name}", daemon=True)
        self.start, self.join = self._thread.start, self._thread.join

    @property
    def count(self) -> int:
        return len(self._objects)

    def age_seconds(self) -> float:
        return time.monotonic() - self._heard

    def trouble(self) -> str:
        """Why the objects can no longer be used, or ''."""
        if self._lost or self.age_seconds() <= self._patience.stale_seconds:
            return self._lost
        silence = self._trouble or "the watch is silent"
        return f"no event, bookmark or orderly end for more than {self._patience.stale_seconds:g} s ({silence})"

    def proven(self) -> bool:
        """Whether the watch has delivered anything."""
        return self._heard > self._began

    def moment(self) -> tuple[str, dict[str, CachedObject]]:
        """The resourceVersion up to which all changes are known, and the objects by uid."""
        with self._lock:
            return self._reached, dict(self._objects)

    def listing(self, take: Take[T]) -> Listing[T]:
        """What a list would return, in the same order."""
        with self._lock:
            if isinstance(take, TakeOwner) and take.wanted:
                held = [self._objects[uid] for uid in take.wanted if uid in self._objects]
            else:
                held = list(self._objects.values())
        held.sort(key=attrgetter("place"))
        bad = BadObjects()
        for item in held:
            if item.error:
                bad.add(item.place, f": {item.error}")
        values = [item.value for item in held if not item.error]
        if self.keep.chosen:
            values = [value for value in map(take, map(msgspec.Raw, values)) if value is not None]
        gaps = (*self._nameless, *bad.gaps(self.kind.resource))
        return Listing(values, bad=gaps, bad_places=self._nameless_places | bad.places)

    def stop(self) -> None:
        self._stopping.set()
        answer = self._answer
        if answer is not None:
            with contextlib.suppress(ValueError, RuntimeError, OSError):  # it may just have ended
                answer.response.shutdown()

    def verify_later(self) -> None:
        self.verify_at = time.monotonic() + self._patience.verification_timeout_seconds * _random(0.8)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            seconds = self._patience.watch_seconds * _random(0.8)
            began = time.monotonic()
            wanted: float | None = None
            try:
                for event in self._events(seconds):
                    self._apply(event)
            except LostError as error:
                self._lost = str(error)
                return
            except BrokenError as error:
                self._trouble, wanted = str(error), error.pause_seconds
            except Exception:
                if self._stopping.is_set():
                    return  # `stop` closed its connection
                log.exception("the watch of %s", self.name)
                self._lost = "gpuwatch itself failed; its log has the error"
                return
            else:
                if time.monotonic() - began >= seconds / 2:
                    self._heard, self._trouble, failures = time.monotonic(), "", 0
                    continue
                self._trouble = "the server ended the watch too early"
            failures = 0 if self._heard > began else failures + 1
            self._stopping.wait(self._pause(failures, wanted))

    def _events(self, seconds: float) -> Iterator[wire.Event]:
        """Of one watch of so many seconds, until the server ends it in order. Raises BrokenError and LostError. Event
        types and objects are not validated."""
        parameters = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._reached,
            "timeoutSeconds": str(math.ceil(seconds)),
        }
        patience = seconds + self._patience.grace_seconds
        end = time.monotonic() + patience
        accept = _METADATA if self.kind.metadata_only else JSON
        timeout = (self._limits.connect_timeout_seconds, patience)
        try:
            self._answer = ask(self._client, self.kind.path(self.version), parameters, timeout, accept=accept)
            if not self._stopping.is_set():  # `stop` may have come before there was an answer to end
                yield from self._lines(end)
        except ApiException as error:
            raise _refused(error, self.kind) from error
        except urllib3.exceptions.HTTPError as error:
            raise BrokenError(f"no answer from {address(self._client)}: {cause_of(error)}") from error
        finally:
            # Returns a fully read connection to the pool, and closes any other.
            answer, self._answer = self._answer, None
            if answer is not None:
                answer.response.close()

    def _lines(self, end: float) -> Iterator[wire.Event]:
        begun: list[bytes] = []
        while chunk := self._answer.response.read1(_READ_BYTES):
            *whole, rest = chunk.split(b"\n")
            if whole:
                whole[0] = b"".join((*begun, whole[0]))
                begun = []
            for line in whole:
                if line.strip():
                    yield _decoded(line)
            begun.append(rest)
            if time.monotonic() > end:
                raise BrokenError("the server did not end it in time")
        if any(begun):
            raise BrokenError("it ended in the middle of an event")

    def _pause(self, failures: int, wanted: float | None) -> float:
        """Seconds. wanted: the server's Retry-After, a lower bound."""
        backoff = self._limits.backoff_seconds * 2.0 ** min(failures, 16) * _random(0.5)
        least = min(wanted or 0.0, self._limits.longest_pause_seconds)
        return max(min(backoff, self._limits.longest_pause_seconds), least)

    def _apply(self, event: wire.Event) -> None:
        if event.type not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            raise LostError(f"the watch brought an event of the unknown type {event.type[:40]!r}")
        try:
            meta = decode_named(event.object).metadata
            found = None if event.type == "BOOKMARK" else self.keep(event.object)
        except (*UNDECODABLE, ValueError) as error:
            raise LostError(f"the watch brought an event without a valid object ({error})") from error
        reached = meta.resource_version if meta is not None else ""
        before = self._reached
        if not reached.strip("0"):
            raise LostError("the watch brought an event without a resourceVersion")
        if reached.isdecimal() and before.isdecimal() and int(reached) < int(before):
            # Happens when etcd was restored from a backup.
            raise LostError(f"the watch went back, from {before} to {reached}")
        with self._lock:
            if found is not None:
                uid, held = found
                if event.type == "DELETED" or held is None:
                    self._objects.pop(uid, None)
                else:
                    self._objects[uid] = held
            self._reached, self._heard = reached, time.monotonic()


def _decoded(line: bytes) -> wire.Event:
    try:
        event = _event.decode(plain_json(line))
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


def _random(least: float) -> float:
    """A factor from `least` to 1, so that watches that started together do not stay in step."""
    return random.uniform(least, 1.0)  # noqa: S311
