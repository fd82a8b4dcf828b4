"""Following by watch, against a server over real HTTP that does what real ones do to watches."""

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuwatch.facts.model.cluster import Cluster, FactKind, OwnerStatus
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.kube.follow import Patience
from gpuwatch.sources.kube.live import FollowedCluster, LiveCluster
from gpuwatch.sources.kube.reader import ClusterError, Followed
from gpuwatch.sources.kube.transport import Limits
from kube.api_server import Answer, ApiServer, Request, Trouble, client_of, quiet, serving, status
from kube.cluster_json import controlled_by, node, owner, pod
from parts.processes import wait_until

NOW = datetime(2026, 11, 21, tzinfo=UTC)
QUICK = Limits(
    page_size=2, connect_timeout_seconds=1, read_timeout_seconds=1, backoff_seconds=0.01, longest_pause_seconds=0.05
)
PATIENCE = Patience(watch_seconds=1, grace_seconds=1)
PODS, NODES, NAMESPACES, JOBS = "/api/v1/pods", "/api/v1/nodes", "/api/v1/namespaces", "/apis/batch/v1/jobs"
BASE = (
    NODES,
    PODS,
    "/apis/policy/v1/poddisruptionbudgets",
    NAMESPACES,
    "/api/v1/resourcequotas",
)
REPLICA_SETS, DEPLOYMENTS = "/apis/apps/v1/replicasets", "/apis/apps/v1/deployments"


def found(**more: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """A cluster of one Node and three Pods, and what is added."""
    lists: dict[str, list[dict[str, Any]]] = {path: [] for path in BASE}
    lists[NODES] = [node("gpu-0", capacity={"nvidia.com/gpu": "8"})]
    lists[PODS] = [pod(f"p{item}") for item in range(3)]
    return {**lists, **more}


@dataclass
class Script:
    """Answers to watches by path, in their order; when they are used up, watches are quiet.

    Also `trouble` of its own, which is looked at first.
    """

    answers: dict[str, list[Answer]] = field(default_factory=dict)
    first: Trouble = lambda _: None

    def __call__(self, request: Request) -> Answer | None:
        told = self.first(request)
        if told is not None or "watch" not in request.query:
            return told
        waiting = self.answers.get(request.path, [])
        return waiting.pop(0) if waiting else None


@dataclass
class World:
    server: ApiServer
    script: Script
    reader: FollowedCluster
    listing: LiveCluster

    def pods(self) -> list[str]:
        return [item.name for item in self.reader.read(NOW).pods]

    def until(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, lambda: f"{self.reader.followed()} {self.server.requests[-20:]}", 10)

    def lists(self, path: str) -> int:
        """How often the list was begun."""
        asked = [request.query for request in self.server.asked(path)]
        return sum("watch" not in query and "continue" not in query for query in asked)

    def watches(self, path: str) -> list[dict[str, str]]:
        return [request.query for request in self.server.asked(path) if "watch" in request.query]

    def of(self, resource: str) -> Followed:
        return next(item for item in self.reader.followed() if item.resource == resource)


@contextmanager
def world(
    lists: dict[str, list[dict[str, Any]]] | None = None,
    patience: Patience = PATIENCE,
    limits: Limits = QUICK,
    first: Trouble = lambda _: None,
    **answers: list[Answer],
) -> Iterator[World]:
    """answers: to watches of Pods."""
    script = Script({PODS: answers.get("pods", [])}, first)
    server = ApiServer(found() if lists is None else lists, script)
    with serving(server), client_of(server.url) as client:
        reader = FollowedCluster(client, limits, patience)
        try:
            yield World(server, script, reader, LiveCluster(client, limits))
        finally:
            reader.close()


def event(kind: str, object_: dict[str, Any], version: int) -> bytes:
    """A line of a watch."""
    changed = {**object_, "metadata": {**object_.get("metadata", {}), "resourceVersion": str(version)}}
    return json.dumps({"type": kind, "object": changed}).encode() + b"\n"


def bookmark(version: int) -> bytes:
    return event("BOOKMARK", {"kind": "Pod", "apiVersion": "v1"}, version)


def error(code: int, message: str) -> bytes:
    failure = {"kind": "Status", "apiVersion": "v1", "code": code, "message": message, "reason": "Expired"}
    return json.dumps({"type": "ERROR", "object": failure}).encode() + b"\n"


def lines(*pieces: bytes, seconds: float = 5.0) -> Answer:
    """These pieces at once, and then nothing more for so long."""

    def stream() -> Iterator[bytes]:
        yield from pieces
        yield from quiet(seconds)

    return Answer(stream=stream())


def ended(*pieces: bytes, cut: bool = False) -> Answer:
    """These pieces, and then the end."""
    return Answer(stream=list(pieces), cut=cut)


def gaps(cluster: Cluster) -> list[tuple[GapKind, str]]:
    return [(gap.kind, gap.what) for gap in cluster.gaps]


# What a watch brings


def test_bookmarks_alone_move_on_and_are_news() -> None:
    with world(pods=[ended(bookmark(70), bookmark(90))]) as here:
        here.reader.read(NOW)
        here.until(lambda: len(here.watches(PODS)) > 1)
        assert here.watches(PODS)[1]["resourceVersion"] == "90"
        assert here.pods() == ["p0", "p1", "p2"]
        assert here.lists(PODS) == 1


def test_a_watch_that_the_server_ends_in_time_is_normal(caplog: pytest.LogCaptureFixture) -> None:
    with world(patience=replace(PATIENCE, watch_seconds=0.2, grace_seconds=10)) as here:
        here.reader.read(NOW)
        began = time.monotonic()
        here.until(lambda: len(here.watches(PODS)) == 3)  # a second each
        assert here.of("pods").age_seconds < time.monotonic() - began - 1.0
        here.reader.read(NOW)
        assert here.lists(PODS) == 1
    assert caplog.text == ""


def test_what_a_proxy_holds_back_comes_at_the_end_of_the_watch() -> None:
    def held_back() -> Iterator[bytes]:
        yield from quiet(1.0)
        yield event("ADDED", pod("late"), 5) + bookmark(6)

    with world(pods=[Answer(stream=held_back())]) as here:
        here.reader.read(NOW)
        here.until(lambda: "late" in here.pods())
        assert here.lists(PODS) == 1


def test_a_line_may_come_in_pieces() -> None:
    whole = event("ADDED", pod("pieces"), 5) + bookmark(6)
    with world(pods=[lines(*(whole[at : at + 7] for at in range(0, len(whole), 7)))]) as here:
        here.reader.read(NOW)
        here.until(lambda: "pieces" in here.pods())


# Lost connections


@pytest.mark.parametrize(
    "broken",
    [
        ended(event("ADDED", pod("before"), 5), event("ADDED", pod("half"), 6)[:40]),
        ended(event("ADDED", pod("before"), 5), event("ADDED", pod("half"), 6)[:40], cut=True),
        ended(event("ADDED", pod("before"), 5), cut=True),
        ended(event("ADDED", pod("before"), 5)),  # in order, but long before its time
    ],
    ids=["half-a-line", "half-a-line-cut", "cut", "ended-early"],
)
def test_a_broken_watch_goes_on_where_it_was(broken: Answer) -> None:
    with world(pods=[broken, lines(event("ADDED", pod("half"), 6))]) as here:
        here.reader.read(NOW)
        here.until(lambda: here.pods() == ["before", "half", "p0", "p1", "p2"])
        assert [query["resourceVersion"] for query in here.watches(PODS)[:2]] == ["1", "5"]
        assert here.lists(PODS) == 1


def test_half_a_line_at_the_end_of_a_watch_is_no_news() -> None:
    def halved() -> Iterator[bytes]:
        yield from quiet(1.0)
        yield event("ADDED", pod("half"), 6)[:40]

    with world(pods=[Answer(stream=halved())]) as here:
        here.reader.read(NOW)
        here.until(lambda: len(here.watches(PODS)) == 2)
        assert here.of("pods").age_seconds >= 1.0


@pytest.mark.parametrize("refusal", [401, 429, 500, 503, 504])
def test_passing_refusals_are_tried_again_from_there(refusal: int) -> None:
    refusals = [status(refusal, "not now", Retry_After="0") for _ in range(3)]
    with world(pods=[*refusals, lines(event("ADDED", pod("new"), 5))]) as here:
        here.reader.read(NOW)
        here.until(lambda: "new" in here.pods())
        assert [query["resourceVersion"] for query in here.watches(PODS)[:4]] == ["1"] * 4
        assert here.lists(PODS) == 1


def test_a_watch_that_is_never_answered_is_ended() -> None:
    never = Answer(200, "{}", delay_seconds=30.0)
    with world(patience=replace(PATIENCE, grace_seconds=0.1), pods=[never, lines(bookmark(5))]) as here:
        began = time.monotonic()
        here.reader.read(NOW)
        here.until(lambda: len(here.watches(PODS)) == 2)
        assert 0.8 < time.monotonic() - began < 20.0
        assert here.pods() == ["p0", "p1", "p2"]


def test_a_watch_that_drips_is_ended() -> None:
    def drip() -> Iterator[bytes]:
        yield b'{"type":"'
        for _ in range(300):  # 30 s
            yield from quiet(0.1)
            yield b"x"

    patience = replace(PATIENCE, watch_seconds=0.2, grace_seconds=0.2)
    with world(patience=patience, pods=[Answer(stream=drip()), lines(event("ADDED", pod("new"), 5))]) as here:
        began = time.monotonic()
        here.reader.read(NOW)
        here.until(lambda: "new" in here.pods())
        assert time.monotonic() - began < 20.0


def test_tries_are_spaced_further_and_further() -> None:
    limits = replace(QUICK, backoff_seconds=0.1, longest_pause_seconds=10.0)
    with world(limits=limits, pods=[status(503, "no") for _ in range(50)]) as here:
        began = time.monotonic()
        here.reader.read(NOW)
        time.sleep(1.5)
        tries = len(here.watches(PODS))
        # Pauses of 0.2, 0.4, 0.8 s and so on, which jitter halves at most.
        assert tries >= 2
        assert sum(0.1 * 2**number for number in range(tries - 1)) < time.monotonic() - began


def test_an_outage_that_is_short_is_bridged_and_a_long_one_is_no_answer() -> None:
    patience = replace(PATIENCE, watch_seconds=0.3, stale_seconds=3.0)
    down = threading.Event()
    cut = Answer(200, "{}", close_after=0)
    with world(patience=patience, first=lambda _: cut if down.is_set() else None) as here:
        before = here.reader.read(NOW)
        down.set()
        time.sleep(0.5)
        held = here.reader.read(NOW)
        # What is not followed, since it was not served, could not be asked about.
        assert [node.published for node in held.nodes] == [None]
        nodes = tuple(replace(node, published={}) for node in held.nodes)
        assert replace(held, nodes=nodes, gaps=(), unread=()) == before
        assert {item.kind for item in held.unread} == {FactKind.GANGS}
        assert gaps(held) == [
            (GapKind.UNREACHABLE, "workloads.kueue.x-k8s.io"),
            (GapKind.UNREACHABLE, "resourceclaims.resource.k8s.io"),
            (GapKind.UNREACHABLE, "resourceslices.resource.k8s.io"),
        ]
        assert 0.0 < here.of("pods").age_seconds < 3.0
        here.until(lambda: here.of("pods").age_seconds > 3.0 and here.of("nodes").age_seconds > 3.0)
        here.until(lambda: all(item.age_seconds > 3.0 for item in here.reader.followed()))
        with pytest.raises(ClusterError, match=r"Kubernetes at http://127\.0\.0\.1"):
            here.reader.read(NOW)
        down.clear()
        assert here.reader.read(NOW) == before


# What is not heard of


def test_silence_is_listed_anew_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """Of a server, or a proxy, that takes watches and never says a word."""
    silent = [Answer(stream=quiet(30.0)) for _ in range(20)]
    patience = Patience(watch_seconds=0.1, grace_seconds=0.1, stale_seconds=1.5)
    with world(patience=patience, pods=silent) as here:
        here.reader.read(NOW)
        here.server.lists[PODS].append(pod("unseen"))
        assert "unseen" not in here.pods()  # within the bound
        time.sleep(1.6)
        assert "unseen" in here.pods()
        assert here.lists(PODS) == 2
    told = [record.message for record in caplog.records if record.message.startswith("pods")]
    assert len(told) == 1
    assert told[0].startswith(
        "pods are listed again: no event, bookmark or orderly end for more than 1.5 s (no answer from"
    )


def test_watches_that_end_at_once_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    limits = replace(QUICK, backoff_seconds=0.2, longest_pause_seconds=0.2)
    with world(patience=replace(PATIENCE, stale_seconds=0.5), limits=limits, pods=[ended() for _ in range(99)]) as here:
        here.reader.read(NOW)
        began = time.monotonic()
        time.sleep(0.6)
        tries = len(here.watches(PODS))
        assert 2 <= tries < 3 + (time.monotonic() - began) / 0.1  # spaced by at least 0.1 s
        here.reader.read(NOW)
        assert here.lists(PODS) == 2
    assert "(the server ended the watch too early)" in caplog.text


# Nothing to go on from


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ended(error(410, "too old resource version: 1 (9)")), "(410: too old resource version: 1 (9))"),
        (ended(error(500, "cannot decode")), "(500: cannot decode)"),
        (ended(b'{"type": "ERROR", "object": 5}\n'), "(no code: )"),
        (status(410, "too old resource version"), "answered 410 (too old resource version)"),
        (ended(b"<html>Log in</html>\n"), "no event in JSON"),
        (ended(b'{"type": "ADDED", "object": \n'), "no event in JSON"),
        (ended(b'{"type": 5}\n'), "no event in JSON"),
        (ended(b'{"kind": "PodList", "items": []}\n'), "unknown type ''"),
        (ended(event("RENAMED", pod("x"), 5)), "unknown type 'RENAMED'"),
        (ended(b'{"type": "ADDED", "object": {"metadata": {"resourceVersion": "5"}}}\n'), "without a name"),
        (ended(b'{"type": "ADDED", "object": {"metadata": 5}}\n'), "an event without a valid object"),
        (ended(b'{"type": "BOOKMARK", "object": {}}\n'), "without a resourceVersion"),
        (ended(event("ADDED", pod("x"), 0)), "without a resourceVersion"),
        (ended(bookmark(50), bookmark(49)), "went back, from 50 to 49"),
    ],
)
def test_what_cannot_go_on_is_listed_anew_once(answer: Answer, said: str, caplog: pytest.LogCaptureFixture) -> None:
    with world(pods=[answer]) as here:
        here.reader.read(NOW)
        here.server.lists[PODS].append(pod("new"))
        here.until(lambda: "new" in here.pods())
        assert here.lists(PODS) == 2
        time.sleep(0.1)
        here.reader.read(NOW)
        assert here.lists(PODS) == 2
    (told,) = (record.message for record in caplog.records if record.message.startswith("pods"))
    assert said in told


@pytest.mark.parametrize("refusal", [400, 403, 404, 405])
def test_what_may_not_be_watched_is_listed_each_time_and_told_once(
    refusal: int, caplog: pytest.LogCaptureFixture
) -> None:
    allowed = threading.Event()

    def first(request: Request) -> Answer | None:
        if request.path != PODS or "watch" not in request.query or allowed.is_set():
            return None
        return status(refusal, "no watch here")

    with world(first=first) as here:
        for number in range(1, 4):
            here.server.lists[PODS].append(pod(f"q{number}"))
            cluster = here.reader.read(NOW)
            assert cluster == here.listing.read(NOW)
            assert here.lists(PODS) == 2 * number
            here.until(lambda number=number: len(here.watches(PODS)) == number)  # type: ignore[misc]
            time.sleep(0.05)
        told = [record.message for record in caplog.records if record.message.startswith("pods")]
        assert len(told) == 1
        assert "no watch here" in told[0]
        if refusal == 403:
            assert "Grant the verb `watch` on `pods` of API group 'core'" in told[0]
        allowed.set()
        here.reader.read(NOW)
        here.until(lambda: len(here.watches(PODS)) == 4)
        listed = here.lists(PODS)
        here.reader.read(NOW)
        assert here.lists(PODS) == listed
        assert here.lists(NODES) == 1 + 3


# The same gaps as a listing reader


def test_a_list_that_is_refused_gives_the_same_gap_until_it_is_allowed() -> None:
    forbidden = threading.Event()
    forbidden.set()
    pods = [pod(meta=controlled_by("Job", "j", "batch/v1"))]
    lists = found(**{PODS: pods, JOBS: [owner("Job", "j", "batch/v1")]})

    def first(request: Request) -> Answer | None:
        return status(403, "no") if request.path == JOBS and forbidden.is_set() else None

    with world(lists, first=first) as here:
        for _ in range(2):
            cluster = here.reader.read(NOW)
            assert cluster == here.listing.read(NOW)
            assert gaps(cluster) == [(GapKind.REFUSED, "jobs.batch")]
            assert [item.status for item in cluster.workloads] == [OwnerStatus.FORBIDDEN]
        forbidden.clear()
        assert [item.status for item in here.reader.read(NOW).workloads] == [OwnerStatus.FOUND]
        assert here.lists(PODS) == 1 + 2


def test_what_is_not_served_gives_the_same_gap_until_it_is() -> None:
    lists = found(**{PODS: [pod(meta=controlled_by("RayCluster", "c", "ray.io/v1"))]})
    with world(lists) as here:
        cluster = here.reader.read(NOW)
        assert cluster == here.listing.read(NOW)
        assert gaps(cluster) == [(GapKind.NOT_SERVED, "rayclusters.ray.io")]
        here.server.lists["/apis/ray.io/v1/rayclusters"] = [owner("RayCluster", "c", "ray.io/v1")]
        assert gaps(here.reader.read(NOW)) == []


def test_a_broken_object_is_a_gap_while_it_is_broken() -> None:
    broken = pod("p1")
    broken["spec"]["containers"] = "none"
    amounts = [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "a few"}}}]
    feed: queue.Queue[bytes] = queue.Queue()
    with world(found(**{PODS: [pod("p0"), broken]}), pods=[Answer(stream=iter(feed.get, b""))]) as here:

        def gap() -> Gap | None:
            return next(iter(here.reader.read(NOW).gaps), None)

        told = gap()
        assert told is not None
        assert (told.kind, told.what) == (GapKind.BAD_INPUT, "pods")
        assert [(item.kind, item.namespace) for item in here.reader.read(NOW).unread] == [(FactKind.PODS, "ml")]
        assert told.detail.startswith("1 could not be read and are left out: ml/p1: ")
        feed.put(event("ADDED", pod("p2", containers=amounts), 5))
        here.until(lambda: (gap() or told).detail.startswith("2 could not be read"))
        feed.put(event("MODIFIED", pod("p1"), 6))
        feed.put(event("DELETED", pod("p2"), 7))
        here.until(lambda: gap() is None)
        assert here.reader.read(NOW).unread == ()
        assert here.pods() == ["p0", "p1"]
        feed.put(b"")


# Owners


def test_owners_are_followed_from_when_they_are_needed() -> None:
    first_pod = pod("a", meta=controlled_by("ReplicaSet", "r"))
    new_set = owner("ReplicaSet", "r2", meta=controlled_by("Deployment", "d"))
    lists = found(
        **{
            PODS: [first_pod],
            REPLICA_SETS: [owner("ReplicaSet", "r", meta=controlled_by("Deployment", "d"), spec={"replicas": 7})],
            DEPLOYMENTS: [owner("Deployment", "d", spec={"replicas": 2})],
            JOBS: [],
        }
    )
    feed: queue.Queue[bytes] = queue.Queue()
    sets: queue.Queue[bytes] = queue.Queue()
    with world(lists, pods=[Answer(stream=iter(feed.get, b""))]) as here:
        here.script.answers[REPLICA_SETS] = [Answer(stream=iter(sets.get, b""))]
        assert here.reader.read(NOW) == here.listing.read(NOW)
        assert here.lists(JOBS) == 0
        sets.put(event("ADDED", {"metadata": new_set["metadata"]}, 5))
        feed.put(event("ADDED", pod("b", meta=controlled_by("ReplicaSet", "r2")), 6))
        lists[PODS].append(pod("b", meta=controlled_by("ReplicaSet", "r2")))
        lists[REPLICA_SETS].append(new_set)
        here.until(lambda: [item.workload for item in here.reader.read(NOW).pods] == ["Deployment/ml/d"] * 2)
        assert here.reader.read(NOW) == here.listing.read(NOW)
        assert here.lists(REPLICA_SETS) == 1 + 2
        feed.put(b"")
        sets.put(b"")


# The safety net


def test_drift_is_corrected_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    with world(patience=replace(PATIENCE, verification_timeout_seconds=0.3)) as here:
        here.reader.read(NOW)
        # Without a word in the watch: one more, one less, one other.
        here.server.lists[PODS] = [pod("p0"), pod("p1", meta={"labels": {"team": "a"}}), pod("p3")]
        assert here.pods() == ["p0", "p1", "p2"]
        time.sleep(0.4)
        assert here.reader.read(NOW) == here.listing.read(NOW)
        assert (here.of("pods").drifted, here.of("nodes").drifted) == (3, 0)
    assert "pods are listed again: 3 of 3 differ from a list of the same resourceVersion" in caplog.text


def test_a_moment_that_is_forgotten_is_listed_anew_and_one_that_is_not_answered_is_tried_again() -> None:
    answers = [status(503, "later"), status(503, "later"), status(410, "compacted")]

    def first(request: Request) -> Answer | None:
        asked = request.path == PODS and "resourceVersionMatch" in request.query
        return answers.pop(0) if asked and answers else None

    limits = replace(QUICK, attempts=1)
    with world(patience=replace(PATIENCE, verification_timeout_seconds=0.2), limits=limits, first=first) as here:
        here.reader.read(NOW)
        time.sleep(0.3)
        for _ in range(2):
            here.reader.read(NOW)
            assert here.of("pods").lists == 1
        here.reader.read(NOW)
        assert (here.of("pods").lists, here.of("pods").drifted) == (2, 0)


# The end


def test_closing_ends_every_thread_at_once_and_reading_begins_anew() -> None:
    def watching() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("watch ")}

    with world(patience=Patience()) as here:
        here.reader.read(NOW)
        here.until(lambda: all(here.watches(path) for path in BASE))
        assert len(watching()) == len(BASE)
        began = time.monotonic()
        here.reader.close()
        assert time.monotonic() - began < 30.0  # of the minutes that a watch lasts
        assert watching() == set()
        assert here.reader.followed() == ()
        assert here.pods() == ["p0", "p1", "p2"]
        assert here.lists(PODS) == 2
