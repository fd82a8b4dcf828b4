"""Delivers reports: into the outbox first, then to each destination; later runs retry what failed."""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from gpuwatch.say.deliver import outbox as box
from gpuwatch.say.deliver.destinations import Destination, SendError, destinations
from gpuwatch.say.deliver.outbox import Delivery, DeliveryState, OutboxBusyError, OutboxError, Report
from gpuwatch.say.deliver.policy import DeliveryPolicy

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryContext:
    """How a long-running process delivers.

    now: a failed delivery waits for the policy's `retry_seconds`; None tries at once. stopping: once set, no attempt
    begins and every wait ends. before_each: called before each attempt; its exceptions end the delivery.
    already: destinations to which another process has delivered. on_sent: called with each destination on success.
    """

    now: datetime | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    before_each: Callable[[], None] = lambda: None
    already: Collection[str] = ()
    on_sent: Callable[[str], None] = lambda _: None


def deliver(
    report_files: Mapping[str, bytes],
    summary_title: str,
    summary_markdown: str,
    policy: DeliveryPolicy,
    outbox: Path,
    progress: Progress,
    identity: str = "",
    context: DeliveryContext = DeliveryContext(),
) -> tuple[Delivery, ...]:
    """Writes the report into the outbox, then sends it to every destination that does not have it yet.

    A destination's failure is in its Delivery and does not stop the others; `deliver_pending` retries. Folders and S3
    hold a report once, since its name derives from its content or `identity`. Chats, mail and webhooks get it at least
    once: a process that is killed before it records their answer sends it again, with the same Idempotency-Key.
    OutboxError where the outbox cannot be written, OutboxBusyError where another process delivers.
    """
    with box.locked(outbox):
        report = box.register(outbox, report_files, summary_title, summary_markdown, identity)
        return _send(_with_new_destinations(report, policy), policy, progress, context).deliveries


def enqueue(
    report_files: Mapping[str, bytes],
    summary_title: str,
    summary_markdown: str,
    policy: DeliveryPolicy,
    outbox: Path,
    identity: str,
) -> tuple[Delivery, ...]:
    """Writes the report into the outbox for `deliver_pending`, unless it is there; returns its deliveries so far.
    Sends nothing and does not wait for a process that is sending. Raises OutboxError."""
    with box.locked(outbox, ".enqueue"):
        report = box.register(outbox, report_files, summary_title, summary_markdown, identity)
        # A process that was killed here may have left the report without deliveries.
        return report.deliveries or _with_new_destinations(report, policy).deliveries


def deliver_again(
    folder: Path, policy: DeliveryPolicy, progress: Progress, context: DeliveryContext = DeliveryContext()
) -> tuple[Delivery, ...]:
    """Sends one report of an outbox to every destination that does not have it yet. Raises as `deliver` does."""
    with box.locked(folder.parent):
        return _send(_with_new_destinations(box.load(folder), policy), policy, progress, context).deliveries


def deliver_pending(
    policy: DeliveryPolicy, outbox: Path, progress: Progress, context: DeliveryContext = DeliveryContext()
) -> tuple[Delivery, ...]:
    """Sends reports that earlier runs could not, to the destinations configured when each was written. Reports that
    were never tried go first. A destination that fails is skipped for the rest of this run, so that it delays the
    others only once."""
    found: list[Delivery] = []
    if not outbox.is_dir():
        return ()
    try:
        with box.locked(outbox):
            reports, unreadable = [], []
            for folder in box.reports(outbox):
                try:
                    report = box.load(folder)
                except OutboxError as error:
                    progress(str(error))
                    unreadable.append(Delivery(destination=str(folder), state=DeliveryState.FAILED, error=str(error)))
                    continue
                if any(item.state is not DeliveryState.SENT for item in report.deliveries):
                    reports.append(report)
            reports.sort(key=lambda report: any(item.attempts for item in report.deliveries))
            silent: set[str] = set()
            for report in reports:
                open_ = {item.destination for item in report.deliveries if item.state is not DeliveryState.SENT}
                done = _send(report, policy, progress, context, silent)
                found += [item for item in done.deliveries if item.destination in open_]
            found += unreadable
    except OutboxBusyError as error:
        progress(str(error))
    return tuple(found)


def over(delivery: Delivery, policy: DeliveryPolicy) -> bool:
    """Whether it was sent or given up."""
    return delivery.state is DeliveryState.SENT or delivery.attempts >= policy.max_attempts


def due(delivery: Delivery, policy: DeliveryPolicy, now: datetime) -> bool:
    if over(delivery, policy):
        return False
    if delivery.state is DeliveryState.PENDING or delivery.tried_at is None:
        return True  # not tried yet, or cut short
    wait = timedelta(seconds=policy.again_after(delivery.attempts))
    return not timedelta(0) <= now - delivery.tried_at < wait


def _with_new_destinations(report: Report, policy: DeliveryPolicy) -> Report:
    known = {item.destination for item in report.deliveries}
    new = tuple(Delivery(destination=target.name) for target in destinations(policy) if target.name not in known)
    if not new:
        return report
    report = replace(report, deliveries=(*report.deliveries, *new))
    box.save(report)
    return report


def _send(
    report: Report, policy: DeliveryPolicy, progress: Progress, context: DeliveryContext, silent: set[str] | None = None
) -> Report:
    """silent: destinations that failed in this run; those that fail now are added."""
    by_name = {target.name: target for target in destinations(policy)}
    silent = set() if silent is None else silent
    for delivery in report.deliveries:
        target = by_name.get(delivery.destination)
        if context.stopping.is_set():
            return report
        if delivery.state is DeliveryState.SENT:
            continue
        if delivery.destination in context.already:
            report = _noted(report, replace(delivery, state=DeliveryState.SENT, error=""))
        elif target is None:
            gone = replace(delivery, state=DeliveryState.FAILED, error="the settings no longer name this destination")
            if gone != delivery:
                report = _noted(report, gone)
        elif delivery.attempts >= policy.max_attempts:
            if context.now is None:
                progress(f"{report.title}: given up for {delivery.destination} after {delivery.attempts} attempts")
        elif target.name not in silent and (context.now is None or due(delivery, policy, context.now)):
            report = _send_to(report, target, policy, progress, context)
            now = next(item for item in report.deliveries if item.destination == target.name)
            if now.state is DeliveryState.SENT:
                context.on_sent(target.name)
            else:
                silent.add(target.name)
                if context.now is not None and over(now, policy):
                    progress(f"{report.title}: given up for {target.name} after {now.attempts} attempts")
    return report


def _send_to(
    report: Report, target: Destination, policy: DeliveryPolicy, progress: Progress, context: DeliveryContext
) -> Report:
    from tenacity import (
        RetryError,
        Retrying,
        retry_if_exception,
        sleep_using_event,
        stop_after_attempt,
        stop_when_event_set,
        wait_random_exponential,
    )

    delivery = next(item for item in report.deliveries if item.destination == target.name)
    left = stop_after_attempt(min(policy.attempts, policy.max_attempts - delivery.attempts))
    tries = Retrying(
        stop=left | stop_when_event_set(context.stopping),
        sleep=sleep_using_event(context.stopping),
        wait=wait_random_exponential(multiplier=policy.backoff_seconds, max=policy.backoff_max_seconds),
        retry=retry_if_exception(lambda error: isinstance(error, SendError) and not error.final),
        reraise=True,
    )
    try:
        for attempt in tries:
            if attempt.retry_state.attempt_number > 1 and context.stopping.is_set():
                return _noted(report, replace(delivery, state=DeliveryState.FAILED))  # the wait was cut short
            with attempt:
                context.before_each()
                # Counted before the attempt, so that a receiver that crashes this process does not do so for ever.
                delivery = replace(
                    delivery, state=DeliveryState.PENDING, attempts=delivery.attempts + 1, tried_at=context.now
                )
                report = _noted(report, delivery)
                try:
                    target.send(report)
                except SendError as error:
                    delivery = replace(delivery, error=str(error))
                    progress(f"{report.title}: {target.name}, attempt {delivery.attempts}: {error}")
                    raise
                except Exception as error:  # noqa: BLE001 - a plug-in's fault fails its destination only
                    # The text may contain secrets, so only the type is recorded.
                    delivery = replace(delivery, error=f"unexpected {type(error).__name__}")
                    progress(f"{report.title}: {target.name}, attempt {delivery.attempts}: {delivery.error}")
                    raise SendError(delivery.error) from None
    except (SendError, RetryError):
        return _noted(report, replace(delivery, state=DeliveryState.FAILED))
    progress(f"{report.title}: sent to {target.name}")
    return _noted(report, replace(delivery, state=DeliveryState.SENT, error=""))


def _noted(report: Report, delivery: Delivery) -> Report:
    all_ = (delivery if item.destination == delivery.destination else item for item in report.deliveries)
    noted = replace(report, deliveries=tuple(all_))
    box.save(noted)
    return noted
