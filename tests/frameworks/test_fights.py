"""Who would undo a release."""

from typing import Any

import pytest

from frameworks.samples import TABLES
from gpuwatch.act.execute.executor import read_surroundings
from gpuwatch.facts.frameworks.fights import Surroundings, fights, kueue_workload, who_wrote
from gpuwatch.facts.frameworks.objects import Object, Refused
from kube.memory_cluster import MemoryCluster


def object_(kind: str = "Deployment", api_version: str = "apps/v1", **metadata: Any) -> Object:
    meta = {"name": "chat", "namespace": "team-a", "uid": "u-1", **metadata}
    return {"apiVersion": api_version, "kind": kind, "metadata": meta, "spec": {"replicas": 2}}


def beside(*objects: Object) -> Surroundings:
    return Surroundings(objects)


def autoscaler(target: Object, **spec: Any) -> Object:
    metadata = {"name": "scaler", "namespace": "team-a"}
    spec = {"scaleTargetRef": target, "maxReplicas": 4, **spec}
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata, "spec": spec}


def scaled_object(target: Object, **annotations: str) -> Object:
    metadata = {"name": "keda", "namespace": "team-a", "annotations": annotations}
    spec = {"scaleTargetRef": target}
    return {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": metadata, "spec": spec}


CHAT = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}


MADE = {"HorizontalPodAutoscaler": autoscaler, "ScaledObject": scaled_object}


@pytest.mark.parametrize(("kind", "target", "more", "told"), TABLES["autoscalers"].values(), ids=TABLES["autoscalers"])
def test_autoscalers_of_the_target_are_found(kind: str, target: Object, more: dict[str, Any], told: str) -> None:
    found = fights(object_(), beside(MADE[kind](target, **more)))
    assert [told in item for item in found] == ([True] if told else [])


def test_only_what_can_be_scaled_has_autoscalers() -> None:
    job = object_("Job", "batch/v1")
    assert fights(job, beside(autoscaler({"apiVersion": "batch/v1", "kind": "Job", "name": "chat"}))) == ()


@pytest.mark.parametrize(
    ("owner", "held"),
    [
        ({"kind": "TrainJob", "name": "t", "controller": True}, True),
        ({"apiVersion": "batch/v1", "kind": "CronJob", "name": "t", "controller": True}, False),
        ({"kind": "Application", "name": "t"}, False),
    ],
    ids=["controller", "cronjob", "not-a-controller"],
)
def test_a_controller_would_set_it_back(owner: Object, held: bool) -> None:
    found = fights(object_("JobSet", "jobset.x-k8s.io/v1alpha2", ownerReferences=[owner]), Surroundings())
    assert [item.startswith("TrainJob t controls it") for item in found] == ([True] if held else [])


@pytest.mark.parametrize(("metadata", "deployer"), TABLES["deployers"].values(), ids=TABLES["deployers"])
def test_deployers_count_where_they_may_set_the_field(metadata: Object, deployer: str) -> None:
    found = fights(object_(**metadata), Surroundings())
    assert [item.split(" deploys")[0] for item in found] == ([deployer] if deployer else [])


@pytest.mark.parametrize(("entries", "who"), TABLES["last_writers"])
def test_who_wrote_a_field_last(entries: list[tuple[str, str, Object]], who: str) -> None:
    managed = [
        {"manager": manager, "operation": "Update", "fieldsV1": fields, "time": f"2026-03-02T{time}:00Z"}
        for time, manager, fields in entries
    ]
    assert who_wrote(object_(managedFields=managed), "/spec/replicas") == who


def workload(name: str = "job-chat", *, finished: bool = False, uid: str = "u-1") -> Object:
    conditions = [{"type": "Finished", "status": "True"}] if finished else []
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": name,
            "namespace": "team-a",
            "uid": name,
            "ownerReferences": [{"uid": uid, "kind": "Job"}],
        },
        "status": {"conditions": conditions},
    }


def test_kueue_is_the_only_one_to_talk_to() -> None:
    job = object_("Job", "batch/v1")
    around = beside(workload("old", finished=True), workload(), workload("other", uid="u-2"))
    assert kueue_workload(job, around) == workload()
    assert fights(job, around) == ("Kueue manages it: act on its Workload job-chat.",)
    assert fights(workload(), around) == ()
    assert kueue_workload(workload(), Surroundings()) == workload()
    assert kueue_workload(job, beside(workload("other", uid="u-2"), workload("old", finished=True))) is None


def test_more_than_one_workload_or_none_of_a_queue_is_refused() -> None:
    job = object_("Job", "batch/v1")
    several = kueue_workload(job, beside(workload("a"), workload("b")))
    assert isinstance(several, Refused)
    assert "(a, b)" in several.reason
    queued = object_("Job", "batch/v1", labels={"kueue.x-k8s.io/queue-name": "gpus"})
    assert isinstance(kueue_workload(queued, Surroundings()), Refused)
    assert ["queue gpus" in item for item in fights(queued, Surroundings())] == [True]


def test_surroundings_are_of_the_namespace_and_what_is_unread_is_said() -> None:
    elsewhere = autoscaler(CHAT)
    elsewhere["metadata"]["namespace"] = "team-b"
    cluster = MemoryCluster([autoscaler(CHAT), elsewhere, workload()])
    around = read_surroundings(cluster, object_())
    assert [item["metadata"]["namespace"] for item in around.objects] == ["team-a", "team-a"]
    assert around.unread == ()
    blind = cluster.writer(may=lambda _, resource: resource != "horizontalpodautoscalers.autoscaling")
    around = read_surroundings(blind, object_())
    assert len(around.unread) == 1
    assert "horizontalpodautoscalers" in fights(object_(), around)[0]
    assert read_surroundings(blind, object_("Job", "batch/v1")).unread == ()


def test_the_pod_group_of_a_suspended_raycluster_stays_in_the_queue() -> None:
    def group(owner: str) -> Object:
        metadata = {"name": "ray-chat-pg", "namespace": "team-a", "ownerReferences": [{"uid": owner}]}
        return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": metadata}

    cluster = object_("RayCluster", "ray.io/v1")
    (told,) = fights(cluster, beside(group("u-1")))
    assert "PodGroup ray-chat-pg" in told
    assert fights(cluster, beside(group("u-2"))) == ()
    assert fights(object_("RayJob", "ray.io/v1"), beside(group("u-1"))) == ()
