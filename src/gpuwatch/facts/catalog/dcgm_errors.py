"""Meanings of the incidents of DCGM's health watches, by error code or by watch: `dcgm_errors.csv`."""

from dataclasses import dataclass
from functools import cache

from gpuwatch.facts.catalog.tables import Row, columns_of, keyed, packaged
from gpuwatch.facts.model.decision import Advice, Component, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmError:
    """remembered: DCGM shows it even after the advised repair, until its host engine restarts. shown_from: the lowest
    status that is a finding: 20 (fail); 10 for an error that only warns; 255 for one that is never a finding."""

    code: str
    components: tuple[Component, ...]
    severity: Severity
    advice: Advice
    remembered: bool
    shown_from: int
    words: str
    source: str
    checked: str


def dcgm_error(watch: str, code: str) -> DcgmError:
    known = dcgm_errors()
    return known.get(code) or known.get(watch) or known["OTHER"]


@cache
def dcgm_errors() -> dict[str, DcgmError]:
    def error(row: Row) -> DcgmError:
        return row.as_(DcgmError, components=tuple(map(Component, row.optional("components").split())))

    file = "dcgm_errors.csv"
    return keyed(packaged(file), file, columns_of(DcgmError), error, lambda one: one.code)
