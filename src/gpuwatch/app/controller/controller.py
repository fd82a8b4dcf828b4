"""The jobs of `gpuwatch run`: analyse, propose, advance, profile, report. `jobs` schedules them; `run` handles
signals."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from gpuwatch import __version__
from gpuwatch.account.fleet_cost import advice_counts, fleet_cost
from gpuwatch.act.analysis import analyse, proofs, remember
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.execute.precision import poor, precision_by_place
from gpuwatch.act.execute.requests import PROPOSED
from gpuwatch.act.execute.sweep import Orphan, in_turn, suspects
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.app.controller import notifications, weekly_job
from gpuwatch.app.controller.history_log import HistoryLog
from gpuwatch.app.controller.jobs import Job
from gpuwatch.app.controller.leader import Election, NotLeadingError
from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.controller.notifications import Notifications
from gpuwatch.app.controller.pages import Seen
from gpuwatch.app.controller.weekly_job import WeeklyJob
from gpuwatch.app.errors import EXPECTED
from gpuwatch.app.logs import fields
from gpuwatch.app.settings import Settings
from gpuwatch.app.sources import Opened, open_sources, take_snapshot
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.decision import ActionKind, Analysis, Mode, Snapshot
from gpuwatch.facts.model.faults import FaultMemory, KnownFault
from gpuwatch.facts.model.remediation import ObjectRef, Pause, Remediation
from gpuwatch.facts.model.sizing import Recommendation
from gpuwatch.facts.model.telemetry import Gap, GapKind, Schema
from gpuwatch.say.cycle_line import cycle_fields, cycle_line, joined
from gpuwatch.say.status_page import JobTimes, Status
from gpuwatch.say.words import plural
from gpuwatch.sources.kube.reader import Followed
from gpuwatch.sources.kube.writer import ClusterWriter, WriteError
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.checkpoints import FAULTS, STATE, Checkpoints
from gpuwatch.sources.store.store import Store
from gpuwatch.sources.store.workload_profiles import publish
from gpuwatch.sources.telemetry.alerts import firing

log = logging.getLogger("gpuwatch.run")

_FRESH_SECONDS = 15
"""A younger view is reused: with a sample every 30 s, telemetry has little newer data."""

_STEPS_AT_ONCE = 12
"""Most steps of one Remediation in one run; the longest course, a device taint with all its steps, has fewer."""

_WEEK = timedelta(days=7)
_NAMED_LEFTOVERS = 50
"""Most objects without a Remediation that the page names one by one."""


class UnreachableError(Exception):
    """A source did not answer, so nothing was decided."""


@dataclass(frozen=True, slots=True)
class Writers:
    """Writers of a live cluster. plain: with the lease check; rehearsal: dry runs."""

    plain: ClusterWriter
    rehearsal: ClusterWriter


class Controller:
    """The work of one process. Each job method runs in a thread of its own.

    options: the sources from the command line. writers: None without a live cluster. election: None for a single
    replica.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        opened: Opened,
        writers: Writers | None,
        election: Election | None,
        metrics: Metrics,
        stopping: threading.Event,
    ) -> None:
        self._options = options
        self._opened = following(opened)
        self._writers = writers
        self._election = election
        self._metrics = metrics
        self._stopping = stopping
        self._looking = threading.Lock()
        self._sizing = threading.Lock()
        self._seen: tuple[Analysis, PlanFacts] | None = None
        self._good_at: float | None = None
        self._wrong = "no cycle has ended yet"
        self._left: tuple[Orphan, ...] = ()
        self._unread_marks = self._sweeps = 0
        self._left_since: dict[ObjectRef, datetime] = {}
        self._led = False
        self._cycles = 0
        self._storm_at: datetime | None = None
        self._faults = FaultMemory()
        self._faults_saved: tuple[KnownFault, ...] | None = None  # None: not read yet
        self._histories = HistoryLog(metrics)
        self._advice: tuple[Recommendation, ...] = ()
        self._weekly = WeeklyJob(election, metrics, stopping)
        self.seen = Seen()
        self._told: Notifications | None = None

    @property
    def settings(self) -> Settings:
        return self._opened.settings

    def jobs(self) -> tuple[Job, ...]:
        """All jobs, with the intervals from the settings."""
        run = self.settings.run

        def every(name: str, work: Callable[[], bool | None], seconds: int) -> Job:
            return Job(name, work, max(run.stuck_after_seconds, 10 * seconds), seconds=seconds)

        found = [
            every("cycle", self.analyse, run.cycle_interval_seconds),
            every("remediation", self.advance, run.remediation_interval_seconds),
            every("cleanup", self.forget, run.cleanup_interval_seconds),
        ]
        if self._opened.store is not None:
            found.append(every("profiles", self.profile, run.profile_interval_seconds))
            if run.report_schedule:
                stuck = max(run.stuck_after_seconds, 7200)
                found.append(Job("report", self.report, stuck, weekly_job.LOOK_SECONDS, looks=True))
        if self._writers is not None:
            found.append(
                Job("notifications", self.notify, run.stuck_after_seconds, notifications.LOOK_SECONDS, looks=True)
            )
        return tuple(found)

    def unready(self) -> list[str]:
        """Why it is not ready: a source does not answer, or no analysis ended recently."""
        found = [self._wrong] if self._wrong else []
        if self._election is not None and not self._election.answered:
            found.append("the API server does not answer")
        run = self.settings.run
        if (
            self._good_at is not None
            and time.monotonic() - self._good_at > run.stuck_after_seconds + 5 * run.cycle_interval_seconds
        ):
            found.append(f"the last cycle that read its sources was {time.monotonic() - self._good_at:.0f} s ago")
        return found

    def status(self, identity: str, started_at: datetime, jobs: tuple[JobTimes, ...], unwell: list[str]) -> Status:
        """For the status page; takes no lock. unwell: complaints about the process."""
        election, told = self._election, self._told
        leads = election is None or election.leads
        seen = self.seen if leads else Seen()
        return Status(
            at=_now(),
            version=__version__,
            identity=identity,
            started_at=started_at,
            source=self._opened.description,
            leads=leads,
            leader=election.holder if election is not None else "",
            modes=self._modes(),
            complaints=(*unwell, *self.unready(), *(self._leftovers() if leads else ())),
            jobs=jobs,
            analysis=seen.analysis,
            remediations=seen.remediations,
            pause=seen.pause,
            report_due=self._weekly.due,
            report_done=self._weekly.done,
            undelivered=told.undelivered if told is not None else 0,
        )

    def _modes(self) -> tuple[tuple[str, Mode], ...]:
        plan = self.settings.plan
        return (
            *((str(kind), plan.mode(kind)) for kind in ActionKind),
            *((str(scope), scope.mode) for scope in plan.scopes),
        )

    def take(self) -> None:
        """Reload the settings, and open their sources. If that raises, nothing changes."""
        opened = following(open_sources(self._options))
        with self._looking:
            rest(self._opened)
            self._opened = opened

    def close(self) -> None:
        """Stop watching. Call it when no job runs."""
        rest(self._opened)

    # Jobs

    def analyse(self) -> None:
        """Analyse the fleet and store proposals. A replica that does not lead only checks whether its sources
        answer."""
        from gpuwatch.app.sizing import price_list

        if not self._leading():
            self._stand_by()
            return
        began = time.monotonic()
        with self._remediations() as store:
            known, pause, unread = (store.all(), store.paused(), store.gaps) if store else ((), Pause(), ())
            with self._looking:
                analysis, view = self._look(known, pause, unread)
            proposed, refused = self._propose(store, analysis, view) if store else ((), ())
            analysis = replace(analysis, gaps=(*analysis.gaps, *refused))
            if store and proposed:
                known = store.all()
        self._metrics.leads.set(1)
        self._metrics.analysed(analysis)
        self._metrics.costs(fleet_cost(analysis, price_list(self.settings), self._advice))
        self._metrics.remembered(known, pause, _now())
        before, self.seen = self.seen.analysis, Seen(analysis=analysis, remediations=known, pause=pause)
        self._cycles += 1
        seconds = time.monotonic() - began
        log.info(
            "cycle %d in %.1f s: %s", self._cycles, seconds, cycle_line(analysis, before, proposed, known, pause),
            extra=fields(cycle=self._cycles, seconds=round(seconds, 3), **cycle_fields(analysis, proposed, pause)),
        )  # fmt: skip

    def advance(self) -> None:
        """Advance every due Remediation as far as it goes now."""
        if not self._leading():
            return
        with self._remediations() as store:
            if store is None or self._writers is None:
                return
            executor = self._executor(store, self._writers)
            for name in executor.due(_now()):
                if self._stopping.is_set() or not self._leading():
                    return
                self._carry_on(executor, name)
            known, pause = store.all(), store.paused()
            if self._seen is not None:
                cluster = self._seen[1].snapshot.cluster
                grace = timedelta(seconds=self.settings.execute.orphan_grace_seconds)
                turn, later = in_turn(suspects(cluster), known, self._sweeps)
                self._sweeps += 1
                self._left = executor.sweep(turn, known, self._left_since, _now(), grace, later)
                self._unread_marks = len(later)
                self._metrics.left_behind(len(self._left) + self._unread_marks)
        self._metrics.remembered(known, pause, _now())
        self.seen = replace(self.seen, remediations=known, pause=pause)

    def _leftovers(self) -> Iterator[str]:
        """What stands without a Remediation, as far as a person can read it."""
        yield from (each.reason for each in self._left[:_NAMED_LEFTOVERS])
        if len(self._left) > _NAMED_LEFTOVERS:
            yield f"{len(self._left) - _NAMED_LEFTOVERS} more objects have a mark of gpuwatch and no Remediation."
        if self._unread_marks:
            yield f"{self._unread_marks} objects with a mark of gpuwatch and no Remediation are read in later sweeps."

    def forget(self) -> None:
        if not self._leading():
            return
        with self._remediations() as store:
            forgotten = store.forget_final(_now()) if store else 0
        if forgotten:
            log.info("%s forgotten: final for long", plural(forgotten, "Remediation"))
        self._notifications().forget(_now())

    def profile(self) -> None:
        if not self._leading():
            return
        from gpuwatch.app.sizing import size

        with self._sizing:
            sized = size(self._own_sources(), self._profiles(), _WEEK, _quiet())
            if self._writers is not None:
                gaps = publish(self._writers.plain, sized.book, sized.recommendations, sized.abstentions)
                for gap in gaps:
                    log.warning("%s: %s", gap.what, gap.detail)
        self._advice = sized.recommendations
        self._metrics.advised(advice_counts(sized.recommendations, sized.abstentions, sized.outcomes, _now()))
        log.info(
            "profiles up to %s: %s, advice for %d, none for %d", f"{sized.book.until:%Y-%m-%dT%H:%MZ}",
            plural(len(sized.book.profiles), "profile"), len(sized.recommendations), len(sized.abstentions),
            extra=fields(profiles=len(sized.book.profiles), advised=len(sized.recommendations)),
        )  # fmt: skip

    def report(self) -> bool:
        """Make and send the weekly report if it is due. False if it was not."""
        if not self._leading():
            return False
        settings = self.settings
        return self._weekly.look(_now(), settings.run, settings.delivery, self._made_report)

    def notify(self) -> bool:
        """Send the outstanding notifications. False if there were none."""
        return self._leading() and self._notifications().send(self.settings.delivery, _now())

    # Parts of them

    def _leading(self) -> bool:
        leads = self._election is None or self._election.leads
        if self._led and not leads:
            self._metrics.stood_down()
            self.seen = Seen()
        if leads and not self._led and self._election is not None:
            self._recall_storm(self._election)
            self._faults_saved = None
        self._led = leads
        self._metrics.leads.set(leads)
        return leads

    def _stand_by(self) -> None:
        with self._looking:
            rest(self._opened)
            if self._opened.store is not None:
                self._wrong = "telemetry does not answer"
                self._opened.store.clock_skew_seconds(_now())
        self._good()
        assert self._election is not None
        holder = self._election.holder
        log.info("standing by: %s leads", holder or "no replica", extra=fields(leader=holder))

    def _good(self) -> None:
        self._wrong = ""
        self._good_at = time.monotonic()

    def _look(
        self, known: tuple[Remediation, ...], pause: Pause, unread: tuple[Gap, ...]
    ) -> tuple[Analysis, PlanFacts]:
        """unread: gaps of the stored Remediations. Hold `_looking`. Raises UnreachableError."""
        opened = replace(self._opened, at=_now())
        snapshot = take_snapshot(opened, _quiet())
        self._metrics.inventory(followed(opened))
        lost = [
            gap
            for gap in snapshot.gaps
            if gap.kind in (GapKind.UNREACHABLE, GapKind.REFUSED)
            and (opened.cluster is not None or gap.what != "cluster")  # no gap for a cluster that was not requested
        ]
        if lost and not snapshot.devices:
            self._wrong = joined(lost)
            raise UnreachableError(self._wrong)
        alerts, gaps = self._alerts(opened, snapshot.telemetry_schema)
        snapshot = replace(snapshot, gaps=(*snapshot.gaps, *gaps, *unread))
        bound = opened.policies.plan.min_precision_ratio
        facts = PlanFacts(
            snapshot=snapshot,
            history=known,
            alerts=alerts,
            pause=pause,
            precision=poor(precision_by_place(known), bound),
            last_storm=self._storm_at,
        )
        faults = self._remembered(snapshot, opened)
        analysis = analyse(facts, opened.policies, faults)
        findings = (*analysis.findings, *proofs(snapshot, opened.policies, known, faults))
        self._remember_storm(analysis.plan.last_storm)
        view = replace(facts, findings=findings, last_storm=analysis.plan.last_storm)
        self._seen = analysis, view
        unreachable = [gap for gap in lost if gap.kind is GapKind.UNREACHABLE]
        if unreachable:
            self._wrong = joined(unreachable)
        else:
            self._good()
        return self._seen

    def _remembered(self, snapshot: Snapshot, opened: Opened) -> FaultMemory:
        """The memory of faults with this Snapshot, stored if it changed. What fails is tried again in the next look."""
        try:
            if self._faults_saved is None:
                with self._fault_store() as store:
                    stored = store.load_faults()
                    if stored.unread:
                        store.save_faults(stored)  # without what is damaged
                known = {each.key: each for each in (*self._faults.faults, *stored.faults)}
                self._faults, self._faults_saved = replace(stored, faults=tuple(known.values())), stored.faults
            self._faults = remember(snapshot, opened.policies, self._faults)
            if self._faults.faults != self._faults_saved:
                with self._fault_store() as store:
                    store.save_faults(self._faults)
                self._faults_saved = self._faults.faults
        except StoreError as error:
            log.warning("the known faults were not read or not stored: %s", error)
            if self._faults_saved is None:
                self._faults = remember(snapshot, opened.policies, replace(self._faults, unread=str(error)))
        return self._faults

    def _fault_store(self) -> AbstractContextManager[Store]:
        profiles = self._profiles(FAULTS)
        return Store.open(profiles) if isinstance(profiles, Path) else profiles()

    def _alerts(self, opened: Opened, schema: Schema) -> tuple[tuple[str, ...] | None, tuple[Gap, ...]]:
        names = opened.policies.plan.brake_alerts
        if not names:
            return (), ()
        return firing(opened.store, names, opened.at, schema.matchers) if opened.store is not None else (None, ())

    def _fresh(self, store: RemediationStore) -> PlanFacts:
        with self._looking:
            seen = self._seen
            if seen is not None and _now() - seen[1].snapshot.at < timedelta(seconds=_FRESH_SECONDS):
                return seen[1]
            known, pause = store.all(), store.paused()
            return self._look(known, pause, store.gaps)[1]

    def _remember_storm(self, at: datetime | None) -> None:
        """Stored on the Lease, so that the cool-down outlasts this process."""
        if at == self._storm_at:
            return
        self._storm_at = at
        if self._election is not None:
            try:
                self._election.note(keys.LAST_STORM, at.isoformat() if at is not None else "")
            except WriteError as error:
                log.warning("the last storm was not noted on the Lease: %s", error.message)

    def _recall_storm(self, election: Election) -> None:
        try:
            said = election.recall(keys.LAST_STORM)
            self._storm_at = datetime.fromisoformat(said) if said else None
        except (WriteError, ValueError) as error:
            # Assume a storm just now: while it is unknown, nothing may be done.
            log.warning("whether there was a storm lately could not be read from the Lease: %s", error)
            self._storm_at = _now()

    def _propose(
        self, store: RemediationStore, analysis: Analysis, view: PlanFacts
    ) -> tuple[tuple[Remediation, ...], tuple[Gap, ...]]:
        """Returns the Remediations proposed now, and what the store refused to keep."""
        if self._writers is None or all(item.mode is Mode.OBSERVE for item in analysis.plan.items):
            return (), ()
        now = _now()
        executor = self._executor(store, self._writers)
        kept = executor.propose(analysis.plan, view, now)
        for gap in executor.refused:
            self._metrics.job_errors.labels("cycle").inc()
            log.error("%s: %s", gap.what, gap.detail)
        # The store returns another replica's proposal of the same moment as it is.
        proposed = tuple(each for each in kept if each.proposal.created_at == now)
        for each in proposed:
            self._metrics.proposed(each)
            self._say(each, self._writers)
        return proposed, tuple(executor.refused)

    def _say(self, proposed: Remediation, writers: Writers) -> None:
        """Writes an Event on the object; a failure changes nothing."""
        proposal = proposed.proposal
        wish = "approve or reject it" if proposal.mode is Mode.SUGGEST else "its owners are notified next"
        note = f"Remediation {proposed.name} ({proposal.action}): {proposal.reason} Mode {proposal.mode}: {wish}."
        try:
            writers.plain.event(proposal.objects[0], at=_now(), reason=PROPOSED, action="Propose", note=note)
        except WriteError as error:
            log.warning("the proposal %s was not said on its target: %s", proposed.name, error.message)

    def _executor(self, store: RemediationStore, writers: Writers) -> Executor:
        policies = ExecutorPolicies(plan=self.settings.plan, execute=self.settings.execute)
        return Executor(store, writers.plain, writers.rehearsal, lambda: self._fresh(store), self._notify, policies)

    def _carry_on(self, executor: Executor, name: str) -> None:
        """One Remediation, step by step until nothing more is due. An error affects it alone."""
        before: Remediation | None = None
        for _ in range(_STEPS_AT_ONCE):
            if self._stopping.is_set():
                return
            try:
                after = executor.run_once(name, _now())
            except NotLeadingError:
                raise
            except (*EXPECTED, UnreachableError, OSError) as error:
                self._metrics.job_errors.labels("remediation").inc()
                log.error("remediation %s: no step: %s", name, error)  # noqa: TRY400 - the sentence says it all
                return
            except Exception:
                self._metrics.job_errors.labels("remediation").inc()
                log.exception("remediation %s: a step failed; the others go on", name)
                return
            if after is None or (before is not None and after.version == before.version):
                return
            self._histories.tell(before, after, _now())
            before = after

    def _notifications(self) -> Notifications:
        folder = self.settings.run.folder / "notifications"
        if self._told is None or self._told.folder != folder:
            self._told = Notifications(folder, self._metrics, self._stopping)
        return self._told

    def _notify(self, remediation: Remediation) -> None:
        self._notifications().tell(remediation, self.settings.delivery)

    def _made_report(self, end: datetime) -> tuple[Mapping[str, bytes], str]:
        """Files and summary of the report of the seven days before `end`."""
        from gpuwatch.app.sizing import size
        from gpuwatch.app.weekly_report import Acted, report_files, week_of
        from gpuwatch.say.weekly_markdown import weekly_summary

        with self._sizing:
            opened = self._own_sources()
            sized = size(opened, self._profiles(), 2 * _WEEK, _quiet())
            lost = [gap for gap in sized.snapshot.gaps if gap.kind in (GapKind.UNREACHABLE, GapKind.REFUSED)]
            if lost and not sized.snapshot.devices:
                raise UnreachableError(joined(lost))  # make the report later, with data
            with self._remediations() as store:
                acted = Acted.of(store.all() if store else (), opened.settings.plan)
            week = week_of(opened, sized, _WEEK, end=end, acted=acted)
        return report_files(week), weekly_summary(week)

    @contextmanager
    def _remediations(self) -> Iterator[RemediationStore | None]:
        """None without a live cluster, which can hold neither proposals nor a pause."""
        if self._writers is None:
            yield None
            return
        store = RemediationStore(self._writers.plain, self.settings.namespace)
        yield store
        for gap in store.gaps:
            log.warning("%s: %s", gap.what, gap.detail)

    def _own_sources(self) -> Opened:
        """Separate connections for the long jobs, so that short jobs never wait for them."""
        opened = self._opened
        return replace(open_sources(self._options, opened.settings), at=_now(), policies=opened.policies)

    def _profiles(self, state: str = STATE) -> Path | Callable[[], AbstractContextManager[Store]]:
        """The store of the profiles: the configured file, else the cluster, else a local file. state: the name of its
        list in the cluster."""
        if self.settings.state is not None or self._writers is None:
            return self._state()
        writer, namespace = self._writers.plain, self.settings.namespace
        return lambda: Store(Checkpoints(writer, namespace, state))

    def _state(self) -> Path:
        state = self.settings.state or self.settings.run.folder / "gpuwatch.state"
        state.parent.mkdir(parents=True, exist_ok=True)
        return state


def following(opened: Opened) -> Opened:
    """The same sources; a live cluster is watched from its first read on, until `rest`."""
    cluster = opened.cluster
    return replace(opened, cluster=cluster.following()) if cluster is not None else opened


def rest(opened: Opened) -> None:
    """Stop watching until the next read."""
    if opened.cluster is not None:
        opened.cluster.close()


def followed(opened: Opened) -> tuple[Followed, ...]:
    return opened.cluster.followed() if opened.cluster is not None else ()


def _now() -> datetime:
    return datetime.now(UTC)


def _quiet() -> Console:
    """No progress output: it is for terminals."""
    return Console(quiet=True, force_terminal=False)
