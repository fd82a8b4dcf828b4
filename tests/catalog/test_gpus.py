"""GPU models by the names that exporters and Nodes write, and their processors."""

import re
from pathlib import Path

import pytest
import yaml

from gpuwatch.facts.catalog.gpus import Gpu, find_gpu, gpu_share_ratio, gpus, parse_gpus, parse_processors, processors
from gpuwatch.facts.catalog.mig import families, geometry, maximal, placement_sets
from gpuwatch.facts.catalog.tables import CatalogError
from gpuwatch.facts.model.telemetry import Vendor

TABLES = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text(encoding="utf-8"))
SHARED = Path(__file__).parents[2].parent / "shared"


@pytest.mark.parametrize(("spelling", "name"), TABLES["spellings"])
def test_names_in_use(spelling: str, name: str) -> None:
    found = find_gpu(spelling)
    assert found.name == name


@pytest.mark.parametrize(
    "spelling", ["", "NVIDIA", "A100", "H100", "NVIDIA GeForce RTX 4090", "NVIDIA A100-SXM4-80GBx", "-SHARED", "L40SS"]
)
def test_nothing_is_guessed(spelling: str) -> None:
    assert find_gpu(spelling) is None


@pytest.mark.parametrize("gpu", gpus(), ids=lambda gpu: gpu.name)
def test_figures_are_of_the_right_size(gpu: Gpu) -> None:
    assert find_gpu(gpu.name) is gpu
    assert 8 * 2**30 <= gpu.memory_bytes <= 300 * 2**30
    assert 1e11 <= gpu.memory_bandwidth_bytes_per_second <= 1e13
    assert gpu.fp16_dense_flops_per_second is None or 1e13 <= gpu.fp16_dense_flops_per_second <= 3e15
    assert 50 <= gpu.power_limit_watts <= 1500
    assert gpu.link_bytes_per_second is None or 1e11 <= gpu.link_bytes_per_second <= 2e12
    assert gpu.idle_power_watts is None or gpu.idle_power_watts < gpu.power_limit_watts / 3
    assert gpu.source


def test_published_figures() -> None:
    h100 = find_gpu("NVIDIA H100 80GB HBM3")
    assert h100.vendor is Vendor.NVIDIA
    assert h100.memory_bytes == 80 * 2**30
    assert h100.memory_bandwidth_bytes_per_second == 3.35e12
    assert h100.fp16_dense_flops_per_second == 989e12  # not the 1979e12 'with sparsity'
    assert h100.power_limit_watts == 700
    assert h100.link_bytes_per_second == 900e9
    t4 = find_gpu("Tesla T4")
    assert t4.memory_bytes == 15109 * 2**20
    assert t4.link_bytes_per_second is None
    assert t4.mig_family == ""


def test_compute_capability_is_known_of_every_nvidia_gpu_and_of_no_other() -> None:
    # NVIDIA's architectures by major version; its GPUs have it in the page of CUDA GPUs.
    majors = {
        "pascal": {6},
        "volta": {7},
        "turing": {7},
        "ampere": {8},
        "ada": {8},
        "hopper": {9},
        "blackwell": {10, 12},
    }
    for gpu in gpus():
        assert (gpu.compute_capability is not None) is (gpu.vendor is Vendor.NVIDIA), gpu.name
        if gpu.compute_capability is not None:
            assert int(gpu.compute_capability) in majors[gpu.architecture], gpu.name
            assert "compute capability: " in gpu.source, gpu.name
            assert gpu.has_encoder is None or "NVENC" in gpu.source, gpu.name
            assert gpu.idle_power_watts is None or "idle" in gpu.source, gpu.name
            assert (gpu.compute_capability == 8.9) is (gpu.architecture == "ada"), gpu.name


def test_mig_families_fit_the_memory() -> None:
    used = {gpu.mig_family for gpu in gpus() if gpu.mig_family}
    assert used == set(families())
    for gpu in gpus():
        if not gpu.mig_family:
            continue
        mig = geometry(gpu.mig_family)
        whole = max(mig.profiles, key=lambda profile: profile.size)
        nominal = int(re.findall(r"\.(\d+)gb", whole.name)[0]) * 2**30
        assert abs(nominal - gpu.memory_bytes) < 0.04 * gpu.memory_bytes, gpu.name


@pytest.mark.parametrize(("model", "mig_profile", "share"), TABLES["shares"])
def test_the_share_of_a_slice_is_its_share_of_the_memory_slices(
    model: str, mig_profile: str | None, share: float
) -> None:
    assert gpu_share_ratio(model, mig_profile) == share


@pytest.mark.parametrize("model", [gpu.name for gpu in gpus() if gpu.mig_family])
def test_shares_on_one_card_never_exceed_it_and_a_card_without_a_place_left_is_allocated_in_full(model: str) -> None:
    gpu = find_gpu(model)
    mig = geometry(gpu.mig_family)
    share = {profile.name: gpu_share_ratio(model, profile.name) for profile in mig.profiles}
    for placed in placement_sets(mig):
        assert sum(share[one.profile] for one in placed) <= 1 + 1e-12, placed
    for placed in maximal(mig):
        units = sum(profile.size for one in placed if (profile := mig.profile(one.profile)))
        # Seven slices of compute on eight places: where the last place is left over, no further instance fits there.
        left = mig.grid_units - units
        assert left == 0 or (mig.compute_total, left) == (7, 1), placed
        assert sum(share[one.profile] for one in placed) == pytest.approx(1 - left / mig.grid_units)


@pytest.mark.skipif(not SHARED.exists(), reason="the shared samples are not beside this checkout")
def test_every_model_of_the_real_pages_and_nodes_is_known() -> None:
    names = set()
    for file in [*(SHARED / "samples").rglob("*.prom"), *(SHARED / "samples/nodes").glob("*.yaml")]:
        names |= set(re.findall(r'modelName="([^"]+)"|gpu\.product: (\S+)', file.read_text()))
    spellings = {a or b for a, b in names}
    assert len(spellings) >= 4
    assert {spelling for spelling in spellings if find_gpu(spelling) is None} == set()


HEADER = (
    "name,vendor,aliases,memory_bytes,memory_bandwidth_bytes_per_second,fp16_dense_flops_per_second,"
    "power_limit_watts,link_bytes_per_second,mig_family,architecture,compute_capability,idle_power_watts,has_encoder,source,checked\n"
)
GOOD = "X1,nvidia,NVIDIA X1;X1 Pro,1000,2000,,70,,,hopper,,,,sheet,2026-11-21\n"


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (GOOD + GOOD.replace("X1,", "X2,", 1), r"gpus.csv, line 3: 'x1.*' names X1 already"),
        (GOOD.replace("1000", "1.5"), r"gpus.csv, line 2: column 'memory_bytes' is '1.5'; expected a whole number"),
        (GOOD.replace(",70,,,", ",70,,A100,"), r"gpus.csv, line 2: column 'mig_family' is 'A100', which mig.json"),
        (GOOD.replace("nvidia,NV", "nvidea,NV"), r"gpus.csv, line 2: column 'vendor' is 'nvidea'; expected one of"),
        (GOOD.replace(",sheet", ","), r"gpus.csv, line 2: column 'source' is empty"),
        (GOOD.replace("2026-11-21", ""), r"gpus.csv, line 2: column 'checked' is empty"),
        (
            GOOD.replace("2026-11-21", "today"),
            r"line 2: column 'checked' is 'today'; expected a date such as",
        ),
        (GOOD.replace("hopper", ""), r"gpus.csv, line 2: column 'architecture' is empty"),
        ("", r"gpus.csv: the table has no rows"),
    ],
)
def test_a_malformed_row_is_named(rows: str, complaint: str) -> None:
    assert parse_gpus(HEADER + GOOD, "gpus.csv")[0].fp16_dense_flops_per_second is None
    with pytest.raises(CatalogError, match=complaint):
        parse_gpus(HEADER + rows, "gpus.csv")


PROCESSORS = (
    "name,architecture,multiprocessors,boost_clock_hertz,fp32_flops_per_second,pcie_generation,"
    "slice_multiprocessors,source,checked\n"
)


def test_every_row_is_a_gpu_of_the_catalog() -> None:
    assert set(processors()) <= {gpu.name for gpu in gpus()}


@pytest.mark.parametrize("name", sorted(processors()))
def test_slices_are_kinds_that_the_gpu_has_and_fit_into_it(name: str) -> None:
    processor, gpu = processors()[name], find_gpu(name)
    shape = geometry(gpu.mig_family)
    kinds = {} if shape is None else {p.name.partition(".")[0]: p.compute_slices for p in shape.profiles}
    for kind, count in processor.slice_multiprocessors.items():
        slices = kinds[kind.removesuffix(" double-memory")]
        if not kind.endswith("double-memory"):
            # Within a few SMs of its share: GPCs differ in size, H100 gives 3g more than three sevenths, and H20 gives
            # 1g one of its GPCs' eight SMs.
            few = 0.29 if name.startswith("H20-") else 0.16
            assert count / processor.multiprocessors == pytest.approx(slices / shape.compute_total, rel=few)


@pytest.mark.parametrize("name", sorted(name for name, one in processors().items() if one.architecture != "cdna2"))
def test_fp32_peak_is_cores_times_clock(name: str) -> None:
    """128 or 64 FP32 lanes per SM, two operations each; CDNA2's and later packed rates are twice as high again. H20's
    data sheet gives no clock that explains its peak."""
    processor = processors()[name]
    lanes = processor.fp32_flops_per_second / (processor.multiprocessors * processor.boost_clock_hertz * 2)
    assert min(abs(lanes / width - 1) for width in (64, 128)) < (0.15 if name.startswith("H20-") else 0.05)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("X,a,10,1e9,1e12,9,,s,2026-11-21", "'pcie_generation' is 9; expected one of 1, 2, 3, 4, 5, 6"),
        ("X,a,10,1e9,1e12,4,1g:11,s,2026-11-21", "'1g:11'; expected KIND:SMS, up to 10"),
        ("X,a,10,1e9,1e12,4,1g,s,2026-11-21", "'1g'; expected KIND:SMS"),
        ("X,a,10,1e9,1e12,4,,s,2026-11-21\nX,a,10,1e9,1e12,4,,s,2026-11-21", "has a row already"),
    ],
)
def test_malformed_rows_are_refused(row: str, says: str) -> None:
    with pytest.raises(CatalogError, match=r"x\.csv, line") as error:
        parse_processors(PROCESSORS + row, "x.csv")
    assert says in str(error.value)
