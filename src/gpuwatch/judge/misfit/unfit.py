"""Periods in which a GPU was degraded; profiles leave them out of its workload's usage."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from gpuwatch.facts.catalog.xids import Xid, XidClass
from gpuwatch.facts.model.decision import Finding, FindingKind, Verdict
from gpuwatch.facts.model.telemetry import Signal, StateChange
from gpuwatch.facts.model.workload_profile import Unfit

CAUSES = {Signal.XID_CODE: FindingKind.XID, Signal.RECOVERY_ACTION_CODE: FindingKind.RECOVERY_ACTION}
"""State signals that mark such a period."""


def degrades(signal: Signal, value: float, xids: Mapping[int, Xid]) -> bool:
    """Whether this value of one of CAUSES means a degraded GPU; of the XIDs only the fatal ones do.

    xids: the catalog with the operator's overrides.
    """
    if signal is Signal.XID_CODE:
        known = xids.get(int(value))
        return known is not None and known.xid_class is XidClass.FATAL
    return value > 0


def unfit_by_changes(
    open_since: Mapping[tuple[str, Signal], datetime],
    changes: Iterable[StateChange],
    end: datetime,
    xids: Mapping[int, Xid],
) -> list[Unfit]:
    """Periods from a value that degrades a GPU until a 0 or `end`; another XID does not clear a fatal one.

    open_since: periods that began before the changes, by GPU and signal.
    """
    since = dict(open_since)
    found: list[Unfit] = []
    for change in sorted(changes, key=lambda each: each.at):
        key = (change.device, change.signal)
        if degrades(change.signal, change.after, xids):
            since.setdefault(key, change.at)
        elif change.after == 0 and key in since:
            found.append(_unfit(key, since.pop(key), change.at))
    return [*found, *(_unfit(key, began, end) for key, began in since.items())]


def _unfit(key: tuple[str, Signal], start: datetime, end: datetime) -> Unfit:
    return Unfit(device_uuid=key[0], start=start, end=end, cause=CAUSES[key[1]].value)


def unfit_by_findings(findings: Iterable[Finding], end: datetime) -> tuple[Unfit, ...]:
    """Periods of the devices that are degraded now, each from the time of its finding on."""
    return tuple(
        Unfit(device_uuid=name.split("/")[0], start=item.since, end=end, cause=str(item.kind))
        for item in findings
        if item.verdict is Verdict.DEGRADED and item.since is not None
        for name in item.devices
    )
