"""Telemetry's host is believed only where the cluster has such a Node."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuwatch.facts.model.cluster import Cluster, HeldDevice, Node, Pod
from gpuwatch.facts.model.telemetry import Device, Exporter, Gap, GapKind, Vendor
from gpuwatch.judge.health.infiniband import STATISTICS
from gpuwatch.sources.collect.origin import boot_times, held_devices, infiniband_ports, resolve_nodes
from telemetry.timeline import AT, NOW, Timeline, Witness


def device(host: str, exporter: str = "") -> Device:
    return Device(id="GPU-1", uuid="GPU-1", vendor=Vendor.NVIDIA, vocabulary="dcgm", node_label=host, exporter=exporter)


CLUSTER = Cluster(
    nodes=(
        Node(name="ip-10-0-1-7.ec2.internal", labels={"kubernetes.io/hostname": "ip-10-0-1-7"}),
        Node(name="gpu-2"),
        Node(name="twin.a"),
        Node(name="twin.b"),
    ),
    exporter_nodes={"nvidia-dcgm-exporter-tl46n": "gpu-2", "10.244.3.9": "gpu-2"},
    node_addresses={"10.0.1.7": "ip-10-0-1-7.ec2.internal"},
    known=True,
)


@pytest.mark.parametrize(
    ("host", "exporter", "node"),
    [
        ("gpu-2", "", "gpu-2"),
        ("ip-10-0-1-7", "", "ip-10-0-1-7.ec2.internal"),
        ("ip-10-0-1-7.ec2.internal", "", "ip-10-0-1-7.ec2.internal"),
        ("gpu-2.example.com", "10.244.3.9:9400", "gpu-2"),  # the exporter says the full name, the Node the short one
        ("gpu-2.example.com", "", None),  # it may be another cluster's
        ("gpu-2.example.com", "10.0.1.7:9400", None),  # its exporter is on another Node
        ("10.0.1.7", "", "ip-10-0-1-7.ec2.internal"),
        ("nvidia-dcgm-exporter-tl46n", "", "gpu-2"),  # old exporters give their Pod's name
        ("localhost", "10.244.3.9:9400", "gpu-2"),  # a remote host engine; the target's address tells
        ("localhost", "", None),
        ("", "", None),
        ("twin", "", None),  # two Nodes could be meant
        ("elsewhere", "10.9.9.9:9400", None),
        ("x", "[fd00::7]:9400", None),
    ],
)
def test_host_names(host: str, exporter: str, node: str | None) -> None:
    (resolved,), _, gaps = resolve_nodes([device(host, exporter)], [], CLUSTER)
    assert resolved.node == node
    assert [gap.kind for gap in gaps] == ([] if node else [GapKind.NODE_UNRESOLVED])


@pytest.mark.parametrize(("nodes", "ours"), [({}, None), ({}, {"gone:1"}), ({"gone:1": "gpu-2"}, ())])
def test_a_full_name_counts_where_the_series_are_this_clusters(nodes: dict[str, str], ours: set[str] | None) -> None:
    (resolved,), _, gaps = resolve_nodes([device("gpu-2.example.com", "gone:1")], [], CLUSTER, nodes, ours)
    assert (resolved.node, gaps) == ("gpu-2", [])


def test_an_exporter_stands_on_the_node_of_its_devices() -> None:
    target = Exporter(instance="weird:1", node_label="localhost")
    _, (resolved,), _ = resolve_nodes([device("gpu-2", "weird:1")], [target], CLUSTER)
    assert resolved.node == "gpu-2"


def test_without_a_cluster_nothing_is_resolved_and_nothing_is_complained_about() -> None:
    (resolved,), _, gaps = resolve_nodes([device("gpu-2")], [], Cluster())
    assert resolved.node is None
    assert gaps == []


def test_boots_of_nodes_by_the_address_of_their_node_exporter(tmp_path: Path) -> None:
    timeline = Timeline()
    for instance, ago, more in (
        ("10.0.1.7:9100", 3600.25, {}),
        ("gpu-2:9100", 900.0, {}),
        ("10.9.9.9:9100", 60.0, {"node": "gpu-2", "nodename": "gpu-2"}),  # a Pod's address; its labels are a claim
        ("twin.a:9100", 60.0, {}),
        ("twin.a:9101", 9000.0, {}),  # two targets of one Node that disagree
    ):
        timeline.add("node_boot_time_seconds", {"instance": instance, "job": "node-exporter", **more}, NOW - ago)
    timeline.add("node_boot_time_seconds", {"instance": "10.0.1.7:9100", "job": "other"}, NOW - 3601)
    found, gaps = boot_times(timeline.store(tmp_path), AT, CLUSTER)
    assert gaps == ()
    assert found == {
        "ip-10-0-1-7.ec2.internal": datetime.fromtimestamp(NOW - 3600.25, UTC),
        "gpu-2": datetime.fromtimestamp(NOW - 900, UTC),
    }
    refusing = Witness(timeline.store(tmp_path), lambda _: True)
    assert [gap.what for gap in boot_times(refusing, AT, CLUSTER)[1]] == ["boots of Nodes"]


def test_ports_of_nodes_by_the_address_of_their_node_exporter(tmp_path: Path) -> None:
    timeline = Timeline()
    for instance in ("10.0.1.7:9100", "10.9.9.9:9100"):  # the second is a Pod's address
        port = {"instance": instance, "device": "mlx5_0", "port": "1", "node": "gpu-2"}
        timeline.add("node_infiniband_state_id", port, 1)
        timeline.add("node_infiniband_rate_bytes_per_second", port, 5e10)
    found, gaps = infiniband_ports(timeline.store(tmp_path), AT, CLUSTER, STATISTICS)
    assert gaps == ()
    assert found == {
        "ip-10-0-1-7.ec2.internal": {
            "mlx5_0/1": {
                "node_infiniband_state_id:max:300": 1.0,
                "node_infiniband_state_id:max:21600": 1.0,
                "node_infiniband_rate_bytes_per_second:max:300": 5e10,
                "node_infiniband_rate_bytes_per_second:max:21600": 5e10,
            }
        }
    }
    refusing = Witness(timeline.store(tmp_path), lambda _: True)
    assert infiniband_ports(refusing, AT, CLUSTER, STATISTICS)[0] == {}
    assert [gap.what for gap in infiniband_ports(refusing, AT, CLUSTER, STATISTICS)[1]] == ["InfiniBand ports"]


def test_without_ports_one_question_is_asked(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.add("node_boot_time_seconds", {"instance": "gpu-2:9100"}, NOW)
    asked: list[object] = []
    witness = Witness(timeline.store(tmp_path), lambda expression: bool(asked.append(expression)))
    assert infiniband_ports(witness, AT, CLUSTER, STATISTICS) == ({}, ())
    assert len(asked) == 1


def held(told: str, started_minutes_ago: float = 60, **device: object) -> tuple[Device, str, list[Gap]]:
    """GPU-1 of gpu-2 with these facts of telemetry, where Pod ml/a holds `told` by its kubelet; why it is doubted."""
    at = datetime(2026, 10, 1, tzinfo=UTC)
    started = at - timedelta(minutes=started_minutes_ago)
    pod = Pod(namespace="ml", name="a", node="gpu-2", started=started, devices=(HeldDevice(told, "Healthy"),))
    facts = {"node": "gpu-2", "vendor": Vendor.NVIDIA, "vocabulary": "dcgm", **device}
    known = Device(id="GPU-1", uuid="GPU-1", **facts)  # type: ignore[arg-type]
    (found,), wrong, gaps = held_devices([known], Cluster(pods=(pod,), known=True), at)
    return found, wrong.get("GPU-1", ""), gaps


@pytest.mark.parametrize("told", ["GPU-1", "GPU-1::3"])
def test_the_kubelet_tells_who_holds_a_device_that_telemetry_gives_to_no_pod(told: str) -> None:
    found, doubt, gaps = held(told)
    assert (found.pods, doubt, gaps) == (("ml/a",), "", [])


@pytest.mark.parametrize(
    ("told", "device"),
    [
        ("GPU-2", {}),
        ("GPU-1", {"node": "gpu-3"}),
        ("GPU-1", {"node": None}),
        ("GPU-1", {"mig_instance": "7"}),
        ("0000:17:00.0", {}),
    ],
    ids=["another device", "a device of the same UUID elsewhere", "no Node", "a MIG device", "another way to name it"],
)
def test_a_device_that_the_kubelet_does_not_name_is_given_to_nobody(told: str, device: dict[str, object]) -> None:
    found, doubt, gaps = held(told, **device)
    assert (found.pods, doubt, gaps) == ((), "", [])


def test_telemetry_that_names_the_same_pod_is_left_as_it_is() -> None:
    assert held("GPU-1", pods=("ml/a", "ml/b"), shared=True)[0].pods == ("ml/a", "ml/b")


def test_a_contradiction_is_shown_and_nothing_is_done_about_the_device() -> None:
    found, doubt, (gap,) = held("GPU-1", pods=("ml/old",))
    assert found.pods == ("ml/old",)
    assert doubt == "telemetry gives it to ml/old, and the kubelet to ml/a"
    assert (gap.kind, gap.what) == (GapKind.UNTRUSTED, "holders of 1 devices")
    assert "GPU-1: telemetry gives it to ml/old, and the kubelet to ml/a." in gap.detail
    # An exporter's labels lag behind a new Pod, and a device that left telemetry has old ones.
    for facts in ({"started_minutes_ago": 4}, {"present": False}):
        assert held("GPU-1", pods=("ml/old",), **facts)[1] == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("node", "host", "where"),
    [(None, "x9", "on the host 'x9', no Node of the cluster"), ("gpu-3", "gpu-3", "on gpu-3")],
)
def test_a_pod_of_another_node_does_not_hold_the_device(node: str | None, host: str, where: str) -> None:
    facts = {"node": node, "node_label": host, "pods": ("ml/a", "ml/b"), "containers": ("main", "other")}
    found, doubt, (gap,) = held("GPU-7", **facts)
    assert doubt == f"telemetry gives it to ml/a, which runs on gpu-2, and the GPU is {where}"
    assert doubt in gap.detail
    assert found.pods == ("ml/a", "ml/b")  # people see what the exporter says
    # The labels of a Pod that was made anew elsewhere may lag; it holds nothing here meanwhile.
    for moved in ({"started_minutes_ago": 4}, {"present": False}):
        found, doubt, gaps = held("GPU-7", **facts, **moved)  # type: ignore[arg-type]
        assert (found.pods, found.containers, found.shared, doubt, gaps) == (("ml/b",), ("other",), False, "", [])
