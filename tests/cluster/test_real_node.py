"""What a real kubelet, containerd and device plugin show, and how gpuwatch reads it.

Each fact is one that simulated kubelets told otherwise, or did not tell.
"""

import json
import re
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import msgspec
import pytest

from cluster.api import Api, Object
from cluster.control_plane import ControlPlaneBuild
from cluster.real_node import RealNode, RealNodes, running_nodes
from e2e.exporters import exporters
from e2e.live_fleet import LiveFleet
from gpuwatch.facts.frameworks import OWNERS
from gpuwatch.facts.frameworks.framework import CYCLE
from gpuwatch.facts.frameworks.release import move
from gpuwatch.sources.kube.nodes import take_node
from gpuwatch.sources.kube.owners import TakeOwner
from gpuwatch.sources.kube.pods import take_pod
from parts.processes import wait_until

pytestmark = pytest.mark.slow
TEAM = "team-a"
GPU = "nvidia.com/gpu"
JOBS = f"/apis/batch/v1/namespaces/{TEAM}/jobs"


@pytest.fixture(scope="module")
def nodes(node_build: ControlPlaneBuild) -> Iterator[RealNodes]:
    with running_nodes(node_build, count=2) as found:
        Api(found.cluster.administrator).create(namespace())
        yield found


@pytest.fixture
def api(nodes: RealNodes) -> Iterator[Api]:
    """The API server; what a test has made in the Namespace is gone afterwards."""
    found = Api(nodes.cluster.administrator)
    yield found
    for path in (JOBS, "/apis/policy/v1/namespaces/team-a/poddisruptionbudgets"):
        found.answer("DELETE", path, {"propagationPolicy": "Background"})
    found.answer("DELETE", f"/api/v1/namespaces/{TEAM}/pods", {"gracePeriodSeconds": 0})
    wait_until(lambda: not pods(found), lambda: f"Pods are left: {[item['metadata']['name'] for item in pods(found)]}")


def namespace() -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}}


def pod_spec(*arguments: str, gpus: int = 1, **more: Any) -> Object:
    container = {
        "name": "main",
        "image": "workload:1",
        "args": ["work", *arguments],
        "resources": {"limits": {GPU: str(gpus)}, "requests": {"cpu": "10m", "memory": "16Mi"}},
    }
    return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [container], **more}


def pod(name: str, spec: Object) -> Object:
    metadata = {"name": name, "namespace": TEAM, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def job(name: str, spec: Object, **more: Any) -> Object:
    body = {"template": {"metadata": {"labels": {"app": name}}, "spec": spec}, **more}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": TEAM}, "spec": body}


def pods(api: Api, app: str = "") -> list[Object]:
    selected = {"labelSelector": f"app={app}"} if app else {}
    found: list[Object] = api.get(f"/api/v1/namespaces/{TEAM}/pods", **selected)["items"]
    return found


def only(api: Api, app: str) -> Object:
    (found,) = pods(api, app)
    return found


def status(api: Api, node: RealNode) -> Object:
    found: Object = api.get(f"/api/v1/nodes/{node.name}")["status"]
    return found


def gpus_of(api: Api, node: RealNode) -> tuple[str, str]:
    """Capacity and what of it is allocatable."""
    found = status(api, node)
    return found["capacity"].get(GPU, ""), found["allocatable"].get(GPU, "")


def condition(found: Object, kind: str) -> str:
    return next((each["status"] for each in found["status"].get("conditions", ()) if each["type"] == kind), "")


def device_health(found: Object) -> list[str]:
    """Of the devices that its containers hold, as the kubelet tells it."""
    return [
        device["health"]
        for each in found["status"].get("containerStatuses", ())
        for resource in each.get("allocatedResourcesStatus", ())
        for device in resource["resources"]
    ]


def until(api: Api, holds: Callable[[], bool], seconds: float = 60) -> None:
    wait_until(holds, lambda: json.dumps([item["status"] for item in pods(api)], indent=1)[-3000:], seconds)


def started(api: Api, found: Object) -> Object:
    """The Pod with this manifest, when it runs."""
    api.create(found)
    name = found["metadata"]["name"]
    until(api, lambda: condition(only(api, name), "Ready") == "True")
    return only(api, name)


def read(found: Object) -> Any:
    taken = take_pod(msgspec.Raw(json.dumps(found).encode()))
    assert taken is not None and taken.held is not None
    return taken.held.pod


def evict(api: Api, found: Object) -> int:
    name = found["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": TEAM}}
    return api.answer("POST", f"/api/v1/namespaces/{TEAM}/pods/{name}/eviction", body).status_code


def test_an_unhealthy_device_leaves_capacity_as_it_is_and_is_named_in_the_pod_that_holds_it(
    nodes: RealNodes, api: Api
) -> None:
    node = nodes[0]
    started(api, pod("holds", pod_spec(gpus=4, nodeName=node.name)))
    assert device_health(only(api, "holds")) == ["Healthy"] * 4
    node.set_gpu(1, health="Unhealthy")
    try:
        until(api, lambda: gpus_of(api, node) == ("4", "3"))
        until(api, lambda: sorted(device_health(only(api, "holds"))) == ["Healthy"] * 3 + ["Unhealthy"])
        assert condition(api.get(f"/api/v1/nodes/{node.name}"), "Ready") == "True"
        assert condition(only(api, "holds"), "Ready") == "True", "nothing is ended because of it"
        assert "taints" not in api.get(f"/api/v1/nodes/{node.name}")["spec"]
    finally:
        node.set_gpu(1, health="Healthy")
    until(api, lambda: gpus_of(api, node) == ("4", "4"))


def test_without_its_plugin_a_node_has_no_gpu_to_give_and_says_that_held_ones_are_healthy(
    nodes: RealNodes, api: Api
) -> None:
    node = nodes[0]
    started(api, pod("holds", pod_spec(gpus=2, nodeName=node.name)))
    with node.without("gpu-plugin"):
        until(api, lambda: gpus_of(api, node) == ("4", "0"))
        assert device_health(only(api, "holds")) == ["Healthy", "Healthy"]
        assert condition(only(api, "holds"), "Ready") == "True"
        read_node = take_node(msgspec.Raw(json.dumps(api.get(f"/api/v1/nodes/{node.name}")).encode()))
        assert read_node.node.ready, "so readiness alone does not tell it"
    until(api, lambda: gpus_of(api, node) == ("4", "4"))


def test_a_kubelet_that_is_restarted_has_no_gpu_until_its_plugin_has_come_back(nodes: RealNodes, api: Api) -> None:
    node = nodes[0]
    started(api, pod("holds", pod_spec(nodeName=node.name)))
    node.programs["gpu-plugin"].stop()
    try:
        node.restart("kubelet")
        until(api, lambda: gpus_of(api, node) == ("0", "0"))
        assert condition(only(api, "holds"), "Ready") == "True", "its Pods go on"
        assert condition(api.get(f"/api/v1/nodes/{node.name}"), "Ready") == "True"
    finally:
        node.programs["gpu-plugin"].start()
    until(api, lambda: gpus_of(api, node) == ("4", "4"))


def test_a_pod_past_the_scheduler_is_refused_by_the_kubelet_without_a_container_status(
    nodes: RealNodes, api: Api
) -> None:
    node = nodes[0]
    started(api, pod("holds", pod_spec(gpus=4, nodeName=node.name)))
    api.create(pod("refused", pod_spec(nodeName=node.name)))
    until(api, lambda: only(api, "refused")["status"].get("phase") == "Failed")
    found = only(api, "refused")
    assert found["status"]["reason"] == "UnexpectedAdmissionError"
    assert "containerStatuses" not in found["status"]
    assert read(found).phase == "Failed" and not read(found).ready


def job_runs(api: Api, name: str, **spec: Any) -> Object:
    """Its Pod, which ends with exit code 0 a moment after SIGTERM."""
    api.create(job(name, pod_spec("--end-seconds=2", terminationGracePeriodSeconds=20), **spec))
    until(api, lambda: bool(pods(api, name)) and condition(only(api, name), "Ready") == "True")
    return only(api, name)


def job_status(api: Api, name: str) -> Object:
    found: Object = api.get(f"{JOBS}/{name}")
    return found["status"]


FORGIVES = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}


def retries(api: Api, name: str) -> int | None:
    """As gpuwatch reads it."""
    taken = TakeOwner(OWNERS["batch", "Job"])(msgspec.Raw(json.dumps(api.get(f"{JOBS}/{name}")).encode()))
    assert taken is not None
    return taken.retries


def test_an_evicted_pod_is_ready_while_it_ends_and_its_job_counts_a_failure(nodes: RealNodes, api: Api) -> None:
    first = job_runs(api, "trains", backoffLimit=1)
    assert retries(api, "trains") == 1
    assert evict(api, first) == 201
    ending = api.get(f"/api/v1/namespaces/{TEAM}/pods/{first['metadata']['name']}")
    assert "deletionTimestamp" in ending["metadata"] and condition(ending, "Ready") == "True"
    assert not read(ending).ready, "gpuwatch does not count it as running well"
    # The process ended with 0. Each eviction costs one of backoffLimit all the same.
    until(api, lambda: job_status(api, "trains").get("failed", 0) == 1)
    assert retries(api, "trains") == 0


def test_a_job_that_ignores_disruptions_counts_an_evicted_pod_as_done(nodes: RealNodes, api: Api) -> None:
    """Such a Job waits for its Pod's end, and 0 is success: it is complete without having done its work."""
    first = job_runs(api, "forgives", podFailurePolicy=FORGIVES)
    assert retries(api, "forgives") == 0
    assert evict(api, first) == 201
    until(api, lambda: condition({"status": job_status(api, "forgives")}, "Complete") == "True")


@pytest.mark.parametrize("policy", [{}, {"podFailurePolicy": FORGIVES}], ids=["counts", "forgives"])
def test_a_suspended_job_counts_its_pod_as_neither_failed_nor_done_and_runs_again(
    policy: Object, nodes: RealNodes, api: Api
) -> None:
    first = job_runs(api, "trains", backoffLimit=0, **policy)
    current = api.get(f"{JOBS}/trains")
    assert move(current, [first], [first["metadata"]["uid"]]) == CYCLE

    def suspend(value: bool) -> None:
        patch = {"spec": {"suspend": value}}
        assert api.answer("PATCH", f"{JOBS}/trains", patch, content_type="application/merge-patch+json").ok

    suspend(True)
    until(api, lambda: not pods(api, "trains"))
    suspend(False)
    until(api, lambda: bool(pods(api, "trains")) and condition(only(api, "trains"), "Ready") == "True")
    status = job_status(api, "trains")
    assert (status.get("failed", 0), status.get("succeeded", 0)) == (0, 0)


def test_a_pod_that_ignores_the_end_is_killed_after_its_grace_period(nodes: RealNodes, api: Api) -> None:
    found = started(api, pod("stays", pod_spec("--ignore-term", terminationGracePeriodSeconds=3)))
    api.answer("DELETE", f"/api/v1/namespaces/{TEAM}/pods/stays", {})
    holds = only(api, "stays")
    assert holds["metadata"]["deletionGracePeriodSeconds"] == 3
    assert read(holds).name == "stays", "it holds its GPU until it has ended"
    until(api, lambda: not pods(api, "stays"), 20)
    assert found["spec"]["nodeName"]


def test_an_eviction_that_a_budget_forbids_is_refused(nodes: RealNodes, api: Api) -> None:
    api.create(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "kept", "namespace": TEAM},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
        }
    )
    found = started(api, pod("kept", pod_spec()))
    assert evict(api, found) == 429


def test_an_image_that_is_not_to_be_had_keeps_the_pod_waiting_with_its_gpu(nodes: RealNodes, api: Api) -> None:
    spec = pod_spec()
    spec["containers"][0] |= {"image": "localhost/absent:1", "imagePullPolicy": "Never"}
    api.create(pod("pulls", spec))
    until(api, lambda: "ErrImageNeverPull" in json.dumps(only(api, "pulls")["status"]))
    found = only(api, "pulls")
    assert found["status"]["phase"] == "Pending" and device_health(found) == ["Healthy"]


def test_an_init_container_holds_the_gpu_before_the_pod_runs(nodes: RealNodes, api: Api) -> None:
    spec = pod_spec()
    spec["initContainers"] = [{**spec["containers"][0], "name": "prepare", "args": ["work", "--work-seconds=2"]}]
    api.create(pod("prepares", spec))
    until(api, lambda: "running" in json.dumps(only(api, "prepares")["status"].get("initContainerStatuses", "")))
    assert only(api, "prepares")["status"]["phase"] == "Pending"
    assert read(only(api, "prepares")).accelerators == {GPU: 1}
    until(api, lambda: condition(only(api, "prepares"), "Ready") == "True")


def test_the_simulated_fleet_shows_of_the_same_pods_what_a_real_node_shows(nodes: RealNodes, api: Api) -> None:
    """Per metric, how many GPUs have which labels and which Pod: free, held, and held by a Pod that ends."""
    node = nodes[0]
    with exporters() as pages:
        fleet = LiveFleet(Api(nodes.cluster.administrator), pages, prometheus="")

        def shown(url: str) -> Counter[tuple[str, tuple[str, ...], str]]:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as answer:
                rows = [row for line in answer.read().decode().splitlines() if (row := _ROW.match(line))]
            labels = [dict(_LABEL.findall(row[2])) for row in rows]
            return Counter(
                (row[1], tuple(sorted(set(found) - {"DCGM_FI_DRIVER_VERSION"})), found.get("pod", ""))
                for row, found in zip(rows, labels, strict=True)
            )

        def alike(held: int) -> bool:
            fleet.look()
            real, simulated = shown(node.page_url), shown(f"{pages.url}/{node.name}/metrics")
            return real == simulated and sum(real[each] for each in real if each[2]) == held * len({*map(first, real)})

        until(api, lambda: alike(0))
        found = started(api, pod("holds", pod_spec("--end-seconds=6", gpus=2, nodeName=node.name)))
        until(api, lambda: alike(2))
        api.answer("DELETE", f"/api/v1/namespaces/{TEAM}/pods/holds", {"gracePeriodSeconds": 20})
        assert "deletionTimestamp" in only(api, "holds")["metadata"], found["metadata"]
        assert alike(2), "it has its devices until it has ended"
        until(api, lambda: not pods(api, "holds"))
        until(api, lambda: alike(0))


_ROW = re.compile(r"(\w+)\{(.*)\} (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
first = itemgetter(0)
