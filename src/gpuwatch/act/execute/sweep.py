"""Marks, taints and conditions of gpuwatch without a Remediation, and the write that removes each. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from gpuwatch.act.execute.requests import Deletion, StatusPatch
from gpuwatch.facts.frameworks import keys, kueue
from gpuwatch.facts.frameworks.objects import Object, Patch, key_of, pointer, ref_of, version_of
from gpuwatch.facts.frameworks.release import MARKS, held_by
from gpuwatch.facts.model.cluster import Cluster
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.remediation import ObjectRef, Remediation

_AT_ONCE = 100
"""Most workloads of one Namespace that one sweep reads, each by a request of its own."""

_NOT_OURS = (ValueError, TypeError, KeyError, RecursionError)
"""Errors that may follow from decoding an annotation that gpuwatch did not write."""

ORPHAN_GRACE_SECONDS = 900
"""A taint or another mark without a Remediation is removed after it. A quarter of an hour: a store that lags shows the
Remediation by then."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """reason: what was found. request: removes it; None where nothing proves that it is ours."""

    target: ObjectRef
    reason: str
    request: Patch | StatusPatch | Deletion | None = None


def held_objects(known: Iterable[Remediation]) -> frozenset[tuple[str, str, str]]:
    """Kind, Namespace and name of the objects to which the Remediations that stand may write."""
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
    marked = (ObjectRef(each.api_version, each.kind, each.name, each.namespace, each.uid) for each in cluster.marked)
    return (*nodes, *marked)


def in_turn(
    refs: Iterable[ObjectRef], known: Iterable[Remediation], turn: int
) -> tuple[tuple[ObjectRef, ...], tuple[ObjectRef, ...]]:
    """Those to read now, and those to read in later turns.

    All Nodes, and `_AT_ONCE` workloads of each Namespace, taken from the Namespaces in rotation, so that many marks in
    one Namespace delay only that Namespace. turn: number of this call.
    """
    held = held_objects(known)
    spaces = grouped(
        (ref for ref in refs if (ref.kind, ref.namespace, ref.name) not in held), lambda ref: ref.namespace
    )
    nodes, later = spaces.pop("", []), []
    for name, found in spaces.items():
        start = turn * _AT_ONCE % len(found) if len(found) > _AT_ONCE else 0
        turned = [*found[start:], *found[:start]]
        spaces[name], rest = turned[:_AT_ONCE], turned[_AT_ONCE:]
        later += rest
    mixed = (ref for level in zip_longest(*spaces.values()) for ref in level if ref is not None)
    return (*nodes, *mixed), tuple(later)


def orphan(found: Object, hand_off_label: str = "") -> Orphan | None:
    """A mark on a Node or a workload that no Remediation holds, as just read: one at a time, those that need a person
    last. hand_off_label: `execute.hand_off_label`; no other label is removed."""
    owned = any(each.get("controller") for each in found["metadata"].get("ownerReferences") or ())
    if owned and key_of(found) != kueue.WORKLOAD.key:
        return None  # a copy: Deployments hand their annotations on to ReplicaSets
    annotations = found["metadata"].get("annotations") or {}
    ref, is_node = ref_of(found), found["kind"] == "Node"
    marks = {key: None for key in MARKS if key in annotations}
    told = _told(annotations.get(keys.TAINT, ""))
    taints = ((found.get("spec") or {}).get("taints") or []) if is_node else []
    rest = [taint for taint in taints if (taint["key"], taint.get("value"), taint["effect"]) != told]
    labels = _handed(found, hand_off_label) if is_node else None
    changed = keys.SAVED_STATE in marks and labels is None
    if changed:
        marks = {key: None for key in marks if is_node and key != keys.SAVED_STATE}
    if marks:
        body: Object = {"metadata": {"annotations": marks, **({"labels": labels} if labels else {})}}
        body |= {"spec": {"taints": rest or None}} if rest != taints else {}
        reason = f"{ref} has marks of a Remediation that is gone."
        return Orphan(ref, reason, Patch(ref, body, version_of(found)))
    for each in (found.get("status") or {}).get("conditions") or () if is_node else ():
        ours = each.get("message", "").startswith("Remediation ")
        if ours and (each["type"], each["status"]) == (keys.CONDITION, "True"):
            cleared = {"status": {"conditions": [{**each, "status": "False", "reason": "Cleared"}]}}
            return Orphan(
                ref, f"{ref} has the condition {keys.CONDITION} without a Remediation.", StatusPatch(ref, cleared)
            )
    if changed:
        who = held_by(found) or "a Remediation"
        by_hand = f"restore it and remove its annotations {keys.PREFIX}*"
        return Orphan(ref, f"{ref} was changed by {who}, which is gone: {by_hand}.")
    if keys.DEGRADED in {taint["key"] for taint in taints}:
        return Orphan(ref, f"{ref} has the taint {keys.DEGRADED} without {keys.TAINT}: remove the taint by hand.")
    return None


def made(found: Iterable[Object], known: Iterable[Remediation]) -> tuple[Orphan, ...]:
    """Objects with our mark, of a kind that gpuwatch makes, whose Remediation does not stand."""
    held = {"", *(each.name for each in known if each.stands)}
    lost = (ref_of(each) for each in found if held_by(each) not in held)
    return tuple(Orphan(ref, f"{ref} has no Remediation.", Deletion(ref)) for ref in lost)


def _told(text: str) -> tuple[str, str, str] | None:
    """Key, value and effect of our taint by its annotation; None where it cannot be decoded."""
    try:
        found = json.loads(text)
        return keys.DEGRADED, found["value"], found["effect"]
    except _NOT_OURS:
        return None


def _handed(node: Object, hand_off_label: str) -> Mapping[str, None] | None:
    """The hand-off label to remove, by its annotation; {} for none, None where a person has to remove it."""
    key, _, value = hand_off_label.partition("=")
    try:
        (saved,) = json.loads(node["metadata"]["annotations"][keys.SAVED_STATE])
        ours = (saved["path"], saved["before"]) == (pointer("metadata", "labels", key), "")
    except _NOT_OURS:
        return None
    now = (node["metadata"].get("labels") or {}).get(key)
    return ({key: None} if now == value else {}) if ours else None
