"""The weekly report of `gpuwatch run`: when it is due, made once, and sent once per destination.

A report is identified by the moment at which it was due. Its outbox folder, its name at the destinations and its
Idempotency-Key derive from that. The destinations that have it are stored in the outbox, for a restart in the same
folder, and on the Lease, for another replica.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpuwatch.app.controller.leader import Election
from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.settings.cron import last_due
from gpuwatch.app.settings.run_policy import ControllerPolicy
from gpuwatch.facts.frameworks import keys
from gpuwatch.say.deliver import outbox as box
from gpuwatch.say.deliver.deliver import DeliveryContext, deliver, deliver_again, due, over
from gpuwatch.say.deliver.destinations import names_of
from gpuwatch.say.deliver.outbox import Delivery, DeliveryState
from gpuwatch.say.deliver.policy import DeliveryPolicy
from gpuwatch.sources.kube.writer import WriteError
from gpuwatch.sources.store import StoreError

log = logging.getLogger("gpuwatch.say")

LOOK_SECONDS = 10
"""Interval of the checks whether a report is due; a check sends no request."""

_WEEK = timedelta(days=7)
_ON_TIME = timedelta(minutes=5)
_AGAIN_SECONDS, _AGAIN_MAX_SECONDS = 60.0, 3600.0
"""Retry delays after a report could not be made: telemetry outages mostly end within minutes."""

Make = Callable[[datetime], tuple[Mapping[str, bytes], str]]
"""Files and summary of the report of the week that ended then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What replicas share. sent: destinations that have the report; done: nothing is left to do."""

    due: datetime | None = None
    sent: tuple[str, ...] = ()
    done: bool = False


class WeeklyJob:
    """For one thread. `look` is the job."""

    def __init__(self, election: Election | None, metrics: Metrics, stopping: threading.Event) -> None:
        self._election = election
        self._metrics = metrics
        self._stopping = stopping
        self.due: datetime | None = None  # the last report that this process handled
        self.done: datetime | None = None  # the last report that needs no more work
        self._missing: tuple[datetime, str] | None = None
        self._failures = 0
        self._not_before = float("-inf")

    def look(self, now: datetime, run: ControllerPolicy, policy: DeliveryPolicy, make: Make) -> bool:
        """Makes and sends the report that is due, or resends it to destinations that did not accept it; False if there
        was nothing to do.

        Raises StoreError, OutboxError, NotLeadingError, and what `make` raises.
        """
        at = last_due(run.report_schedule, now, timedelta(seconds=run.report_deadline_seconds))
        self._give_up(at)
        if at is None or at == self.done or time.monotonic() < self._not_before:
            return False
        outbox = run.folder / "reports"
        title = f"GPUs from {at - _WEEK:%Y-%m-%d} to {at:%Y-%m-%d}"
        self.due = at
        self._metrics.report_due.set(at.timestamp())
        identity = f"weekly {at.isoformat()} {self._place(outbox)}"
        folder = outbox / box.identified(title, identity)
        if folder.exists() and not self._something_to_do(folder, policy, now):
            return False
        known = self._recall()
        if known.due is not None and (known.due > at or (known.due == at and known.done)):
            self._over(at)
            return False
        if known.due != at:
            known = _Known(due=at)
        self._deliver(folder, title, identity, at, now, policy, known, make)
        return True

    def _deliver(
        self,
        folder: Path,
        title: str,
        identity: str,
        at: datetime,
        now: datetime,
        policy: DeliveryPolicy,
        known: _Known,
        make: Make,
    ) -> None:
        # Sent before this process was killed, and not on the Lease yet.
        before = box.load(folder).deliveries if folder.exists() else ()
        sent = {*known.sent, *(item.destination for item in before if item.state is DeliveryState.SENT)}

        def note_sent(destination: str) -> None:
            sent.add(destination)
            self._metrics.delivered("report", True)
            self._note(_Known(due=at, sent=tuple(sorted(sent))))

        context = DeliveryContext(
            now=now, stopping=self._stopping, before_each=self._lease_check, already=frozenset(sent), on_sent=note_sent
        )
        if folder.exists():
            deliveries = deliver_again(folder, policy, log.info, context)
        else:
            if now - at > _ON_TIME:
                log.info("the report that was due at %s was missed, and is made now", f"{at:%Y-%m-%d %H:%MZ}")
            files, summary = self._made(make, at)
            deliveries = deliver(files, title, summary, policy, folder.parent, log.info, identity, context)
            log.info("report %s lies in %s", title, folder)
        wanted = [item for item in deliveries if item.destination in names_of(policy)]
        missing = [item for item in wanted if item.state is not DeliveryState.SENT]
        for item in missing:
            if item.tried_at == now:
                self._metrics.delivered("report", False)
        self._metrics.pending("report", sum(not over(item, policy) for item in missing))
        if self._stopping.is_set() and missing:
            return
        if all(over(item, policy) for item in wanted):
            self._note(_Known(due=at, sent=tuple(sorted(sent)), done=True))
            self._over(at)
        if missing:
            self._missing = (at, title)
            log.warning("report %s has not arrived: %s", title, _said(missing, policy))

    def _made(self, make: Make, at: datetime) -> tuple[Mapping[str, bytes], str]:
        try:
            made = make(at)
        except Exception:
            wait = min(_AGAIN_SECONDS * 2.0**self._failures, _AGAIN_MAX_SECONDS)
            self._failures += 1
            self._not_before = time.monotonic() + wait
            raise
        self._failures, self._not_before = 0, float("-inf")
        return made

    def _over(self, at: datetime) -> None:
        self.done, self._missing = at, None
        self._metrics.report_done.set(at.timestamp())

    def _something_to_do(self, folder: Path, policy: DeliveryPolicy, now: datetime) -> bool:
        deliveries = [item for item in box.load(folder).deliveries if item.destination in names_of(policy)]
        return all(over(item, policy) for item in deliveries) or any(due(item, policy, now) for item in deliveries)

    def _give_up(self, at: datetime | None) -> None:
        """Stops sending a report whose time is over."""
        if self._missing is not None and self._missing[0] != at:
            log.error("report %s did not arrive everywhere in its time; it stays in the folder", self._missing[1])
            self._missing = None
            self._metrics.pending("report", 0)

    # What replicas share

    def _place(self, outbox: Path) -> str:
        """Separates this cluster's reports from another's in the same bucket."""
        if self._election is None:
            return box.token(outbox)
        try:
            return self._election.uid()
        except WriteError as error:
            raise StoreError(f"the Lease could not be read: {error.message}") from error

    def _lease_check(self) -> None:
        if self._election is not None:
            self._election.check_lease()

    def _recall(self) -> _Known:
        if self._election is None:
            return _Known()
        try:
            said = self._election.recall(keys.LAST_REPORT)
        except WriteError as error:
            raise StoreError(f"which report was sent last could not be read from the Lease: {error.message}") from error
        if not said:
            return _Known()
        try:
            values = json.loads(said)
            at = datetime.fromisoformat(values["due"]).astimezone(UTC)
            return _Known(due=at, sent=tuple(map(str, values["sent"])), done=values["done"] is True)
        except (ValueError, KeyError, TypeError) as error:
            log.warning(
                "the annotation %s on the Lease is none of ours (%s), and is written anew", keys.LAST_REPORT, error
            )
            return _Known()

    def _note(self, known: _Known) -> None:
        if self._election is None or known.due is None:
            return
        value = {"due": known.due.isoformat(), "sent": list(known.sent), "done": known.done}
        try:
            self._election.note(keys.LAST_REPORT, json.dumps(value))
        except WriteError as error:
            raise StoreError(f"which report was sent was not noted on the Lease: {error.message}") from error


def _said(missing: list[Delivery], policy: DeliveryPolicy) -> str:
    return "; ".join(
        f"{item.destination}: {item.error.rstrip('.') or 'not tried yet'}"
        + (", given up" if over(item, policy) else f", {item.attempts} tries so far")
        for item in missing
    )
