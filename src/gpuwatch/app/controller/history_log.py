"""Writes each new entry of a Remediation's history once to the log and once to the metrics."""

import logging
from datetime import datetime, timedelta

from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.logs import fields
from gpuwatch.facts.model.remediation import Remediation

log = logging.getLogger("gpuwatch.run")

_FRESH = timedelta(seconds=15)
"""The previous leader logged older entries."""


class HistoryLog:
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
