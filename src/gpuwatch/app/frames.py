"""`gpuwatch.read`: what gpuwatch concludes, as pandas DataFrames. docs/frames.md has every column."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from gpuwatch.account import weekly
from gpuwatch.account.fleet_cost import allocations
from gpuwatch.act import analysis as analysed
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.app.errors import SourceError
from gpuwatch.app.ledger import Hours, hours_of
from gpuwatch.app.settings import Settings, load_settings
from gpuwatch.app.sizing import Sized, price_list, size
from gpuwatch.app.sources import known_faults, open_sources, take_snapshot, unreadable
from gpuwatch.app.weekly_report import week_of
from gpuwatch.facts.model.decision import Analysis
from gpuwatch.facts.model.weekly import WeeklyReport
from gpuwatch.say.frames import GAPS, PROFILES, allocation_columns, to_frame
from gpuwatch.say.ledger_tables import entry_columns
from gpuwatch.say.machine import FINDINGS
from gpuwatch.say.weekly_machine import weekly_tables

Source = str | Path


@dataclass(frozen=True, kw_only=True)
class Frames:
    """The tables of one source, each a new DataFrame. Unknown is <NA>, NaN or NaT, never 0. A table that the source
    does not have raises SourceError, which names a source that has it."""

    source: str
    settings: Settings
    analysis: Analysis | None = None
    report: WeeklyReport | None = None
    profile: Callable[[], tuple[Sized, WeeklyReport]] | None = (
        None  # takes a while, so it is called once and when needed
    )
    hours: Callable[[], Hours] | None = None  # as `profile`

    def findings(self) -> pd.DataFrame:
        """What is degraded, idle, misplaced or unknown. A saved report has only degraded GPUs and idle allocations."""
        if self.analysis is not None:
            return to_frame(FINDINGS, self.analysis.findings)
        return to_frame(FINDINGS, (*self._week.degraded, *self._week.idle, *self._week.suspected))

    def allocations(self) -> pd.DataFrame:
        """Every Pod that has GPUs now, with how many, their cost per hour, and whether they are used."""
        if self.analysis is None:
            raise SourceError(f"{self.source} is a report, which has no allocations: read an analysis or a capture")
        prices = price_list(self.settings)
        held = (item for item in allocations(self.analysis, prices) if item.pod)
        return to_frame(allocation_columns(prices.currency), held)

    def profiles(self) -> pd.DataFrame:
        """What each container used of each GPU model, as means over its time."""
        return to_frame(PROFILES, self._profiled[0].book.profiles.values())

    def workloads(self) -> pd.DataFrame:
        """Use, cost and saving of each workload, and the advice or why there is none."""
        return to_frame(*weekly_tables(self._week)["workloads"])

    def advice(self) -> pd.DataFrame:
        """The recommended changes, with speed, saving and YAML."""
        return to_frame(*weekly_tables(self._week)["recommendations"])

    def cost(self) -> pd.DataFrame:
        """GPU-hours and money of each Namespace over the period."""
        return to_frame(*weekly_tables(self._week)["teams"])

    def ledger(self) -> pd.DataFrame:
        """Every GPU-hour of the period by hour, Node, holder and row; docs/ledger.md says what each row means."""
        if self.hours is None:
            raise self._lacks("ledger")
        ledger = self.hours().ledger
        return to_frame(entry_columns(ledger), ledger.entries)

    def gaps(self) -> pd.DataFrame:
        """What could not be read, why, and what to do; the profiles' gaps too, once a table has needed them."""
        known = self._week if self.analysis is None or "_profiled" in vars(self) else self.analysis
        return to_frame(GAPS, known.gaps)

    @cached_property
    def _profiled(self) -> tuple[Sized, WeeklyReport]:
        if self.profile is None:
            raise self._lacks("profiles")
        return self.profile()

    def _lacks(self, what: str) -> SourceError:
        return SourceError(f"{self.source} has no {what}, which this needs: read a Prometheus or a recording of days")

    @property
    def _week(self) -> WeeklyReport:
        return self.report or self._profiled[1]


def read(
    source: Source | Sequence[Source] | None = None,
    *,
    cluster: Source | None = None,
    no_cluster: bool = False,
    at: datetime | None = None,
    config: Source | None = None,
    state: Source | None = None,
    days: float = 7.0,
) -> Frames:
    """Reads a source as the commands do; their options of these names say what the others mean.

    source: the URL of a Prometheus, a file of `gpuwatch capture`, recordings, or the saved JSON of `gpuwatch analyze`
    or of a report; None for the Prometheus of the settings. at: a moment with its time zone. days: length of the
    period.

    Raises SourceError, SettingsError, TelemetryError, ClusterError or SnapshotFileError where it cannot be read, and
    ValueError for a time without zone.
    """
    if at is not None and at.tzinfo is None:
        raise ValueError(f"at={at!r} has no time zone; give one, such as tzinfo=datetime.UTC")
    settings = load_settings(None if config is None else Path(config))
    given = [source] if isinstance(source, str | Path) else list(source or ())
    url = next((str(each) for each in given if str(each).startswith(("http://", "https://"))), None)
    if len(given) == 1 and not url and (saved := _saved(Path(given[0]), settings)):
        if cluster or no_cluster or at or state:
            raise SourceError(f"{saved.source} stands for itself: leave out cluster, at and state")
        return saved
    options = dict[str, Any](prometheus=url, kubeconfig=None, context=None, no_cluster=no_cluster, at=at)
    options["telemetry"] = tuple(Path(each) for each in given if each != url)
    options["cluster"] = None if cluster is None else Path(cluster)
    opened = open_sources(options, settings)
    snapshot = take_snapshot(opened)
    if unread := unreadable(snapshot):
        raise SourceError(f"{opened.description}: {unread.detail}")
    kept, length = settings.state if state is None else Path(state), timedelta(days=days)
    faults = known_faults(kept, opened, snapshot)

    taken = replace(opened, snapshot=snapshot)
    hours = cache(partial(hours_of, taken, length, kept))

    def profile() -> tuple[Sized, WeeklyReport]:
        sized = size(taken, kept, length)
        return sized, week_of(opened, sized, hours(), length)

    return Frames(
        source=opened.description,
        settings=settings,
        analysis=analysed.analyse(PlanFacts(snapshot=snapshot), opened.policies, faults),
        profile=profile if opened.store else None,
        hours=hours if opened.store else None,
    )


def _saved(path: Path, settings: Settings) -> Frames | None:
    """A saved analysis or report; None for anything else."""
    if path.suffix != ".json" or not path.is_file():
        return None
    try:
        document = msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError:
        return None  # a recording, or nothing that can be read
    if not isinstance(document, dict) or not {"plan", "fleet"} & document.keys():
        return None
    newest = analysed.VERSION if "plan" in document else weekly.VERSION
    if document.get("version", 0) > newest:
        raise SourceError(f"{path}: of a newer gpuwatch (version {document['version']}, here up to {newest}); upgrade")
    try:
        if "plan" in document:
            return Frames(source=path.name, settings=settings, analysis=msgspec.convert(document, Analysis))
        return Frames(source=path.name, settings=settings, report=msgspec.convert(document, WeeklyReport))
    except msgspec.ValidationError as error:
        raise SourceError(f"{path}: damaged or incomplete ({error}); write it again") from error
