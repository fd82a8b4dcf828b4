"""`gpuwatch.read`: what gpuwatch concludes, as pandas DataFrames. docs/frames.md has every column."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
from rich.console import Console

from gpuwatch.app.sizing import Sized, price_list, size
from gpuwatch.app.sizing_commands import week_of
from gpuwatch.app.sources import Opened, SourceError, open_sources, take_snapshot, unreadable
from gpuwatch.cycle import analysis as analysed
from gpuwatch.cycle import weekly
from gpuwatch.cycle.fleet_cost import allocations
from gpuwatch.model.decision import Analysis
from gpuwatch.model.weekly import WeeklyReport
from gpuwatch.report.frames import GAPS, PROFILES, allocation_columns, to_frame
from gpuwatch.report.machine import FINDINGS
from gpuwatch.report.weekly_machine import weekly_tables
from gpuwatch.settings import Settings, load_settings

Source = str | Path


class _Head(msgspec.Struct):
    """What tells an analysis from a weekly report."""

    version: int
    plan: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    fleet: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, kw_only=True)
class Frames:
    """The tables of one source, each a new DataFrame. Unknown is <NA>, NaN or NaT, never 0; `gaps` says what could not
    be read.

    Telemetry of the last days has all tables. A file of `gpuwatch capture` and a saved analysis hold one moment:
    findings and allocations. A saved report has findings, workloads, advice and cost. A table that a source does not
    have raises SourceError, which names a source that has it.
    """

    source: str
    settings: Settings
    analysis: Analysis | None = None
    report: WeeklyReport | None = None
    opened: Opened | None = None
    state: Path | None = None
    length: timedelta = timedelta(days=7)

    def findings(self) -> pd.DataFrame:
        """What is degraded, idle, misplaced or unknown: `gpuwatch analyze --format csv`. A saved report has those on
        degraded GPUs and idle allocations alone."""
        if self.analysis is not None:
            return to_frame(FINDINGS, self.analysis.findings)
        week = self._week("findings")
        return to_frame(FINDINGS, (*week.degraded, *week.idle, *week.suspected))

    def allocations(self) -> pd.DataFrame:
        """Every Pod that has GPUs now, with how many, their cost per hour, and whether they are used."""
        if self.analysis is None:
            raise SourceError(f"{self.source} is of a report and has no allocations: read an analysis or a capture")
        prices = price_list(self.settings)
        return to_frame(allocation_columns(prices.currency), allocations(self.analysis, prices))

    def profiles(self) -> pd.DataFrame:
        """What each container used of each GPU model, as means over its time."""
        return to_frame(PROFILES, self._sized("profiles").book.profiles.values())

    def workloads(self) -> pd.DataFrame:
        """Use, cost and saving of each workload, and the advice or why there is none: workloads.csv."""
        return self._of_week("workloads")

    def advice(self) -> pd.DataFrame:
        """The recommended changes, with speed, saving and YAML: recommendations.csv."""
        return self._of_week("recommendations", "advice")

    def cost(self) -> pd.DataFrame:
        """GPU-hours and money of each Namespace over the period: teams.csv."""
        return self._of_week("teams", "cost")

    def gaps(self) -> pd.DataFrame:
        """What could not be read, why, and what to do."""
        known = self.analysis or self._week("gaps")
        return to_frame(GAPS, known.gaps)

    def _of_week(self, table: str, name: str = "") -> pd.DataFrame:
        return to_frame(*weekly_tables(self._week(name or table))[table])

    def _week(self, table: str) -> WeeklyReport:
        return self.report or week_of(self._source(table), self._sized(table), self.length)

    def _sized(self, table: str) -> Sized:
        self._source(table)
        return self._profiled

    def _source(self, table: str) -> Opened:
        if self.opened is None or self.opened.store is None:
            of = "a report" if self.report else "one moment"
            raise SourceError(f"{self.source} is of {of} and has no {table}: read a Prometheus or a recording of days")
        return self.opened

    @cached_property
    def _profiled(self) -> Sized:
        return size(self._source("profiles"), self.state or self.settings.state, self.length, Console(stderr=True))


def read(
    source: Source | Sequence[Source] | None = None,
    *,
    cluster: Source | None = None,
    kubeconfig: Source | None = None,
    context: str | None = None,
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
    settings = load_settings(_path(config))
    sources: tuple[Source, ...] = () if source is None else (source,) if isinstance(source, str | Path) else (*source,)
    url = str(sources[0]) if len(sources) == 1 and str(sources[0]).startswith(("http://", "https://")) else None
    if len(sources) == 1 and url is None:
        saved = _saved(Path(sources[0]), settings)
        if saved is not None:
            if cluster or kubeconfig or context or no_cluster or at or state:
                raise SourceError(f"{saved.source} stands for itself: leave out cluster, at and state")
            return saved
    options: dict[str, Any] = {
        "prometheus": url,
        "telemetry": () if url else tuple(map(Path, sources)),
        "cluster": _path(cluster),
        "kubeconfig": _path(kubeconfig),
        "context": context,
        "no_cluster": no_cluster,
        "at": at,
    }
    opened = open_sources(options, settings)
    snapshot = take_snapshot(opened, Console(stderr=True))
    if unread := unreadable(snapshot):
        raise SourceError(f"{opened.description}: {unread.detail}")
    return Frames(
        source=opened.description,
        settings=settings,
        analysis=analysed.analyse(snapshot, opened.policies),
        opened=opened if opened.store is None else replace(opened, snapshot=snapshot),
        state=_path(state),
        length=timedelta(days=days),
    )


def _path(given: Source | None) -> Path | None:
    return None if given is None else Path(given)


def _saved(path: Path, settings: Settings) -> Frames | None:
    """A saved analysis or report; None for anything else."""
    if path.suffix != ".json" or not path.is_file():
        return None
    data = path.read_bytes()
    try:
        head = msgspec.json.decode(data, type=_Head)
    except msgspec.DecodeError:
        return None  # a recording, or nothing that can be read
    if head.plan is msgspec.UNSET and head.fleet is msgspec.UNSET:
        return None
    newest = weekly.VERSION if head.plan is msgspec.UNSET else analysed.VERSION
    if head.version > newest:
        raise SourceError(f"{path}: of a newer gpuwatch (version {head.version}, here up to {newest}); upgrade")
    try:
        if head.plan is msgspec.UNSET:
            return Frames(source=path.name, settings=settings, report=msgspec.json.decode(data, type=WeeklyReport))
        return Frames(source=path.name, settings=settings, analysis=msgspec.json.decode(data, type=Analysis))
    except msgspec.DecodeError as error:
        raise SourceError(f"{path}: damaged or incomplete ({error}); write it again") from error
