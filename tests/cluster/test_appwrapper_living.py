"""AppWrapper with its own controller: what its suspension does to what it wraps, and why it is moved as a whole."""

import time
from collections.abc import Iterator

import pytest

from cluster.api import Api
from cluster.control_plane import ControlPlane, ControlPlaneBuild, running
from cluster.test_frameworks_living import (
    MERGE,
    NOW,
    below,
    do_release,
    do_restore,
    now,
    provide,
    put_beside,
    with_claims,
)
from gpuwatch.facts.frameworks.framework import CYCLE
from gpuwatch.facts.frameworks.objects import Object, Refused, ref_of, value_at
from gpuwatch.facts.frameworks.release import move, release, released
from gpuwatch.sources.kube.live import api_client
from gpuwatch.sources.kube.live_writer import LiveWriter
from gpuwatch.sources.kube.writer import ClusterWriter
from parts.appwrapper_controller import AppWrapperBuild, definitions, running_controller
from parts.processes import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(control_plane_build: ControlPlaneBuild, appwrapper_build: AppWrapperBuild) -> Iterator[ControlPlane]:
    with running(control_plane_build, alive=True) as started:
        api = Api(started.administrator)
        for definition in definitions(appwrapper_build):
            api.create(definition)
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
        gpus = {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi", "pods": "110"}
        for name in ("gpu-0", "gpu-1"):
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
            api.create({**node, "status": {"capacity": gpus, "allocatable": gpus}})
        with running_controller(appwrapper_build, started.administrator):
            yield started


@pytest.fixture(scope="module")
def api(cluster: ControlPlane) -> Api:
    return Api(cluster.administrator)


@pytest.fixture(scope="module")
def writer(cluster: ControlPlane) -> ClusterWriter:
    return LiveWriter(api_client(cluster.administrator))


def template(restart: str) -> Object:
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "main", "image": "example.org/main:1", "resources": limits}
    return {"spec": {"restartPolicy": restart, "terminationGracePeriodSeconds": 1, "containers": [container]}}


def job(name: str) -> Object:
    spec = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template("Never")}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def deployment(name: str) -> Object:
    labels = {"app": name}
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": labels},
        "template": {**template("Always"), "metadata": {"labels": labels}},
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def stateful(name: str, **policy: str) -> Object:
    labels = {"app": name}
    pod = {**template("Always"), "metadata": {"labels": labels}}
    spec = {**with_claims(name, 1, **policy), "selector": {"matchLabels": labels}, "template": pod}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": spec}


def wrapper(name: str, *wrapped: Object) -> Object:
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": name, "namespace": "team-a"},
        "spec": {"components": [{"template": each} for each in wrapped]},
    }


def pods(writer: ClusterWriter, name: str) -> tuple[Object, ...]:
    return writer.objects("v1", "Pod", "team-a", f"workload.codeflare.dev/appwrapper={name}")


def phase(writer: ClusterWriter, object_: Object) -> object:
    return value_at(now(writer, object_), "/status/phase")


def wait_for_running(writer: ClusterWriter, object_: Object, count: int) -> tuple[Object, ...]:
    name = object_["metadata"]["name"]

    def there() -> bool:
        found = pods(writer, name)
        return len(found) == count and all(pod["status"]["phase"] == "Running" for pod in found)

    wait_until(there, lambda: str(pods(writer, name)))
    wait_until(lambda: phase(writer, object_) == "Running", lambda: str(now(writer, object_)))
    return pods(writer, name)


def wait_for_release(writer: ClusterWriter, object_: Object) -> None:
    name = object_["metadata"]["name"]
    wait_until(
        lambda: released(now(writer, object_), pods(writer, name)) is True,
        lambda: f"{now(writer, object_)['status']} {pods(writer, name)}",
    )


def test_all_that_it_wraps_goes_and_is_made_anew(writer: ClusterWriter) -> None:
    before = writer.create(wrapper("both", job("both"), deployment("both")))
    first = wait_for_running(writer, before, 4)
    put_beside(writer, "both")
    kept = below(writer)
    assert released(now(writer, before), first) is False
    do_release(writer, before)
    wait_for_release(writer, before)
    time.sleep(6)  # it looks every five seconds
    assert pods(writer, "both") == ()
    assert writer.objects("apps/v1", "Deployment", "team-a") == writer.objects("batch/v1", "Job", "team-a") == ()
    assert do_restore(writer, before).left == ()
    again = wait_for_running(writer, before, 4)
    assert not {pod["metadata"]["uid"] for pod in first} & {pod["metadata"]["uid"] for pod in again}
    after = now(writer, before)
    assert after["spec"] == before["spec"]
    assert "resettingCount" not in after["status"]
    assert below(writer) == kept
    writer.delete(ref_of(before))


def test_claims_of_a_wrapped_stateful_set_stay_where_they_are_to_be_retained(writer: ClusterWriter) -> None:
    provide(writer, "keeping", 1)
    before = writer.create(wrapper("keeping", stateful("keeping", whenScaled="Delete", whenDeleted="Retain")))
    wait_for_running(writer, before, 1)
    kept = below(writer)
    assert "PersistentVolumeClaim/data-keeping-0" in kept
    do_release(writer, before)
    wait_for_release(writer, before)
    time.sleep(6)
    assert below(writer) == kept
    do_restore(writer, before)
    wait_for_running(writer, before, 1)
    assert below(writer) == kept
    writer.delete(ref_of(before))


def test_claims_that_go_with_a_wrapped_stateful_set_are_left_alone(api: Api, writer: ClusterWriter) -> None:
    """Suspended all the same, it deletes them."""
    provide(writer, "losing", 1)
    before = writer.create(wrapper("losing", stateful("losing", whenDeleted="Delete")))
    wait_for_running(writer, before, 1)
    refused = release(now(writer, before), remediation="release-4f2a", at=NOW)
    assert isinstance(refused, Refused)
    assert refused.reason.endswith("persistentVolumeClaimRetentionPolicy.whenDeleted is Delete.")
    assert "PersistentVolumeClaim/data-losing-0" in below(writer)
    path = "/apis/workload.codeflare.dev/v1beta2/namespaces/team-a/appwrappers/losing"
    assert api.answer("PATCH", path, {"spec": {"suspend": True}}, content_type=MERGE).ok
    wait_until(lambda: "PersistentVolumeClaim/data-losing-0" not in below(writer), lambda: str(below(writer)))
    writer.delete(ref_of(before))


def test_it_is_moved_as_a_whole(api: Api, writer: ClusterWriter) -> None:
    before = writer.create(wrapper("moved", job("moved")))
    first = wait_for_running(writer, before, 2)
    bad = first[0]["spec"]["nodeName"]
    tainted = {"spec": {"taints": [{"key": "gpuwatch.dev/degraded", "effect": "NoSchedule"}]}}
    assert api.answer("PATCH", f"/api/v1/nodes/{bad}", tainted, content_type=MERGE).ok
    assert move(now(writer, before), first, [first[0]["metadata"]["uid"]]) == CYCLE
    do_release(writer, before)
    wait_for_release(writer, before)
    do_restore(writer, before)
    again = wait_for_running(writer, before, 2)
    assert bad not in {pod["spec"]["nodeName"] for pod in again}
    assert "resettingCount" not in now(writer, before)["status"]
    assert api.answer("PATCH", f"/api/v1/nodes/{bad}", {"spec": {"taints": None}}, content_type=MERGE).ok
    writer.delete(ref_of(before))


def test_the_eviction_of_a_pod_that_it_wraps_itself_fails_it_for_good(api: Api, writer: ClusterWriter) -> None:
    """Why no Pod of it is evicted."""
    alone = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alone"}, **template("Never")}
    before = writer.create(wrapper("alone", alone))
    (pod,) = wait_for_running(writer, before, 1)
    writer.evict(ref_of({"apiVersion": "v1", "kind": "Pod", **pod}))
    wait_until(lambda: pods(writer, "alone") == (), lambda: str(pods(writer, "alone")))
    # It looks once a minute, and at once where its AppWrapper changes.
    path = "/apis/workload.codeflare.dev/v1beta2/namespaces/team-a/appwrappers/alone"
    assert api.answer("PATCH", path, {"metadata": {"annotations": {"look": "now"}}}, content_type=MERGE).ok
    wait_until(lambda: phase(writer, before) == "Failed", lambda: str(now(writer, before)))
    writer.delete(ref_of(before))
