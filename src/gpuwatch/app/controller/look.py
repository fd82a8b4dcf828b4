"""Looks at the fleet: reads the sources, and draws conclusions. The cycle looks at its interval, and the remediation
job before a step if the last look is old."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from gpuwatch.act.analysis import analyse, proofs, remember
from gpuwatch.act.execute.precision import poor, precision_by_place
from gpuwatch.act.plan.brakes import first_seen
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import MIN_PRECISION_RATIO
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.app.controller.leader import Election
from gpuwatch.app.controller.replica import Replica, UnreachableError
from gpuwatch.app.sources import Opened, take_snapshot
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.decision import Analysis, Snapshot
from gpuwatch.facts.model.faults import FaultMemory, KnownFault
from gpuwatch.facts.model.remediation import Pause, Remediation
from gpuwatch.facts.model.telemetry import Gap, GapKind, Schema
from gpuwatch.say.cycle_line import joined
from gpuwatch.sources.kube.writer import WriteError
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.checkpoints import FAULTS
from gpuwatch.sources.store.store import Store
from gpuwatch.sources.telemetry.alerts import firing

log = logging.getLogger("gpuwatch.run")

_FRESH_SECONDS = 15
"""A younger view is reused: with a sample every 30 s, telemetry has little newer data."""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the sources answer. wrong: why not; '' if they do. good_at: monotonic time of the last look that read
    them all."""

    wrong: str = "no cycle has ended yet"
    good_at: float | None = None


class Look:
    """One look at a time; another job waits for it, and then finds it fresh."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._faults = KnownFaults(lambda: replica.store(FAULTS))
        self._storm = LastStorm(replica.election)
        self.health = Health()
        self.last: PlanFacts | None = None
        self._first_seen: dict[str, datetime] = {}

    def now(self, known: tuple[Remediation, ...], pause: Pause, unread: tuple[Gap, ...]) -> tuple[Analysis, PlanFacts]:
        """known, unread: the stored Remediations, and their gaps. Raises UnreachableError."""
        with self._replica.reading:
            return self._look(known, pause, unread)

    def fresh(self, store: RemediationStore) -> PlanFacts:
        """The last look, or a new one if that is old. Raises UnreachableError."""
        with self._replica.reading:
            last = self.last
            if last is not None and datetime.now(UTC) - last.snapshot.at < timedelta(seconds=_FRESH_SECONDS):
                return last
            known, pause = store.all(), store.paused()
            return self._look(known, pause, store.gaps)[1]

    def stand_by(self) -> None:
        """Only see whether telemetry answers."""
        with self._replica.reading:
            opened = self._replica.opened
            opened.rest()
            if opened.store is not None:
                self.health = replace(self.health, wrong="telemetry does not answer")
                opened.store.clock_skew_seconds(datetime.now(UTC))
        self.health = Health("", time.monotonic())

    def complaints(self) -> list[str]:
        """A source does not answer, or no look read all of them recently."""
        health, run = self.health, self._replica.settings.run
        found = [health.wrong] if health.wrong else []
        quiet = time.monotonic() - health.good_at if health.good_at is not None else 0.0
        if quiet > run.stuck_after_seconds + 5 * run.cycle_interval_seconds:
            found.append(f"the last cycle that read its sources was {quiet:.0f} s ago")
        return found

    def _look(
        self, known: tuple[Remediation, ...], pause: Pause, unread: tuple[Gap, ...]
    ) -> tuple[Analysis, PlanFacts]:
        replica = self._replica
        opened, term = replace(replica.opened, at=datetime.now(UTC)), replica.term
        snapshot = take_snapshot(opened, quiet=True)
        replica.metrics.inventory(opened.cluster.followed() if opened.cluster is not None else ())
        lost = [
            gap
            for gap in snapshot.gaps
            if gap.kind in (GapKind.UNREACHABLE, GapKind.REFUSED)
            and (opened.cluster is not None or gap.what != "cluster")  # no gap for a cluster that was not requested
        ]
        if lost and not (snapshot.devices or snapshot.doubted):
            self.health = replace(self.health, wrong=joined(lost))
            raise UnreachableError(self.health.wrong)
        alerts, gaps = _alerts(opened, snapshot.telemetry_schema)
        snapshot = replace(snapshot, gaps=(*snapshot.gaps, *gaps, *unread))
        facts = PlanFacts(
            snapshot=snapshot,
            history=known,
            alerts=alerts,
            pause=pause,
            precision=poor(precision_by_place(known), MIN_PRECISION_RATIO),
            last_storm=self._storm.at(term),
            first_seen=self._first_seen,
        )
        faults = self._faults.with_snapshot(snapshot, opened, term)
        analysis = analyse(facts, opened.policies, faults)
        findings = (*analysis.findings, *proofs(snapshot, opened.policies, known, faults))
        self._storm.remember(analysis.plan.last_storm)
        self.last = replace(facts, findings=findings, last_storm=analysis.plan.last_storm)
        self._first_seen = first_seen(replace(self.last, findings=analysis.findings, policy=opened.policies.plan))
        unreachable = [gap for gap in lost if gap.kind is GapKind.UNREACHABLE]
        self.health = replace(self.health, wrong=joined(unreachable)) if unreachable else Health("", time.monotonic())
        return analysis, self.last


def _alerts(opened: Opened, schema: Schema) -> tuple[tuple[str, ...] | None, tuple[Gap, ...]]:
    names = opened.policies.plan.brake_alerts
    if not names:
        return (), ()
    return firing(opened.store, names, opened.at, schema.matchers) if opened.store is not None else (None, ())


# What outlasts a leader: the known faults, in the store, and the last storm, on the Lease


class KnownFaults:
    """The memory of faults. store: opens it."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._faults = FaultMemory()
        self._saved: tuple[KnownFault, ...] | None = None  # None: not read yet
        self._term = 0

    def with_snapshot(self, snapshot: Snapshot, opened: Opened, term: int) -> FaultMemory:
        """The memory with this Snapshot, stored if it changed. What fails is tried again at the next call. In a new
        term of leadership, what another leader stored in between is read."""
        if term != self._term:
            self._saved, self._term = None, term
        try:
            if self._saved is None:
                store = self._store()
                stored = store.load_faults()
                if stored.unread:
                    store.save_faults(stored)  # without what is damaged
                known = {each.key: each for each in (*self._faults.faults, *stored.faults)}
                self._faults, self._saved = replace(stored, faults=tuple(known.values())), stored.faults
            self._faults = remember(snapshot, opened.policies, self._faults)
            if self._faults.faults != self._saved:
                self._store().save_faults(self._faults)
                self._saved = self._faults.faults
        except StoreError as error:
            log.warning("the known faults were not read or not stored: %s", error)
            if self._saved is None:
                self._faults = remember(snapshot, opened.policies, replace(self._faults, unread=str(error)))
        return self._faults


class LastStorm:
    """When the last storm of findings was. On the Lease, so that the cool-down outlasts this process."""

    def __init__(self, election: Election | None) -> None:
        self._election = election
        self._at: datetime | None = None
        self._term = 0

    def at(self, term: int) -> datetime | None:
        """In a new term of leadership, the last leader's note."""
        if self._election is not None and term != self._term:
            self._term = term
            try:
                said = self._election.recall(keys.LAST_STORM)
                self._at = datetime.fromisoformat(said) if said else None
            except (WriteError, ValueError) as error:
                # Assume a storm just now: while it is unknown, nothing may be done.
                log.warning("whether there was a storm lately could not be read from the Lease: %s", error)
                self._at = datetime.now(UTC)
        return self._at

    def remember(self, at: datetime | None) -> None:
        if at == self._at:
            return
        self._at = at
        if self._election is not None:
            try:
                self._election.note(keys.LAST_STORM, at.isoformat() if at is not None else "")
            except WriteError as error:
                log.warning("the last storm was not noted on the Lease: %s", error.message)
