from typing import Any

import pytest

from gpuwatch.facts.frameworks.framework import Kind
from gpuwatch.facts.frameworks.recognise import GangObjects
from gpuwatch.facts.model.cluster import OwnerStatus, Workload
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.kube.decode import Listing
from gpuwatch.sources.kube.owners import Owner, OwnerIndex, TakeOwner, assign_workloads, climb_all, read_owners
from gpuwatch.sources.kube.pods import HeldPod, take_pod
from kube.cluster_json import controlled_by, owner, pod, raw


def held(found: dict[str, Any]) -> HeldPod:
    taken = take_pod(raw(found))
    assert taken is not None
    assert taken.held is not None
    return taken.held


class Owners:
    """Lists of controllers by kind; notes what was asked for, and refuses what it is told to."""

    def __init__(self, *found: dict[str, Any], refused: tuple[str, ...] = ()) -> None:
        self.found = found
        self.refused = refused
        self.asked: list[str] = []

    def __call__(self, kind: Kind, version: str, uids: frozenset[str]) -> Listing[Owner]:
        self.asked.append(kind.kind)
        if kind.kind in self.refused:
            return Listing(failure=Gap(kind=GapKind.REFUSED, what=kind.resource, detail="no"))
        take = TakeOwner(kind, uids)
        taken = [take(raw(item)) for item in self.found if item["kind"] == kind.kind]
        return Listing([item for item in taken if item is not None])


def workloads(owners: Owners, *pods: dict[str, Any]) -> tuple[list[Workload], OwnerIndex]:
    """The Workload of each of these Pods."""
    kept = [held(item) for item in pods]
    index = read_owners(kept, owners)
    tied, found, _ = assign_workloads(climb_all(kept, index), GangObjects())
    by_id = {item.id: item for item in found}
    return [by_id[item.workload] for item in tied], index


def test_the_walk_ends_at_the_top_with_one_list_a_kind() -> None:
    owners = Owners(
        owner("ReplicaSet", "chat-1", meta=controlled_by("Deployment", "chat")),
        owner("ReplicaSet", "other"),
        owner("Deployment", "chat", spec={"replicas": 3}, meta={"labels": {"app": "chat"}}),
    )
    pods = [pod(f"chat-1-{item}", meta=controlled_by("ReplicaSet", "chat-1")) for item in range(3)]
    found, index = workloads(owners, *pods)
    assert owners.asked == ["ReplicaSet", "Deployment"]
    assert {item.id for item in found} == {"Deployment/ml/chat"}
    assert (found[0].status, found[0].replicas, found[0].labels) == (OwnerStatus.FOUND, 3, {"app": "chat"})
    assert (found[0].kind, found[0].api_version, found[0].uid) == ("Deployment", "apps/v1", "uid-ml-chat")
    assert "uid-ml-other" not in index.by_uid  # nobody asked for it


def test_the_reader_judges_what_data_an_owner_would_lose() -> None:
    def lost(kind: str, api_version: str = "apps/v1", **spec: object) -> str | None:
        found, _ = workloads(
            Owners(owner(kind, "x", api_version, spec=spec)), pod(meta=controlled_by(kind, "x", api_version))
        )
        return found[0].loses

    deletes = {"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}}
    assert "whenScaled is Delete" in (lost("StatefulSet", **deletes) or "")
    assert lost("StatefulSet", persistentVolumeClaimRetentionPolicy={"whenScaled": "Retain"}) == ""
    workers = {"size": 2, "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"}}
    leaders = lost("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", leaderWorkerTemplate=workers)
    assert "whenDeleted is Delete" in (leaders or "")
    assert lost("Job", "batch/v1") == ""
    gone, _ = workloads(Owners(), pod(meta=controlled_by("StatefulSet", "x")))
    assert gone[0].loses is None


@pytest.mark.parametrize(
    ("spec", "failed", "left"),
    [
        ({}, None, 6),
        ({"backoffLimit": 3}, 1, 2),
        ({"backoffLimit": 1}, 4, 0),
        ({"backoffLimit": 9, "podReplacementPolicy": "TerminatingOrFailed"}, 0, 9),
        ({"backoffLimit": 9, "podReplacementPolicy": "Failed"}, 0, 0),
        ({"backoffLimit": 9, "podFailurePolicy": {"rules": []}}, 0, 0),
        ({"backoffLimit": 9, "backoffLimitPerIndex": 3}, 0, 0),
    ],
    ids=["default", "failed-once", "used-up", "replaces-at-once", "waits-for-the-end", "policy", "per-index"],
)
def test_the_reader_counts_the_evictions_that_a_job_outlives(spec: object, failed: int | None, left: int) -> None:
    job = owner("Job", "x", "batch/v1", spec=spec)
    job["status"] = {"failed": failed}
    found, _ = workloads(Owners(job), pod(meta=controlled_by("Job", "x", "batch/v1")))
    assert found[0].retries == left


def test_a_pod_without_a_controller_is_bare_even_where_something_owns_it() -> None:
    ref = controlled_by("ConfigMap", "settings", "v1")
    ref["ownerReferences"][0]["controller"] = False
    found, _ = workloads(Owners(), pod("alone"), pod("owned", meta=ref))
    assert [(item.id, item.status) for item in found] == [
        ("Pod/ml/alone", OwnerStatus.BARE),
        ("Pod/ml/owned", OwnerStatus.BARE),
    ]


def test_forbidden_is_not_no_owner() -> None:
    owners = Owners(
        owner("Job", "j", "batch/v1", meta=controlled_by("JobSet", "s", "jobset.x-k8s.io/v1alpha2")),
        refused=("JobSet",),
    )
    found, index = workloads(owners, pod(meta=controlled_by("Job", "j", "batch/v1")))
    assert [(item.id, item.status) for item in found] == [("JobSet/ml/s", OwnerStatus.FORBIDDEN)]
    assert [gap.what for gap in index.gaps] == ["jobsets.jobset.x-k8s.io"]


def test_a_refused_kind_is_asked_for_once() -> None:
    owners = Owners(refused=("Job",))
    workloads(owners, *(pod(f"p{item}", meta=controlled_by("Job", f"j{item}", "batch/v1")) for item in range(4)))
    assert owners.asked == ["Job"]


def test_an_owner_that_is_gone_is_missing() -> None:
    found, index = workloads(Owners(owner("Job", "other", "batch/v1")), pod(meta=controlled_by("Job", "j", "batch/v1")))
    assert [(item.id, item.status) for item in found] == [("Job/ml/j", OwnerStatus.MISSING)]
    assert index.gaps == []


def test_a_namesake_with_another_uid_is_not_the_owner() -> None:
    job = owner("Job", "j", "batch/v1")
    first = pod("old", meta=controlled_by("Job", "j", "batch/v1", uid="uid-of-the-former"))
    second = pod("new", meta=controlled_by("Job", "j", "batch/v1"))
    found, _ = workloads(Owners(job), first, second)
    assert [item.status for item in found] == [OwnerStatus.MISSING, OwnerStatus.FOUND]
    assert found[1].id == "Job/ml/j"
    assert found[0].id != found[1].id


def test_without_uids_owners_are_found_by_name() -> None:
    job = owner("Job", "j", "batch/v1")
    del job["metadata"]["uid"]
    found, _ = workloads(Owners(job), pod(meta=controlled_by("Job", "j", "batch/v1")))
    assert [(item.id, item.status) for item in found] == [("Job/ml/j", OwnerStatus.FOUND)]


def test_namesakes_of_two_api_groups_stay_apart() -> None:
    plain = pod("a", meta=controlled_by("Job", "j", "batch/v1", uid="1"))
    volcano = pod("b", meta=controlled_by("Job", "j", "batch.volcano.sh/v1alpha1", uid="2"))
    found, _ = workloads(Owners(), plain, volcano)
    assert [item.id for item in found] == ["Job/ml/j", "Job.batch.volcano.sh/ml/j"]


@pytest.mark.parametrize("above", [True, False])
def test_an_unknown_controller_is_reported_as_unknown(above: bool) -> None:
    sprocket = controlled_by("Sprocket", "s", "example.com/v1")
    owners = Owners(owner("Deployment", "d", meta=sprocket))
    found, _ = workloads(owners, pod(meta=controlled_by("Deployment", "d") if above else sprocket))
    assert [(item.id, item.status) for item in found] == [("Sprocket/ml/s", OwnerStatus.UNKNOWN_KIND)]
    assert owners.asked == (["Deployment"] if above else [])


def test_an_apps_kind_of_another_group_is_unknown() -> None:
    found, _ = workloads(Owners(), pod(meta=controlled_by("Deployment", "d", "example.com/v1")))
    assert found[0].status is OwnerStatus.UNKNOWN_KIND


def test_static_and_daemon_pods_need_no_list() -> None:
    mirror = {**controlled_by("Node", "gpu-0", "v1"), "annotations": {"kubernetes.io/config.mirror": "x"}}
    owners = Owners()
    found, _ = workloads(owners, pod("static", meta=mirror), pod("agent", meta=controlled_by("DaemonSet", "agent")))
    assert [(item.id, item.status) for item in found] == [
        ("Pod/ml/static", OwnerStatus.STATIC),
        ("DaemonSet/ml/agent", OwnerStatus.DAEMON),
    ]
    assert owners.asked == []


@pytest.mark.parametrize(
    "claim",
    [
        pytest.param({"namespace": "evil"}, id="from another Namespace"),
        pytest.param({"name": "other"}, id="by another name"),
        pytest.param({"kind": "StatefulSet"}, id="by another kind"),
    ],
)
@pytest.mark.parametrize("above", [True, False])
def test_a_claim_by_uid_alone_makes_nobody_the_owner(claim: dict[str, str], above: bool) -> None:
    namespace = claim.get("namespace", "ml")
    false = controlled_by(claim.get("kind", "Deployment"), claim.get("name", "api"), uid="uid-ml-api")
    forged = pod("forged", namespace, meta=false)
    between = owner("ReplicaSet", "between", meta=false)
    between["metadata"].update(namespace=namespace, uid="uid-between")
    if above:
        forged = pod("forged", namespace, meta=controlled_by("ReplicaSet", "between", uid="uid-between"))
    owners = Owners(owner("Deployment", "api"), between, owner("StatefulSet", "db"))
    real = pod("real", meta=controlled_by("Deployment", "api"))
    (theirs, forger), _ = workloads(owners, real, forged)
    assert (theirs.id, theirs.status) == ("Deployment/ml/api", OwnerStatus.FOUND)
    assert (forger.status, forger.namespace) == (OwnerStatus.FOREIGN, namespace)


def test_within_a_namespace_every_pod_that_claims_an_owner_counts_as_the_owners() -> None:
    claimant = pod("made-by-hand", meta=controlled_by("Deployment", "api"))
    found, _ = workloads(Owners(owner("Deployment", "api")), pod(meta=controlled_by("Deployment", "api")), claimant)
    assert {item.id for item in found} == {"Deployment/ml/api"}


def test_a_cluster_scoped_owner_owns_pods_of_any_namespace_but_no_namespaced_object_owns_it() -> None:
    top = owner("Deployment", "top")
    wide = owner("Job", "wide", "batch/v1", meta=controlled_by("Deployment", "top"))
    del wide["metadata"]["namespace"]
    found, _ = workloads(Owners(top, wide), pod(meta=controlled_by("Job", "wide", "batch/v1")))
    assert [(item.id, item.status) for item in found] == [("Deployment/ml/top", OwnerStatus.FOREIGN)]


@pytest.mark.parametrize("length", [1, 2, 3])
def test_owners_that_go_round_in_a_circle_end_as_missing(length: int) -> None:
    names = [f"d{item}" for item in range(length)]
    circle = [
        owner("Deployment", name, meta=controlled_by("Deployment", following))
        for name, following in zip(names, names[1:] + names[:1], strict=True)
    ]
    found, _ = workloads(Owners(*circle), pod(meta=controlled_by("Deployment", "d0")))
    assert [item.status for item in found] == [OwnerStatus.MISSING]


def test_a_leader_that_asks_for_no_gpu_is_looked_up() -> None:
    leader = pod("lead", containers=[], meta=controlled_by("StatefulSet", "leads"))
    owners = Owners(
        owner("StatefulSet", "workers", meta=controlled_by("Pod", "lead", "v1")),
        leader,
        owner("StatefulSet", "leads", spec={"replicas": 1}),
    )
    found, _ = workloads(owners, pod("worker", meta=controlled_by("StatefulSet", "workers")))
    assert owners.asked == ["StatefulSet", "Pod"]
    assert [item.id for item in found] == ["StatefulSet/ml/leads"]


def test_a_driver_pod_without_a_controller_is_bare() -> None:
    driver = pod("driver", containers=[])
    found, _ = workloads(Owners(driver), pod("executor", meta=controlled_by("Pod", "driver", "v1")))
    assert [(item.id, item.status) for item in found] == [("Pod/ml/driver", OwnerStatus.BARE)]


@pytest.mark.parametrize(
    ("kind", "api_version", "spec", "meta", "replicas", "suspended"),
    [
        ("Deployment", "apps/v1", {}, {}, 1, None),
        ("StatefulSet", "apps/v1", {"replicas": 0}, {}, 0, None),
        ("Job", "batch/v1", {"parallelism": 4, "suspend": True}, {}, 4, True),
        ("Job", "batch/v1", {}, {}, 1, False),
        ("CronJob", "batch/v1", {"suspend": True}, {}, None, True),
        ("JobSet", "jobset.x-k8s.io/v1alpha2", {"suspend": True}, {}, None, True),
        ("PyTorchJob", "kubeflow.org/v1", {"runPolicy": {"suspend": True}}, {}, None, True),
        ("PyTorchJob", "kubeflow.org/v1", {"suspend": True}, {}, None, False),
        ("RayCluster", "ray.io/v1", {"suspend": True}, {}, None, True),
        ("RayService", "ray.io/v1", {}, {}, None, None),
        ("InferenceService", "serving.kserve.io/v1beta1", {"predictor": {"minReplicas": 2}}, {}, 2, None),
        ("Notebook", "kubeflow.org/v1", {}, {"annotations": {"kubeflow-resource-stopped": "now"}}, None, True),
        ("Notebook", "kubeflow.org/v1", {}, {}, None, False),
        ("DevWorkspace", "workspace.devfile.io/v1alpha2", {"started": False}, {}, None, True),
        ("DevWorkspace", "workspace.devfile.io/v1alpha2", {}, {}, None, False),
    ],
)
def test_each_kind_tells_its_replicas_and_whether_it_is_suspended(
    kind: str,
    api_version: str,
    spec: dict[str, Any],
    meta: dict[str, Any],
    replicas: int | None,
    suspended: bool | None,
) -> None:
    owners = Owners(owner(kind, "top", api_version, spec=spec, meta=meta))
    found, _ = workloads(owners, pod(meta=controlled_by(kind, "top", api_version)))
    assert (found[0].replicas, found[0].suspended) == (replicas, suspended)
