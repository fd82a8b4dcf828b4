"""Notifications: written to the outbox when made, and sent by a job of their own, so that a slow receiver delays
nothing else."""

import logging
import shutil
import threading
from datetime import datetime, timedelta
from pathlib import Path

from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.facts.model.decision import ActionKind, Mode
from gpuwatch.facts.model.remediation import Remediation
from gpuwatch.say.deliver import outbox as box
from gpuwatch.say.deliver.deliver import DeliveryContext, deliver_pending, due, enqueue, over
from gpuwatch.say.deliver.destinations import names_of, of_people
from gpuwatch.say.deliver.outbox import Delivery, DeliveryState, OutboxError
from gpuwatch.say.deliver.policy import DeliveryPolicy
from gpuwatch.say.notification import notification
from gpuwatch.say.remediation_tables import as_argument
from gpuwatch.sources.kube.writer import Failure, WriteError

log = logging.getLogger("gpuwatch.notifications")

LOOK_SECONDS = 2
"""Interval of the outbox checks; each reads small files and sends no request."""

KEPT = timedelta(days=30)
"""Longer than any notified action stays undecided."""

_FILE = "notification.md"


def must_be_told(remediation: Remediation) -> bool:
    """Must the action wait until a receiver accepted its notification? Yes if it ends or moves Pods, unless a person
    approved it. A taint ends no Pod, and while it waits more Pods are placed on the GPU."""
    proposal = remediation.proposal
    return (
        proposal.mode is Mode.ENFORCE
        and not remediation.approved
        and proposal.action in (ActionKind.RELEASE_GANG, ActionKind.EVICT_GANG)
    )


class Notifications:
    """folder: of the outbox. `tell` is for the executor's thread, `send` for the job's."""

    def __init__(self, folder: Path, metrics: Metrics, stopping: threading.Event) -> None:
        self.folder = folder
        self._metrics = metrics
        self._stopping = stopping
        self.undelivered = 0  # notifications that no receiver accepted
        self._over: set[str] = set()  # folders that are delivered or given up

    def tell(self, remediation: Remediation, policy: DeliveryPolicy) -> None:
        """Queue it, once per destination. Returns once a recipient accepted it, or if none is configured.

        Otherwise raises WriteError: THROTTLED while that may change, INVALID if the action continues without. Raises
        OutboxError.
        """
        title, text = notification(remediation)
        calls = any("call" in step.parameters for step in remediation.steps[remediation.step :][:1])
        identity = f"{'call' if calls else 'notification'} {remediation.name}"
        files = {_FILE: f"# {title}\n\n{text}".encode()}
        deliveries = enqueue(files, title, text, policy, self.folder, identity)
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
        """Send what is due; False if nothing was. Raises OutboxError."""
        waiting = self._waiting(policy)
        tries = any(due(item, policy, now) for found in waiting for item in found)
        if tries:
            context = DeliveryContext(
                now=now, stopping=self._stopping, on_sent=lambda _: self._metrics.delivered("notification", True)
            )
            for item in deliver_pending(policy, self.folder, log.info, context):
                if item.state is not DeliveryState.SENT and item.tried_at == now:
                    self._metrics.delivered("notification", False)
            waiting = self._waiting(policy)
        self._metrics.pending("notification", sum(not over(item, policy) for found in waiting for item in found))
        self.undelivered = sum(_untold(found, policy) for found in waiting)
        self._metrics.untold(self.undelivered)
        return tries

    def _waiting(self, policy: DeliveryPolicy) -> list[tuple[Delivery, ...]]:
        """Deliveries of each notification that has not reached all destinations."""
        found = []
        known = names_of(policy)
        for folder in box.reports(self.folder) if self.folder.is_dir() else ():
            if folder.name in self._over:
                continue
            try:
                deliveries = tuple(item for item in box.load(folder).deliveries if item.destination in known)
            except OutboxError as error:
                log.warning("%s", error)
                self._over.add(folder.name)
                continue
            if any(item.state is not DeliveryState.SENT for item in deliveries):
                found.append(deliveries)
            elif deliveries:
                self._over.add(folder.name)
        return found

    def forget(self, now: datetime) -> int:
        """Remove notifications older than `KEPT`; returns how many."""
        gone = 0
        for folder in box.reports(self.folder) if self.folder.is_dir() else ():
            if now.timestamp() - folder.stat().st_mtime > KEPT.total_seconds():
                shutil.rmtree(folder)
                self._over.discard(folder.name)
                gone += 1
        return gone


def _untold(deliveries: tuple[Delivery, ...], policy: DeliveryPolicy) -> bool:
    people = [item for item in deliveries if item.destination in of_people(policy)]
    return bool(people) and all(item.state is DeliveryState.FAILED for item in people)
