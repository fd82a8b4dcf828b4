"""Which Pods move one by one, which only together, and which never."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from frameworks.samples import TABLES
from gpuwatch.act.execute.requests import write
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.framework import How, MovePlan
from gpuwatch.facts.frameworks.objects import Object, Refused, ref_of
from gpuwatch.facts.frameworks.release import move, rollout
from kube.memory_cluster import MemoryCluster

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def owner(kind: str, api_version: str, **spec: Any) -> Object:
    metadata = {"name": "o", "namespace": "a", "uid": "owner", "resourceVersion": "1"}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def pod(name: str, *, ready: bool = True, phase: str = "Running", task: str = "worker", **labels: str) -> Object:
    conditions = [{"type": "Ready", "status": str(ready)}]
    metadata = {
        "name": name,
        "namespace": "a",
        "uid": name,
        "labels": {key.replace("__", "/"): v for key, v in labels.items()},
        "annotations": {"volcano.sh/task-spec": task},
    }
    return {"metadata": metadata, "status": {"phase": phase, "conditions": conditions}}


def pods(count: int) -> list[Object]:
    return [pod(f"p{number}") for number in range(count)]


def moved(plan: MovePlan | Refused) -> object:
    """'cycle', 'rollout', the names of the Pods to evict, or nothing where it is refused."""
    if isinstance(plan, Refused):
        assert plan.reason
        return None
    return [item.name for item in plan.pods] if plan.how is How.EVICT else str(plan.how)


@pytest.mark.parametrize(("kind", "api_version"), TABLES["moved_whole"], ids=lambda value: value.rpartition("/")[2])
def test_gangs_move_as_a_whole(kind: str, api_version: str) -> None:
    assert moved(move(owner(kind, api_version), pods(4), ["p1"])) == "cycle"


@pytest.mark.parametrize(("kind", "api_version"), TABLES["never_moved"].values(), ids=TABLES["never_moved"])
def test_others_never(kind: str, api_version: str) -> None:
    assert moved(move(owner(kind, api_version), pods(1), ["p0"])) is None


def test_what_is_gone_or_ended_is_not_moved() -> None:
    job = owner("JobSet", "jobset.x-k8s.io/v1alpha2")
    assert moved(move(job, pods(1), ["other"])) is None
    assert moved(move(job, [pod("p0", phase="Succeeded")], ["p0"])) is None


def lws_pod(group: str, index: str) -> Object:
    prefix = "leaderworkerset.sigs.k8s.io__"
    labels = {f"{prefix}group-index": group, f"{prefix}worker-index": index}
    return pod(f"lws-{group}-{index}", **labels)


def test_a_leader_stands_for_its_group() -> None:
    lws = owner("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", replicas=2)
    there = [lws_pod(group, index) for group in "01" for index in "012"]
    assert moved(move(lws, there, ["lws-1-2", "lws-1-1"])) == ["lws-1-0"]
    assert moved(move(lws, there, ["lws-1-2", "lws-0-0"])) == ["lws-0-0", "lws-1-0"]
    assert moved(move(lws, there[1:], ["lws-0-2"])) is None
    assert moved(move(lws, [*there, pod("odd")], ["odd"])) is None


def worker(index: int, *, ready: bool = True, role: str = "worker") -> Object:
    prefix = "training.kubeflow.org__"
    return pod(f"{role}-{index}", ready=ready, **{f"{prefix}replica-type": role, f"{prefix}replica-index": str(index)})


@pytest.mark.parametrize(("least", "there", "wanted", "expected"), TABLES["elastic"].values(), ids=TABLES["elastic"])
def test_elastic_workers_above_the_minimum(
    least: int | None, there: int, wanted: Sequence[str], expected: object
) -> None:
    elastic = {} if least is None else {"elasticPolicy": {"minReplicas": least}}
    job = owner("PyTorchJob", "kubeflow.org/v1", **elastic)
    assert moved(move(job, [worker(number) for number in range(there)], wanted)) == expected


@pytest.mark.parametrize(
    ("worker_spec", "run", "expected"), TABLES["elastic_ends"].values(), ids=TABLES["elastic_ends"]
)
def test_an_elastic_worker_is_evicted_where_its_end_is_no_failure_of_the_job(
    worker_spec: Object, run: Object, expected: object
) -> None:
    spec = {"elasticPolicy": {"minReplicas": 2}, "pytorchReplicaSpecs": {"Worker": worker_spec}, "runPolicy": run}
    job = owner("PyTorchJob", "kubeflow.org/v1", **spec)
    assert moved(move(job, [worker(number) for number in range(3)], ["worker-2"])) == expected


def test_an_elastic_master_moves_with_all_and_the_unready_do_not_count() -> None:
    job = owner("PyTorchJob", "kubeflow.org/v1", elasticPolicy={"minReplicas": 1})
    there = [worker(0, role="master"), worker(1), worker(2)]
    assert moved(move(job, there, ["master-0"])) == "cycle"
    assert moved(move(job, there, ["worker-2"])) == ["worker-2"]
    assert moved(move(job, [worker(0), worker(1, ready=False)], ["worker-1"])) == "cycle"


def test_a_ray_cluster_keeps_its_head_and_its_many_host_workers() -> None:
    cluster = owner("RayCluster", "ray.io/v1")
    there = [
        pod("head", **{"ray.io__node-type": "head"}),
        pod("one", **{"ray.io__node-type": "worker"}),
        pod("many", **{"ray.io__node-type": "worker", "ray.io__worker-group-replica-name": "gpu-0"}),
        pod("odd"),
    ]
    assert [moved(move(cluster, there, [name])) for name in ("head", "one", "many", "odd")] == [
        None,
        ["one"],
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("kind", "spec", "ready", "wanted", "expected"),
    TABLES["replicas"].values(),
    ids=TABLES["replicas"]
)  # fmt: skip
def test_replicas(kind: str, spec: Object, ready: Sequence[bool], wanted: Sequence[str], expected: object) -> None:
    there = [pod(f"p{number}", ready=told) for number, told in enumerate(ready)]
    assert moved(move(owner(kind, "apps/v1", **spec), there, wanted)) == expected


def test_somebody_has_to_answer_meanwhile() -> None:
    service = owner("InferenceService", "serving.kserve.io/v1beta1")
    assert moved(move(service, pods(1), ["p0"])) is None
    assert moved(move(service, pods(2), ["p0"])) == ["p0"]
    assert moved(move(service, [pod("p0"), pod("p1", ready=False)], ["p0"])) is None


def test_a_rollout_makes_a_new_generation_of_pods() -> None:
    cluster = MemoryCluster()
    before = cluster.put(owner("Deployment", "apps/v1", replicas=1, template={"spec": {"containers": []}}))
    write(cluster, rollout(before, remediation="move-1", at=NOW))
    after = cluster.get(ref_of(before))
    assert after is not None
    stamped = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "2026-11-21T12:00:00Z"}}}
    assert after["spec"] == {"replicas": 1, "template": {"spec": {"containers": []}, **stamped}}
    assert after["metadata"]["annotations"] == {keys.REMEDIATION: "move-1"}
