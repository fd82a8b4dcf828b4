"""The objects of one resource, kept up to date by a thread that watches it."""

import logging
import random
import threading
import time
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from kubernetes.client import ApiClient

from gpuwatch.facts.frameworks.framework import Kind
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
from gpuwatch.sources.kube.transport import Limits
from gpuwatch.sources.kube.watch import BrokenError, LostError, Position, Watch

T = TypeVar("T")
log = logging.getLogger("gpuwatch.sources.kube")


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits of watches.

    watch_seconds: duration of one watch. A minute: an orderly end, which the API server announces with a bookmark,
    proves that no event is missing; and a proxy that buffers delays events by a minute at most.
    grace_seconds: how late a watch may end.
    stale_seconds: without an event, a bookmark or an orderly end for longer, the resource is listed again. Longer than
    one whole watch and half of the next.
    verification_timeout_seconds: time between two comparisons of the objects with a new list.
    idle_seconds: a resource that no read has used for so long is no longer watched.
    """

    watch_seconds: float = 60.0
    grace_seconds: float = 15.0
    stale_seconds: float = 120.0
    verification_timeout_seconds: float = 3600.0
    idle_seconds: float = 600.0


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
        self.keep = keep
        self.name = name_of(kind)
        self._client, self._limits, self._patience = client, limits, patience
        self._lock = threading.Lock()
        self._objects = {uid: held for uid, held in listed.items if held is not None}
        self._nameless, self._nameless_places = listed.bad, listed.bad_places
        self._position = Position(kind, listed.version, listed.resource_version)
        self._began = self._heard = self._used = began
        self.verify_later()
        self._trouble = ""
        self._lost = ""
        self._watch: Watch | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {self.name}", daemon=True)
        self.start, self.join = self._thread.start, self._thread.join

    @property
    def count(self) -> int:
        return len(self._objects)

    def age_seconds(self) -> float:
        return time.monotonic() - self._heard

    def trouble(self) -> str:
        """Why the objects can no longer be used, or ''. The call counts as a use (see `idle`)."""
        self._used = time.monotonic()
        if self._lost or self.age_seconds() <= self._patience.stale_seconds:
            return self._lost
        silence = self._trouble or "the watch is silent"
        return f"no event, bookmark or orderly end for more than {self._patience.stale_seconds:g} s ({silence})"

    def proven(self) -> bool:
        """Whether the watch has delivered anything."""
        return self._heard > self._began

    def idle(self) -> bool:
        return time.monotonic() - self._used > self._patience.idle_seconds

    def moment(self) -> tuple[Position, dict[str, CachedObject]]:
        with self._lock:
            return self._position, dict(self._objects)

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
        gaps = (*self._nameless, *bad.gaps(self._position.kind.resource))
        return Listing(values, bad=gaps, bad_places=self._nameless_places | bad.places)

    def stop(self) -> None:
        self._stopping.set()
        watch = self._watch
        if watch is not None:
            watch.stop()

    def verify_later(self) -> None:
        self.verify_at = time.monotonic() + self._patience.verification_timeout_seconds * _random(0.8)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            seconds = self._patience.watch_seconds * _random(0.8)
            began = time.monotonic()
            wanted: float | None = None
            self._watch = watch = Watch(self._client, self._limits)
            if self._stopping.is_set():
                return  # `stop` came before the watch that it has to end
            try:
                for event in watch.events(self._position, seconds, self._patience.grace_seconds):
                    if self._stopping.is_set():
                        return
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
        before = self._position.resource_version
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
            self._position = Position(self._position.kind, self._position.version, reached)
            self._heard = time.monotonic()


def _random(least: float) -> float:
    """A factor from `least` to 1, so that watches that started together do not stay in step."""
    return random.uniform(least, 1.0)  # noqa: S311
