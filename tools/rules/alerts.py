"""Alerts from alerts.yaml, with the pieces that come from gpuwatch's catalog."""

from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal

import msgspec
import yaml

from gpuwatch.facts.catalog.tables import checked
from gpuwatch.facts.catalog.xids import XidClass, xids
from gpuwatch.sources.telemetry.labels import NODE_LABELS
from tools.generated import Pieces, runbook
from tools.rules.recorded import first_of

LIST = Path(__file__).with_name("alerts.yaml")

THRESHOLD = "<< threshold >>"
"""Stands in an expression for the number that a user may change."""


class Alert(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"name": "alert", "wait": "for", "keep_firing": "keep_firing_for"},
):
    """One alert. alerts.yaml says what its fields mean."""

    name: str
    expr: str
    wait: str
    severity: Literal["critical", "warning", "info"]
    summary: str
    description: str
    why: str
    threshold: float | None = None
    optional_because: str = ""
    keep_firing: str = ""


def xid_codes(xid_class: XidClass) -> list[int]:
    return sorted(code for code, xid in xids().items() if xid.xid_class is xid_class)


def xid_filter(xid_class: XidClass) -> str:
    """The XIDs of a class, as values of the gauge. Neighbours are one range, to keep it short."""
    runs: list[list[int]] = []
    for code in xid_codes(xid_class):
        if runs and runs[-1][-1] == code - 1:
            runs[-1].append(code)
        else:
            runs.append([code])
    terms = (f"== {run[0]}" if len(run) == 1 else f">= {run[0]} <= {run[-1]}" for run in runs)
    return "\n  or ".join(f"gpu:gpu_xid:last {term}" for term in terms)


def new_xid(xid_class: str, window: str) -> str:
    """An XID of the class that came within the window.

    The gauge keeps the last XID until exporter or driver start anew, so its value alone is no news. It is none where
    it was the same a window ago (a gap of up to six hours in the telemetry is bridged), did not change meanwhile, and
    was in the telemetry whenever the GPU was: an exporter that started anew shows no XID, or 0, until the next one.
    """
    return dedent("""\
        (
          {codes}
        )
        unless (
          (gpu:gpu_xid:last == last_over_time(gpu:gpu_xid:last[6h] offset {window}))
          unless changes(gpu:gpu_xid:last[{window}]) > 0
          unless count_over_time(gpu:gpu_xid:last[{window}])
            < count_over_time(gpu:gpu_temperature_celsius:max[{window}])
        )""").format(codes=xid_filter(XidClass(xid_class)).replace("\n", "\n  "), window=window)


def fatal_xid() -> str:
    """What each fatal XID means, as a template of its value."""
    branches = (f"if eq $value {code}.0 }}}}{xids()[code].reason}" for code in xid_codes(XidClass.FATAL))
    return "{{ " + "{{ else ".join(branches) + "{{ end }}"


def host(expr: str) -> str:
    """The host as `node`, as the recorded series have it: the first of what scraping and exporter call it."""
    return first_of(expr, "node", NODE_LABELS)


@cache
def listed() -> dict[str, list[Alert]]:
    """Group → its alerts."""
    return read(yaml.safe_load(LIST.read_text()))


def read(source: dict[str, dict[str, Any]], *, keep_threshold: bool = False) -> dict[str, list[Alert]]:
    """The alerts of alerts.yaml with their pieces. What is wrong in it is a ValueError that names the alert.

    keep_threshold: THRESHOLD stays, for the chart to put a number there.
    """
    pieces = Pieces({"new_xid": new_xid, "fatal_xid": fatal_xid, "host": host})
    for name, text in source["pieces"].items():
        pieces.add(name, text)
    groups = {
        group: [_alert(each, pieces, keep_threshold) for each in alerts] for group, alerts in source["groups"].items()
    }
    pieces.demand_use()
    return groups


def _alert(given: dict[str, Any], pieces: Pieces, keep_threshold: bool) -> Alert:
    where = f"alert {given.get('alert')}"
    alert = checked(given, Alert, where)
    here = {} if alert.threshold is None else {"threshold": THRESHOLD if keep_threshold else f"{alert.threshold:g}"}
    texts = {name: getattr(alert, name) for name in ("expr", "summary", "description")}
    return msgspec.structs.replace(
        alert, **{name: pieces.put_in(text, f"{where}, {name}", **here) for name, text in texts.items()}
    )


def alerts() -> list[Alert]:
    return [alert for group in listed().values() for alert in group]


def groups(*, optional: bool) -> dict[str, list[Alert]]:
    """The groups of one of the two files, by the names that Prometheus shows."""
    suffix = "-optional" if optional else ""
    chosen = {
        name: [alert for alert in group if bool(alert.optional_because) is optional] for name, group in listed().items()
    }
    return {f"gpuwatch-{name}{suffix}": group for name, group in chosen.items() if group}


def rule(alert: Alert) -> dict[str, Any]:
    """The alert as Prometheus has it."""
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.wait,
        **({"keep_firing_for": alert.keep_firing} if alert.keep_firing else {}),
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": runbook(alert.name),
        },
    }
