"""XIDs: NVIDIA's catalog, other authorities' verdicts, and what gpuwatch concludes from the number alone.

`xids.json` has the numbers, NVIDIA's actions and the verdicts, each with its source, and gpuwatch's own class where a
comparison of nine authorities, which disagree, gives one. The other classes follow from NVIDIA's action.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import yaml

from gpuwatch.facts.catalog.tables import CatalogError, bad_input, operators_file, packaged, read_json
from gpuwatch.facts.model.telemetry import Gap


class XidAction(StrEnum):
    """The immediate action in NVIDIA's catalog."""

    RESTART_APP = "RESTART_APP"
    IGNORE = "IGNORE"
    RESET_GPU = "RESET_GPU"
    RESTART_BM = "RESTART_BM"  # power-cycle the machine
    RESTART_VM = "RESTART_VM"
    CHECK_MECHANICALS = "CHECK_MECHANICALS"
    CHECK_UVM = "CHECK_UVM"
    UPDATE_SWFW = "UPDATE_SWFW"
    CONTACT_SUPPORT = "CONTACT_SUPPORT"
    WORKFLOW_XID_45 = "WORKFLOW_XID_45"
    WORKFLOW_XID_48 = "WORKFLOW_XID_48"
    WORKFLOW_NVLINK_ERR = "WORKFLOW_NVLINK_ERR"
    WORKFLOW_NVLINK5_ERR = "WORKFLOW_NVLINK5_ERR"
    XID_154 = "XID_154"  # the driver's recovery action decides
    NONE_GIVEN = "NONE_GIVEN"  # listed without an action


class XidClass(StrEnum):
    """What the number alone proves about the hardware."""

    FATAL = "fatal"  # the GPU is unusable until it is reset, rebooted or replaced
    CORROBORATE = "corroborate"  # a fault only with a second sign: a recovery action, DCGM health, a counter
    APPLICATION = "application"  # the program's fault; the hardware's only if different programs show it on one GPU
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Opinion:
    """Another authority's verdict. acts: whether it acts on the GPU or its Node; None where the number cannot tell."""

    authority: str
    acts: bool | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """One XID. xid_class: gpuwatch's, by `rule` (its name) and for `reason` (a clause for people).

    architectures: those of A100, H100, B100, GB200 that raise it. acts: whether NVIDIA's action is on the GPU or its
    Node; None where that depends on more than the number.
    recovery_driver: the driver branch (565 of R565) from which on the driver asks for a recovery action after it; 0 for
        every driver that knows the XID, None where NVIDIA's catalog does not say that it asks.
    """

    code: int
    description: str
    architectures: tuple[str, ...]
    action: XidAction
    others: tuple[Opinion, ...]
    xid_class: XidClass
    recovery_driver: int | None = None
    acts: bool | None = None
    rule: str
    reason: str
    source: str
    checked: date | None  # when a person last looked at NVIDIA's row; None for an operator's own XID


@cache
def xids() -> Mapping[int, Xid]:
    return MappingProxyType(parse_xids(packaged("xids.json"), "xids.json"))


def conflicts(xid: Xid) -> str:
    """The authorities' verdicts as one sentence; '' unless one acts and another does not.

    >>> conflicts(xids()[109])[:60]
    'NVIDIA: RESET_GPU; the device plugin ignores it; NVSentinel:'
    """
    if not {True, False} <= {xid.acts, *(opinion.acts for opinion in xid.others)}:
        return ""
    action = "no action given" if xid.action is XidAction.NONE_GIVEN else xid.action.value
    return "; ".join((f"NVIDIA: {action}", *(opinion.text for opinion in xid.others)))


_RULES = {
    XidClass.FATAL: "fatal on sight",
    XidClass.CORROBORATE: "only with corroboration",
    XidClass.APPLICATION: "application first",
    XidClass.IGNORE: "nothing to do",
}
"""The rule's name where the entry itself has the class."""


def _classify(entry: Mapping[str, Any], action: XidAction) -> tuple[XidClass, str, str]:
    """Class, rule and reason: of the entry itself, where the authorities agree; else by NVIDIA's immediate action.
    Without either, the XID needs a second sign."""
    if "class" in entry:
        xid_class = XidClass(entry["class"])
        return xid_class, _RULES[xid_class], entry["reason"]
    if decoded := entry.get("decoded_actions"):
        rows = ", ".join(f"{count} {name}" for name, count in sorted(decoded.items()))
        reason = f"the number alone does not decide: NVIDIA's rows for it say {rows}"
        return XidClass.CORROBORATE, _RULES[XidClass.CORROBORATE], reason
    match action:
        case XidAction.RESTART_APP:
            reason = "NVIDIA asks to restart the program and deems no reset necessary"
            return XidClass.APPLICATION, "NVIDIA: RESTART_APP", reason
        case XidAction.IGNORE:
            return XidClass.IGNORE, "NVIDIA: IGNORE", "NVIDIA asks for no action"
        case XidAction.NONE_GIVEN:
            return XidClass.CORROBORATE, "no verdict", "NVIDIA lists it without an action"
        case _:
            return XidClass.CORROBORATE, f"NVIDIA: {action}", "NVIDIA's action depends on more than the number"


def parse_xids(text: str, file: str) -> dict[int, Xid]:
    """XIDs by number. Raises CatalogError that names the file, the XID and the problem."""
    tables = read_json(text, file)
    found: dict[int, Xid] = {}
    where = "the top level"
    try:
        for position, entry in enumerate(tables["xids"], 1):
            where = f"entry {position}"
            code = _new_code(entry["code"], found)
            where = f"XID {code}"
            found[code] = _xid(entry, tables)
    except (KeyError, TypeError, AttributeError, ValueError) as problem:
        what = f"{problem.args[0]!r} is missing; add it" if isinstance(problem, KeyError) else str(problem)
        raise CatalogError(f"{file}, {where}", what) from None
    return found


def _new_code(code: object, found: Mapping[int, Xid]) -> int:
    if type(code) is not int:
        raise ValueError(f"the code {code!r} is no whole number")
    if code in found:
        raise ValueError(f"XID {code} has an entry already; keep one")
    return code


def _xid(entry: Mapping[str, Any], tables: Mapping[str, Any]) -> Xid:
    action = XidAction(entry["action"])
    xid_class, rule, reason = _classify(entry, action)
    opinions = []
    for authority, verdict in entry["others"].items():
        known = tables["authorities"][authority]["verdicts"]
        if verdict not in known:
            raise ValueError(f"{authority} has no verdict {verdict!r}; it has {', '.join(known)}")
        opinions.append({"authority": authority, **known[verdict]})
    since = entry.get("recovery_action_since", "")
    branch = re.search(r"\bR(\d+)", since)
    recovery_driver = int(branch[1]) if branch else 0 if since else None
    concluded = {"xid_class": xid_class, "rule": rule, "reason": reason, "recovery_driver": recovery_driver}
    shared = {"source": tables["source"], "checked": tables["checked"], "acts": tables["acts"].get(action)}
    return msgspec.convert({**shared, **entry, **concluded, "others": opinions}, Xid)


_KEYS = ("class", "reason", "description")


def xids_with_overrides(path: Path) -> tuple[Mapping[int, Xid], tuple[Gap, ...]]:
    """The catalog's XIDs with the operator's classes, and a Gap for each invalid entry, which is ignored:

    xids:
      63: {class: fatal, reason: our supplier replaces on 63}
      180: {class: application, description: Frobnication error, reason: seen with driver 590 only}

    The classes are fatal, corroborate, application and ignore; an XID that the catalog lacks needs a `description`."""
    found = dict(xids())
    gaps = []
    entries: Mapping[object, object] = {}
    try:
        entries = operators_file(path, _entries)
    except CatalogError as refused:
        gaps.append(bad_input(str(path), f"{refused.problem}. The catalog's classes apply"))
    for code, entry in entries.items():
        changed = _changed(code, entry, found, str(path))
        if isinstance(changed, Xid):
            found[changed.code] = changed
        else:
            gaps.append(bad_input(f"{path}, XID {code}", changed))
    return MappingProxyType(found), tuple(gaps)


def _entries(text: str) -> Mapping[object, object]:
    document = yaml.safe_load(text)
    entries = document.get("xids") if isinstance(document, dict) and set(document) == {"xids"} else None
    if not isinstance(entries, dict):
        raise CatalogError("", "expected one key 'xids' with XID numbers below it; see the documentation")
    return entries


def _changed(code: object, entry: object, xids: Mapping[int, Xid], source: str) -> Xid | str:
    """The overridden XID, or what is wrong with the entry and what to do."""
    if type(code) is not int or code < 1:
        return "the key must be the XID's number, for example 63; correct it"
    if not isinstance(entry, dict):
        return f"expected keys {', '.join(_KEYS)} below the number; it has {entry!r}"
    unknown = [str(key) for key in entry if key not in _KEYS]
    if unknown:
        return f"unknown key {', '.join(unknown)}; it takes {', '.join(_KEYS)}"
    wanted, reason = entry.get("class"), entry.get("reason")
    if wanted not in tuple(XidClass):
        return f"class is {wanted!r}; give one of {', '.join(XidClass)}"
    if not isinstance(reason, str) or not reason.strip():
        return "reason is missing; say in a few words why, since people will read it as evidence"
    known = xids.get(code)
    description = entry.get("description", known.description if known else None)
    if not isinstance(description, str) or not description.strip():
        return "the catalog does not know this XID; give a description"
    given: dict[str, Any] = {
        "description": description,
        "xid_class": XidClass(wanted),
        "rule": "the operator's override",
        "reason": reason.strip(),
    }
    if known is not None:
        return replace(known, **given, source=f"{known.source}; class: {source}")
    return Xid(
        code=code, architectures=(), action=XidAction.NONE_GIVEN, others=(), **given, source=source, checked=None
    )
