from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpuwatch.facts.model.cluster import Pod
from gpuwatch.sources.kube.nodes import take_node
from gpuwatch.sources.kube.pods import ExporterPod, OtherPod, TakenPod, exporter_nodes, take_pod, with_others
from kube.cluster_json import container, node, pod, raw


def taken(found: dict[str, Any]) -> TakenPod | None:
    return take_pod(raw(found))


def held(found: dict[str, Any]) -> Pod:
    result = taken(found)
    assert result is not None
    assert result.held is not None
    return result.held.pod


def gpus(count: int | str, **more: str) -> dict[str, dict[str, str]]:
    return {"limits": {"nvidia.com/gpu": str(count), **more}}


CASES = yaml.safe_load(Path(__file__).with_name("pods.yaml").read_text())


@pytest.mark.parametrize("row", [pytest.param(row, id=what) for what, rows in CASES.items() for row in rows])
def test_what_is_read_of_a_pod(row: dict[str, Any]) -> None:
    expected = msgspec.convert({"namespace": "ml", "name": "train-0", **row["read"]}, Pod)
    for name in row["read"]:
        assert getattr(held(pod(**row["pod"])), name) == getattr(expected, name), name


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


@pytest.mark.parametrize(
    ("ports", "address", "urls"),
    [
        ([{"containerPort": 9400}], "10.1.0.9", ["http://10.1.0.9:9400/metrics"]),
        (
            [{"containerPort": 1, "name": "health"}, {"containerPort": 2, "name": "metrics"}],
            "fd00::9",
            ["http://[fd00::9]:2/metrics"],
        ),
        ([{"containerPort": 8443, "name": "https-metrics"}], "10.1.0.9", ["https://10.1.0.9:8443/metrics"]),
        ([{"containerPort": 9400, "protocol": "UDP"}], "10.1.0.9", []),
        ([{"containerPort": 9400}], "", []),
        (None, "10.1.0.9", []),
    ],
)
def test_where_an_exporter_shows_its_page(ports: list[Any] | None, address: str, urls: list[str]) -> None:
    side = {**container("side"), "ports": [{"containerPort": 80, "name": "metrics"}]}
    mine = {**container("dcgm-exporter"), "ports": ports}
    found = taken(pod("x", containers=[side, mine], volumes=POD_RESOURCES, status={"podIP": address}))
    assert found is not None and found.exporter is not None and list(found.exporter.urls) == urls


def other(**more: Any) -> OtherPod | None:
    asked = container("a", requests={"cpu": "500m"}, limits={"cpu": "2", "memory": "1Gi"})
    found = take_pod(raw(pod(**{"containers": [asked, container("b", requests={"memory": "1G"})], **more})))
    return found.other if found is not None else None


def test_what_a_pod_without_accelerators_takes_of_its_node() -> None:
    def takes(**more: Any) -> tuple[str, float, int]:
        found = other(**more)
        assert found is not None
        return found.node, found.cpu_cores, found.memory_bytes

    assert takes() == ("gpu-0", 0.5, 2**30 + 10**9)
    assert takes(initContainers=[container("init", requests={"cpu": "3"})]) == ("gpu-0", 3.0, 2**30 + 10**9)
    assert takes(overhead={"cpu": "250m"}) == ("gpu-0", 0.75, 2**30 + 10**9)
    assert takes(nodeName=None)[0] == ""


def test_nodes_carry_the_sum_of_the_others() -> None:
    nodes = [
        take_node(raw(node("gpu-0", capacity={"nvidia.com/gpu": "8", "cpu": "64", "pods": "110"}))).node,
        take_node(raw(node("cpu-0", capacity={"cpu": "64"}))).node,
    ]
    gpu, cpu = with_others(nodes, [OtherPod("gpu-0", 1.5, 10), OtherPod("gpu-0", 0.5, 5), OtherPod("cpu-0", 9.0, 9)])
    assert (gpu.other_cpu_cores, gpu.other_memory_bytes, gpu.other_pods, gpu.max_pods) == (2.0, 15, 2, 110)
    assert (cpu.other_pods, cpu.max_pods) == (0, None)
