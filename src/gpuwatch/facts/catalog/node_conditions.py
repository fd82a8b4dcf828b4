"""Conditions with which other detectors mark a Node or its GPUs as broken: `node_conditions.csv`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from operator import attrgetter, methodcaller
from typing import Literal

from gpuwatch.facts.catalog.tables import columns_of, keyed, packaged


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCondition:
    """bad_status: the status that means broken. words: the meaning, as a clause."""

    type: str
    bad_status: Literal["True", "False"]
    detector: str
    words: str
    source: str
    checked: date


@cache
def node_conditions() -> Mapping[str, NodeCondition]:
    """By type. Raises CatalogError that names file and line."""
    file = "node_conditions.csv"
    make = methodcaller("as_", NodeCondition)
    return keyed(packaged(file), file, columns_of(NodeCondition), make, attrgetter("type"))
