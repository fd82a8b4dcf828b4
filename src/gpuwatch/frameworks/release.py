"""A release is one patch: the fields that release, what they were before, and which Remediation did it. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gpuwatch.frameworks import WRITTEN, keys
from gpuwatch.frameworks.framework import Fields, Never, ReleaseRule
from gpuwatch.frameworks.json_patch import ABSENT, difference, parts, pointer, put, removed, value_at
from gpuwatch.frameworks.objects import Creation, Object, Patch, Refused, Write, key_of, ref_of, version_of
from gpuwatch.model.remediation import Saved


@dataclass(frozen=True, slots=True)
class Release:
    """The writes, in this order, and what is saved on the object by the first of them. No writes: they were sent
    before, in the name of the same Remediation."""

    writes: tuple[Write, ...]
    saved: tuple[Saved, ...]


@dataclass(frozen=True, slots=True)
class Restoration:
    """The writes that give back what the release took. left: fields that somebody changed since, which stay."""

    writes: tuple[Write, ...]
    left: tuple[str, ...] = ()


def _rule_of(object_: Object) -> ReleaseRule | Refused:
    """The rule of this object's kind and version."""
    kind = WRITTEN.get(key_of(object_))
    if kind is None:
        return Refused(f"gpuwatch has no way to release a {object_['kind']} of {object_['apiVersion']}.")
    if isinstance(kind.release, Never):
        return Refused(kind.release.reason)
    if object_["apiVersion"].rpartition("/")[2] not in kind.versions:
        return Refused(f"The fields of {object_['kind']} in {object_['apiVersion']} are not known.")
    return kind.release


def owned_paths(object_: Object) -> tuple[str, ...]:
    """The fields that a release of it would write; for telling who else writes them."""
    rule = _rule_of(object_)
    if isinstance(rule, Refused) or rule.commands:
        return ()
    return tuple(path for path, _ in rule.fields(object_, datetime.fromtimestamp(0, UTC)))


def release(object_: Object, *, remediation: str, at: datetime) -> Release | Refused:
    """What would release this object, as it was read just now.

    remediation: its name, which is written beside it. Who would undo it is `fights.fights`' business.
    """
    rule = _rule_of(object_)
    if isinstance(rule, Refused):
        return rule
    holder = held_by(object_)
    if holder == remediation and keys.SAVED_STATE in object_["metadata"]["annotations"]:
        done = saved_state(object_)
        if isinstance(done, Refused):
            return done
        # The mark is written before the Command, so it alone does not tell that the Command was.
        if rule.commands and rule.holds(object_):
            return Release((Creation(rule.commands.release(object_, remediation)),), done)
        return Release((), done)
    if holder and holder != remediation:
        return Refused(f"The Remediation {holder} holds it already.")
    refusal = _refusal(rule, object_, at)
    if refusal:
        return Refused(refusal)
    changed, saved = _changed(object_, rule.fields(object_, at))
    if rule.commands:
        changed = object_  # its controller changes it when it is asked to
    for key, value in _marks(remediation, saved).items():
        changed = put(changed, pointer("metadata", "annotations", key), value)
    patch = Patch(ref_of(object_), difference(object_, changed), version_of(object_))
    return Release((patch, Creation(rule.commands.release(object_, remediation))) if rule.commands else (patch,), saved)


def restore(object_: Object, saved: Sequence[Saved], *, remediation: str) -> Restoration | Refused:
    """What gives back what the release saved, field by field where the object still has what the release wrote. Both
    annotations go in the same write.

    remediation: the name of the one that released it. No writes: it was done before, or never released.
    """
    rule = _rule_of(object_)
    if isinstance(rule, Refused):
        return rule
    target = ref_of(object_)
    if any(item.target.uid != target.uid for item in saved):
        return Refused(f"{target} is another object than the one that was released.")
    holder = held_by(object_)
    if holder and holder != remediation:
        return Refused(f"The Remediation {holder} holds it.")
    if keys.SAVED_STATE not in (object_["metadata"].get("annotations") or {}):
        return Restoration(())
    changed: Object = object_
    left = []
    resumes = False
    for item in saved:
        if rule.commands and rule.commands.obeyed(object_):
            resumes = True
        elif _json(value_at(changed, item.path)) != item.after:
            left.append(item.path)
        elif item.before:
            changed = put(changed, item.path, json.loads(item.before))
        elif rule.unset is not ABSENT and item == saved[0]:
            changed = put(changed, item.path, rule.unset)
        else:
            changed = removed(changed, item.path)
    for key in (keys.REMEDIATION, keys.SAVED_STATE):
        changed = removed(changed, pointer("metadata", "annotations", key))
    patch = Patch(target, difference(object_, changed), version_of(object_))
    # The command comes first: were the marks gone before it, a restart in between would leave the Job aborted.
    if rule.commands and resumes:
        return Restoration((Creation(rule.commands.restore(object_, remediation)), patch), tuple(left))
    return Restoration((patch,), tuple(left))


def released(object_: Object, pods: Sequence[Object] | None, pod_groups: Sequence[Object] | None = ()) -> bool | None:
    """Proof that its devices are free: it is still told to hold none, its status does not say otherwise, no Pod of it
    is left that may hold one or is on its way out, and no PodGroup of it keeps room in a queue. None where that cannot
    be told.

    pods: all Pods whose owners lead to it, those that are being deleted included. pod_groups: Volcano's in its
    Namespace. Either is None where it could not be read.
    """
    rule = _rule_of(object_)
    if isinstance(rule, Refused):
        return None
    meant = () if rule.commands else rule.fields(object_, datetime.fromtimestamp(0, UTC))
    if not _is_set(object_, meant, rule) or rule.holds(object_):
        return False
    if not all(_holds_nothing(pod) for pod in pods or ()):
        return False
    if any(_keeps_room(group, object_["metadata"]["uid"]) for group in pod_groups or ()):
        return False
    return None if pods is None or pod_groups is None else True


def still_holds(object_: Object) -> str:
    """What its status says against it being released, for people; '' where nothing."""
    rule = _rule_of(object_)
    return "" if isinstance(rule, Refused) else rule.holds(object_)


def loses(object_: Object) -> str:
    """What of it would not come back, through whatever it is released; '' where all does."""
    rule = _rule_of(object_)
    return "" if isinstance(rule, Refused) else rule.loses(object_)


def obeyed(object_: Object) -> bool:
    """Has its controller begun to carry out the Command that releases it?"""
    rule = _rule_of(object_)
    return isinstance(rule, ReleaseRule) and rule.commands is not None and rule.commands.obeyed(object_)


def held_by(object_: Object) -> str:
    """The Remediation whose mark is on the object; '' where there is none."""
    return str((object_["metadata"].get("annotations") or {}).get(keys.REMEDIATION, ""))


def saved_state(object_: Object) -> tuple[Saved, ...] | Refused:
    """What was saved on the object itself."""
    written = (object_["metadata"].get("annotations") or {}).get(keys.SAVED_STATE)
    target = ref_of(object_)
    try:
        return tuple(
            Saved(target=target, path=str(item["path"]), before=str(item["before"]), after=str(item["after"]))
            for item in json.loads(written or "")
        )
    except (ValueError, TypeError, KeyError):
        return Refused(f"The annotation {keys.SAVED_STATE} of {target} cannot be read; restore it by hand.")


def _refusal(rule: ReleaseRule, object_: Object, at: datetime) -> str:
    metadata = object_["metadata"]
    if metadata.get("deletionTimestamp"):
        return "It is being deleted."
    if rule.ended(object_):
        return "It has ended, and holds nothing."
    if _is_set(object_, rule.fields(object_, at), rule):
        return "It is released already, by somebody else."
    return rule.refuses(object_) or rule.loses(object_)


def _is_set(object_: Object, fields: Fields, rule: ReleaseRule) -> bool:
    if rule.any_value:
        return all(value_at(object_, path) is not ABSENT for path, _ in fields)
    return all(value_at(object_, path) == value for path, value in fields)


def _changed(object_: Object, fields: Fields) -> tuple[Object, tuple[Saved, ...]]:
    """The object with the fields set, and what they were. A parent that has to be made for a field is saved after it,
    so that it goes where nothing but our field was put into it."""
    target = ref_of(object_)
    changed, saved = object_, []
    for path, value in fields:
        before = value_at(object_, path)
        saved.append(Saved(target=target, path=path, before=_json(before), after=_json(value)))
        names = parts(path)
        for depth in range(len(names) - 1, 1, -1):
            parent = pointer(*names[:depth])
            if names[0] == "spec" and value_at(object_, parent) is ABSENT:
                saved.append(Saved(target=target, path=parent, before="", after="{}"))
        changed = put(changed, path, value)
    return changed, tuple(saved)


def _marks(remediation: str, saved: Sequence[Saved]) -> dict[str, str]:
    told = [{"path": item.path, "before": item.before, "after": item.after} for item in saved]
    return {keys.REMEDIATION: remediation, keys.SAVED_STATE: json.dumps(told, separators=(",", ":"))}


def _holds_nothing(pod: Object) -> bool:
    """Not while it is being deleted either: a Pod that was stopped fails before it is gone, and Kubeflow fails a Job
    that is resumed while such a Pod is left, where its restartPolicy is Never."""
    ended = value_at(pod, "/status/phase") in ("Succeeded", "Failed")
    return ended and "deletionTimestamp" not in pod["metadata"]


def _keeps_room(group: Object, uid: str) -> bool:
    ours = any(owner.get("uid") == uid for owner in value_at(group, "/metadata/ownerReferences") or ())
    return ours and value_at(group, "/status/phase") in ("Running", "Inqueue")


def _json(value: object) -> str:
    return "" if value is ABSENT else json.dumps(value, sort_keys=True, separators=(",", ":"))
