"""Terminal output of the commands."""

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from rich.console import Console, RenderableType

from gpuwatch.app.exit_code import ExitCode
from gpuwatch.app.sources import SourceError
from gpuwatch.collect.snapshot_file import SnapshotFileError
from gpuwatch.deliver.outbox import OutboxError
from gpuwatch.kube.reader import ClusterError
from gpuwatch.kube.writer import WriteError
from gpuwatch.report.explain import UnknownSubject
from gpuwatch.report.machine import to_json, to_yaml
from gpuwatch.settings import SettingsError
from gpuwatch.store import StoreError
from gpuwatch.telemetry.samples import TelemetryError

P = ParamSpec("P")

_PIPE_WIDTH = 160

EXPECTED = (
    SourceError,
    SettingsError,
    SnapshotFileError,
    TelemetryError,
    ClusterError,
    UnknownSubject,
    StoreError,
    OutboxError,
    WriteError,
)
"""Errors of the input or the environment; their messages are for people."""


def output() -> Console:
    """Standard output. A pipe has no width: without COLUMNS it gets one at which most table rows stay on one line for
    grep."""
    console = Console(highlight=False)
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=_PIPE_WIDTH)


def remark(text: str, style: str = "") -> None:
    """Prints a line on standard error."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(text, style=style, markup=False)


def print_answer(value: object, form: str, table: Callable[[], RenderableType]) -> None:
    if form == "json":
        sys.stdout.write(to_json(value) + "\n")
    elif form == "yaml":
        sys.stdout.write(to_yaml(value))
    else:
        output().print(table())


def reported(command: Callable[P, int]) -> Callable[P, int]:
    """Reports an expected error as a sentence on stderr; any other is a bug and keeps its traceback."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return command(*args, **kwargs)
        except EXPECTED as error:
            remark(f"gpuwatch: {error}", "red")
            return ExitCode.USAGE if isinstance(error, SettingsError) else ExitCode.FAILED
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            remark(f"gpuwatch: {place}{error.strerror or error}", "red")
            return ExitCode.FAILED

    return run
