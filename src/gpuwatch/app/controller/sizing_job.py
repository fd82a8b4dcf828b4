"""The two jobs that profile and advise: the hourly update, and the weekly report's."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpuwatch.account.fleet_cost import advice_counts
from gpuwatch.app.controller.replica import Replica, UnreachableError
from gpuwatch.app.logs import fields
from gpuwatch.facts.model.telemetry import GapKind
from gpuwatch.say.cycle_line import joined
from gpuwatch.say.words import plural
from gpuwatch.sources.store.workload_profiles import publish

log = logging.getLogger("gpuwatch.run")

_WEEK = timedelta(days=7)


class SizingJob:
    """One of the two at a time: both update the same store."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def profile(self) -> None:
        replica = self._replica
        if not replica.leads():
            return
        from gpuwatch.app.sizing import size

        with replica.heavy:
            sized = size(replica.own_sources(), replica.store, _WEEK, quiet=True)
            if replica.writers is not None:
                gaps = publish(replica.writers.plain, sized.book, sized.recommendations, sized.abstentions)
                for gap in gaps:
                    log.warning("%s: %s", gap.what, gap.detail)
        counts = advice_counts(sized.recommendations, sized.abstentions, sized.outcomes, datetime.now(UTC))
        with replica.telling:
            replica.found = replace(replica.found, advice=sized.recommendations)
            if replica.leads():
                replica.metrics.advised(counts)
        log.info(
            "profiles up to %s: %s, advice for %d, none for %d", f"{sized.book.until:%Y-%m-%dT%H:%MZ}",
            plural(len(sized.book.profiles), "profile"), len(sized.recommendations), len(sized.abstentions),
            extra=fields(profiles=len(sized.book.profiles), advised=len(sized.recommendations)),
        )  # fmt: skip

    def report(self, end: datetime) -> tuple[Mapping[str, bytes], str]:
        """Files and summary of the report of the seven days before `end`. Raises UnreachableError without data."""
        from gpuwatch.app.ledger import keep_ledger, kept_hours
        from gpuwatch.app.sizing import size
        from gpuwatch.app.weekly_report import report_files, week_of
        from gpuwatch.say.weekly_pages import weekly_summary

        replica = self._replica
        with replica.heavy:
            opened = replica.own_sources()
            sized = size(opened, replica.store, _WEEK, quiet=True)
            lost = [gap for gap in sized.snapshot.gaps if gap.kind in (GapKind.UNREACHABLE, GapKind.REFUSED)]
            if lost and not (sized.snapshot.devices or sized.snapshot.doubted):
                raise UnreachableError(joined(lost))  # make the report later, with data
            opened = replace(opened, snapshot=sized.snapshot)
            with replica.ledger() as kept:
                hours = kept_hours(opened, kept, _WEEK, end, keep_ledger(opened, kept, quiet=True))
            with replica.remediations() as store:
                week = week_of(opened, sized, hours, _WEEK, end, store.all() if store else ())
        return report_files(week), weekly_summary(week)
