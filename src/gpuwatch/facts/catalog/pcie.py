"""What a PCIe link can carry, by generation: `pcie.csv`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache

from gpuwatch.facts.catalog.tables import columns_of, keyed, packaged


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieGeneration:
    """lane_bytes_per_second: of one lane, one way, after its encoding. replays_per_minute_per_lane: DCGM's bound for a
    healthy link, from the bit error rate that PCIe allows."""

    generation: int
    lane_bytes_per_second: float
    replays_per_minute_per_lane: float
    source: str
    checked: date


@cache
def pcie_generations() -> Mapping[int, PcieGeneration]:
    file = "pcie.csv"
    columns = columns_of(PcieGeneration)
    return keyed(packaged(file), file, columns, lambda row: row.as_(PcieGeneration), lambda one: one.generation)
