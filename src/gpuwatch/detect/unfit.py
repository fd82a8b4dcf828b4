"""Stretches of a GPU's time in which it was degraded, so that they say nothing about its workload. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from gpuwatch.catalog.xids import Xid, XidClass
from gpuwatch.model.decision import Finding, FindingKind, Verdict
from gpuwatch.model.telemetry import Signal, StateChange
from gpuwatch.model.workload_profile import Unfit

CAUSES = {Signal.XID_CODE: FindingKind.XID, Signal.RECOVERY_ACTION_CODE: FindingKind.RECOVERY_ACTION}
"""State signals by which telemetry itself tells of such a stretch."""


def degrades(signal: Signal, value: float, xids: Mapping[int, Xid]) -> bool:
    """Does this value of one of CAUSES make the GPU degraded? An XID does where its number alone is fatal.

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
    """From each value that degrades a GPU until a 0, which clears it, or the end; another XID on top of a fatal one
    does not clear it. open_since: what was so before the changes, by GPU and signal."""
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
    """What the findings of now know: a degraded device, from its fault on."""
    return tuple(
        Unfit(device_uuid=name.split("/")[0], start=item.since, end=end, cause=str(item.kind))
        for item in findings
        if item.verdict is Verdict.DEGRADED and item.since is not None
        for name in item.devices
    )
