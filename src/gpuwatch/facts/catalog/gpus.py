"""GPU models by the names that exporters and Nodes give them (`gpus.csv`), the processors of each
(`processors.csv`), and what a PCIe link can carry, by its generation (`pcie.csv`)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache, lru_cache
from operator import attrgetter

from gpuwatch.facts.catalog.mig import MigGeometry, MigProfile, families, geometry
from gpuwatch.facts.catalog.tables import Row, columns_of, keyed, packaged
from gpuwatch.facts.model.telemetry import Vendor


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU model, in the unit that Kubernetes counts. None: no source has the value, or it does not exist.

    memory_bytes: total that the driver reports, if a source gives it, else the nominal GiB.
    fp16_dense_flops_per_second: FP16/BF16, on tensor cores if it has any, dense: half of the figure 'with sparsity'.
    power_limit_watts: the board's default limit. link_bytes_per_second: NVLink, xGMI or RoCE, both directions together.
    mig_family: for `facts.catalog.mig.geometry`; '' without MIG. architecture: the compile target of images, as GPU
    Feature Discovery's nvidia.com/gpu.family (ada for ada-lovelace) or AMD's CDNA generation.
    compute_capability: NVIDIA's, major.minor. idle_power_watts: measured on an idle GPU. has_encoder: NVENC.
    """

    name: str
    vendor: Vendor
    aliases: tuple[str, ...]
    memory_bytes: int
    memory_bandwidth_bytes_per_second: float
    fp16_dense_flops_per_second: float | None
    power_limit_watts: float
    link_bytes_per_second: float | None
    mig_family: str
    architecture: str
    compute_capability: float | None
    idle_power_watts: float | None
    has_encoder: bool | None
    source: str
    checked: date


@lru_cache(maxsize=1024)
def find_gpu(name: str) -> Gpu | None:
    """The model of a `modelName`, a GFD product, an AMD `card_series` or `card_model`; None where unknown.

    Ignores case, the vendor's name, spaces for dashes and GFD's suffixes (-SHARED, -MIG-1g.5gb). An ambiguous name such
    as 'A100' (four models) is unknown.

    >>> find_gpu("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED").name
    'A100-SXM4-40GB'
    """
    return _by_name().get(_normal(name))


def model_name(name: str) -> str:
    """The catalog's name of a model; the given one where it is unknown."""
    gpu = find_gpu(name)
    return gpu.name if gpu is not None else name


def profile_name(gpu_model: str, mig_profile: str) -> str:
    """The catalog's name of a MIG profile in any driver's spelling; the given one where model or profile is unknown."""
    _, profile = _geometry_and_profile(gpu_model, mig_profile)
    return profile.name if profile is not None else mig_profile


def gpu_share_ratio(gpu_model: str, mig_profile: str | None) -> float:
    """Share of one physical GPU that a MIG instance takes, 0 to 1: that of the memory slices it occupies (its `size` in
    mig.json). Hours, money, savings and the MIG plan all use this definition.

    Instances do not overlap, so the shares on one card add up to at most 1: 3g.40gb takes four of eight slices, 0.5.
    One case is inexact: seven 1g instances of an A100 or H100 take seven of eight slices, 0.875, although no further
    instance fits. 1 for a whole GPU, and for a model or profile that the catalog lacks.
    """
    layout, profile = _geometry_and_profile(gpu_model, mig_profile)
    return layout.memory_ratio(profile) if layout is not None and profile is not None else 1.0


def _geometry_and_profile(gpu_model: str, mig_profile: str | None) -> tuple[MigGeometry | None, MigProfile | None]:
    gpu = find_gpu(gpu_model) if mig_profile else None
    layout = geometry(gpu.mig_family) if gpu is not None else None
    return layout, layout.profile(mig_profile) if layout is not None and mig_profile else None


@cache
def gpus() -> tuple[Gpu, ...]:
    return parse_gpus(packaged("gpus.csv"), "gpus.csv")


def parse_gpus(text: str, file: str) -> tuple[Gpu, ...]:
    """Models of a GPU table. Raises CatalogError that names file and line; one name may not mean two models."""
    owners: dict[str, str] = {}

    def make(row: Row) -> Gpu:
        mig_family = row.optional("mig_family")
        if mig_family and mig_family not in families():
            raise row.error(f"column 'mig_family' is {mig_family!r}, which mig.json does not have")
        aliases = tuple(alias.strip() for alias in row.optional("aliases").split(";") if alias.strip())
        gpu = row.as_(Gpu, aliases=aliases, mig_family=mig_family)
        for spelling in {_normal(alias) for alias in (gpu.name, *gpu.aliases)}:
            if spelling in owners:
                raise row.error(f"{spelling!r} names {owners[spelling]} already; one name may not mean two models")
            owners[spelling] = gpu.name
        return gpu

    return tuple(keyed(text, file, Gpu, attrgetter("name"), make).values())


@cache
def _by_name() -> Mapping[str, Gpu]:
    return {_normal(alias): gpu for gpu in gpus() for alias in (gpu.name, *gpu.aliases)}


_GFD_SUFFIX = re.compile(r"(-shared|-mig-[0-9a-z.+-]+)+$")
_MAKER = re.compile(r"^((nvidia|tesla|amd|intel\(r\)|intelr|intel)-)+")


def _normal(name: str) -> str:
    """Lower case, with dashes for spaces and underscores, without the vendor prefix and GFD's suffixes."""
    return _MAKER.sub("", _GFD_SUFFIX.sub("", re.sub(r"[\s_]+", "-", name.strip().lower())))


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieGeneration:
    """lane_bytes_per_second: of one lane, one way, after its encoding. replays_per_minute_per_lane: DCGM's bound for a
    healthy link, from the bit error rate that PCIe allows."""

    generation: int
    lane_bytes_per_second: float
    replays_per_minute_per_lane: float
    source: str
    checked: date


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """multiprocessors: SMs (compute units on AMD) without MIG. slice_multiprocessors: kind of MIG instance ('1g',
    '1g double-memory', …) → SMs; empty without a source. fp32_flops_per_second: peak without the tensor cores.
    pcie_bytes_per_second: of the x16 link, both directions together."""

    name: str
    architecture: str
    multiprocessors: int
    boost_clock_hertz: float
    fp32_flops_per_second: float
    pcie_bytes_per_second: float
    slice_multiprocessors: Mapping[str, int]
    source: str
    checked: date


@cache
def pcie_generations() -> Mapping[int, PcieGeneration]:
    return keyed(packaged("pcie.csv"), "pcie.csv", PcieGeneration, attrgetter("generation"))


@cache
def processors() -> Mapping[str, Processor]:
    """By Gpu.name; a model without a source is missing."""
    return parse_processors(packaged("processors.csv"), "processors.csv")


def parse_processors(text: str, file: str) -> dict[str, Processor]:
    """Raises CatalogError that names file and line."""
    cells = {"pcie_bytes_per_second": "pcie_generation"}  # the other columns are the fields
    columns = (cells.get(name, name) for name in columns_of(Processor))
    return keyed(text, file, Processor, attrgetter("name"), _processor, columns)


def _processor(row: Row) -> Processor:
    generation, known = row.cell("pcie_generation", int), pcie_generations()
    if generation not in known:
        raise row.error(f"column 'pcie_generation' is {generation}; expected one of {', '.join(map(str, known))}")
    whole = row.cell("multiprocessors", int)
    slices = {}
    for part in filter(None, row.optional("slice_multiprocessors").split(";")):
        kind, _, count = part.partition(":")
        if not count.isdecimal() or not 0 < int(count) <= whole:
            raise row.error(f"column 'slice_multiprocessors' has {part!r}; expected KIND:SMS, up to {whole}")
        slices[kind.strip()] = int(count)
    link = 2 * 16 * known[generation].lane_bytes_per_second
    return row.as_(Processor, pcie_bytes_per_second=link, slice_multiprocessors=slices)
