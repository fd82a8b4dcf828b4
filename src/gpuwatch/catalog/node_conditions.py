"""Node conditions by which other detectors say that a Node or its GPUs are broken: `node_conditions.csv`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache

from gpuwatch.catalog.tables import columns_of, packaged, read_csv


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCondition:
    """bad_status: the status that says so. words: what it means, as a clause."""

    type: str
    bad_status: str
    detector: str
    words: str
    source: str
    checked: date


@cache
def node_conditions() -> Mapping[str, NodeCondition]:
    """By type. Raises CatalogError that names file and line."""
    file = "node_conditions.csv"
    found = {}
    for row in read_csv(packaged(file), file, columns_of(NodeCondition)):
        one = row.as_(NodeCondition)
        row.one_of("bad_status", ("True", "False"))
        if one.type in found:
            raise row.error(f"{one.type!r} has a row already; one type has one")
        found[one.type] = one
    return found
