"""Delivers reports: into the outbox first, then to each destination once, taking up what earlier runs could not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpuwatch.deliver import outbox as box
from gpuwatch.deliver.destinations import Destination, SendError, destinations
from gpuwatch.deliver.outbox import Delivery, DeliveryState, OutboxBusyError, OutboxError, Report
from gpuwatch.deliver.policy import DeliveryPolicy

Progress = Callable[[str], None]


def deliver(
    report_files: Mapping[str, bytes],
    summary_title: str,
    summary_markdown: str,
    policy: DeliveryPolicy,
    outbox: Path,
    progress: Progress,
) -> tuple[Delivery, ...]:
    """Writes the report into the outbox, then sends it to every destination that does not have it yet.

    A destination's failure is in its Delivery, and costs that destination alone; `deliver_pending` tries again. Folders
    and S3 get a report once, however often it is sent: its name follows from its content. Chats, mail and webhooks get
    it at least once: a process that is killed between their answer and its note of it sends again, with the same
    Idempotency-Key. OutboxError where the outbox cannot be written, OutboxBusyError where another process delivers.
    """
    try:
        with box.locked(outbox):
            report = box.register(outbox, report_files, summary_title, summary_markdown)
            targets = destinations(policy)
            known = {item.destination for item in report.deliveries}
            new = tuple(Delivery(destination=target.name) for target in targets if target.name not in known)
            if new:
                report = replace(report, deliveries=(*report.deliveries, *new))
                box.save(report)
            return _send(report, targets, policy, progress).deliveries
    except OSError as error:
        raise OutboxError(f"{error.filename or outbox}: {error.strerror}; the outbox has to be writable") from error


def deliver_pending(policy: DeliveryPolicy, outbox: Path, progress: Progress) -> tuple[Delivery, ...]:
    """Sends what earlier runs could not, report by report, to the destinations that it was meant for then."""
    found: list[Delivery] = []
    if not outbox.is_dir():
        return ()
    targets = destinations(policy)
    try:
        with box.locked(outbox):
            for folder in box.reports(outbox):
                try:
                    report = box.load(folder)
                except OutboxError as error:
                    progress(str(error))
                    found.append(Delivery(destination=str(folder), state=DeliveryState.FAILED, error=str(error)))
                    continue
                open_ = {item.destination for item in report.deliveries if item.state is not DeliveryState.SENT}
                if open_:
                    done = _send(report, targets, policy, progress)
                    found += [item for item in done.deliveries if item.destination in open_]
    except OutboxBusyError as error:
        progress(str(error))
    except OSError as error:
        raise OutboxError(f"{error.filename or outbox}: {error.strerror}; the outbox has to be writable") from error
    return tuple(found)


def _send(report: Report, targets: Sequence[Destination], policy: DeliveryPolicy, progress: Progress) -> Report:
    by_name = {target.name: target for target in targets}
    for delivery in report.deliveries:
        target = by_name.get(delivery.destination)
        if delivery.state is DeliveryState.SENT:
            continue
        if target is None:
            note = replace(delivery, state=DeliveryState.FAILED, error="it is no destination any more")
            report = _noted(report, note)
        elif delivery.attempts >= policy.attempts_in_all:
            progress(f"{report.title}: given up for {delivery.destination} after {delivery.attempts} attempts")
        else:
            report = _to_one(report, target, policy, progress)
    return report


def _to_one(report: Report, target: Destination, policy: DeliveryPolicy, progress: Progress) -> Report:
    from tenacity import RetryError, Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

    delivery = next(item for item in report.deliveries if item.destination == target.name)
    tries = Retrying(
        stop=stop_after_attempt(min(policy.attempts, policy.attempts_in_all - delivery.attempts)),
        wait=wait_random_exponential(multiplier=policy.backoff_seconds, max=policy.backoff_max_seconds),
        retry=retry_if_exception(lambda error: isinstance(error, SendError) and not error.final),
        reraise=True,
    )
    try:
        for attempt in tries:
            with attempt:
                # Counted before it happens: a receiver that brings this process down must not do so for ever.
                delivery = replace(delivery, state=DeliveryState.PENDING, attempts=delivery.attempts + 1)
                report = _noted(report, delivery)
                try:
                    target.send(report)
                except SendError as error:
                    delivery = replace(delivery, error=str(error))
                    progress(f"{report.title}: {target.name}, attempt {delivery.attempts}: {error}")
                    raise
                except Exception as error:  # noqa: BLE001 - a plug-in's fault costs its destination, not the others
                    # Its text may hold anything, so only its kind is told.
                    delivery = replace(delivery, error=f"unexpected {type(error).__name__}")
                    progress(f"{report.title}: {target.name}, attempt {delivery.attempts}: {delivery.error}")
                    raise SendError(delivery.error) from None
    except (SendError, RetryError):
        return _noted(report, replace(delivery, state=DeliveryState.FAILED))
    progress(f"{report.title}: sent to {target.name}")
    return _noted(report, replace(delivery, state=DeliveryState.SENT, error=""))


def _noted(report: Report, delivery: Delivery) -> Report:
    noted = report.with_delivery(delivery)
    box.save(noted)
    return noted
