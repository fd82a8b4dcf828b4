"""Counts in how many cycles an action could have been enforced, by hour, over restarts and leaders."""

import logging
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from gpuwatch.app.controller.replica import Replica
from gpuwatch.facts.model.decision import ActionKind, Mode
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.checkpoints import FAULTS

log = logging.getLogger("gpuwatch.run")

_KEPT = timedelta(days=8)
_SAVED_EVERY = timedelta(minutes=10)
"""A save takes six requests to the API server. A process that is killed loses the counts since its last one."""


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
