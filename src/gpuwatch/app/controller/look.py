"""Looks at the fleet: reads the sources, and draws conclusions. The cycle looks at its interval, and the remediation
job before a step if the last look is old."""

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from gpuwatch.act.analysis import analyse, proofs
from gpuwatch.act.execute.precision import poor, precision_by_place
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import MIN_PRECISION_RATIO
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.app.controller.remembered import KnownFaults, LastStorm
from gpuwatch.app.controller.replica import Replica, UnreachableError
from gpuwatch.app.sources import Opened, take_snapshot
from gpuwatch.facts.model.decision import Analysis
from gpuwatch.facts.model.remediation import Pause, Remediation
from gpuwatch.facts.model.telemetry import Gap, GapKind, Schema
from gpuwatch.say.cycle_line import joined
from gpuwatch.sources.store.checkpoints import FAULTS
from gpuwatch.sources.telemetry.alerts import firing

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
        if lost and not snapshot.devices:
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
        )
        faults = self._faults.with_snapshot(snapshot, opened, term)
        analysis = analyse(facts, opened.policies, faults)
        findings = (*analysis.findings, *proofs(snapshot, opened.policies, known, faults))
        self._storm.remember(analysis.plan.last_storm)
        self.last = replace(facts, findings=findings, last_storm=analysis.plan.last_storm)
        unreachable = [gap for gap in lost if gap.kind is GapKind.UNREACHABLE]
        self.health = replace(self.health, wrong=joined(unreachable)) if unreachable else Health("", time.monotonic())
        return analysis, self.last


def _alerts(opened: Opened, schema: Schema) -> tuple[tuple[str, ...] | None, tuple[Gap, ...]]:
    names = opened.policies.plan.brake_alerts
    if not names:
        return (), ()
    return firing(opened.store, names, opened.at, schema.matchers) if opened.store is not None else (None, ())
