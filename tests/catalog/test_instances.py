"""Instance types, their prices, and the operator's own."""

import csv
from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import yaml

from gpuwatch.account.money import Price, PriceList
from gpuwatch.facts.catalog.gpus import find_gpu
from gpuwatch.facts.catalog.instances import (
    InstanceType,
    instance_types,
    instance_types_with_overrides,
    parse_instances,
)
from gpuwatch.facts.catalog.tables import CatalogError
from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.telemetry import GapKind

TABLES = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text(encoding="utf-8"))
PRICING = Path(__file__).parents[2].parent / "shared/reference/pricing"


def find_instance_type(name: str, region: str, types: Iterable[InstanceType] | None = None) -> InstanceType | None:
    labels = {"node.kubernetes.io/instance-type": name, "topology.kubernetes.io/region": region}
    return PriceList(instance_types() if types is None else types).row_of(Node(name="n", labels=labels))


@pytest.mark.parametrize(("name", "region", "gpu", "count", "per_gpu"), TABLES["prices"])
def test_published_prices_per_gpu(name: str, region: str, gpu: str, count: int, per_gpu: float) -> None:
    found = find_instance_type(name, region)
    assert (found.gpu, found.gpu_count, found.currency) == (gpu, count, "USD")
    assert found.price_per_gpu_hour == pytest.approx(per_gpu, abs=0.001)


def test_every_row_has_a_known_gpu_a_date_and_a_source() -> None:
    types = instance_types()
    assert len(types) > 500
    assert {one.vendor for one in types} == {"aws", "azure", "gcp"}
    days = {date(2025, 4, 24), date(2026, 6, 18), date(2026, 7, 20), date(2026, 8, 3), date(2026, 8, 24)}
    days |= {date(2026, 8, 6), date(2026, 10, 13)}  # P5en in four regions, A3 Ultra
    assert {one.price_date for one in types} == days
    for one in types:
        gpu = find_gpu(one.gpu)
        assert gpu.name == one.gpu
        assert one.source
        assert 0.1 < one.price_per_gpu_hour < 50, one.name


@pytest.mark.parametrize(("name", "region", "vcpus", "gib"), TABLES["hosts"])
def test_published_sizes_of_hosts(name: str, region: str, vcpus: int, gib: int) -> None:
    found = find_instance_type(name, region)
    assert (found.vcpus, found.host_memory_bytes) == (vcpus, gib * 2**30)


def test_a_host_of_which_nothing_is_published_is_unknown() -> None:
    found = find_instance_type("Standard_ND96isf_H100_v5", "eastus2")
    assert (found.vcpus, found.host_memory_bytes, found.host_source) == (None, None, "")
    assert (found.allocatable_cpu_cores, found.allocatable_memory_bytes) == (None, None)


def test_every_host_has_a_source_and_is_the_same_in_all_regions() -> None:
    hosts: dict[str, set[tuple[int | None, int | None, str]]] = {}
    for one in instance_types():
        hosts.setdefault(one.name, set()).add((one.vcpus, one.host_memory_bytes, one.host_source))
        assert bool(one.host_source) is (one.vcpus is not None) is (one.host_memory_bytes is not None), one.name
    assert {name for name, told in hosts.items() if len(told) > 1} == set()


@pytest.mark.parametrize(
    ("name", "cores"), [("g5.xlarge", 3.92), ("g5.2xlarge", 7.91), ("g5.12xlarge", 47.81), ("p5.48xlarge", 191.45)]
)
def test_the_kubelet_keeps_what_karpenter_documents_of_the_cpus(name: str, cores: float) -> None:
    found = find_instance_type(name, "us-east-1")
    assert found.allocatable_cpu_cores == pytest.approx(cores, abs=0.0001)


@pytest.mark.parametrize(
    ("gib", "kept"),
    [(2, 0.5), (4, 1.0), (8, 1.8), (16, 2.6), (128, 9.32), (228, 11.32)],
)
def test_the_kubelet_keeps_less_of_more_memory(tmp_path: Path, gib: int, kept: float) -> None:
    text = HEADER.strip() + ",host_memory_bytes\n" + GOOD.strip() + f",{gib * 2**30}\n"
    types, gaps = instance_types_with_overrides(write(tmp_path, text))
    assert gaps == ()
    assert types[0].allocatable_memory_bytes == pytest.approx((gib - kept) * 2**30)
    assert types[0].allocatable_cpu_cores is None


def test_fractions_of_a_gpu_are_left_out() -> None:
    for name, region in (("g6f.xlarge", "us-east-1"), ("Standard_NV6ads_A10_v5", "eastus")):
        assert find_instance_type(name, region) is None


def test_a_price_of_another_region_is_no_answer() -> None:
    assert find_instance_type("p5.48xlarge", "eu-west-1") is None
    assert find_instance_type("p99.48xlarge", "us-east-1") is None


@pytest.mark.skipif(not PRICING.exists(), reason="the shared reference is not beside this checkout")
@pytest.mark.parametrize(
    ("file", "name", "vendor"),
    [
        ("aws-us-east-1-ondemand-2026-07-20.csv", "instance_type", "aws"),
        ("azure-ondemand-2026-06-18.csv", "vm_size", "azure"),
        ("gcp-ondemand-spot-2026-08-03.csv", "machine_type", "gcp"),
    ],
)
def test_prices_agree_with_the_reference(file: str, name: str, vendor: str) -> None:
    with (PRICING / file).open() as lines:
        reference = {
            (row[name], row.get("region", "us-east-1")): float(row["usd_per_hour"])
            for row in csv.DictReader(lines)
            if row.get("capacity", "on_demand") == "on_demand"
        }
    for one in instance_types():
        if one.vendor == vendor and "karpenter" in one.source and not one.region.startswith("us-gov"):
            assert one.price_per_hour == pytest.approx(reference[one.name, one.region], abs=1e-6)


HEADER = "name,gpu,gpu_count,price_per_hour,currency,price_date,region\n"
GOOD = "dgx-h100,NVIDIA H100 80GB HBM3,8,31.5,USD,2026-09-01,\n"


def write(tmp_path: Path, text: str, name: str = "prices.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_the_operators_price_comes_first(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + GOOD + "p5.48xlarge,NVIDIA-H100-80GB-HBM3,8,40,USD,2026-09-01,us-east-1\n")
    types, gaps = instance_types_with_overrides(path)
    assert gaps == ()
    own = find_instance_type("dgx-h100", "rack-7", types)
    assert (own.gpu, own.gpu_count, own.price_per_hour) == ("H100-SXM5-80GB", 8, 31.5)
    assert (own.price_date, own.source, own.vendor) == (date(2026, 9, 1), str(path), "")
    contract = find_instance_type("p5.48xlarge", "us-east-1", types)
    assert contract.price_per_hour == 40
    assert len(types) == len(instance_types()) + 1


def test_a_machine_with_attached_gpus_has_a_row_for_each_model_and_number(tmp_path: Path) -> None:
    rows = (("Tesla-T4", 1, 0.73), ("Tesla-T4", 2, 1.08), ("Tesla-V100-SXM2-16GB", 1, 2.86))
    text = HEADER + "".join(f"n1-standard-8,{gpu},{count},{each},USD,2026-11-01,\n" for gpu, count, each in rows)
    types, gaps = instance_types_with_overrides(write(tmp_path, text))
    assert gaps == ()
    prices = PriceList(types)

    def of(gpu: str, count: int) -> Price:
        labels = {"node.kubernetes.io/instance-type": "n1-standard-8", "topology.kubernetes.io/region": "us-east1"}
        return prices.of_node(Node(name="n", labels=labels, gpu_product=gpu, gpu_count=count))

    for gpu, count, each in rows:
        assert of(gpu, count).price_per_gpu_hour == each / count
    for gpu, count, words in (
        ("Tesla-T4", 4, "it has 4 x Tesla-T4"),
        ("Tesla-P100-PCIE-16GB", 1, "it has 1 x Tesla-P100"),
        ("", 1, "it has 1 x an unknown GPU"),
    ):
        assert of(gpu, count).price_per_gpu_hour is None
        assert words in of(gpu, count).reason
    assert len([one for one in prices.offers(["us-east1"]) if one.name == "n1-standard-8"]) == 3


def test_a_machine_keeps_its_price_while_a_gpu_is_missing_and_has_none_with_another_model() -> None:
    labels = {"node.kubernetes.io/instance-type": "p5.48xlarge", "topology.kubernetes.io/region": "us-east-1"}
    broken = Node(name="n", labels=labels, gpu_product="NVIDIA-H100-80GB-HBM3", gpu_count=7)
    prices = PriceList(instance_types())
    assert prices.of_node(broken).price_per_gpu_hour == pytest.approx(6.88)
    # With MIG strategy `single` no label counts the GPUs.
    assert prices.of_node(replace(broken, gpu_count=0)).price_per_gpu_hour == pytest.approx(6.88)
    assert prices.of_node(replace(broken, gpu_product="NVIDIA-A100-SXM4-40GB")).price_per_gpu_hour is None


def test_prices_of_aws_in_other_regions_are_those_that_did_not_change_in_us_east_1() -> None:
    here = {one.name: one for one in instance_types() if one.region == "us-east-1"}
    old = [one for one in instance_types() if "ec2-instances-info" in one.source]
    assert len(old) > 400
    for one in old:
        assert (one.gpu, one.gpu_count, one.price_date) == (
            here[one.name].gpu,
            here[one.name].gpu_count,
            date(2025, 4, 24),
        )
        assert 0.9 <= one.price_per_hour / here[one.name].price_per_hour <= 2.0
    assert not {one.name for one in old} & {"p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5en.48xlarge"}


def test_a_price_for_everywhere_replaces_all_regions_of_its_name(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + "a3-highgpu-8g,NVIDIA H100 80GB HBM3,8,50,USD,2026-09-01,*\n")
    types, _ = instance_types_with_overrides(path)
    for region in ("us-central1", "mars-north1"):
        found = find_instance_type("a3-highgpu-8g", region, types)
        assert found.price_per_hour == 50
    assert len([one for one in types if one.name == "a3-highgpu-8g"]) == 1


def test_yaml_says_the_same(tmp_path: Path) -> None:
    text = (
        "- {name: dgx-h100, gpu: NVIDIA H100 80GB HBM3, gpu_count: 8, price_per_hour: 31.5, currency: usd,"
        " price_date: 2026-09-01, vendor: own, source: contract 12}\n"
    )
    types, gaps = instance_types_with_overrides(write(tmp_path, text, "prices.yaml"))
    assert gaps == ()
    assert (types[0].price_per_hour, types[0].vendor, types[0].source) == (31.5, "own", "contract 12")


def test_an_operator_who_sums_in_another_currency_names_prices_in_it(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + GOOD + "own-l4,NVIDIA L4,1,0.7,EUR,2026-09-01,\n")
    types, (gap,) = instance_types_with_overrides(path, "EUR")
    assert (types[0].name, types[0].currency, types[0].price_per_hour) == ("own-l4", "EUR", 0.7)
    assert "the price is in USD, and sums are in EUR; convert it" in gap.detail
    assert "dgx-h100" not in {one.name for one in types}


def test_the_operator_tells_the_size_of_a_host(tmp_path: Path) -> None:
    header = HEADER.strip() + ",vcpus,host_memory_bytes,host_source\n"
    own = GOOD.strip() + f",224,{2**41},data sheet\n" + GOOD.replace("dgx-h100", "dgx-2").strip() + ",96,,\n"
    path = write(tmp_path, header + own)
    types, gaps = instance_types_with_overrides(path)
    assert gaps == ()
    assert (types[0].vcpus, types[0].host_memory_bytes, types[0].host_source) == (224, 2**41, "data sheet")
    assert (types[1].vcpus, types[1].host_memory_bytes, types[1].host_source) == (96, None, str(path))


@pytest.mark.parametrize(
    ("row", "vcpus"),
    [
        ("p5.48xlarge,NVIDIA H100 80GB HBM3,8,40,USD,2026-09-01,*", 192),
        ("p5.48xlarge,NVIDIA H100 80GB HBM3,4,40,USD,2026-09-01,*", None),  # another machine of the same name
        ("p5.48xlarge,NVIDIA L4,8,40,USD,2026-09-01,*", None),
        ("dgx-h100,NVIDIA H100 80GB HBM3,8,40,USD,2026-09-01,*", None),
    ],
)
def test_a_price_of_a_known_type_keeps_its_host(tmp_path: Path, row: str, vcpus: int | None) -> None:
    types, gaps = instance_types_with_overrides(write(tmp_path, HEADER + row + "\n"))
    assert gaps == ()
    assert types[0].vcpus == vcpus
    assert (types[0].host_memory_bytes is None) is (vcpus is None)


@pytest.mark.parametrize(("cells", "complaint"), TABLES["bad_hosts"])
def test_a_bad_size_of_a_host_is_named(tmp_path: Path, cells: str, complaint: str) -> None:
    path = write(tmp_path, HEADER.strip() + ",vcpus,host_memory_bytes\n" + GOOD.strip() + f",{cells}\n")
    types, (gap,) = instance_types_with_overrides(path)
    assert gap.what == f"{path}, line 2"
    assert complaint in gap.detail
    assert types == instance_types()


@pytest.mark.parametrize(("row", "complaint"), TABLES["bad_prices"])
def test_a_bad_row_is_named_and_the_others_count(tmp_path: Path, row: str, complaint: str) -> None:
    path = write(tmp_path, HEADER + GOOD + row + "\n" + GOOD.replace("dgx-h100", "dgx-2"))
    types, (gap,) = instance_types_with_overrides(path)
    assert gap.kind is GapKind.BAD_INPUT
    assert gap.what == f"{path}, line 3"
    assert complaint in gap.detail
    assert [one.name for one in types[:2]] == ["dgx-h100", "dgx-2"]
    assert len(types) == len(instance_types()) + 2


def test_bad_yaml_entries_are_named(tmp_path: Path) -> None:
    text = "- just text\n- {name: x, gpu: NVIDIA L4, gpu_count: 1, price_per_hour: 1, currency: USD, prize: 2}\n"
    path = write(tmp_path, text, "prices.yml")
    types, gaps = instance_types_with_overrides(path)
    assert types == instance_types()
    assert [gap.what for gap in gaps] == [f"{path}, entry 1", f"{path}, entry 2"]
    assert "unknown column prize" in " ".join(gap.detail for gap in gaps)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("prices.yaml", "- {name: [", "is no valid YAML"),
        ("prices.yaml", "name: x", "expected a list of mappings"),
        ("none.yaml", None, "cannot be read (No such file or directory)"),
    ],
)
def test_a_bad_file_leaves_the_catalog_in_force(tmp_path: Path, name: str, text: str | None, complaint: str) -> None:
    path = tmp_path / name if text is None else write(tmp_path, text, name)
    types, (gap,) = instance_types_with_overrides(path)
    assert types == instance_types()
    assert gap.what == str(path)
    assert complaint in gap.detail
    assert "The catalog's own prices apply" in gap.detail


def test_the_catalogs_own_file_may_have_no_bad_row() -> None:
    header = "name,vendor,region,gpu,gpu_count,price_per_hour,currency,price_date,source"
    header += ",vcpus,host_memory_bytes,host_source,host_checked\n"
    row = "x,aws,us-east-1,L4,1,0.8,USD,2026-09-01,list,,,,\n"
    assert parse_instances(header + row, "instances.csv")[0].gpu == "L4"
    with pytest.raises(CatalogError, match=r"instances.csv, line 3: \('x', 'us-east-1', 'L4', 1\) has a row already"):
        parse_instances(header + row + row, "instances.csv")
    with pytest.raises(CatalogError, match=r"instances.csv, line 2: the price is in EUR"):
        parse_instances(header + row.replace("USD", "EUR"), "instances.csv")
