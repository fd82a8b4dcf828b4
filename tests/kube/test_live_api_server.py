"""The live reader against a real API server, with the shipped role: the Cluster that a recording gives, and no more."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from cluster.api import Api
from cluster.control_plane import Asked, ControlPlane
from gpuwatch.facts.model.cluster import ClaimedDevice, Cluster, FactKind, OwnerStatus, Taint
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.kube.live import LiveCluster, api_client
from gpuwatch.sources.kube.reader import ClusterError
from gpuwatch.sources.kube.recorded import RecordedCluster
from kube.real_fleet import DRIVER, FIRST, GPU_UUID, LAST, PLAIN_PODS, RECORDED, create_fleet
from parts.processes import wait_until

ROLE = Path(__file__).parents[2] / "deploy" / "observe" / "role.yaml"
LISTED = {
    "nodes": "",
    "pods": "",
    "namespaces": "",
    "resourcequotas": "",
    "poddisruptionbudgets": "policy",
    "deployments": "apps",
    "replicasets": "apps",
    "statefulsets": "apps",
    "jobs": "batch",
    "cronjobs": "batch",
    "horizontalpodautoscalers": "autoscaling",
    "jobsets": "jobset.x-k8s.io",
    "resourceclaims": "resource.k8s.io",
    "resourceslices": "resource.k8s.io",
}
"""What of the role this cluster serves and the fleet has, by API group."""


@pytest.fixture(scope="module")
def administrator(control_plane: ControlPlane) -> Api:
    api = Api(control_plane.administrator)
    create_fleet(api)
    return api


@pytest.fixture(scope="module")
def observer(administrator: Api, control_plane: ControlPlane) -> Path:
    """Kubeconfig of the account of deploy/observe/role.yaml, which the API server has checked and taken as it is."""
    administrator.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuwatch"}})
    for document in yaml.safe_load_all(ROLE.read_text()):
        administrator.create(document)
    return _effective(control_plane.service_account("gpuwatch", "gpuwatch"), "nodes")


@pytest.fixture(scope="module")
def allowed(
    administrator: Api, control_plane: ControlPlane, observer: Path
) -> Callable[[str, Callable[[str], bool]], Path]:
    """Kubeconfig of a new account: its name, and which resources of the shipped role it may list."""

    def create(name: str, keeps: Callable[[str], bool]) -> Path:
        account, role, binding = yaml.safe_load_all(ROLE.read_text())
        for document in (account, role, binding):
            document["metadata"]["name"] = name
        for rule in role["rules"]:
            rule["resources"] = [resource for resource in rule["resources"] if keeps(resource)]
        role["rules"] = [rule for rule in role["rules"] if rule["resources"]]
        binding["roleRef"]["name"] = binding["subjects"][0]["name"] = name
        for document in (account, role, binding):
            administrator.create(document)
        return _effective(
            control_plane.service_account("gpuwatch", name),
            next(item for item in ("nodes", "namespaces") if keeps(item)),
        )

    return create


def _effective(kubeconfig: Path, resource: str) -> Path:
    """A new binding takes a moment to count."""
    api = Api(kubeconfig)
    wait_until(lambda: api.answer("GET", f"/api/v1/{resource}?limit=1").ok, lambda: f"{kubeconfig} has no rights")
    return kubeconfig


@pytest.fixture(scope="module")
def recording(administrator: Api, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of what `kubectl get … -A -o json` prints."""
    folder = tmp_path_factory.mktemp("recording")
    for api_version, kind in RECORDED:
        found = administrator.kubectl_list(api_version, kind)
        (folder / f"{kind.lower()}.json").write_text(json.dumps(found, indent=4))
    return folder


def _now() -> datetime:
    return datetime.now(UTC)


def _kinds(gaps: tuple[Gap, ...]) -> list[tuple[GapKind, str]]:
    return sorted((gap.kind, gap.what) for gap in gaps)


@pytest.fixture(scope="module")
def live(observer: Path, recording: Path) -> Cluster:
    """Read by the observer, after the recording was made: what the lists of the recording saw, this one sees."""
    return LiveCluster(api_client(observer)).read(_now())


def test_live_and_recorded_give_the_same_cluster(live: Cluster, recording: Path) -> None:
    recorded = RecordedCluster(recording).read(_now())
    assert replace(live, gaps=()) == replace(recorded, gaps=())
    assert _kinds(live.gaps) == _kinds(recorded.gaps)  # each says in its own words what to do


def test_only_what_the_cluster_lacks_is_a_gap(live: Cluster) -> None:
    assert live.known
    assert _kinds(live.gaps) == [
        (GapKind.NODE_UNRESOLVED, "address 10.1.0.1"),
        (GapKind.NOT_SERVED, "podgroups.scheduling.volcano.sh"),
    ]


def test_pods_of_the_first_and_the_last_page_have_their_owners(live: Cluster, administrator: Api) -> None:
    assert len(administrator.kubectl_list("v1", "Pod")["items"]) > PLAIN_PODS > 1200
    owners = {workload.id: (workload.status, workload.replicas, workload.suspended) for workload in live.workloads}
    found = OwnerStatus.FOUND
    assert {name: owner for name, owner in owners.items() if not name.startswith("Pod/")} == {
        f"CronJob/{FIRST}/nightly": (found, None, True),
        f"JobSet/{FIRST}/pretrain": (found, None, False),
        f"StatefulSet/{FIRST}/shard": (found, 2, None),
        f"Job/{FIRST}/sweep": (found, 2, False),
        f"Deployment/{LAST}/chat": (found, 2, None),
        f"ReplicaSet/{FIRST}/gone": (OwnerStatus.MISSING, None, None),
        f"Simulation/{FIRST}/storm": (OwnerStatus.UNKNOWN_KIND, None, None),
        f"DaemonSet/{FIRST}/burn-in": (OwnerStatus.DAEMON, None, None),
    }
    assert owners[f"Pod/{FIRST}/static-gpu-a"][0] is OwnerStatus.STATIC
    assert owners[f"Pod/{LAST}/claimed"][0] is OwnerStatus.BARE
    by_workload = {pod.ref: pod.workload for pod in live.pods}
    assert by_workload[f"{LAST}/chat-6b8f-aaaaa"] == f"Deployment/{LAST}/chat"
    assert not any(pod.namespace == "web" for pod in live.pods)


def test_pods_are_as_the_api_server_stored_them(live: Cluster) -> None:
    pods = {pod.ref: pod for pod in live.pods}
    chat = pods[f"{LAST}/chat-6b8f-aaaaa"]
    assert chat.priority == 100000  # the server's number for its class
    assert (chat.node, chat.phase, chat.ready, chat.scheduler) == ("gpu-a", "Running", True, "default-scheduler")
    assert chat.started == datetime(2026, 11, 20, 8, 1, tzinfo=UTC)
    assert chat.accelerators == {"nvidia.com/gpu": 1}  # stored as a limit and as a request
    assert (chat.cpu_cores, chat.memory_bytes) == (1.5, 2 * 2**30)
    assert pods[f"{FIRST}/leaving"].deleting
    assert pods[f"{FIRST}/waiting"].node == ""
    assert pods[f"{FIRST}/nightly-29384-done"].phase == "Succeeded"
    assert pods[f"{FIRST}/bare"].annotations == {"gpuwatch.dev/opt-out": "a demo"}
    assert pods[f"{LAST}/with-sidecar"].memory_bytes == 8 * 2**30 + 64 * 2**20
    assert pods[f"{LAST}/claimed"].claims == ("whole",)


def test_gangs_come_from_owners_and_labels(live: Cluster) -> None:
    assert {gang.id: (len(gang.pods), gang.min_available) for gang in live.gangs} == {
        f"JobSet/{FIRST}/pretrain": (2, None),
        f"Job/{FIRST}/sweep": (2, 2),
        f"StatefulSet/{FIRST}/shard": (2, 2),
        f"Kueue-pod-group/{FIRST}/pair": (2, 2),
        f"Volcano/{FIRST}/not-served-here": (1, None),
    }


def test_devices_budgets_and_nodes(live: Cluster) -> None:
    assert live.claims == (
        ClaimedDevice(claim=f"{LAST}/slices", driver=DRIVER, pool="gpu-a", name="gpu-0-mig-9-0", device=GPU_UUID),
        ClaimedDevice(claim=f"{LAST}/slices", driver=DRIVER, pool="gpu-a", name="gpu-1"),
        ClaimedDevice(claim=f"{LAST}/whole", driver=DRIVER, pool="gpu-a", name="gpu-0", device=GPU_UUID),
    )
    published = {node.name: dict(node.published) for node in live.nodes if node.published}
    assert published == {"gpu-a": {GPU_UUID: (Taint("gpu.nvidia.com/unhealthy", "", "NoSchedule"),)}}
    budgets = {budget.name: budget for budget in live.budgets}
    assert budgets["everything"].selects_all
    assert not budgets["by-expression"].selects_all
    assert budgets["by-label"].match_labels == {"app": "chat"}
    assert budgets["by-label"].disruptions_allowed == 1
    nodes = {node.name: node for node in live.nodes}
    assert (nodes["gpu-a"].gpu_count, nodes["gpu-b"].replicas, nodes["gpu-b"].pool) == (8, 4, "notebooks")
    assert (nodes["gpu-c"].mig_layout, nodes["gpu-c"].unschedulable) == ({"1g.10gb": 7}, True)
    assert {taint.key for taint in nodes["gpu-a"].taints} >= {"nvidia.com/gpu"}
    assert live.exporter_nodes == {"dcgm-exporter-x": "gpu-a", "10.2.0.9": "gpu-a"}
    assert live.exporter_pods == ("monitoring/dcgm-exporter-x",)
    (serving,) = (namespace for namespace in live.namespaces if namespace.name == LAST)
    assert serving.labels["team"] == "search"
    assert serving.annotations == {"gpuwatch.dev/mode": "observe"}


def test_the_reader_lists_and_does_nothing_else(live: Cluster, observer: Path, control_plane: ControlPlane) -> None:
    asked = _asked_by_a_read(observer, control_plane)
    assert {item.verb for item in asked if item.resource} == {"list"}
    assert {item.uri for item in asked if not item.resource} == {"/apis"}
    assert {item.status for item in asked if item.resource != "devicetaintrules"} == {200}
    # DeviceTaintRule has alpha and beta versions; a server may serve neither.
    assert {item.status for item in asked if item.resource == "devicetaintrules"} <= {200, 404}
    assert {item.resource for item in asked if item.resource} == {*LISTED, "devicetaintrules"}


def test_large_lists_come_in_pages(live: Cluster, observer: Path, control_plane: ControlPlane) -> None:
    pages = [item.uri for item in _asked_by_a_read(observer, control_plane) if item.resource == "pods"]
    assert ["continue=" in uri for uri in pages] == [False, True, True]
    assert all("limit=500" in uri for uri in pages)


def _asked_by_a_read(kubeconfig: Path, control_plane: ControlPlane) -> list[Asked]:
    """The server's own log of one read. Its last list is of DeviceTaintRules; the log follows the answer."""
    before = len(control_plane.asked())
    LiveCluster(api_client(kubeconfig)).read(_now())
    wait_until(
        lambda: "devicetaintrules" in {item.resource for item in control_plane.asked()[before:]},
        lambda: f"the audit log misses the end of the read: {control_plane.asked()[before:]}",
    )
    return control_plane.asked()[before:]


@pytest.mark.parametrize("resource", LISTED)
def test_a_list_that_is_refused_costs_only_itself(
    resource: str, allowed: Callable[[str, Callable[[str], bool]], Path], live: Cluster
) -> None:
    kubeconfig = allowed(f"without-{resource}", lambda name: name != resource)
    cluster = LiveCluster(api_client(kubeconfig)).read(_now())
    group = LISTED[resource]
    (refused,) = (gap for gap in cluster.gaps if gap.kind is GapKind.REFUSED)
    assert refused.what == (f"{resource}.{group}" if group else resource)
    assert f"Grant the verb `list` on `{resource}` of API group {group or 'core'!r}" in refused.detail
    assert cluster.known == (resource != "pods")
    facts = {
        "nodes": FactKind.NODES,
        "pods": FactKind.PODS,
        "namespaces": FactKind.NAMESPACES,
        "resourcequotas": FactKind.QUOTAS,
        "poddisruptionbudgets": FactKind.BUDGETS,
        "horizontalpodautoscalers": FactKind.AUTOSCALERS,
        "resourceclaims": FactKind.CLAIMS,
        "resourceslices": FactKind.CLAIMS,
    }
    assert {item.kind for item in cluster.unread} == {facts.get(resource, FactKind.OWNERS)}
    assert all(refused.detail in item.why for item in cluster.unread)
    parts = {
        "nodes": ("nodes", "node_addresses"),
        # Nodes carry what Pods take of them.
        "pods": ("nodes", "pods", "workloads", "gangs", "exporter_nodes", "exporter_pods"),
        "namespaces": ("namespaces",),
        "resourcequotas": ("quotas",),
        "poddisruptionbudgets": ("budgets",),
        "horizontalpodautoscalers": (),  # the fleet has none
        "resourceclaims": ("claims",),
        "resourceslices": ("claims", "nodes"),  # and which GPUs a Node has
    }
    touched = parts.get(resource, ("pods", "workloads", "gangs"))
    for part in ("nodes", "budgets", "namespaces", "claims", "pods", "workloads", "exporter_nodes"):
        if part not in touched:
            assert getattr(cluster, part) == getattr(live, part), part
    if resource not in parts:
        assert any(workload.status is OwnerStatus.FORBIDDEN for workload in cluster.workloads)
        assert {pod.ref for pod in cluster.pods} == {pod.ref for pod in live.pods}


def test_an_account_with_next_to_no_rights_gets_the_little_it_may_see(
    allowed: Callable[[str, Callable[[str], bool]], Path], live: Cluster
) -> None:
    cluster = LiveCluster(api_client(allowed("only-namespaces", lambda name: name == "namespaces"))).read(_now())
    assert replace(cluster, gaps=(), unread=Cluster().unread) == Cluster(namespaces=live.namespaces)
    assert not cluster.known
    # Without Pods no owner and no autoscaler is asked for, and no claim is in use. This cluster does not serve Kueue.
    read = {FactKind.NAMESPACES, FactKind.OWNERS, FactKind.AUTOSCALERS, FactKind.CLAIMS, FactKind.GANGS}
    assert {item.kind for item in cluster.unread} == {*FactKind} - read
    assert _kinds(cluster.gaps) == [
        (GapKind.REFUSED, what)
        for what in (
            "nodes",
            "poddisruptionbudgets.policy",
            "pods",
            "resourceclaims.resource.k8s.io",
            "resourcequotas",
            "resourceslices.resource.k8s.io",
        )
    ]


def test_without_any_right_there_is_an_error_that_names_all_of_them(live: Cluster, control_plane: ControlPlane) -> None:
    with pytest.raises(ClusterError) as error:
        LiveCluster(api_client(control_plane.user("stranger"))).read(_now())
    message = str(error.value)
    for resource in ("nodes", "pods", "namespaces", "resourcequotas", "poddisruptionbudgets"):
        assert f"Grant the verb `list` on `{resource}`" in message
    assert control_plane.url in message
    assert control_plane.tokens["stranger"] not in message


def test_a_token_that_is_not_accepted_is_an_error_without_the_token(control_plane: ControlPlane) -> None:
    with pytest.raises(ClusterError, match="credentials are not accepted") as error:
        LiveCluster(api_client(control_plane.kubeconfig("nobody", "a-token-that-ended"))).read(_now())
    assert "a-token-that-ended" not in str(error.value)
