"""Who would undo a release."""

import json
from typing import Any

import pytest

from gpuwatch.act.execute.executor import read_surroundings
from gpuwatch.facts.frameworks.fights import Surroundings, fights, kueue_workload, who_wrote
from gpuwatch.facts.frameworks.objects import Object, Refused
from kube.memory_cluster import MemoryCluster

ARGO = {"annotations": {"argocd.argoproj.io/tracking-id": "apps:apps/Deployment:team-a/chat"}}
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


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


@pytest.mark.parametrize(
    ("around", "told"),
    [
        (autoscaler(CHAT), "(1 to 4)"),
        (autoscaler(CHAT, minReplicas=0), "(0 to 4)"),
        (autoscaler({**CHAT, "name": "other"}), ""),
        (autoscaler({**CHAT, "kind": "StatefulSet"}), ""),
        (autoscaler({**CHAT, "apiVersion": "example.org/v1"}), ""),
        (autoscaler({"apiVersion": "apps/v1beta2", "kind": "Deployment", "name": "chat"}), "(1 to 4)"),
        (scaled_object({"name": "chat"}), "ScaledObject keda"),
        (scaled_object({"name": "chat", "kind": "StatefulSet"}), ""),
        (scaled_object({"name": "chat"}, **{"autoscaling.keda.sh/paused": "true"}), ""),
        (scaled_object({"name": "chat"}, **{"autoscaling.keda.sh/paused": "false"}), "ScaledObject keda"),
        (
            scaled_object(
                {"name": "chat"}, **{"autoscaling.keda.sh/paused": "true", "autoscaling.keda.sh/paused-replicas": "2"}
            ),
            "ScaledObject keda",
        ),
    ],
    ids=[
        "hpa", "hpa-zero", "hpa-other-name", "hpa-other-kind", "hpa-other-group", "hpa-old-version", "keda",
        "keda-other-kind", "keda-paused", "keda-not-paused", "keda-paused-at-a-number",
    ],
)  # fmt: skip
def test_autoscalers_of_the_target_are_found(around: Object, told: str) -> None:
    found = fights(object_(), beside(around))
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


def managed(manager: str, fields: Object) -> Object:
    return {"manager": manager, "operation": "Update", "fieldsV1": fields}


REPLICAS = {"f:spec": {"f:replicas": {}}}
IMAGE = {"f:spec": {"f:template": {}}}


@pytest.mark.parametrize(
    ("metadata", "deployer"),
    [
        ({}, ""),
        (ARGO, "Argo CD"),  # the server does not tell whose the fields are
        ({**ARGO, "managedFields": [managed("argocd-controller", REPLICAS)]}, "Argo CD"),
        ({**ARGO, "managedFields": [managed("argocd-controller", IMAGE)]}, ""),
        ({**ARGO, "managedFields": [managed("argocd-controller", IMAGE), managed("gpuwatch", REPLICAS)]}, "Argo CD"),
        ({**ARGO, "managedFields": [managed("argocd-controller", IMAGE), managed("kubectl", REPLICAS)]}, ""),
        ({"managedFields": [managed("kustomize-controller", REPLICAS)]}, "Flux"),
        ({"labels": {"helm.toolkit.fluxcd.io/name": "apps"}}, "Flux"),
        ({"managedFields": [managed("kubectl", REPLICAS)]}, ""),
        ({"labels": {"app.kubernetes.io/instance": "chat"}}, ""),
        ({"annotations": {**ARGO["annotations"], LAST_APPLIED: json.dumps({"spec": {"replicas": 2}})}}, "Argo CD"),
        ({"annotations": {**ARGO["annotations"], LAST_APPLIED: json.dumps({"spec": {}})}}, ""),
        ({"annotations": {**ARGO["annotations"], LAST_APPLIED: "{"}}, "Argo CD"),
    ],
    ids=[
        "nobody", "marked", "its-field", "another-field", "ours-by-now", "somebody-elses", "flux-unmarked",
        "flux-helm", "by-hand", "helm", "applied-with", "applied-without", "applied-unreadable",
    ],
)  # fmt: skip
def test_deployers_count_where_they_may_set_the_field(metadata: Object, deployer: str) -> None:
    found = fights(object_(**metadata), Surroundings())
    assert [item.split(" deploys")[0] for item in found] == ([deployer] if deployer else [])


def at(time: str, manager: str, fields: Object) -> Object:
    return {**managed(manager, fields), "time": f"2026-03-02T{time}:00Z"}


@pytest.mark.parametrize(
    ("entries", "who"),
    [
        ([], ""),
        ([at("12:00", "gpuwatch", REPLICAS)], ""),
        ([at("12:00", "kubectl-edit", REPLICAS)], "kubectl-edit"),
        ([at("12:00", "kubectl-edit", IMAGE)], ""),
        ([at("12:00", "argocd-application-controller", REPLICAS)], "Argo CD"),
        ([at("12:00", "kubectl", REPLICAS), at("12:01", "kustomize-controller", REPLICAS)], "Flux"),
        ([at("12:01", "kubectl", REPLICAS), at("12:00", "kustomize-controller", REPLICAS)], "kubectl"),
    ],
)
def test_who_wrote_a_field_last(entries: list[Object], who: str) -> None:
    assert who_wrote(object_(managedFields=entries), "/spec/replicas") == who


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
