"""Which exporter metric carries which signal: `metrics.csv`, and the physical bounds of each signal: `ranges.csv`.

Vocabularies: `dcgm` (dcgm-exporter up to 4.8), `dcgm49` (from 4.9, base units; its aliases exist since DCGM 4.6),
`amd` (device-metrics-exporter), `xpum1` and `xpumd2` (Intel XPU Manager 1.x and 2.x) and `gaudi`.
A metric that kept its name has a row in `dcgm` and one in `dcgm49`, with the same scale: query it once.

Left out because the unit or the meaning is not documented: Gaudi's energy and PCIe throughput, AMD's accumulated
violation counters (firmware ticks) and PCIe bandwidth (both directions in one number), Intel's Xe-Link status. AMD's
`gpu_violation_*_residency_percentage` are left out because there is no signal for a share of time by cause.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import Literal

from gpuwatch.facts.catalog.tables import CatalogError, Row, keyed, packaged, read_csv
from gpuwatch.facts.model.telemetry import Scope, Signal, Vendor


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """One signal as one exporter spells it. value × `scale` = SI.

    kind: 'gauge', 'counter', 'state' (a code or truth value: the last one counts) or 'window' (a count over the
        exporter's own window; it falls again). The exporter's TYPE is ignored.
    preference: a device's value comes from the metric with the lowest number that has the device.
    combine: how several rows of one device become one value: 'max', 'avg', 'sum' or 'min'. Rows repeat on MIG
        instances and for the Pods that share a GPU, so 'sum' is right only for parts (tiles) of a device.
    variant_label: the label, or labels separated by ';', whose values are kept apart. Several values are joined by ';'.
    matchers: label=value pairs that select the rows.
    zero_means_absent: AMD exports a power of 0 on every partition but the first.
    default_exported: in the exporter's default list.
    exporter_line: the line for dcgm-exporter's counter CSV that enables the metric; '' for other exporters.
    """

    vocabulary: Literal["dcgm", "dcgm49", "amd", "xpum1", "xpumd2", "gaudi"]
    vendor: Vendor
    metric: str
    signal: Signal
    scale: float
    kind: Literal["gauge", "counter", "state", "window"]
    scope: Scope
    preference: int
    combine: Literal["max", "avg", "sum", "min"]
    variant_label: Literal["", "xid", "health_watch;health_error_code", "clock_event"]
    matchers: tuple[tuple[str, str], ...]
    zero_means_absent: bool
    default_exported: bool
    exporter_line: str
    source: str
    checked: date

    @property
    def variant_labels(self) -> tuple[str, ...]:
        return tuple(self.variant_label.split(";")) if self.variant_label else ()

    def variant(self, labels: Mapping[str, str]) -> str:
        """The values of the variant's labels; '' where a row has none of them."""
        return ";".join(value for label in self.variant_labels if (value := labels.get(label)))


def parse_metrics(text: str, file: str) -> tuple[MetricRow, ...]:
    """Raises CatalogError that names file and line."""
    return tuple(keyed(text, file, MetricRow, _identity, _metric_row).values())


def _identity(row: MetricRow) -> str:
    return " ".join((row.vocabulary, row.metric, row.signal, *map("=".join, row.matchers)))


def _metric_row(row: Row) -> MetricRow:
    found = row.as_(MetricRow, matchers=_matchers(row), exporter_line=row.optional("exporter_line"))
    if found.scale <= 0:
        raise row.error(
            f"column 'scale' is {found.scale:g}; expected a positive factor that turns the value into SI units"
        )
    if found.preference < 1:
        raise row.error(f"column 'preference' is {found.preference}; the first choice is 1")
    return found


def _matchers(row: Row) -> tuple[tuple[str, str], ...]:
    text = row.optional("matchers")
    if not text:
        return ()
    pairs = []
    for part in text.split(";"):
        label, equals, value = part.partition("=")
        if not (label and equals and value):
            raise row.error(f"column 'matchers' has {part!r}; expected label=value, several separated by ';'")
        pairs.append((label, value))
    return tuple(pairs)


@cache
def metric_rows() -> tuple[MetricRow, ...]:
    return parse_metrics(packaged("metrics.csv"), "metrics.csv")


@cache
def rows_for(signal: Signal) -> tuple[MetricRow, ...]:
    """Rows of one signal in all vocabularies, the preferred ones first."""
    return tuple(sorted((row for row in metric_rows() if row.signal is signal), key=lambda row: row.preference))


@cache
def _ranges() -> dict[Signal, tuple[float, float]]:
    return parse_ranges(packaged("ranges.csv"), "ranges.csv")


def parse_ranges(text: str, file: str) -> dict[Signal, tuple[float, float]]:
    """Raises CatalogError that names file and line, also where a signal has no bounds or two."""
    ranges: dict[Signal, tuple[float, float]] = {}
    for row in read_csv(text, file, ("signal", "minimum", "maximum", "reason", "checked")):
        signal, low, high = row.cell("signal", Signal), row.cell("minimum", float), row.cell("maximum", float)
        row.text("reason")
        row.cell("checked", date)
        if signal in ranges:
            raise row.error(f"{signal} has a row already; keep one")
        if not low < high:
            raise row.error(f"the minimum {low:g} is not below the maximum {high:g}")
        ranges[signal] = (low, high)
    missing = [signal for signal in Signal if signal not in ranges]
    if missing:
        raise CatalogError(file, f"no row for {', '.join(missing)}; add one with its reason")
    return ranges


def plausible_range(signal: Signal) -> tuple[float, float]:
    """Lowest and highest possible value in SI units, both included; `ranges.csv` has the reasons. A value outside is no
    measurement but a blank sentinel (DCGM leaks values near 2^63) or a fault of the exporter."""
    return _ranges()[signal]
