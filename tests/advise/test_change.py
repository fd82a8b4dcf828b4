"""The change of each kind, applied to an owner as people write it; the built-in kinds by a real API server."""

from dataclasses import replace
from typing import Any

import pytest

from advise.objects import OBJECTS, POD_SPEC, at, merged
from advise.world import A100, NOW, cluster, node, owner, pod
from cluster.api import Api
from cluster.control_plane import ControlPlane
from gpuwatch.account.money import PriceList
from gpuwatch.facts.frameworks import OWNERS, kind_of
from gpuwatch.facts.model.cluster import Cluster, Sharing, Taint
from gpuwatch.facts.model.sizing import Target, TargetKind
from gpuwatch.facts.model.workload_profile import ProfileBook, WorkloadKey
from gpuwatch.size.change import change
from gpuwatch.size.facts import Facts, gather
from gpuwatch.size.policy import AdvicePolicy

NOW_ON = Target(kind=TargetKind.SAME, gpu_model=A100, gpus_per_pod=1, resource="nvidia.com/gpu")
SLICE = Target(
    kind=TargetKind.MIG, gpu_model=A100, gpus_per_pod=1, mig_profile="2g.10gb", resource="nvidia.com/mig-2g.10gb"
)
PRODUCT = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}


def facts(world: Cluster) -> Facts:
    return gather(ProfileBook(until=NOW, step_seconds=60), world, PriceList(()), AdvicePolicy(), NOW, ())


def world_of(kind: str, api_version: str, labels: list[dict[str, str]], **more: Any) -> tuple[WorkloadKey, Cluster]:
    key = WorkloadKey(f"{kind}/team/x", "main", A100)
    pods = [pod(key.workload, f"x-{number}", labels=own) for number, own in enumerate(labels)]
    return key, cluster([node()], [owner(key.workload, api_version, **more)], pods)


def resized(spec: dict[str, Any]) -> None:
    """The Pod spec asks for the slice, on the right Nodes, and is otherwise as it was."""
    sidecar, main = spec["containers"]
    assert sidecar == POD_SPEC["containers"][0]
    assert main["image"] == "train:1"
    assert main["args"] == ["--go"]
    assert main["resources"] == {
        "limits": {"cpu": "8", "nvidia.com/mig-2g.10gb": "1"},
        "requests": {"cpu": "4", "nvidia.com/mig-2g.10gb": "1"},
    }
    assert spec["nodeSelector"] == {"disk": "fast"} | PRODUCT
    assert spec["restartPolicy"] in ("Always", "Never")


@pytest.mark.parametrize("kind", OBJECTS)
def test_the_patch_lands_in_the_right_place_and_nowhere_else(kind):
    api_version, spec, labels, changed, untouched = OBJECTS[kind]
    key, world = world_of(kind, api_version, labels)
    found = change(key, NOW_ON, SLICE, facts(world))
    after = merged({"spec": spec}, found.patch)["spec"]
    for path in changed:
        resized(at(after, path))
    for path in untouched:
        assert at(after, path) == at(spec, path)
    assert (found.api_version, found.kind) == (api_version, kind.split(".")[0])
    assert (found.namespace, found.name) == ("team", "x")


PATCHED = [kind for kind in OWNERS.values() if kind.template]
FROZEN = {kind.kind for kind in PATCHED if kind.template and kind.template.frozen}


@pytest.mark.parametrize("kind", PATCHED, ids=lambda kind: kind.resource)
def test_what_cannot_be_changed_in_place_is_created_again(kind):
    key, world = world_of(kind.kind, kind.api_version, [{}])
    assert ("create it again" in change(key, NOW_ON, SLICE, facts(world)).note) is kind.template.frozen


def test_custom_resources_are_edited_and_built_in_kinds_patched():
    for kind in PATCHED:
        key, world = world_of(kind.kind, kind.api_version, [{}])
        custom = kind.group not in ("", "apps", "batch")
        assert ("custom resource" in change(key, NOW_ON, SLICE, facts(world)).note) is custom


def test_train_job_has_resources_of_its_own():
    key, world = world_of("TrainJob", "trainer.kubeflow.org/v1alpha1", [{}])
    found = change(key, NOW_ON, SLICE, facts(world))
    before = {"spec": {"trainer": {"image": "x", "resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}}}}}
    trainer = merged(before, found.patch)["spec"]["trainer"]
    assert trainer["image"] == "x"
    assert trainer["resourcesPerNode"]["limits"] == {"nvidia.com/mig-2g.10gb": "1"}
    assert "runtimePatches" in found.note


def test_inference_service_has_the_models_resources():
    key, world = world_of("InferenceService", "serving.kserve.io/v1beta1", [{}])
    found = change(key, NOW_ON, SLICE, facts(world))
    model = {"modelFormat": {"name": "onnx"}, "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    predictor = merged({"spec": {"predictor": {"minReplicas": 1, "model": model}}}, found.patch)["spec"]["predictor"]
    assert predictor["model"]["resources"]["limits"] == {"nvidia.com/mig-2g.10gb": "1"}
    assert predictor["model"]["modelFormat"] == {"name": "onnx"}
    assert predictor["nodeSelector"] == PRODUCT


def test_an_appwrapper_is_made_anew_with_the_lines():
    """Its webhook lets nobody change what it wraps, and what it made is not to be changed in its place."""
    key, world = world_of("AppWrapper", "workload.codeflare.dev/v1beta2", [{}])
    found = change(key, NOW_ON, SLICE, facts(world))
    (container,) = found.patch["containers"]
    assert container["resources"]["limits"]["nvidia.com/mig-2g.10gb"] == "1"
    assert "gpuwatch does not know which part of the AppWrapper creates these Pods" in found.note
    assert "create it again" in found.note


@pytest.mark.parametrize(
    ("kind", "api_version"),
    [("Sprocket", "example.com/v1"), ("Deployment", "example.com/v1"), ("Notebook", "example.com/v1")],
)
def test_an_unknown_kind_gets_the_lines_and_a_note(kind, api_version):
    key, world = world_of(kind, api_version, [{}])
    found = change(key, NOW_ON, SLICE, facts(world))
    assert set(found.patch) == {"containers", "nodeSelector"}
    assert "does not know where a" in found.note


@pytest.mark.parametrize("kind", ["JobSet", "PyTorchJob", "RayCluster", "Job.batch.volcano.sh"])
def test_without_alive_pods_the_group_is_not_guessed(kind):
    key = WorkloadKey(f"{kind}/team/x", "main", A100)
    world = cluster([node()], [owner(key.workload, OBJECTS[kind][0])], [])
    found = change(key, NOW_ON, SLICE, facts(world))
    assert "spec" not in found.patch
    assert "gpuwatch does not know which part" in found.note


def test_an_owner_that_is_gone_is_known_by_its_id():
    key = WorkloadKey("CronJob/team/nightly", "main", A100)
    found = change(key, NOW_ON, SLICE, facts(cluster([node()], [], [])))
    assert (found.api_version, found.kind, found.namespace, found.name) == ("batch/v1", "CronJob", "team", "nightly")
    assert "jobTemplate" in found.patch["spec"]
    assert "the patch assumes batch/v1 CronJob" in found.note


def test_volcanos_jobs_are_not_the_batch_ones():
    assert kind_of("Job/team/x") is OWNERS["batch", "Job"]
    assert kind_of("Job.batch.volcano.sh/team/x") is OWNERS["batch.volcano.sh", "Job"]


def test_a_claim_is_changed_in_its_template():
    key = WorkloadKey("Deployment/team/x", "main", A100)
    world = cluster([node()], [owner(key.workload, "apps/v1")], [pod(key.workload, claims=("gpu-x",), accelerators={})])
    found = change(key, NOW_ON, SLICE, facts(world))
    assert found.patch == {}
    assert "ResourceClaimTemplate" in found.note
    assert "'2g.10gb'" in found.note


def selector(found) -> dict[str, str]:
    return dict(found.patch["spec"]["template"]["spec"].get("nodeSelector", {}))


def deployment(nodes, target, **more):
    key = WorkloadKey("Deployment/team/x", "main", A100)
    world = cluster(nodes, [owner(key.workload, "apps/v1", **more)], [pod(key.workload)])
    return change(key, NOW_ON, target, facts(world))


def limits(found) -> dict[str, str | None]:
    return found.patch["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]


def test_strategy_single_is_chosen_by_the_product_label():
    nodes = [node(mig_strategy="single")]
    found = deployment(nodes, replace(SLICE, resource="nvidia.com/gpu"))
    assert limits(found) == {"nvidia.com/gpu": "1"}
    assert selector(found) == {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-2g.10gb"}


def test_slices_that_are_there_need_nothing_first():
    ready = deployment([node(mig_layout={"2g.10gb": 3})], SLICE)
    assert ready.prerequisites == ()
    cut_otherwise = deployment([node(mig_layout={"1g.5gb": 7})], SLICE)
    assert [("mig.config=all-2g.10gb" in text) for text in cut_otherwise.prerequisites] == [True]
    off = deployment([node(mig_strategy="none")], SLICE)
    assert any("Enabling MIG resets the GPU" in text for text in off.prerequisites)


def test_sharing_names_the_device_plugins_lines_and_the_partners():
    partner = WorkloadKey("Notebook/team/other", "main", A100)
    target = replace(
        NOW_ON, kind=TargetKind.SHARED, sharing=Sharing.MPS, partners=(partner,), resource="nvidia.com/gpu.shared"
    )
    found = deployment([node()], target)
    assert limits(found) == {"nvidia.com/gpu": None, "nvidia.com/gpu.shared": "1"}
    assert selector(found) == {"nvidia.com/gpu.sharing-strategy": "mps"}
    assert "sharing.mps" in found.prerequisites[0]
    assert "replicas: 2" in found.prerequisites[0]
    assert "Notebook/team/other" in found.prerequisites[1]
    sharer = node(sharing=Sharing.MPS, replicas=4, labels={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-SHARED"})
    there = deployment([sharer], target)
    assert selector(there)["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-SHARED"
    assert len(there.prerequisites) == 1


def test_another_model_is_chosen_as_its_nodes_are_labelled():
    l4 = Target(kind=TargetKind.MODEL, gpu_model="L4", gpus_per_pod=2, resource="nvidia.com/gpu", instance_type="l4-2")
    taints = (Taint("pool", "l4", "NoSchedule"), Taint("nvidia.com/gpu", "", "NoSchedule"))
    found = deployment([node(), node("l4-0", "NVIDIA-L4", taints=taints)], l4)
    assert limits(found) == {"nvidia.com/gpu": "2"}
    assert selector(found) == {"nvidia.com/gpu.product": "NVIDIA-L4"}
    assert found.prerequisites == ("A toleration of the taint pool=l4:NoSchedule.",)
    new = deployment([node()], l4)
    assert selector(new) == {"node.kubernetes.io/instance-type": "l4-2"}
    assert new.prerequisites == ("A Node pool of l4-2 in this region.",)


def test_another_vendor_has_another_resource():
    mi300 = Target(kind=TargetKind.MODEL, gpu_model="MI300X", gpus_per_pod=1, resource="amd.com/gpu")
    labels = {"nvidia.com/gpu.product": "", "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}
    found = deployment([node(), node("amd-0", "AMD_Instinct_MI300X_OAM", labels=labels)], mi300)
    assert limits(found) == {"nvidia.com/gpu": None, "amd.com/gpu": "1"}
    assert selector(found) == {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}


def test_fewer_gpus_change_the_count_alone():
    found = deployment([node()], replace(NOW_ON, kind=TargetKind.FEWER, gpus_per_pod=2))
    assert limits(found) == {"nvidia.com/gpu": "2"}
    assert selector(found) == {}
    assert found.prerequisites == ()


def test_a_queue_needs_quota():
    assert "Queue research needs quota for nvidia.com/mig-2g.10gb" in deployment([node()], SLICE, queue="research").note


# --- a real API server --------------------------------------------------------------------------------------------

STRATEGIC = "application/strategic-merge-patch+json"


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Api:
    found = Api(control_plane.administrator)
    found.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "sizing"}})
    return found


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "CronJob", "Job"])
def test_a_real_server_takes_the_patch_or_says_that_it_cannot_be_changed(api: Api, kind: str):
    api_version, spec, labels, changed, _ = OBJECTS[kind]
    key, world = world_of(kind, api_version, labels)
    patch = change(key, NOW_ON, SLICE, facts(world)).patch
    body = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x", "namespace": "sizing"}, "spec": spec}
    api.create(body)
    path = f"{api.resource(api_version, kind).path('sizing')}/x"
    answer = api.answer("PATCH", path, patch, content_type=STRATEGIC)
    if kind in FROZEN:
        assert answer.status_code == 422
        assert "field is immutable" in answer.text
        return
    assert answer.status_code == 200, answer.text
    resized_by_server = at(answer.json()["spec"], changed[0])
    main = next(item for item in resized_by_server["containers"] if item["name"] == "main")
    assert main["resources"] == {
        "limits": {"cpu": "8", "nvidia.com/mig-2g.10gb": "1"},
        "requests": {"cpu": "4", "nvidia.com/mig-2g.10gb": "1"},
    }
    assert main["image"] == "train:1"
    assert len(resized_by_server["containers"]) == 2
    assert resized_by_server["nodeSelector"] == {"disk": "fast"} | PRODUCT
