"""The operator's overrides of the catalog's XIDs:

xids:
  63: {class: fatal, reason: our supplier replaces on 63}
  180: {class: application, description: Frobnication error, reason: seen with driver 590 only}
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from gpuwatch.facts.catalog.tables import CatalogError, bad_input, operators_file
from gpuwatch.facts.catalog.xids import Xid, XidAction, XidClass, xids
from gpuwatch.facts.model.telemetry import Gap

_KEYS = ("class", "reason", "description")


def xids_with_overrides(path: Path) -> tuple[Mapping[int, Xid], tuple[Gap, ...]]:
    """The catalog's XIDs with the operator's classes, and a Gap for each invalid entry, which is ignored. Each entry
    needs `class` (fatal, corroborate, application, ignore) and `reason`; an XID that the catalog lacks needs a
    `description` too."""
    found = dict(xids())
    gaps = []
    entries: Mapping[object, object] = {}
    try:
        entries = operators_file(path, _entries)
    except CatalogError as refused:
        gaps.append(bad_input(str(path), f"{refused.problem}. The catalog's classes apply"))
    for code, entry in entries.items():
        if type(code) is not int or code < 1:
            gaps.append(
                bad_input(f"{path}, XID {code}", "the key must be the XID's number, for example 63; correct it")
            )
            continue
        changed = _changed(code, entry, found.get(code), str(path))
        if isinstance(changed, Xid):
            found[code] = changed
        else:
            gaps.append(bad_input(f"{path}, XID {code}", changed))
    return MappingProxyType(found), tuple(gaps)


def _entries(text: str) -> Mapping[object, object]:
    document = yaml.safe_load(text)
    entries = document.get("xids") if isinstance(document, dict) and set(document) == {"xids"} else None
    if not isinstance(entries, dict):
        raise CatalogError("", "expected one key 'xids' with XID numbers below it; see the documentation")
    return entries


def _changed(code: int, entry: object, known: Xid | None, source: str) -> Xid | str:
    """The overridden XID, or what is wrong with the entry and what to do."""
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
