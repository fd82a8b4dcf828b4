"""What an incident of DCGM's health watches means, by its error code, else by its watch: `dcgm_errors.csv`."""

from dataclasses import dataclass
from functools import cache

from gpuwatch.catalog.tables import columns_of, packaged, read_csv
from gpuwatch.model.decision import Advice, Component, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmError:
    """remembered: DCGM keeps it after the repair that the advice names, until its host engine restarts. shown_from: the
    status from which it is a finding: 20 (fail), 10 for what only ever warns, 255 for what never is."""

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
    rows = read_csv(packaged("dcgm_errors.csv"), "dcgm_errors.csv", columns_of(DcgmError))
    found = (row.as_(DcgmError, components=tuple(map(Component, row.optional("components").split()))) for row in rows)
    return {each.code: each for each in found}
