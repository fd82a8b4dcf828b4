"""Gaps for queries that failed, signals that are missing and values that were dropped."""

from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, field

from gpuwatch.facts.catalog.metrics import metric_rows, plausible_range
from gpuwatch.facts.model.telemetry import DeviceId, Gap, GapKind, Signal
from gpuwatch.sources.telemetry.samples import TelemetryError

BLANK = 2.0**62
"""DCGM's blank values start at 2^62 (DCGM_INT64_BLANK is 0x7ffffffffffffff0); nothing measured comes near."""

_AFTER_FIRST_EVENT = frozenset({Signal.XID_CODE, Signal.XID_WINDOW_COUNT, Signal.XID_EVENTS_TOTAL})
"""Signals whose series begin with the first XID."""


def failed(what: str, error: TelemetryError) -> Gap:
    return Gap(kind=error.kind, what=what, detail=str(error))


def missing(signal: Signal, vocabularies: Iterable[str]) -> Gap:
    """A signal that no exporter here has, with the counter line that enables it where there is one."""
    here = set(vocabularies)
    known = [row for row in metric_rows() if row.signal is signal]
    wanted = [row for row in known if row.vocabulary in here] or known
    if not known:
        detail = "no exporter that gpuwatch knows has this signal"
    elif here and not any(row.vocabulary in here for row in known):
        detail = f"the exporters here ({', '.join(sorted(here))}) do not have this signal; others do"
    else:
        detail = f"no series of {', '.join(dict.fromkeys(row.metric for row in wanted))}"
        line = next((row.exporter_line for row in wanted if row.exporter_line), "")
        if signal in _AFTER_FIRST_EVENT:
            detail += "; newer exporters write no such series before the first XID, so this may be normal"
        if any(row.default_exported for row in wanted):
            detail += "; it is in the exporter's default list, so either no GPU here has it or it is filtered out"
        elif line:
            detail += f"; to have it, add to the counter CSV of dcgm-exporter: {line}"
    return Gap(kind=GapKind.SIGNAL_MISSING, what=f"signal {signal}", detail=detail)


@dataclass(slots=True)
class Dropped:
    """Devices whose values were dropped, by signal; one Gap per signal."""

    blank: dict[Signal, set[DeviceId]] = field(default_factory=dict)
    implausible: dict[Signal, set[DeviceId]] = field(default_factory=dict)

    def add(self, signal: Signal, device: DeviceId, *, blank: bool = False) -> None:
        (self.blank if blank else self.implausible).setdefault(signal, set()).add(device)

    def gaps(self) -> Iterator[Gap]:
        for signal in dict.fromkeys((*self.blank, *self.implausible)):
            blank, implausible = self.blank.get(signal, set()), self.implausible.get(signal, set())
            parts = []
            if blank:
                parts.append(f"blank values (2^62 or more; DCGM writes them for what a GPU lacks) of {_devices(blank)}")
            if implausible - blank:
                low, high = plausible_range(signal)
                bounds = f"{low:g} to {high:g} {signal.unit}".rstrip()
                parts.append(f"values outside {bounds} of {_devices(implausible - blank)}")
            yield Gap(kind=GapKind.IMPLAUSIBLE, what=f"signal {signal}", detail=f"dropped {' and '.join(parts)}")


def _devices(devices: Sized) -> str:
    return f"{len(devices)} device{'s' * (len(devices) != 1)}"
