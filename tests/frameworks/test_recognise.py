import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from frameworks.samples import EXAMPLES, TABLES, recorded
from gpuwatch.facts.frameworks import FRAMEWORKS, OWNERS, kueue, schedulers, volcano
from gpuwatch.facts.frameworks.apps import StatefulSetSpec
from gpuwatch.facts.frameworks.batch_job import JobSpec
from gpuwatch.facts.frameworks.jobset import JobSetSpec
from gpuwatch.facts.frameworks.owner import Owner, OwnerSpec
from gpuwatch.facts.frameworks.recognise import GangObjects, Member, group_kinds, recognise
from gpuwatch.facts.model.cluster import Cluster, OwnerStatus
from gpuwatch.sources.kube.kinds import LISTED_OWNERS
from gpuwatch.sources.kube.owners import TakeOwner
from gpuwatch.sources.kube.recorded import RecordedCluster

NOW = datetime(2026, 11, 21, tzinfo=UTC)
COSCHEDULING = schedulers.COSCHEDULING.groups.kind


def cluster(file: str) -> Cluster:
    return RecordedCluster(EXAMPLES[file].file).read(NOW)


def test_every_way_to_a_gang_has_an_example() -> None:
    shown = {gang.partition("/")[0].replace("-", " ") for example in EXAMPLES.values() for gang in example.gangs}
    assert {item.name for item in FRAMEWORKS if item.gang or item.groups or item.by_convention} <= shown


@pytest.mark.parametrize("file", EXAMPLES)
def test_each_framework_is_recognised_by_its_own_example(file: str) -> None:
    found = cluster(file)
    gangs = {gang.id: (gang.workload, len(gang.pods), gang.min_available, gang.recognised_by) for gang in found.gangs}
    assert gangs == EXAMPLES[file].gangs
    assert {pod.name for pod in found.pods if not pod.gang} == EXAMPLES[file].alone
    for gang in found.gangs:
        assert {pod.ref for pod in found.pods if pod.gang == gang.id} == set(gang.pods)


def test_workloads_of_the_examples() -> None:
    found = {item.id: item for file in EXAMPLES for item in cluster(file).workloads}
    assert found["Deployment/ml/chat"].annotations == {"gpuwatch.dev/opt-out": "true"}
    assert found["InferenceService/ml/rank"].replicas == 3
    assert found["TFJob/ml/wide"].suspended is True
    assert found["TFJob/ml/wide"].queue == "research"
    assert found["Job/ml/simulate"].queue == "batch"
    assert found["Job/ml/admitted"].queue == "team-queue"
    assert found["Pod/ml/duo-0"].queue == "team-a"
    assert found["Notebook/ml/lab"].suspended is True
    assert found["CronJob/ml/nightly"].status is OwnerStatus.FOUND
    statuses = {name: found[name].status for name in ("Pod/ml/bare", "DaemonSet/ml/agent", "Sprocket/ml/foreign")}
    assert list(statuses.values()) == [OwnerStatus.BARE, OwnerStatus.DAEMON, OwnerStatus.UNKNOWN_KIND]
    assert found["Job/ml/gone"].status is OwnerStatus.MISSING


def member(**more: object) -> Member:
    return Member("ml", "p", **more)  # type: ignore[arg-type]


def controller(group: str, kind: str, name: str = "top", spec: OwnerSpec | None = None, **more: object) -> Owner:
    known = {**OWNERS, kueue.WORKLOAD.key: kueue.WORKLOAD}.get((group, kind))
    read = spec or (known.spec() if known else OwnerSpec())
    return Owner(group, kind, "ml", name, f"uid-{name}", spec=read, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("labels", "gang"), TABLES["labels"])
def test_labels_tell_only_where_the_owners_do_not_reach_the_top(labels: dict[str, str], gang: str) -> None:
    for status in (OwnerStatus.BARE, OwnerStatus.FORBIDDEN, OwnerStatus.MISSING, OwnerStatus.UNKNOWN_KIND):
        found = recognise(member(labels=labels, status=status), GangObjects())
        assert found.id == gang
    deployment = controller("apps", "Deployment")
    assert recognise(member(labels=labels, chain=(deployment,)), GangObjects()) is None


@pytest.mark.parametrize(("needed", "gang"), [(1, None), (2, "Coscheduling/ml/g"), (None, "Coscheduling/ml/g")])
def test_a_group_that_needs_one_pod_is_no_gang_and_an_unread_one_is(needed: int | None, gang: str | None) -> None:
    group = controller("scheduling.x-k8s.io", "PodGroup", "g", OwnerSpec(min_member=needed))
    known = {} if needed is None else {(COSCHEDULING.key, "ml", "g"): group}
    found = recognise(member(labels={"scheduling.x-k8s.io/pod-group": "g"}), GangObjects(by_name=known))
    assert (found.id if found else None) == gang
    if found is not None:
        assert found.min_available == needed


def test_kueue_comes_before_the_jobs_own_framework() -> None:
    jobset = controller("jobset.x-k8s.io", "JobSet", labels={"kueue.x-k8s.io/queue-name": "q"})
    found = recognise(member(chain=(jobset,)), GangObjects())
    assert (found.framework, found.id) == ("Kueue", "Kueue/ml/top")


def test_kueue_workloads_are_found_by_annotation_or_by_the_uid_of_the_pod() -> None:
    workload = controller("kueue.x-k8s.io", "Workload", "w")
    by_name = GangObjects(by_name={(kueue.WORKLOAD.key, "ml", "w"): workload})
    by_uid = GangObjects(by_job={("ml", "uid-p"): workload})
    named = recognise(member(annotations={"kueue.x-k8s.io/workload": "w"}), by_name)
    admitted = recognise(member(uid="uid-p"), by_uid)
    assert named.id == admitted.id == "Kueue/ml/w"
    assert recognise(member(uid="uid-other"), by_uid) is None
    elsewhere = GangObjects(by_job={("evil", "uid-p"): workload})
    assert recognise(member(uid="uid-p"), elsewhere) is None


def test_the_topmost_framework_wins() -> None:
    chain = (controller("batch", "Job", "j"), controller("jobset.x-k8s.io", "JobSet", "s"))
    outer = controller("trainer.kubeflow.org", "TrainJob", "t")
    inner, whole = (
        recognise(member(chain=chain), GangObjects()),
        recognise(member(chain=(*chain, outer)), GangObjects()),
    )
    assert (inner.framework, whole.framework) == ("JobSet", "Kubeflow Trainer")


@pytest.mark.parametrize(
    ("policy", "elastic", "needed"),
    [(None, None, None), (4, None, 4), (None, 2, 2), (4, 2, 4), (2, 4, 4)],
)
def test_an_elastic_job_needs_the_larger_of_both_minima(policy: int | None, elastic: int | None, needed: int) -> None:
    spec: dict[str, object] = {"elasticPolicy": {"minReplicas": elastic} if elastic else None}
    spec["runPolicy"] = {"schedulingPolicy": {"minAvailable": policy}} if policy else None
    assert minimum_of("kubeflow.org/v1/PyTorchJob", spec) == needed


def test_a_group_of_one_that_a_scheduler_made_for_a_child_does_not_make_the_gang_divisible() -> None:
    jobset = controller("jobset.x-k8s.io", "JobSet", "s")
    group = controller("scheduling.volcano.sh", "PodGroup", "podgroup-1", OwnerSpec(min_member=1))
    objects = GangObjects(by_name={(volcano.POD_GROUP.key, "ml", "podgroup-1"): group})
    found = recognise(member(annotations={"scheduling.k8s.io/group-name": "podgroup-1"}, chain=(jobset,)), objects)
    assert (found.framework, found.min_available) == ("JobSet", None)


@pytest.mark.parametrize(
    ("group", "kind", "spec", "replicas", "is_gang"),
    [
        ("batch", "Job", JobSpec(completion_mode="Indexed"), 2, True),
        ("batch", "Job", JobSpec(completion_mode="Indexed"), 1, False),
        ("batch", "Job", JobSpec(completion_mode="NonIndexed"), 2, False),
        ("apps", "StatefulSet", StatefulSetSpec(pod_management_policy="Parallel"), 2, True),
        ("apps", "StatefulSet", StatefulSetSpec(pod_management_policy="Parallel"), 1, False),
        ("apps", "StatefulSet", StatefulSetSpec(), 2, False),
        ("apps", "Deployment", OwnerSpec(), 2, False),
    ],
)
def test_gangs_by_convention(group: str, kind: str, spec: OwnerSpec, replicas: int, is_gang: bool) -> None:
    chain = (controller(group, kind, spec=spec, replicas=replicas),)
    assert (recognise(member(chain=chain), GangObjects()) is not None) is is_gang


def minimum_of(kind: str, spec: dict[str, object], **more: object) -> int | None:
    """As it is read from the object that the API server gives."""
    version, _, name = kind.rpartition("/")
    known = {item.kind: item for item in LISTED_OWNERS.values() if item.group == version.partition("/")[0]}[name]
    metadata = {"name": "top", "namespace": "ml", "uid": "uid-top"}
    text = json.dumps({"apiVersion": version, "kind": name, "metadata": metadata, "spec": spec})
    owner = TakeOwner(known)(msgspec.Raw(text.encode()))
    return recognise(member(chain=(owner,), **more), GangObjects()).min_available


def of_jobs(*jobs: dict[str, object], **spec: object) -> int | None:
    return minimum_of("jobset.x-k8s.io/v1alpha2/JobSet", {**spec, "replicatedJobs": list(jobs)})


def test_a_job_set_needs_the_pods_of_all_its_jobs() -> None:
    leader = {"name": "leader", "template": {"spec": {}}}
    workers = {"name": "workers", "replicas": 2, "template": {"spec": {"parallelism": 4, "completions": 3}}}
    assert of_jobs(leader, workers) == 1 + 2 * 3
    assert of_jobs({"name": "leader"}, workers) is None
    # What is made after others is not meant to be there yet.
    assert of_jobs(leader, {**workers, "dependsOn": [{"name": "leader", "status": "Ready"}]}) is None
    assert of_jobs(leader, workers, startupPolicy={"startupPolicyOrder": "InOrder"}) is None
    assert of_jobs(leader, workers, startupPolicy={"startupPolicyOrder": "AnyOrder"}) == 7
    indexed = {"completionMode": "Indexed", "parallelism": 8}
    assert minimum_of("batch/v1/Job", indexed) == 8
    assert minimum_of("batch/v1/Job", {**indexed, "completions": 6}) == 6


@pytest.mark.parametrize(
    ("asked", "by_kai", "needed"), [("2", True, 2), ("2", False, 7), ("all", True, 7), ("", True, 7)]
)
def test_kais_annotation_says_how_many_a_job_set_wants_at_once(asked: str, by_kai: bool, needed: int) -> None:
    pods = {"name": "workers", "replicas": 7, "template": {"spec": {}}}
    spec = msgspec.json.decode(json.dumps({"replicatedJobs": [pods]}), type=JobSetSpec)
    marks = {"kai.scheduler/batch-min-member": asked} if asked else {}
    owner = controller("jobset.x-k8s.io", "JobSet", spec=spec, annotations=marks)
    placed = {"annotations": {"pod-group-name": "pg"}} if by_kai else {}
    found = recognise(member(chain=(owner,), **placed), GangObjects())
    assert found.min_available == needed


def test_workers_that_wait_for_their_leader_are_not_needed_yet() -> None:
    size = {"annotations": {"leaderworkerset.sigs.k8s.io/size": "4"}}
    group = {"labels": {"leaderworkerset.sigs.k8s.io/group-index": "0"}}
    kind = "leaderworkerset.x-k8s.io/v1/LeaderWorkerSet"
    assert minimum_of(kind, {"startupPolicy": "LeaderCreated"}, **size, **group) == 4
    assert minimum_of(kind, {"startupPolicy": "LeaderReady"}, **size, **group) is None


@pytest.mark.parametrize(("file", "kind", "conditions", "said"), TABLES["unscheduled"])
def test_what_the_gangs_own_object_says(
    tmp_path: Path, file: str, kind: str, conditions: list[dict[str, str]], said: str
) -> None:
    objects = recorded(EXAMPLES[file].file)
    items = [item for item in objects if item["kind"] == kind][:1]
    if not items:
        group = {"name": "simulate-1", "namespace": "ml"}
        items = [{"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": kind, "metadata": group}]
        objects += items
    items[0]["status"] = {"conditions": conditions}
    (tmp_path / "all.json").write_text(json.dumps(objects))
    gangs = RecordedCluster(tmp_path).read(NOW).gangs
    assert [gang.unscheduled for gang in gangs if gang.unscheduled] == [said] * bool(said)


@pytest.mark.parametrize(("value", "whole"), [("true", True), ("", True), ("false", False)])
def test_a_ray_cluster_is_one_gang_only_where_it_says_so(value: str, whole: bool) -> None:
    ray = controller("ray.io", "RayCluster", labels={"ray.io/gang-scheduling-enabled": value})
    found = recognise(member(chain=(ray,)), GangObjects())
    assert (found.id if found else None) == ("RayCluster/ml/top" if whole else None)


@pytest.mark.parametrize(
    ("scaled", "needed"),
    [
        (None, 1 + 4 + 2 * 2),  # the head, and what the cluster starts with
        (False, 1 + 4 + 2 * 2),
        (True, 1 + 1 + 0),  # what the autoscaler keeps
    ],
)
def test_a_ray_job_begins_with_the_workers_of_its_cluster(scaled: bool | None, needed: int) -> None:
    groups = [{"replicas": 4, "minReplicas": 1}, {"replicas": 2, "numOfHosts": 2}, {}]
    cluster = {"enableInTreeAutoscaling": scaled, "workerGroupSpecs": groups}
    assert minimum_of("ray.io/v1/RayJob", {"rayClusterSpec": cluster}) == needed


def test_only_the_groups_that_pods_name_are_listed() -> None:
    assert group_kinds([member()]) == ()
    named = [
        member(labels={"scheduling.x-k8s.io/pod-group": "g"}),
        member(labels={"scheduling.x-k8s.io/pod-group": "h"}),
        member(scheduling_group="n"),
    ]
    assert group_kinds(named) == (COSCHEDULING, schedulers.NATIVE_GROUP)


@pytest.mark.parametrize(("own", "counts"), [(0, 1000), (2000, 2000)])
def test_a_pod_counts_with_the_priority_of_its_pod_group(own: int, counts: int, tmp_path: Path) -> None:
    text = EXAMPLES["native.yaml"].file.read_text()
    text = text.replace("{minCount: 2}", "{minCount: 2}\n  priority: 1000", 1)
    (tmp_path / "native.yaml").write_text(text.replace("spec:\n  nodeName", f"spec:\n  priority: {own}\n  nodeName", 1))
    found = RecordedCluster(tmp_path).read(NOW)
    assert [pod.priority for pod in found.pods] == [counts, 1000, 1000, 0]


def test_a_pod_that_ended_is_no_member(tmp_path: Path) -> None:
    text = EXAMPLES["jobset.yaml"].file.read_text()
    (tmp_path / "jobset.yaml").write_text(text.replace("phase: Running", "phase: Succeeded", 1))
    before, after = cluster("jobset.yaml"), RecordedCluster(tmp_path).read(NOW)
    assert len(before.gangs[0].pods) == 2
    assert after.gangs[0].pods == ("ml/pretrain-workers-1-0",)
    assert [pod.gang for pod in after.pods] == ["", "JobSet/ml/pretrain"]
    assert {pod.workload for pod in after.pods} == {"JobSet/ml/pretrain"}
