"""The cycle: analyse the fleet, store proposals, tell what was found, and count in how many cycles an action could have
been enforced, by hour, over restarts and leaders."""

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpuwatch.account.fleet_cost import fleet_cost
from gpuwatch.act.execute.requests import PROPOSED
from gpuwatch.act.fragmentation import fragmentation
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.act.slots import slots, waiting_gpus
from gpuwatch.app.controller.look import Look
from gpuwatch.app.controller.remediation_job import new_executor
from gpuwatch.app.controller.replica import Replica, UnreachableError, Writers
from gpuwatch.app.logs import fields
from gpuwatch.facts.model.decision import ActionKind, Analysis, Mode
from gpuwatch.facts.model.remediation import Pause, Remediation
from gpuwatch.facts.model.telemetry import Gap
from gpuwatch.say.cycle_line import cycle_fields, cycle_line
from gpuwatch.sources.kube.writer import WriteError
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.checkpoints import FAULTS

log = logging.getLogger("gpuwatch.run")
_KEPT = timedelta(days=8)
_SAVED_EVERY = timedelta(minutes=10)
"""A save takes six requests to the API server. A process that is killed loses the counts since its last one."""


class CycleJob:
    def __init__(self, replica: Replica, look: Look) -> None:
        self._replica = replica
        self._look = look
        self._cycles = 0
        self.enforcement = EnforcementRecord(replica)

    def run(self) -> None:
        """Analyse the fleet and store proposals. A replica that does not lead only checks whether its sources
        answer."""
        from gpuwatch.app.sizing import price_list

        replica = self._replica
        if not replica.leads():
            self._look.stand_by()
            assert replica.election is not None
            holder = replica.election.holder
            log.info("standing by: %s leads", holder or "no replica", extra=fields(leader=holder))
            return
        began = time.monotonic()
        with replica.remediations() as store:
            known, pause, unread = (store.all(), store.paused(), store.gaps) if store else ((), Pause(), ())
            try:
                analysis, view = self._look.now(known, pause, unread)
            except UnreachableError:
                self.enforcement.count(dict.fromkeys(ActionKind, ("unreachable",)), datetime.now(UTC))
                raise
            proposed, refused = self._propose(store, analysis, view) if store else ((), ())
            facts = replace(view, findings=analysis.findings, policy=replica.opened.policies.plan)
            analysis = replace(analysis, gaps=(*analysis.gaps, *refused))
            if store and proposed:
                known = store.all()
        with replica.telling:
            if not replica.leads():  # no more: the leader tells of the fleet
                return
            metrics, before = replica.metrics, replica.found.analysis
            metrics.analysed(analysis)
            slotted = slots(facts, labels=facts.policy.slot_labels)
            metrics.room(slotted, waiting_gpus(facts), fragmentation(facts))
            metrics.costs(fleet_cost(analysis, price_list(replica.settings), replica.found.advice))
            metrics.remembered(known, pause, datetime.now(UTC))
            replica.found = replace(replica.found, analysis=analysis, remediations=known, pause=pause)
        self.enforcement.count(analysis.plan.stops, analysis.at)
        self._cycles += 1
        seconds = time.monotonic() - began
        log.info(
            "cycle %d in %.1f s: %s", self._cycles, seconds, cycle_line(analysis, before, proposed, known, pause),
            extra=fields(cycle=self._cycles, seconds=round(seconds, 3), **cycle_fields(analysis, proposed, pause)),
        )  # fmt: skip

    def _propose(
        self, store: RemediationStore, analysis: Analysis, view: PlanFacts
    ) -> tuple[tuple[Remediation, ...], tuple[Gap, ...]]:
        """Returns the Remediations proposed now, and what the store refused to keep."""
        replica = self._replica
        if replica.writers is None or all(item.mode is Mode.OBSERVE for item in analysis.plan.items):
            return (), ()
        now = datetime.now(UTC)
        executor = new_executor(replica, self._look, store, replica.writers)
        kept = executor.propose(analysis.plan, view, now)
        for gap in executor.refused:
            replica.metrics.job_errors.labels("cycle").inc()
            log.error("%s: %s", gap.what, gap.detail)
        # The store returns another replica's proposal of the same moment as it is.
        proposed = tuple(each for each in kept if each.proposal.created_at == now)
        for each in proposed:
            replica.metrics.proposed(each)
            _say(each, replica.writers)
        return proposed, tuple(executor.refused)


def _say(proposed: Remediation, writers: Writers) -> None:
    """Writes an Event on the object; a failure changes nothing."""
    proposal = proposed.proposal
    wish = "approve or reject it" if proposal.mode is Mode.SUGGEST else "its owners are notified next"
    note = f"Remediation {proposed.name} ({proposal.action}): {proposal.reason} Mode {proposal.mode}: {wish}."
    try:
        writers.plain.event(proposal.objects[0], at=datetime.now(UTC), reason=PROPOSED, action="Propose", note=note)
    except WriteError as error:
        log.warning("the proposal %s was not said on its target: %s", proposed.name, error.message)


class EnforcementRecord:
    """hours: the cycles by hour and name: '' for all, an action for those in which it could have been enforced, a guard
    or brake for those in which it stopped an action."""

    def __init__(self, replica: Replica) -> None:
        self.hours: Mapping[datetime, Counter[str]] = {}
        self._replica, self._term, self._saved_at = replica, 0, datetime.min.replace(tzinfo=UTC)

    def count(self, stops: Mapping[ActionKind, tuple[str, ...]], at: datetime) -> None:
        """One cycle of a leader. In a new term of leadership it goes on from what is stored."""
        replica, plan = self._replica, self._replica.settings.plan
        modes = [*plan.modes.items(), *((scope.action, scope.mode) for scope in plan.scopes)]
        for action, names in stops.items():
            enforced = any(mode is Mode.ENFORCE and kind in (None, action) for kind, mode in modes)
            replica.metrics.enforcement.labels(action, str(enforced).lower(), next(iter(names), "nothing")).inc()
        hour = at.replace(minute=0, second=0, microsecond=0)
        possible = (str(action) for action, names in stops.items() if not names)
        cycle = Counter(["", *possible, *{name for names in stops.values() for name in names}])
        try:
            with replica.reading:  # whose job writes the known faults to the same list
                if self._term != replica.term:
                    self.hours, self._term = replica.store(FAULTS).load_enforcement(), replica.term
                self.hours = {**self.hours, hour: self.hours.get(hour, Counter()) + cycle}
                if at - self._saved_at >= _SAVED_EVERY:
                    self.hours = {each: counts for each, counts in self.hours.items() if at - each < _KEPT}
                    replica.store(FAULTS).save_enforcement(self.hours)
                    self._saved_at = at
        except StoreError as error:
            log.warning("the record of possible enforcement was not read or not stored: %s", error)
