"""The reader of a running cluster: the official client against a real HTTP server."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.facts.model.cluster import Cluster, FactKind, OwnerStatus
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.kube.live import LiveCluster, api_client
from gpuwatch.sources.kube.reader import ClusterError
from gpuwatch.sources.kube.transport import Limits
from kube.api_server import Answer, ApiServer, Request, Trouble, client_of, serving, status
from kube.cluster_json import container, controlled_by, metadata, node, owner, pod

NOW = datetime(2026, 11, 21, tzinfo=UTC)
QUICK = Limits(page_size=2, connect_timeout_seconds=1, read_timeout_seconds=1, backoff_seconds=0.001)
PODS, NODES, JOBS = "/api/v1/pods", "/api/v1/nodes", "/apis/batch/v1/jobs"
CLAIMS = "/apis/resource.k8s.io/{}/resourceclaims"
SLICES = "/apis/resource.k8s.io/{}/resourceslices"
TAINT_RULES = "/apis/resource.k8s.io/v1beta2/devicetaintrules"


def lists(**more: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """A cluster of one Node and five Pods, and what is added."""
    return {
        NODES: [node("gpu-0", capacity={"nvidia.com/gpu": "8"})],
        PODS: [pod(f"p{item}") for item in range(5)],
        "/api/v1/namespaces": [{"metadata": metadata("ml", annotations={"gpuwatch.dev/opt-out": "true"})}],
        "/api/v1/resourcequotas": [],
        "/apis/policy/v1/poddisruptionbudgets": [],
        **more,
    }


@contextmanager
def live(
    found: dict[str, list[dict[str, Any]]] | None = None,
    trouble: Trouble = lambda _: None,
    limits: Limits = QUICK,
    **settings: bool,
) -> Iterator[tuple[ApiServer, LiveCluster]]:
    server = ApiServer(lists() if found is None else found, trouble, **settings)
    token = {"authorization": "Bearer secret-token"}
    with serving(server), client_of(server.url, api_key=token) as client:
        yield server, LiveCluster(client, limits)


def names(cluster: Cluster) -> list[str]:
    return [item.name for item in cluster.pods]


ALL = ["p0", "p1", "p2", "p3", "p4"]


def test_a_server_that_ignores_the_limit_is_read_as_well() -> None:
    with live(honour_limit=False) as (server, reader):
        assert names(reader.read(NOW)) == ALL
        assert len(server.asked(PODS)) == 1


class Times:
    """Trouble on one path for the first so many requests that match."""

    def __init__(self, path: str, answer: Answer, times: int, only_continue: bool = False) -> None:
        self.path, self.answer, self.left, self.only_continue = path, answer, times, only_continue

    def __call__(self, request: Request) -> Answer | None:
        if request.path != self.path or not self.left or (self.only_continue and "continue" not in request.query):
            return None
        self.left -= 1
        return self.answer


@pytest.mark.parametrize(
    "answer",
    [
        status(429, "too many requests", Retry_After="0"),
        status(500, "etcdserver: leader changed"),
        status(503, "apiserver is shutting down"),
        Answer(504, "<html>gateway timeout</html>"),
        Answer(200, '{"items": [', close_after=5),
        Answer(200, "{}", delay_seconds=0.4),
    ],
)
def test_passing_trouble_is_tried_again_until_it_passes(answer: Answer) -> None:
    limits = replace(QUICK, read_timeout_seconds=0.2)
    for only_continue in (False, True):
        with live(trouble=Times(PODS, answer, 3, only_continue), limits=limits) as (server, reader):
            cluster = reader.read(NOW)
            assert (names(cluster), cluster.gaps) == (ALL, ())
            assert len(server.asked(PODS)) == 3 + 3


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (status(429, "too many requests", Retry_After="0"), GapKind.QUERY_FAILED, "answered 429 (too many requests)"),
        (status(500, "etcdserver: no leader"), GapKind.QUERY_FAILED, "answered 500 (etcdserver: no leader)"),
        (Answer(200, '{"items": [', close_after=5), GapKind.UNREACHABLE, "No answer from http://127.0.0.1"),
        (Answer(200, "{}", delay_seconds=0.4), GapKind.UNREACHABLE, "Read timed out"),
    ],
)
def test_lasting_trouble_costs_that_part_only(answer: Answer, kind: GapKind, said: str) -> None:
    limits = replace(QUICK, read_timeout_seconds=0.2)
    with live(trouble=Times(PODS, answer, 99), limits=limits) as (server, reader):
        cluster = reader.read(NOW)
        assert len(server.asked(PODS)) == limits.attempts
    assert [item.name for item in cluster.nodes] == ["gpu-0"]
    assert (cluster.pods, cluster.known) == ((), False)
    assert [(gap.kind, gap.what) for gap in cluster.gaps] == [(kind, "pods")]
    assert said in cluster.gaps[0].detail


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (NODES, FactKind.NODES),
        (PODS, FactKind.PODS),
        ("/api/v1/namespaces", FactKind.NAMESPACES),
        ("/api/v1/resourcequotas", FactKind.QUOTAS),
        ("/apis/policy/v1/poddisruptionbudgets", FactKind.BUDGETS),
        ("/apis/kueue.x-k8s.io/v1beta2/workloads", FactKind.GANGS),
        (CLAIMS.format("v1"), FactKind.CLAIMS),
        (JOBS, FactKind.OWNERS),
    ],
)
@pytest.mark.parametrize("answer", [status(403, "no"), status(504, "etcd"), Answer(200, '{"items": [', close_after=5)])
def test_a_list_that_failed_is_unread_and_not_empty(path: str, kind: FactKind, answer: Answer) -> None:
    claiming = pod(meta=controlled_by("Job", "j", "batch/v1"), resourceClaims=[{"name": "g", "resourceClaimName": "c"}])
    found = lists(**{PODS: [claiming], JOBS: [owner("Job", "j", "batch/v1")]})
    found |= {"/apis/kueue.x-k8s.io/v1beta2/workloads": [], CLAIMS.format("v1"): [], SLICES.format("v1"): []}
    with live(found) as (_, reader):
        assert reader.read(NOW).unread == ()
    with live(found, Times(path, answer, 99)) as (_, reader):
        (lost,) = reader.read(NOW).unread
    # Pods whose owners cannot be read leave open what else of their Namespace belongs to whom.
    assert (lost.kind, lost.namespace) == (kind, "ml" if kind is FactKind.OWNERS else "")
    assert len(lost.why) > 10


def test_autoscalers_are_listed_for_owners_that_they_may_scale_and_unread_for_their_namespaces_alone() -> None:
    path, deployments = "/apis/autoscaling/v2/horizontalpodautoscalers", "/apis/apps/v1/deployments"
    of_job = lists(**{PODS: [pod(meta=controlled_by("Job", "j", "batch/v1"))], JOBS: [owner("Job", "j", "batch/v1")]})
    service = {PODS: [pod(meta=controlled_by("Deployment", "d", "apps/v1"))]}
    service[deployments] = [owner("Deployment", "d", "apps/v1")]
    with live({**of_job, path: []}) as (server, reader):
        assert reader.read(NOW).unread == ()
        assert server.asked(path) == []
    with live(lists(**service, **{path: []}), Times(path, status(403, "no"), 99)) as (_, reader):
        (lost,) = reader.read(NOW).unread
    assert (lost.kind, lost.namespace) == (FactKind.AUTOSCALERS, "ml")


@pytest.mark.parametrize(
    ("path", "broken", "kind", "namespace"),
    [
        (PODS, {**pod("p9", "web"), "spec": {"containers": "none"}}, FactKind.PODS, "web"),
        (NODES, {"metadata": metadata("gpu-9"), "status": 7}, FactKind.NODES, ""),
        ("/api/v1/namespaces", {"metadata": {**metadata("web"), "labels": 7}}, FactKind.NAMESPACES, "web"),
        (
            "/apis/policy/v1/poddisruptionbudgets",
            {"metadata": metadata("b", "web"), "status": {"disruptionsAllowed": "many"}},
            FactKind.BUDGETS,
            "web",
        ),
        ("/apis/policy/v1/poddisruptionbudgets", {"metadata": 7}, FactKind.BUDGETS, ""),
    ],
)
def test_an_object_that_cannot_be_decoded_costs_its_namespace(
    path: str, broken: dict[str, Any], kind: FactKind, namespace: str
) -> None:
    found = lists()
    found[path] = [*found[path], broken]
    with live(found) as (_, reader):
        (lost,) = reader.read(NOW).unread
    assert (lost.kind, lost.namespace) == (kind, namespace)
    assert "could not be read" in lost.why


def test_half_a_list_is_no_list() -> None:
    with live(trouble=Times(PODS, status(500, "no"), 99, only_continue=True)) as (_, reader):
        cluster = reader.read(NOW)
    assert (cluster.pods, cluster.known) == ((), False)


def test_other_refusals_are_not_tried_again() -> None:
    with live(trouble=Times(PODS, status(400, "bad request"), 99)) as (server, reader):
        cluster = reader.read(NOW)
        assert len(server.asked(PODS)) == 1
    assert [(gap.kind, gap.what) for gap in cluster.gaps] == [(GapKind.QUERY_FAILED, "pods")]


def test_an_expired_list_begins_again() -> None:
    expired = status(410, "The provided continue parameter is too old")
    with live(trouble=Times(PODS, expired, 2, only_continue=True)) as (_, reader):
        cluster = reader.read(NOW)
    assert (names(cluster), cluster.gaps) == (ALL, ())


def test_a_list_that_always_expires_is_given_up() -> None:
    expired = status(410, "The provided continue parameter is too old")
    with live(trouble=Times(PODS, expired, 99, only_continue=True)) as (server, reader):
        cluster = reader.read(NOW)
        assert len(server.asked(PODS)) == 2 * (QUICK.restarts + 1)
    assert [(gap.kind, gap.what) for gap in cluster.gaps] == [(GapKind.QUERY_FAILED, "pods")]
    assert "410" in cluster.gaps[0].detail


def gap(cluster: Cluster, what: str) -> Gap:
    return next(item for item in cluster.gaps if item.what == what)


def test_metadata_is_all_that_is_asked_of_replica_sets() -> None:
    replica_sets, deployments = "/apis/apps/v1/replicasets", "/apis/apps/v1/deployments"
    found = lists(
        **{
            PODS: [pod(meta=controlled_by("ReplicaSet", "r"))],
            replica_sets: [owner("ReplicaSet", "r", meta=controlled_by("Deployment", "d"), spec={"replicas": 7})],
            deployments: [owner("Deployment", "d", spec={"replicas": 2})],
        }
    )
    with live(found) as (server, reader):
        cluster = reader.read(NOW)
        assert "PartialObjectMetadataList" in server.asked(replica_sets)[0].headers["Accept"]
        assert "PartialObjectMetadataList" not in server.asked(deployments)[0].headers["Accept"]
    assert [(item.id, item.replicas) for item in cluster.workloads] == [("Deployment/ml/d", 2)]


@pytest.mark.parametrize("discovery", [True, False])
def test_optional_api_groups_may_be_missing_and_needed_ones_are_reported(discovery: bool) -> None:
    found = lists(**{PODS: [pod(meta=controlled_by("RayCluster", "c", "ray.io/v1"))]})
    del found["/apis/policy/v1/poddisruptionbudgets"]
    with live(found, discovery=discovery) as (_, reader):
        cluster = reader.read(NOW)
    assert {(item.kind, item.what) for item in cluster.gaps} == {
        (GapKind.NOT_SERVED, "poddisruptionbudgets.policy"),
        (GapKind.NOT_SERVED, "rayclusters.ray.io"),
    }
    assert [item.status for item in cluster.workloads] == [OwnerStatus.FORBIDDEN]


def dra(version: str) -> dict[str, list[dict[str, Any]]]:
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "gpu-0", "device": "gpu-0"}
    attributes = {"uuid": {"string": "GPU-1"}}
    device: dict[str, Any] = {"name": "gpu-0", "attributes": attributes}
    if version == "v1beta1":
        device = {"name": "gpu-0", "basic": {"attributes": attributes}}
    spec = {"driver": "gpu.nvidia.com", "pool": {"name": "gpu-0", "generation": 1}, "devices": [device]}
    return {
        PODS: [claiming()],
        CLAIMS.format(version): [
            {"metadata": metadata("c", "ml"), "status": {"allocation": {"devices": {"results": [result]}}}}
        ],
        SLICES.format(version): [{"metadata": metadata("s"), "spec": spec}],
    }


@pytest.mark.parametrize("discovery", [True, False])
@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_claims_are_read_in_whichever_version_is_served(version: str, discovery: bool) -> None:
    with live(lists(**dra(version)), discovery=discovery) as (_, reader):
        cluster = reader.read(NOW)
    assert cluster.gaps == ()
    assert [(item.claim, item.device) for item in cluster.claims] == [("ml/c", "GPU-1")]


def test_a_newer_version_than_those_known_is_tried() -> None:
    with live(lists(**dra("v2"))) as (_, reader):
        assert [item.device for item in reader.read(NOW).claims] == ["GPU-1"]


def claiming() -> dict[str, Any]:
    return pod("c", containers=[], resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}])


def test_claims_are_missed_only_where_pods_have_some() -> None:
    with live(lists(**{PODS: [claiming()]})) as (_, reader):
        assert [item.what for item in reader.read(NOW).gaps] == ["resourceclaims.resource.k8s.io"]


def tainted(key: str, effect: str = "NoSchedule") -> dict[str, Any]:
    return {"key": key, "value": "x", "effect": effect, "timeAdded": "2026-09-17T01:00:00Z"}


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_taints_of_a_driver_and_of_rules_are_on_the_gpus_that_a_node_publishes(version: str) -> None:
    said = {"uuid": {"string": "GPU-1"}}, {"uuid": {"string": "MIG-1"}, "parentUUID": {"string": "GPU-2"}}
    devices: list[dict[str, Any]] = [
        {"name": f"d{number}", "attributes": each, "taints": [tainted(f"driver{number}"), tainted("note", "None")]}
        for number, each in enumerate(said)
    ]
    if version == "v1beta1":
        devices = [{"name": each.pop("name"), "basic": each} for each in devices]
    spec = {"driver": "d", "nodeName": "gpu-0", "pool": {"name": "p", "generation": 2}, "devices": devices}
    old = {**spec, "pool": {"name": "p", "generation": 1}, "devices": [{"name": "d9", "attributes": said[0]}]}
    selectors: tuple[tuple[str, Any], ...] = (
        ("all", {}),
        ("pool", {"driver": "d", "pool": "p"}),
        ("device", {"device": "d1"}),
        ("other", {"pool": "q"}),
        ("nothing", None),
        ("class", {"deviceClassName": "gpu"}),
        ("gpuwatch.dev/degraded", {}),
    )
    rules = [
        {"metadata": metadata(key), "spec": {"taint": tainted(key), "deviceSelector": selector}}
        for key, selector in selectors
    ]
    found = lists(
        **{
            "/api/v1/nodes": [node("gpu-0"), node("gpu-1")],
            SLICES.format(version): [
                {"metadata": metadata(name), "spec": each} for name, each in (("s", spec), ("o", old))
            ],
            TAINT_RULES: rules,
        }
    )
    with live(found) as (_, reader):
        cluster = reader.read(NOW)
    first, second = sorted(cluster.nodes, key=lambda each: each.name)
    assert {gpu: [each.key for each in taints] for gpu, taints in first.published.items()} == {
        "GPU-1": ["driver0", "all", "pool"],
        "GPU-2": ["driver1", "all", "pool", "device"],
    }
    assert first.published["GPU-1"][0].since == datetime(2026, 9, 17, 1, tzinfo=UTC)
    assert second.published == {}
    assert cluster.gaps == ()
    assert cluster.unread == ()


@pytest.mark.parametrize("code", [403, 500])
def test_slices_that_were_not_read_are_unknown_on_each_node(code: int) -> None:
    refused = Times(SLICES.format("v1"), status(code, "no"), 99)
    with live(lists(**{**dra("v1"), "/api/v1/nodes": [node("gpu-0")]}), trouble=refused) as (_, reader):
        assert [each.published for each in reader.read(NOW).nodes] == [None]
    with live(lists(**{"/api/v1/nodes": [node("gpu-0")]})) as (_, reader):
        assert [each.published for each in reader.read(NOW).nodes] == [{}]


def test_rules_that_may_not_be_listed_are_told_and_nothing_depends_on_them() -> None:
    refused = Times(TAINT_RULES, status(403, "no"), 99)
    with live(lists(**dra("v1"), **{TAINT_RULES: []}), trouble=refused) as (_, reader):
        cluster = reader.read(NOW)
    assert [item.what for item in cluster.gaps] == ["devicetaintrules.resource.k8s.io"]
    assert cluster.unread == ()


@pytest.mark.parametrize("code", [403, 500])
def test_claims_that_no_pod_has_need_not_be_read(code: int) -> None:
    """A cluster without DRA whose roles do not allow the list, or whose server fails for it: people see it, and no
    action depends on it."""
    refused = Times(CLAIMS.format("v1"), status(code, "no"), 99)
    claiming = pod("c", containers=[], resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}])
    for pods, depends in (([pod("p")], set()), ([pod("p"), claiming], {FactKind.CLAIMS})):
        with live(lists(**{**dra("v1"), PODS: pods}), trouble=refused) as (_, reader):
            cluster = reader.read(NOW)
        assert [item.what for item in cluster.gaps] == ["resourceclaims.resource.k8s.io"]
        assert {item.kind for item in cluster.unread} == depends


def test_one_broken_object_costs_itself() -> None:
    broken = pod("broken")
    broken["spec"]["containers"] = "none"
    wrong = pod("wrong")
    wrong["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "a few"
    with live(lists(**{PODS: [pod("p0"), broken, pod("p1"), wrong]})) as (_, reader):
        cluster = reader.read(NOW)
    assert (names(cluster), cluster.known) == (["p0", "p1"], True)
    assert gap(cluster, "pods").kind is GapKind.BAD_INPUT
    for word in ("2 could not be read", "ml/broken (page 1)", "$.spec.containers", "ml/wrong (page 2)", "'a few'"):
        assert word in gap(cluster, "pods").detail


@pytest.mark.parametrize("body", ["<html>Log in</html>", '{"kind": "\udcff"}', '{"items": 5}', ""])
def test_an_answer_that_is_no_list_in_json_is_told(body: str) -> None:
    with live(trouble=Times(PODS, Answer(200, body), 99)) as (_, reader):
        detail = gap(reader.read(NOW), "pods").detail
    assert "not a list in JSON" in detail
    assert "proxy" in detail


def test_what_was_created_later_is_left_out() -> None:
    def at(name: str, when: datetime) -> dict[str, Any]:
        return pod(name, meta={"creationTimestamp": when.strftime("%Y-%m-%dT%H:%M:%SZ")})

    found = [
        at("old", NOW - timedelta(days=1)),
        at("skewed", NOW + timedelta(seconds=60)),
        at("late", NOW + timedelta(seconds=61)),
    ]
    with live(lists(**{PODS: found})) as (_, reader):
        cluster = reader.read(NOW)
    assert names(cluster) == ["old", "skewed"]
    assert gap(cluster, "Pods").kind is GapKind.CLOCK
    assert "1 Pods were created after 2026-11-21 00:00:00 UTC" in gap(cluster, "Pods").detail


def test_no_server_is_an_error_without_secrets() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        host = f"http://user:secret@127.0.0.1:{taken.getsockname()[1]}"
        with client_of(host) as client:
            reader = LiveCluster(client, replace(QUICK, attempts=2))
            with pytest.raises(ClusterError, match="Connection refused") as caught:
                reader.read(NOW)
    assert "secret" not in str(caught.value)
    assert "secret" not in reader.description


def test_a_server_that_dies_on_the_way_is_not_waited_for_again_and_again() -> None:
    def dead(request: Request) -> Answer | None:
        return None if request.path in ("/apis", NODES) else Answer(200, "{}", close_after=0)

    with live(trouble=dead) as (server, reader):
        cluster = reader.read(NOW)
        asked = [len(server.asked(path)) for path in (PODS, "/api/v1/namespaces")]
    assert asked == [QUICK.attempts, 1]
    assert [item.name for item in cluster.nodes] == ["gpu-0"]
    assert {item.kind for item in cluster.gaps} == {GapKind.UNREACHABLE}


KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: here
contexts:
- {name: here, context: {cluster: c, user: u}}
clusters:
- {name: c, cluster: {server: "URL"}}
users:
- {name: u, user: {token: secret-token}}
"""


def test_a_kubeconfig_connects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with live() as (server, _):
        file = tmp_path / "config"
        file.write_text(KUBECONFIG.replace("URL", server.url))
        assert names(LiveCluster(api_client(file)).read(NOW)) == ALL
        monkeypatch.setenv("KUBECONFIG", str(file))
        assert names(LiveCluster(api_client()).read(NOW)) == ALL
        assert names(LiveCluster(api_client(None, "here")).read(NOW)) == ALL
        assert server.requests[-1].headers["authorization"] == "Bearer secret-token"


@pytest.mark.parametrize(
    ("text", "context", "said"),
    [
        (KUBECONFIG, "elsewhere", "elsewhere"),
        ("kind: [", None, "cannot be used"),
        ("", None, "cannot be used"),
        (None, None, "cannot be used"),
    ],
)
def test_an_unusable_kubeconfig_is_a_clear_error(
    tmp_path: Path, text: str | None, context: str | None, said: str
) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ClusterError, match=said) as caught:
        LiveCluster(api_client(file, context))
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(("host", "said"), [("", "use --kubeconfig FILE."), ("10.0.0.1", "service account")])
def test_without_kubeconfig_the_error_says_what_to_give_or_what_of_the_pod_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, said: str
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    if host:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ClusterError, match=said):
        LiveCluster(api_client())


@pytest.mark.parametrize("capacity", ["8", "0"])
def test_pods_without_gpus_count_where_an_action_on_gpus_may_end_them(capacity: str) -> None:
    """Of an owner that has GPU Pods too, or on a GPU Node, whose capacity is 0 while its kubelet starts; others
    are only counted."""

    def cpu(name: str, namespace: str = "ml", **more: Any) -> dict[str, Any]:
        return pod(name, namespace, containers=[container(requests={"cpu": "1"})], **more)

    by_api = controlled_by("Deployment", "api")
    marked = {**by_api, "labels": {"app": "api"}, "annotations": {"gpuwatch.dev/opt-out": "true", "note": "x"}}
    elsewhere = {"nodeName": "cpu-0"}
    found = lists(
        **{
            NODES: [node("gpu-0", capacity={"nvidia.com/gpu": capacity})],
            PODS: [
                pod("gpu", meta=by_api),
                cpu("worker", meta=marked, priority=7, **elsewhere),
                cpu("waits", meta=by_api, nodeName=None),
                cpu("over", meta=by_api, status={"phase": "Succeeded"}, **elsewhere),
                cpu("other", meta=controlled_by("Deployment", "other"), **elsewhere),
                cpu("forger", "evil", meta=by_api, **elsewhere),
                cpu("agent", "system", meta=controlled_by("DaemonSet", "agent")),
            ],
            "/apis/apps/v1/deployments": [owner("Deployment", "api"), owner("Deployment", "other")],
        }
    )
    with live(found) as (_, reader):
        cluster = reader.read(NOW)
    beside = {item.ref: item for item in cluster.companions}
    assert {name: item.workload for name, item in beside.items()} == {
        "ml/worker": "Deployment/ml/api",
        "ml/waits": "Deployment/ml/api",
        "system/agent": "",
    }
    assert [name for name, item in beside.items() if item.of_node] == ["system/agent"]
    worker = beside["ml/worker"]
    assert (worker.labels, worker.annotations) == ({"app": "api"}, {"gpuwatch.dev/opt-out": "true"})
    assert (worker.priority, worker.node, worker.phase) == (7, "cpu-0", "Running")
    assert [item.ref for item in cluster.pods] == ["ml/gpu"]
    assert [item.id for item in cluster.workloads] == ["Deployment/ml/api"]


def test_pods_without_gpus_that_have_a_say_in_where_gpu_pods_run() -> None:
    """By an anti-affinity of theirs, or by one, an affinity or a spread of a GPU Pod; others are not kept."""

    def keeps(app: str, **term: Any) -> dict[str, Any]:
        wanted = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}, **term}
        return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [wanted]}}

    def cpu(name: str, namespace: str, app: str, **more: Any) -> dict[str, Any]:
        meta, asks = {"labels": {"app": app}}, [container(requests={"cpu": "1"})]
        return pod(name, namespace, containers=asks, meta=meta, **{"nodeName": "cpu-0", **more})

    spread = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    spread |= {"labelSelector": {"matchLabels": {"app": "web"}}}
    train = {"labels": {"app": "train"}}
    found = lists(
        **{
            NODES: [node("gpu-0"), node("cpu-0", capacity={})],
            PODS: [
                pod("a", meta=train, topologySpreadConstraints=[spread]),
                pod("b", meta=train, affinity=keeps("cache", namespaces=["data"])),
                cpu("keeps-train", "ml", "x", affinity=keeps("train")),
                cpu("keeps-all", "far", "x", affinity=keeps("train", namespaceSelector={})),
                cpu("keeps-others", "ml", "x", affinity=keeps("other")),
                cpu("keeps-its-own", "far", "train", affinity=keeps("train")),
                cpu("is-spread", "ml", "web"),
                cpu("is-elsewhere", "far", "web"),
                cpu("is-meant", "data", "cache"),
                cpu("waits", "data", "cache", nodeName=None, status={"phase": "Pending"}),
                cpu("ended", "data", "cache", status={"phase": "Failed"}),
            ],
        }
    )
    with live(found) as (_, reader):
        cluster = reader.read(NOW)
    names = {item.name for item in cluster.bystanders}
    assert names == {"keeps-train", "keeps-all", "is-spread", "is-meant"}
    (one,) = (item for item in cluster.bystanders if item.name == "keeps-train")
    assert (one.node, one.labels, one.accelerators) == ("cpu-0", {"app": "x"}, {})
    assert one.placement.pod_anti_affinity[0].topology_key == "zone"
