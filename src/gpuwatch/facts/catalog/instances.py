"""Instance types with GPUs and their hourly prices: `instances.csv`, overridden by the operator's own prices.

The catalog has on-demand Linux prices of AWS, six regions of Azure and all of Google Cloud, each with its date. It
leaves out types with a fraction of a GPU, and GPUs that `gpus.csv` lacks. A price includes the host's CPUs and memory,
so the price per GPU grows with the host. The host's size has its own source, and is empty without one.
"""

from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path

import yaml

from gpuwatch.facts.catalog.gpus import find_gpu
from gpuwatch.facts.catalog.tables import (
    CatalogError,
    Row,
    bad_input,
    columns_of,
    csv_rows,
    keyed,
    operators_file,
    packaged,
)
from gpuwatch.facts.model.telemetry import Gap

CURRENCY = "USD"
"""Currency of the catalog's own prices, ISO 4217."""

ANY_REGION = "*"

_HOST = ("vcpus", "host_memory_bytes", "host_source", "host_checked")
_REQUIRED = ("name", "gpu", "gpu_count", "price_per_hour", "currency", "price_date")

_Brackets = tuple[tuple[float, float], ...]  # (upper bound, share of the amount in the bracket)

# What the kubelet reserves. Google's and Azure's managed clusters share these; EKS has the same for CPUs, and reserves
# less of a small machine's memory (255 MiB and 11 MiB per Pod). Azure/karpenter-provider-azure@352646f5
# pkg/providers/instancetype/instancetype.go, aws/karpenter-provider-aws@1d927085 pkg/providers/instancetype/types.go.
_RESERVED_CPU_RATIOS: _Brackets = ((1.0, 0.06), (2.0, 0.01), (4.0, 0.005), (float("inf"), 0.0025))
_RESERVED_MEMORY_RATIOS: _Brackets = (
    (4 * 2.0**30, 0.25),
    (8 * 2.0**30, 0.20),
    (16 * 2.0**30, 0.10),
    (128 * 2.0**30, 0.06),
    (float("inf"), 0.02),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """A machine type in a region; '*' where the operator's price applies to all regions.

    vcpus, host_memory_bytes: of the whole machine, as the provider sells it; None where unknown.
    """

    name: str  # node.kubernetes.io/instance-type
    vendor: str  # aws, azure, gcp; the operator's value, or ''
    region: str  # topology.kubernetes.io/region
    gpu: str  # Gpu.name
    gpu_count: int
    price_per_hour: float  # of the whole machine, in `currency`
    currency: str
    price_date: date
    source: str
    vcpus: int | None = None
    host_memory_bytes: int | None = None
    host_source: str = ""  # of these two
    host_checked: date | None = None  # None for the operator's figures and for unknown ones

    @property
    def price_per_gpu_hour(self) -> float:
        return self.price_per_hour / self.gpu_count

    @property
    def allocatable_cpu_cores(self) -> float | None:
        """vcpus less the kubelet's reservation; DaemonSets' Pods use some of it."""
        return None if self.vcpus is None else self.vcpus - _reserved(self.vcpus, _RESERVED_CPU_RATIOS)

    @property
    def allocatable_memory_bytes(self) -> float | None:
        """Less the kubelet's reservation: 0.95 to 1.07 of what Karpenter's documentation has for 47 AWS types."""
        if self.host_memory_bytes is None:
            return None
        return self.host_memory_bytes - _reserved(self.host_memory_bytes, _RESERVED_MEMORY_RATIOS)


_COLUMNS = columns_of(InstanceType)


@cache
def instance_types() -> tuple[InstanceType, ...]:
    return parse_instances(packaged("instances.csv"), "instances.csv")


def instance_types_with_overrides(
    path: Path, currency: str = CURRENCY
) -> tuple[tuple[InstanceType, ...], tuple[Gap, ...]]:
    """The operator's rows, then the catalog's types; and a Gap for each row that could not be used.

    The file is a CSV with a header, or a YAML list of mappings, with the columns name, gpu (any name that the GPU table
    has), gpu_count, price_per_hour, currency, price_date, and optionally vendor, region (default '*'), source, vcpus,
    host_memory_bytes, host_source and host_checked. A row replaces the catalog's rows of the same name and region; one
    for '*' replaces all of that name. A machine to which GPUs are attached has a row for each model and number. The
    host's size defaults to that of the catalog's type with the same name and GPUs. A row in another currency than
    `currency` is left out with a Gap; the catalog's prices keep theirs.
    """
    gaps = []
    own: dict[tuple[str, str, str, int], InstanceType] = {}
    for row in _read(path):
        try:
            if isinstance(row, CatalogError):
                raise row
            one = _with_host(_instance(_completed(row, str(path)), currency))
            if own.setdefault(_key(one), one) is not one:
                gpus = f"{one.gpu_count} x {one.gpu}"
                raise row.error(
                    f"{one.name} in region {one.region} with {gpus} has a row already; keep one (the first counts)"
                )
        except CatalogError as refused:
            gaps.append(bad_input(refused.place, refused.problem))
    places = {(name, region) for name, region, *_ in own}
    kept = (one for one in instance_types() if places.isdisjoint({(one.name, ANY_REGION), (one.name, one.region)}))
    return (*own.values(), *kept), tuple(gaps)


def parse_instances(text: str, file: str) -> tuple[InstanceType, ...]:
    """Raises CatalogError that names file and line."""
    return tuple(keyed(text, file, InstanceType, _key, lambda row: _instance(row, CURRENCY)).values())


def _key(one: InstanceType) -> tuple[str, str, str, int]:
    return one.name, one.region, one.gpu, one.gpu_count


def _with_host(one: InstanceType) -> InstanceType:
    """With the catalog's host size where the operator gives none: a type has the same one in all regions."""
    if one.vcpus is not None or one.host_memory_bytes is not None:
        return one
    same = (one.name, one.gpu, one.gpu_count)
    known = next((each for each in instance_types() if (each.name, each.gpu, each.gpu_count) == same), None)
    if known is None:
        return one
    return replace(one, **{name: getattr(known, name) for name in _HOST})


def _reserved(size: float, brackets: _Brackets) -> float:
    total, begin = 0.0, 0.0
    for end, ratio in brackets:
        total += max(min(size, end) - begin, 0.0) * ratio
        begin = end
    return total


def _instance(row: Row, wanted: str) -> InstanceType:
    gpu = find_gpu(row.text("gpu"))
    if gpu is None:
        raise row.error(
            f"the GPU model {row.text('gpu')!r} is unknown; write it as a Node's nvidia.com/gpu.product does"
        )
    currency = row.text("currency").upper()
    if currency != wanted:
        raise row.error(
            f"the price is in {currency}, and sums are in {wanted}; convert it, or change the setting `currency`"
        )
    has_host = row.optional("vcpus") or row.optional("host_memory_bytes")
    found = row.as_(
        InstanceType,
        vendor=row.optional("vendor"),
        gpu=gpu.name,
        currency=currency,
        host_source=(row.optional("host_source") or row.text("source")) if has_host else "",
    )
    if found.gpu_count < 1:
        raise row.error(f"column 'gpu_count' is {found.gpu_count}; expected the number of whole GPUs")
    if found.price_per_hour <= 0:
        price = found.price_per_hour
        raise row.error(f"column 'price_per_hour' is {price:g}; expected the price of one hour of the machine")
    for column, size in (("vcpus", found.vcpus), ("host_memory_bytes", found.host_memory_bytes)):
        if size is not None and size < 1:
            raise row.error(f"column {column!r} is {size}; expected that of the whole machine, or nothing")
    return found


def _completed(row: Row, file: str) -> Row:
    """An operator's row with its optional columns filled in."""
    unknown = [column for column in row.cells if column not in _COLUMNS]
    if unknown:
        raise row.error(f"unknown column {', '.join(unknown)}; the columns are {', '.join(_COLUMNS)}")
    missing = [column for column in _REQUIRED if not row.cells.get(column, "").strip()]
    if missing:
        raise row.error(f"{', '.join(missing)} is missing, so the row is ignored; give a value")
    given = {column: value for column, value in row.cells.items() if value.strip()}
    return Row(row.place, {"vendor": "", "region": ANY_REGION, "source": file} | dict.fromkeys(_HOST, "") | given)


def _read(path: Path) -> list[Row | CatalogError]:
    """The operator's rows, and what is wrong with each entry that is none."""
    is_csv = path.suffix.lower() == ".csv"
    try:
        return operators_file(
            path, lambda text: [*csv_rows(text, str(path))[1]] if is_csv else _yaml_rows(text, str(path))
        )
    except CatalogError as refused:
        return [CatalogError(refused.place, f"{refused.problem}. The catalog's own prices apply")]


def _yaml_rows(text: str, file: str) -> list[Row | CatalogError]:
    entries = yaml.safe_load(text)
    keys = ", ".join(_COLUMNS)
    if not isinstance(entries, list):
        raise CatalogError(file, f"expected a list of mappings with the keys {keys}")
    return [
        Row(place, {str(key): "" if value is None else str(value) for key, value in entry.items()})
        if isinstance(entry, dict)
        else CatalogError(place, f"expected a mapping with the keys {keys}; it is {entry!r}")
        for place, entry in ((f"{file}, entry {number}", entry) for number, entry in enumerate(entries, 1))
    ]
