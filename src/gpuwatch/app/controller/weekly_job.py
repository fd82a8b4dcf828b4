"""The weekly report of `gpuwatch run`: when it is due, made once, and sent once per destination.

A report is identified by the moment at which it was due. Its folder, its name at the destinations and its
Idempotency-Key derive from that. The state says which destinations have it; a process that lacks its files makes them
again.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.settings.run_policy import ControllerPolicy, last_due
from gpuwatch.facts.model.delivery import Delivery, DeliveryState, Sending
from gpuwatch.say.deliver.deliver import (
    DeliveryContext,
    Sent,
    deliver,
    due,
    identified,
    over,
    read_report,
    with_new_destinations,
    write_report,
)
from gpuwatch.say.deliver.destinations import names_of
from gpuwatch.say.deliver.policy import DeliveryPolicy

log = logging.getLogger("gpuwatch.say")

LOOK_SECONDS = 10
"""Interval of the checks whether a report is due; a check sends no request."""

_WEEK = timedelta(days=7)
_ON_TIME = timedelta(minutes=5)
_AGAIN_SECONDS, _AGAIN_MAX_SECONDS = 60.0, 3600.0
"""Retry delays after a report could not be made: telemetry outages mostly end within minutes."""

Make = Callable[[datetime], tuple[Mapping[str, bytes], str]]
"""Files and summary of the report of the week that ended then."""


class WeeklyJob:
    """For one thread. `look` is the job. check_lease: raises NotLeadingError where this process may not send."""

    def __init__(
        self, sent: Sent, metrics: Metrics, stopping: threading.Event, check_lease: Callable[[], None] = lambda: None
    ) -> None:
        self._sent = sent
        self._metrics = metrics
        self._stopping = stopping
        self._check_lease = check_lease
        self.due: datetime | None = None  # the last report that this process handled
        self.done: datetime | None = None  # the last report that needs no more work
        self._missing: tuple[datetime, str] | None = None
        self._failures = 0
        self._not_before = float("-inf")

    def look(self, now: datetime, run: ControllerPolicy, policy: DeliveryPolicy, make: Make) -> bool:
        """Makes and sends the report that is due, or resends it to destinations that did not accept it; False if there
        was nothing to do.

        Raises StoreError, OSError, NotLeadingError, and what `make` raises.
        """
        at = last_due(run.report_schedule, now, timedelta(seconds=run.report_deadline_seconds))
        if self._missing is not None and self._missing[0] != at:
            log.error("report %s did not arrive everywhere in its time; it stays in the folder", self._missing[1])
            self._missing = None
            self._metrics.pending("report", 0)
        if at is None or at == self.done or time.monotonic() < self._not_before:
            return False
        title = f"GPUs from {at - _WEEK:%Y-%m-%d} to {at:%Y-%m-%d}"
        self.due = at
        self._metrics.report_due.set(at.timestamp())
        name = identified(title, f"weekly {at.isoformat()} {self._sent.token()}")
        known = self._sent.get(name)
        if known is not None:
            wanted = [item for item in known.deliveries if item.destination in names_of(policy)]
            if all(over(item, policy) for item in wanted):
                self._over(at)
                return False
            if not any(due(item, policy, now) for item in wanted):
                return False
        self._deliver(run.folder / "reports" / name, title, at, now, policy, known, make)
        return True

    def _deliver(
        self,
        folder: Path,
        title: str,
        at: datetime,
        now: datetime,
        policy: DeliveryPolicy,
        known: Sending | None,
        make: Make,
    ) -> None:
        files: Mapping[str, bytes] = read_report(folder)
        if not files or known is None:
            if known is None and now - at > _ON_TIME:
                log.info("the report that was due at %s was missed, and is made now", f"{at:%Y-%m-%d %H:%MZ}")
            files, summary = self._made(make, at)
            self._check_lease()
            write_report(folder, files)
            log.info("report %s lies in %s", title, folder)
            known = known or Sending(id=folder.name, title=title, text=summary, at=at, report=True)
        sending = self._sent.note(with_new_destinations(known, policy))
        context = DeliveryContext(
            now=now,
            stopping=self._stopping,
            before_each=self._check_lease,
            ended=lambda sent: self._metrics.delivered("report", sent),
        )
        deliveries = deliver(sending, files, policy, self._sent, log.info, context)
        wanted = [item for item in deliveries if item.destination in names_of(policy)]
        missing = [item for item in wanted if item.state is not DeliveryState.SENT]
        self._metrics.pending("report", sum(not over(item, policy) for item in missing))
        if self._stopping.is_set() and missing:
            return
        if all(over(item, policy) for item in wanted):
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


def _said(missing: list[Delivery], policy: DeliveryPolicy) -> str:
    return "; ".join(
        f"{item.destination}: {item.error.rstrip('.') or 'not tried yet'}"
        + (", given up" if over(item, policy) else f", {item.attempts} tries so far")
        for item in missing
    )
