from datetime import UTC, datetime
from typing import Any

import pytest

from gpuwatch.facts.model.cluster import HeldDevice, Pod
from gpuwatch.sources.kube.pods import ExporterPod, TakenPod, exporter_nodes, take_pod
from kube.cluster_json import container, pod, raw


def taken(found: dict[str, Any]) -> TakenPod | None:
    return take_pod(raw(found))


def held(found: dict[str, Any]) -> Pod:
    result = taken(found)
    assert result is not None
    assert result.held is not None
    return result.held.pod


def gpus(count: int | str, **more: str) -> dict[str, dict[str, str]]:
    return {"limits": {"nvidia.com/gpu": str(count), **more}}


def test_a_pod_without_accelerators_is_kept_apart_until_it_has_ended() -> None:
    for containers in ([container(requests={"cpu": "1"})], [], [container(requests={"nvidia.com/gpumem": "1000"})]):
        found = taken(pod(containers=containers))
        assert found is not None
        assert found.held is None
        waiting = taken(pod(containers=containers, nodeName=""))
        assert waiting is not None
        assert waiting.other is not None
        assert waiting.other.node == ""
        assert taken(pod(containers=containers, status={"phase": "Failed"})) is None, "nothing of it is in use"


def test_what_the_scheduler_says_of_a_pod_that_it_did_not_place() -> None:
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available."}
    pending = {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}, said]}
    assert held(pod(nodeName="", status=pending)).unscheduled == "Unschedulable: 0/1 nodes are available."
    assert held(pod(status=pending)).unscheduled == ""  # it has a Node by now
    assert held(pod(nodeName="", status={"phase": "Pending"})).unscheduled == ""  # nobody has looked at it
    bare = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}
    assert held(pod(nodeName="", status=bare)).unscheduled == "SchedulingGated: "


def test_the_devices_of_a_pod_are_those_that_its_kubelet_names() -> None:
    told = [{"resourceID": "GPU-1", "health": "Healthy"}, {"resourceID": "GPU-2::0"}]
    status = {"containerStatuses": [{"allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": told}]}]}
    ask = [container(**gpus(2))]
    assert held(pod(containers=ask, status={"phase": "Pending", **status})).devices == (
        HeldDevice("GPU-1", "Healthy"),
        HeldDevice("GPU-2::0", ""),
    )
    assert held(pod(containers=ask, status={"phase": "Failed", **status})).devices == (), "it has given them back"


_SET = {"f:spec": {"f:containers": {'k:{"name":"main"}': {".": {}}}, "f:schedulerName": {}}}
_KUBELET = {"manager": "kubelet", "subresource": "status", "fieldsV1": {"f:status": {"f:phase": {}, "f:reason": {}}}}
_REFUSED = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "startTime": "2026-11-24T04:48:57Z"}


def refused(*, spec: dict[str, Any] | None = None, managed: bool = True, **status: Any) -> Pod:
    """A Pod that asks for a GPU, as a real kubelet 1.36 refuses it. spec: fields that its client set besides."""
    found = pod(containers=[container(**gpus(1))], status={**_REFUSED, **status})
    client = {"manager": "kubectl", "fieldsV1": {"f:spec": {**_SET["f:spec"], **(spec or {})}}}
    found["metadata"]["managedFields"] = [client, _KUBELET] if managed else None
    return held(found)


def test_a_pod_that_its_kubelet_refused() -> None:
    found = refused()
    assert (found.refused, found.scheduled) == ("UnexpectedAdmissionError", True)
    assert found.started == datetime(2026, 11, 24, 4, 48, 57, tzinfo=UTC), "the time of the refusal"
    restarted = {"state": {"terminated": {"reason": "ContainerStatusUnknown", "startedAt": None}}}
    assert refused(containerStatuses=[restarted]).refused, "what a later kubelet says of it"
    assert refused(reason="TopologyAffinityError").refused == "TopologyAffinityError"


@pytest.mark.parametrize("reason", ["Evicted", "NodeShutdown", "NodeAffinity", "OutOfcpu", "OutOfnvidia.com/gpu", None])
def test_refusals_that_are_no_fault_of_the_node(reason: str | None) -> None:
    assert refused(reason=reason).refused == ""


def test_a_pod_that_ran_was_not_refused() -> None:
    ended = {"state": {"terminated": {"exitCode": 1, "startedAt": "2026-11-24T04:48:50Z"}}}
    assert refused(containerStatuses=[ended]).refused == ""
    assert refused(phase="Running").refused == ""


def test_no_scheduler_chose_the_node_of_a_refused_pod_where_a_client_did_or_nothing_is_known() -> None:
    assert not refused(spec={"f:nodeName": {}}).scheduled
    assert not refused(managed=False).scheduled, "as kubectl prints Pods"


@pytest.mark.parametrize("where", ["requests", "limits"])
def test_requests_and_limits_both_keep_a_pod(where: str) -> None:
    assert held(pod(containers=[container(**{where: {"amd.com/gpu": "2"}})])).accelerators == {"amd.com/gpu": 2}


def test_containers_add_up_and_an_init_container_counts_where_it_needs_more() -> None:
    two = [container("a", **gpus(2, cpu="500m", memory="1Gi")), container("b", **gpus(1, cpu="7910m", memory="1G"))]
    found = held(pod(containers=two))
    assert (found.accelerators, found.cpu_cores, found.memory_bytes) == ({"nvidia.com/gpu": 3}, 8.41, 2**30 + 10**9)
    smaller = held(pod(containers=two, initContainers=[container("init", **gpus(3))]))
    larger = held(pod(containers=two, initContainers=[container("init", **gpus(4)), container("next", **gpus(2))]))
    assert smaller.accelerators == {"nvidia.com/gpu": 3}
    assert larger.accelerators == {"nvidia.com/gpu": 4}


def test_a_sidecar_adds_to_the_containers_and_to_later_init_containers() -> None:
    sidecar = {**container("proxy", **gpus(1)), "restartPolicy": "Always"}
    init = container("init", **gpus(4))
    assert held(pod(initContainers=[sidecar])).accelerators == {"nvidia.com/gpu": 2}
    assert held(pod(initContainers=[sidecar, init])).accelerators == {"nvidia.com/gpu": 5}
    assert held(pod(initContainers=[init, sidecar])).accelerators == {"nvidia.com/gpu": 4}


def test_overhead_is_added_and_requests_of_the_whole_pod_win() -> None:
    overhead = held(pod(containers=[container(**gpus(1, cpu="1"))], overhead={"cpu": "250m"}))
    assert overhead.cpu_cores == 1.25
    whole = pod(containers=[container(**gpus(1, cpu="1"))], resources={"requests": {"cpu": "4"}})
    assert (held(whole).cpu_cores, held(whole).accelerators) == (4.0, {"nvidia.com/gpu": 1})


def test_a_request_below_its_limit_is_what_counts() -> None:
    asked = container(requests={"cpu": "1"}, limits={"cpu": "8", "nvidia.com/gpu": "1"})
    assert held(pod(containers=[asked])).cpu_cores == 1.0


def running(at: str, restarts: int = 0) -> dict[str, Any]:
    return {"restartCount": restarts, "state": {"running": {"startedAt": at}}}


def test_started_is_the_first_container_start() -> None:
    statuses = [running("2026-11-20T08:05:00Z"), running("2026-11-20T08:03:00Z")]
    found = held(pod(status={"startTime": "2026-11-20T08:00:00Z", "containerStatuses": statuses}))
    assert found.started == datetime(2026, 11, 20, 8, 3, tzinfo=UTC)


def test_after_a_restart_started_is_the_pods_start() -> None:
    statuses = [running("2026-11-20T11:00:00Z", restarts=3), running("2026-11-20T08:03:00Z")]
    found = held(pod(status={"startTime": "2026-11-20T08:00:00Z", "containerStatuses": statuses}))
    assert (found.started, found.restarts) == (datetime(2026, 11, 20, 8, 0, tzinfo=UTC), 3)


def test_before_any_container_runs_started_is_the_pods_start_or_unknown() -> None:
    waiting = [{"restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}]
    found = held(pod(status={"startTime": "2026-11-20T08:00:00Z", "containerStatuses": waiting}))
    assert found.started == datetime(2026, 11, 20, 8, 0, tzinfo=UTC)
    assert held(pod(status={"phase": "Pending"})).started is None


def test_state_and_scheduling_fields() -> None:
    found = held(
        pod(
            status={"conditions": [{"type": "Ready", "status": "True"}]},
            meta={"deletionTimestamp": "2026-11-20T10:00:00Z", "labels": {"app": "x"}},
            priority=1000,
            priorityClassName="batch",
            schedulerName="kai-scheduler",
        )
    )
    assert (found.ref, found.node, found.phase) == ("ml/train-0", "gpu-0", "Running")
    assert (found.ready, found.deleting) == (False, True)
    assert (found.priority, found.scheduler) == (1000, "kai-scheduler")
    assert (found.labels, found.images) == ({"app": "x"}, ("registry.example/app:1",))


def test_only_annotations_in_use_are_kept() -> None:
    annotations = {
        "gpuwatch.dev/opt-out": "true",
        "kueue.x-k8s.io/workload": "w",
        "pod-group-name": "g",
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
        "example.com/token": "secret",
    }
    kept = held(pod(meta={"annotations": annotations})).annotations
    assert set(kept) == {"gpuwatch.dev/opt-out", "kueue.x-k8s.io/workload", "pod-group-name"}


def test_claims_keep_a_pod_and_are_named_once() -> None:
    claimed = pod(
        containers=[container()],
        resourceClaims=[
            {"name": "given", "resourceClaimName": "shared-gpu"},
            {"name": "made", "resourceClaimTemplateName": "template"},
        ],
        status={
            "resourceClaimStatuses": [{"name": "made", "resourceClaimName": "train-0-made-x"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "train-0-extended-y"},
        },
    )
    found = held(claimed)
    assert (found.accelerators, found.claims) == ({}, ("shared-gpu", "train-0-made-x", "train-0-extended-y"))
    waiting = pod(containers=[container()], resourceClaims=[{"name": "made", "resourceClaimTemplateName": "template"}])
    assert held(waiting).claims == ()


POD_RESOURCES = [
    {"name": "token", "projected": {"sources": []}},
    {"name": "pods", "hostPath": {"path": "/var/lib/kubelet/pod-resources"}},
]


@pytest.mark.parametrize(
    "volumes",
    [None, [], [{"name": "cache", "hostPath": {"path": "/data"}}], [{"name": "pod-resources", "emptyDir": {}}]],
)
def test_a_pod_that_calls_itself_an_exporter_is_none_without_the_nodes_pod_resources(volumes: Any) -> None:
    forged = pod("dcgm-exporter-x", containers=[container("dcgm-exporter", "dcgm-exporter:4")], volumes=volumes)
    found = taken(forged)
    assert found is None or found.exporter is None


@pytest.mark.parametrize(
    ("image", "labels"),
    [
        ("nvcr.io/nvidia/k8s/dcgm-exporter:4.4.2", {}),
        ("registry.example/mirror@sha256:00", {"app": "nvidia-dcgm-exporter"}),
        ("registry.example/mirror:1", {"app.kubernetes.io/name": "dcgm-exporter"}),
        ("docker.io/rocm/device-metrics-exporter:v1.4.0", {}),
        ("intel/xpumanager:v1.3.7", {}),
        ("vault.habana.ai/gaudi-metric-exporter/metric-exporter:1.22", {}),
    ],
)
def test_exporters_are_known_by_image_or_label(image: str, labels: dict[str, str]) -> None:
    about: dict[str, Any] = {"meta": {"labels": labels}, "status": {"podIP": "10.1.0.9"}}
    found = taken(pod("exporter-x", containers=[container("c", image)], volumes=POD_RESOURCES, **about))
    exporter = ExporterPod(("exporter-x", "10.1.0.9"), "gpu-0", "ml/exporter-x")
    assert found is not None
    assert (found.held, found.exporter) == (None, exporter)
    assert found.other is not None
    assert (found.other.node, found.other.name) == ("gpu-0", "exporter-x")


@pytest.mark.parametrize(
    ("image", "change"),
    [
        ("quay.io/prometheus/node-exporter:v1.9", {}),
        ("nvcr.io/nvidia/k8s-device-plugin:v0.17", {}),
        ("nvcr.io/nvidia/k8s/dcgm-exporter:4.4.2", {"nodeName": None}),
        ("nvcr.io/nvidia/k8s/dcgm-exporter:4.4.2", {"status": {"phase": "Failed"}}),
    ],
)
def test_what_is_no_running_gpu_exporter(image: str, change: dict[str, Any]) -> None:
    found = taken(pod("exporter-x", containers=[container("c", image)], volumes=POD_RESOURCES, **change))
    assert found is None or found.exporter is None


def test_all_addresses_of_an_exporter_and_none_that_two_nodes_share() -> None:
    dual = taken(
        pod(
            "exporter-x",
            containers=[container("dcgm-exporter")],
            volumes=POD_RESOURCES,
            status={"podIP": "10.1.0.9", "podIPs": [{"ip": "10.1.0.9"}, {"ip": "fd00::9"}]},
        )
    )
    assert dual is not None
    assert dual.exporter is not None
    assert dual.exporter.names == ("exporter-x", "10.1.0.9", "fd00::9")
    elsewhere = ExporterPod(("exporter-y", "10.1.0.9"), "gpu-1", "mon/exporter-y")
    assert exporter_nodes([dual.exporter, elsewhere]) == {
        "exporter-x": "gpu-0",
        "fd00::9": "gpu-0",
        "exporter-y": "gpu-1",
    }


def test_null_is_the_same_as_missing() -> None:
    found = pod(meta={"labels": None, "annotations": None, "ownerReferences": None}, initContainers=None)
    found["status"] = {"phase": "Pending", "conditions": None, "containerStatuses": None, "startTime": None}
    assert (held(found).labels, held(found).started) == ({}, None)
