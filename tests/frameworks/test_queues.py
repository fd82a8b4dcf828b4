"""What is in a queue is not moved: by the plan's facts, and by the objects as they are just before a write."""

import pytest

from frameworks.samples import TABLES
from gpuwatch.facts.frameworks.allowed import move_refusal
from gpuwatch.facts.frameworks.fights import Surroundings, loses_place
from gpuwatch.facts.frameworks.objects import Object
from gpuwatch.facts.model.cluster import Pod, Workload

KINDS = {
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
    "Job": "batch/v1",
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "PyTorchJob": "kubeflow.org/v1",
    "RayCluster": "ray.io/v1",
    "AppWrapper": "workload.codeflare.dev/v1beta2",
}
# Labels that let a RayCluster's worker and a group's leader go.
FREE = {"ray.io/node-type": "worker", "leaderworkerset.sigs.k8s.io/worker-index": "0"}
FREE_ONES = {"none": "", "Kubernetes'": "default-scheduler", "a profile of its own": "gpu-binpack"}


def pod(kind: str, labels: dict[str, str], annotations: dict[str, str], scheduler: str) -> tuple[Pod, Object]:
    owner = {"apiVersion": KINDS[kind], "kind": kind, "name": "x", "uid": "u", "controller": True}
    told = {"labels": {**FREE, **labels}, "annotations": annotations}
    model = Pod(namespace="ml", name="p", ready=True, scheduler=scheduler, **told)
    metadata = {"name": "p", "namespace": "ml", "uid": "p", "ownerReferences": [owner], **told}
    return model, {"metadata": metadata, "spec": {"schedulerName": scheduler}}


def owner(kind: str, **metadata: object) -> tuple[Workload, Object]:
    model = Workload(
        id=f"{kind}/ml/x",
        kind=kind,
        api_version=KINDS[kind],
        namespace="ml",
        name="x",
        uid="u",
        loses="",
        unreleasable="",
    )
    raw = {
        "apiVersion": KINDS[kind],
        "kind": kind,
        "metadata": {"name": "x", "namespace": "ml", "uid": "u", **metadata},
    }
    return model, raw


@pytest.mark.parametrize("case", TABLES["queued"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_queue_admitted_is_not_moved(kind: str, case: str) -> None:
    name, labels, annotations, scheduler = TABLES["queued"][case]
    planned, raw = pod(kind, labels, annotations, scheduler)
    for told in (
        move_refusal(None, owner(kind)[0], [planned], [planned]),
        loses_place(owner(kind)[1], [raw], Surroundings()),
    ):
        assert told.startswith(f"{name} admits it by a queue's quota.")
        assert told.endswith("Move it by hand while nothing waits in its queue, or let it end where it is.")


@pytest.mark.parametrize("scheduler", FREE_ONES.values(), ids=FREE_ONES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_no_queue_admitted_is_moved(kind: str, scheduler: str) -> None:
    planned, raw = pod(kind, {}, {}, scheduler)
    other = {"metadata": {"name": "w", "ownerReferences": [{"uid": "another"}]}, **WORKLOAD}
    assert move_refusal(None, owner(kind)[0], [planned], [planned]) == ""
    assert loses_place(owner(kind)[1], [raw], Surroundings((other,))) == ""


WORKLOAD = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload"}


@pytest.mark.parametrize("of", ["u", "p"], ids=["the-owner", "one-pod"])
def test_a_queue_by_default_shows_by_its_workload_alone(of: str) -> None:
    """Kueue's LocalQueue `default` needs no label on the Job; a Deployment's Pods have a Workload each."""
    workload: Object = {"metadata": {"name": "w", "ownerReferences": [{"uid": of}]}, **WORKLOAD}
    _, raw = pod("Job", {}, {}, "")
    assert loses_place(owner("Job")[1], [raw], Surroundings((workload,))).startswith("Kueue admits it")
    over = {**workload, "status": {"conditions": [{"type": "Finished", "status": "True"}]}}
    assert loses_place(owner("Job")[1], [raw], Surroundings((over,))) == ""
    # Kueue may name an owner that stands between.
    assert loses_place(owner("JobSet", uid="top")[1], [raw], Surroundings((workload,))).startswith("Kueue admits it")
