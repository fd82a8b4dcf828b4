"""GPU Feature Discovery's labels: both MIG strategies, the driver's spellings, and what is no number."""

from pathlib import Path

import pytest

from gpuwatch.facts.model.cluster import Node
from gpuwatch.size.capability import LabelledSize, labelled_sizes

SAMPLES = Path(__file__).parents[2].parent / "shared/samples/nodes"
MIB = 2**20


def node(product: str, **labels: str) -> Node:
    found = {f"nvidia.com/{name.replace('__', '.')}": value for name, value in labels.items()}
    name, _, _ = product.partition("-MIG-")
    return Node(name="n", gpu_product=name, labels={"nvidia.com/gpu.product": product, **found})


def test_mixed_strategy_has_labels_of_each_profile() -> None:
    labels = {
        "gpu.memory": "95830",
        "mig-1g.12gb.memory": "11008",
        "mig-1g.12gb.multiprocessors": "16",
        "mig-1g.12gb.count": "7",
        "mig-1g.24gb.memory": "22144",
        "mig-1g.12gb.me.memory": "11007",
        "mig-1g.12gb.engines.copy": "1",
    }
    assert labelled_sizes([node("NVIDIA-H100-NVL", **labels)]) == {
        ("H100-NVL-94GB", ""): LabelledSize(memory_bytes=95830 * MIB),
        ("H100-NVL-94GB", "1g.12gb"): LabelledSize(11008 * MIB, 16),
        ("H100-NVL-94GB", "1g.24gb"): LabelledSize(memory_bytes=22144 * MIB),
        ("H100-NVL-94GB", "1g.12gb+me"): LabelledSize(memory_bytes=11007 * MIB),
    }


@pytest.mark.parametrize("product", ["NVIDIA-A100-SXM4-80GB-MIG-3g.39gb", "NVIDIA-A100-SXM4-80GB-MIG-3g.39gb-SHARED"])
def test_single_strategy_has_those_of_its_slices_in_place_of_the_cards(product: str) -> None:
    found = labelled_sizes([node(product, **{"gpu.memory": "40192", "gpu.multiprocessors": "42"})])
    assert found == {("A100-SXM4-80GB", "3g.40gb"): LabelledSize(40192 * MIB, 42)}


def test_where_nodes_differ_the_least_counts() -> None:
    nodes = [node("NVIDIA-L4", **{"gpu.memory": memory}) for memory in ("23034", "22528", "24576")]
    assert labelled_sizes(nodes) == {("L4", ""): LabelledSize(memory_bytes=22528 * MIB)}


@pytest.mark.parametrize("value", ["", "0", "many", "-1", "40448 MiB"])
def test_what_is_no_number_says_nothing(value: str) -> None:
    assert labelled_sizes([node("NVIDIA-L4", **{"gpu.memory": value})]) == {}


def test_a_model_that_the_catalog_lacks_says_nothing() -> None:
    assert labelled_sizes([node("NVIDIA-Q1", **{"gpu.memory": "1"})]) == {}
