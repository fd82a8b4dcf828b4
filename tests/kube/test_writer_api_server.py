"""The writer of a running cluster on a real API server: the conformance suite, and what only a server can do."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cluster.api import Api
from cluster.control_plane import ControlPlane
from gpuwatch.facts.frameworks.objects import Object, ref_of
from gpuwatch.facts.model.remediation import ObjectRef
from gpuwatch.sources.kube.live import api_client
from gpuwatch.sources.kube.live_writer import LiveWriter
from gpuwatch.sources.kube.transport import Limits
from gpuwatch.sources.kube.writer import ClusterWriter, Failure, PatchKind
from kube.api_server import client_of
from kube.forwarding import Forwarding, Spoilt, forwarding
from kube.writer_conformance import NOW, Place, World, WriterConformance, failed, new_place
from parts.processes import wait_until

STATUS = "application/merge-patch+json"


class ServerWorld:
    def __init__(self, control_plane: ControlPlane, lost: str) -> None:
        self._control_plane = control_plane
        self._api = Api(control_plane.administrator)
        self._lost = lost

    def writer(self, lease_check: Callable[[], None] = lambda: None) -> ClusterWriter:
        return LiveWriter(api_client(self._control_plane.administrator), lease_check=lease_check)

    def narrow(self, namespace: str) -> ClusterWriter:
        """A ServiceAccount with a Role of its own."""
        metadata = {"name": "narrow", "namespace": namespace}
        rules = [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list"]}]
        authorization = "rbac.authorization.k8s.io"
        for object_ in (
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
            {"apiVersion": f"{authorization}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
            {
                "apiVersion": f"{authorization}/v1",
                "kind": "RoleBinding",
                "metadata": metadata,
                "roleRef": {"apiGroup": authorization, "kind": "Role", "name": "narrow"},
                "subjects": [{"kind": "ServiceAccount", **metadata}],
            },
        ):
            self._api.create(object_)
        kubeconfig = self._control_plane.service_account(namespace, "narrow")
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        wait_until(lambda: Api(kubeconfig).answer("GET", path).ok, lambda: "the Role does not count")
        return LiveWriter(api_client(kubeconfig))

    def losing(self) -> ClusterWriter:
        return LiveWriter(client_of(self._lost))

    def set_status(self, object_: Object, status: Object) -> None:
        metadata = object_["metadata"]
        resource = self._api.resource(object_["apiVersion"], object_["kind"])
        path = f"{resource.path(metadata.get('namespace', ''))}/{metadata['name']}/status"
        assert self._api.answer("PATCH", path, {"status": status}, content_type=STATUS).ok


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane) -> Iterator[World]:
    def spoil(method: str, _: str, __: bytes) -> Spoilt | None:
        return Spoilt() if method != "GET" else None

    with forwarding(control_plane.administrator, spoil) as lost:
        yield ServerWorld(control_plane, lost.url)


class TestApiServer(WriterConformance):
    """On a real one."""


@pytest.fixture
def place(world: World) -> Place:
    return new_place(world)


@pytest.fixture
def spoilt(control_plane: ControlPlane) -> Iterator[Callable[[Spoilt], tuple[LiveWriter, Forwarding]]]:
    """A writer all of whose writes are carried out and answered like that."""
    with ExitStack() as stack:

        def start(answer: Spoilt) -> tuple[LiveWriter, Forwarding]:
            def spoil(method: str, _: str, __: bytes) -> Spoilt | None:
                return answer if method != "GET" else None

            server = stack.enter_context(forwarding(control_plane.administrator, spoil))
            limits = Limits(connect_timeout_seconds=1, read_timeout_seconds=2)
            return LiveWriter(client_of(server.url), limits=limits), server

        yield start


@pytest.mark.parametrize(
    ("answer", "failure", "wait"),
    [
        (Spoilt(), Failure.UNSURE, None),
        (Spoilt(200, "{}", pause_seconds=3), Failure.UNSURE, None),
        (Spoilt(200, "<html>"), Failure.UNSURE, None),
        (Spoilt(200, "[]"), Failure.UNSURE, None),
        (Spoilt(502, "<html>"), Failure.UNSURE, None),
        (Spoilt(504, '{"message": "timeout"}'), Failure.UNSURE, None),
        (Spoilt(429, "Too many requests", (("Retry-After", "7"),)), Failure.THROTTLED, 7.0),
        (Spoilt(429, '{"details": {"retryAfterSeconds": 3}}'), Failure.THROTTLED, 3.0),
        (Spoilt(429, '{"details": {"causes": [{"reason": "Other"}]}}'), Failure.THROTTLED, None),
        (Spoilt(401, "{}"), Failure.FORBIDDEN, None),
        (Spoilt(403, '{"message": "admission webhook \\"x\\" denied the request"}'), Failure.FORBIDDEN, None),
        (Spoilt(400, "{}"), Failure.INVALID, None),
        (Spoilt(410, "{}"), Failure.NOT_FOUND, None),
    ],
    ids=lambda value: f"{value.status}-{value.body[:12]}" if isinstance(value, Spoilt) else "",
)
def test_every_answer_says_what_is_known(
    place: Place,
    spoilt: Callable[[Spoilt], tuple[LiveWriter, Forwarding]],
    answer: Spoilt,
    failure: Failure,
    wait: float | None,
) -> None:
    ref = ref_of(place.writer.create(place.job()))
    writer, _ = spoilt(answer)
    error = failed(lambda: writer.patch(ref, {"spec": {"suspend": True}}))
    assert (error.failure, error.retry_after_seconds) == (failure, wait)
    assert f"Could not patch Job/{place.namespace}/train: " in error.message
    assert "Grant" not in error.message


def test_a_write_is_sent_once(place: Place, spoilt: Callable[[Spoilt], tuple[LiveWriter, Forwarding]]) -> None:
    ref = ref_of(place.writer.create(place.job()))
    writer, server = spoilt(Spoilt())
    failed(lambda: writer.delete(ref))
    assert [method for method, _, _ in server.requests if method != "GET"] == ["DELETE"]


def test_nobody_there_is_unsure_and_names_the_place(place: Place) -> None:
    ref = ref_of(place.job() | {"metadata": {"name": "j", "namespace": "a", "uid": "u"}})
    writer = LiveWriter(client_of("http://user:secret@127.0.0.1:1"))
    error = failed(lambda: writer.get(ref))
    assert error.failure is Failure.UNSURE
    assert "http://127.0.0.1:1" in error.message
    assert "secret" not in error.message


def test_an_unknown_field_is_invalid_and_the_object_is_not_quoted(place: Place) -> None:
    job = place.job()
    job["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "TOKEN", "value": "very-secret"}]
    ref = ref_of(place.writer.create(job))
    for action in (
        lambda: place.writer.patch(ref, {"spec": {"suspended": True}}),
        lambda: place.writer.patch(ref, {"spec": {"suspended": True}}, kind=PatchKind.STRATEGIC),
        lambda: place.writer.create(place.job("other", suspended=True)),
    ):
        error = failed(action)
        assert error.failure is Failure.INVALID
        assert 'unknown field "spec.suspended"' in error.message
        assert "very-secret" not in error.message


def test_a_token_that_is_not_accepted_is_to_be_renewed(place: Place, control_plane: ControlPlane) -> None:
    ref = ref_of(place.writer.create(place.job()))
    nobody = LiveWriter(api_client(control_plane.kubeconfig("nobody", "no-such-token")))
    assert "Renew the token" in failed(lambda: nobody.get(ref)).message


def test_our_writes_carry_our_name(place: Place) -> None:
    made = place.writer.create(place.job())
    assert {item["manager"] for item in made["metadata"]["managedFields"]} == {"gpuwatch"}


def test_long_lists_come_in_pages(place: Place, control_plane: ControlPlane) -> None:
    for number in range(5):
        place.writer.create(place.job(f"job-{number}"))
    paged = LiveWriter(api_client(control_plane.administrator), limits=Limits(page_size=2))
    assert len(paged.objects("batch/v1", "Job", place.namespace)) == 5


def test_an_event_that_expires_before_it_is_counted_is_let_go(place: Place, control_plane: ControlPlane) -> None:
    ref = ref_of(place.writer.create(place.job()))

    def gone(method: str, path: str, _: bytes) -> Spoilt | None:
        return Spoilt(404, "{}") if method == "GET" and "/events/" in path else None

    with forwarding(control_plane.administrator, gone) as server:
        writer = LiveWriter(client_of(server.url))
        for _ in range(2):
            writer.event(ref, at=NOW, reason="Released", action="Release", note="Idle.")
    assert [method for method, path, _ in server.requests if "/namespaces/" in path] == ["POST", "POST", "GET"]


@contextmanager
def unchanged(place: Place, *refs: ObjectRef) -> Iterator[None]:
    before = [place.writer.get(ref) for ref in refs]
    yield
    assert [place.writer.get(ref) for ref in refs] == before
    assert place.writer.objects("events.k8s.io/v1", "Event", place.namespace) == ()


def test_a_dry_run_is_judged_and_changes_nothing(place: Place, control_plane: ControlPlane) -> None:
    job, pod = ref_of(place.writer.create(place.job())), ref_of(place.pod("worker", app="chat"))
    dry = LiveWriter(api_client(control_plane.administrator), dry_run=True)
    with unchanged(place, job, pod):
        assert dry.patch(job, {"spec": {"suspend": True}})["spec"]["suspend"] is True
        assert dry.create(place.job("other"))["metadata"]["name"] == "other"
        dry.delete(job)
        dry.evict(pod)
        dry.event(job, at=NOW, reason="Released", action="Release", note="Idle.")
        assert failed(lambda: dry.patch(job, {"spec": {"parallelism": -1}})).failure is Failure.INVALID
        assert failed(lambda: dry.patch(job, {"spec": {}}, version="1")).failure is Failure.CONFLICT
    assert place.writer.get(ObjectRef("batch/v1", "Job", "other", place.namespace)) is None
    place.budget("kept", 0, app="chat")
    assert failed(lambda: dry.evict(pod)).failure is Failure.BUDGET


def test_the_kubeconfig_of_an_observer_is_enough_to_look(control_plane: ControlPlane, tmp_path: Path) -> None:
    """Which kinds are served is told to everybody."""
    stranger = LiveWriter(api_client(control_plane.user("stranger")))
    assert stranger.objects("unserved.example.org/v1", "Thing") == ()
