"""The jobs of `gpuwatch run`, put together. `jobs` schedules them; `run` handles signals."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from gpuwatch import __version__
from gpuwatch.app.controller import notifications, weekly_job
from gpuwatch.app.controller.cycle_job import CycleJob
from gpuwatch.app.controller.jobs import Job
from gpuwatch.app.controller.ledger_job import LedgerJob
from gpuwatch.app.controller.look import Look
from gpuwatch.app.controller.remediation_job import RemediationJob
from gpuwatch.app.controller.replica import Found, Replica
from gpuwatch.app.controller.sizing_job import SizingJob
from gpuwatch.app.controller.weekly_job import WeeklyJob
from gpuwatch.app.settings import Settings
from gpuwatch.facts.model.decision import ActionKind, Mode
from gpuwatch.say.remediation_tables import enforcement_text
from gpuwatch.say.status_page import JobTimes, Status
from gpuwatch.say.words import plural

log = logging.getLogger("gpuwatch.run")

_CLEANUP_SECONDS = 86_400
"""What is removed was final for weeks, so a day sooner or later is the same."""

_HOUR_SECONDS = 3600
"""The ledger is kept by the hour."""


class Controller:
    """The work of one process. Each job runs in a thread of its own, and owns its state; what another job or a page
    reads of it is in `Replica.found`."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.look = Look(replica)
        self.cycle = CycleJob(replica, self.look)
        self._remediation = RemediationJob(replica, self.look)
        self._sizing = SizingJob(replica)
        self._ledger = LedgerJob(replica)
        check_lease = replica.election.check_lease if replica.election is not None else lambda: None
        self._weekly = WeeklyJob(replica.sent, replica.metrics, replica.stopping, check_lease)

    @property
    def settings(self) -> Settings:
        return self.replica.settings

    def jobs(self) -> tuple[Job, ...]:
        """All jobs, with the intervals from the settings."""
        run = self.settings.run

        def every(name: str, work: Callable[[], bool | None], seconds: int) -> Job:
            return Job(name, work, max(run.stuck_after_seconds, 10 * seconds), seconds=seconds)

        found = [
            every("cycle", self.cycle.run, run.cycle_interval_seconds),
            every("remediation", self._remediation.run, run.remediation_interval_seconds),
            every("cleanup", self._forget, _CLEANUP_SECONDS),
        ]
        if self.replica.opened.store is not None:
            found.append(every("profiles", self._sizing.profile, run.profile_interval_seconds))
            found.append(every("ledger", self._ledger.run, _HOUR_SECONDS))
            if run.report_schedule:
                stuck = max(run.stuck_after_seconds, 7200)
                found.append(Job("report", self._report, stuck, weekly_job.LOOK_SECONDS, looks=True))
        if self.replica.writers is not None:
            found.append(
                Job("notifications", self._notify, run.stuck_after_seconds, notifications.LOOK_SECONDS, looks=True)
            )
        return tuple(found)

    def unready(self) -> list[str]:
        """Why it is not ready: a source does not answer, or no analysis ended recently."""
        election = self.replica.election
        lost = ["the API server does not answer"] if election is not None and not election.answered else []
        return [*self.look.complaints(), *lost]

    def status(self, identity: str, started_at: datetime, jobs: tuple[JobTimes, ...], unwell: list[str]) -> Status:
        """For the status page; takes no lock. unwell: complaints about the process."""
        election = self.replica.election
        leads = election is None or election.leads
        found = self.replica.found if leads else Found()
        return Status(
            at=datetime.now(UTC),
            version=__version__,
            identity=identity,
            started_at=started_at,
            source=self.replica.opened.description,
            leads=leads,
            leader=election.holder if election is not None else "",
            modes=self._modes(),
            complaints=(*unwell, *self.unready(), *self._remediation.stopped, *found.leftovers),
            jobs=jobs,
            analysis=found.analysis,
            remediations=found.remediations,
            pause=found.pause,
            report_due=self._weekly.due,
            report_done=self._weekly.done,
            undelivered=self.replica.notifications.undelivered,
            enforcement=enforcement_text(self.cycle.enforcement.hours if leads else {}, datetime.now(UTC)),
        )

    def _modes(self) -> tuple[tuple[str, Mode], ...]:
        plan = self.settings.plan
        return (
            *((str(kind), plan.mode(kind)) for kind in ActionKind),
            *((str(scope), scope.mode) for scope in plan.scopes),
        )

    def _forget(self) -> None:
        now = datetime.now(UTC)
        if not self.replica.leads():
            return
        with self.replica.remediations() as store:
            forgotten = store.forget_final(now) if store else 0
        if forgotten:
            log.info("%s forgotten: final for long", plural(forgotten, "Remediation"))
        self.replica.notifications.forget(now)

    def _report(self) -> bool:
        """Make and send the weekly report if it is due. False if it was not."""
        settings = self.settings
        return self.replica.leads() and self._weekly.look(
            datetime.now(UTC), settings.run, settings.delivery, self._sizing.report
        )

    def _notify(self) -> bool:
        """Send the outstanding notifications. False if there were none."""
        delivery = self.settings.delivery
        return self.replica.calls() and self.replica.notifications.send(delivery, datetime.now(UTC))
