"""Whether an owner may be released: who would undo it, by the plan and by the executor."""

import copy
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from frameworks.samples import EXAMPLES, TABLES, recorded
from gpuwatch.act.execute.executor import read_surroundings
from gpuwatch.facts.frameworks.allowed import release_refusal
from gpuwatch.facts.frameworks.fights import Surroundings, kueue_workload, may_release, who_wrote
from gpuwatch.facts.frameworks.objects import Object, Refused, key_of, put, value_at
from gpuwatch.facts.frameworks.release import owned_paths
from gpuwatch.facts.model.cluster import Cluster, OwnerStatus
from gpuwatch.sources.kube.recorded import RecordedCluster
from kube.memory_cluster import MemoryCluster, merged


def object_(kind: str = "Deployment", api_version: str = "apps/v1", **metadata: Any) -> Object:
    meta = {"name": "chat", "namespace": "team-a", "uid": "u-1", **metadata}
    return {"apiVersion": api_version, "kind": kind, "metadata": meta, "spec": {"replicas": 2}}


def fights(object_: Object, surroundings: Surroundings) -> tuple[str, ...]:
    return may_release(object_, surroundings).no


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
            "ownerReferences": [{"uid": uid, "kind": "Job", "controller": True}],
        },
        "status": {"conditions": conditions},
    }


def test_kueue_is_the_only_one_to_talk_to() -> None:
    job = object_("Job", "batch/v1")
    around = beside(workload("old", finished=True), workload(), workload("other", uid="u-2"))
    assert kueue_workload(job, around) == workload()
    assert fights(job, around) == fights(workload(), around) == ()
    stopped = {**workload(), "spec": {"active": False}}
    assert fights(job, beside(stopped)) == ("It is released already, and not by gpuwatch.",)
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
    answer = may_release(object_(), around)
    assert (answer.no, len(answer.unread)) == ((), 1)
    assert "horizontalpodautoscalers" in answer.unread[0]
    assert read_surroundings(blind, object_("Job", "batch/v1")).unread == ()


def test_the_pod_group_of_a_suspended_raycluster_stays_in_the_queue() -> None:
    def group(owner: str) -> Object:
        metadata = {"name": "ray-chat-pg", "namespace": "team-a", "ownerReferences": [{"uid": owner}]}
        return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": metadata}

    cluster = object_("RayCluster", "ray.io/v1")
    (told,) = fights(cluster, beside(group("u-1")))
    assert "PodGroup ray-chat-pg" in told
    assert fights(cluster, beside(group("u-2"))) == ()
    jobs = object_("RayJob", "ray.io/v1")
    assert fights(jobs, beside(group("u-1"))) == fights(jobs, Surroundings())


def argo(owner: Object) -> Object:
    """With all that it has in Git, as the annotation of `kubectl apply` shows it: what a release sets, too."""
    (path, *_) = owned_paths(owner) or ("/spec/none",)
    applied = json.dumps(put({}, path, value_at(owner, path) or 1))
    marks = {"argocd.argoproj.io/tracking-id": "x", "kubectl.kubernetes.io/last-applied-configuration": applied}
    owner["metadata"]["annotations"] = {**(owner["metadata"].get("annotations") or {}), **marks}
    return owner


def flux(owner: Object) -> Object:
    owner["metadata"]["labels"] = {**(owner["metadata"].get("labels") or {}), "helm.toolkit.fluxcd.io/name": "x"}
    return owner


def target(owner: Object) -> Object:
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"]}


def near(owner: Object, made: Object) -> list[Object]:
    made["metadata"]["namespace"] = owner["metadata"]["namespace"]
    return [owner, made]


SCENES: dict[str, Callable[[Object], list[Object]]] = {
    "nothing": lambda owner: [owner],
    "HPA": lambda owner: near(owner, autoscaler(target(owner))),
    "KEDA": lambda owner: near(owner, scaled_object(target(owner))),
    "KEDA paused": lambda owner: near(owner, scaled_object(target(owner), **{"autoscaling.keda.sh/paused": "true"})),
    "Argo CD": lambda owner: [argo(owner)],
    "Flux": lambda owner: [flux(owner)],
    "being deleted": lambda owner: [merged(owner, {"metadata": {"deletionTimestamp": "2026-03-02T12:00:00Z"}})],
    "a version that is not known": lambda owner: [{**owner, "apiVersion": f"{key_of(owner)[0]}/v9"}],
    "Kueue": lambda owner: near(owner, workload(uid=owner["metadata"]["uid"])),
    "Kueue, stopped": lambda owner: near(owner, {**workload(uid=owner["metadata"]["uid"]), "spec": {"active": False}}),
    "Kueue, finished": lambda owner: near(owner, workload(uid=owner["metadata"]["uid"], finished=True)),
    "Kueue's queue without a Workload": lambda owner: [
        merged(owner, {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}}})
    ],
}


CHANGES_NOTHING = {"nothing", "KEDA paused", "Kueue, finished"}


@pytest.mark.parametrize("scene", SCENES)
def test_the_plan_and_the_executor_say_the_same_of_every_owner(scene: str, tmp_path: Path) -> None:
    """Of each owner in all examples, as a list shows it to the plan and as it is read before a step."""
    asked = changed = 0
    for plain in (recorded(example.file) for example in EXAMPLES.values()):
        for top in [each for each in read(plain, tmp_path).workloads if each.status is OwnerStatus.FOUND]:
            (owner,) = (each for each in plain if each["metadata"].get("uid") == top.uid)
            objects = [*(each for each in plain if each is not owner), *SCENES[scene](copy.deepcopy(owner))]
            (now,) = (each for each in objects if each["metadata"].get("uid") == top.uid)
            (planned,) = (each for each in read(objects, tmp_path).workloads if each.uid == top.uid)
            answer = may_release(now, read_surroundings(MemoryCluster(objects), now))
            assert (planned.unreleasable, answer.unread) == (" ".join(answer.no), ())
            assert not answer.no or release_refusal(None, planned)
            asked, changed = asked + 1, changed + (planned.unreleasable != top.unreleasable)
    assert (asked > len(EXAMPLES) / 2, changed > 0) == (True, scene not in CHANGES_NOTHING)


def read(objects: list[Object], folder: Path) -> Cluster:
    (folder / "objects.yaml").write_text(yaml.safe_dump_all(objects))
    return RecordedCluster(folder).read(datetime(2027, 1, 1, tzinfo=UTC))
