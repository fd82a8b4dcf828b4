"""Notifications: kept in memory when made, and sent by a job of their own, so that a slow receiver delays nothing else.
The Remediation makes one again until a receiver has it. The state has it from the first attempt on, for the other
destinations and for the next leader."""

import logging
import threading
from collections.abc import Collection
from datetime import datetime, timedelta

from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.facts.model.decision import Mode
from gpuwatch.facts.model.delivery import Delivery, DeliveryState, Sending
from gpuwatch.facts.model.remediation import OF_WORKLOADS, Remediation
from gpuwatch.say.deliver.deliver import (
    DeliveryContext,
    Sent,
    deliver,
    due,
    identified,
    over,
    with_new_destinations,
)
from gpuwatch.say.deliver.destinations import names_of, of_people
from gpuwatch.say.deliver.policy import DeliveryPolicy
from gpuwatch.say.remediation_tables import as_argument, notification
from gpuwatch.sources.kube.writer import Failure, WriteError
from gpuwatch.sources.store import StoreError

log = logging.getLogger("gpuwatch.notifications")

LOOK_SECONDS = 2
"""Interval of the checks; each looks into memory and sends no request."""

KEPT = timedelta(days=30)
"""Longer than any notified action stays undecided."""

_FILE = "notification.md"


def must_be_told(remediation: Remediation) -> bool:
    """Must the action wait until a receiver accepted its notification? Yes if it ends or moves Pods, unless a person
    approved it. A taint ends no Pod, and while it waits more Pods are placed on the GPU."""
    proposal = remediation.proposal
    return proposal.mode is Mode.ENFORCE and not remediation.approved and proposal.action in OF_WORKLOADS


class Notifications:
    """`tell` is for the executor's thread, `send` for the job's."""

    def __init__(self, sent: Sent, metrics: Metrics, stopping: threading.Event) -> None:
        self._sent = sent
        self._metrics = metrics
        self._stopping = stopping
        self._unread = ""
        self.undelivered = 0  # notifications that no receiver accepted

    def tell(self, remediation: Remediation, policy: DeliveryPolicy, now: datetime) -> None:
        """Queue it, once per destination. Returns once a recipient accepted it, or if none is configured.

        Otherwise raises WriteError: THROTTLED while that may change, INVALID if the action continues without. Raises
        StoreError.
        """
        title, text = notification(remediation)
        calls = any("call" in step.parameters for step in remediation.steps[remediation.step :][:1])
        name = identified(title, f"{'call' if calls else 'notification'} {remediation.name}")
        known = self._sent.get(name)
        if known is None:
            new = with_new_destinations(Sending(id=name, title=title, text=text, at=now), policy)
            known = self._sent.note(new, later=True)
        deliveries = known.deliveries
        people = [item for item in deliveries if item.destination in of_people(policy)]
        if not people or any(item.state is DeliveryState.SENT for item in people):
            return
        if any(item.state is DeliveryState.PENDING for item in people):
            raise WriteError(Failure.THROTTLED, "The notification is on its way.")
        errors = "; ".join(f"{item.destination}: {item.error.rstrip('.')}" for item in people)
        why = f"No receiver took the notification: {errors}."
        if calls:
            log.warning("remediation %s: no person was reached. %s", remediation.name, why)
            raise WriteError(Failure.THROTTLED, why)
        if must_be_told(remediation):
            log.warning(
                "remediation %s waits. %s `gpuwatch approve %s` lets it go on without",
                remediation.name, why, as_argument(remediation),
            )  # fmt: skip
            raise WriteError(Failure.THROTTLED, why)
        log.warning("remediation %s goes on, notified by its annotation and Event alone. %s", remediation.name, why)
        raise WriteError(Failure.INVALID, why)

    def send(self, policy: DeliveryPolicy, now: datetime) -> bool:
        """Send what is due; False if nothing was. Raises StoreError where the state cannot be written."""
        try:
            waiting = self._waiting(policy)
        except StoreError as error:
            if str(error) != self._unread:
                log.warning("what was sent is not known, so nothing is sent: %s", error)
            self._unread = str(error)
            return False
        self._unread = ""
        wanted = names_of(policy)
        tries = [each for each in waiting if any(due(item, policy, now) for item in _to(wanted, each))]
        context = DeliveryContext(
            now=now, stopping=self._stopping, ended=lambda sent: self._metrics.delivered("notification", sent)
        )
        # What was never tried goes first; a destination that fails delays the others only once.
        for each in sorted(tries, key=lambda each: any(item.attempts for item in each.deliveries)):
            files = {_FILE: f"# {each.title}\n\n{each.text}".encode()}
            deliver(each, files, policy, self._sent, log.info, context)
        found = [_to(wanted, each) for each in (self._waiting(policy) if tries else waiting)]
        self._metrics.pending("notification", sum(not over(item, policy) for items in found for item in items))
        self.undelivered = sum(_untold(items, policy) for items in found)
        self._metrics.undelivered.set(self.undelivered)
        return bool(tries)

    def _waiting(self, policy: DeliveryPolicy) -> list[Sending]:
        """Each notification that has not reached all destinations."""
        wanted = names_of(policy)
        return [
            each
            for each in self._sent.all().values()
            if not each.report and any(item.state is not DeliveryState.SENT for item in _to(wanted, each))
        ]

    def forget(self, now: datetime) -> int:
        """Remove what was sent or made before `KEPT`; returns how many."""
        return self._sent.forget([name for name, each in self._sent.all().items() if now - each.at > KEPT])


def _to(wanted: Collection[str], sending: Sending) -> tuple[Delivery, ...]:
    return tuple(item for item in sending.deliveries if item.destination in wanted)


def _untold(deliveries: tuple[Delivery, ...], policy: DeliveryPolicy) -> bool:
    people = [item for item in deliveries if item.destination in of_people(policy)]
    return bool(people) and all(item.state is DeliveryState.FAILED for item in people)
