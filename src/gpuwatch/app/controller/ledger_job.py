"""Keeps the ledger: adds each hour's GPU-hours to the state, and counts those that do not change any more."""

import logging
import math
from dataclasses import replace

from gpuwatch.app.controller.replica import Replica, UnreachableError
from gpuwatch.app.logs import fields
from gpuwatch.app.sources import take_snapshot, unreadable
from gpuwatch.facts.model.telemetry import GapKind

log = logging.getLogger("gpuwatch.run")

_TOLD = (GapKind.UNREACHABLE, GapKind.REFUSED, GapKind.QUERY_FAILED, GapKind.PARTIAL, GapKind.BAD_INPUT)
"""Gaps that may end what can be kept; the cycle tells of the others, and of those that it has too."""


class LedgerJob:
    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def run(self) -> None:
        replica = self._replica
        if not replica.leads():
            return
        from gpuwatch.app.ledger import keep_ledger

        opened = replica.own_sources()
        opened = replace(opened, snapshot=take_snapshot(opened, quiet=True))
        if opened.snapshot and (unread := unreadable(opened.snapshot)):
            raise UnreachableError(f"{unread.what}: {unread.detail}")  # before other tasks have to wait
        with replica.heavy, replica.ledger() as store:
            gaps = keep_ledger(opened, store, quiet=True).gaps
        analysis = replica.found.analysis
        known = analysis.gaps if analysis is not None else ()
        for gap in gaps:
            if gap.kind in _TOLD and gap not in known:
                log.warning("ledger: %s: %s", gap.what, gap.detail)
        final, total, restated = store.final(), store.total(), store.restated()
        with replica.telling:
            if final is None or not replica.leads():
                return
            replica.metrics.accounted(final, total, store.currency, restated)
        hours = math.fsum(each.gpu_hours for each in total)
        log.info("ledger: %.0f GPU-hours up to %s", hours, f"{final:%Y-%m-%dT%H:%MZ}", extra=fields(gpu_hours=hours))
