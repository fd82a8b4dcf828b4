"""Every released kind on a real API server with its kind's definition; what is built in, with its Pods."""

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.api import Api
from cluster.control_plane import ControlPlane, ControlPlaneBuild, running
from frameworks.samples import ANNOTATIONS, SAMPLES, VOLCANO, Sample, told_state
from gpuwatch.act.execute.executor import read_surroundings
from gpuwatch.act.execute.requests import write
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.fights import Answer, Surroundings, may_release
from gpuwatch.facts.frameworks.framework import How, MovePlan
from gpuwatch.facts.frameworks.objects import Object, Refused, Write, ref_of
from gpuwatch.facts.frameworks.release import Release, Restoration, move, release, released, restore, rollout
from gpuwatch.sources.kube.live import api_client
from gpuwatch.sources.kube.live_writer import LiveWriter
from gpuwatch.sources.kube.writer import ClusterWriter, Failure, WriteError
from parts.processes import wait_until

pytestmark = pytest.mark.slow
CRDS = sorted((Path(__file__).parent / "crds").glob("*.yaml"))
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
NAME = "release-4f2a"
MERGE = "application/merge-patch+json"


@pytest.fixture(scope="module")
def cluster(control_plane_build: ControlPlaneBuild) -> Iterator[ControlPlane]:
    with running(control_plane_build, alive=True) as started:
        api = Api(started.administrator)
        for file in CRDS:
            for definition in yaml.safe_load_all(file.read_text()):
                api.create(definition)
        for name in ("team-a", "team-b"):
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        gpus = {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi", "pods": "110"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-0"}}
        api.create({**node, "status": {"capacity": gpus, "allocatable": gpus}})
        for sample in (*SAMPLES, VOLCANO):
            version = sample.object["apiVersion"]
            base = f"/apis/{version}"
            wait_until(lambda base=base: api.answer("GET", base).ok, lambda base=base: f"{base} is not served")
        yield started


@pytest.fixture(scope="module")
def api(cluster: ControlPlane) -> Api:
    return Api(cluster.administrator)


@pytest.fixture(scope="module")
def writer(cluster: ControlPlane) -> ClusterWriter:
    return LiveWriter(api_client(cluster.administrator))


def now(writer: ClusterWriter, object_: Object) -> Object:
    found = writer.get(ref_of(object_))
    assert found is not None
    return found


def send(writer: ClusterWriter, writes: Iterable[Write]) -> None:
    for each in writes:
        write(writer, each)


def settled(attempt: Callable[[], Any]) -> Any:
    """Controllers write to the same objects, so that a version may be old before it is named."""
    for _ in range(20):
        try:
            return attempt()
        except WriteError as error:
            if error.failure is not Failure.CONFLICT:
                raise
    raise AssertionError("Twenty conflicts in a row.")


def do_release(writer: ClusterWriter, object_: Object) -> Release:
    def attempt() -> Release:
        plan = release(now(writer, object_), remediation=NAME, at=NOW)
        assert isinstance(plan, Release), plan
        send(writer, plan.writes)
        return plan

    found: Release = settled(attempt)
    return found


def do_restore(writer: ClusterWriter, object_: Object) -> Restoration:
    def attempt() -> Restoration:
        current = now(writer, object_)
        marked = keys.SAVED_STATE in current["metadata"].get("annotations", {})
        plan = restore(current, told_state(current) if marked else (), remediation=NAME)
        assert isinstance(plan, Restoration), plan
        send(writer, plan.writes)
        return plan

    found: Restoration = settled(attempt)
    return found


def started(api: Api, writer: ClusterWriter, sample: Sample, namespace: str, **metadata: Any) -> Object:
    made = writer.create(sample.named(namespace, **metadata))
    if sample.status:
        resource = api.resource(made["apiVersion"], made["kind"])
        path = f"{resource.path(namespace)}/{made['metadata']['name']}/status"
        assert api.answer("PATCH", path, {"status": sample.status}, content_type=MERGE).ok
    return now(writer, made)


@pytest.mark.parametrize("sample", SAMPLES, ids=[sample.id for sample in SAMPLES])
def test_every_kind_is_released_in_one_write_and_comes_back_byte_for_byte(
    api: Api, writer: ClusterWriter, cluster: ControlPlane, sample: Sample
) -> None:
    metadata: Object = {"annotations": dict(ANNOTATIONS)}
    if "ownerReferences" in sample.object["metadata"]:  # what has no owner that exists is collected as garbage
        job = writer.create(
            {**owner("Job", "admitted", parallelism=0), "metadata": {"name": "admitted", "namespace": "team-b"}}
        )
        (reference,) = sample.object["metadata"]["ownerReferences"]
        metadata["ownerReferences"] = [{**reference, "name": "admitted", "uid": job["metadata"]["uid"]}]
    before = started(api, writer, sample, "team-b", **metadata)

    def rehearse() -> None:
        plan = release(now(writer, before), remediation=NAME, at=NOW)
        assert isinstance(plan, Release), plan
        send(LiveWriter(api_client(cluster.administrator), dry_run=True), plan.writes)

    settled(rehearse)
    assert now(writer, before)["spec"] == before["spec"]
    plan = do_release(writer, before)
    gone = now(writer, before)
    assert plan.saved[0].path == sample.path
    assert gone["metadata"]["annotations"][keys.REMEDIATION] == NAME
    assert told_state(gone) == plan.saved
    (ours,) = [
        item
        for item in gone["metadata"]["managedFields"]
        if item["manager"] == "gpuwatch" and "subresource" not in item
    ]
    assert "f:gpuwatch.dev/saved-state" in ours["fieldsV1"]["f:metadata"]["f:annotations"]
    assert do_restore(writer, before).left == ()
    again = now(writer, before)
    expected = {**before["spec"], **sample.spec_after}
    assert json.dumps(again["spec"], sort_keys=True) == json.dumps(expected, sort_keys=True)
    kept = {
        key: value
        for key, value in again["metadata"]["annotations"].items()
        if key in before["metadata"]["annotations"]
    }
    assert kept == before["metadata"]["annotations"]
    assert not {keys.REMEDIATION, keys.SAVED_STATE} & set(again["metadata"]["annotations"])
    writer.delete(ref_of(before))


def test_a_volcano_job_is_commanded(api: Api, writer: ClusterWriter) -> None:
    before = started(api, writer, VOLCANO, "team-b")
    do_release(writer, before)
    (command,) = writer.objects("bus.volcano.sh/v1alpha1", "Command", "team-b")
    assert (command["action"], command["target"]["uid"]) == ("AbortJob", before["metadata"]["uid"])
    assert ref_of(command).name == f"{NAME}-abortjob"
    path = "/apis/batch.volcano.sh/v1alpha1/namespaces/team-b/jobs/volcano/status"
    assert api.answer("PATCH", path, {"status": {"state": {"phase": "Aborted"}}}, content_type=MERGE).ok
    assert released(now(writer, before), ()) is True
    assert do_restore(writer, before).left == ()
    actions = {item["action"] for item in writer.objects("bus.volcano.sh/v1alpha1", "Command", "team-b")}
    assert actions == {"AbortJob", "ResumeJob"}
    assert now(writer, before)["spec"] == before["spec"]


def owner(kind: str, name: str, **spec: Any) -> Object:
    container = {"name": "main", "image": "example.org/main:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod: Object = {"containers": [container], "terminationGracePeriodSeconds": 1}
    metadata = {"name": name, "namespace": "team-a"}
    template = {"metadata": {"labels": {"app": name}}, "spec": pod}
    if kind == "Job":
        pod["restartPolicy"] = "Never"
        return {"apiVersion": "batch/v1", "kind": kind, "metadata": metadata, "spec": {**spec, "template": template}}
    selector = {"matchLabels": {"app": name}}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": metadata,
        "spec": {**spec, "selector": selector, "template": template},
    }


def pods(writer: ClusterWriter, name: str) -> tuple[Object, ...]:
    return writer.objects("v1", "Pod", "team-a", f"app={name}")


def below(writer: ClusterWriter, namespace: str = "team-a") -> dict[str, str]:
    """uid of all that may hold data in the Namespace, and of the volumes bound there, by kind and name."""
    found = [("PersistentVolume", item) for item in writer.objects("v1", "PersistentVolume")]
    for kind in ("PersistentVolumeClaim", "ConfigMap", "Secret"):
        found += [(kind, item) for item in writer.objects("v1", kind, namespace)]
    return {f"{kind}/{item['metadata']['name']}": item["metadata"]["uid"] for kind, item in found}


def put_beside(writer: ClusterWriter, name: str, namespace: str = "team-a") -> None:
    """A ConfigMap and a Secret with the labels of the owner's Pods."""
    for kind in ("ConfigMap", "Secret"):
        metadata = {"name": name, "namespace": namespace, "labels": {"app": name}}
        writer.create({"apiVersion": "v1", "kind": kind, "metadata": metadata})


def with_claims(name: str, replicas: int, **policy: str) -> Object:
    """More of a StatefulSet's spec."""
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": name,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return {
        "replicas": replicas,
        "serviceName": "x",
        "persistentVolumeClaimRetentionPolicy": policy,
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
    }


def provide(writer: ClusterWriter, storage_class: str, count: int) -> None:
    """Volumes that a deleted claim takes along, as those of clouds do."""
    for number in range(count):
        writer.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"{storage_class}-{number}"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "capacity": {"storage": "1Gi"},
                    "persistentVolumeReclaimPolicy": "Delete",
                    "storageClassName": storage_class,
                    "hostPath": {"path": f"/tmp/{storage_class}-{number}"},
                },
            }
        )


def wait_for_running(writer: ClusterWriter, name: str, count: int) -> tuple[Object, ...]:
    def there() -> bool:
        found = pods(writer, name)
        return len(found) == count and all(pod["status"]["phase"] == "Running" for pod in found)

    wait_until(
        there, lambda: f"{name}: {[(pod['metadata']['name'], pod['status']['phase']) for pod in pods(writer, name)]}"
    )
    return pods(writer, name)


@pytest.mark.parametrize(
    ("kind", "spec", "count"),
    [
        ("Job", {"parallelism": 2, "completions": 2}, 2),
        ("Job", {"parallelism": 2, "completions": 2, "completionMode": "Indexed"}, 2),
        ("Deployment", {"replicas": 2}, 2),
        ("StatefulSet", {"replicas": 2, "serviceName": "x"}, 2),
        ("StatefulSet", {"replicas": 2, "serviceName": "x", "podManagementPolicy": "Parallel"}, 2),
        ("StatefulSet", with_claims("claiming-statefulset", 2, whenScaled="Retain", whenDeleted="Delete"), 2),
    ],
    ids=["job", "indexed-job", "deployment", "statefulset", "parallel-statefulset", "claiming-statefulset"],
)
def test_pods_really_go_and_come_back(
    writer: ClusterWriter, request: pytest.FixtureRequest, kind: str, spec: Object, count: int
) -> None:
    name = request.node.callspec.id
    if "volumeClaimTemplates" in spec:
        provide(writer, name, count)
    put_beside(writer, name)
    before = writer.create(owner(kind, name, **spec))
    first = wait_for_running(writer, name, count)
    kept = below(writer)
    assert f"ConfigMap/{name}" in kept
    assert ("volumeClaimTemplates" in spec) is (f"PersistentVolumeClaim/data-{name}-0" in kept)
    assert may_release(before, read_surroundings(writer, before)) == Answer()
    assert released(now(writer, before), pods(writer, name)) is False
    do_release(writer, before)
    wait_until(
        lambda: released(now(writer, before), pods(writer, name)) is True,
        lambda: f"{now(writer, before)['status']} {pods(writer, name)}",
    )
    assert pods(writer, name) == ()
    assert do_restore(writer, before).left == ()
    again = wait_for_running(writer, name, count)
    assert not {pod["metadata"]["uid"] for pod in first} & {pod["metadata"]["uid"] for pod in again}
    assert now(writer, before)["spec"] == before["spec"]
    assert below(writer) == kept
    writer.delete(ref_of(before))


def test_claims_that_a_scale_deletes_are_left_alone(writer: ClusterWriter) -> None:
    """Kubernetes' own controller deletes them, and what comes back is another claim."""
    name, spec = "losing", with_claims("losing", 2, whenScaled="Delete", whenDeleted="Retain")
    provide(writer, name, 4)
    before = writer.create(owner("StatefulSet", name, podManagementPolicy="Parallel", **spec))
    there = wait_for_running(writer, name, 2)
    kept = below(writer)
    current = now(writer, before)
    reason = "Its volume claims would be deleted: persistentVolumeClaimRetentionPolicy.whenScaled is Delete."
    assert release(current, remediation=NAME, at=NOW) == Refused(reason)
    assert move(current, there, [there[0]["metadata"]["uid"]]) == Refused(reason)
    for replicas in (0, 2):  # what a release and its restoration would write
        settled(lambda: writer.patch(ref_of(now(writer, before)), {"spec": {"replicas": replicas}}))  # noqa: B023
        if replicas:
            wait_for_running(writer, name, replicas)
        else:
            wait_until(
                lambda: not [item for item in below(writer) if "Claim/data-losing" in item], lambda: "claims left"
            )
    claims = [item for item in kept if "Claim/data-losing" in item]
    again = below(writer)
    assert len(claims) == 2
    assert not {kept[item] for item in claims} & {again[item] for item in claims}
    writer.delete(ref_of(before))


def test_a_lone_pod_of_a_deployment_gets_its_successor_first(writer: ClusterWriter) -> None:
    deployment = writer.create(owner("Deployment", "lone", replicas=1))
    (pod,) = wait_for_running(writer, "lone", 1)
    put_beside(writer, "lone")
    kept = below(writer)
    assert move(now(writer, deployment), pods(writer, "lone"), [pod["metadata"]["uid"]]) == MovePlan(How.ROLLOUT)
    settled(lambda: write(writer, rollout(now(writer, deployment), remediation=NAME, at=NOW)))
    seen: list[int] = []

    def replaced() -> bool:
        found = pods(writer, "lone")
        seen.append(sum(item["status"]["phase"] == "Running" for item in found))
        return len(found) == 1 and found[0]["metadata"]["uid"] != pod["metadata"]["uid"]

    wait_until(replaced, lambda: str(pods(writer, "lone")))
    assert min(seen) == 1
    assert below(writer) == kept
    writer.delete(ref_of(deployment))


def test_an_autoscaler_lets_zero_be_and_is_found_before(writer: ClusterWriter) -> None:
    deployment = writer.create(owner("Deployment", "scaled", replicas=2))
    wait_for_running(writer, "scaled", 2)
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "scaled"}
    metric = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
    }
    autoscaler = writer.create(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "scaled", "namespace": "team-a"},
            "spec": {"scaleTargetRef": reference, "minReplicas": 2, "maxReplicas": 4, "metrics": [metric]},
        }
    )
    answer = may_release(deployment, read_surroundings(writer, deployment))
    assert answer == Answer(("HorizontalPodAutoscaler scaled sets its replicas (2 to 4).",))
    do_release(writer, deployment)

    def reason() -> str:
        conditions = now(writer, autoscaler).get("status", {}).get("conditions", ())
        return next((item["reason"] for item in conditions if item["type"] == "ScalingActive"), "")

    wait_until(lambda: reason() == "ScalingDisabled", lambda: str(now(writer, autoscaler)), seconds=90)
    assert now(writer, deployment)["spec"]["replicas"] == 0
    writer.delete(ref_of(autoscaler))
    writer.delete(ref_of(deployment))


def test_what_may_not_be_listed_is_no_proof_of_peace(writer: ClusterWriter, cluster: ControlPlane) -> None:
    deployment = writer.create(owner("Deployment", "watched", replicas=1))
    stranger = LiveWriter(api_client(cluster.user("stranger")))
    around = read_surroundings(stranger, deployment)
    assert around.objects == ()
    assert may_release(deployment, around) == Answer(unread=around.unread)
    lists = ("workloads", "podgroups", "horizontalpodautoscalers", "scaledobjects")
    assert [name in item for name, item in zip(lists, around.unread, strict=True)] == [True] * 4, around.unread
    assert may_release(deployment, Surroundings()) == Answer()
    writer.delete(ref_of(deployment))


def test_a_deployers_mark_counts_where_it_writes_the_field(writer: ClusterWriter, api: Api) -> None:
    """Flux applies with its own name; what it leaves out is not its business."""
    path = "/apis/apps/v1/namespaces/team-a/deployments"
    for name, spec, expected in (("with", {"replicas": 2}, 1), ("without", {}, 0)):
        applied = owner("Deployment", f"flux-{name}", **spec)
        applied["metadata"]["labels"] = {"kustomize.toolkit.fluxcd.io/name": "apps"}
        answer = api.answer(
            "PATCH",
            f"{path}/flux-{name}",
            applied,
            content_type="application/apply-patch+yaml",
            parameters={"fieldManager": "kustomize-controller", "force": "true"},
        )
        assert answer.ok, answer.text
        deployment = now(writer, answer.json())
        told = may_release(deployment, Surroundings()).no
        assert len(told) == expected, told
        assert all("Flux" in item and "/spec/replicas" in item for item in told)
        # Once it was ours, the server does not tell any more whose it was.
        touched = writer.patch(ref_of(deployment), {"spec": {"replicas": 3}})
        assert len(may_release(touched, Surroundings()).no) == 1
        writer.delete(ref_of(deployment))
