"""The process of `gpuwatch run`: connects the parts, handles signals and changed settings, and shuts down in order. A
step in progress is finished, or the next leader finds it half done."""

import hashlib
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpuwatch import __version__
from gpuwatch.app.controller.controller import Controller
from gpuwatch.app.controller.http_server import serving
from gpuwatch.app.controller.jobs import Jobs
from gpuwatch.app.controller.leader import Election, NotLeadingError
from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.controller.pages import Pages
from gpuwatch.app.controller.replica import Replica, UnreachableError, Writers
from gpuwatch.app.errors import EXPECTED, SourceError
from gpuwatch.app.exit_code import ExitCode
from gpuwatch.app.logs import LogFormat, log_to_stderr
from gpuwatch.app.settings import Settings
from gpuwatch.app.sources import open_sources
from gpuwatch.facts.model.decision import ActionKind
from gpuwatch.say.status_page import Status
from gpuwatch.sources.kube.live import api_client
from gpuwatch.sources.kube.live_writer import LiveWriter
from gpuwatch.sources.kube.transport import Limits

log = logging.getLogger("gpuwatch.run")

_TICK_SECONDS = 0.5
_SETTINGS_CHECK_SECONDS = 5
"""Reads one small file. A mounted ConfigMap changes up to a minute after the object; SIGHUP asks at once."""
_PULSE_SECONDS = 30
"""The main loop counts as hanging after so long without a turn."""


def run_controller(log_format: LogFormat, **options: Any) -> int:
    """Runs until SIGTERM or SIGINT. Returns the exit code: 0 after an orderly shutdown."""
    log_to_stderr(log_format)
    opened = open_sources(options := {**options, "telemetry": (), "cluster": None, "at": None})
    settings = opened.settings
    if opened.store is None:
        raise SourceError("there is nothing to watch without telemetry: set prometheus.url, or use --prometheus URL")
    stopping = threading.Event()
    hang_up = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, lambda *_: stopping.set())
    signal.signal(signal.SIGHUP, lambda *_: hang_up.set())
    metrics = Metrics()
    live = opened.cluster is not None and opened.cluster.served
    identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{secrets.token_hex(4)}"
    election = _election(settings, identity, options) if live else None
    writers = _writers(election, identity, options, metrics) if election is not None else None
    controller = Controller(Replica(options, opened, writers, election, metrics, stopping))
    expected = (*EXPECTED, NotLeadingError, UnreachableError, OSError)
    jobs = Jobs(controller.jobs(), metrics, expected)
    metrics.settings(True, datetime.now(UTC))
    pulse = _Pulse()
    started_at = datetime.now(UTC)

    def status() -> Status:
        times = sorted(jobs.times.values(), key=lambda each: each.name)
        return controller.status(identity, started_at, tuple(times), pulse.complaints())

    pages = Pages(status, lambda: controller.settings.run.folder / "reports") if settings.run.pages else None
    with ExitStack() as stack:
        port = stack.enter_context(
            serving(
                settings.run.listen_address,
                settings.run.listen_port,
                lambda: [*pulse.complaints(), *jobs.complaints()],
                lambda: _unready(controller, jobs),
                metrics.registry,
                pages,
            )
        )
        log.info("gpuwatch %s: %s; pages, probes and metrics on port %d", __version__, opened.description, port)
        _tell_modes(settings, live)
        elected = threading.Event()
        thread: threading.Thread | None = None
        if election is not None:
            thread = threading.Thread(target=election.run, args=(elected,), name="election", daemon=True)
            thread.start()
            # A single replica then leads at its first analysis.
            _wait(lambda: election.leads or bool(election.holder), stopping, 2 * election.retry_seconds)
        jobs.start()
        _watch(controller, jobs, pulse, hang_up, options["config"])
        log.info("stopping: no new work is begun")
        asked = time.monotonic()
        left = jobs.stop(controller.settings.run.shutdown_timeout_seconds)
        elected.set()
        if left:
            # Its Remediation records what was begun, and no other replica leads until the Lease expires.
            log.error("still running after %d s: %s", controller.settings.run.shutdown_timeout_seconds, ", ".join(left))
            sys.stderr.flush()
            os._exit(ExitCode.FAILED)
        controller.replica.opened.rest()
        if election is not None and thread is not None:
            # A pending attempt at the Lease ends by its own timeouts.
            thread.join(max(controller.settings.run.shutdown_timeout_seconds - (time.monotonic() - asked), 1.0))
            election.release()
    log.info("stopped")
    return ExitCode.OK


class _Pulse:
    """The last turn of the main loop."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    def beat(self) -> None:
        self._at = time.monotonic()

    def complaints(self) -> list[str]:
        quiet = time.monotonic() - self._at
        return [f"the main loop has not turned for {quiet:.0f} s"] if quiet > _PULSE_SECONDS else []


def _unready(controller: Controller, jobs: Jobs) -> list[str]:
    """Why it is not ready, with the error that ended the last cycle."""
    found, cycle = controller.unready(), jobs.times.get("cycle")
    told = cycle.error if found and cycle is not None else ""
    return [*found, f"the last cycle failed: {told}"] if told and told not in found else found


def _election(settings: Settings, identity: str, options: Mapping[str, Any]) -> Election:
    run = settings.run
    # One lost request must not outlast the Lease.
    patience = Limits(connect_timeout_seconds=2.0, read_timeout_seconds=max(run.lease_duration_seconds / 3, 1.0))
    writer = LiveWriter(api_client(options["kubeconfig"], options["context"]), instance=identity, limits=patience)
    return Election(writer, settings.namespace, identity, lease_duration_seconds=run.lease_duration_seconds)


def _writers(election: Election, identity: str, options: Mapping[str, Any], metrics: Metrics) -> Writers:
    client = api_client(options["kubeconfig"], options["context"])
    plain = LiveWriter(client, lease_check=election.check_lease, instance=identity)
    rehearsal = LiveWriter(client, instance=identity, dry_run=True)
    return Writers(metrics.counted(plain, rehearsal=False), metrics.counted(rehearsal, rehearsal=True))


def _tell_modes(settings: Settings, live: bool) -> None:
    modes = {action: settings.plan.mode(action) for action in ActionKind}
    told = ", ".join(f"{action} {mode}" for action, mode in modes.items())
    told += "".join(f"; {scope.mode} for {scope}" for scope in settings.plan.scopes)
    if settings.plan.only_observes:
        log.info("mode observe: nothing is changed in the cluster")
    elif live:
        log.info("modes: %s", told)
    else:
        log.warning("modes: %s; but there is no live cluster, so that nothing can be done", told)


def _watch(controller: Controller, jobs: Jobs, pulse: _Pulse, hang_up: threading.Event, config: Path | None) -> None:
    """The main loop, until the replica stops."""
    known = _digest(config)
    looked = time.monotonic()
    while not controller.replica.stopping.wait(_TICK_SECONDS):
        pulse.beat()
        now, asked = time.monotonic(), hang_up.is_set()
        if asked or now - looked >= _SETTINGS_CHECK_SECONDS:
            looked, before, known = now, known, _digest(config)
            if asked or known != before:
                hang_up.clear()
                _take(controller, jobs)


def _take(controller: Controller, jobs: Jobs) -> None:
    replica, before = controller.replica, controller.settings
    try:
        replica.take()
    except (*EXPECTED, OSError) as error:
        replica.metrics.settings(False, datetime.now(UTC))
        log.error("the new settings are not taken, the old ones go on: %s", error)  # noqa: TRY400 - told in full
        return
    jobs.change(controller.jobs())
    replica.metrics.settings(True, datetime.now(UTC))
    after = controller.settings
    changed = [name for name in type(after).model_fields if getattr(before, name) != getattr(after, name)]
    log.info("settings taken anew; changed: %s", ", ".join(changed) or "nothing")
    fixed = ("listen_address", "listen_port", "pages", "lease_duration_seconds", "namespace")
    stale = [f"run.{name}" for name in fixed if getattr(before.run, name) != getattr(after.run, name)]
    if stale:
        log.warning("%s: a change of it takes a restart", ", ".join(stale))


def _digest(config: Path | None) -> str:
    """Of the file's content: a mounted ConfigMap is a link that is swapped, and its times may go back."""
    if config is None:
        return ""
    try:
        return hashlib.sha256(config.read_bytes()).hexdigest()
    except OSError:
        return "unreadable"


def _wait(condition: Callable[[], bool], stopping: threading.Event, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end and not stopping.wait(0.05):
        pass
