"""Opens telemetry and cluster as options and settings say, and takes a Snapshot."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rich.console import Console
from rich.markup import escape

from gpuwatch.act.analysis import Policies, needs_of, remember
from gpuwatch.app.errors import OptionsError, SourceError
from gpuwatch.app.settings import Settings, SettingsError, load_settings
from gpuwatch.facts.model.decision import Snapshot
from gpuwatch.facts.model.faults import FaultMemory
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.collect.collect import Progress, collect
from gpuwatch.sources.collect.origin import find_origin
from gpuwatch.sources.collect.snapshot_file import is_snapshot, load_snapshot
from gpuwatch.sources.kube.reader import ClusterError, ClusterReader
from gpuwatch.sources.store.store import Store
from gpuwatch.sources.telemetry.samples import SampleSource, SampleStore, TelemetryError

_log = logging.getLogger(__name__)


@runtime_checkable
class Checkable(Protocol):
    def check(self) -> None:
        """Raises TelemetryError, soon, where the source does not answer."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The sources and the settings of one command. Settings are read once, so that an edit meanwhile cannot mix two
    versions."""

    settings: Settings
    policies: Policies  # from the settings, with the operator's XIDs
    store: SampleSource | None
    cluster: ClusterReader | None
    snapshot: Snapshot | None  # a capture replaces both sources
    at: datetime
    description: str
    gaps: tuple[Gap, ...] = ()  # faults of the operator's own files

    def followed(self) -> "Opened":
        """The same sources; an API server is watched from its first read on, until `rest`."""
        return replace(self, cluster=self.cluster.following()) if self.cluster is not None else self

    def rest(self) -> None:
        """Stop watching until the next read."""
        if self.cluster is not None:
            self.cluster.close()


def open_sources(options: Mapping[str, Any], settings: Settings | None = None) -> Opened:
    """Opens what the options name. Raises SourceError, SettingsError, TelemetryError or ClusterError. settings: default
    is the file in the options."""
    if settings is None:
        settings = load_settings(options["config"])
    recorded: tuple[Path, ...] = options["telemetry"]
    if options["prometheus"] and recorded:
        raise OptionsError("--prometheus and --telemetry exclude each other: telemetry comes from one place")
    captures = [path for path in recorded if path.is_file() and is_snapshot(path)]
    policies, gaps = _policies(settings)
    if captures:
        snapshot = _open_capture(captures[0], recorded, options)
        return Opened(settings, policies, None, None, snapshot, snapshot.at, f"capture {captures[0].name}", gaps)
    store = _open_store(settings, recorded, options)
    cluster = _open_cluster(options)
    # Else now; of a recording, its last sample.
    at: datetime = options["at"] or (store.end if store else None) or datetime.now(UTC)
    names = [store.description if store else "no telemetry", cluster.description if cluster else "no cluster"]
    return Opened(settings, policies, store, cluster, None, at, " · ".join(names), gaps)


def checked_sources(options: Mapping[str, Any]) -> Opened:
    """`open_sources` for a command that answers once. Raises the same errors, and also where a file of the settings is
    missing or a source does not answer, so that the error is all that is printed. Without a telemetry source, it looks
    for a Prometheus in the cluster."""
    opened = open_sources(options)
    for name in ("xid_overrides", "prices"):
        path: Path | None = getattr(opened.settings, name)
        if path is not None and not path.is_file():
            raise SettingsError(f"{name}: the file {path} does not exist; mend the path, or remove the setting")
    if opened.snapshot is not None:
        return opened
    if opened.cluster is not None:
        try:
            opened.cluster.check()
        except ClusterError as error:
            raise SourceError(f"{error}\nTo look at telemetry alone, give --no-cluster.") from error
    if opened.store is None:
        opened = _with_found_prometheus(opened, options)
    store: object = opened.store
    if isinstance(store, Checkable):
        store.check()
    return opened


def _with_found_prometheus(opened: Opened, options: Mapping[str, Any]) -> Opened:
    if opened.cluster is None or not opened.cluster.served:
        raise SourceError(
            "no telemetry was given: use --prometheus URL or --telemetry FILE. With a kubeconfig, gpuwatch looks for a "
            "Prometheus in the cluster."
        )
    from gpuwatch.app.find_prometheus import find_prometheus
    from gpuwatch.sources.kube.live import api_client
    from gpuwatch.sources.telemetry.prometheus import PrometheusStore

    connection, told = find_prometheus(api_client(options["kubeconfig"], options["context"]))
    Console(stderr=True, soft_wrap=True, highlight=False).print(told, markup=False)
    store = PrometheusStore(connection)
    return replace(opened, store=store, description=f"{store.description} · {opened.cluster.description}")


def _policies(settings: Settings) -> tuple[Policies, tuple[Gap, ...]]:
    policies = Policies(health=settings.health, idle=settings.idle, misfit=settings.misfit, plan=settings.plan)
    if settings.xid_overrides is None:
        return policies, ()
    from gpuwatch.facts.catalog.xids import xids_with_overrides

    xids, gaps = xids_with_overrides(settings.xid_overrides)
    return replace(policies, xids=xids), gaps


def _open_capture(capture: Path, recorded: tuple[Path, ...], options: Mapping[str, Any]) -> Snapshot:
    if len(recorded) > 1:
        raise OptionsError("a file of `gpuwatch capture` stands for itself: give no other --telemetry beside it")
    if options["cluster"]:
        raise OptionsError(f"{capture} brings its own cluster: leave --cluster out")
    snapshot = load_snapshot(capture)
    if options["at"] and options["at"] != snapshot.at:
        raise OptionsError(f"{capture} is of {snapshot.at:%Y-%m-%dT%H:%M:%SZ}, one moment; leave --at out")
    return snapshot


def _open_store(settings: Settings, recorded: tuple[Path, ...], options: Mapping[str, Any]) -> SampleSource | None:
    if recorded:
        from gpuwatch.sources.telemetry.recording import open_recording

        return open_recording(recorded, options["at"])
    from gpuwatch.sources.telemetry.connection import Connection
    from gpuwatch.sources.telemetry.prometheus import PrometheusStore

    connection = settings.prometheus
    if options["prometheus"]:
        url = options["prometheus"]
        try:
            connection = replace(connection, url=url) if connection else Connection(url=url)
        except ValueError as error:
            raise OptionsError(f"--prometheus: {error}") from error
    return PrometheusStore(connection) if connection else None


def _open_cluster(options: Mapping[str, Any]) -> ClusterReader | None:
    if options["no_cluster"]:
        return None
    if options["cluster"]:
        from gpuwatch.sources.kube.recorded import RecordedCluster

        return RecordedCluster(options["cluster"])
    from gpuwatch.sources.kube.live import LiveCluster, api_client

    try:
        return LiveCluster(api_client(options["kubeconfig"], options["context"]))
    except ClusterError:
        if options["kubeconfig"] or options["context"]:
            raise
        # No gap here: the answer has one already.
        return None


@contextmanager
def progress(first: str, *, quiet: bool) -> Iterator[Progress]:
    """Shows the step that is done now, beginning with `first`, on a terminal unless quiet; else logs it at DEBUG."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda step: _log.debug("%s", step)
        return
    with console.status(first) as status:
        yield lambda step: status.update(escape(f"{step} …"))


def take_snapshot(opened: Opened, *, quiet: bool = False) -> Snapshot:
    """Collects once, with progress on a terminal unless quiet."""
    if opened.snapshot is not None:
        return replace(opened.snapshot, gaps=tuple(dict.fromkeys((*opened.snapshot.gaps, *opened.gaps))))
    with progress("starting", quiet=quiet) as told:
        snapshot = collect(
            opened.store, opened.cluster, opened.at, needs_of(opened.policies), told, *_prometheus_choice(opened)
        )
    clock = _clock(opened.store, opened.at) if opened.store is not None else ()
    return replace(snapshot, gaps=tuple(dict.fromkeys((*snapshot.gaps, *opened.gaps, *clock))))


def own_telemetry(opened: Opened, store: SampleSource, snapshot: Snapshot) -> tuple[SampleStore, frozenset[str]]:
    """The series of this cluster alone, and the devices and exporters of which that is not proven."""
    origin = find_origin(store.reading(), opened.at, snapshot.cluster, *_prometheus_choice(opened))
    return origin.store, frozenset((*origin.reasons, *(item.shown.id for item in snapshot.doubted)))


def _prometheus_choice(opened: Opened) -> tuple[Mapping[str, str], Sequence[Mapping[str, str]]]:
    """The matchers and the trusted targets of the settings."""
    given = opened.settings.prometheus
    return (given.matchers, given.trusted_targets) if given else ({}, ())


def known_faults(state: Path | None, opened: Opened, snapshot: Snapshot) -> FaultMemory | None:
    """What the controller's state file remembers of faults up to this Snapshot, with what the Snapshot shows; None
    without such a file. Nothing is stored."""
    kept = state or opened.settings.state
    if kept is None or not kept.exists():
        return None
    stored = Store.open(kept).load_faults()
    known = tuple(each for each in stored.faults if each.since <= snapshot.at)
    return remember(snapshot, opened.policies, replace(stored, faults=known))


def unreadable(snapshot: Snapshot) -> Gap | None:
    """Why nothing is known, where no device was seen because a source did not answer."""
    silent = (gap for gap in snapshot.gaps if gap.kind in (GapKind.UNREACHABLE, GapKind.REFUSED))
    return None if snapshot.devices or snapshot.doubted else next(silent, None)


_MOST_SKEW_SECONDS = 60.0
"""Largest clock difference: two samples at the exporters' 30 s. More hides the newest samples, or shows old ones as
new."""


def _clock(store: SampleSource, at: datetime) -> tuple[Gap, ...]:
    """A gap if the store's clock is off."""
    now = datetime.now(UTC)
    if abs((now - at).total_seconds()) >= 10 * _MOST_SKEW_SECONDS:
        return ()
    try:
        skew = store.clock_skew_seconds(now)
    except TelemetryError:
        return ()  # already a gap
    if skew is None or abs(skew) <= _MOST_SKEW_SECONDS:
        return ()
    way = "ahead of" if skew > 0 else "behind"
    detail = f"The server's clock is {abs(skew):.0f} s {way} the one here; set both by NTP, or give --at."
    return (Gap(kind=GapKind.CLOCK, what="clocks", detail=detail),)
