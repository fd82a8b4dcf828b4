"""The image and the chart on real Nodes, with the README's command and default values. The tests are one story: each
goes on from the one before."""

import json
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from cluster.api import Api, Object
from cluster.control_plane import ControlPlaneBuild
from cluster.real_node import HOST, RealNode, RealNodes, image_of_layout, running_nodes
from deploy.manifests import DEPLOY
from e2e.exporters import scraping
from gpuwatch import __version__
from parts.go_tools import DNS
from parts.helm_tools import Helm, HelmBuild
from parts.image import Image
from parts.processes import wait_until
from parts.prometheus_server import ServerBuild
from parts.prometheus_server import running as running_prometheus

pytestmark = [pytest.mark.image, pytest.mark.slow]

CHART = DEPLOY / "chart" / "gpuwatch"
NAMESPACE = "gpuwatch"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/gpuwatch"


@pytest.fixture(scope="module")
def nodes(node_build: ControlPlaneBuild, image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNodes]:
    """Two Nodes that have the image, and a GPU that has failed on the first."""
    archive = tmp_path_factory.mktemp("image") / "gpuwatch.tar"
    image_of_layout(image.folder / "layout", f"docker.io/library/gpuwatch:{__version__}", archive)
    with running_nodes(node_build, count=2, images=[archive], dns=DNS.folder / "dns") as found:
        archive.unlink()
        found[0].set_gpu(1, DCGM_FI_DEV_ROW_REMAP_FAILURE=1)
        yield found


@pytest.fixture(scope="module")
def api(nodes: RealNodes, newest_prometheus: ServerBuild) -> Iterator[Api]:
    """With a Prometheus behind the Service that the community's chart makes."""
    found = Api(nodes.cluster.administrator)
    with running_prometheus(newest_prometheus, host=HOST, scrape_configs=[scraping(nodes.nodes)]) as url:
        for each in prometheus_service(int(url.rpartition(":")[2])):
            found.create(each)
        yield found


def prometheus_service(port: int) -> Iterator[Object]:
    place = {"name": "prometheus-server", "namespace": "monitoring"}
    labels = {"app.kubernetes.io/name": "prometheus", "app.kubernetes.io/component": "server"}
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "monitoring"}}
    served = {"name": "http", "port": 80, "targetPort": port}
    yield {"apiVersion": "v1", "kind": "Service", "metadata": {**place, "labels": labels}, "spec": {"ports": [served]}}
    yield {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**place, "labels": {"kubernetes.io/service-name": "prometheus-server"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [HOST]}],
        "ports": [{"name": "http", "port": port}],
    }


@pytest.fixture(scope="module")
def helm(nodes: RealNodes, helm_build: HelmBuild, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(helm_build.helm, nodes.cluster.administrator, NAMESPACE, tmp_path_factory.mktemp("helm"))


def pods(api: Api) -> list[Object]:
    """The replicas, without those that are ending."""
    found = api.get(PODS, labelSelector="app.kubernetes.io/component!=test")["items"]
    return [item for item in found if "deletionTimestamp" not in item["metadata"] and "Deployment" in owner(api, item)]


def owner(api: Api, item: Object) -> str:
    """Deployment, where a ReplicaSet owns it."""
    (kind,) = {each["kind"] for each in item["metadata"].get("ownerReferences", ())} or {""}
    return "Deployment" if kind == "ReplicaSet" else kind


def ready(item: Object) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in item["status"].get("conditions", ()))


def page(item: Object, path: str) -> str:
    """Of a replica, as its Pod's address gives it; '' while nothing answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{item['status']['podIP']}:8080{path}", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def until(api: Api, holds: Callable[[], bool], seconds: float = 90) -> float:
    """Seconds until it holds."""
    begun = time.monotonic()

    def complaint() -> str:
        events = api.get(f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
        said = [f"{item['reason']}: {item['message']}" for item in events][-15:]
        return json.dumps([item["status"] for item in pods(api)], indent=1)[-3000:] + "\n".join(said)

    wait_until(holds, complaint, seconds)
    return time.monotonic() - begun


def both_ready(api: Api) -> bool:
    found = pods(api)
    return len(found) == 2 and all(map(ready, found))


def leader(api: Api) -> str:
    return str(api.get(LEASE)["spec"].get("holderIdentity", ""))


def processes(node: RealNode) -> list[int]:
    """Ids, in the Node's own numbering, of the replicas that run there."""
    each = "tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep -q '[g]puwatch run' && echo ${p#/proc/}"
    return [int(pid) for pid in node.run("sh", "-c", f"for p in /proc/[0-9]*; do {each}; done; true").split()]


def test_it_is_ready_and_shows_its_first_finding_within_a_minute(api: Api, helm: Helm) -> None:
    begun = time.monotonic()
    helm("install", "gpuwatch", CHART, "-n", NAMESPACE, "--create-namespace")
    until(api, lambda: both_ready(api))
    available = time.monotonic() - begun
    until(api, lambda: any("gpu-0" in page(item, "/") for item in pods(api)))
    shown = time.monotonic() - begun
    print(f"helm install: both replicas ready after {available:.0f} s, first finding on the page after {shown:.0f} s")
    assert shown < 60
    events = api.get(f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    # On a slow machine a probe may ask too early, and the kubelet may have to try again to mount what is new.
    usual = {"Unhealthy", "FailedMount"}
    assert {item["reason"] for item in events if item["type"] == "Warning"} <= usual
    assert all(item["status"]["containerStatuses"][0]["restartCount"] == 0 for item in pods(api))


def test_it_runs_as_nobody_with_nothing_of_the_services_and_little_memory(api: Api, nodes: RealNodes) -> None:
    for node in nodes.nodes:
        for pid in processes(node):
            status = dict(line.split(":\t", 1) for line in node.run("cat", f"/proc/{pid}/status").splitlines())
            assert status["Uid"].split() == ["65532"] * 4
            assert (int(status["CapEff"], 16), status["NoNewPrivs"], status["Seccomp"]) == (0, "1", "2")
            environment = node.run("cat", f"/proc/{pid}/environ").split("\0")
            assert [name for name in environment if name.startswith("GPUWATCH_PORT") or "_SERVICE_HOST" in name] == [
                name for name in environment if name.startswith("KUBERNETES_SERVICE_HOST")
            ]
    used = [
        memory_bytes(item, node) for item in pods(api) for node in nodes.nodes if node.name == item["spec"]["nodeName"]
    ]
    print(f"memory by its cgroup: {', '.join(f'{each / 2**20:.0f} MiB' for each in used)}")
    assert max(used) < 256 * 2**20


def memory_bytes(item: Object, node: RealNode) -> int:
    """Of the Pod's cgroup, with the page cache."""
    uid = item["metadata"]["uid"]
    said = node.run(
        "sh", "-c", f"cat $(find /sys/fs/cgroup -path '*{uid}/memory.usage_in_bytes' -o -path '*{uid}/memory.current')"
    )
    return int(said.split()[0])


def test_helm_test_runs_the_doctor(api: Api, helm: Helm) -> None:
    begun = time.monotonic()
    helm("test", "gpuwatch", "-n", NAMESPACE, "--timeout", "60s")
    print(f"helm test: {time.monotonic() - begun:.0f} s")


@pytest.mark.parametrize("mode", ["suggest", "enforce"])
def test_an_upgrade_to_another_mode_is_in_force_on_every_replica(mode: str, api: Api, helm: Helm) -> None:
    """Where the Pods stay, the kubelet brings them the new settings."""
    begun = time.monotonic()
    values = f"mode={mode},enforce.taint={str(mode == 'enforce').lower()}"
    helm("upgrade", "gpuwatch", CHART, "-n", NAMESPACE, "--set", values)
    shown = f"<dt>Mode of taint node</dt><dd>{mode}</dd>"
    until(api, lambda: both_ready(api) and all(shown in page(item, "/") for item in pods(api)), 150)
    print(f"helm upgrade to {mode}: {time.monotonic() - begun:.0f} s")


def test_a_killed_leader_is_followed_by_the_other(api: Api, nodes: RealNodes) -> None:
    until(api, lambda: bool(leader(api)))
    first = leader(api)
    (leads,) = [item for item in pods(api) if first.startswith(item["metadata"]["name"])]
    (node,) = [node for node in nodes.nodes if node.name == leads["spec"]["nodeName"]]
    for pid in processes(node):
        if leads["metadata"]["name"] in node.run("cat", f"/proc/{pid}/environ"):
            node.run("kill", f"-{int(signal.SIGKILL)}", str(pid))
    took = until(api, lambda: leader(api) not in ("", first))
    print(f"kill -9 of the leader: another leads after {took:.0f} s")
    until(api, lambda: both_ready(api))


@pytest.mark.parametrize("program", ["kubelet", "containerd"])
def test_it_goes_on_when_the_nodes_programs_are_restarted(program: str, api: Api, nodes: RealNodes) -> None:
    before = {item["metadata"]["uid"]: item["status"]["containerStatuses"][0]["containerID"] for item in pods(api)}
    nodes[0].restart(program)
    time.sleep(5)
    until(api, lambda: both_ready(api))
    after = {item["metadata"]["uid"]: item["status"]["containerStatuses"][0]["containerID"] for item in pods(api)}
    assert after == before


def test_a_drained_replica_runs_beside_gpuwatchs_own_taint(api: Api, nodes: RealNodes) -> None:
    taint = {"key": "gpuwatch.dev/degraded", "value": "row-remap", "effect": "NoSchedule"}

    def change(node: RealNode, **spec: object) -> None:
        path = f"/api/v1/nodes/{node.name}"
        assert api.answer("PATCH", path, {"spec": spec}, content_type="application/merge-patch+json").ok

    change(nodes[0], taints=[taint])
    change(nodes[1], unschedulable=True)
    try:
        for item in pods(api):
            if item["spec"]["nodeName"] == nodes[1].name:
                assert api.answer("DELETE", f"{PODS}/{item['metadata']['name']}").ok
        until(api, lambda: both_ready(api) and {item["spec"]["nodeName"] for item in pods(api)} == {nodes[0].name})
    finally:
        change(nodes[0], taints=None)
        change(nodes[1], unschedulable=None)


def test_uninstalled_it_leaves_nothing_that_runs(api: Api, helm: Helm) -> None:
    begun = time.monotonic()
    helm("uninstall", "gpuwatch", "-n", NAMESPACE, "--timeout", "90s")
    print(f"helm uninstall: {time.monotonic() - begun:.0f} s")
    until(api, lambda: api.get(PODS)["items"] == [])
