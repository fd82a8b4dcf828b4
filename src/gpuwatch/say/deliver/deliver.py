"""Sends reports and notifications, and notes each attempt in the state; later turns try again what failed.

Folders and S3 hold a report once, since its name derives from its content or identity. Chats, mail and webhooks get it
at least once: a process that is killed before it has noted their answer sends it again, with the same Idempotency-Key.
"""

import hashlib
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from gpuwatch.facts.model.delivery import Delivery, DeliveryState, Sending
from gpuwatch.say.deliver.destinations import Destination, Message, SendError, destinations
from gpuwatch.say.deliver.policy import DeliveryPolicy
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.state_file import replace_file
from gpuwatch.sources.store.store import Store

ATTEMPTS = 4
"""In one turn, each after a wait."""

BACKOFF_SECONDS, BACKOFF_MAX_SECONDS = 2.0, 60.0
"""First wait within a turn, and its maximum; it doubles each time, with jitter. A receiver's restart takes seconds."""

AGAIN_MAX_SECONDS = 14_400.0
"""Longest wait between two turns. With 4 attempts a turn and 40 in all, turns outlast an outage of eight hours."""

_AGAIN_SECONDS = 60.0
"""How long a state that could not be read is left alone."""

# No leading dot: neither hidden files nor the parent folder.
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")

log = logging.getLogger("gpuwatch.deliver")

Progress = Callable[[str], None]


class Sent:
    """What was sent to whom: rows of the state in memory, each saved when it changes. Nothing else outlives a process
    that delivers. For several threads. Every method raises StoreError.

    opened: opens the state; called for each read and write. lost: what a write raises that fails.
    """

    def __init__(
        self, opened: Callable[[], AbstractContextManager[Store]], lost: tuple[type[Exception], ...] = (StoreError,)
    ) -> None:
        self._opened = opened
        self._lost = lost
        self._lock = threading.Lock()
        self._rows: dict[str, Sending] | None = None
        self._unsaved: dict[str, Sending] = {}
        self._token = ""
        self._failed: tuple[float, StoreError] | None = None

    def all(self) -> dict[str, Sending]:
        with self._lock:
            return dict(self._loaded())

    def get(self, name: str) -> Sending | None:
        return self.all().get(name)

    def note(self, sending: Sending, *, later: bool = False) -> Sending:
        """Keep the row. later: save it with the next one that is noted. A row that cannot be saved counts here, and is
        saved with the next one too. Only a report waits for that: a notification may arrive twice."""
        with self._lock:
            rows = self._loaded()
            rows[sending.id] = self._unsaved[sending.id] = sending
            if not later:
                try:
                    with self._opened() as store:
                        store.save_deliveries(self._unsaved.values())
                    self._unsaved.clear()
                except self._lost as error:
                    if sending.report:
                        raise
                    log.warning("%s: what was sent is not saved: %s", sending.id, error)
        return sending

    def forget(self, names: Iterable[str]) -> int:
        """Remove rows; returns how many."""
        with self._lock:
            gone = self._loaded().keys() & set(names)
            if gone:
                with self._opened() as store:
                    store.save_deliveries((), gone)
            for name in gone:
                self._loaded().pop(name)
                self._unsaved.pop(name, None)
            return len(gone)

    def read_again(self) -> None:
        """Before the next use: another process may have written since."""
        with self._lock:
            self._rows = self._failed = None

    def token(self) -> str:
        """Of this state alone, for the identities of its reports."""
        with self._lock:
            if not self._token:
                with self._opened() as store:
                    self._token = store.token()
            return self._token

    def _loaded(self) -> dict[str, Sending]:
        if self._rows is None:
            if self._failed is not None and time.monotonic() - self._failed[0] < _AGAIN_SECONDS:
                raise self._failed[1]
            try:
                with self._opened() as store:
                    self._rows = {**store.deliveries(), **self._unsaved}
            except StoreError as error:
                self._failed = time.monotonic(), error
                raise
        return self._rows


def noted(sending: Sending, delivery: Delivery) -> Sending:
    """The row with this delivery in place of the one to the same destination."""
    all_ = (delivery if item.destination == delivery.destination else item for item in sending.deliveries)
    return replace(sending, deliveries=tuple(all_))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryContext:
    """How a long-running process delivers.

    now: a failed delivery waits for `again_after`; None tries at once. stopping: once set, no attempt begins and every
    wait ends. before_each: called before each attempt; its exceptions end the delivery. ended: called after each
    destination's turn, with whether it was sent. silent: destinations that failed in this turn, and are skipped; those
    that fail now are added.
    """

    now: datetime | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    before_each: Callable[[], None] = lambda: None
    ended: Callable[[bool], None] = lambda _: None
    silent: set[str] = field(default_factory=set)


def deliver(
    sending: Sending,
    files: Mapping[str, bytes],
    policy: DeliveryPolicy,
    sent: Sent,
    progress: Progress,
    context: DeliveryContext | None = None,
) -> tuple[Delivery, ...]:
    """Sends to every destination of `sending` that does not have it yet and is due. A destination's failure is in its
    Delivery and does not stop the others. Raises StoreError where the state cannot be written."""
    context = context or DeliveryContext()
    message = Message(id=sending.id, title=sending.title, summary_markdown=sending.text, files=files)
    by_name = {target.name: target for target in destinations(policy)}
    for delivery in sending.deliveries:
        target = by_name.get(delivery.destination)
        if context.stopping.is_set():
            break
        if delivery.state is DeliveryState.SENT:
            continue
        if target is None:
            gone = replace(delivery, state=DeliveryState.FAILED, error="the settings no longer name this destination")
            if gone != delivery:
                sending = sent.note(noted(sending, gone))
        elif delivery.attempts >= policy.max_attempts:
            if context.now is None:
                progress(f"{sending.title}: given up for {delivery.destination} after {delivery.attempts} attempts")
        elif target.name not in context.silent and (context.now is None or due(delivery, policy, context.now)):
            now = _send_to(message, sending, delivery, target, policy, sent, progress, context)
            sending = sent.note(noted(sending, now))
            context.ended(now.state is DeliveryState.SENT)
            if now.state is not DeliveryState.SENT:
                context.silent.add(target.name)
                if context.now is not None and over(now, policy):
                    progress(f"{sending.title}: given up for {target.name} after {now.attempts} attempts")
    return sending.deliveries


def with_new_destinations(sending: Sending, policy: DeliveryPolicy) -> Sending:
    known = {item.destination for item in sending.deliveries}
    new = tuple(Delivery(destination=target.name) for target in destinations(policy) if target.name not in known)
    return replace(sending, deliveries=(*sending.deliveries, *new))


def over(delivery: Delivery, policy: DeliveryPolicy) -> bool:
    """Whether it was sent or given up."""
    return delivery.state is DeliveryState.SENT or delivery.attempts >= policy.max_attempts


def due(delivery: Delivery, policy: DeliveryPolicy, now: datetime) -> bool:
    if over(delivery, policy):
        return False
    if delivery.state is DeliveryState.PENDING or delivery.tried_at is None:
        return True  # not tried yet, or cut short
    wait = timedelta(seconds=again_after(delivery.attempts, policy))
    return not timedelta(0) <= now - delivery.tried_at < wait


def again_after(attempts: int, policy: DeliveryPolicy) -> float:
    """Seconds from the last turn to the next one, after so many failed attempts in all.

    >>> [again_after(attempts, DeliveryPolicy()) for attempts in (0, 1, 4, 5, 8, 40)]
    [0.0, 60.0, 60.0, 120.0, 120.0, 14400.0]
    """
    turns = -(-attempts // ATTEMPTS)
    return min(policy.retry_seconds * 2.0 ** (turns - 1), AGAIN_MAX_SECONDS) if turns else 0.0


def _send_to(
    message: Message,
    sending: Sending,
    delivery: Delivery,
    target: Destination,
    policy: DeliveryPolicy,
    sent: Sent,
    progress: Progress,
    context: DeliveryContext,
) -> Delivery:
    """The delivery after this turn."""
    from tenacity import (
        RetryError,
        Retrying,
        retry_if_exception,
        sleep_using_event,
        stop_after_attempt,
        stop_when_event_set,
        wait_random_exponential,
    )

    left = stop_after_attempt(min(ATTEMPTS, policy.max_attempts - delivery.attempts))
    tries = Retrying(
        stop=left | stop_when_event_set(context.stopping),
        sleep=sleep_using_event(context.stopping),
        wait=wait_random_exponential(multiplier=BACKOFF_SECONDS, max=BACKOFF_MAX_SECONDS),
        retry=retry_if_exception(lambda error: isinstance(error, SendError) and not error.final),
        reraise=True,
    )
    try:
        for attempt in tries:
            if attempt.retry_state.attempt_number > 1 and context.stopping.is_set():
                return replace(delivery, state=DeliveryState.FAILED)  # the wait was cut short
            with attempt:
                context.before_each()
                # Counted before the attempt, so that a receiver that crashes this process does not do so for ever.
                delivery = replace(
                    delivery, state=DeliveryState.PENDING, attempts=delivery.attempts + 1, tried_at=context.now
                )
                sent.note(noted(sending, delivery))
                try:
                    target.send(message)
                except SendError as error:
                    delivery = replace(delivery, error=str(error))
                    progress(f"{message.title}: {target.name}, attempt {delivery.attempts}: {error}")
                    raise
                except Exception as error:  # noqa: BLE001 - a plug-in's fault fails its destination only
                    # The text may contain secrets, so only the type is recorded.
                    delivery = replace(delivery, error=f"unexpected {type(error).__name__}")
                    progress(f"{message.title}: {target.name}, attempt {delivery.attempts}: {delivery.error}")
                    raise SendError(delivery.error) from None
    except (SendError, RetryError):
        return replace(delivery, state=DeliveryState.FAILED)
    progress(f"{message.title}: sent to {target.name}")
    return replace(delivery, state=DeliveryState.SENT, error="")


def report_id(files: Mapping[str, bytes], title: str, summary_markdown: str) -> str:
    """Name of a report: its title and a hash of its content."""
    digest = hashlib.sha256()
    named = (part for name in sorted(files) for part in (name.encode(), files[name]))
    for part in (title.encode(), summary_markdown.encode(), *named):
        digest.update(len(part).to_bytes(8, "big") + part)
    return _named(title, digest.hexdigest())


def identified(title: str, identity: str) -> str:
    """Name of a report or notification that has an identity, with any content."""
    return _named(title, hashlib.sha256(identity.encode()).hexdigest())


def _named(title: str, digest: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].rstrip("-") or "report"
    return f"{words}-{digest[:12]}"


def write_report(folder: Path, files: Mapping[str, bytes]) -> None:
    """The report's own folder, by one rename, unless it is there. Raises OSError; ValueError for an invalid name."""
    for name in files:
        if not _FILE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid name for a report's file; use letters, digits, dots and dashes")
    if folder.exists():
        return
    draft = folder.with_name(f".draft-{folder.name}")
    shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
    draft.mkdir(parents=True)
    for name, content in files.items():
        replace_file(draft / name, [content])
    draft.rename(folder)


def read_report(folder: Path) -> dict[str, bytes]:
    """The files of a report; none if it has no folder. Raises OSError."""
    if not folder.is_dir():
        return {}
    return {item.name: item.read_bytes() for item in sorted(folder.iterdir()) if item.is_file()}
