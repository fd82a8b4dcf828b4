"""Periodic jobs: when they run, how long they may take, and how each run ended."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.events import EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.say.status_page import JobTimes

log = logging.getLogger("gpuwatch.jobs")

_LATE_SECONDS = 30
"""A run that was not started for so long after it was due: the scheduler thread does not run."""


@dataclass(frozen=True, slots=True)
class Job:
    """seconds: interval between runs. stuck_after_seconds: a longer run counts as stuck.

    looks: the job first checks whether there is work. `work` returns False if there is none; such a run is not counted,
    and a check that overlaps a run is not logged.
    """

    name: str
    work: Callable[[], bool | None]
    stuck_after_seconds: float
    seconds: int
    looks: bool = False


class Jobs:
    """Runs each job in a thread of its own, never twice at once. A failed run affects no other job.

    expected: errors of the environment, logged as a sentence; all others keep their traceback.
    """

    def __init__(self, jobs: tuple[Job, ...], metrics: Metrics, expected: tuple[type[Exception], ...]) -> None:
        self._metrics = metrics
        self._expected = expected
        self._jobs = {job.name: job for job in jobs}
        self._running: dict[str, float] = {}
        self.times: Mapping[str, JobTimes] = {}
        """By job; replaced as a whole, so that it can be read without a lock."""
        self._changed = threading.Condition()
        # One more than the jobs: new settings may add the report.
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(max_workers=len(jobs) + 1)}, timezone=UTC
        )
        self._scheduler.add_listener(self._left_out, EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES)
        for job in jobs:
            self._add(job, first_after_seconds=0.001)

    def start(self) -> None:
        """Starts each job at once, then at its interval."""
        self._scheduler.start()

    def change(self, jobs: tuple[Job, ...]) -> None:
        """Sets new intervals for the same jobs; a running job continues."""
        for job in jobs:
            before = self._jobs.get(job.name)
            self._jobs[job.name] = job
            if before is None or before.seconds != job.seconds:
                self._add(job, first_after_seconds=job.seconds)
        for name in set(self._jobs) - {job.name for job in jobs}:
            del self._jobs[name]
            self._scheduler.remove_job(name)

    def complaints(self) -> list[str]:
        """Which job is stuck, and whether the scheduler runs."""
        now = time.monotonic()
        with self._changed:
            running = dict(self._running)
        found = [
            f"task {name} has been running for {now - began:.0f} s; it is taken for stuck after "
            f"{self._jobs[name].stuck_after_seconds:.0f} s"
            for name, began in running.items()
            if name in self._jobs and now - began > self._jobs[name].stuck_after_seconds
        ]
        due = [job.next_run_time for job in self._scheduler.get_jobs() if job.next_run_time is not None]
        late = (datetime.now(UTC) - min(due)).total_seconds() if due else 0.0
        if late > _LATE_SECONDS:
            found.append(f"the scheduler has started nothing for {late:.0f} s though a task is due")
        return found

    def stop(self, seconds: float) -> list[str]:
        """Start nothing more, and wait so many seconds for running jobs. Returns the names of those that still run."""
        self._scheduler.shutdown(wait=False)
        with self._changed:
            self._changed.wait_for(lambda: not self._running, timeout=seconds)
            return sorted(self._running)

    def _add(self, job: Job, first_after_seconds: float) -> None:
        self._metrics.job(job.name)
        self._scheduler.add_job(
            self._run,
            IntervalTrigger(seconds=job.seconds, timezone=UTC),
            args=(job.name,),
            id=job.name,
            coalesce=True,
            max_instances=1,
            # A run that is late by a whole interval is skipped; the next one does its work.
            misfire_grace_time=job.seconds,
            replace_existing=True,
            next_run_time=datetime.now(UTC) + timedelta(seconds=first_after_seconds),
        )

    def _run(self, name: str) -> None:
        job = self._jobs.get(name)
        if job is None:
            return
        began = time.monotonic()
        counted, fault = True, ""
        if not job.looks:
            self._timed(name, running_since=datetime.now(UTC))
        with self._changed:
            self._running[name] = began
        try:
            counted = job.work() is not False
        except self._expected as error:
            fault = str(error)
            self._metrics.job_errors.labels(name).inc()
            log.error("%s failed: %s", name, error)  # noqa: TRY400 - the sentence says it all
        except Exception as error:
            fault = type(error).__name__
            self._metrics.job_errors.labels(name).inc()
            log.exception("%s failed", name)
        else:
            if counted:
                self._metrics.job_success.labels(name).set_to_current_time()
        finally:
            if counted:
                seconds, now = time.monotonic() - began, datetime.now(UTC)
                self._metrics.job_seconds.labels(name).observe(seconds)
                how = {"failed_at": now, "error": fault} if fault else {"succeeded_at": now, "seconds": seconds}
                self._timed(name, running_since=None, **how)
            with self._changed:
                del self._running[name]
                self._changed.notify_all()

    def _timed(self, name: str, **changes: Any) -> None:
        with self._changed:
            before = self.times.get(name, JobTimes(name=name))
            self.times = {**self.times, name: replace(before, **changes)}

    def _left_out(self, event: JobEvent) -> None:
        job = self._jobs.get(event.job_id)
        if job is not None and job.looks and event.code == EVENT_JOB_MAX_INSTANCES:
            return
        self._metrics.job_missed.labels(event.job_id).inc()
        why = "the one before still runs" if event.code == EVENT_JOB_MAX_INSTANCES else "it came too late"
        log.warning("a run of %s is left out: %s", event.job_id, why)
