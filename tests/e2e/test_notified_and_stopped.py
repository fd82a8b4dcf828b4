"""A release that is held back until somebody was told, and that is half done when its process has to end; a report
that outlives its replica."""

import signal
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deliver.receivers import webhook
from e2e.world import World
from kube.forwarding import Spoilt, forwarding

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


def test_it_is_told_before_it_is_done_and_found_half_done_and_finished_by_the_next_process(allowed: World) -> None:
    living = allowed
    living.node("told-0", "told")
    living.fleet.idle.add("told")
    living.started("told", "Job", "told", gpus=4, copies=2)
    before = living.api.get("/apis/batch/v1/namespaces/team-a/jobs/told")["spec"]
    held = threading.Event()

    def spoil(method: str, path: str, body: bytes) -> Spoilt | None:
        """The answer to the write that suspends the Job comes when nobody waits for it any more."""
        suspends = b'"suspend":true' in body.replace(b" ", b"")
        if method != "PATCH" or "/jobs/told" not in path or "dryRun" in path or not suspends:
            return None
        held.set()
        return Spoilt(pause_seconds=60)

    refusals = [503] * 1000  # until this test has seen what is said meanwhile, however long its machine takes for that
    with webhook(*refusals) as receiver, forwarding(living.cluster.account("told-proxy"), spoil) as proxy:
        through = living.folder / "told-proxy.yaml"
        through.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n"
            f"clusters: [{{name: test, cluster: {{server: '{proxy.url}'}}}}]\n"
            "users: [{name: nobody, user: {}}]\ncontexts: [{name: test, context: {cluster: test, user: nobody}}]\n"
        )
        proxied = replace(living, cluster=replace(living.cluster, account=lambda name: through, own=None))
        settings = living.settings(
            "told",
            plan={"scopes": [{"mode": "enforce", "pool": "told", "action": "release_gang"}]},
            run={"shutdown_timeout_seconds": 3},
            delivery={"urls": [f"json://{receiver.address}/"], "retry_seconds": 30},
        )
        with proxied.gpuwatch("told-a", settings) as first:
            living.until(lambda: "waits. No receiver took the notification: json 127.0.0.1" in first.said(), first)
            (waits,) = living.remediations("release_gang", "told")
            assert waits["status"]["phase"] == "Notified"
            living.until(lambda: "gpuwatch_notifications_undelivered 1.0" in first.asked("/metrics")[1], first)
            # While the next try is under way, it says so instead.
            living.until(
                lambda: "No receiver took the notification" in " ".join(living.command("history").stdout.split()), first
            )
            assert len(living.running("told")) == 2
            receiver.statuses.clear()
            living.until(lambda: bool(receiver.taken), first)
            assert not held.is_set()  # owners have their time yet
            living.until(held.is_set, first)
            began = time.monotonic()
            first.process.send_signal(signal.SIGTERM)
            assert first.process.wait(30) == 1
            assert time.monotonic() - began > 2.5
        assert "still running after 3 s: remediation" in first.said().splitlines()[-1]
        (half,) = living.remediations("release_gang", "told")
        assert half["status"]["phase"] == "Acting"
    with living.gpuwatch("told-b", settings) as second:
        living.until(lambda: living.phase("release_gang", "told") == "InEffect", second)
        (done,) = living.remediations("release_gang", "told")
        assert done["metadata"]["uid"] == waits["metadata"]["uid"]
        assert living.pods("told") == []
        assert "gpuwatch_notifications_undelivered 0.0" in second.asked("/metrics")[1]
        living.fleet.idle.discard("told")
        assert living.command("undo", done["metadata"]["name"]).returncode == 0
        living.until(lambda: living.phase("release_gang", "told") == "Undone", second)
        living.until(lambda: len(living.running("told")) == 2, second)
    assert living.api.get("/apis/batch/v1/namespaces/team-a/jobs/told")["spec"] == before
    assert len(receiver.taken) == 1


def test_a_report_that_was_missed_is_made_by_whoever_leads_and_not_again_by_the_next(living: World) -> None:
    """Under deploy/base alone: the state in the cluster remembers it."""
    due = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=1)
    inbox = living.folder / "reports-inbox"
    cron = f"{due.minute} {due.hour} * * {due:%a}"
    settings = living.settings("reporting", run={"report_schedule": cron}, delivery={"folder": str(inbox)})

    def done(process: Any) -> list[float]:
        lines = process.asked("/metrics")[1].splitlines()
        return [float(line.split()[1]) for line in lines if line.startswith("gpuwatch_report_done")]

    with living.gpuwatch("reporting-a", settings) as first:
        living.until(lambda: done(first) == [due.timestamp()], first)
        first.kill()
    assert "was missed, and is made now" in first.said()
    again = living.settings("reporting-again", run={"report_schedule": cron}, delivery={"folder": str(inbox)})
    with living.gpuwatch("reporting-b", again) as second:
        living.until(lambda: done(second) == [due.timestamp()], second)
        assert "was missed" not in second.said()
        assert "Nothing was proposed: mode observe." in "".join(path.read_text() for path in inbox.glob("*/report.md"))
    assert len(list(inbox.iterdir())) == 1
