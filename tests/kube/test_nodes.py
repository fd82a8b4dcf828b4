import re
from datetime import UTC, datetime
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


CASES = yaml.safe_load(Path(__file__).with_name("node_labels.yaml").read_text())


@pytest.mark.parametrize("row", [pytest.param(row, id=what) for what, rows in CASES.items() for row in rows])
def test_what_labels_and_capacity_say_of_a_node(row: dict[str, Any]) -> None:
    found = read(row.get("labels"), row.get("capacity"), **row.get("status", {}))
    assert {name: getattr(found, name) for name in row["node"]} == row["node"]


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


def test_taints_conditions_and_cordon() -> None:
    found = node(
        "gpu-0", None, None, conditions=[{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
    )
    taints = [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]
    # As the node lifecycle controller writes the taint of a cordon.
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2026-03-02T10:00:00Z"}
    found["spec"] = {"unschedulable": True, "taints": [*taints, cordon]}
    dated = taken(found).node.taints
    assert [taint.since for taint in dated] == [None, datetime(2026, 3, 2, 10, tzinfo=UTC)]
    found["spec"]["taints"] = taints
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
