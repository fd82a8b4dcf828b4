"""The rows of metrics.yaml, which declares every metric of /metrics and says what its fields mean."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import product
from typing import Any

import msgspec
import yaml

from gpuwatch.act.plan.brakes import BRAKES
from gpuwatch.act.plan.guards import Guard
from gpuwatch.facts.catalog.tables import CatalogError, checked, packaged
from gpuwatch.facts.model.cluster import FactKind
from gpuwatch.facts.model.decision import ActionKind
from gpuwatch.facts.model.ledger import LossCause
from gpuwatch.facts.model.remediation import Phase
from gpuwatch.sources.kube.writer import Failure

_WRITES = ("create", "delete", "event", "evict", "patch")

VOCABULARIES: Mapping[str, tuple[str, ...]] = {
    # Actions of gpuwatch itself; resizing is left to the owner.
    "actions": tuple(map(str, ActionKind)),
    "booleans": ("false", "true"),
    "contents": ("report", "notification"),
    "facts": tuple(map(str, FactKind)),
    "causes": tuple(map(str, LossCause)),
    "failures": tuple(map(str, Failure)),
    "open_phases": tuple(str(phase) for phase in Phase if phase.open),
    "phases": tuple(map(str, Phase)),
    "stops": (*map(str, BRAKES), str(Guard.CLUSTER_KNOWN), "unreachable", "nothing"),
    "requests": (*_WRITES, "get", "list"),
    "results": ("sent", "failed"),
    "writes": _WRITES,
}
"""Label values that are known from the start."""


class MetricType(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class ExportedBy(StrEnum):
    REPLICA = "replica"  # each of them
    LEADER = "leader"


class MetricDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    type: MetricType
    meaning: str
    unit: str = ""
    labels: Mapping[str, str] = {}
    exported_by: ExportedBy = ExportedBy.REPLICA
    starts_with: tuple[str, ...] = ()
    most_series: int = 0
    buckets: tuple[float, ...] = ()

    def initial(self) -> Iterator[tuple[str, ...]]:
        """Label values of the series that start at 0."""
        if self.starts_with:
            yield from product(*(VOCABULARIES[each] for each in self.starts_with))


def described(row: Any, place: str) -> MetricDescription:
    """Raises CatalogError that names `place` and the field."""
    if isinstance(row, Mapping):
        place = f"{place}, {row.get('name')}"
    each = checked(row, MetricDescription, place)
    unknown = set(each.starts_with) - set(VOCABULARIES)
    if unknown or len(each.starts_with) not in (0, len(each.labels)):
        known = ", ".join(VOCABULARIES)
        raise CatalogError(place, f"starts_with is {each.starts_with}; expected one of {known} for each label")
    words = {name: ", ".join(values) for name, values in VOCABULARIES.items()}
    try:
        labels = {label: meaning.format_map(words) for label, meaning in each.labels.items()}
    except KeyError as name:
        raise CatalogError(place, f"labels have {{{name.args[0]}}}, which is no vocabulary") from None
    return msgspec.structs.replace(each, labels=labels)


METRICS = tuple(
    described(row, f"metrics.yaml, row {number}")
    for number, row in enumerate(yaml.safe_load(packaged("metrics.yaml", "gpuwatch.app.controller"))["metrics"], 1)
)
