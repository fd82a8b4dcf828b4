import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.cluster import Node, Sharing
from gpuwatch.facts.model.telemetry import GapKind
from gpuwatch.sources.kube.nodes import TakenNode, node_names, take_node
from kube.cluster_json import node, raw

SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples" / "nodes"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the captured samples are not in this checkout")


def taken(found: dict[str, Any]) -> TakenNode:
    return take_node(raw(found))


def read(labels: dict[str, str] | None = None, capacity: dict[str, str] | None = None, **status: Any) -> Node:
    return taken(node("gpu-0", labels, capacity, **status)).node


@needs_samples
def test_a_real_node_with_mixed_mig() -> None:
    found = taken(yaml.load((SAMPLES / "runai-mig-node-3_instances.yaml").read_text(), yaml.BaseLoader))
    assert found.addresses == ("10.51.0.6", "qa-mig-worker-gpu-a100")
    assert found.node.gpu_product == "NVIDIA-A100-SXM4-40GB"
    assert found.node.gpu_count == 1
    assert found.node.mig_strategy == "mixed"
    assert found.node.mig_layout == {"1g.5gb": 2, "2g.10gb": 1}
    # Capacity also names nvidia.com/gpu and mig-3g.20gb, of which there are none.
    assert found.node.accelerators == {"nvidia.com/mig-1g.5gb": 2, "nvidia.com/mig-2g.10gb": 1}
    assert (found.node.sharing, found.node.replicas) == (Sharing.NONE, 1)  # gpu.replicas is 0 where all is MIG
    assert found.node.memory_bytes == 87425380 * 2**10
    assert found.node.ready is True
    assert found.node.annotations == {}


@needs_samples
def test_a_real_node_with_t4s() -> None:
    found = taken(yaml.load((SAMPLES / "runai-t4-node.yaml").read_text(), yaml.BaseLoader)).node
    assert (found.gpu_product, found.gpu_count, found.accelerators) == ("Tesla-T4", 2, {"nvidia.com/gpu": 2})
    assert (found.mig_layout, found.sharing) == ({}, Sharing.NONE)


@needs_samples
@pytest.mark.parametrize(
    ("file", "layout"),
    [
        ("gfd-expected-output.txt", {}),
        ("gfd-expected-output-mig-none.txt", {}),
        ("gfd-expected-output-mig-mixed.txt", {"1g.5gb": 4}),
        ("gfd-expected-output-mig-single.txt", {}),
    ],
)
def test_the_labels_that_gpu_feature_discovery_writes_are_understood(file: str, layout: dict[str, int]) -> None:
    """GFD's own expectation: one regular expression a line, for the label and its value."""
    values = {"product": "Tesla-X", "memory": "1024", "replicas": "1", "strategy": "mixed", "count": "4"}
    labels = {}
    for line in (SAMPLES / file).read_text().split():
        key = line.partition("=")[0].replace("\\.", ".").replace("\\/", "/").replace("[0-9]+g.[0-9]+gb", "1g.5gb")
        value = "none" if key.endswith("sharing-strategy") else values.get(key.rpartition(".")[2], "1")
        assert re.fullmatch(r"[a-z0-9./-]+", key)
        labels[key] = value
    found = read(labels)
    assert (found.gpu_product, found.gpu_count) == ("Tesla-X", 4)
    assert (found.mig_layout, found.replicas, found.sharing) == (layout, 1, Sharing.NONE)


GFD = "nvidia.com/gpu.product"


@pytest.mark.parametrize(
    ("label", "value", "product"),
    [
        (GFD, "NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-80GB-HBM3"),
        (GFD, "NVIDIA-H100-80GB-HBM3-SHARED", "NVIDIA-H100-80GB-HBM3"),
        (GFD, "A100-SXM4-40GB-MIG-1g.5gb", "A100-SXM4-40GB"),
        (GFD, "A100-SXM4-40GB-MIG-1g.5gb-SHARED", "A100-SXM4-40GB"),
        (GFD, "A100-SXM4-80GB-MIG-1g.10gb.me", "A100-SXM4-80GB"),
        (GFD, "A100-SXM4-40GB-MIG-INVALID", "A100-SXM4-40GB"),
        (GFD, "GRID-MIG-LIKE-NAME", "GRID-MIG-LIKE-NAME"),
        ("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM", "AMD_Instinct_MI300X_OAM"),
        ("gpu.intel.com/product", "Max_1550", "Max_1550"),
        ("karpenter.k8s.aws/instance-gpu-name", "a100", "a100"),
    ],
)
def test_the_product_of_each_labeller_without_what_gfd_appends(label: str, value: str, product: str) -> None:
    assert read({label: value}).gpu_product == product


def test_strategy_single_describes_instances_and_leaves_the_gpus_unknown() -> None:
    labels = {
        "nvidia.com/gpu.product": "A100-SXM4-40GB-MIG-3g.20gb",
        "nvidia.com/gpu.count": "16",
        "nvidia.com/mig.strategy": "single",
    }
    found = read(labels, {"nvidia.com/gpu": "16"})
    assert found.mig_layout == {"3g.20gb": 16}
    assert found.gpu_count == 0
    without_mig = read({**labels, "nvidia.com/gpu.product": "A100-SXM4-40GB"})
    assert (without_mig.mig_layout, without_mig.gpu_count) == ({}, 16)
    invalid = read({**labels, "nvidia.com/gpu.product": "A100-SXM4-40GB-MIG-INVALID", "nvidia.com/gpu.count": "0"})
    assert (invalid.mig_layout, invalid.gpu_count) == ({}, 0)


def test_media_profiles_get_their_plus_sign_back() -> None:
    labels = {"nvidia.com/mig-1g.10gb.me.count": "1", "nvidia.com/mig-1g.24gb.me.all.count": "2"}
    assert read(labels).mig_layout == {"1g.10gb+me": 1, "1g.24gb+me.all": 2}


def test_the_layout_comes_from_resources_where_there_are_no_labels() -> None:
    capacity = {"nvidia.com/mig-1g.5gb": "2", "nvidia.com/mig-2g.10gb.shared": "3", "nvidia.com/gpu": "0"}
    assert read({}, capacity).mig_layout == {"1g.5gb": 2, "2g.10gb": 3}


@pytest.mark.parametrize(
    ("labels", "capacity", "sharing", "replicas"),
    [
        ({"nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/gpu.replicas": "1"}, {}, Sharing.NONE, 1),
        ({"nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/gpu.replicas": "4"}, {}, Sharing.MPS, 4),
        ({"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "10"}, {}, "time-slicing", 10),
        (
            {"nvidia.com/mig-1g.5gb.sharing-strategy": "time-slicing", "nvidia.com/mig-1g.5gb.replicas": "2"},
            {},
            "time-slicing",
            2,
        ),
        ({"nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.replicas": "2"}, {}, "time-slicing", 2),
        ({}, {"nvidia.com/gpu.shared": "8"}, "time-slicing", 1),
        ({}, {"nvidia.com/gpu": "8"}, Sharing.NONE, 1),
        ({"nvidia.com/gpu.replicas": "many"}, {}, Sharing.NONE, 1),
    ],
)
def test_sharing(labels: dict[str, str], capacity: dict[str, str], sharing: str, replicas: int) -> None:
    found = read(labels, capacity)
    assert (found.sharing, found.replicas) == (sharing, replicas)


def test_accelerators_of_every_vendor_are_counted_and_nothing_else() -> None:
    capacity = {
        "cpu": "191450m",
        "memory": "2Ti",
        "pods": "110",
        "nvidia.com/gpu": "8",
        "nvidia.com/gpu-1g5gb": "7",
        "nvidia.com/gpumem": "81920",
        "nvidia.com/hostdev": "4",
        "amd.com/gpu": "8",
        "gpu.intel.com/xe": "2",
        "gpu.intel.com/xe_monitoring": "1",
        "gpu.intel.com/millicores": "2000",
        "habana.ai/gaudi": "8",
        "rdma/ib": "1",
        "example.com/gpu": "3",
    }
    found = read({}, capacity)
    assert found.accelerators == {
        "nvidia.com/gpu": 8,
        "nvidia.com/gpu-1g5gb": 7,
        "amd.com/gpu": 8,
        "gpu.intel.com/xe": 2,
        "habana.ai/gaudi": 8,
    }
    assert (found.cpu_cores, found.memory_bytes) == (191.45, 2 * 2**40)


def test_allocatable_keeps_a_resource_that_broke_down_to_nothing() -> None:
    found = read({}, {"nvidia.com/gpu": "8"}, allocatable={"nvidia.com/gpu": "0"})
    assert (found.accelerators, found.allocatable) == ({"nvidia.com/gpu": 8}, {"nvidia.com/gpu": 0})


def test_without_labels_the_capacity_counts_the_gpus() -> None:
    assert read({}, {"nvidia.com/gpu": "4"}).gpu_count == 4
    assert read({}, {"nvidia.com/gpu.shared": "40"}).gpu_count == 0  # how many share one is not known


def test_the_most_specific_pool_label_wins() -> None:
    labels = {
        "node.kubernetes.io/instance-type": "p5.48xlarge",
        "kubernetes.azure.com/agentpool": "aks",
        "cloud.google.com/gke-nodepool": "gke",
        "eks.amazonaws.com/nodegroup": "eks",
        "karpenter.sh/nodepool": "karpenter",
        keys.POOL: "ours",
    }
    for key in reversed(labels):
        assert read(labels).pool == labels[key]
        labels = {name: value for name, value in labels.items() if name != key}
    assert read({}).pool == ""


def test_taints_conditions_and_cordon() -> None:
    found = node(
        "gpu-0", None, None, conditions=[{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
    )
    found["spec"] = {"unschedulable": True, "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}
    result = taken(found).node
    assert result.unschedulable
    assert [(taint.key, taint.value, taint.effect) for taint in result.taints] == [("nvidia.com/gpu", "", "NoSchedule")]
    assert result.ready is False


def test_a_bad_quantity_is_an_error() -> None:
    with pytest.raises(ValueError, match="'lots' is no Kubernetes quantity"):
        read({}, {"nvidia.com/gpu": "lots"})


def test_an_address_of_two_nodes_names_neither() -> None:
    def at(name: str, *addresses: tuple[str, str]) -> TakenNode:
        return taken(node(name, addresses=[{"type": kind, "address": value} for kind, value in addresses]))

    names, gaps = node_names(
        [
            at("gpu-0", ("InternalIP", "10.0.0.1"), ("Hostname", "host"), ("ExternalIP", "1.2.3.4")),
            at("gpu-1", ("InternalIP", "10.0.0.2"), ("Hostname", "host")),
        ]
    )
    assert names == {"10.0.0.1": "gpu-0", "10.0.0.2": "gpu-1"}
    assert [(gap.kind, gap.what) for gap in gaps] == [(GapKind.NODE_UNRESOLVED, "address host")]
    assert "gpu-0, gpu-1" in gaps[0].detail


def test_the_boot_that_a_node_runs_in() -> None:
    assert read(nodeInfo={"bootID": "5d6c", "kernelVersion": "6.8"}).boot_id == "5d6c"
    assert read().boot_id == ""
