"""What stands of gpuwatch on an object that no Remediation holds any more, and the write that takes it back. Pure."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from gpuwatch.execute.requests import Deletion, StatusPatch
from gpuwatch.frameworks import keys
from gpuwatch.frameworks.objects import Object, Patch, ref_of, version_of
from gpuwatch.frameworks.release import held_by
from gpuwatch.model.cluster import Cluster
from gpuwatch.model.remediation import ObjectRef, Remediation

MARKS = (keys.REMEDIATION, keys.TAINT, keys.SAVED_STATE, keys.NOTICE)
"""Annotations that gpuwatch writes on what it changes."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """reason: what stands. request: takes it back; None where a person has to, since nothing proves that it is ours.
    expired: by what the mark itself says."""

    target: ObjectRef
    reason: str
    request: Patch | StatusPatch | Deletion | None = None
    expired: bool = False


def held_objects(known: Iterable[Remediation]) -> frozenset[tuple[str, str, str]]:
    """Kind, Namespace and name of what the Remediations that stand may write to."""
    stand = [each for each in known if each.stands]
    refs = (ref for each in stand for ref in (*each.proposal.objects, *(step.target for step in each.steps)))
    return frozenset((ref.kind, ref.namespace, ref.name) for ref in refs)


def suspects(cluster: Cluster) -> tuple[ObjectRef, ...]:
    """Nodes and workloads with a mark, a taint or a condition of ours."""
    nodes = (
        ObjectRef("v1", "Node", each.name, uid=each.uid)
        for each in cluster.nodes
        if not each.annotations.keys().isdisjoint(MARKS)
        or keys.DEGRADED in {taint.key for taint in each.taints}
        or (keys.CONDITION, "True") in {(item.type, item.status) for item in each.conditions}
    )
    owners = (
        ObjectRef(each.api_version, each.kind, each.name, each.namespace, each.uid)
        for each in cluster.workloads
        if not each.annotations.keys().isdisjoint(MARKS)
    )
    return (*nodes, *owners)


def orphan(found: Object, now: datetime) -> Orphan | None:
    """What stands on an object that no Remediation holds, as it was just read; one thing at a time."""
    annotations = found["metadata"].get("annotations") or {}
    ref, name, spec = ref_of(found), held_by(found), found.get("spec") or {}
    marks = {key: None for key in MARKS if key in annotations}
    if ref.kind == "DeviceTaintRule":
        ours = name and spec.get("taint", {}).get("key") == keys.DEGRADED
        return Orphan(ref, f"The device taint {ref.name} has no Remediation.", Deletion(ref)) if ours else None
    taints = (spec.get("taints") or []) if ref.kind == "Node" else []
    others = [taint for taint in taints if taint.get("key") != keys.DEGRADED]
    by, expires = _told(annotations.get(keys.TAINT, ""))
    if keys.SAVED_STATE in marks:
        reason = f"{ref} was changed by the Remediation {name}, which is gone: restore it and take our annotations off."
        return Orphan(ref, reason)
    if taints != others and (not name or by != name):
        return Orphan(ref, f"{ref} has the taint {keys.DEGRADED} without our annotations: take it off by hand.")
    if marks:
        rest = {"spec": {"taints": others or None}} if taints != others else {}
        patch = Patch(ref, {"metadata": {"annotations": marks}, **rest}, version_of(found))
        over = expires is not None and expires <= now
        return Orphan(ref, f"{ref} has marks of a Remediation that is gone.", patch, over)
    for each in (found.get("status") or {}).get("conditions") or () if ref.kind == "Node" else ():
        if (each["type"], each["status"]) == (keys.CONDITION, "True"):
            cleared = {"status": {"conditions": [{**each, "status": "False", "reason": "Cleared"}]}}
            return Orphan(ref, f"{ref} has our condition without a Remediation.", StatusPatch(ref, cleared))
    return None


def _told(text: str) -> tuple[str, datetime | None]:
    """Whose taint it is and when it expires, as its annotation says; nothing where it cannot be understood."""
    try:
        found = json.loads(text)
        return found["remediation"], datetime.fromisoformat(found["expires"])
    except (ValueError, TypeError, KeyError):
        return "", None
