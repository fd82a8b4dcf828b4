"""Errors of the sources and the options, and all errors that are no fault of the program."""

from gpuwatch.app.settings import SettingsError
from gpuwatch.say.explain import UnknownSubject
from gpuwatch.sources.collect.snapshot_file import SnapshotFileError
from gpuwatch.sources.kube.reader import ClusterError
from gpuwatch.sources.kube.writer import WriteError
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.telemetry.samples import TelemetryError


class SourceError(Exception):
    """A source cannot be opened; the message says what to give instead."""


class OptionsError(SourceError):
    """Options contradict each other. No source was asked."""


EXPECTED = (
    SourceError,
    SettingsError,
    SnapshotFileError,
    TelemetryError,
    ClusterError,
    UnknownSubject,
    StoreError,
    WriteError,
)
"""Errors of the input or the environment; their messages are for people."""
