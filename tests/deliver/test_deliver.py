"""Delivery against real receivers: what arrives, what failure costs, and what a later run makes good."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from deliver.receivers import Webhook, mail_server, s3_server, webhook
from gpuwatch.facts.model.delivery import Delivery, DeliveryState, Sending
from gpuwatch.say.deliver import deliver as turns
from gpuwatch.say.deliver.deliver import (
    DeliveryContext,
    Sent,
    deliver,
    read_report,
    report_id,
    with_new_destinations,
    write_report,
)
from gpuwatch.say.deliver.destinations import names_of
from gpuwatch.say.deliver.policy import DeliveryPolicy
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.store import Store

# Apprise's mail plug-in imports it on Pythons that still have it.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")

FILES = {"report.html": b"<h1>GPUs</h1>", "report.json": b'{"gpus": 3}', "idle.csv": b"pod,hours\n"}
TITLE = "GPU report, week 40 of 2026"
SUMMARY = "**3 GPUs** idle\n\n- team/a"
QUICK = DeliveryPolicy(timeout_seconds=5.0)
NOW = datetime(2026, 3, 9, 6, tzinfo=UTC)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three attempts a turn, without waits."""
    monkeypatch.setattr(turns, "ATTEMPTS", 3)
    monkeypatch.setattr(turns, "BACKOFF_SECONDS", 0.001)


class Run:
    """One process after the other, with the same state."""

    def __init__(self, tmp_path: Path, **changes: Any) -> None:
        self.policy = replace(QUICK, **changes)
        self.state = tmp_path / "state"
        self.lines: list[str] = []

    def deliver(
        self, title: str = TITLE, text: str = SUMMARY, context: DeliveryContext | None = None
    ) -> tuple[Delivery, ...]:
        """As a process does that knows what is in the state, and no more."""
        sent = Sent(lambda: Store.open(self.state))
        sending = Sending(id=report_id(FILES, title, ""), title=title, text=text, at=NOW, report=True)
        sending = with_new_destinations(sent.get(sending.id) or sending, self.policy)
        return deliver(sent.note(sending), FILES, self.policy, sent, self.lines.append, context)

    @property
    def id(self) -> str:
        return report_id(FILES, TITLE, "")

    @property
    def shown(self) -> str:
        """All that a person may come to see, or that is kept."""
        return "\n".join([*self.lines, repr(Store.open(self.state).deliveries())])


@contextmanager
def hooked(tmp_path: Path, *statuses: int, **changes: Any) -> Iterator[tuple[Webhook, Run]]:
    """A webhook that answers so, and what delivers to it alone."""
    with webhook(*statuses) as server:
        yield server, Run(tmp_path, urls=(f"json://{server.address}/hook",), **changes)


class TestReportFolder:
    def test_it_is_whole_or_absent_and_stays(self, tmp_path: Path) -> None:
        folder = tmp_path / "reports" / "one"
        (tmp_path / "reports" / ".draft-one").mkdir(parents=True)
        (tmp_path / "reports" / ".draft-one" / "rest").write_text("of a process that was killed")
        write_report(folder, FILES)
        assert read_report(folder) == FILES
        write_report(folder, {"other.txt": b"x"})
        assert read_report(folder) == FILES
        assert [item.name for item in folder.parent.iterdir()] == ["one"]
        assert read_report(tmp_path / "none") == {}

    def test_its_name_is_that_of_its_content(self) -> None:
        one = report_id(FILES, TITLE, SUMMARY)
        assert one.startswith("gpu-report-week-40-of-2026-")
        assert one == report_id(dict(reversed(FILES.items())), TITLE, SUMMARY)
        assert one != report_id({**FILES, "report.json": b"{}"}, TITLE, SUMMARY)

    @pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "x" * 129])
    def test_names_that_could_leave_the_folder_are_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ValueError, match="not a valid name for a report's file"):
            write_report(tmp_path / "one", {name: b""})
        write_report(tmp_path / "one", {"x" * 128: b""})


class TestSent:
    def test_what_is_noted_later_is_saved_with_the_next(self, tmp_path: Path) -> None:
        one = Sending(id="one", title="One", text="", at=NOW)
        sent, other = (Sent(lambda: Store.open(tmp_path / "state")) for _ in range(2))
        sent.note(one, later=True)
        assert (sent.get("one"), other.all()) == (one, {})
        sent.note(replace(one, id="two"))
        assert other.all() == {}  # read once
        other.read_again()
        assert other.all().keys() == {"one", "two"}
        assert other.forget(["one", "none"]) == 1
        assert Store.open(tmp_path / "state").deliveries().keys() == {"two"}
        assert sent.token() == other.token()

    def test_what_could_not_be_saved_counts_and_is_saved_with_the_next(self, tmp_path: Path) -> None:
        full = False

        def opened() -> Store:
            if full:
                raise StoreError("the disk is full")
            return Store.open(tmp_path / "state")

        sent = Sent(opened)
        assert sent.all() == {}
        full = True
        one = Sending(id="one", title="One", text="", at=NOW, report=True)
        with pytest.raises(StoreError):
            sent.note(one)
        told = sent.note(replace(one, id="told", report=False))  # a notification goes on: it may arrive twice
        assert (sent.get("one"), sent.get("told")) == (one, told)
        full = False
        sent.note(replace(one, id="two"))
        assert Store.open(tmp_path / "state").deliveries().keys() == {"one", "told", "two"}

    def test_a_state_that_cannot_be_read_is_not_asked_all_the_time(self) -> None:
        asked = []

        def opened() -> Store:
            asked.append(1)
            raise StoreError("no answer")

        sent = Sent(opened)
        for _ in range(3):
            with pytest.raises(StoreError, match="no answer"):
                sent.all()
        assert len(asked) == 1


class TestFolder:
    def test_files_arrive(self, tmp_path: Path) -> None:
        run = Run(tmp_path, folder=tmp_path / "out")
        (done,) = run.deliver()
        assert (done.state, done.attempts, done.error) == (DeliveryState.SENT, 1, "")
        assert {path.name: path.read_bytes() for path in (tmp_path / "out" / run.id).iterdir()} == FILES

    def test_failure_is_told_and_made_good_by_the_next_run(self, tmp_path: Path) -> None:
        blocker = tmp_path / "out"
        blocker.write_text("a file")
        run = Run(tmp_path, folder=blocker)
        (done,) = run.deliver()
        assert done.state is DeliveryState.FAILED
        assert done.attempts == 3
        assert str(blocker) in done.error
        blocker.unlink()
        (done,) = run.deliver()
        assert (done.state, done.attempts) == (DeliveryState.SENT, 4)
        assert run.deliver() == (done,)


class TestWebhook:
    def test_the_summary_arrives_with_a_key(self, tmp_path: Path) -> None:
        with hooked(tmp_path) as (server, run):
            (done,) = run.deliver()
            assert done.state is DeliveryState.SENT
            body = json.loads(server.bodies[0])
            assert (body["title"], body["message"]) == (TITLE, SUMMARY)
            assert body["attachments"] == []
            assert server.taken == [run.id]
            run.deliver()
            run.deliver()
            assert len(server.bodies) == 1

    def test_what_is_too_long_is_cut(self, tmp_path: Path) -> None:
        with hooked(tmp_path) as (server, run):
            run.deliver(text="x" * 100_000)
            assert 1000 < len(json.loads(server.bodies[0])["message"]) < 100_000

    @pytest.mark.parametrize("status", [500, 429, 404])
    def test_errors_are_tried_again(self, tmp_path: Path, status: int) -> None:
        with hooked(tmp_path, status, status) as (_, run):
            (done,) = run.deliver()
        assert (done.state, done.attempts) == (DeliveryState.SENT, 3)
        assert f"error={status}" in run.lines[0]
        assert "the receiver's own words" in run.lines[0]

    def test_as_often_as_a_run_tries_and_then_by_the_next(self, tmp_path: Path) -> None:
        with hooked(tmp_path, *[500] * 3) as (server, run):
            (done,) = run.deliver()
            assert (done.state, done.attempts) == (DeliveryState.FAILED, 3)
            assert "error=500" in done.error
            (done,) = run.deliver()
            assert (done.state, done.attempts, done.error) == (DeliveryState.SENT, 4, "")
            assert len(server.taken) == 1

    def test_a_receiver_that_does_not_answer(self, tmp_path: Path) -> None:
        with hooked(tmp_path, 0, timeout_seconds=0.2) as (_, run):
            (done,) = run.deliver()
            assert (done.state, done.attempts) == (DeliveryState.SENT, 2)
        assert "timed out" in run.lines[0].lower()

    def test_nobody_listens(self, tmp_path: Path) -> None:
        run = Run(tmp_path, urls=("json://127.0.0.1:1/hook",))
        (done,) = run.deliver()
        assert done.state is DeliveryState.FAILED
        assert "refused" in done.error.lower()

    def test_given_up_after_so_many_runs(self, tmp_path: Path) -> None:
        with hooked(tmp_path, *[500] * 5, max_attempts=5) as (server, run):
            assert run.deliver()[0].attempts == 3
            assert run.deliver()[0].attempts == 5
            assert run.deliver()[0].attempts == 5
            assert "given up" in run.lines[-1]
            assert len(server.bodies) == 5

    def test_a_failure_costs_one_destination(self, tmp_path: Path) -> None:
        with webhook() as good, webhook(*[500] * 3) as bad:
            urls = (f"json://{bad.address}/", "nonsense://x", f"json://{good.address}/")
            run = Run(tmp_path, folder=tmp_path / "out", urls=urls)
            states = [item.state for item in run.deliver()]
        assert states == [DeliveryState.SENT, DeliveryState.FAILED, DeliveryState.FAILED, DeliveryState.SENT]

    def test_what_is_no_url_of_apprise_is_not_tried_again_at_once(self, tmp_path: Path) -> None:
        run = Run(tmp_path, urls=("nonsense://secret-token-1",))
        (done,) = run.deliver()
        assert (done.state, done.attempts) == (DeliveryState.FAILED, 1)
        assert "does not understand" in done.error

    def test_a_destination_that_was_taken_out_is_not_sent_to(self, tmp_path: Path) -> None:
        with hooked(tmp_path, *[500] * 3) as (server, run):
            run.deliver()
            run.policy = replace(run.policy, urls=(), folder=tmp_path / "out")
            sent = Sent(lambda: Store.open(run.state))
            (done,) = deliver(sent.all()[run.id], FILES, run.policy, sent, run.lines.append)
            assert "no longer name this destination" in done.error
            assert len(server.bodies) == 3
            assert not (tmp_path / "out").exists()  # nor are old reports sent where they were not meant for


class TestMail:
    def url(self, port: int) -> str:
        return f"mailto://127.0.0.1:{port}?from=gpuwatch@corp.example&to=team@corp.example&smtp=127.0.0.1&mode=insecure"

    def test_summary_and_files_arrive(self, tmp_path: Path) -> None:
        with mail_server() as (port, messages):
            run = Run(tmp_path, urls=(self.url(port),))
            (done,) = run.deliver()
            assert done.state is DeliveryState.SENT, done.error
            (message,) = messages
        assert message["Subject"] == TITLE
        assert message["To"] == "team@corp.example"
        assert message["Idempotency-Key"] == run.id
        parts = {part.get_filename(): part.get_payload(decode=True) for part in message.walk()}
        assert {name: parts[name] for name in FILES} == FILES
        html = next(part.get_payload(decode=True) for part in message.walk() if part.get_content_type() == "text/html")
        assert b"<strong>3 GPUs</strong>" in html  # type: ignore[operator]

    def test_without_files(self, tmp_path: Path) -> None:
        with mail_server() as (port, messages):
            Run(tmp_path, urls=(self.url(port),), attach_files=False).deliver()
            assert not any(part.get_filename() for part in messages[0].walk())

    def test_a_server_that_refuses_for_a_while(self, tmp_path: Path) -> None:
        with mail_server("451 later", "451 later") as (port, messages):
            (done,) = Run(tmp_path, urls=(self.url(port),)).deliver()
            assert (done.state, done.attempts) == (DeliveryState.SENT, 3)
            assert len(messages) == 1


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> tuple[Any, str]:
    import boto3

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLEKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-key")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    name = request.node.name.replace("_", "-").lower()[:60]
    client = boto3.session.Session().client("s3", endpoint_url=s3, region_name="us-east-1")
    client.create_bucket(Bucket=name)
    return client, name


class TestS3:
    def test_objects_arrive_once(self, tmp_path: Path, s3: str, bucket: tuple[Any, str]) -> None:
        client, name = bucket
        run = Run(tmp_path, s3_bucket=name, s3_prefix="/gpu/weekly/", s3_endpoint=s3, s3_region="us-east-1")
        (done,) = run.deliver()
        assert done.state is DeliveryState.SENT, done.error
        assert done.destination == f"s3://{name}/gpu/weekly at {s3}"
        keys = [item["Key"] for item in client.list_objects_v2(Bucket=name)["Contents"]]
        assert sorted(keys) == sorted(f"gpu/weekly/{run.id}/{file}" for file in FILES)
        got = client.get_object(Bucket=name, Key=f"gpu/weekly/{run.id}/report.html")
        assert (got["Body"].read(), got["ContentType"]) == (FILES["report.html"], "text/html")
        # A process that was killed before it noted the success: the same objects again, and no others.
        run.state.unlink()
        assert run.deliver()[0].state is DeliveryState.SENT
        assert [item["Key"] for item in client.list_objects_v2(Bucket=name)["Contents"]] == keys

    def test_a_missing_bucket_is_not_tried_again_at_once(
        self, tmp_path: Path, s3: str, bucket: tuple[Any, str]
    ) -> None:
        client, name = bucket
        run = Run(tmp_path, s3_bucket=f"{name}-2", s3_endpoint=s3, s3_region="us-east-1")
        (done,) = run.deliver()
        assert (done.state, done.attempts) == (DeliveryState.FAILED, 1)
        assert "NoSuchBucket" in done.error
        client.create_bucket(Bucket=f"{name}-2")
        assert run.deliver()[0].state is DeliveryState.SENT

    def test_a_store_that_is_away(self, tmp_path: Path, bucket: tuple[Any, str]) -> None:
        run = Run(tmp_path, s3_bucket="b", s3_endpoint="http://127.0.0.1:1", s3_region="us-east-1")
        (done,) = run.deliver()
        assert (done.state, done.attempts) == (DeliveryState.FAILED, 3)
        assert "127.0.0.1:1" in done.error

    def test_errors_of_the_server_are_tried_again(self, tmp_path: Path, bucket: tuple[Any, str]) -> None:
        with webhook(*[0] * 9) as server:
            server.hang_seconds = 0.0  # closes without an answer, to PUT as well: it knows none
            run = Run(tmp_path, s3_bucket="b", s3_endpoint=f"http://{server.address}", s3_region="us-east-1")
            (done,) = run.deliver()
        assert (done.state, done.attempts) == (DeliveryState.FAILED, 3)

    def test_no_credentials(self, tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        (done,) = Run(tmp_path, s3_bucket="b", s3_endpoint=s3, s3_region="us-east-1").deliver()
        assert "NoCredentialsError" in done.error


class TestSecrets:
    SECRETS = ("sesame-pass", "T0KEN-in-path", "header-secret", "query-secret", "very-secret-key")

    def check(self, run: Run, done: tuple[Delivery, ...], caplog: pytest.LogCaptureFixture) -> None:
        told = "\n".join([run.shown, repr(done), repr(run.policy), caplog.text])
        for secret in self.SECRETS:
            assert secret not in told

    @pytest.mark.parametrize("status", [500, 0])
    def test_of_a_url_nothing_is_shown_or_kept(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int
    ) -> None:
        caplog.set_level(logging.DEBUG, logger="apprise")
        with webhook(*[status] * 3, hang_seconds=0.0) as server:
            url = f"json://user:sesame-pass@{server.address}/T0KEN-in-path?+X-Key=header-secret&-q=query-secret"
            run = Run(tmp_path, urls=(url,))
            done = run.deliver()
        assert done[0].state is DeliveryState.FAILED
        assert server.address.partition(":")[0] in done[0].destination
        assert done[0].error
        self.check(run, done, caplog)

    def test_a_connection_error_names_the_host_and_not_the_path(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        run = Run(tmp_path, urls=("json://127.0.0.1:1/T0KEN-in-path?-q=query-secret",))
        done = run.deliver()
        assert "127.0.0.1" in done[0].error
        self.check(run, done, caplog)

    def test_a_host_that_is_a_token_is_not_shown(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        run = Run(tmp_path, urls=("slack://T0KEN-in-path/sesame-pass/header-secret",))
        self.check(run, run.deliver(), caplog)

    def test_urls_from_variables_and_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with webhook() as server:
            monkeypatch.setenv("TEAM_HOOK", f"json://{server.address}/T0KEN-in-path")
            file = tmp_path / "hook"
            file.write_text(f"json://user:sesame-pass@{server.address}/other\n")
            run = Run(tmp_path, urls=("env:TEAM_HOOK", f"file:{file}"))
            done = run.deliver()
            assert [item.state for item in done] == [DeliveryState.SENT] * 2, done
            assert [item.destination for item in done] == ["env:TEAM_HOOK", f"file:{file}"]
            self.check(run, done, caplog)

    def test_a_secret_that_is_changed_is_used_by_the_next_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with webhook() as server:
            monkeypatch.setenv("TEAM_HOOK", "json://127.0.0.1:1/old")
            run = Run(tmp_path, urls=("env:TEAM_HOOK",))
            assert run.deliver()[0].state is DeliveryState.FAILED
            monkeypatch.setenv("TEAM_HOOK", f"json://{server.address}/new")
            assert run.deliver()[0].state is DeliveryState.SENT

    def test_variables_and_files_that_hold_nothing_of_use(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("NO_HOOK", raising=False)
        two = tmp_path / "two"
        two.write_text("json://a/\njson://b/\n")
        done = Run(tmp_path, urls=("env:NO_HOOK", f"file:{tmp_path / 'none'}", f"file:{two}")).deliver()
        assert [item.attempts for item in done] == [1, 1, 1]
        assert "NO_HOOK is not set" in done[0].error
        assert "No such file" in done[1].error
        assert "one Apprise URL and nothing else" in done[2].error


class TestProcessThatStays:
    """`gpuwatch run`: tries again by itself, and does not wait when it is to end."""

    def test_what_failed_waits_for_its_time_and_longer_each_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(turns, "ATTEMPTS", 1)
        with hooked(tmp_path, 500, 500, 500, retry_seconds=60.0) as (server, run):

            def tried(seconds: float) -> int:
                """By a process of its own each time: a restart changes nothing."""
                before = len(server.bodies)
                run.deliver(context=DeliveryContext(now=NOW + timedelta(seconds=seconds)))
                return len(server.bodies) - before

            assert [tried(at) for at in (0, 59, 60, 179, 180, 419, 420, 10_000)] == [1, 0, 1, 0, 1, 0, 1, 0]
            assert len(server.taken) == 1

    def test_a_wait_is_cut_short_when_the_process_is_to_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(turns, "BACKOFF_SECONDS", 60.0)
        stopping = threading.Event()
        with hooked(tmp_path, 500, 500) as (server, run):

            class AskedToEnd(list[str]):
                def append(self, _: str) -> None:
                    stopping.set()

            run.lines = AskedToEnd()
            began = time.monotonic()
            (done,) = run.deliver(context=DeliveryContext(now=NOW, stopping=stopping))
            assert time.monotonic() - began < 20
            assert (done.state, done.attempts, len(server.bodies)) == (DeliveryState.FAILED, 1, 1)
            run.deliver(context=DeliveryContext(now=NOW, stopping=stopping))
            assert len(server.bodies) == 1  # nothing new is begun

    def test_how_each_turn_ended_is_said_once(self, tmp_path: Path) -> None:
        with webhook(*[500] * turns.ATTEMPTS) as bad, webhook() as good:
            run = Run(tmp_path, urls=(f"json://{bad.address}/", f"json://{good.address}/"))
            told = list[bool]()
            run.deliver(context=DeliveryContext(ended=told.append))
            assert told == [False, True]
            run.deliver(context=DeliveryContext(ended=told.append))
            assert told == [False, True, True]

    def test_a_receiver_that_is_silent_holds_up_the_others_once(self, tmp_path: Path) -> None:
        with webhook(*[500] * 9) as bad, webhook() as good:
            run = Run(tmp_path, urls=(f"json://{bad.address}/", f"json://{good.address}/"))
            context = DeliveryContext(now=NOW)
            for number in range(3):
                run.deliver(f"{TITLE} {number}", context=context)
            assert (len(bad.bodies), len(good.taken)) == (3, 3)  # one turn of three attempts

    def test_what_cannot_be_noted_is_not_sent(self, tmp_path: Path) -> None:
        """At least once, and not over and over: an attempt counts before it is made."""
        with hooked(tmp_path) as (server, run):
            run.state.mkdir()
            with pytest.raises(StoreError, match="state: the state has to be a regular file"):
                run.deliver()
            assert server.bodies == []


class TestPolicy:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"max_attempts": 0}, "delivery.max_attempts is 0"),
            ({"retry_seconds": -0.1}, "delivery.retry_seconds"),
            ({"timeout_seconds": 0.0}, "delivery.timeout_seconds"),
            ({"s3_prefix": "x"}, "name the bucket"),
            ({"s3_bucket": "b", "s3_endpoint": "minio:9000"}, "has to be a URL"),
            ({"s3_bucket": "b", "s3_endpoint": "https://key:sesame@minio"}, "holds credentials"),
            ({"urls": ("sesame",)}, "entry 1, has to be"),
            ({"urls": ("env:NOT A NAME",)}, "entry 1, has to be"),
            ({"urls": ("env:A", "env:A")}, "twice"),
        ],
        ids=lambda value: value if isinstance(value, str) else None,
    )
    def test_what_cannot_be_is_refused(self, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(ValueError, match=words) as refused:
            DeliveryPolicy(**changes)
        assert "sesame" not in str(refused.value)

    def test_what_is_just_right(self) -> None:
        policy = DeliveryPolicy(
            max_attempts=1, retry_seconds=0, timeout_seconds=0.1, s3_bucket="b", s3_prefix="p",
            s3_endpoint="http://minio:9000", urls=("env:A", "file:/b", "jsons://c/d"),
        )  # fmt: skip
        assert len(names_of(policy)) == 4


# A prime: not the same statement of each loop every time.
STRIDE = "5"


@pytest.mark.slow
def test_killed_at_every_line(tmp_path: Path) -> None:
    script = Path(__file__).with_name("kill_at_every_line.py")
    with webhook() as server:
        command = [sys.executable, str(script), str(tmp_path), server.address, STRIDE]
        told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
        keys = Counter(server.taken)
    rounds = [json.loads(line) for line in told.splitlines()]
    assert len(rounds) > 50  # lines of one delivery, divided by the stride
    for item in rounds:
        assert [one["state"] for one in item["result"]] == ["sent", "sent"], item
        assert {name.split("/")[1] for name in item["files"]} == {"report.html", "report.json"}
        # Half-written files never bear a file's name.
        assert all(
            name.split("/")[1] in ("report.html", "report.json") or name.endswith(".part")
            for name in item["after_kill"]
        )
    assert len(keys) == len(rounds)  # each arrived
    assert max(keys.values()) <= 2
    repeated = sum(count > 1 for count in keys.values())
    assert 0 < repeated < len(rounds) / 4  # killed between the answer and its note
