"""Following a real API server: after any history, over any line, what is followed is what a list tells."""

import json
import random
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cluster.api import Api
from cluster.control_plane import Asked, ControlPlane, ControlPlaneBuild, running
from deploy.manifests import DEPLOY, documents
from gpuwatch.facts.model.cluster import Cluster
from gpuwatch.facts.model.telemetry import GapKind
from gpuwatch.sources.kube.follow import Patience
from gpuwatch.sources.kube.live import FollowedCluster, LiveCluster, api_client
from gpuwatch.sources.kube.reader import ClusterError
from gpuwatch.sources.kube.transport import Limits
from kube.history import NAMESPACES, History
from kube.line import Line, line_to
from parts.processes import wait_until

ACCOUNT = "system:serviceaccount:gpuwatch:gpuwatch"
BRIEF = Patience(watch_seconds=2.0, grace_seconds=2.0)
LIMITS = Limits(backoff_seconds=0.02, longest_pause_seconds=0.5)


@pytest.fixture(scope="module")
def plane(control_plane_build: ControlPlaneBuild) -> Iterator[ControlPlane]:
    """One of its own, which is restarted."""
    with running(control_plane_build) as started:
        yield started


@pytest.fixture(scope="module")
def administrator(plane: ControlPlane) -> Api:
    return Api(plane.administrator)


@pytest.fixture(scope="module")
def account(plane: ControlPlane, administrator: Api) -> Path:
    """Kubeconfig of the controller's account, with the shipped roles that read the cluster and no other."""
    administrator.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuwatch"}})
    for place in ("observe/role.yaml", "base/controller-role.yaml"):
        for document in documents(DEPLOY / place):
            administrator.create(document)
    kubeconfig = plane.service_account("gpuwatch", "gpuwatch")
    api = Api(kubeconfig)
    for path in ("/api/v1/nodes?limit=1", "/api/v1/nodes?watch=1&timeoutSeconds=1"):
        wait_until(lambda path=path: api.answer("GET", path).ok, lambda path=path: f"{path} is forbidden")  # type: ignore[misc]
    return kubeconfig


@dataclass
class Pair:
    """The same account twice: one follows, over a line that can be cut, and one lists."""

    line: Line
    reader: FollowedCluster
    listing: LiveCluster
    history: History
    dice: random.Random

    def same(self) -> Cluster:
        """What both see, as soon as they do. Nobody writes meanwhile."""
        listed = self.listing.read(datetime.now(UTC))
        wait_until(
            lambda: self.reader.read(datetime.now(UTC)) == listed,
            lambda: f"{_difference(self.reader.read(datetime.now(UTC)), listed)} {self.reader.followed()}",
            20,
        )
        return listed

    def lists(self, resource: str) -> int:
        return next(item.lists for item in self.reader.followed() if item.resource == resource)

    def pod(self, name: str) -> None:
        container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        path = f"/api/v1/namespaces/{NAMESPACES[0]}/pods"
        answer = self.history.api.answer(
            "POST", path, {"metadata": {"name": name}, "spec": {"containers": [container]}}
        )
        assert answer.ok, answer.text


def _difference(followed: Cluster, listed: Cluster) -> str:
    names = [name for name in Cluster.__dataclass_fields__ if getattr(followed, name) != getattr(listed, name)]
    return "; ".join(f"{name}: followed {getattr(followed, name)}, listed {getattr(listed, name)}" for name in names)


@pytest.fixture
def pair(request: pytest.FixtureRequest, plane: ControlPlane, administrator: Api, account: Path) -> Iterator[Pair]:
    """The parameter is the seed."""
    dice = random.Random(getattr(request, "param", 0))
    history = History(administrator, dice)
    history.begin()
    with line_to(plane.url) as line, api_client(line.kubeconfig(account)) as over_line, api_client(account) as direct:
        reader = FollowedCluster(over_line, LIMITS, BRIEF)
        try:
            yield Pair(line, reader, LiveCluster(direct), history, dice)
        finally:
            reader.close()


def _now() -> datetime:
    return datetime.now(UTC)


@pytest.mark.parametrize("pair", [1, 2, 3], indirect=True)
def test_after_any_history_followed_is_listed(pair: Pair) -> None:
    pair.same()
    for _ in range(4):
        for _ in range(pair.dice.randrange(10, 30)):
            pair.history.step()
        pair.same()
    assert {item.resource: item.lists for item in pair.reader.followed() if item.lists > 1} == {}
    assert {item.drifted for item in pair.reader.followed()} == {0}


@pytest.mark.parametrize("pair", [4, 5], indirect=True)
def test_a_line_that_is_cut_at_random_moments_loses_nothing(pair: Pair) -> None:
    pair.same()
    done = threading.Event()
    moments = random.Random(pair.dice.random())

    def cut() -> None:
        while not done.wait(moments.uniform(0.0, 0.1)):
            pair.line.cut()

    thread = threading.Thread(target=cut)
    before = pair.line.connections
    thread.start()
    try:
        for _ in range(150):
            pair.history.step()
    finally:
        done.set()
        thread.join()
    pair.same()
    assert pair.line.connections - before > 30
    assert {item.resource: item.lists for item in pair.reader.followed() if item.lists > 1} == {}


def test_a_connection_that_breaks_before_tls_is_no_answer(pair: Pair, account: Path) -> None:
    with pair.line.down(), api_client(pair.line.kubeconfig(account)) as client:
        reader = LiveCluster(client, replace(LIMITS, attempts=2))
        before = pair.line.refused
        with pytest.raises(ClusterError, match="No answer from https://127"):
            reader.read(_now())
        assert pair.line.refused == before + 2


@pytest.mark.slow
def test_a_steady_state_makes_no_lists(pair: Pair, plane: ControlPlane, account: Path) -> None:
    first = pair.same()
    wait_until(
        lambda: _asked(plane)[-1].verb == "watch", lambda: str(_asked(plane)[-5:])
    )  # the log follows the answers
    before = len(_asked(plane))
    end = time.monotonic() + 5.0  # twice as long as a watch
    while time.monotonic() < end:
        assert pair.reader.read(_now()) == first
        time.sleep(0.5)
    asked = _asked(plane)[before:]
    assert {item.verb for item in asked if item.resource} == {"watch"}
    assert {item.status for item in asked} == {200}
    watched = {item.resource for item in asked if item.resource}
    assert watched >= {"nodes", "pods", "namespaces", "poddisruptionbudgets", "resourceclaims"}
    assert all("allowWatchBookmarks=true" in item.uri for item in asked if item.resource)
    # Quiet as it is, every resource was heard of within one watch.
    assert max(item.age_seconds for item in pair.reader.followed()) < BRIEF.watch_seconds + BRIEF.grace_seconds


def _asked(plane: ControlPlane) -> list[Asked]:
    return [item for item in plane.asked() if item.user == ACCOUNT]


def test_a_list_of_the_same_moment_agrees(pair: Pair, plane: ControlPlane) -> None:
    with api_client(pair.line.kubeconfig(plane.administrator)) as client:
        reader = FollowedCluster(client, replace(LIMITS, page_size=7), replace(BRIEF, verification_timeout_seconds=0.5))
        reader.read(_now())
        for _ in range(6):
            for _ in range(5):
                pair.history.step()
            time.sleep(0.2)
            reader.read(_now())
        (pods,) = (item for item in reader.followed() if item.resource == "pods")
        assert pods.lists > 2
        assert {item.drifted for item in reader.followed()} == {0}
        reader.close()


@pytest.mark.slow
def test_an_api_server_that_is_restarted_is_followed_again(pair: Pair, plane: ControlPlane) -> None:
    held = pair.same()
    with plane.gone():
        time.sleep(1.0)
        now = pair.reader.read(_now())
        assert now.pods == held.pods
        assert now.known
        assert GapKind.UNREACHABLE in {gap.kind for gap in now.gaps}  # what is not served here could not be asked
    pair.pod("after-the-restart")
    assert "after-the-restart" in {pod.name for pod in pair.same().pods}


@pytest.mark.slow
def test_what_the_server_has_forgotten_is_listed_anew(
    pair: Pair, plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    """The line is down while things happen; the server starts anew and etcd is compacted, so that nobody knows what."""
    pair.same()
    assert pair.lists("pods") == 1
    with pair.line.down():
        for _ in range(20):
            pair.history.step()
        pair.pod("while-the-line-was-down")
        with plane.gone():
            _compact(plane)
    assert "while-the-line-was-down" in {pod.name for pod in pair.same().pods}
    assert pair.lists("pods") == 2
    told = [record.message for record in caplog.records if record.message.startswith("pods are listed again")]
    assert len(told) == 1
    assert "too old resource version" in told[0]
    assert {item.drifted for item in pair.reader.followed()} == {0}


def _compact(plane: ControlPlane) -> None:
    """All of etcd's past, by its HTTP gateway."""
    (etcd,) = (
        str(item).partition("=")[2]
        for item in plane.programs["kube-apiserver"]
        if str(item).startswith("--etcd-servers=")
    )

    def post(path: str, body: object) -> dict[str, object]:
        request = urllib.request.Request(f"{etcd}/v3/{path}", data=json.dumps(body).encode())
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
            found: dict[str, object] = json.loads(answer.read())
            return found

    header = post("kv/range", {"key": "YQ=="})["header"]
    assert isinstance(header, dict)
    post("kv/compaction", {"revision": header["revision"], "physical": True})
