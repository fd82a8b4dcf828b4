"""Carries out the open Remediations, logs what they did, and takes back marks that belong to none."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpuwatch.act.execute.advance import ExecutorPolicies, unheard
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.execute.sweep import ORPHAN_GRACE_SECONDS, Orphan, in_turn, suspects
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.app.controller.leader import NotLeadingError
from gpuwatch.app.controller.look import Look
from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.controller.replica import Replica, UnreachableError, Writers
from gpuwatch.app.errors import EXPECTED
from gpuwatch.app.logs import fields
from gpuwatch.facts.model.remediation import ObjectRef, Remediation
from gpuwatch.sources.kube.writer import WriteError
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.telemetry.exporter_page import read_exporters

log = logging.getLogger("gpuwatch.run")

_STEPS_AT_ONCE = 12
"""Most steps of one Remediation in one run; the longest course, a device taint with all its steps, has fewer."""

_FRESH = timedelta(seconds=15)
"""The previous leader logged older entries."""

_NAMED_LEFTOVERS = 50
"""Most objects without a Remediation that the page names one by one."""


def new_executor(replica: Replica, look: Look, store: RemediationStore, writers: Writers) -> Executor:
    settings = replica.settings
    return Executor(
        store,
        writers.plain,
        writers.rehearsal,
        lambda: look.fresh(store),
        lambda remediation: replica.notifications.tell(remediation, settings.delivery, datetime.now(UTC)),
        ExecutorPolicies(plan=settings.plan, execute=settings.execute, idle_ratio=settings.idle.active_ratio),
        read_exporters,
    )


class HistoryLog:
    """Writes each new entry of a Remediation's history once to the log and once to the metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._told: dict[str, int] = {}

    def tell(self, before: Remediation | None, after: Remediation, now: datetime) -> None:
        """before: as it was before this process changed it; None if this process did not.

        Another process' log is unknown here, so of a Remediation that is new to this process only the last entry is
        logged, and only while it is fresh.
        """
        first = after.id not in self._told
        known = self._told.get(after.id, len(before.history) if before else max(len(after.history) - 1, 0))
        if after.phase.open:
            self._told[after.id] = len(after.history)
        else:
            self._told.pop(after.id, None)
        for index, turn in enumerate(after.history[known:], known):
            if first and before is None and now - turn.at > _FRESH:
                continue
            self._metrics.transitioned(after, index)
            log.info(
                "remediation %s (%s) is %s: %s", after.name, after.proposal.target, turn.phase, turn.message,
                extra=fields(remediation=after.name, phase=str(turn.phase), target=after.proposal.target),
            )  # fmt: skip


class RemediationJob:
    def __init__(self, replica: Replica, look: Look) -> None:
        self._replica = replica
        self._look = look
        self._histories = HistoryLog(replica.metrics)
        self._sweeps = 0
        self._left_since: dict[ObjectRef, datetime] = {}
        self._known: tuple[Remediation, ...] = ()
        self.stopped: tuple[str, ...] = ()
        """A sentence for each stopped gang whose call for a person could not be saved."""

    def run(self) -> None:
        """Advance every due Remediation as far as it goes now, and call people for gangs that stay stopped."""
        try:
            self._carry_out()
        finally:
            self._call(datetime.now(UTC))

    def _call(self, now: datetime) -> None:
        """By metric, log, page and notification, for each gang that stays stopped, also while nothing can be saved."""
        replica, policy = self._replica, self._replica.settings.execute
        known = self._known if replica.calls() else ()
        called = [found for each in known if (found := unheard(each, policy, now))]
        replica.metrics.overdue.set(len(called) + sum(each.overdue for each in known))
        said = {each.id: each.steps[each.step].parameters["text"] for each in called}
        for each in called:
            if said[each.id] not in self.stopped:
                log.error("remediation %s", said[each.id], extra=fields(remediation=each.name))
            with suppress(WriteError, StoreError):  # on its way, or told again in the next run
                replica.notifications.tell(each, replica.settings.delivery, now)
        self.stopped = tuple(said.values())

    def _carry_out(self) -> None:
        replica = self._replica
        if not replica.leads():
            if replica.calls():
                with replica.remediations() as store:
                    self._known = store.all() if store is not None else ()
            return
        with replica.remediations() as store:
            if store is None or replica.writers is None:
                return
            executor = new_executor(replica, self._look, store, replica.writers)
            for name in executor.due(datetime.now(UTC)):
                if replica.stopping.is_set() or not replica.leads():
                    return
                self._carry_on(executor, name)
            known, pause = store.all(), store.paused()
            self._known = known
            swept = self._swept(executor, known)
        with replica.telling:
            if not replica.leads():
                return
            replica.metrics.remembered(known, pause, datetime.now(UTC))
            replica.found = replace(replica.found, remediations=known, pause=pause)
            if swept is not None:
                left, unread = swept
                replica.metrics.left_behind.set(len(left) + unread)
                replica.found = replace(replica.found, leftovers=tuple(_leftovers(left, unread)))

    def _swept(self, executor: Executor, known: tuple[Remediation, ...]) -> tuple[tuple[Orphan, ...], int] | None:
        """What stands without a Remediation, and how many more are read in later sweeps; None before the first look."""
        if self._look.last is None:
            return None
        grace = timedelta(seconds=ORPHAN_GRACE_SECONDS)
        turn, later = in_turn(suspects(self._look.last.snapshot.cluster), known, self._sweeps)
        self._sweeps += 1
        return executor.sweep(turn, known, self._left_since, datetime.now(UTC), grace, later), len(later)

    def _carry_on(self, executor: Executor, name: str) -> None:
        """One Remediation, step by step until nothing more is due. An error affects it alone."""
        before: Remediation | None = None
        for _ in range(_STEPS_AT_ONCE):
            if self._replica.stopping.is_set():
                return
            try:
                after = executor.run_once(name, datetime.now(UTC))
            except NotLeadingError:
                raise
            except (*EXPECTED, UnreachableError, OSError) as error:
                self._replica.metrics.job_errors.labels("remediation").inc()
                log.error("remediation %s: no step: %s", name, error)  # noqa: TRY400 - the sentence says it all
                return
            except Exception:
                self._replica.metrics.job_errors.labels("remediation").inc()
                log.exception("remediation %s: a step failed; the others go on", name)
                return
            if after is None or (before is not None and after.version == before.version):
                return
            self._histories.tell(before, after, datetime.now(UTC))
            before = after


def _leftovers(left: tuple[Orphan, ...], unread: int) -> Iterator[str]:
    """What stands without a Remediation, as far as a person can read it."""
    yield from (each.reason for each in left[:_NAMED_LEFTOVERS])
    if len(left) > _NAMED_LEFTOVERS:
        yield f"{len(left) - _NAMED_LEFTOVERS} more objects have a mark of gpuwatch and no Remediation."
    if unread:
        yield f"{unread} objects with a mark of gpuwatch and no Remediation are read in later sweeps."
