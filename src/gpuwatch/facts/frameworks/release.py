"""Releases and moves of owners, and whether an owner runs again. Pure.

A release is one patch: the released fields, their former values, and the name of the Remediation. Some owners' Pods are
moved one by one, some only as a whole, some never.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gpuwatch.facts.frameworks import WRITTEN, keys
from gpuwatch.facts.frameworks.framework import Fields, MovePlan, Never, ReleaseRule
from gpuwatch.facts.frameworks.objects import (
    ABSENT,
    Creation,
    Object,
    Patch,
    Refused,
    Write,
    difference,
    key_of,
    owned_by,
    parts,
    pointer,
    put,
    ref_of,
    removed,
    stamp,
    value_at,
    version_of,
)
from gpuwatch.facts.model.remediation import Saved

MARKS = (keys.REMEDIATION, keys.TAINT, keys.SAVED_STATE, keys.NOTICE)
"""Annotations that gpuwatch writes on what it changes."""


@dataclass(frozen=True, slots=True)
class Release:
    """The writes, in order, and the state that the first one saves. No writes: this Remediation sent them before."""

    writes: tuple[Write, ...]
    saved: tuple[Saved, ...]


@dataclass(frozen=True, slots=True)
class Restoration:
    """The writes that undo a release. left: fields that others changed since, which stay."""

    writes: tuple[Write, ...]
    left: tuple[str, ...] = ()


def rule_of(object_: Object | None) -> ReleaseRule | None:
    """That of its kind, in any version of it; None where the kind has none."""
    kind = WRITTEN.get(key_of(object_)) if object_ is not None else None
    return kind.release if kind is not None and isinstance(kind.release, ReleaseRule) else None


def known_rule(object_: Object) -> ReleaseRule | Refused:
    """The same, in a version whose fields are known; or why there is none."""
    kind = WRITTEN.get(key_of(object_))
    if kind is None:
        return Refused(f"gpuwatch has no way to release a {object_['kind']} of {object_['apiVersion']}.")
    if isinstance(kind.release, Never):
        return Refused(kind.release.reason)
    if object_["apiVersion"].rpartition("/")[2] not in kind.versions:
        return Refused(f"The fields of {object_['kind']} in {object_['apiVersion']} are not known.")
    return kind.release


def owned_paths(object_: Object) -> tuple[str, ...]:
    """The fields that a release of it would write."""
    rule = known_rule(object_)
    if isinstance(rule, Refused) or rule.commands:
        return ()
    return tuple(path for path, _ in rule.fields(object_, datetime.fromtimestamp(0, UTC)))


def release(object_: Object, *, remediation: str, at: datetime, kept: Sequence[Saved] = ()) -> Release | Refused:
    """The writes that release this object as read. remediation: name of the one that releases it. kept: values that it
    stored before its first write. `fights.may_release` checks which controllers would undo it."""
    rule = known_rule(object_)
    if isinstance(rule, Refused):
        return rule
    holder = held_by(object_)
    if holder == remediation and keys.SAVED_STATE in object_["metadata"]["annotations"]:
        # A user who may edit the object may write both annotations; only the stored intent proves that gpuwatch did.
        done = tuple(item for item in kept if item.target.uid == object_["metadata"].get("uid"))
        if not done:
            return Refused(
                f"It carries the annotations of {remediation}, which has not written to it. "
                f"Remove {keys.REMEDIATION} and {keys.SAVED_STATE} from {ref_of(object_)}."
            )
        # The annotation is written before the Command, so the Command may be missing.
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
        changed = object_  # its controller changes it on the Command
    for key, value in ((keys.REMEDIATION, remediation), (keys.SAVED_STATE, saved_state(saved))):
        changed = put(changed, pointer("metadata", "annotations", key), value)
    patch = Patch(ref_of(object_), difference(object_, changed), version_of(object_))
    return Release((patch, Creation(rule.commands.release(object_, remediation))) if rule.commands else (patch,), saved)


def restore(object_: Object, saved: Sequence[Saved], *, remediation: str) -> Restoration | Refused:
    """The writes that restore saved fields that still have the released values, and remove both annotations. Fields
    that no release of this kind writes stay. remediation: the one that released it. No writes: nothing to restore."""
    rule = known_rule(object_)
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
    fields = rule.fields(object_, datetime.fromtimestamp(0, UTC))
    own = _own_paths(fields)
    for item in saved:
        if item.path not in own:
            left.append(item.path)
        elif rule.commands and rule.commands.obeyed(object_):
            resumes = True
        elif as_json(value_at(changed, item.path)) != item.after:
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
    # The Command comes first: without the annotations, a restart in between would leave the Job aborted.
    if rule.commands and resumes:
        return Restoration((Creation(rule.commands.restore(object_, remediation)), patch), tuple(left))
    return Restoration((patch,), tuple(left))


def released(object_: Object, pods: Sequence[Object] | None, pod_groups: Sequence[Object] | None = ()) -> bool | None:
    """Whether its devices are free: its fields still release it, its status agrees, all its Pods have ended and none is
    being deleted, and none of its PodGroups reserves resources in a queue. None where unknown.

    pods: all Pods below it, those being deleted too. pod_groups: Volcano's in its Namespace. None: could not be read.
    """
    rule = known_rule(object_)
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
    """Why its status shows that it is not released, for people; '' where it does not."""
    rule = known_rule(object_)
    return "" if isinstance(rule, Refused) else rule.holds(object_)


def resumes_early(object_: Object) -> bool:
    """Whether it may be resumed while Pods of it are still terminating."""
    rule = known_rule(object_)
    return isinstance(rule, ReleaseRule) and rule.resumes_early(object_)


def barred(object_: Object) -> str:
    """Why its own fields and status rule its release out; '' where they do not."""
    rule = known_rule(object_)
    return rule.reason if isinstance(rule, Refused) else _refusal(rule, object_, datetime.fromtimestamp(0, UTC))


def loses(object_: Object) -> str:
    """Why a release or a move of it may delete data; '' where it does not. A kind without a ReleaseRule may."""
    rule = known_rule(object_)
    return rule.reason if isinstance(rule, Refused) else rule.deletes.refusal(object_)


def obeyed(object_: Object) -> bool:
    """Whether its controller has begun to carry out the Command that releases it."""
    rule = known_rule(object_)
    return isinstance(rule, ReleaseRule) and rule.commands is not None and rule.commands.obeyed(object_)


def held_by(object_: Object) -> str:
    """The Remediation in the object's annotation; '' without one."""
    return str((object_["metadata"].get("annotations") or {}).get(keys.REMEDIATION, ""))


def _refusal(rule: ReleaseRule, object_: Object, at: datetime) -> str:
    metadata = object_["metadata"]
    if metadata.get("deletionTimestamp"):
        return "It is being deleted."
    if rule.ended(object_):
        return "It has ended and holds no GPU."
    if _is_set(object_, rule.fields(object_, at), rule):
        return "It is released already, and not by gpuwatch."
    return rule.refuses(object_) or rule.deletes.refusal(object_)


def _is_set(object_: Object, fields: Fields, rule: ReleaseRule) -> bool:
    if rule.any_value:
        return all(value_at(object_, path) is not ABSENT for path, _ in fields)
    return all(value_at(object_, path) == value for path, value in fields)


def _changed(object_: Object, fields: Fields) -> tuple[Object, tuple[Saved, ...]]:
    """The object with the fields set, and their former values. A parent created for a field is saved after it, so that
    the restoration removes it if nothing else was added to it."""
    target = ref_of(object_)
    changed, saved = object_, []
    for path, value in fields:
        before = value_at(object_, path)
        saved.append(Saved(target=target, path=path, before=as_json(before), after=as_json(value)))
        created = (parent for parent in _parents(path) if value_at(object_, parent) is ABSENT)
        saved.extend(Saved(target=target, path=parent, before="", after="{}") for parent in created)
        changed = put(changed, path, value)
    return changed, tuple(saved)


def _own_paths(fields: Fields) -> set[str]:
    """All paths that a release with these fields writes, except its annotations."""
    return {each for path, _ in fields for each in (path, *_parents(path))}


def _parents(path: str) -> list[str]:
    """The parents that a release may have to create, innermost first."""
    names = parts(path)
    return [pointer(*names[:depth]) for depth in range(len(names) - 1, 1, -1)] if names[0] == "spec" else []


def saved_state(saved: Sequence[Saved]) -> str:
    """The value of the annotation beside the change."""
    former = [{"path": item.path, "before": item.before, "after": item.after} for item in saved]
    return json.dumps(former, separators=(",", ":"))


def _holds_nothing(pod: Object) -> bool:
    """False while the Pod is being deleted: a stopped Pod fails before it is gone, and Kubeflow fails a Job with
    restartPolicy Never that is resumed while such a Pod is left."""
    ended = value_at(pod, "/status/phase") in ("Succeeded", "Failed")
    return ended and "deletionTimestamp" not in pod["metadata"]


def _keeps_room(group: Object, uid: str) -> bool:
    return owned_by(group, [uid]) and value_at(group, "/status/phase") in ("Running", "Inqueue")


def as_json(value: object) -> str:
    return "" if value is ABSENT else json.dumps(value, sort_keys=True, separators=(",", ":"))


def move(object_: Object, pods: Sequence[Object], wanted: Sequence[str]) -> MovePlan | Refused:
    """How to move the Pods with the uids `wanted`. pods: all of the owner. object_: the top owner or Kueue Workload."""
    there = [pod for pod in pods if value_at(pod, "/status/phase") not in ("Succeeded", "Failed")]
    chosen = [pod for pod in there if pod["metadata"].get("uid") in wanted]
    if not chosen:
        return Refused("None of the Pods to move exists any more.")
    kind = WRITTEN.get(key_of(object_))
    if kind is None:
        return Refused(f"gpuwatch does not move the Pods of a {object_['kind']} of {object_['apiVersion']}.")
    if isinstance(kind.move, Never):
        return Refused(kind.move.reason)
    if lost := loses(object_):
        return Refused(lost)
    staying = (kind.move.stays(pod["metadata"].get("labels") or {}) for pod in chosen)
    reason = next((told for told in staying if told), "")
    return Refused(reason) if reason else kind.move.choose(object_, there, chosen)


def rollout(object_: Object, *, remediation: str, at: datetime) -> Patch:
    """A restart of a Deployment's Pods, as by `kubectl rollout restart`. Nothing has to be restored."""
    template = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": stamp(at)}}}
    body = {"metadata": {"annotations": {keys.REMEDIATION: remediation}}, "spec": {"template": template}}
    return Patch(ref_of(object_), body, version_of(object_))


def count_running(pods: Iterable[Object], known: Collection[str] = (), since: datetime | None = None) -> int:
    """Pods that run and are not being deleted. With `since`, also those that succeeded and were created later or have a
    uid of `known`: a job's Pods may end before they are looked at."""

    def counts(pod: Object) -> bool:
        metadata, phase = pod["metadata"], value_at(pod, "/status/phase")
        made = metadata.get("creationTimestamp")
        new = since is not None and bool(made) and datetime.fromisoformat(made) >= since
        done = since is not None and phase == "Succeeded" and (new or metadata.get("uid") in known)
        return "deletionTimestamp" not in metadata and (phase == "Running" or done)

    return sum(map(counts, pods))


def most_wanted(owner: Object, pods: int) -> int:
    """So many Pods, or fewer if a Deployment or StatefulSet asks for fewer by now, as when an autoscaler shrank it."""
    asked = value_at(owner, "/spec/replicas") if key_of(owner)[0] == "apps" else pods
    return min(pods, asked) if isinstance(asked, int) else pods


def ended(object_: Object | None) -> bool:
    """Whether it has run to its end."""
    rule = rule_of(object_)
    return object_ is not None and rule is not None and rule.ended(object_)


def changed_since(object_: Object | None, saved: Sequence[Saved]) -> str:
    """The field that a release had set, if others have set it anew since it was restored; '' otherwise."""
    rule = rule_of(object_)
    if object_ is None or rule is None or rule.commands is not None:
        return ""  # a Command's result shows in a status, which changes by itself
    mine = [item for item in saved if item.target.uid == object_["metadata"].get("uid")]
    restored = {item.before or as_json(rule.unset) for item in mine[:1]}
    return mine[0].path if mine and as_json(value_at(object_, mine[0].path)) not in restored else ""
