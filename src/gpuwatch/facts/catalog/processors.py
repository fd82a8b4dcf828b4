"""Processors of each GPU model (`processors.csv`, by the names of `gpus.csv`), and what a PCIe link can carry, by its
generation (`pcie.csv`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from operator import attrgetter

from gpuwatch.facts.catalog.tables import Row, columns_of, keyed, packaged


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
