"""The table of processors: agrees with the GPUs and their slices, and refuses what is malformed."""

import pytest

from gpuwatch.facts.catalog.gpus import find_gpu, gpus
from gpuwatch.facts.catalog.mig import geometry
from gpuwatch.facts.catalog.processors import parse_processors, processors
from gpuwatch.facts.catalog.tables import CatalogError

HEADER = (
    "name,architecture,multiprocessors,boost_clock_hertz,fp32_flops_per_second,pcie_generation,"
    "slice_multiprocessors,source,checked\n"
)


def test_every_row_is_a_gpu_of_the_catalog() -> None:
    assert set(processors()) <= {gpu.name for gpu in gpus()}


@pytest.mark.parametrize("name", sorted(processors()))
def test_slices_are_kinds_that_the_gpu_has_and_fit_into_it(name: str) -> None:
    processor, gpu = processors()[name], find_gpu(name)
    assert gpu is not None
    shape = geometry(gpu.mig_family)
    kinds = {} if shape is None else {p.name.partition(".")[0]: p.compute_slices for p in shape.profiles}
    for kind, count in processor.slice_multiprocessors.items():
        slices = kinds[kind.removesuffix(" double-memory")]
        if not kind.endswith("double-memory"):
            # Within a few SMs of its share: GPCs differ in size, H100 gives 3g more than three sevenths, and H20 gives
            # 1g one of its GPCs' eight SMs.
            assert shape is not None
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
        parse_processors(HEADER + row, "x.csv")
    assert says in str(error.value)


def test_the_empty_table_is_refused() -> None:
    with pytest.raises(CatalogError, match="no rows"):
        parse_processors(HEADER, "x.csv")
