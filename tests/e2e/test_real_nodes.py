"""gpuwatch on real Nodes: gangs whose Pods really end, devices that a kubelet hands out, volumes that stay."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster.api import Api, Object
from cluster.control_plane import ControlPlaneBuild
from cluster.real_node import EXPORTER_PORT, PAUSE, RealNode, RealNodes, running_nodes
from deploy.manifests import DEPLOY, apply, documents
from e2e.clusters import Cluster, on_existing
from e2e.exporters import NAMESPACE, daemon_set, scraping, write_history
from e2e.world import HISTORY_SECONDS, Installed, base
from parts.prometheus_server import ServerBuild
from parts.prometheus_server import running as running_prometheus

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

MOVE = {"taint_node": "enforce", "evict_gang": "enforce"}
RELEASE = {"release_gang": "enforce"}
TEAM = "/api/v1/namespaces/team-a"
JOBS = "/apis/batch/v1/namespaces/team-a/jobs"
VOLUMES = "/api/v1/persistentvolumes"


@pytest.fixture(scope="module")
def nodes(node_build: ControlPlaneBuild) -> Iterator[RealNodes]:
    if on_existing():
        pytest.skip("on a cluster that is there its own Nodes are used")
    with running_nodes(node_build, count=2) as found:
        yield found


@pytest.fixture(scope="module")
def installed(
    nodes: RealNodes, newest_prometheus: ServerBuild, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    """With the roles of every mode. All GPUs have been free for a while."""
    with running_prometheus(newest_prometheus, scrape_configs=[scraping(nodes.nodes)]) as prometheus:
        for node in nodes.nodes:
            write_history(prometheus, node, HISTORY_SECONDS)
        control_plane = nodes.cluster
        cluster = Cluster(
            str(control_plane.administrator),
            lambda name: control_plane.service_account("gpuwatch", "gpuwatch", name),
            control_plane,
        )
        api = Api(control_plane.administrator)
        apply(api, base())
        for file in sorted((DEPLOY / "roles").glob("*.yaml")):
            apply(api, documents(file))
        for name in ("team-a", NAMESPACE):
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        api.create(daemon_set(EXPORTER_PORT, PAUSE))  # the device plugin writes the page, at the same address
        yield Installed(cluster, api, prometheus, tmp_path_factory.mktemp("real"))


def gang(name: str, *, end_seconds: float) -> Object:
    """A Job of two Pods with two GPUs each, that share a volume and a ConfigMap."""
    container = {
        "name": "main",
        "image": "workload:1",
        "args": ["work", f"--end-seconds={end_seconds}"],
        "resources": {"limits": {"nvidia.com/gpu": "2"}, "requests": {"cpu": "10m", "memory": "16Mi"}},
        "volumeMounts": [{"name": "options", "mountPath": "/options"}],
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 20,
        "containers": [container],
        "volumes": [{"name": "options", "configMap": {"name": name}}],
    }
    body = {"parallelism": 2, "completions": 2, "backoffLimit": 1}
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    metadata = {"name": name, "namespace": "team-a"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {**body, "template": template}}


def options(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "team-a"},
        "data": {"a": "b"},
    }


@contextmanager
def cordoned(api: Api, node: RealNode) -> Iterator[None]:
    def schedulable(value: bool) -> None:
        patch = {"spec": {"unschedulable": not value}}
        path = f"/api/v1/nodes/{node.name}"
        assert api.answer("PATCH", path, patch, content_type="application/merge-patch+json").ok

    schedulable(False)
    try:
        yield
    finally:
        schedulable(True)


def started(found: Installed, job: Object) -> dict[str, str]:
    """Pod → Node, when the gang runs."""
    name = job["metadata"]["name"]
    found.api.create(options(name))
    found.api.create(job)
    found.until(lambda: len(found.running(name)) == 2)
    return placed(found, name)


def placed(found: Installed, name: str) -> dict[str, str]:
    return {item["metadata"]["uid"]: item["spec"]["nodeName"] for item in found.running(name)}


def job_of(found: Installed, name: str) -> Object:
    answer: Object = found.api.get(f"{JOBS}/{name}")
    return answer


def kept(found: Installed, name: str) -> Any:
    """What has to outlive an action: the ConfigMap and the Job themselves; and claim and volume, still bound."""
    items = [found.api.get(f"{TEAM}/configmaps/{name}"), job_of(found, name)]
    uids = [item["metadata"]["uid"] for item in items]
    if not any(each["name"] == "data" for each in items[1]["spec"]["template"]["spec"]["volumes"]):
        return uids
    claim, volume = found.api.get(f"{TEAM}/persistentvolumeclaims/{name}"), found.api.get(f"{VOLUMES}/{name}")
    uids += [claim["metadata"]["uid"], volume["metadata"]["uid"], volume["spec"]["claimRef"]["uid"]]
    phases = [claim["status"]["phase"], volume["status"]["phase"]]
    return [*uids, *phases, claim["spec"]["volumeName"], volume["spec"]["persistentVolumeReclaimPolicy"]]


def gang_with_volume(found: Installed, name: str, *, node: str = "") -> Object:
    """The gang with a claim bound to a volume, which are there then. node: where a local volume is; '' for a hostPath
    volume, which is the same folder of this machine on each Node."""
    folder = found.folder / f"volume-{name}"
    folder.mkdir()
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]
    where: Object = {"hostPath": {"path": str(folder)}}
    if node:
        where = {"local": {"path": str(folder)}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
    alike = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {**alike, **where, "capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Retain"}
    claim = {**alike, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": name}
    found.api.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume})
    metadata = {"name": name, "namespace": "team-a"}
    found.api.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim})
    found.until(lambda: found.api.get(f"{TEAM}/persistentvolumeclaims/{name}")["status"].get("phase") == "Bound")
    made = gang(name, end_seconds=1)
    spec = made["spec"]["template"]["spec"]
    spec["volumes"].append({"name": "data", "persistentVolumeClaim": {"claimName": name}})
    spec["containers"][0]["volumeMounts"].append({"name": "data", "mountPath": "/data"})
    return made


def without_gangs(found: Installed) -> None:
    """Those of the tests before are gone, with their Pods."""
    answer = found.api.answer("DELETE", f"{JOBS}", {"propagationPolicy": "Background"})
    assert answer.ok, answer.text
    found.until(lambda: found.api.get(f"{TEAM}/pods")["items"] == [])


def test_a_gang_moves_off_a_broken_gpu_and_restarted_kubelets_are_no_reason_for_anything(
    nodes: RealNodes, installed: Installed
) -> None:
    api = installed.api
    with cordoned(api, nodes[1]):
        before = started(installed, gang("train", end_seconds=3))
    assert set(before.values()) == {"gpu-0"}
    stays = kept(installed, "train")
    with installed.gpuwatch("moving", installed.settings("moving", plan={"modes": MOVE})) as replica:
        for _ in range(2):  # its GPUs are gone for a moment each time, while the Node is Ready
            nodes[0].restart("kubelet")
            time.sleep(3)
        installed.until(lambda: api.get("/api/v1/nodes/gpu-0")["status"]["allocatable"]["nvidia.com/gpu"] == "4")
        assert installed.remediations() == []
        nodes[0].set_gpu(1, DCGM_FI_DEV_ROW_REMAP_FAILURE=1)
        installed.until(lambda: installed.phase("evict_gang", "train") == "Succeeded", replica, seconds=180)
    after = placed(installed, "train")
    assert set(after.values()) == {"gpu-1"} and not set(after) & set(before)
    assert kept(installed, "train") == stays
    job = job_of(installed, "train")
    assert job["status"].get("failed", 0) == 0, "a suspension costs no backoffLimit"
    assert not job["spec"]["suspend"]
    (taint,) = installed.taints("gpu-0")
    assert (taint["value"], taint["effect"]) == ("row_remap", "NoSchedule")


def test_the_taint_goes_when_the_gpu_is_well(nodes: RealNodes, installed: Installed) -> None:
    nodes[0].set_gpu(1, DCGM_FI_DEV_ROW_REMAP_FAILURE=0)
    with installed.gpuwatch("healing", installed.settings("healing", plan={"modes": MOVE})) as replica:
        installed.until(lambda: not installed.taints("gpu-0"), replica)
        installed.until(lambda: installed.phase("taint_node", "gpu-0") == "Succeeded", replica)


def test_an_idle_gang_is_released_and_undo_gives_it_back_elsewhere_with_its_volume_and_all_it_had(
    nodes: RealNodes, installed: Installed
) -> None:
    without_gangs(installed)
    for index in range(nodes[0].gpus):  # before the gang is there: one sample of work, and it was used once
        nodes[0].set_gpu(index, busy=False)
    with cordoned(installed.api, nodes[1]):
        before = started(installed, gang_with_volume(installed, "forgotten"))
    assert set(before.values()) == {"gpu-0"}
    stays, spec = kept(installed, "forgotten"), job_of(installed, "forgotten")["spec"]
    assert stays.count("Bound") == 2 and "Retain" in stays
    with installed.gpuwatch("releasing", installed.settings("releasing", plan={"modes": RELEASE})) as replica:
        installed.until(lambda: installed.phase("release_gang", "forgotten") == "InEffect", replica, seconds=180)
        assert installed.pods("forgotten") == []
        assert kept(installed, "forgotten") == stays
        with cordoned(installed.api, nodes[0]):
            (held,) = installed.remediations("release_gang", "forgotten")
            undone = installed.command("undo", held["metadata"]["name"], "-n", "team-a")
            assert undone.returncode == 0, undone.stderr
            installed.until(lambda: installed.phase("release_gang", "forgotten") == "Undone", replica)
            installed.until(lambda: len(installed.running("forgotten")) == 2, replica)
    after = placed(installed, "forgotten")
    assert set(after.values()) == {"gpu-1"} and not set(after) & set(before)
    assert kept(installed, "forgotten") == stays
    assert job_of(installed, "forgotten")["spec"] == spec


def test_a_gang_whose_local_volume_is_on_the_broken_node_is_refused_with_that_reason_and_left_alone(
    nodes: RealNodes, installed: Installed
) -> None:
    without_gangs(installed)
    before = started(installed, gang_with_volume(installed, "tied", node="gpu-0"))
    assert set(before.values()) == {"gpu-0"}, "nowhere else is its volume"
    for index in range(nodes[0].gpus):
        nodes[0].set_gpu(index, busy=True)
    stays, job, since = kept(installed, "tied"), job_of(installed, "tied"), time.time()
    settings = installed.settings("tied", plan={"modes": MOVE})

    def move() -> Object | None:
        """The plan's, as `gpuwatch analyze` tells it."""
        options = ("--prometheus", installed.prometheus, "--config", str(settings), "-o", "json")
        said = installed.command("analyze", *options)
        assert said.returncode == 0, said.stderr
        items = json.loads(said.stdout)["plan"]["items"]
        return next((item for item in items if item["candidate"]["action"] == "evict_gang"), None)

    nodes[0].set_gpu(1, DCGM_FI_DEV_ROW_REMAP_FAILURE=1)
    try:
        with installed.gpuwatch("tying", settings) as replica:
            installed.until(lambda: bool(installed.taints("gpu-0")), replica)
            installed.until(lambda: move() is not None, replica)
            time.sleep(10)  # three cycles
            found = move()
    finally:
        nodes[0].set_gpu(1, DCGM_FI_DEV_ROW_REMAP_FAILURE=0)
    assert found is not None and found["candidate"]["target"]["name"].endswith("/tied")
    (refusal,) = found["refusals"]
    assert refusal["guard"] == "lands"
    words = ("Pod team-a/tied-", "would land nowhere", "claim team-a/tied is bound to a volume on Node gpu-0")
    assert all(each in refusal["reason"] for each in words), refusal["reason"]
    assert installed.remediations("evict_gang", "tied") == []
    assert placed(installed, "tied") == before
    assert kept(installed, "tied") == stays
    now = job_of(installed, "tied")
    assert (now["spec"], now["metadata"].get("annotations")) == (job["spec"], job["metadata"].get("annotations"))
    assert all(words.startswith("patch nodes ") for words in installed.disturbed(since)), installed.disturbed(since)
