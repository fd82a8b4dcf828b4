"""What other detectors say: DCGM's health watches (`dcgm_errors.csv`), and those that write conditions of Nodes
(`node_conditions.csv`) or labels (`node_labels.csv`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from operator import attrgetter
from typing import Literal

from gpuwatch.facts.catalog.tables import Row, keyed, packaged
from gpuwatch.facts.model.decision import Advice, Component, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmError:
    """Meaning of an incident, by its error code or by its watch. number: of the code, where dcgm-exporter may not know
    its name and writes DCGM_FR_UNKNOWN(number). remembered: DCGM shows it even after the advised repair, until its host
    engine restarts. shown_from: the lowest status that is a finding: 20 (fail); 10 for an error that only warns; 255
    for one that is never a finding."""

    code: str
    number: int | None
    components: tuple[Component, ...]
    severity: Severity
    advice: Advice
    remembered: bool
    shown_from: int
    words: str
    source: str
    checked: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCondition:
    """A condition that marks a Node or its GPUs as broken. bad_status: the status that means broken. words: the
    meaning, as a clause."""

    type: str
    bad_status: Literal["True", "False"]
    detector: str
    words: str
    source: str
    checked: date


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLabel:
    """A label by which a provider calls a Node broken, or likely to break. repairs: it repairs the Node itself then, by
    default. words: as of a NodeCondition."""

    key: str
    value: str
    detector: str
    repairs: bool
    words: str
    source: str
    checked: date


def dcgm_error(watch: str, code: str) -> DcgmError:
    known = dcgm_errors()
    return known.get(code) or _by_unknown_name().get(code) or known.get(watch) or known["OTHER"]


@cache
def _by_unknown_name() -> Mapping[str, DcgmError]:
    return {f"DCGM_FR_UNKNOWN({each.number})": each for each in dcgm_errors().values() if each.number is not None}


@cache
def dcgm_errors() -> Mapping[str, DcgmError]:
    file = "dcgm_errors.csv"
    return keyed(packaged(file), file, DcgmError, attrgetter("code"), _dcgm_error)


def _dcgm_error(row: Row) -> DcgmError:
    number = row.optional("number")
    parts = tuple(map(Component, row.optional("components").split()))
    return row.as_(DcgmError, number=int(number) if number else None, components=parts)


@cache
def node_conditions() -> Mapping[str, NodeCondition]:
    """By type."""
    file = "node_conditions.csv"
    return keyed(packaged(file), file, NodeCondition, attrgetter("type"))


@cache
def node_labels() -> Mapping[tuple[str, str], NodeLabel]:
    """By key and value."""
    file = "node_labels.csv"
    return keyed(packaged(file), file, NodeLabel, attrgetter("key", "value"))
